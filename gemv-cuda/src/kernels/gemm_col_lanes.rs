//! `gemm-col-lanes`: one column-major matrix of numbers of 16 or 32 bits and several right-hand sides; a thread has whole lanes.
//!
//! Its text is `gemm_row_lanes.cu` behind `gemm_col_lanes.cu`; what it shares with `gemm-row-lanes` is described there.

use gemv_core::{Arg, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Boxes, GEMM_PRELUDE, Kernel, List, Rule, SM_90A};

use super::gemm_row_lanes::{RULES, SEGMENTS, STAGES, TILE_RHS, plan, sets, units};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-col-lanes",
    about: "Several right-hand sides and one column-major matrix of f16, bf16 or f32, on Hopper: the copy engine \
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
        Rule::For(
            |desc, _| desc.dtype.bytes() <= 4 && desc.vectors.acc_bytes() == 4,
            "the kernel is for a matrix of f16, bf16 or f32 and sums of f32",
        ),
        Rule::All(RULES),
        // A line that the copy engine swizzles has at most 128 bytes.
        Rule::AtMost("bytes of a box's line", |of| sets(of) * of.get("rows") * of.bytes(), |_| 128),
    ],
    candidates: &[
        List::Only(|of| of.rhs() != 1),
        List::Value("tile_rhs", |of| of.rhs().min(16).next_power_of_two()),
        // Fewer segments leave longer runs of each column.
        List::Values("segments", |of| {
            let most = of.first_segments().max(1).next_power_of_two();
            // At most so many sets of eight rows are as long as a line.
            let least = (units(of) * 8 * of.bytes() / 128).max(1);
            [1, 2, 4].map(|part| (units(of) / part).min(most).max(least)).into()
        }),
        List::Shapes(&["rows", "stages"], &[&[32, 3], &[16, 3], &[16, 6], &[8, 6], &[8, 3]]),
        List::Once,
    ],
    plan: |of| plan(of, "gemm_col_lanes", Boxes::ByColumns((sets(of) * of.get("rows")) as u32)),
    ..Kernel::GEMM
};

const ROWS: Arg =
    compiled("rows", "Rows of a warp's part of a stage.", Values::Powers(8, 64), 32, "ROWS");

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for n in [1, 256, 4099, 200_000, (1 << 24) + 1] {
                for rhs in [1, 2, 5, 64] {
                    let desc = Desc { rhs, ..Desc::of(dtype, Layout::Col, (1000, n), 4) };
                    let all = KERNEL.candidates(&desc, &caps());
                    let meant = dtype.bytes() <= 4 && rhs > 1 && n <= 1 << 24;
                    // 16 columns have two segments at a time, of 64 parts.
                    let meant = meant && (rhs <= 8 || n <= 128 * 256);
                    assert_eq!(!all.is_empty(), meant, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn a_box_has_the_rows_of_all_sets_and_at_most_128_bytes() {
        let desc = Desc { rhs: 8, ..Desc::of(Dtype::Bf16, Layout::Col, (100, 5000), 4) };
        let plan = |text: &str| {
            let params: Params = text.parse().unwrap();
            KERNEL.fits(&desc, &params, &caps()).map(|()| KERNEL.plan(&desc, &params, &caps()))
        };
        // Four units: one segment of four sets, or two of two.
        for (text, rows) in
            [("gemm-col-lanes segments=1 rows=16", 64), ("gemm-col-lanes segments=2 rows=16", 32)]
        {
            let boxes = plan(text).unwrap().launches[0].boxes;
            assert_eq!(boxes, Some(Boxes::ByColumns(rows)), "{text}");
        }
        let why = plan("gemm-col-lanes segments=1 rows=32").unwrap_err();
        assert!(why.contains("bytes of a box's line are more than 128"), "{why}");
    }
}
