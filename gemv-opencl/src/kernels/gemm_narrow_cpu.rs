//! `gemm-narrow-cpu`: several right-hand sides of one matrix of few columns, a work-item with a band of
//! rows. The text is `gemm_narrow_cpu.cl`.

use gemv_core::{Arg, Desc, Params, Values};
use gemv_gpu::{Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, limits, source, value};

use super::wide::{self, BLOCKS_PER_SM};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "gemm-narrow-cpu",
    about: "Several right-hand sides of a matrix of at most 16 columns and any strides on CPUs: blocks \
            of rows are transposed in the cache, and a vector holds neighbouring rows.",
    source: source![GEMM_PRELUDE, include_str!("gemm_narrow_cpu.cl")],
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
        name: "cols",
        about: "Most columns of A.",
        values: Values::Powers(1, 16),
        default: 4,
        define: Some("COLS"),
    },
    Arg {
        name: "tile_rhs",
        about: "Columns of X that are multiplied at a time: A is transposed once for all of them.",
        values: Values::Powers(1, 8),
        default: 4,
        define: Some("TILE_RHS"),
    },
    BLOCKS_PER_SM,
];

/// Columns of the widest matrix.
const MOST: usize = 16;
/// Rows of a block.
const BLOCK: u64 = 64;

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    wide::legal(caps)?;
    let cols = value(ARGS, params, "cols");
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    if desc.n == 0 || desc.n > cols as usize {
        let n = desc.n;
        return Err(format!("the kernel is for 1 to cols={cols} columns, not for {n}"));
    }
    limits(&plan(desc, params, caps), caps, 0)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let groups = u64::from(value(ARGS, params, "blocks_per_sm")) * u64::from(caps.units);
    let blocks = (desc.m as u64).div_ceil(BLOCK).min(groups).max(1);
    let launch = Launch::new("gemm_narrow_cpu", blocks, 1);
    Plan { launches: vec![launch], workspace: 0, counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.rhs < 2 || desc.batch != 1 || desc.n == 0 || desc.n > MOST {
        return Vec::new();
    }
    let cols = desc.n.next_power_of_two() as u32;
    let tile_rhs = desc.rhs.next_power_of_two().min(8) as u32;
    let shape = |blocks| {
        let params = Params::new("gemm-narrow-cpu").with("cols", cols).with("tile_rhs", tile_rhs);
        params.with("blocks_per_sm", blocks)
    };
    let mut all = vec![shape(4), shape(1)];
    all.retain(|p| legal(desc, p, caps).is_ok());
    all
}
