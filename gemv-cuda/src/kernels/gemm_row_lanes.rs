//! `gemm-row-lanes`: one row-major matrix of 16-bit numbers and several right-hand sides; a thread has whole lanes.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, GEMM_PRELUDE, Kernel, Launch, Plan, SM_90A, Signature, value};

use super::rules::{SUPER_SEGMENT, TWO_LEVELS, blocks, compiled, layout};

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
    args: ARGS,
    defines: &[SM_90A],
    signature: Signature::Gemm,
    mixed: true,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    compiled("tile_rhs", "Columns of X of a block.", Values::Powers(2, 16), 8, "TILE_RHS"),
    compiled(
        "segments",
        "Segments of a row that a block has at a time.",
        Values::Range(1, 8),
        4,
        "SEGMENTS",
    ),
    compiled("rows", "Rows of a stage.", Values::Powers(8, 64), 32, "ROWS"),
    compiled("stages", "Stages of the ring.", Values::Range(2, 8), 3, "STAGES"),
];

/// Warps that compute, and threads of a block: one more warp copies, and three add up.
const WARPS: u32 = 8;
const THREADS: u32 = 32 * (WARPS + 4);
/// Columns of X of a warp.
const COLS: u32 = 4;

/// How a product is cut, as in the text.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Of a super-segment.
    parts: u64,
    super_segments: u64,
    /// Parts that have a segment, of all super-segments.
    filled: u64,
    /// Rows that a block has at a time.
    granule: u64,
}

impl Cut {
    fn of(n: usize, params: &Params) -> Cut {
        let get = |name| u64::from(value(ARGS, params, name));
        let segments = (n.min(SUPER_SEGMENT).div_ceil(SEGMENT) as u64).max(1);
        let parts = segments.div_ceil(get("segments")).next_power_of_two();
        let super_segments = n.div_ceil(SUPER_SEGMENT).max(1) as u64;
        let last = n.div_ceil(SEGMENT) as u64 - (super_segments - 1).min(n as u64) * SEGMENT as u64;
        let filled = (super_segments - 1) * parts + last.clamp(1, parts);
        let units = u64::from(WARPS) / (get("tile_rhs") / COLS as u64).max(1);
        Cut { parts, super_segments, filled, granule: units / get("segments") * get("rows") }
    }
}

/// Bytes of shared memory: the ring, buffers of sums, barriers.
fn shared(params: &Params) -> u32 {
    let get = |name| value(ARGS, params, name);
    let (cols, segments, rows, stages) =
        (get("tile_rhs"), get("segments"), get("rows"), get("stages"));
    let units = WARPS / (cols / COLS).max(1) / segments * segments;
    let buffers = stages + 3;
    let ring = stages * units * rows * SEGMENT as u32 * 2;
    ring + buffers * units * rows * cols * 4 + 16 * (stages + buffers)
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (cols, segments) = (get("tile_rhs"), get("segments"));
    if !caps.sm_90a {
        return Err("the kernel is for the architecture sm_90a".into());
    }
    if desc.dtype.bytes() != 2 || desc.vectors.acc_bytes() != 4 {
        return Err("the kernel is for a matrix of f16 or bf16 and sums of f32".into());
    }
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    if desc.align < 4 {
        return Err("rows do not begin at multiples of 16 bytes".into());
    }
    if desc.n > TWO_LEVELS {
        return Err(format!("{} columns are more than {TWO_LEVELS}", desc.n));
    }
    let units = WARPS / (cols / COLS).max(1);
    if segments > units {
        return Err(format!("a block has {units} units, and segments={segments}"));
    }
    let cut = Cut::of(desc.n, params);
    if cut.parts > LANES as u64 {
        let columns = desc.n;
        return Err(format!(
            "{LANES} parts of {columns} columns have more than {segments} segments each"
        ));
    }
    // Granules are counted by 32 bits, and rows by 31.
    if desc.m > 1 << 30 || cut.filled * (desc.m as u64).div_ceil(cut.granule) > 1 << 31 {
        return Err("rows are too many".into());
    }
    let (bytes, all) = (shared(params), caps.dynamic_bytes);
    if bytes > all {
        return Err(format!("{bytes} bytes of shared memory of {all}"));
    }
    blocks(&plan(desc, params, caps))
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let (m, rhs) = (desc.m as u64, desc.rhs as u64);
    let Cut { parts, super_segments, filled, granule } = Cut::of(desc.n, params);
    let panels = rhs.div_ceil(value(ARGS, params, "tile_rhs").into()).max(1);
    // As many blocks as are resident, of at least a granule each.
    let granules = filled * m.div_ceil(granule.max(1));
    let most = (u64::from(caps.units) / panels).max(1);
    let mut first = Launch::new("gemm_row_lanes", granules.clamp(1, most) * panels, THREADS);
    (first.shared, first.box_rows) = (shared(params), value(ARGS, params, "rows"));
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
    let units = WARPS / (cols / COLS).max(1);
    let segments = desc.n.min(SUPER_SEGMENT).div_ceil(SEGMENT).max(1) as u32;
    // Fewer segments leave fewer warps idle at some lengths, and sums of more rows are added up at a time.
    let most = units.min(segments.next_power_of_two());
    let mut all = Vec::new();
    for segments in [most, 7, 1] {
        for (rows, stages) in [(32, 3), (16, 3), (16, 6), (64, 2)] {
            let params = Params::new(KERNEL.name).with("tile_rhs", cols).with("segments", segments);
            let params = params.with("rows", rows).with("stages", stages);
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
        without.sm_90a = false;
        for dtype in Dtype::ALL {
            for n in [8, 256, 264, 4096, 14_336, 65_536, 65_544, 200_000, 1 << 24, (1 << 24) + 8] {
                for rhs in [1, 2, 3, 8, 17, 64] {
                    let desc = desc(dtype, 1000, n, rhs);
                    let all = candidates(&desc, &caps());
                    let meant = dtype.bytes() == 2 && rhs > 1 && n <= 1 << 24;
                    // 16 columns have two segments at a time, of 64 parts.
                    let meant = meant && (rhs <= 8 || n <= 128 * 256);
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
    fn parts_hold_every_segment() {
        for n in (1..1000).map(|k| k * 97).chain([65_536, 200_000, 1 << 24]) {
            for segments in 1..=8 {
                let params = Params::new(KERNEL.name).with("segments", segments);
                let Cut { parts, super_segments, filled, .. } = Cut::of(n, &params);
                let first = n.min(SUPER_SEGMENT).div_ceil(SEGMENT) as u64;
                assert!(parts.is_power_of_two() && parts * u64::from(segments) >= first);
                assert!(filled <= parts * super_segments && filled > parts * (super_segments - 1));
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let wide = desc(Dtype::Bf16, 100, 5000, 8);
        for (desc, text, part) in [
            (wide, "gemm-row-lanes segments=8", "a block has 4 units, and segments=8"),
            (wide, "gemm-row-lanes stages=8", "bytes of shared memory"),
            (Desc { batch: 2, ..wide }, "gemm-row-lanes", "one matrix"),
            (wide.of_type(Dtype::F32), "gemm-row-lanes", "f16 or bf16"),
            (Desc { vectors: Dtype::F64, ..wide }, "gemm-row-lanes", "sums of f32"),
            (Desc { n: 40_000, ..wide }, "gemm-row-lanes segments=2", "have more than 2 segments"),
            (Desc { n: (1 << 24) + 4, ..wide }, "gemm-row-lanes", "are more than 16777216"),
            (Desc { align: 3, ..wide }, "gemm-row-lanes", "multiples of 16 bytes"),
            (Desc { m: 1 << 40, ..wide }, "gemm-row-lanes", "rows are too many"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
