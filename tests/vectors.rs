//! Vector arithmetic on every device: elementwise steps, dot products and norms that stay there,
//! places that are parts of arrays. Results must equal the order's, bit for bit.
#![deny(unsafe_code)]

#[macro_use]
mod common;

use common::{Check, Size, acc, bits, equal, random, same, text, trial};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array, Array1, Array2, ArrayView1, Axis, Dimension, ShapeBuilder, array, s};
use gemv::num_complex::Complex;
use gemv::unstable::reference;
use gemv::{
    Accumulator, Device, DeviceArray, DeviceMatrix, DeviceScalar, DeviceVector, Dtype, Element,
    Error, Factor, GpuDot, Result, ShapeMismatch,
};
use libtest_mimic::Trial;

/// All entries, row by row.
fn entries<T: Element, D: Dimension + Copy>(array: &DeviceArray<T, D>) -> Result<Vec<T>, String> {
    Ok(array.download().map_err(text)?.iter().copied().collect())
}

/// Quotients and roots, by the formulas of the order.
trait Rounded: Element {
    fn quotient(self, by: Self) -> Self;
    fn root(self) -> Self;
}

macro_rules! rounded {
    ($t:ty, |$a:ident, $b:ident| $quotient:expr, |$c:ident| $root:expr) => {
        impl Rounded for $t {
            fn quotient(self, by: Self) -> Self {
                let ($a, $b) = (self, by);
                $quotient
            }
            fn root(self) -> Self {
                let $c = self;
                $root
            }
        }
    };
}
// A quotient and a root of f32 that are rounded to f64 first are the same: 53 is over 2 * 24 + 1.
rounded!(f32, |a, b| (f64::from(a) / f64::from(b)) as f32, |a| f64::from(a).sqrt() as f32);
rounded!(f64, |a, b| a / b, |a| a.sqrt());
rounded!(f16, |a, b| f16::from_f32(a.to_f32() / b.to_f32()), |a| {
    f16::from_f32(a.to_f32().sqrt())
});
rounded!(bf16, |a, b| bf16::from_f32(a.to_f32() / b.to_f32()), |a| {
    bf16::from_f32(a.to_f32().sqrt())
});
macro_rules! pair {
    ($t:ty) => {
        rounded!(
            Complex<$t>,
            |a, b| {
                let d = b.im.mul_add(b.im, b.re * b.re);
                let re = a.im.mul_add(b.im, a.re * b.re) / d;
                Complex::new(re, a.im.mul_add(b.re, -(a.re * b.im)) / d)
            },
            |a| {
                let r = a.im.mul_add(a.im, a.re * a.re).sqrt();
                let t = ((r + a.re.abs()) / 2.0).sqrt();
                if t == 0.0 {
                    Complex::new(0.0, a.im)
                } else if a.re < 0.0 {
                    Complex::new(a.im.abs() / (t + t), t.copysign(a.im))
                } else {
                    Complex::new(t, a.im / (t + t))
                }
            }
        );
    };
}
pair!(f32);
pair!(f64);

/// Every step, on one place y with operands x and z, against the same on the host. `place` is called
/// with a fresh array each time, of which all is compared.
fn steps<T: Rounded>(device: &Device, n: usize, y_step: isize, x_step: isize) -> Check {
    let of = |seed, len| Array1::from_shape_fn(len, |i| random::<T>(seed, i, 0));
    // y is every |y_step|-th entry of a longer vector, backwards or forwards; x likewise.
    let long = |step: isize| (n * step.unsigned_abs()).max(1);
    let (whole, x, z) = (of(1, long(y_step)), of(2, long(x_step)), of(3, n));
    let (alpha, negative): (T, T) = (random(4, 0, 0), random(4, 1, 0));
    let by: T = random(4, 2, 0);
    let [s, t, d] = [alpha, negative, by].map(|v| device.scalar(v).map_err(text));
    let (s, t, d) = (s?, t?, d?);
    let resident = device.vector(&x).map_err(text)?;
    let cut = (n * x_step.unsigned_abs()).min(x.len());
    let x_there = resident.step(..cut, x_step);
    let x_here = x.slice(s![..cut;x_step]).to_owned();
    let z_there = device.vector(&z).map_err(text)?;
    let cut_y = (n * y_step.unsigned_abs()).min(whole.len());

    type Scalar<T> = <T as Element>::Acc;
    let run = |what: &str,
               there: &dyn Fn(
        &mut gemv::DeviceViewMut<'_, T, gemv::ndarray::Ix1>,
    ) -> Result<()>,
               here: &dyn Fn(T, T, T) -> T|
     -> Check {
        let mut y = device.vector(&whole).map_err(text)?;
        let mut want = whole.clone();
        for ((y, &x), &z) in want.slice_mut(s![..cut_y;y_step]).iter_mut().zip(&x_here).zip(&z) {
            *y = here(*y, x, z);
        }
        there(&mut y.step_mut(..cut_y, y_step).map_err(text)?).map_err(text)?;
        let what = format!("{what} of {n}, y by {y_step}, x by {x_step}");
        equal(&what, &y, &want)
    };
    let (a, neg): (Scalar<T>, Scalar<T>) = (alpha.widen(), negative.widen().neg());
    let quotient = alpha.widen().div(by.widen());
    let new = |acc| T::narrow(acc);
    run("fill", &|y| y.fill(Factor::number(a)), &|_, _, _| new(a))?;
    run("fill by a resident", &|y| y.fill(&s), &|_, _, _| new(a))?;
    run("assign", &|y| y.assign(&x_there), &|_, x, _| x)?;
    run("assign from the host", &|y| y.assign(&z), &|_, _, z| z)?;
    run("scal", &|y| y.scal(Factor::number(a)), &|y, _, _| new(a.mul(y.widen())))?;
    run("scal by a quotient", &|y| y.scal(&s / &d), &|y, _, _| new(quotient.mul(y.widen())))?;
    run("axpy", &|y| y.axpy(Factor::number(a), &x_there), &|y, x, _| {
        new(y.widen().fma(a, x.widen()))
    })?;
    run("axpy by a resident", &|y| y.axpy(&s, &x_there), &|y, x, _| {
        new(y.widen().fma(a, x.widen()))
    })?;
    run("axpy by a negative", &|y| y.axpy(-&t, &x_there), &|y, x, _| {
        new(y.widen().fma(neg, x.widen()))
    })?;
    run("axpy by a quotient", &|y| y.axpy(-(&s / &d), &x_there), &|y, x, _| {
        new(y.widen().fma(quotient.neg(), x.widen()))
    })?;
    run("xpay", &|y| y.xpay(&s, &x_there), &|y, x, _| new(x.widen().fma(a, y.widen())))?;
    run("product", &|y| y.assign_product(&x_there, &z_there), &|_, x, z| {
        new(x.widen().mul(z.widen()))
    })?;
    run("product of one", &|y| y.assign_product(&x_there, &x_there), &|_, x, _| {
        new(x.widen().mul(x.widen()))
    })?;
    run("add product", &|y| y.add_product(&x_there, &z_there), &|y, x, z| {
        new(y.widen().fma(x.widen(), z.widen()))
    })?;
    run("quotient", &|y| y.assign_quotient(&x_there, &z_there), &|_, x, z| x.quotient(z))?;
    run("sqrt", &|y| y.assign_sqrt(&x_there), &|_, x, _| x.root())
}

/// Arrays of two and three axes, transposed, broadcast and in parts.
fn axes<T: Rounded>(device: &Device) -> Check {
    let a = Array2::from_shape_fn((19, 33), |(i, j)| random::<T>(7, i, j));
    let b = Array2::from_shape_fn((33, 19), |(i, j)| random::<T>(8, i, j));
    let (a_there, b_there) = (device.matrix(&a).map_err(text)?, device.matrix(&b).map_err(text)?);
    let two = T::narrow(T::Acc::ONE.add(T::Acc::ONE)).widen();
    let axpy = |y: &T, x: &T| T::narrow(y.widen().fma(two, x.widen()));

    let mut y = a_there.clone();
    y.axpy(Factor::number(two), &b_there.t()).map_err(text)?;
    let mut want = a.clone();
    want.zip_mut_with(&b.t(), |y, x| *y = axpy(y, x));
    equal("a matrix and a transpose", &y, &want)?;
    equal("what shared its memory", &a_there, &a)?;

    let mut y = a_there.clone();
    y.columns_mut(3..30)
        .and_then(|mut y| y.axpy(Factor::number(two), &b_there.t().columns(1..28)))
        .map_err(text)?;
    let mut want = a.clone();
    want.slice_mut(s![.., 3..30]).zip_mut_with(&b.t().slice(s![.., 1..28]), |y, x| *y = axpy(y, x));
    equal("columns", &y, &want)?;

    let row = a.row(4);
    let rows = row.broadcast(a.dim()).unwrap();
    let mut y = device.matrix(&a).map_err(text)?;
    y.axpy(Factor::number(two), &device.matrix(&rows).map_err(text)?).map_err(text)?;
    let mut want = a.clone();
    want.zip_mut_with(&rows, |y, x| *y = axpy(y, x));
    equal("a row for all", &y, &want)?;

    // A repeated y has one place for many entries: it is given places first.
    let mut y = device.matrix(&rows).map_err(text)?;
    y.axpy(Factor::number(two), &a_there).map_err(text)?;
    let mut want = rows.to_owned();
    want.zip_mut_with(&a, |y, x| *y = axpy(y, x));
    equal("a repeated y", &y, &want)?;

    let shape = (3, 5, 70);
    let cube = Array::from_shape_fn(shape, |(i, j, k)| random::<T>(9, 100 * i + j, k));
    let mut y = device.array(&cube.view().permuted_axes([2, 0, 1])).map_err(text)?;
    let x = Array::from_shape_fn((70, 3, 5), |(i, j, k)| random::<T>(10, 100 * i + j, k));
    y.view_mut()
        .and_then(|y| {
            y.step_axis(Axis(0), 1..69, -3).axpy(Factor::number(two), x.slice(s![..23, .., ..]))
        })
        .map_err(text)?;
    let mut want = cube.view().permuted_axes([2, 0, 1]).to_owned();
    want.slice_mut(s![1..69;-3, .., ..])
        .zip_mut_with(&x.slice(s![..23, .., ..]), |y, x| *y = axpy(y, x));
    equal("three axes", &y, &want)?;

    for empty in [(0, 5), (5, 0)] {
        device.zeros::<T, _>(empty).and_then(|mut y| y.fill(Factor::number(two))).map_err(text)?;
    }
    Ok(())
}

/// Dot products and norms whose results stay on the device.
fn sums<T: Rounded>(device: &Device, n: usize) -> Check {
    let [x, y] = [1, 2].map(|seed| Array1::from_shape_fn(n, |i| random::<T>(seed, i, n)));
    let dot = |conj| T::narrow(reference::dot(x.view(), y.view(), conj));
    let (x_there, y_there) = (device.vector(&x).map_err(text)?, device.vector(&y).map_err(text)?);
    let mut to = device.scalar(random::<T>(3, 0, 0)).map_err(text)?;
    let kept = to.clone();
    let is =
        |what: &str, got: T, want: T| same(&[got], &[want]).map_err(|e| format!("{what}: {e}"));
    x_there.dot_into(&y_there, &mut to).map_err(text)?;
    is("dot", to.value().map_err(text)?, dot(false))?;
    is("a clone", kept.value().map_err(text)?, random(3, 0, 0))?;
    x_there.dot_into(&y, &mut to).map_err(text)?;
    is("dot with the host", to.value().map_err(text)?, dot(false))?;
    x_there.dotc_into(&y_there, &mut to).map_err(text)?;
    is("dotc", to.value().map_err(text)?, dot(true))?;
    let square = T::narrow(reference::dot(x.view(), x.view(), true)).widen().parts().0;
    let norm = T::narrow(T::Acc::from_parts(square, 0.0)).root();
    is("nrm2", x_there.nrm2().map_err(text)?, norm)?;
    // Results as entries of an array, and on the host.
    let mut both = device.vector(&array![random::<T>(4, 0, 0), random(4, 1, 0)]).map_err(text)?;
    let entry = |both: &mut DeviceVector<T>, k, norm: bool| {
        let to = both.view_mut()?.index_axis(Axis(0), k);
        if norm { x_there.nrm2_into(to) } else { x_there.dot_into(&y_there, to) }
    };
    entry(&mut both, 1, false).map_err(text)?;
    equal("dot as an entry", &both, &array![random(4, 0, 0), dot(false)])?;
    entry(&mut both, 0, true).map_err(text)?;
    equal("nrm2 as an entry", &both, &array![norm, dot(false)])?;
    let mut host = gemv::ndarray::arr0(random::<T>(5, 0, 0));
    x_there.dotc_into(&y_there, &mut host).map_err(text)?;
    is("dotc on the host", host[()], dot(true))?;
    let back = device.vector(&x.slice(s![..;-1])).map_err(text)?.step(.., -1);
    is("nrm2 of a view", back.nrm2().map_err(text)?, norm)
}

/// Products are written to parts of arrays where they lie.
fn places<T: Element>(device: &Device) -> Check {
    let a = Array2::from_shape_fn((40, 300), |(i, j)| random::<T>(1, i, j));
    let x = Array2::from_shape_fn((300, 3), |(i, j)| random::<T>(2, i, j));
    let wide = Array2::from_shape_fn((40, 7), |(i, j)| random::<T>(3, i, j));
    let there = device.matrix(&a).map_err(text)?;
    let mut want = wide.clone();
    let product = |x: ArrayView1<'_, T>, y: T, i: usize| {
        let sum = reference::dot(a.row(i), x, false);
        gemv::unstable::scale(acc::<T>(2.0, 0.0), sum, T::Acc::ONE, Some(y))
    };
    for (i, y) in want.column_mut(4).indexed_iter_mut() {
        *y = product(x.column(1), *y, i);
    }
    let (two, one) = (acc::<T>(2.0, 0.0), T::Acc::ONE);
    let mut y = device.matrix(&wide).map_err(text)?;
    there.try_gemv(two, &x.column(1), one, y.column_mut(4).map_err(text)?).map_err(text)?;
    equal("a column", &y, &want)?;

    let mut want = wide.clone();
    for ((i, j), y) in want.slice_mut(s![.., 2..5]).indexed_iter_mut() {
        *y = product(x.column(j), *y, i);
    }
    let mut y = device.matrix(&wide.t()).map_err(text)?.t();
    there.try_gemv(two, &x, one, y.columns_mut(2..5).map_err(text)?).map_err(text)?;
    equal("columns", &y, &want)?;

    // An array of its own memory is written where it lies, gaps and all.
    let mut y = device.matrix(&wide).map_err(text)?.columns(4..5).column(0);
    let mut want = wide.column(4).to_owned();
    for (i, y) in want.indexed_iter_mut() {
        *y = product(x.column(2), *y, i);
    }
    there.try_gemv(two, &x.column(2), one, &mut y).map_err(text)?;
    if y.stride() != 7 {
        return Err(format!("it was moved: a stride of {}", y.stride()));
    }
    equal("a strided vector", &y, &want)
}

/// The state of the plans below: x, y, columns, and two numbers.
type State<T> = (DeviceVector<T>, DeviceVector<T>, DeviceMatrix<T>, [DeviceScalar<T>; 2]);

fn same_states<T: Element>(got: &State<T>, want: &State<T>) -> Check {
    equal("x", &got.0, &want.0.download().map_err(text)?)?;
    equal("y", &got.1, &want.1.download().map_err(text)?)?;
    equal("the columns", &got.2, &want.2.download().map_err(text)?)
}

/// A plan gives the bits of its steps one by one, whatever happens to its arrays between two runs.
fn plans<T: Element>(device: &Device) -> Check {
    let (n, half) = (300, acc::<T>(0.5, 0.0));
    let a = Array2::from_shape_fn((n, n), |(i, j)| random::<T>(1, i, j));
    let of = |seed| Array1::from_shape_fn(n, |i| random::<T>(seed, i, 0));
    let a = device.matrix(&a).map_err(text)?;
    let state = || -> Result<State<T>> {
        let numbers = [device.scalar(T::default())?, device.scalar(T::default())?];
        Ok((device.vector(&of(2))?, device.zeros(n)?, device.zeros((n, 2))?, numbers))
    };
    let work = |(x, y, kept, [s, t]): &mut State<T>| -> Result<()> {
        a.try_gemv(half, &*x, T::Acc::ZERO, &mut *y)?;
        x.dot_into(&*y, &mut *s)?;
        y.nrm2_into(&mut *t)?;
        kept.column_mut(1)?.assign(&*y)?;
        x.xpay(-(&*s / &*t), &*y)?;
        x.scal(Factor::number(acc::<T>(0.01, 0.0)))
    };
    let mut want = state().map_err(text)?;
    let mut plan = device.plan(state().map_err(text)?, work);
    for _ in 0..5 {
        work(&mut want).and_then(|()| plan.run()).map_err(text)?;
    }
    same_states(plan.state(), &want)?;
    // A clone is not written to, and the plan goes on.
    let (kept, is) = (plan.state().0.clone(), plan.state().0.download().map_err(text)?);
    for _ in 0..4 {
        work(&mut want).and_then(|()| plan.run()).map_err(text)?;
    }
    equal("a clone", &kept, &is)?;
    same_states(plan.state(), &want)?;
    // Changed in place.
    plan.state_mut().0.assign(&of(3)).map_err(text)?;
    want.0.assign(&of(3)).map_err(text)?;
    work(&mut want).and_then(|()| plan.run()).map_err(text)?;
    same_states(plan.state(), &want)?;
    // Replaced by another array; the old one is freed.
    for seed in [4, 5, 6] {
        plan.state_mut().0 = device.vector(&of(seed)).map_err(text)?;
        want.0.assign(&of(seed)).map_err(text)?;
        for _ in 0..3 {
            work(&mut want).and_then(|()| plan.run()).map_err(text)?;
        }
        same_states(plan.state(), &want)?;
    }
    // Scratch memory that grows meanwhile is no concern of a record.
    let wide = Array2::from_shape_fn((3, 200_000), |(i, j)| random::<T>(7, i, j));
    let long = wide.row(0).to_owned();
    device.matrix(&wide).and_then(|wide| wide.try_gpu_dot(&long)).map_err(text)?;
    work(&mut want).and_then(|()| plan.run()).map_err(text)?;
    same_states(plan.state(), &want)
}

/// Steps and dot products that a record may put into one launch: more of them than a launch takes, vectors
/// that are too long for one, operands that overlap, and numbers that one step writes and the next one
/// uses.
fn sequences<T: Element>(device: &Device, n: usize) -> Check {
    let number = |re| Factor::<T>::number(acc::<T>(re, 0.0));
    let of = |seed| Array1::from_shape_fn(n, |i| random::<T>(seed, i, 0));
    // Without zeros: it is divided by.
    let one = T::narrow(acc::<T>(1.0, 0.0));
    let fixed = of(1).mapv(|number| if number == T::default() { one } else { number });
    let fixed = device.vector(&fixed).map_err(text)?;
    let state = || -> Result<_> {
        let kept = device.matrix(&Array2::from_shape_fn((n, 3), |(i, j)| random(2, i, j)))?;
        Ok((device.vector(&of(3))?, device.vector(&of(4))?, kept, device.zeros::<T, _>(20)?))
    };
    type Arrays<T> = (DeviceVector<T>, DeviceVector<T>, DeviceMatrix<T>, DeviceVector<T>);
    let work = |(x, y, kept, numbers): &mut Arrays<T>| -> Result<()> {
        let at = |numbers: &DeviceVector<T>, k| numbers.index_axis(Axis(0), k);
        y.scal(number(0.25))?;
        for k in 0..numbers.len() {
            let to = numbers.view_mut()?.index_axis(Axis(0), k);
            match k % 3 {
                0 => x.dot_into(&*y, to)?,
                1 => y.dotc_into(&fixed, to)?,
                _ => y.nrm2_into(to)?,
            }
            x.xpay(number(0.5), &*y)?;
        }
        x.axpy(&at(numbers, 3) / &at(numbers, 2), &fixed)?;
        x.xpay(-(&at(numbers, 4) / &at(numbers, 5)), &*y)?;
        // All numbers, after some of them; and a number that is used at once.
        numbers.scal(number(0.125))?;
        x.axpy(-&at(numbers, 19), &*y)?;
        x.dot_into(&fixed, numbers.view_mut()?.index_axis(Axis(0), 0))?;
        y.axpy(&at(numbers, 0) / &at(numbers, 8), &*x)?;
        // The same places in another order, and every other one of them.
        y.step_mut(.., -1)?.add_product(&*x, &fixed)?;
        y.dot_into(&fixed.step(.., -1), numbers.view_mut()?.index_axis(Axis(0), 1))?;
        y.step_mut(.., 2)?.fill(&at(numbers, 1))?;
        x.step_mut(.., 2)?.axpy(number(0.5), &y.step(.., 2))?;
        x.assign_product(&*y, &fixed)?;
        // Columns of a matrix: strides, beside one another.
        kept.column_mut(0)?.assign(&*x)?;
        kept.column_mut(1)?.assign_quotient(&*x, &fixed)?;
        kept.column_mut(1)?.xpay(number(-0.5), &*y)?;
        kept.column(1).dot_into(&*y, numbers.view_mut()?.index_axis(Axis(0), 2))?;
        y.nrm2_into(numbers.view_mut()?.index_axis(Axis(0), 3))?;
        kept.column_mut(2)?.assign_sqrt(&fixed)?;
        kept.column_mut(2)?.assign(&*y)?;
        // Bounded, whatever came before.
        y.assign(&fixed)?;
        x.assign_product(&fixed, &fixed)?;
        x.axpy(number(0.5), &*y)
    };
    let mut want = state().map_err(text)?;
    let mut plan = device.plan(state().map_err(text)?, work);
    for run in 0..4 {
        work(&mut want).and_then(|()| plan.run()).map_err(text)?;
        let got = plan.state();
        let of = |e| format!("run {run}: {e}");
        equal("x", &got.0, &want.0.download().map_err(text)?).map_err(of)?;
        equal("y", &got.1, &want.1.download().map_err(text)?).map_err(of)?;
        equal("the columns", &got.2, &want.2.download().map_err(text)?).map_err(of)?;
        equal("the numbers", &got.3, &want.3.download().map_err(text)?).map_err(of)?;
    }
    let numbers = entries(&want.3)?;
    // Those of 16 bits overflow.
    match T::DTYPE.bytes() > 2 && numbers.iter().any(|number| number.widen().parts().0.is_nan()) {
        true => Err(format!("they are no numbers: {numbers:?}")),
        false => Ok(()),
    }
}

/// What cannot be recorded is an error where there are records, and never another result.
fn unplannable(device: &Device) -> Check {
    let records = device.info().id.starts_with("cuda");
    let two =
        device.vector(&array![1.0f32, 2.0]).and_then(|x| Ok((x, device.vector(&[5.0, 6.0])?)));
    let mut swapping = device.plan(two.map_err(text)?, |(x, y)| {
        std::mem::swap(x, y);
        x.scal(2.0)
    });
    swapping.run().map_err(text)?;
    match swapping.run() {
        Ok(()) if !records => {}
        Err(e) if records && e.to_string().contains("another each time") => {}
        other => return Err(format!("arrays that are swapped: {other:?}")),
    }
    let x = device.vector(&array![1.0f32, 2.0]).map_err(text)?;
    let mut from_host = device.plan(x, |x| x.axpy(1.0, &[1.0, 1.0]));
    refused(from_host.run(), "on the host")?;
    // The device is of use as before, and x as it was.
    equal("x", from_host.state(), &array![1.0, 2.0])?;
    let x = from_host.into_state();
    let mut downloading = device.plan(x, |x| x.download().map(drop));
    refused(downloading.run(), "downloads")?;
    let mut allocating = device.plan(downloading.into_state(), |x| {
        let twice = x.device().zeros(2)?;
        x.axpy(2.0, &twice)
    });
    allocating.run().map_err(text)?;
    refused(allocating.run(), "makes an array in each run")?;
    // A clone before the second run, which records.
    let mut doubled = device.plan(allocating.into_state(), |x| x.scal(2.0));
    doubled.run().map_err(text)?;
    let kept = doubled.state().clone();
    for _ in 0..3 {
        doubled.run().map_err(text)?;
    }
    equal("the clone", &kept, &array![2.0, 4.0])?;
    equal("x", doubled.state(), &array![16.0, 32.0])
}

/// What a plan's function may not do is an error on every device.
fn refused(ran: gemv::Result<()>, part: &str) -> Check {
    match ran {
        Err(e) if e.to_string().contains(part) && e.to_string().ends_with("cannot be recorded") => {
            Ok(())
        }
        other => Err(format!("{part}: {other:?}")),
    }
}

/// Bits of every kind: subnormals, zeros, infinities, NaN, powers of two and their neighbours.
fn roundings<T: Rounded>(device: &Device, elements: &[T]) -> Check {
    let n = elements.len();
    let x: Vec<T> = (0..n).map(|i| elements[i]).collect();
    let z: Vec<T> = (0..n).map(|i| elements[(i * 7919 + 13) % n]).collect();
    let mut y = device.zeros::<T, _>(n).map_err(text)?;
    y.assign_quotient(&x, &z).map_err(text)?;
    let quotient = |(&x, &z): (&T, &T)| x.quotient(z);
    let want: Vec<T> = x.iter().zip(&z).map(quotient).collect();
    same(&entries(&y)?, &want).map_err(|e| format!("quotients: {e}"))?;
    y.assign_sqrt(&x).map_err(text)?;
    let want: Vec<T> = x.iter().map(|x| x.root()).collect();
    same(&entries(&y)?, &want).map_err(|e| format!("roots: {e}"))
}

/// Interesting values of f32, all against all, then random bits.
fn singles(count: usize) -> Vec<f32> {
    let mut edges: Vec<u32> = vec![0, 1, 2, 3, 0x7f_ffff, 0x80_0000, 0x80_0001, 0x7f80_0000];
    edges.extend([0x7fc0_0000, 0x7f7f_ffff, 0x7f7f_fffe, 0x3f80_0000, 0x3f80_0001, 0x3f7f_ffff]);
    edges.extend((1..254).step_by(23).map(|e| e << 23));
    edges.extend(edges.clone().iter().map(|bits| bits | 1 << 31));
    let random = bits(0).take(count).map(|bits| bits as u32);
    // Mantissas of few bits are those whose quotients are halfway.
    let short = bits(0).skip(count).take(count / 4).map(|bits| bits as u32 & 0xffff_f000);
    edges.iter().copied().chain(random).chain(short).map(f32::from_bits).collect()
}

fn refusals(device: &Device) -> Check {
    let mut y = device.vector(&array![1.0f32, 2.0]).map_err(text)?;
    let refused = |done: Result<()>, want: &str| match done {
        Ok(()) => Err(format!("passed, but: {want}")),
        Err(e) if e.to_string().contains(want) => Ok(()),
        Err(e) => Err(format!("{e}, not {want}")),
    };
    let why = "shapes do not fit: y has 2 entries and an operand 3";
    refused(y.axpy(1.0, &[1.0, 2.0, 3.0]), why)?;
    refused(y.assign_product(&[1.0, 2.0], &[1.0; 4]), "y has 2 entries and an operand 4")?;
    let other = gemv::Engine::new(None).device("reference").map_err(text)?;
    if !other.is(device) {
        let there = other.vector(&array![1.0f32, 2.0]).map_err(text)?;
        refused(y.axpy(1.0, &there), "an operand lives on reference")?;
        let scalar = other.scalar(1.0f32).map_err(text)?;
        refused(y.scal(&scalar), "an operand lives on reference")?;
        let mut to = other.scalar(1.0f32).map_err(text)?;
        refused(y.dot_into(&[1.0, 1.0], &mut to), "an operand lives on reference")?;
    }
    let mut four = device.array(&Array::<f32, _>::zeros((1, 2, 1, 2))).map_err(text)?;
    refused(four.fill(1.0), "an array of 4 axes, where 3 are the most")?;
    let shared = four.clone();
    refused(four.view_mut().map(|_| ()), "an array of 4 axes")?;
    drop(shared);
    let mut to = device.scalar(0.0f32).map_err(text)?;
    refused(y.dot_into(&[1.0], &mut to), "the vectors have 2 and 1 entries")?;
    equal("y", &y, &array![1.0, 2.0])
}

/// Every step with an operand of as many entries in another shape, on the device and on the host, for arrays and for
/// views: it names both shapes, and y is as it was.
fn other_shapes(device: &Device) -> Check {
    let before = array![[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]];
    let mut y = device.matrix(&before).map_err(text)?;
    let here = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let (fits, there) = (device.matrix(&before), device.matrix(&here));
    let (fits, there) = (fits.map_err(text)?, there.map_err(text)?);
    let flat = there.clone().t();
    let wrong = |name: &str, done: Result<()>| match done {
        Err(Error::Shape(ShapeMismatch::Step { axes: 2, x: [2, 3, 1], y: [3, 2, 1] })) => Ok(()),
        other => Err(format!("{name}: {other:?}")),
    };
    macro_rules! each {
        ($of:expr, $what:literal) => {{
            wrong(concat!($what, " assign"), $of.assign(&there))?;
            wrong(concat!($what, " axpy"), $of.axpy(2.0, &there))?;
            wrong(concat!($what, " xpay"), $of.xpay(2.0, &there))?;
            wrong(concat!($what, " sqrt"), $of.assign_sqrt(&there))?;
            for (name, x, z) in [("x", &there, &fits), ("z", &fits, &there)] {
                wrong(&format!("{} product, {name}", $what), $of.assign_product(x, z))?;
                wrong(&format!("{} add, {name}", $what), $of.add_product(x, z))?;
                wrong(&format!("{} quotient, {name}", $what), $of.assign_quotient(x, z))?;
            }
            wrong(concat!($what, " assign, host"), $of.assign(&here))?;
            wrong(concat!($what, " axpy, host"), $of.axpy(2.0, here.view()))?;
            wrong(concat!($what, " add, host"), $of.add_product(&here, &fits))?;
        }};
    }
    each!(y, "an array:");
    let shared = y.clone();
    each!(y, "one that shares its memory:");
    drop(shared);
    {
        let mut view = y.view_mut().map_err(text)?;
        each!(view, "a view:");
    }
    equal("y", &y, &before)?;
    let why = y.axpy(1.0, &there).map_err(text).expect_err("another shape");
    if why != "shapes do not fit: y has 3 × 2 entries and an operand 2 × 3" {
        return Err(why);
    }
    // Of three axes, and of a part.
    let mut cube = device.zeros::<f32, _>((2, 3, 4)).map_err(text)?;
    let other = device.zeros::<f32, _>((4, 3, 2)).map_err(text)?;
    match cube.assign(&other) {
        Err(Error::Shape(ShapeMismatch::Step { axes: 3, x: [4, 3, 2], y: [2, 3, 4] })) => {}
        other => return Err(format!("three axes: {other:?}")),
    }
    let mut part = y.rows_mut(..2).map_err(text)?;
    match part.assign(&fits) {
        Err(Error::Shape(ShapeMismatch::Step { axes: 2, x: [3, 2, 1], y: [2, 2, 1] })) => {}
        other => return Err(format!("a part: {other:?}")),
    }
    // What has the shape is taken: the other one's transpose.
    y.assign(&flat).map_err(text)?;
    equal("y", &y, &here.t().to_owned())
}

/// Elements of the operands of [`beyond_two_billion`], which are more than a number of 31 bits counts.
const MANY: usize = (1 << 31) + (1 << 16);

/// A matrix of more than 2^31 elements by rows and by columns, whose last row lies beyond them: it has the bits of that row
/// alone. Steps and copies reach there too.
fn beyond_two_billion(device: &Device) -> Check {
    let (n, m) = (1 << 16, MANY >> 16);
    let x = Array1::from_shape_fn(n, |j| random::<f16>(1, j, 0));
    let rows = [0, m / 2, m - 1];
    let row = |i: usize| Array1::from_shape_fn(n, |j| random::<f16>(2, i, j));
    let mut all = device.zeros::<f16, _>(MANY).map_err(text)?;
    let there = device.vector(&x).map_err(text)?;
    for by_columns in [false, true] {
        // Where the entries of a row lie, all of them, or their beginning.
        let place = |i: usize| match by_columns {
            false => (i * n..(i + 1) * n, 1),
            true => (i..i + (n - 1) * m + 1, m as isize),
        };
        for i in rows {
            let (range, step) = place(i);
            let part = all.step_mut(range.clone(), step);
            part.and_then(|mut part| part.assign(&row(i))).map_err(text)?;
            if i == m - 1 {
                let back = all.step(range, step);
                // Of a row by columns all that lies between would be copied.
                let back = if by_columns { back.step(n - 3.., 1) } else { back };
                let want = if by_columns { row(i).slice(s![n - 3..]).to_owned() } else { row(i) };
                equal("what was written", &back, &want)?;
            }
        }
        let a = match by_columns {
            false => all.as_matrix((m, n)),
            true => all.as_matrix((m, n).f()),
        };
        let products: Vec<_> = match device.info().host {
            // A processor takes seconds for each.
            true => vec![None],
            false => {
                let desc = a.desc();
                let all = device.backend().candidates(&desc).into_iter().map(Some);
                std::iter::once(None).chain(all).collect()
            }
        };
        for params in products {
            let mut y = device.vector(&Array1::from_elem(m, f16::NAN)).map_err(text)?;
            match &params {
                None => device.gemv(1.0, &a, &there, 0.0, &mut y),
                Some(params) => device.product(&a, &there).with(params).to(&mut y),
            }
            .map_err(text)?;
            let mut want = Array1::from_elem(m, f16::ZERO);
            for i in rows {
                want[i] = f16::from_f32(reference::dot(row(i).view(), x.view(), false));
            }
            let layout = if by_columns { "by columns" } else { "by rows" };
            let which = params.map_or("the choice".into(), |params| params.to_string());
            equal(&format!("{layout}, {which}"), &y, &want)?;
        }
        // Two right-hand sides, as the two halves of x and x backwards.
        let both = Array2::from_shape_fn((n, 2), |(j, c)| if c == 0 { x[j] } else { x[n - 1 - j] });
        let mut y = device.zeros::<f16, _>((m, 2)).map_err(text)?;
        let sides = device.matrix(&both).map_err(text)?;
        device.product(&a, &sides).to(&mut y).map_err(text)?;
        let mut want = Array2::from_elem((m, 2), f16::ZERO);
        for (i, c) in rows.into_iter().flat_map(|i| [(i, 0), (i, 1)]) {
            let sum = reference::dot(row(i).view(), both.column(c), false);
            want[[i, c]] = f16::from_f32(sum);
        }
        equal("two right-hand sides", &y, &want)?;
        drop(a);
        for i in rows {
            let (range, step) = place(i);
            let part = all.step_mut(range, step);
            part.and_then(|mut part| part.fill(Factor::number(0.0))).map_err(text)?;
        }
    }
    Ok(())
}

/// The trial of [`beyond_two_billion`]: ignored where it is not asked for, or the device has no memory for it, which its
/// name says.
fn large(id: &str, device: &Device) -> Trial {
    let asked = std::env::var("GEMV_TEST_LARGE").is_ok_and(|v| !v.is_empty() && v != "0");
    let why = match asked {
        false => Some("GEMV_TEST_LARGE=1 asks for it".to_owned()),
        true => device.zeros::<f16, _>(MANY).err().map(|e| e.to_string()),
    };
    let device = device.clone();
    let name = format!("{id}/beyond two billion elements");
    match why {
        None => trial(name, move || beyond_two_billion(&device)),
        Some(why) => {
            let text = why.clone();
            Trial::test(format!("{name}: {why}"), move || Err(text.into())).with_ignored_flag(true)
        }
    }
}

fn main() {
    let targets = common::targets();
    let mut trials: Vec<Trial> = common::absences(&targets);
    for target in &targets {
        let Ok(device) = &target.device else { continue };
        macro_rules! add {
            ($body:expr, $($name:tt)*) => {{
                let (device, body) = (device.clone(), $body);
                let name = format!("{}/{}", target.id, format_args!($($name)*));
                trials.push(trial(name, move || body(&device)));
            }};
        }
        add!(refusals, "refusals");
        add!(other_shapes, "f32/other shapes");
        add!(unplannable, "what cannot be recorded");
        let count = if common::size() == Size::Tiny { 100 } else { 60_000 };
        macro_rules! roundings {
            ($numbers:expr, $name:literal) => {
                add!(move |d: &Device| roundings(d, &$numbers.collect::<Vec<_>>()), $name)
            };
        }
        let narrow = move || bits(0).take(count).map(|bits| bits as u16);
        roundings!(singles(count).into_iter(), "roundings/f32");
        roundings!(narrow().map(f16::from_bits), "roundings/f16");
        roundings!(narrow().map(bf16::from_bits), "roundings/bf16");
        let has = |dtype| common::supported(device, dtype).is_ok();
        if has(Dtype::F64) {
            roundings!(bits(0).take(count).map(f64::from_bits), "roundings/f64");
        }
        let tiny = common::size() == Size::Tiny;
        let lens = |all: &'static [usize]| if tiny { &[1, 70] } else { all };
        for dtype in Dtype::ALL.into_iter().filter(|dtype| has(*dtype)) {
            macro_rules! of_type {
                (|$d:ident, $T:ident| $body:expr, $($name:tt)*) => {
                    add!(move |$d: &Device| with_type!(dtype, $T => $body), $($name)*)
                };
            }
            of_type!(|d, T| plans::<T>(d), "{dtype}/plans");
            of_type!(|d, T| axes::<T>(d), "{dtype}/axes");
            of_type!(|d, T| places::<T>(d), "{dtype}/places");
            for &n in lens(&[1, 300, 2_000, 4_096, 9_000]) {
                of_type!(|d, T| sequences::<T>(d, n), "{dtype}/sequences of {n}");
            }
            for &n in lens(&[0, 1, 63, 257, 5_000, 70_001]) {
                of_type!(|d, T| sums::<T>(d, n), "{dtype}/sums of {n}");
                for (y, x) in [(1, 1), (1, -2), (-1, 1), (3, 2)] {
                    let name = format!("{dtype}/steps of {n}, strides {y} and {x}");
                    of_type!(|d, T| steps::<T>(d, n, y, x), "{name}");
                }
            }
        }
    }
    // The oracle takes minutes.
    for target in targets.iter().filter(|target| target.id != "reference") {
        trials.extend(target.device.as_ref().ok().map(|device| large(&target.id, device)));
    }
    common::main(trials);
}
