//! `gemm-col-batch`: many column-major matrices of up to 2,048 columns; a thread has whole rows.

use gemv_core::Values;
use gemv_gpu::rules::*;
use gemv_gpu::{GEMM_PRELUDE, Kernel, Launch, List, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-col-batch",
    about: "Many column-major matrices of up to 2,048 columns: a thread computes whole rows by itself.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_col_batch.cu")
    ],
    args: &[
        threads(128, 256),
        tile_rhs(1, Values::Range(1, 16)),
        vec(1),
        LANES_KEPT,
        compiled(
            "rounds",
            "Rounds of the lanes in which a segment fits.",
            Values::Range(1, 4),
            1,
            "ROUNDS",
        ),
        compiled(
            "unroll",
            "Lanes whose columns are loaded at a time, where as many are kept.",
            Values::Powers(8, 16),
            8,
            "UNROLL",
        ),
        compiled(
            "segments",
            "Segments in which a row fits.",
            Values::Powers(1, MOST_SEGMENTS as u32),
            1,
            "SEGMENTS",
        ),
    ],
    rules: &[
        BY_COLUMNS,
        WITH_COLUMNS,
        Rule::Columns(1..=MOST_SEGMENTS * SEGMENT),
        THREADS_OF_DEVICE,
        ONE_LOAD,
        Rule::Holds(
            |of| of.get("lanes") == LANES || of.all(["rounds", "segments"]) == [1, 1],
            "fewer lanes are for one round of one segment",
        ),
        Rule::AtMost(
            "columns of a segment",
            |of| of.n().min(SEGMENT),
            |of| of.get("lanes") * of.get("rounds"),
        ),
        Rule::AtMost("segments of a row", |of| of.segments(), |of| of.get("segments")),
        Rule::Holds(
            |of| of.get("segments") == 1 || of.segments() > 1,
            "several segments are for more than 256 columns",
        ),
        Rule::AtMost(
            "registers of data",
            |of| {
                let [lanes, segments, cols, vec] = of.all(["lanes", "segments", "tile_rhs", "vec"]);
                let at_once = lanes.min(of.get("unroll"));
                // Sums that wait: of the halving, and of the segments.
                let waiting = u64::from((lanes / at_once).ilog2() + segments.ilog2() + 1);
                let sums = (at_once + waiting) * cols * vec * of.words();
                // A and X of one round.
                sums + at_once * (of.load() + of.words())
            },
            |_| 160,
        ),
    ],
    candidates: &[
        List::Only(|of| of.desc.batch != 1),
        List::Value("threads", |_| 128),
        List::Value("lanes", |of| of.n().next_power_of_two().min(LANES)),
        List::Value("rounds", |of| of.n().min(SEGMENT).div_ceil(LANES)),
        List::Value("segments", |of| of.segments().next_power_of_two()),
        List::Values("vec", |of| vec![of.aligned(), (of.aligned() / 2).max(1), 1]),
        List::Values("unroll", |of| if of.get("lanes") > 8 { vec![8, 16] } else { vec![8] }),
        List::Values("tile_rhs", |of| {
            let rhs = of.rhs().clamp(1, 1 << 20);
            [8, 4, 1].map(|most| rhs.div_ceil(rhs.div_ceil(most))).to_vec()
        }),
        List::Once,
    ],
    plan: |of| {
        let groups = of.m().div_ceil(of.get("vec")).saturating_mul(of.desc.batch as u64);
        let panels = of.rhs().div_ceil(of.get("tile_rhs"));
        let blocks = groups.div_ceil(of.get("threads")).saturating_mul(panels);
        Launch::new("gemm_col_batch", blocks, of.get("threads")).waiting().into()
    },
    ..Kernel::GEMM
};

/// Segments of the longest rows.
const MOST_SEGMENTS: u64 = 8;

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for n in [1, 2, 4, 5, 16, 31, 32, 33, 64, 65, 200, 256, 257, 1000, 2048, 2049] {
                for (m, rhs, batch) in [(4, 1, 1000), (64, 3, 70_000), (1, 64, 2)] {
                    let one = Desc::of(dtype, Layout::Col, (m, n), 4);
                    let desc = Desc { rhs, batch, ..one };
                    let all = KERNEL.candidates(&desc, &caps());
                    assert_eq!(!all.is_empty(), n <= 2048, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc { batch: 9, ..Desc::of(Dtype::F32, Layout::Col, (100, 100), 4) };
        for (desc, text, part) in [
            (desc, "gemm-col-batch lanes=32", "100 columns of a segment are more than 32"),
            (desc, "gemm-col-batch", "100 columns of a segment are more than 64"),
            (desc, "gemm-col-batch lanes=32 rounds=4", "for one round of one segment"),
            (desc, "gemm-col-batch rounds=2 segments=2", "for more than 256 columns"),
            (
                Desc { n: 300, ..desc },
                "gemm-col-batch rounds=4",
                "2 segments of a row are more than 1",
            ),
            (Desc { n: 0, ..desc }, "gemm-col-batch", "with columns"),
            (Desc { layout: Layout::Row, ..desc }, "gemm-col-batch", "layout col"),
            (desc, "gemm-col-batch rounds=4 vec=4 unroll=16 tile_rhs=4", "registers of data"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
