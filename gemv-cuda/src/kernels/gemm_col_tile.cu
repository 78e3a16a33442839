// gemm-col-tile: Y = alpha A X + beta Y, column-major, one matrix, real numbers. A block multiplies tiles of TILE_M
// rows by one segment of columns with TILE_RHS columns of X: A is read once for TILE_RHS columns.
//
//   warps      each has the same rows and other lanes: warp w has lanes w, w + WARPS, ... of a segment.
//   threads    thread t has rows t * VEC .. of the tile and all columns of the panel.
//   lanes      a step is the pair of lanes l and l + 32. The steps of a warp come in bit-reversed order, so
//              that a stack of partial sums replaces the lanes. Warps meet in shared memory, once a tile.
//   stages     A comes by cp.async into a ring of STAGES steps a warp. A thread reads what it
//              copied itself, but for REALIGN: no barrier.
//   REALIGN    Columns of elements of 2 bytes that begin anywhere are copied by whole words, from the one that holds
//              their first element on, and shifted when they are read. A warp's columns begin in the same half of a
//              word: they are an even number of columns apart. Then a thread reads what others of its warp copied.
//   X          a segment of the panel lies in shared memory, in the accumulator's type. A tile's X is copied
//              along with the tile's first step.
//   parts      a super-segment (256 segments) has `parts` parts: part p has segments p, p + parts, ..., which are
//              whole subtrees of the second level. Their lanes come in bit-reversed order as well.
//   tasks      a task is a part of a set of TILE_M rows. The tasks of a panel are dealt evenly to its blocks.
//   sums       Of several parts or super-segments, they go to `workspace` (entry part * m * rhs + output), and
//              gemm_parts.cuh follows.
//   the end    Past the last column +0 * -0 takes the place of the products, which leaves any sum as it is.
//   never read A and X where alpha = 0; Y where beta = 0; vectors without an element of the matrix. The
//              one at a column's end is read whole; allocations end with a whole one. Of REALIGN, neither are words: the
//              one at a column's begin has one element before it.
#ifndef THREADS
#define THREADS 256
#endif
#ifndef TILE_RHS
#define TILE_RHS 4
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef REALIGN
#define REALIGN 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#define WARPS (THREADS / 32)
#define TILE_M (32 * VEC)
#define TILE (TILE_M * TILE_RHS)
#define STEPS (32 / WARPS)
#define LOG2(v) ((v) >= 64 ? 6 : (v) >= 32 ? 5 : (v) >= 16 ? 4 : (v) >= 8 ? 3 : (v) >= 4 ? 2 : (v) >= 2 ? 1 : 0)
#define LEVELS LOG2(STEPS)
// Elements from column to column of a step: a further word, padded to a load. Elements of a step: its lanes have four
// columns each.
#define RING_LD (TILE_M + (REALIGN ? VEC : 0))
#define STAGE (8 * RING_LD)
#define X_SIZE (SEG * TILE_RHS)
// The copies of a tile's X run ahead of its products by as many tiles as the ring has.
#define X_BUFFERS ((STAGES + STEPS - 1) / STEPS + 1)
// Sums of a thread.
#define SUMS (VEC * TILE_RHS)
// Outputs of a thread that are neighbours: a vector of shared memory, if every thread has one.
#define WIDEST (16 / (ELEM_BYTES < 4 ? 4 : ELEM_BYTES))
#define GROUP (TILE % (THREADS * WIDEST) == 0 ? WIDEST : 1)

// With more blocks, registers are too few to write Y.
#define WRITES_Y (MIN_BLOCKS < 3)

// Super-segments of a row, as in the plan, which says how many parts each has.
STATIC U32 super_segments_of(const U64 n) { return n == 0 ? 1 : (U32)ceil_div(n, (U64)SEG * SEG); }
#define PARTS_ARGUMENT , const U32 parts
#define PARTS parts

// `v` of `bits` bits, the last one first.
STATIC U32 reversed(const U32 v, const U32 bits) { return bits == 0 ? 0 : __brev(v) >> (32 - bits); }

// The tiles of a block in turn: which task, and which segment of it. What follows from these is computed anew each
// time: registers are few.
#define MEMBER __device__ __forceinline__
struct Walk {
  U32 task, part, set; // `part` counts over the super-segments
  U32 visit, segment;  // the visit to a lane of the second level; the segment in the super-segment
  U32 log_parts;

  MEMBER U32 super_segment() const { return part >> log_parts; }
  MEMBER U32 part_of_it() const { return part & ((1u << log_parts) - 1); }

  // Segments of the super-segment, and lanes that have one.
  MEMBER U32 end(const U64 n) const {
    const U64 left = ceil_div(n, SEG) - (U64)super_segment() * SEG;
    return left < SEG ? (U32)left : SEG;
  }
  MEMBER U32 lanes(const U64 n) const { return end(n) < LANES ? end(n) : LANES; }
  // Lanes are visited as if there were 2^bits of this part.
  MEMBER U32 bits(const U64 n) const {
    const U32 p = part_of_it(), own = p < lanes(n) ? ((lanes(n) - p - 1) >> log_parts) + 1 : 0;
    return own > 1 ? 32 - __clz(own - 1) : 0;
  }
  MEMBER U32 lane(const U32 visit, const U64 n) const {
    return part_of_it() + (reversed(visit, bits(n)) << log_parts);
  }
  // Whether a further segment of the same lane follows.
  MEMBER bool stays(const U64 n) const { return segment + LANES < end(n); }
  // Whether the next visit finds a lane without segments: only every other one may.
  MEMBER U32 skips(const U64 n) const {
    return visit + 1 < 1u << bits(n) && lane(visit + 1, n) >= lanes(n) ? 1 : 0;
  }
  MEMBER bool last_of_task(const U64 n) const { return !stays(n) && visit + skips(n) + 1 >= 1u << bits(n); }
  MEMBER void begin(const U32 first, const U32 sets, const U32 parts) {
    log_parts = 31 - __clz(parts);
    task = first;
    part = first / sets;
    set = first % sets;
    visit = 0;
    segment = part_of_it();
  }
  // The next tile.
  MEMBER void next(const U32 sets, const U32 tasks, const U64 n) {
    if (stays(n)) {
      segment += LANES;
      return;
    }
    visit += 1 + skips(n);
    if (visit < 1u << bits(n)) {
      segment = lane(visit, n);
      return;
    }
    task++;
    if (++set == sets) {
      set = 0;
      part++;
    }
    visit = 0;
    segment = part_of_it();
    skip_empty(sets, tasks, n);
  }
  // A part of the last super-segment may have no segment.
  MEMBER void skip_empty(const U32 sets, const U32 tasks, const U64 n) {
    while (task < tasks && segment >= end(n)) {
      task += sets - set;
      set = 0;
      part++;
      segment = part_of_it();
    }
  }
  // The segment, counted from the first of the row.
  MEMBER U32 of_row() const { return super_segment() * SEG + segment; }
};

// Copies BYTES bytes to shared memory, or zeros where there is nothing to copy. 2 bytes are copied at once.
template <U32 BYTES> struct Bytes;
template <> struct Bytes<2> { typedef U16 Type; };
template <> struct Bytes<4> { typedef U32 Type; };
template <> struct Bytes<8> { typedef uint2 Type; };
template <> struct Bytes<16> { typedef uint4 Type; };
template <U32 BYTES> STATIC void copy_async(void *to, const void *from, const bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const U32 at = (U32)__cvta_generic_to_shared(to);
  if (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
    return;
  }
  if (BYTES >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from),
                 "n"(BYTES == 16 || BYTES < 4 ? 4 : BYTES), "r"(there ? BYTES : 0)
                 : "memory");
    return;
  }
#endif
  typedef typename Bytes<BYTES>::Type T;
  *(T *)to = there ? *(const T *)from : T();
}
STATIC void end_of_step() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for this thread's copies of the oldest of STAGES steps.
STATIC void wait_for_step() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
#endif
}

// Neighbouring sums in shared memory, read and written by up to 16 bytes.
template <U32 N> struct __align__(N * sizeof(ACC) < 16 ? N * sizeof(ACC) : 16) Group {
  ACC e[N];
};
template <U32 N> STATIC void read_group(Group<N> &to, const ACC *from) { to = *(const Group<N> *)from; }
template <U32 N> STATIC void write_group(ACC *to, const Group<N> &from) { *(Group<N> *)to = from; }
template <U32 N> STATIC void add_group(Group<N> &to, const Group<N> &more) {
#pragma unroll
  for (U32 k = 0; k < N; k++) to.e[k] = acc_add(to.e[k], more.e[k]);
}

// A row of the panel of X: by 16 bytes where there are as many.
STATIC void read_x(ACC (&xv)[TILE_RHS], const ACC *p) {
  const Group<TILE_RHS> row = *(const Group<TILE_RHS> *)p;
#pragma unroll
  for (U32 c = 0; c < TILE_RHS; c++) xv[c] = row.e[c];
}

// The four products of lane l of a step, l + 32 for half = 1, for every row and column of the thread. `a` is the step in
// shared memory, `xs` is where X has row l. Of REALIGN, a column begins `bits` bits after its first word.
STATIC void products(ACC (&acc)[SUMS], const ELEM *a, const ACC *xs, const U32 half, const U32 bits) {
  const U32 t = LID % 32;
#pragma unroll
  for (U32 q = 0; q < 4; q++) {
    PACK av;
    ACC xv[TILE_RHS];
    const ELEM *const p = a + (2 * q + half) * RING_LD + t * VEC;
    av.words = *(const WORDS *)p;
#if REALIGN
    // The elements of a thread are VEC / 2 words, of which each ends in the next one.
    U32 *const w = (U32 *)&av.words;
    const U32 next = *(const U32 *)(p + VEC);
#pragma unroll
    for (U32 k = 0; k < VEC / 2; k++) w[k] = __funnelshift_r(w[k], k + 1 < VEC / 2 ? w[k + 1] : next, bits);
#endif
    read_x(xv, xs + (64 * q + 32 * half) * TILE_RHS);
    ACC wide[VEC];
#pragma unroll
    for (U32 r = 0; r < VEC; r++) wide[r] = widen(av.e[r]);
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++)
#pragma unroll
      for (U32 r = 0; r < VEC; r++)
        acc[c * VEC + r] = acc_fma(wide[r], xv[c], q == 0 ? acc_zero() : acc[c * VEC + r]);
  }
}

STATIC void tiles(GEMM_ARGUMENTS PARTS_ARGUMENT, unsigned char *shared) {
  ELEM *const ring = (ELEM *)shared + LID / 32 * (STAGES * STAGE);
  ACC *const xs = (ACC *)((ELEM *)shared + WARPS * STAGES * STAGE);
  ACC *const meet = xs + X_BUFFERS * X_SIZE; // the warps' sums
  ACC *const open = meet + WARPS * TILE;     // sums of the second level that wait; the last is a lane under way
  const U32 t = LID % 32, w = LID / 32;
  const U32 panels = (U32)ceil_div(rhs, TILE_RHS), c0 = (U32)GROUP_ID % panels * TILE_RHS;
  const U32 cols = rhs - c0 < TILE_RHS ? (U32)(rhs - c0) : TILE_RHS;
  const U32 sets = (U32)ceil_div(m, TILE_M), all_parts = super_segments_of(n) * parts;
  const U32 blocks = (U32)GROUPS / panels, block = (U32)GROUP_ID / panels;
  const U64 all_tasks = (U64)sets * all_parts;
  const U32 tasks = (U32)((block + 1) * all_tasks / blocks);
  Walk here;
  here.begin((U32)(block * all_tasks / blocks), sets, parts);
  here.skip_empty(sets, tasks, n);
  if (here.task >= tasks) return;

  const bool vectors = REALIGN || VEC == 1 || (BEYOND(a + a0) == 0 && (cs & (I64)(VEC - 1)) == 0);
  // Of REALIGN: the element of its first word with which each column of this warp begins.
  const U32 odd = REALIGN ? (U32)((ADDRESS(a + a0) / sizeof(ELEM) + w * (U64)cs) & 1) : 0;
  // X by rows: neighbours in memory by neighbouring threads. By columns likewise.
  const bool x_by_columns = xrs == 1;

  // What is copied next: a step of a tile, to a stage of the ring.
  Walk ahead = here;
  U32 x_there = ~0u; // the segment of X that was copied last
  U32 to_stage = 0, to_x = X_BUFFERS - 1;
  bool whole_tile = false; // by vectors, none of which is beyond the matrix
  const ELEM *from;
  const auto enter = [&]() {
    const U64 first = (U64)ahead.of_row() * SEG, row = (U64)ahead.set * TILE_M;
    const U32 left = n - first < SEG ? (U32)(n - first) : SEG;
    whole_tile = vectors && left == SEG && m - row >= TILE_M;
    from = a + a0 + (I64)(row + t * (REALIGN ? 2 : VEC)) + (I64)(first + w) * cs - odd;
    if (ahead.of_row() == x_there) return;
    x_there = ahead.of_row();
    to_x = to_x + 1 == X_BUFFERS ? 0 : to_x + 1;
    ACC *const to = xs + to_x * X_SIZE;
    const ELEM *const x_from = x + x0 + (I64)first * xrs + (I64)c0 * xcs;
    // Entry e of the segment of the panel is that of row j and column c.
    const auto copy_x = [&](const U32 j, const U32 c, const bool there) {
      const ELEM *const p = x_from + (I64)j * xrs + (I64)c * xcs;
      if (there && sizeof(ELEM) == sizeof(ACC)) copy_async<sizeof(ACC)>(to + j * TILE_RHS + c, p, true);
      else to[j * TILE_RHS + c] = there ? widen(*p) : (ACC)-0.0;
    };
    const bool whole = left == SEG && cols == TILE_RHS && SEG * TILE_RHS % THREADS == 0;
    if (whole && x_by_columns) {
#pragma unroll
      for (U32 e = 0; e < SEG * TILE_RHS; e += THREADS) copy_x((e + LID) % SEG, (e + LID) / SEG, true);
    } else if (whole) {
#pragma unroll
      for (U32 e = 0; e < SEG * TILE_RHS; e += THREADS) copy_x(e / TILE_RHS + LID / TILE_RHS, LID % TILE_RHS, true);
    } else {
#pragma unroll 1
      for (U32 e = LID; e < SEG * TILE_RHS; e += THREADS) {
        const U32 j = x_by_columns ? e % SEG : e / TILE_RHS, c = x_by_columns ? e / SEG : e % TILE_RHS;
        copy_x(j, c, j < left && c < cols);
      }
    }
  };
  const auto copy_step = [&](const U32 step, const bool first_of_all) {
    if (step == 0) {
      if (!first_of_all) ahead.next(sets, tasks, n);
      if (ahead.task < tasks) enter();
    }
    if (ahead.task < tasks) {
      const U32 first = WARPS * reversed(step, LEVELS);
      const ELEM *p = from + (I64)first * cs;
      ELEM *const to = ring + to_stage * STAGE + t * (REALIGN ? 2 : VEC);
      if (REALIGN) {
        // Neighbouring threads have neighbouring words, and thread k the one beyond those of column k.
        const U64 column = (U64)ahead.of_row() * SEG + first + w, row = (U64)ahead.set * TILE_M;
        const U64 left = m - row + odd;
#pragma unroll
        for (U32 k = 0; k < 8; k++, p += 32 * cs)
#pragma unroll
          for (U32 i = 0; i < TILE_M; i += 64) {
            const bool read = whole_tile || (column + 32 * k < n && i + 2 * t < left);
            copy_async<4>(to + k * RING_LD + i, read ? p + i : a, read);
          }
        if (odd && t < 8) {
          const bool read = whole_tile || (column + 32 * t < n && TILE_M < left);
          const ELEM *const beyond = from + (I64)(first + 32 * t) * cs + (TILE_M - 2 * (I64)t);
          copy_async<4>(ring + to_stage * STAGE + t * RING_LD + TILE_M, read ? beyond : a, read);
        }
      } else if (whole_tile) {
#pragma unroll
        for (U32 k = 0; k < 8; k++, p += 32 * cs) copy_async<VEC * sizeof(ELEM)>(to + k * RING_LD, p, true);
      } else {
        const U64 column = (U64)ahead.of_row() * SEG + first + w, row = (U64)ahead.set * TILE_M + t * VEC;
        const U32 rows = row >= m ? 0 : m - row < VEC ? (U32)(m - row) : VEC;
#pragma unroll 1
        for (U32 k = 0; k < 8; k++, p += 32 * cs) {
          const bool there = column + 32 * k < n;
          if (vectors) {
            const bool read = there && rows > 0;
            copy_async<VEC * sizeof(ELEM)>(to + k * RING_LD, read ? p : a, read);
          } else {
#pragma unroll
            for (U32 r = 0; r < VEC; r++) {
              const bool read = there && r < rows;
              copy_async<sizeof(ELEM)>(to + k * RING_LD + r, read ? p + r : a, read);
            }
          }
        }
      }
    }
    end_of_step();
    to_stage = to_stage + 1 == STAGES ? 0 : to_stage + 1;
  };
#pragma unroll
  for (U32 s = 0; s < STAGES; s++) copy_step(s % STEPS, s == 0);

  U32 stage = 0, x_now = 0;
#pragma unroll 1
  while (here.task < tasks) {
    ACC waiting[LEVELS > 0 ? LEVELS : 1][SUMS], sum[SUMS];
    const ACC *const x_here = xs + x_now * X_SIZE + w * TILE_RHS;
#pragma unroll
    for (U32 step = 0; step < STEPS; step++) {
      wait_for_step();
      if (step == 0) __syncthreads(); // X of this tile is there, and `meet` was read
      else if (REALIGN) __syncwarp();
      const ELEM *const at = ring + stage * STAGE;
      const ACC *const x_at = x_here + WARPS * reversed(step, LEVELS) * TILE_RHS;
      ACC other[SUMS];
      products(sum, at, x_at, 0, 16 * odd);
      products(other, at, x_at, 1, 16 * odd);
      if (REALIGN) __syncwarp(); // what is copied next replaces what others read
      copy_step((step + STAGES) % STEPS, false);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
      for (U32 i = 0; i < SUMS; i++) sum[i] = acc_add(sum[i], other[i]);
      // The steps so far are this many subtrees: it joins those of its own size.
#pragma unroll
      for (U32 k = 0; k < LEVELS; k++) {
        if ((step & ((2u << k) - 1)) == (2u << k) - 1) {
#pragma unroll
          for (U32 i = 0; i < SUMS; i++) sum[i] = acc_add(waiting[k][i], sum[i]);
        } else if ((step & ((1u << k) - 1)) == (1u << k) - 1) {
#pragma unroll
          for (U32 i = 0; i < SUMS; i++) waiting[k][i] = sum[i];
        }
      }
    }
    ACC *const mine = meet + w * TILE;
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++) {
      Group<VEC> out;
#pragma unroll
      for (U32 r = 0; r < VEC; r++) out.e[r] = sum[c * VEC + r];
      write_group(mine + c * TILE_M + t * VEC, out);
    }
    const bool stays = here.stays(n), last = here.last_of_task(n);
    const U32 skips = here.skips(n), visit = here.visit + skips, set = here.set, part = here.part;
    const bool first_of_lane = here.segment < LANES;
    const U32 before = here.of_row();
    here.next(sets, tasks, n);
    if (here.of_row() != before) x_now = x_now + 1 == X_BUFFERS ? 0 : x_now + 1;
    __syncthreads();
#pragma unroll
    for (U32 q = 0; q < TILE; q += THREADS * GROUP) {
      const U32 o = q + LID * GROUP;
      if (TILE % (THREADS * GROUP) != 0 && o >= TILE) break;
      Group<GROUP> v[WARPS];
#pragma unroll
      for (U32 k = 0; k < WARPS; k++) read_group(v[k], meet + k * TILE + o);
#pragma unroll
      for (U32 d = WARPS / 2; d > 0; d /= 2)
#pragma unroll
        for (U32 k = 0; k < WARPS / 2; k++)
          if (k < d) add_group(v[k], v[k + d]);
      Group<GROUP> value = v[0];
      if (n > SEG) {
        ACC *const under_way = open + (LOG2(LANES) - here.log_parts) * TILE + o;
        Group<GROUP> so_far = {};
        if (!first_of_lane) read_group(so_far, under_way);
        add_group(value, so_far);
        if (stays) {
          write_group(under_way, value);
        } else {
          U32 k = skips;
#pragma unroll 1
          for (; visit >> k & 1u; k++) {
            read_group(so_far, open + k * TILE + o);
            add_group(value, so_far);
          }
          if (!last) write_group(open + k * TILE + o, value);
        }
      }
      if (!last) continue;
      const U64 c = c0 + o / TILE_M;
#pragma unroll
      for (U32 r = 0; r < GROUP; r++) {
        const U64 i = (U64)set * TILE_M + o % TILE_M + r;
        if (i >= m || c >= rhs) continue;
        if (WRITES_Y && all_parts == 1) finish(y + y0 + (I64)i * yrs + (I64)c * ycs, alpha, value.e[r], beta);
        else workspace[((U64)part * rhs + c) * m + i] = value.e[r];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm_col_tile(GEMM_ARGUMENTS PARTS_ARGUMENT) {
  extern __shared__ uint4 shared[];
  const bool writes_y = WRITES_Y && super_segments_of(n) * parts == 1;
  begin(!writes_y);
  if (acc_is(alpha, (REAL)0) || n == 0) {
    // Of several parts, the last launch writes Y.
    if (!writes_y) return;
    for (U64 o = GROUP_ID * THREADS + LID; o < m * rhs; o += GROUPS * THREADS)
      finish(y + y0 + (I64)(o % m) * yrs + (I64)(o / m) * ycs, alpha, acc_zero(), beta);
    return;
  }
  tiles(m, n, rhs, batch, a, a0, rs, cs, ab, x, x0, xrs, xcs, xb, y, y0, yrs, ycs, yb, alpha, beta, conj, workspace,
        counters, parts, (unsigned char *)shared);
}

// Where Y has output o of a part.
#define OUTPUT_AT(o) ((I64)((o) % m) * yrs + (I64)((o) / m) * ycs)
