//! `row-smem`: row-major matrices of up to 64 columns and many rows on GPUs; a thread has a row, which
//! comes through local memory. The text is `row_smem.cl`.

use gemv_core::Values;
use gemv_gpu::rules::*;
use gemv_gpu::{Kernel, Launch, List, source};

use super::vectors::{PARTIALS, SOURCE};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "row-smem",
    about: "A block copies its rows to local memory, and a thread computes a whole row there, on GPUs: \
            row-major, up to 64 columns.",
    source: source![SOURCE, PARTIALS, include_str!("row_smem.cl")],
    args: &[
        threads(128, 256),
        rows("Rows of a thread.", 8),
        vec(1),
        compiled(
            "max_n",
            "Most columns, a multiple of vec: a row has room for so many in local memory.",
            // Not those between: `nvidia-row-smem` of the known bugs.
            Values::OneOf(&[1, 2, 4, 8, 16, 64]),
            64,
            "MAX_N",
        ),
    ],
    rules: ROWS_IN_LOCAL_MEMORY,
    candidates: &[
        ON_GPUS,
        // Fewer rows may be faster by `row`.
        List::Only(|of| of.m() >= 4096),
        List::Value("max_n", |of| of.n().next_power_of_two()),
        List::Values("vec", |of| vec![of.aligned().min(of.get("max_n")), 1]),
        List::Shapes(
            &["threads", "rows"],
            &[&[128, 1], &[128, 2], &[128, 4], &[64, 1], &[64, 2], &[32, 1]],
        ),
        // Many bytes a thread leave too few threads.
        List::Only(|of| {
            of.get("rows") == 1 || of.get("rows") * of.get("max_n") * of.bytes() <= 192
        }),
        List::Launches,
        List::First(10),
    ],
    plan: |of| {
        let [threads, rows] = of.all(["threads", "rows"]);
        Launch::new("row_smem", of.m().div_ceil(threads * rows), threads).into()
    },
    ..Kernel::GEMV
}];
