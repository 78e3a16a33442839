// Y = alpha A X + beta Y, column-major, one matrix, on GPUs: TILE_RHS columns of X from local memory. The frame is
// gemm_frame.k; the bits are those of docs/ORDER.md.
//
//   rows       A block is THREADS_M x THREADS_K threads. Thread (tx, ty) computes VEC neighbouring rows.
//   columns    The segment's rows of X lie in local memory, in the accumulator's type, TILE_RHS columns
//              together: A is read once for them.
//   lanes      Thread (tx, ty) owns lanes ty, ty + THREADS_K, ... and visits them in bit-reversed order: a
//              stack of partial sums replaces all but one of them. So sums of more columns fit in registers
//              than in gemm_col.k, and more blocks on a multiprocessor, whose loads are in flight at the same
//              time. (With all loads of a segment issued at once, registers are too few for that: slower.)
//   X          has the place where the sums are exchanged afterwards.
//   never read A and X where alpha = 0; Y where beta = 0; anything outside of the m x n elements.
#ifndef THREADS
#define THREADS 256
#endif
#ifndef THREADS_K
#define THREADS_K 8
#endif
#ifndef TILE_RHS
#define TILE_RHS 8
#endif
#define ENTRY gemm_col_tile
#define LANES_KEPT 64
#define HELD THREADS_K
#define SLOTS (LANES / THREADS_K)
#define LOG_SLOTS (SLOTS >= 64 ? 6 : SLOTS >= 32 ? 5 : SLOTS >= 16 ? 4 : SLOTS >= 8 ? 3 : SLOTS >= 4 ? 2 : SLOTS >= 2 ? 1 : 0)
#define THREADS_M (THREADS / THREADS_K)
// The frame's words: rows of a group, groups of a block, where a lane and an output lie.
#define GROUP_ROWS VEC
#define BLOCK_GROUPS THREADS_M
#define LANE_AT(l) (l)
#define OUT_ROW(o) ((o) % (THREADS_M * VEC))
#define OUT_COL(o) ((o) / (THREADS_M * VEC))
#define PITCH (THREADS_M * VEC * TILE_RHS)
// X is read from local memory by vectors: the frame's arrays begin where they do.
#undef LOCAL
#define LOCAL __local __attribute__((aligned(16)))

// What a thread computes: `rows` neighbouring rows, none beyond the last.
typedef struct {
  GLOBAL const ELEM *a;
  GLOBAL const ELEM *x;
  U32 rows;
} PLACE;

STATIC void place_of(PLACE *at, const U64 set, const U64 m, const U64 batch, GLOBAL const ELEM *a,
                     const I64 rs, const I64 ab, GLOBAL const ELEM *x, const I64 xb) {
  const U64 i = (set * THREADS_M + LID % THREADS_M) * VEC;
  at->rows = i >= m ? 0 : m - i < VEC ? (U32)(m - i) : VEC;
  at->a = at->rows > 0 ? a + (I64)i * rs : a;
  at->x = x;
}

// A row of X.
STATIC INLINED void x_row(ACC *xv, LOCAL_PTR(const ACC) row) {
#if (DTYPE == 1 || DTYPE == 5) && TILE_RHS * (1 + COMPLEX) % 2 == 0
  LOCAL_PTR(const double2) from = (LOCAL_PTR(const double2))row;
#pragma unroll
  for (U32 c = 0; c < TILE_RHS * (1 + COMPLEX) / 2; c++) {
    const double2 v = from[c];
#if COMPLEX
    xv[c] = v;
#else
    xv[2 * c] = v.x, xv[2 * c + 1] = v.y;
#endif
  }
#elif DTYPE != 1 && DTYPE != 5 && TILE_RHS * (1 + COMPLEX) % 4 == 0
  LOCAL_PTR(const float4) from = (LOCAL_PTR(const float4))row;
#pragma unroll
  for (U32 c = 0; c < TILE_RHS * (1 + COMPLEX) / 4; c++) {
    const float4 v = from[c];
#if COMPLEX
    xv[2 * c] = v.lo, xv[2 * c + 1] = v.hi;
#else
    xv[4 * c] = v.x, xv[4 * c + 1] = v.y, xv[4 * c + 2] = v.z, xv[4 * c + 3] = v.w;
#endif
  }
#else
#pragma unroll
  for (U32 c = 0; c < TILE_RHS; c++) xv[c] = row[c];
#endif
}

// The b-th slot of a thread: bit-reversed.
STATIC U32 slot_of(const U32 b) {
  U32 slot = 0;
#pragma unroll
  for (U32 k = 0; k < LOG_SLOTS; k++) slot |= (b >> k & 1u) << (LOG_SLOTS - 1 - k);
  return slot;
}

// The four columns of a lane: VEC rows of each, where they are in the matrix.
STATIC INLINED void load_lane(VECTOR *av, GLOBAL const ELEM *p, const I64 cs, const U32 lane,
                              const U32 rows, const U32 len, const bool whole, const bool vectors) {
#pragma unroll
  for (U32 round = 0; round < 4; round++) {
    const U32 j = round * LANES + lane;
    GLOBAL const ELEM *q = p + (I64)j * cs;
    if (whole) {
      LOAD_VECTOR(av[round], q);
    } else if (j < len) {
#if VEC > 1
      if (vectors) {
        LOAD_VECTOR(av[round], q);
      } else
#endif
#pragma unroll
        for (U32 v = 0; v < VEC; v++)
          av[round].e[v] = v < rows ? q[v] : (ELEM)0;
    }
  }
}

// The sums of a thread's lanes, halved to one. Every column is there where `whole`.
STATIC INLINED void lanes_of(ACC (*sum)[VEC], const U32 rows, GLOBAL const ELEM *p, const I64 cs,
                             const U32 conj, const U32 len, const bool whole, const bool vectors,
                             LOCAL_PTR(const ACC) xs) {
  const U32 ty = LID / THREADS_M;
  ACC stack[LOG_SLOTS + 1][TILE_RHS][VEC];
  VECTOR next[4];
  load_lane(next, p, cs, ty, rows, len, whole, vectors);
#pragma unroll
  for (U32 b = 0; b < SLOTS; b++) {
    VECTOR av[4];
#pragma unroll
    for (U32 round = 0; round < 4; round++) av[round] = next[round];
    if (b + 1 < SLOTS)
      load_lane(next, p, cs, slot_of(b + 1) * THREADS_K + ty, rows, len, whole, vectors);
    ACC acc[TILE_RHS][VEC];
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++)
#pragma unroll
      for (U32 v = 0; v < VEC; v++) acc[c][v] = acc_zero();
#pragma unroll
    for (U32 round = 0; round < 4; round++) {
      const U32 j = round * LANES + slot_of(b) * THREADS_K + ty;
      if (whole || j < len) {
        ACC xv[TILE_RHS];
        x_row(xv, xs + j * TILE_RHS);
#pragma unroll
        for (U32 v = 0; v < VEC; v++) {
          const ACC one = conj_if(widen(av[round].e[v]), conj);
#pragma unroll
          for (U32 c = 0; c < TILE_RHS; c++) acc[c][v] = acc_fma(one, xv[c], acc[c][v]);
        }
      }
    }
    bool goes_on = true;
#pragma unroll
    for (U32 k = 0; k <= LOG_SLOTS; k++) {
      if (!goes_on) continue;
      goes_on = (b >> k & 1u) != 0;
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++)
#pragma unroll
        for (U32 v = 0; v < VEC; v++)
          if (goes_on) acc[c][v] = acc_add(stack[k][c][v], acc[c][v]);
          else stack[k][c][v] = acc[c][v];
    }
  }
#pragma unroll
  for (U32 c = 0; c < TILE_RHS; c++)
#pragma unroll
    for (U32 v = 0; v < VEC; v++) sum[c][v] = stack[LOG_SLOTS][c][v];
}

// Leaves the lanes of segment s of the block's rows in `exchange`, halved down to THREADS_K.
STATIC INLINED void segment_lanes(const PLACE *at, const U64 n, const I64 cs, const I64 xrs, const I64 xcs,
                          const U32 cols, const U32 conj, const U64 s, LOCAL_PTR(ACC) exchange) {
  const U32 tx = LID % THREADS_M, ty = LID / THREADS_M;
  const U32 len = (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
  GLOBAL const ELEM *x = at->x + (I64)(s * SEG) * xrs, *p = at->a + (I64)(s * SEG) * cs;
  BARRIER();
#pragma unroll 4
  for (U32 q = LID; q < SEG * TILE_RHS; q += THREADS) {
    const U32 j = q / TILE_RHS, c = q % TILE_RHS;
    // Columns beyond the last one compute the first one again.
    if (j < len) exchange[q] = widen(x[(I64)j * xrs + (I64)(c < cols ? c : 0) * xcs]);
  }
  BARRIER();
  // Whether every column of this thread is read by whole vectors.
  const bool vectors = at->rows == VEC && BEYOND(p) == 0 && (cs & (I64)(VEC - 1)) == 0;
  ACC sum[TILE_RHS][VEC];
  if (vectors && len == SEG) lanes_of(sum, at->rows, p, cs, conj, len, true, true, exchange);
  else lanes_of(sum, at->rows, p, cs, conj, len, false, vectors, exchange);
  BARRIER();
#pragma unroll
  for (U32 c = 0; c < TILE_RHS; c++)
#pragma unroll
    for (U32 v = 0; v < VEC; v++)
      exchange[ty * PITCH + c * (THREADS_M * VEC) + tx * VEC + v] = sum[c][v];
  BARRIER();
}
