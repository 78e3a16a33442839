//! What the rules of several kernels share: arguments that mean the same everywhere, limits of the
//! device and of the problem, and the shapes at which one kernel takes over from another.

use std::ops::RangeInclusive;

use gemv_core::order::SEGMENT;
use gemv_core::{Desc, Dtype, Layout, Values};
use gemv_gpu::{Arg, Caps, MAX_GRID, Plan};

/// Columns of a super-segment, whose 256 segments' sums are one value of the next level.
pub(crate) const SUPER_SEGMENT: usize = SEGMENT * SEGMENT;
/// Most columns of kernels with two levels of sums.
pub(crate) const TWO_LEVELS: usize = SEGMENT * SUPER_SEGMENT;

/// Rows from which `row-smem` may be faster than `row-splitk` on an H200.
///
/// From four times as many on, it is, for rows of up to [`SMEM_BYTES`].
pub(crate) const SMEM_ROWS: usize = 32_768;
pub(crate) const SMEM_BYTES: usize = 192;

/// Rows up to which `row-streamk` may be faster than a block for each super-segment on an H200.
pub(crate) const STREAMK_ROWS: usize = 1024;
/// One segment has no sums to add; more than two levels would need a third.
pub(crate) const STREAMK_COLUMNS: RangeInclusive<usize> = SEGMENT + 1..=TWO_LEVELS;

/// Columns for which `row-warp` and `row-block` have all candidates on a device with clusters.
pub(crate) const ROW_COLUMNS: RangeInclusive<usize> = 65..=SUPER_SEGMENT;

/// Up to how many columns they have all candidates on this device.
///
/// Without clusters, a few longer rows would have one block each.
pub(crate) fn row_columns(caps: &Caps) -> usize {
    if caps.cluster > 1 { *ROW_COLUMNS.end() } else { 8192 }
}

/// An argument that is compiled into the program.
pub(crate) const fn compiled(
    name: &'static str,
    about: &'static str,
    values: Values,
    default: u32,
    define: &'static str,
) -> Arg {
    Arg { name, about, values, default, define: Some(define) }
}

/// Threads of a block, up to `most`.
pub(crate) const fn threads(default: u32, most: u32) -> Arg {
    compiled("threads", "Threads of a block.", Values::Powers(32, most), default, "THREADS")
}

/// Threads of a sub-warp, at least `least`.
pub(crate) const fn subwarp(least: u32) -> Arg {
    let about = "Neighbouring threads that share a segment of a row.";
    compiled("subwarp", about, Values::Powers(least, 32), 16, "SUBWARP")
}

/// Rows at a time, up to `most`.
pub(crate) const fn rows(about: &'static str, most: u32) -> Arg {
    compiled("rows", about, Values::Powers(1, most), 1, "ROWS")
}

/// Sub-warps along a row.
pub(crate) const fn warps_k(default: u32) -> Arg {
    let about = "Sub-warps of a block that share a row, each with other segments.";
    compiled("warps_k", about, Values::Powers(1, 64), default, "WARPS_K")
}

/// Elements of a load; [`limits`] knows how many are 16 bytes.
pub(crate) const fn vec(default: u32) -> Arg {
    let about = "Elements of a load, of at most 16 bytes.";
    compiled("vec", about, Values::Powers(1, 8), default, "VEC")
}

/// Columns of X that a kernel for batches multiplies at a time.
pub(crate) const TILE_RHS: Arg = compiled(
    "tile_rhs",
    "Columns of X that are multiplied at a time: A is read once for them.",
    Values::Range(1, 16),
    1,
    "TILE_RHS",
);

/// Lanes that a kernel for batches keeps.
pub(crate) const LANES_KEPT: Arg = compiled(
    "lanes",
    "Lanes of a segment that are kept: all 64, or as many as a row has columns.",
    Values::Powers(1, 64),
    64,
    "LANES_KEPT",
);

/// Blocks of a cluster.
pub(crate) const fn cluster_k(about: &'static str) -> Arg {
    compiled("cluster_k", about, Values::Powers(1, 8), 1, "CLUSTER_K")
}

/// Blocks of the grid, for each multiprocessor.
pub(crate) const fn blocks_per_sm(default: u32, most: u32) -> Arg {
    let about = "Most blocks of the grid for each multiprocessor.";
    let values = Values::Range(1, most);
    Arg { name: "blocks_per_sm", about, values, default, define: None }
}

/// [`blocks_per_sm`] where blocks beyond those that are resident may wait.
pub(crate) const MANY_BLOCKS: u32 = 65_535;

/// 32-bit registers of a value that is summed.
pub(crate) fn words(dtype: Dtype) -> u32 {
    dtype.acc_bytes() as u32 / 4
}

/// Most elements of a load of 16 bytes.
pub(crate) fn widest(dtype: Dtype) -> u32 {
    16 / dtype.bytes() as u32
}

/// Elements of the widest load that every row (column) of this matrix can begin with.
pub(crate) fn aligned(desc: &Desc) -> u32 {
    let size = desc.dtype.bytes() as u32;
    ((1u32 << desc.align.min(4)) / size).clamp(1, widest(desc.dtype))
}

/// Whether no value is more than its limit, which the device or the element type sets.
pub(crate) fn limits(values: &[(&str, u32, u32)]) -> Result<(), String> {
    match values.iter().find(|(_, value, most)| value > most) {
        Some((name, value, most)) => Err(format!("{name}={value} is more than {most} here")),
        None => Ok(()),
    }
}

/// Whether the matrix has the kernel's layout.
pub(crate) fn layout(desc: &Desc, layout: Layout) -> Result<(), String> {
    match desc.layout == layout {
        true => Ok(()),
        false => Err(format!("the kernel is for the layout {layout}")),
    }
}

/// Whether every launch of the plan has a legal grid.
pub(crate) fn blocks(plan: &Plan) -> Result<(), String> {
    match plan.launches.iter().map(|l| l.grid[0]).max() {
        Some(blocks) if blocks > MAX_GRID => {
            Err(format!("{blocks} blocks are more than {MAX_GRID}"))
        }
        _ => Ok(()),
    }
}

/// Whether static shared memory of this size fits.
pub(crate) fn shared_memory(bytes: u64, caps: &Caps) -> Result<(), String> {
    if bytes > u64::from(caps.local_bytes) {
        return Err(format!("{bytes} bytes of shared memory of {}", caps.local_bytes));
    }
    Ok(())
}

/// Whether a thread has so many registers for data, of `most`.
pub(crate) fn registers(held: u32, most: u32) -> Result<(), String> {
    if held > most {
        return Err(format!("{held} registers of data are more than {most}"));
    }
    Ok(())
}
