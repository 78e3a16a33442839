//! What the suites share: devices, numbers, comparison.
#![allow(dead_code)] // each suite uses a part

use gemv::ndarray::{Array1, Array2, ArrayView1, ArrayView2, Axis, ShapeBuilder, Slice};
use gemv::{Accumulator, Device, Dtype, Element, Engine, Times};
use gemv_core::Desc;
use gemv_core::order::SEGMENT;
use gemv_shard::Split;

const COMPILED: [(Dtype, Dtype); 3] =
    [(Dtype::F32, Dtype::F32), (Dtype::Bf16, Dtype::F32), (Dtype::C64, Dtype::C64)];

/// Splits over three devices.
pub const SPLITS: [Split; 4] = [
    Split::Rows,
    Split::Columns,
    Split::Grid { rows: 1, columns: 3 },
    Split::Grid { rows: 3, columns: 1 },
];

pub fn reference() -> Device {
    Engine::new(None).device("reference").unwrap()
}

/// What is said in one sentence where something is refused.
pub fn text<T>(of: gemv_shard::Result<T>) -> String {
    let text = of.err().expect("it is refused").to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

/// The reference, and every device that is found and computes the type.
///
/// `GEMV_REQUIRE=cpu,opencl` makes an absent one a failure, and `GEMV_TEST_DEVICES=cuda` leaves out all
/// whose id does not begin so. A CPU that compiles its kernels takes a second for each: it has a real type, a pair of
/// types and a complex one, since parts are made and added up in the same way for all.
pub fn devices<T: Element, V: Element>() -> Vec<Device> {
    let engine = Engine::new(None);
    let names: Vec<String> = engine
        .devices()
        .into_iter()
        .filter(|line| line.found.is_ok())
        .map(|line| line.id)
        .collect();
    let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
    for required in required.split(',').filter(|name| matches!(*name, "cpu" | "opencl" | "cuda")) {
        assert!(names.iter().any(|name| name.starts_with(required)), "{required} is required");
    }
    let desc = Desc { vectors: V::DTYPE, ..Desc::new(T::DTYPE, 3, 5, (5, 1), 0) };
    let only = std::env::var("GEMV_TEST_DEVICES").unwrap_or_default();
    let wanted = |id: &str| only.is_empty() || only.split(',').any(|name| id.starts_with(name));
    let names = names.iter().map(String::as_str).chain(["reference"]);
    names
        .filter(|id| wanted(id))
        .map(|name| engine.device(name).expect("it was found"))
        .filter(|device| device.backend().accepts(&desc).is_ok())
        .filter(|device| {
            let few = device.info().id.starts_with("opencl") && device.info().host;
            !few || COMPILED.contains(&(T::DTYPE, V::DTYPE))
        })
        .collect()
}

/// Random numbers, the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 += 1;
        gemv_testkit::hash(self.0, 0, 0)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn shuffle<T>(&mut self, of: &mut [T]) {
        for i in (1..of.len()).rev() {
            of.swap(i, self.below(i + 1));
        }
    }

    /// A part of a number, of either sign, with a full mantissa and magnitudes that are far apart: another
    /// order of additions gives other bits.
    pub fn part(&mut self) -> f64 {
        gemv_testkit::value(self.next(), 6)
    }

    pub fn element<T: Element>(&mut self) -> T {
        T::narrow(T::Acc::from_parts(self.part(), self.part()))
    }

    pub fn matrix<T: Element>(&mut self, m: usize, n: usize) -> Array2<T> {
        Array2::from_shape_simple_fn((m, n), || self.element())
    }

    pub fn vector<T: Element>(&mut self, n: usize) -> Array1<T> {
        Array1::from_shape_simple_fn(n, || self.element())
    }
}

/// The same vector, backwards in memory.
pub fn reversed<T: Element>(x: ArrayView1<'_, T>) -> Array1<T> {
    let mut back: Array1<T> = x.iter().rev().copied().collect();
    back.invert_axis(Axis(0));
    back
}

/// The matrix by rows, by columns, with gaps, or backwards.
pub fn held<T: Element>(random: &mut Random, a: ArrayView2<'_, T>) -> Array2<T> {
    let (m, n) = a.dim();
    match random.below(4) {
        0 => a.as_standard_layout().into_owned(),
        1 => a.t().as_standard_layout().into_owned().reversed_axes(),
        2 => {
            let columns = Slice::new(1, Some(1 + 2 * n as isize), 2);
            let mut held = Array2::from_elem((m, 2 * n + 3), element::<T>(f64::NAN, 0.0));
            held.slice_axis_inplace(Axis(1), columns);
            held.assign(&a);
            held
        }
        _ => {
            let mut back = a.to_owned();
            back.invert_axis(Axis(1));
            let mut back = back.as_standard_layout().into_owned();
            back.invert_axis(Axis(1));
            back
        }
    }
}

/// The same element in all places.
pub fn element<T: Element>(re: f64, im: f64) -> T {
    T::narrow(T::Acc::from_parts(re, im))
}

/// The columns of a process where blocks of one segment are dealt in turn, one block after the other.
pub fn blocks(process: usize, processes: usize, n: usize) -> Vec<usize> {
    let starts = (process * SEGMENT..n).step_by(processes * SEGMENT);
    starts.flat_map(|start| start..n.min(start + SEGMENT)).collect()
}

/// These columns of a matrix, which lie one after the other, and the entries that they are multiplied with. ndarray's
/// `select` copies a column at a time as well, and takes longer than the products.
pub fn select<T: Element, V: Element>(
    a: &Array2<T>,
    x: &Array1<V>,
    columns: &[usize],
) -> (Array2<T>, Array1<V>) {
    let values = columns.iter().flat_map(|&j| a.column(j).to_vec()).collect();
    let part = Array2::from_shape_vec((a.nrows(), columns.len()).f(), values).unwrap();
    (part, columns.iter().map(|&j| x[j]).collect())
}

/// What the whole product is.
pub fn whole<T: Element + Times<V>, V: Element>(
    alpha: V::Acc,
    a: &Array2<T>,
    x: &Array1<V>,
    beta: V::Acc,
    y: &Array1<V>,
) -> Array1<V> {
    let mut y = y.clone();
    gemv_testkit::gemv(alpha, a.view(), false, x.view(), beta, y.view_mut());
    y
}

/// Compares bits.
#[track_caller]
pub fn same<V: Element>(got: &Array1<V>, want: &Array1<V>, what: &str) {
    let bits = |of: &Array1<V>| of.iter().map(|v| v.bits()).collect::<Vec<_>>();
    assert!(bits(got) == bits(want), "{what}: {got:?} in place of {want:?}");
}
