//! `gemv_packed`: a matrix of packed weights.

use std::ffi::{CStr, CString, c_char, c_void};

use gemv::ndarray::{Axis, s};
use gemv::unstable::float_mode::in_default;
use gemv::unstable::{gemv_packed, zeros_on_host};
use gemv::{DevicePacked, Format, ToDevice};

use crate::array::{Array, DEVICE, Placed, RESIDENT, last};
use crate::device::{Handle, device, free, give};
use crate::error::{Result, Status, guarded, wrong};
use crate::operand::check_host_result;

/// What `gemv_packed *` points to.
pub struct Packed {
    pub(crate) blocks: Blocks,
    format: CString,
}

pub(crate) enum Blocks {
    Host(gemv::Packed),
    Device(DevicePacked),
}

/// Bytes of the caller, who keeps them.
struct Lent {
    first: *const u8,
    len: usize,
}

// SAFETY: the caller's promise: nobody writes them while a matrix of them is there.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise: so many bytes that stay as they are.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl Packed {
    pub(crate) fn host(of: gemv::Packed) -> Packed {
        Packed::new(of.format(), Blocks::Host(of))
    }

    fn new(format: Format, blocks: Blocks) -> Packed {
        Packed { blocks, format: CString::new(format.name()).unwrap_or_default() }
    }

    /// # Safety
    /// The pointer is null, or of a packed matrix that was made and not freed.
    pub(crate) unsafe fn of<'a>(handle: *const Packed) -> Result<&'a Packed> {
        // SAFETY: the caller's.
        unsafe { handle.as_ref() }.ok_or_else(|| wrong("the packed matrix is a null pointer"))
    }

    pub(crate) fn format(&self) -> Format {
        match &self.blocks {
            Blocks::Host(of) => of.format(),
            Blocks::Device(of) => of.format(),
        }
    }

    pub(crate) fn dim(&self) -> (usize, usize) {
        match &self.blocks {
            Blocks::Host(of) => of.dim(),
            Blocks::Device(of) => of.dim(),
        }
    }

    fn on_host(&self) -> Result<&gemv::Packed> {
        match &self.blocks {
            Blocks::Host(of) => Ok(of),
            Blocks::Device(of) => Err(wrong(format_args!(
                "the packed matrix is on {}: pass the one in the host's memory that it was made of",
                of.device().info().id
            ))),
        }
    }
}

fn count(number: i64, what: &str) -> Result<usize> {
    usize::try_from(number).map_err(|_| wrong(format_args!("a negative number of {what}")))
}

/// # Safety
/// The pointer is null, or of a text that ends.
pub(crate) unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<std::borrow::Cow<'a, str>> {
    if at.is_null() {
        return Err(wrong(format_args!("{what} is a null pointer")));
    }
    // SAFETY: the caller's.
    Ok(unsafe { CStr::from_ptr(at) }.to_string_lossy())
}

/// # Safety
/// As [`text`].
unsafe fn format_of(name: *const c_char) -> Result<Format> {
    // SAFETY: the caller's.
    let name = unsafe { text(name, "the format") }?;
    name.parse().map_err(|e: gemv_packed::Error| wrong(e))
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_create(
    format: *const c_char,
    rows: i64,
    columns: i64,
    blocks: *const c_void,
    size: usize,
    to: *mut *mut Packed,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let format = unsafe { format_of(format) }?;
        let dim = (count(rows, "rows")?, count(columns, "columns")?);
        if blocks.is_null() && size > 0 {
            return Err(wrong(format_args!("the blocks are a null pointer with {size} bytes")));
        }
        if size > isize::MAX as usize {
            return Err(wrong("the blocks are larger than an address space"));
        }
        let lent = Lent { first: blocks.cast(), len: size };
        let make = || Ok(Packed::host(gemv::Packed::new(format, dim, lent)?));
        // SAFETY: the caller's.
        unsafe { give(to, make) }
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_quantize(
    format: *const c_char,
    from: *const Array,
    to: *mut *mut Packed,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (format, from) = unsafe { (format_of(format)?, matrix_of_f32(from, "the array")?) };
        if from.is(RESIDENT | DEVICE) {
            return Err(wrong("the array is not in the host's memory"));
        }
        let make = || {
            // SAFETY: the caller's.
            let from = unsafe { from.view::<f32>("the array") }?;
            Ok(Packed::host(gemv::Packed::quantize(format, from.index_axis(Axis(0), 0))?))
        };
        // SAFETY: the caller's.
        unsafe { give(to, make) }
    })
}

/// # Safety
/// The pointer is null, or of a `gemv_array`.
unsafe fn matrix_of_f32(array: *const Array, name: &str) -> Result<Placed> {
    // SAFETY: the caller's.
    let placed = unsafe { Placed::of(array, name, last(2)) }?;
    if placed.dtype != gemv::Dtype::F32 {
        let has = placed.dtype;
        return Err(wrong(format_args!("{name} has elements of {has}, and has to be of f32")));
    }
    Ok(placed)
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_upload(
    on: *const Handle,
    from: *const Packed,
    to: *mut *mut Packed,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (device, from) = unsafe { (device(on)?, Packed::of(from)?) };
        let make = || {
            let there = from.on_host()?.to_device(device)?;
            Ok(Packed::new(from.format(), Blocks::Device(there)))
        };
        // SAFETY: the caller's.
        unsafe { give(to, make) }
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_rows(
    from: *const Packed,
    first: i64,
    rows: i64,
    to: *mut *mut Packed,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let from = unsafe { Packed::of(from) }?;
        let (first, rows) = (count(first, "rows")?, count(rows, "rows")?);
        let all = from.dim().0;
        let end = first.checked_add(rows).filter(|end| *end <= all);
        let end = end.ok_or_else(|| {
            wrong(format_args!("{rows} rows from row {first} on, of a matrix that has {all}"))
        })?;
        let blocks = || match &from.blocks {
            Blocks::Host(of) => Blocks::Host(of.rows(first..end)),
            Blocks::Device(of) => Blocks::Device(of.rows(first..end)),
        };
        // SAFETY: the caller's.
        unsafe { give(to, || Ok(Packed::new(from.format(), blocks()))) }
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_free(of: *mut Packed) {
    // SAFETY: the caller's.
    unsafe { free(of) };
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_format(of: *const Packed) -> *const c_char {
    // SAFETY: the caller's.
    unsafe { of.as_ref() }.map_or(c"".as_ptr(), |of| of.format.as_ptr())
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_shape(
    of: *const Packed,
    rows: *mut i64,
    columns: *mut i64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (m, n) = unsafe { Packed::of(of) }?.dim();
        // SAFETY: the caller's: null, or places for numbers.
        for (to, number) in unsafe { [(rows.as_mut(), m), (columns.as_mut(), n)] } {
            if let Some(to) = to {
                *to = i64::try_from(number).map_err(|_| wrong("more than an int64_t has"))?;
            }
        }
        Ok(())
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_blocks(
    of: *const Packed,
    blocks: *mut *const c_void,
    size: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let bytes = unsafe { Packed::of(of) }?.on_host()?.bytes();
        // SAFETY: the caller's: null, or places for them.
        unsafe {
            if let Some(blocks) = blocks.as_mut() {
                *blocks = bytes.as_ptr().cast();
            }
            if let Some(size) = size.as_mut() {
                *size = bytes.len();
            }
        }
        Ok(())
    })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_dequantize(of: *const Packed, to: *const Array) -> Status {
    guarded(|| {
        // SAFETY: the caller's.
        let (of, to) = unsafe { (Packed::of(of)?.on_host()?, matrix_of_f32(to, "the array")?) };
        check_host_result(&to, "the array")?;
        let (m, n) = of.dim();
        if (to.dim[1], to.dim[2]) != (m, n) {
            return Err(wrong(format_args!(
                "the array is {} × {}, and the packed matrix {m} × {n}",
                to.dim[1], to.dim[2]
            )));
        }
        let mut line = zeros_on_host::<f32>(n)?;
        // SAFETY: the caller's.
        let mut to = unsafe { to.view_mut::<f32>("the array") }?;
        in_default(|| {
            for row in 0..m {
                of.format().dequantize(of.rows(row..row + 1).bytes(), &mut line);
                let to = to.slice_mut(s![0, row, ..]);
                to.into_iter().zip(&line).for_each(|(to, from)| *to = *from);
            }
        });
        Ok(())
    })
}
