//! What reaches a backend: the parts of a job, and which jobs are not for a backend at all.
#![deny(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gemv_core::{
    Backend, Desc, Device, Dtype, GemmJob, Input, Output, Params, ToDevice, Window, for_any,
};
use gemv_testkit::{Host, compute, compute_many};
use ndarray::{Array2, Array3, Axis, Ix1, Ix2, Ix3, arr0, array, s};
use num_complex::Complex;

/// What a device was called for: whether for many products, and the problem.
type Calls = Arc<Mutex<Vec<(bool, Desc)>>>;

/// A device that notes each call.
fn noting() -> (Calls, Device) {
    let calls = Calls::default();
    let (one, many) = (calls.clone(), calls.clone());
    let mut host = Host::new("noting");
    host.compute = Box::new(move |job, prepared| {
        let desc = for_any!(AnyJob, &job, job => job.desc());
        one.lock().unwrap().push((false, desc));
        assert_eq!(prepared.params(), &Params::new("reference"));
        compute(job);
        Ok(())
    });
    host.compute_many = Box::new(move |job, _| {
        for_any!(AnyGemmJob, job, mut job => {
            many.lock().unwrap().push((true, job.desc()));
            compute_many(&mut job);
        });
        Ok(())
    });
    (calls, host.device())
}

#[test]
fn operands_say_their_shape_and_strides() {
    let mut y = Array2::<f32>::zeros((3, 10));
    let input = Input::from(y.slice(s![.., ..;-5]));
    assert_eq!((input.raw_dim(), input.stride(0), input.stride(1)), (Ix2(3, 2), 10, -5));
    let output = Output::from(y.slice_mut(s![.., ..;-5]));
    assert_eq!((output.raw_dim(), output.stride(0), output.stride(1)), (Ix2(3, 2), 10, -5));
}

#[test]
fn windows_read_backwards_and_have_further_axes() {
    let mut block = [0, 1, 2, 3, 4, 5];
    let back =
        |step: isize| Window { memory: (), first: 5, dim: Ix1(3), strides: Ix1(step as usize) };
    assert_eq!(back(-2).view(&block), array![5, 3, 1]);
    back(-2).view_mut(&mut block).assign(&array![50, 30, 10]);
    assert_eq!(block, [0, 10, 2, 30, 4, 50]);
    let window = Window { memory: (), first: 0, dim: Ix2(2, 3), strides: Ix2(3, 1) };
    for axis in 0..3 {
        let more = window.insert_axis(axis).view(&block).to_owned();
        assert_eq!(more, window.view(&block).insert_axis(Axis(axis)));
    }
}

#[test]
fn memory_of_no_elements_is_empty() {
    let host = Host::new("fake:0");
    assert!(host.alloc(Dtype::F32, 0).unwrap().is_empty());
    assert!(!host.alloc(Dtype::F32, 1).unwrap().is_empty());
}

#[test]
fn the_entries_of_a_batch_share_an_alignment() {
    let host = Host::new("fake:0");
    let (a, x) = (host.alloc(Dtype::F32, 200).unwrap(), host.alloc(Dtype::F32, 32).unwrap());
    let align = |batch: usize, apart: usize| {
        let mut y = Array3::<f32>::zeros((batch, 3, 1));
        let (dim, strides) = (Ix3(batch, 3, 16), Ix3(apart, 16, 1));
        let a: Input<'_, f32, _> = Input::Device(Window { memory: &*a, first: 0, dim, strides });
        let (dim, strides) = (Ix3(batch, 16, 1), Ix3(16, 1, 1));
        let x = Input::Device(Window { memory: &*x, first: 0, dim, strides });
        let y = y.view_mut().into();
        GemmJob { alpha: 1.0, a, conj: false, x, beta: 0.0, y }.desc().align
    };
    // Rows begin at multiples of 64 bytes, but the second entry where `apart` elements lead.
    assert_eq!([48, 49, 50, 52, 56].map(|apart| align(2, apart)), [6, 2, 3, 4, 5]);
    assert_eq!(align(1, 49), 6);
}

#[test]
fn single_vectors_that_share_a_matrix_are_its_columns() {
    let (calls, device) = noting();
    let a = Array2::from_shape_fn((3, 4), |(i, j)| (4 * i + j) as f32);
    let other = Array3::from_shape_fn((5, 3, 4), |(b, i, j)| (b + 4 * i + j) as f32);
    let shared = a.broadcast((5, 3, 4)).unwrap();
    let x = Array2::from_shape_fn((5, 4), |(b, j)| (b * j) as f32);
    let many = Array3::from_shape_fn((5, 4, 2), |(b, j, c)| (b * j + c) as f32);
    for (a, entries) in [(shared, (1, 5)), (other.view(), (5, 1))] {
        let mut y = Array2::zeros((5, 3));
        device.gemv_batched(1.0, a, &x, 0.0, &mut y).unwrap();
        for ((a, x), y) in a.outer_iter().zip(x.outer_iter()).zip(y.outer_iter()) {
            assert_eq!(y, a.dot(&x));
        }
        let (many, desc) = calls.lock().unwrap().pop().unwrap();
        assert_eq!((many, (desc.batch, desc.rhs)), (true, entries));
    }
    // Matrices that share X are the rows of one, if they and Y lie like that.
    let one = x.row(1).to_owned();
    let all = one.broadcast((5, 4)).unwrap();
    let apart = Array3::from_shape_fn((5, 6, 4), |(b, i, j)| (b + i * j) as f32);
    let apart = apart.slice(s![.., ..3, ..]);
    for (a, shape) in [(other.view(), (1, 15, false)), (apart, (5, 3, true))] {
        let mut y = Array2::zeros((5, 3));
        device.gemv_batched(1.0, a, all, 0.0, &mut y).unwrap();
        for (a, y) in a.outer_iter().zip(y.outer_iter()) {
            assert_eq!(y, a.dot(&one));
        }
        let (many, desc) = calls.lock().unwrap().pop().unwrap();
        assert_eq!((desc.batch, desc.m, many), shape);
    }
    let wide = many.index_axis(Axis(0), 2);
    let there = other.to_device(&device).unwrap();
    let x_there = wide.broadcast((5, 4, 2)).unwrap().to_device(&device).unwrap();
    let mut y = device.zeros((5, 3, 2)).unwrap();
    device.gemm_batched(1.0, &there, &x_there, 0.0, &mut y).unwrap();
    for (a, y) in other.outer_iter().zip(y.download().unwrap().outer_iter()) {
        assert_eq!(y, a.dot(&wide));
    }
    let (_, desc) = calls.lock().unwrap().pop().unwrap();
    assert_eq!((desc.batch, desc.m, desc.rhs), (1, 15, 2));
    let mut y = Array3::zeros((5, 3, 2));
    device.gemm_batched(1.0, shared, &many, 0.0, &mut y).unwrap();
    for (x, y) in many.outer_iter().zip(y.outer_iter()) {
        assert_eq!(y, a.dot(&x));
    }
    let (_, desc) = calls.lock().unwrap().pop().unwrap();
    assert_eq!((desc.batch, desc.rhs), (5, 2));
}

#[test]
fn one_column_of_one_entry_is_one_product() {
    let (calls, device) = noting();
    let (a, x, mut y) = (array![[1.0, 2.0]], array![[3.0], [4.0]], array![[0.0]]);
    device.gemm(1.0, &a, &x, 0.0, &mut y).unwrap();
    assert_eq!(y, array![[11.0]]);
    let calls: Vec<bool> = calls.lock().unwrap().iter().map(|(many, _)| *many).collect();
    assert_eq!(calls, [false]);
}

#[test]
fn a_host_y_is_scaled_without_a_backend_where_alpha_is_zero() {
    let (calls, device) = noting();
    let (a, x) = (array![[f32::NAN]], array![f32::NAN]);
    for beta in [0.0, 1.0, 2.0] {
        let mut y = array![3.0];
        device.gemv(0.0, &a, &x, beta, &mut y).unwrap();
        assert_eq!(y, array![3.0 * beta]);
        let mut y = array![[3.0, 4.0]];
        device.gemm(0.0, &a, &array![[f32::NAN, 1.0]], beta, &mut y).unwrap();
        assert_eq!(y, array![[3.0, 4.0]] * arr0(beta));
    }
    assert_eq!(calls.lock().unwrap().len(), 0);
}

#[test]
fn the_conjugate_and_given_parameters_reach_the_backend() {
    let (calls, device) = noting();
    let i = Complex::new(0.0f32, 1.0);
    let (one, zero) = (i * -i, i * 0.0);
    let (a, x, params) = (array![[i]], array![one], Params::new("reference"));
    let mut y = array![zero];
    device.gemv_conj(one, &a, &x, zero, &mut y).unwrap();
    assert_eq!(y, array![-i]);
    let mut y = array![zero];
    device.gemv_conj_as(&params, one, &a, &x, zero, &mut y).unwrap();
    assert_eq!(y, array![-i]);
    let (a, x, mut y) =
        (array![[[2.0]], [[3.0]]], array![[[1.0]], [[5.0]]], Array3::zeros((2, 1, 1)));
    device.gemm_as(&params, 1.0, &a, &x, 0.0, &mut y).unwrap();
    assert_eq!(y, array![[[2.0]], [[15.0]]]);
    assert_eq!(calls.lock().unwrap().len(), 3);
    let none = Params::new("none");
    assert!(device.gemm_as(&none, 1.0, &a, &x, 0.0, &mut y).is_err());
}

/// A choice is proved when a problem is new, for single products and for many.
#[test]
fn choices_are_remembered() {
    static PROVED: AtomicUsize = AtomicUsize::new(0);
    let mut host = Host::new("proving");
    host.fits = |_, _| {
        PROVED.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let (device, other) = (host.device(), noting().1);
    let a = Array2::<f64>::ones((5, 6));
    let batch = |entries| Array3::<f64>::ones((entries, 5, 6));
    let proofs = |device: &Device, work: &dyn Fn(&Device)| {
        PROVED.store(0, Ordering::SeqCst);
        work(device);
        PROVED.load(Ordering::SeqCst) > 0
    };
    let batched = |device: &Device, entries| {
        let (x, mut y) = (Array2::ones((entries, 6)), Array2::zeros((entries, 5)));
        device.gemv_batched(1.0, &batch(entries), &x, 0.0, &mut y).unwrap();
    };
    let works: [&dyn Fn(&Device); 4] = [
        &|device| drop(device.try_gpu_dot(&a, &[1.0; 6]).unwrap()),
        &|device| {
            let (x, mut y) = (Array2::ones((6, 3)), Array2::zeros((5, 3)));
            device.gemm(1.0, &a, &x, 0.0, &mut y).unwrap();
        },
        &|device| batched(device, 2),
        &|device| batched(device, 3),
    ];
    for work in works {
        assert!(proofs(&device, work), "it is new");
        assert!(!proofs(&device, work), "it is known");
        // Another device that has the same problem in turns keeps its own choice.
        work(&other);
        assert!(!proofs(&device, work), "it is still known");
    }
}
