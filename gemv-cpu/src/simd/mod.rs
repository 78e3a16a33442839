//! Instruction sets: which one there is, and the safe way into its kernels.
//!
//! This folder is the only place of the crate with `unsafe`. Its algorithms ([`product`]) are
//! written once over [`ops::Ops`], which each instruction set implements for each element type.

mod col_memory;
mod col_registers;
mod memory;
mod ops;
mod portable;
mod product;
mod rows;
mod scratch;
mod stride_two;
#[cfg(target_arch = "x86_64")]
mod x86;

use core::fmt;
use core::marker::PhantomData;

use gemv_core::half::{bf16, f16};
use gemv_core::ndarray::{ArrayView2, ArrayViewMut1};
use gemv_core::num_complex::Complex;
use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Accumulator, Element};

use col_registers::Strips;
pub(crate) use memory::Block;
use ops::Ops;
use portable::Plain;
pub(crate) use product::Plan;
use product::{Mat, Out, Product, Widen, head_of, is_short, scratch_len, short_rows, turn_of};
use rows::Segments;
pub(crate) use scratch::{with as with_scratch, with_elements};
use stride_two::Second;

/// The environment variable that restricts detection: `avx512`, `avx2` or `plain`.
///
/// It says what the device of the engine has; [`open`](crate::open) is asked directly.
///
/// ```
/// assert_eq!(gemv_cpu::ISA_ENV, "GEMV_CPU_ISA"); // GEMV_CPU_ISA=avx2 ./program
/// assert!(gemv_cpu::open(Some("mmx")).is_err());
/// ```
pub const ISA_ENV: &str = "GEMV_CPU_ISA";

/// An instruction set that this processor has: only detection makes one, so holding it is what
/// makes its instructions safe to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Plain,
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Isa {
    /// The best that there is, or the one asked for.
    ///
    /// # Errors
    /// The names of those that there are, if what is asked for is not one of them.
    pub(crate) fn detect(asked: Option<&str>) -> Result<Isa, String> {
        let found = Isa::all();
        let Some(asked) = asked.map(str::trim).filter(|a| !a.is_empty()) else {
            return Ok(found[0]);
        };
        if let Some(isa) = found.iter().find(|i| i.name() == asked) {
            return Ok(*isa);
        }
        let names: Vec<_> = found.iter().map(|i| i.name()).collect();
        Err(names.join(", "))
    }

    /// All that there are, best first.
    pub(crate) fn all() -> Vec<Isa> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            // What the entry points in x86.rs enable, no less.
            if avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq") {
                found.push(Isa(Kind::Avx512));
            }
            if avx2 {
                found.push(Isa(Kind::Avx2));
            }
        }
        found.push(Isa(Kind::Plain));
        found
    }

    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Plain => "plain",
        }
    }

    /// Lanes of a vector for accumulators of this many bytes.
    pub(crate) fn width(self, acc_bytes: usize) -> usize {
        let bytes = match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => 64,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => 32,
            // Eight, whatever they are.
            Kind::Plain => 8 * acc_bytes,
        };
        bytes / acc_bytes
    }
}

/// What each instruction set needs to know of an element type.
pub(crate) trait CpuElement: Element {
    /// What an accumulator consists of.
    type Real: CpuElement<Acc = Self::Real, Real = Self::Real> + Accumulator;
    #[cfg(target_arch = "x86_64")]
    type Avx512: Ops<T = Self, Acc = Self::Acc>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Ops<T = Self, Acc = Self::Acc>;
    #[cfg(target_arch = "x86_64")]
    fn avx512(proof: Proof, conj: bool) -> Self::Avx512;
    #[cfg(target_arch = "x86_64")]
    fn avx2(proof: Proof, conj: bool) -> Self::Avx2;
    /// The elements as accumulators, where they are.
    fn as_acc(x: &[Self]) -> Option<&[Self::Acc]>;
    /// As [`as_acc`](Self::as_acc), to be written.
    fn as_acc_mut(y: &mut [Self]) -> Option<&mut [Self::Acc]>;
}

/// That an [`Isa`] was matched: the kernels' types are made from it alone.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Proof(());

macro_rules! elements {
    ($($t:ty, $real:ty, $wide:ident, $narrow:ident, |$conj:ident| $field:tt, |$x:ident| $same:expr;)*) => { $(
        impl CpuElement for $t {
            type Real = $real;
            #[cfg(target_arch = "x86_64")]
            type Avx512 = x86::$wide;
            #[cfg(target_arch = "x86_64")]
            type Avx2 = x86::$narrow;
            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            fn avx512(_: Proof, $conj: bool) -> x86::$wide {
                elements!(@ x86::$wide, $conj, $field)
            }
            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            fn avx2(_: Proof, $conj: bool) -> x86::$narrow {
                elements!(@ x86::$narrow, $conj, $field)
            }
            #[inline(always)]
            fn as_acc($x: &[Self]) -> Option<&[Self::Acc]> {
                $same
            }
            #[inline(always)]
            fn as_acc_mut($x: &mut [Self]) -> Option<&mut [Self::Acc]> {
                $same
            }
        }
    )* };
    (@ $path:path, $conj:ident, real) => {{ let _ = $conj; $path }};
    (@ $path:path, $conj:ident, complex) => {{ use $path as Made; Made { conj: $conj } }};
}
elements! {
    f32, f32, F32x16, F32x8, |conj| real, |x| Some(x);
    f64, f64, F64x8, F64x4, |conj| real, |x| Some(x);
    f16, f32, F16x16, F16x8, |conj| real, |_x| None;
    bf16, f32, Bf16x16, Bf16x8, |conj| real, |_x| None;
    Complex<f32>, f32, C32x8, C32x4, |conj| complex, |x| Some(x);
    Complex<f64>, f64, C64x4, C64x2, |conj| complex, |x| Some(x);
}

/// How the elements of a matrix are best walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    /// Row by row; the elements of a row are `step` apart.
    Rows { step: isize },
    /// Column by column.
    Columns { step: isize },
}

impl Lines {
    /// By the smaller of the two strides, of axes that have more than one entry.
    #[inline]
    pub(crate) fn of(m: usize, n: usize, rs: isize, cs: isize) -> Lines {
        if cs == 1 && n > 1 {
            return Lines::Rows { step: 1 };
        }
        if rs == 1 && m > 1 {
            return Lines::Columns { step: 1 };
        }
        if m <= 1 {
            return Lines::Rows { step: if n <= 1 { 1 } else { cs } };
        }
        if n <= 1 {
            return Lines::Columns { step: rs };
        }
        // Columns that are all the same are walked down, not across.
        if cs != 0 && (rs == 0 || cs.unsigned_abs() <= rs.unsigned_abs()) {
            Lines::Rows { step: cs }
        } else {
            Lines::Columns { step: rs }
        }
    }

    /// Whether x has to run backwards as well.
    #[inline]
    pub(crate) fn reversed(self) -> bool {
        self == Lines::Rows { step: -1 }
    }
}

/// Where a product goes.
#[derive(Debug)]
pub(crate) enum Target<'a, T: Element> {
    /// Rule 6.
    Y { y: ArrayViewMut1<'a, T>, alpha: T::Acc, beta: T::Acc },
    /// The sums of the rows, before scaling.
    Sums(&'a mut [T::Acc]),
    /// The sums of the segments, segment after segment, one a row in each.
    Partials(&'a mut [T::Acc]),
}

impl<T: Element> Target<'_, T> {
    fn rows(&self) -> Option<usize> {
        match self {
            Target::Y { y, .. } => Some(y.len()),
            Target::Sums(s) => Some(s.len()),
            Target::Partials(_) => None,
        }
    }

    /// The part of it that is of `count` rows from `i` on.
    ///
    /// # Panics
    /// For partial sums, whose rows do not lie together.
    pub(crate) fn rows_at(&mut self, i: usize, count: usize) -> Target<'_, T> {
        match self {
            Target::Y { y, alpha, beta } => {
                let y = y.slice_mut(gemv_core::ndarray::s![i..i + count]);
                Target::Y { y, alpha: *alpha, beta: *beta }
            }
            Target::Sums(s) => Target::Sums(&mut s[i..i + count]),
            Target::Partials(_) => panic!("partial sums are not split by rows"),
        }
    }

    #[inline(always)]
    fn out<O: Ops<T = T, Acc = T::Acc>>(&mut self, m: usize) -> Out<O> {
        match self {
            Target::Y { y, alpha, beta } => {
                let stride = y.strides()[0];
                let p = y.as_mut_ptr();
                // Nothing to do to the sums: they may go to their place at once.
                if (stride == 1 || m == 1)
                    && *alpha == T::Acc::ONE
                    && *beta == T::Acc::ZERO
                    && T::DTYPE.bytes() == T::DTYPE.acc_bytes()
                {
                    return Out::Sums(p.cast());
                }
                Out::Y { y: p, stride, alpha: *alpha, beta: *beta }
            }
            Target::Sums(s) => Out::Sums(s.as_mut_ptr()),
            Target::Partials(s) => Out::Partials(s.as_mut_ptr(), m),
        }
    }
}

/// One block of a product, on the calling thread.
#[derive(Debug)]
pub(crate) struct Task<'a, 't, T: Element> {
    pub(crate) a: ArrayView2<'a, T>,
    pub(crate) conj: bool,
    /// n entries, in the opposite order for [`Lines::reversed`].
    pub(crate) x: &'a [T::Acc],
    pub(crate) lines: Lines,
    pub(crate) plan: Plan,
    pub(crate) target: Target<'t, T>,
}

impl Isa {
    /// Computes the block.
    ///
    /// # Panics
    /// If the shapes do not fit, or the lines are not those of the matrix.
    #[inline]
    pub(crate) fn run<T: CpuElement>(self, task: Task<'_, '_, T>) {
        match self.0 {
            // The match proves that the instructions are there.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => walk(T::avx512(Proof(()), task.conj), task),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => walk(T::avx2(Proof(()), task.conj), task),
            Kind::Plain => walk(Plain::<T> { conj: task.conj, element: PhantomData }, task),
        }
    }

    /// `y = A x` for a matrix of one segment, if there is a kernel that reads it where it is: no plan
    /// and no room are needed, and most of the time of a small product goes into reaching the
    /// kernel. False, and nothing done, if there is not.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[inline]
    pub(crate) fn near<T: CpuElement>(
        self,
        a: &ArrayView2<'_, T>,
        conj: bool,
        x: &[T::Acc],
        y: &mut [T::Acc],
    ) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => near(T::avx512(Proof(()), conj), a, x, y),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => near(T::avx2(Proof(()), conj), a, x, y),
            Kind::Plain => near(Plain::<T> { conj, element: PhantomData }, a, x, y),
        }
    }

    /// How many entries of x come before the first that meets an aligned vector of these rows.
    pub(crate) fn turn<T: CpuElement>(self, a: &ArrayView2<'_, T>) -> usize {
        fn turn<O: Ops>(_: O, a: &ArrayView2<'_, O::T>) -> usize {
            let (m, n) = a.dim();
            turn_of::<O>(&Mat { p: a.as_ptr(), line: a.strides()[0], m, n }, false)
        }
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => turn(T::avx512(Proof(()), false), a),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => turn(T::avx2(Proof(()), false), a),
            Kind::Plain => turn(Plain::<T> { conj: false, element: PhantomData }, a),
        }
    }

    /// Whether there is a kernel that reads these lines where they are.
    #[inline]
    pub(crate) fn direct<T: CpuElement>(self, lines: Lines) -> bool {
        match lines {
            Lines::Rows { step: 1 | -1 } | Lines::Columns { step: 1 } => true,
            Lines::Rows { step: 2 } | Lines::Columns { step: 2 } => match self.0 {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => T::Avx512::SECOND,
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => T::Avx2::SECOND,
                Kind::Plain => false,
            },
            _ => false,
        }
    }

    /// x as accumulators, in place of one conversion after another.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn widen<T: CpuElement>(self, x: &[T], out: &mut [T::Acc]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => widen(T::avx512(Proof(()), false), x, out),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => widen(T::avx2(Proof(()), false), x, out),
            Kind::Plain => widen(Plain::<T> { conj: false, element: PhantomData }, x, out),
        }
    }

    /// Rules 4 and 6 for the sums of `count` segments of each row, segment after segment.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub(crate) fn reduce<T: CpuElement>(
        self,
        partials: &mut [T::Acc],
        count: usize,
        target: Target<'_, T>,
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => reduce(T::avx512(Proof(()), false), partials, count, target),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => reduce(T::avx2(Proof(()), false), partials, count, target),
            Kind::Plain => {
                let o = Plain::<T> { conj: false, element: PhantomData };
                reduce(o, partials, count, target);
            }
        }
    }
}

fn reduce<O: Ops>(o: O, partials: &mut [O::Acc], count: usize, mut target: Target<'_, O::T>) {
    let m = target.rows().expect("a reduction ends in rows");
    assert!(count > 0 && partials.len() == count * m);
    let out = target.out::<O>(m);
    let len = m * (count.div_ceil(SEGMENT) + count.div_ceil(SEGMENT * SEGMENT) + 4);
    scratch::with(len, |scratch: &mut [O::Acc]| {
        // SAFETY: `o` exists; partials is count lines of m (asserted), scratch m and the lines of
        // the levels, and `out` comes from a target of m rows.
        unsafe { product::reduce(o, partials.as_mut_ptr(), m, count, scratch.as_mut_ptr(), &out) }
    });
}

fn widen<O: Ops>(o: O, x: &[O::T], out: &mut [O::Acc]) {
    assert!(x.len() == out.len());
    let body = Widen { o, x: x.as_ptr(), n: x.len(), out: out.as_mut_ptr() };
    // SAFETY: `o` exists; both are good for x.len() (asserted).
    unsafe { o.enter(body) }
}

/// Chooses the wrapper for the step of the lines.
#[inline]
fn walk<O: Ops>(o: O, task: Task<'_, '_, O::T>) {
    let (m, n) = task.a.dim();
    let (rs, cs) = (task.a.strides()[0], task.a.strides()[1]);
    assert!(m > 0 && n > 0 && task.x.len() == n);
    match &task.target {
        Target::Partials(p) => assert!(p.len() == m * n.div_ceil(SEGMENT)),
        t => assert!(t.rows() == Some(m)),
    }
    match task.lines {
        Lines::Rows { step } => {
            assert!(n == 1 || step == cs);
            match step {
                1 | -1 => compute(o, task, rs, true),
                2 if O::SECOND => compute(Second { o }, task, rs, true),
                _ => unreachable!("{NO_KERNEL}"),
            }
        }
        Lines::Columns { step } => {
            assert!(m == 1 || step == rs);
            match step {
                1 => compute(o, task, cs, false),
                2 if O::SECOND => compute(Second { o }, task, cs, false),
                _ => unreachable!("{NO_KERNEL}"),
            }
        }
    }
}

const NO_KERNEL: &str = "`Isa::direct` says that there is no kernel for these lines";

#[inline(always)]
fn near<O: Ops>(o: O, a: &ArrayView2<'_, O::T>, x: &[O::Acc], y: &mut [O::Acc]) -> bool {
    let ((m, n), strides) = (a.dim(), a.strides());
    let (rs, cs) = (strides[0], strides[1]);
    assert!(x.len() == n && y.len() == m);
    if m == 0 || n == 0 || n > SEGMENT {
        return false;
    }
    let p = a.as_ptr();
    let (x, out) = (x.as_ptr(), y.as_mut_ptr());
    // SAFETY: `o` exists; the matrix is a view, whose lines are its own; x has n entries and out m
    // (asserted).
    unsafe {
        if cs == 1 {
            let a = Mat { p, line: rs, m, n };
            if is_short::<O>(n) {
                short_rows(o, a, x, 0, out);
            } else {
                Segments::<O, false> { o, a, x, ahead: 0, next: false, out, ld: 0 }.enter();
            }
        } else if rs == 1 {
            let a = Mat { p, line: cs, m, n };
            let head = head_of::<O>(&a).min(m);
            o.enter(Strips { o, a, x, out, head, ahead: 0 });
        } else {
            return false;
        }
    }
    true
}

/// Accumulators of scratch that lie on the stack.
const NEAR: usize = LANES;

#[inline(always)]
fn compute<O: Ops>(o: O, mut task: Task<'_, '_, O::T>, line: isize, row: bool) {
    let (m, n) = task.a.dim();
    let a = Mat { p: task.a.as_ptr(), line, m, n };
    let (back, plan) = (task.lines.reversed(), task.plan);
    // Where the first entry is.
    let x = task.x.as_ptr().wrapping_add(if back { n - 1 } else { 0 });
    assert!(plan.rows > 0);
    let out = task.target.out::<O>(m);
    let len = scratch_len(m, n, &plan, row, O::W);
    let go = |scratch: *mut O::Acc| {
        let product = Product { o, a, x, plan, scratch, out: &out };
        // SAFETY: `o` exists. The matrix is a view: its elements, found by its own strides, may be
        // read, and `walk` has checked that the lines are its, that x has an entry for every
        // column, and that the target has a place for every row. The scratch has `scratch_len`.
        unsafe { if row { product.rows(back) } else { product.columns() } }
    };
    if len <= NEAR {
        let mut near = core::mem::MaybeUninit::<[O::Acc; NEAR]>::uninit();
        go(near.as_mut_ptr().cast());
    } else {
        scratch::with(len, |scratch: &mut [O::Acc]| go(scratch.as_mut_ptr()));
    }
}
