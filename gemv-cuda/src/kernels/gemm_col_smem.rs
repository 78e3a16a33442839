//! `gemm-col-smem`: many small column-major matrices of up to 128 columns, which come through shared memory; a thread has whole
//! rows.

use gemv_gpu::rules::*;
use gemv_gpu::{Case, GEMM_PRELUDE, Kernel, Launch, List, Rule};

use super::gemm_row_smem::{FEW_COLUMNS, MAX_N, max_n};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-col-smem",
    about: "Many small column-major matrices of up to 128 columns and one right-hand side each: a block copies \
            whole matrices and vectors to shared memory, where a thread computes whole rows.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("smem_rows.cuh"),
        include_str!("gemm_col_smem.cu")
    ],
    args: &[
        threads(128, 256),
        launched(
            "rows",
            "Rows of a thread at most, where a block has several matrices.",
            gemv_core::Values::Powers(1, 16),
            1,
        ),
        MAX_N,
    ],
    rules: &[
        BY_COLUMNS,
        Rule::All(FEW_COLUMNS),
        Rule::AtMost("bytes of a matrix", matrix, |_| 96 << 10),
    ],
    candidates: &[
        List::Only(|of| of.desc.batch != 1 && of.n() > 0 && matrix(of) <= 48 << 10),
        List::Value("max_n", max_n),
        List::Shapes(
            &["threads", "rows"],
            &[&[128, 1], &[128, 2], &[128, 4], &[128, 8], &[64, 1], &[256, 2]],
        ),
        List::Once,
    ],
    plan: |of| {
        let threads = of.get("threads");
        let batch = of.desc.batch as u64;
        let blocks = batch.div_ceil(entries(of));
        // As the kernel deals them.
        let each = batch.div_ceil(blocks.max(1));
        // Whole vectors of 16 bytes, with one more at either end.
        let bytes = |elements: u64| (elements * of.bytes()).next_multiple_of(16) + 32;
        let shared = bytes(each * of.m() * of.n()) + bytes(each * of.n());
        let launch = Launch::new("gemm_col_smem", blocks, threads);
        Launch { shared: shared as u32, ..launch }.waiting().into()
    },
    ..Kernel::GEMM
};

/// Bytes of a matrix.
fn matrix(of: &Case<'_>) -> u64 {
    of.m().saturating_mul(of.n()).saturating_mul(of.bytes())
}

/// Matrices of a block, at least one: as many as fit in 48 KiB.
fn entries(of: &Case<'_>) -> u64 {
    let rows = of.get("threads") * of.get("rows") / of.m().max(1);
    let bytes = (of.m() + 1) * of.n() * of.bytes();
    rows.min((48 << 10) / bytes.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for n in [0, 1, 2, 13, 33, 64, 65, 96, 128, 129] {
                for (m, batch) in [(1, 70_000), (17, 1000), (65, 300), (48, 2), (5, 1), (4096, 9)] {
                    let desc = Desc { batch, ..Desc::of(dtype, Layout::Col, (m, n), 4) };
                    let all = KERNEL.candidates(&desc, &caps());
                    let meant = (1..=128).contains(&n) && batch > 1;
                    let meant = meant && m * n * dtype.bytes() <= 48 << 10;
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
        let desc = Desc { batch: 9, ..Desc::of(Dtype::F32, Layout::Col, (100, 48), 4) };
        for (desc, text, part) in [
            (Desc { rhs: 2, ..desc }, "gemm-col-smem", "one right-hand side"),
            (Desc { n: 30, ..desc }, "gemm-col-smem", "columns are too few"),
            (Desc { n: 129, ..desc }, "gemm-col-smem", "1 to 128 columns"),
            (Desc { m: 1000, ..desc }, "gemm-col-smem max_n=48", "bytes of a matrix"),
            (Desc { layout: Layout::Row, ..desc }, "gemm-col-smem", "layout col"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
