//! The data of one product.

use ndarray::{
    ArrayBase, ArrayRef1, ArrayRef2, ArrayView1, ArrayView2, ArrayViewMut1, Data, DataMut, Ix1, Ix2,
};

use crate::{Desc, DeviceMatrix, DeviceVector, Dtype, Element};

/// One product, `y = alpha * A x + beta * y`: the data, on the host or resident.
///
/// The shapes agree: [`Device`](crate::Device) checks them before it hands a job to a backend.
///
/// ```
/// use gemv_core::{Job, MatrixRef};
/// use ndarray::{Array2, array};
///
/// let (a, x) = (Array2::<f64>::eye(3), array![1.0, 2.0, 3.0]);
/// let mut y = array![0.0, 0.0, 0.0];
/// let job = Job {
///     alpha: 1.0,
///     a: MatrixRef::Host(a.t()),
///     conj: false,
///     x: (&x).into(),
///     beta: 0.0,
///     y: (&mut y).into(),
/// };
/// assert_eq!(job.desc().to_string(), "f64 col 3x3"); // as A.t() lies in memory
/// ```
#[derive(Debug)]
pub struct Job<'a, T: Element> {
    /// Factor of the product. 0: A and x are not read.
    pub alpha: T::Acc,
    /// The matrix, m × n.
    pub a: MatrixRef<'a, T>,
    /// Whether the conjugate of A is used (the same for real types).
    pub conj: bool,
    /// The vector, n entries.
    pub x: VectorRef<'a, T>,
    /// Factor of `y`. 0: y is not read.
    pub beta: T::Acc,
    /// The result, m entries.
    pub y: VectorMut<'a, T>,
}

impl<T: Element> Job<'_, T> {
    /// What is asked.
    #[inline]
    pub fn desc(&self) -> Desc {
        self.a.desc()
    }
}

/// A matrix on the host or on a device.
///
/// Every array and view of two axes, and every resident matrix, is turned into one by `into()`.
///
/// ```
/// use gemv_core::{Engine, Layout, MatrixRef};
/// use ndarray::{array, s};
///
/// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let host = MatrixRef::from(&a.slice(s![.., ..;2])).desc();
/// assert_eq!((host.layout, host.m, host.n), (Layout::Strided, 2, 2));
///
/// let resident = Engine::new(None).device("reference")?.matrix(&a)?;
/// let there = MatrixRef::from(&resident);
/// assert!(matches!(there, MatrixRef::Device(_)) && there.dim() == (2, 3));
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum MatrixRef<'a, T: Element> {
    /// In host memory, with any strides.
    Host(ArrayView2<'a, T>),
    /// Resident.
    Device(&'a DeviceMatrix<T>),
}

/// A vector on the host or on a device.
///
/// Every array and view of one axis, and every resident vector, is turned into one by `into()`.
///
/// ```
/// use gemv_core::{Engine, VectorRef};
/// use ndarray::{array, s};
///
/// let x = array![1.0, 2.0, 3.0, 4.0, 5.0];
/// assert_eq!(VectorRef::from(&x.slice(s![..;-2])).len(), 3);
/// let resident = Engine::new(None).device("reference")?.vector(&x)?;
/// assert!(matches!(VectorRef::from(&resident), VectorRef::Device(x) if x.len() == 5));
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum VectorRef<'a, T: Element> {
    /// In host memory, with any stride.
    Host(ArrayView1<'a, T>),
    /// Resident.
    Device(&'a DeviceVector<T>),
}

/// The result's place, on the host or on a device.
///
/// `&mut` of an array or of a resident vector, and a mutable view, are turned into one by `into()`.
///
/// ```
/// use gemv_core::Engine;
/// use ndarray::{Array2, array, s};
///
/// let device = Engine::new(None).device("reference")?;
/// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, 1.0]);
/// let mut host = array![0.0, 0.0];
/// device.gemv(1.0, &a, &x, 0.0, &mut host)?;
/// let mut table = Array2::zeros((2, 3));
/// device.gemv(1.0, &a, &x, 0.0, table.slice_mut(s![.., 1]))?; // a column
/// assert_eq!(table, array![[0.0, 3.0, 0.0], [0.0, 7.0, 0.0]]);
/// let mut resident = device.zeros(2)?;
/// device.gemv(1.0, &a, &x, 0.0, &mut resident)?;
/// assert_eq!(resident.download()?, host);
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug)]
pub enum VectorMut<'a, T: Element> {
    /// In host memory, with any stride but 0.
    Host(ArrayViewMut1<'a, T>),
    /// Resident. Before a backend sees it, the vector has been made contiguous and the only owner
    /// of its memory, so that [`DeviceVector::memory_mut`] succeeds.
    Device(&'a mut DeviceVector<T>),
}

impl<'a, T: Element> MatrixRef<'a, T> {
    /// The same operand, for a shorter time (views are invariant in their lifetime).
    #[inline]
    pub fn reborrow<'b>(self) -> MatrixRef<'b, T>
    where
        'a: 'b,
    {
        match self {
            MatrixRef::Host(a) => MatrixRef::Host(a.reborrow()),
            MatrixRef::Device(a) => MatrixRef::Device(a),
        }
    }

    /// What is asked of a product with it.
    #[inline]
    pub fn desc(&self) -> Desc {
        match self {
            MatrixRef::Host(a) => {
                let s = a.strides();
                Desc::new(T::DTYPE, a.nrows(), a.ncols(), (s[0], s[1]), a.as_ptr() as usize)
            }
            MatrixRef::Device(a) => a.desc(),
        }
    }

    /// Rows and columns.
    #[inline]
    pub fn dim(&self) -> (usize, usize) {
        match self {
            MatrixRef::Host(a) => a.dim(),
            MatrixRef::Device(a) => a.dim(),
        }
    }
}

impl<'a, T: Element> VectorRef<'a, T> {
    /// The same operand, for a shorter time.
    #[inline]
    pub fn reborrow<'b>(self) -> VectorRef<'b, T>
    where
        'a: 'b,
    {
        match self {
            VectorRef::Host(x) => VectorRef::Host(x.reborrow()),
            VectorRef::Device(x) => VectorRef::Device(x),
        }
    }

    /// Number of entries.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // an operand, not a collection
    pub fn len(&self) -> usize {
        match self {
            VectorRef::Host(x) => x.len(),
            VectorRef::Device(x) => x.len(),
        }
    }
}

impl<'a, T: Element> VectorMut<'a, T> {
    /// The same operand, for a shorter time.
    #[inline]
    pub fn reborrow<'b>(self) -> VectorMut<'b, T>
    where
        'a: 'b,
    {
        match self {
            VectorMut::Host(y) => VectorMut::Host(y.reborrow()),
            VectorMut::Device(y) => VectorMut::Device(y),
        }
    }

    /// Number of entries.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // an operand, not a collection
    pub fn len(&self) -> usize {
        match self {
            VectorMut::Host(y) => y.len(),
            VectorMut::Device(y) => y.len(),
        }
    }
}

impl<'a, T: Element> From<&'a DeviceVector<T>> for VectorRef<'a, T> {
    fn from(x: &'a DeviceVector<T>) -> Self {
        VectorRef::Device(x)
    }
}

impl<'a, T: Element> From<&'a mut DeviceVector<T>> for VectorMut<'a, T> {
    fn from(y: &'a mut DeviceVector<T>) -> Self {
        VectorMut::Device(y)
    }
}

impl<'a, T: Element> From<&'a DeviceMatrix<T>> for MatrixRef<'a, T> {
    fn from(a: &'a DeviceMatrix<T>) -> Self {
        MatrixRef::Device(a)
    }
}

impl<'a, T: Element, S: Data<Elem = T>> From<&'a ArrayBase<S, Ix1>> for VectorRef<'a, T> {
    #[inline]
    fn from(x: &'a ArrayBase<S, Ix1>) -> Self {
        VectorRef::Host(x.view())
    }
}

impl<'a, T: Element> From<ArrayView1<'a, T>> for VectorRef<'a, T> {
    fn from(x: ArrayView1<'a, T>) -> Self {
        VectorRef::Host(x)
    }
}

impl<'a, T: Element, S: Data<Elem = T>> From<&'a ArrayBase<S, Ix2>> for MatrixRef<'a, T> {
    #[inline]
    fn from(a: &'a ArrayBase<S, Ix2>) -> Self {
        MatrixRef::Host(a.view())
    }
}

impl<'a, T: Element> From<ArrayView2<'a, T>> for MatrixRef<'a, T> {
    fn from(a: ArrayView2<'a, T>) -> Self {
        MatrixRef::Host(a)
    }
}

impl<'a, T: Element> From<&'a ArrayRef1<T>> for VectorRef<'a, T> {
    #[inline]
    fn from(x: &'a ArrayRef1<T>) -> Self {
        VectorRef::Host(x.view())
    }
}

impl<'a, T: Element> From<&'a ArrayRef2<T>> for MatrixRef<'a, T> {
    #[inline]
    fn from(a: &'a ArrayRef2<T>) -> Self {
        MatrixRef::Host(a.view())
    }
}

impl<'a, T: Element, S: DataMut<Elem = T>> From<&'a mut ArrayBase<S, Ix1>> for VectorMut<'a, T> {
    #[inline]
    fn from(y: &'a mut ArrayBase<S, Ix1>) -> Self {
        VectorMut::Host(y.view_mut())
    }
}

impl<'a, T: Element> From<&'a mut ArrayRef1<T>> for VectorMut<'a, T> {
    #[inline]
    fn from(y: &'a mut ArrayRef1<T>) -> Self {
        VectorMut::Host(y.view_mut())
    }
}

impl<'a, T: Element> From<ArrayViewMut1<'a, T>> for VectorMut<'a, T> {
    fn from(y: ArrayViewMut1<'a, T>) -> Self {
        VectorMut::Host(y)
    }
}

macro_rules! any {
    ($($(#[$doc:meta])* $name:ident($($inner:tt)*);)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        #[allow(missing_docs)] // a variant per element type
        pub enum $name<'a> {
            F32(any!(@ f32, $($inner)*)),
            F64(any!(@ f64, $($inner)*)),
            F16(any!(@ half::f16, $($inner)*)),
            Bf16(any!(@ half::bf16, $($inner)*)),
            C32(any!(@ num_complex::Complex<f32>, $($inner)*)),
            C64(any!(@ num_complex::Complex<f64>, $($inner)*)),
        }
        impl $name<'_> {
            /// The element type.
            pub fn dtype(&self) -> Dtype {
                match self {
                    Self::F32(_) => Dtype::F32,
                    Self::F64(_) => Dtype::F64,
                    Self::F16(_) => Dtype::F16,
                    Self::Bf16(_) => Dtype::Bf16,
                    Self::C32(_) => Dtype::C32,
                    Self::C64(_) => Dtype::C64,
                }
            }
        }
    )* };
    (@ $t:ty, job) => { Job<'a, $t> };
    (@ $t:ty, slice) => { &'a [$t] };
    (@ $t:ty, slice_mut) => { &'a mut [$t] };
}
any! {
    /// A [`Job`] of any element type: what passes the [`Backend`](crate::Backend) seam.
    ///
    /// ```
    /// use gemv_core::{AnyJob, Job, MatrixRef, VectorRef, for_any};
    /// use ndarray::array;
    ///
    /// let (a, x, mut y) = (array![[2.0f64, 3.0]], array![1.0, 1.0], array![0.0]);
    /// let (a, x) = (MatrixRef::from(&a), VectorRef::from(&x));
    /// let job = AnyJob::F64(Job { alpha: 1.0, a, conj: false, x, beta: 0.0, y: (&mut y).into() });
    /// assert_eq!(job.dtype().name(), "f64");
    /// assert_eq!(for_any!(AnyJob, job, job => job.a.dim()), (1, 2));
    /// ```
    AnyJob(job);
    /// A slice of any element type.
    ///
    /// ```
    /// use gemv_core::{AnySlice, Dtype, half::f16};
    /// assert_eq!(AnySlice::F16(&[f16::ONE]).dtype(), Dtype::F16);
    /// ```
    AnySlice(slice);
    /// A mutable slice of any element type.
    ///
    /// ```
    /// use gemv_core::{AnySliceMut, for_any};
    /// let mut entries = [1.0f32, 2.0];
    /// for_any!(AnySliceMut, AnySliceMut::F32(&mut entries), s => s.reverse());
    /// assert_eq!(entries, [2.0, 1.0]);
    /// ```
    AnySliceMut(slice_mut);
}

/// Runs one expression with the typed value inside an [`AnyJob`], [`AnySlice`] or [`AnySliceMut`].
///
/// ```
/// use gemv_core::{AnySlice, for_any};
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
