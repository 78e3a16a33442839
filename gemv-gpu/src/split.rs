//! Split-K: how the segments of a row are split over blocks, by one rule on the host and in kernels.

use gemv_core::order::SEGMENT;

use crate::kernel::Case;
use crate::launch::Launch;

/// Most blocks that share a row.
pub(crate) const MAX_SPLIT: u32 = 1 << 20;
/// Rows of fewer super-segments keep the number of parts that the parameters give.
const MIN_SUPER_SEGMENTS: u64 = 8;
/// Threads of a block of the second launch, as in `reduce.k`.
const REDUCE: u64 = 128;

/// How the segments of a row are split over blocks. The kernels read `parts` from the grid and
/// compute the rest by the same rule. A super-segment is 256 segments.
///
/// ```
/// use gemv_gpu::Split;
/// let split = Split::of(10_000, 8); // 40 segments
/// assert_eq!(split, Split { parts: 8, count: 40, super_segments: false });
/// assert_eq!(split.workspace(3), 3 * (40 + 1)); // and one sum above them
/// assert_eq!(split.reduce(3).unwrap().entry, "reduce_segments");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Blocks that share a row; none is without segments.
    pub parts: u64,
    /// Sums a row that the first launch leaves in the workspace; 0 where it writes y.
    pub count: u64,
    /// Whether each of them is of a super-segment, in place of a segment.
    pub super_segments: bool,
}

impl Split {
    /// The split of rows of `n` columns into at most `asked` parts (0 counts as 1). There are fewer,
    /// down to a quarter, where that leaves fewer sums.
    ///
    /// Beyond 255 segments a part, the workspace has one sum for every super-segment (65,536
    /// columns): rule 4 of the [order](gemv_core::order) once more.
    ///
    /// ```
    /// use gemv_gpu::Split;
    /// assert_eq!(Split::of(10_000, 1).count, 0); // whole rows: y is written at once
    /// assert_eq!(Split::of(10_000, 100).parts, 40); // no more parts than segments
    /// let long = Split::of(1 << 24, 8); // 65,536 segments
    /// assert_eq!((long.super_segments, long.count), (true, 256));
    /// ```
    pub fn of(n: usize, asked: u32) -> Split {
        let segments = n.div_ceil(SEGMENT) as u64;
        let asked = fewer_parts(segments, u64::from(asked.max(1)));
        if segments > 255 * asked {
            let supers = segments.div_ceil(SEGMENT as u64);
            if supers == 1 && asked == 1 {
                return Split { parts: 1, count: 0, super_segments: false };
            }
            let parts = supers.div_ceil(supers.div_ceil(asked));
            return Split { parts, count: supers, super_segments: true };
        }
        let parts = segments.max(1).div_ceil(segments.max(1).div_ceil(asked));
        let count = if parts == 1 { 0 } else { segments };
        Split { parts, count, super_segments: false }
    }

    /// Workspace of `m` rows: the sums of row i begin at `i * workspace(1)`, and the reduction puts
    /// every further level behind them.
    ///
    /// The unit is one value of the accumulator's type.
    ///
    /// ```
    /// use gemv_gpu::Split;
    /// assert_eq!(Split::of(1 << 16, 4).workspace(10), 10 * (256 + 1));
    /// assert_eq!(Split::of(1 << 16, 1).workspace(10), 0);
    /// ```
    pub fn workspace(&self, m: u64) -> u64 {
        let (mut total, mut count) = (self.count, self.count);
        while count > 1 {
            count = count.div_ceil(SEGMENT as u64);
            total += count;
        }
        m.saturating_mul(total)
    }

    /// The launch of [`REDUCE_SOURCE`] that reduces `m` rows of sums to y; `None` where there are none.
    ///
    /// ```
    /// use gemv_gpu::Split;
    /// assert_eq!(Split::of(1 << 16, 1).reduce(10), None);
    /// assert_eq!(Split::of(1 << 24, 8).reduce(10).unwrap().entry, "reduce_super_segments");
    /// ```
    pub fn reduce(&self, m: u64) -> Option<Launch> {
        if self.count == 0 {
            return None;
        }
        let rows = if self.count <= SEGMENT as u64 { REDUCE / 32 } else { 1 };
        let entry = if self.super_segments { "reduce_super_segments" } else { "reduce_segments" };
        Some(Launch::new(entry, m.div_ceil(rows), REDUCE))
    }

    /// The same for the `outputs` entries of Y, of several right-hand sides and batches: a launch of
    /// [`GEMM_REDUCE_SOURCE`].
    ///
    /// ```
    /// use gemv_gpu::Split;
    /// assert_eq!(Split::of(1 << 24, 1).gemm_reduce(10).unwrap().entry, "gemm_reduce_super_segments");
    /// ```
    pub fn gemm_reduce(&self, outputs: u64) -> Option<Launch> {
        let entry = match self.super_segments {
            true => "gemm_reduce_super_segments",
            false => "gemm_reduce_segments",
        };
        self.reduce(outputs).map(|reduce| Launch { entry, ..reduce })
    }
}

/// Fewer parts than asked, down to a quarter, where that leaves sums of super-segments. The reason:
/// thousands of sums of single segments are reduced by one block, after all others have ended.
fn fewer_parts(segments: u64, asked: u64) -> u64 {
    let most = segments.saturating_sub(1) / 255;
    if most >= MIN_SUPER_SEGMENTS && 2 * most >= asked { asked.min(most) } else { asked }
}

/// Blocks that share a row, so that every multiprocessor has `each` blocks of `sets` sets of rows. 1 where the sets are
/// enough; every block keeps at least `least` segments.
pub(crate) fn split_sets(of: &Case<'_>, sets: u64, least: u64, each: u64) -> u64 {
    let most = (of.desc.n.div_ceil(SEGMENT) as u64).div_ceil(least);
    // Rounded down: filling the last few multiprocessors does not pay for a second launch.
    let want = each * u64::from(of.caps.units) / sets.max(1);
    want.min(most).max(1).min(MAX_SPLIT.into())
}

/// The reduction of segment sums in the workspace, for the end of a kernel's source.
///
/// ```
/// use gemv_gpu::{REDUCE_SOURCE, Split};
/// let launch = Split::of(1 << 16, 4).reduce(1).unwrap();
/// assert!(REDUCE_SOURCE.contains(launch.entry));
/// ```
pub const REDUCE_SOURCE: &str = include_str!("kernels/reduce.k");

/// The same for several right-hand sides and batches, behind [`REDUCE_SOURCE`].
///
/// ```
/// use gemv_gpu::{GEMM_REDUCE_SOURCE, Split};
/// let launch = Split::of(1 << 16, 4).gemm_reduce(1).unwrap();
/// assert!(GEMM_REDUCE_SOURCE.contains(launch.entry));
/// ```
pub const GEMM_REDUCE_SOURCE: &str = include_str!("kernels/gemm_reduce.k");

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::kernel::Kernel;

    /// What the kernels compute from the grid: (direct, super_segments, parts that have segments, sums).
    fn as_in_the_kernel(n: usize, parts: u64) -> (bool, bool, u64, u64) {
        let segments = n.div_ceil(SEGMENT) as u64;
        let supers = segments.div_ceil(256);
        let direct = parts == 1 && segments <= 256;
        let super_segments = !direct && segments > 255 * parts;
        let unit = if super_segments { supers } else { segments };
        let per = unit.div_ceil(parts);
        let used = if unit == 0 { 1 } else { unit.div_ceil(per) };
        let count = match (direct, super_segments) {
            (true, _) => 0,
            (_, true) => supers,
            _ => segments,
        };
        (direct, super_segments, used, count)
    }

    #[test]
    fn host_and_kernel_split_alike() {
        for n in (0..300).chain((1..2000).map(|k| k * 97)).chain([1 << 24, (1 << 31) + 1, 1 << 33])
        {
            for asked in [1, 2, 3, 4, 5, 7, 8, 16, 60, 64, 100, 255, 256, 1000, 1 << 20] {
                let s = Split::of(n, asked);
                assert!(s.parts >= 1 && s.parts <= u64::from(asked), "{n} {asked} {s:?}");
                let (direct, super_segments, used, count) = as_in_the_kernel(n, s.parts);
                assert_eq!(direct, s.count == 0, "{n} {asked} {s:?}");
                assert_eq!(
                    (super_segments, count),
                    (s.super_segments, s.count),
                    "{n} {asked} {s:?}"
                );
                assert_eq!(used, s.parts, "a part without segments: {n} {asked} {s:?}");
            }
        }
    }

    /// A long row is left as sums of 256 segments where enough of the parts stay.
    #[test]
    fn few_sums_are_left_of_long_rows() {
        // Columns, parts asked: super-segments, parts.
        for (n, asked, supers, parts) in [
            (1 << 24, 264, 256, 256), // not 65,536 sums of 264 parts
            (1_746_816, 27, 27, 14),
            (3_000_000, 66, 46, 23), // two a part: 46 parts would go by segments
        ] {
            let split = Split::of(n, asked);
            assert_eq!(split, Split { parts, count: supers, super_segments: true }, "{n} {asked}");
            assert!(4 * split.parts >= u64::from(asked), "{n} {asked}");
        }
        for (n, asked) in [(3_000_000, 128), (500_000, 8), (309_976, 88)] {
            assert!(!Split::of(n, asked).super_segments, "{n} {asked}");
        }
    }

    #[test]
    fn every_multiprocessor_has_blocks_where_there_are_segments() {
        let mut caps = crate::Caps::new(crate::Language::Cuda);
        caps.units = 100;
        let split = |m: u64, n, rows, least, each| {
            let (params, one) = (Params::new("any"), Desc::of(Dtype::F32, Layout::Row, (1, n), 6));
            let of = Case::new(&Kernel::GEMV, &one, &params, &caps);
            split_sets(&of, m.div_ceil(rows), least, each)
        };
        assert_eq!(split(10, 1 << 20, 1, 1, 8), 80);
        assert_eq!(split(10, 1 << 20, 2, 1, 8), 160);
        assert_eq!(split(100_000, 1 << 20, 1, 1, 8), 1);
        // Ten segments: ten parts at most, five where each has at least two.
        assert_eq!((split(1, 2560, 1, 1, 8), split(1, 2560, 1, 2, 8)), (10, 5));
        assert_eq!((split(0, 0, 1, 1, 8), split(1, 0, 4, 4, 1)), (1, 1));
    }
}
