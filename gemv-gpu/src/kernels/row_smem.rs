//! `row-smem`: row-major matrices of up to 256 columns and many rows on GPUs; a thread has a row, which comes through local
//! memory. The text is `row_smem.k`.

use gemv_core::Values;

use super::WHOLE_ROWS;
use crate::rules::*;
use crate::{Case, Kernel, Launch, source};

/// The kernel `row-smem`, but for the words for vectors that its text needs, and its candidates: a backend adds its own.
///
/// ```
/// assert!(gemv_gpu::ROW_SMEM.source.contains("KERNEL(THREADS) row_smem(ARGUMENTS)"));
/// ```
pub const ROW_SMEM: Kernel = Kernel {
    name: "row-smem",
    about: "A block copies its rows to local memory, and a thread computes a whole row there, on GPUs: \
            row-major, up to 256 columns.",
    source: source![WHOLE_ROWS, include_str!("row_smem.k")],
    args: &[
        threads(128, 256),
        rows("Rows of a thread.", 8),
        vec(1),
        compiled(
            "max_n",
            "Most columns, a multiple of vec: a row has room for so many in local memory.",
            Values::Range(1, SEGMENT as u32),
            64,
            "MAX_N",
        ),
    ],
    rules: ROWS_IN_LOCAL_MEMORY,
    plan: |of| {
        let [threads, rows] = of.all(["threads", "rows"]);
        Launch::new("row_smem", of.m().div_ceil(threads * rows), threads).waiting().into()
    },
    ..Kernel::GEMV
};

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
        more @ 17..=64 => more.next_multiple_of(8),
        many => MANY.into_iter().find(|most| many <= *most).unwrap_or(many),
    }
}
