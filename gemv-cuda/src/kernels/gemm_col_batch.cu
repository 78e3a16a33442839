// gemm-col-batch: Y = alpha A X + beta Y for many column-major matrices of up to 2,048 columns. A thread has VEC
// neighbouring rows of one matrix. No exchange, no barrier.
//
//   rows       Groups of VEC rows of all entries form one list. Neighbouring threads have neighbouring groups, so
//              that they read neighbouring elements, and small matrices fill a block.
//   columns    A thread has the sums of TILE_RHS columns of X: A is read once for them.
//   lanes      AT_ONCE at a time: lanes l, l + PARTIALS, ... are summed to one value, and the PARTIALS values
//              (l in bit-reversed order) are merged as they come. Of LANES_KEPT < 64 lanes, the halving begins at
//              LANES_KEPT / 2, with +0 added at the end.
//   segments   are visited in bit-reversed order too, and merged likewise.
//   never read A and X where alpha = 0; Y where beta = 0; anything outside of the m x n elements.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef TILE_RHS
#define TILE_RHS 1
#endif
#ifndef LANES_KEPT
#define LANES_KEPT 16
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef UNROLL
#define UNROLL 8
#endif
#ifndef SEGMENTS
#define SEGMENTS 1
#endif
#define AT_ONCE (LANES_KEPT < UNROLL ? LANES_KEPT : UNROLL)
#define PARTIALS (LANES_KEPT / AT_ONCE)
#define SUMS (TILE_RHS * VEC)

// A thread's rows and columns of X: what its segments begin with.
typedef struct {
  const ELEM *a, *x;
  I64 cs, xrs, xcs;
  U32 rows, cols, conj;
  bool vectors; // every column of the thread's rows is one vector
} PLACE;

// The sums of a segment of `len` columns. FULL: it has all of its columns, by vectors.
template <bool FULL> STATIC void segment_sums(ACC (&sum)[SUMS], const PLACE &at, const U32 len) {
  ACC open[3][SUMS], part[SUMS];
#pragma unroll(PARTIALS <= 2 ? PARTIALS : 1)
  for (U32 b = 0; b < PARTIALS; b++) {
    const U32 lane = visited<PARTIALS>(b);
    const ELEM *p = at.a + (I64)lane * at.cs;
    ACC acc[AT_ONCE][SUMS];
#pragma unroll
    for (U32 q = 0; q < AT_ONCE; q++)
#pragma unroll
      for (U32 k = 0; k < SUMS; k++) acc[q][k] = acc_zero();
#pragma unroll
    for (U32 r = 0; r < ROUNDS; r++) {
      PACK av[AT_ONCE];
#pragma unroll
      for (U32 q = 0; q < AT_ONCE; q++) {
        const U32 j = r * LANES_KEPT + q * PARTIALS;
        if (FULL || at.vectors) {
          load_a(av[q], p + (I64)j * at.cs, FULL || lane + j < len);
        } else {
#pragma unroll
          for (U32 v = 0; v < VEC; v++)
            if (lane + j < len && v < at.rows) av[q].e[v] = p[(I64)j * at.cs + v];
        }
      }
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++) {
        // Columns beyond the last one compute the first one again.
        const ELEM *xp = at.x + (I64)lane * at.xrs + (c < at.cols ? (I64)c * at.xcs : 0);
#pragma unroll
        for (U32 q = 0; q < AT_ONCE; q++) {
          const U32 j = r * LANES_KEPT + q * PARTIALS;
          if (!FULL && lane + j >= len) continue;
          const ACC xv = widen(xp[(I64)j * at.xrs]);
#pragma unroll
          for (U32 v = 0; v < VEC; v++)
            acc[q][c * VEC + v] =
                acc_fma(conj_if(widen(av[q].e[v]), at.conj), xv, acc[q][c * VEC + v]);
        }
      }
    }
    halve(acc);
#pragma unroll
    for (U32 k = 0; k < SUMS; k++) part[k] = acc[0][k];
    merge<PARTIALS>(open, part, b);
  }
  // Lanes that are not kept are +0.
#pragma unroll
  for (U32 k = 0; k < SUMS; k++) sum[k] = LANES_KEPT < LANES ? acc_add(part[k], acc_zero()) : part[k];
}

KERNEL(THREADS) gemm_col_batch(GEMM_ARGUMENTS) {
  begin(false);
  const U32 panels = (U32)ceil_div(rhs, TILE_RHS);
  const U32 set = panels == 1 ? (U32)GROUP_ID : (U32)GROUP_ID / panels;
  const U64 c0 = (U64)((U32)GROUP_ID - set * panels) * TILE_RHS;
  const U64 groups = ceil_div(m, VEC), g = (U64)set * THREADS + LID;
  const U64 b = quotient(g, groups), i = (g - b * groups) * VEC;
  if (b >= batch) return;
  PLACE at;
  at.a = a + a0 + (I64)b * ab + (I64)i;
  at.x = x + x0 + (I64)b * xb + (I64)c0 * xcs;
  at.cs = cs, at.xrs = xrs, at.xcs = xcs, at.conj = conj;
  at.rows = m - i < VEC ? (U32)(m - i) : VEC;
  at.cols = rhs - c0 < TILE_RHS ? (U32)(rhs - c0) : TILE_RHS;
  at.vectors = at.rows == VEC && BEYOND(at.a) == 0 && (cs & (I64)(VEC - 1)) == 0;

  ACC sum[SUMS];
  if (acc_is(alpha, (REAL)0)) {
#pragma unroll
    for (U32 k = 0; k < SUMS; k++) sum[k] = acc_zero();
  } else if (SEGMENTS == 1) {
    if (at.vectors && n == LANES_KEPT * ROUNDS) segment_sums<true>(sum, at, LANES_KEPT * ROUNDS);
    else segment_sums<false>(sum, at, (U32)n);
  } else {
    ACC open[3][SUMS], last[SUMS];
#pragma unroll 1
    for (U32 k = 0; k < SEGMENTS; k++) {
      const U32 s = visited<SEGMENTS>(k), from = s * SEG;
      const U32 len = from >= n ? 0 : n - from < SEG ? (U32)n - from : SEG;
      PLACE there = at;
      there.a += (I64)from * cs, there.x += (I64)from * xrs;
      if (at.vectors && len == SEG) {
        segment_sums<true>(last, there, SEG);
      } else if (len > 0) {
        segment_sums<false>(last, there, len);
      } else {
#pragma unroll
        for (U32 c = 0; c < SUMS; c++) last[c] = acc_zero();
      }
      merge<SEGMENTS>(open, last, k);
    }
    // Lanes of the second level without a segment are +0.
#pragma unroll
    for (U32 k = 0; k < SUMS; k++) sum[k] = acc_add(last[k], acc_zero());
  }

  ELEM *yp = y + y0 + (I64)b * yb + (I64)i * yrs + (I64)c0 * ycs;
  const bool reads = !acc_is(beta, (REAL)0);
#pragma unroll
  for (U32 c = 0; c < TILE_RHS; c++) {
    if (c >= at.cols) break;
    ELEM *out = yp + (I64)c * ycs;
    if (VEC > 1 && at.rows == VEC && yrs == 1 && BEYOND(out) == 0) {
      // One vector is one store.
      PACK to;
      if (reads) to.words = *(const WORDS *)out;
#pragma unroll
      for (U32 v = 0; v < VEC; v++) finish(&to.e[v], alpha, sum[c * VEC + v], beta);
      *(WORDS *)out = to.words;
    } else {
#pragma unroll
      for (U32 v = 0; v < VEC; v++)
        if (v < at.rows) finish(out + (I64)v * yrs, alpha, sum[c * VEC + v], beta);
    }
  }
}
