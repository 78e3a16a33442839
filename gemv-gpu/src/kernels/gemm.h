// Behind the prelude, before the kernels of many right-hand sides: Y = alpha A X + beta Y, where A is
// m x n, X is n x rhs, and `batch` such products are computed at once. Column c of entry b has the
// bits of its own one-column product (docs/ORDER.md).
//
//   A[b,i,j] = a[a0 + b*ab + i*rs + j*cs], X[b,j,c] = x[x0 + b*xb + j*xrs + c*xcs],
//   Y[b,i,c] = y[y0 + b*yb + i*yrs + c*ycs]
#define GEMM_ARGUMENTS                                                                     \
  const U64 m, const U64 n, const U64 rhs, const U64 batch, GLOBAL const A_ELEM *CONSTANT a, \
      const U64 a0, const I64 rs, const I64 cs, const I64 ab,                              \
      GLOBAL const ELEM *CONSTANT x, const U64 x0, const I64 xrs, const I64 xcs,           \
      const I64 xb, GLOBAL ELEM *RESTRICT y, const U64 y0, const I64 yrs, const I64 ycs,   \
      const I64 yb, const ACC alpha, const ACC beta, const U32 conj,                       \
      GLOBAL ACC *RESTRICT workspace, GLOBAL U32 *RESTRICT counters

// A division of 32 bits is much cheaper than one of 64.
STATIC U64 quotient(const U64 of, const U64 by) {
  return (of | by) >> 32 == 0 ? (U32)of / (U32)by : of / by;
}
