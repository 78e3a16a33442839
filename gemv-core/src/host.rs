//! Arrays in the host's memory: the slice behind a view, and new zeros.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;

use ndarray::{Array, Array1, ArrayView, Axis, Dimension, Slice};

use crate::{Element, Error, Result};

/// The elements of an array in one slice, and how to find them there.
///
/// Entry (i, j) of a matrix is `data[first + i * stride(0) + j * stride(1)]`; see [`span`].
///
/// ```
/// use gemv::unstable::span;
/// use ndarray::{array, s};
///
/// let x = array![1.0f32, 2.0, 3.0];
/// let span = span(&x.slice(s![..;-1]))?;
/// let entry = |i: isize| span.data[(span.first as isize + i * span.stride(0)) as usize];
/// assert_eq!([0, 1, 2].map(entry), [3.0, 2.0, 1.0]);
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug)]
pub struct Span<'a, T: Copy, D> {
    /// The elements: borrowed where the array's memory has no gaps, else packed.
    pub data: Cow<'a, [T]>,
    /// Index in `data` of the entry whose indices are all 0.
    pub first: usize,
    /// Strides in `data`, in elements, each an `isize` as ndarray keeps them.
    pub strides: D,
}

impl<T: Copy, D: Dimension> Span<'_, T, D> {
    /// The stride of an axis, in elements.
    #[inline]
    pub fn stride(&self, axis: usize) -> isize {
        self.strides[axis] as isize
    }
}

/// Finds the memory behind a view without copying, where the view covers it without gaps: any
/// order of axes, reversed or not. Repeated elements (stride 0) are taken once. A view with gaps
/// is packed, since what lies in the gaps is not the view's to read.
///
/// ```
/// use gemv::unstable::span;
/// use ndarray::{array, s};
/// use std::borrow::Cow;
///
/// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let columns = a.slice(s![.., ..;-1]).reversed_axes(); // the last column as the first row
/// let whole = span(&columns)?;
/// assert!(matches!(whole.data, Cow::Borrowed(_)));
/// assert_eq!((&*whole.data, whole.first), (a.as_slice().unwrap(), 2));
/// assert_eq!((whole.stride(0), whole.stride(1)), (-1, 3));
///
/// let part = span(&a.slice(s![.., ..2]))?; // leaves a gap: packed
/// assert_eq!((&*part.data, part.stride(0), part.stride(1)), (&[1.0, 2.0, 4.0, 5.0][..], 2, 1));
/// # Ok::<(), gemv::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`] if there is no memory to pack the view.
pub fn span<'a, T: Copy, D: Dimension>(view: &ArrayView<'a, T, D>) -> Result<Span<'a, T, D>> {
    let axes = view.ndim();
    let stride = |axis: usize| view.strides()[axis];
    let repeated = |axis: usize| stride(axis) == 0 && view.len_of(Axis(axis)) > 1;
    let mut once = view.clone();
    for axis in (0..axes).filter(|&axis| repeated(axis)) {
        once.slice_axis_inplace(Axis(axis), Slice::from(..1));
    }
    let gaps = once.clone();
    let mut strides = view.raw_dim();
    // Reversed axes are turned round, so that the memory reads forward and `first` is explicit.
    let mut first = 0;
    for axis in 0..axes {
        strides[axis] = stride(axis) as usize;
        if stride(axis) < 0 && once.len_of(Axis(axis)) > 1 {
            first += stride(axis).unsigned_abs() * (once.len_of(Axis(axis)) - 1);
            once.invert_axis(Axis(axis));
        }
    }
    if once.is_empty() {
        return Ok(Span { data: Cow::Borrowed(&[]), first: 0, strides });
    }
    if let Some(data) = once.to_slice_memory_order() {
        return Ok(Span { data: Cow::Borrowed(data), first, strides });
    }
    // Packed in the order that the memory suggests: the axis of the smallest stride is contiguous, so
    // a part of a column-major matrix stays column-major. Of equal strides the last axis is.
    let mut order: Vec<usize> = (0..axes).collect();
    order.sort_by_key(|&axis| match stride(axis) {
        1 => std::cmp::Reverse(0),
        stride => std::cmp::Reverse(2 * stride.unsigned_abs() + 1),
    });
    let mut permutation = view.raw_dim();
    let mut apart = 1;
    for (place, &axis) in order.iter().enumerate().rev() {
        permutation[place] = axis;
        strides[axis] = if repeated(axis) { 0 } else { apart };
        apart *= gaps.len_of(Axis(axis));
    }
    let data = packed(&gaps.permuted_axes(permutation))?;
    Ok(Span { data: Cow::Owned(data), first: 0, strides })
}

/// The entries of a view one after the other, the last axis first, in new memory of the host.
///
/// ```
/// use gemv::unstable::packed;
/// use ndarray::{array, s};
///
/// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// assert_eq!(packed(&a.slice(s![.., ..;2]))?, [1.0, 3.0, 4.0, 6.0]);
/// assert_eq!(packed(&a.t())?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// # Ok::<(), gemv::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`]. A view of repeated entries may have more of them than there is memory.
pub fn packed<T: Copy, D: Dimension>(view: &ArrayView<'_, T, D>) -> Result<Vec<T>> {
    collected(view.iter().copied())
}

/// What an iterator has, of a length that it tells, in new memory of the host.
pub(crate) fn collected<T>(of: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut all = host_vec("the host", of.len())?;
    // As many as there is memory for.
    all.extend(of);
    Ok(all)
}

/// An empty `Vec` with room for so many elements.
fn host_vec<T>(device: &str, len: usize) -> Result<Vec<T>> {
    let mut all = Vec::new();
    let asked = (len as u64).saturating_mul(size_of::<T>() as u64);
    all.try_reserve_exact(len).map_err(|_| host_is_full(device, asked))?;
    Ok(all)
}

/// So many zeros in new memory of the host.
///
/// ```
/// use gemv::{Error, unstable::zeros_on_host};
///
/// assert_eq!(zeros_on_host::<f32>(3)?, [0.0; 3]);
/// assert!(matches!(zeros_on_host::<f64>(1 << 60), Err(Error::OutOfMemory { .. })));
/// # Ok::<(), gemv::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`].
pub fn zeros_on_host<T: Copy + Default>(len: usize) -> Result<Vec<T>> {
    host_zeros("the host", len)
}

/// Zeros in the host's memory. A length may be beyond any memory: that of the result of a broadcast
/// matrix, or of one without columns.
pub(crate) fn host_zeros<T: Copy + Default>(device: &str, len: usize) -> Result<Vec<T>> {
    let mut zeros = host_vec(device, len)?;
    zeros.resize(len, T::default());
    Ok(zeros)
}

/// Zeros of this shape in the host's memory, in standard layout.
pub(crate) fn host_array<T: Element, D: Dimension>(device: &str, dim: D) -> Result<Array<T, D>> {
    let zeros = host_zeros(device, entries(&dim))?;
    if D::NDIM == Some(1) {
        // There is nothing to compare.
        return Ok(Array1::from_vec(zeros).into_dimensionality().expect("one axis"));
    }
    // A shape that is empty may have axes whose product overflows, which ndarray refuses.
    Array::from_shape_vec(dim, zeros).map_err(|_| host_is_full(device, u64::MAX))
}

/// [`Error::OutOfMemory`] for so many bytes of the host's memory, with what the system says is free: on Linux what its
/// kernel estimates that programs can get (`MemAvailable` of `/proc/meminfo`). A limit of the process may be lower.
///
/// ```
/// use gemv::{Error, unstable::host_is_full};
///
/// let e = host_is_full("cpu", 1 << 60);
/// assert!(matches!(e, Error::OutOfMemory { free, .. } if free.is_some() || cfg!(not(target_os = "linux"))));
/// ```
pub fn host_is_full(device: &str, asked: u64) -> Error {
    Error::OutOfMemory { device: device.into(), asked, free: free_on_host() }
}

/// Of a file that begins with it, without memory that would have to be allocated.
fn free_on_host() -> Option<u64> {
    let mut start = [0; 256];
    let len = File::open("/proc/meminfo").ok()?.read(&mut start).ok()?;
    let (_, rest) = str::from_utf8(&start[..len]).ok()?.split_once("MemAvailable:")?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// How many entries an array of this shape has; the most there is if that overflows.
pub(crate) fn entries<D: Dimension>(dim: &D) -> usize {
    if dim.slice().contains(&0) {
        return 0;
    }
    dim.slice().iter().fold(1usize, |len, &entries| len.saturating_mul(entries))
}
