//! Products of a matrix with vectors of a wider type: [`Widen`].

use ndarray::{ArrayRef, Dimension};

use crate::dot::{ArrayLike, Operand};
use crate::resident::DeviceArray;

/// A matrix of f32 as the left or right operand of vectors of f64; see [`Widen`].
#[derive(Debug)]
pub struct Widened<'a, M: ?Sized>(pub(crate) &'a M);

impl<M: ?Sized> Clone for Widened<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ?Sized> Copy for Widened<'_, M> {}

impl<M: ?Sized> ArrayLike for Widened<'_, M> {}

impl<D: Dimension> Operand for Widened<'_, ArrayRef<f32, D>> {
    type Elem = f64;
    type Form = Self;
    #[inline]
    fn form(&self) -> &Self {
        self
    }
}

impl<D> Operand for Widened<'_, DeviceArray<f32, D>> {
    type Elem = f64;
    type Form = Self;
    #[inline]
    fn form(&self) -> &Self {
        self
    }
}

/// Matrices of f32 that are multiplied with vectors of f64: half the memory of a matrix of f64, sums of
/// its accuracy.
///
/// ```
/// # gemv::Engine::global().set_default("reference").unwrap();
/// use gemv::{GpuDot, Widen};
/// use ndarray::array;
///
/// let a = array![[1.0f32, 2.0], [3.0, 4.0]];
/// let x = array![1.0f64, 1e-12];
/// assert_eq!(a.widened().gpu_dot(&x), array![1.0 + 2e-12, 3.0 + 4e-12]);
/// assert_eq!(x.gpu_dot(&a.widened()), array![1.0 + 3e-12, 2.0 + 4e-12]);
///
/// let mut y = x.clone();
/// a.t().widened().gemv(-1.0, &x, 1.0, &mut y); // y - Aᵀ x
/// assert_eq!(y[0], 1.0 - (1.0 + 3e-12));
/// ```
pub trait Widen: Operand<Elem = f32> {
    /// The matrix as an operand whose elements are converted to f64 as they are read. Nothing is copied.
    ///
    /// A method of its own, because the type of a number such as `1.0` in x would be ambiguous otherwise.
    fn widened(&self) -> Widened<'_, Self::Form> {
        Widened(self.form())
    }
}

impl<M: Operand<Elem = f32> + ?Sized> Widen for M {}
