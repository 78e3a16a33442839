// What `#include "gemv.h"` adds to the prelude for kernels that people bring: types under the names that
// an OpenCL driver reports for parameters, blocks of any size, dynamic shared memory.
//
// SHARED_PARAMETER(T, name) ends the parameters, and SHARED(T, name) begins the body, of a kernel with
// dynamic shared memory: `T *name`, of as many bytes as the launch gives.
#ifdef __OPENCL_VERSION__
#define U16 ushort
#define U32 uint
#define U64 ulong
#define I32 int
#define I64 long
#if DTYPE == 1 || DTYPE == 5
#define REAL double
#else
#define REAL float
#endif
#if DTYPE == 2 || DTYPE == 3
#define ELEM ushort
#define ACC float
#elif DTYPE == 4
#define ELEM float2
#define ACC float2
#elif DTYPE == 5
#define ELEM double2
#define ACC double2
#else
#define ELEM REAL
#define ACC REAL
#endif
#define ENTRY __kernel void
#define GROUP_SIZE ((U32)get_local_size(0))
#define SHARED_PARAMETER(T, name) , __local T *name
#define SHARED(T, name)
#else
typedef int I32;
#define ENTRY extern "C" __global__ void
#define GROUP_SIZE ((U32)blockDim.x)
#define SHARED_PARAMETER(T, name)
#define SHARED(T, name) extern __shared__ T name[]
#endif
