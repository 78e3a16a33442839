//! `gemm-row-panel`: one row-major matrix and several right-hand sides, on GPUs; a warp holds a segment of
//! X. The text is `gemm_row_panel.cl`.

use gemv_core::Values;
use gemv_gpu::rules::*;
use gemv_gpu::{Case, GEMM_PRELUDE, Kernel, Launch, List, Plan, Rule, source};

use super::vectors::SOURCE;

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

const KERNEL: Kernel = Kernel {
    name: "gemm-row-panel",
    about: "Several right-hand sides and one row-major matrix on GPUs: a warp holds a segment of X in \
            registers, and rows stream by.",
    source: source![GEMM_PRELUDE, SOURCE, include_str!("gemm_row_panel.cl")],
    args: &[
        threads(128, 512),
        compiled(
            "warps_k",
            "Warps of a block that share rows, each with another segment.",
            Values::Powers(1, 16),
            4,
            "WARPS_K",
        ),
        compiled(
            "tile_rhs",
            "Columns of X that a warp holds.",
            Values::Powers(1, 16),
            4,
            "TILE_RHS",
        ),
        compiled("rows", "Rows that a warp has in flight.", Values::Powers(1, 8), 4, "DEPTH"),
        compiled("vec", "Elements of a load.", Values::OneOf(&[1, 2]), 1, "VEC"),
        blocks_per_sm(8, MANY_BLOCKS),
    ],
    rules: &[
        BY_ROWS,
        ONE_MATRIX,
        OF_TWO_LEVELS,
        ONE_LOAD,
        Rule::UpTo(&["warps_k"], |of| of.get("threads") / 32),
        Rule::AtMost("parts", |of| of.parts(of.get("warps_k")), |_| LANES),
        // X and sums, rows in flight.
        Rule::AtMost(
            "registers of data",
            |of| {
                let [cols, rows, vec] = of.all(["tile_rhs", "rows", "vec"]);
                10 * cols * of.words() + rows * 8 / vec * of.load()
            },
            |of| registers(of.get("threads"), 1) - 28,
        ),
        // With more right-hand sides, `gemm-row` leaves none.
        Rule::AtMost(
            "bytes of sums",
            |of| plan(of).workspace.saturating_mul(of.acc_bytes()),
            |of| (of.m().saturating_mul(of.n() * of.bytes()) / 4).max(MOST_BYTES),
        ),
        // Two batches of sums, and what threads exchange where there are no shuffles.
        Rule::Local(|of| {
            let [threads, cols, vec] = of.all(["threads", "tile_rhs", "vec"]);
            let sums = 2 * (threads / 32) * BATCH * cols + threads * vec * (cols / 2).max(1);
            sums * of.acc_bytes()
        }),
    ],
    candidates: &[
        ON_GPUS,
        List::Only(|of| of.rhs() != 1),
        List::Shapes(
            &["threads", "rows", "blocks_per_sm"],
            &[&[256, 4, 1], &[128, 4, 4], &[512, 2, 1], &[256, 2, 2], &[128, 2, 4], &[128, 4, 3]],
        ),
        List::Values("tile_rhs", |of| {
            // X of more columns has no place in registers.
            let most = match of.words() {
                1 => 16,
                2 => 8,
                _ => 4,
            };
            // Two panels of half as many columns may be as fast.
            match of.rhs().min(16).next_power_of_two() {
                cols if cols < most => vec![cols],
                _ => vec![most, most / 2],
            }
        }),
        // Warps along the columns: as many as there are segments, or all.
        List::Value("warps_k", |of| {
            of.first_segments().max(1).next_power_of_two().min(of.get("threads") / 32)
        }),
        List::Value("vec", |of| if of.bytes() == 2 { of.aligned().min(2) } else { 1 }),
        List::Launches,
        List::First(8),
    ],
    plan,
    ..Kernel::GEMM
};

/// Rows that a warp takes before its sums are added up, as in the text.
const BATCH: u64 = 16;
/// Most bytes of the sums of parts, or a quarter of the matrix if that is more.
const MOST_BYTES: u64 = 1 << 30;

fn plan(of: &Case<'_>) -> Plan {
    let [threads, warps_k, cols] = of.all(["threads", "warps_k", "tile_rhs"]);
    let parts = of.parts(warps_k);
    let all = of.super_segments() * parts * of.rhs().div_ceil(cols).max(1);
    let rows = (threads / 32 / warps_k).max(1) * BATCH;
    // A block for each range of rows: as many as asked, of at least one batch each.
    let most = (of.blocks("blocks_per_sm") / all).max(1);
    let ranges = of.m().div_ceil(rows).min(most).max(1);
    parts_plan(of, Launch::new("gemm_row_panel", ranges.saturating_mul(all), threads), parts)
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};
    use gemv_gpu::{Caps, Language};

    use super::*;

    #[test]
    fn what_is_not_legal_is_said() {
        let mut caps = Caps::new(Language::OpenCl);
        (caps.max_group, caps.local_bytes, caps.units, caps.fp64) = (1024, 48 << 10, 100, true);
        let desc = Desc { rhs: 8, ..Desc::of(Dtype::F32, Layout::Row, (100, 5000), 4) };
        for (desc, text, part) in [
            (desc, "gemm-row-panel tile_rhs=16 threads=512", "registers of data"),
            (Desc { batch: 2, ..desc }, "gemm-row-panel", "one matrix"),
            (desc.of_type(Dtype::C64), "gemm-row-panel tile_rhs=8", "registers of data"),
            (desc, "gemm-row-panel warps_k=16", "warps_k=16 is more than 4"),
            (Desc { n: 40_000, ..desc }, "gemm-row-panel warps_k=2", "128 parts are more than 64"),
            (Desc { n: (1 << 24) + 1, ..desc }, "gemm-row-panel", "0 to 16777216 columns"),
            (
                Desc { m: 1 << 15, n: 1 << 15, rhs: 1 << 12, ..desc },
                "gemm-row-panel",
                "bytes of sums",
            ),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(!KERNEL.candidates(&desc, &caps).is_empty());
        assert!(KERNEL.candidates(&Desc { rhs: 1, ..desc }, &caps).is_empty());
    }
}
