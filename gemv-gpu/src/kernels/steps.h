// Words of the kernels of steps: quotients and roots, correctly rounded, and the wait for the launch ahead.
#ifdef __OPENCL_VERSION__
#define WAIT()
// OpenCL C promises a correctly rounded quotient and root of doubles, not of floats: those are
// computed in integers.
#if DTYPE == 1 || DTYPE == 5
STATIC REAL real_div(REAL a, REAL b) { return a / b; }
STATIC REAL real_sqrt(REAL a) { return sqrt(a); }
#else
// mantissa * 2^(exponent - 153), where the mantissa has 27 bits, of which the last is also set for
// what lies below it; to nearest even.
STATIC REAL rounded(U32 mantissa, int exponent) {
  if (exponent >= 255) return AS_F32(0x7f800000u);
  if (exponent <= 0) {
    const U32 shift = exponent < -30 ? 31u : (U32)(1 - exponent);
    mantissa = mantissa >> shift | ((mantissa & ((1u << shift) - 1u)) != 0u);
    exponent = 1;
  }
  const U32 half_bit = mantissa & 7u, kept = mantissa >> 3;
  const U32 up = half_bit > 4u || (half_bit == 4u && (kept & 1u));
  // The mantissa's first bit is one of the exponent's.
  return AS_F32(((U32)(exponent - 1) << 23) + kept + up);
}
// The mantissa of 24 bits and the exponent of what is not 0.
STATIC U32 normal(U32 magnitude, int *exponent) {
  const U32 mantissa = magnitude & 0x7fffffu;
  *exponent = (int)(magnitude >> 23);
  if (*exponent) return mantissa | 0x800000u;
  const U32 shift = clz(mantissa) - 8u;
  *exponent = 1 - (int)shift;
  return mantissa << shift;
}
STATIC REAL real_div(REAL a, REAL b) {
  const U32 u = AS_U32(a) & 0x7fffffffu, v = AS_U32(b) & 0x7fffffffu, inf = 0x7f800000u;
  const U32 sign = (AS_U32(a) ^ AS_U32(b)) & 0x80000000u;
  if (u > inf || v > inf || (u == inf && v == inf) || (u == 0u && v == 0u))
    return AS_F32(0x7fc00000u);
  if (u == inf || v == 0u) return AS_F32(sign | inf);
  if (v == inf || u == 0u) return AS_F32(sign);
  int e, f;
  U32 m = normal(u, &e);
  const U32 n = normal(v, &f);
  if (m < n) m <<= 1, e -= 1;
  const U64 dividend = (U64)m << 26;
  const U32 quotient = (U32)(dividend / n);
  const U32 rest = (U64)quotient * n != dividend;
  return AS_F32(sign | AS_U32(rounded(quotient | rest, e - f + 127)));
}
STATIC REAL real_sqrt(REAL a) {
  const U32 u = AS_U32(a);
  if (u == 0u || u == 0x80000000u || u == 0x7f800000u) return a;
  if (u > 0x7f800000u) return AS_F32(0x7fc00000u);
  int e;
  U32 m = normal(u, &e);
  // Of an odd power of two: m * 2^27 has 51 or 52 bits, and its root 26.
  if (e % 2 == 0) m <<= 1, e -= 1;
  const U64 square = (U64)m << 27;
  U64 root = 0;
  for (U64 bit = (U64)1 << 25; bit; bit >>= 1)
    if ((root | bit) * (root | bit) <= square) root |= bit;
  const U32 rest = root * root != square;
  return rounded((U32)(root << 1) | rest, (e - 177) / 2 + 152);
}
#endif
#else
#if DTYPE == 1 || DTYPE == 5
STATIC REAL real_div(REAL a, REAL b) { return __ddiv_rn(a, b); }
STATIC REAL real_sqrt(REAL a) { return __dsqrt_rn(a); }
#else
STATIC REAL real_div(REAL a, REAL b) { return __fdiv_rn(a, b); }
STATIC REAL real_sqrt(REAL a) { return __fsqrt_rn(a); }
#endif
// A launch may begin before the one ahead has ended, whose results it reads after this.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define WAIT()                                                     \
  do {                                                             \
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); \
    asm volatile("griddepcontrol.wait;" ::: "memory");             \
  } while (0)
#else
#define WAIT()
#endif
#endif

#if COMPLEX
STATIC ACC acc_neg(ACC a) { return PAIR(-a.x, -a.y); }
STATIC ACC acc_div(ACC a, ACC b) {
  const REAL d = FMA_(b.y, b.y, MUL_(b.x, b.x));
  return PAIR(real_div(FMA_(a.y, b.y, MUL_(a.x, b.x)), d),
              real_div(FMA_(a.y, b.x, -MUL_(a.x, b.y)), d));
}
// Of -0 it is +0.
STATIC REAL real_abs(REAL a) { return a <= (REAL)0 ? ADD_((REAL)0, -a) : a; }
STATIC ACC acc_sqrt(ACC a) {
  const REAL r = real_sqrt(FMA_(a.y, a.y, MUL_(a.x, a.x)));
  const REAL t = real_sqrt(MUL_(ADD_(r, real_abs(a.x)), (REAL)0.5));
  if (t == (REAL)0) return PAIR((REAL)0, a.y);
  if (a.x < (REAL)0) return PAIR(real_div(real_abs(a.y), ADD_(t, t)), copysign(t, a.y));
  return PAIR(t, real_div(a.y, ADD_(t, t)));
}
STATIC ACC acc_norm(ACC a) { return PAIR(real_sqrt(a.x), (REAL)0); }
#else
STATIC ACC acc_neg(ACC a) { return -a; }
STATIC ACC acc_div(ACC a, ACC b) { return real_div(a, b); }
STATIC ACC acc_sqrt(ACC a) { return real_sqrt(a); }
STATIC ACC acc_norm(ACC a) { return real_sqrt(a); }
#endif

