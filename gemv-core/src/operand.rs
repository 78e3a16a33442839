//! Operands as the caller has them, on the host or resident, and the way from one to the other.

use ndarray::{ArrayBase, ArrayRef, ArrayView, ArrayViewMut, Data, DataMut, Dimension, Ix1, Ix2};

use crate::device::Device;
use crate::dot::ArrayLike;
use crate::resident::{DeviceArray, DeviceMatrix, DeviceVector};
use crate::tensor::{Axes, Tensor};
use crate::view_mut::DeviceViewMut;
use crate::{Desc, Element, Result};

/// An array on the host or on a device, to be read, as a caller has it. A backend gets a
/// [`Tensor`], which has no device of its own.
///
/// Every array and view, and every resident array, is turned into one by `into()`.
#[derive(Debug, Clone, Copy)]
pub enum OperandRef<'a, T: Element, D: Dimension> {
    /// In host memory, with any strides.
    Host(ArrayView<'a, T, D>),
    /// Resident.
    Device(&'a DeviceArray<T, D>),
}

/// A matrix on the host or on a device.
///
/// ```
/// use gemv::{Engine, MatrixRef, unstable::Layout};
/// use ndarray::{array, s};
///
/// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let host = MatrixRef::from(&a.slice(s![.., ..;2])).desc();
/// assert_eq!((host.layout, host.m, host.n), (Layout::Strided, 2, 2));
///
/// let resident = Engine::new(None).device("reference")?.matrix(&a)?;
/// let there = MatrixRef::from(&resident);
/// assert!(matches!(there, MatrixRef::Device(_)) && there.dim() == (2, 3));
/// # Ok::<(), gemv::Error>(())
/// ```
pub type MatrixRef<'a, T> = OperandRef<'a, T, Ix2>;

/// A vector on the host or on a device.
///
/// ```
/// use gemv::{Engine, VectorRef};
/// use ndarray::{array, s};
///
/// let x = array![1.0, 2.0, 3.0, 4.0, 5.0];
/// assert_eq!(VectorRef::from(&x.slice(s![..;-2])).len(), 3);
/// assert_eq!(VectorRef::from(&[1.0, 2.0][..]).len(), 2);
/// let resident = Engine::new(None).device("reference")?.vector(&x)?;
/// assert!(matches!(VectorRef::from(&resident), VectorRef::Device(x) if x.len() == 5));
/// # Ok::<(), gemv::Error>(())
/// ```
pub type VectorRef<'a, T> = OperandRef<'a, T, Ix1>;

/// The result's place, on the host or on a device.
///
/// `&mut` of an array or of a resident array, and a mutable view, are turned into one by `into()`.
#[derive(Debug)]
pub enum OperandMut<'a, T: Element, D: Dimension> {
    /// In host memory, with any strides but 0.
    Host(ArrayViewMut<'a, T, D>),
    /// Resident. What shares its memory is given memory of its own before a product is written to it.
    Device(&'a mut DeviceArray<T, D>),
    /// A part of a resident array, written where it lies.
    View(DeviceViewMut<'a, T, D>),
}

/// The place of a vector.
///
/// ```
/// use gemv::Engine;
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
/// # Ok::<(), gemv::Error>(())
/// ```
pub type VectorMut<'a, T> = OperandMut<'a, T, Ix1>;

/// The place of a matrix.
pub type MatrixMut<'a, T> = OperandMut<'a, T, Ix2>;

impl<'a, T: Element, D: Dimension + Copy> OperandRef<'a, T, D> {
    /// The same operand, for a shorter time (views are invariant in their lifetime).
    #[inline]
    pub fn reborrow<'b>(self) -> OperandRef<'b, T, D>
    where
        'a: 'b,
    {
        match self {
            OperandRef::Host(a) => OperandRef::Host(a.reborrow()),
            OperandRef::Device(a) => OperandRef::Device(a),
        }
    }

    /// Number of entries along each axis.
    #[inline]
    pub fn raw_dim(&self) -> D {
        match self {
            OperandRef::Host(a) => a.raw_dim(),
            OperandRef::Device(a) => a.raw_dim(),
        }
    }

    /// The device of a resident operand.
    #[inline]
    pub fn device(&self) -> Option<&'a Device> {
        match self {
            OperandRef::Host(_) => None,
            OperandRef::Device(a) => Some(a.device()),
        }
    }

    /// The stride of an axis, in elements.
    #[inline(always)]
    pub(crate) fn stride(&self, axis: usize) -> isize {
        match self {
            OperandRef::Host(a) => a.strides()[axis],
            OperandRef::Device(a) => a.window().stride(axis),
        }
    }

    /// Where the first entry lies, as far as its alignment goes.
    #[inline(always)]
    pub(crate) fn address(&self) -> usize {
        match self {
            OperandRef::Host(a) => a.as_ptr() as usize,
            OperandRef::Device(a) => a.window().first.wrapping_mul(T::DTYPE.bytes()),
        }
    }

    /// As a backend gets it, by these axes.
    #[inline(always)]
    pub(crate) fn tensor(&self, axes: Axes) -> Tensor<'_> {
        match self {
            OperandRef::Host(a) => Tensor::host(a, axes),
            OperandRef::Device(a) => Tensor::resident(T::DTYPE, a.window(), axes),
        }
    }
}

impl<T: Element> OperandRef<'_, T, Ix2> {
    /// What is asked of a product with it.
    #[inline]
    pub fn desc(&self) -> Desc {
        let dim = self.raw_dim();
        Desc::new(T::DTYPE, dim[0], dim[1], (self.stride(0), self.stride(1)), self.address())
    }

    /// Rows and columns.
    #[inline]
    pub fn dim(&self) -> (usize, usize) {
        match self {
            OperandRef::Host(a) => a.dim(),
            OperandRef::Device(a) => a.dim(),
        }
    }
}

impl<T: Element> OperandRef<'_, T, Ix1> {
    /// Number of entries.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // an operand, not a collection
    pub fn len(&self) -> usize {
        self.raw_dim()[0]
    }
}

impl<'a, T: Element, D: Dimension + Copy> OperandMut<'a, T, D> {
    /// Number of entries along each axis.
    #[inline]
    pub fn raw_dim(&self) -> D {
        match self {
            OperandMut::Host(y) => y.raw_dim(),
            OperandMut::Device(y) => y.raw_dim(),
            OperandMut::View(y) => y.raw_dim(),
        }
    }

    /// The device of a resident operand.
    #[inline]
    pub fn device(&self) -> Option<&Device> {
        match self {
            OperandMut::Host(_) => None,
            OperandMut::Device(y) => Some(y.device()),
            OperandMut::View(y) => Some(y.device()),
        }
    }
}

impl<T: Element> OperandMut<'_, T, Ix1> {
    /// Number of entries.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // an operand, not a collection
    pub fn len(&self) -> usize {
        self.raw_dim()[0]
    }
}

/// What an operand is made from, and how.
macro_rules! operand {
    ($operand:ident: $([$($generic:tt)*] $dim:ty, $of:ident: $from:ty => $made:expr;)*) => { $(
        impl<'a, T: Element, $($generic)*> From<$from> for $operand<'a, T, $dim> {
            #[inline]
            fn from($of: $from) -> Self {
                $made
            }
        }
    )* };
}
operand! { OperandRef:
    [D: Dimension] D, a: &'a DeviceArray<T, D> => OperandRef::Device(a);
    [S: Data<Elem = T>, D: Dimension] D, a: &'a ArrayBase<S, D> => OperandRef::Host(a.view());
    [D: Dimension] D, a: &'a ArrayRef<T, D> => OperandRef::Host(a.view());
    [D: Dimension] D, a: ArrayView<'a, T, D> => OperandRef::Host(a);
    [] Ix1, x: &'a [T] => OperandRef::Host(x.into());
    [] Ix1, x: &'a Vec<T> => OperandRef::Host(x.into());
    [const N: usize] Ix1, x: &'a [T; N] => OperandRef::Host(x.into());
}
operand! { OperandMut:
    [D: Dimension] D, y: &'a mut DeviceArray<T, D> => OperandMut::Device(y);
    [D: Dimension] D, y: DeviceViewMut<'a, T, D> => OperandMut::View(y);
    [D: Dimension + Copy] D, y: &'a mut DeviceViewMut<'_, T, D> => OperandMut::View(y.view_mut());
    [S: DataMut<Elem = T>, D: Dimension] D, y: &'a mut ArrayBase<S, D> => OperandMut::Host(y.view_mut());
    [D: Dimension] D, y: &'a mut ArrayRef<T, D> => OperandMut::Host(y.view_mut());
    [D: Dimension] D, y: ArrayViewMut<'a, T, D> => OperandMut::Host(y);
    [] Ix1, y: &'a mut [T] => OperandMut::Host(y.into());
    [] Ix1, y: &'a mut Vec<T> => OperandMut::Host(y.as_mut_slice().into());
    [const N: usize] Ix1, y: &'a mut [T; N] => OperandMut::Host(y.as_mut_slice().into());
}

/// Arrays and views, and slices and `Vec`s as vectors, that can be made resident:
/// `a.to_device(&device)?`.
///
/// An `ArrayD` is given its number of axes first, by ndarray's `into_dimensionality::<Ix2>()`: the type
/// of a resident array has it.
///
/// ```
/// use gemv::{GpuDot, ToDevice, device};
/// use ndarray::{array, s};
///
/// let device = device("reference")?; // or "cuda:0"
/// let a = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let resident = a.slice(s![.., ..2]).to_device(&device)?; // any view
/// let x = [1.0, -1.0].to_device(&device)?;
/// assert_eq!(resident.gpu_dot(&x).download()?, array![-1.0, -1.0]);
/// # Ok::<(), gemv::Error>(())
/// ```
pub trait ToDevice: ArrayLike {
    /// A copy on this device; what is resident there already is shared.
    ///
    /// # Errors
    /// As [`Device::matrix`].
    fn to_device(&self, device: &Device) -> Result<Self::Resident>
    where
        Self: Upload,
    {
        self.upload(device)
    }
}

impl<A: ArrayLike + ?Sized> ToDevice for A {}

/// What [`ToDevice`] has a copy of, for bounds: `A: Upload<Resident = DeviceMatrix<f32>>`.
///
/// ```
/// use gemv::{Device, DeviceMatrix, Result, ToDevice, Upload, device};
/// use ndarray::array;
///
/// fn twice<A: Upload<Resident = DeviceMatrix<f32>>>(a: &A, there: &Device) -> Result<DeviceMatrix<f32>> {
///     let mut a = a.upload(there)?;
///     a *= 2.0;
///     Ok(a)
/// }
/// assert_eq!(twice(&array![[1.0, 2.0]], &device("reference")?)?.download()?, array![[2.0, 4.0]]);
/// # Ok::<(), gemv::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made resident on a device",
    note = "`{Self}` can be made resident if it is an array or view with elements of f32, f64, f16, bf16, Complex<f32> or \
            Complex<f64>, which `a.mapv(f64::from)` converts to, and with a fixed number of axes, which \
            `a.into_dimensionality::<Ix2>()` gives an `ArrayD`; or a slice or `Vec` of such numbers: a `Vec<Vec<_>>` \
            becomes a matrix by `Array2::from_shape_vec((m, n), rows.concat())`"
)]
pub trait Upload {
    /// The [`DeviceArray`] of as many axes.
    type Resident;

    /// As [`ToDevice::to_device`].
    ///
    /// # Errors
    /// As [`Device::matrix`].
    fn upload(&self, device: &Device) -> Result<Self::Resident>;
}

macro_rules! upload {
    ($([$($generic:tt)*] $from:ty => $resident:ty;)*) => { $(
        #[diagnostic::do_not_recommend]
        impl<$($generic)*> Upload for $from {
            type Resident = $resident;
            fn upload(&self, device: &Device) -> Result<$resident> {
                device.array(self)
            }
        }
    )* };
}
upload! {
    [T: Element, D: Dimension + Copy] ArrayRef<T, D> => DeviceArray<T, D>;
    [S: Data<Elem: Element>, D: Dimension + Copy] ArrayBase<S, D> => DeviceArray<S::Elem, D>;
    [T: Element, D: Dimension + Copy] DeviceArray<T, D> => DeviceArray<T, D>;
    [T: Element] [T] => DeviceVector<T>;
    [T: Element] Vec<T> => DeviceVector<T>;
    [T: Element, const N: usize] [T; N] => DeviceVector<T>;
}

impl Device {
    /// Uploads an array of any number of axes and any strides, without copying it first where it
    /// has no gaps. A product takes 1 to 3 axes.
    ///
    /// An array that is resident here already is not copied; one of another device comes by way of
    /// the host.
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{Array3, array};
    ///
    /// let stack = device.array(&Array3::from_shape_fn((2, 3, 3), |(b, i, j)| (b + i * j) as f32))?;
    /// let y = stack.gpu_dot(&array![[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]);
    /// assert_eq!(y.download()?, array![[0.0, 0.0, 0.0], [1.0, 3.0, 5.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), or the driver's refusal.
    pub fn array<'a, T: Element, D: Dimension + Copy + 'a>(
        &self,
        a: impl Into<OperandRef<'a, T, D>>,
    ) -> Result<DeviceArray<T, D>> {
        match a.into() {
            OperandRef::Host(a) => DeviceArray::upload(self, a),
            OperandRef::Device(a) if a.device().is(self) => Ok(a.clone()),
            OperandRef::Device(a) => DeviceArray::upload(self, a.download()?.view()),
        }
    }

    /// Uploads a matrix; as [`array`](Self::array).
    ///
    /// ```
    /// # gemv::Engine::global().set_default("reference").unwrap();
    /// # use gemv::{Engine, GpuDot};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{array, s};
    ///
    /// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    /// let resident = device.matrix(&a.slice(s![.., ..;-2]))?; // any view
    /// assert_eq!(resident.dim(), (2, 2));
    /// for x in [array![1.0, 0.0], array![0.0, 1.0]] {
    ///     assert_eq!(resident.gpu_dot(&x).download()?, a.slice(s![.., ..;-2]).gpu_dot(&x));
    /// }
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn matrix<'a, T: Element>(
        &self,
        a: impl Into<MatrixRef<'a, T>>,
    ) -> Result<DeviceMatrix<T>> {
        self.array(a)
    }

    /// Uploads a vector; as [`array`](Self::array).
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = array![[1.0, 2.0], [3.0, 4.0]];
    /// let x = device.vector(&a.column(1))?;
    /// assert_eq!(x.download()?, array![2.0, 4.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn vector<'x, T: Element>(
        &self,
        x: impl Into<VectorRef<'x, T>>,
    ) -> Result<DeviceVector<T>> {
        self.array(x)
    }
}
