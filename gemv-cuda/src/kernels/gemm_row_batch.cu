// gemm-row-batch: Y = alpha A X + beta Y for many row-major matrices of up to 256 columns. A sub-warp has whole
// rows, all loads are in flight at once, and nothing goes through shared memory.
//
//   rows       The rows of all entries form one list. A block has SUBWARPS * ROWS of them; sub-warp g has
//              rows g, g + SUBWARPS, ..., so that neighbours read neighbouring rows.
//   segments   Where entries are nearer to each other than rows are, as the segments of one matrix, blocks go
//              along the entries first: those that run at once then read whole rows. Only the rows that fill
//              no block form a list.
//   columns    A thread has the sums of TILE_RHS columns: A is read once for them.
//   lanes      LANES_KEPT lanes, all 64 where a row has more columns than 32. Thread t of a sub-warp owns
//              the vectors t, t + SUBWARP, ... of each ROUNDS rounds of LANES_KEPT columns.
//   aligned    matrices whose rows begin and end where vectors do are read by vectors, others by elements;
//              a contiguous column of X likewise.
//   never read A and X where alpha = 0; Y where beta = 0; anything outside of a row's n elements.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef SUBWARP
#define SUBWARP 4
#endif
#ifndef ROWS
#define ROWS 2
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
#define ENTRIES 64 // of a chunk
#define SUBWARPS (THREADS / SUBWARP)
#define SLOTS (LANES_KEPT / (SUBWARP * VEC))
#define LOADS (ROUNDS * SLOTS)

// Reads a thread's vectors of `n` elements where `there`: by vectors, or one by one. FULL: by vectors, of
// all lanes.
template <bool FULL>
STATIC void load_line(PACK (&to)[LOADS], const ELEM *p, const I64 step, const U32 n, const bool vectors,
                      const bool there) {
  const U32 t = LID % SUBWARP;
#pragma unroll
  for (U32 k = 0; k < LOADS; k++) {
    const U32 j = (k * SUBWARP + t) * VEC;
    if (FULL || vectors) {
      load_x(to[k], p + j, there && (FULL || j < n));
    } else {
#pragma unroll
      for (U32 v = 0; v < VEC; v++)
        if (there && j + v < n) to[k].e[v] = p[(I64)(j + v) * step];
    }
  }
}

STATIC U64 magnitude(const I64 of) { return of < 0 ? (U64)0 - (U64)of : (U64)of; }

// The sum of a sub-warp's lanes, for each of its threads.
STATIC ACC sum_of_lanes(ACC (&acc)[SLOTS][VEC]) {
  if (SUBWARP >= VEC && SUBWARP > 1) return halve_subwarp<SUBWARP>(acc, LID % SUBWARP);
  halve(acc);
#pragma unroll
  for (U32 o = SUBWARP / 2; o > 0; o /= 2)
#pragma unroll
    for (U32 v = 0; v < VEC; v++) acc[0][v] = acc_add(acc[0][v], acc_xor(acc[0][v], o));
  halve(acc[0]);
  return acc[0][0];
}

template <bool FULL> STATIC void rows_of_block(GEMM_ARGUMENTS, const bool a_vectors, const bool x_vectors) {
  const U32 t = LID % SUBWARP;
  const U32 panels = (U32)ceil_div(rhs, TILE_RHS);
  const U32 set = panels == 1 ? (U32)GROUP_ID : (U32)GROUP_ID / panels;
  const U64 c0 = (U64)((U32)GROUP_ID - set * panels) * TILE_RHS;
  const bool zero = acc_is(alpha, (REAL)0);
  const bool plain = acc_is(alpha, (REAL)1) && acc_is(beta, (REAL)0);
  // The list has rows i0 to i0 + height of each entry. Of it, the first row of this sub-warp.
  U64 i0 = 0, height = m, first = (U64)set * (SUBWARPS * ROWS) + LID / SUBWARP;
  // Entry and row, counted from i0, of the first row; how many rows the sub-warp has.
  U64 b, i, left;
  const U64 tiles = magnitude(ab) < magnitude(rs) ? m / (SUBWARPS * ROWS) : 0; // of an entry
  if (set < tiles * batch) {
    const U64 chunk = quotient(set, tiles * ENTRIES), place = set - chunk * (tiles * ENTRIES);
    const U64 wide = (chunk + 1) * ENTRIES <= batch ? ENTRIES : batch % ENTRIES;
    const U64 tile = quotient(place, wide);
    b = chunk * ENTRIES + place - tile * wide;
    i = tile * (SUBWARPS * ROWS) + LID / SUBWARP;
    left = ROWS;
  } else {
    i0 = tiles * (SUBWARPS * ROWS);
    height = m - i0;
    first -= i0 * batch;
    const U64 rows = batch * height;
    left = first < rows ? ceil_div(rows - first, SUBWARPS) : 0;
    b = height > 0 ? quotient(first, height) : 0;
    i = first - b * height;
  }
  // Of the next row, and what is added where it is of one entry more.
  const U32 b_step = height > SUBWARPS || height == 0 ? 0 : SUBWARPS / (U32)height;
  const U32 i_step = SUBWARPS - b_step * (U32)height;
  const I64 a_step = (I64)b_step * ab + (I64)i_step * rs, a_more = ab - (I64)height * rs;
  const I64 x_step = (I64)b_step * xb;
  const I64 y_step = (I64)b_step * yb + (I64)i_step * yrs, y_more = yb - (I64)height * yrs;
  const ELEM *ap = a + a0 + (I64)b * ab + (I64)(i0 + i) * rs, *xp[ROWS];
  ELEM *yp[ROWS];
  xp[0] = x + x0 + (I64)b * xb + (I64)c0 * xcs;
  yp[0] = y + y0 + (I64)b * yb + (I64)(i0 + i) * yrs + (I64)c0 * ycs;
  PACK av[ROWS][LOADS];
#pragma unroll
  for (U32 r = 0; r < ROWS; r++) {
    if (!zero) load_line<FULL>(av[r], ap, 1, (U32)n, a_vectors, r < left);
    if (r + 1 == ROWS) break;
    i += i_step;
    const bool more = i >= height;
    if (more) i -= height;
    ap += a_step + (more ? a_more : 0);
    xp[r + 1] = xp[r] + x_step + (more ? xb : 0);
    yp[r + 1] = yp[r] + y_step + (more ? y_more : 0);
  }
#pragma unroll
  for (U32 c = 0; c < TILE_RHS; c++) {
    if (c0 + c >= rhs) break;
    PACK xv[ROWS][LOADS];
    if (!zero)
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
        load_line<FULL>(xv[r], xp[r] + (I64)c * xcs, xrs, (U32)n, x_vectors, r < left);
#pragma unroll
    for (U32 r = 0; r < ROWS; r++) {
      ACC acc[SLOTS][VEC];
#pragma unroll
      for (U32 k = 0; k < SLOTS; k++)
#pragma unroll
        for (U32 v = 0; v < VEC; v++) acc[k][v] = acc_zero();
      if (!zero)
#pragma unroll
        for (U32 k = 0; k < LOADS; k++)
#pragma unroll
          for (U32 v = 0; v < VEC; v++)
            if (FULL || (k * SUBWARP + t) * VEC + v < (U32)n)
              acc[k % SLOTS][v] = acc_fma(conj_if(widen(av[r][k].e[v]), conj), widen(xv[r][k].e[v]),
                                          acc[k % SLOTS][v]);
      ACC sum = sum_of_lanes(acc);
      // Lanes that are not kept are +0.
      if (LANES_KEPT < LANES) sum = acc_add(sum, acc_zero());
      if (t == (c * ROWS + r) % SUBWARP && r < left) {
        if (plain) yp[r][(I64)c * ycs] = narrow(sum);
        else finish(yp[r] + (I64)c * ycs, alpha, sum, beta);
      }
    }
  }
}

KERNEL(THREADS) gemm_row_batch(GEMM_ARGUMENTS) {
  begin(false);
  const bool a_vectors = VEC == 1 || (BEYOND(a + a0) == 0 && ((rs | ab) & (I64)(VEC - 1)) == 0 && n % VEC == 0);
  const bool x_vectors = xrs == 1 && (VEC == 1 || (BEYOND(x + x0) == 0 && ((xcs | xb) & (I64)(VEC - 1)) == 0 &&
                                                   n % VEC == 0));
  // X of one column has any stride of columns.
  const bool x_one = xrs == 1 && rhs == 1 &&
                     (VEC == 1 || (BEYOND(x + x0) == 0 && (xb & (I64)(VEC - 1)) == 0 && n % VEC == 0));
  const bool x_whole = x_vectors || x_one;
  if (a_vectors && x_whole && n == LANES_KEPT * ROUNDS)
    rows_of_block<true>(m, n, rhs, batch, a, a0, rs, cs, ab, x, x0, xrs, xcs, xb, y, y0, yrs, ycs, yb, alpha,
                        beta, conj, workspace, counters, true, true);
  else
    rows_of_block<false>(m, n, rhs, batch, a, a0, rs, cs, ab, x, x0, xrs, xcs, xb, y, y0, yrs, ycs, yb, alpha,
                         beta, conj, workspace, counters, a_vectors, x_whole);
}
