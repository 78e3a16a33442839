//! `col-cpu` and `strided-col-cpu`: a work-item with a band of rows, column by column. The text is
//! `col_cpu.cl`.

use gemv_core::{Layout, Values};
use gemv_gpu::rules::compiled;
use gemv_gpu::{Kernel, List, REDUCE_SOURCE, Rule, source};

use super::wide::{self, BLOCKS_PER_SM, CPU, PREFETCH, ROWS, SPLIT_K};

pub(super) const KERNELS: &[Kernel] = &[COL, STRIDED];

const COL: Kernel = Kernel {
    name: "col-cpu",
    about: "Column-major matrices on CPUs: a work-item computes a tile of rows, up to 16 columns a \
            pass.",
    source: source![wide::SOURCE, wide::TREE, include_str!("col_cpu.cl"), REDUCE_SOURCE],
    args: &[
        compiled(
            "tile_m",
            "Rows of a tile, whose partial sums a work-item has in private memory.",
            Values::Multiples(16, 16, 4096),
            512,
            "TILE_M",
        ),
        PREFETCH,
        BLOCKS_PER_SM,
        SPLIT_K,
    ],
    rules: &[
        CPU,
        // Two stacks of seven and one vector, of one item.
        Rule::AtMost(
            "bytes of private memory",
            |of| 15 * (of.get("tile_m") + 2 * ROWS) * of.acc_bytes(),
            |_| wide::PRIVATE,
        ),
    ],
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Col),
        List::Shapes(
            &["tile_m", "prefetch", "blocks_per_sm"],
            &[&[1024, 0, 1], &[1024, 0, 4], &[1024, 512, 4], &[4096, 512, 1], &[4096, 512, 4]],
        ),
        SPLITS,
    ],
    plan: |of| wide::plan(of, "col_cpu", ROWS, of.get("tile_m")),
    ..Kernel::GEMV
};

const STRIDED: Kernel = Kernel {
    name: "strided-col-cpu",
    about: "Any strides on CPUs: as col-cpu, by loads of one element.",
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Strided),
        // Loads of one element ask for nothing.
        List::Shapes(&["tile_m", "prefetch", "blocks_per_sm"], &[&[1024, 0, 1], &[1024, 0, 4]]),
        SPLITS,
    ],
    ..COL
};

const SPLITS: List = List::Values("split_k", |of| wide::splits(of, of.get("tile_m")));
