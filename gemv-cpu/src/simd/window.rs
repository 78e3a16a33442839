//! A block of a matrix as a kernel sees it, and what its addresses say about aligned loads.

use gemv_core::order::LANES;

use super::ops::Ops;

/// A block of a matrix: the address of element (0, 0) and the distance of lines in elements. Along a line the
/// elements are [`Ops::STEP`] apart.
pub(super) struct Window<T> {
    pub(super) p: *const T,
    /// Lines are rows for the row kernels and columns for the column kernels.
    pub(super) line: isize,
    pub(super) m: usize,
    pub(super) n: usize,
}

impl<T> Clone for Window<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Window<T> {}

impl<T> Window<T> {
    /// The same block with elements of another type of the same size.
    pub(super) fn cast<U>(self) -> Window<U> {
        let Window { p, line, m, n } = self;
        Window { p: p.cast(), line, m, n }
    }
}

/// The sizes and the alignment of a vector, as far as a plan and the choice of addresses depend on them. Powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vector {
    /// Bytes of an element.
    pub(super) element: usize,
    /// Bytes of an accumulator.
    pub(super) acc: usize,
    /// Lanes of a vector, and the bytes of its elements.
    pub(super) width: usize,
    pub(super) bytes: usize,
    /// Whether the row kernel rotates lanes for the sake of aligned loads.
    pub(super) rotates: bool,
}

impl Vector {
    pub(super) const fn of<O: Ops>() -> Vector {
        let (element, acc, width) = (size_of::<O::T>(), size_of::<O::Acc>(), O::W);
        Vector { element, acc, width, bytes: width * element, rotates: O::ROTATES }
    }

    /// Whether elements are their own accumulators.
    #[inline(always)]
    pub(super) const fn same(&self) -> bool {
        self.element == self.acc
    }
}

/// Whether all lines have the same offset from a vector boundary.
#[inline(always)]
pub(super) fn same_offset<T>(a: &Window<T>, v: Vector) -> bool {
    (a.line.unsigned_abs() * v.element) & (v.bytes - 1) == 0 || a.m == 1
}

/// Elements of a line before its first vector boundary. 0 where lines have different offsets, or where aligned
/// loads gain nothing. For lines that run `back`, the boundary is counted from their other end.
#[inline(always)]
pub(super) fn lead<T>(a: &Window<T>, v: Vector, back: bool) -> usize {
    // The chunk's lowest address differs from the line's by whole vectors, and one element.
    let offset = a.p.addr().wrapping_add(if back { v.element } else { 0 }) & (v.bytes - 1);
    if !v.rotates || !same_offset(a, v) || offset & (v.element - 1) != 0 {
        0
    } else {
        // Shifts and masks: division takes longer than a small product.
        ((v.bytes - offset) & (v.bytes - 1)) >> v.element.trailing_zeros()
    }
}

/// Rows before the first aligned vector of rows. 0 where columns have different offsets, or where the matrix fits
/// the first-level cache: there one vector more costs more than loads across two cache lines.
#[inline(always)]
pub(super) fn head<T>(a: &Window<T>, v: Vector) -> usize {
    if a.m * a.n * v.element <= L1 { 0 } else { lead(a, v, false) }
}

/// Bytes of the first-level cache that a matrix may take.
const L1: usize = 16 << 10;

/// The lane at place `i` of 2^log lanes (at most 64) in bit-reversed order. In this order the halving adds
/// neighbours, so a sum is complete as soon as its two terms are. A table: to reverse bits takes more instructions
/// than the additions of a lane.
#[inline(always)]
pub(super) fn bit_reversed(i: usize, log: u32) -> usize {
    const REVERSED: [u8; LANES] = {
        let mut all = [0; LANES];
        let mut i = 0;
        while i < LANES {
            all[i] = (i as u8).reverse_bits() >> 2;
            i += 1;
        }
        all
    };
    REVERSED[i] as usize >> (LANES.trailing_zeros() - log)
}

/// Columns of X that a call of a kernel for several takes, at most.
pub(super) const COLUMNS: usize = 16;

/// Lines of partial sums of the column kernel for each column of X: the levels of the halving.
pub(super) const STACK: usize = 6;

/// The operands of a kernel for several right-hand sides: one segment of some rows.
#[derive(Clone, Copy)]
pub(super) struct RhsCall {
    pub(super) a: Window<u8>,
    /// Columns of X, whose entries are `x_row` accumulators apart. The row kernel needs neighbouring entries.
    pub(super) x: *const u8,
    pub(super) x_row: isize,
    /// Accumulators between two columns of X.
    pub(super) x_ld: isize,
    /// How many columns of X there are.
    pub(super) columns: usize,
    /// Where the sums go, and the accumulators between those of two rows and of two columns of X. The column kernel
    /// needs neighbouring rows.
    pub(super) out: *mut u8,
    pub(super) out_row: isize,
    pub(super) out_column: isize,
    /// The distance of prefetches in bytes, 0 for none: from all elements of the row kernel, along a line or to other
    /// rows, and of the column kernel with at most 64 columns; else along a line.
    pub(super) prefetch: isize,
    /// The same from columns of X, for the column kernel with at most 64 columns of the matrix.
    pub(super) x_prefetch: isize,
    /// Partial sums of the column kernel, and the accumulators between those of two columns of X.
    pub(super) stack: *mut u8,
    pub(super) stack_ld: usize,
}
