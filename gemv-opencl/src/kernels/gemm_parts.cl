// The end of `gemm-row-panel` on OpenCL, behind its text: the launch that adds up the sums of the parts of a row. CUDA's has
// the same entry points, with loads that pass the L1 cache by, templates and warps of their own.
#define REDUCE_THREADS 128

// The sum of at most `most` parts of a super-segment, which lie `step` apart. The first `filled` are there, and none of
// them is -0; the others are +0.
#define DEFINE_SUM_OF(most)                                                                     \
  STATIC ACC sum_of_##most(GLOBAL const ACC *from, const U64 step, const U32 filled) {          \
    ACC v[most];                                                                                \
    _Pragma("unroll")                                                                           \
    for (U32 p = 0; p < most; p++) v[p] = p < filled ? from[p * step] : acc_zero();             \
    _Pragma("unroll")                                                                           \
    for (U32 level = 1; level <= 6; level++)                                                    \
      _Pragma("unroll")                                                                         \
      for (U32 p = 0; p < most / 2; p++)                                                        \
        if (p < (most >> level)) v[p] = acc_add(v[p], v[p + (most >> level)]);                  \
    return v[0];                                                                                \
  }
DEFINE_SUM_OF(2)
DEFINE_SUM_OF(8)
DEFINE_SUM_OF(16)
DEFINE_SUM_OF(64)
STATIC ACC sum_of_parts(GLOBAL const ACC *from, const U64 step, const U32 parts, const U32 filled) {
  return parts <= 2    ? sum_of_2(from, step, filled)
         : parts <= 8  ? sum_of_8(from, step, filled)
         : parts <= 16 ? sum_of_16(from, step, filled)
                       : sum_of_64(from, step, filled);
}
// Parts that have a segment, which the last super-segment may have fewer of.
STATIC U32 filled_parts(const U64 n, const U32 parts, const U32 super_segment) {
  const U64 left = ceil_div(n, SEG) - (U64)super_segment * SEG;
  return left < parts ? (U32)left : parts;
}
STATIC void finish_output(GLOBAL ELEM *y, const U64 o, const U64 rhs, const I64 yrs, const I64 ycs,
                          const ACC alpha, const ACC sum, const ACC beta) {
  const U64 i = quotient(o, rhs), c = o - i * rhs;
  finish(y + (I64)i * yrs + (I64)c * ycs, alpha, sum, beta);
}

// One super-segment: a thread has an output.
KERNEL(REDUCE_THREADS) gemm_parts_reduce(GEMM_ARGUMENTS) {
  const U64 o = GROUP_ID * REDUCE_THREADS + LID, outputs = m * rhs;
  if (o >= outputs) return;
  const U32 parts = parts_of(n);
  ACC sum = acc_zero();
  if (!acc_is(alpha, (REAL)0)) sum = sum_of_parts(workspace + o, outputs, parts, filled_parts(n, parts, 0));
  finish_output(y + y0, o, rhs, yrs, ycs, alpha, sum, beta);
}

// Up to 256 of them: 32 threads have an output, and thread t super-segments t, t + 32, ...
KERNEL(REDUCE_THREADS) gemm_parts_long_reduce(GEMM_ARGUMENTS) {
  LOCAL ACC buffer[EXCHANGE_SIZE(REDUCE_THREADS, 1)];
  const U64 o = GROUP_ID * (REDUCE_THREADS / 32) + LID / 32, outputs = m * rhs;
  const U32 parts = parts_of(n);
  const U32 supers = acc_is(alpha, (REAL)0) || o >= outputs ? 0 : super_segments_of(n);
  ACC v[2];
#pragma unroll
  for (U32 k = 0; k < 2; k++) {
    v[k] = acc_zero();
    for (U32 u = k * 32 + LID % 32; u < supers; u += LANES)
      v[k] = acc_add(v[k], sum_of_parts(workspace + (U64)u * parts * outputs + o, outputs, parts,
                                        filled_parts(n, parts, u)));
  }
  v[0] = acc_add(v[0], v[1]);
  butterfly(v, 1, 32, REDUCE_THREADS, buffer);
  if (LID % 32 == 0 && o < outputs) finish_output(y + y0, o, rhs, yrs, ycs, alpha, v[0], beta);
}
