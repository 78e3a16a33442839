//! Arrays that live in a device's memory.

use std::sync::Arc;

use gemv::Device;
use gemv::unstable::{
    AnySliceMut, Dtype, Element, Memory, SlicesMut, TensorMut, Window, for_types, zeros_on_host,
};
use pyo3::prelude::*;

use crate::errors;
use crate::ffi::numpy;
use crate::ffi::place::{Library, Operand, Place};
use crate::layout::Layout;

/// The most axes of an array in a device's memory.
pub const MOST: usize = 3;

/// An array of at most 3 axes in a device's memory, made by :func:`gemv.asarray`.
///
/// It never changes. ``A @ x`` and ``x @ A`` are computed on its device, and are arrays of the library of ``x``:
/// resident ones if ``x`` is resident, else in the host's memory. ``numpy.asarray(A)`` is a copy in the host's memory.
///
/// Examples
/// --------
/// >>> import numpy as np, gemv
/// >>> A = gemv.asarray(np.array([[1.0, 2.0], [3.0, 4.0]]), device="cpu")
/// >>> A @ np.array([1.0, 1.0])
/// array([3., 7.])
/// >>> A.T @ gemv.asarray(np.array([1.0, 1.0]), device="cpu")
/// gemv.Array(shape=(2,), dtype=float64, device='cpu')
/// >>> (A.shape, A.dtype.name, A.device)
/// ((2, 2), 'float64', 'cpu')
#[pyclass(frozen, module = "gemv")]
pub struct Array {
    pub device: Device,
    pub memory: Arc<dyn Memory>,
    pub dtype: Dtype,
    pub first: usize,
    pub layout: Layout,
}

impl Array {
    /// An array in new memory.
    pub fn of_place(device: Device, place: Place, dtype: Dtype, layout: Layout) -> Array {
        let (memory, first): (Arc<dyn Memory>, _) = match place {
            Place::New { memory } => (memory.into(), 0),
            Place::Device { memory, first } => (memory, first),
            Place::Host { .. } | Place::Packed(_) => unreachable!("it is in a device's memory"),
        };
        Array { device, memory, dtype, first, layout }
    }

    pub fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(Bound::new(py, self)?.into_any())
    }

    pub fn operand<'py>(&self) -> Operand<'py> {
        let place = Place::Device { memory: self.memory.clone(), first: self.first };
        let device = Some(self.device.clone());
        Operand {
            layout: self.layout,
            dtype: self.dtype,
            place,
            device,
            library: Library::Resident,
        }
    }

    /// The entries as a new array of NumPy.
    pub fn download<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let new = numpy::new(py, self.dtype, self.layout.dim())?;
        let mut place = numpy::place(&new);
        let (dim, strides) = Layout::packed(self.layout.dim()).three();
        py.detach(|| {
            let y = place.tensor_mut(self.dtype, 0, dim, strides);
            for_types!((self.dtype, self.dtype), T, V => self.download_to::<T>(y))
        })
        .map_err(errors::of)?;
        Ok(new)
    }

    fn download_to<T: Element>(&self, mut y: TensorMut<'_>) -> gemv::Result<()> {
        let place = Place::Device { memory: self.memory.clone(), first: self.first };
        let (dim, strides) = self.layout.three();
        let tensor = place.tensor(self.dtype, 0, dim, strides);
        let window = tensor.window().expect("it is in a device's memory");
        let (low, len) = window.range();
        if len == 0 {
            return Ok(());
        }
        let mut block = zeros_on_host::<T>(len)?;
        let to: AnySliceMut<'_> = T::any::<SlicesMut>(&mut block);
        self.device.backend().download(&*self.memory, low, to)?;
        let of = Window {
            memory: (),
            first: self.first - low,
            dim: window.dim,
            strides: window.strides,
        };
        y.view_mut_with::<T>(|_| unreachable!("it is in the host's memory"))
            .assign(&of.view(&block));
        Ok(())
    }

    /// As another view of the same memory.
    pub fn view(&self, layout: Layout) -> Array {
        let (device, memory) = (self.device.clone(), self.memory.clone());
        Array { device, memory, layout, ..*self }
    }
}
