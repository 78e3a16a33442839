//! `gemm-row-ring`: one row-major matrix and several right-hand sides; rows pass through shared memory.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, value};

use super::rules::{SUPER_SEGMENT, TWO_LEVELS, blocks, compiled, layout, limits, threads, words};

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
    compiled(
        "warps_k",
        "Most warps that share a row, each with another segment.",
        Values::Powers(1, 16),
        8,
        "WARPS_K",
    ),
    compiled("tile_rhs", "Columns of X that a warp holds.", Values::Powers(2, 16), 4, "TILE_RHS"),
    compiled("rows", "Rows of a stage.", Values::Powers(2, 16), 8, "ROWS"),
    compiled("stages", "Stages of a warp's ring.", Values::Range(2, 8), 3, "STAGES"),
    compiled(
        "min_blocks",
        "Blocks that are to be resident on a multiprocessor, and are launched for each.",
        Values::Range(1, 4),
        1,
        "MIN_BLOCKS",
    ),
];

/// Rows of a set of warps whose sums are added up together, and buffers of such sums, as in the text.
const BATCH: u32 = 16;
const BUFFERS: u32 = 3;
/// What the driver takes for itself of each block's shared memory.
const RESERVED: u32 = 1 << 10;

/// How a row is cut, as in the text.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cut {
    /// Of a super-segment.
    parts: u64,
    /// Segments of a part: warps that share rows.
    set: u64,
    /// Parts that have a segment, of all super-segments.
    filled: u64,
}

impl Cut {
    /// For blocks of so many warps, of which at most `warps_k` share rows; `None` if parts are too many.
    fn of(n: usize, warps: u64, warps_k: u64) -> Option<Cut> {
        let segments = (n.min(SUPER_SEGMENT).div_ceil(SEGMENT) as u64).max(1);
        let (mut best, mut most) = (None, 0);
        for parts in (0..=LANES.ilog2()).map(|k| 1u64 << k) {
            let set = segments.div_ceil(parts);
            if set > warps_k {
                continue;
            }
            let share = segments * (warps / set) * (LANES as u64 / parts);
            if share > most + most / 32 {
                (best, most) = (Some((parts, set)), share);
            }
            if set == 1 {
                break;
            }
        }
        let (parts, set) = best?;
        let super_segments = n.div_ceil(SUPER_SEGMENT).max(1);
        let last = n.div_ceil(SEGMENT) - (super_segments - 1) * SEGMENT;
        let filled = (super_segments as u64 - 1) * parts + (last as u64).clamp(1, parts);
        Some(Cut { parts, set, filled })
    }
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (threads, warps_k, cols) = (get("threads"), get("warps_k"), get("tile_rhs"));
    let (rows, stages, min_blocks) = (get("rows"), get("stages"), get("min_blocks"));
    if !caps.async_copies {
        return Err("the device has no asynchronous copies to shared memory".into());
    }
    if desc.dtype.is_complex() {
        return Err("the kernel is for real numbers".into());
    }
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    let element = desc.dtype.bytes();
    if desc.align < 4 {
        return Err("rows do not begin at multiples of 16 bytes".into());
    }
    if desc.n > TWO_LEVELS {
        return Err(format!("{} columns are more than {TWO_LEVELS}", desc.n));
    }
    if desc.m > 1 << 31 {
        return Err("rows are too many".into());
    }
    limits(&[("threads", threads, caps.max_group), ("warps_k", warps_k, (threads / 32).min(16))])?;
    if Cut::of(desc.n, u64::from(threads / 32), warps_k.into()).is_none() {
        let columns = desc.n;
        return Err(format!(
            "64 parts of {columns} columns have more than {warps_k} segments each"
        ));
    }
    // X, the sums of a row and of the one before, the row, and some for all else.
    let words = words(desc.vectors);
    let held = 11 * cols * words + 8 * element as u32 / 4 + 32;
    let most = ((65_536 / (threads * min_blocks)) & !7).min(255);
    if held > most {
        return Err(format!("{held} registers of {most}"));
    }
    let bytes = shared(desc, threads, cols, rows, stages) + RESERVED;
    let all = caps.dynamic_bytes + RESERVED;
    if bytes * min_blocks > all {
        return Err(format!("{min_blocks} x {bytes} bytes of shared memory of {all}"));
    }
    blocks(&plan(desc, params, caps))
}

/// Bytes of shared memory: rings, buffers of sums, barriers.
fn shared(desc: &Desc, threads: u32, cols: u32, rows: u32, stages: u32) -> u32 {
    let (warps, element) = (threads / 32, desc.dtype.bytes() as u32);
    let ring = warps * stages * rows * SEGMENT as u32 * element;
    let sums = BUFFERS * warps * (BATCH + 1) * cols * desc.vectors.acc_bytes() as u32;
    ring + sums + 2 * BUFFERS * 8
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ARGS, params, name);
    let (m, rhs, warps) = (desc.m as u64, desc.rhs as u64, u64::from(get("threads") / 32));
    // Without a cut the parameters are not legal.
    let none = Cut { parts: 1, set: 1, filled: 1 };
    let Cut { parts, set, filled } = Cut::of(desc.n, warps, get("warps_k").into()).unwrap_or(none);
    let super_segments = desc.n.div_ceil(SUPER_SEGMENT).max(1) as u64;
    let (sets, panels) = ((warps / set).max(1), rhs.div_ceil(get("tile_rhs").into()));
    // As many blocks as are resident, of at least a granule each.
    let granules = filled * m.div_ceil(sets * u64::from(BATCH));
    let most = (u64::from(caps.units * get("min_blocks")) / panels).max(1);
    let mut first =
        Launch::new("gemm_row_ring", granules.min(most).max(1) * panels, (32 * set * sets) as u32);
    first.shared = shared(desc, get("threads"), get("tile_rhs"), get("rows"), get("stages"));
    let mut launches = vec![first];
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
    let segments = desc.n.min(SUPER_SEGMENT).div_ceil(SEGMENT).max(1);
    let mut all = Vec::new();
    // Threads, KiB of a stage, stages, blocks.
    for (threads, stage, stages, min_blocks) in [
        (256, 8, 3, 1),
        (512, 4, 3, 1),
        (256, 4, 3, 2),
        (128, 8, 3, 2),
        (256, 4, 6, 1),
        (512, 2, 6, 1),
        (128, 4, 4, 3),
    ] {
        let rows = (stage << 10) / (SEGMENT as u32 * desc.dtype.bytes() as u32);
        // Two panels of 8 columns may be as fast as one of 16.
        for cols in [cols, 8].into_iter().take(if cols == 16 { 2 } else { 1 }) {
            let warps_k = (segments.next_power_of_two() as u32).min(threads / 32).min(16);
            let params = Params::new(KERNEL.name).with("threads", threads);
            let params = params.with("warps_k", warps_k).with("tile_rhs", cols);
            let params = params.with("rows", rows.clamp(2, BATCH)).with("stages", stages);
            let params = params.with("min_blocks", min_blocks);
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
                    let all = candidates(&desc, &caps());
                    let meant = !dtype.is_complex() && rhs > 1 && n <= 1 << 24;
                    assert_eq!(!all.is_empty(), meant, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                    assert!(candidates(&desc, &without).is_empty());
                }
            }
        }
    }

    #[test]
    fn a_part_has_at_most_as_many_segments_as_warps() {
        for n in (0..1000).map(|k| k * 97).chain([65_536, 200_000, 1 << 24]) {
            let segments = (n.min(SUPER_SEGMENT).div_ceil(SEGMENT) as u64).max(1);
            for (warps, warps_k) in [(4, 1), (4, 2), (8, 8), (16, 4), (16, 8), (16, 16)] {
                let Some(Cut { parts, set, filled }) = Cut::of(n, warps, warps_k) else {
                    assert!(segments > 64 * warps_k, "{n}");
                    continue;
                };
                assert!(parts.is_power_of_two() && set <= warps_k && parts * set >= segments);
                let super_segments = n.div_ceil(SUPER_SEGMENT).max(1) as u64;
                assert!(filled <= parts * super_segments && filled > parts * (super_segments - 1));
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let wide = desc(Dtype::F32, 100, 5000, 8);
        for (desc, text, part) in [
            (wide, "gemm-row-ring tile_rhs=16 threads=512", "registers of 128"),
            (wide, "gemm-row-ring stages=8", "bytes of shared memory"),
            (Desc { batch: 2, ..wide }, "gemm-row-ring", "one matrix"),
            (wide.of_type(Dtype::C32), "gemm-row-ring", "real numbers"),
            (wide, "gemm-row-ring warps_k=16", "warps_k=16 is more than 8"),
            (Desc { n: 40_000, ..wide }, "gemm-row-ring warps_k=2", "have more than 2 segments"),
            (Desc { n: (1 << 24) + 4, ..wide }, "gemm-row-ring", "are more than 16777216"),
            (Desc { align: 3, ..wide }, "gemm-row-ring", "multiples of 16 bytes"),
            (Desc { m: 1 << 40, ..wide }, "gemm-row-ring", "rows are too many"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
