// y = alpha A x + beta y, row-major, on GPUs, for rows of at most MAX_N <= 64 elements. A block copies its
// rows to local memory; there a thread has ROWS whole rows. No exchange: a sub-warp for a row of two
// elements would leave most of its threads, and most of each load, unused. The bits are those of
// docs/ORDER.md.
//
//   rows       a block has THREADS * ROWS of them: row r * THREADS + t of the block's is thread t's, so
//              that neighbours write neighbouring elements.
//   copies     thread t has vectors t, t + THREADS, ... of the block's rows one after another, COPIES of
//              them in flight. In local memory rows begin an odd number of vectors apart: no bank
//              conflicts.
//   dense      VEC = 1, rows without gaps whose length is odd in words: they are one run of elements,
//              copied by the widest loads, and have no bank conflicts as they are.
//   lanes      vectors v, v + PARTIALS, ... up to eight elements at a time are summed to one, and the
//              PARTIALS sums (v in bit-reversed order) are merged as they come; the elements of a vector
//              at the end. The halving begins at HALVING / 2, with +0 added at the end where that is
//              not 32.
//   aligned    rows that begin where vectors do. With other rows every element is a copy of its own.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the rows' n elements.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef MAX_N
#define MAX_N 64
#endif
#define BLOCK_ROWS (THREADS * ROWS)
#define VECTORS (MAX_N / VEC)
#define PITCH ((VECTORS | 1) * VEC)
// Lanes of the halving, and vectors of them.
#define HALVING (MAX_N > 32 ? 64 : MAX_N > 16 ? 32 : MAX_N > 8 ? 16 : MAX_N > 4 ? 8 : MAX_N > 2 ? 4 : MAX_N)
// A row has more elements than the next smaller MAX_N.
#define MIN_N (MAX_N > 16 ? MAX_N - 7 : MAX_N / 2 + 1)
#define HALVING_VECTORS (HALVING / VEC)
#define AT_ONCE (HALVING_VECTORS < 8 / VEC ? HALVING_VECTORS : 8 / VEC)
#define PARTIALS (HALVING_VECTORS / AT_ONCE)
// Elements of the widest load.
#define WIDEST (16 / ELEM_BYTES)
#define COPIES 8

// Copies `per` neighbouring vectors of each of `rows` rows. Rows are `step` elements apart in memory and
// PITCH in local memory.
STATIC INLINED void copy_vectors(LOCAL_PTR(ELEM) to, GLOBAL const ELEM *from, const I64 step, const U32 per,
                       const U32 rows) {
  if (per == 0) return;
  U32 r = LID / per, j = LID - r * per;
  const U32 more_r = THREADS / per, more_j = THREADS - more_r * per;
  while (r < rows) {
    PACK held[COPIES];
    U32 at[COPIES];
#pragma unroll
    for (U32 k = 0; k < COPIES; k++) {
      at[k] = r < rows ? r * PITCH + j * VEC : ~0u;
      load_if(&held[k], from + ((I64)r * step + j * VEC), r < rows);
      r += more_r;
      j += more_j;
      if (j >= per) {
        j -= per;
        r++;
      }
    }
#pragma unroll
    for (U32 k = 0; k < COPIES; k++)
      if (at[k] != ~0u) store_local(to + at[k], &held[k]);
  }
}

// The same for elements.
STATIC INLINED void copy_elements(LOCAL_PTR(ELEM) to, GLOBAL const ELEM *from, const I64 step, const U32 per,
                       const U32 rows) {
  if (per == 0) return;
  U32 r = LID / per, j = LID - r * per;
  const U32 more_r = THREADS / per, more_j = THREADS - more_r * per;
  while (r < rows) {
    ELEM held[COPIES];
    U32 at[COPIES];
#pragma unroll
    for (U32 k = 0; k < COPIES; k++) {
      at[k] = r < rows ? r * PITCH + j : ~0u;
      if (r < rows) held[k] = from[(I64)r * step + j];
      r += more_r;
      j += more_j;
      if (j >= per) {
        j -= per;
        r++;
      }
    }
#pragma unroll
    for (U32 k = 0; k < COPIES; k++)
      if (at[k] != ~0u) to[at[k]] = held[k];
  }
}

// Copies a run of `count` elements by the widest loads, those at its ends by elements. It begins `begin`
// elements beyond such a vector, in local memory as well.
STATIC INLINED void copy_run(LOCAL_PTR(ELEM) to, GLOBAL const ELEM *from, const U32 begin, const U32 count) {
  const U32 end = begin + count;
  for (U32 v = LID * WIDEST; v < end; v += COPIES * THREADS * WIDEST) {
    uint4 held[COPIES];
#pragma unroll
    for (U32 k = 0; k < COPIES; k++) {
      const U32 here = v + k * (THREADS * WIDEST);
      if (here >= begin && here + WIDEST <= end)
        held[k] = *(GLOBAL const uint4 *)(from + ((I64)here - (I64)begin));
    }
#pragma unroll
    for (U32 k = 0; k < COPIES; k++) {
      const U32 here = v + k * (THREADS * WIDEST);
      if (here >= begin && here + WIDEST <= end) {
        *(LOCAL_PTR(uint4))(to + here) = held[k];
      } else {
        for (U32 c = here; c < here + WIDEST; c++)
          if (c >= begin && c < end) to[c] = from[c - begin];
      }
    }
  }
}

KERNEL(THREADS) row_smem(ARGUMENTS) {
  // In units of the widest vector, which align it.
  LOCAL uint4 memory[(BLOCK_ROWS * PITCH + (VEC == 1 ? WIDEST : 0) + WIDEST - 1) / WIDEST];
  LOCAL ELEM xs[HALVING];
  LOCAL_PTR(ELEM) rows = (LOCAL_PTR(ELEM))memory;
  const U64 first = GROUP_ID * BLOCK_ROWS;
  const U32 count = m - first < BLOCK_ROWS ? (U32)(m - first) : BLOCK_ROWS, len = (U32)n;
  if (acc_is(alpha, (REAL)0)) {
    for (U32 row = LID; row < count; row += THREADS)
      finish(y + (y0 + (I64)(first + row) * incy), alpha, acc_zero(), beta);
    return;
  }

  GLOBAL const ELEM *from = a + (a0 + (I64)first * rs);
  // Where row 0 begins in local memory, and how far apart rows are.
  U32 begin = 0, pitch = PITCH;
  if (VEC == 1 && rs == (I64)n && (n & (ELEM_BYTES == 2 ? 3 : 1)) != 0) {
    begin = (U32)(ADDRESS(from) / ELEM_BYTES) & (WIDEST - 1u);
    pitch = len;
    copy_run(rows, from, begin, count * len);
  } else if (VEC > 1 && BEYOND(from) == 0 && ((U64)rs & (VEC - 1u)) == 0) {
    copy_vectors(rows, from, rs, len / VEC, count);
    // The elements behind the last whole vector of a row.
    copy_elements(rows + len / VEC * VEC, from + len / VEC * VEC, rs, len % VEC, count);
  } else {
    copy_elements(rows, from, rs, len, count);
  }
  // The x of a partial sum side by side.
  for (U32 j = LID; j < len; j += THREADS)
    xs[j / VEC % PARTIALS * (AT_ONCE * VEC) + j / VEC / PARTIALS * VEC + j % VEC] =
        x[x0 + (I64)j * incx];
  BARRIER();

  // Rows beyond the last one are the first again.
  U32 own[ROWS];
#pragma unroll
  for (U32 r = 0; r < ROWS; r++) own[r] = begin + (r * THREADS + LID < count ? r * THREADS + LID : 0) * pitch;
  ACC sum[ROWS * VEC], open[3 * ROWS * VEC];
#pragma unroll
  for (U32 b = 0; b < PARTIALS; b++) {
    const U32 v = VISITED(b);
    ACC acc[AT_ONCE][ROWS * VEC];
#pragma unroll
    for (U32 q = 0; q < AT_ONCE; q++) {
      const U32 k = v + q * PARTIALS;
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        // Past the last vector, the last one again.
        PACK av;
        load_local(&av, rows + (own[r] + (k < VECTORS ? k : VECTORS - 1) * VEC));
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          const U32 j = k * VEC + c;
          acc[q][r * VEC + c] = acc_zero();
          if (j < MIN_N || (j < MAX_N && j < len))
            acc[q][r * VEC + c] = acc_fma(conj_if(widen(av.e[c]), conj),
                                          widen(xs[v * (AT_ONCE * VEC) + q * VEC + c]), acc_zero());
        }
      }
    }
#pragma unroll
    for (U32 level = 1; level <= 3; level++)
#pragma unroll
      for (U32 q = 0; q < AT_ONCE / 2; q++)
        if (q < AT_ONCE >> level)
#pragma unroll
          for (U32 i = 0; i < ROWS * VEC; i++)
            acc[q][i] = acc_add(acc[q][i], acc[q + (AT_ONCE >> level)][i]);
    merge(open, acc[0], PARTIALS, b);
#pragma unroll
    for (U32 i = 0; i < ROWS * VEC; i++) sum[i] = acc[0][i];
  }
#pragma unroll
  for (U32 r = 0; r < ROWS; r++) {
#pragma unroll
    for (U32 level = 1; level <= 3; level++)
#pragma unroll
      for (U32 c = 0; c < VEC / 2; c++)
        if (c < VEC >> level)
          sum[r * VEC + c] = acc_add(sum[r * VEC + c], sum[r * VEC + c + (VEC >> level)]);
    const U32 row = r * THREADS + LID;
    if (row < count)
      finish(y + (y0 + (I64)(first + row) * incy), alpha,
             HALVING < 64 ? acc_add(sum[r * VEC], acc_zero()) : sum[r * VEC], beta);
  }
}
