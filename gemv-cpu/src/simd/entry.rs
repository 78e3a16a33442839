//! The kernels of an element type on an instruction set as a table of functions without types, so that all that
//! leads to them is compiled once.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Accumulator, scale};

use super::col_memory::{ColFewRows, ColMemory};
use super::col_registers::ColRegisters;
use super::gemm_col::ColRhs;
use super::gemm_row::RowRhs;
use super::narrow::{Narrow, NarrowCall};
use super::ops::{Body, Ops, Scalar, each};
use super::rows::{ANY, Segments, ShortRows, Tail, XInRegisters};
use super::window::{RhsCall, Vector, Window, lead, same_offset};

/// The kernels of an element type on an instruction set.
///
/// # Safety
/// Every function needs a processor that has the instruction set, and operands as its body says.
pub(crate) struct EntryPoints {
    pub(super) vector: Vector,
    /// The kernel for rows of so many columns, which run backwards or not: the sums of all segments of all rows.
    pub(super) rows: fn(usize, bool) -> Kernel,
    /// The sums of one segment of all rows, in registers.
    pub(super) col_registers: unsafe fn(&Call),
    /// The same, with partial sums in memory.
    pub(super) col_memory: unsafe fn(&Call),
    /// The same for a whole segment of few rows.
    pub(super) col_few_rows: unsafe fn(&Call),
    /// The kernels for several right-hand sides, if there are any.
    pub(super) rhs: Option<Rhs>,
    /// The kernel for several right-hand sides of few columns, if there is one.
    pub(super) narrow: Option<unsafe fn(&NarrowCall)>,
    /// Rule 6.
    pub(super) finish: unsafe fn(&Finish),
    /// Rule 6 for a block of sums.
    pub(super) finish_block: unsafe fn(&FinishBlock),
    /// Converts entries of x, of a stride and a number, to accumulators.
    pub(super) widen: Widen,
    /// The kernels for what an accumulator consists of.
    pub(super) real: fn() -> &'static EntryPoints,
    /// Writes 256 accumulators of 1.
    pub(super) ones: unsafe fn(*mut u8),
    /// Rule 4 for the sums of [`FEW`] segments at most.
    pub(super) few_segments: unsafe fn(&Lines),
}

/// Lines that are added up without a chain of multiply-adds: each is a lane of its own.
pub(super) const FEW: usize = 8;

/// The sums of `count` segments, one or more: lines of `m` accumulators, `ld` apart. Their sums go to `out`.
pub(super) struct Lines {
    pub(super) p: *const u8,
    pub(super) m: usize,
    pub(super) ld: usize,
    pub(super) count: usize,
    pub(super) out: *mut u8,
}

/// Copies entries of a stride and a number as accumulators.
///
/// # Safety
/// The processor has the instruction set; both places are good for the entries.
pub(super) type Widen = unsafe fn(*const u8, isize, usize, *mut u8);

/// A kernel as a function without types.
pub(super) type Kernel = unsafe fn(&Call);

/// The operands of a kernel, and what some of them read.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// A block of the matrix.
    pub(super) a: Window<u8>,
    pub(super) x: *const u8,
    /// The place of the sums.
    pub(super) out: *mut u8,
    /// The distance of prefetches: bytes for rows, elements for columns.
    pub(super) prefetch: isize,
    pub(super) conj: bool,
    /// Accumulators between the sums of two segments.
    pub(super) ld: usize,
    /// Rows run backwards, as x does.
    pub(super) back: bool,
    /// Whether the next rows are prefetched instead.
    pub(super) prefetch_next: bool,
    /// Rows before the first aligned vector.
    pub(super) head: usize,
    /// Partial sums, and the accumulators of a line of them.
    pub(super) stack: *mut u8,
    pub(super) stack_ld: usize,
}

impl Call {
    /// Without prefetches, a stack or several segments.
    #[inline(always)]
    pub(super) fn new(a: Window<u8>, conj: bool, x: *const u8, out: *mut u8) -> Call {
        let (back, prefetch_next, stack) = (false, false, core::ptr::null_mut());
        Call {
            a,
            x,
            out,
            prefetch: 0,
            conj,
            ld: 0,
            back,
            prefetch_next,
            head: 0,
            stack,
            stack_ld: 0,
        }
    }
}

/// Kernels for several right-hand sides. They need neighbouring elements along a line, and elements that are their own
/// accumulators.
#[derive(Clone, Copy)]
pub(super) struct Rhs {
    pub(super) rows: RhsKernel,
    pub(super) columns: RhsKernel,
}

/// A kernel for several right-hand sides as a function without types.
///
/// # Safety
/// The processor has the instruction set; a is good for at most 256 columns, x for as many entries of each column, out
/// for all sums, and the stack for rows rounded up to a multiple of 16.
pub(super) type RhsKernel = unsafe fn(&RhsCall);

/// Rule 6 for lines of sums, `ld` accumulators apart. A line is a row or a column of Y.
pub(super) struct FinishBlock {
    pub(super) sums: *const u8,
    pub(super) ld: usize,
    pub(super) lines: usize,
    pub(super) len: usize,
    pub(super) y: *mut u8,
    /// Elements between two lines of Y.
    pub(super) line: isize,
    /// Elements between two entries of a line.
    pub(super) stride: isize,
    pub(super) alpha: Scalar,
    pub(super) beta: Scalar,
}

/// Rule 6 for `m` rows whose sums are there.
pub(super) struct Finish {
    pub(super) sums: *const u8,
    pub(super) m: usize,
    pub(super) y: *mut u8,
    pub(super) stride: isize,
    pub(super) alpha: Scalar,
    pub(super) beta: Scalar,
}

/// The table for `O`.
pub(super) struct Of<O>(O);

impl<O: Ops> Of<O> {
    pub(super) const ENTRY_POINTS: &'static EntryPoints = &EntryPoints {
        vector: Vector::of::<O>(),
        rows: rows::<O>,
        col_registers: columns::<O, REGISTERS>,
        col_memory: columns::<O, MEMORY>,
        col_few_rows: columns::<O, FEW_ROWS>,
        rhs: Self::RHS,
        narrow: Self::NARROW,
        finish: finish::<O::Base>,
        finish_block: finish_block::<O::Base>,
        widen: widen::<O::Base>,
        real: || Of::<O::Sum>::ENTRY_POINTS,
        ones: ones::<O::Acc>,
        few_segments: few_segments::<O>,
    };

    /// For f32 and f64 alone: all others would take long to compile. Narrower types are converted first.
    const RHS: Option<Rhs> =
        if O::UNROLLS { Some(Rhs { rows: gemm_row::<O>, columns: gemm_col::<O> }) } else { None };
    const NARROW: Option<unsafe fn(&NarrowCall)> =
        if O::UNROLLS { Some(narrow::<O>) } else { None };
}

/// # Safety
/// `out` is good for a segment.
pub(super) unsafe fn ones<A: Accumulator>(out: *mut u8) {
    // SAFETY: the caller's.
    unsafe { *out.cast::<[A; SEGMENT]>() = [A::ONE; SEGMENT] }
}

/// An expression of `V`, the vectors of `n` columns for which [`is_short`] holds.
macro_rules! vectors {
    ($n:expr, $e:expr) => {
        vectors!($n, $e, 1 2 3 4 5 6 7 8)
    };
    ($n:expr, $e:expr, $($v:literal)*) => {
        match $n.div_ceil(O::W) {
            // Those that O does not have are not compiled.
            $($v if const { $v <= O::SHORT_VECTORS && $v <= O::VECTORS } => {
                const V: usize = $v;
                $e
            })*
            _ => unreachable!("so few columns"),
        }
    };
}

/// The kernel for rows of `n` columns. That of segment s and row i goes to `out[s * ld + i]`.
fn rows<O: Ops>(n: usize, back: bool) -> Kernel {
    // Lines of stride two run forwards.
    if const { O::STEP == 1 } && back {
        segments::<O, true>
    } else if is_short::<O>(n) {
        vectors!(n, short::<O, V>)
    } else {
        segments::<O, false>
    }
}

unsafe fn segments<O: Ops, const BACK: bool>(c: &Call) {
    let Call { a, x, out, prefetch, ld, prefetch_next, .. } = *c;
    let (a, x, out, prefetch) = (a.cast(), x.cast(), out.cast(), prefetch as usize);
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(c.conj);
        all_segments(Segments::<O, BACK> { o, a, x, prefetch, prefetch_next, out, ld });
    }
}

/// The sums of all segments.
///
/// # Safety
/// `o` exists, a is good, x for n, out for ld * (segments - 1) + m.
#[inline(always)]
pub(super) unsafe fn all_segments<O: Ops, const BACK: bool>(of: Segments<O, BACK>) {
    let Segments { o, a, x, prefetch, prefetch_next, out, ld } = of;
    // SAFETY: the caller's.
    unsafe {
        // A constant condition: what never runs is not compiled.
        if const { BACK } {
            return o.enter(of);
        }
        let whole = a.n / SEGMENT;
        let all = Segments::<O, false> { o, a, x, prefetch, prefetch_next, out, ld };
        let (first, out) = (whole * SEGMENT, out.wrapping_add(whole * ld));
        let columns = (first, a.n - first);
        if columns.1 > 0 {
            match columns.1 / LANES {
                0 => o.enter(Tail::<O, 0> { all: &all, columns, out }),
                1 => o.enter(Tail::<O, 1> { all: &all, columns, out }),
                _ if const { !O::UNROLLS } => o.enter(Tail::<O, ANY> { all: &all, columns, out }),
                2 => o.enter(Tail::<O, 2> { all: &all, columns, out }),
                _ => o.enter(Tail::<O, 3> { all: &all, columns, out }),
            }
        }
        if whole > 0 {
            let full = Segments { a: Window { n: first, ..a }, out: of.out, ..all };
            let done = x_in_registers(&full);
            if done < a.m {
                let p = a.p.wrapping_offset(done as isize * a.line);
                let a = Window { p, m: a.m - done, ..full.a };
                o.enter(Segments { a, out: full.out.add(done), ..full });
            }
        }
    }
}

/// The sums of the first rows, over whole segments, where two rows at a time are faster. Returns the first row
/// left.
///
/// From the caches: rows of one offset, without prefetches, which take the time of a load there. From memory: all
/// rows that would need a second pass, with the next rows prefetched.
#[inline(always)]
unsafe fn x_in_registers<O: Ops>(of: &Segments<O, false>) -> usize {
    let Segments { o, a, prefetch, prefetch_next, .. } = *of;
    // Whether four rows at a time need more vectors than there are registers, so that a second pass reads the rest.
    let twice = const { O::VECTORS > 4 };
    let near = (prefetch, prefetch_next) == (0, false) && same_offset(&a, Vector::of::<O>());
    // Below eight rows this is slower.
    if const { O::X_VECTORS == 0 } || a.m < 8 || !(near || twice && prefetch_next) {
        return 0;
    }
    let m = a.m & !3;
    let (all, rotation) =
        (&Segments { a: Window { m, ..a }, ..*of }, lead(&a, Vector::of::<O>(), false));
    // SAFETY: the caller's, that of `all_segments`.
    unsafe {
        match rotation {
            0 if twice && prefetch_next => {
                o.enter(XInRegisters::<O, false, true> { all, rotation })
            }
            _ if twice && prefetch_next => o.enter(XInRegisters::<O, true, true> { all, rotation }),
            0 => o.enter(XInRegisters::<O, false, false> { all, rotation }),
            _ => o.enter(XInRegisters::<O, true, false> { all, rotation }),
        }
    }
    m
}
unsafe fn short<O: Ops, const V: usize>(c: &Call) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(c.conj);
        o.enter(Short::<O, V> { o, c });
    }
}

/// A kernel for short rows with its operands by reference, as [`Columns`].
struct Short<'a, O, const V: usize> {
    o: O,
    c: &'a Call,
}

impl<O: Ops, const V: usize> Body for Short<'_, O, V> {
    #[inline(always)]
    unsafe fn run(self) {
        let Short { o, c } = self;
        let (a, x, out, prefetch) = (c.a.cast(), c.x.cast(), c.out.cast(), c.prefetch as usize);
        // SAFETY: the caller's.
        unsafe { ShortRows::<O, V> { o, a, x, prefetch, out }.run() }
    }
}

/// A column kernel with its operands by reference: what is copied just after it was written stalls.
struct Columns<'a, O, const KERNEL: u8> {
    o: O,
    c: &'a Call,
}

pub(super) const REGISTERS: u8 = 0;
const MEMORY: u8 = 1;
const FEW_ROWS: u8 = 2;

/// The sums of one segment of all rows; of one whole segment for `FEW_ROWS`.
///
/// # Safety
/// The processor has the instruction set; a is good, x for n, out for m, and the stack for its lines.
pub(super) unsafe fn columns<O: Ops, const KERNEL: u8>(c: &Call) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(c.conj);
        o.enter(Columns::<O, KERNEL> { o, c });
    }
}

impl<O: Ops, const KERNEL: u8> Body for Columns<'_, O, KERNEL> {
    #[inline(always)]
    unsafe fn run(self) {
        let Columns { o, c } = self;
        let (a, x, out, prefetch) = (c.a.cast(), c.x.cast(), c.out.cast(), c.prefetch);
        let (stack, ld, head) = (c.stack.cast(), c.stack_ld, c.head);
        // SAFETY: the caller's.
        unsafe {
            match KERNEL {
                REGISTERS => ColRegisters { o, a, x, out, head, prefetch }.run(),
                MEMORY => ColMemory { o, a, x, stack, ld, out, prefetch }.run(),
                _ => ColFewRows { o, a, x, quarter: stack, ld, out, prefetch }.run(),
            }
        }
    }
}

unsafe fn gemm_row<O: Ops>(c: &RhsCall) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(false);
        o.enter(RowRhs { o, c });
    }
}

unsafe fn gemm_col<O: Ops>(c: &RhsCall) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(false);
        o.enter(ColRhs { o, c });
    }
}

unsafe fn narrow<O: Ops>(c: &NarrowCall) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(false);
        o.enter(Narrow { o, c });
    }
}

unsafe fn finish_block<O: Ops>(f: &FinishBlock) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(false);
        o.enter(FinishLines { o, f });
    }
}

unsafe fn finish<O: Ops>(f: &Finish) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(false);
        o.enter(FinishRows { o, f });
    }
}

/// Rule 4 for [`Lines`].
///
/// # Safety
/// The processor has the instruction set; the lines are good for reads, and `out` for a line.
pub(super) unsafe fn few_segments<O: Ops>(l: &Lines) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::Sum::new(false);
        let parts = size_of::<O::Acc>() / size_of::<O::Real>();
        let (p, out) = (l.p.cast(), l.out.cast());
        o.enter(FewSegments { o, p, m: l.m * parts, ld: l.ld * parts, count: l.count, out });
    }
}

unsafe fn widen<O: Ops>(x: *const u8, stride: isize, n: usize, out: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(false);
        o.enter(WidenEntries { o, x: x.cast(), stride, n, out: out.cast() });
    }
}

/// Copies entries of f32 as accumulators of f64.
///
/// # Safety
/// As [`Widen`].
pub(super) unsafe fn promote<O: Ops<T = f64>>(x: *const u8, stride: isize, n: usize, out: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        let o = O::new(false);
        o.enter(Promote { x: x.cast(), stride, n, out: out.cast() });
    }
}

/// Whether the entries of x stay in registers: there are few columns, of rows that run forwards.
#[inline(always)]
pub(super) fn is_short<O: Ops>(n: usize) -> bool {
    n <= LANES && n <= O::SHORT_VECTORS * O::W
}

/// The sums of rows for which [`is_short`] holds.
///
/// # Safety
/// `o` exists; the operands are good, as for a kernel.
#[inline(always)]
pub(super) unsafe fn short_rows<O: Ops>(o: O, c: &Call) {
    // SAFETY: the caller's.
    unsafe { vectors!(c.a.n, o.enter(Short::<O, V> { o, c })) }
}

/// See [`Lines`].
struct FewSegments<O: Ops> {
    o: O,
    p: *const O::Acc,
    m: usize,
    ld: usize,
    count: usize,
    out: *mut O::Acc,
}

impl<O: Ops> Body for FewSegments<O> {
    #[inline(always)]
    unsafe fn run(self) {
        let FewSegments { o, p, m, ld, count, out } = self;
        // SAFETY: the caller's: there are so many lines, and out is good for one.
        unsafe {
            for i in (0..m).step_by(O::W) {
                let len = (m - i).min(O::W);
                let mut lanes = [o.zero(); FEW];
                // The first addition of a lane is to +0.
                each!(L in 0 1 2 3 4 5 6 7: { if L < count {
                    let p = p.wrapping_add(L * ld + i);
                    let v = if len == O::W { o.load_acc(p) } else { o.load_acc_part(p, 0, len) };
                    lanes[L] = o.add(v, o.zero());
                } });
                // Lanes that are absent are +0, which changes none of the others.
                let [a, b, c, d, e, f, g, h] = lanes;
                let (a, b, c, d) = (o.add(a, e), o.add(b, f), o.add(c, g), o.add(d, h));
                let sum = o.add(o.add(a, c), o.add(b, d));
                let out = out.wrapping_add(i);
                if len == O::W { o.store(sum, out) } else { o.store_part(sum, out, 0, len) }
            }
        }
    }
}

struct FinishRows<'a, O> {
    o: O,
    f: &'a Finish,
}

impl<O: Ops> Body for FinishRows<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        let FinishRows { o, f: Finish { sums, m, y, stride, alpha, beta } } = self;
        let (sums, y, m, stride) = (sums.cast::<O::Acc>(), y.cast::<O::T>(), *m, *stride);
        let (zero, one) = (<O::Acc as Accumulator>::ZERO, <O::Acc as Accumulator>::ONE);
        // SAFETY: the caller's: sums and y are good for m rows, the factors are accumulators.
        unsafe {
            let (alpha, beta) = (alpha.get::<O::Acc>(), beta.get::<O::Acc>());
            let mut i = 0;
            if alpha == one && beta == zero && stride == 1 {
                while m - i >= O::W {
                    o.store_narrow(o.load_acc(sums.add(i)), y.add(i));
                    i += O::W;
                }
            }
            while i < m {
                let y = y.offset(i as isize * stride);
                let old = if beta == zero { None } else { Some(*y) };
                *y = scale::<O::T>(alpha, *sums.add(i), beta, old);
                i += 1;
            }
        }
    }
}

struct FinishLines<'a, O> {
    o: O,
    f: &'a FinishBlock,
}

impl<O: Ops> Body for FinishLines<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        let FinishLines { o, f } = self;
        let FinishBlock { sums, ld, lines, len, y, line, stride, alpha, beta } = f;
        let acc = size_of::<O::Acc>();
        for l in 0..*lines {
            let sums = sums.wrapping_add(l * ld * acc);
            let y = y.cast::<O::T>().wrapping_offset(l as isize * line).cast();
            let (m, stride, alpha, beta) = (*len, *stride, *alpha, *beta);
            let f = &Finish { sums, m, y, stride, alpha, beta };
            // SAFETY: the caller's: sums and y are good for these lines.
            unsafe { FinishRows { o, f }.run() }
        }
    }
}

/// Entries of f32 as accumulators of f64; the compiler makes vectors of the instruction set of it.
struct Promote {
    x: *const f32,
    stride: isize,
    n: usize,
    out: *mut f64,
}

impl Body for Promote {
    #[inline(always)]
    unsafe fn run(self) {
        let Promote { x, stride, n, out } = self;
        // SAFETY: the caller's: x and out are good for n.
        unsafe {
            if stride == 1 {
                for j in 0..n {
                    *out.add(j) = f64::from(*x.add(j));
                }
            } else {
                for j in 0..n {
                    *out.add(j) = f64::from(*x.offset(j as isize * stride));
                }
            }
        }
    }
}

/// Entries of x as accumulators.
struct WidenEntries<O: Ops> {
    o: O,
    x: *const O::T,
    stride: isize,
    n: usize,
    out: *mut O::Acc,
}

impl<O: Ops> Body for WidenEntries<O> {
    #[inline(always)]
    unsafe fn run(self) {
        let WidenEntries { o, x, stride, n, out } = self;
        use gemv_core::Element;
        // SAFETY: the caller's: x and out are good for n.
        unsafe {
            if stride != 1 {
                for j in 0..n {
                    *out.add(j) = (*x.offset(j as isize * stride)).widen();
                }
                return;
            }
            let mut j = 0;
            while n - j >= O::W {
                o.store(o.load(x.add(j)), out.add(j));
                j += O::W;
            }
            if j < n {
                o.store_part(o.load_part(x.add(j), 0, n - j), out.add(j), 0, n - j);
            }
        }
    }
}
