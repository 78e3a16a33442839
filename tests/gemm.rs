//! Many right-hand sides and batches: on every device, for every layout of A, X and Y and every
//! candidate, column c of entry b has the bits of the reference's product of `A[b]` and `X[b][:, c]`.
//! Canaries around and between the entries of Y are as they were.
#![deny(unsafe_code)]

#[macro_use]
mod common;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};

use common::place::{BACK, BATCH_LAST, BETWEEN, COL, PART, PART_COL, Place, ROW, STEPS};
use common::{Check, Size, acc, elem, nan, random, supported, supported_mixed, trial};
use gemv::ndarray::{Array2, Array3, ArrayView3, Axis};
use gemv::unstable::{Desc, Job, Number, Params};
use gemv::{Accumulator, Device, Dtype, Element, Times};
use libtest_mimic::Trial;

/// A by rows, by columns, and neither.
const APART: [Place; 3] = [ROW, COL, STEPS];

/// What a product of the order is, by its definition.
fn expected<T: Element + Times<V>, V: Element>(
    (alpha, a, conj, x): (V::Acc, ArrayView3<'_, T>, bool, ArrayView3<'_, V>),
    (beta, y): (V::Acc, &Array3<V>),
) -> Array3<V> {
    let mut want = y.clone();
    for (b, mut y) in want.outer_iter_mut().enumerate() {
        for (c, y) in y.columns_mut().into_iter().enumerate() {
            let x = x.index_axis(Axis(0), b);
            gemv_testkit::gemv(alpha, a.index_axis(Axis(0), b), conj, x.column(c), beta, y);
        }
    }
    want
}

/// alpha and beta, and whether A is conjugated: in the last, of complex numbers.
const SCALINGS: [(f64, f64, bool); 3] = [(1.0, 0.0, false), (-0.75, 0.5, false), (1.0, 1.0, true)];

/// The numbers of a problem and its answers, which are the same wherever the operands lie and
/// whatever computes them: made once.
struct Case<T, V> {
    a: Array3<T>,
    x: Array3<V>,
    /// Y before and after, for each of [`SCALINGS`].
    answers: Vec<(Array3<V>, Array3<V>)>,
}

type Dim = (usize, usize, usize, usize);

impl<T: Element + Times<V>, V: Element> Case<T, V> {
    fn get(dim: Dim, shared: (bool, bool)) -> Arc<Case<T, V>> {
        type Key = ((Dtype, Dtype), Dim, (bool, bool));
        type Cases = Mutex<HashMap<Key, Arc<dyn Any + Send + Sync>>>;
        static CASES: OnceLock<Cases> = OnceLock::new();
        let key = ((T::DTYPE, V::DTYPE), dim, shared);
        let mut cases = CASES.get_or_init(Cases::default).lock().expect("no panic while held");
        let case = cases.entry(key).or_insert_with(|| Arc::new(Self::made(dim, shared)));
        case.clone().downcast().unwrap_or_else(|_| unreachable!("the key has the type"))
    }

    fn made((b, m, n, k): Dim, shared: (bool, bool)) -> Case<T, V> {
        fn values<E: Element>(seed: u64, dim: (usize, usize, usize)) -> Array3<E> {
            let mut at = 0;
            Array3::from_shape_simple_fn(dim, || {
                at += 1;
                random(seed, at, 7)
            })
        }
        let (ab, xb) = (if shared.0 { 1 } else { b }, if shared.1 { 1 } else { b });
        let (a, x) = (values::<T>(1, (ab, m, n)), values::<V>(2, (xb, n, k)));
        let answers = SCALINGS.map(|(alpha, beta, conj)| {
            let (alpha, beta) = (acc::<V>(alpha, 0.0), acc::<V>(beta, 0.0));
            // beta = 0: y is not read.
            let y = match beta == V::Acc::ZERO {
                true => Array3::from_elem((b, m, k), nan()),
                false => values(3, (b, m, k)),
            };
            let a = a.broadcast((b, m, n)).expect("as many, or one");
            let x = x.broadcast((b, n, k)).expect("as many, or one");
            let want = expected((alpha, a, conj, x), (beta, &y));
            (y, want)
        });
        Case { a, x, answers: answers.into() }
    }
}

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
    let text = |e: gemv::Error| e.to_string();
    let case = Case::<T, V>::get((b, m, n, k), run.shared);
    for (at, (alpha, beta, conj)) in SCALINGS.into_iter().enumerate() {
        // Of real numbers it is the same.
        if conj && !T::DTYPE.is_complex() {
            continue;
        }
        let (alpha, beta) = (acc::<V>(alpha, 0.0), acc::<V>(beta, 0.0));
        let (y, want) = &case.answers[at];
        let (a, x) = (run.a.hold(&case.a, |_| nan()), run.x.hold(&case.x, |_| nan()));
        let (a, x) = (run.a.view(a.view()), run.x.view(x.view()));
        let (a, x) = (
            a.broadcast((b, m, n)).expect("as many, or one"),
            x.broadcast((b, n, k)).expect("as many, or one"),
        );
        let canary = |at: usize| elem::<V>(1001.0 + (at % 13) as f64, -77.0);
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
            &[(1, 33, 257, 5), (5, 16, 16, 1), (1, 201, 3, 3)]
        }
        (_, true) => &[
            (1, 3, 1, 2),
            (1, 201, 3, 3),
            (1, 131, 8, 9),
            (1, 33, 257, 5),
            (1, 7, 1025, 9),
            (5, 16, 16, 1),
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
    // One column has its own kernels, which `equivalence` tests for operands of one type.
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
    let mut taken: HashSet<String> = HashSet::new();
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
        // Of what is compiled, two of each kernel for a problem, or one: other problems take others.
        let all_places = !device.info().host || [ROW, COL].contains(&a);
        let most = if is_f32 && all_places { 2 } else { 1 };
        let count =
            |params: &Params| candidates.iter().filter(|c| c.kernel() == params.kernel()).count();
        let mut seen: HashMap<String, usize> = HashMap::new();
        let some: Vec<Params> = (candidates.iter().copied())
            .filter(|params| {
                if once && taken.contains(&params.kernel().to_string()) {
                    return false;
                }
                let place = seen.entry(params.kernel().to_string()).or_default();
                *place += 1;
                let step = if thin { count(params).div_ceil(most) } else { 1 };
                (*place - 1) % step == turn % step
            })
            .collect();
        taken.extend(some.iter().map(|params| params.kernel().to_string()));
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
            let of = |params: &Params| all.iter().filter(|c| c.kernel() == params.kernel()).count();
            let mut seen: HashMap<String, usize> = HashMap::new();
            let some = all.iter().filter(|params| {
                let at = seen.entry(params.kernel().to_string()).or_default();
                *at += 1;
                !compiles || size == Size::Full || (*at - 1) % of(params) == turn % of(params)
            });
            let parent = place.hold(&a, |_| nan());
            for params in some {
                let mut got = y.clone();
                let product = device.product(place.view(parent.view()), &x).with(params);
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

/// Every number of columns that a tile may end in, on one small matrix.
fn columns<T: Element + Times<V>, V: Element>(device: &Device, size: Size) -> Check {
    let counts: &[usize] = match size {
        Size::Tiny => &[2, 4],
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
fn conjugates<T: Element>(device: &Device) -> Check {
    let values = |seed: u64, (m, n)| Array2::from_shape_fn((m, n), |(i, j)| random(seed, i, j));
    let (a, x) = (values(5, (70, 4)), values(6, (70, 4)));
    let (one, zero) = (acc::<T>(1.0, 0.0), acc::<T>(0.0, 0.0));
    let text = |e: gemv::Error| e.to_string();
    let mut want = Array2::from_elem((4, 4), nan::<T>());
    for (x, y) in x.columns().into_iter().zip(want.columns_mut()) {
        device.product(&a.t(), x).conj().scaled(one, zero).to(y).map_err(text)?;
    }
    let mut got = Array2::from_elem((4, 4), nan::<T>());
    device.product(&a.t(), &x).conj().scaled(one, zero).to(&mut got).map_err(text)?;
    let batch = |y: Array2<T>| y.insert_axis(Axis(0));
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
fn zeros<T: Element>(device: &Device) -> Check {
    let (m, k) = (200, 3);
    for n in [1, 2, 3, 4, 8] {
        let a = Array3::from_elem((1, m, n), elem::<T>(-0.0, -0.0));
        let x = Array3::from_elem((1, n, k), elem::<T>(1.0, 0.0));
        let (one, zero) = (acc::<T>(1.0, 0.0), acc::<T>(0.0, 0.0));
        let y = Array3::from_elem((1, m, k), nan::<T>());
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

fn main() {
    let size = common::size();
    let targets = common::targets();
    let mut trials = common::absences(&targets);
    for target in &targets {
        let Ok(device) = &target.device else { continue };
        for dtype in Dtype::ALL {
            let add =
                |trials: &mut Vec<Trial>, what: &str, run: fn(&Device, Dtype, Size) -> Check| {
                    let device = device.clone();
                    let ignored = supported(&device, dtype).is_err();
                    let name = format!("{}/{dtype}/{what}", target.id);
                    let one = trial(name, move || run(&device, dtype, size));
                    trials.push(one.with_ignored_flag(ignored));
                };
            let places = [
                ("row", ROW),
                ("col", COL),
                ("part", PART),
                ("part-col", PART_COL),
                ("steps", STEPS),
                ("back", BACK),
                ("between", BETWEEN),
                ("batch-last", BATCH_LAST),
            ];
            // Programs of one text: other types see three places. A simulator takes minutes for those that differ in where
            // the entries of a batch lie: a wrong one shows in the bits on other devices.
            let thin = target.compiles() && size != Size::Full && dtype != Dtype::F32;
            let simulated = target.id.starts_with("opencl") && size == Size::Tiny;
            let places = places.into_iter().filter(|p| !thin || APART.contains(&p.1));
            let places = places.filter(|p| !simulated || ![BETWEEN, BATCH_LAST].contains(&p.1));
            for (what, a) in places {
                let (device, compiles) = (device.clone(), target.compiles());
                let ignored = supported(&device, dtype).is_err();
                let name = format!("{}/{dtype}/{what}", target.id);
                let one = trial(
                    name,
                    move || with_type!(dtype, T => body::<T, T>(&device, a, size, compiles)),
                );
                trials.push(one.with_ignored_flag(ignored));
            }
            add(&mut trials, "columns", |device, dtype, size| {
                with_type!(dtype, T => {
                    let all = columns::<T, T>(device, size).and_then(|()| conjugates::<T>(device));
                    all.and_then(|()| zeros::<T>(device))
                })
            });
            // Where programs are compiled, of one text, those of f64 stand for the others.
            if !thin || dtype == Dtype::F64 {
                let (device, compiles) = (device.clone(), target.compiles());
                let ignored = supported(&device, dtype).is_err();
                let one = trial(
                    format!("{}/{dtype}/specials", target.id),
                    move || with_type!(dtype, T => specials::<T>(&device, size, compiles)),
                );
                trials.push(one.with_ignored_flag(ignored));
            }
            add(
                &mut trials,
                "batches",
                |device, dtype, size| with_type!(dtype, T => batches::<T, T>(device, size)),
            );
        }
        for pair in Dtype::MIXED {
            let ignored = supported_mixed(device, pair).is_err();
            let compiles = target.compiles();
            let mut add = |what: &str, run: Box<dyn FnOnce(&Device) -> Check + Send>| {
                let device = device.clone();
                let name = format!("{}/{}*{}/{what}", target.id, pair.0, pair.1);
                trials.push(trial(name, move || run(&device)).with_ignored_flag(ignored));
            };
            let places =
                [("row", ROW), ("col", COL), ("steps", STEPS), ("part", PART), ("back", BACK)];
            // As above. On a CPU the pair of f16 leaves out columns, and that of bf16 steps: they differ in how an element
            // is widened.
            let thin = compiles && size != Size::Full;
            let left_out = match pair.0 {
                Dtype::F16 => Some(COL),
                Dtype::Bf16 => Some(STEPS),
                _ => None,
            };
            for (what, a) in places {
                let other_has = device.info().host && size == Size::Normal && left_out == Some(a);
                if thin && (!APART.contains(&a) || other_has) {
                    continue;
                }
                add(
                    what,
                    Box::new(
                        move |device| with_mixed!(pair, T, V => body::<T, V>(device, a, size, compiles)),
                    ),
                );
            }
            add(
                "columns",
                Box::new(move |device| with_mixed!(pair, T, V => columns::<T, V>(device, size))),
            );
            add(
                "batches",
                Box::new(move |device| with_mixed!(pair, T, V => batches::<T, V>(device, size))),
            );
        }
    }
    common::main(trials);
}
