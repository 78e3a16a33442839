//! A rival by name: matrixmultiply, through ndarray. It keeps an order of its own, and nothing but an explicit request
//! runs it.

use gemv_core::ndarray::linalg::general_mat_mul;
use gemv_core::ndarray::{ArrayView3, ArrayViewMut3, Axis, LinalgScalar};
use gemv_core::{Accumulator, Desc, Dtype, Element, Name};

use crate::run::without_a;
use crate::simd::CpuElement;

/// Its name: as much of it as a name has room for.
pub(crate) const VENDOR: Name = Name::new("vendor-matrixmul");

/// Whether it computes such a problem.
///
/// # Errors
/// The end of a sentence that says why not.
pub(crate) fn fits(desc: &Desc) -> Result<(), String> {
    match desc.dtype {
        _ if desc.rhs <= 1 && desc.batch <= 1 => {
            Err(format!("{VENDOR} is for several right-hand sides or products"))
        }
        _ if desc.is_mixed() => Err(format!("{VENDOR} is for a matrix and vectors of one type")),
        Dtype::F32 | Dtype::F64 => Ok(()),
        _ => Err(format!("{VENDOR} is for f32 and f64")),
    }
}

/// `Y = alpha A X + beta Y` for each entry of a batch. Entries are shared by the threads of rayon's pool if there are
/// several, else blocks of rows.
pub(crate) fn gemm<T: CpuElement + Element<Acc = T> + Accumulator + LinalgScalar + Sync>(
    alpha: T,
    a: ArrayView3<'_, T>,
    x: ArrayView3<'_, T>,
    beta: T,
    mut y: ArrayViewMut3<'_, T>,
) {
    if y.is_empty() {
        return;
    }
    if alpha == <T as Accumulator>::ZERO || a.dim().2 == 0 {
        return y.lanes_mut(Axis(1)).into_iter().for_each(|y| without_a(alpha, beta, y));
    }
    let (batch, m, _) = a.dim();
    let tasks = rayon::current_num_threads();
    let (axis, len) = if batch > 1 { (Axis(0), batch) } else { (Axis(1), m) };
    let share = len.div_ceil(tasks);
    rayon::scope(|scope| {
        let parts = y.axis_chunks_iter_mut(axis, share).zip(a.axis_chunks_iter(axis, share));
        for (part, (mut y, a)) in parts.enumerate() {
            let first = if batch > 1 { part * share } else { 0 };
            scope.spawn(move |_| {
                for (b, (a, mut y)) in a.outer_iter().zip(y.outer_iter_mut()).enumerate() {
                    general_mat_mul(alpha, &a, &x.index_axis(Axis(0), first + b), beta, &mut y);
                }
            });
        }
    });
}
