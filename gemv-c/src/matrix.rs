//! The functions of `gemv_matrix`.

use gemv::Device;
use gemv::ndarray::Ix3;
use gemv::unstable::{Dtype, for_types};

use crate::array::{Array, Placed, dtype, last};
use crate::device::{Handle, device, free, give};
use crate::error::{Result, Status, guarded, wrong};
use crate::operand::{check_host_result, read};
use crate::resident::Matrix;

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
    // SAFETY: the caller's.
    unsafe { free(of) };
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
        check_host_result(&to, "the copy")?;
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
