//! gemv and ger.

use gemv_core::float_mode::in_default;
use gemv_core::ndarray::{ArrayView1, ArrayViewMut2, Axis};
use gemv_core::{Accumulator, Step, scale};
use gemv_cpu::HostStep;

use crate::operand::{Matrix, Vector};
use crate::xerbla::{Caller, wrong};
use crate::{Scalar, answer, host};

/// Which matrix is multiplied.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Op {
    Plain,
    Transposed,
    Conjugated,
}

impl Op {
    /// As Fortran names it.
    #[inline(always)]
    pub(crate) fn of_letter(letter: u8) -> Option<Op> {
        match letter {
            b'n' | b'N' => Some(Op::Plain),
            b't' | b'T' => Some(Op::Transposed),
            b'c' | b'C' => Some(Op::Conjugated),
            _ => None,
        }
    }

    /// As C names it.
    #[inline(always)]
    pub(crate) fn of_number(number: i32) -> Option<Op> {
        match number {
            111 => Some(Op::Plain),
            112 => Some(Op::Transposed),
            113 => Some(Op::Conjugated),
            _ => None,
        }
    }
}

/// Whether rows follow each other, by the layout's name in C.
#[inline(always)]
pub(crate) fn by_rows(layout: i32) -> Option<bool> {
    match layout {
        101 => Some(true),
        102 => Some(false),
        _ => None,
    }
}

/// `y = alpha op(A) x + beta y`; in Fortran the layout is `Some(false)`.
///
/// # Safety
/// That of the BLAS: the arrays are there, and nothing else reaches y.
#[expect(clippy::too_many_arguments, reason = "the BLAS has them")]
#[inline(always)]
pub(crate) unsafe fn gemv<T: Scalar>(
    caller: Caller,
    layout: Option<bool>,
    op: Option<Op>,
    [m, n]: [i64; 2],
    alpha: T,
    (a, lda): (*const T, i64),
    (x, incx): (*const T, i64),
    beta: T,
    (y, incy): (*mut T, i64),
) {
    let shift = usize::from(caller.c);
    let (Some(by_rows), Some(op)) = (layout, op) else {
        return wrong(caller, if layout.is_none() { 1 } else { 1 + shift });
    };
    let lines = if by_rows { n } else { m };
    let bad = match () {
        () if m < 0 => 2,
        () if n < 0 => 3,
        () if lda < lines.max(1) => 6,
        () if incx == 0 => 8,
        () if incy == 0 => 11,
        () => 0,
    };
    if bad != 0 {
        return wrong(caller, bad + shift);
    }
    if m == 0 || n == 0 || (alpha.is_zero() && beta.is_one()) {
        return;
    }
    let (rows, cols) = (m as usize, n as usize);
    let (inner, outer) = if op == Op::Plain { (cols, rows) } else { (rows, cols) };
    let y = Vector { at: y, len: outer, step: incy as isize };
    let mut x = Vector { at: x, len: inner, step: incx as isize };
    let mut a = Matrix { at: a, rows, cols, apart: lda as usize, by_rows };
    if alpha.is_zero() {
        // Neither is read, and each may be missing.
        let none = std::ptr::NonNull::<T>::dangling().as_ptr().cast_const();
        (a.at, a.apart, a.rows, a.cols) = (none, 1, 0, 0);
        (x.at, x.len) = (none, 0);
    }
    let bad = match () {
        () if !a.can_be() => 6 - usize::from(a.at.is_null() || !a.at.is_aligned()),
        () if !x.can_be() => 8 - usize::from(x.at.is_null() || !x.at.is_aligned()),
        () if !y.read().can_be() => 11 - usize::from(y.at.is_null() || !y.at.is_aligned()),
        () => 0,
    };
    if bad != 0 {
        return wrong(caller, bad + shift);
    }
    // SAFETY: they can be, and the caller promises that they are there.
    let mut y = unsafe { y.view_mut() };
    if alpha.is_zero() {
        return without_a(beta, y);
    }
    // SAFETY: as above.
    let (a, x) = unsafe { (a.view(), x.view()) };
    let a = if op == Op::Plain { a } else { a.reversed_axes() };
    let product = host().device.product(a, x).conj_if(op == Op::Conjugated);
    if outer <= FEW && !(alpha.is_one() && beta.is_zero() && incy == 1) {
        // Scaled here: without factors, and with neighbours as the result, a small product is not made a job first. The
        // sums are of the type of y, so nothing is rounded in between.
        let mut sums = [T::ZERO; FEW];
        answer(product.to(&mut sums[..outer]));
        return in_default(|| {
            y.iter_mut().zip(&sums[..outer]).for_each(|(y, sum)| {
                *y = scale(alpha, *sum, beta, (!beta.is_zero()).then_some(*y));
            });
        });
    }
    answer(product.scaled(alpha, beta).to(&mut y));
}

/// Entries of y that are scaled by the caller.
const FEW: usize = 32;

/// `y = beta y` by rule 6 of the order.
#[cold]
fn without_a<T: Scalar>(beta: T, mut y: gemv_core::ndarray::ArrayViewMut1<'_, T>) {
    if beta.is_zero() {
        y.fill(T::ZERO);
    } else {
        in_default(|| y.mapv_inplace(|y| Accumulator::mul(beta, y)));
    }
}

/// Columns whose factors are computed at a time.
const BLOCK: usize = 256;

/// `A = alpha x yᵀ + A`, or with the conjugate of y: entry (i, j) is `fma(t, x_i, a_ij)` with `t = alpha y_j`.
///
/// # Safety
/// That of the BLAS: the arrays are there, and nothing else reaches A.
#[expect(clippy::too_many_arguments, reason = "the BLAS has them")]
#[inline(always)]
pub(crate) unsafe fn ger<T: Scalar>(
    caller: Caller,
    layout: Option<bool>,
    conj: bool,
    [m, n]: [i64; 2],
    alpha: T,
    (x, incx): (*const T, i64),
    (y, incy): (*const T, i64),
    (a, lda): (*mut T, i64),
) {
    let shift = usize::from(caller.c);
    let Some(by_rows) = layout else { return wrong(caller, 1) };
    let lines = if by_rows { n } else { m };
    let bad = match () {
        () if m < 0 => 1,
        () if n < 0 => 2,
        () if incx == 0 => 5,
        () if incy == 0 => 7,
        () if lda < lines.max(1) => 9,
        () => 0,
    };
    if bad != 0 {
        return wrong(caller, bad + shift);
    }
    if m == 0 || n == 0 || alpha.is_zero() {
        return;
    }
    let x = Vector { at: x, len: m as usize, step: incx as isize };
    let y = Vector { at: y, len: n as usize, step: incy as isize };
    let a = Matrix { at: a, rows: x.len, cols: y.len, apart: lda as usize, by_rows };
    let bad = match () {
        () if !x.can_be() => 5 - usize::from(x.at.is_null() || !x.at.is_aligned()),
        () if !y.can_be() => 7 - usize::from(y.at.is_null() || !y.at.is_aligned()),
        () if !a.read().can_be() => 9 - usize::from(a.at.is_null() || !a.at.is_aligned()),
        () => 0,
    };
    if bad != 0 {
        return wrong(caller, bad + shift);
    }
    // SAFETY: they can be, and the caller promises that they are there.
    let (x, y, a) = unsafe { (x.view(), y.view(), a.view_mut()) };
    in_default(|| update(alpha, x, y, conj, a, by_rows));
}

fn update<T: Scalar>(
    alpha: T,
    x: ArrayView1<'_, T>,
    y: ArrayView1<'_, T>,
    conj: bool,
    mut a: ArrayViewMut2<'_, T>,
    by_rows: bool,
) {
    let cpu = &host().cpu;
    let factor = |y: T| Accumulator::mul(alpha, if conj { y.conj() } else { y });
    if !by_rows {
        for (y, column) in y.iter().zip(a.columns_mut()) {
            let (step, alpha, x) = (Step::Axpy, factor(*y), Some(x.view()));
            answer(cpu.step(HostStep { step, alpha, x, z: None, y: column }));
        }
        return;
    }
    let (mut factors, mut same) = ([T::ZERO; BLOCK], [T::ZERO; BLOCK]);
    for (y, mut a) in y.axis_chunks_iter(Axis(0), BLOCK).zip(a.axis_chunks_iter_mut(Axis(1), BLOCK))
    {
        let (factors, same) = (&mut factors[..y.len()], &mut same[..y.len()]);
        factors.iter_mut().zip(&y).for_each(|(factor_, y)| *factor_ = factor(*y));
        for (x, row) in x.iter().zip(a.rows_mut()) {
            // By a factor the complex product would have its operands in the other order.
            same.fill(*x);
            let (step, alpha) = (Step::AddProduct, T::ZERO);
            let (x, z) = (Some(ArrayView1::from(&*factors)), Some(ArrayView1::from(&*same)));
            answer(cpu.step(HostStep { step, alpha, x, z, y: row }));
        }
    }
}
