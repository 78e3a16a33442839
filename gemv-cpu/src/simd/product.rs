//! From a block of a matrix to y: which algorithm takes which part, and what is left to do to the
//! sums of segments.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Accumulator, scale};

use super::col_memory::{Blocked, Short};
use super::col_registers::Strips;
use super::ops::{Body, Ops};
use super::rows::{Segments, ShortRows};

/// A block of a matrix: where element (0, 0) is, and the distance of lines. Along a line the
/// elements are [`Ops::STEP`] apart.
pub(super) struct Mat<T> {
    pub(super) p: *const T,
    /// Lines: rows for the row kernel, columns for the column kernels.
    pub(super) line: isize,
    pub(super) m: usize,
    pub(super) n: usize,
}

impl<T> Clone for Mat<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Mat<T> {}

/// Where the result goes.
pub(super) enum Out<O: Ops> {
    /// One accumulator a row: the sums before scaling.
    Sums(*mut O::Acc),
    /// Rule 6.
    Y { y: *mut O::T, stride: isize, alpha: O::Acc, beta: O::Acc },
    /// The segments' sums, not yet summed: that of segment s and row i at `s * ld + i`.
    Partials(*mut O::Acc, usize),
}

/// How a block is computed: what is left of `Params`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rows of which a segment is taken in turn (row kernel).
    pub(crate) rows: usize,
    /// Blocks of rows, as far apart as they can be, that take turns (row kernel): streams for the memory
    /// where rows are short.
    pub(crate) streams: usize,
    /// Rows of a block (column kernel), 0 for the one that keeps its sums in registers.
    pub(crate) block: usize,
    /// Whether columns are short: read as they lie, a quarter of the lanes' sums kept.
    pub(crate) lanes: bool,
    /// Prefetch distance in bytes, 0 for none.
    pub(crate) ahead: usize,
    /// Whether the next rows (row kernel) or the next segment (short columns) are asked for, in place of what
    /// is `ahead`; not for rows of up to 64 columns, nor for a last segment of fewer. Rows of which four at once would
    /// be passed over twice are then taken two at once, where that is written (AVX-512's f64).
    pub(crate) next: bool,
}

/// The lane that is visited `i`-th of 2^log (at most 64), whose sums are added as soon as there are two: `i` with
/// its bits reversed. A table, since reversing takes more instructions than a lane's additions.
#[inline(always)]
pub(super) fn visited(i: usize, log: u32) -> usize {
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

/// Vectors of rows that the kernel for columns that keeps its sums in registers is given at once.
const STRIP: usize = 4;

/// Accumulators of scratch that a block of `m` × `n` needs.
pub(super) fn scratch_len(m: usize, n: usize, plan: &Plan, row: bool, width: usize) -> usize {
    let segments = n.div_ceil(SEGMENT);
    // Sums of segments, and of the segments of those.
    let levels = if segments > 1 { segments + segments.div_ceil(255) + 4 } else { 0 };
    if row {
        let rows = plan.rows.next_multiple_of(4);
        return LANES.max(rows) + rows * levels;
    }
    let rows = column_rows(m, plan, width);
    rows * (1 + levels + waiting(plan))
}

/// Lines of sums that wait while a segment is computed.
fn waiting(plan: &Plan) -> usize {
    match plan.block {
        0 => 0,
        _ if plan.lanes => LANES / 4,
        _ => 6,
    }
}

/// Rows of a block of the column kernels, rounded up to whole vectors, of which one may begin
/// before the first row.
#[inline(always)]
fn column_rows(m: usize, plan: &Plan, width: usize) -> usize {
    let step = if plan.block == 0 { (STRIP + 1) * width } else { plan.block + 2 * width };
    step.min(m.next_multiple_of(width) + width).next_multiple_of(width)
}

/// Whether all lines begin alike, as seen from vectors.
#[inline(always)]
pub(super) fn alike<O: Ops>(a: &Mat<O::T>) -> bool {
    let vector = O::W * size_of::<O::T>();
    (a.line.unsigned_abs() * size_of::<O::T>()).is_multiple_of(vector) || a.m == 1
}

/// How many elements of a line come before the first that is aligned as vectors are: 0 where lines
/// differ in that, or where it is of no use. Lines that run `back` are looked at from their other end.
#[inline(always)]
pub(super) fn turn_of<O: Ops>(a: &Mat<O::T>, back: bool) -> usize {
    let size = size_of::<O::T>();
    let vector = O::W * size;
    // The chunk's lowest address differs from the line's by whole vectors, and one element.
    let off = a.p.addr().wrapping_add(if back { size } else { 0 }) % vector;
    if !O::TURNS || !alike::<O>(a) || !off.is_multiple_of(size) {
        0
    } else {
        (vector - off) % vector / size
    }
}

/// How many rows come before the first vector of rows that is aligned: 0 where columns differ in that,
/// or where the nearest cache answers so quickly that a vector more costs more than those across two lines.
#[inline(always)]
pub(super) fn head_of<O: Ops>(a: &Mat<O::T>) -> usize {
    if a.m * a.n * size_of::<O::T>() <= NEAREST { 0 } else { turn_of::<O>(a, false) }
}

/// Bytes of the nearest cache that a matrix may have.
const NEAREST: usize = 16 << 10;

/// Bytes of rows of one segment, or 64 rows, that are read before those of another stream.
const TURN: usize = 1 << 10;

/// A product of a block: everything from the elements to y.
pub(super) struct Product<'a, O: Ops> {
    pub(super) o: O,
    pub(super) a: Mat<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) plan: Plan,
    /// Good for `scratch_len` accumulators.
    pub(super) scratch: *mut O::Acc,
    pub(super) out: &'a Out<O>,
}

impl<O: Ops> Product<'_, O> {
    /// Where the sums of rows `at ..` are to be put first: at their place, if nothing is left to
    /// do to them there, or at `scratch`.
    #[inline(always)]
    unsafe fn place(&self, at: usize, scratch: *mut O::Acc) -> *mut O::Acc {
        match *self.out {
            // SAFETY: the caller's: out is good for m.
            Out::Sums(p) => unsafe { p.add(at) },
            _ => scratch,
        }
    }

    /// Lines are rows, which run backwards like x if `back`.
    ///
    /// # Safety
    /// `o` exists, a is good, x for n, scratch for its length and out for m rows.
    pub(super) unsafe fn rows(self, back: bool) {
        let Product { a, plan, out, .. } = &self;
        let own = plan.rows.next_multiple_of(4);
        let streams = if a.m >= plan.streams * own { plan.streams } else { 1 };
        let one = a.n <= SEGMENT;
        let step = match one {
            true if streams == 1 && matches!(out, Out::Sums(_)) => a.m,
            true if streams == 1 => LANES,
            // Short rows take longer turns: a turn begins with a call.
            true => (TURN / (a.n * size_of::<O::T>()))
                .next_multiple_of(4)
                .clamp(plan.rows.min(LANES), LANES),
            _ => plan.rows,
        };
        // SAFETY: the caller's; all rows are below m.
        unsafe {
            let each = a.m / streams;
            let mut at = 0;
            while at < each {
                for s in 0..streams {
                    self.some_rows(s * each + at, (each - at).min(step), back);
                }
                at += step;
            }
            // What was left over.
            let mut i = streams * each;
            while i < a.m {
                self.some_rows(i, (a.m - i).min(step), back);
                i += step;
            }
        }
    }

    /// `count` rows from `i` on, no more than the scratch has room for.
    #[inline(always)]
    unsafe fn some_rows(&self, i: usize, count: usize, back: bool) {
        let Product { o, a, x, plan, scratch, out } = self;
        let (o, x, ahead, next) = (*o, *x, plan.ahead, plan.next);
        let own = plan.rows.next_multiple_of(4);
        // SAFETY: the caller's.
        unsafe {
            let n = a.n;
            let one = n <= SEGMENT;
            let partials = scratch.add(LANES.max(own));
            let a = Mat { p: a.p.wrapping_offset(i as isize * a.line), m: count, ..*a };
            let sums = self.place(i, *scratch);
            let (to, ld) = match **out {
                Out::Partials(p, ld) => (p.add(i), ld),
                _ if one => (sums, 0),
                _ => (partials, own),
            };
            if !back && is_short::<O>(n) {
                short_rows(o, a, x, ahead, to);
            } else if back {
                Segments::<O, true> { o, a, x, ahead, next, out: to, ld }.enter();
            } else {
                Segments::<O, false> { o, a, x, ahead, next, out: to, ld }.enter();
            }
            if !matches!(out, Out::Partials(..)) {
                if !one {
                    let lines = n.div_ceil(SEGMENT);
                    levels(o, partials, count, own, lines, partials.add(lines * own), sums);
                }
                finish::<O>(o, sums, count, i, out);
            }
        }
    }

    /// Lines are columns.
    ///
    /// # Safety
    /// As [`rows`](Self::rows).
    pub(super) unsafe fn columns(self) {
        // SAFETY: the caller's.
        unsafe {
            let Product { o, a, x, plan, scratch, out } = self;
            let (m, n) = (a.m, a.n);
            let lines = n.div_ceil(SEGMENT);
            let blocked = plan.block > 0;
            let own = column_rows(m, &plan, O::W);
            let stack = scratch.add(own);
            let partials = stack.add(waiting(&plan) * own);
            // Columns that begin alike are cut where vectors are aligned.
            let head = if plan.lanes { 0 } else { head_of::<O>(&a) };
            let sums_alone = lines == 1 && !blocked && matches!(out, Out::Sums(_));
            let mut i = 0;
            while i < m {
                let head = if i == 0 { head.min(m) } else { 0 };
                let rows = match (sums_alone, blocked) {
                    (true, _) => m,
                    (_, true) => (head + plan.block).min(m - i),
                    _ => (head + STRIP * O::W).min(m - i),
                };
                let p = a.p.wrapping_offset(i as isize * O::STEP);
                let sums = self.place(i, scratch);
                let (to, ld) = match *out {
                    Out::Partials(p, ld) => (p.add(i), ld),
                    _ if lines == 1 => (sums, 0),
                    _ => (partials, own),
                };
                for s in 0..lines {
                    let j = s * SEGMENT;
                    let a = Mat {
                        p: p.wrapping_offset(j as isize * a.line),
                        m: rows,
                        n: (n - j).min(SEGMENT),
                        line: a.line,
                    };
                    let (x, to) = (x.add(j), to.add(s * ld));
                    if plan.lanes && a.n == SEGMENT {
                        let ahead = match plan.next {
                            true => SEGMENT as isize * a.line,
                            false => (plan.ahead / size_of::<O::T>()) as isize,
                        };
                        o.enter(Short { o, a, x, quarter: stack, ld: own, out: to, ahead });
                        continue;
                    }
                    if blocked && !plan.lanes {
                        let ahead = (plan.ahead / size_of::<O::T>()) as isize;
                        o.enter(Blocked { o, a, x, stack, ld: own, out: to, ahead });
                        continue;
                    }
                    // What is read next: the next segment of these rows, or further rows.
                    let ahead = match plan.ahead {
                        0 => 0,
                        _ if s + 1 < lines => SEGMENT as isize * a.line,
                        ahead => (ahead / size_of::<O::T>()) as isize,
                    };
                    o.enter(Strips { o, a, x, out: to, head, ahead });
                }
                if !matches!(out, Out::Partials(..)) {
                    if lines > 1 {
                        levels(o, partials, rows, own, lines, partials.add(lines * own), sums);
                    }
                    finish::<O>(o, sums, rows, i, out);
                }
                i += rows;
            }
        }
    }
}

/// Whether there are so few columns, of rows that run forwards, that their entries of x stay in registers.
#[inline(always)]
pub(super) fn is_short<O: Ops>(n: usize) -> bool {
    n <= LANES && n <= O::SHORT * O::W
}

/// The sums of rows for which [`is_short`] holds.
///
/// # Safety
/// `o` exists, a is good, x for n and out for m.
#[inline(always)]
pub(super) unsafe fn short_rows<O: Ops>(
    o: O,
    a: Mat<O::T>,
    x: *const O::Acc,
    ahead: usize,
    out: *mut O::Acc,
) {
    macro_rules! vectors {
        ($($v:literal)*) => {
            match a.n.div_ceil(O::W) {
                // Those that O does not have are not compiled.
                $($v if const { $v <= O::SHORT && $v <= O::VECTORS } => {
                    o.enter(ShortRows::<O, $v> { o, a, x, ahead, out });
                })*
                _ => unreachable!("so few columns"),
            }
        };
    }
    // SAFETY: the caller's.
    unsafe { vectors!(1 2 3 4 5 6 7 8) }
}

/// Rule 4 for many rows: `sums` has, for each of `count` segments, `m` sums `ld` apart. What is
/// left goes to `out`; `spare` is good for `ceil(count / 256) + 2` lines. Accumulators that are
/// pairs are summed as two rows.
#[inline(always)]
unsafe fn levels<O: Ops>(
    o: O,
    sums: *const O::Acc,
    m: usize,
    ld: usize,
    count: usize,
    spare: *mut O::Acc,
    out: *mut O::Acc,
) {
    let parts = size_of::<O::Acc>() / size_of::<O::Real>();
    // SAFETY: the caller's. A function shared by all types with this accumulator.
    unsafe {
        real_levels(o.sum(), sums.cast(), m * parts, ld * parts, count, spare.cast(), out.cast());
    }
}

unsafe fn real_levels<S: Ops<T = <S as Ops>::Acc>>(
    o: S,
    mut sums: *const S::T,
    m: usize,
    ld: usize,
    mut count: usize,
    mut spare: *mut S::Acc,
    out: *mut S::Acc,
) {
    // SAFETY: the caller's.
    unsafe {
        // fma(v, 1, acc) is acc + v, rounded once.
        let ones = [<S::Acc as Accumulator>::ONE; SEGMENT];
        loop {
            let groups = count.div_ceil(SEGMENT);
            for g in 0..groups {
                let n = (count - g * SEGMENT).min(SEGMENT);
                let p = sums.add(g * SEGMENT * ld);
                let a = Mat { p, line: ld as isize, m, n };
                let out = if groups == 1 { out } else { spare.add(g * ld) };
                o.enter(Strips { o, a, x: ones.as_ptr(), out, head: 0, ahead: 0 });
            }
            if groups == 1 {
                return;
            }
            sums = spare;
            spare = spare.add(groups * ld);
            count = groups;
        }
    }
}

/// Rule 6 for `m` rows whose sums are there.
#[inline(always)]
unsafe fn finish<O: Ops>(o: O, sums: *const O::Acc, m: usize, at: usize, out: &Out<O>) {
    let Out::Y { y, stride, alpha, beta } = *out else { return };
    // SAFETY: the caller's: sums is good for m, y for rows at .. at + m.
    unsafe {
        let y = y.wrapping_offset(at as isize * stride);
        o.enter(Finish { o, sums, m, y, stride, alpha, beta });
    }
}

struct Finish<O: Ops> {
    o: O,
    sums: *const O::Acc,
    m: usize,
    y: *mut O::T,
    stride: isize,
    alpha: O::Acc,
    beta: O::Acc,
}

impl<O: Ops> Body for Finish<O> {
    #[inline(always)]
    unsafe fn run(self) {
        let Finish { o, sums, m, y, stride, alpha, beta } = self;
        let (zero, one) = (<O::Acc as Accumulator>::ZERO, <O::Acc as Accumulator>::ONE);
        // SAFETY: the caller's.
        unsafe {
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

/// Entries of x widened to accumulators.
pub(super) struct Widen<O: Ops> {
    pub(super) o: O,
    pub(super) x: *const O::T,
    pub(super) n: usize,
    pub(super) out: *mut O::Acc,
}

impl<O: Ops> Body for Widen<O> {
    #[inline(always)]
    unsafe fn run(self) {
        let Widen { o, x, n, out } = self;
        // SAFETY: the caller's: x and out are good for n.
        unsafe {
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

/// Rule 4 and 6 for the partial sums of a split product: `count` lines of `m` sums. The scratch is
/// good for m sums, and `ceil(count / 256) + 2` lines of m.
///
/// # Safety
/// `o` exists, and the lengths are those.
pub(super) unsafe fn reduce<O: Ops>(
    o: O,
    partials: *mut O::Acc,
    m: usize,
    count: usize,
    scratch: *mut O::Acc,
    out: &Out<O>,
) {
    // SAFETY: the caller's.
    unsafe {
        let to = match *out {
            Out::Sums(p) => p,
            _ => scratch,
        };
        levels(o, partials, m, m, count, scratch.add(m), to);
        finish::<O>(o, to, m, 0, out);
    }
}
