// The end of each kernel for many right-hand sides that cuts rows into parts, behind its text: the launch that
// adds up the sums of the parts of a row. Before it stand super_segments_of(n); OUTPUT_AT(o), where Y has output o; and
// parts_of(n), a power of two. Where the launch says how many, PARTS_ARGUMENT declares that argument, and PARTS is it.
//
// Part p of a super-segment (256 segments) has its segments p, p + parts, ..., which are whole subtrees
// of the second level. Its sum of output o is workspace[(super-segment * parts + p) * m * rhs + o].

#ifndef PARTS_ARGUMENT
#define PARTS_ARGUMENT
#define PARTS parts_of(n)
#endif

// The sum of at most MOST parts of a super-segment: lanes of the second level, none of which is -0.
template <U32 MOST> STATIC ACC sum_of(const ACC *from, const U64 step, const U32 parts) {
  const U32 count = MOST < 16 ? MOST : 16;
  ACC v[count];
#pragma unroll
  for (U32 k = 0; k < count; k++) {
    ACC q[4];
#pragma unroll
    for (U32 g = 0; g < 4; g++) q[g] = 16 * g < MOST && k + 16 * g < parts ? __ldcg(from + (k + 16 * g) * step) : acc_zero();
    v[k] = MOST <= 16 ? q[0] : acc_add(acc_add(q[0], q[2]), acc_add(q[1], q[3]));
  }
  halve(v);
  return v[0];
}
// No more loads are issued than a few times as many as there are parts.
STATIC ACC sum_of_parts(const ACC *from, const U64 step, const U32 parts) {
  return parts <= 4 ? sum_of<4>(from, step, parts) : parts <= 16 ? sum_of<16>(from, step, parts) : sum_of<64>(from, step, parts);
}

// Parts that have a segment, which the last super-segment may have fewer of.
STATIC U32 filled_parts(const U64 n, const U32 parts, const U32 super_segment) {
  const U64 left = ceil_div(n, SEG) - (U64)super_segment * SEG;
  return left < parts ? (U32)left : parts;
}

// One super-segment: a thread has an output.
KERNEL(128) gemm_parts_reduce(GEMM_ARGUMENTS PARTS_ARGUMENT) {
  const U64 o = GROUP_ID * 128 + LID, outputs = m * rhs;
  const U32 each = PARTS;
  begin(false);
  if (o >= outputs) return;
  // A single segment is not added to +0.
  ACC sum = acc_zero();
  if (!acc_is(alpha, (REAL)0))
    sum = n <= SEG ? __ldcg(workspace + o) : sum_of_parts(workspace + o, outputs, filled_parts(n, each, 0));
  finish(y + y0 + OUTPUT_AT(o), alpha, sum, beta);
}

// Up to 256 of them: a warp has an output, and thread t super-segments t, t + 32, ...
KERNEL(128) gemm_parts_long_reduce(GEMM_ARGUMENTS PARTS_ARGUMENT) {
  const U64 o = GROUP_ID * 4 + LID / 32, outputs = m * rhs;
  const U32 each = PARTS, super_segments = acc_is(alpha, (REAL)0) ? 0 : super_segments_of(n);
  begin(false);
  if (o >= outputs) return;
  ACC all[8];
#pragma unroll
  for (U32 r = 0; r < 8; r++) {
    const U32 u = r * 32 + LID % 32;
    all[r] = acc_zero();
    if (u < super_segments)
      all[r] = sum_of_parts(workspace + (U64)u * each * outputs + o, outputs, filled_parts(n, each, u));
  }
  const ACC sum = warp_sum(all);
  if (LID % 32 == 0) finish(y + y0 + OUTPUT_AT(o), alpha, sum, beta);
}
