//! Parts of resident arrays, to be written where they lie.

use std::marker::PhantomData;
use std::ops::RangeBounds;

use ndarray::{Axis, Dimension, Ix0, Ix1, Ix2, RemoveAxis, SliceArg};

use crate::device::Device;
use crate::memory::{Memory, Owner, Window};
use crate::resident::{DeviceArray, DeviceMatrix, DeviceVector};
use crate::views::checked;
use crate::{Element, Error, Result};

/// A part of a resident array, to be written where it lies, as ndarray's `ArrayViewMut` on the host.
///
/// It is the place of a product, and of the elementwise steps that a [`DeviceArray`] has. An array that
/// shares its memory is given memory of its own when the view is made, so no clone ever sees what is
/// written: see [`view_mut`](DeviceArray::view_mut) for what that costs.
///
/// ```
/// use gemv::{GpuDot, device};
/// use ndarray::array;
///
/// let device = device("reference")?; // or "cuda:0"
/// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
/// let mut basis = device.zeros((2, 3))?;
/// a.gpu_dot_into(&[1.0, 1.0], basis.column_mut(1)?); // nothing but this column is touched
/// basis.column_mut(2)?.axpy(0.5, &a.column(0))?;
/// assert_eq!(basis.download()?, array![[0.0, 3.0, 0.5], [0.0, 7.0, 1.5]]);
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceViewMut<'a, T: Element, D> {
    device: &'a Device,
    window: Window<&'a mut dyn Memory, D>,
    element: PhantomData<T>,
}

impl<'a, T: Element, D: Dimension + Copy> DeviceViewMut<'a, T, D> {
    /// An array that is the only owner of its memory.
    pub(crate) fn of(array: &'a mut DeviceArray<T, D>) -> Self {
        let (device, window) = array.place();
        DeviceViewMut { device, window, element: PhantomData }
    }

    /// Number of entries along each axis.
    #[inline]
    pub fn raw_dim(&self) -> D {
        self.window.dim
    }

    /// The device it lives on.
    #[inline]
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Where its entries lie.
    #[inline]
    pub fn window(self) -> Window<&'a mut dyn Memory, D> {
        self.window
    }

    /// The same part, borrowed.
    #[inline]
    pub fn view_mut(&mut self) -> DeviceViewMut<'_, T, D> {
        let Window { memory, first, dim, strides } = &mut self.window;
        let window = Window { memory: &mut **memory, first: *first, dim: *dim, strides: *strides };
        DeviceViewMut { device: self.device, window, element: PhantomData }
    }

    /// The same part, for a shorter time.
    #[inline]
    pub(crate) fn reborrow<'b>(self) -> DeviceViewMut<'b, T, D>
    where
        'a: 'b,
    {
        let Window { memory, first, dim, strides } = self.window;
        let window = Window { memory: memory as &mut dyn Memory, first, dim, strides };
        DeviceViewMut { device: self.device, window, element: PhantomData }
    }

    /// One entry along an axis, with all of the others.
    ///
    /// # Panics
    /// If there is no such axis or no such entry.
    #[must_use]
    #[track_caller]
    pub fn index_axis(self, axis: Axis, index: usize) -> DeviceViewMut<'a, T, D::Smaller>
    where
        D: RemoveAxis,
    {
        let axis = checked(axis, self.window.dim.ndim());
        let window = self.window.index_axis(axis, index);
        DeviceViewMut { device: self.device, window, element: PhantomData }
    }

    /// With an axis of one entry before this one; see [`DeviceArray::insert_axis`].
    ///
    /// # Panics
    /// If there is no such axis, nor one before it.
    #[must_use]
    #[track_caller]
    pub fn insert_axis(self, axis: Axis) -> DeviceViewMut<'a, T, D::Larger>
    where
        D::Larger: Copy,
    {
        let axes = self.window.dim.ndim();
        assert!(axis.index() <= axes, "axis {} of {axes} and a new one", axis.index());
        let window = self.window.insert_axis(axis);
        DeviceViewMut { device: self.device, window, element: PhantomData }
    }

    /// A part of the same block of memory by its place; see [`DeviceArray::window_at`].
    ///
    /// # Errors
    /// [`Error::Operand`](crate::Error::Operand) if it does not lie in the block, or two entries may be at one place.
    pub fn window_at<E: Dimension + Copy>(
        self,
        first: usize,
        dim: E,
        strides: E,
    ) -> Result<DeviceViewMut<'a, T, E>> {
        let window = Window { memory: self.window.memory, first, dim, strides };
        window.check_result("a view", window.memory.len())?;
        Ok(DeviceViewMut { device: self.device, window, element: PhantomData })
    }

    /// The part that ndarray's [`s![..]`](ndarray::s) means; see [`DeviceArray::slice`].
    ///
    /// # Panics
    /// As [`DeviceArray::slice`].
    #[must_use]
    #[track_caller]
    pub fn slice_move<I: SliceArg<D>>(self, info: I) -> DeviceViewMut<'a, T, I::OutDim> {
        let window = self.window.slice(info.as_ref());
        DeviceViewMut { device: self.device, window, element: PhantomData }
    }

    /// Every `step`-th of a range of an axis, backwards if `step` is negative.
    ///
    /// # Panics
    /// If there is no such axis, the range ends beyond its last entry or before it starts, or `step`
    /// is 0.
    #[must_use]
    #[track_caller]
    pub fn step_axis(self, axis: Axis, range: impl RangeBounds<usize>, step: isize) -> Self {
        let axis = checked(axis, self.window.dim.ndim());
        DeviceViewMut { window: self.window.step_axis(axis, range, step), ..self }
    }
}

impl<'a, T: Element> DeviceViewMut<'a, T, Ix0> {
    /// A number as a vector of one entry.
    pub(crate) fn into_vector(self) -> DeviceViewMut<'a, T, Ix1> {
        let Window { memory, first, .. } = self.window;
        let window = Window { memory, first, dim: Ix1(1), strides: Ix1(1) };
        DeviceViewMut { device: self.device, window, element: PhantomData }
    }
}

impl<T: Element, D: Dimension + Copy> DeviceArray<T, D> {
    /// All of it, to be written where it lies.
    ///
    /// **An array that shares its memory with a clone or a view is copied first**, whole, on the device: in place of one
    /// column, all of the matrix is read and written. So take views after the writes, or drop them before. The log says when
    /// it happens, at the level debug; [`try_view_mut`](Self::try_view_mut) refuses.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::{Axis, array};
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// let before = a.clone();
    /// a.view_mut()?.step_axis(Axis(0), 1.., 1).fill(0.0)?;
    /// assert_eq!(a.download()?, array![[1.0, 2.0], [0.0, 0.0]]);
    /// assert_eq!(before.download()?, array![[1.0, 2.0], [3.0, 4.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) or the driver's refusal, of that copy;
    /// [`Error::Shape`](crate::Error::Shape) if an array of more than three axes needs one.
    pub fn view_mut(&mut self) -> Result<DeviceViewMut<'_, T, D>> {
        self.make_unique(true)?;
        Ok(DeviceViewMut::of(self))
    }

    /// As [`view_mut`](Self::view_mut), and never a copy: to write an array whose memory is shared is an error.
    ///
    /// ```
    /// # use gemv::{Engine, Error};
    /// # use ndarray::{Axis, array};
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut basis = device.zeros((2, 3))?;
    /// let first = basis.column(0); // alive: a write to any column would copy all of them
    /// let e = basis.try_view_mut().unwrap_err();
    /// assert!(matches!(e, Error::Shared { bytes: 48, .. }));
    /// drop(first);
    /// basis.try_view_mut()?.index_axis(Axis(1), 2).assign(&[1.0, 2.0])?;
    /// assert_eq!(basis.download()?, array![[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shared`] if a clone or a view shares the memory, or several entries of this array lie at one place;
    /// [`Error::Operand`] of foreign memory that may not be written.
    pub fn try_view_mut(&mut self) -> Result<DeviceViewMut<'_, T, D>> {
        if self.memory.owner() != Owner::Backend || self.is_unique() {
            // Nothing is copied then.
            return self.view_mut();
        }
        Err(Error::Shared { device: self.device.info().id.clone(), bytes: self.bytes() })
    }

    /// The part that ndarray's [`s![..]`](ndarray::s) means, to be written where it lies; see [`view_mut`](Self::view_mut).
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{Array3, s};
    ///
    /// let mut batch = device.zeros((2, 2, 3))?;
    /// batch.slice_mut(s![1, .., ..2])?.fill(1.0)?;
    /// let mut want = Array3::zeros((2, 2, 3));
    /// want.slice_mut(s![1, .., ..2]).fill(1.0);
    /// assert_eq!(batch.download()?, want);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`view_mut`](Self::view_mut).
    ///
    /// # Panics
    /// As [`slice`](Self::slice).
    #[track_caller]
    pub fn slice_mut<I>(&mut self, info: I) -> Result<DeviceViewMut<'_, T, I::OutDim>>
    where
        I: SliceArg<D, OutDim: Copy>,
    {
        Ok(self.view_mut()?.slice_move(info))
    }
}

impl<T: Element> DeviceMatrix<T> {
    /// One row, to be written where it lies; see [`view_mut`](Self::view_mut).
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// a.row_mut(1)?.scal(10.0)?;
    /// assert_eq!(a.download()?, array![[1.0, 2.0], [30.0, 40.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`view_mut`](Self::view_mut).
    ///
    /// # Panics
    /// If there is no such row.
    #[track_caller]
    pub fn row_mut(&mut self, index: usize) -> Result<DeviceViewMut<'_, T, Ix1>> {
        Ok(self.view_mut()?.index_axis(Axis(0), index))
    }

    /// One column, to be written where it lies; see [`view_mut`](Self::view_mut).
    ///
    /// **While a view of the matrix is alive, the whole matrix is copied first**, not the column: a loop that keeps
    /// `m.column(j)` and writes `m.column_mut(j + 1)?` copies m × n elements in each turn. Views that are dropped before the
    /// write cost nothing, and [`try_view_mut`](Self::try_view_mut) is an error where a copy would be made:
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::{Axis, array};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[2.0, 0.0], [0.0, 3.0]])?;
    /// let mut powers = device.from_shape_fn((2, 4), |(_, k)| if k == 0 { 1.0 } else { 0.0 })?;
    /// for k in 0..3 {
    ///     let next = a.try_gpu_dot(&powers.column(k))?; // the view is dropped here
    ///     powers.try_view_mut()?.index_axis(Axis(1), k + 1).assign(&next)?; // so nothing is copied
    /// }
    /// assert_eq!(powers.download()?, array![[1.0, 2.0, 4.0, 8.0], [1.0, 3.0, 9.0, 27.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`view_mut`](Self::view_mut).
    ///
    /// # Panics
    /// If there is no such column.
    #[track_caller]
    pub fn column_mut(&mut self, index: usize) -> Result<DeviceViewMut<'_, T, Ix1>> {
        Ok(self.view_mut()?.index_axis(Axis(1), index))
    }

    /// Some of the rows, to be written where they lie; see [`view_mut`](Self::view_mut).
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0]])?;
    /// let mut y = device.zeros((3, 2))?;
    /// a.gpu_dot_into(&device.matrix(&array![[1.0, 0.0], [0.0, 1.0]])?, y.rows_mut(1..2)?);
    /// assert_eq!(y.download()?, array![[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`view_mut`](Self::view_mut).
    ///
    /// # Panics
    /// If the range ends beyond the last row, or before it starts.
    #[track_caller]
    pub fn rows_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceViewMut<'_, T, Ix2>> {
        Ok(self.view_mut()?.step_axis(Axis(0), range, 1))
    }

    /// Some of the columns, to be written where they lie; see [`view_mut`](Self::view_mut).
    ///
    /// # Errors
    /// As [`view_mut`](Self::view_mut).
    ///
    /// # Panics
    /// If the range ends beyond the last column, or before it starts.
    #[track_caller]
    pub fn columns_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceViewMut<'_, T, Ix2>> {
        Ok(self.view_mut()?.step_axis(Axis(1), range, 1))
    }
}

impl<T: Element> DeviceVector<T> {
    /// Every `step`-th of some of the entries, to be written where they lie; see
    /// [`view_mut`](Self::view_mut).
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut x = device.zeros(5)?;
    /// x.step_mut(1.., 2)?.assign(&[1.0, 3.0])?;
    /// assert_eq!(x.download()?, array![0.0, 1.0, 0.0, 3.0, 0.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`view_mut`](Self::view_mut).
    ///
    /// # Panics
    /// If the range ends beyond the last entry, or before it starts, or `step` is 0.
    #[track_caller]
    pub fn step_mut(
        &mut self,
        range: impl RangeBounds<usize>,
        step: isize,
    ) -> Result<DeviceViewMut<'_, T, Ix1>> {
        Ok(self.view_mut()?.step_axis(Axis(0), range, step))
    }
}
