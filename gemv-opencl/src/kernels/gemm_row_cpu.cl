// Y = alpha A X + beta Y, batched, on CPUs, row by row. The bits are those of docs/ORDER.md.
//
//   gemm_pack     First launch: each column of X goes to the workspace, widened, as vectors of 16 with
//                 zeros behind the last. So any strides of X cost one pass over X, not one a row.
//   gemm_row_cpu  Second launch. A work-group is one item. It has a band of the rows of all entries, and
//                 computes ROWS rows for TILE_RHS columns at a time: each vector of A is read once for
//                 them. Of BLOCK_ROWS rows, all columns are computed before the next: they stay in the
//                 cache.
//   gemm_row_wide_cpu  In place of both where X is large and rows are few: a work-item has a band of blocks
//                 of PACK_ROWS columns of A. It packs the rows of X that belong to a block, TILE_RHS columns at
//                 a time, multiplies them by all rows, and leaves a sum a segment, row and column in the
//                 workspace. gemm_reduce_segments follows.
//   lanes         The 64 lanes of a row and a column are four vectors of 16.
//   super-segments  Where rows have more than 256 segments, the work is a list: every row for the first 256
//                 segments, then every row for the next 256, and so on. A work-item has a band of that list, so X of
//                 256 segments stays in the cache. The sums go to the workspace; gemm_reduce_super_segments follows.
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
// Rows and columns of X that are packed at a time, so that rows of X are read while they are in the cache.
#define PACK_ROWS 1024
#define PACK_COLS 16

// The packed columns, behind the sums of super-segments.
STATIC GLOBAL ACC *packed(GLOBAL ACC *workspace, const U64 m, const U64 n, const U64 rhs, const U64 batch) {
  const U64 supers = super_segments_of(n);
  return workspace + (supers > 1 ? m * rhs * batch * levels_total(supers) : 0);
}

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

// `count` rows and `cols` columns of X to columns of vectors, `pitch` apart.
STATIC void pack_rows(GLOBAL const ELEM *x, const I64 xrs, const I64 xcs, const U32 count, const U32 cols,
                      GLOBAL ACC *to, const U64 pitch) {
  for (U32 c = 0; c < cols; c++)
    for (U32 j = 0; j < count; j += 16)
      pack16(load_some(x + (I64)j * xrs + (I64)c * xcs, xrs, count - j < 16 ? count - j : 16),
             to + c * pitch + j);
}

KERNEL(1) gemm_pack(GEMM_ARGUMENTS) {
  if (acc_is(alpha, (REAL)0)) return;
  const U64 blocks = ceil_div(n, PACK_ROWS), panels = ceil_div(rhs, PACK_COLS);
  GLOBAL ACC *all = packed(workspace, m, n, rhs, batch);
  for (U64 q = GROUP_ID; q < blocks * panels * batch; q += GROUPS) {
    const U64 entry_panel = quotient(q, blocks), j = (q - entry_panel * blocks) * PACK_ROWS;
    const U64 b = quotient(entry_panel, panels), c = (entry_panel - b * panels) * PACK_COLS;
    pack_rows(x + (I64)x0 + (I64)b * xb + (I64)j * xrs + (I64)c * xcs, xrs, xcs,
              n - j < PACK_ROWS ? (U32)(n - j) : PACK_ROWS, rhs - c < PACK_COLS ? (U32)(rhs - c) : PACK_COLS,
              all + (b * rhs + c) * PITCH(n) + j, PITCH(n));
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
          for (U32 c = 0; c < TILE_RHS; c++) {
            const SUMS all = sums_fma(av, packed16(column[c] + at), acc[r][c][k]);
            acc[r][c][k] = count == 16 ? all : sums_first(acc[r][c][k], all, count);
          }
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
  const bool zero = acc_is(alpha, (REAL)0) || n == 0;
  const U64 segments = zero ? 0 : ceil_div(n, SEG), supers = super_segments_of(n);
  if (zero && supers > 1) return;
  const U64 rows = m * batch, all = rows * supers, band = all / GROUPS, more = all - band * GROUPS;
  U64 g = GROUP_ID * band + (GROUP_ID < more ? GROUP_ID : more);
  const U64 last = g + band + (GROUP_ID < more ? 1 : 0);
  const U64 total = levels_total(supers);
  GLOBAL const ACC *x_packed = packed(workspace, m, n, rhs, batch);
  // Blocks of neighbouring rows of one entry and one super-segment.
  while (g < last) {
    const U64 u = quotient(g, rows), row_of_all = g - u * rows;
    const U64 b = quotient(row_of_all, m), i0 = row_of_all - b * m;
    const U64 s0 = u * SEG, s1 = segments - s0 < SEG ? segments : s0 + SEG;
    U64 count = last - g < m - i0 ? last - g : m - i0;
    if (count > BLOCK_ROWS) count = BLOCK_ROWS;
    g += count;
    GLOBAL const ELEM *end = end_of(a + (I64)a0 + (I64)b * ab, m, n, rs, cs);
    for (U64 c0 = 0; c0 < rhs; c0 += TILE_RHS) {
      GLOBAL const ACC *columns[TILE_RHS];
#pragma unroll
      for (U32 c = 0; c < TILE_RHS; c++)
        // A column beyond the last one is the first again, and is not written.
        columns[c] = x_packed + (b * rhs + (c0 + c < rhs ? c0 + c : c0)) * PITCH(n) + s0 * SEG;
      for (U64 i = i0; i < i0 + count; i += ROWS) {
        ACC lanes[ROWS][TILE_RHS][64]; // of the second level
        ACC sum[ROWS][TILE_RHS];
        for (U64 s = s0; s < s1; s++) {
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
              lanes[r][c][lane] =
                  acc_add(s - s0 < LANES ? acc_zero() : lanes[r][c][lane], sum[r][c]);
            }
        }
#pragma unroll
        for (U32 c = 0; c < TILE_RHS; c++) columns[c] -= (s1 - s0) * SEG;
        for (U32 r = 0; r < ROWS && i + r < i0 + count; r++)
          for (U32 c = 0; c < TILE_RHS && c0 + c < rhs; c++) {
            ACC v = zero ? acc_zero() : sum[r][c];
            if (segments > 1) {
              // As in row-cpu: lanes without a segment change no other.
              const U32 filled = s1 - s0 < LANES ? (U32)(s1 - s0) : LANES;
              for (U32 h = 32; h > 0; h >>= 1) {
                const U32 pairs = filled <= h ? 0 : filled - h < h ? filled - h : h;
                for (U32 l = 0; l < pairs; l++)
                  lanes[r][c][l] = acc_add(lanes[r][c][l], lanes[r][c][l + h]);
              }
              v = lanes[r][c][0];
            }
            if (supers > 1) workspace[((b * m + i + r) * rhs + c0 + c) * total + u] = v;
            else
              finish(y + (I64)y0 + (I64)b * yb + (I64)(i + r) * yrs + (I64)(c0 + c) * ycs, alpha, v,
                     beta);
          }
      }
    }
  }
}

KERNEL(1) gemm_row_wide_cpu(GEMM_ARGUMENTS) {
  if (acc_is(alpha, (REAL)0)) return;
  const U64 segments = ceil_div(n, SEG), blocks = ceil_div(n, PACK_ROWS), total = levels_total(segments);
  const U64 all = blocks * batch, band = all / GROUPS, more = all - band * GROUPS;
  U64 g = GROUP_ID * band + (GROUP_ID < more ? GROUP_ID : more);
  const U64 last = g + band + (GROUP_ID < more ? 1 : 0);
  // Behind the sums, a place for each work-item.
  GLOBAL ACC *place = workspace + m * rhs * batch * total + GROUP_ID * (TILE_RHS * PACK_ROWS);
  for (; g < last; g++) {
    const U64 b = quotient(g, blocks), j0 = (g - b * blocks) * PACK_ROWS;
    const U64 j1 = n - j0 < PACK_ROWS ? n : j0 + PACK_ROWS;
    GLOBAL const ELEM *entry = a + (I64)a0 + (I64)b * ab, *end = end_of(entry, m, n, rs, cs);
    for (U64 c0 = 0; c0 < rhs; c0 += TILE_RHS) {
      const U32 cols = (U32)(rhs - c0 < TILE_RHS ? rhs - c0 : TILE_RHS);
      pack_rows(x + (I64)x0 + (I64)b * xb + (I64)j0 * xrs + (I64)c0 * xcs, xrs, xcs, (U32)(j1 - j0), cols,
                place, PACK_ROWS);
      for (U64 i = 0; i < m; i += ROWS)
        for (U64 j = j0; j < j1; j += SEG) {
          GLOBAL const ELEM *row[ROWS];
          GLOBAL const ACC *columns[TILE_RHS];
          ACC sum[ROWS][TILE_RHS];
#pragma unroll
          for (U32 r = 0; r < ROWS; r++) row[r] = entry + (I64)(i + r < m ? i + r : m - 1) * rs + (I64)j * cs;
#pragma unroll
          for (U32 c = 0; c < TILE_RHS; c++)
            // A column beyond the last one is the first again, and is not written.
            columns[c] = place + (c < cols ? c : 0) * PACK_ROWS + (j - j0);
          segment_sums(row, cs, columns, conj, (U32)(n - j < SEG ? n - j : SEG), end, sum);
          for (U32 r = 0; r < ROWS && i + r < m; r++)
            for (U32 c = 0; c < cols; c++)
              workspace[((b * m + i + r) * rhs + c0 + c) * total + j / SEG] = sum[r][c];
        }
    }
  }
}
