//! The shared kernels that keep the order: `row`, `col`, and both for any strides.

use crate::choices::{col_candidates, row_candidates, strided_candidates, strided_col_candidates};
use crate::split::{MAX_SPLIT, Split, busy_split};
use crate::{Arg, Caps, Kernel, Launch, MAX_GRID, Plan, value};
use gemv_core::order::LANES;
use gemv_core::{Desc, Dtype, Layout, Params};

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "row",
        about: "",
        source: concat!(include_str!("../kernels/row.k"), include_str!("../kernels/reduce.k")),
        args: ROW,
        defines: &[("GENERAL", "0")],
        ordered: true,
        candidates: row_candidates,
        legal: |desc, params, caps| row_legal(desc, params, caps, false),
        plan: row_plan,
    },
    Kernel {
        name: "col",
        about: "",
        source: concat!(include_str!("../kernels/col.k"), include_str!("../kernels/reduce.k")),
        args: COL,
        defines: &[("GENERAL", "0")],
        ordered: true,
        candidates: col_candidates,
        legal: |desc, params, caps| col_legal(desc, params, caps, false),
        plan: col_plan,
    },
    Kernel {
        name: "strided",
        about: "",
        source: concat!(include_str!("../kernels/row.k"), include_str!("../kernels/reduce.k")),
        args: ROW,
        defines: &[("GENERAL", "1")],
        ordered: true,
        candidates: strided_candidates,
        legal: |desc, params, caps| row_legal(desc, params, caps, true),
        plan: row_plan,
    },
    Kernel {
        name: "strided-col",
        about: "",
        source: concat!(include_str!("../kernels/col.k"), include_str!("../kernels/reduce.k")),
        args: COL,
        defines: &[("GENERAL", "1")],
        ordered: true,
        candidates: strided_col_candidates,
        legal: |desc, params, caps| col_legal(desc, params, caps, true),
        plan: col_plan,
    },
];

/// Threads of a block, threads a row, rows a thread, elements a load, blocks a row (0: as many as
/// give every compute unit the next argument's number of blocks), blocks a unit.
const ROW: &[Arg] = &[
    crate::compiled("threads", 128, "THREADS"),
    crate::compiled("team", 16, "TEAM"),
    crate::compiled("rows", 1, "ROWS"),
    crate::compiled("vec", 1, "VEC"),
    crate::launched("split", 0),
    crate::launched("busy", 8),
];
/// Threads of a block, threads that share a row's lanes, elements a load, blocks a row, blocks a unit
/// (both as above).
const COL: &[Arg] = &[
    crate::compiled("threads", 256, "THREADS"),
    crate::compiled("share", 8, "SHARE"),
    crate::compiled("vec", 1, "VEC"),
    crate::launched("split", 0),
    crate::launched("busy", 4),
];
/// Bytes of sums that a thread may hold: beyond, they would live in memory.
pub(crate) const HELD: u64 = 512;
fn plan(desc: &Desc, entry: &'static str, threads: u32, block_rows: u64, asked: u32) -> Plan {
    let m = desc.m as u64;
    let split = Split::of(desc.n, asked);
    let blocks = m.div_ceil(block_rows) * split.parts;
    let mut launches = vec![Launch::new(entry, blocks, threads)];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), counters: 0 }
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
pub(crate) fn widest(dtype: Dtype) -> u32 {
    16 / dtype.bytes() as u32
}

pub(crate) fn for_layout(desc: &Desc, layout: Layout, general: bool) -> Result<(), String> {
    if general || desc.layout == layout {
        return Ok(());
    }
    Err(format!("the kernel is for the layout {layout}"))
}

pub(crate) fn row_legal(
    desc: &Desc,
    params: &Params,
    caps: &Caps,
    general: bool,
) -> Result<(), String> {
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

pub(crate) fn row_plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ROW, params, name);
    let (threads, team, rows) = (get("threads"), get("team"), get("rows"));
    let block_rows = u64::from(threads / team * rows);
    let split = match get("split") {
        0 => busy_split(desc, caps, block_rows, 1, get("busy")),
        split => split,
    };
    plan(desc, "row", threads, block_rows, split)
}

pub(crate) fn col_legal(
    desc: &Desc,
    params: &Params,
    caps: &Caps,
    general: bool,
) -> Result<(), String> {
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

pub(crate) fn col_plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(COL, params, name);
    let (threads, share, vec) = (get("threads"), get("share"), get("vec"));
    let block_rows = u64::from(threads / share * vec);
    let split = match get("split") {
        0 => busy_split(desc, caps, block_rows, 1, get("busy")),
        split => split,
    };
    plan(desc, "col", threads, block_rows, split)
}

/// What a thread holds, and what a block needs of local memory.
pub(crate) fn row_needs(
    desc: &Desc,
    caps: &Caps,
    threads: u32,
    team: u32,
    rows: u32,
    vec: u32,
) -> (u64, u64) {
    let [threads, team, rows, vec] = [threads, team, rows, vec].map(u64::from);
    let acc = desc.dtype.acc_bytes() as u64;
    let mut local = threads / team * rows * LANES as u64 * acc;
    if caps.language == crate::Language::OpenCl {
        local += threads * rows * vec * acc;
    }
    (LANES as u64 / team * rows * acc, local)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Language, kernels};

    fn caps(language: Language) -> Caps {
        let mut caps = Caps::new(language);
        (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
        caps
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
                            let desc = Desc::of(dtype, layout, (m, n), align);
                            let mut found = 0;
                            for kernel in kernels() {
                                for params in (kernel.candidates)(&desc, &caps) {
                                    kernel.fits(&desc, &params, &caps).unwrap();
                                    found += 1;
                                }
                            }
                            assert!((1..=34).contains(&found), "{desc}: {found} candidates");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (10, 10), 6);
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
            let kernel = crate::kernel(params.kernel().as_str()).unwrap();
            let why = kernel.fits(&desc, &params, &caps).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
