//! Functions, comparisons, factors of each column: how exact they are, and that every device has the same bits.
#![deny(unsafe_code)]

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod exact;

use common::{Check, Size, bits, equal, random, same, text, trial};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array, Array1, Array2, Axis, Ix2, ShapeBuilder, array, s};
use gemv::num_complex::Complex;
use gemv::{
    Accumulator, Comparison, Device, DeviceVector, Dtype, Element, Error, Factor, Function, Result,
    Times,
};
use libtest_mimic::Trial;

/// The most units in the last place by which a function may be wrong: those of its documentation.
fn bound(of: Function) -> f64 {
    match of {
        Function::Abs | Function::Relu => 0.0,
        // The exact quotient is here one of two numbers.
        Function::Recip => 0.5,
        Function::Exp | Function::Ln => 1.0,
        Function::Tanh | Function::Sigmoid => 3.0,
        Function::Silu | Function::GeluTanh => 4.0,
        Function::Gelu => 8.0,
    }
}

/// Times two to the power of k.
fn times(x: f64, k: i32) -> f64 {
    let power = |k: i32| f64::from_bits(((1023 + k) as u64) << 52);
    (0..4).fold(x, |x, part| x * power((k + part) >> 2))
}

/// By how many units in the last place a result is wrong, for a type of so many bits behind the point, whose smallest
/// number is two to the power of `least`, and whose numbers are below that of `most`.
fn units(of: Function, x: f64, got: f64, (mantissa, least, most): (i32, i32, i32)) -> f64 {
    let (want, k) = exact::function(of, x);
    if want.hi == 0.0 {
        return if got == 0.0 { 0.0 } else { f64::INFINITY };
    }
    let exponent = ((want.hi.to_bits() >> 52 & 0x7ff) as i32 - 1023) + k;
    if exponent < least - 60 {
        return if got == 0.0 { 0.0 } else { f64::INFINITY };
    }
    let unit = (exponent - mantissa).max(least);
    let got = match got.is_infinite() {
        // The next number, if there were one.
        true if exponent + 1 >= most => return 0.0,
        true => return f64::INFINITY,
        false => times(got, -unit),
    };
    let (hi, lo) = (times(want.hi, k - unit), times(want.lo, k - unit));
    ((hi - got) + lo).abs()
}

/// Every function of numbers of all kinds, against twice the digits.
fn accuracy<A: Accumulator>(numbers: &[A], limits: (i32, i32, i32)) -> Check {
    for of in Function::ALL {
        let (mut worst, mut at) = (0.0, 0.0);
        for x in numbers {
            let (value, got) = (x.parts().0, x.function(of).parts().0);
            let skip = !value.is_finite() || of == Function::Ln && value <= 0.0;
            if skip || of == Function::Recip && value == 0.0 {
                continue;
            }
            let wrong = units(of, value, got, limits);
            if wrong > worst {
                (worst, at) = (wrong, value);
            }
        }
        println!("{of:?}: {worst:.3} units at {at:e}");
        if worst > bound(of) + 1e-6 {
            return Err(format!("{of:?} of {at:e} is {worst} units wrong"));
        }
    }
    Ok(())
}

/// Numbers of all magnitudes, most of them where functions are neither 0 nor 1 nor infinite.
fn singles(count: usize) -> Vec<f32> {
    let all = bits(1).take(count / 4).map(|bits| f32::from_bits(bits as u32));
    let near = bits(2).take(count).map(|bits| {
        let exponent = 127 - 24 + (bits >> 40) % 32;
        f32::from_bits((exponent as u32) << 23 | bits as u32 & 0x807f_ffff)
    });
    let ends =
        bits(3).take(count / 4).map(|bits| (bits as i32 as f32) / (1u32 << 31) as f32 * 110.0);
    all.chain(near).chain(ends).collect()
}

fn doubles(count: usize) -> Vec<f64> {
    let all = bits(1).take(count / 4).map(f64::from_bits);
    let near = bits(2).zip(bits(9)).take(count).map(|(bits, other)| {
        let exponent = 1023 - 54 + other % 64;
        f64::from_bits(exponent << 52 | bits & 0x800f_ffff_ffff_ffff)
    });
    let ends = bits(3).take(count / 4).map(|bits| (bits as i64 as f64) / 2f64.powi(63) * 760.0);
    all.chain(near).chain(ends).collect()
}

/// What functions are of numbers where a formula would fail.
fn special<A: Accumulator>() -> Check {
    let of = |x: f64| A::from_parts(x, 0.0);
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let tiny = if A::PART == 4 { f64::from(f32::from_bits(1)) } else { f64::from_bits(1) };
    let most = if A::PART == 4 { f64::from(f32::MAX) } else { f64::MAX };
    let (zero, half, one) = ([(0.0, 0.0), (-0.0, -0.0)], [(0.0, 0.5), (-0.0, 0.5)], [(1.0, 0.0)]);
    let exp = [(0.0, 1.0), (-0.0, 1.0), (inf, inf), (-inf, 0.0), (most, inf), (-most, 0.0)];
    let ln = [(0.0, -inf), (-0.0, -inf), (inf, inf), (-inf, nan), (-tiny, nan)];
    let tanh = [(inf, 1.0), (-inf, -1.0), (tiny, tiny), (-tiny, -tiny)];
    let sigmoid = [(inf, 1.0), (-inf, 0.0), (-most, 0.0), (tiny, 0.5)];
    let linear = [&zero[..], &[(inf, inf), (-inf, -0.0), (most, most), (-most, -0.0)]].concat();
    let table = [
        (Function::Abs, vec![(-0.0, 0.0), (-inf, inf), (-tiny, tiny)]),
        (Function::Recip, vec![(0.0, inf), (-0.0, -inf), (inf, 0.0), (-inf, -0.0)]),
        (Function::Relu, vec![(-0.0, 0.0), (-inf, 0.0), (inf, inf), (-tiny, 0.0)]),
        (Function::Exp, exp.to_vec()),
        (Function::Ln, [&ln[..], &one].concat()),
        (Function::Tanh, [&tanh[..], &zero].concat()),
        (Function::Sigmoid, [&sigmoid[..], &half].concat()),
        (Function::Silu, linear.clone()),
        (Function::Gelu, linear.clone()),
        (Function::GeluTanh, linear),
    ];
    for (function, values) in table {
        for (x, want) in values.into_iter().chain([(nan, nan)]) {
            let got = of(x).function(function).parts().0;
            let right = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            if !right {
                return Err(format!("{function:?} of {x:e} is {got:e}, not {want:e}"));
            }
        }
    }
    let pairs =
        [(1.0, 2.0), (-0.0, 0.0), (0.0, -0.0), (-inf, 1.0), (inf, 1.0), (nan, 1.0), (1.0, nan)];
    for (a, b) in pairs {
        let (larger, smaller) = (of(a).maximum(of(b)).parts().0, of(a).minimum(of(b)).parts().0);
        let zeros = a == b;
        let right = match a.is_nan() || b.is_nan() {
            true => larger.is_nan() && smaller.is_nan(),
            false if zeros => larger.is_sign_positive() && smaller.is_sign_negative(),
            false => larger == a.max(b) && smaller == a.min(b),
        };
        if !right {
            return Err(format!("of {a} and {b}: maximum {larger}, minimum {smaller}"));
        }
    }
    Ok(())
}

/// Elements of every kind: edges, then bits, then numbers near 1.
fn elements<T: Element>(count: usize) -> Vec<T> {
    let edges = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, -f64::INFINITY, f64::NAN, 88.7, 88.75, -87.4];
    let more = [-103.9, -104.1, 709.7, 709.8, -708.5, -745.1, -745.2, 1e-40, -1e-310, 9.01, 1e30];
    let edges = edges.into_iter().chain(more).map(|x| T::narrow(T::Acc::from_parts(x, x)));
    let wild = bits(7).take(count).map(|bits| {
        let any = if T::Acc::PART == 4 {
            f32::from_bits(bits as u32).into()
        } else {
            f64::from_bits(bits)
        };
        T::narrow(T::Acc::from_parts(any, 1.0))
    });
    let near = bits(8).take(count).map(|bits| {
        let x = (bits as i64 as f64) / 2f64.powi(60);
        T::narrow(T::Acc::from_parts(x * x * x, 0.5))
    });
    edges.chain(wild).chain(near).collect()
}

/// Every function and comparison, of neighbours and of entries that lie apart, in place and from another array.
fn maps<T: Element>(device: &Device, count: usize) -> Check {
    let x = Array1::from_vec(elements::<T>(count));
    let n = x.len();
    let there = device.vector(&x).map_err(text)?;
    let (lo, hi): (T::Acc, T::Acc) = (common::acc::<T>(-0.5, 0.0), common::acc::<T>(1.5, 0.0));
    let alphas = Array1::from_shape_fn(n, |i| x[(i * 7919 + 13) % n]);
    let alphas_there = device.vector(&alphas).map_err(text)?;
    type View<'a, T> = gemv::DeviceViewMut<'a, T, gemv::ndarray::Ix1>;
    type There<'f, T> = &'f dyn Fn(&mut View<'_, T>, Option<&DeviceVector<T>>) -> Result<()>;
    let run = |what: &str, step: There<'_, T>, here: &dyn Fn(T, T) -> T| -> Check {
        let want: Vec<T> = x.iter().zip(&alphas).map(|(&x, &alpha)| here(x, alpha)).collect();
        let want = Array1::from_vec(want);
        let mut y = there.clone();
        step(&mut y.view_mut().map_err(text)?, None).map_err(text)?;
        equal(&format!("{what}, in place"), &y, &want)?;
        let mut y = device.zeros(n).map_err(text)?;
        step(&mut y.view_mut().map_err(text)?, Some(&there)).map_err(text)?;
        equal(what, &y, &want)?;
        // Every third one, backwards, from every third one.
        let mut y = device.zeros(3 * n).map_err(text)?;
        let mut apart = device.zeros(3 * n).map_err(text)?;
        apart.step_mut(.., 3).and_then(|mut apart| apart.assign(&there)).map_err(text)?;
        y.step_mut(.., -3)
            .and_then(|mut y| step(&mut y, Some(&apart.step(.., 3))))
            .map_err(text)?;
        equal(&format!("{what}, apart"), &y.step(.., -3), &want)
    };
    for of in Function::ALL {
        let step = |y: &mut View<'_, T>, x: Option<&DeviceVector<T>>| match x {
            None => y.map(of),
            Some(x) => y.assign_map(of, x),
        };
        run(&format!("{of:?}"), &step, &|x, _| T::narrow(x.widen().function(of)))?;
    }
    for with in Comparison::ALL {
        let step = |y: &mut View<'_, T>, x: Option<&DeviceVector<T>>| match x {
            None => y.compare(with, &alphas_there),
            Some(x) => y.assign_comparison(with, x, &alphas_there),
        };
        let here = |x: T, alpha: T| T::narrow(x.widen().compare(with, alpha.widen()));
        run(&format!("{with:?}"), &step, &here)?;
    }
    let step = |y: &mut View<'_, T>, x: Option<&DeviceVector<T>>| match x {
        None => y.maximum(&alphas_there),
        Some(x) => y.assign_maximum(x, &alphas_there),
    };
    run("maximum", &step, &|x, alpha| T::narrow(x.widen().maximum(alpha.widen())))?;
    let step = |y: &mut View<'_, T>, x: Option<&DeviceVector<T>>| match x {
        None => y.minimum(-&alphas_there),
        Some(x) => y.assign_minimum(x, -&alphas_there),
    };
    run("minimum", &step, &|x, alpha| T::narrow(x.widen().minimum(alpha.widen().neg())))?;
    let step = |y: &mut View<'_, T>, x: Option<&DeviceVector<T>>| match x {
        None => y.clamp(Factor::number(lo), Factor::number(hi)),
        Some(x) => y.assign_clamp(x, Factor::number(lo), Factor::number(hi)),
    };
    run("clamp", &step, &|x, _| T::narrow(x.widen().maximum(lo).minimum(hi)))?;
    let one = device.scalar(T::narrow(hi)).map_err(text)?;
    let step = |y: &mut View<'_, T>, x: Option<&DeviceVector<T>>| match x {
        None => y.clamp(&alphas_there / &one, &one),
        Some(x) => y.assign_clamp(x, &alphas_there / &one, &one),
    };
    let by = T::narrow(hi).widen();
    run("clamp by arrays", &step, &|x, alpha| {
        T::narrow(x.widen().maximum(alpha.widen().div(by)).minimum(by))
    })
}

/// Functions of a complex type are refused in one sentence.
fn complex_is_refused<T: Element>(device: &Device) -> Check {
    let before = array![random::<T>(1, 0, 0), random(1, 1, 0)];
    let mut y = device.vector(&before).map_err(text)?;
    let id = device.info().id.clone();
    for (done, what) in [
        (y.map(Function::Exp), "Map(Exp)"),
        (y.maximum(Factor::number(T::Acc::ONE)), "Maximum"),
        (y.compare(Comparison::Less, Factor::number(T::Acc::ONE)), "Compare(Less)"),
    ] {
        let want = format!("{id} cannot compute {}: {what} is of real numbers", T::DTYPE);
        match done {
            Err(e) if e.to_string() == want => {}
            other => return Err(format!("{other:?}, not {want}")),
        }
    }
    equal("y", &y, &before)
}

/// Steps whose factors are arrays, of one factor a column, a row, an entry; of all layouts. And a bias.
fn factors<T: Element>(device: &Device, (m, k): (usize, usize)) -> Check {
    let matrix = |seed| Array2::from_shape_fn((m, k), |(i, j)| random::<T>(seed, i, j));
    let by_columns = |a: &Array2<T>| {
        let mut f = Array2::from_elem((m, k).f(), T::default());
        f.assign(a);
        f
    };
    let (x, y) = (matrix(1), matrix(2));
    let of = |seed, n| Array1::from_shape_fn(n, |i| random::<T>(seed, i, 7));
    let (num, den, rows) = (
        of(3, k),
        of(4, k).mapv(|v| if v == T::default() { random(9, 1, 1) } else { v }),
        of(5, m),
    );
    let [num_there, den_there, rows_there] = [&num, &den, &rows].map(|v| device.vector(v));
    let (num_there, den_there) = (num_there.map_err(text)?, den_there.map_err(text)?);
    let rows_there = rows_there.map_err(text)?;
    let each = matrix(6);
    let each_there = device.matrix(&each).map_err(text)?;
    let column = rows_there.insert_axis(Axis(1));
    let new = |acc: T::Acc| T::narrow(acc);
    let quotient = |j: usize| num[j].widen().div(den[j].widen());
    type At<'f, A> = &'f dyn Fn(usize, usize) -> A;
    type Kind<'a, 'f, T> = (&'f str, Factor<'a, T>, At<'f, <T as Element>::Acc>);
    let kinds: [Kind<'_, '_, T>; 6] = [
        ("a column", (&num_there).into(), &|_, j| num[j].widen()),
        ("a column, negative", -&num_there, &|_, j| num[j].widen().neg()),
        ("quotients", -(&num_there / &den_there), &|_, j| quotient(j).neg()),
        ("a row", (&column).into(), &|i, _| rows[i].widen()),
        ("an entry", (&each_there).into(), &|i, j| each[[i, j]].widen()),
        ("rows by columns", &column / &den_there, &|i, j| rows[i].widen().div(den[j].widen())),
    ];
    let layouts = [
        ("rows", x.clone(), y.clone()),
        ("columns", by_columns(&x), by_columns(&y)),
        ("both", by_columns(&x), y.clone()),
    ];
    for (layout, x, y) in &layouts {
        let x_there = device.matrix(x).map_err(text)?;
        for (kind, factor, at) in &kinds {
            type Mut<'a, T> = gemv::DeviceViewMut<'a, T, Ix2>;
            let run = |what: &str,
                       step: &dyn Fn(&mut Mut<'_, T>) -> Result<()>,
                       here: &dyn Fn(T::Acc, T, T) -> T|
             -> Check {
                let mut got = device.matrix(y).map_err(text)?;
                step(&mut got.view_mut().map_err(text)?).map_err(text)?;
                let mut want = y.clone();
                want.indexed_iter_mut().for_each(|((i, j), y)| *y = here(at(i, j), x[[i, j]], *y));
                equal(&format!("{what} by {kind}, {layout}"), &got, &want)
            };
            run("fill", &|y| y.fill(*factor), &|a, _, _| new(a))?;
            run("scal", &|y| y.scal(*factor), &|a, _, y| new(a.mul(y.widen())))?;
            run("axpy", &|y| y.axpy(*factor, &x_there), &|a, x, y| {
                new(y.widen().fma(a, x.widen()))
            })?;
            run("xpay", &|y| y.xpay(*factor, &x_there), &|a, x, y| {
                new(x.widen().fma(a, y.widen()))
            })?;
            run("add", &|y| y.add(*factor), &|a, _, y| new(y.widen().add(a)))?;
            run("sum", &|y| y.assign_sum(&x_there, *factor), &|a, x, _| new(x.widen().add(a)))?;
        }
        // A part, and an operand of one row.
        if m > 4 && k > 3 {
            let mut got = device.matrix(y).map_err(text)?;
            let part = num_there.step(1..k - 1, -1);
            got.view_mut()
                .and_then(|y| {
                    y.step_axis(Axis(1), 1..k - 1, 1).step_axis(Axis(0), 1.., 2).scal(&part)
                })
                .map_err(text)?;
            let mut want = y.clone();
            for ((_, j), y) in want.slice_mut(s![1..;2, 1..k - 1]).indexed_iter_mut() {
                *y = new(num[k - 2 - j].widen().mul(y.widen()));
            }
            equal(&format!("a part, {layout}"), &got, &want)?;
            let mut got = device.matrix(y).map_err(text)?;
            let row = num_there.insert_axis(Axis(0));
            got.axpy(&each_there, &row).map_err(text)?;
            let mut want = y.clone();
            want.indexed_iter_mut().for_each(|((i, j), y)| {
                *y = new(y.widen().fma(each[[i, j]].widen(), num[j].widen()));
            });
            equal(&format!("one row for all, {layout}"), &got, &want)?;
        }
    }
    let mut y = device.matrix(&y).map_err(text)?;
    let long = device.zeros::<T, _>(k + 1).map_err(text)?;
    let want = format!("shapes do not fit: y has {m} × {k} entries and an operand 1 × {}", k + 1);
    match y.scal(&long) {
        Err(e) if e.to_string() == want => Ok(()),
        other => Err(format!("{other:?}, not {want}")),
    }
}

/// Dot products and norms of columns: the bits of each column alone.
fn columns<T: Element>(device: &Device, (m, k): (usize, usize)) -> Check {
    let of = |seed, by_columns: bool| {
        let shape = (m, k).set_f(by_columns);
        Array2::from_shape_fn(shape, |(i, j)| random::<T>(seed, i, j))
    };
    for (f, g) in [(false, false), (true, true), (false, true)] {
        let (x, y) = (of(1, f), of(2, g));
        let (x_there, y_there) =
            (device.matrix(&x).map_err(text)?, device.matrix(&y).map_err(text)?);
        for conj in [false, true] {
            let mut want = device.zeros::<T, _>(k).map_err(text)?;
            for j in 0..k {
                let to = want.view_mut().map_err(text)?.index_axis(Axis(0), j);
                let (x, y) = (x_there.column(j), y_there.column(j));
                if conj { x.dotc_into(&y, to) } else { x.dot_into(&y, to) }.map_err(text)?;
            }
            let want = want.download().map_err(text)?;
            let mut got = device.zeros::<T, _>(k).map_err(text)?;
            let mut host = Array1::from_elem(k, random::<T>(3, 0, 0));
            match conj {
                false => x_there.dot_columns_into(&y_there, &mut got),
                true => x_there.dotc_columns_into(&y_there, &mut got),
            }
            .map_err(text)?;
            equal("dots", &got, &want)?;
            match conj {
                false => x_there.dot_columns_into(&y, &mut host),
                true => x_there.dotc_columns_into(&y, &mut host),
            }
            .map_err(text)?;
            same(&host.to_vec(), &want.to_vec()).map_err(|e| format!("on the host: {e}"))?;
        }
        let mut want = device.zeros::<T, _>(k).map_err(text)?;
        for j in 0..k {
            let to = want.view_mut().map_err(text)?.index_axis(Axis(0), j);
            x_there.column(j).nrm2_into(to).map_err(text)?;
        }
        let want = want.download().map_err(text)?;
        let mut got = device.zeros::<T, _>(2 * k).map_err(text)?;
        got.step_mut(.., -2).and_then(|to| x_there.nrm2_columns_into(to)).map_err(text)?;
        equal("norms", &got.step(.., -2), &want)?;
        let mut host = Array1::from_elem(k, T::default());
        x_there.nrm2_columns_into(&mut host).map_err(text)?;
        same(&host.to_vec(), &want.to_vec()).map_err(|e| format!("norms on the host: {e}"))?;
    }
    let x = device.zeros::<T, _>((m, k)).map_err(text)?;
    let mut to = device.zeros::<T, _>(k + 1).map_err(text)?;
    match x.dot_columns_into(&x, &mut to) {
        Err(Error::Shape(_)) => Ok(()),
        other => Err(format!("another length: {other:?}")),
    }
}

/// A product with a bias and a function has the bits of the product and of the two steps: of Ys on the device and on the
/// host, of one vector, several and a batch, and whatever the layout of Y.
fn epilogues<T: Element + Times<V>, V: Element>(device: &Device, (m, n): (usize, usize)) -> Check {
    let a = Array2::from_shape_fn((m, n), |(i, j)| random::<T>(1, i, j));
    let a = device.matrix(&a).map_err(text)?;
    let small = common::acc::<V>(0.125, 0.0);
    let x = Array2::from_shape_fn((n, 5), |(i, j)| random::<V>(2, i, j));
    let rows = Array2::from_shape_fn((m, 1), |(i, _)| random::<V>(3, i, 0));
    let cols = Array2::from_shape_fn((1, 5), |(_, j)| random::<V>(4, j, 0));
    let each = Array2::from_shape_fn((m, 5), |(i, j)| random::<V>(5, i, j));
    let functions: &[Option<Function>] = match V::DTYPE.is_complex() {
        true => &[None],
        false => &[None, Some(Function::Gelu), Some(Function::Relu), Some(Function::Tanh)],
    };
    let beta = common::acc::<V>(0.5, 0.0);
    let before = Array2::from_shape_fn((m, 5), |(i, j)| random::<V>(6, i, j));
    let biases = [None, Some(&rows), Some(&cols), Some(&each)];
    for (bias, function) in biases.into_iter().flat_map(|b| functions.iter().map(move |f| (b, *f)))
    {
        let there = bias.map(|bias| device.matrix(bias)).transpose().map_err(text)?;
        for (layout, beta) in [(0, V::Acc::ZERO), (1, beta), (2, V::Acc::ZERO)] {
            let what = format!("bias {:?}, {function:?}, layout {layout}", bias.map(|b| b.dim()));
            let place = || match layout {
                0 => device.matrix(&before),
                1 => device.matrix(&before.t().as_standard_layout().to_owned()).map(|y| y.t()),
                _ => {
                    let mut wide = device.zeros((m, 11))?;
                    wide.view_mut()?.step_axis(Axis(1), 1.., 2).assign(&before)?;
                    Ok(wide.step_columns(1.., 2))
                }
            };
            let mut want = place().map_err(text)?;
            device.product(&a, &x).scaled(small, beta).to(&mut want).map_err(text)?;
            if let Some(bias) = &there {
                want.add(bias).map_err(text)?;
            }
            if let Some(function) = function {
                want.map(function).map_err(text)?;
            }
            let want = want.download().map_err(text)?;
            let mut got = place().map_err(text)?;
            let mut product = device.product(&a, &x).scaled(small, beta);
            product = match &there {
                Some(bias) => product.bias(bias),
                None => product,
            };
            product = match function {
                Some(function) => product.map(function),
                None => product,
            };
            product.to(&mut got).map_err(text)?;
            equal(&what, &got, &want)?;
            let mut got = before.clone();
            let mut product = device.product(&a, &x).scaled(small, beta);
            product = match bias {
                Some(bias) => product.bias(bias),
                None => product,
            };
            product = match function {
                Some(function) => product.map(function),
                None => product,
            };
            product.to(&mut got).map_err(text)?;
            let [got, want] = [&got, &want].map(|y| y.iter().copied().collect::<Vec<V>>());
            same(&got, &want).map_err(|e| format!("{what}, on the host: {e}"))?;
            // One vector, whose bias is a vector.
            let Some(bias) = bias.filter(|bias| bias.ncols() == 1) else { continue };
            let bias = device.vector(&bias.column(0)).map_err(text)?;
            let mut got = device.zeros(m).map_err(text)?;
            let product = device.product(&a, x.column(2)).scaled(small, V::Acc::ZERO).bias(&bias);
            match function {
                Some(function) => product.map(function),
                None => product,
            }
            .to(&mut got)
            .map_err(text)?;
            let mut want = device.zeros(m).map_err(text)?;
            device
                .product(&a, x.column(2))
                .scaled(small, V::Acc::ZERO)
                .to(&mut want)
                .map_err(text)?;
            want.add(&bias).map_err(text)?;
            if let Some(function) = function {
                want.map(function).map_err(text)?;
            }
            equal(&format!("{what}, a vector"), &got, &want.download().map_err(text)?)?;
        }
    }
    // A batch: each matrix has its own vector, and one bias is for all of them.
    let stack = Array::from_shape_fn((3, m.min(40), n), |(b, i, j)| random::<T>(7, 100 * b + i, j));
    let x = Array2::from_shape_fn((3, n), |(i, j)| random::<V>(8, i, j));
    let bias = device.matrix(&Array2::from_shape_fn((1, m.min(40)), |(_, i)| random::<V>(9, i, 0)));
    let bias = bias.map_err(text)?;
    let stack = device.array(&stack).map_err(text)?;
    let mut want = device.zeros((3, m.min(40))).map_err(text)?;
    device.product(&stack, &x).scaled(small, V::Acc::ZERO).to(&mut want).map_err(text)?;
    want.add(&bias).map_err(text)?;
    let mut got = device.zeros((3, m.min(40))).map_err(text)?;
    device
        .product(&stack, &x)
        .scaled(small, V::Acc::ZERO)
        .bias(&bias)
        .to(&mut got)
        .map_err(text)?;
    equal("a batch", &got, &want.download().map_err(text)?)?;
    // What does not fit is refused before Y is written.
    let long = device.zeros::<V, _>((m + 1, 1)).map_err(text)?;
    let mut y = device.matrix(&before).map_err(text)?;
    let x = device.zeros::<V, _>((n, 5)).map_err(text)?;
    match device.product(&a, &x).bias(&long).to(&mut y) {
        Err(Error::Shape(_)) => equal("y", &y, &before),
        other => Err(format!("a long bias: {other:?}")),
    }
}

/// A layer in a plan, whose bias and input change from run to run.
fn layer_in_a_plan(device: &Device) -> Check {
    let (m, n) = (70, 300);
    let a = Array2::from_shape_fn((m, n), |(i, j)| random::<bf16>(1, i, j));
    let a = device.matrix(&a).map_err(text)?;
    let of = |seed, n| Array1::from_shape_fn(n, |i| random::<f32>(seed, i, 0));
    let state = |seed| -> Result<_> {
        Ok((
            device.vector(&of(seed, n))?,
            device.vector(&of(seed + 1, m))?,
            device.zeros::<f32, _>(m)?,
        ))
    };
    type State = (DeviceVector<f32>, DeviceVector<f32>, DeviceVector<f32>);
    let work = |(x, b, y): &mut State| -> Result<()> {
        device.product(&a, &*x).scaled(0.125, 0.0).bias(&*b).map(Function::Gelu).to(&mut *y)?;
        b.clamp(-1.0, 1.0)?;
        b.add(&*y)
    };
    let mut plan = device.plan(state(2).map_err(text)?, work);
    let mut want = state(2).map_err(text)?;
    for run in 0..4 {
        plan.run().and_then(|()| work(&mut want)).map_err(text)?;
        equal(&format!("y of run {run}"), &plan.state().2, &want.2.download().map_err(text)?)?;
        equal(&format!("b of run {run}"), &plan.state().1, &want.1.download().map_err(text)?)?;
    }
    Ok(())
}

fn main() {
    let targets = common::targets();
    let mut trials: Vec<Trial> = common::absences(&targets);
    let tiny = common::size() == Size::Tiny;
    let count = if tiny { 1_000 } else { 100_000 };
    trials.push(trial("exact/f32".into(), move || accuracy(&singles(count), (23, -149, 128))));
    trials
        .push(trial("exact/f64".into(), move || accuracy(&doubles(count / 2), (52, -1074, 1024))));
    trials.push(trial("exact/special/f32".into(), special::<f32>));
    trials.push(trial("exact/special/f64".into(), special::<f64>));
    for target in &targets {
        let Ok(device) = &target.device else { continue };
        macro_rules! add {
            ($body:expr, $($name:tt)*) => {{
                let (device, body) = (device.clone(), $body);
                let name = format!("{}/{}", target.id, format_args!($($name)*));
                trials.push(trial(name, move || body(&device)));
            }};
        }
        let has = |dtype| common::supported(device, dtype).is_ok();
        let all: Vec<_> = Dtype::ALL.into_iter().filter(|dtype| has(*dtype)).collect();
        let count = if tiny { 20 } else { 1_000 };
        add!(move |d: &Device| maps::<f32>(d, 4 * count), "f32/maps");
        add!(move |d: &Device| maps::<f16>(d, count), "f16/maps");
        add!(move |d: &Device| maps::<bf16>(d, count), "bf16/maps");
        add!(complex_is_refused::<Complex<f32>>, "c32/refused");
        if has(Dtype::F64) {
            add!(move |d: &Device| maps::<f64>(d, 4 * count), "f64/maps");
            add!(complex_is_refused::<Complex<f64>>, "c64/refused");
        }
        if !tiny {
            // Enough for several threads.
            add!(|d: &Device| factors::<f32>(d, (700, 100)), "f32/factors of many");
        }
        add!(layer_in_a_plan, "a layer in a plan");
        let shapes: &[(usize, usize)] = if tiny { &[(9, 70)] } else { &[(37, 300), (3, 9_000)] };
        let pairs = [(Dtype::Bf16, Dtype::F32), (Dtype::F32, Dtype::F64)];
        let pairs = pairs.into_iter().filter(|pair| has(pair.1));
        let types: Vec<_> = all.iter().map(|of| (*of, *of)).chain(pairs).collect();
        for (&shape, &types) in shapes.iter().flat_map(|s| types.iter().map(move |t| (s, t))) {
            let name = if types.0 == types.1 { "" } else { &format!("*{}", types.1) };
            let body = move |d: &Device| gemv::unstable::for_types!(types, T, V => epilogues::<T, V>(d, shape));
            add!(body, "{}{name}/epilogues of {shape:?}", types.0);
        }
        for dtype in all {
            let shapes: &[(usize, usize)] =
                if tiny { &[(5, 4)] } else { &[(1, 1), (37, 16), (3, 300)] };
            for &shape in shapes {
                let body = move |d: &Device| with_type!(dtype, T => factors::<T>(d, shape));
                add!(body, "{dtype}/factors of {shape:?}");
            }
            let shapes: &[(usize, usize)] =
                if tiny { &[(5, 4)] } else { &[(0, 3), (1, 1), (300, 16), (5_000, 3)] };
            for &shape in shapes {
                let body = move |d: &Device| with_type!(dtype, T => columns::<T>(d, shape));
                add!(body, "{dtype}/columns of {shape:?}");
            }
        }
    }
    common::main(trials);
}
