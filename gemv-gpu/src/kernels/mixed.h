// Behind the prelude, where x and y have a wider type than A: the words by which a kernel reads A. The
// prelude's own words are for x, y and the sums, all of one type.
//
// Set from outside:
//   A_DTYPE       0 f32, 2 f16, 3 bf16
//   A_ELEM_BYTES  4 or 2
#if A_DTYPE == 0
typedef float A_ELEM;
#else
typedef U16 A_ELEM;
#endif

// Exact.
#if A_DTYPE == 0
STATIC ACC a_widen(A_ELEM e) { return (ACC)e; }
#elif A_DTYPE == 3
STATIC ACC a_widen(A_ELEM e) { return AS_F32((U32)e << 16); }
#else
// As the prelude's for f16.
STATIC ACC a_widen(A_ELEM e) {
#ifdef __CUDA_ARCH__
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
#endif

// ---- vectors of VEC elements of A, at most 16 bytes
typedef struct {
  A_ELEM e[VEC];
} A_VECTOR;
#if VEC == 1
#define A_LOAD_VECTOR(vector, p) ((vector).e[0] = *(p))
#elif A_DTYPE == 0 && VEC == 2
#define A_LOAD_VECTOR(vector, p)             \
  do {                                       \
    const float2 v_ = VECTOR_AT_(float2, p); \
    (vector).e[0] = v_.x, (vector).e[1] = v_.y; \
  } while (0)
#elif A_DTYPE == 0
#define A_LOAD_VECTOR(vector, p)             \
  do {                                       \
    const float4 v_ = VECTOR_AT_(float4, p); \
    (vector).e[0] = v_.x, (vector).e[1] = v_.y; \
    (vector).e[2] = v_.z, (vector).e[3] = v_.w; \
  } while (0)
#else
#define A_HALVES_(vector, k, w) ((vector).e[k] = (A_ELEM)(w), (vector).e[k + 1] = (A_ELEM)((w) >> 16))
#if VEC == 2
#define A_LOAD_VECTOR(vector, p)             \
  do {                                       \
    const U32 v_ = VECTOR_AT_(U32, p);       \
    A_HALVES_(vector, 0, v_);                \
  } while (0)
#elif VEC == 4
#define A_LOAD_VECTOR(vector, p)             \
  do {                                       \
    const uint2 v_ = VECTOR_AT_(uint2, p);   \
    A_HALVES_(vector, 0, v_.x), A_HALVES_(vector, 2, v_.y); \
  } while (0)
#else
#define A_LOAD_VECTOR(vector, p)             \
  do {                                       \
    const uint4 v_ = VECTOR_AT_(uint4, p);   \
    A_HALVES_(vector, 0, v_.x), A_HALVES_(vector, 2, v_.y); \
    A_HALVES_(vector, 4, v_.z), A_HALVES_(vector, 6, v_.w); \
  } while (0)
#endif
#endif
#define A_BEYOND(p) ((U32)(ADDRESS(p) / A_ELEM_BYTES) & (VEC - 1u))

// ---- as many elements of x, by two loads where they are more than 16 bytes
#define AND_VECTOR ; VECTOR
#if VEC * ELEM_BYTES > 16
#undef LOAD_VECTOR
#if ELEM_BYTES == 4
#define LOAD_VECTOR(vector, p)                     \
  do {                                             \
    const float4 v_ = VECTOR_AT_(float4, p), w_ = VECTOR_AT_(float4, (p) + 4); \
    (vector).e[0] = v_.x, (vector).e[1] = v_.y;    \
    (vector).e[2] = v_.z, (vector).e[3] = v_.w;    \
    (vector).e[4] = w_.x, (vector).e[5] = w_.y;    \
    (vector).e[6] = w_.z, (vector).e[7] = w_.w;    \
  } while (0)
#else
#define LOAD_VECTOR(vector, p)                     \
  do {                                             \
    const double2 v_ = VECTOR_AT_(double2, p), w_ = VECTOR_AT_(double2, (p) + 2); \
    (vector).e[0] = v_.x, (vector).e[1] = v_.y;    \
    (vector).e[2] = w_.x, (vector).e[3] = w_.y;    \
  } while (0)
#endif
#endif
