// row-block-long: y = alpha A x + beta y, row-major, for rows of more than 256 segments: row-block
// (row_block.cu) with LONG_ROWS = 1. A program of its own, since its few registers more would cost
// shorter rows an occupant of each multiprocessor.
//
//   super-segments  a block has one super-segment of 256 segments at a time. As many blocks (or clusters)
//              have a super-segment as is its share of the cost; the last one costs by its columns.
//   sums       of super-segments are left in `workspace`, at i * super_segments + c, and
//              row_block_long_reduce adds up to 256 of a row.
//   never read as row-block.
#define LONG_ROWS 1
#define ENTRY row_block_long
