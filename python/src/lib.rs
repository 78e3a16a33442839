//! The extension module `gemv._gemv`: products of arrays of any library of Python, by gemv.
//!
//! The functions are documented where Python shows them; `docs/python.md` has programs.
#![deny(unsafe_code)]

mod array;
mod errors;
#[allow(unsafe_code)] // the C interfaces of NumPy and DLPack, and tensors of their addresses
mod ffi;
mod layout;
mod methods;
mod operands;
mod packed;
mod packed_methods;
mod products;
mod weights;

use gemv::Dtype;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Every device of the machine, and for a backend without any, why.
#[pyfunction]
fn _devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let lines = py.detach(gemv::devices);
    let described = lines.into_iter().map(|line| {
        let of = PyDict::new(py);
        of.set_item("id", line.id)?;
        match line.found {
            Ok(info) => {
                of.set_item("name", info.name)?;
                of.set_item("units", info.units)?;
                of.set_item("memory", info.memory)?;
                of.set_item("driver", info.driver)?;
                of.set_item("why_not", py.None())?;
            }
            Err(why) => of.set_item("why_not", why.to_string())?,
        }
        Ok(of)
    });
    described.collect()
}

#[pymodule(gil_used = false)]
fn _gemv(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("__order_version__", gemv::unstable::order::VERSION)?;
    let pairs = Dtype::MIXED.map(|(a, x)| (a.numpy_name(), x.numpy_name()));
    m.add("_TYPES", Dtype::ALL.map(Dtype::numpy_name))?;
    m.add("_MIXED", pairs)?;
    m.add_class::<array::Array>()?;
    m.add_class::<packed::Packed>()?;
    m.add_class::<weights::WeightFile>()?;
    m.add_function(wrap_pyfunction!(products::matvec, m)?)?;
    m.add_function(wrap_pyfunction!(products::matmul, m)?)?;
    m.add_function(wrap_pyfunction!(products::vecdot, m)?)?;
    m.add_function(wrap_pyfunction!(products::_direct_mv, m)?)?;
    m.add_function(wrap_pyfunction!(products::_mv, m)?)?;
    m.add_function(wrap_pyfunction!(products::_mm, m)?)?;
    m.add_function(wrap_pyfunction!(products::_bmm, m)?)?;
    m.add_function(wrap_pyfunction!(methods::asarray, m)?)?;
    m.add_function(wrap_pyfunction!(_devices, m)?)
}
