//! The locally optimal block preconditioned conjugate gradient method, without a preconditioner.

use std::error::Error;
use std::time::{Duration, Instant};

use gemv::{Accumulator, Device, DeviceMatrix, DeviceVector, Element, GpuDot};
use gemv_examples::random::Random;
use gemv_examples::{element, number};
use ndarray::{Array2, Axis, ShapeBuilder};

use crate::small::{self, Small};

/// A basis of trial vectors, and its product with the matrix: the block X, the last directions of search
/// P, the residuals W, in this order.
#[derive(Debug)]
struct Basis<T: Element> {
    s: DeviceMatrix<T>,
    product: DeviceMatrix<T>,
    /// How many of P and of W there are.
    directions: usize,
    residuals: usize,
}

/// How the block of the next basis was found.
struct Trial {
    /// The 2-norms of its residuals.
    norms: Vec<f64>,
    /// What the basis was multiplied with.
    y: Small,
    /// The Gram matrix of the basis.
    gram: Small,
}

/// Iterations after which there is no hope.
const MOST: usize = 1000;

/// Where the time went.
#[derive(Debug, Default, Clone, Copy)]
pub struct Clocks {
    /// Products with the matrix itself.
    pub matrix: Duration,
    /// Small problems on the host.
    pub host: Duration,
}

/// The largest eigenvalues of a symmetric matrix, and their eigenvectors.
#[derive(Debug)]
pub struct Lobpcg<T: Element> {
    device: Device,
    a: DeviceMatrix<T>,
    /// Vectors in the block X.
    block: usize,
    basis: Basis<T>,
    /// Where the next basis is made.
    next: Basis<T>,
    /// As many vectors as a block has: `A X - X D`, and what is made of it.
    r: DeviceMatrix<T>,
    w: DeviceMatrix<T>,
    norms: DeviceVector<T>,
    /// The eigenvalues as they are known, from the largest.
    pub values: Vec<f64>,
    pub clocks: Clocks,
    /// Below this, relative to their length, differences are rounding.
    least: f64,
}

/// Runs small problems by the clock of the host.
fn on_host<R>(clocks: &mut Clocks, work: impl FnOnce() -> Option<R>) -> Option<R> {
    let start = Instant::now();
    let result = work();
    clocks.host += start.elapsed();
    result
}

fn small<T: Element>(of: &DeviceMatrix<T>) -> gemv::Result<Small> {
    let of = of.download()?;
    Ok(Small::from_fn(of.nrows(), of.ncols(), |i, j| number(of[[i, j]])))
}

/// Rounded to the elements of the basis.
fn rounded<T: Element>(of: &Small) -> Array2<T> {
    Array2::from_shape_fn((of.nrows(), of.ncols()), |(i, j)| element(of[(i, j)]))
}

/// Zeros, each column of which lies in one piece.
fn columns<T: Element>(device: &Device, n: usize, width: usize) -> gemv::Result<DeviceMatrix<T>> {
    Ok(device.zeros((width, n))?.t())
}

impl<T: Element> Basis<T> {
    fn new(device: &Device, n: usize, width: usize) -> gemv::Result<Self> {
        let zeros = || columns(device, n, width);
        Ok(Basis { s: zeros()?, product: zeros()?, directions: 0, residuals: 0 })
    }
}

impl<T: Element> Lobpcg<T> {
    /// Begins with a block of random vectors, the same in every run.
    ///
    /// `epsilon` is the distance from 1 to the next number of T.
    pub fn new(a: DeviceMatrix<T>, block: usize, epsilon: f64) -> Result<Self, Box<dyn Error>> {
        let (device, n) = (a.device().clone(), a.dim().0);
        let mut random = Random(0);
        let start = Array2::from_shape_simple_fn((n, block).f(), || element(random.unit() - 0.5));
        let mut solver = Lobpcg {
            block,
            basis: Basis::new(&device, n, 3 * block)?,
            next: Basis::new(&device, n, 3 * block)?,
            r: device.matrix(&start)?,
            w: columns(&device, n, block)?,
            norms: device.zeros(block)?,
            values: Vec::new(),
            clocks: Clocks::default(),
            least: (100.0 * epsilon).sqrt(),
            a,
            device,
        };
        if solver.orthonormal(0, block)? < block {
            return Err("the random vectors depend on one another".into());
        }
        std::mem::swap(&mut solver.basis, &mut solver.next);
        Ok(solver)
    }

    /// Makes the first `count` vectors of r orthonormal, to one another and to the first `before` of the
    /// next basis. They and their product with the matrix follow these. As many are left as are
    /// independent.
    fn orthonormal(&mut self, before: usize, count: usize) -> Result<usize, Box<dyn Error>> {
        let Lobpcg { device, a, next, r, w, clocks, least, .. } = self;
        let mut count = count;
        // Twice is enough, as for coefficients.
        for _ in 0..2 {
            if count == 0 {
                return Ok(0);
            }
            if before > 0 {
                let q = next.s.columns(..before);
                let along = q.t().try_gpu_dot(&r.columns(..count))?;
                device
                    .product(&q, &along)
                    .scaled(T::Acc::ONE.neg(), T::Acc::ONE)
                    .to(r.columns_mut(..count)?)?;
            }
            let vectors = r.columns(..count);
            let gram = small(&vectors.t().try_gpu_dot(&vectors)?)?;
            let made = on_host(clocks, || small::orthonormal(&gram, *least * *least));
            let made = made.ok_or("a residual is not finite")?;
            count = made.ncols();
            vectors.try_gpu_dot_into(&rounded::<T>(&made), w.columns_mut(..count)?)?;
            drop(vectors);
            std::mem::swap(r, w);
        }
        let place = before..before + count;
        next.s.columns_mut(place.clone())?.assign(&r.columns(..count))?;
        device.synchronize()?;
        let start = Instant::now();
        a.try_gpu_dot_into(&r.columns(..count), next.product.columns_mut(place)?)?;
        device.synchronize()?;
        clocks.matrix += start.elapsed();
        Ok(count)
    }

    /// Makes the block the best approximations in the span of the basis.
    fn approximate(&mut self) -> Result<Trial, Box<dyn Error>> {
        let Lobpcg { device, basis, next, block, clocks, least, .. } = self;
        let (block, least) = (*block, *least);
        let width = block + basis.directions + basis.residuals;
        let (s, product) = (basis.s.columns(..width), basis.product.columns(..width));
        let a = small(&s.t().try_gpu_dot(&product)?)?;
        let gram = small(&s.t().try_gpu_dot(&s)?)?;
        let found = on_host(clocks, || {
            small::ritz(&a, &gram, block, least).or_else(|| {
                // Without the directions, which are what may depend on the others.
                let kept: Vec<usize> = (0..block).chain(block + basis.directions..width).collect();
                let of = |m: &Small| m.select_rows(&kept).select_columns(&kept);
                let (values, y) = small::ritz(&of(&a), &of(&gram), block, least)?;
                let mut all = Small::zeros(width, block);
                kept.iter().enumerate().for_each(|(from, &to)| all.set_row(to, &y.row(from)));
                Some((values, all))
            })
        });
        let (values, y) = found.ok_or("the basis has lost its rank, or is not finite")?;
        let coefficients = device.matrix(&rounded::<T>(&y))?;
        s.try_gpu_dot_into(&coefficients, next.s.columns_mut(..block)?)?;
        product.try_gpu_dot_into(&coefficients, next.product.columns_mut(..block)?)?;
        let product = next.product.columns(..block);
        self.values = values;
        let norms = self.residuals(&product)?;
        match norms.iter().all(|norm| norm.is_finite()) {
            true => Ok(Trial { norms, y, gram }),
            false => Err("a residual is not finite".into()),
        }
    }

    /// The 2-norms of the residuals `A X - X D`, which are left in r, from the product of A and the X of
    /// the next basis.
    fn residuals(&mut self, product: &DeviceMatrix<T>) -> gemv::Result<Vec<f64>> {
        let Lobpcg { device, next, block, r, norms, values, .. } = self;
        let diagonal = Small::from_diagonal(&nalgebra::DVector::from_row_slice(values));
        r.assign(product)?;
        let x = next.s.columns(..*block);
        device
            .product(&x, &rounded::<T>(&diagonal))
            .scaled(T::Acc::ONE.neg(), T::Acc::ONE)
            .to(&mut *r)?;
        for k in 0..*block {
            r.column(k).nrm2_into(norms.view_mut()?.index_axis(Axis(0), k))?;
        }
        Ok(norms.download()?.iter().map(|&norm| number(norm)).collect())
    }

    /// Makes the next basis. Vectors whose residual is not above `enough` stay in the block, but are not
    /// searched from (soft locking).
    fn search(&mut self, trial: &Trial, enough: f64) -> Result<(), Box<dyn Error>> {
        let Trial { norms, y, gram } = trial;
        let Lobpcg { device, basis, next, block, clocks, least, r, w, .. } = self;
        let (block, width) = (*block, y.nrows());
        let active: Vec<usize> = (0..block).filter(|&k| norms[k] > enough).collect();
        next.directions = 0;
        // The first basis is the block alone. Directions that depend on one another are left out: the method
        // begins again from the block and its residuals.
        let c = on_host(clocks, || {
            (width > block).then(|| small::directions(y, gram, &active, *least)).flatten()
        });
        if let Some(c) = c {
            let place = block..block + c.ncols();
            let c = device.matrix(&rounded::<T>(&c))?;
            let (s, product) = (basis.s.columns(..width), basis.product.columns(..width));
            s.try_gpu_dot_into(&c, next.s.columns_mut(place.clone())?)?;
            product.try_gpu_dot_into(&c, next.product.columns_mut(place)?)?;
            next.directions = active.len();
        }
        for (to, &from) in active.iter().enumerate() {
            w.column_mut(to)?.assign(&r.column(from))?;
        }
        std::mem::swap(r, w);
        let before = block + next.directions;
        self.next.residuals = self.orthonormal(before, active.len())?;
        std::mem::swap(&mut self.basis, &mut self.next);
        Ok(())
    }

    /// Iterates until the first `count` residuals are at most `tolerance` times the largest eigenvalue. `look`
    /// is shown the quotients of all after each iteration.
    pub fn run(
        &mut self,
        count: usize,
        tolerance: f64,
        mut look: impl FnMut(&[f64]),
    ) -> Result<(), Box<dyn Error>> {
        let mut worst = f64::INFINITY;
        for _ in 0..MOST {
            let trial = self.approximate()?;
            let largest = self.values.iter().fold(f64::MIN_POSITIVE, |m, value| m.max(value.abs()));
            let residuals: Vec<f64> = trial.norms.iter().map(|norm| norm / largest).collect();
            look(&residuals);
            worst = residuals[..count].iter().copied().fold(0.0, f64::max);
            if worst <= tolerance {
                return Ok(());
            }
            self.search(&trial, tolerance * largest)?;
        }
        Err(format!("a residual is still {worst:.1e} after {MOST} iterations").into())
    }

    /// The block: eigenvectors of [`values`](Self::values), after [`run`](Self::run).
    pub fn vectors(&self) -> DeviceMatrix<T> {
        self.next.s.columns(..self.block)
    }

    /// The 2-norms of the residuals with a new product of the matrix and the block, and how far the block is
    /// from orthonormal.
    pub fn check(&mut self) -> gemv::Result<(Vec<f64>, f64)> {
        let x = self.vectors();
        let product = self.a.try_gpu_dot(&x)?;
        let gram = small(&x.t().try_gpu_dot(&x)?)?;
        let apart = (gram - Small::identity(self.block, self.block)).amax();
        Ok((self.residuals(&product)?, apart))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A matrix of these eigenvalues: `H D H` with a Householder reflection H, whose entries are all far from 0.
    fn of_eigenvalues(values: &[f64]) -> Array2<f64> {
        let n = values.len();
        let v = Array2::from_shape_fn((n, 1), |(i, _)| 1.0 + (i % 7) as f64);
        let square: f64 = v.iter().map(|v| v * v).sum();
        let h = Array2::eye(n) - v.dot(&v.t()) * (2.0 / square);
        h.dot(&Array2::from_diag(&ndarray::arr1(values))).dot(&h)
    }

    /// Finds the first of the eigenvalues, which are sorted; how many iterations that takes.
    fn finds(eigenvalues: &[f64], block: usize, count: usize) -> usize {
        let device = gemv::device("reference").unwrap();
        let a = device.matrix(&of_eigenvalues(eigenvalues)).unwrap();
        let mut solver = Lobpcg::new(a, block, f64::EPSILON).unwrap();
        let mut iterations = 0;
        solver.run(count, 1e-9, |_| iterations += 1).unwrap();
        let scale = eigenvalues[0].abs().max(f64::MIN_POSITIVE);
        for (found, wanted) in solver.values.iter().zip(&eigenvalues[..count]) {
            assert!((found - wanted).abs() <= 1e-13 * scale, "{found} is not {wanted}");
        }
        let (norms, apart) = solver.check().unwrap();
        assert!(norms[..count].iter().all(|norm| *norm <= 2e-9 * scale), "{norms:?}");
        assert!(apart < 1e-13, "{apart}");
        iterations
    }

    #[test]
    fn eigenvalues_that_are_equal_or_near() {
        // Without the last directions it takes 50.
        assert!(finds(&clustered(), 8, 6) < 30);
    }

    #[test]
    fn a_basis_that_is_larger_than_the_rank() {
        // Three blocks of six in a space of four directions that matter.
        let values: Vec<f64> = (0..40).map(|k| f64::from(4 - k.min(4))).collect();
        assert!(finds(&values, 6, 6) < 20);
    }

    #[test]
    fn a_matrix_of_which_every_vector_is_an_eigenvector() {
        assert_eq!(finds(&[0.0; 30], 4, 4), 1);
        assert!(finds(&[1.0; 30], 4, 4) < 3);
    }

    /// A matrix of eigenvalues that are equal, near and far, the largest six of which are to be found.
    fn clustered() -> Vec<f64> {
        let rest = (0..54).map(|k| 3.0 - f64::from(k) / 10.0);
        [5.0, 5.0, 5.0, 5.0 - 1e-9, 4.0, 4.0].into_iter().chain(rest).collect()
    }

    #[test]
    fn directions_that_lie_in_the_block_are_left_out() {
        let device = gemv::device("reference").unwrap();
        let a = device.matrix(&of_eigenvalues(&clustered())).unwrap();
        let mut solver = Lobpcg::new(a, 8, f64::EPSILON).unwrap();
        for _ in 0..3 {
            let trial = solver.approximate().unwrap();
            solver.search(&trial, 0.0).unwrap();
        }
        let Basis { s, product, directions, .. } = &mut solver.basis;
        assert_eq!(*directions, 8);
        for of in [s, product] {
            let first = of.column(0).download().unwrap();
            of.column_mut(8).unwrap().assign(&first).unwrap();
        }
        let before = solver.approximate().unwrap();
        // Nothing of the directions is in the new block.
        assert_eq!(before.y.rows(8, 8).amax(), 0.0);
        solver.run(6, 1e-9, |_| {}).unwrap();
        assert!((solver.values[5] - 4.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_not_finite_is_an_error() {
        let device = gemv::device("reference").unwrap();
        let a = device.matrix(&Array2::from_elem((30, 30), f64::NAN)).unwrap();
        let mut solver = Lobpcg::new(a, 4, f64::EPSILON).unwrap();
        let why = solver.run(4, 1e-9, |_| {}).unwrap_err().to_string();
        assert_eq!(why, "the basis has lost its rank, or is not finite");
    }
}
