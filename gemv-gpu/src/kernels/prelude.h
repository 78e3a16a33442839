// The words of every kernel, spelled as OpenCL C 1.2 or as CUDA C++ (NVRTC, no headers).
//
// Set from outside:
//   DTYPE  0 f32, 1 f64, 2 f16, 3 bf16, 4 c32, 5 c64
//
// ELEM is an element of x and y in memory, A_ELEM one of A: the same type, or that of mixed.h. A kernel
// that takes both reads A by A_VECTOR, A_LOAD_VECTOR, A_BEYOND and a_widen. Where the types are the same,
// these words are rendered without what stands before them.
//
// ACC is the type of the accumulator of ELEM: REAL, or a pair of REAL. All
// arithmetic goes through acc_*: each step rounds once, to nearest even, is never contracted and
// keeps subnormals. f16 and bf16 are loaded as 16-bit integers, so no device needs an extension.
#ifndef DTYPE
#define DTYPE 0
#endif
#define COMPLEX (DTYPE >= 4)

// ---- the two languages
#ifdef __OPENCL_VERSION__
#pragma OPENCL FP_CONTRACT OFF
#if (DTYPE == 1 || DTYPE == 5) && defined(cl_khr_fp64)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
typedef ushort U16;
typedef uint U32;
typedef ulong U64;
typedef long I64;
#define KERNEL(threads) __kernel __attribute__((reqd_work_group_size(threads, 1, 1))) void
#define STATIC static inline
// Before every function with a barrier or a pointer to local memory: see `pocl-inline` of the known bugs of gemv-opencl.
#define INLINED __attribute__((always_inline))
#define GLOBAL __global
#define LOCAL __local
#define RESTRICT restrict
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
// For values that one thread of a block writes to global memory and another one reads.
#define BARRIER_GLOBAL() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define LID ((U32)get_local_id(0))
#define GROUP_ID ((U64)get_group_id(0))
#define GROUPS ((U64)get_num_groups(0))
#define GROUP_Y ((U64)get_group_id(1))
#define GROUPS_Y ((U64)get_num_groups(1))
#define AS_U32(f) as_uint(f)
#define AS_F32(u) as_float(u)
#define ADDRESS(p) ((U64)(uintptr_t)(p))
#define FMA_(a, b, c) fma(a, b, c)
#define ADD_(a, b) ((a) + (b))
#define MUL_(a, b) ((a) * (b))
#define PAIR_(T, a, b) ((T)(a, b))
#else
#ifdef __CUDACC_RTC__
#pragma nv_diag_suppress 177, 186 // functions that a kernel does not use; 0 < SIZE
#endif
typedef unsigned short U16;
typedef unsigned int U32;
typedef unsigned long long U64;
typedef long long I64;
// The second bound keeps ptxas from spilling registers for an occupancy that is not needed.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define STATIC static __device__ __forceinline__
#define INLINED
#define GLOBAL
#define LOCAL __shared__
#define RESTRICT __restrict__
#define BARRIER() __syncthreads()
#define BARRIER_GLOBAL() __syncthreads()
#define LID ((U32)threadIdx.x)
#define GROUP_ID ((U64)blockIdx.x)
#define GROUPS ((U64)gridDim.x)
#define GROUP_Y ((U64)blockIdx.y)
#define GROUPS_Y ((U64)gridDim.y)
#define AS_U32(f) __float_as_uint(f)
#define AS_F32(u) __uint_as_float(u)
#define ADDRESS(p) ((U64)(p))
#if DTYPE == 1 || DTYPE == 5
#define FMA_(a, b, c) __fma_rn(a, b, c)
#define ADD_(a, b) __dadd_rn(a, b)
#define MUL_(a, b) __dmul_rn(a, b)
#else
#define FMA_(a, b, c) __fmaf_rn(a, b, c)
#define ADD_(a, b) __fadd_rn(a, b)
#define MUL_(a, b) __fmul_rn(a, b)
#endif
#define PAIR_(T, a, b) make_##T(a, b)
#endif
// A pointer to local memory as a parameter; CUDA's are generic.
#ifdef __OPENCL_VERSION__
#define LOCAL_PTR(T) __local T *
#else
#define LOCAL_PTR(T) T *
#endif

// ---- the types
#if DTYPE == 1 || DTYPE == 5
typedef double REAL;
#else
typedef float REAL;
#endif
#if DTYPE == 0
typedef float ELEM;
typedef float ACC;
#define ELEM_BYTES 4
#elif DTYPE == 1
typedef double ELEM;
typedef double ACC;
#define ELEM_BYTES 8
#elif DTYPE == 2 || DTYPE == 3
typedef U16 ELEM;
typedef float ACC;
#define ELEM_BYTES 2
#elif DTYPE == 4
typedef float2 ELEM;
typedef float2 ACC;
#define ELEM_BYTES 8
#define PAIR(a, b) PAIR_(float2, a, b)
#elif DTYPE == 5
typedef double2 ELEM;
typedef double2 ACC;
#define ELEM_BYTES 16
#define PAIR(a, b) PAIR_(double2, a, b)
#endif

// ---- arithmetic (rules 2, 6 and 7 of the order)
#if COMPLEX
STATIC ACC acc_zero(void) { return PAIR((REAL)0, (REAL)0); }
STATIC ACC acc_add(ACC a, ACC b) { return PAIR(ADD_(a.x, b.x), ADD_(a.y, b.y)); }
// a * b + c
STATIC ACC acc_fma(ACC a, ACC b, ACC c) {
  return PAIR(FMA_(-a.y, b.y, FMA_(a.x, b.x, c.x)), FMA_(a.y, b.x, FMA_(a.x, b.y, c.y)));
}
STATIC ACC acc_mul(ACC a, ACC b) {
  return PAIR(FMA_(-a.y, b.y, MUL_(a.x, b.x)), FMA_(a.y, b.x, MUL_(a.x, b.y)));
}
STATIC bool acc_is(ACC a, REAL v) { return a.x == v && a.y == (REAL)0; }
STATIC ACC widen(ELEM e) { return e; }
STATIC ELEM narrow(ACC a) { return a; }
STATIC ACC conj_if(ACC a, U32 conj) { return conj ? PAIR(a.x, -a.y) : a; }
#else
STATIC ACC acc_zero(void) { return (ACC)0; }
STATIC ACC acc_add(ACC a, ACC b) { return ADD_(a, b); }
STATIC ACC acc_fma(ACC a, ACC b, ACC c) { return FMA_(a, b, c); }
STATIC ACC acc_mul(ACC a, ACC b) { return MUL_(a, b); }
STATIC bool acc_is(ACC a, REAL v) { return a == v; }
STATIC ACC conj_if(ACC a, U32 conj) { return a; }
#if DTYPE == 2
// Exact. The product shifts the exponent and normalises subnormals; infinities and NaNs are
// selected apart.
STATIC ACC widen(ELEM e) {
#ifdef __CUDA_ARCH__
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(e));
  return f;
#elif defined(__NV_CL_C_VERSION)
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(e));
  return f;
#else
  const U32 bits = ((U32)e & 0x7fffu) << 13;
  const float f = AS_F32(bits) * 5192296858534827628530496329220096.0f; // 2^112
  const U32 wide = bits >= 0x0f800000u ? bits | 0x7f800000u : AS_U32(f);
  return AS_F32(wide | ((U32)e & 0x8000u) << 16);
#endif
}
// To nearest even.
STATIC ELEM narrow(ACC a) {
  const U32 u = AS_U32(a), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
#ifdef __OPENCL_VERSION__
  // Selects: `pocl-branches` of the known bugs.
  const U32 small = AS_U32(ADD_(AS_F32(mag), 0.5f)) - 0x3f000000u;
  const U32 other = (mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13;
  const U32 finite = mag < 0x38800000u ? small : other;
  const U32 out = mag > 0x7f800000u ? 0x7e00u : mag >= 0x477ff000u ? 0x7c00u : finite;
#else
  U32 out;
  if (mag > 0x7f800000u) out = 0x7e00u;        // NaN
  else if (mag >= 0x477ff000u) out = 0x7c00u;  // 65520 and above
  else if (mag < 0x38800000u)                  // subnormal: 0.5 has the unit of these
    out = AS_U32(ADD_(AS_F32(mag), 0.5f)) - 0x3f000000u;
  else out = (mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13;
#endif
  return (ELEM)(sign | out);
}
#elif DTYPE == 3
STATIC ACC widen(ELEM e) { return AS_F32((U32)e << 16); }
// To nearest even.
STATIC ELEM narrow(ACC a) {
  const U32 u = AS_U32(a);
#ifdef __OPENCL_VERSION__
  // As above.
  const U32 finite = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (ELEM)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : finite);
#else
  if ((u & 0x7fffffffu) > 0x7f800000u) return (ELEM)(u >> 16 | 0x40u);
  return (ELEM)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}
#else
STATIC ACC widen(ELEM e) { return e; }
STATIC ELEM narrow(ACC a) { return a; }
#endif
#endif

// Rule 6: y = alpha * sum + beta * y, rounded once to ELEM. beta = 0 does not read y; alpha = 0
// does not use the sum; a factor of exactly 1 is not multiplied.
STATIC void finish(GLOBAL ELEM *y, ACC alpha, ACC sum, ACC beta) {
  ACC out;
  if (acc_is(alpha, (REAL)0)) {
    if (acc_is(beta, (REAL)1)) return;
    out = acc_is(beta, (REAL)0) ? acc_zero() : acc_mul(beta, widen(*y));
  } else if (acc_is(beta, (REAL)0)) {
    out = acc_is(alpha, (REAL)1) ? sum : acc_mul(alpha, sum);
  } else {
    const ACC old = acc_is(beta, (REAL)1) ? widen(*y) : acc_mul(beta, widen(*y));
    out = acc_is(alpha, (REAL)1) ? acc_add(sum, old) : acc_fma(alpha, sum, old);
  }
  *y = narrow(out);
}

// ---- vectors of VEC elements, at most 16 bytes; WIDTH elements are one or more such vectors
#if defined(WIDTH) && WIDTH * A_ELEM_BYTES <= 16
#define VEC WIDTH
#elif defined(WIDTH)
#define VEC (16 / A_ELEM_BYTES)
#endif
#ifndef VEC
#define VEC 1
#endif
// A load of VEC elements from a multiple of VEC elements, as one instruction.
typedef struct {
  ELEM e[VEC];
} VECTOR;
#define VECTOR_AT_(T, p) (*(GLOBAL const T *)(p))
#if VEC == 1
#define LOAD_VECTOR(vector, p) ((vector).e[0] = *(p))
#elif ELEM_BYTES == 2
#define HALVES_(vector, k, w) ((vector).e[k] = (ELEM)(w), (vector).e[k + 1] = (ELEM)((w) >> 16))
#if VEC == 2
#define LOAD_VECTOR(vector, p)              \
  do {                                      \
    const U32 v_ = VECTOR_AT_(U32, p);      \
    HALVES_(vector, 0, v_);                 \
  } while (0)
#elif VEC == 4
#define LOAD_VECTOR(vector, p)              \
  do {                                      \
    const uint2 v_ = VECTOR_AT_(uint2, p);  \
    HALVES_(vector, 0, v_.x), HALVES_(vector, 2, v_.y); \
  } while (0)
#else
#define LOAD_VECTOR(vector, p)              \
  do {                                      \
    const uint4 v_ = VECTOR_AT_(uint4, p);  \
    HALVES_(vector, 0, v_.x), HALVES_(vector, 2, v_.y); \
    HALVES_(vector, 4, v_.z), HALVES_(vector, 6, v_.w); \
  } while (0)
#endif
#elif DTYPE == 4
#define LOAD_VECTOR(vector, p)              \
  do {                                      \
    const float4 v_ = VECTOR_AT_(float4, p); \
    (vector).e[0] = PAIR(v_.x, v_.y), (vector).e[1] = PAIR(v_.z, v_.w); \
  } while (0)
#elif DTYPE == 1
#define LOAD_VECTOR(vector, p)              \
  do {                                      \
    const double2 v_ = VECTOR_AT_(double2, p); \
    (vector).e[0] = v_.x, (vector).e[1] = v_.y; \
  } while (0)
#elif VEC == 2
#define LOAD_VECTOR(vector, p)              \
  do {                                      \
    const float2 v_ = VECTOR_AT_(float2, p); \
    (vector).e[0] = v_.x, (vector).e[1] = v_.y; \
  } while (0)
#else
#define LOAD_VECTOR(vector, p)              \
  do {                                      \
    const float4 v_ = VECTOR_AT_(float4, p); \
    (vector).e[0] = v_.x, (vector).e[1] = v_.y; \
    (vector).e[2] = v_.z, (vector).e[3] = v_.w; \
  } while (0)
#endif
// How many elements a pointer lies beyond a multiple of VEC elements. Every pointer is a multiple
// of one element: the host copies data that is not.
#define BEYOND(p) ((U32)(ADDRESS(p) / ELEM_BYTES) & (VEC - 1u))

// ---- what every entry point takes
// Of A and x, which do not change while a kernel runs.
#define CONSTANT RESTRICT
#define ARGUMENTS                                                                          \
  const U64 m, const U64 n, GLOBAL const A_ELEM *CONSTANT a, const U64 a0, const I64 rs,     \
      const I64 cs, GLOBAL const ELEM *CONSTANT x, const U64 x0, const I64 incx,           \
      GLOBAL ELEM *RESTRICT y, const U64 y0, const I64 incy, const ACC alpha,              \
      const ACC beta, const U32 conj, GLOBAL ACC *RESTRICT workspace, GLOBAL U32 *RESTRICT counters

// ---- the order of additions: segments of 256 columns, 64 lanes
#define SEG 256u
#define LANES 64u
STATIC U64 ceil_div(U64 a, U64 b) { return (a + b - 1) / b; }

// Workspace of a row with `count` sums: every level of their reduction.
STATIC U64 levels_total(U64 count) {
  U64 total = count;
  while (count > 1) total += count = ceil_div(count, SEG);
  return total;
}

// Butterfly reduction over sub-warps of `width` threads, of `count` values a thread: every thread
// has the sum. Every thread of the block takes part.
#ifdef __OPENCL_VERSION__
#ifdef __NV_CL_C_VERSION
// NVIDIA's OpenCL C has no shuffles, but takes PTX. A block has whole warps.
#define EXCHANGE_SIZE(threads, count) 1
STATIC U32 word_xor(const U32 v, const U32 o) {
  U32 other;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(other) : "r"(v), "r"(o));
  return other;
}
#if DTYPE == 1 || DTYPE == 5
STATIC REAL real_xor(const REAL v, const U32 o) {
  const uint2 words = as_uint2(v);
  return as_double((uint2)(word_xor(words.x, o), word_xor(words.y, o)));
}
#else
STATIC REAL real_xor(const REAL v, const U32 o) { return AS_F32(word_xor(AS_U32(v), o)); }
#endif
#if COMPLEX
STATIC ACC acc_xor(const ACC v, const U32 o) { return PAIR(real_xor(v.x, o), real_xor(v.y, o)); }
#else
STATIC ACC acc_xor(const ACC v, const U32 o) { return real_xor(v, o); }
#endif
STATIC INLINED void butterfly(ACC *v, const U32 count, const U32 width, const U32 threads,
                      LOCAL_PTR(ACC) buffer) {
  // A constant trip count with a guard, so that it is unrolled before `width` is known.
#pragma unroll
  for (U32 level = 1; level <= 5; level++)
    if (width >> level > 0)
#pragma unroll
      for (U32 i = 0; i < count; i++) v[i] = acc_add(v[i], acc_xor(v[i], width >> level));
}
#else
#define EXCHANGE_SIZE(threads, count) ((threads) * (count))
STATIC INLINED void butterfly(ACC *v, const U32 count, const U32 width, const U32 threads,
                      LOCAL_PTR(ACC) buffer) {
  for (U32 o = width / 2; o > 0; o >>= 1) {
    BARRIER();
    for (U32 i = 0; i < count; i++) buffer[i * threads + LID] = v[i];
    BARRIER();
    for (U32 i = 0; i < count; i++) v[i] = acc_add(v[i], buffer[i * threads + (LID ^ o)]);
  }
}
#endif
#else
#define EXCHANGE_SIZE(threads, count) 1
#if COMPLEX
STATIC ACC acc_xor(ACC v, U32 o) {
  return PAIR(__shfl_xor_sync(0xffffffffu, v.x, o), __shfl_xor_sync(0xffffffffu, v.y, o));
}
#else
STATIC ACC acc_xor(ACC v, U32 o) { return __shfl_xor_sync(0xffffffffu, v, o); }
#endif
STATIC void butterfly(ACC *v, const U32 count, const U32 width, const U32 threads, ACC *buffer) {
#pragma unroll
  for (U32 o = width / 2; o > 0; o >>= 1)
#pragma unroll
    for (U32 i = 0; i < count; i++) v[i] = acc_add(v[i], acc_xor(v[i], o));
}
#endif

