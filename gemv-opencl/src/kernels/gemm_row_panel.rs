//! `gemm-row-panel`: one row-major matrix and several right-hand sides, on GPUs; a warp holds a segment of
//! X. The text is `gemm_row_panel.cl`.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, limits, source, value};

use super::vectors::{
    BLOCKS_PER_SM, SOURCE, aligned, compiled, distinct, of_layout, registers, threads, words,
};

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

const KERNEL: Kernel = Kernel {
    name: "gemm-row-panel",
    about: "Several right-hand sides and one row-major matrix on GPUs: a warp holds a segment of X in \
            registers, and rows stream by.",
    source: source![GEMM_PRELUDE, SOURCE, include_str!("gemm_row_panel.cl")],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    threads(128, 512),
    compiled(
        "warps_k",
        "Warps of a block that share rows, each with another segment.",
        Values::Powers(1, 16),
        4,
        "WARPS_K",
    ),
    compiled("tile_rhs", "Columns of X that a warp holds.", Values::Powers(1, 16), 4, "TILE_RHS"),
    compiled("rows", "Rows that a warp has in flight.", Values::Powers(1, 8), 4, "DEPTH"),
    compiled("vec", "Elements of a load.", Values::OneOf(&[1, 2]), 1, "VEC"),
    BLOCKS_PER_SM,
];

/// Rows that a warp takes before its sums are added up, as in the text.
const BATCH: u32 = 16;
/// Most bytes of the sums of parts, or a quarter of the matrix if that is more: with more right-hand sides, `gemm-row`
/// leaves none.
const MOST_BYTES: u64 = 1 << 30;
/// Columns of a super-segment.
const SUPER_SEGMENT: usize = SEGMENT * SEGMENT;
/// Threads of a block of the second launch, as in the text. 32 of them have an output of a long row.
const REDUCE: u32 = 128;

/// Super-segments of a row and parts of each, as in the text.
fn parts(n: usize, warps_k: u64) -> (u64, u64) {
    let segments = n.min(SUPER_SEGMENT).div_ceil(SEGMENT) as u64;
    let parts = segments.div_ceil(warps_k.max(1)).next_power_of_two();
    (n.div_ceil(SUPER_SEGMENT).max(1) as u64, parts)
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(ARGS, params, name);
    let (threads, warps_k, cols) = (get("threads"), get("warps_k"), get("tile_rhs"));
    of_layout(desc, Layout::Row, get("vec"))?;
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    // Their sums are one more level.
    let longest = SEGMENT * SUPER_SEGMENT;
    if desc.n > longest {
        return Err(format!("{} columns are more than {longest}", desc.n));
    }
    if warps_k > threads / 32 {
        return Err(format!("warps_k={warps_k} of {} warps", threads / 32));
    }
    let parts = parts(desc.n, warps_k.into()).1;
    if parts > LANES as u64 {
        return Err(format!("{parts} parts are more than {LANES} lanes"));
    }
    // X, rows in flight and sums.
    let words = words(desc.dtype);
    let load = (get("vec") * desc.dtype.bytes() as u32).div_ceil(4);
    let held = 8 * cols * words + get("rows") * 8 / get("vec") * load + 2 * cols * words;
    registers(held, (65_536 / threads).min(255) - 28)?;
    let plan = plan(desc, params, caps);
    let bytes = plan.workspace.saturating_mul(desc.dtype.acc_bytes() as u64);
    let matrix = (desc.m as u64).saturating_mul(desc.n as u64 * desc.dtype.bytes() as u64);
    let most = MOST_BYTES.max(matrix / 4);
    if bytes > most {
        return Err(format!("{bytes} bytes of sums are more than {most}"));
    }
    // Two batches of sums, and what threads exchange where there are no shuffles.
    let sums = 2 * (threads / 32) * BATCH * cols + threads * get("vec") * (cols / 2).max(1);
    limits(&plan, caps, u64::from(sums) * desc.dtype.acc_bytes() as u64)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let (m, rhs) = (desc.m as u64, desc.rhs as u64);
    let (super_segments, parts) = parts(desc.n, get("warps_k"));
    let all = super_segments * parts * rhs.div_ceil(get("tile_rhs")).max(1);
    let rows = (get("threads") / 32 / get("warps_k").max(1)).max(1) * u64::from(BATCH);
    // A block for each range of rows: as many as asked, of at least one batch each.
    let most = (u64::from(caps.units) * get("blocks_per_sm") / all).max(1);
    let ranges = m.div_ceil(rows).min(most).max(1);
    let threads = value(ARGS, params, "threads");
    let mut launches = vec![Launch::new("gemm_row_panel", ranges.saturating_mul(all), threads)];
    let outputs = m.saturating_mul(rhs);
    if super_segments > 1 {
        let outputs_of_block = u64::from(REDUCE / 32);
        let blocks = outputs.div_ceil(outputs_of_block);
        launches.push(Launch::new("gemm_parts_long_reduce", blocks, REDUCE));
    } else if parts > 1 {
        launches.push(Launch::new("gemm_parts_reduce", outputs.div_ceil(REDUCE.into()), REDUCE));
    }
    let sums = super_segments * parts;
    let workspace = if sums > 1 { outputs.saturating_mul(sums) } else { 0 };
    Plan { launches, workspace, counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Row || desc.batch != 1 || desc.rhs == 1 {
        return Vec::new();
    }
    // X of more columns has no place in registers.
    let most = match words(desc.dtype) {
        1 => 16,
        2 => 8,
        _ => 4,
    };
    let cols = (desc.rhs.min(16).next_power_of_two() as u32).min(most);
    let vec = if desc.dtype.bytes() == 2 { aligned(desc).min(2) } else { 1 };
    let segments = desc.n.min(SUPER_SEGMENT).div_ceil(SEGMENT).max(1);
    let mut all = Vec::new();
    for (threads, rows, blocks) in
        [(256, 4, 1), (128, 4, 4), (512, 2, 1), (256, 2, 2), (128, 2, 4), (128, 4, 3)]
    {
        // Two panels of half as many columns may be as fast.
        for cols in [cols, cols / 2].into_iter().take(if cols == most { 2 } else { 1 }) {
            // Warps along the columns: as many as there are segments, or all.
            let warps_k = (segments.next_power_of_two() as u32).min(threads / 32);
            let params = Params::new(KERNEL.name).with("threads", threads);
            let params = params.with("warps_k", warps_k).with("tile_rhs", cols).with("rows", rows);
            all.push(params.with("vec", vec).with("blocks_per_sm", blocks));
        }
    }
    distinct(&KERNEL, desc, caps, 8, all)
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;
    use gemv_gpu::Language;

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
            (desc, "gemm-row-panel warps_k=16", "warps_k=16 of 4 warps"),
            (Desc { n: 40_000, ..desc }, "gemm-row-panel warps_k=2", "128 parts are more than 64"),
            (Desc { n: (1 << 24) + 1, ..desc }, "gemm-row-panel", "columns are more than 16777216"),
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
        let all = KERNEL.candidates;
        assert!(!all(&desc, &caps).is_empty());
        assert!(all(&Desc { rhs: 1, ..desc }, &caps).is_empty());
    }
}
