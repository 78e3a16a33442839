// mma-tiles: Y = A X for 8 x 4 matrices and 16 columns each, f64, by one product of the tensor cores: what the self-test
// compares with the chain of fma. Block b has entry b of the batch. alpha, beta and Y are not read.
KERNEL(32) mma_tiles(GEMM_ARGUMENTS) {
  const U32 t = LID;
  const ELEM *const as = a + a0 + (I64)GROUP_ID * ab, *const xs = x + x0 + (I64)GROUP_ID * xb;
  ELEM *const ys = y + y0 + (I64)GROUP_ID * yb;
  ACC xv[2], sum[4];
#pragma unroll
  for (U32 h = 0; h < 2; h++) xv[h] = xs[t % 4 * xrs + (t / 4 + 8 * h) * xcs];
  lane(sum, xv, as[t / 4 * rs + t % 4 * cs]);
#pragma unroll
  for (U32 i = 0; i < 4; i++) ys[(2 * (t % 4) + i % 2) * yrs + (t / 4 + i / 2 * 8) * ycs] = sum[i];
}
