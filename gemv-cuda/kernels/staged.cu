// y = alpha A x + beta y for rows of at most ROOM <= 64 neighbouring elements: a block copies its rows to
// shared memory, and there a thread has ROWS rows to itself. No exchange: a team for a row of two elements
// would leave most of its threads, and of each load, without any.
//
//   rows       a block has THREADS * ROWS of them: row r * THREADS + t of the block's is thread t's, so that
//              neighbours write neighbouring elements.
//   copies     thread t has vectors t, t + THREADS, ... of the block's rows one after another, straight from
//              memory to shared memory where the device can (sm_80 and later): all are under way at once, in
//              no registers. Rows begin an odd number of vectors apart there, so in other banks.
//   dense      VEC = 1, rows without gaps whose length is odd in words: they are one line, copied by the widest
//              loads, and lie in other banks as they are.
//   lanes      vectors v, v + TURNS, ... up to eight elements at a time are summed to one, and the TURNS sums
//              (v in bit-reversed order) are merged as they come; the elements of a vector at the end. The
//              halving begins at SPAN / 2, with +0 added at the end where that is not 32.
//   whole      rows that begin where vectors do. With other rows every element is a copy of its own.
//   never read A and x where alpha = 0; y where beta = 0; vectors without an element of the block's rows. The
//              ones at the ends are read whole; blocks of memory begin and end with a whole one.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef ROOM
#define ROOM 64
#endif
#define TILE (THREADS * ROWS)
#define VECTORS (ROOM / VEC)
#define PITCH (VECTORS | 1)
// Lanes of the halving, and vectors of them.
#define SPAN (ROOM > 32 ? 64 : ROOM > 16 ? 32 : ROOM > 8 ? 16 : ROOM > 4 ? 8 : ROOM > 2 ? 4 : ROOM)
// A row has more elements than the next smaller width.
#define LEAST (ROOM > 16 ? ROOM - 7 : ROOM / 2 + 1)
#define SPANNED (SPAN / VEC)
#define Q (SPANNED < 8 / VEC ? SPANNED : 8 / VEC)
#define TURNS (SPANNED / Q)
// Elements of the widest load.
#define CHUNK (16 / ELEM_BYTES)

// Copies `per` neighbours of each of `rows` rows, `step` apart and, in shared memory, `pitch`. ONCE: no line of the
// first cache has what another instruction asks for.
template <bool ONCE, typename T>
STATIC void copy(T *to, const U32 pitch, const T *from, const I64 step, const U32 per, const U32 rows) {
  U32 r = LID / per, j = LID % per;
  const U32 more_r = THREADS / per, more_j = THREADS % per;
  const auto next = [&]() {
    r += more_r;
    j += more_j;
    if (j >= per) {
      j -= per;
      r++;
    }
  };
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (sizeof(T) >= 4) {
#pragma unroll 4
    while (r < rows) {
      const U32 there = (U32)__cvta_generic_to_shared(to + r * pitch + j);
      const T *const p = from + (I64)r * step + j;
      if (ONCE)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(there), "l"(p));
      else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(there), "l"(p),
                     "n"(sizeof(T) >= 4 ? sizeof(T) : 4));
      next();
    }
    return;
  }
#endif
  while (r < rows) {
    T held[4];
    U32 at[4];
#pragma unroll
    for (U32 k = 0; k < 4; k++) {
      at[k] = r < rows ? r * pitch + j : ~0u;
      if (r < rows) held[k] = from[(I64)r * step + j];
      next();
    }
#pragma unroll
    for (U32 k = 0; k < 4; k++)
      if (at[k] != ~0u) to[at[k]] = held[k];
  }
}

// The x of a turn.
struct __align__(Q * VEC * ELEM_BYTES < 16 ? Q * VEC * ELEM_BYTES : 16) Some {
  ELEM e[Q * VEC];
};

KERNEL(THREADS) staged(ARGUMENTS) {
  __shared__ __align__(16) PACK rows[TILE * PITCH + (VEC == 1 ? CHUNK : 0)];
  __shared__ Some xs[TURNS];
  const U64 first = GROUP_ID * TILE;
  const U32 count = m - first < TILE ? (U32)(m - first) : TILE, len = (U32)n;
  if (acc_is(alpha, (REAL)0)) {
    for (U32 row = LID; row < count; row += THREADS)
      finish(y + (y0 + (I64)(first + row) * incy), alpha, acc_zero(), beta);
    return;
  }

  const ELEM *const from = a + a0 + (I64)first * rs;
  // Where row 0 begins, and the next one of every row.
  U32 begin = 0, pitch = PITCH;
  if (VEC == 1 && rs == (I64)n && (n & (ELEM_BYTES == 2 ? 3 : 1)) != 0) {
    begin = (U32)(ADDRESS(from) / ELEM_BYTES) & (CHUNK - 1u);
    pitch = len;
    copy<true>((uint4 *)rows, 0, (const uint4 *)(from - begin), 0, (begin + count * len + CHUNK - 1) / CHUNK, 1);
  } else if (BEYOND(from) == 0 && (rs & (I64)(VEC - 1)) == 0) {
    copy<false>((WORDS *)rows, PITCH, (const WORDS *)from, rs / VEC, (len + VEC - 1) / VEC, count);
  } else {
    copy<false>(rows[0].e, PITCH * VEC, from, rs, len, count);
  }
  for (U32 j = LID; j < len; j += THREADS)
    xs[j / VEC % TURNS].e[j / VEC / TURNS * VEC + j % VEC] = x[x0 + (I64)j * incx];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  __syncthreads();

  const PACK *const own = rows + begin + LID * pitch;
  ACC sum[ROWS][VEC], open[3][ROWS * VEC];
#pragma unroll
  for (U32 b = 0; b < TURNS; b++) {
    const U32 v = visited<TURNS>(b);
    const Some some = xs[v];
    ACC acc[Q][ROWS * VEC];
#pragma unroll
    for (U32 q = 0; q < Q; q++) {
      const U32 k = v + q * TURNS;
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        // Of vectors that there is no room for, the last one again.
        const PACK av = own[r * THREADS * pitch + (k < VECTORS ? k : VECTORS - 1)];
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          const U32 j = k * VEC + c;
          acc[q][r * VEC + c] = acc_zero();
          if (j < LEAST || (j < ROOM && j < len))
            acc[q][r * VEC + c] =
                acc_fma(conj_if(widen(av.e[c]), conj), widen(some.e[q * VEC + c]), acc_zero());
        }
      }
    }
    halve(acc);
    merge<TURNS>(open, acc[0], b);
#pragma unroll
    for (U32 r = 0; r < ROWS; r++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) sum[r][c] = acc[0][r * VEC + c];
  }
#pragma unroll
  for (U32 r = 0; r < ROWS; r++) {
    halve(sum[r]);
    const U32 row = r * THREADS + LID;
    if (row < count)
      finish(y + (y0 + (I64)(first + row) * incy), alpha,
             SPAN < 64 ? acc_add(sum[r][0], acc_zero()) : sum[r][0], beta);
  }
}
