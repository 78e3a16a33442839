//! `col-few-rows`: column-major matrices of few rows and many columns, read as they lie.

use gemv_core::order::SEGMENT;
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, Kernel, Launch, Plan, Signature, value};

use super::rules::{
    MANY_BLOCKS, TWO_LEVELS, aligned, blocks_per_sm, compiled, layout, limits, registers, threads,
    vec, widest, words,
};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "col-few-rows",
    about: "A block reads whole columns one after another, and further launches add the sums of \
            256-column segments: column-major, up to 256 rows.",
    source: concat!(include_str!("vectors.cuh"), include_str!("col_few_rows.cu")),
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    threads(128, 512),
    compiled("tile_m", "Most rows.", Values::Powers(1, 256), 16, "TILE_M"),
    vec(1),
    blocks_per_sm(8, MANY_BLOCKS),
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Col)?;
    let get = |name| value(ARGS, params, name);
    let (threads, tile_m, vec) = (get("threads"), get("tile_m"), get("vec"));
    limits(&[("threads", threads, caps.max_group), ("vec", vec, widest(desc.dtype).min(tile_m))])?;
    if desc.m > tile_m as usize {
        return Err(format!("{} rows do not fit tile_m={tile_m}", desc.m));
    }
    let column_threads = tile_m / vec;
    if column_threads > 32 || threads > 64 * column_threads {
        return Err(format!(
            "a column of tile_m={tile_m} by vec={vec} takes {column_threads} threads: not 1 to 32, \
             or less than threads={threads} in 64"
        ));
    }
    // Four columns of each lane with their x are in registers before the first sum. A thread of a
    // block of 512 has 128 registers, of smaller ones 255.
    let (lanes, bytes) = (64 * column_threads / threads, desc.dtype.bytes() as u32);
    let column = (vec * bytes).div_ceil(4) + bytes.div_ceil(4);
    let most = if threads > 256 { 112 } else { 144 };
    registers(lanes * (4 * column + vec * words(desc.dtype)), most)?;
    if desc.n > TWO_LEVELS {
        return Err(format!("{} columns are more than two levels of sums", desc.n));
    }
    Ok(())
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let (m, segments) = (desc.m as u64, (desc.n as u64).div_ceil(SEGMENT as u64));
    let super_segments = segments.div_ceil(SEGMENT as u64);
    let most = u64::from(caps.units) * u64::from(value(ARGS, params, "blocks_per_sm"));
    let blocks = segments.min(most).max(1);
    let mut plan = Plan::default();
    let threads = value(ARGS, params, "threads");
    plan.launches.push(Launch::new("col_few_rows", blocks, threads).waiting());
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

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all: Vec<Params> = Vec::new();
    // More rows are `col-tile`'s.
    if desc.m > 64 {
        return all;
    }
    let tile_m = desc.m.next_power_of_two() as u32;
    for vec in [aligned(desc).min(tile_m), (aligned(desc) / 2).clamp(1, tile_m), 1] {
        for threads in [64, 128, 256, 512] {
            // As many as that only where a thread would have too many registers.
            if threads == 512 && !all.is_empty() {
                continue;
            }
            for blocks in [16, 8] {
                let params = Params::new(KERNEL.name).with("threads", threads);
                let params = params.with("tile_m", tile_m).with("vec", vec);
                let params = params.with("blocks_per_sm", (blocks * 128 / threads).max(1));
                if !all.contains(&params) && KERNEL.fits(desc, &params, caps).is_ok() {
                    all.push(params);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

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
                    let all = candidates(&desc, &caps());
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
            (col, "col-few-rows tile_m=8", "do not fit tile_m=8"),
            (col, "col-few-rows tile_m=64", "1 to 32"),
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
            (Desc { m: 2, ..col }, "col-few-rows tile_m=2 threads=256", "in 64"),
            (Desc { n: (1 << 24) + 1, ..col }, "col-few-rows", "two levels"),
            (Desc { layout: Layout::Row, ..col }, "col-few-rows", "layout col"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
