//! Lines across the lanes: columns whose sums stay in registers.

// Arrays of vectors go side by side: their numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use core::mem::MaybeUninit;

use gemv_core::order::LANES;

use super::kernels::{Mat, visited};
use super::ops::{Body, Ops};

/// A vector of rows from both ends of a column: `lo..W` from `p`, `0..hi` from `q`.
#[derive(Clone, Copy)]
struct Edge<T> {
    p: *const T,
    lo: usize,
    q: *const T,
    hi: usize,
}

/// What the first vector of a strip is: as the others; of rows from the end of a column; of rows from both.
const WHOLE: u8 = 0;
const TAIL: u8 = 1;
const BOTH: u8 = 2;

/// Vectors of neighbouring rows, from `p` in the first column on.
#[derive(Clone, Copy)]
struct Strip<T> {
    p: *const T,
    line: isize,
    /// The vector that is not whole, if there is one: the first.
    edge: Edge<T>,
    /// What is asked for while this is computed: the same place, this many elements further.
    ahead: isize,
}

/// Columns that four lanes have, known to the compiler, but for any number of them.
const ANY: usize = 0;
/// Those of a whole segment.
const FULL: usize = 16;

/// The additions of a segment for `U` vectors of rows: the lanes
/// are the leaves of a binary tree, four of them written out, and the fours visited in bit-reversed order
/// with the partial sums of the levels above waiting. Lanes beyond the next power of two are left out.
struct Tree<'a, O: Ops, const U: usize, const KIND: u8> {
    o: O,
    a: &'a Strip<O::T>,
    x: *const O::Acc,
    len: usize,
    /// Of a quarter of the lanes that are visited, the logarithm.
    log: u32,
}

impl<O: Ops, const U: usize, const KIND: u8> Tree<'_, O, U, KIND> {
    /// What column j adds to its lane; its elements are `at` from those of the first column.
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

    /// The sum of lanes l, l + fours, ..., which have `T` columns between them. No branch in it: the
    /// compiler would move the additions behind the last one, and the sums out of the registers.
    #[inline(always)]
    unsafe fn four<const T: usize>(&self, l: usize) -> [O::V; U] {
        let o = self.o;
        let (apart, chunk) = ((1 << self.log) * self.a.line, LANES as isize * self.a.line);
        let first = l as isize * self.a.line;
        // SAFETY: the caller's: a and x are good for the columns below len.
        unsafe {
            let mut lanes = [[o.zero(); U]; 4];
            // The tree pairs lanes half of all lanes apart first.
            for (lane, r) in lanes.iter_mut().zip([0, 2, 1, 3]) {
                let (mut j, mut at) = (l + (r << self.log), first + r as isize * apart);
                if T == ANY {
                    while j < self.len {
                        self.column(j, at, lane);
                        (j, at) = (j + LANES, at + chunk);
                    }
                } else {
                    // The lower ones have one more, if not all have the same.
                    for _ in 0..T / 4 + usize::from(r < T % 4) {
                        self.column(j, at, lane);
                        (j, at) = (j + LANES, at + chunk);
                    }
                }
            }
            let mut sum = lanes[0];
            for u in 0..U {
                // Lanes that are not there are not added: +0 is, at the end.
                match T {
                    1 => {}
                    2 => sum[u] = o.add(sum[u], lanes[2][u]),
                    3 => sum[u] = o.add(o.add(sum[u], lanes[1][u]), lanes[2][u]),
                    _ => {
                        let low = o.add(lanes[0][u], lanes[1][u]);
                        sum[u] = o.add(low, o.add(lanes[2][u], lanes[3][u]));
                    }
                }
            }
            sum
        }
    }

    // Nodes of the tree over 64 lanes with a column each, written out: their sums stay in registers.
    #[inline(always)]
    unsafe fn add(&self, mut a: [O::V; U], b: [O::V; U]) -> [O::V; U] {
        for u in 0..U {
            // SAFETY: `o` exists.
            a[u] = unsafe { self.o.add(a[u], b[u]) };
        }
        a
    }
    #[inline(always)]
    unsafe fn eight(&self, l: usize) -> [O::V; U] {
        // SAFETY: the caller's, as below.
        unsafe { self.add(self.four::<4>(l), self.four::<4>(l + 8)) }
    }
    #[inline(always)]
    unsafe fn sixteen(&self, l: usize) -> [O::V; U] {
        // SAFETY: the caller's.
        unsafe { self.add(self.eight(l), self.eight(l + 4)) }
    }
    #[inline(always)]
    unsafe fn half(&self, l: usize) -> [O::V; U] {
        // SAFETY: the caller's.
        unsafe { self.add(self.sixteen(l), self.sixteen(l + 2)) }
    }

    /// The sums of all lanes.
    #[inline(always)]
    unsafe fn sums(&self) -> [O::V; U] {
        if O::LONG && U == 4 && self.len == LANES {
            let all = Tree { log: 4, ..*self };
            // SAFETY: the caller's.
            return unsafe { all.add(all.half(0), all.half(1)) };
        }
        let (o, len, log) = (self.o, self.len, self.log);
        // SAFETY: the caller's.
        unsafe {
            let mut done = [o.zero(); U];
            let mut waiting = [const { MaybeUninit::<[O::V; U]>::uninit() }; 5];
            let mut depth = 0;
            for q in 0..1 << log {
                let l = visited(q, log + 2) >> 2;
                macro_rules! fours {
                    ($($t:literal)*) => {
                        match (len - l + (1 << log) - 1) >> log {
                            16 if O::SIDE => self.four::<FULL>(l),
                            4 if O::LONG => self.four::<4>(l),
                            _ if KIND != WHOLE || !O::LONG => self.four::<ANY>(l),
                            $($t => self.four::<$t>(l),)*
                            _ => unreachable!("four of each lane"),
                        }
                    };
                }
                done = fours!(1 2 3 5 6 7 8 9 10 11 12 13 14 15);
                let mut level = q;
                while level & 1 == 1 {
                    depth -= 1;
                    let waited = waiting[depth].assume_init();
                    for u in 0..U {
                        done[u] = o.add(waited[u], done[u]);
                    }
                    level >>= 1;
                }
                waiting[depth].write(done);
                depth += 1;
                if self.a.ahead != 0 {
                    self.ask(l);
                }
            }
            if len < LANES {
                // For what was left out.
                for d in &mut done {
                    *d = o.add(*d, o.zero());
                }
            }
            done
        }
    }

    /// Asks for what is ahead of the four columns from lane `l` on.
    #[inline(always)]
    unsafe fn ask(&self, l: usize) {
        let Tree { o, a, len, log, .. } = self;
        let bytes = U * O::W * size_of::<O::T>() * O::STEP.unsigned_abs();
        for j in (l..*len).step_by(1 << log) {
            let p = a.p.wrapping_offset(j as isize * a.line + a.ahead);
            for at in (0..bytes).step_by(64) {
                // SAFETY: prefetches do not fault.
                unsafe { o.prefetch(p.wrapping_byte_add(at)) }
            }
        }
    }
}

/// The sums of one segment (at most 256 columns) for all rows, in registers. The first `head` rows
/// come before the first vector that is aligned.
///
/// Where columns begin alike, the first rows, that come before the first aligned vector, and the last ones make
/// a vector together, if it has room for them. Else what does not fill its vectors is computed with
/// some of the rows before it, a second time and alike: loads across two lines are there anyway.
pub(super) struct Strips<O: Ops> {
    pub(super) o: O,
    pub(super) a: Mat<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) out: *mut O::Acc,
    pub(super) head: usize,
    pub(super) ahead: isize,
}

impl<O: Ops> Strips<O> {
    /// The sums of `U` vectors: the ends, if there are any, and the rows from `i` on.
    #[inline(always)]
    unsafe fn some<const U: usize, const KIND: u8>(&self, i: usize, head: usize, tail: usize) {
        let Strips { o, a, x, out, ahead, .. } = *self;
        let at = |i: usize| a.p.wrapping_offset(i as isize * O::STEP);
        let (lo, end) = (O::W - head, a.m - tail);
        // A part that is empty is looked for where something is.
        let before = if head > 0 { -(lo as isize) * O::STEP } else { 0 };
        let edge = Edge { p: at(0).wrapping_offset(before), lo, q: at(end), hi: tail };
        let strip = Strip { p: at(i), line: a.line, edge, ahead };
        let log = a.n.div_ceil(4).next_power_of_two().min(LANES / 4).trailing_zeros();
        // SAFETY: the caller's: a is good, x for n, out for m; the rows named are below m.
        unsafe {
            let v = Tree::<O, U, KIND> { o, a: &strip, x, len: a.n, log }.sums();
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

impl<O: Ops> Body for Strips<O> {
    #[inline(always)]
    unsafe fn run(self) {
        let (m, w, head) = (self.a.m, O::W, self.head);
        // SAFETY: the caller's; i is at least so many vectors below m.
        unsafe {
            if m < w {
                return self.some::<1, TAIL>(0, 0, m);
            }
            let (mut at, mut end) = (0, m);
            if head > 0 {
                // Both ends make a vector, if it has room for them.
                let (whole, tail) = ((m - head) / w, (m - head) % w);
                let room = if head + tail > w { 0 } else { tail };
                if whole % 4 == 3 && O::SIDE {
                    self.some::<4, BOTH>(head, head, room);
                    at = head + 3 * w;
                } else {
                    self.some::<1, BOTH>(0, head, room);
                    at = head;
                }
                end -= room;
            }
            while at < end {
                let left = (end - at).div_ceil(w);
                let enough = if O::LONG { 3 } else { 2 };
                if O::SIDE && left >= enough && end >= 4 * w {
                    let i = at.min(end - 4 * w);
                    self.some::<4, WHOLE>(i, 0, 0);
                    at = i + 4 * w;
                } else if O::LONG && left >= 2 && end >= 2 * w {
                    let i = at.min(end - 2 * w);
                    self.some::<2, WHOLE>(i, 0, 0);
                    at = i + 2 * w;
                } else {
                    let i = at.min(end - w);
                    self.some::<1, WHOLE>(i, 0, 0);
                    at = i + w;
                }
            }
        }
    }
}
