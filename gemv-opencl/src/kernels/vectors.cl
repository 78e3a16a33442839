// What the kernels for GPUs share: vectors of VEC elements as one load brings them, and loads under a
// condition.
#if VEC * ELEM_BYTES == 2
typedef U16 WORD;
#define WORDS 1
#else
typedef U32 WORD;
#define WORDS (VEC * ELEM_BYTES / 4)
#endif
typedef union {
  WORD w[WORDS];
  ELEM e[VEC];
} PACK;

// The vector at `p` where `there`; else it may be anything, and is not used. NVIDIA's load is predicated and writes
// the registers where its values are used: after an `if` they may be moved, and a move waits for the load
// before the next one is issued.
#ifdef __NV_CL_C_VERSION
#if ELEM_BYTES * VEC == 16 && DTYPE == 1
#define LOAD_TYPE "v2.f64 {%0, %1}, [%2]"
#define LOAD_TO "+d"(to->e[0]), "+d"(to->e[1]) : "l"(ADDRESS(p)), "r"((U32)there)
#define LOAD_IS "%3"
#elif ELEM_BYTES * VEC == 16
#define LOAD_TYPE "v4.u32 {%0, %1, %2, %3}, [%4]"
#define LOAD_TO                                                                             \
  "+r"(to->w[0]), "+r"(to->w[1]), "+r"(to->w[2]), "+r"(to->w[3])                            \
      : "l"(ADDRESS(p)), "r"((U32)there)
#define LOAD_IS "%5"
#elif ELEM_BYTES * VEC == 8 && DTYPE == 1
#define LOAD_TYPE "f64 %0, [%1]"
#define LOAD_TO "+d"(to->e[0]) : "l"(ADDRESS(p)), "r"((U32)there)
#define LOAD_IS "%2"
#elif ELEM_BYTES * VEC == 8
#define LOAD_TYPE "v2.u32 {%0, %1}, [%2]"
#define LOAD_TO "+r"(to->w[0]), "+r"(to->w[1]) : "l"(ADDRESS(p)), "r"((U32)there)
#define LOAD_IS "%3"
#elif ELEM_BYTES * VEC == 4
#define LOAD_TYPE "u32 %0, [%1]"
#define LOAD_TO "+r"(to->w[0]) : "l"(ADDRESS(p)), "r"((U32)there)
#define LOAD_IS "%2"
#else
#define LOAD_TYPE "u16 %0, [%1]"
#define LOAD_TO "+h"(to->w[0]) : "l"(ADDRESS(p)), "r"((U32)there)
#define LOAD_IS "%2"
#endif
STATIC void load_if(PACK *to, GLOBAL const ELEM *p, const bool there) {
  asm volatile("{ .reg .pred there; setp.ne.u32 there, " LOAD_IS ", 0; @there ld.global." LOAD_TYPE
               "; }" : LOAD_TO);
}
#else
STATIC void load_if(PACK *to, GLOBAL const ELEM *p, const bool there) {
  if (!there) {
    // What reads it all the same would stop a simulator that looks for values that were not set.
    for (U32 i = 0; i < WORDS; i++) to->w[i] = 0;
    return;
  }
#if ELEM_BYTES * VEC == 16
  const uint4 v = *(GLOBAL const uint4 *)p;
  to->w[0] = v.x, to->w[1] = v.y, to->w[2] = v.z, to->w[3] = v.w;
#elif ELEM_BYTES * VEC == 8
  const uint2 v = *(GLOBAL const uint2 *)p;
  to->w[0] = v.x, to->w[1] = v.y;
#else
  to->w[0] = *(GLOBAL const WORD *)p;
#endif
}
#endif
STATIC void store_vector(GLOBAL ELEM *p, const PACK *from) {
#if ELEM_BYTES * VEC == 16
  *(GLOBAL uint4 *)p = (uint4)(from->w[0], from->w[1], from->w[2], from->w[3]);
#elif ELEM_BYTES * VEC == 8
  *(GLOBAL uint2 *)p = (uint2)(from->w[0], from->w[1]);
#else
  *(GLOBAL WORD *)p = from->w[0];
#endif
}
// The same in local memory.
STATIC INLINED void load_local(PACK *to, LOCAL_PTR(const ELEM) p) {
#if ELEM_BYTES * VEC == 16
  const uint4 v = *(LOCAL_PTR(const uint4))p;
  to->w[0] = v.x, to->w[1] = v.y, to->w[2] = v.z, to->w[3] = v.w;
#elif ELEM_BYTES * VEC == 8
  const uint2 v = *(LOCAL_PTR(const uint2))p;
  to->w[0] = v.x, to->w[1] = v.y;
#else
  to->w[0] = *(LOCAL_PTR(const WORD))p;
#endif
}
STATIC INLINED void store_local(LOCAL_PTR(ELEM) p, const PACK *from) {
#if ELEM_BYTES * VEC == 16
  *(LOCAL_PTR(uint4))p = (uint4)(from->w[0], from->w[1], from->w[2], from->w[3]);
#elif ELEM_BYTES * VEC == 8
  *(LOCAL_PTR(uint2))p = (uint2)(from->w[0], from->w[1]);
#else
  *(LOCAL_PTR(WORD))p = from->w[0];
#endif
}
