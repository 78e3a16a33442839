//! The crate matrixmultiply, through ndarray, as a rival of the CPU's products with several right-hand sides.

use gemv_core::float_mode::{in_default, outside};
use gemv_core::ndarray::linalg::general_mat_mul;
use gemv_core::ndarray::{ArrayView3, ArrayViewMut3, Axis, LinalgScalar};
use gemv_core::{Desc, RIVALS, Rival};

/// As much of its name as a kernel's name has room for.
#[linkme::distributed_slice(RIVALS)]
static MATRIXMULTIPLY: Rival = Rival::new("vendor-matrixmul", fits, gemm, gemm);

/// One vector is `ndarray`'s own.
fn fits(desc: &Desc) -> Result<(), String> {
    match desc.rhs <= 1 && desc.batch <= 1 {
        true => Err("is for several right-hand sides or products".into()),
        false => Ok(()),
    }
}

/// Entries are shared by the threads of rayon's pool if there are several, else blocks of rows.
fn gemm<T: LinalgScalar + Send + Sync>(
    alpha: T,
    a: ArrayView3<'_, T>,
    x: ArrayView3<'_, T>,
    beta: T,
    mut y: ArrayViewMut3<'_, T>,
) {
    let (batch, m, _) = a.dim();
    let (axis, len) = if batch > 1 { (Axis(0), batch) } else { (Axis(1), m) };
    let share = len.div_ceil(rayon::current_num_threads());
    let parts =
        y.axis_chunks_iter_mut(axis, share).zip(a.axis_chunks_iter(axis, share)).enumerate();
    let run = |(part, (mut y, a)): (usize, (ArrayViewMut3<'_, T>, ArrayView3<'_, T>))| {
        let first = if batch > 1 { part * share } else { 0 };
        for (b, (a, mut y)) in a.outer_iter().zip(y.outer_iter_mut()).enumerate() {
            general_mat_mul(alpha, &a, &x.index_axis(Axis(0), first + b), beta, &mut y);
        }
    };
    outside(|| {
        rayon::scope(|scope| parts.for_each(|part| scope.spawn(move |_| in_default(|| run(part)))));
    });
}
