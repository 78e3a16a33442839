//! The operands of a product as a backend gets them: arrays of three axes, on the host or on the device, whose element type
//! is a value.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use ndarray::{
    ArrayView, ArrayView1, ArrayView2, ArrayView3, ArrayViewMut, ArrayViewMut1, ArrayViewMut3,
    Axis, Dimension, Ix1, Ix2, Ix3, RawArrayView, RawArrayViewMut, ShapeBuilder,
};

use crate::host::{packed, span};
use crate::memory::{Memory, Window};
use crate::{Dtype, Element, Error, Result};

/// Which axis of an array each of the three axes of a product is; `None` is a new one, of one entry.
pub(crate) type Axes = [Option<usize>; 3];

/// A number of axes that an operand may have: a vector is one column, a matrix a batch of one. Sealed.
pub trait Rank: Dimension + Copy + sealed::Rank + 'static {}

mod sealed {
    use super::Axes;

    pub trait Rank {
        const AXES: Axes;
    }
}

macro_rules! rank {
    ($($dim:ty: $axes:expr;)*) => { $(
        impl Rank for $dim {}
        impl sealed::Rank for $dim {
            const AXES: Axes = $axes;
        }
    )* };
}
rank! {
    Ix1: [None, Some(0), None];
    Ix2: [None, Some(0), Some(1)];
    Ix3: [Some(0), Some(1), Some(2)];
}

/// Where the entries of an operand lie, but for their memory.
#[derive(Debug, Clone, Copy)]
struct Lies {
    dtype: Dtype,
    dim: [usize; 3],
    /// In elements.
    strides: [isize; 3],
}

impl Lies {
    #[inline(always)]
    fn new<D: Dimension>(
        dtype: Dtype,
        dim: &D,
        stride: impl Fn(usize) -> isize,
        axes: Axes,
    ) -> Lies {
        Lies {
            dtype,
            dim: axes.map(|axis| axis.map_or(1, |axis| dim[axis])),
            strides: axes.map(|axis| axis.map_or(0, &stride)),
        }
    }

    fn window<M>(&self, memory: M, first: usize) -> Window<M, Ix3> {
        let ([b, i, j], [sb, si, sj]) = (self.dim, self.strides.map(|s| s as usize));
        Window { memory, first, dim: Ix3(b, i, j), strides: Ix3(sb, si, sj) }
    }

    fn swapped(self, one: usize, other: usize) -> Lies {
        let mut lies = self;
        lies.dim.swap(one, other);
        lies.strides.swap(one, other);
        lies
    }

    /// The rows of all entries as those of one, where they follow each other.
    fn merged_rows(self) -> Lies {
        let Lies { dtype, dim: [b, m, n], strides: [sb, si, sj] } = self;
        let apart = if m == 1 { sb } else { si };
        Lies { dtype, dim: [1, b * m, n], strides: [0, apart, sj] }
    }

    /// One index of an axis, which stays, and how many elements further it is.
    fn only(self, axis: usize, index: usize) -> (Lies, isize) {
        assert!(index < self.dim[axis], "index {index} of {} entries", self.dim[axis]);
        let mut lies = self;
        lies.dim[axis] = 1;
        // Of an array without entries, the product may be more than a number holds.
        (lies, self.strides[axis].wrapping_mul(index as isize))
    }
}

/// An operand that is read: entry (b, i, j) of a batch of matrices.
///
/// Made of a view of the host's memory, whose number of axes says what it is, or of a place in a device's.
///
/// ```
/// use gemv_core::{Dtype, Tensor};
/// use ndarray::{array, s};
///
/// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let a = Tensor::from(a.slice(s![.., ..;2]));
/// assert_eq!((a.dtype(), a.dim(), a.strides()), (Dtype::F32, [1, 2, 2], [0, 3, 2]));
/// assert_eq!(a.view::<f32>().unwrap(), array![[[1.0, 3.0], [4.0, 6.0]]]);
///
/// let x = array![1.0f64, 2.0, 3.0];
/// assert_eq!(Tensor::from(x.view()).dim(), [1, 3, 1]); // one column
/// ```
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    place: Place<'a>,
    lies: Lies,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    /// The address of the entry whose indices are all 0. The view that it is of is borrowed.
    Host(*const u8, PhantomData<&'a [u8]>),
    Device(&'a dyn Memory, usize),
}

// SAFETY: it is a shared view of elements, whose types (`Element`) are `Sync`, or of memory that is.
unsafe impl Send for Tensor<'_> {}
// SAFETY: as above.
unsafe impl Sync for Tensor<'_> {}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Host(at, _) => write!(f, "{:?} at {at:p}", self.lies),
            Place::Device(memory, first) => write!(f, "{:?} from {first} of {memory:?}", self.lies),
        }
    }
}

impl<'a, T: Element, D: Rank> From<ArrayView<'a, T, D>> for Tensor<'a> {
    #[inline]
    fn from(view: ArrayView<'a, T, D>) -> Self {
        Tensor::host(&view, D::AXES)
    }
}

impl<'a> Tensor<'a> {
    /// An array in a device's memory.
    ///
    /// ```
    /// use gemv_core::{Engine, Tensor, Dtype};
    /// use ndarray::array;
    ///
    /// let device = Engine::new(None).device("reference")?;
    /// let x = device.vector(&array![1.0f32, 2.0, 3.0])?;
    /// let back = x.step(.., -1);
    /// let tensor = Tensor::device(Dtype::F32, back.window());
    /// assert_eq!((tensor.dim(), tensor.strides()), ([1, 3, 1], [0, -1, 0]));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    #[inline]
    pub fn device<D: Rank>(dtype: Dtype, window: Window<&'a dyn Memory, D>) -> Self {
        Tensor::resident(dtype, window, D::AXES)
    }

    #[inline(always)]
    pub(crate) fn host<T: Element, D: Dimension>(view: &ArrayView<'a, T, D>, axes: Axes) -> Self {
        let lies = Lies::new(T::DTYPE, &view.raw_dim(), |axis| view.strides()[axis], axes);
        Tensor { place: Place::Host(view.as_ptr().cast(), PhantomData), lies }
    }

    #[inline(always)]
    pub(crate) fn resident<D: Dimension>(
        dtype: Dtype,
        window: Window<&'a dyn Memory, D>,
        axes: Axes,
    ) -> Self {
        let lies = Lies::new(dtype, &window.dim, |axis| window.stride(axis), axes);
        Tensor { place: Place::Device(window.memory, window.first), lies }
    }

    /// The type of its elements.
    #[inline]
    pub fn dtype(&self) -> Dtype {
        self.lies.dtype
    }

    /// Number of entries along each axis: matrices, rows, columns.
    #[inline]
    pub fn dim(&self) -> [usize; 3] {
        self.lies.dim
    }

    /// Stride of each axis, in elements.
    #[inline]
    pub fn strides(&self) -> [isize; 3] {
        self.lies.strides
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        if self.is_empty() { 0 } else { self.lies.dim.iter().product() }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lies.dim.contains(&0)
    }

    /// Where it lies in a device's memory; `None` if it is in the host's.
    #[inline]
    pub fn window(&self) -> Option<Window<&'a dyn Memory, Ix3>> {
        match self.place {
            Place::Host(..) => None,
            Place::Device(memory, first) => Some(self.lies.window(memory, first)),
        }
    }

    /// The view of the host's memory that it was made of; `None` if it is in a device's.
    ///
    /// # Panics
    /// If its elements are not of `T`.
    #[inline]
    pub fn view<T: Element>(&self) -> Option<ArrayView3<'a, T>> {
        assert_eq!(self.lies.dtype, T::DTYPE, "elements of another type");
        match self.place {
            // SAFETY: it was made of a view of these dimensions and strides or a part of one, of elements of this type, which
            // is borrowed for 'a.
            Place::Host(at, _) => Some(unsafe { read(at.cast(), all(&self.lies)) }),
            Place::Device(..) => None,
        }
    }

    /// The same for a backend whose memory is the host's: `elements` finds those of a block.
    ///
    /// # Panics
    /// As [`view`](Self::view); if it does not lie in its block.
    #[inline]
    pub fn view_with<T: Element>(
        &self,
        elements: impl FnOnce(&'a dyn Memory) -> &'a [T],
    ) -> ArrayView3<'a, T> {
        let at = self.at(elements);
        // SAFETY: of `at`.
        unsafe { read(at, all(&self.lies)) }
    }

    /// [`view_with`](Self::view_with) of one column of one matrix, or of one row, as a vector.
    ///
    /// # Panics
    /// As [`view_with`](Self::view_with); if more than one axis has more than one entry.
    #[inline]
    pub fn vector_with<T: Element>(
        &self,
        elements: impl FnOnce(&'a dyn Memory) -> &'a [T],
    ) -> ArrayView1<'a, T> {
        let at = self.at(elements);
        // SAFETY: of `at`.
        unsafe { read(at, vector(&self.lies)) }
    }

    /// [`view_with`](Self::view_with) of a batch of one matrix.
    ///
    /// # Panics
    /// As [`view_with`](Self::view_with); if there are more matrices, or none.
    #[inline]
    pub fn matrix_with<T: Element>(
        &self,
        elements: impl FnOnce(&'a dyn Memory) -> &'a [T],
    ) -> ArrayView2<'a, T> {
        let at = self.at(elements);
        // SAFETY: of `at`.
        unsafe { read(at, matrix(&self.lies)) }
    }

    /// The address of its first entry. It was made of a view of elements of this type, or of a part of one, which is borrowed
    /// for 'a; or it lies within these elements, which are.
    #[inline(always)]
    fn at<T: Element>(&self, elements: impl FnOnce(&'a dyn Memory) -> &'a [T]) -> *const T {
        assert_eq!(self.lies.dtype, T::DTYPE, "elements of another type");
        match self.place {
            Place::Host(at, _) => at.cast(),
            Place::Device(memory, first) => {
                let all = elements(memory);
                assert!(self.lies.window((), first).lies_in(all.len()), "it lies in its block");
                all.as_ptr().wrapping_add(first)
            }
        }
    }

    /// The memory behind an array of the host, as [`span`](crate::span) finds it, in bytes; `None` if it is in a device's.
    ///
    /// # Errors
    /// As [`span`](crate::span).
    pub fn span(&self) -> Result<Option<Bytes<'a>>> {
        let Place::Host(at, _) = self.place else { return Ok(None) };
        /// # Safety
        /// As [`read`], for elements of N bytes without padding.
        unsafe fn of<'a, const N: usize>(at: *const u8, lies: &Lies) -> Result<Bytes<'a>> {
            // SAFETY: the caller's; bytes have no alignment.
            let span = span(&unsafe { read::<[u8; N], _>(at.cast(), all(lies)) })?;
            let strides = [0, 1, 2].map(|axis| span.stride(axis));
            let data = match span.data {
                Cow::Borrowed(data) => Cow::Borrowed(data.as_flattened()),
                Cow::Owned(data) => Cow::Owned(data.into_flattened()),
            };
            Ok(Bytes { data, first: span.first, strides })
        }
        // SAFETY: as in `view`: an element has so many bytes, all of which mean something.
        let span = unsafe {
            match self.lies.dtype.bytes() {
                2 => of::<2>(at, &self.lies),
                4 => of::<4>(at, &self.lies),
                8 => of::<8>(at, &self.lies),
                _ => of::<16>(at, &self.lies),
            }
        };
        span.map(Some)
    }

    /// As [`TensorMut::packed`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory to pack them.
    pub fn packed(&self) -> Result<Option<Cow<'a, [u8]>>> {
        match self.place {
            // SAFETY: as in `view`.
            Place::Host(at, _) => unsafe { pack(at, &self.lies) }.map(Some),
            Place::Device(..) => Ok(None),
        }
    }

    /// Where the first entry lies: its address, or its place in a block, which starts on 64 bytes or more. So both give
    /// the alignment.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        match self.place {
            Place::Host(at, _) => at as usize,
            Place::Device(_, first) => first.wrapping_mul(self.lies.dtype.bytes()),
        }
    }

    /// The same with axes 1 and 2 exchanged: the transposes; or any other two.
    pub(crate) fn swapped(self, one: usize, other: usize) -> Self {
        Tensor { lies: self.lies.swapped(one, other), ..self }
    }

    /// The rows of all entries as those of one: they follow each other.
    pub(crate) fn merged_rows(self) -> Self {
        Tensor { lies: self.lies.merged_rows(), ..self }
    }

    /// The part at this index of an axis, which stays.
    ///
    /// # Panics
    /// If there is no such index.
    #[must_use]
    pub fn only(self, axis: usize, index: usize) -> Self {
        let (lies, by) = self.lies.only(axis, index);
        let place = match self.place {
            Place::Host(at, of) => Place::Host(moved(at.cast_mut(), by, lies.dtype), of),
            Place::Device(memory, first) => Place::Device(memory, first.wrapping_add_signed(by)),
        };
        Tensor { place, lies }
    }

    /// Whether it lies in its memory: an array of the host always does.
    pub(crate) fn check(&self, operand: &'static str) -> Result<()> {
        match self.window() {
            None => Ok(()),
            Some(window) => window.check(operand, window.memory.len()),
        }
    }
}

/// The memory behind an array of the host: see [`Tensor::span`].
#[derive(Debug)]
pub struct Bytes<'a> {
    /// The elements as bytes: borrowed where the array's memory has no gaps, else packed.
    pub data: Cow<'a, [u8]>,
    /// Index of the entry whose indices are all 0, in elements.
    pub first: usize,
    /// Stride of each axis, in elements.
    pub strides: [isize; 3],
}

/// Where a result goes: entry (b, i, j) of a batch of matrices. What lies between entries stays as it is.
///
/// ```
/// use gemv_core::TensorMut;
/// use ndarray::{Array3, array, s};
///
/// let mut y = Array3::<f64>::zeros((1, 3, 2));
/// let mut column = TensorMut::from(y.slice_mut(s![.., .., 1..]));
/// assert_eq!((column.dim(), column.strides()[1]), ([1, 3, 1], 2));
/// column.view_mut::<f64>().unwrap().fill(1.0);
/// assert_eq!(y, array![[[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]]);
/// ```
pub struct TensorMut<'a> {
    place: PlaceMut<'a>,
    lies: Lies,
}

enum PlaceMut<'a> {
    /// The address of the entry whose indices are all 0. The view that it is of is borrowed.
    Host(*mut u8, PhantomData<&'a mut [u8]>),
    Device(&'a mut dyn Memory, usize),
}

// SAFETY: it is the only view of elements, whose types (`Element`) are `Send`, or of memory that is.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: as of a `Tensor`: shared, it is only read.
unsafe impl Sync for TensorMut<'_> {}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            PlaceMut::Host(at, _) => write!(f, "{:?} at {at:p}", self.lies),
            PlaceMut::Device(memory, first) => {
                write!(f, "{:?} from {first} of {memory:?}", self.lies)
            }
        }
    }
}

impl<'a, T: Element, D: Rank> From<ArrayViewMut<'a, T, D>> for TensorMut<'a> {
    #[inline]
    fn from(view: ArrayViewMut<'a, T, D>) -> Self {
        TensorMut::host(view, D::AXES)
    }
}

impl<'a> TensorMut<'a> {
    /// An array in a device's memory. No other array shares the block.
    #[inline]
    pub fn device<D: Rank>(dtype: Dtype, window: Window<&'a mut dyn Memory, D>) -> Self {
        TensorMut::resident(dtype, window, D::AXES)
    }

    #[inline(always)]
    pub(crate) fn host<T: Element, D: Dimension>(
        mut view: ArrayViewMut<'a, T, D>,
        axes: Axes,
    ) -> Self {
        let lies = Lies::new(T::DTYPE, &view.raw_dim(), |axis| view.strides()[axis], axes);
        TensorMut { place: PlaceMut::Host(view.as_mut_ptr().cast(), PhantomData), lies }
    }

    #[inline(always)]
    pub(crate) fn resident<D: Dimension>(
        dtype: Dtype,
        window: Window<&'a mut dyn Memory, D>,
        axes: Axes,
    ) -> Self {
        let lies = Lies::new(dtype, &window.dim, |axis| window.stride(axis), axes);
        TensorMut { place: PlaceMut::Device(window.memory, window.first), lies }
    }

    /// As of a [`Tensor`].
    #[inline]
    pub fn dtype(&self) -> Dtype {
        self.lies.dtype
    }

    /// As of a [`Tensor`].
    #[inline]
    pub fn dim(&self) -> [usize; 3] {
        self.lies.dim
    }

    /// As of a [`Tensor`].
    #[inline]
    pub fn strides(&self) -> [isize; 3] {
        self.lies.strides
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        if self.is_empty() { 0 } else { self.lies.dim.iter().product() }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lies.dim.contains(&0)
    }

    /// The same place, borrowed.
    #[inline]
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        let place = match &mut self.place {
            PlaceMut::Host(at, _) => PlaceMut::Host(*at, PhantomData),
            PlaceMut::Device(memory, first) => PlaceMut::Device(&mut **memory, *first),
        };
        TensorMut { place, lies: self.lies }
    }

    /// Where it lies in a device's memory, to be read; `None` if it is in the host's.
    #[inline]
    pub fn window(&self) -> Option<Window<&dyn Memory, Ix3>> {
        match &self.place {
            PlaceMut::Host(..) => None,
            PlaceMut::Device(memory, first) => Some(self.lies.window(&**memory, *first)),
        }
    }

    /// Where it lies in a device's memory; `None` if it is in the host's.
    #[inline]
    pub fn window_mut(&mut self) -> Option<Window<&mut dyn Memory, Ix3>> {
        match &mut self.place {
            PlaceMut::Host(..) => None,
            PlaceMut::Device(memory, first) => Some(self.lies.window(&mut **memory, *first)),
        }
    }

    /// The view of the host's memory that it was made of; `None` if it is in a device's.
    ///
    /// # Panics
    /// If its elements are not of `T`.
    #[inline]
    pub fn view_mut<T: Element>(&mut self) -> Option<ArrayViewMut3<'_, T>> {
        assert_eq!(self.lies.dtype, T::DTYPE, "elements of another type");
        match self.place {
            // SAFETY: as in `Tensor::view`; nothing else reaches the entries while this is borrowed.
            PlaceMut::Host(at, _) => Some(unsafe { write(at.cast(), all(&self.lies)) }),
            PlaceMut::Device(..) => None,
        }
    }

    /// The same for a backend whose memory is the host's: `elements` finds those of a block.
    ///
    /// # Panics
    /// As [`view_mut`](Self::view_mut); if it does not lie in its block, or two entries are at one place.
    #[inline]
    pub fn view_mut_with<T: Element>(
        &mut self,
        elements: impl FnOnce(&mut dyn Memory) -> &mut [T],
    ) -> ArrayViewMut3<'_, T> {
        let at = self.at(elements);
        // SAFETY: of `at`.
        unsafe { write(at, all(&self.lies)) }
    }

    /// As of a [`Tensor`], to write to.
    ///
    /// # Panics
    /// As [`view_mut_with`](Self::view_mut_with); if more than one axis has more than one entry.
    #[inline]
    pub fn vector_mut_with<T: Element>(
        &mut self,
        elements: impl FnOnce(&mut dyn Memory) -> &mut [T],
    ) -> ArrayViewMut1<'_, T> {
        let at = self.at(elements);
        // SAFETY: of `at`.
        unsafe { write(at, vector(&self.lies)) }
    }

    /// The address of its first entry. It was made of a view of elements of this type, or of a part of one, which is borrowed;
    /// or it lies within these elements, each entry at a place of its own.
    #[inline(always)]
    fn at<T: Element>(&mut self, elements: impl FnOnce(&mut dyn Memory) -> &mut [T]) -> *mut T {
        assert_eq!(self.lies.dtype, T::DTYPE, "elements of another type");
        match &mut self.place {
            PlaceMut::Host(at, _) => at.cast(),
            PlaceMut::Device(memory, first) => {
                let (all, window) = (elements(&mut **memory), self.lies.window((), *first));
                let fits = window.lies_in(all.len()) && window.is_distinct();
                assert!(fits, "it lies in its block, each entry at a place of its own");
                all.as_mut_ptr().wrapping_add(*first)
            }
        }
    }

    /// The entries of an array of the host one after the other, the last axis first, as bytes; `None` if it is in a
    /// device's memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory to pack them.
    pub fn packed(&self) -> Result<Option<Cow<'_, [u8]>>> {
        match self.place {
            // SAFETY: as in `view_mut`; nothing writes the entries while this is borrowed.
            PlaceMut::Host(at, _) => unsafe { pack(at, &self.lies) }.map(Some),
            PlaceMut::Device(..) => Ok(None),
        }
    }

    /// The bytes of an array of the host whose entries lie one after the other, the last axis first; `None` for any other.
    pub fn slice_mut(&mut self) -> Option<&mut [u8]> {
        let PlaceMut::Host(at, _) = self.place else { return None };
        // SAFETY: as in `packed`, and as in `view_mut`.
        unsafe {
            match self.lies.dtype.bytes() {
                2 => {
                    write::<[u8; 2], _>(at.cast(), all(&self.lies)).into_slice()?.as_flattened_mut()
                }
                4 => {
                    write::<[u8; 4], _>(at.cast(), all(&self.lies)).into_slice()?.as_flattened_mut()
                }
                8 => {
                    write::<[u8; 8], _>(at.cast(), all(&self.lies)).into_slice()?.as_flattened_mut()
                }
                _ => write::<[u8; 16], _>(at.cast(), all(&self.lies))
                    .into_slice()?
                    .as_flattened_mut(),
            }
        }
        .into()
    }

    /// Writes an array of the host: `packed` has its entries as [`packed`](Self::packed) gives them.
    ///
    /// # Panics
    /// If it is in a device's memory, or there are more entries or fewer.
    pub fn assign(&mut self, packed: &[u8]) {
        let PlaceMut::Host(at, _) = self.place else { panic!("an array of the host") };
        /// # Safety
        /// As in [`TensorMut::slice_mut`].
        unsafe fn to<const N: usize>(at: *mut u8, lies: &Lies, packed: &[u8]) {
            let (new, rest) = packed.as_chunks::<N>();
            // SAFETY: the caller's; bytes have no alignment.
            let y = unsafe { write::<[u8; N], _>(at.cast(), all(lies)) };
            assert!(rest.is_empty() && new.len() == y.len(), "as many entries");
            y.into_iter().zip(new).for_each(|(y, new)| *y = *new);
        }
        // SAFETY: as in `slice_mut`.
        unsafe {
            match self.lies.dtype.bytes() {
                2 => to::<2>(at, &self.lies, packed),
                4 => to::<4>(at, &self.lies, packed),
                8 => to::<8>(at, &self.lies, packed),
                _ => to::<16>(at, &self.lies, packed),
            }
        }
    }

    /// Exchanges two axes.
    pub(crate) fn swap(&mut self, one: usize, other: usize) {
        self.lies = self.lies.swapped(one, other);
    }

    /// Makes the rows of all entries those of one: they follow each other.
    pub(crate) fn merge_rows(&mut self) {
        self.lies = self.lies.merged_rows();
    }

    /// As of a [`Tensor`].
    ///
    /// # Panics
    /// If there is no such index.
    #[must_use]
    pub fn only(self, axis: usize, index: usize) -> Self {
        let (lies, by) = self.lies.only(axis, index);
        let place = match self.place {
            PlaceMut::Host(at, of) => PlaceMut::Host(moved(at, by, lies.dtype), of),
            PlaceMut::Device(memory, first) => {
                PlaceMut::Device(memory, first.wrapping_add_signed(by))
            }
        };
        TensorMut { place, lies }
    }

    /// Whether it lies in its memory, each entry at a place of its own: those of a host array always do.
    pub(crate) fn check(&self, operand: &'static str) -> Result<()> {
        match self.window() {
            None => Ok(()),
            Some(window) => window.check_result(operand, window.memory.len()),
        }
    }
}

/// The memory of elements as bytes.
///
/// ```
/// assert_eq!(gemv_core::bytes_of(&[1.0f32, 0.0]).len(), 8);
/// ```
#[inline]
pub fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: `Element` is sealed to floats and pairs of floats: no padding, so every byte is initialised; u8 has no
    // alignment; the length is that of the slice.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The memory of elements as bytes, to write to.
///
/// ```
/// let mut one = [0.0f64];
/// gemv_core::bytes_of_mut(&mut one).copy_from_slice(&1f64.to_ne_bytes());
/// assert_eq!(one, [1.0]);
/// ```
#[inline]
pub fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; and any bits are a value of those types.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

/// An address of the host so many elements further.
fn moved(at: *mut u8, by: isize, dtype: Dtype) -> *mut u8 {
    at.wrapping_offset(by.wrapping_mul(dtype.bytes() as isize))
}

/// The entries one after the other.
///
/// # Safety
/// As [`read`], for elements of the type.
unsafe fn pack<'a>(at: *const u8, lies: &Lies) -> Result<Cow<'a, [u8]>> {
    /// # Safety
    /// As [`pack`], for elements of N bytes without padding.
    unsafe fn of<'a, const N: usize>(at: *const u8, lies: &Lies) -> Result<Cow<'a, [u8]>> {
        // SAFETY: the caller's; bytes have no alignment.
        let view = unsafe { read::<[u8; N], _>(at.cast(), all(lies)) };
        Ok(match view.to_slice() {
            Some(all) => Cow::Borrowed(all.as_flattened()),
            None => Cow::Owned(packed(&view)?.into_flattened()),
        })
    }
    // SAFETY: the caller's: an element has so many bytes, all of which mean something.
    unsafe {
        match lies.dtype.bytes() {
            2 => of::<2>(at, lies),
            4 => of::<4>(at, lies),
            8 => of::<8>(at, lies),
            _ => of::<16>(at, lies),
        }
    }
}

/// The dimensions of a matrix.
///
/// # Panics
/// If there is not one.
#[inline(always)]
fn matrix(lies: &Lies) -> (Ix2, [isize; 2]) {
    let ([b, i, j], [_, si, sj]) = (lies.dim, lies.strides);
    assert_eq!(b, 1, "one matrix");
    (Ix2(i, j), [si, sj])
}

/// The dimension of a vector.
///
/// # Panics
/// If more than one axis has more than one entry.
#[inline(always)]
fn vector(lies: &Lies) -> (Ix1, [isize; 1]) {
    let ([b, i, j], [_, si, sj]) = (lies.dim, lies.strides);
    assert!(b == 1 && (i == 1 || j == 1), "one vector");
    if j == 1 { (Ix1(i), [si]) } else { (Ix1(j), [sj]) }
}

#[inline(always)]
fn all(lies: &Lies) -> (Ix3, [isize; 3]) {
    let [b, i, j] = lies.dim;
    (Ix3(b, i, j), lies.strides)
}

/// Strides without signs, the lowest address, and whether any was negative: as ndarray makes views of addresses. Of an array
/// without entries nothing is reached.
#[inline(always)]
fn forwards<T, D: Dimension>(at: *const T, dim: &D, strides: &[isize]) -> (D, *const T, bool) {
    let (mut apart, mut lowest, mut backwards) = (D::zeros(strides.len()), at, false);
    if dim.slice().contains(&0) {
        // No two entries at one place, as ndarray sees it.
        (0..strides.len()).for_each(|axis| apart[axis] = dim[axis].min(1));
        return (apart, at, false);
    }
    for (axis, &stride) in strides.iter().enumerate() {
        apart[axis] = stride.unsigned_abs();
        if stride < 0 {
            backwards = true;
            lowest = lowest.wrapping_offset(stride * (dim[axis] as isize - 1));
        }
    }
    (apart, lowest, backwards)
}

/// # Safety
/// Entries of these dimensions and strides, from this address on, are those of an array of `T` that nothing writes for 'a.
#[inline(always)]
unsafe fn read<'a, T, D: Dimension>(
    at: *const T,
    (dim, strides): (D, impl AsRef<[isize]>),
) -> ArrayView<'a, T, D> {
    let strides = strides.as_ref();
    let (apart, lowest, backwards) = forwards(at, &dim, strides);
    // SAFETY: the caller's.
    let mut view = unsafe { RawArrayView::from_shape_ptr(dim.strides(apart), lowest) };
    if backwards {
        for (axis, _) in strides.iter().enumerate().filter(|(_, stride)| **stride < 0) {
            view.invert_axis(Axis(axis));
        }
    }
    // SAFETY: the caller's.
    unsafe { view.deref_into_view() }
}

/// # Safety
/// As [`read`], each entry has a place of its own, and nothing else reads or writes them.
#[inline(always)]
unsafe fn write<'a, T, D: Dimension>(
    at: *mut T,
    (dim, strides): (D, impl AsRef<[isize]>),
) -> ArrayViewMut<'a, T, D> {
    let strides = strides.as_ref();
    let (apart, lowest, backwards) = forwards(at, &dim, strides);
    // SAFETY: the caller's.
    let mut view =
        unsafe { RawArrayViewMut::from_shape_ptr(dim.strides(apart), lowest.cast_mut()) };
    if backwards {
        for (axis, _) in strides.iter().enumerate().filter(|(_, stride)| **stride < 0) {
            view.invert_axis(Axis(axis));
        }
    }
    // SAFETY: the caller's.
    unsafe { view.deref_into_view_mut() }
}

/// Why the element types of three operands have no product.
pub(crate) fn check_types(a: Dtype, x: Dtype, y: Dtype) -> Result<()> {
    let wrong = |operand, reason| Err(Error::Operand { operand, reason });
    match () {
        () if !a.multiplies(x) => {
            wrong("X", format!("has elements of {x}, which have no product with a matrix of {a}"))
        }
        () if x != y => wrong("Y", format!("has elements of {y}, and X of {x}")),
        () => Ok(()),
    }
}
