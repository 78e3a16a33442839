//! `GpuDot` for every form of operand, and every pair of host and resident operands.
#![deny(unsafe_code)]

use gemv_core::half::f16;
use gemv_core::num_complex::Complex;
use gemv_core::reference::{self, Reference};
use gemv_core::{
    Device, DeviceMatrix, DeviceVector, Element, Engine, Error, GpuDot, ToDevice, VectorMut,
};
use ndarray::{
    Array1, Array2, ArrayRef1, ArrayViewMut1, CowArray, array, aview_mut1, aview1, aview2, s,
};

fn a() -> Array2<f64> {
    Engine::global().set_default("reference").unwrap();
    array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
}

fn x() -> Array1<f64> {
    array![1.0, 0.0, -1.0]
}

#[test]
fn every_form_on_either_side() {
    let (mut a, mut x, want) = (a(), x(), array![-2.0, -2.0]);
    assert_eq!(a.gpu_dot(&x), want);
    assert_eq!(a.view().gpu_dot(&x.view()), want);
    assert_eq!(a.view_mut().gpu_dot(&x.view_mut()), want);
    assert_eq!(a.to_shared().gpu_dot(&x.to_shared()), want);
    assert_eq!(CowArray::from(&a).gpu_dot(&CowArray::from(&x)), want);
    assert_eq!(CowArray::from(a.clone()).gpu_dot(&CowArray::from(x.clone())), want);
    assert_eq!((*a).gpu_dot(&*x), want); // ArrayRef
    let (a_ref, x_ref) = (&a, &x);
    assert_eq!(a_ref.gpu_dot(x_ref), want);
    assert_eq!(a_ref.gpu_dot(&x_ref), want);
    assert_eq!((&a_ref).gpu_dot(&&x_ref), want);
    let (a_mut, x_mut) = (&mut a, &mut x);
    assert_eq!(a_mut.gpu_dot(x_mut), want);
    assert_eq!(a_mut.gpu_dot(&x_mut), want);
    assert_eq!(
        aview2(&[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).gpu_dot(&aview1(&[1.0, 0.0, -1.0])),
        want
    );
    let v = array![1.0, -1.0];
    assert_eq!(a.t().gpu_dot(&v.view()), array![-3.0, -3.0, -3.0]);
    assert_eq!(v.gpu_dot(&a.view()), array![-3.0, -3.0, -3.0]);
    assert_eq!(v.view().gpu_dot(&a.slice(s![.., ..;-2])), array![-3.0, -3.0]);
    assert_eq!(v.to_shared().gpu_dot(&CowArray::from(&a)), array![-3.0, -3.0, -3.0]);
    assert_eq!(a.gpu_dot(&a.row(1)), array![32.0, 77.0]);
    assert_eq!(a.gpu_dot(&a.slice(s![0, ..;-1])), array![10.0, 28.0]);
    assert_eq!(a.row(0).gpu_dot(&a.row(1)), 32.0);
    // Literals take the type of the other operand.
    assert_eq!(array![[1.0f32, 2.0]].gpu_dot(&array![3.0, 4.0]), array![11.0]);
    assert_eq!(array![3.0, 4.0].gpu_dot(&array![1.0f32, 2.0]), 11.0);
}

#[test]
fn a_result_may_be_any_vector() {
    let (a, x) = (a(), x());
    let mut y = array![f64::NAN, f64::NAN];
    a.gpu_dot_into(&x, &mut y);
    a.gemv(1.0, &x, 1.0, &mut y.view_mut());
    a.gemv(1.0, &x, 1.0, y.view_mut());
    a.gemv(1.0, &x, 1.0, &mut *y as &mut ArrayRef1<f64>);
    assert_eq!(y, array![-8.0, -8.0]);
    let mut slice = [1.0, 1.0];
    a.gemv(1.0, &x, 1.0, aview_mut1(&mut slice));
    a.gpu_dot_into(&x, ArrayViewMut1::from(&mut slice[..]));
    assert_eq!(slice, [-2.0, -2.0]);
    let mut shared = array![0.0, 0.0].into_shared();
    let before = shared.clone();
    a.gpu_dot_into(&x, &mut shared);
    assert_eq!((shared, before), (array![-2.0, -2.0].into(), array![0.0, 0.0].into()));
    // A column of a matrix, backwards: every other element stays.
    let mut block = Array2::from_elem((4, 3), 9.0);
    a.gpu_dot_into(&array![1.0, 1.0, 1.0], &mut block.slice_mut(s![1..;-2, 1]));
    assert_eq!(block, array![[9.0, 9.0, 9.0], [9.0, 15.0, 9.0], [9.0, 9.0, 9.0], [9.0, 6.0, 9.0]]);
    // A row vector's product with a matrix.
    let (v, mut row) = (array![1.0, -1.0], array![f64::NAN, f64::NAN, f64::NAN]);
    v.gpu_dot_into(&a, &mut row);
    assert_eq!(row, array![-3.0, -3.0, -3.0]);
    v.gemv(2.0, &a, 1.0, &mut row);
    assert_eq!(row, array![-9.0, -9.0, -9.0]);
    // The explicit device takes the same.
    let device = Device::new(Reference::open());
    let mut view = y.view_mut();
    device.gemv(1.0, &a, &x, 0.0, &mut view).unwrap();
    device.gemv(1.0, a.view(), x.view(), 1.0, view).unwrap();
    assert_eq!(y, array![-4.0, -4.0]);
    // A number.
    let mut dot = f64::NAN;
    x.gpu_dot_into(&x, &mut dot);
    x.gemv(3.0, &x, -1.0, &mut dot);
    assert_eq!(dot, 4.0);
}

/// Host and resident, for every operand.
struct Both<T: Element> {
    a: (Array2<T>, DeviceMatrix<T>),
    x: (Array1<T>, DeviceVector<T>),
    v: (Array1<T>, DeviceVector<T>),
}

fn both(device: &Device) -> Both<f32> {
    let a = Array2::from_shape_fn((7, 300), |(i, j)| ((31 * i + j) as f32).sin());
    let (x, v) = (a.row(3).mapv(f32::cos), a.column(5).to_owned());
    Both {
        a: (a.clone(), a.to_device(device).unwrap()),
        x: (x.clone(), x.to_device(device).unwrap()),
        v: (v.clone(), v.to_device(device).unwrap()),
    }
}

#[test]
fn every_pair_of_host_and_resident_operands() {
    Engine::global().set_default("reference").unwrap();
    let device = Device::new(Reference::open());
    let Both { a, x, v } = both(&device);
    let ax = a.0.gpu_dot(&x.0);
    let va = v.0.gpu_dot(&a.0);
    assert_eq!((ax.len(), va.len()), (7, 300));
    // The result lives where A lives.
    assert_eq!(a.0.gpu_dot(&x.1), ax);
    let y: DeviceVector<f32> = a.1.gpu_dot(&x.0);
    assert!(y.device() == &device && y.download().unwrap() == ax);
    assert_eq!(a.1.gpu_dot(&x.1).download().unwrap(), ax);
    assert_eq!(v.1.gpu_dot(&a.0), va);
    assert_eq!(v.0.gpu_dot(&a.1).download().unwrap(), va);
    assert_eq!(v.1.gpu_dot(&a.1).download().unwrap(), va);
    assert_eq!(v.1.view_of(&a.1), va);
    // A dot product has the bits of a row of one.
    let row = a.0.row(3);
    let dot = reference::dot(row, x.0.view(), false);
    let row = (row, a.1.rows(3..4));
    let resident_row = row.0.to_device(&device).unwrap();
    assert_eq!(row.0.gpu_dot(&x.0), dot);
    assert_eq!(row.0.gpu_dot(&x.1), dot);
    assert_eq!(resident_row.gpu_dot(&x.0), dot);
    assert_eq!(resident_row.gpu_dot(&x.1), dot);
    assert_eq!(row.1.gpu_dot(&x.1).download().unwrap(), array![dot]);
    let back = resident_row.step(.., -1).gpu_dot(&x.1.step(.., -1));
    assert_eq!(back, a.0.slice(s![3, ..;-1]).gpu_dot(&x.0.slice(s![..;-1])));
    // y on either side.
    let mut y = (ax.clone(), ax.to_device(&device).unwrap());
    let want = &ax * 2.0 + &ax * 0.5;
    a.0.gemv(2.0, &x.0, 0.5, &mut y.0);
    a.0.gemv(2.0, &x.0, 0.5, &mut y.1);
    assert!((&y.0 - &want).iter().all(|d| d.abs() < 1e-4), "{want}");
    assert_eq!(y.1.download().unwrap(), y.0);
    let mut again = ax.clone();
    a.1.gemv(2.0, &x.1, 0.5, &mut again);
    assert_eq!(again, y.0);
}

/// `v A` written to a host vector by each of two ways.
trait ViewOf {
    fn view_of(&self, a: &DeviceMatrix<f32>) -> Array1<f32>;
}

impl ViewOf for DeviceVector<f32> {
    fn view_of(&self, a: &DeviceMatrix<f32>) -> Array1<f32> {
        let mut y = Array1::zeros(a.dim().1);
        self.gpu_dot_into(a, &mut y);
        let mut other = Array1::zeros(a.dim().1);
        a.t().gpu_dot_into(self, &mut other);
        assert_eq!(y, other);
        y
    }
}

#[test]
fn operands_of_two_devices_are_refused() {
    let (here, there) = (Device::new(Reference::open()), Device::new(Reference::open()));
    let a = a().to_device(&here).unwrap();
    let x = x().to_device(&there).unwrap();
    assert!(matches!(a.try_gpu_dot(&x), Err(Error::WrongDevice { .. })));
    assert!(matches!(x.try_gpu_dot(&a.t()), Err(Error::WrongDevice { .. })));
    assert!(matches!(
        x.try_gpu_dot(&a.device().vector(&x).unwrap()),
        Err(Error::WrongDevice { .. })
    ));
    let mut y = there.zeros(2).unwrap();
    let e = a.try_gemv(1.0, &array![1.0, 1.0, 1.0], 0.0, &mut y);
    assert!(matches!(e, Err(Error::WrongDevice { .. })));
    // What is moved there by name is welcome.
    assert_eq!(a.to_device(&there).unwrap().gpu_dot(&x).download().unwrap(), array![-2.0, -2.0]);
}

#[test]
fn shapes_are_named_as_the_caller_wrote_them() {
    let (a, short) = (a(), array![1.0, 2.0]);
    let resident = a.to_device(&Device::new(Reference::open())).unwrap();
    let text = |e: Error| e.to_string();
    let start = "shapes do not fit: the matrix is 2 × 3, so ";
    let ax = format!("{start}x must have 3 entries, but it has 2");
    assert_eq!(text(a.try_gpu_dot(&short).unwrap_err()), ax);
    assert_eq!(text(resident.try_gpu_dot(&short).unwrap_err()), ax);
    // Also where there is nothing to compute.
    assert!(Array2::<f64>::zeros((0, 3)).try_gpu_dot(&short).is_err());
    assert!(a.try_gemv(0.0, &short, 1.0, &mut array![7.0, 7.0]).is_err());
    let xa = format!("{start}x must have 2 entries, but it has 3");
    assert_eq!(text(x().try_gpu_dot(&a).unwrap_err()), xa);
    assert_eq!(text(x().try_gpu_dot(&resident).unwrap_err()), xa);
    let mut y = array![7.0, 7.0];
    let e = short.try_gemv(1.0, &a, 0.0, &mut y).unwrap_err();
    assert_eq!(text(e), format!("{start}y must have 3 entries, but it has 2"));
    let e = a.try_gemv(1.0, &short, 0.0, &mut array![7.0, 7.0, 7.0]).unwrap_err();
    assert_eq!(text(e), format!("{ax}; and y must have 2 entries, but it has 3"));
    let mut dot = 7.0;
    let e = short.try_gemv(1.0, &x(), 0.0, &mut dot).unwrap_err();
    assert_eq!(text(e), "shapes do not fit: the vectors have 2 and 3 entries");
    assert_eq!((y, dot), (array![7.0, 7.0], 7.0));
}

#[test]
fn empty_operands() {
    Engine::global().set_default("reference").unwrap();
    let none = Array1::<f32>::zeros(0);
    assert_eq!(none.gpu_dot(&none).to_bits(), 0);
    let device = Device::new(Reference::open());
    let resident = none.to_device(&device).unwrap();
    assert_eq!(resident.gpu_dot(&resident).to_bits(), 0);
    assert_eq!(Array2::<f32>::zeros((3, 0)).gpu_dot(&none), array![0.0, 0.0, 0.0]);
    assert_eq!(none.gpu_dot(&Array2::<f32>::zeros((0, 2))), array![0.0, 0.0]);
    assert_eq!(Array2::<f32>::zeros((0, 3)).gpu_dot(&[1.0, 2.0, 3.0]).len(), 0);
}

#[test]
fn dot_products_are_not_conjugated_and_are_rounded_once() {
    Engine::global().set_default("reference").unwrap();
    let z = array![Complex::new(3.0f64, 4.0)];
    assert_eq!(z.gpu_dot(&z), Complex::new(-7.0, 24.0));
    let h = f16::from_f32;
    let x = array![h(2048.0), h(1.0), h(1.0)];
    assert_eq!(x.gpu_dot(&array![h(1.0), h(1.0), h(1.0)]), h(2050.0));
}

/// Generic over what a library is handed: one bound, and one more where `y` is written.
fn step<T, A, X>(a: &A, x: &X, y: &mut Array1<T>)
where
    T: Element,
    A: for<'y> GpuDot<X, Elem = T, Target<'y> = VectorMut<'y, T>>,
{
    a.gemv(T::narrow_one(), x, T::narrow_one(), y);
}

trait One: Element {
    fn narrow_one() -> Self::Acc;
}

impl<T: Element> One for T {
    fn narrow_one() -> T::Acc {
        <T::Acc as gemv_core::Accumulator>::ONE
    }
}

fn power<M>(a: &M, x: DeviceVector<f64>) -> DeviceVector<f64>
where
    M: GpuDot<DeviceVector<f64>, Output = DeviceVector<f64>>,
{
    (0..10).fold(x, |x, _| a.gpu_dot(&x))
}

fn dot<T: Element>(x: &Array1<T>, y: &ArrayRef1<T>) -> T {
    x.gpu_dot(y)
}

#[test]
fn generic_code() {
    Engine::global().set_default("reference").unwrap();
    let (a, x, mut y) = (a(), x(), array![1.0, 1.0]);
    step(&a, &x, &mut y);
    let device = Device::new(Reference::open());
    step(&a.to_device(&device).unwrap(), &x.to_device(&device).unwrap(), &mut y);
    assert_eq!(y, array![-3.0, -3.0]);
    let fibonacci = array![[1.0, 1.0], [1.0, 0.0]].to_device(&device).unwrap();
    let last = power(&fibonacci, array![1.0, 0.0].to_device(&device).unwrap());
    assert_eq!(last.download().unwrap(), array![89.0, 55.0]);
    assert_eq!(dot(&x, &x), 2.0);
}
