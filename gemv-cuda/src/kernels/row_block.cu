// row-block: y = alpha A x + beta y, row-major. A block, or a cluster of CLUSTER_K blocks, has a row:
// its sub-warps take the segments of the row side by side, and the next row is loaded meanwhile.
//
//   rows       SUBWARP * WARPS_K threads share ROWS rows. A block has SETS such sets of threads and
//              takes BLOCK_ROWS neighbouring rows at a time; set g has rows g, g + SETS, ... of them.
//              Persistent blocks: block b takes row blocks b, b + GROUPS, ...
//   cluster    CLUSTER_K > 1: a cluster takes the place of the block, and the block of rank p has its
//              share of the segments. For few long rows, without a second launch.
//   lanes      thread t of a sub-warp owns, of each 64 columns, the vectors t, t + SUBWARP, ...: all
//              loads of its segment are in flight before the first is used.
//   segments   sub-warp k of all AT_ONCE has segments k, k + AT_ONCE, ..., one an iteration. Once the
//              products of an iteration are added, the loads of the next one are issued, so that they
//              are in flight during the halving. Where one iteration is enough, x stays in registers
//              from row to row.
//   sums       lane l of the second level belongs to one sub-warp where AT_ONCE divides 64; with more
//              sub-warps, the four sums of a lane are added at the end. The last sum of a lane goes to
//              the cluster's first block. There one warp of the set (or all of a smaller set) halves
//              the lanes of a finished row while the others go on. A single segment's sum is used as
//              it is.
//   aligned    rows that begin where vectors do are read by vectors. With other rows every element is a
//              load of its own, in a short loop: right, but slow where VEC > 1. Past the end of a row,
//              +0 * -0 takes the place of the elements, which leaves any sum as it is (a complex
//              number has no such factors: there, each element has a condition).
//   early      behind a product of up to 32 MiB the next launch may be resident from the start on. A product
//              of up to 32 MiB prefetches its first rows before it waits for the launch ahead. With longer
//              ones both cost more than they spare: blocks crowd where those ahead end first.
//   code size  the instruction cache is cold at launch, so each phase exists once, in the order of use.
//   long rows  LONG_ROWS = 1 is row-block-long; see row_block_long.cu.
//   processes  PROCESSES > 1 is row-block-cyclic; see row_block_cyclic.cu.
//   never read A and x where alpha = 0; y where beta = 0; vectors without an element of the row or of x.
//              The one at an end is read whole; allocations end with a whole one.
#ifndef WARPS_K
#define WARPS_K 2
#endif
#ifndef LONG_ROWS
#define LONG_ROWS 0
#endif
#ifndef ENTRY
#define ENTRY row_block
#endif
#ifndef PROCESSES
#define PROCESSES 1
#endif
// Registers of a thread for the place of a super-segment.
#define EXTRA_REGISTERS (8 * LONG_ROWS)
#define ROW_THREADS (SUBWARP * WARPS_K)
#define SETS (THREADS / ROW_THREADS)
#define BLOCK_ROWS (SETS * ROWS)
#define AT_ONCE (WARPS_K * CLUSTER_K)
// Columns of a super-segment.
#define SUPER_SEGMENT ((U64)SEG * SEG / PROCESSES)
// Lanes of the second level that the columns have.
#define OWN_LANES (LANES / PROCESSES)
// Sums kept for a row: one a lane, or one a segment where more segments than lanes come at once.
#define PLACES (AT_ONCE > OWN_LANES ? SEG / PROCESSES : OWN_LANES)
// Where x has the entry of column j.
#define X_PLACE(j) ((j) + (PROCESSES - 1) * ((j) & ~(SEG - 1u)))
// The threads that halve a row's lanes, and how many such warps a set has.
#define HALVERS (ROW_THREADS < 32 ? ROW_THREADS : 32)
#define SET_WARPS (ROW_THREADS / HALVERS)

// A hint that reads nothing: it brings a line into the L2 cache, which the launch ahead may still change there.
STATIC void prefetch_l2(const void *p) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

// A value of which the compiler knows nothing.
STATIC U32 opaque(U32 v) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(v));
#endif
  return v;
}

// Prefetches what a block reads first. Opaque, or its values would be the kernel's as well, and take registers all along.
STATIC void prefetch_first(const A_ELEM *a, const I64 rs, const U64 m, const U64 n) {
  const U32 lid = opaque(LID), group = opaque((U32)GROUP_ID);
  const U64 first = (U64)(group / CLUSTER_K) * BLOCK_ROWS + lid / ROW_THREADS;
  const U32 from = (group % CLUSTER_K * WARPS_K + lid / SUBWARP % WARPS_K) * SEG + lid % SUBWARP * VEC;
#pragma unroll 1
  for (U32 r = 0; r < ROWS; r++)
#pragma unroll
    for (U32 k = 0; k < LOADS; k++) {
      const U32 j = from + k * SUBWARP * VEC;
      if (first + r * SETS < m && j < n) prefetch_l2(a + ((I64)(first + r * SETS) * rs + j));
    }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !LONG_ROWS && PROCESSES == 1
#define SHORT_PRODUCT (m * n <= (32u << 20) / A_ELEM_BYTES)
#else
#define SHORT_PRODUCT false
#endif

extern "C" __global__ void CLUSTER_DIMS LAUNCH_BOUNDS ENTRY(ARGUMENTS) {
  const bool is_short = SHORT_PRODUCT;
  if (is_short && !acc_is(alpha, (REAL)0)) prefetch_first(a + a0, rs, m, n);
  begin(is_short || (LONG_ROWS && PROCESSES == 1));
  // Double-buffered: a row may begin while the one before is halved.
  __shared__ ACC lanes[2][BLOCK_ROWS][PLACES];
  const U32 rank = (U32)GROUP_ID % CLUSTER_K;
  const U32 t = LID % SUBWARP, segment_k = rank * WARPS_K + LID / SUBWARP % WARPS_K, set = LID / ROW_THREADS;
  const U32 halver = LID % HALVERS, set_warp = LID % ROW_THREADS / HALVERS;
  U32 super_segment = 0, super_segments = 1;
  U32 block = (U32)(GROUP_ID / CLUSTER_K), blocks = (U32)(GROUPS / CLUSTER_K);
  if (LONG_ROWS) {
    super_segments = (U32)ceil_div(n, SUPER_SEGMENT);
    // The cost of a row of a whole super-segment and of the last one: iterations, and one for the sums.
    const U32 cost = SEG / PROCESSES / AT_ONCE + 1;
    const U32 rest = (U32)ceil_div(n - (super_segments - 1) * SUPER_SEGMENT, AT_ONCE * SEG) + 1;
    const U64 all = (U64)cost * blocks;
    // Where there are blocks for all rows at once, the last super-segment has as many as the others.
    const U64 width = (U64)cost * (super_segments - 1) +
                      (blocks == ceil_div(m, BLOCK_ROWS) * super_segments ? cost : rest);
    // Super-segment c has the blocks from c * all / width on.
    super_segment = (U32)(block * width / all);
    U32 from = (U32)(super_segment * all / width), end = (U32)((super_segment + 1) * all / width);
    if (end <= block) {
      super_segment++;
      from = end;
      end = (U32)((super_segment + 1) * all / width);
    }
    block -= from;
    blocks = (end < blocks ? end : blocks) - from;
  }
  const A_ELEM *const a_first = a + a0 + super_segment * SUPER_SEGMENT;
  const ELEM *const x_first = x + x0 + (I64)(super_segment * SUPER_SEGMENT * PROCESSES) * incx;
  const U64 left = n - super_segment * SUPER_SEGMENT;
  // alpha = 0: as if there were no columns.
  const U32 cols = acc_is(alpha, (REAL)0) ? 0 : (U32)(left < SUPER_SEGMENT ? left : SUPER_SEGMENT);
  const U32 segments = (cols + SEG - 1) / SEG;
  const U32 iterations = segments <= AT_ONCE ? 1 : (segments + AT_ONCE - 1) / AT_ONCE;
  const bool whole = A_BEYOND(a_first) == 0 && (m == 1 || (rs & (I64)(VEC - 1)) == 0);
  const U32 vectors = whole ? cols : 0; // columns read by vectors
  const bool x_vectors = incx == 1 && BEYOND(x_first) == 0;

  PACK av[ROWS][LOADS] AND_X_PACK xv[LOADS];
  ACC acc[ROWS][SLOTS][VEC];
  zero(acc);
  // `acc` belongs to the block's rows from `at` on, in this iteration; `to` and `next` follow. At first
  // there are no such rows: those from m on are not written.
  U64 at = m, to = (U64)block * BLOCK_ROWS;
  U32 iteration = iterations - 1, next = 0, done = 0;
  bool fresh = true; // x is not in the registers yet
  // No block writes to another one's shared memory before that one has begun.
  cluster_arrive();
  bool begun = false;
#pragma unroll 1
  for (;;) {
    // The loads of the next iteration or row.
    if (to < m) {
      const U32 from = (next * AT_ONCE + segment_k) * SEG + t * VEC;
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        // Rows beyond the last one compute the last one again.
        const U64 i = to + set + r * SETS;
        const A_ELEM *p = pinned(a_first + (I64)(i < m ? i : m - 1) * rs + from);
#pragma unroll
        for (U32 k = 0; k < LOADS; k++)
          load_a(av[r][k], p + k * SUBWARP * VEC, from + k * SUBWARP * VEC < vectors);
      }
      if (fresh && x_vectors) {
        const ELEM *p = pinned(x_first + X_PLACE(from));
#pragma unroll
        for (U32 k = 0; k < LOADS; k++)
          load_x(xv[k], p + k * SUBWARP * VEC, from + k * SUBWARP * VEC < vectors);
      }
      const U64 i = to + set + t * SETS;
      if (!LONG_ROWS && !acc_is(beta, (REAL)0) && segment_k == 0 && t < ROWS && i < m)
        prefetch_l2(y + (y0 + (I64)i * incy));
    }

    // The sums of the products before.
    if (at < m) {
      // Thread r of a sub-warp goes on with row r.
      ACC sum = halve_subwarp<SUBWARP>(acc[0], t);
#pragma unroll
      for (U32 r = 1; r < ROWS; r++) {
        const ACC other = halve_subwarp<SUBWARP>(acc[r], t);
        if (t == r) sum = other;
      }
      bool mine = segment_k == 0;
      if (segments > 1) {
        const U32 s = iteration * AT_ONCE + segment_k;
        ACC(*here)[PLACES] = lanes[done & 1u];
        if (!begun) cluster_wait();
        begun = true;
        if (t < ROWS && s < segments) {
          ACC *lane = &here[t * SETS + set][s % PLACES];
          if (PLACES == OWN_LANES) sum = acc_add(s < OWN_LANES ? acc_zero() : *lane, sum);
          *(s + PLACES < segments ? lane : leader_smem(lane)) = sum;
        }
        mine = rank == 0 && iteration + 1 == iterations && set_warp == done % SET_WARPS;
        if (iteration + 1 == iterations) {
          // Who writes to these lanes again has passed the barrier of the row in between, which the
          // halvers reach after they have read.
          if (CLUSTER_K > 1) {
            cluster_arrive();
            cluster_wait();
          } else if (ROW_THREADS > 32) {
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
              v[k] = PLACES == OWN_LANES && l < filled ? here[r * SETS + set][l] : acc_zero();
#pragma unroll
              for (U32 q = 0; q < PLACES && PLACES > OWN_LANES; q += OWN_LANES)
                if (q + l < filled && l < OWN_LANES) v[k] = acc_add(v[k], here[r * SETS + set][q + l]);
            }
            halve(v);
            // Upper lanes that are all absent would add +0 to what is never -0.
            U32 o = iterations > 1 || AT_ONCE > HALVERS ? HALVERS / 2 : AT_ONCE / 2;
#pragma unroll 1
            for (; o > 0; o /= 2) v[0] = acc_add(v[0], acc_xor(v[0], o));
            if (halver == r) sum = v[0];
          }
        }
      }
      const U64 i = at + set + halver * SETS;
      if (mine && halver < ROWS && i < m) {
        if (!LONG_ROWS && PROCESSES == 1) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
        // A single segment's sum may be -0.
        else if (PROCESSES == 1) workspace[i * super_segments + super_segment] = acc_add(acc_zero(), sum);
        else y[y0 + (I64)i * incy + super_segment] = narrow(acc_add(acc_zero(), sum));
      }
    }

    at = to;
    iteration = next;
    if (at >= m) break;
    if (++next == iterations) {
      next = 0;
      to += (U64)blocks * BLOCK_ROWS;
    }

    // The products. Where x is not read by vectors, it is loaded here.
    const U32 from = (iteration * AT_ONCE + segment_k) * SEG + t * VEC;
    zero(acc);
    if (fresh && !x_vectors)
#pragma unroll
      for (U32 k = 0; k < LOADS; k++)
        if (from + k * SUBWARP * VEC < vectors)
#pragma unroll
          for (U32 c = 0; c < VEC; c++)
            if (VEC == 1 || from + k * SUBWARP * VEC + c < cols)
              xv[k].e[c] = x_first[(I64)X_PLACE(from + k * SUBWARP * VEC + c) * incx];
    fresh = iterations > 1;
    if ((vectors & (VEC - 1u)) != 0 && iteration + 1 == iterations) end_row(av, xv, from, cols);
    add_products(acc, av, xv, from, vectors, cols, conj);
    if (!whole) {
      const A_ELEM *row[ROWS];
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        const U64 i = at + set + r * SETS;
        row[r] = a_first + (I64)(i < m ? i : m - 1) * rs;
      }
#pragma unroll 1
      for (U32 round = from; round < from + SEG; round += 64) {
        const ELEM *q = x_first + (I64)X_PLACE(round) * incx;
#pragma unroll
        for (U32 k = 0; k < SLOTS; k++, q += (I64)(SUBWARP * VEC - VEC) * incx)
#pragma unroll
          for (U32 c = 0; c < VEC; c++, q += incx)
            if (round + k * SUBWARP * VEC + c < cols)
#pragma unroll
              for (U32 r = 0; r < ROWS; r++)
                acc[r][k][c] = acc_fma(conj_if(a_widen(row[r][round + k * SUBWARP * VEC + c]), conj),
                                       widen(*q), acc[r][k][c]);
      }
    }
  }
}

#if LONG_ROWS && PROCESSES == 1
// The last level of rows of several super-segments: a warp has a row.
KERNEL(128) row_block_long_reduce(ARGUMENTS) {
  const U64 i = GROUP_ID * 4 + LID / 32;
  begin(false);
  if (i >= m) return;
  const U32 super_segments = (U32)ceil_div(n, SUPER_SEGMENT);
  const ACC sum = warp_sum(workspace + i * super_segments, acc_is(alpha, (REAL)0) ? 0 : super_segments);
  if (LID % 32 == 0) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
}
#endif
