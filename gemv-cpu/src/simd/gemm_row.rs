//! The row kernel for several right-hand sides: a vector holds neighbouring lanes, and each load of the matrix serves
//! a few columns of X.

// Arrays of rows and of columns are indexed together: the numbers say more than iterators would.
#![allow(clippy::needless_range_loop)]

use core::hint::black_box;
use core::mem::MaybeUninit;

use gemv_core::Accumulator;
use gemv_core::order::{LANES, SEGMENT};

use super::ops::{Body, Ops};
use super::window::{COLUMNS, RhsCall, Window, bit_reversed};

/// Rows of a tile, at most.
const ROWS: usize = 3;

/// Columns of X of a tile that has one vector of lanes.
const WIDE: usize = 8;

/// Sums that are halved together where at least so many are left.
const ALL: usize = 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The sums of one segment, at most 256 columns of the matrix, for all rows and all columns of X.
///
/// The sums of a tile of rows and columns stay in registers, for two vectors of lanes at a time that the halving adds
/// first ([`RowRhs::wide`] has one). These pairs come in bit-reversed order, so that the halving adds neighbours. The
/// columns of X that follow find the rows in the first-level cache. Lanes within a vector are halved for all columns
/// together: the additions of one tile are a chain that the next tile would wait for.
pub(super) struct RowRhs<'a, O> {
    pub(super) o: O,
    pub(super) c: &'a RhsCall,
}

/// An expression of `R` and `C`, the rows and columns of a tile for `left` columns. Twice as many sums as the tile has
/// stay in registers, with a vector of each of its rows: 24 of 32 registers, or 12 of 16. [`RowRhs::wide`] has 24 sums too.
macro_rules! tile {
    ($full:literal, $left:expr, $self:ident.$tile:ident($($arg:expr),*)) => {
        if const { O::FOLD_ALL } {
            match $left {
                1 => $self.$tile::<3, 1, $full>($($arg),*),
                2 => $self.$tile::<3, 2, $full>($($arg),*),
                3 => $self.$tile::<3, 3, $full>($($arg),*),
                _ => $self.$tile::<3, 4, $full>($($arg),*),
            }
        } else {
            match $left {
                1 => $self.$tile::<2, 1, $full>($($arg),*),
                2 => $self.$tile::<2, 2, $full>($($arg),*),
                _ => $self.$tile::<2, 3, $full>($($arg),*),
            }
        }
    };
}

impl<O: Ops> Body for RowRhs<'_, O> {
    #[inline(always)]
    unsafe fn run(self) {
        let RowRhs { c, .. } = self;
        let rows = if O::FOLD_ALL { 3 } else { 2 };
        let mut lanes = [const { MaybeUninit::uninit() }; ROWS * COLUMNS];
        for i in (0..c.a.m).step_by(rows) {
            let (mut at, mut prefetch) = (0, c.prefetch);
            // SAFETY: the caller's; so many columns are left, and tiles write all lanes that are halved.
            unsafe {
                while at < c.columns {
                    let left = c.columns - at;
                    if O::FOLD_ALL && left >= WIDE && c.a.n == SEGMENT {
                        self.wide::<3>(i, at, prefetch, &mut lanes);
                        (at, prefetch) = (at + WIDE, 0);
                        continue;
                    }
                    at += match c.a.n == SEGMENT {
                        true => tile!(true, left, self.tile(i, at, prefetch, &mut lanes)),
                        false => tile!(false, left, self.tile(i, at, prefetch, &mut lanes)),
                    };
                    prefetch = 0;
                }
                self.halve(i, rows.min(c.a.m - i), &mut lanes);
            }
        }
    }
}

/// The lanes of some rows, row after row: a vector for each column of X.
type Lanes<O> = [MaybeUninit<<O as Ops>::V>; ROWS * COLUMNS];

/// The sums of a tile for one vector of lanes.
type Sums<O, const R: usize, const C: usize> = [[<O as Ops>::V; R]; C];

impl<O: Ops> RowRhs<'_, O> {
    /// Columns `at .. at + C` of X for the `R` rows from i on. Returns C.
    #[inline(always)]
    unsafe fn tile<const R: usize, const C: usize, const FULL: bool>(
        &self,
        i: usize,
        at: usize,
        prefetch: isize,
        lanes: &mut Lanes<O>,
    ) -> usize {
        let RowRhs { o, c } = *self;
        let a: Window<O::T> = c.a.cast();
        let n = if FULL { SEGMENT } else { a.n };
        // The last row again for those beyond it.
        let rows: [*const O::T; R] =
            core::array::from_fn(|r| a.p.wrapping_offset((i + r).min(a.m - 1) as isize * a.line));
        let x: [*const O::Acc; C] = core::array::from_fn(|k| {
            c.x.cast::<O::Acc>().wrapping_offset((at + k) as isize * c.x_ld)
        });
        // Vectors whose lanes are all absent are left out, and with them levels of the halving.
        let vectors = match FULL {
            true => O::VECTORS,
            false => n.div_ceil(O::W).next_power_of_two().clamp(2, O::VECTORS),
        };
        // SAFETY: the caller's: rows and columns are good for n.
        unsafe {
            let mut pending = [const { MaybeUninit::<Sums<O, R, C>>::uninit() }; 3];
            let mut depth = 0;
            for q in 0..vectors / 2 {
                let first = bit_reversed(2 * q, vectors.trailing_zeros()) * O::W;
                // The other vector of the pair.
                let apart = vectors / 2 * O::W;
                let mut acc = [[[o.zero(); R]; C]; 2];
                let mut j = first;
                // Both vectors are whole.
                while j + apart + O::W <= n {
                    if FULL && prefetch != 0 {
                        // Line by line, though the vectors are not neighbours.
                        let share = 2 * O::W * size_of::<O::T>();
                        let step = 4 * q + j / LANES;
                        for line in (step * share..(step + 1) * share).step_by(LINE) {
                            for row in rows {
                                o.prefetch(row.wrapping_byte_offset(prefetch + line as isize));
                            }
                        }
                    }
                    for h in 0..2 {
                        let j = j + h * apart;
                        let mut v = [o.zero(); R];
                        for r in 0..R {
                            v[r] = o.load(rows[r].wrapping_add(j));
                        }
                        for k in 0..C {
                            let x = o.x(x[k].wrapping_add(j));
                            for r in 0..R {
                                acc[h][k][r] = o.fma(v[r], x, acc[h][k][r]);
                            }
                        }
                    }
                    j += LANES;
                }
                if !FULL && j < n {
                    for h in 0..2 {
                        let j = j + h * apart;
                        let hi = n.saturating_sub(j).min(O::W);
                        let mut v = [o.zero(); R];
                        for r in 0..R {
                            v[r] = o.load_part(rows[r].wrapping_add(j), 0, hi);
                        }
                        for k in 0..C {
                            let x = o.x_part(x[k].wrapping_add(j), 0, hi);
                            for r in 0..R {
                                acc[h][k][r] = o.fma_part(v[r], x, acc[h][k][r], (0, hi));
                            }
                        }
                    }
                }
                let mut sum = acc[0];
                for k in 0..C {
                    for r in 0..R {
                        sum[k][r] = o.add(sum[k][r], acc[1][k][r]);
                    }
                }
                let mut level = q;
                while level & 1 == 1 {
                    depth -= 1;
                    let earlier = pending[depth].assume_init_ref();
                    for k in 0..C {
                        for r in 0..R {
                            sum[k][r] = o.add(earlier[k][r], sum[k][r]);
                        }
                    }
                    level >>= 1;
                }
                if q + 1 < vectors / 2 {
                    pending[depth].write(sum);
                    depth += 1;
                    continue;
                }
                for k in 0..C {
                    for r in 0..R {
                        lanes[r * c.columns + at + k].write(sum[k][r]);
                    }
                }
            }
        }
        C
    }

    /// [`WIDE`] columns `at ..` of X for the `R` rows from i on, of whole segments: one vector of lanes at a time, so that
    /// a load serves more sums.
    #[inline(always)]
    unsafe fn wide<const R: usize>(
        &self,
        i: usize,
        at: usize,
        prefetch: isize,
        lanes: &mut Lanes<O>,
    ) {
        let RowRhs { o, c } = *self;
        let a: Window<O::T> = c.a.cast();
        // The last row again for those beyond it.
        let rows: [*const O::T; R] =
            core::array::from_fn(|r| a.p.wrapping_offset((i + r).min(a.m - 1) as isize * a.line));
        let x = c.x.cast::<O::Acc>().wrapping_offset(at as isize * c.x_ld);
        // SAFETY: the caller's: rows and columns are good for a segment.
        unsafe {
            let mut pending = [const { MaybeUninit::<Sums<O, R, WIDE>>::uninit() }; 3];
            let mut depth = 0;
            for q in 0..O::VECTORS {
                let first = bit_reversed(q, O::VECTORS.trailing_zeros()) * O::W;
                let mut sum = [[o.zero(); R]; WIDE];
                // Not unrolled: loads would be moved forward, and take the registers of sums.
                for s in 0..black_box(SEGMENT / LANES) {
                    let j = first + s * LANES;
                    if prefetch != 0 {
                        // Line by line, though the vectors are not neighbours.
                        let line = (q * SEGMENT / LANES + s) * O::W * size_of::<O::T>();
                        for row in rows {
                            o.prefetch(row.wrapping_byte_offset(prefetch + line as isize));
                        }
                    }
                    let mut v = [o.zero(); R];
                    for r in 0..R {
                        v[r] = o.load(rows[r].wrapping_add(j));
                    }
                    for k in 0..WIDE {
                        let x = o.x(x.wrapping_offset(k as isize * c.x_ld).wrapping_add(j));
                        for r in 0..R {
                            sum[k][r] = o.fma(v[r], x, sum[k][r]);
                        }
                    }
                }
                let mut level = q;
                while level & 1 == 1 {
                    depth -= 1;
                    let earlier = pending[depth].assume_init_ref();
                    for k in 0..WIDE {
                        for r in 0..R {
                            sum[k][r] = o.add(earlier[k][r], sum[k][r]);
                        }
                    }
                    level >>= 1;
                }
                if q + 1 < O::VECTORS {
                    pending[depth].write(sum);
                    depth += 1;
                    continue;
                }
                for k in 0..WIDE {
                    for r in 0..R {
                        lanes[r * c.columns + at + k].write(sum[k][r]);
                    }
                }
            }
        }
    }

    /// Halves the lanes of `rows` rows from i on, for all columns of X, and stores the sums.
    #[inline(always)]
    unsafe fn halve(&self, i: usize, rows: usize, lanes: &mut Lanes<O>) {
        let RowRhs { o, c } = *self;
        let out = c.out.cast::<O::Acc>().wrapping_offset(i as isize * c.out_row);
        let count = rows * c.columns;
        // Whether the sums of all these rows are neighbours.
        let together = c.out_column == 1 && (rows == 1 || c.out_row == c.columns as isize);
        // SAFETY: the caller's: out is good for these rows; the lanes of all columns are there.
        unsafe {
            if c.a.n.div_ceil(O::W).next_power_of_two().max(2) < O::VECTORS {
                // For the absent lanes.
                for v in &mut lanes[..count] {
                    v.write(o.add(v.assume_init(), o.zero()));
                }
            }
            let (mut at, mut row, mut column) = (0, 0, 0);
            let place = |row: usize, column: usize| {
                out.wrapping_offset(row as isize * c.out_row + column as isize * c.out_column)
            };
            while at < count {
                let all = O::FOLD_ALL && count - at >= ALL;
                let here = if all { ALL } else { 4.min(count - at) };
                let mut sums = [O::Acc::ZERO; ALL];
                let whole = together || c.out_column == 1 && column + here <= c.columns;
                let direct = whole && (all || here == 4);
                let to = if direct { place(row, column) } else { sums.as_mut_ptr() };
                // Those beyond the last one are the last one.
                let lane = |k: usize| lanes[(at + k).min(count - 1)].assume_init();
                if all {
                    let v: [O::V; ALL] = core::array::from_fn(lane);
                    o.fold_all(v, to);
                } else {
                    o.fold4(core::array::from_fn(lane), to);
                }
                for sum in &sums[..here] {
                    if !direct {
                        *place(row, column) = *sum;
                    }
                    column += 1;
                    if column == c.columns {
                        (row, column) = (row + 1, 0);
                    }
                }
                at += here;
            }
        }
    }
}
