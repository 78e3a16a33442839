//! `gemm-col-cpu`: several right-hand sides and batches of column-major matrices, a work-item with a
//! band of rows. The text is `gemm_col_cpu.cl`.

use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{
    Caps, GEMM_PRELUDE, GEMM_REDUCE_SOURCE, Kernel, Launch, Plan, REDUCE_SOURCE, Signature, Split,
    limits, source, value,
};

use super::wide::{self, BLOCKS_PER_SM};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "gemm-col-cpu",
    about: "Several right-hand sides and batches of column-major matrices on CPUs: a work-item computes a \
            tile of rows for a few columns of X, four columns of A a pass.",
    source: source![
        GEMM_PRELUDE,
        wide::SOURCE,
        wide::TREE,
        include_str!("gemm_col_cpu.cl"),
        REDUCE_SOURCE,
        GEMM_REDUCE_SOURCE,
    ],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
}];

const ARGS: &[Arg] = &[
    Arg {
        name: "tile_m",
        about: "Rows of a tile, whose partial sums a work-item has in private memory.",
        values: Values::Multiples(16, 16, 4096),
        default: 256,
        define: Some("TILE_M"),
    },
    Arg {
        name: "tile_rhs",
        about: "Columns of X that are multiplied at a time: A is read once for them.",
        values: Values::Powers(1, 8),
        default: 4,
        define: Some("TILE_RHS"),
    },
    BLOCKS_PER_SM,
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    wide::legal(caps)?;
    let get = |name| value(ARGS, params, name) as usize;
    // Two stacks of seven and two vectors for each column, in the private memory of one item.
    let bytes = 16 * get("tile_m") * get("tile_rhs") * desc.vectors.acc_bytes();
    if bytes > 512 << 10 {
        return Err(format!("a tile takes {bytes} bytes of private memory"));
    }
    limits(&plan(desc, params, caps), caps, 0)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let groups = u64::from(value(ARGS, params, "blocks_per_sm")) * u64::from(caps.units);
    let split = Split::of(desc.n, 1);
    let vectors = (desc.m as u64).div_ceil(16).saturating_mul(desc.batch as u64);
    let vectors = vectors.saturating_mul(split.count.max(1));
    let outputs = (desc.m as u64).saturating_mul(desc.rhs as u64).saturating_mul(desc.batch as u64);
    let mut launches = vec![Launch::new("gemm_col_cpu", vectors.min(groups).max(1), 1)];
    launches.extend(split.gemm_reduce(outputs));
    Plan { launches, workspace: split.workspace(outputs), counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Col || (desc.rhs, desc.batch) == (1, 1) {
        return Vec::new();
    }
    let most = desc.rhs.next_power_of_two().min(8) as u32;
    let mut all: Vec<Params> = Vec::new();
    for (tile_m, cols, blocks) in [(512, 2, 4), (1024, 4, 1), (256, 4, 4), (512, 8, 1), (128, 8, 4)]
    {
        let params = Params::new("gemm-col-cpu").with("tile_m", tile_m);
        let params = params.with("tile_rhs", most.min(cols)).with("blocks_per_sm", blocks);
        if !all.contains(&params) && legal(desc, &params, caps).is_ok() {
            all.push(params);
        }
    }
    all
}
