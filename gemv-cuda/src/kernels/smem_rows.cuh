// Rows of A and their X in shared memory, where a thread computes whole rows of up to MAX_N <= 128 columns.
//
//   lanes      As in row-smem: vectors v, v + PARTIALS, ... are summed to one, and the PARTIALS sums are merged as they
//              come. A lane has a second product where a row has more columns than 64.
#ifndef THREADS
#define THREADS 128
#endif
#ifndef MAX_N
#define MAX_N 64
#endif
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

// Copies X of `entries` entries, each behind the one before. It begins so many elements behind `to`.
STATIC U32 copy_x(ELEM *to, const ELEM *x, const I64 xrs, const I64 xb, const U32 entries, const U32 len) {
  if (xrs == 1 && (xb == (I64)len || entries == 1) && BEYOND(x) == 0) return copy_run(to, x, entries * len);
  copy_rows(to, len, len, entries, [&](const U32 e, const U32 j) { return x + (I64)e * xb + (I64)j * xrs; });
  return 0;
}

// Waits for all copies of the block.
STATIC void copies_are_there() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  __syncthreads();
}

// The sum of a row, whose vectors are `step` vectors apart.
STATIC ACC sum_of_row(const PACK *row, const U32 step, const PACK *x, const U32 len, const U32 conj) {
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
          const PACK av = row[j / VEC * step], xv = x[j / VEC];
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
  return HALVING < 64 ? acc_add(sum[0], acc_zero()) : sum[0];
}
