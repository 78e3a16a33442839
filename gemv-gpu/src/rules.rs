//! Rules and candidates that several kernels share.

use gemv_core::{Arg, Desc, Dtype, Layout, Params, Values};

use crate::kernel::{Caps, Launch, MAX_GRID, Plan};
use crate::split::{MAX_SPLIT, Split, split_to_fill};

/// Bytes of accumulators that a thread may have: more are spilled to memory.
pub(crate) const MAX_ACC_BYTES: u64 = 512;

/// The rule that so many bytes of accumulators break.
pub(crate) fn too_many_accs(bytes: u64) -> String {
    format!("a thread needs {bytes} bytes of accumulators, more than {MAX_ACC_BYTES}")
}

/// Blocks that share a row. A row of a table that says 0 serves many shapes and devices.
pub(crate) const SPLIT_K: Arg = Arg {
    name: "split_k",
    about: "Blocks that share a row's columns; 0 takes as many as blocks_per_sm asks for.",
    values: Values::Range(0, MAX_SPLIT),
    default: 0,
    define: None,
};

/// What fills the device where `split_k` is 0.
pub(crate) const BLOCKS_PER_SM: Arg = Arg {
    name: "blocks_per_sm",
    about: "Blocks that each multiprocessor gets at least where split_k is 0.",
    values: Values::Range(1, 1024),
    default: 8,
    define: None,
};

/// Whether a device can run a plan: threads of a block, blocks of a grid, and the bytes of local
/// memory that a block needs.
///
/// ```
/// use gemv_gpu::{Caps, Language, Launch, Plan, limits};
/// let caps = Caps::new(Language::Cuda); // 64 threads a block, 16 KiB
/// let plan = |threads| Plan { launches: vec![Launch::new("row", 1, threads)], ..Plan::default() };
/// assert_eq!(limits(&plan(64), &caps, 16 << 10), Ok(()));
/// let why = limits(&plan(128), &caps, 0).unwrap_err();
/// assert_eq!(why, "a block of 128 threads where the device has at most 64");
/// ```
///
/// # Errors
/// The limit that is passed, as the end of a sentence.
pub fn limits(plan: &Plan, caps: &Caps, local: u64) -> Result<(), String> {
    for launch in &plan.launches {
        let threads: u32 = launch.block.iter().product();
        if threads > caps.max_group {
            let most = caps.max_group;
            return Err(format!(
                "a block of {threads} threads where the device has at most {most}"
            ));
        }
        let [x, y, z] = launch.grid;
        if x > MAX_GRID || y.max(z) > 65_535 {
            return Err(format!("{x} x {y} x {z} blocks are more than {MAX_GRID} x 65535 x 65535"));
        }
    }
    if local > u64::from(caps.local_bytes) {
        let has = caps.local_bytes;
        return Err(format!("a block needs {local} bytes of local memory, the device has {has}"));
    }
    Ok(())
}

/// The plan of a kernel whose block computes `block_rows` rows, with `split_k` blocks a row.
pub(crate) fn plan(
    desc: &Desc,
    caps: &Caps,
    (entry, threads): (&'static str, u32),
    block_rows: u64,
    (split_k, blocks_per_sm): (u32, u32),
) -> Plan {
    let split = match split_k {
        0 => split_to_fill(desc, caps, block_rows, 1, blocks_per_sm),
        split => split,
    };
    let (m, split) = (desc.m as u64, Split::of(desc.n, split));
    let blocks = m.div_ceil(block_rows) * split.parts;
    let mut launches = vec![Launch::new(entry, blocks, threads)];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), counters: 0 }
}

/// Most elements of one load of 16 bytes.
pub(crate) fn widest(dtype: Dtype) -> u32 {
    16 / dtype.bytes() as u32
}

/// Whether a load of `vec` elements is one of at most 16 bytes.
pub(crate) fn one_load(desc: &Desc, vec: u32) -> Result<(), String> {
    let most = widest(desc.dtype);
    if vec > most {
        return Err(format!("vec={vec} is more than {most}, the elements of a load of 16 bytes"));
    }
    Ok(())
}

/// Whether the matrix has the one layout that the kernel is for; `None` where it takes any strides.
pub(crate) fn for_layout(desc: &Desc, layout: Option<Layout>) -> Result<(), String> {
    match layout {
        Some(layout) if layout != desc.layout => {
            Err(format!("the kernel is for the layout {layout}"))
        }
        _ => Ok(()),
    }
}

/// The widest load that every row or column allows by its alignment. Kernels take misaligned rows
/// of 4-byte and wider elements by rotated vectors; the candidates have those as well.
pub(crate) fn aligned_vec(desc: &Desc) -> u32 {
    let by_align = (1u32 << desc.align.min(4)) / desc.dtype.bytes() as u32;
    by_align.clamp(1, widest(desc.dtype))
}

/// One block shape with each way to split rows: not at all (0), or so many blocks a multiprocessor.
///
/// Rows stay whole only where that leaves at least an eighth of the multiprocessors with work.
pub(crate) fn with_splits<'f>(
    params: Params,
    fills: &'f [u32],
    desc: &Desc,
    caps: &Caps,
    block_rows: u64,
) -> impl Iterator<Item = Params> + 'f {
    let whole = split_to_fill(desc, caps, block_rows, 1, 1) <= 8;
    fills.iter().filter(move |&&fill| fill > 0 || whole).map(move |&fill| match fill {
        0 => params.with("split_k", 1),
        fill => params.with("blocks_per_sm", fill),
    })
}

/// The legal ones, at most `most`, without those of the same program and plan as one before them.
pub(crate) fn distinct(
    all: impl IntoIterator<Item = Params>,
    most: usize,
    legal: impl Fn(&Params) -> Result<(), String>,
    plan: impl Fn(&Params) -> Plan,
) -> Vec<Params> {
    let mut out: Vec<(Params, Params, Plan)> = Vec::new();
    for params in all {
        if out.len() == most {
            break;
        }
        if legal(&params).is_err() {
            continue;
        }
        let program = params.without("split_k").without("blocks_per_sm");
        let plan = plan(&params);
        if !out.iter().any(|o| o.1 == program && o.2 == plan) {
            out.push((params, program, plan));
        }
    }
    out.into_iter().map(|o| o.0).collect()
}
