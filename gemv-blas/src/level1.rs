//! dot, nrm2, axpy, scal and iamax. The BLAS has no errors for them; what cannot be an array is reported as elsewhere.

use gemv_core::float_mode::in_default;
use gemv_core::ndarray::{ArrayView1, Axis};
use gemv_core::num_complex::Complex;
use gemv_core::reference::ordered_sum;
use gemv_core::{Accumulator, Step};
use gemv_cpu::HostStep;

use crate::operand::Vector;
use crate::xerbla::{Caller, wrong};
use crate::{Scalar, answer, host};

/// `x · y`, or with the conjugate of x: rule 11 of the order. A step of 0 repeats an entry.
///
/// # Safety
/// That of the BLAS: the vectors are there.
#[inline(always)]
pub(crate) unsafe fn dot<T: Scalar>(
    caller: Caller,
    conj: bool,
    n: i64,
    (x, incx): (*const T, i64),
    (y, incy): (*const T, i64),
) -> T {
    if n <= 0 {
        return T::ZERO;
    }
    let x = Vector { at: x, len: n as usize, step: incx as isize };
    let y = Vector { at: y, len: n as usize, step: incy as isize };
    if !x.can_be() || !y.can_be() {
        wrong(caller, if x.can_be() { 4 } else { 2 });
        return T::ZERO;
    }
    // SAFETY: they can be, and the caller promises that they are there.
    let (x, y) = unsafe { (x.view(), y.view()) };
    product(conj, x, y)
}

#[inline(always)]
fn product<T: Scalar>(conj: bool, x: ArrayView1<'_, T>, y: ArrayView1<'_, T>) -> T {
    let mut sum = [T::ZERO];
    let product = host().device.product(x.insert_axis(Axis(0)), y);
    answer(product.conj_if(conj).to(&mut sum));
    let [sum] = sum;
    sum
}

/// `y = alpha x + y`: rule 10. The BLAS leaves y as it is where alpha is 0.
///
/// # Safety
/// That of the BLAS: the vectors are there, and nothing else reaches y.
#[inline(always)]
pub(crate) unsafe fn axpy<T: Scalar>(
    caller: Caller,
    n: i64,
    alpha: T,
    (x, incx): (*const T, i64),
    (y, incy): (*mut T, i64),
) {
    if n <= 0 || alpha.is_zero() {
        return;
    }
    let x = Vector { at: x, len: n as usize, step: incx as isize };
    let y = Vector { at: y, len: n as usize, step: incy as isize };
    if !x.can_be() || !y.read().can_be() {
        return wrong(caller, if x.can_be() { 5 } else { 3 });
    }
    // SAFETY: it can be, and the caller promises that it is there.
    let x = unsafe { x.view() };
    if y.step == 0 {
        // One entry, to which all are added in turn.
        // SAFETY: as above.
        let y = unsafe { &mut *y.at };
        return in_default(|| *y = x.iter().fold(*y, |y, x| y.fma(alpha, *x)));
    }
    // SAFETY: as above.
    let y = unsafe { y.view_mut() };
    answer(host().cpu.step(HostStep { step: Step::Axpy, alpha, x: Some(x), z: None, y }));
}

/// `x = alpha x`: rule 10. The BLAS does nothing where alpha is 1, or the step is not above 0.
///
/// # Safety
/// That of the BLAS: the vector is there, and nothing else reaches it.
#[inline(always)]
pub(crate) unsafe fn scal<T: Scalar>(caller: Caller, n: i64, alpha: T, (x, incx): (*mut T, i64)) {
    if n <= 0 || incx <= 0 || alpha.is_one() {
        return;
    }
    let x = Vector { at: x, len: n as usize, step: incx as isize };
    if !x.read().can_be() {
        return wrong(caller, 3);
    }
    // SAFETY: it can be, and the caller promises that it is there.
    let y = unsafe { x.view_mut() };
    answer(host().cpu.step(HostStep { step: Step::Scal, alpha, x: None, z: None, y }));
}

/// Pairs times a real number: [`scal`] of the parts, so that no infinity is multiplied by 0.
///
/// # Safety
/// As of [`scal`].
#[inline(always)]
pub(crate) unsafe fn scal_parts<R: Real>(
    caller: Caller,
    n: i64,
    alpha: R,
    (x, incx): (*mut Complex<R>, i64),
) {
    if n <= 0 || incx <= 0 || alpha.is_one() {
        return;
    }
    let pairs = Vector { at: x.cast_const(), len: n as usize, step: incx as isize };
    if !pairs.can_be() {
        return wrong(caller, 3);
    }
    // SAFETY: the caller's: a pair is its two parts, one after the other. Pairs fit the address space, so twice as many do.
    unsafe {
        if incx == 1 {
            return scal(caller, 2 * n, alpha, (x.cast::<R>(), 1));
        }
        scal(caller, n, alpha, (x.cast::<R>(), incx.saturating_mul(2)));
        scal(caller, n, alpha, (x.cast::<R>().add(1), incx.saturating_mul(2)));
    }
}

/// A real type, whose pairs are complex numbers.
pub(crate) trait Real: Scalar + PartialOrd {
    /// From this sum of squares on, terms that are subnormal or lost are nothing beside it.
    const SAFE: Self;
    /// This power of two times the number.
    fn shifted(self, exponent: i32) -> Self;
    /// The power of two below the number, which is finite and not 0.
    fn exponent(self) -> i32;
    fn magnitude(self) -> Self;
    fn nan(self) -> bool;
    fn finite(self) -> bool;
}

macro_rules! real {
    ($t:ty, $safe:expr, $step:expr) => {
        impl Real for $t {
            const SAFE: $t = $safe;

            fn shifted(mut self, exponent: i32) -> $t {
                let mut left = exponent;
                while left != 0 {
                    let now = left.clamp(-$step, $step);
                    self *= (2.0 as $t).powi(now);
                    left -= now;
                }
                self
            }

            fn exponent(self) -> i32 {
                // By one product a subnormal becomes normal.
                let scaled = if self.abs() < <$t>::MIN_POSITIVE { $step } else { 0 };
                let bits = (self.abs() * (2.0 as $t).powi(scaled)).to_bits();
                (bits >> (<$t>::MANTISSA_DIGITS - 1)) as i32 - (<$t>::MAX_EXP - 1) - scaled
            }

            fn magnitude(self) -> $t {
                self.abs()
            }

            fn nan(self) -> bool {
                self.is_nan()
            }

            fn finite(self) -> bool {
                self.is_finite()
            }
        }
    };
}
real!(f32, 8.271806e-25, 60); // 2^-80
real!(f64, 1.026119e-289, 500); // about 2^-960

/// Real numbers, or pairs of them.
pub(crate) trait Parts: Scalar {
    type Part: Real;
    fn pair(self) -> [Self::Part; 2];
    fn shifted(self, exponent: i32) -> Self;
}

macro_rules! parts {
    ($($t:ty)*) => { $(
        impl Parts for $t {
            type Part = $t;
            fn pair(self) -> [$t; 2] {
                [self, 0.0]
            }
            fn shifted(self, exponent: i32) -> $t {
                Real::shifted(self, exponent)
            }
        }

        impl Parts for Complex<$t> {
            type Part = $t;
            fn pair(self) -> [$t; 2] {
                [self.re, self.im]
            }
            fn shifted(self, exponent: i32) -> Self {
                Complex::new(Real::shifted(self.re, exponent), Real::shifted(self.im, exponent))
            }
        }
    )* };
}
parts!(f32 f64);

/// The Euclidean norm: rule 11, which is not scaled. The BLAS asks for a norm that overflows only where it is too large
/// itself. So where the sum of squares is beyond the numbers, or so small that terms of it are, the entries are multiplied by
/// the power of two that brings the largest to 1 or more and below 2, and the root by its inverse. Where no square and no sum
/// is beyond the numbers, that changes no bit.
///
/// # Safety
/// That of the BLAS: the vector is there.
#[inline(always)]
pub(crate) unsafe fn nrm2<T: Parts>(caller: Caller, n: i64, (x, incx): (*const T, i64)) -> T::Part {
    if n <= 0 {
        return T::Part::ZERO;
    }
    let x = Vector { at: x, len: n as usize, step: incx as isize };
    if !x.can_be() {
        wrong(caller, 2);
        return T::Part::ZERO;
    }
    // SAFETY: it can be, and the caller promises that it is there.
    let x = unsafe { x.view() };
    let [sum, _] = product(true, x, x).pair();
    if sum.finite() && sum >= T::Part::SAFE {
        return in_default(|| sum.sqrt());
    }
    in_default(|| scaled(x))
}

#[cold]
fn scaled<T: Parts>(x: ArrayView1<'_, T>) -> T::Part {
    let mut largest = T::Part::ZERO;
    for part in x.iter().flat_map(|x| x.pair()).map(|part| part.magnitude()) {
        if part.nan() {
            return part;
        }
        if part > largest {
            largest = part;
        }
    }
    // Infinity and 0 are their own norm.
    if !largest.finite() || largest.is_zero() {
        return largest;
    }
    let exponent = largest.exponent();
    let sum = ordered_sum(x.len(), &|i, sum: T| {
        let x = x[i].shifted(-exponent);
        sum.fma(x.conj(), x)
    });
    sum.pair()[0].sqrt().shifted(exponent)
}

/// The place of the first entry whose |re| + |im| is largest, from 1 on; 0 where there is none. As in the reference, a NaN is
/// larger than nothing, and nothing is larger than a NaN that comes first.
///
/// # Safety
/// That of the BLAS: the vector is there.
#[inline(always)]
pub(crate) unsafe fn iamax<T: Parts>(caller: Caller, n: i64, (x, incx): (*const T, i64)) -> usize {
    if n <= 0 || incx <= 0 {
        return 0;
    }
    let x = Vector { at: x, len: n as usize, step: incx as isize };
    if !x.can_be() {
        wrong(caller, 2);
        return 0;
    }
    // SAFETY: it can be, and the caller promises that it is there.
    let x = unsafe { x.view() };
    in_default(|| largest(x)) + 1
}

fn largest<T: Parts>(x: ArrayView1<'_, T>) -> usize {
    let size = |x: &T| {
        let [re, im] = x.pair();
        re.magnitude().add(im.magnitude())
    };
    let mut sizes = x.iter().map(size);
    let first = sizes.next().unwrap_or(T::Part::ZERO);
    if first.nan() {
        return 0;
    }
    let most = sizes.fold(first, |most, size| if size > most { size } else { most });
    x.iter().position(|x| size(x) == most).unwrap_or(0)
}
