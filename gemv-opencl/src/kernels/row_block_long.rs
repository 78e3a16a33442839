//! `row-block-long`: rows of more than 65,536 columns on GPUs; a block has a piece of a row. The text is
//! `row_block.cl` with LONG.

use gemv_gpu::rules::*;
use gemv_gpu::{Case, Kernel, Launch, List, Plan, REDUCE_SOURCE, Rule, Split, source};

use super::row_block::{self, BLOCK, SUBWARP};
use super::vectors::SOURCE;

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "row-block-long",
    about: "A block computes 65,536 columns of a row at a time and loads the next ones meanwhile, and a \
            second launch adds the sums, on GPUs: row-major, longer rows.",
    source: source!["#define LONG 1\n", SOURCE, include_str!("row_block.cl"), REDUCE_SOURCE],
    rules: &[
        Rule::For(
            |desc, _| desc.n as u64 > SUPER_SEGMENT,
            "the kernel is for more than 65,536 columns",
        ),
        Rule::All(BLOCK),
        Rule::Holds(
            |of| of.get("rows") == 1 && of.get("subwarp") * of.get("warps_k") == of.get("threads"),
            "a block has one row: rows=1, and threads are subwarp times warps_k",
        ),
    ],
    candidates: &[
        ON_GPUS,
        List::Value("vec", |of| of.aligned()),
        // Loads that a thread has of a round in place of one, and threads of a block.
        List::Shapes(
            &["loads", "threads"],
            &[&[1, 512], &[2, 512], &[2, 256], &[2, 128], &[1, 128]],
        ),
        SUBWARP,
        List::Value("warps_k", |of| (of.get("threads") / of.get("subwarp")).min(64)),
        List::Value("threads", |of| of.get("subwarp") * of.get("warps_k")),
        List::Value("blocks_per_sm", |of| (1024 / of.get("threads")).max(1)),
        List::Launches,
        List::First(8),
    ],
    plan,
    ..row_block::KERNEL
}];

fn plan(of: &Case<'_>) -> Plan {
    let (m, count) = (of.m(), of.super_segments());
    let split = Split { parts: count, count, super_segments: true };
    let pieces = m.saturating_mul(count);
    // Even waves.
    let waves = pieces.div_ceil(of.blocks("blocks_per_sm")).max(1);
    let blocks = pieces.div_ceil(waves).max(1);
    let mut launches = vec![Launch::new("row_block_long", blocks, of.get("threads"))];
    launches.extend(split.reduce(m));
    Plan { launches, workspace: split.workspace(m), ..Plan::default() }
}
