//! The kernel `tile`: matrices by columns, in tiles of some rows by one segment.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Dtype, Layout, Params};
use gemv_gpu::{Arg, Caps, Kernel, Launch, MAX_GRID, Plan};

use crate::few::{aligned, blocks, layout, powers, words};
use crate::kernels::{value, widest};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "tile",
    about: "",
    source: concat!(include_str!("../kernels/vectors.cu"), include_str!("../kernels/tile.cu")),
    args: ARGS,
    defines: &[],
    ordered: true,
    candidates,
    legal,
    plan,
};

/// Threads of a block, most rows of a tile, elements of a load, rounds of 64 columns under way at
/// once, blocks that share a set of rows, lanes of the second level that a block with all segments of its rows
/// keeps, blocks a unit that its registers are to leave room for, blocks a unit.
const ARGS: &[Arg] = &[
    gemv_gpu::compiled("threads", 256, "THREADS"),
    gemv_gpu::compiled("height", 32, "HEIGHT"),
    gemv_gpu::compiled("vec", 1, "VEC"),
    gemv_gpu::compiled("deep", 1, "DEEP"),
    gemv_gpu::compiled("parts", 1, "PARTS"),
    gemv_gpu::compiled("keep", 0, "KEEP"),
    gemv_gpu::compiled("room", 1, "ROOM"),
    gemv_gpu::launched("busy", 4),
];

/// Threads and registers of a unit (compute capability 8.0, 9.0 and 10.0; others have fewer threads, and leave out
/// what they have no room for).
const THREADS_OF_A_UNIT: u32 = 2048;
const REGISTERS_OF_A_UNIT: u32 = 65_536;

/// Registers of a thread for data under way and sums.
fn data(dtype: Dtype, threads: u32, (height, vec, deep): (u32, u32, u32)) -> u32 {
    let held = LANES as u32 / (threads / (height / vec)).max(1);
    held * (deep * (vec * dtype.bytes() as u32).div_ceil(4) + vec * words(dtype))
}

/// How many blocks a unit has room for with as few further registers as were seen to be enough: left to itself, the
/// compiler takes some more, and a block less finds room. What is left over for a last turn takes as long
/// as a full one; on an H200 most programs of doubles are a tenth faster by a block more.
fn room(dtype: Dtype, threads: u32, shape: (u32, u32, u32)) -> u32 {
    let others = match dtype {
        Dtype::F32 => 24,
        Dtype::F64 => 32,
        _ => 40,
    };
    let each = (data(dtype, threads, shape) + others).next_multiple_of(8);
    (REGISTERS_OF_A_UNIT / (threads * each)).clamp(1, THREADS_OF_A_UNIT / threads)
}

/// Sets of so many rows.
fn sets(desc: &Desc, height: u32) -> u64 {
    (desc.m as u64).div_ceil(height.into())
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Col)?;
    let get = |name| value(ARGS, params, name);
    let (threads, height, vec, deep) = (get("threads"), get("height"), get("vec"), get("deep"));
    let (parts, keep, room) = (get("parts"), get("keep"), get("room"));
    let lanes = LANES as u32;
    powers(&[
        ("threads", threads, 32, caps.max_group.min(512)),
        ("height", height, 16, 256),
        ("vec", vec, 1, widest(desc.dtype)),
        ("deep", deep, 1, 4),
        ("parts", parts, 1, caps.cluster),
        ("keep", keep.max(1), 1, lanes),
    ])?;
    if !(1..=THREADS_OF_A_UNIT / threads).contains(&room) {
        let most = THREADS_OF_A_UNIT / threads;
        return Err(format!("room={room} is not 1 to {most} blocks of {threads} threads"));
    }
    let per = height / vec;
    let cols = threads / per;
    if cols < vec || cols > lanes {
        return Err(format!(
            "threads={threads} read {cols} columns of height={height} by vec={vec} at once: not \
             {vec} to {lanes}"
        ));
    }
    let registers = data(desc.dtype, threads, (height, vec, deep));
    // A thread of a block of 512 has 128 registers, of smaller ones 255.
    let most = if threads > 256 { 72 } else { 192 };
    if registers > most {
        return Err(format!("{registers} registers of data are more than {most}"));
    }
    let sums = vec * threads + 32;
    let kept = if parts > 1 { lanes / parts } else { keep };
    let second = if kept > 0 { height * (kept + 2 * parts) } else { 0 };
    let bytes = desc.dtype.bytes() as u32;
    let shared = (2 * sums + second) * desc.dtype.acc_bytes() as u32 + 2 * SEGMENT as u32 * bytes;
    if shared > caps.local_bytes {
        return Err(format!("{shared} bytes of shared memory of {}", caps.local_bytes));
    }
    if desc.n > SEGMENT * SEGMENT * SEGMENT {
        return Err(format!("{} columns are more than two levels of sums", desc.n));
    }
    // With one segment there is nothing to add; with more than a level, not all of it is in a cluster.
    let shared_by = SEGMENT + 1..=SEGMENT * SEGMENT;
    if parts > 1 && !shared_by.contains(&desc.n) {
        return Err(format!("{} columns for parts={parts} of 2 to {SEGMENT} segments", desc.n));
    }
    if keep > 0 {
        let most = if keep == lanes { SEGMENT } else { keep as usize };
        if parts > 1 {
            return Err(format!("keep={keep} lanes of a block alone, with parts={parts}"));
        }
        if !(2..=most).contains(&desc.n.div_ceil(SEGMENT)) {
            return Err(format!("{} columns for keep={keep} of 2 to {most} segments", desc.n));
        }
    }
    if get("busy") == 0 {
        return Err("busy=0 leaves no block to do the work".into());
    }
    if sets(desc, height) > MAX_GRID {
        return Err(format!("{} rows are more than {MAX_GRID} sets of {height}", desc.m));
    }
    blocks(&plan(desc, params, caps))
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ARGS, params, name);
    let (m, segments) = (desc.m as u64, (desc.n as u64).div_ceil(SEGMENT as u64));
    let chunks = segments.div_ceil(SEGMENT as u64);
    let parts = u64::from(get("parts").max(1));
    let most = u64::from(caps.units) * u64::from(get("busy"));
    let sets = sets(desc, get("height"));
    let rowwise = parts > 1 || get("keep") > 0;
    let tiles = match rowwise {
        false => sets.saturating_mul(segments).min(most),
        true => sets.min((most / parts).max(1)) * parts,
    };
    let mut plan = Plan::default();
    plan.launches.push(Launch::new("tile", tiles.max(1), get("threads")));
    if segments > 1 && !rowwise {
        let second = |entry, blocks: u64| Launch {
            pdl_wait: true,
            ..Launch::new(entry, blocks.max(1), 256)
        };
        plan.workspace = m * segments;
        if chunks > 1 {
            plan.workspace += m * chunks;
            plan.launches.push(second("tile_chunks", m.div_ceil(32) * chunks));
        }
        plan.launches.push(second("tile_rows", m.div_ceil(32)));
    }
    plan
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all = Vec::new();
    let wide = aligned(desc);
    // Threads, height and rounds under way: for the widest loads, for some of half their width, and for
    // single elements, of which a thread needs more at once.
    let whole = [
        (128, 128, 2),
        (256, 128, 1),
        (128, 32, 2),
        (128, 32, 4),
        (256, 64, 2),
        (256, 64, 4),
        (256, 64, 1),
        (512, 128, 1),
        (256, 32, 2),
        (128, 16, 2),
    ];
    let half = [(256, 32, 2)];
    let single = [
        (256, 16, 4),
        (256, 32, 4),
        (128, 16, 4),
        (512, 32, 4),
        (128, 32, 2),
        (128, 32, 4),
        (256, 16, 1),
        (256, 32, 2),
        (256, 64, 1),
        (256, 64, 2),
        (256, 64, 4),
        (256, 128, 1),
        (256, 128, 2),
        (512, 32, 1),
    ];
    let wider: &[(u32, &[_])] = match wide {
        1 => &[],
        2 => &[(2, &whole)],
        _ => &[(wide, &whole), (wide / 2, &half)],
    };
    let fewer = if wide > 1 { 4 } else { single.len() };
    let mut add = |vec: u32, &(threads, height, deep): &(u32, u32, u32), keep: u32| {
        let params = Params::new("tile").with("threads", threads).with("height", height);
        let params = params.with("vec", vec).with("deep", deep);
        let params = if keep > 0 { params.with("keep", keep) } else { params };
        let params = match room(desc.dtype, threads, (height, vec, deep)) {
            1 => params,
            room => params.with("room", room),
        };
        let params = params.with("busy", THREADS_OF_A_UNIT / threads);
        if legal(desc, &params, caps).is_ok() {
            all.push(params);
        }
    };
    let segments = desc.n.div_ceil(SEGMENT);
    if segments > 1 && desc.m >= TALL && desc.n <= desc.m {
        let shapes = if wide > 1 { &TALL_VECTORS[..] } else { &TALL_SINGLE };
        let keep = if segments <= 4 { 4 } else { LANES as u32 };
        shapes.iter().for_each(|shape| add(wide, shape, keep));
        if desc.m >= 4 * TALL && desc.n <= LONG {
            return all;
        }
    }
    for &(vec, shapes) in wider.iter().chain([&(1, &single[..fewer])]) {
        shapes.iter().for_each(|shape| add(vec, shape, 0));
    }
    if desc.m > FEW_ROWS || desc.n > FEW_COLUMNS {
        return all;
    }
    // Clusters, with a block for each segment, for every second one, or two blocks.
    let full = (desc.n.div_ceil(SEGMENT).next_power_of_two() as u32).min(caps.cluster);
    let (half, deep) = (full / 2, if wide == 2 { 2 } else { 4 });
    let mut clusters = vec![
        (1, 256, 16, 4, full),
        (1, 256, 32, 4, full),
        (1, 256, 32, 4, half),
        (1, 256, 32, 4, 2),
        (wide, 128, 32, deep, full),
        (wide, 128, 32, deep, 2),
        (wide, 256, 64, 4, full),
    ];
    clusters.sort_unstable();
    clusters.dedup();
    for (vec, threads, height, deep, parts) in clusters.into_iter().filter(|c| c.4 > 1) {
        let params = Params::new("tile").with("threads", threads).with("height", height);
        let params = params.with("vec", vec).with("deep", deep).with("parts", parts);
        let params = params.with("busy", THREADS_OF_A_UNIT / threads);
        if legal(desc, &params, caps).is_ok() {
            all.push(params);
        }
    }
    all
}

/// Rows from which blocks with all segments of their rows may be faster on an H200.
const TALL: usize = 4096;
/// With four times as many rows and up to so many columns, they were.
const LONG: usize = 1024;
/// Threads, height and rounds under way of those that were, for vectors and for single elements.
const TALL_VECTORS: [(u32, u32, u32); 6] =
    [(128, 64, 2), (128, 32, 2), (128, 128, 2), (256, 64, 1), (128, 32, 4), (256, 32, 4)];
const TALL_SINGLE: [(u32, u32, u32); 5] =
    [(256, 64, 1), (128, 32, 2), (128, 16, 2), (256, 32, 4), (256, 64, 2)];

/// Rows and columns for which clusters were faster than a second launch on an H200.
const FEW_ROWS: usize = 16_384;
const FEW_COLUMNS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::caps;

    #[test]
    fn matrices_by_columns_have_candidates_and_all_are_legal() {
        for dtype in Dtype::ALL {
            for (m, n) in [(0, 0), (1, 1), (100, 100), (5000, 300), (33, 1 << 24), (1 << 31, 2)] {
                for align in [1, 3, 4, 6] {
                    let desc = Desc::of(dtype, Layout::Col, (m, n), align);
                    let all = candidates(&desc, &caps());
                    assert!(!all.is_empty(), "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn clusters_take_turns_and_need_no_second_launch() {
        let desc = Desc::of(Dtype::F32, Layout::Col, (900, 1000), 4);
        let plan = |text: &str, m| plan(&Desc { m, ..desc }, &text.parse().unwrap(), &caps());
        let blocks = |text, m| plan(text, m).launches[0].grid[0];
        assert_eq!(blocks("tile height=32 parts=4 busy=8", 900), 29 * 4);
        assert_eq!(blocks("tile height=32 parts=4 busy=1", 90_000), 132);
        // A cluster is whole, however few blocks there are to be.
        let mut one = caps();
        one.units = 1;
        let tiny: Params = "tile parts=8 busy=1".parse().unwrap();
        assert_eq!(super::plan(&desc, &tiny, &one).launches[0].grid[0], 8);
        let (alone, shared) = (plan("tile", 900), plan("tile parts=4", 900));
        assert_eq!((alone.launches.len(), shared.launches.len()), (2, 1));
        assert_eq!((alone.workspace, shared.workspace), (900 * 4, 0));
        // A block with all segments of its rows has no second one either.
        let whole = plan("tile keep=4", 900);
        assert_eq!((whole.launches.len(), whole.workspace, whole.launches[0].grid[0]), (1, 0, 29));
        // Nor any candidates of them where the device has none.
        let (has, mut none) = (candidates(&desc, &caps()), caps());
        none.cluster = 1;
        assert!(has.iter().any(|p| p.get("parts") == Some(4)));
        assert!(candidates(&desc, &none).iter().all(|p| p.get("parts").is_none()));
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let col = Desc::of(Dtype::F32, Layout::Col, (900, 1000), 4);
        for (desc, text, part) in [
            (col, "tile height=48", "power of two from 16 to 256"),
            (col, "tile threads=32 height=256", "0 columns of height=256"),
            (col, "tile threads=128 height=128 deep=4", "registers of data are more than"),
            (col, "tile threads=512 height=128 deep=4", "more than 72"),
            (col, "tile busy=0", "no block"),
            (col, "tile threads=256 room=9", "room=9 is not 1 to 8 blocks of 256 threads"),
            (col, "tile room=0", "room=0 is not 1 to 8"),
            (col, "tile parts=3", "parts=3 is not a power of two from 1 to 8"),
            (Desc { n: 256, ..col }, "tile parts=2", "256 columns for parts=2"),
            (Desc { n: 65_537, ..col }, "tile parts=8", "of 2 to 256 segments"),
            (
                Desc { dtype: Dtype::F64, ..col },
                "tile threads=512 height=128 vec=2 parts=2",
                "bytes of shared memory of 49152",
            ),
            (col, "tile keep=3", "keep=3 is not a power of two from 1 to 64"),
            (col, "tile keep=4 parts=2", "keep=4 lanes of a block alone, with parts=2"),
            (Desc { n: 256, ..col }, "tile keep=4", "256 columns for keep=4 of 2 to 4 segments"),
            (Desc { n: 1025, ..col }, "tile keep=4", "of 2 to 4 segments"),
            (Desc { n: 65_537, ..col }, "tile keep=64", "of 2 to 256 segments"),
            (Desc { m: 1 << 37, ..col }, "tile", "2147483647 sets of 32"),
            (Desc { n: (1 << 24) + 1, ..col }, "tile", "two levels"),
            (Desc { layout: Layout::Row, ..col }, "tile", "layout col"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
