// The f64 tensor cores, for gemm-row-mma, gemm-col-mma and the self-test (mma_tiles.cu).
#if DTYPE != 1
#error "for f64"
#endif

// One lane of 8 rows and 16 columns of X: its four columns of A, one after the other, from +0. Devices before 8.0 have
// no such instruction, and do not get here.
STATIC void lane(ACC (&sum)[4], const ACC (&xv)[2], const ACC one) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
               : "=d"(sum[0]), "=d"(sum[1]), "=d"(sum[2]), "=d"(sum[3])
               : "d"(xv[0]), "d"(xv[1]), "d"(one), "d"(0.0));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#pragma unroll
  for (U32 h = 0; h < 2; h++)
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%4, %4};"
                 : "=d"(sum[2 * h]), "=d"(sum[2 * h + 1])
                 : "d"(xv[h]), "d"(one), "d"(0.0));
#else
  sum[0] = sum[1] = sum[2] = sum[3] = acc_zero();
#endif
}
