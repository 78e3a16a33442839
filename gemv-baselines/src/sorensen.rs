//! Sørensen's column-major kernel and its family: one text, five sets of arguments. The text is
//! `sorensen.k`.

use gemv_core::{Arg, Dtype, Values};
use gemv_gpu::rules::{compiled, launched};
use gemv_gpu::{Case, Kernel, Language, List, Plan, Rule, source};

use crate::common::{self, VEC, launch};

pub(crate) const THREAD: Kernel = Kernel {
    name: "classic-thread",
    about: "Sørensen: a thread a row, x through shared memory.",
    args: &[BLOCK, fixed(M), fixed(N), fixed(SPREAD), VEC],
    candidates: &[BLOCKS, ONE_M, NO_N, ONE_SPREAD, WIDTHS],
    ..GENERAL
};
pub(crate) const COLUMNS: Kernel = Kernel {
    name: "classic-columns",
    about: "Sørensen: blocks share the columns of their rows and add to y by atomics.",
    args: &[BLOCK, fixed(M), COLUMNS_N, fixed(SPREAD), VEC],
    candidates: &[BLOCKS, ONE_M, EIGHT_N, ONE_SPREAD, WIDTHS],
    ..GENERAL
};
pub(crate) const ROWS: Kernel = Kernel {
    name: "classic-rows",
    about: "Sørensen: a thread has several rows.",
    args: &[BLOCK, M, fixed(N), fixed(SPREAD), VEC],
    candidates: &[BLOCKS, EIGHT_M, NO_N, ONE_SPREAD, WIDTHS],
    ..GENERAL
};
pub(crate) const SPREAD_K: Kernel = Kernel {
    name: "classic-spread",
    about: "Sørensen: threads of a block share the columns of a row.",
    args: &[BLOCK, fixed(M), fixed(N), SPREAD_MORE, VEC],
    candidates: &[BLOCKS, ONE_M, NO_N, List::Values("spread", |_| vec![2, 4, 8, 16, 32]), WIDTHS],
    ..GENERAL
};
pub(crate) const GENERAL: Kernel = Kernel {
    name: "classic-general",
    about: "Sørensen: the versatile kernel, which contains the other four.",
    source: source![common::SOURCE, include_str!("sorensen.k")],
    args: &[BLOCK, M, N, SPREAD, VEC],
    ordered: false,
    rules: &[
        Rule::Holds(
            |of| of.get("block").is_multiple_of(of.get("spread")),
            "spread does not divide block",
        ),
        // Blocks that share columns add to y at the same time.
        Rule::Holds(
            |of| parts(of) == 1 || of.desc.dtype.bytes() >= 4,
            "there are no atomics on 16-bit floats",
        ),
        Rule::Holds(
            |of| {
                let wide = matches!(of.desc.dtype, Dtype::F64 | Dtype::C64);
                let has = of.caps.language == Language::Cuda || of.caps.atomics64;
                parts(of) == 1 || !wide || has
            },
            "the device has no 64-bit atomics (cl_khr_int64_base_atomics)",
        ),
        Rule::Local(|of| (1 + u64::from(of.get("spread") > 1)) * of.get("block") * of.acc_bytes()),
    ],
    // The published space: 8 x 8 x 8.
    candidates: &[BLOCKS, EIGHT_M, EIGHT_N, ONE_SPREAD, List::Value("vec", |_| 1)],
    plan,
    ..Kernel::GEMV
};

const BLOCKS: List = List::Values("block", |_| (1..=8).map(|k| 32 * k).collect());
const ONE_M: List = List::Value("m", |_| 1);
const EIGHT_M: List = List::Values("m", |_| (1..=8).collect());
const NO_N: List = List::Value("n", |_| 0);
const EIGHT_N: List = List::Values("n", |_| (1..=8).collect());
const ONE_SPREAD: List = List::Value("spread", |_| 1);
const WIDTHS: List = List::Values("vec", |_| vec![1, 2, 4, 8]);

const BLOCK: Arg = compiled(
    "block",
    "BLOCKSIZE: threads of a block, and columns of a tile.",
    Values::Multiples(32, 32, 256),
    128,
    "THREADS",
);
const M: Arg = compiled(
    "m",
    "WORKSIZE_m: groups of rows that a thread has.",
    Values::Range(1, 8),
    1,
    "WORK_M",
);
const N: Arg = launched(
    "n",
    "WORKSIZE_n: tiles of columns that a block has; 0 for all.",
    Values::Range(0, 8),
    0,
);
const COLUMNS_N: Arg = Arg {
    about: "WORKSIZE_n: tiles of columns that a block has.",
    values: Values::Range(1, 8),
    default: 1,
    ..N
};
const SPREAD: Arg = compiled(
    "spread",
    "Threads of a block that share the columns of a row; it divides block.",
    Values::Range(1, 256),
    1,
    "SPREAD",
);
const SPREAD_MORE: Arg = Arg { values: Values::Range(2, 256), default: 2, ..SPREAD };

/// An argument that has its default and no other value.
const fn fixed(arg: Arg) -> Arg {
    let values = match arg.default {
        0 => Values::OneOf(&[0]),
        _ => Values::OneOf(&[1]),
    };
    Arg { values, ..arg }
}

/// Blocks that share the columns of their rows.
fn parts(of: &Case<'_>) -> u64 {
    match of.get("n") {
        0 => 1,
        n => of.n().div_ceil(of.get("block")).div_ceil(n).max(1),
    }
}

fn plan(of: &Case<'_>) -> Plan {
    let (m, parts, block) = (of.m(), parts(of), of.get("block"));
    let rows = block / of.get("spread") * of.get("m") * of.get("vec");
    let mut launches = Vec::new();
    if parts > 1 {
        launches.push(launch("classic_scale", [m.div_ceil(64), 1], 64));
    }
    launches.push(launch("sorensen", [m.div_ceil(rows), parts], block));
    Plan { launches, ..Plan::default() }
}
