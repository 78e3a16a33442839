// gemm-col-lanes: Y = alpha A X + beta Y, column-major, one matrix of numbers of 16 or 32 bits: gemm-row-lanes (gemm_row_lanes.cu) with
// COLUMNS = 1.
//
//   copies     A segment of all sets of rows is one box, which the copy engine swizzles as wide as a column of it is.
//   aligned    columns begin at multiples of 16 bytes. Where they descend in memory, the map begins at the last one.
//   the end    Beyond the last row and column the copy engine writes +0.
//   never read as gemm-row-lanes.
#define COLUMNS 1
#define ENTRY gemm_col_lanes
