//! Elementwise steps, compiled for each instruction set.

#[cfg(target_arch = "x86_64")]
use gemv_core::Function;
use gemv_core::ndarray::{ArrayView1, ArrayViewMut1};
use gemv_core::{Step, for_step};

use super::element::CpuElement;
use super::isa::{Isa, Kind};
use super::ops::Body;
#[cfg(target_arch = "x86_64")]
use super::ops::Ops;

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
    pub(crate) fn slice(&self, len: usize) -> Option<&'a [T]> {
        (self.stride == 1).then(|| &self.all[self.first..][..len])
    }

    #[inline(always)]
    pub(crate) fn entry(&self, i: usize) -> T {
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
        let step = self.step;
        enter::<T, _>(isa, step, OneLine { of: self, y, first, stride, len });
    }
}

/// The step of every entry of a vector of the host, whose operands are as long.
pub(crate) fn on_host<T: CpuElement>(
    isa: Isa,
    (step, alpha): (Step, T::Acc),
    x: Option<ArrayView1<'_, T>>,
    z: Option<ArrayView1<'_, T>>,
    y: ArrayViewMut1<'_, T>,
) {
    enter::<T, _>(isa, step, Views { alpha, x, z, y });
}

/// A loop that is compiled for each step.
trait EachStep {
    fn step(self, step: Step);

    /// Whether the loop is for this step.
    fn takes(step: Step) -> bool {
        is_plain(step)
    }
}

/// Whether it is one of [`Step::PLAIN`].
#[inline(always)]
const fn is_plain(step: Step) -> bool {
    !step.takes_y()
}

/// Runs a loop that is compiled for the instruction set and the step, so that none is chosen for each entry.
#[inline(always)]
fn enter<T: CpuElement, B: EachStep>(isa: Isa, step: Step, body: B) {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` exists only where the processor has the instructions, and with AVX-512 it has AVX2, for
        // which the compiler makes the same loops; the body is safe code.
        Kind::Avx512 | Kind::Avx2 => unsafe { T::Avx2::new(false).enter(Chosen(step, body)) },
        #[cfg(any(target_arch = "aarch64", target_feature = "fma"))]
        // SAFETY: the body is safe code.
        Kind::Plain => unsafe { Chosen(step, body).run() },
        // One loop for all steps: a multiply-add that calls the C library takes longer than the choice.
        #[cfg(not(any(target_arch = "aarch64", target_feature = "fma")))]
        Kind::Plain => body.step(step),
    }
}

struct Chosen<B>(Step, B);

impl<B: EachStep> Body for Chosen<B> {
    #[inline(always)]
    unsafe fn run(self) {
        for_step!(self.0, STEP => {
            if B::takes(STEP) {
                self.1.step(STEP);
            }
        });
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

/// The entries of an operand, if they are neighbours.
#[inline(always)]
fn slice<T: CpuElement>(of: Option<Line<'_, T>>, len: usize) -> Option<&[T]> {
    of.and_then(|line| line.slice(len))
}

impl<T: CpuElement> EachStep for OneLine<'_, '_, T> {
    #[inline(always)]
    fn step(self, step: Step) {
        let OneLine { of: Lines { alpha, x, z, .. }, y, first, stride, len } = self;
        if stride == 1
            && neighbours(step, alpha, slice(x, len), slice(z, len), &mut y[first..][..len])
        {
            return;
        }
        let none = T::default();
        let entry = |of: &Option<Line<'_, T>>, i| of.as_ref().map_or(none, |line| line.entry(i));
        for i in 0..len {
            let y = &mut y[first.wrapping_add_signed(stride * i as isize)];
            *y = step.apply([alpha; 2], entry(&x, i), entry(&z, i), *y);
        }
    }
}

/// A vector of the host, and what it is computed from.
struct Views<'a, 'y, T: CpuElement> {
    alpha: T::Acc,
    x: Option<ArrayView1<'a, T>>,
    z: Option<ArrayView1<'a, T>>,
    y: ArrayViewMut1<'y, T>,
}

impl<'a, T: CpuElement> EachStep for Views<'a, '_, T> {
    #[inline(always)]
    fn step(self, step: Step) {
        let Views { alpha, x, z, mut y } = self;
        let of = |view: &Option<ArrayView1<'a, T>>| view.as_ref().and_then(|view| view.to_slice());
        if let Some(y) = y.as_slice_mut()
            && neighbours(step, alpha, of(&x), of(&z), y)
        {
            return;
        }
        let none = T::default();
        let entry = |of: &Option<ArrayView1<'_, T>>, i: usize| of.as_ref().map_or(none, |of| of[i]);
        for (i, y) in y.iter_mut().enumerate() {
            *y = step.apply([alpha; 2], entry(&x, i), entry(&z, i), *y);
        }
    }
}

/// Computes entries that are neighbours, if those of each operand that the step reads are: false if not.
#[inline(always)]
fn neighbours<T: CpuElement>(
    step: Step,
    alpha: T::Acc,
    x: Option<&[T]>,
    z: Option<&[T]>,
    y: &mut [T],
) -> bool {
    let none = T::default();
    // The step is a constant: one of these loops is compiled. Loops, not `for_each`: its closure becomes a
    // function of its own at times, without the instruction set.
    match (step.operands(), x, z) {
        (0, ..) => {
            for y in y {
                *y = step.apply([alpha; 2], none, none, *y);
            }
        }
        (1, Some(x), _) => {
            for (y, x) in y.iter_mut().zip(x) {
                *y = step.apply([alpha; 2], *x, none, *y);
            }
        }
        (2, Some(x), Some(z)) => {
            for ((y, x), z) in y.iter_mut().zip(x).zip(z) {
                *y = step.apply([alpha; 2], *x, *z, *y);
            }
        }
        _ => return false,
    }
    true
}

/// Entries that are neighbours in y, each with factors of its own. An x that is not there is y; so many factors as the
/// step has are as long as y.
pub(crate) struct Neighbours<'a, 'y, T: CpuElement> {
    pub(crate) x: Option<&'a [T]>,
    pub(crate) factors: [&'a [T::Acc]; 2],
    pub(crate) y: &'y mut [T],
}

impl<T: CpuElement> Neighbours<'_, '_, T> {
    /// Computes a step that takes y for x, or one that has a factor.
    pub(crate) fn run(self, isa: Isa, step: Step) {
        #[cfg(target_arch = "x86_64")]
        if isa.kind() == Kind::Avx512 && is_long(step) {
            return self.long(step);
        }
        enter::<T, _>(isa, step, self);
    }

    /// A function of many operations in AVX-512, in place: a second loop that reads x would not be faster than the copy of a
    /// block that stays in the first cache.
    #[cfg(target_arch = "x86_64")]
    fn long(self, step: Step) {
        let Neighbours { x, y, .. } = self;
        let mut rest = x;
        for y in y.chunks_mut((8 << 10) / size_of::<T>()) {
            if let Some((x, behind)) = rest.map(|x| x.split_at(y.len())) {
                y.copy_from_slice(x);
                rest = Some(behind);
            }
            // SAFETY: the instruction set is there, as `run` has found; the body is safe code.
            unsafe { T::Avx512::new(false).enter(Long { step, y }) };
        }
    }
}

/// Whether it is a function of many operations, which takes longer than memory.
#[cfg(target_arch = "x86_64")]
const fn is_long(step: Step) -> bool {
    match step {
        Step::Map(f) => !matches!(f, Function::Abs | Function::Recip | Function::Relu),
        _ => false,
    }
}

/// Entries that are replaced by their functions.
#[cfg(target_arch = "x86_64")]
struct Long<'y, T> {
    step: Step,
    y: &'y mut [T],
}

#[cfg(target_arch = "x86_64")]
impl<T: CpuElement> Body for Long<'_, T> {
    #[inline(always)]
    unsafe fn run(self) {
        let (none, zero) = (T::default(), T::default().widen());
        for_step!(self.step, STEP => {
            if const { is_long(STEP) } && !T::DTYPE.is_complex() {
                for y in self.y {
                    *y = STEP.apply([zero; 2], *y, none, *y);
                }
            }
        });
    }
}

impl<T: CpuElement> EachStep for Neighbours<'_, '_, T> {
    fn takes(step: Step) -> bool {
        !(step.is_real() && T::DTYPE.is_complex()) && (!is_plain(step) || step.factors() > 0)
    }

    #[inline(always)]
    fn step(self, step: Step) {
        let Neighbours { x, factors: [alpha, beta], y } = self;
        let (none, zero) = (T::default(), T::default().widen());
        let len = y.len();
        // Slices of one length, so that the loops check none.
        let alpha = if step.factors() > 0 { &alpha[..len] } else { alpha };
        let beta = if step.factors() > 1 { &beta[..len] } else { beta };
        match (step.factors(), x.map(|x| &x[..len])) {
            (0, None) => {
                for y in y {
                    *y = step.apply([zero; 2], *y, none, *y);
                }
            }
            (0, Some(x)) => {
                for (y, x) in y.iter_mut().zip(x) {
                    *y = step.apply([zero; 2], *x, none, *y);
                }
            }
            (1, None) => {
                for (y, alpha) in y.iter_mut().zip(alpha) {
                    *y = step.apply([*alpha, zero], *y, none, *y);
                }
            }
            (1, Some(x)) => {
                for ((y, x), alpha) in y.iter_mut().zip(x).zip(alpha) {
                    *y = step.apply([*alpha, zero], *x, none, *y);
                }
            }
            (_, x) => {
                for i in 0..len {
                    let of = x.map_or(y[i], |x| x[i]);
                    y[i] = step.apply([alpha[i], beta[i]], of, none, y[i]);
                }
            }
        }
    }
}
