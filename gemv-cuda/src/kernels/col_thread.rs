//! `col-thread`, behind CUDA's words for vectors.

use gemv_gpu::{COL_THREAD, Kernel, source};

pub(crate) const KERNEL: Kernel =
    Kernel { source: source![include_str!("vectors.cuh"), COL_THREAD.source], ..COL_THREAD };
