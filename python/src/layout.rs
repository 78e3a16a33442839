//! Shapes and strides, which are values here: in front, axes of a batch; behind, those of a matrix.

use pyo3::PyResult;

use crate::errors;

/// The most axes of an operand.
pub const MAX_AXES: usize = 8;

/// Room for them, and for those of a matrix that vectors have not.
const ROOM: usize = MAX_AXES + 2;

/// Entries and strides, in elements, of each axis.
#[derive(Debug, Clone, Copy, Default)]
pub struct Layout {
    axes: usize,
    dim: [usize; ROOM],
    strides: [isize; ROOM],
}

impl Layout {
    /// # Panics
    /// If there are more than [`MAX_AXES`].
    #[inline]
    pub fn new(axes: impl Iterator<Item = (usize, isize)>) -> Layout {
        let mut layout = Layout::default();
        for (entries, stride) in axes {
            layout.dim[layout.axes] = entries;
            // An axis of one entry may come with any stride.
            layout.strides[layout.axes] = if entries > 1 { stride } else { 0 };
            layout.axes += 1;
        }
        layout
    }

    /// Row by row.
    #[inline]
    pub fn packed(dim: &[usize]) -> Layout {
        let mut apart = [1isize; ROOM];
        for axis in (1..dim.len()).rev() {
            apart[axis - 1] = apart[axis].saturating_mul(dim[axis] as isize);
        }
        Layout::new(dim.iter().copied().zip(apart))
    }

    #[inline]
    pub fn axes(&self) -> usize {
        self.axes
    }

    #[inline]
    pub fn dim(&self) -> &[usize] {
        &self.dim[..self.axes]
    }

    #[inline]
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.axes]
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.dim().contains(&0)
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (usize, isize)> + ExactSizeIterator + '_ {
        (0..self.axes).map(|axis| (self.dim[axis], self.strides[axis]))
    }

    /// The first axes, all but so many.
    #[inline]
    pub fn batch(&self, behind: usize) -> Layout {
        Layout { axes: self.axes - behind, ..*self }
    }

    /// The last axes: entries and strides.
    #[inline]
    pub fn last<const N: usize>(&self) -> ([usize; N], [isize; N]) {
        let at = |axis: usize| self.axes - N + axis;
        (
            std::array::from_fn(|axis| self.dim[at(axis)]),
            std::array::from_fn(|axis| self.strides[at(axis)]),
        )
    }

    /// The shape with an axis behind, row by row.
    #[inline]
    pub fn with(mut self, entries: usize) -> Layout {
        self.dim[self.axes] = entries;
        self.axes += 1;
        Layout::packed(self.dim())
    }

    /// With an axis of one entry behind: of vectors, matrices of one column.
    #[inline]
    pub fn with_column(mut self) -> Layout {
        self.dim[self.axes] = 1;
        self.strides[self.axes] = 0;
        self.axes += 1;
        self
    }

    /// With an axis of one entry before the last: of vectors, matrices of one row.
    pub fn with_row(self) -> Layout {
        self.with_column().transposed()
    }

    /// Number of entries, or the most there is.
    #[inline]
    pub fn entries(&self) -> usize {
        if self.is_empty() {
            0
        } else {
            self.dim().iter().fold(1, |all: usize, &of| all.saturating_mul(of))
        }
    }

    /// With the last two axes swapped.
    #[inline]
    pub fn transposed(mut self) -> Layout {
        self.dim.swap(self.axes - 1, self.axes - 2);
        self.strides.swap(self.axes - 1, self.axes - 2);
        self
    }

    /// With an axis as the last one.
    pub fn with_last(&self, axis: usize) -> Layout {
        let others = (0..self.axes).filter(|&other| other != axis).chain([axis]);
        Layout::new(others.map(|axis| (self.dim[axis], self.strides[axis])))
    }

    /// In three axes, those in front of one entry.
    ///
    /// # Panics
    /// If it has more.
    #[inline]
    pub fn three(&self) -> ([usize; 3], [isize; 3]) {
        let (mut dim, mut strides) = ([1; 3], [0; 3]);
        dim[3 - self.axes..].copy_from_slice(self.dim());
        strides[3 - self.axes..].copy_from_slice(self.strides());
        (dim, strides)
    }

    /// The lowest and the highest place of an entry, in elements from the one whose indices are all 0; `None` if
    /// there are none, or they are further apart than memory is large.
    pub fn reach(&self) -> Option<(isize, isize)> {
        if self.is_empty() {
            return None;
        }
        self.iter().try_fold((0isize, 0isize), |(low, high), (entries, stride)| {
            let far = stride.checked_mul(entries as isize - 1)?;
            Some((low.checked_add(far.min(0))?, high.checked_add(far.max(0))?))
        })
    }

    /// Whether every entry has a place of its own: none is repeated, and no two axes cross.
    pub fn is_distinct(&self) -> bool {
        if self.is_empty() {
            return true;
        }
        let mut axes: Vec<_> = self.iter().filter(|axis| axis.0 > 1).collect();
        axes.sort_unstable_by_key(|axis| axis.1.unsigned_abs());
        let mut reach = 0usize;
        axes.into_iter().all(|(entries, stride)| {
            let fits = stride.unsigned_abs() > reach;
            reach = reach.saturating_add(stride.unsigned_abs().saturating_mul(entries - 1));
            fits
        })
    }

    /// Whether it is a matrix whose columns lie together.
    pub fn is_by_columns(&self) -> bool {
        let ([rows, columns], [rs, cs]) = self.last::<2>();
        rows > 1 && columns > 1 && rs == 1 && cs > 1
    }

    /// In this shape: axes of one entry, and those that are not there, repeat theirs.
    ///
    /// # Panics
    /// If it is not a shape that [`broadcast`] gave.
    pub fn as_batch(&self, shape: &Layout) -> Layout {
        let new = shape.axes - self.axes;
        Layout::new(shape.dim().iter().enumerate().map(|(axis, &entries)| {
            match axis.checked_sub(new) {
                Some(own) if self.dim[own] == entries => (entries, self.strides[own]),
                _ => (entries, 0),
            }
        }))
    }
}

/// The shape in which two batches have one entry for each of the other's; `None` if there is none.
#[inline]
pub fn broadcast(one: &Layout, other: &Layout) -> Option<Layout> {
    if one.axes + other.axes == 0 {
        return Some(Layout::default());
    }
    let axes = one.axes.max(other.axes);
    let at =
        |of: &Layout, axis: usize| (axis + of.axes).checked_sub(axes).map_or(1, |own| of.dim[own]);
    let mut dim = Layout { axes, ..Layout::default() };
    for axis in 0..axes {
        dim.dim[axis] = match (at(one, axis), at(other, axis)) {
            (a, b) if a == b => a,
            (1, b) => b,
            (a, 1) => a,
            _ => return None,
        };
    }
    Some(Layout::packed(dim.dim()))
}

/// A batch of products: entries of an axis, and the strides of A, of X and of Y along it.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    pub entries: usize,
    pub apart: [isize; 3],
}

/// The axes of a batch, as few as there can be: two that follow each other in all three operands are one.
///
/// # Panics
/// If the three have not one shape.
pub fn merged(batches: [&Layout; 3]) -> Vec<Axis> {
    let mut all: Vec<Axis> = Vec::new();
    for axis in 0..batches[0].axes() {
        let next =
            Axis { entries: batches[0].dim[axis], apart: batches.map(|batch| batch.strides[axis]) };
        if next.entries == 1 {
            continue;
        }
        match all.last_mut() {
            Some(last)
                if (0..3).all(|of| {
                    Some(last.apart[of]) == next.apart[of].checked_mul(next.entries as isize)
                }) =>
            {
                *last = Axis { entries: last.entries * next.entries, apart: next.apart };
            }
            _ => all.push(next),
        }
    }
    all
}

/// Refuses more axes than there are here.
pub fn check_axes(operand: &str, axes: usize) -> PyResult<()> {
    if axes <= MAX_AXES {
        return Ok(());
    }
    Err(errors::value(format!(
        "{operand} has {axes} axes, and there are products of up to {MAX_AXES}"
    )))
}
