// gemm-row-lanes: Y = alpha A X + beta Y, row-major, one matrix of 16-bit numbers. A warp holds one segment of COLS columns
// of X in registers; rows of A come by the tensor memory accelerator through shared memory, and are read from there once for COLS columns.
//
//   a tile     8 rows of a segment. Thread 4 g + t has rows 2 t and 2 t + 1, and columns g, g + 8, .. of the segment: eight
//              whole lanes. The first levels of their sum are additions in the thread, the last three are exchanges.
//   units      A unit is a segment of ROWS rows. A block has SEGMENTS segments of SETS sets of rows: a granule. Each unit has
//              as many warps as a panel of TILE_RHS columns of X has groups of COLS.
//   parts      A super-segment (256 segments) has `parts` parts, a power of two: part p has segments p, p + parts, ...,
//              at most SEGMENTS of them, which are whole subtrees of the second level.
//   blocks     Block k has panel k % panels of columns of X, and its share of the granules of all parts, one part after
//              another: the shares are equal.
//   copies     A warp refills the ring of STAGES granules: of each unit four boxes of 64 columns, which the copy engine
//              swizzles, so that the eight rows of a tile lie in different banks.
//   slots      Column c of thread 4 g + t is in slot c ^ (g >> 1) (of two columns c ^ (g >> 2)): an exchange keeps the lower
//              slots and sends the upper ones, with nothing to select.
//   sums       of a granule meet in one of BUFFERS buffers. ADDERS warps add them up, a granule each.
//              Of several parts or super-segments they go to `workspace` (entry part * m * rhs + output), and
//              gemm_parts.cuh follows.
//   registers  of the warps that copy and add are moved to those that compute.
//   the end    Past the end of a row the copy engine writes +0, and X is -0, which leaves any sum as it is. Rows beyond the
//              last are +0, and are not stored.
//   aligned    `map` is A as cuTensorMapEncodeTiled describes it: rows begin at multiples of 16 bytes.
//   never read A and X where alpha = 0; Y where beta = 0; anything outside of a row's n elements.
#ifndef TILE_RHS
#define TILE_RHS 8
#endif
#ifndef SEGMENTS
#define SEGMENTS 4
#endif
#ifndef ROWS
#define ROWS 16
#endif
#ifndef STAGES
#define STAGES 3
#endif
// By columns: gemm_col_lanes.cu.
#ifndef COLUMNS
#define COLUMNS 0
#define ENTRY gemm_row_lanes
#endif
#define COLS (TILE_RHS < 4 ? TILE_RHS : 4)
#define X_GROUPS (TILE_RHS / COLS)
#define SETS (8 / X_GROUPS / SEGMENTS)
#define UNITS (SETS * SEGMENTS)
#define WARPS (UNITS * X_GROUPS)
// Registers are moved by four warps at a time.
#define COMPUTE 8
#define ADDERS 3
#ifndef ADDER_REGISTERS
#define ADDER_REGISTERS 56
#define COMPUTE_REGISTERS 224
#endif
#define THREADS ((COMPUTE + 1 + ADDERS) * 32)
#define BUFFERS (STAGES + 3)
#define BOX_BYTES (ROWS * 128)
#define UNIT_BYTES (ROWS * SEG * A_ELEM_BYTES)
#define STAGE_BYTES (UNITS * UNIT_BYTES)
// Sums of a unit, and of a buffer.
#define UNIT_SUMS (ROWS * TILE_RHS)
#define BUFFER (UNITS * UNIT_SUMS)
// By columns: bytes of a column in a box, and of the box of a segment, which has the rows of all sets.
#define COLUMN_BYTES (SETS * ROWS * A_ELEM_BYTES)
#define SEGMENT_BYTES (SETS * UNIT_BYTES)

// Super-segments of a row, segments of the first one, parts of each: as in the plan.
STATIC U32 super_segments_of(const U64 n) { return n == 0 ? 1 : (U32)ceil_div(n, (U64)SEG * SEG); }
STATIC U32 segments_of(const U64 n) { return n == 0 ? 1 : (U32)(n > (U64)SEG * SEG ? SEG : ceil_div(n, SEG)); }
STATIC U32 parts_of(const U64 n) {
  U32 parts = 1;
  while (parts * SEGMENTS < segments_of(n)) parts *= 2;
  return parts;
}

// ---- the copy engine and its barriers, from compute capability 9.0; elsewhere the kernel compiles and is not launched
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define ASM_90(...) asm volatile(__VA_ARGS__)
#else
#define ASM_90(...)
#endif
// What the copy engine is told of A.
struct __align__(64) TENSOR_MAP {
  U64 words[16];
};
// Four warps at a time give up registers, and eight take them.
#if defined(SM_90A) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FEWER_REGISTERS() asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(ADDER_REGISTERS))
#define MORE_REGISTERS() asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COMPUTE_REGISTERS))
#else
#define FEWER_REGISTERS() (void)0
#define MORE_REGISTERS() (void)0
#endif
STATIC U32 shared_address(const void *p) { return (U32)__cvta_generic_to_shared(p); }
STATIC void barrier_init(const U32 at, const U32 arrivals) {
  ASM_90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
STATIC void barrier_arrive(const U32 at) { ASM_90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
STATIC void barrier_expect(const U32 at, const U32 bytes) {
  ASM_90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
STATIC void barrier_wait(const U32 at, const U32 parity) {
  ASM_90("{ .reg .pred there;\n"
         "again: mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
         "@!there bra again; }" ::"r"(at), "r"(parity) : "memory");
}
// ROWS rows of 256 columns of A from this row and column on, where blocks of 64 columns are the third dimension; or of 64.
STATIC void copy_segment(const U32 to, const TENSOR_MAP *map, const U32 row, const U32 column, const U32 arrived) {
  ASM_90("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
         ::"r"(to), "l"(map), "r"(0), "r"(row), "r"(column / 64), "r"(arrived) : "memory");
}
STATIC void copy_box(const U32 to, const TENSOR_MAP *map, const U32 row, const U32 column, const U32 arrived) {
  ASM_90("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
         ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(arrived) : "memory");
}

// COLS elements of a row of X.
#if COLS * ELEM_BYTES == 16
typedef uint4 X_ROW;
#elif COLS * ELEM_BYTES == 8
typedef uint2 X_ROW;
#else
typedef U32 X_ROW;
#endif

// Elements of a row of X in the slots of a thread that has column c in slot c ^ mine.
STATIC void widen_row(ACC (&to)[COLS], X_ROW of, const U32 mine) {
  U32 *const w = (U32 *)&of;
  const U32 of_word = 4 / ELEM_BYTES;
  if (of_word == 2)
#pragma unroll
    for (U32 i = 0; i < COLS / 2; i++) w[i] = __byte_perm(w[i], 0, mine & 1 ? 0x1032 : 0x3210);
#pragma unroll
  for (U32 bit = of_word; bit < COLS; bit *= 2)
#pragma unroll
    for (U32 c = 0; c < COLS; c += of_word)
      if ((c & bit) == 0) {
        const U32 low = w[c / of_word], high = w[(c | bit) / of_word];
        w[c / of_word] = mine & bit ? high : low, w[(c | bit) / of_word] = mine & bit ? low : high;
      }
#pragma unroll
  for (U32 s = 0; s < COLS; s++) to[s] = widen(((const ELEM *)&of)[s]);
}

// Sums that a thread adds up at a time: of many segments there are registers for two.
#if SEGMENTS > 4
#define TOGETHER 2
typedef float2 SUMS_TOGETHER;
#else
#define TOGETHER 4
typedef float4 SUMS_TOGETHER;
#endif

// The bits of a thread's index that are bits 2, 1, 0 of its column. The threads of half a warp load 8 bytes each of four
// columns at a time: these are in different banks, with lines of 128, 64, or 32 bytes.
#if A_ELEM_BYTES == 4 && SETS * ROWS == 32
#define BIT_2 8
#define BIT_1 4
#define BIT_0 16
#elif A_ELEM_BYTES == 4 && SETS * ROWS == 16
#define BIT_2 8
#define BIT_1 16
#define BIT_0 4
#else
#define BIT_2 16
#define BIT_1 8
#define BIT_0 4
#endif

// Elements of a thread's two rows. Of bf16 the first is of the row that the thread is left with.
#define CHOSEN (A_DTYPE == 3)
#if A_ELEM_BYTES == 4
STATIC void load_two(ACC (&to)[2], const U32 at) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "r"(at));
}
#else
// Four matrices of 8 rows and 8 columns: of each, the thread's two rows of its column.
struct Words {
  U32 w[4];
};
#if COLUMNS
#define TRANSPOSED ""
#else
#define TRANSPOSED ".trans"
#endif
STATIC void load_words(Words &to, const U32 at) {
  ASM_90("ldmatrix.sync.aligned.m8n8.x4" TRANSPOSED ".shared.b16 {%0, %1, %2, %3}, [%4];"
         : "=r"(to.w[0]), "=r"(to.w[1]), "=r"(to.w[2]), "=r"(to.w[3]) : "r"(at));
}

// A permutation of bytes widens bf16, and its selector says of which half. (A shift would be a multiplication, in the pipe of the
// products.)
STATIC void widen_words(ACC (&to)[4][2], const Words &from, const U32 first, const U32 second) {
#pragma unroll
  for (U32 e = 0; e < 4; e++)
    if (CHOSEN) to[e][0] = AS_F32(__byte_perm(from.w[e], 0, first)), to[e][1] = AS_F32(__byte_perm(from.w[e], 0, second));
    else to[e][0] = a_widen((A_ELEM)from.w[e]), to[e][1] = a_widen((A_ELEM)(from.w[e] >> 16));
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) ENTRY(GEMM_ARGUMENTS, const __grid_constant__ TENSOR_MAP map) {
  extern __shared__ __align__(1024) unsigned char shared[];
  ACC *const sums = (ACC *)(shared + UNITS * STAGES * UNIT_BYTES);
  const U32 t = LID % 32, g = (t & BIT_2) / (BIT_2 / 4) + (t & BIT_1) / (BIT_1 / 2) + (t & BIT_0) / BIT_0;
  const U32 warp = LID / 32, unit = warp / X_GROUPS;
  const U32 k = unit % SEGMENTS, first_col = warp % X_GROUPS * COLS;
  // Barriers: stages of the ring that are full and empty, buffers that are full and free.
  const U32 ring = shared_address(shared), full = shared_address(sums + BUFFERS * BUFFER), empty = full + STAGES * 8;
  const U32 summed = empty + STAGES * 8, freed = summed + BUFFERS * 8;

  const U32 parts = parts_of(n), super_segments = super_segments_of(n), log_parts = 31 - __clz(parts);
  if (LID < STAGES) barrier_init(full + LID * 8, 1), barrier_init(empty + LID * 8, WARPS);
  if (LID < BUFFERS) barrier_init(summed + LID * 8, WARPS), barrier_init(freed + LID * 8, 1);
  ASM_90("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  begin(parts * super_segments > 1);

  const U32 panels = (U32)ceil_div(rhs, TILE_RHS), c0 = (U32)GROUP_ID % panels * TILE_RHS;
  const U32 block = (U32)GROUP_ID / panels, blocks = (U32)GROUPS / panels;
  if (acc_is(alpha, (REAL)0) || n == 0) {
    const U32 cols = rhs - c0 < TILE_RHS ? (U32)(rhs - c0) : TILE_RHS;
    if (parts * super_segments == 1)
      for (U64 o = block * (U64)blockDim.x + LID; o < m * cols; o += (U64)blocks * blockDim.x)
        finish(y + y0 + (I64)(o / cols) * yrs + (I64)(c0 + o % cols) * ycs, alpha, acc_zero(), beta);
    return;
  }

  // Parts that have a segment; granules of each; those of this block.
  const U64 last = ceil_div(n, SEG) - (U64)(super_segments - 1) * SEG;
  const U32 filled = (super_segments - 1) * parts + (last < parts ? (U32)last : parts);
  const U32 granules = (U32)ceil_div(m, SETS * ROWS);
  const U64 all = (U64)filled * granules;
  const U32 begin_at = (U32)(all * block / blocks), count = (U32)(all * (block + 1) / blocks) - begin_at;
#if COLUMNS
  // Blocks that run at the same time have rows side by side, so that they read the same pages of memory: of the shares of a
  // part's granules come the first ones of all, then the second ones.
  const U32 share = (U32)ceil_div(all, blocks), shares = (granules + share - 1) / share, whole = granules - (shares - 1) * share;
  const auto rows_of = [&](const U32 at) {
    const U32 turn = at % share, of = at / share;
    return turn < whole ? turn * shares + of : whole * shares + (turn - whole) * (shares - 1) + of;
  };
#else
  const auto rows_of = [](const U32 at) { return at; };
#endif
  // Segment `w` of a part: its first column, and how many it has.
  const auto first_of = [&](const U32 part, const U32 w) {
    return ((U64)(part >> log_parts) * SEG + (part & (parts - 1)) + ((U64)w << log_parts)) * SEG;
  };
  const auto columns_of = [&](const U32 part, const U32 w) {
    const U64 first = first_of(part, w);
    return (part & (parts - 1)) + (w << log_parts) >= SEG || first >= n ? 0u : n - first < SEG ? (U32)(n - first) : SEG;
  };

  // Slots, and which of its two rows the thread is left with.
  const U32 mine = COLS == 4 ? g >> 1 : g >> 2, row_bit = COLS == 4 ? g & 1 : g >> 1 & 1;
#if A_ELEM_BYTES == 2
  U32 first_half = row_bit ? 0x3244 : 0x1044, second_half = row_bit ? 0x1044 : 0x3244;
  asm volatile("" : "+r"(first_half), "+r"(second_half));
#endif
  // Whether the rows of the thread have changed places.
  const bool other = !CHOSEN && row_bit;
  const bool writes = COLS == 4 || (g & 1) == 0;
#if COLUMNS
  const bool descends = cs < 0 && n > 1;
#endif
#if A_ELEM_BYTES == 4
  // Where columns descend in memory, so they do in a box: a thread has its turns in the other order, and its column of a box
  // is another one. A column's vectors of 4 rows are swizzled by the place of the column.
  const U32 flipped = descends ? 63 : 0;
  const U32 swizzle = g / (128 / COLUMN_BYTES), first_chunk = unit / SEGMENTS * (ROWS / 4) + t % 4 / 2;
  const U32 from_unit = ring + k * SEGMENT_BYTES + g * COLUMN_BYTES + t % 2 * 8 + (descends ? 3 * 64 * COLUMN_BYTES : 0);
  const U32 forward = descends ? -64 * COLUMN_BYTES : 64 * COLUMN_BYTES;
  const auto tile_at = [&](const U32 stage, const U32 tile) {
    return from_unit + stage * STAGE_BYTES + ((first_chunk + 2 * tile) ^ swizzle) * 16;
  };
#elif COLUMNS
  // Where the thread reads column c of a tile, of those whose loads it gives the addresses of. Where columns descend in memory,
  // so they do in a box. A column's vectors of 8 rows are swizzled by the place of the column.
  const U32 c = t % 8 + 16 * (t >> 3 & 1) + 64 * (t >> 4), place = descends ? SEG - 1 - c : c;
  const U32 swizzle = place % 8 / (128 / COLUMN_BYTES), first_chunk = unit / SEGMENTS * (ROWS / 8);
  const U32 from_unit = ring + k * SEGMENT_BYTES + place * COLUMN_BYTES;
  // The places of the other columns of its loads.
  const U32 forward = descends ? -COLUMN_BYTES : COLUMN_BYTES;
  const U32 offset[4] = {0, 8 * forward, 32 * forward, 40 * forward}, half = 128 * forward;
  const auto tile_at = [&](const U32 stage, const U32 tile) {
    return from_unit + stage * STAGE_BYTES + ((first_chunk + tile) ^ swizzle) * 16;
  };
#else
  // Where the thread reads the rows of a tile: by bits 2 and 0 of 8 columns of a box.
  const U32 chunk = (t >> 3 & 1) * 2 ^ t % 8, from_unit = ring + unit * UNIT_BYTES + (t >> 4) * BOX_BYTES + t % 8 * 128;
  const U32 offset[4] = {chunk * 16, (chunk ^ 1) * 16, (chunk ^ 4) * 16, (chunk ^ 5) * 16}, half = 2 * BOX_BYTES;
#endif
  ACC *const to_unit = sums + unit * UNIT_SUMS + (2 * (t % 4) + row_bit) * TILE_RHS + first_col + mine;

  // Adds up the sums of granule `s` of this block.
  const auto add_up = [&](const U32 s) {
    const U32 buffer = s % BUFFERS, part = (begin_at + s) / granules, row0 = rows_of((begin_at + s) % granules) * (SETS * ROWS);
    barrier_wait(summed + buffer * 8, s / BUFFERS & 1);
#pragma unroll 1
    for (U32 o = t * TOGETHER; o < SETS * UNIT_SUMS; o += 32 * TOGETHER) {
      const SUMS_TOGETHER *const from = (const SUMS_TOGETHER *)(sums + buffer * BUFFER + o / UNIT_SUMS * (SEGMENTS * UNIT_SUMS) + o % UNIT_SUMS);
      ACC v[TOGETHER][SEGMENTS > 4 ? 8 : SEGMENTS > 2 ? 4 : SEGMENTS];
      const U32 size = sizeof(v[0]) / sizeof(v[0][0]);
#pragma unroll
      for (U32 w = 0; w < size; w++) {
        SUMS_TOGETHER of = {};
        if (w < SEGMENTS && columns_of(part, w) > 0) of = from[w * (UNIT_SUMS / TOGETHER)];
#pragma unroll
        for (U32 e = 0; e < TOGETHER; e++) v[e][w] = ((const ACC *)&of)[e];
      }
      if (n > SEG)
#pragma unroll
        for (U32 e = 0; e < TOGETHER; e++) {
          // Lanes of the second level begin at +0.
#pragma unroll
          for (U32 w = 0; w < size; w++) v[e][w] = acc_add(acc_zero(), v[e][w]);
          // A part has 64 / parts of them: further segments are added to theirs.
#pragma unroll
          for (U32 lanes = 1; lanes < size; lanes *= 2)
            if (lanes * parts == LANES)
#pragma unroll
              for (U32 w = 1; w < size; w++)
                if (w >= lanes) {
                  v[e][w % lanes] = acc_add(v[e][w % lanes], v[e][w]);
                  v[e][w] = acc_zero();
                }
          halve(v[e]);
        }
      const U64 i = row0 + o / TILE_RHS;
      const U32 c = c0 + o % TILE_RHS;
      if (parts * super_segments > 1 && TILE_RHS >= TOGETHER && rhs % TOGETHER == 0) {
        SUMS_TOGETHER all;
#pragma unroll
        for (U32 e = 0; e < TOGETHER; e++) ((ACC *)&all)[e] = v[e][0];
        if (i < m && c < rhs) *(SUMS_TOGETHER *)(workspace + (U64)part * (m * rhs) + i * rhs + c) = all;
      } else
#pragma unroll
        for (U32 e = 0; e < TOGETHER; e++) {
          const U64 row = i + e / TILE_RHS, col = c + e % TILE_RHS;
          if (row >= m || col >= rhs) continue;
          if (parts * super_segments == 1) finish(y + y0 + (I64)row * yrs + (I64)col * ycs, alpha, v[e][0], beta);
          else workspace[(U64)part * (m * rhs) + row * rhs + col] = v[e][0];
        }
    }
    __syncwarp();
    if (t == 0) barrier_arrive(freed + buffer * 8);
  };

  if (warp >= COMPUTE) {
    // By the same instruction for the four warps of a group.
    FEWER_REGISTERS();
    if (warp > COMPUTE) {
#pragma unroll 1
      for (U32 s = warp - COMPUTE - 1; s < count; s += ADDERS) add_up(s);
      return;
    }
#if !COLUMNS
    const bool blocks_of_64 = n % 64 == 0;
#endif
    U32 part = begin_at / granules, at = begin_at % granules, slot = 0, buffer = 0, turn = 0, turn_of_buffers = 0;
#pragma unroll 1
    for (U32 s = 0; s < count; s++) {
      if (s >= STAGES) barrier_wait(empty + slot * 8, turn ^ 1);
      if (s >= BUFFERS) barrier_wait(freed + buffer * 8, turn_of_buffers ^ 1);
      U32 there = 0;
#pragma unroll
      for (U32 w = 0; w < SEGMENTS; w++) there += columns_of(part, w) > 0;
      if (t == 0) barrier_expect(full + slot * 8, there * (SETS * UNIT_BYTES));
      __syncwarp();
#if COLUMNS
      // A lane has a segment.
      if (t < there) {
        const U32 first = (U32)first_of(part, t);
        copy_box(ring + slot * STAGE_BYTES + t * SEGMENT_BYTES, &map, descends ? (U32)n - SEG - first : first, rows_of(at) * (SETS * ROWS), full + slot * 8);
      }
#else
      // A lane has a unit, or a box of it.
      const U32 w = (blocks_of_64 ? t : t / 4) % SEGMENTS, set = (blocks_of_64 ? t : t / 4) / SEGMENTS;
      if (w >= there || set >= SETS) {
      } else if (blocks_of_64)
        copy_segment(ring + (slot * UNITS + t) * UNIT_BYTES, &map, (at * SETS + set) * ROWS, (U32)first_of(part, w), full + slot * 8);
      else
        copy_box(ring + (slot * UNITS + t / 4) * UNIT_BYTES + t % 4 * BOX_BYTES, &map, (at * SETS + set) * ROWS,
                 (U32)first_of(part, w) + t % 4 * 64, full + slot * 8);
#endif
      if (++slot == STAGES) slot = 0, turn ^= 1;
      if (++buffer == BUFFERS) buffer = 0, turn_of_buffers ^= 1;
      if (++at == granules) at = 0, part++;
    }
    return;
  }
  MORE_REGISTERS();
  if (warp >= WARPS) return;

  // X: entry 16 pb + 8 j + 4 h + i is of column 64 i + 8 (pb + 2 j + 4 h) + g.
  ACC xv[32][COLS];
  // Sums of the tile before by row and slot, and where they go.
  ACC before[2][COLS], sent[4];
  ACC *to_before = 0;
  U32 slot = 0, turn = 0;
  // Steps of the exchanges of the tile before.
  const auto exchange = [&](const U32 step) {
    if (COLS == 4) {
      if (step == 1)
#pragma unroll
        for (U32 e = 0; e < 4; e++) sent[e] = acc_xor(before[e / 2][COLS / 2 + e % 2], BIT_2);
      if (step == 2) {
#pragma unroll
        for (U32 e = 0; e < 4; e++) before[e / 2][e % 2] = acc_add(before[e / 2][e % 2], sent[e]);
        sent[0] = acc_xor(before[0][1], BIT_1), sent[1] = acc_xor(before[1][1], BIT_1);
      }
      if (step == 3) {
        before[0][0] = acc_add(before[0][0], sent[0]), before[1][0] = acc_add(before[1][0], sent[1]);
        sent[0] = acc_xor(other ? before[0][0] : before[1][0], BIT_0);
        before[0][0] = other ? before[1][0] : before[0][0];
      }
    } else {
      if (step == 1) sent[0] = acc_xor(before[0][1], BIT_2), sent[1] = acc_xor(before[1][1], BIT_2);
      if (step == 2) {
        before[0][0] = acc_add(before[0][0], sent[0]), before[1][0] = acc_add(before[1][0], sent[1]);
        sent[0] = acc_xor(other ? before[0][0] : before[1][0], BIT_1);
        before[0][0] = other ? before[1][0] : before[0][0];
      }
      if (step == 3) {
        before[0][0] = acc_add(before[0][0], sent[0]);
        sent[0] = acc_xor(before[0][0], BIT_0);
      }
    }
    if (step == 5) {
      before[0][0] = acc_add(before[0][0], sent[0]);
      if (writes && to_before) *to_before = before[0][0];
    }
  };

#pragma unroll 1
  for (U32 s = 0; s < count;) {
    // The stages of a part.
    const U32 part = (begin_at + s) / granules, left = granules - (begin_at + s) % granules;
    const U32 end = count - s < left ? count : s + left;
    const U32 columns = columns_of(part, k);
    if (columns == 0) {
#pragma unroll 1
      for (; s < end; s++) {
        barrier_wait(full + slot * 8, turn);
        __syncwarp();
        if (t == 0) barrier_arrive(empty + slot * 8), barrier_arrive(summed + s % BUFFERS * 8);
        if (++slot == STAGES) slot = 0, turn ^= 1;
      }
      continue;
    }
    {
      // Loads have no condition, so that they are all under way at once: what is beyond the end is read from the beginning. Of a
      // whole segment they are vectors, whose columns go to their slots while they are packed.
      const ELEM *const xs = x + x0 + (I64)first_of(part, k) * xrs + (I64)(c0 + first_col) * xcs;
      const U32 cols = rhs - c0 < first_col + COLS ? (rhs - c0 < first_col ? 0 : (U32)(rhs - c0) - first_col) : COLS;
      const bool vectors = columns == SEG && xcs == 1 && cols == COLS && ((ADDRESS(xs) | (U64)(xrs * (I64)sizeof(ELEM))) & (COLS * sizeof(ELEM) - 1)) == 0;
      const auto column_of = [&](const U32 e) {
        const U32 of_64 = 8 * ((e >> 4) + 2 * (e >> 3 & 1) + 4 * (e >> 2 & 1)) + g;
#if A_ELEM_BYTES == 4
        return 64 * (e % 4) + (of_64 ^ flipped);
#else
        return 64 * (e % 4) + of_64;
#endif
      };
      if (vectors) {
        // Column 8 o + g of 64: from one to the next is a step.
#if A_ELEM_BYTES == 4
        const I64 step = descends ? -8 * xrs : 8 * xrs;
#else
        const I64 step = 8 * xrs;
#endif
        const ELEM *from = xs + (I64)column_of(0) * xrs, *next = from;
#pragma unroll
        for (U32 o = 0; o < 32; o++) {
          if (o % 8 == 0) from = next, next += 64 * xrs;
          widen_row(xv[o / 8 + (o & 4) + (o & 2) * 4 + (o & 1) * 16], *(const X_ROW *)from, mine);
          from += step;
        }
      } else if (cols > 0) {
#pragma unroll
        for (U32 e = 0; e < 32; e++) {
          const U32 col = column_of(e);
#pragma unroll
          for (U32 s = 0; s < COLS; s++) {
            const U32 c = s ^ mine;
            xv[e][s] = widen(xs[(I64)(col < columns ? col : 0) * xrs + (I64)(c < cols ? c : 0) * xcs]);
          }
          // Addresses of all at once would be more than there are registers.
          if (e % 8 == 7) __syncwarp();
        }
      }
      if (columns < SEG)
#pragma unroll
        for (U32 e = 0; e < 32; e++)
#pragma unroll
          for (U32 c = 0; c < COLS; c++)
            if (column_of(e) >= columns) xv[e][c] = (ACC)-0.0;
    }

    barrier_wait(full + slot * 8, turn);
#if COLUMNS
    U32 at = tile_at(slot, 0);
#else
    U32 at = from_unit + slot * STAGE_BYTES;
#endif
#if A_ELEM_BYTES == 2
    Words words[2];
    load_words(words[0], at + offset[0]), load_words(words[1], at + offset[0] + half);
#endif
#pragma unroll
    for (U32 r = 0; r < 2; r++)
#pragma unroll
      for (U32 c = 0; c < COLS; c++) before[r][c] = acc_zero();
    to_before = 0;
    // Elements of a step and of the next one.
    ACC d[2][4][2];
#if A_ELEM_BYTES == 2
    widen_words(d[0], words[0], first_half, second_half);
#else
    // Of step q.
    const auto load = [&](ACC (&to)[4][2], const U32 at, const U32 q) {
#pragma unroll
      for (U32 e = 0; e < 4; e++) {
        const U32 o = q / 4 + 2 * (e % 2), h = q / 2 % 2, i = q % 2 * 2 + e / 2;
        load_two(to[e], at + i * forward + (8 * o + 32 * h) * COLUMN_BYTES);
      }
    };
    load(d[0], at, 0);
#endif
    // The products of a tile. The first words of the one that follows are loaded meanwhile.
    const auto compute = [&](const U32 next, ACC *const to) {
      ACC lane[2][2][COLS], lower[2][2][COLS], first[2][COLS];
#pragma unroll
      for (U32 q = 0; q < 8; q++) {
        const U32 pb = q / 4, h = q / 2 % 2, ip = q % 2;
#if A_ELEM_BYTES == 2
        const U32 ahead = (q + 2) % 8;
        load_words(words[q % 2], (q < 6 ? at : next) + offset[ahead / 4 + ahead / 2 % 2 * 2] + ahead % 2 * half);
        widen_words(d[(q + 1) % 2], words[(q + 1) % 2], first_half, second_half);
#else
        load(d[(q + 1) % 2], q < 7 ? at : next, (q + 1) % 8);
#endif
        exchange(q);
#pragma unroll
        for (U32 ii = 0; ii < 2; ii++)
#pragma unroll
          for (U32 j = 0; j < 2; j++)
#pragma unroll
            for (U32 e = 0; e < 2 * COLS; e++) {
              // One factor is that of the product before.
              const U32 c = e / 2, r = (e ^ c) & 1;
              lane[j][r][c] = acc_fma(d[q % 2][2 * ii + j][r], xv[16 * pb + 8 * j + 4 * h + 2 * ip + ii][c], ip == 0 && ii == 0 ? acc_zero() : lane[j][r][c]);
            }
        if (ip == 1)
#pragma unroll
          for (U32 r = 0; r < 2; r++)
#pragma unroll
            for (U32 c = 0; c < COLS; c++) {
              if (h == 0) lower[0][r][c] = lane[0][r][c], lower[1][r][c] = lane[1][r][c];
              else {
                const ACC v = acc_add(acc_add(lower[0][r][c], lane[0][r][c]), acc_add(lower[1][r][c], lane[1][r][c]));
                if (pb == 0) first[r][c] = v;
                else before[r][c] = acc_add(first[r][c], v);
              }
            }
      }
      at = next, to_before = to;
    };
    const U32 first_of_part = s;
#pragma unroll 1
    for (; s < end; s++) {
      const U32 stage = slot;
      if (++slot == STAGES) slot = 0, turn ^= 1;
      ACC *to = to_unit + s % BUFFERS * BUFFER;
#pragma unroll 1
#if COLUMNS
      for (U32 tile = 1; tile < ROWS / 8; tile++, to += 8 * TILE_RHS) compute(tile_at(stage, tile), to);
#else
      for (U32 tile = 1; tile < ROWS / 8; tile++, to += 8 * TILE_RHS) compute(at + 1024, to);
#endif
      U32 next = at;
      if (s + 1 < end) {
        barrier_wait(full + slot * 8, turn);
#if COLUMNS
        next = tile_at(slot, 0);
#else
        next = from_unit + slot * STAGE_BYTES;
#endif
      }
      compute(next, to);
      __syncwarp();
      if (t == 0) {
        barrier_arrive(empty + stage * 8);
        // The sums of this stage's last tile are not there yet.
        if (s > first_of_part) barrier_arrive(summed + (s - 1) % BUFFERS * 8);
      }
    }
#pragma unroll
    for (U32 step = 1; step < 6; step++) exchange(step);
    __syncwarp();
    if (t == 0) barrier_arrive(summed + (s - 1) % BUFFERS * 8);
  }
}

#define OUTPUT_AT(o) ((I64)((o) / rhs) * yrs + (I64)((o) % rhs) * ycs)
