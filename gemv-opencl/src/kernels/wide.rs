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
pub(super) const PREFETCH: Arg = Arg {
    name: "prefetch",
    about: "Bytes behind each load whose line it asks for; 0 for none.",
    values: Values::Multiples(64, 0, 1 << 16),
    default: 0,
    define: Some("PREFETCH"),
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

/// Most bytes of the private memory of an item: a part of its thread's stack.
pub(super) const PRIVATE: usize = 512 << 10;

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

/// Rows of a vector, where lanes are not its elements.
pub(super) const ROWS: usize = 16;

/// `rows` is how many a work-group has at least, and `tile` how many it should have before rows are split.
pub(super) fn plan(
    (args, entry, rows, tile): (&[Arg], &'static str, usize, usize),
    desc: &Desc,
    params: &Params,
    caps: &Caps,
) -> Plan {
    let asked = match value(args, params, "split_k") {
        0 => parts(desc, tile, caps),
        split => split,
    };
    let split = Split::of(desc.n, asked);
    let groups = u64::from(value(args, params, "blocks_per_sm")) * u64::from(caps.units);
    let m = desc.m as u64;
    // Rows that are split need no more bands.
    let rows = if split.parts > 1 { tile } else { rows } as u64;
    let grid = [m.div_ceil(rows).min(groups).max(1), split.parts, 1];
    let mut launches = vec![Launch { grid, ..Launch::new(entry, 1, 1) }];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), counters: 0 }
}

/// Work-groups of a row: 1 where there is a tile of rows for each compute unit.
pub(super) fn parts(desc: &Desc, tile: usize, caps: &Caps) -> u32 {
    let segments = desc.n.div_ceil(SEGMENT);
    let units = caps.units as usize;
    // Four parts a unit even out the load of other processes.
    let bands = desc.m.div_ceil(tile).max(1);
    // Of bands that are not many, one more than another has is an idle unit.
    let even = if tile == 1 { units } else { 4 * units };
    let want = if bands >= even { 1 } else { (4 * units).div_ceil(bands) };
    want.min(segments).clamp(1, 1 << 12) as u32
}

/// Those of these shapes that are legal, with rows split and whole; none for another layout.
pub(super) fn candidates(
    (layout, tile): (Layout, fn(&Params) -> usize),
    shapes: &[Params],
    desc: &Desc,
    caps: &Caps,
    legal: fn(&Desc, &Params, &Caps) -> Result<(), String>,
) -> Vec<Params> {
    if desc.layout != layout {
        return Vec::new();
    }
    let mut all = Vec::new();
    for shape in shapes {
        // 0 in place of a count, so that a row of a table serves many shapes.
        if parts(desc, tile(shape), caps) > 1 {
            all.push(shape.with("split_k", 0));
        }
        all.push(shape.with("split_k", 1));
    }
    all.retain(|p| legal(desc, p, caps).is_ok());
    all
}
