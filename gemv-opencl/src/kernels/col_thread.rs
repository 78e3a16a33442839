//! `col-thread`, behind OpenCL's words for vectors.

use gemv_gpu::{COL_THREAD, Kernel, source};

use super::vectors::SOURCE;

pub(super) const KERNELS: &[Kernel] =
    &[Kernel { source: source![SOURCE, COL_THREAD.source], ..COL_THREAD }];
