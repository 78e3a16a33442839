//! DLPack, of which the version is 1: what a library lends of its arrays in the host's memory.
//!
//! The layouts are those of `dlpack.h`, which a major version keeps. Devices: 1 is the host, 3 the host's memory that CUDA
//! has pinned.

use std::ffi::{CStr, c_void};

use gemv::unstable::Dtype;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::place::{ASTYPE, Address, Library, Operand, Place, check_address, no_such_type};
use crate::errors;
use crate::layout::{Layout, MAX_AXES, check_axes};

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DlDevice {
    pub kind: i32,
    pub ordinal: i32,
}

impl DlDevice {
    /// Whether a program reads it as it reads its own memory.
    pub fn is_host(self) -> bool {
        matches!(self.kind, 1 | 3)
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DlType {
    pub fn new(dtype: Dtype) -> DlType {
        let code = match dtype {
            Dtype::F16 | Dtype::F32 | Dtype::F64 => 2,
            Dtype::Bf16 => 4,
            Dtype::C32 | Dtype::C64 => 5,
        };
        DlType { code, bits: 8 * dtype.bytes() as u8, lanes: 1 }
    }

    fn dtype(self) -> Result<Dtype, String> {
        match (self.code, self.bits, self.lanes) {
            (2, 16, 1) => Ok(Dtype::F16),
            (2, 32, 1) => Ok(Dtype::F32),
            (2, 64, 1) => Ok(Dtype::F64),
            (4, 16, 1) => Ok(Dtype::Bf16),
            (5, 64, 1) => Ok(Dtype::C32),
            (5, 128, 1) => Ok(Dtype::C64),
            (0, bits, 1) => Err(format!("int{bits}")),
            (1, bits, 1) => Err(format!("uint{bits}")),
            (6, ..) => Err("bool".into()),
            (5, 32, 1) => Err("complex32".into()),
            // Those of DLPack 1.1, with 8 bits or less.
            (7, ..) => Err("float8_e3m4".into()),
            (8, ..) => Err("float8_e4m3".into()),
            (9, ..) => Err("float8_e4m3b11fnuz".into()),
            (10, ..) => Err("float8_e4m3fn".into()),
            (11, ..) => Err("float8_e4m3fnuz".into()),
            (12, ..) => Err("float8_e5m2".into()),
            (13, ..) => Err("float8_e5m2fnuz".into()),
            (14, ..) => Err("float8_e8m0fnu".into()),
            (15, ..) => Err("float6_e2m3fn".into()),
            (16, ..) => Err("float6_e3m2fn".into()),
            (17, ..) => Err("float4_e2m1fn".into()),
            (code, bits, lanes) => {
                Err(format!("DLPack's type {code} of {bits} bits in {lanes} lanes"))
            }
        }
    }
}

#[repr(C)]
#[derive(Debug)]
pub struct DlTensor {
    pub data: *mut c_void,
    pub device: DlDevice,
    pub axes: i32,
    pub dtype: DlType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub offset: u64,
}

impl DlTensor {
    pub fn dtype_is_complex(&self) -> bool {
        self.dtype.code == 5
    }

    /// The same of a tensor of so many axes, with strides; `None` for any other, and types that have no product.
    #[inline]
    pub fn plain<const N: usize>(&self) -> Option<(Dtype, [usize; 2], [isize; 2], *mut u8)> {
        if self.axes as usize != N || self.strides.is_null() {
            return None;
        }
        let (mut dim, mut strides) = ([1; 2], [0; 2]);
        for axis in 0..N {
            // SAFETY: DLPack's: there are as many as axes.
            (dim[axis], strides[axis]) =
                unsafe { (*self.shape.add(axis) as usize, *self.strides.add(axis) as isize) };
        }
        let at = self.data.cast::<u8>().wrapping_add(self.offset as usize);
        Some((self.dtype.dtype().ok()?, dim, strides, at))
    }

    /// What it says of its entries, and the address of the first. `convert` is how its library makes entries of float64.
    pub fn read(&self, name: &str, convert: &str) -> PyResult<(Dtype, Layout, *mut u8)> {
        let dtype = self.dtype.dtype().map_err(|what| no_such_type(name, &what, convert))?;
        let axes = self.axes as usize;
        check_axes(name, axes)?;
        let (mut dim, mut strides) = ([0usize; MAX_AXES], [0isize; MAX_AXES]);
        for (axis, entries) in dim.iter_mut().enumerate().take(axes) {
            // SAFETY: DLPack's: there are as many as axes.
            *entries = unsafe { *self.shape.add(axis) } as usize;
        }
        let layout = if self.strides.is_null() {
            Layout::packed(&dim[..axes])
        } else {
            for (axis, stride) in strides.iter_mut().enumerate().take(axes) {
                // SAFETY: as above.
                *stride = unsafe { *self.strides.add(axis) } as isize;
            }
            Layout::new(dim.into_iter().zip(strides).take(axes))
        };
        Ok((dtype, layout, self.data.cast::<u8>().wrapping_add(self.offset as usize)))
    }

    /// The place of its entries, which are in the host's memory.
    pub fn place(&self, name: &str, writable: bool) -> PyResult<(Dtype, Layout, Place)> {
        let (dtype, layout, at) = self.read(name, ASTYPE)?;
        check_address(name, at, dtype, &layout)?;
        Ok((dtype, layout, Place::Host { at: Address(at), writable }))
    }
}

#[repr(C)]
pub struct Unversioned {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

#[repr(C)]
pub struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    pub tensor: DlTensor,
}

const READ_ONLY: u64 = 1;

/// What a library lent; given back on drop.
pub enum Managed {
    Unversioned(*mut Unversioned),
    Versioned(*mut Versioned),
}

impl Managed {
    /// The tensor in a capsule, which is marked as taken.
    fn of(capsule: &Bound<'_, PyAny>) -> PyResult<Managed> {
        const OLD: &CStr = c"dltensor";
        const NEW: &CStr = c"dltensor_versioned";
        let object = capsule.as_ptr();
        // SAFETY: a capsule of this name holds such a tensor; by the other name nobody takes it again.
        unsafe {
            if ffi::PyCapsule_IsValid(object, NEW.as_ptr()) == 1 {
                let managed = ffi::PyCapsule_GetPointer(object, NEW.as_ptr()).cast::<Versioned>();
                if (*managed).major != 1 {
                    return Err(PyBufferError::new_err(format!(
                        "the array is lent by DLPack {}, and this is written for DLPack 1",
                        (*managed).major
                    )));
                }
                ffi::PyCapsule_SetName(object, c"used_dltensor_versioned".as_ptr());
                return Ok(Managed::Versioned(managed));
            }
            if ffi::PyCapsule_IsValid(object, OLD.as_ptr()) == 1 {
                let managed = ffi::PyCapsule_GetPointer(object, OLD.as_ptr()).cast::<Unversioned>();
                ffi::PyCapsule_SetName(object, c"used_dltensor".as_ptr());
                return Ok(Managed::Unversioned(managed));
            }
        }
        Err(errors::kind("__dlpack__ did not return a capsule of DLPack"))
    }

    fn tensor(&self) -> &DlTensor {
        // SAFETY: it is there until it is given back.
        unsafe {
            match self {
                Managed::Unversioned(of) => &(**of).tensor,
                Managed::Versioned(of) => &(**of).tensor,
            }
        }
    }

    /// Whether it may be written. A tensor without a version does not say; such libraries' arrays never change (JAX).
    fn is_writable(&self) -> bool {
        match self {
            Managed::Unversioned(_) => false,
            // SAFETY: as in `tensor`.
            Managed::Versioned(of) => unsafe { (**of).flags & READ_ONLY == 0 },
        }
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: it was taken once, and its deleter is called once.
        unsafe {
            match *self {
                Managed::Unversioned(of) => {
                    if let Some(delete) = (*of).deleter {
                        delete(of);
                    }
                }
                Managed::Versioned(of) => {
                    if let Some(delete) = (*of).deleter {
                        delete(of);
                    }
                }
            }
        }
    }
}

/// Whether it says that it is in the memory of a GPU of CUDA.
pub fn is_on_cuda(a: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(device(a)?.kind == 2)
}

fn device(a: &Bound<'_, PyAny>) -> PyResult<DlDevice> {
    let of = match a.call_method0(intern!(a.py(), "__dlpack_device__")) {
        // A value that a program is traced with.
        Err(e) if e.is_instance_of::<PyAttributeError>(a.py()) => {
            return Err(errors::kind(format!(
                "a {} has no entries yet: inside of jax.jit use gemv.jax",
                a.get_type().fully_qualified_name()?
            )));
        }
        other => other?,
    };
    let (kind, ordinal) = of.extract()?;
    Ok(DlDevice { kind, ordinal })
}

/// An array that its library lends.
pub fn operand<'py>(a: &Bound<'py, PyAny>, name: &str) -> PyResult<Operand<'py>> {
    let py = a.py();
    let of = device(a)?;
    if !of.is_host() {
        return Err(elsewhere(name, of));
    }
    let named = PyDict::new(py);
    named.set_item("max_version", (1, 0))?;
    let export = a.getattr(intern!(py, "__dlpack__"))?;
    let capsule = match export.call((), Some(&named)) {
        // Libraries of before DLPack 1 do not know the argument.
        Err(e) if e.is_instance_of::<PyTypeError>(py) => export.call0()?,
        other => other?,
    };
    let managed = Managed::of(&capsule)?;
    let (dtype, layout, place) = managed.tensor().place(name, managed.is_writable())?;
    let library = Library::Other(a.clone(), Box::new(managed));
    Ok(Operand { layout, dtype, place, device: None, library })
}

/// Refuses an array that the host's processor does not read.
pub fn elsewhere(name: &str, device: DlDevice) -> PyErr {
    let what = match device.kind {
        2 | 13 => "a CUDA GPU's memory",
        4 => "an OpenCL device's memory",
        10 => "a ROCm GPU's memory",
        _ => "another device's memory",
    };
    errors::value(format!(
        "{name} is in {what} (DLPack's device {}:{}), and there are products of arrays in the host's, of torch's tensors on CUDA, \
         and of those with __cuda_array_interface__: gemv.asarray(.., device=..) makes one on a device",
        device.kind, device.ordinal
    ))
}
