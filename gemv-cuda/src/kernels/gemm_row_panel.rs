//! `gemm-row-panel`: one row-major matrix and several right-hand sides; a warp holds a segment of X.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, value};

use super::rules::{
    SUPER_SEGMENT, aligned, blocks, compiled, layout, limits, shared_memory, threads, warps_k,
    widest, words,
};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-row-panel",
    about: "Several right-hand sides and one row-major matrix of real numbers: a warp holds a segment \
            of X in registers, and rows stream by.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_row_panel.cu"),
        include_str!("gemm_parts.cuh")
    ],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemm,
    mixed: true,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    threads(256, 512),
    warps_k(8),
    compiled("tile_rhs", "Columns of X that a warp holds.", Values::Powers(1, 16), 4, "TILE_RHS"),
    compiled("rows", "Rows that a warp has in flight.", Values::Powers(1, 8), 4, "DEPTH"),
    compiled("vec", "Elements of a load.", Values::OneOf(&[1, 2]), 1, "VEC"),
    compiled(
        "min_blocks",
        "Blocks that are to be resident on a multiprocessor, and are launched for each.",
        Values::Range(1, 4),
        1,
        "MIN_BLOCKS",
    ),
];

/// Rows that a warp takes before its sums are added up, as in the text.
const BATCH: u32 = 16;
/// Super-segments of the longest rows: their sums are one more level.
const MOST: usize = SEGMENT;

/// Super-segments of a row and parts of each, as in the text.
fn parts(n: usize, warps_k: u64) -> (u64, u64) {
    let segments = n.min(SUPER_SEGMENT).div_ceil(SEGMENT) as u64;
    let parts = segments.div_ceil(warps_k.max(1)).next_power_of_two();
    (n.div_ceil(SUPER_SEGMENT).max(1) as u64, parts)
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (threads, warps_k, cols) = (get("threads"), get("warps_k"), get("tile_rhs"));
    if desc.dtype.is_complex() {
        return Err("the kernel is for real numbers".into());
    }
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    if desc.n > MOST * SUPER_SEGMENT {
        return Err(format!("{} columns are more than {}", desc.n, MOST * SUPER_SEGMENT));
    }
    limits(&[
        ("threads", threads, caps.max_group),
        ("vec", get("vec"), widest(desc.dtype)),
        ("warps_k", warps_k, (threads / 32).min(16)),
    ])?;
    let parts = parts(desc.n, warps_k.into()).1;
    if parts > LANES as u64 {
        return Err(format!("{parts} parts are more than 64 lanes"));
    }
    let words = words(desc.vectors);
    // X, rows in flight, sums, and some for all else.
    let load = (get("vec") * desc.dtype.bytes() as u32).div_ceil(4);
    // Elements of a narrower type than X are held once more as they are converted.
    let converted = if desc.is_mixed() { 8 * get("rows") } else { 0 };
    let held =
        8 * cols * words + get("rows") * 8 / get("vec") * load + 2 * cols * words + converted + 28;
    let most = ((65_536 / (threads * get("min_blocks"))) & !7).min(255);
    if held > most {
        return Err(format!("{held} registers of {most}"));
    }
    let sums = u64::from(2 * (threads / 32) * BATCH * cols) * desc.vectors.acc_bytes() as u64;
    shared_memory(sums, caps)?;
    blocks(&plan(desc, params, caps))
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let (m, rhs) = (desc.m as u64, desc.rhs as u64);
    let (super_segments, parts) = parts(desc.n, get("warps_k"));
    let panels = rhs.div_ceil(get("tile_rhs"));
    let all = super_segments * parts * panels;
    let rows = (get("threads") / 32 / get("warps_k").max(1)).max(1) * u64::from(BATCH);
    // A block for each range of rows: as many as are resident, of at least one batch each.
    let most = (u64::from(caps.units) * get("min_blocks") / all).max(1);
    let ranges = m.div_ceil(rows).min(most).max(1);
    let threads = value(ARGS, params, "threads");
    let mut launches = vec![Launch::new("gemm_row_panel", ranges * all, threads)];
    let outputs = m * rhs;
    if super_segments > 1 {
        launches.push(Launch::new("gemm_parts_long_reduce", outputs.div_ceil(4), 128));
    } else if parts > 1 {
        launches.push(Launch::new("gemm_parts_reduce", outputs.div_ceil(128), 128));
    }
    let workspace = if launches.len() > 1 { super_segments * parts * outputs } else { 0 };
    let launches = launches.into_iter().map(Launch::waiting).collect();
    Plan { launches, workspace, counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Row || desc.batch != 1 || desc.rhs == 1 {
        return Vec::new();
    }
    let cols = desc.rhs.min(16).next_power_of_two() as u32;
    let vec = if desc.dtype.bytes() == 2 { aligned(desc).min(2) } else { 1 };
    let segments = desc.n.min(SUPER_SEGMENT).div_ceil(SEGMENT).max(1);
    let mut all = Vec::new();
    for (threads, rows, min_blocks) in [
        (512, 4, 1),
        (512, 2, 1),
        (128, 4, 3),
        (256, 4, 1),
        (256, 2, 1),
        (512, 8, 1),
        (256, 8, 2),
        (256, 4, 2),
        (256, 8, 1),
        (128, 8, 4),
        (128, 4, 4),
    ] {
        // Two panels of 8 columns may be as fast as one of 16.
        for cols in [cols, 8].into_iter().take(if cols == 16 { 2 } else { 1 }) {
            // Warps along the columns: as many as there are segments, or all.
            let warps = threads / 32;
            let warps_k = (segments.next_power_of_two() as u32).min(warps).min(16);
            let params = Params::new(KERNEL.name).with("threads", threads);
            let params = params.with("warps_k", warps_k).with("tile_rhs", cols).with("rows", rows);
            let params = params.with("vec", vec).with("min_blocks", min_blocks);
            // More registers of A spill some of X.
            let load = 8 / vec * (vec * desc.dtype.bytes() as u32).div_ceil(4);
            let many = rows == 8 && (load >= 8 || cols > 2);
            if many || rows * load > if cols <= 4 { 64 } else { 32 } {
                continue;
            }
            if !all.contains(&params) && KERNEL.fits(desc, &params, caps).is_ok() {
                all.push(params);
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
            for n in [1, 255, 256, 257, 4096, 65_536, 65_537, 200_000, 1 << 24, (1 << 24) + 1] {
                for rhs in [1, 2, 3, 8, 17, 64] {
                    let desc = Desc { rhs, ..Desc::of(dtype, Layout::Row, (1000, n), 4) };
                    let all = candidates(&desc, &caps());
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
    fn a_part_has_at_most_as_many_segments_as_warps() {
        for n in (0..1000).map(|k| k * 97).chain([65_536, 200_000, 1 << 24]) {
            for warps_k in [1u64, 2, 8, 16] {
                let (super_segments, parts) = parts(n, warps_k);
                assert!(parts.is_power_of_two() && super_segments >= 1);
                assert!(parts * warps_k >= n.min(SUPER_SEGMENT).div_ceil(SEGMENT) as u64, "{n}");
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc { rhs: 8, ..Desc::of(Dtype::F32, Layout::Row, (100, 5000), 4) };
        for (desc, text, part) in [
            (desc, "gemm-row-panel tile_rhs=16 threads=512", "registers of 128"),
            (Desc { batch: 2, ..desc }, "gemm-row-panel", "one matrix"),
            (desc.of_type(Dtype::C32), "gemm-row-panel", "real numbers"),
            (desc, "gemm-row-panel warps_k=16", "warps_k=16 is more than 8"),
            (Desc { n: 40_000, ..desc }, "gemm-row-panel warps_k=2", "128 parts are more than 64"),
            (Desc { n: (1 << 24) + 1, ..desc }, "gemm-row-panel", "columns are more than 16777216"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
