//! `gemm-row-lanes`: one row-major matrix of 16-bit numbers and several right-hand sides; a thread has whole lanes.

use gemv_core::{Arg, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Boxes, Case, GEMM_PRELUDE, Kernel, Launch, List, Plan, Rule, SM_90A};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-row-lanes",
    about: "Several right-hand sides and one row-major matrix of 16-bit numbers, on Hopper: the copy engine \
            brings rows to shared memory, and each thread has whole lanes of them.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_row_lanes.cu"),
        include_str!("gemm_parts.cuh")
    ],
    args: &[
        TILE_RHS,
        SEGMENTS,
        compiled("rows", "Rows of a stage.", Values::Powers(8, 64), 32, "ROWS"),
        STAGES,
    ],
    defines: &[SM_90A],
    mixed: true,
    rules: &[
        BY_ROWS,
        Rule::For(
            |desc, _| desc.dtype.bytes() == 2 && desc.vectors.acc_bytes() == 4,
            "the kernel is for a matrix of f16 or bf16 and sums of f32",
        ),
        Rule::All(RULES),
    ],
    candidates: &[
        List::Only(|of| of.rhs() != 1),
        List::Value("tile_rhs", |of| of.rhs().min(16).next_power_of_two()),
        // Fewer segments leave fewer warps idle at some lengths, and sums of more rows are added up at a time.
        List::Values("segments", |of| {
            let most = of.first_segments().max(1).next_power_of_two();
            vec![units(of).min(most), 7, 1]
        }),
        List::Shapes(&["rows", "stages"], &[&[32, 3], &[16, 3], &[16, 6], &[64, 2]]),
        List::Once,
    ],
    plan: |of| plan(of, "gemm_row_lanes", Boxes::ByRows(of.get("rows") as u32)),
    ..Kernel::GEMM
};

pub(super) const TILE_RHS: Arg =
    compiled("tile_rhs", "Columns of X of a block.", Values::Powers(2, 16), 8, "TILE_RHS");
pub(super) const SEGMENTS: Arg = compiled(
    "segments",
    "Segments of a row that a block has at a time.",
    Values::Range(1, 8),
    4,
    "SEGMENTS",
);
pub(super) const STAGES: Arg =
    compiled("stages", "Stages of the ring.", Values::Range(2, 8), 3, "STAGES");

pub(super) const RULES: &[Rule] = &[
    Rule::For(|_, caps| caps.sm_90a, "the kernel is for the architecture sm_90a"),
    ONE_MATRIX,
    ALIGNED,
    OF_TWO_LEVELS,
    Rule::UpTo(&["segments"], units),
    Rule::AtMost("parts", |of| of.parts(of.get("segments")), |_| LANES),
    // Granules are counted by 32 bits, and rows by 31.
    Rule::AtMost("rows", |of| of.m(), |_| 1 << 30),
    Rule::AtMost("granules", granules, |_| 1 << 31),
];

/// Warps that compute, and threads of a block: one more warp copies, and three add up.
const WARPS: u64 = 8;
const THREADS: u64 = 32 * (WARPS + 4);
/// Columns of X of a warp.
const COLS: u64 = 4;

/// Segments that the warps of a block have at a time.
pub(super) fn units(of: &Case<'_>) -> u64 {
    WARPS / (of.get("tile_rhs") / COLS).max(1)
}

/// Sets of rows of a block.
pub(super) fn sets(of: &Case<'_>) -> u64 {
    units(of) / of.get("segments")
}

/// Rows that a block has at a time, of all parts.
fn granules(of: &Case<'_>) -> u64 {
    let granule = sets(of) * of.get("rows");
    of.filled_parts(of.parts(of.get("segments"))) * of.m().div_ceil(granule.max(1))
}

pub(super) fn plan(of: &Case<'_>, entry: &'static str, boxes: Boxes) -> Plan {
    let [cols, segments, rows, stages] = of.all(["tile_rhs", "segments", "rows", "stages"]);
    let panels = of.rhs().div_ceil(cols).max(1);
    // As many blocks as are resident, of at least a granule each.
    let most = (u64::from(of.caps.units) / panels).max(1);
    let blocks = granules(of).clamp(1, most) * panels;
    let mut first = Launch::new(entry, blocks, THREADS).waiting();
    // The ring, buffers of sums, barriers.
    let (units, buffers) = (sets(of) * segments, stages + 3);
    let ring = stages * units * rows * SEGMENT * of.bytes();
    let bytes = ring + buffers * units * rows * cols * 4 + 16 * (stages + buffers);
    (first.shared, first.boxes) = (bytes as u32, Some(boxes));
    parts_plan(of, first, of.parts(segments))
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};

    use super::*;
    use crate::testing::caps;

    fn desc(dtype: Dtype, m: usize, n: usize, rhs: usize) -> Desc {
        Desc { rhs, ..Desc::of(dtype, Layout::Row, (m, n), 4) }
    }

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        let mut without = caps();
        without.sm_90a = false;
        for dtype in Dtype::ALL {
            for n in [8, 256, 264, 4096, 14_336, 65_536, 65_544, 200_000, 1 << 24, (1 << 24) + 8] {
                for rhs in [1, 2, 3, 8, 17, 64] {
                    let desc = desc(dtype, 1000, n, rhs);
                    let all = KERNEL.candidates(&desc, &caps());
                    let meant = dtype.bytes() == 2 && rhs > 1 && n <= 1 << 24;
                    // 16 columns have two segments at a time, of 64 parts.
                    let meant = meant && (rhs <= 8 || n <= 128 * 256);
                    assert_eq!(!all.is_empty(), meant, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                    assert!(KERNEL.candidates(&desc, &without).is_empty());
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let wide = desc(Dtype::Bf16, 100, 5000, 8);
        for (desc, text, part) in [
            (wide, "gemm-row-lanes segments=8", "segments=8 is more than 4"),
            (wide, "gemm-row-lanes stages=8", "bytes of shared memory"),
            (Desc { batch: 2, ..wide }, "gemm-row-lanes", "one matrix"),
            (wide.of_type(Dtype::F32), "gemm-row-lanes", "f16 or bf16"),
            (Desc { vectors: Dtype::F64, ..wide }, "gemm-row-lanes", "sums of f32"),
            (Desc { n: 40_000, ..wide }, "gemm-row-lanes segments=2", "128 parts are more than 64"),
            (Desc { n: (1 << 24) + 4, ..wide }, "gemm-row-lanes", "0 to 16777216 columns"),
            (Desc { align: 3, ..wide }, "gemm-row-lanes", "multiples of 16 bytes"),
            (Desc { m: 1 << 40, ..wide }, "gemm-row-lanes", "rows are more than"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
