//! The kernels of the course SDS 406. The text is `sds406.k`.

use gemv_core::{Arg, Values};
use gemv_gpu::rules::compiled;
use gemv_gpu::{Case, Kernel, List, Plan, Rule, source};

use crate::common::{self, VEC, launch};

pub(crate) const BLOCK: Kernel = Kernel {
    name: "classic-block",
    about: "SDS 406: a block a row.",
    source: source![common::SOURCE, include_str!("sds406.k")],
    args: &[THREADS, VEC],
    ordered: false,
    rules: &[LOCAL],
    candidates: &[BLOCKS, List::Values("vec", |_| vec![1, 2, 4, 8])],
    plan: |of| plan(of, "block_row", 1),
    ..Kernel::GEMV
};
pub(crate) const BLOCK_X: Kernel = Kernel {
    name: "classic-block-x",
    about: "SDS 406: a block has several rows, and x goes through shared memory.",
    args: &[THREADS, ROWS],
    candidates: &[BLOCKS, List::Values("rows", |_| vec![1, 4, 8])],
    plan: |of| plan(of, "block_x", of.get("rows")),
    ..BLOCK
};
pub(crate) const TILE: Kernel = Kernel {
    name: "classic-tile",
    about: "SDS 406: a 2-D block multiplies tiles of A and x in shared memory.",
    args: &[THREADS, TY],
    rules: &[LOCAL, Rule::UpTo(&["ty"], |of| of.get("block"))],
    candidates: &[BLOCKS, List::Values("ty", |_| vec![1, 4, 8, 16])],
    plan: |of| plan(of, "block_tile", of.get("ty")),
    ..BLOCK
};

const THREADS: Arg =
    compiled("block", "Threads of a block.", Values::Powers(16, 1024), 128, "THREADS");
const ROWS: Arg = compiled("rows", "Rows of a block.", Values::Range(1, 32), 4, "ROWS");
const TY: Arg = compiled("ty", "Rows of a block, and of a tile.", Values::Powers(1, 1024), 4, "TY");

const BLOCKS: List = List::Values("block", |_| vec![128, 32, 64, 256, 512, 1024]);

/// The text has three entry points; the one with most local memory counts.
const LOCAL: Rule = Rule::Local(|of| 2 * of.get("block") * of.acc_bytes());

fn plan(of: &Case<'_>, entry: &'static str, rows: u64) -> Plan {
    launch(entry, [of.m().div_ceil(rows), 1], of.get("block")).into()
}
