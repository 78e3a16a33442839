// y = alpha A x + beta y for rows of neighbouring elements: the teams of a block, or of PARTS blocks, have
// the segments of a row at the same time, and the next row is on its way while they add.
//
//   rows       TEAM * ALONG threads share ROWS rows; a block has SETS such groups and takes BLOCK_ROWS
//              neighbouring rows at a time. Group g has rows g, g + SETS, ... of them. Blocks take
//              turns: block b has row blocks b, b + GROUPS, ... (those of a chunk, of what is the chunk's).
//   parts      PARTS > 1: a cluster of so many blocks takes turns instead, and each of its blocks has
//              its part of every turn of a row. What few long rows need, without a second launch.
//   lanes      thread t of a team owns, of each 64 columns, the vectors t, t + TEAM, ... : all loads of
//              its segment are under way before the first is used.
//   segments   ALL teams have a row, those of block p behind those of block p - 1; team g of them takes
//              segments g, g + ALL, ... in turn. As soon as the products of
//              a turn are added, the registers take the loads of the next turn or row, so that
//              these are under way during the halving. Where one turn is enough, the x of a team
//              stays in its registers from row to row.
//   sums       lane l of the second level belongs to one team where ALL divides 64; with more teams, the
//              four sums of a lane are added at the end. The last sum of a lane goes to the cluster's
//              first block, where one warp of the group (or all of a smaller group) halves the lanes
//              of a finished row while the others go on. One segment's sum is used as it is.
//   chunks     WIDE, for rows of more than 256 segments: a block has one chunk of so many, and as many
//              blocks (or clusters) have a chunk as is its share of the work: a last chunk's row takes turns, and
//              time for its sums, by its columns. The sums of chunks are
//              left in `work`, at i * chunks + c, and span_chunks reduces up to 256 of a row. A text of
//              its own, since the few registers more would cost shorter rows a block of a unit.
//   whole      rows that begin where vectors do. With other rows every element is a load of its own,
//              in a short loop, after the previous turn: right, but slow where VEC > 1. A row's last
//              vector may have elements beyond its end: +0 times -0 takes their place, which leaves
//              any sum as it is (a pair has no such factors: there, each is asked for).
//   text       a launch begins without its text, and little of it is run twice: there is one copy of each
//              part, in the order in which the first turn needs them.
//   never read A and x where alpha = 0; y where beta = 0; vectors without an element of the row or of x.
//              The one at an end is read whole; blocks of memory end with a whole one.
#ifndef ALONG
#define ALONG 2
#endif
#ifndef WIDE
#define WIDE 0
#endif
// Registers for the place of a chunk.
#define OWN (8 * WIDE)
#define GROUP (TEAM * ALONG)
#define SETS (THREADS / GROUP)
#define BLOCK_ROWS (SETS * ROWS)
#define ALL (ALONG * PARTS)
// Columns of a chunk.
#define CHUNK ((U64)SEG * SEG)
// What a row's lanes have room for: with more segments at once than lanes, each segment has its place.
#define PLACES (ALL > 64 ? 256 : 64)
// The threads that halve a row's lanes, and how many such sets of threads a group has.
#define HALVERS (GROUP < 32 ? GROUP : 32)
#define WARPS (GROUP / HALVERS)

// A hint, which reads nothing: y is far away when the sum is there.
STATIC void fetch(const ELEM *p) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

extern "C" __global__ void CLUSTER BOUNDS span(ARGUMENTS) {
  // Two of each, so that a row may begin while the one before is halved.
  __shared__ ACC lanes[2][BLOCK_ROWS][PLACES];
  const U32 part = (U32)GROUP_ID % PARTS;
  const U32 t = LID % TEAM, along = part * ALONG + LID / TEAM % ALONG, set = LID / GROUP;
  const U32 halver = LID % HALVERS, warp = LID % GROUP / HALVERS;
  U32 chunk = 0, chunks = 1, block = (U32)(GROUP_ID / PARTS), blocks = (U32)(GROUPS / PARTS);
  if (WIDE) {
    next_may_begin();
    chunks = (U32)ceil_div(n, CHUNK);
    // What a row of a whole chunk and of the last one takes, in turns and one for the sums.
    const U32 cost = SEG / ALL + 1, rest = (U32)ceil_div(n - (chunks - 1) * CHUNK, ALL * SEG) + 1;
    const U64 all = (U64)cost * blocks;
    // Where there are blocks for all rows at once, the last chunk has as many, too.
    const U64 width = (U64)cost * (chunks - 1) + (blocks == ceil_div(m, BLOCK_ROWS) * chunks ? cost : rest);
    // Chunk c has the blocks from c * all / width on.
    chunk = (U32)(block * width / all);
    U32 from = (U32)(chunk * all / width), end = (U32)((chunk + 1) * all / width);
    if (end <= block) {
      chunk++;
      from = end;
      end = (U32)((chunk + 1) * all / width);
    }
    block -= from;
    blocks = (end < blocks ? end : blocks) - from;
  }
  const ELEM *const a_first = a + a0 + chunk * CHUNK;
  const ELEM *const x_first = x + x0 + (I64)(chunk * CHUNK) * incx;
  const U64 left = n - chunk * CHUNK;
  // alpha = 0: as if there were no columns.
  const U32 cols = acc_is(alpha, (REAL)0) ? 0 : (U32)(left < CHUNK ? left : CHUNK);
  const U32 segments = (cols + SEG - 1) / SEG;
  const U32 turns = segments <= ALL ? 1 : (segments + ALL - 1) / ALL;
  const bool whole = BEYOND(a_first) == 0 && (m == 1 || (rs & (I64)(VEC - 1)) == 0);
  const U32 vectors = whole ? cols : 0; // columns that are read by vectors
  const bool x_chunks = incx == 1 && BEYOND(x_first) == 0;

  PACK av[ROWS][LOADS], xv[LOADS];
  ACC acc[ROWS][SLOTS][VEC];
  zero(acc);
  // `acc` is of the block's rows from `at` on, turn `turn`, and `to` and `next` follow. At first there
  // are none: rows from m on are not written.
  U64 at = m, to = (U64)block * BLOCK_ROWS;
  U32 turn = turns - 1, next = 0, done = 0;
  bool fresh = true; // no x in the registers
  // Before anything is left in another block, that block has begun.
  cluster_arrive();
  bool begun = false;
#pragma unroll 1
  for (;;) {
    // The loads of what follows.
    if (to < m) {
      const U32 from = (next * ALL + along) * SEG + t * VEC;
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        // Rows beyond the last one compute the last one again.
        const U64 i = to + set + r * SETS;
        const ELEM *p = once(a_first + (I64)(i < m ? i : m - 1) * rs + from);
#pragma unroll
        for (U32 k = 0; k < LOADS; k++)
          stream(av[r][k], p + k * TEAM * VEC, from + k * TEAM * VEC < vectors);
      }
      if (fresh && x_chunks) {
        const ELEM *p = once(x_first + from);
#pragma unroll
        for (U32 k = 0; k < LOADS; k++)
          fetch_x(xv[k], p + k * TEAM * VEC, from + k * TEAM * VEC < vectors);
      }
      const U64 i = to + set + t * SETS;
      if (!WIDE && !acc_is(beta, (REAL)0) && along == 0 && t < ROWS && i < m)
        fetch(y + (y0 + (I64)i * incy));
    }

    // The sums of what has been added up.
    if (at < m) {
      // Thread r of a team goes on with row r.
      ACC sum = halve_team<TEAM>(acc[0], t);
#pragma unroll
      for (U32 r = 1; r < ROWS; r++) {
        const ACC other = halve_team<TEAM>(acc[r], t);
        if (t == r) sum = other;
      }
      bool mine = along == 0;
      if (segments > 1) {
        const U32 s = turn * ALL + along;
        ACC(*here)[PLACES] = lanes[done & 1u];
        if (!begun) cluster_wait();
        begun = true;
        if (t < ROWS && s < segments) {
          ACC *lane = &here[t * SETS + set][s % PLACES];
          if (PLACES == LANES) sum = acc_add(s < LANES ? acc_zero() : *lane, sum);
          *(s + PLACES < segments ? lane : first_block(lane)) = sum;
        }
        mine = part == 0 && turn + 1 == turns && warp == done % WARPS;
        if (turn + 1 == turns) {
          // Whoever writes to these lanes again has passed the barrier of the row in between,
          // which the halvers reach after they have read.
          if (PARTS > 1) {
            cluster_arrive();
            cluster_wait();
          } else if (GROUP > 32) {
            __syncthreads();
          } else {
            __syncwarp();
          }
          done++;
        }
        if (mine) {
          const U32 filled = segments < PLACES ? segments : PLACES;
#pragma unroll
          for (U32 r = 0; r < ROWS; r++) {
            ACC v[64 / HALVERS];
#pragma unroll
            for (U32 k = 0; k < 64 / HALVERS; k++) {
              const U32 l = k * HALVERS + halver;
              v[k] = PLACES == LANES && l < filled ? here[r * SETS + set][l] : acc_zero();
#pragma unroll
              for (U32 q = 0; q < PLACES && PLACES > LANES; q += LANES)
                if (q + l < filled) v[k] = acc_add(v[k], here[r * SETS + set][q + l]);
            }
            halve(v);
            // Upper lanes that are all absent would add +0 to what is never -0.
            U32 o = turns > 1 || ALL > HALVERS ? HALVERS / 2 : ALL / 2;
#pragma unroll 1
            for (; o > 0; o /= 2) v[0] = acc_add(v[0], acc_xor(v[0], o));
            if (halver == r) sum = v[0];
          }
        }
      }
      const U64 i = at + set + halver * SETS;
      if (mine && halver < ROWS && i < m) {
        if (!WIDE) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
        else work[i * chunks + chunk] = acc_add(acc_zero(), sum); // a single segment's may be -0
      }
    }

    at = to;
    turn = next;
    if (at >= m) break;
    if (++next == turns) {
      next = 0;
      to += (U64)blocks * BLOCK_ROWS;
    }

    // The products. Where x is not read by vectors, it comes as late as this.
    const U32 from = (turn * ALL + along) * SEG + t * VEC;
    zero(acc);
    if (fresh && !x_chunks)
#pragma unroll
      for (U32 k = 0; k < LOADS; k++)
        if (from + k * TEAM * VEC < vectors)
#pragma unroll
          for (U32 c = 0; c < VEC; c++)
            if (VEC == 1 || from + k * TEAM * VEC + c < cols)
              xv[k].e[c] = x_first[(I64)(from + k * TEAM * VEC + c) * incx];
    fresh = turns > 1;
    if ((vectors & (VEC - 1u)) != 0 && turn + 1 == turns) end_row(av, xv, from, cols);
    add_products(acc, av, xv, from, vectors, cols, conj);
    if (!whole) {
      const ELEM *row[ROWS];
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        const U64 i = at + set + r * SETS;
        row[r] = a_first + (I64)(i < m ? i : m - 1) * rs;
      }
#pragma unroll 1
      for (U32 round = from; round < from + SEG; round += 64) {
        const ELEM *q = x_first + (I64)round * incx;
#pragma unroll
        for (U32 k = 0; k < SLOTS; k++, q += (I64)(TEAM * VEC - VEC) * incx)
#pragma unroll
          for (U32 c = 0; c < VEC; c++, q += incx)
            if (round + k * TEAM * VEC + c < cols)
#pragma unroll
              for (U32 r = 0; r < ROWS; r++)
                acc[r][k][c] = acc_fma(conj_if(widen(row[r][round + k * TEAM * VEC + c]), conj),
                                       widen(*q), acc[r][k][c]);
      }
    }
  }
}

#if WIDE
// The last level of rows of several chunks: 32 threads have a row.
KERNEL(128) span_chunks(ARGUMENTS) {
  const U64 i = GROUP_ID * 4 + LID / 32;
  wait_for_previous();
  if (i >= m) return;
  const U32 chunks = (U32)ceil_div(n, CHUNK);
  const ACC sum = warp_sum(work + i * chunks, acc_is(alpha, (REAL)0) ? 0 : chunks);
  if (LID % 32 == 0) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
}
#endif
