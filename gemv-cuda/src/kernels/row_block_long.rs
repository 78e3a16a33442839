//! `row-block-long`: rows of more than 65,536 columns; a block has a super-segment of a row.
//!
//! Its text is `row_block.cu` behind `row_block_long.cu`.

use gemv_gpu::rules::*;
use gemv_gpu::{Case, Kernel, List, Rule};

use super::row_block::{self, ALONE, BLOCK, plan, shapes, vecs};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-block-long",
    about: "A thread block computes 65,536 columns of a row at a time, and a second launch adds \
            their sums: row-major, longer rows.",
    source: concat!(
        include_str!("row_block_long.cu"),
        include_str!("vectors.cuh"),
        include_str!("segment.cuh"),
        include_str!("row_block.cu")
    ),
    rules: &[
        // Of one super-segment, `row-block` has no second launch; more than 256 would need a third level.
        Rule::Columns(SUPER_SEGMENT + 1..=TWO_LEVELS),
        Rule::All(BLOCK),
        Rule::AtMost("registers", held, most_segment_registers),
    ],
    candidates: &[
        List::Values("vec", vecs),
        List::Made(|of| shapes(of, 1, &ALONE)),
        List::Value("blocks_per_sm", |of| resident_blocks(held(of), of.get("threads"))),
        List::Launches,
    ],
    plan: |of| plan(of, "row_block_long"),
    ..row_block::KERNEL
};

/// Registers of a thread, with those for the place of a super-segment, as the text counts them.
pub(super) fn held(of: &Case<'_>) -> u64 {
    segment_registers(of) + 8
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};
    use gemv_gpu::Case;

    use super::*;
    use crate::kernels::row_block::{block_rows, costs};
    use crate::testing::caps;

    const KERNELS: [Kernel; 2] = [row_block::KERNEL, KERNEL];

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for m in [0, 1, 208, 4000, 1 << 31] {
                    for n in
                        [0, 128, 129, 256, 384, 1000, 4001, 65_536, 65_537, 1 << 24, (1 << 24) + 1]
                    {
                        let desc = Desc::of(dtype, Layout::Row, (m, n), align);
                        let [all, wide] = KERNELS.map(|k| k.candidates(&desc, &caps()));
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
                        assert!(KERNELS.iter().all(|k| k.candidates(&col, &caps()).is_empty()));
                    }
                }
            }
        }
    }

    /// A block's super-segment, by the integer arithmetic of the text.
    fn super_segment_of(
        block: u64,
        blocks: u64,
        rows: u64,
        n: u64,
        at_once: u64,
    ) -> (u64, u64, u64) {
        let (cost, width) = costs(n, at_once, 1);
        let (all, super_segments) = (cost * blocks, n.div_ceil(SUPER_SEGMENT));
        let width = if blocks == rows * super_segments { super_segments * cost } else { width };
        let first = |super_segment: u64| super_segment * all / width;
        let mut super_segment = block * width / all;
        if first(super_segment + 1) <= block {
            super_segment += 1;
        }
        (super_segment, first(super_segment), first(super_segment + 1).min(blocks))
    }

    #[test]
    fn every_super_segment_has_blocks() {
        let w = SUPER_SEGMENT;
        for n in [w + 1, w + 256, 2 * w, 2 * w + 1, 5 * w - 1, 309_976, 100 * w + 77, 256 * w] {
            for m in [1, 2, 7, 53, 4000] {
                for text in [
                    "row-block-long",
                    "row-block-long blocks_per_sm=1",
                    "row-block-long threads=256 subwarp=8 warps_k=32 cluster_k=8",
                ] {
                    let desc = Desc::of(Dtype::F32, Layout::Row, (m, n as usize), 4);
                    let params: Params = text.parse().unwrap();
                    let (plan, cluster) =
                        (KERNEL.plan(&desc, &params, &caps()), params.get_or("cluster_k", 1));
                    let blocks = plan.launches[0].grid[0] / u64::from(cluster);
                    let caps = caps();
                    let of = Case::new(&KERNEL, &desc, &params, &caps);
                    let rows = of.m().div_ceil(block_rows(&of));
                    let at_once = of.get("warps_k") * of.get("cluster_k");
                    let (mut next, mut begins) = (0, 0);
                    for block in 0..blocks {
                        let (super_segment, from, end) =
                            super_segment_of(block, blocks, rows, n, at_once);
                        if block == begins {
                            assert_eq!((super_segment, from), (next, block), "{text} {desc}");
                            (next, begins) = (next + 1, end);
                            // No more than rows; in several waves, the last one has the share of its cost.
                            let (cost, width) = costs(n, at_once, 1);
                            let last = super_segment + 1 == n.div_ceil(w)
                                && blocks != rows * n.div_ceil(w);
                            let own = if last { width - super_segment * cost } else { cost };
                            let share = own as f64 / cost as f64;
                            assert!(
                                (end - from) as f64 <= share * rows as f64 + 2.0,
                                "{text} {desc}"
                            );
                        }
                        assert!((from..end).contains(&block), "{text} {desc}: {block}");
                        assert_eq!(super_segment + 1, next, "{text} {desc}: {block}");
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
            (Desc { layout: Layout::Col, ..row }, "row-block", "layout row"),
            (row, "row-block threads=1024", "from 32 to 512"),
            (row, "row-block subwarp=4", "from 8 to 32"),
            (row, "row-block warps_k=3", "power of two"),
            (row, "row-block rows=8", "from 1 to 4"),
            (
                row,
                "row-block threads=128 subwarp=32 warps_k=2 rows=4",
                "more rows than a row has segments at once",
            ),
            (row, "row-block vec=8", "vec=8 is more than 4"),
            (row, "row-block subwarp=32 vec=4", "subwarp=32 times vec=4 is more than 64"),
            (row, "row-block subwarp=32 warps_k=8", "subwarp=32 times warps_k=8 is more than 128"),
            (Desc { n: 65_537, ..row }, "row-block", "for 0 to 65536 columns, not 65537"),
            (
                Desc { n: 65_536, ..row },
                "row-block-long",
                "for 65537 to 16777216 columns, not 65536",
            ),
            (Desc { n: (1 << 24) + 1, ..row }, "row-block-long", "not 16777217"),
            (row, "row-block subwarp=8 warps_k=4 vec=4 rows=4", "more than 176"),
            (row, "row-block threads=512 subwarp=16 warps_k=4 vec=4 rows=4", "more than 88"),
            (row.of_type(Dtype::C64), "row-block subwarp=8 warps_k=1", "more than 176"),
            (
                row.of_type(Dtype::Bf16),
                "row-block threads=512 subwarp=8 warps_k=1 rows=2 vec=8",
                "bytes of local memory",
            ),
            (row, "row-block blocks_per_sm=0", "blocks_per_sm=0 is not from 1"),
            (row, "row-block cluster_k=16", "from 1 to 8"),
            (
                row,
                "row-block threads=512 subwarp=8 warps_k=64 vec=4 cluster_k=8",
                "warps_k=64 times cluster_k=8 is more than 256",
            ),
            (
                row,
                "row-block subwarp=16 warps_k=1 rows=4 cluster_k=2",
                "more rows than a row has segments at once",
            ),
            (huge, "row-block blocks_per_sm=65535", "blocks are more than"),
        ] {
            let params: Params = text.parse().unwrap();
            let kernel = KERNELS.iter().find(|k| k.name == params.kernel().as_str()).unwrap();
            let mut caps = caps();
            caps.units = if desc.m == huge.m { 1 << 20 } else { caps.units };
            let why = kernel.fits(&desc, &params, &caps).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
