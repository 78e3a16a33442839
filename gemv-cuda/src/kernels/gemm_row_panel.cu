// gemm-row-panel: Y = alpha A X + beta Y, row-major, one matrix, real numbers. A warp holds one segment of TILE_RHS
// columns of X in registers, and rows of A stream by: A is read once for TILE_RHS columns, X once a block.
//
//   warps      WARPS_K warps of a block share rows, each with another segment. WARPS_M = WARPS / WARPS_K
//              such sets have BATCH rows each, one set after another.
//   blocks     Block k has panel k % panels of columns of X; of the rest, part % (parts * super-segments)
//              of the columns of A, and a range of rows.
//   parts      A super-segment (256 segments) of more than WARPS_K segments has `parts` parts, a power of
//              two: part p has segments p, p + parts, ..., which are whole subtrees of the second level.
//   lanes      Thread t owns lanes t * VEC .. of each 32 * VEC columns. DEPTH rows are in flight.
//   slots      Column c of thread t is in slot c ^ (t >> (5 - log2 TILE_RHS)): a halving level across threads
//              keeps the lower slots and sends the upper ones, with nothing to select.
//   sums       wait in shared memory for the end of the batch, where each thread adds up some outputs'.
//              Of several parts or super-segments, they go to `workspace` (entry part * m * rhs + output), and
//              gemm_parts.cuh follows.
//   the end    Past the end of a row, +0 * -0 takes the place of the elements, which leaves any sum as
//              it is.
//   aligned    rows that begin and end where vectors do are read by vectors, others by elements.
//   never read A and X where alpha = 0; Y where beta = 0; anything outside of a row's n elements.
#ifndef THREADS
#define THREADS 256
#endif
#ifndef WARPS_K
#define WARPS_K 8
#endif
#ifndef TILE_RHS
#define TILE_RHS 4
#endif
#ifndef DEPTH
#define DEPTH 4
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#define WARPS (THREADS / 32)
#define WARPS_M (WARPS / WARPS_K)
#define BATCH 16
#define BLOCK_ROWS (WARPS_M * BATCH)
#define LOADS (8 / VEC)
#define SLOTS (2 / VEC)
// What a row of X is read by, where it is aligned.
#if TILE_RHS * ELEM_BYTES % 16 == 0
typedef uint4 XROW;
#elif TILE_RHS * ELEM_BYTES == 8
typedef uint2 XROW;
#elif TILE_RHS * ELEM_BYTES == 4
typedef U32 XROW;
#else
typedef U16 XROW;
#endif
#define LOG_COLS (TILE_RHS == 1 ? 0 : TILE_RHS == 2 ? 1 : TILE_RHS == 4 ? 2 : TILE_RHS == 8 ? 3 : 4)

// Super-segments of a row, and parts of each: as in the plan.
STATIC U32 super_segments_of(const U64 n) { return n == 0 ? 1 : (U32)ceil_div(n, (U64)SEG * SEG); }
STATIC U32 parts_of(const U64 n) {
  const U32 segments = (U32)(n > (U64)SEG * SEG ? SEG : ceil_div(n, SEG));
  U32 parts = 1;
  while (parts * WARPS_K < segments) parts *= 2;
  return parts;
}

// How a warp reads its segment: by whole vectors, by vectors up to an end, or by elements.
enum Mode { WHOLE, VECTORS, ELEMENTS };

template <Mode MODE> STATIC void load_row(PACK (&av)[LOADS], const A_ELEM *p, const U32 left) {
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
    if (MODE != ELEMENTS) {
      load_a(av[k], p + k * 32 * VEC, MODE == WHOLE || k * 32 * VEC < left);
    } else {
#pragma unroll
      for (U32 v = 0; v < VEC; v++)
        if (k * 32 * VEC + v < left) av[k].e[v] = p[k * 32 * VEC + v];
    }
}

// The sum of a segment of one row: of column t >> (5 - LOG_COLS) of the panel, in thread t.
STATIC ACC segment_sum(const PACK (&av)[LOADS], const ACC (&xv)[LOADS][VEC][TILE_RHS]) {
  ACC acc[SLOTS][VEC][TILE_RHS];
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
#pragma unroll
    for (U32 v = 0; v < VEC; v++) {
      const ACC one = a_widen(av[k].e[v]);
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++)
        acc[k % SLOTS][v][c] = acc_fma(one, xv[k][v][c], k < SLOTS ? acc_zero() : acc[k % SLOTS][v][c]);
    }
  if (SLOTS == 2)
#pragma unroll
    for (U32 v = 0; v < VEC; v++)
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++) acc[0][v][c] = acc_add(acc[0][v][c], acc[SLOTS - 1][v][c]);
#pragma unroll
  for (U32 level = 1; level <= 5; level++)
#pragma unroll
    for (U32 v = 0; v < VEC; v++) {
      const U32 half = TILE_RHS >> level;
      if (half == 0) acc[0][v][0] = acc_add(acc[0][v][0], acc_xor(acc[0][v][0], 32u >> level));
#pragma unroll
      for (U32 c = 0; c < TILE_RHS / 2; c++)
        if (c < half) acc[0][v][c] = acc_add(acc[0][v][c], acc_xor(acc[0][v][c + half], 32u >> level));
    }
  return VEC == 2 ? acc_add(acc[0][0][0], acc[0][VEC - 1][0]) : acc[0][0][0];
}

// A batch of rows: of each, its sums go to `sums` and the row DEPTH further on is loaded. `at` is this
// warp's first row, `then` the one of its next batch; rows from `end` on are those before it again.
template <Mode MODE>
STATIC void batch_of_rows(PACK (&av)[DEPTH][LOADS], const ACC (&xv)[LOADS][VEC][TILE_RHS], const A_ELEM *a,
                          const I64 rs, const U64 at, const U64 then, const U64 end, const U32 left,
                          ACC *sums) {
  const bool writes = LID % (32 / TILE_RHS) == 0;
  ACC *to = sums + LID % 32 / (32 / TILE_RHS);
#pragma unroll 1
  for (U32 r = 0; r < BATCH; r += DEPTH, to += DEPTH * TILE_RHS) {
    U64 next = r + DEPTH < BATCH ? at + r + DEPTH : then;
    next = next < end ? next : end - 1;
    const U32 more = end - 1 - next < DEPTH ? (U32)(end - 1 - next) : DEPTH;
    const A_ELEM *p = a + (I64)next * rs;
#pragma unroll
    for (U32 d = 0; d < DEPTH; d++) {
      const ACC sum = segment_sum(av[d], xv);
      load_row<MODE>(av[d], p, left);
      if (d < more) p += rs;
      if (writes) to[d * TILE_RHS] = sum;
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm_row_panel(GEMM_ARGUMENTS) {
  begin(parts_of(n) * super_segments_of(n) > 1);
  __shared__ ACC sums[2][WARPS_K][BLOCK_ROWS * TILE_RHS];
  const U32 t = LID % 32, wk = LID / 32 % WARPS_K, wm = LID / 32 / WARPS_K;
  const U32 panels = (U32)ceil_div(rhs, TILE_RHS), c0 = (U32)GROUP_ID % panels * TILE_RHS;
  const U32 cols = rhs - c0 < TILE_RHS ? (U32)(rhs - c0) : TILE_RHS;
  const U32 parts = parts_of(n), all_parts = parts * super_segments_of(n);
  const U32 rest = (U32)GROUP_ID / panels, part = rest % all_parts, block = rest / all_parts;
  const U32 blocks = (U32)GROUPS / panels / all_parts;
  const U64 begin = block * m / blocks, end = (block + 1) * m / blocks;
  const bool zero = acc_is(alpha, (REAL)0) || n == 0;
  if (begin >= end || (zero && all_parts > 1)) return;

  const U64 s = (U64)(part / parts) * SEG + part % parts + parts * wk, first = s * SEG;
  // The last segment of a super-segment is its 256th.
  const bool none = zero || part % parts + parts * wk >= SEG || first >= n;
  const U32 len = none ? 0 : n - first < SEG ? (U32)(n - first) : SEG;
  const U32 left = len > t * VEC ? len - t * VEC : 0; // columns from this thread's first one on

  const A_ELEM *const base = a + a0 + (len > 0 ? (I64)first + t * VEC : 0);
  const bool whole = VEC == 1 || (A_BEYOND(a + a0) == 0 && (rs & (I64)(VEC - 1)) == 0 && n % VEC == 0);
  const Mode mode = !whole ? ELEMENTS : len == SEG ? WHOLE : VECTORS;
  PACK av[DEPTH][LOADS];
#pragma unroll
  for (U32 d = 0; d < DEPTH; d++) {
    const U64 i = begin + wm * BATCH + d;
#pragma unroll
    for (U32 k = 0; k < LOADS; k++) av[d][k].words = WORDS();
    const A_ELEM *p = base + (I64)(i < end ? i : end - 1) * rs;
    if (mode == WHOLE) load_row<WHOLE>(av[d], p, left);
    else if (mode == VECTORS) load_row<VECTORS>(av[d], p, left);
    else load_row<ELEMENTS>(av[d], p, left);
  }

  // Columns beyond the last one are not used: they may be any. Past the end of a row they are -0.
  const ELEM *const xs = x + x0 + (len > 0 ? (I64)(first + t * VEC) * xrs : 0) + (I64)c0 * xcs;
  const U32 mine = LID % 32 >> (5 - LOG_COLS);
  ACC xv[LOADS][VEC][TILE_RHS];
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
#pragma unroll
    for (U32 v = 0; v < VEC; v++)
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++) xv[k][v][c] = (ACC)-0.0;
  if (xcs == 1 && cols == TILE_RHS && TILE_RHS > 1) {
    // A thread's rows as they lie, by vectors where they can be; then each column to its slot.
    const bool whole_rows = ((ADDRESS(xs) | (U64)(xrs * (I64)sizeof(ELEM))) & (sizeof(XROW) - 1)) == 0;
#pragma unroll
    for (U32 k = 0; k < LOADS; k++)
#pragma unroll
      for (U32 v = 0; v < VEC; v++) {
        const ELEM *p = xs + (I64)(k * 32 * VEC + v) * xrs;
        if (k * 32 * VEC + v < left) {
          XROW row[TILE_RHS * sizeof(ELEM) / sizeof(XROW)];
          if (whole_rows) {
#pragma unroll
            for (U32 q = 0; q < TILE_RHS * sizeof(ELEM) / sizeof(XROW); q++) row[q] = ((const XROW *)p)[q];
#pragma unroll
            for (U32 c = 0; c < TILE_RHS; c++) xv[k][v][c] = widen(((const ELEM *)row)[c]);
          } else {
#pragma unroll
            for (U32 c = 0; c < TILE_RHS; c++) xv[k][v][c] = widen(p[c]);
          }
        }
#pragma unroll
        for (U32 bit = 1; bit < TILE_RHS; bit *= 2)
#pragma unroll
          for (U32 c = 0; c < TILE_RHS; c++)
            if ((c & bit) == 0) {
              const ACC low = xv[k][v][c], high = xv[k][v][c | bit];
              xv[k][v][c] = (mine & bit) != 0 ? high : low;
              xv[k][v][c | bit] = (mine & bit) != 0 ? low : high;
            }
      }
  } else {
#pragma unroll
    for (U32 k = 0; k < LOADS; k++)
#pragma unroll
      for (U32 v = 0; v < VEC; v++)
#pragma unroll
        for (U32 i = 0; i < TILE_RHS; i++) {
          const U32 j = k * 32 * VEC + v, c = i ^ mine;
          if (j < left && c < cols) xv[k][v][i] = widen(xs[(I64)j * xrs + (I64)c * xcs]);
        }
  }

  U32 turn = 0;
#pragma unroll 1
  for (U64 at = begin; at < end; at += BLOCK_ROWS, turn ^= 1) {
    ACC *const to = &sums[turn][wk][wm * BATCH * TILE_RHS];
    const U64 mine = at + wm * BATCH, then = mine + BLOCK_ROWS;
    if (mode == WHOLE) batch_of_rows<WHOLE>(av, xv, base, rs, mine, then, end, left, to);
    else if (mode == VECTORS) batch_of_rows<VECTORS>(av, xv, base, rs, mine, then, end, left, to);
    else batch_of_rows<ELEMENTS>(av, xv, base, rs, mine, then, end, left, to);
    // Who writes to this buffer again has passed the barrier of the batch in between.
    if (WARPS_K > 1) __syncthreads();
    else __syncwarp();
    const U32 last = WARPS_K > 1 ? BLOCK_ROWS * TILE_RHS : (wm + 1) * (BATCH * TILE_RHS);
#pragma unroll 1
    for (U32 o = WARPS_K > 1 ? LID : wm * (BATCH * TILE_RHS) + t; o < last; o += WARPS_K > 1 ? THREADS : 32) {
      const U64 i = at + o / TILE_RHS, c = c0 + o % TILE_RHS;
      if (i >= end || c >= rhs) continue;
      ACC v[WARPS_K];
#pragma unroll
      for (U32 w = 0; w < WARPS_K; w++) v[w] = sums[turn][w][o];
      if (n > SEG) {
        // Lanes of the second level begin at +0.
#pragma unroll
        for (U32 w = 0; w < WARPS_K; w++) v[w] = acc_add(acc_zero(), v[w]);
        // A part has 64 / parts of them: further segments are added to theirs.
#pragma unroll
        for (U32 lanes = 1; lanes < WARPS_K; lanes *= 2)
          if (lanes * parts == LANES)
#pragma unroll
            for (U32 w = 1; w < WARPS_K; w++)
              if (w >= lanes) {
                v[w % lanes] = acc_add(v[w % lanes], v[w]);
                v[w] = acc_zero();
              }
        halve(v);
      }
      if (all_parts == 1) finish(y + y0 + (I64)i * yrs + (I64)c * ycs, alpha, zero ? acc_zero() : v[0], beta);
      else workspace[(U64)part * (m * rhs) + i * rhs + c] = v[0];
    }
  }
}

#define OUTPUT_AT(o) ((I64)((o) / rhs) * yrs + (I64)((o) % rhs) * ycs)
