//! `row` and `strided`: sub-warps along the rows. The text is `row.k`.

use gemv_core::{Arg, Layout, Params, Values};

use crate::kernel::{Case, Kernel, List, Rule};
use crate::rules::*;
use crate::{Language, split};

pub(super) const KERNELS: &[Kernel] = &[ROW, STRIDED];

const ROW: Kernel = Kernel {
    name: "row",
    about: "Row-major matrices: a sub-warp computes a few rows at a time by vector loads, \
            and blocks may split the columns.",
    source: crate::source![include_str!("row.k"), split::REDUCE_SOURCE],
    args: &[threads(128, 1024), SUBWARP_OF_COLUMNS, ROWS, VEC_OF_A, SPLIT_K, BLOCKS_PER_SM],
    defines: &[("GENERAL", "0")],
    mixed: true,
    rules: &[BY_ROWS, Rule::All(RULES)],
    candidates: &[List::Made(vectors), List::Launches, List::First(13)],
    plan: |of| rows_plan(of, "row", block_rows(of)),
    ..Kernel::GEMV
};

const STRIDED: Kernel = Kernel {
    name: "strided",
    about: "Any strides: as row, by loads of one element.",
    args: &[threads(128, 1024), SUBWARP_OF_COLUMNS, ROWS, ONE, SPLIT_K, BLOCKS_PER_SM],
    defines: &[("GENERAL", "1")],
    rules: RULES,
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Strided),
        List::Made(|of| shapes(of, 1)),
        List::Launches,
        List::First(6),
    ],
    ..ROW
};

const ROWS: Arg = rows("Rows that a sub-warp computes at a time.", 8);
const ONE: Arg =
    Arg { about: "Elements of one load of A.", values: Values::OneOf(&[1]), ..VEC_OF_A };

const RULES: &[Rule] = &[
    ONE_LOAD,
    LOADS_OF_LANES,
    Rule::AtMost("bytes of accumulators of a thread", accs, |_| MAX_ACC_BYTES),
    Rule::Local(local),
];

fn accs(of: &Case<'_>) -> u64 {
    LANES / of.get("subwarp") * of.get("rows") * of.acc_bytes()
}

fn local(of: &Case<'_>) -> u64 {
    let exchanged = match of.caps.language {
        // Without shuffles, sub-warps exchange through local memory.
        Language::OpenCl => of.get("threads") * of.get("rows") * of.get("vec"),
        Language::Cuda => 0,
    };
    (block_rows(of) * LANES + exchanged) * of.acc_bytes()
}

fn block_rows(of: &Case<'_>) -> u64 {
    of.get("threads") / of.get("subwarp") * of.get("rows")
}

/// A block shape made smaller until it is legal: wide types take more accumulators.
fn within(of: &Case<'_>) -> Params {
    let [threads, subwarp, rows] = of.all(["threads", "subwarp", "rows"]);
    let held = accs(of) <= MAX_ACC_BYTES;
    let fits = local(of) <= of.caps.local_bytes.into() && threads <= of.caps.max_group.into();
    let smaller = match () {
        _ if held && fits => return *of.params,
        _ if rows > 1 => ("rows", rows / 2),
        _ if !held => ("subwarp", subwarp * 2),
        _ if threads > 32 => ("threads", threads / 2),
        _ => return *of.params,
    };
    within(&of.at(&of.with([smaller])))
}

fn shapes(of: &Case<'_>, vec: u64) -> Vec<Params> {
    // Enough threads that every lane of a short row is loaded at once, and not many more.
    let need = of.n().div_ceil(vec).max(1).next_power_of_two().min(LANES / vec).min(32);
    let mut all = Vec::new();
    for (threads, subwarp, rows, fills) in [
        (128, need, 1, &[8, 4, 0][..]),
        (128, need, if need >= 8 { 2 } else { 1 }, &[8, 4]),
        (64, need, 1, &[16]),
        (128, (need / 2).max(1), 1, &[8]),
        (256, need, 4, &[4]),
    ] {
        let shape = [("threads", threads), ("subwarp", subwarp), ("rows", rows), ("vec", vec)];
        let shape = within(&of.at(&of.with(shape)));
        let of = of.at(&shape);
        all.extend(with_splits(&of, fills, of.m().div_ceil(block_rows(&of))));
    }
    all
}

fn vectors(of: &Case<'_>) -> Vec<Params> {
    let (vec, widest) = (of.aligned(), of.widest());
    let mut all = shapes(of, vec);
    // Rotated vectors where the rows are not aligned, narrower ones where they are.
    let other = if vec == widest { vec / 2 } else { vec * 2 };
    if other > 0 {
        all.extend(shapes(of, other).into_iter().take(5));
    }
    all
}
