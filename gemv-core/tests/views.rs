//! Views of resident arrays, sums and operators against ndarray's own; where panics point; what a write says that copies.
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Once;

use gemv_core::reference::Reference;
use gemv_core::{Device, DeviceArray, Engine, Error, GpuDot, ToDevice};
use ndarray::{Array1, Array2, Array3, Array4, Axis, NewAxis, ShapeBuilder, array, s};

fn device() -> Device {
    Device::new(Reference::open())
}

fn stack() -> Array3<f64> {
    Array3::from_shape_fn((3, 4, 5), |(b, i, j)| (100 * b + 10 * i + j) as f64)
}

#[test]
#[allow(clippy::reversed_empty_ranges)] // empty in ndarray as well
fn slices_are_those_of_ndarray() {
    let host = stack();
    let there = host.to_device(&device()).unwrap();
    macro_rules! same {
        ($($info:expr),* $(,)?) => { $(
            let part = there.slice($info);
            assert_eq!(part.download().unwrap(), host.slice($info), "{}", stringify!($info));
            let mut twice = part.t();
            if twice.ndim() <= 3 {
                twice *= 2.0;
                assert_eq!(twice.download().unwrap(), 2.0 * &host.slice($info).reversed_axes());
            }
        )* };
    }
    same!(
        s![.., .., ..],
        s![1, .., ..],
        s![-1, 2.., ..-1],
        s![..;-1, ..;2, ..;-2],
        s![1..2, -3..-1, 0],
        s![2, 3, 4],
        s![.., 4.., ..],
        s![0..0, 2, ..;-3],
        s![NewAxis, 1, .., NewAxis, ..;3],
        s![.., -4, NewAxis, 1..=3],
        s![2..1, .., ..],
    );
    // What was sliced was not written.
    assert_eq!(there.download().unwrap(), host);
    let of = host.slice(s![.., ..;2, 1..]);
    let part = there.slice(s![.., ..;2, 1..]).slice(s![1.., ..;-1, 1..;2]);
    assert_eq!(part.download().unwrap(), of.slice(s![1.., ..;-1, 1..;2]));
}

#[test]
fn axes_are_moved_as_in_ndarray() {
    let (mut host, device) = (stack(), device());
    let mut there = host.to_device(&device).unwrap();
    assert_eq!(there.t().download().unwrap(), host.t());
    for axes in [[0, 1, 2], [2, 0, 1], [1, 0, 2], [2, 1, 0]] {
        assert_eq!(there.permuted_axes(axes).download().unwrap(), host.view().permuted_axes(axes));
    }
    for (one, other) in [(0, 2), (1, 2), (1, 1)] {
        host.swap_axes(one, other);
        there.swap_axes(one, other);
        assert_eq!(there.download().unwrap(), host);
    }
    assert_eq!((there.shape(), there.len_of(Axis(1)), there.ndim()), (host.shape(), 3, 3));
    let four = Array4::from_shape_fn((2, 3, 1, 4), |(a, b, _, d)| (a + 7 * b + 31 * d) as f32);
    let up = four.to_device(&device).unwrap();
    assert_eq!(
        up.t().slice(s![.., 0, 1.., ..]).download().unwrap(),
        four.t().slice(s![.., 0, 1.., ..])
    );
}

#[test]
fn shapes_are_broadcast_as_in_ndarray() {
    let device = device();
    let (row, column) = (array![[1.0f32, 2.0, 3.0]], array![[1.0f32], [2.0]]);
    for (host, shape) in [
        (row.view(), (4, 3)),
        (column.view(), (2, 5)),
        (column.view(), (2, 0)),
        (row.view(), (2, 5)),
        (row.t(), (3, 9)),
    ] {
        let there = host.to_device(&device).unwrap();
        let got = there.broadcast(shape).map(|wide| wide.download().unwrap());
        assert_eq!(got, host.broadcast(shape).map(|wide| wide.to_owned()), "{shape:?}");
        let got = there.broadcast((2, shape.0, shape.1)).map(|wide| wide.download().unwrap());
        assert_eq!(got, host.broadcast((2, shape.0, shape.1)).map(|wide| wide.to_owned()));
        assert!(there.broadcast(3).is_none());
    }
    // A product of a matrix for all of a batch, and a write to what is repeated.
    let a = stack().to_device(&device).unwrap();
    let x = Array2::from_shape_fn((5, 2), |(j, c)| (j + c) as f64);
    let shared = x.to_device(&device).unwrap().broadcast((3, 5, 2)).unwrap();
    assert_eq!(
        a.gpu_dot(&shared).download().unwrap().index_axis(Axis(0), 1),
        stack().index_axis(Axis(0), 1).dot(&x)
    );
    let mut wide = row.to_device(&device).unwrap().broadcast((2, 3)).unwrap();
    assert!(matches!(wide.try_view_mut(), Err(Error::Shared { bytes: 24, .. })));
    wide.row_mut(1).unwrap().fill(0.0).unwrap();
    assert_eq!(wide.download().unwrap(), array![[1.0, 2.0, 3.0], [0.0; 3]]);
}

#[test]
fn shapes_are_changed_where_nothing_has_to_move() {
    let (host, device) = (stack(), device());
    let there = host.to_device(&device).unwrap();
    let rows = host.to_shape((12, 5)).unwrap();
    assert_eq!(there.as_matrix((12, 5)).download().unwrap(), rows);
    assert_eq!(
        there.reshape((2, 3, 2, 5)).unwrap().download().unwrap(),
        host.to_shape((2, 3, 2, 5)).unwrap()
    );
    assert_eq!(
        there.reshape(60).unwrap().reshape((4, 15)).unwrap().download().unwrap(),
        host.to_shape((4, 15)).unwrap()
    );
    // By columns: of an array in Fortran's order.
    let columns = there.t().reshape((20, 3).f()).unwrap();
    assert_eq!(
        columns.download().unwrap(),
        host.t().to_shape(((20, 3), ndarray::Order::F)).unwrap()
    );
    assert!(there.t().reshape((20, 3)).is_err() && there.reshape((20, 3).f()).is_err());
    let e = there.slice(s![.., 1.., ..]).reshape(45).unwrap_err().to_string();
    assert!(e.contains("[3, 3, 5]") && e.contains("[45]") && e.contains("assign"), "{e}");
    let e = there.reshape((3, 4)).unwrap_err().to_string();
    assert!(e.contains("not as many entries"), "{e}");
    // A part without gaps, and none at all.
    assert_eq!(
        there.slice(s![1, 1..3, ..]).reshape(10).unwrap().download().unwrap(),
        host.slice(s![1, 1..3, ..]).to_shape(10).unwrap()
    );
    assert_eq!(there.slice(s![.., ..0, ..]).reshape((0, 7)).unwrap().dim(), (0, 7));
}

#[test]
fn arrays_are_made_in_either_order() {
    let device = device();
    let a = device.zeros::<f32, _>((3, 4).f()).unwrap();
    assert_eq!(
        (a.strides(), a.dim(), a.download().unwrap()),
        ((1, 3), (3, 4), Array2::zeros((3, 4)))
    );
    let b = device.zeros::<f32, _>((2, 3, 4).f()).unwrap();
    assert_eq!(b.t().reshape(24).unwrap().len(), 24);
    for shape in [(1, 4).f(), (3, 0).f(), (0, 7).f()] {
        assert_eq!(
            device.zeros::<f64, _>(shape).unwrap().download().unwrap(),
            Array2::zeros(shape)
        );
    }
    // More than can be addressed is refused, in either order.
    for shape in [(1 << 40, 1 << 40).f(), (usize::MAX, 2).into_shape_with_order()] {
        assert!(matches!(device.zeros::<f64, _>(shape), Err(Error::OutOfMemory { .. })));
    }
    let entry = |(i, j)| (10 * i + j) as f64;
    let rows = device.from_shape_fn((3, 4), entry).unwrap();
    let columns = device.from_shape_fn((3, 4).f(), entry).unwrap();
    assert_eq!((rows.strides(), columns.strides()), ((4, 1), (1, 3)));
    assert_eq!(rows.download().unwrap(), Array2::from_shape_fn((3, 4), entry));
    assert_eq!(columns.download().unwrap(), rows.download().unwrap());
    assert_eq!(
        device.from_shape_fn(3, |i| i as f32).unwrap().download().unwrap(),
        array![0.0, 1.0, 2.0]
    );
}

/// A sum is the product with ones, in any layout, along any axis.
#[test]
fn sums_are_products_with_ones() {
    let device = device();
    let host = Array3::from_shape_fn((3, 4, 700), |(b, i, j)| ((b + 5 * i + 11 * j) as f32).cos());
    let there = host.to_device(&device).unwrap();
    let ones =
        device.zeros::<f32, _>(700).and_then(|mut ones| ones.fill(1.0).map(|()| ones)).unwrap();
    let want = there.as_matrix((12, 700)).gpu_dot(&ones).download().unwrap();
    let sums = |a: &DeviceArray<f32, _>, axis| a.sum_axis(Axis(axis)).unwrap().download().unwrap();
    assert_eq!(sums(&there, 2), want.to_shape((3, 4)).unwrap());
    assert_eq!(sums(&there.permuted_axes([2, 0, 1]), 0), want.to_shape((3, 4)).unwrap());
    assert_eq!(sums(&there.permuted_axes([1, 2, 0]), 1), want.to_shape((3, 4)).unwrap().t());
    let columns = there.as_matrix((12, 700)).t();
    assert_eq!(columns.sum_axis(Axis(0)).unwrap().download().unwrap(), want);
    assert_eq!(columns.column(3).sum().unwrap(), want[3]);
    // All of them: one row, whatever the layout.
    let all = host.flatten().to_device(&device).unwrap();
    let want = all.gpu_dot(&Array1::<f32>::ones(8400));
    assert_eq!((there.sum().unwrap(), all.sum().unwrap()), (want, want));
    let by_columns = device.from_shape_fn((3, 4, 700).f(), |at| host[at]).unwrap();
    assert_eq!(by_columns.sum().unwrap(), want);
    // Of nothing.
    let none = device.zeros::<f64, _>((2, 0)).unwrap();
    assert_eq!(
        (none.sum().unwrap(), none.sum_axis(Axis(1)).unwrap().download().unwrap()),
        (0.0, array![0.0, 0.0])
    );
    assert_eq!(none.sum_axis(Axis(0)).unwrap().len(), 0);
    assert!(matches!(
        device.zeros::<f64, _>((1, 2, 3, 4)).unwrap().sum_axis(Axis(0)),
        Err(Error::Shape(_))
    ));
    assert_eq!(device.scalar(7.0).unwrap().sum().unwrap(), 7.0);
}

#[test]
fn operators_are_those_of_ndarray() {
    let device = device();
    let (mut host, x) = (array![[0.1, 0.2], [0.3, 0.4]], array![[1e9, 1.0 / 3.0], [5.0, -0.2]]);
    let mut there = host.to_device(&device).unwrap();
    let kept = there.clone();
    host += &x;
    there += &x.to_device(&device).unwrap();
    host -= &x.t();
    there -= &x.t();
    host *= 0.7;
    there *= 0.7;
    let mut row = there.row_mut(1).unwrap();
    row += &x.column(0);
    row *= 3.0;
    let mut row = host.row_mut(1);
    row += &x.column(0);
    row *= 3.0;
    assert_eq!(there.download().unwrap(), host);
    assert_eq!(kept.download().unwrap()[[0, 0]], 0.1);
}

thread_local! {
    /// Where the last panic of this thread was, and what it said.
    static PANICKED: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// Where and how a call panics.
fn panics(call: impl FnOnce()) -> (String, String) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>().cloned().unwrap_or_default();
            let at = info.location().map(Location::to_string).unwrap_or_default();
            PANICKED.set(Some((at, text)));
            if std::thread::panicking() {
                default(info);
            }
        }));
    });
    PANICKED.set(None);
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    PANICKED.take().expect("the hook was called")
}

/// Each says what lies along the axis, or which axis, and has the line of the caller.
#[test]
#[allow(clippy::reversed_empty_ranges)] // refused
fn panics_have_the_callers_line_and_say_what_is_wrong() {
    let device = device();
    Engine::global().set_default("reference").unwrap();
    let (h, short) = (Array2::<f64>::zeros((2, 3)), array![1.0, 2.0]);
    let (a, x) = (device.zeros::<f64, _>((2, 3)).unwrap(), device.zeros::<f64, _>(3).unwrap());
    let batch = device.zeros::<f64, _>((2, 3, 4)).unwrap();
    let (mut y, mut z) = (a.clone(), x.clone());
    macro_rules! says {
        ($($part:literal: $call:expr;)*) => { $({
            let (at, text) = panics(|| { let _ = $call; });
            assert!(at.starts_with(file!()), "{}: {at}", stringify!($call));
            assert!(text.contains($part), "{}: {text}", stringify!($call));
        })* };
    }
    says! {
        "2 of the rows is out of bounds: there are 2": a.row(2);
        "3 of the columns is out of bounds: there are 3": a.column(3);
        "range 1..3 of the rows": a.rows(1..3);
        "range 0..4 of the columns": a.columns(..4);
        "range 0..4 of the columns": a.step_columns(..4, 2);
        "a step of 0 along the rows": a.step_rows(.., 0);
        "range 2..4 of the entries": x.step(2..4, 1);
        "4 of the entries of axis 2": batch.index_axis(Axis(2), 4);
        "there is no axis 3: the array has 3": batch.index_axis(Axis(3), 0);
        "of the rows is out of bounds": a.slice(s![2, ..]);
        "of the columns is out of bounds": a.slice(s![.., -4]);
        "of the columns is out of bounds": a.slice(s![.., -4..]);
        "of the columns is out of bounds": a.slice(s![.., ..9]);
        "of the entries of axis 1 is out of bounds": batch.slice(s![.., 3, ..]);
        "not as many entries": batch.as_matrix((5, 5));
        "not as many entries": x.as_matrix((2, 2));
        "another order or have gaps": a.t().as_matrix((2, 3));
        "there is no axis 2": y.swap_axes(0, 2);
        "axis 1 is there twice": a.permuted_axes([1, 1]);
        "there is no axis 2": a.len_of(Axis(2));
        "there is no axis 1": x.sum_axis(Axis(1));
        "of the rows": y.row_mut(2).map(drop);
        "of the columns": y.column_mut(3).map(drop);
        "of the rows": y.rows_mut(..3).map(drop);
        "of the columns": y.columns_mut(..4).map(drop);
        "of the entries": z.step_mut(..4, 1).map(drop);
        "of the rows": y.slice_mut(s![2, ..]).map(drop);
        "of the columns": y.view_mut().unwrap().index_axis(Axis(1), 3);
        "there is no axis 2": y.view_mut().unwrap().step_axis(Axis(2), .., 1);
        "of the columns": y.view_mut().unwrap().slice_move(s![.., 3]);
        "y has 3 entries and an operand 2": z += &a.column(0);
        "y has 3 entries and an operand 2": z -= &array![1.0, 2.0];
        "range 2..18446744073709551615 of the rows": a.rows(2..=usize::MAX);
        "range 2..1 of the rows is out of bounds": a.rows(2..1);
        "must have 3 entries": a.gpu_dot(&[1.0, 2.0]);
        "must have 2 entries": a.gpu_dot_into(&x, &mut z);
        "must have 3 entries": a.gemv(1.0, &[1.0], 0.0, &mut [0.0; 2]);
        "gpu_dot: shapes do not fit: the matrix is 2 × 3, so x must have 3": h.gpu_dot(&short);
        "must have 3 entries": h.view().gpu_dot(&short);
        // As the caller wrote it, not its transpose.
        "the matrix is 3 × 2, so x must have 3 entries, but it has 2": short.gpu_dot(&h.t());
        "y must have 2 entries, but it has 3": h.gpu_dot_into(&[1.0; 3], &mut [0.0; 3]);
        "must have 3 entries": h.gemv(1.0, &short, 0.0, &mut [0.0; 2]);
    }
}

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {} {}", record.level(), record.target(), record.args());
        LINES.with_borrow_mut(|lines| lines.push(line));
    }
    fn flush(&self) {}
}

#[test]
fn a_write_that_copies_says_so() {
    log::set_logger(&Lines).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let said = || LINES.take();
    let device = device();
    let lines = said();
    let opened = lines
        .iter()
        .filter(|line| line.starts_with("INFO gemv_core") && line.ends_with("is opened"));
    assert_eq!(opened.count(), 1, "{lines:?}");
    let mut basis = device.zeros::<f64, _>((100, 5)).unwrap();
    for k in 1..5 {
        let last = basis.column(k - 1).download().unwrap();
        basis.try_view_mut().unwrap().index_axis(Axis(1), k).assign(&last).unwrap();
    }
    assert_eq!(said(), [""; 0]);
    let first = basis.column(0);
    let e = basis.try_view_mut().unwrap_err();
    assert_eq!(e, Error::Shared { device: "reference".into(), bytes: 4000 });
    assert!(e.to_string().contains("4000 bytes") && e.to_string().contains("view_mut"), "{e}");
    basis.column_mut(1).unwrap().fill(1.0).unwrap();
    let lines = said();
    assert!(
        lines.len() == 1
            && lines[0].starts_with("DEBUG gemv_core")
            && lines[0].contains("4000 bytes are copied"),
        "{lines:?}"
    );
    // It has memory of its own since.
    basis.column_mut(2).unwrap().fill(1.0).unwrap();
    assert_eq!((said(), first.sum().unwrap()), (Vec::new(), 0.0));
    // What is not read is not copied.
    let mut y = first.clone();
    basis.gpu_dot_into(&[1.0; 5], &mut y);
    let lines = said();
    assert!(lines.len() == 1 && lines[0].contains("800 bytes are allocated"), "{lines:?}");
}
