// y = alpha A x + beta y for columns of neighbouring elements: a thread has VEC rows to itself and
// visits their lanes in an order in which few partial sums are open. No exchange, no barrier.
//
//   rows       thread k of the grid's blocks has rows k * VEC .. k * VEC + VEC; neighbours read
//              neighbouring elements of a column.
//   lanes      eight at a time: lanes r, r + 8, ..., r + 56 of a segment are summed to one value, and
//              the eight values (r in bit-reversed order) are merged as they come.
//   segments   the blocks of one set of rows share its segments: block b takes row set b % sets, part
//              b / sets. A row of several segments leaves their sums in `work`, segment by segment
//              (entry s * m + i), and they are reduced like lanes: by the thread itself where
//              there is one part, else by the last block of the set to arrive, which leaves its
//              counter at 0. At most 256 segments.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the m x n elements.
#ifndef THREADS
#define THREADS 128
#endif
#define WHOLE (VEC * ELEM_BYTES)
#if WHOLE == 16
#define BATCH 2
#else
#define BATCH 4
#endif

// The sums of VEC sequences of len <= 256 terms; visit(acc, j) adds terms j, j + 8, ..., j + 56, as
// far as there are any, to the eight lanes of acc.
template <class Visit>
STATIC void sum_lanes(ACC *out, const U32 len, Visit visit) {
  ACC open[3][VEC];
#pragma unroll 1
  for (U32 b = 0; b < 8; b++) {
    const U32 lane = (b & 1u) << 2 | (b & 2u) | b >> 2;
    ACC acc[8][VEC];
#pragma unroll
    for (U32 q = 0; q < 8; q++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) acc[q][c] = acc_zero();
#pragma unroll BATCH
    for (U32 round = 0; round < 4; round++)
      if (round * 64 < len) visit(acc, round * 64 + lane);
#pragma unroll
    for (U32 h = 4; h > 0; h /= 2)
#pragma unroll
      for (U32 q = 0; q < 4; q++)
        if (q < h)
#pragma unroll
          for (U32 c = 0; c < VEC; c++) acc[q][c] = acc_add(acc[q][c], acc[q + h][c]);
    // Sums of 1, 2 and 4 of the eight values wait for their partners.
    bool merge = true;
#pragma unroll
    for (U32 k = 0; k < 3; k++) {
      if (merge && (b >> k & 1u) == 0) {
        merge = false;
#pragma unroll
        for (U32 c = 0; c < VEC; c++) open[k][c] = acc[0][c];
      }
      if (merge)
#pragma unroll
        for (U32 c = 0; c < VEC; c++) acc[0][c] = acc_add(open[k][c], acc[0][c]);
    }
#pragma unroll
    for (U32 c = 0; c < VEC; c++) out[c] = acc[0][c];
  }
}

KERNEL(THREADS) pillar(ARGUMENTS) {
  const U64 sets = ceil_div(m, (U64)THREADS * VEC), parts = GROUPS / sets;
  const U64 part = GROUP_ID / sets, set = GROUP_ID % sets;
  const U64 first = (set * THREADS + LID) * VEC;
  const U32 rows = first >= m ? 0 : m - first < VEC ? (U32)(m - first) : VEC;
  const U32 segments = (U32)ceil_div(n, SEG);
  ACC sum[VEC];

  if (acc_is(alpha, (REAL)0) || n == 0) {
    for (U32 c = 0; c < rows && part == 0; c++)
      finish(y + (y0 + (I64)(first + c) * incy), alpha, acc_zero(), beta);
    return;
  }

  // A thread beyond the last row reads nothing.
  const ELEM *p = a + a0 + (rows > 0 ? first : 0);
  const bool whole = rows == VEC && BEYOND(p) == 0 && (cs & (I64)(VEC - 1)) == 0;
  const U32 per = (U32)ceil_div(segments, parts);
  const U32 begin = (U32)part * per, end = begin + per < segments ? begin + per : segments;
  for (U32 s = begin; s < end; s++) {
    const U32 len = (U32)(n - (U64)s * SEG < SEG ? n - (U64)s * SEG : SEG);
    const ELEM *ps = p + (I64)((U64)s * SEG) * cs, *xs = x + x0 + (I64)((U64)s * SEG) * incx;
    sum_lanes(sum, len, [&](ACC(*acc)[VEC], const U32 j) {
      PACK av[8];
      ELEM xv[8];
      if (whole) {
#pragma unroll
        for (U32 q = 0; q < 8; q++)
          if (j + q * 8 < len)
            av[q].words = __ldcs((const WORDS *)(ps + (I64)(j + q * 8) * cs));
      } else {
#pragma unroll
        for (U32 q = 0; q < 8; q++)
#pragma unroll
          for (U32 c = 0; c < VEC; c++)
            if (j + q * 8 < len && c < rows) av[q].e[c] = ps[(I64)(j + q * 8) * cs + c];
      }
#pragma unroll
      for (U32 q = 0; q < 8; q++)
        if (j + q * 8 < len) xv[q] = xs[(I64)(j + q * 8) * incx];
#pragma unroll
      for (U32 q = 0; q < 8; q++)
        if (j + q * 8 < len)
#pragma unroll
          for (U32 c = 0; c < VEC; c++)
            acc[q][c] = acc_fma(conj_if(widen(av[q].e[c]), conj), widen(xv[q]), acc[q][c]);
    });
#pragma unroll
    for (U32 c = 0; c < VEC; c++)
      if (c < rows) {
        if (segments == 1) finish(y + (y0 + (I64)(first + c) * incy), alpha, sum[c], beta);
        else work[s * m + first + c] = sum[c];
      }
  }
  if (segments == 1) return;

  if (parts > 1) {
    __shared__ bool last;
    // The sums of this block are seen by the others before its arrival is.
    __threadfence();
    __syncthreads();
    if (LID == 0) last = atomicAdd(counters + set, 1u) == (U32)parts - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (LID == 0) counters[set] = 0;
  }
  sum_lanes(sum, segments, [&](ACC(*acc)[VEC], const U32 j) {
    ACC v[8][VEC];
#pragma unroll
    for (U32 q = 0; q < 8; q++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++)
        if (j + q * 8 < segments && c < rows) v[q][c] = __ldcg(work + (j + q * 8) * m + first + c);
#pragma unroll
    for (U32 q = 0; q < 8; q++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++)
        if (j + q * 8 < segments) acc[q][c] = acc_add(acc[q][c], v[q][c]);
  });
#pragma unroll
  for (U32 c = 0; c < VEC; c++)
    if (c < rows) finish(y + (y0 + (I64)(first + c) * incy), alpha, sum[c], beta);
}
