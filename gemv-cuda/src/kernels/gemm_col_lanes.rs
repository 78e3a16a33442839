//! `gemm-col-lanes`: one column-major matrix of 16-bit numbers and several right-hand sides; a thread has whole lanes.
//!
//! Its text is `gemm_row_lanes.cu` behind `gemm_col_lanes.cu`; what it shares with `gemm-row-lanes` is described there.

use gemv_core::{Arg, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Boxes, GEMM_PRELUDE, Kernel, List, Rule, SM_90A};

use super::gemm_row_lanes::{RULES, SEGMENTS, STAGES, TILE_RHS, plan, sets, units};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-col-lanes",
    about: "Several right-hand sides and one column-major matrix of 16-bit numbers, on Hopper: the copy engine \
            brings columns to shared memory, and each thread has whole lanes of rows.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("gemm_col_lanes.cu"),
        include_str!("vectors.cuh"),
        include_str!("gemm_row_lanes.cu"),
        include_str!("gemm_parts.cuh")
    ],
    args: &[TILE_RHS, SEGMENTS, ROWS, STAGES],
    defines: &[SM_90A],
    mixed: true,
    rules: &[
        BY_COLUMNS,
        Rule::All(RULES),
        // A line that the copy engine swizzles has at most 128 bytes.
        Rule::AtMost("rows of a box", |of| sets(of) * of.get("rows"), |_| 64),
    ],
    candidates: &[
        List::Only(|of| of.rhs() != 1),
        List::Value("tile_rhs", |of| of.rhs().min(16).next_power_of_two()),
        // Fewer segments leave longer runs of each column.
        List::Values("segments", |of| {
            let most = of.first_segments().max(1).next_power_of_two();
            [1, 2, 4].map(|part| (units(of) / part).clamp(1, most)).into()
        }),
        List::Shapes(&["rows", "stages"], &[&[32, 3], &[16, 3], &[16, 6], &[8, 6]]),
        List::Once,
    ],
    plan: |of| plan(of, "gemm_col_lanes", Boxes::ByColumns((sets(of) * of.get("rows")) as u32)),
    ..Kernel::GEMM
};

const ROWS: Arg =
    compiled("rows", "Rows of a warp's part of a stage.", Values::Powers(8, 64), 32, "ROWS");
