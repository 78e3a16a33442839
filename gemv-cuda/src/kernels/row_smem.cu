// row-smem: y = alpha A x + beta y, row-major, for rows of at most MAX_N <= 64 elements. A block copies
// its rows to shared memory; there a thread has ROWS whole rows. No exchange: a sub-warp for a row of
// two elements would leave most of its threads, and most of each load, unused.
//
//   rows       a block has THREADS * ROWS of them: row r * THREADS + t of the block's is thread t's, so
//              that neighbours write neighbouring elements.
//   copies     thread t has vectors t, t + THREADS, ... of the block's rows one after another, by
//              cp.async where the device has it (sm_80 and later): all are in flight at once, in no
//              registers. In shared memory rows begin an odd number of vectors apart: no bank conflicts.
//   dense      VEC = 1, rows without gaps whose length is odd in words: they are one run of elements,
//              copied by the widest loads, and have no bank conflicts as they are.
//   lanes      vectors v, v + PARTIALS, ... up to eight elements at a time are summed to one, and the
//              PARTIALS sums (v in bit-reversed order) are merged as they come; the elements of a vector
//              at the end. The halving begins at HALVING / 2, with +0 added at the end where that is
//              not 32.
//   aligned    rows that begin where vectors do. With other rows every element is a copy of its own.
//   never read A and x where alpha = 0; y where beta = 0; vectors without an element of the block's
//              rows. The ones at the ends are read whole; allocations begin and end with a whole one.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef MAX_N
#define MAX_N 64
#endif
#define BLOCK_ROWS (THREADS * ROWS)
#define VECTORS (MAX_N / VEC)
#define PITCH (VECTORS | 1)
// Lanes of the halving, and vectors of them.
#define HALVING (MAX_N > 32 ? 64 : MAX_N > 16 ? 32 : MAX_N > 8 ? 16 : MAX_N > 4 ? 8 : MAX_N > 2 ? 4 : MAX_N)
// A row has more elements than the next smaller MAX_N.
#define MIN_N (MAX_N > 16 ? MAX_N - 7 : MAX_N / 2 + 1)
#define HALVING_VECTORS (HALVING / VEC)
#define AT_ONCE (HALVING_VECTORS < 8 / VEC ? HALVING_VECTORS : 8 / VEC)
#define PARTIALS (HALVING_VECTORS / AT_ONCE)
// Elements of the widest load.
#define WIDEST (16 / ELEM_BYTES)

// Copies `per` neighbours of each of `rows` rows. Rows are `step` elements apart in memory and `pitch`
// in shared memory. L2_ONLY: bypasses the L1 cache, where nothing would be read again.
template <bool L2_ONLY, typename T>
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
      if (L2_ONLY)
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

// The x of one partial sum.
struct __align__(AT_ONCE * VEC * ELEM_BYTES < 16 ? AT_ONCE * VEC * ELEM_BYTES : 16) XPart {
  ELEM e[AT_ONCE * VEC];
};

KERNEL(THREADS) row_smem(ARGUMENTS) {
  begin(false);
  __shared__ __align__(16) PACK rows[BLOCK_ROWS * PITCH + (VEC == 1 ? WIDEST : 0)];
  __shared__ XPart xs[PARTIALS];
  const U64 first = GROUP_ID * BLOCK_ROWS;
  const U32 count = m - first < BLOCK_ROWS ? (U32)(m - first) : BLOCK_ROWS, len = (U32)n;
  if (acc_is(alpha, (REAL)0)) {
    for (U32 row = LID; row < count; row += THREADS)
      finish(y + (y0 + (I64)(first + row) * incy), alpha, acc_zero(), beta);
    return;
  }

  const ELEM *const from = a + a0 + (I64)first * rs;
  // Where row 0 begins in shared memory, and how far apart rows are.
  U32 begin = 0, pitch = PITCH;
  if (VEC == 1 && rs == (I64)n && (n & (ELEM_BYTES == 2 ? 3 : 1)) != 0) {
    begin = (U32)(ADDRESS(from) / ELEM_BYTES) & (WIDEST - 1u);
    pitch = len;
    copy<true>((uint4 *)rows, 0, (const uint4 *)(from - begin), 0, (begin + count * len + WIDEST - 1) / WIDEST, 1);
  } else if (BEYOND(from) == 0 && (rs & (I64)(VEC - 1)) == 0) {
    copy<false>((WORDS *)rows, PITCH, (const WORDS *)from, rs / VEC, (len + VEC - 1) / VEC, count);
  } else {
    copy<false>(rows[0].e, PITCH * VEC, from, rs, len, count);
  }
  for (U32 j = LID; j < len; j += THREADS)
    xs[j / VEC % PARTIALS].e[j / VEC / PARTIALS * VEC + j % VEC] = x[x0 + (I64)j * incx];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  __syncthreads();

  const PACK *const own = rows + begin + LID * pitch;
  ACC sum[ROWS][VEC], open[3][ROWS * VEC];
#pragma unroll
  for (U32 b = 0; b < PARTIALS; b++) {
    const U32 v = visited<PARTIALS>(b);
    const XPart xv = xs[v];
    ACC acc[AT_ONCE][ROWS * VEC];
#pragma unroll
    for (U32 q = 0; q < AT_ONCE; q++) {
      const U32 k = v + q * PARTIALS;
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        // Past the last vector, the last one again.
        const PACK av = own[r * THREADS * pitch + (k < VECTORS ? k : VECTORS - 1)];
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          const U32 j = k * VEC + c;
          acc[q][r * VEC + c] = acc_zero();
          if (j < MIN_N || (j < MAX_N && j < len))
            acc[q][r * VEC + c] =
                acc_fma(conj_if(widen(av.e[c]), conj), widen(xv.e[q * VEC + c]), acc_zero());
        }
      }
    }
    halve(acc);
    merge<PARTIALS>(open, acc[0], b);
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
             HALVING < 64 ? acc_add(sum[r][0], acc_zero()) : sum[r][0], beta);
  }
}
