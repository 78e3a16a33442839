//! Arrays as the BLAS gives them.

use gemv_core::ndarray::{
    ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, ShapeBuilder,
};

/// A vector of the BLAS: `len` entries, `step` apart. With a negative step the first entry is the last in memory.
#[derive(Clone, Copy)]
pub(crate) struct Vector<P> {
    pub(crate) at: P,
    pub(crate) len: usize,
    pub(crate) step: isize,
}

/// A matrix of the BLAS.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<P> {
    pub(crate) at: P,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Distance of columns, or of rows where these follow each other.
    pub(crate) apart: usize,
    pub(crate) by_rows: bool,
}

/// Whether an address can be that of elements which reach so many elements further.
#[inline(always)]
fn can_be<T>(at: *const T, count: usize, apart: usize, more: usize) -> bool {
    !at.is_null()
        && at.is_aligned()
        && count
            .saturating_sub(1)
            .checked_mul(apart)
            .and_then(|reach| reach.checked_add(more)?.checked_mul(size_of::<T>()))
            .is_some_and(|bytes| bytes <= isize::MAX as usize)
}

impl<T> Vector<*const T> {
    /// Whether there can be such a vector: not at address 0, not between elements, and not longer than an address space.
    #[inline(always)]
    pub(crate) fn can_be(&self) -> bool {
        can_be(self.at, self.len, self.step.unsigned_abs(), 1)
    }

    /// # Safety
    /// It [can be](Self::can_be), and its entries are readable, as the caller of the BLAS promises.
    #[inline(always)]
    pub(crate) unsafe fn view<'a>(self) -> ArrayView1<'a, T> {
        let shape = self.len.strides(self.step.unsigned_abs());
        // SAFETY: the caller's.
        let mut view = unsafe { ArrayView1::from_shape_ptr(shape, self.at) };
        if self.step < 0 {
            view.invert_axis(Axis(0));
        }
        view
    }
}

impl<T> Vector<*mut T> {
    #[inline(always)]
    pub(crate) fn read(self) -> Vector<*const T> {
        let Vector { at, len, step } = self;
        Vector { at: at.cast_const(), len, step }
    }

    /// # Safety
    /// As of a vector that is read; nothing else reaches its entries, and the step is not 0.
    #[inline(always)]
    pub(crate) unsafe fn view_mut<'a>(self) -> ArrayViewMut1<'a, T> {
        let shape = self.len.strides(self.step.unsigned_abs());
        // SAFETY: the caller's.
        let mut view = unsafe { ArrayViewMut1::from_shape_ptr(shape, self.at) };
        if self.step < 0 {
            view.invert_axis(Axis(0));
        }
        view
    }
}

impl<P> Matrix<P> {
    fn strides(&self) -> (usize, usize) {
        if self.by_rows { (self.apart, 1) } else { (1, self.apart) }
    }
}

impl<T> Matrix<*const T> {
    /// As of a [`Vector`].
    #[inline(always)]
    pub(crate) fn can_be(&self) -> bool {
        let (lines, long) =
            if self.by_rows { (self.rows, self.cols) } else { (self.cols, self.rows) };
        can_be(self.at, lines, self.apart, long)
    }

    /// # Safety
    /// As of a [`Vector`].
    #[inline(always)]
    pub(crate) unsafe fn view<'a>(self) -> ArrayView2<'a, T> {
        let shape = (self.rows, self.cols).strides(self.strides());
        // SAFETY: the caller's.
        unsafe { ArrayView2::from_shape_ptr(shape, self.at) }
    }
}

impl<T> Matrix<*mut T> {
    pub(crate) fn read(self) -> Matrix<*const T> {
        let Matrix { at, rows, cols, apart, by_rows } = self;
        Matrix { at: at.cast_const(), rows, cols, apart, by_rows }
    }

    /// # Safety
    /// As of a [`Vector`] that is written.
    pub(crate) unsafe fn view_mut<'a>(self) -> ArrayViewMut2<'a, T> {
        let shape = (self.rows, self.cols).strides(self.strides());
        // SAFETY: the caller's.
        unsafe { ArrayViewMut2::from_shape_ptr(shape, self.at) }
    }
}
