// row-streamk: y = alpha A x + beta y, row-major, for few long rows. Every segment of every row is a
// work item, and all sub-warps of the device share the items evenly, whatever m and n: Stream-K
// (Osama, Merrill, Cecka, Garland, Owens: "Stream-K: Work-centric Parallel Decomposition for Dense
// Matrix-Matrix Multiplication on the GPU", 2023), for a matrix-vector product in a fixed order.
//
//   items      SUBWARP threads have one segment of ROWS rows. Sub-warp g of all has items
//              g, g + (all sub-warps), ... The next item is loaded while one is added up. Items are
//              numbered along the rows first: the sub-warps of a block have the same columns of
//              different rows, so that x comes to a block's L1 cache once.
//   lanes      thread t of a sub-warp owns, of each 64 columns, the vectors t, t + SUBWARP, ...: all
//              loads of its segment are in flight before the first is used.
//   sums       of segments are left in `workspace`, at i * segments + s. row_streamk_reduce has a block for
//              each row, a warp for each 256 sums and one for the sums of these: up to 256 x 256
//              segments.
//   balance    in steps of one item. Blocks with 256 segments each would have a partly filled last
//              wave, during which most of the device is idle.
//   aligned    rows that begin where vectors do are read by vectors. With other rows every element is a
//              load of its own.
//   never read A and x where alpha = 0; y where beta = 0; vectors without an element of the row or of x.
//              The one at an end is read whole; allocations end with a whole one.
#define SUBWARPS (THREADS / SUBWARP)
// Registers of a thread for an item's place.
#define EXTRA_REGISTERS 8

extern "C" __global__ void LAUNCH_BOUNDS row_streamk(ARGUMENTS) {
  begin(true);
  if (acc_is(alpha, (REAL)0)) return;
  const U32 segments = (U32)ceil_div(n, SEG), sets = (U32)ceil_div(m, ROWS), t = LID % SUBWARP;
  const bool whole = A_BEYOND(a + a0) == 0 && (m == 1 || (rs & (I64)(VEC - 1)) == 0);
  const bool x_whole = incx == 1 && BEYOND(x + x0) == 0;
  const U32 subwarps = (U32)GROUPS * SUBWARPS, subwarp = (U32)GROUP_ID * SUBWARPS + LID / SUBWARP;
  const U32 s_step = subwarps / sets, set_step = subwarps % sets;
  U32 s = subwarp / sets, set = subwarp % sets;

  PACK av[ROWS][LOADS] AND_X_PACK xv[LOADS];
  // Columns of segment s, and row r of a set. Rows beyond the last one compute it again.
  const auto columns = [&](const U32 s) {
    const U64 left = n - (U64)s * SEG;
    return s >= segments ? 0u : left < SEG ? (U32)left : SEG;
  };
  const auto row = [&](const U32 set, const U32 r) {
    const U64 i = (U64)set * ROWS + r;
    return i < m ? i : m - 1;
  };
  const auto read = [&](const U32 s, const U32 set) {
    const U32 vectors = columns(s), from = t * VEC;
#pragma unroll
    for (U32 r = 0; r < ROWS; r++) {
      const A_ELEM *p = pinned(a + a0 + (I64)row(set, r) * rs + (U64)s * SEG + from);
#pragma unroll
      for (U32 k = 0; k < LOADS; k++)
        load_a(av[r][k], p + k * SUBWARP * VEC, whole && from + k * SUBWARP * VEC < vectors);
    }
    const ELEM *p = pinned(x + x0 + (U64)s * SEG + from);
#pragma unroll
    for (U32 k = 0; k < LOADS; k++)
      load_x(xv[k], p + k * SUBWARP * VEC, x_whole && from + k * SUBWARP * VEC < vectors);
  };

  read(s, set);
#pragma unroll 1
  // All sub-warps of a warp go on while one has an item: they exchange sums.
  while (__any_sync(0xffffffffu, s < segments)) {
    const U32 cols = columns(s), from = t * VEC;
    const ELEM *const xs = x + x0 + (I64)((U64)s * SEG) * incx;
    if (!x_whole)
#pragma unroll
      for (U32 k = 0; k < LOADS; k++)
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          const U32 j = from + k * SUBWARP * VEC + c;
          if (j < cols) xv[k].e[c] = xs[(I64)j * incx];
        }
    if (!whole)
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
#pragma unroll
        for (U32 k = 0; k < LOADS; k++)
#pragma unroll
          for (U32 c = 0; c < VEC; c++) {
            const U32 j = from + k * SUBWARP * VEC + c;
            if (j < cols) av[r][k].e[c] = a[a0 + (I64)row(set, r) * rs + (U64)s * SEG + j];
          }
    if ((cols & (VEC - 1u)) != 0) end_row(av, xv, from, cols);
    ACC acc[ROWS][SLOTS][VEC];
    zero(acc);
    add_products(acc, av, xv, from, cols, cols, conj);
    const U32 here = s;
    const U64 i = (U64)set * ROWS + t;
    s += s_step;
    set += set_step;
    if (set >= sets) set -= sets, s++;
    read(s, set);

    // Thread r of a sub-warp goes on with row r.
    ACC sum = halve_subwarp<SUBWARP>(acc[0], t);
#pragma unroll
    for (U32 r = 1; r < ROWS; r++) {
      const ACC other = halve_subwarp<SUBWARP>(acc[r], t);
      if (t == r) sum = other;
    }
    if (t < ROWS && i < m && here < segments) workspace[i * segments + here] = sum;
  }
}

// Adds the segments' sums of a row, by a block.
extern "C" __global__ void __launch_bounds__(1024) row_streamk_reduce(ARGUMENTS) {
  __shared__ ACC sums[SEG];
  const U32 segments = (U32)ceil_div(n, SEG), warp = LID / 32;
  const U32 filled = acc_is(alpha, (REAL)0) ? 0 : (segments + SEG - 1) / SEG;
  const U64 i = GROUP_ID;
  begin(false);
#pragma unroll 1
  for (U32 c = warp; c < filled; c += blockDim.x / 32) {
    const U32 left = segments - c * SEG;
    const ACC sum = warp_sum(workspace + i * segments + c * SEG, left < SEG ? left : SEG);
    if (LID % 32 == 0) sums[c] = sum;
  }
  __syncthreads();
  if (warp > 0) return;
  ACC all[8];
#pragma unroll
  for (U32 r = 0; r < 8; r++) all[r] = r * 32 + LID < filled ? sums[r * 32 + LID] : acc_zero();
  const ACC sum = warp_sum(all);
  if (LID == 0) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
}
