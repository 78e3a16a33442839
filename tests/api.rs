//! What `use gemv::GpuDot` code may say beside what the tests of gemv-core have it say: pairs of element types, panics that point
//! at the caller, devices by name.
//!
//! Nothing here depends on which backend computes; some backend has to be linked.
#![deny(unsafe_code)]

use gemv::half::{bf16, f16};
use gemv::num_complex::Complex;
use gemv::{GpuDot, ToDevice, Widen};
use ndarray::{
    Array1, Array2, ArrayView1, ArrayView2, Axis, Ix1, Ix2, array, aview1, aview2, s, stack,
};
use std::panic::{Location, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

fn a() -> Array2<f64> {
    array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
}

fn x() -> Array1<f64> {
    array![1.0, 0.0, -1.0]
}

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
fn views_of_every_layout() {
    let a = a();
    assert_eq!(a.t().gpu_dot(&array![1.0, 1.0]), array![5.0, 7.0, 9.0]);
    assert_eq!(a.slice(s![.., ..2]).gpu_dot(&array![1.0, 1.0]), array![3.0, 9.0]);
    assert_eq!(a.slice(s![.., ..;2]).gpu_dot(&array![1.0, 1.0]), array![4.0, 10.0]);
    assert_eq!(a.slice(s![..;-1, ..;-1]).gpu_dot(&x()), array![2.0, 2.0]);
    assert_eq!(a.slice(s![1.., 1..]).gpu_dot(&array![1.0, 10.0]), array![65.0]);
    let row = array![1.0, 2.0, 3.0];
    let repeated = row.broadcast((4, 3)).unwrap();
    assert_eq!(repeated.gpu_dot(&x()), array![-2.0, -2.0, -2.0, -2.0]);
    let ones = ndarray::arr0(1.0);
    assert_eq!(a.gpu_dot(&ones.broadcast(3).unwrap()), array![6.0, 15.0]);
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

/// Where and with which words the closure panics.
fn panic_of(f: impl FnOnce() + std::panic::UnwindSafe) -> (String, String, u32) {
    // The hook is the process's: one at a time.
    static ONE: Mutex<()> = Mutex::new(());
    static SEEN: Mutex<Option<(String, u32)>> = Mutex::new(None);
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| {
        let at = info.location().map(|l: &Location<'_>| (l.file().to_owned(), l.line()));
        *SEEN.lock().unwrap() = at;
    }));
    let result = catch_unwind(f);
    std::panic::set_hook(before);
    let payload = result.expect_err("must panic");
    let text = payload.downcast_ref::<String>().cloned().unwrap_or_default();
    let (file, line) = SEEN.lock().unwrap().take().expect("the hook ran");
    (text, file, line)
}

#[test]
fn panics_point_at_the_caller_and_name_both_shapes() {
    let (a, short) = (a(), array![1.0, 2.0]);
    let line = line!() + 1;
    let (text, file, at) = panic_of(|| drop(a.gpu_dot(&short)));
    assert_eq!((file.as_str(), at), (file!(), line), "{text}");
    assert!(text.contains("2 × 3") && text.contains("has 2"), "{text}");

    let (text, file, _) = panic_of(|| drop(short.gpu_dot(&a.t())));
    assert_eq!(file, file!(), "{text}");
    // As the caller wrote it, not its transpose.
    let want =
        "gpu_dot: shapes do not fit: the matrix is 3 × 2, so x must have 3 entries, but it has 2";
    assert_eq!(text, want);

    let (text, file, _) = panic_of(|| {
        let mut y = array![0.0, 0.0, 0.0];
        a.gpu_dot_into(&x(), &mut y);
    });
    assert_eq!(file, file!(), "{text}");
    assert!(text.contains("2 × 3") && text.contains("has 3"), "{text}");

    let (text, file, _) = panic_of(|| {
        let mut y = array![0.0, 0.0];
        a.gemv(1.0, &short, 0.0, &mut y);
    });
    assert_eq!(file, file!(), "{text}");
    assert!(text.contains("2 × 3"), "{text}");

    // The forwards of owned arrays, views and resident matrices point there too.
    let view = a.view();
    assert_eq!(panic_of(|| drop(view.gpu_dot(&short))).1, file!());
    let resident = gemv::Engine::global().default_device().unwrap().matrix(&a).unwrap();
    let resident = std::panic::AssertUnwindSafe(&resident);
    assert_eq!(panic_of(move || drop(resident.gpu_dot(&array![1.0]))).1, file!());
}

#[test]
fn devices_by_name() {
    use gemv::{Engine, Error};
    let reference = Engine::new(Some("reference".into()));
    assert_eq!(reference.default_device().unwrap().info().id, "reference");
    for name in ["cpu:7", "opencl:99", "cuda:x", "vulkan", "cuda:-1", ":"] {
        let e = Engine::new(Some(name.into())).default_device().unwrap_err();
        let missing = matches!(
            e,
            Error::NoDevice { .. } | Error::DriverMissing { .. } | Error::NotBuilt { .. }
        );
        assert!(missing && !e.to_string().contains('\n'), "{name}: {e:?}");
        if let Error::NoDevice { asked, .. } = &e {
            assert_eq!(asked, name);
        }
    }
    // Blanks are no name; a name may be padded.
    let plain = Engine::new(None).default_device().unwrap().info().id.clone();
    assert_eq!(Engine::new(Some("  ".into())).default_device().unwrap().info().id, plain);
    let padded = Engine::new(Some(" reference\n".into()));
    assert_eq!(padded.default_device().unwrap().info().id, "reference");
    // An explicit device beats what is forced.
    let engine = Engine::new(Some("no-such".into()));
    assert!(engine.default_device().is_err());
    assert_eq!(
        engine.device("reference").unwrap().try_gpu_dot(&a(), &x()).unwrap(),
        array![-2.0, -2.0]
    );
    assert_eq!(engine.device(&plain).unwrap().try_gpu_dot(&a(), &x()).unwrap(), array![-2.0, -2.0]);
}

#[test]
fn a_backend_that_is_absent_says_so_at_once() {
    use gemv::Engine;
    for name in ["cuda", "opencl", "cpu"] {
        let mut best = Duration::MAX;
        let mut absent = None;
        // The first of several: the machine may be busy, the answer must still be there at once.
        for _ in 0..5 {
            let engine = Engine::new(Some(name.into()));
            let start = Instant::now();
            absent = engine
                .devices()
                .iter()
                .all(|l| !l.id.starts_with(name) || l.found.is_err())
                .then(|| engine.default_device().unwrap_err().to_string());
            best = best.min(start.elapsed());
        }
        if let Some(sentence) = absent {
            assert!(best < Duration::from_millis(100), "{name}: {best:?}");
            assert!(!sentence.contains('\n') && sentence.contains(name), "{sentence}");
        }
    }
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
