//! The sums of one process to which the columns are dealt: what their operands have to be.

use gemv_core::order::SEGMENT;
use gemv_core::{Checked, Job};

/// Looks at a job of [`prepare_cyclic`](gemv_core::Backend::prepare_cyclic): its operands reach further than a product's.
///
/// # Panics
/// If an operand does not lie in its memory, or the job is scaled.
pub(crate) fn check(job: &Checked<Job<'_>>, processes: usize) {
    let (Some(x), Some(y)) = (job.x.window(), job.y.window()) else {
        panic!("sums of a process are of resident operands");
    };
    // The entry of the last column: blocks are further apart than in the matrix. And the last number of y.
    let last = x.dim[1].saturating_sub(1);
    let groups = (last / (SEGMENT * SEGMENT / processes)) as isize;
    let last = (last + last / SEGMENT * SEGMENT * (processes - 1)) as isize;
    let inside = |first: usize, entries: isize, stride: isize, len: usize| {
        let at = stride.checked_mul(entries).and_then(|by| first.checked_add_signed(by));
        at.is_some_and(|at| at < len)
    };
    let there = inside(x.first, last, x.stride(1), x.memory.len());
    assert!(there && x.dim[1] > 0, "x has the entries of all columns of the process");
    let rows = y.dim[1].saturating_sub(1) as isize;
    let there = y.stride(1) > groups
        && inside(y.first + groups as usize, rows, y.stride(1), y.memory.len());
    assert!(there, "y has place for the sums of all rows");
    assert!(job.alpha.is_one() && job.beta.is_zero(), "sums of a process are not scaled");
}
