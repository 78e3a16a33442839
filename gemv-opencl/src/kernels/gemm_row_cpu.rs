//! `gemm-row-cpu` and `gemm-strided-cpu`: several right-hand sides and batches, a work-item with a band
//! of rows. The text is `gemm_row_cpu.cl`.

use gemv_core::order::SEGMENT;
use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, limits, source, value};

use super::wide::{self, BLOCKS_PER_SM};

pub(super) const KERNELS: &[Kernel] = &[
    ROW,
    Kernel {
        name: "gemm-strided-cpu",
        about: "Several right-hand sides and batches of any strides on CPUs: as gemm-row-cpu, by \
                loads of one element.",
        candidates: |desc, caps| candidates("gemm-strided-cpu", Layout::Strided, desc, caps),
        ..ROW
    },
];

const ROW: Kernel = Kernel {
    name: "gemm-row-cpu",
    about: "Several right-hand sides and batches of row-major matrices on CPUs: X is packed, and a \
            work-item computes a few rows and columns at a time by vectors of 16 lanes.",
    source: source![GEMM_PRELUDE, wide::SOURCE, include_str!("gemm_row_cpu.cl")],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: true,
    candidates: |desc, caps| candidates("gemm-row-cpu", Layout::Row, desc, caps),
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    Arg {
        name: "rows",
        about: "Rows that a work-item computes at a time.",
        values: Values::Powers(1, 4),
        default: 1,
        define: Some("ROWS"),
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

/// Columns of the longest row: its segments' sums are one level.
const MOST: usize = SEGMENT * SEGMENT;

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    wide::legal(caps)?;
    if desc.n > MOST {
        return Err(format!("{} columns are more than {MOST}", desc.n));
    }
    limits(&plan(desc, params, caps), caps, 0)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let groups = u64::from(value(ARGS, params, "blocks_per_sm")) * u64::from(caps.units);
    let [m, n, rhs, batch] = [desc.m, desc.n, desc.rhs, desc.batch].map(|count| count as u64);
    let blocks = |tasks: u64| tasks.min(groups).max(1);
    let columns = rhs.saturating_mul(batch);
    Plan {
        launches: vec![
            Launch::new("gemm_pack", blocks(columns), 1),
            Launch::new("gemm_row_cpu", blocks(m.saturating_mul(batch)), 1),
        ],
        workspace: columns.saturating_mul(n.next_multiple_of(16)),
        counters: 0,
    }
}

fn candidates(kernel: &'static str, layout: Layout, desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != layout || (desc.rhs, desc.batch) == (1, 1) {
        return Vec::new();
    }
    let shape = |(rows, cols, blocks)| {
        let params = Params::new(kernel).with("rows", rows).with("tile_rhs", cols);
        params.with("blocks_per_sm", blocks)
    };
    let most = desc.rhs.next_power_of_two().min(8) as u32;
    let mut all: Vec<Params> = Vec::new();
    for (rows, cols, blocks) in [(1, 4, 4), (2, 4, 4), (2, 2, 4), (1, 8, 4), (4, 2, 4), (1, 4, 1)] {
        let params = shape((rows, most.min(cols), blocks));
        if !all.contains(&params) && legal(desc, &params, caps).is_ok() {
            all.push(params);
        }
    }
    all
}
