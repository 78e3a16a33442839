//! What the kernels of several right-hand sides and of batches share: arguments, limits and plans.

use gemv_core::order::LANES;
use gemv_core::{Arg, Desc, Layout, Params, Values};

use crate::kernel::{Caps, Launch, Plan, value};
use crate::rules;
use crate::split::{Split, split_sets};

/// What stands before the source of every kernel of the signature
/// [`Gemm`](crate::Signature::Gemm), behind [`PRELUDE`](crate::PRELUDE).
///
/// It is apart from the prelude, so that no program of one column changes with it.
///
/// ```
/// assert!(gemv_gpu::GEMM_PRELUDE.contains("#define GEMM_ARGUMENTS"));
/// ```
pub const GEMM_PRELUDE: &str = include_str!("kernels/gemm.h");

pub(crate) const TILE_RHS: Arg = Arg {
    name: "tile_rhs",
    about: "Columns of X that are multiplied at a time: A is read once for them.",
    values: Values::Range(1, 16),
    default: 4,
    define: Some("TILE_RHS"),
};
pub(crate) const KEPT: Arg = Arg {
    name: "lanes",
    about: "Lanes of a segment that are kept: all 64, or as many as a row has columns.",
    values: Values::Powers(1, 64),
    default: 64,
    define: Some("LANES_KEPT"),
};

/// What follows from a kernel's arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Neighbouring rows of one entry that stay together.
    pub(crate) group_rows: u64,
    /// Groups of a block.
    pub(crate) groups: u64,
    /// Values of the accumulator's type in a block's local memory.
    pub(crate) local: u64,
    /// Accumulators of a thread, and entries of X that it holds.
    pub(crate) accs: u64,
}

/// Bytes of accumulators and of X that a thread may hold: more are spilled to memory.
const MAX_BYTES: u64 = 512;
/// As many of them as a candidate has: with addresses and loads beside them, no more fit.
pub(crate) const CHOSEN_BYTES: u64 = 200;

/// A kernel's arguments, its entry point, and what follows from the parameters.
pub(crate) type Of = (&'static [Arg], &'static str, Shape);

/// Sets of rows times panels of columns.
fn sets(desc: &Desc, params: &Params, args: &[Arg], shape: Shape) -> u64 {
    let groups = (desc.m as u64).div_ceil(shape.group_rows).saturating_mul(desc.batch as u64);
    let panels = (desc.rhs as u64).div_ceil(value(args, params, "tile_rhs").into());
    groups.div_ceil(shape.groups).saturating_mul(panels)
}

pub(crate) fn plan(desc: &Desc, params: &Params, caps: &Caps, (args, entry, shape): Of) -> Plan {
    let get = |name| value(args, params, name);
    let sets = sets(desc, params, args, shape);
    let split = match get("split_k") {
        0 => split_sets(sets, desc.n, caps, 1, get("blocks_per_sm")),
        split => split,
    };
    let split = Split::of(desc.n, split);
    let outputs = (desc.m as u64).saturating_mul(desc.rhs as u64).saturating_mul(desc.batch as u64);
    let blocks = sets.saturating_mul(split.parts);
    let mut launches = vec![Launch::new(entry, blocks, get("threads"))];
    launches.extend(split.reduce(outputs).map(|reduce| Launch {
        entry: match split.super_segments {
            true => "gemm_reduce_super_segments",
            false => "gemm_reduce_segments",
        },
        ..reduce
    }));
    Plan { launches, workspace: split.workspace(outputs), counters: 0 }
}

/// Whether a device can run it.
pub(crate) fn limits(desc: &Desc, params: &Params, caps: &Caps, of: Of) -> Result<(), String> {
    let bytes = desc.vectors.acc_bytes() as u64;
    if of.2.accs * bytes > MAX_BYTES {
        let held = of.2.accs * bytes;
        return Err(format!("a thread holds {held} bytes of sums and of X, more than {MAX_BYTES}"));
    }
    rules::limits(&plan(desc, params, caps, of), caps, of.2.local * bytes)
}

/// Whether so many lanes hold the columns of a row.
pub(crate) fn keeps_enough(desc: &Desc, lanes: u32) -> Result<(), String> {
    if lanes < LANES as u32 && (lanes as usize) < desc.n {
        let (need, n) = (kept(desc), desc.n);
        return Err(format!("lanes={lanes} are fewer than the {need} of {n} columns"));
    }
    Ok(())
}

/// Lanes that hold the columns of a row: a power of two.
pub(crate) fn kept(desc: &Desc) -> u32 {
    desc.n.clamp(1, LANES).next_power_of_two() as u32
}

/// Columns of a panel near `about`, so that the panels are as full as possible.
pub(crate) fn panel(desc: &Desc, about: u32) -> u32 {
    let rhs = u32::try_from(desc.rhs.max(1)).unwrap_or(u32::MAX);
    // One panel of up to a half more is better than two.
    let panels = if rhs <= about + about / 2 { 1 } else { rhs.div_ceil(about) };
    rhs.div_ceil(panels).min(16)
}

/// One block shape with each way to split rows, as [`rules::with_splits`].
pub(crate) fn with_splits<'f>(
    params: Params,
    fills: &'f [u32],
    desc: &Desc,
    caps: &Caps,
    shape: Shape,
) -> impl Iterator<Item = Params> + 'f {
    let sets = sets(desc, &params, &[TILE_RHS], shape);
    let whole = split_sets(sets, desc.n, caps, 1, 1) <= 8;
    fills.iter().filter(move |&&fill| fill > 0 || whole).map(move |&fill| match fill {
        0 => params.with("split_k", 1),
        fill => params.with("blocks_per_sm", fill),
    })
}

/// Checks that matrices of these strides have the layout that a kernel was chosen for, which it does
/// not test.
///
/// ```
/// use gemv_core::Layout;
/// gemv_gpu::assert_layout(Layout::Col, [7, 3, 5], [0, 1, 4]);
/// ```
///
/// # Panics
/// If it is another one.
pub fn assert_layout(layout: Layout, dim: [usize; 3], strides: [isize; 3]) {
    let contiguous = |axis: usize| strides[axis] == 1 || dim[axis] <= 1;
    let ok = match layout {
        Layout::Row => contiguous(2),
        Layout::Col => contiguous(1),
        Layout::Strided => true,
    };
    let ok = ok || dim.contains(&0);
    assert!(ok, "matrices of strides {strides:?}, which are not of the layout {layout}");
}
