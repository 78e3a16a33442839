//! The method.

use ndarray::{ArrayBase, ArrayRef, Data, Dimension, RawData};

use crate::resident::DeviceArray;
use crate::{Accumulator, Element, Result};

type Acc<T> = <T as Element>::Acc;

/// Products of matrices and vectors: `a.gpu_dot(&x)`, shaped like ndarray's
/// [`Dot`](ndarray::linalg::Dot).
///
/// The sums follow one [order](crate::order), so the result has the same bits on every backend,
/// for every layout and number of threads. The [floating-point mode](crate::float_mode) of the calling thread has no part in it,
/// and stays as it is.
///
/// | `self` | `rhs` | the product | `Output` |
/// |---|---|---|---|
/// | m × n matrix | n entries | `A x` | m entries, where A lives |
/// | m entries | m × n matrix | the row vector `x A` | n entries, where A lives |
/// | n entries | n entries | the dot product `x · y`, without conjugates | a number |
/// | m × n matrix | n × k matrix | `A X`; A is read once for several columns | m × k, where A lives |
/// | b × m × n, a batch | b × n | `A[i] x[i]` for each i | b × m, where A lives |
/// | b × m × n, a batch | b × n × k | `A[i] X[i]` for each i | b × m × k, where A lives |
///
/// Column c of `A X` has the bits of `A x`, of its column c of X alone, and so has entry i of a batch.
///
/// A matrix of f16 or bf16 also has products with vectors of f32, and a matrix of f32 with vectors of
/// f64, by [`widened`](crate::Widen::widened): elements are converted exactly as they are read, the sums
/// and the result have the vectors' type. (Such a matrix is on the left or right of a vector, or on the
/// left of a matrix or batch, with a number of axes that is known when the program is compiled.)
///
/// Each operand is an ndarray array, view or `ArrayRef` of one to three axes on the host, a slice or
/// `Vec` as a vector, or a resident [`DeviceArray`]. (A slice is a matrix by
/// `ArrayView2::from_shape((m, n), &slice)`.) Of an array whose number of axes is only known at run
/// time, such as `ArrayD`, the result is an `ArrayD` on the host, and `y` too is an `ArrayD` or a view of
/// one; where A is resident, X is given its axes first, by ndarray's `into_dimensionality`.
///
/// The product runs on the device of a resident
/// operand: that of A, else that of x, else that of y. What is on the host is copied there for this
/// one product. Without a resident operand the [`Engine`](crate::Engine) chooses the device.
///
/// ```
/// # gemv::Engine::global().set_default("reference").unwrap();
/// use gemv::GpuDot;
/// use ndarray::{array, s};
///
/// let a = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let x = array![1.0, 0.0, -1.0];
/// assert_eq!(a.gpu_dot(&x), array![-2.0, -2.0]);
/// assert_eq!(a.t().gpu_dot(&array![1.0, 1.0]), array![5.0, 7.0, 9.0]);
/// assert_eq!(array![1.0, 1.0].gpu_dot(&a), array![5.0, 7.0, 9.0]);
/// assert_eq!(a.slice(s![.., ..;-2]).gpu_dot(&array![1.0, 0.0]), array![3.0, 6.0]);
/// assert_eq!(x.gpu_dot(&x), 2.0);
/// assert_eq!(a.gpu_dot(&vec![1.0, 0.0, -1.0]), array![-2.0, -2.0]);
/// assert_eq!(a.gpu_dot(&a.t()), array![[14.0, 32.0], [32.0, 77.0]]);
/// assert_eq!(a.clone().into_dyn().gpu_dot(&x), array![-2.0, -2.0].into_dyn());
///
/// let mut y = array![1.0, 1.0];
/// a.gemv(2.0, &x, 1.0, &mut y); // y = 2 A x + y
/// assert_eq!(y, array![-3.0, -3.0]);
/// ```
///
/// Weights of 16 bits with a state of f32:
///
/// ```
/// # gemv::Engine::global().set_default("reference").unwrap();
/// use gemv::{GpuDot, half::bf16};
/// use ndarray::array;
///
/// let weights = array![[0.5f32, 1.0], [2.0, -1.0]].mapv(bf16::from_f32);
/// let state = array![1.0f32 / 3.0, 3.0];
/// assert_eq!(weights.gpu_dot(&state), array![1.0f32 / 6.0 + 3.0, 2.0 / 3.0 - 3.0]);
/// ```
///
/// A generic function names the operand and the result:
///
/// ```
/// # gemv::Engine::global().set_default("reference").unwrap();
/// use gemv::GpuDot;
/// use ndarray::{Array1, array};
///
/// fn twice<M>(a: &M, x: &Array1<f32>) -> Array1<f32>
/// where
///     M: GpuDot<Array1<f32>, Output = Array1<f32>>,
/// {
///     a.gpu_dot(&a.gpu_dot(x))
/// }
/// let a = array![[0.0f32, 1.0], [2.0, 0.0]];
/// assert_eq!(twice(&a, &array![1.0, 1.0]), array![2.0, 2.0]);
/// assert_eq!(twice(&a.t(), &array![1.0, 1.0]), array![2.0, 2.0]);
/// ```
pub trait GpuDot<Rhs: ?Sized> {
    /// Element type of the vectors and of the product: that of both operands, or the wider one.
    type Elem: Element;
    /// The product: an ndarray array, a [`DeviceArray`] or a number.
    type Output;
    /// Where a product can be written: an [`OperandMut`](crate::OperandMut), such as
    /// [`VectorMut`](crate::VectorMut), `&mut` of the number, or
    /// an `ArrayViewMutD` where the number of axes is only known at run time.
    type Target<'y>;

    /// The product, newly allocated.
    ///
    /// ```
    /// # gemv::Engine::global().set_default("reference").unwrap();
    /// use gemv::GpuDot;
    /// use ndarray::{Array1, Array2};
    ///
    /// let a = Array2::<f32>::eye(300);
    /// let x = Array1::linspace(0.0, 1.0, 300);
    /// assert_eq!(a.gpu_dot(&x), x);
    /// ```
    ///
    /// ```should_panic
    /// use gemv::GpuDot;
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
    fn gpu_dot(&self, rhs: &Rhs) -> Self::Output {
        // Not in a closure: its location would be reported in place of the caller's.
        match self.try_gpu_dot(rhs) {
            Ok(y) => y,
            Err(e) => panic!("gpu_dot: {e}"),
        }
    }

    /// [`gpu_dot`](Self::gpu_dot), with errors as values.
    ///
    /// ```
    /// # gemv::Engine::global().set_default("reference").unwrap();
    /// use gemv::GpuDot;
    /// use ndarray::array;
    ///
    /// let a = array![[1.0, 2.0], [3.0, 4.0]];
    /// assert_eq!(a.try_gpu_dot(&array![1.0, 1.0])?, array![3.0, 7.0]);
    /// let e = a.try_gpu_dot(&array![1.0, 1.0, 1.0]).unwrap_err();
    /// assert!(e.to_string().ends_with("x must have 2 entries, but it has 3"));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::WrongDevice`](crate::Error::WrongDevice) if
    /// operands are resident on two devices, or what
    /// the device reports.
    fn try_gpu_dot(&self, rhs: &Rhs) -> Result<Self::Output>;

    /// The product, written to `y`, which is not read.
    ///
    /// `y` has as many entries as the product, and any stride: a column of a matrix will do. It may
    /// be resident.
    ///
    /// ```
    /// # gemv::Engine::global().set_default("reference").unwrap();
    /// use gemv::GpuDot;
    /// use ndarray::{Array2, array};
    ///
    /// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, 1.0]);
    /// let mut columns = Array2::from_elem((2, 3), f64::NAN);
    /// for y in columns.columns_mut() {
    ///     a.gpu_dot_into(&x, y); // no allocation
    /// }
    /// assert_eq!(columns, array![[3.0, 3.0, 3.0], [7.0, 7.0, 7.0]]);
    /// ```
    ///
    /// # Panics
    /// As [`gpu_dot`](Self::gpu_dot); [`try_gpu_dot_into`](Self::try_gpu_dot_into) returns these as
    /// errors.
    #[track_caller]
    fn gpu_dot_into<'y>(&self, rhs: &Rhs, y: impl Into<Self::Target<'y>>) {
        if let Err(e) = self.try_gpu_dot_into(rhs, y) {
            panic!("gpu_dot_into: {e}");
        }
    }

    /// [`gpu_dot_into`](Self::gpu_dot_into), with errors as values.
    ///
    /// ```
    /// # gemv::Engine::global().set_default("reference").unwrap();
    /// use gemv::GpuDot;
    /// use ndarray::array;
    ///
    /// let (a, mut y) = (array![[1.0, 2.0], [3.0, 4.0]], [0.0; 2]);
    /// a.try_gpu_dot_into(&[1.0, 1.0], &mut y)?;
    /// assert_eq!(y, [3.0, 7.0]);
    /// assert!(a.try_gpu_dot_into(&[1.0, 1.0], &mut [0.0; 3]).is_err());
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_gpu_dot`](Self::try_gpu_dot); `y` is then as it was, but for what
    /// [`Error::Device`](crate::Error::Device) says of a resident one.
    fn try_gpu_dot_into<'y>(&self, rhs: &Rhs, y: impl Into<Self::Target<'y>>) -> Result<()> {
        self.try_gemv(Acc::<Self::Elem>::ONE, rhs, Accumulator::ZERO, y)
    }

    /// BLAS's `y = alpha * A x + beta * y`: `alpha = 0` does not read A and x, `beta = 0` does not
    /// read y. The factors have the accumulator's type: f32 for f16 and bf16.
    ///
    /// `y` has as many entries as the product. It may be on the host or resident. A resident `y`
    /// that shares its memory is given memory of its own first: a view such as `m.column(1)` is written,
    /// and the matrix that it is of stays as it was. To write a column where it lies, pass
    /// [`m.column_mut(1)?`](crate::DeviceMatrix::column_mut).
    ///
    /// ```
    /// # gemv::Engine::global().set_default("reference").unwrap();
    /// use gemv::{GpuDot, half::bf16};
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
    fn gemv<'y>(
        &self,
        alpha: Acc<Self::Elem>,
        rhs: &Rhs,
        beta: Acc<Self::Elem>,
        y: impl Into<Self::Target<'y>>,
    ) {
        if let Err(e) = self.try_gemv(alpha, rhs, beta, y) {
            panic!("gemv: {e}");
        }
    }

    /// [`gemv`](Self::gemv), with errors as values.
    ///
    /// ```
    /// use gemv::GpuDot;
    /// use ndarray::array;
    ///
    /// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, 1.0]);
    /// let mut y = array![5.0, 6.0, 7.0];
    /// assert!(a.try_gemv(1.0, &x, 0.0, &mut y).is_err()); // 2 results, 3 places
    /// assert_eq!(y, array![5.0, 6.0, 7.0]);
    /// ```
    ///
    /// # Errors
    /// As [`try_gpu_dot`](Self::try_gpu_dot); `y` is then as it was, but for what
    /// [`Error::Device`](crate::Error::Device) says of a resident one.
    fn try_gemv<'y>(
        &self,
        alpha: Acc<Self::Elem>,
        rhs: &Rhs,
        beta: Acc<Self::Elem>,
        y: impl Into<Self::Target<'y>>,
    ) -> Result<()>;
}

/// One impl for every pair of operands, owned or borrowed: the pairs are those of `Multiply`.
///
/// The compiler takes it for every left operand that looks like an array, and says why there is no product once it knows
/// both.
impl<L: ArrayLike + ?Sized, R: RightOf<L> + ?Sized> GpuDot<R> for L {
    type Elem = R::Elem;
    type Output = R::Output;
    type Target<'y> = R::Target<'y>;

    #[inline]
    fn try_gpu_dot(&self, rhs: &R) -> Result<Self::Output> {
        rhs.product(self)
    }

    #[inline]
    fn try_gemv<'y>(
        &self,
        alpha: Acc<Self::Elem>,
        rhs: &R,
        beta: Acc<Self::Elem>,
        y: impl Into<Self::Target<'y>>,
    ) -> Result<()> {
        rhs.update(self, alpha, beta, y.into())
    }
}

/// A right operand of the left operand `L`. Sealed.
#[diagnostic::on_unimplemented(
    message = "there is no product of `{L}` and `{Self}`",
    label = "no product of these two operands",
    note = "`{L}` and `{Self}` have a product if\n\
            - their elements are of one type, f32, f64, f16, bf16, Complex<f32> or Complex<f64> \
            (`x.mapv(f64::from)` converts; `a.widened()` of an f32 matrix takes vectors of f64, and one of f16 or bf16 \
            those of f32)\n\
            - they are matrix (2 axes) and vector (1) or matrix, vector and matrix or vector, batch of matrices (3) and of \
            vectors (2) or matrices (3) (`index_axis` takes a part; `x.broadcast((batch, n))` is one vector for each \
            matrix; an `ArrayD` gets its axes for a `DeviceArray` by `into_dimensionality::<Ix2>()`)\n\
            - they are arrays or views of ndarray 0.17, slices, `Vec`s of numbers or `DeviceArray`s (a `Vec<Vec<_>>` becomes \
            a matrix by `Array2::from_shape_vec((m, n), rows.concat())`; `cargo tree -i ndarray` shows other versions)"
)]
pub trait RightOf<L: ?Sized> {
    /// See [`GpuDot::Elem`].
    type Elem: Element;
    /// See [`GpuDot::Output`].
    type Output;
    /// See [`GpuDot::Target`].
    type Target<'y>;
    /// See [`GpuDot::try_gpu_dot`].
    fn product(&self, left: &L) -> Result<Self::Output>;
    /// See [`GpuDot::try_gemv`].
    fn update(
        &self,
        left: &L,
        alpha: Acc<Self::Elem>,
        beta: Acc<Self::Elem>,
        y: Self::Target<'_>,
    ) -> Result<()>;
}

// What is not satisfied below is said of both operands.
#[diagnostic::do_not_recommend]
impl<L, R> RightOf<L> for R
where
    L: Operand + ?Sized,
    R: Operand + ?Sized,
    L::Form: Multiply<R::Form>,
{
    type Elem = <L::Form as Multiply<R::Form>>::Elem;
    type Output = <L::Form as Multiply<R::Form>>::Output;
    type Target<'y> = <L::Form as Multiply<R::Form>>::Target<'y>;

    #[inline]
    fn product(&self, left: &L) -> Result<Self::Output> {
        left.form().product(self.form())
    }

    #[inline]
    fn update(
        &self,
        left: &L,
        alpha: Acc<Self::Elem>,
        beta: Acc<Self::Elem>,
        y: Self::Target<'_>,
    ) -> Result<()> {
        left.form().update(alpha, self.form(), beta, y)
    }
}

/// What looks like an operand: an array, whatever its elements and axes. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no operand of gemv",
    label = "no operand",
    note = "operands are arrays and views of ndarray 0.17, slices and `Vec`s of numbers, and `DeviceArray`s: if \
            `{Self}` is an array of another version of ndarray, which `cargo tree -i ndarray` shows, depend on \
            ndarray 0.17, or `use gemv::ndarray`"
)]
pub trait ArrayLike {}

impl<S: RawData, D> ArrayLike for ArrayBase<S, D> {}
impl<T, D> ArrayLike for ArrayRef<T, D> {}
impl<T: Element, D> ArrayLike for DeviceArray<T, D> {}
impl<T> ArrayLike for [T] {}
impl<T> ArrayLike for Vec<T> {}
impl<T, const N: usize> ArrayLike for [T; N] {}
impl<A: ArrayLike + ?Sized> ArrayLike for &A {}
impl<A: ArrayLike + ?Sized> ArrayLike for &mut A {}

/// An operand, and the form that its kind has in common: `ArrayRef` for what is on the host. Sealed.
pub trait Operand {
    /// Element type.
    type Elem: Element;
    /// The common form.
    type Form: ?Sized;
    /// This operand in the common form.
    fn form(&self) -> &Self::Form;
}

impl<T: Element, D: Dimension> Operand for ArrayRef<T, D> {
    type Elem = T;
    type Form = Self;
    #[inline]
    fn form(&self) -> &Self {
        self
    }
}

impl<S: Data<Elem: Element>, D: Dimension> Operand for ArrayBase<S, D> {
    type Elem = S::Elem;
    type Form = ArrayRef<S::Elem, D>;
    #[inline]
    fn form(&self) -> &Self::Form {
        self
    }
}

impl<T: Element, D> Operand for DeviceArray<T, D> {
    type Elem = T;
    type Form = Self;
    #[inline]
    fn form(&self) -> &Self {
        self
    }
}

impl<T: Element> Operand for [T] {
    type Elem = T;
    type Form = Self;
    #[inline]
    fn form(&self) -> &Self {
        self
    }
}

impl<T: Element> Operand for Vec<T> {
    type Elem = T;
    type Form = [T];
    #[inline]
    fn form(&self) -> &[T] {
        self
    }
}

impl<T: Element, const N: usize> Operand for [T; N] {
    type Elem = T;
    type Form = [T];
    #[inline]
    fn form(&self) -> &[T] {
        self
    }
}

macro_rules! borrowed {
    ($($borrow:ty),*) => { $(
        impl<R: Operand + ?Sized> Operand for $borrow {
            type Elem = R::Elem;
            type Form = R::Form;
            #[inline]
            fn form(&self) -> &R::Form {
                (**self).form()
            }
        }
    )* };
}
borrowed!(&R, &mut R);

/// The product of two forms. Sealed.
pub trait Multiply<Rhs: ?Sized> {
    /// See [`GpuDot::Elem`].
    type Elem: Element;
    /// See [`GpuDot::Output`].
    type Output;
    /// See [`GpuDot::Target`].
    type Target<'y>;
    /// See [`GpuDot::try_gpu_dot`].
    fn product(&self, rhs: &Rhs) -> Result<Self::Output>;
    /// See [`GpuDot::try_gemv`].
    fn update(
        &self,
        alpha: Acc<Self::Elem>,
        rhs: &Rhs,
        beta: Acc<Self::Elem>,
        y: Self::Target<'_>,
    ) -> Result<()>;
}
