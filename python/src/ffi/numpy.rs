//! NumPy's arrays, by its C interface.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

use gemv::unstable::Dtype;
use numpy::npyffi::flags::{NPY_ARRAY_ALIGNED, NPY_ARRAY_WRITEABLE};
use numpy::npyffi::objects::{_PyArray_GET_ITEM_DATA, _PyDataType_GET_ITEM_DATA, PyArray_Descr};
use numpy::npyffi::types::NPY_TYPES;
use numpy::npyffi::{NpyTypes, PY_ARRAY_API, PyArray_Check, PyArray_CheckExact, get_type_object};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::place::{
    ASTYPE, Address, Library, Operand, Place, Plain, check_address, instead, no_such_type,
    not_aligned,
};
use crate::errors;
use crate::layout::{Layout, MAX_AXES, check_axes};

/// The number of ml_dtypes' bfloat16 among NumPy's types, which it gets when it is imported; -1 while it is not known.
static BF16: AtomicI32 = AtomicI32::new(-1);

/// The array behind an object; `None` if it is no array of NumPy.
///
/// An array's type is not looked at by names but where it is not NumPy's own.
#[inline]
pub fn operand<'py>(a: &Bound<'py, PyAny>, name: &str) -> Option<PyResult<Operand<'py>>> {
    let (py, object) = (a.py(), a.as_ptr());
    // SAFETY: an object, with the interpreter attached.
    unsafe {
        if PyArray_CheckExact(py, object) == 0 {
            if PyArray_Check(py, object) == 0 {
                return None;
            }
            if let Err(e) = check_subclass(a, name) {
                return Some(Err(e));
            }
        }
    }
    Some(of_array(a, name))
}

/// A subclass may mean something else by its entries: a masked array, which would be multiplied with what its mask hides.
#[cold]
fn check_subclass(a: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    if a.hasattr(intern!(a.py(), "_mask"))? {
        return Err(errors::kind(format!(
            "{name} is a masked array, whose mask a product does not see: pass {name}.filled(0), or {name}.data"
        )));
    }
    Ok(())
}

#[inline]
fn of_array<'py>(a: &Bound<'py, PyAny>, name: &str) -> PyResult<Operand<'py>> {
    // SAFETY: it is an array, whose shape and strides have as many numbers as it has axes. It is borrowed meanwhile.
    let (data, flags, descr, dim, strides) = unsafe {
        let of = _PyArray_GET_ITEM_DATA(a.as_ptr().cast());
        let axes = (*of).nd as usize;
        check_axes(name, axes)?;
        let (mut dim, mut strides) = ([0; MAX_AXES], [0; MAX_AXES]);
        for axis in 0..axes {
            dim[axis] = *(*of).dimensions.add(axis);
            strides[axis] = *(*of).strides.add(axis);
        }
        ((*of).data, (*of).flags, (*of).descr, (axes, dim), strides)
    };
    let dtype = element(a, name, descr)?;
    let size = dtype.bytes() as isize;
    let (axes, dim) = dim;
    let all = dim.iter().zip(strides).take(axes);
    let layout =
        Layout::new(all.clone().map(|(&entries, stride)| (entries as usize, stride / size)));
    if !layout.is_empty() {
        // Of a field of records, strides may be no multiple of an entry.
        let whole = all.clone().all(|(&entries, stride)| entries == 1 || stride % size == 0);
        if flags & NPY_ARRAY_ALIGNED == 0 || !whole {
            return Err(not_aligned(name, dtype));
        }
    }
    check_address(name, data.cast(), dtype, &layout)?;
    let place =
        Place::Host { at: Address(data.cast()), writable: flags & NPY_ARRAY_WRITEABLE != 0 };
    Ok(Operand { layout, dtype, place, device: None, library: Library::NumPy(a.clone()) })
}

/// An array of NumPy of so many axes, of which nothing has to be refused; `None` for any other object.
///
/// The common case takes half of the time of the general one, most of which goes by copies of shapes of any number of axes.
#[inline(always)]
pub fn plain<const N: usize>(a: &Bound<'_, PyAny>) -> Option<Plain> {
    // SAFETY: an object, with the interpreter attached.
    if unsafe { PyArray_CheckExact(a.py(), a.as_ptr()) } == 0 {
        return None;
    }
    let (mut dim, mut strides) = ([1; 2], [0; 2]);
    // SAFETY: as in `of_array`.
    let (data, descr) = unsafe {
        let of = _PyArray_GET_ITEM_DATA(a.as_ptr().cast());
        if (*of).nd as usize != N || (*of).flags & NPY_ARRAY_ALIGNED == 0 {
            return None;
        }
        for axis in 0..N {
            dim[axis] = *(*of).dimensions.add(axis) as usize;
            strides[axis] = *(*of).strides.add(axis);
        }
        ((*of).data, (*of).descr)
    };
    // SAFETY: as in `element`.
    let (number, order) = unsafe {
        let of = _PyDataType_GET_ITEM_DATA(descr);
        ((*of).type_num, (*of).byteorder as u8)
    };
    let dtype = known(number)?;
    let size = dtype.bytes() as isize;
    // A size is a power of two.
    let whole = strides.iter().all(|stride| stride & (size - 1) == 0);
    if order == SWAPPED || dim.contains(&0) || !whole || data.is_null() {
        return None;
    }
    let strides = strides.map(|stride| stride >> size.trailing_zeros());
    Some(Plain {
        dtype,
        place: Place::Host { at: Address(data.cast()), writable: false },
        dim,
        strides,
    })
}

/// The byte order that is not this machine's.
const SWAPPED: u8 = if cfg!(target_endian = "little") { b'>' } else { b'<' };

/// The element type that has a number among NumPy's types.
#[inline]
fn known(number: c_int) -> Option<Dtype> {
    const HALF: c_int = NPY_TYPES::NPY_HALF as c_int;
    const FLOAT: c_int = NPY_TYPES::NPY_FLOAT as c_int;
    const DOUBLE: c_int = NPY_TYPES::NPY_DOUBLE as c_int;
    const CFLOAT: c_int = NPY_TYPES::NPY_CFLOAT as c_int;
    const CDOUBLE: c_int = NPY_TYPES::NPY_CDOUBLE as c_int;
    match number {
        FLOAT => Some(Dtype::F32),
        DOUBLE => Some(Dtype::F64),
        HALF => Some(Dtype::F16),
        CFLOAT => Some(Dtype::C32),
        CDOUBLE => Some(Dtype::C64),
        _ => (number == BF16.load(Ordering::Relaxed)).then_some(Dtype::Bf16),
    }
}

/// The element type of an array.
#[inline]
fn element(a: &Bound<'_, PyAny>, name: &str, descr: *mut PyArray_Descr) -> PyResult<Dtype> {
    // SAFETY: an array's description, which lives as long as the array.
    let (number, order) = unsafe {
        let of = _PyDataType_GET_ITEM_DATA(descr);
        ((*of).type_num, (*of).byteorder as u8)
    };
    let Some(dtype) = known(number) else { return other_element(a, name, number) };
    if order == SWAPPED {
        return Err(errors::kind(format!(
            "{name} has the other byte order than this machine: pass {}",
            instead(name, &format!(".astype('{}')", dtype.numpy_name()))
        )));
    }
    Ok(dtype)
}

/// A type that others have registered: ml_dtypes' bfloat16, or none of these.
#[cold]
fn other_element(a: &Bound<'_, PyAny>, name: &str, number: c_int) -> PyResult<Dtype> {
    let dtype = a.getattr(intern!(a.py(), "dtype"))?;
    let text = dtype.str()?.to_string();
    let class = dtype.getattr("type")?.getattr("__module__")?.to_string();
    if text == "bfloat16" && class.starts_with("ml_dtypes") {
        BF16.store(number, Ordering::Relaxed);
        return Ok(Dtype::Bf16);
    }
    Err(no_such_type(name, &text, ASTYPE))
}

/// A new array of this shape, whose entries are not written yet, with the type of a given one.
#[inline]
pub fn new_like<'py>(like: &Bound<'py, PyAny>, dim: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: an array, and its description, of which the new one gets a reference of its own.
    unsafe {
        let descr = (*_PyArray_GET_ITEM_DATA(like.as_ptr().cast())).descr;
        ffi::Py_INCREF(descr.cast());
        make(like.py(), descr, dim)
    }
}

/// The place of a new array, which is written before anybody sees it.
#[inline]
pub fn place(new: &Bound<'_, PyAny>) -> Place {
    // SAFETY: an array.
    let data = unsafe { (*_PyArray_GET_ITEM_DATA(new.as_ptr().cast())).data };
    Place::Host { at: Address(data.cast()), writable: true }
}

/// The same of an element type.
pub fn new<'py>(py: Python<'py>, dtype: Dtype, dim: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    let descr = describe(py, dtype)?;
    // SAFETY: a description, whose reference the new array gets.
    unsafe { make(py, descr.into_ptr().cast(), dim) }
}

/// # Safety
/// `descr` is a description, and a reference to it is given away.
#[inline]
unsafe fn make<'py>(
    py: Python<'py>,
    descr: *mut PyArray_Descr,
    dim: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let mut entries = [0isize; MAX_AXES];
    for (to, &from) in entries.iter_mut().zip(dim) {
        *to = isize::try_from(from)
            .map_err(|_| errors::value("the result has more entries than can be addressed"))?;
    }
    // SAFETY: as many numbers as axes; no memory is given, so NumPy makes its own. It returns a new object or an error.
    unsafe {
        let class = get_type_object(py, NpyTypes::PyArray_Type);
        let new = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            class,
            descr,
            dim.len() as c_int,
            entries.as_mut_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, new)
    }
}

/// NumPy's description of an element type.
pub fn describe(py: Python<'_>, dtype: Dtype) -> PyResult<Bound<'_, PyAny>> {
    let numpy = PyModule::import(py, intern!(py, "numpy"))?;
    if dtype == Dtype::Bf16 {
        let types = PyModule::import(py, intern!(py, "ml_dtypes")).map_err(|_| {
            errors::kind("NumPy has bfloat16 from the package ml_dtypes, which is not installed")
        })?;
        return numpy.getattr("dtype")?.call1((types.getattr("bfloat16")?,));
    }
    numpy.getattr("dtype")?.call1((dtype.numpy_name(),))
}

/// An object with NumPy's interface as an array, without a copy.
pub fn as_array<'py>(a: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ASARRAY.import(a.py(), "numpy", "asarray")?.call1((a,))
}

/// An array without axes as NumPy's functions return it: a scalar.
pub fn scalar<'py>(a: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    a.get_item(pyo3::types::PyTuple::empty(a.py()))
}
