//! What Python does with a packed matrix.

use gemv::ndarray::Axis;
use gemv::unstable::float_mode::in_default;
use gemv::unstable::{Dtype, gemv_packed};
use gemv::{Engine, Format};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PySlice, PyString, PyTuple};

use crate::errors;
use crate::ffi::numpy;
use crate::ffi::place::{Operand, Place};
use crate::layout::Layout;
use crate::operands;
use crate::packed::{Blocks, Packed};
use crate::products::operator;

fn format_of(name: &str) -> PyResult<Format> {
    name.parse().map_err(|e: gemv_packed::Error| errors::value(e.to_string()))
}

/// Rows and columns that a caller has given.
fn pair(shape: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
    match shape.extract::<Vec<usize>>().as_deref() {
        Ok(&[m, n]) => Ok((m, n)),
        _ => Err(errors::value(format!(
            "shape is {}, and of a packed matrix it is (rows, columns)",
            shape.repr()?
        ))),
    }
}

/// Blocks as bytes that nobody writes, and the shape of the array that they were.
fn bytes_of(blocks: &Bound<'_, PyAny>) -> PyResult<(PyBackedBytes, Vec<usize>)> {
    if let Ok(bytes) = blocks.cast::<PyBytes>() {
        return Ok((bytes.clone().into(), vec![bytes.as_bytes().len()]));
    }
    let array = numpy::as_array(blocks)?;
    let dtype = array.getattr("dtype")?.str()?.to_string();
    if dtype != "uint8" {
        return Err(errors::kind(format!(
            "blocks are an array of {dtype}, and have to be bytes: an array of uint8, or bytes"
        )));
    }
    let bytes = array.call_method0("tobytes")?.cast_into::<PyBytes>().map_err(PyErr::from)?;
    Ok((bytes.into(), array.getattr("shape")?.extract()?))
}

impl Packed {
    fn on_host(&self, what: &str) -> PyResult<&gemv::Packed> {
        match &self.blocks {
            Blocks::Host(of) => Ok(of),
            Blocks::Device(of) => Err(errors::value(format!(
                "{what} is of a packed matrix in the host's memory, and this is on {}: keep the one that it was made of",
                of.device().info().id
            ))),
        }
    }
}

#[pymethods]
impl Packed {
    #[new]
    #[pyo3(signature = (format, blocks, shape=None, *, scale=1.0))]
    fn new(
        format: &str,
        blocks: &Bound<'_, PyAny>,
        shape: Option<&Bound<'_, PyAny>>,
        scale: f64,
    ) -> PyResult<Packed> {
        let format = format_of(format)?;
        let shape = shape.map(pair).transpose()?;
        let (bytes, of) = bytes_of(blocks)?;
        let dim = match (shape, &of[..]) {
            (Some(shape), _) => shape,
            (None, &[m, row]) if row.is_multiple_of(format.block_bytes()) => {
                (m, row / format.block_bytes() * format.block_len())
            }
            (None, &[_, row]) => {
                return Err(errors::value(format!(
                    "blocks have rows of {row} bytes, and a block of {format} has {}",
                    format.block_bytes()
                )));
            }
            _ => {
                return Err(errors::value(format!(
                    "shape is missing: blocks have shape {}; pass (rows, columns), or blocks with two axes",
                    errors::shape(&of)
                )));
            }
        };
        let blocks = Blocks::Host(gemv::Packed::new(format, dim, bytes).map_err(errors::of)?);
        Ok(Packed { blocks, scale: scale as f32 })
    }

    /// Rounds a matrix of float32 to a packed one, as the reference of the format does.
    ///
    /// Parameters
    /// ----------
    /// format : str
    /// a : array of float32, shape (m, n)
    ///     Of any library and any strides, in the host's memory; n is a multiple of the format's block.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If there is no such format, the shape does not fit, or a weight is NaN, infinite or too large.
    /// TypeError
    ///     If ``a`` is no array of float32.
    #[staticmethod]
    #[pyo3(signature = (format, a, /))]
    fn quantize(format: &str, a: &Bound<'_, PyAny>) -> PyResult<Packed> {
        let format = format_of(format)?;
        let Operand { layout, dtype, place, .. } = &operands::of(a, "a")?;
        let shape = errors::shape(layout.dim());
        if layout.axes() != 2 {
            return Err(errors::value(format!("a has shape {shape}, and a matrix has two axes")));
        }
        if matches!(place, Place::Packed(_)) {
            return Err(errors::kind("a is packed already: pass a.dequantize()"));
        }
        if !matches!(place, Place::Host { .. }) {
            return Err(errors::value(
                "a is not in the host's memory, where weights are packed: pass a copy there",
            ));
        }
        if *dtype != Dtype::F32 {
            return Err(errors::kind(format!(
                "a has entries of {}, and weights are packed from float32: pass a.astype('float32')",
                dtype.numpy_name()
            )));
        }
        let (dim, strides) = layout.three();
        let packed = a.py().detach(|| {
            let tensor = place.tensor(*dtype, 0, dim, strides);
            let view = tensor.view::<f32>().expect("it is in the host's memory");
            gemv::Packed::quantize(format, view.index_axis(Axis(0), 0))
        });
        Ok(Packed { blocks: Blocks::Host(packed.map_err(errors::of)?), scale: 1.0 })
    }

    /// The matrix of float32 that the blocks stand for, as a new array of NumPy. ``scale`` is not in it.
    fn dequantize<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let packed = self.on_host("dequantize")?;
        let (m, n) = packed.dim();
        let new = numpy::new(py, Dtype::F32, &[m, n])?;
        let mut place = numpy::place(&new);
        let (dim, strides) = Layout::packed(&[m, n]).three();
        py.detach(|| {
            let mut y = place.tensor_mut(Dtype::F32, 0, dim, strides);
            let mut y = y.view_mut_with::<f32>(|_| unreachable!("it is in the host's memory"));
            let to = y.as_slice_mut().expect("row by row");
            in_default(|| packed.format().dequantize(packed.bytes(), to));
        });
        Ok(new)
    }

    /// The blocks of all rows, as :class:`gemv.Packed` takes them.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.on_host("tobytes")?.bytes()))
    }

    /// A copy in a device's memory, to be multiplied many times.
    ///
    /// Parameters
    /// ----------
    /// device : str, or array
    ///     As :func:`gemv.devices` lists it, such as ``"cuda:0"``; or an array that is on a GPU, such as a tensor of torch: the
    ///     copy is for products with arrays of its library on that GPU, on its stream.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If there is no such device, the array is in the host's memory, or this is on another device already.
    /// MemoryError, RuntimeError
    ///     From the device.
    #[pyo3(signature = (device, /))]
    fn to_device(this: &Bound<'_, Self>, device: &Bound<'_, PyAny>) -> PyResult<Packed> {
        let (py, packed) = (this.py(), this.get());
        let device = if let Ok(name) = device.cast::<PyString>() {
            let name = name.to_str()?;
            py.detach(|| Engine::global().device(name)).map_err(errors::of)?
        } else {
            let like = operands::of(device, "device")?;
            like.device.ok_or_else(|| {
                errors::value("device is an array in the host's memory: pass a name, such as 'cpu'")
            })?
        };
        match packed.device() {
            Some(of) if *of == device => return Ok(packed.clone()),
            Some(_) => packed.on_host("to_device").map(drop)?,
            None => {}
        }
        py.detach(|| packed.on(&device)).map_err(errors::of)
    }

    /// The names of the formats.
    #[classattr]
    fn formats(py: Python<'_>) -> PyResult<Py<PyTuple>> {
        let names = Format::ALL.iter().map(|format| format.name());
        Ok(PyTuple::new(py, names)?.unbind())
    }

    /// The name of its format.
    #[getter]
    #[pyo3(name = "format")]
    fn format_name(&self) -> &'static str {
        self.format().name()
    }

    /// Rows and columns.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        self.dim()
    }

    /// Number of axes: 2.
    #[getter]
    fn ndim(&self) -> usize {
        2
    }

    /// Bytes of the blocks.
    #[getter]
    fn nbytes(&self) -> usize {
        let (m, n) = self.dim();
        self.format().row_bytes(n).map_or(0, |row| m * row)
    }

    /// What multiplies every product.
    #[getter]
    fn scale(&self) -> f32 {
        self.scale
    }

    /// The device that it lives on, as :func:`gemv.devices` lists it; None if it is in the host's memory.
    #[getter]
    #[pyo3(name = "device")]
    fn device_name(&self) -> Option<&str> {
        self.device().map(|device| &*device.info().id)
    }

    fn __len__(&self) -> usize {
        self.dim().0
    }

    /// Some of its rows, which share the blocks: ``A[10:20]``.
    fn __getitem__(&self, rows: &Bound<'_, PyAny>) -> PyResult<Packed> {
        let wrong = || {
            errors::kind(
                "of a packed matrix a slice of rows is taken, in steps of 1, such as a[10:20]",
            )
        };
        let slice = rows.cast::<PySlice>().map_err(|_| wrong())?;
        let of = slice.indices(self.dim().0 as isize)?;
        if of.step != 1 {
            return Err(wrong());
        }
        let first = of.start as usize;
        Ok(self.rows(first..first + of.slicelength))
    }

    fn __matmul__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        operator(operands::packed(self), other, true)
    }

    fn __rmatmul__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        operator(operands::packed(self), other, false)
    }

    /// Itself: it never changes.
    fn __copy__<'py>(this: &Bound<'py, Self>) -> Bound<'py, Self> {
        this.clone()
    }

    /// Itself.
    fn __deepcopy__<'py>(this: &Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        this.clone()
    }

    fn __repr__(&self) -> String {
        let (format, (m, n)) = (self.format(), self.dim());
        let scale = match self.scale {
            1.0 => String::new(),
            scale => format!(", scale={scale:?}"),
        };
        let device = self.device_name().map(|id| format!(", device='{id}'")).unwrap_or_default();
        format!("gemv.Packed(format='{format}', shape=({m}, {n}){scale}{device})")
    }

    /// Refused: it has no entries in memory.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__(&self, dtype: Option<&Bound<'_, PyAny>>, copy: Option<bool>) -> PyResult<()> {
        let _ = (dtype, copy);
        Err(PyTypeError::new_err(
            "a gemv.Packed is no array of numbers: dequantize() makes one, and tobytes() gives the blocks",
        ))
    }

    /// NumPy leaves products with this to :meth:`__rmatmul__`, which refuses them.
    #[classattr]
    #[pyo3(name = "__array_ufunc__")]
    const ARRAY_UFUNC: Option<bool> = None;
}
