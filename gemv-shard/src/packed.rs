//! Products of packed matrices, whose vectors have a type that is known when the program runs.

use std::marker::PhantomData;

use gemv_core::{
    Any, DevicePacked, Dtype, Element, Error as CoreError, Family, Number, OperandMut, OperandRef,
    Rank, Stack,
};
use ndarray::Ix2;

use crate::Result;

/// The families of what is read, and of what is written.
struct Read<X>(PhantomData<X>);
struct Written<X>(PhantomData<X>);

impl<X: Rank> Family for Read<X> {
    type Of<'a, T: Element> = OperandRef<'a, T, X>;
}

impl<X: Rank> Family for Written<X> {
    type Of<'a, T: Element> = OperandMut<'a, T, X>;
}

/// `y = alpha * A x + beta * y` on the matrix' device.
///
/// # Errors
/// Those of the product, and [`Unsupported`](CoreError::Unsupported) for vectors of another type than f32, f16 or bf16.
pub(crate) fn multiply<V: Element, X: Rank>(
    a: &DevicePacked,
    alpha: V::Acc,
    x: OperandRef<'_, V, X>,
    beta: V::Acc,
    y: OperandMut<'_, V, X>,
) -> Result<()>
where
    Ix2: Stack<X>,
{
    fits::<V>(a)?;
    let [alpha, beta] = [alpha, beta].map(|factor| Number::new(factor).get::<f32>());
    macro_rules! product {
        ($x:ident, $y:ident) => {
            Ok(a.device().product(a, $x).scaled(alpha, beta).to($y)?)
        };
    }
    match (V::any::<Read<X>>(x), V::any::<Written<X>>(y)) {
        (Any::F32(x), Any::F32(y)) => product!(x, y),
        (Any::F16(x), Any::F16(y)) => product!(x, y),
        (Any::Bf16(x), Any::Bf16(y)) => product!(x, y),
        _ => unreachable!("other types are refused"),
    }
}

/// Whether a packed matrix has products with vectors of this type.
pub(crate) fn fits<V: Element>(a: &DevicePacked) -> Result<()> {
    if matches!(V::DTYPE, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
        return Ok(());
    }
    let device = a.device().info().id.clone();
    let reason = "packed matrices have products with vectors of f32, f16 and bf16".into();
    Err(CoreError::Unsupported { device, dtype: V::DTYPE, reason }.into())
}
