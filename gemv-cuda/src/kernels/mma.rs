//! What `gemm-row-mma` and `gemm-col-mma` share, which multiply by the tensor cores: arguments, rules
//! and plan. And the tiles by which the self-test tells whether those cores keep the order.

use gemv_core::{Dtype, Layout, Params, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Arg, Case, GEMM_PRELUDE, Kernel, Launch, Plan, Rule};

/// Right-hand sides from which the tensor cores are worth trying.
const COLUMNS: u64 = 9;
/// Rows of a tile, as in the text.
const TILE_M: u64 = 16;

pub(super) const WARPS_K: Arg = compiled(
    "warps_k",
    "Warps that share the lanes of a segment.",
    Values::Powers(1, 16),
    8,
    "WARPS_K",
);
pub(super) const TILE_RHS: Arg = compiled(
    "tile_rhs",
    "Columns of X that are multiplied at a time.",
    Values::OneOf(&[16, 32]),
    16,
    "TILE_RHS",
);
pub(super) const SEGMENTS: Arg = compiled(
    "segments",
    "Segments of X that a block holds in registers.",
    Values::Powers(1, 8),
    4,
    "SEGMENTS",
);
pub(super) const STAGES: Arg = compiled(
    "stages",
    "Tiles of 16 rows of one segment that a block has in shared memory.",
    Values::Range(2, 6),
    4,
    "STAGES",
);
/// Of the kernel by rows alone.
pub(super) const WARPS_M: Arg = compiled(
    "warps_m",
    "Sets of warps that share the rows of a tile.",
    Values::Powers(1, 2),
    1,
    "WARPS_M",
);

/// Those of both, beside the layout.
pub(super) const RULES: &[Rule] = &[
    Rule::For(|desc, _| desc.dtype == Dtype::F64, "the kernel is for f64"),
    Rule::For(|_, caps| caps.fp64_mma, "the device has no tensor cores for f64"),
    ONE_MATRIX,
    OF_TWO_LEVELS,
    Rule::AtMost("threads of a block", block, |of| of.caps.max_group.min(512).into()),
    Rule::Holds(|of| block(of) >= 128, "a block has at least 128 threads"),
    Rule::AtMost("parts", |of| of.parts(of.get("segments")), |_| LANES),
    Rule::AtMost(
        "registers",
        |of| {
            // X and sums, those that wait among them.
            let lanes = LANES / of.get("warps_k");
            let visits = LANES / partials(of);
            4 * lanes * of.get("segments") + 16 * u64::from(visits.max(1).ilog2() + 1) + 32
        },
        |of| registers(block(of), of.get("min_blocks")),
    ),
    Rule::AtMost("tiles of rows", stages, |_| u32::MAX.into()),
];

/// Threads of a block.
fn block(of: &Case<'_>) -> u64 {
    // By columns there is no such argument.
    let warps_m = of.params.get_or(WARPS_M.name, WARPS_M.default);
    2 * of.get("tile_rhs") * of.get("warps_k") * u64::from(warps_m)
}

/// Sums of an output that meet in shared memory.
fn partials(of: &Case<'_>) -> u64 {
    of.get("warps_k") * if of.desc.layout == Layout::Col { 1 } else { 2 }
}

/// Stages of a panel, each a tile of rows of one segment.
fn stages(of: &Case<'_>) -> u64 {
    of.m().div_ceil(TILE_M).saturating_mul(of.segments())
}

pub(super) fn plan(of: &Case<'_>, entry: &'static str) -> Plan {
    let cols = of.get("tile_rhs");
    let panels = of.rhs().div_ceil(cols).max(1);
    let most = (of.blocks("min_blocks") / panels).max(1);
    let first = Launch::new(entry, stages(of).clamp(1, most) * panels, block(of)).waiting();
    // Bytes: the stages, two buffers of sums, and what a panel is cut into.
    let stage = match of.desc.layout {
        Layout::Col => 4 * (64 * TILE_M + 4),
        _ => TILE_M * (4 * (64 + 4) + 2),
    };
    let shared = 8 * (of.get("stages") * stage + 2 * partials(of) * TILE_M * cols) + 16;
    let first = Launch { shared: shared as u32, ..first };
    parts_plan(of, first, of.parts(of.get("segments")))
}

/// The legal ones of these shapes, with as many segments or as many as rows have.
pub(super) fn candidates(of: &Case<'_>, shapes: &[&[(&str, u32)]]) -> Vec<Params> {
    if of.rhs() < COLUMNS {
        return Vec::new();
    }
    let of_row = of.first_segments().max(1).next_power_of_two() as u32;
    let shapes = shapes.iter().map(|shape| {
        shape.iter().fold(*of.params, |params, &(name, value)| {
            params.with(name, if name == SEGMENTS.name { value.min(of_row) } else { value })
        })
    });
    let fits = |params: &Params| of.at(params).fits();
    let (mut wide, narrow): (Vec<_>, Vec<_>) =
        shapes.filter(fits).partition(|params| params.get(TILE_RHS.name) == Some(32));
    // Of wide panels a block has no registers for as many segments: long rows would have too many parts.
    if of.rhs() <= 16 {
        wide.clear();
    }
    if wide.is_empty() { narrow } else { wide }
}

/// The product of small tiles by one instruction of the tensor cores each, in the order of that
/// instruction: for the self-test alone, so it is in no list.
pub(crate) static TILES: Kernel = Kernel {
    name: "mma-tiles",
    about: "Products of 8 x 4 matrices with 16 columns each, by one instruction of the tensor cores.",
    source: gemv_gpu::source![GEMM_PRELUDE, include_str!("mma.cuh"), include_str!("mma_tiles.cu")],
    ordered: false,
    plan: |of| Launch::new("mma_tiles", of.desc.batch as u64, 32).into(),
    ..Kernel::GEMM
};
