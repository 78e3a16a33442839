// y = alpha A x + beta y for columns of neighbouring elements: a block reads tiles of some rows by one
// segment of columns, and asks for the next tile before it has summed up the last one.
//
//   rows       sets of HEIGHT rows. Thread t has rows (t % PER) * VEC ... of its set; neighbours read
//              neighbouring elements of a column.
//   lanes      thread t has lanes t / PER, + COLS, ... of a segment. The first levels of the halving
//              are in its registers; the others by a thread a row, through shared memory.
//   rounds     DEEP of a segment's four are under way at once.
//   tiles      numbered along the rows first, so that blocks that run at the same time read
//              neighbouring pieces of the same columns. Block b has tiles b, b + GROUPS, ...
//   sums       one segment: the block writes y. Else the sums are left in `work`, segment by segment
//              (entry s * m + i), and tile_chunks and tile_rows reduce them, up to 256 x 256 segments.
//   keep       KEEP > 0: a block has a set of rows with all of its segments one after another, and keeps the lanes
//              of the second level, so many of them: no second launch, and a last segment of few columns
//              is read while other blocks have long ones. What tall matrices need. 2 to KEEP segments,
//              or 256 where it keeps all 64 lanes.
//   parts      PARTS > 1: a cluster of so many blocks has a set of rows, block p of it segments p,
//              p + PARTS, ... one after another, and so the lanes p, p + PARTS, ... of the second level
//              (PARTS divides 64), which it keeps and halves down to one. The cluster's first block does the
//              last levels and writes y: no second launch. 2 to 256 segments.
//   room       ROOM blocks are to find room in a unit: the compiler would take some registers more, at the cost of a
//              block, and what is left for a last turn takes as long as a full one.
//   few instructions  a warp may spend some 25 for each load if memory is not to wait for it: the
//              columns of a thread are equally far apart, x is in shared memory, sets, segments and
//              blocks are numbers of 32 bits, by which to divide takes a quarter of the time.
//   never read A and x where alpha = 0; y where beta = 0; vectors without an element of the matrix.
//              The one at a column's end is read whole; blocks of memory end with a whole one.
#ifndef THREADS
#define THREADS 256
#endif
#ifndef HEIGHT
#define HEIGHT 32
#endif
#ifndef DEEP
#define DEEP 1
#endif
#ifndef KEEP
#define KEEP 0
#endif
#ifndef ROOM
#define ROOM 1
#endif
// A block or a cluster has all segments of its rows, and a block so many lanes of the second level.
#define ROWWISE (PARTS > 1 || KEEP > 0)
#define KEPT (PARTS > 1 ? 64 / PARTS : KEEP > 0 ? KEEP : 1)
#define PER (HEIGHT / VEC)
#define COLS (THREADS / PER)
#define HELD (64 / COLS)
// What a vector's elements are apart in shared memory: in other banks than those of its neighbours.
#define PLANE (THREADS + 32 / VEC)

// What the second level keeps: a block's lanes of its set's rows, and one for every block.
struct Second {
  ACC held[KEPT][ROWWISE ? HEIGHT : 1];
  ACC met[2][PARTS][ROWWISE ? HEIGHT : 1];
};

// The tiles of a block. VECTORS: columns begin where vectors do, so that every load is of a whole one;
// else elements are read one by one. A template, since the registers that are under way must not be
// those of two ways.
template <bool VECTORS>
STATIC void tiles(ARGUMENTS, ACC (*meet)[VEC * PLANE], ELEM (*xs)[SEG], Second &second) {
  const U32 sets = (U32)ceil_div(m, HEIGHT), segments = (U32)ceil_div(n, SEG);
  const U32 groups = (U32)GROUPS, group = (U32)GROUP_ID;
  const U32 col = LID / PER, mine = LID % PER * VEC;
  const U32 part = group % PARTS;
  U32 s = ROWWISE ? part : group / sets, set = ROWWISE ? group / PARTS : group % sets;
  const U32 s_step = groups / sets, set_step = ROWWISE ? groups / PARTS : groups % sets;
  // Before anything is left in another block, that block has begun.
  cluster_arrive();
  if (s >= segments) {
    // Nothing to read, but the others wait for this block once a set.
    for (; PARTS > 1 && set < sets; set += set_step) {
      cluster_wait();
      cluster_arrive();
    }
    cluster_wait();
    return;
  }
  const I64 jump = (I64)COLS * cs;

  // What is under way: rounds from..from + DEEP of a tile, and those of this thread's columns in them,
  // k * 64 + h * COLS behind its first, that are less than `left`.
  PACK av[DEEP][HELD];
  int left;
  const auto read = [&](const U32 s, const U32 set, const U32 from) {
    const U64 first = (U64)s * SEG, row = (U64)set * HEIGHT + mine;
    const U32 len = n - first < SEG ? (U32)(n - first) : SEG;
    left = row >= m ? 0 : (int)len - (int)(from * 64 + col);
    const ELEM *p = a + a0 + (I64)row + (I64)(first + from * 64 + col) * cs;
    const U32 rows = row >= m ? 0 : m - row < VEC ? (U32)(m - row) : VEC;
#pragma unroll
    for (U32 k = 0; k < DEEP; k++)
#pragma unroll
      for (U32 h = 0; h < HELD; h++, p += jump)
        if (VECTORS) {
          stream(av[k][h], p, (int)(k * 64 + h * COLS) < left);
        } else {
#pragma unroll
          for (U32 c = 0; c < VEC; c++)
            if ((int)(k * 64 + h * COLS) < left && c < rows) av[k][h].e[c] = p[c];
        }
  };
  // The x of a segment, some for each thread.
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
  for (U32 turn = 0, done = 0;; turn++) {
    const U32 rounds = n - (U64)s * SEG < SEG ? ((U32)(n - (U64)s * SEG) + 63) / 64 : 4;
    U32 next_s = s + (ROWWISE ? PARTS : s_step), next_set = ROWWISE ? set : set + set_step;
    if (ROWWISE) {
      if (next_s >= segments) {
        next_s = part;
        next_set += set_step;
      }
    } else if (next_set >= sets) {
      next_set -= sets;
      next_s++;
    }
    const bool last = ROWWISE ? next_set >= sets : next_s >= segments;
    ACC acc[HELD][VEC];
#pragma unroll
    for (U32 h = 0; h < HELD; h++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) acc[h][c] = acc_zero();
    const ELEM *here_x = xs[turn & 1u] + col;
#pragma unroll 1
    for (U32 from = 0; from < rounds; from += DEEP, here_x += DEEP * 64) {
#pragma unroll
      for (U32 k = 0; k < DEEP; k++)
#pragma unroll
        for (U32 h = 0; h < HELD; h++)
          if ((int)(k * 64 + h * COLS) < left) {
            const ACC xv = widen(here_x[k * 64 + h * COLS]);
#pragma unroll
            for (U32 c = 0; c < VEC; c++)
              acc[h][c] = acc_fma(conj_if(widen(av[k][h].e[c]), conj), xv, acc[h][c]);
          }
      // The registers are free again: what comes next is under way during the rest.
      const bool more = from + DEEP < rounds;
      if (more || !last)
        read(more ? s : next_s, more ? set : next_set, more ? from + DEEP : 0);
    }
    if (!last) read_x(next_s);
    halve(acc);

    // Who reads here in turn t has done so before the barrier of turn t + 1, behind which turn t + 2
    // writes. Each turn other threads take the rows.
    ACC *here = meet[turn & 1u];
#pragma unroll
    for (U32 c = 0; c < VEC; c++) here[c * PLANE + LID] = acc[0][c];
    if (!last) leave_x(xs[(turn + 1) & 1u]);
    __syncthreads();
    if (PARTS > 1 && next_set != set && done == 0) cluster_wait();
    const U32 who = (LID - turn * HEIGHT) & (THREADS - 1);
    const U64 i = (U64)set * HEIGHT + who;
    if (who < HEIGHT && i < m) {
      ACC v[COLS];
#pragma unroll
      for (U32 g = 0; g < COLS; g++) v[g] = here[who % VEC * PLANE + g * PER + who / VEC];
      halve(v);
      if (ROWWISE) {
        // Other threads' lanes of this row were left before this turn's barrier.
        ACC *lane = &second.held[s % LANES / PARTS][who];
        *lane = acc_add(s < LANES ? acc_zero() : *lane, v[0]);
        if (next_set != set) {
          const U32 filled = segments < LANES ? segments : LANES, own = (filled - part + PARTS - 1) / PARTS;
          U32 d = KEPT / 2;
#pragma unroll 1
          for (; d > 0; d /= 2)
#pragma unroll 1
            for (U32 k = 0; k + d < own && k < d; k++)
              second.held[k][who] = acc_add(second.held[k][who], second.held[k + d][who]);
          *first_block(&second.met[done & 1u][part][who]) = second.held[0][who];
        }
      } else if (segments == 1) {
        finish(y + (y0 + (I64)i * incy), alpha, v[0], beta);
      } else {
        work[s * m + i] = v[0];
      }
    }
    if (ROWWISE && next_set != set) {
      cluster_arrive();
      cluster_wait();
      if (part == 0 && who < HEIGHT && i < m) {
        ACC v[PARTS];
#pragma unroll
        for (U32 q = 0; q < PARTS; q++)
          v[q] = q < segments ? second.met[done & 1u][q][who] : acc_zero();
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

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, ROOM) tile(ARGUMENTS) {
  __shared__ ACC meet[2][VEC * PLANE];
  __shared__ ELEM xs[2][SEG];
  __shared__ Second second;
  if (acc_is(alpha, (REAL)0) || n == 0) {
    // Of several segments, the last launch writes y.
    for (U64 i = GROUP_ID * THREADS + LID; i < m && (ROWWISE || n <= SEG); i += GROUPS * THREADS)
      finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
    return;
  }
  if (m == 0) return;
  next_may_begin();
  if (VEC == 1 || (BEYOND(a + a0) == 0 && (cs & (I64)(VEC - 1)) == 0))
    tiles<true>(m, n, a, a0, rs, cs, x, x0, incx, y, y0, incy, alpha, beta, conj, work, counters, meet,
                xs, second);
  else
    tiles<false>(m, n, a, a0, rs, cs, x, x0, incx, y, y0, incy, alpha, beta, conj, work, counters, meet,
                 xs, second);
}

// The sum of up to 256 values from[0], from[m], ... of row i, for thread r of 32 where thread
// (r, g) of 32 x 8 has lanes g, g + 8, ...: the tile's way once more.
STATIC ACC row_sum(const ACC *from, const U64 m, const U32 len, ACC (*meet)[32]) {
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
  meet[g][r] = acc[0];
  __syncthreads();
  ACC v[8];
#pragma unroll
  for (U32 q = 0; q < 8; q++) v[q] = meet[q][r];
  halve(v);
  return v[0];
}

// 256 segment sums of a row to one: chunk c of row i goes to work[m * segments + c * m + i].
KERNEL(256) tile_chunks(ARGUMENTS) {
  __shared__ ACC meet[8][32];
  wait_for_previous();
  const U64 segments = ceil_div(n, SEG);
  const U32 sets = (U32)ceil_div(m, 32), chunk = (U32)GROUP_ID / sets;
  const U64 i = (U64)((U32)GROUP_ID % sets) * 32 + LID % 32, left = segments - (U64)chunk * SEG;
  if (acc_is(alpha, (REAL)0)) return;
  next_may_begin();
  const U32 len = i >= m ? 0 : (U32)(left < SEG ? left : SEG);
  const ACC sum = row_sum(work + (U64)chunk * SEG * m + i, m, len, meet);
  if (LID < 32 && i < m) work[(segments + chunk) * m + i] = sum;
}

// The last level.
KERNEL(256) tile_rows(ARGUMENTS) {
  __shared__ ACC meet[8][32];
  wait_for_previous();
  const U64 segments = ceil_div(n, SEG), chunks = ceil_div(segments, SEG);
  const U64 i = GROUP_ID * 32 + LID % 32;
  const U64 count = segments <= SEG ? segments : chunks;
  const U32 len = i >= m || acc_is(alpha, (REAL)0) ? 0 : (U32)count;
  const ACC sum = row_sum(work + (segments <= SEG ? 0 : segments * m) + i, m, len, meet);
  if (LID < 32 && i < m) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
}
