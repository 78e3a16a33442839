//! `gemm-thread`: several right-hand sides and one matrix of 17 to 64 columns, a thread a row.

use gemv_core::{Layout, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Case, GEMM_PRELUDE, Kernel, Launch, List, Plan, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-thread",
    about: "Several right-hand sides and one matrix of at most 64 columns, of real numbers: a thread has \
            whole rows, which tiles of shared memory bring, and a panel of columns of X.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_thread.cu")
    ],
    args: &[
        threads(128, 256),
        rows("Rows of a thread.", 4),
        compiled(
            "tile_rhs",
            "Columns of X that a thread multiplies its rows with at a time.",
            Values::Powers(1, 8),
            4,
            "TILE_RHS",
        ),
        compiled(
            "max_n",
            "Most columns of A.",
            Values::OneOf(&[24, 32, 40, 48, 56, 64]),
            64,
            "MAX_N",
        ),
    ],
    rules: &[
        Rule::For(
            |desc, _| desc.layout != Layout::Strided,
            "the kernel is for the layouts row and col",
        ),
        REAL,
        ONE_MATRIX,
        // Each of the first eight lanes has a column.
        Rule::Columns(8..=LANES),
        WITHIN_MAX_N,
        THREADS_OF_DEVICE,
        // A sum, those that wait, a row of X.
        Rule::AtMost(
            "registers",
            |of| (7 * of.get("rows") + 1) * of.get("tile_rhs") * of.words() + 32,
            |of| registers(of.get("threads"), 1),
        ),
    ],
    candidates: &[
        List::Only(|of| of.rhs() != 1 && of.n() > 16),
        List::Shapes(
            &["threads", "rows", "panels"],
            &[&[128, 1, 1], &[128, 2, 1], &[64, 2, 1], &[128, 2, 2], &[256, 1, 1]],
        ),
        List::Value("tile_rhs", |of| of.rhs().min(8).next_power_of_two() / of.get("panels")),
        List::Value("max_n", |of| of.n().next_multiple_of(8)),
    ],
    plan,
    ..Kernel::GEMM
};

/// Panels of X that a block keeps, as in the text.
const PANELS: u64 = 4;
/// Bytes of shared memory of a multiprocessor that the blocks of a launch may have, and their threads.
const SHARED: u64 = 224 << 10;
const RESIDENT: u64 = 1024;

fn plan(of: &Case<'_>) -> Plan {
    let [threads, rows, cols] = of.all(["threads", "rows", "tile_rhs"]);
    let (n, bytes, tile) = (of.n(), of.bytes(), threads * rows);
    // From row to row, an odd number of words.
    let row = match of.desc.layout {
        Layout::Row if bytes < 8 => ((n * bytes).div_ceil(4) | 1) * 4,
        Layout::Row => (n | 1) * bytes,
        _ => n * bytes,
    };
    // X and two tiles.
    let shared = LANES * PANELS * cols * of.acc_bytes() + 2 * (tile * row).next_multiple_of(16);
    let groups = of.rhs().div_ceil(PANELS * cols);
    let resident = (SHARED / shared).min(RESIDENT / threads).max(1);
    let most = (u64::from(of.caps.units) * resident / groups.max(1)).max(1);
    let blocks = of.m().div_ceil(tile).min(most).saturating_mul(groups);
    let launch = Launch::new("gemm_thread", blocks, threads).waiting();
    Launch { shared: shared as u32, ..launch }.into()
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Params};

    use super::*;
    use crate::testing::caps;

    fn desc(dtype: Dtype, layout: Layout, m: usize, n: usize, rhs: usize) -> Desc {
        Desc { rhs, ..Desc::of(dtype, layout, (m, n), 4) }
    }

    #[test]
    fn candidates_are_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                for (n, rhs) in [(1, 2), (16, 2), (17, 1), (17, 2), (50, 3), (64, 100), (65, 2)] {
                    let desc = desc(dtype, layout, 100_000, n, rhs);
                    let there = !dtype.is_complex() && layout != Layout::Strided;
                    let meant = there && rhs > 1 && (17..=64).contains(&n);
                    assert_eq!(!KERNEL.candidates(&desc, &caps()).is_empty(), meant, "{desc}");
                }
            }
        }
    }

    #[test]
    fn blocks_have_many_tiles() {
        let params: Params = "gemm-thread threads=128 tile_rhs=8".parse().unwrap();
        let blocks = |m, rhs| {
            let desc = desc(Dtype::F32, Layout::Row, m, 50, rhs);
            KERNEL.fits(&desc, &params, &caps()).unwrap();
            KERNEL.plan(&desc, &params, &caps()).launches[0].grid[0]
        };
        assert_eq!((blocks(1, 2), blocks(129, 8)), (1, 2));
        // Three blocks of a multiprocessor have room; 33 columns are two groups.
        assert_eq!((blocks(1 << 22, 8), blocks(1 << 22, 33)), (3 * 132, 2 * (3 * 132 / 2)));
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let good = desc(Dtype::F32, Layout::Col, 1000, 50, 8);
        for (desc, text, part) in [
            (Desc { n: 65, ..good }, "gemm-thread", "8 to 64 columns, not 65"),
            (good, "gemm-thread max_n=48", "50 columns are more than 48"),
            (Desc { n: 7, ..good }, "gemm-thread", "not 7"),
            (Desc { batch: 2, ..good }, "gemm-thread", "one matrix"),
            (desc(Dtype::C32, Layout::Col, 1000, 50, 8), "gemm-thread", "real numbers"),
            (Desc { layout: Layout::Strided, ..good }, "gemm-thread", "row and col"),
            (good, "gemm-thread rows=4 tile_rhs=8", "registers"),
            (good, "gemm-thread threads=256 rows=4 tile_rhs=1", "bytes of shared memory"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
