//! `col-tile`: column-major matrices on GPUs, in tiles of some rows by one segment. The text is
//! `col_tile.cl`.

use gemv_core::{Params, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Case, Kernel, Launch, List, Plan, Rule, source};

use super::vectors::SOURCE;

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "col-tile",
    about: "Column-major matrices on GPUs: blocks read tiles of tile_m rows by 256 columns, one ahead \
            in registers; further launches, a last block or the rows' own block add sums of segments.",
    source: source![SOURCE, include_str!("col_tile.cl")],
    args: &[
        threads(256, 512),
        compiled("tile_m", "Rows of a tile.", Values::Powers(16, 256), 32, "TILE_M"),
        vec(1),
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
        blocks_per_sm(8, MANY_BLOCKS),
    ],
    rules: &[
        Rule::All(TILES),
        Rule::Holds(
            |of| of.get("last_block") == 0 || of.caps.fences,
            "on this device a block does not see what the others of its launch wrote",
        ),
        Rule::Holds(
            |of| of.get("last_block") == 0 || of.get("row_accs") == 0 && of.segments() > 1,
            "last_block needs more than 256 columns and row_accs=0",
        ),
        Rule::Local(|of| {
            let [threads, tile_m, vec] = of.all(["threads", "tile_m", "vec"]);
            let [row_accs, last_block] = of.all(["row_accs", "last_block"]);
            let sums = 2 * (vec * threads + 32) + (tile_m * row_accs).max(1);
            sums * of.acc_bytes() + 2 * SEGMENT * of.bytes() + last_block * 4 * (COUNTED + 1)
        }),
    ],
    candidates: &[ON_GPUS, List::Made(shapes), List::Launches, List::First(16)],
    plan,
    ..Kernel::GEMV
}];

/// Threads of a multiprocessor (compute capability 8.0 and 9.0). Others have fewer, and some blocks wait.
const SM_THREADS: u64 = 2048;
/// Tiles that a block counts itself in for at once.
const COUNTED: u64 = 32;

fn plan(of: &Case<'_>) -> Plan {
    let (m, segments, sets) = (of.m(), of.segments(), tile_sets(of));
    let super_segments = segments.div_ceil(SEGMENT);
    let whole_rows = of.get("row_accs") > 0;
    let tiles = sets.saturating_mul(if whole_rows { 1 } else { segments });
    let blocks = tiles.min(of.blocks("blocks_per_sm")).max(1);
    let mut plan = Plan::from(Launch::new("col_tile", blocks, of.get("threads")));
    if segments > 1 && !whole_rows {
        let further = |entry, blocks: u64| Launch::new(entry, blocks.max(1), 256);
        plan.workspace = m * segments;
        if super_segments > 1 {
            plan.workspace += m * super_segments;
        }
        if of.get("last_block") > 0 {
            let of_rows = super_segments + u64::from(super_segments > 1);
            plan.counters = sets.saturating_mul(of_rows);
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

type Shape = (u64, u64, u64);

/// Rows from which blocks with all segments of their rows may be faster.
const TALL: u64 = 4096;

/// Bytes up to which a last block may be faster than further launches.
const SMALL: u64 = 32 << 20;

/// Threads, tile_m and unroll: for the widest loads, for single elements, of which a thread needs more
/// at once, and for blocks with all segments of their rows.
const WIDE: [Shape; 9] = [
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
const SINGLE: [Shape; 10] = [
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
const TALL_WIDE: [Shape; 4] = [(128, 64, 2), (128, 32, 2), (128, 128, 2), (256, 64, 1)];
const TALL_SINGLE: [Shape; 4] = [(256, 64, 1), (128, 32, 2), (256, 32, 4), (256, 64, 2)];

fn shapes(of: &Case<'_>) -> Vec<Params> {
    let (vec, segments) = (of.aligned(), of.segments());
    let shape = |vec, (threads, tile_m, unroll): Shape| {
        of.with([
            ("threads", threads),
            ("tile_m", tile_m),
            ("vec", vec),
            ("unroll", unroll),
            ("blocks_per_sm", SM_THREADS / threads),
        ])
    };
    let mut all = Vec::new();
    if segments > 1 && of.m() >= TALL && of.n() <= of.m() {
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
    let bytes = of.m().saturating_mul(of.n()).saturating_mul(of.bytes());
    if of.caps.fences && segments > 1 && bytes <= SMALL {
        let last_block: Vec<_> = shapes.iter().map(|params| params.with("last_block", 1)).collect();
        shapes.truncate(2);
        shapes.extend(last_block);
    }
    all.append(&mut shapes);
    all
}
