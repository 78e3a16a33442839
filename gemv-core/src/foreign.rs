//! Device memory that another library owns: read and written where it lies, in the order of its stream or queue.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use ndarray::Dimension;

use crate::device::Device;
use crate::memory::{Memory, Owner, Window};
use crate::resident::DeviceArray;
use crate::{Desc, Dtype, Element, Error, Result};

/// A block of device memory that another library has allocated; see [`DeviceArray::from_foreign`].
pub struct Foreign {
    /// The driver's handle of its first byte: a `CUdeviceptr`, or a `cl_mem`.
    pub handle: usize,
    /// How many bytes from there on may be used.
    pub bytes: usize,
    /// What they hold.
    pub dtype: Dtype,
    /// Whether they may be written. An array of memory that may not gets memory of its own when it is written.
    pub writable: bool,
    /// Keeps the memory alive: it is dropped once, when no array, plan or graph needs the memory any more. Work that was
    /// queued before may still use the memory then.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Foreign { handle, bytes, dtype, writable, .. } = self;
        write!(f, "Foreign({handle:#x}, {bytes} bytes of {dtype}, writable: {writable})")
    }
}

/// What a device does with memory and events of other libraries: see [`Backend::interop`](crate::Backend::interop).
pub trait Interop {
    /// The memory as a block of this device, without a copy and without a wait; and the place in the block, in elements, of
    /// the handle's first byte. A block begins on 64 bytes, and foreign memory may not.
    ///
    /// # Safety
    /// As of [`DeviceArray::from_foreign`].
    ///
    /// # Errors
    /// [`Error::Device`], where the device sees what is wrong with it.
    unsafe fn adopt(&self, foreign: Foreign) -> Result<(Arc<dyn Memory>, usize)>;

    /// As [`Device::wait_for`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    unsafe fn wait_for(&self, event: usize) -> Result<()>;

    /// As [`Device::record_event`].
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    unsafe fn record_event(&self, event: usize) -> Result<()>;
}

impl<T: Element, D: Dimension + Copy> DeviceArray<T, D> {
    /// An array in memory of another library, without a copy and without a wait: entry (i, j, ..) lies at
    /// `first + i * strides[0] + j * strides[1] + ..`, in elements from the handle on. Strides are `isize` as ndarray
    /// keeps them: `-1isize as usize` goes backwards.
    ///
    /// The device is one on the other library's stream or queue (`gemv::cuda::on_stream`, `gemv::opencl::on_queue`), so
    /// that its work has the order of that library's; on a device with a stream of its own the two are ordered by
    /// [`Device::wait_for`] and [`Device::record_event`]. OpenCL takes memory of the queue's context alone.
    ///
    /// While clones and views share it, and if it may not be written, what is written goes to memory of the array's own first, as
    /// everywhere: the other library does not see it.
    ///
    /// The handle may be at any address that is a multiple of an element's size. Kernels read whole vectors: up to the end
    /// of the 32 bytes that the last entry lies in, and from the beginning of those that the first one lies in. Every
    /// allocation of CUDA is a multiple of that.
    ///
    /// ```
    /// use gemv_core::ndarray::Ix1;
    /// use gemv_core::{DeviceVector, Dtype, Foreign, device};
    ///
    /// let device = device("reference")?; // or gemv::cuda::on_stream(0, stream)?
    /// let foreign =
    ///     Foreign { handle: 0x7000, bytes: 400, dtype: Dtype::F32, writable: false, keep: Box::new(()) };
    /// // SAFETY: the reference has no memory of a device, and refuses.
    /// let x = unsafe { DeviceVector::<f32>::from_foreign(&device, foreign, 0, Ix1(100), Ix1(1)) };
    /// assert!(x.unwrap_err().to_string().contains("it takes no memory"));
    /// # Ok::<(), gemv_core::Error>(())
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
        Ok(DeviceArray { device, memory, first: first + shift, dim, strides, element: PhantomData })
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
    /// let x = gemv_core::device("reference")?.vector(&[1.0, 2.0])?; // or on cuda:0
    /// assert_eq!(x.device_ptr(), None);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn device_ptr(&self) -> Option<(usize, usize)> {
        let window = self.window();
        let handle = window.memory.handle()?;
        Some((handle, window.first * T::DTYPE.bytes()))
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

    /// Prepares products of this shape: programs are built and loaded, and scratch memory is there, also for one graph that
    /// a program captures on its own stream, in which nothing may be allocated or loaded. To run such a product once does
    /// the same.
    ///
    /// ```
    /// use gemv_core::{Desc, Dtype, device};
    ///
    /// let device = device("reference")?; // or gemv::cuda::on_stream(0, stream)?
    /// device.reserve(&Desc::new(Dtype::F32, 4096, 8192, (8192, 1), 0))?;
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`prepared`](Self::prepared), and [`Error::OutOfMemory`].
    pub fn reserve(&self, desc: &Desc) -> Result<()> {
        self.backend().reserve(self.choice(desc)?.prepared())
    }
}

/// Whether what is written lies apart from what is read, where memory of other libraries is among them: two blocks of those may
/// be one place. Arrays of a backend's own memory do not overlap, since what is written is not shared.
#[inline]
pub(crate) fn check_apart<'w, D: Dimension>(
    y: (&'static str, &Window<&dyn Memory, D>, Dtype),
    read: impl IntoIterator<Item = (&'static str, Window<&'w dyn Memory, D>, Dtype)>,
) -> Result<()> {
    let foreign = |memory: &dyn Memory| memory.owner() != Owner::Backend;
    let y_foreign = foreign(y.1.memory);
    for (operand, window, dtype) in read {
        if (y_foreign || foreign(window.memory)) && overlap((y.1, y.2), (&window, dtype)) {
            let reason = format!("overlaps {operand}, which is read");
            return Err(Error::Operand { operand: y.0, reason });
        }
    }
    Ok(())
}

/// Whether two arrays may have a byte in common. Exact for arrays whose entries lie on one lattice, such as columns of one
/// matrix; else an array is all that lies between its first and its last byte.
#[cold]
fn overlap<D: Dimension>(
    (y, of_y): (&Window<&dyn Memory, D>, Dtype),
    (x, of_x): (&Window<&dyn Memory, D>, Dtype),
) -> bool {
    let (Some(y_block), Some(x_block)) = (y.memory.place(), x.memory.place()) else { return false };
    let bytes = |(space, at): (usize, usize), of: &Window<&dyn Memory, D>, size: usize| {
        let (low, count) = of.range();
        let start = at as i128 + (low * size) as i128;
        (space, start, start + (count * size) as i128, at as i128 + (of.first * size) as i128)
    };
    let (y_size, x_size) = (of_y.bytes(), of_x.bytes());
    let (y_space, y_low, y_high, y_first) = bytes(y_block, y, y_size);
    let (x_space, x_low, x_high, x_first) = bytes(x_block, x, x_size);
    if y_space != x_space || y_low >= x_high || x_low >= y_high {
        return false;
    }
    // Every entry of either lies a multiple of this many bytes from its first one.
    let steps = |of: &Window<&dyn Memory, D>, size: usize| {
        let axes = (0..of.dim.ndim()).filter(|&axis| of.dim[axis] > 1);
        axes.fold(0, |all, axis| gcd(all, of.stride(axis).unsigned_abs() * size))
    };
    let lattice = gcd(steps(y, y_size), steps(x, x_size)) as i128;
    if lattice == 0 {
        return true;
    }
    let apart = (x_first - y_first).rem_euclid(lattice);
    apart < y_size as i128 || apart > lattice - x_size as i128
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::Ix2;

    /// So many elements at an address of a space.
    #[derive(Debug)]
    struct At(usize, usize);

    impl Memory for At {
        fn len(&self) -> usize {
            1 << 20
        }
        fn place(&self) -> Option<(usize, usize)> {
            Some((self.0, self.1))
        }
        fn owner(&self) -> Owner {
            Owner::Foreign { writable: true }
        }
    }

    #[test]
    fn what_is_written_lies_apart_from_what_is_read() {
        fn window(memory: &At, first: usize, dim: Ix2, strides: Ix2) -> Window<&dyn Memory, Ix2> {
            Window { memory, first, dim, strides }
        }
        let (here, there) = (At(0, 4096), At(1, 4096));
        let column = |of, j| window(of, j, Ix2(100, 1), Ix2(7, 1));
        let size = Dtype::F32;
        let both = |y, x| overlap((&y, size), (&x, size));
        assert!(both(column(&here, 2), column(&here, 2)));
        assert!(!both(column(&here, 2), column(&there, 2)), "another space");
        for j in [0, 1, 3, 6] {
            assert!(!both(column(&here, 2), column(&here, j)), "columns of one matrix");
        }
        assert!(both(column(&here, 2), column(&here, 9)), "the second row on");
        // Two bytes further: between two entries, and in both.
        let (moved, far) = (At(0, 4098), At(0, 4096 + 4 * 700));
        assert!(both(column(&here, 2), column(&moved, 2)));
        assert!(both(column(&here, 2), column(&moved, 1)));
        assert!(!both(column(&here, 2), column(&moved, 3)));
        assert!(!both(column(&here, 0), column(&far, 0)), "behind the end");
        let back = window(&here, 99 * 7 + 2, Ix2(100, 1), Ix2(-7isize as usize, 1));
        assert!(both(column(&here, 2), back));
        // One entry among others of another size.
        let one = window(&here, 3, Ix2(1, 1), Ix2(1, 1));
        assert!(!both(column(&here, 2), one));
        let y = column(&here, 2);
        let e = check_apart(("Y", &y, size), [("X", column(&here, 2), size)]).unwrap_err();
        assert_eq!(e.to_string(), "Y overlaps X, which is read");
    }
}
