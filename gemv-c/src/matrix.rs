//! `gemv_matrix`: an array in the memory of a device.

use std::any::Any;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gemv::ndarray::{Ix1, Ix3};
use gemv::unstable::{Dtype, Element, for_types};
use gemv::{Device, DeviceArray, DeviceVector};

use crate::array::{Array, DTYPES, Placed, RESIDENT, dtype, last};
use crate::device::{Handle, device, give};
use crate::error::{Result, Status, guarded, wrong};
use crate::product::read;

/// What `gemv_matrix *` points to.
pub struct Matrix {
    /// How the array lies in its block, as it was made.
    array: Array,
    /// A `DeviceVector<T>` of the whole block. It is locked while it is written, and else for as long as it takes to share it.
    block: Mutex<Box<dyn Any + Send + Sync>>,
}

impl Matrix {
    fn new<T: Element>(of: &DeviceArray<T, Ix3>, ndim: u32) -> Result<Matrix> {
        let window = of.window();
        let block = of.window_at(0, Ix1(window.memory.len()), Ix1(1))?;
        let (mut dim, mut stride) = ([1; 3], [0; 3]);
        for (to, from) in last(ndim).iter().enumerate() {
            if let Some(axis) = from {
                dim[*axis] = window.dim[to] as i64;
                stride[*axis] = window.stride(to) as i64;
            }
        }
        let dtype = DTYPES.iter().position(|dtype| *dtype == T::DTYPE).unwrap_or_default() as u32;
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

pub(crate) fn other_type(name: &str) -> crate::error::Failure {
    wrong(format_args!("{name} has another type than its gemv_matrix"))
}

// SAFETY: `array.data` is null in a matrix; it is set in copies that are given away.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_matrix_upload(
    on: *const Handle,
    from: *const Array,
    to: *mut *mut Matrix,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (device, ndim) = unsafe { (device(on)?, from.as_ref().map_or(2, |a| a.ndim)) };
        check_axes(ndim)?;
        // SAFETY: the caller's.
        let placed = unsafe { Placed::of(from, "the array", last(ndim)) }?;
        let upload = || {
            for_types!((placed.dtype, placed.dtype), T, _V => {
                // SAFETY: the caller's.
                let from = unsafe { read::<T>(device, &placed, "the array") }?;
                Matrix::new(&device.array(from.operand())?, ndim)
            })
        };
        // SAFETY: the caller's.
        unsafe { give(to, upload) }
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_matrix_zeros(
    on: *const Handle,
    of: u32,
    ndim: u32,
    dim: *const i64,
    to: *mut *mut Matrix,
) -> Status {
    guarded(|| {
        check_axes(ndim)?;
        if dim.is_null() {
            return Err(wrong("the numbers of entries are a null pointer"));
        }
        let mut three = [1; 3];
        for (axis, place) in last(ndim).into_iter().zip(&mut three) {
            let Some(axis) = axis else { continue };
            // SAFETY: the caller's: as many numbers as axes.
            let entries = unsafe { *dim.add(axis) };
            *place = usize::try_from(entries).map_err(|_| wrong("a negative number of entries"))?;
        }
        let (dtype, dim) = (dtype(of)?, Ix3(three[0], three[1], three[2]));
        // SAFETY: the caller's.
        let device = unsafe { device(on) }?;
        // SAFETY: the caller's.
        unsafe { give(to, || zeros(device, dtype, dim, ndim)) }
    })
}

fn zeros(device: &Device, dtype: Dtype, dim: Ix3, ndim: u32) -> Result<Matrix> {
    for_types!((dtype, dtype), T, _V => Matrix::new::<T>(&device.zeros(dim)?, ndim))
}

fn check_axes(ndim: u32) -> Result<()> {
    if (1..=3).contains(&ndim) {
        return Ok(());
    }
    Err(wrong(format_args!("an array of {ndim} axes: there are one to three")))
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_matrix_free(of: *mut Matrix) {
    guarded(|| {
        if !of.is_null() {
            // SAFETY: the caller's: it came from `give`, and is freed once.
            drop(unsafe { Box::from_raw(of) });
        }
        Ok(())
    });
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_matrix_array(of: *mut Matrix, to: *mut Array) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (array, to) = unsafe { (Matrix::of(of.cast(), "the matrix")?.array, to.as_mut()) };
        let to = to.ok_or_else(|| wrong("there is no place for the array: a null pointer"))?;
        *to = Array { data: of.cast(), ..array };
        Ok(())
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_download(
    on: *const Handle,
    from: *const Array,
    to: *const Array,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (device, ndim) = unsafe { (device(on)?, from.as_ref().map_or(2, |a| a.ndim)) };
        check_axes(ndim)?;
        // SAFETY: the caller's.
        let [from, to] = unsafe {
            [Placed::of(from, "the array", last(ndim))?, Placed::of(to, "the copy", last(ndim))?]
        };
        crate::product::check_host_result(&to, "the copy")?;
        if (from.dtype, from.dim) != (to.dtype, to.dim) {
            return Err(wrong("the copy has another type or shape than the array"));
        }
        for_types!((from.dtype, from.dtype), T, _V => {
            // SAFETY: the caller's.
            let (from, mut to) = unsafe {
                (read::<T>(device, &from, "the array")?, to.view_mut::<T>("the copy")?)
            };
            match from.operand() {
                gemv::OperandRef::Host(from) => to.assign(&from),
                gemv::OperandRef::Device(from) => to.assign(&from.download()?),
            }
            Ok(())
        })
    })
}
