//! `gemm-col-mma`: one column-major matrix of f64 and many right-hand sides, by the tensor cores.
//!
//! Its text is `gemm_row_mma.cu` behind `gemm_col_mma.cu`; its rules are tested there.

use gemv_gpu::rules::{BY_COLUMNS, min_blocks};
use gemv_gpu::{GEMM_PRELUDE, Kernel, List, Rule};

use super::mma::{self, SEGMENTS, STAGES, TILE_RHS, WARPS_K};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-col-mma",
    about: "Many right-hand sides and one column-major matrix of f64 by tensor cores: a block holds \
            segments of X in registers, and tiles of rows stream through shared memory.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("gemm_col_mma.cu"),
        include_str!("vectors.cuh"),
        include_str!("mma.cuh"),
        include_str!("gemm_row_mma.cu"),
        include_str!("gemm_parts.cuh")
    ],
    args: &[TILE_RHS, WARPS_K, SEGMENTS, STAGES, min_blocks(2)],
    rules: &[BY_COLUMNS, Rule::All(mma::RULES)],
    candidates: &[List::Made(|of| mma::candidates(of, SHAPES)), List::Once],
    plan: |of| mma::plan(of, "gemm_col_mma"),
    ..Kernel::GEMM
};

const SHAPES: &[&[(&str, u32)]] = &[
    &[("tile_rhs", 16), ("warps_k", 8), ("segments", 4), ("stages", 5)],
    &[("tile_rhs", 16), ("warps_k", 8), ("segments", 2), ("stages", 5)],
    &[("tile_rhs", 16), ("warps_k", 16), ("segments", 2), ("stages", 4)],
    // More segments spill registers.
    &[("tile_rhs", 32), ("warps_k", 4), ("segments", 1), ("stages", 5)],
    &[("tile_rhs", 32), ("warps_k", 8), ("segments", 1), ("stages", 4)],
];
