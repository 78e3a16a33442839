//! Arrays of Python by their addresses: who has them, where they lie, and tensors of them.
//!
//! Everything here runs with the interpreter attached, but for [`Place::tensor`] and [`Place::tensor_mut`].

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use gemv::Device;
use gemv::ndarray::Ix3;
use gemv::unstable::{Dtype, Memory, Owner, Tensor, TensorMut, Window};
use pyo3::prelude::*;

use crate::errors;
use crate::layout::Layout;
use crate::packed::Packed;

/// An array of Python, to be read or written.
///
/// Its entries are borrowed from the object for as long as this is there. As in NumPy, a thread that writes them meanwhile
/// may see them read before or after.
pub struct Operand<'py> {
    pub layout: Layout,
    pub dtype: Dtype,
    pub place: Place,
    /// The device that it lives on; `None` if it is in the host's memory.
    pub device: Option<Device>,
    pub library: Library<'py>,
}

/// The library that an array is of.
pub enum Library<'py> {
    NumPy(Bound<'py, PyAny>),
    Torch(Bound<'py, PyAny>),
    /// With `__cuda_array_interface__`.
    Interface(Bound<'py, PyAny>),
    /// Of this package, in a device's memory.
    Resident,
    /// A packed matrix of this package.
    Packed,
    /// Any other; what it lent goes back with this.
    Other(Bound<'py, PyAny>, #[allow(dead_code, reason = "it is dropped")] Box<dyn Any>),
}

/// Addresses that may be compared: the host's, or those of a [`Memory`]'s space.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Space {
    Host,
    Device(usize),
}

/// Where entries lie.
pub enum Place {
    /// In the host's memory: the address of the entry whose indices are all 0.
    Host { at: Address, writable: bool },
    /// In a device's: that entry's index in a block.
    Device { memory: Arc<dyn Memory>, first: usize },
    /// In a block that nobody shares, to be written.
    New { memory: Box<dyn Memory> },
    /// In a packed matrix, which is the left operand of a product.
    Packed(Packed),
}

/// A matrix or a vector, of one column: what most products are of.
pub struct Plain {
    pub dtype: Dtype,
    pub place: Place,
    pub dim: [usize; 2],
    pub strides: [isize; 2],
}

/// An address of entries that an [`Operand`] borrows.
#[derive(Clone, Copy)]
pub struct Address(pub *mut u8);

// SAFETY: it is a number; those who read or write what lies there answer for it.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    fn get(self) -> usize {
        self.0 as usize
    }
}

impl Place {
    /// Entries of the array from an offset in elements on.
    pub fn tensor(
        &self,
        dtype: Dtype,
        offset: isize,
        dim: [usize; 3],
        strides: [isize; 3],
    ) -> Tensor<'_> {
        match self {
            Place::Host { at, .. } => {
                let at = at.0.wrapping_offset(offset.wrapping_mul(dtype.bytes() as isize));
                // SAFETY: entries of an array that is borrowed, with its type, aligned, as the functions that make an
                // `Operand` have checked. That nobody writes them meanwhile is the caller's in Python, as in NumPy.
                unsafe { Tensor::from_raw(at, dtype, dim, strides) }
            }
            Place::Device { memory, first } => {
                device(dtype, &**memory, *first, offset, dim, strides)
            }
            Place::New { memory } => device(dtype, &**memory, 0, offset, dim, strides),
            // Of the type of its vectors; it is taken whole.
            Place::Packed(of) => Tensor::of_packed(of.matrix(), dtype),
        }
    }

    /// Whether it may be written: memory of a device only if it is another library's, which nobody else has here.
    pub fn is_writable(&self) -> bool {
        match self {
            Place::Host { writable, .. } => *writable,
            Place::Device { memory, .. } => {
                memory.owner() == Owner::Foreign { writable: true }
                    && Arc::strong_count(memory) == 1
            }
            Place::New { .. } => true,
            Place::Packed(_) => false,
        }
    }

    /// The same, to write to.
    ///
    /// # Panics
    /// If it may not be written.
    pub fn tensor_mut(
        &mut self,
        dtype: Dtype,
        offset: isize,
        dim: [usize; 3],
        strides: [isize; 3],
    ) -> TensorMut<'_> {
        match self {
            Place::Host { at, writable: true } => {
                let at = at.0.wrapping_offset(offset.wrapping_mul(dtype.bytes() as isize));
                // SAFETY: as in `tensor`; it is a new array, or one whose entries each have a place of their own and
                // which overlaps no operand, as `products::output` has checked.
                unsafe { TensorMut::from_raw(at, dtype, dim, strides) }
            }
            // Of another library, which was adopted for this alone.
            Place::Device { memory, first } => {
                let memory = Arc::get_mut(memory).expect("nobody shares it");
                TensorMut::device(dtype, window(memory, *first, offset, dim, strides))
            }
            Place::New { memory } => {
                TensorMut::device(dtype, window(&mut **memory, 0, offset, dim, strides))
            }
            _ => unreachable!("it is not to be written"),
        }
    }
}

fn device(
    dtype: Dtype,
    memory: &dyn Memory,
    first: usize,
    offset: isize,
    dim: [usize; 3],
    strides: [isize; 3],
) -> Tensor<'_> {
    Tensor::device(dtype, window(memory, first, offset, dim, strides))
}

fn window<M>(
    memory: M,
    first: usize,
    offset: isize,
    dim: [usize; 3],
    strides: [isize; 3],
) -> Window<M, Ix3> {
    let [b, i, j] = dim;
    let [sb, si, sj] = strides.map(|stride| stride as usize);
    Window {
        memory,
        first: first.wrapping_add_signed(offset),
        dim: Ix3(b, i, j),
        strides: Ix3(sb, si, sj),
    }
}

impl<'py> Operand<'py> {
    pub fn is_packed(&self) -> bool {
        matches!(self.place, Place::Packed(_))
    }

    /// The bytes from its first to its last entry, of the whole batch, by their addresses in a space; `None` if there are
    /// none, or nobody else can have them.
    pub fn bytes(&self) -> Option<(Space, Range<usize>)> {
        let size = self.dtype.bytes();
        let (space, at) = match &self.place {
            Place::Host { at, .. } => (Space::Host, at.get()),
            Place::Device { memory, first } => {
                let (space, at) = memory.place()?;
                (Space::Device(space), at.wrapping_add(first.wrapping_mul(size)))
            }
            Place::New { .. } | Place::Packed(_) => return None,
        };
        let (low, high) = self.layout.reach()?;
        let to = |by: isize| at.wrapping_add_signed(by.wrapping_mul(size as isize));
        Some((space, to(low)..to(high.wrapping_add(1))))
    }

    /// Whether a byte from its first to its last entry is among those of another.
    pub fn overlaps(&self, other: &Operand<'_>) -> bool {
        let (Some((one, here)), Some((two, there))) = (self.bytes(), other.bytes()) else {
            return false;
        };
        one == two && here.start < there.end && there.start < here.end
    }
}

/// Refuses addresses of which a view of Rust cannot be made.
pub fn check_address(name: &str, at: *const u8, dtype: Dtype, layout: &Layout) -> PyResult<()> {
    if layout.is_empty() {
        return Ok(());
    }
    // A complex number has the alignment of a part.
    let boundary = dtype.bytes() / if dtype.is_complex() { 2 } else { 1 };
    if !(at as usize).is_multiple_of(boundary) {
        return Err(not_aligned(name, dtype));
    }
    let bytes = layout.reach().and_then(|(low, high)| {
        high.checked_sub(low)?.checked_add(1)?.checked_mul(dtype.bytes() as isize)
    });
    if bytes.is_none() || at.is_null() {
        return Err(errors::value(format!(
            "{name} does not lie in memory as its shape and strides say"
        )));
    }
    Ok(())
}

pub fn not_aligned(name: &str, dtype: Dtype) -> PyErr {
    errors::value(format!(
        "{name} has entries that do not lie on the boundaries of {}, such as a field of records: pass {}",
        dtype.numpy_name(),
        instead(name, ".copy()")
    ))
}

/// How the array API makes entries of float64.
pub const ASTYPE: &str = ".astype('float64')";

/// What to pass: of an operand a copy, but a copy of `out` would get the result and be lost.
pub fn instead(name: &str, copy: &str) -> String {
    match name {
        "out" => {
            "an array of the result's type, of which entries are written where they lie".into()
        }
        _ => format!("{name}{copy}"),
    }
}

/// Refuses element types that there is no product of. `convert` is how the array's library makes entries of float64.
pub fn no_such_type(name: &str, what: &str, convert: &str) -> PyErr {
    errors::kind(format!(
        "{name} has entries of {what}, and there are products of {}: pass {}",
        Dtype::ALL.map(Dtype::numpy_name).join(", "),
        instead(name, &format!("{convert}, or another of these"))
    ))
}
