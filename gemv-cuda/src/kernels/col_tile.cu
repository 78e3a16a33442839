// col-tile: y = alpha A x + beta y, column-major. A block reads tiles of TILE_M rows by one segment of
// columns, and prefetches the next tile into registers before it has summed up the last one.
// OpenCL's kernel of this name has the same tiles, but another way to add up segments: by the last block that counts
// itself in, where this one has clusters.
//
//   rows       sets of TILE_M rows. Thread t has rows (t % COLUMN_THREADS) * VEC ... of its set;
//              neighbours read neighbouring elements of a column.
//   lanes      thread t has lanes t / COLUMN_THREADS, + COLS_AT_ONCE, ... of a segment. The first levels
//              of the halving are in its registers; the others by a thread a row, through shared memory.
//   unroll     a segment has four rounds of 64 columns; UNROLL of them are in flight at once.
//   tiles      numbered along the rows first, so that blocks that run at the same time read
//              neighbouring pieces of the same columns. Block b has tiles b, b + GROUPS, ...
//   sums       one segment: the block writes y. Else the sums are left in `workspace`, segment by segment
//              (entry s * m + i), and col_tile_super_segments and col_tile_reduce add them, up to
//              256 x 256 segments.
//   row_accs   ROW_ACCS > 0: a block has a set of rows with all of its segments one after another, and
//              keeps so many lanes of the second level of each row: no second launch, and blocks whose
//              last segment is short fill the gaps of others. For tall matrices. 2 to ROW_ACCS segments,
//              or 256 where it keeps all 64 lanes.
//   cluster    CLUSTER_K > 1: a cluster of so many blocks has a set of rows. The block of rank p has
//              segments p, p + CLUSTER_K, ..., and so the lanes p, p + CLUSTER_K, ... of the second level
//              (CLUSTER_K divides 64), which it keeps and halves down to one. The cluster's first block
//              does the last levels and writes y: no second launch. 2 to 256 segments.
//   min_blocks MIN_BLOCKS blocks are to be resident on a multiprocessor. The compiler would take a few
//              registers more at the cost of a block, and a partly filled last wave costs as much as a
//              full one.
//   instructions  a warp may spend some 25 for each load if memory is not to wait for it. So the columns
//              of a thread are equally far apart, x is in shared memory, and sets, segments and blocks
//              are 32-bit numbers: their division takes a quarter of the time of 64-bit ones.
//   never read A and x where alpha = 0; y where beta = 0; vectors without an element of the matrix.
//              The one at a column's end is read whole; allocations end with a whole one.
#ifndef THREADS
#define THREADS 256
#endif
#ifndef TILE_M
#define TILE_M 32
#endif
#ifndef UNROLL
#define UNROLL 1
#endif
#ifndef ROW_ACCS
#define ROW_ACCS 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
// A block or a cluster has all segments of its rows, and a block so many lanes of the second level.
#define WHOLE_ROWS (CLUSTER_K > 1 || ROW_ACCS > 0)
#define ACCS (CLUSTER_K > 1 ? 64 / CLUSTER_K : ROW_ACCS > 0 ? ROW_ACCS : 1)
#define COLUMN_THREADS (TILE_M / VEC)
#define COLS_AT_ONCE (THREADS / COLUMN_THREADS)
#define THREAD_LANES (64 / COLS_AT_ONCE)
// What a vector's elements are apart in shared memory: in other banks than those of its neighbours.
#define PLANE (THREADS + 32 / VEC)

// The second level: a block's lanes of its set's rows, and one sum for every block of the cluster.
struct SecondLevel {
  ACC lanes[ACCS][WHOLE_ROWS ? TILE_M : 1];
  ACC sums[2][CLUSTER_K][WHOLE_ROWS ? TILE_M : 1];
};

// The tiles of a block. VECTORS: columns begin where vectors do, so that every load is of a whole one;
// else elements are read one by one. A template: the two ways must not share registers in flight.
template <bool VECTORS>
STATIC void tiles(ARGUMENTS, ACC (*exchange)[VEC * PLANE], ELEM (*xs)[SEG], SecondLevel &second) {
  const U32 sets = (U32)ceil_div(m, TILE_M), segments = (U32)ceil_div(n, SEG);
  const U32 blocks = (U32)GROUPS, block = (U32)GROUP_ID;
  const U32 col = LID / COLUMN_THREADS, mine = LID % COLUMN_THREADS * VEC;
  const U32 rank = block % CLUSTER_K;
  U32 s = WHOLE_ROWS ? rank : block / sets, set = WHOLE_ROWS ? block / CLUSTER_K : block % sets;
  const U32 s_step = blocks / sets, set_step = WHOLE_ROWS ? blocks / CLUSTER_K : blocks % sets;
  // No block writes to another one's shared memory before that one has begun.
  cluster_arrive();
  if (s >= segments) {
    // Nothing to read, but the others wait for this block once a set.
    for (; CLUSTER_K > 1 && set < sets; set += set_step) {
      cluster_wait();
      cluster_arrive();
    }
    cluster_wait();
    return;
  }
  const I64 jump = (I64)COLS_AT_ONCE * cs;

  // In flight: rounds from..from + UNROLL of a tile. Of this thread's columns in them, those that are
  // k * 64 + h * COLS_AT_ONCE < `left` behind its first one are read.
  PACK av[UNROLL][THREAD_LANES];
  int left;
  const auto read = [&](const U32 s, const U32 set, const U32 from) {
    const U64 first = (U64)s * SEG, row = (U64)set * TILE_M + mine;
    const U32 len = n - first < SEG ? (U32)(n - first) : SEG;
    left = row >= m ? 0 : (int)len - (int)(from * 64 + col);
    const A_ELEM *p = a + a0 + (I64)row + (I64)(first + from * 64 + col) * cs;
    const U32 rows = row >= m ? 0 : m - row < VEC ? (U32)(m - row) : VEC;
#pragma unroll
    for (U32 k = 0; k < UNROLL; k++)
#pragma unroll
      for (U32 h = 0; h < THREAD_LANES; h++, p += jump)
        if (VECTORS) {
          load_a(av[k][h], p, (int)(k * 64 + h * COLS_AT_ONCE) < left);
        } else {
#pragma unroll
          for (U32 c = 0; c < VEC; c++)
            if ((int)(k * 64 + h * COLS_AT_ONCE) < left && c < rows) av[k][h].e[c] = p[c];
        }
  };
  // The x of a segment, spread over the threads.
  ELEM xv[SEG / THREADS + (SEG < THREADS)];
  const auto read_x = [&](const U32 s) {
#pragma unroll
    for (U32 k = 0; k * THREADS < SEG; k++) {
      const U64 j = (U64)s * SEG + k * THREADS + LID;
      if (k * THREADS + LID < SEG && j < n) xv[k] = x[x0 + (I64)j * incx];
    }
  };
  const auto leave_x = [&](ELEM *to) {
#pragma unroll
    for (U32 k = 0; k * THREADS < SEG; k++)
      if (k * THREADS + LID < SEG) to[k * THREADS + LID] = xv[k];
  };

  read(s, set, 0);
  read_x(s);
  leave_x(xs[0]);
  __syncthreads();
  for (U32 iteration = 0, done = 0;; iteration++) {
    const U32 rounds = n - (U64)s * SEG < SEG ? ((U32)(n - (U64)s * SEG) + 63) / 64 : 4;
    U32 next_s = s + (WHOLE_ROWS ? CLUSTER_K : s_step), next_set = WHOLE_ROWS ? set : set + set_step;
    if (WHOLE_ROWS) {
      if (next_s >= segments) {
        next_s = rank;
        next_set += set_step;
      }
    } else if (next_set >= sets) {
      next_set -= sets;
      next_s++;
    }
    const bool last = WHOLE_ROWS ? next_set >= sets : next_s >= segments;
    ACC acc[THREAD_LANES][VEC];
#pragma unroll
    for (U32 h = 0; h < THREAD_LANES; h++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) acc[h][c] = acc_zero();
    const ELEM *here_x = xs[iteration & 1u] + col;
#pragma unroll 1
    for (U32 from = 0; from < rounds; from += UNROLL, here_x += UNROLL * 64) {
#pragma unroll
      for (U32 k = 0; k < UNROLL; k++)
#pragma unroll
        for (U32 h = 0; h < THREAD_LANES; h++)
          if ((int)(k * 64 + h * COLS_AT_ONCE) < left) {
            const ACC xv = widen(here_x[k * 64 + h * COLS_AT_ONCE]);
#pragma unroll
            for (U32 c = 0; c < VEC; c++)
              acc[h][c] = acc_fma(conj_if(a_widen(av[k][h].e[c]), conj), xv, acc[h][c]);
          }
      // The registers are free again: the next loads are in flight during the rest.
      const bool more = from + UNROLL < rounds;
      if (more || !last)
        read(more ? s : next_s, more ? set : next_set, more ? from + UNROLL : 0);
    }
    if (!last) read_x(next_s);
    halve(acc);

    // Who reads here in iteration t has done so before the barrier of iteration t + 1, and iteration
    // t + 2 writes after it. In each iteration other threads take the rows.
    ACC *here = exchange[iteration & 1u];
#pragma unroll
    for (U32 c = 0; c < VEC; c++) here[c * PLANE + LID] = acc[0][c];
    if (!last) leave_x(xs[(iteration + 1) & 1u]);
    __syncthreads();
    if (CLUSTER_K > 1 && next_set != set && done == 0) cluster_wait();
    const U32 who = (LID - iteration * TILE_M) & (THREADS - 1);
    const U64 i = (U64)set * TILE_M + who;
    if (who < TILE_M && i < m) {
      ACC v[COLS_AT_ONCE];
#pragma unroll
      for (U32 g = 0; g < COLS_AT_ONCE; g++) v[g] = here[who % VEC * PLANE + g * COLUMN_THREADS + who / VEC];
      halve(v);
      if (WHOLE_ROWS) {
        // Other threads' lanes of this row were written before this iteration's barrier.
        ACC *lane = &second.lanes[s % LANES / CLUSTER_K][who];
        *lane = acc_add(s < LANES ? acc_zero() : *lane, v[0]);
        if (next_set != set) {
          const U32 filled = segments < LANES ? segments : LANES;
          const U32 own = (filled - rank + CLUSTER_K - 1) / CLUSTER_K;
          U32 d = ACCS / 2;
#pragma unroll 1
          for (; d > 0; d /= 2)
#pragma unroll 1
            for (U32 k = 0; k + d < own && k < d; k++)
              second.lanes[k][who] = acc_add(second.lanes[k][who], second.lanes[k + d][who]);
          *leader_smem(&second.sums[done & 1u][rank][who]) = second.lanes[0][who];
        }
      } else if (segments == 1) {
        finish(y + (y0 + (I64)i * incy), alpha, v[0], beta);
      } else {
        workspace[s * m + i] = v[0];
      }
    }
    if (WHOLE_ROWS && next_set != set) {
      cluster_arrive();
      cluster_wait();
      if (rank == 0 && who < TILE_M && i < m) {
        ACC v[CLUSTER_K];
#pragma unroll
        for (U32 q = 0; q < CLUSTER_K; q++)
          v[q] = q < segments ? second.sums[done & 1u][q][who] : acc_zero();
        halve(v);
        finish(y + (y0 + (I64)i * incy), alpha, v[0], beta);
      }
      done++;
    }
    if (last) return;
    s = next_s;
    set = next_set;
  }
}

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(THREADS, MIN_BLOCKS) col_tile(ARGUMENTS) {
  __shared__ ACC exchange[2][VEC * PLANE];
  __shared__ ELEM xs[2][SEG];
  __shared__ SecondLevel second;
  begin(!WHOLE_ROWS && n > SEG);
  if (acc_is(alpha, (REAL)0) || n == 0) {
    // Of several segments, the last launch writes y.
    for (U64 i = GROUP_ID * THREADS + LID; i < m && (WHOLE_ROWS || n <= SEG); i += GROUPS * THREADS)
      finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
    return;
  }
  if (m == 0) return;
  if (VEC == 1 || (A_BEYOND(a + a0) == 0 && (cs & (I64)(VEC - 1)) == 0))
    tiles<true>(m, n, a, a0, rs, cs, x, x0, incx, y, y0, incy, alpha, beta, conj, workspace, counters, exchange,
                xs, second);
  else
    tiles<false>(m, n, a, a0, rs, cs, x, x0, incx, y, y0, incy, alpha, beta, conj, workspace, counters, exchange,
                 xs, second);
}

// The sum of up to 256 values from[0], from[m], ... of row i, for thread r of 32, where thread (r, g) of
// 32 x 8 has lanes g, g + 8, ...: halved as in the tiles.
STATIC ACC row_sum(const ACC *from, const U64 m, const U32 len, ACC (*exchange)[32]) {
  const U32 r = LID % 32, g = LID / 32;
  ACC acc[8];
#pragma unroll
  for (U32 q = 0; q < 8; q++) acc[q] = acc_zero();
#pragma unroll 1
  for (U32 j = g; j < len; j += 64) {
    ACC v[8];
#pragma unroll
    for (U32 q = 0; q < 8; q++)
      if (j + q * 8 < len) v[q] = __ldcg(from + (j + q * 8) * m);
#pragma unroll
    for (U32 q = 0; q < 8; q++)
      if (j + q * 8 < len) acc[q] = acc_add(acc[q], v[q]);
  }
  halve(acc);
  exchange[g][r] = acc[0];
  __syncthreads();
  ACC v[8];
#pragma unroll
  for (U32 q = 0; q < 8; q++) v[q] = exchange[q][r];
  halve(v);
  return v[0];
}

// 256 segment sums of a row to one: super_segment c of row i goes to workspace[m * segments + c * m + i].
KERNEL(256) col_tile_super_segments(ARGUMENTS) {
  __shared__ ACC exchange[8][32];
  begin(true);
  const U64 segments = ceil_div(n, SEG);
  const U32 sets = (U32)ceil_div(m, 32), super_segment = (U32)GROUP_ID / sets;
  const U64 i = (U64)((U32)GROUP_ID % sets) * 32 + LID % 32, left = segments - (U64)super_segment * SEG;
  if (acc_is(alpha, (REAL)0)) return;
  const U32 len = i >= m ? 0 : (U32)(left < SEG ? left : SEG);
  const ACC sum = row_sum(workspace + (U64)super_segment * SEG * m + i, m, len, exchange);
  if (LID < 32 && i < m) workspace[(segments + super_segment) * m + i] = sum;
}

// The last level.
KERNEL(256) col_tile_reduce(ARGUMENTS) {
  __shared__ ACC exchange[8][32];
  begin(false);
  const U64 segments = ceil_div(n, SEG), super_segments = ceil_div(segments, SEG);
  const U64 i = GROUP_ID * 32 + LID % 32;
  const U64 count = segments <= SEG ? segments : super_segments;
  const U32 len = i >= m || acc_is(alpha, (REAL)0) ? 0 : (U32)count;
  const ACC sum = row_sum(workspace + (segments <= SEG ? 0 : segments * m) + i, m, len, exchange);
  if (LID < 32 && i < m) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
}
