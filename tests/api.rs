//! What `use gemv::GpuDot` code may say beside what the tests of gemv-core have it say: pairs of element types, names of
//! devices.
//!
//! Nothing here depends on which backend computes; some backend has to be linked.
#![deny(unsafe_code)]

use gemv::half::{bf16, f16};
use gemv::num_complex::Complex;
use gemv::{GpuDot, ToDevice, Widen};
use ndarray::{Array2, ArrayView1, ArrayView2, Axis, Ix1, Ix2, array, aview1, aview2, stack};

#[test]
fn a_matrix_of_16_bits_takes_vectors_of_f32() {
    let a = array![[0.5f32, 1.0, -2.0], [4.0, 0.25, 1.0]];
    let x = array![0.1f32, 0.2, 0.3];
    let big = array![[0.1f32, 1.0], [0.2, 2.0], [0.3, 3.0]];
    // Exact in either type, so f32 with f32 has the same bits.
    let (want, wants) = (a.gpu_dot(&x), a.gpu_dot(&big));
    let device = gemv::device("reference").unwrap();
    let by_columns = a.t().as_standard_layout().reversed_axes().mapv(f16::from_f32);
    for half in [a.mapv(f16::from_f32), by_columns] {
        assert_eq!(half.gpu_dot(&x), want);
        assert_eq!(half.gpu_dot(&x.to_vec()), want);
        assert_eq!(half.view().gpu_dot(&x.view()), want);
        assert_eq!(half.gpu_dot(&big), wants);
        assert_eq!(x.gpu_dot(&half.t()), want);
        let (there, resident) = (half.to_device(&device).unwrap(), x.to_device(&device).unwrap());
        assert_eq!(there.gpu_dot(&x).download().unwrap(), want);
        assert_eq!(there.gpu_dot(&resident).download().unwrap(), want);
        assert_eq!(half.gpu_dot(&resident), want);
        assert_eq!(there.gpu_dot(&big).download().unwrap(), wants);
        let mut y = array![f32::NAN, f32::NAN];
        half.gpu_dot_into(&x, &mut y);
        assert_eq!(y, want);
        half.gemv(-1.0, &x, 1.0, &mut y);
        assert_eq!(y, array![0.0, 0.0]);
    }
    let batch = stack![Axis(0), a, a].mapv(bf16::from_f32);
    let xs = stack![Axis(0), x, x];
    assert_eq!(batch.gpu_dot(&xs), stack![Axis(0), want, want]);
    assert_eq!(batch.gpu_dot(&stack![Axis(0), big, big]), stack![Axis(0), wants, wants]);
    // Its own type as before, and shapes are refused as before.
    assert_eq!(batch.index_axis(Axis(0), 0).gpu_dot(&[bf16::ONE, bf16::ONE, bf16::ONE]).len(), 2);
    let e = batch.index_axis(Axis(0), 0).try_gpu_dot(&[1.0, 2.0]).unwrap_err();
    assert!(e.to_string().contains("the matrix is 2 × 3"), "{e}");
}

#[test]
fn a_matrix_of_f32_takes_vectors_of_f64_where_it_says_so() {
    let a = array![[0.1f32, 2.0], [1e-8, -0.3]];
    // Numbers without a type are still those of the matrix.
    assert_eq!(a.gpu_dot(&array![1.0, 0.0]), array![0.1f32, 1e-8]);
    let x = array![1.0, 1e-12];
    let want = a.mapv(f64::from).gpu_dot(&x);
    assert_eq!(a.widened().gpu_dot(&x), want);
    assert_eq!(a.view().widened().gpu_dot(&[1.0, 1e-12]), want);
    assert_eq!(x.gpu_dot(&a.t().widened()), want);
    assert_eq!(a.widened().gpu_dot(&Array2::eye(2)), a.mapv(f64::from));
    let device = gemv::device("reference").unwrap();
    let there = a.to_device(&device).unwrap();
    assert_eq!(there.widened().gpu_dot(&x).download().unwrap(), want);
    let mut y = want.clone();
    there.widened().gemv(-1.0, &x, 1.0, &mut y);
    assert_eq!(y, array![0.0, 0.0]);
}

#[test]
fn every_element_type() {
    assert_eq!(array![[1.0f32, 2.0]].gpu_dot(&array![3.0, 4.0]), array![11.0]);
    let h = f16::from_f32;
    assert_eq!(array![[h(1.0), h(2.0)]].gpu_dot(&array![h(3.0), h(4.0)]), array![h(11.0)]);
    let b = bf16::from_f32;
    let mut y = array![b(1.0)];
    // Factors have the accumulator's type.
    array![[b(1.0), b(2.0)]].gemv(0.5f32, &array![b(3.0), b(4.0)], 2.0f32, &mut y);
    assert_eq!(y, array![b(7.5)]);
    let i = Complex::<f32>::i();
    assert_eq!(array![[i, i]].gpu_dot(&array![i, -i + 1.0]), array![i]);
    let i = Complex::<f64>::i();
    assert_eq!(array![[i]].gpu_dot(&array![i]), array![-i * -i]);
}

#[test]
fn listings_name_every_linked_backend() {
    let listed = gemv::devices();
    for entry in gemv::unstable::BACKENDS {
        let lines: Vec<_> =
            listed.iter().filter(|l| l.id.split(':').next() == Some(entry.name)).collect();
        assert!(!lines.is_empty(), "{} is linked and not listed", entry.name);
        for line in lines {
            match &line.found {
                Ok(info) => {
                    assert_eq!(info.id, line.id);
                    assert!(!info.name.is_empty() && info.units > 0, "{info:?}");
                }
                Err(why) => assert!(!why.to_string().contains('\n'), "{why}"),
            }
        }
    }
    // What is listed opens by its name, and says the same of itself.
    let engine = gemv::Engine::global();
    for line in listed.iter().filter(|l| l.found.is_ok()) {
        assert_eq!(engine.device(&line.id).unwrap().info().id, line.id);
    }
}

#[test]
fn names_clash_with_nothing() {
    // A name of two globs is an error where it is used: these are all the names of the prelude.
    use gemv::prelude::*;
    use gemv::*;
    use ndarray::prelude::*;
    use ndarray::*;
    fn named<A: GpuDot<Array1<f32>>, B: ToDevice>() {}
    named::<Array2<f32>, ArrayView1<'_, f32>>();
    let device: Device = device("reference").unwrap();
    let a: DeviceMatrix<f32> = array![[1.0, 2.0]].to_device(&device).unwrap();
    let y: DeviceVector<f32> = a.gpu_dot(&array![3.0, 4.0]);
    assert_eq!(y.download().unwrap(), array![11.0]);
    let _: Option<Layout> = None; // of ndarray
}

#[test]
fn devices_say_where_a_product_runs() {
    let device = gemv::device("reference").unwrap();
    assert_eq!(device, gemv::Engine::global().device("reference").unwrap());
    assert_ne!(device, gemv::Engine::new(None).device("reference").unwrap());
    let text = device.to_string();
    assert!(text.starts_with("reference: ") && !text.contains('\n'), "{text}");
    assert_eq!(text, device.info().to_string());
    for line in gemv::devices() {
        let text = line.to_string();
        match line.found {
            Ok(_) => assert_eq!(text, line.id),
            Err(_) => assert!(text.starts_with(&format!("no {}", line.id)), "{text}"),
        }
    }
}

#[test]
fn devices_are_shared_between_threads() {
    fn send_sync<T: Send + Sync>() {}
    send_sync::<gemv::Device>();
    send_sync::<gemv::Engine>();
    send_sync::<gemv::DeviceMatrix<f32>>();
    send_sync::<gemv::DeviceVector<gemv::num_complex::Complex<f64>>>();
    send_sync::<gemv::Error>();
    let a: ArrayView2<'_, f64> = aview2(&[[2.0]]);
    let x: ArrayView1<'_, f64> = aview1(&[3.0]);
    let _: (Ix1, Ix2) = (x.raw_dim(), a.raw_dim());
    assert_eq!(std::thread::scope(|s| s.spawn(|| a.gpu_dot(&x)).join().unwrap()), array![6.0]);
}
