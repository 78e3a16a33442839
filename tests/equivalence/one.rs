//! One vector: every layout and stride of the operands, in memory of the host and of the device.

use std::error::Error;

use common::operand::{Held, Strided, VARIANTS, Variant};
use gemv::ndarray::{Array1, Array2, Array3, ArrayView1, Axis, ShapeBuilder};
use gemv::prelude::*;
use gemv::unstable::{Desc, KernelInfo, Layout, Params};
use gemv::{Device, Dtype, Element, MatrixRef, VectorMut, VectorRef};
use libtest_mimic::Trial;

use super::common::{self, Check, Size, acc, text, trial};
use super::{Case, Kind, SCALINGS, Same, Scaling};

/// Where the operands lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Host,
    /// The matrix uploaded as it is, vectors on the host.
    Matrix,
    /// All three resident: the matrix and x views of larger blocks, y a block of its own.
    All,
    /// As `All`, and y a strided view of a block that must not change.
    SharedY,
}

/// One launch, compared.
#[derive(Clone, Copy, Debug)]
struct Run {
    variant: Variant,
    /// `None`: what the table chooses, through the public path.
    params: Option<Params>,
    place: Where,
    scaling: usize,
    conj: bool,
    /// Strides of x and y.
    strides: (isize, isize),
    /// Elements between a 64-byte boundary and x and y.
    offsets: (usize, usize),
}

/// `Ok(false)`: these parameters are not for this variant, and were not launched.
fn check<T: Element>(
    device: &Device,
    m: usize,
    n: usize,
    run: Run,
    held: &mut Option<Held<T>>,
) -> Result<bool, String> {
    let same = Same { a: run.variant.repeat, x: run.strides.0 == 0, batch: (false, false) };
    let case = Case::<T, T>::get((1, m, n, 1), same);
    // The matrix of the launch before it, if that is the same: no launch writes to it.
    if !held.as_ref().is_some_and(|h| h.is(&run.variant)) {
        *held = Some(run.variant.hold(&case.a.index_axis(Axis(0), 0).to_owned()));
    }
    let held = held.as_ref().expect("made above");
    launch(device, &case, held, run).map_err(|e| {
        let Run { variant, place, scaling, conj, strides, offsets, .. } = run;
        let Scaling { alpha, beta, .. } = SCALINGS[scaling];
        format!(
            "{} +{}, {place:?}, alpha {alpha:?}, beta {beta:?}, conj {conj}, strides of x and y \
             {strides:?}, offsets {offsets:?}: {e}",
            variant.name, variant.offset
        )
    })
}

fn launch<T: Element>(
    device: &Device,
    case: &Case<T, T>,
    held: &Held<T>,
    run: Run,
) -> Result<bool, Box<dyn Error>> {
    let Scaling { alpha, beta, .. } = SCALINGS[run.scaling];
    let (alpha, beta) = (acc::<T>(alpha.0, alpha.1), acc::<T>(beta.0, beta.1));
    let (old, want) = case.answer(run.scaling, run.conj);
    let [old, want] = [old, want].map(|of| of.as_slice().expect("made contiguous"));
    let x = case.x.as_slice().expect("made contiguous");
    let x = Strided::read_only(x, run.strides.0, run.offsets.0);
    let mut y = Strided::writable(old, run.strides.1, run.offsets.1);

    let there = match run.place {
        Where::Host => None,
        Where::Matrix => Some(held.upload(device)?),
        Where::All | Where::SharedY => Some(held.sub_view(device)?),
    };
    let a = there.as_ref().map_or_else(|| MatrixRef::Host(held.view()), MatrixRef::Device);
    let (x_there, parent, mut y_there) = match run.place {
        Where::Host | Where::Matrix => (None, None, None),
        Where::All => {
            (Some(x.sub_view(device)?), None, Some(device.vector(&ArrayView1::from(old))?))
        }
        Where::SharedY => {
            let (parent, y) = y.sub_view(device)?;
            (Some(x.sub_view(device)?), Some(parent), Some(y))
        }
    };
    let x = match &x_there {
        None => VectorRef::Host(x.view()),
        Some((_, x)) => VectorRef::Device(x),
    };
    let to = match &mut y_there {
        None => VectorMut::Host(y.view_mut()),
        Some(y) => VectorMut::Device(y),
    };
    match (run.params, run.conj) {
        (Some(params), _) if device.backend().fits(&a.desc(), &params).is_err() => {
            return Ok(false);
        }
        (Some(params), conj) => {
            device.product(a, x).conj_if(conj).with(&params).scaled(alpha, beta).to(to)?;
        }
        (_, true) => device.product(a, x).conj().scaled(alpha, beta).to(to)?,
        (_, false) => device.gemv(alpha, a, x, beta, to)?,
    }
    let Some(result) = y_there else { return Ok(y.verify(want).map(|()| true)?) };
    common::same(result.download()?.as_slice().expect("a new array"), want)?;
    if let Some(parent) = parent {
        let untouched = y.untouched(parent.download()?.as_slice().expect("a new array"));
        untouched.map_err(|e| format!("the block that y was a view of: {e}"))?;
    }
    Ok(true)
}

/// What one trial covers for its type, layout class and shape.
#[allow(clippy::large_enum_variant)] // one a trial
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// The variants, placements and scalings; by these parameters those variants that they fit.
    Variants(Option<Params>),
    /// Offsets 0 to 31 of all operands.
    Offsets,
    /// Every stride of x with every stride of y.
    Strides,
}

const X_STRIDES: [isize; 7] = [1, 2, -1, 3, 0, -2, -3];
const Y_STRIDES: [isize; 6] = [1, -1, 2, -3, 3, -2];

/// The launches of one trial.
fn runs<T: Element>(m: usize, n: usize, layout: Layout, what: What, size: Size) -> Vec<Run> {
    let mut variants: Vec<Variant> =
        VARIANTS.into_iter().filter(|v| v.layout::<T>(m, n) == layout).collect();
    let turn = common::hash(m as u64, n as u64, T::DTYPE as u64 * 3 + layout as u64) as usize;
    let plain = Run {
        variant: VARIANTS[0],
        params: None,
        place: Where::Host,
        scaling: 0,
        conj: false,
        strides: (1, 1),
        offsets: (0, 0),
    };
    // Large problems take turns: each is held by a few of the variants.
    let most = match (size, m * n) {
        (Size::Full, _) => 64,
        (Size::Tiny, _) => 2,
        (_, ..=5_000) => 64,
        (_, ..=40_000) => 6,
        _ => 3,
    };
    if variants.len() > most {
        // The plainest comes first in the list and stays.
        let by = turn % (variants.len() - 1);
        variants[1..].rotate_left(by);
        variants.truncate(most);
    }
    let narrow = size_of::<T>() < size_of::<T::Acc>();
    let mut runs = Vec::new();
    match what {
        What::Variants(params) => {
            for (k, &variant) in variants.iter().enumerate() {
                let at = turn + k;
                let run = Run { variant, params, ..plain };
                let varied = Run {
                    scaling: 1 + at % (SCALINGS.len() - 1),
                    conj: T::DTYPE.is_complex() && at.is_multiple_of(2),
                    strides: (X_STRIDES[at % 7], Y_STRIDES[at % 6]),
                    offsets: (at % 17, at % 5),
                    ..run
                };
                runs.push(run);
                runs.push(varied);
                if narrow {
                    let scaling = if at.is_multiple_of(2) { 1 } else { 4 };
                    runs.push(Run { scaling, ..run });
                }
                if params.is_none() {
                    let place = [Where::Matrix, Where::All, Where::SharedY];
                    runs.push(Run { place: place[k % 3], ..varied });
                    if m * n <= 5_000 && size != Size::Tiny {
                        runs.push(Run { place: place[(k + 1) % 3], ..run });
                        runs.push(Run { place: place[(k + 2) % 3], ..varied });
                    }
                } else if k == turn % variants.len() {
                    runs.push(Run { place: Where::Matrix, conj: false, ..varied });
                    runs.push(Run { place: Where::All, conj: false, ..varied });
                }
            }
        }
        What::Offsets => {
            for offset in 0..32 {
                let variant = variants[offset % variants.len().min(4)];
                let others = (31 - offset, offset * 5 % 32);
                let run = Run { variant: variant.at(offset), ..plain };
                runs.push(Run { offsets: others, scaling: offset % SCALINGS.len(), ..run });
                runs.push(Run { variant: variants[0].at(offset), ..run });
            }
        }
        What::Strides => {
            for (k, x) in X_STRIDES.into_iter().enumerate() {
                for (l, y) in Y_STRIDES.into_iter().enumerate() {
                    let scaling = (k + l) % SCALINGS.len();
                    let variant = variants[(k * 6 + l) % variants.len()];
                    runs.push(Run { strides: (x, y), scaling, variant, ..plain });
                }
            }
        }
    }
    runs
}

/// Runs all launches of a trial and reports every failure (the first few in full).
pub fn body<T: Element>(
    device: &Device,
    (m, n): (usize, usize),
    layout: Layout,
    what: What,
    size: Size,
) -> Check {
    let all = runs::<T>(m, n, layout, what, size);
    let (mut failures, mut launched) = (Vec::new(), 0);
    let mut held = None;
    for run in &all {
        match check::<T>(device, m, n, *run, &mut held) {
            Ok(true) => launched += 1,
            Ok(false) => {}
            Err(e) => failures.push(e),
        }
    }
    if !failures.is_empty() {
        let shown: Vec<_> = failures.iter().take(8).cloned().collect();
        return Err(format!("{} of {}:\n{}", failures.len(), all.len(), shown.join("\n")));
    }
    if launched == 0 {
        return Err("no launch was made with these parameters".into());
    }
    Ok(())
}

/// The parameters worth a trial of their own for a type, shape and layout class.
fn candidates<T: Element>(
    device: &Device,
    (m, n): (usize, usize),
    layout: Layout,
    size: Size,
) -> Vec<Params> {
    let mut list: Vec<Params> = Vec::new();
    for run in runs::<T>(m, n, layout, What::Variants(None), size) {
        let desc = run.variant.desc::<T>(m, n);
        // And what is meant for many more rows, as far as it fits.
        let tall = Desc { m: desc.m.max(1 << 18), ..desc };
        let fits = |params: &Params| device.backend().fits(&desc, params).is_ok();
        let more = device.backend().candidates(&tall).into_iter().filter(fits);
        let own = device.backend().candidates(&desc);
        // The CPU shares large products alone; small ones have as many places to be cut at.
        let shared = own.iter().filter(|p| p.get("grain_kib").is_some()).take(1);
        let shared: Vec<Params> = shared.map(|p| p.with("grain_kib", 1)).collect();
        for params in own.into_iter().chain(shared).chain(more) {
            // Kernels of another order are tested against an error bound by their own backend.
            if !list.contains(&params) && !params.kernel().as_str().starts_with("classic-") {
                list.push(params);
            }
        }
    }
    list
}

/// Row or column counts at which loops, segments and recursions begin and end.
const EDGES: [usize; 17] =
    [1, 3, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 65535, 65536, 65537];

/// Where programs are compiled, what takes parameters that the table does not choose.
const WITH_PARAMETERS: [(usize, usize); 7] =
    [(33, 1025), (333, 310), (257, 5), (300, 20), (300, 37), (300, 131), (33, 65_537)];

/// More sets of 16, 32 and 64 rows than a GPU has units: with one block for each, blocks take turns, of the smaller sets three.
const TURNS: (usize, usize) = (8500, 260);

fn shapes(size: Size, kind: Kind) -> Vec<(usize, usize)> {
    let mut shapes = vec![(1, 1), (3, 65)];
    if size == Size::Tiny {
        shapes.extend([(2, 300), (70, 5), (1, 2100)]);
        return shapes;
    }
    // Empty ones; more than 65,536 columns have a third level of segments, and a short fourth
    // would need 16,777,217.
    shapes.extend([(0, 5), (5, 0), (0, 0), (2, 131_331)]);
    if kind != Kind::Host && size == Size::Normal {
        shapes.extend([(5, 257), (257, 5), (33, 1025), (5, 4099)]);
        // Where warps, blocks and grids end. The reference takes one row after the other, by one program: all that differs
        // for it is the number of segments, and each is above.
        if kind == Kind::Compiles {
            shapes.extend([
                (300, 20),
                (300, 37),
                (300, 131),
                (333, 310),
                (1025, 17),
                (33, 65_537),
                (65_537, 3),
                TURNS,
            ]);
        }
        return shapes;
    }
    for (k, edge) in EDGES.into_iter().enumerate() {
        let small = [1, 2, 3, 5, 8, 4, 7][k % 7];
        shapes.extend([(small, edge), (edge, small)]);
    }
    shapes.extend([(64, 64), (65, 63), (100, 1000), (1000, 100), (257, 255), (31, 513)]);
    if size == Size::Full {
        for edge in EDGES {
            shapes.extend([1, 2, 3, 16, 33].into_iter().flat_map(|s| [(s, edge), (edge, s)]));
        }
        shapes.extend([(1023, 1025), (2048, 2048), (70_000, 40), (40, 70_000)]);
    }
    shapes.sort();
    shapes.dedup();
    shapes
}

/// The trials of a device.
pub fn trials(id: &str, device: &Device, of: Kind, size: Size, trials: &mut Vec<Trial>) {
    let thin = of != Kind::Host;
    let kernels = device.backend().kernels();
    // Whether a kernel has all of these arguments.
    let takes = |name: &str, args: &[&str]| {
        let has = |k: &KernelInfo, arg: &&str| k.args.iter().any(|a| a.name == *arg);
        kernels.iter().any(|k| k.name == name && args.iter().all(|arg| has(k, arg)))
    };
    // Whether its sub-warps are dealt segments, whichever rows these are of.
    let deals = |name: &str| {
        takes(name, &["subwarp", "blocks_per_sm"])
            && !["warps_k", "split_k"].iter().any(|arg| takes(name, &[arg]))
    };
    let accumulates = |p: &Params| p.get_or("row_accs", 0) > 0;
    let problems = shapes(size, of).into_iter().enumerate();
    let problems = problems.flat_map(|at| Layout::ALL.map(|layout| (at, layout)));
    let problems: Vec<_> = problems.collect();
    for dtype in Dtype::ALL {
        if let Err(why) = common::supported(device, dtype) {
            let name = format!("{id}/{dtype}/unsupported: {why}");
            trials.push(Trial::test(name, move || Err(why.into())).with_ignored_flag(true));
            continue;
        }
        for &((k, shape @ (m, n)), layout) in &problems {
            if !with_type!(dtype, T => VARIANTS.iter().any(|v| v.layout::<T>(m, n) == layout)) {
                continue;
            }
            let mut all = vec![None];
            let params = with_type!(dtype, T => candidates::<T>(device, shape, layout, size));
            // Blocks or turns that meet in shared memory: what can race, and deadlock. Then rows that are copied there
            // whole, and segments that sub-warps take wherever their rows are.
            let copies =
                |p: &Params| layout == Layout::Row && takes(p.kernel().as_str(), &["max_n"]);
            let kinds: [&dyn Fn(&Params) -> bool; 4] =
                [&|p| p.get_or("cluster_k", 1) > 1, &accumulates, &copies, &|p| {
                    deals(p.kernel().as_str())
                }];
            for (kind, is) in kinds.into_iter().enumerate() {
                let most = match (size, kind) {
                    (Size::Tiny, _) => 1,
                    // All of them come below, and some for the other types here.
                    (_, 2) if !thin || size == Size::Full || dtype == Dtype::F32 => 0,
                    (_, 2) => 3,
                    _ => usize::MAX,
                };
                all.extend(params.iter().filter(|p| is(p)).take(most).copied().map(Some));
            }
            if shape == TURNS {
                let one_block =
                    |p: &Params| Some(p.without("blocks_per_sm").with("blocks_per_sm", 1));
                all.extend(params.iter().filter(|p| accumulates(p)).map(one_block));
            }
            // What no candidate is: one super-segment, several waves, blocks of one warp and of 16.
            if matches!(shape, (5, 257) | (33, 1025) | (5, 4099)) && layout == Layout::Row {
                let desc = with_type!(dtype, T => VARIANTS[0].desc::<T>(m, n));
                for name in kernels.iter().map(|k| k.name).filter(|name| deals(name)) {
                    for args in [
                        "blocks_per_sm=1",
                        "threads=32 rows=2 blocks_per_sm=1",
                        "threads=512 subwarp=32 blocks_per_sm=2",
                    ] {
                        let params: Params = format!("{name} {args}").parse().unwrap();
                        all.extend(
                            device.backend().fits(&desc, &params).is_ok().then_some(Some(params)),
                        );
                    }
                }
            }
            let others = |p: &&Params| ![0, 1, 3].iter().any(|&kind: &usize| kinds[kind](p));
            let others = params.iter().filter(others).copied().map(Some);
            match (size, thin) {
                (Size::Full, _) | (Size::Normal, false) => all.extend(others),
                (Size::Tiny, _) => all.extend(others.skip(k % 2).take(1)),
                // Every program is compiled when it is first used: all of them for one type, a few for the others.
                (Size::Normal, true) if WITH_PARAMETERS.contains(&shape) => {
                    let most = if dtype == Dtype::F32 { usize::MAX } else { 2 };
                    all.extend(others.skip(dtype as usize % 2).take(most));
                }
                _ => {}
            }
            let mut whats: Vec<_> = all.into_iter().map(What::Variants).collect();
            let thorough = size != Size::Tiny || dtype == Dtype::F32 && layout == Layout::Row;
            if thorough && matches!(shape, (3, 65) | (3, 257) | (5, 257) | (255, 3)) {
                whats.extend([What::Offsets, What::Strides]);
            }
            for what in whats {
                let label = match what {
                    What::Variants(None) => "chosen".into(),
                    What::Variants(Some(params)) => params.to_string(),
                    What::Offsets => "offsets".into(),
                    What::Strides => "strides".into(),
                };
                let (device, name) =
                    (device.clone(), format!("{id}/{dtype}/{layout}/{m}x{n}/{label}"));
                let run =
                    move || with_type!(dtype, T => body::<T>(&device, shape, layout, what, size));
                trials.push(trial(name, run));
            }
        }
    }
    one_behind_the_other(id, device, trials);
    if !device.info().host {
        huge_zeros(id, device, trials);
    }
    if size == Size::Full {
        huge(id, device, trials);
    }
}

/// More elements than an int counts, and rows or columns that begin beyond 2^31: each entry known
/// exactly, since the numbers are small integers. One vector, and one kernel of each name for three.
fn huge(id: &str, device: &Device, trials: &mut Vec<Trial>) {
    let (m, n) = (12_347, 174_000);
    let needed = (m * n * 4) as u64;
    if device.info().memory.is_some_and(|bytes| bytes < needed + (1 << 30)) || id == "reference" {
        return;
    }
    for layout in Layout::ALL {
        let device = device.clone();
        trials.push(trial(format!("{id}/f32/{layout}/{m}x{n}/beyond-int"), move || {
            let mut a = match layout {
                Layout::Col => Array2::<f32>::zeros((m, n).f()),
                _ => Array2::zeros((m, n)),
            };
            // One entry of each row counts, and it lies anywhere.
            let at = |i: usize| (i * 7919) % n;
            let entry = |i: usize| (i % 4093) as f32 + 1.0;
            for i in 0..m {
                a[[i, at(i)]] = entry(i);
            }
            let x = |j: usize| (j % 1021) as f32 + 1.0;
            let want = |c: usize| move |i: usize| entry(i) * x(at(i)) * (c + 1) as f32;
            let one = Array1::from_shape_fn(n, x);
            let first: Vec<f32> = (0..m).map(want(0)).collect();
            if device.info().host {
                let y = device.try_gpu_dot(&a, &one).map_err(text)?;
                common::same(y.as_slice().expect("new"), &first)?;
            }
            let desc = Desc { rhs: 3, ..MatrixRef::from(&a).desc() };
            let resident = device.array(&a.insert_axis(Axis(0))).map_err(text)?;
            let matrix = resident.index_axis(Axis(0), 0);
            let y = device.try_gpu_dot(&matrix, &one).map_err(text)?;
            common::same(y.as_slice().expect("new"), &first)?;

            let x = Array3::from_shape_fn((1, n, 3), |(_, j, c)| x(j) * (c + 1) as f32);
            let expected = Array3::from_shape_fn((1, m, 3), |(_, i, c)| want(c)(i));
            let mut seen = Vec::new();
            for params in device.backend().candidates(&desc) {
                if seen.contains(&params.kernel()) {
                    continue;
                }
                seen.push(params.kernel());
                let mut y = Array3::zeros((1, m, 3));
                device.product(&resident, &x).with(&params).to(&mut y).map_err(text)?;
                let (got, want) = (y.as_slice().expect("new"), expected.as_slice().expect("new"));
                common::same(got, want).map_err(|e| format!("{params}: {e}"))?;
            }
            if seen.is_empty() { Err("no kernel for three columns".into()) } else { Ok(()) }
        }));
    }
}

/// Launches of which each reads what the one ahead wrote, as its vector and as its matrix, in memory that was free again
/// before, and no wait between them.
fn one_behind_the_other(id: &str, device: &Device, trials: &mut Vec<Trial>) {
    fn products(
        device: &Device,
        m: usize,
        times: usize,
        squares: bool,
    ) -> gemv::Result<Array1<f32>> {
        let entry = |i: usize, j: usize| common::hash(i as u64, j as u64, 7) as u32 as f32;
        let entry = |i, j| (entry(i, j) / u32::MAX as f32 - 0.5) * 4.0 / (m as f32).sqrt();
        let a = Array2::from_shape_fn((m, m), |(i, j)| entry(i, j)).to_device(device)?;
        let b = Array2::from_shape_fn((m, m), |(i, j)| entry(j, i + m)).to_device(device)?;
        let mut x = Array1::from_shape_fn(m, |i| entry(i, 3 * m)).to_device(device)?;
        for _ in 0..times {
            x = match squares {
                true => a.try_gpu_dot(&b)?.try_gpu_dot(&x)?,
                false => a.try_gpu_dot(&x)?,
            };
        }
        x.download()
    }
    for (m, times, squares) in [(8, 200, false), (520, 40, false), (150, 6, true)] {
        let device = device.clone();
        let name = format!(
            "{id}/f32/one-behind-the-other/{m}x{m}{}",
            if squares { ", matrices" } else { "" }
        );
        trials.push(trial(name, move || {
            let got = products(&device, m, times, squares).map_err(text)?;
            let reference = gemv::device("reference").map_err(text)?;
            let want = products(&reference, m, times, squares).map_err(text)?;
            common::same(
                got.as_slice().expect("a new array"),
                want.as_slice().expect("a new array"),
            )
        }));
    }
}

/// Memory of more bytes than 32 bits count, which held other numbers before, is zero when it is new.
fn huge_zeros(id: &str, device: &Device, trials: &mut Vec<Trial>) {
    const LEN: usize = (1 << 30) + 3;
    // Of OpenCL a buffer may have a quarter of the memory.
    if device.info().memory.is_none_or(|bytes| bytes < 20 << 30) {
        return;
    }
    let device = device.clone();
    trials.push(trial(format!("{id}/f32/zeros/beyond-int"), move || {
        drop(device.vector(&Array1::<f32>::ones(LEN)).map_err(text)?);
        let got = device.zeros::<f32, _>(LEN).and_then(|zeros| zeros.download()).map_err(text)?;
        match got.iter().position(|v| v.to_bits() != 0) {
            Some(at) => Err(format!("entry {at} is {}", got[at])),
            None => Ok(()),
        }
    }));
}
