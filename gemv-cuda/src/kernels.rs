//! The kernels of this backend: those shared with OpenCL, and those that only CUDA can spell.

use gemv_core::gpu::{self, Kernel};

/// Every kernel that this backend can launch.
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    gpu::kernels().iter()
}

/// The kernel of this name.
pub(crate) fn kernel(name: &str) -> Option<&'static Kernel> {
    kernels().find(|k| k.name == name)
}
