//! Sørensen's column-major kernel and its family: one text, five sets of arguments. The text is
//! `sorensen.k`.

use gemv_core::{Arg, Desc, Dtype, Params, Values};
use gemv_gpu::{Caps, Kernel, Language, Plan, Signature, limits, source, value};

use crate::common::{self, VEC, launch};

pub(crate) const THREAD: Kernel = Kernel {
    name: "classic-thread",
    about: "Sørensen: a thread a row, x through shared memory.",
    args: &[BLOCK, fixed(M), fixed(N), fixed(SPREAD), VEC],
    candidates: |desc, caps| candidates(&THREAD, &[1], &[0], &[1], WIDTHS, desc, caps),
    ..GENERAL
};
pub(crate) const COLUMNS: Kernel = Kernel {
    name: "classic-columns",
    about: "Sørensen: blocks share the columns of their rows and add to y by atomics.",
    args: &[BLOCK, fixed(M), COLUMNS_N, fixed(SPREAD), VEC],
    candidates: |desc, caps| candidates(&COLUMNS, &[1], EIGHT, &[1], WIDTHS, desc, caps),
    plan: |desc, params, _| plan(COLUMNS.args, desc, params),
    legal: |desc, params, caps| legal(COLUMNS.args, desc, params, caps),
    ..GENERAL
};
pub(crate) const ROWS: Kernel = Kernel {
    name: "classic-rows",
    about: "Sørensen: a thread has several rows.",
    args: &[BLOCK, M, fixed(N), fixed(SPREAD), VEC],
    candidates: |desc, caps| candidates(&ROWS, EIGHT, &[0], &[1], WIDTHS, desc, caps),
    ..GENERAL
};
pub(crate) const SPREAD_K: Kernel = Kernel {
    name: "classic-spread",
    about: "Sørensen: threads of a block share the columns of a row.",
    args: &[BLOCK, fixed(M), fixed(N), SPREAD_MORE, VEC],
    candidates: |desc, caps| {
        candidates(&SPREAD_K, &[1], &[0], &[2, 4, 8, 16, 32], WIDTHS, desc, caps)
    },
    plan: |desc, params, _| plan(SPREAD_K.args, desc, params),
    legal: |desc, params, caps| legal(SPREAD_K.args, desc, params, caps),
    ..GENERAL
};
pub(crate) const GENERAL: Kernel = Kernel {
    name: "classic-general",
    about: "Sørensen: the versatile kernel, which contains the other four.",
    source: source![common::SOURCE, include_str!("sorensen.k")],
    args: &[BLOCK, M, N, SPREAD, VEC],
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: false,
    // The published space: 8 x 8 x 8.
    candidates: |desc, caps| candidates(&GENERAL, EIGHT, EIGHT, &[1], &[1], desc, caps),
    legal: |desc, params, caps| legal(GENERAL.args, desc, params, caps),
    plan: |desc, params, _| plan(GENERAL.args, desc, params),
};

const EIGHT: &[u32] = &[1, 2, 3, 4, 5, 6, 7, 8];
const WIDTHS: &[u32] = &[1, 2, 4, 8];

const BLOCK: Arg = Arg {
    name: "block",
    about: "BLOCKSIZE: threads of a block, and columns of a tile.",
    values: Values::Multiples(32, 32, 256),
    default: 128,
    define: Some("THREADS"),
};
const M: Arg = Arg {
    name: "m",
    about: "WORKSIZE_m: groups of rows that a thread has.",
    values: Values::Range(1, 8),
    default: 1,
    define: Some("WORK_M"),
};
const N: Arg = Arg {
    name: "n",
    about: "WORKSIZE_n: tiles of columns that a block has; 0 for all.",
    values: Values::Range(0, 8),
    default: 0,
    define: None,
};
const COLUMNS_N: Arg = Arg {
    about: "WORKSIZE_n: tiles of columns that a block has.",
    values: Values::Range(1, 8),
    default: 1,
    ..N
};
const SPREAD: Arg = Arg {
    name: "spread",
    about: "Threads of a block that share the columns of a row; it divides block.",
    values: Values::Range(1, 256),
    default: 1,
    define: Some("SPREAD"),
};
const SPREAD_MORE: Arg = Arg { values: Values::Range(2, 256), default: 2, ..SPREAD };

/// An argument that has its default and no other value.
const fn fixed(arg: Arg) -> Arg {
    let values = match arg.default {
        0 => Values::OneOf(&[0]),
        _ => Values::OneOf(&[1]),
    };
    Arg { values, ..arg }
}

fn legal(args: &[Arg], desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let (block, spread) = (value(args, params, "block"), value(args, params, "spread"));
    if !block.is_multiple_of(spread) {
        return Err(format!("spread={spread} does not divide block={block}"));
    }
    let plan = plan(args, desc, params);
    if plan.launches.len() > 1 {
        atomics(desc, caps)?;
    }
    let acc = desc.vectors.acc_bytes() as u64;
    limits(&plan, caps, (1 + u64::from(spread > 1)) * u64::from(block) * acc)
}

/// Whether blocks can add to y at the same time.
fn atomics(desc: &Desc, caps: &Caps) -> Result<(), String> {
    match desc.dtype {
        of if of.bytes() < 4 => Err("there are no atomics on 16-bit floats".into()),
        Dtype::F64 | Dtype::C64 if caps.language == Language::OpenCl && !caps.atomics64 => {
            Err("the device has no 64-bit atomics (cl_khr_int64_base_atomics)".into())
        }
        _ => Ok(()),
    }
}

fn plan(args: &[Arg], desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(args, params, name));
    let (block, n) = (get("block"), get("n"));
    let rows = block / get("spread") * get("m") * get("vec");
    let m = desc.m as u64;
    let tiles = (desc.n as u64).div_ceil(block);
    let parts = if n == 0 { 1 } else { tiles.div_ceil(n).max(1) };
    let mut launches = Vec::new();
    if parts > 1 {
        launches.push(launch("classic_scale", [m.div_ceil(64), 1], 64));
    }
    launches.push(launch("sorensen", [m.div_ceil(rows), parts], block as u32));
    Plan { launches, ..Plan::default() }
}

fn candidates(
    kernel: &Kernel,
    ms: &[u32],
    ns: &[u32],
    spreads: &[u32],
    widths: &[u32],
    desc: &Desc,
    caps: &Caps,
) -> Vec<Params> {
    let mut all = Vec::new();
    for block in (32..=256).step_by(32) {
        for &m in ms {
            for &n in ns {
                for &spread in spreads {
                    for &vec in widths {
                        let params = Params::new(kernel.name).with("block", block).with("m", m);
                        let params = params.with("n", n).with("spread", spread);
                        all.push(params.with("vec", vec));
                    }
                }
            }
        }
    }
    all.retain(|p| kernel.fits(desc, p, caps).is_ok());
    all
}
