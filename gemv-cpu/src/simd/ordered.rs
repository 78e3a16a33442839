//! The order of additions as a short loop, for processors without a fused multiply-add that the compiler may use.
//! There each multiply-add is a call of the C library, so nothing is gained by vectors.

// Arrays of rows are indexed together: the numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use core::marker::PhantomData;

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Accumulator, Element, scale};

use super::entry::{Call, EntryPoints, FEW, Finish, FinishBlock, Lines, ones};
use super::window::Vector;

/// The kernels of `T`, whose accumulators consist of `R`.
pub(super) struct Ordered<T, R>(PhantomData<(T, R)>);

/// Rows of a block.
const ROWS: usize = 8;

impl<T: Element, R: Element<Acc = R> + Accumulator> Ordered<T, R> {
    pub(super) const ENTRY_POINTS: &'static EntryPoints = &EntryPoints {
        vector: Vector {
            element: size_of::<T>(),
            acc: size_of::<T::Acc>(),
            width: ROWS,
            bytes: ROWS * size_of::<T>(),
            rotates: false,
        },
        rows: |_, _| rows::<T>,
        col_registers: columns::<T>,
        col_memory: columns::<T>,
        col_few_rows: columns::<T>,
        rhs: None,
        narrow: None,
        finish: finish::<T>,
        finish_block: finish_block::<T>,
        widen: widen::<T>,
        real: || Ordered::<R, R>::ENTRY_POINTS,
        ones: ones::<T::Acc>,
        few_segments: few_segments::<T, R>,
    };
}

unsafe fn rows<T: Element>(c: &Call) {
    let step = if c.back { -1 } else { 1 };
    for (s, j) in (0..c.a.n).step_by(SEGMENT).enumerate() {
        let shift = j as isize * step;
        let x = c.x.cast::<T::Acc>().wrapping_offset(shift).cast();
        let out = c.out.cast::<T::Acc>().wrapping_add(s * c.ld).cast();
        let call = Call { x, out, ..*c };
        let p = c.a.p.cast::<T>().wrapping_offset(shift);
        // SAFETY: the caller's: a is good, x for n, out for m in each segment.
        unsafe { segment::<T>(&call, p, (c.a.line, step), (c.a.n - j).min(SEGMENT), step) }
    }
}

unsafe fn columns<T: Element>(c: &Call) {
    // SAFETY: the caller's: a is good, x for n, out for m.
    unsafe { segment::<T>(c, c.a.p.cast(), (1, c.a.line), c.a.n, 1) }
}

/// The sums of `n` columns, at most a segment, of all rows. Element (i, j) is at `i * rs + j * cs` from `p`.
#[inline(never)]
unsafe fn segment<T: Element>(
    c: &Call,
    p: *const T,
    (rs, cs): (isize, isize),
    n: usize,
    x_step: isize,
) {
    let (x, out) = (c.x.cast::<T::Acc>(), c.out.cast::<T::Acc>());
    for i in (0..c.a.m).step_by(ROWS) {
        let count = (c.a.m - i).min(ROWS);
        let mut lanes = [[T::Acc::ZERO; ROWS]; LANES];
        for j in 0..n {
            let column = p.wrapping_offset(j as isize * cs);
            // SAFETY: the caller's: x is good for column j.
            let xj = unsafe { *x.offset(j as isize * x_step) };
            for (r, acc) in lanes[j % LANES].iter_mut().enumerate().take(count) {
                // SAFETY: the caller's: row i + r is below m, column j below n.
                let a = unsafe { *column.wrapping_offset((i + r) as isize * rs) };
                *acc = acc.fma(if c.conj { a.conj() } else { a }.widen(), xj);
            }
        }
        for h in [32, 16, 8, 4, 2, 1] {
            for l in 0..h {
                for r in 0..ROWS {
                    lanes[l][r] = lanes[l][r].add(lanes[l + h][r]);
                }
            }
        }
        for (r, sum) in lanes[0].iter().enumerate().take(count) {
            // SAFETY: the caller's: out is good for m.
            unsafe { *out.add(i + r) = *sum }
        }
    }
}

unsafe fn finish<T: Element>(f: &Finish) {
    // SAFETY: the caller's: sums and y are good for m rows, the factors are accumulators.
    unsafe {
        let (alpha, beta) = (f.alpha.get::<T::Acc>(), f.beta.get::<T::Acc>());
        for i in 0..f.m {
            let y = f.y.cast::<T>().offset(i as isize * f.stride);
            let old = if beta == T::Acc::ZERO { None } else { Some(*y) };
            *y = scale::<T>(alpha, *f.sums.cast::<T::Acc>().add(i), beta, old);
        }
    }
}

unsafe fn finish_block<T: Element>(f: &FinishBlock) {
    let FinishBlock { sums, ld, lines, len, y, line, stride, alpha, beta } = f;
    for l in 0..*lines {
        let sums = sums.wrapping_add(l * ld * size_of::<T::Acc>());
        let y = y.cast::<T>().wrapping_offset(l as isize * line).cast();
        let (m, stride, alpha, beta) = (*len, *stride, *alpha, *beta);
        // SAFETY: the caller's: sums and y are good for these lines.
        unsafe { finish::<T>(&Finish { sums, m, y, stride, alpha, beta }) }
    }
}

unsafe fn few_segments<T: Element, R: Accumulator>(l: &Lines) {
    let parts = size_of::<T::Acc>() / size_of::<R>();
    let (p, out) = (l.p.cast::<R>(), l.out.cast::<R>());
    for i in 0..l.m * parts {
        let mut lanes = [R::ZERO; FEW];
        for (s, lane) in lanes.iter_mut().enumerate().take(l.count) {
            // SAFETY: the caller's: there are so many lines.
            *lane = lane.add(unsafe { *p.add(s * l.ld * parts + i) });
        }
        for h in [4, 2, 1] {
            for s in 0..h {
                lanes[s] = lanes[s].add(lanes[s + h]);
            }
        }
        // SAFETY: the caller's: out is good for a line.
        unsafe { *out.add(i) = lanes[0] }
    }
}

unsafe fn widen<T: Element>(x: *const u8, stride: isize, n: usize, out: *mut u8) {
    for j in 0..n {
        // SAFETY: the caller's: x and out are good for n.
        unsafe {
            let v = *x.cast::<T>().offset(j as isize * stride);
            *out.cast::<T::Acc>().add(j) = v.widen();
        }
    }
}

/// Copies entries of f32 as accumulators of f64.
///
/// # Safety
/// Both places are good for the entries.
pub(super) unsafe fn promote(x: *const u8, stride: isize, n: usize, out: *mut u8) {
    for j in 0..n {
        // SAFETY: the caller's: x and out are good for n.
        unsafe {
            let v = *x.cast::<f32>().offset(j as isize * stride);
            *out.cast::<f64>().add(j) = f64::from(v);
        }
    }
}
