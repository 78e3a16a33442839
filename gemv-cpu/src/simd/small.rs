//! Products of one segment, or of a few rows: the operands go to a kernel without a plan, scratch or threads. To reach the kernel takes
//! most of the time of a small product.

use core::mem::MaybeUninit;

use gemv_core::SmallProduct;
use gemv_core::ndarray::ArrayView2;
use gemv_core::order::SEGMENT;

use super::col_registers::ColRegisters;
use super::element::CpuElement;
use super::entry::{
    Call, FEW, Lines, REGISTERS, all_segments, columns, few_segments, is_short, short_rows,
};
use super::isa::{Isa, Kind};
use super::ops::Ops;
use super::rows::Segments;
use super::window::{Vector, Window, head};

impl Isa {
    /// [`small`](Self::small) as a function of its own, for elements that are summed in their own type. It answers false in
    /// a floating-point mode that is not the default one.
    pub(crate) fn small_product<T: CpuElement>(self) -> Option<SmallProduct<T>> {
        T::as_acc(&[])?;
        macro_rules! of {
            ($kind:expr) => {
                Some(|a, conj, x, y| {
                    // SAFETY: `self` is of this kind.
                    let isa = unsafe { Isa::again($kind) };
                    isa.in_default_mode() && isa.small(a, conj, x, y)
                })
            };
        }
        match self.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => of!(Kind::Avx512),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => of!(Kind::Avx2),
            #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
            Kind::Plain => of!(Kind::Plain),
            #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
            Kind::Plain => None,
        }
    }

    /// `y = A x` for a matrix of one segment, or a few rows of several, if there is a kernel that reads it without a copy.
    /// Else false, and y is untouched.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[inline(always)]
    pub(crate) fn small<T: CpuElement>(
        self,
        a: &ArrayView2<'_, T>,
        conj: bool,
        x: &[T],
        y: &mut [T],
    ) -> bool {
        let (Some(x), Some(y)) = (T::as_acc(x), T::as_acc_mut(y)) else { return false };
        // SAFETY: the kind of an `Isa` says that the processor has the instructions.
        unsafe {
            match self.kind() {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => small(T::Avx512::new(conj), a, conj, x, y),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => small(T::Avx2::new(conj), a, conj, x, y),
                #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
                Kind::Plain => small(T::Plain::new(conj), a, conj, x, y),
                #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
                Kind::Plain => false,
            }
        }
    }
}

/// Most rows of several segments, and most columns of theirs.
pub(crate) const FEW_ROWS: (usize, usize) = (16, FEW * SEGMENT);

#[inline(always)]
fn small<O: Ops>(
    o: O,
    a: &ArrayView2<'_, O::T>,
    conj: bool,
    x: &[O::Acc],
    y: &mut [O::Acc],
) -> bool {
    let ((m, n), strides) = (a.dim(), a.strides());
    let (rs, cs) = (strides[0], strides[1]);
    assert!(x.len() == n && y.len() == m);
    if m == 0 || n == 0 {
        return false;
    }
    let p = a.as_ptr();
    let (x, out) = (x.as_ptr(), y.as_mut_ptr());
    if n > SEGMENT {
        if cs != 1 || m > FEW_ROWS.0 || n > FEW_ROWS.1 {
            return false;
        }
        let mut sums = MaybeUninit::<[O::Acc; FEW * FEW_ROWS.0]>::uninit();
        let sums = sums.as_mut_ptr().cast::<O::Acc>();
        let (prefetch, prefetch_next, count) = (0, false, n.div_ceil(SEGMENT));
        let a = Window { p, line: rs, m, n };
        // SAFETY: `o` exists. The rows are the view's; x has n entries and out m (asserted); there are places for the sums
        // of all segments, which are then written.
        unsafe {
            let (out, ld) = (sums, m);
            all_segments(Segments::<O, false> { o, a, x, prefetch, prefetch_next, out, ld });
        }
        // SAFETY: as above.
        unsafe {
            let (p, out) = (sums.cast_const().cast(), out.cast());
            few_segments::<O>(&Lines { p, m, ld: m, count, out });
        }
        return true;
    }
    // SAFETY: `o` exists. The matrix is a view, whose strides are its own; x has n entries and out m (asserted).
    unsafe {
        if cs == 1 {
            let a = Window { p, line: rs, m, n };
            if is_short::<O>(n) {
                short_rows(o, &Call::new(a.cast(), conj, x.cast(), out.cast()));
            } else {
                let (prefetch, prefetch_next, ld) = (0, false, 0);
                all_segments(Segments::<O, false> { o, a, x, prefetch, prefetch_next, out, ld });
            }
        } else if rs == 1 {
            let a = Window { p, line: cs, m, n };
            let head = head(&a, Vector::of::<O>()).min(m);
            if const { O::UNROLLS } {
                o.enter(ColRegisters { o, a, x, out, head, prefetch: 0 });
            } else {
                // The body is large: the table's copy of it.
                let (a, x, out) = (a.cast(), x.cast(), out.cast());
                columns::<O, REGISTERS>(&Call { head, ..Call::new(a, conj, x, out) });
            }
        } else {
            return false;
        }
    }
    true
}
