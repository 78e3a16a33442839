//! The kernels for rows of more than one segment, whose teams have all segments of a row (`span`), or of a
//! chunk of 256 segments (`wide`), at once.

use std::ops::RangeInclusive;

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Dtype, Layout, Params};
use gemv_gpu::{Arg, Caps, Kernel, Launch, Plan};

use crate::few::{aligned, blocks};
use crate::kernels::{value, widest};
use crate::segment::{ROWS, TEAM, THREADS, VEC, fits, held, resident_blocks};

pub(crate) const KERNELS: [Kernel; 2] = [
    Kernel {
        name: SPANS,
        about: "",
        source: SOURCE,
        args: SPAN,
        defines: &[],
        ordered: true,
        candidates: |desc, caps| candidates(SPANS, desc, caps),
        legal: |desc, params, caps| legal(&COLUMNS, desc, params, caps),
        plan,
    },
    Kernel {
        name: WIDE,
        about: "",
        source: SOURCE,
        args: SPAN,
        defines: &[("WIDE", "1")],
        ordered: true,
        candidates: |desc, caps| candidates(WIDE, desc, caps),
        legal: |desc, params, caps| legal(&WIDE_COLUMNS, desc, params, caps),
        plan,
    },
];

const SOURCE: &str = concat!(
    include_str!("../kernels/vectors.cu"),
    include_str!("../kernels/segment.cu"),
    include_str!("../kernels/span.cu")
);
const SPANS: &str = "span";
const WIDE: &str = "wide";

/// Columns of a chunk: the sums of 256 segments are one value.
const CHUNK: usize = SEGMENT * SEGMENT;
const COLUMNS: RangeInclusive<usize> = 0..=CHUNK;
/// Of one chunk, `span` has no second launch; of more than 256, their sums would need one more level.
pub(crate) const WIDE_COLUMNS: RangeInclusive<usize> = CHUNK + 1..=CHUNK * SEGMENT;
/// With fewer columns, rows are `line`'s and `short`'s.
const LEAST: usize = 129;

const ALONG: Arg = gemv_gpu::compiled("along", 2, "ALONG");
const PARTS: Arg = gemv_gpu::compiled("parts", 1, "PARTS");
/// And teams along a row, blocks that share a row, blocks a unit.
const SPAN: &[Arg] = &[THREADS, TEAM, ALONG, ROWS, VEC, PARTS, gemv_gpu::launched("busy", 16)];

/// Rows that a block takes at a time.
fn block_rows(params: &Params) -> u64 {
    let get = |name| u64::from(value(SPAN, params, name));
    get("threads") / (get("team") * get("along")).max(1) * get("rows")
}

/// What a row of a whole chunk takes, in turns and one for the sums, and what a row of `n` columns does.
fn costs(n: u64, at_once: u64) -> (u64, u64) {
    let chunk = CHUNK as u64;
    let at_once = at_once.max(1);
    let (cost, chunks) = (SEGMENT as u64 / at_once + 1, n.div_ceil(chunk));
    let rest = (n - (chunks - 1) * chunk).div_ceil(at_once * SEGMENT as u64) + 1;
    (cost, cost * (chunks - 1) + rest)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| u64::from(value(SPAN, params, name));
    let parts = get("parts").max(1);
    let (m, n) = (desc.m as u64, desc.n as u64);
    let busy = (u64::from(caps.units) * get("busy") / parts).max(1);
    let blocks = m.div_ceil(block_rows(params).max(1));
    let threads = value(SPAN, params, "threads");
    let chunks = n.div_ceil(CHUNK as u64);
    let blocks = if chunks <= 1 {
        // A few blocks with one turn more than the others would read the last long rows at the pace of those
        // few; with short rows, more blocks than even turns need are the faster ones.
        let turns = if desc.n > LONG { blocks.div_ceil(busy).max(1) } else { 1 };
        blocks.div_ceil(turns).min(busy)
    } else if blocks.saturating_mul(chunks) <= busy {
        blocks * chunks
    } else {
        // So many of a chunk that blocks take turns, and a chunk has as many as is its share of the cost.
        let (cost, width) = costs(n, get("along") * parts);
        let own = (busy * cost / width).max(1);
        let own = blocks.div_ceil(blocks.div_ceil(own).max(1));
        own.saturating_mul(width).div_ceil(cost).max(chunks)
    };
    let mut plan = Plan::default();
    plan.launches.push(Launch::new("span", blocks.saturating_mul(parts), threads));
    if chunks > 1 {
        plan.workspace = m.saturating_mul(chunks);
        let second = Launch::new("span_chunks", m.div_ceil(4), 128);
        plan.launches.push(Launch { pdl_wait: true, ..second });
    }
    plan
}

/// As the kernel counts them, with what the place of a chunk takes.
fn registers(dtype: Dtype, params: &Params) -> u32 {
    held(dtype, params, if params.kernel().as_str() == WIDE { 8 } else { 0 })
}

fn legal(
    columns: &RangeInclusive<usize>,
    desc: &Desc,
    params: &Params,
    caps: &Caps,
) -> Result<(), String> {
    if desc.layout != Layout::Row {
        return Err("the kernel is for the layout row".into());
    }
    let get = |name| value(SPAN, params, name);
    let (threads, team, along) = (get("threads"), get("team"), get("along"));
    let (rows, vec, parts) = (get("rows"), get("vec"), get("parts"));
    for (name, v, lo, hi) in [
        ("threads", threads, 32, caps.max_group.min(512)),
        ("team", team, 8, 32),
        ("along", along, 1, LANES as u32),
        ("rows", rows, 1, 4),
        ("vec", vec, 1, widest(desc.dtype)),
        ("parts", parts, 1, caps.cluster),
    ] {
        if !v.is_power_of_two() || v < lo || v > hi {
            return Err(format!("{name}={v} is not a power of two from {lo} to {hi}"));
        }
    }
    let lanes = LANES as u32;
    if team * vec > lanes {
        return Err(format!("team={team} with vec={vec} is more than {lanes} lanes"));
    }
    if team * along > threads {
        return Err(format!("along={along} of {} teams", threads / team));
    }
    // A row's sum is in as many threads as there are segments at once.
    let all = along * parts;
    if all > SEGMENT as u32 {
        return Err(format!("along={along} in parts={parts} is more than {SEGMENT} segments"));
    }
    if all > 1 && rows > all {
        return Err(format!("rows={rows} of teams with along={all} segments at once"));
    }
    if !columns.contains(&desc.n) {
        let (low, high) = (columns.start(), columns.end());
        let kernel = params.kernel();
        return Err(format!("{kernel} is for {low} to {high} columns, not {}", desc.n));
    }
    // A segment with its x is in registers before the first sum.
    fits(registers(desc.dtype, params), threads)?;
    let places = if all > lanes { SEGMENT } else { LANES } as u64;
    let shared = 2 * block_rows(params) * places * desc.dtype.acc_bytes() as u64;
    if shared > u64::from(caps.local_bytes) {
        return Err(format!("{shared} bytes of shared memory of {}", caps.local_bytes));
    }
    if get("busy") == 0 {
        return Err("busy=0 leaves no block to do the work".into());
    }
    blocks(&plan(desc, params, caps))
}

fn candidates(kernel: &'static str, desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Row || desc.n < LEAST {
        return Vec::new();
    }
    let wide = aligned(desc);
    let mut out: Vec<(u64, Params)> = Vec::new();
    // Elements of 8 bytes one by one, too: their sums take as many registers as two of the others.
    let vecs = [wide, 1].into_iter().take(if desc.dtype.bytes() == 8 && wide > 1 { 2 } else { 1 });
    for vec in vecs {
        shapes(kernel, desc, caps, (vec, 1), &ALONE, &mut out);
        if kernel == SPANS && desc.m <= FEW_ROWS && desc.n > LONG {
            shapes(kernel, desc, caps, (vec, caps.cluster), &SHARED, &mut out);
        }
    }
    out.into_iter().map(|o| o.1).collect()
}

/// How much of a block a row has: two loads of a round for a thread in place of one; the most threads of a
/// row (more segments are taken in turn) and the fewest of a block; rows of a team.
type Shape = (u32, u32, u32, u32);

/// Rows of one block.
const ALONE: [Shape; 8] = [
    (1, 512, 128, 1),
    (1, 512, 32, 1),
    (2, 512, 32, 1),
    (1, 512, 128, 2),
    (1, 128, 128, 1),
    (2, 128, 128, 1),
    (1, 128, 128, 2),
    (1, 32, 128, 2),
];

/// Rows of a cluster of blocks, and the rows and columns for which it was faster than a block on an H200. (Of chunks it
/// was not: `flat` is.)
const SHARED: [Shape; 4] = [(1, 128, 128, 1), (2, 128, 128, 1), (1, 512, 32, 1), (1, 128, 128, 2)];
const FEW_ROWS: usize = 512;
const LONG: usize = 2048;

fn shapes(
    kernel: &'static str,
    desc: &Desc,
    caps: &Caps,
    (vec, parts): (u32, u32),
    list: &[Shape],
    out: &mut Vec<(u64, Params)>,
) {
    let all_at_once = desc.n.div_ceil(SEGMENT).next_power_of_two().min(SEGMENT) as u32;
    let widest_team = (LANES as u32 / vec).min(32);
    for &(share, most, least, rows) in list {
        let team = (widest_team / share).max(8);
        let along = all_at_once.div_ceil(parts).min(most / team);
        let threads = least.max(team * along);
        let params = Params::new(kernel)
            .with("threads", threads)
            .with("team", team)
            .with("along", along)
            .with("rows", rows)
            .with("vec", vec);
        let params = if parts > 1 { params.with("parts", parts) } else { params };
        let params = params.with("busy", resident_blocks(registers(desc.dtype, &params), threads));
        let kernel = KERNELS.iter().find(|k| k.name == kernel).expect("one of the two");
        if kernel.fits(desc, &params, caps).is_ok() {
            let work = kernel.launch_id(desc, &params, caps);
            if !out.iter().any(|o| o.0 == work) {
                out.push((work, params));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for m in [0, 1, 208, 4000, 1 << 31] {
                    for n in
                        [0, 128, 129, 256, 384, 1000, 4001, 65_536, 65_537, 1 << 24, (1 << 24) + 1]
                    {
                        let desc = Desc::of(dtype, Layout::Row, (m, n), align);
                        let [all, wide] = KERNELS.map(|k| (k.candidates)(&desc, &caps()));
                        assert_eq!(!all.is_empty(), (129..=65_536).contains(&n), "{desc}");
                        assert_eq!(!wide.is_empty(), (65_537..=1 << 24).contains(&n), "{desc}");
                        let all: Vec<_> = all.into_iter().chain(wide).collect();
                        assert!(all.len() <= 24, "{desc}: {}", all.len());
                        for params in all {
                            let kernel =
                                KERNELS.iter().find(|k| k.name == params.kernel().as_str());
                            kernel.unwrap().fits(&desc, &params, &caps()).unwrap();
                            // Else the kernel reads them element by element.
                            let vec = params.get("vec").unwrap() as usize;
                            assert!(vec * dtype.bytes() <= (1 << align).max(dtype.bytes()));
                        }
                        let col = Desc { layout: Layout::Col, ..desc };
                        assert!(KERNELS.iter().all(|k| (k.candidates)(&col, &caps()).is_empty()));
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_take_turns() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (4000, 1000), 4);
        let blocks = |text: &str, m| {
            let params: Params = text.parse().unwrap();
            plan(&Desc { m, ..desc }, &params, &caps()).launches[0].grid[0]
        };
        assert_eq!(blocks("span threads=128 team=16 along=4 busy=64", 4000), 2000);
        assert_eq!(blocks("span threads=128 team=16 along=4 rows=2 busy=64", 4000), 1000);
        assert_eq!(blocks("span threads=128 team=16 along=4 busy=8", 4000), 8 * 132);
        assert_eq!(blocks("span threads=128 team=16 along=4 busy=8", 1), 1);
        assert_eq!(blocks("span threads=128 team=16 along=8 parts=8 busy=8", 5), 40);
        assert_eq!(blocks("span threads=128 team=16 along=8 parts=8 busy=1", 4000), 16 * 8);
        // Long rows: no block is left to go on alone for a whole turn.
        let long = Desc { n: LONG + 1, ..desc };
        let params: Params = "span threads=128 team=16 along=4 busy=8".parse().unwrap();
        assert_eq!(plan(&long, &params, &caps()).launches[0].grid[0], 1000);
        let mut tiny = caps();
        tiny.units = 1;
        let params: Params = "span parts=8 busy=1".parse().unwrap();
        assert_eq!(plan(&desc, &params, &tiny).launches[0].grid[0], 8);
    }

    /// Where the kernel finds a block's chunk: by whole numbers, as there.
    fn chunk_of(block: u64, blocks: u64, rows: u64, n: u64, at_once: u64) -> (u64, u64, u64) {
        let (cost, width) = costs(n, at_once);
        let (all, chunks) = (cost * blocks, n.div_ceil(CHUNK as u64));
        let width = if blocks == rows * chunks { chunks * cost } else { width };
        let first = |chunk: u64| chunk * all / width;
        let mut chunk = block * width / all;
        if first(chunk + 1) <= block {
            chunk += 1;
        }
        (chunk, first(chunk), first(chunk + 1).min(blocks))
    }

    #[test]
    fn every_chunk_has_blocks() {
        let w = CHUNK as u64;
        for n in [w + 1, w + 256, 2 * w, 2 * w + 1, 5 * w - 1, 309_976, 100 * w + 77, 256 * w] {
            for m in [1, 2, 7, 53, 4000] {
                for text in ["wide", "wide busy=1", "wide threads=256 team=8 along=32 parts=8"] {
                    let desc = Desc::of(Dtype::F32, Layout::Row, (m, n as usize), 4);
                    let params: Params = text.parse().unwrap();
                    let (plan, parts) =
                        (super::plan(&desc, &params, &caps()), params.get_or("parts", 1));
                    let blocks = plan.launches[0].grid[0] / u64::from(parts);
                    let rows = (m as u64).div_ceil(block_rows(&params));
                    let at_once = u64::from(value(SPAN, &params, "along") * parts);
                    let (mut next, mut begins) = (0, 0);
                    for block in 0..blocks {
                        let (chunk, from, end) = chunk_of(block, blocks, rows, n, at_once);
                        if block == begins {
                            assert_eq!((chunk, from), (next, block), "{text} {desc}");
                            (next, begins) = (next + 1, end);
                            // No more than rows, and where these take turns, the last one's share by its own.
                            let (cost, width) = costs(n, at_once);
                            let last = chunk + 1 == n.div_ceil(w) && blocks != rows * n.div_ceil(w);
                            let own = if last { width - chunk * cost } else { cost };
                            let share = own as f64 / cost as f64;
                            assert!(
                                (end - from) as f64 <= share * rows as f64 + 2.0,
                                "{text} {desc}"
                            );
                        }
                        assert!((from..end).contains(&block), "{text} {desc}: {block}");
                        assert_eq!(chunk + 1, next, "{text} {desc}: {block}");
                    }
                    assert_eq!((next, begins), (n.div_ceil(w), blocks), "{text} {desc}");
                    assert_eq!((plan.workspace, plan.launches.len()), (m as u64 * next, 2));
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let row = Desc::of(Dtype::F32, Layout::Row, (9, 1000), 4);
        let huge = Desc { m: usize::MAX >> 1, ..row };
        for (desc, text, part) in [
            (Desc { layout: Layout::Col, ..row }, "span", "layout row"),
            (row, "span threads=1024", "from 32 to 512"),
            (row, "span team=4", "from 8 to 32"),
            (row, "span along=3", "power of two"),
            (row, "span rows=8", "from 1 to 4"),
            (row, "span threads=128 team=32 along=2 rows=4", "rows=4 of teams with along=2"),
            (row, "span vec=8", "from 1 to 4"),
            (row, "span team=32 vec=4", "more than 64 lanes"),
            (row, "span team=32 along=8", "along=8 of 4 teams"),
            (Desc { n: 65_537, ..row }, "span", "span is for 0 to 65536 columns, not 65537"),
            (Desc { n: 65_536, ..row }, "wide", "wide is for 65537 to 16777216 columns, not 65536"),
            (Desc { n: (1 << 24) + 1, ..row }, "wide", "not 16777217"),
            (row, "span team=8 along=4 vec=4 rows=4", "more than 176"),
            (row, "span threads=512 team=16 along=4 vec=4 rows=4", "more than 88"),
            (Desc { dtype: Dtype::C64, ..row }, "span team=8 along=1", "more than 176"),
            (
                Desc { dtype: Dtype::Bf16, ..row },
                "span threads=512 team=8 along=1 rows=2 vec=8",
                "bytes of shared memory",
            ),
            (row, "span busy=0", "no block"),
            (row, "span parts=16", "from 1 to 8"),
            (
                row,
                "span threads=512 team=8 along=64 vec=4 parts=8",
                "along=64 in parts=8 is more than 256 segments",
            ),
            (row, "span team=16 along=1 rows=4 parts=2", "rows=4 of teams with along=2"),
            (huge, "span busy=4294967295", "blocks are more than"),
        ] {
            let params: Params = text.parse().unwrap();
            let kernel = KERNELS.iter().find(|k| k.name == params.kernel().as_str()).unwrap();
            let why = kernel.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
