// Y = alpha A X + beta Y, batched, on CPUs, row by row. The bits are those of docs/ORDER.md.
//
//   gemm_pack     First launch: each column of X goes to the workspace, widened, as vectors of 16 with
//                 zeros behind the last. So any strides of X cost one pass over X, not one a row.
//   gemm_row_cpu  Second launch. A work-group is one item. It has a band of the rows of all entries, and
//                 computes ROWS rows for TILE_RHS columns at a time: each vector of A is read once for
//                 them. Of BLOCK_ROWS rows, all columns are computed before the next: they stay in the
//                 cache.
//   lanes         The 64 lanes of a row and a column are four vectors of 16.
//   columns       At most 256 segments: longer rows are computed by other kernels.
//   strides       Any; A is read by vectors where its column stride is 1.
//   never read    A and X where alpha = 0; Y where beta = 0; anything outside of a row's n elements but other memory
//                 between the first and the last element of its matrix.
#ifndef ROWS
#define ROWS 1
#endif
#ifndef TILE_RHS
#define TILE_RHS 4
#endif
#define BLOCK_ROWS 16
// ACCs of a packed column.
#define PITCH(n) (ceil_div(n, 16) * 16)

STATIC void pack16(SUMS v, GLOBAL ACC *to) {
#if COMPLEX
  vstore16(v.re, 0, (GLOBAL REAL *)to);
  vstore16(v.im, 1, (GLOBAL REAL *)to);
#else
  vstore16(v, 0, to);
#endif
}

STATIC SUMS packed16(GLOBAL const ACC *from) {
#if COMPLEX
  return sums(vload16(0, (GLOBAL const REAL *)from), vload16(1, (GLOBAL const REAL *)from));
#else
  return vload16(0, from);
#endif
}

KERNEL(1) gemm_pack(GEMM_ARGUMENTS) {
  if (acc_is(alpha, (REAL)0)) return;
  for (U64 q = GROUP_ID; q < rhs * batch; q += GROUPS) {
    const U64 b = quotient(q, rhs), c = q - b * rhs;
    GLOBAL const ELEM *column = x + (I64)x0 + (I64)b * xb + (I64)c * xcs;
    GLOBAL ACC *to = workspace + q * PITCH(n);
    for (U64 j = 0; j < n; j += 16)
      pack16(load_some(column + (I64)j * xrs, xrs, n - j < 16 ? (U32)(n - j) : 16), to + j);
  }
}

// The sums of a segment of `len` elements: of ROWS rows and TILE_RHS columns, `pitch` apart.
STATIC void segment_sums(GLOBAL const ELEM **row, const I64 cs, GLOBAL const ACC **column,
                         const U32 conj, const U32 len, GLOBAL const ELEM *end,
                         ACC (*out)[TILE_RHS]) {
  SUMS acc[ROWS][TILE_RHS][4];
#pragma unroll
  for (U32 r = 0; r < ROWS; r++)
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++)
#pragma unroll
      for (U32 k = 0; k < 4; k++) acc[r][c][k] = sums_zero();
  if (len == SEG && cs == 1) {
    for (U32 round = 0; round < 4; round++)
#pragma unroll
      for (U32 k = 0; k < 4; k++) {
        const U32 j = round * 64 + k * 16;
#pragma unroll
        for (U32 r = 0; r < ROWS; r++) {
          const SUMS av = sums_conj(load_dense(row[r] + j), conj);
#pragma unroll
          for (U32 c = 0; c < TILE_RHS; c++)
            acc[r][c][k] = sums_fma(av, packed16(column[c] + j), acc[r][c][k]);
        }
      }
  } else {
    for (U32 j = 0; j < len; j += 64)
#pragma unroll
      for (U32 k = 0; k < 4; k++) {
        if (j + k * 16 >= len) continue;
        const U32 left = len - j - k * 16, count = left < 16 ? left : 16;
        const I64 at = j + k * 16;
#pragma unroll
        for (U32 r = 0; r < ROWS; r++) {
          const SUMS av = sums_conj(load_any(row[r] + at * cs, cs, count, end), conj);
#pragma unroll
          for (U32 c = 0; c < TILE_RHS; c++)
            acc[r][c][k] = sums_first(
                acc[r][c][k], sums_fma(av, packed16(column[c] + at), acc[r][c][k]), count);
        }
      }
  }
#pragma unroll
  for (U32 r = 0; r < ROWS; r++)
#pragma unroll
    for (U32 c = 0; c < TILE_RHS; c++)
      out[r][c] = sums_halve(sums_add(sums_add(acc[r][c][0], acc[r][c][2]),
                                      sums_add(acc[r][c][1], acc[r][c][3])));
}

KERNEL(1) gemm_row_cpu(GEMM_ARGUMENTS) {
  const U64 rows = m * batch, band = rows / GROUPS, more = rows - band * GROUPS;
  U64 g = GROUP_ID * band + (GROUP_ID < more ? GROUP_ID : more);
  const U64 last = g + band + (GROUP_ID < more ? 1 : 0);
  const bool zero = acc_is(alpha, (REAL)0) || n == 0;
  const U64 segments = zero ? 0 : ceil_div(n, SEG);
  // Blocks of neighbouring rows of one entry.
  while (g < last) {
    const U64 b = quotient(g, m), i0 = g - b * m;
    U64 count = last - g < m - i0 ? last - g : m - i0;
    if (count > BLOCK_ROWS) count = BLOCK_ROWS;
    g += count;
    GLOBAL const ELEM *end = end_of(a + (I64)a0 + (I64)b * ab, m, n, rs, cs);
    for (U64 c0 = 0; c0 < rhs; c0 += TILE_RHS) {
      GLOBAL const ACC *columns[TILE_RHS];
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++)
        // A column beyond the last one is the first again, and is not written.
        columns[c] = workspace + (b * rhs + (c0 + c < rhs ? c0 + c : c0)) * PITCH(n);
      for (U64 i = i0; i < i0 + count; i += ROWS) {
        ACC lanes[ROWS][TILE_RHS][64]; // of the second level
        ACC sum[ROWS][TILE_RHS];
        for (U64 s = 0; s < segments; s++) {
          const U32 len = (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
          GLOBAL const ELEM *row[ROWS];
#pragma unroll
          for (U32 r = 0; r < ROWS; r++) {
            const U64 at = i + r < i0 + count ? i + r : i0 + count - 1;
            row[r] = a + (I64)a0 + (I64)b * ab + (I64)at * rs + (I64)(s * SEG) * cs;
          }
          segment_sums(row, cs, columns, conj, len, end, sum);
#pragma unroll
          for (U32 c = 0; c < TILE_RHS; c++) columns[c] += SEG;
          if (segments == 1) continue;
          for (U32 r = 0; r < ROWS; r++)
            for (U32 c = 0; c < TILE_RHS; c++) {
              const U32 lane = (U32)(s % LANES);
              lanes[r][c][lane] = acc_add(s < LANES ? acc_zero() : lanes[r][c][lane], sum[r][c]);
            }
        }
#pragma unroll
        for (U32 c = 0; c < TILE_RHS; c++) columns[c] -= segments * SEG;
        for (U32 r = 0; r < ROWS && i + r < i0 + count; r++)
          for (U32 c = 0; c < TILE_RHS && c0 + c < rhs; c++) {
            ACC v = zero ? acc_zero() : sum[r][c];
            if (segments > 1) {
              for (U32 l = (U32)segments; l < LANES; l++) lanes[r][c][l] = acc_zero();
              for (U32 h = 32; h > 0; h >>= 1)
                for (U32 l = 0; l < h; l++)
                  lanes[r][c][l] = acc_add(lanes[r][c][l], lanes[r][c][l + h]);
              v = lanes[r][c][0];
            }
            finish(y + (I64)y0 + (I64)b * yb + (I64)(i + r) * yrs + (I64)(c0 + c) * ycs, alpha, v,
                   beta);
          }
      }
    }
  }
}
