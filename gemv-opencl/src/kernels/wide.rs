//! What the kernels for CPUs share. The text is `wide.cl`.

use gemv_core::{Arg, Values};
use gemv_gpu::rules::{compiled, launched};
use gemv_gpu::{Case, Launch, List, Plan, Rule, Split};

pub(super) const SOURCE: &str = include_str!("wide.cl");
/// Of the kernels by columns.
pub(super) const TREE: &str = include_str!("tree.cl");

pub(super) const BLOCKS_PER_SM: Arg = launched(
    "blocks_per_sm",
    "Work-groups for each compute unit, each with a band of rows.",
    Values::Range(1, 64),
    4,
);
pub(super) const PREFETCH: Arg = compiled(
    "prefetch",
    "Bytes behind each load whose line it asks for; 0 for none.",
    Values::Multiples(64, 0, 1 << 16),
    0,
    "PREFETCH",
);
// The work-groups of a row are the grid's y.
pub(super) const SPLIT_K: Arg = launched(
    "split_k",
    "Work-groups that share a row's columns; 0 takes several where rows are fewer than \
     compute units.",
    Values::Range(0, 65_535),
    0,
);

/// Most bytes of the private memory of an item: a part of its thread's stack.
pub(super) const PRIVATE: u64 = 512 << 10;

/// The rules of every kernel for CPUs.
pub(super) const CPU: Rule = Rule::All(&[
    Rule::For(|_, caps| caps.cpu, "the kernel is for CPUs"),
    Rule::For(|_, caps| caps.max_group >= 128, "the second launch takes 128 items"),
]);

/// Rows of a vector, where lanes are not its elements.
pub(super) const ROWS: u64 = 16;

/// `rows` is how many a work-group has at least, and `tile` how many it should have before rows are split.
pub(super) fn plan(of: &Case<'_>, entry: &'static str, rows: u64, tile: u64) -> Plan {
    let asked = match of.get("split_k") {
        0 => parts(of, tile),
        split => split,
    };
    let (m, split) = (of.m(), Split::of(of.desc.n, asked as u32));
    // Rows that are split need no more bands.
    let rows = if split.parts > 1 { tile } else { rows };
    let grid = [m.div_ceil(rows).min(of.blocks("blocks_per_sm")).max(1), split.parts, 1];
    let mut launches = vec![Launch { grid, ..Launch::new(entry, 1, 1) }];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), counters: 0 }
}

/// Work-groups of a row: 1 where there is a tile of rows for each compute unit.
fn parts(of: &Case<'_>, tile: u64) -> u64 {
    let units = u64::from(of.caps.units);
    // Four parts a unit even out the load of other processes.
    let bands = of.m().div_ceil(tile).max(1);
    // Of bands that are not many, one more than another has is an idle unit.
    let even = if tile == 1 { units } else { 4 * units };
    let want = if bands >= even { 1 } else { (4 * units).div_ceil(bands) };
    want.min(of.segments()).clamp(1, 1 << 12)
}

/// Whether rows are split and whole, for tiles of so many rows.
pub(super) fn splits(of: &Case<'_>, tile: u64) -> Vec<u64> {
    // 0 in place of a count, so that a row of a table serves many shapes.
    if parts(of, tile) > 1 { vec![0, 1] } else { vec![1] }
}

/// Columns of X at a time, up to 8.
pub(super) const TILE_RHS: List =
    List::Value("tile_rhs", |of| of.rhs().next_power_of_two().min(8).min(of.get("tile_rhs")));
