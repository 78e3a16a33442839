//! The method.

use ndarray::{Array1, ArrayBase, ArrayRef, ArrayRef1, ArrayRef2, Data, Dimension, Ix1, Ix2};

use crate::device::check;
use crate::{Accumulator, Device, DeviceMatrix, Element, Engine, MatrixRef, Result, VectorRef};

/// Matrix-vector products: `a.gpu_dot(&x)` for every two-dimensional ndarray array or view, the
/// row vector times matrix `x.gpu_dot(&a)`, and resident matrices.
///
/// The sums follow one [order](crate::order), so the result has the same bits on every backend,
/// for every layout and number of threads.
///
/// Shapes: `a` is m × n, `x` has n entries, the result m. For a row vector times a matrix: `x` has
/// m entries, the result n.
///
/// ```
/// use gemv_core::GpuDot;
/// use ndarray::{array, s};
///
/// let a = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let x = array![1.0, 0.0, -1.0];
/// assert_eq!(a.gpu_dot(&x), array![-2.0, -2.0]);
/// assert_eq!(a.t().gpu_dot(&array![1.0, 1.0]), array![5.0, 7.0, 9.0]);
/// assert_eq!(array![1.0, 1.0].gpu_dot(&a), array![5.0, 7.0, 9.0]);
/// assert_eq!(a.slice(s![.., ..;-2]).gpu_dot(&array![1.0, 0.0]), array![3.0, 6.0]);
///
/// let mut y = array![1.0, 1.0];
/// a.gemv(2.0, &x, 1.0, &mut y); // y = 2 A x + y
/// assert_eq!(y, array![-3.0, -3.0]);
/// ```
pub trait GpuDot {
    /// Element type of the matrix and both vectors.
    type Elem: Element;
    /// The right-hand side: a vector for a matrix, a matrix for a vector.
    type Rhs: ?Sized;

    /// The product, in a new array.
    ///
    /// # Panics
    /// If the shapes do not fit (the message has both), or if the device fails, such as when
    /// `GEMV_BACKEND` names one that is not there. [`try_gpu_dot`](Self::try_gpu_dot) returns
    /// these as errors.
    #[track_caller]
    fn gpu_dot(&self, rhs: &Self::Rhs) -> Array1<Self::Elem> {
        // Not in a closure: its location would be reported in place of the caller's.
        match self.try_gpu_dot(rhs) {
            Ok(y) => y,
            Err(e) => panic!("gpu_dot: {e}"),
        }
    }

    /// The product, in a new array.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), or what the device reports.
    fn try_gpu_dot(&self, rhs: &Self::Rhs) -> Result<Array1<Self::Elem>>;

    /// The product, written to `y`, which is not read.
    ///
    /// # Panics
    /// As [`gpu_dot`](Self::gpu_dot).
    #[track_caller]
    fn gpu_dot_into(&self, rhs: &Self::Rhs, y: &mut ArrayRef1<Self::Elem>) {
        let (one, zero) = (Accumulator::ONE, Accumulator::ZERO);
        if let Err(e) = self.try_gemv(one, rhs, zero, y) {
            panic!("gpu_dot_into: {e}");
        }
    }

    /// BLAS's `y = alpha * A x + beta * y`: `alpha = 0` does not read A and x, `beta = 0` does not
    /// read y. The factors have the accumulator's type: f32 for f16 and bf16.
    ///
    /// # Panics
    /// As [`gpu_dot`](Self::gpu_dot).
    #[track_caller]
    fn gemv(
        &self,
        alpha: <Self::Elem as Element>::Acc,
        rhs: &Self::Rhs,
        beta: <Self::Elem as Element>::Acc,
        y: &mut ArrayRef1<Self::Elem>,
    ) {
        if let Err(e) = self.try_gemv(alpha, rhs, beta, y) {
            panic!("gemv: {e}");
        }
    }

    /// [`gemv`](Self::gemv), with errors as values.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), or what the device reports; `y` is then as it was.
    fn try_gemv(
        &self,
        alpha: <Self::Elem as Element>::Acc,
        rhs: &Self::Rhs,
        beta: <Self::Elem as Element>::Acc,
        y: &mut ArrayRef1<Self::Elem>,
    ) -> Result<()>;
}

/// The device for a product of this matrix, on the host.
#[inline]
fn device<T: Element>(a: &MatrixRef<'_, T>) -> Result<&'static Device> {
    Engine::global()?.device_for(&a.desc())
}

/// Matrix times vector.
impl<T: Element> GpuDot for ArrayRef<T, Ix2> {
    type Elem = T;
    type Rhs = ArrayRef1<T>;

    fn try_gpu_dot(&self, x: &ArrayRef1<T>) -> Result<Array1<T>> {
        let a = MatrixRef::from(self);
        device(&a)?.dot(a, x)
    }

    #[inline]
    fn try_gemv(
        &self,
        alpha: T::Acc,
        x: &ArrayRef1<T>,
        beta: T::Acc,
        y: &mut ArrayRef1<T>,
    ) -> Result<()> {
        let a = MatrixRef::from(self);
        device(&a)?.gemv(alpha, a, x, beta, y)
    }
}

/// Row vector times matrix.
impl<T: Element> GpuDot for ArrayRef<T, Ix1> {
    type Elem = T;
    type Rhs = ArrayRef2<T>;

    fn try_gpu_dot(&self, a: &ArrayRef2<T>) -> Result<Array1<T>> {
        let a = MatrixRef::Host(a.t());
        device(&a)?.dot(a, self)
    }

    fn try_gemv(
        &self,
        alpha: T::Acc,
        a: &ArrayRef2<T>,
        beta: T::Acc,
        y: &mut ArrayRef1<T>,
    ) -> Result<()> {
        let a = MatrixRef::Host(a.t());
        device(&a)?.gemv(alpha, a, self, beta, y)
    }
}

/// Forwards, so that bounds such as `Array2<f32>: GpuDot` hold.
impl<T, S, D> GpuDot for ArrayBase<S, D>
where
    S: Data<Elem = T>,
    D: Dimension,
    ArrayRef<T, D>: GpuDot,
{
    type Elem = <ArrayRef<T, D> as GpuDot>::Elem;
    type Rhs = <ArrayRef<T, D> as GpuDot>::Rhs;

    fn try_gpu_dot(&self, rhs: &Self::Rhs) -> Result<Array1<Self::Elem>> {
        (**self).try_gpu_dot(rhs)
    }

    fn try_gemv(
        &self,
        alpha: <Self::Elem as Element>::Acc,
        rhs: &Self::Rhs,
        beta: <Self::Elem as Element>::Acc,
        y: &mut ArrayRef1<Self::Elem>,
    ) -> Result<()> {
        (**self).try_gemv(alpha, rhs, beta, y)
    }
}

/// Resident matrix times host vector; for resident vectors see
/// [`DeviceMatrix::dot_resident`] and [`DeviceMatrix::gemv_with`].
impl<T: Element> GpuDot for DeviceMatrix<T> {
    type Elem = T;
    type Rhs = ArrayRef1<T>;

    fn try_gpu_dot(&self, x: &ArrayRef1<T>) -> Result<Array1<T>> {
        check(self.dim(), x.len(), None)?;
        self.device().dot(self, VectorRef::Host(x.view()))
    }

    fn try_gemv(
        &self,
        alpha: T::Acc,
        x: &ArrayRef1<T>,
        beta: T::Acc,
        y: &mut ArrayRef1<T>,
    ) -> Result<()> {
        self.device().gemv(alpha, self, x, beta, y)
    }
}
