//! The types that sums have.

use std::borrow::Cow;

use bytemuck::Pod;
use gemv_core::float_mode::in_default;
use gemv_core::{Accumulator, Any, DeviceVector, Dtype, Element, Family, VectorRef, for_any};
use ndarray::{Array1, ArrayView1};
use num_complex::Complex;

use crate::memory::collected;
use crate::{Error, Result};

mod sealed {
    pub trait Sealed {}
}

/// The type of a sum: an element that is its own accumulator. f32 (sums of f16, bf16 and f32), f64,
/// `Complex<f32>` and `Complex<f64>`.
///
/// Sealed.
///
/// ```
/// use gemv::{Element, half::f16};
/// use gemv_shard::SumElement;
///
/// fn bytes<V: Element<Acc: SumElement>>() -> usize {
///     V::Acc::DTYPE.bytes()
/// }
/// assert_eq!((bytes::<f16>(), bytes::<f64>()), (4, 8));
/// ```
pub trait SumElement: Element<Acc = Self> + Accumulator + Pod + sealed::Sealed {
    /// The type of its parts.
    #[doc(hidden)]
    type Part: Element<Acc = Self::Part> + Accumulator;
    /// Real and imaginary parts, one after the other; of real sums, these.
    #[doc(hidden)]
    fn split(sums: &[Self]) -> Result<Cow<'_, [Self::Part]>>;
    /// The sums of these parts.
    #[doc(hidden)]
    fn join(parts: Vec<Self::Part>) -> Result<Vec<Self>>;
    /// Appends the bytes, the least significant first.
    #[doc(hidden)]
    fn write(self, bytes: &mut Vec<u8>);
    /// The sum of so many bytes as it has.
    #[doc(hidden)]
    fn read(bytes: &[u8]) -> Self;
    /// A vector with this accumulator as one of this type.
    #[doc(hidden)]
    fn vector(x: Any<'_, Vectors>) -> Result<Vector<'_, Self>>;
    /// The vector, if its elements are real and of this type.
    #[doc(hidden)]
    fn real(y: Any<'_, ResidentVectors>) -> Option<&mut DeviceVector<Self>>;
}

/// The family of vectors.
#[doc(hidden)]
#[derive(Debug)]
pub enum Vectors {}

impl Family for Vectors {
    type Of<'a, T: Element> = VectorRef<'a, T>;
}

/// The family of resident vectors that are written.
#[doc(hidden)]
#[derive(Debug)]
pub enum ResidentVectors {}

impl Family for ResidentVectors {
    type Of<'a, T: Element> = &'a mut DeviceVector<T>;
}

/// A vector as it was given, or converted.
#[doc(hidden)]
#[derive(Debug)]
pub enum Vector<'a, S: Element> {
    Given(VectorRef<'a, S>),
    Widened(Array1<S>),
}

impl<S: Element> Vector<'_, S> {
    pub(crate) fn get(&self) -> VectorRef<'_, S> {
        match self {
            Vector::Given(x) => (*x).reborrow(),
            Vector::Widened(x) => VectorRef::Host(x.view()),
        }
    }
}

fn widened<V: Element>(x: VectorRef<'_, V>) -> Result<Array1<V::Acc>> {
    let widen = |x: ArrayView1<'_, V>| in_default(|| collected(x.iter().map(|x| x.widen())));
    let widened = match x {
        VectorRef::Host(x) => widen(x),
        VectorRef::Device(x) => widen(x.download()?.view()),
    };
    Ok(widened?.into())
}

/// A vector of a narrower type. Whoever calls it has compared the accumulators.
fn narrower<S: SumElement>(x: Any<'_, Vectors>) -> Result<Vector<'_, S>> {
    let text = |dtype: Dtype| format!("elements of {dtype}");
    let other = Error::Differ { left: text(x.dtype()), right: text(S::DTYPE) };
    let widened: Box<dyn std::any::Any> = for_any!(Any, x, x => Box::new(widened(x)?));
    widened.downcast().map(|widened| Vector::Widened(*widened)).map_err(|_| other)
}

macro_rules! real {
    ($($t:ident => $variant:ident;)*) => { $(
        impl sealed::Sealed for $t {}
        impl SumElement for $t {
            type Part = $t;
            fn split(sums: &[Self]) -> Result<Cow<'_, [$t]>> {
                Ok(Cow::Borrowed(sums))
            }
            fn join(parts: Vec<$t>) -> Result<Vec<Self>> {
                Ok(parts)
            }
            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
            fn read(bytes: &[u8]) -> Self {
                $t::from_le_bytes(bytes.try_into().expect("as many bytes as the type has"))
            }
            fn vector(x: Any<'_, Vectors>) -> Result<Vector<'_, Self>> {
                match x {
                    Any::$variant(x) => Ok(Vector::Given(x)),
                    x => narrower(x),
                }
            }
            fn real(y: Any<'_, ResidentVectors>) -> Option<&mut DeviceVector<Self>> {
                match y {
                    Any::$variant(y) => Some(y),
                    _ => None,
                }
            }
        }

        impl sealed::Sealed for Complex<$t> {}
    )* };
}
real! {
    f32 => F32;
    f64 => F64;
}

macro_rules! complex {
    ($($t:ident => $variant:ident;)*) => { $(
        impl SumElement for Complex<$t> {
            type Part = $t;
            fn split(sums: &[Self]) -> Result<Cow<'_, [$t]>> {
                Ok(Cow::Borrowed(bytemuck::cast_slice(sums)))
            }
            fn join(parts: Vec<$t>) -> Result<Vec<Self>> {
                collected(parts.chunks_exact(2).map(|pair| Complex::new(pair[0], pair[1])))
            }
            fn write(self, bytes: &mut Vec<u8>) {
                self.re.write(bytes);
                self.im.write(bytes);
            }
            fn read(bytes: &[u8]) -> Self {
                let (re, im) = bytes.split_at(bytes.len() / 2);
                Complex::new($t::read(re), $t::read(im))
            }
            fn vector(x: Any<'_, Vectors>) -> Result<Vector<'_, Self>> {
                match x {
                    Any::$variant(x) => Ok(Vector::Given(x)),
                    x => narrower(x),
                }
            }
            fn real(_: Any<'_, ResidentVectors>) -> Option<&mut DeviceVector<Self>> {
                None
            }
        }
    )* };
}
complex! {
    f32 => C32;
    f64 => C64;
}
