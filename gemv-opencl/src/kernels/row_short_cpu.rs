//! `row-short-cpu`: short rows of f32 and f64, a work-item with a band of rows. The text is
//! `row_short_cpu.cl`.

use gemv_core::{Arg, Desc, Dtype, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel, Launch, Plan, Signature, source, value};

use super::wide::{self, BLOCKS_PER_SM, PREFETCH};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "row-short-cpu",
    about: "Row-major matrices of f32 and f64 with at most 64 columns on CPUs: the sums of 16 rows \
            are halved together.",
    source: source![wide::SOURCE, include_str!("row_short_cpu.cl")],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
}];

const ARGS: &[Arg] = &[
    Arg {
        name: "cols",
        about: "Most columns.",
        values: Values::Powers(4, MOST),
        default: 8,
        define: Some("COLS"),
    },
    PREFETCH,
    BLOCKS_PER_SM,
];

/// Columns of the longest row.
const MOST: u32 = 64;

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    wide::legal(caps)?;
    if !matches!(desc.dtype, Dtype::F32 | Dtype::F64) {
        return Err(format!("the kernel is for f32 and f64, not for {}", desc.dtype));
    }
    let cols = value(ARGS, params, "cols");
    if desc.n > cols as usize {
        return Err(format!("{} columns are more than cols={cols}", desc.n));
    }
    Ok(())
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let groups = u64::from(value(ARGS, params, "blocks_per_sm")) * u64::from(caps.units);
    let blocks = (desc.m as u64).div_ceil(wide::ROWS as u64).min(groups).max(1);
    Plan { launches: vec![Launch::new("row_short_cpu", blocks, 1)], workspace: 0, counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Row || desc.n > MOST as usize {
        return Vec::new();
    }
    let cols = (desc.n.next_power_of_two() as u32).max(4);
    let shape = |(prefetch, blocks)| {
        let params = Params::new("row-short-cpu").with("cols", cols);
        params.with("prefetch", prefetch).with("blocks_per_sm", blocks)
    };
    let mut all: Vec<Params> = [(0, 4), (4096, 4), (0, 1)].into_iter().map(shape).collect();
    all.retain(|p| legal(desc, p, caps).is_ok());
    all
}
