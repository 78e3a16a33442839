// gemm-row-mma, and with COLUMNS = 1 gemm-col-mma: Y = alpha A X + beta Y, f64, one matrix. Products by tensor
// cores: an mma with four columns of A, from +0, is the chain of fma of one lane for 8 rows and 16 columns of X.
//
//   an mma     takes 16 columns of X as its rows and 8 rows of A as its columns: what a warp keeps is its larger
//              operand, and each element of A is one register of one thread.
//   warps      WARPS_K warps share the lanes of a segment, for each 16 columns of a panel of TILE_RHS columns of X. By
//              columns warp w has lanes w, w + WARPS_K, ...; by rows pairs of lanes, 2 w and 2 w + 1 and every
//              2 WARPS_K further on. By rows WARPS_M = 2 sets of warps have 8 rows of a tile of 16 each.
//   threads    Thread t reads columns l + 64 (t % 4) of A for each lane l of its warp, of rows t / 4 and t / 4 + 8 (by
//              columns 2 (t / 4) and the one behind it): 16 bytes at a time, of two lanes or of two rows.
//   lanes      A warp's lanes come in bit-reversed order, so that a stack of partial sums replaces the lanes.
//   X          A warp holds its part of SEGMENTS segments in registers. A is read once for TILE_RHS columns.
//   stages     A comes by cp.async into a ring of STAGES tiles of 16 rows of one segment.
//   sums       of the warps meet in shared memory. They are added up one stage later: a stage has one barrier.
//   parts      A super-segment (256 segments) has `parts` parts, a power of two: part p has segments p, p + parts, ...,
//              at most SEGMENTS of them, which are whole subtrees of the second level.
//   tasks      A task is a tile of rows of one part. Those of a panel are dealt to its blocks, part by part, so that
//              each block has equally many stages.
//   the end    Past the last column +0 * -0 takes the place of the products, which leaves any sum as it is.
//              Rows and columns of X beyond the last are computed and not stored.
//   never read A and X where alpha = 0; Y where beta = 0; anything outside of a row's n elements.
#ifndef COLUMNS
#define COLUMNS 0
#define ENTRY gemm_row_mma
#endif
#ifndef TILE_RHS
#define TILE_RHS 16
#endif
#ifndef WARPS_K
#define WARPS_K 8
#endif
#ifndef WARPS_M
#define WARPS_M 1
#endif
#ifndef SEGMENTS
#define SEGMENTS 4
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#define THREADS (2 * TILE_RHS * WARPS_K * WARPS_M)
#define TILE_M 16
#define TILE (TILE_M * TILE_RHS)
// Lanes that a warp sums at a time, apart.
#define APART (COLUMNS ? 1 : 2)
// Sums of an output that meet in shared memory, and outputs of a thread that adds them.
#define PARTIALS (APART * WARPS_K)
#define OUTPUTS (WARPS_K * WARPS_M >= 8 ? 1 : 8 / (WARPS_K * WARPS_M))
// Lanes, or pairs of them, that a warp visits: a power of two.
#define VISITS (64 / PARTIALS)
#define LEVELS (VISITS >= 32 ? 5 : VISITS >= 16 ? 4 : VISITS >= 8 ? 3 : VISITS >= 4 ? 2 : VISITS >= 2 ? 1 : 0)
// A stage is cut into the four quarters of the segment. The elements that 8 threads read at a time, of two rows and
// four quarters (by columns two pairs of rows), lie in different banks, by 16 bytes each.
#if COLUMNS
#define QUARTER (64 * TILE_M + 4)
#define STAGE (4 * QUARTER)
#define AT(row, column) ((column) / 64 * QUARTER + (column) % 64 * TILE_M + (row))
#else
#define QUARTER (64 + 4)
#define ROW_PITCH (4 * QUARTER + 2)
#define STAGE (TILE_M * ROW_PITCH)
#define AT(row, column) ((row) * ROW_PITCH + (column) / 64 * QUARTER + (column) % 64)
#endif
// Copies of 16 bytes of a stage.
#define COPIES (TILE_M * SEG / 2)
#define BUFFER (PARTIALS * TILE)
#define MEMBER __device__ __forceinline__

// Super-segments of a row, and parts of each: as in the plan.
STATIC U32 super_segments_of(const U64 n) { return n == 0 ? 1 : (U32)ceil_div(n, (U64)SEG * SEG); }
STATIC U32 parts_of(const U64 n) {
  const U32 segments = (U32)(n > (U64)SEG * SEG ? SEG : ceil_div(n, SEG));
  U32 parts = 1;
  while (parts * SEGMENTS < segments) parts *= 2;
  return parts;
}

// `v` of `bits` bits, the last one first.
STATIC U32 reversed(const U32 v, const U32 bits) { return bits == 0 ? 0 : __brev(v) >> (32 - bits); }

// What a panel is cut into: a block's tasks end before stage `last`.
struct Cut {
  U32 tiles, segments, log_parts, last;

  // `part` counts over the super-segments. Its first segment; the next one is 2^log_parts further on.
  MEMBER U32 segment(const U32 part) const {
    return (part >> log_parts) * SEG + (part & ((1u << log_parts) - 1));
  }
  // Segments of its super-segment.
  MEMBER U32 of_super_segment(const U32 part) const {
    const U32 left = segments - (part >> log_parts) * SEG;
    return left < SEG ? left : SEG;
  }
  // Segments that it has.
  MEMBER U32 count(const U32 part) const {
    const U32 all = of_super_segment(part), parts = 1u << log_parts;
    return (all >> log_parts) + ((part & (parts - 1)) < (all & (parts - 1)) ? 1 : 0);
  }
  // Stages of the parts before it.
  MEMBER U32 before(const U32 part) const {
    const U32 all = of_super_segment(part), parts = 1u << log_parts, p = part & (parts - 1), more = all & (parts - 1);
    return ((part >> log_parts) * SEG + p * (all >> log_parts) + (p < more ? p : more)) * tiles;
  }
};

// The tasks of a block in turn: tiles of rows of one part, then those of the next.
struct Walk {
  U32 part, count; // segments that it has
  U32 tile, end;   // the end of the block's tiles of this part

  // The tasks of the first part from this one on that has some.
  MEMBER void enter(const Cut &cut) {
    tile = end = 0;
    for (; cut.segment(part) < cut.segments || (part & ((1u << cut.log_parts) - 1)) != 0; part++) {
      count = cut.count(part);
      if (count == 0) continue;
      const U32 before = cut.before(part);
      if (before >= cut.last) return;
      const U32 left = (cut.last - before - 1) / count + 1;
      end = left < cut.tiles ? left : cut.tiles;
      return;
    }
  }
  MEMBER void next(const Cut &cut) {
    part++;
    enter(cut);
  }
  // To the first task from stage `first` on.
  MEMBER void begin(const U32 first, const Cut &cut) {
    part = (U32)quotient(first, (U64)SEG * cut.tiles) << cut.log_parts;
    for (enter(cut); end > 0; next(cut)) {
      const U32 before = cut.before(part), from = first <= before ? 0 : (first - before - 1) / count + 1;
      if (from >= cut.tiles) continue;
      tile = from < end ? from : end;
      return;
    }
  }
};

// Copies `there` bytes of 16 (of 8), and zeros behind them.
STATIC void copy_pair(ELEM *to, const ELEM *from, const U32 there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#if COLUMNS
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"((U32)__cvta_generic_to_shared(to)),
               "l"(from), "r"(there)
               : "memory");
#else
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"((U32)__cvta_generic_to_shared(to)),
               "l"(from), "r"(there)
               : "memory");
#endif
#endif
}
STATIC void copy_one(ELEM *to, const ELEM *from, const bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((U32)__cvta_generic_to_shared(to)), "l"(from),
               "r"(there ? 8 : 0)
               : "memory");
#endif
}
STATIC void end_of_stage() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for this thread's copies of the oldest stage; STAGES - 2 younger ones are under way.
STATIC void wait_for_stage() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
#endif
}

struct __align__(16) Pair {
  ACC e[2];
};

// A warp's share of the lanes of 8 rows of a stage (by columns of 16): the sums of its even lanes and of its odd ones
// (of even rows and of odd ones). `at` is where the thread's first pair lies.
STATIC void stage_sums(ACC (&sum)[2][4], const ACC *at, const ACC (&xv)[VISITS][APART][2]) {
  ACC waiting[LEVELS > 0 ? LEVELS : 1][2][4];
#pragma unroll
  for (U32 v = 0; v < VISITS; v++) {
    const Pair two = *(const Pair *)(at + PARTIALS * reversed(v, LEVELS) * (COLUMNS ? TILE_M : 1));
#pragma unroll
    for (U32 k = 0; k < 2; k++) lane(sum[k], xv[v][k % APART], two.e[k]);
    // The visits so far are this many subtrees: the last joins those of its own size.
#pragma unroll
    for (U32 level = 0; level < LEVELS; level++)
#pragma unroll
      for (U32 k = 0; k < 2; k++)
#pragma unroll
        for (U32 i = 0; i < 4; i++) {
          if ((v & ((2u << level) - 1)) == (2u << level) - 1) sum[k][i] = acc_add(waiting[level][k][i], sum[k][i]);
          else if ((v & ((1u << level) - 1)) == (1u << level) - 1) waiting[level][k][i] = sum[k][i];
        }
  }
}

// Where a thread's sums of two rows and one column of X meet those of the other warps: of half `half` of the tile's
// rows (by columns of odd rows), and of column t / 4 or the eighth behind it. By columns halves are moved apart so that
// 16 neighbouring rows lie in different banks.
STATIC U32 place_of_pair(const U32 t, const U32 half, const U32 eighth) {
  return half * 128 + eighth * 64 + 2 * (COLUMNS ? t ^ (half * 4) : t);
}
// Row, column and place of output e of a tile. By columns neighbours are neighbouring rows, by rows those of 8 rows and
// then columns.
STATIC U32 row_of(const U32 e) { return COLUMNS ? e % TILE_M : e / 128 % 2 * 8 + e % 8; }
STATIC U32 column_of(const U32 e) { return COLUMNS ? e / TILE_M : e / 256 * 16 + e / 8 % 16; }
STATIC U32 place_of(const U32 e) {
  if (!COLUMNS) return e;
  const U32 row = row_of(e), c = column_of(e);
  return c / 16 * 256 + place_of_pair(c % 8 * 4 + row / 4, row % 2, c / 8 % 2) + row / 2 % 2;
}

#define OUTPUT_OF(i, c) (COLUMNS ? (c) * m + (i) : (i) * rhs + (c))

STATIC void tiles_of_block(GEMM_ARGUMENTS, ACC *shared) {
  ACC *const ring = shared, *const meet = shared + STAGES * STAGE;
  const U32 t = LID % 32, w = LID / 32 % WARPS_K, wm = LID / 32 / WARPS_K % WARPS_M;
  const U32 set = LID / 32 / (WARPS_K * WARPS_M); // of 16 columns of X
  const U32 panels = (U32)ceil_div(rhs, TILE_RHS), c0 = (U32)GROUP_ID % panels * TILE_RHS;
  const U32 parts = parts_of(n), all_parts = parts * super_segments_of(n);
  const U32 blocks = (U32)GROUPS / panels, block = (U32)GROUP_ID / panels;
  // In shared memory, since registers are few.
  Cut &cut = *(Cut *)(meet + 2 * BUFFER);
  const U64 stages = ceil_div(m, TILE_M) * ceil_div(n, SEG);
  if (LID == 0) {
    cut.tiles = (U32)ceil_div(m, TILE_M), cut.segments = (U32)ceil_div(n, SEG), cut.log_parts = 31 - __clz(parts);
    cut.last = (U32)quotient((block + 1) * stages, blocks);
  }
  __syncthreads();
  Walk here;
  here.begin((U32)quotient(block * stages, blocks), cut);
  Walk ahead = here;

  const bool pairs = (ADDRESS(a + a0) & 15) == 0 && ((COLUMNS ? cs : rs) & 1) == 0;
  // What is copied next: a segment of a tile, to a stage of the ring.
  U32 next_segment = 0;
  const auto copy_stage = [&](const U32 to_stage) {
    if (ahead.tile < ahead.end) {
      const U64 column = (U64)(cut.segment(ahead.part) + (next_segment << cut.log_parts)) * SEG, row = (U64)ahead.tile * TILE_M;
      const U32 left = n - column < SEG ? (U32)(n - column) : SEG, rows = m - row < TILE_M ? (U32)(m - row) : TILE_M;
      const U32 along = COLUMNS ? LID % 8 * 2 : LID % 128 * 2, across = COLUMNS ? LID / 8 : LID / 128;
      const I64 step = COLUMNS ? cs : rs;
      const ELEM *p = a + a0 + (COLUMNS ? (I64)(row + along) + (I64)(column + across) * cs
                                        : (I64)(row + across) * rs + (I64)(column + along));
      ELEM *const to = ring + to_stage * STAGE + (COLUMNS ? AT(along, across) : AT(across, along));
      if (pairs && left == SEG && rows == TILE_M) {
#pragma unroll
        for (U32 k = 0; k < COPIES / THREADS; k++) {
          const U32 at = k * (COLUMNS ? THREADS / 8 : THREADS / 128);
          copy_pair(to + (COLUMNS ? AT(0, at) : AT(at, 0)), p + (I64)at * step, 16);
        }
      } else {
#pragma unroll 1
        for (U32 k = LID; k < COPIES; k += THREADS) {
          const U32 r = COLUMNS ? along : k / 128, j = COLUMNS ? k / 8 : along;
          const U32 end = COLUMNS ? rows : left, of_it = end > along ? end - along : 0;
          const U32 there = (COLUMNS ? j < left : r < rows) ? of_it : 0;
          ELEM *const place = ring + to_stage * STAGE + AT(r, j);
          if (pairs) {
            copy_pair(place, there > 0 ? p : a, there > 1 ? 16 : there * 8);
          } else {
            copy_one(place, there > 0 ? p : a, there > 0);
            copy_one(place + 1, there > 1 ? p + 1 : a, there > 1);
          }
          p += (I64)(COLUMNS ? THREADS / 8 : THREADS / 128) * step;
        }
      }
      if (++next_segment == ahead.count) {
        next_segment = 0;
        if (++ahead.tile == ahead.end) ahead.next(cut);
      }
    }
    end_of_stage();
  };
#pragma unroll 1
  for (U32 s = 0; s < STAGES - 1; s++) copy_stage(s);

  // The thread's first pair of a stage.
#if COLUMNS
  const ACC *const mine = ring + t % 4 * QUARTER + w * TILE_M + t / 4 * 2;
#else
  const ACC *const mine = ring + (wm * 8 + t / 4) * ROW_PITCH + t % 4 * QUARTER + 2 * w;
#endif
  U32 stage = 0, turn = 0; // and which of two buffers the sums go to
  ACC sums[OUTPUTS][SEGMENTS]; // of the segments of a task
  // Adds up what the warps had for the segment before.
  const auto gather = [&](const U32 k) {
#pragma unroll
    for (U32 o = 0; o < OUTPUTS; o++) {
      const U32 e = o * THREADS + LID;
      if (THREADS > TILE && e >= TILE) break;
      ACC v[PARTIALS];
#pragma unroll
      for (U32 r = 0; r < PARTIALS; r++) v[r] = meet[BUFFER - turn + r * TILE + place_of(e)];
      halve(v);
#pragma unroll
      for (U32 i = 0; i < SEGMENTS; i++)
        if (i == k) sums[o][i] = v[0];
    }
  };
  const auto write = [&](const Walk &of, const U32 tile) {
#pragma unroll
    for (U32 o = 0; o < OUTPUTS; o++) {
      const U32 e = o * THREADS + LID;
      if (THREADS > TILE && e >= TILE) break;
      ACC v[SEGMENTS];
#pragma unroll
      for (U32 i = 0; i < SEGMENTS; i++) v[i] = sums[o][i];
      if (n > SEG) {
        // Lanes of the second level begin at +0.
#pragma unroll
        for (U32 i = 0; i < SEGMENTS; i++) v[i] = i < of.count ? acc_add(acc_zero(), v[i]) : acc_zero();
        // A part has 64 / parts of them: further segments are added to theirs.
#pragma unroll
        for (U32 lanes = 1; lanes < SEGMENTS; lanes *= 2)
          if (lanes * parts == LANES)
#pragma unroll
            for (U32 i = 1; i < SEGMENTS; i++)
              if (i >= lanes) {
                v[i % lanes] = acc_add(v[i % lanes], v[i]);
                v[i] = acc_zero();
              }
        halve(v);
      }
      const U64 i = (U64)tile * TILE_M + row_of(e), c = c0 + column_of(e);
      if (i >= m || c >= rhs) continue;
      if (all_parts == 1) finish(y + y0 + (I64)i * yrs + (I64)c * ycs, alpha, v[0], beta);
      else workspace[(U64)of.part * (m * rhs) + OUTPUT_OF(i, c)] = v[0];
    }
  };

#pragma unroll 1
  while (here.tile < here.end) {
    ACC xv[SEGMENTS][VISITS][APART][2];
#pragma unroll
    for (U32 i = 0; i < SEGMENTS; i++) {
      const U64 column = (U64)(cut.segment(here.part) + (i << cut.log_parts)) * SEG;
      const U32 left = i >= here.count ? 0 : n - column < SEG ? (U32)(n - column) : SEG;
#pragma unroll
      for (U32 h = 0; h < 2; h++) {
        const U64 c = c0 + set * 16 + h * 8 + t / 4;
        const U32 end = c < rhs ? left : 0;
        const U32 j = t % 4 * 64 + APART * w;
        const ELEM *from = x + x0 + (I64)(column + j) * xrs + (I64)c * xcs;
#pragma unroll
        for (U32 v = 0; v < VISITS; v++) {
#pragma unroll
          for (U32 k = 0; k < APART; k++) {
            ACC &to = xv[i][reversed(v, LEVELS)][k][h];
            to = (ACC)-0.0;
            if (j + PARTIALS * v + k < end) to = from[(I64)k * xrs];
          }
          from = pinned(from + PARTIALS * xrs);
        }
      }
    }
    const U32 begin = here.tile;
#pragma unroll 1
    for (; here.tile < here.end; here.tile++) {
#pragma unroll
      for (U32 i = 0; i < SEGMENTS; i++) {
        if (i >= here.count) break;
        wait_for_stage();
        // This stage is there, the sums of the one before are, and the stage before that was read.
        __syncthreads();
        copy_stage(stage == 0 ? STAGES - 1 : stage - 1);
        if (i > 0) {
          gather(i - 1);
        } else if (here.tile > begin) {
          gather(here.count - 1);
          write(here, here.tile - 1);
        }
        ACC *const to = meet + turn + APART * w * TILE + set * 256;
#pragma unroll
        for (U32 q = 0; q < (COLUMNS ? 1 : 2 / WARPS_M); q++) {
          ACC sum[2][4];
          stage_sums(sum, mine + stage * STAGE + (COLUMNS ? 0 : AT(8 * q, 0)), xv[i]);
#pragma unroll
          for (U32 k = 0; k < 2; k++)
#pragma unroll
            for (U32 h = 0; h < 2; h++) {
              Pair out;
              out.e[0] = sum[k][2 * h], out.e[1] = sum[k][2 * h + 1];
              const U32 half = COLUMNS ? k : WARPS_M == 2 ? wm : q;
              *(Pair *)(to + (COLUMNS ? 0 : k * TILE) + place_of_pair(t, half, h)) = out;
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        turn = BUFFER - turn;
      }
    }
    // The last task of a part.
    __syncthreads();
    gather(here.count - 1);
    write(here, here.tile - 1);
    here.next(cut);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) ENTRY(GEMM_ARGUMENTS) {
  extern __shared__ uint4 shared[];
  const U32 all_parts = parts_of(n) * super_segments_of(n);
  begin(all_parts > 1);
  if (acc_is(alpha, (REAL)0) || n == 0) {
    // Of several parts, the last launch writes Y.
    if (all_parts > 1) return;
    for (U64 o = GROUP_ID * THREADS + LID; o < m * rhs; o += GROUPS * THREADS)
      finish(y + y0 + (I64)(o / rhs) * yrs + (I64)(o % rhs) * ycs, alpha, acc_zero(), beta);
    return;
  }
  tiles_of_block(m, n, rhs, batch, a, a0, rs, cs, ab, x, x0, xrs, xcs, xb, y, y0, yrs, ycs, yb, alpha, beta, conj,
                 workspace, counters, (ACC *)shared);
}

// Where Y has output o of a part.
#if COLUMNS
#define OUTPUT_AT(o) ((I64)((o) % m) * yrs + (I64)((o) / m) * ycs)
#else
#define OUTPUT_AT(o) ((I64)((o) / rhs) * yrs + (I64)((o) % rhs) * ycs)
#endif
