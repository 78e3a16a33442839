//! `gemm-row-cpu` and `gemm-strided-cpu`: several right-hand sides and batches, a work-item with a band
//! of rows. The text is `gemm_row_cpu.cl`.

use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{
    Caps, GEMM_PRELUDE, GEMM_REDUCE_SOURCE, Kernel, Launch, Plan, REDUCE_SOURCE, Signature, Split,
    limits, source, value,
};

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
    source: source![
        GEMM_PRELUDE,
        wide::SOURCE,
        include_str!("gemm_row_cpu.cl"),
        REDUCE_SOURCE,
        GEMM_REDUCE_SOURCE,
    ],
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

/// Rows and columns of X that are packed at a time, as in the text.
const PACK: [u64; 2] = [1024, 16];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    wide::legal(caps)?;
    limits(&plan(desc, params, caps), caps, 0)
}

/// A matrix of few rows is shared by columns where packed columns of X are of so many bytes.
const WIDE: u64 = 640 << 10;
/// Most rows of such a matrix, and most bytes of its segments' sums.
const FEW: (usize, u64) = (512, 64 << 20);

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let groups = u64::from(value(ARGS, params, "blocks_per_sm")) * u64::from(caps.units);
    let [m, n, rhs, batch] = [desc.m, desc.n, desc.rhs, desc.batch].map(|count| count as u64);
    let blocks = |tasks: u64| tasks.min(groups).max(1);
    let bytes = |accs: u64| accs.saturating_mul(desc.vectors.acc_bytes() as u64);
    let outputs = m.saturating_mul(rhs).saturating_mul(batch);
    let packed = rhs.saturating_mul(n.next_multiple_of(16));
    let packs = n.div_ceil(PACK[0]).saturating_mul(batch);
    let split = Split::of(desc.n, u32::MAX); // one sum a segment
    let (rows, sums) = FEW;
    // A row of one segment leaves no sums.
    let few = split.count > 0 && desc.m <= rows && bytes(split.workspace(outputs)) <= sums;
    if few && bytes(packed) >= WIDE && packs >= 2 * u64::from(caps.units) {
        let groups = blocks(packs);
        let mut launches = vec![Launch::new("gemm_row_wide_cpu", groups, 1)];
        launches.extend(split.gemm_reduce(outputs));
        let tile = u64::from(value(ARGS, params, "tile_rhs")) * PACK[0];
        return Plan { launches, workspace: split.workspace(outputs) + groups * tile, counters: 0 };
    }
    let split = Split::of(desc.n, 1);
    let rows = m.saturating_mul(batch).saturating_mul(split.count.max(1));
    let mut launches = vec![
        Launch::new("gemm_pack", blocks(packs.saturating_mul(rhs.div_ceil(PACK[1]))), 1),
        Launch::new("gemm_row_cpu", blocks(rows), 1),
    ];
    launches.extend(split.gemm_reduce(outputs));
    let packed = packed.saturating_mul(batch);
    Plan { launches, workspace: split.workspace(outputs).saturating_add(packed), counters: 0 }
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
