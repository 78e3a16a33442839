//! `row-block`: row-major matrices of more than a few columns on GPUs; a block has a row. The text is
//! `row_block.cl`.

use gemv_gpu::rules::*;
use gemv_gpu::{Case, Kernel, Launch, List, Plan, Rule, source};

use super::vectors::SOURCE;

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

pub(super) const KERNEL: Kernel = Kernel {
    name: "row-block",
    about: "A block computes a row at a time and loads the next one meanwhile, on GPUs: row-major, up \
            to 65,536 columns.",
    source: source![SOURCE, include_str!("row_block.cl")],
    args: &[
        threads(128, 512),
        subwarp(8),
        warps_k(2),
        rows("Rows that a sub-warp computes at a time.", 8),
        vec(1),
        blocks_per_sm(8, MANY_BLOCKS),
    ],
    // A block has one level of sums of segments.
    rules: &[Rule::Columns(0..=SUPER_SEGMENT), Rule::All(BLOCK)],
    candidates: &[
        ON_GPUS,
        // With fewer columns, rows are `row`'s and `row-smem`'s.
        List::Only(|of| of.n() > 64),
        // Elements of 8 bytes one by one, too: their sums take as many registers as two of the others.
        List::Values("vec", |of| match of.aligned() {
            wide if of.bytes() == 8 && wide > 1 => vec![wide, 1],
            wide => vec![wide],
        }),
        // Loads that a thread has of a round in place of one, most threads of a row (further segments are further
        // iterations), fewest threads of a block, rows of a sub-warp.
        List::Shapes(
            &["loads", "most", "least", "rows"],
            &[
                &[1, 512, 128, 1],
                &[2, 512, 32, 1],
                &[2, 128, 128, 1],
                &[1, 512, 32, 1],
                &[2, 512, 128, 1],
                &[1, 512, 128, 2],
                &[1, 128, 128, 1],
                &[1, 128, 128, 2],
                &[2, 32, 32, 1],
            ],
        ),
        SUBWARP,
        List::Value("warps_k", |of| {
            let all_at_once = of.segments().next_power_of_two().min(LANES);
            all_at_once.min(of.get("most") / of.get("subwarp"))
        }),
        List::Value("threads", |of| of.get("least").max(of.get("subwarp") * of.get("warps_k"))),
        List::Value("blocks_per_sm", |of| {
            resident_blocks(segment_registers(of), of.get("threads"))
        }),
        List::Launches,
        List::First(16),
    ],
    plan,
    ..Kernel::GEMV
};

/// From so many columns on, even waves are faster than more blocks.
const LONG: u64 = 2048;

/// How a block is shared out.
pub(super) const BLOCK: &[Rule] = &[
    BY_ROWS,
    ONE_LOAD,
    LOADS_OF_LANES,
    WARPS_OF_BLOCK,
    Rule::AtMost("registers of data", segment_registers, most_segment_registers),
    // Lanes of the second level, and what sub-warps exchange where there are no shuffles.
    Rule::Local(|of| {
        (2 * block_rows(of) * LANES + of.get("threads") * of.get("vec")) * of.acc_bytes()
    }),
];

/// The widest sub-warp whose threads have so many loads of a round.
pub(super) const SUBWARP: List =
    List::Value("subwarp", |of| ((LANES / of.get("vec")).min(32) / of.get("loads")).max(8));

/// Rows that a block takes at a time.
fn block_rows(of: &Case<'_>) -> u64 {
    let [threads, subwarp, warps_k, rows] = of.all(["threads", "subwarp", "warps_k", "rows"]);
    threads / (subwarp * warps_k) * rows
}

fn plan(of: &Case<'_>) -> Plan {
    let (blocks, most) = (of.m().div_ceil(block_rows(of)), of.blocks("blocks_per_sm"));
    let waves = if of.n() > LONG { blocks.div_ceil(most).max(1) } else { 1 };
    let blocks = blocks.div_ceil(waves).min(most).max(1);
    Launch::new("row_block", blocks, of.get("threads")).into()
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout};
    use gemv_gpu::{Caps, Language};

    use super::*;

    #[test]
    fn a_row_has_no_more_sub_warps_than_a_block() {
        let (caps, desc) =
            (Caps::new(Language::OpenCl), Desc::of(Dtype::F32, Layout::Row, (9, 1000), 4));
        let params = "row-block subwarp=32 warps_k=64".parse().unwrap();
        let why = KERNEL.fits(&desc, &params, &caps).unwrap_err();
        assert_eq!(why, "subwarp=32 times warps_k=64 is more than 128 here");
    }
}
