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

#[cfg(test)]
mod tests {
    use gemv_core::ndarray::{Array3, s};
    use gemv_core::reference;

    use super::*;

    /// Small whole numbers: every order of additions gives the same.
    #[test]
    fn whole_numbers_have_exact_products() {
        let fill = |dim, by: usize| {
            let mut at = by;
            Array3::from_shape_simple_fn(dim, || {
                at = (at * 31 + 7) % 1009;
                (at % 17) as f64 - 8.0
            })
        };
        for (batch, m, n, columns) in [(1, 37, 70, 5), (5, 8, 9, 1), (3, 1, 300, 4), (2, 3, 0, 2)] {
            let (a, x) = (fill((batch, m, n), 3), fill((batch, n, columns), 5));
            for (alpha, beta) in [(1.0, 0.0), (2.0, -1.0), (0.0, 0.5), (0.0, 0.0)] {
                let mut want = fill((batch, m, columns), 11);
                let mut got = want.clone();
                for b in 0..batch {
                    for c in 0..columns {
                        let (a, x) = (a.slice(s![b, .., ..]), x.slice(s![b, .., c]));
                        let y = want.slice_mut(s![b, .., c]);
                        reference::gemv(alpha, a, false, x, beta, y);
                    }
                }
                if beta == 0.0 {
                    // Must not be read.
                    got.fill(f64::NAN);
                }
                gemm(alpha, a.view(), x.view(), beta, got.view_mut());
                assert_eq!(got, want, "{batch} x {m} x {n} x {columns}, {alpha}, {beta}");
            }
        }
    }

    #[test]
    fn it_is_for_real_numbers_and_several_columns_or_products() {
        let one = Desc::of(Dtype::F32, gemv_core::Layout::Row, (9, 9), 6);
        let many = Desc { rhs: 2, ..one };
        assert!(fits(&many).is_ok() && fits(&Desc { batch: 2, ..one }).is_ok());
        assert!(fits(&one).is_err() && fits(&many.of_type(Dtype::Bf16)).is_err());
        assert!(!gemv_core::Params::new(VENDOR.as_str()).keeps_order());
    }
}
