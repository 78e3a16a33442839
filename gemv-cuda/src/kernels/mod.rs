//! The kernels that only CUDA can spell, a pair of files each: `row_block.rs` has the description
//! and the rules of `row-block`, `row_block.cu` its text.
//!
//! To add one: the two files, and one line in [`OWN`]. What several texts share stands in
//! `vectors.cuh` and `segment.cuh`, what several rules share in `rules.rs`.

mod col_few_rows;
mod col_thread;
mod col_tile;
mod gemm_row_batch;
mod gemm_row_panel;
mod row_block;
mod row_block_long;
mod row_smem;
mod row_splitk;
mod row_streamk;
mod row_warp;
pub(crate) mod rules;
mod segment;

use gemv_gpu::{self as gpu, Kernel};

/// Those that only CUDA can spell, in the order in which candidates are tried.
pub(crate) static OWN: &[Kernel] = &[
    gemm_row_batch::KERNEL, // many matrices of few columns
    gemm_row_panel::KERNEL, // several right-hand sides, X in registers
    row_splitk::KERNEL,     // sub-warps take rows, and split long ones
    row_warp::KERNEL,       // a sub-warp a row of one segment
    col_thread::KERNEL,     // a thread a row, few columns
    col_few_rows::KERNEL,   // columns as they lie, few rows
    row_smem::KERNEL,       // a thread a row of shared memory, few columns
    row_block::KERNEL,      // a block or a cluster a row
    row_block_long::KERNEL, // the same for rows beyond 65,536 columns
    col_tile::KERNEL,       // tiles of a column-major matrix
    row_streamk::KERNEL,    // segments of few long rows, dealt evenly
];

/// Every kernel that this backend can launch.
///
/// ```
/// let names: Vec<&str> = gemv_cuda::kernels().map(|kernel| kernel.name).collect();
/// assert!(names.contains(&"row-block") && names.contains(&"row")); // CUDA's, and shared with OpenCL
/// ```
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    OWN.iter().chain(gpu::kernels())
}

/// The kernel of this name, linked baselines among them.
pub(crate) fn kernel(name: &str) -> Option<&'static Kernel> {
    kernels().chain(gpu::baselines()).find(|k| k.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: Vec<_> = kernels().map(|k| k.name).collect();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "{names:?}");
    }

    #[test]
    fn every_argument_is_described_and_its_default_is_legal() {
        for kernel in OWN {
            assert!(kernel.about.ends_with('.'), "{}", kernel.name);
            for arg in kernel.args {
                assert!(arg.about.ends_with('.'), "{} {}", kernel.name, arg.name);
                assert_eq!(arg.check(arg.default), Ok(()), "{}", kernel.name);
            }
        }
    }
}
