//! The element types, and the arithmetic in which they are summed.

use std::fmt::{self, Debug};

use half::{bf16, f16};
use ndarray::ArrayView2;
use num_complex::Complex;
use num_traits::{One, Zero};

use crate::Dtype;
use crate::float_mode::opaque;
use crate::function::{Comparison, Function, double, single};

mod sealed {
    pub trait Sealed {}
}

/// The type in which products are summed: f32, f64, or a complex pair of them.
///
/// Sealed. The operations are exactly those that the order of additions names; each rounds once
/// (per component) to nearest, ties to even. They do so in the default [mode](crate::float_mode), which is for
/// their caller to enter.
///
/// ```
/// use gemv::{Accumulator, num_complex::Complex};
///
/// // 1 - (1 - e)(1 + e) is e², if the product is not rounded first.
/// let e = f32::EPSILON;
/// assert_eq!((-1.0f32).fma(1.0 + e, 1.0 - e), -e * e);
/// assert_eq!(-1.0 + (1.0 + e) * (1.0 - e), 0.0);
///
/// let i = Complex::new(0.0f64, 1.0);
/// assert_eq!(Accumulator::mul(i, i), Complex::new(-1.0, 0.0));
/// assert_eq!(i.fma(i, i).parts(), (-1.0, 1.0));
/// assert_eq!(<f32 as Accumulator>::from_parts(0.1, 7.0), 0.1);
///
/// assert!((-0.0f32).is_zero() && !f32::from_bits(1).is_zero());
/// assert!(Complex::new(1.0f64, -0.0).is_one());
/// ```
pub trait Accumulator:
    sealed::Sealed + Copy + PartialEq + Debug + Default + Send + Sync + 'static
{
    /// +0 (in each component).
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Whether it is 0 of either sign (in each component). The bits are compared, so no floating-point mode takes a
    /// subnormal number for 0.
    fn is_zero(self) -> bool;
    /// Whether it is 1 (and an imaginary part 0), compared as [`is_zero`](Self::is_zero).
    fn is_one(self) -> bool;
    /// `a * b + self`, rounded once; for pairs, each component by two such steps:
    /// `re = fma(-a.im, b.im, fma(a.re, b.re, re))`, `im = fma(a.im, b.re, fma(a.re, b.im, im))`.
    fn fma(self, a: Self, b: Self) -> Self;
    /// `self + b`.
    fn add(self, b: Self) -> Self;
    /// `self * b`; for pairs `re = fma(-a.im, b.im, a.re * b.re)`, `im = fma(a.im, b.re, a.re * b.im)`.
    fn mul(self, b: Self) -> Self;
    /// `-self`; exact.
    fn neg(self) -> Self;
    /// `self / b`; for pairs, with `d = fma(b.im, b.im, b.re * b.re)`, `re = fma(a.im, b.im, a.re * b.re) / d`
    /// and `im = fma(a.im, b.re, -(a.re * b.im)) / d`.
    fn div(self, b: Self) -> Self;
    /// The square root; for pairs the principal one, with `r = sqrt(fma(im, im, re * re))` and
    /// `t = sqrt((r + |re|) / 2)`: `(t, im / (t + t))`, or `(|im| / (t + t), ±t)` where `re < 0`.
    fn sqrt(self) -> Self;
    /// The square root of the real part, with an imaginary part of +0.
    fn norm(self) -> Self;
    /// A function of it, by the program that rule 12 of the [order](crate::order) has.
    ///
    /// # Panics
    /// Of pairs, which no function takes. So do the next three.
    fn function(self, of: Function) -> Self;
    /// The larger of two, NaN if one is; +0 is larger than -0.
    fn maximum(self, b: Self) -> Self;
    /// The smaller of two, NaN if one is; -0 is smaller than +0.
    fn minimum(self, b: Self) -> Self;
    /// 1 if the comparison holds, else 0.
    fn compare(self, with: Comparison, b: Self) -> Self;
    /// Real and imaginary part, as f64 (exact).
    fn parts(self) -> (f64, f64);
    /// From real and imaginary part, each rounded once; the imaginary part is dropped by real types.
    fn from_parts(re: f64, im: f64) -> Self;
    /// Bytes of one component.
    const PART: usize;
    /// The value as it lies in memory, and zeros behind it.
    fn to_bytes(self) -> [u8; 16];
    /// The value that lies so in memory.
    fn from_bytes(bytes: [u8; 16]) -> Self;
}

/// Bytes, and zeros behind them.
#[inline]
fn padded<const N: usize>(bytes: [u8; N]) -> [u8; 16] {
    let mut all = [0; 16];
    all[..N].copy_from_slice(&bytes);
    all
}

/// N bytes from this place on.
#[inline]
fn part<const N: usize>(bytes: &[u8; 16], first: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[first + byte])
}

macro_rules! real_accumulator {
    ($t:ty, $programs:ident) => {
        impl sealed::Sealed for $t {}
        impl Accumulator for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline]
            fn is_zero(self) -> bool {
                // Without the sign.
                opaque(self.to_bits().into()) << (65 - 8 * size_of::<$t>()) == 0
            }
            #[inline]
            fn is_one(self) -> bool {
                self.to_bits() == Self::ONE.to_bits()
            }
            #[inline]
            fn fma(self, a: Self, b: Self) -> Self {
                a.mul_add(b, self)
            }
            #[inline]
            fn add(self, b: Self) -> Self {
                self + b
            }
            #[inline]
            fn mul(self, b: Self) -> Self {
                self * b
            }
            #[inline]
            fn neg(self) -> Self {
                -self
            }
            #[inline]
            fn div(self, b: Self) -> Self {
                self / b
            }
            #[inline]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline]
            fn norm(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn function(self, of: Function) -> Self {
                $programs::function(self, of)
            }
            #[inline(always)]
            fn maximum(self, b: Self) -> Self {
                $programs::maximum(self, b)
            }
            #[inline(always)]
            fn minimum(self, b: Self) -> Self {
                $programs::minimum(self, b)
            }
            #[inline(always)]
            fn compare(self, with: Comparison, b: Self) -> Self {
                $programs::compare(self, with, b)
            }
            fn parts(self) -> (f64, f64) {
                (self.into(), 0.0)
            }
            fn from_parts(re: f64, _: f64) -> Self {
                re as $t
            }
            const PART: usize = size_of::<$t>();
            #[inline]
            fn to_bytes(self) -> [u8; 16] {
                padded(self.to_ne_bytes())
            }
            #[inline]
            fn from_bytes(bytes: [u8; 16]) -> Self {
                Self::from_ne_bytes(part(&bytes, 0))
            }
        }
        impl sealed::Sealed for Complex<$t> {}
        impl Accumulator for Complex<$t> {
            const ZERO: Self = Complex { re: 0.0, im: 0.0 };
            const ONE: Self = Complex { re: 1.0, im: 0.0 };
            #[inline]
            fn is_zero(self) -> bool {
                self.re.is_zero() && self.im.is_zero()
            }
            #[inline]
            fn is_one(self) -> bool {
                self.re.is_one() && self.im.is_zero()
            }
            #[inline]
            fn fma(self, a: Self, b: Self) -> Self {
                Complex {
                    re: (-a.im).mul_add(b.im, a.re.mul_add(b.re, self.re)),
                    im: a.im.mul_add(b.re, a.re.mul_add(b.im, self.im)),
                }
            }
            #[inline]
            fn add(self, b: Self) -> Self {
                Complex { re: self.re + b.re, im: self.im + b.im }
            }
            #[inline]
            fn mul(self, b: Self) -> Self {
                Complex {
                    re: (-self.im).mul_add(b.im, self.re * b.re),
                    im: self.im.mul_add(b.re, self.re * b.im),
                }
            }
            #[inline]
            fn neg(self) -> Self {
                Complex { re: -self.re, im: -self.im }
            }
            #[inline]
            fn div(self, b: Self) -> Self {
                let d = b.im.mul_add(b.im, b.re * b.re);
                Complex {
                    re: self.im.mul_add(b.im, self.re * b.re) / d,
                    im: self.im.mul_add(b.re, -(self.re * b.im)) / d,
                }
            }
            #[inline]
            fn sqrt(self) -> Self {
                let Complex { re, im } = self;
                let t = ((im.mul_add(im, re * re).sqrt() + re.abs()) * 0.5).sqrt();
                match () {
                    () if t == 0.0 => Complex { re: 0.0, im },
                    () if re < 0.0 => Complex { re: im.abs() / (t + t), im: t.copysign(im) },
                    () => Complex { re: t, im: im / (t + t) },
                }
            }
            #[inline]
            fn norm(self) -> Self {
                Complex { re: self.re.sqrt(), im: 0.0 }
            }
            fn function(self, of: Function) -> Self {
                panic!("{of:?} of a pair")
            }
            fn maximum(self, _: Self) -> Self {
                panic!("the maximum of pairs")
            }
            fn minimum(self, _: Self) -> Self {
                panic!("the minimum of pairs")
            }
            fn compare(self, with: Comparison, _: Self) -> Self {
                panic!("{with:?} of pairs")
            }
            fn parts(self) -> (f64, f64) {
                (self.re.into(), self.im.into())
            }
            fn from_parts(re: f64, im: f64) -> Self {
                Complex { re: re as $t, im: im as $t }
            }
            const PART: usize = size_of::<$t>();
            #[inline]
            fn to_bytes(self) -> [u8; 16] {
                let mut bytes = padded(self.re.to_ne_bytes());
                bytes[Self::PART..2 * Self::PART].copy_from_slice(&self.im.to_ne_bytes());
                bytes
            }
            #[inline]
            fn from_bytes(bytes: [u8; 16]) -> Self {
                let of = |first| <$t>::from_ne_bytes(part(&bytes, first));
                Complex { re: of(0), im: of(Self::PART) }
            }
        }
    };
}
real_accumulator!(f32, single);
real_accumulator!(f64, double);

/// A matrix element: `f32`, `f64`, `half::f16`, `half::bf16`, `Complex<f32>`, `Complex<f64>`.
///
/// Its zero and one are those of num-traits, `T::zero()` and `T::one()`, as ndarray's `zeros` and `ones` ask for. Sealed:
/// every backend has a kernel for each. To add one, see `docs/adding-a-type.md`.
///
/// ```
/// # gemv::Engine::global().set_default("reference").unwrap();
/// use gemv::{Element, GpuDot, half::{bf16, f16}, num_complex::Complex};
/// use ndarray::{Array1, Array2};
///
/// /// Of any type: n ones times n ones.
/// fn count<T: Element>(n: usize) -> T {
///     Array2::<T>::ones((1, n)).gpu_dot(&Array1::ones(n))[0]
/// }
/// assert_eq!(count::<f64>(1000), 1000.0);
/// assert_eq!(count::<f16>(2049).to_f32(), 2048.0); // rounded once, at the end
/// assert_eq!(count::<Complex<f32>>(3), Complex::new(3.0, 0.0));
/// assert_eq!(bf16::DTYPE.name(), "bf16");
/// assert_eq!((-f32::NAN).bits(), f32::NAN.bits());
/// assert_ne!((-0.0f32).bits(), 0.0f32.bits());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element type of gemv",
    note = "f32, f64, half::f16, half::bf16, Complex<f32> and Complex<f64> are"
)]
pub trait Element:
    Times<Self>
    + sealed::Sealed
    + Zero
    + One
    + Copy
    + PartialEq
    + Debug
    + Default
    + Send
    + Sync
    + 'static
{
    /// The type in which products of these elements are summed and scaled.
    type Acc: Accumulator;
    /// The type's name.
    const DTYPE: Dtype;
    /// The element as an accumulator value; exact.
    fn widen(self) -> Self::Acc;
    /// The accumulator value rounded once to the element type.
    fn narrow(acc: Self::Acc) -> Self;
    /// The complex conjugate; the element itself for real types.
    fn conj(self) -> Self;
    /// The bits of the element, for exact comparison; every NaN (whose payload and sign the order
    /// does not define) gives the same value, per component.
    fn bits(self) -> u128;
    /// The value as one of any element type, for the [`Backend`](crate::Backend) seam.
    ///
    /// ```
    /// use gemv::{Dtype, Element, unstable::AnySlice};
    /// fn bytes<T: Element>(slice: &[T]) -> usize {
    ///     let any: AnySlice<'_> = T::any(slice);
    ///     any.dtype().bytes() * slice.len()
    /// }
    /// assert_eq!(bytes(&[1.0f32, 2.0]), 8);
    /// ```
    fn any<F: Family>(value: F::Of<'_, Self>) -> Any<'_, F>;
    /// The value of one that is of this element type.
    ///
    /// ```
    /// use gemv::{Element, unstable::AnySlice};
    /// assert!(f32::of_any(&AnySlice::F32(&[1.0])).is_some_and(|slice| slice.len() == 1));
    /// assert!(f64::of_any(&AnySlice::F32(&[1.0])).is_none());
    /// ```
    fn of_any<'r, 'a, F: Family>(any: &'r Any<'a, F>) -> Option<&'r F::Of<'a, Self>>;
}

/// An element type of matrices that have products with vectors of `V`: `V` itself, or a narrower type.
///
/// The products are summed and scaled in `V::Acc`, to which an element of either type is converted
/// exactly. Sealed: the pairs of two types are f16 and bf16 with f32, and f32 with f64.
///
/// ```
/// use gemv::{Accumulator, Element, Times, half::f16};
///
/// fn product<T: Times<V>, V: Element>(a: T, x: V) -> V::Acc {
///     V::Acc::ZERO.fma(a.promote(), x.widen())
/// }
/// assert_eq!(product(f16::from_f32(0.5), 3.0f32), 1.5);
/// assert_eq!(product(0.1f32, 1.0f64), f64::from(0.1f32));
/// assert_eq!(product(0.1f64, 1.0), 0.1);
/// ```
#[diagnostic::on_unimplemented(
    message = "a matrix of `{Self}` has no product with vectors of `{V}`",
    note = "both are of one type, or the matrix of f16 or bf16 and the vectors of f32, or the matrix of f32 and the vectors of f64"
)]
pub trait Times<V: Element>: sealed::Sealed + Sized {
    /// The element as the accumulator value of a product with `V`; exact.
    fn promote(self) -> V::Acc;
    /// Computes `y = A x` by a function for small products; false if it is for other types, or does not take the
    /// operands, and y is untouched.
    #[doc(hidden)]
    fn small(of: &AnySmall, a: &ArrayView2<'_, Self>, conj: bool, x: &[V], y: &mut [V]) -> bool;
}

macro_rules! times {
    ($($t:ty, $v:ty, $promote:expr, |$of:ident, $a:ident, $conj:ident, $x:ident, $y:ident| $small:expr;)*) => { $(
        impl Times<$v> for $t {
            #[inline]
            fn promote(self) -> <$v as Element>::Acc {
                $promote(self)
            }
            #[inline(always)]
            fn small(
                $of: &AnySmall,
                $a: &ArrayView2<'_, $t>,
                $conj: bool,
                $x: &[$v],
                $y: &mut [$v],
            ) -> bool {
                $small
            }
        }
    )* };
    (same $($t:ty),*) => {
        times! { $(
            $t, $t, Element::widen, |of, a, conj, x, y| {
                <$t>::of_any(of).is_some_and(|small| small(a, conj, x, y))
            };
        )* }
    };
    (mixed $($t:ty, $v:ty, $promote:expr;)*) => {
        times! { $( $t, $v, $promote, |_of, _a, _conj, _x, _y| false; )* }
    };
}
times! { same f32, f64, f16, bf16, Complex<f32>, Complex<f64> }
times! { mixed
    f16, f32, Element::widen;
    bf16, f32, Element::widen;
    f32, f64, f64::from;
}

macro_rules! erase {
    ($variant:ident) => {
        #[inline(always)]
        fn any<F: Family>(value: F::Of<'_, Self>) -> Any<'_, F> {
            Any::$variant(value)
        }
        #[inline(always)]
        fn of_any<'r, 'a, F: Family>(any: &'r Any<'a, F>) -> Option<&'r F::Of<'a, Self>> {
            match any {
                Any::$variant(value) => Some(value),
                _ => None,
            }
        }
    };
}

macro_rules! real_element {
    ($t:ty, $acc:ty, $variant:ident, $widen:expr, $narrow:expr) => {
        impl Element for $t {
            type Acc = $acc;
            const DTYPE: Dtype = Dtype::$variant;
            #[inline]
            fn widen(self) -> $acc {
                $widen(self)
            }
            #[inline]
            fn narrow(acc: $acc) -> Self {
                $narrow(acc)
            }
            #[inline]
            fn conj(self) -> Self {
                self
            }
            fn bits(self) -> u128 {
                if self.is_nan() { <$t>::NAN.to_bits().into() } else { self.to_bits().into() }
            }
            erase!($variant);
        }
    };
}
real_element!(f32, f32, F32, |v| v, |v| v);
real_element!(f64, f64, F64, |v| v, |v| v);
impl sealed::Sealed for f16 {}
real_element!(f16, f32, F16, f16::to_f32, f16::from_f32);
impl sealed::Sealed for bf16 {}
real_element!(bf16, f32, Bf16, bf16::to_f32, bf16::from_f32);

macro_rules! complex_element {
    ($t:ty, $variant:ident) => {
        impl Element for Complex<$t> {
            type Acc = Self;
            const DTYPE: Dtype = Dtype::$variant;
            #[inline]
            fn widen(self) -> Self {
                self
            }
            #[inline]
            fn narrow(acc: Self) -> Self {
                acc
            }
            #[inline]
            fn conj(self) -> Self {
                Complex { re: self.re, im: -self.im }
            }
            fn bits(self) -> u128 {
                self.re.bits() << 64 | self.im.bits()
            }
            erase!($variant);
        }
    };
}
complex_element!(f32, C32);
complex_element!(f64, C64);

/// `y = alpha * s + beta * y` by rule 6 of the order: a `beta` of 0 does not read `y` (which is
/// then passed as `None`), and a factor of exactly 1 is not multiplied.
///
/// Leaving out a factor of 1 changes no bit of a real result; for pairs it keeps `0 * inf` out of
/// the other component. It is computed in the [mode](crate::float_mode) of the calling thread.
///
/// ```
/// use gemv::unstable::scale;
///
/// assert_eq!(scale::<f32>(2.0, 10.0, 0.5, Some(8.0)), 24.0); // 2 * 10 + 0.5 * 8
/// assert_eq!(scale::<f32>(1.0, 10.0, 0.0, None), 10.0); // y is not read
/// ```
#[inline]
pub fn scale<T: Element>(alpha: T::Acc, sum: T::Acc, beta: T::Acc, y: Option<T>) -> T {
    let Some(y) = y else {
        return T::narrow(if alpha == T::Acc::ONE { sum } else { alpha.mul(sum) });
    };
    let y = if beta == T::Acc::ONE { y.widen() } else { beta.mul(y.widen()) };
    T::narrow(if alpha == T::Acc::ONE { sum.add(y) } else { y.fma(alpha, sum) })
}

/// A type for each element type: what an [`Any`] holds.
pub trait Family {
    /// Its type for this element type.
    type Of<'a, T: Element>;
}

/// A value of a [`Family`], of any element type: what passes the [`Backend`](crate::Backend) seam.
///
/// ```
/// use gemv::{Dtype, half::f16, unstable::{AnySlice, for_any}};
/// let slice = AnySlice::F16(&[f16::ONE]);
/// assert_eq!(slice.dtype(), Dtype::F16);
/// assert_eq!(for_any!(AnySlice, slice, s => s.len()), 1);
/// ```
#[allow(missing_docs)] // a variant per element type
pub enum Any<'a, F: Family> {
    F32(F::Of<'a, f32>),
    F64(F::Of<'a, f64>),
    F16(F::Of<'a, f16>),
    Bf16(F::Of<'a, bf16>),
    C32(F::Of<'a, Complex<f32>>),
    C64(F::Of<'a, Complex<f64>>),
}

impl<F: Family> Any<'_, F> {
    /// The element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Any::F32(_) => Dtype::F32,
            Any::F64(_) => Dtype::F64,
            Any::F16(_) => Dtype::F16,
            Any::Bf16(_) => Dtype::Bf16,
            Any::C32(_) => Dtype::C32,
            Any::C64(_) => Dtype::C64,
        }
    }
}

impl<F: Family> Debug for Any<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Any({})", self.dtype())
    }
}

/// The [`Family`] of [`AnySlice`].
#[derive(Debug)]
pub enum Slices {}

impl Family for Slices {
    type Of<'a, T: Element> = &'a [T];
}

/// A slice of any element type.
pub type AnySlice<'a> = Any<'a, Slices>;

/// The [`Family`] of [`AnySliceMut`].
#[derive(Debug)]
pub enum SlicesMut {}

impl Family for SlicesMut {
    type Of<'a, T: Element> = &'a mut [T];
}

/// A mutable slice of any element type.
///
/// ```
/// use gemv::unstable::{AnySliceMut, for_any};
/// let mut entries = [1.0f32, 2.0];
/// for_any!(AnySliceMut, AnySliceMut::F32(&mut entries), s => s.reverse());
/// assert_eq!(entries, [2.0, 1.0]);
/// ```
pub type AnySliceMut<'a> = Any<'a, SlicesMut>;

/// The [`Family`] of [`AnySmall`].
#[derive(Debug)]
pub enum Small {}

impl Family for Small {
    type Of<'a, T: Element> = SmallProduct<T>;
}

/// `y = A x` for a small matrix of the host, x and y without gaps: false if the function does not take it, and y is untouched.
/// It has the bits of the [order](crate::order), or false, in any mode of the caller's.
pub type SmallProduct<T> = fn(a: &ArrayView2<'_, T>, conj: bool, x: &[T], y: &mut [T]) -> bool;

/// A [`SmallProduct`] of any element type.
pub type AnySmall = Any<'static, Small>;

impl Clone for AnySmall {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for AnySmall {}

/// Runs one expression with the typed value inside an [`Any`]: an [`AnySlice`], an [`AnySliceMut`] or an
/// [`AnyVectorJob`](crate::AnyVectorJob).
///
/// ```
/// use gemv::unstable::{AnySlice, for_any};
/// let s = AnySlice::F32(&[1.0, 2.0]);
/// assert_eq!(for_any!(AnySlice, s, v => std::mem::size_of_val(v)), 8);
/// ```
#[macro_export]
macro_rules! for_any {
    ($any:ident, $value:expr, $typed:pat => $body:expr) => {
        match $value {
            $crate::$any::F32($typed) => $body,
            $crate::$any::F64($typed) => $body,
            $crate::$any::F16($typed) => $body,
            $crate::$any::Bf16($typed) => $body,
            $crate::$any::C32($typed) => $body,
            $crate::$any::C64($typed) => $body,
        }
    };
}

/// Runs one expression with the types of a matrix and of its vectors, from their [`Dtype`]s: where arithmetic is done.
///
/// Two types may have an expression of their own, behind `mixed`.
///
/// ```
/// use gemv::{Dtype, Element, unstable::for_types};
///
/// fn bytes(matrix: Dtype, vectors: Dtype) -> (usize, usize) {
///     for_types!((matrix, vectors), T, V => (size_of::<T>(), size_of::<V>()))
/// }
/// assert_eq!(bytes(Dtype::Bf16, Dtype::F32), (2, 4));
/// ```
///
/// # Panics
/// If a matrix of the one type has no product with vectors of the other.
#[macro_export]
macro_rules! for_types {
    ($types:expr, $t:ident, $v:ident => $body:expr) => {
        $crate::for_types!($types, $t => { #[allow(dead_code)] type $v = $t; $body }, mixed $t, $v => $body)
    };
    ($types:expr, $t:ident => $body:expr, mixed $m:ident, $v:ident => $mixed:expr) => {
        match $types {
            ($crate::Dtype::F32, $crate::Dtype::F32) => { #[allow(dead_code)] type $t = f32; $body }
            ($crate::Dtype::F64, $crate::Dtype::F64) => { #[allow(dead_code)] type $t = f64; $body }
            ($crate::Dtype::F16, $crate::Dtype::F16) => { #[allow(dead_code)] type $t = $crate::half::f16; $body }
            ($crate::Dtype::Bf16, $crate::Dtype::Bf16) => { #[allow(dead_code)] type $t = $crate::half::bf16; $body }
            ($crate::Dtype::C32, $crate::Dtype::C32) => {
                #[allow(dead_code)]
                type $t = $crate::num_complex::Complex<f32>;
                $body
            }
            ($crate::Dtype::C64, $crate::Dtype::C64) => {
                #[allow(dead_code)]
                type $t = $crate::num_complex::Complex<f64>;
                $body
            }
            ($crate::Dtype::F16, $crate::Dtype::F32) => {
                #[allow(dead_code)]
                type $m = $crate::half::f16;
                #[allow(dead_code)]
                type $v = f32;
                $mixed
            }
            ($crate::Dtype::Bf16, $crate::Dtype::F32) => {
                #[allow(dead_code)]
                type $m = $crate::half::bf16;
                #[allow(dead_code)]
                type $v = f32;
                $mixed
            }
            ($crate::Dtype::F32, $crate::Dtype::F64) => {
                #[allow(dead_code)]
                type $m = f32;
                #[allow(dead_code)]
                type $v = f64;
                $mixed
            }
            (matrix, vectors) => panic!("a matrix of {matrix} has no product with vectors of {vectors}"),
        }
    };
}
