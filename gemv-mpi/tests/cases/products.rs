//! The bits of products, whatever the split.

use std::fs;

use bytemuck::Pod;
use gemv_core::half::bf16;
use gemv_core::ndarray::{Array1, Array2, Axis};
use gemv_core::num_complex::Complex;
use gemv_core::{Device, Element, Times, devices};
use gemv_mpi::mpi::traits::*;
use gemv_mpi::{Distributed, Grid, Split};
use gemv_shard::SumElement;
use gemv_testkit::{Host, MODES, Numbers, elements_mut, npy_of, with_mode};

use super::{folder, rank_and_size};

/// Rows and columns: none, fewer than ranks, of one block, of several, of two levels of the order.
const SHAPES: [(usize, usize); 13] = [
    (0, 0),
    (0, 300),
    (5, 0),
    (1, 1),
    (3, 255),
    (2, 256),
    (3, 257),
    (7, 1000),
    (257, 300),
    (600, 513),
    (1030, 40),
    (2, 70_000),
    (270, 1300),
];

/// Every split over so many ranks.
fn splits(ranks: usize) -> Vec<Split> {
    let grids = (1..=ranks).filter(|p| ranks.is_multiple_of(*p));
    let grids = grids.map(|p| Split::Grid { p, q: ranks / p });
    [Split::Rows, Split::Columns].into_iter().chain(grids).collect()
}

pub fn all(world: &impl Communicator) {
    // Of its own memory, as a GPU is.
    let resident = Host::new("fake:0").device();
    let reference = gemv_core::device("reference").unwrap();
    let cpu = cpu().unwrap_or_else(|| resident.clone());
    for (index, split) in splits(rank_and_size(world).1).into_iter().enumerate() {
        let seed = index as u64;
        let grid = Grid::new(world, split).unwrap();
        // Ranks may have different devices.
        let mixed = if grid.rank().is_multiple_of(2) { &cpu } else { &reference };
        check::<f32, f32, _>(&grid, &cpu, 100 + seed);
        check::<f64, f64, _>(&grid, mixed, 200 + seed);
        check::<bf16, bf16, _>(&grid, &reference, 300 + seed);
        check::<bf16, f32, _>(&grid, &reference, 400 + seed);
        modes(&grid, mixed, 700 + seed);
        // In pieces.
        let grid = grid.message_bytes(1000);
        check::<f64, f64, _>(&grid, &cpu, 500 + seed);
        check::<Complex<f64>, Complex<f64>, _>(&grid, &resident, 600 + seed);
    }
}

/// The CPU, where its backend is built in: by the feature `cpu`. `GEMV_REQUIRE=cpu` asks for it.
fn cpu() -> Option<Device> {
    let there = devices().iter().any(|line| line.id == "cpu" && line.found.is_ok());
    let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
    assert!(there || !required.split(',').any(|name| name == "cpu"), "the CPU is required");
    there.then(|| gemv_core::device("cpu").unwrap())
}

/// A device that changes the last bits of a result: the comparison has to see it.
pub fn wrong_bits(world: &impl Communicator) {
    let wrong = Host {
        compute: Box::new(|job, _| {
            gemv_testkit::compute(job);
            let nearly = 1.0 + f32::EPSILON;
            let mut y = job.y();
            y.view_mut_with::<f32>(elements_mut).iter_mut().for_each(|y| *y *= nearly);
            Ok(())
        }),
        ..Host::new("fake:0")
    };
    let grid = Grid::new(world, Split::Rows).unwrap();
    check::<f32, f32, _>(&grid, &wrong.device(), 1);
}

/// Each rank calls in another floating-point mode, with factors that are subnormal.
fn modes(grid: &Grid, device: &Device, seed: u64) {
    // Of MPI itself nobody knows whether it computes: no mode in which that traps.
    let modes: Vec<_> = MODES.into_iter().filter(|(name, _)| !name.contains("traps")).collect();
    let (m, n) = (9, 1100);
    let mut numbers = Numbers::new(seed);
    let whole = Array2::from_shape_vec((m, n), numbers.elements::<f32>(m * n)).unwrap();
    let x = Array1::from_vec(numbers.elements::<f32>(n));
    let before = Array1::from_vec(numbers.elements::<f32>(m));
    let a = Distributed::from_fn(grid, device, (m, n), |i, j| whole[(i, j)]).unwrap();
    for (alpha, beta) in [(1.0, 0.0), (1e-41, 1e-41), (0.0, 1e-41), (0.7, -1.3)] {
        let mut want = before.clone();
        gemv_testkit::gemv(alpha, whole.view(), false, x.view(), beta, want.view_mut());
        for turn in 0..modes.len() {
            let mut got = before.clone();
            let mut call = || a.gemv(alpha, &x, beta, &mut got);
            // One of the ranks in its own mode.
            match (grid.rank() + turn).checked_rem(modes.len()).filter(|which| *which > 0) {
                Some(which) => with_mode(modes[which].1, call),
                None => call(),
            }
            .unwrap();
            assert!(bits(&got) == bits(&want), "{grid:?}: {alpha:e} and {beta:e}, turn {turn}");
        }
    }
}

fn bits<V: Element>(of: &Array1<V>) -> Vec<u128> {
    of.iter().map(|v| v.bits()).collect()
}

fn check<T, V, S>(grid: &Grid, device: &Device, seed: u64)
where
    T: Element + Pod + Times<V> + Times<S>,
    V: Element<Acc = S> + Pod,
    S: SumElement,
{
    let odd = S::from_parts(-0.7, 0.3);
    let other = S::from_parts(11.0 / 9.0, -1.0 / 3.0);
    let factors =
        [(S::ONE, S::ZERO), (odd, other), (S::ONE, S::ONE), (S::ZERO, other), (odd, S::ZERO)];
    let ranks = grid.dim().0 * grid.dim().1;
    for (index, (m, n)) in SHAPES.into_iter().enumerate() {
        let mut numbers = Numbers::new(seed * 100 + index as u64);
        let whole = Array2::from_shape_vec((m, n), numbers.elements::<T>(m * n)).unwrap();
        let x = Array1::from_vec(numbers.elements::<V>(n));
        let before = Array1::from_vec(numbers.elements::<V>(m));
        let a = made(grid, device, &whole, index);
        assert_eq!(a.dim(), (m, n));
        // One of the five for most shapes, all for one.
        let some = if index == 7 { &factors[..] } else { &factors[index % 5..][..1] };
        for &(alpha, beta) in some {
            // What is not read is not a number.
            let nothing = V::narrow(S::from_parts(f64::NAN, f64::NAN));
            let y = match beta == S::ZERO {
                true => Array1::from_elem(m, nothing),
                false => before.clone(),
            };
            let mut want = y.clone();
            gemv_testkit::gemv(alpha, whole.view(), false, x.view(), beta, want.view_mut());
            let what = format!(
                "{grid:?}: {m} × {n} of {}*{}, {alpha:?} and {beta:?}",
                T::DTYPE.name(),
                V::DTYPE.name()
            );
            let same = |got: &Array1<V>, how: &str| {
                assert!(
                    bits(got) == bits(&want),
                    "{what}, {how}: they do not have the bits of one process"
                );
            };

            let mut got = y.clone();
            a.gemv(alpha, &x, beta, &mut got).unwrap();
            same(&got, "whole on every rank");
            // Of any strides.
            let (mut backwards, mut y_backwards) = (x.clone(), y.clone());
            backwards.invert_axis(Axis(0));
            y_backwards.invert_axis(Axis(0));
            let x_view = backwards.as_standard_layout().into_owned();
            let mut got = y_backwards.as_standard_layout().into_owned();
            let reversed = x_view.slice_axis(Axis(0), gemv_core::ndarray::Slice::new(0, None, -1));
            let to = got.slice_axis_mut(Axis(0), gemv_core::ndarray::Slice::new(0, None, -1));
            a.gemv(alpha, reversed, beta, to).unwrap();
            got.invert_axis(Axis(0));
            same(&got, "backwards");

            let root = index % ranks;
            let at_root = grid.rank() == root;
            let own = a.scatter_x(root, at_root.then(|| x.view())).unwrap();
            let columns: Vec<usize> = a.columns().flatten().collect();
            assert!(bits(&own) == bits(&x.select(Axis(0), &columns)), "{what}: x");
            let entries: Vec<usize> = a.entries().flatten().collect();
            let mut part = y.select(Axis(0), &entries);
            a.gemv_local(alpha, &own, beta, &mut part).unwrap();
            assert!(bits(&part) == bits(&want.select(Axis(0), &entries)), "{what}: own part of y");
            let mut got = Array1::from_elem(m, nothing);
            a.gather_y(root, part.view(), at_root.then(|| got.view_mut())).unwrap();
            if at_root {
                same(&got, "gathered");
            }
        }
    }
}

/// The matrix over the ranks, in one of the four ways.
fn made<'g, T: Element + Pod>(
    grid: &'g Grid,
    device: &Device,
    whole: &Array2<T>,
    way: usize,
) -> Distributed<'g, T> {
    let dim = whole.dim();
    match way % 4 {
        0 => {
            let columns: Vec<usize> = grid.columns(dim).flatten().collect();
            let part = whole.select(Axis(0), &own_rows(grid, dim)).select(Axis(1), &columns);
            // By columns.
            let part = part.t().as_standard_layout().into_owned().reversed_axes();
            Distributed::from_part(grid, device, dim, part).unwrap()
        }
        1 => Distributed::from_fn(grid, device, dim, |i, j| whole[(i, j)]).unwrap(),
        way => {
            let path = folder().join("a.npy");
            let written = match grid.rank() {
                0 => fs::write(&path, npy_of(whole, way == 2, false)),
                _ => Ok(()),
            };
            grid.agree(written).unwrap();
            let a = Distributed::from_npy(grid, device, &path).unwrap();
            // Before the next is written.
            grid.agree(Ok::<_, String>(())).unwrap();
            a
        }
    }
}

/// The rows of this rank, by the definition of the splits.
fn own_rows(grid: &Grid, dim: (usize, usize)) -> Vec<usize> {
    let ((p, q), rank, m) = (grid.dim(), grid.rank(), dim.0);
    let rows: Vec<usize> = match grid.split() {
        Split::Rows => (m * rank / p..m * (rank + 1) / p).collect(),
        Split::Columns => (0..m).collect(),
        Split::Grid { .. } => (0..m).filter(|i| i / 256 % p == rank / q).collect(),
    };
    assert!(grid.rows(dim).flatten().eq(rows.iter().copied()));
    rows
}
