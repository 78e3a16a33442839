//! The shared kernels, one pair of files each, and the list of those that other crates add.

use std::sync::LazyLock;

use gemv_core::{Desc, Params};

use crate::caps::Caps;
use crate::kernel::{Kernel, Signature};

pub use col_thread::COL_THREAD;
#[cfg(feature = "packed")]
pub use packed::{PACKED, packed_place, packed_tiles};
pub use read::read_params;
pub use row_smem::{ROW_SMEM, row_smem_max_n};
pub use vector::{
    ELEMENTWISE, VECTOR, chain_launch, elementwise_launch, elementwise_params, elementwise_steps,
    vector_launch, vector_params,
};
pub(crate) use vector::{FUNCTIONS, STEPS, function_name};

/// Declares the modules of kernels, and a list of what each calls by this name. So a kernel is
/// entered by one line, and the list keeps the order of the lines.
///
/// `cargo fmt` does not look into a macro, so it does not format the modules; the step `format` of
/// `cargo xtask test` checks them.
///
/// ```text
/// gemv_gpu::kernel_files! {
///     static OWN: Kernel = KERNEL; // row_block::KERNEL, then col_tile::KERNEL
///     mod row_block;
///     mod col_tile;
/// }
/// ```
#[macro_export]
macro_rules! kernel_files {
    (
        $(#[$doc:meta])*
        $vis:vis static $list:ident: $type:ty = $name:ident;
        $(mod $file:ident;)*
    ) => {
        $(mod $file;)*
        $(#[$doc])*
        $vis static $list: &[$type] = &[$($file::$name),*];
    };
}

kernel_files! {
    /// The shared kernels of each file, in the order in which candidates are tried.
    static FILES: &[Kernel] = KERNELS;
    mod row;
    mod col;
    mod gemm_narrow;
    mod gemm_row;
    mod gemm_col;
    mod read;
}

// What a backend completes by its own words for vectors, and has in a list of its own.
mod col_thread;
mod row_smem;

#[cfg(feature = "packed")]
mod packed;
mod vector;

/// What such kernels have before their text whose threads have whole rows.
const WHOLE_ROWS: &str = include_str!("whole_rows.h");

/// The shared kernels: those that keep the order, and `read`.
///
/// ```
/// use gemv_gpu::kernels;
/// let names: Vec<_> = kernels().iter().filter(|k| k.ordered).map(|k| k.name).collect();
/// assert_eq!(names, [
///     "row", "strided", "col", "strided-col",
///     "gemm-narrow", "gemm-row", "gemm-strided", "gemm-col", "gemm-strided-col",
/// ]);
/// ```
pub fn kernels() -> &'static [Kernel] {
    static ALL: LazyLock<Vec<Kernel>> = LazyLock::new(|| FILES.concat());
    &ALL
}

/// Kernels of other crates, which enter by being linked: published kernels, for comparison.
///
/// ```
/// use gemv_gpu::{BASELINES, Kernel};
/// // A crate adds its own so, and is named by whoever wants them (`use that_crate as _;`).
/// #[linkme::distributed_slice(BASELINES)]
/// static MINE: &[Kernel] = &[];
/// assert!(BASELINES.iter().any(|kernels| kernels.is_empty()));
/// ```
#[linkme::distributed_slice]
pub static BASELINES: [&'static [Kernel]];

/// Every kernel of [`BASELINES`]. None keeps the [order](gemv_core::order).
pub fn baselines() -> impl Iterator<Item = &'static Kernel> {
    BASELINES.iter().flat_map(|kernels| kernels.iter())
}

/// The parameters of the baselines for a problem: kernels of one column for one column, kernels of
/// several for several and for batches.
///
/// ```
/// use gemv_core::{Desc, Dtype, Layout};
/// let caps = gemv_gpu::Caps::new(gemv_gpu::Language::Cuda);
/// let desc = Desc::of(Dtype::F32, Layout::Row, (100, 100), 4);
/// assert!(gemv_gpu::published(&desc, &caps).is_empty()); // without `use gemv_baselines as _;`
/// ```
pub fn published(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let signature =
        if (desc.rhs, desc.batch) == (1, 1) { Signature::Gemv } else { Signature::Gemm };
    let fitting = baselines().filter(|kernel| kernel.signature == signature);
    fitting.flat_map(|kernel| kernel.candidates(desc, caps)).collect()
}

/// The shared kernel of this name, or the linked baseline.
///
/// ```
/// use gemv_gpu::kernel;
/// assert!(kernel("row").is_some_and(|k| k.ordered));
/// assert!(kernel("diagonal").is_none());
/// ```
pub fn kernel(name: &str) -> Option<&'static Kernel> {
    kernels().iter().chain(baselines()).find(|k| k.name == name)
}
