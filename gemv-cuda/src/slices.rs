//! Products on slices of [cudarc](https://docs.rs/cudarc), in the order of their stream: no `unsafe` is left to the caller.
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use gemv::cuda::slices::Stream;
//!
//! let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
//! let a = stream.clone_htod(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap(); // 2 x 3, by rows
//! let x = stream.clone_htod(&[1.0f32, 1.0, 1.0]).unwrap();
//! let mut y = stream.alloc_zeros::<f32>(2).unwrap();
//!
//! let gemv = Stream::new(&stream)?; // once
//! let (a, x) = (gemv.view(&a, 0, (2, 3), (3, 1))?, gemv.view(&x, 0, 3, 1)?);
//! gemv.product(&a, &x).to(&mut gemv.view_mut(&mut y, 0, 2, 1)?)?; // queued, and not waited for
//! assert_eq!(stream.clone_dtoh(&y).unwrap(), [6.0, 15.0]);
//! # Ok::<(), gemv::Error>(())
//! ```

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use gemv_core::ndarray::{Dimension, IntoDimension};
use gemv_core::{
    Device, DeviceArray, Element, Error, Foreign, OperandRef, Params, Product as Queued, Rank,
    Result, Stack, Times,
};

use crate::backend::open_on;
use crate::driver::Gpu;

/// A stream of cudarc, for products: what a handle of cuBLAS is. See [`on_stream`](crate::on_stream) for what is allowed while
/// the stream is captured.
#[derive(Debug, Clone)]
pub struct Stream {
    device: Device,
    stream: Arc<CudaStream>,
}

/// A slice of cudarc as a vector, a matrix or a batch, to be read.
pub struct View<'a, T: Element, D> {
    // Dropped first: what reads it is queued before the stream's event.
    array: DeviceArray<T, D>,
    _read: SyncOnDrop<'a>,
}

/// A slice of cudarc as a vector, a matrix or a batch, to be written.
pub struct ViewMut<'a, T: Element, D> {
    array: DeviceArray<T, D>,
    _written: SyncOnDrop<'a>,
}

/// What a product reads: a [`View`], or an array of the stream's [`device`](Stream::device).
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a, T: Element, D: Dimension>(OperandRef<'a, T, D>);

impl<'a, T: Element, D: Dimension> From<&'a View<'_, T, D>> for Operand<'a, T, D> {
    fn from(view: &'a View<'_, T, D>) -> Self {
        Operand(OperandRef::Device(&view.array))
    }
}

impl<'a, T: Element, D: Dimension> From<&'a DeviceArray<T, D>> for Operand<'a, T, D> {
    fn from(array: &'a DeviceArray<T, D>) -> Self {
        Operand(OperandRef::Device(array))
    }
}

/// A product of [`Stream::product`], of which nothing is queued yet: see [`gemv_core::Product`].
#[must_use = "nothing is queued before `to` says where the result goes"]
pub struct Product<'d, 'a, 'x, T: Element, V: Element, A: Dimension, X: Dimension> {
    stream: &'d Stream,
    queued: Queued<'d, 'a, 'x, T, V, A, X>,
}

/// A slice of cudarc that is read: `CudaSlice`, `CudaView`, `CudaViewMut`. Sealed.
pub trait Readable<T>: DevicePtr<T> + sealed::Slice {}
impl<T, S: DevicePtr<T> + sealed::Slice> Readable<T> for S {}

/// A slice of cudarc that is written: `CudaSlice`, `CudaViewMut`. Sealed.
pub trait Writable<T>: DevicePtrMut<T> + sealed::Slice {}
impl<T, S: DevicePtrMut<T> + sealed::Slice> Writable<T> for S {}

mod sealed {
    use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};

    /// A type of cudarc's: what another one says of its memory would have to be believed.
    pub trait Slice {}
    impl<T> Slice for CudaSlice<T> {}
    impl<T> Slice for CudaView<'_, T> {}
    impl<T> Slice for CudaViewMut<'_, T> {}
}

impl<T: Element, D: fmt::Debug> fmt::Debug for View<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("View").field(&self.array).finish()
    }
}

impl<T: Element, D: fmt::Debug> fmt::Debug for ViewMut<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ViewMut").field(&self.array).finish()
    }
}

impl<T: Element, V: Element, A: Dimension, X: Dimension> fmt::Debug
    for Product<'_, '_, '_, T, V, A, X>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queued.fmt(f)
    }
}

impl Stream {
    /// A device on the stream, which it keeps.
    ///
    /// # Errors
    /// As [`on_stream`](crate::on_stream).
    pub fn new(stream: &Arc<CudaStream>) -> Result<Stream> {
        let ordinal = stream.context().ordinal();
        let device = open_on(ordinal, |id| Gpu::on_shared_stream(ordinal, id, stream.clone()))?;
        Ok(Stream { device: Device::new(device), stream: stream.clone() })
    }

    /// The device: for arrays of its own, such as weights that are uploaded once, and for
    /// [`reserve`](Device::reserve).
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A slice, or a view of one, to be read: entry (i, j, ..) lies at `first + i * strides[0] + j * strides[1] + ..`. Strides
    /// are `isize` as ndarray keeps them: `-1isize as usize` goes backwards.
    ///
    /// # Errors
    /// [`Error::Operand`] if the entries do not lie in the slice; [`Error::Device`] if it is another stream's.
    pub fn view<'a, T: Element, D: Dimension + Copy>(
        &'a self,
        slice: &'a impl Readable<T>,
        first: usize,
        dim: impl IntoDimension<Dim = D>,
        strides: impl IntoDimension<Dim = D>,
    ) -> Result<View<'a, T, D>> {
        self.check(slice.stream())?;
        let bytes = slice.num_bytes();
        let (handle, _read) = slice.device_ptr(&self.stream);
        let foreign = foreign::<T>(handle, bytes, false);
        let (dim, strides) = (dim.into_dimension(), strides.into_dimension());
        // SAFETY: the slice is borrowed for as long as the array is, which nobody else can clone. cudarc frees memory, and other
        // work on it comes, in the order of the stream.
        let array =
            unsafe { DeviceArray::from_foreign(&self.device, foreign, first, dim, strides) };
        Ok(View { array: array?, _read })
    }

    /// A slice, or a view of one, to be written: see [`view`](Self::view). What lies between its entries stays as it is.
    ///
    /// # Errors
    /// As [`view`](Self::view), and if two entries are at one place.
    pub fn view_mut<'a, T: Element, D: Dimension + Copy>(
        &'a self,
        slice: &'a mut impl Writable<T>,
        first: usize,
        dim: impl IntoDimension<Dim = D>,
        strides: impl IntoDimension<Dim = D>,
    ) -> Result<ViewMut<'a, T, D>> {
        self.check(slice.stream())?;
        let bytes = slice.num_bytes();
        let (handle, _written) = slice.device_ptr_mut(&self.stream);
        let foreign = foreign::<T>(handle, bytes, true);
        let (dim, strides) = (dim.into_dimension(), strides.into_dimension());
        // SAFETY: as above, of a slice that nobody else has.
        let array =
            unsafe { DeviceArray::from_foreign(&self.device, foreign, first, dim, strides) };
        Ok(ViewMut { array: array?, _written })
    }

    /// A product of a matrix with a vector or with several, or of batches of them, as [`Device::product`].
    pub fn product<'d, 'a, 'x, T: Element + Times<V>, V: Element, A: Stack<X>, X: Rank>(
        &'d self,
        a: impl Into<Operand<'a, T, A>>,
        x: impl Into<Operand<'x, V, X>>,
    ) -> Product<'d, 'a, 'x, T, V, A, X> {
        Product { stream: self, queued: self.device.product(a.into().0, x.into().0) }
    }

    fn check(&self, stream: &Arc<CudaStream>) -> Result<()> {
        if **stream == *self.stream {
            return Ok(());
        }
        let (device, reason) =
            (self.device.info().id.clone(), "the slice is another stream's".into());
        Err(Error::Device { device, call: "view", reason })
    }
}

fn foreign<T: Element>(handle: u64, bytes: usize, writable: bool) -> Foreign {
    let (handle, keep) = (handle as usize, Box::new(()));
    Foreign { handle, bytes, dtype: T::DTYPE, writable, keep }
}

impl<'d, T, V, A, X> Product<'d, '_, '_, T, V, A, X>
where
    T: Element + Times<V>,
    V: Element,
    A: Stack<X>,
    X: Rank,
{
    /// As [`gemv_core::Product::conj`].
    pub fn conj(self) -> Self {
        Product { queued: self.queued.conj(), ..self }
    }

    /// As [`gemv_core::Product::scaled`].
    pub fn scaled(self, alpha: V::Acc, beta: V::Acc) -> Self {
        Product { queued: self.queued.scaled(alpha, beta), ..self }
    }

    /// As [`gemv_core::Product::with`].
    pub fn with(self, params: &'d Params) -> Self {
        Product { queued: self.queued.with(params), ..self }
    }

    /// Queues it.
    ///
    /// # Errors
    /// As [`gemv_core::Product::to`]; [`Error::Device`] while the stream is captured, see [`to_graph`](Self::to_graph).
    pub fn to(self, y: &mut ViewMut<'_, V, X>) -> Result<()> {
        self.refuse_captures()?;
        self.queued.to(&mut y.array)
    }

    /// The same, to an array of the stream's device.
    ///
    /// # Errors
    /// As [`to`](Self::to).
    pub fn to_array(self, y: &mut DeviceArray<V, X>) -> Result<()> {
        self.refuse_captures()?;
        self.queued.to(y)
    }

    /// Queues it, also while the stream is captured.
    ///
    /// # Safety
    /// The slices live as long as the graph, and whatever is made of it, is launched: a graph keeps arrays of the stream's device,
    /// and not slices, which are borrowed.
    ///
    /// # Errors
    /// As [`gemv_core::Product::to`].
    pub unsafe fn to_graph(self, y: &mut ViewMut<'_, V, X>) -> Result<()> {
        self.queued.to(&mut y.array)
    }

    fn refuse_captures(&self) -> Result<()> {
        let device = &self.stream.device;
        if !device.is_captured()? {
            return Ok(());
        }
        let reason = "the stream is being captured, and the graph could be launched when the slices are gone: \
                      see Product::to_graph";
        Err(Error::Device { device: device.info().id.clone(), call: "to", reason: reason.into() })
    }
}
