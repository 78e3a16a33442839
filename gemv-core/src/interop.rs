//! What other libraries and a backend's memory have to do with each other: a block of theirs, the door that a backend has for it,
//! and whether two blocks overlap.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use ndarray::Dimension;

use crate::memory::{Memory, Owner, Window};
use crate::{Dtype, Error, Result};

/// A block of device memory that another library has allocated; see [`DeviceArray::from_foreign`](crate::DeviceArray::from_foreign).
pub struct Foreign {
    /// The driver's handle of its first byte: a `CUdeviceptr`, or a `cl_mem`.
    pub handle: usize,
    /// How many bytes from there on may be used.
    pub bytes: usize,
    /// What they hold.
    pub dtype: Dtype,
    /// Whether they may be written. To write an array of memory that may not is an error.
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
    /// As of [`DeviceArray::from_foreign`](crate::DeviceArray::from_foreign).
    ///
    /// # Errors
    /// [`Error::Device`], where the device sees what is wrong with it.
    unsafe fn adopt(&self, foreign: Foreign) -> Result<(Arc<dyn Memory>, usize)>;

    /// As [`Device::wait_for`](crate::Device::wait_for).
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    unsafe fn wait_for(&self, event: usize) -> Result<()>;

    /// As [`Device::is_captured`](crate::Device::is_captured); by default it is not.
    ///
    /// # Errors
    /// As there.
    fn is_captured(&self) -> Result<bool> {
        Ok(false)
    }

    /// As [`Device::record_event`](crate::Device::record_event).
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    unsafe fn record_event(&self, event: usize) -> Result<()>;
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
    // Nothing is read or written, and the place of the first entry may be any number.
    if [y, x].iter().any(|of| of.range().1 == 0) {
        return false;
    }
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
        // Without entries, at a place that there is not.
        let none = window(&here, usize::MAX, Ix2(100, 0), Ix2(7, 1));
        assert!(!both(column(&here, 2), none));
        // One entry among others of another size.
        let one = window(&here, 3, Ix2(1, 1), Ix2(1, 1));
        assert!(!both(column(&here, 2), one));
        let y = column(&here, 2);
        let e = check_apart(("Y", &y, size), [("X", column(&here, 2), size)]).unwrap_err();
        assert_eq!(e.to_string(), "Y overlaps X, which is read");
    }
}
