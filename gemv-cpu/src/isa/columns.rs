//! Lines across the lanes: columns whose elements are neighbours.

// Arrays of vectors go side by side: their numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use gemv_core::order::{LANES, SEGMENT};

use super::kernels::Mat;
use super::ops::{Body, Ops};

#[inline(always)]
fn bit_reversed(i: usize, bits: u32) -> usize {
    if bits == 0 { 0 } else { i.reverse_bits() >> (usize::BITS - bits) }
}

/// A vector of rows from both ends of a column: `lo..W` from `p`, `0..hi` from `q`.
#[derive(Clone, Copy)]
struct Edge<T> {
    p: *const T,
    lo: usize,
    q: *const T,
    hi: usize,
}

/// Vectors of neighbouring rows, from `p` on, and what a first vector of its own kind is.
#[derive(Clone, Copy)]
struct Strip<T> {
    p: *const T,
    line: isize,
    edge: Edge<T>,
    /// What is asked for while this is computed: the same place, this many elements further.
    ahead: isize,
}

/// Any number of columns up to a segment; a whole segment; one column a lane.
const ANY: u8 = 0;
const FULL: u8 = 1;
const ONE: u8 = 2;

/// Lane `l` of a segment of `len` columns, for `U` vectors of rows.
#[inline(always)]
unsafe fn lane<O: Ops, const U: usize, const KIND: u8, const EDGE: bool>(
    o: O,
    a: &Strip<O::T>,
    x: *const O::Acc,
    len: usize,
    l: usize,
) -> [O::V; U] {
    // SAFETY: the caller's: a and x are good for the columns below len.
    unsafe {
        let mut acc = [o.zero(); U];
        let count = match KIND {
            FULL => 4,
            ONE => 1,
            _ => len.saturating_sub(l).div_ceil(LANES),
        };
        for c in 0..count {
            let j = l + c * LANES;
            let xj = o.splat(*x.add(j));
            let at = j as isize * a.line;
            for u in 0..U {
                let v = if EDGE && u == 0 {
                    let p = o.load_part(a.edge.p.wrapping_offset(at), a.edge.lo, O::W);
                    let q = o.load_part(a.edge.q.wrapping_offset(at), 0, a.edge.hi);
                    o.merge(p, q, a.edge.hi)
                } else {
                    let u = u - usize::from(EDGE);
                    o.load(a.p.offset(at + (u * O::W) as isize * O::STEP))
                };
                acc[u] = o.fma(v, xj, acc[u]);
            }
        }
        acc
    }
}

/// The sums of a segment for `U` vectors of rows, kept in registers: the lanes are the leaves of
/// a binary tree, four of them unrolled, and the fours visited in bit-reversed order with the
/// partial sums of the levels above waiting. Lanes beyond the next power of two are left out.
#[allow(unused_assignments)] // the last four leaves nothing waiting
#[inline(always)]
unsafe fn strip<O: Ops, const U: usize, const KIND: u8, const EDGE: bool>(
    o: O,
    a: &Strip<O::T>,
    x: *const O::Acc,
    len: usize,
) -> [O::V; U] {
    // SAFETY: the caller's: a and x are good for len columns.
    unsafe {
        let zero = o.zero();
        let fours = match KIND {
            ANY => len.div_ceil(4).min(16).next_power_of_two(),
            _ => 16,
        };
        let mut done = [zero; U];
        let mut waiting = [[zero; U]; 5];
        macro_rules! four {
            ($q:expr) => {{
                let q: usize = $q;
                let l = bit_reversed(q, fours.trailing_zeros());
                // The tree pairs lanes half of all lanes apart first.
                let mut low = lane::<O, U, KIND, EDGE>(o, a, x, len, l);
                let second = lane::<O, U, KIND, EDGE>(o, a, x, len, l + 2 * fours);
                for u in 0..U {
                    low[u] = o.add(low[u], second[u]);
                }
                let first = lane::<O, U, KIND, EDGE>(o, a, x, len, l + fours);
                let second = lane::<O, U, KIND, EDGE>(o, a, x, len, l + 3 * fours);
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
                if q + 1 < fours {
                    waiting[depth - merges] = done;
                }
            }};
        }
        if KIND == ONE {
            // Little enough to be written out, which keeps what waits in registers.
            four!(0);
            four!(1);
            four!(2);
            four!(3);
            four!(4);
            four!(5);
            four!(6);
            four!(7);
            four!(8);
            four!(9);
            four!(10);
            four!(11);
            four!(12);
            four!(13);
            four!(14);
            four!(15);
            return done;
        }
        for q in 0..fours {
            four!(q);
            if a.ahead != 0 {
                ask::<O, U>(o, a, bit_reversed(q, fours.trailing_zeros()), fours, len);
            }
        }
        if KIND == ANY && fours < 16 {
            // For the levels left out.
            for d in &mut done {
                *d = o.add(*d, zero);
            }
        }
        done
    }
}

/// Columns that all find room in registers.
const FEW: usize = 16;

/// As [`strip`], of at most [`FEW`] columns.
#[inline(always)]
unsafe fn few<O: Ops>(o: O, a: &Strip<O::T>, x: *const O::Acc, len: usize) -> O::V {
    // SAFETY: the caller's: a and x are good for len columns.
    unsafe {
        let mut acc = [o.zero(); FEW];
        for (l, acc) in acc.iter_mut().enumerate() {
            if l < len {
                *acc = lane::<O, 1, ONE, true>(o, a, x, len, l)[0];
            }
        }
        let mut h = FEW / 2;
        while h > 0 {
            for l in 0..h {
                acc[l] = o.add(acc[l], acc[l + h]);
            }
            h /= 2;
        }
        // For the levels left out.
        o.add(acc[0], o.zero())
    }
}

/// Asks for what is ahead of the lanes l, l + fours, ...
#[inline(always)]
unsafe fn ask<O: Ops, const U: usize>(o: O, a: &Strip<O::T>, l: usize, fours: usize, len: usize) {
    let (size, step) = (size_of::<O::T>(), O::STEP.unsigned_abs());
    let lines = (U * O::W * size * step).div_ceil(64);
    let mut j = l;
    while j < len {
        let p = a.p.wrapping_offset(j as isize * a.line + a.ahead);
        for k in 0..lines {
            // SAFETY: prefetches do not fault.
            unsafe { o.prefetch(p.wrapping_byte_add(64 * k)) }
        }
        j += fours;
    }
}

/// The sums of one segment (at most 256 columns) for all rows, in registers. The first `head` rows
/// come before the first vector that is aligned; together with those after the last one they make a
/// vector, if it has room for both.
pub(super) struct Strips<O: Ops> {
    pub(super) o: O,
    pub(super) a: Mat<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) out: *mut O::Acc,
    pub(super) head: usize,
    pub(super) ahead: isize,
}

/// The rows of a vector that is put together: `head` of them from row `i` on, and the last `tail`.
#[derive(Clone, Copy)]
struct Ends {
    i: usize,
    head: usize,
    tail: usize,
}

impl<O: Ops> Strips<O> {
    /// `U` vectors: those ends, if `EDGE`, and the rows from `i` on.
    #[inline(always)]
    unsafe fn some<const U: usize, const EDGE: bool>(&self, i: usize, ends: Ends) {
        let Strips { o, a, x, out, ahead, .. } = self;
        // SAFETY: the caller's: a is good, x for n, out for m; the rows named are below m.
        unsafe {
            let at = |i: usize| a.p.wrapping_offset(i as isize * O::STEP);
            let (lo, tail) = (O::W - ends.head, a.m - ends.tail);
            let mut edge = Edge { p: at(0), lo, q: at(0), hi: ends.tail };
            // A part that is empty is looked for where something is.
            if ends.head > 0 {
                edge.p = at(ends.i).wrapping_offset(-(lo as isize) * O::STEP);
            }
            if ends.tail > 0 {
                edge.q = at(tail);
            }
            let rows = Strip { p: at(i), line: a.line, edge, ahead: *ahead };
            let v = match a.n {
                ..=FEW if U == 1 && O::SMALL => [few::<O>(*o, &rows, *x, a.n); U],
                LANES if U == 4 && O::SMALL => strip::<O, U, ONE, EDGE>(*o, &rows, *x, LANES),
                SEGMENT => strip::<O, U, FULL, EDGE>(*o, &rows, *x, SEGMENT),
                _ => strip::<O, U, ANY, EDGE>(*o, &rows, *x, a.n),
            };
            for u in 0..U {
                if EDGE && u == 0 {
                    o.store_part(v[0], out.wrapping_add(ends.i).wrapping_sub(lo), lo, O::W);
                    o.store_part(v[0], out.wrapping_add(tail), 0, ends.tail);
                } else {
                    o.store(v[u], out.add(i + (u - usize::from(EDGE)) * O::W));
                }
            }
        }
    }
}

impl<O: Ops> Body for Strips<O> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's.
        unsafe {
            let m = self.a.m;
            let head = self.head.min(m);
            let (mut i, mut whole, tail) = (head, (m - head) / O::W, (m - head) % O::W);
            let mut ends = Ends { i: 0, head, tail };
            if head + tail > O::W {
                self.some::<1, true>(0, Ends { tail: 0, ..ends });
                ends.head = 0;
            }
            let next = |i: usize| Ends { i, head: O::W, tail: 0 };
            if O::SMALL && self.a.n <= FEW {
                self.some::<1, true>(0, ends);
                while m - tail - i >= O::W {
                    self.some::<1, true>(0, next(i));
                    i += O::W;
                }
                return;
            }
            if ends.head + ends.tail == 0 && whole % 4 != 0 {
                ends = next(i);
                i += O::W;
                whole -= 1;
            }
            if ends.head + ends.tail > 0 {
                match whole % 4 {
                    0 => self.some::<1, true>(0, ends),
                    1 => self.some::<2, true>(i, ends),
                    2 => {
                        self.some::<1, true>(0, ends);
                        self.some::<2, true>(i + O::W, next(i));
                    }
                    _ => self.some::<4, true>(i, ends),
                }
                i += whole % 4 * O::W;
            }
            while m - tail - i >= 4 * O::W {
                self.some::<4, false>(i, ends);
                i += 4 * O::W;
            }
        }
    }
}

/// `U` vectors of rows from row i on, of one lane, in [`Blocked`]; of some lanes if not `WHOLE`.
#[allow(clippy::too_many_arguments)] // registers, all of them
#[inline(always)]
unsafe fn block_step<O: Ops, const U: usize, const WHOLE: bool>(
    o: O,
    columns: &[(*const O::T, O::X); 4],
    count: usize,
    i: usize,
    part: (usize, usize),
    ahead: isize,
    waiting: [*const O::Acc; 6],
    merges: usize,
) -> [O::V; U] {
    // SAFETY: the caller's.
    unsafe {
        let mut acc = [o.zero(); U];
        for (p, x) in &columns[..count] {
            for u in 0..U {
                let at = p.wrapping_offset((i + u * O::W) as isize * O::STEP);
                o.prefetch(at.wrapping_offset(ahead));
                let v = if WHOLE { o.load(at) } else { o.load_part(at, part.0, part.1) };
                acc[u] = o.fma(v, *x, acc[u]);
            }
        }
        for w in &waiting[..merges] {
            for u in 0..U {
                acc[u] = o.add(o.load_acc(w.add(i + u * O::W)), acc[u]);
            }
        }
        acc
    }
}

/// The sums of one segment for all (at most a block of) rows: lane by lane in bit-reversed order,
/// the four columns of a lane in one pass over the rows, partial sums waiting on a stack of six in
/// `stack`, each of `ld` accumulators. Every load asks for what is `ahead` elements further down.
///
/// The rows are counted from the last place before row 0 that is aligned: the first `lo` of them
/// are not there.
pub(super) struct Blocked<O: Ops> {
    pub(super) o: O,
    pub(super) a: Mat<O::T>,
    pub(super) lo: usize,
    pub(super) x: *const O::Acc,
    pub(super) stack: *mut O::Acc,
    pub(super) ld: usize,
    pub(super) out: *mut O::Acc,
    pub(super) ahead: isize,
}

impl<O: Ops> Body for Blocked<O> {
    #[inline(always)]
    unsafe fn run(self) {
        let Blocked { o, a, lo, x, stack, ld, out, ahead } = self;
        // SAFETY: the caller's: a is good, x for n, stack for 6 * ld, out for m, ld at least lo + m
        // rounded up to W.
        unsafe {
            let lanes = a.n.min(LANES).next_power_of_two();
            let (base, end) = (a.p.wrapping_offset(-(lo as isize) * O::STEP), lo + a.m);
            for q in 0..lanes {
                let l = bit_reversed(q, lanes.trailing_zeros());
                let count = a.n.saturating_sub(l).div_ceil(LANES);
                let (merges, depth) = (q.trailing_ones() as usize, q.count_ones() as usize);
                let last = q + 1 == lanes;
                let to = match last {
                    true => out.wrapping_sub(lo),
                    false => stack.add((depth - merges) * ld),
                };
                let mut columns = [(base, o.splat(*x)); 4];
                for (c, column) in columns.iter_mut().enumerate().take(count) {
                    let j = l + c * LANES;
                    *column = (base.wrapping_offset(j as isize * a.line), o.splat(*x.add(j)));
                }
                let waiting = core::array::from_fn(|w| {
                    let depth = if w < merges { depth - 1 - w } else { 0 };
                    stack.add(depth * ld).cast_const()
                });
                // For the levels left out, if there are any.
                let left_out = last && lanes < LANES;
                let mut i = 0;
                while i < end {
                    if (lo == 0 || i > 0) && end - i >= 4 * O::W {
                        let whole = (0, O::W);
                        let v = block_step::<O, 4, true>(
                            o, &columns, count, i, whole, ahead, waiting, merges,
                        );
                        for (u, mut v) in v.into_iter().enumerate() {
                            if left_out {
                                v = o.add(v, o.zero());
                            }
                            o.store(v, to.wrapping_add(i + u * O::W));
                        }
                        i += 4 * O::W;
                        continue;
                    }
                    let part = (if i == 0 { lo } else { 0 }, (end - i).min(O::W));
                    let mut v = block_step::<O, 1, false>(
                        o, &columns, count, i, part, ahead, waiting, merges,
                    );
                    if left_out {
                        v[0] = o.add(v[0], o.zero());
                    }
                    if last {
                        o.store_part(v[0], to.wrapping_add(i), part.0, part.1);
                    } else {
                        o.store(v[0], to.add(i));
                    }
                    i += O::W;
                }
            }
        }
    }
}

/// The sums of one segment for all (at most a block of) rows: column after column, as they lie in
/// memory, the sums of all 64 lanes in the nearest cache: `sums` is good for 64 times `ld`, which is
/// m rounded up to W. For columns so short that the memory would see no streams otherwise.
///
/// `streams` segments take turns, `gap` segments of the matrix apart: each has its sums behind those
/// of the one before, and its result `gap` times `out_ld` further.
pub(super) struct Laned<O: Ops> {
    pub(super) streams: usize,
    pub(super) gap: usize,
    pub(super) out_ld: usize,
    pub(super) o: O,
    pub(super) a: Mat<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) sums: *mut O::Acc,
    pub(super) ld: usize,
    pub(super) out: *mut O::Acc,
    /// Elements further down that every load asks for.
    pub(super) ahead: isize,
}

impl<O: Ops> Body for Laned<O> {
    #[inline(always)]
    unsafe fn run(self) {
        let Laned { o, a, x, sums, ld, out, ahead, streams, gap, out_ld } = self;
        // SAFETY: the caller's: a is good, x for n, out for m, each in every stream.
        unsafe {
            let lanes = a.n.min(LANES).next_power_of_two();
            for j in 0..a.n.max(lanes) {
                for s in 0..streams {
                    let to = sums.add((s * LANES + j % LANES) * ld);
                    // A lane without a column.
                    if j >= a.n {
                        for i in (0..a.m).step_by(O::W) {
                            o.store(o.zero(), to.add(i));
                        }
                        continue;
                    }
                    let column = s * gap * SEGMENT + j;
                    let xj = o.splat(*x.add(column));
                    let p = a.p.wrapping_offset(column as isize * a.line);
                    let mut i = 0;
                    while i < a.m {
                        let at = p.wrapping_offset(i as isize * O::STEP);
                        o.prefetch(at.wrapping_offset(ahead));
                        let v = match a.m - i >= O::W {
                            true => o.load(at),
                            false => o.load_part(at, 0, a.m - i),
                        };
                        let sum = if j < LANES { o.zero() } else { o.load_acc(to.add(i)) };
                        o.store(o.fma(v, xj, sum), to.add(i));
                        i += O::W;
                    }
                }
            }
            for s in 0..streams {
                let (sums, out) = (sums.add(s * LANES * ld), out.add(s * gap * out_ld));
                let mut h = lanes / 2;
                while h > 0 {
                    for l in 0..h {
                        let (to, from) = (sums.add(l * ld), sums.add((l + h) * ld));
                        for i in (0..a.m).step_by(O::W) {
                            let sum = o.add(o.load_acc(to.add(i)), o.load_acc(from.add(i)));
                            o.store(sum, to.add(i));
                        }
                    }
                    h /= 2;
                }
                for i in (0..a.m).step_by(O::W) {
                    let mut v = o.load_acc(sums.add(i));
                    if lanes < LANES {
                        // For the levels left out.
                        v = o.add(v, o.zero());
                    }
                    o.store_part(v, out.add(i), 0, (a.m - i).min(O::W));
                }
            }
        }
    }
}
