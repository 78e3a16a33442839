//! `row-block`: row-major matrices of more than a few columns on GPUs; a block has a row. The text is
//! `row_block.cl`.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel, Launch, Plan, Signature, limits, source, value};

use super::vectors::{
    BLOCKS_PER_SM, SOURCE, VEC, aligned, compiled, distinct, of_layout, registers, rows, threads,
    words,
};

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

const KERNEL: Kernel = Kernel {
    name: "row-block",
    about: "A block computes a row at a time and loads the next one meanwhile, on GPUs: row-major, up \
            to 65,536 columns.",
    source: source![SOURCE, include_str!("row_block.cl")],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
};

pub(super) const ARGS: &[Arg] = &[
    threads(128, 512),
    compiled(
        "subwarp",
        "Neighbouring threads that share a segment of a row.",
        Values::Powers(8, 32),
        16,
        "SUBWARP",
    ),
    compiled(
        "warps_k",
        "Sub-warps of a block that share a row, each with other segments.",
        Values::Powers(1, 64),
        2,
        "WARPS_K",
    ),
    rows("Rows that a sub-warp computes at a time."),
    VEC,
    BLOCKS_PER_SM,
];

/// Most columns: a block has one level of sums of segments.
pub(super) const MOST_COLUMNS: usize = SEGMENT * SEGMENT;
/// With fewer columns, rows are `row`'s and `row-smem`'s.
const LEAST_COLUMNS: usize = 65;
/// From so many columns on, even waves are faster than more blocks.
const LONG: usize = 2048;

/// 32-bit registers of a thread: for A and x, for sums, and for the loads.
fn held(desc: &Desc, params: &Params) -> u32 {
    let get = |name| value(ARGS, params, name);
    let (subwarp, rows, vec) = (get("subwarp"), get("rows"), get("vec"));
    let slots = LANES as u32 / (subwarp * vec);
    let load = (vec * desc.dtype.bytes() as u32).div_ceil(4);
    4 * slots * load * (rows + 1) + slots * vec * rows * words(desc.dtype) + 8 * slots
}

/// Rows that a block takes at a time.
fn block_rows(params: &Params) -> u32 {
    let get = |name| value(ARGS, params, name);
    get("threads") / (get("subwarp") * get("warps_k")) * get("rows")
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    if desc.n > MOST_COLUMNS {
        return Err(format!("the kernel is for up to {MOST_COLUMNS} columns, not {}", desc.n));
    }
    limits(&plan(desc, params, caps), caps, legal_shape(desc, params)?)
}

/// How a block is shared out. Returns its bytes of local memory.
pub(super) fn legal_shape(desc: &Desc, params: &Params) -> Result<u64, String> {
    let get = |name| value(ARGS, params, name);
    let (threads, subwarp, warps) = (get("threads"), get("subwarp"), get("warps_k"));
    let vec = get("vec");
    of_layout(desc, Layout::Row, vec)?;
    let lanes = LANES as u32;
    if subwarp * vec > lanes {
        return Err(format!("subwarp={subwarp} with vec={vec} is more than {lanes} lanes"));
    }
    if subwarp * warps > threads {
        return Err(format!("warps_k={warps} of {} sub-warps", threads / subwarp));
    }
    // A segment with its x is in registers before the first sum. A thread of a block of 512 has 128
    // registers, of smaller ones 255.
    registers(held(desc, params), if threads > 256 { 88 } else { 176 })?;
    // Lanes of the second level, and what sub-warps exchange where there are no shuffles.
    let sums = 2 * block_rows(params) * lanes + threads * vec;
    Ok(u64::from(sums) * desc.dtype.acc_bytes() as u64)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let most = u64::from(caps.units) * get("blocks_per_sm");
    let blocks = (desc.m as u64).div_ceil(block_rows(params).into());
    let waves = if desc.n > LONG { blocks.div_ceil(most).max(1) } else { 1 };
    let blocks = blocks.div_ceil(waves).min(most).max(1);
    let launch = Launch::new("row_block", blocks, value(ARGS, params, "threads"));
    Plan { launches: vec![launch], ..Plan::default() }
}

/// How a block is shared out: loads that a thread has of a round in place of one, most threads of a
/// row (further segments are further iterations), fewest threads of a block, rows of a sub-warp.
const SHAPES: [(u32, u32, u32, u32); 9] = [
    (1, 512, 128, 1),
    (2, 512, 32, 1),
    (2, 128, 128, 1),
    (1, 512, 32, 1),
    (2, 512, 128, 1),
    (1, 512, 128, 2),
    (1, 128, 128, 1),
    (1, 128, 128, 2),
    (2, 32, 32, 1),
];

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if !(LEAST_COLUMNS..=MOST_COLUMNS).contains(&desc.n) {
        return Vec::new();
    }
    let all_at_once = desc.n.div_ceil(SEGMENT).next_power_of_two().min(LANES) as u32;
    let wide = aligned(desc);
    // Elements of 8 bytes one by one, too: their sums take as many registers as two of the others.
    let count = if desc.dtype.bytes() == 8 && wide > 1 { 2 } else { 1 };
    let mut all = Vec::new();
    for vec in [wide, 1].into_iter().take(count) {
        for (loads, most, least, rows) in SHAPES {
            let subwarp = ((LANES as u32 / vec).min(32) / loads).max(8);
            let warps = all_at_once.min(most / subwarp);
            let threads = least.max(subwarp * warps);
            let params = Params::new(KERNEL.name)
                .with("threads", threads)
                .with("subwarp", subwarp)
                .with("warps_k", warps)
                .with("rows", rows)
                .with("vec", vec);
            let resident = match held(desc, &params) {
                0..=48 => 1024,
                49..=88 => 512,
                _ => 256,
            };
            all.push(params.with("blocks_per_sm", (resident / threads).max(1)));
        }
    }
    distinct(&KERNEL, desc, caps, 16, all)
}
