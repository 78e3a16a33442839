//! `row-smem`, behind OpenCL's words for vectors, and its candidates.

use gemv_gpu::rules::ON_GPUS;
use gemv_gpu::{Kernel, List, ROW_SMEM, row_smem_max_n, source};

use super::vectors::SOURCE;

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    source: source![SOURCE, ROW_SMEM.source],
    candidates: &[
        ON_GPUS,
        // Fewer rows may be faster by `row`.
        List::Only(|of| of.m() >= 4096),
        List::Value("max_n", row_smem_max_n),
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
    ..ROW_SMEM
}];
