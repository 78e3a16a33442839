//! C. Nugteren's SGEMM tutorial, kernels 1 to 4, for several right-hand sides and batches. The text is
//! `nugteren.k`.

use gemv_core::{Arg, Values};
use gemv_gpu::rules::compiled;
use gemv_gpu::{Case, GEMM_PRELUDE, Kernel, Launch, List, Plan, Rule, source};

use crate::common;

pub(crate) const NAIVE: Kernel = Kernel {
    name: "classic-sgemm-1",
    about: "Nugteren's SGEMM tutorial, kernel 1: a thread an entry of Y, nothing is shared.",
    source: source![GEMM_PRELUDE, common::SOURCE, include_str!("nugteren.k")],
    args: &[TS],
    ordered: false,
    rules: &[LOCAL],
    candidates: &[TILES],
    plan: |of| plan(of, "sgemm_naive", 1),
    ..Kernel::GEMM
};
pub(crate) const TILED: Kernel = Kernel {
    name: "classic-sgemm-2",
    about: "Nugteren's SGEMM tutorial, kernel 2: tiles of A and X in shared memory.",
    plan: |of| plan(of, "sgemm_tiled", 1),
    ..NAIVE
};
pub(crate) const WORK: Kernel = Kernel {
    name: "classic-sgemm-3",
    about: "Nugteren's SGEMM tutorial, kernel 3: kernel 2 with several entries of Y a thread.",
    args: &[TS, WPT],
    rules: &[LOCAL, Rule::UpTo(&["wpt"], |of| of.get("ts"))],
    candidates: &[TILES, List::Values("wpt", |_| vec![4, 2, 8, 1])],
    plan: |of| plan(of, "sgemm_tiled", of.get("wpt")),
    ..NAIVE
};
pub(crate) const WIDE: Kernel = Kernel {
    name: "classic-sgemm-4",
    about: "Nugteren's SGEMM tutorial, kernel 4: kernel 2 with wider data types.",
    args: &[TS, WIDTH],
    rules: &[LOCAL, Rule::UpTo(&["width"], |of| of.get("ts"))],
    candidates: &[TILES, List::Values("width", |_| vec![4, 2, 8, 1])],
    plan: |of| plan(of, "sgemm_tiled", of.get("width")),
    ..NAIVE
};

const TS: Arg = compiled("ts", "Rows and columns of a tile.", Values::Powers(4, 32), 16, "TS");
const WPT: Arg = compiled(
    "wpt",
    "Columns of a thread: its work, in entries of Y.",
    Values::Powers(1, 32),
    1,
    "WPT",
);
const WIDTH: Arg = compiled(
    "width",
    "Neighbouring rows of a thread, by loads of at most 16 bytes.",
    Values::Powers(1, 8),
    1,
    "WIDTH",
);

const TILES: List = List::Values("ts", |_| vec![16, 32, 8, 4]);

/// Both entry points are in the text.
const LOCAL: Rule = Rule::Local(|of| 2 * of.get("ts") * of.get("ts") * of.acc_bytes());

/// Of a thread with so many entries of Y.
fn plan(of: &Case<'_>, entry: &'static str, entries: u64) -> Plan {
    let ts = of.get("ts");
    let blocks = of.m().div_ceil(ts).saturating_mul(of.rhs().div_ceil(ts));
    let blocks = blocks.saturating_mul(of.desc.batch as u64);
    Launch::new(entry, blocks, ts * (ts / entries)).into()
}
