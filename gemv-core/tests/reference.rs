//! The order of additions, rule by rule.
#![deny(unsafe_code)]

use gemv_core::half::f16;
use gemv_core::num_complex::Complex;
use gemv_core::reference::{Reference, dot, gemv, ordered_sum};
use gemv_core::{Desc, Dtype, Params};
use ndarray::{Array1, Array2, array};

/// Its one kernel.
const PARAMS: Params = Params::new("reference");

/// The sum of these terms.
fn sum(terms: &[f32]) -> f32 {
    ordered_sum(terms.len(), &|j, lane: f32| lane + terms[j])
}

/// 2^24 swallows a 1 that is added to it, and keeps a 2: which terms meet shows in the sum.
const BIG: f32 = 16_777_216.0;

fn with(len: usize, values: &[(usize, f32)]) -> f32 {
    let mut terms = vec![0.0; len];
    for &(at, v) in values {
        terms[at] = v;
    }
    sum(&terms)
}

#[test]
fn lanes_take_every_64th_term_in_turn() {
    // Both ones meet the large number in its lane, one after the other.
    assert_eq!(with(256, &[(5, BIG), (69, 1.0), (133, 1.0)]), BIG);
    // They meet one another first, in the next lane.
    assert_eq!(with(256, &[(5, BIG), (70, 1.0), (134, 1.0)]), BIG + 2.0);
    // The order within the lane: ones first.
    assert_eq!(with(256, &[(5, 1.0), (69, 1.0), (133, BIG)]), BIG + 2.0);
}

#[test]
fn halves_meet_from_the_far_end() {
    // Lanes 0 and 32 meet first, then 16 (which has met 48), then 8, 4, 2, 1.
    for (near, far) in [(32, 16), (16, 8), (8, 4), (4, 2), (2, 1)] {
        assert_eq!(with(64, &[(0, BIG), (near, 1.0), (far, 1.0)]), BIG);
        assert_eq!(with(64, &[(0, BIG), (near + far, 1.0), (far, 1.0)]), BIG + 2.0);
    }
    // Rotated lanes give the same sum: pairs are modular, and addition commutes.
    let terms: Vec<f32> = (0..64).map(|l| (l as f32 * 0.7).sin()).collect();
    for by in 0..64 {
        let mut turned = terms.clone();
        turned.rotate_left(by);
        assert_eq!(sum(&turned).to_bits(), sum(&terms).to_bits());
    }
}

#[test]
fn segments_and_their_sums() {
    // Term 256 opens a segment of its own; a 1 there is not swallowed before the end.
    assert_eq!(with(300, &[(0, BIG), (256, 1.0), (257, 1.0)]), BIG + 2.0);
    assert_eq!(with(600, &[(0, BIG), (256, 1.0), (512, 1.0)]), BIG);
    // 65 segments: the sums of segments 0 and 64 share a lane.
    assert_eq!(with(257 * 65, &[(0, BIG), (64 * 256, 1.0), (1, 1.0)]), BIG);
    // 257 segments: the last sum is in a segment of sums of its own.
    let at = |s: usize| s * 256;
    let len = 256 * 256 + 1;
    assert_eq!(with(len, &[(at(0), BIG), (at(256), 1.0), (at(1), 1.0)]), BIG);
    assert_eq!(with(len, &[(at(256), BIG), (at(0), 1.0), (at(1), 1.0)]), BIG + 2.0);
    assert_eq!(ordered_sum(0, &|_, _: f32| unreachable!()).to_bits(), 0);
}

#[test]
fn products_are_fused() {
    let e = f32::EPSILON;
    // (1 + e)(1 - e) - 1 = -e^2 only where the product is not rounded.
    let (mut a, mut x) = (vec![0.0; 65], vec![0.0; 65]);
    (a[0], x[0]) = (-1.0, 1.0);
    (a[64], x[64]) = (1.0 + e, 1.0 - e);
    let (a, x) = (Array1::from(a), Array1::from(x));
    assert_eq!(dot(a.view(), x.view(), false), -e * e);
}

#[test]
fn a_small_product_by_hand() {
    let a = array![[1.0f64, 2.0], [3.0, 4.0], [5.0, 6.0]];
    let x = array![1.0, -1.0];
    let mut y = array![10.0, 20.0, 30.0];
    gemv(2.0, a.view(), false, x.view(), 0.5, y.view_mut());
    assert_eq!(y, array![3.0, 8.0, 13.0]);
    gemv(0.0, a.view(), false, x.view(), 1.0, y.view_mut());
    assert_eq!(y, array![3.0, 8.0, 13.0]);
    gemv(0.0, a.view(), false, x.view(), 0.0, y.view_mut());
    assert_eq!(y, array![0.0, 0.0, 0.0]);
}

#[test]
fn conjugates_and_narrow_types() {
    let a = array![[Complex::new(2.0f32, 3.0)]];
    let x = array![Complex::new(5.0, 7.0)];
    let mut y = array![Complex::new(f32::NAN, 0.0)];
    let (one, zero) = (Complex::new(1.0, 0.0), Complex::new(0.0, 0.0));
    gemv(one, a.view(), false, x.view(), zero, y.view_mut());
    assert_eq!(y[0], Complex::new(-11.0, 29.0));
    gemv(one, a.view(), true, x.view(), zero, y.view_mut());
    assert_eq!(y[0], Complex::new(31.0, -1.0));

    // 2048 + 1 is no f16; summed in f32 it is there until the end.
    let h = f16::from_f32;
    let (a, x) = (Array2::from_elem((1, 2), h(1.0)), array![h(2048.0), h(1.0)]);
    let mut y = array![h(-2048.0)];
    gemv(1.0, a.view(), false, x.view(), 1.0, y.view_mut());
    assert_eq!(y[0], h(1.0));
}

#[test]
fn as_a_device_it_has_one_kernel() {
    let device = Reference::open();
    let desc = Desc::new(Dtype::F16, 3, 4, (4, 1), 0);
    assert_eq!(device.candidates(&desc), [PARAMS]);
    assert!(device.fits(&desc, &PARAMS.with("rows", 1)).is_err());
    for dtype in Dtype::ALL {
        let block = device.alloc(dtype, 3).unwrap();
        assert_eq!((block.len(), block.is_empty()), (3, false));
    }
}
