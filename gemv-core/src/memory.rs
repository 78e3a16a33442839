//! Memory of a device, and where an array lies in it.

use std::any::Any;
use std::fmt::Debug;
use std::ops::{Deref, Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ndarray::{
    ArrayView, ArrayViewMut, Axis, Dimension, Ix3, RemoveAxis, ShapeBuilder, SliceInfoElem,
};

use crate::host::entries;
use crate::{Error, Result};

/// A block of device memory that holds elements of one type. Made by
/// [`Backend::upload`](crate::Backend::upload) and [`Backend::alloc`](crate::Backend::alloc); freed
/// on drop.
///
/// A backend has a type of its own here, and finds it again by [`Any`].
///
/// ```
/// use gemv::unstable::Memory;
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
/// let block: Box<dyn Memory> = Box::new(Block(vec![1.0, 2.0]));
/// assert_eq!((block.len(), block.is_empty()), (2, false));
/// let any: &dyn Any = &*block;
/// assert_eq!(any.downcast_ref::<Block>().unwrap().0, [1.0, 2.0]);
/// ```
pub trait Memory: Any + Send + Sync + Debug {
    /// Number of elements.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The driver's handle: a `CUdeviceptr`, a `cl_mem`. By default there is none.
    fn handle(&self) -> Option<usize> {
        None
    }
    /// Where it begins, to see whether two blocks overlap: a space of addresses, and an address in it. By default each handle
    /// is a space.
    fn place(&self) -> Option<(usize, usize)> {
        self.handle().map(|handle| (handle, 0))
    }
    /// Who owns it.
    fn owner(&self) -> Owner {
        Owner::Backend
    }
}

/// Who owns a block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The backend, which allocated it: no other block has a part of it.
    Backend,
    /// Another library: see [`Foreign`](crate::Foreign).
    Foreign {
        /// Whether it may be written.
        writable: bool,
    },
}

/// A block that [`Backend::exchange`](crate::Backend::exchange) writes, and with what.
#[derive(Debug)]
pub struct Receive<'a> {
    /// The block.
    pub to: &'a mut dyn Memory,
    /// What is copied to it. No two write the same place.
    pub pieces: Vec<Piece<'a>>,
}

/// Elements that lie one after the other, of a block with the same element type.
#[derive(Debug, Clone)]
pub struct Piece<'a> {
    /// Index of the first one in the block that is written.
    pub at: usize,
    /// The block that is read. It may be on the same device.
    pub from: &'a dyn Memory,
    /// Which of its elements.
    pub range: Range<usize>,
}

/// Copies that [`Backend::exchange`](crate::Backend::exchange) has started. It keeps the blocks. Dropping it is as
/// [`finish`](Self::finish), but that nobody is told of an error.
pub trait Exchange: Send + Debug {
    /// Lets later work on the devices wait for the copies. The host does not.
    ///
    /// # Errors
    /// [`Error::Device`](Error::Device): the driver's refusal. What was to be written is then undefined.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// The memory of an array, and of its clones and views.
#[derive(Debug)]
pub(crate) struct SharedMemory(Arc<dyn Memory>);

/// How often an array got its memory: its own, or that of another.
static SHARES: AtomicU64 = AtomicU64::new(0);

impl SharedMemory {
    /// A number that is another one once an array was made, cloned or viewed, on any thread.
    pub(crate) fn shares() -> u64 {
        SHARES.load(Ordering::Relaxed)
    }

    /// To write to; `None` while it is shared, and of memory that may not be written.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut dyn Memory> {
        let memory = Arc::get_mut(&mut self.0)?;
        (memory.owner() != Owner::Foreign { writable: false }).then_some(memory)
    }
}

impl From<Box<dyn Memory>> for SharedMemory {
    fn from(memory: Box<dyn Memory>) -> SharedMemory {
        SHARES.fetch_add(1, Ordering::Relaxed);
        SharedMemory(memory.into())
    }
}

impl From<Arc<dyn Memory>> for SharedMemory {
    fn from(memory: Arc<dyn Memory>) -> SharedMemory {
        SHARES.fetch_add(1, Ordering::Relaxed);
        SharedMemory(memory)
    }
}

impl Clone for SharedMemory {
    fn clone(&self) -> SharedMemory {
        SHARES.fetch_add(1, Ordering::Relaxed);
        SharedMemory(self.0.clone())
    }
}

impl Deref for SharedMemory {
    type Target = dyn Memory;

    #[inline]
    fn deref(&self) -> &dyn Memory {
        &*self.0
    }
}

/// An array in a block of [`Memory`]: entry (i, j, ..) lies at `first + i * stride(0) +
/// j * stride(1) + ..`, in elements.
///
/// `M` is `&dyn Memory`, or `&mut dyn Memory` where the array is written.
///
/// ```
/// use gemv::{Engine, unstable::Window};
/// use ndarray::{array, s};
///
/// let a = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let resident = Engine::new(None).device("reference")?.matrix(&a.slice(s![.., ..;-1]))?;
/// let Window { memory, first, dim, .. } = resident.window();
/// assert_eq!((memory.len(), first, (dim[0], dim[1])), (6, 2, (2, 3)));
/// assert_eq!((resident.window().stride(0), resident.window().stride(1)), (3, -1));
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Window<M, D> {
    /// The block.
    pub memory: M,
    /// Index in the block of the entry whose indices are all 0.
    pub first: usize,
    /// Number of entries along each axis.
    pub dim: D,
    /// Strides in elements, each an `isize` as ndarray keeps them; see [`stride`](Self::stride).
    pub strides: D,
}

impl<M> Window<M, Ix3> {
    /// Index in the block of the entry with these indices.
    ///
    /// ```
    /// use gemv::unstable::Window;
    /// use ndarray::Ix3;
    /// let columns = Window { memory: (), first: 7, dim: Ix3(1, 2, 3), strides: Ix3(0, 1, 10) };
    /// assert_eq!(columns.place([0, 1, 2]), 28);
    /// ```
    #[inline]
    pub fn place(&self, at: [usize; 3]) -> usize {
        let offset = |axis: usize| at[axis] as isize * self.stride(axis);
        self.first.wrapping_add_signed(offset(0) + offset(1) + offset(2))
    }
}

impl<M, D: Dimension> Window<M, D> {
    /// The stride of an axis, in elements.
    #[inline]
    pub fn stride(&self, axis: usize) -> isize {
        self.strides[axis] as isize
    }

    /// The first index that the array touches, and how many from there on.
    #[inline]
    pub fn range(&self) -> (usize, usize) {
        if (0..self.dim.ndim()).any(|axis| self.dim[axis] == 0) {
            return (0, 0);
        }
        let (mut low, mut high) = (self.first as isize, self.first as isize);
        for axis in 0..self.dim.ndim() {
            let far = self.stride(axis) * (self.dim[axis] as isize - 1);
            low += far.min(0);
            high += far.max(0);
        }
        (low as usize, (high - low + 1) as usize)
    }

    /// Whether every entry lies in a block of so many elements. An array without entries does.
    ///
    /// ```
    /// use gemv::unstable::Window;
    /// use ndarray::Ix2;
    ///
    /// let every_other = |step: isize| {
    ///     Window { memory: (), first: 4, dim: Ix2(1, 3), strides: Ix2(0, step as usize) }
    /// };
    /// assert!(every_other(2).lies_in(9) && !every_other(2).lies_in(8));
    /// assert!(every_other(-2).lies_in(5) && !every_other(-3).lies_in(9));
    /// assert!(!every_other(isize::MIN).lies_in(usize::MAX));
    /// ```
    #[inline]
    pub fn lies_in(&self, len: usize) -> bool {
        if self.dim.slice().contains(&0) {
            return true;
        }
        let (mut low, mut high) = (self.first, self.first);
        (0..self.dim.ndim()).filter(|&axis| self.dim[axis] > 1).all(|axis| {
            let stride = self.stride(axis);
            let Some(far) = stride.unsigned_abs().checked_mul(self.dim[axis] - 1) else {
                return false;
            };
            let moved = match stride < 0 {
                true => low.checked_sub(far).map(|to| low = to),
                false => high.checked_add(far).map(|to| high = to),
            };
            moved.is_some()
        }) && high < len
    }

    /// Whether an operand of this name lies in its block of so many elements.
    pub(crate) fn check(&self, operand: &'static str, len: usize) -> Result<()> {
        if self.lies_in(len) {
            return Ok(());
        }
        let reason = format!("does not lie in its memory, which has {len} elements");
        Err(Error::Operand { operand, reason })
    }

    /// The same of a result, each of whose entries has to have a place of its own.
    pub(crate) fn check_result(&self, operand: &'static str, len: usize) -> Result<()> {
        self.check(operand, len)?;
        if self.is_distinct() {
            return Ok(());
        }
        let reason = "has several entries at one place, or axes that cross".into();
        Err(Error::Operand { operand, reason })
    }

    /// Whether every entry has a place of its own: none is repeated, and no two axes cross.
    #[inline]
    pub(crate) fn is_distinct(&self) -> bool {
        if self.dim.slice().contains(&0) {
            return true;
        }
        let mut axes = self.dim.clone();
        let mut count = 0;
        for axis in (0..self.dim.ndim()).filter(|&axis| self.dim[axis] > 1) {
            axes[count] = axis;
            count += 1;
        }
        if count <= 1 {
            return count == 0 || self.stride(axes[0]) != 0;
        }
        let axes = &mut axes.slice_mut()[..count];
        axes.sort_unstable_by_key(|&axis| self.stride(axis).unsigned_abs());
        let mut reach = 0;
        axes.iter().all(|&axis| {
            let apart = self.stride(axis).unsigned_abs();
            let fits = apart > reach;
            reach += apart * (self.dim[axis] - 1);
            fits
        })
    }

    /// Every `step`-th of a range of an axis, backwards if `step` is negative.
    ///
    /// # Panics
    /// If the range ends beyond the last entry, or before it starts, or `step` is 0.
    #[track_caller]
    pub(crate) fn step_axis(
        mut self,
        axis: usize,
        range: impl RangeBounds<usize>,
        step: isize,
    ) -> Self {
        let (at, len) = part(range, self.dim[axis], step, &|| named(axis, self.dim.ndim()));
        let stride = self.stride(axis);
        self.dim[axis] = len;
        if self.dim.slice().iter().all(|&entries| entries > 0) {
            self.first = self.first.wrapping_add_signed(at as isize * stride);
        }
        // Of at most one entry there is no stride, and a step may be of any size.
        self.strides[axis] = if len > 1 { stride * step } else { stride } as usize;
        self
    }

    /// The part that ndarray's `s![..]` means, which was compiled for as many axes.
    ///
    /// # Panics
    /// If an index or a range ends beyond the last entry of its axis, or a step is 0.
    #[track_caller]
    pub(crate) fn slice<E: Dimension>(mut self, parts: &[SliceInfoElem]) -> Window<M, E> {
        let kept = parts.iter().filter(|part| !part.is_index()).count();
        let (mut dim, mut strides) = (E::zeros(kept), E::zeros(kept));
        let (mut axis, mut to) = (0, 0);
        for part in parts {
            let len = if part.is_new_axis() { 1 } else { self.dim[axis] };
            match *part {
                SliceInfoElem::Slice { start, end, step } => {
                    let start = from_end(start, len);
                    let end = end.map_or(len, |end| from_end(end, len)).max(start);
                    self = self.step_axis(axis, start..end, step);
                    (dim[to], strides[to]) = (self.dim[axis], self.strides[axis]);
                }
                SliceInfoElem::Index(at) => self = self.only(axis, from_end(at, len)),
                SliceInfoElem::NewAxis => dim[to] = 1,
            }
            to += usize::from(!part.is_index());
            axis += usize::from(!part.is_new_axis());
        }
        Window { memory: self.memory, first: self.first, dim, strides }
    }

    /// The part at this index of an axis, which is still there.
    #[track_caller]
    fn only(mut self, axis: usize, index: usize) -> Self {
        let (len, axes) = (self.dim[axis], self.dim.ndim());
        assert!(
            index < len,
            "{index} of the {} is out of bounds: there are {len}",
            named(axis, axes)
        );
        // Of an array without entries, the product may be more than a number holds.
        let step = self.stride(axis).wrapping_mul(index as isize);
        self.first = self.first.wrapping_add_signed(step);
        self.dim[axis] = 1;
        self
    }

    /// The same entries along other axes, if they lie one after another in that order, and are as many.
    pub(crate) fn reshape<E: Dimension>(self, dim: E, fortran: bool) -> Option<Window<M, E>> {
        let fits = self.is_ordered(fortran) && entries(&dim) == entries(&self.dim);
        let strides = order(&dim, fortran);
        fits.then_some(Window { memory: self.memory, first: self.first, dim, strides })
    }

    /// Whether the entries lie one after another, the last axis first, or in Fortran's order the first.
    pub(crate) fn is_ordered(&self, fortran: bool) -> bool {
        let apart = order(&self.dim, fortran);
        let follows = |axis| self.dim[axis] <= 1 || self.strides[axis] == apart[axis];
        self.dim.slice().contains(&0) || (0..self.dim.ndim()).all(follows)
    }

    /// The array as a view, for backends whose memory is the host's: `memory` is the whole block as
    /// the backend holds it.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// let block = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // what the backend holds
    /// assert_eq!(a.window().view(&block), array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    /// assert_eq!(a.step_columns(.., -2).window().view(&block), array![[3.0, 1.0], [6.0, 4.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the array does not lie in `memory`.
    #[inline]
    pub fn view<'a, T>(&self, memory: &'a [T]) -> ArrayView<'a, T, D> {
        let (at, len) = self.range();
        if len == 0 {
            return ArrayView::from_shape(self.dim.clone(), &[]).expect("there are no entries");
        }
        let shape = self.dim.clone().strides(self.distances());
        let mut view =
            ArrayView::from_shape(shape, &memory[at..at + len]).expect("the range of the strides");
        for axis in 0..self.dim.ndim() {
            if self.stride(axis) < 0 {
                view.invert_axis(Axis(axis));
            }
        }
        view
    }

    /// As [`view`](Self::view), to write to.
    ///
    /// # Panics
    /// If the array does not lie in `memory`, or two of its entries lie at one place.
    #[inline]
    pub fn view_mut<'a, T>(&self, memory: &'a mut [T]) -> ArrayViewMut<'a, T, D> {
        let (at, len) = self.range();
        if len == 0 {
            let none = ArrayViewMut::from_shape(self.dim.clone(), &mut []);
            return none.expect("there are no entries");
        }
        let shape = self.dim.clone().strides(self.distances());
        let mut view = ArrayViewMut::from_shape(shape, &mut memory[at..at + len])
            .expect("entries apart, in the range of the strides");
        for axis in 0..self.dim.ndim() {
            if self.stride(axis) < 0 {
                view.invert_axis(Axis(axis));
            }
        }
        view
    }

    /// The strides without their signs.
    #[inline]
    fn distances(&self) -> D {
        let mut distances = self.strides.clone();
        for axis in 0..distances.ndim() {
            distances[axis] = self.stride(axis).unsigned_abs();
        }
        distances
    }
}

impl<M, D: Dimension> Window<M, D> {
    /// With an axis of one entry before this one.
    pub(crate) fn insert_axis(self, axis: Axis) -> Window<M, D::Larger> {
        let (dim, mut strides) = (self.dim.insert_axis(axis), self.strides.insert_axis(axis));
        strides[axis.index()] = 0;
        Window { memory: self.memory, first: self.first, dim, strides }
    }
}

impl<M, D: RemoveAxis> Window<M, D> {
    /// The part at this index of an axis.
    ///
    /// # Panics
    /// If there is no such index.
    #[track_caller]
    pub fn index_axis(self, axis: usize, index: usize) -> Window<M, D::Smaller> {
        let Window { memory, first, dim, strides } = self.only(axis, index);
        let (dim, strides) = (dim.remove_axis(Axis(axis)), strides.remove_axis(Axis(axis)));
        Window { memory, first, dim, strides }
    }
}

/// An index of so many entries; a negative one counts from the end. One before the first is none: the most there is.
fn from_end(at: isize, len: usize) -> usize {
    let from_start = if at < 0 { at.checked_add_unsigned(len) } else { Some(at) };
    from_start.and_then(|at| usize::try_from(at).ok()).unwrap_or(usize::MAX)
}

/// The strides of entries one after another, the last axis first, or in Fortran's order the first.
pub(crate) fn order<D: Dimension>(dim: &D, fortran: bool) -> D {
    let (mut strides, axes) = (dim.clone(), dim.ndim());
    let mut apart = 1usize;
    for place in 0..axes {
        let axis = if fortran { place } else { axes - 1 - place };
        strides[axis] = apart;
        // More than can be addressed is the backend's to refuse.
        apart = apart.saturating_mul(dim[axis]);
    }
    strides
}

/// What lies along an axis.
pub(crate) fn named(axis: usize, axes: usize) -> String {
    match (axes, axis) {
        (1, _) => "entries".into(),
        (2, 0) => "rows".into(),
        (2, _) => "columns".into(),
        _ => format!("entries of axis {axis}"),
    }
}

/// First index and length of a stepped range of `len` entries, named so.
#[track_caller]
pub(crate) fn part(
    range: impl RangeBounds<usize>,
    len: usize,
    step: isize,
    named: &dyn Fn() -> String,
) -> (usize, usize) {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let start = match range.start_bound() {
        Included(&s) => s,
        Excluded(&s) => s.saturating_add(1),
        Unbounded => 0,
    };
    let end = match range.end_bound() {
        Included(&e) => e.saturating_add(1),
        Excluded(&e) => e,
        Unbounded => len,
    };
    assert!(
        start <= end && end <= len,
        "range {start}..{end} of the {} is out of bounds: there are {len}",
        named()
    );
    assert!(step != 0, "a step of 0 along the {}", named());
    let count = (end - start).div_ceil(step.unsigned_abs());
    // A negative step starts at the last entry of the range, as ndarray's slices do.
    (if step > 0 || count == 0 { start } else { end - 1 }, count)
}
