// y = alpha A x + beta y on CPUs, row by row. The bits are those of docs/ORDER.md.
//
//   rows       A work-group is one item. It has a band of rows and computes ROWS of them at a time.
//   lanes      The 64 lanes of a row are four vectors of 16.
//   prefetch   In whole segments, each load asks for the line PREFETCH bytes further on.
//   split-K    As in row.k; the work-groups that share a row are the grid's y.
//   strides    Any; loads are by vectors where the column stride and incx are 1.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of a row's n elements but other memory
//              between the first and the last element of A.
#ifndef ROWS
#define ROWS 4
#endif
#ifndef PREFETCH
#define PREFETCH 0
#endif

// The sums of segment s of ROWS rows.
STATIC void segment_sums(GLOBAL const ELEM **row_ptr, const I64 cs, GLOBAL const ELEM *x,
                         const I64 incx, const U32 conj, const U32 len, GLOBAL const ELEM *end,
                         ACC *out) {
  SUMS acc[ROWS][4], sum[ROWS];
#pragma unroll
  for (U32 r = 0; r < ROWS; r++)
#pragma unroll
    for (U32 k = 0; k < 4; k++) acc[r][k] = sums_zero();
  if (len == SEG && cs == 1 && incx == 1) {
    for (U32 round = 0; round < 4; round++)
#pragma unroll
      for (U32 k = 0; k < 4; k++) {
        const U32 j = round * 64 + k * 16;
        const SUMS xv = load_dense(x + j);
#pragma unroll
        for (U32 r = 0; r < ROWS; r++) {
          if (PREFETCH) prefetch_dense((GLOBAL const char *)(row_ptr[r] + j) + PREFETCH);
          acc[r][k] = sums_fma(sums_conj(load_dense(row_ptr[r] + j), conj), xv, acc[r][k]);
        }
      }
  } else {
    for (U32 j = 0; j < len; j += 64)
#pragma unroll
      for (U32 k = 0; k < 4; k++) {
        if (j + k * 16 >= len) continue;
        const U32 left = len - j - k * 16, count = left < 16 ? left : 16;
        const I64 at = j + k * 16;
        const SUMS xv = load_some(x + at * incx, incx, count);
#pragma unroll
        for (U32 r = 0; r < ROWS; r++) {
          const SUMS av = sums_conj(load_any(row_ptr[r] + at * cs, cs, count, end), conj);
          const SUMS all = sums_fma(av, xv, acc[r][k]);
          acc[r][k] = count == 16 ? all : sums_first(acc[r][k], all, count);
        }
      }
  }
#pragma unroll
  for (U32 r = 0; r < ROWS; r++)
    sum[r] = sums_add(sums_add(acc[r][0], acc[r][2]), sums_add(acc[r][1], acc[r][3]));
#if ROWS == 4
  sums_halve4(sum, out);
#else
#pragma unroll
  for (U32 r = 0; r < ROWS; r++) out[r] = sums_halve(sum[r]);
#endif
}

KERNEL(1) row_cpu(ARGUMENTS) {
  const PART w = part_of(m, n);
  if (acc_is(alpha, (REAL)0) || n == 0) {
    if (w.direct)
      for (U64 i = w.first; i < w.last; i++)
        finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
    return;
  }
  const U64 per = w.by_super_segment ? ceil_div(w.super_segments, w.parts) * SEG : ceil_div(w.segments, w.parts);
  const U64 s0 = w.part * per, s1 = s0 + per < w.segments ? s0 + per : w.segments;
  GLOBAL const ELEM *end = end_of(a + a0, m, n, rs, cs);
  for (U64 i = w.first; i < w.last; i += ROWS) {
    ACC lanes[ROWS][64]; // of the second level
    for (U64 s = s0; s < s1; s++) {
      const U32 len = (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
      GLOBAL const ELEM *row_ptr[ROWS];
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        // A row beyond the last row is the last row again, and is not written.
        const U64 row = i + r < w.last ? i + r : w.last - 1;
        row_ptr[r] = a + a0 + (I64)row * rs + (I64)(s * SEG) * cs;
      }
      ACC sum[ROWS];
      segment_sums(row_ptr, cs, x + x0 + (I64)(s * SEG) * incx, incx, conj, len, end, sum);
      const bool end = s % SEG == SEG - 1 || s + 1 == w.segments;
      for (U32 r = 0; r < ROWS && i + r < w.last; r++) {
        ACC v = sum[r];
        if (!w.direct && !w.by_super_segment) {
          workspace[(i + r) * w.total + s] = v;
          continue;
        }
        if (w.segments > 1) {
          const U32 lane = (U32)(s % LANES);
          lanes[r][lane] = acc_add(s % SEG < LANES ? acc_zero() : lanes[r][lane], v);
          if (!end) continue;
          // Lanes without a segment are +0, which changes no other lane: none of them is -0.
          const U32 filled = s % SEG < LANES ? (U32)(s % SEG) + 1 : LANES;
          for (U32 h = 32; h > 0; h >>= 1) {
            const U32 pairs = filled <= h ? 0 : filled - h < h ? filled - h : h;
            for (U32 l = 0; l < pairs; l++) lanes[r][l] = acc_add(lanes[r][l], lanes[r][l + h]);
          }
          v = lanes[r][0];
        }
        if (w.direct) finish(y + (y0 + (I64)(i + r) * incy), alpha, v, beta);
        else workspace[(i + r) * w.total + s / SEG] = v;
      }
    }
  }
}
