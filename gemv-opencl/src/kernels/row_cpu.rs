//! `row-cpu` and `strided-cpu`: a work-item with a band of rows. The text is `row_cpu.cl`.

use gemv_core::{Layout, Values};
use gemv_gpu::rules::compiled;
use gemv_gpu::{Kernel, List, REDUCE_SOURCE, source};

use super::wide::{self, BLOCKS_PER_SM, CPU, PREFETCH, SPLIT_K};

pub(super) const KERNELS: &[Kernel] = &[ROW, STRIDED];

const ROW: Kernel = Kernel {
    name: "row-cpu",
    about: "Row-major matrices on CPUs: a work-item computes a few rows at a time by vectors of \
            16 lanes.",
    source: source![wide::SOURCE, include_str!("row_cpu.cl"), REDUCE_SOURCE],
    args: &[
        compiled(
            "rows",
            "Rows that a work-item computes at a time.",
            Values::Powers(1, 4),
            4,
            "ROWS",
        ),
        PREFETCH,
        BLOCKS_PER_SM,
        SPLIT_K,
    ],
    rules: &[CPU],
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Row),
        List::Shapes(
            &["rows", "prefetch", "blocks_per_sm"],
            &[&[4, 0, 4], &[4, 0, 1], &[1, 0, 4], &[4, 1024, 4]],
        ),
        SPLITS,
    ],
    plan: |of| wide::plan(of, "row_cpu", 1, 1),
    ..Kernel::GEMV
};

const STRIDED: Kernel = Kernel {
    name: "strided-cpu",
    about: "Any strides on CPUs: as row-cpu, by loads of one element.",
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Strided),
        // Loads of one element ask for nothing.
        List::Shapes(&["rows", "prefetch", "blocks_per_sm"], &[&[4, 0, 4], &[4, 0, 1], &[1, 0, 4]]),
        SPLITS,
    ],
    ..ROW
};

const SPLITS: List = List::Values("split_k", |of| wide::splits(of, 1));
