// y = alpha A x + beta y for few long rows of neighbouring elements: every segment of every row is a piece of
// work of its own, and all teams of the device share them evenly, whatever the numbers of rows and columns.
//
//   teams      TEAM threads have a segment of ROWS rows: team g of all has pieces g, g + (all teams), ...
//              The next piece is on its way while one is added up.
//   pieces     numbered along the rows first: the teams of a block have the same columns of different rows,
//              so that x comes once to a block's cache, which else would ask the second one for as much
//              of x as memory brings of A.
//   lanes      thread t of a team owns, of each 64 columns, the vectors t, t + TEAM, ... : all loads of
//              its segment are under way before the first is used.
//   sums       of segments are left in `work` (entry i * segments + s). flat_rows has a block for a row, a
//              warp for each 256 of them and one for the sums of these: up to 256 x 256 segments.
//   evenly     in steps of a piece. Where a block or a cluster has 256 segments of a row, a few of them more
//              than there is room for take a turn of their own, with most of the device idle.
//   whole      rows that begin where vectors do. With other rows every element is a load of its own.
//   never read A and x where alpha = 0; y where beta = 0; vectors without an element of the row or of x.
//              The one at an end is read whole; blocks of memory end with a whole one.
#define TEAMS (THREADS / TEAM)
// Registers for a piece's place.
#define OWN 8

extern "C" __global__ void BOUNDS flat(ARGUMENTS) {
  next_may_begin();
  if (acc_is(alpha, (REAL)0)) return;
  const U32 segments = (U32)ceil_div(n, SEG), sets = (U32)ceil_div(m, ROWS), t = LID % TEAM;
  const bool whole = BEYOND(a + a0) == 0 && (m == 1 || (rs & (I64)(VEC - 1)) == 0);
  const bool x_whole = incx == 1 && BEYOND(x + x0) == 0;
  const U32 teams = (U32)GROUPS * TEAMS, team = (U32)GROUP_ID * TEAMS + LID / TEAM;
  const U32 s_step = teams / sets, set_step = teams % sets;
  U32 s = team / sets, set = team % sets;

  PACK av[ROWS][LOADS], xv[LOADS];
  // Columns of segment s, and the row r of a set. Rows beyond the last one compute it again.
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
      const ELEM *p = once(a + a0 + (I64)row(set, r) * rs + (U64)s * SEG + from);
#pragma unroll
      for (U32 k = 0; k < LOADS; k++)
        stream(av[r][k], p + k * TEAM * VEC, whole && from + k * TEAM * VEC < vectors);
    }
    const ELEM *p = once(x + x0 + (U64)s * SEG + from);
#pragma unroll
    for (U32 k = 0; k < LOADS; k++)
      fetch_x(xv[k], p + k * TEAM * VEC, x_whole && from + k * TEAM * VEC < vectors);
  };

  read(s, set);
#pragma unroll 1
  // All of a warp's teams go on while one has work: they exchange sums.
  while (__any_sync(0xffffffffu, s < segments)) {
    const U32 cols = columns(s), from = t * VEC;
    const ELEM *const xs = x + x0 + (I64)((U64)s * SEG) * incx;
    if (!x_whole)
#pragma unroll
      for (U32 k = 0; k < LOADS; k++)
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          const U32 j = from + k * TEAM * VEC + c;
          if (j < cols) xv[k].e[c] = xs[(I64)j * incx];
        }
    if (!whole)
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
#pragma unroll
        for (U32 k = 0; k < LOADS; k++)
#pragma unroll
          for (U32 c = 0; c < VEC; c++) {
            const U32 j = from + k * TEAM * VEC + c;
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

    // Thread r of a team goes on with row r.
    ACC sum = halve_team<TEAM>(acc[0], t);
#pragma unroll
    for (U32 r = 1; r < ROWS; r++) {
      const ACC other = halve_team<TEAM>(acc[r], t);
      if (t == r) sum = other;
    }
    if (t < ROWS && i < m && here < segments) work[i * segments + here] = sum;
  }
}

// The segments' sums of a row to one, by a block.
extern "C" __global__ void __launch_bounds__(1024) flat_rows(ARGUMENTS) {
  __shared__ ACC chunks[SEG];
  const U32 segments = (U32)ceil_div(n, SEG), warp = LID / 32;
  const U32 filled = acc_is(alpha, (REAL)0) ? 0 : (segments + SEG - 1) / SEG;
  const U64 i = GROUP_ID;
  wait_for_previous();
#pragma unroll 1
  for (U32 c = warp; c < filled; c += blockDim.x / 32) {
    const U32 left = segments - c * SEG;
    const ACC sum = warp_sum(work + i * segments + c * SEG, left < SEG ? left : SEG);
    if (LID % 32 == 0) chunks[c] = sum;
  }
  __syncthreads();
  if (warp > 0) return;
  ACC all[8];
#pragma unroll
  for (U32 r = 0; r < 8; r++) all[r] = r * 32 + LID < filled ? chunks[r * 32 + LID] : acc_zero();
  const ACC sum = warp_sum(all);
  if (LID == 0) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
}
