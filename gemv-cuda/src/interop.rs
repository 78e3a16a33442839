//! Streams, memory and events of other libraries.

use std::sync::Arc;

use gemv_core::{Device, Error, Foreign, Interop, Memory, Owner, Result};

use crate::backend::{Cuda, open_on};
use crate::driver::{self, Gpu};
use crate::resident::Resident;

/// A device whose work is all put into a stream of another library (`CUstream`, `cudaStream_t`) of the GPU's primary context,
/// in that stream's order: what a handle of cuBLAS is. It takes memory of that GPU as
/// [arrays](gemv_core::DeviceArray::from_foreign). It has scratch memory of its own, and shares compiled programs with the
/// GPU's other devices.
///
/// Stream 0 is the legacy default stream. The default stream of a thread (`CU_STREAM_PER_THREAD`, 2) is the one of the
/// thread that calls this: other threads are refused by one sentence.
///
/// The stream may be captured. Nothing is then allocated, loaded or waited for: what would need it is refused, and runs
/// where it was run once before, or [reserved](gemv_core::Device::reserve). A product is one node of the graph, or two where
/// it splits rows among blocks. The graph keeps the arrays and the scratch memory of its products, so that it may be replayed
/// on another stream beside other work of this device.
///
/// ```no_run
/// use gemv::ndarray::{Ix1, Ix2};
/// use gemv::{DeviceMatrix, DeviceVector, Dtype, Foreign, GpuDot};
///
/// # let (stream, a, x, y): (usize, usize, usize, usize) = (0, 0, 0, 0);
/// // SAFETY: the stream lives as long as the device.
/// let device = unsafe { gemv::cuda::on_stream(0, stream)? };
/// let of = |handle, bytes, writable| Foreign {
///     handle,
///     bytes,
///     dtype: Dtype::F32,
///     writable,
///     keep: Box::new(()), // or what owns the memory
/// };
/// // SAFETY: a, x and y are pointers to so many bytes of GPU 0 that stay until the stream has done what uses them.
/// let (a, x, mut y) = unsafe {
///     (
///         DeviceMatrix::<f32>::from_foreign(&device, of(a, 4 * 300 * 700, false), 0, Ix2(300, 700), Ix2(700, 1))?,
///         DeviceVector::<f32>::from_foreign(&device, of(x, 4 * 700, false), 0, Ix1(700), Ix1(1))?,
///         DeviceVector::<f32>::from_foreign(&device, of(y, 4 * 300, true), 0, Ix1(300), Ix1(1))?,
///     )
/// };
/// a.try_gpu_dot_into(&x, &mut y)?; // queued, and not waited for
/// # Ok::<(), gemv::Error>(())
/// ```
///
/// # Safety
/// The stream is alive as long as the device and its arrays are.
///
/// # Errors
/// [`Error::Device`] if the stream is another GPU's, or the driver is older than CUDA 12; those of the device's opening.
pub unsafe fn on_stream(ordinal: usize, stream: usize) -> Result<Device> {
    // SAFETY: the caller's.
    let device = open_on(ordinal, |id| unsafe { Gpu::on_stream(ordinal, id, stream) })?;
    Ok(Device::new(device))
}

/// A number for a stream that no other stream of this process has had or will have (`cuStreamGetId`): a handle is given out
/// again when its stream was destroyed. For a program that keeps a device for each stream that it meets. `None` while the stream
/// is captured, when to ask for the number would spoil the capture; a stream that is captured is not destroyed.
///
/// # Safety
/// The stream is alive, and none of the default ones (0, 1, 2).
///
/// # Errors
/// [`Error::DriverMissing`]; [`Error::Device`] if the driver is older than CUDA 12.
pub unsafe fn stream_id(ordinal: usize, stream: usize) -> Result<Option<u64>> {
    // SAFETY: the caller's.
    unsafe { driver::stream_id(ordinal, stream) }
}

impl Interop for Cuda {
    unsafe fn adopt(&self, foreign: Foreign) -> Result<(Arc<dyn Memory>, usize)> {
        let Foreign { handle, bytes, dtype, writable, keep } = foreign;
        self.gpu.here()?;
        if !handle.is_multiple_of(dtype.bytes()) {
            let reason =
                format!("{handle:#x} is not a multiple of the {} bytes of an entry", dtype.bytes());
            return Err(Error::Device {
                device: self.gpu.id().into(),
                call: "from_foreign",
                reason,
            });
        }
        let (block, shift) = self.gpu.adopt(handle, bytes, keep)?;
        let len = block.bytes() / dtype.bytes();
        let owner = Owner::Foreign { writable };
        Ok((Arc::new(Resident { block, dtype, len, owner }), shift / dtype.bytes()))
    }

    fn is_captured(&self) -> Result<bool> {
        let _guard = self.gpu.enter()?;
        Ok(self.gpu.captured())
    }

    unsafe fn wait_for(&self, event: usize) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.gpu.wait_for_foreign(event) }
    }

    unsafe fn record_event(&self, event: usize) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.gpu.record_foreign(event) }
    }
}
