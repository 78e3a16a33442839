//! `row-block-long`: rows of more than 65,536 columns on GPUs; a block has a piece of a row. The text is
//! `row_block.cl` with LONG.

use gemv_core::order::LANES;
use gemv_core::{Desc, Params};
use gemv_gpu::{
    Caps, Kernel, Launch, Plan, REDUCE_SOURCE, Signature, Split, limits, source, value,
};

use super::row_block::{ARGS, MOST_COLUMNS, legal_shape};
use super::vectors::{SOURCE, aligned, distinct};

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

const KERNEL: Kernel = Kernel {
    name: "row-block-long",
    about: "A block computes 65,536 columns of a row at a time and loads the next ones meanwhile, and a \
            second launch adds the sums, on GPUs: row-major, longer rows.",
    source: source!["#define LONG 1\n", SOURCE, include_str!("row_block.cl"), REDUCE_SOURCE],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
};

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    if desc.n <= MOST_COLUMNS {
        return Err(format!("the kernel is for more than {MOST_COLUMNS} columns, not {}", desc.n));
    }
    let get = |name| value(ARGS, params, name);
    let local = legal_shape(desc, params)?;
    if get("rows") > 1 || get("subwarp") * get("warps_k") != get("threads") {
        return Err("a block has one row: rows=1, and threads are subwarp times warps_k".into());
    }
    limits(&plan(desc, params, caps), caps, local)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ARGS, params, name);
    let m = desc.m as u64;
    let count = desc.n.div_ceil(MOST_COLUMNS) as u64;
    let split = Split { parts: count, count, super_segments: true };
    let pieces = m.saturating_mul(count);
    let most = u64::from(caps.units) * u64::from(get("blocks_per_sm"));
    // Even waves.
    let blocks = pieces.div_ceil(pieces.div_ceil(most).max(1)).max(1);
    let mut launches = vec![Launch::new("row_block_long", blocks, get("threads"))];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), ..Plan::default() }
}

/// Loads that a thread has of a round in place of one, and threads of a block.
const SHAPES: [(u32, u32); 5] = [(1, 512), (2, 512), (2, 256), (2, 128), (1, 128)];

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let vec = aligned(desc);
    let shape = |(loads, threads): (u32, u32)| {
        let subwarp = ((LANES as u32 / vec).min(32) / loads).max(8);
        let warps = (threads / subwarp).min(64);
        let threads = subwarp * warps;
        let params = Params::new(KERNEL.name)
            .with("threads", threads)
            .with("subwarp", subwarp)
            .with("warps_k", warps)
            .with("vec", vec);
        params.with("blocks_per_sm", (1024 / threads).max(1))
    };
    distinct(&KERNEL, desc, caps, 8, SHAPES.map(shape))
}
