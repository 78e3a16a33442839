//! Arrays in device memory that another library owns, read and written where it lies, in the order of its stream or queue.

use std::marker::PhantomData;

use ndarray::Dimension;

use crate::device::Device;
use crate::interop::{Foreign, Interop};
use crate::memory::Window;
use crate::resident::DeviceArray;
use crate::{Desc, Element, Error, Result};

impl<T: Element, D: Dimension + Copy> DeviceArray<T, D> {
    /// An array in memory of another library, without a copy and without a wait: entry (i, j, ..) lies at
    /// `first + i * strides[0] + j * strides[1] + ..`, in elements from the handle on. Strides are `isize` as ndarray
    /// keeps them: `-1isize as usize` goes backwards.
    ///
    /// The device is one on the other library's stream or queue (`gemv::cuda::on_stream`, `gemv::opencl::on_queue`), so
    /// that its work has the order of that library's; on a device with a stream of its own the two are ordered by
    /// [`Device::wait_for`] and [`Device::record_event`]. OpenCL takes memory of the queue's context alone.
    ///
    /// Nothing is written elsewhere, where the other library would not see it: to write the array while a clone or a view of it is
    /// there, or memory that is there to be read, is an error.
    ///
    /// The handle may be at any address that is a multiple of an element's size. Kernels read whole vectors: up to the end
    /// of the 32 bytes that the last entry lies in, and from the beginning of those that the first one lies in. Every
    /// allocation of CUDA is a multiple of that.
    ///
    /// ```
    /// use gemv::ndarray::Ix1;
    /// use gemv::{DeviceVector, Dtype, Foreign, device};
    ///
    /// let device = device("reference")?; // or gemv::cuda::on_stream(0, stream)?
    /// let foreign =
    ///     Foreign { handle: 0x7000, bytes: 400, dtype: Dtype::F32, writable: false, keep: Box::new(()) };
    /// // SAFETY: the reference has no memory of a device, and refuses.
    /// let x = unsafe { DeviceVector::<f32>::from_foreign(&device, foreign, 0, Ix1(100), Ix1(1)) };
    /// assert!(x.unwrap_err().to_string().contains("it takes no memory"));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Safety
    /// - The handle is of memory of this device, of as many bytes, that stays until `keep` is dropped, and whose release
    ///   then waits for work that was queued before, or comes behind it in the order of the stream.
    /// - While work of this device on the array is queued or running, nobody else writes the memory, and nobody reads what
    ///   that work writes, but in the order of the device's stream or queue.
    ///
    /// # Errors
    /// [`Error::Operand`] if the memory holds another type, or the entries do not lie in it; [`Error::Device`] if the
    /// backend takes no such memory, or sees that it is not of this device, not so large, not aligned or not to be written.
    pub unsafe fn from_foreign(
        device: &Device,
        foreign: Foreign,
        first: usize,
        dim: D,
        strides: D,
    ) -> Result<Self> {
        const OPERAND: &str = "an array of foreign memory";
        if foreign.dtype != T::DTYPE {
            let reason = format!("of {} would hold {}", foreign.dtype, T::DTYPE);
            return Err(Error::Operand { operand: OPERAND, reason });
        }
        let window = Window { memory: (), first, dim, strides };
        window.check(OPERAND, foreign.bytes / T::DTYPE.bytes())?;
        // SAFETY: the caller's.
        let (memory, shift) = unsafe { device.interop("from_foreign")?.adopt(foreign)? };
        let (device, memory) = (device.clone(), memory.into());
        // Of an array without entries it may be any number.
        let first = first.wrapping_add(shift);
        Ok(DeviceArray { device, memory, first, dim, strides, element: PhantomData })
    }
}

impl<T: Element, D: Dimension + Copy> DeviceArray<T, D> {
    /// Where the array lies, for other libraries: the driver's handle of its block, and how many bytes from there the
    /// entry is whose indices are all 0. Of CUDA their sum is an address; of OpenCL the handle is a `cl_mem`. `None` where
    /// memory has no handle: on the CPU.
    ///
    /// The block lives as long as the array, a clone or a view. What is queued on it comes in the order of the device's
    /// stream or queue. Whoever writes to it answers for clones and views, which see it.
    ///
    /// ```
    /// let x = gemv::device("reference")?.vector(&[1.0, 2.0])?; // or on cuda:0
    /// assert_eq!(x.device_ptr(), None);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn device_ptr(&self) -> Option<(usize, usize)> {
        let window = self.window();
        let handle = window.memory.handle()?;
        Some((handle, window.first.wrapping_mul(T::DTYPE.bytes())))
    }
}

impl Device {
    fn interop(&self, call: &'static str) -> Result<&dyn Interop> {
        let none = "it takes no memory and no events of other libraries";
        self.backend().interop().ok_or_else(|| self.backend().refused(call, none))
    }

    /// Makes all that is queued on this device later wait for an event of another library, a `CUevent` or a `cl_event`. The
    /// host does not wait.
    ///
    /// # Safety
    /// The event is alive, and of this device's driver; of OpenCL it is of the device's context.
    ///
    /// # Errors
    /// [`Error::Device`]: the driver's refusal, or a device that has no events.
    pub unsafe fn wait_for(&self, event: usize) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.interop("wait_for")?.wait_for(event) }
    }

    /// Has an event of another library come when all that was queued on this device before is done: records a `CUevent`; of
    /// OpenCL, writes a new `cl_event` to the place whose address is given, as the functions of OpenCL do.
    ///
    /// # Safety
    /// The event is alive, and of this device's GPU; of OpenCL the address is one of a `cl_event` that may be written.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for).
    pub unsafe fn record_event(&self, event: usize) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.interop("record_event")?.record_event(event) }
    }

    /// Whether another library is capturing the stream of this device into a graph.
    ///
    /// # Errors
    /// [`Error::Device`], where the driver does not say.
    pub fn is_captured(&self) -> Result<bool> {
        self.backend().interop().map_or(Ok(false), |interop| interop.is_captured())
    }

    /// Prepares products of this shape: programs are built and loaded, and scratch memory is there, also for one graph that
    /// a program captures on its own stream, in which nothing may be allocated or loaded. To run such a product once does
    /// the same.
    ///
    /// ```
    /// use gemv::{Dtype, device, unstable::Desc};
    ///
    /// let device = device("reference")?; // or gemv::cuda::on_stream(0, stream)?
    /// device.reserve(&Desc::new(Dtype::F32, 4096, 8192, (8192, 1), 0))?;
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`prepared`](Self::prepared), and [`Error::OutOfMemory`].
    pub fn reserve(&self, desc: &Desc) -> Result<()> {
        self.backend().reserve(self.choice(desc)?.prepared())
    }
}
