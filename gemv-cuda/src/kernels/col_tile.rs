//! `col-tile`: column-major matrices, in tiles of some rows by one segment.

use gemv_core::{Dtype, Params, Values};
use gemv_gpu::rules::*;
use gemv_gpu::{Case, Kernel, Launch, List, Plan, Rule};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "col-tile",
    about: "Persistent blocks read tiles of tile_m rows by 256 columns, one ahead in registers; sums \
            of segments are added by further launches, in the block (row_accs) or in a cluster: \
            column-major.",
    source: concat!(include_str!("vectors.cuh"), include_str!("col_tile.cu")),
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
    ],
    mixed: true,
    rules: &[
        Rule::All(TILES),
        CLUSTER_OF_DEVICE,
        Rule::UpTo(&["min_blocks"], |of| SM_THREADS / of.get("threads")),
        Rule::Local(|of| {
            let [threads, tile_m, vec] = of.all(["threads", "tile_m", "vec"]);
            let [cluster, row_accs] = of.all(["cluster_k", "row_accs"]);
            let accs = if cluster > 1 { LANES / cluster } else { row_accs };
            let second = if accs > 0 { tile_m * (accs + 2 * cluster) } else { 0 };
            let sums = 2 * (vec * threads + 32) + second;
            sums * of.acc_bytes() + 2 * SEGMENT * of.desc.vectors.bytes() as u64
        }),
        // With one segment there is nothing to add; with more than a level, not all of it is in a cluster.
        Rule::Holds(
            |of| of.get("cluster_k") == 1 || (2..=SEGMENT).contains(&of.segments()),
            "a cluster is for 2 to 256 segments",
        ),
        Rule::Holds(
            |of| of.get("cluster_k") == 1 || of.get("row_accs") == 0,
            "row_accs is of a block alone, without a cluster",
        ),
    ],
    candidates: &[List::Made(shapes)],
    plan,
    ..Kernel::GEMV
};

/// Threads and registers of a multiprocessor (compute capability 8.0, 9.0 and 10.0). Others have
/// fewer threads, and leave out what does not fit.
const SM_THREADS: u64 = 2048;
const SM_REGISTERS: u64 = 65_536;

/// Blocks that fit on a multiprocessor with as few further registers as were seen to be enough.
///
/// By itself the compiler takes a few more, and a block less is resident. A partly filled last wave
/// costs as much as a full one.
fn min_blocks(of: &Case<'_>) -> u64 {
    let others = match of.desc.dtype {
        _ if of.desc.is_mixed() => 48,
        Dtype::F32 => 24,
        Dtype::F64 => 32,
        Dtype::F16 | Dtype::Bf16 | Dtype::C32 | Dtype::C64 => 40,
    };
    let (each, threads) = ((tile_registers(of) + others).next_multiple_of(8), of.get("threads"));
    (SM_REGISTERS / (threads * each)).clamp(1, SM_THREADS / threads)
}

fn plan(of: &Case<'_>) -> Plan {
    let (m, segments, cluster) = (of.m(), of.segments(), of.get("cluster_k"));
    let super_segments = segments.div_ceil(SEGMENT);
    let most = of.blocks("blocks_per_sm");
    let whole_rows = cluster > 1 || of.get("row_accs") > 0;
    let blocks = match whole_rows {
        false => tile_sets(of).saturating_mul(segments).min(most),
        true => tile_sets(of).min((most / cluster).max(1)) * cluster,
    };
    let first = Launch::new("col_tile", blocks.max(1), of.get("threads"));
    let mut plan = Plan::from(first.waiting());
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

fn shapes(of: &Case<'_>) -> Vec<Params> {
    let (m, n, segments, wide) = (of.m(), of.n(), of.segments(), of.aligned());
    let shape = |vec, (threads, tile_m, unroll)| {
        of.with([("threads", threads), ("tile_m", tile_m), ("vec", vec), ("unroll", unroll)])
    };
    let filled = |params: Params| {
        let threads = of.at(&params).get("threads");
        params.with("blocks_per_sm", (SM_THREADS / threads) as u32)
    };
    let resident = |params: Params| match min_blocks(&of.at(&params)) {
        1 => filled(params),
        blocks => filled(params.with("min_blocks", blocks as u32)),
    };
    let mut all = Vec::new();
    if segments > 1 && m >= TALL && n <= m {
        let shapes = if wide > 1 { &TALL_VECTORS[..] } else { &TALL_SINGLE };
        let row_accs = if segments <= 4 { 4 } else { LANES as u32 };
        let tall = |&of: &Shape| resident(shape(wide, of).with("row_accs", row_accs));
        all.extend(shapes.iter().map(tall));
        if m >= 4 * TALL && n <= LONG {
            return all;
        }
    }
    let wider: &[(u64, &[Shape])] = match wide {
        1 => &[],
        2 => &[(2, &WHOLE)],
        _ => &[(wide, &WHOLE), (wide / 2, &[(256, 32, 2)])],
    };
    let fewer = if wide > 1 { 4 } else { SINGLE.len() };
    for &(vec, shapes) in wider.iter().chain([&(1, &SINGLE[..fewer])]) {
        all.extend(shapes.iter().map(|&of| resident(shape(vec, of))));
    }
    if m > FEW_ROWS || n > FEW_COLUMNS {
        return all;
    }
    // Clusters, with a block for each segment, for every second one, or two blocks.
    let full = segments.next_power_of_two().min(of.caps.cluster.into());
    let (half, unroll) = (full / 2, if wide == 2 { 2 } else { 4 });
    let mut clusters = vec![
        (1, (256, 16, 4), full),
        (1, (256, 32, 4), full),
        (1, (256, 32, 4), half),
        (1, (256, 32, 4), 2),
        (wide, (128, 32, unroll), full),
        (wide, (128, 32, unroll), 2),
        (wide, (256, 64, 4), full),
    ];
    clusters.sort_unstable();
    clusters.dedup();
    let clusters = clusters.into_iter().filter(|(.., cluster)| *cluster > 1);
    all.extend(
        clusters.map(|(vec, of, cluster)| filled(shape(vec, of).with("cluster_k", cluster as u32))),
    );
    all
}

/// Threads, tile_m and unroll.
type Shape = (u64, u64, u64);

/// For the widest loads; and for single elements, of which a thread needs more at once.
const WHOLE: [Shape; 10] = [
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
const SINGLE: [Shape; 14] = [
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

/// Rows from which blocks with all segments of their rows may be faster on an H200.
const TALL: u64 = 4096;
/// With four times as many rows and up to so many columns, they were.
const LONG: u64 = 1024;
/// Threads, tile_m and unroll of those that were, for vectors and for single elements.
const TALL_VECTORS: [Shape; 6] =
    [(128, 64, 2), (128, 32, 2), (128, 128, 2), (256, 64, 1), (128, 32, 4), (256, 32, 4)];
const TALL_SINGLE: [Shape; 5] =
    [(256, 64, 1), (128, 32, 2), (128, 16, 2), (256, 32, 4), (256, 64, 2)];

/// Rows and columns for which clusters were faster than a second launch on an H200.
const FEW_ROWS: u64 = 16_384;
const FEW_COLUMNS: u64 = 4096;

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Layout};

    use super::*;
    use crate::testing::caps;

    #[test]
    fn matrices_by_columns_have_candidates_and_all_are_legal() {
        for dtype in Dtype::ALL {
            for (m, n) in [(0, 0), (1, 1), (100, 100), (5000, 300), (33, 1 << 24), (1 << 31, 2)] {
                for align in [1, 3, 4, 6] {
                    let desc = Desc::of(dtype, Layout::Col, (m, n), align);
                    let all = KERNEL.candidates(&desc, &caps());
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
        let plan =
            |text: &str, m| KERNEL.plan(&Desc { m, ..desc }, &text.parse().unwrap(), &caps());
        let blocks = |text, m| plan(text, m).launches[0].grid[0];
        assert_eq!(blocks("col-tile tile_m=32 cluster_k=4 blocks_per_sm=8", 900), 29 * 4);
        assert_eq!(blocks("col-tile tile_m=32 cluster_k=4 blocks_per_sm=1", 90_000), 132);
        // A cluster is whole, however few blocks there are to be.
        let mut one = caps();
        one.units = 1;
        let tiny: Params = "col-tile cluster_k=8 blocks_per_sm=1".parse().unwrap();
        assert_eq!(super::KERNEL.plan(&desc, &tiny, &one).launches[0].grid[0], 8);
        let (alone, shared) = (plan("col-tile", 900), plan("col-tile cluster_k=4", 900));
        assert_eq!((alone.launches.len(), shared.launches.len()), (2, 1));
        assert_eq!((alone.workspace, shared.workspace), (900 * 4, 0));
        // A block with all segments of its rows has no second one either.
        let whole = plan("col-tile row_accs=4", 900);
        assert_eq!((whole.launches.len(), whole.workspace, whole.launches[0].grid[0]), (1, 0, 29));
        // Nor any candidates of them where the device has none.
        let (has, mut none) = (KERNEL.candidates(&desc, &caps()), caps());
        none.cluster = 1;
        assert!(has.iter().any(|p| p.get("cluster_k") == Some(4)));
        assert!(KERNEL.candidates(&desc, &none).iter().all(|p| p.get("cluster_k").is_none()));
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let col = Desc::of(Dtype::F32, Layout::Col, (900, 1000), 4);
        for (desc, text, part) in [
            (col, "col-tile tile_m=48", "power of two from 16 to 256"),
            (col, "col-tile threads=32 tile_m=256", "vec=1 is more than 0"),
            (col, "col-tile threads=128 tile_m=128 unroll=4", "registers of data are more than"),
            (col, "col-tile threads=512 tile_m=128 unroll=4", "more than 72"),
            (col, "col-tile blocks_per_sm=0", "blocks_per_sm=0 is not from 1"),
            (col, "col-tile threads=256 min_blocks=9", "min_blocks=9 is more than 8"),
            (col, "col-tile min_blocks=0", "min_blocks=0 is not from 1"),
            (col, "col-tile cluster_k=3", "cluster_k=3 is not a power of two from 1 to 8"),
            (Desc { n: 256, ..col }, "col-tile cluster_k=2", "a cluster is for 2 to 256 segments"),
            (Desc { n: 65_537, ..col }, "col-tile cluster_k=8", "for 2 to 256 segments"),
            (
                col.of_type(Dtype::F64),
                "col-tile threads=512 tile_m=128 vec=2 cluster_k=2",
                "bytes of local memory, the device has 49152",
            ),
            (col, "col-tile row_accs=3", "row_accs=3 is not 0, 1, 2, 4"),
            (col, "col-tile row_accs=4 cluster_k=2", "of a block alone, without a cluster"),
            (Desc { n: 256, ..col }, "col-tile row_accs=4", "for 2 segments to as many"),
            (Desc { n: 1025, ..col }, "col-tile row_accs=4", "for 2 segments to as many"),
            (Desc { n: 65_537, ..col }, "col-tile row_accs=64", "64 for 2 to 256 segments"),
            (Desc { m: 1 << 37, ..col }, "col-tile", "sets of rows are more than 2147483647"),
            (Desc { n: (1 << 24) + 1, ..col }, "col-tile", "0 to 16777216 columns"),
            (Desc { layout: Layout::Row, ..col }, "col-tile", "layout col"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
