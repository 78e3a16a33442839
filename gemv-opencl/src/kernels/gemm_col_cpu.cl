// Y = alpha A X + beta Y, batched, on CPUs, column by column. The bits are those of docs/ORDER.md.
//
//   rows        A work-group is one item. It has a band of the rows of all entries, in vectors of 16 rows
//               that begin at multiples of 16 and in tiles of at most TILE_M rows.
//   columns     TILE_RHS columns of X at a time: each vector of A is read once for them.
//   super-segments  Where rows have more than 256 segments, the work is a list: all rows for the first 256
//               segments, then all rows for the next 256, and so on. A work-item has a band of that list. The
//               sums go to the workspace; gemm_reduce_super_segments follows.
//   lanes       As in col_cpu.cl, with a stack of partial vectors for each of the columns.
//   strides     Any; A is read by vectors where its row stride is 1.
//   never read  A and X where alpha = 0; Y where beta = 0; anything outside of the m x n elements but
//               other memory between the first and the last of them.
#ifndef TILE_M
#define TILE_M 256
#endif
#ifndef TILE_RHS
#define TILE_RHS 4
#endif
#define WIDES (TILE_M / 16)
// A stack of seven partial vectors.
#define STACK (7 * WIDES)

// The sums of one segment for `rows` rows from p on and for `cols` columns of X, to
// out[c * WIDES + (0 .. ceil(rows / 16))].
STATIC void segment_sums(GLOBAL const ELEM *p, const I64 rs, const I64 cs, const U32 rows,
                         GLOBAL const ELEM *x, const I64 xrs, const I64 xcs, const U32 cols,
                         const U32 conj, const U32 len, GLOBAL const ELEM *end, SUMS *stack,
                         SUMS *out) {
  const U32 bits = bits_for(len), wides = (rows + 15) / 16;
  for (U32 b = 0; b < 1u << bits; b++) {
    const U32 lane = reversed(b, bits);
    // The columns of the lane, and their elements of X.
    const U32 columns = lane < len ? (len - lane + 63) / 64 : 0;
    ACC xv[TILE_RHS][4];
    for (U32 k = 0; k < columns; k++)
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++)
        // A column beyond the last one is the first again, and is not written.
        xv[c][k] = widen(x[(I64)(lane + 64 * k) * xrs + (I64)(c < cols ? c : 0) * xcs]);
    GLOBAL const ELEM *q = p + (I64)lane * cs;
    for (U32 w = 0; w < wides; w++) {
      const U32 left = rows - w * 16, count = left < 16 ? left : 16;
      GLOBAL const ELEM *r = q + (I64)(w * 16) * rs;
      SUMS av[4], v[TILE_RHS];
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++) v[c] = sums_zero();
      if (columns == 4 && rs == 1 && r + (192 * cs + 16) <= end && r + 16 <= end) {
#pragma unroll
        for (U32 k = 0; k < 4; k++) av[k] = sums_conj(load_dense(r + (I64)(64 * k) * cs), conj);
#pragma unroll
        for (U32 c = 0; c < TILE_RHS; c++)
#pragma unroll
          for (U32 k = 0; k < 4; k++) v[c] = sums_fma(av[k], sums_of(xv[c][k]), v[c]);
      } else {
        for (U32 k = 0; k < columns; k++) {
          const SUMS a = sums_conj(load_any(r + (I64)(64 * k) * cs, rs, count, end), conj);
#pragma unroll
          for (U32 c = 0; c < TILE_RHS; c++) v[c] = sums_fma(a, sums_of(xv[c][k]), v[c]);
        }
      }
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++) MERGE(stack + c * STACK, b, w, v[c]);
    }
  }
  // As in col_cpu.cl: one addition of +0 replaces the levels of absent lanes.
  for (U32 c = 0; c < cols; c++)
    for (U32 w = 0; w < wides; w++) {
      const SUMS v = stack[c * STACK + bits * WIDES + w];
      out[c * WIDES + w] = bits < 6 ? sums_add(v, sums_zero()) : v;
    }
}

KERNEL(1) gemm_col_cpu(GEMM_ARGUMENTS) {
  const bool zero = acc_is(alpha, (REAL)0) || n == 0;
  const U64 segments = zero ? 0 : ceil_div(n, SEG), supers = super_segments_of(n);
  if (zero && supers > 1) return;
  const U64 vectors = ceil_div(m, 16), of_entries = vectors * batch, all = of_entries * supers;
  const U64 band = all / GROUPS, more = all - band * GROUPS;
  U64 g = GROUP_ID * band + (GROUP_ID < more ? GROUP_ID : more);
  const U64 last = g + band + (GROUP_ID < more ? 1 : 0);
  const U64 total = levels_total(supers);
  SUMS inner[TILE_RHS * STACK], outer[TILE_RHS * STACK];
  SUMS sum[TILE_RHS * WIDES], lane_sum[TILE_RHS * WIDES];
  // Tiles of neighbouring rows of one entry and one super-segment.
  while (g < last) {
    const U64 u = quotient(g, of_entries), of_all = g - u * of_entries;
    const U64 b = quotient(of_all, vectors), first = of_all - b * vectors, i = first * 16;
    const U64 s0 = u * SEG, s1 = segments - s0 < SEG ? segments : s0 + SEG;
    const U32 bits = bits_for(s1 - s0);
    U64 wides = last - g < vectors - first ? last - g : vectors - first;
    if (wides > WIDES) wides = WIDES;
    g += wides;
    const U32 rows = (U32)(m - i < wides * 16 ? m - i : wides * 16);
    GLOBAL const ELEM *end = end_of(a + (I64)a0 + (I64)b * ab, m, n, rs, cs);
    for (U64 c0 = 0; c0 < rhs; c0 += TILE_RHS) {
      const U32 cols = (U32)(rhs - c0 < TILE_RHS ? rhs - c0 : TILE_RHS);
      for (U32 k = 0; k < 1u << bits; k++) {
        for (U32 v = 0; v < TILE_RHS * WIDES; v++) lane_sum[v] = sums_zero();
        for (U64 s = s0 + reversed(k, bits); s < s1; s += LANES) {
          const U32 len = (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
          segment_sums(a + (I64)a0 + (I64)b * ab + (I64)i * rs + (I64)(s * SEG) * cs, rs, cs, rows,
                       x + (I64)x0 + (I64)b * xb + (I64)(s * SEG) * xrs + (I64)c0 * xcs, xrs, xcs,
                       cols, conj, len, end, inner, sum);
          // The sum of a single segment is the result. Of several, each is added to its lane.
          for (U32 c = 0; c < cols; c++)
            for (U32 w = 0; w < wides; w++) {
              const U32 at = c * WIDES + w;
              lane_sum[at] = segments > 1 ? sums_add(lane_sum[at], sum[at]) : sum[at];
            }
        }
        for (U32 c = 0; c < cols; c++)
          for (U32 w = 0; w < wides; w++) {
            SUMS v = lane_sum[c * WIDES + w];
            MERGE(outer + c * STACK, k, w, v);
          }
      }
      for (U32 c = 0; c < cols; c++)
        for (U32 w = 0; w < wides; w++) {
          SUMS v = outer[c * STACK + bits * WIDES + w];
          if (segments > 1) v = sums_add(v, sums_zero());
          const U32 left = rows - w * 16, count = left < 16 ? left : 16;
          const U64 row = i + w * 16, col = c0 + c;
          if (supers > 1) {
            ACC out[16];
            sums_store(v, out);
            for (U32 r = 0; r < count; r++)
              workspace[((b * m + row + r) * rhs + col) * total + u] = out[r];
          } else {
            finish_rows(y + (I64)y0 + (I64)b * yb + (I64)row * yrs + (I64)col * ycs, yrs, alpha, v,
                        beta, count);
          }
        }
    }
  }
}
