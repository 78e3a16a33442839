// What the kernels for CPUs share: vectors of W accumulators, for work-groups of one item.
// A WIDE is W REAL. A SUMS is W ACC: for complex types two WIDE, real and imaginary parts.
#ifndef W
#define W 16
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if DTYPE == 1 || DTYPE == 5
typedef JOIN(double, W) WIDE;
typedef JOIN(long, W) MASK;
#define TO_MASK(m) JOIN(convert_long, W)(m)
#else
typedef JOIN(float, W) WIDE;
typedef JOIN(int, W) MASK;
#define TO_MASK(m) (m)
#endif
typedef JOIN(int, W) INTS;
#define LOAD_W(at, p) JOIN(vload, W)(at, p)
// At any element: `vstore` takes several instructions in PoCL.
typedef WIDE LOOSE __attribute__((aligned(sizeof(REAL))));
#define STORE_W(v, p) (*(LOOSE *)(p) = (v))
#define STORE_W_GLOBAL(v, p) (*(GLOBAL LOOSE *)(p) = (v))

// Asks for the lines of W elements from p on, which need not be memory, into the second-level cache: few lines at a time
// can be on their way to the first. OpenCL's `prefetch` does nothing in PoCL.
#if defined(__x86_64__) || defined(__aarch64__)
#define PREFETCH_LINE_(p) __builtin_prefetch((const void *)ADDRESS(p), 0, 2)
#else
#define PREFETCH_LINE_(p) prefetch(p, 1)
#endif
STATIC void prefetch_dense(GLOBAL const void *p) {
#pragma unroll
  for (U32 line = 0; line < W * ELEM_BYTES; line += 64) PREFETCH_LINE_((GLOBAL const char *)p + line);
}

// The lanes below `count`.
STATIC MASK below(const U32 count) {
#if W == 16
  const INTS lane = (INTS)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#elif W == 8
  const INTS lane = (INTS)(0, 1, 2, 3, 4, 5, 6, 7);
#else
  const INTS lane = (INTS)(0, 1, 2, 3);
#endif
  return TO_MASK(lane < (INTS)((int)count));
}

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
  const MASK in = below(count);
  return sums(select(a.re, b.re, in), select(a.im, b.im, in));
}
STATIC SUMS sums_of(ACC a) { return sums((WIDE)(a.x), (WIDE)(a.y)); }
#else
typedef WIDE SUMS;
STATIC SUMS sums_zero(void) { return (WIDE)0; }
STATIC SUMS sums_add(SUMS a, SUMS b) { return a + b; }
STATIC SUMS sums_fma(SUMS a, SUMS b, SUMS c) { return fma(a, b, c); }
STATIC SUMS sums_conj(SUMS a, U32 conj) { return a; }
STATIC SUMS sums_first(SUMS a, SUMS b, U32 count) { return select(a, b, below(count)); }
STATIC SUMS sums_of(ACC a) { return (WIDE)(a); }
#endif

// W neighbouring elements, widened.
STATIC SUMS load_dense(GLOBAL const ELEM *p) {
#if COMPLEX
  const WIDE u = LOAD_W(0, (GLOBAL const REAL *)p), v = LOAD_W(1, (GLOBAL const REAL *)p);
  return sums((WIDE)(u.even, v.even), (WIDE)(u.odd, v.odd));
#elif DTYPE == 2
  typedef JOIN(uint, W) UINTS;
  const UINTS e = JOIN(convert_uint, W)(LOAD_W(0, p));
  const UINTS bits = (e & 0x7fffu) << 13;
  const WIDE f = JOIN(as_float, W)(bits) * 5192296858534827628530496329220096.0f; // 2^112, see widen
  const UINTS wide =
      select(JOIN(as_uint, W)(f), bits | 0x7f800000u, bits >= (UINTS)0x0f800000u);
  return JOIN(as_float, W)(wide | (e & 0x8000u) << 16);
#elif DTYPE == 3
  return JOIN(as_float, W)(JOIN(convert_uint, W)(LOAD_W(0, p)) << 16);
#else
  return LOAD_W(0, p);
#endif
}

// `count` elements `step` apart, widened, then zeros. Nothing else is read.
STATIC SUMS load_some(GLOBAL const ELEM *p, const I64 step, const U32 count) {
  if (step == 1 && count == W) return load_dense(p);
  REAL re[W], im[W];
  for (U32 c = 0; c < W; c++) {
    const ACC e = c < count ? widen(p[(I64)c * step]) : acc_zero();
#if COMPLEX
    re[c] = e.x;
    im[c] = e.y;
#else
    re[c] = e;
#endif
  }
#if COMPLEX
  return sums(LOAD_W(0, re), LOAD_W(0, im));
#else
  return LOAD_W(0, re);
#endif
}

// The same where the lanes from `count` on may be anything: one load, if A has memory behind them, which
// ends at `end`.
STATIC SUMS load_any(GLOBAL const ELEM *p, const I64 step, const U32 count,
                     GLOBAL const ELEM *end) {
  if (step == 1 && p + W <= end) return load_dense(p);
  return load_some(p, step, count);
}
// Behind the last element, in memory, of an m x n matrix that begins at p.
STATIC GLOBAL const ELEM *end_of(GLOBAL const ELEM *p, const U64 m, const U64 n, const I64 rs,
                                 const I64 cs) {
  return p + (rs > 0 ? (I64)(m - 1) * rs : 0) + (cs > 0 ? (I64)(n - 1) * cs : 0) + 1;
}
// Its first element, in memory.
STATIC GLOBAL const ELEM *begin_of(GLOBAL const ELEM *p, const U64 m, const U64 n, const I64 rs,
                                   const I64 cs) {
  return p + (rs < 0 ? (I64)(m - 1) * rs : 0) + (cs < 0 ? (I64)(n - 1) * cs : 0);
}

#if W == 16
// Parts of `width` lanes, of `a` and then of `b`, with half of the lanes: each is added to that `width / 2` further on.
STATIC WIDE halved(const WIDE a, const WIDE b, const U32 width) {
  if (width == 16) return (WIDE)(a.lo, b.lo) + (WIDE)(a.hi, b.hi);
  if (width == 8) return (WIDE)(a.s012389ab, b.s012389ab) + (WIDE)(a.s4567cdef, b.s4567cdef);
  if (width == 4) return (WIDE)(a.s014589cd, b.s014589cd) + (WIDE)(a.s2367abef, b.s2367abef);
  return (WIDE)(a.even, b.even) + (WIDE)(a.odd, b.odd);
}
// The halving trees of 16 lanes of each of 4 vectors: the sums are the first lanes of the result.
STATIC WIDE halved4(const WIDE a, const WIDE b, const WIDE c, const WIDE d) {
  const WIDE four = halved(halved(a, b, 16), halved(c, d, 16), 8), two = halved(four, four, 4);
  return halved(two, two, 2);
}
STATIC REAL halve(WIDE v) {
#if DTYPE == 1 || DTYPE == 5
  const double8 v8 = v.lo + v.hi;
  const double4 v4 = v8.lo + v8.hi;
  const double2 v2 = v4.lo + v4.hi;
#else
  const float8 v8 = v.lo + v.hi;
  const float4 v4 = v8.lo + v8.hi;
  const float2 v2 = v4.lo + v4.hi;
#endif
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
// Those of 4 vectors.
STATIC void sums_halve4(const SUMS *v, ACC *to) {
#if COMPLEX
  const WIDE re = halved4(v[0].re, v[1].re, v[2].re, v[3].re);
  const WIDE im = halved4(v[0].im, v[1].im, v[2].im, v[3].im);
  to[0] = PAIR(re.s0, im.s0), to[1] = PAIR(re.s1, im.s1);
  to[2] = PAIR(re.s2, im.s2), to[3] = PAIR(re.s3, im.s3);
#else
  const WIDE sum = halved4(v[0], v[1], v[2], v[3]);
  to[0] = sum.s0, to[1] = sum.s1, to[2] = sum.s2, to[3] = sum.s3;
#endif
}
#endif

// To W ACC, parts and pairs apart.
STATIC void sums_store(SUMS v, ACC *to) {
#if COMPLEX
  REAL re[W], im[W];
  STORE_W(v.re, re);
  STORE_W(v.im, im);
  for (U32 c = 0; c < W; c++) to[c] = PAIR(re[c], im[c]);
#else
  STORE_W(v, to);
#endif
}

// Writes `count` rows of y, from their sums.
STATIC void finish_rows(GLOBAL ELEM *y, const I64 incy, const ACC alpha, const SUMS v,
                        const ACC beta, const U32 count) {
#if DTYPE < 2
  if (incy == 1 && count == W && alpha == 1 && beta == 0) {
    STORE_W_GLOBAL(v, y);
    return;
  }
#endif
  ACC out[W];
  sums_store(v, out);
  for (U32 c = 0; c < count; c++) finish(y + (I64)c * incy, alpha, out[c], beta);
}

// Super-segments of a row of n columns, of 256 segments each: at least one.
STATIC U64 super_segments_of(const U64 n) {
  const U64 count = ceil_div(ceil_div(n, SEG), SEG);
  return count > 0 ? count : 1;
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
