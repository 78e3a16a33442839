//! `row-smem`, behind CUDA's words for vectors, and its candidates.

use gemv_core::Params;
use gemv_gpu::{Case, Kernel, List, ROW_SMEM, row_smem_max_n, source};

pub(crate) const KERNEL: Kernel = Kernel {
    source: source![include_str!("vectors.cuh"), ROW_SMEM.source],
    candidates: &[List::Only(|of| of.m() >= ROWS), List::Made(shapes), List::Once],
    ..ROW_SMEM
};

/// Rows from which it may be faster than `row-splitk` on an H200.
///
/// From four times as many on, it is, for rows of up to [`BYTES`].
pub(super) const ROWS: u64 = 32_768;
pub(super) const BYTES: u64 = 192;

fn shapes(of: &Case<'_>) -> Vec<Params> {
    let max_n = row_smem_max_n(of);
    let mut all = Vec::new();
    for vec in [of.aligned().min(max_n), 1] {
        let before = all.len();
        for (threads, rows) in [(128, 1), (128, 2), (128, 4), (64, 1), (64, 2), (32, 1)] {
            // Many bytes a thread leave too few threads, and so do small blocks where larger ones fit.
            if rows > 1 && rows * max_n * of.bytes() > 192 || threads == 32 && all.len() > before {
                continue;
            }
            let shape = [("threads", threads), ("rows", rows), ("vec", vec), ("max_n", max_n)];
            let params = of.with(shape);
            if of.at(&params).fits() {
                all.push(params);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for few in (0..=64).chain([65, 100, 192, 255, 256]) {
                    let desc = Desc::of(dtype, Layout::Row, (ROWS as usize, few), align);
                    let all = KERNEL.candidates(&desc, &caps());
                    assert!(!all.is_empty() || !(1..=64).contains(&few), "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let row = Desc::of(Dtype::F32, Layout::Row, (9, 100), 4);
        for (desc, text, part) in [
            (Desc { n: 300, ..row }, "row-smem", "for 1 to 256 columns, not 300"),
            (Desc { n: 40, ..row }, "row-smem max_n=48", "columns are too few"),
            (Desc { n: 40, ..row }, "row-smem vec=4 max_n=42", "not a multiple of vec"),
            (row, "row-smem max_n=128 threads=128", "bytes of local memory"),
            (row, "row-smem max_n=192", "columns are too few"),
            (Desc { n: 40, ..row }, "row-smem rows=8 max_n=40 threads=64", "bytes of local memory"),
            (Desc { n: 7, ..row }.of_type(Dtype::F64), "row-smem max_n=8 rows=8", "more than 64"),
            // x has room for as many as there are lanes.
            (
                Desc { n: 47, ..row }.of_type(Dtype::C64),
                "row-smem threads=64 max_n=47",
                "bytes of local memory",
            ),
            (Desc { layout: Layout::Col, ..row }, "row-smem", "layout row"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
