//! Many right-hand sides and batches: each column has the bits of its own product.
#![deny(unsafe_code)]

use gemv_core::reference::Reference;
use gemv_core::{Device, Element, Engine, Error, GpuDot, Params, ToDevice};
use gemv_testkit::Host;
use ndarray::{Array1, Array2, Array3, ArrayView2, Axis, Ix3, array, s};

fn device() -> Device {
    Engine::global().set_default("reference").unwrap();
    Device::new(Reference::open())
}

fn wave<D: ndarray::ShapeBuilder>(shape: D, phase: f32) -> ndarray::Array<f32, D::Dim> {
    let mut at = phase;
    ndarray::Array::from_shape_simple_fn(shape, || {
        at += 1.37;
        at.sin()
    })
}

/// Column by column, by the method for one vector.
fn by_columns(a: ArrayView2<'_, f32>, x: ArrayView2<'_, f32>) -> Array2<f32> {
    let mut y = Array2::zeros((a.nrows(), x.ncols()));
    for (x, mut y) in x.columns().into_iter().zip(y.columns_mut()) {
        y.assign(&a.gpu_dot(&x));
    }
    y
}

fn bits<D: ndarray::Dimension>(a: &ndarray::ArrayRef<f32, D>) -> Vec<u128> {
    a.iter().map(|v| v.bits()).collect()
}

#[test]
fn every_column_has_the_bits_of_its_own_product() {
    let device = device();
    for (m, n, k) in [(1, 1, 1), (7, 300, 5), (3, 0, 4), (5, 64, 1), (0, 4, 3), (4, 9, 0)] {
        let (a, x) = (wave((m, n), 0.1), wave((n, 2 * k), 0.2));
        for a in [a.view(), wave((n, m), 0.3).t(), a.slice(s![..;-1, ..;-1])] {
            for x in [x.slice(s![.., ..k]), x.slice(s![..;-1, ..;2]), wave((k, n), 0.4).t()] {
                let want = by_columns(a, x);
                assert_eq!(bits(&a.gpu_dot(&x)), bits(&want));
                let resident = a.to_device(&device).unwrap();
                assert_eq!(bits(&resident.gpu_dot(&x).download().unwrap()), bits(&want));
                let there = x.to_device(&device).unwrap();
                assert_eq!(bits(&a.gpu_dot(&there)), bits(&want));
                assert_eq!(bits(&resident.gpu_dot(&there).download().unwrap()), bits(&want));
                // Into columns of something larger, with factors.
                let mut wide = wave((m, 2 * k), 0.5);
                let before = wide.clone();
                a.gemv(0.5, &x, -2.0, wide.slice_mut(s![.., ..;2]));
                for c in 0..k {
                    let mut y = before.column(2 * c).to_owned();
                    a.gemv(0.5, &x.column(c), -2.0, &mut y);
                    assert_eq!(bits(&wide.column(2 * c)), bits(&y));
                    assert_eq!(bits(&wide.column(2 * c + 1)), bits(&before.column(2 * c + 1)));
                }
            }
        }
    }
}

#[test]
fn every_entry_of_a_batch_has_the_bits_of_its_own_product() {
    let device = device();
    for (b, m, n, k) in [(3usize, 4, 300, 2), (1, 2, 3, 4), (4, 3, 2, 1), (0, 2, 2, 2)] {
        let (a, x) = (wave((b, m, n), 0.1), wave((b, n, k), 0.2));
        let y = a.gpu_dot(&x);
        let there = a.to_device(&device).unwrap();
        assert_eq!(bits(&there.gpu_dot(&x).download().unwrap()), bits(&y));
        assert_eq!(
            bits(&there.gpu_dot(&x.to_device(&device).unwrap()).download().unwrap()),
            bits(&y)
        );
        for i in 0..b {
            let want = by_columns(a.index_axis(Axis(0), i), x.index_axis(Axis(0), i));
            assert_eq!(bits(&y.index_axis(Axis(0), i)), bits(&want));
        }
        // A vector for each matrix.
        if k > 0 {
            let vectors = x.index_axis(Axis(2), 0);
            let y1 = a.gpu_dot(&vectors);
            assert_eq!(bits(&y1), bits(&y.index_axis(Axis(2), 0)));
            assert_eq!(bits(&there.gpu_dot(&vectors).download().unwrap()), bits(&y1));
        }
        // Shared by a stride of 0: one matrix, many vectors; many matrices, one X.
        if b > 0 {
            let one = a.index_axis(Axis(0), 0);
            let y = one.broadcast((b, m, n)).unwrap().gpu_dot(&x.index_axis(Axis(2), 0));
            for i in 0..b {
                let want = one.gpu_dot(&x.index_axis(Axis(0), i).column(0));
                assert_eq!(bits(&y.row(i)), bits(&want));
            }
            let one = x.index_axis(Axis(0), 0);
            let y = a.gpu_dot(&one.broadcast((b, n, k)).unwrap());
            for i in 0..b {
                let want = by_columns(a.index_axis(Axis(0), i), one);
                assert_eq!(bits(&y.index_axis(Axis(0), i)), bits(&want));
            }
        }
    }
}

#[test]
fn factors_follow_the_rules_of_one_product() {
    let device = device();
    let (a, x) = (array![[f32::NAN, 1.0]], array![[1.0, 2.0], [3.0, 4.0]]);
    let mut y = array![[f32::NAN, f32::NAN]];
    array![[1.0, 1.0]].gemv(1.0, &x, 0.0, &mut y); // beta = 0: y is not read
    assert_eq!(y, array![[4.0, 6.0]]);
    a.gemv(0.0, &x, 0.5, &mut y); // alpha = 0: A is not read
    assert_eq!(y, array![[2.0, 3.0]]);
    let mut there = y.to_device(&device).unwrap();
    a.gemv(0.0, &x, 0.5, &mut there);
    assert_eq!(there.download().unwrap(), array![[1.0, 1.5]]);
    a.gemv(0.0, &x, 1.0, &mut y);
    assert_eq!(y, array![[2.0, 3.0]]);
    // A resident Y by columns stays where it is; one that is shared is replaced.
    let mut by_columns = y.t().to_device(&device).unwrap().t();
    let kept = by_columns.clone();
    array![[1.0, 1.0]].gemv(1.0, &x, 1.0, &mut by_columns);
    assert_eq!(by_columns.download().unwrap(), array![[6.0, 9.0]]);
    assert_eq!(kept.download().unwrap(), array![[2.0, 3.0]]);
}

#[test]
fn the_number_of_axes_may_be_known_at_run_time() {
    let _device = device();
    let (a, x) = (wave((3, 4), 0.1), wave(4, 0.2));
    let y = a.gpu_dot(&x);
    let (ad, xd) = (a.clone().into_dyn(), x.clone().into_dyn());
    assert_eq!(ad.gpu_dot(&xd), y.clone().into_dyn());
    assert_eq!(ad.gpu_dot(&x), y.clone().into_dyn());
    assert_eq!(a.gpu_dot(&xd), y.clone().into_dyn());
    assert_eq!(xd.gpu_dot(&xd)[[]], x.gpu_dot(&x));
    assert_eq!(y.view().into_dyn().gpu_dot(&ad), y.gpu_dot(&a).into_dyn());
    assert_eq!(ad.gpu_dot(&a.t()), a.gpu_dot(&a.t()).into_dyn());
    let batch = wave((2, 3, 4), 0.3);
    assert_eq!(
        batch.clone().into_dyn().gpu_dot(&a.slice(s![..2, ..])),
        batch.gpu_dot(&a.slice(s![..2, ..])).into_dyn()
    );
    let right = wave((2, 4, 2), 0.4);
    assert_eq!(batch.gpu_dot(&right.clone().into_dyn()), batch.gpu_dot(&right).into_dyn());
    let mut out = Array1::<f32>::zeros(3).into_dyn();
    ad.gpu_dot_into(&xd, &mut out);
    assert_eq!(out, y.clone().into_dyn());
    let mut number = ndarray::arr0(0.0f32).into_dyn();
    xd.gpu_dot_into(&x, &mut number);
    assert_eq!(number[[]], x.gpu_dot(&x));
    let text = |e: Error| e.to_string();
    let e = wave((2, 2, 2, 2), 0.0).into_dyn().try_gpu_dot(&x).unwrap_err();
    assert_eq!(
        text(e),
        "shapes do not fit: there is no product of arrays of 4 and 1 axes: a vector \
         has 1 axis, a matrix 2, a batch of matrices 3"
    );
    let e = ad.try_gemv(1.0, &xd, 0.0, number.view_mut()).unwrap_err();
    assert!(text(e).contains("of arrays of 2 and 1 axes with a result of 0: a vector"));
    assert!(matches!(ad.try_gpu_dot(&y).unwrap_err(), Error::Shape(_)));
}

#[test]
fn axes_known_at_run_time_and_resident_or_slice() {
    let device = device();
    let (a, x, batch) = (wave((3, 4), 0.1), wave(4, 0.2), wave((2, 3, 4), 0.3));
    let (ad, xd, bd) = (a.clone().into_dyn(), x.clone().into_dyn(), batch.clone().into_dyn());
    let (there, columns) =
        (x.to_device(&device).unwrap(), a.t().to_owned().to_device(&device).unwrap());
    let vectors = wave((2, 4), 0.4).to_device(&device).unwrap();
    let matrices = wave((2, 4, 2), 0.5).to_device(&device).unwrap();
    let y = a.gpu_dot(&x).into_dyn();
    assert_eq!(ad.gpu_dot(&there), y);
    assert_eq!(ad.gpu_dot(&x.to_vec()), y);
    assert_eq!(x.as_slice().unwrap().gpu_dot(&a.t().into_dyn()), y);
    assert_eq!(xd.gpu_dot(&there)[[]], x.gpu_dot(&x));
    assert_eq!(xd.gpu_dot(&columns), y);
    assert_eq!(ad.gpu_dot(&columns), a.gpu_dot(&columns).into_dyn());
    assert_eq!(bd.gpu_dot(&vectors), batch.gpu_dot(&vectors).into_dyn());
    assert_eq!(bd.gpu_dot(&matrices), batch.gpu_dot(&matrices).into_dyn());

    let mut out = Array1::<f32>::ones(3).into_dyn();
    ad.gemv(2.0, &there, 1.0, &mut out);
    assert_eq!(out[[1]], x.gpu_dot(&a.row(1)).mul_add(2.0, 1.0));
    xd.gpu_dot_into(&columns, &mut out);
    assert_eq!(out, y);
    let mut number = ndarray::arr0(0.0f32).into_dyn();
    xd.gpu_dot_into(&there, &mut number);
    assert_eq!(number[[]], x.gpu_dot(&x));
    let mut out = Array3::<f32>::zeros((2, 3, 2)).into_dyn();
    bd.gpu_dot_into(&matrices, &mut out);
    assert_eq!(out, batch.gpu_dot(&matrices).into_dyn());

    let text = |e: Error| e.to_string();
    assert!(text(bd.try_gpu_dot(&there).unwrap_err()).contains("of arrays of 3 and 1 axes:"));
    let e = ad.try_gpu_dot_into(&columns, &mut number).unwrap_err();
    assert!(text(e).contains("of arrays of 2 and 2 axes with a result of 0: a vector"));
}

#[test]
fn slices_and_vecs_are_vectors() {
    let device = device();
    let (a, x) = (wave((3, 4), 0.1), wave(4, 0.2));
    let (y, v) = (a.gpu_dot(&x), x.to_vec());
    assert_eq!(a.gpu_dot(&v), y);
    assert_eq!(a.gpu_dot(&v[..]), y);
    assert_eq!(a.gpu_dot(&[v[0], v[1], v[2], v[3]]), y);
    assert_eq!(y.to_vec().gpu_dot(&a), y.gpu_dot(&a));
    assert_eq!(
        (v.gpu_dot(&x), x.gpu_dot(&v), v.gpu_dot(&v)),
        (x.gpu_dot(&x), x.gpu_dot(&x), x.gpu_dot(&x))
    );
    let there = a.to_device(&device).unwrap();
    assert_eq!(there.gpu_dot(&v).download().unwrap(), y);
    assert_eq!(v[..3].gpu_dot(&there).download().unwrap(), x.slice(s![..3]).gpu_dot(&a));
    let resident = x.to_device(&device).unwrap();
    assert_eq!((v.gpu_dot(&resident), resident.gpu_dot(&v)), (x.gpu_dot(&x), x.gpu_dot(&x)));
    let mut out = vec![0.0; 3];
    a.gpu_dot_into(&v, &mut out);
    assert_eq!(out, y.to_vec());
    a.gemv(1.0, &v, 0.0, &mut out[..]);
    device.gemv(1.0, &a, &v, 0.0, &mut out).unwrap();
    assert_eq!(out, y.to_vec());
}

#[test]
fn shapes_are_named() {
    let device = device();
    let (a, x) = (wave((2, 3), 0.0), wave((2, 3), 0.0));
    let text = |e: Error| e.to_string();
    assert_eq!(
        text(a.try_gpu_dot(&x).unwrap_err()),
        "shapes do not fit: the matrix is 2 × 3 and X is 2 × 3: X must have as many rows as A columns"
    );
    let mut y = wave((2, 3), 0.0);
    let before = y.clone();
    assert_eq!(
        text(a.try_gemv(1.0, &x.t(), 0.0, &mut y).unwrap_err()),
        "shapes do not fit: the matrix is 2 × 3 and X is 3 × 2, so Y must be 2 × 2, but it is 2 × 3"
    );
    assert_eq!(y, before);
    let batch = wave((4, 2, 3), 0.0);
    assert_eq!(
        text(batch.try_gpu_dot(&x).unwrap_err()),
        "shapes do not fit: the matrices are 4 of 2 × 3 and the vectors 2 of 3: there must be a vector \
         for each matrix, with as many entries as it has columns"
    );
    assert_eq!(
        text(batch.try_gpu_dot(&wave((4, 2, 2), 0.0)).unwrap_err()),
        "shapes do not fit: the matrices are 4 of 2 × 3 and X is 4 of 2 × 2: there must be an X for \
         each matrix, with as many rows as it has columns"
    );
    let mut y: Array3<f32> = Array3::zeros(Ix3(4, 2, 2));
    let e = device.product(&batch, &wave((4, 3, 5), 0.0)).to(&mut y).unwrap_err();
    assert!(text(e).ends_with("so Y must be 4 of 2 × 5, but it is 4 of 2 × 2"));
    // Of two devices.
    let other = Device::new(Reference::open());
    let (a, x) = (a.to_device(&device).unwrap(), x.t().to_device(&other).unwrap());
    assert!(matches!(a.try_gpu_dot(&x), Err(Error::WrongDevice { .. })));
}

/// Operands of another device are refused, and Y is as it was, wherever it lives.
#[test]
fn operands_of_another_device_are_refused() {
    let (device, elsewhere) = (device(), Host::new("elsewhere").device());
    let (a, x, y) = (wave((4, 6), 0.1), wave((6, 3), 0.2), Array2::from_elem((4, 3), 7.0f32));
    let stack = a.broadcast((2, 4, 6)).unwrap();
    let (sides, results) = (x.broadcast((2, 6, 3)).unwrap(), y.broadcast((2, 4, 3)).unwrap());
    let (vectors, single) = (sides.index_axis(Axis(2), 0), results.index_axis(Axis(2), 0));
    let params = Params::new("no-such-kernel");
    let refused = |done: gemv_core::Result<()>| match done {
        Err(Error::WrongDevice { operand, .. }) => assert_eq!(operand, "elsewhere"),
        other => panic!("{other:?}"),
    };
    macro_rules! y_elsewhere {
        ($($y:expr, $product:expr;)*) => { $({
            let mut there = elsewhere.array(&$y).unwrap();
            refused($product.to(&mut there));
            let shared = there.clone();
            refused($product.to(&mut there));
            drop(shared);
            refused($product.to(there.view_mut().unwrap()));
            assert_eq!(there.download().unwrap(), $y, "{}", stringify!($product));
        })* };
    }
    y_elsewhere! {
        y.column(0), device.product(&a, x.column(0));
        y, device.product(&a, &x);
        y, device.product(&a, &x).scaled(0.0, 1.0);
        y, device.product(&a, &x).conj().scaled(1.0, 1.0);
        results, device.product(stack, sides);
        single, device.product(stack, vectors);
        results, device.product(stack, sides).with(&params);
        results, device.product(stack, sides).conj().with(&params);
    }
    // A or X there, and Y here or of the host.
    macro_rules! others_elsewhere {
        ($($y:expr, $a:expr, $x:expr;)*) => { $({
            let (a, x) = (elsewhere.array(&$a).unwrap(), elsewhere.array(&$x).unwrap());
            let (mut host, mut here) = ($y.to_owned(), device.array(&$y).unwrap());
            refused(device.product(&a, $x).to(&mut host));
            refused(device.product(&a, $x).to(&mut here));
            refused(device.product($a, &x).to(&mut host));
            refused(device.product($a, &x).to(&mut here));
            assert_eq!((host.view(), here.download().unwrap().view()), ($y.view(), $y.view()));
        })* };
    }
    others_elsewhere! {
        y.column(0), a.view(), x.column(0);
        y, a.view(), x.view();
        results, stack, sides;
        single, stack, vectors;
    }
    // By the method the device is A's.
    let mut there = elsewhere.array(&y).unwrap();
    refused(device.array(&a).unwrap().try_gpu_dot_into(&x, &mut there));
    assert_eq!(there.download().unwrap(), y);
}

#[test]
fn what_no_memory_holds_is_an_error() {
    let device = device();
    let full = |e: Error| assert!(matches!(e, Error::OutOfMemory { .. }), "{e}");
    let one = Array1::<f32>::ones(1);
    let resident = one.broadcast(1usize << 60).unwrap().to_device(&device).unwrap();
    full(resident.download().unwrap_err());
    let other = Device::new(Reference::open());
    full(resident.to_device(&other).unwrap_err());
    let left = Array3::<f32>::ones((0, 1 << 40, 0));
    full(left.try_gpu_dot(&Array3::ones((0, 0, 1 << 40))).unwrap_err());
    let none = device.zeros::<f32, _>((0, 1 << 40, 1 << 40)).unwrap();
    assert_eq!(none.index_axis(Axis(1), (1 << 40) - 1).dim(), (0, 1 << 40));
    let empty = device.zeros::<f32, _>(0).unwrap().as_matrix((0, usize::MAX));
    assert_eq!(empty.download().map(|a| a.len()).unwrap_or(0), 0);
    // Operands of two devices are refused even where there is nothing to compute.
    let none = Array2::<f32>::zeros((0, 4)).to_device(&device).unwrap();
    let x = Array1::<f32>::zeros(4).to_device(&other).unwrap();
    assert!(matches!(none.try_gpu_dot(&x), Err(Error::WrongDevice { .. })));
}
