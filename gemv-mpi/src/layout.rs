//! Which rows, columns and entries a rank has.

use std::ops::Range;

use gemv_core::order::SEGMENT;

/// How a matrix is cut over the ranks of a communicator.
///
/// ```
/// use gemv_mpi::Split;
///
/// // Of 6 ranks, in row-major order: rank 4 is in row 1 and column 1 of the grid.
/// let split = Split::Grid { p: 2, q: 3 };
/// assert_ne!(split, Split::Rows);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Block rows: each rank has rows that follow one another, as many as the others or one less.
    Rows,
    /// Block columns: each rank has columns that follow one another, in whole blocks of 256, as many as the
    /// others or one less.
    Columns,
    /// A grid of p × q ranks in row-major order, and the matrix 2-D block-cyclic over it, in blocks of
    /// 256 × 256: ScaLAPACK's distribution with MB = NB = 256 and the first block on rank 0. Rank r is in row
    /// r / q and in column r % q of the grid.
    Grid {
        /// Rows of the grid.
        p: usize,
        /// Columns of the grid.
        q: usize,
    },
}

impl Split {
    /// Rows and columns of the grid that so many ranks make.
    pub(crate) fn grid(self, ranks: usize) -> Option<(usize, usize)> {
        match self {
            Split::Rows => Some((ranks, 1)),
            Split::Columns => Some((1, ranks)),
            Split::Grid { p, q } => (p.checked_mul(q) == Some(ranks)).then_some((p, q)),
        }
    }
}

/// A matrix of m × n over a grid of p × q.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub split: Split,
    pub p: usize,
    pub q: usize,
    pub m: usize,
    pub n: usize,
}

impl Layout {
    /// Row and column of the grid.
    pub fn place(&self, rank: usize) -> (usize, usize) {
        (rank / self.q, rank % self.q)
    }

    /// Rows and columns of a rank's own part of the matrix.
    pub fn part(&self, rank: usize) -> (usize, usize) {
        let (row, column) = self.place(rank);
        match self.split {
            Split::Rows => (evenly(self.m, row, self.p).len(), self.n),
            Split::Columns => (self.m, self.block_columns(column).len()),
            Split::Grid { .. } => (numroc(self.m, row, self.p), numroc(self.n, column, self.q)),
        }
    }

    /// The rows of a row of the grid, in runs that ascend.
    pub fn rows(&self, row: usize) -> Runs {
        match self.split {
            Split::Rows => Runs::one(evenly(self.m, row, self.p)),
            Split::Columns => Runs::one(0..self.m),
            Split::Grid { .. } => Runs::cyclic(self.m, row, self.p),
        }
    }

    /// The columns of a column of the grid, in runs that ascend.
    pub fn columns(&self, column: usize) -> Runs {
        match self.split {
            Split::Rows => Runs::one(0..self.n),
            Split::Columns => Runs::one(self.block_columns(column)),
            Split::Grid { .. } => Runs::cyclic(self.n, column, self.q),
        }
    }

    /// Those of a rank's own rows whose entries of y it finishes, counted from its first row. The ranks of a
    /// row of the grid have the same rows, and share them.
    pub fn finishes(&self, rank: usize) -> Range<usize> {
        evenly(self.part(rank).0, self.place(rank).1, self.q)
    }

    /// The same as rows of the matrix, in runs that ascend.
    pub fn entries(&self, rank: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let mine = self.finishes(rank);
        let mut before = 0;
        self.rows(self.place(rank).0).filter_map(move |run| {
            let at = before..before + run.len();
            before = at.end;
            let (start, end) = (at.start.max(mine.start), at.end.min(mine.end));
            (start < end).then(|| run.start + (start - at.start)..run.start + (end - at.start))
        })
    }

    fn block_columns(&self, column: usize) -> Range<usize> {
        let blocks = evenly(self.n.div_ceil(SEGMENT), column, self.q);
        // The end of the last block can be more than a number holds.
        let at = |block: usize| block.checked_mul(SEGMENT).map_or(self.n, |at| at.min(self.n));
        at(blocks.start)..at(blocks.end)
    }
}

/// The part `which` of `count` parts of so many items: as many as the others, or one less or more.
fn evenly(items: usize, which: usize, count: usize) -> Range<usize> {
    let at = |which: usize| (items as u128 * which as u128 / count as u128) as usize;
    at(which)..at(which + 1)
}

/// ScaLAPACK's function of this name: the entries that process `which` of `count` has of n, dealt out in blocks
/// of 256.
fn numroc(n: usize, which: usize, count: usize) -> usize {
    let blocks = n.div_ceil(SEGMENT);
    let mine = blocks.saturating_sub(which).div_ceil(count);
    match n % SEGMENT {
        last @ 1.. if (blocks - 1) % count == which => (mine - 1) * SEGMENT + last,
        _ => mine * SEGMENT,
    }
}

/// Runs of indices, each apart from the next.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    first: Range<usize>,
    step: usize,
    end: usize,
}

impl Runs {
    fn one(run: Range<usize>) -> Runs {
        Runs { end: run.end, first: run, step: usize::MAX }
    }

    fn cyclic(end: usize, which: usize, count: usize) -> Runs {
        // The blocks of a single process follow one another.
        if count == 1 {
            return Runs::one(0..end);
        }
        let start = which.saturating_mul(SEGMENT).min(end);
        let first = start..start.saturating_add(SEGMENT).min(end);
        Runs { first, step: count.saturating_mul(SEGMENT), end }
    }
}

impl Iterator for Runs {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let run = self.first.clone();
        if run.is_empty() {
            return None;
        }
        let start = run.start.saturating_add(self.step).min(self.end);
        self.first = start..start.saturating_add(SEGMENT).min(self.end);
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element has one rank, every entry of y too, and the numbers are those of the runs.
    #[test]
    fn every_element_has_one_rank() {
        let lengths = [0, 1, 2, 5, 255, 256, 257, 511, 513, 1000, 2049];
        let mut splits = Vec::new();
        for ranks in 1..=7 {
            splits.extend([(Split::Rows, ranks), (Split::Columns, ranks)]);
        }
        for (p, q) in [(1, 1), (1, 4), (4, 1), (2, 3), (3, 2)] {
            splits.push((Split::Grid { p, q }, p * q));
        }
        for (split, ranks) in splits {
            for (m, n) in lengths.into_iter().flat_map(|m| lengths.map(|n| (m, n))) {
                let (p, q) = split.grid(ranks).unwrap();
                let layout = Layout { split, p, q, m, n };
                let all = |runs: Vec<Runs>| {
                    let mut all: Vec<usize> = runs.into_iter().flatten().flatten().collect();
                    all.sort_unstable();
                    all
                };
                assert!(all((0..p).map(|row| layout.rows(row)).collect()).into_iter().eq(0..m));
                let columns = (0..q).map(|column| layout.columns(column)).collect();
                assert!(all(columns).into_iter().eq(0..n), "{layout:?}");
                let mut entries = Vec::new();
                for rank in 0..ranks {
                    let (row, column) = layout.place(rank);
                    let (rows, columns) = (layout.rows(row), layout.columns(column));
                    let part = (rows.flatten().count(), columns.flatten().count());
                    assert_eq!(layout.part(rank), part, "{layout:?}, rank {rank}");
                    let own: Vec<usize> = layout.entries(rank).flatten().collect();
                    assert_eq!(own.len(), layout.finishes(rank).len());
                    entries.extend(own);
                }
                entries.sort_unstable();
                assert!(entries.into_iter().eq(0..m), "{layout:?}");
            }
        }
    }

    #[test]
    fn block_cyclic_as_scalapack_deals() {
        let layout = Layout { split: Split::Grid { p: 2, q: 2 }, p: 2, q: 2, m: 600, n: 1300 };
        assert_eq!(
            [0, 1, 2, 3].map(|rank| layout.part(rank)),
            [(344, 768), (344, 532), (256, 768), (256, 532)]
        );
        assert_eq!(layout.columns(0).collect::<Vec<_>>(), [0..256, 512..768, 1024..1280]);
        assert_eq!(layout.columns(1).collect::<Vec<_>>(), [256..512, 768..1024, 1280..1300]);
        assert_eq!(layout.rows(0).collect::<Vec<_>>(), [0..256, 512..600]);
    }

    /// Of the largest shapes, no number overflows.
    #[test]
    fn the_largest() {
        for split in
            [Split::Rows, Split::Columns, Split::Grid { p: 1, q: 3 }, Split::Grid { p: 3, q: 1 }]
        {
            let (p, q) = split.grid(3).unwrap();
            for (m, n) in [(usize::MAX, usize::MAX), (usize::MAX - 256, 1)] {
                let layout = Layout { split, p, q, m, n };
                let rows = (0..3).map(|rank| layout.part(rank).0 as u128).sum::<u128>();
                assert_eq!(rows, if p == 1 { 3 * m as u128 } else { m as u128 });
                for rank in 0..3 {
                    let _ = (layout.finishes(rank), layout.entries(rank).next());
                    let _ = layout.columns(layout.place(rank).1).next();
                }
            }
        }
    }
}
