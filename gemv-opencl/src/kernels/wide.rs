//! What the kernels for CPUs share. The text is `wide.cl`.

use gemv_core::order::SEGMENT;
use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, Launch, Plan, Split, value};

pub(super) const SOURCE: &str = include_str!("wide.cl");
/// Of the kernels by columns.
pub(super) const TREE: &str = include_str!("tree.cl");

pub(super) const BLOCKS_PER_SM: Arg = Arg {
    name: "blocks_per_sm",
    about: "Work-groups for each compute unit, each with a band of rows.",
    values: Values::Range(1, 64),
    default: 4,
    define: None,
};
// The work-groups of a row are the grid's y.
pub(super) const SPLIT_K: Arg = Arg {
    name: "split_k",
    about: "Work-groups that share a row's columns; 0 takes several where rows are fewer than \
            compute units.",
    values: Values::Range(0, 65_535),
    default: 0,
    define: None,
};

/// The rules of every kernel for CPUs.
pub(super) fn legal(caps: &Caps) -> Result<(), String> {
    if !caps.cpu {
        return Err("the kernel is for CPUs".into());
    }
    if caps.max_group < 128 {
        return Err(format!("the second launch takes 128 items, the device {}", caps.max_group));
    }
    Ok(())
}

/// `rows` is how many a work-group has at least.
pub(super) fn plan(
    (args, entry, rows): (&[Arg], &'static str, usize),
    desc: &Desc,
    params: &Params,
    caps: &Caps,
) -> Plan {
    let split = match value(args, params, "split_k") {
        0 => parts(desc, rows, caps),
        split => split,
    };
    let split = Split::of(desc.n, split);
    let groups = u64::from(value(args, params, "blocks_per_sm")) * u64::from(caps.units);
    let m = desc.m as u64;
    let grid = [m.div_ceil(rows as u64).min(groups).max(1), split.parts, 1];
    let mut launches = vec![Launch { grid, ..Launch::new(entry, 1, 1) }];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), counters: 0 }
}

/// Work-groups of a row: 1 unless there is less than a compute unit's share of rows for each.
fn parts(desc: &Desc, rows: usize, caps: &Caps) -> u32 {
    let segments = desc.n.div_ceil(SEGMENT);
    let units = caps.units as usize;
    // Four parts a unit even out the load of other processes.
    let bands = desc.m.div_ceil(rows).max(1);
    // Of bands that are not many, one more than another has is an idle unit.
    let even = if rows == 1 { units } else { 4 * units };
    let want = if bands >= even { 1 } else { (4 * units).div_ceil(bands) };
    want.min(segments).clamp(1, 1 << 12) as u32
}

/// A candidate for each of these shapes, with rows split and whole; none for another layout.
pub(super) fn candidates(
    (layout, rows): (Layout, usize),
    shapes: [Params; 3],
    desc: &Desc,
    caps: &Caps,
    legal: fn(&Desc, &Params, &Caps) -> Result<(), String>,
) -> Vec<Params> {
    if desc.layout != layout {
        return Vec::new();
    }
    // 0 in place of a count, so that a row of a table serves many shapes.
    let splits: &[u32] = if parts(desc, rows, caps) == 1 { &[1] } else { &[0, 1] };
    let shape = |split| shapes.map(move |p| p.with("split_k", split));
    let mut all: Vec<Params> = splits.iter().flat_map(|&split| shape(split)).collect();
    all.retain(|p| legal(desc, p, caps).is_ok());
    all
}
