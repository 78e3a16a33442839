//! Exceptions of the kinds that NumPy raises.

use gemv::Error;
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
