//! Several right-hand sides, batches, and vectors of another type, wherever the operands lie. Canaries around and
//! between the entries of Y are as they were.

use std::collections::{HashMap, HashSet};

use gemv::ndarray::{Array2, Array3, ArrayView2, Axis, ShapeBuilder, s};
use gemv::unstable::{Desc, Job, Number, Params, for_types};
use gemv::{Accumulator, Device, Dtype, Element, Times};
use libtest_mimic::Trial;

use super::common::operand::{Repeat, canary};
use super::common::place::{BACK, BATCH_LAST, BETWEEN, COL, PART, PART_COL, Place, ROW, STEPS};
use super::common::{Check, Size, acc, elem, nan, random, supported_mixed, text, trial};
use super::{Case, Dim, Kind, SCALINGS, Same, Scaling, expected};

/// A by rows, by columns, and neither.
const APART: [Place; 3] = [ROW, COL, STEPS];

/// Of the factors, and whether A is conjugated: in the last, of complex numbers.
const FACTORS: [(usize, bool); 3] = [(0, false), (2, false), (1, true)];

fn same<T: Element>(got: &Array3<T>, want: &Array3<T>) -> Check {
    if got.dim() != want.dim() {
        return Err(format!("{:?} and not {:?}", got.dim(), want.dim()));
    }
    let differ = |(_, (g, w)): &(_, (&T, &T))| g.bits() != w.bits();
    match got.indexed_iter().zip(want).map(|((at, g), w)| (at, (g, w))).find(differ) {
        Some((at, (g, w))) => Err(format!("in memory at {at:?}: {g:?}, not {w:?}")),
        None => Ok(()),
    }
}

/// Where the operands lie, and by which parameters they are multiplied.
struct Run {
    a: Place,
    x: Place,
    y: Place,
    resident: bool,
    shared: (bool, bool),
    params: Option<Params>,
}

fn check<T: Element + Times<V>, V: Element>(
    device: &Device,
    (b, m, n, k): (usize, usize, usize, usize),
    run: &Run,
) -> Check {
    let same_numbers = Same { a: Repeat::None, x: false, batch: run.shared };
    let case = Case::<T, V>::get((b, m, n, k), same_numbers);
    for (scaling, conj) in FACTORS {
        // Of real numbers it is the same.
        if conj && !T::DTYPE.is_complex() {
            continue;
        }
        let (y, want) = case.answer(scaling, conj);
        let Scaling { alpha, beta, .. } = SCALINGS[scaling];
        let (alpha, beta) = (acc::<V>(alpha.0, alpha.1), acc::<V>(beta.0, beta.1));
        let (a, x) = (run.a.hold(&case.a, |_| nan()), run.x.hold(&case.x, |_| nan()));
        let (a, x) = (run.a.view(a.view()), run.x.view(x.view()));
        let (a, x) = (
            a.broadcast((b, m, n)).expect("as many, or one"),
            x.broadcast((b, n, k)).expect("as many, or one"),
        );
        let mut got = run.y.hold(y, canary);
        if run.resident {
            let (a, x) = (device.array(a).map_err(text)?, device.array(x).map_err(text)?);
            let mut there = device.array(&run.y.view(got.view())).map_err(text)?;
            let product = device.product(&a, &x).conj_if(conj).with_if(run.params.as_ref());
            product.scaled(alpha, beta).to(&mut there).map_err(text)?;
            same(&there.download().map_err(text)?, want)?;
        } else {
            let place = run.y.view(got.view_mut());
            let product = device.product(a, x).conj_if(conj).with_if(run.params.as_ref());
            product.scaled(alpha, beta).to(place).map_err(text)?;
            same(&got, &run.y.hold(want, canary))?;
        }
    }
    Ok(())
}

/// The problem, as the device will see it.
fn desc<T: Times<V> + Element, V: Element>(a: Place, (b, m, n, k): Dim) -> Desc {
    let parent = a.parent([b, m, n], |_| T::default());
    let [x, mut y] = [[b, n, k], [b, m, k]].map(|dim| ROW.parent(dim, |_| V::default()));
    let (zero, y) = (Number::new(V::Acc::ZERO), y.view_mut());
    let (a, x) = (a.view(parent.view()).into(), x.view().into());
    Job { alpha: zero, a, conj: false, x, beta: zero, y: y.into() }.desc()
}

/// What a trial has launched: the parameters, and the values of each argument of a kernel.
#[derive(Default)]
struct Seen {
    params: Vec<Params>,
    values: HashSet<(String, String, u32)>,
}

/// Of each kernel so many of these, at most: those that have a value of an argument which none before had, whatever
/// problem that was. Where there is none, one that was launched before: another problem, by a program that is compiled.
fn covering(all: &[Params], seen: &mut Seen, most: usize) -> Vec<Params> {
    let mut some: Vec<Params> = Vec::new();
    for params in all {
        let kernel = params.kernel();
        let values = params.args().map(|(name, value)| (kernel.to_string(), name, value));
        let values: Vec<_> = values.collect();
        let fresh = values.iter().any(|value| !seen.values.contains(value));
        if fresh && some.iter().filter(|of| of.kernel() == kernel).count() < most {
            seen.values.extend(values);
            seen.params.push(*params);
            some.push(*params);
        }
    }
    for params in all {
        if some.iter().all(|of| of.kernel() != params.kernel()) {
            let before =
                all.iter().find(|of| of.kernel() == params.kernel() && seen.params.contains(of));
            some.push(*before.unwrap_or(params));
        }
    }
    some
}

/// Of each kernel so many of these, at most: other turns take others.
fn in_turn(all: &[Params], turn: usize, most: usize) -> Vec<Params> {
    let of = |kernel| all.iter().filter(move |params| params.kernel() == kernel);
    let mut seen = HashMap::new();
    let some = all.iter().filter(|params| {
        let place = seen.entry(params.kernel()).or_insert(0);
        *place += 1;
        let step = of(params.kernel()).count().div_ceil(most);
        (*place - 1) % step == turn % step
    });
    some.copied().collect()
}

/// Every place of A; X and Y take turns.
fn body<T: Element + Times<V>, V: Element>(
    device: &Device,
    a: Place,
    size: Size,
    compiles: bool,
) -> Check {
    let many: &[(usize, usize, usize, usize)] = match (size, compiles) {
        // Oclgrind does not know the instruction that a division by 3 becomes.
        (Size::Tiny, _) => &[(1, 5, 70, 4), (1, 9, 2, 4), (3, 4, 20, 2)],
        // Programs of one text: f32 sees every problem, on a CPU in three of its places; the other types see a few, and
        // two types together the fewest.
        (Size::Normal, true) if T::DTYPE != V::DTYPE => &[(1, 33, 257, 5), (5, 16, 16, 1)],
        // And what the kernels for many columns of f64 are for.
        (Size::Normal, true) if T::DTYPE == Dtype::F64 => &[
            (1, 201, 3, 3),
            (1, 33, 257, 5),
            (5, 16, 16, 1),
            (30, 17, 13, 1),
            (1, 35, 600, 19),
            (1, 19, 1300, 9),
            (1, 2, 66_000, 10),
            (2, 3, 66_000, 1),
        ],
        (Size::Normal, true)
            if T::DTYPE == Dtype::F32 && device.info().host && !APART.contains(&a) =>
        {
            &[(1, 33, 257, 5), (5, 16, 16, 1), (1, 201, 3, 3), (2, 9, 700, 3), (2, 3, 66_000, 1)]
        }
        (Size::Normal, true) if T::DTYPE != Dtype::F32 => {
            &[(1, 33, 257, 5), (5, 16, 16, 1), (30, 17, 13, 1), (1, 201, 3, 3)]
        }
        (_, true) => &[
            (1, 3, 1, 2),
            (1, 201, 3, 3),
            (1, 131, 8, 9),
            (1, 33, 257, 5),
            (1, 7, 1025, 9),
            (5, 16, 16, 1),
            (30, 17, 13, 1),
            (3, 65, 96, 1),
            (300, 4, 4, 3),
            (2, 9, 700, 3),
            // More than 256 segments: of few rows with much X, and with little.
            (1, 3, 66_000, 5),
            (2, 3, 66_000, 1),
            // Rows of one segment with much X.
            (8, 2, 100, 1500),
        ],
        _ => &[
            (1, 1, 1, 2),
            (1, 1000, 1, 5),
            (1, 300, 2, 2),
            (1, 1500, 3, 3),
            (1, 129, 5, 17),
            (1, 515, 8, 8),
            (1, 130, 13, 4),
            (1, 3, 0, 4),
            (2, 5, 64, 3),
            (1, 777, 50, 9),
            (1, 300, 64, 35),
            (1, 17, 300, 4),
            (1, 33, 257, 8),
            (1, 64, 520, 16),
            (1, 9, 1025, 31),
            (1, 2, 66_000, 2),
            (3, 40, 129, 5),
            (3, 21, 1030, 1),
            (7, 4, 4, 1),
            (300, 4, 4, 3),
            (20, 33, 31, 7),
        ],
    };
    // One column has its own kernels, which are tested apart for operands of one type.
    let single: &[Dim] = match (T::DTYPE == V::DTYPE, size) {
        (true, _) => &[],
        (_, Size::Tiny) => &[(1, 5, 70, 1)],
        _ if compiles && size != Size::Full => &[(1, 33, 257, 1)],
        _ => &[(1, 1, 1, 1), (1, 33, 257, 1), (1, 300, 64, 1), (1, 9, 1025, 1), (1, 2, 66_000, 1)],
    };
    // Blocks of a GPU that have several tiles, one after another.
    let tall: &[Dim] = match (device.info().id.starts_with("cuda"), size) {
        (false, _) => &[],
        (true, Size::Tiny) => &[(1, 300, 20, 3)],
        (true, _) => &[(1, 60_000, 20, 3), (1, 560_000, 2, 3), (1, 20_000, 0, 4), (1, 3_000, 0, 8)],
    };
    let xs = [ROW, COL, PART, STEPS, BACK, BATCH_LAST];
    let ys = [ROW, COL, STEPS, PART_COL, BETWEEN, BATCH_LAST];
    let (mut taken, mut seen) = (HashSet::new(), Seen::default());
    for (turn, &dim) in many.iter().chain(single).chain(tall).enumerate() {
        let place = |turn: usize| (xs[turn % xs.len()], ys[turn / 2 % ys.len()]);
        for (round, resident) in [false, true].into_iter().enumerate() {
            let (x, y) = place(2 * turn + round);
            for shared in [(false, false), (true, false), (false, true)] {
                if shared != (false, false) && dim.0 == 1 {
                    continue;
                }
                let run = Run { a, x, y, resident, shared, params: None };
                check::<T, V>(device, dim, &run)
                    .map_err(|e| format!("{dim:?} {x:?} {y:?}: {e}"))?;
            }
        }
        // Of what is compiled, f32 takes every kernel on every problem, and f64, which has kernels of its own. So do
        // two types, which see few problems. The other types share their kernels' texts with f32: each takes a kernel on
        // the first problem that the kernel is for.
        let thin = compiles && size != Size::Full;
        let is_f32 = T::DTYPE == Dtype::F32 && V::DTYPE == Dtype::F32;
        let once = thin && T::DTYPE == V::DTYPE && ![Dtype::F32, Dtype::F64].contains(&T::DTYPE);
        // Every kernel for many, and one for a single vector column by column.
        let desc = desc::<T, V>(a, dim);
        let candidates = device.backend().candidates(&desc);
        let one = device.backend().candidates(&Desc { rhs: 1, batch: 1, ..desc });
        // Of what is compiled, two of each kernel for a problem, or one.
        let all_places = !device.info().host || [ROW, COL].contains(&a);
        let most = if is_f32 && all_places { 2 } else { 1 };
        let all: Vec<Params> =
            candidates.into_iter().filter(|p| !once || !taken.contains(&p.kernel())).collect();
        let some = match thin {
            true if device.info().host => covering(&all, &mut seen, most),
            true => in_turn(&all, turn, most),
            false => all,
        };
        taken.extend(some.iter().map(Params::kernel));
        for (at, params) in some.into_iter().chain(one.into_iter().take(1)).enumerate() {
            let (x, y) = place(turn + at);
            // What has gaps is packed when it is uploaded, and may have another layout then.
            let resident = at % 2 == 0 && a.pad == [0; 3] && a.steps.iter().all(|s| s.abs() == 1);
            let run = Run { a, x, y, resident, shared: (false, false), params: Some(params) };
            check::<T, V>(device, dim, &run)
                .map_err(|e| format!("{dim:?} {params} {x:?} {y:?}: {e}"))?;
        }
    }
    Ok(())
}

/// Numbers that hide a liberty unless each step is the order's: sums that cancel, subnormal ones, products
/// that overflow, infinities and NaN, zeros of both signs; row by row. Every kernel's candidates.
fn specials<T: Element>(device: &Device, size: Size, compiles: bool) -> Check {
    let (least, most) = match T::DTYPE {
        Dtype::F16 => (2f64.powi(-24), 6e4),
        Dtype::Bf16 => (2f64.powi(-133), 3e38),
        Dtype::F32 | Dtype::C32 => (f64::from(f32::from_bits(1)), 3e38),
        Dtype::F64 | Dtype::C64 => (f64::from_bits(1), 1.7e308),
    };
    let entry = |i: usize, j: usize| {
        let usual: T = random(8, i, j);
        let sign = if random::<f64>(9, i, j) < 0.0 { -1.0 } else { 1.0 };
        let real = |value: f64| elem::<T>(sign * value, 0.0);
        match (i % 6, (i + 5 * j) % 97) {
            (1, _) => elem::<T>([most / 64.0, -most / 64.0][j & 1], 0.0),
            (2, k) => real(least * (1 + k % 7) as f64),
            (3, 0..3) => real(most),
            (4, 0) => real(f64::INFINITY),
            (4, 1) if i < 12 => nan(),
            (5, _) => real(0.0),
            _ => usual,
        }
    };
    let problems: &[(usize, usize, usize)] = match size {
        // Oclgrind does not know the instruction that a division by 3 becomes.
        Size::Tiny => &[(7, 70, 4)],
        _ if compiles => &[(23, 300, 9), (18, 256, 16), (37, 1021, 17), (13, 70, 33), (205, 3, 3)],
        _ => {
            &[(23, 300, 9), (18, 256, 16), (37, 1021, 17), (13, 70, 33), (205, 3, 3), (150, 50, 9)]
        }
    };
    for (turn, &(m, n, k)) in problems.iter().enumerate() {
        let a = Array3::from_shape_fn((1, m, n), |(_, i, j)| entry(i, j));
        // Neighbours are the same, so that two large products cancel; a few are zero.
        let x = Array3::from_shape_fn((1, n, k), |(_, j, c)| match (j / 2 + c) % 41 {
            0 => elem::<T>(if c % 2 == 0 { 0.0 } else { -0.0 }, 0.0),
            _ => random(10, j / 2, c),
        });
        let (one, zero) = (acc::<T>(1.0, 0.0), acc::<T>(0.0, 0.0));
        let y = Array3::from_elem((1, m, k), nan::<T>());
        let want = expected((one, a.view(), false, x.view()), (zero, &y));
        for place in [ROW, COL] {
            let all = device.backend().candidates(&desc::<T, T>(place, (1, m, n, k)));
            let some = match compiles && size != Size::Full {
                true => in_turn(&all, turn, 1),
                false => all,
            };
            let parent = place.hold(&a, |_| nan());
            for params in some {
                let mut got = y.clone();
                let product = device.product(place.view(parent.view()), &x).with(&params);
                product.scaled(one, zero).to(&mut got).map_err(|e| e.to_string())?;
                alike(&got, &want).map_err(|e| format!("{m}x{n} {k} columns, {params}: {e}"))?;
            }
        }
    }
    Ok(())
}

/// As [`same`], but any NaN is any other.
fn alike<T: Element>(got: &Array3<T>, want: &Array3<T>) -> Check {
    let part = |g: f64, w: f64| g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan());
    let differ = |g: &T, w: &T| {
        let ((g_re, g_im), (w_re, w_im)) = (g.widen().parts(), w.widen().parts());
        !part(g_re, w_re) || !part(g_im, w_im)
    };
    match got.indexed_iter().zip(want).find(|((_, g), w)| differ(g, w)) {
        Some(((at, g), w)) => Err(format!("at {at:?}: {g:?}, not {w:?}")),
        None => Ok(()),
    }
}

/// Every number of columns that a tile may end in, on one small matrix. Where the kernels are compiled, types but
/// f32, whose text is the same, have one number of each kind: a table names others for most of them.
fn columns<T: Element + Times<V>, V: Element>(
    device: &Device,
    size: Size,
    compiles: bool,
) -> Check {
    let is_f32 = (T::DTYPE, V::DTYPE) == (Dtype::F32, Dtype::F32);
    let counts: &[usize] = match size {
        Size::Tiny => &[2, 4],
        Size::Normal if compiles && device.info().host && !is_f32 => &[1, 2, 7, 16, 33],
        _ => &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, 64],
    };
    for &k in counts {
        for a in [ROW, COL] {
            let run =
                Run { a, x: ROW, y: ROW, resident: true, shared: (false, false), params: None };
            check::<T, V>(device, (1, 6, 130, k), &run).map_err(|e| format!("{k} columns: {e}"))?;
        }
    }
    Ok(())
}

/// `Aᴴ X` on the host and resident: each column as by itself.
fn conjugates<T: Element + Times<V>, V: Element>(device: &Device) -> Check {
    let a = Array2::from_shape_fn((70, 4), |(i, j)| random::<T>(5, i, j));
    let x = Array2::from_shape_fn((70, 4), |(i, j)| random::<V>(6, i, j));
    let (one, zero) = (V::Acc::ONE, V::Acc::ZERO);
    let mut want = Array2::from_elem((4, 4), nan::<V>());
    for (x, y) in x.columns().into_iter().zip(want.columns_mut()) {
        device.product(&a.t(), x).conj().scaled(one, zero).to(y).map_err(text)?;
    }
    let mut got = Array2::from_elem((4, 4), nan::<V>());
    device.product(&a.t(), &x).conj().scaled(one, zero).to(&mut got).map_err(text)?;
    let batch = |y: Array2<V>| y.insert_axis(Axis(0));
    same(&batch(got), &batch(want.clone())).map_err(|e| format!("conjugated: {e}"))?;
    let (a, x) = (device.matrix(&a).map_err(text)?, device.matrix(&x).map_err(text)?);
    let mut got = device.zeros((4, 4)).map_err(text)?;
    device.product(&a.t(), &x).conj().scaled(one, zero).to(&mut got).map_err(text)?;
    let got = got.download().map_err(text)?;
    same(&batch(got), &batch(want)).map_err(|e| format!("conjugated, resident: {e}"))
}

/// Batches of no matrix, of more than a grid's second axis has, and of the segments of one matrix.
fn batches<T: Element + Times<V>, V: Element>(device: &Device, size: Size) -> Check {
    let counts: &[usize] = if size == Size::Tiny { &[0, 2] } else { &[0, 1, 65_537] };
    for &b in counts {
        for (a, k) in [(ROW, 1), (COL, 2)] {
            let run =
                Run { a, x: ROW, y: ROW, resident: true, shared: (false, false), params: None };
            check::<T, V>(device, (b, 2, 3, k), &run).map_err(|e| format!("{b} matrices: {e}"))?;
        }
    }
    if size != Size::Tiny {
        // More of them than stay together, of more rows than a block has.
        let shared = (false, false);
        let run = Run { a: BETWEEN, x: ROW, y: ROW, resident: true, shared, params: None };
        check::<T, V>(device, (130, 37, 200, 1), &run).map_err(|e| format!("segments: {e}"))?;
    }
    Ok(())
}

/// Products of -0 alone: every absent lane makes their sum +0, whichever kernel adds them up.
fn zeros<T: Element + Times<V>, V: Element>(device: &Device) -> Check {
    let (m, k) = (200, 3);
    for n in [1, 2, 3, 4, 8] {
        let a = Array3::from_elem((1, m, n), elem::<T>(-0.0, -0.0));
        let x = Array3::from_elem((1, n, k), elem::<V>(1.0, 0.0));
        let (one, zero) = (V::Acc::ONE, V::Acc::ZERO);
        let y = Array3::from_elem((1, m, k), nan::<V>());
        let want = expected((one, a.view(), false, x.view()), (zero, &y));
        for place in [ROW, COL] {
            let parent = place.hold(&a, |_| nan());
            let a = place.view(parent.view());
            let mut got = y.clone();
            device.product(a, &x).to(&mut got).map_err(|e| e.to_string())?;
            same(&got, &want).map_err(|e| format!("{n} columns of -0: {e}"))?;
        }
    }
    Ok(())
}

/// How the names end of the two kernels that copy boxes of a matrix whose lines begin at multiples of 16 bytes: by rows, by columns.
const BY_BOXES: &str = "-lanes";
/// In place of the axis that descends: columns are longer than the matrix has rows.
const GAPS: Option<usize> = Some(2);

/// Every candidate of [`BY_BOXES`] for bf16 and f32, and a few for types whose texts differ in how an element is widened, in matrices
/// whose rows or columns ascend or descend in memory, or have gaps.
fn boxes<T: Element + Times<V>, V: Element>(device: &Device) -> Check {
    let text = |e: gemv::Error| e.to_string();
    let hopper = ["H100", "H200"].iter().any(|name| device.info().name.contains(name));
    // The kernels that a shape is for: a single row or column lies in one layout, and f32 has one by columns alone. Blocks have
    // several turns in the last shape.
    let dims = [
        ((1, 72, 264, 5), 2),
        ((1, 200, 1032, 16), 2),
        ((1, 40, 16, 2), 2),
        ((1, 16, 66_000, 3), 2),
        ((1, 1, 264, 3), 1),
        ((1, 72, 1, 3), 1),
        ((1, 40, 20_000, 16), 2),
        ((1, 8504, 264, 16), 2),
    ];
    for (turn, (dim, least)) in dims.into_iter().enumerate() {
        let (mut taken, mut gaps, k) = (HashSet::new(), 0, dim.3);
        let least = if T::DTYPE.bytes() == 2 { least } else { 1.min(dim.1 - 1) };
        let case =
            Case::<T, V>::get(dim, Same { a: Repeat::None, x: false, batch: (false, false) });
        let (_, want) = case.answer(0, false);
        let x = device.array(case.x.index_axis(Axis(0), 0)).map_err(text)?;
        let places = [(ROW, None), (ROW, Some(0)), (COL, None), (COL, Some(1)), (COL, GAPS)];
        for (place, turned) in places {
            // On the device they are turned back.
            let mut a = place.hold(&case.a, |_| nan());
            let mut a = place.view(a.view_mut()).index_axis_move(Axis(0), 0);
            if let Some(axis) = turned.filter(|_| turned != GAPS) {
                a.invert_axis(Axis(axis));
                let values = a.to_owned();
                a.invert_axis(Axis(axis));
                a.assign(&values);
            }
            let mut longer = Array2::from_elem((dim.1 + 8, dim.2).f(), nan());
            longer.slice_mut(s![..dim.1, ..]).assign(&a);
            let there = |a: ArrayView2<'_, T>| device.matrix(&a).map_err(text);
            let a = match turned {
                None => there(a.view())?,
                Some(0) => there(a.view())?.step_rows(.., -1),
                GAPS => there(longer.view())?.step_rows(..dim.1, 1),
                Some(_) => there(a.view())?.step_columns(.., -1),
            };
            let desc = Desc { vectors: V::DTYPE, rhs: k, ..a.desc() };
            let mut all = device.backend().candidates(&desc);
            all.retain(|p| p.kernel().as_str().ends_with(BY_BOXES));
            if T::DTYPE.bytes() == 2 && V::DTYPE != Dtype::Bf16 {
                all = in_turn(&all, turn, 3);
            }
            gaps += if turned == GAPS { all.len() } else { 0 };
            for params in &all {
                taken.insert(params.kernel());
                let mut y = device.zeros((dim.1, k)).map_err(text)?;
                let product = device.product(&a, &x).with(params);
                product.scaled(V::Acc::ONE, V::Acc::ZERO).to(&mut y).map_err(text)?;
                same(&y.download().map_err(text)?.insert_axis(Axis(0)), want)
                    .map_err(|e| format!("{desc}, {turned:?} turned, {params}: {e}"))?;
            }
        }
        // Other devices have none of them, and a single row or column with gaps may have none.
        let few = taken.len() < least || gaps == 0 && dim.1 > 1 && dim.2 > 1;
        if few && (hopper || !taken.is_empty()) {
            return Err(format!("{dim:?}: only {taken:?}, and {gaps} where columns have gaps"));
        }
    }
    Ok(())
}

/// The trials of a device.
pub fn trials(id: &str, device: &Device, kind: Kind, size: Size, trials: &mut Vec<Trial>) {
    let compiles = kind == Kind::Compiles;
    let places = [
        ("row", ROW),
        ("col", COL),
        ("steps", STEPS),
        ("part", PART),
        ("back", BACK),
        ("part-col", PART_COL),
        ("between", BETWEEN),
        ("batch-last", BATCH_LAST),
    ];
    for pair in Dtype::ALL.map(|dtype| (dtype, dtype)).into_iter().chain(Dtype::MIXED) {
        let mixed = pair.0 != pair.1;
        let ignored = supported_mixed(device, pair).is_err();
        let types = if mixed { format!("{}*{}", pair.0, pair.1) } else { pair.0.to_string() };
        let mut add = |what: &str, run: Box<dyn FnOnce(&Device) -> Check + Send>| {
            let (device, name) = (device.clone(), format!("{id}/{types}/many-{what}"));
            trials.push(trial(name, move || run(&device)).with_ignored_flag(ignored));
        };
        // Programs of one text: types but f32 see three places. On a CPU the pair of f16 leaves out columns, and that
        // of bf16 steps: they differ in how an element is widened.
        let thin = compiles && size != Size::Full;
        let left_out = match pair.0 {
            Dtype::F16 => Some(COL),
            Dtype::Bf16 => Some(STEPS),
            _ => None,
        };
        // A simulator takes minutes for what differs in where the entries of a batch lie: a wrong one shows in the bits
        // on other devices. Columns with gaps are in gemv-opencl's own tests.
        let simulated = id.starts_with("opencl") && size == Size::Tiny;
        for (what, a) in places {
            let other_has = device.info().host && size == Size::Normal && left_out == Some(a);
            let few = thin && (mixed || pair.0 != Dtype::F32);
            if few && !APART.contains(&a)
                || mixed && [PART_COL, BETWEEN, BATCH_LAST].contains(&a)
                || thin && mixed && other_has
                || simulated && [PART_COL, BETWEEN, BATCH_LAST].contains(&a)
            {
                continue;
            }
            add(
                what,
                Box::new(
                    move |device| for_types!(pair, T, V => body::<T, V>(device, a, size, compiles)),
                ),
            );
        }
        add(
            "columns",
            Box::new(move |device| {
                for_types!(pair, T, V => {
                    let all = columns::<T, V>(device, size, compiles);
                    all.and_then(|()| conjugates::<T, V>(device)).and_then(|()| zeros::<T, V>(device))
                })
            }),
        );
        let narrow = pair.0.bytes() == 2 || pair == (Dtype::F32, Dtype::F32);
        if id.starts_with("cuda") && size != Size::Tiny && narrow {
            add("boxes", Box::new(move |device| for_types!(pair, T, V => boxes::<T, V>(device))));
        }
        // Where programs are compiled, of one text, those of f32 and f64 stand for the others.
        if !mixed && (!thin || [Dtype::F32, Dtype::F64].contains(&pair.0)) {
            add(
                "specials",
                Box::new(
                    move |device| with_type!(pair.0, T => specials::<T>(device, size, compiles)),
                ),
            );
        }
        add(
            "batches",
            Box::new(move |device| for_types!(pair, T, V => batches::<T, V>(device, size))),
        );
    }
}
