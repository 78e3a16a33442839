//! `gemm-row-ring`: one row-major matrix and several right-hand sides; rows pass through shared memory.

use gemv_core::Values;
use gemv_gpu::rules::*;
use gemv_gpu::{Case, GEMM_PRELUDE, Kernel, Launch, List, Plan, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-row-ring",
    about: "Several right-hand sides and one row-major matrix of real numbers: a warp holds a segment \
            of X in registers, and rows stream through shared memory.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_row_ring.cu"),
        include_str!("gemm_parts.cuh")
    ],
    args: &[
        threads(256, 512),
        compiled(
            "warps_k",
            "Most warps that share a row, each with another segment.",
            Values::Powers(1, 16),
            8,
            "WARPS_K",
        ),
        compiled(
            "tile_rhs",
            "Columns of X that a warp holds.",
            Values::Powers(2, 16),
            4,
            "TILE_RHS",
        ),
        compiled("rows", "Rows of a stage.", Values::Powers(2, 16), 8, "ROWS"),
        compiled("stages", "Stages of a warp's ring.", Values::Range(2, 8), 3, "STAGES"),
        min_blocks(4),
    ],
    mixed: true,
    rules: &[
        BY_ROWS,
        Rule::For(
            |_, caps| caps.async_copies,
            "the device has no asynchronous copies to shared memory",
        ),
        REAL,
        ONE_MATRIX,
        ALIGNED,
        OF_TWO_LEVELS,
        Rule::For(|desc, _| desc.m <= 1 << 31, "rows are too many"),
        THREADS_OF_DEVICE,
        Rule::UpTo(&["warps_k"], |of| (of.get("threads") / 32).min(16)),
        Rule::Holds(|of| cut(of).is_some(), "64 parts have more than warps_k segments each"),
        // X, the sums of a row and of the one before, the row, and some for all else.
        Rule::AtMost(
            "registers",
            |of| 11 * of.get("tile_rhs") * of.words() + 8 * of.bytes() / 4 + 32,
            |of| registers(of.get("threads"), of.get("min_blocks")),
        ),
        Rule::AtMost(
            "bytes of shared memory of all blocks",
            |of| (shared(of) + RESERVED) * of.get("min_blocks"),
            |of| u64::from(of.caps.dynamic_bytes) + RESERVED,
        ),
    ],
    candidates: &[
        List::Only(|of| of.rhs() != 1),
        // KiB of a stage are for its rows.
        List::Shapes(
            &["threads", "stage", "stages", "min_blocks"],
            &[
                &[256, 8, 3, 1],
                &[512, 4, 3, 1],
                &[256, 4, 3, 2],
                &[128, 8, 3, 2],
                &[256, 4, 6, 1],
                &[512, 2, 6, 1],
                &[128, 4, 4, 3],
            ],
        ),
        List::Value("rows", |of| {
            ((of.get("stage") << 10) / (SEGMENT * of.bytes())).clamp(2, BATCH)
        }),
        // Two panels of 8 columns may be as fast as one of 16.
        List::Values("tile_rhs", |of| match of.rhs().min(16).next_power_of_two() {
            16 => vec![16, 8],
            cols => vec![cols],
        }),
        List::Value("warps_k", |of| {
            let segments = of.first_segments().max(1).next_power_of_two();
            segments.min(of.get("threads") / 32).min(16)
        }),
        List::Once,
    ],
    plan,
    ..Kernel::GEMM
};

/// Rows of a set of warps whose sums are added up together, and buffers of such sums, as in the text.
const BATCH: u64 = 16;
const BUFFERS: u64 = 3;
/// What the driver takes for itself of each block's shared memory.
const RESERVED: u64 = 1 << 10;

/// How a row is cut, as in the text: parts of a super-segment, and segments of a part, which are warps that share rows. `None`
/// if parts are too many.
fn cut(of: &Case<'_>) -> Option<(u64, u64)> {
    let (segments, warps) = (of.first_segments().max(1), of.get("threads") / 32);
    let (mut best, mut most) = (None, 0);
    for parts in (0..=LANES.ilog2()).map(|k| 1 << k) {
        let set = segments.div_ceil(parts);
        if set > of.get("warps_k") {
            continue;
        }
        let share = segments * (warps / set) * (LANES / parts);
        if share > most + most / 32 {
            (best, most) = (Some((parts, set)), share);
        }
        if set == 1 {
            break;
        }
    }
    best
}

/// Bytes of shared memory: rings, buffers of sums, barriers.
fn shared(of: &Case<'_>) -> u64 {
    let [threads, cols, rows, stages] = of.all(["threads", "tile_rhs", "rows", "stages"]);
    let warps = threads / 32;
    let ring = warps * stages * rows * SEGMENT * of.bytes();
    let sums = BUFFERS * warps * (BATCH + 1) * cols * of.acc_bytes();
    ring + sums + 2 * BUFFERS * 8
}

fn plan(of: &Case<'_>) -> Plan {
    // Without a cut the parameters are not legal.
    let (parts, set) = cut(of).unwrap_or((1, 1));
    let sets = (of.get("threads") / 32 / set).max(1);
    let panels = of.rhs().div_ceil(of.get("tile_rhs"));
    // As many blocks as are resident, of at least a granule each.
    let granules = of.filled_parts(parts) * of.m().div_ceil(sets * BATCH);
    let most = (of.blocks("min_blocks") / panels).max(1);
    let blocks = granules.min(most).max(1) * panels;
    let first = Launch::new("gemm_row_ring", blocks, 32 * set * sets).waiting();
    parts_plan(of, Launch { shared: shared(of) as u32, ..first }, parts)
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
        without.async_copies = false;
        for dtype in Dtype::ALL {
            for n in [8, 256, 264, 4096, 65_536, 65_544, 200_000, 1 << 24, (1 << 24) + 8] {
                for rhs in [1, 2, 3, 8, 17, 64] {
                    let desc = desc(dtype, 1000, n, rhs);
                    let all = KERNEL.candidates(&desc, &caps());
                    let meant = !dtype.is_complex() && rhs > 1 && n <= 1 << 24;
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
    fn a_part_has_at_most_as_many_segments_as_warps() {
        let caps = caps();
        for n in (0..1000).map(|k| k * 97).chain([65_536, 200_000, 1 << 24]) {
            let desc = desc(Dtype::F32, 1000, n, 8);
            for (threads, warps_k) in [(128, 1), (128, 2), (256, 8), (512, 4), (512, 8), (512, 16)]
            {
                let params = Params::new(KERNEL.name).with("threads", threads);
                let params = params.with("warps_k", warps_k);
                let of = Case::new(&KERNEL, &desc, &params, &caps);
                let segments = of.first_segments().max(1);
                let Some((parts, set)) = cut(&of) else {
                    assert!(segments > 64 * of.get("warps_k"), "{n}");
                    continue;
                };
                assert!(parts.is_power_of_two() && set <= of.get("warps_k"));
                assert!(parts * set >= segments);
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let wide = desc(Dtype::F32, 100, 5000, 8);
        for (desc, text, part) in [
            (wide, "gemm-row-ring tile_rhs=16 threads=512", "registers are more than 128"),
            (wide, "gemm-row-ring stages=8", "bytes of shared memory"),
            (Desc { batch: 2, ..wide }, "gemm-row-ring", "one matrix"),
            (wide.of_type(Dtype::C32), "gemm-row-ring", "real numbers"),
            (wide, "gemm-row-ring warps_k=16", "warps_k=16 is more than 8"),
            (Desc { n: 40_000, ..wide }, "gemm-row-ring warps_k=2", "more than warps_k segments"),
            (Desc { n: (1 << 24) + 4, ..wide }, "gemm-row-ring", "0 to 16777216 columns"),
            (Desc { align: 3, ..wide }, "gemm-row-ring", "multiples of 16 bytes"),
            (Desc { m: 1 << 40, ..wide }, "gemm-row-ring", "rows are too many"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
