// What the kernels of this backend share: vectors of VEC elements as one load brings them, and sums of
// what lies in memory. Stands before each of them.
#if VEC * ELEM_BYTES == 16
typedef uint4 WORDS;
#elif VEC * ELEM_BYTES == 8
typedef uint2 WORDS;
#elif VEC * ELEM_BYTES == 4
typedef U32 WORDS;
#else
typedef U16 WORDS;
#endif
typedef union {
  WORDS words;
  ELEM e[VEC];
} PACK;

// A is read once: it need not stay in the first cache, where x is.
STATIC WORDS stream(const ELEM *p) {
#ifndef __CUDA_ARCH__
  return *(const WORDS *)p;
#else
  WORDS v;
#if VEC * ELEM_BYTES == 16
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
#elif VEC * ELEM_BYTES == 8
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
#elif VEC * ELEM_BYTES == 4
  asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
#else
  asm("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
#endif
  return v;
#endif
}

// The sum of up to 256 values in memory, by the 32 threads of a warp.
STATIC ACC warp_sum(const ACC *from, const U32 len) {
  const U32 t = LID % 32;
  ACC all[8];
#pragma unroll
  for (U32 r = 0; r < 8; r++) all[r] = acc_zero();
#pragma unroll
  for (U32 r = 0; r < 8; r++)
    if (r * 32 + t < len) all[r] = __ldcg(from + r * 32 + t);
  ACC v[2];
#pragma unroll
  for (U32 k = 0; k < 2; k++) {
    v[k] = acc_zero();
#pragma unroll
    for (U32 r = 0; r < 4; r++)
      if (r * 64 + k * 32 + t < len) v[k] = acc_add(v[k], all[2 * r + k]);
  }
  v[0] = acc_add(v[0], v[1]);
#pragma unroll
  for (U32 o = 16; o > 0; o >>= 1) v[0] = acc_add(v[0], acc_xor(v[0], o));
  return v[0];
}
