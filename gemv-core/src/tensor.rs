//! The operands of a product as a backend gets them: arrays of three axes, on the host or on the device, whose element type
//! is a value.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr::NonNull;

use ndarray::{
    ArrayView, ArrayView1, ArrayView2, ArrayView3, ArrayViewMut, ArrayViewMut1, ArrayViewMut3,
    Axis, Dimension, Ix1, Ix2, Ix3, RawArrayView, RawArrayViewMut, ShapeBuilder,
};

use crate::element::{AnySlice, AnySliceMut};
use crate::host::{packed, span};
use crate::memory::{Memory, Owner, Window};
use crate::{Dtype, Element, Error, Format, Result, for_any};

/// Which axis of an array each of the three axes of a product is; `None` is a new one, of one entry.
pub(crate) type Axes = [Option<usize>; 3];

/// A number of axes that an operand may have: a vector is one column, a matrix a batch of one. Sealed.
pub trait Rank: Dimension + Copy + sealed::Rank + 'static {}

mod sealed {
    pub trait Rank {
        const AXES: super::Axes;
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

/// The type of a tensor's elements, and its three axes: what a [`Tensor`] and a [`TensorMut`] have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    dtype: Dtype,
    dim: [usize; 3],
    strides: [isize; 3],
}

impl Extent {
    #[inline(always)]
    fn new<D: Dimension>(
        dtype: Dtype,
        dim: &D,
        stride: impl Fn(usize) -> isize,
        axes: Axes,
    ) -> Extent {
        Extent {
            dtype,
            dim: axes.map(|axis| axis.map_or(1, |axis| dim[axis])),
            strides: axes.map(|axis| axis.map_or(0, &stride)),
        }
    }

    /// The type of its elements.
    #[inline]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of entries along each axis: matrices, rows, columns.
    #[inline]
    pub fn dim(&self) -> [usize; 3] {
        self.dim
    }

    /// Stride of each axis, in elements.
    #[inline]
    pub fn strides(&self) -> [isize; 3] {
        self.strides
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        if self.is_empty() { 0 } else { self.dim.iter().product() }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.dim.contains(&0)
    }

    fn window<M>(&self, memory: M, first: usize) -> Window<M, Ix3> {
        let (dim, strides) = self.all();
        Window { memory, first, dim, strides }
    }

    #[inline(always)]
    fn all(&self) -> (Ix3, Ix3) {
        let ([b, i, j], [sb, si, sj]) = (self.dim, self.strides.map(|s| s as usize));
        (Ix3(b, i, j), Ix3(sb, si, sj))
    }

    /// # Panics
    /// If there is not one matrix.
    #[inline(always)]
    fn matrix(&self) -> (Ix2, Ix2) {
        let (dim, strides) = self.all();
        assert_eq!(dim[0], 1, "one matrix");
        (Ix2(dim[1], dim[2]), Ix2(strides[1], strides[2]))
    }

    /// # Panics
    /// If more than one axis has more than one entry.
    #[inline(always)]
    fn vector(&self) -> (Ix1, Ix1) {
        let (dim, strides) = self.all();
        assert!(dim[0] == 1 && (dim[1] == 1 || dim[2] == 1), "one vector");
        let axis = if dim[2] == 1 { 1 } else { 2 };
        (Ix1(dim[axis]), Ix1(strides[axis]))
    }

    /// # Panics
    /// If the elements are not of `T`.
    #[inline(always)]
    fn assert<T: Element>(&self) {
        assert_eq!(self.dtype, T::DTYPE, "elements of another type");
    }

    pub(crate) fn swap(&mut self, one: usize, other: usize) {
        self.dim.swap(one, other);
        self.strides.swap(one, other);
    }

    /// The rows of all entries as those of one: they follow each other.
    pub(crate) fn merge_rows(&mut self) {
        let ([b, m, n], [sb, si, sj]) = (self.dim, self.strides);
        (self.dim, self.strides) = ([1, b * m, n], [0, if m == 1 { sb } else { si }, sj]);
    }

    /// Leaves one index of an axis; returns how many elements further it is.
    fn only(&mut self, axis: usize, index: usize) -> isize {
        assert!(index < self.dim[axis], "index {index} of {} entries", self.dim[axis]);
        self.dim[axis] = 1;
        // Of an array without entries, the product may be more than a number holds.
        self.strides[axis].wrapping_mul(index as isize)
    }

    /// An address so many elements further.
    fn moved(&self, at: *mut u8, by: isize) -> *mut u8 {
        at.wrapping_offset(by.wrapping_mul(self.dtype.bytes() as isize))
    }
}

/// Runs an expression with N, the bytes of an element, as a constant.
macro_rules! with_size {
    ($dtype:expr, $n:ident => $body:expr) => {
        match $dtype.bytes() {
            2 => with_size!(@ 2, $n, $body),
            4 => with_size!(@ 4, $n, $body),
            8 => with_size!(@ 8, $n, $body),
            _ => with_size!(@ 16, $n, $body),
        }
    };
    (@ $size:literal, $n:ident, $body:expr) => {{
        const $n: usize = $size;
        $body
    }};
}

/// An operand that is read: entry (b, i, j) of a batch of matrices.
///
/// Made of a view of the host's memory, whose number of axes says what it is, or of a place in a device's.
///
/// ```
/// use gemv::{Dtype, unstable::Tensor};
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
    extent: Extent,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    /// The address of the entry whose indices are all 0. The view that it is of is borrowed.
    Host(*const u8, PhantomData<&'a [u8]>),
    Device(&'a dyn Memory, usize),
    /// A packed matrix.
    Packed(PackedMatrix<'a>),
}

/// A packed matrix as a backend gets it: see [`Tensor::packed_matrix`].
#[derive(Debug, Clone, Copy)]
pub struct PackedMatrix<'a> {
    /// Its format.
    pub format: Format,
    /// Rows and columns.
    pub dim: (usize, usize),
    /// Where it lies.
    pub place: PackedPlace<'a>,
}

impl PackedMatrix<'_> {
    /// Some of the rows.
    ///
    /// # Panics
    /// If the range ends beyond the last row, or before it starts.
    #[must_use]
    pub fn rows(self, range: Range<usize>) -> Self {
        let (m, n) = self.dim;
        assert!(range.start <= range.end && range.end <= m, "rows {range:?} of {m}");
        let row = self.format.row_bytes(n).expect("compared when the matrix was made");
        let place = match self.place {
            PackedPlace::Host(all) => PackedPlace::Host(&all[range.start * row..range.end * row]),
            PackedPlace::Device(memory, first) => PackedPlace::Device(memory, first + range.start),
        };
        PackedMatrix { dim: (range.len(), n), place, ..self }
    }
}

/// Where a packed matrix lies.
#[derive(Debug, Clone, Copy)]
pub enum PackedPlace<'a> {
    /// In the host's memory: the blocks of all rows, one row behind the other.
    Host(&'a [u8]),
    /// In a block that [`Backend::upload_packed`](crate::Backend::upload_packed) made, from this row on.
    Device(&'a dyn Memory, usize),
}

// SAFETY: it is a shared view of elements, whose types (`Element`) are `Sync`, or of memory that is.
unsafe impl Send for Tensor<'_> {}
// SAFETY: as above.
unsafe impl Sync for Tensor<'_> {}

macro_rules! has_an_extent {
    ($($tensor:ident)*) => {$(
        impl Deref for $tensor<'_> {
            type Target = Extent;

            #[inline(always)]
            fn deref(&self) -> &Extent {
                &self.extent
            }
        }

        impl fmt::Debug for $tensor<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?} in {:?}", self.extent, self.window().map(|w| (w.memory, w.first)))
            }
        }
    )*};
}

has_an_extent!(Tensor TensorMut);

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
    /// use gemv::{Dtype, Engine, unstable::Tensor};
    /// use ndarray::array;
    ///
    /// let device = Engine::new(None).device("reference")?;
    /// let x = device.vector(&array![1.0f32, 2.0, 3.0])?;
    /// let back = x.step(.., -1);
    /// let tensor = Tensor::device(Dtype::F32, back.window());
    /// assert_eq!((tensor.dim(), tensor.strides()), ([1, 3, 1], [0, -1, 0]));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    #[inline]
    pub fn device<D: Rank>(dtype: Dtype, window: Window<&'a dyn Memory, D>) -> Self {
        Tensor::resident(dtype, window, D::AXES)
    }

    /// An array of the host by the address of the entry whose indices are all 0, with strides in elements: for operands that
    /// come from outside of Rust, with a type that is a value. Views are made by [`From`].
    ///
    /// ```
    /// use gemv::{Dtype, unstable::Tensor};
    /// use ndarray::array;
    ///
    /// let x = [1.0f32, 2.0, 3.0];
    /// let last: *const f32 = &x[2];
    /// // SAFETY: entries 2, 1 and 0 of an array that is borrowed until the end.
    /// let back = unsafe { Tensor::from_raw(last.cast(), Dtype::F32, [1, 3, 1], [0, -1, 0]) };
    /// assert_eq!(back.view::<f32>().unwrap(), array![[[3.0], [2.0], [1.0]]]);
    /// ```
    ///
    /// # Safety
    /// For `'a`, every entry is an initialised element of the type at an address of its alignment, all of them in one
    /// allocation, and nothing writes them. The number of entries that are not repeated by a stride of 0 fits an `isize`,
    /// and so do the bytes that they span. Of an array without entries, the address and the strides may be anything.
    #[inline]
    pub unsafe fn from_raw(
        at: *const u8,
        dtype: Dtype,
        dim: [usize; 3],
        strides: [isize; 3],
    ) -> Self {
        Tensor { place: Place::Host(at, PhantomData), extent: Extent { dtype, dim, strides } }
    }

    /// A packed matrix, for vectors of this type.
    pub fn of_packed(of: PackedMatrix<'a>, vectors: Dtype) -> Self {
        let (m, n) = of.dim;
        let extent = Extent { dtype: vectors, dim: [1, m, n], strides: [0, n as isize, 1] };
        Tensor { place: Place::Packed(of), extent }
    }

    /// An array of the host without entries.
    pub(crate) fn empty(dtype: Dtype, dim: [usize; 3]) -> Self {
        let extent = Extent { dtype, dim, strides: [0; 3] };
        debug_assert!(extent.is_empty());
        // On a boundary of every element.
        Tensor { place: Place::Host(std::ptr::without_provenance(64), PhantomData), extent }
    }

    /// The packed matrix that it is; `None` if it has elements. The type of a packed one is that of the vectors.
    #[inline(always)]
    pub fn packed_matrix(&self) -> Option<PackedMatrix<'a>> {
        match self.place {
            Place::Packed(of) => Some(of),
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) fn host<T: Element, D: Dimension>(view: &ArrayView<'a, T, D>, axes: Axes) -> Self {
        let extent = Extent::new(T::DTYPE, &view.raw_dim(), |axis| view.strides()[axis], axes);
        Tensor { place: Place::Host(view.as_ptr().cast(), PhantomData), extent }
    }

    #[inline(always)]
    pub(crate) fn resident<D: Dimension>(
        dtype: Dtype,
        window: Window<&'a dyn Memory, D>,
        axes: Axes,
    ) -> Self {
        let extent = Extent::new(dtype, &window.dim, |axis| window.stride(axis), axes);
        Tensor { place: Place::Device(window.memory, window.first), extent }
    }

    /// Whether it lies in memory of another library.
    #[inline(always)]
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.place, Place::Device(memory, _) if memory.owner() != Owner::Backend)
    }

    /// Whether it lies in the host's memory.
    pub(crate) fn is_on_host(&self) -> bool {
        let packed = self.packed_matrix().map(|of| of.place);
        matches!((self.place, packed), (Place::Host(..), _) | (_, Some(PackedPlace::Host(_))))
    }

    /// Where its elements lie in a device's memory; `None` if they are in the host's, or it is packed.
    #[inline]
    pub fn window(&self) -> Option<Window<&'a dyn Memory, Ix3>> {
        match self.place {
            Place::Host(..) | Place::Packed(_) => None,
            Place::Device(memory, first) => Some(self.extent.window(memory, first)),
        }
    }

    /// The view of the host's memory that it was made of; `None` if it is in a device's.
    ///
    /// # Panics
    /// If its elements are not of `T`.
    #[inline]
    pub fn view<T: Element>(&self) -> Option<ArrayView3<'a, T>> {
        let host = matches!(self.place, Place::Host(..));
        host.then(|| self.view_with(|_| unreachable!("it is in the host's memory")))
    }

    /// The same for a backend whose memory is the host's: `elements` finds those of a block.
    ///
    /// ```
    /// use gemv::{Dtype, unstable::{Memory, Tensor, Window}};
    /// use ndarray::{Ix1, array};
    /// use std::any::Any;
    ///
    /// #[derive(Debug)]
    /// struct Block(Vec<f32>);
    ///
    /// impl Memory for Block {
    ///     fn len(&self) -> usize {
    ///         self.0.len()
    ///     }
    /// }
    /// fn elements(memory: &dyn Memory) -> &[f32] {
    ///     let memory: &dyn Any = memory;
    ///     &memory.downcast_ref::<Block>().unwrap().0
    /// }
    /// let block = Block(vec![1.0, 2.0, 3.0]);
    /// let window = Window { memory: &block as &dyn Memory, first: 2, dim: Ix1(2), strides: Ix1(-2isize as usize) };
    /// let x = Tensor::device(Dtype::F32, window);
    /// assert_eq!(x.view_with(elements), array![[[3.0], [1.0]]]);
    /// assert_eq!(x.vector_with(elements), array![3.0, 1.0]);
    /// ```
    ///
    /// # Panics
    /// If its elements are not of `T`; if it does not lie in its block.
    #[inline]
    pub fn view_with<T: Element>(
        &self,
        elements: impl FnOnce(&'a dyn Memory) -> &'a [T],
    ) -> ArrayView3<'a, T> {
        self.read(self.all(), elements)
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
        self.read(self.matrix(), elements)
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
        self.read(self.vector(), elements)
    }

    #[inline(always)]
    fn read<T: Element, D: Dimension>(
        &self,
        (dim, strides): (D, D),
        elements: impl FnOnce(&'a dyn Memory) -> &'a [T],
    ) -> ArrayView<'a, T, D> {
        self.assert::<T>();
        let (dim, strides, at) = match self.place {
            Place::Host(at, _) => (dim, strides, at.cast()),
            Place::Device(memory, first) => {
                let (all, of) = (elements(memory), Window { memory: (), first, dim, strides });
                assert!(of.lies_in(all.len()), "it lies in its block");
                (of.dim, of.strides, all.as_ptr().wrapping_add(first))
            }
            Place::Packed(_) => panic!("a packed matrix has no elements"),
        };
        // SAFETY: it was made of a view of such elements, or of a part of one, which is borrowed for 'a; or it lies within
        // these elements, which are.
        unsafe { read(at, dim, strides) }
    }

    /// The memory behind an array of the host, as [`span`](crate::span) finds it, in bytes; `None` if it is in a device's.
    ///
    /// ```
    /// use gemv::unstable::Tensor;
    /// use ndarray::{array, s};
    ///
    /// let x = array![1.0f32, 2.0];
    /// let back = Tensor::from(x.slice(s![..;-1]));
    /// let span = back.span()?.expect("it is in the host's memory");
    /// assert_eq!((span.data.len(), span.first, span.strides[1]), (8, 1, -1));
    /// let packed = back.packed()?.expect("it is in the host's memory");
    /// assert_eq!(packed[..4], 2f32.to_ne_bytes());
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`span`](crate::span).
    pub fn span(&self) -> Result<Option<Bytes<'a>>> {
        let Place::Host(at, _) = self.place else { return Ok(None) };
        let (dim, strides) = self.all();
        with_size!(self.dtype, N => {
            // SAFETY: as in `read`. An element has N bytes, all of which mean something; they have no alignment.
            let span = span(&unsafe { read::<[u8; N], _>(at.cast(), dim, strides) })?;
            let strides = [0, 1, 2].map(|axis| span.stride(axis));
            let data = match span.data {
                Cow::Borrowed(data) => Cow::Borrowed(data.as_flattened()),
                Cow::Owned(data) => Cow::Owned(data.into_flattened()),
            };
            Ok(Some(Bytes { data, first: span.first, strides }))
        })
    }

    /// As [`TensorMut::packed`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory to pack them.
    pub fn packed(&self) -> Result<Option<Cow<'a, [u8]>>> {
        match self.place {
            // SAFETY: as in `read`.
            Place::Host(at, _) => unsafe { pack(at, &self.extent) }.map(Some),
            Place::Device(..) | Place::Packed(_) => Ok(None),
        }
    }

    /// Where the first entry lies: its address, or its place in a block, which starts on 64 bytes or more. So both give
    /// the alignment.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        match self.place {
            Place::Host(at, _) => at as usize,
            Place::Device(_, first) => first.wrapping_mul(self.dtype.bytes()),
            Place::Packed(_) => 0,
        }
    }

    pub(crate) fn extent_mut(&mut self) -> &mut Extent {
        &mut self.extent
    }

    /// The part at this index of an axis, which stays.
    ///
    /// ```
    /// use gemv::unstable::Tensor;
    /// use ndarray::array;
    ///
    /// let a = array![[1.0, 2.0], [3.0, 4.0]];
    /// let column = Tensor::from(a.view()).only(2, 1);
    /// assert_eq!(column.view::<f64>().unwrap(), array![[[2.0], [4.0]]]);
    /// ```
    ///
    /// # Panics
    /// If there is no such index.
    #[must_use]
    pub fn only(mut self, axis: usize, index: usize) -> Self {
        let by = self.extent.only(axis, index);
        match &mut self.place {
            Place::Host(at, _) => *at = self.extent.moved(at.cast_mut(), by),
            Place::Device(_, first) => *first = first.wrapping_add_signed(by),
            Place::Packed(_) => assert!(axis == 0, "a packed matrix is taken whole"),
        }
        self
    }

    /// Whether it lies in its memory: an array of the host always does.
    pub(crate) fn check(&self, operand: &'static str) -> Result<()> {
        self.window().map_or(Ok(()), |window| window.check(operand, window.memory.len()))
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
/// use gemv::unstable::TensorMut;
/// use ndarray::{Array3, array, s};
///
/// let mut y = Array3::<f64>::zeros((1, 3, 2));
/// let mut column = TensorMut::from(y.slice_mut(s![.., .., 1..]));
/// assert_eq!((column.dim(), column.strides()[1]), ([1, 3, 1], 2));
/// column.view_mut_with::<f64>(|_| unreachable!("it is in the host's memory")).fill(1.0);
/// assert_eq!(y, array![[[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]]);
/// ```
pub struct TensorMut<'a> {
    place: PlaceMut<'a>,
    extent: Extent,
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

    /// As [`Tensor::from_raw`], to write to.
    ///
    /// ```
    /// use gemv::{Dtype, unstable::TensorMut};
    ///
    /// let mut y = [0.0f64; 4];
    /// let first = y.as_mut_ptr().cast();
    /// // SAFETY: entries 0 and 2 of an array that nothing else touches meanwhile.
    /// let mut y02 = unsafe { TensorMut::from_raw(first, Dtype::F64, [1, 2, 1], [0, 2, 0]) };
    /// y02.assign(gemv::unstable::bytes_of(&[1.0, 2.0]));
    /// assert_eq!(y, [1.0, 0.0, 2.0, 0.0]);
    /// ```
    ///
    /// # Safety
    /// As [`Tensor::from_raw`]; each entry has a place of its own, and for `'a` nothing else reads or writes them.
    #[inline]
    pub unsafe fn from_raw(
        at: *mut u8,
        dtype: Dtype,
        dim: [usize; 3],
        strides: [isize; 3],
    ) -> Self {
        TensorMut { place: PlaceMut::Host(at, PhantomData), extent: Extent { dtype, dim, strides } }
    }

    #[inline(always)]
    pub(crate) fn host<T: Element, D: Dimension>(
        mut view: ArrayViewMut<'a, T, D>,
        axes: Axes,
    ) -> Self {
        let extent = Extent::new(T::DTYPE, &view.raw_dim(), |axis| view.strides()[axis], axes);
        TensorMut { place: PlaceMut::Host(view.as_mut_ptr().cast(), PhantomData), extent }
    }

    #[inline(always)]
    pub(crate) fn resident<D: Dimension>(
        dtype: Dtype,
        window: Window<&'a mut dyn Memory, D>,
        axes: Axes,
    ) -> Self {
        let extent = Extent::new(dtype, &window.dim, |axis| window.stride(axis), axes);
        TensorMut { place: PlaceMut::Device(window.memory, window.first), extent }
    }

    /// The same place, borrowed.
    #[inline]
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        let place = match &mut self.place {
            PlaceMut::Host(at, _) => PlaceMut::Host(*at, PhantomData),
            PlaceMut::Device(memory, first) => PlaceMut::Device(&mut **memory, *first),
        };
        TensorMut { place, extent: self.extent }
    }

    /// Whether it lies in memory of another library.
    #[inline(always)]
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(&self.place, PlaceMut::Device(memory, _) if memory.owner() != Owner::Backend)
    }

    /// Where it lies in a device's memory, to be read; `None` if it is in the host's.
    #[inline]
    pub fn window(&self) -> Option<Window<&dyn Memory, Ix3>> {
        match &self.place {
            PlaceMut::Host(..) => None,
            PlaceMut::Device(memory, first) => Some(self.extent.window(&**memory, *first)),
        }
    }

    /// Where it lies in a device's memory; `None` if it is in the host's.
    #[inline]
    pub fn window_mut(&mut self) -> Option<Window<&mut dyn Memory, Ix3>> {
        match &mut self.place {
            PlaceMut::Host(..) => None,
            PlaceMut::Device(memory, first) => Some(self.extent.window(&mut **memory, *first)),
        }
    }

    /// As of a [`Tensor`], to write to.
    ///
    /// # Panics
    /// If its elements are not of `T`; if it does not lie in its block, or two entries are at one place.
    #[inline]
    pub fn view_mut_with<T: Element>(
        &mut self,
        elements: impl FnOnce(&mut dyn Memory) -> &mut [T],
    ) -> ArrayViewMut3<'_, T> {
        self.write(self.all(), elements)
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
        self.write(self.vector(), elements)
    }

    #[inline(always)]
    fn write<T: Element, D: Dimension>(
        &mut self,
        (dim, strides): (D, D),
        elements: impl FnOnce(&mut dyn Memory) -> &mut [T],
    ) -> ArrayViewMut<'_, T, D> {
        self.assert::<T>();
        let (dim, strides, at) = match &mut self.place {
            PlaceMut::Host(at, _) => (dim, strides, at.cast()),
            PlaceMut::Device(memory, first) => {
                let of = Window { memory: (), first: *first, dim, strides };
                let all = elements(&mut **memory);
                let fits = of.lies_in(all.len()) && of.is_distinct();
                assert!(fits, "it lies in its block, each entry at a place of its own");
                (of.dim, of.strides, all.as_mut_ptr().wrapping_add(*first))
            }
        };
        // SAFETY: it was made of a view of such elements, or of a part of one, which is borrowed; or it lies within these
        // elements, which are, each entry at a place of its own. Nothing else reaches them while this is borrowed.
        unsafe { write(at, dim, strides) }
    }

    /// The entries of an array of the host one after the other, the last axis first, as bytes; `None` if it is in a
    /// device's memory.
    ///
    /// ```
    /// use gemv::unstable::{TensorMut, bytes_of};
    /// use ndarray::{array, s};
    ///
    /// let mut y = array![1.0, 2.0, 3.0];
    /// let mut part = TensorMut::from(y.slice_mut(s![..;2]));
    /// assert_eq!(*part.packed()?.unwrap(), *bytes_of(&[1.0, 3.0]));
    /// part.assign(bytes_of(&[10.0, 30.0]));
    /// assert!(part.slice_mut().is_none()); // they lie apart
    /// assert_eq!(y, array![10.0, 2.0, 30.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory to pack them.
    pub fn packed(&self) -> Result<Option<Cow<'_, [u8]>>> {
        match self.place {
            // SAFETY: as in `write`; nothing writes the entries while this is borrowed.
            PlaceMut::Host(at, _) => unsafe { pack(at, &self.extent) }.map(Some),
            PlaceMut::Device(..) => Ok(None),
        }
    }

    /// The bytes of an array of the host whose entries lie one after the other, the last axis first; `None` for any other.
    pub fn slice_mut(&mut self) -> Option<&mut [u8]> {
        let PlaceMut::Host(at, _) = self.place else { return None };
        let (dim, strides) = self.all();
        with_size!(self.dtype, N => {
            // SAFETY: as in `write`, of the bytes of the elements.
            let view = unsafe { write::<[u8; N], _>(at.cast(), dim, strides) };
            Some(view.into_slice()?.as_flattened_mut())
        })
    }

    /// Writes an array of the host: `packed` has its entries as [`packed`](Self::packed) gives them.
    ///
    /// # Panics
    /// If it is in a device's memory, or there are more entries or fewer.
    pub fn assign(&mut self, packed: &[u8]) {
        let PlaceMut::Host(at, _) = self.place else { panic!("an array of the host") };
        let (dim, strides) = self.all();
        with_size!(self.dtype, N => {
            let (new, rest) = packed.as_chunks::<N>();
            // SAFETY: as in `write`, of the bytes of the elements.
            let y = unsafe { write::<[u8; N], _>(at.cast(), dim, strides) };
            assert!(rest.is_empty() && new.len() == y.len(), "as many entries");
            y.into_iter().zip(new).for_each(|(y, new)| *y = *new);
        });
    }

    pub(crate) fn extent_mut(&mut self) -> &mut Extent {
        &mut self.extent
    }

    /// As of a [`Tensor`].
    ///
    /// # Panics
    /// If there is no such index.
    #[must_use]
    pub fn only(mut self, axis: usize, index: usize) -> Self {
        let by = self.extent.only(axis, index);
        match &mut self.place {
            PlaceMut::Host(at, _) => *at = self.extent.moved(*at, by),
            PlaceMut::Device(_, first) => *first = first.wrapping_add_signed(by),
        }
        self
    }

    /// Whether it lies in its memory, each entry at a place of its own: those of a host array always do.
    pub(crate) fn check(&self, operand: &'static str) -> Result<()> {
        self.window().map_or(Ok(()), |window| window.check_result(operand, window.memory.len()))
    }
}

/// The memory of elements as bytes.
///
/// ```
/// assert_eq!(gemv::unstable::bytes_of(&[1.0f32, 0.0]).len(), 8);
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
/// gemv::unstable::bytes_of_mut(&mut one).copy_from_slice(&1f64.to_ne_bytes());
/// assert_eq!(one, [1.0]);
/// ```
#[inline]
pub fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; and any bits are a value of those types.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

impl AnySlice<'_> {
    /// Its memory.
    ///
    /// ```
    /// assert_eq!(gemv::unstable::AnySlice::F64(&[0.0]).bytes(), [0; 8]);
    /// ```
    pub fn bytes(&self) -> &[u8] {
        for_any!(AnySlice, self, slice => bytes_of(slice))
    }
}

impl AnySliceMut<'_> {
    /// Its memory, to write to.
    pub fn bytes(&mut self) -> &mut [u8] {
        for_any!(AnySliceMut, self, slice => bytes_of_mut(slice))
    }
}

/// The entries one after the other.
///
/// # Safety
/// As [`read`], of elements of the type.
unsafe fn pack<'a>(at: *const u8, extent: &Extent) -> Result<Cow<'a, [u8]>> {
    let (dim, strides) = extent.all();
    with_size!(extent.dtype, N => {
        // SAFETY: the caller's. An element has N bytes, all of which mean something; they have no alignment.
        let view = unsafe { read::<[u8; N], _>(at.cast(), dim, strides) };
        Ok(match view.to_slice() {
            Some(all) => Cow::Borrowed(all.as_flattened()),
            None => Cow::Owned(packed(&view)?.into_flattened()),
        })
    })
}

/// Strides without signs, the lowest address, and whether any was negative: as ndarray makes views of addresses. Of an array
/// without entries the address and the strides may be anything; `step` is then that of each other axis.
#[inline(always)]
fn forwards<T, D: Dimension>(
    at: *const T,
    dim: &D,
    strides: &D,
    step: usize,
) -> (D, *const T, bool) {
    let (mut apart, mut lowest, mut backwards) = (strides.clone(), at, false);
    let empty = dim.slice().contains(&0);
    for axis in 0..dim.ndim() {
        let stride = strides[axis] as isize;
        if empty {
            apart[axis] = step * dim[axis].min(1);
        } else if stride < 0 {
            backwards = true;
            apart[axis] = stride.unsigned_abs();
            lowest = lowest.wrapping_offset(stride * (dim[axis] as isize - 1));
        }
    }
    if empty {
        return (apart, NonNull::dangling().as_ptr(), false);
    }
    (apart, lowest, backwards)
}

/// # Safety
/// Entries of these dimensions and strides, from this address on, are those of an array of `T` that nothing writes for 'a. Of an
/// array without entries, the address and the strides may be anything.
#[inline(always)]
unsafe fn read<'a, T, D: Dimension>(at: *const T, dim: D, strides: D) -> ArrayView<'a, T, D> {
    let (apart, lowest, backwards) = forwards(at, &dim, &strides, 0);
    // SAFETY: the caller's.
    let mut view = unsafe { RawArrayView::from_shape_ptr(dim.strides(apart), lowest) };
    if backwards {
        let negative = |axis: &usize| (strides[*axis] as isize) < 0;
        (0..strides.ndim()).filter(negative).for_each(|axis| view.invert_axis(Axis(axis)));
    }
    // SAFETY: the caller's.
    unsafe { view.deref_into_view() }
}

/// # Safety
/// As [`read`], each entry has a place of its own, and nothing else reads or writes them.
#[inline(always)]
unsafe fn write<'a, T, D: Dimension>(at: *mut T, dim: D, strides: D) -> ArrayViewMut<'a, T, D> {
    // By a step of 0, ndarray would see entries at one place.
    let (apart, lowest, backwards) = forwards(at, &dim, &strides, 1);
    let lowest = lowest.cast_mut();
    // SAFETY: the caller's.
    let mut view = unsafe { RawArrayViewMut::from_shape_ptr(dim.strides(apart), lowest) };
    if backwards {
        let negative = |axis: &usize| (strides[*axis] as isize) < 0;
        (0..strides.ndim()).filter(negative).for_each(|axis| view.invert_axis(Axis(axis)));
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
