//! `gemm-col-mma`: one column-major matrix of f64 and many right-hand sides, by the tensor cores.
//!
//! Its text is `gemm_row_mma.cu` behind `gemm_col_mma.cu`; its rules are tested there.

use gemv_core::{Desc, Layout, Params};
use gemv_gpu::{Arg, Caps, GEMM_PRELUDE, Kernel, Plan, Signature};

use super::mma::{self, MIN_BLOCKS, SEGMENTS, STAGES, TILE_RHS, WARPS_K};

const ENTRY: &str = "gemm_col_mma";

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
    args: ARGS,
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[TILE_RHS, WARPS_K, SEGMENTS, STAGES, MIN_BLOCKS];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    mma::legal(Layout::Col, ENTRY, desc, params, caps)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    mma::plan(Layout::Col, ENTRY, desc, params, caps)
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let shapes: &[(u32, &[(&str, u32)])] = &[
        (16, &[("warps_k", 8), ("segments", 4), ("stages", 5)]),
        (16, &[("warps_k", 8), ("segments", 2), ("stages", 5)]),
        (16, &[("warps_k", 16), ("segments", 2), ("stages", 4)]),
        // More segments spill registers.
        (32, &[("warps_k", 4), ("segments", 1), ("stages", 5)]),
        (32, &[("warps_k", 8), ("segments", 1), ("stages", 4)]),
    ];
    mma::candidates(&KERNEL, Layout::Col, desc, caps, shapes)
}
