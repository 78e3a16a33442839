// row-warp: y = alpha A x + beta y, row-major, for rows of one segment: row-splitk (row_splitk.cu) with
// ONE_SEGMENT = 1. A sub-warp, at most a warp, has ROWS whole rows; no shared memory, no second level.
//
//   rows       a block has THREADS / SUBWARP * ROWS of them.
//   lanes      as row-splitk: thread t of a sub-warp owns, of each 64 columns, the vectors
//              t, t + SUBWARP, ..., rotated where the row starts beyond a vector's boundary.
//   unroll     a row with its rotation fits in UNROLL iterations of 64 columns; all are in flight at once.
//   never read as row-splitk.
#define ONE_SEGMENT 1
#define ENTRY row_warp
