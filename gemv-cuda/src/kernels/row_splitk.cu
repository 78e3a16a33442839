// row-splitk: y = alpha A x + beta y, row-major. Sub-warps take rows; WARPS_K of them, or several
// blocks, split a row along K, and the last block of a row to arrive adds what the others left.
//
//   rows       a block has THREADS / SUBWARP sub-warps, and WARPS_K of them share ROWS rows. Set g of
//              the block takes rows g, g + SETS, ... of the block's.
//   lanes      thread t of a sub-warp owns, of each 64 columns, the vectors t, t + SUBWARP, ... A row
//              that starts o elements beyond a vector's boundary is read from that boundary on: its
//              lanes are rotated by o, which the halving does not notice. So every load is of whole
//              aligned vectors, and all loads of a segment are in flight before the first is used.
//   segments   sub-warp k of a row takes segments k, k + WARPS_K, ... of its block's part; lane l of the
//              second level belongs to one sub-warp, since WARPS_K divides 64.
//   splits     with one split and at most 256 segments the block writes y. Else it leaves one sum a
//              segment (or one a super-segment of 256, where a split has so many) in `workspace`, and the
//              last block of these rows reduces them. It leaves its counter at 0.
//   one segment  ONE_SEGMENT: a row with its rotation fits in UNROLL iterations of 64 columns, all of
//              them in flight at once. With UNROLL = 1 it may fit in MAX_N < 64 lanes: the halving
//              begins at MAX_N / 2, with +0 added at the end. row_warp.cu sets ONE_SEGMENT.
//   rotated    UNROLL = 5 is for rows that start anywhere: every segment is loaded without branches.
//              With UNROLL = 4 that is done for aligned whole segments; others take fewer registers
//              and more time.
//   never read A and x where alpha = 0; y where beta = 0; vectors without an element of the row.
//              A vector at an end of a row is read whole; allocations end with a whole one.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef SUBWARP
#define SUBWARP 16
#endif
#ifndef WARPS_K
#define WARPS_K 1
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef MAX_N
#define MAX_N 64
#endif
#ifndef ONE_SEGMENT
#define ONE_SEGMENT (UNROLL == 1)
#define ENTRY row_splitk
#endif
#define SLOTS (MAX_N / (SUBWARP * VEC))
#define SUBWARPS (THREADS / SUBWARP)
#define SETS (SUBWARPS / WARPS_K)
#define BLOCK_ROWS (SETS * ROWS)
// A rotated row's last elements may lie in a fifth iteration.
#define LOADS (ONE_SEGMENT ? UNROLL * SLOTS : 4 * SLOTS + (VEC > 1))

// The sum of a sub-warp's MAX_N lanes, for every thread of it.
STATIC ACC subwarp_sum(ACC (&acc)[SLOTS][VEC], const U32 t) {
  const ACC sum = halve_subwarp<SUBWARP>(acc, t);
  return MAX_N < 64 ? acc_add(sum, acc_zero()) : sum;
}

// The vector at q, or the last one that has an element before `end`: loads without branches, so
// that all of them are in flight at once.
STATIC U32 last_or(const U32 q, const U32 end) {
  const U32 last = (end - 1) & ~(VEC - 1u);
  return q < last ? q : last;
}

// Adds the products of elements j, j + 1, ... of a segment of len > 0 columns to their lanes,
// where `use`; j wraps where it is negative. The x of what is not there is read at the last column
// and not used.
STATIC void add_row(ACC *acc, const PACK &av, const bool use, const U32 j, const U32 len,
                    const ELEM *xs, const I64 incx, const U32 conj) {
  ELEM xv[VEC];
#pragma unroll
  for (U32 c = 0; c < VEC; c++) xv[c] = xs[(I64)(j + c < len ? j + c : len - 1) * incx];
#pragma unroll
  for (U32 c = 0; c < VEC; c++) {
    const ACC sum = acc_fma(conj_if(a_widen(av.e[c]), conj), widen(xv[c]), acc[c]);
    if (use && j + c < len) acc[c] = sum;
  }
}

// The same for all rows, which have the same rotation.
template <int L>
STATIC void add_rows(ACC (*acc)[SLOTS][VEC], const U32 slot, const PACK (*av)[L], const U32 k,
                     const bool use, const U32 j, const U32 len, const ELEM *xs, const I64 incx,
                     const U32 conj) {
  ELEM xv[VEC];
#pragma unroll
  for (U32 c = 0; c < VEC; c++) xv[c] = xs[(I64)(j + c < len ? j + c : len - 1) * incx];
#pragma unroll
  for (U32 r = 0; r < ROWS; r++)
#pragma unroll
    for (U32 c = 0; c < VEC; c++) {
      const ACC sum = acc_fma(conj_if(a_widen(av[r][k].e[c]), conj), widen(xv[c]), acc[r][slot][c]);
      if (use && j + c < len) acc[r][slot][c] = sum;
    }
}

KERNEL(THREADS) ENTRY(ARGUMENTS) {
  begin(false);
  const U32 t = LID % SUBWARP, subwarp = LID / SUBWARP, segment_k = subwarp % WARPS_K, set = subwarp / WARPS_K;
  // Blocks are fewer than 2^31: a 32-bit division takes a quarter of the time.
  const U64 blocks = ceil_div(m, BLOCK_ROWS), splits = (U32)GROUPS / (U32)blocks;
  const U64 split = (U32)GROUP_ID / (U32)blocks, block = (U32)GROUP_ID % (U32)blocks;
  const U64 first = block * BLOCK_ROWS + set;
  const U64 segments = ceil_div(n, SEG), super_segments = ceil_div(segments, SEG);
  const bool direct = splits == 1 && segments <= SEG;
  const bool by_super_segments = !direct && segments > 255 * splits;
  const U64 count = by_super_segments ? super_segments : segments;

  if (acc_is(alpha, (REAL)0) || n == 0) {
    if (split == 0 && segment_k == 0 && t == 0)
      for (U32 r = 0; r < ROWS; r++) {
        const U64 i = first + r * SETS;
        if (i < m) finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
      }
    return;
  }

  const A_ELEM *base[ROWS]; // the boundary before each row
  U32 off[ROWS];
  U32 beyond = 0;
#pragma unroll
  for (U32 r = 0; r < ROWS; r++) {
    // Rows beyond the last one compute the last one again, and are not written.
    const U64 i = first + r * SETS < m ? first + r * SETS : m - 1;
    const A_ELEM *p = a + a0 + (I64)i * rs;
    off[r] = A_BEYOND(p);
    base[r] = p - off[r];
    beyond |= off[r];
  }

  const bool aligned = __all_sync(0xffffffffu, beyond == 0);
#if ONE_SEGMENT
  const U32 len = (U32)n;
  PACK av[ROWS][LOADS];
#pragma unroll
  for (U32 r = 0; r < ROWS; r++)
#pragma unroll
    for (U32 k = 0; k < LOADS; k++)
      load_a(av[r][k], base[r] + last_or((k * SUBWARP + t) * VEC, len + off[r]), true);
  ACC acc[ROWS][SLOTS][VEC];
  zero(acc);
#pragma unroll
  for (U32 k = 0; k < LOADS; k++) {
    const U32 q = (k * SUBWARP + t) * VEC;
    if (aligned) {
      add_rows(acc, k % SLOTS, av, k, true, q, len, x + x0, incx, conj);
    } else {
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
        add_row(acc[r][k % SLOTS], av[r][k], true, q - off[r], len, x + x0, incx, conj);
    }
  }
#pragma unroll
  for (U32 r = 0; r < ROWS; r++) {
    const ACC sum = subwarp_sum(acc[r], t);
    const U64 i = first + r * SETS;
    if (t == 0 && i < m) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
  }
#else
  __shared__ ACC lanes[BLOCK_ROWS * 64];
  __shared__ bool last;
  const bool x_vectors = incx == 1 && BEYOND(x + x0) == 0;
  const U64 per = by_super_segments ? ceil_div(super_segments, splits) * SEG : ceil_div(segments, splits);
  const U64 end = (split + 1) * per < segments ? (split + 1) * per : segments;

  for (U64 s0 = split * per; s0 < end;) {
    // Up to the end of a super-segment of 256 segments, or of the split.
    const U64 s1 = (s0 / SEG + 1) * SEG < end ? (s0 / SEG + 1) * SEG : end;
    for (U64 start = s0; start < s1; start += WARPS_K) {
      const U64 s = start + segment_k;
      ACC acc[ROWS][SLOTS][VEC];
      zero(acc);
      const ELEM *xs = x + x0 + (I64)(s * SEG) * incx;
      PACK av[ROWS][LOADS];
#if UNROLL == 5
      // A sub-warp without a segment reads the last one again.
      const U64 mine = s < s1 ? s : s1 - 1;
      const U32 there = (U32)(n - mine * SEG < SEG ? n - mine * SEG : SEG);
      const U32 len = s < s1 ? there : 0;
      xs = x + x0 + (I64)(mine * SEG) * incx;
#pragma unroll
      for (U32 r = 0; r < ROWS; r++)
#pragma unroll
        for (U32 k = 0; k < LOADS; k++)
          load_a(av[r][k], base[r] + mine * SEG + last_or((k * SUBWARP + t) * VEC, there + off[r]), true);
#pragma unroll
      for (U32 k = 0; k < LOADS; k++)
#pragma unroll
        for (U32 r = 0; r < ROWS; r++)
          add_row(acc[r][k % SLOTS], av[r][k], len > 0 && (k < 4 * SLOTS || t == 0),
                  (k * SUBWARP + t) * VEC - off[r], there, xs, incx, conj);
#else
      if (aligned && start + WARPS_K <= s1 && (start + WARPS_K) * SEG <= n) {
        // Whole aligned segments for every sub-warp.
#pragma unroll
        for (U32 r = 0; r < ROWS; r++)
#pragma unroll
          for (U32 k = 0; k < 4 * SLOTS; k++)
            load_a(av[r][k], base[r] + s * SEG + (k * SUBWARP + t) * VEC, true);
#pragma unroll
        for (U32 k = 0; k < 4 * SLOTS; k++) {
          const U32 j = (k * SUBWARP + t) * VEC;
          X_PACK xv;
          if (x_vectors) {
            xv.words = *(const X_WORDS *)(xs + j);
          } else {
#pragma unroll
            for (U32 c = 0; c < VEC; c++) xv.e[c] = xs[(I64)(j + c) * incx];
          }
#pragma unroll
          for (U32 r = 0; r < ROWS; r++)
#pragma unroll
            for (U32 c = 0; c < VEC; c++)
              acc[r][k % SLOTS][c] = acc_fma(conj_if(a_widen(av[r][k].e[c]), conj),
                                             widen(xv.e[c]), acc[r][k % SLOTS][c]);
        }
      } else {
        const U32 len = s >= s1 ? 0 : (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
#pragma unroll
        for (U32 r = 0; r < ROWS; r++)
#pragma unroll
          for (U32 k = 0; k < LOADS; k++) {
            const U32 q = (k * SUBWARP + t) * VEC;
            const bool there = k < 4 * SLOTS || t == 0;
            load_a(av[r][k], base[r] + s * SEG + q, len > 0 && there && q < len + off[r]);
          }
#pragma unroll
        for (U32 k = 0; k < LOADS; k++)
#pragma unroll
          for (U32 r = 0; r < ROWS; r++)
#pragma unroll
            for (U32 c = 0; c < VEC; c++) {
              const U32 j = (k * SUBWARP + t) * VEC + c - off[r]; // wraps where it is negative
              const bool there = k < 4 * SLOTS || t == 0;
              if (there && j < len)
                acc[r][k % SLOTS][c] = acc_fma(conj_if(a_widen(av[r][k].e[c]), conj),
                                               widen(xs[(I64)j * incx]), acc[r][k % SLOTS][c]);
            }
      }
#endif
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        const ACC sum = subwarp_sum(acc[r], t);
        const U64 i = first + r * SETS;
        if (t == 0 && s < s1) {
          if (segments == 1) {
            if (i < m) finish(y + (y0 + (I64)i * incy), alpha, sum, beta);
          } else if (direct || by_super_segments) {
            ACC *lane = &lanes[(r * SETS + set) * 64 + (U32)(s % LANES)];
            *lane = acc_add(s % SEG < LANES ? acc_zero() : *lane, sum);
          } else if (i < m) {
            workspace[i * levels_total(count) + s] = sum;
          }
        }
      }
    }
    if (segments > 1 && (direct || by_super_segments)) {
      const U32 filled = (U32)(s1 - s0 < LANES ? s1 - s0 : LANES);
      if (WARPS_K > 1) __syncthreads(); else __syncwarp();
#pragma unroll
      for (U32 r = 0; r < ROWS; r++) {
        ACC v[64 / SUBWARP];
#pragma unroll
        for (U32 k = 0; k < 64 / SUBWARP; k++) {
          const U32 l = k * SUBWARP + t;
          v[k] = l < filled ? lanes[(r * SETS + set) * 64 + l] : acc_zero();
        }
        halve(v);
#pragma unroll
        for (U32 o = SUBWARP / 2; o > 0; o >>= 1) v[0] = acc_add(v[0], acc_xor(v[0], o));
        const U64 i = first + r * SETS;
        if (segment_k == 0 && t == 0 && i < m) {
          if (direct) finish(y + (y0 + (I64)i * incy), alpha, v[0], beta);
          else workspace[i * levels_total(count) + s0 / SEG] = v[0];
        }
      }
      if (WARPS_K > 1) __syncthreads(); else __syncwarp();
    }
    s0 = s1;
  }
  if (direct) return;

  // The sums of this block are visible to the others before its arrival is.
  __threadfence();
  __syncthreads();
  if (LID == 0) last = atomicAdd(counters + block, 1u) == (U32)splits - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (LID == 0) counters[block] = 0;
  const U64 total = levels_total(count);
  const U64 rows = m - block * BLOCK_ROWS < BLOCK_ROWS ? m - block * BLOCK_ROWS : BLOCK_ROWS;
  ACC *from = workspace + block * BLOCK_ROWS * total;
  for (U64 left = count;;) {
    const U64 sums = ceil_div(left, SEG);
    for (U64 k = LID / 32; k < rows * sums; k += THREADS / 32) {
      const U64 i = k / sums, super_segment = k % sums, rest = left - super_segment * SEG;
      const ACC sum = warp_sum(from + i * total + super_segment * SEG, (U32)(rest < SEG ? rest : SEG));
      if (LID % 32 == 0) {
        if (sums == 1)
          finish(y + (y0 + (I64)(block * BLOCK_ROWS + i) * incy), alpha, sum, beta);
        else from[i * total + left + super_segment] = sum;
      }
    }
    if (sums == 1) break;
    __threadfence_block();
    __syncthreads();
    from += left;
    left = sums;
  }
#endif
}
