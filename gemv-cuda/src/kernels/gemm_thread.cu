// gemm-thread: Y = alpha A X + beta Y, one matrix of 8 to MAX_N <= 64 columns, real numbers. A thread has ROWS whole rows and
// TILE_RHS columns of X at a time. No exchange between threads.
//
//   tiles      of THREADS * ROWS rows. A block has every blocks-th of them, and copies the next one to shared memory, by
//              cp.async, while it multiplies one. Row r of a thread is r * THREADS rows behind its first.
//   in shared  of a row-major matrix, rows row_ld(n) elements apart, an odd number of words, or of elements of 8 bytes:
//              threads that read a column of neighbouring rows meet no bank twice. Of a column-major one, columns of
//              TILE_M elements.
//   X          The columns of X that the block has, up to GROUP_RHS, lie in shared memory, in the accumulator's type.
//   lanes      A lane has one column, or none. Up to eight lanes, l, l + 8, ..., are multiplied one after another and
//              added up as they come, in bit-reversed order; so are the eight sums of l = 0, 4, 2, 6, ... Lanes from
//              MAX_N on are left out, and +0 is added at the end.
//   Y          Neighbours in a row of Y that lie where a word of up to 16 bytes does are written by such words.
//   never read A and X where alpha = 0; Y where beta = 0; vectors without an element of the matrix. The one at a
//              column's end is read whole; allocations end with a whole one.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef TILE_RHS
#define TILE_RHS 4
#endif
#ifndef MAX_N
#define MAX_N 64
#endif
#define TILE_M (THREADS * ROWS)
#define GROUP_RHS (4 * TILE_RHS)
// Elements of a copy where the matrix allows it: by rows words of 4 bytes, by columns vectors.
#define PAIR_ELEMS (ELEM_BYTES < 4 ? 4 / ELEM_BYTES : 1)
#define WIDE_ELEMS (16 / ELEM_BYTES)
#if TILE_RHS * ELEM_BYTES % 16 == 0
#define Y_BYTES 16
typedef uint4 Y_WORD;
#elif TILE_RHS * ELEM_BYTES % 8 == 0
#define Y_BYTES 8
typedef uint2 Y_WORD;
#else
#define Y_BYTES 4
typedef U32 Y_WORD;
#endif
#define Y_PACKED (Y_BYTES / ELEM_BYTES)

// From row to row in shared memory, for n columns.
STATIC U32 row_ld(const U32 n) {
  const U32 words = (n * ELEM_BYTES + 3) / 4;
  return ELEM_BYTES < 8 ? (words | 1) * 4 / ELEM_BYTES : n | 1;
}

// Copies N elements to shared memory.
template <U32 N> STATIC void copy_async(ELEM *to, const ELEM *from) {
  const U32 bytes = N * ELEM_BYTES;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const U32 at = (U32)__cvta_generic_to_shared(to);
  if (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    return;
  }
  if (bytes >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(N * ELEM_BYTES == 8 ? 8 : 4)
                 : "memory");
    return;
  }
#endif
#pragma unroll
  for (U32 k = 0; k < N; k++) to[k] = from[k];
}
STATIC void end_of_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for this thread's copies but those of the last tile.
STATIC void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
}

// `rows` rows of n columns, N elements at a time: along rows, whose elements are neighbours, or along columns.
template <U32 N> STATIC void copy_rows(ELEM *to, const ELEM *from, const I64 rs, const I64 cs, const U32 rows, const U32 n) {
  const U32 along = n / N, ld = row_ld(n), down = THREADS / along, right = THREADS - down * along;
  U32 i = LID / along, j = LID - i * along;
  const ELEM *p = from + (I64)i * rs + (I64)(j * N) * cs;
  const I64 step = (I64)down * rs + (I64)(right * N) * cs, turn = rs - (I64)(along * N) * cs;
#pragma unroll 4
  while (i < rows) {
    copy_async<N>(to + i * ld + j * N, p);
    i += down, j += right, p += step;
    if (j >= along) i++, j -= along, p += turn;
  }
}
template <U32 N> STATIC void copy_columns(ELEM *to, const ELEM *from, const I64 cs, const U32 rows, const U32 n) {
  const U32 each = TILE_M / N, at_once = THREADS < each ? 1 : THREADS / each;
  for (U32 r = LID % each * N; r < TILE_M && r < rows; r += THREADS * N) {
    const ELEM *p = from + r;
#pragma unroll 4
    for (U32 j = LID / each; j < n; j += at_once) copy_async<N>(to + j * TILE_M + r, p + (I64)j * cs);
  }
}

// Sums of this thread, all of which are one subtree.
#define SUMS (ROWS * TILE_RHS)

typedef struct __align__(TILE_RHS * sizeof(ACC) < 16 ? TILE_RHS * sizeof(ACC) : 16) {
  ACC e[TILE_RHS];
} X_ROW;

// What a thread multiplies: its rows of a tile, column j of which is j * j_step behind `a`, and row r * r_step.
struct Factors {
  const ELEM *a;
  U32 r_step, j_step;
  const ACC *x;
};

// The sum of the lanes that are 8 * OFFSET, 8 * (OFFSET + STRIDE), ... behind the first one, of which `left` columns are
// left.
#define MEMBER static __device__ __forceinline__
template <U32 OFFSET, U32 STRIDE> struct Lanes {
  MEMBER void sum(ACC (&sum)[SUMS], const Factors &of, const U32 left) {
    Lanes<OFFSET, 2 * STRIDE>::sum(sum, of, left);
    if (OFFSET + STRIDE < MAX_N / 8) {
      ACC more[SUMS];
      Lanes<(OFFSET + STRIDE) % 8, 2 * STRIDE>::sum(more, of, left);
#pragma unroll
      for (U32 i = 0; i < SUMS; i++) sum[i] = acc_add(sum[i], more[i]);
    }
  }
};
template <U32 OFFSET> struct Lanes<OFFSET, 8> {
  MEMBER void sum(ACC (&sum)[SUMS], const Factors &of, const U32 left) {
#pragma unroll
    for (U32 i = 0; i < SUMS; i++) sum[i] = acc_zero();
    if (OFFSET * 8 >= left) return;
    const X_ROW xv = *(const X_ROW *)(of.x + OFFSET * 8 * GROUP_RHS);
#pragma unroll
    for (U32 r = 0; r < ROWS; r++) {
      const ACC av = widen(of.a[OFFSET * 8 * of.j_step + r * of.r_step]);
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++) sum[r * TILE_RHS + c] = acc_fma(av, xv.e[c], acc_zero());
    }
  }
};

// The thread's rows of the tile times TILE_RHS columns of X.
STATIC void multiply(ACC (&total)[SUMS], Factors of, const U32 n) {
  const ELEM *const a = of.a;
  const ACC *const x = of.x;
  ACC open[3][SUMS];
#pragma unroll 1
  for (U32 g = 0; g < 8; g++) {
    const U32 first = visited<8>(g);
    of.a = a + first * of.j_step;
    of.x = x + first * GROUP_RHS;
    ACC sum[SUMS];
    Lanes<0, 1>::sum(sum, of, n - first);
    merge<8>(open, sum, g);
#pragma unroll
    for (U32 i = 0; i < SUMS; i++) total[i] = sum[i];
  }
  if (n < LANES)
#pragma unroll
    for (U32 i = 0; i < SUMS; i++) total[i] = acc_add(total[i], acc_zero());
}

// Rule 6 for a row of Y: `cols` columns of it.
STATIC void write(ELEM *y, const I64 ycs, const ACC *sum, const U32 cols, const bool words, const ACC alpha,
                  const ACC beta) {
#if Y_PACKED > 1 && TILE_RHS % Y_PACKED == 0
  if (words && cols >= TILE_RHS) {
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c += Y_PACKED) {
      union {
        Y_WORD word;
        ELEM e[Y_PACKED];
      } packed;
      if (!acc_is(beta, (REAL)0)) packed.word = *(const Y_WORD *)(y + c);
#pragma unroll
      for (U32 k = 0; k < Y_PACKED; k++) finish(&packed.e[k], alpha, sum[c + k], beta);
      *(Y_WORD *)(y + c) = packed.word;
    }
    return;
  }
#endif
#pragma unroll
  for (U32 c = 0; c < TILE_RHS; c++)
    if (c < cols) finish(y + (I64)c * ycs, alpha, sum[c], beta);
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm_thread(GEMM_ARGUMENTS) {
  extern __shared__ uint4 shared[];
  begin(false);
  const U32 groups = (U32)ceil_div(rhs, GROUP_RHS), blocks = (U32)GROUPS / groups, block = (U32)GROUP_ID / groups;
  const U64 c0 = (U64)((U32)GROUP_ID % groups) * GROUP_RHS;
  const U32 cols = rhs - c0 < GROUP_RHS ? (U32)(rhs - c0) : GROUP_RHS, width = (U32)n;
  const U64 tiles = ceil_div(m, TILE_M);
  if (block >= blocks) return;
  if (acc_is(alpha, (REAL)0) || n == 0) {
    for (U64 tile = block; tile < tiles; tile += blocks)
      for (U32 r = 0; r < ROWS; r++) {
        const U64 i = tile * TILE_M + r * THREADS + LID;
        for (U32 c = 0; c < cols && i < m; c++)
          finish(y + y0 + (I64)i * yrs + (I64)(c0 + c) * ycs, alpha, acc_zero(), beta);
      }
    return;
  }
  const bool by_rows = cs == 1 && rs != 1;
  const U32 ld = row_ld(width), size = by_rows ? TILE_M * ld : TILE_M * width;
  ACC *const xs = (ACC *)shared;
  // Aligned for any copy.
  ELEM *const buffers = (ELEM *)(xs + LANES * GROUP_RHS);
  const U32 from_buffer = (size + WIDE_ELEMS - 1) / WIDE_ELEMS * WIDE_ELEMS;
  const bool pairs = PAIR_ELEMS > 1 && by_rows && width % PAIR_ELEMS == 0 && rs % PAIR_ELEMS == 0 &&
                     ADDRESS(a + a0) % (PAIR_ELEMS * ELEM_BYTES) == 0;
  const bool wide = !by_rows && ADDRESS(a + a0) % 16 == 0 && cs % WIDE_ELEMS == 0;
  const bool half = !by_rows && ADDRESS(a + a0) % (PAIR_ELEMS * ELEM_BYTES) == 0 && cs % PAIR_ELEMS == 0;
  const auto copy = [&](const U64 tile, ELEM *to) {
    if (tile < tiles) {
      const U64 i = tile * TILE_M;
      const U32 rows = m - i < TILE_M ? (U32)(m - i) : TILE_M;
      const ELEM *const from = a + a0 + (I64)i * rs;
      if (pairs) copy_rows<PAIR_ELEMS>(to, from, rs, cs, rows, width);
      else if (by_rows) copy_rows<1>(to, from, rs, cs, rows, width);
      else if (wide) copy_columns<WIDE_ELEMS>(to, from, cs, rows, width);
      else if (half) copy_columns<PAIR_ELEMS>(to, from, cs, rows, width);
      else copy_columns<1>(to, from, cs, rows, width);
    }
    end_of_copies();
  };
  copy(block, buffers);
  for (U32 e = LID; e < width * GROUP_RHS; e += THREADS) {
    const U32 j = e / GROUP_RHS, c = e % GROUP_RHS;
    xs[e] = c < cols ? widen(x[x0 + (I64)j * xrs + (I64)(c0 + c) * xcs]) : acc_zero();
  }
  const bool words = Y_PACKED > 1 && ycs == 1 && ADDRESS(y + y0) % Y_BYTES == 0 && yrs % (I64)Y_PACKED == 0;
  const U32 r_step = by_rows ? THREADS * ld : THREADS, j_step = by_rows ? 1 : TILE_M;
  U32 now = 0;
#pragma unroll 1
  for (U64 tile = block; tile < tiles; tile += blocks, now ^= 1) {
    copy(tile + blocks, buffers + (now ^ 1) * from_buffer);
    wait_for_copies();
    __syncthreads();
    const ELEM *const mine = buffers + now * from_buffer + LID * (by_rows ? ld : 1);
    const U64 i = tile * TILE_M + LID;
#pragma unroll 1
    for (U32 c = 0; c < cols; c += TILE_RHS) {
      ACC sum[SUMS];
      multiply(sum, Factors{mine, r_step, j_step, xs + c}, width);
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
        if (i + r * THREADS < m)
          write(y + y0 + (I64)(i + r * THREADS) * yrs + (I64)(c0 + c) * ycs, ycs, sum + r * TILE_RHS, cols - c, words,
                alpha, beta);
    }
    // What is copied next takes the place of this tile.
    __syncthreads();
  }
}
