//! Column kernels whose partial sums lie in memory: a vector holds neighbouring rows of a column.

// Arrays of vectors are indexed together: the numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use gemv_core::order::LANES;

use super::ops::{Body, Ops, each};
use super::window::{Window, bit_reversed};

/// Any number of columns a lane, read at run time.
const ANY: usize = 5;

/// A pass of [`ColMemory`] over all rows: `P` lanes of `C` columns each. If `MORE`, lanes have one more column where
/// `more` says so. That test takes time for each vector, so it is left out where all lanes have the same number.
struct Pass<O: Ops, const P: usize, const C: usize, const MORE: bool> {
    o: O,
    /// The lanes' first columns; the next ones are `chunk` elements further.
    p: [*const O::T; P],
    chunk: isize,
    x: [[O::X; 4]; P],
    /// How many columns each lane has, for [`ANY`]; else whether it has one more than `C`.
    more: [usize; P],
    /// Pending sums that those of this pass are added to, the last ones first.
    pending: [*const O::Acc; 6],
}

impl<O: Ops, const P: usize, const C: usize, const MORE: bool> Pass<O, P, C, MORE> {
    /// `U` vectors of rows from `i` on, or one masked vector if not `WHOLE`.
    #[inline(always)]
    unsafe fn step<const U: usize, const WHOLE: bool>(
        &self,
        i: usize,
        part: (usize, usize),
        merges: usize,
        prefetch: isize,
    ) -> [O::V; U] {
        let o = self.o;
        // SAFETY: the caller's.
        unsafe {
            let mut lanes = [[o.zero(); U]; P];
            macro_rules! column {
                ($k:expr, $c:expr) => {
                    let p = self.p[$k].wrapping_offset($c as isize * self.chunk);
                    for u in 0..U {
                        let at = p.wrapping_offset((i + u * O::W) as isize * O::STEP);
                        if prefetch != 0 {
                            o.prefetch(at.wrapping_offset(prefetch));
                        }
                        let v = if WHOLE { o.load(at) } else { o.load_part(at, part.0, part.1) };
                        lanes[$k][u] = o.fma(v, self.x[$k][$c], lanes[$k][u]);
                    }
                };
            }
            each!(K in 0 1 2 3: { if K < P {
                if C == ANY {
                    for c in 0..self.more[K] {
                        column!(K, c);
                    }
                } else {
                    each!(J in 0 1 2 3: { if J < C {
                        column!(K, J);
                    } });
                    if MORE && C < 4 && self.more[K] > 0 {
                        column!(K, C);
                    }
                }
            } });
            // In this order of lanes the halving adds neighbours.
            each!(K in 0 2: { if K + 1 < P {
                for u in 0..U {
                    lanes[K][u] = o.add(lanes[K][u], lanes[K + 1][u]);
                }
            } });
            let mut acc = lanes[0];
            if P == 4 {
                for u in 0..U {
                    acc[u] = o.add(acc[u], lanes[P / 2][u]);
                }
            }
            for w in &self.pending[..merges] {
                for u in 0..U {
                    let w = w.wrapping_add(i + u * O::W);
                    let w = if WHOLE { o.load_acc(w) } else { o.load_acc_part(w, part.0, part.1) };
                    acc[u] = o.add(w, acc[u]);
                }
            }
            acc
        }
    }
}

/// The sums of one segment for all rows, at most a tile. The lanes come in bit-reversed order, [`Ops::PASS_LANES`]
/// lanes with their columns in one pass over the rows. Partial sums are pending on a stack in `stack`, each of `ld`
/// accumulators, at least a vector more than there are rows. Every load prefetches `prefetch` elements further down.
///
/// The columns of a pass are a multiple of sixteen apart, if there are enough of them. So they have one offset from a
/// vector boundary, even if neighbours do not. Each pass reads aligned vectors, counted from the last boundary before
/// row 0. A vector across two cache lines takes two loads, of which the processor keeps few in flight. Pending sums
/// may lie across lines: there are few.
pub(super) struct ColMemory<O: Ops> {
    pub(super) o: O,
    pub(super) a: Window<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) stack: *mut O::Acc,
    pub(super) ld: usize,
    pub(super) out: *mut O::Acc,
    pub(super) prefetch: isize,
}

impl<O: Ops> ColMemory<O> {
    /// Whether columns so far apart have the same offset from a vector boundary.
    #[inline(always)]
    fn same_offset(&self, apart: usize) -> bool {
        let vector = O::W * size_of::<O::T>();
        (apart * self.a.line.unsigned_abs() * size_of::<O::T>()).is_multiple_of(vector)
    }

    /// Rows from the last vector boundary to row 0 of column j; 0 if no boundary falls on a row.
    #[inline(always)]
    fn before(&self, j: usize) -> usize {
        let unit = size_of::<O::T>() * O::STEP.unsigned_abs();
        let vector = O::W * size_of::<O::T>();
        let off = self.a.p.wrapping_offset(j as isize * self.a.line).addr() % vector;
        if off.is_multiple_of(unit) { off / unit } else { 0 }
    }

    /// Pass `q` of those over `lanes / P` groups of lanes, by `U` vectors.
    #[inline(always)]
    unsafe fn pass<const P: usize, const C: usize, const MORE: bool, const U: usize>(
        &self,
        q: usize,
        lanes: usize,
    ) {
        let ColMemory { o, a, x, stack, ld, out, prefetch } = *self;
        // SAFETY: the caller's, and `run`'s.
        unsafe {
            let of = |k: usize| bit_reversed(q * P + k, lanes.trailing_zeros());
            // Rows of two vectors have only ends.
            let aligned = a.m > 2 * O::W && O::ALIGNS && self.same_offset(lanes / P);
            let lo = if aligned { self.before(of(0)) } else { 0 };
            // Where sums of row 0 are pending: vectors are aligned there too, if all passes have the same offset.
            let shift = if self.same_offset(1) { lo } else { O::W };
            let (base, end) = (a.p.wrapping_offset(-(lo as isize) * O::STEP), lo + a.m);
            let (merges, depth) = (q.trailing_ones() as usize, q.count_ones() as usize);
            let last = q + 1 == lanes / P;
            let place = |depth: usize| stack.wrapping_add(depth * ld + shift).wrapping_sub(lo);
            let to = if last { out.wrapping_sub(lo) } else { place(depth - merges) };
            let mut pass = Pass::<O, P, C, MORE> {
                o,
                p: [base; P],
                chunk: LANES as isize * a.line,
                x: [[o.splat(*x); 4]; P],
                more: [0; P],
                pending: [stack.cast_const(); 6],
            };
            each!(K in 0 1 2 3: { if K < P {
                let l = of(K);
                let count = a.n.saturating_sub(l).div_ceil(LANES);
                pass.p[K] = base.wrapping_offset(l as isize * a.line);
                pass.more[K] = if C == ANY { count } else { count - C };
                each!(J in 0 1 2 3: { if J < count {
                    pass.x[K][J] = o.splat(*x.add(l + J * LANES));
                } });
            } });
            for (w, pending) in pass.pending.iter_mut().enumerate().take(merges) {
                *pending = place(depth - 1 - w);
            }
            // For the absent levels of the halving, if there are any.
            let left_out = last && lanes < LANES;
            let mut i = 0;
            while i < end {
                if (lo == 0 || i > 0) && end - i >= U * O::W {
                    i = match (merges, prefetch) {
                        // In the caches these are as frequent as all others together.
                        (0, 0) if C == 4 => pass.whole::<U>(i, end, to, 0, 0, left_out),
                        (1, 0) if C == 4 => pass.whole::<U>(i, end, to, 1, 0, left_out),
                        _ => pass.whole::<U>(i, end, to, merges, prefetch, left_out),
                    };
                    continue;
                }
                let part = (if i == 0 { lo } else { 0 }, (end - i).min(O::W));
                let mut v = pass.step::<1, false>(i, part, merges, prefetch);
                if left_out {
                    v[0] = o.add(v[0], o.zero());
                }
                o.store_part(v[0], to.wrapping_add(i), part.0, part.1);
                i += O::W;
            }
        }
    }
}

impl<O: Ops, const P: usize, const C: usize, const MORE: bool> Pass<O, P, C, MORE> {
    /// Rows `i .. end`, as far as there are `U` vectors of them. Returns the first row left.
    #[inline(always)]
    unsafe fn whole<const U: usize>(
        &self,
        mut i: usize,
        end: usize,
        to: *mut O::Acc,
        merges: usize,
        prefetch: isize,
        left_out: bool,
    ) -> usize {
        let o = self.o;
        // SAFETY: the caller's.
        unsafe {
            while end - i >= U * O::W {
                let v = self.step::<U, true>(i, (0, O::W), merges, prefetch);
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

impl<O: Ops> Body for ColMemory<O> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's: a is good, x for n, stack for 6 * ld, out for m.
        unsafe {
            let n = self.a.n;
            let lanes = n.min(LANES).next_power_of_two();
            let pass_lanes = if lanes < O::PASS_LANES { 1 } else { O::PASS_LANES };
            for q in 0..lanes / pass_lanes {
                // The columns of the first and of the last lane of the pass.
                let count = |i: usize| {
                    n.saturating_sub(bit_reversed(i, lanes.trailing_zeros())).div_ceil(LANES)
                };
                let (most, least) = (count(q * pass_lanes), count(q * pass_lanes + pass_lanes - 1));
                macro_rules! passes {
                    ($p:literal, $u:literal) => {
                        match (most, least) {
                            (4, 4) => self.pass::<$p, 4, false, $u>(q, lanes),
                            _ if !O::UNROLLS => self.pass::<$p, ANY, false, $u>(q, lanes),
                            (1, 1) => self.pass::<$p, 1, false, $u>(q, lanes),
                            (_, 0) => self.pass::<$p, 0, true, $u>(q, lanes),
                            // Two or three columns in all lanes: as if some had one less.
                            (2, _) => self.pass::<$p, 1, true, $u>(q, lanes),
                            (3, _) => self.pass::<$p, 2, true, $u>(q, lanes),
                            _ => self.pass::<$p, 3, true, $u>(q, lanes),
                        }
                    };
                }
                // All but the one that O uses and the first are pruned. The first is for lanes of one column.
                if O::PASS_LANES == 4 && pass_lanes == 4 {
                    passes!(4, 2)
                } else if O::PASS_LANES == 2 && pass_lanes == 2 {
                    passes!(2, 4)
                } else if O::PASS_LANES == 1 {
                    passes!(1, 4)
                } else {
                    self.pass::<1, 1, false, 4>(q, lanes)
                }
            }
        }
    }
}

/// The sums of one whole segment for all rows, which are few. The columns are read in the order of memory. Those of
/// four lanes that the halving adds first are read together, so that there are sixteen streams. The sums of a quarter
/// of the lanes are kept in `quarter`, 16 lines of `ld` accumulators, in the first-level cache. Every load prefetches
/// `prefetch` elements further on.
pub(super) struct ColFewRows<O: Ops> {
    pub(super) o: O,
    pub(super) a: Window<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) quarter: *mut O::Acc,
    pub(super) ld: usize,
    pub(super) out: *mut O::Acc,
    pub(super) prefetch: isize,
}

impl<O: Ops> Body for ColFewRows<O> {
    #[inline(always)]
    unsafe fn run(self) {
        const QUARTER: usize = LANES / 4;
        let ColFewRows { o, a, x, quarter, ld, out, prefetch } = self;
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
                            if prefetch != 0 {
                                o.prefetch(at.wrapping_offset(prefetch));
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
