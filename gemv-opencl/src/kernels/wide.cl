// What row_cpu.cl and col_cpu.cl share: vectors of 16 accumulators, for work-groups of one item.
// A WIDE is 16 REAL. A SUMS is 16 ACC: for complex types two WIDE, real and imaginary parts.
#if DTYPE == 1 || DTYPE == 5
typedef double16 WIDE;
typedef double8 WIDE8;
typedef double4 WIDE4;
typedef double2 WIDE2;
typedef long16 MASK;
#define TO_MASK(m) convert_long16(m)
#else
typedef float16 WIDE;
typedef float8 WIDE8;
typedef float4 WIDE4;
typedef float2 WIDE2;
typedef int16 MASK;
#define TO_MASK(m) (m)
#endif
#if COMPLEX
typedef struct {
  WIDE re, im;
} SUMS;
STATIC SUMS sums(WIDE re, WIDE im) {
  SUMS s;
  s.re = re;
  s.im = im;
  return s;
}
STATIC SUMS sums_zero(void) { return sums((WIDE)0, (WIDE)0); }
STATIC SUMS sums_add(SUMS a, SUMS b) { return sums(a.re + b.re, a.im + b.im); }
STATIC SUMS sums_fma(SUMS a, SUMS b, SUMS c) {
  return sums(fma(-a.im, b.im, fma(a.re, b.re, c.re)), fma(a.im, b.re, fma(a.re, b.im, c.im)));
}
STATIC SUMS sums_conj(SUMS a, U32 conj) { return conj ? sums(a.re, -a.im) : a; }
// The first `count` lanes of `b`, the other lanes of `a`.
STATIC SUMS sums_first(SUMS a, SUMS b, U32 count) {
  const MASK in = TO_MASK((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) <
                          (int16)((int)count));
  return sums(select(a.re, b.re, in), select(a.im, b.im, in));
}
STATIC SUMS sums_of(ACC a) { return sums((WIDE)(a.x), (WIDE)(a.y)); }
#else
typedef WIDE SUMS;
STATIC SUMS sums_zero(void) { return (WIDE)0; }
STATIC SUMS sums_add(SUMS a, SUMS b) { return a + b; }
STATIC SUMS sums_fma(SUMS a, SUMS b, SUMS c) { return fma(a, b, c); }
STATIC SUMS sums_conj(SUMS a, U32 conj) { return a; }
STATIC SUMS sums_first(SUMS a, SUMS b, U32 count) {
  const MASK in = TO_MASK((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) <
                          (int16)((int)count));
  return select(a, b, in);
}
STATIC SUMS sums_of(ACC a) { return (WIDE)(a); }
#endif

// 16 neighbouring elements, widened.
STATIC SUMS load_dense(GLOBAL const ELEM *p) {
#if COMPLEX
  const WIDE u = vload16(0, (GLOBAL const REAL *)p), v = vload16(1, (GLOBAL const REAL *)p);
  return sums((WIDE)(u.even, v.even), (WIDE)(u.odd, v.odd));
#elif DTYPE == 2
  const uint16 e = convert_uint16(vload16(0, p));
  const uint16 bits = (e & 0x7fffu) << 13;
  const float16 f = as_float16(bits) * 5192296858534827628530496329220096.0f; // 2^112, see widen
  const uint16 wide = select(as_uint16(f), bits | 0x7f800000u, bits >= (uint16)0x0f800000u);
  return as_float16(wide | (e & 0x8000u) << 16);
#elif DTYPE == 3
  return as_float16(convert_uint16(vload16(0, p)) << 16);
#else
  return vload16(0, p);
#endif
}

// `count` elements `step` apart, widened, then zeros. Nothing else is read.
STATIC SUMS load16(GLOBAL const ELEM *p, const I64 step, const U32 count) {
  if (step == 1 && count == 16) return load_dense(p);
  REAL re[16], im[16];
  for (U32 c = 0; c < 16; c++) {
    const ACC e = c < count ? widen(p[(I64)c * step]) : acc_zero();
#if COMPLEX
    re[c] = e.x;
    im[c] = e.y;
#else
    re[c] = e;
#endif
  }
#if COMPLEX
  return sums(vload16(0, re), vload16(0, im));
#else
  return vload16(0, re);
#endif
}

// The same where the lanes from `count` on may be anything: one load, if A has memory behind them, which
// ends at `end`.
STATIC SUMS load16_any(GLOBAL const ELEM *p, const I64 step, const U32 count,
                       GLOBAL const ELEM *end) {
  if (step == 1 && p + 16 <= end) return load_dense(p);
  return load16(p, step, count);
}
// Behind the last element, in memory, of an m x n matrix that begins at p.
STATIC GLOBAL const ELEM *end_of(GLOBAL const ELEM *p, const U64 m, const U64 n, const I64 rs,
                                 const I64 cs) {
  return p + (rs > 0 ? (I64)(m - 1) * rs : 0) + (cs > 0 ? (I64)(n - 1) * cs : 0) + 1;
}

STATIC REAL halve(WIDE v) {
  const WIDE8 v8 = v.lo + v.hi;
  const WIDE4 v4 = v8.lo + v8.hi;
  const WIDE2 v2 = v4.lo + v4.hi;
  return v2.x + v2.y;
}
// The halving tree of 16 lanes.
STATIC ACC sums_halve(SUMS v) {
#if COMPLEX
  return PAIR(halve(v.re), halve(v.im));
#else
  return halve(v);
#endif
}

STATIC void sums_store(SUMS v, ACC *to) {
#if COMPLEX
  REAL re[16], im[16];
  vstore16(v.re, 0, re);
  vstore16(v.im, 0, im);
  for (U32 c = 0; c < 16; c++) to[c] = PAIR(re[c], im[c]);
#else
  vstore16(v, 0, to);
#endif
}

// Writes `count` rows of y, from their sums.
STATIC void finish16(GLOBAL ELEM *y, const I64 incy, const ACC alpha, const SUMS v, const ACC beta,
                     const U32 count) {
#if DTYPE < 2
  if (incy == 1 && count == 16 && alpha == 1 && beta == 0) {
    vstore16(v, 0, y);
    return;
  }
#endif
  ACC out[16];
  sums_store(v, out);
  for (U32 c = 0; c < count; c++) finish(y + (I64)c * incy, alpha, out[c], beta);
}

// What a work-group computes: a band of rows by the grid's x, a part of the segments by its y.
typedef struct {
  U64 first, last;                // rows
  U64 parts, part, segments, super_segments;
  bool direct, by_super_segment;  // see row.k
  U64 total;
} PART;
STATIC PART part_of(const U64 m, const U64 n) {
  PART w;
  const U64 band = m / GROUPS, more = m - band * GROUPS;
  w.first = GROUP_ID * band + (GROUP_ID < more ? GROUP_ID : more);
  w.last = w.first + band + (GROUP_ID < more ? 1 : 0);
  w.parts = get_num_groups(1);
  w.part = get_group_id(1);
  w.segments = ceil_div(n, SEG);
  w.super_segments = ceil_div(w.segments, SEG);
  w.direct = w.parts == 1 && w.segments <= SEG;
  w.by_super_segment = !w.direct && w.segments > 255 * w.parts;
  w.total = levels_total(w.by_super_segment ? w.super_segments : w.segments);
  return w;
}
