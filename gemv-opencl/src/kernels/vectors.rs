//! What the kernels for GPUs share: arguments that mean the same everywhere, and limits. The text is
//! `vectors.cl`.
//!
//! They run on CPUs as well, and are tested there, but are candidates on GPUs only.

use gemv_core::{Arg, Desc, Dtype, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel};

pub(super) const SOURCE: &str = include_str!("vectors.cl");
/// Of the kernels with whole rows in a thread.
pub(super) const PARTIALS: &str = include_str!("partials.cl");

/// An argument that is compiled into the program.
pub(super) const fn compiled(
    name: &'static str,
    about: &'static str,
    values: Values,
    default: u32,
    define: &'static str,
) -> Arg {
    Arg { name, about, values, default, define: Some(define) }
}

/// Threads of a block, up to `most`; whole warps.
pub(super) const fn threads(default: u32, most: u32) -> Arg {
    compiled("threads", "Threads of a block.", Values::Powers(32, most), default, "THREADS")
}

/// Rows at a time.
pub(super) const fn rows(about: &'static str) -> Arg {
    compiled("rows", about, Values::Powers(1, 8), 1, "ROWS")
}

pub(super) const VEC: Arg =
    compiled("vec", "Elements of a load, of at most 16 bytes.", Values::Powers(1, 8), 1, "VEC");

pub(super) const BLOCKS_PER_SM: Arg = Arg {
    name: "blocks_per_sm",
    about: "Most blocks of the grid for each multiprocessor.",
    values: Values::Range(1, 65_535),
    default: 8,
    define: None,
};

/// 32-bit registers of a value that is summed.
pub(super) fn words(dtype: Dtype) -> u32 {
    dtype.acc_bytes() as u32 / 4
}

/// Most elements of a load of 16 bytes.
pub(super) fn widest(dtype: Dtype) -> u32 {
    16 / dtype.bytes() as u32
}

/// Elements of the widest load that every row (column) of this matrix can begin with.
pub(super) fn aligned(desc: &Desc) -> u32 {
    let size = desc.dtype.bytes() as u32;
    ((1u32 << desc.align.min(4)) / size).clamp(1, widest(desc.dtype))
}

/// Whether the matrix has the kernel's layout, and a load is one of at most 16 bytes.
pub(super) fn of_layout(desc: &Desc, layout: Layout, vec: u32) -> Result<(), String> {
    if desc.layout != layout {
        return Err(format!("the kernel is for the layout {layout}"));
    }
    let most = widest(desc.dtype);
    if vec > most {
        return Err(format!("vec={vec} is more than {most}, the elements of a load of 16 bytes"));
    }
    Ok(())
}

/// Whether a thread has so many registers for data, of `most`.
pub(super) fn registers(held: u32, most: u32) -> Result<(), String> {
    if held > most {
        return Err(format!("{held} registers of data are more than {most}"));
    }
    Ok(())
}

/// The first `most` of these that fit, each launch once; none on a CPU.
pub(super) fn distinct(
    kernel: &Kernel,
    desc: &Desc,
    caps: &Caps,
    most: usize,
    all: impl IntoIterator<Item = Params>,
) -> Vec<Params> {
    let mut out: Vec<(u64, Params)> = Vec::new();
    for params in all {
        if caps.cpu || out.len() == most {
            break;
        }
        if kernel.fits(desc, &params, caps).is_ok() {
            let launch = kernel.launch_id(desc, &params, caps);
            if out.iter().all(|o| o.0 != launch) {
                out.push((launch, params));
            }
        }
    }
    out.into_iter().map(|o| o.1).collect()
}
