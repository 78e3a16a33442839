//! Files that go to a device and come back.
use std::fs;
use std::path::Path;

use bytemuck::Pod;
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array, Array2, Array3, Dimension, Ix1, Ix2, Ix3, s};
use gemv::num_complex::Complex;
use gemv::{Device, DeviceArray, Element};
use gemv_shard::{Result, load_npy, save_npy};
use gemv_testkit::npy;

use crate::common::{devices, element};
use crate::streamed::feeding;

/// A file as NumPy writes it, of bytes in the order of its elements.
fn file(path: &Path, descr: &str, fortran: bool, shape: &str, data: &[u8]) {
    fs::write(path, npy(descr, fortran, shape, data)).unwrap();
}

fn bits<T: Element, D: Dimension>(array: &Array<T, D>) -> Vec<u128> {
    array.iter().map(|v| v.bits()).collect()
}

fn round_trip<T: Element + Pod>(descr: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let entry = |(b, i, j): (usize, usize, usize)| ((b * 130 + i) * 90 + j) as f64;
    let a =
        Array3::from_shape_fn((7, 130, 90), |at| element::<T>(entry(at).cos(), entry(at).sin()));
    let parts = if T::DTYPE.is_complex() { 2 } else { 1 };
    let swapped = |data: &[u8]| {
        let mut data = data.to_vec();
        data.chunks_exact_mut(T::DTYPE.bytes() / parts).for_each(<[u8]>::reverse);
        data
    };
    let mut on = devices::<T, T>();
    on.push(feeding(1 << 12, |_| false).0);
    for device in &on {
        let load = || load_npy::<T, Ix3>(device, &path).unwrap();
        // Of the host, of any layout, and of the device: of a view with gaps as well.
        save_npy(&path, &a).unwrap();
        let up = load();
        assert_eq!(bits(&up.download().unwrap()), bits(&a), "{device}");
        let written = fs::read(&path).unwrap();
        save_npy(&path, &up).unwrap();
        assert_eq!(fs::read(&path).unwrap(), written, "{device}");
        let part = s![..;-2, 1.., ..;3];
        save_npy(&path, &up.slice(part)).unwrap();
        let again = load();
        assert_eq!(bits(&again.download().unwrap()), bits(&a.slice(part).to_owned()), "{device}");
        save_npy(&path, a.slice(part)).unwrap();
        assert_eq!(load().dim(), again.dim());
        // In Fortran's order, and of the other byte order, as others write it.
        let by_columns = Array::from_iter(a.t().iter().copied());
        let data: &[u8] = bytemuck::cast_slice(by_columns.as_slice().unwrap());
        for big in [false, true].iter().take(if descr == "V2" { 1 } else { 2 }) {
            let (order, data) = if *big { (">", swapped(data)) } else { ("<", data.to_vec()) };
            file(&path, &format!("{order}{descr}"), true, "(7, 130, 90)", &data);
            let up = load();
            assert_eq!(bits(&up.download().unwrap()), bits(&a), "{device} {order}");
            assert!(up.t().reshape(a.len()).is_ok(), "it stays in Fortran's order");
        }
    }
}

#[test]
fn elements_of_each_type() {
    round_trip::<f32>("f4");
    round_trip::<f64>("f8");
    round_trip::<f16>("f2");
    round_trip::<bf16>("V2");
    round_trip::<Complex<f32>>("c8");
    round_trip::<Complex<f64>>("c16");
}

#[test]
fn axes_of_any_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let device = Device::new(gemv_core::reference::Reference::open());
    save_npy(&path, &device.scalar(2.5).unwrap()).unwrap();
    assert_eq!(load_npy::<f64, gemv::ndarray::Ix0>(&device, &path).unwrap().value().unwrap(), 2.5);
    save_npy(&path, &vec![1.0f32, 2.0]).unwrap();
    assert_eq!(load_npy::<f32, Ix1>(&device, &path).unwrap().len(), 2);
    for shape in [(0, 3), (3, 0), (1, 1)] {
        save_npy(&path, &Array2::<f32>::zeros(shape)).unwrap();
        assert_eq!(load_npy::<f32, Ix2>(&device, &path).unwrap().dim(), shape);
    }
}

#[test]
fn files_that_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let device = Device::new(gemv_core::reference::Reference::open());
    let says = |got: Result<DeviceArray<f32, Ix2>>, part: &str| {
        let e = got.expect_err("it is refused").to_string();
        assert!(e.contains(part) && e.contains("a.npy") && !e.contains('\n'), "{e}");
    };
    let load = || load_npy::<f32, Ix2>(&device, &path);
    says(load(), "No such file");
    fs::create_dir(&path).unwrap();
    says(load(), "a folder");
    says(save_npy(&path, &[1.0f32]).map(|()| load().unwrap()), "irectory");
    fs::remove_dir(&path).unwrap();
    save_npy(&path, &Array2::<f64>::zeros((2, 2))).unwrap();
    says(load(), "the array holds f64, where f32 is asked");
    save_npy(&path, &[1.0f32, 2.0]).unwrap();
    says(load(), "the array has 1 axis, but a matrix has 2");
    file(&path, "<f4", false, "(2, 2)", &[0; 15]);
    says(load(), "truncated");
    file(&path, "<f4", false, "(2, 2)", &[0; 17]);
    says(load(), "too long");
    file(&path, "<i4", false, "(2, 2)", &[0; 16]);
    says(load(), "integers");
    // A device that fails while it takes the pieces.
    file(&path, "<f4", false, "(2, 2)", &[0; 16]);
    let (failing, _) = feeding(1 << 12, |_| true);
    let e = load_npy::<f32, Ix2>(&failing, &path).unwrap_err().to_string();
    assert!(e.contains("late"), "{e}");
}
