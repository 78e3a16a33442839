//! Published kernels as baselines by name: `classic-*`.
//!
//! They keep an order of additions of their own, so they are never chosen by a table: they run on
//! request, and are tested against an error bound. Linking this crate (`use gemv_baselines as _;`)
//! enters them in [`gemv_gpu::BASELINES`].
//!
//! | name | source |
//! |---|---|
//! | `classic-thread` | H. H. B. Sørensen, *High-Performance Matrix-Vector Multiplication on the GPU* (2011): one thread per row, x in shared memory |
//! | `classic-columns` | the same: several threads per row in a 2-D grid, atomic addition between blocks |
//! | `classic-rows` | the same: several rows per thread |
//! | `classic-spread` | the same: the threads of a block spread along columns |
//! | `classic-general` | the same: the versatile kernel, which contains the others |
//! | `classic-stages` | E. Bainville, *OpenCL GEMV* (2010): P threads per row, partial sums in an m x P array, reduced by a second kernel |
//! | `classic-block` | course SDS 406 of The Cyprus Institute: one block per row |
//! | `classic-block-x` | the same, with x in shared memory |
//! | `classic-tile` | the same, with A and x in shared memory and a 2-D block |
//! | `classic-sgemm-1` | C. Nugteren, *OpenCL matrix-multiplication SGEMM tutorial* (2014), kernel 1, for several right-hand sides: one thread an entry |
//! | `classic-sgemm-2` | the same, kernel 2: tiles in shared memory |
//! | `classic-sgemm-3` | the same, kernel 3: several entries a thread |
//! | `classic-sgemm-4` | the same, kernel 4: wider data types |
//!
//! Arguments have their authors' names. `vec`, the width of loads, is that of C. Nugteren's CLBlast.
//! Every kernel takes any strides: a row-major matrix runs through the transposed indexing. Each
//! text begins with its order of additions and an error bound.
//!
//! The crate [matrixmultiply](https://docs.rs/matrixmultiply) is there as `vendor-matrixmul`, a rival of the CPU's products
//! with several right-hand sides ([`gemv_core::RIVALS`]). A library with the C interface of the BLAS, such as OpenBLAS, MKL or BLIS, is
//! `vendor-cblas`, for one right-hand side and for several: the environment variable [`CBLAS_ENV`] has its path. The library's
//! own variables, such as `OPENBLAS_NUM_THREADS`, set its threads. Its integers must have 32 bits (LP64).
//! Threads that go on spinning after a product take processors from what is measured next: set `OPENBLAS_THREAD_TIMEOUT=4`, for MKL
//! `KMP_BLOCKTIME=0`. Where a BLAS is there, it is offered before matrixmultiply.
#![deny(unsafe_code)] // but for what linkme makes

mod bainville;
mod cblas;
mod common;
mod matrixmultiply;
mod nugteren;
mod sds406;
mod sorensen;

use gemv_gpu::Kernel;

pub use cblas::{CBLAS_ENV, load_cblas};

/// Enters the kernels where the backends look them up.
#[linkme::distributed_slice(gemv_gpu::BASELINES)]
static ENTRY: &[Kernel] = KERNELS;

/// The published kernels. `candidates` of each is the space that its authors searched, where they
/// say one; Sørensen's is 8 x 8 x 8 for each type and layout of the matrix.
///
/// ```
/// use gemv_gpu::{Caps, Language};
/// use gemv_core::{Desc, Dtype};
///
/// let desc = Desc::new(Dtype::F32, 1001, 3003, (1, 1001), 0);
/// let mut caps = Caps::new(Language::Cuda);
/// (caps.units, caps.max_group, caps.local_bytes) = (132, 1024, 48 << 10);
/// let general = gemv_baselines::KERNELS.iter().find(|k| k.name == "classic-general").unwrap();
/// assert_eq!(general.candidates(&desc, &caps).len(), 8 * 8 * 8);
/// assert!(gemv_baselines::KERNELS.iter().all(|k| !k.ordered));
/// ```
pub const KERNELS: &[Kernel] = &[
    sorensen::THREAD,
    sorensen::COLUMNS,
    sorensen::ROWS,
    sorensen::SPREAD_K,
    sorensen::GENERAL,
    bainville::STAGES,
    sds406::BLOCK,
    sds406::BLOCK_X,
    sds406::TILE,
    nugteren::NAIVE,
    nugteren::TILED,
    nugteren::WORK,
    nugteren::WIDE,
];

/// How the arguments of a published kernel are scanned for pictures.
///
/// ```
/// use gemv_baselines::{Scan, scan};
/// assert_eq!(scan("classic-block"), Scan::AtMost("block"));
/// assert_eq!(scan("classic-stages"), Scan::Grid(&["parts", "op"]));
/// assert_eq!((scan("classic-rows"), scan("classic-general")), (Scan::Each, Scan::None));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// Each argument over all its values, the others as in the kernel's first parameters.
    Each,
    /// The same, and these arguments over all their combinations.
    Grid(&'static [&'static str]),
    /// The same, and this argument also where the others have their greatest values.
    AtMost(&'static str),
    /// Not at all: other kernels show the same.
    None,
}

/// How the authors of a kernel showed its arguments: Bainville's threads of a row for each way to
/// multiply and add, the course's threads of a block for the least and the most of the other argument.
/// Sørensen's versatile kernel is each of his others.
pub fn scan(kernel: &str) -> Scan {
    match kernel {
        name if name == sorensen::GENERAL.name => Scan::None,
        name if name == bainville::STAGES.name => Scan::Grid(&["parts", "op"]),
        name if [sds406::BLOCK, sds406::BLOCK_X, sds406::TILE].iter().any(|k| k.name == name) => {
            Scan::AtMost("block")
        }
        _ => Scan::Each,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemv_core::{Desc, Dtype, Layout, Params};
    use gemv_gpu::{Caps, Language, Signature, kernels};

    fn caps(language: Language) -> Caps {
        let mut caps = Caps::new(language);
        (caps.units, caps.max_group, caps.local_bytes, caps.fp64) = (132, 1024, 48 << 10, true);
        caps
    }

    #[test]
    fn described_named_apart_and_never_among_the_ordered() {
        for (i, kernel) in KERNELS.iter().enumerate() {
            kernel.described().unwrap();
            assert!(KERNELS[..i].iter().all(|k| k.name != kernel.name), "{}", kernel.name);
            assert!(kernel.name.starts_with("classic-") && !kernel.ordered, "{}", kernel.name);
            assert!(kernels().iter().all(|k| k.name != kernel.name));
            Params::new(kernel.name); // a legal name
        }
    }

    #[test]
    fn every_candidate_fits_and_the_published_space_is_whole() {
        let caps = caps(Language::Cuda);
        for kernel in KERNELS {
            let rhs = if kernel.signature == Signature::Gemm { 33 } else { 1 };
            let desc = Desc { rhs, ..Desc::of(Dtype::F32, Layout::Col, (1001, 3003), 2) };
            let all = kernel.candidates(&desc, &caps);
            assert!(!all.is_empty(), "{}", kernel.name);
            for params in &all {
                kernel.fits(&desc, params, &caps).unwrap();
                let parsed: Params = params.to_string().parse().unwrap();
                assert_eq!(parsed, *params);
            }
            if kernel.name == "classic-general" {
                assert_eq!(all.len(), 8 * 8 * 8, "the published parameters");
            }
        }
    }

    #[test]
    fn what_needs_atomics_says_so() {
        let opencl = caps(Language::OpenCl);
        let params: Params = "classic-columns n=1".parse().unwrap();
        let columns = gemv_gpu::kernel("classic-columns").unwrap();
        for (dtype, part) in [(Dtype::F64, "int64_base_atomics"), (Dtype::Bf16, "16-bit")] {
            let desc = Desc::of(dtype, Layout::Col, (10, 1000), 2);
            let why = columns.fits(&desc, &params, &opencl).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
        // One block a row adds nothing to anybody else's sum.
        let desc = Desc::of(Dtype::Bf16, Layout::Col, (10, 100), 2);
        columns.fits(&desc, &params, &opencl).unwrap();
    }
}
