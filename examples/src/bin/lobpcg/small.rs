//! The small dense problems of a block method, on the host.

use nalgebra::{DMatrix, DVector, SymmetricEigen};

pub type Small = DMatrix<f64>;

/// Sweeps of an eigenvalue of a small matrix: some ten are enough for any.
const SWEEPS: usize = 10_000;

/// Eigenvalues of a symmetric matrix from the largest to the smallest, and their eigenvectors.
fn eigen(a: Small) -> Option<(Vec<f64>, Small)> {
    if a.iter().any(|entry| !entry.is_finite()) {
        return None;
    }
    let found = SymmetricEigen::try_new(a, f64::EPSILON, SWEEPS)?;
    let mut order: Vec<usize> = (0..found.eigenvalues.len()).collect();
    order.sort_by(|&a, &b| found.eigenvalues[b].total_cmp(&found.eigenvalues[a]));
    let values = order.iter().map(|&k| found.eigenvalues[k]).collect();
    Some((values, found.eigenvectors.select_columns(&order)))
}

/// The Cholesky factor L of a Gram matrix `L Lᵀ`. There is none if one of the vectors lies in the span of
/// those before it, to within `least` of its length.
fn factor(gram: &Small, least: f64) -> Option<Small> {
    let lengths = gram.diagonal();
    let l = gram.clone().cholesky()?.unpack();
    let apart = |k: usize| l[(k, k)] > least * lengths[k].sqrt();
    (0..l.nrows()).all(apart).then_some(l)
}

/// The method of Rayleigh and Ritz for the largest eigenvalues of A: what a basis S has to be multiplied
/// with, from `Sᵀ A S` and `Sᵀ S`. There is nothing if S is not a basis.
pub fn ritz(a: &Small, gram: &Small, count: usize, least: f64) -> Option<(Vec<f64>, Small)> {
    let l = factor(gram, least)?;
    // L⁻¹ A L⁻ᵀ
    let half = l.solve_lower_triangular(a)?;
    let inner = l.solve_lower_triangular(&half.transpose())?;
    let inner = (&inner + inner.transpose()) * 0.5;
    let (mut values, vectors) = eigen(inner)?;
    values.truncate(count);
    let coefficients = l.tr_solve_lower_triangular(&vectors.columns(0, count))?;
    Some((values, coefficients))
}

/// The next directions of search: the parts of the coefficients `y` of these columns that are not along the
/// first vectors of the basis, as many as `y` has columns; orthonormal to `y` and to one another. There are
/// none if they depend on one another.
///
/// It is done with coefficients (Hetmaniuk and Lehoucq, Basis selection in LOBPCG, 2006), so that it
/// costs nothing of the length of the vectors.
pub fn directions(y: &Small, gram: &Small, columns: &[usize], least: f64) -> Option<Small> {
    let mut c = y.select_columns(columns);
    c.rows_mut(0, y.ncols()).fill(0.0);
    // Twice is enough (Giraud, Langou, Rozložník and van den Eshof, 2005).
    for _ in 0..2 {
        let along = y.tr_mul(&(gram * &c));
        c -= y * along;
    }
    let l = factor(&c.tr_mul(&(gram * &c)), least)?;
    Some(l.solve_lower_triangular(&c.transpose())?.transpose())
}

/// What makes vectors of this Gram matrix orthonormal: fewer columns if they depend on one another (SVQB of
/// Stathopoulos and Wu, 2002).
pub fn orthonormal(gram: &Small, least: f64) -> Option<Small> {
    let inverse = |length: f64| if length > 0.0 { 1.0 / length.sqrt() } else { 0.0 };
    let scale = Small::from_diagonal(&gram.diagonal().map(inverse));
    let (values, vectors) = eigen(&scale * gram * &scale)?;
    let most = values.first().copied().unwrap_or_default();
    let kept: Vec<usize> =
        (0..values.len()).filter(|&k| values[k] > 0.0 && values[k] >= least * most).collect();
    let roots = kept.iter().map(|&k| inverse(values[k]));
    let roots = Small::from_diagonal(&DVector::from_iterator(kept.len(), roots));
    Some(scale * vectors.select_columns(&kept) * roots)
}

/// All eigenvalues of a symmetric matrix, from the largest to the smallest.
pub fn eigenvalues(a: Small) -> Option<Vec<f64>> {
    Some(eigen(a)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: f64 = 1e-7;

    /// A vector a column: the third is the sum of the others.
    fn dependent() -> Small {
        Small::from_row_slice(4, 3, &[1.0, 2.0, 3.0, 0.0, 1.0, 1.0, 5.0, -3.0, 2.0, 1.0, 1.0, 2.0])
    }

    fn close(a: &Small, b: &Small) {
        assert!((a - b).amax() < 1e-12, "{a} is not {b}");
    }

    #[test]
    fn eigenvalues_in_a_basis_that_is_not_orthonormal() {
        // The eigenvalues of this matrix are 3 and 1; those of the whole, 3, 1 and -2.
        let a = Small::from_row_slice(3, 3, &[2.0, 1.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0, -2.0]);
        let s = Small::from_row_slice(3, 2, &[1.0, 100.0, 0.0, 100.0, 0.0, 0.0]);
        let gram = s.tr_mul(&s);
        let (values, y) = ritz(&s.tr_mul(&(&a * &s)), &gram, 2, LEAST).unwrap();
        assert!((values[0] - 3.0).abs() < 1e-12 && (values[1] - 1.0).abs() < 1e-12, "{values:?}");
        let x = &s * y;
        close(&x.tr_mul(&x), &Small::identity(2, 2));
        close(&(&a * &x), &(&x * Small::from_diagonal(&DVector::from_vec(values))));
    }

    #[test]
    fn what_is_no_basis_is_refused() {
        let gram = dependent().tr_mul(&dependent());
        assert!(ritz(&gram, &gram, 1, LEAST).is_none());
        // To within rounding, and whatever the lengths are.
        let near = Small::from_row_slice(2, 2, &[1.0, 1e6, 1e6, 1e12 * (1.0 + 1e-15)]);
        assert!(ritz(&near, &near, 1, LEAST).is_none());
        let apart = Small::from_row_slice(2, 2, &[1.0, 1e6, 1e6, 1e12 * (1.0 + 1e-12)]);
        assert!(ritz(&apart, &apart, 1, LEAST).is_some());
    }

    #[test]
    fn dependent_vectors_become_fewer() {
        let vectors = dependent();
        let gram = vectors.tr_mul(&vectors);
        let made = vectors * orthonormal(&gram, LEAST * LEAST).unwrap();
        close(&made.tr_mul(&made), &Small::identity(2, 2));
        assert_eq!(orthonormal(&Small::zeros(3, 3), LEAST).unwrap().ncols(), 0);
        assert!(orthonormal(&Small::from_element(2, 2, f64::NAN), LEAST).is_none());
    }

    #[test]
    fn directions_are_orthonormal_to_the_block() {
        // A basis of five vectors whose Gram matrix is this; a block of two of them.
        let gram = Small::from_fn(5, 5, |i, j| if i == j { 2.0 } else { 1.0 / (i + j) as f64 });
        let a = Small::from_fn(5, 5, |i, j| (i * j) as f64 + if i == j { 1.0 } else { 0.0 });
        let (_, y) = ritz(&a, &gram, 2, LEAST).unwrap();
        let c = directions(&y, &gram, &[0, 1], LEAST).unwrap();
        close(&y.tr_mul(&(&gram * &c)), &Small::zeros(2, 2));
        close(&c.tr_mul(&(&gram * &c)), &Small::identity(2, 2));
        // They are made of y and of its parts outside of the first two vectors.
        let mut all = Small::zeros(5, 6);
        all.columns_mut(0, 2).copy_from(&y);
        all.view_mut((2, 2), (3, 2)).copy_from(&y.rows(2, 3));
        assert_eq!(all.rank(1e-9), 4);
        all.columns_mut(4, 2).copy_from(&c);
        assert_eq!(all.rank(1e-9), 4);
        // Twice the same is once too many.
        assert!(directions(&y, &gram, &[0, 0], LEAST).is_none());
    }
}
