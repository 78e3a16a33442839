//! Functions and comparisons of one number, as the order's rule 12 has them: the same steps, so the same bits, on every
//! device.
//!
//! The polynomials are interpolations at Chebyshev nodes of what each comment says, computed with 60 digits and rounded
//! to the type. Arguments are reduced as by W. J. Cody and W. Waite, *Software Manual for the Elementary Functions*,
//! 1980; the logarithm takes its last steps as K. C. Ng's in FDLIBM. There is no branch, so that a compiler makes
//! vectors of it.

/// A function of each entry, for [`map`](crate::DeviceArray::map) and [`Product::map`](crate::Product::map). Of real types.
///
/// Each has one program, written down as rule 12 of the [order](crate::order), so that its bits are the same on every
/// device. Errors are in units in the last place of the accumulator's type; what is `f16` or `bf16` is computed in `f32`
/// and rounded once. A NaN gives NaN.
///
/// ```
/// use gemv::{Accumulator, Function};
///
/// assert_eq!((-2.0f32).function(Function::Abs), 2.0);
/// assert_eq!((-0.0f64).function(Function::Exp), 1.0);
/// assert!((1.0f64.function(Function::Exp) - std::f64::consts::E).abs() <= f64::EPSILON * 2.0);
/// assert_eq!(f32::INFINITY.function(Function::Tanh), 1.0);
/// assert_eq!(Function::ALL.len(), 10);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// `|x|`; exact.
    Abs,
    /// `1 / x`, correctly rounded.
    Recip,
    /// The maximum of `x` and +0; exact. Of -0 it is +0.
    Relu,
    /// `e^x`, within 1 unit. It overflows and underflows where the exact value does.
    Exp,
    /// The natural logarithm, within 1 unit. Of 0 it is -∞, of less NaN.
    Ln,
    /// The hyperbolic tangent, within 3 units. Of -0 it is -0.
    Tanh,
    /// `1 / (1 + e^-x)`, within 3 units.
    Sigmoid,
    /// `x / (1 + e^-x)`, also known as swish, within 4 units. Of -∞ it is -0, the limit.
    Silu,
    /// `x Φ(x)` with the normal distribution's Φ, which is `x / 2 * (1 + erf(x / √2))`: torch's `gelu` by default; within 8
    /// units. Of -∞ it is -0, the limit.
    Gelu,
    /// `x / 2 * (1 + tanh(√(2/π) (x + 0.044715 x³)))`: torch's `gelu` with `approximate="tanh"`; within 4 units. Of -∞ it
    /// is -0, the limit.
    GeluTanh,
}

impl Function {
    /// Every function.
    pub const ALL: [Function; 10] = [
        Function::Abs,
        Function::Recip,
        Function::Relu,
        Function::Exp,
        Function::Ln,
        Function::Tanh,
        Function::Sigmoid,
        Function::Silu,
        Function::Gelu,
        Function::GeluTanh,
    ];
}

/// A comparison of each entry, whose result is 1 where it holds, else 0; for [`compare`](crate::DeviceArray::compare). Of
/// real types.
///
/// A NaN compares as IEEE 754 says: it differs from everything, and nothing else holds. Zeros of both signs are equal.
///
/// ```
/// use gemv::{Accumulator, Comparison};
///
/// assert_eq!(1.0f32.compare(Comparison::Less, 2.0), 1.0);
/// assert_eq!(f64::NAN.compare(Comparison::NotEqual, f64::NAN), 1.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
}

impl Comparison {
    /// Every comparison.
    pub const ALL: [Comparison; 6] = [
        Comparison::Less,
        Comparison::LessEqual,
        Comparison::Greater,
        Comparison::GreaterEqual,
        Comparison::Equal,
        Comparison::NotEqual,
    ];
}

/// The programs for one type. `functions.h` of gemv-gpu has the same ones.
macro_rules! programs {
    (
        $module:ident: $t:ty, $bits:ty, mantissa $mantissa:literal, bias $bias:literal,
        round $round:literal, far $far:literal, tail $tail:literal, saturated $saturated:literal,
        log2e $log2e:literal, ln2 $ln2:literal, ln2_rest $ln2_rest:literal, exp $exp:expr,
        subnormal $subnormal:literal by $by:literal, root $root:literal, ln2_short $ln2_short:literal,
        ln2_short_rest $ln2_short_rest:literal, ln $ln:expr, phi $phi:expr,
        gelu_tanh [$c1:literal, $c1_rest:literal, $c3:literal, $c3_rest:literal],
    ) => {
        pub(crate) mod $module {
            // A unit in the last place decides: constants have all of their digits, and are those of `functions.h`.
            #![allow(clippy::excessive_precision, clippy::approx_constant)]
            use super::{Comparison, Function};

            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            /// 1.5 times two to the power of the mantissa's width: what is added to it is rounded to an integer, which
            /// the last bits are.
            const ROUND: $t = $round;
            /// Two to the power of the mantissa's width: integers are a unit in the last place apart.
            const UNIT: $t = ROUND / 1.5;

            #[inline(always)]
            fn horner<const N: usize>(of: $t, coefficients: [$t; N]) -> $t {
                let mut sum = coefficients[N - 1];
                let mut i = N - 1;
                while i > 0 {
                    i -= 1;
                    sum = sum.mul_add(of, coefficients[i]);
                }
                sum
            }

            /// Between `-far` and `far`; a NaN stays.
            #[inline(always)]
            fn clipped(x: $t, far: $t) -> $t {
                let x = if x > far { far } else { x };
                if x < -far { -far } else { x }
            }

            /// Two to the power of the integer that [`ROUND`] is added to.
            #[inline(always)]
            fn power(k: $t) -> $t {
                <$t>::from_bits(k.to_bits().wrapping_add($bias) << $mantissa)
            }

            /// An integer k, and the remainder of `x + rest` by k times ln 2.
            #[inline(always)]
            fn reduced(x: $t, rest: $t) -> ($t, $t) {
                let k = x.mul_add($log2e, ROUND) - ROUND;
                let r = k.mul_add(-$ln2, x);
                (k, r + k.mul_add(-$ln2_rest, rest))
            }

            /// `e^r - 1` of a remainder.
            #[inline(always)]
            fn exp_less_one(r: $t) -> $t {
                (r * r).mul_add(horner(r, $exp), r)
            }

            /// `v` times two to the power of k, in two factors, of which only the last one rounds.
            #[inline(always)]
            fn scaled(v: $t, k: $t) -> $t {
                let half = k.mul_add(0.5, ROUND);
                v * power(half) * power((k - (half - ROUND)) + ROUND)
            }

            #[inline(always)]
            fn exp(x: $t) -> $t {
                let (k, r) = reduced(clipped(x, $far), 0.0);
                scaled(exp_less_one(r) + 1.0, k)
            }

            #[inline(always)]
            fn ln(x: $t) -> $t {
                let small = x < <$t>::MIN_POSITIVE;
                let i = if small { x * $subnormal } else { x }.to_bits();
                let i = i.wrapping_add((1.0 as $t).to_bits() - $root);
                // The exponent's bits behind those of a power of two are an integer.
                let k = <$t>::from_bits(i >> $mantissa | UNIT.to_bits()) - (UNIT + $bias as $t);
                let k = if small { k - $by } else { k };
                let m = <$t>::from_bits((i & ((1 << $mantissa) - 1)) + $root);
                let f = m - 1.0;
                let s = f / (f + 2.0);
                let z = s * s;
                let half = 0.5 * f * f;
                let sum = z.mul_add(horner(z, $ln), half);
                let less = (half - s.mul_add(sum, k * $ln2_short_rest)) - f;
                let of = k.mul_add($ln2_short, -less);
                let of = if x < <$t>::INFINITY { of } else { x };
                let of = if x == 0.0 { <$t>::NEG_INFINITY } else { of };
                if x < 0.0 { <$t>::NAN } else { of }
            }

            #[inline(always)]
            fn tanh(x: $t) -> $t {
                let y = x.abs() + x.abs();
                let (k, r) = reduced(if y > $saturated { $saturated } else { y }, 0.0);
                let s = power(k + ROUND);
                let t = exp_less_one(r).mul_add(s, s - 1.0);
                let of = t / (t + 2.0);
                <$t>::from_bits(of.to_bits() | (x.to_bits() & SIGN))
            }

            /// `n / (1 + e^-(v + rest))`
            #[inline(always)]
            fn logistic(n: $t, v: $t, rest: $t) -> $t {
                let below = v < 0.0;
                // Of -|v|.
                let (u, rest) = if below { (v, rest) } else { (-v, -rest) };
                let (k, r) = reduced(if u < -$far { -$far } else { u }, rest);
                let p = exp_less_one(r) + 1.0;
                let q = if below { n * p } else { n } / (scaled(p, k) + 1.0);
                scaled(q, if below { k } else { 0.0 })
            }

            /// `x`, but where what it is multiplied by is 0: a finite number.
            #[inline(always)]
            fn above(x: $t, far: $t) -> $t {
                if x < -far { -far } else { x }
            }

            #[inline(always)]
            fn silu(x: $t) -> $t {
                logistic(above(x, $far), x, 0.0)
            }

            #[inline(always)]
            fn gelu_tanh(x: $t) -> $t {
                let near = clipped(x, $far);
                let square = near * near;
                let square_rest = near.mul_add(near, -square);
                // 2 √(2/π) (1 + 0.044715 x²), and what is rounded away.
                let term = square * $c3;
                let w = $c1 + term;
                let part = w - $c1;
                let lost = ($c1 - (w - part)) + (term - part);
                let lost = lost + square.mul_add($c3, -term);
                let lost = square_rest.mul_add($c3, lost);
                let w_rest = square.mul_add($c3_rest, lost + $c1_rest);
                let v = near * w;
                let v_rest = near.mul_add(w_rest, near.mul_add(w, -v));
                logistic(above(x, $far), v, v_rest)
            }

            #[inline(always)]
            fn gelu(x: $t) -> $t {
                let below = x < 0.0;
                let a = if x.abs() > $tail { $tail } else { x.abs() };
                let square = a * a;
                let (k, r) = reduced(-0.5 * square, -0.5 * a.mul_add(a, -square));
                // Φ(-a) e^(a²/2) (a + 5), as a polynomial of (a - 5) / (a + 5).
                let u = 1.0 / (a + 5.0);
                let phi = (exp_less_one(r) + 1.0) * (u * horner(u.mul_add(-10.0, 1.0), $phi));
                let phi = if below { phi * -a } else { phi };
                let phi = scaled(phi, k);
                let near = if x > $tail { $tail } else { x };
                let of = if below { phi } else { phi.mul_add(-near, x) };
                // Of -0.
                <$t>::from_bits(of.to_bits() | (x.to_bits() & SIGN))
            }

            #[inline(always)]
            pub(crate) fn function(x: $t, of: Function) -> $t {
                match of {
                    Function::Abs => <$t>::from_bits(x.to_bits() & !SIGN),
                    Function::Recip => 1.0 / x,
                    Function::Relu => maximum(x, 0.0),
                    Function::Exp => exp(x),
                    Function::Ln => ln(x),
                    Function::Tanh => tanh(x),
                    Function::Sigmoid => logistic(1.0, x, 0.0),
                    Function::Silu => silu(x),
                    Function::Gelu => gelu(x),
                    Function::GeluTanh => gelu_tanh(x),
                }
            }

            #[inline(always)]
            pub(crate) fn maximum(a: $t, b: $t) -> $t {
                let equal = <$t>::from_bits(a.to_bits() & b.to_bits());
                let of = if a < b { b } else { a + b };
                let of = if a > b { a } else { of };
                if a == b { equal } else { of }
            }

            #[inline(always)]
            pub(crate) fn minimum(a: $t, b: $t) -> $t {
                let equal = <$t>::from_bits(a.to_bits() | b.to_bits());
                let of = if a > b { b } else { a + b };
                let of = if a < b { a } else { of };
                if a == b { equal } else { of }
            }

            #[inline(always)]
            pub(crate) fn compare(a: $t, with: Comparison, b: $t) -> $t {
                let holds = match with {
                    Comparison::Less => a < b,
                    Comparison::LessEqual => a <= b,
                    Comparison::Greater => a > b,
                    Comparison::GreaterEqual => a >= b,
                    Comparison::Equal => a == b,
                    Comparison::NotEqual => a != b,
                };
                if holds { 1.0 } else { 0.0 }
            }
        }
    };
}

programs! {
    single: f32, u32, mantissa 23, bias 127,
    round 12582912.0, far 128.0, tail 16.0, saturated 40.0,
    log2e 1.442695, ln2 0.6931472, ln2_rest -1.9046542e-9,
    exp [0.5, 0.16666667, 0.041666463, 0.0083333105, 0.0013933686, 0.0001989103],
    subnormal 33554432.0 by 25.0, root 0x3f3504f3, ln2_short 0.69314575,
    ln2_short_rest 1.4286068e-6, ln [0.6666667, 0.40000123, 0.28550735, 0.23332761],
    phi [
        0.76919305, -0.6653825, 0.49530563, -0.3135332, 0.16502026, -0.06911806, 0.020796113,
        -0.0029967253, -0.00080315175, 0.0005531763, -4.503535e-5, -5.5846638e-5,
    ],
    gelu_tanh [1.5957692, -4.534068e-8, 0.071354814, 2.3988325e-9],
}

programs! {
    double: f64, u64, mantissa 52, bias 1023,
    round 6755399441055744.0, far 800.0, tail 40.0, saturated 80.0,
    log2e 1.4426950408889634, ln2 0.6931471805599453, ln2_rest 2.3190468138462996e-17,
    exp [
        0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326112, 0.001388888888888373,
        0.0001984126987490126, 2.4801587325605324e-5, 2.7557255297969643e-6,
        2.755727357010214e-7, 2.5105259538448494e-8, 2.0914717341716378e-9,
    ],
    subnormal 18014398509481984.0 by 54.0, root 0x3fe6a09e667f3bcd, ln2_short 0.693147180559663,
    ln2_short_rest 2.8235290563031577e-13,
    ln [
        0.6666666666666666, 0.4000000000000089, 0.28571428570795937, 0.22222222393451754,
        0.18181795454619548, 0.15386249783145214, 0.13268503447792365, 0.1308944373626974,
    ],
    phi [
        0.769193049750063, -0.6653825028900568, 0.495305615969976, -0.3135331566712881,
        0.16502036617040983, -0.06911863870685579, 0.020795066799200485, -0.0029933767622323353,
        -0.0007978693886321235, 0.0005448989960971598, -5.9375811494585084e-5,
        -4.976247516686963e-5, 1.6681654735816092e-5, 3.979875146352331e-6,
        -2.7707520210893634e-6, -3.347456433999717e-7, 4.3632213903968043e-7,
        4.0453499469914684e-8, -7.012796329386927e-8, -8.83395147619223e-9,
        1.0732670653455705e-8, 2.380938735908965e-9, -1.1003514880321343e-9,
        -4.215048810150002e-10, -1.9750205117389054e-11,
    ],
    gelu_tanh [
        1.5957691216057308, -9.96930880911092e-17, 0.07135481627260025, -6.175149918155315e-19
    ],
}
