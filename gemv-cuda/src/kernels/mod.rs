//! The kernels that only CUDA can spell, a pair of files each: `row_block.rs` has the description
//! and the rules of `row-block`, `row_block.cu` its text.
//!
//! To add one: the two files, and one line in the list [`OWN`]. What several texts share stands in
//! `vectors.cuh`, `smem_rows.cuh` and `segment.cuh`, what several descriptions share in `gemv_gpu::rules`. What needs the f64 tensor
//! cores is in `mma.rs` and `mma.cuh`. `row_block_cyclic.rs` computes no product, and is in no list.

pub(crate) mod mma;
pub(crate) mod row_block_cyclic;

use gemv_gpu::{self as gpu, Kernel};

gpu::kernel_files! {
    /// Those that only CUDA can spell, in the order in which candidates are tried.
    pub(crate) static OWN: Kernel = KERNEL;
    mod gemm_row_mma;   // many right-hand sides of f64, by tensor cores
    mod gemm_col_mma;   // the same of a column-major matrix
    mod gemm_col_tile;  // several right-hand sides, tiles of a column-major matrix
    mod gemm_row_batch; // many matrices of few columns
    mod gemm_row_smem;  // the same, rows through shared memory
    mod gemm_col_batch; // the same of column-major matrices
    mod gemm_col_smem;  // the same, whole matrices through shared memory
    mod gemm_row_lanes; // several right-hand sides of 16-bit matrices, by the copy engine of Hopper
    mod gemm_col_lanes; // the same of a column-major matrix
    mod gemm_row_ring;  // several right-hand sides, rows through shared memory
    mod gemm_row_panel; // the same, rows through registers
    mod gemm_thread;    // several right-hand sides of few columns, a thread a row
    mod row_splitk;     // sub-warps take rows, and split long ones
    mod row_warp;       // a sub-warp a row of one segment
    mod col_thread;     // a thread a row, few columns
    mod col_few_rows;   // columns as they lie, few rows
    mod row_smem;       // a thread a row of shared memory, few columns
    mod row_block;      // a block or a cluster a row
    mod row_block_long; // the same for rows beyond 65,536 columns
    mod col_tile;       // tiles of a column-major matrix
    mod row_streamk;    // segments of few long rows, dealt evenly
}

pub(crate) use row_block::row_columns;
pub(crate) use row_streamk::{COLUMNS as STREAMK_COLUMNS, ROWS as STREAMK_ROWS};

/// Every kernel that this backend can launch.
///
/// ```
/// let names: Vec<&str> = gemv::cuda::kernels().map(|kernel| kernel.name).collect();
/// assert!(names.contains(&"row-block") && names.contains(&"row")); // CUDA's, and shared with OpenCL
/// ```
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    OWN.iter().chain(gpu::kernels())
}

/// The kernel of this name, linked baselines among them.
pub(crate) fn kernel(name: &str) -> Option<&'static Kernel> {
    kernels().chain(gpu::baselines()).find(|k| k.name == name)
}

/// Whether a kernel multiplies by the f64 tensor cores.
pub(crate) fn uses_tensor_cores(kernel: &Kernel) -> bool {
    [gemm_row_mma::KERNEL.name, gemm_col_mma::KERNEL.name].contains(&kernel.name)
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
    fn every_kernel_is_described() {
        OWN.iter().for_each(|kernel| kernel.described().unwrap());
    }
}
