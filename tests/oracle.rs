//! Random products beside a second oracle, `oracle/order.c`: the order in C, written from `docs/ORDER.md` alone.
//!
//! 100,000 products on the CPU and some on every other device, of all pairs of types, of any layout, strides and factors,
//! with zeros, subnormal numbers, infinities and NaN; and steps, dot products and norms. Trials are named `device/types` and
//! `device/steps/type`; the first ones show that the comparison notices a rule that is broken.
#![deny(unsafe_code)]

#[macro_use]
mod common;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bytemuck::Pod;
use common::{Check, hash, trial};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2, ArrayView2, ArrayViewMut2, Axis, ShapeBuilder, s};
use gemv::num_complex::Complex;
use gemv::{Accumulator, Device, DeviceScalar, Dtype, Element, Factor, Times};
use libtest_mimic::Trial;

/// Products of all pairs of types on the CPU, and on a device that is slow.
const PRODUCTS: [usize; 2] = [100_000, 900];
/// Steps, dot products and norms of all types, likewise.
const STEPS: [usize; 2] = [24_000, 300];
/// Products or steps that one process of the oracle computes.
const BATCH: usize = 400;
/// Pairs of types, and types.
const PAIRS: usize = 9;
const TYPES: usize = 6;

/// A sequence of random numbers.
struct Random(u64, u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.1 += 1;
        hash(self.0, self.1, 0)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() >> 11) as usize % count
    }

    /// Between -1 and 1.
    fn signed(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// What the elements of an array are like.
fn element<T: Element + Pod>(random: &mut Random, kind: usize) -> T {
    let mut part = || match (kind, random.below(24)) {
        (_, 0) => 0.0,
        (_, 1) => -0.0,
        // Far apart, so that every order of additions is another.
        (0 | 1, k) => random.signed() * f64::from_bits((1023 - 12 + k as u64) << 52),
        (2, _) => random.below(9) as f64 - 4.0,
        // Products that are subnormal, or sums of them.
        (3, _) => random.signed() * f64::from_bits((1023 - 70) << 52),
        (4, 2) => f64::INFINITY,
        (4, 3) => f64::NAN,
        (4, _) => random.signed(),
        // Two large terms that cancel.
        (5, 2) => 1e6,
        (5, 3) => -1e6,
        _ => random.signed(),
    };
    let re = part();
    let im = if T::DTYPE.is_complex() { part() } else { 0.0 };
    if kind != 6 {
        return T::narrow(T::Acc::from_parts(re, im));
    }
    // Any bits.
    let mut any = T::zeroed();
    bytemuck::bytes_of_mut(&mut any).iter_mut().for_each(|byte| *byte = random.next() as u8);
    any
}

/// A matrix somewhere in a larger array: by rows or by columns, with steps, backwards.
struct Laid<T> {
    all: Array2<T>,
    steps: [usize; 2],
    back: [bool; 2],
}

impl<T: Element + Pod> Laid<T> {
    fn new(random: &mut Random, of: &Array2<T>) -> Laid<T> {
        let step = |random: &mut Random| [1, 1, 1, 2, 3][random.below(5)];
        let (steps, fortran) = ([step(random), step(random)], random.below(2) == 1);
        let back = [random.below(6) == 0, random.below(6) == 0];
        let (m, n) = of.dim();
        let shape = (m * steps[0], n * steps[1]).set_f(fortran);
        let mut laid = Laid { all: Array2::from_elem(shape, T::zeroed()), steps, back };
        laid.view_mut().assign(of);
        laid
    }

    fn view_mut(&mut self) -> ArrayViewMut2<'_, T> {
        let mut view = self.all.slice_mut(s![..;self.steps[0], ..;self.steps[1]]);
        for axis in [0, 1] {
            if self.back[axis] {
                view.invert_axis(Axis(axis));
            }
        }
        view
    }

    fn view(&self) -> ArrayView2<'_, T> {
        let mut view = self.all.slice(s![..;self.steps[0], ..;self.steps[1]]);
        for axis in [0, 1] {
            if self.back[axis] {
                view.invert_axis(Axis(axis));
            }
        }
        view
    }
}

fn columns(random: &mut Random) -> usize {
    match random.below(100) {
        0..40 => random.below(72),
        40..70 => 192 + random.below(130),
        70..98 => random.below(600),
        98 => 1020 + random.below(1200),
        // Segments of segments.
        _ if random.below(12) == 0 => 65_530 + random.below(600),
        _ => 2560,
    }
}

fn factor<A: Accumulator>(random: &mut Random) -> A {
    let mut part = || match random.below(16) {
        0..4 => 0.0,
        4..9 => 1.0,
        9 => -1.0,
        10 => -0.0,
        11 => f64::INFINITY,
        12 => 1e-40,
        _ => random.signed(),
    };
    let (re, im) = (part(), part());
    A::from_parts(re, if random.below(2) == 0 { 0.0 } else { im })
}

fn code(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::F64 => 1,
        Dtype::F16 => 2,
        Dtype::Bf16 => 3,
        Dtype::C32 => 4,
        Dtype::C64 => 5,
    }
}

/// Results of the library for some random products, and what the oracle is to be told of them.
fn batch<T, V>(
    device: &Device,
    random: &mut Random,
    (count, broken): (usize, u32),
) -> gemv::Result<(Vec<u8>, Vec<V>)>
where
    T: Element + Pod + Times<V>,
    V: Element + Pod,
{
    let (mut told, mut results) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (n, rhs) = (columns(random), [1, 1, 1, 2, 3, 8][random.below(6)]);
        let m = if n > 2000 { 1 + random.below(2) } else { 1 + random.below(9) };
        let mut kind = || [0, 0, 0, 1, 2, 3, 4, 5, 6][random.below(9)];
        let (of_a, of_x, of_y) = (kind(), kind(), kind());
        let a = Array2::from_shape_simple_fn((m, n), || element::<T>(random, of_a));
        let x = Array2::from_shape_simple_fn((n, rhs), || element::<V>(random, of_x));
        let y = Array2::from_shape_simple_fn((m, rhs), || element::<V>(random, of_y));
        let (alpha, beta) = (factor::<V::Acc>(random), factor::<V::Acc>(random));
        let conj = random.below(3) == 0 && T::DTYPE.is_complex();
        let head = [0, code(T::DTYPE), code(V::DTYPE), u32::from(conj), broken];
        told.extend(bytemuck::bytes_of(&head));
        told.extend(bytemuck::bytes_of(&[m as u32, n as u32, rhs as u32]));
        let ((re, im), (beta_re, beta_im)) = (alpha.parts(), beta.parts());
        told.extend(bytemuck::bytes_of(&[re, im, beta_re, beta_im]));
        told.extend(bytemuck::cast_slice(a.as_slice().expect("by rows")));
        told.extend(bytemuck::cast_slice(x.as_slice().expect("by rows")));
        told.extend(bytemuck::cast_slice(y.as_slice().expect("by rows")));

        let (a, x, mut y) = (Laid::new(random, &a), Laid::new(random, &x), Laid::new(random, &y));
        if rhs == 1 && random.below(4) > 0 {
            let (x, mut y) = (x.view(), y.view_mut());
            let product = device.product(a.view(), x.column(0)).conj_if(conj);
            product.scaled(alpha, beta).to(y.column_mut(0))?;
        } else {
            let product = device.product(a.view(), x.view()).conj_if(conj);
            product.scaled(alpha, beta).to(y.view_mut())?;
        }
        results.extend(y.view().iter().copied());
    }
    Ok((told, results))
}

/// Results of the library for some random steps, dot products and norms, and what the oracle is to be told of them.
fn steps<T: Element + Pod>(
    device: &Device,
    random: &mut Random,
    (count, broken): (usize, u32),
) -> gemv::Result<(Vec<u8>, Vec<T>)> {
    let (mut told, mut results) = (Vec::new(), Vec::new());
    for _ in 0..count {
        // `enum what` of the oracle.
        let (what, n) = (1 + random.below(11), columns(random));
        let step = |random: &mut Random| [1, 1, 1, 2, 3, -1, -2][random.below(7)];
        let steps: [isize; 3] = [step(random), step(random), step(random)];
        let all = steps.map(|step| {
            let kind = [0, 0, 0, 1, 2, 3, 4, 5, 6][random.below(9)];
            let count = n * step.unsigned_abs();
            Array1::from_shape_simple_fn(count, || element::<T>(random, kind))
        });
        let [x, z, y] = [0, 1, 2].map(|k| all[k].slice(s![..;steps[k]]));
        let mut there = Vec::new();
        for (of, step) in all.iter().zip(steps) {
            there.push(device.vector(of)?.step(.., step));
        }
        let [x_there, z_there, y_there] = &mut there[..] else { unreachable!() };
        // A factor is a number of the host, a resident one or a quotient of two, and either sign of it.
        let kind = random.below(8);
        let (negated, divided, resident) = (kind % 2 == 1, kind >= 6, kind >= 2);
        let mut number: T::Acc = factor(random);
        let by = T::narrow(factor(random));
        let numbers: [DeviceScalar<T>; 2] = [device.scalar(T::narrow(number))?, device.scalar(by)?];
        let of = match (divided, resident) {
            (true, _) => &numbers[0] / &numbers[1],
            (false, true) => Factor::from(&numbers[0]),
            (false, false) => Factor::number(number),
        };
        if resident {
            number = T::narrow(number).widen();
        }
        let of = if negated { -of } else { of };
        let conj = random.below(2) == 1;
        let by = by.widen().parts();
        let made = u32::from(negated) + 2 * u32::from(divided);
        let dtype = code(T::DTYPE);
        told.extend(bytemuck::bytes_of(&[what as u32, dtype, dtype, u32::from(conj), broken]));
        told.extend(bytemuck::bytes_of(&[1, n as u32, made]));
        told.extend(bytemuck::bytes_of(&[number.parts().0, number.parts().1, by.0, by.1]));
        for of in [&x, &z, &y] {
            of.iter().for_each(|of| told.extend(bytemuck::bytes_of(of)));
        }
        // Operands of the host are uploaded for the one step.
        let host = random.below(4) == 0;
        macro_rules! with {
            ($y:ident.$name:ident($($factor:expr)?; $($here:ident, $there:ident);*)) => {
                match host {
                    true => $y.$name($($factor,)? $($here),*),
                    false => $y.$name($($factor,)? $(&*$there),*),
                }?
            };
        }
        match what {
            1 => y_there.fill(of)?,
            2 => with!(y_there.assign(; x, x_there)),
            3 => y_there.scal(of)?,
            4 => with!(y_there.axpy(of; x, x_there)),
            5 => with!(y_there.xpay(of; x, x_there)),
            6 => with!(y_there.assign_product(; x, x_there; z, z_there)),
            7 => with!(y_there.add_product(; x, x_there; z, z_there)),
            8 => with!(y_there.assign_quotient(; x, x_there; z, z_there)),
            9 => with!(y_there.assign_sqrt(; x, x_there)),
            10 => {
                let mut sum = device.scalar(T::zeroed())?;
                match (conj, host) {
                    (false, false) => x_there.dot_into(&*y_there, &mut sum)?,
                    (false, true) => x_there.dot_into(y, &mut sum)?,
                    (true, false) => x_there.dotc_into(&*y_there, &mut sum)?,
                    (true, true) => x_there.dotc_into(y, &mut sum)?,
                }
                results.push(sum.value()?);
                continue;
            }
            _ => {
                results.push(x_there.nrm2()?);
                continue;
            }
        }
        results.extend(y_there.download()?);
    }
    Ok((told, results))
}

/// Runs the oracle.
fn asked<V: Pod>(oracle: &Path, told: Vec<u8>) -> Result<Vec<V>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", oracle.display());
    let mut child = Command::new(oracle)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (mut to, mut from) =
        (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut bytes = Vec::new();
    std::thread::scope(|scope| {
        // What it does not read it does not answer.
        scope.spawn(move || to.write_all(&told));
        from.read_to_end(&mut bytes)
    })
    .map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        return Err(format!("the oracle ended with {status}"));
    }
    Ok(bytes.chunks_exact(size_of::<V>()).map(bytemuck::pod_read_unaligned).collect())
}

/// Whether a result is that of the oracle. Sign and payload of a NaN are not defined.
fn is_same<V: Element>(got: V, want: V) -> bool {
    let parts = |v: V| {
        let (re, im) = v.widen().parts();
        [re, im].map(|part| if part.is_nan() { u64::MAX } else { part.to_bits() })
    };
    parts(got) == parts(want)
}

/// Compares what `batch` does with what the oracle says, `count` times.
fn compare<V: Element + Pod>(
    oracle: &Path,
    (types, count): (u32, usize),
    mut batch: impl FnMut(&mut Random, usize) -> gemv::Result<(Vec<u8>, Vec<V>)>,
) -> Check {
    let mut random = Random(u64::from(types), 0);
    let mut left = count;
    while left > 0 {
        let some = left.min(BATCH);
        let (told, got) = batch(&mut random, some).map_err(|e| e.to_string())?;
        let want = asked::<V>(oracle, told)?;
        if want.len() != got.len() {
            return Err(format!("{} results, and {} of the oracle", got.len(), want.len()));
        }
        let wrong = got.iter().zip(&want).position(|(got, want)| !is_same(*got, *want));
        if let Some(at) = wrong {
            let (first, got, want) = (count - left, got[at], want[at]);
            return Err(format!(
                "result {at} of the problems from {first} on is {got:?}, and {want:?} for the oracle"
            ));
        }
        left -= some;
    }
    Ok(())
}

/// Products.
fn compare_products<T, V>(oracle: &Path, device: &Device, count: usize, broken: u32) -> Check
where
    T: Element + Pod + Times<V>,
    V: Element + Pod,
{
    let types = code(T::DTYPE) * 8 + code(V::DTYPE);
    compare(oracle, (types, count), |random, some| batch::<T, V>(device, random, (some, broken)))
}

/// Steps, dot products and norms.
fn compare_steps<T: Element + Pod>(
    oracle: &Path,
    device: &Device,
    count: usize,
    broken: u32,
) -> Check {
    compare(oracle, (64 + code(T::DTYPE), count), |random, some| {
        steps::<T>(device, random, (some, broken))
    })
}

/// Compiles the oracle.
fn compiled() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracle/order.c");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(folder).map_err(|e| e.to_string())?;
    // Another process may run the one that is there.
    let (new, program) =
        (folder.join(format!("order-{}", std::process::id())), folder.join("order"));
    let cc = std::env::var_os("CC").unwrap_or("cc".into());
    let made = Command::new(&cc)
        .args(["-O2", "-ffp-contract=off", "-o"])
        .args([&new, &source])
        .arg("-lm")
        .output()
        .map_err(|e| format!("{}: {e}", cc.display()))?;
    if !made.status.success() {
        return Err(String::from_utf8_lossy(&made.stderr).into_owned());
    }
    std::fs::rename(&new, &program).map_err(|e| e.to_string())?;
    Ok(program)
}

/// A trial for each pair of types, and for steps of each type.
fn trials(id: &str, device: &Device, oracle: &Path, [products, all]: [usize; 2]) -> Vec<Trial> {
    macro_rules! pair {
        ($t:ty, $v:ty) => {{
            let (device, oracle) = (device.clone(), oracle.to_path_buf());
            let (of, by) = (<$t>::DTYPE, <$v>::DTYPE);
            let types = if of == by { of.to_string() } else { format!("{of}*{by}") };
            trial(format!("{id}/{types}"), move || {
                compare_products::<$t, $v>(&oracle, &device, products / PAIRS + 1, 0)
            })
        }};
    }
    macro_rules! steps {
        ($t:ty) => {{
            let (device, oracle) = (device.clone(), oracle.to_path_buf());
            trial(format!("{id}/steps/{}", <$t>::DTYPE), move || {
                compare_steps::<$t>(&oracle, &device, all / TYPES, 0)
            })
        }};
    }
    vec![
        steps!(f32),
        steps!(f64),
        steps!(f16),
        steps!(bf16),
        steps!(Complex<f32>),
        steps!(Complex<f64>),
        pair!(f32, f32),
        pair!(f64, f64),
        pair!(f16, f16),
        pair!(bf16, bf16),
        pair!(Complex<f32>, Complex<f32>),
        pair!(Complex<f64>, Complex<f64>),
        pair!(f16, f32),
        pair!(bf16, f32),
        pair!(f32, f64),
    ]
}

fn main() {
    let targets = common::targets();
    let mut all = common::absences(&targets);
    let oracle = match compiled() {
        Ok(oracle) => oracle,
        Err(why) => {
            all.push(trial("the oracle is compiled".into(), move || Err(why)));
            return common::main(all);
        }
    };
    for target in &targets {
        let Ok(device) = &target.device else { continue };
        if target.id == "cpu" {
            // Rules that the oracle breaks: in fma, in the halving, in the scaling; in a quotient, in a norm.
            type Broken = fn(&Path, &Device, u32) -> Check;
            let products: Broken =
                |oracle, device, rule| compare_products::<f32, f32>(oracle, device, BATCH, rule);
            let quotients: Broken =
                |oracle, device, rule| compare_steps::<f32>(oracle, device, BATCH, rule);
            // What is rounded twice shows where the element type is narrower than that of the sums.
            let norms: Broken =
                |oracle, device, rule| compare_steps::<f16>(oracle, device, BATCH, rule);
            let all_broken =
                [(1, products), (3, products), (6, products), (10, quotients), (11, norms)];
            for (rule, compare) in all_broken {
                let (device, oracle) = (device.clone(), oracle.clone());
                all.push(trial(format!("cpu/rule broken: {rule}"), move || {
                    match compare(&oracle, &device, rule) {
                        Err(why) if why.starts_with("result ") => Ok(()),
                        other => Err(format!("it was not noticed: {other:?}")),
                    }
                }));
            }
        }
        let fast = target.id.starts_with("cpu");
        // Each program is compiled once, and each product waits for the device.
        all.extend(trials(
            &target.id,
            device,
            &oracle,
            [PRODUCTS, STEPS].map(|of| of[usize::from(!fast)]),
        ));
    }
    common::main(all);
}
