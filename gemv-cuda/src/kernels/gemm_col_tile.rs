//! `gemm-col-tile`: one column-major matrix and several right-hand sides; tiles through shared memory.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, value};

use super::rules::{
    SUPER_SEGMENT, TWO_LEVELS, aligned, blocks, compiled, layout, limits, threads, vec, widest,
    words,
};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-col-tile",
    about: "Several right-hand sides and one column-major matrix of real numbers: a thread has \
            neighbouring rows and all columns of a panel of X, and tiles stream through shared memory.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_col_tile.cu"),
        include_str!("gemm_parts.cuh")
    ],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    threads(256, 512),
    compiled(
        "tile_rhs",
        "Columns of X that are multiplied at a time.",
        Values::Powers(1, 16),
        4,
        "TILE_RHS",
    ),
    vec(4),
    compiled(
        "stages",
        "Steps of eight columns that a warp has in flight.",
        Values::Range(2, 8),
        4,
        "STAGES",
    ),
    compiled(
        "min_blocks",
        "Blocks that are to be resident on a multiprocessor, and are launched for each.",
        Values::Range(1, 4),
        1,
        "MIN_BLOCKS",
    ),
    compiled(
        "realign",
        "1: elements of 2 bytes are copied by words of 4 and shifted into place, for columns that begin anywhere.",
        Values::Range(0, 1),
        0,
        "REALIGN",
    ),
];

/// What follows from the arguments, as in the text.
#[derive(Debug, Clone, Copy)]
struct Shape {
    warps: u32,
    /// Rows of a tile.
    rows: u32,
    /// Columns of a panel.
    cols: u32,
    /// Steps of a warp for one tile, a power of two.
    steps: u32,
    stages: u32,
    min_blocks: u32,
    realign: bool,
}

impl Shape {
    fn of(params: &Params) -> Shape {
        let get = |name| value(ARGS, params, name);
        let warps = get("threads") / 32;
        Shape {
            warps,
            rows: 32 * get("vec"),
            cols: get("tile_rhs"),
            steps: 32 / warps.max(1),
            stages: get("stages"),
            min_blocks: get("min_blocks"),
            realign: get("realign") == 1,
        }
    }

    /// 32-bit registers of the sums of a thread, those that wait among them.
    fn sums(&self, desc: &Desc) -> u32 {
        let each = self.rows / 32 * self.cols * words(desc.dtype);
        each * (self.steps.ilog2() + 2)
    }

    /// Whether a block writes Y where a row has one part: with more blocks, registers are too few.
    fn writes_y(&self) -> bool {
        self.min_blocks < 3
    }

    /// Bytes of shared memory of a block, for so many parts.
    fn shared(&self, desc: &Desc, parts: u32) -> u64 {
        let tile = u64::from(self.rows * self.cols);
        // A further word of each column, padded to a load.
        let column = if self.realign { self.rows + self.rows / 32 } else { self.rows };
        let ring = u64::from(self.warps * self.stages * 8 * column) * desc.dtype.bytes() as u64;
        let x = u64::from((self.stages.div_ceil(self.steps) + 1) * self.cols) * SEGMENT as u64;
        // Sums of the second level that wait, and one of a lane with several segments.
        let segments = desc.n.min(SUPER_SEGMENT).div_ceil(SEGMENT);
        let own = segments.min(LANES).div_ceil(parts as usize).max(1);
        let open = match segments > LANES {
            true => (LANES as u32 / parts).ilog2() + 1,
            false => own.next_power_of_two().ilog2(),
        };
        ring + (x + (u64::from(self.warps) + u64::from(open)) * tile)
            * desc.dtype.acc_bytes() as u64
    }

    /// Parts of a row: as many as leave the block that has the most tiles with the fewest, of those for which shared
    /// memory suffices. Of several, the fewest, which have the fewest sums to add; where blocks have several tasks, 8 or
    /// the nearest to it, which are faster.
    fn parts(&self, desc: &Desc, caps: &Caps) -> u32 {
        // Without columns there are no sums, and the first launch writes Y.
        if desc.n == 0 {
            return 1;
        }
        let fits = |log: &u32| self.shared(desc, 1 << log) <= u64::from(caps.dynamic_bytes);
        let all = (0..=LANES.ilog2()).filter(fits);
        let best = all.min_by_key(|log| {
            let (tasks, blocks) = self.tasks(desc, caps, 1 << log);
            let from_best = if tasks > blocks { log.abs_diff(3) } else { *log };
            (self.tiles(desc, caps, 1 << log), from_best, *log)
        });
        1 << best.unwrap_or(LANES.ilog2())
    }

    /// Tasks of a panel, and the blocks that share them.
    fn tasks(&self, desc: &Desc, caps: &Caps, parts: u32) -> (u64, u64) {
        let super_segments = desc.n.div_ceil(SUPER_SEGMENT).max(1) as u64;
        let tasks = (desc.m as u64)
            .div_ceil(self.rows.into())
            .saturating_mul(super_segments.saturating_mul(parts.into()));
        let panels = (desc.rhs as u64).div_ceil(self.cols.into()).max(1);
        let most = (u64::from(caps.units) * u64::from(self.min_blocks) / panels).max(1);
        (tasks, tasks.clamp(1, most))
    }

    /// Tiles of the block that has the most.
    fn tiles(&self, desc: &Desc, caps: &Caps, parts: u32) -> u64 {
        let (tasks, blocks) = self.tasks(desc, caps, parts);
        let segments = desc.n.min(SUPER_SEGMENT).div_ceil(SEGMENT) as u64;
        tasks.div_ceil(blocks).saturating_mul(segments.div_ceil(parts.into()))
    }
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Col)?;
    let shape = Shape::of(params);
    if desc.dtype.is_complex() {
        return Err("the kernel is for real numbers".into());
    }
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    if desc.n == 0 && !shape.writes_y() {
        return Err("with min_blocks=3 or more the kernel is for matrices with columns".into());
    }
    if desc.n > TWO_LEVELS {
        return Err(format!("{} columns are more than {TWO_LEVELS}", desc.n));
    }
    limits(&[
        ("threads", shape.warps * 32, caps.max_group),
        ("vec", shape.rows / 32, widest(desc.dtype)),
    ])?;
    let (bytes, vec) = (desc.dtype.bytes(), shape.rows / 32);
    if shape.realign && (bytes != 2 || vec < 2 || shape.warps < 2) {
        return Err("realign=1 is for elements of 2 bytes, vec=2 or more, and several warps".into());
    }
    // Sums, one row of X, the elements of a load, addresses.
    let held = shape.sums(desc) + (shape.cols + shape.rows / 32) * words(desc.dtype) + 40;
    let most = ((65_536 / (shape.warps * 32 * shape.min_blocks)) & !7).min(255);
    if held > most {
        return Err(format!("{held} registers of {most}"));
    }
    let parts = shape.parts(desc, caps);
    let bytes = shape.shared(desc, parts);
    if bytes > u64::from(caps.dynamic_bytes) {
        return Err(format!("{bytes} bytes of shared memory of {}", caps.dynamic_bytes));
    }
    if shape.tasks(desc, caps, parts).0 > u64::from(u32::MAX) {
        return Err(format!("{} rows are too many", desc.m));
    }
    blocks(&plan(desc, params, caps))
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let shape = Shape::of(params);
    let panels = (desc.rhs as u64).div_ceil(shape.cols.into());
    let parts = shape.parts(desc, caps);
    let all_parts = desc.n.div_ceil(SUPER_SEGMENT).max(1) as u64 * u64::from(parts);
    let blocks = shape.tasks(desc, caps, parts).1;
    let mut first = Launch::new("gemm_col_tile", blocks * panels, shape.warps * 32);
    first.shared = u32::try_from(shape.shared(desc, parts)).unwrap_or(u32::MAX);
    let mut launches = vec![first];
    let outputs = (desc.m as u64).saturating_mul(desc.rhs as u64);
    if desc.n > SUPER_SEGMENT {
        launches.push(Launch::new("gemm_parts_long_reduce", outputs.div_ceil(4), 128));
    } else if parts > 1 || !shape.writes_y() {
        launches.push(Launch::new("gemm_parts_reduce", outputs.div_ceil(128), 128));
    }
    let workspace = if launches.len() > 1 { all_parts.saturating_mul(outputs) } else { 0 };
    let launches =
        launches.into_iter().map(|launch| Launch { parts, ..launch.waiting() }).collect();
    Plan { launches, workspace, counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Col || desc.batch != 1 || desc.rhs == 1 || desc.dtype.is_complex() {
        return Vec::new();
    }
    let cols = desc.rhs.min(16).next_power_of_two() as u32;
    // Threads, columns, bytes of a load, stages, blocks of a multiprocessor.
    let shapes: &[(u32, u32, u32, u32, u32)] = match (desc.dtype.bytes(), cols) {
        (2, 2) => &[(256, 2, 16, 4, 1), (256, 2, 8, 6, 2)],
        (2, 4) => &[(256, 4, 8, 6, 1)],
        (2, _) => &[(256, 8, 8, 4, 1), (128, 8, 4, 4, 3)],
        (4, 2) => &[(256, 2, 16, 4, 1)],
        (4, 4) => &[(256, 4, 16, 4, 1), (128, 4, 16, 4, 2), (256, 4, 8, 4, 2)],
        (4, 8) => &[(256, 8, 16, 4, 1), (128, 8, 8, 4, 3), (256, 8, 8, 4, 1)],
        (4, _) => &[(256, 16, 8, 3, 1), (256, 16, 4, 4, 2), (256, 8, 16, 4, 1)],
        (_, 2) => &[(256, 2, 16, 4, 1)],
        (_, 4) => &[(256, 4, 16, 4, 1)],
        _ => &[(256, 8, 16, 3, 1), (128, 8, 16, 4, 2)],
    };
    let mut all = Vec::new();
    // Elements of two bytes that lie anywhere have no asynchronous copy of their own.
    let realigns: &[u32] = match (desc.dtype.bytes(), aligned(desc)) {
        (2, 1) => &[1],
        (2, 2) => &[0, 1],
        _ => &[0],
    };
    for (&realign, &(threads, cols, bytes, stages, min_blocks)) in
        realigns.iter().flat_map(|realign| shapes.iter().map(move |shape| (realign, shape)))
    {
        let widest = bytes / desc.dtype.bytes() as u32;
        let vec = if realign == 1 { widest.min(4) } else { widest.min(aligned(desc)) };
        let params = Params::new(KERNEL.name).with("threads", threads).with("tile_rhs", cols);
        let params = params.with("vec", vec).with("stages", stages).with("min_blocks", min_blocks);
        let params = params.with("realign", realign);
        if KERNEL.fits(desc, &params, caps).is_ok() && !all.contains(&params) {
            all.push(params);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

    use super::*;
    use crate::testing::caps;

    fn desc(dtype: Dtype, m: usize, n: usize, rhs: usize) -> Desc {
        Desc { rhs, ..Desc::of(dtype, Layout::Col, (m, n), 4) }
    }

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for (m, n) in [(1, 1), (1000, 255), (4096, 4096), (256, 200_000), (3, (1 << 24) + 1)] {
                for rhs in [1, 2, 3, 8, 17, 64] {
                    let desc = desc(dtype, m, n, rhs);
                    let all = candidates(&desc, &caps());
                    let meant = !dtype.is_complex() && rhs > 1 && n <= TWO_LEVELS;
                    assert_eq!(!all.is_empty(), meant, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_have_equally_many_tiles() {
        let best = |m, n| {
            let desc = desc(Dtype::F32, m, n, 2);
            let shape = Shape::of(&candidates(&desc, &caps())[0]);
            let parts = shape.parts(&desc, &caps());
            (parts, shape.tiles(&desc, &caps(), parts))
        };
        // 32 sets of 16 segments for 132 blocks: 2 tasks of 2 tiles each.
        assert_eq!(best(4096, 4096), (8, 4));
        // 1563 sets of one segment.
        assert_eq!(best(200_000, 256), (1, 12));
        // 2 sets of 782 segments in 4 super-segments.
        assert!(best(256, 200_000).1 <= 16);
    }

    #[test]
    fn launches_have_the_parts_of_the_plan() {
        let desc = desc(Dtype::F32, 4096, 4096, 8);
        for (text, launches) in [
            ("gemm-col-tile tile_rhs=8 vec=4", 2),
            // Too few registers to write Y.
            ("gemm-col-tile threads=128 tile_rhs=8 vec=2 min_blocks=3", 2),
            ("gemm-col-tile tile_rhs=8 vec=1", 1),
        ] {
            let params: Params = text.parse().unwrap();
            KERNEL.fits(&desc, &params, &caps()).unwrap();
            let plan = plan(&desc, &params, &caps());
            let parts = Shape::of(&params).parts(&desc, &caps());
            assert!(plan.launches.iter().all(|l| l.parts == parts), "{text}");
            assert_eq!(plan.launches.len(), launches, "{text}: {parts} parts");
            let workspace = if launches > 1 { 4096 * 8 * u64::from(parts) } else { 0 };
            assert_eq!(plan.workspace, workspace, "{text}");
        }
    }

    #[test]
    fn without_columns_one_launch_writes_y() {
        for dtype in [Dtype::F32, Dtype::F64, Dtype::Bf16] {
            for m in [1, 20_000, 3_000_000] {
                let desc = desc(dtype, m, 0, 8);
                for params in candidates(&desc, &caps()) {
                    let plan = plan(&desc, &params, &caps());
                    assert_eq!((plan.launches.len(), plan.workspace), (1, 0), "{desc} {params}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let wide = desc(Dtype::F32, 100, 5000, 8);
        for (desc, text, part) in [
            (wide, "gemm-col-tile tile_rhs=16 vec=4", "registers of 255"),
            (wide, "gemm-col-tile tile_rhs=4 vec=4 stages=8 threads=512", "bytes of shared memory"),
            (Desc { batch: 2, ..wide }, "gemm-col-tile", "one matrix"),
            (desc(Dtype::C32, 100, 5000, 8), "gemm-col-tile", "real numbers"),
            (desc(Dtype::F64, 100, 5000, 8), "gemm-col-tile vec=4", "vec=4 is more than 2"),
            (Desc { layout: Layout::Row, ..wide }, "gemm-col-tile", "layout col"),
            (wide, "gemm-col-tile realign=1", "elements of 2 bytes"),
            (
                Desc { n: 0, ..wide },
                "gemm-col-tile threads=128 tile_rhs=8 vec=2 min_blocks=3",
                "with columns",
            ),
            (Desc { n: TWO_LEVELS + 1, ..wide }, "gemm-col-tile", "are more than 16777216"),
            (Desc { m: 1 << 40, ..wide }, "gemm-col-tile", "rows are too many"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
