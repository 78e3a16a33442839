//! The columns of one process in a block-cyclic distribution with blocks of 256.

use std::ops::Range;

use gemv_core::Element;
use gemv_core::order::SEGMENT;
use ndarray::{Array1, ArrayView1, ArrayView2, Axis};

use crate::Result;
use crate::memory::filled;

/// A process, from 0, and how many there are: it has blocks p, p + P, p + 2 P and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dealt {
    pub process: usize,
    pub processes: usize,
}

/// Columns of all processes whose sums are one number of a further level.
pub(crate) const GROUP: usize = SEGMENT * SEGMENT;

impl Dealt {
    /// How many columns it has of so many.
    pub fn columns(self, total: usize) -> usize {
        let Dealt { process, processes } = self;
        let segments = total.div_ceil(SEGMENT);
        let blocks = segments.saturating_sub(process).div_ceil(processes);
        let has_last = segments > 0 && (segments - 1) % processes == process;
        // The last one may be shorter. 256 of all segments can be more than a number holds.
        match (has_last, total % SEGMENT) {
            (true, last @ 1..) => (blocks - 1) * SEGMENT + last,
            _ => blocks * SEGMENT,
        }
    }

    /// From its first column to its last, with those of others between them.
    pub fn span(self, total: usize) -> Range<usize> {
        match self.columns(total) {
            0 => 0..0,
            columns => self.place(0)..self.place(columns - 1) + 1,
        }
    }

    /// Which of all columns one of its own is.
    fn place(self, column: usize) -> usize {
        (column / SEGMENT * self.processes + self.process) * SEGMENT + column % SEGMENT
    }

    /// Its blocks of `columns` columns of its own: where they lie among all, and where among its own.
    fn blocks(self, columns: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        (0..columns).step_by(SEGMENT).map(move |first| {
            let own = first..(first + SEGMENT).min(columns);
            let all = self.place(first);
            (all..all + own.len(), own)
        })
    }

    /// Its entries of a vector that begins with the first of them.
    pub fn entries<T: Element>(
        self,
        from_first: ArrayView1<'_, T>,
        columns: usize,
    ) -> Result<Array1<T>> {
        let mut entries = filled(columns, T::default())?;
        for (all, own) in self.blocks(columns) {
            let first = self.place(0);
            let all = from_first.slice_axis(Axis(0), (all.start - first..all.end - first).into());
            entries.slice_axis_mut(Axis(0), own.into()).assign(&all);
        }
        Ok(entries)
    }

    /// Copies its columns of a matrix, row by row, to rows that are `width` apart.
    pub fn copy<T: Element>(self, a: ArrayView2<'_, T>, width: usize, to: &mut [T]) {
        let columns = self.columns(a.ncols());
        for (from, to) in a.rows().into_iter().zip(to.chunks_exact_mut(width)) {
            for (all, own) in self.blocks(columns) {
                let from = from.slice_axis(Axis(0), all.into());
                match from.as_slice() {
                    Some(from) => to[own].copy_from_slice(from),
                    None => to[own].iter_mut().zip(&from).for_each(|(to, from)| *to = *from),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;

    #[test]
    fn every_column_has_one_process() {
        for processes in [1, 2, 3, 4, 64] {
            for total in [0, 1, 255, 256, 257, 512, 600, 1024, 1025, 5000] {
                let a = Array2::from_shape_fn((3, total), |(i, j)| (10_000 * i + j) as f64);
                let x = a.row(0);
                let mut seen = vec![0; total];
                for process in 0..processes {
                    let dealt = Dealt { process, processes };
                    let mine = |j: &usize| j / SEGMENT % processes == process;
                    let want: Vec<usize> = (0..total).filter(mine).collect();
                    let columns = dealt.columns(total);
                    assert_eq!(columns, want.len(), "{total} over {dealt:?}");
                    let span = dealt.span(total);
                    let ends = want.first().zip(want.last()).map(|(first, last)| *first..last + 1);
                    assert_eq!(span, ends.unwrap_or(0..0));
                    let mut there = Array2::from_elem((3, columns + 5), f64::NAN);
                    dealt.copy(a.view(), columns + 5, there.as_slice_mut().unwrap());
                    let (there, between) = there.view().split_at(Axis(1), columns);
                    assert_eq!(there, a.select(Axis(1), &want));
                    assert!(between.iter().all(|v| v.is_nan()));
                    let entries =
                        dealt.entries(x.slice_axis(Axis(0), span.into()), columns).unwrap();
                    assert_eq!(entries, x.select(Axis(0), &want));
                    want.into_iter().for_each(|j| seen[j] += 1);
                }
                assert_eq!(seen, vec![1; total]);
            }
        }
    }

    #[test]
    fn numbers_of_columns_do_not_overflow() {
        let all = |processes| {
            (0..processes).map(move |process| Dealt { process, processes }.columns(usize::MAX))
        };
        for processes in [1usize, 2, 64] {
            let sum = all(processes).fold(0u128, |sum, columns| sum + columns as u128);
            assert_eq!(sum, usize::MAX as u128);
        }
    }
}
