// y = alpha A x + beta y for short rows of f32 and f64, on CPUs. The bits are those of docs/ORDER.md.
//
//   rows       A work-group is one item. It has a band of rows and computes 16 of them at a time.
//   lanes      A row has at most COLS columns. Up to 16 of them are a part of a vector, which holds 16 / COLS rows;
//              else a row is several vectors, whose sum is one. A column that is not there is +0 times +0.
//   halving    The vectors of 16 rows are halved together, two to one, until one holds the 16 sums. Levels of
//              absent lanes are left out, and +0 is added once in their place.
//   strides    Any; loads are by vectors where the column stride is 1.
//   prefetch   Each vector of rows asks for the lines PREFETCH bytes further on.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of a row's n elements but other memory
//              between the first and the last element of A.
#ifndef COLS
#define COLS 8
#endif
#ifndef PREFETCH
#define PREFETCH 0
#endif
// Columns of a vector, vectors of a row, rows of a vector.
#define NARROW (COLS < W ? COLS : W)
#define VECTORS (COLS / NARROW)
#define EACH (W / NARROW)

// EACH rows from p on.
STATIC WIDE load_rows(GLOBAL const ELEM *p, const I64 rs) {
  if (PREFETCH) prefetch_dense((GLOBAL const char *)p + PREFETCH);
#if EACH == 4
  return (WIDE)(vload4(0, p), vload4(0, p + rs), vload4(0, p + 2 * rs), vload4(0, p + 3 * rs));
#elif EACH == 2
  return (WIDE)(vload8(0, p), vload8(0, p + rs));
#else
  return LOAD_W(0, p);
#endif
}

// The sum of one row, element by element.
STATIC ACC one_row(GLOBAL const ELEM *p, const I64 cs, const ACC *xs, const U32 n) {
  ACC lane[COLS];
  for (U32 j = 0; j < COLS; j++)
    lane[j] = j < n ? acc_fma(widen(p[(I64)j * cs]), xs[j], acc_zero()) : acc_zero();
  for (U32 h = COLS / 2; h > 0; h >>= 1)
    for (U32 l = 0; l < h; l++) lane[l] = acc_add(lane[l], lane[l + h]);
  return COLS < LANES ? acc_add(lane[0], acc_zero()) : lane[0];
}

KERNEL(1) row_short_cpu(ARGUMENTS) {
  PART w = part_of(ceil_div(m, W), n);
  w.first *= W;
  w.last = w.last * W < m ? w.last * W : m;
  if (acc_is(alpha, (REAL)0) || n == 0) {
    for (U64 i = w.first; i < w.last; i++)
      finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
    return;
  }
  // Of each vector, x and the lanes that there are.
  ACC xs[VECTORS * W];
  for (U32 l = 0; l < VECTORS * W; l++) {
    const U32 j = VECTORS == 1 ? l % NARROW : l;
    xs[l] = j < n ? widen(x[x0 + (I64)j * incx]) : acc_zero();
  }
  WIDE xv[VECTORS];
  MASK there[VECTORS];
  for (U32 q = 0; q < VECTORS; q++) {
    xv[q] = LOAD_W(q, xs);
    there[q] = below(n < q * W ? 0 : (U32)n - q * W);
#if EACH == 2
    there[q] = (MASK)(there[q].lo, there[q].lo);
#elif EACH == 4
    there[q] = (MASK)(there[q].lo.lo, there[q].lo.lo, there[q].lo.lo, there[q].lo.lo);
#endif
  }
  GLOBAL const ELEM *end = end_of(a + a0, m, n, rs, cs);
  for (U64 i = w.first; i < w.last; i += W) {
    GLOBAL const ELEM *p = a + a0 + (I64)i * rs;
    GLOBAL ELEM *out = y + (y0 + (I64)i * incy);
    if (w.last - i < W || cs != 1 || p + (rs > 0 ? (W - 1) * rs : 0) + COLS > end) {
      for (U32 r = 0; r < W && i + r < w.last; r++)
        finish(out + (I64)r * incy, alpha, one_row(p + (I64)r * rs, cs, xs, (U32)n), beta);
      continue;
    }
    WIDE stack[5], v;
#pragma unroll
    for (U32 g = 0; g < NARROW; g++) {
      WIDE part[VECTORS];
#pragma unroll
      for (U32 q = 0; q < VECTORS; q++) {
        const WIDE av = load_rows(p + (I64)(g * EACH) * rs + q * W, rs);
        part[q] = fma(select((WIDE)0, av, there[q]), xv[q], (WIDE)0);
      }
#pragma unroll
      for (U32 h = VECTORS / 2; h > 0; h >>= 1)
#pragma unroll
        for (U32 q = 0; q < h; q++) part[q] += part[q + h];
      v = part[0];
      bool carries = true;
#pragma unroll
      for (U32 l = 0; l < 5; l++) {
        if (!carries) continue;
        if (g >> l & 1u) {
          v = halved(stack[l], v, NARROW >> l);
        } else {
          stack[l] = v;
          carries = false;
        }
      }
    }
    if (COLS < LANES) v += (WIDE)0;
    finish_rows(out, incy, alpha, v, beta, W);
  }
}
