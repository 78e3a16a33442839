//! `col-thread`: column-major matrices of up to 64 columns on GPUs; a thread has whole rows. The text is
//! `col_thread.cl`.

use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel, Launch, Plan, Signature, limits, source, value};

use super::vectors::{
    PARTIALS, SOURCE, VEC, aligned, compiled, distinct, of_layout, registers, rows, threads, words,
};

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

const KERNEL: Kernel = Kernel {
    name: "col-thread",
    about: "A thread computes whole rows by itself, on GPUs: column-major, up to 64 columns.",
    source: source![SOURCE, PARTIALS, include_str!("col_thread.cl")],
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
    rows("Vectors of rows that a thread has."),
    VEC,
    compiled(
        "max_n",
        "Most columns; a thread has as many lanes.",
        Values::Powers(1, 64),
        64,
        "MAX_N",
    ),
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(ARGS, params, name);
    let (rows, vec, max_n) = (get("rows"), get("vec"), get("max_n"));
    of_layout(desc, Layout::Col, vec)?;
    if desc.n > max_n as usize {
        return Err(format!("{} columns do not fit max_n={max_n}", desc.n));
    }
    registers(max_n.min(8) * rows * vec * words(desc.dtype), 64)?;
    limits(&plan(desc, params), caps, 0)
}

fn plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let blocks = (desc.m as u64).div_ceil(get("threads") * get("rows") * get("vec"));
    let launch = Launch::new("col_thread", blocks, value(ARGS, params, "threads"));
    Plan { launches: vec![launch], ..Plan::default() }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let max_n = desc.n.next_power_of_two();
    if max_n > 64 {
        return Vec::new();
    }
    let mut all = Vec::new();
    for vec in [aligned(desc), 1] {
        for rows in [1, 2, 4] {
            // More than 32 bytes of a column a thread leaves too few threads.
            if rows * vec * desc.dtype.bytes() as u32 <= 32 {
                let params = Params::new(KERNEL.name).with("threads", 128).with("rows", rows);
                all.push(params.with("vec", vec).with("max_n", max_n as u32));
            }
        }
    }
    distinct(&KERNEL, desc, caps, 8, all)
}
