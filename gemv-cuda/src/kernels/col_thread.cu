// col-thread: y = alpha A x + beta y, column-major, for at most MAX_N <= 64 columns. A thread has
// ROWS * VEC whole rows, and as many lanes as there are columns. No exchange, no barrier.
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
#ifndef ROWS
#define ROWS 1
#endif
#ifndef MAX_N
#define MAX_N 64
#endif
#define AT_ONCE (MAX_N < 8 ? MAX_N : 8)
#define PARTIALS (MAX_N / AT_ONCE)
#define BLOCK_ROWS (THREADS * ROWS * VEC)

KERNEL(THREADS) col_thread(ARGUMENTS) {
  begin(false);
  const U64 first = GROUP_ID * BLOCK_ROWS + LID * VEC;
  const U32 len = (U32)n;
  ACC sum[ROWS][VEC];

  if (acc_is(alpha, (REAL)0) || n == 0) {
#pragma unroll
    for (U32 r = 0; r < ROWS; r++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) {
        const U64 i = first + r * (THREADS * VEC) + c;
        if (i < m) finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
      }
    return;
  }

  // The same for the whole block: every vector lies on its boundary, and within the rows.
  const bool whole =
      (GROUP_ID + 1) * BLOCK_ROWS <= m && BEYOND(a + a0) == 0 && (cs & (I64)(VEC - 1)) == 0;
  ACC open[3][ROWS * VEC];
#pragma unroll(PARTIALS <= 2 ? PARTIALS : 1)
  for (U32 b = 0; b < PARTIALS; b++) {
    const U32 lane = visited<PARTIALS>(b);
    const ELEM *p = a + a0 + (I64)lane * cs;
    PACK av[AT_ONCE][ROWS];
    ELEM xv[AT_ONCE];
    if (whole) {
#pragma unroll
      for (U32 q = 0; q < AT_ONCE; q++)
#pragma unroll
        for (U32 r = 0; r < ROWS; r++)
          load_a(av[q][r], p + (I64)(q * PARTIALS) * cs + (I64)(first + r * (THREADS * VEC)),
                 lane + q * PARTIALS < len);
    } else {
#pragma unroll
      for (U32 q = 0; q < AT_ONCE; q++)
#pragma unroll
        for (U32 r = 0; r < ROWS; r++)
#pragma unroll
          for (U32 c = 0; c < VEC; c++) {
            const U64 i = first + r * (THREADS * VEC) + c;
            if (lane + q * PARTIALS < len && i < m)
              av[q][r].e[c] = p[(I64)(q * PARTIALS) * cs + (I64)i];
          }
    }
#pragma unroll
    for (U32 q = 0; q < AT_ONCE; q++)
      if (lane + q * PARTIALS < len) xv[q] = x[x0 + (I64)(lane + q * PARTIALS) * incx];
    ACC acc[AT_ONCE][ROWS * VEC];
#pragma unroll
    for (U32 q = 0; q < AT_ONCE; q++)
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          acc[q][r * VEC + c] = acc_zero();
          if (lane + q * PARTIALS < len)
            acc[q][r * VEC + c] =
                acc_fma(conj_if(widen(av[q][r].e[c]), conj), widen(xv[q]), acc_zero());
        }
    halve(acc);
    merge<PARTIALS>(open, acc[0], b);
#pragma unroll
    for (U32 r = 0; r < ROWS; r++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++)
        sum[r][c] = MAX_N < 64 ? acc_add(acc[0][r * VEC + c], acc_zero()) : acc[0][r * VEC + c];
  }

  const bool reads = !acc_is(beta, (REAL)0);
  if (VEC > 1 && whole && incy == 1 && BEYOND(y + y0) == 0) {
    // One vector is one store.
#pragma unroll
    for (U32 r = 0; r < ROWS; r++) {
      WORDS *at = (WORDS *)(y + y0 + first + r * (THREADS * VEC));
      PACK out;
      if (reads) out.words = *at;
#pragma unroll
      for (U32 c = 0; c < VEC; c++) finish(&out.e[c], alpha, sum[r][c], beta);
      *at = out.words;
    }
    return;
  }
#pragma unroll
  for (U32 r = 0; r < ROWS; r++)
#pragma unroll
    for (U32 c = 0; c < VEC; c++) {
      const U64 i = first + r * (THREADS * VEC) + c;
      if (i < m) finish(y + (y0 + (I64)i * incy), alpha, sum[r][c], beta);
    }
}
