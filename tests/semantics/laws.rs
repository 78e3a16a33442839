//! Random products of any shape.

use gemv::Device;
use gemv::ndarray::{Array1, Array2};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::common::operand::VARIANTS;
use crate::common::{self, Check, Size, acc, random, same};
use crate::helpers::{Raw, oracle};

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
    let cases = match (common::size(), device.info().host) {
        (Size::Tiny, _) => 4,
        (Size::Full, _) => 256,
        (_, true) => 48,
        _ => 24,
    };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
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
