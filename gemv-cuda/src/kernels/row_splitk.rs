//! `row-splitk`: row-major; sub-warps take rows, and sub-warps or blocks split long ones.

use gemv_core::{Params, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Case, Kernel, Launch, List, Plan, Rule};

use super::row_block::row_columns;
use super::row_smem;

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-splitk",
    about: "Sub-warps compute rows; sub-warps of a block, or several blocks, split a row along K, \
            and the last block to arrive adds the parts: row-major.",
    source: concat!(include_str!("vectors.cuh"), include_str!("row_splitk.cu")),
    args: &[
        threads(128, 1024),
        subwarp(1),
        warps_k(1),
        rows("Rows that a sub-warp, or those that share a row, compute at a time.", 8),
        vec(1),
        compiled(
            "unroll",
            "Rounds of 64 columns whose loads are in flight at once: 1 for a row of one round, 4 for a \
             segment, 5 for a segment of a row that starts anywhere.",
            Values::OneOf(&[1, 4, 5]),
            4,
            "UNROLL",
        ),
        compiled(
            "max_n",
            "Most columns, with those by which a row is rotated, where unroll=1; else 64.",
            Values::Powers(16, 64),
            64,
            "MAX_N",
        ),
        launched(
            "split_k",
            "Blocks that share a row; 0 takes as many as give each multiprocessor \
             blocks_per_sm blocks.",
            Values::Range(0, 1 << 20),
            0,
        ),
        blocks_per_sm(8, MANY_BLOCKS),
    ],
    mixed: true,
    rules: &[
        BY_ROWS,
        THREADS_OF_DEVICE,
        ONE_LOAD,
        Rule::Holds(
            |of| of.get("threads") <= 256 || of.get("vec") <= 4 && of.get("rows") == 1,
            "more than 256 threads have no registers for several rows or vec=8",
        ),
        Rule::UpTo(&["subwarp", "vec"], |of| of.get("max_n")),
        // It divides a vector's lanes.
        Rule::UpTo(&["vec"], |of| of.get("subwarp")),
        WARPS_OF_BLOCK,
        // Loads of 16 bytes in flight at once, and sums: all in registers.
        Rule::AtMost(
            "vectors of all rows a round",
            |of| of.get("max_n") / (of.get("subwarp") * of.get("vec")) * of.get("rows"),
            |of| match of.get("unroll") {
                1 => 8,
                // Elements of two bytes are twice as many sums.
                5 if of.get("vec") > 4 => 1,
                5 => 2,
                _ => 4,
            },
        ),
        Rule::Holds(
            |of| of.get("unroll") != 1 || of.get("warps_k") == 1 && of.get("split_k") <= 1,
            "unroll=1 is for one segment: warps_k=1 split_k=1",
        ),
        Rule::Holds(
            |of| of.get("unroll") == 1 || of.get("max_n") == LANES,
            "fewer columns than max_n=64 are for unroll=1",
        ),
        // Counted with the lanes by which a row may be rotated.
        Rule::AtMost(
            "columns with unroll=1 and vec - 1",
            |of| if of.get("unroll") == 1 { of.n() + of.get("vec") - 1 } else { 0 },
            |of| of.get("max_n"),
        ),
        Rule::Local(|of| match of.get("unroll") {
            1 => 0,
            _ => block_rows(of) * LANES * of.acc_bytes() + 16,
        }),
    ],
    candidates: &[List::Made(shapes), List::Launches],
    plan: |of| {
        let (m, sets) = (of.m(), of.m().div_ceil(block_rows(of)));
        let split = split(of, sets, of.get("warps_k"));
        let launch = Launch::new("row_splitk", sets * split.parts, of.get("threads"));
        let counters = if split.count > 0 { sets } else { 0 };
        Plan { launches: vec![launch.waiting()], workspace: split.workspace(m), counters }
    },
    ..Kernel::GEMV
};

/// Rows of a block.
fn block_rows(of: &Case<'_>) -> u64 {
    of.get("threads") / of.get("subwarp") / of.get("warps_k") * of.get("rows")
}

fn shapes(of: &Case<'_>) -> Vec<Params> {
    let (n, widest) = (of.n(), of.widest());
    let shape = |threads: u64, subwarp, warps_k, rows, vec| {
        of.with([
            ("threads", threads),
            ("subwarp", subwarp),
            ("warps_k", warps_k),
            ("rows", rows),
            ("vec", vec),
        ])
    };
    let mut all: Vec<Params> = Vec::new();
    // Short rows: one load a thread and row, several rows in flight. Of many and very short ones,
    // `row-smem` was faster.
    let few = of.m() < 4 * row_smem::ROWS || n == 0 || n * of.bytes() > row_smem::BYTES;
    let vecs = [widest, widest / 2, 1];
    for vec in vecs.into_iter().filter(|v| *v > 0 && few) {
        let max_n = (n + vec - 1).next_power_of_two().max(16);
        if max_n > LANES {
            continue;
        }
        for (threads, slots, rows) in [(128, 1, 2), (128, 2, 2), (128, 1, 4)] {
            let params = shape(threads, (max_n / vec / slots).min(32), 1, rows, vec);
            all.push(params.with("unroll", 1).with("max_n", max_n as u32).with("split_k", 1));
        }
    }
    // Longer ones: sub-warps along the rows until the device is busy, then blocks. On a device with
    // clusters others are faster wherever they are legal, but for a few rows that begin anywhere.
    if n <= if of.caps.cluster > 1 { TWO_LEVELS } else { row_columns(of.caps) } {
        return all;
    }
    let segments = of.segments().max(1).next_power_of_two();
    // The widest loads of all lanes; and for rows that start anywhere single elements too, so that
    // neighbours read neighbouring elements.
    let wide = ((LANES / widest).min(32), widest, if of.desc.align < 4 { 5 } else { 4 });
    for (threads, warps, threads_per_sm) in
        [(128, 1, 1024), (128, 8, 1024), (256, 16, 1024), (512, 32, 2048), (256, 1, 1024)]
    {
        for (subwarp, vec, unroll) in [wide, (32, 1, 4)] {
            let warps = warps.min(threads / subwarp).min(segments);
            let params = shape(threads, subwarp, warps, 1, vec).with("unroll", unroll);
            let blocks = (threads_per_sm / threads).max(1) as u32;
            all.push(params.with("max_n", LANES as u32).with("blocks_per_sm", blocks));
            if of.desc.align >= 4 {
                break;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (10, 30), 4);
        for (text, part) in [
            ("row-splitk threads=48", "power of two"),
            ("row-splitk subwarp=32 vec=4", "is more than 64"),
            ("row-splitk subwarp=2 vec=4", "vec=4 is more than 2"),
            (
                "row-splitk subwarp=32 vec=2 warps_k=8",
                "subwarp=32 times warps_k=8 is more than 128",
            ),
            ("row-splitk subwarp=4 vec=4 rows=2", "8 vectors of all rows a round are more than 4"),
            ("row-splitk subwarp=8 vec=4 unroll=1 max_n=32 split_k=2", "one segment"),
            (
                "row-splitk subwarp=8 vec=4 unroll=1 max_n=32",
                "columns with unroll=1 and vec - 1 are more than 32",
            ),
            ("row-splitk subwarp=32 vec=1 unroll=2", "unroll=2 is not 1, 4 or 5"),
            ("row-splitk subwarp=16 vec=2 max_n=32", "for unroll=1"),
            ("row-splitk subwarp=32 vec=2 blocks_per_sm=0", "blocks_per_sm=0 is not from 1"),
            ("row-splitk depth=2", "no argument depth"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        let col = Desc { layout: Layout::Col, ..desc };
        let params = KERNEL.candidates(&desc, &caps())[0];
        assert!(KERNEL.fits(&col, &params, &caps()).unwrap_err().contains("layout row"));
    }
}
