// gemm-row-ring: Y = alpha A X + beta Y, row-major, one matrix, real numbers. A warp holds one segment of TILE_RHS
// columns of X in registers, and rows of A come by cp.async through shared memory: A is read once for TILE_RHS columns,
// and no register waits for it.
//
//   stages     Each warp has a ring of STAGES stages of ROWS rows of its segment.
//   parts      A super-segment (256 segments) has `parts` parts, a power of two: part p has segments p, p + parts, ...,
//              which are whole subtrees of the second level. There are as many parts as leave the fewest warps idle.
//   warps      A warp has one segment of a part: as many warps as a part has segments share rows, and are a set. A
//              block has as many sets as its warps make, of BATCH rows each: a granule.
//   blocks     Block k has panel k % panels of columns of X, and its share of the granules of all parts, one part after
//              another: the shares are equal.
//   lanes      Thread t has lanes lane_of(t) and that + 32. Elements of 16 bits come transposed, two lanes a register.
//   slots      Column c of thread t is in slot c ^ g, where g are the first bits of its lane: a halving level across
//              threads keeps the lower slots and sends the upper ones, with nothing to select.
//   sums       of a granule meet in one of BUFFERS buffers. The warps add them up in turn, one behind the last: no
//              warp waits for the others of its block.
//              Of several parts or super-segments, they go to `workspace` (entry part * m * rhs + output), and
//              gemm_parts.cuh follows.
//   the end    Past the end of a row, +0 * -0 takes the place of the elements, which leaves any sum as it is. Rows
//              beyond the last are that one again, and are not stored.
//   aligned    Rows begin at multiples of 16 bytes: the host takes another kernel otherwise.
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
#ifndef ROWS
#define ROWS 8
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#define BATCH 16
#define BUFFERS 3
#define WARPS (THREADS / 32)
#define ROW_BYTES (SEG * A_ELEM_BYTES)
#define STAGE_BYTES (ROWS * ROW_BYTES)
#define RING_BYTES (WARPS * STAGES * STAGE_BYTES)
// Sums of a granule: of each warp, a row's place that is written before the first row is known, and those of its rows.
#define SUMS ((BATCH + 1) * TILE_RHS)
#define BUFFER (WARPS * SUMS)
#define LOG_COLS (TILE_RHS == 2 ? 1 : TILE_RHS == 4 ? 2 : TILE_RHS == 8 ? 3 : 4)
// What a row of X is read by, where it is aligned.
#if TILE_RHS * ELEM_BYTES % 16 == 0
typedef uint4 XROW;
#elif TILE_RHS * ELEM_BYTES == 8
typedef uint2 XROW;
#else
typedef U32 XROW;
#endif

// Super-segments of a row, segments of the first one, parts of each: as in the plan.
STATIC U32 super_segments_of(const U64 n) { return n == 0 ? 1 : (U32)ceil_div(n, (U64)SEG * SEG); }
STATIC U32 segments_of(const U64 n) { return n == 0 ? 1 : (U32)(n > (U64)SEG * SEG ? SEG : ceil_div(n, SEG)); }
STATIC U32 parts_of(const U64 n) {
  const U32 segments = segments_of(n);
  U32 best = 1, most = 0;
  for (U32 parts = 1; parts <= LANES; parts *= 2) {
    const U32 set = (segments + parts - 1) / parts;
    if (set > WARPS_K) continue;
    // The share of warps with a segment, and how much more of it is worth twice the sums.
    const U32 share = segments * (WARPS / set) * (LANES / parts);
    if (share > most + most / 32) {
      most = share;
      best = parts;
    }
    if (set == 1) break;
  }
  return best;
}

// ---- copies that no register waits for, and barriers for some of a block's warps, from compute capability 8.0;
// elsewhere the kernel compiles and is not launched
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define ASM_80(...) asm volatile(__VA_ARGS__)
#else
#define ASM_80(...)
#endif
typedef U64 MBARRIER;
STATIC U32 shared_address(const void *p) { return (U32)__cvta_generic_to_shared(p); }
STATIC void mbarrier_init(MBARRIER *b, const U32 arrivals) {
  ASM_80("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
STATIC void mbarrier_arrive(MBARRIER *b) {
  ASM_80("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(b)) : "memory");
}
STATIC void mbarrier_wait(MBARRIER *b, const U32 parity) {
  ASM_80("{ .reg .pred there;\n"
         "again: mbarrier.test_wait.parity.shared.b64 there, [%0], %1;\n"
         "@!there bra again; }" ::"r"(shared_address(b)), "r"(parity) : "memory");
}
// 16 bytes, of which those from `bytes` on become zero and are not read.
STATIC void copy_16(const U32 to, const void *from, const U32 bytes) {
  ASM_80("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
STATIC void end_copies() { ASM_80("cp.async.commit_group;" ::: "memory"); }
// All but those of the last stages are there.
STATIC void await_copies() { ASM_80("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory"); }

// ---- a row of a segment in registers: element k of a thread is of column 32 k + lane_of(t). Loads have no "memory":
// the next row's need not wait for sums to be stored. They stay behind the wait for their stage, which is volatile too.
#if A_ELEM_BYTES == 2
STATIC U32 lane_of(const U32 t) { return 8 * (t & 3) + (t >> 2); }
// The bit of t that is bit 4 - level of its lane.
STATIC U32 lane_bit(const U32 level) { return level < 2 ? 2u >> level : 64u >> level; }
struct Row {
  U32 w[4];
};
STATIC U32 load_offset(const U32 t) { return (64 * (t >> 3) + 8 * (t >> 1 & 3) + 32 * (t & 1)) * 2; }
STATIC void load_row(Row &row, const U32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(row.w[0]), "=r"(row.w[1]), "=r"(row.w[2]), "=r"(row.w[3]) : "r"(at));
}
STATIC A_ELEM element(const Row &row, const U32 k) { return (A_ELEM)(k % 2 == 0 ? row.w[k / 2] : row.w[k / 2] >> 16); }
#elif A_ELEM_BYTES == 4
STATIC U32 lane_of(const U32 t) { return t; }
STATIC U32 lane_bit(const U32 level) { return 16u >> level; }
struct Row {
  U32 w[2][4];
};
STATIC U32 load_offset(const U32 t) { return (64 * (t >> 3) + 4 * (t & 7)) * 4; }
STATIC void load_row(Row &row, const U32 at) {
#pragma unroll
  for (U32 half = 0; half < 2; half++)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(row.w[half][0]), "=r"(row.w[half][1]), "=r"(row.w[half][2]), "=r"(row.w[half][3])
                 : "r"(at + half * 128));
}
STATIC A_ELEM element(const Row &row, const U32 k) { return AS_F32(row.w[k % 2][k / 2]); }
#else
STATIC U32 lane_of(const U32 t) { return t; }
STATIC U32 lane_bit(const U32 level) { return 16u >> level; }
struct Row {
  double w[8];
};
STATIC U32 load_offset(const U32 t) { return t * 8; }
STATIC void load_row(Row &row, const U32 at) {
#pragma unroll
  for (U32 k = 0; k < 8; k++) asm volatile("ld.shared.f64 %0, [%1];" : "=d"(row.w[k]) : "r"(at + k * 256));
}
STATIC A_ELEM element(const Row &row, const U32 k) { return row.w[k]; }
#endif

// The sums of a row's lanes over the threads: level `level` of five in two steps, what is sent and what is added.
// After the last one v[0] is the sum of the column of slot 0, whose threads have lanes with the same first bits.
#define SENT(level) (TILE_RHS >> ((level) + 1) > 0 ? TILE_RHS >> ((level) + 1) : 1)
STATIC void send(const ACC (&v)[TILE_RHS], ACC (&sent)[TILE_RHS / 2], const U32 level) {
#pragma unroll
  for (U32 c = 0; c < TILE_RHS / 2; c++)
    if (c < SENT(level)) sent[c] = acc_xor(v[TILE_RHS >> (level + 1) > 0 ? c + SENT(level) : 0], lane_bit(level));
}
STATIC void receive(ACC (&v)[TILE_RHS], const ACC (&sent)[TILE_RHS / 2], const U32 level) {
#pragma unroll
  for (U32 c = 0; c < TILE_RHS / 2; c++)
    if (c < SENT(level)) v[c] = acc_add(v[c], sent[c]);
}

// The products of a stage's rows. Among those of a row, the row before is halved, a step for every 32 columns, so that
// no exchange is waited for; its sums go to `to`, the place before that of the first row.
STATIC void stage_sums(const U32 stage, const ACC (&xv)[8][TILE_RHS], ACC (&before)[TILE_RHS], const bool writes, ACC *to) {
  Row row;
  load_row(row, stage);
#pragma unroll 4
  for (U32 r = 0; r < ROWS; r++) {
    Row next;
    load_row(next, stage + (r + 1 < ROWS ? r + 1 : r) * ROW_BYTES);
    ACC sum[2][TILE_RHS], sent[TILE_RHS / 2];
#pragma unroll
    for (U32 k = 0; k < 8; k++) {
      if (k > 0 && k <= 5) receive(before, sent, k - 1);
      if (k < 5) send(before, sent, k);
      if (k == 5 && writes) to[r * TILE_RHS] = before[0];
      const ACC one = a_widen(element(row, k));
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++)
        sum[k % 2][c] = acc_fma(one, xv[k][c], k < 2 ? acc_zero() : sum[k % 2][c]);
    }
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++) before[c] = acc_add(sum[0][c], sum[1][c]);
    row = next;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm_row_ring(GEMM_ARGUMENTS) {
  extern __shared__ __align__(128) unsigned char shared[];
  ACC *const sums = (ACC *)(shared + RING_BYTES);
  MBARRIER *const summed = (MBARRIER *)(sums + BUFFERS * BUFFER), *const free = summed + BUFFERS;

  const U32 parts = parts_of(n), super_segments = super_segments_of(n), segments = segments_of(n);
  const U32 set = (segments + parts - 1) / parts, warps = blockDim.x / 32, sets = warps / set;
  const U32 t = LID % 32, warp = LID / 32, wk = warp % set, wm = warp / set;
  if (LID < BUFFERS) {
    mbarrier_init(summed + LID, warps);
    mbarrier_init(free + LID, 1);
  }
  __syncthreads();
  begin(parts * super_segments > 1);

  const U32 panels = (U32)ceil_div(rhs, TILE_RHS), c0 = (U32)GROUP_ID % panels * TILE_RHS;
  const U32 cols = rhs - c0 < TILE_RHS ? (U32)(rhs - c0) : TILE_RHS;
  const U32 block = (U32)GROUP_ID / panels, blocks = (U32)GROUPS / panels;
  if (acc_is(alpha, (REAL)0) || n == 0) {
    if (parts * super_segments == 1)
      for (U64 o = block * (U64)blockDim.x + LID; o < m * cols; o += (U64)blocks * blockDim.x)
        finish(y + y0 + (I64)(o / cols) * yrs + (I64)(c0 + o % cols) * ycs, alpha, acc_zero(), beta);
    return;
  }

  // Parts that have a segment; granules of each; those of this block.
  const U64 last = ceil_div(n, SEG) - (U64)(super_segments - 1) * SEG;
  const U32 filled = (super_segments - 1) * parts + (last < parts ? (U32)last : parts);
  const U32 granule = sets * BATCH, granules = (U32)ceil_div(m, granule);
  const U64 all = (U64)filled * granules;
  const U64 begin_at = all * block / blocks, end_at = all * (block + 1) / blocks;
  if (begin_at == end_at) return;

  // The columns of this warp's segment of a part, and how many there are.
  const U32 log_parts = 31 - __clz(parts);
  const auto of_super_segment = [&](const U32 part) { return (part & (parts - 1)) + (wk << log_parts); };
  const auto first_of = [&](const U32 part) { return ((U64)(part >> log_parts) * SEG + of_super_segment(part)) * SEG; };
  const auto columns_of = [&](const U32 part) {
    const U64 first = first_of(part);
    return of_super_segment(part) >= SEG || first >= n ? 0u : n - first < SEG ? (U32)(n - first) : SEG;
  };

  // Copies the next stage.
  const U32 ring = shared_address(shared) + warp * (STAGES * STAGE_BYTES);
  U64 to_copy = end_at - begin_at;
  U32 copy_part = (U32)(begin_at / granules), copy_granule = (U32)(begin_at % granules), copy_stage = 0;
  const auto copy = [&](const U32 slot) {
    if (to_copy > 0) {
      const U64 row = ((U64)copy_granule * sets + wm) * BATCH + copy_stage * ROWS;
      const U32 columns = columns_of(copy_part);
      const A_ELEM *from = a + a0 + (I64)(row < m ? row : m - 1) * rs + (columns > 0 ? (I64)first_of(copy_part) : 0);
      const U32 more = row + 1 < m ? (m - 1 - row < ROWS ? (U32)(m - 1 - row) : ROWS) : 0; // rows behind this one
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
#pragma unroll
        for (U32 q = 0; q < ROW_BYTES / 512; q++) {
          const U32 at = (q * 32 + t) * 16, end = columns * A_ELEM_BYTES;
          copy_16(ring + slot * STAGE_BYTES + r * ROW_BYTES + at, (const unsigned char *)from + at,
                  at >= end ? 0 : end - at < 16 ? end - at : 16);
        }
        if (r < more) from += rs;
      }
      if (++copy_stage == BATCH / ROWS) {
        copy_stage = 0;
        to_copy--;
        if (++copy_granule == granules) {
          copy_granule = 0;
          copy_part++;
        }
      }
    }
    end_copies();
  };
#pragma unroll 1
  for (U32 s = 0; s < STAGES - 1; s++) copy(s);

  U32 mine = 0, others = 0;
#pragma unroll
  for (U32 level = 0; level < 5; level++) {
    if (level >= LOG_COLS) others |= lane_bit(level);
    else if ((t & lane_bit(level)) != 0) mine |= TILE_RHS >> (level + 1);
  }
  const bool writes = (t & others) == 0;
  const U32 offset = load_offset(t), outputs = granule * TILE_RHS;

  // Adds up the sums of a granule.
  const auto add_up = [&](const U32 buffer, const U32 parity, const U32 part, const U64 row0) {
    mbarrier_wait(summed + buffer, parity);
#pragma unroll 1
    for (U32 o = t; o < outputs; o += 32) {
      const U64 i = row0 + o / TILE_RHS, c = c0 + o % TILE_RHS;
      if (i >= m || c >= rhs) continue;
      const ACC *from = sums + buffer * BUFFER + o / (BATCH * TILE_RHS) * SUMS + TILE_RHS + o % (BATCH * TILE_RHS);
      ACC v[WARPS_K];
#pragma unroll
      for (U32 w = 0; w < WARPS_K; w++) v[w] = w < set ? from[w * sets * SUMS] : acc_zero();
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
      if (parts * super_segments == 1) finish(y + y0 + (I64)i * yrs + (I64)c * ycs, alpha, v[0], beta);
      else workspace[(U64)part * (m * rhs) + i * rhs + c] = v[0];
    }
    __syncwarp();
    if (t == 0) mbarrier_arrive(free + buffer);
  };

  ACC xv[8][TILE_RHS];
  U32 part = (U32)(begin_at / granules), at = (U32)(begin_at % granules), slot = 0, buffer = 0, turn = 0;
  // Granules so far, and the one before.
  U32 uses = 0, part_before = 0, buffer_before = 0, parity_before = 0;
  U64 row_before = 0;
  bool fresh = true;
#pragma unroll 1
  for (U64 g = begin_at; g < end_at; g++) {
    const U32 columns = columns_of(part);
    const U32 left = columns > lane_of(t) ? columns - lane_of(t) : 0; // from this thread's first column on
    if (fresh) {
      // Columns beyond the last one are not used: they may be any. Past the end of a row they are -0.
      const ELEM *const xs = x + x0 + (columns > 0 ? (I64)(first_of(part) + lane_of(t)) * xrs : 0) + (I64)c0 * xcs;
#pragma unroll
      for (U32 k = 0; k < 8; k++)
#pragma unroll
        for (U32 c = 0; c < TILE_RHS; c++) xv[k][c] = (ACC)-0.0;
      if (xcs == 1 && cols == TILE_RHS) {
        // A thread's rows as they lie, by vectors where they can be; then each column to its slot.
        const bool whole_rows = ((ADDRESS(xs) | (U64)(xrs * (I64)sizeof(ELEM))) & (sizeof(XROW) - 1)) == 0;
#pragma unroll
        for (U32 k = 0; k < 8; k++) {
          const ELEM *p = xs + (I64)(k * 32) * xrs;
          if (k * 32 < left) {
            XROW row[TILE_RHS * sizeof(ELEM) / sizeof(XROW)];
            if (whole_rows) {
#pragma unroll
              for (U32 q = 0; q < TILE_RHS * sizeof(ELEM) / sizeof(XROW); q++) row[q] = ((const XROW *)p)[q];
#pragma unroll
              for (U32 c = 0; c < TILE_RHS; c++) xv[k][c] = widen(((const ELEM *)row)[c]);
            } else {
#pragma unroll
              for (U32 c = 0; c < TILE_RHS; c++) xv[k][c] = widen(p[c]);
            }
          }
#pragma unroll
          for (U32 bit = 1; bit < TILE_RHS; bit *= 2)
#pragma unroll
            for (U32 c = 0; c < TILE_RHS; c++)
              if ((c & bit) == 0) {
                const ACC low = xv[k][c], high = xv[k][c | bit];
                xv[k][c] = (mine & bit) != 0 ? high : low;
                xv[k][c | bit] = (mine & bit) != 0 ? low : high;
              }
        }
      } else {
#pragma unroll
        for (U32 k = 0; k < 8; k++)
#pragma unroll
          for (U32 i = 0; i < TILE_RHS; i++) {
            const U32 c = i ^ mine;
            if (k * 32 < left && c < cols) xv[k][i] = widen(xs[(I64)(k * 32) * xrs + (I64)c * xcs]);
          }
      }
    }

    // Who adds up the buffer's last sums frees it.
    if (uses >= BUFFERS) mbarrier_wait(free + buffer, (uses / BUFFERS - 1) & 1);
    ACC *to = sums + buffer * BUFFER + (wk * sets + wm) * SUMS + mine, before[TILE_RHS];
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++) before[c] = acc_zero();
#pragma unroll 1
    for (U32 stage = 0; stage < BATCH / ROWS; stage++, to += ROWS * TILE_RHS) {
      await_copies();
      __syncwarp();
      // All threads have read the stage that is replaced.
      copy(slot == 0 ? STAGES - 1 : slot - 1);
      stage_sums(ring + slot * STAGE_BYTES + offset, xv, before, writes, to);
      if (++slot == STAGES) slot = 0;
    }
#pragma unroll
    for (U32 level = 0; level < 5; level++) {
      ACC sent[TILE_RHS / 2];
      send(before, sent, level);
      receive(before, sent, level);
    }
    if (writes) *to = before[0];
    __syncwarp();
    if (t == 0) mbarrier_arrive(summed + buffer);
    if (uses > 0) {
      if (turn == warp) add_up(buffer_before, parity_before, part_before, row_before);
      if (++turn == warps) turn = 0;
    }
    part_before = part;
    buffer_before = buffer;
    parity_before = uses / BUFFERS & 1;
    row_before = (U64)at * granule;
    uses++;
    if (++buffer == BUFFERS) buffer = 0;
    fresh = ++at == granules;
    if (fresh) {
      at = 0;
      part++;
    }
  }
  if (turn == warp) add_up(buffer_before, parity_before, part_before, row_before);
}

#define OUTPUT_AT(o) ((I64)((o) / rhs) * yrs + (I64)((o) % rhs) * ycs)
