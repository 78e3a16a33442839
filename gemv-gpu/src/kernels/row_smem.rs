//! `row-smem`: row-major matrices of up to 64 columns and many rows on GPUs; a thread has a row, which comes through local
//! memory. The text is `row_smem.k`.

use gemv_core::{Arg, Values};

use super::WHOLE_ROWS;
use crate::rules::*;
use crate::{Case, Kernel, Launch, source};

/// The kernel `row-smem`, but for the words for vectors that its text needs, its arguments and its candidates: a backend adds
/// its own.
///
/// ```
/// assert!(gemv_gpu::ROW_SMEM.source.contains("KERNEL(THREADS) row_smem(ARGUMENTS)"));
/// ```
pub const ROW_SMEM: Kernel = Kernel {
    name: "row-smem",
    about: "A block copies its rows to local memory, and a thread computes a whole row there, on GPUs: \
            row-major, up to 64 columns.",
    source: source![WHOLE_ROWS, include_str!("row_smem.k")],
    rules: ROWS_IN_LOCAL_MEMORY,
    plan: |of| {
        let [threads, rows] = of.all(["threads", "rows"]);
        Launch::new("row_smem", of.m().div_ceil(threads * rows), threads).waiting().into()
    },
    ..Kernel::GEMV
};

/// Its arguments, with these values of `max_n`.
///
/// ```
/// use gemv_core::Values;
/// let args = gemv_gpu::row_smem_args(Values::Range(1, 64));
/// assert_eq!(args.map(|arg| arg.name), ["threads", "rows", "vec", "max_n"]);
/// ```
pub const fn row_smem_args(max_n: Values) -> [Arg; 4] {
    let about = "Most columns, a multiple of vec: a row has room for so many in local memory.";
    let max_n = compiled("max_n", about, max_n, 64, "MAX_N");
    [threads(128, 256), rows("Rows of a thread.", 8), vec(1), max_n]
}

/// The least `max_n` of its programs for rows of this length.
///
/// ```
/// use gemv_core::{Desc, Dtype, Layout, Params};
/// use gemv_gpu::{Caps, Case, Language, ROW_SMEM, row_smem_max_n};
/// let desc = Desc::of(Dtype::F32, Layout::Row, (1 << 20, 17), 4);
/// let params = Params::new(ROW_SMEM.name);
/// assert_eq!(row_smem_max_n(&Case::new(&ROW_SMEM, &desc, &params, &Caps::new(Language::OpenCl))), 24);
/// ```
pub fn row_smem_max_n(of: &Case<'_>) -> u64 {
    match of.n() {
        few @ ..=16 => few.next_power_of_two(),
        more => more.next_multiple_of(8),
    }
}
