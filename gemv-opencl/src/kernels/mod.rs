//! The kernels that this backend chooses from: its own, one pair of files each, and the shared
//! ones.

mod vectors;
mod wide;

use gemv_core::{KernelInfo, fingerprint};
use gemv_gpu::{self as gpu, Kernel};

use crate::cl::OPTIONS;

gpu::kernel_files! {
    /// The kernels of each file, in the order in which candidates are tried.
    static FILES: &[Kernel] = KERNELS;
    mod row_cpu;
    mod row_short_cpu;
    mod col_cpu;
    mod col_few_rows_cpu;
    mod gemm_narrow_cpu;
    mod gemm_row_cpu;
    mod gemm_col_cpu;
    mod gemm_row_panel;
    mod gemm_col_tile;
    mod col_thread;
    mod row_smem;
    mod row_block;
    mod row_block_long;
    mod col_tile;
}

/// This backend's own kernels.
pub(crate) fn own() -> impl Iterator<Item = &'static Kernel> {
    FILES.iter().copied().flatten()
}

/// Every kernel to choose from: this backend's own, then the shared ones.
///
/// ```
/// let names: Vec<&str> = gemv::opencl::kernels().map(|kernel| kernel.name).collect();
/// assert!(names.contains(&"row-smem") && names.contains(&"row")); // its own, and shared with CUDA
/// ```
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    own().chain(gpu::kernels())
}

/// The kernel of this name: one of this backend's own, a shared or a published one.
pub(crate) fn find(name: &str) -> Option<&'static Kernel> {
    own().find(|k| k.name == name).or_else(|| gpu::kernel(name))
}

/// The kernels that keep the order, as this backend compiles them.
pub(crate) fn infos() -> Vec<KernelInfo> {
    let info = |kernel: &Kernel| {
        let info = kernel.info();
        let fingerprint = fingerprint(&[&info.fingerprint, OPTIONS], &[]);
        KernelInfo { fingerprint, ..info }
    };
    kernels().filter(|k| k.ordered).map(info).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_described_and_has_a_name_of_its_own() {
        let names: Vec<_> = kernels().map(|k| k.name).collect();
        for (i, kernel) in kernels().enumerate() {
            kernel.described().unwrap();
            assert!(!names[..i].contains(&kernel.name), "{}", kernel.name);
        }
    }
}
