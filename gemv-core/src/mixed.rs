//! Products of a matrix with vectors of a wider type: [`Widen`], and those of a [`Device`].

use ndarray::{ArrayRef, Dimension, Ix3};

use crate::device::Device;
use crate::dot::Operand;
use crate::operand::{MatrixMut, MatrixRef, OperandMut, OperandRef, VectorMut, VectorRef};
use crate::resident::DeviceArray;
use crate::{Element, Params, Result, Times};

/// A matrix of f32 as the left or right operand of vectors of f64; see [`Widen`].
#[derive(Debug)]
pub struct Widened<'a, M: ?Sized>(pub(crate) &'a M);

impl<M: ?Sized> Clone for Widened<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ?Sized> Copy for Widened<'_, M> {}

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
/// # gemv_core::Engine::global().set_default("reference").unwrap();
/// use gemv_core::{GpuDot, Widen};
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

/// Products whose matrix has elements of `T` and whose vectors have those of `V`, a wider type.
///
/// They have names of their own, because the compiler finds the one type of [`gemv`](Device::gemv) from
/// any of its operands.
impl Device {
    /// [`gemv`](Self::gemv) of a matrix of `T` with vectors of `V`: `y = alpha * A x + beta * y`.
    ///
    /// A is m × n, `x` has n entries, `y` m. The factors have the accumulator's type of `V`.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv_core::half::f16;
    /// use ndarray::array;
    ///
    /// let a = array![[0.5f32, 1.0], [2.0, 4.0]].mapv(f16::from_f32);
    /// let (x, mut y) = (array![1.0f32, 0.1], array![1.0f32, 1.0]);
    /// device.gemv_mixed(2.0, &a, &x, -1.0, &mut y)?;
    /// assert_eq!(y, array![2.0 * 0.6 - 1.0, 2.0 * 2.4 - 1.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemv_mixed<'a, 'x, 'y, T: Element + Times<V>, V: Element>(
        &self,
        alpha: V::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, V>>,
        beta: V::Acc,
        y: impl Into<VectorMut<'y, V>>,
    ) -> Result<()> {
        self.run(None, false, alpha, a.into(), x.into(), beta, y.into())
    }

    /// [`gemm`](Self::gemm) of a matrix of `T` with matrices X and Y of `V`: A is m × n, X n × k, Y m × k.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{Array2, array};
    ///
    /// let (a, mut y) = (array![[0.1f32, 2.0]], Array2::from_elem((1, 2), f64::NAN));
    /// device.gemm_mixed(1.0, &a, &Array2::<f64>::eye(2), 0.0, &mut y)?;
    /// assert_eq!(y, array![[f64::from(0.1f32), 2.0]]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemm_mixed<'a, 'x, 'y, T: Element + Times<V>, V: Element>(
        &self,
        alpha: V::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<MatrixRef<'x, V>>,
        beta: V::Acc,
        y: impl Into<MatrixMut<'y, V>>,
    ) -> Result<()> {
        self.run_many(None, false, alpha, &a.into(), &x.into(), beta, y.into())
    }

    /// [`gemm_batched`](Self::gemm_batched) of matrices of `T` with X and Y of `V`: A is batch × m × n, X
    /// batch × n × k, Y batch × m × k.
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemm_batched_mixed<'a, 'x, 'y, T: Element + Times<V>, V: Element>(
        &self,
        alpha: V::Acc,
        a: impl Into<OperandRef<'a, T, Ix3>>,
        x: impl Into<OperandRef<'x, V, Ix3>>,
        beta: V::Acc,
        y: impl Into<OperandMut<'y, V, Ix3>>,
    ) -> Result<()> {
        self.run_many(None, false, alpha, &a.into(), &x.into(), beta, y.into())
    }

    /// [`gemm_batched_mixed`](Self::gemm_batched_mixed) with these parameters in place of the table's, as
    /// [`gemv_as`](Self::gemv_as).
    ///
    /// # Errors
    /// As [`gemv_as`](Self::gemv_as).
    pub fn gemm_mixed_as<'a, 'x, 'y, T: Element + Times<V>, V: Element>(
        &self,
        params: &Params,
        alpha: V::Acc,
        a: impl Into<OperandRef<'a, T, Ix3>>,
        x: impl Into<OperandRef<'x, V, Ix3>>,
        beta: V::Acc,
        y: impl Into<OperandMut<'y, V, Ix3>>,
    ) -> Result<()> {
        self.run_many(Some(params), false, alpha, &a.into(), &x.into(), beta, y.into())
    }
}
