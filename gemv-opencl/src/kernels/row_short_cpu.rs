//! `row-short-cpu`: short rows of f32 and f64, a work-item with a band of rows. The text is
//! `row_short_cpu.cl`.

use gemv_core::{Dtype, Layout, Values};
use gemv_gpu::rules::compiled;
use gemv_gpu::{Kernel, Launch, List, Rule, source};

use super::wide::{self, BLOCKS_PER_SM, CPU, PREFETCH};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "row-short-cpu",
    about: "Row-major matrices of f32 and f64 with at most 64 columns on CPUs: the sums of 16 rows \
            are halved together.",
    source: source![wide::SOURCE, include_str!("row_short_cpu.cl")],
    args: &[
        compiled("cols", "Most columns.", Values::Powers(4, 64), 8, "COLS"),
        PREFETCH,
        BLOCKS_PER_SM,
    ],
    rules: &[
        CPU,
        Rule::For(
            |desc, _| matches!(desc.dtype, Dtype::F32 | Dtype::F64),
            "the kernel is for f32 and f64",
        ),
        Rule::AtMost("columns", |of| of.n(), |of| of.get("cols")),
    ],
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Row),
        List::Value("cols", |of| of.n().next_power_of_two().max(4)),
        List::Shapes(&["prefetch", "blocks_per_sm"], &[&[0, 4], &[4096, 4], &[0, 1]]),
    ],
    plan: |of| {
        let blocks = of.m().div_ceil(wide::ROWS).min(of.blocks("blocks_per_sm")).max(1);
        Launch::new("row_short_cpu", blocks, 1).into()
    },
    ..Kernel::GEMV
}];
