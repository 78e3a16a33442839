//! `row-block`: row-major matrices of more than a few columns; a block, or a cluster, has a row.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params};
use gemv_gpu::{Arg, Caps, Kernel, Launch, Plan, Signature, value};

use super::rules::{
    MANY_BLOCKS, SUPER_SEGMENT, aligned, blocks, blocks_per_sm, cluster_k, layout, limits,
    shared_memory, warps_k, widest,
};
use super::segment::{ROWS, SUBWARP, THREADS, VEC, fits, held, resident_blocks};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-block",
    about: "A thread block, or a cluster of them, computes a row at a time: row-major, up to 65,536 \
            columns.",
    source: concat!(
        include_str!("vectors.cuh"),
        include_str!("segment.cuh"),
        include_str!("row_block.cu")
    ),
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: true,
    ordered: true,
    candidates,
    legal,
    plan: |desc, params, caps| plan("row_block", desc, params, caps),
};

pub(super) const ARGS: &[Arg] = &[
    THREADS,
    SUBWARP,
    warps_k(2),
    ROWS,
    VEC,
    cluster_k("Blocks of a cluster, which share a row; 1 is no cluster."),
    blocks_per_sm(16, MANY_BLOCKS),
];

/// With fewer columns, rows are `row-warp`'s and `row-splitk`'s.
const LEAST_COLUMNS: usize = 129;

/// Rows that a block takes at a time.
pub(super) fn block_rows(params: &Params) -> u64 {
    let get = |name| u64::from(value(ARGS, params, name));
    get("threads") / (get("subwarp") * get("warps_k")).max(1) * get("rows")
}

/// The cost of a row of a whole super-segment, and of a row of `n` columns: iterations, and one for
/// the sums of each super-segment. Of several processes, one has its share of a super-segment.
pub(super) fn costs(n: u64, at_once: u64, processes: u64) -> (u64, u64) {
    let whole = SUPER_SEGMENT as u64 / processes;
    let at_once = at_once.max(1);
    let (cost, super_segments) = (SEGMENT as u64 / processes / at_once + 1, n.div_ceil(whole));
    let rest = (n - (super_segments - 1) * whole).div_ceil(at_once * SEGMENT as u64) + 1;
    (cost, cost * (super_segments - 1) + rest)
}

/// The launches of this kernel, of `row-block-long` and of `row-block-cyclic`.
pub(super) fn plan(entry: &'static str, desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let cluster = get("cluster_k").max(1);
    let (m, n) = (desc.m as u64, desc.n as u64);
    let most = (u64::from(caps.units) * get("blocks_per_sm") / cluster).max(1);
    let blocks = m.div_ceil(block_rows(params).max(1));
    let threads = value(ARGS, params, "threads");
    let processes = u64::from(params.get_or("processes", 1));
    let super_segments = n.div_ceil(SUPER_SEGMENT as u64 / processes);
    let blocks = if super_segments <= 1 {
        // Long rows: as many blocks as make the waves even, since a few blocks with one iteration more
        // would end at their own pace. With short rows, more blocks are faster than even waves.
        let waves = if desc.n > LONG { blocks.div_ceil(most).max(1) } else { 1 };
        blocks.div_ceil(waves).min(most)
    } else if blocks.saturating_mul(super_segments) <= most {
        blocks * super_segments
    } else {
        // Several waves: a super-segment has as many blocks as is its share of the cost.
        let (cost, width) = costs(n, get("warps_k") * cluster, processes);
        let own = (most * cost / width).max(1);
        let own = blocks.div_ceil(blocks.div_ceil(own).max(1));
        own.saturating_mul(width).div_ceil(cost).max(super_segments)
    };
    let mut plan = Plan::default();
    plan.launches.push(Launch::new(entry, blocks.saturating_mul(cluster), threads).waiting());
    if super_segments > 1 && processes == 1 {
        plan.workspace = m.saturating_mul(super_segments);
        let reduce = Launch::new("row_block_long_reduce", m.div_ceil(4), 128);
        plan.launches.push(reduce.waiting());
    }
    plan
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    if desc.n > SUPER_SEGMENT {
        return Err(format!("row-block is for up to {SUPER_SEGMENT} columns, not {}", desc.n));
    }
    legal_shape(desc, params, 0, caps)?;
    blocks(&plan("row_block", desc, params, caps))
}

/// What this kernel and `row-block-long` require of a block; `extra` registers are its own.
pub(super) fn legal_shape(
    desc: &Desc,
    params: &Params,
    extra: u32,
    caps: &Caps,
) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (threads, subwarp, warps) = (get("threads"), get("subwarp"), get("warps_k"));
    let (rows, vec, cluster) = (get("rows"), get("vec"), get("cluster_k"));
    limits(&[
        ("threads", threads, caps.max_group),
        ("vec", vec, widest(desc.dtype)),
        ("cluster_k", cluster, caps.cluster),
    ])?;
    let lanes = LANES as u32;
    if subwarp * vec > lanes {
        return Err(format!("subwarp={subwarp} with vec={vec} is more than {lanes} lanes"));
    }
    if subwarp * warps > threads {
        return Err(format!("warps_k={warps} of {} sub-warps", threads / subwarp));
    }
    // A row's sum is in as many threads as there are segments at once.
    let at_once = warps * cluster;
    if at_once > SEGMENT as u32 {
        return Err(format!(
            "warps_k={warps} with cluster_k={cluster} is more than {SEGMENT} segments"
        ));
    }
    if at_once > 1 && rows > at_once {
        return Err(format!("rows={rows} of sub-warps with {at_once} segments at once"));
    }
    // A segment with its x is in registers before the first sum.
    fits(held(desc, params, extra), threads)?;
    let places = if at_once > lanes { SEGMENT } else { LANES } as u64;
    shared_memory(2 * block_rows(params) * places * desc.vectors.acc_bytes() as u64, caps)
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Row || desc.n < LEAST_COLUMNS {
        return Vec::new();
    }
    let mut out = Vec::new();
    for vec in vecs(desc) {
        shapes(&KERNEL, desc, caps, (vec, 1, 0), &ALONE, &mut out);
        if desc.m <= CLUSTER_ROWS && desc.n > LONG {
            shapes(&KERNEL, desc, caps, (vec, caps.cluster, 0), &CLUSTERED, &mut out);
        }
    }
    // 16-bit rows of two rounds: more blocks than have registers at one time were faster.
    if desc.dtype.bytes() == 2 && aligned(desc) == 8 && desc.n <= 2 * LANES {
        let shape =
            Params::new(KERNEL.name).with("threads", 128).with("subwarp", 8).with("warps_k", 1);
        let params = shape.with("rows", 4).with("vec", 8).with("blocks_per_sm", 8);
        if KERNEL.fits(desc, &params, caps).is_ok() {
            out.push((KERNEL.launch_id(desc, &params, caps), params));
        }
    }
    out.into_iter().map(|o| o.1).collect()
}

/// The loads worth trying: elements of 8 bytes one by one, too, since their sums take as many
/// registers as two of the others.
pub(super) fn vecs(desc: &Desc) -> impl Iterator<Item = u32> {
    let wide = aligned(desc);
    let count = if desc.dtype.bytes() == 8 && wide > 1 { 2 } else { 1 };
    [wide, 1].into_iter().take(count)
}

/// How a block is shared out: loads that a thread has of a round in place of one, most threads of a
/// row (further segments are further iterations), fewest threads of a block, rows of a sub-warp.
pub(super) type Shape = (u32, u32, u32, u32);

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
const CLUSTER_ROWS: usize = 512;
const LONG: usize = 2048;

/// Adds the parameters of these shapes that fit, each launch once.
pub(super) fn shapes(
    kernel: &Kernel,
    desc: &Desc,
    caps: &Caps,
    (vec, cluster, extra): (u32, u32, u32),
    list: &[Shape],
    out: &mut Vec<(u64, Params)>,
) {
    let all_at_once = desc.n.div_ceil(SEGMENT).next_power_of_two().min(SEGMENT) as u32;
    let widest_subwarp = (LANES as u32 / vec).min(32);
    for &(loads, most, least, rows) in list {
        let subwarp = (widest_subwarp / loads).max(8);
        let warps = all_at_once.div_ceil(cluster).min(most / subwarp);
        let threads = least.max(subwarp * warps);
        let params = Params::new(kernel.name)
            .with("threads", threads)
            .with("subwarp", subwarp)
            .with("warps_k", warps)
            .with("rows", rows)
            .with("vec", vec);
        let params = if cluster > 1 { params.with("cluster_k", cluster) } else { params };
        let resident = resident_blocks(held(desc, &params, extra), threads);
        let params = params.with("blocks_per_sm", resident);
        if kernel.fits(desc, &params, caps).is_ok() {
            let launch = kernel.launch_id(desc, &params, caps);
            if !out.iter().any(|o| o.0 == launch) {
                out.push((launch, params));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

    use super::*;
    use crate::testing::caps;

    #[test]
    fn persistent_blocks_make_even_waves() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (4000, 1000), 4);
        let blocks = |text: &str, m| {
            let params: Params = text.parse().unwrap();
            (KERNEL.plan)(&Desc { m, ..desc }, &params, &caps()).launches[0].grid[0]
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
        let long = Desc { n: LONG + 1, ..desc };
        let params: Params =
            "row-block threads=128 subwarp=16 warps_k=4 blocks_per_sm=8".parse().unwrap();
        assert_eq!((KERNEL.plan)(&long, &params, &caps()).launches[0].grid[0], 1000);
        let mut tiny = caps();
        tiny.units = 1;
        let params: Params = "row-block cluster_k=8 blocks_per_sm=1".parse().unwrap();
        assert_eq!((KERNEL.plan)(&desc, &params, &tiny).launches[0].grid[0], 8);
    }
}
