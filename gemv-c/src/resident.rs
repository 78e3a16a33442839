//! `gemv_matrix`: an array in the memory of a device.

use std::any::Any;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gemv::ndarray::{Ix1, Ix3};
use gemv::unstable::Element;
use gemv::{DeviceArray, DeviceVector};

use crate::array::{Array, Placed, RESIDENT, last};
use crate::error::{Failure, Result, wrong};

/// What `gemv_matrix *` points to.
pub struct Matrix {
    /// How the array lies in its block, as it was made.
    pub(crate) array: Array,
    /// A `DeviceVector<T>` of the whole block. It is locked while it is written, and else for as long as it takes to share it.
    block: Mutex<Box<dyn Any + Send + Sync>>,
}

impl Matrix {
    pub(crate) fn new<T: Element>(of: &DeviceArray<T, Ix3>, ndim: u32) -> Result<Matrix> {
        let window = of.window();
        let block = of.window_at(0, Ix1(window.memory.len()), Ix1(1))?;
        let (mut dim, mut stride) = ([1; 3], [0; 3]);
        for (to, from) in last(ndim).iter().enumerate() {
            if let Some(axis) = from {
                dim[*axis] = window.dim[to] as i64;
                stride[*axis] = window.stride(to) as i64;
            }
        }
        let dtype = T::DTYPE as u32;
        let (offset, data) = (window.first as i64, std::ptr::null_mut());
        let array = Array { data, offset, dim, stride, ndim, dtype, flags: RESIDENT, reserved: 0 };
        Ok(Matrix { array, block: Mutex::new(Box::new(block)) })
    }

    /// # Safety
    /// The pointer is null, or of a matrix that was made and not freed.
    pub(crate) unsafe fn of<'a>(handle: *const c_void, name: &str) -> Result<&'a Matrix> {
        // SAFETY: the caller's.
        let matrix = unsafe { handle.cast::<Matrix>().as_ref() };
        matrix.ok_or_else(|| wrong(format_args!("{name} is a null pointer")))
    }

    pub(crate) fn block(&self) -> MutexGuard<'_, Box<dyn Any + Send + Sync>> {
        self.block.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part of the block, which it shares.
    pub(crate) fn window<T: Element>(
        &self,
        of: &Placed,
        name: &str,
    ) -> Result<DeviceArray<T, Ix3>> {
        let block = self.block();
        let block = block.downcast_ref::<DeviceVector<T>>().ok_or_else(|| other_type(name))?;
        Ok(block.window_at(of.first, of.dim, of.raw_strides())?)
    }
}

pub(crate) fn other_type(name: &str) -> Failure {
    wrong(format_args!("{name} has another type than its gemv_matrix"))
}

// SAFETY: `array.data` is null in a matrix; it is set in copies that are given away.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}
