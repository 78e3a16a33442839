//! `col-thread`: column-major matrices of up to 64 columns on GPUs; a thread has whole rows. The text is
//! `col_thread.cl`.

use gemv_gpu::rules::*;
use gemv_gpu::{Kernel, Launch, List, source};

use super::vectors::{ON_GPUS, PARTIALS, SOURCE};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "col-thread",
    about: "A thread computes whole rows by itself, on GPUs: column-major, up to 64 columns.",
    source: source![SOURCE, PARTIALS, include_str!("col_thread.cl")],
    args: COLUMNS_OF_THREADS,
    rules: COLUMNS_HELD,
    candidates: &[
        ON_GPUS,
        List::Value("threads", |_| 128),
        List::Value("max_n", |of| of.n().next_power_of_two()),
        List::Values("vec", |of| vec![of.aligned(), 1]),
        List::Values("rows", |_| vec![1, 2, 4]),
        // More than 32 bytes of a column a thread leaves too few threads.
        List::Only(|of| of.get("rows") * of.get("vec") * of.bytes() <= 32),
        List::Launches,
        List::First(8),
    ],
    plan: |of| {
        let [threads, rows, vec] = of.all(["threads", "rows", "vec"]);
        Launch::new("col_thread", of.m().div_ceil(threads * rows * vec), threads).into()
    },
    ..Kernel::GEMV
}];
