//! `row-smem`: row-major matrices of up to 64 columns and many rows on GPUs; a thread has a row, which
//! comes through local memory. The text is `row_smem.cl`.

use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel, Launch, Plan, Signature, limits, source, value};

use super::vectors::{
    PARTIALS, SOURCE, VEC, aligned, compiled, distinct, of_layout, registers, rows, threads, words,
};

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

const KERNEL: Kernel = Kernel {
    name: "row-smem",
    about: "A block copies its rows to local memory, and a thread computes a whole row there, on GPUs: \
            row-major, up to 64 columns.",
    source: source![SOURCE, PARTIALS, include_str!("row_smem.cl")],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan: |desc, params, _| plan(desc, params),
};

const ARGS: &[Arg] = &[
    threads(128, 256),
    rows("Rows of a thread."),
    VEC,
    compiled(
        "max_n",
        "Most columns, a multiple of vec: a row has room for so many in local memory.",
        // Not those between: `nvidia-row-smem` of the known bugs.
        Values::OneOf(&[1, 2, 4, 8, 16, 64]),
        64,
        "MAX_N",
    ),
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(ARGS, params, name);
    let (threads, rows, vec, max_n) = (get("threads"), get("rows"), get("vec"), get("max_n"));
    of_layout(desc, Layout::Row, vec)?;
    if !max_n.is_multiple_of(vec) {
        return Err(format!("max_n={max_n} is not a multiple of vec={vec}"));
    }
    let least = if max_n > 16 { max_n - 7 } else { max_n / 2 + 1 };
    if !(least as usize..=max_n as usize).contains(&desc.n) {
        return Err(format!("{} columns do not fit max_n={max_n}", desc.n));
    }
    registers(max_n.min(8) * rows * words(desc.dtype), 64)?;
    let elements = threads * rows * ((max_n / vec) | 1) * vec + max_n.next_power_of_two();
    let local = elements * desc.dtype.bytes() as u32 + 32;
    limits(&plan(desc, params), caps, local.into())
}

fn plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let blocks = (desc.m as u64).div_ceil(get("threads") * get("rows"));
    let launch = Launch::new("row_smem", blocks, value(ARGS, params, "threads"));
    Plan { launches: vec![launch], ..Plan::default() }
}

/// Rows from which this kernel may be faster than `row`.
const MANY_ROWS: usize = 4096;

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let max_n = match desc.n as u32 {
        few @ 1..=16 => few.next_power_of_two(),
        57..=64 => 64,
        _ => return Vec::new(),
    };
    if desc.m < MANY_ROWS {
        return Vec::new();
    }
    let mut all = Vec::new();
    for vec in [aligned(desc).min(max_n), 1] {
        for (threads, rows) in [(128, 1), (128, 2), (128, 4), (64, 1), (64, 2), (32, 1)] {
            // Many bytes a thread leave too few threads.
            let bytes = rows * max_n * desc.dtype.bytes() as u32;
            if rows == 1 || bytes <= 192 {
                let params = Params::new(KERNEL.name).with("threads", threads).with("rows", rows);
                all.push(params.with("vec", vec).with("max_n", max_n));
            }
        }
    }
    distinct(&KERNEL, desc, caps, 10, all)
}
