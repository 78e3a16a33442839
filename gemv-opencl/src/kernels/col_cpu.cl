// y = alpha A x + beta y on CPUs, column by column. The bits are those of docs/ORDER.md.
//
//   rows       A work-group is one item. It has a band of rows, in tiles of at most TILE_M rows and vectors of 16.
//   lanes      Up to 16 columns are one pass over a tile: 4 lanes of 4 columns, 8 of 2, or 16 of 1. Lanes are
//              visited in bit-reversed order: a stack of 7 partial vectors replaces the 64 lanes. Segments are
//              the lanes of a second stack. A lane without columns is +0.
//   alignment  Columns that are 16 apart begin at one offset from a line. The vectors of a pass begin on lines, so
//              they may begin before the tile and end behind it: partial vectors have room for that.
//   split-K    As in row.k; the work-groups that share a row are the grid's y.
//   strides    Any; loads are by vectors where the row stride is 1.
//   prefetch   Each load asks for the line PREFETCH bytes further down its column.
//   never read A and x where alpha = 0; y where beta = 0; anything outside of the m x n elements but other memory
//              between the first and the last of them.
#ifndef TILE_M
#define TILE_M 512
#endif
#ifndef PREFETCH
#define PREFETCH 0
#endif
// A partial vector: its rows, and room for a vector on each side. Imaginary parts follow the real ones.
#define ROOM (TILE_M + 2 * W)
#define LEVEL ((COMPLEX ? 2 : 1) * ROOM)
#define ROW_OF(stack, level, row) ((stack) + (level) * LEVEL + W + (row))
// Bytes that a vector begins at a multiple of.
#define ALIGNED_TO (W * ELEM_BYTES < 64 ? W * ELEM_BYTES : 64)

STATIC SUMS held(const REAL *from) {
#if COMPLEX
  return sums(LOAD_W(0, from), LOAD_W(0, from + ROOM));
#else
  return LOAD_W(0, from);
#endif
}
STATIC void hold(SUMS v, REAL *to) {
#if COMPLEX
  STORE_W(v.re, to);
  STORE_W(v.im, to + ROOM);
#else
  STORE_W(v, to);
#endif
}

// A tile of a segment.
typedef struct {
  GLOBAL const ELEM *p, *x, *end;
  I64 rs, cs, incx;
  U32 conj, rows, len, bits;
  bool inside; // A has memory for a vector before and behind the rows of each column
} TILE;

STATIC SUMS column(GLOBAL const ELEM *p, SUMS xv, SUMS v, const U32 conj) {
  if (PREFETCH) prefetch_dense((GLOBAL const char *)p + PREFETCH);
  return sums_fma(sums_conj(load_dense(p), conj), xv, v);
}

// A pass over P lanes from number b on, of C columns each; if not WHOLE, of at most C. Their sum meets those that
// wait in `stack`.
#define PASS(name, P, C, WHOLE)                                                                   \
  STATIC void name(const TILE t, const U32 b, REAL *stack) {                                      \
    GLOBAL const ELEM *from[P * C];                                                               \
    SUMS xv[P * C];                                                                               \
    bool there[P * C];                                                                            \
    _Pragma("unroll")                                                                             \
    for (U32 k = 0; k < P; k++)                                                                   \
      _Pragma("unroll")                                                                           \
      for (U32 c = 0; c < C; c++) {                                                               \
        const U32 j = reversed(b + k, t.bits) + 64 * c, at = k * C + c;                           \
        there[at] = WHOLE || j < t.len;                                                           \
        from[at] = t.p + (there[at] ? (I64)j * t.cs : 0);                                         \
        xv[at] = sums_of(widen(t.x[there[at] ? (I64)j * t.incx : 0]));                            \
      }                                                                                           \
    const I64 lo = t.inside ? (I64)(ADDRESS(from[0]) % ALIGNED_TO / ELEM_BYTES) : 0;              \
    const I64 dense = t.rs != 1 ? 0 : t.inside ? t.rows : t.rows / W * W;                         \
    I64 i = -lo;                                                                                  \
    for (; i < dense; i += W) {                                                                   \
      SUMS v[P];                                                                                  \
      _Pragma("unroll")                                                                           \
      for (U32 k = 0; k < P; k++) {                                                               \
        v[k] = sums_zero();                                                                       \
        _Pragma("unroll")                                                                         \
        for (U32 c = 0; c < C; c++)                                                               \
          if (there[k * C + c])                                                                   \
            v[k] = column(from[k * C + c] + i, xv[k * C + c], v[k], t.conj);                      \
      }                                                                                           \
      _Pragma("unroll")                                                                           \
      for (U32 h = 1; h < P; h *= 2)                                                              \
        _Pragma("unroll")                                                                         \
        for (U32 k = 0; k < P; k += 2 * h) v[k] = sums_add(v[k], v[k + h]);                       \
      merge(v[0], stack, b, P, i);                                                                \
    }                                                                                             \
    for (; i < t.rows; i += W) {                                                                  \
      const U32 left = t.rows - (U32)i, count = left < W ? left : W;                              \
      SUMS v[P];                                                                                  \
      for (U32 k = 0; k < P; k++) {                                                               \
        v[k] = sums_zero();                                                                       \
        for (U32 c = 0; c < C; c++)                                                               \
          if (there[k * C + c]) {                                                                 \
            const SUMS a = load_any(from[k * C + c] + i * t.rs, t.rs, count, t.end);              \
            v[k] = sums_fma(sums_conj(a, t.conj), xv[k * C + c], v[k]);                           \
          }                                                                                       \
      }                                                                                           \
      for (U32 h = 1; h < P; h *= 2)                                                              \
        for (U32 k = 0; k < P; k += 2 * h) v[k] = sums_add(v[k], v[k + h]);                       \
      merge(v[0], stack, b, P, i);                                                                \
    }                                                                                             \
  }

// Rows i .. i + W of the sum of `lanes` lanes from number b on: those that wait are added, and it waits.
STATIC void merge(SUMS v, REAL *stack, const U32 b, const U32 lanes, const I64 i) {
  U32 level = lanes == 16 ? 4 : lanes == 8 ? 3 : 2;
  for (; b >> level & 1u; level++) v = sums_add(held(ROW_OF(stack, level, i)), v);
  hold(v, ROW_OF(stack, level, i));
}

PASS(pass_full, 4, 4, true)
PASS(pass_4, 4, 4, false)
PASS(pass_8, 8, 2, false)
PASS(pass_16, 16, 1, false)

// The sums of one segment for a tile. They lie in the level of `stack` that is returned, or would after +0 is added
// where that is below 6: levels that would only add absent lanes are left out. With all six levels no +0 is added,
// which would change the sign of a sum of -0.
STATIC U32 segment_sums(TILE t, GLOBAL const ELEM *begin, REAL *stack) {
  const I64 span = (I64)(t.len - 1) * t.cs;
  t.inside = t.rs == 1 && t.p + (t.cs < 0 ? span : 0) >= begin + W &&
             t.p + (t.cs > 0 ? span : 0) + t.rows + W <= t.end;
  t.bits = bits_for(t.len);
  if (t.bits < 4) t.bits = 4;
  const U32 lanes = 1u << t.bits;
  if (t.len == SEG)
    for (U32 b = 0; b < lanes; b += 4) pass_full(t, b, stack);
  else if (t.len > 128)
    for (U32 b = 0; b < lanes; b += 4) pass_4(t, b, stack);
  else if (t.len > 64)
    for (U32 b = 0; b < lanes; b += 8) pass_8(t, b, stack);
  else
    for (U32 b = 0; b < lanes; b += 16) pass_16(t, b, stack);
  return t.bits;
}

KERNEL(1) col_cpu(ARGUMENTS) {
  PART w = part_of(ceil_div(m, 16), n);
  w.first *= 16;
  w.last = w.last * 16 < m ? w.last * 16 : m;
  if (acc_is(alpha, (REAL)0) || n == 0) {
    if (w.direct)
      for (U64 i = w.first; i < w.last; i++)
        finish(y + (y0 + (I64)i * incy), alpha, acc_zero(), beta);
    return;
  }
  const bool by_segment = !w.direct && !w.by_super_segment;
  // A part is whole segments or whole super-segments.
  const U64 units = by_segment ? w.segments : w.super_segments, per = ceil_div(units, w.parts);
  const U64 u0 = w.part * per, u1 = u0 + per < units ? u0 + per : units;
  GLOBAL const ELEM *begin = begin_of(a + a0, m, n, rs, cs), *end = end_of(a + a0, m, n, rs, cs);
  REAL inner[7 * LEVEL] __attribute__((aligned(64)));
  REAL outer[7 * LEVEL] __attribute__((aligned(64)));
  REAL lane_sum[LEVEL] __attribute__((aligned(64)));
  for (U64 i = w.first; i < w.last; i += TILE_M) {
    const U32 rows = (U32)(w.last - i < TILE_M ? w.last - i : TILE_M);
    for (U64 u = u0; u < u1; u++) {
      const U64 s0 = by_segment ? u : u * SEG;
      const U64 s1 = by_segment ? u + 1 : s0 + SEG < w.segments ? s0 + SEG : w.segments;
      // The sum of a single segment is the result. Of several, each is added to its lane.
      const bool single = s1 - s0 == 1;
      const U32 bits = bits_for(s1 - s0);
      U32 level = 0;
      for (U32 b = 0; b < 1u << bits; b++) {
        bool first = true;
        for (U64 s = s0 + reversed(b, bits); s < s1; s += LANES) {
          TILE t;
          t.p = a + a0 + (I64)i * rs + (I64)(s * SEG) * cs;
          t.x = x + x0 + (I64)(s * SEG) * incx;
          t.end = end;
          t.rs = rs, t.cs = cs, t.incx = incx, t.conj = conj, t.rows = rows;
          t.len = (U32)(n - s * SEG < SEG ? n - s * SEG : SEG);
          level = segment_sums(t, begin, inner);
          if (single) continue;
          for (U32 k = 0; k < rows; k += W) {
            SUMS v = held(ROW_OF(inner, level, k));
            if (level < 6) v = sums_add(v, sums_zero());
            hold(sums_add(first ? sums_zero() : held(ROW_OF(lane_sum, 0, k)), v), ROW_OF(lane_sum, 0, k));
          }
          first = false;
        }
        if (single) continue;
        for (U32 k = 0; k < rows; k += W) {
          SUMS v = first ? sums_zero() : held(ROW_OF(lane_sum, 0, k));
          U32 l = 0;
          for (; b >> l & 1u; l++) v = sums_add(held(ROW_OF(outer, l, k)), v);
          hold(v, ROW_OF(outer, l, k));
        }
      }
      const REAL *from = single ? ROW_OF(inner, level, 0) : ROW_OF(outer, bits, 0);
      const bool plus = !single || level < 6;
      for (U32 k = 0; k < rows; k += W) {
        SUMS v = held(from + k);
        if (plus) v = sums_add(v, sums_zero());
        const U64 row = i + k;
        const U32 count = rows - k < W ? rows - k : W;
        if (w.direct) {
          finish_rows(y + (y0 + (I64)row * incy), incy, alpha, v, beta, count);
          continue;
        }
        ACC out[W];
        sums_store(v, out);
        for (U32 c = 0; c < count; c++) workspace[(row + c) * w.total + u] = out[c];
      }
    }
  }
}
