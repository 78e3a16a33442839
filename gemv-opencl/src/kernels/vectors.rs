//! What the kernels for GPUs share. The text is `vectors.cl`.
//!
//! They run on CPUs as well, and are tested there, but are candidates on GPUs only (`ON_GPUS`).

pub(super) const SOURCE: &str = include_str!("vectors.cl");
