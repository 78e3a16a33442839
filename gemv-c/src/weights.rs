//! `gemv_weights`: a file of weights.

#[cfg(unix)]
use std::ffi::CStr;
use std::ffi::{CString, c_char};
use std::path::PathBuf;

use gemv_weights::{Elements, WeightFile};

use crate::array::{Array, READ_ONLY};
use crate::device::{free, give, write_text};
use crate::error::{Failure, Result, Status, guarded, wrong};
use crate::packed::{Packed, text};

/// What `gemv_weights *` points to.
pub struct Weights(WeightFile);

/// # Safety
/// The pointer is null, or of a file that was opened and not freed.
unsafe fn weights<'a>(handle: *const Weights) -> Result<&'a WeightFile> {
    // SAFETY: the caller's.
    let handle = unsafe { handle.as_ref() };
    Ok(&handle.ok_or_else(|| wrong("the file of weights is a null pointer"))?.0)
}

impl From<gemv_weights::Error> for Failure {
    fn from(error: gemv_weights::Error) -> Failure {
        wrong(error)
    }
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_weights_open(
    path: *const c_char,
    gptq_version: u32,
    to: *mut *mut Weights,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let path = unsafe { path_of(path) }?;
        let open = || Ok(Weights(WeightFile::open(path)?.gptq_version(gptq_version)));
        // SAFETY: the caller's.
        unsafe { give(to, open) }
    })
}

/// # Safety
/// The pointer is null, or of a text that ends.
unsafe fn path_of(at: *const c_char) -> Result<PathBuf> {
    // SAFETY: the caller's.
    let text = unsafe { text(at, "the path") }?;
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        drop(text);
        // SAFETY: the caller's: it is not null, as was seen.
        let bytes = unsafe { CStr::from_ptr(at) }.to_bytes();
        Ok(std::ffi::OsStr::from_bytes(bytes).into())
    }
    #[cfg(not(unix))]
    Ok(text.into_owned().into())
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_weights_free(of: *mut Weights) {
    // SAFETY: the caller's.
    unsafe { free(of) };
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_weights_tensors(
    of: *const Weights,
    to: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let file = unsafe { weights(of) }?;
        let mut lines = String::new();
        for tensor in file.tensors() {
            // A name of the file may have anything in it, and a line is one tensor's.
            let name = tensor.name().replace(['\0', '\n', '\t'], " ");
            let shape: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
            lines += &format!("{name}\t{}\t{}\n", tensor.elements(), shape.join(" "));
        }
        // SAFETY: the caller's.
        unsafe { write_text(CString::new(lines).unwrap_or_default(), to, size, needed) }
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_weights_packed(
    of: *const Weights,
    name: *const c_char,
    to: *mut *mut Packed,
    alpha: *mut f32,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (file, name) = unsafe { (weights(of)?, text(name, "the name")?) };
        let matrix = file.matrix(&name)?;
        let Elements::Packed(format) = matrix.elements else {
            return Err(wrong(format_args!(
                "the tensor {name:?} has elements of {}: gemv_weights_array gives them",
                matrix.elements
            )));
        };
        // SAFETY: the caller's: null, or a place for it.
        let place = unsafe { alpha.as_mut() };
        if place.is_none() && matrix.alpha != 1.0 {
            return Err(wrong(format_args!(
                "the products of {name:?} have a factor of {}, for which there is no place: a null pointer",
                matrix.alpha
            )));
        }
        let dim = (matrix.rows, matrix.columns);
        let make = || Ok(Packed::host(gemv::Packed::new(format, dim, matrix.bytes)?));
        // SAFETY: the caller's.
        unsafe { give(to, make) }?;
        if let Some(place) = place {
            *place = matrix.alpha;
        }
        Ok(())
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_weights_array(
    of: *const Weights,
    name: *const c_char,
    to: *mut Array,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (file, name) = unsafe { (weights(of)?, text(name, "the name")?) };
        let tensor = file.tensor(&name)?;
        let Elements::Plain(dtype) = tensor.elements() else {
            return Err(wrong(format_args!(
                "the tensor {name:?} has elements of {}, which are no numbers of an array",
                tensor.elements()
            )));
        };
        if cfg!(target_endian = "big") {
            return Err(wrong(
                "numbers of files have their low byte first, and this machine's not",
            ));
        }
        let shape = tensor.shape();
        if !(1..=3).contains(&shape.len()) {
            let axes = shape.len();
            return Err(wrong(format_args!(
                "the tensor {name:?} has {axes} axes: an array has one to three"
            )));
        }
        let (mut dim, mut stride, mut apart) = ([1; 3], [0; 3], 1i64);
        for (axis, entries) in shape.iter().enumerate().rev() {
            (dim[axis], stride[axis]) = (*entries as i64, apart);
            apart = apart.saturating_mul(*entries as i64);
        }
        let dtype = dtype as u32;
        // SAFETY: the caller's.
        let to = unsafe { to.as_mut() };
        let to = to.ok_or_else(|| wrong("there is no place for the array: a null pointer"))?;
        let data = tensor.bytes().as_ptr().cast_mut().cast();
        let (ndim, flags) = (shape.len() as u32, READ_ONLY);
        *to = Array { data, offset: 0, dim, stride, ndim, dtype, flags, reserved: 0 };
        Ok(())
    })
}
