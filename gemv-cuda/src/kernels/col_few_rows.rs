//! `col-few-rows`: column-major matrices of few rows and many columns, read as they lie.

use gemv_core::{Params, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Case, Kernel, Launch, List, Plan, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "col-few-rows",
    about: "A block reads whole columns one after another, and further launches add the sums of \
            256-column segments: column-major, up to 256 rows.",
    source: concat!(include_str!("vectors.cuh"), include_str!("col_few_rows.cu")),
    args: &[
        threads(128, 512),
        compiled("tile_m", "Most rows.", Values::Powers(1, 256), 16, "TILE_M"),
        vec(1),
        blocks_per_sm(8, MANY_BLOCKS),
    ],
    rules: &[
        BY_COLUMNS,
        OF_TWO_LEVELS,
        THREADS_OF_DEVICE,
        Rule::UpTo(&["vec"], |of| of.widest().min(of.get("tile_m"))),
        Rule::AtMost("rows", |of| of.m(), |of| of.get("tile_m")),
        Rule::AtMost("threads of a column", column_threads, |_| 32),
        Rule::UpTo(&["threads"], |of| LANES * column_threads(of)),
        // Four columns of each lane with their x are in registers before the first sum. A thread of a
        // block of 512 has 128 registers, of smaller ones 255.
        Rule::AtMost(
            "registers of data",
            |of| {
                let lanes = LANES * column_threads(of) / of.get("threads");
                let column = of.load() + of.bytes().div_ceil(4);
                lanes * (4 * column + of.get("vec") * of.words())
            },
            |of| if of.get("threads") > 256 { 112 } else { 144 },
        ),
    ],
    candidates: &[
        // More rows are `col-tile`'s.
        List::Only(|of| of.m() <= 64),
        List::Made(shapes),
        List::Once,
    ],
    plan,
    ..Kernel::GEMV
};

fn column_threads(of: &Case<'_>) -> u64 {
    of.get("tile_m") / of.get("vec")
}

fn plan(of: &Case<'_>) -> Plan {
    let (m, segments) = (of.m(), of.segments());
    let super_segments = segments.div_ceil(SEGMENT);
    let blocks = segments.min(of.blocks("blocks_per_sm")).max(1);
    let mut plan = Plan::from(Launch::new("col_few_rows", blocks, of.get("threads")).waiting());
    if segments > 1 {
        let further =
            |entry, warps: u64| Launch::new(entry, warps.div_ceil(4).max(1), 128).waiting();
        plan.workspace = m * segments;
        if super_segments > 1 {
            plan.workspace += m * super_segments;
            plan.launches.push(further("col_few_rows_super_segments", m * super_segments));
        }
        plan.launches.push(further("col_few_rows_reduce", m));
    }
    plan
}

fn shapes(of: &Case<'_>) -> Vec<Params> {
    let (tile_m, aligned) = (of.m().next_power_of_two(), of.aligned());
    let mut all = Vec::new();
    for vec in [aligned.min(tile_m), (aligned / 2).clamp(1, tile_m), 1] {
        for threads in [64, 128, 256, 512] {
            // As many as that only where a thread would have too many registers.
            if threads == 512 && !all.is_empty() {
                continue;
            }
            for blocks in [16, 8] {
                let shape = [("threads", threads), ("tile_m", tile_m), ("vec", vec)];
                let params =
                    of.with(shape).with("blocks_per_sm", (blocks * 128 / threads as u32).max(1));
                if of.at(&params).fits() {
                    all.push(params);
                }
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
                    let desc = Desc::of(dtype, Layout::Col, (few, 100_000), align);
                    // Taller ones of 16 bytes an element do not fit in the registers.
                    let tallest = if dtype == Dtype::C64 { 16 } else { 32 };
                    let all = KERNEL.candidates(&desc, &caps());
                    assert!(!all.is_empty() || !(0..=tallest).contains(&few), "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let col = Desc::of(Dtype::F32, Layout::Col, (9, 100), 4);
        for (desc, text, part) in [
            (col, "col-few-rows tile_m=8", "9 rows are more than 8"),
            (col, "col-few-rows tile_m=64", "64 threads of a column are more than 32"),
            (col, "col-few-rows blocks_per_sm=0", "blocks_per_sm=0 is not from 1"),
            (
                Desc { m: 20, ..col }.of_type(Dtype::C64),
                "col-few-rows threads=512 tile_m=32",
                "more than 112",
            ),
            (
                Desc { m: 20, ..col }.of_type(Dtype::F64),
                "col-few-rows threads=128 tile_m=32",
                "more than 144",
            ),
            (
                Desc { m: 2, ..col },
                "col-few-rows tile_m=2 threads=256",
                "threads=256 is more than 128",
            ),
            (Desc { n: (1 << 24) + 1, ..col }, "col-few-rows", "0 to 16777216 columns"),
            (Desc { layout: Layout::Row, ..col }, "col-few-rows", "layout col"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
