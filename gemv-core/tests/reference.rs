//! The order of additions, rule by rule.
#![deny(unsafe_code)]

use std::panic::{catch_unwind, panic_any};
use std::sync::Arc;

use gemv_core::float_mode::{in_default, is_default, outside};
use gemv_core::half::f16;
use gemv_core::num_complex::Complex;
use gemv_core::reference::{Reference, dot, gemv, ordered_sum};
use gemv_core::{BackendEntry, Desc, Device, DeviceInfo, Dtype, Engine, Params};
use gemv_testkit::{Host, MODES, Mode, with_mode};
use ndarray::{Array1, Array2, array, s};

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

/// A product that is subnormal, and one that is not exact, with their bits.
#[test]
fn no_mode_of_the_caller_changes_a_bit() {
    let (a, x) = (array![[1e-30f32], [1.0]], array![1e-9f32]);
    let (third, three) = (array![[1.0f64 / 3.0, 0.1]], array![0.7, 1e-17]);
    let want = third[[0, 0]].mul_add(three[0], third[[0, 1]] * three[1]);
    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    // 1e-9 is rounded to 0x3089705f.
    let tiny = [0x000a_e398, 0x3089_705f];
    for (name, mode) in MODES {
        let (mut y, mut half, mut wide) = (array![0.0f32, 0.0], array![3e-38f32], array![0.0]);
        with_mode(mode, || gemv(1.0, a.view(), false, x.view(), 0.0, y.view_mut()));
        assert_eq!(bits(y.as_slice().unwrap()), tiny, "{name}");
        // A factor that is subnormal is no 0, and its product with y is none.
        with_mode(mode, || gemv(0.0, a.slice(s![..1, ..]), false, x.view(), 0.25, half.view_mut()));
        assert_eq!(half[0].to_bits(), 0x0051_aaf3, "{name}");
        let least = f32::from_bits(1);
        with_mode(mode, || {
            gemv(least, a.slice(s![1.., ..]), false, array![2.0].view(), least, half.view_mut());
        });
        assert_eq!(half[0].to_bits(), 2, "{name}");
        with_mode(mode, || gemv(1.0, third.view(), false, three.view(), 0.0, wide.view_mut()));
        assert_eq!(wide[0].to_bits(), want.to_bits(), "{name}");
        let s: f32 = with_mode(mode, || dot(a.row(0), x.view(), false));
        assert_eq!(s.to_bits(), tiny[0], "{name}");
        let terms = [f32::from_bits(3); 2];
        let s = with_mode(mode, || ordered_sum(2, &|j, lane: f32| lane + terms[j]));
        assert_eq!(s.to_bits(), 6, "{name}");
    }
}

/// What a device does beside its backend: factors, shapes, refusals.
#[test]
fn a_device_leaves_the_mode_as_it_was() {
    let device = Device::new(Reference::open());
    let (a, x) = (array![[1e-30f32]], array![1e-9f32]);
    let least = f32::from_bits(1);
    for (name, mode) in MODES {
        let y = with_mode(mode, || device.try_gpu_dot(&a, &x)).unwrap();
        assert_eq!(y[0].to_bits(), 0x000a_e398, "{name}");
        // A factor of A that is no 0, though one mode says so: A is read.
        let mut y = array![f32::NAN];
        with_mode(mode, || device.gemv(least, &array![[4.0]], &array![1.0], 0.0, &mut y)).unwrap();
        assert_eq!(y[0].to_bits(), 4, "{name}");
        // And of y.
        let mut y = array![2.0f32];
        with_mode(mode, || device.gemv(0.0, &a, &x, least, &mut y)).unwrap();
        assert_eq!(y[0].to_bits(), 2, "{name}");
        let mut y = array![[2.0f32]];
        with_mode(mode, || device.product(&a, &array![[1.0]]).scaled(0.0, least).to(&mut y))
            .unwrap();
        assert_eq!(y[[0, 0]].to_bits(), 2, "{name}");
        let refused = with_mode(mode, || device.try_gpu_dot(&a, &array![1.0, 2.0]));
        assert!(refused.is_err(), "{name}");
        let other = Params::new("row");
        let refused = with_mode(mode, || device.product(&a, &x).with(&other).to(&mut [0.0]));
        assert!(refused.is_err(), "{name}");
    }
}

#[test]
fn the_mode_is_given_back_after_a_panic_and_lent_while_work_waits() {
    for (name, mode) in MODES {
        let panicked = with_mode(mode, || {
            catch_unwind(|| {
                ordered_sum(1, &|_, _: f32| panic_any(is_default()));
            })
        });
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&true), "{name}");
        with_mode(mode, || {
            let here = Mode::of_this_thread();
            in_default(|| {
                assert!(is_default());
                // Within another one as well.
                in_default(|| outside(|| assert_eq!(Mode::of_this_thread(), here)));
                assert!(is_default());
                let panicked = catch_unwind(|| outside(|| panic_any(Mode::of_this_thread())));
                assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&here));
                assert!(is_default());
                // Work that is lent the thread may use gemv itself.
                outside(|| in_default(|| assert!(is_default())));
                assert!(is_default());
            });
            // Where nothing is entered there is nothing to leave.
            outside(|| assert_eq!(Mode::of_this_thread(), here));
        });
    }
}

/// Of work that sets a mode, one that it sets on a thread that is lent to it stays, and no other.
#[test]
fn a_mode_that_is_set_meanwhile_is_that_of_the_thread() {
    let mine = Mode::of_this_thread();
    for (name, mode) in MODES {
        std::thread::spawn(move || {
            in_default(|| {
                outside(|| mode.set());
                assert!(is_default(), "{name}");
                in_default(|| {
                    mode.set();
                });
                assert!(is_default(), "{name}");
            });
            assert_eq!(Mode::of_this_thread(), mode, "{name}");
        })
        .join()
        .unwrap();
    }
    assert_eq!(Mode::of_this_thread(), mine);
}

/// Threads that a driver starts keep the mode in which it was loaded or opened; and what is compiled for one caller is
/// for all. A driver that sets a mode when it is loaded, as libraries do that GCC linked with -ffast-math, leaves none.
#[test]
fn drivers_are_opened_and_asked_in_the_default_mode() {
    fn asked() -> bool {
        assert!(is_default(), "asked in a mode of the caller's");
        true
    }
    fn loaded() {
        asked();
        if let Some((_, mode)) = MODES.first() {
            mode.set_by_library();
        }
    }
    let mine = Mode::of_this_thread();
    for (name, mode) in MODES {
        let entry = BackendEntry {
            name: "mine",
            rank: 0,
            discover: || {
                loaded();
                Ok(vec![DeviceInfo::new("mine:0")])
            },
            open: |_| {
                loaded();
                let accepts = |_: &Desc| asked().then_some(()).ok_or_else(String::new);
                Ok(Arc::new(Host { accepts, ..Host::new("mine:0") }))
            },
        };
        let (a, x) = (array![[1e-30f32]], array![1e-9f32]);
        let product = || Engine::with_entries([entry], None).default_device()?.try_gpu_dot(&a, &x);
        let y = with_mode(mode, product);
        assert_eq!(product().unwrap(), array![f32::from_bits(0x000a_e398)]);
        assert_eq!(Mode::of_this_thread(), mine, "{name}");
        assert_eq!(y.unwrap()[0].to_bits(), 0x000a_e398, "{name}");
    }
}
