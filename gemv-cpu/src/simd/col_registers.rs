//! The column kernel whose sums stay in registers: a vector holds neighbouring rows of a column.

// Arrays of vectors are indexed together: the numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use core::mem::MaybeUninit;

use gemv_core::order::LANES;

use super::ops::{Body, Ops};
use super::window::{Window, bit_reversed};

/// A vector of rows from both ends of a column: `lo..W` from `p`, `0..hi` from `q`.
#[derive(Clone, Copy)]
struct Edge<T> {
    p: *const T,
    lo: usize,
    q: *const T,
    hi: usize,
}

/// The first vector of a strip: like the others; of rows from the end of a column; of rows from both ends.
const WHOLE: u8 = 0;
const TAIL: u8 = 1;
const BOTH: u8 = 2;

/// Vectors of neighbouring rows; `p` is the first of them in the first column.
#[derive(Clone, Copy)]
struct Strip<T> {
    p: *const T,
    line: isize,
    /// The partial vector, if there is one: the first.
    edge: Edge<T>,
    /// The distance of prefetches in elements, 0 for none.
    prefetch: isize,
}

/// The columns of four lanes, if the compiler does not know their number.
const ANY: usize = 0;
/// The columns of four lanes of a whole segment.
const FULL: usize = 16;

/// The additions of a segment for `U` vectors of rows. The lanes are the leaves of a binary tree. Four leaves are
/// written out; the groups of four come in bit-reversed order, with the partial sums of the levels above pending.
/// Lanes beyond the next power of two are absent.
struct Tree<'a, O: Ops, const U: usize, const KIND: u8> {
    o: O,
    a: &'a Strip<O::T>,
    x: *const O::Acc,
    len: usize,
    /// The logarithm of a quarter of the lanes present.
    log: u32,
}

impl<O: Ops, const U: usize, const KIND: u8> Tree<'_, O, U, KIND> {
    /// Whether each number of columns of four lanes has code of its own.
    const EACH: bool = O::UNROLLS && (KIND == WHOLE || KIND == TAIL && U > 2 && O::PASS_LANES == 4);

    /// Adds column j to its lane; its elements are `at` from those of the first column.
    #[inline(always)]
    unsafe fn column(&self, j: usize, at: isize, acc: &mut [O::V; U]) {
        let Tree { o, a, x, .. } = self;
        // SAFETY: the caller's: column j is there.
        unsafe {
            let xj = o.splat(*x.add(j));
            for u in 0..U {
                let v = if u == 0 && KIND == BOTH {
                    let p = o.load_part(a.edge.p.wrapping_offset(at), a.edge.lo, O::W);
                    let q = o.load_part(a.edge.q.wrapping_offset(at), 0, a.edge.hi);
                    o.merge(p, q, a.edge.hi)
                } else if u == 0 && KIND == TAIL {
                    o.load_part(a.edge.q.wrapping_offset(at), 0, a.edge.hi)
                } else {
                    let u = if KIND == WHOLE { u } else { u - 1 };
                    o.load(a.p.wrapping_offset(at + (u * O::W) as isize * O::STEP))
                };
                acc[u] = o.fma(v, xj, acc[u]);
            }
        }
    }

    /// The sum of lanes l, l + 2^log, ..., which have `T` columns between them. No branch in it: the compiler would
    /// move the additions behind the last branch, and the sums out of the registers.
    #[inline(always)]
    unsafe fn four<const T: usize>(&self, l: usize) -> [O::V; U] {
        let o = self.o;
        let (apart, chunk) = ((1 << self.log) * self.a.line, LANES as isize * self.a.line);
        let first = l as isize * self.a.line;
        // SAFETY: the caller's: a and x are good for the columns below len.
        unsafe {
            let mut lanes = [[o.zero(); U]; 4];
            // The tree first pairs lanes that are half of all lanes apart.
            for (lane, r) in lanes.iter_mut().zip([0, 2, 1, 3]) {
                let (mut j, mut at) = (l + (r << self.log), first + r as isize * apart);
                if T == ANY {
                    while j < self.len {
                        self.column(j, at, lane);
                        (j, at) = (j + LANES, at + chunk);
                    }
                } else {
                    // The lower lanes have one more, if not all have the same.
                    for _ in 0..T / 4 + usize::from(r < T % 4) {
                        self.column(j, at, lane);
                        (j, at) = (j + LANES, at + chunk);
                    }
                }
            }
            let mut sum = lanes[0];
            for u in 0..U {
                let low = o.add(lanes[0][u], lanes[1][u]);
                sum[u] = o.add(low, o.add(lanes[2][u], lanes[3][u]));
            }
            sum
        }
    }

    #[inline(always)]
    unsafe fn add(&self, mut a: [O::V; U], b: [O::V; U]) -> [O::V; U] {
        for u in 0..U {
            // SAFETY: `o` exists.
            a[u] = unsafe { self.o.add(a[u], b[u]) };
        }
        a
    }

    /// The sum of lanes l, l + `EVERY`, ..., of one column each, of which `K` are present. The tree is written out,
    /// so that its sums stay in registers.
    #[inline(always)]
    unsafe fn part<const K: usize, const EVERY: usize>(&self, l: usize) -> [O::V; U] {
        let (first, step) = (l as isize * self.a.line, EVERY as isize * self.a.line);
        macro_rules! sum {
            ($t:literal) => {{
                let mut lane = [self.o.zero(); U];
                self.column(l + $t * EVERY, first + $t * step, &mut lane);
                lane
            }};
            // Of two nodes; the upper one begins with lane t and may be absent.
            (($($low:tt)+) $t:literal ($($high:tt)+)) => {{
                let low = sum!($($low)+);
                if const { $t < K } { self.add(low, sum!($($high)+)) } else { low }
            }};
        }
        // SAFETY: the caller's.
        unsafe {
            sum!(
                (
                    (((0) 8 (8)) 4 ((4) 12 (12)))
                    2
                    (((2) 10 (10)) 6 ((6) 14 (14)))
                )
                1
                (
                    (((1) 9 (9)) 5 ((5) 13 (13)))
                    3
                    (((3) 11 (11)) 7 ((7) 15 (15)))
                )
            )
        }
    }

    /// The sums of all lanes, none of which has more than one column: `EVERY` parts of the tree in sequence.
    #[inline(always)]
    unsafe fn parts<const EVERY: usize>(&self) -> [O::V; U] {
        let (o, len) = (self.o, self.len);
        macro_rules! part {
            ($l:ident, $($k:literal)*) => {
                match (len - $l).div_ceil(EVERY) {
                    $($k => self.part::<$k, EVERY>($l),)*
                    _ => unreachable!("as many as there are parts for"),
                }
            };
        }
        // SAFETY: the caller's.
        unsafe {
            let mut sum = [o.zero(); U];
            if EVERY == 1 {
                let l = 0;
                sum = part!(l, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
            } else {
                let mut low = sum;
                for (q, l) in [0, 2, 1, 3].into_iter().enumerate() {
                    let part = part!(l, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
                    if self.a.prefetch != 0 {
                        self.prefetch(l, EVERY);
                    }
                    match q {
                        0 | 2 => sum = part,
                        1 => low = self.add(sum, part),
                        _ => sum = self.add(low, self.add(sum, part)),
                    }
                }
            }
            if len < LANES {
                // For the absent lanes.
                sum = self.add(sum, [o.zero(); U]);
            }
            sum
        }
    }

    /// The sums of all lanes.
    #[inline(always)]
    unsafe fn sums(&self) -> [O::V; U] {
        let (o, len, log) = (self.o, self.len, self.log);
        // SAFETY: the caller's.
        unsafe {
            let mut done = [o.zero(); U];
            let mut pending = [const { MaybeUninit::<[O::V; U]>::uninit() }; 5];
            let mut depth = 0;
            for q in 0..1 << log {
                let l = bit_reversed(q, log + 2) >> 2;
                macro_rules! fours {
                    ($($t:literal)*) => {
                        match (len - l + (1 << log) - 1) >> log {
                            16 if O::INTERLEAVES => self.four::<FULL>(l),
                            4 if O::UNROLLS => self.four::<4>(l),
                            _ if const { !Self::EACH } => self.four::<ANY>(l),
                            $($t => self.four::<$t>(l),)*
                            _ => self.four::<ANY>(l),
                        }
                    };
                }
                done = fours!(5 6 7 8 9 10 11 12 13 14 15);
                let mut level = q;
                while level & 1 == 1 {
                    depth -= 1;
                    let earlier = pending[depth].assume_init();
                    for u in 0..U {
                        done[u] = o.add(earlier[u], done[u]);
                    }
                    level >>= 1;
                }
                pending[depth].write(done);
                depth += 1;
                if self.a.prefetch != 0 {
                    self.prefetch(l, 1 << log);
                }
            }
            if len < LANES {
                // For the absent lanes.
                for d in &mut done {
                    *d = o.add(*d, o.zero());
                }
            }
            done
        }
    }

    /// Prefetches for columns l, l + every, ...
    #[inline(always)]
    unsafe fn prefetch(&self, l: usize, every: usize) {
        let Tree { o, a, len, .. } = self;
        let bytes = U * O::W * size_of::<O::T>() * O::STEP.unsigned_abs();
        for j in (l..*len).step_by(every) {
            let p = a.p.wrapping_offset(j as isize * a.line + a.prefetch);
            for at in (0..bytes).step_by(64) {
                // SAFETY: prefetches do not fault.
                unsafe { o.prefetch(p.wrapping_byte_add(at)) }
            }
        }
    }
}

/// The sums of one segment (at most 256 columns) for all rows, in registers. The first `head` rows, no more than
/// there are, come before the first aligned vector.
///
/// If the head and the last rows fit one vector, they are computed as one. Else a partial vector is a masked one.
/// Where masks are slow, it is computed together with some of the rows before it, a second time and to the same bits.
pub(super) struct ColRegisters<O: Ops> {
    pub(super) o: O,
    pub(super) a: Window<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) out: *mut O::Acc,
    pub(super) head: usize,
    pub(super) prefetch: isize,
}

/// The columns of a segment: at most a quarter of the lanes have one; four or more, and no lane more than one; any
/// number.
const FEW: u8 = 0;
const SHORT: u8 = 1;
const LONG: u8 = 2;

/// `U` vectors of rows: the partial vector, if there is one, and the rows from `i` on.
///
/// Each kind is a function of its own: in a common one, the compiler computes the addresses of all kinds first.
#[derive(Clone, Copy)]
struct Piece<'a, O: Ops, const U: usize, const KIND: u8, const COLUMNS: u8> {
    all: &'a ColRegisters<O>,
    i: usize,
    head: usize,
    tail: usize,
}

impl<O: Ops, const U: usize, const KIND: u8, const COLUMNS: u8> Body
    for Piece<'_, O, U, KIND, COLUMNS>
{
    #[inline(always)]
    unsafe fn run(self) {
        let Piece { all, i, head, tail } = self;
        let ColRegisters { o, a, x, out, prefetch, .. } = *all;
        let at = |i: usize| a.p.wrapping_offset(i as isize * O::STEP);
        let lo = O::W - head;
        // The last rows of all, or those behind the other vectors.
        let end = if KIND == BOTH { a.m - tail } else { i + (U - 1) * O::W };
        // An empty part takes its address from the other one.
        let before = if head > 0 { -(lo as isize) * O::STEP } else { 0 };
        let edge = Edge { p: at(0).wrapping_offset(before), lo, q: at(end), hi: tail };
        let strip = Strip { p: at(i), line: a.line, edge, prefetch };
        let log = a.n.div_ceil(4).next_power_of_two().min(LANES / 4).trailing_zeros();
        // SAFETY: the caller's: a is good, x for n, out for m; the rows named are below m.
        unsafe {
            let tree = Tree::<O, U, KIND> { o, a: &strip, x, len: a.n, log };
            let v = match COLUMNS {
                FEW => tree.parts::<1>(),
                SHORT => tree.parts::<4>(),
                _ => tree.sums(),
            };
            for u in 0..U {
                if u == 0 && KIND != WHOLE {
                    if KIND == BOTH {
                        o.store_part(v[0], out.wrapping_sub(lo), lo, O::W);
                    }
                    o.store_part(v[0], out.wrapping_add(end), 0, tail);
                } else {
                    let u = if KIND == WHOLE { u } else { u - 1 };
                    o.store(v[if KIND == WHOLE { u } else { u + 1 }], out.add(i + u * O::W));
                }
            }
        }
    }
}

impl<O: Ops> ColRegisters<O> {
    #[inline(always)]
    unsafe fn piece<const U: usize, const KIND: u8>(&self, i: usize, head: usize, tail: usize) {
        // SAFETY: the caller's.
        unsafe {
            // Constant conditions: what never runs is not compiled.
            if const { !O::UNROLLS } {
                return Piece::<O, U, KIND, LONG> { all: self, i, head, tail }.run();
            }
            if const { U <= 2 && KIND == TAIL } && self.a.n <= LANES / 4 {
                self.o.enter(Piece::<O, U, KIND, FEW> { all: self, i, head, tail });
            } else if const { KIND != BOTH } && (4..=LANES).contains(&self.a.n) {
                self.o.enter(Piece::<O, U, KIND, SHORT> { all: self, i, head, tail });
            } else {
                self.o.enter(Piece::<O, U, KIND, LONG> { all: self, i, head, tail });
            }
        }
    }

    /// Rows `at .. end`, some vectors at a time; the last vector may be partial.
    #[inline(always)]
    unsafe fn tiles(&self, mut at: usize, end: usize) {
        // SAFETY: the caller's: rows below m.
        unsafe {
            while at < end {
                let left = (end - at).div_ceil(O::W);
                let tail = end - at - (left - 1) * O::W;
                match left {
                    1 => return self.piece::<1, TAIL>(at, 0, tail),
                    2 => return self.piece::<2, TAIL>(at, 0, tail),
                    3 if const { O::PASS_LANES == 4 } => return self.piece::<3, TAIL>(at, 0, tail),
                    5 if const { O::PASS_LANES == 4 } => return self.piece::<5, TAIL>(at, 0, tail),
                    4 if const { O::PASS_LANES == 4 } && tail < O::W => {
                        return self.piece::<4, TAIL>(at, 0, tail);
                    }
                    // There are no registers for more.
                    3 | 4 if const { O::PASS_LANES != 4 } => {
                        self.piece::<2, TAIL>(at, 0, O::W);
                        at += 2 * O::W;
                        continue;
                    }
                    _ => self.piece::<4, WHOLE>(at, 0, 0),
                }
                at += 4 * O::W;
            }
        }
    }
}

impl<O: Ops> Body for ColRegisters<O> {
    #[inline(always)]
    unsafe fn run(self) {
        let (m, w, head) = (self.a.m, O::W, self.head);
        // SAFETY: the caller's; i is at least so many vectors below m.
        unsafe {
            if m < w && !O::UNROLLS {
                return self.piece::<1, TAIL>(0, 0, m);
            }
            let (mut at, mut end) = (0, m);
            if head > 0 {
                // The head and the tail make one vector, if it has enough lanes.
                let (whole, tail) = ((m - head) / w, (m - head) % w);
                let joined = if head + tail > w { 0 } else { tail };
                if whole % 4 == 3 && O::INTERLEAVES {
                    self.piece::<4, BOTH>(head, head, joined);
                    at = head + 3 * w;
                } else {
                    self.piece::<1, BOTH>(0, head, joined);
                    at = head;
                }
                end -= joined;
            }
            if const { O::UNROLLS } {
                return self.tiles(at, end);
            }
            while at < end {
                let left = (end - at).div_ceil(w);
                if O::INTERLEAVES && left >= 2 && end >= 4 * w {
                    let i = at.min(end - 4 * w);
                    self.piece::<4, WHOLE>(i, 0, 0);
                    at = i + 4 * w;
                } else {
                    let i = at.min(end - w);
                    self.piece::<1, WHOLE>(i, 0, 0);
                    at = i + w;
                }
            }
        }
    }
}
