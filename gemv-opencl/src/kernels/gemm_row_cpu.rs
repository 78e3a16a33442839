//! `gemm-row-cpu` and `gemm-strided-cpu`: several right-hand sides and batches, a work-item with a band
//! of rows. The text is `gemm_row_cpu.cl`.

use gemv_core::{Layout, Values};
use gemv_gpu::rules::{compiled, tile_rhs};
use gemv_gpu::{
    Case, GEMM_PRELUDE, GEMM_REDUCE_SOURCE, Kernel, Launch, List, Plan, REDUCE_SOURCE, Split,
    source,
};

use super::wide::{self, BLOCKS_PER_SM, CPU};

pub(super) const KERNELS: &[Kernel] = &[ROW, STRIDED];

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
    args: &[
        compiled(
            "rows",
            "Rows that a work-item computes at a time.",
            Values::Powers(1, 4),
            1,
            "ROWS",
        ),
        tile_rhs(4, Values::Powers(1, 8)),
        BLOCKS_PER_SM,
    ],
    rules: &[CPU],
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Row),
        SHAPES,
        wide::TILE_RHS,
        List::Once,
    ],
    plan,
    ..Kernel::GEMM
};

const STRIDED: Kernel = Kernel {
    name: "gemm-strided-cpu",
    about: "Several right-hand sides and batches of any strides on CPUs: as gemm-row-cpu, by \
            loads of one element.",
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Strided),
        SHAPES,
        wide::TILE_RHS,
        List::Once,
    ],
    ..ROW
};

const SHAPES: List = List::Shapes(
    &["rows", "tile_rhs", "blocks_per_sm"],
    &[&[1, 4, 4], &[2, 4, 4], &[2, 2, 4], &[1, 8, 4], &[4, 2, 4], &[1, 4, 1]],
);

/// Rows and columns of X that are packed at a time, as in the text.
const PACK: [u64; 2] = [1024, 16];
/// A matrix of few rows is shared by columns where packed columns of X are of so many bytes.
const WIDE: u64 = 640 << 10;
/// Most rows of such a matrix, and most bytes of its segments' sums.
const FEW: (u64, u64) = (512, 64 << 20);

fn plan(of: &Case<'_>) -> Plan {
    let (rhs, batch, outputs) = (of.rhs(), of.desc.batch as u64, of.outputs());
    let blocks = |tasks: u64| tasks.min(of.blocks("blocks_per_sm")).max(1);
    let bytes = |accs: u64| accs.saturating_mul(of.acc_bytes());
    let packed = rhs.saturating_mul(of.n().next_multiple_of(16));
    let packs = of.n().div_ceil(PACK[0]).saturating_mul(batch);
    let split = Split::of(of.desc.n, u32::MAX); // one sum a segment
    let (rows, sums) = FEW;
    // A row of one segment leaves no sums.
    let few = split.count > 0 && of.m() <= rows && bytes(split.workspace(outputs)) <= sums;
    if few && bytes(packed) >= WIDE && packs >= 2 * u64::from(of.caps.units) {
        let groups = blocks(packs);
        let mut launches = vec![Launch::new("gemm_row_wide_cpu", groups, 1)];
        launches.extend(split.gemm_reduce(outputs));
        let tile = of.get("tile_rhs") * PACK[0];
        return Plan { launches, workspace: split.workspace(outputs) + groups * tile, counters: 0 };
    }
    let split = Split::of(of.desc.n, 1);
    let rows = of.m().saturating_mul(batch).saturating_mul(split.count.max(1));
    let mut launches = vec![
        Launch::new("gemm_pack", blocks(packs.saturating_mul(rhs.div_ceil(PACK[1]))), 1),
        Launch::new("gemm_row_cpu", blocks(rows), 1),
    ];
    launches.extend(split.gemm_reduce(outputs));
    let packed = packed.saturating_mul(batch);
    Plan { launches, workspace: split.workspace(outputs).saturating_add(packed), counters: 0 }
}
