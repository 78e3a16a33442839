//! `row-streamk`: few long rows, whose segments all sub-warps of the device share evenly.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params};
use gemv_gpu::{Arg, Caps, Kernel, Launch, MAX_GRID, Plan, Signature, value};

use super::rules::{
    STREAMK_COLUMNS, STREAMK_ROWS, aligned, blocks_per_sm, layout, limits, row_columns, widest,
};
use super::segment::{ROWS, SUBWARP, THREADS, VEC, fits, held, resident_blocks};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-streamk",
    about: "Stream-K (Osama et al., 2023): the 256-column segments of all rows are dealt evenly to \
            the sub-warps of a persistent grid; row-major, few long rows.",
    source: concat!(
        include_str!("vectors.cuh"),
        include_str!("segment.cuh"),
        include_str!("row_streamk.cu")
    ),
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: true,
    ordered: true,
    candidates,
    legal,
    plan,
};

/// Most blocks that a multiprocessor of any device has room for.
const MOST_BLOCKS: u32 = 32;
const ARGS: &[Arg] = &[THREADS, SUBWARP, ROWS, VEC, blocks_per_sm(8, MOST_BLOCKS)];
/// Registers of a thread for an item's place, as the text counts them.
const EXTRA_REGISTERS: u32 = 8;

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name).max(1));
    let (m, segments) = (desc.m as u64, (desc.n as u64).div_ceil(SEGMENT as u64));
    // Without a row there is nothing to write; the kernel divides by their number.
    if m == 0 {
        return Plan::default();
    }
    let items = m.div_ceil(get("rows")).saturating_mul(segments);
    let subwarps = (get("threads") / get("subwarp")).max(1);
    let most = u64::from(caps.units) * get("blocks_per_sm");
    let blocks = items.div_ceil(subwarps).min(most).max(1);
    let mut plan = Plan { workspace: m.saturating_mul(segments), ..Plan::default() };
    let first = Launch::new("row_streamk", blocks, value(ARGS, params, "threads"));
    plan.launches.push(first.waiting());
    let warps = (segments as u32).div_ceil(SEGMENT as u32).next_power_of_two().min(32);
    let reduce = Launch::new("row_streamk_reduce", m, 32 * warps);
    plan.launches.push(reduce.waiting());
    plan
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (threads, subwarp, vec) = (get("threads"), get("subwarp"), get("vec"));
    limits(&[("threads", threads, caps.max_group), ("vec", vec, widest(desc.dtype))])?;
    if subwarp * vec > LANES as u32 {
        return Err(format!("subwarp={subwarp} with vec={vec} is more than {LANES} lanes"));
    }
    fits(held(desc, params, EXTRA_REGISTERS), threads)?;
    if caps.max_group < 1024 {
        return Err(format!("sums are added by 1024 threads, not {}", caps.max_group));
    }
    if !STREAMK_COLUMNS.contains(&desc.n) {
        let (low, high) = (STREAMK_COLUMNS.start(), STREAMK_COLUMNS.end());
        return Err(format!("row-streamk is for {low} to {high} columns, not {}", desc.n));
    }
    if desc.m as u64 > MAX_GRID {
        return Err(format!("{} rows are more than {MAX_GRID} blocks", desc.m));
    }
    Ok(())
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let longer = desc.m <= STREAMK_ROWS && desc.n > row_columns(caps);
    if !longer && (desc.m > FEWEST_ROWS || desc.n <= LONG) {
        return Vec::new();
    }
    let vec = aligned(desc);
    let subwarp = (LANES as u32 / vec).min(32);
    let all = SHAPES.iter().map(|&(threads, rows)| {
        let params = Params::new(KERNEL.name).with("threads", threads).with("subwarp", subwarp);
        let params = params.with("rows", rows).with("vec", vec);
        let held = held(desc, &params, EXTRA_REGISTERS);
        params.with("blocks_per_sm", resident_blocks(held, threads))
    });
    all.filter(|params| KERNEL.fits(desc, params, caps).is_ok()).collect()
}

/// Threads of a block, rows of a sub-warp.
const SHAPES: [(u32, u32); 4] = [(128, 1), (128, 2), (256, 2), (128, 4)];
/// Up to 65,536 columns, a block with all segments of a row needs no second launch and was faster,
/// but for the fewest rows.
const FEWEST_ROWS: usize = 16;
const LONG: usize = 16_384;

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

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
                    let all = candidates(&desc, &caps());
                    assert_eq!(!all.is_empty(), some, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                    let col = Desc { layout: Layout::Col, ..desc };
                    assert!(candidates(&col, &caps()).is_empty());
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
            plan(&desc, &params, &caps())
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
            (row, "row-streamk", small, "sums are added by 1024 threads, not 512"),
            (Desc { n: 256, ..row }, "row-streamk", caps(), "257 to 16777216 columns, not 256"),
            (Desc { n: (1 << 24) + 1, ..row }, "row-streamk", caps(), "columns, not 16777217"),
            (Desc { m: 1 << 31, ..row }, "row-streamk", caps(), "are more than 2147483647 blocks"),
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
        assert_eq!(why, "subwarp=32 with vec=4 is more than 64 lanes");
    }
}
