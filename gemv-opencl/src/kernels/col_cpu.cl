// y = alpha A x + beta y on CPUs, column by column. The bits are those of docs/ORDER.md.
//
//   rows       A work-group is one item. It has a band of rows, in vectors of 16 rows that begin at
//              multiples of 16 and in tiles of TILE_M rows.
//   lanes      The four columns of four lanes are one pass over a tile. Lanes are visited in
//              bit-reversed order: a stack of 7 partial vectors replaces the 64 lanes. Segments are the
//              lanes of a second stack.
//   split-K    As in row.k; the work-groups that share a row are the grid's y.
//   strides    Any; loads are by vectors where the row stride is 1.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the m x n elements but other memory
//              between the first and the last of them.
#ifndef TILE_M
#define TILE_M 512
#endif
#define WIDES (TILE_M / 16)

// The sums of one segment for `rows` rows from p on, to out[0 .. ceil(rows / 16)].
STATIC void segment_sums(GLOBAL const ELEM *p, const I64 rs, const I64 cs, const U32 rows,
                         GLOBAL const ELEM *x, const I64 incx, const U32 conj, const U32 len,
                         GLOBAL const ELEM *end, SUMS *stack, SUMS *out) {
  const U32 bits = bits_for(len), wides = (rows + 15) / 16;
  // Four neighbouring lanes of the tree at a time, whose sums meet in registers.
  const U32 many = bits < 2 ? 1 : 4;
  for (U32 b = 0; b < 1u << bits; b += many) {
    // Their first columns, how many columns each has, and the elements of x.
    U32 lane[4], columns[4];
    ACC xv[4][4];
    U32 fewest = 4;
#pragma unroll
    for (U32 k = 0; k < 4; k++) {
      lane[k] = k < many ? reversed(b + k, bits) : SEG;
      columns[k] = lane[k] < len ? (len - lane[k] + 63) / 64 : 0;
      fewest = columns[k] < fewest ? columns[k] : fewest;
      for (U32 c = 0; c < columns[k]; c++)
        xv[k][c] = widen(x[(I64)(lane[k] + 64 * c) * incx]);
    }
    for (U32 w = 0; w < wides; w++) {
      const U32 left = rows - w * 16, count = left < 16 ? left : 16;
      GLOBAL const ELEM *q = p + (I64)(w * 16) * rs;
      SUMS v[4];
#pragma unroll
      for (U32 k = 0; k < 4; k++) v[k] = sums_zero();
      if (fewest == 4 && rs == 1 && (count == 16 || q + (cs > 0 ? 255 * cs : 0) + 16 <= end)) {
#pragma unroll
        for (U32 k = 0; k < 4; k++)
#pragma unroll
          for (U32 c = 0; c < 4; c++)
            v[k] = sums_fma(sums_conj(load_dense(q + (I64)(lane[k] + 64 * c) * cs), conj),
                            sums_of(xv[k][c]), v[k]);
      } else {
#pragma unroll
        for (U32 k = 0; k < 4; k++)
          for (U32 c = 0; c < columns[k]; c++)
            v[k] = sums_fma(sums_conj(load16_any(q + (I64)(lane[k] + 64 * c) * cs, rs, count, end),
                                      conj), sums_of(xv[k][c]), v[k]);
      }
      if (many == 1) {
        MERGE(stack, b, w, v[0]);
      } else {
        SUMS sum = sums_add(sums_add(v[0], v[1]), sums_add(v[2], v[3]));
        MERGE_FROM(2, stack, b, w, sum);
      }
    }
  }
  // Levels that would only add absent lanes are left out: one addition of +0 replaces them. With all
  // six levels no lane is absent, and +0 would change the sign of a sum of -0.
  for (U32 w = 0; w < wides; w++) {
    const SUMS v = stack[bits * WIDES + w];
    out[w] = bits < 6 ? sums_add(v, sums_zero()) : v;
  }
}

KERNEL(1) col_cpu(ARGUMENTS) {
  PART w = part_of(ceil_div(m, 16), n);
  w.first *= 16;
  w.last = w.last * 16 < m ? w.last * 16 : m;
  if (acc_is(alpha, (REAL)0) || n == 0) {
    if (w.direct)
      for (U64 i = w.first; i < w.last; i++)
        finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
    return;
  }
  const bool by_segment = !w.direct && !w.by_super_segment;
  // A part is whole segments or whole super-segments.
  const U64 units = by_segment ? w.segments : w.super_segments, per = ceil_div(units, w.parts);
  const U64 u0 = w.part * per, u1 = u0 + per < units ? u0 + per : units;
  GLOBAL const ELEM *end = end_of(a + a0, m, n, rs, cs);
  SUMS inner[7 * WIDES], outer[7 * WIDES], sum[WIDES], lane_sum[WIDES];
  for (U64 i = w.first; i < w.last; i += TILE_M) {
    const U32 rows = (U32)(w.last - i < TILE_M ? w.last - i : TILE_M), wides = (rows + 15) / 16;
    for (U64 u = u0; u < u1; u++) {
      const U64 s0 = by_segment ? u : u * SEG;
      const U64 s1 = by_segment ? u + 1 : s0 + SEG < w.segments ? s0 + SEG : w.segments;
      const U32 bits = bits_for(s1 - s0);
      for (U32 b = 0; b < 1u << bits; b++) {
        for (U32 k = 0; k < wides; k++) lane_sum[k] = sums_zero();
        for (U64 s = s0 + reversed(b, bits); s < s1; s += LANES) {
          const U32 len = (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
          segment_sums(a + a0 + (I64)i * rs + (I64)(s * SEG) * cs, rs, cs, rows,
                       x + x0 + (I64)(s * SEG) * incx, incx, conj, len, end, inner,
                       sum);
          // The sum of a single segment is the result. Of several, each is added to its lane.
          if (s1 - s0 > 1)
            for (U32 k = 0; k < wides; k++) lane_sum[k] = sums_add(lane_sum[k], sum[k]);
          else
            for (U32 k = 0; k < wides; k++) lane_sum[k] = sum[k];
        }
        for (U32 k = 0; k < wides; k++) {
          SUMS v = lane_sum[k];
          MERGE(outer, b, k, v);
        }
      }
      for (U32 k = 0; k < wides; k++) {
        SUMS v = outer[bits * WIDES + k];
        if (s1 - s0 > 1) v = sums_add(v, sums_zero());
        const U64 row = i + k * 16;
        const U32 count = rows - k * 16 < 16 ? rows - k * 16 : 16;
        if (w.direct) {
          finish16(y + (y0 + (I64)row * incy), incy, alpha, v, beta, count);
          continue;
        }
        ACC out[16];
        sums_store(v, out);
        for (U32 c = 0; c < count; c++) workspace[(row + c) * w.total + u] = out[c];
      }
    }
  }
}
