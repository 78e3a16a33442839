//! `gemm-row-batch`: many row-major matrices of up to 256 columns; a sub-warp has whole rows.

use gemv_core::Values;
use gemv_gpu::rules::*;
use gemv_gpu::{GEMM_PRELUDE, Kernel, Launch, List, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-row-batch",
    about: "Many row-major matrices of up to 256 columns: a sub-warp computes whole rows with all \
            loads in flight at once.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_row_batch.cu")
    ],
    args: &[
        threads(128, 256),
        subwarp(1),
        rows("Rows that a sub-warp computes at a time.", 8),
        tile_rhs(1, Values::Range(1, 16)),
        vec(4),
        LANES_KEPT,
        compiled(
            "rounds",
            "Rounds of the lanes in which a row fits.",
            Values::Range(1, 4),
            1,
            "ROUNDS",
        ),
    ],
    rules: &[
        BY_ROWS,
        WITH_COLUMNS,
        Rule::Columns(1..=SEGMENT),
        THREADS_OF_DEVICE,
        ONE_LOAD,
        Rule::UpTo(&["subwarp", "vec"], |of| of.get("lanes")),
        Rule::Holds(
            |of| of.get("lanes") == LANES || of.get("rounds") == 1,
            "fewer lanes are for one round",
        ),
        Rule::AtMost("columns", |of| of.n(), |of| of.get("lanes") * of.get("rounds")),
        Rule::AtMost(
            "registers of data",
            |of| {
                let [subwarp, rows, vec] = of.all(["subwarp", "rows", "vec"]);
                let slots = of.get("lanes") / (subwarp * vec);
                // A and X, sums, and addresses.
                2 * rows * of.get("rounds") * slots * of.load()
                    + slots * vec * of.words()
                    + 6 * rows
            },
            |_| 128,
        ),
    ],
    candidates: &[
        List::Only(|of| of.desc.batch != 1),
        List::Value("lanes", |of| of.n().next_power_of_two().min(LANES)),
        List::Value("rounds", |of| of.n().div_ceil(LANES)),
        List::Value("tile_rhs", |of| {
            let rhs = of.rhs().clamp(1, 1 << 20);
            rhs.div_ceil(rhs.div_ceil(8))
        }),
        List::Values("vec", |of| {
            [of.aligned(), of.aligned() / 2, 1].map(|vec| vec.clamp(1, of.get("lanes"))).to_vec()
        }),
        List::Shapes(
            &["threads", "rows", "fewer"],
            &[
                &[128, 2, 2],
                &[128, 1, 2],
                &[128, 4, 2],
                &[128, 1, 4],
                &[128, 2, 4],
                &[256, 2, 2],
                &[128, 8, 1],
                &[128, 4, 1],
                &[128, 2, 1],
            ],
        ),
        List::Value("subwarp", |of| {
            (of.get("lanes") / of.get("vec") / of.get("fewer")).clamp(1, 32)
        }),
        List::Once,
        List::First(16),
    ],
    plan: |of| {
        let [threads, subwarp, rows] = of.all(["threads", "subwarp", "rows"]);
        let all = of.m().saturating_mul(of.desc.batch as u64);
        let sets = all.div_ceil((threads / subwarp).max(1) * rows);
        let blocks = sets.saturating_mul(of.rhs().div_ceil(of.get("tile_rhs")));
        Launch::new("gemm_row_batch", blocks, threads).waiting().into()
    },
    ..Kernel::GEMM
};

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for n in [1, 2, 4, 5, 16, 31, 32, 33, 64, 65, 200, 256, 257] {
                for (m, rhs, batch) in [(4, 1, 1000), (64, 3, 70_000), (1, 64, 2)] {
                    let one = Desc::of(dtype, Layout::Row, (m, n), 4);
                    let desc = Desc { rhs, batch, ..one };
                    let all = KERNEL.candidates(&desc, &caps());
                    assert_eq!(!all.is_empty(), n <= 256, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc { batch: 9, ..Desc::of(Dtype::F32, Layout::Row, (100, 100), 4) };
        for (desc, text, part) in [
            (desc, "gemm-row-batch lanes=32 subwarp=4", "100 columns are more than 32"),
            (desc, "gemm-row-batch", "100 columns are more than 64"),
            (
                desc,
                "gemm-row-batch rounds=2 vec=4 subwarp=32",
                "subwarp=32 times vec=4 is more than 64",
            ),
            (Desc { n: 0, ..desc }, "gemm-row-batch", "with columns"),
            (desc, "gemm-row-batch rounds=2 rows=8 subwarp=2", "registers of data"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
