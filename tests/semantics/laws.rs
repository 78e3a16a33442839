//! What holds for any matrix: laws, tried with random ones.

use gemv::ndarray::{Array1, Array2, Axis};
use gemv::{Accumulator, Device};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::common::operand::VARIANTS;
use crate::common::{self, Check, Size, acc, elem, random, same};
use crate::helpers::{Raw, forms, oracle, real};

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn cases(device: &Device) -> u32 {
    match (common::size(), device.info().host) {
        (Size::Tiny, _) => 4,
        (Size::Full, _) => 256,
        (_, true) => 48,
        _ => 24,
    }
}

/// Rows in another order give results in that order.
pub fn rows_permute<T: Raw>(device: &Device) -> Check {
    let strategy = (1usize..40, 1usize..300, any::<u64>(), 0usize..3);
    runner(cases(device))
        .run(&strategy, |(m, n, seed, form)| {
            let a = Array2::from_shape_fn((m, n), |(i, j)| random::<T>(seed, i, j));
            let x = Array1::from_shape_fn(n, |j| random::<T>(!seed, 0, j));
            let mut order: Vec<usize> = (0..m).collect();
            order.sort_by_key(|&i| common::hash(seed, 77, i as u64));
            let moved = a.select(Axis(0), &order);
            let y = device.try_gpu_dot(&a, &x).unwrap();
            let got = device.try_gpu_dot(&forms()[form].hold(&moved).view(), &x).unwrap();
            let want: Vec<T> = order.iter().map(|&i| y[i]).collect();
            same(&got.to_vec(), &want).map_err(TestCaseError::fail)
        })
        .map_err(|e| e.to_string())
}

/// Columns in another order, of both operands, give the same sum where it is exact.
pub fn columns_permute_exactly<T: Raw>(device: &Device) -> Check {
    let strategy = (1usize..20, 1usize..300, any::<u64>(), 0usize..3);
    runner(cases(device))
        .run(&strategy, |(m, n, seed, form)| {
            let int = |s, i, j| real::<T>((common::hash(s, i as u64, j as u64) % 5) as f64 - 2.0);
            let a = Array2::from_shape_fn((m, n), |(i, j)| int(seed, i, j));
            let x = Array1::from_shape_fn(n, |j| int(!seed, 0, j));
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&j| common::hash(seed, 78, j as u64));
            let (moved, mx) = (a.select(Axis(1), &order), x.select(Axis(0), &order));
            let y = device.try_gpu_dot(&a, &x).unwrap();
            let got = device.try_gpu_dot(&forms()[form].hold(&moved).view(), &mx).unwrap();
            same(&got.to_vec(), &y.to_vec()).map_err(TestCaseError::fail)
        })
        .map_err(|e| e.to_string())
}

/// A one-hot row picks an entry of x, a one-hot x a column.
pub fn one_hot<T: Raw>(device: &Device) -> Check {
    let strategy = (1usize..40, 1usize..700, any::<u64>(), 0usize..3);
    runner(cases(device))
        .run(&strategy, |(m, n, seed, form)| {
            let at = |i: usize| common::hash(seed, 79, i as u64) as usize % n;
            let unit = |yes| real::<T>(if yes { 1.0 } else { 0.0 });
            let plus_zero = |v: T| T::narrow(T::Acc::ZERO.add(v.widen()));
            let a = Array2::from_shape_fn((m, n), |(i, j)| unit(j == at(i)));
            let x = Array1::from_shape_fn(n, |j| elem::<T>(random::<f64>(seed, 1, j), 0.0));
            let got = device.try_gpu_dot(&forms()[form].hold(&a).view(), &x).unwrap();
            let want: Vec<T> = (0..m).map(|i| plus_zero(x[at(i)])).collect();
            same(&got.to_vec(), &want).map_err(TestCaseError::fail)?;
            let a =
                Array2::from_shape_fn((m, n), |(i, j)| elem::<T>(random::<f64>(seed, i, j), 0.0));
            let x = Array1::from_shape_fn(n, |j| unit(j == at(m)));
            let got = device.try_gpu_dot(&forms()[form].hold(&a).view(), &x).unwrap();
            let want: Vec<T> = a.column(at(m)).iter().map(|&v| plus_zero(v)).collect();
            same(&got.to_vec(), &want).map_err(TestCaseError::fail)
        })
        .map_err(|e| e.to_string())
}

/// Any shape, any layout, any scaling: the reference's bits.
pub fn anything_goes<T: Raw>(device: &Device) -> Check {
    let strategy = (
        0usize..90,
        0usize..600,
        any::<u64>(),
        0usize..VARIANTS.len(),
        0usize..32,
        -2i8..3,
        -2i8..3,
    );
    runner(cases(device))
        .run(&strategy, |(m, n, seed, variant, offset, alpha, beta)| {
            let variant = VARIANTS[variant].at(offset);
            prop_assume!(variant.repeat == common::operand::Repeat::None);
            let a = Array2::from_shape_fn((m, n), |(i, j)| random::<T>(seed, i, j));
            let x: Vec<T> = (0..n).map(|j| random(!seed, 0, j)).collect();
            let y: Vec<T> = (0..m).map(|i| random(!seed, 1, i)).collect();
            let (alpha, beta) = (acc::<T>(alpha.into(), 0.0), acc::<T>(beta.into(), 0.5));
            let want = oracle(alpha, &a, &x, beta, &y);
            let mut got = Array1::from(y);
            let held = variant.hold(&a);
            device.gemv(alpha, &held.view(), &Array1::from(x), beta, &mut got).unwrap();
            same(&got.to_vec(), &want)
                .map_err(|e| TestCaseError::fail(format!("{}: {e}", variant.name)))
        })
        .map_err(|e| e.to_string())
}
