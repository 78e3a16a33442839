//! Resident operands: what is uploaded, and views of it, against ndarray's own.
#![deny(unsafe_code)]

use std::borrow::Cow;

use gemv_core::reference::Reference;
use gemv_core::{Device, GpuDot, Span, span};
use ndarray::{Array1, Array2, Array3, ArrayView2, ArrayView3, Axis, Ix2, ShapeBuilder, array, s};

fn device() -> Device {
    Device::new(Reference::open())
}

fn grid() -> Array2<f32> {
    Array2::from_shape_fn((4, 6), |(i, j)| (10 * i + j) as f32)
}

/// The view again, from its span.
fn again(span: &Span<'_, f32, Ix2>, (m, n): (usize, usize)) -> Array2<f32> {
    Array2::from_shape_fn((m, n), |(i, j)| {
        let at = span.first as isize + i as isize * span.stride(0) + j as isize * span.stride(1);
        span.data[usize::try_from(at).unwrap()]
    })
}

#[test]
fn views_without_gaps_are_borrowed_and_others_packed() {
    let a = grid();
    let row = array![1.0f32, 2.0, 3.0];
    let (repeated, one) = (row.broadcast((5, 3)).unwrap(), ndarray::arr0(7.0f32));
    let views: [(ArrayView2<'_, f32>, bool, usize); 13] = [
        (a.view(), true, 24),
        (a.t(), true, 24),
        (a.slice(s![1..3, ..]), true, 12),
        (a.slice(s![..;-1, ..]), true, 24),
        (a.slice(s![.., ..;-1]), true, 24),
        (a.slice(s![..;-1, ..;-1]).reversed_axes(), true, 24),
        (a.slice(s![2..3, 1..4]), true, 3),
        (a.slice(s![2..2, ..]), true, 0),
        (repeated, true, 3),
        (one.broadcast((4, 9)).unwrap(), true, 1),
        (a.slice(s![.., 1..4]), false, 12),
        (a.slice(s![..;2, ..;-3]), false, 4),
        (a.slice(s![.., 1..4]).reversed_axes(), false, 12),
    ];
    for (view, borrowed, len) in views {
        let s = span(&view).unwrap();
        assert_eq!((s.data.len(), matches!(s.data, Cow::Borrowed(_))), (len, borrowed));
        assert_eq!(again(&s, view.dim()), view);
    }
    // A window of a column-major matrix stays column-major.
    let window = a.slice(s![.., 1..4]).reversed_axes();
    assert_eq!(span(&window).unwrap().strides, Ix2(1, 3));
}

#[test]
fn repeated_entries_are_packed_once() {
    let a = grid();
    let row = a.slice(s![..1, ..;2]);
    let rows = row.broadcast((1000, row.ncols())).unwrap();
    let s = span(&rows).unwrap();
    assert_eq!((s.data.len(), s.strides), (row.ncols(), Ix2(0, 1)));
    assert_eq!(again(&s, rows.dim()), rows);
    let columns = rows.t();
    let s = span(&columns).unwrap();
    assert_eq!((s.data.len(), s.strides), (row.ncols(), Ix2(1, 0)));
    assert_eq!(again(&s, columns.dim()), columns);
    assert_eq!(device().matrix(&rows).unwrap().download().unwrap(), rows);
}

#[test]
fn batches_go_up_and_come_down() {
    let (device, a) =
        (device(), Array3::from_shape_fn((3, 4, 5), |(b, i, j)| (100 * b + 10 * i + j) as f32));
    let matrix = grid();
    let views: [(ArrayView3<'_, f32>, usize); 7] = [
        (a.view(), 60),
        (a.view().permuted_axes([2, 0, 1]), 60),
        (a.slice(s![..;-1, .., ..;-1]), 60),
        (a.slice(s![1.., .., ..]), 40),
        (a.slice(s![.., 1..3, ..;2]), 18),
        (a.slice(s![.., ..0, ..]), 0),
        (matrix.broadcast((7, 4, 6)).unwrap(), 24),
    ];
    for (view, len) in views {
        let up = device.array(&view).unwrap();
        assert_eq!(up.window().memory.len(), len);
        assert_eq!(up.download().unwrap(), view);
        for (axis, len) in view.shape().iter().enumerate().filter(|(_, len)| **len > 0) {
            let part = up.index_axis(Axis(axis), len - 1).download().unwrap();
            assert_eq!(part, view.index_axis(Axis(axis), len - 1));
        }
    }
    // What has gaps is packed in the order that its strides suggest.
    let packed = span(&a.slice(s![.., 1..3, ..]).permuted_axes([1, 2, 0])).unwrap().strides;
    assert_eq!(packed, ndarray::Ix3(5, 1, 10));
}

#[test]
fn steps_of_any_size() {
    let a = device().matrix(&grid()).unwrap();
    for step in [isize::MAX, isize::MIN] {
        let one = a.step_rows(1.., step).step_columns(.., step);
        let (i, j) = if step > 0 { (1, 0) } else { (a.dim().0 - 1, a.dim().1 - 1) };
        assert_eq!(one.download().unwrap(), grid().slice(s![i..=i, j..=j]));
    }
}

#[test]
fn what_goes_up_comes_down() {
    let (device, a) = (device(), grid());
    let row = array![1.0f32, 2.0, 3.0];
    for view in [
        a.view(),
        a.t(),
        a.slice(s![..;-2, 1..;2]),
        a.slice(s![..;-1, ..]),
        a.slice(s![3.., ..0]),
        row.broadcast((5, 3)).unwrap(),
        row.broadcast((5, 3)).unwrap().reversed_axes(),
    ] {
        let up = device.matrix(&view).unwrap();
        assert_eq!(up.download().unwrap(), view);
        assert_eq!(up.t().download().unwrap(), view.t());
        let memory = device.matrix(&view.t()).unwrap().t();
        assert_eq!(memory.dim(), view.dim());
    }
    for view in [row.view(), row.slice(s![..;-1]), row.slice(s![..;2]), row.slice(s![1..1])] {
        assert_eq!(device.vector(&view).unwrap().download().unwrap(), view);
    }
    let one = ndarray::arr0(4.0f32);
    let repeated = one.broadcast(6).unwrap();
    let up = device.vector(&repeated).unwrap();
    assert_eq!((up.window().memory.len(), up.download().unwrap()), (1, Array1::from_elem(6, 4.0)));
}

#[test]
fn views_of_views_are_those_of_ndarray() {
    let (device, a) = (device(), grid());
    let up = device.matrix(&a).unwrap();
    for (from, to) in [(0, 4), (1, 3), (2, 3), (4, 4), (0, 0)] {
        for step in [1isize, 2, 3, -1, -2, -3] {
            let want = a.slice(s![from..to; step, ..]);
            let part = up.step_rows(from..to, step);
            assert_eq!(part.download().unwrap(), want, "{from}..{to};{step}");
            let twice = part.step_columns(1..5, -2).t();
            let want = want.slice(s![.., 1..5;-2]).reversed_axes();
            assert_eq!(twice.download().unwrap(), want, "{from}..{to};{step} twice");
        }
    }
    for axis in [0, 1].map(Axis) {
        assert_eq!(up.index_axis(axis, 2).download().unwrap(), a.index_axis(axis, 2));
    }
    assert_eq!(up.t().row(2).step(.., 1).download().unwrap(), a.column(2));
    assert_eq!(up.step_rows(.., -2).row(1).download().unwrap(), a.row(1));
    assert_eq!(up.columns(1..3).column(1).download().unwrap(), a.column(2));
    assert_eq!(up.rows(1..=2).download().unwrap(), a.slice(s![1..3, ..]));
    assert_eq!(up.rows(..).rows(2..).rows(..1).download().unwrap(), a.slice(s![2..3, ..]));
    let v = device.vector(&a.row(1)).unwrap();
    assert_eq!(v.step(1..6, -2).step(.., -1).download().unwrap(), a.slice(s![1, 1..6;2]));
    assert_eq!(v.as_matrix((2, 3)).download().unwrap(), {
        array![[10.0, 11.0, 12.0], [13.0, 14.0, 15.0]]
    });
    assert_eq!(v.as_matrix((2, 2).f()).download().unwrap(), { array![[10.0, 12.0], [11.0, 13.0]] });
}

#[test]
fn results_never_reach_another_clone() {
    let device = device();
    let a = device.matrix(&array![[1.0f64, 2.0], [3.0, 4.0]]).unwrap();
    let x = device.vector(&array![1.0, 1.0]).unwrap();
    let mut y = x.clone();
    a.try_gemv(1.0, &x, 1.0, &mut y).unwrap();
    assert_eq!(
        (x.download().unwrap(), y.download().unwrap()),
        (array![1.0, 1.0], array![4.0, 8.0])
    );
    // A part of a vector is a vector of its own when it is written.
    let whole = device.vector(&array![1.0, 2.0, 3.0, 4.0]).unwrap();
    let mut part = whole.step(.., -2);
    a.try_gemv(1.0, &x, 10.0, &mut part).unwrap();
    assert_eq!(part.download().unwrap(), array![43.0, 27.0]);
    assert_eq!(whole.download().unwrap(), array![1.0, 2.0, 3.0, 4.0]);
    // The only owner writes in place, and a clone's memory is out of reach.
    let mut only = device.zeros::<f64, _>(2).unwrap();
    assert!(only.window_mut().is_some());
    let kept = only.clone();
    assert!(only.window_mut().is_none());
    a.try_gemv(1.0, &x, 0.0, &mut only).unwrap();
    assert!(only.window_mut().is_some());
    assert_eq!(kept.download().unwrap(), array![0.0, 0.0]);
}
