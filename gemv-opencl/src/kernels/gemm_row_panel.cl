// Y = alpha A X + beta Y, row-major, one matrix, on GPUs. A warp of 32 threads holds one segment of TILE_RHS
// columns of X in registers, and rows of A stream by: A is read once for TILE_RHS columns, X once a block. The bits
// are those of docs/ORDER.md.
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
//   exchange   By shuffles on NVIDIA GPUs, elsewhere by local memory, which takes longer.
//   sums       wait in local memory for the end of the batch, where each thread adds up some outputs'. Of
//              several parts or super-segments, they go to `workspace` (entry part * m * rhs + output), and
//              gemm_parts_reduce or gemm_parts_long_reduce follows.
//   the end    Past the end of a row, +0 * -0 takes the place of the elements, which leaves any sum as
//              it is. There is no such product of complex numbers: theirs are left out.
//   aligned    Rows that begin where vectors do are read by vectors, others and the last segment of a row by
//              elements.
//   never read A and X where alpha = 0; Y where beta = 0; anything outside of a row's n elements.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef WARPS_K
#define WARPS_K 4
#endif
#ifndef TILE_RHS
#define TILE_RHS 4
#endif
#ifndef DEPTH
#define DEPTH 4
#endif
#define WARPS (THREADS / 32)
#define WARPS_M (WARPS / WARPS_K)
#define BATCH 16
#define BLOCK_ROWS (WARPS_M * BATCH)
#define LOADS (8 / VEC)
#define SLOTS (2 / VEC)
#define LOG_COLS (TILE_RHS == 1 ? 0 : TILE_RHS == 2 ? 1 : TILE_RHS == 4 ? 2 : TILE_RHS == 8 ? 3 : 4)
// Values that a thread exchanges at a time.
#define EXCHANGED (VEC * (TILE_RHS > 1 ? TILE_RHS / 2 : 1))
#define REDUCE_THREADS 128

// Super-segments of a row, and parts of each: as in the plan.
STATIC U32 super_segments_of(const U64 n) { return n == 0 ? 1 : (U32)ceil_div(n, (U64)SEG * SEG); }
STATIC U32 parts_of(const U64 n) {
  const U32 segments = (U32)(n > (U64)SEG * SEG ? SEG : ceil_div(n, SEG));
  U32 parts = 1;
  while (parts * WARPS_K < segments) parts *= 2;
  return parts;
}

// The thread `o` away's `count` values of each of VEC lists: those from `from` on, to those from 0 on, added.
STATIC INLINED void add_from(ACC (*v)[TILE_RHS], const U32 from, const U32 count, const U32 o,
                             LOCAL_PTR(ACC) buffer) {
#ifdef __NV_CL_C_VERSION
#pragma unroll
  for (U32 e = 0; e < VEC; e++)
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++)
      if (c < count) v[e][c] = acc_add(v[e][c], acc_xor(v[e][c + from], o));
#else
  BARRIER();
#pragma unroll
  for (U32 e = 0; e < VEC; e++)
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++)
      if (c < count) buffer[(e * count + c) * THREADS + LID] = v[e][c + from];
  BARRIER();
#pragma unroll
  for (U32 e = 0; e < VEC; e++)
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++)
      if (c < count) v[e][c] = acc_add(v[e][c], buffer[(e * count + c) * THREADS + (LID ^ o)]);
#endif
}

// A thread's vectors of a row. Of elements past the end, `left` from its first on, nothing is read.
STATIC void load_row(PACK *av, GLOBAL const ELEM *p, const bool whole, const U32 left) {
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
    if (whole) {
      load_if(&av[k], p + k * 32 * VEC, true);
    } else {
#pragma unroll
      for (U32 v = 0; v < VEC; v++)
        if (k * 32 * VEC + v < left) av[k].e[v] = p[k * 32 * VEC + v];
    }
}

// The sum of a segment of one row: of column t >> (5 - LOG_COLS) of the panel, in thread t.
STATIC INLINED ACC segment_sum(const PACK *av, ACC (*xv)[VEC][TILE_RHS], const U32 conj,
                               const bool whole, const U32 left, LOCAL_PTR(ACC) buffer) {
  ACC acc[SLOTS][VEC][TILE_RHS];
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
#pragma unroll
    for (U32 v = 0; v < VEC; v++) {
      const ACC one = conj_if(widen(av[k].e[v]), conj);
      const bool there = !COMPLEX || whole || k * 32 * VEC + v < left;
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++) {
        const ACC old = k < SLOTS ? acc_zero() : acc[k % SLOTS][v][c];
        acc[k % SLOTS][v][c] = there ? acc_fma(one, xv[k][v][c], old) : old;
      }
    }
  if (SLOTS == 2)
#pragma unroll
    for (U32 v = 0; v < VEC; v++)
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++) acc[0][v][c] = acc_add(acc[0][v][c], acc[SLOTS - 1][v][c]);
#pragma unroll
  for (U32 level = 1; level <= 5; level++) {
    const U32 kept = TILE_RHS >> level;
    add_from(acc[0], kept, kept > 0 ? kept : 1, 32u >> level, buffer);
  }
  return VEC == 2 ? acc_add(acc[0][0][0], acc[0][VEC - 1][0]) : acc[0][0][0];
}

// A batch of rows: of each, its sums go to `sums` and the row DEPTH further on is loaded. `at` is this
// warp's first row, `then` the one of its next batch; rows from `end` on are those before it again.
STATIC INLINED void batch_of_rows(PACK (*av)[LOADS], ACC (*xv)[VEC][TILE_RHS], GLOBAL const ELEM *a,
                                  const I64 rs, const U64 at, const U64 then, const U64 end,
                                  const U32 conj, const bool whole, const U32 left,
                                  LOCAL_PTR(ACC) sums, LOCAL_PTR(ACC) buffer) {
  const bool writes = LID % (32 / TILE_RHS) == 0;
  LOCAL_PTR(ACC) to = sums + LID % 32 / (32 / TILE_RHS);
#pragma unroll 1
  for (U32 r = 0; r < BATCH; r += DEPTH) {
    U64 next = r + DEPTH < BATCH ? at + r + DEPTH : then;
    next = next < end ? next : end - 1;
    const U32 more = end - 1 - next < DEPTH ? (U32)(end - 1 - next) : DEPTH;
    GLOBAL const ELEM *p = a + (I64)next * rs;
#pragma unroll
    for (U32 d = 0; d < DEPTH; d++) {
      const ACC sum = segment_sum(av[d], xv, conj, whole, left, buffer);
      load_row(av[d], p, whole, left);
      if (d < more) p += rs;
      if (writes) to[(r + d) * TILE_RHS] = sum;
    }
  }
}

KERNEL(THREADS) gemm_row_panel(GEMM_ARGUMENTS) {
  LOCAL ACC sums[2 * WARPS_K * BLOCK_ROWS * TILE_RHS];
  LOCAL ACC buffer[EXCHANGE_SIZE(THREADS, EXCHANGED)];
  const U32 t = LID % 32, wk = LID / 32 % WARPS_K, wm = LID / 32 / WARPS_K;
  // Remainders are written as differences: Oclgrind does not know the instruction that a pair of a quotient and a
  // remainder becomes.
  const U32 panels = (U32)ceil_div(rhs, TILE_RHS), rest = (U32)GROUP_ID / panels;
  const U32 c0 = ((U32)GROUP_ID - rest * panels) * TILE_RHS;
  const U32 cols = rhs - c0 < TILE_RHS ? (U32)(rhs - c0) : TILE_RHS;
  const U32 parts = parts_of(n), all_parts = parts * super_segments_of(n);
  const U32 block = rest / all_parts, part = rest - block * all_parts;
  const U32 blocks = (U32)GROUPS / panels / all_parts;
  const U64 begin = block * m / blocks, end = (block + 1) * m / blocks;
  const bool zero = acc_is(alpha, (REAL)0) || n == 0;
  if (begin >= end || (zero && all_parts > 1)) return;

  const U32 super_segment = part / parts, in_super = part - super_segment * parts + parts * wk;
  const U64 first = ((U64)super_segment * SEG + in_super) * SEG;
  // The last segment of a super-segment is its 256th.
  const bool none = zero || in_super >= SEG || first >= n;
  const U32 len = none ? 0 : n - first < SEG ? (U32)(n - first) : SEG;
  // Columns from this thread's first one on. (A comparison of unsigned numbers becomes an instruction that Oclgrind
  // does not know.)
  const U32 left = (U32)max((int)len - (int)(t * VEC), 0);

  GLOBAL const ELEM *base = a + a0 + (len > 0 ? (I64)first + t * VEC : 0);
  const bool aligned = VEC == 1 || (BEYOND(a + a0) == 0 && (rs & (I64)(VEC - 1)) == 0);
  const bool whole = aligned && len == SEG;
  PACK av[DEPTH][LOADS];
#pragma unroll
  for (U32 d = 0; d < DEPTH; d++) {
    const U64 i = begin + wm * BATCH + d;
#pragma unroll
    for (U32 k = 0; k < LOADS; k++)
#pragma unroll
      for (U32 w = 0; w < WORDS; w++) av[d][k].w[w] = 0;
    load_row(av[d], base + (I64)(i < end ? i : end - 1) * rs, whole, left);
  }

  // Columns beyond the last one are not used: they may be any. Past the end of a row they are -0.
  GLOBAL const ELEM *xs = x + x0 + (len > 0 ? (I64)(first + t * VEC) * xrs : 0) + (I64)c0 * xcs;
  const U32 mine = LID % 32 >> (5 - LOG_COLS);
  ACC xv[LOADS][VEC][TILE_RHS];
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
#pragma unroll
    for (U32 v = 0; v < VEC; v++)
#pragma unroll
      for (U32 i = 0; i < TILE_RHS; i++) {
        const U32 j = k * 32 * VEC + v, c = i ^ mine;
        xv[k][v][i] = COMPLEX ? acc_zero() : -acc_zero();
        if (j < left && c < cols) xv[k][v][i] = widen(xs[(I64)j * xrs + (I64)c * xcs]);
      }

  U32 turn = 0;
#pragma unroll 1
  for (U64 at = begin; at < end; at += BLOCK_ROWS, turn ^= 1) {
    LOCAL_PTR(ACC) all = sums + turn * (WARPS_K * BLOCK_ROWS * TILE_RHS);
    LOCAL_PTR(ACC) to = all + wk * (BLOCK_ROWS * TILE_RHS) + wm * BATCH * TILE_RHS;
    const U64 row = at + wm * BATCH, then = row + BLOCK_ROWS;
#ifdef __NV_CL_C_VERSION
    if (whole) batch_of_rows(av, xv, base, rs, row, then, end, conj, true, left, to, buffer);
    else batch_of_rows(av, xv, base, rs, row, then, end, conj, false, left, to, buffer);
#else
    // One call for all warps: it has barriers.
    batch_of_rows(av, xv, base, rs, row, then, end, conj, whole, left, to, buffer);
#endif
    // Who writes to this buffer again has passed the barrier of the batch in between.
    BARRIER();
#pragma unroll 1
    for (U32 o = LID; o < BLOCK_ROWS * TILE_RHS; o += THREADS) {
      const U64 i = at + o / TILE_RHS, c = c0 + o % TILE_RHS;
      if (i >= end || c >= rhs) continue;
      ACC v[WARPS_K];
#pragma unroll
      for (U32 w = 0; w < WARPS_K; w++) v[w] = all[w * (BLOCK_ROWS * TILE_RHS) + o];
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
#pragma unroll
        for (U32 level = 1; level <= 4; level++)
#pragma unroll
          for (U32 w = 0; w < WARPS_K / 2; w++)
            if (w < WARPS_K >> level) v[w] = acc_add(v[w], v[w + (WARPS_K >> level)]);
      }
      if (all_parts == 1)
        finish(y + y0 + (I64)i * yrs + (I64)c * ycs, alpha, zero ? acc_zero() : v[0], beta);
      else workspace[(U64)part * (m * rhs) + i * rhs + c] = v[0];
    }
  }
}

// The sum of at most `most` parts of a super-segment, which lie `step` apart. The first `filled` are there, and none of
// them is -0; the others are +0.
#define DEFINE_SUM_OF(most)                                                                     \
  STATIC ACC sum_of_##most(GLOBAL const ACC *from, const U64 step, const U32 filled) {          \
    ACC v[most];                                                                                \
    _Pragma("unroll")                                                                           \
    for (U32 p = 0; p < most; p++) v[p] = p < filled ? from[p * step] : acc_zero();             \
    _Pragma("unroll")                                                                           \
    for (U32 level = 1; level <= 6; level++)                                                    \
      _Pragma("unroll")                                                                         \
      for (U32 p = 0; p < most / 2; p++)                                                        \
        if (p < (most >> level)) v[p] = acc_add(v[p], v[p + (most >> level)]);                  \
    return v[0];                                                                                \
  }
DEFINE_SUM_OF(2)
DEFINE_SUM_OF(8)
DEFINE_SUM_OF(16)
DEFINE_SUM_OF(64)
STATIC ACC sum_of_parts(GLOBAL const ACC *from, const U64 step, const U32 parts, const U32 filled) {
  return parts <= 2    ? sum_of_2(from, step, filled)
         : parts <= 8  ? sum_of_8(from, step, filled)
         : parts <= 16 ? sum_of_16(from, step, filled)
                       : sum_of_64(from, step, filled);
}
// Parts that have a segment, which the last super-segment may have fewer of.
STATIC U32 filled_parts(const U64 n, const U32 parts, const U32 super_segment) {
  const U64 left = ceil_div(n, SEG) - (U64)super_segment * SEG;
  return left < parts ? (U32)left : parts;
}
STATIC void finish_output(GLOBAL ELEM *y, const U64 o, const U64 rhs, const I64 yrs, const I64 ycs,
                          const ACC alpha, const ACC sum, const ACC beta) {
  const U64 i = quotient(o, rhs), c = o - i * rhs;
  finish(y + (I64)i * yrs + (I64)c * ycs, alpha, sum, beta);
}

// One super-segment: a thread has an output.
KERNEL(REDUCE_THREADS) gemm_parts_reduce(GEMM_ARGUMENTS) {
  const U64 o = GROUP_ID * REDUCE_THREADS + LID, outputs = m * rhs;
  if (o >= outputs) return;
  const U32 parts = parts_of(n);
  ACC sum = acc_zero();
  if (!acc_is(alpha, (REAL)0)) sum = sum_of_parts(workspace + o, outputs, parts, filled_parts(n, parts, 0));
  finish_output(y + y0, o, rhs, yrs, ycs, alpha, sum, beta);
}

// Up to 256 of them: 32 threads have an output, and thread t super-segments t, t + 32, ...
KERNEL(REDUCE_THREADS) gemm_parts_long_reduce(GEMM_ARGUMENTS) {
  LOCAL ACC buffer[EXCHANGE_SIZE(REDUCE_THREADS, 1)];
  const U64 o = GROUP_ID * (REDUCE_THREADS / 32) + LID / 32, outputs = m * rhs;
  const U32 parts = parts_of(n);
  const U32 supers = acc_is(alpha, (REAL)0) || o >= outputs ? 0 : super_segments_of(n);
  ACC v[2];
#pragma unroll
  for (U32 k = 0; k < 2; k++) {
    v[k] = acc_zero();
    for (U32 u = k * 32 + LID % 32; u < supers; u += LANES)
      v[k] = acc_add(v[k], sum_of_parts(workspace + (U64)u * parts * outputs + o, outputs, parts,
                                        filled_parts(n, parts, u)));
  }
  v[0] = acc_add(v[0], v[1]);
  butterfly(v, 1, 32, REDUCE_THREADS, buffer);
  if (LID % 32 == 0 && o < outputs) finish_output(y + y0, o, rhs, yrs, ycs, alpha, v[0], beta);
}
