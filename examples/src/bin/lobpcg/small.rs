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
