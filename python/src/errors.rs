//! Exceptions of the kinds that NumPy raises.

use gemv::Error;
use gemv::unstable::Dtype;
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};

pub fn value(sentence: impl Into<String>) -> PyErr {
    PyValueError::new_err(sentence.into())
}

pub fn kind(sentence: impl Into<String>) -> PyErr {
    PyTypeError::new_err(sentence.into())
}

/// What the library refuses.
pub fn of(error: Error) -> PyErr {
    let sentence = error.to_string();
    match error {
        Error::Shape(_)
        | Error::Operand { .. }
        | Error::Packed(_)
        | Error::NoDevice { .. }
        | Error::WrongDevice { .. } => value(sentence),
        Error::OutOfMemory { .. } => PyMemoryError::new_err(sentence),
        _ => PyRuntimeError::new_err(sentence),
    }
}

/// NumPy's name of an element type.
pub fn name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
        Dtype::F32 => "float32",
        Dtype::F64 => "float64",
        Dtype::C32 => "complex64",
        Dtype::C64 => "complex128",
    }
}

/// A shape as Python writes it.
pub fn shape(dim: &[usize]) -> String {
    match dim {
        [one] => format!("({one},)"),
        _ => {
            let all: Vec<_> = dim.iter().map(usize::to_string).collect();
            format!("({})", all.join(", "))
        }
    }
}
