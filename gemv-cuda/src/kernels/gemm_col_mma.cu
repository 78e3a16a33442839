// gemm-col-mma: Y = alpha A X + beta Y, f64, column-major, one matrix, by tensor cores: gemm-row-mma (gemm_row_mma.cu)
// with COLUMNS = 1. A stage is 16 rows, 128 bytes, of each column of a segment.
//
//   lanes      a warp sums one lane of 16 rows at a time, in two products: the even rows, and the odd ones.
//   copies     bring 256 bytes of a column to the L2 cache: the next stages read them there.
//   never read as gemm-row-mma.
#define COLUMNS 1
#define ENTRY gemm_col_mma
