// y = alpha A x + beta y for at most SPAN <= 64 columns of neighbouring elements: a thread has
// ROWS * VEC rows to itself, and no more of a segment's lanes than there are columns. No exchange,
// no barrier.
//
//   rows       a block has THREADS * ROWS * VEC of them: vector r of thread t begins r * THREADS * VEC
//              + t * VEC rows on, so that neighbours read, and write, neighbouring elements.
//   lanes      up to eight at a time: lanes l, l + TURNS, ... are summed to one value, and the TURNS
//              values (l in bit-reversed order) are merged as they come. The halving begins at
//              SPAN / 2, with +0 added at the end where that is not 32.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the m x n elements.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef SPAN
#define SPAN 64
#endif
#define Q (SPAN < 8 ? SPAN : 8)
#define TURNS (SPAN / Q)
#define TILE (THREADS * ROWS * VEC)

KERNEL(THREADS) narrow(ARGUMENTS) {
  const U64 first = GROUP_ID * TILE + LID * VEC;
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

  // For the whole block alike: every vector lies on its boundary, and within the rows.
  const bool whole =
      (GROUP_ID + 1) * TILE <= m && BEYOND(a + a0) == 0 && (cs & (I64)(VEC - 1)) == 0;
  ACC open[3][ROWS * VEC];
#pragma unroll(TURNS <= 2 ? TURNS : 1)
  for (U32 b = 0; b < TURNS; b++) {
    const U32 lane = visited<TURNS>(b);
    const ELEM *p = a + a0 + (I64)lane * cs;
    PACK av[Q][ROWS];
    ELEM xv[Q];
    if (whole) {
#pragma unroll
      for (U32 q = 0; q < Q; q++)
#pragma unroll
        for (U32 r = 0; r < ROWS; r++)
          stream(av[q][r], p + (I64)(q * TURNS) * cs + (I64)(first + r * (THREADS * VEC)),
                 lane + q * TURNS < len);
    } else {
#pragma unroll
      for (U32 q = 0; q < Q; q++)
#pragma unroll
        for (U32 r = 0; r < ROWS; r++)
#pragma unroll
          for (U32 c = 0; c < VEC; c++) {
            const U64 i = first + r * (THREADS * VEC) + c;
            if (lane + q * TURNS < len && i < m)
              av[q][r].e[c] = p[(I64)(q * TURNS) * cs + (I64)i];
          }
    }
#pragma unroll
    for (U32 q = 0; q < Q; q++)
      if (lane + q * TURNS < len) xv[q] = x[x0 + (I64)(lane + q * TURNS) * incx];
    ACC acc[Q][ROWS * VEC];
#pragma unroll
    for (U32 q = 0; q < Q; q++)
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          acc[q][r * VEC + c] = acc_zero();
          if (lane + q * TURNS < len)
            acc[q][r * VEC + c] =
                acc_fma(conj_if(widen(av[q][r].e[c]), conj), widen(xv[q]), acc_zero());
        }
    halve(acc);
    merge<TURNS>(open, acc[0], b);
#pragma unroll
    for (U32 r = 0; r < ROWS; r++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++)
        sum[r][c] = SPAN < 64 ? acc_add(acc[0][r * VEC + c], acc_zero()) : acc[0][r * VEC + c];
  }

  const bool reads = !acc_is(beta, (REAL)0);
  if (VEC > 1 && whole && incy == 1 && BEYOND(y + y0) == 0) {
    // One vector goes back as one store.
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
