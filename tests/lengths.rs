//! Every length: 1 to 600 columns, rows, entries of a step, terms of a dot product, and 1 to 70 right-hand sides and
//! matrices. Kernels have a part of their own for what is left of a length, so a fault can show at one length alone.
//!
//! A sum of small terms of both signs shows each of them: one that is left out, or taken twice, changes the bits of the
//! result. Trials are named `device/type/what`. The CPU has a device for each instruction set, such as `cpu-avx2`.
//! - On the CPU every candidate takes every length.
//! - On a GPU so does all that its tables name, and each other kernel once.
//! - Where a CPU compiles the kernels, f32 takes every length by what its table names, and by each other kernel once.
//!   Several columns of X, and the other types, are computed about where vectors, lanes and segments end, and at a part
//!   of the lengths between. `GEMV_TEST_FULL=1` gives every type every length, and f32 every candidate.
#![deny(unsafe_code)]
#![allow(clippy::type_complexity)] // launches and trials, as closures

#[macro_use]
mod common;

use std::collections::HashSet;
use std::sync::Arc;

use common::operand::{Buffer, Strided, canary};
use common::place::{BATCH_LAST, COL, PART, PART_COL, Place, ROW, STEPS};
use common::{
    Check, Size, acc, elem, hash, nan, random, same, supported, supported_mixed, text, trial,
};
use gemv::half::bf16;
use gemv::ndarray::{Array1, Array3, ArrayView1, ArrayView2, Axis, ShapeBuilder, s};
use gemv::unstable::{
    AnyVectorJob, Checked, Desc, Job, KernelInfo, Layout, Number, Params, Table, for_any,
    for_types, reference, scale,
};
use gemv::{
    Accumulator, Device, DeviceMatrix, DeviceScalar, DeviceVector, DeviceViewMut, Dtype, Element,
    Factor, MatrixRef, Times,
};
use gemv_testkit::{Host, elements, elements_mut};
use libtest_mimic::Trial;

/// More than two segments, and more rows than a block has threads.
const MOST: usize = 600;
/// The most right-hand sides, and the most matrices: more than two of the widest tiles.
const MOST_MANY: usize = 70;

/// What a device is, as far as it decides what takes which length.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    /// It runs functions of this program.
    Host,
    /// A CPU that compiles each program when that is first used.
    Compiles,
    Gpu,
}

/// Which lengths a sweep takes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lengths {
    All,
    /// Those about which vectors, lanes and segments end, and every seventeenth.
    Some,
    /// This one, and its neighbours.
    About(usize),
}

impl Lengths {
    fn has(self, n: usize) -> bool {
        let near = |of: usize| (n + 1) % of <= 2;
        match self {
            Lengths::All => true,
            Lengths::Some => n <= 18 || near(64) || n < 100 && near(16) || n % 17 == 4,
            Lengths::About(length) => n.abs_diff(length) <= 1,
        }
    }

    fn up_to(self, most: usize) -> Vec<usize> {
        (1..=most).filter(|&n| self.has(n)).collect()
    }
}

// ---- the numbers

/// A number of magnitude 1 to 2 with a full mantissa.
fn between(seed: u64, i: usize, j: usize) -> f64 {
    let h = hash(seed, i as u64, j as u64);
    let magnitude = 1.0 + (h >> 12) as f64 / (1u64 << 52) as f64;
    if h & 1 == 0 { magnitude } else { -magnitude }
}

/// Batches of A and X, and the reference's sums of one number of columns.
///
/// All terms are of magnitude 1 to 4. Their signs keep the sums of a row small, whatever the number of columns, so that no
/// term is lost by rounding to the narrowest type.
struct Case<T, V: Element> {
    a: Array3<T>,
    x: Array3<V>,
    columns: usize,
    /// Of A and of its conjugate, for as many columns.
    sums: [Array3<V::Acc>; 2],
}

/// alpha, beta, and y before.
struct Scaling<V: Element> {
    alpha: V::Acc,
    beta: V::Acc,
    old: Array3<V>,
}

impl<T: Element + Times<V>, V: Element> Case<T, V> {
    fn new((b, m, n, k): (usize, usize, usize, usize)) -> Case<T, V> {
        // A sign for each entry of a column of X, so that it suits all columns.
        let x = Array3::from_shape_fn((b, n, k), |(b, j, c)| {
            let sign = between(1, b, j).signum();
            elem::<V>(sign * between(2 + b as u64, j, c).abs(), between(3, j, c))
        });
        let mut a = Array3::from_elem((b, m, n), T::default());
        for b in 0..b {
            for i in 0..m {
                let mut sum = 0.0;
                for j in 0..n {
                    let (h, im) = (between(4 + b as u64, i, j), between(5, i, j));
                    let term = h.abs() * x[[b, j, 0]].widen().parts().0;
                    let sign = match sum == 0.0 {
                        true => h.signum(),
                        false => -(sum * term).signum(),
                    };
                    sum += sign * term;
                    a[[b, i, j]] = elem::<T>(sign * h.abs(), im);
                }
            }
        }
        Case {
            a,
            x,
            columns: 0,
            sums: [(); 2].map(|()| Array3::from_elem((0, 0, 0), V::Acc::ZERO)),
        }
    }

    /// With the sums of this number of columns.
    fn at(&mut self, n: usize) -> &Case<T, V> {
        if self.columns != n {
            let (b, m, _) = self.a.dim();
            let sum = |conj| {
                Array3::from_shape_fn((b, m, self.x.dim().2), |(b, i, c)| {
                    reference::dot(self.a.slice(s![b, i, ..n]), self.x.slice(s![b, ..n, c]), conj)
                })
            };
            let plain = sum(false);
            // Several right-hand sides are not conjugated here.
            let conj = T::DTYPE.is_complex() && b * self.x.dim().2 == 1;
            let conjugated = if conj { sum(true) } else { plain.clone() };
            (self.columns, self.sums) = (n, [plain, conjugated]);
        }
        self
    }

    /// Factors of 1 and 0, or others, with what y is before. Those that have to show each term of a type that is
    /// narrower than its sums leave the sum's low bits.
    fn scaling(&self, (b, m, k): (usize, usize, usize), conj: bool, scaled: bool) -> Scaling<V> {
        let narrow = size_of::<V>() < size_of::<V::Acc>();
        let old = Array3::from_shape_fn((b, m, k), |at| match (scaled, narrow) {
            (false, _) => nan(),
            (true, false) => random(6, at.1, at.2),
            (true, true) => V::narrow(self.sums[usize::from(conj)][at].neg()),
        });
        let (alpha, beta) = match (scaled, narrow) {
            (false, _) => (V::Acc::ONE, V::Acc::ZERO),
            (true, false) => (acc::<V>(-0.75, 0.25), acc::<V>(0.5, -1.0)),
            (true, true) => (V::Acc::ONE, V::Acc::ONE),
        };
        Scaling { alpha, beta, old }
    }

    /// What y is afterwards.
    fn answer(&self, of: &Scaling<V>, conj: bool) -> Array3<V> {
        Array3::from_shape_fn(of.old.dim(), |at| {
            let old = (of.beta != V::Acc::ZERO).then_some(of.old[at]);
            scale(of.alpha, self.sums[usize::from(conj)][at], of.beta, old)
        })
    }
}

// ---- what takes a length

/// What a device's tables and kernels offer.
struct Choices {
    kind: Kind,
    /// All that the tables name: the type, the layout, and what for.
    named: Vec<(Option<Dtype>, Option<Layout>, Params)>,
    kernels: Vec<KernelInfo>,
    /// Every fma is a call: the plain instruction set of x86-64.
    slow: bool,
}

/// Kernels for GPUs, as a CPU compiles them for f32: with every phase of each. Others have their defaults.
const FOR_GPUS: &str = include_str!("common/for_gpus.txt");

impl Choices {
    fn new(device: &Device, kind: Kind) -> Choices {
        let backend = device.backend();
        let mut named = Vec::new();
        for table in backend.tables() {
            let table = Table::parse(table.name, table.text).expect("a built-in table");
            for row in table.rows {
                let one = (row.dtype, row.layout, row.params);
                if !named.contains(&one) {
                    named.push(one);
                }
            }
        }
        let slow =
            kind == Kind::Host && backend.device().arch == "plain" && cfg!(target_arch = "x86_64");
        Choices { kind, named, kernels: backend.kernels(), slow }
    }

    /// Whether a problem of so many results and columns takes so long that not all take it.
    fn is_large(&self, results: usize, columns: usize) -> bool {
        results > 8 && columns > 20 && (self.slow || self.kind == Kind::Compiles)
    }

    /// The parameters that take a problem.
    fn of(&self, device: &Device, desc: &Desc) -> Vec<Params> {
        let backend = device.backend();
        let mut all = Vec::new();
        let named = self.named.iter().filter(|(dtype, layout, _)| {
            dtype.is_none_or(|of| of == desc.dtype) && layout.is_none_or(|of| of == desc.layout)
        });
        let named = named.map(|(.., params)| *params);
        match self.kind {
            Kind::Host => {
                all = backend.candidates(desc);
                // The CPU shares large products alone; small ones have as many places to be cut at.
                let shared = all.iter().find(|p| p.get("grain_kib").is_some());
                let shared = shared.map(|p| p.with("grain_kib", 1));
                // There all kernels have one loop over the columns of a row.
                if self.slow {
                    let mut seen = HashSet::new();
                    all.retain(|params| seen.insert(params.kernel()));
                }
                if self.is_large(desc.m * desc.rhs * desc.batch, desc.n) {
                    all.clear();
                }
                all.extend(shared);
                return all;
            }
            Kind::Gpu => {
                all.extend(named);
                let known =
                    |k: &&KernelInfo| self.named.iter().all(|n| n.2.kernel().as_str() != k.name);
                all.extend(self.kernels.iter().filter(known).map(|k| Params::new(k.name)));
            }
            Kind::Compiles if desc.dtype == Dtype::F32 && !desc.is_mixed() => {
                all.extend(named);
                all.extend(self.kernels.iter().map(|k| Params::new(k.name)));
                if common::size() == Size::Full {
                    all.extend(backend.candidates(desc));
                    all.extend(
                        FOR_GPUS.lines().map(|text| text.parse::<Params>().expect("well formed")),
                    );
                }
            }
            Kind::Compiles => {}
        }
        all.retain(|params| backend.fits(desc, params).is_ok());
        // Kernels for one vector would compute a column after the other.
        if desc.rhs > 1 || desc.batch > 1 && !desc.is_mixed() {
            let one = Desc { rhs: 1, batch: 1, ..*desc };
            all.retain(|params| backend.fits(&one, params).is_err());
        }
        // Each launch once.
        let mut seen = HashSet::new();
        all.retain(|params| seen.insert(backend.launch_id(desc, params)));
        // Without an optimiser a CPU takes long for many rows of many columns, and for many columns of X: two of the
        // choices in turn.
        let many = self.kind == Kind::Compiles && (desc.rhs > 1 || desc.batch > 1);
        if many || self.is_large(desc.m, desc.n) {
            let dims = [desc.n, desc.rhs, desc.batch].map(|length| length as u64);
            let turn = hash(dims[1] << 32 | dims[2], desc.m as u64, dims[0]);
            let first = turn as usize % all.len().max(1);
            all.rotate_left(first);
            all.truncate(2);
        }
        all
    }
}

/// Whether all bits are the same.
fn alike<T: Element>(got: &[T], want: &[T]) -> bool {
    got.len() == want.len() && got.iter().zip(want).all(|(g, w)| g.bits() == w.bits())
}

// ---- one vector

/// A by rows, by columns or neither in memory of the host, with NaN around it.
struct Matrix<T> {
    buffer: Buffer<T>,
    dim: (usize, usize),
    layout: Layout,
}

impl<T: Element> Matrix<T> {
    fn new(a: ArrayView2<'_, T>, layout: Layout, offset: usize) -> Matrix<T> {
        let dim @ (m, n) = a.dim();
        let step = if layout == Layout::Strided { 2 } else { 1 };
        let mut buffer = Buffer::new(offset, step * step * m * n, nan());
        let data = buffer.get_mut();
        match layout {
            Layout::Col => {
                for (column, to) in a.columns().into_iter().zip(data.chunks_exact_mut(m)) {
                    to.iter_mut().zip(column).for_each(|(to, e)| *to = *e);
                }
            }
            _ => {
                for (row, to) in a.rows().into_iter().zip(data.chunks_exact_mut(step * step * n)) {
                    to.iter_mut().step_by(step).zip(row).for_each(|(to, e)| *to = *e);
                }
            }
        }
        Matrix { buffer, dim, layout }
    }

    fn view(&self) -> ArrayView2<'_, T> {
        let ((m, n), data) = (self.dim, self.buffer.get());
        match self.layout {
            Layout::Row => ArrayView2::from_shape((m, n), data),
            Layout::Col => ArrayView2::from_shape((m, n).f(), data),
            Layout::Strided => ArrayView2::from_shape((m, n).strides((4 * n, 2)), data),
        }
        .expect("made for it")
    }

    /// In the device's memory, of the same strides.
    fn resident(&self, device: &Device) -> gemv::Result<DeviceMatrix<T>> {
        let ((m, n), data) = (self.dim, ArrayView1::from(self.buffer.get()));
        match self.layout {
            Layout::Row => Ok(device.vector(&data)?.as_matrix((m, n))),
            Layout::Col => Ok(device.vector(&data)?.as_matrix((m, n).f())),
            Layout::Strided => {
                let all = device.vector(&data)?.as_matrix((2 * m, 2 * n));
                Ok(all.step_rows(.., 2).step_columns(.., 2))
            }
        }
    }
}

/// Rows before, between and behind the results that share an array of the device.
const GAP: usize = 3;

/// Launches `list` on one array, a part of it for each, and compares the whole. `launch` gets alpha, beta and the part.
fn resident<T: Element + Times<V>, V: Element>(
    device: &Device,
    case: &Case<T, V>,
    (b, m, k): (usize, usize, usize),
    (list, place, turn): (&[Params], Place, usize),
    launch: &mut dyn FnMut(
        &Params,
        bool,
        &Scaling<V>,
        DeviceViewMut<'_, V, gemv::ndarray::Ix3>,
    ) -> gemv::Result<()>,
) -> Check {
    let conj = |at: usize| T::DTYPE.is_complex() && k == 1 && b == 1 && (turn + at) % 2 == 1;
    // Every launch leaves y as the plain product; a part of them takes factors.
    let ways = [(false, false), (false, true), (true, false), (true, true)]
        .map(|(conj, scaled)| case.scaling((b, m, k), conj, scaled));
    let answers = [0, 1, 2, 3].map(|way| case.answer(&ways[way], way >= 2));
    let way = |at: usize| 2 * usize::from(conj(at)) + usize::from((turn + at) % 4 == 3);
    let part = |at: usize| GAP + at * (m + GAP)..(at + 1) * (m + GAP);
    let rows = GAP + list.len() * (m + GAP);
    let mut before = Array3::from_shape_fn((b, rows, k), |(_, i, _)| canary::<V>(i));
    let mut want = before.clone();
    for at in 0..list.len() {
        before.slice_mut(s![.., part(at), ..]).assign(&ways[way(at)].old);
        want.slice_mut(s![.., part(at), ..]).assign(&answers[way(at)]);
    }
    let held = place.hold(&before, |_| nan());
    let mut y = device.array(&place.view(held.view())).map_err(text)?;
    for (at, params) in list.iter().enumerate() {
        let all = y.view_mut().map_err(text)?;
        let to = all.step_axis(Axis(1), part(at), 1);
        launch(params, conj(at), &ways[way(at)], to).map_err(|e| format!("{params}: {e}"))?;
    }
    let got = y.download().map_err(text)?;
    let differ = |(_, (g, w)): &(_, (&V, &V))| g.bits() != w.bits();
    let mut pairs = got.indexed_iter().zip(&want).map(|((at, g), w)| (at, (g, w)));
    match pairs.find(differ) {
        None => Ok(()),
        Some(((entry, i, c), (got, want))) => {
            let at = i.saturating_sub(GAP) / (m + GAP);
            let what = match list.get(at).filter(|_| part(at).contains(&i)) {
                Some(params) => format!("{params}, row {} of", i - part(at).start),
                None => format!("a canary, row {i} of"),
            };
            Err(format!("{what} matrix {entry}, column {c}: {got:?}, not {want:?}"))
        }
    }
}

/// One problem with a single vector: what the table chooses, on the host, and all of the choices.
fn one<T: Element>(
    device: &Device,
    choices: &Choices,
    case: &Case<T, T>,
    (m, layout): (usize, Layout),
    turn: usize,
) -> Check {
    let n = case.columns;
    let a = case.a.slice(s![0, ..m, ..n]);
    let x: Vec<T> = case.x.slice(s![0, ..n, 0]).to_vec();
    let host = Matrix::new(a, layout, turn % 16);
    // Plain, and with factors, strides and, of complex numbers, the conjugate.
    let [mut plain, mut varied] = [false, true].map(|varied| {
        let conj = varied && T::DTYPE.is_complex() && turn.is_multiple_of(2);
        let scaling = case.scaling((1, m, 1), conj, varied);
        let want = case.answer(&scaling, conj);
        let [old, want] = [&scaling.old, &want].map(|of| of.iter().copied().collect::<Vec<T>>());
        let (by, offsets) = match varied {
            true => ([1, 2, -1, -2][turn % 4], (turn % 17, turn % 5)),
            false => (1, (0, 0)),
        };
        let x = Strided::read_only(&x, by, offsets.0);
        let mut y = Strided::writable(&old, -by, offsets.1);
        let before = y.whole().to_vec();
        y.view_mut().assign(&ArrayView1::from(&want));
        let after = y.whole().to_vec();
        (conj, scaling, x, y, before, after, want)
    });
    let mut launch = |params: Option<&Params>, is_varied: bool| -> Check {
        let of = if is_varied { &mut varied } else { &mut plain };
        let (conj, Scaling { alpha, beta, .. }, x, y, before, after, want) = of;
        y.whole_mut().copy_from_slice(before);
        let (a, x, to) = (host.view(), x.view(), y.view_mut());
        let product = device.product(a, x).conj_if(*conj).with_if(params);
        let done = product.scaled(*alpha, *beta).to(to);
        let strides = x.strides()[0];
        let what = |e| match params {
            Some(params) => format!("{params}, x by {strides}: {e}"),
            None => format!("chosen, x by {strides}: {e}"),
        };
        done.map_err(|e| what(text(e)))?;
        match alike(y.whole(), after) {
            true => Ok(()),
            false => Err(what(y.verify(want).err().unwrap_or_else(|| "a canary".into()))),
        }
    };
    launch(None, false)?;
    if !choices.is_large(m, n) {
        launch(None, true)?;
    }
    if choices.kind == Kind::Host {
        let list = choices.of(device, &MatrixRef::from(host.view()).desc());
        return list.iter().enumerate().try_for_each(|(at, params)| {
            launch(Some(params), false)?;
            // Each of them sees some lengths so, and each length some of them.
            if (turn + at).is_multiple_of(3) { launch(Some(params), true) } else { Ok(()) }
        });
    }
    let a = host.resident(device).map_err(text)?;
    let x = Strided::read_only(&x, 1, turn % 5);
    let (_, x) = x.sub_view(device).map_err(text)?;
    let list = choices.of(device, &a.desc());
    resident(device, case, (1, m, 1), (&list, ROW, turn), &mut |params, conj, of, y| {
        let y = y.index_axis(Axis(0), 0).index_axis(Axis(1), 0);
        device.product(&a, &x).conj_if(conj).with(params).scaled(of.alpha, of.beta).to(y)
    })
}

/// Every number of columns, of few rows and of some.
fn columns<T: Element>(device: &Device, choices: &Choices, lengths: Lengths) -> Check {
    let rows = [4, 40];
    let mut case = Case::<T, T>::new((1, 40, MOST, 1));
    let mut turn = 0;
    for n in lengths.up_to(MOST) {
        let case = case.at(n);
        for (layout, m) in Layout::ALL.into_iter().flat_map(|layout| rows.map(|m| (layout, m))) {
            turn += 1;
            one(device, choices, case, (m, layout), turn)
                .map_err(|e| format!("{layout} {m}x{n}: {e}"))?;
        }
    }
    Ok(())
}

/// Every number of rows, of few columns, of some, and of more than a segment.
fn rows<T: Element>(device: &Device, choices: &Choices, lengths: Lengths) -> Check {
    // Kernels for few columns have sizes of their own, of which a GPU has more.
    let (most, columns, few): (usize, &[usize], &[usize]) = match choices.kind {
        Kind::Host if choices.slow => (300, &[5], &[]),
        Kind::Host => (300, &[5, 70], &[]),
        Kind::Compiles => (300, &[4], &[13, 70]),
        Kind::Gpu => (MOST, &[4, 61, 260], &[1, 2, 7, 13]),
    };
    let mut case = Case::<T, T>::new((1, most, 260, 1));
    let mut turn = 0;
    let thin = if lengths == Lengths::All { Lengths::Some } else { lengths };
    let columns = columns.iter().map(|&n| (n, lengths));
    for (n, lengths) in columns.chain(few.iter().map(|&n| (n, thin))) {
        let case = case.at(n);
        for m in lengths.up_to(most) {
            for layout in Layout::ALL {
                turn += 1;
                one(device, choices, case, (m, layout), turn)
                    .map_err(|e| format!("{layout} {m}x{n}: {e}"))?;
            }
        }
    }
    Ok(())
}

// ---- several right-hand sides, batches, and two types

/// One problem with several right-hand sides or matrices, or of two types.
fn many<T: Element + Times<V>, V: Element>(
    device: &Device,
    choices: &Choices,
    case: &Case<T, V>,
    ((b, m, k), layout): ((usize, usize, usize), Layout),
    turn: usize,
) -> Check {
    let n = case.columns;
    let a_place = match (layout, choices.kind) {
        (Layout::Row, _) => ROW,
        (Layout::Col, _) => COL,
        (Layout::Strided, Kind::Host) => STEPS,
        // What has gaps is packed when it is uploaded.
        (Layout::Strided, _) => BATCH_LAST,
    };
    let a = a_place.hold(&case.a.slice(s![..b, ..m, ..n]).to_owned(), |_| nan());
    let a = a_place.view(a.view());
    let x = case.x.slice(s![..b, ..n, ..k]).to_owned();
    let x_place = [ROW, COL, PART][turn % 3];
    let y_place = [PART_COL, PART, ROW, COL][turn % 4];
    let x_held = x_place.hold(&x, |_| nan());
    // Plain, and with factors.
    let ways = [false, true].map(|scaled| {
        let scaling = case.scaling((b, m, k), false, scaled);
        let after = y_place.hold(&case.answer(&scaling, false), canary);
        (y_place.hold(&scaling.old, canary), after, scaling)
    });
    let mut y = ways[0].0.clone();
    let mut launch = |params: Option<&Params>, scaled: bool| -> Check {
        let (before, after, Scaling { alpha, beta, .. }) = &ways[usize::from(scaled)];
        let flat = |of: &Array3<V>| of.as_slice().expect("a parent").to_vec();
        y.as_slice_mut().expect("a parent").copy_from_slice(before.as_slice().expect("a parent"));
        let (x, to) = (x_place.view(x_held.view()), y_place.view(y.view_mut()));
        let done = device.product(a, x).with_if(params).scaled(*alpha, *beta).to(to);
        let what = |e| match params {
            Some(params) => format!("{params}, X {x_place:?}, Y {y_place:?}: {e}"),
            None => format!("chosen, X {x_place:?}, Y {y_place:?}: {e}"),
        };
        done.map_err(|e| what(text(e)))?;
        match alike(y.as_slice().expect("a parent"), after.as_slice().expect("a parent")) {
            true => Ok(()),
            false => same(&flat(&y), &flat(after)).map_err(what),
        }
    };
    launch(None, turn % 2 == 1)?;
    let desc = {
        let zero = Number::new(V::Acc::ZERO);
        let mut y = Array3::from_elem((b, m, k), V::default());
        let (a, x, y) = (a.into(), x.view().into(), y.view_mut().into());
        Job { alpha: zero, a, conj: false, x, beta: zero, y }.desc()
    };
    let list = choices.of(device, &desc);
    if choices.kind == Kind::Host {
        let mut list = list.iter().enumerate();
        return list.try_for_each(|(at, params)| launch(Some(params), (turn + at) % 3 == 2));
    }
    let there = device.array(&a).map_err(text)?;
    let x_there = device.array(&x_place.view(x_held.view())).map_err(text)?;
    let y_place = [ROW, COL][turn / 2 % 2];
    resident(device, case, (b, m, k), (&list, y_place, turn), &mut |params, _, of, y| {
        device.product(&there, &x_there).with(params).scaled(of.alpha, of.beta).to(y)
    })
}

/// The layouts of a problem. Neither by rows nor by columns are, in memory of a device, two matrices of which each has
/// every second entry.
fn layouts(kind: Kind, (b, m, k): (usize, usize, usize)) -> [((usize, usize, usize), Layout); 3] {
    let least = if kind == Kind::Host { 1 } else { 2 };
    [((b, m, k), Layout::Row), ((b, m, k), Layout::Col), ((b.max(least), m, k), Layout::Strided)]
}

/// Sweeps: for each number of columns its problems.
fn sweep<T: Element + Times<V>, V: Element>(
    (device, choices): (&Device, &Choices),
    most: (usize, usize, usize, usize),
    problems: impl IntoIterator<Item = (usize, Vec<(usize, usize, usize)>)>,
) -> Check {
    let mut case = Case::<T, V>::new(most);
    let mut turn = 0;
    for (n, problems) in problems {
        let case = case.at(n);
        for (dim @ (b, m, k), layout) in
            problems.into_iter().flat_map(|dim| layouts(choices.kind, dim))
        {
            turn += 1;
            many(device, choices, case, (dim, layout), turn)
                .map_err(|e| format!("{layout} {b} of {m}x{n}, {k} columns: {e}"))?;
        }
    }
    Ok(())
}

/// Every number of columns of A, of rows, of columns of X, and of matrices.
fn all_many<T: Element + Times<V>, V: Element>(
    device: &Device,
    choices: &Choices,
    what: &str,
    lengths: Lengths,
) -> Check {
    let of = (device, choices);
    let gpu = choices.kind == Kind::Gpu;
    match what {
        "columns" => {
            let k = if choices.kind == Kind::Compiles { 2 } else { 5 };
            let problems = |n| (n, vec![(1, 3, k), (2, 3, 1)]);
            sweep::<T, V>(of, (2, 3, MOST, 5), lengths.up_to(MOST).into_iter().map(problems))
        }
        // Of two types, as of one.
        "columns-of-one" => {
            let problems = |n| (n, vec![(1, 4, 1), (1, 40, 1)]);
            let two = if choices.kind == Kind::Host { 1 } else { 2 };
            sweep::<T, V>(of, (two, 40, MOST, 1), lengths.up_to(MOST).into_iter().map(problems))
        }
        "rows" => {
            let thin = if lengths == Lengths::All { Lengths::Some } else { lengths };
            let (most, columns): (_, &[(usize, usize, Lengths)]) = match gpu {
                true => {
                    let few = [(3, 3, thin), (16, 9, thin)];
                    let some = [(8, 9, lengths), (61, 3, lengths), (260, 9, lengths)];
                    (MOST, &[few[0], few[1], some[0], some[1], some[2]])
                }
                false if choices.slow => (300, &[(5, 3, lengths)]),
                false => (300, &[(5, 3, lengths), (70, 3, thin)]),
            };
            let problems = |&(n, k, lengths): &(usize, usize, Lengths)| {
                (n, lengths.up_to(most).into_iter().map(|m| (1, m, k)).collect())
            };
            sweep::<T, V>(of, (2, most, 260, 9), columns.iter().map(problems))
        }
        "right-hand-sides" => {
            let (rows, columns): (_, &[usize]) = match choices.kind {
                Kind::Host if choices.slow => (5, &[5]),
                Kind::Host => (19, &[5, 70]),
                Kind::Compiles => (3, &[5]),
                Kind::Gpu => (19, &[3, 8, 16, 61, 260]),
            };
            let counts = || lengths.up_to(MOST_MANY).into_iter().map(|k| (1, rows, k)).collect();
            let problems = |&n: &usize| (n, counts());
            sweep::<T, V>(of, (2, rows, 260, MOST_MANY), columns.iter().map(problems))
        }
        "matrices" => {
            let columns: &[usize] = match choices.kind {
                Kind::Host if !choices.slow => &[5, 20],
                Kind::Host | Kind::Compiles => &[5],
                Kind::Gpu => &[3, 8, 16, 61],
            };
            let problems = |&n: &usize| {
                let counts = lengths.up_to(MOST_MANY).into_iter();
                let rows = if choices.kind == Kind::Compiles { 2 } else { 5 };
                (n, counts.flat_map(|b| [(b, rows, 1), (b, rows, 3)]).collect())
            };
            sweep::<T, V>(of, (MOST_MANY, 5, 61, 3), columns.iter().map(problems))
        }
        what => unreachable!("{what}"),
    }
}

// ---- steps and sums

type Place1<'a, T> = DeviceViewMut<'a, T, gemv::ndarray::Ix1>;

/// The operands of steps and sums on a device.
struct Operands<T: Element> {
    x: DeviceVector<T>,
    z: DeviceVector<T>,
    numbers: [DeviceScalar<T>; 2],
}

/// Every step, by its number; the number of them is [`STEPS_OF_ENTRIES`].
fn step<T: Element>(of: &Operands<T>, number: usize, mut y: Place1<'_, T>) -> gemv::Result<()> {
    let Operands { x, z, numbers: [s, t] } = of;
    let alpha = || Factor::number(acc::<T>(-0.75, 0.25));
    match number {
        0 => y.fill(alpha()),
        1 => y.assign(x),
        2 => y.scal(alpha()),
        3 => y.axpy(alpha(), x),
        4 => y.axpy(-(s / t), x),
        5 => y.xpay(s, x),
        6 => y.assign_product(x, z),
        7 => y.add_product(x, z),
        8 => y.assign_quotient(x, z),
        9 => y.assign_sqrt(z),
        10 => y.scal(s),
        _ => unreachable!("a step"),
    }
}
const STEPS_OF_ENTRIES: usize = 11;

/// Vectors with NaN around them, as they lie on a device for each length.
struct Vectors<T> {
    x: Vec<T>,
    z: Vec<T>,
    y: Vec<T>,
}

impl<T: Element> Vectors<T> {
    fn new() -> Vectors<T> {
        let of = |seed| (0..MOST).map(|i| elem(between(seed, i, 0), between(seed, i, 1))).collect();
        // Roots are of positive numbers.
        let z = (0..MOST).map(|i| elem(between(8, i, 0).abs(), between(8, i, 1))).collect();
        Vectors { x: of(7), z, y: of(9) }
    }

    /// The first of them on a device, every `step`-th entry of memory.
    fn there(&self, device: &Device, n: usize, step: isize) -> gemv::Result<Operands<T>> {
        let of = |v: &[T]| Ok(Strided::read_only(&v[..n], step, 0).sub_view(device)?.1);
        let number = |re, im| device.scalar(elem::<T>(re, im));
        let numbers = [number(1.25, -0.5)?, number(-2.5, 0.75)?];
        Ok(Operands { x: of(&self.x)?, z: of(&self.z)?, numbers })
    }
}

/// Every step of vectors of every length, on a part of an array.
fn steps<T: Element>(device: &Device, lengths: Lengths) -> Check {
    let vectors = Vectors::<T>::new();
    let reference = gemv::device("reference").map_err(text)?;
    let of = vectors.there(&reference, MOST, 1).map_err(text)?;
    // An entry's result depends on that entry alone.
    let mut want = Vec::new();
    for number in 0..STEPS_OF_ENTRIES {
        let mut y = reference.vector(&vectors.y).map_err(text)?;
        step(&of, number, y.view_mut().map_err(text)?).map_err(text)?;
        want.push(y.download().map_err(text)?);
    }
    for n in lengths.up_to(MOST) {
        for by in [1, -2] {
            if by != 1 && lengths == Lengths::Some {
                continue;
            }
            let of = vectors.there(device, n, by).map_err(text)?;
            // y of each step has a part of one array, forwards or backwards.
            let (apart, back) = (by.unsigned_abs(), n % 3 == 0);
            let part = |at: usize| {
                let first = GAP + at * (n * apart + GAP);
                first..first + (n - 1) * apart + 1
            };
            let place =
                |at: usize, i: usize| part(at).start + apart * if back { n - 1 - i } else { i };
            let len = part(STEPS_OF_ENTRIES).start;
            let mut before: Array1<T> = (0..len).map(canary).collect();
            let mut after = before.clone();
            for at in 0..STEPS_OF_ENTRIES {
                for i in 0..n {
                    before[place(at, i)] = vectors.y[i];
                    after[place(at, i)] = want[at][i];
                }
            }
            let mut y = device.vector(&before).map_err(text)?;
            for at in 0..STEPS_OF_ENTRIES {
                let sign = if back { -1 } else { 1 };
                let to = y.step_mut(part(at), sign * apart as isize).map_err(text)?;
                step(&of, at, to).map_err(|e| format!("step {at} of {n}: {e}"))?;
            }
            let got = y.download().map_err(text)?;
            if let Some(at) = (0..len).find(|&at| got[at].bits() != after[at].bits()) {
                let number = at.saturating_sub(GAP) / (n * apart + GAP);
                let (got, want) = (got[at], after[at]);
                return Err(format!(
                    "step {number} of {n} entries, {by} apart: at {at} {got:?}, not {want:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Dot products and norms of vectors of every length.
fn sums<T: Element>(device: &Device, lengths: Lengths) -> Check {
    let vectors = Vectors::<T>::new();
    let reference = gemv::device("reference").map_err(text)?;
    let run = |device: &Device, n, by| -> gemv::Result<Array1<T>> {
        let Operands { x, z, .. } = vectors.there(device, n, by)?;
        let mut y = device.vector(&(0..9).map(canary).collect::<Vec<T>>())?;
        let entry = |y: &mut DeviceVector<T>, at, what: usize| {
            let to = y.view_mut()?.index_axis(Axis(0), at);
            match what {
                0 => x.dot_into(&z, to),
                1 => x.dotc_into(&z, to),
                _ => x.nrm2_into(to),
            }
        };
        (0..3).try_for_each(|what| entry(&mut y, 1 + 3 * what, what))?;
        y.download()
    };
    for n in lengths.up_to(MOST) {
        let want = run(&reference, n, 1).map_err(text)?;
        for by in [1, -2] {
            let got = run(device, n, by).map_err(text)?;
            let [got, want] = [&got, &want].map(|of| of.as_slice().expect("a new array"));
            same(got, want).map_err(|e| format!("sums of {n} terms, {by} apart: {e}"))?;
        }
    }
    Ok(())
}

// ---- trials

/// The devices: of the CPU one for each instruction set.
fn devices(targets: Vec<common::Target>) -> Vec<(String, Device, Kind)> {
    let mut devices = Vec::new();
    for target in targets {
        let (id, compiles) = (target.id.clone(), target.compiles());
        let Ok(device) = target.device else { continue };
        match device.info().host {
            // It computes what is expected.
            _ if id == "reference" => {}
            #[cfg(feature = "cpu")]
            _ if id == "cpu" => {
                for isa in gemv::cpu::isas() {
                    let device =
                        gemv::cpu::open(Some(isa)).expect("an instruction set of its list");
                    devices.push((format!("cpu-{isa}"), Device::new(device), Kind::Host));
                }
            }
            true if compiles => devices.push((id, device, Kind::Compiles)),
            true => devices.push((id, device, Kind::Host)),
            false => devices.push((id, device, Kind::Gpu)),
        }
    }
    devices
}

const MANY: [&str; 4] = ["columns", "rows", "right-hand-sides", "matrices"];

fn trials_of(id: &str, device: &Device, kind: Kind, size: Size, trials: &mut Vec<Trial>) {
    let choices = Arc::new(Choices::new(device, kind));
    let mut add = |types: String,
                   what: &str,
                   ignored: bool,
                   run: Box<dyn FnOnce(&Device, &Choices) -> Check + Send>| {
        let (device, choices) = (device.clone(), choices.clone());
        let name = format!("{id}/{types}/{what}");
        trials.push(trial(name, move || run(&device, &choices)).with_ignored_flag(ignored));
    };
    for dtype in Dtype::ALL {
        let ignored = supported(device, dtype).is_err();
        let every = size == Size::Full || kind != Kind::Compiles || dtype == Dtype::F32;
        let all = if size != Size::Tiny && every { Lengths::All } else { Lengths::Some };
        let name = dtype.to_string();
        with_type!(dtype, T => {
            add(name.clone(), "columns", ignored, Box::new(move |d, c| columns::<T>(d, c, all)));
            add(name.clone(), "sums", ignored, Box::new(move |d, _| sums::<T>(d, all)));
            // Programs of one text: what the other types choose, at some lengths.
            if kind == Kind::Compiles && !every {
                continue;
            }
            add(name.clone(), "rows", ignored, Box::new(move |d, c| rows::<T>(d, c, all)));
            add(name.clone(), "steps", ignored, Box::new(move |d, _| steps::<T>(d, all)));
            let all = if kind == Kind::Compiles && size != Size::Full { Lengths::Some } else { all };
            for what in MANY {
                let run = move |d: &Device, c: &Choices| all_many::<T, T>(d, c, what, all);
                add(name.clone(), &format!("many-{what}"), ignored, Box::new(run));
            }
        });
    }
    for pair in Dtype::MIXED {
        let ignored = supported_mixed(device, pair).is_err();
        let every = size == Size::Full || size != Size::Tiny && kind != Kind::Compiles;
        let all = if every { Lengths::All } else { Lengths::Some };
        gemv::unstable::for_types!(pair, T, V => {
            for what in MANY.into_iter().chain(["columns-of-one"]) {
                if kind == Kind::Compiles && !every && what != "columns-of-one" {
                    continue;
                }
                let run = move |d: &Device, c: &Choices| all_many::<T, V>(d, c, what, all);
                let name = format!("{}*{}", pair.0, pair.1);
                add(name, &format!("many-{what}"), ignored, Box::new(run));
            }
        });
    }
}

/// Where a device leaves out the last of a length: columns, of matrices by rows or by columns, rows, columns of X,
/// matrices, or entries of a step.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Columns(usize, Layout),
    Rows(usize),
    RightHandSides(usize),
    Matrices(usize),
    Entries(usize),
}

impl Fault {
    /// One column.
    fn job(self, job: &mut Checked<Job<'_>>) {
        let layout = job.desc().layout;
        for_types!((job.a.dtype(), job.x.dtype()), T, V => {
            let (alpha, beta, conj) = (job.alpha.get(), job.beta.get(), job.conj);
            let a = job.a.matrix_with::<T>(elements);
            let x = job.x.vector_with::<V>(elements);
            let mut y = job.y();
            let mut y = y.vector_mut_with::<V>(elements_mut);
            let (mut m, mut n) = a.dim();
            match self {
                Fault::Columns(length, of) if n == length && layout == of => n -= 1,
                Fault::Rows(length) if m == length => m -= 1,
                _ => {}
            }
            let (a, x, y) = (a.slice(s![..m, ..n]), x.slice(s![..n]), y.slice_mut(s![..m]));
            gemv_testkit::gemv(alpha, a, conj, x, beta, y);
        });
    }

    fn jobs(self, job: &mut Checked<Job<'_>>) {
        let Desc { batch, rhs, .. } = job.desc();
        for (b, c) in (0..batch).flat_map(|b| (0..rhs).map(move |c| (b, c))) {
            match self {
                Fault::RightHandSides(length) if rhs == length && c + 1 == rhs => {}
                Fault::Matrices(length) if batch == length && b + 1 == batch => {}
                _ => self.job(&mut job.column(b, c)),
            }
        }
    }

    fn step(self, job: AnyVectorJob<'_>) {
        for_any!(AnyVectorJob, job, job => {
            let (mut job, memory) = job.into_inner().split();
            if matches!(self, Fault::Entries(length) if job.y.dim[2] == length) {
                job.y.dim[2] -= 1;
            }
            reference::vector(&job, elements, elements_mut(memory));
        });
    }

    fn device(self) -> Device {
        let host = Host {
            compute: Box::new(move |job, _| {
                self.jobs(job);
                Ok(())
            }),
            compute_step: Box::new(move |job| {
                self.step(job);
                Ok(())
            }),
            ..Host::new("faulty")
        };
        host.device()
    }

    /// What the sweeps say that have to notice it, of the lengths about it.
    fn sweeps(self, device: &Device, kind: Kind) -> Vec<Check> {
        let choices = Choices::new(device, kind);
        let (d, c) = (device, &choices);
        match self {
            Fault::Columns(length, layout) => {
                let l = Lengths::About(length);
                let one = [columns::<bf16>(d, c, l), all_many::<f32, f32>(d, c, "columns", l)];
                let of_two = all_many::<bf16, f32>(d, c, "columns-of-one", l);
                // A vector is a row.
                let sum = (layout == Layout::Row).then(|| sums::<f32>(d, l));
                one.into_iter().chain([of_two]).chain(sum).collect()
            }
            Fault::Rows(length) => {
                let l = Lengths::About(length);
                vec![rows::<f32>(d, c, l), all_many::<f32, f32>(d, c, "rows", l)]
            }
            Fault::RightHandSides(length) => {
                let l = Lengths::About(length);
                vec![all_many::<f32, f32>(d, c, "right-hand-sides", l)]
            }
            Fault::Matrices(length) => {
                vec![all_many::<f32, f32>(d, c, "matrices", Lengths::About(length))]
            }
            Fault::Entries(length) => vec![steps::<f32>(d, Lengths::About(length))],
        }
    }
}

/// The sweeps must notice a fault of one length, else nothing above means anything.
fn checker(trials: &mut Vec<Trial>) {
    let faults = [
        Fault::Columns(419, Layout::Row),
        Fault::Columns(593, Layout::Col),
        Fault::Columns(2, Layout::Strided),
        Fault::Rows(283),
        Fault::RightHandSides(53),
        Fault::Matrices(67),
        Fault::Entries(541),
    ];
    for fault in faults {
        trials.push(trial(format!("checker/{fault:?}"), move || {
            for kind in [Kind::Host, Kind::Compiles, Kind::Gpu] {
                let right = fault.sweeps(&Host::new("right").device(), kind);
                for (at, (right, got)) in
                    right.into_iter().zip(fault.sweeps(&fault.device(), kind)).enumerate()
                {
                    right.map_err(|e| format!("as {kind:?}, {at}, without a fault: {e}"))?;
                    if got.is_ok() {
                        return Err(format!("as {kind:?}, {at}: not noticed"));
                    }
                }
            }
            Ok(())
        }));
    }
    for dtype in Dtype::ALL {
        let name = format!("checker/{dtype}/every-term-counts");
        trials.push(trial(name, move || with_type!(dtype, T => every_term_counts::<T>())));
    }
}

/// Whatever column is left out, or taken in place of the last one, every result has other bits.
fn every_term_counts<T: Element>() -> Check {
    let case = Case::<T, T>::new((1, 2, MOST, 1));
    let x = case.x.slice(s![0, .., 0]);
    for (i, row) in case.a.index_axis(Axis(0), 0).outer_iter().enumerate() {
        for n in Lengths::Some.up_to(MOST).into_iter().step_by(2).chain([MOST]) {
            let sum = |left_out: usize| {
                let term = |j: usize, lane: T::Acc| match j == left_out {
                    true => lane,
                    false => lane.fma(row[j].widen(), x[j].widen()),
                };
                T::narrow(reference::ordered_sum(n, &term)).bits()
            };
            let whole = sum(n);
            if let Some(j) = (0..n).find(|&j| sum(j) == whole) {
                return Err(format!("row {i} of {n} columns does not show column {j}"));
            }
        }
    }
    Ok(())
}

fn main() {
    let size = common::size();
    let targets = common::targets();
    let mut trials = common::absences(&targets);
    checker(&mut trials);
    for (id, device, kind) in devices(targets) {
        trials_of(&id, &device, kind, size, &mut trials);
    }
    common::main(trials);
}
