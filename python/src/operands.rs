//! Which array an object is.

use gemv::unstable::Dtype;
use pyo3::prelude::*;

use crate::array::Array;
use crate::errors;
use crate::ffi::place::{Library, Operand, Place};
use crate::ffi::{cuda, dlpack, numpy, torch};
use crate::layout::Layout;
use crate::packed::Packed;

/// The array behind an object, by the first way there is: it is NumPy's, this package's, torch's, or its library lends
/// it by DLPack or NumPy's interface. `name` is what errors call it.
#[inline]
pub fn of<'py>(a: &Bound<'py, PyAny>, name: &str) -> PyResult<Operand<'py>> {
    match if_any(a, name)? {
        Some(operand) => Ok(operand),
        None => Err(no_array(a, name)),
    }
}

/// The same; `None` of an object that is no array.
#[inline]
pub fn if_any<'py>(a: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Operand<'py>>> {
    match numpy::operand(a, name) {
        Some(operand) => operand.map(Some),
        None => other(a, name),
    }
}

#[inline(never)]
fn other<'py>(a: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Operand<'py>>> {
    if let Ok(array) = a.cast::<Array>() {
        return Ok(Some(array.get().operand()));
    }
    if let Ok(matrix) = a.cast::<Packed>() {
        return Ok(Some(packed(matrix.get())));
    }
    if let Some(torch) = torch::torch(a)? {
        return torch.operand(a, name, true).map(Some);
    }
    let has = |what: &str| a.get_type().hasattr(what);
    // Asked on the host, JAX's arrays refuse the interface that their type has.
    let interface = has("__cuda_array_interface__")?;
    if has("__dlpack__")? && !(interface && dlpack::is_on_cuda(a)?) {
        return dlpack::operand(a, name).map(Some);
    }
    if interface {
        // Its work is on streams that nothing names, and its arrays are not written.
        if is_of(a, "jax")? || is_of(a, "jaxlib")? {
            return Err(errors::value(format!(
                "{name} is an array of JAX in a GPU's memory, which is not taken: pass \
                 jax.device_put({name}, jax.devices('cpu')[0])"
            )));
        }
        return cuda::operand(a, name).map(Some);
    }
    if has("__array_interface__")? || has("__array_struct__")? {
        let numpy = numpy::as_array(a)?;
        return numpy::operand(&numpy, name).transpose();
    }
    Ok(None)
}

/// A packed matrix as an operand. Its element type is that of the vectors, once these are known.
pub fn packed<'py>(of: &Packed) -> Operand<'py> {
    let ((m, n), device) = (of.dim(), of.device().cloned());
    Operand {
        layout: Layout::packed(&[m, n]),
        dtype: Dtype::F32,
        place: Place::Packed(of.clone()),
        device,
        library: Library::Packed,
    }
}

/// Whether an object's type is of this package.
fn is_of(a: &Bound<'_, PyAny>, package: &str) -> PyResult<bool> {
    let module = a.get_type().getattr("__module__")?.str()?.to_string();
    Ok(module.split('.').next() == Some(package))
}

#[cold]
fn no_array(a: &Bound<'_, PyAny>, name: &str) -> PyErr {
    let class = match a.get_type().fully_qualified_name() {
        Ok(class) => class.to_string(),
        Err(e) => return e,
    };
    errors::kind(if class.starts_with("scipy.sparse") {
        format!(
            "{name} is a {class}, and there are products of dense arrays: pass {name}.toarray()"
        )
    } else {
        format!(
            "{name} is a {class}, and no array: it has neither __dlpack__ nor __array_interface__"
        )
    })
}
