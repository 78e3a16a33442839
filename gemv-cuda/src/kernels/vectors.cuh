// What the kernels of this backend share: vectors of VEC elements as one load brings them, halving
// trees in registers and over a warp, programmatic dependent launch, and clusters of CLUSTER_K
// blocks. Stands before each of them.
#ifndef CLUSTER_K
#define CLUSTER_K 1
#endif
#if VEC * A_ELEM_BYTES == 16
typedef uint4 WORDS;
#elif VEC * A_ELEM_BYTES == 8
typedef uint2 WORDS;
#elif VEC * A_ELEM_BYTES == 4
typedef U32 WORDS;
#else
typedef U16 WORDS;
#endif
typedef union {
  WORDS words;
  A_ELEM e[VEC];
} PACK;

// An address that is computed once and pinned to a register. Otherwise the compiler computes it anew
// under the condition of each load, which for elements of 8 bytes takes longer than the loads.
template <typename T> STATIC T *pinned(T *p) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(p));
#endif
  return p;
}

// The vector at `p` where `there`, else what was in the registers. The load is predicated and writes the
// registers where its values are used: after an `if`, doubles would be moved, and a move waits for the
// load before the next one is issued.
#ifndef __CUDA_ARCH__
#define LOAD_IF(name, how)                                                                  \
  STATIC void name(PACK &to, const A_ELEM *p, const bool there) {                             \
    if (there) to.words = *(const WORDS *)p;                                                \
  }
#else
#if VEC * A_ELEM_BYTES == 16 && A_DTYPE == 1
#define LOAD_TYPE "v2.f64 {%0, %1}, [%2]"
#define LOAD_TO "+d"(to.e[0]), "+d"(to.e[1]) : "l"(p), "r"((U32)there)
#define LOAD_IS "%3"
#elif VEC * A_ELEM_BYTES == 16 && A_DTYPE == 5
#define LOAD_TYPE "v2.f64 {%0, %1}, [%2]"
#define LOAD_TO "+d"(to.e[0].x), "+d"(to.e[0].y) : "l"(p), "r"((U32)there)
#define LOAD_IS "%3"
#elif VEC * A_ELEM_BYTES == 16
#define LOAD_TYPE "v4.u32 {%0, %1, %2, %3}, [%4]"
#define LOAD_TO                                                                             \
  "+r"(to.words.x), "+r"(to.words.y), "+r"(to.words.z), "+r"(to.words.w)                    \
      : "l"(p), "r"((U32)there)
#define LOAD_IS "%5"
#elif VEC * A_ELEM_BYTES == 8 && A_DTYPE == 1
#define LOAD_TYPE "f64 %0, [%1]"
#define LOAD_TO "+d"(to.e[0]) : "l"(p), "r"((U32)there)
#define LOAD_IS "%2"
#elif VEC * A_ELEM_BYTES == 8
#define LOAD_TYPE "v2.u32 {%0, %1}, [%2]"
#define LOAD_TO "+r"(to.words.x), "+r"(to.words.y) : "l"(p), "r"((U32)there)
#define LOAD_IS "%3"
#elif VEC * A_ELEM_BYTES == 4
#define LOAD_TYPE "u32 %0, [%1]"
#define LOAD_TO "+r"(to.words) : "l"(p), "r"((U32)there)
#define LOAD_IS "%2"
#else
#define LOAD_TYPE "u16 %0, [%1]"
#define LOAD_TO "+h"(to.words) : "l"(p), "r"((U32)there)
#define LOAD_IS "%2"
#endif
#define LOAD_IF(name, how)                                                                  \
  STATIC void name(PACK &to, const A_ELEM *p, const bool there) {                             \
    asm volatile("{ .reg .pred there; setp.ne.u32 there, " LOAD_IS ", 0; @there ld.global." \
                 how LOAD_TYPE "; }" : LOAD_TO);                                                         \
  }
#endif
#ifdef A_DTYPE
#define X_LOAD_IF(name, how) // see below
#endif // A_DTYPE
// A is read once: it need not stay in the L1 cache, where x is.
LOAD_IF(load_a, "L1::no_allocate.")
X_LOAD_IF(load_x, "")

#ifdef A_DTYPE
// x of a wider type than A: as many elements, by one load or two.
#if VEC * ELEM_BYTES > 16
typedef struct __align__(16) {
  uint4 q[VEC * ELEM_BYTES / 16];
} X_WORDS;
#elif VEC * ELEM_BYTES == 16
typedef uint4 X_WORDS;
#elif VEC * ELEM_BYTES == 8
typedef uint2 X_WORDS;
#else
typedef U32 X_WORDS;
#endif
typedef union {
  X_WORDS words;
  ELEM e[VEC];
} X_PACK;
#define AND_X_PACK ; X_PACK
#ifndef __CUDA_ARCH__
STATIC void load_x(X_PACK &to, const ELEM *p, const bool there) {
  if (there) to.words = *(const X_WORDS *)p;
}
#else
// What stands between the pieces of every form of the load.
#define IF_THERE(place) "{ .reg .pred there; setp.ne.u32 there, " place ", 0; @there ld.global."
STATIC void load_x(X_PACK &to, const ELEM *p, const bool there) {
#pragma unroll
  for (U32 c = 0; c < VEC; c += 16 / ELEM_BYTES) {
    const ELEM *q = p + c;
#if ELEM_BYTES == 8 && VEC == 1
    asm volatile(IF_THERE("%2") "f64 %0, [%1]; }" : "+d"(to.e[c]) : "l"(q), "r"((U32)there));
#elif ELEM_BYTES == 8
    asm volatile(IF_THERE("%3") "v2.f64 {%0, %1}, [%2]; }"
        : "+d"(to.e[c]), "+d"(to.e[c + 1])
        : "l"(q), "r"((U32)there));
#elif VEC == 1
    asm volatile(IF_THERE("%2") "f32 %0, [%1]; }" : "+f"(to.e[c]) : "l"(q), "r"((U32)there));
#elif VEC == 2
    asm volatile(IF_THERE("%3") "v2.f32 {%0, %1}, [%2]; }"
        : "+f"(to.e[c]), "+f"(to.e[c + 1])
        : "l"(q), "r"((U32)there));
#else
    asm volatile(IF_THERE("%5") "v4.f32 {%0, %1, %2, %3}, [%4]; }"
        : "+f"(to.e[c]), "+f"(to.e[c + 1]), "+f"(to.e[c + 2]), "+f"(to.e[c + 3])
        : "l"(q), "r"((U32)there));
#endif
  }
}
#endif
#endif // A_DTYPE

// For elements beyond a row's end: +0 * -0 leaves any sum as it is.
#if DTYPE == 2 || DTYPE == 3
#define MINUS_ZERO ((ELEM)0x8000u)
#else
#define MINUS_ZERO ((ELEM)-0.0)
#endif

// Zeroes the sums.
template <U32 R, U32 N> STATIC void zero(ACC (&v)[R][N][VEC]) {
#pragma unroll
  for (U32 r = 0; r < R; r++)
#pragma unroll
    for (U32 k = 0; k < N; k++)
#pragma unroll
      for (U32 c = 0; c < VEC; c++) v[r][k][c] = acc_zero();
}

// Halves N lanes in registers down to one, `v[0]`.
template <U32 N> STATIC void halve(ACC (&v)[N]) {
#pragma unroll
  for (U32 d = N / 2; d > 0; d /= 2)
#pragma unroll
    for (U32 k = 0; k < N / 2; k++)
      if (k < d) v[k] = acc_add(v[k], v[k + d]);
}

// The same for each of C elements.
template <U32 N, U32 C> STATIC void halve(ACC (&v)[N][C]) {
#pragma unroll
  for (U32 d = N / 2; d > 0; d /= 2)
#pragma unroll
    for (U32 k = 0; k < N / 2; k++)
      if (k < d)
#pragma unroll
        for (U32 c = 0; c < C; c++) v[k][c] = acc_add(v[k][c], v[k + d][c]);
}

// Which of PARTIALS <= 8 partial sums comes b-th, so that sums merge as they come: b with its bits reversed.
template <U32 PARTIALS> STATIC U32 visited(const U32 b) {
  return PARTIALS == 8 ? (b & 1u) << 2 | (b & 2u) | b >> 2 : PARTIALS == 4 ? (b & 1u) << 1 | b >> 1 : b;
}

// Merges N sums of the b-th partial with those of 1, 2 and 4 partials that wait for it in `open`, or
// leaves them there. After the last partial, `sum` is the sum of all.
template <U32 PARTIALS, U32 N> STATIC void merge(ACC (&open)[3][N], ACC (&sum)[N], const U32 b) {
  bool goes_on = true;
#pragma unroll
  for (U32 k = 0; k < 3; k++) {
    if (1u << k >= PARTIALS) continue;
    if (goes_on && (b >> k & 1u) == 0) {
      goes_on = false;
#pragma unroll
      for (U32 i = 0; i < N; i++) open[k][i] = sum[i];
    }
    if (goes_on)
#pragma unroll
      for (U32 i = 0; i < N; i++) sum[i] = acc_add(open[k][i], sum[i]);
  }
}

// The sum of the lanes of T neighbouring threads, SLOTS vectors each, for every one of them. While a
// thread holds several values, each exchange also halves their number: the upper half of a vector's
// lanes goes one way and the lower half the other.
template <U32 T, U32 SLOTS> STATIC ACC halve_subwarp(ACC (&acc)[SLOTS][VEC], const U32 t) {
  halve(acc);
#pragma unroll
  for (U32 level = 1; level <= 5; level++) {
    const U32 o = T >> level, half = VEC >> level;
    const bool upper = (t & o) != 0;
    if (half > 0) {
#pragma unroll
      for (U32 c = 0; c < VEC / 2; c++)
        if (c < half) {
          const ACC give = upper ? acc[0][c] : acc[0][c + half];
          const ACC keep = upper ? acc[0][c + half] : acc[0][c];
          acc[0][c] = acc_add(keep, acc_xor(give, o));
        }
    } else if (o > 0) {
      acc[0][0] = acc_add(acc[0][0], acc_xor(acc[0][0], o));
    }
  }
  // The lanes of a vector, which the first levels have spread over the threads.
#pragma unroll
  for (U32 level = 1; level <= 3; level++)
    if (VEC >> level > 0) acc[0][0] = acc_add(acc[0][0], acc_xor(acc[0][0], T >> level));
  return acc[0][0];
}

// Programmatic dependent launch: a launch may become resident before the one ahead of it has ended. Every
// entry point has this before it reads or writes memory: it waits for all that the launch ahead wrote. Where
// `next_may_begin`, the next launch may become resident from now on: a further one of this product. The next
// product may not, or its blocks would crowd where this one's end first; row_block.cu says where it may.
//
// So A and x may change after a kernel has begun. They are neither __restrict__ nor read by ld.global.nc,
// which the compiler could move ahead of the wait.
#undef CONSTANT
#define CONSTANT
STATIC void begin(const bool next_may_begin) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (next_may_begin) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The sum of 256 values, of which thread t of a warp has t, t + 32, ... (zero in the place of those that
// are missing), for each of its threads.
STATIC ACC warp_sum(ACC (&all)[8]) {
  ACC v[2];
#pragma unroll
  for (U32 k = 0; k < 2; k++) {
    v[k] = acc_zero();
#pragma unroll
    for (U32 r = 0; r < 4; r++) v[k] = acc_add(v[k], all[2 * r + k]);
  }
  v[0] = acc_add(v[0], v[1]);
#pragma unroll
  for (U32 o = 16; o > 0; o >>= 1) v[0] = acc_add(v[0], acc_xor(v[0], o));
  return v[0];
}

// The same for up to 256 values in memory.
STATIC ACC warp_sum(const ACC *from, const U32 len) {
  const U32 t = LID % 32;
  ACC all[8];
#pragma unroll
  for (U32 r = 0; r < 8; r++) {
    all[r] = acc_zero();
    if (r * 32 + t < len) all[r] = __ldcg(from + r * 32 + t);
  }
  return warp_sum(all);
}

#if CLUSTER_K > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER_K, 1, 1)
// The address of `p` in the shared memory of the cluster's first block.
STATIC ACC *leader_smem(ACC *p) {
  U64 there;
  asm("mapa.u64 %0, %1, 0;" : "=l"(there) : "l"(ADDRESS(p)));
  return (ACC *)there;
}
// The cluster's barrier in two halves: what was written before the first is visible after the second.
// Whole warps arrive: `aligned` is the faster form.
STATIC void cluster_arrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}
STATIC void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
#else
#define CLUSTER_DIMS
STATIC ACC *leader_smem(ACC *p) { return p; }
STATIC void cluster_arrive() {}
STATIC void cluster_wait() {}
#endif
