//! Elementwise steps, compiled for each instruction set.

use gemv_core::Step;

use super::element::CpuElement;
use super::isa::{Isa, Kind};
use super::ops::{Body, Ops};

/// An operand of a step: elements, the index of the first entry, and the stride.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a, T> {
    pub(crate) all: &'a [T],
    pub(crate) first: usize,
    pub(crate) stride: isize,
}

impl<'a, T: Copy + Default> Line<'a, T> {
    /// The entries from `at` on.
    pub(crate) fn from(self, at: usize) -> Self {
        Line { first: self.first.wrapping_add_signed(self.stride * at as isize), ..self }
    }

    /// So many entries as a slice, where they are neighbours.
    #[inline(always)]
    fn slice(&self, len: usize) -> Option<&'a [T]> {
        (self.stride == 1).then(|| &self.all[self.first..][..len])
    }

    #[inline(always)]
    fn entry(&self, i: usize) -> T {
        self.all[self.first.wrapping_add_signed(self.stride * i as isize)]
    }
}

/// One line of a step. An operand that the step does not read is `None`.
pub(crate) struct Lines<'a, T: CpuElement> {
    pub(crate) step: Step,
    pub(crate) alpha: T::Acc,
    pub(crate) x: Option<Line<'a, T>>,
    pub(crate) z: Option<Line<'a, T>>,
}

impl<T: CpuElement> Lines<'_, T> {
    /// Computes `len` entries of y, which lie `stride` apart in `y` from `first` on.
    pub(crate) fn strided(self, isa: Isa, y: &mut [T], first: usize, stride: isize, len: usize) {
        let body = OneLine { of: self, y, first, stride, len };
        match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` exists only where the processor has the instructions, and with AVX-512 it has AVX2, for
            // which the compiler makes the same loops; the body is safe code.
            Kind::Avx512 | Kind::Avx2 => unsafe { T::Avx2::new(false).enter(body) },
            #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
            // SAFETY: the body is safe code.
            Kind::Plain => unsafe { body.run() },
            // One loop for all steps: a multiply-add that calls the C library takes longer than the choice.
            #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
            Kind::Plain => {
                let step = body.of.step;
                body.step(step);
            }
        }
    }
}

/// A line of a step, with the place of its result.
struct OneLine<'a, 'y, T: CpuElement> {
    of: Lines<'a, T>,
    y: &'y mut [T],
    first: usize,
    stride: isize,
    len: usize,
}

impl<T: CpuElement> Body for OneLine<'_, '_, T> {
    #[inline(always)]
    unsafe fn run(self) {
        /// A loop of its own for each step, so that none is chosen for each entry.
        macro_rules! each {
            ($($step:ident)*) => {
                match self.of.step {
                    $(Step::$step => self.step(Step::$step),)*
                }
            };
        }
        each!(Fill Assign Scal Axpy Xpay Product AddProduct Quotient Sqrt Norm)
    }
}

/// The entries of an operand, if they are neighbours.
#[inline(always)]
fn slice<T: CpuElement>(of: Option<Line<'_, T>>, len: usize) -> Option<&[T]> {
    of.and_then(|line| line.slice(len))
}

impl<T: CpuElement> OneLine<'_, '_, T> {
    #[inline(always)]
    fn step(self, step: Step) {
        let OneLine { of: Lines { alpha, x, z, .. }, y, first, stride, len } = self;
        let none = T::default();
        if stride == 1 {
            let y = &mut y[first..][..len];
            // The step is a constant: one of these loops is compiled. Loops, not `for_each`: its closure becomes a
            // function of its own at times, without the instruction set.
            match (step.operands(), slice(x, len), slice(z, len)) {
                (0, ..) => {
                    for y in y {
                        *y = step.apply(alpha, none, none, *y);
                    }
                    return;
                }
                (1, Some(x), _) => {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = step.apply(alpha, *x, none, *y);
                    }
                    return;
                }
                (2, Some(x), Some(z)) => {
                    for ((y, x), z) in y.iter_mut().zip(x).zip(z) {
                        *y = step.apply(alpha, *x, *z, *y);
                    }
                    return;
                }
                _ => {}
            }
        }
        let entry = |of: &Option<Line<'_, T>>, i| of.as_ref().map_or(none, |line| line.entry(i));
        for i in 0..len {
            let y = &mut y[first.wrapping_add_signed(stride * i as isize)];
            *y = step.apply(alpha, entry(&x, i), entry(&z, i), *y);
        }
    }
}
