//! Kernels for matrices of few rows or few columns, where one product has little to do: `short` rows, many of them
//! `staged` in shared memory, `narrow` matrices by columns, and `slab`s of a few rows, long, by columns.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Dtype, Layout, Params};
use gemv_gpu::{Arg, Caps, Kernel, Launch, MAX_GRID, Plan};

use crate::kernels::{value, widest};

pub(crate) const KERNELS: [Kernel; 4] = [
    Kernel {
        name: "short",
        about: "",
        source: concat!(include_str!("../kernels/vectors.cu"), include_str!("../kernels/line.cu")),
        args: SHORT,
        defines: &[("SHORT", "1")],
        ordered: true,
        candidates: short_candidates,
        legal: short_legal,
        plan: |desc, params, _| short_plan(desc, params),
    },
    Kernel {
        name: "narrow",
        about: "",
        source: concat!(
            include_str!("../kernels/vectors.cu"),
            include_str!("../kernels/narrow.cu")
        ),
        args: NARROW,
        defines: &[],
        ordered: true,
        candidates: narrow_candidates,
        legal: narrow_legal,
        plan: |desc, params, _| narrow_plan(desc, params),
    },
    Kernel {
        name: "slab",
        about: "",
        source: concat!(include_str!("../kernels/vectors.cu"), include_str!("../kernels/slab.cu")),
        args: SLAB,
        defines: &[],
        ordered: true,
        candidates: slab_candidates,
        legal: slab_legal,
        plan: slab_plan,
    },
    Kernel {
        name: "staged",
        about: "",
        source: concat!(
            include_str!("../kernels/vectors.cu"),
            include_str!("../kernels/staged.cu")
        ),
        args: STAGED,
        defines: &[],
        ordered: true,
        candidates: staged_candidates,
        legal: staged_legal,
        plan: |desc, params, _| staged_plan(desc, params),
    },
];

/// Threads of a block, threads of a team, rows of a team, elements of a load, rounds of 64 columns.
const SHORT: &[Arg] = &[
    gemv_gpu::compiled("threads", 128, "THREADS"),
    gemv_gpu::compiled("team", 16, "TEAM"),
    gemv_gpu::compiled("rows", 1, "ROWS"),
    gemv_gpu::compiled("vec", 4, "VEC"),
    gemv_gpu::compiled("rounds", 5, "ROUNDS"),
];

/// Threads of a block, vectors of a thread, elements of a vector, columns that there is room for.
const NARROW: &[Arg] = &[
    gemv_gpu::compiled("threads", 128, "THREADS"),
    gemv_gpu::compiled("rows", 1, "ROWS"),
    gemv_gpu::compiled("vec", 1, "VEC"),
    gemv_gpu::compiled("width", 64, "SPAN"),
];

/// Threads of a block, rows of a thread, elements of a vector, columns that there is room for.
const STAGED: &[Arg] = &[
    gemv_gpu::compiled("threads", 128, "THREADS"),
    gemv_gpu::compiled("rows", 1, "ROWS"),
    gemv_gpu::compiled("vec", 1, "VEC"),
    gemv_gpu::compiled("width", 64, "ROOM"),
];

/// Threads of a block, rows that there is room for, elements of a load, blocks a unit.
const SLAB: &[Arg] = &[
    gemv_gpu::compiled("threads", 128, "THREADS"),
    gemv_gpu::compiled("height", 16, "HEIGHT"),
    gemv_gpu::compiled("vec", 1, "VEC"),
    gemv_gpu::launched("busy", 8),
];

/// 32-bit registers of a value that is summed.
pub(crate) fn words(dtype: Dtype) -> u32 {
    dtype.acc_bytes() as u32 / 4
}

/// Elements of the widest load that every line of this matrix can begin with.
pub(crate) fn aligned(desc: &Desc) -> u32 {
    let size = desc.dtype.bytes() as u32;
    ((1u32 << desc.align.min(4)) / size).clamp(1, widest(desc.dtype))
}

/// Whether each of these is a power of two in its range.
pub(crate) fn powers(ranges: &[(&str, u32, u32, u32)]) -> Result<(), String> {
    match ranges.iter().find(|(_, v, low, high)| !v.is_power_of_two() || v < low || v > high) {
        Some((name, v, low, high)) => {
            Err(format!("{name}={v} is not a power of two from {low} to {high}"))
        }
        None => Ok(()),
    }
}

pub(crate) fn layout(desc: &Desc, layout: Layout) -> Result<(), String> {
    match desc.layout == layout {
        true => Ok(()),
        false => Err(format!("the kernel is for the layout {layout}")),
    }
}

pub(crate) fn blocks(plan: &Plan) -> Result<(), String> {
    match plan.launches.iter().map(|l| l.grid[0]).max() {
        Some(blocks) if blocks > MAX_GRID => {
            Err(format!("{blocks} blocks are more than {MAX_GRID}"))
        }
        _ => Ok(()),
    }
}

fn short_legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(SHORT, params, name);
    let (team, vec, rows, rounds) = (get("team"), get("vec"), get("rows"), get("rounds"));
    powers(&[
        ("threads", get("threads"), 32, caps.max_group.min(256)),
        ("team", team, 1, 32),
        ("rows", rows, 1, 8),
        ("vec", vec, 1, widest(desc.dtype)),
    ])?;
    let lanes = LANES as u32;
    if team * vec > lanes || vec > team {
        return Err(format!("team={team} with vec={vec} does not divide {lanes} lanes"));
    }
    if !(1..=5).contains(&rounds) {
        return Err(format!("rounds={rounds} is not from 1 to 5"));
    }
    // Counted with the lanes by which a row may be rotated. The alignment says nothing here: a window
    // of a host matrix with gaps is packed on its way to the device.
    if desc.n > SEGMENT || desc.n as u32 + vec - 1 > rounds * lanes {
        return Err(format!("{} columns and vec={vec} do not fit rounds={rounds}", desc.n));
    }
    let (slots, bytes) = (lanes / (team * vec), vec * desc.dtype.bytes() as u32);
    let registers = rows * slots * (rounds * bytes.div_ceil(4) + vec * words(desc.dtype));
    if registers > 128 {
        return Err(format!("{registers} registers of data are more than 128"));
    }
    blocks(&short_plan(desc, params))
}

fn short_plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(SHORT, params, name));
    let rows = (get("threads") / get("team").max(1) * get("rows")).max(1);
    let launch =
        Launch::new("line", (desc.m as u64).div_ceil(rows), value(SHORT, params, "threads"));
    Plan { launches: vec![launch], ..Plan::default() }
}

fn short_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    // Fewer than 64 columns are `line`'s and `staged`'s.
    if desc.n < LANES || desc.n > SEGMENT {
        return Vec::new();
    }
    let widest = widest(desc.dtype);
    let mut all = Vec::new();
    for vec in [widest, (widest / 2).max(1)] {
        let rounds = (desc.n as u32 + vec - 1).div_ceil(64);
        for slots in [1, 2] {
            for rows in [2, 1, 4] {
                let params = Params::new("short").with("threads", 128);
                let params = params.with("team", (64 / vec / slots).min(32)).with("rows", rows);
                all.push(params.with("vec", vec).with("rounds", rounds));
            }
        }
    }
    all.retain(|p| short_legal(desc, p, caps).is_ok());
    all.dedup();
    all
}

fn narrow_legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Col)?;
    let get = |name| value(NARROW, params, name);
    let (rows, vec, width) = (get("rows"), get("vec"), get("width"));
    powers(&[
        ("threads", get("threads"), 32, caps.max_group.min(256)),
        ("rows", rows, 1, 8),
        ("vec", vec, 1, widest(desc.dtype)),
        ("width", width, 1, LANES as u32),
    ])?;
    if desc.n > width as usize {
        return Err(format!("{} columns do not fit width={width}", desc.n));
    }
    let held = width.min(8) * rows * vec * words(desc.dtype);
    if held > 64 {
        return Err(format!("{held} registers of sums are more than 64"));
    }
    blocks(&narrow_plan(desc, params))
}

fn narrow_plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(NARROW, params, name));
    let tile = (get("threads") * get("rows") * get("vec")).max(1);
    let threads = value(NARROW, params, "threads");
    let launch = Launch::new("narrow", (desc.m as u64).div_ceil(tile), threads);
    Plan { launches: vec![launch], ..Plan::default() }
}

fn narrow_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let width = desc.n.next_power_of_two() as u32;
    if width > LANES as u32 {
        return Vec::new();
    }
    let mut all = Vec::new();
    for vec in [aligned(desc), 1] {
        for rows in if vec > 1 { &[1, 2][..] } else { &[1, 2, 4] } {
            let rows = *rows;
            let params = Params::new("narrow").with("threads", 128).with("rows", rows);
            let params = params.with("vec", vec).with("width", width);
            // More than 32 bytes of a column a thread leaves too few threads.
            let bytes = rows * vec * desc.dtype.bytes() as u32;
            if bytes <= 32 && !all.contains(&params) && narrow_legal(desc, &params, caps).is_ok() {
                all.push(params);
            }
        }
    }
    all
}

fn staged_legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(STAGED, params, name);
    let (threads, rows, vec, width) = (get("threads"), get("rows"), get("vec"), get("width"));
    powers(&[
        ("threads", threads, 32, caps.max_group.min(256)),
        ("rows", rows, 1, 8),
        ("vec", vec, 1, widest(desc.dtype)),
    ])?;
    if !(1..=LANES as u32).contains(&width) || !width.is_multiple_of(vec) {
        return Err(format!("width={width} is not a multiple of vec={vec} up to {LANES}"));
    }
    let least = if width > 16 { width - 7 } else { width / 2 + 1 };
    if !(least as usize..=width as usize).contains(&desc.n) {
        return Err(format!("{} columns do not fit width={width}", desc.n));
    }
    let held = width.min(8) * rows * words(desc.dtype);
    if held > 64 {
        return Err(format!("{held} registers of sums are more than 64"));
    }
    let shared = (threads * rows * ((width / vec) | 1) * vec + width.next_power_of_two())
        * desc.dtype.bytes() as u32
        + 32;
    if shared > caps.local_bytes {
        return Err(format!("{shared} bytes of shared memory of {}", caps.local_bytes));
    }
    blocks(&staged_plan(desc, params))
}

fn staged_plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(STAGED, params, name));
    let tile = (get("threads") * get("rows")).max(1);
    let threads = value(STAGED, params, "threads");
    let launch = Launch::new("staged", (desc.m as u64).div_ceil(tile), threads);
    Plan { launches: vec![launch], ..Plan::default() }
}

fn staged_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if !(1..=LANES).contains(&desc.n) || desc.m < MANY_ROWS {
        return Vec::new();
    }
    let width = match desc.n as u32 {
        few @ ..=16 => few.next_power_of_two(),
        more => more.next_multiple_of(8),
    };
    let mut all = Vec::new();
    for vec in [aligned(desc).min(width), 1] {
        for (threads, rows) in [(128, 1), (128, 2), (128, 4), (64, 1), (64, 2), (32, 1)] {
            // Many bytes of a thread's rows leave too few threads, and so do few threads of a block, where
            // more have room.
            let bytes = rows * width * desc.dtype.bytes() as u32;
            let too_few = threads == 32 && all.iter().any(|p: &Params| p.get("vec") == Some(vec));
            if (rows > 1 && bytes > 192) || too_few {
                continue;
            }
            let params = Params::new("staged").with("threads", threads).with("rows", rows);
            let params = params.with("vec", vec).with("width", width);
            if !all.contains(&params) && staged_legal(desc, &params, caps).is_ok() {
                all.push(params);
            }
        }
    }
    all
}

/// Rows from which `staged` may be faster than `line` on an H200; from four times as many on, it is, where rows are
/// not longer than [`SHORT_BYTES`].
pub(crate) const MANY_ROWS: usize = 32_768;
pub(crate) const SHORT_BYTES: usize = 192;

fn slab_legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Col)?;
    let get = |name| value(SLAB, params, name);
    let (threads, height, vec) = (get("threads"), get("height"), get("vec"));
    powers(&[
        ("threads", threads, 32, caps.max_group.min(512)),
        ("height", height, 1, 256),
        ("vec", vec, 1, widest(desc.dtype).min(height)),
    ])?;
    if desc.m > height as usize {
        return Err(format!("{} rows do not fit height={height}", desc.m));
    }
    let per = height / vec;
    if per > 32 || threads > 64 * per {
        return Err(format!(
            "a column of height={height} by vec={vec} takes {per} threads: not 1 to 32, or less \
             than threads={threads} in 64"
        ));
    }
    // Four columns of each lane with their x are in registers before the first sum. A thread of a
    // block of 512 has 128 registers, of smaller ones 255.
    let (lanes, bytes) = (64 * per / threads, desc.dtype.bytes() as u32);
    let column = (vec * bytes).div_ceil(4) + bytes.div_ceil(4);
    let held = lanes * (4 * column + vec * words(desc.dtype));
    let most = if threads > 256 { 112 } else { 144 };
    if held > most {
        return Err(format!("{held} registers of data are more than {most}"));
    }
    if desc.n > SEGMENT * SEGMENT * SEGMENT {
        return Err(format!("{} columns are more than two levels of sums", desc.n));
    }
    match get("busy") {
        0 => Err("busy=0 leaves no block to do the work".into()),
        _ => Ok(()),
    }
}

fn slab_plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let (m, segments) = (desc.m as u64, (desc.n as u64).div_ceil(SEGMENT as u64));
    let chunks = segments.div_ceil(SEGMENT as u64);
    let busy = u64::from(caps.units) * u64::from(value(SLAB, params, "busy"));
    let grid = segments.min(busy).max(1);
    let mut plan = Plan::default();
    plan.launches.push(Launch::new("slab", grid, value(SLAB, params, "threads")));
    if segments > 1 {
        let second = |entry, warps: u64| Launch {
            pdl_wait: true,
            ..Launch::new(entry, warps.div_ceil(4).max(1), 128)
        };
        plan.workspace = m * segments;
        if chunks > 1 {
            plan.workspace += m * chunks;
            plan.launches.push(second("slab_chunks", m * chunks));
        }
        plan.launches.push(second("slab_rows", m));
    }
    plan
}

fn slab_candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all = Vec::new();
    // Longer columns are `col`'s.
    if desc.m > 64 {
        return all;
    }
    let height = desc.m.next_power_of_two() as u32;
    for vec in [aligned(desc).min(height), (aligned(desc) / 2).clamp(1, height), 1] {
        for threads in [64, 128, 256, 512] {
            // As many as that only where a thread would have too many registers.
            if threads == 512 && !all.is_empty() {
                continue;
            }
            for busy in [16, 8] {
                let params = Params::new("slab").with("threads", threads).with("height", height);
                let params = params.with("vec", vec).with("busy", (busy * 128 / threads).max(1));
                if !all.contains(&params) && slab_legal(desc, &params, caps).is_ok() {
                    all.push(params);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernels_are_for() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for few in (0..=64).chain([65, 100, 192, 255, 256]) {
                    let row = Desc::of(dtype, Layout::Row, (1000, few), align);
                    let narrow = Desc { layout: Layout::Col, ..row };
                    let slab = Desc { m: few, n: 100_000, ..narrow };
                    // Taller ones of 16 bytes an element have no room in the registers.
                    let tallest = if dtype == Dtype::C64 { 16 } else { 32 };
                    let many = Desc { m: MANY_ROWS, ..row };
                    let cases =
                        [(row, 64..=256), (narrow, 0..=64), (slab, 0..=tallest), (many, 1..=LANES)];
                    for (kernel, (desc, range)) in KERNELS.iter().zip(cases) {
                        let all = (kernel.candidates)(&desc, &caps());
                        assert!(!all.is_empty() || !range.contains(&few), "{desc}");
                        for params in all {
                            kernel.fits(&desc, &params, &caps()).unwrap();
                        }
                    }
                }
            }
        }
    }

    /// What the host's view says of alignment is not what the device will have: a window of an
    /// aligned matrix is packed, and its rows then begin anywhere.
    #[test]
    fn short_rows_have_room_to_be_rotated() {
        let kernel = &KERNELS[0];
        for dtype in Dtype::ALL {
            for n in 1..=256 {
                let of = |align| Desc::of(dtype, Layout::Row, (50, n), align);
                for params in (kernel.candidates)(&of(6), &caps()) {
                    let room = params.get("rounds").unwrap() as usize * LANES;
                    assert!(n + params.get("vec").unwrap() as usize - 1 <= room, "{n}: {params}");
                    kernel.fits(&of(1), &params, &caps()).unwrap();
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let row = Desc::of(Dtype::F32, Layout::Row, (9, 100), 4);
        let col = Desc { layout: Layout::Col, ..row };
        for (desc, text, part) in [
            (row, "short team=3", "power of two"),
            (row, "short team=32", "does not divide"),
            (row, "short rounds=1", "do not fit"),
            (row, "short rounds=6", "from 1 to 5"),
            (row, "short team=4 rows=4 rounds=5", "more than 128"),
            (Desc { n: 257, ..row }, "short", "do not fit"),
            (col, "short", "layout row"),
            (col, "narrow", "do not fit width=64"),
            (Desc { n: 60, ..col }, "narrow rows=4 vec=4", "more than 64"),
            (row, "narrow", "layout col"),
            (col, "slab height=8", "do not fit height=8"),
            (col, "slab height=64", "1 to 32"),
            (col, "slab busy=0", "no block"),
            (
                Desc { dtype: Dtype::C64, m: 20, ..col },
                "slab threads=512 height=32",
                "more than 112",
            ),
            (
                Desc { dtype: Dtype::F64, m: 20, ..col },
                "slab threads=128 height=32",
                "more than 144",
            ),
            (row, "staged", "100 columns do not fit width=64"),
            (Desc { n: 40, ..row }, "staged width=48", "40 columns do not fit width=48"),
            (Desc { n: 40, ..row }, "staged vec=4 width=42", "not a multiple of vec=4 up to 64"),
            (Desc { n: 40, ..row }, "staged rows=8 width=40 threads=64", "bytes of shared memory"),
            (Desc { n: 7, dtype: Dtype::F64, ..row }, "staged width=8 rows=8", "more than 64"),
            // x has room for as many as there are lanes.
            (
                Desc { n: 47, dtype: Dtype::C64, ..row },
                "staged threads=64 width=47",
                "bytes of shared memory",
            ),
            (col, "staged", "layout row"),
            (Desc { m: 2, ..col }, "slab height=2 threads=256", "in 64"),
            (Desc { n: (1 << 24) + 1, ..col }, "slab", "two levels"),
        ] {
            let params: Params = text.parse().unwrap();
            let kernel = KERNELS.iter().find(|k| params.kernel().as_str() == k.name).unwrap();
            let why = kernel.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
