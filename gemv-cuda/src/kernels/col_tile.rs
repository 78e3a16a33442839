//! `col-tile`: column-major matrices, in tiles of some rows by one segment.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Dtype, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, Kernel, Launch, MAX_GRID, Plan, Signature, value};

use super::rules::{
    MANY_BLOCKS, TWO_LEVELS, aligned, blocks, blocks_per_sm, cluster_k, compiled, layout, limits,
    registers, shared_memory, threads, vec, widest, words,
};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "col-tile",
    about: "Persistent blocks read tiles of tile_m rows by 256 columns, one ahead in registers; sums \
            of segments are added by further launches, in the block (row_accs) or in a cluster: \
            column-major.",
    source: concat!(include_str!("vectors.cuh"), include_str!("col_tile.cu")),
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: true,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[
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
    cluster_k("Blocks of a cluster, which share a set of rows; 1 is no cluster."),
    compiled(
        "row_accs",
        "Accumulators of segments' sums that a block keeps for each row, which it then has to \
         itself; 0 leaves the sums to further launches.",
        Values::OneOf(&[0, 1, 2, 4, 8, 16, 32, 64]),
        0,
        "ROW_ACCS",
    ),
    compiled(
        "min_blocks",
        "Least resident blocks of a multiprocessor, for which the compiler saves registers.",
        Values::Range(1, 64),
        1,
        "MIN_BLOCKS",
    ),
    blocks_per_sm(4, MANY_BLOCKS),
];

/// Threads and registers of a multiprocessor (compute capability 8.0, 9.0 and 10.0). Others have
/// fewer threads, and leave out what does not fit.
const SM_THREADS: u32 = 2048;
const SM_REGISTERS: u32 = 65_536;

/// Registers of a thread for loads in flight and sums.
fn data(desc: &Desc, threads: u32, (tile_m, vec, unroll): (u32, u32, u32)) -> u32 {
    let lanes = LANES as u32 / (threads / (tile_m / vec)).max(1);
    let load = (vec * desc.dtype.bytes() as u32).div_ceil(4);
    lanes * (unroll * load + vec * words(desc.vectors))
}

/// Blocks that fit on a multiprocessor with as few further registers as were seen to be enough.
///
/// By itself the compiler takes a few more, and a block less is resident. A partly filled last wave
/// costs as much as a full one.
fn min_blocks(desc: &Desc, threads: u32, shape: (u32, u32, u32)) -> u32 {
    let others = match desc.dtype {
        _ if desc.is_mixed() => 48,
        Dtype::F32 => 24,
        Dtype::F64 => 32,
        Dtype::F16 | Dtype::Bf16 | Dtype::C32 | Dtype::C64 => 40,
    };
    let each = (data(desc, threads, shape) + others).next_multiple_of(8);
    (SM_REGISTERS / (threads * each)).clamp(1, SM_THREADS / threads)
}

/// Sets of so many rows.
fn sets(desc: &Desc, tile_m: u32) -> u64 {
    (desc.m as u64).div_ceil(tile_m.into())
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Col)?;
    let get = |name| value(ARGS, params, name);
    let (threads, tile_m, vec) = (get("threads"), get("tile_m"), get("vec"));
    let (unroll, cluster, row_accs) = (get("unroll"), get("cluster_k"), get("row_accs"));
    let lanes = LANES as u32;
    limits(&[
        ("threads", threads, caps.max_group),
        ("vec", vec, widest(desc.dtype)),
        ("cluster_k", cluster, caps.cluster),
        ("min_blocks", get("min_blocks"), SM_THREADS / threads),
    ])?;
    let cols = threads / (tile_m / vec);
    if cols < vec || cols > lanes {
        return Err(format!(
            "threads={threads} read {cols} columns of tile_m={tile_m} by vec={vec} at once: not \
             {vec} to {lanes}"
        ));
    }
    // A thread of a block of 512 has 128 registers, of smaller ones 255.
    let most = if threads > 256 { 72 } else { 192 };
    registers(data(desc, threads, (tile_m, vec, unroll)), most)?;
    let sums = vec * threads + 32;
    let accs = if cluster > 1 { lanes / cluster } else { row_accs };
    let second = if accs > 0 { tile_m * (accs + 2 * cluster) } else { 0 };
    let bytes = desc.vectors.bytes() as u32;
    let shared = (2 * sums + second) * desc.vectors.acc_bytes() as u32 + 2 * SEGMENT as u32 * bytes;
    shared_memory(shared.into(), caps)?;
    if desc.n > TWO_LEVELS {
        return Err(format!("{} columns are more than two levels of sums", desc.n));
    }
    // With one segment there is nothing to add; with more than a level, not all of it is in a cluster.
    if cluster > 1 && !(SEGMENT + 1..=SEGMENT * SEGMENT).contains(&desc.n) {
        return Err(format!(
            "{} columns for cluster_k={cluster} of 2 to {SEGMENT} segments",
            desc.n
        ));
    }
    if row_accs > 0 {
        let most = if row_accs == lanes { SEGMENT } else { row_accs as usize };
        if cluster > 1 {
            return Err(format!("row_accs={row_accs} of a block alone, with cluster_k={cluster}"));
        }
        if !(2..=most).contains(&desc.n.div_ceil(SEGMENT)) {
            return Err(format!(
                "{} columns for row_accs={row_accs} of 2 to {most} segments",
                desc.n
            ));
        }
    }
    if sets(desc, tile_m) > MAX_GRID {
        return Err(format!("{} rows are more than {MAX_GRID} sets of {tile_m}", desc.m));
    }
    blocks(&plan(desc, params, caps))
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ARGS, params, name);
    let (m, segments) = (desc.m as u64, (desc.n as u64).div_ceil(SEGMENT as u64));
    let super_segments = segments.div_ceil(SEGMENT as u64);
    let cluster = u64::from(get("cluster_k").max(1));
    let most = u64::from(caps.units) * u64::from(get("blocks_per_sm"));
    let sets = sets(desc, get("tile_m"));
    let whole_rows = cluster > 1 || get("row_accs") > 0;
    let blocks = match whole_rows {
        false => sets.saturating_mul(segments).min(most),
        true => sets.min((most / cluster).max(1)) * cluster,
    };
    let mut plan = Plan::default();
    plan.launches.push(Launch::new("col_tile", blocks.max(1), get("threads")).waiting());
    if segments > 1 && !whole_rows {
        let further = |entry, blocks: u64| Launch::new(entry, blocks.max(1), 256).waiting();
        plan.workspace = m * segments;
        if super_segments > 1 {
            plan.workspace += m * super_segments;
            let blocks = m.div_ceil(32) * super_segments;
            plan.launches.push(further("col_tile_super_segments", blocks));
        }
        plan.launches.push(further("col_tile_reduce", m.div_ceil(32)));
    }
    plan
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let mut all = Vec::new();
    let wide = aligned(desc);
    // Threads, tile_m and unroll: for the widest loads, for some of half their width, and for single
    // elements, of which a thread needs more at once.
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
    let mut add = |vec: u32, &(threads, tile_m, unroll): &(u32, u32, u32), row_accs: u32| {
        let params = Params::new(KERNEL.name).with("threads", threads).with("tile_m", tile_m);
        let params = params.with("vec", vec).with("unroll", unroll);
        let params = if row_accs > 0 { params.with("row_accs", row_accs) } else { params };
        let params = match min_blocks(desc, threads, (tile_m, vec, unroll)) {
            1 => params,
            blocks => params.with("min_blocks", blocks),
        };
        let params = params.with("blocks_per_sm", SM_THREADS / threads);
        if KERNEL.fits(desc, &params, caps).is_ok() {
            all.push(params);
        }
    };
    let segments = desc.n.div_ceil(SEGMENT);
    if segments > 1 && desc.m >= TALL && desc.n <= desc.m {
        let shapes = if wide > 1 { &TALL_VECTORS[..] } else { &TALL_SINGLE };
        let row_accs = if segments <= 4 { 4 } else { LANES as u32 };
        shapes.iter().for_each(|shape| add(wide, shape, row_accs));
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
    let (half, unroll) = (full / 2, if wide == 2 { 2 } else { 4 });
    let mut clusters = vec![
        (1, 256, 16, 4, full),
        (1, 256, 32, 4, full),
        (1, 256, 32, 4, half),
        (1, 256, 32, 4, 2),
        (wide, 128, 32, unroll, full),
        (wide, 128, 32, unroll, 2),
        (wide, 256, 64, 4, full),
    ];
    clusters.sort_unstable();
    clusters.dedup();
    for (vec, threads, tile_m, unroll, cluster) in clusters.into_iter().filter(|c| c.4 > 1) {
        let params = Params::new(KERNEL.name).with("threads", threads).with("tile_m", tile_m);
        let params = params.with("vec", vec).with("unroll", unroll).with("cluster_k", cluster);
        let params = params.with("blocks_per_sm", SM_THREADS / threads);
        if KERNEL.fits(desc, &params, caps).is_ok() {
            all.push(params);
        }
    }
    all
}

/// Rows from which blocks with all segments of their rows may be faster on an H200.
const TALL: usize = 4096;
/// With four times as many rows and up to so many columns, they were.
const LONG: usize = 1024;
/// Threads, tile_m and unroll of those that were, for vectors and for single elements.
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
    fn clusters_are_persistent_and_need_no_second_launch() {
        let desc = Desc::of(Dtype::F32, Layout::Col, (900, 1000), 4);
        let plan = |text: &str, m| plan(&Desc { m, ..desc }, &text.parse().unwrap(), &caps());
        let blocks = |text, m| plan(text, m).launches[0].grid[0];
        assert_eq!(blocks("col-tile tile_m=32 cluster_k=4 blocks_per_sm=8", 900), 29 * 4);
        assert_eq!(blocks("col-tile tile_m=32 cluster_k=4 blocks_per_sm=1", 90_000), 132);
        // A cluster is whole, however few blocks there are to be.
        let mut one = caps();
        one.units = 1;
        let tiny: Params = "col-tile cluster_k=8 blocks_per_sm=1".parse().unwrap();
        assert_eq!(super::plan(&desc, &tiny, &one).launches[0].grid[0], 8);
        let (alone, shared) = (plan("col-tile", 900), plan("col-tile cluster_k=4", 900));
        assert_eq!((alone.launches.len(), shared.launches.len()), (2, 1));
        assert_eq!((alone.workspace, shared.workspace), (900 * 4, 0));
        // A block with all segments of its rows has no second one either.
        let whole = plan("col-tile row_accs=4", 900);
        assert_eq!((whole.launches.len(), whole.workspace, whole.launches[0].grid[0]), (1, 0, 29));
        // Nor any candidates of them where the device has none.
        let (has, mut none) = (candidates(&desc, &caps()), caps());
        none.cluster = 1;
        assert!(has.iter().any(|p| p.get("cluster_k") == Some(4)));
        assert!(candidates(&desc, &none).iter().all(|p| p.get("cluster_k").is_none()));
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let col = Desc::of(Dtype::F32, Layout::Col, (900, 1000), 4);
        for (desc, text, part) in [
            (col, "col-tile tile_m=48", "power of two from 16 to 256"),
            (col, "col-tile threads=32 tile_m=256", "0 columns of tile_m=256"),
            (col, "col-tile threads=128 tile_m=128 unroll=4", "registers of data are more than"),
            (col, "col-tile threads=512 tile_m=128 unroll=4", "more than 72"),
            (col, "col-tile blocks_per_sm=0", "blocks_per_sm=0 is not from 1"),
            (col, "col-tile threads=256 min_blocks=9", "min_blocks=9 is more than 8"),
            (col, "col-tile min_blocks=0", "min_blocks=0 is not from 1"),
            (col, "col-tile cluster_k=3", "cluster_k=3 is not a power of two from 1 to 8"),
            (Desc { n: 256, ..col }, "col-tile cluster_k=2", "256 columns for cluster_k=2"),
            (Desc { n: 65_537, ..col }, "col-tile cluster_k=8", "of 2 to 256 segments"),
            (
                col.of_type(Dtype::F64),
                "col-tile threads=512 tile_m=128 vec=2 cluster_k=2",
                "bytes of shared memory of 49152",
            ),
            (col, "col-tile row_accs=3", "row_accs=3 is not 0, 1, 2, 4"),
            (
                col,
                "col-tile row_accs=4 cluster_k=2",
                "row_accs=4 of a block alone, with cluster_k=2",
            ),
            (
                Desc { n: 256, ..col },
                "col-tile row_accs=4",
                "256 columns for row_accs=4 of 2 to 4 segments",
            ),
            (Desc { n: 1025, ..col }, "col-tile row_accs=4", "of 2 to 4 segments"),
            (Desc { n: 65_537, ..col }, "col-tile row_accs=64", "of 2 to 256 segments"),
            (Desc { m: 1 << 37, ..col }, "col-tile", "2147483647 sets of 32"),
            (Desc { n: (1 << 24) + 1, ..col }, "col-tile", "two levels"),
            (Desc { layout: Layout::Row, ..col }, "col-tile", "layout col"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
