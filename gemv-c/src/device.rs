//! `gemv_device`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use gemv::unstable::Desc;
use gemv::{Device, Engine};

use crate::array::{Array, Placed, last};
use crate::error::{Result, Status, guarded, wrong};

/// What `gemv_device *` points to.
pub struct Handle {
    device: Device,
    id: CString,
}

/// # Safety
/// The pointer is null, or of a device that was opened and not freed.
pub(crate) unsafe fn device<'a>(handle: *const Handle) -> Result<&'a Device> {
    // SAFETY: the caller's.
    let handle = unsafe { handle.as_ref() };
    Ok(&handle.ok_or_else(|| wrong("the device is a null pointer"))?.device)
}

/// Gives a value to the caller.
///
/// # Safety
/// The pointer is null, or of a place for a pointer.
pub(crate) unsafe fn give<T>(to: *mut *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    if to.is_null() {
        return Err(wrong("there is no place for the result: a null pointer"));
    }
    let made = Box::new(make()?);
    // SAFETY: the caller's.
    unsafe { to.write(Box::into_raw(made)) };
    Ok(())
}

/// Takes it back.
///
/// # Safety
/// The pointer is null, or came from [`give`], and is given back once.
pub(crate) unsafe fn free<T>(of: *mut T) {
    guarded(|| {
        if !of.is_null() {
            // SAFETY: the caller's.
            drop(unsafe { Box::from_raw(of) });
        }
        Ok(())
    });
}

fn handle(device: Device) -> Handle {
    let id = CString::new(device.info().id.clone()).unwrap_or_default();
    Handle { device, id }
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_device_open(name: *const c_char, to: *mut *mut Handle) -> Status {
    guarded(|| {
        // SAFETY: the caller's: null or a text that ends.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
        let open = || {
            gemv::link()?;
            let engine = Engine::global();
            Ok(handle(match name {
                None => engine.default_device()?,
                Some(name) => engine.device(&name.to_string_lossy())?,
            }))
        };
        // SAFETY: the caller's.
        unsafe { give(to, open) }
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_device_on_queue(queue: *mut c_void, to: *mut *mut Handle) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let open = || unsafe { on_queue(queue.addr()) }.map(handle);
        // SAFETY: the caller's.
        unsafe { give(to, open) }
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_device_on_stream(
    ordinal: c_int,
    stream: *mut c_void,
    to: *mut *mut Handle,
) -> Status {
    guarded(|| {
        let ordinal = usize::try_from(ordinal).map_err(|_| wrong("a negative number of a GPU"))?;
        // SAFETY: the caller's.
        let open = || unsafe { on_stream(ordinal, stream.addr()) }.map(handle);
        // SAFETY: the caller's.
        unsafe { give(to, open) }
    })
}

#[cfg(feature = "cuda")]
unsafe fn on_stream(ordinal: usize, stream: usize) -> Result<Device> {
    // SAFETY: the caller's.
    Ok(unsafe { gemv::cuda::on_stream(ordinal, stream) }?)
}

#[cfg(not(feature = "cuda"))]
unsafe fn on_stream(_: usize, _: usize) -> Result<Device> {
    Err(gemv::Error::NotBuilt { feature: "cuda" }.into())
}

#[cfg(feature = "opencl")]
unsafe fn on_queue(queue: usize) -> Result<Device> {
    // SAFETY: the caller's.
    Ok(unsafe { gemv::opencl::on_queue(queue) }?)
}

#[cfg(not(feature = "opencl"))]
unsafe fn on_queue(_: usize) -> Result<Device> {
    Err(gemv::Error::NotBuilt { feature: "opencl" }.into())
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_device_free(of: *mut Handle) {
    // SAFETY: the caller's.
    unsafe { free(of) };
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_device_id(of: *const Handle) -> *const c_char {
    // SAFETY: the caller's.
    unsafe { of.as_ref() }.map_or(c"".as_ptr(), |of| of.id.as_ptr())
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_device_synchronize(of: *const Handle) -> Status {
    // SAFETY: the caller's.
    guarded(|| Ok(unsafe { device(of) }?.synchronize()?))
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_device_wait_for(of: *const Handle, event: *mut c_void) -> Status {
    // SAFETY: the caller's.
    guarded(|| Ok(unsafe { device(of)?.wait_for(event.addr()) }?))
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_device_record_event(of: *const Handle, event: *mut c_void) -> Status {
    // SAFETY: the caller's.
    guarded(|| Ok(unsafe { device(of)?.record_event(event.addr()) }?))
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_device_reserve(
    of: *const Handle,
    a: *const Array,
    columns: i64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (device, ndim) = unsafe { (device(of)?, a.as_ref().map_or(0, |a| a.ndim)) };
        if ndim != 2 && ndim != 3 {
            return Err(wrong("the matrix has two axes, or three with a batch"));
        }
        // SAFETY: the caller's.
        let a = unsafe { Placed::of(a, "A", last(ndim)) }?;
        let rhs = usize::try_from(columns).map_err(|_| wrong("a negative number of columns"))?;
        let [_, rs, cs] = a.strides;
        let (address, bytes) = (a.data().addr(), a.first.wrapping_mul(a.dtype.bytes()));
        let base = if a.is(crate::array::RESIDENT) { 0 } else { address };
        let one = Desc::new(a.dtype, a.dim[1], a.dim[2], (rs, cs), base.wrapping_add(bytes));
        device.reserve(&Desc { rhs, batch: a.dim[0], ..one })?;
        Ok(())
    })
}

/// Every device, a line for each: `cuda:0`, or `no cuda (why)`.
///
/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_devices(text: *mut c_char, size: usize, needed: *mut usize) -> Status {
    guarded(|| {
        gemv::link()?;
        let lines: String = gemv::devices().iter().map(|line| format!("{line}\n")).collect();
        let all = CString::new(lines.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the caller's.
        unsafe { write_text(all, text, size, needed) }
    })
}

/// Writes a text to a place of so many bytes, and how many there are.
///
/// # Safety
/// The pointers are null, or of places for so much.
pub(crate) unsafe fn write_text(
    all: CString,
    to: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> Result<()> {
    let bytes = all.as_bytes_with_nul();
    // SAFETY: the caller's.
    unsafe {
        if let Some(needed) = needed.as_mut() {
            *needed = bytes.len();
        }
        if to.is_null() {
            return Ok(());
        }
        if size < bytes.len() {
            let has = bytes.len();
            return Err(wrong(format_args!("the text has {has} bytes, and the place {size}")));
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len());
    }
    Ok(())
}

/// A number of C's `int`, which the header's enumerations are.
const _: () = assert!(size_of::<c_int>() == size_of::<Status>());
