// row-block-cyclic: row-block (row_block.cu) for one of PROCESSES processes, to which the columns are dealt
// in blocks of 256.
//
//   lanes      segment s of the process is segment s * PROCESSES + p of the whole: a term of lane
//              s % (64 / PROCESSES) of those that the process has.
//   x          is the whole vector, from the process' first entry on.
//   y          has what is left of the lanes, one number for each row and 65,536 columns of the whole. Those of
//              row i follow one another from i * incy on. alpha = 1, beta = 0: it is not a product.
//   long rows  LONG_ROWS = 1 where the process has more columns than 65,536 / PROCESSES.
//   never read as row-block.
#define ENTRY row_block_cyclic
