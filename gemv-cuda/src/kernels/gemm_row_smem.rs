//! `gemm-row-smem`: many row-major matrices of up to 128 columns; a thread has whole rows, which come through shared memory.

use gemv_core::{Arg, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Case, GEMM_PRELUDE, Kernel, Launch, List, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-row-smem",
    about: "Many row-major matrices of up to 128 columns and one right-hand side each: a block copies rows and \
            vectors to shared memory, where a thread computes whole rows.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("smem_rows.cuh"),
        include_str!("gemm_row_smem.cu")
    ],
    args: &[threads(128, 256), rows("Rows of a thread.", 8), vec(1), MAX_N],
    rules: &[
        BY_ROWS,
        Rule::All(FEW_COLUMNS),
        ONE_LOAD,
        Rule::Holds(
            |of| of.n().is_multiple_of(of.get("vec")),
            "the columns are not a multiple of vec",
        ),
    ],
    candidates: &[
        List::Only(|of| of.desc.batch != 1 && of.n() > 0),
        List::Value("max_n", max_n),
        // Rows of an even number of vectors have gaps in shared memory: there shorter vectors are faster.
        List::Values("vec", |of| {
            let vec = of.aligned().min(1 << of.n().trailing_zeros());
            let half = (vec / 2).max(1);
            if (of.n() / vec).is_multiple_of(2) { vec![half, vec] } else { vec![vec, half] }
        }),
        List::Shapes(
            &["threads", "rows"],
            &[&[128, 1], &[64, 1], &[128, 2], &[128, 4], &[128, 8], &[256, 4], &[32, 1]],
        ),
        // Larger blocks leave too few of them.
        List::Only(|of| of.get("rows") == 1 || shared(of) <= 48 << 10),
        List::Launches,
    ],
    plan: |of| {
        let [threads, rows] = of.all(["threads", "rows"]);
        let all = of.m().saturating_mul(of.desc.batch as u64);
        let blocks = all.div_ceil(threads * rows);
        Launch { shared: shared(of) as u32, ..Launch::new("gemm_row_smem", blocks, threads) }
            .waiting()
            .into()
    },
    ..Kernel::GEMM
};

/// Columns of the widest matrix.
const MOST: u64 = 2 * LANES;
const LENGTHS: &[u32] = &[1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128];

/// Most columns of a program.
pub(super) const MAX_N: Arg = compiled(
    "max_n",
    "Most columns: the least of its values that holds a row.",
    Values::OneOf(LENGTHS),
    64,
    "MAX_N",
);

/// Of a thread with whole rows, of one right-hand side, in shared memory.
pub(super) const FEW_COLUMNS: &[Rule] = &[
    Rule::Columns(1..=MOST),
    Rule::For(|desc, _| desc.rhs == 1, "the kernel is for one right-hand side"),
    THREADS_OF_DEVICE,
    WITHIN_MAX_N,
    Rule::Holds(|of| max_n(of) == of.get("max_n"), "columns are too few for max_n"),
];

/// The least that holds a row.
pub(super) fn max_n(of: &Case<'_>) -> u64 {
    let least = LENGTHS.iter().find(|most| u64::from(**most) >= of.n());
    least.map_or(MOST, |most| (*most).into())
}

/// Bytes of a block's rows, an odd number of vectors apart, and of X of as many entries as they may be of.
fn shared(of: &Case<'_>) -> u64 {
    let [threads, rows, vec] = of.all(["threads", "rows", "vec"]);
    let apart = of.n() + if (of.n() / vec).is_multiple_of(2) { vec } else { 0 };
    let entries = ((threads * rows - 2) / of.m().max(1) + 2).min(of.desc.batch as u64);
    // Whole vectors of 16 bytes, with one more at either end.
    let bytes = |elements: u64| (elements * of.bytes()).next_multiple_of(16) + 32;
    bytes(threads * rows * apart) + bytes(entries * of.n())
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for n in [0, 1, 2, 6, 13, 17, 32, 48, 63, 64, 65, 96, 127, 128, 129] {
                    for (m, batch) in [(1, 70_000), (17, 1000), (4096, 2), (5, 1)] {
                        let desc = Desc { batch, ..Desc::of(dtype, Layout::Row, (m, n), align) };
                        let all = KERNEL.candidates(&desc, &caps());
                        assert_eq!(!all.is_empty(), (1..=128).contains(&n) && batch > 1, "{desc}");
                        for params in all {
                            KERNEL.fits(&desc, &params, &caps()).unwrap();
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc { batch: 9, ..Desc::of(Dtype::F32, Layout::Row, (100, 48), 4) };
        for (desc, text, part) in [
            (Desc { rhs: 2, ..desc }, "gemm-row-smem", "one right-hand side"),
            (Desc { n: 30, ..desc }, "gemm-row-smem vec=4 max_n=32", "not a multiple of vec"),
            (Desc { n: 30, ..desc }, "gemm-row-smem", "columns are too few"),
            (Desc { n: 129, ..desc }, "gemm-row-smem", "1 to 128 columns"),
            (Desc { n: 70, ..desc }, "gemm-row-smem", "70 columns are more than 64"),
            (Desc { layout: Layout::Col, ..desc }, "gemm-row-smem", "layout row"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
