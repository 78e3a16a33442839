//! The baselines: the published kernels and the vendor's library. They keep orders of their own,
//! so each result is held against an error bound instead of bits:
//!
//! ```text
//! |y - reference| <= (2 n + 40) u (|alpha| sum |a x| + |beta y|)  (+ 2 v |reference|)
//! ```
//!
//! with u the unit roundoff of the accumulator and v that of a narrower element type, which the
//! least exact of them (a chain of n additions, and complex products) keeps. Trials are named
//! `device/type/layout/kernel`.
#![deny(unsafe_code)]

#[macro_use]
mod common;

use std::collections::HashSet;
use std::sync::Arc;

use common::{Check, acc, nan, random, text, trial};
// Linked for its kernels.
use gemv::ndarray::{
    Array1, Array2, Array3, Array4, ArrayView1, ArrayView2, Axis, Ix3, ShapeBuilder, s,
};
use gemv::unstable::{Desc, Params};
use gemv::{Accumulator, Device, DeviceArray, Dtype, Element};
use gemv_baselines as _;

/// Nothing divides them; one is less than a block, one has fewer rows than a block has threads.
const SHAPES: [(usize, usize); 5] = [(1, 1), (37, 203), (101, 67), (300, 5), (7, 1031)];

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Row,
    Col,
    /// Every second column, rows backwards.
    Strided,
}

const FORMS: [(Form, &str); 3] =
    [(Form::Row, "row"), (Form::Col, "col"), (Form::Strided, "strided")];

/// A matrix in its form, with a gap between its lines.
struct Held<T> {
    array: Array2<T>,
    form: Form,
}

impl<T: Element> Held<T> {
    fn new(m: usize, n: usize, form: Form) -> Held<T> {
        let (rows, columns) = match form {
            Form::Row => (m, n + 3),
            Form::Col => (m + 3, n),
            Form::Strided => (m, 2 * n),
        };
        let shape = (rows, columns).set_f(form == Form::Col);
        let array = Array2::from_shape_fn(shape, |(i, j)| random(5, i, j));
        Held { array, form }
    }

    fn view(&self, m: usize, n: usize) -> ArrayView2<'_, T> {
        match self.form {
            Form::Row | Form::Col => self.array.slice(s![..m, ..n]),
            Form::Strided => self.array.slice(s![..;-1, ..;2]),
        }
    }
}

/// alpha and beta; beta = 0 must not read y.
const SCALINGS: [((f64, f64), (f64, f64)); 2] =
    [((1.0, 0.0), (0.0, 0.0)), ((-1.5, 0.5), (0.75, 0.25))];

fn size<T: Element>(value: T::Acc) -> f64 {
    let (re, im) = value.parts();
    re.hypot(im)
}

/// Whether one result lies within the bound.
fn near<T: Element>(got: T, right: T, terms: f64, n: usize) -> bool {
    let unit = if T::DTYPE.needs_f64() { f64::EPSILON } else { f32::EPSILON.into() } / 2.0;
    let narrow = match T::DTYPE {
        Dtype::F16 => 2f64.powi(-11),
        Dtype::Bf16 => 2f64.powi(-8),
        _ => 0.0,
    };
    let ((re, im), (r, j)) = (got.widen().parts(), right.widen().parts());
    let bound = (2 * n + 40) as f64 * unit * terms + 2.0 * narrow * r.hypot(j);
    // Not `!(off > bound)`: a NaN must fail.
    (re - r).hypot(im - j) <= bound
}

/// One product with these parameters against the reference.
fn product<T: Element>(
    device: &Device,
    a: ArrayView2<'_, T>,
    params: &Params,
    scaling: usize,
) -> Check {
    let (m, n) = a.dim();
    let (alpha, beta) = SCALINGS[scaling];
    let (alpha, beta) = (acc::<T>(alpha.0, alpha.1), acc::<T>(beta.0, beta.1));
    let x = Array1::from_shape_fn(n, |j| random::<T>(6, j, 1));
    let old = match beta == T::Acc::ZERO {
        true => Array1::from_elem(m, nan::<T>()),
        false => Array1::from_shape_fn(m, |i| random::<T>(7, i, 2)),
    };
    let (mut y, mut right) = (old.clone(), old.clone());
    let done = device.product(&a, &x).with(params).scaled(alpha, beta).to(&mut y);
    done.map_err(|e| format!("{m}x{n} {params}: {e}"))?;
    gemv_testkit::gemv(alpha, a, false, x.view(), beta, right.view_mut());
    column(a, x.view(), (alpha, beta), (old.view(), right.view()), y.view())
        .map_err(|e| format!("{m}x{n} {params}: {e}"))
}

/// Whether each program takes the device's compiler half a second, and more: a few of them then,
/// unless everything is asked for.
fn slow(device: &Device) -> bool {
    device.info().id.starts_with("opencl") && common::size() != common::Size::Full
}

/// Those of them that bring a value of an argument that none before them had. Where compiling is slow, the first and
/// the last for f32, and the last for f64, which has the same text.
fn some<T: Element>(all: Vec<Params>, slow: bool) -> Vec<Params> {
    if slow {
        let first = if all.len() > 1 && T::DTYPE == Dtype::F32 { all.first() } else { None };
        return first.into_iter().chain(all.last()).copied().collect();
    }
    let mut seen = HashSet::new();
    let mut fresh = |p: &Params| p.args().filter(|arg| seen.insert(arg.clone())).count() > 0;
    // The first anyway: the vendor's library has no arguments.
    let rest = all.iter().skip(1).copied().filter(|p| fresh(p));
    all.first().copied().into_iter().chain(rest).collect()
}

/// One kernel on every shape, with as many parameters as it takes to see each value of each.
fn kernel<T: Element>(device: &Device, form: Form, name: &str) -> Check {
    let (slow, mut tried) = (slow(device), 0);
    for (m, n) in SHAPES {
        let held = Held::<T>::new(m, n, form);
        let a = held.view(m, n);
        let desc = Desc::new(T::DTYPE, m, n, (a.strides()[0], a.strides()[1]), 64);
        let backend = device.backend();
        for params in some::<T>(named(device, &desc, name), slow) {
            backend.fits(&desc, &params).map_err(|e| e.to_string())?;
            for scaling in 0..SCALINGS.len() {
                product(device, a, &params, scaling)?;
                tried += 1;
            }
        }
    }
    match tried {
        0 => Err(format!("{name} is legal on none of the shapes")),
        _ => Ok(()),
    }
}

/// Batch, rows, columns and right-hand sides that no tile divides, or that are less than one. The last has more
/// matrices than an axis of CUDA's grids has blocks; one of OpenCL has no such limit, and takes fewer.
const MANY: [(usize, usize, usize, usize); 4] =
    [(1, 37, 203, 5), (1, 1, 64, 33), (3, 20, 33, 4), (70_000, 2, 3, 1)];
const FEWER: usize = 300;

/// Several right-hand sides and batches by one kernel, with Y by rows and by columns.
fn many<T: Element>(device: &Device, form: Form, name: &str) -> Check {
    let (slow, mut tried) = (slow(device), 0);
    for (batch, m, n, rhs) in MANY {
        let batch = if slow { batch.min(FEWER) } else { batch };
        let dim = (batch, m, n, rhs);
        let strides = match form {
            Form::Row => (2 * n as isize, 1),
            Form::Col => (1, 2 * m as isize),
            Form::Strided => (2 * n as isize, 2),
        };
        let desc = Desc { rhs, batch, ..Desc::new(T::DTYPE, m, n, strides, 0) };
        for params in some::<T>(named(device, &desc, name), slow) {
            for scaling in 0..SCALINGS.len() {
                products::<T>(device, form, &params, dim, scaling)
                    .map_err(|e| format!("{desc} {params}: {e}"))?;
                tried += 1;
            }
        }
    }
    match tried {
        0 => Err(format!("{name} is legal on none of the shapes")),
        _ => Ok(()),
    }
}

/// Matrices with gaps between their lines (between their elements, where they are strided), on the
/// host and resident: every second line of something larger, which is uploaded as a whole.
fn spaced<T: Element>(
    device: &Device,
    form: Form,
    (batch, m, n): (usize, usize, usize),
) -> gemv::Result<(Array3<T>, DeviceArray<T, Ix3>)> {
    let value = |k: usize| random::<T>(5, k / 64, k % 64);
    let mut at = 0;
    let next = || {
        at += 1;
        value(at)
    };
    let (whole, axis) = match form {
        Form::Row => (Array4::from_shape_simple_fn((batch, m, 2, n), next), Axis(2)),
        Form::Col => {
            let columns = Array4::from_shape_simple_fn((batch, n, 2, m), next);
            (columns.permuted_axes([0, 3, 2, 1]), Axis(2))
        }
        Form::Strided => (Array4::from_shape_simple_fn((batch, m, n, 2), next), Axis(3)),
    };
    let there = device.array(&whole)?.index_axis(axis, 1);
    Ok((whole.index_axis_move(axis, 1), there))
}

fn products<T: Element>(
    device: &Device,
    form: Form,
    params: &Params,
    (batch, m, n, rhs): (usize, usize, usize, usize),
    scaling: usize,
) -> Check {
    let (alpha, beta) = SCALINGS[scaling];
    let (alpha, beta) = (acc::<T>(alpha.0, alpha.1), acc::<T>(beta.0, beta.1));
    let (a, a_there) = spaced::<T>(device, form, (batch, m, n)).map_err(text)?;
    let x = Array3::from_shape_fn((batch, n, rhs), |(b, j, c)| random::<T>(6, b * n + j, c));
    let old = Array3::from_shape_fn((batch, m, rhs), |(b, i, c)| match beta == T::Acc::ZERO {
        true => nan(),
        false => random::<T>(7, b * m + i, c),
    });
    for by_columns in [false, true] {
        // The same entries in the other order.
        let there = |of: &Array3<T>| match by_columns {
            true => {
                let columns = of.view().permuted_axes([0, 2, 1]).as_standard_layout().into_owned();
                device.array(&columns.permuted_axes([0, 2, 1]))
            }
            false => device.array(of),
        };
        let (x_there, mut y) = (there(&x).map_err(text)?, there(&old).map_err(text)?);
        device
            .product(&a_there, &x_there)
            .with(params)
            .scaled(alpha, beta)
            .to(&mut y)
            .map_err(text)?;
        let got = y.download().map_err(text)?;
        // The first, some, and the last: the reference is slow.
        for b in (0..batch).step_by(batch.div_ceil(20)).chain([batch - 1]) {
            for c in 0..rhs {
                let (a, x) = (a.index_axis(Axis(0), b), x.slice(s![b, .., c]));
                let old = old.slice(s![b, .., c]);
                let mut right = old.to_owned();
                gemv_testkit::gemv(alpha, a, false, x, beta, right.view_mut());
                let got = got.slice(s![b, .., c]);
                column(a, x, (alpha, beta), (old, right.view()), got)
                    .map_err(|e| format!("entry {b}, column {c}: {e}"))?;
            }
        }
    }
    Ok(())
}

/// One column against the reference's.
fn column<T: Element>(
    a: ArrayView2<'_, T>,
    x: ArrayView1<'_, T>,
    (alpha, beta): (T::Acc, T::Acc),
    (old, right): (ArrayView1<'_, T>, ArrayView1<'_, T>),
    got: ArrayView1<'_, T>,
) -> Check {
    for (i, row) in a.rows().into_iter().enumerate() {
        let products = row.iter().zip(x);
        let sum: f64 = products.map(|(a, x)| size::<T>(a.widen()) * size::<T>(x.widen())).sum();
        let mut terms = size::<T>(alpha) * sum;
        if beta != T::Acc::ZERO {
            terms += size::<T>(beta) * size::<T>(old[i].widen());
        }
        if !near(got[i], right[i], terms, x.len()) {
            return Err(format!("row {i} is {:?}, not {:?}", got[i], right[i]));
        }
    }
    Ok(())
}

/// This kernel's parameters for a problem.
fn named(device: &Device, desc: &Desc, name: &str) -> Vec<Params> {
    let backend = device.backend();
    let all = match name.starts_with("vendor-") {
        true => backend.vendor(desc).into_iter().collect(),
        false => backend.classic(desc),
    };
    all.into_iter().filter(|p| p.kernel().as_str() == name).collect()
}

/// The names that this device has for such a problem, of one right-hand side or of several.
fn names(device: &Device, dtype: Dtype, form: Form, rhs: usize) -> Vec<String> {
    let (m, n) = SHAPES[1];
    let strides = match form {
        Form::Row => (n as isize + 3, 1),
        Form::Col => (1, m as isize + 3),
        Form::Strided => (-2 * n as isize, 2),
    };
    let desc = Desc { rhs, ..Desc::new(dtype, m, n, strides, 64) };
    let backend = device.backend();
    let mut names: Vec<String> = Vec::new();
    for params in backend.classic(&desc).iter().chain(&backend.vendor(&desc)) {
        let name = params.kernel().to_string();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The bound must be able to fail: a result that lacks one of its terms, or is no number.
fn refused() -> Check {
    let (n, terms) = (100, 100.0);
    for (got, fits) in [(1.0, true), (1.0 + 1e-6, true), (1.01, false), (f32::NAN, false)] {
        if near::<f32>(got, 1.0, terms, n) != fits {
            return Err(format!("{got} as 1: {}", !fits));
        }
    }
    let half = |v: f32| gemv::half::f16::from_f32(v);
    match near(half(1.001), half(1.0), 1.0, n) && !near(half(1.01), half(1.0), 1.0, n) {
        true => Ok(()),
        false => Err("f16".into()),
    }
}

/// All published kernels are there, on every device that runs launched kernels: nine for one
/// right-hand side, four for several.
fn complete(device: &Device) -> Check {
    for (rhs, expected) in [(1, 9), (5, 4)] {
        let names = names(device, Dtype::F32, Form::Col, rhs);
        let count = names.iter().filter(|n| n.starts_with("classic-")).count();
        if count != expected {
            return Err(format!("{count} published kernels for {rhs} columns: {names:?}"));
        }
    }
    Ok(())
}

fn main() {
    let targets = common::targets();
    let mut trials = vec![trial("the bound refuses".into(), refused)];
    let dtypes = |device: &Device| match slow(device) {
        true => vec![Dtype::F32, Dtype::F64],
        false => Dtype::ALL.to_vec(),
    };
    trials.extend(common::absences(&targets));
    // The CPU and the reference have no launched kernels.
    for target in targets.iter().filter(|t| t.compiles()) {
        let Ok(device) = &target.device else { continue };
        let device = Arc::new(device.clone());
        let id = &target.id;
        let all = device.clone();
        trials.push(trial(format!("{id}/complete"), move || complete(&all)));
        for dtype in dtypes(&device) {
            if common::supported(&device, dtype).is_err() {
                continue;
            }
            for (form, text) in FORMS {
                for name in names(&device, dtype, form, 1) {
                    let (device, title) = (device.clone(), format!("{id}/{dtype}/{text}/{name}"));
                    trials.push(trial(
                        title,
                        move || with_type!(dtype, T => kernel::<T>(&device, form, &name)),
                    ));
                }
                for name in names(&device, dtype, form, 5) {
                    let title = format!("{id}/{dtype}/{text}/{name}, several columns");
                    let device = device.clone();
                    trials.push(trial(
                        title,
                        move || with_type!(dtype, T => many::<T>(&device, form, &name)),
                    ));
                }
            }
        }
    }
    common::main(trials);
}
