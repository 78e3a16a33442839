//! What `gemm-row-mma` and `gemm-col-mma` share, which multiply by the tensor cores: arguments, rules
//! and plan. And the tiles by which the self-test tells whether those cores keep the order.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Dtype, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, value};

use super::rules::{SUPER_SEGMENT, TWO_LEVELS, blocks, compiled, layout, limits};

/// Right-hand sides from which the tensor cores are worth trying.
const COLUMNS: usize = 9;
/// Rows of a tile, as in the text.
const TILE_M: u32 = 16;

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
pub(super) const MIN_BLOCKS: Arg = compiled(
    "min_blocks",
    "Blocks that are to be resident on a multiprocessor, and are launched for each.",
    Values::Range(1, 2),
    1,
    "MIN_BLOCKS",
);
/// Of the kernel by rows alone.
pub(super) const WARPS_M: Arg = compiled(
    "warps_m",
    "Sets of warps that share the rows of a tile.",
    Values::Powers(1, 2),
    1,
    "WARPS_M",
);

/// What follows from the arguments, as in the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    layout: Layout,
    warps_k: u32,
    warps_m: u32,
    cols: u32,
    segments: u32,
    stages: u32,
    min_blocks: u32,
}

impl Shape {
    pub(super) fn of(layout: Layout, params: &Params) -> Shape {
        let get = |arg: Arg| value(&[arg], params, arg.name);
        Shape {
            layout,
            warps_k: get(WARPS_K),
            // By columns there is no such argument.
            warps_m: get(WARPS_M),
            cols: get(TILE_RHS),
            segments: get(SEGMENTS),
            stages: get(STAGES),
            min_blocks: get(MIN_BLOCKS),
        }
    }

    fn threads(&self) -> u32 {
        2 * self.cols * self.warps_k * self.warps_m
    }

    /// Sums of an output that meet in shared memory.
    fn partials(&self) -> u32 {
        self.warps_k * if self.layout == Layout::Col { 1 } else { 2 }
    }

    /// Bytes of shared memory: the stages, two buffers of sums, and what a panel is cut into.
    fn shared(&self) -> u32 {
        let stage = match self.layout {
            Layout::Col => 4 * (64 * TILE_M + 4),
            _ => TILE_M * (4 * (64 + 4) + 2),
        };
        8 * (self.stages * stage + 2 * self.partials() * TILE_M * self.cols) + 16
    }

    /// 32-bit registers of X and of sums, those that wait among them.
    fn registers(&self) -> u32 {
        let lanes = LANES as u32 / self.warps_k.max(1);
        let visits = LANES as u32 / self.partials().max(1);
        4 * lanes * self.segments + 16 * (visits.max(1).ilog2() + 1)
    }

    /// Super-segments of a row and parts of each.
    fn parts(&self, n: usize) -> (u64, u64) {
        let segments = n.min(SUPER_SEGMENT).div_ceil(SEGMENT) as u64;
        let parts = segments.div_ceil(self.segments.max(1).into()).next_power_of_two();
        (n.div_ceil(SUPER_SEGMENT).max(1) as u64, parts)
    }

    /// Stages of a panel, each a tile of rows of one segment.
    fn all_stages(desc: &Desc) -> u64 {
        let tiles = (desc.m as u64).div_ceil(TILE_M.into());
        tiles.saturating_mul(desc.n.div_ceil(SEGMENT) as u64)
    }
}

pub(super) fn legal(
    of: Layout,
    entry: &'static str,
    desc: &Desc,
    params: &Params,
    caps: &Caps,
) -> Result<(), String> {
    layout(desc, of)?;
    if desc.dtype != Dtype::F64 {
        return Err("the kernel is for f64".into());
    }
    if !caps.fp64_mma {
        return Err("the device has no tensor cores for f64".into());
    }
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    if desc.n > TWO_LEVELS {
        return Err(format!("{} columns are more than {TWO_LEVELS}", desc.n));
    }
    let shape = Shape::of(of, params);
    let threads = shape.threads();
    limits(&[("threads", threads, caps.max_group.min(512))])?;
    if threads < 128 {
        return Err(format!("{threads} threads are fewer than 128"));
    }
    let parts = shape.parts(desc.n).1;
    if parts > LANES as u64 {
        return Err(format!("{parts} parts are more than 64 lanes"));
    }
    let held = shape.registers() + 32;
    let most = ((65_536 / (threads * shape.min_blocks)) & !7).min(255);
    if held > most {
        return Err(format!("{held} registers of {most}"));
    }
    let bytes = shape.shared();
    if bytes > caps.dynamic_bytes {
        return Err(format!("{bytes} bytes of shared memory of {}", caps.dynamic_bytes));
    }
    if Shape::all_stages(desc) > u64::from(u32::MAX) {
        return Err(format!("{} rows are too many", desc.m));
    }
    blocks(&plan(of, entry, desc, params, caps))
}

pub(super) fn plan(
    layout: Layout,
    entry: &'static str,
    desc: &Desc,
    params: &Params,
    caps: &Caps,
) -> Plan {
    let shape = Shape::of(layout, params);
    let (super_segments, parts) = shape.parts(desc.n);
    let panels = (desc.rhs as u64).div_ceil(shape.cols.into()).max(1);
    let most = (u64::from(caps.units) * u64::from(shape.min_blocks) / panels).max(1);
    let ranges = Shape::all_stages(desc).clamp(1, most);
    let mut first = Launch::new(entry, ranges * panels, shape.threads());
    first.shared = shape.shared();
    let mut launches = vec![first];
    let outputs = (desc.m as u64).saturating_mul(desc.rhs as u64);
    if super_segments > 1 {
        launches.push(Launch::new("gemm_parts_long_reduce", outputs.div_ceil(4), 128));
    } else if parts > 1 {
        launches.push(Launch::new("gemm_parts_reduce", outputs.div_ceil(128), 128));
    }
    let workspace = match launches.len() {
        1 => 0,
        _ => (super_segments * parts).saturating_mul(outputs),
    };
    let launches = launches.into_iter().map(Launch::waiting).collect();
    Plan { launches, workspace, counters: 0 }
}

/// The legal ones of these shapes: columns of a panel of X, and the other arguments, with as many segments
/// or as many as rows have.
pub(super) fn candidates(
    kernel: &Kernel,
    layout: Layout,
    desc: &Desc,
    caps: &Caps,
    shapes: &[(u32, &[(&str, u32)])],
) -> Vec<Params> {
    let meant = desc.layout == layout && desc.dtype == Dtype::F64 && desc.batch == 1;
    if !meant || desc.rhs < COLUMNS {
        return Vec::new();
    }
    let of_row = desc.n.min(SUPER_SEGMENT).div_ceil(SEGMENT).max(1).next_power_of_two() as u32;
    let of_panel = |cols: u32| {
        let mut all = Vec::new();
        for (_, shape) in shapes.iter().filter(|shape| shape.0 == cols) {
            let params = Params::new(kernel.name).with("tile_rhs", cols);
            let params = shape.iter().fold(params, |params, &(name, value)| {
                params.with(name, if name == "segments" { value.min(of_row) } else { value })
            });
            if !all.contains(&params) && kernel.fits(desc, &params, caps).is_ok() {
                all.push(params);
            }
        }
        all
    };
    // Of wide panels a block has no registers for as many segments: long rows would have too many parts.
    let wide = if desc.rhs > 16 { of_panel(32) } else { Vec::new() };
    if wide.is_empty() { of_panel(16) } else { wide }
}

/// The product of small tiles by one instruction of the tensor cores each, in the order of that
/// instruction: for the self-test alone, so it is in no list.
pub(crate) static TILES: Kernel = Kernel {
    name: "mma-tiles",
    about: "Products of 8 x 4 matrices with 16 columns each, by one instruction of the tensor cores.",
    source: gemv_gpu::source![GEMM_PRELUDE, include_str!("mma.cuh"), include_str!("mma_tiles.cu")],
    args: &[],
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: false,
    candidates: |_, _| Vec::new(),
    legal: |_, _, _| Ok(()),
    plan: |desc, _, _| Plan {
        launches: vec![Launch::new("mma_tiles", desc.batch as u64, 32)],
        ..Plan::default()
    },
};
