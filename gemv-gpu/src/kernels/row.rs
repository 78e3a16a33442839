//! `row` and `strided`: sub-warps along the rows. The text is `row.k`.

use gemv_core::order::LANES;
use gemv_core::{Arg, Desc, Layout, Params, Values};

use crate::kernel::{Caps, Kernel, Language, Plan, Signature, value};
use crate::rules::{
    BLOCKS_PER_SM, MAX_ACC_BYTES, SPLIT_K, aligned_vec, distinct, for_layout, limits, one_load,
    too_many_accs, widest, with_splits,
};
use crate::{rules, split};

pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "row",
        about: "Row-major matrices: a sub-warp computes a few rows at a time by vector loads, \
                and blocks may split the columns.",
        source: SOURCE,
        args: &[THREADS, SUBWARP, ROWS, VEC, SPLIT_K, BLOCKS_PER_SM],
        defines: &[("GENERAL", "0")],
        signature: Signature::Gemv,
        mixed: true,
        ordered: true,
        candidates: row_candidates,
        legal: |desc, params, caps| legal(desc, params, caps, Some(Layout::Row)),
        plan,
    },
    Kernel {
        name: "strided",
        about: "Any strides: as row, by loads of one element.",
        source: SOURCE,
        args: &[THREADS, SUBWARP, ROWS, ONE, SPLIT_K, BLOCKS_PER_SM],
        defines: &[("GENERAL", "1")],
        signature: Signature::Gemv,
        mixed: true,
        ordered: true,
        candidates: strided_candidates,
        legal: |desc, params, caps| legal(desc, params, caps, None),
        plan,
    },
];

const SOURCE: &str = crate::source![include_str!("row.k"), split::REDUCE_SOURCE];

const THREADS: Arg = Arg {
    name: "threads",
    about: "Threads of a block.",
    values: Values::Powers(32, 1024),
    default: 128,
    define: Some("THREADS"),
};
const SUBWARP: Arg = Arg {
    name: "subwarp",
    about: "Threads of a sub-warp, which share the columns of a row.",
    values: Values::Powers(1, 32),
    default: 16,
    define: Some("SUBWARP"),
};
const ROWS: Arg = Arg {
    name: "rows",
    about: "Rows that a sub-warp computes at a time.",
    values: Values::Powers(1, 8),
    default: 1,
    define: Some("ROWS"),
};
const VEC: Arg = Arg {
    name: "vec",
    about: "Elements of one load of A, at most 16 bytes.",
    values: Values::Powers(1, 8),
    default: 1,
    define: Some("VEC"),
};
const ONE: Arg = Arg { about: "Elements of one load of A.", values: Values::OneOf(&[1]), ..VEC };
const ARGS: &[Arg] = KERNELS[0].args;

fn legal(desc: &Desc, params: &Params, caps: &Caps, layout: Option<Layout>) -> Result<(), String> {
    for_layout(desc, layout)?;
    let get = |name| value(ARGS, params, name);
    let shape @ (_, subwarp, _, vec) = (get("threads"), get("subwarp"), get("rows"), get("vec"));
    one_load(desc, vec)?;
    if subwarp * vec > LANES as u32 {
        return Err(format!("subwarp={subwarp} threads with vec={vec} are more than 64 lanes"));
    }
    let (accs, local) = needs(desc, caps, shape);
    if accs > MAX_ACC_BYTES {
        return Err(too_many_accs(accs));
    }
    limits(&plan(desc, params, caps), caps, local)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ARGS, params, name);
    let threads = get("threads");
    let block_rows = u64::from(threads / get("subwarp") * get("rows"));
    let split = (get("split_k"), get("blocks_per_sm"));
    rules::plan(desc, caps, ("row", threads), block_rows, split)
}

/// Bytes of accumulators of a thread, and of local memory of a block, by threads, subwarp, rows
/// and vec.
fn needs(desc: &Desc, caps: &Caps, shape: (u32, u32, u32, u32)) -> (u64, u64) {
    let (threads, subwarp, rows, vec) = shape;
    let [threads, subwarp, rows, vec] = [threads, subwarp, rows, vec].map(u64::from);
    let acc = desc.vectors.acc_bytes() as u64;
    let mut local = threads / subwarp * rows * LANES as u64 * acc;
    if caps.language == Language::OpenCl {
        // Without shuffles, sub-warps exchange through local memory.
        local += threads * rows * vec * acc;
    }
    (LANES as u64 / subwarp * rows * acc, local)
}

/// A block shape made smaller until it is legal: wide types take more accumulators.
fn within(
    desc: &Desc,
    caps: &Caps,
    (mut threads, mut subwarp, mut rows): (u32, u32, u32),
    vec: u32,
) -> (u32, u32, u32) {
    loop {
        let (accs, local) = needs(desc, caps, (threads, subwarp, rows, vec));
        let fits = local <= u64::from(caps.local_bytes) && threads <= caps.max_group;
        if accs <= MAX_ACC_BYTES && fits {
            return (threads, subwarp, rows);
        }
        if rows > 1 {
            rows /= 2;
        } else if accs > MAX_ACC_BYTES {
            subwarp *= 2;
        } else if threads > 32 {
            threads /= 2;
        } else {
            return (threads, subwarp, rows);
        }
    }
}

fn shapes(desc: &Desc, caps: &Caps, kernel: &'static str, vec: u32) -> Vec<Params> {
    // Enough threads that every lane of a short row is loaded at once, and not many more.
    let full = LANES as u32 / vec;
    let need = (desc.n.div_ceil(vec as usize).max(1).next_power_of_two() as u32).min(full).min(32);
    let mut all = Vec::new();
    for (threads, subwarp, rows, fills) in [
        (128, need, 1, &[8, 4, 0][..]),
        (128, need, if need >= 8 { 2 } else { 1 }, &[8, 4]),
        (64, need, 1, &[16]),
        (128, (need / 2).max(1), 1, &[8]),
        (256, need, 4, &[4]),
    ] {
        let (threads, subwarp, rows) = within(desc, caps, (threads, subwarp, rows), vec);
        let params = Params::new(kernel).with("threads", threads).with("subwarp", subwarp);
        let params = params.with("rows", rows).with("vec", vec);
        let block_rows = u64::from(threads / subwarp * rows);
        all.extend(with_splits(params, fills, desc, caps, block_rows));
    }
    all
}

fn row_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let vec = aligned_vec(desc);
    let mut all = shapes(desc, caps, "row", vec);
    // Rotated vectors where the rows are not aligned, narrower ones where they are.
    let other = if vec == widest(desc.dtype) { vec / 2 } else { vec * 2 };
    if other > 0 {
        all.extend(shapes(desc, caps, "row", other).into_iter().take(5));
    }
    distinct(all, 13, |p| legal(desc, p, caps, Some(Layout::Row)), |p| plan(desc, p, caps))
}

fn strided_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Strided {
        return Vec::new();
    }
    let all = shapes(desc, caps, "strided", 1);
    distinct(all, 6, |p| legal(desc, p, caps, None), |p| plan(desc, p, caps))
}
