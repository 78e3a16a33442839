//! `gemm-row-mma`: one row-major matrix of f64 and many right-hand sides, by the tensor cores.

use gemv_gpu::rules::{BY_ROWS, min_blocks};
use gemv_gpu::{GEMM_PRELUDE, Kernel, List, Rule};

use super::mma::{self, SEGMENTS, STAGES, TILE_RHS, WARPS_K, WARPS_M};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-row-mma",
    about: "Many right-hand sides and one row-major matrix of f64 by tensor cores: a block holds \
            segments of X in registers, and rows stream through shared memory.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("mma.cuh"),
        include_str!("gemm_row_mma.cu"),
        include_str!("gemm_parts.cuh")
    ],
    args: &[TILE_RHS, WARPS_K, WARPS_M, SEGMENTS, STAGES, min_blocks(2)],
    rules: &[BY_ROWS, Rule::All(mma::RULES)],
    candidates: &[List::Made(|of| mma::candidates(of, SHAPES)), List::Once],
    plan: |of| mma::plan(of, "gemm_row_mma"),
    ..Kernel::GEMM
};

const SHAPES: &[&[(&str, u32)]] = &[
    &[("tile_rhs", 16), ("warps_k", 8), ("warps_m", 1), ("segments", 4), ("stages", 4)],
    &[("tile_rhs", 16), ("warps_k", 8), ("warps_m", 1), ("segments", 2), ("stages", 4)],
    &[("tile_rhs", 16), ("warps_k", 4), ("warps_m", 2), ("segments", 2), ("stages", 5)],
    &[
        ("tile_rhs", 16),
        ("warps_k", 4),
        ("warps_m", 1),
        ("segments", 1),
        ("stages", 2),
        ("min_blocks", 2),
    ],
    &[("tile_rhs", 32), ("warps_k", 4), ("warps_m", 1), ("segments", 2), ("stages", 4)],
    &[("tile_rhs", 32), ("warps_k", 4), ("warps_m", 1), ("segments", 1), ("stages", 4)],
];

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::kernels::gemm_col_mma;
    use crate::testing::caps;
    use gemv_gpu::Caps;

    fn desc(layout: Layout, m: usize, n: usize, rhs: usize) -> Desc {
        Desc { rhs, ..Desc::of(Dtype::F64, layout, (m, n), 4) }
    }

    /// A device before 8.0.
    fn without() -> Caps {
        let mut caps = caps();
        caps.fp64_mma = false;
        caps
    }

    #[test]
    fn candidates_are_legal_and_there_where_the_kernels_are_for() {
        let without = without();
        for (kernel, layout) in [(KERNEL, Layout::Row), (gemm_col_mma::KERNEL, Layout::Col)] {
            for dtype in Dtype::ALL {
                for (m, n) in
                    [(1, 1), (1000, 255), (4096, 4096), (256, 200_000), (3, (1 << 24) + 1)]
                {
                    for rhs in [1, 8, 9, 16, 17, 64, 1000] {
                        let desc = desc(layout, m, n, rhs).of_type(dtype);
                        let all = kernel.candidates(&desc, &caps());
                        let meant = dtype == Dtype::F64 && rhs > 8 && n <= 1 << 24;
                        assert_eq!(!all.is_empty(), meant, "{desc}");
                        for params in all {
                            kernel.fits(&desc, &params, &caps()).unwrap();
                        }
                        assert!(kernel.candidates(&desc, &without).is_empty(), "{desc}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let wide = desc(Layout::Row, 100, 5000, 16);
        for (desc, text, part) in [
            (wide, "gemm-row-mma segments=8", "registers are more than 255"),
            (
                wide,
                "gemm-row-mma tile_rhs=32 warps_k=16",
                "1024 threads of a block are more than 512",
            ),
            (wide, "gemm-row-mma warps_k=2", "at least 128 threads"),
            (wide, "gemm-row-mma stages=6", "bytes of shared memory"),
            (Desc { batch: 2, ..wide }, "gemm-row-mma", "one matrix"),
            (wide.of_type(Dtype::F32), "gemm-row-mma", "for f64"),
            (Desc { layout: Layout::Col, ..wide }, "gemm-row-mma", "layout row"),
            (Desc { n: 40_000, ..wide }, "gemm-row-mma segments=2", "128 parts are more than 64"),
            (Desc { n: (1 << 24) + 1, ..wide }, "gemm-row-mma", "0 to 16777216 columns"),
            (Desc { m: 1 << 40, ..wide }, "gemm-row-mma", "tiles of rows are more than"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        let without = without();
        let why = KERNEL.fits(&wide, &Params::new(KERNEL.name), &without).unwrap_err();
        assert_eq!(why, "the device has no tensor cores for f64");
    }

    #[test]
    fn a_block_has_at_least_one_stage_and_a_part_at_most_as_many_segments_as_it_holds() {
        for (m, n, rhs) in [(1, 1, 9), (17, 300, 16), (4096, 4096, 40), (3, 200_000, 1000)] {
            let desc = desc(Layout::Row, m, n, rhs);
            for params in KERNEL.candidates(&desc, &caps()) {
                let plan = KERNEL.plan(&desc, &params, &caps());
                let panels = rhs.div_ceil(params.get_or("tile_rhs", 0) as usize);
                let ranges = plan.launches[0].grid[0] / panels as u64;
                let stages = m.div_ceil(16) * n.div_ceil(256);
                assert!(ranges >= 1 && ranges <= stages as u64, "{desc} {params}");
                assert_eq!(plan.launches.len() > 1, plan.workspace > 0, "{desc} {params}");
            }
        }
    }
}
