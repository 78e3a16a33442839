// col-few-rows: y = alpha A x + beta y, column-major, for few rows and many columns, whose columns are
// short and follow each other in memory. A block reads COLS_AT_ONCE columns at a time, as they lie.
//
//   rows       TILE_M >= m of them, a power of two. Thread t has rows (t % COLUMN_THREADS) * VEC ... of
//              a column.
//   lanes      thread t has lanes t / COLUMN_THREADS, + COLS_AT_ONCE, ... of a segment, each with its
//              four columns: all of them are in flight before the first is used.
//   segments   persistent blocks: block b has segments b, b + GROUPS, ... The first levels of the
//              halving are in a thread's registers; the sums of warps meet in shared memory, where the
//              warps do the rest in rotation, one an iteration.
//   sums       one segment: the block writes y. Else the sums are left in `workspace`, row by row, and
//              col_few_rows_super_segments and col_few_rows_reduce add them, up to 256 x 256 segments.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the m x n elements.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef TILE_M
#define TILE_M 16
#endif
#define COLUMN_THREADS (TILE_M / VEC)
#define COLS_AT_ONCE (THREADS / COLUMN_THREADS)
#define THREAD_LANES (64 / COLS_AT_ONCE)
#define WARPS (THREADS / 32)

KERNEL(THREADS) col_few_rows(ARGUMENTS) {
  begin(n > SEG);
  __shared__ ACC exchange[2][WARPS > 1 ? THREADS * VEC : 1];
  const U32 col = LID / COLUMN_THREADS, row = LID % COLUMN_THREADS * VEC, t = LID % 32;
  const U32 rows = row >= m ? 0 : m - row < VEC ? (U32)(m - row) : VEC;
  const U64 segments = ceil_div(n, SEG);
  if (segments <= 1 && (acc_is(alpha, (REAL)0) || n == 0)) {
    for (U32 c = 0; c < rows && col == 0; c++)
      finish(y + (y0 + (I64)(row + c) * incy), alpha, acc_zero(), beta);
    return;
  }
  if (acc_is(alpha, (REAL)0)) return; // the last launch writes y

  const ELEM *p = a + a0 + (rows > 0 ? row : 0);
  const bool whole = rows == VEC && BEYOND(p) == 0 && (cs & (I64)(VEC - 1)) == 0;
  U32 iteration = 0;
  for (U64 s = GROUP_ID; s < segments; s += GROUPS, iteration++) {
    const U32 len = (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
    const ELEM *ps = p + (I64)(s * SEG) * cs, *xs = x + x0 + (I64)(s * SEG) * incx;
    PACK av[4][THREAD_LANES];
    ELEM xv[4][THREAD_LANES];
    if (whole && (VEC > 1 || len == SEG)) {
#pragma unroll
      for (U32 k = 0; k < 4; k++)
#pragma unroll
        for (U32 h = 0; h < THREAD_LANES; h++)
          load_a(av[k][h], ps + (I64)(k * 64 + h * COLS_AT_ONCE + col) * cs,
                 VEC == 1 || k * 64 + h * COLS_AT_ONCE + col < len);
    } else {
#pragma unroll
      for (U32 k = 0; k < 4; k++)
#pragma unroll
        for (U32 h = 0; h < THREAD_LANES; h++) {
          const U32 j = k * 64 + h * COLS_AT_ONCE + col;
#pragma unroll
          for (U32 c = 0; c < VEC; c++)
            if (j < len && c < rows) av[k][h].e[c] = ps[(I64)j * cs + c];
        }
    }
#pragma unroll
    for (U32 k = 0; k < 4; k++)
#pragma unroll
      for (U32 h = 0; h < THREAD_LANES; h++) {
        const U32 j = k * 64 + h * COLS_AT_ONCE + col;
        xv[k][h] = xs[(I64)(j < len ? j : 0) * incx];
      }
    ACC acc[THREAD_LANES][VEC];
#pragma unroll
    for (U32 h = 0; h < THREAD_LANES; h++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) {
        acc[h][c] = acc_zero();
#pragma unroll
        for (U32 k = 0; k < 4; k++)
          if (k * 64 + h * COLS_AT_ONCE + col < len && c < rows)
            acc[h][c] =
                acc_fma(conj_if(widen(av[k][h].e[c]), conj), widen(xv[k][h]), acc[h][c]);
      }
    halve(acc);
    if (WARPS > 1) {
      // The warps do the rest in rotation. Who writes here again has passed a barrier that this
      // iteration's warp reaches after it has read.
      ACC *here = exchange[iteration & 1u];
#pragma unroll
      for (U32 c = 0; c < VEC; c++) here[c * THREADS + LID] = acc[0][c];
      __syncthreads();
      if (LID / 32 != iteration % WARPS) continue;
#pragma unroll
      for (U32 c = 0; c < VEC; c++) {
        ACC v[WARPS];
#pragma unroll
        for (U32 w = 0; w < WARPS; w++) v[w] = here[c * THREADS + w * 32 + t];
        halve(v);
        acc[0][c] = v[0];
      }
    }
#pragma unroll
    for (U32 o = 16; o >= COLUMN_THREADS && o > 0; o /= 2)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) acc[0][c] = acc_add(acc[0][c], acc_xor(acc[0][c], o));
    // The warp's first COLUMN_THREADS threads have all rows: t % COLUMN_THREADS is LID % COLUMN_THREADS.
    if (t < COLUMN_THREADS)
#pragma unroll
      for (U32 c = 0; c < VEC; c++)
        if (c < rows) {
          if (segments == 1) finish(y + (y0 + (I64)(row + c) * incy), alpha, acc[0][c], beta);
          else workspace[(row + c) * segments + s] = acc[0][c];
        }
  }
}

// 256 segment sums of a row to one, a warp each: row i's go to workspace[m * segments + i * super_segments].
KERNEL(128) col_few_rows_super_segments(ARGUMENTS) {
  begin(true);
  const U64 segments = ceil_div(n, SEG), super_segments = ceil_div(segments, SEG);
  const U32 k = (U32)GROUP_ID * 4 + LID / 32;
  const U32 i = k / (U32)super_segments, super_segment = k % (U32)super_segments;
  if (i >= m || acc_is(alpha, (REAL)0)) return;
  const U64 left = segments - (U64)super_segment * SEG;
  const ACC sum = warp_sum(workspace + i * segments + (U64)super_segment * SEG, (U32)(left < SEG ? left : SEG));
  if (LID % 32 == 0) workspace[m * segments + i * super_segments + super_segment] = sum;
}

// The last level, a warp for each row.
KERNEL(128) col_few_rows_reduce(ARGUMENTS) {
  begin(false);
  const U64 segments = ceil_div(n, SEG), super_segments = ceil_div(segments, SEG);
  const U64 i = GROUP_ID * 4 + LID / 32;
  if (i >= m) return;
  const bool zero = acc_is(alpha, (REAL)0);
  const ACC *from = segments <= SEG ? workspace + i * segments : workspace + m * segments + i * super_segments;
  const ACC sum = warp_sum(from, zero ? 0 : (U32)(segments <= SEG ? segments : super_segments));
  if (LID % 32 == 0) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
}
