// y = alpha A x + beta y for few rows by columns, on CPUs. The bits are those of docs/ORDER.md.
//
//   rows       A work-group is one item. It has all rows, at most MAX_M, in vectors of W, and a part of the segments.
//   lanes      The 64 lanes of all rows lie in private memory. With STREAMS = 1 the columns are read in the order of
//              memory. With 8 the columns of two lanes that the halving adds first are read together, and their sum
//              stays in registers. A lane without columns is +0.
//   split-K    As in row.k; the work-groups are the grid's y.
//   strides    Any; loads are by vectors where the row stride is 1.
//   prefetch   With PREFETCH_NEXT, each load asks for the same element of the next segment.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the m x n elements but other memory
//              between the first and the last of them.
#ifndef MAX_M
#define MAX_M 16
#endif
#ifndef STREAMS
#define STREAMS 1
#endif
#ifndef PREFETCH_NEXT
#define PREFETCH_NEXT 0
#endif
#define WIDES (MAX_M / W)
// Vectors of a column; a constant where there is one.
#define WIDES_OF(rows) (WIDES == 1 ? 1 : ((U32)(rows) + W - 1) / W)

// The sum of `count` lanes of all rows, to lane 0.
STATIC void halve_lanes(SUMS (*lane)[WIDES], const U32 count, const U32 wides) {
  for (U32 h = count / 2; h > 0; h >>= 1)
    for (U32 l = 0; l < h; l++)
      for (U32 k = 0; k < wides; k++) lane[l][k] = sums_add(lane[l][k], lane[l + h][k]);
}

STATIC SUMS column(GLOBAL const ELEM *p, const I64 cs, const U32 conj, SUMS xv, SUMS v) {
  if (PREFETCH_NEXT) prefetch_dense(p + (I64)SEG * cs);
  return sums_fma(sums_conj(load_dense(p), conj), xv, v);
}

// The sums of a segment of `len` columns from p on, to lane[0].
STATIC void segment_sums(GLOBAL const ELEM *p, const I64 rs, const I64 cs, const U32 rows,
                         GLOBAL const ELEM *x, const I64 incx, const U32 conj, const U32 len,
                         GLOBAL const ELEM *end, SUMS (*lane)[WIDES]) {
  const U32 wides = WIDES_OF(rows);
  ACC xs[SEG];
  if (incx == 1)
    for (U32 j = 0; j < len; j++) xs[j] = widen(x[j]);
  else
    for (U32 j = 0; j < len; j++) xs[j] = widen(x[(I64)j * incx]);
  if (rs == 1 && len == SEG && p + (cs > 0 ? 255 * cs : 0) + wides * W <= end) {
#if STREAMS == 1
#pragma unroll
    for (U32 c = 0; c < 4; c++)
      for (U32 l = 0; l < LANES; l++) {
        GLOBAL const ELEM *q = p + (I64)(c * LANES + l) * cs;
        const SUMS xv = sums_of(xs[c * LANES + l]);
        for (U32 w = 0; w < wides; w++)
          lane[l][w] = column(q + w * W, cs, conj, xv, c == 0 ? sums_zero() : lane[l][w]);
      }
#else
    for (U32 l = 0; l < LANES / 2; l++)
      for (U32 w = 0; w < wides; w++) {
        SUMS v = sums_zero(), u = sums_zero();
#pragma unroll
        for (U32 c = 0; c < 4; c++) {
          const U32 j = c * LANES + l, k = j + LANES / 2;
          v = column(p + (I64)j * cs + w * W, cs, conj, sums_of(xs[j]), v);
          u = column(p + (I64)k * cs + w * W, cs, conj, sums_of(xs[k]), u);
        }
        lane[l][w] = sums_add(v, u);
      }
    halve_lanes(lane, LANES / 2, wides);
    return;
#endif
  } else {
    for (U32 l = 0; l < LANES; l++)
      for (U32 w = 0; w < wides; w++) {
        const U32 left = rows - w * W, count = left < W ? left : W;
        SUMS v = sums_zero();
        for (U32 j = l; j < len; j += LANES) {
          const SUMS a = load_any(p + (I64)j * cs + (I64)(w * W) * rs, rs, count, end);
          v = sums_fma(sums_conj(a, conj), sums_of(xs[j]), v);
        }
        lane[l][w] = v;
      }
  }
  halve_lanes(lane, LANES, wides);
}

KERNEL(1) col_few_rows_cpu(ARGUMENTS) {
  const PART w = part_of(m, n);
  if (acc_is(alpha, (REAL)0) || n == 0) {
    if (w.direct)
      for (U64 i = 0; i < m; i++) finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
    return;
  }
  const U64 per = w.by_super_segment ? ceil_div(w.super_segments, w.parts) * SEG : ceil_div(w.segments, w.parts);
  const U64 s0 = w.part * per, s1 = s0 + per < w.segments ? s0 + per : w.segments;
  GLOBAL const ELEM *end = end_of(a + a0, m, n, rs, cs);
  const U32 wides = WIDES_OF(m);
  const bool by_segment = !w.direct && !w.by_super_segment;
  SUMS inner[LANES][WIDES], lanes[LANES][WIDES];
  for (U64 s = s0; s < s1; s++) {
    const U32 len = (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
    segment_sums(a + a0 + (I64)(s * SEG) * cs, rs, cs, (U32)m, x + x0 + (I64)(s * SEG) * incx, incx,
                 conj, len, end, inner);
    SUMS *sum = inner[0];
    if (!by_segment && w.segments > 1) {
      const U32 lane = (U32)(s % LANES);
      for (U32 k = 0; k < wides; k++)
        lanes[lane][k] = sums_add(s % SEG < LANES ? sums_zero() : lanes[lane][k], sum[k]);
      if (s % SEG != SEG - 1 && s + 1 != w.segments) continue;
      for (U32 l = (U32)(s % SEG) + 1; l < LANES; l++)
        for (U32 k = 0; k < wides; k++) lanes[l][k] = sums_zero();
      halve_lanes(lanes, LANES, wides);
      sum = lanes[0];
    }
    for (U32 k = 0; k < wides; k++) {
      const U64 row = k * W;
      const U32 count = m - row < W ? (U32)(m - row) : W;
      if (w.direct) {
        finish_rows(y + (y0 + (I64)row * incy), incy, alpha, sum[k], beta, count);
        continue;
      }
      ACC out[W];
      sums_store(sum[k], out);
      for (U32 c = 0; c < count; c++)
        workspace[(row + c) * w.total + (by_segment ? s : s / SEG)] = out[c];
    }
  }
}
