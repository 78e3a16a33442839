//! `row-warp`: row-major matrices of up to 256 columns; a sub-warp has a row.
//!
//! Its text is `row_splitk.cu` behind `row_warp.cu`.

use gemv_core::Values;
use gemv_gpu::rules::*;
use gemv_gpu::{Kernel, Launch, List, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-warp",
    about: "A sub-warp, at most a warp, computes whole rows with all loads in flight at once: \
            row-major, up to 256 columns.",
    source: concat!(
        include_str!("row_warp.cu"),
        include_str!("vectors.cuh"),
        include_str!("row_splitk.cu")
    ),
    args: &[
        threads(128, 256),
        subwarp(1),
        rows("Rows that a sub-warp computes at a time.", 8),
        vec(4),
        compiled(
            "unroll",
            "Rounds of 64 columns, all in flight at once, in which a row fits however it is aligned.",
            Values::Range(1, 5),
            5,
            "UNROLL",
        ),
    ],
    mixed: true,
    rules: &[
        BY_ROWS,
        Rule::Columns(0..=SEGMENT),
        THREADS_OF_DEVICE,
        ONE_LOAD,
        LOADS_OF_LANES,
        // It divides a vector's lanes.
        Rule::UpTo(&["vec"], |of| of.get("subwarp")),
        // Counted with the lanes by which a row may be rotated. The alignment says nothing here: a window
        // of a host matrix with gaps is packed on its way to the device.
        Rule::AtMost(
            "columns and vec - 1",
            |of| of.n() + of.get("vec") - 1,
            |of| of.get("unroll") * LANES,
        ),
        Rule::AtMost(
            "registers of data",
            |of| {
                let [subwarp, rows, vec] = of.all(["subwarp", "rows", "vec"]);
                let slots = LANES / (subwarp * vec);
                rows * slots * (of.get("unroll") * of.load() + vec * of.words())
            },
            |_| 128,
        ),
    ],
    candidates: &[
        // Fewer than 64 columns are `row-splitk`'s and `row-smem`'s.
        List::Only(|of| of.n() >= LANES),
        List::Value("threads", |_| 128),
        List::Values("vec", |of| vec![of.widest(), (of.widest() / 2).max(1)]),
        List::Value("unroll", |of| (of.n() + of.get("vec") - 1).div_ceil(LANES)),
        List::Values("slots", |_| vec![1, 2]),
        List::Value("subwarp", |of| (LANES / of.get("vec") / of.get("slots")).min(32)),
        List::Values("rows", |_| vec![2, 1, 4]),
    ],
    plan: |of| {
        let [threads, subwarp, rows] = of.all(["threads", "subwarp", "rows"]);
        let blocks = of.m().div_ceil(threads / subwarp * rows);
        Launch::new("row_warp", blocks, threads).waiting().into()
    },
    ..Kernel::GEMV
};

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for few in (0..=64).chain([65, 100, 192, 255, 256]) {
                    let desc = Desc::of(dtype, Layout::Row, (1000, few), align);
                    let all = KERNEL.candidates(&desc, &caps());
                    assert!(!all.is_empty() || !(64..=256).contains(&few), "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    /// The device may not have the alignment of the host's view: a window of an aligned matrix is
    /// packed, and its rows then begin anywhere.
    #[test]
    fn rows_fit_however_they_are_rotated() {
        for dtype in Dtype::ALL {
            for n in 1..=256 {
                let of = |align| Desc::of(dtype, Layout::Row, (50, n), align);
                for params in KERNEL.candidates(&of(6), &caps()) {
                    let lanes = params.get("unroll").unwrap() as usize * 64;
                    assert!(n + params.get("vec").unwrap() as usize - 1 <= lanes, "{n}: {params}");
                    KERNEL.fits(&of(1), &params, &caps()).unwrap();
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let row = Desc::of(Dtype::F32, Layout::Row, (9, 100), 4);
        for (desc, text, part) in [
            (row, "row-warp subwarp=3", "power of two"),
            (row, "row-warp subwarp=32", "subwarp=32 times vec=4 is more than 64"),
            (row, "row-warp unroll=1", "columns and vec - 1 are more than 64"),
            (row, "row-warp unroll=6", "from 1 to 5"),
            (row, "row-warp subwarp=4 rows=4 unroll=5", "more than 128"),
            (row, "row-warp vec=8", "vec=8 is more than 4"),
            (Desc { n: 257, ..row }, "row-warp", "0 to 256 columns"),
            (Desc { layout: Layout::Col, ..row }, "row-warp", "layout row"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
