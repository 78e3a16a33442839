//! Which array an object is.

use pyo3::prelude::*;

use crate::array::Array;
use crate::errors;
use crate::ffi::place::Operand;
use crate::ffi::{cuda, dlpack, numpy, torch};

/// The array behind an object, by the first way there is: it is NumPy's, this package's, torch's, or its library lends
/// it by DLPack or NumPy's interface. `name` is what errors call it.
#[inline]
pub fn of<'py>(a: &Bound<'py, PyAny>, name: &str) -> PyResult<Operand<'py>> {
    match numpy::operand(a, name) {
        Some(operand) => operand,
        None => other(a, name),
    }
}

#[inline(never)]
fn other<'py>(a: &Bound<'py, PyAny>, name: &str) -> PyResult<Operand<'py>> {
    if let Ok(array) = a.cast::<Array>() {
        return Ok(array.get().operand());
    }
    if let Some(torch) = torch::torch(a)? {
        return torch.operand(a, name, true);
    }
    let has = |what: &str| a.get_type().hasattr(what);
    // Asked on the host, JAX's arrays refuse the interface that their type has.
    let interface = has("__cuda_array_interface__")?;
    if has("__dlpack__")? && !(interface && dlpack::is_on_cuda(a)?) {
        return dlpack::operand(a, name);
    }
    if interface {
        return cuda::operand(a, name);
    }
    if has("__array_interface__")? || has("__array_struct__")? {
        let numpy = numpy::as_array(a)?;
        if let Some(operand) = numpy::operand(&numpy, name) {
            return operand;
        }
    }
    Err(errors::kind(format!(
        "{name} is a {}, and no array: it has neither __dlpack__ nor __array_interface__",
        a.get_type().fully_qualified_name()?
    )))
}
