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

/// How many of the `T` columns of `P` lanes, visited one after another, lane `k` of them has. Of such
/// lanes the lower ones have one more, if not all have the same.
const fn columns_of<const P: usize, const T: usize>(k: usize) -> usize {
    // Lanes l, l + 32, l + 16, l + 48, or the first of these.
    let rank = if P == 4 { [0, 2, 1, 3][k] } else { k };
    T / P + (rank < T % P) as usize
}

/// A column from its first row, and its entry of x.
type Column<O> = (*const <O as Ops>::T, <O as Ops>::X);

/// A pass of [`Blocked`] over all rows: `P` lanes with `T` columns.
struct Pass<O: Ops, const P: usize, const T: usize> {
    o: O,
    columns: [[Column<O>; 4]; P],
    /// Sums that wait for those of this pass, the last ones first.
    waiting: [*const O::Acc; 6],
}

impl<O: Ops, const P: usize, const T: usize> Pass<O, P, T> {
    /// `U` vectors of rows from row i on; of some rows of a vector if not `WHOLE`.
    #[inline(always)]
    unsafe fn step<const U: usize, const WHOLE: bool>(
        &self,
        i: usize,
        part: (usize, usize),
        merges: usize,
        ahead: isize,
    ) -> [O::V; U] {
        let o = self.o;
        // SAFETY: the caller's.
        unsafe {
            let mut lanes = [[o.zero(); U]; P];
            for k in 0..P {
                for c in 0..columns_of::<P, T>(k) {
                    let (p, x) = self.columns[k][c];
                    for u in 0..U {
                        let at = p.wrapping_offset((i + u * O::W) as isize * O::STEP);
                        if ahead != 0 {
                            o.prefetch(at.wrapping_offset(ahead));
                        }
                        let v = if WHOLE { o.load(at) } else { o.load_part(at, part.0, part.1) };
                        lanes[k][u] = o.fma(v, x, lanes[k][u]);
                    }
                }
            }
            // In this order of visits the halving adds neighbours.
            let mut h = 1;
            while h < P {
                for k in (0..P).step_by(2 * h) {
                    for u in 0..U {
                        lanes[k][u] = o.add(lanes[k][u], lanes[k + h][u]);
                    }
                }
                h *= 2;
            }
            let mut acc = lanes[0];
            for w in &self.waiting[..merges] {
                for u in 0..U {
                    acc[u] = o.add(o.load_acc(w.add(i + u * O::W)), acc[u]);
                }
            }
            acc
        }
    }
}

/// The sums of one segment for all (at most a block of) rows: in bit-reversed order of the lanes,
/// [`Ops::AT_ONCE`] lanes with their columns in one pass over the rows, partial sums waiting on a stack in
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

impl<O: Ops> Blocked<O> {
    /// The `q`-th of the passes over `lanes / P` groups of lanes, by `U` vectors.
    #[inline(always)]
    unsafe fn pass<const P: usize, const T: usize, const U: usize>(&self, q: usize, lanes: usize) {
        let Blocked { o, a, lo, x, stack, ld, out, ahead } = *self;
        // SAFETY: the caller's, and `run`'s.
        unsafe {
            let (base, end) = (a.p.wrapping_offset(-(lo as isize) * O::STEP), lo + a.m);
            let (merges, depth) = (q.trailing_ones() as usize, q.count_ones() as usize);
            let last = q + 1 == lanes / P;
            let to = match last {
                true => out.wrapping_sub(lo),
                false => stack.add((depth - merges) * ld),
            };
            let mut columns = [[(base, o.splat(*x)); 4]; P];
            for k in 0..P {
                let l = bit_reversed(q * P + k, lanes.trailing_zeros());
                for c in 0..columns_of::<P, T>(k) {
                    let j = l + c * LANES;
                    columns[k][c] = (base.wrapping_offset(j as isize * a.line), o.splat(*x.add(j)));
                }
            }
            let waiting = core::array::from_fn(|w| {
                let depth = if w < merges { depth - 1 - w } else { 0 };
                stack.add(depth * ld).cast_const()
            });
            let pass = Pass::<O, P, T> { o, columns, waiting };
            // For the levels left out, if there are any.
            let left_out = last && lanes < LANES;
            let mut i = 0;
            while i < end {
                if (lo == 0 || i > 0) && end - i >= U * O::W {
                    i = match (merges, ahead) {
                        // As often as all others together, and in the caches.
                        (0, 0) if T == 4 * P => pass.whole::<U>(i, end, to, 0, 0, left_out),
                        (1, 0) if T == 4 * P => pass.whole::<U>(i, end, to, 1, 0, left_out),
                        _ => pass.whole::<U>(i, end, to, merges, ahead, left_out),
                    };
                    continue;
                }
                let part = (if i == 0 { lo } else { 0 }, (end - i).min(O::W));
                let mut v = pass.step::<1, false>(i, part, merges, ahead);
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

impl<O: Ops, const P: usize, const T: usize> Pass<O, P, T> {
    /// Rows `i .. end`, as far as there are `U` vectors of them. Gives the first row that is left.
    #[inline(always)]
    unsafe fn whole<const U: usize>(
        &self,
        mut i: usize,
        end: usize,
        to: *mut O::Acc,
        merges: usize,
        ahead: isize,
        left_out: bool,
    ) -> usize {
        let o = self.o;
        // SAFETY: the caller's.
        unsafe {
            while end - i >= U * O::W {
                let v = self.step::<U, true>(i, (0, O::W), merges, ahead);
                for (u, mut v) in v.into_iter().enumerate() {
                    if left_out {
                        v = o.add(v, o.zero());
                    }
                    o.store(v, to.wrapping_add(i + u * O::W));
                }
                i += U * O::W;
            }
            i
        }
    }
}

impl<O: Ops> Body for Blocked<O> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's: a is good, x for n, stack for 6 * ld, out for m, ld at least lo + m
        // rounded up to W.
        unsafe {
            let n = self.a.n;
            let lanes = n.min(LANES).next_power_of_two();
            let at_once = if lanes < O::AT_ONCE { 1 } else { O::AT_ONCE };
            for q in 0..lanes / at_once {
                let mut columns = 0;
                for k in 0..at_once {
                    let l = bit_reversed(q * at_once + k, lanes.trailing_zeros());
                    columns += n.saturating_sub(l).div_ceil(LANES);
                }
                macro_rules! passes {
                    ($p:literal, $u:literal: $($t:literal)*) => {
                        match columns {
                            $($t => self.pass::<$p, $t, $u>(q, lanes),)*
                            _ => unreachable!("four of each lane"),
                        }
                    };
                }
                // Pruned for all but the one that O has, and the first.
                if O::AT_ONCE == 4 && at_once == 4 {
                    passes!(4, 2: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
                } else if O::AT_ONCE == 2 && at_once == 2 {
                    passes!(2, 4: 0 1 2 3 4 5 6 7 8)
                } else {
                    passes!(1, 4: 0 1 2 3 4)
                }
            }
        }
    }
}

/// The sums of one whole segment for all (at most a block of) rows, which are few: the columns as they
/// lie in memory, those of four lanes that are added to each other first side by side, so that sixteen
/// streams are read. The sums of a quarter of the lanes are kept in `quarter`, 16 lines of `ld`
/// accumulators, in the nearest cache. Every load asks for what is `ahead` elements further down.
pub(super) struct Short<O: Ops> {
    pub(super) o: O,
    pub(super) a: Mat<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) quarter: *mut O::Acc,
    pub(super) ld: usize,
    pub(super) out: *mut O::Acc,
    pub(super) ahead: isize,
}

impl<O: Ops> Body for Short<O> {
    #[inline(always)]
    unsafe fn run(self) {
        const QUARTER: usize = LANES / 4;
        let Short { o, a, x, quarter, ld, out, ahead } = self;
        // SAFETY: the caller's: a is good, x for a segment, out for m, quarter for 16 * ld, ld at least
        // m rounded up to W.
        unsafe {
            for l in 0..QUARTER {
                for i in (0..a.m).step_by(O::W) {
                    let p = a.p.wrapping_offset(i as isize * O::STEP);
                    let hi = (a.m - i).min(O::W);
                    let mut lanes = [o.zero(); 4];
                    for k in 0..4 {
                        for c in 0..4 {
                            let j = l + k * QUARTER + c * LANES;
                            let at = p.wrapping_offset(j as isize * a.line);
                            if ahead != 0 {
                                o.prefetch(at.wrapping_offset(ahead));
                            }
                            lanes[k] = o.fma(o.load_part(at, 0, hi), o.splat(*x.add(j)), lanes[k]);
                        }
                    }
                    let sum = o.add(o.add(lanes[0], lanes[2]), o.add(lanes[1], lanes[3]));
                    o.store(sum, quarter.add(l * ld + i));
                }
            }
            for i in (0..a.m).step_by(O::W) {
                let mut sums = [o.zero(); QUARTER];
                for l in 0..QUARTER {
                    sums[l] = o.load_acc(quarter.add(l * ld + i));
                }
                let mut h = QUARTER / 2;
                while h > 0 {
                    for l in 0..h {
                        sums[l] = o.add(sums[l], sums[l + h]);
                    }
                    h /= 2;
                }
                o.store_part(sums[0], out.add(i), 0, (a.m - i).min(O::W));
            }
        }
    }
}
