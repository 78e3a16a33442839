//! Arrays that live on a device: upload once, multiply many times.

use std::marker::PhantomData;

use ndarray::{Array, ArrayView, Dimension, Ix0, Ix1, Ix2};

use crate::device::Device;
use crate::element::{Slices, SlicesMut};
use crate::host::{entries, host_array, host_zeros, span};
use crate::memory::{Memory, Owner, SharedMemory, Window, order};
use crate::planned::Work;
use crate::step::VectorJob;
use crate::{Desc, Element, Error, Result, ShapeMismatch};

/// An array that lives on a device, as ndarray's `Array<T, D>` on the host. Cloning is cheap: clones
/// and views share the memory.
///
/// An array whose memory a clone or a view shares is given memory of its own before it is written (as with
/// [`ndarray::ArcArray`]), so no other clone ever sees it. That allocates, and copies the whole array where its entries are
/// kept: on the device, and each time, if a view is taken before each write. A debug line of the target `gemv_core` in the
/// log says so; [`try_view_mut`](Self::try_view_mut) refuses in its place.
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
        device.plannable(Work::Host)?;
        let span = span(&a)?;
        let memory = device.backend().upload(T::any::<Slices>(&span.data))?.into();
        let (first, dim, strides) = (span.first, a.raw_dim(), span.strides);
        Ok(Self::of(device, memory, Window { memory: (), first, dim, strides }))
    }

    /// Zeros, row by row.
    pub(crate) fn zeros(device: &Device, dim: D) -> Result<Self> {
        Self::zeros_in_order(device, dim, false)
    }

    /// Zeros, row by row or in Fortran's order.
    pub(crate) fn zeros_in_order(device: &Device, dim: D, fortran: bool) -> Result<Self> {
        device.plannable(Work::Allocate)?;
        let memory = device.backend().alloc(T::DTYPE, entries(&dim))?.into();
        let strides = order(&dim, fortran);
        Ok(Self::of(device, memory, Window { memory: (), first: 0, dim, strides }))
    }

    /// An array in a block of memory.
    pub(crate) fn of(device: &Device, memory: SharedMemory, at: Window<(), D>) -> Self {
        let (device, Window { first, dim, strides, .. }) = (device.clone(), at);
        DeviceArray { device, memory, first, dim, strides, element: PhantomData }
    }

    /// An array in the same block of memory.
    pub(crate) fn at<E: Dimension + Copy>(&self, window: Window<(), E>) -> DeviceArray<T, E> {
        DeviceArray::of(&self.device, self.memory.clone(), window)
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
        self.device.plannable(Work::Download)?;
        let host = "the host";
        let mut array = host_array::<T, D>(host, self.dim)?;
        let (first, len) = self.window().range();
        if len == 0 {
            return Ok(array);
        }
        let backend = self.device.backend();
        if self.placed().is_ordered(false) {
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

    pub(crate) fn placed(&self) -> Window<(), D> {
        Window { memory: (), first: self.first, dim: self.dim, strides: self.strides }
    }

    /// Makes this array the only owner of its memory, each entry at a place of its own, so that it may
    /// be written where it lies; its entries are kept on request. Returns the array as it was, if it
    /// had to be replaced.
    #[inline]
    pub(crate) fn make_unique(&mut self, keep: bool) -> Result<Option<Self>> {
        if self.is_unique() {
            return Ok(None);
        }
        self.replace(keep).map(Some)
    }

    /// Whether it may be written where it lies.
    #[inline]
    pub(crate) fn is_unique(&mut self) -> bool {
        self.memory.get_mut().is_some() && self.window().is_distinct()
    }

    /// Bytes of its entries.
    pub(crate) fn bytes(&self) -> u64 {
        (self.len() as u64).saturating_mul(T::DTYPE.bytes() as u64)
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
        let (device, bytes) = (&self.device.info().id, self.bytes());
        let done = if keep { "copied" } else { "allocated" };
        log::debug!(
            "{device}: {bytes} bytes are {done} before a write: the array's memory is shared, or its entries lie apart"
        );
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
        let placed = self.placed().is_ordered(false) && self.first == 0;
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
        let window = Window { memory: (), first, dim, strides };
        window.check("a view", self.memory.len())?;
        Ok(self.at(window))
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
}

impl<T: Element> DeviceVector<T> {
    /// Stride in elements.
    #[inline]
    pub fn stride(&self) -> isize {
        self.strides[0] as isize
    }

    /// A matrix of one row: a dot product's left operand.
    pub(crate) fn as_row(&self) -> DeviceMatrix<T> {
        let (dim, strides) = (Ix2(1, self.len()), Ix2(self.len(), self.strides[0]));
        self.at(Window { memory: (), first: self.first, dim, strides })
    }
}

/// The error for an array of more axes than a device takes.
pub(crate) fn too_many_axes(axes: usize) -> Error {
    Error::Shape(ShapeMismatch::Step { axes, x: [0; 3], y: [0; 3] })
}
