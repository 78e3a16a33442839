//! Rule 4, the sums of the sums of segments: of all of them at once, or as they come, in memory that hardly depends on
//! how many there are.

use core::mem::MaybeUninit;

use gemv_core::order::SEGMENT;

use super::entry::{Call, EntryPoints, FEW, Kernel, Lines};
use super::plan::tree;
use super::window::Window;

/// Rule 4 for many rows: `sums` has, for each of `count` segments, `m` sums `ld` apart. The result goes to `out`;
/// `spare` is good for [`spare_lines`](super::plan::spare_lines) lines. Accumulators that are pairs are summed as two rows.
///
/// # Safety
/// The lengths are those.
pub(super) unsafe fn levels(
    k: &EntryPoints,
    mut sums: *const u8,
    m: usize,
    ld: usize,
    mut count: usize,
    mut spare: *mut u8,
    out: *mut u8,
) {
    loop {
        let groups = count.div_ceil(SEGMENT);
        for g in 0..groups {
            let n = (count - g * SEGMENT).min(SEGMENT);
            let p = sums.wrapping_add(g * SEGMENT * ld * k.vector.acc);
            let out = if groups == 1 { out } else { spare.wrapping_add(g * ld * k.vector.acc) };
            // SAFETY: the caller's.
            unsafe { level(k, p, (m, ld), n, out) }
        }
        if groups == 1 {
            return;
        }
        sums = spare;
        spare = spare.wrapping_add(groups * ld * k.vector.acc);
        count = groups;
    }
}

/// The sums of at most 256 lines of `m` accumulators, `ld` apart.
///
/// # Safety
/// The lines are good for reads, and `out` for a line.
unsafe fn level(
    k: &EntryPoints,
    p: *const u8,
    (m, ld): (usize, usize),
    count: usize,
    out: *mut u8,
) {
    // SAFETY: the caller's.
    unsafe {
        match count {
            ..=FEW => (k.few_segments)(&Lines { p, m, ld, count, out }),
            _ => Ones::new(k).sum(k, p, (m, ld), count, out),
        }
    }
}

/// A factor of 1 for each line: fma(v, 1, acc) is acc + v, rounded once.
struct Ones(MaybeUninit<[f64; SEGMENT]>);

impl Ones {
    fn new(k: &EntryPoints) -> Ones {
        let mut ones = MaybeUninit::<[f64; SEGMENT]>::uninit();
        // SAFETY: no part of an accumulator is larger than f64.
        unsafe { ((k.real)().ones)(ones.as_mut_ptr().cast()) };
        Ones(ones)
    }

    /// The sums of at most 256 lines of `m` accumulators, `ld` apart.
    ///
    /// # Safety
    /// The lines are good for reads, and `out` for a line.
    unsafe fn sum(
        &self,
        k: &EntryPoints,
        p: *const u8,
        (m, ld): (usize, usize),
        n: usize,
        out: *mut u8,
    ) {
        let (parts, k) = (k.vector.acc, (k.real)());
        let reals = parts / k.vector.acc;
        let a = Window { p, line: (ld * reals) as isize, m: m * reals, n };
        let call = Call::new(a, false, self.0.as_ptr().cast(), out);
        // SAFETY: the caller's.
        unsafe { (k.col_registers)(&call) }
    }
}

/// Levels above the segments of a row of any length.
const LEVELS: usize = 7;

/// Lines of sums, each summed as soon as there are 256 of its level.
pub(super) struct Tree {
    /// Accumulators of a line.
    line: usize,
    /// How many levels there are, where each begins, and how many lines of it are there.
    levels: usize,
    at: [*mut u8; LEVELS],
    there: [usize; LEVELS],
}

impl Tree {
    /// A tree for the lines of `count` segments, more than one; `p` is good for those of the [`tree`].
    pub(super) fn new(k: &EntryPoints, count: usize, line: usize, mut p: *mut u8) -> Tree {
        let (mut levels, mut at) = (0, [p; LEVELS]);
        for lines in tree(count) {
            at[levels] = p;
            p = p.wrapping_add(lines * line * k.vector.acc);
            levels += 1;
        }
        debug_assert!(levels > 0);
        Tree { line, levels, at, there: [0; LEVELS] }
    }

    /// Where the sums of the next segment go.
    pub(super) fn next(&self, k: &EntryPoints) -> *mut u8 {
        self.end(k, 0)
    }

    fn end(&self, k: &EntryPoints, level: usize) -> *mut u8 {
        self.at[level].wrapping_add(self.there[level] * self.line * k.vector.acc)
    }

    /// The sums of the next segment are there.
    ///
    /// # Safety
    /// They are, and no more than `count`; the scratch is good.
    pub(super) unsafe fn push(&mut self, k: &EntryPoints) {
        self.there[0] += 1;
        for level in 0..self.levels - 1 {
            if self.there[level] < SEGMENT {
                return;
            }
            // SAFETY: the caller's.
            unsafe { self.lift(k, level) };
        }
    }

    /// Sums the lines of a level to one of the next.
    ///
    /// # Safety
    /// As [`push`](Self::push); there is a next level.
    unsafe fn lift(&mut self, k: &EntryPoints, level: usize) {
        let (line, out) = (self.line, self.end(k, level + 1));
        // SAFETY: the caller's; a level has a place for each group of the one below.
        unsafe { self::level(k, self.at[level], (line, line), self.there[level], out) };
        self.there[level] = 0;
        self.there[level + 1] += 1;
    }

    /// The sums of all segments, which are there.
    ///
    /// # Safety
    /// They are; the scratch is good, and `out` for a line.
    pub(super) unsafe fn finish(mut self, k: &EntryPoints, out: *mut u8) {
        let (top, line) = (self.levels - 1, self.line);
        // SAFETY: the caller's.
        unsafe {
            for level in 0..top {
                if self.there[level] > 0 {
                    self.lift(k, level);
                }
            }
            level(k, self.at[top], (line, line), self.there[top], out);
        }
    }
}

/// Copies some entries, from one on, to a place.
type Copies<'a> = &'a dyn Fn(usize, usize, *mut u8);

/// A row that is summed on the stack alone, for want of memory: segment by segment, from copies.
pub(super) struct Row<'a> {
    pub(super) k: &'static EntryPoints,
    pub(super) conj: bool,
    /// Columns.
    pub(super) n: usize,
    /// Copies elements of the matrix.
    pub(super) a: Copies<'a>,
    /// Copies entries of x as accumulators.
    pub(super) x: Copies<'a>,
}

/// Accumulators of a segment, of any type.
type Segment = [u64; 2 * SEGMENT];

/// What [`Row`] needs on the stack.
#[repr(align(64))]
pub(super) struct Place {
    a: MaybeUninit<Segment>,
    x: MaybeUninit<Segment>,
    lines: MaybeUninit<[Segment; LEVELS]>,
    sum: MaybeUninit<[u64; 2]>,
}

impl Place {
    pub(super) const NEW: Place = Place {
        a: MaybeUninit::uninit(),
        x: MaybeUninit::uninit(),
        lines: MaybeUninit::uninit(),
        sum: MaybeUninit::uninit(),
    };
}

impl Row<'_> {
    /// The sum of segment s.
    ///
    /// # Safety
    /// It is one of the row's, of which the copies are; the kernels are those of the copies, and `out` is good for an
    /// accumulator.
    pub(super) unsafe fn segment(&self, place: &mut Place, s: usize, out: *mut u8) {
        let (first, a, x) = (s * SEGMENT, place.a.as_mut_ptr().cast(), place.x.as_mut_ptr().cast());
        let n = (self.n - first).min(SEGMENT);
        (self.a)(first, n, a);
        (self.x)(first, n, x);
        let kernel: Kernel = (self.k.rows)(n, false);
        let a = Window { p: a.cast_const(), line: n as isize, m: 1, n };
        // SAFETY: the caller's; no element is larger than a place for one.
        unsafe { kernel(&Call::new(a, self.conj, x, out)) }
    }

    /// The sum of the row, in `place`.
    ///
    /// # Safety
    /// As [`segment`](Self::segment).
    pub(super) unsafe fn sum(&self, place: &mut Place) -> *const u8 {
        let (count, sum) = (self.n.div_ceil(SEGMENT), place.sum.as_mut_ptr().cast());
        // SAFETY: the caller's; there is a place for the lines of all levels, each of one accumulator.
        unsafe {
            if count == 1 {
                self.segment(place, 0, sum);
                return sum;
            }
            let mut tree = Tree::new(self.k, count, 1, place.lines.as_mut_ptr().cast());
            for s in 0..count {
                self.segment(place, s, tree.next(self.k));
                tree.push(self.k);
            }
            tree.finish(self.k, sum);
        }
        sum
    }
}
