//! What is particular to this backend: every kernel variant against the reference on every device
//! that is found, error paths, programs on disk, and a machine without OpenCL.
//!
//! Trials are made at run time. Without a device they are ignored and counted;
//! `GEMV_REQUIRE=opencl` turns that into a failure. With `GEMV_OPENCL_SMALL=1` shapes are so small
//! that Oclgrind can follow. With `GEMV_TEST_FULL=1` every type takes every kernel for GPUs.

use std::collections::HashSet;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

// Linked for its kernels.
use gemv_baselines as _;
use gemv_core::ndarray::{Array1, Array2, ArrayView2, Axis, ShapeBuilder, s};
use gemv_core::num_complex::Complex;
use gemv_core::{
    Accumulator, BACKENDS, Desc, Device, Dtype, Element, Engine, Error, Layout, Params, half,
};
use gemv_testkit::Numbers;
use libtest_mimic::{Arguments, Conclusion, Failed, Trial};

/// Set in a child process. `none`: it asks for devices, prints the answer and the time, and ends.
/// `threads` and a device's id: eight threads compute a product, and it prints what the library logs. A
/// device's id: it runs what the workaround of a known bug avoids, and prints what is wrong.
const CHILD: &str = "GEMV_OPENCL_CHILD";
const SMALL: &str = "GEMV_OPENCL_SMALL";
const FULL: &str = "GEMV_TEST_FULL";

type Outcome = Result<(), Failed>;

fn main() -> ExitCode {
    match std::env::var(CHILD) {
        Ok(none) if none == "none" => return child(),
        Ok(what) if what.starts_with("threads ") => return first_use(&what["threads ".len()..]),
        Ok(id) => return complex_vectors(&id),
        Err(_) => {}
    }
    let mut args = Arguments::from_args();
    // A device computes one product at a time; `semantics` has callers on several threads.
    args.test_threads = Some(1);
    let engine: &'static Engine = Box::leak(Box::new(Engine::new(None)));
    let small = std::env::var_os(SMALL).is_some();
    let mut trials = vec![Trial::test("linked", linked)];
    let mut devices = 0;
    let mut why = String::new();
    for line in engine.devices() {
        match line.found {
            Ok(info) => {
                devices += 1;
                let open = move || engine.device(&info.id).map_err(|e| e.to_string());
                trials.extend(of_device(&line.id, Arc::new(open), small));
            }
            Err(e) => why = e.to_string(),
        }
    }
    if devices == 0 {
        let required = std::env::var("GEMV_REQUIRE").unwrap_or_default();
        if required.split(',').any(|r| r.trim() == gemv_opencl::NAME) {
            trials.push(Trial::test("required", move || Err(why.into())));
        } else {
            eprintln!("no OpenCL device, so what needs one is ignored: {why}");
            let none = || -> Result<Device, String> { unreachable!("ignored") };
            trials.extend(
                of_device("opencl", Arc::new(none), small)
                    .into_iter()
                    .map(|t| t.with_ignored_flag(true)),
            );
        }
    }
    if !small {
        trials.push(Trial::test("no-driver", no_driver));
    }
    let conclusion: Conclusion = libtest_mimic::run(&args, trials);
    conclusion.exit_code()
}

type Open = Arc<dyn Fn() -> Result<Device, String> + Send + Sync>;

fn of_device(id: &str, open: Open, small: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: String, body: Box<dyn Fn(&Device) -> Outcome + Send>| {
        let open = open.clone();
        trials.push(Trial::test(format!("{id}/{name}"), move || body(&open()?)));
    };
    macro_rules! each {
        ($($t:ty),*) => { $(
            // Oclgrind's check of uninitialised values does not survive pairs, and f16 reads and writes as bf16 does.
            let dtype = <$t as Element>::DTYPE;
            let left_out = small && (dtype.is_complex() || dtype == Dtype::F16);
            let name = dtype.name();
            for (layout, build) in LAYOUTS.iter().filter(|_| !left_out) {
                let build = *build;
                add(format!("{name}/{layout}"), Box::new(move |d| variants::<$t>(d, build, small)));
            }
            if !left_out {
                add(format!("{name}/for-gpus"), Box::new(move |d| for_gpus::<$t>(d, small)));
            }
            // f16 is read as bf16 is, and pairs of f64 as those of f32.
            if !left_out && ![Dtype::F16, Dtype::C64].contains(&dtype) {
                add(format!("{name}/many-for-gpus"), Box::new(move |d| many_for_gpus::<$t>(d, small)));
            }
        )* };
    }
    each!(f32, f64, half::f16, half::bf16, Complex<f32>, Complex<f64>);
    if !small {
        // With a name that the checks find: they compile its kernels with PoCL's optimiser.
        add("f64/for-gpus-repeated".into(), Box::new(repeated));
        // As it is compiled for users: what an optimiser makes of the branches of rounding counts.
        let of_f16 = (0x3c00, [0, 0x3e00, 1, 0x7c00, 0x0155, 0xb4cd, 0x7e00]);
        let of_bf16 = (0x3f80, [0, 0x3fc0, 1, 0x7f80, 0x0055, 0xbe9a, 0x7fc0]);
        add(
            "f16/for-gpus-kinds".into(),
            Box::new(move |d| results_of_every_kind(d, of_f16, half::f16::from_bits)),
        );
        add(
            "bf16/for-gpus-kinds".into(),
            Box::new(move |d| results_of_every_kind(d, of_bf16, half::bf16::from_bits)),
        );
        add("levels".into(), Box::new(levels));
        add("too-large".into(), Box::new(too_large));
        add("refused".into(), Box::new(refused));
        // It compiles with the optimiser, for a sentence that is for whoever looks at the workarounds.
        if full() {
            add("known-bugs".into(), Box::new(known_bugs));
        }
        add("cache".into(), Box::new(cache));
        add("cache-of-many".into(), Box::new(cache_of_many));
    }
    trials
}

fn linked() -> Outcome {
    let entry = BACKENDS.iter().find(|e| e.name == gemv_opencl::NAME);
    match entry.ok_or("the backend is not in the list")?.rank {
        20 => Ok(()),
        rank => Err(format!("rank {rank}").into()),
    }
}

// ---- data

fn vector<T: Element>(random: &mut Numbers, n: usize) -> Array1<T> {
    random.elements(n).into()
}

type Build = fn(usize, usize) -> (usize, usize, fn(ArrayView2<'_, u32>) -> ArrayView2<'_, u32>);

/// Layouts by name: the shape to allocate for m x n, and the view of it to take. Element types are
/// put in place of the indices that the view selects.
const LAYOUTS: &[(&str, Build)] = &[
    ("row", |m, n| (m, n, |a| a)),
    ("row-gaps", |m, n| (m, n + 3, |a| a.slice_move(s![.., 3..]))),
    ("col", |m, n| (n, m, |a| a.reversed_axes())),
    ("col-gaps", |m, n| (n, m + 1, |a| a.slice_move(s![.., 1..]).reversed_axes())),
    ("strided", |m, n| (m, 2 * n, |a| a.slice_move(s![..;-1, ..;-2]))),
    ("col-steps", |m, n| (n, 3 * m, |a| a.slice_move(s![.., ..;3]).reversed_axes())),
];

const SHAPES: &[(usize, usize)] = &[
    (1, 1),
    (3, 2),
    (5, 17),
    (67, 16),
    (33, 63),
    (2, 65),
    (130, 100),
    (9, 255),
    (17, 256),
    (21, 257),
    (4, 1023),
    (3, 4100),
    // Tiles of rows with memory on each side, and without.
    (100, 600),
    (2100, 40),
    (1060, 80),
    (1100, 150),
    (0, 5),
    (5, 0),
];
const FEW: &[(usize, usize)] = &[(3, 2), (5, 67), (2, 513)];

/// Runs every candidate on one layout: alpha, beta, conjugate and the strides of x and y vary with it.
fn variants<T: Element>(device: &Device, build: Build, small: bool) -> Outcome {
    if !has::<T>(device)? {
        return Ok(());
    }
    let mut random = Numbers::new(7);
    let mut wrong = Vec::new();
    for (case, &shape) in (if small { FEW } else { SHAPES }).iter().enumerate() {
        let choose = |desc: &Desc| some_of(device, desc, small);
        let ran = compare::<T>(device, build, (case, shape), choose, &mut random, &mut wrong)?;
        if ran == 0 {
            return Err(format!("{shape:?}: no candidates").into());
        }
    }
    said(wrong)
}

fn said(mut wrong: Vec<String>) -> Outcome {
    if wrong.is_empty() {
        return Ok(());
    }
    wrong.truncate(8);
    Err(wrong.join("\n").into())
}

/// Runs the chosen parameters on one shape, and says how many there are. What is wrong is added to `wrong`.
fn compare<T: Element>(
    device: &Device,
    build: Build,
    (case, (m, n)): (usize, (usize, usize)),
    choose: impl FnOnce(&Desc) -> Vec<Params>,
    random: &mut Numbers,
    wrong: &mut Vec<String>,
) -> Result<usize, Failed> {
    let (rows, cols, view) = build(m, n);
    let data: Vec<T> = (0..rows * cols).map(|_| random.element()).collect();
    let index = Array2::from_shape_vec((rows, cols), (0..data.len() as u32).collect()).unwrap();
    // The same view of the elements, through the one of the indices.
    let shape = view(index.view());
    let first = shape.first().map_or(0, |&i| i as usize);
    let strides = (shape.strides()[0], shape.strides()[1]);
    let a = strided(&data, (m, n), first, strides);
    let x_all: Array1<T> = vector(random, 2 * n + 1);
    let x = match case % 3 {
        0 => x_all.slice(s![..n]),
        1 => x_all.slice(s![1..2 * n + 1;2]),
        _ => x_all.slice(s![..n;-1]),
    };
    let (one, zero) = (T::Acc::ONE, T::Acc::ZERO);
    let (alpha, beta) = (T::Acc::from_parts(-1.5, 0.25), T::Acc::from_parts(0.75, -2.0));
    let factors = [(one, zero), (alpha, beta), (alpha, zero), (one, one), (zero, beta)];
    let desc = Desc::new(T::DTYPE, m, n, strides, 64);
    let chosen = choose(&desc);
    // y before and after, for each of the factors that is used: the reference takes longer than the kernels.
    let mut answers: [Option<(Array1<T>, Array1<T>)>; 5] = Default::default();
    for (k, params) in chosen.iter().enumerate() {
        let turn = (k + case) % factors.len();
        let (alpha, beta) = factors[turn];
        let (before, expected) = answers[turn].get_or_insert_with(|| {
            let before: Array1<T> = match beta == zero {
                // NaN: y must not be read.
                true => Array1::from_elem(m, T::narrow(T::Acc::from_parts(f64::NAN, f64::NAN))),
                false => vector(random, m),
            };
            let mut expected = before.clone();
            gemv_testkit::gemv(alpha, a.view(), false, x, beta, expected.view_mut());
            (before, expected)
        });
        // y between canaries, with a stride in every other case.
        let canary: T = random.element();
        let step = 1 + k % 2;
        let mut y = Array1::from_elem(step * m + 2, canary);
        y.slice_mut(s![1..1 + step * m;step]).assign(before);
        let at = y.slice_mut(s![1..1 + step * m;step]);
        device.product(a, x).with(params).scaled(alpha, beta).to(at)?;
        let got = y.slice(s![1..1 + step * m;step]);
        if let Some(i) = (0..m).find(|&i| got[i].bits() != expected[i].bits()) {
            let (got, expected) = (got[i], expected[i]);
            wrong.push(format!("{desc} {params}: row {i} is {got:?}, not {expected:?}"));
        }
        let kept = y.iter().enumerate().all(|(i, v)| {
            (1..1 + step * m).contains(&i) && (i - 1) % step == 0 || v.bits() == canary.bits()
        });
        if !kept {
            wrong.push(format!("{desc} {params}: wrote beside y"));
        }
    }
    Ok(chosen.len())
}

/// The kernels for GPUs, which are no candidates of a CPU, with every phase of each: layout and
/// parameters. `{v}` is as many elements as are 16 bytes, `{h}` half of them; `{s}` and `{u}` are threads
/// whose vectors of so many elements are at least, and at most, 64 lanes; `{w}` times `{s}` is 128. Some types take every
/// other one, as [`half_of`] says: a new one in between changes which these are.
const FOR_GPUS: &[(&str, &str)] = &[
    ("row", "row-block threads=128 subwarp={s} warps_k=4 vec={v} blocks_per_sm=1"),
    ("row", "row-block threads=64 subwarp={u} warps_k=1 rows=2 vec={h} blocks_per_sm=1"),
    ("row", "row-block threads=32 subwarp=32 warps_k=1 vec=1 blocks_per_sm=2"),
    ("row", "row-block threads=64 subwarp=32 warps_k=2 rows=2 vec=1"),
    ("row", "row-block-long threads=128 subwarp=32 warps_k=4 vec=1 blocks_per_sm=1"),
    ("row", "row-block-long threads=128 subwarp={s} warps_k={w} vec={v}"),
    ("col", "col-thread threads=32 vec={v} max_n=64"),
    ("col", "col-thread threads=32 rows=2 vec={h} max_n=4"),
    ("col", "col-thread threads=64 vec=1 max_n=16"),
    ("row", "row-smem threads=32 vec={v} max_n=64"),
    ("row", "row-smem threads=32 vec=1 max_n=64"),
    ("row", "row-smem threads=32 rows=2 vec=1 max_n=4"),
    ("row", "row-smem threads=64 vec={v} max_n=16"),
    ("col", "col-tile threads=64 tile_m=16 vec={v} unroll=2 blocks_per_sm=1"),
    ("col", "col-tile threads=128 tile_m=16 vec=1 unroll=4 blocks_per_sm=3"),
    ("col", "col-tile threads=64 tile_m=16 vec={h} row_accs=64 blocks_per_sm=1"),
    ("col", "col-tile threads=128 tile_m=32 vec=1 row_accs=4"),
    ("col", "col-tile threads=64 tile_m=16 vec={v} last_block=1 blocks_per_sm=1"),
    ("col", "col-tile threads=256 tile_m=16 vec=1 last_block=1 blocks_per_sm=3"),
    ("row", "row-smem threads=32 rows=1 vec=1 max_n=47"),
    ("row", "row-smem threads=64 vec={v} max_n=24"),
    ("row", "row-smem threads=32 vec={h} max_n=72"),
    ("row", "row-smem threads=32 vec=1 max_n=200"),
];
/// m and n for them.
const EDGES: &[(usize, usize)] = &[
    (1, 1),
    (63, 64),
    (64, 63),
    (200, 3),
    (77, 13),
    (65, 65),
    (48, 16),
    (255, 255),
    (16, 256),
    (256, 257),
    (257, 1000),
    (1000, 520),
    // More segments than lanes.
    (5, 20_000),
    (3, 65_536),
    (8, 70_000),
    (1, 70_000),
    LARGEST,
    (3, 200_000),
    (66, 24),
    (33, 47),
    (40, 72),
    (33, 195),
];
const LARGEST: (usize, usize) = (33, 65_800);
const FEW_EDGES: &[(usize, usize)] = &[
    (3, 3),
    (19, 63),
    (48, 64),
    (5, 13),
    (20, 257),
    (16, 520),
    FEW_LONG_ROW,
    FEW_LONG_ROWS,
    (33, 47),
    (66, 24),
    (5, 70),
    (5, 195),
];
const FEW_LONG_ROW: (usize, usize) = (1, 65_540);
/// Not a single row: by columns.
const FEW_LONG_ROWS: (usize, usize) = (2, 65_540);

/// Which half of a list of kernels a type takes: every other one from the first (0) or the second (1) on, or all (None).
/// f32 takes all, and so do all types on a GPU. Where a CPU compiles or a simulator runs the kernels, types of one text
/// take half: f16 and bf16, which differ in how an element is widened, one half each. c64 has the text of c32 without
/// vectors, and what a simulator looks for in f64 differs from f32 in the width of a load. `GEMV_TEST_FULL=1` lets each
/// type take all.
fn half_of(device: &Device, dtype: Dtype, small: bool) -> Option<usize> {
    match dtype {
        _ if full() => None,
        Dtype::F64 if small => Some(0),
        // The simulator runs no f16.
        Dtype::Bf16 if !small && device.info().host => Some(1),
        Dtype::F16 | Dtype::C64 if !small && device.info().host => Some(0),
        _ => None,
    }
}

fn full() -> bool {
    std::env::var(FULL).is_ok_and(|v| !v.is_empty() && v != "0")
}

/// The parameters that a line of a list stands for, of elements of so many bytes.
fn named(text: &str, bytes: usize) -> Params {
    let wide = 16 / bytes;
    let half = (wide / 2).max(1);
    let text = text.replace("{v}", &wide.to_string()).replace("{h}", &half.to_string());
    let (few, many) = ((32 / wide).max(8), (64 / half).min(32));
    let text = text.replace("{s}", &few.to_string()).replace("{u}", &many.to_string());
    text.replace("{w}", &(128 / few).to_string()).parse().expect("well formed")
}

/// Neighbouring rows whose results are of every kind that is rounded in a way of its own: 0, subnormal, normal, infinite
/// and NaN. A row has one element that is not 0, so each result is known. By the kernels for GPUs and by the chosen one.
fn results_of_every_kind<T: Element>(
    device: &Device,
    (one, kinds): (u16, [u16; 7]),
    element: fn(u16) -> T,
) -> Outcome {
    let mut wrong = Vec::new();
    for n in [2, 24, 60] {
        for (layout, column_major) in [("row", false), ("col", true)] {
            let mut a = Array2::from_elem((300, n).set_f(column_major), element(0));
            for i in 0..300 {
                a[(i, i % n)] = element(kinds[i % 7]);
            }
            let x = Array1::from_elem(n, element(one));
            let desc = Desc::of(
                T::DTYPE,
                if column_major { Layout::Col } else { Layout::Row },
                (300, n),
                1,
            );
            let all = FOR_GPUS.iter().filter(|of| of.0 == layout);
            let all = all.map(|of| named(of.1, T::DTYPE.bytes())).chain(device.choose(&desc));
            for params in all.filter(|params| device.backend().fits(&desc, params).is_ok()) {
                let mut y = Array1::from_elem(300, element(one));
                let product = device.product(a.view(), x.view()).with(&params);
                product.to(y.view_mut()).map_err(|e| e.to_string())?;
                for (i, got) in y.iter().enumerate() {
                    let (got, want) = (got.bits(), element(kinds[i % 7]).bits());
                    if got != want {
                        wrong.push(format!(
                            "{params}, {n} columns, row {i}: {got:#06x}, not {want:#06x}"
                        ));
                    }
                }
            }
        }
    }
    said(wrong)
}

/// The type's share of the kernels for GPUs on shapes at the edges of their tiles, of matrices with and without gaps.
fn for_gpus<T: Element>(device: &Device, small: bool) -> Outcome {
    if !has::<T>(device)? {
        return Ok(());
    }
    let mut random = Numbers::new(31);
    let mut wrong = Vec::new();
    let params = |&(layout, text): &(&'static str, &str)| (layout, named(text, T::DTYPE.bytes()));
    let half_of_list = half_of(device, T::DTYPE, small);
    let all: Vec<_> = (FOR_GPUS.iter().enumerate())
        .filter(|(k, _)| half_of_list.is_none_or(|half| k % 2 == half))
        .map(|(_, of)| params(of))
        .collect();
    let mut ran = vec![0; all.len()];
    for (case, &shape) in (if small { FEW_EDGES } else { EDGES }).iter().enumerate() {
        // Several rows of more than 256 segments take as long as all other shapes together. Their places do not depend
        // on the type. In a simulator one row does, and takes what is for no other, and of f32 every other kernel.
        let (long, is_f32) = (shape.1 > 65_536, T::DTYPE == Dtype::F32);
        if !small && long && shape.0 > 1 && !is_f32 && device.info().host && !full() {
            continue;
        }
        for (name, build) in LAYOUTS.iter().filter(|l| l.0 == "row" || l.0 == "col") {
            if *name == "row" && shape == FEW_LONG_ROWS {
                continue;
            }
            let gaps = LAYOUTS.iter().find(|l| l.0 == format!("{name}-gaps")).expect("listed").1;
            // Shorter rows have gaps: the segments are the same.
            let gaps =
                Some(gaps).filter(|_| ![FEW_LONG_ROW, FEW_LONG_ROWS, LARGEST].contains(&shape));
            for build in [Some(*build), gaps].into_iter().flatten() {
                let choose = |desc: &Desc| {
                    let mut fitting = Vec::new();
                    let of_it = all.iter().zip(&mut ran).filter(|(a, _)| a.0 == *name);
                    for (k, ((_, params), ran)) in of_it.enumerate() {
                        if small && long && *ran > 0 && (k % 2 == 1 || !is_f32) {
                            continue;
                        }
                        if device.backend().fits(desc, params).is_ok() {
                            fitting.push(*params);
                            *ran += 1;
                        }
                    }
                    fitting
                };
                compare::<T>(device, build, (case, shape), choose, &mut random, &mut wrong)?;
            }
        }
    }
    // Not every device lets blocks see what others wrote; the simulator does not. Nor has every one so much local memory.
    let possible = |params: &Params| {
        let bytes = 32 * params.get("max_n").unwrap_or(0) as usize * size_of::<T>();
        params.get("last_block").is_none_or(|_| !small && cfg!(target_arch = "x86_64"))
            && bytes <= 30 << 10
    };
    for ((_, params), _) in all.iter().zip(&ran).filter(|(a, ran)| **ran == 0 && possible(&a.1)) {
        wrong.push(format!("{params} fits no shape"));
    }
    said(wrong)
}

/// The same kernels for several right-hand sides.
const MANY_FOR_GPUS: &[(&str, &str)] = &[
    ("row", "gemm-row-panel threads=128 warps_k=4 tile_rhs=4 rows=4 vec=1 blocks_per_sm=1"),
    ("row", "gemm-row-panel threads=64 warps_k=1 tile_rhs=2 rows=2 vec=2 blocks_per_sm=3"),
    ("row", "gemm-row-panel threads=64 warps_k=2 tile_rhs=8 rows=1 vec=1"),
    ("row", "gemm-row-panel threads=256 warps_k=8 tile_rhs=1 rows=4 vec=1"),
    ("row", "gemm-row-panel threads=512 warps_k=16 tile_rhs=4 rows=2 vec=1 blocks_per_sm=1"),
    ("row", "gemm-row-panel threads=128 warps_k=4 tile_rhs=16 rows=1 vec=2"),
    ("col", "gemm-col-tile threads=256 threads_k=8 tile_rhs=4 vec=1"),
    ("col", "gemm-col-tile threads=128 threads_k=16 tile_rhs=2 vec=2 split_k=2"),
    ("col", "gemm-col-tile threads=64 threads_k=32 tile_rhs=1 vec=4 split_k=1"),
    ("col", "gemm-col-tile threads=256 threads_k=4 tile_rhs=2 vec=1 blocks_per_sm=1"),
];
/// m, n and columns of X for them: also several batches of rows, and more than 256 segments.
const MANY_EDGES: &[(usize, usize, usize)] =
    &[(1, 1, 2), (37, 300, 5), (130, 257, 9), (33, 1290, 4), (5, 12_000, 3), (2, 66_000, 2)];
const FEW_MANY_EDGES: &[(usize, usize, usize)] = &[(5, 70, 4), (17, 257, 2), (3, 520, 2)];

/// Each of them on shapes at the edges of its tiles, of matrices with and without gaps: each column has the
/// bits of its own product.
fn many_for_gpus<T: Element>(device: &Device, small: bool) -> Outcome {
    if !has::<T>(device)? {
        return Ok(());
    }
    let mut random = Numbers::new(37);
    let mut wrong = Vec::new();
    // On other devices f16 and c64 have no such trial, so bf16 and c32 take all.
    let half_of_list = if small { half_of(device, T::DTYPE, small) } else { None };
    let all: Vec<(&str, Params)> = (MANY_FOR_GPUS.iter().enumerate())
        .filter(|(k, _)| half_of_list.is_none_or(|half| k % 2 == half))
        .map(|(_, &(layout, text))| (layout, text.parse().expect("well formed")))
        .collect();
    let mut ran = vec![0; all.len()];
    let (one, zero) = (T::Acc::ONE, T::Acc::ZERO);
    let (alpha, beta) = (T::Acc::from_parts(-1.5, 0.25), T::Acc::from_parts(0.75, -2.0));
    let factors = [(one, zero), (alpha, beta), (zero, beta)];
    let shapes = if small { FEW_MANY_EDGES } else { MANY_EDGES };
    for (case, &(m, n, rhs)) in shapes.iter().enumerate() {
        // Every other matrix has gaps.
        let gap = 3 * (case % 2);
        for layout in ["row", "col"] {
            let by_rows = layout == "row";
            let (rows, cols) = if by_rows { (m, n + gap) } else { (m + gap, n) };
            let strides = if by_rows { (cols, 1) } else { (1, rows) };
            let data: Vec<T> = (0..rows * cols).map(|_| random.element()).collect();
            let a = strided(&data, (m, n), 0, (strides.0 as isize, strides.1 as isize));
            // X by rows and by columns, and from its last row to its first.
            let shape = (n, rhs).set_f(case % 2 == 1);
            let x = Array2::from_shape_simple_fn(shape, || random.element());
            let x = x.slice(s![..;if case % 3 == 2 { -1 } else { 1 }, ..]);
            for (k, ((of, params), ran)) in all.iter().zip(&mut ran).enumerate() {
                let (alpha, beta) = factors[(k + case) % factors.len()];
                // One column more than Y has: a canary.
                let shape = (m, rhs + 1).set_f(case % 2 == 1);
                let y = Array2::from_shape_simple_fn(shape, || random.element::<T>());
                let (mut got, mut expected) = (y.clone(), y);
                let (mut before, at) =
                    (expected.slice_mut(s![.., ..rhs]), got.slice_mut(s![.., ..rhs]));
                let job = (a.insert_axis(Axis(0)), x.insert_axis(Axis(0)));
                let desc =
                    Desc { rhs, ..Desc::new(T::DTYPE, m, n, (a.strides()[0], a.strides()[1]), 64) };
                if *of != layout || device.backend().fits(&desc, params).is_err() {
                    continue;
                }
                *ran += 1;
                let (conj, y) = (case % 2 == 1, at.insert_axis(Axis(0)));
                let product = device.product(job.0, job.1).conj_if(conj).with(params);
                product.scaled(alpha, beta).to(y)?;
                for (x, y) in x.columns().into_iter().zip(before.columns_mut()) {
                    gemv_testkit::gemv(alpha, a, conj, x, beta, y);
                }
                let differ = |(_, (g, e)): &(_, (&T, &T))| g.bits() != e.bits();
                if let Some((at, (g, e))) =
                    got.indexed_iter().zip(&expected).map(|((at, g), e)| (at, (g, e))).find(differ)
                {
                    wrong.push(format!("{desc} {params}: {at:?} is {g:?}, not {e:?}"));
                }
            }
        }
    }
    // What no shape takes is for smaller types.
    let large = |params: &Params| {
        let [cols, rows] = ["tile_rhs", "rows"].map(|name| params.get(name).unwrap_or(1) as usize);
        // A thread of a block of 512 has fewer registers.
        let few = params.get("threads") == Some(512) && T::DTYPE.bytes() > 4;
        params.get("vec") > Some(1) || few || cols * rows.max(2) * T::DTYPE.bytes() > 128
    };
    let meant = |params: &Params| !large(params);
    for ((_, params), _) in all.iter().zip(&ran).filter(|(a, ran)| **ran == 0 && meant(&a.1)) {
        wrong.push(format!("{params} fits no shape"));
    }
    said(wrong)
}

/// What a device says that refuses `last_block`.
const NO_FENCES: &str = "does not see what the others of its launch wrote";

/// Blocks that add what other blocks of their launch wrote, in many products: a race shows now and then.
fn repeated(device: &Device) -> Outcome {
    if !has::<f64>(device)? {
        return Ok(());
    }
    let mut random = Numbers::new(57);
    let mut wrong = Vec::new();
    // Three segments, and more than one super-segment.
    for ((m, n), products) in [((1000, 520), 400), ((40, 70_000), 40)] {
        let data: Vec<f64> = (0..m * n).map(|_| random.element()).collect();
        let a = strided(&data, (m, n), 0, (1, m as isize));
        // Two of them, so that sums of the last product are wrong in the next one.
        let x: [Array1<f64>; 2] = [vector(&mut random, n), vector(&mut random, n)];
        let expected = x.each_ref().map(|x| {
            let mut y = Array1::zeros(m);
            gemv_testkit::gemv(1.0, a.view(), false, x.view(), 0.0, y.view_mut());
            y
        });
        let desc = Desc::new(f64::DTYPE, m, n, (1, m as isize), 64);
        for text in [
            "col-tile threads=64 tile_m=16 vec=2 last_block=1 blocks_per_sm=1",
            "col-tile threads=256 tile_m=16 vec=1 last_block=1 blocks_per_sm=3",
        ] {
            let params: Params = text.parse().expect("well formed");
            if let Err(why) = device.backend().fits(&desc, &params) {
                let why = why.to_string();
                let has_fences = device.info().host && cfg!(target_arch = "x86_64");
                if why.contains(NO_FENCES) && !has_fences {
                    println!("{text}: {why}");
                    continue;
                }
                return Err(why.into());
            }
            let mut bad = 0;
            for product in 0..products {
                let (x, expected) = (&x[product % 2], &expected[product % 2]);
                let mut y = Array1::from_elem(m, f64::NAN);
                device.product(a.view(), x.view()).with(&params).to(y.view_mut())?;
                bad += usize::from(same(text, &y, expected).is_err());
            }
            if bad > 0 {
                wrong.push(format!("{desc} {params}: {bad} of {products} products are wrong"));
            }
        }
    }
    said(wrong)
}

/// Every candidate; of types but f32, whose texts are the same, one of each kernel where a CPU compiles them. A CPU's
/// are for CPUs only, so one of each shared kernel is added there: of the layout's own for every type, for f32 of the
/// general ones as well. Not more, because a CPU runtime takes a second or two to compile one.
fn some_of(device: &Device, desc: &Desc, small: bool) -> Vec<Params> {
    let mut some = device.backend().candidates(desc);
    if device.info().host && desc.dtype != Dtype::F32 && !full() {
        let mut seen = HashSet::new();
        some.retain(|params| seen.insert(params.kernel()));
    }
    if small {
        // Oclgrind cannot follow the 16-wide vectors of the kernels for CPUs.
        some.clear();
    }
    if device.info().host || small {
        let own: &[&str] = match (desc.layout, desc.dtype) {
            (Layout::Row, Dtype::F32) => {
                &["row threads=64 subwarp=8 vec=4 rows=2", "row split_k=2"]
            }
            (Layout::Row, Dtype::F16 | Dtype::Bf16) => &["row threads=32 subwarp=8 vec=8"],
            (Layout::Row, Dtype::C64) => &["row threads=32 subwarp=8"],
            (Layout::Row, _) => &["row threads=32 subwarp=8 vec=2"],
            (Layout::Col, Dtype::F32) => &["col threads=64 threads_k=8 vec=4", "col split_k=2"],
            (Layout::Col, Dtype::C32 | Dtype::C64) => &["col threads=32 threads_k=8"],
            (Layout::Col, _) => &["col threads=32 threads_k=8 vec=2"],
            (Layout::Strided, Dtype::F32) => {
                some.extend(any_strides(device).into_iter().map(|p| p.with("threads", 64)));
                &[]
            }
            (Layout::Strided, _) if small => &["strided threads=32"],
            (Layout::Strided, _) => &[],
        };
        some.extend(own.iter().map(|text| text.parse::<Params>().expect("well formed")));
        some.retain(|params| device.backend().fits(desc, params).is_ok());
    }
    some
}

/// The shared kernels that take a matrix of any strides.
fn any_strides(device: &Device) -> Vec<Params> {
    let desc = Desc::new(Dtype::F32, 2, 3, (15, 5), 0);
    let shared = gemv_gpu::kernels().iter().filter(|k| k.ordered).map(|k| Params::new(k.name));
    shared.filter(|params| device.backend().fits(&desc, params).is_ok()).collect()
}

/// The m x n view of these strides, which may be negative.
fn strided<T: Element>(
    data: &[T],
    (m, n): (usize, usize),
    first: usize,
    strides: (isize, isize),
) -> ArrayView2<'_, T> {
    if m == 0 || n == 0 {
        return ArrayView2::from_shape((m, n), &[]).unwrap();
    }
    let back = |len: usize, s: isize| if s < 0 { s.unsigned_abs() * (len - 1) } else { 0 };
    let lowest = first - back(m, strides.0) - back(n, strides.1);
    let far = |len: usize, s: isize| s.unsigned_abs() * (len - 1);
    let end = lowest + far(m, strides.0) + far(n, strides.1) + 1;
    let shape = (m, n).strides((strides.0.unsigned_abs(), strides.1.unsigned_abs()));
    let mut view = ArrayView2::from_shape(shape, &data[lowest..end]).unwrap();
    if strides.0 < 0 {
        view.invert_axis(gemv_core::ndarray::Axis(0));
    }
    if strides.1 < 0 {
        view.invert_axis(gemv_core::ndarray::Axis(1));
    }
    view
}

/// Whether the device has the type. One without double precision says so, and that is all there is to test.
fn has<T: Element>(device: &Device) -> Result<bool, Failed> {
    let desc = Desc::new(T::DTYPE, 1, 1, (1, 1), 64);
    match device.backend().accepts(&desc) {
        Ok(()) => Ok(true),
        Err(Error::Unsupported { .. }) if T::DTYPE.needs_f64() => {
            println!("{} has no {}", device.info().id, T::DTYPE);
            Ok(false)
        }
        Err(e) => Err(e.to_string().into()),
    }
}

fn same<T: Element>(what: &str, got: &Array1<T>, expected: &Array1<T>) -> Outcome {
    match got.iter().zip(expected).position(|(g, e)| g.bits() != e.bits()) {
        None if got.len() == expected.len() => Ok(()),
        at => Err(format!("{what}: differs at {at:?}: {got:?}, not {expected:?}").into()),
    }
}

/// More than one level of the recursion, in every way of splitting.
fn levels(device: &Device) -> Outcome {
    let mut random = Numbers::new(13);
    let n = 65_536 * 2 + 300;
    let a = Array2::from_shape_simple_fn((3, n), || random.element::<f32>());
    let col = a.t().as_standard_layout().reversed_axes().to_owned();
    let x = vector::<f32>(&mut random, n);
    let mut expected = Array1::zeros(3);
    gemv_testkit::gemv(1.0, a.view(), false, x.view(), 0.0, expected.view_mut());
    let by_row = "row-cpu split_k=1, row-cpu split_k=2, row-cpu split_k=7, row-cpu split_k=600, \
                  row split_k=1, row split_k=2 vec=4 subwarp=8, row split_k=9, row split_k=513 rows=2, \
                  strided split_k=1, strided-cpu, strided-col-cpu split_k=3";
    let by_col = "col-cpu, col-cpu split_k=2, col-few-rows-cpu split_k=1, col-few-rows-cpu split_k=2, \
                  col-few-rows-cpu streams=8 vec=4 prefetch_next=1, col split_k=2, col split_k=100 vec=4";
    for (a, texts, more) in [(&a, by_row, any_strides(device)), (&col, by_col, Vec::new())] {
        let named = texts.split(", ").map(str::parse).collect::<Result<Vec<Params>, _>>()?;
        for params in named.into_iter().chain(more) {
            let desc = Desc::new(Dtype::F32, 3, n, (a.strides()[0], a.strides()[1]), 64);
            let fits = device.backend().fits(&desc, &params).is_ok();
            if !fits && params.kernel().as_str().contains("cpu") {
                continue; // kernels for CPUs, on another device
            }
            let mut y = Array1::zeros(3);
            device.product(a, &x).with(&params).to(&mut y)?;
            same(&params.to_string(), &y, &expected)?;
        }
    }
    Ok(())
}

/// Memory that the device has not.
fn too_large(device: &Device) -> Outcome {
    let e = device.zeros::<f64, _>(1 << 45).unwrap_err();
    let Error::OutOfMemory { asked, .. } = e else { return Err(e.to_string().into()) };
    if asked != 8 << 45 {
        return Err(format!("asked {asked}").into());
    }
    // A length whose bytes wrap round is not a small one.
    if !matches!(device.zeros::<f64, _>((1 << 61) + 1), Err(Error::OutOfMemory { .. })) {
        return Err("2^61 + 1 elements are not refused".into());
    }
    // And the device still works.
    let y = device.try_gpu_dot(&Array2::<f32>::ones((2, 2)), &Array1::ones(2))?;
    same("after it", &y, &Array1::from_elem(2, 2.0))
}

/// Parameters that are not legal leave y as it was.
fn refused(device: &Device) -> Outcome {
    let (a, x) = (Array2::<f32>::ones((2, 2)), Array1::ones(2));
    let published = gemv_gpu::baselines().find(|k| k.args.iter().any(|arg| arg.name == "vec"));
    let published = published.ok_or("no published kernel is linked")?.name;
    for text in [
        "none",
        "row threads=48",
        "col",
        "row split_k=2000000",
        "row-cpu rows=3",
        "row wide=1",
        &format!("{published} vec=3"),
    ] {
        let mut y = Array1::from_elem(2, 5.0);
        match device.product(&a, &x).with(&text.parse()?).to(&mut y) {
            Err(Error::Params { params, .. }) if params == text => {}
            other => return Err(format!("{text}: {other:?}").into()),
        }
        same("y after it", &y, &Array1::from_elem(2, 5.0))?;
    }
    Ok(())
}

// ---- programs on disk

/// The first product of a process, by eight threads at once.
fn first_use(id: &str) -> ExitCode {
    struct Printed;
    impl log::Log for Printed {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            println!("{}", record.args());
        }
        fn flush(&self) {}
    }
    log::set_logger(&Printed).expect("the first logger");
    log::set_max_level(log::LevelFilter::Debug);
    let device = Engine::new(None).device(id).expect("the device of the trial");
    let mut random = Numbers::new(29);
    let a = Array2::from_shape_simple_fn((61, 300), || random.element::<f32>());
    let x = vector::<f32>(&mut random, 300);
    let mut expected = Array1::zeros(61);
    gemv_testkit::gemv(1.0, a.view(), false, x.view(), 0.0, expected.view_mut());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let y = device.try_gpu_dot(&a, &x).expect("a product");
                assert!(same("a thread", &y, &expected).is_ok());
            });
        }
    });
    println!("right");
    ExitCode::SUCCESS
}

/// A process with such a cache: whether its program was compiled, or loaded.
fn process(
    device: &Device,
    variable: &str,
    value: &std::path::Path,
) -> Result<&'static str, Failed> {
    let out = Command::new(std::env::current_exe().map_err(|e| e.to_string())?)
        .env(CHILD, format!("threads {}", device.info().id))
        .env_remove("GEMV_CACHE")
        .env_remove("GEMV_SELF_TEST")
        // PoCL's binaries take their time, but are what there is to test with.
        .env("GEMV_OPENCL_LIFT", "pocl-binaries")
        .env(variable, value)
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    if !out.status.success() || count("right") != 1 {
        return Err(
            format!("{}: {text}{}", out.status, String::from_utf8_lossy(&out.stderr)).into()
        );
    }
    match (count("opencl: compiled "), count("opencl: loaded ")) {
        (1, 0) => Ok("compiled"),
        (0, 1) => Ok("loaded"),
        other => Err(format!("{other:?} programs compiled and loaded: {text}").into()),
    }
}

fn expect(what: &str, got: Result<&'static str, Failed>, expected: &str) -> Outcome {
    match got? {
        got if got == expected => Ok(()),
        got => Err(format!("{what}: the program was {got}, not {expected}").into()),
    }
}

/// A second process loads what the first has compiled; whatever is in the files, results are right.
fn cache(device: &Device) -> Outcome {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let again = || process(device, "GEMV_CACHE_DIR", dir.path());
    expect("the first", again(), "compiled")?;
    expect("the second", again(), "loaded")?;
    let kept = gemv_gpu::Cache::at(dir.path().join("opencl"));
    let names: Vec<String> = kept.names().filter(|name| name.ends_with(".bin")).collect();
    let [name] = &names[..] else { return Err(format!("not one binary: {names:?}").into()) };
    let path = dir.path().join("opencl").join(name);
    let whole = std::fs::read(&path).map_err(|e| e.to_string())?;
    for damaged in [&whole[..whole.len() / 2], b"another program's file"] {
        std::fs::write(&path, damaged).map_err(|e| e.to_string())?;
        expect("with a damaged file", again(), "compiled")?;
        expect("after it", again(), "loaded")?;
    }
    // Whole, but nothing that the driver takes.
    kept.put(name, b"no binary");
    expect("with a foreign binary", again(), "compiled")?;
    expect("after it", again(), "loaded")?;

    // A folder that cannot be made, and none.
    expect("without a folder", process(device, "GEMV_CACHE_DIR", &path), "compiled")?;
    let files = || std::fs::read_dir(dir.path().join("opencl")).map(Iterator::count);
    let before = files().map_err(|e| e.to_string())?;
    expect("switched off", process(device, "GEMV_CACHE", "off".as_ref()), "compiled")?;
    match files() {
        Ok(after) if after == before => Ok(()),
        other => Err(format!("{other:?} files where there were {before}").into()),
    }
}

/// Several processes, each of eight threads, begin at once with an empty folder.
fn cache_of_many(device: &Device) -> Outcome {
    for _ in 0..3 {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        std::thread::scope(|scope| {
            let one = || process(device, "GEMV_CACHE_DIR", dir.path()).map(|_| ());
            let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            all.into_iter().try_for_each(|process| process.join().expect("no panic"))
        })?;
        expect("after them", process(device, "GEMV_CACHE_DIR", dir.path()), "loaded")?;
    }
    Ok(())
}

// ---- bugs of drivers

/// Whether the bug that has a program to show it is still in this device's driver. It says so and
/// passes either way: the bug does not show in every run.
fn known_bugs(device: &Device) -> Outcome {
    let info = device.info();
    for bug in gemv_opencl::known_bugs() {
        if bug.name != "pocl-complex-vectors" || !info.driver.starts_with(bug.driver) {
            continue;
        }
        // It shows only in a process that compiles the program.
        let cache = std::env::temp_dir().join(format!("gemv-no-cache-{}", std::process::id()));
        std::fs::create_dir_all(&cache).map_err(|e| e.to_string())?;
        let out = Command::new(std::env::current_exe().map_err(|e| e.to_string())?)
            .env(CHILD, &info.id)
            .env("GEMV_OPENCL_LIFT", bug.name)
            .env("POCL_CACHE_DIR", &cache)
            .env("GEMV_CACHE", "off")
            .env("GEMV_SELF_TEST", "off")
            // With `-cl-opt-disable` there the bug never shows.
            .env_remove("POCL_EXTRA_BUILD_FLAGS")
            .output();
        let _ = std::fs::remove_dir_all(&cache);
        let out = out.map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&out.stdout);
        let wrong =
            text.trim().strip_prefix("wrong: ").ok_or(format!("{:?}: {text}", out.status))?;
        eprintln!("{}: {} has {wrong} wrong products; 0 if the bug is gone", bug.name, info.driver);
    }
    Ok(())
}

/// Products by `col` with complex elements and vectors: prints how many are wrong.
fn complex_vectors(id: &str) -> ExitCode {
    let device = Engine::new(None).device(id).expect("the device of the trial");
    let mut random = Numbers::new(23);
    let mut wrong = 0;
    for (m, n) in [(5, 17), (33, 63), (130, 100), (9, 255), (21, 257)] {
        let a = Array2::from_shape_simple_fn((n, m), || random.element::<Complex<f32>>());
        let x = vector::<Complex<f32>>(&mut random, n);
        let (one, zero) = (Complex::new(1.0, 0.0), Complex::new(0.0, 0.0));
        let mut expected = Array1::zeros(m);
        gemv_testkit::gemv(one, a.t(), false, x.view(), zero, expected.view_mut());
        for text in [
            "col threads=32 threads_k=8 vec=2",
            "col threads=64 threads_k=8 vec=2",
            "col threads=128 threads_k=16 vec=2",
            "col threads=256 threads_k=32 vec=2",
            "col threads=64 threads_k=4 vec=2 split_k=2",
        ] {
            let mut y = Array1::zeros(m);
            let params = text.parse().expect("well formed");
            let ran = device.product(a.t(), &x).with(&params).scaled(one, zero).to(&mut y);
            ran.expect("legal without the workaround");
            wrong += usize::from(same(text, &y, &expected).is_err());
        }
    }
    println!("wrong: {wrong}");
    ExitCode::SUCCESS
}

// ---- a machine without OpenCL

fn child() -> ExitCode {
    let start = Instant::now();
    let answer = Engine::new(Some("opencl".into())).default_device().map(|d| d.info().id.clone());
    println!("{}\n{answer:?}", start.elapsed().as_micros());
    match answer {
        Err(Error::DriverMissing { .. }) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn no_driver() -> Outcome {
    let dir = std::env::temp_dir().join(format!("gemv-no-icd-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let out = Command::new(std::env::current_exe().map_err(|e| e.to_string())?)
        .env(CHILD, "none")
        .env("OCL_ICD_VENDORS", &dir)
        .env_remove("OCL_ICD_FILENAMES")
        .output();
    let _ = std::fs::remove_dir(&dir);
    let out = out.map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    let mut lines = text.lines();
    let took = lines.next().and_then(|t| t.parse().ok()).map(Duration::from_micros);
    let said = lines.next().unwrap_or_default();
    if !out.status.success() || !said.contains("looked for") {
        return Err(format!("{}: {said}", out.status).into());
    }
    match took {
        Some(took) if took < Duration::from_millis(100) => Ok(()),
        took => Err(format!("took {took:?}").into()),
    }
}
