//! What reaches a backend: the parts of a job, and which jobs are not for a backend at all.
#![deny(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gemv_core::{
    Backend, Desc, Device, Dtype, Job, Number, Params, Tensor, TensorMut, ToDevice, Window,
};
use gemv_testkit::{Host, compute, elements, elements_mut};
use ndarray::{Array2, Array3, Axis, Ix1, Ix2, Ix3, arr0, array, s};
use num_complex::Complex;

/// The problems that a device was called for.
type Calls = Arc<Mutex<Vec<Desc>>>;

/// A device that notes each call.
fn noting() -> (Calls, Device) {
    let calls = Calls::default();
    let noted = calls.clone();
    let mut host = Host::new("noting");
    host.compute = Box::new(move |job, prepared| {
        noted.lock().unwrap().push(job.desc());
        assert_eq!(prepared.params(), &Params::new("reference"));
        compute(job);
        Ok(())
    });
    (calls, host.device())
}

#[test]
fn operands_say_their_shape_and_strides() {
    let mut y = Array2::<f32>::zeros((3, 10));
    let input = Tensor::from(y.slice(s![.., ..;-5]));
    assert_eq!((input.dim(), input.strides()), ([1, 3, 2], [0, 10, -5]));
    let output = TensorMut::from(y.slice_mut(s![.., ..;-5]));
    assert_eq!((output.dim(), output.strides()), ([1, 3, 2], [0, 10, -5]));
    // A vector is one column.
    let column = Tensor::from(y.slice(s![1, ..;2]));
    assert_eq!((column.dim(), column.strides()), ([1, 5, 1], [0, 2, 0]));
}

/// Views, parts and bytes of arrays of the host, with strides of any sign, and empty ones.
#[test]
fn tensors_are_the_views_they_were_made_of() {
    let whole = Array3::from_shape_fn((3, 4, 5), |(b, i, j)| (100 * b + 10 * i + j) as f64);
    let first = whole.slice(s![0..1, .., ..]);
    let views = [
        whole.view(),
        whole.slice(s![..;-1, .., ..;-2]),
        whole.slice(s![1..;2, ..;-3, 2..3]),
        whole.slice(s![.., 4.., ..;-1]),
        whole.view().permuted_axes([2, 0, 1]),
        first.broadcast((6, 4, 5)).unwrap().reversed_axes(),
    ];
    for view in views {
        let tensor = Tensor::from(view);
        assert_eq!(tensor.view::<f64>().unwrap(), view);
        assert_eq!((tensor.len(), tensor.is_empty()), (view.len(), view.is_empty()));
        let bytes = |of: &[f64]| of.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>();
        let all: Vec<f64> = view.iter().copied().collect();
        assert_eq!(tensor.packed().unwrap().unwrap(), bytes(&all));
        // The memory behind it has each entry where it says.
        let span = tensor.span().unwrap().unwrap();
        for ((b, i, j), v) in view.indexed_iter() {
            let by = [b, i, j].iter().zip(span.strides).map(|(&at, s)| at as isize * s).sum();
            let at = 8 * span.first.wrapping_add_signed(by);
            assert_eq!(span.data[at..at + 8], v.to_ne_bytes());
        }
        for (axis, len) in view.shape().iter().enumerate() {
            for index in 0..*len {
                let part = tensor.only(axis, index).view::<f64>().unwrap();
                assert_eq!(part, view.slice_axis(Axis(axis), (index..index + 1).into()));
            }
        }
        // And the same to be written.
        let mut own = view.to_owned();
        let new: Vec<f64> = (0..view.len()).map(|k| k as f64).collect();
        let mut to = own.slice_mut(s![..;-1, .., ..;-1]);
        TensorMut::from(to.view_mut()).assign(&bytes(&new));
        assert_eq!(to.iter().copied().collect::<Vec<_>>(), new);
        assert_eq!(TensorMut::from(to.view_mut()).packed().unwrap().unwrap(), bytes(&new));
        if let Some(all) = TensorMut::from(own.view_mut()).slice_mut() {
            all.fill(0);
        }
        assert!(own.is_empty() || own.sum() == 0.0 || !own.is_standard_layout());
    }
}

#[test]
fn a_number_is_zero_or_one_by_its_bits() {
    let of = |(zero, one): (bool, bool), number: Number| {
        assert_eq!((number.is_zero(), number.is_one()), (zero, one), "{number:?}");
    };
    let (zero, one, other) = ((true, false), (false, true), (false, false));
    of(zero, Number::new(-0.0f32));
    of(other, Number::new(f32::from_bits(1)));
    of(one, Number::new(1.0f32));
    of(other, Number::new(-1.0f64));
    of(other, Number::new(f64::from_bits(1)));
    of(one, Number::new(Complex::new(1.0f32, -0.0)));
    of(other, Number::new(Complex::new(1.0f32, 1.0)));
    of(zero, Number::new(Complex::new(-0.0f64, 0.0)));
    of(other, Number::new(Complex::new(0.0f64, 1.0)));
    assert_eq!(Number::new(Complex::new(2.0f32, -3.0)).get::<Complex<f32>>().im, -3.0);
}

/// Types that have no product, and factors of another type, are refused before a backend sees them.
#[test]
fn types_that_do_not_agree_are_refused() {
    let (a, x, wide) = (array![[1.0f32]], array![1.0f32], array![1.0f64]);
    let (mut y, mut wide_y) = (array![0.0f32], array![0.0f64]);
    let (one, one_wide) = (Number::new(1.0f32), Number::new(1.0f64));
    let pair = Number::new(Complex::new(1.0f32, 0.0));
    let mut ask = |x: Tensor<'_>, wide: bool, number: Number| {
        let a = a.view().into();
        let y = if wide { wide_y.view_mut().into() } else { y.view_mut().into() };
        let job = Job { alpha: number, a, conj: false, x, beta: number, y };
        job.check().map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(ask(x.view().into(), false, one), Ok(()));
    assert_eq!(ask(wide.view().into(), true, one_wide), Ok(()));
    assert!(ask(wide.view().into(), false, one_wide).unwrap_err().contains("f32, and X of f64"));
    assert!(ask(x.view().into(), false, one_wide).unwrap_err().contains("alpha"));
    // As many bytes, but one number and not two.
    assert!(ask(wide.view().into(), true, pair).unwrap_err().contains("alpha"));
    let narrow = array![gemv_core::half::f16::ONE];
    let why = ask(narrow.view().into(), false, one).unwrap_err();
    assert!(why.contains("no product with a matrix of f32"), "{why}");
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
    assert_eq!(window.view(&block), array![[0, 10, 2], [30, 4, 50]]);
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
        let a = Tensor::device(Dtype::F32, Window { memory: &*a, first: 0, dim, strides });
        let (dim, strides) = (Ix3(batch, 16, 1), Ix3(16, 1, 1));
        let x = Tensor::device(Dtype::F32, Window { memory: &*x, first: 0, dim, strides });
        let y = y.view_mut().into();
        let one = Number::new(1.0f32);
        Job { alpha: one, a, conj: false, x, beta: one, y }.desc().align
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
        device.product(a, &x).to(&mut y).unwrap();
        for ((a, x), y) in a.outer_iter().zip(x.outer_iter()).zip(y.outer_iter()) {
            assert_eq!(y, a.dot(&x));
        }
        let desc = calls.lock().unwrap().pop().unwrap();
        assert_eq!((desc.batch, desc.rhs), entries);
    }
    // Matrices that share X are the rows of one, if they and Y lie like that.
    let one = x.row(1).to_owned();
    let all = one.broadcast((5, 4)).unwrap();
    let apart = Array3::from_shape_fn((5, 6, 4), |(b, i, j)| (b + i * j) as f32);
    let apart = apart.slice(s![.., ..3, ..]);
    for (a, shape) in [(other.view(), (1, 15)), (apart, (5, 3))] {
        let mut y = Array2::zeros((5, 3));
        device.product(a, all).to(&mut y).unwrap();
        for (a, y) in a.outer_iter().zip(y.outer_iter()) {
            assert_eq!(y, a.dot(&one));
        }
        let desc = calls.lock().unwrap().pop().unwrap();
        assert_eq!((desc.batch, desc.m), shape);
    }
    let wide = many.index_axis(Axis(0), 2);
    let there = other.to_device(&device).unwrap();
    let x_there = wide.broadcast((5, 4, 2)).unwrap().to_device(&device).unwrap();
    let mut y = device.zeros((5, 3, 2)).unwrap();
    device.product(&there, &x_there).to(&mut y).unwrap();
    for (a, y) in other.outer_iter().zip(y.download().unwrap().outer_iter()) {
        assert_eq!(y, a.dot(&wide));
    }
    let desc = calls.lock().unwrap().pop().unwrap();
    assert_eq!((desc.batch, desc.m, desc.rhs), (1, 15, 2));
    let mut y = Array3::zeros((5, 3, 2));
    device.product(shared, &many).to(&mut y).unwrap();
    for (x, y) in many.outer_iter().zip(y.outer_iter()) {
        assert_eq!(y, a.dot(&x));
    }
    let desc = calls.lock().unwrap().pop().unwrap();
    assert_eq!((desc.batch, desc.rhs), (5, 2));
}

/// Matrices of one row each that share X, wherever each lies.
#[test]
fn single_rows_that_share_x_are_the_rows_of_one_matrix() {
    let (calls, device) = noting();
    let whole = Array3::from_shape_fn((5, 3, 4), |(b, i, j)| (7 * b + 3 * i + j) as f32);
    let (a, x) = (whole.slice(s![.., 1..2, ..]), array![1.0f32, -2.0, 3.0, 0.5]);
    let mut y = Array2::zeros((5, 1));
    device.product(a, x.broadcast((5, 4)).unwrap()).to(&mut y).unwrap();
    for (a, y) in a.outer_iter().zip(y.outer_iter()) {
        assert_eq!(y, a.dot(&x));
    }
    let desc = calls.lock().unwrap().pop().unwrap();
    assert_eq!((desc.batch, desc.m, desc.rhs), (1, 5, 1));
}

/// What a place gives to be written is looked at even if nobody has checked the job.
#[test]
fn places_outside_of_their_memory_are_not_given_out() {
    let host = Host::new("fake:0");
    let mut block = host.alloc(Dtype::F32, 6).unwrap();
    let mut gives = |first: usize, dim: usize, stride: isize| {
        let window =
            Window { memory: &mut *block, first, dim: Ix1(dim), strides: Ix1(stride as usize) };
        let mut place = TensorMut::device(Dtype::F32, window);
        let given = AssertUnwindSafe(|| place.vector_mut_with::<f32>(elements_mut).len());
        catch_unwind(given).is_ok()
    };
    assert!(gives(0, 6, 1) && gives(5, 6, -1) && gives(1, 3, 2) && gives(usize::MAX, 0, 1));
    assert!(!gives(1, 6, 1) && !gives(4, 6, -1) && !gives(1, 4, 2) && !gives(0, 2, 0));
    let window = Window { memory: &*block, first: 1, dim: Ix1(6), strides: Ix1(1) };
    let read = Tensor::device(Dtype::F32, window);
    assert!(catch_unwind(AssertUnwindSafe(|| read.vector_with::<f32>(elements).len())).is_err());
    // Of no entries, of any address and any shape.
    let window = Window { memory: &*block, first: usize::MAX / 4, dim: Ix1(0), strides: Ix1(1) };
    assert_eq!(Tensor::device(Dtype::F32, window).view_with::<f32>(elements).len(), 0);
    let huge = Array2::<f64>::zeros((1 << 61, 0));
    assert_eq!(Tensor::from(huge.view()).view::<f64>().unwrap().dim(), (1, 1 << 61, 0));
    assert_eq!(Tensor::from(huge.view()).span().unwrap().unwrap().data.len(), 0);
}

#[test]
fn one_column_of_one_entry_is_one_product() {
    let (calls, device) = noting();
    let (a, x, mut y) = (array![[1.0, 2.0]], array![[3.0], [4.0]], array![[0.0]]);
    device.product(&a, &x).to(&mut y).unwrap();
    assert_eq!(y, array![[11.0]]);
    assert!(matches!(calls.lock().unwrap()[..], [Desc { rhs: 1, batch: 1, .. }]));
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
        device.product(&a, &array![[f32::NAN, 1.0]]).scaled(0.0, beta).to(&mut y).unwrap();
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
    device.product(&a, &x).conj().scaled(one, zero).to(&mut y).unwrap();
    assert_eq!(y, array![-i]);
    let mut y = array![zero];
    device.product(&a, &x).conj().with(&params).scaled(one, zero).to(&mut y).unwrap();
    assert_eq!(y, array![-i]);
    let (a, x, mut y) =
        (array![[[2.0]], [[3.0]]], array![[[1.0]], [[5.0]]], Array3::zeros((2, 1, 1)));
    device.product(&a, &x).with(&params).to(&mut y).unwrap();
    assert_eq!(y, array![[[2.0]], [[15.0]]]);
    assert_eq!(calls.lock().unwrap().len(), 3);
    let none = Params::new("none");
    assert!(device.product(&a, &x).with(&none).to(&mut y).is_err());
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
        device.product(&batch(entries), &x).to(&mut y).unwrap();
    };
    let works: [&dyn Fn(&Device); 4] = [
        &|device| drop(device.try_gpu_dot(&a, &[1.0; 6]).unwrap()),
        &|device| {
            let (x, mut y) = (Array2::ones((6, 3)), Array2::zeros((5, 3)));
            device.product(&a, &x).to(&mut y).unwrap();
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
