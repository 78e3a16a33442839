//! `col-tile`: column-major matrices on GPUs, in tiles of some rows by one segment. The text is
//! `col_tile.cl`.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{Caps, Kernel, Launch, Plan, Signature, limits, source, value};

use super::vectors::{
    BLOCKS_PER_SM, SOURCE, VEC, aligned, compiled, distinct, of_layout, registers, threads, words,
};

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

const KERNEL: Kernel = Kernel {
    name: "col-tile",
    about: "Column-major matrices on GPUs: blocks read tiles of tile_m rows by 256 columns, one ahead \
            in registers; further launches, a last block or the rows' own block add sums of segments.",
    source: source![SOURCE, include_str!("col_tile.cl")],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    threads(256, 512),
    compiled("tile_m", "Rows of a tile.", Values::Powers(16, 256), 32, "TILE_M"),
    VEC,
    compiled(
        "unroll",
        "Rounds of 64 columns whose loads are in flight at once.",
        Values::Powers(1, 4),
        1,
        "UNROLL",
    ),
    compiled(
        "row_accs",
        "Accumulators of segments' sums that a block keeps for each row, which it then has to \
         itself; 0 leaves the sums to further launches.",
        Values::OneOf(&[0, 2, 4, 8, 16, 32, 64]),
        0,
        "ROW_ACCS",
    ),
    compiled(
        "last_block",
        "1: the last block of a set of rows adds their segments' sums, in place of further launches.",
        Values::Range(0, 1),
        0,
        "LAST_BLOCK",
    ),
    BLOCKS_PER_SM,
];

/// Most columns of kernels with two levels of sums.
const TWO_LEVELS: usize = SEGMENT * SEGMENT * SEGMENT;
/// Threads of a multiprocessor (compute capability 8.0 and 9.0). Others have fewer, and some blocks wait.
const SM_THREADS: u32 = 2048;
/// Tiles that a block counts itself in for at once.
const COUNTED: u32 = 32;
/// Threads of a block of the further launches.
const FURTHER: u32 = 256;

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(ARGS, params, name);
    let (threads, tile_m, vec) = (get("threads"), get("tile_m"), get("vec"));
    let (unroll, row_accs) = (get("unroll"), get("row_accs"));
    of_layout(desc, Layout::Col, vec)?;
    let lanes = LANES as u32;
    let cols = threads / (tile_m / vec);
    if cols < vec || cols > lanes {
        return Err(format!(
            "threads={threads} read {cols} columns of tile_m={tile_m} by vec={vec} at once: not \
             {vec} to {lanes}"
        ));
    }
    // A thread of a block of 512 has 128 registers, of smaller ones 255.
    let load = (vec * desc.dtype.bytes() as u32).div_ceil(4);
    let held = lanes / cols * (unroll * load + vec * words(desc.dtype));
    registers(held, if threads > 256 { 72 } else { 192 })?;
    if desc.n > TWO_LEVELS {
        return Err(format!("{} columns are more than two levels of sums", desc.n));
    }
    let segments = desc.n.div_ceil(SEGMENT);
    let most = if row_accs == lanes { SEGMENT } else { row_accs as usize };
    if row_accs > 0 && !(2..=most).contains(&segments) {
        return Err(format!("{} columns for row_accs={row_accs} of 2 to {most} segments", desc.n));
    }
    if get("last_block") > 0 {
        if !caps.fences {
            return Err(
                "on this device a block does not see what the others of its launch wrote".into()
            );
        }
        if row_accs > 0 || segments < 2 {
            return Err("last_block needs more than 256 columns and row_accs=0".into());
        }
    }
    let sums = 2 * (vec * threads + 32) + (tile_m * row_accs).max(1);
    let local = sums * desc.dtype.acc_bytes() as u32 + 2 * (SEGMENT * desc.dtype.bytes()) as u32;
    let local = local + get("last_block") * 4 * (COUNTED + 1);
    if sets(desc, tile_m) > gemv_gpu::MAX_GRID {
        return Err(format!("{} rows are too many sets of {tile_m}", desc.m));
    }
    limits(&plan(desc, params, caps), caps, local.into())
}

/// Sets of so many rows.
fn sets(desc: &Desc, tile_m: u32) -> u64 {
    (desc.m as u64).div_ceil(tile_m.into())
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ARGS, params, name);
    let (m, segments) = (desc.m as u64, (desc.n as u64).div_ceil(SEGMENT as u64));
    let super_segments = segments.div_ceil(SEGMENT as u64);
    let most = u64::from(caps.units) * u64::from(get("blocks_per_sm"));
    let whole_rows = get("row_accs") > 0;
    let tiles = sets(desc, get("tile_m")).saturating_mul(if whole_rows { 1 } else { segments });
    let mut plan = Plan::default();
    plan.launches.push(Launch::new("col_tile", tiles.min(most).max(1), get("threads")));
    if segments > 1 && !whole_rows {
        let last_block = get("last_block") > 0;
        let further = |entry, blocks: u64| Launch::new(entry, blocks.max(1), FURTHER);
        plan.workspace = m * segments;
        if super_segments > 1 {
            plan.workspace += m * super_segments;
        }
        if last_block {
            let of_rows = super_segments + u64::from(super_segments > 1);
            plan.counters = sets(desc, get("tile_m")).saturating_mul(of_rows);
            return plan;
        }
        if super_segments > 1 {
            let blocks = m.div_ceil(32) * super_segments;
            plan.launches.push(further("tiles_super_segments", blocks));
        }
        plan.launches.push(further("tiles_reduce", m.div_ceil(32)));
    }
    plan
}

/// Rows from which blocks with all segments of their rows may be faster.
const TALL: usize = 4096;

/// Bytes up to which a last block may be faster than further launches.
const SMALL: usize = 32 << 20;

/// Threads, tile_m and unroll: for the widest loads, for single elements, of which a thread needs more
/// at once, and for blocks with all segments of their rows.
const WIDE: [(u32, u32, u32); 9] = [
    (128, 32, 2),
    (128, 128, 2),
    (256, 128, 1),
    (128, 32, 4),
    (256, 64, 2),
    (128, 64, 2),
    (256, 32, 2),
    (128, 16, 2),
    (256, 64, 4),
];
const SINGLE: [(u32, u32, u32); 10] = [
    (256, 64, 2),
    (256, 32, 4),
    (256, 64, 1),
    (256, 16, 4),
    (128, 32, 2),
    (128, 16, 4),
    (256, 32, 2),
    (128, 32, 4),
    (256, 128, 1),
    (512, 32, 4),
];
const TALL_WIDE: [(u32, u32, u32); 4] = [(128, 64, 2), (128, 32, 2), (128, 128, 2), (256, 64, 1)];
const TALL_SINGLE: [(u32, u32, u32); 4] = [(256, 64, 1), (128, 32, 2), (256, 32, 4), (256, 64, 2)];

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Col {
        return Vec::new();
    }
    let vec = aligned(desc);
    let shape = |vec, (threads, tile_m, unroll): (u32, u32, u32)| {
        let params = Params::new(KERNEL.name).with("threads", threads).with("tile_m", tile_m);
        let params = params.with("vec", vec).with("unroll", unroll);
        params.with("blocks_per_sm", SM_THREADS / threads)
    };
    let segments = desc.n.div_ceil(SEGMENT);
    let mut all = Vec::new();
    if segments > 1 && desc.m >= TALL && desc.n <= desc.m {
        let shapes = if vec > 1 { TALL_WIDE } else { TALL_SINGLE };
        let row_accs = if segments <= 4 { 4 } else { LANES as u32 };
        all.extend(shapes.map(|of| shape(vec, of).with("row_accs", row_accs)));
    }
    let mut shapes = Vec::new();
    if vec > 1 {
        shapes.extend(WIDE.map(|of| shape(vec, of)));
        shapes.extend(SINGLE[..3].iter().map(|&of| shape(1, of)));
    } else {
        shapes.extend(SINGLE.map(|of| shape(1, of)));
    }
    // Of a small matrix a further launch takes longer than what the last block adds.
    let bytes = desc.m.saturating_mul(desc.n).saturating_mul(desc.dtype.bytes());
    if caps.fences && segments > 1 && bytes <= SMALL {
        let last_block: Vec<_> = shapes.iter().map(|params| params.with("last_block", 1)).collect();
        shapes.truncate(2);
        shapes.extend(last_block);
    }
    all.append(&mut shapes);
    distinct(&KERNEL, desc, caps, 16, all)
}
