//! The column kernel for several right-hand sides: a vector holds neighbouring rows of a column.

// Arrays of vectors are indexed together: the numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use core::mem::MaybeUninit;

use gemv_core::Accumulator;
use gemv_core::order::LANES;

use super::ops::{Body, Ops};
use super::window::{COLUMNS, RhsCall, Window, bit_reversed};

/// Bytes of a cache line.
const LINE: usize = 64;

/// The sums of one segment, at most 256 columns of the matrix, for all rows and all columns of X.
///
/// The lanes come in bit-reversed order, `P` at a time. The elements of their columns stay in registers, one vector of
/// rows of each, while one column of X after the other is multiplied with them. So the matrix is read once, down its
/// columns. Partial sums of all rows are pending on a stack, as in the kernel for one right-hand side. They are read and
/// written once for `P` lanes: more lanes at a time mean less traffic between registers and caches.
pub(super) struct ColRhs<'a, O> {
    pub(super) o: O,
    pub(super) c: &'a RhsCall,
}

impl<O: Ops> Body for ColRhs<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        let n = self.c.a.n;
        // SAFETY: the caller's.
        unsafe {
            // 16 vectors of the matrix stay in 32 registers, 8 in 16.
            match const { O::PASS_LANES == 4 } {
                true if n > LANES => self.passes::<4, 4>(),
                true if n > 4 => self.passes::<8, 1>(),
                _ if n <= LANES => self.passes::<4, 1>(),
                _ => self.passes::<2, 4>(),
            }
        }
    }
}

impl<O: Ops> ColRhs<'_, O> {
    /// All passes of `P` lanes of at most `T` columns each.
    #[inline(always)]
    unsafe fn passes<const P: usize, const T: usize>(&self) {
        let lanes = self.c.a.n.min(LANES).next_power_of_two().max(P);
        for q in 0..lanes / P {
            // SAFETY: the caller's.
            unsafe { self.pass::<P, T>(q, lanes) }
        }
    }

    /// Pass q of those over all lanes.
    #[inline(always)]
    unsafe fn pass<const P: usize, const T: usize>(&self, q: usize, lanes: usize) {
        let ColRhs { c, .. } = *self;
        let a: Window<O::T> = c.a.cast();
        let first = |q: usize, k: usize| bit_reversed(q * P + k, lanes.trailing_zeros());
        let column = |k: usize, t: usize| first(q, k) + t * LANES;
        let mut xs = [const { MaybeUninit::<[[O::Acc; T]; P]>::uninit() }; COLUMNS];
        // With one column a lane they are too few to be worth it.
        for (b, xs) in xs.iter_mut().enumerate().take(if T > 1 { c.columns } else { 0 }) {
            let x = c.x.cast::<O::Acc>().wrapping_offset(b as isize * c.x_ld);
            // An element of +0 times -0 leaves a sum as it is.
            let mut entries = [[O::Acc::from_parts(-0.0, -0.0); T]; P];
            for k in 0..P {
                for t in 0..T {
                    if column(k, t) < a.n {
                        // SAFETY: the caller's: X has this entry.
                        entries[k][t] =
                            unsafe { *x.wrapping_offset(column(k, t) as isize * c.x_row) };
                    }
                }
            }
            xs.write(entries);
        }
        let (merges, depth) = (q.trailing_ones() as usize, q.count_ones() as usize);
        let last = q + 1 == lanes / P;
        let stack = c.stack.cast::<O::Acc>();
        // The place on the stack of so many pending sums.
        let level = c.columns * c.stack_ld;
        let place = |depth: usize| stack.wrapping_add(depth * level);
        let (to, to_ld) = match last {
            true => (c.out.cast::<O::Acc>(), c.out_column),
            false => (place(depth - merges), c.stack_ld as isize),
        };
        let line = |l: usize| a.p.wrapping_offset(l as isize * a.line);
        let pass = Pass::<O, P, T> {
            lines: core::array::from_fn(|k| line(first(q, k))),
            next: core::array::from_fn(|k| line(first((q + 1) % (lanes / P), k)).wrapping_sub(a.m)),
            chunk: LANES as isize * a.line,
            present: core::array::from_fn(|k| a.n.saturating_sub(column(k, 0)).div_ceil(LANES)),
            xs: &xs,
            entries: core::array::from_fn(|k| match column(k, 0) < a.n {
                true => column(k, 0) as isize * c.x_row,
                false => 0,
            }),
            pending: place(depth).wrapping_sub(level),
            level,
            merges,
            to,
            to_ld,
            left_out: last && lanes < LANES,
            last,
            x_ahead: if q * LINE < a.n * size_of::<O::Acc>() && c.x_prefetch != 0 {
                c.x_prefetch + (q * LINE) as isize
            } else {
                0
            },
        };
        // SAFETY: the caller's; the entries of X are there for each of its columns.
        unsafe {
            // Without a loop where it is one of the two common numbers.
            match merges {
                0 => self.rows::<P, T, 0>(&pass),
                1 => self.rows::<P, T, 1>(&pass),
                _ => self.rows::<P, T, ANY>(&pass),
            }
        }
    }

    /// A pass over all rows, with `M` pending sums to be added, or any number of them.
    #[inline(always)]
    unsafe fn rows<const P: usize, const T: usize, const M: usize>(
        &self,
        pass: &Pass<'_, O, P, T>,
    ) {
        let ColRhs { o, c } = *self;
        let Pass { lines, next, chunk, present, xs, entries, pending, level, .. } = *pass;
        let Pass { merges, to, to_ld, left_out, last, x_ahead, .. } = *pass;
        let (m, size) = (c.a.m, size_of::<O::T>());
        let full = present.iter().all(|t| *t >= T);
        let ahead = c.prefetch as usize / size;
        // SAFETY: the caller's: a is good, out for m, the stack for m rounded up to W.
        unsafe {
            for i in (0..m).step_by(O::W) {
                let rows = (m - i).min(O::W);
                let mut v = [[o.zero(); T]; P];
                if T > 1 && ahead > 0 && (O::W * size >= LINE || (i * size).is_multiple_of(LINE)) {
                    // At the end of these columns, the first rows of the next ones.
                    let lines = if i + ahead < m { lines } else { next };
                    for k in 0..P {
                        for t in 0..T {
                            let p = lines[k].wrapping_offset(t as isize * chunk);
                            o.prefetch(p.wrapping_add(i + ahead));
                        }
                    }
                }
                if T == 1 && c.prefetch != 0 {
                    for k in 0..P {
                        o.prefetch(lines[k].wrapping_add(i).wrapping_byte_offset(c.prefetch));
                    }
                }
                if full && rows == O::W {
                    for k in 0..P {
                        for t in 0..T {
                            let p = lines[k].wrapping_offset(t as isize * chunk);
                            v[k][t] = o.load(p.wrapping_add(i));
                        }
                    }
                } else {
                    for k in 0..P {
                        for t in 0..T {
                            if t < present[k] {
                                let p = lines[k].wrapping_offset(t as isize * chunk);
                                v[k][t] = o.load_part(p.wrapping_add(i), 0, rows);
                            }
                        }
                    }
                }
                let (mut from, mut to) = (pending.wrapping_add(i), to.wrapping_add(i));
                let mut x = c.x.cast::<O::Acc>();
                let x_ahead = if T == 1 && i == 0 { x_ahead } else { 0 };
                for b in 0..c.columns {
                    let mut acc = [o.zero(); P];
                    if T > 1 {
                        let xs = xs[b].assume_init_ref();
                        for t in 0..T {
                            for k in 0..P {
                                acc[k] = o.fma(v[k][t], o.splat(xs[k][t]), acc[k]);
                            }
                        }
                    } else {
                        if x_ahead != 0 {
                            o.prefetch(x.cast::<O::T>().wrapping_byte_offset(x_ahead));
                        }
                        for k in 0..P {
                            if full || present[k] > 0 {
                                let x = o.splat(*x.wrapping_offset(entries[k]));
                                acc[k] = o.fma(v[k][0], x, acc[k]);
                            }
                        }
                        x = x.wrapping_offset(c.x_ld);
                    }
                    // In this order of lanes the halving adds neighbours.
                    let mut h = 1;
                    while h < P {
                        for k in (0..P).step_by(2 * h) {
                            acc[k] = o.add(acc[k], acc[k + h]);
                        }
                        h *= 2;
                    }
                    let mut sum = acc[0];
                    for l in 0..if M == ANY { merges } else { M } {
                        sum = o.add(o.load_acc(from.wrapping_sub(l * level)), sum);
                    }
                    if left_out {
                        // For the absent lanes.
                        sum = o.add(sum, o.zero());
                    }
                    match last && rows < O::W {
                        true => o.store_part(sum, to, 0, rows),
                        false => o.store(sum, to),
                    }
                    (from, to) = (from.wrapping_add(c.stack_ld), to.wrapping_offset(to_ld));
                }
            }
        }
    }
}

/// Any number of pending sums.
const ANY: usize = usize::MAX;

/// What all rows of a pass share: `P` lanes of at most `T` columns.
struct Pass<'a, O: Ops, const P: usize, const T: usize> {
    /// The lanes' first columns; the next ones are `chunk` elements further.
    lines: [*const O::T; P],
    /// Those of the pass after it, less all rows.
    next: [*const O::T; P],
    chunk: isize,
    /// How many columns each lane has.
    present: [usize; P],
    /// Their entries of each column of X, if `T` is not 1.
    xs: &'a [MaybeUninit<[[O::Acc; T]; P]>; COLUMNS],
    /// Where they lie in a column of X, if `T` is 1.
    entries: [isize; P],
    /// The last of the pending sums; those before it are `level` accumulators apart.
    pending: *const O::Acc,
    level: usize,
    merges: usize,
    /// Where the sums go.
    to: *mut O::Acc,
    to_ld: isize,
    /// Whether levels of the halving are left out.
    left_out: bool,
    /// Whether the sums are those of the segment.
    last: bool,
    /// The distance of a prefetch of each column of X, if `T` is 1, or 0.
    x_ahead: isize,
}
