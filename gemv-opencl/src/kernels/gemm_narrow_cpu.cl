// Y = alpha A X + beta Y for one matrix of few columns, on CPUs. The bits are those of docs/ORDER.md.
//
//   rows          A work-group is one item. It has a band of the rows, and computes BLOCK rows at a time.
//   transposed    The rows of a block are transposed to private memory, each column together, and their
//                 sums are transposed back to Y: so all loops run along neighbouring rows, as vectors.
//                 Where rows of A or of Y follow each other without gaps, the distance of two rows is a
//                 constant of the loop, which then takes whole vectors and shuffles them.
//   lanes         A row has at most COLS columns; columns that are absent are +0 times +0, which leaves a
//                 lane at +0. Levels of the halving without lanes are left out, and +0 is added once.
//   columns of X  TILE_RHS at a time.
//   strides       Any.
//   never read    A and X where alpha = 0; Y where beta = 0; anything outside of a row's n elements.
#ifndef COLS
#define COLS 4
#endif
#ifndef TILE_RHS
#define TILE_RHS 4
#endif
#define BLOCK 64

// `line(of, i)` for each of `count` rows and each of the columns below `width`, with constants in place of
// both numbers where rows of 1 to 8 columns are dense.
#define EACH_(width, distance, step)                                      \
  for (U32 i = 0; i < count; i++)                                         \
    for (U32 j = 0; j < (width); j++) ENTRY_(i, j, (I64)i * (distance) + (I64)j * (step))
#define DENSE_(n)                              \
  case n:                                      \
    for (U32 i = 0; i < count; i++) {          \
      _Pragma("unroll")                        \
      for (U32 j = 0; j < n; j++) ENTRY_(i, j, i * n + j) \
    }                                          \
    break;
#define ALL_DENSE_ DENSE_(2) DENSE_(3) DENSE_(4) DENSE_(5) DENSE_(6) DENSE_(7) DENSE_(8)
#define BY_LAYOUT_(width, distance, step)                                        \
  if ((distance) == 1) {                                                         \
    for (U32 j = 0; j < (width); j++)                                            \
      for (U32 i = 0; i < count; i++) ENTRY_(i, j, (I64)i + (I64)j * (step))     \
  } else {                                                                       \
    switch ((step) == 1 && (distance) == (I64)(width) ? (width) : 0) {           \
      ALL_DENSE_                                                                 \
      default:                                                                   \
        EACH_(width, distance, step)                                             \
    }                                                                            \
  }

STATIC void from_rows(GLOBAL const ELEM *p, const I64 distance, const I64 step, const U32 width,
                      const U32 count, ACC (*to)[BLOCK]) {
#define ENTRY_(i, j, at) to[j][i] = widen(p[at]);
  BY_LAYOUT_(width, distance, step)
#undef ENTRY_
}

STATIC void to_rows(ACC (*from)[BLOCK], GLOBAL ELEM *p, const I64 distance, const I64 step,
                    const U32 width, const U32 count) {
#define ENTRY_(i, j, at) p[at] = narrow(from[j][i]);
  BY_LAYOUT_(width, distance, step)
#undef ENTRY_
}

// The sums of a column of X for all rows.
STATIC void sums_of(ACC (*a)[BLOCK], const ACC *x, const U32 conj, const U32 count, ACC *out) {
  for (U32 i = 0; i < count; i++) {
    ACC lane[COLS];
#pragma unroll
    for (U32 j = 0; j < COLS; j++) lane[j] = acc_fma(conj_if(a[j][i], conj), x[j], acc_zero());
#pragma unroll
    for (U32 h = 8; h > 0; h >>= 1)
#pragma unroll
      for (U32 l = 0; l < 8; l++)
        if (l < h && l + h < COLS) lane[l] = acc_add(lane[l], lane[l + h]);
    out[i] = acc_add(lane[0], acc_zero());
  }
}

// Rule 6 where alpha is not 0.
STATIC void scale(ACC *sum, const ACC *old, const ACC alpha, const ACC beta, const U32 count) {
  const bool once = acc_is(alpha, (REAL)1);
  if (acc_is(beta, (REAL)0)) {
    if (!once)
      for (U32 i = 0; i < count; i++) sum[i] = acc_mul(alpha, sum[i]);
  } else if (acc_is(beta, (REAL)1)) {
    if (once)
      for (U32 i = 0; i < count; i++) sum[i] = acc_add(sum[i], old[i]);
    else
      for (U32 i = 0; i < count; i++) sum[i] = acc_fma(alpha, sum[i], old[i]);
  } else {
    if (once)
      for (U32 i = 0; i < count; i++) sum[i] = acc_add(sum[i], acc_mul(beta, old[i]));
    else
      for (U32 i = 0; i < count; i++) sum[i] = acc_fma(alpha, sum[i], acc_mul(beta, old[i]));
  }
}

KERNEL(1) gemm_narrow_cpu(GEMM_ARGUMENTS) {
  const U64 blocks = ceil_div(m, BLOCK), band = blocks / GROUPS, more = blocks - band * GROUPS;
  const U64 first = GROUP_ID * band + (GROUP_ID < more ? GROUP_ID : more);
  const U64 last = first + band + (GROUP_ID < more ? 1 : 0);
  const bool reads = !acc_is(beta, (REAL)0);
  ACC columns[COLS][BLOCK], old[TILE_RHS][BLOCK], sums[TILE_RHS][BLOCK];
  for (U32 j = 0; j < COLS; j++)
    for (U32 i = 0; i < BLOCK; i++) columns[j][i] = acc_zero();
  for (U64 block = first; block < last; block++) {
    const U64 i0 = block * BLOCK;
    const U32 count = m - i0 < BLOCK ? (U32)(m - i0) : BLOCK;
    GLOBAL ELEM *out = y + y0 + (I64)i0 * yrs;
    if (acc_is(alpha, (REAL)0)) {
      for (U32 i = 0; i < count; i++)
        for (U64 c = 0; c < rhs; c++)
          finish(out + (I64)i * yrs + (I64)c * ycs, alpha, acc_zero(), beta);
      continue;
    }
    from_rows(a + a0 + (I64)i0 * rs, rs, cs, (U32)n, count, columns);
    for (U64 c0 = 0; c0 < rhs; c0 += TILE_RHS) {
      const U32 width = rhs - c0 < TILE_RHS ? (U32)(rhs - c0) : TILE_RHS;
      if (reads) from_rows(out + (I64)c0 * ycs, yrs, ycs, width, count, old);
      for (U32 c = 0; c < width; c++) {
        ACC xv[COLS];
        for (U32 j = 0; j < COLS; j++)
          xv[j] = j < n ? widen(x[x0 + (I64)j * xrs + (I64)(c0 + c) * xcs]) : acc_zero();
        sums_of(columns, xv, conj, count, sums[c]);
        scale(sums[c], old[c], alpha, beta, count);
      }
      to_rows(sums, out + (I64)c0 * ycs, yrs, ycs, width, count);
    }
  }
}
