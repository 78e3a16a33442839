//! `gemm-row-panel`: one row-major matrix and several right-hand sides; a warp holds a segment of X.

use gemv_core::Values;
use gemv_gpu::rules::*;
use gemv_gpu::{GEMM_PRELUDE, Kernel, Launch, List, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-row-panel",
    about: "Several right-hand sides and one row-major matrix of real numbers: a warp holds a segment \
            of X in registers, and rows stream by.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_row_panel.cu"),
        include_str!("gemm_parts.cuh")
    ],
    args: &[
        threads(256, 512),
        warps_k(8),
        compiled(
            "tile_rhs",
            "Columns of X that a warp holds.",
            Values::Powers(1, 16),
            4,
            "TILE_RHS",
        ),
        compiled("rows", "Rows that a warp has in flight.", Values::Powers(1, 8), 4, "DEPTH"),
        compiled("vec", "Elements of a load.", Values::OneOf(&[1, 2]), 1, "VEC"),
        min_blocks(4),
    ],
    mixed: true,
    rules: &[
        BY_ROWS,
        REAL,
        ONE_MATRIX,
        OF_TWO_LEVELS,
        THREADS_OF_DEVICE,
        ONE_LOAD,
        Rule::UpTo(&["warps_k"], |of| (of.get("threads") / 32).min(16)),
        Rule::AtMost("parts", |of| of.parts(of.get("warps_k")), |_| LANES),
        Rule::AtMost(
            "registers",
            |of| {
                let [cols, rows] = of.all(["tile_rhs", "rows"]);
                // Elements of a narrower type than X are held once more as they are converted.
                let converted = if of.desc.is_mixed() { 8 * rows } else { 0 };
                // X and sums, rows in flight, and some for all else.
                10 * cols * of.words() + rows * 8 / of.get("vec") * of.load() + converted + 28
            },
            |of| registers(of.get("threads"), of.get("min_blocks")),
        ),
        Rule::Local(|of| {
            2 * (of.get("threads") / 32) * BATCH * of.get("tile_rhs") * of.acc_bytes()
        }),
    ],
    candidates: &[
        List::Only(|of| of.rhs() != 1),
        List::Shapes(
            &["threads", "rows", "min_blocks"],
            &[
                &[512, 4, 1],
                &[512, 2, 1],
                &[128, 4, 3],
                &[256, 4, 1],
                &[256, 2, 1],
                &[512, 8, 1],
                &[256, 8, 2],
                &[256, 4, 2],
                &[256, 8, 1],
                &[128, 8, 4],
                &[128, 4, 4],
            ],
        ),
        // Two panels of 8 columns may be as fast as one of 16.
        List::Values("tile_rhs", |of| match of.rhs().min(16).next_power_of_two() {
            16 => vec![16, 8],
            cols => vec![cols],
        }),
        // Warps along the columns: as many as there are segments, or all.
        List::Value("warps_k", |of| {
            let segments = of.first_segments().max(1).next_power_of_two();
            segments.min(of.get("threads") / 32).min(16)
        }),
        List::Value("vec", |of| if of.bytes() == 2 { of.aligned().min(2) } else { 1 }),
        // More registers of A spill some of X.
        List::Only(|of| {
            let (rows, cols, load) =
                (of.get("rows"), of.get("tile_rhs"), 8 / of.get("vec") * of.load());
            let many = rows == 8 && (load >= 8 || cols > 2);
            !many && rows * load <= if cols <= 4 { 64 } else { 32 }
        }),
        List::Once,
    ],
    plan: |of| {
        let [threads, warps_k, cols] = of.all(["threads", "warps_k", "tile_rhs"]);
        let parts = of.parts(warps_k);
        let all = of.super_segments() * parts * of.rhs().div_ceil(cols).max(1);
        let rows = (threads / 32 / warps_k).max(1) * BATCH;
        // A block for each range of rows: as many as are resident, of at least one batch each.
        let most = (of.blocks("min_blocks") / all).max(1);
        let ranges = of.m().div_ceil(rows).min(most).max(1);
        let first = Launch::new("gemm_row_panel", ranges * all, threads);
        parts_plan(of, first.waiting(), parts)
    },
    ..Kernel::GEMM
};

/// Rows that a warp takes before its sums are added up, as in the text.
const BATCH: u64 = 16;

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for n in [1, 255, 256, 257, 4096, 65_536, 65_537, 200_000, 1 << 24, (1 << 24) + 1] {
                for rhs in [1, 2, 3, 8, 17, 64] {
                    let desc = Desc { rhs, ..Desc::of(dtype, Layout::Row, (1000, n), 4) };
                    let all = KERNEL.candidates(&desc, &caps());
                    let meant = !dtype.is_complex() && rhs > 1 && n <= 1 << 24;
                    assert_eq!(!all.is_empty(), meant, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc { rhs: 8, ..Desc::of(Dtype::F32, Layout::Row, (100, 5000), 4) };
        for (desc, text, part) in [
            (desc, "gemm-row-panel tile_rhs=16 threads=512", "registers are more than 128"),
            (Desc { batch: 2, ..desc }, "gemm-row-panel", "one matrix"),
            (desc.of_type(Dtype::C32), "gemm-row-panel", "real numbers"),
            (desc, "gemm-row-panel warps_k=16", "warps_k=16 is more than 8"),
            (Desc { n: 40_000, ..desc }, "gemm-row-panel warps_k=2", "128 parts are more than 64"),
            (Desc { n: (1 << 24) + 1, ..desc }, "gemm-row-panel", "0 to 16777216 columns"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
