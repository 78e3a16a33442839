//! What Python does with a resident array.

use gemv::unstable::{Dtype, Element, Slices, for_types, span};
use gemv::{Device, Engine};
use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::array::{Array, MOST};
use crate::errors;
use crate::ffi::numpy;
use crate::ffi::place::Operand;
use crate::layout::Layout;
use crate::operands;
use crate::packed::Packed;
use crate::products::operator;

impl Array {
    /// A copy of the host's.
    fn upload(py: Python<'_>, device: Device, a: &Operand<'_>) -> PyResult<Array> {
        let (dtype, (dim, strides)) = (a.dtype, a.layout.three());
        let place = &a.place;
        let backend = &device;
        let (memory, first, strides) = py
            .detach(|| {
                let tensor = place.tensor(dtype, 0, dim, strides);
                for_types!((dtype, dtype), T, V => {
                    let span = span(&tensor.view::<T>().expect("it is in the host's memory"))?;
                    let memory = backend.backend().upload(T::any::<Slices>(&span.data))?;
                    Ok((memory, span.first, [0, 1, 2].map(|axis| span.stride(axis))))
                })
            })
            .map_err(errors::of)?;
        let axes = a.layout.axes();
        let layout =
            Layout::new(a.layout.dim().iter().copied().zip(strides[MOST - axes..].iter().copied()));
        Ok(Array { device, memory: memory.into(), dtype, first, layout })
    }
}

#[pymethods]
impl Array {
    /// Number of entries along each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.dim())
    }

    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.layout.axes()
    }

    /// Number of entries.
    #[getter]
    fn size(&self) -> usize {
        self.layout.entries()
    }

    /// The element type, as NumPy describes it; of bfloat16 its name where ml_dtypes is not installed.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match numpy::describe(py, self.dtype) {
            Err(_) if self.dtype == Dtype::Bf16 => Ok("bfloat16".into_pyobject(py)?.into_any()),
            described => described,
        }
    }

    /// The device that it lives on, as :func:`gemv.devices` lists it.
    #[getter]
    fn device(&self) -> &str {
        &self.device.info().id
    }

    /// The transpose of a matrix, of the same memory.
    #[getter(T)]
    fn transpose(&self) -> PyResult<Array> {
        if self.layout.axes() != 2 {
            let shape = errors::shape(self.layout.dim());
            return Err(errors::value(format!(
                "T is of a matrix, and this has shape {shape}: mT swaps the last two axes"
            )));
        }
        Ok(self.view(self.layout.transposed()))
    }

    /// With the last two axes swapped, of the same memory.
    #[getter(mT)]
    fn matrix_transpose(&self) -> PyResult<Array> {
        if self.layout.axes() < 2 {
            let shape = errors::shape(self.layout.dim());
            return Err(errors::value(format!(
                "mT swaps the last two axes, and this has shape {shape}"
            )));
        }
        Ok(self.view(self.layout.transposed()))
    }

    fn __matmul__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        operator(self.operand(), other, true)
    }

    fn __rmatmul__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        operator(self.operand(), other, false)
    }

    /// Itself: it never changes.
    fn __copy__<'py>(this: &Bound<'py, Self>) -> Bound<'py, Self> {
        this.clone()
    }

    /// Itself.
    fn __deepcopy__<'py>(this: &Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        this.clone()
    }

    fn __len__(&self) -> PyResult<usize> {
        let none = || errors::kind("an array without axes has no length");
        self.layout.dim().first().copied().ok_or_else(none)
    }

    fn __repr__(&self) -> String {
        let (shape, dtype) = (errors::shape(self.layout.dim()), self.dtype.numpy_name());
        format!("gemv.Array(shape={shape}, dtype={dtype}, device='{}')", self.device())
    }

    /// A copy in the host's memory, for ``numpy.asarray``.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(errors::value(
                "a resident array comes to the host as a copy, which copy=False forbids",
            ));
        }
        let array = self.download(py)?;
        match dtype {
            Some(dtype) if !dtype.is_none() => array.call_method1(intern!(py, "astype"), (dtype,)),
            _ => Ok(array),
        }
    }

    /// The device in the terms of DLPack: its type and number.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let id = self.device();
        let number = id.split_once(':').and_then(|(_, number)| number.parse().ok()).unwrap_or(0);
        match id {
            id if id.starts_with("cuda") => (2, number),
            id if id.starts_with("opencl") => (4, number),
            _ => (1, 0),
        }
    }

    /// A copy of the entries in the host's memory, for ``from_dlpack``.
    ///
    /// Raises
    /// ------
    /// BufferError
    ///     If the device's own memory is asked for, or no copy is allowed.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let refuse = |sentence: String| Err(PyBufferError::new_err(sentence));
        let device = self.device();
        if copy == Some(false) {
            return refuse(format!(
                "an array on {device} is lent as a copy, which copy=False forbids"
            ));
        }
        if dl_device.unwrap_or_else(|| self.__dlpack_device__()).0 != 1 {
            return refuse(format!(
                "memory of {device} is not lent: ask for a copy on the host by dl_device=(1, 0), or numpy.asarray"
            ));
        }
        if stream.is_some_and(|stream| !stream.is_none()) {
            return refuse("the host's memory has no streams".into());
        }
        let array = self.download(py)?;
        let named = PyDict::new(py);
        if let Some(version) = max_version.filter(|version| !version.is_none()) {
            // Of a NumPy that knows it.
            if array
                .get_type()
                .getattr("__dlpack__")?
                .getattr("__doc__")?
                .str()?
                .to_string()
                .contains("max_version")
            {
                named.set_item("max_version", version)?;
            }
        }
        array.call_method("__dlpack__", (), Some(&named))
    }

    /// NumPy leaves products with this to :meth:`__rmatmul__`.
    #[classattr]
    #[pyo3(name = "__array_ufunc__")]
    const ARRAY_UFUNC: Option<bool> = None;
}

/// asarray(a, /, *, device=None)
/// --
///
/// A copy of an array in a device's memory, to be multiplied many times.
///
/// Parameters
/// ----------
/// a : array of at most 3 axes
/// device : str, optional
///     As :func:`gemv.devices` lists it, such as ``"cuda:0"``; ``"cuda"`` is the first one. By default that of products of
///     host arrays.
///
/// Returns
/// -------
/// gemv.Array
///     ``a`` itself if it is on that device already.
///
/// Raises
/// ------
/// ValueError
///     If there is no such device, or the array has more axes.
/// TypeError
///     If there is no product of its element type.
/// MemoryError, RuntimeError
///     From the device.
///
/// Examples
/// --------
/// >>> import numpy as np, gemv
/// >>> gemv.asarray(np.eye(2), device="cpu") @ np.array([1.0, 2.0])
/// array([1., 2.])
#[pyfunction]
#[pyo3(signature = (a, /, *, device=None), text_signature = None)]
pub fn asarray<'py>(a: &Bound<'py, PyAny>, device: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
    let py = a.py();
    if a.is_instance_of::<Packed>() {
        return Err(errors::kind("a is a gemv.Packed: a.to_device('cuda:0') is one on a device"));
    }
    let open = || match device {
        Some(name) => Engine::global().device(name),
        None => Engine::global().default_device(),
    };
    let device = py.detach(open).map_err(errors::of)?;
    let mut operand = operands::of(a, "a")?;
    if operand.device.as_ref() == Some(&device) {
        return Ok(a.clone());
    }
    if operand.layout.axes() > MOST {
        let axes = operand.layout.axes();
        return Err(errors::value(format!(
            "a has {axes} axes, and arrays on a device have up to {MOST}"
        )));
    }
    let from_another;
    if let Ok(array) = a.cast::<Array>() {
        from_another = array.get().download(py)?;
        operand = operands::of(&from_another, "a")?;
    }
    if let Some(of) = &operand.device {
        let id = &of.info().id;
        return Err(errors::value(format!(
            "a is in the memory of {id} already, where its library keeps it: products take it as it is"
        )));
    }
    Array::upload(py, device, &operand)?.into_object(py)
}
