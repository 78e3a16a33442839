// y = alpha A x + beta y for long matrices of few rows, whose columns are short and follow each other
// in memory: a block reads COLS columns at a time, as they lie.
//
//   rows       HEIGHT >= m of them, a power of two. Thread t has rows (t % PER) * VEC ... of a column.
//   lanes      thread t has lanes t / PER, + COLS, ... of a segment, each with its four columns: all of
//              them are under way before the first is used.
//   segments   blocks take turns: block b has segments b, b + GROUPS, ... The first levels of the
//              halving are in a thread's registers; what its warps hold meets in shared memory,
//              where one warp after the other does the rest.
//   sums       one segment: the block writes y. Else the sums are left in `work`, row by row, and
//              slab_chunks and slab_rows reduce them, up to 256 x 256 segments.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the m x n elements.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef HEIGHT
#define HEIGHT 16
#endif
#define PER (HEIGHT / VEC)
#define COLS (THREADS / PER)
#define HELD (64 / COLS)
#define WARPS (THREADS / 32)

KERNEL(THREADS) slab(ARGUMENTS) {
  __shared__ ACC meet[2][WARPS > 1 ? THREADS * VEC : 1];
  const U32 col = LID / PER, row = LID % PER * VEC, t = LID % 32;
  const U32 rows = row >= m ? 0 : m - row < VEC ? (U32)(m - row) : VEC;
  const U64 segments = ceil_div(n, SEG);
  if (segments <= 1 && (acc_is(alpha, (REAL)0) || n == 0)) {
    for (U32 c = 0; c < rows && col == 0; c++)
      finish(y + (y0 + (I64)(row + c) * incy), alpha, acc_zero(), beta);
    return;
  }
  if (acc_is(alpha, (REAL)0)) return; // the last launch writes y

  next_may_begin();
  const ELEM *p = a + a0 + (rows > 0 ? row : 0);
  const bool whole = rows == VEC && BEYOND(p) == 0 && (cs & (I64)(VEC - 1)) == 0;
  U32 turn = 0;
  for (U64 s = GROUP_ID; s < segments; s += GROUPS, turn++) {
    const U32 len = (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
    const ELEM *ps = p + (I64)(s * SEG) * cs, *xs = x + x0 + (I64)(s * SEG) * incx;
    PACK av[4][HELD];
    ELEM xv[4][HELD];
    if (whole && (VEC > 1 || len == SEG)) {
#pragma unroll
      for (U32 k = 0; k < 4; k++)
#pragma unroll
        for (U32 h = 0; h < HELD; h++)
          stream(av[k][h], ps + (I64)(k * 64 + h * COLS + col) * cs,
                 VEC == 1 || k * 64 + h * COLS + col < len);
    } else {
#pragma unroll
      for (U32 k = 0; k < 4; k++)
#pragma unroll
        for (U32 h = 0; h < HELD; h++) {
          const U32 j = k * 64 + h * COLS + col;
#pragma unroll
          for (U32 c = 0; c < VEC; c++)
            if (j < len && c < rows) av[k][h].e[c] = ps[(I64)j * cs + c];
        }
    }
#pragma unroll
    for (U32 k = 0; k < 4; k++)
#pragma unroll
      for (U32 h = 0; h < HELD; h++) {
        const U32 j = k * 64 + h * COLS + col;
        xv[k][h] = xs[(I64)(j < len ? j : 0) * incx];
      }
    ACC acc[HELD][VEC];
#pragma unroll
    for (U32 h = 0; h < HELD; h++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) {
        acc[h][c] = acc_zero();
#pragma unroll
        for (U32 k = 0; k < 4; k++)
          if (k * 64 + h * COLS + col < len && c < rows)
            acc[h][c] =
                acc_fma(conj_if(widen(av[k][h].e[c]), conj), widen(xv[k][h]), acc[h][c]);
      }
    halve(acc);
    if (WARPS > 1) {
      // The warps take turns at the rest. Whoever writes here again has passed a barrier that this
      // turn's warp reaches after it has read.
      ACC *here = meet[turn & 1u];
#pragma unroll
      for (U32 c = 0; c < VEC; c++) here[c * THREADS + LID] = acc[0][c];
      __syncthreads();
      if (LID / 32 != turn % WARPS) continue;
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
    for (U32 o = 16; o >= PER && o > 0; o /= 2)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) acc[0][c] = acc_add(acc[0][c], acc_xor(acc[0][c], o));
    // The rows of this thread as of the warp's first PER threads: t % PER is LID % PER.
    if (t < PER)
#pragma unroll
      for (U32 c = 0; c < VEC; c++)
        if (c < rows) {
          if (segments == 1) finish(y + (y0 + (I64)(row + c) * incy), alpha, acc[0][c], beta);
          else work[(row + c) * segments + s] = acc[0][c];
        }
  }
}

// 256 segment sums of a row to one, a warp each: row i's go to work[m * segments + i * chunks].
KERNEL(128) slab_chunks(ARGUMENTS) {
  wait_for_previous();
  const U64 segments = ceil_div(n, SEG), chunks = ceil_div(segments, SEG);
  const U32 k = (U32)GROUP_ID * 4 + LID / 32, i = k / (U32)chunks, chunk = k % (U32)chunks;
  if (i >= m || acc_is(alpha, (REAL)0)) return;
  next_may_begin();
  const U64 left = segments - (U64)chunk * SEG;
  const ACC sum = warp_sum(work + i * segments + (U64)chunk * SEG, (U32)(left < SEG ? left : SEG));
  if (LID % 32 == 0) work[m * segments + i * chunks + chunk] = sum;
}

// The last level, a warp for each row.
KERNEL(128) slab_rows(ARGUMENTS) {
  wait_for_previous();
  const U64 segments = ceil_div(n, SEG), chunks = ceil_div(segments, SEG);
  const U64 i = GROUP_ID * 4 + LID / 32;
  if (i >= m) return;
  const bool zero = acc_is(alpha, (REAL)0);
  const ACC *from = segments <= SEG ? work + i * segments : work + m * segments + i * chunks;
  const ACC sum = warp_sum(from, zero ? 0 : (U32)(segments <= SEG ? segments : chunks));
  if (LID % 32 == 0) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
}
