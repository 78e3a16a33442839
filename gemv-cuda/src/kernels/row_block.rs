//! `row-block`: row-major matrices of more than a few columns; a block, or a cluster, has a row.

use gemv_core::Params;
use gemv_gpu::rules::*;
use gemv_gpu::{Caps, Case, Kernel, Launch, List, Plan, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-block",
    about: "A thread block, or a cluster of them, computes a row at a time: row-major, up to 65,536 \
            columns.",
    source: concat!(
        include_str!("vectors.cuh"),
        include_str!("segment.cuh"),
        include_str!("row_block.cu")
    ),
    args: &[
        threads(128, 512),
        subwarp(8),
        warps_k(2),
        rows("Rows that a sub-warp computes at a time.", 4),
        vec(1),
        cluster_k("Blocks of a cluster, which share a row; 1 is no cluster."),
        blocks_per_sm(16, MANY_BLOCKS),
    ],
    mixed: true,
    rules: &[
        Rule::Columns(0..=SUPER_SEGMENT),
        Rule::All(BLOCK),
        Rule::AtMost("registers", segment_registers, most_segment_registers),
    ],
    candidates: &[
        // With fewer columns, rows are `row-warp`'s and `row-splitk`'s.
        List::Only(|of| of.n() > 128),
        List::Values("vec", vecs),
        List::Made(|of| {
            let clustered = of.m() <= CLUSTER_ROWS && of.n() > LONG;
            let cluster = of.caps.cluster.into();
            let clustered = clustered.then(|| shapes(of, cluster, &CLUSTERED));
            shapes(of, 1, &ALONE).into_iter().chain(clustered.into_iter().flatten()).collect()
        }),
        List::Value("blocks_per_sm", |of| {
            resident_blocks(segment_registers(of), of.get("threads"))
        }),
        List::Launches,
    ],
    plan: |of| plan(of, "row_block"),
    ..Kernel::GEMV
};

/// What this kernel, `row-block-long` and `row-block-cyclic` require of a block.
pub(super) const BLOCK: &[Rule] = &[
    BY_ROWS,
    THREADS_OF_DEVICE,
    ONE_LOAD,
    CLUSTER_OF_DEVICE,
    LOADS_OF_LANES,
    WARPS_OF_BLOCK,
    // A row's sum is in as many threads as there are segments at once.
    Rule::UpTo(&["warps_k", "cluster_k"], |_| SEGMENT),
    Rule::Holds(
        |of| at_once(of) == 1 || of.get("rows") <= at_once(of),
        "a sub-warp has more rows than a row has segments at once",
    ),
    Rule::Local(|of| {
        let places = if at_once(of) > LANES { SEGMENT } else { LANES };
        2 * block_rows(of) * places * of.acc_bytes()
    }),
];

/// Segments of a row that are computed at once.
fn at_once(of: &Case<'_>) -> u64 {
    of.get("warps_k") * of.get("cluster_k")
}

/// Rows that a block takes at a time.
pub(super) fn block_rows(of: &Case<'_>) -> u64 {
    let [threads, subwarp, warps_k, rows] = of.all(["threads", "subwarp", "warps_k", "rows"]);
    threads / (subwarp * warps_k) * rows
}

/// The cost of a row of a whole super-segment, and of a row of `n` columns: iterations, and one for
/// the sums of each super-segment. Of several processes, one has its share of a super-segment.
pub(super) fn costs(n: u64, at_once: u64, processes: u64) -> (u64, u64) {
    let whole = SUPER_SEGMENT / processes;
    let (cost, super_segments) = (SEGMENT / processes / at_once + 1, n.div_ceil(whole));
    let rest = (n - (super_segments - 1) * whole).div_ceil(at_once * SEGMENT) + 1;
    (cost, cost * (super_segments - 1) + rest)
}

/// The launches of this kernel, of `row-block-long` and of `row-block-cyclic`.
pub(super) fn plan(of: &Case<'_>, entry: &'static str) -> Plan {
    let (m, n, cluster) = (of.m(), of.n(), of.get("cluster_k"));
    let most = (of.blocks("blocks_per_sm") / cluster).max(1);
    let blocks = m.div_ceil(block_rows(of).max(1));
    let processes = u64::from(of.params.get_or("processes", 1));
    let super_segments = n.div_ceil(SUPER_SEGMENT / processes);
    let blocks = if super_segments <= 1 {
        // Long rows: as many blocks as make the waves even, since a few blocks with one iteration more
        // would end at their own pace. With short rows, more blocks are faster than even waves.
        let waves = if n > LONG { blocks.div_ceil(most).max(1) } else { 1 };
        blocks.div_ceil(waves).min(most)
    } else if blocks.saturating_mul(super_segments) <= most {
        blocks * super_segments
    } else {
        // Several waves: a super-segment has as many blocks as is its share of the cost.
        let (cost, width) = costs(n, at_once(of), processes);
        let own = (most * cost / width).max(1);
        let own = blocks.div_ceil(blocks.div_ceil(own).max(1));
        own.saturating_mul(width).div_ceil(cost).max(super_segments)
    };
    let first = Launch::new(entry, blocks.saturating_mul(cluster), of.get("threads"));
    let mut plan = Plan::from(first.waiting());
    if super_segments > 1 && processes == 1 {
        plan.workspace = m.saturating_mul(super_segments);
        let reduce = Launch::new("row_block_long_reduce", m.div_ceil(4), 128);
        plan.launches.push(reduce.waiting());
    }
    plan
}

/// The loads worth trying: elements of 8 bytes one by one, too, since their sums take as many
/// registers as two of the others.
pub(super) fn vecs(of: &Case<'_>) -> Vec<u64> {
    match of.aligned() {
        wide if of.bytes() == 8 && wide > 1 => vec![wide, 1],
        wide => vec![wide],
    }
}

/// Up to how many columns `row-block` and `row-warp` have all candidates on this device.
///
/// Without clusters, a few longer rows would have one block each.
pub(crate) fn row_columns(caps: &Caps) -> u64 {
    if caps.cluster > 1 { SUPER_SEGMENT } else { 8192 }
}

/// How a block is shared out: loads that a thread has of a round in place of one, most threads of a
/// row (further segments are further iterations), fewest threads of a block, rows of a sub-warp.
pub(super) type Shape = (u64, u64, u64, u64);

/// Rows of one block.
pub(super) const ALONE: [Shape; 8] = [
    (1, 512, 128, 1),
    (1, 512, 32, 1),
    (2, 512, 32, 1),
    (1, 512, 128, 2),
    (1, 128, 128, 1),
    (2, 128, 128, 1),
    (1, 128, 128, 2),
    (1, 32, 128, 2),
];

/// Rows of a cluster, and the rows and columns for which it was faster than a block on an H200.
///
/// For super-segments it was not: `row-streamk` is.
const CLUSTERED: [Shape; 4] =
    [(1, 128, 128, 1), (2, 128, 128, 1), (1, 512, 32, 1), (1, 128, 128, 2)];
const CLUSTER_ROWS: u64 = 512;
const LONG: u64 = 2048;

/// The parameters of these shapes, for the vectors that there are already.
pub(super) fn shapes(of: &Case<'_>, cluster: u64, list: &[Shape]) -> Vec<Params> {
    let all_at_once = of.segments().next_power_of_two().min(SEGMENT);
    let widest_subwarp = (LANES / of.get("vec")).min(32);
    let shape = |&(loads, most, least, rows): &Shape| {
        let subwarp = (widest_subwarp / loads).max(8);
        let warps_k = all_at_once.div_ceil(cluster).min(most / subwarp);
        let threads = least.max(subwarp * warps_k);
        let shape =
            [("threads", threads), ("subwarp", subwarp), ("warps_k", warps_k), ("rows", rows)];
        match (of.with(shape), cluster) {
            (params, 1) => params,
            (params, _) => params.with("cluster_k", cluster as u32),
        }
    };
    list.iter().map(shape).collect()
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn persistent_blocks_make_even_waves() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (4000, 1000), 4);
        let blocks = |text: &str, m| {
            let params: Params = text.parse().unwrap();
            KERNEL.plan(&Desc { m, ..desc }, &params, &caps()).launches[0].grid[0]
        };
        assert_eq!(
            blocks("row-block threads=128 subwarp=16 warps_k=4 blocks_per_sm=64", 4000),
            2000
        );
        assert_eq!(
            blocks("row-block threads=128 subwarp=16 warps_k=4 rows=2 blocks_per_sm=64", 4000),
            1000
        );
        assert_eq!(
            blocks("row-block threads=128 subwarp=16 warps_k=4 blocks_per_sm=8", 4000),
            8 * 132
        );
        assert_eq!(blocks("row-block threads=128 subwarp=16 warps_k=4 blocks_per_sm=8", 1), 1);
        assert_eq!(
            blocks("row-block threads=128 subwarp=16 warps_k=8 cluster_k=8 blocks_per_sm=8", 5),
            40
        );
        assert_eq!(
            blocks("row-block threads=128 subwarp=16 warps_k=8 cluster_k=8 blocks_per_sm=1", 4000),
            16 * 8
        );
        // Long rows: no block is alone in the last wave.
        let long = Desc { n: LONG as usize + 1, ..desc };
        let params: Params =
            "row-block threads=128 subwarp=16 warps_k=4 blocks_per_sm=8".parse().unwrap();
        assert_eq!(KERNEL.plan(&long, &params, &caps()).launches[0].grid[0], 1000);
        let mut tiny = caps();
        tiny.units = 1;
        let params: Params = "row-block cluster_k=8 blocks_per_sm=1".parse().unwrap();
        assert_eq!(KERNEL.plan(&desc, &params, &tiny).launches[0].grid[0], 8);
    }
}
