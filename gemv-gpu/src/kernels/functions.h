// Functions and comparisons of one number: rule 12 of the order. The same programs as function.rs of gemv-core, whose
// comments say what each step is for.

#if DTYPE == 1 || DTYPE == 5
#define R_(number) number
typedef U64 BITS;
#ifdef __OPENCL_VERSION__
#define AS_BITS(f) as_ulong(f)
#define AS_REAL(u) as_double(u)
#else
#define AS_BITS(f) ((U64)__double_as_longlong(f))
#define AS_REAL(u) __longlong_as_double((I64)(u))
#endif
#define MANTISSA 52
#define BIAS 1023
#define ROUND R_(6755399441055744.0)
#define UNIT R_(4503599627370496.0)
#define FAR R_(800.0)
#define TAIL R_(40.0)
#define SATURATED R_(80.0)
#define LOG2E R_(1.4426950408889634)
#define LN2 R_(0.6931471805599453)
#define LN2_REST R_(2.3190468138462996e-17)
#define SMALLEST R_(2.2250738585072014e-308)
#define SUBNORMAL R_(18014398509481984.0)
#define SUBNORMAL_BY R_(54.0)
#define ROOT 0x3fe6a09e667f3bcdul
#define LN2_SHORT R_(0.693147180559663)
#define LN2_SHORT_REST R_(2.8235290563031577e-13)
#define GELU_1 R_(1.5957691216057308)
#define GELU_1_REST R_(-9.96930880911092e-17)
#define GELU_3 R_(0.07135481627260025)
#define GELU_3_REST R_(-6.175149918155315e-19)
#else
#define R_(number) number##f
typedef U32 BITS;
#define AS_BITS(f) AS_U32(f)
#define AS_REAL(u) AS_F32(u)
#define MANTISSA 23
#define BIAS 127
#define ROUND R_(12582912.0)
#define UNIT R_(8388608.0)
#define FAR R_(128.0)
#define TAIL R_(16.0)
#define SATURATED R_(40.0)
#define LOG2E R_(1.442695)
#define LN2 R_(0.6931472)
#define LN2_REST R_(-1.9046542e-9)
#define SMALLEST R_(1.17549435e-38)
#define SUBNORMAL R_(33554432.0)
#define SUBNORMAL_BY R_(25.0)
#define ROOT 0x3f3504f3u
#define LN2_SHORT R_(0.69314575)
#define LN2_SHORT_REST R_(1.4286068e-6)
#define GELU_1 R_(1.5957692)
#define GELU_1_REST R_(-4.534068e-8)
#define GELU_3 R_(0.071354814)
#define GELU_3_REST R_(2.3988325e-9)
#endif
#define SIGN_ ((BITS)1 << (MANTISSA == 52 ? 63 : 31))
#define INFINITE AS_REAL((BITS)(2 * BIAS + 1) << MANTISSA)
#define NOT_A_NUMBER AS_REAL((BITS)(4 * BIAS + 3) << (MANTISSA - 1))
#define SUB_(a, b) ADD_(a, -(b))
#define TERM_(of, number) sum = FMA_(sum, of, R_(number));

STATIC REAL exp_terms(const REAL r) {
#if DTYPE == 1 || DTYPE == 5
  REAL sum = R_(2.0914717341716378e-9);
  TERM_(r, 2.5105259538448494e-8) TERM_(r, 2.755727357010214e-7) TERM_(r, 2.7557255297969643e-6)
  TERM_(r, 2.4801587325605324e-5) TERM_(r, 0.0001984126987490126) TERM_(r, 0.001388888888888373)
  TERM_(r, 0.008333333333326112) TERM_(r, 0.04166666666666667) TERM_(r, 0.1666666666666667) TERM_(r, 0.5)
#else
  REAL sum = R_(0.0001989103);
  TERM_(r, 0.0013933686) TERM_(r, 0.0083333105) TERM_(r, 0.041666463) TERM_(r, 0.16666667) TERM_(r, 0.5)
#endif
  return sum;
}
STATIC REAL ln_terms(const REAL z) {
#if DTYPE == 1 || DTYPE == 5
  REAL sum = R_(0.1308944373626974);
  TERM_(z, 0.13268503447792365) TERM_(z, 0.15386249783145214) TERM_(z, 0.18181795454619548)
  TERM_(z, 0.22222222393451754) TERM_(z, 0.28571428570795937) TERM_(z, 0.4000000000000089)
  TERM_(z, 0.6666666666666666)
#else
  REAL sum = R_(0.23332761);
  TERM_(z, 0.28550735) TERM_(z, 0.40000123) TERM_(z, 0.6666667)
#endif
  return sum;
}
STATIC REAL phi_terms(const REAL t) {
#if DTYPE == 1 || DTYPE == 5
  REAL sum = R_(-1.9750205117389054e-11);
  TERM_(t, -4.215048810150002e-10) TERM_(t, -1.1003514880321343e-9) TERM_(t, 2.380938735908965e-9)
  TERM_(t, 1.0732670653455705e-8) TERM_(t, -8.83395147619223e-9) TERM_(t, -7.012796329386927e-8)
  TERM_(t, 4.0453499469914684e-8) TERM_(t, 4.3632213903968043e-7) TERM_(t, -3.347456433999717e-7)
  TERM_(t, -2.7707520210893634e-6) TERM_(t, 3.979875146352331e-6) TERM_(t, 1.6681654735816092e-5)
  TERM_(t, -4.976247516686963e-5) TERM_(t, -5.9375811494585084e-5) TERM_(t, 0.0005448989960971598)
  TERM_(t, -0.0007978693886321235) TERM_(t, -0.0029933767622323353) TERM_(t, 0.020795066799200485)
  TERM_(t, -0.06911863870685579) TERM_(t, 0.16502036617040983) TERM_(t, -0.3135331566712881)
  TERM_(t, 0.495305615969976) TERM_(t, -0.6653825028900568) TERM_(t, 0.769193049750063)
#else
  REAL sum = R_(-5.5846638e-5);
  TERM_(t, -4.503535e-5) TERM_(t, 0.0005531763) TERM_(t, -0.00080315175) TERM_(t, -0.0029967253)
  TERM_(t, 0.020796113) TERM_(t, -0.06911806) TERM_(t, 0.16502026) TERM_(t, -0.3135332) TERM_(t, 0.49530563)
  TERM_(t, -0.6653825) TERM_(t, 0.76919305)
#endif
  return sum;
}

STATIC REAL magnitude(const REAL x) { return AS_REAL(AS_BITS(x) & ~SIGN_); }
STATIC REAL not_below(const REAL x, const REAL least) { return x < least ? least : x; }
STATIC REAL not_above(const REAL x, const REAL most) { return x > most ? most : x; }
STATIC REAL power(const REAL k) { return AS_REAL((AS_BITS(k) + BIAS) << MANTISSA); }
// The integer k; the remainder is left in *r.
STATIC REAL reduced(const REAL x, const REAL rest, REAL *r) {
  const REAL k = SUB_(FMA_(x, LOG2E, ROUND), ROUND);
  *r = ADD_(FMA_(k, -LN2, x), FMA_(k, -LN2_REST, rest));
  return k;
}
STATIC REAL exp_less_one(const REAL r) { return FMA_(MUL_(r, r), exp_terms(r), r); }
STATIC REAL scaled(const REAL v, const REAL k) {
  const REAL half_k = FMA_(k, R_(0.5), ROUND);
  return MUL_(MUL_(v, power(half_k)), power(ADD_(SUB_(k, SUB_(half_k, ROUND)), ROUND)));
}
STATIC REAL real_maximum(const REAL a, const REAL b) {
  return a == b ? AS_REAL(AS_BITS(a) & AS_BITS(b)) : a > b ? a : a < b ? b : ADD_(a, b);
}
STATIC REAL real_minimum(const REAL a, const REAL b) {
  return a == b ? AS_REAL(AS_BITS(a) | AS_BITS(b)) : a < b ? a : a > b ? b : ADD_(a, b);
}
STATIC REAL real_clamp(const REAL x, const REAL least, const REAL most) {
  return real_minimum(real_maximum(x, least), most);
}
STATIC REAL logistic(const REAL n, const REAL v, const REAL rest) {
  const bool below = v < R_(0.0);
  REAL r;
  const REAL k = reduced(not_below(below ? v : -v, -FAR), below ? rest : -rest, &r);
  const REAL p = ADD_(exp_less_one(r), R_(1.0));
  const REAL q = real_div(below ? MUL_(n, p) : n, ADD_(scaled(p, k), R_(1.0)));
  return scaled(q, below ? k : R_(0.0));
}

STATIC REAL fn_abs(const REAL x) { return magnitude(x); }
STATIC REAL fn_recip(const REAL x) { return real_div(R_(1.0), x); }
STATIC REAL fn_relu(const REAL x) { return real_maximum(x, R_(0.0)); }
STATIC REAL fn_exp(const REAL x) {
  REAL r;
  const REAL k = reduced(not_below(not_above(x, FAR), -FAR), R_(0.0), &r);
  return scaled(ADD_(exp_less_one(r), R_(1.0)), k);
}
STATIC REAL fn_ln(const REAL x) {
  const bool tiny = x < SMALLEST;
  const BITS i = AS_BITS(tiny ? MUL_(x, SUBNORMAL) : x) + (((BITS)BIAS << MANTISSA) - ROOT);
  REAL k = SUB_(AS_REAL(i >> MANTISSA | AS_BITS(UNIT)), UNIT + BIAS);
  k = tiny ? SUB_(k, SUBNORMAL_BY) : k;
  const REAL f = SUB_(AS_REAL((i & (((BITS)1 << MANTISSA) - 1)) + ROOT), R_(1.0));
  const REAL s = real_div(f, ADD_(f, R_(2.0)));
  const REAL z = MUL_(s, s);
  const REAL half_f = MUL_(MUL_(R_(0.5), f), f);
  const REAL sum = FMA_(z, ln_terms(z), half_f);
  const REAL less = SUB_(SUB_(half_f, FMA_(s, sum, MUL_(k, LN2_SHORT_REST))), f);
  const REAL of = FMA_(k, LN2_SHORT, -less);
  return x < R_(0.0) ? NOT_A_NUMBER : x == R_(0.0) ? -INFINITE : x < INFINITE ? of : x;
}
STATIC REAL fn_tanh(const REAL x) {
  const REAL a = magnitude(x);
  REAL r;
  const REAL k = reduced(not_above(ADD_(a, a), SATURATED), R_(0.0), &r);
  const REAL s = power(ADD_(k, ROUND));
  const REAL t = FMA_(exp_less_one(r), s, SUB_(s, R_(1.0)));
  return AS_REAL(AS_BITS(real_div(t, ADD_(t, R_(2.0)))) | (AS_BITS(x) & SIGN_));
}
STATIC REAL fn_sigmoid(const REAL x) { return logistic(R_(1.0), x, R_(0.0)); }
STATIC REAL fn_silu(const REAL x) { return logistic(not_below(x, -FAR), x, R_(0.0)); }
STATIC REAL fn_gelu_tanh(const REAL x) {
  const REAL near = not_below(not_above(x, FAR), -FAR);
  const REAL square = MUL_(near, near);
  const REAL square_rest = FMA_(near, near, -square);
  const REAL term = MUL_(square, GELU_3);
  const REAL w = ADD_(GELU_1, term);
  const REAL part = SUB_(w, GELU_1);
  REAL lost = ADD_(SUB_(GELU_1, SUB_(w, part)), SUB_(term, part));
  lost = ADD_(lost, FMA_(square, GELU_3, -term));
  lost = FMA_(square_rest, GELU_3, lost);
  const REAL w_rest = FMA_(square, GELU_3_REST, ADD_(lost, GELU_1_REST));
  const REAL v = MUL_(near, w);
  return logistic(not_below(x, -FAR), v, FMA_(near, w_rest, FMA_(near, w, -v)));
}
STATIC REAL fn_gelu(const REAL x) {
  const bool below = x < R_(0.0);
  const REAL a = not_above(magnitude(x), TAIL);
  const REAL square = MUL_(a, a);
  REAL r;
  const REAL k = reduced(MUL_(R_(-0.5), square), MUL_(R_(-0.5), FMA_(a, a, -square)), &r);
  const REAL u = real_div(R_(1.0), ADD_(a, R_(5.0)));
  REAL phi = MUL_(u, phi_terms(FMA_(u, R_(-10.0), R_(1.0))));
  phi = MUL_(ADD_(exp_less_one(r), R_(1.0)), phi);
  phi = scaled(below ? MUL_(phi, -a) : phi, k);
  const REAL of = below ? phi : FMA_(phi, -not_above(x, TAIL), x);
  return AS_REAL(AS_BITS(of) | (AS_BITS(x) & SIGN_));
}

