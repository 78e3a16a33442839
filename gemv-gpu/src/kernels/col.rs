//! `col` and `strided-col`: threads along the columns. The text is `col.k`.

use gemv_core::{Arg, Layout, Params, Values};

use crate::kernel::{Case, Kernel, List, Rule};
use crate::rules::*;
use crate::split;

pub(super) const KERNELS: &[Kernel] = &[COL, STRIDED];

const COL: Kernel = Kernel {
    name: "col",
    about: "Column-major matrices: threads_k threads share the columns of neighbouring rows, \
            and blocks may split the columns.",
    source: crate::source![include_str!("col.k"), split::REDUCE_SOURCE],
    args: &[threads(256, 1024), threads_k(8, 1, 64), VEC_OF_ROWS, SPLIT_K, FILL],
    defines: &[("GENERAL", "0")],
    mixed: true,
    rules: &[BY_COLUMNS, Rule::All(RULES)],
    candidates: &[List::Made(vectors), List::Launches, List::First(28)],
    plan: |of| rows_plan(of, "col", block_rows(of)),
    ..Kernel::GEMV
};

const STRIDED: Kernel = Kernel {
    name: "strided-col",
    about: "Any strides: as col, by loads of one element.",
    args: &[threads(256, 1024), threads_k(8, 1, 64), ONE_ROW, SPLIT_K, FILL],
    defines: &[("GENERAL", "1")],
    rules: RULES,
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Strided),
        List::Made(|of| shapes(of, 1)),
        List::Launches,
        List::First(6),
    ],
    ..COL
};

pub(super) const ONE_ROW: Arg =
    Arg { about: "Rows of a thread.", values: Values::OneOf(&[1]), ..VEC_OF_ROWS };
const FILL: Arg = Arg { default: 4, ..BLOCKS_PER_SM };

const RULES: &[Rule] = &[
    ONE_LOAD,
    THREADS_K_OF_BLOCK,
    Rule::UpTo(&["vec"], |of| of.get("threads_k")),
    Rule::AtMost("bytes of accumulators of a thread", accs, |_| MAX_ACC_BYTES),
    Rule::Local(local),
];

fn accs(of: &Case<'_>) -> u64 {
    LANES / of.get("threads_k") * of.get("vec") * of.acc_bytes()
}

fn local(of: &Case<'_>) -> u64 {
    (of.get("threads_k") + 7) * block_rows(of) * of.acc_bytes()
}

fn block_rows(of: &Case<'_>) -> u64 {
    of.get("threads") / of.get("threads_k") * of.get("vec")
}

/// A block shape with more threads along the columns and fewer of all, until a device has it.
fn within(of: &Case<'_>) -> Params {
    let [threads, threads_k] = of.all(["threads", "threads_k"]);
    let other = match () {
        _ if accs(of) > MAX_ACC_BYTES => ("threads_k", threads_k * 2),
        _ if threads > threads_k.max(32) && local(of) > of.caps.local_bytes.into() => {
            ("threads", threads / 2)
        }
        _ => return *of.params,
    };
    within(&of.at(&of.with([other])))
}

fn shapes(of: &Case<'_>, vec: u64) -> Vec<Params> {
    let mut all = Vec::new();
    for (threads, threads_k, fills) in [
        (256, 32, &[8, 4, 2, 0][..]),
        (256, 16, &[4, 8, 2]),
        (128, 16, &[8, 0]),
        (256, 8, &[4]),
        (128, 4, &[8]),
        (512, 16, &[2]),
    ] {
        let (threads, threads_k) = (of.caps.max_group.min(threads), threads_k.max(vec));
        let shape = [("threads", threads.into()), ("threads_k", threads_k), ("vec", vec)];
        let shape = within(&of.at(&of.with(shape)));
        let of = of.at(&shape);
        all.extend(with_splits(&of, fills, of.m().div_ceil(block_rows(&of))));
    }
    all
}

fn vectors(of: &Case<'_>) -> Vec<Params> {
    let vec = of.aligned().min(4);
    let mut all = shapes(of, vec);
    // Loads of one element, too: of few rows, more threads then have some. And wider vectors than
    // the alignment allows, which are read by single elements.
    let other = if vec > 1 { [vec / 2, 1] } else { [2, 4] };
    for vec in other.into_iter().filter(|v| (1..=of.widest()).contains(v) && *v != vec) {
        all.extend(shapes(of, vec).into_iter().take(9));
    }
    all
}
