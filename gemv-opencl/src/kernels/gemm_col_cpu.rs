//! `gemm-col-cpu`: several right-hand sides and batches of column-major matrices, a work-item with a
//! band of rows. The text is `gemm_col_cpu.cl`.

use gemv_core::{Layout, Values};
use gemv_gpu::rules::{compiled, tile_rhs};
use gemv_gpu::{
    GEMM_PRELUDE, GEMM_REDUCE_SOURCE, Kernel, Launch, List, Plan, REDUCE_SOURCE, Rule, Split,
    source,
};

use super::wide::{self, BLOCKS_PER_SM, CPU};

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
    args: &[
        compiled(
            "tile_m",
            "Rows of a tile, whose partial sums a work-item has in private memory.",
            Values::Multiples(16, 16, 4096),
            256,
            "TILE_M",
        ),
        tile_rhs(4, Values::Powers(1, 8)),
        BLOCKS_PER_SM,
    ],
    rules: &[
        CPU,
        // Two stacks of seven and two vectors for each column, of one item.
        Rule::AtMost(
            "bytes of private memory",
            |of| 16 * of.get("tile_m") * of.get("tile_rhs") * of.acc_bytes(),
            |_| wide::PRIVATE,
        ),
    ],
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Col),
        List::Shapes(
            &["tile_m", "tile_rhs", "blocks_per_sm"],
            &[&[512, 2, 4], &[1024, 4, 1], &[256, 4, 4], &[512, 8, 1], &[128, 8, 4]],
        ),
        wide::TILE_RHS,
        List::Once,
    ],
    plan: |of| {
        let (split, outputs) = (Split::of(of.desc.n, 1), of.outputs());
        let vectors = of.m().div_ceil(wide::ROWS).saturating_mul(of.desc.batch as u64);
        let vectors = vectors.saturating_mul(split.count.max(1));
        let blocks = vectors.min(of.blocks("blocks_per_sm")).max(1);
        let mut launches = vec![Launch::new("gemm_col_cpu", blocks, 1)];
        launches.extend(split.gemm_reduce(outputs));
        Plan { launches, workspace: split.workspace(outputs), counters: 0 }
    },
    ..Kernel::GEMM
}];
