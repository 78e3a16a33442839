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
    /// ```
    /// use gemv_core::GpuDot;
    /// use ndarray::{Array1, Array2};
    ///
    /// let a = Array2::<f32>::eye(300);
    /// let x = Array1::linspace(0.0, 1.0, 300);
    /// assert_eq!(a.gpu_dot(&x), x);
    /// ```
    ///
    /// ```should_panic
    /// use gemv_core::GpuDot;
    /// use ndarray::array;
    /// // gpu_dot: shapes do not fit: the matrix is 1 × 2, so x must have 2 entries, but it has 3
    /// array![[1.0, 2.0]].gpu_dot(&array![1.0, 2.0, 3.0]);
    /// ```
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
    /// ```
    /// use gemv_core::GpuDot;
    /// use ndarray::array;
    ///
    /// let a = array![[1.0, 2.0], [3.0, 4.0]];
    /// assert_eq!(a.try_gpu_dot(&array![1.0, 1.0])?, array![3.0, 7.0]);
    /// let e = a.try_gpu_dot(&array![1.0, 1.0, 1.0]).unwrap_err();
    /// assert!(e.to_string().ends_with("x must have 2 entries, but it has 3"));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), or what the device reports.
    fn try_gpu_dot(&self, rhs: &Self::Rhs) -> Result<Array1<Self::Elem>>;

    /// The product, written to `y`, which is not read.
    ///
    /// `y` has m entries, and any stride: a column of a matrix will do.
    ///
    /// ```
    /// use gemv_core::GpuDot;
    /// use ndarray::{Array2, array};
    ///
    /// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, 1.0]);
    /// let mut columns = Array2::from_elem((2, 3), f64::NAN);
    /// for mut y in columns.columns_mut() {
    ///     a.gpu_dot_into(&x, &mut y); // no allocation
    /// }
    /// assert_eq!(columns, array![[3.0, 3.0, 3.0], [7.0, 7.0, 7.0]]);
    /// ```
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
    /// A is m × n, x has n entries, `y` m.
    ///
    /// ```
    /// use gemv_core::{GpuDot, half::bf16};
    /// use ndarray::array;
    ///
    /// // One step of Jacobi's method for A z = b, with D = 4: z + (b - A z) / 4.
    /// let (a, b) = (array![[4.0, 1.0], [1.0, 4.0]], array![6.0, 9.0]);
    /// let z = array![1.0, 1.0];
    /// let mut r = b.clone();
    /// a.gemv(-1.0, &z, 1.0, &mut r);
    /// assert_eq!(&z + &r / 4.0, array![1.25, 2.0]);
    ///
    /// let (a, x) = (array![[bf16::ONE]], array![bf16::ONE]);
    /// let mut y = array![bf16::ONE];
    /// a.gemv(0.5f32, &x, 0.25f32, &mut y); // factors are f32
    /// assert_eq!(y[0].to_f32(), 0.75);
    /// ```
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
    /// ```
    /// use gemv_core::GpuDot;
    /// use ndarray::array;
    ///
    /// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, 1.0]);
    /// let mut y = array![5.0, 6.0, 7.0];
    /// assert!(a.try_gemv(1.0, &x, 0.0, &mut y).is_err()); // 2 results, 3 places
    /// assert_eq!(y, array![5.0, 6.0, 7.0]);
    /// ```
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
