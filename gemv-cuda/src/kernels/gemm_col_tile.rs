//! `gemm-col-tile`: one column-major matrix and several right-hand sides; tiles through shared memory.

use gemv_core::{Params, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Case, GEMM_PRELUDE, Kernel, Launch, List, Plan, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-col-tile",
    about: "Several right-hand sides and one column-major matrix of real numbers: a thread has \
            neighbouring rows and all columns of a panel of X, and tiles stream through shared memory.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_col_tile.cu"),
        include_str!("gemm_parts.cuh")
    ],
    args: &[
        threads(256, 512),
        compiled(
            "tile_rhs",
            "Columns of X that are multiplied at a time.",
            Values::Powers(1, 16),
            4,
            "TILE_RHS",
        ),
        vec(4),
        compiled(
            "stages",
            "Steps of eight columns that a warp has in flight.",
            Values::Range(2, 8),
            4,
            "STAGES",
        ),
        min_blocks(4),
        compiled(
            "realign",
            "1: elements of 2 bytes are copied by words of 4 and shifted into place, for columns that begin anywhere.",
            Values::Range(0, 1),
            0,
            "REALIGN",
        ),
    ],
    rules: &[
        BY_COLUMNS,
        REAL,
        ONE_MATRIX,
        OF_TWO_LEVELS,
        THREADS_OF_DEVICE,
        ONE_LOAD,
        Rule::Holds(
            |of| of.n() > 0 || writes_y(of),
            "with min_blocks=3 or more the kernel is for matrices with columns",
        ),
        Rule::Holds(
            |of| {
                let several = of.get("vec") > 1 && of.get("threads") > 32;
                of.get("realign") == 0 || of.bytes() == 2 && several
            },
            "realign=1 is for elements of 2 bytes, vec=2 or more, and several warps",
        ),
        Rule::AtMost(
            "registers",
            |of| {
                let [cols, vec] = of.all(["tile_rhs", "vec"]);
                // Sums and those that wait, one row of X, the elements of a load, addresses.
                let sums = vec * cols * u64::from(steps(of).ilog2() + 2);
                (sums + cols + vec) * of.words() + 40
            },
            |of| registers(of.get("threads"), of.get("min_blocks")),
        ),
        Rule::AtMost("tasks", |of| tasks(of, parts(of)).0, |_| u32::MAX.into()),
    ],
    candidates: &[List::Only(|of| of.rhs() != 1), List::Made(shapes), List::Once],
    plan,
    ..Kernel::GEMM
};

/// Steps of a warp for one tile, a power of two.
fn steps(of: &Case<'_>) -> u64 {
    32 / (of.get("threads") / 32)
}

/// Whether a block writes Y where a row has one part: with more blocks, registers are too few.
fn writes_y(of: &Case<'_>) -> bool {
    of.get("min_blocks") < 3
}

/// Bytes of shared memory of a block, for so many parts.
fn shared(of: &Case<'_>, parts: u64) -> u64 {
    let [threads, cols, vec, stages] = of.all(["threads", "tile_rhs", "vec", "stages"]);
    let (warps, rows) = (threads / 32, 32 * vec);
    // A further word of each column, padded to a load.
    let column = if of.get("realign") == 1 { rows + vec } else { rows };
    let ring = warps * stages * 8 * column * of.bytes();
    let x = (stages.div_ceil(steps(of)) + 1) * cols * SEGMENT;
    // Sums of the second level that wait, and one of a lane with several segments.
    let segments = of.first_segments();
    let open = match segments > LANES {
        true => (LANES / parts).ilog2() + 1,
        false => segments.div_ceil(parts).max(1).next_power_of_two().ilog2(),
    };
    ring + (x + (warps + u64::from(open)) * rows * cols) * of.acc_bytes()
}

/// Parts of a row: as many as leave the block that has the most tiles with the fewest, of those for which shared
/// memory suffices. Of several, the fewest, which have the fewest sums to add; where blocks have several tasks, 8 or
/// the nearest to it, which are faster.
fn parts(of: &Case<'_>) -> u64 {
    // Without columns there are no sums, and the first launch writes Y.
    if of.n() == 0 {
        return 1;
    }
    let fits = |log: &u32| shared(of, 1 << log) <= of.caps.dynamic_bytes.into();
    let all = (0..=LANES.ilog2()).filter(fits);
    let best = all.min_by_key(|log| {
        let (tasks, blocks) = tasks(of, 1 << log);
        let from_best = if tasks > blocks { log.abs_diff(3) } else { *log };
        (tiles(of, 1 << log), from_best, *log)
    });
    1 << best.unwrap_or(LANES.ilog2())
}

/// Tasks of a panel, and the blocks that share them.
fn tasks(of: &Case<'_>, parts: u64) -> (u64, u64) {
    let sets = of.m().div_ceil(32 * of.get("vec"));
    let tasks = sets.saturating_mul(of.super_segments().saturating_mul(parts));
    let panels = of.rhs().div_ceil(of.get("tile_rhs")).max(1);
    (tasks, tasks.clamp(1, (of.blocks("min_blocks") / panels).max(1)))
}

/// Tiles of the block that has the most.
fn tiles(of: &Case<'_>, parts: u64) -> u64 {
    let (tasks, blocks) = tasks(of, parts);
    tasks.div_ceil(blocks).saturating_mul(of.first_segments().div_ceil(parts))
}

fn plan(of: &Case<'_>) -> Plan {
    let parts = parts(of);
    let panels = of.rhs().div_ceil(of.get("tile_rhs"));
    let blocks = tasks(of, parts).1 * panels;
    let first = Launch::new("gemm_col_tile", blocks, of.get("threads")).waiting();
    let shared = u32::try_from(shared(of, parts)).unwrap_or(u32::MAX);
    let first = Launch { shared, parts: parts as u32, ..first };
    let plan = if writes_y(of) { parts_plan } else { sums_plan };
    plan(of, first, parts)
}

fn shapes(of: &Case<'_>) -> Vec<Params> {
    let (bytes, aligned) = (of.bytes(), of.aligned());
    let cols = of.rhs().min(16).next_power_of_two();
    // Threads, columns, bytes of a load, stages, blocks of a multiprocessor.
    let shapes: &[(u64, u64, u64, u64, u64)] = match (bytes, cols) {
        (2, 2) => &[(256, 2, 16, 4, 1), (256, 2, 8, 6, 2)],
        (2, 4) => &[(256, 4, 8, 6, 1)],
        (2, _) => &[(256, 8, 8, 4, 1), (128, 8, 4, 4, 3)],
        (4, 2) => &[(256, 2, 16, 4, 1)],
        (4, 4) => &[(256, 4, 16, 4, 1), (128, 4, 16, 4, 2), (256, 4, 8, 4, 2)],
        (4, 8) => &[(256, 8, 16, 4, 1), (128, 8, 8, 4, 3), (256, 8, 8, 4, 1)],
        (4, _) => &[(256, 16, 8, 3, 1), (256, 16, 4, 4, 2), (256, 8, 16, 4, 1)],
        (_, 2) => &[(256, 2, 16, 4, 1)],
        (_, 4) => &[(256, 4, 16, 4, 1)],
        _ => &[(256, 8, 16, 3, 1), (128, 8, 16, 4, 2)],
    };
    // Elements of two bytes that lie anywhere have no asynchronous copy of their own.
    let realigns: &[u64] = match (bytes, aligned) {
        (2, 1) => &[1],
        (2, 2) => &[0, 1],
        _ => &[0],
    };
    let shape =
        |realign, &(threads, cols, load, stages, min_blocks): &(u64, u64, u64, u64, u64)| {
            let most = if realign == 1 { 4 } else { aligned };
            of.with([
                ("threads", threads),
                ("tile_rhs", cols),
                ("vec", most.min(load / bytes)),
                ("stages", stages),
                ("min_blocks", min_blocks),
                ("realign", realign),
            ])
        };
    realigns.iter().flat_map(|realign| shapes.iter().map(|of| shape(*realign, of))).collect()
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout};

    use super::*;
    use crate::testing::caps;

    fn desc(dtype: Dtype, m: usize, n: usize, rhs: usize) -> Desc {
        Desc { rhs, ..Desc::of(dtype, Layout::Col, (m, n), 4) }
    }

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for (m, n) in [(1, 1), (1000, 255), (4096, 4096), (256, 200_000), (3, (1 << 24) + 1)] {
                for rhs in [1, 2, 3, 8, 17, 64] {
                    let desc = desc(dtype, m, n, rhs);
                    let all = KERNEL.candidates(&desc, &caps());
                    let meant = !dtype.is_complex() && rhs > 1 && n <= 1 << 24;
                    assert_eq!(!all.is_empty(), meant, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_have_equally_many_tiles() {
        let best = |m, n| {
            let desc = desc(Dtype::F32, m, n, 2);
            let (params, caps) = (KERNEL.candidates(&desc, &caps())[0], caps());
            let of = Case::new(&KERNEL, &desc, &params, &caps);
            (parts(&of), tiles(&of, parts(&of)))
        };
        // 32 sets of 16 segments for 132 blocks: 2 tasks of 2 tiles each.
        assert_eq!(best(4096, 4096), (8, 4));
        // 1563 sets of one segment.
        assert_eq!(best(200_000, 256), (1, 12));
        // 2 sets of 782 segments in 4 super-segments.
        assert!(best(256, 200_000).1 <= 16);
    }

    #[test]
    fn launches_have_the_parts_of_the_plan() {
        let desc = desc(Dtype::F32, 4096, 4096, 8);
        for (text, launches) in [
            ("gemm-col-tile tile_rhs=8 vec=4", 2),
            // Too few registers to write Y.
            ("gemm-col-tile threads=128 tile_rhs=8 vec=2 min_blocks=3", 2),
            ("gemm-col-tile tile_rhs=8 vec=1", 1),
        ] {
            let params: Params = text.parse().unwrap();
            KERNEL.fits(&desc, &params, &caps()).unwrap();
            let plan = KERNEL.plan(&desc, &params, &caps());
            let parts = parts(&Case::new(&KERNEL, &desc, &params, &caps()));
            assert!(plan.launches.iter().all(|l| u64::from(l.parts) == parts), "{text}");
            assert_eq!(plan.launches.len(), launches, "{text}: {parts} parts");
            let workspace = if launches > 1 { 4096 * 8 * parts } else { 0 };
            assert_eq!(plan.workspace, workspace, "{text}");
        }
    }

    #[test]
    fn without_columns_one_launch_writes_y() {
        for dtype in [Dtype::F32, Dtype::F64, Dtype::Bf16] {
            for m in [1, 20_000, 3_000_000] {
                let desc = desc(dtype, m, 0, 8);
                for params in KERNEL.candidates(&desc, &caps()) {
                    let plan = KERNEL.plan(&desc, &params, &caps());
                    assert_eq!((plan.launches.len(), plan.workspace), (1, 0), "{desc} {params}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let wide = desc(Dtype::F32, 100, 5000, 8);
        for (desc, text, part) in [
            (wide, "gemm-col-tile tile_rhs=16 vec=4", "registers are more than 255"),
            (wide, "gemm-col-tile tile_rhs=4 vec=4 stages=8 threads=512", "bytes of shared memory"),
            (Desc { batch: 2, ..wide }, "gemm-col-tile", "one matrix"),
            (desc(Dtype::C32, 100, 5000, 8), "gemm-col-tile", "real numbers"),
            (desc(Dtype::F64, 100, 5000, 8), "gemm-col-tile vec=4", "vec=4 is more than 2"),
            (Desc { layout: Layout::Row, ..wide }, "gemm-col-tile", "layout col"),
            (wide, "gemm-col-tile realign=1", "elements of 2 bytes"),
            (
                Desc { n: 0, ..wide },
                "gemm-col-tile threads=128 tile_rhs=8 vec=2 min_blocks=3",
                "with columns",
            ),
            (Desc { n: (1 << 24) + 1, ..wide }, "gemm-col-tile", "0 to 16777216 columns"),
            (Desc { m: 1 << 40, ..wide }, "gemm-col-tile", "tasks are more than"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
