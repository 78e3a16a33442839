//! `row-streamk`: few long rows, whose segments all sub-warps of the device share evenly.

use std::ops::RangeInclusive;

use gemv_gpu::rules::*;
use gemv_gpu::{Case, Kernel, Launch, List, MAX_GRID, Plan, Rule};

use super::row_block::row_columns;

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-streamk",
    about: "Stream-K (Osama et al., 2023): the 256-column segments of all rows are dealt evenly to \
            the sub-warps of a persistent grid; row-major, few long rows.",
    source: concat!(
        include_str!("vectors.cuh"),
        include_str!("segment.cuh"),
        include_str!("row_streamk.cu")
    ),
    args: &[
        threads(128, 512),
        subwarp(8),
        rows("Rows that a sub-warp computes at a time.", 4),
        vec(1),
        // As many as a multiprocessor of any device has room for.
        blocks_per_sm(8, 32),
    ],
    mixed: true,
    rules: &[
        BY_ROWS,
        Rule::Columns(COLUMNS),
        Rule::For(|_, caps| caps.max_group >= 1024, "sums are added by 1024 threads"),
        Rule::For(|desc, _| desc.m as u64 <= MAX_GRID, "a row has a block of its own"),
        ONE_LOAD,
        LOADS_OF_LANES,
        Rule::AtMost("registers", held, most_segment_registers),
    ],
    candidates: &[
        List::Only(|of| {
            let longer = of.m() <= ROWS && of.n() > row_columns(of.caps);
            longer || of.m() <= FEWEST_ROWS && of.n() > LONG
        }),
        List::Shapes(&["threads", "rows"], &[&[128, 1], &[128, 2], &[256, 2], &[128, 4]]),
        List::Value("vec", |of| of.aligned()),
        List::Value("subwarp", |of| (LANES / of.get("vec")).min(32)),
        List::Value("blocks_per_sm", |of| resident_blocks(held(of), of.get("threads"))),
    ],
    plan,
    ..Kernel::GEMV
};

/// Rows up to which it may be faster than a block for each super-segment on an H200.
pub(crate) const ROWS: u64 = 1024;
/// One segment has no sums to add; more than two levels would need a third.
pub(crate) const COLUMNS: RangeInclusive<u64> = SEGMENT + 1..=TWO_LEVELS;
/// Up to 65,536 columns, a block with all segments of a row needs no second launch and was faster,
/// but for the fewest rows.
const FEWEST_ROWS: u64 = 16;
const LONG: u64 = 16_384;

/// Registers of a thread, with those for an item's place, as the text counts them.
fn held(of: &Case<'_>) -> u64 {
    segment_registers(of) + 8
}

fn plan(of: &Case<'_>) -> Plan {
    let (m, segments) = (of.m(), of.segments());
    // Without a row there is nothing to write; the kernel divides by their number.
    if m == 0 {
        return Plan::default();
    }
    let items = m.div_ceil(of.get("rows")).saturating_mul(segments);
    let subwarps = of.get("threads") / of.get("subwarp");
    let blocks = items.div_ceil(subwarps).min(of.blocks("blocks_per_sm")).max(1);
    let warps = segments.div_ceil(SEGMENT).next_power_of_two().min(32);
    let launches = [
        Launch::new("row_streamk", blocks, of.get("threads")),
        Launch::new("row_streamk_reduce", m, 32 * warps),
    ];
    let launches = launches.map(Launch::waiting).to_vec();
    Plan { launches, workspace: m.saturating_mul(segments), counters: 0 }
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn few_long_rows_have_candidates_and_all_are_legal() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for (m, n, some) in [
                    (1, 16_384, false),
                    (16, 65_536, true),
                    (17, 65_536, false),
                    (17, 65_537, true),
                    (1024, 300_000, true),
                    (1025, 300_000, false),
                    (2, 1 << 24, true),
                    (2, (1 << 24) + 1, false),
                    (0, 100_000, true),
                ] {
                    let desc = Desc::of(dtype, Layout::Row, (m, n), align);
                    let all = KERNEL.candidates(&desc, &caps());
                    assert_eq!(!all.is_empty(), some, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                    let col = Desc { layout: Layout::Col, ..desc };
                    assert!(KERNEL.candidates(&col, &caps()).is_empty());
                }
            }
        }
    }

    #[test]
    fn items_are_dealt_to_as_many_blocks_as_there_are_items_for() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (3, 1000), 4);
        let plan = |text: &str, m, n| {
            let desc = Desc { m, n, ..desc };
            let params: Params = text.parse().unwrap();
            KERNEL.fits(&desc, &params, &caps()).unwrap();
            KERNEL.plan(&desc, &params, &caps())
        };
        // Three rows of four segments, sub-warps of 16 in blocks of 128: twelve items for eight sub-warps.
        let few = plan("row-streamk", 3, 1000);
        assert_eq!((few.launches[0].grid[0], few.workspace), (2, 12));
        assert_eq!((few.launches[1].grid[0], few.launches[1].block[0]), (3, 32));
        assert_eq!(plan("row-streamk rows=2", 3, 1000).launches[0].grid[0], 1);
        let many = plan("row-streamk blocks_per_sm=4", 3, 10_000_000);
        assert_eq!(many.launches[0].grid[0], 4 * 132);
        // 153 sums of 256 segments a row.
        assert_eq!(many.launches[1].block[0], 1024);
        assert!(plan("row-streamk", 0, 300).launches.is_empty());
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let row = Desc::of(Dtype::F64, Layout::Row, (3, 70_000), 4);
        let mut small = caps();
        small.max_group = 512;
        for (desc, text, caps, part) in [
            (
                row,
                "row-streamk threads=100",
                caps(),
                "threads=100 is not a power of two from 32 to 512",
            ),
            (row, "row-streamk subwarp=4", caps(), "subwarp=4 is not"),
            (row, "row-streamk rows=8", caps(), "rows=8 is not a power of two from 1 to 4"),
            (row, "row-streamk vec=4", caps(), "vec=4 is more than 2"),
            (row, "row-streamk rows=4", caps(), "232 registers are more than 176"),
            (row, "row-streamk threads=512 rows=4 subwarp=32 vec=2", caps(), "more than 88"),
            (row, "row-streamk blocks_per_sm=0", caps(), "blocks_per_sm=0 is not from 1 to 32"),
            (row, "row-streamk blocks_per_sm=33", caps(), "blocks_per_sm=33 is not"),
            (row, "row-streamk", small, "sums are added by 1024 threads"),
            (Desc { n: 256, ..row }, "row-streamk", caps(), "257 to 16777216 columns, not 256"),
            (Desc { n: (1 << 24) + 1, ..row }, "row-streamk", caps(), "columns, not 16777217"),
            (Desc { m: 1 << 31, ..row }, "row-streamk", caps(), "a block of its own"),
            (Desc { layout: Layout::Col, ..row }, "row-streamk", caps(), "layout row"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        let f16 = row.of_type(Dtype::F16);
        let why = KERNEL
            .fits(&f16, &"row-streamk subwarp=32 vec=4".parse().unwrap(), &caps())
            .unwrap_err();
        assert_eq!(why, "subwarp=32 times vec=4 is more than 64 here");
    }
}
