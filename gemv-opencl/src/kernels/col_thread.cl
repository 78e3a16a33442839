// y = alpha A x + beta y, column-major, on GPUs, for at most MAX_N <= 64 columns. A thread has ROWS * VEC
// whole rows, and as many lanes as there are columns. No exchange, no barrier. The bits are those of
// docs/ORDER.md.
//
//   rows       a block has THREADS * ROWS * VEC of them: vector r of thread t begins r * THREADS * VEC
//              + t * VEC rows on, so that neighbours read, and write, neighbouring elements.
//   lanes      up to eight at a time: lanes l, l + PARTIALS, ... are summed to one value, and the
//              PARTIALS values (l in bit-reversed order) are merged as they come. The halving begins at
//              MAX_N / 2, with +0 added at the end where that is not 32.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the m x n elements.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef MAX_N
#define MAX_N 64
#endif
#define AT_ONCE (MAX_N < 8 ? MAX_N : 8)
#define PARTIALS (MAX_N / AT_ONCE)
#define BLOCK_ROWS (THREADS * ROWS * VEC)

KERNEL(THREADS) col_thread(ARGUMENTS) {
  const U64 first = GROUP_ID * BLOCK_ROWS + LID * VEC;
  const U32 len = (U32)n;
  if (acc_is(alpha, (REAL)0) || n == 0) {
    for (U32 r = 0; r < ROWS; r++)
      for (U32 c = 0; c < VEC; c++) {
        const U64 i = first + r * (THREADS * VEC) + c;
        if (i < m) finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
      }
    return;
  }

  // The same for the whole block: every vector lies on its boundary, and within the rows.
  const bool whole =
      (GROUP_ID + 1) * BLOCK_ROWS <= m && BEYOND(a + a0) == 0 && ((U64)cs & (VEC - 1u)) == 0;
  ACC sum[ROWS * VEC], open[3 * ROWS * VEC];
#if PARTIALS <= 2
#pragma unroll
#else
#pragma unroll 1
#endif
  for (U32 b = 0; b < PARTIALS; b++) {
    const U32 lane = VISITED(b);
    GLOBAL const ELEM *p = a + (a0 + (I64)lane * cs);
    PACK av[AT_ONCE * ROWS];
    if (whole) {
#pragma unroll
      for (U32 q = 0; q < AT_ONCE; q++)
#pragma unroll
        for (U32 r = 0; r < ROWS; r++)
          load_if(&av[q * ROWS + r], p + ((I64)(q * PARTIALS) * cs + (I64)(first + r * (THREADS * VEC))),
                  lane + q * PARTIALS < len);
    } else {
#pragma unroll
      for (U32 q = 0; q < AT_ONCE; q++)
#pragma unroll
        for (U32 r = 0; r < ROWS; r++)
#pragma unroll
          for (U32 c = 0; c < VEC; c++) {
            const U64 i = first + r * (THREADS * VEC) + c;
            const bool there = lane + q * PARTIALS < len && i < m;
            av[q * ROWS + r].e[c] = there ? p[(I64)(q * PARTIALS) * cs + (I64)i] : (ELEM)(0);
          }
    }
    ACC acc[AT_ONCE][ROWS * VEC];
#pragma unroll
    for (U32 q = 0; q < AT_ONCE; q++) {
      const bool there = lane + q * PARTIALS < len;
      const ACC xv = there ? widen(x[x0 + (I64)(lane + q * PARTIALS) * incx]) : acc_zero();
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          acc[q][r * VEC + c] = acc_zero();
          if (there)
            acc[q][r * VEC + c] =
                acc_fma(conj_if(widen(av[q * ROWS + r].e[c]), conj), xv, acc_zero());
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
    for (U32 i = 0; i < ROWS * VEC; i++)
      sum[i] = MAX_N < 64 ? acc_add(acc[0][i], acc_zero()) : acc[0][i];
  }

  if (VEC > 1 && whole && incy == 1 && BEYOND(y + y0) == 0 && acc_is(beta, (REAL)0)) {
    // One vector is one store; rule 6 without an old y.
    const bool scaled = !acc_is(alpha, (REAL)1);
#pragma unroll
    for (U32 r = 0; r < ROWS; r++) {
      PACK out;
#pragma unroll
      for (U32 c = 0; c < VEC; c++)
        out.e[c] = narrow(scaled ? acc_mul(alpha, sum[r * VEC + c]) : sum[r * VEC + c]);
      store_vector(y + (y0 + first + r * (THREADS * VEC)), &out);
    }
    return;
  }
#pragma unroll
  for (U32 r = 0; r < ROWS; r++)
#pragma unroll
    for (U32 c = 0; c < VEC; c++) {
      const U64 i = first + r * (THREADS * VEC) + c;
      if (i < m) finish(y + (y0 + (I64)i * incy), alpha, sum[r * VEC + c], beta);
    }
}
