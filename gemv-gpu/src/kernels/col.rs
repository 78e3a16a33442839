//! `col` and `strided-col`: threads along the columns. The text is `col.k`.

use gemv_core::order::LANES;
use gemv_core::{Arg, Desc, Layout, Params, Values};

use crate::kernel::{Caps, Kernel, Plan, Signature, value};
use crate::rules::{
    BLOCKS_PER_SM, MAX_ACC_BYTES, SPLIT_K, aligned_vec, distinct, for_layout, limits, one_load,
    too_many_accs, widest, with_splits,
};
use crate::{rules, split};

pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "col",
        about: "Column-major matrices: threads_k threads share the columns of neighbouring rows, \
                and blocks may split the columns.",
        source: SOURCE,
        args: &[THREADS, THREADS_K, VEC, SPLIT_K, FILL],
        defines: &[("GENERAL", "0")],
        signature: Signature::Gemv,
        mixed: true,
        ordered: true,
        candidates: col_candidates,
        legal: |desc, params, caps| legal(desc, params, caps, Some(Layout::Col)),
        plan,
    },
    Kernel {
        name: "strided-col",
        about: "Any strides: as col, by loads of one element.",
        source: SOURCE,
        args: &[THREADS, THREADS_K, ONE, SPLIT_K, FILL],
        defines: &[("GENERAL", "1")],
        signature: Signature::Gemv,
        mixed: true,
        ordered: true,
        candidates: strided_col_candidates,
        legal: |desc, params, caps| legal(desc, params, caps, None),
        plan,
    },
];

const SOURCE: &str = crate::source![include_str!("col.k"), split::REDUCE_SOURCE];

const THREADS: Arg = Arg {
    name: "threads",
    about: "Threads of a block.",
    values: Values::Powers(32, 1024),
    default: 256,
    define: Some("THREADS"),
};
const THREADS_K: Arg = Arg {
    name: "threads_k",
    about: "Threads of a block that share the columns of the same rows.",
    values: Values::Powers(1, 64),
    default: 8,
    define: Some("THREADS_K"),
};
const VEC: Arg = Arg {
    name: "vec",
    about: "Neighbouring rows of a thread: elements of one load of A, at most 16 bytes.",
    values: Values::Powers(1, 8),
    default: 1,
    define: Some("VEC"),
};
const ONE: Arg = Arg { about: "Rows of a thread.", values: Values::OneOf(&[1]), ..VEC };
const FILL: Arg = Arg { default: 4, ..BLOCKS_PER_SM };
const ARGS: &[Arg] = KERNELS[0].args;

fn legal(desc: &Desc, params: &Params, caps: &Caps, layout: Option<Layout>) -> Result<(), String> {
    for_layout(desc, layout)?;
    one_load(desc, value(ARGS, params, "vec"))?;
    let get = |name| u64::from(value(ARGS, params, name));
    let (threads, threads_k, vec) = (get("threads"), get("threads_k"), get("vec"));
    if threads_k > threads {
        return Err(format!("threads_k={threads_k} is more than threads={threads}"));
    }
    if vec > threads_k {
        return Err(format!("vec={vec} is more than threads_k={threads_k}"));
    }
    let acc = desc.vectors.acc_bytes() as u64;
    let accs = LANES as u64 / threads_k * vec * acc;
    if accs > MAX_ACC_BYTES {
        return Err(too_many_accs(accs));
    }
    let block_rows = threads / threads_k * vec;
    limits(&plan(desc, params, caps), caps, (threads_k + 7) * block_rows * acc)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ARGS, params, name);
    let threads = get("threads");
    let block_rows = u64::from(threads / get("threads_k") * get("vec"));
    let split = (get("split_k"), get("blocks_per_sm"));
    rules::plan(desc, caps, ("col", threads), block_rows, split)
}

fn shapes(desc: &Desc, caps: &Caps, kernel: &'static str, vec: u32) -> Vec<Params> {
    let mut all = Vec::new();
    for (threads, threads_k, fills) in [
        (256, 32, &[8, 4, 2, 0][..]),
        (256, 16, &[4, 8, 2]),
        (128, 16, &[8, 0]),
        (256, 8, &[4]),
        (128, 4, &[8]),
        (512, 16, &[2]),
    ] {
        let (mut threads, mut threads_k) = (threads.min(caps.max_group), threads_k.max(vec));
        let acc = desc.vectors.acc_bytes() as u32;
        while u64::from(LANES as u32 / threads_k * vec * acc) > MAX_ACC_BYTES {
            threads_k *= 2;
        }
        while threads > threads_k.max(32)
            && (threads_k + 7) * (threads / threads_k * vec) * acc > caps.local_bytes
        {
            threads /= 2;
        }
        let params = Params::new(kernel).with("threads", threads).with("threads_k", threads_k);
        let block_rows = u64::from(threads / threads_k * vec);
        all.extend(with_splits(params.with("vec", vec), fills, desc, caps, block_rows));
    }
    all
}

fn col_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let vec = aligned_vec(desc).min(4);
    let mut all = shapes(desc, caps, "col", vec);
    // Loads of one element, too: of few rows, more threads then have some. And wider vectors than
    // the alignment allows, which are read by single elements.
    let other = if vec > 1 { [vec / 2, 1] } else { [2, 4] };
    for vec in other.into_iter().filter(|v| (1..=widest(desc.dtype)).contains(v) && *v != vec) {
        all.extend(shapes(desc, caps, "col", vec).into_iter().take(9));
    }
    distinct(all, 28, |p| legal(desc, p, caps, Some(Layout::Col)), |p| plan(desc, p, caps))
}

fn strided_col_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Strided {
        return Vec::new();
    }
    let all = shapes(desc, caps, "strided-col", 1);
    distinct(all, 6, |p| legal(desc, p, caps, None), |p| plan(desc, p, caps))
}
