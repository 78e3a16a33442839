//! `gemm-narrow-cpu`: several right-hand sides of one matrix of few columns, a work-item with a band of
//! rows. The text is `gemm_narrow_cpu.cl`.

use gemv_core::Values;
use gemv_gpu::rules::{ONE_MATRIX, compiled};
use gemv_gpu::{GEMM_PRELUDE, Kernel, Launch, List, Rule, source};

use super::wide::{BLOCKS_PER_SM, CPU};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "gemm-narrow-cpu",
    about: "Several right-hand sides of a matrix of at most 16 columns and any strides on CPUs: blocks \
            of rows are transposed in the cache, and a vector holds neighbouring rows.",
    source: source![GEMM_PRELUDE, include_str!("gemm_narrow_cpu.cl")],
    args: &[
        compiled("cols", "Most columns of A.", Values::Powers(1, 16), 4, "COLS"),
        compiled(
            "tile_rhs",
            "Columns of X that are multiplied at a time: A is transposed once for all of them.",
            Values::Powers(1, 8),
            4,
            "TILE_RHS",
        ),
        BLOCKS_PER_SM,
    ],
    rules: &[
        CPU,
        ONE_MATRIX,
        Rule::Columns(1..=16),
        Rule::AtMost("columns", |of| of.n(), |of| of.get("cols")),
    ],
    candidates: &[
        List::Only(|of| of.rhs() > 1),
        List::Value("cols", |of| of.n().next_power_of_two()),
        List::Value("tile_rhs", |of| of.rhs().next_power_of_two().min(8)),
        List::Values("blocks_per_sm", |_| vec![4, 1]),
    ],
    plan: |of| {
        // A block has 64 rows.
        let blocks = of.m().div_ceil(64).min(of.blocks("blocks_per_sm")).max(1);
        Launch::new("gemm_narrow_cpu", blocks, 1).into()
    },
    ..Kernel::GEMM
}];
