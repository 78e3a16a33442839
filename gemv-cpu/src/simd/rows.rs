//! Row kernels: the elements of a row are neighbours, and a vector holds neighbouring lanes.

// Arrays of rows and of lanes are indexed together: the numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use gemv_core::Accumulator;
use gemv_core::order::{LANES, SEGMENT};

use super::ops::{Body, Ops, each};
use super::window::{Vector, Window, lead, same_offset};

/// Lanes `lo..hi` of one vector of `R` rows. Prefetches `prefetch` bytes further on, unless that is 0. A function,
/// not a closure: a closure that is not inlined is not compiled for the instruction set.
#[inline(always)]
unsafe fn part<O: Ops, const R: usize>(
    o: O,
    a: &[*const O::T; R],
    x: *const O::Acc,
    acc: &mut [O::V; R],
    at: isize,
    (lo, hi): (usize, usize),
    prefetch: isize,
) {
    // SAFETY: the caller's: rows and x are good for these lanes.
    unsafe {
        let x = o.x_part(x.wrapping_offset(at), lo, hi);
        for r in 0..R {
            let p = a[r].wrapping_offset(at * O::STEP);
            if prefetch != 0 {
                o.prefetch(p.wrapping_byte_offset(prefetch));
            }
            let v = o.load_part(p, lo, hi);
            acc[r] = o.fma_part(v, x, acc[r], (lo, hi));
        }
    }
}

/// As [`part`], for all lanes.
#[inline(always)]
unsafe fn whole<O: Ops, const R: usize>(
    o: O,
    a: &[*const O::T; R],
    x: *const O::Acc,
    acc: &mut [O::V; R],
    at: isize,
    prefetch: isize,
) {
    // SAFETY: the caller's: rows and x are good for these lanes.
    unsafe {
        let x = o.x(x.offset(at));
        for r in 0..R {
            let p = a[r].wrapping_offset(at * O::STEP);
            if prefetch != 0 {
                o.prefetch(p.wrapping_byte_offset(prefetch));
            }
            acc[r] = o.fma(o.load(p), x, acc[r]);
        }
    }
}

/// Halves vectors of lanes, of `R` rows, to the first one.
#[inline(always)]
unsafe fn halve<O: Ops, const R: usize>(o: O, acc: &mut [[O::V; R]]) {
    let mut h = acc.len() / 2;
    while h > 0 {
        for k in 0..h {
            for r in 0..R {
                // SAFETY: `o` exists.
                acc[k][r] = unsafe { o.add(acc[k][r], acc[k + h][r]) };
            }
        }
        h /= 2;
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// What is known of the columns. 0 to 3: so many whole chunks of 64 columns and less than another one. Then a
/// segment, a segment whose lanes are rotated, and any number.
const FULL: u8 = 4;
const ROTATED: u8 = 5;
pub(super) const ANY: u8 = 6;

/// Columns j0 .. j0 + len (at most a segment) of `R` rows: the lanes, halved to `W`.
///
/// Row and x run forwards, or both run backwards from the places given. A chunk of 64 columns is then read from its
/// last column on; the halving gives the same sum.
///
/// The 64 lanes are taken `A` vectors at a time: those whose numbers are equal modulo `VECTORS / A`, which are nodes
/// of the halving tree. If the registers suffice, all are taken at once. A second pass over the cache lines left out
/// between two loads runs below the full bandwidth of memory and caches.
///
/// In a full segment the lanes may be rotated by `rotation` places, less than a vector, so that loads are aligned.
/// Place p then holds lane (p + rotation) mod 64; the halving gives the same sum. One vector of each chunk ends with
/// lanes of the chunk behind it in memory. The lanes of the chunk in front take a load of their own, in the order of
/// columns.
///
/// `KIND` is known to the compiler, so that vectors are loaded one behind the other. Every load of a whole chunk
/// prefetches `prefetch` bytes further on: a burst of prefetches before the loads is slower. One or two rows with all
/// their vectors are one or two streams, too few for the full bandwidth of memory. So `interleave` names which of
/// four rows the first of these is, and the bytes between two rows. Each row then prefetches its share of all of the
/// next four rows, line by line in rotation.
#[inline(always)]
unsafe fn segment<O: Ops, const R: usize, const A: usize, const KIND: u8, const BACK: bool>(
    o: O,
    a: [*const O::T; R],
    x: *const O::Acc,
    (j0, len): (usize, usize),
    rotation: usize,
    prefetch: isize,
    interleave: Option<(usize, isize)>,
) -> [O::V; R] {
    // SAFETY: the caller's: rows and x are good for columns j0 .. j0 + len.
    unsafe {
        let groups = O::VECTORS / A;
        let full = KIND == FULL || KIND == ROTATED;
        let chunks = match KIND {
            FULL | ROTATED => 4,
            ANY => len / LANES,
            _ => KIND as usize,
        };
        let rem = if full { 0 } else { len % LANES };
        let zero = o.zero();
        let (lanes, j0) = (LANES as isize, j0 as isize);
        let dir = if BACK { -lanes } else { lanes };
        // The first place of the first chunk. All else is at distances that the compiler knows.
        let first = if BACK { 1 - j0 - lanes } else { j0 } + rotation as isize;
        let x = x.wrapping_offset(first);
        let a = a.map(|p| p.wrapping_offset(first * O::STEP));
        let interleave =
            interleave.filter(|_| full && !BACK && A == O::VECTORS).map(|(first, line)| {
                let part = (first * A * LINE) as isize;
                (a[0].wrapping_byte_offset(prefetch - first as isize * line + part), line)
            });
        // At most eight groups.
        let mut done = [[zero; R]; 8];
        for group in 0..groups {
            let mut acc = [[zero; R]; A];
            let rotated = KIND == ROTATED && group + 1 == groups;
            // The lanes in front of the rotated vector.
            let front = (O::W - rotation, O::W);
            if rotated && !BACK {
                part(o, &a, x, &mut acc[A - 1], -(O::W as isize), front, 0);
            }
            for c in 0..chunks {
                let base = dir * c as isize;
                for (k, acc) in acc.iter_mut().enumerate() {
                    let at = base + ((group + k * groups) * O::W) as isize;
                    if rotated && k == A - 1 && c == if BACK { 0 } else { 3 } {
                        part(o, &a, x, acc, at, (0, O::W - rotation), 0);
                        continue;
                    }
                    if let Some((from, line)) = interleave {
                        for w in (c * A + k) * R..(c * A + k + 1) * R {
                            let at = (w % 4) as isize * line + (w / 4 * LINE) as isize;
                            o.prefetch(from.wrapping_byte_offset(at));
                        }
                        whole(o, &a, x, acc, at, 0);
                        continue;
                    }
                    whole(o, &a, x, acc, at, prefetch);
                }
            }
            if rotated && BACK {
                part(o, &a, x, &mut acc[A - 1], 3 * dir - O::W as isize, front, 0);
            }
            if !full && rem > 0 {
                // Written out: a loop would keep the sums in memory. Masks of many vectors are many operations.
                each!(K in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15: { if K < A {
                    let place = (group + K * groups) * O::W;
                    let at = dir * chunks as isize + place as isize;
                    let there = match BACK {
                        true => ((LANES - rem).saturating_sub(place).min(O::W), O::W),
                        false => (0, rem.saturating_sub(place).min(O::W)),
                    };
                    if !BACK && there.1 == O::W {
                        whole(o, &a, x, &mut acc[K], at, prefetch);
                    } else if there.0 < there.1 {
                        part(o, &a, x, &mut acc[K], at, there, prefetch);
                    }
                } });
            }
            halve(o, &mut acc);
            done[group] = acc[0];
        }
        halve(o, &mut done[..groups]);
        done[0]
    }
}

/// `V` vectors (at most 64 columns) of `R` rows, `hi` lanes of the last one, all if `WHOLE`. As [`segment`], without
/// the levels of the halving whose upper lanes are all absent. If there are such levels, the caller adds +0, which
/// turns -0 into +0 as they would.
#[inline(always)]
unsafe fn short<O: Ops, const R: usize, const V: usize, const WHOLE: bool>(
    o: O,
    a: [*const O::T; R],
    x: [O::X; V],
    hi: usize,
) -> [O::V; R] {
    // SAFETY: the caller's: rows are good for these columns, x was loaded from as many.
    unsafe {
        let zero = o.zero();
        let mut acc = [[zero; R]; V];
        for (k, acc) in acc.iter_mut().enumerate() {
            let at = (k * O::W) as isize * O::STEP;
            for r in 0..R {
                let p = a[r].wrapping_offset(at);
                // Without a branch where a masked load costs no more than a whole one.
                acc[r] = if WHOLE || k + 1 < V || (!O::UNROLLS && hi == O::W) {
                    o.fma(o.load(p), x[k], zero)
                } else {
                    o.fma_part(o.load_part(p, 0, hi), x[k], zero, (0, hi))
                };
            }
        }
        let mut h = V.next_power_of_two() / 2;
        while h > 0 {
            for k in 0..h.min(V - h) {
                for r in 0..R {
                    acc[k][r] = o.add(acc[k][r], acc[k + h][r]);
                }
            }
            h /= 2;
        }
        acc[0]
    }
}

/// Stores the sums of up to four rows.
#[inline(always)]
unsafe fn fold_to<O: Ops>(o: O, v: [O::V; 4], out: *mut O::Acc, count: usize) {
    // SAFETY: the caller's: out is good for count.
    unsafe {
        if count >= 4 {
            return o.fold4(v, out);
        }
        let mut four = [O::Acc::ZERO; 4];
        o.fold4(v, four.as_mut_ptr());
        for (r, s) in four.iter().enumerate().take(count) {
            *out.add(r) = *s;
        }
    }
}

/// Pointers to rows i, i + apart, ...; the last row again for those beyond m.
#[inline(always)]
unsafe fn rows_at<O: Ops, const R: usize>(
    a: &Window<O::T>,
    i: usize,
    apart: usize,
) -> [*const O::T; R] {
    let last = a.m - 1;
    core::array::from_fn(|r| a.p.wrapping_offset((i + r * apart).min(last) as isize * a.line))
}

/// Sums of all rows of a matrix of `V` vectors of columns, the last of which may be partial.
pub(super) struct ShortRows<O: Ops, const V: usize> {
    pub(super) o: O,
    pub(super) a: Window<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) prefetch: usize,
    pub(super) out: *mut O::Acc,
}

impl<O: Ops, const V: usize> ShortRows<O, V> {
    /// Whether lanes are absent, so that +0 is to be added.
    const LEFT_OUT: bool = V * O::W < LANES;

    /// The sums of rows i .. i + 4, the last one again for those beyond it, without the +0.
    #[inline(always)]
    unsafe fn four<const WHOLE: bool>(&self, i: usize, x: [O::X; V], hi: usize) -> [O::V; 4] {
        let ShortRows { o, a, .. } = self;
        // SAFETY: the caller's.
        unsafe {
            let rows = rows_at::<O, 4>(a, i, 1);
            // As many rows at a time as there are registers for.
            if V <= 4 {
                return short::<O, 4, V, WHOLE>(*o, rows, x, hi);
            }
            let mut four = [o.zero(); 4];
            for (r, four) in four.iter_mut().enumerate() {
                [*four] = short::<O, 1, V, WHOLE>(*o, [rows[r]], x, hi);
            }
            four
        }
    }

    /// The sums of sixteen or more rows, except the last seven or fewer. Returns the first row left.
    #[inline(always)]
    unsafe fn sixteens<const WHOLE: bool>(&self, x: [O::X; V], hi: usize) -> usize {
        let ShortRows { o, a, out, .. } = self;
        let mut i = 0;
        // SAFETY: the caller's.
        unsafe {
            while a.m - i >= 8 {
                // If fewer than sixteen are left, some are computed a second time, to the same bits.
                let at = i.min(a.m - 16);
                let mut all = [o.zero(); 16];
                for k in 0..4 {
                    all[4 * k..][..4].copy_from_slice(&self.four::<WHOLE>(at + 4 * k, x, hi));
                }
                o.fold_all(all, out.add(at));
                if Self::LEFT_OUT {
                    for at in (at..at + 16).step_by(O::W) {
                        o.store(o.add(o.load_acc(out.add(at)), o.zero()), out.add(at));
                    }
                }
                i = at + 16;
            }
        }
        i
    }
}

impl<O: Ops, const V: usize> Body for ShortRows<O, V> {
    #[inline(always)]
    unsafe fn run(self) {
        let ShortRows { o, a, x, prefetch, out } = self;
        let left_out = Self::LEFT_OUT;
        // SAFETY: the caller's: a is good, x for n, out for m.
        unsafe {
            let hi = a.n - (V - 1) * O::W;
            let mut xs = [o.x_part(x.wrapping_add((V - 1) * O::W), 0, hi); V];
            for (k, xs) in xs.iter_mut().enumerate().take(V - 1) {
                *xs = o.x(x.wrapping_add(k * O::W));
            }
            let mut i = 0;
            if const { O::FOLD_ALL } && prefetch == 0 && a.m >= 16 {
                i = if const { V == O::VECTORS } && hi == O::W {
                    self.sixteens::<true>(xs, hi)
                } else {
                    self.sixteens::<false>(xs, hi)
                };
            }
            while i < a.m {
                if prefetch > 0 {
                    for row in rows_at::<O, 4>(&a, i, 1) {
                        for k in 0..V {
                            o.prefetch(row.wrapping_add(k * O::W).wrapping_byte_add(prefetch));
                        }
                    }
                }
                // One or two rows: four at a time would be wasted work.
                if O::UNROLLS && a.m - i <= 2 {
                    let [v] = short::<O, 1, V, false>(o, rows_at::<O, 1>(&a, i, 1), xs, hi);
                    *out.add(i) = o.fold(if left_out { o.add(v, o.zero()) } else { v });
                    i += 1;
                    continue;
                }
                let mut v = self.four::<false>(i, xs, hi);
                if left_out {
                    for v in &mut v {
                        *v = o.add(*v, o.zero());
                    }
                }
                fold_to::<O>(o, v, out.add(i), a.m - i);
                i += 4;
            }
        }
    }
}

/// The segments' sums of `a.m` rows: that of segment s and row i at `out[s * ld + i]`. The rows are interleaved
/// segment by segment, so that as many streams are read. Rows and x run backwards if `BACK`.
pub(super) struct Segments<O: Ops, const BACK: bool> {
    pub(super) o: O,
    pub(super) a: Window<O::T>,
    pub(super) x: *const O::Acc,
    pub(super) prefetch: usize,
    /// Whether the next rows are prefetched instead. Rows that need several passes four at a time are then taken two
    /// at a time, where that is written.
    pub(super) prefetch_next: bool,
    pub(super) out: *mut O::Acc,
    pub(super) ld: usize,
}

impl<O: Ops, const BACK: bool> Segments<O, BACK> {
    /// Bytes from segment s of row i to what is prefetched meanwhile, if the next row read is `step` further.
    #[inline(always)]
    fn distance(&self, i: usize, s: usize, step: isize) -> isize {
        let Segments { a, prefetch, prefetch_next, .. } = self;
        let dir = if BACK { -O::STEP } else { O::STEP };
        if !*prefetch_next {
            return *prefetch as isize * dir.signum();
        }
        let (line, columns) = (a.line, SEGMENT as isize * dir);
        let elements = if i.wrapping_add_signed(step) < a.m {
            step * line
        } else if (s + 1) * SEGMENT < a.n {
            columns - i as isize * line
        } else {
            // The rows behind this block. Inexact for a partial last segment, which is computed first.
            (a.m - i) as isize * line - s as isize * columns
        };
        elements * size_of::<O::T>() as isize
    }
}

impl<O: Ops, const BACK: bool> Segments<O, BACK> {
    /// The sums of rows i, i + apart, ..., four of them; the last row is repeated for those beyond it.
    #[inline(always)]
    unsafe fn four<const KIND: u8>(
        &self,
        (i, apart): (usize, usize),
        columns: (usize, usize),
        rotation: usize,
        prefetch: isize,
    ) -> [O::V; 4] {
        let Segments { o, a, x, .. } = self;
        // SAFETY: the caller's.
        unsafe {
            let mut four = [o.zero(); 4];
            let line = a.line * size_of::<O::T>() as isize;
            let interleave = |first: usize| {
                (self.prefetch_next && prefetch != 0 && apart == 1).then_some((first, line))
            };
            // All but the one that O uses are pruned.
            if O::ROWS == 4 {
                let rows = rows_at::<O, 4>(a, i, apart);
                four =
                    segment::<O, 4, 4, KIND, BACK>(*o, rows, *x, columns, rotation, prefetch, None);
            } else if O::ROWS == 2 {
                for i2 in [0, 2] {
                    let rows = rows_at::<O, 2>(a, i + i2 * apart, apart);
                    let two = if O::ROW_VECTORS == 8 {
                        segment::<O, 2, 8, KIND, BACK>(
                            *o,
                            rows,
                            *x,
                            columns,
                            rotation,
                            prefetch,
                            interleave(i2),
                        )
                    } else {
                        segment::<O, 2, 4, KIND, BACK>(
                            *o, rows, *x, columns, rotation, prefetch, None,
                        )
                    };
                    four[i2..i2 + 2].copy_from_slice(&two);
                }
            } else {
                for i1 in 0..4 {
                    let row = rows_at::<O, 1>(a, i + i1 * apart, 1);
                    [four[i1]] = segment::<O, 1, 16, KIND, BACK>(
                        *o,
                        row,
                        *x,
                        columns,
                        rotation,
                        prefetch,
                        interleave(i1),
                    );
                }
            }
            four
        }
    }
}

impl<O: Ops, const BACK: bool> Segments<O, BACK> {
    /// The sum of row i.
    #[inline(always)]
    unsafe fn one(&self, i: usize, columns: (usize, usize), prefetch: isize) -> O::Acc {
        let Segments { o, a, x, .. } = self;
        // SAFETY: the caller's.
        unsafe {
            let row = rows_at::<O, 1>(a, i, 1);
            let rotation = lead(&Window { p: row[0], m: 1, ..*a }, Vector::of::<O>(), BACK);
            let v = match (columns.1, rotation) {
                (SEGMENT, 0) => {
                    segment::<O, 1, 4, FULL, BACK>(*o, row, *x, columns, 0, prefetch, None)
                }
                (SEGMENT, _) => segment::<O, 1, 4, ROTATED, BACK>(
                    *o, row, *x, columns, rotation, prefetch, None,
                ),
                _ if !BACK => unreachable!("the rest is `Tail`'s"),
                _ => segment::<O, 1, 4, ANY, BACK>(*o, row, *x, columns, 0, 0, None),
            };
            o.fold(v[0])
        }
    }
}

/// The sums of less than a segment for all rows, to `out`. A function for each number of whole chunks: in a common
/// one, the compiler computes the addresses of all of them first.
pub(super) struct Tail<'a, O: Ops, const KIND: u8> {
    pub(super) all: &'a Segments<O, false>,
    pub(super) columns: (usize, usize),
    pub(super) out: *mut O::Acc,
}

impl<O: Ops, const KIND: u8> Body for Tail<'_, O, KIND> {
    #[inline(always)]
    unsafe fn run(self) {
        let Tail { all, columns, out } = self;
        let Segments { o, a, x, .. } = all;
        let mut i = 0;
        // SAFETY: the caller's: those of `Segments`, whose columns and places these are.
        unsafe {
            while i < a.m {
                if a.m - i <= 2 {
                    let row = rows_at::<O, 1>(a, i, 1);
                    let [v] = segment::<O, 1, 4, KIND, false>(*o, row, *x, columns, 0, 0, None);
                    *out.add(i) = o.fold(v);
                    i += 1;
                    continue;
                }
                // The code without prefetches is its own: in common code the sums spill.
                let v = match all.distance(i, columns.0 / SEGMENT, 4) {
                    0 => all.four::<KIND>((i, 1), columns, 0, 0),
                    distance => all.four::<KIND>((i, 1), columns, 0, distance),
                };
                fold_to::<O>(*o, v, out.add(i), a.m - i);
                i += 4;
            }
        }
    }
}

/// The sums of whole segments for a multiple of four rows: as [`segment`], with all vectors of two rows at a time and
/// [`Ops::X_VECTORS`] vectors of x in registers.
///
/// From L2, every other load takes time from the lines of the matrix: loads of x, and of a line in a second pass.
/// From memory, the second pass costs most. Two rows are only two streams, so if `NEXT` each pair prefetches its half
/// of the next four rows, line by line in rotation.
pub(super) struct XInRegisters<'a, O: Ops, const ROTATES: bool, const NEXT: bool> {
    pub(super) all: &'a Segments<O, false>,
    /// Places by which the lanes are rotated, if `ROTATES`.
    pub(super) rotation: usize,
}

/// The most vectors of lanes.
const MAX_VECTORS: usize = 8;

/// Bytes of a segment's rows before the same rows of the next segment, which needs other entries of x in registers.
const X_BLOCK: usize = 16 << 10;

impl<O: Ops, const ROTATES: bool, const NEXT: bool> XInRegisters<'_, O, ROTATES, NEXT> {
    /// Rows `top .. end` of segment s.
    #[inline(always)]
    unsafe fn block(&self, s: usize, top: usize, end: usize) {
        // Compiled for all types; run where X_VECTORS is not 0.
        const {
            let fits =
                O::STEP == 1 && O::ROTATES && O::VECTORS <= MAX_VECTORS && O::X_VECTORS <= 16;
            assert!(O::X_VECTORS == 0 || fits && O::W * size_of::<O::T>() == LINE)
        };
        let Segments { o, a, x, out, ld, .. } = *self.all;
        let rotation = if ROTATES { self.rotation } else { 0 };
        // SAFETY: the caller's: a is good, x for a.n, out for ld * (segments - 1) + m; rows top .. end are a multiple of
        // four, and if ROTATES have one offset, `rotation` places before a vector boundary. What lies before a
        // segment's first column and behind its last is masked, and so not touched.
        unsafe {
            let (w, count) = (O::W, O::VECTORS);
            let (first, last) = (s * SEGMENT + rotation, 4 * count - 1);
            let x = x.wrapping_add(first);
            let out = out.wrapping_add(s * ld);
            let zero = o.zero();
            // The last vector, whose upper lanes are the first columns' if it is rotated; then those before it.
            let ends = match ROTATES {
                true => o.x_from_two(x.wrapping_add(last * w), x.wrapping_sub(w), w - rotation),
                false => o.x(x.wrapping_add(last * w)),
            };
            let mut held = [ends; 16];
            for (k, held) in held.iter_mut().enumerate().take(O::X_VECTORS).skip(1) {
                *held = o.x(x.wrapping_add((k - 1) * w));
            }
            let mut p = a.p.wrapping_offset(top as isize * a.line).wrapping_add(first);
            let mut next_rows = p;
            // Pair by pair: of four rows written out, the compiler mixes the loads and spills x.
            let mut before = [zero; 2];
            for i in (top..end).step_by(2) {
                let rows = [p, p.wrapping_offset(a.line)];
                if NEXT && i % 4 == 0 {
                    next_rows = p.wrapping_byte_offset(self.all.distance(i, s, 4));
                }
                let ahead = next_rows.wrapping_byte_add(i % 4 * count * LINE);
                p = p.wrapping_offset(2 * a.line);
                let mut acc = [[zero; 2]; MAX_VECTORS];
                if ROTATES {
                    for r in 0..2 {
                        let at = rows[r].wrapping_sub(w);
                        let sum = acc[count - 1][r];
                        acc[count - 1][r] = o.fma_masked(at, ends, sum, (w - rotation, w));
                    }
                }
                for c in 0..4 {
                    for k in 0..count {
                        let j = c * count + k;
                        let x = match j {
                            j if j == last => ends,
                            j if j + 1 < O::X_VECTORS => held[j + 1],
                            j => o.x(x.wrapping_add(j * w)),
                        };
                        for r in 0..2 {
                            if NEXT {
                                let (row, line) = ((2 * j + r) % 4, (2 * j + r) / 4);
                                let row = ahead.wrapping_offset(row as isize * a.line);
                                o.prefetch(row.wrapping_byte_add(line * LINE));
                            }
                            let at = rows[r].wrapping_add(j * w);
                            acc[k][r] = if ROTATES && j == last {
                                o.fma_masked(at, x, acc[k][r], (0, w - rotation))
                            } else {
                                o.fma(o.load(at), x, acc[k][r])
                            };
                        }
                    }
                }
                halve(o, &mut acc[..count]);
                let [a, b] = acc[0];
                if i % 4 == 0 {
                    before = [a, b];
                } else {
                    o.fold4([before[0], before[1], a, b], out.add(i - 2));
                }
            }
        }
    }
}

impl<O: Ops, const ROTATES: bool, const NEXT: bool> Body for XInRegisters<'_, O, ROTATES, NEXT> {
    #[inline(always)]
    unsafe fn run(self) {
        let Window { m, n, .. } = self.all.a;
        let segments = n / SEGMENT;
        let rows = X_BLOCK / (SEGMENT * size_of::<O::T>());
        let block = if NEXT || segments == 1 { m } else { rows };
        for top in (0..m).step_by(block) {
            for s in 0..segments {
                // SAFETY: the caller's: those of `Segments`, whose rows these are.
                unsafe { self.block(s, top, m.min(top + block)) }
            }
        }
    }
}

impl<O: Ops, const BACK: bool> Body for Segments<O, BACK> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's: a is good, x for n, out for ld * (segments - 1) + m.
        unsafe {
            let Segments { a, out, ld, .. } = self;
            let rotation = lead(&a, Vector::of::<O>(), BACK);
            for s in 0..a.n.div_ceil(SEGMENT) {
                let j0 = s * SEGMENT;
                let columns = (j0, (a.n - j0).min(SEGMENT));
                let out = out.add(s * ld);
                let mut i = 0;
                while i < a.m {
                    // One or two rows: four at a time would be wasted work.
                    if !BACK && a.m - i <= 2 {
                        *out.add(i) =
                            self.one(i, columns, if a.m == 1 { 0 } else { self.distance(i, s, 1) });
                        i += 1;
                        continue;
                    }
                    // Rows of different offsets: rows that are a vector's number apart have the same one. So take
                    // four of these, with sixteen or more rows a block, and aligned loads from beyond the first-level
                    // cache.
                    if O::UNROLLS
                        && !BACK
                        && O::ROTATES
                        && columns.1 == SEGMENT
                        && !same_offset(&a, Vector::of::<O>())
                        && a.m - i >= 4 * O::W
                    {
                        for k in i..i + O::W {
                            let row = a.p.wrapping_offset(k as isize * a.line);
                            let rotation =
                                lead(&Window { p: row, m: 1, ..a }, Vector::of::<O>(), BACK);
                            let step = if k + 1 < i + O::W { 1 } else { 3 * O::W + 1 };
                            let distance = self.distance(k, s, step as isize);
                            let v = self.four::<ROTATED>((k, O::W), columns, rotation, distance);
                            let mut four = [O::Acc::ZERO; 4];
                            self.o.fold4(v, four.as_mut_ptr());
                            for (r, s) in four.into_iter().enumerate() {
                                *out.add(k + r * O::W) = s;
                            }
                        }
                        i += 4 * O::W;
                        continue;
                    }
                    let distance = self.distance(i, s, 4);
                    let v = match (columns.1, rotation, distance) {
                        (SEGMENT, 0, 0) => self.four::<FULL>((i, 1), columns, 0, 0),
                        (SEGMENT, 0, _) => self.four::<FULL>((i, 1), columns, 0, distance),
                        (SEGMENT, _, 0) => self.four::<ROTATED>((i, 1), columns, rotation, 0),
                        (SEGMENT, ..) => self.four::<ROTATED>((i, 1), columns, rotation, distance),
                        _ if !BACK => unreachable!("the rest is `Tail`'s"),
                        _ => self.four::<ANY>((i, 1), columns, 0, distance),
                    };
                    fold_to::<O>(self.o, v, out.add(i), a.m - i);
                    i += 4;
                }
            }
        }
    }
}
