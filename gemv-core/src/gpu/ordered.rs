//! The shared kernels that keep the order: `row`, `col`, and both for any strides.

use super::{Arg, Caps, Kernel, Launch, MAX_GRID, Plan, value};
use crate::order::{LANES, SEGMENT};
use crate::{Desc, Dtype, Layout, Params};

pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "row",
        source: concat!(
            include_str!("../../kernels/row.k"),
            include_str!("../../kernels/reduce.k")
        ),
        args: ROW,
        defines: &[("GENERAL", "0")],
        ordered: true,
        candidates: row_candidates,
        legal: |desc, params, caps| row_legal(desc, params, caps, false),
        plan: row_plan,
    },
    Kernel {
        name: "col",
        source: concat!(
            include_str!("../../kernels/col.k"),
            include_str!("../../kernels/reduce.k")
        ),
        args: COL,
        defines: &[("GENERAL", "0")],
        ordered: true,
        candidates: col_candidates,
        legal: |desc, params, caps| col_legal(desc, params, caps, false),
        plan: col_plan,
    },
    Kernel {
        name: "strided",
        source: concat!(
            include_str!("../../kernels/row.k"),
            include_str!("../../kernels/reduce.k")
        ),
        args: ROW,
        defines: &[("GENERAL", "1")],
        ordered: true,
        candidates: strided_candidates,
        legal: |desc, params, caps| row_legal(desc, params, caps, true),
        plan: row_plan,
    },
    Kernel {
        name: "strided-col",
        source: concat!(
            include_str!("../../kernels/col.k"),
            include_str!("../../kernels/reduce.k")
        ),
        args: COL,
        defines: &[("GENERAL", "1")],
        ordered: true,
        candidates: strided_col_candidates,
        legal: |desc, params, caps| col_legal(desc, params, caps, true),
        plan: col_plan,
    },
];

/// Threads of a block, threads a row, rows a thread, elements a load, blocks a row (0: as many as
/// keep the device busy).
const ROW: &[Arg] = &[
    Arg::compiled("threads", 128, "THREADS"),
    Arg::compiled("team", 16, "TEAM"),
    Arg::compiled("rows", 1, "ROWS"),
    Arg::compiled("vec", 1, "VEC"),
    Arg::launched("split", 0),
];
/// Threads of a block, threads that share a row's lanes, elements a load, blocks a row (0: as many as
/// keep the device busy).
const COL: &[Arg] = &[
    Arg::compiled("threads", 256, "THREADS"),
    Arg::compiled("share", 8, "SHARE"),
    Arg::compiled("vec", 1, "VEC"),
    Arg::launched("split", 0),
];
/// Most blocks that share a row.
const MAX_SPLIT: u32 = 1 << 20;
/// Bytes of sums that a thread may hold: beyond, they would live in memory.
const HELD: u64 = 512;
/// Threads of a block of the second launch, as in `reduce.k`.
const REDUCE: u32 = 128;

/// How the segments of a row are split over blocks: the same rule as in the kernels, which find
/// `parts` from the grid and the rest from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Blocks that share a row, each with some work.
    pub parts: u64,
    /// Sums a row that the first launch leaves in scratch memory; 0 where it writes y.
    pub count: u64,
    /// Whether each of them is of 256 segments.
    pub chunked: bool,
}

impl Split {
    /// The split of rows of `n` columns, of which `asked` parts are asked (0 counts as 1).
    pub fn of(n: usize, asked: u32) -> Split {
        let segments = n.div_ceil(SEGMENT) as u64;
        let asked = u64::from(asked.max(1));
        if segments > 255 * asked {
            let chunks = segments.div_ceil(SEGMENT as u64);
            if chunks == 1 && asked == 1 {
                return Split { parts: 1, count: 0, chunked: false };
            }
            let parts = chunks.div_ceil(chunks.div_ceil(asked));
            return Split { parts, count: chunks, chunked: true };
        }
        let parts = segments.max(1).div_ceil(segments.max(1).div_ceil(asked));
        let count = if parts == 1 { 0 } else { segments };
        Split { parts, count, chunked: false }
    }

    /// Scratch values for `m` rows: the first launch leaves row i's sums from
    /// `i * work(1)` on, and the reduction puts every further level behind them.
    pub fn work(&self, m: u64) -> u64 {
        let (mut total, mut count) = (self.count, self.count);
        while count > 1 {
            count = count.div_ceil(SEGMENT as u64);
            total += count;
        }
        m * total
    }

    /// The launch (of [`REDUCE_SOURCE`]) that turns `m` rows of sums into y, where one is needed.
    pub fn reduce(&self, m: u64) -> Option<Launch> {
        if self.count == 0 {
            return None;
        }
        let rows = if self.count <= SEGMENT as u64 { u64::from(REDUCE / 32) } else { 1 };
        Some(Launch {
            entry: if self.chunked { "reduce_chunks" } else { "reduce_segments" },
            grid: [m.div_ceil(rows), 1, 1],
            block: [REDUCE, 1, 1],
            shared: 0,
        })
    }
}

/// The reduction of segment sums, to append to a kernel's source that leaves them in `work`.
pub const REDUCE_SOURCE: &str = include_str!("../../kernels/reduce.k");

fn plan(desc: &Desc, entry: &'static str, threads: u32, block_rows: u64, asked: u32) -> Plan {
    let m = desc.m as u64;
    let split = Split::of(desc.n, asked);
    let grid = [m.div_ceil(block_rows) * split.parts, 1, 1];
    let mut launches = vec![Launch { entry, grid, block: [threads, 1, 1], shared: 0 }];
    launches.extend(split.reduce(m));
    Plan { launches, work: split.work(m), counters: 0 }
}

/// Rules that every plan has to keep.
fn limits(plan: &Plan, caps: &Caps, local: u64) -> Result<(), String> {
    for launch in &plan.launches {
        let threads: u32 = launch.block.iter().product();
        if threads > caps.max_group {
            return Err(format!(
                "a block of {threads} threads where the device has at most {}",
                caps.max_group
            ));
        }
        if launch.grid[0] > MAX_GRID {
            return Err(format!("{} blocks are more than {MAX_GRID}", launch.grid[0]));
        }
    }
    if local > u64::from(caps.local_bytes) {
        return Err(format!(
            "a block needs {local} bytes of local memory, the device has {}",
            caps.local_bytes
        ));
    }
    Ok(())
}

fn powers(params: &Params, args: &[Arg], names: &[(&str, u32, u32)]) -> Result<(), String> {
    for &(name, lo, hi) in names {
        let v = value(args, params, name);
        if !v.is_power_of_two() || v < lo || v > hi {
            return Err(format!("{name}={v} is not a power of two from {lo} to {hi}"));
        }
    }
    let split = value(args, params, "split");
    if split > MAX_SPLIT {
        return Err(format!("split={split} is more than {MAX_SPLIT}"));
    }
    Ok(())
}

/// Most elements of one load of 16 bytes.
fn widest(dtype: Dtype) -> u32 {
    16 / dtype.bytes() as u32
}

fn for_layout(desc: &Desc, layout: Layout, general: bool) -> Result<(), String> {
    if general || desc.layout == layout {
        return Ok(());
    }
    Err(format!("the kernel is for the layout {layout}"))
}

fn row_legal(desc: &Desc, params: &Params, caps: &Caps, general: bool) -> Result<(), String> {
    for_layout(desc, Layout::Row, general)?;
    let vec = if general { 1 } else { widest(desc.dtype) };
    powers(
        params,
        ROW,
        &[("threads", 32, 1024), ("team", 1, 32), ("rows", 1, 8), ("vec", 1, vec)],
    )?;
    let get = |name| value(ROW, params, name);
    let (threads, team, rows, vec) = (get("threads"), get("team"), get("rows"), get("vec"));
    if team * vec > LANES as u32 {
        return Err(format!("team={team} threads with vec={vec} are more than 64 lanes"));
    }
    let (held, local) = row_needs(desc, caps, threads, team, rows, vec);
    if held > HELD {
        return Err(format!("a thread would hold {held} bytes of sums, more than {HELD}"));
    }
    limits(&row_plan(desc, params, caps), caps, local)
}

fn row_plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ROW, params, name);
    let (threads, team, rows) = (get("threads"), get("team"), get("rows"));
    let block_rows = u64::from(threads / team * rows);
    let split = match get("split") {
        0 => busy_split(desc, caps, block_rows, 8),
        split => split,
    };
    plan(desc, "row", threads, block_rows, split)
}

fn col_legal(desc: &Desc, params: &Params, caps: &Caps, general: bool) -> Result<(), String> {
    for_layout(desc, Layout::Col, general)?;
    let vec = if general { 1 } else { widest(desc.dtype) };
    powers(params, COL, &[("threads", 32, 1024), ("share", 1, 64), ("vec", 1, vec)])?;
    let get = |name| u64::from(value(COL, params, name));
    let (threads, share, vec) = (get("threads"), get("share"), get("vec"));
    if share > threads {
        return Err(format!("share={share} is more than threads={threads}"));
    }
    if vec > share {
        return Err(format!("vec={vec} is more than share={share}"));
    }
    let acc = desc.dtype.acc_bytes() as u64;
    let held = LANES as u64 / share * vec * acc;
    if held > HELD {
        return Err(format!("a thread would hold {held} bytes of sums, more than {HELD}"));
    }
    let block_rows = threads / share * vec;
    limits(&col_plan(desc, params, caps), caps, (share + 7) * block_rows * acc)
}

fn col_plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(COL, params, name);
    let (threads, share, vec) = (get("threads"), get("share"), get("vec"));
    let block_rows = u64::from(threads / share * vec);
    let split = match get("split") {
        0 => busy_split(desc, caps, block_rows, 4),
        split => split,
    };
    plan(desc, "col", threads, block_rows, split)
}

/// Blocks a row, so that every compute unit has `busy` blocks: 1 where the rows are enough.
fn busy_split(desc: &Desc, caps: &Caps, block_rows: u64, busy: u64) -> u32 {
    let sets = (desc.m as u64).div_ceil(block_rows).max(1);
    let segments = desc.n.div_ceil(SEGMENT) as u64;
    // Rounded down: a second launch for a few idle units is not worth it.
    let want = (busy * u64::from(caps.units) / sets).min(segments).max(1);
    want.min(MAX_SPLIT.into()) as u32
}

/// Values of `split` worth trying for one block shape: as many blocks as keep the device busy, and
/// one step to each side.
fn splits(desc: &Desc, caps: &Caps, block_rows: u64, busy: u64) -> Vec<u32> {
    let segments = desc.n.div_ceil(SEGMENT) as u64;
    let want = busy_split(desc, caps, block_rows, busy).next_power_of_two().min(MAX_SPLIT);
    let mut all = vec![want];
    if want > 1 {
        all.push(want / 2);
        all.push(1);
    }
    if u64::from(want) < segments && u64::from(want) < (1 << 16) {
        all.push(want * 2);
    }
    all.dedup();
    all
}

/// Keeps the legal ones, each once, at most 16.
fn legal_only(
    all: impl IntoIterator<Item = Params>,
    legal: impl Fn(&Params) -> Result<(), String>,
) -> Vec<Params> {
    let mut out: Vec<Params> = Vec::new();
    for params in all {
        if out.len() < 16 && !out.contains(&params) && legal(&params).is_ok() {
            out.push(params);
        }
    }
    out
}

/// The widest load that every line allows; misaligned lines of 4-byte elements and wider ones
/// are worth rotated vectors all the same.
fn aligned_vec(desc: &Desc) -> u32 {
    let by_align = (1u32 << desc.align.min(4)) / desc.dtype.bytes() as u32;
    by_align.clamp(1, widest(desc.dtype))
}

fn row_params(kernel: &str, threads: u32, team: u32, rows: u32, vec: u32, split: u32) -> Params {
    let params = Params::new(if kernel == "row" { "row" } else { "strided" });
    params
        .with("threads", threads)
        .with("team", team)
        .with("rows", rows)
        .with("vec", vec)
        .with("split", split)
}

/// What a thread holds, and what a block needs of local memory.
fn row_needs(desc: &Desc, caps: &Caps, threads: u32, team: u32, rows: u32, vec: u32) -> (u64, u64) {
    let [threads, team, rows, vec] = [threads, team, rows, vec].map(u64::from);
    let acc = desc.dtype.acc_bytes() as u64;
    let mut local = threads / team * rows * LANES as u64 * acc;
    if caps.language == super::Language::OpenCl {
        local += threads * rows * vec * acc;
    }
    (LANES as u64 / team * rows * acc, local)
}

/// A block shape made smaller until it is legal: wide types hold more.
fn within(
    desc: &Desc,
    caps: &Caps,
    mut threads: u32,
    mut team: u32,
    mut rows: u32,
    vec: u32,
) -> (u32, u32, u32) {
    loop {
        let (held, local) = row_needs(desc, caps, threads, team, rows, vec);
        if held <= HELD && local <= u64::from(caps.local_bytes) && threads <= caps.max_group {
            return (threads, team, rows);
        }
        if rows > 1 {
            rows /= 2;
        } else if held > HELD {
            team *= 2;
        } else if threads > 32 {
            threads /= 2;
        } else {
            return (threads, team, rows);
        }
    }
}

fn row_shapes(desc: &Desc, caps: &Caps, kernel: &str, vec: u32) -> Vec<Params> {
    // Enough threads that every lane of a short row is loaded at once, and not many more.
    let full = LANES as u32 / vec;
    let need = (desc.n.div_ceil(vec as usize).max(1).next_power_of_two() as u32).min(full).min(32);
    let mut all = Vec::new();
    for (threads, team, rows) in [
        (128, need, if need >= 8 { 2 } else { 1 }),
        (128, need, 1),
        (256, need, 4),
        (128, (need / 2).max(1), 1),
        (64, need, 1),
        (256, (need / 4).max(1), 1),
    ] {
        let (threads, team, rows) = within(desc, caps, threads, team, rows, vec);
        let block_rows = u64::from(threads / team * rows);
        let mut splits = splits(desc, caps, block_rows, 8);
        splits.truncate(if all.is_empty() { 4 } else { 2 });
        all.extend(splits.into_iter().map(|s| row_params(kernel, threads, team, rows, vec, s)));
    }
    all
}

fn row_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let vec = aligned_vec(desc);
    let mut all = row_shapes(desc, caps, "row", vec);
    all.truncate(11);
    // Rotated vectors where the rows are not aligned, narrower ones where they are.
    let other = if vec == widest(desc.dtype) { vec / 2 } else { widest(desc.dtype) };
    if other > 0 {
        all.extend(row_shapes(desc, caps, "row", other).into_iter().take(5));
    }
    legal_only(all, |p| row_legal(desc, p, caps, false).and(for_layout(desc, Layout::Row, false)))
}

fn strided_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Strided {
        return Vec::new();
    }
    let all = row_shapes(desc, caps, "strided", 1);
    let mut out = legal_only(all, |p| row_legal(desc, p, caps, true));
    out.truncate(6);
    out
}

fn col_shapes(desc: &Desc, caps: &Caps, kernel: &str, vec: u32) -> Vec<Params> {
    let mut all = Vec::new();
    for (threads, share) in [(256, 8), (256, 16), (128, 4), (256, 32), (512, 16), (128, 16)] {
        let (mut threads, mut share) = (threads.min(caps.max_group), share.max(vec));
        let acc = desc.dtype.acc_bytes() as u32;
        while u64::from(LANES as u32 / share * vec * acc) > HELD {
            share *= 2;
        }
        while threads > share.max(32)
            && (share + 7) * (threads / share * vec) * acc > caps.local_bytes
        {
            threads /= 2;
        }
        let block_rows = u64::from(threads / share * vec);
        let mut splits = splits(desc, caps, block_rows, 4);
        splits.truncate(if all.is_empty() { 4 } else { 2 });
        all.extend(splits.into_iter().map(|s| {
            let params = Params::new(if kernel == "col" { "col" } else { "strided-col" });
            params.with("threads", threads).with("share", share).with("vec", vec).with("split", s)
        }));
    }
    all
}

fn col_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let vec = aligned_vec(desc).min(4);
    let mut all = col_shapes(desc, caps, "col", vec);
    all.truncate(11);
    if vec > 1 {
        all.extend(col_shapes(desc, caps, "col", vec / 2).into_iter().take(5));
    }
    legal_only(all, |p| col_legal(desc, p, caps, false))
}

fn strided_col_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Strided {
        return Vec::new();
    }
    let all = col_shapes(desc, caps, "strided-col", 1);
    let mut out = legal_only(all, |p| col_legal(desc, p, caps, true));
    out.truncate(6);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Language, kernels};

    fn caps(language: Language) -> Caps {
        let mut caps = Caps::new(language);
        (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
        caps
    }

    /// What the kernels compute from the grid: (direct, chunked, parts that have work, sums).
    fn as_in_the_kernel(n: usize, parts: u64) -> (bool, bool, u64, u64) {
        let segments = n.div_ceil(SEGMENT) as u64;
        let chunks = segments.div_ceil(256);
        let direct = parts == 1 && segments <= 256;
        let chunked = !direct && segments > 255 * parts;
        let unit = if chunked { chunks } else { segments };
        let per = unit.div_ceil(parts);
        let busy = if unit == 0 { 1 } else { unit.div_ceil(per) };
        let count = match (direct, chunked) {
            (true, _) => 0,
            (_, true) => chunks,
            _ => segments,
        };
        (direct, chunked, busy, count)
    }

    #[test]
    fn host_and_kernel_split_alike() {
        for n in (0..300).chain((1..2000).map(|k| k * 97)).chain([1 << 24, (1 << 31) + 1, 1 << 33])
        {
            for asked in [1, 2, 3, 4, 5, 7, 8, 16, 60, 64, 100, 255, 256, 1000, 1 << 20] {
                let s = Split::of(n, asked);
                assert!(s.parts >= 1 && s.parts <= u64::from(asked), "{n} {asked} {s:?}");
                let (direct, chunked, busy, count) = as_in_the_kernel(n, s.parts);
                assert_eq!(direct, s.count == 0, "{n} {asked} {s:?}");
                assert_eq!((chunked, count), (s.chunked, s.count), "{n} {asked} {s:?}");
                assert_eq!(busy, s.parts, "a part without work: {n} {asked} {s:?}");
            }
        }
    }

    #[test]
    fn candidates_fit_and_cover_every_problem() {
        for language in [Language::OpenCl, Language::Cuda] {
            let caps = caps(language);
            for dtype in Dtype::ALL {
                for layout in Layout::ALL {
                    for (m, n) in [(1, 1), (1, 1 << 31), (1 << 31, 1), (0, 5), (5, 0), (1000, 1000)]
                    {
                        for align in 0..=6 {
                            let desc = Desc { dtype, m, n, layout, align };
                            let mut found = 0;
                            for kernel in kernels() {
                                for params in (kernel.candidates)(&desc, &caps) {
                                    kernel.fits(&desc, &params, &caps).unwrap();
                                    found += 1;
                                }
                            }
                            assert!((1..=17).contains(&found), "{desc}: {found} candidates");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc { dtype: Dtype::F32, m: 10, n: 10, layout: Layout::Row, align: 6 };
        let caps = caps(Language::OpenCl);
        for (text, part) in [
            ("row threads=2048", "from 32 to 1024"),
            ("row threads=48", "power of two"),
            ("row split=2000000", "split=2000000 is more"),
            ("row team=32 vec=4", "64 lanes"),
            ("row team=1 rows=8", "bytes of sums"),
            ("row share=3", "no argument share"),
            ("col", "layout col"),
            ("strided vec=2", "vec=2"),
        ] {
            let params: Params = text.parse().unwrap();
            let kernel = crate::gpu::kernel(params.kernel().as_str()).unwrap();
            let why = kernel.fits(&desc, &params, &caps).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
