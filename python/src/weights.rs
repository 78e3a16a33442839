//! Files of weights.

use std::path::PathBuf;

use gemv::unstable::Dtype;
use gemv_weights::{Elements, Matrix};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors;
use crate::ffi::numpy;
use crate::layout::{Layout, check_axes};
use crate::packed::{Blocks, Packed};

/// A file of weights, GGUF or safetensors, mapped into memory.
///
/// It must stay as it is while it is open, and while a matrix of it is; where it is cut, reading what is gone ends the process with
/// a signal. To be replaced, another is renamed over it.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
/// gptq_version : int, optional
///     How zeros of GPTQ are stored: 1, as one less, or 2, which a model's ``config.json`` calls ``gptq_v2``.
///
/// Raises
/// ------
/// OSError
///     If the file cannot be read.
/// ValueError
///     If it is of neither kind, or not well formed.
///
/// Examples
/// --------
/// >>> import json, pathlib, tempfile, gemv
/// >>> header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
/// >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.safetensors"
/// >>> _ = path.write_bytes(len(header).to_bytes(8, "little") + header + bytes([0, 0, 128, 63] * 2))
/// >>> file = gemv.WeightFile(path)
/// >>> file.tensors()
/// {'a': ('float32', (2,))}
/// >>> file.load("a")
/// array([1., 1.], dtype=float32)
#[pyclass(frozen, module = "gemv")]
pub struct WeightFile {
    file: gemv_weights::WeightFile,
}

fn wrong(error: gemv_weights::Error) -> PyErr {
    errors::value(error.to_string())
}

/// The name of what the elements of a tensor are.
fn kind(elements: Elements) -> &'static str {
    match elements {
        Elements::Plain(dtype) => dtype.numpy_name(),
        other => other.name(),
    }
}

#[pymethods]
impl WeightFile {
    #[new]
    #[pyo3(signature = (path, *, gptq_version=1))]
    fn new(py: Python<'_>, path: PathBuf, gptq_version: u32) -> PyResult<WeightFile> {
        py.detach(|| {
            // Python has an exception for each reason.
            std::fs::metadata(&path)
                .map_err(|e| std::io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
            let file = gemv_weights::WeightFile::open(&path).map_err(wrong)?;
            Ok(WeightFile { file: file.gptq_version(gptq_version) })
        })
    }

    /// What each tensor is, and its shape, by its name, in the order of the file: a format of :class:`gemv.Packed`, a type of
    /// NumPy, or the file's own word for what has no product by itself.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for tensor in self.file.tensors() {
            let shape = PyTuple::new(py, tensor.shape())?;
            all.set_item(tensor.name(), (kind(tensor.elements()), shape))?;
        }
        Ok(all)
    }

    /// A tensor as a new array of NumPy, or a packed matrix.
    ///
    /// All axes of a packed tensor but the last are rows. Its blocks are the file's own, not copied. Where a file has codes and
    /// scales as tensors of their own, such as those of GPTQ and AWQ, blocks are put together; the name is then that of the
    /// layer, or of its codes.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If there is no such tensor, or one that belongs to it; if there are no products of its elements.
    #[pyo3(signature = (name, /))]
    fn load<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let Matrix { rows, columns, elements, bytes, alpha } =
            py.detach(|| self.file.matrix(name)).map_err(wrong)?;
        match elements {
            Elements::Packed(format) => {
                let packed = gemv::Packed::new(format, (rows, columns), bytes);
                let blocks = Blocks::Host(packed.map_err(errors::of)?);
                Ok(Bound::new(py, Packed { blocks, scale: alpha })?.into_any())
            }
            Elements::Plain(dtype) => {
                let own = self.file.tensor(name).map(|tensor| tensor.shape().to_vec());
                let shape = own.unwrap_or(vec![rows, columns]);
                check_axes(name, shape.len())?;
                array(py, dtype, &shape, &bytes)
            }
            Elements::Other(of) => Err(errors::value(format!("{name}: {of} has no products"))),
        }
    }

    fn __repr__(&self) -> String {
        let tensors = self.file.tensors().len();
        format!("gemv.WeightFile({:?}, {tensors} tensors)", self.file.name())
    }
}

/// Numbers of a file, whose bytes lie anywhere, as a new array.
fn array<'py>(
    py: Python<'py>,
    dtype: Dtype,
    shape: &[usize],
    bytes: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let new = numpy::new(py, dtype, shape)?;
    let mut place = numpy::place(&new);
    let len = bytes.len() / dtype.bytes();
    py.detach(|| {
        let (dim, strides) = Layout::packed(&[len]).three();
        let mut to = place.tensor_mut(dtype, 0, dim, strides);
        if cfg!(target_endian = "little") {
            return to.assign(bytes);
        }
        let turned = bytes.chunks_exact(dtype.bytes()).flat_map(|of| of.iter().rev().copied());
        to.assign(&turned.collect::<Vec<u8>>());
    });
    Ok(new)
}
