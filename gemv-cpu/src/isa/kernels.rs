//! The algorithms, written once: lines along the lanes (rows), lines across them (columns), and
//! the sums of segments' sums.

// Arrays of rows and of lanes go side by side: their numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Accumulator, scale};

use super::ops::{Body, Ops};

/// A block of a matrix: where element (0, 0) is, and the distance of lines. Along a line the
/// elements follow [`Ops::at`].
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
    /// Rows of a block (column kernel), 0 for the one that keeps its sums in registers.
    pub(crate) block: usize,
    /// Prefetch distance in bytes, 0 for none.
    pub(crate) ahead: usize,
}

/// Accumulators of scratch that a block of `m` × `n` needs.
pub(super) fn scratch_len(m: usize, n: usize, plan: &Plan, row: bool, width: usize) -> usize {
    let segments = n.div_ceil(SEGMENT);
    // Sums of segments, and of the segments of those.
    let levels = if segments > 1 { segments + segments.div_ceil(255) + 4 } else { 0 };
    if row {
        return LANES.max(plan.rows.next_multiple_of(4)) + plan.rows.next_multiple_of(4) * levels;
    }
    let rows = column_rows(m, plan, width);
    // One for the sums, six for the stack.
    rows * (1 + levels + if plan.block == 0 && segments <= 1 { 0 } else { 6 })
}

/// Rows of a block of the column kernels, rounded up to whole vectors.
#[inline(always)]
fn column_rows(m: usize, plan: &Plan, width: usize) -> usize {
    let step = if plan.block == 0 { 4 * width } else { plan.block };
    step.min(m).next_multiple_of(width)
}

#[inline(always)]
fn bit_reversed(i: usize, bits: u32) -> usize {
    if bits == 0 { 0 } else { i.reverse_bits() >> (usize::BITS - bits) }
}

// ------------------------------------------------------------------------------------- rows

/// Columns j0 .. j0 + len (at most a segment) of `R` rows: the lanes, halved to `W`.
///
/// The 64 lanes are visited four vectors at a time: those whose numbers are equal modulo
/// `VECTORS / 4`, which are one node of the halving tree; the nodes in bit-reversed order.
///
/// In a full segment the lanes may be turned by `turn` places, less than a vector, so that the
/// loads are aligned: place p holds lane (p + turn) mod 64, which the halving does not notice.
/// The last vector then ends with lanes 0 .. turn, whose first columns lie before the first load.
#[inline(always)]
unsafe fn segment<O: Ops, const R: usize, const FULL: bool>(
    o: O,
    a: [*const O::T; R],
    x: *const O::Acc,
    j0: usize,
    len: usize,
    turn: usize,
) -> [O::V; R] {
    // SAFETY: the caller's: rows and x are good for columns j0 .. j0 + len.
    unsafe {
        let nodes = O::VECTORS / 4;
        let (chunks, rem) = if FULL { (4, 0) } else { (len / LANES, len % LANES) };
        let zero = o.zero();
        // At most eight nodes: three partial sums wait.
        let mut waiting = [[zero; R]; 4];
        let mut done = [zero; R];
        for q in 0..nodes {
            let node = bit_reversed(q, nodes.trailing_zeros());
            let mut acc = [[zero; R]; 4];
            // Some lanes of one vector.
            let some = |acc: &mut [O::V; R], j: usize, part: (usize, usize)| {
                let x = o.x_part(x.wrapping_add(j), part.0, part.1);
                for r in 0..R {
                    let v = o.load_part(a[r].wrapping_offset(o.at(j)), part.0, part.1);
                    acc[r] = o.fma_part(v, x, acc[r], part);
                }
            };
            let turned = FULL && turn > 0 && node + 1 == nodes;
            if turned {
                some(&mut acc[3], (j0 + turn).wrapping_sub(O::W), (O::W - turn, O::W));
            }
            for c in 0..chunks {
                for (k, acc) in acc.iter_mut().enumerate() {
                    let j =
                        j0 + c * LANES + (node + k * nodes) * O::W + if FULL { turn } else { 0 };
                    if FULL && c == 3 && k == 3 && turned {
                        some(acc, j, (0, O::W - turn));
                        continue;
                    }
                    let x = o.x(x.add(j));
                    let at = o.at(j);
                    for r in 0..R {
                        acc[r] = o.fma(o.load(a[r].offset(at)), x, acc[r]);
                    }
                }
            }
            if !FULL && rem > 0 {
                for (k, acc) in acc.iter_mut().enumerate() {
                    let first = (node + k * nodes) * O::W;
                    let part = o.part(first, rem);
                    if part.0 < part.1 {
                        some(acc, j0 + chunks * LANES + first, part);
                    }
                }
            }
            for r in 0..R {
                done[r] = o.add(o.add(acc[0][r], acc[2][r]), o.add(acc[1][r], acc[3][r]));
            }
            if nodes > 1 {
                let merges = q.trailing_ones() as usize;
                let depth = q.count_ones() as usize;
                for w in 0..merges {
                    for r in 0..R {
                        done[r] = o.add(waiting[depth - 1 - w][r], done[r]);
                    }
                }
                if q + 1 < nodes {
                    waiting[depth - merges] = done;
                }
            }
        }
        done
    }
}

/// How many elements of a line come before the first that is aligned as vectors are: 0 where lines
/// differ in that, or where it is of no use.
#[inline(always)]
fn turn_of<O: Ops>(a: &Mat<O::T>) -> usize {
    let size = size_of::<O::T>();
    let vector = O::W * size;
    let off = a.p.addr() % vector;
    let same = (a.line.unsigned_abs() * size).is_multiple_of(vector);
    if !O::SHORT || !O::TURNS || !same || !off.is_multiple_of(size) {
        0
    } else {
        (vector - off) % vector / size
    }
}

/// At most `U * W` (at most 64) columns of `R` rows: as [`segment`], without the levels of the
/// halving whose upper lanes are all absent.
#[inline(always)]
unsafe fn short<O: Ops, const R: usize, const U: usize>(
    o: O,
    a: [*const O::T; R],
    x: [O::X; U],
    n: usize,
) -> [O::V; R] {
    // SAFETY: the caller's: rows are good for n columns, x was loaded from as many.
    unsafe {
        let zero = o.zero();
        let mut acc = [[zero; R]; U];
        for (k, acc) in acc.iter_mut().enumerate() {
            let (lo, hi) = o.part(k * O::W, n);
            let at = o.at(k * O::W);
            if hi - lo == O::W {
                for r in 0..R {
                    acc[r] = o.fma(o.load(a[r].offset(at)), x[k], zero);
                }
            } else if lo < hi {
                for r in 0..R {
                    let v = o.load_part(a[r].wrapping_offset(at), lo, hi);
                    acc[r] = o.fma_part(v, x[k], zero, (lo, hi));
                }
            }
        }
        let mut h = U / 2;
        while h > 0 {
            for k in 0..h {
                for r in 0..R {
                    acc[k][r] = o.add(acc[k][r], acc[k + h][r]);
                }
            }
            h /= 2;
        }
        if n < LANES && U * O::W < LANES {
            // For the levels left out (ORDER: they can only turn -0 into +0).
            for r in 0..R {
                acc[0][r] = o.add(acc[0][r], zero);
            }
        }
        acc[0]
    }
}

/// Stores the sums of up to `R` rows.
#[inline(always)]
unsafe fn fold_to<O: Ops, const R: usize>(o: O, v: [O::V; R], out: *mut O::Acc, count: usize) {
    // SAFETY: the caller's: out is good for count.
    unsafe {
        if R == 4 {
            let v = [v[0], v[1 % R], v[2 % R], v[3 % R]];
            if count >= 4 {
                o.fold4(v, out);
            } else {
                let mut four = [O::Acc::ZERO; 4];
                o.fold4(v, four.as_mut_ptr());
                for (r, s) in four.iter().enumerate().take(count) {
                    *out.add(r) = *s;
                }
            }
        } else {
            for (r, v) in v.iter().enumerate().take(count) {
                *out.add(r) = o.fold(*v);
            }
        }
    }
}

/// Pointers to rows i .. i + R, the last row again for those beyond m.
#[inline(always)]
unsafe fn rows_at<O: Ops, const R: usize>(a: &Mat<O::T>, i: usize) -> [*const O::T; R] {
    let last = a.m - 1;
    core::array::from_fn(|r| {
        // Wrapping: a reversed line's base is not where its vectors begin.
        a.p.wrapping_offset((i + r).min(last) as isize * a.line)
    })
}

/// Sums of all rows of a matrix of at most `U * W` columns.
pub(super) struct ShortRows<O: Ops, const U: usize> {
    pub(super) o: O,
    pub(super) a: Mat<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) ahead: usize,
    pub(super) out: *mut O::Acc,
}

impl<O: Ops, const U: usize> Body for ShortRows<O, U> {
    #[inline(always)]
    unsafe fn run(self) {
        let ShortRows { o, a, x, ahead, out } = self;
        // SAFETY: the caller's: a is good, x for n, out for m.
        unsafe {
            let xs: [O::X; U] = core::array::from_fn(|k| {
                let (lo, hi) = o.part(k * O::W, a.n);
                o.x_part(x.wrapping_add(k * O::W), lo, hi.max(lo))
            });
            let mut i = 0;
            while i < a.m {
                let rows = rows_at::<O, 4>(&a, i);
                if ahead > 0 {
                    for row in rows {
                        for k in 0..U {
                            o.prefetch(row.wrapping_add(k * O::W).wrapping_byte_add(ahead));
                        }
                    }
                }
                let v = short::<O, 4, U>(o, rows, xs, a.n);
                fold_to::<O, 4>(o, v, out.add(i), a.m - i);
                i += 4;
            }
        }
    }
}

/// The segments' sums of `a.m` rows, that of segment s and row i at `out[s * ld + i]`. The rows
/// take turns segment by segment, so that as many streams are read. A function of its own, so that
/// small products do not pay for its frame.
struct Segments<O: Ops, const R: usize> {
    o: O,
    a: Mat<O::T>,
    x: *const O::Acc,
    ahead: usize,
    out: *mut O::Acc,
    ld: usize,
}

impl<O: Ops, const R: usize> Body for Segments<O, R> {
    #[inline(always)]
    unsafe fn run(self) {
        let Segments { o, a, x, ahead, out, ld } = self;
        // SAFETY: the caller's: a is good, x for n, out for ld * (segments - 1) + m.
        unsafe {
            let count = a.n.div_ceil(SEGMENT);
            let turn = turn_of::<O>(&a);
            let (lines, per) = (SEGMENT * size_of::<O::T>() / 64, 64 / size_of::<O::T>());
            for s in 0..count {
                let j0 = s * SEGMENT;
                let len = (a.n - j0).min(SEGMENT);
                let mut i = 0;
                while i < a.m {
                    let rows = rows_at::<O, R>(&a, i);
                    if ahead > 0 {
                        let from = j0 + ahead / size_of::<O::T>();
                        for row in rows {
                            for l in 0..lines {
                                o.prefetch(row.wrapping_offset(o.at(from + l * per)));
                            }
                        }
                    }
                    let v = if len == SEGMENT {
                        segment::<O, R, true>(o, rows, x, j0, SEGMENT, turn)
                    } else {
                        segment::<O, R, false>(o, rows, x, j0, len, 0)
                    };
                    fold_to::<O, R>(o, v, out.add(s * ld + i), a.m - i);
                    i += R;
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------------- columns

/// `U` vectors of neighbouring rows; the last may be partial.
#[derive(Clone, Copy)]
struct Strip<T> {
    p: *const T,
    line: isize,
    /// Rows in the last vector.
    last: usize,
}

/// What a column kernel asks for ahead of its loads: the same place this many elements further.
type Ahead = Option<isize>;

/// Lane `l` of a segment of `CHUNKS` times 64 columns (1: of at most that; 0: of any length), for
/// `U` vectors of rows.
#[inline(always)]
unsafe fn lane<O: Ops, const U: usize, const CHUNKS: usize, const WHOLE: bool>(
    o: O,
    a: Strip<O::T>,
    x: *const O::Acc,
    len: usize,
    l: usize,
    ahead: Ahead,
) -> [O::V; U] {
    // SAFETY: the caller's: a and x are good for the columns below len.
    unsafe {
        let mut acc = [o.zero(); U];
        let count = match CHUNKS {
            4 => 4,
            1 => usize::from(l < len),
            _ => len.saturating_sub(l).div_ceil(LANES),
        };
        for c in 0..count {
            let j = l + c * LANES;
            let xj = o.splat(*x.add(j));
            let p = a.p.offset(j as isize * a.line);
            for (u, acc) in acc.iter_mut().enumerate() {
                let at = p.offset(o.at(u * O::W));
                if let Some(ahead) = ahead {
                    o.prefetch(at.wrapping_offset(ahead));
                }
                let v = match WHOLE || u + 1 < U {
                    true => o.load(at),
                    false => o.load_part(at, 0, a.last),
                };
                *acc = o.fma(v, xj, *acc);
            }
        }
        acc
    }
}

/// The sums of a segment for `U` vectors of rows, kept in registers: the lanes are the leaves of
/// a binary tree, four of them unrolled, and the fours visited in bit-reversed order with the
/// partial sums of the levels above waiting. Lanes beyond the next power of two are left out.
#[inline(always)]
unsafe fn strip<O: Ops, const U: usize, const CHUNKS: usize, const WHOLE: bool>(
    o: O,
    a: Strip<O::T>,
    x: *const O::Acc,
    len: usize,
    ahead: Ahead,
) -> [O::V; U] {
    // SAFETY: the caller's: a and x are good for len columns.
    unsafe {
        let zero = o.zero();
        let fours = if CHUNKS == 4 { 16 } else { len.div_ceil(4).min(16).next_power_of_two() };
        let mut done = [zero; U];
        let mut waiting = [[zero; U]; 5];
        for q in 0..fours {
            let l = bit_reversed(q, fours.trailing_zeros());
            let leaf = |l: usize| lane::<O, U, CHUNKS, WHOLE>(o, a, x, len, l, ahead);
            // The tree pairs lanes half of all lanes apart first.
            let (first, second) = (leaf(l), leaf(l + 2 * fours));
            let low: [O::V; U] = core::array::from_fn(|u| o.add(first[u], second[u]));
            let (first, second) = (leaf(l + fours), leaf(l + 3 * fours));
            for u in 0..U {
                done[u] = o.add(low[u], o.add(first[u], second[u]));
            }
            let merges = q.trailing_ones() as usize;
            let depth = q.count_ones() as usize;
            for w in 0..merges {
                for u in 0..U {
                    done[u] = o.add(waiting[depth - 1 - w][u], done[u]);
                }
            }
            waiting[depth - merges] = done;
        }
        if CHUNKS != 4 && fours < 16 {
            // For the levels left out.
            for d in &mut done {
                *d = o.add(*d, zero);
            }
        }
        done
    }
}

/// The sums of one segment (at most 256 columns) for all rows, in registers.
pub(super) struct Strips<O: Ops, const U: usize> {
    pub(super) o: O,
    pub(super) a: Mat<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) out: *mut O::Acc,
    pub(super) ahead: Ahead,
}

impl<O: Ops, const U: usize> Body for Strips<O, U> {
    #[inline(always)]
    unsafe fn run(self) {
        let Strips { o, a, x, out, ahead } = self;
        // SAFETY: the caller's: a is good, x for n, out for m.
        unsafe {
            let mut i = 0;
            while a.m - i >= U * O::W {
                let s = Strip { p: a.p.offset(o.at(i)), line: a.line, last: O::W };
                let v = match (a.n, ahead) {
                    (SEGMENT, None) => strip::<O, U, 4, true>(o, s, x, SEGMENT, None),
                    (..=LANES, None) => strip::<O, U, 1, true>(o, s, x, a.n, None),
                    _ => strip::<O, U, 0, true>(o, s, x, a.n, Some(ahead.unwrap_or(0))),
                };
                for (u, v) in v.into_iter().enumerate() {
                    o.store(v, out.add(i + u * O::W));
                }
                i += U * O::W;
            }
            while i < a.m {
                let last = (a.m - i).min(O::W);
                let s = Strip { p: a.p.offset(o.at(i)), line: a.line, last };
                let v = match a.n {
                    ..=LANES if last == O::W => strip::<O, 1, 1, true>(o, s, x, a.n, ahead),
                    _ => strip::<O, 1, 0, false>(o, s, x, a.n, Some(ahead.unwrap_or(0))),
                };
                o.store_part(v[0], out.add(i), last);
                i += O::W;
            }
        }
    }
}

#[allow(clippy::too_many_arguments)] // registers, all of them
/// `U` vectors of rows from row i on, of one lane, in [`blocked`].
#[inline(always)]
unsafe fn block_step<O: Ops, const U: usize, const WHOLE: bool>(
    o: O,
    columns: &[(*const O::T, O::X); 4],
    count: usize,
    i: usize,
    part: usize,
    ahead: isize,
    waiting: [*const O::Acc; 6],
    merges: usize,
) -> [O::V; U] {
    // SAFETY: the caller's.
    unsafe {
        let mut acc = [o.zero(); U];
        for (p, x) in &columns[..count] {
            for (u, acc) in acc.iter_mut().enumerate() {
                let at = p.offset(o.at(i + u * O::W));
                o.prefetch(at.wrapping_offset(ahead));
                let v = if WHOLE { o.load(at) } else { o.load_part(at, 0, part) };
                *acc = o.fma(v, *x, *acc);
            }
        }
        for w in &waiting[..merges] {
            for (u, acc) in acc.iter_mut().enumerate() {
                *acc = o.add(o.load_acc(w.add(i + u * O::W)), *acc);
            }
        }
        acc
    }
}

/// The sums of one segment for all (at most a block of) rows: lane by lane in bit-reversed order,
/// the four columns of a lane in one pass over the rows, partial sums waiting on a stack of six in
/// `stack`, each of `ld` accumulators. Every load asks for what is `ahead` elements further down.
struct Blocked<O: Ops> {
    o: O,
    a: Mat<O::T>,
    x: *const O::Acc,
    stack: *mut O::Acc,
    ld: usize,
    out: *mut O::Acc,
    ahead: isize,
}

impl<O: Ops> Body for Blocked<O> {
    #[inline(always)]
    unsafe fn run(self) {
        let Blocked { o, a, x, stack, ld, out, ahead } = self;
        // SAFETY: the caller's: a is good, x for n, stack for 6 * ld, out for m, ld at least m
        // rounded up to W.
        unsafe {
            let lanes = a.n.min(LANES).next_power_of_two();
            for q in 0..lanes {
                let l = bit_reversed(q, lanes.trailing_zeros());
                let count = a.n.saturating_sub(l).div_ceil(LANES);
                let (merges, depth) = (q.trailing_ones() as usize, q.count_ones() as usize);
                let last = q + 1 == lanes;
                let to = if last { out } else { stack.add((depth - merges) * ld) };
                let columns = core::array::from_fn(|c| {
                    let j = if c < count { l + c * LANES } else { 0 };
                    (a.p.wrapping_offset(j as isize * a.line), o.splat(*x.add(j)))
                });
                let waiting = core::array::from_fn(|w| {
                    let depth = if w < merges { depth - 1 - w } else { 0 };
                    stack.add(depth * ld).cast_const()
                });
                let mut i = 0;
                while a.m - i >= 4 * O::W {
                    let v = block_step::<O, 4, true>(
                        o,
                        &columns,
                        count,
                        i,
                        O::W,
                        ahead,
                        waiting,
                        merges,
                    );
                    for (u, mut v) in v.into_iter().enumerate() {
                        if last && lanes < LANES {
                            v = o.add(v, o.zero());
                        }
                        o.store(v, to.add(i + u * O::W));
                    }
                    i += 4 * O::W;
                }
                while i < a.m {
                    let part = (a.m - i).min(O::W);
                    let v = block_step::<O, 1, false>(
                        o, &columns, count, i, part, ahead, waiting, merges,
                    );
                    let mut v = v[0];
                    if last && lanes < LANES {
                        v = o.add(v, o.zero());
                    }
                    if last {
                        o.store_part(v, to.add(i), part);
                    } else {
                        o.store(v, to.add(i));
                    }
                    i += O::W;
                }
            }
        }
    }
}

// --------------------------------------------------------------------------------- levels

/// Rule 4 for many rows: `sums` has, for each of `count` segments, `m` sums `ld` apart. What is
/// left goes to `out`; `spare` is good for `ceil(count / 256) + 2` lines.
struct Levels<S: Ops> {
    o: S,
    sums: *const S::T,
    m: usize,
    ld: usize,
    count: usize,
    spare: *mut S::Acc,
    out: *mut S::Acc,
}

impl<S: Ops<T = <S as Ops>::Acc>> Body for Levels<S> {
    #[inline(always)]
    unsafe fn run(self) {
        let Levels { o, mut sums, m, ld, mut count, mut spare, out } = self;
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
                    let to = if groups == 1 { out } else { spare.add(g * ld) };
                    Strips::<S, 2> { o, a, x: ones.as_ptr(), out: to, ahead: None }.run();
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
}

/// [`Levels`] for accumulators that may be pairs: their parts are summed as rows of their own.
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
    let (sums, spare, out) = (sums.cast(), spare.cast(), out.cast());
    let o = o.sum();
    // SAFETY: the caller's. A function of its own, shared by all types with this accumulator.
    unsafe { o.enter(Levels { o, sums, m: m * parts, ld: ld * parts, count, spare, out }) }
}

/// Rule 6 for `m` rows whose sums are there.
#[inline(always)]
unsafe fn finish<O: Ops>(sums: *const O::Acc, m: usize, at: usize, out: &Out<O>) {
    // SAFETY: the caller's: sums is good for m, y for rows at .. at + m.
    unsafe {
        let Out::Y { y, stride, alpha, beta } = *out else { return };
        let zero = <O::Acc as Accumulator>::ZERO;
        let y = y.offset(at as isize * stride);
        if beta == zero {
            for i in 0..m {
                *y.offset(i as isize * stride) = scale::<O::T>(alpha, *sums.add(i), beta, None);
            }
        } else {
            for i in 0..m {
                let y = y.offset(i as isize * stride);
                *y = scale::<O::T>(alpha, *sums.add(i), beta, Some(*y));
            }
        }
    }
}

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

/// A product whose lines are rows.
pub(super) struct Rows<'a, O: Ops>(pub(super) Product<'a, O>);
/// A product whose lines are columns.
pub(super) struct Columns<'a, O: Ops>(pub(super) Product<'a, O>);

impl<O: Ops> Body for Rows<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's.
        unsafe { self.0.rows() }
    }
}

impl<O: Ops> Body for Columns<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's.
        unsafe { self.0.columns() }
    }
}

impl<O: Ops> Product<'_, O> {
    /// Where the sums of rows `at ..` are to be put first: at their place, if nothing is left to
    /// do to them there, or at `scratch`.
    #[inline(always)]
    unsafe fn place(&self, at: usize, scratch: *mut O::Acc) -> *mut O::Acc {
        // SAFETY: the caller's: out is good for m.
        unsafe {
            match *self.out {
                Out::Sums(p) => p.add(at),
                _ => scratch,
            }
        }
    }

    #[inline(always)]
    unsafe fn rows(self) {
        // SAFETY: the caller's.
        unsafe {
            let Product { o, a, x, plan, scratch, out } = self;
            let (m, n) = (a.m, a.n);
            let one = n <= SEGMENT;
            let step = if one { LANES } else { plan.rows };
            let own = plan.rows.next_multiple_of(4);
            let partials = scratch.add(LANES.max(own));
            let mut i = 0;
            while i < m {
                let count = (m - i).min(step);
                let a = Mat { p: a.p.wrapping_offset(i as isize * a.line), m: count, ..a };
                let sums = self.place(i, scratch);
                let (to, ld) = match *out {
                    Out::Partials(p, ld) => (p.add(i), ld),
                    _ if one => (sums, 0),
                    _ => (partials, own),
                };
                if O::SHORT && n <= O::W {
                    o.enter(ShortRows::<O, 1> { o, a, x, ahead: plan.ahead, out: to });
                } else if O::SHORT && n <= 2 * O::W {
                    o.enter(ShortRows::<O, 2> { o, a, x, ahead: plan.ahead, out: to });
                } else if O::SHORT && n <= 4 * O::W {
                    o.enter(ShortRows::<O, 4> { o, a, x, ahead: plan.ahead, out: to });
                } else if O::SHORT && count == 1 {
                    o.enter(Segments::<O, 1> { o, a, x, ahead: plan.ahead, out: to, ld });
                } else {
                    o.enter(Segments::<O, 4> { o, a, x, ahead: plan.ahead, out: to, ld });
                }
                if !matches!(out, Out::Partials(..)) {
                    if !one {
                        let lines = n.div_ceil(SEGMENT);
                        levels(o, partials, count, own, lines, partials.add(lines * own), sums);
                    }
                    finish::<O>(sums, count, i, out);
                }
                i += count;
            }
        }
    }

    #[inline(always)]
    unsafe fn columns(self) {
        // SAFETY: the caller's.
        unsafe {
            let Product { o, a, x, plan, scratch, out } = self;
            let (m, n) = (a.m, a.n);
            let lines = n.div_ceil(SEGMENT);
            let step = if plan.block == 0 { 4 * O::W } else { plan.block };
            let own = column_rows(m, &plan, O::W);
            let stack = scratch.add(own);
            let partials = stack.add(6 * own);
            // Columns that begin alike are cut so that all but a few rows are read by aligned loads.
            let head = match plan.block > 0 && m >= 32 * O::W {
                true => turn_of::<O>(&a),
                false => 0,
            };
            let mut i = 0;
            while i < m {
                let rows = if i < head { head } else { (m - i).min(step) };
                let p = a.p.offset(o.at(i));
                let sums = self.place(i, scratch);
                let (to, ld) = match *out {
                    Out::Partials(p, ld) => (p.add(i), ld),
                    _ if lines == 1 => (sums, 0),
                    _ => (partials, own),
                };
                for s in 0..lines {
                    let j = s * SEGMENT;
                    let a = Mat {
                        p: p.offset(j as isize * a.line),
                        m: rows,
                        n: (n - j).min(SEGMENT),
                        line: a.line,
                    };
                    let (x, to) = (x.add(j), to.add(s * ld));
                    if plan.block > 0 && i >= head {
                        let ahead = (plan.ahead / size_of::<O::T>()) as isize;
                        o.enter(Blocked { o, a, x, stack, ld: own, out: to, ahead });
                        continue;
                    }
                    // What is read next: the next segment of these rows, or further rows.
                    let next = match s + 1 < lines {
                        true => SEGMENT as isize * a.line,
                        false => o.at(plan.ahead / size_of::<O::T>()),
                    };
                    let ahead = (plan.ahead > 0).then_some(next);
                    if O::NR == 4 {
                        o.enter(Strips::<O, 4> { o, a, x, out: to, ahead });
                    } else {
                        o.enter(Strips::<O, 2> { o, a, x, out: to, ahead });
                    }
                }
                if !matches!(out, Out::Partials(..)) {
                    if lines > 1 {
                        levels(o, partials, rows, own, lines, partials.add(lines * own), sums);
                    }
                    finish::<O>(sums, rows, i, out);
                }
                i += rows;
            }
        }
    }
}

/// Rule 4 and 6 for the partial sums of a split product.
pub(super) struct Reduction<'a, O: Ops> {
    pub(super) o: O,
    /// `count` lines of `m` sums.
    pub(super) partials: *mut O::Acc,
    pub(super) m: usize,
    pub(super) count: usize,
    /// Good for m sums, and `ceil(count / 256) + 2` lines of m.
    pub(super) scratch: *mut O::Acc,
    pub(super) out: &'a Out<O>,
}

impl<O: Ops> Body for Reduction<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's.
        unsafe {
            let to = match *self.out {
                Out::Sums(p) => p,
                _ => self.scratch,
            };
            let spare = self.scratch.add(self.m);
            levels(self.o, self.partials, self.m, self.m, self.count, spare, to);
            finish::<O>(to, self.m, 0, self.out);
        }
    }
}
