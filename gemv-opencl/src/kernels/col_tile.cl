// y = alpha A x + beta y, column-major, on GPUs. A block reads tiles of TILE_M rows by one segment of
// columns. The bits are those of docs/ORDER.md. CUDA's kernel of this name has the same tiles, but clusters of
// blocks, which OpenCL C has no words for, where this one has a last block.
//
//   rows       sets of TILE_M rows. Thread t has rows (t % COLUMN_THREADS) * VEC ... of its set;
//              neighbours read neighbouring elements of a column.
//   lanes      thread t has lanes t / COLUMN_THREADS, + COLS_AT_ONCE, ... of a segment. The first levels
//              of the halving are in its registers; the others by a thread a row, through local memory.
//   unroll     a segment has four rounds of 64 columns; UNROLL of them are in flight at once. The next
//              tile's are loaded into the registers before the last one is summed up.
//   tiles      numbered along the rows first, so that blocks that run at the same time read
//              neighbouring pieces of the same columns. Block b has tiles b, b + GROUPS, ...
//   sums       one segment: the block writes y. Else the sums are left in `workspace`, segment by segment
//              (entry s * m + i), and tiles_super_segments and tiles_reduce add them, up to
//              256 x 256 segments.
//   last_block LAST_BLOCK = 1: no further launches. When a block has written the sums of all its tiles, it
//              counts itself in for each of them. Of those with a set of rows and a super-segment (256
//              segments), the last one to do so adds their sums; of the super-segments of a set, the
//              last one adds theirs. Whoever is last resets the counter to 0.
//   row_accs   ROW_ACCS > 0: a block has a set of rows with all of its segments one after another, and
//              keeps so many lanes of the second level of each row: no second launch. 2 to ROW_ACCS
//              segments, or 256 where it keeps all 64 lanes.
//   vectors    where every column begins and ends where vectors do; else elements are read one by one.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the m x n elements.
#ifndef THREADS
#define THREADS 256
#endif
#ifndef TILE_M
#define TILE_M 32
#endif
#ifndef UNROLL
#define UNROLL 1
#endif
#ifndef LAST_BLOCK
#define LAST_BLOCK 0
#endif
#ifndef ROW_ACCS
#define ROW_ACCS 0
#endif
#define WHOLE_ROWS (ROW_ACCS > 0)
#define COLUMN_THREADS (TILE_M / VEC)
#define COLS_AT_ONCE (THREADS / COLUMN_THREADS)
#define THREAD_LANES (64 / COLS_AT_ONCE)
// What a vector's elements are apart in local memory: in other banks than those of its neighbours.
#define PLANE (THREADS + 32 / VEC)
// Elements of x of a thread.
#define X_LOADS (SEG / THREADS + (SEG < THREADS))

// Loads rounds from .. from + UNROLL of a tile. Of this thread's columns in them, those that are
// k * 64 + h * COLS_AT_ONCE behind its first one are read if that is less than what it returns.
STATIC int read_tile(PACK *av, const bool vectors, const U64 m, const U64 n, GLOBAL const ELEM *a,
                     const I64 cs, const U32 s, const U32 set, const U32 from) {
  const U32 col = LID / COLUMN_THREADS, mine = LID % COLUMN_THREADS * VEC;
  const U64 first = (U64)s * SEG, row = (U64)set * TILE_M + mine;
  const U32 len = n - first < SEG ? (U32)(n - first) : SEG;
  const U32 rows = row >= m ? 0 : m - row < VEC ? (U32)(m - row) : VEC;
  const int left = rows == 0 ? 0 : (int)len - (int)(from * 64 + col);
  const I64 jump = (I64)COLS_AT_ONCE * cs;
  GLOBAL const ELEM *p = a + ((I64)row + (I64)(first + from * 64 + col) * cs);
#pragma unroll
  for (U32 k = 0; k < UNROLL; k++)
#pragma unroll
    for (U32 h = 0; h < THREAD_LANES; h++) {
      const bool there = (int)(k * 64 + h * COLS_AT_ONCE) < left;
      if (vectors) {
        load_if(&av[k * THREAD_LANES + h], p, there);
      } else {
#pragma unroll
        for (U32 c = 0; c < VEC; c++)
          av[k * THREAD_LANES + h].e[c] = there && c < rows ? p[c] : (ELEM)(0);
      }
      p += jump;
    }
  return left;
}

// The x of segment s, spread over the threads.
STATIC void read_x(ELEM *xv, const U64 n, GLOBAL const ELEM *x, const I64 incx, const U32 s) {
#pragma unroll
  for (U32 k = 0; k < X_LOADS; k++) {
    const U64 j = (U64)s * SEG + k * THREADS + LID;
    xv[k] = k * THREADS + LID < SEG && j < n ? x[(I64)j * incx] : (ELEM)(0);
  }
}
STATIC INLINED void leave_x(const ELEM *xv, LOCAL_PTR(ELEM) to) {
#pragma unroll
  for (U32 k = 0; k < X_LOADS; k++)
    if (k * THREADS + LID < SEG) to[k * THREADS + LID] = xv[k];
}

// Without RESTRICT: the simulator of the tests does not know what becomes of it when a function is
// inlined.
#define TILES_ARGUMENTS                                                                        \
  const U64 m, const U64 n, GLOBAL const ELEM *a, const I64 cs, GLOBAL const ELEM *x, const I64 incx, \
      GLOBAL ELEM *y, const I64 incy, const ACC alpha, const ACC beta, const U32 conj,           \
      GLOBAL ACC *workspace, LOCAL_PTR(ACC) exchange, LOCAL_PTR(ELEM) xs, LOCAL_PTR(ACC) lanes
#define TILES m, n, a, cs, x, incx, y, incy, alpha, beta, conj, workspace, exchange, xs, lanes
#define TILES_VALUES                                                                           \
  m, n, a + a0, cs, x + x0, incx, y + y0, incy, alpha, beta, conj, workspace, exchange, xs, lanes

// The tiles of a block. Inlined into two functions with a constant `vectors`: the two ways must not
// share registers in flight, and a compiler could make two calls of one function into one.
STATIC INLINED void tiles(const bool vectors, TILES_ARGUMENTS) {
  const U32 sets = (U32)ceil_div(m, TILE_M), segments = (U32)ceil_div(n, SEG);
  const U32 blocks = (U32)GROUPS, block = (U32)GROUP_ID, col = LID / COLUMN_THREADS;
  const U32 quotient = block / sets, s_step = blocks / sets;
  U32 s = WHOLE_ROWS ? 0 : quotient, set = WHOLE_ROWS ? block : block - quotient * sets;
  const U32 set_step = WHOLE_ROWS ? blocks : blocks - s_step * sets;
  bool last = s >= segments || set >= sets;

  PACK av[UNROLL * THREAD_LANES];
  ELEM xv[X_LOADS];
  int left = 0;
  if (!last) {
    left = read_tile(av, vectors, m, n, a, cs, s, set, 0);
    read_x(xv, n, x, incx, s);
    leave_x(xv, xs);
  }
  BARRIER();
  for (U32 iteration = 0; !last; iteration++) {
    const U32 rounds = n - (U64)s * SEG < SEG ? ((U32)(n - (U64)s * SEG) + 63) / 64 : 4;
    U32 next_s = s + (WHOLE_ROWS ? 1 : s_step), next_set = WHOLE_ROWS ? set : set + set_step;
    if (WHOLE_ROWS) {
      if (next_s >= segments) {
        next_s = 0;
        next_set += set_step;
      }
    } else if (next_set >= sets) {
      next_set -= sets;
      next_s++;
    }
    last = WHOLE_ROWS ? next_set >= sets : next_s >= segments;
    ACC acc[THREAD_LANES][VEC];
#pragma unroll
    for (U32 h = 0; h < THREAD_LANES; h++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) acc[h][c] = acc_zero();
    LOCAL_PTR(ELEM) here_x = xs + (iteration & 1u) * SEG + col;
#pragma unroll 1
    for (U32 from = 0; from < rounds; from += UNROLL) {
#pragma unroll
      for (U32 k = 0; k < UNROLL; k++)
#pragma unroll
        for (U32 h = 0; h < THREAD_LANES; h++)
          if ((int)(k * 64 + h * COLS_AT_ONCE) < left) {
            const ACC xe = widen(here_x[from * 64 + k * 64 + h * COLS_AT_ONCE]);
#pragma unroll
            for (U32 c = 0; c < VEC; c++)
              acc[h][c] = acc_fma(conj_if(widen(av[k * THREAD_LANES + h].e[c]), conj), xe, acc[h][c]);
          }
      // The registers are free again: the next loads are in flight during the rest.
      const bool more = from + UNROLL < rounds;
      if (more || !last)
        left = read_tile(av, vectors, m, n, a, cs, more ? s : next_s, more ? set : next_set,
                         more ? from + UNROLL : 0);
    }
    if (!last) read_x(xv, n, x, incx, next_s);
    // Trip counts are constant, with a guard, so that every index is a constant.
#pragma unroll
    for (U32 level = 1; level <= 6; level++)
#pragma unroll
      for (U32 h = 0; h < THREAD_LANES / 2; h++)
        if (h < THREAD_LANES >> level)
#pragma unroll
          for (U32 c = 0; c < VEC; c++)
            acc[h][c] = acc_add(acc[h][c], acc[h + (THREAD_LANES >> level)][c]);

    // Who reads here in iteration t has done so before the barrier of iteration t + 1, and iteration
    // t + 2 writes after it. In each iteration other threads take the rows.
    LOCAL_PTR(ACC) here = exchange + (iteration & 1u) * (VEC * PLANE);
#pragma unroll
    for (U32 c = 0; c < VEC; c++) here[c * PLANE + LID] = acc[0][c];
    if (!last) leave_x(xv, xs + ((iteration + 1) & 1u) * SEG);
    BARRIER();
    const U32 who = (LID - iteration * TILE_M) & (THREADS - 1);
    const U64 i = (U64)set * TILE_M + who;
    if (who < TILE_M && i < m) {
      ACC v[COLS_AT_ONCE];
#pragma unroll
      for (U32 g = 0; g < COLS_AT_ONCE; g++)
        v[g] = here[who % VEC * PLANE + g * COLUMN_THREADS + who / VEC];
#pragma unroll
      for (U32 level = 1; level <= 6; level++)
#pragma unroll
        for (U32 g = 0; g < COLS_AT_ONCE / 2; g++)
          if (g < COLS_AT_ONCE >> level) v[g] = acc_add(v[g], v[g + (COLS_AT_ONCE >> level)]);
#if WHOLE_ROWS
      // Other threads' lanes of this row were written before this iteration's barrier.
      LOCAL_PTR(ACC) lane = lanes + s % LANES * TILE_M + who;
      *lane = acc_add(s < LANES ? acc_zero() : *lane, v[0]);
      if (next_set != set) {
        const U32 filled = segments < LANES ? segments : LANES;
#pragma unroll 1
        for (U32 d = ROW_ACCS / 2; d > 0; d /= 2)
#pragma unroll 1
          for (U32 k = 0; k + d < filled && k < d; k++)
            lanes[k * TILE_M + who] = acc_add(lanes[k * TILE_M + who], lanes[(k + d) * TILE_M + who]);
        finish(y + (I64)i * incy, alpha, lanes[who], beta);
      }
#else
      if (segments == 1) finish(y + (I64)i * incy, alpha, v[0], beta);
      else workspace[s * m + i] = v[0];
#endif
    }
    s = next_s;
    set = next_set;
  }
}

STATIC INLINED void tiles_by_vectors(TILES_ARGUMENTS) {
  tiles(true, TILES);
}
STATIC INLINED void tiles_by_elements(TILES_ARGUMENTS) {
  tiles(false, TILES);
}

// The sum of up to 256 values from[0], from[m], ... of a row, for thread r of `rows`, where thread (r, g) of
// rows x 8 has lanes g, g + 8, ...: halved as in the tiles.
STATIC INLINED ACC row_sum(GLOBAL const ACC *from, const U64 m, const U32 len, const U32 rows,
                   LOCAL_PTR(ACC) exchange) {
  const U32 r = LID % rows, g = LID / rows;
  ACC acc[8];
#pragma unroll
  for (U32 q = 0; q < 8; q++) acc[q] = acc_zero();
#pragma unroll 1
  for (U32 j = g; j < len; j += 64) {
    ACC v[8];
#pragma unroll
    for (U32 q = 0; q < 8; q++)
      if (j + q * 8 < len) v[q] = from[(j + q * 8) * m];
#pragma unroll
    for (U32 q = 0; q < 8; q++)
      if (j + q * 8 < len) acc[q] = acc_add(acc[q], v[q]);
  }
#pragma unroll
  for (U32 level = 1; level <= 3; level++)
#pragma unroll
    for (U32 q = 0; q < 4; q++)
      if (q < 8u >> level) acc[q] = acc_add(acc[q], acc[q + (8u >> level)]);
  exchange[g * rows + r] = acc[0];
  BARRIER();
  ACC v[8];
#pragma unroll
  for (U32 q = 0; q < 8; q++) v[q] = exchange[q * rows + r];
#pragma unroll
  for (U32 level = 1; level <= 3; level++)
#pragma unroll
    for (U32 q = 0; q < 4; q++)
      if (q < 8u >> level) v[q] = acc_add(v[q], v[q + (8u >> level)]);
  return v[0];
}

#if LAST_BLOCK
// Tiles that a block counts itself in for at once.
#define COUNTED 32
// What this thread wrote, or saw written, before is seen by every block before what it writes after (Caps::fences).
#ifdef __NV_CL_C_VERSION
#define FENCE() asm volatile("membar.gl;" ::: "memory")
#else
#define FENCE() mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif

// Counts this block in. Returns 1, and resets the counter, if all of so many blocks have counted. BARRIER_GLOBAL goes
// before, for what the block's other threads wrote, and after, for what they read.
STATIC U32 is_last(GLOBAL U32 *counter, const U32 blocks) {
  FENCE();
  if (atomic_inc(counter) + 1 < blocks) return 0;
  *counter = 0;
  FENCE();
  return 1;
}

// Adds `len` sums, from[0], from[m], ..., of each row of a set.
STATIC INLINED void add_set(GLOBAL const ACC *from, const U64 m, const U32 set, const U32 len, GLOBAL ACC *to,
                    GLOBAL ELEM *y, const I64 incy, const ACC alpha, const ACC beta, LOCAL_PTR(ACC) exchange) {
  const U32 at_once = THREADS / 8;
  for (U32 first = 0; first < TILE_M; first += at_once) {
    const U32 row = first + LID % at_once;
    const U64 i = (U64)set * TILE_M + row;
    const bool there = row < TILE_M && i < m;
    const ACC sum = row_sum(from + i, m, there ? len : 0, at_once, exchange);
    if (there && LID < at_once) {
      if (to) to[i] = sum;
      else finish(y + (I64)i * incy, alpha, sum, beta);
    }
    // The exchange is free again.
    BARRIER();
  }
}

// Adds the sums of the sets for which this block was the last to count itself in.
STATIC INLINED void add_as_last(const U64 m, const U64 n, GLOBAL ELEM *y, const I64 incy, const ACC alpha, const ACC beta,
                        GLOBAL ACC *workspace, GLOBAL U32 *counters, LOCAL_PTR(ACC) exchange,
                        LOCAL_PTR(U32) last) {
  const U32 sets = (U32)ceil_div(m, TILE_M), segments = (U32)ceil_div(n, SEG);
  const U32 super_segments = (segments + SEG - 1) / SEG;
  const U64 tiles = (U64)sets * segments;
  for (U64 first = GROUP_ID; first < tiles; first += COUNTED * GROUPS) {
    BARRIER_GLOBAL();
    if (LID < COUNTED) {
      const U64 tile = first + LID * GROUPS;
      const U32 super_segment = (U32)(tile / sets) / SEG, left = segments - super_segment * SEG;
      last[LID] = tile < tiles && is_last(counters + ((U64)super_segment * sets + tile % sets),
                                          left < SEG ? left : SEG);
    }
    BARRIER_GLOBAL();
    for (U32 k = 0; k < COUNTED; k++) {
      if (!last[k]) continue;
      const U64 tile = first + k * GROUPS;
      const U32 super_segment = (U32)(tile / sets) / SEG, set = (U32)(tile % sets);
      const U32 left = segments - super_segment * SEG;
      GLOBAL ACC *sums = workspace + (U64)segments * m;
      add_set(workspace + (U64)super_segment * SEG * m, m, set, left < SEG ? left : SEG,
              super_segments > 1 ? sums + (U64)super_segment * m : 0, y, incy, alpha, beta, exchange);
      if (super_segments == 1) continue;
      BARRIER_GLOBAL();
      if (LID == 0)
        last[COUNTED] = is_last(counters + ((U64)super_segments * sets + set), super_segments);
      BARRIER_GLOBAL();
      if (!last[COUNTED]) continue;
      add_set(sums, m, set, super_segments, 0, y, incy, alpha, beta, exchange);
    }
  }
}
#endif

KERNEL(THREADS) col_tile(ARGUMENTS) {
  LOCAL ACC exchange[2 * VEC * PLANE];
  LOCAL ELEM xs[2 * SEG];
  LOCAL ACC lanes[WHOLE_ROWS ? ROW_ACCS * TILE_M : 1];
  if (acc_is(alpha, (REAL)0) || n == 0) {
    // Of several segments, the last launch writes y.
    const bool all = WHOLE_ROWS || LAST_BLOCK || n <= SEG;
    for (U64 i = GROUP_ID * THREADS + LID; all && i < m; i += GROUPS * THREADS)
      finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
    return;
  }
  if (VEC == 1 || (BEYOND(a + a0) == 0 && ((U64)cs & (VEC - 1u)) == 0 && (m & (VEC - 1u)) == 0))
    tiles_by_vectors(TILES_VALUES);
  else
    tiles_by_elements(TILES_VALUES);
#if LAST_BLOCK
  LOCAL U32 last[COUNTED + 1];
  if (n > SEG) add_as_last(m, n, y + y0, incy, alpha, beta, workspace, counters, exchange, last);
#endif
}

// 256 segment sums of a row to one: super_segment c of row i goes to workspace[m * segments + c * m + i].
KERNEL(256) tiles_super_segments(ARGUMENTS) {
  LOCAL ACC exchange[8 * 32];
  const U64 segments = ceil_div(n, SEG);
  const U32 sets = (U32)ceil_div(m, 32), super_segment = (U32)GROUP_ID / sets;
  const U64 i = (U64)((U32)GROUP_ID - super_segment * sets) * 32 + LID % 32;
  const U64 left = segments - (U64)super_segment * SEG;
  if (acc_is(alpha, (REAL)0)) return;
  const U32 len = i >= m ? 0 : (U32)(left < SEG ? left : SEG);
  const ACC sum = row_sum(workspace + ((U64)super_segment * SEG * m + i), m, len, 32, exchange);
  if (LID < 32 && i < m) workspace[(segments + super_segment) * m + i] = sum;
}

// The last level.
KERNEL(256) tiles_reduce(ARGUMENTS) {
  LOCAL ACC exchange[8 * 32];
  const U64 segments = ceil_div(n, SEG), super_segments = ceil_div(segments, SEG);
  const U64 i = GROUP_ID * 32 + LID % 32;
  const U64 count = segments <= SEG ? segments : super_segments;
  const U32 len = i >= m || acc_is(alpha, (REAL)0) ? 0 : (U32)count;
  const ACC sum = row_sum(workspace + ((segments <= SEG ? 0 : segments * m) + i), m, len, 32, exchange);
  if (LID < 32 && i < m) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
}
