//! Arrays that live on a device: upload once, multiply many times.

use std::marker::PhantomData;
use std::ops::RangeBounds;

use ndarray::{Array, Array2, ArrayView, Axis, Dimension, Ix0, Ix1, Ix2, RemoveAxis, ShapeBuilder};

use crate::device::Device;
use crate::element::{Slices, SlicesMut};
use crate::host::{entries, host_array, host_zeros, span};
use crate::memory::{Memory, Owner, SharedMemory, Window};
use crate::step::VectorJob;
use crate::{Desc, Element, Error, Result, ShapeMismatch};

/// An array that lives on a device, as ndarray's `Array<T, D>` on the host. Cloning is cheap: clones
/// and views share the memory.
///
/// A product written to an array whose memory is shared goes to memory of its own first (as with
/// [`ndarray::ArcArray`]), so no other clone ever sees it.
///
/// ```
/// use gemv::{GpuDot, device};
/// use ndarray::array;
///
/// let device = device("reference")?; // or "cuda:0"
/// let swap = device.matrix(&array![[0.0, 1.0], [1.0, 0.0]])?;
/// let x = device.vector(&array![1.0, 2.0])?;
///
/// let mut y = x.clone(); // of the same memory,
/// swap.gemv(1.0, &x, 0.0, &mut y); // until it is written
/// assert_eq!(y.download()?, array![2.0, 1.0]);
/// assert_eq!(x.download()?, array![1.0, 2.0]);
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceArray<T: Element, D> {
    pub(crate) device: Device,
    pub(crate) memory: SharedMemory,
    pub(crate) first: usize,
    pub(crate) dim: D,
    pub(crate) strides: D,
    pub(crate) element: PhantomData<T>,
}

/// A matrix that lives on a device.
///
/// ```
/// use gemv::{GpuDot, device};
/// use ndarray::array;
///
/// let device = device("reference")?; // or "cuda:0"
/// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
/// let y = a.gpu_dot(&array![1.0, -1.0]); // resident as well
/// assert_eq!(y.download()?, array![-1.0, -1.0, -1.0]);
/// assert_eq!(a.rows(1..).t().dim(), (2, 2));
/// assert_eq!((a.desc().to_string(), a.strides()), ("f64 row 3x2".into(), (2, 1)));
/// # Ok::<(), gemv::Error>(())
/// ```
pub type DeviceMatrix<T> = DeviceArray<T, Ix2>;

/// A number that lives on a device: the result of a dot product that the host does not wait for.
///
/// ```
/// use gemv::device;
/// use ndarray::array;
///
/// let device = device("reference")?;
/// let (x, mut s) = (device.vector(&array![3.0, 4.0])?, device.scalar(0.0)?);
/// x.dot_into(&x, &mut s)?;
/// assert_eq!(s.value()?, 25.0);
/// # Ok::<(), gemv::Error>(())
/// ```
pub type DeviceScalar<T> = DeviceArray<T, Ix0>;

/// A vector that lives on a device.
///
/// ```
/// use gemv::device;
/// use ndarray::array;
///
/// let x = device("reference")?.vector(&array![1.0, 2.0])?;
/// assert_eq!((x.len(), x.is_empty(), x.stride()), (2, false, 1));
/// # Ok::<(), gemv::Error>(())
/// ```
pub type DeviceVector<T> = DeviceArray<T, Ix1>;

impl<T: Element, D: Dimension + Copy> DeviceArray<T, D> {
    pub(crate) fn upload(device: &Device, a: ArrayView<'_, T, D>) -> Result<Self> {
        let span = span(&a)?;
        let memory = device.backend().upload(T::any::<Slices>(&span.data))?.into();
        let (device, element) = (device.clone(), PhantomData);
        let (dim, strides) = (a.raw_dim(), span.strides);
        Ok(DeviceArray { device, memory, first: span.first, dim, strides, element })
    }

    /// Zeros, row by row.
    pub(crate) fn zeros(device: &Device, dim: D) -> Result<Self> {
        // More than can be addressed is the backend's to refuse.
        let len = entries(&dim);
        let mut strides = dim;
        let mut apart = 1usize;
        for axis in (0..dim.ndim()).rev() {
            strides[axis] = apart;
            apart = apart.saturating_mul(dim[axis]);
        }
        let memory = device.backend().alloc(T::DTYPE, len)?.into();
        let (device, element) = (device.clone(), PhantomData);
        Ok(DeviceArray { device, memory, first: 0, dim, strides, element })
    }

    /// Number of entries along each axis.
    #[inline]
    pub fn raw_dim(&self) -> D {
        self.dim
    }

    /// Number of entries along each axis, as ndarray's `dim`: a number, a pair or a triple.
    #[inline]
    pub fn dim(&self) -> D::Pattern {
        self.dim.into_pattern()
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        entries(&self.dim)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device it lives on.
    #[inline]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Where its entries lie.
    #[inline]
    pub fn window(&self) -> Window<&dyn Memory, D> {
        let DeviceArray { memory, first, dim, strides, .. } = self;
        Window { memory: &**memory, first: *first, dim: *dim, strides: *strides }
    }

    /// Where its entries lie, to write to; `None` while a clone or view shares the block, and of memory of another library
    /// that may not be written.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// let shared = y.clone();
    /// assert!(y.window_mut().is_none());
    /// drop(shared);
    /// assert_eq!(y.window_mut().map(|window| window.memory.len()), Some(2));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    #[inline]
    pub fn window_mut(&mut self) -> Option<Window<&mut dyn Memory, D>> {
        let DeviceArray { memory, first, dim, strides, .. } = self;
        let memory = memory.get_mut()?;
        Some(Window { memory, first: *first, dim: *dim, strides: *strides })
    }

    /// A copy on the host, in standard layout.
    ///
    /// Waits for what is under way on the device. From a view with steps, what lies between its
    /// entries is copied as well, and left out.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(a.t().download()?, array![[1.0, 3.0], [2.0, 4.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] on the host, or the driver's refusal.
    pub fn download(&self) -> Result<Array<T, D>> {
        let host = "the host";
        let mut array = host_array::<T, D>(host, self.dim)?;
        let (first, len) = self.window().range();
        if len == 0 {
            return Ok(array);
        }
        let backend = self.device.backend();
        if self.is_standard() {
            let block = array.as_slice_mut().expect("new, in standard layout");
            backend.download(&*self.memory, first, T::any::<SlicesMut>(block))?;
            return Ok(array);
        }
        let mut block = host_zeros::<T>(host, len)?;
        backend.download(&*self.memory, first, T::any::<SlicesMut>(&mut block))?;
        let window = Window { memory: (), first: self.first - first, ..self.placed() };
        array.assign(&window.view(&block));
        Ok(array)
    }

    fn placed(&self) -> Window<(), D> {
        Window { memory: (), first: self.first, dim: self.dim, strides: self.strides }
    }

    /// Whether the entries lie one after another, the last axis first.
    pub(crate) fn is_standard(&self) -> bool {
        let mut apart = 1;
        for axis in (0..self.dim.ndim()).rev() {
            if self.dim[axis] > 1 && self.strides[axis] != apart {
                return false;
            }
            apart = apart.wrapping_mul(self.dim[axis]);
        }
        true
    }

    /// Makes this array the only owner of its memory, each entry at a place of its own, so that it may
    /// be written where it lies; its entries are kept on request. Returns the array as it was, if it
    /// had to be replaced.
    #[inline]
    pub(crate) fn make_unique(&mut self, keep: bool) -> Result<Option<Self>> {
        if self.memory.get_mut().is_some() && self.window().is_distinct() {
            return Ok(None);
        }
        self.replace(keep).map(Some)
    }

    /// Gives this array memory of its own; returns it as it was.
    #[cold]
    fn replace(&mut self, keep: bool) -> Result<Self> {
        if let Owner::Foreign { writable } = self.memory.owner() {
            // Its owner would not see what is written elsewhere.
            let operand = "an array of foreign memory";
            self.window().check_result(operand, self.memory.len())?;
            let reason = match writable {
                true => "is written while a clone or a view of it is there",
                false => "is written, and its memory is there to be read",
            };
            return Err(Error::Operand { operand, reason: reason.into() });
        }
        if self.dim.ndim() > 3 {
            return Err(too_many_axes(self.dim.ndim()));
        }
        let mut own = Self::zeros(&self.device, self.dim)?;
        if keep && !self.is_empty() {
            let y = own.window_mut().expect("new memory, which nobody shares");
            let job = VectorJob::<T>::assign(self.window(), y);
            self.device.backend().vector(job.erase())?;
        }
        Ok(std::mem::replace(self, own))
    }

    /// Runs `write` on this array as the only owner of its memory. If it fails, an array that had to be
    /// replaced stays as it was.
    pub(crate) fn written(
        &mut self,
        keep: bool,
        write: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before = self.make_unique(keep)?;
        let done = write(self);
        if let (Err(_), Some(before)) = (&done, before) {
            *self = before;
        }
        done
    }

    /// Its device, and where its entries lie, to write to.
    ///
    /// # Panics
    /// If its memory is shared.
    pub(crate) fn place(&mut self) -> (&Device, Window<&mut dyn Memory, D>) {
        let DeviceArray { device, memory, first, dim, strides, .. } = self;
        let memory = memory.get_mut().expect("made the only owner of its memory");
        (device, Window { memory, first: *first, dim: *dim, strides: *strides })
    }

    /// Makes this array the only owner of its memory, from whose beginning its entries follow one
    /// another, the last axis first.
    pub(crate) fn make_own(&mut self) -> Result<()> {
        let placed = self.is_standard() && self.first == 0;
        if !placed || self.memory.get_mut().is_none() {
            self.replace(true)?;
        }
        Ok(())
    }

    /// An array in the same block of memory, which it shares: entry (i, j, ..) lies at
    /// `first + i * strides[0] + j * strides[1] + ..`, in elements from the beginning of the block. Strides are `isize` as
    /// ndarray keeps them: `-1isize as usize` goes backwards. For callers who have windows as numbers.
    ///
    /// ```
    /// # use gemv::Engine;
    /// use gemv::ndarray::{Ix1, Ix2, array};
    ///
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// assert_eq!(a.window_at(1, Ix2(2, 2), Ix2(3, 1))?.download()?, array![[2.0, 3.0], [5.0, 6.0]]);
    /// assert_eq!(a.window_at(5, Ix1(3), Ix1(-2isize as usize))?.download()?, array![6.0, 4.0, 2.0]);
    /// assert!(a.window_at(1, Ix1(6), Ix1(1)).is_err()); // there are six elements
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Operand`] if it does not lie in the block.
    pub fn window_at<E: Dimension + Copy>(
        &self,
        first: usize,
        dim: E,
        strides: E,
    ) -> Result<DeviceArray<T, E>> {
        Window { memory: (), first, dim, strides }.check("a view", self.memory.len())?;
        let (device, memory) = (self.device.clone(), self.memory.clone());
        Ok(DeviceArray { device, memory, first, dim, strides, element: PhantomData })
    }

    /// One entry along an axis, with all of the others, as ndarray's `index_axis`; of the same memory:
    /// one matrix of a batch, one row or column of a matrix.
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{Array3, Axis, array};
    ///
    /// let stack = device.array(&Array3::from_shape_fn((2, 2, 2), |(b, i, j)| (b + i * j) as f32))?;
    /// let second = stack.index_axis(Axis(0), 1);
    /// assert_eq!(second.gpu_dot(&[1.0, 10.0]).download()?, array![11.0, 21.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such axis or no such entry.
    #[must_use]
    #[track_caller]
    pub fn index_axis(&self, axis: Axis, index: usize) -> DeviceArray<T, D::Smaller>
    where
        D: RemoveAxis,
    {
        let axes = self.dim.ndim();
        assert!(axis.index() < axes, "axis {} of {axes}", axis.index());
        let Window { first, dim, strides, .. } = self.placed().index_axis(axis.index(), index);
        let (device, memory) = (self.device.clone(), self.memory.clone());
        DeviceArray { device, memory, first, dim, strides, element: PhantomData }
    }

    /// Every `step`-th of a range of an axis.
    #[track_caller]
    fn step_axis(&self, axis: usize, range: impl RangeBounds<usize>, step: isize) -> Self {
        let Window { first, dim, strides, .. } = self.placed().step_axis(axis, range, step);
        DeviceArray { first, dim, strides, ..self.clone() }
    }
}

impl<T: Element> DeviceMatrix<T> {
    /// Row and column stride, in elements.
    #[inline]
    pub fn strides(&self) -> (isize, isize) {
        (self.strides[0] as isize, self.strides[1] as isize)
    }

    /// What is asked of a product with it and one vector.
    #[inline]
    pub fn desc(&self) -> Desc {
        let first = self.first.wrapping_mul(T::DTYPE.bytes());
        Desc::new(T::DTYPE, self.dim[0], self.dim[1], self.strides(), first)
    }

    /// The transpose, n × m, of the same memory.
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// let x = a.t().gpu_dot(&array![1.0, -1.0]); // Aᵀ of the one copy on the device
    /// assert_eq!(x.download()?, array![-3.0, -3.0, -3.0]);
    /// assert_eq!((a.t().dim(), a.t().strides()), ((3, 2), (1, 3)));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    #[must_use]
    pub fn t(&self) -> Self {
        let mut t = self.clone();
        t.dim = Ix2(self.dim[1], self.dim[0]);
        t.strides = Ix2(self.strides[1], self.strides[0]);
        t
    }

    /// Some of the rows, of the same memory.
    ///
    /// A row's product depends on that row and x alone, so the product of the slice is the slice of
    /// the product, bit for bit.
    ///
    /// ```
    /// # gemv::Engine::global().set_default("reference").unwrap();
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::{Array2, s};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = Array2::from_shape_fn((6, 300), |(i, j)| ((7 * i + j) as f32).cos());
    /// let (x, resident) = (a.row(0).to_owned(), device.matrix(&a)?);
    /// let y = a.gpu_dot(&x);
    /// assert_eq!(resident.rows(2..5).gpu_dot(&x).download()?, y.slice(s![2..5]));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last row, or before it starts.
    #[must_use]
    #[track_caller]
    pub fn rows(&self, range: impl RangeBounds<usize>) -> Self {
        self.step_rows(range, 1)
    }

    /// Every `step`-th of some of the rows, backwards if `step` is negative, as
    /// `slice(s![range;step, ..])` of ndarray.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::{array, s};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = array![[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]];
    /// let resident = device.matrix(&a)?;
    /// assert_eq!(resident.step_rows(.., 2).download()?, array![[1.0, 10.0], [3.0, 30.0]]);
    /// // From the end of the range, as in ndarray.
    /// assert_eq!(resident.step_rows(1.., -2).download()?, a.slice(s![1..;-2, ..]));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last row, or before it starts, or `step` is 0.
    #[must_use]
    #[track_caller]
    pub fn step_rows(&self, range: impl RangeBounds<usize>, step: isize) -> Self {
        self.step_axis(0, range, step)
    }

    /// Every `step`-th of some of the columns; see [`step_rows`](Self::step_rows).
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// // Interleaved: a left and a right channel in each row.
    /// let both = device.matrix(&array![[1.0, -1.0, 2.0, -2.0], [3.0, -3.0, 4.0, -4.0]])?;
    /// let right = both.step_columns(1.., 2);
    /// assert_eq!(right.gpu_dot(&array![1.0, 1.0]).download()?, array![-3.0, -7.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`step_rows`](Self::step_rows).
    #[must_use]
    #[track_caller]
    pub fn step_columns(&self, range: impl RangeBounds<usize>, step: isize) -> Self {
        self.step_axis(1, range, step)
    }

    /// Some of the columns, of the same memory.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// assert_eq!(a.columns(1..).download()?, array![[2.0, 3.0], [5.0, 6.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last column, or before it starts.
    #[must_use]
    #[track_caller]
    pub fn columns(&self, range: impl RangeBounds<usize>) -> Self {
        self.step_columns(range, 1)
    }

    /// One row, of the same memory.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(a.row(1).download()?, array![3.0, 4.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    #[track_caller]
    pub fn row(&self, index: usize) -> DeviceVector<T> {
        self.index_axis(Axis(0), index)
    }

    /// One column, of the same memory.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(a.column(1).download()?, array![2.0, 4.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such column.
    #[must_use]
    #[track_caller]
    pub fn column(&self, index: usize) -> DeviceVector<T> {
        self.index_axis(Axis(1), index)
    }
}

impl<T: Element> DeviceVector<T> {
    /// Stride in elements.
    #[inline]
    pub fn stride(&self) -> isize {
        self.strides[0] as isize
    }

    /// Every `step`-th of some of the entries, backwards if `step` is negative; of the same memory.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.vector(&array![0.0, 1.0, 2.0, 3.0, 4.0])?;
    /// assert_eq!(x.step(1.., 2).download()?, array![1.0, 3.0]);
    /// let back = x.step(..4, -1);
    /// assert_eq!((back.download()?, back.stride()), (array![3.0, 2.0, 1.0, 0.0], -1));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last entry, or before it starts, or `step` is 0.
    #[must_use]
    #[track_caller]
    pub fn step(&self, range: impl RangeBounds<usize>, step: isize) -> Self {
        self.step_axis(0, range, step)
    }

    /// The first m · n entries as an m × n matrix of the same memory: row by row, or column by column
    /// where the shape says so with ndarray's [`f()`](ShapeBuilder::f).
    ///
    /// ```
    /// # use gemv::{Engine, ToDevice};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{ShapeBuilder, array};
    ///
    /// let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].to_device(&device)?;
    /// let rows = x.as_matrix((2, 3));
    /// assert_eq!(rows.download()?, array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    /// let columns = x.as_matrix((2, 3).f()); // as Fortran and BLAS have it
    /// assert_eq!(columns.download()?, array![[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there are fewer entries, or the stride is not 1.
    #[must_use]
    #[track_caller]
    pub fn as_matrix(&self, shape: impl ShapeBuilder<Dim = Ix2>) -> DeviceMatrix<T> {
        let shape = shape.into_shape_with_order();
        let (m, n) = shape.raw_dim().into_pattern();
        let needed = m.saturating_mul(n);
        assert!(needed <= self.len(), "a {m} x {n} matrix of {} entries", self.len());
        assert!(self.stride() == 1 || needed <= 1, "a matrix of entries that lie apart");
        // A shape does not tell its order, but an array of it does. Entries of no size need no memory.
        // Where one row or column is all there is, both orders are one.
        let by_columns = m > 1 && n > 1 && Array2::<()>::uninit(shape).strides()[0] == 1;
        let strides = if by_columns { Ix2(1, m) } else { Ix2(n, 1) };
        self.matrix(Ix2(m, n), strides)
    }

    /// A matrix of one row: a dot product's left operand.
    pub(crate) fn as_row(&self) -> DeviceMatrix<T> {
        self.matrix(Ix2(1, self.len()), Ix2(self.len(), self.strides[0]))
    }

    fn matrix(&self, dim: Ix2, strides: Ix2) -> DeviceMatrix<T> {
        let (device, memory) = (self.device.clone(), self.memory.clone());
        DeviceArray { device, memory, first: self.first, dim, strides, element: PhantomData }
    }
}

/// The error for an array of more axes than a device takes.
pub(crate) fn too_many_axes(axes: usize) -> Error {
    Error::Shape(ShapeMismatch::Step { axes, x: [0; 3], y: [0; 3] })
}
