// y = alpha A x + beta y, row-major, on GPUs. A block has a row: its sub-warps take the segments of the row
// side by side, and the next row is loaded meanwhile. The bits are those of docs/ORDER.md.
//
//   rows       SUBWARP * WARPS_K threads share ROWS rows. A block has SETS such sets of threads and
//              takes BLOCK_ROWS neighbouring rows at a time; set g has rows g, g + SETS, ... of them.
//              Persistent blocks: block b takes row blocks b, b + GROUPS, ...
//   lanes      thread t of a sub-warp owns, of each 64 columns, the vectors t, t + SUBWARP, ...: all
//              loads of its segment are in flight before the first is used.
//   segments   sub-warp k has segments k, k + WARPS_K, ..., one an iteration. Once the products of an
//              iteration are added, the loads of the next one are issued, so that they are in flight
//              during the halving. Where one iteration is enough, x stays in registers from row to row.
//   sums       lane l of the second level belongs to one sub-warp. Where there are shuffles, one warp of
//              the set (or all of a smaller set) halves the lanes of a finished row while the others go
//              on; else all take part. A single segment's sum is used as it is.
//   aligned    rows that begin where vectors do are read by vectors, and their elements behind the last
//              whole vector one by one. With other rows every element is a load of its own, in a short
//              loop: right, but slow where VEC > 1.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the rows' n elements.
//   LONG       rows of more than 65,536 columns are cut into pieces of so many. A block has a piece at a time
//              (SETS and ROWS are 1) and leaves its sum in the workspace; reduce_super_segments goes on.
#ifndef LONG
#define LONG 0
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef SUBWARP
#define SUBWARP 16
#endif
#ifndef WARPS_K
#define WARPS_K 2
#endif
#ifndef ROWS
#define ROWS 1
#endif
#define SLOTS (64 / (SUBWARP * VEC))
#define LOADS (4 * SLOTS)
#define ROW_THREADS (SUBWARP * WARPS_K)
#define SETS (THREADS / ROW_THREADS)
#define BLOCK_ROWS (SETS * ROWS)
// The threads that halve a row's lanes, and how many such warps a set has.
#define HALVERS (ROW_THREADS < 32 ? ROW_THREADS : 32)
#define SET_WARPS (ROW_THREADS / HALVERS)
#ifdef __NV_CL_C_VERSION
#define SHUFFLES 1
#else
#define SHUFFLES 0
#endif

// An address that is computed once: otherwise it is computed anew under the condition of each load.
STATIC GLOBAL const ELEM *pinned(GLOBAL const ELEM *p) {
#if SHUFFLES
  U64 at = ADDRESS(p);
  asm volatile("" : "+l"(at));
  return (GLOBAL const ELEM *)(uintptr_t)at;
#else
  return p;
#endif
}

// The sum of the lanes of SUBWARP neighbouring threads, SLOTS vectors each, for every one of them.
STATIC INLINED ACC halve_subwarp(ACC *acc, const U32 t, LOCAL_PTR(ACC) buffer) {
#pragma unroll
  for (U32 level = 1; level <= 6; level++)
#pragma unroll
    for (U32 k = 0; k < SLOTS / 2; k++)
      if (k < SLOTS >> level)
#pragma unroll
        for (U32 c = 0; c < VEC; c++)
          acc[k * VEC + c] = acc_add(acc[k * VEC + c], acc[(k + (SLOTS >> level)) * VEC + c]);
#if SHUFFLES
  // While a thread holds several values, each exchange also halves their number: the upper half of a
  // vector's lanes goes one way and the lower half the other.
#pragma unroll
  for (U32 level = 1; level <= 5; level++) {
    const U32 o = SUBWARP >> level, kept = VEC >> level;
    const bool upper = (t & o) != 0;
    if (kept > 0) {
#pragma unroll
      for (U32 c = 0; c < VEC / 2; c++)
        if (c < kept) {
          const ACC low = acc[c], high = acc[c + kept];
          const ACC other = acc_xor(upper ? low : high, o);
          acc[c] = acc_add(upper ? high : low, other);
        }
    } else if (o > 0) {
      acc[0] = acc_add(acc[0], acc_xor(acc[0], o));
    }
  }
  // The lanes of a vector, which the first levels have spread over the threads.
#pragma unroll
  for (U32 level = 1; level <= 3; level++)
    if (VEC >> level > 0) acc[0] = acc_add(acc[0], acc_xor(acc[0], SUBWARP >> level));
#else
  butterfly(acc, VEC, SUBWARP, THREADS, buffer);
#pragma unroll
  for (U32 level = 1; level <= 3; level++)
#pragma unroll
    for (U32 c = 0; c < VEC / 2; c++)
      if (c < VEC >> level) acc[c] = acc_add(acc[c], acc[c + (VEC >> level)]);
#endif
  return acc[0];
}

// What the threads of a set have written to local memory is there for all of them.
STATIC INLINED void set_barrier(void) {
#if SHUFFLES && SUBWARP * WARPS_K <= 32
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
#else
  BARRIER();
#endif
}

// What a thread computes.
typedef struct {
  U32 t, segment_k, set;                     // its place in the sub-warp, in the row, in the block
  U32 cols, segments, iterations, vectors;   // `vectors` columns are read by vectors
  bool whole;                                // rows begin where vectors do
  U64 m;
} SHARE;

// The thread's first column of an iteration.
STATIC U32 first_column(const SHARE w, const U32 iteration) {
  return (iteration * WARPS_K + w.segment_k) * SEG + w.t * VEC;
}

// Where row r of the thread's begins; rows beyond the last one are the last one again.
STATIC GLOBAL const ELEM *row_of(const SHARE w, GLOBAL const ELEM *a, const I64 rs, const U64 at,
                                 const U32 r) {
  const U64 i = at + w.set + r * SETS;
  return a + (I64)(i < w.m ? i : w.m - 1) * rs;
}

// The loads of one iteration of the block's rows from `at` on.
STATIC INLINED void load_rows(PACK *av, const SHARE w, GLOBAL const ELEM *a, const I64 rs, const U64 at,
                              const U32 iteration) {
  const U32 from = first_column(w, iteration);
#pragma unroll
  for (U32 r = 0; r < ROWS; r++) {
    GLOBAL const ELEM *p = pinned(row_of(w, a, rs, at, r) + from);
#pragma unroll
    for (U32 k = 0; k < LOADS; k++)
      load_if(&av[r * LOADS + k], p + k * SUBWARP * VEC, from + k * SUBWARP * VEC < w.vectors);
  }
}

// The same of x, which may have a stride.
STATIC INLINED void load_x(PACK *xv, const SHARE w, GLOBAL const ELEM *x, const U32 iteration) {
  const U32 from = first_column(w, iteration);
  GLOBAL const ELEM *p = pinned(x + from);
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
    load_if(&xv[k], p + k * SUBWARP * VEC, from + k * SUBWARP * VEC < w.vectors);
}
STATIC INLINED void load_strided_x(PACK *xv, const SHARE w, GLOBAL const ELEM *x, const I64 incx,
                                   const U32 iteration) {
  const U32 from = first_column(w, iteration);
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
    if (from + k * SUBWARP * VEC < w.vectors)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) xv[k].e[c] = x[(I64)(from + k * SUBWARP * VEC + c) * incx];
}

// The products of one iteration.
STATIC INLINED void add_products(ACC *acc, const PACK *av, const PACK *xv, const SHARE w,
                                 GLOBAL const ELEM *a, const I64 rs, GLOBAL const ELEM *x, const I64 incx,
                                 const U32 conj, const U64 at, const U32 iteration) {
  const U32 from = first_column(w, iteration);
#pragma unroll
  for (U32 i = 0; i < ROWS * SLOTS * VEC; i++) acc[i] = acc_zero();
#pragma unroll
  for (U32 k = 0; k < LOADS; k++)
    if (from + k * SUBWARP * VEC < w.vectors)
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          const U32 to = (r * SLOTS + k % SLOTS) * VEC + c;
          acc[to] = acc_fma(conj_if(widen(av[r * LOADS + k].e[c]), conj), widen(xv[k].e[c]), acc[to]);
        }
  // What vectors do not have. They have the first columns, so what is added here comes last.
  if (w.vectors < w.cols && (!w.whole || iteration + 1 == w.iterations)) {
#pragma unroll 1
    for (U32 round = from; round < from + SEG; round += 64)
#pragma unroll
      for (U32 k = 0; k < SLOTS; k++)
#pragma unroll
        for (U32 c = 0; c < VEC; c++) {
          const U32 j = round + k * SUBWARP * VEC + c;
          if (j >= w.vectors && j < w.cols) {
            const ACC xe = widen(x[(I64)j * incx]);
#pragma unroll
            for (U32 r = 0; r < ROWS; r++) {
              const U32 to = (r * SLOTS + k) * VEC + c;
              acc[to] = acc_fma(conj_if(widen(row_of(w, a, rs, at, r)[j]), conj), xe, acc[to]);
            }
          }
        }
  }
}

#if LONG
#define RESULT_ARGUMENTS GLOBAL ACC *result
#else
#define RESULT_ARGUMENTS GLOBAL ELEM *y, const I64 incy, const ACC alpha, const ACC beta
#endif
// The sums of the products of one iteration; the result after the last one. `done` is how many rows were
// finished before. Every thread of the block takes part.
STATIC INLINED void add_sums(ACC *acc, const SHARE w, RESULT_ARGUMENTS, const U64 at, const U32 iteration,
                             const U32 done, LOCAL_PTR(ACC) lanes, LOCAL_PTR(ACC) buffer) {
  const U32 halver = LID % HALVERS, set_warp = LID % ROW_THREADS / HALVERS;
  const bool finished = iteration + 1 == w.iterations;
  // Thread r of a sub-warp goes on with row r.
  ACC sum = halve_subwarp(acc, w.t, buffer);
#pragma unroll
  for (U32 r = 1; r < ROWS; r++) {
    const ACC other = halve_subwarp(acc + r * SLOTS * VEC, w.t, buffer);
    if (w.t == r) sum = other;
  }
  bool mine = w.segment_k == 0;
  if (w.segments > 1) {
    const U32 s = iteration * WARPS_K + w.segment_k;
    LOCAL_PTR(ACC) here = lanes + (done & 1u) * (BLOCK_ROWS * 64);
    if (w.t < ROWS && s < w.segments) {
      LOCAL_PTR(ACC) lane = here + ((w.t * SETS + w.set) * 64 + s % LANES);
      *lane = acc_add(s < LANES ? acc_zero() : *lane, sum);
    }
    // Who writes to these lanes again has passed the barrier of the row in between, which the halvers
    // reach after they have read.
    if (finished) set_barrier();
    mine = finished && set_warp == (SHUFFLES ? done % SET_WARPS : 0);
    if (SHUFFLES ? mine : finished) {
      const U32 filled = w.segments < LANES ? w.segments : LANES;
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        ACC v[64 / HALVERS];
#pragma unroll
        for (U32 k = 0; k < 64 / HALVERS; k++) {
          const U32 l = k * HALVERS + halver;
          v[k] = l < filled ? here[(r * SETS + w.set) * 64 + l] : acc_zero();
        }
#pragma unroll
        for (U32 level = 1; level <= 3; level++)
#pragma unroll
          for (U32 k = 0; k < 32 / HALVERS; k++)
            if (k < 64 / HALVERS >> level) v[k] = acc_add(v[k], v[k + (64 / HALVERS >> level)]);
        butterfly(v, 1, HALVERS, THREADS, buffer);
        if (halver == r) sum = v[0];
      }
    }
  }
#if LONG
  if (mine && halver == 0) *result = sum;
#else
  const U64 i = at + w.set + halver * SETS;
  if (mine && halver < ROWS && i < w.m) finish(y + (I64)i * incy, alpha, sum, beta);
#endif
}

#if LONG
#define PIECE (SEG * SEG)

// A piece of a row: what a thread computes of it, its first elements of A and x, and the place of its sum.
typedef struct {
  SHARE w;
  GLOBAL const ELEM *a, *x;
  GLOBAL ACC *result;
} PART;

// Piece `number` of all rows; the pieces of a row follow each other.
STATIC PART part_of(SHARE w, const U64 number, const U64 n, GLOBAL const ELEM *a, const I64 rs,
                    GLOBAL const ELEM *x, const I64 incx, const bool zero, GLOBAL ACC *workspace) {
  // Not number % pieces: Oclgrind does not know an instruction of what a compiler makes of both.
  const U64 pieces = ceil_div(n, PIECE), i = number / pieces, piece = number - i * pieces;
  const U64 left = n - piece * PIECE;
  // alpha = 0: as if there were no columns.
  w.cols = zero ? 0 : left < PIECE ? (U32)left : PIECE, w.segments = (w.cols + SEG - 1) / SEG;
  w.iterations = w.segments <= WARPS_K ? 1 : (w.segments + WARPS_K - 1) / WARPS_K;
  w.vectors = w.whole ? w.cols & ~(VEC - 1u) : 0;
  PART of;
  of.w = w;
  of.a = a + ((I64)i * rs + (I64)(piece * PIECE));
  of.x = x + (I64)(piece * PIECE) * incx;
  of.result = workspace + (i * levels_total(pieces) + piece);
  return of;
}

KERNEL(THREADS) row_block_long(ARGUMENTS) {
  LOCAL ACC lanes[2 * BLOCK_ROWS * 64];
  LOCAL ACC buffer[EXCHANGE_SIZE(THREADS, VEC)];
  GLOBAL const ELEM *first_a = a + a0, *first_x = x + x0;
  const bool zero = acc_is(alpha, (REAL)0);
  const U64 all = m * ceil_div(n, PIECE);
  SHARE w;
  w.t = LID % SUBWARP, w.segment_k = LID / SUBWARP, w.set = 0, w.m = 1;
  w.whole = BEYOND(first_a) == 0 && (m == 1 || ((U64)rs & (VEC - 1u)) == 0);
  const bool x_vectors = incx == 1 && BEYOND(first_x) == 0;
  PACK av[LOADS], xv[LOADS];
  ACC acc[SLOTS * VEC];
  U32 done = 0;
#if SHUFFLES
  // As in row_block: `acc` belongs to the piece `now` in this iteration; the next loads are of `to`.
  U64 number = GROUP_ID;
  PART to = part_of(w, number < all ? number : 0, n, first_a, rs, first_x, incx, zero, workspace), now = to;
  U32 iteration = 0, next = 0;
  bool there = false;
#pragma unroll 1
  for (;;) {
    if (number < all) {
      load_rows(av, to.w, to.a, 0, 0, next);
      if (x_vectors) load_x(xv, to.w, to.x, next);
    }
    if (there) {
      add_sums(acc, now.w, now.result, 0, iteration, done, lanes, buffer);
      done += iteration + 1 == now.w.iterations;
    }
    now = to;
    iteration = next;
    there = number < all;
    if (!there) break;
    if (++next == to.w.iterations) {
      next = 0;
      number += GROUPS;
      if (number < all) to = part_of(w, number, n, first_a, rs, first_x, incx, zero, workspace);
    }
    if (!x_vectors) load_strided_x(xv, now.w, now.x, incx, iteration);
    add_products(acc, av, xv, now.w, now.a, 0, now.x, incx, conj, 0, iteration);
  }
#else
  for (U64 number = GROUP_ID; number < all; number += GROUPS, done++) {
    const PART now = part_of(w, number, n, first_a, rs, first_x, incx, zero, workspace);
    for (U32 iteration = 0; iteration < now.w.iterations; iteration++) {
      load_rows(av, now.w, now.a, 0, 0, iteration);
      if (x_vectors) load_x(xv, now.w, now.x, iteration);
      else load_strided_x(xv, now.w, now.x, incx, iteration);
      add_products(acc, av, xv, now.w, now.a, 0, now.x, incx, conj, 0, iteration);
      add_sums(acc, now.w, now.result, 0, iteration, done, lanes, buffer);
    }
  }
#endif
}
#else
KERNEL(THREADS) row_block(ARGUMENTS) {
  // Double-buffered: a row may begin while the one before is halved.
  LOCAL ACC lanes[2 * BLOCK_ROWS * 64];
  LOCAL ACC buffer[EXCHANGE_SIZE(THREADS, VEC)];
  GLOBAL const ELEM *first_a = a + a0, *first_x = x + x0;
  SHARE w;
  w.t = LID % SUBWARP, w.segment_k = LID / SUBWARP % WARPS_K, w.set = LID / ROW_THREADS;
  // alpha = 0: as if there were no columns.
  w.cols = acc_is(alpha, (REAL)0) ? 0 : (U32)n, w.segments = (w.cols + SEG - 1) / SEG;
  w.iterations = w.segments <= WARPS_K ? 1 : (w.segments + WARPS_K - 1) / WARPS_K;
  w.whole = BEYOND(first_a) == 0 && (m == 1 || ((U64)rs & (VEC - 1u)) == 0);
  w.vectors = w.whole ? w.cols & ~(VEC - 1u) : 0;
  w.m = m;
  const bool x_vectors = incx == 1 && BEYOND(first_x) == 0;
  PACK av[ROWS * LOADS], xv[LOADS];
  ACC acc[ROWS * SLOTS * VEC];
  U32 done = 0;
#if SHUFFLES
  // `acc` belongs to the block's rows from `at` on, in this iteration; `to` and `next` follow. At first
  // there are none.
  U64 at = m, to = GROUP_ID * BLOCK_ROWS;
  U32 iteration = w.iterations - 1, next = 0;
  bool fresh = true; // x is not in the registers yet
#pragma unroll 1
  for (;;) {
    if (to < m) {
      load_rows(av, w, first_a, rs, to, next);
      if (fresh && x_vectors) load_x(xv, w, first_x, next);
    }
    if (at < m) {
      add_sums(acc, w, y + y0, incy, alpha, beta, at, iteration, done, lanes, buffer);
      done += iteration + 1 == w.iterations;
    }
    at = to;
    iteration = next;
    if (at >= m) break;
    if (++next == w.iterations) {
      next = 0;
      to += GROUPS * BLOCK_ROWS;
    }
    if (fresh && !x_vectors) load_strided_x(xv, w, first_x, incx, iteration);
    fresh = w.iterations > 1;
    add_products(acc, av, xv, w, first_a, rs, first_x, incx, conj, at, iteration);
  }
#else
  // One after the other: registers that are alive across the barriers of the halving are not kept by
  // every compiler.
  for (U64 at = GROUP_ID * BLOCK_ROWS; at < m; at += GROUPS * BLOCK_ROWS, done++)
    for (U32 iteration = 0; iteration < w.iterations; iteration++) {
      load_rows(av, w, first_a, rs, at, iteration);
      if (x_vectors) load_x(xv, w, first_x, iteration);
      else load_strided_x(xv, w, first_x, incx, iteration);
      add_products(acc, av, xv, w, first_a, rs, first_x, incx, conj, at, iteration);
      add_sums(acc, w, y + y0, incy, alpha, beta, at, iteration, done, lanes, buffer);
    }
#endif
}
#endif
