//! Which rows and columns a device has.

use std::ops::Range;

use gemv_core::order::{LANES, SEGMENT};

use crate::dealt::Dealt;
use crate::{Error, Result};

/// How a matrix is cut over the devices of a process.
///
/// Rows are cut anywhere, columns at multiples of 256. A device has one block: rows that follow one another, and
/// columns that do, if they are not dealt cyclically. With more devices than rows, or than blocks of 256 columns, some have nothing.
///
/// ```
/// use gemv::open_devices;
/// use gemv_shard::{Sharded, Split};
/// use ndarray::Array2;
///
/// let (a, two) = (Array2::<f32>::zeros((5, 600)), open_devices("reference, reference")?);
/// let blocks = |split| -> gemv_shard::Result<Vec<_>> {
///     Ok(Sharded::new(&a, &two, split)?.parts().map(|(_, rows, columns)| (rows, columns)).collect())
/// };
/// assert_eq!(blocks(Split::Rows)?, [(0..2, 0..600), (2..5, 0..600)]);
/// assert_eq!(blocks(Split::Columns)?, [(0..5, 0..256), (0..5, 256..600)]);
/// // Blocks 0 and 2, and block 1: from the first column of each to the last.
/// assert_eq!(blocks(Split::CyclicColumns)?, [(0..5, 0..600), (0..5, 256..512)]);
/// # Ok::<(), gemv_shard::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Block rows. Each device computes its entries of y, and nothing is added up afterwards.
    Rows,
    /// Block columns. Each device sums its columns, and the sums are added up.
    Columns,
    /// Block-cyclic columns, as ScaLAPACK deals them in blocks of 256: device p of P has blocks p, p + P, p + 2 P and so
    /// on. P is a power of two up to 64, and all weights are equal.
    ///
    /// Each device then has whole lanes of the [order](gemv_core::order), and gives one number for each row and
    /// 65,536 columns of the whole, where with [`Columns`](Self::Columns) it gives one for each row and 256 columns of its
    /// own. Between GPUs this is the faster cut by columns of large matrices that are about square. On each device the matrix is
    /// stored row by row, in rows of a multiple of 64 elements; while it is uploaded, the host has a copy.
    CyclicColumns,
    /// A grid of devices in row-major order: device d is in row `d / columns` and in column `d % columns`.
    ///
    /// (Each device has one block. The grid of `gemv-mpi` deals blocks of 256 × 256 cyclically.)
    Grid {
        /// Rows of the grid.
        rows: usize,
        /// Columns of the grid.
        columns: usize,
    },
}

/// Rows of the matrix, and the columns of each device that has these rows.
pub(crate) type Band = (Range<usize>, Vec<Range<usize>>);

impl Split {
    /// The blocks of all devices, one after the other. A device's share is its weight among those that share
    /// the rows, and theirs among all.
    pub(crate) fn cut(self, (m, n): (usize, usize), weights: &[f64]) -> Result<Vec<Band>> {
        let devices = weights.len();
        if devices == 0 {
            return Err(Error::NoDevices);
        }
        let in_row = match self {
            Split::Rows => 1,
            Split::Columns | Split::CyclicColumns => devices,
            Split::Grid { rows, columns } if rows.checked_mul(columns) == Some(devices) => columns,
            Split::Grid { rows, columns } => return Err(Error::Grid { rows, columns, devices }),
        };
        let wrong = weights.iter().position(|weight| !(weight.is_finite() && *weight > 0.0));
        if let Some(at) = wrong {
            let weight = weights[at];
            let reason = format!("that of device {at} is {weight}, not positive and finite");
            return Err(Error::Weights { reason });
        }
        if self == Split::CyclicColumns {
            return cyclic((m, n), weights);
        }
        // Their sum would overflow.
        let most = weights.iter().copied().fold(0.0, f64::max);
        let of_row = |row: &[f64]| row.iter().map(|weight| weight / most).sum();
        let rows = shares(m, &weights.chunks(in_row).map(of_row).collect::<Vec<f64>>());
        let bands = rows.into_iter().zip(weights.chunks(in_row)).map(|(rows, weights)| {
            let blocks = shares(n.div_ceil(SEGMENT), weights);
            // The end of the last block can be more than a number holds.
            let at = |block: usize| block.checked_mul(SEGMENT).map_or(n, |at| at.min(n));
            (rows, blocks.into_iter().map(|run| at(run.start)..at(run.end)).collect())
        });
        Ok(bands.collect())
    }
}

/// All rows, and of each device the columns from its first to its last.
fn cyclic((m, n): (usize, usize), weights: &[f64]) -> Result<Vec<Band>> {
    let processes = weights.len();
    if !processes.is_power_of_two() || processes > LANES {
        return Err(Error::CyclicDevices { devices: processes });
    }
    if let Some(other) = weights.iter().position(|weight| *weight != weights[0]) {
        let (first, weight) = (weights[0], weights[other]);
        let reason = format!(
            "columns are dealt cyclically in equal shares, but device 0 has {first} and device {other} {weight}"
        );
        return Err(Error::Weights { reason });
    }
    let spans = (0..processes).map(|process| Dealt { process, processes }.span(n));
    Ok(vec![(0..m, spans.collect())])
}

/// So many items, shared by these weights: each share is at most one item off.
fn shares(items: usize, weights: &[f64]) -> Vec<Range<usize>> {
    let most = weights.iter().copied().fold(0.0, f64::max);
    let sums = weights.iter().scan(0.0, |sum, weight| {
        *sum += weight / most;
        Some(*sum)
    });
    let sums: Vec<f64> = sums.collect();
    let total = sums[sums.len() - 1];
    let mut start = 0;
    let last = sums.len() - 1;
    let share = |(which, sum): (usize, &f64)| {
        let end = match which == last {
            true => items,
            // Rounding keeps the order of two numbers.
            false => ((items as f64 * sum / total) as usize).min(items),
        };
        let share = start..end;
        start = end;
        share
    };
    sums.iter().enumerate().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPLITS: [Split; 4] = [
        Split::Rows,
        Split::Columns,
        Split::Grid { rows: 2, columns: 3 },
        Split::Grid { rows: 3, columns: 2 },
    ];

    /// Every element has one device, and columns are cut at multiples of 256.
    #[test]
    fn every_element_has_one_device() {
        let most = f64::MAX;
        let weights = [
            [1.0; 6],
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            [1e-300, 1.0, 1e300, 1.0, 1e-300, 1.0],
            [most; 6],
            [most, f64::MIN_POSITIVE, f64::from_bits(1), f64::from_bits(1), f64::from_bits(1), 1.0],
        ];
        let lengths = [0, 1, 2, 5, 255, 256, 257, 1000, 5000, (1 << 60) + 1, usize::MAX];
        for (split, weights) in SPLITS.into_iter().flat_map(|s| weights.map(|w| (s, w))) {
            for (m, n) in lengths.into_iter().flat_map(|m| lengths.map(|n| (m, n))) {
                let bands = split.cut((m, n), &weights).unwrap();
                let what = format!("{split:?} {m} {n} {weights:?}: {bands:?}");
                let follow = |runs: Vec<Range<usize>>, end: usize| {
                    assert_eq!((runs[0].start, runs[runs.len() - 1].end), (0, end), "{what}");
                    assert!(runs.iter().all(|run| run.start <= run.end), "{what}");
                    assert!(runs.windows(2).all(|two| two[0].end == two[1].start), "{what}");
                };
                follow(bands.iter().map(|(rows, _)| rows.clone()).collect(), m);
                for (_, columns) in &bands {
                    follow(columns.clone(), n);
                    let ends = columns.iter().map(|run| run.end);
                    assert!(ends.into_iter().all(|at| at == n || at % SEGMENT == 0), "{what}");
                }
                assert_eq!(bands.iter().map(|(_, columns)| columns.len()).sum::<usize>(), 6);
            }
        }
    }

    #[test]
    fn cyclic_columns_are_for_powers_of_two_and_equal_weights() {
        let cut = |n, weights: &[f64]| Split::CyclicColumns.cut((5, n), weights);
        assert_eq!(cut(1000, &[1.0; 2]).unwrap(), [(0..5, vec![0..768, 256..1000])]);
        assert_eq!(cut(300, &[2.0; 4]).unwrap(), [(0..5, vec![0..256, 256..300, 0..0, 0..0])]);
        assert_eq!(cut(usize::MAX, &[1.0]).unwrap()[0].1[0], 0..usize::MAX);
        let why = |weights: &[f64]| cut(1000, weights).unwrap_err().to_string();
        let three = "columns are dealt cyclically to 1, 2, 4, 8, 16, 32 or 64 devices, not to 3";
        assert_eq!(why(&[1.0; 3]), three);
        assert!(why(&[1.0; 128]).ends_with("not to 128"));
        let unequal = "weights do not fit: columns are dealt cyclically in equal shares, but device 0 has 1 and \
                       device 1 2";
        assert_eq!(why(&[1.0, 2.0]), unequal);
        assert!(why(&[0.0, 0.0]).contains("not positive"));
        assert_eq!(why(&[]), Error::NoDevices.to_string());
    }

    /// Without weights, the blocks are those of `gemv-mpi`.
    #[test]
    fn evenly() {
        for count in 1..20 {
            for items in (0..70).chain([1000, 4095, 4096, 999_983, (1 << 40) + 7]) {
                let even =
                    (0..count).map(|which| items * which / count..items * (which + 1) / count);
                assert!(shares(items, &vec![1.0; count]).into_iter().eq(even), "{items} {count}");
            }
        }
    }

    #[test]
    fn by_weight() {
        assert_eq!(shares(100, &[3.0, 1.0]), [0..75, 75..100]);
        assert_eq!(shares(10, &[1e-9, 1.0, 1.0]), [0..0, 0..5, 5..10]);
        // A row of the grid has the weight of its devices, and cuts its own columns.
        let grid = Split::Grid { rows: 2, columns: 2 };
        let bands = grid.cut((80, 4 * SEGMENT), &[1.0, 1.0, 1.5, 4.5]).unwrap();
        let at = |columns: [usize; 3]| {
            let [a, b, c] = columns.map(|block| block * SEGMENT);
            vec![a..b, b..c]
        };
        assert_eq!(bands, [(0..20, at([0, 2, 4])), (20..80, at([0, 1, 4]))]);
    }
}
