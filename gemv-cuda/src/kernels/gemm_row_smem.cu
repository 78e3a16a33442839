// gemm-row-smem: Y = alpha A X + beta Y for many row-major matrices of up to 128 columns, one right-hand side each. A block
// copies its rows and their X to shared memory; there a thread has whole rows.
//
//   rows       The rows of all entries form one list. A block has THREADS * ROWS of them; thread t has rows t, t + THREADS, ..,
//              so that neighbours write neighbouring elements.
//   flat       Rows without gaps of an odd number of vectors are one run of elements, which is copied by the widest
//              loads, wherever it begins. It has no bank conflicts as it is. So is an X without gaps.
//   apart      Other rows begin an odd number of vectors apart in shared memory, and are copied by vectors; where
//              one begins elsewhere, by elements.
//   lanes      As in row-smem: vectors v, v + PARTIALS, ... are summed to one, and the PARTIALS sums are merged as they
//              come. A lane has a second product where a row has more columns than 64.
//   never read A and X where alpha = 0; Y where beta = 0; vectors without an element of the block's rows and of their X. The
//              ones at the ends are read whole; allocations begin and end with a whole one.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef MAX_N
#define MAX_N 64
#endif
#define BLOCK_ROWS (THREADS * ROWS)
// The next smaller MAX_N: a row has more elements.
#define BELOW (MAX_N > 96 ? 96 : MAX_N > 64 ? 64 : MAX_N > 48 ? 48 : MAX_N > 32 ? 32 : MAX_N > 24 ? 24 : MAX_N > 16 ? 16 : MAX_N / 2)
#define HALVING (MAX_N > 32 ? 64 : MAX_N > 16 ? 32 : MAX_N)
#define HALVING_VECTORS (HALVING / VEC)
#define AT_ONCE (HALVING_VECTORS < 8 / VEC ? HALVING_VECTORS : 8 / VEC)
#define PARTIALS (HALVING_VECTORS / AT_ONCE)
// Elements of the widest load.
#define WIDEST (16 / ELEM_BYTES)

// Copies `count` neighbours each of `rows` rows: neighbour j of row r from `at(r, j)` to `to + r * pitch + j`.
template <typename T, typename AT>
STATIC void copy_rows(T *to, const U32 pitch, const U32 count, const U32 rows, const AT at) {
  U32 r = LID / count, j = LID % count;
  const U32 more_r = THREADS / count, more_j = THREADS % count;
  const auto next = [&]() {
    r += more_r;
    j += more_j;
    if (j >= count) {
      j -= count;
      r++;
    }
  };
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (sizeof(T) >= 4) {
#pragma unroll 4
    while (r < rows) {
      const U32 there = (U32)__cvta_generic_to_shared(to + r * pitch + j);
      const T *const p = at(r, j);
      if (sizeof(T) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(there), "l"(p));
      else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(there), "l"(p), "n"(sizeof(T) >= 4 ? sizeof(T) : 4));
      next();
    }
    return;
  }
#endif
  while (r < rows) {
    T held[4];
    U32 place[4];
#pragma unroll
    for (U32 k = 0; k < 4; k++) {
      place[k] = r < rows ? r * pitch + j : ~0u;
      if (r < rows) held[k] = *at(r, j);
      next();
    }
#pragma unroll
    for (U32 k = 0; k < 4; k++)
      if (place[k] != ~0u) to[place[k]] = held[k];
  }
}

// Copies a run of `count` elements, with the vectors at its ends. It begins so many elements behind `to`.
STATIC U32 copy_run(ELEM *to, const ELEM *from, const U32 count) {
  const U32 begin = (U32)(ADDRESS(from) / ELEM_BYTES) & (WIDEST - 1u), vectors = (begin + count + WIDEST - 1) / WIDEST;
  const uint4 *const first = (const uint4 *)(from - begin);
#pragma unroll 4
  for (U32 v = LID; v < vectors; v += THREADS) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const U32 there = (U32)__cvta_generic_to_shared((uint4 *)to + v);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(there), "l"(first + v));
#else
    ((uint4 *)to)[v] = first[v];
#endif
  }
  return begin;
}

KERNEL(THREADS) gemm_row_smem(GEMM_ARGUMENTS) {
  extern __shared__ __align__(16) unsigned char shared[];
  begin(false);
  const U64 all = m * batch, first = GROUP_ID * BLOCK_ROWS, entry = quotient(first, m), row0 = first - entry * m;
  const U32 count = all - first < BLOCK_ROWS ? (U32)(all - first) : BLOCK_ROWS, len = (U32)n;
  // Of a row of the block: its entry, counted from the first one.
  const auto entry_of = [&](const U32 r) {
    const U64 i = row0 + r;
    return i < m ? 0u : m >= BLOCK_ROWS ? 1u : (U32)i / (U32)m;
  };
  const U32 entries = entry_of(count - 1) + 1;
  // A thread's rows of Y: entry, row of it, and what comes to them from one to the next.
  U32 e = entry_of(LID);
  U64 i = row0 + LID - e * m;
  const U32 e_step = m > THREADS ? 0 : THREADS / (U32)m;
  const U64 i_step = THREADS - e_step * m;
  const auto next = [&]() {
    e += e_step, i += i_step;
    if (i >= m) i -= m, e++;
  };
  ELEM *const out = y + y0 + (I64)entry * yb;
  const bool plain = acc_is(alpha, (REAL)1) && acc_is(beta, (REAL)0);
  if (acc_is(alpha, (REAL)0)) {
    for (U32 r = LID; r < count; r += THREADS, next()) finish(out + (I64)e * yb + (I64)i * yrs, alpha, acc_zero(), beta);
    return;
  }

  // An odd number of vectors.
  const U32 apart = len + (len / VEC % 2 == 0 ? VEC : 0);
  ELEM *const rows = (ELEM *)shared, *const xs = rows + (BLOCK_ROWS * apart + 2 * WIDEST - 1) / WIDEST * WIDEST;
  const ELEM *const from = a + a0 + (I64)entry * ab + (I64)row0 * rs, *const column = x + x0 + (I64)entry * xb;
  // Where the first row and X begin.
  U32 begins = 0, x_begins = 0;
  const auto row_at = [&](const U32 r) {
    const U32 e = entry_of(r);
    return from + (I64)r * rs + (I64)e * (ab - (I64)m * rs);
  };
  const bool vectors = VEC == 1 || (BEYOND(from) == 0 && ((rs | ab) & (I64)(VEC - 1)) == 0);
  const bool even = ab == (I64)m * rs || entries == 1;
  if (vectors && even && rs == (I64)n && apart == len)
    begins = copy_run(rows, from, count * len);
  else if (vectors && even)
    copy_rows((WORDS *)rows, apart / VEC, len / VEC, count,
              [&](const U32 r, const U32 j) { return (const WORDS *)(from + (I64)r * rs) + j; });
  else if (vectors)
    copy_rows((WORDS *)rows, apart / VEC, len / VEC, count,
              [&](const U32 r, const U32 j) { return (const WORDS *)row_at(r) + j; });
  else
    copy_rows(rows, apart, len, count, [&](const U32 r, const U32 j) { return row_at(r) + j; });
  if (xrs == 1 && (xb == (I64)n || entries == 1) && BEYOND(column) == 0)
    x_begins = copy_run(xs, column, entries * len);
  else
    copy_rows(xs, len, len, entries, [&](const U32 e, const U32 j) { return column + (I64)e * xb + (I64)j * xrs; });
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  __syncthreads();
#pragma unroll 1
  for (U32 r = LID; r < count; r += THREADS, next()) {
    const PACK *const own = (const PACK *)(rows + begins + r * apart), *const own_x = (const PACK *)(xs + x_begins + e * len);
    ACC sum[VEC], open[3][VEC];
#pragma unroll
    for (U32 b = 0; b < PARTIALS; b++) {
      const U32 v = visited<PARTIALS>(b);
      ACC acc[AT_ONCE][VEC];
#pragma unroll
      for (U32 q = 0; q < AT_ONCE; q++) {
#pragma unroll
        for (U32 c = 0; c < VEC; c++) acc[q][c] = acc_zero();
#pragma unroll
        for (U32 j = (v + q * PARTIALS) * VEC; j < MAX_N; j += 64)
          if (j < BELOW + 1 || j < len) {
            const PACK av = own[j / VEC], xv = own_x[j / VEC];
#pragma unroll
            for (U32 c = 0; c < VEC; c++) acc[q][c] = acc_fma(conj_if(widen(av.e[c]), conj), widen(xv.e[c]), acc[q][c]);
          }
      }
      halve(acc);
      merge<PARTIALS>(open, acc[0], b);
#pragma unroll
      for (U32 c = 0; c < VEC; c++) sum[c] = acc[0][c];
    }
    halve(sum);
    // Lanes that are not kept are +0.
    const ACC all_lanes = HALVING < 64 ? acc_add(sum[0], acc_zero()) : sum[0];
    ELEM *const to = out + (I64)e * yb + (I64)i * yrs;
    if (plain) *to = narrow(all_lanes);
    else finish(to, alpha, all_lanes, beta);
  }
}
