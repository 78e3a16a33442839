// The end of each kernel for many right-hand sides that cuts rows into parts, behind its text: the launch that
// adds up the sums of the parts of a row. Before it stand super_segments_of(n) and parts_of(n), a power of two, and
// OUTPUT_AT(o), where Y has output o.
//
// Part p of a super-segment (256 segments) has its segments p, p + parts, ..., which are whole subtrees
// of the second level. Its sum of output o is workspace[(super-segment * parts + p) * m * rhs + o].

// The sum of the parts of a super-segment: lanes of the second level, none of which is -0.
STATIC ACC sum_of_parts(const ACC *from, const U64 step, const U32 parts) {
  ACC v[16];
#pragma unroll
  for (U32 k = 0; k < 16; k++) {
    ACC q[4];
#pragma unroll
    for (U32 g = 0; g < 4; g++) q[g] = k + 16 * g < parts ? __ldcg(from + (k + 16 * g) * step) : acc_zero();
    v[k] = acc_add(acc_add(q[0], q[2]), acc_add(q[1], q[3]));
  }
  halve(v);
  return v[0];
}

// Parts that have a segment, which the last super-segment may have fewer of.
STATIC U32 filled_parts(const U64 n, const U32 super_segment) {
  const U64 left = ceil_div(n, SEG) - (U64)super_segment * SEG;
  const U32 parts = parts_of(n);
  return left < parts ? (U32)left : parts;
}

// One super-segment: a thread has an output.
KERNEL(128) gemm_parts_reduce(GEMM_ARGUMENTS) {
  const U64 o = GROUP_ID * 128 + LID, outputs = m * rhs;
  begin(false);
  if (o >= outputs) return;
  const ACC sum = acc_is(alpha, (REAL)0) ? acc_zero() : sum_of_parts(workspace + o, outputs, filled_parts(n, 0));
  finish(y + y0 + OUTPUT_AT(o), alpha, sum, beta);
}

// Up to 256 of them: a warp has an output, and thread t super-segments t, t + 32, ...
KERNEL(128) gemm_parts_long_reduce(GEMM_ARGUMENTS) {
  const U64 o = GROUP_ID * 4 + LID / 32, outputs = m * rhs;
  const U32 parts = parts_of(n), super_segments = acc_is(alpha, (REAL)0) ? 0 : super_segments_of(n);
  begin(false);
  if (o >= outputs) return;
  ACC all[8];
#pragma unroll
  for (U32 r = 0; r < 8; r++) {
    const U32 u = r * 32 + LID % 32;
    all[r] = acc_zero();
    if (u < super_segments)
      all[r] = sum_of_parts(workspace + (U64)u * parts * outputs + o, outputs, filled_parts(n, u));
  }
  const ACC sum = warp_sum(all);
  if (LID % 32 == 0) finish(y + y0 + OUTPUT_AT(o), alpha, sum, beta);
}
