//! Products and a power iteration with a matrix on several devices, beside the first of them alone.
//!
//! ```text
//! cargo run --release -p gemv-examples --features cuda --bin sharded -- --devices 'cuda:*' --size 16G
//! ```
//!
//! All vectors are resident. A product leaves y in parts, each device with its own rows. The power iteration,
//! x = A x / |A x|, makes x whole on each device again: first with each step started by the program, then recorded, as
//! one plan over all devices of `--steps` iterations. `--size` may be a list, such as `64M,256M,1G`. By rows the first two
//! devices are measured, the first three and so on. `--csv FILE` writes the table there as well.
//!
//! The hash is of the last x, or of the product where the matrix is not square: the same for any devices, any split, and
//! with and without a record, or the program fails.
#![deny(unsafe_code)]

use std::error::Error;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use gemv::{Device, DeviceMatrix, DeviceScalar, DeviceVector, GpuDot, open_devices};
use gemv_examples::{bytes, hash};
use gemv_shard::{Sharded, ShardedVector, Split};
use ndarray::{Array1, Array2, ArrayView2};
use rayon::prelude::*;

/// Times products with a matrix on several devices.
#[derive(Parser)]
struct Options {
    /// The devices, such as cuda:*.
    #[arg(long, default_value = "cpu, cpu")]
    devices: String,
    /// Bytes of the matrix, one after the other where there are several.
    #[arg(long, value_delimiter = ',', default_value = "256M", value_parser = bytes)]
    size: Vec<usize>,
    /// Columns of the matrix; by default it is square.
    #[arg(long)]
    columns: Option<usize>,
    /// The best of so many times counts.
    #[arg(long, default_value_t = 3)]
    times: usize,
    /// Iterations of a plan: an even number, since x and y take turns.
    #[arg(long, default_value_t = 20, value_parser = even)]
    steps: usize,
    /// Where the table is written as well.
    #[arg(long)]
    csv: Option<String>,
}

fn even(text: &str) -> Result<usize, std::num::ParseIntError> {
    Ok(text.parse::<usize>()?.max(2).next_multiple_of(2))
}

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let devices = open_devices(&options.devices)?;
    for device in &devices {
        println!("device           {device}");
    }
    let mut csv = "m,n,devices,split,product_s,iteration_s,recorded_s,hash\n".to_string();
    for &size in &options.size {
        let measured = measure(options, &devices, size, &mut csv);
        if let Some(path) = &options.csv {
            // What was measured before something failed, too.
            std::fs::write(path, &csv)?;
        }
        measured?;
    }
    Ok(())
}

/// The table of one matrix.
fn measure(
    options: &Options,
    devices: &[Device],
    size: usize,
    csv: &mut String,
) -> Result<(), Box<dyn Error>> {
    let elements = size / size_of::<f32>();
    let n = options.columns.unwrap_or_else(|| elements.isqrt());
    let m = elements.checked_div(n).unwrap_or(0);
    if m == 0 {
        return Err(format!("--size {size} has no row of {n} columns").into());
    }
    let size = m * n * size_of::<f32>();
    println!("matrix           {m} × {n}, f32, {:.2} GB", 1e-9 * size as f64);
    let mut a = Array2::<f32>::zeros((m, n));
    let rows = a.as_slice_mut().expect("no gaps").par_chunks_mut(n);
    rows.enumerate().for_each(|(row, entries)| {
        entries
            .iter_mut()
            .enumerate()
            .for_each(|(column, entry)| *entry = number(row * n + column));
    });
    let x = Array1::from_shape_fn(n, number);

    println!(
        "{:<20} {:>11} {:>9} {:>7}  {:>12} {:>7}  {:>12} {:>7}  hash",
        "", "product", "GB/s", "ratio", "iteration", "ratio", "recorded", "ratio"
    );
    let mut first = None;
    let mut told = |count: usize, split: &str, measured: Measured| {
        let seconds = |of: Option<f64>| of.map_or(String::new(), |seconds| seconds.to_string());
        let Measured { product, iteration, recorded, hash } = measured;
        let (iteration, recorded) = (seconds(iteration), seconds(recorded));
        writeln!(csv, "{m},{n},{count},{split},{product},{iteration},{recorded},{hash:016x}")?;
        let name = if count == 1 { split.into() } else { format!("{count} {split}") };
        measured.print(&name, size, &mut first)
    };
    match alone(&devices[0], a.view(), &x, options)? {
        Some(alone) => told(1, "alone", alone)?,
        None => println!("alone                does not fit"),
    }
    let all = devices.len();
    let mut splits: Vec<_> = (2..=all).map(|count| (count, "by rows", Split::Rows)).collect();
    splits.push((all, "by columns", Split::Columns));
    if all.is_power_of_two() {
        splits.push((all, "cyclic columns", Split::CyclicColumns));
    }
    for (count, name, split) in splits {
        let a = match Sharded::new(&a, &devices[..count], split) {
            Err(gemv_shard::Error::Product(gemv::Error::OutOfMemory { .. })) => {
                println!("{:<20} does not fit", format!("{count} {name}"));
                continue;
            }
            a => a?,
        };
        told(count, name, sharded(&a, &x, options)?)?;
    }
    Ok(())
}

/// Seconds of a product, and of a step of the power iteration where the matrix is square, started one by one and
/// recorded; and the hash of the last result.
#[derive(Clone, Copy)]
struct Measured {
    product: f64,
    iteration: Option<f64>,
    recorded: Option<f64>,
    hash: u64,
}

impl Measured {
    /// A line of the table; the first one is what the others are compared with.
    fn print(
        &self,
        name: &str,
        size: usize,
        first: &mut Option<Measured>,
    ) -> Result<(), Box<dyn Error>> {
        let base = *first.get_or_insert(*self);
        let Measured { product, iteration, recorded, hash } = *self;
        let us = 1e6 * product;
        let rate = 1e-9 * size as f64 / product;
        print!("{name:<20} {us:>8.1} µs {rate:>9.1} {:>7.2}", base.product / product);
        for (seconds, base) in [(iteration, base.iteration), (recorded, base.recorded)] {
            match seconds.zip(base) {
                Some((seconds, base)) => {
                    print!("  {:>9.1} µs {:>7.2}", 1e6 * seconds, base / seconds);
                }
                None => print!("  {:>20}", ""),
            }
        }
        println!("  {hash:016x}");
        match hash == base.hash {
            true => Ok(()),
            false => Err("the bits of the results differ".into()),
        }
    }
}

/// With the whole matrix on one device; `None` if it does not fit.
fn alone(
    device: &Device,
    a: ArrayView2<'_, f32>,
    x: &Array1<f32>,
    options: &Options,
) -> Result<Option<Measured>, Box<dyn Error>> {
    let square = a.is_square();
    let a: DeviceMatrix<f32> = match device.matrix(a) {
        Err(gemv::Error::OutOfMemory { .. }) => return Ok(None),
        a => a?,
    };
    let there = device.vector(x)?;
    let mut y = device.zeros::<f32, _>(a.dim().0)?;
    let wait = || Ok(device.synchronize()?);
    let product = || Ok(a.try_gemv(1.0, &there, 0.0, &mut y)?);
    let product = best(options.times, 20, product, wait)?;
    if !square {
        let hash = hash(&y.download()?);
        return Ok(Some(Measured { product, iteration: None, recorded: None, hash }));
    }
    let mut norm = Norm::new(device)?;
    let mut step = |last: &mut DeviceVector<f32>| -> Result<(), Box<dyn Error>> {
        *last = a.try_gpu_dot(&*last)?;
        Ok(norm.normalize(last)?)
    };
    let mut last = there.clone();
    let seconds = best(options.times, options.steps, || step(&mut last), wait)?;
    let mut last = there.clone();
    (0..options.steps).try_for_each(|_| step(&mut last))?;
    let hashed = hash(&last.download()?);

    let state = (there, last, Norm::new(device)?);
    let mut plan = device.plan(state, |(x, y, norm)| {
        for _ in 0..options.steps / 2 {
            a.try_gpu_dot_into(&*x, &mut *y)?;
            norm.normalize(y)?;
            a.try_gpu_dot_into(&*y, &mut *x)?;
            norm.normalize(x)?;
        }
        Ok(())
    });
    let recorded = best(options.times, 4, || Ok(plan.run()?), wait)?;
    plan.state_mut().0.assign(x)?;
    plan.run()?;
    if hash(&plan.state().0.download()?) != hashed {
        return Err("the bits of the recorded iteration differ".into());
    }
    let (iteration, recorded) = (Some(seconds), Some(recorded / options.steps as f64));
    Ok(Some(Measured { product, iteration, recorded, hash: hashed }))
}

/// With a part of the matrix on each device.
fn sharded(
    a: &Sharded<f32>,
    x: &Array1<f32>,
    options: &Options,
) -> Result<Measured, Box<dyn Error>> {
    let (m, n) = a.dim();
    let wait = || Ok(a.devices().iter().try_for_each(Device::synchronize)?);
    let there = a.broadcast(x)?;
    let mut y = a.scatter(&Array1::<f32>::zeros(m))?;
    let product = || Ok(a.try_gemv(1.0, &there, 0.0, &mut y)?);
    let product = best(options.times, 20, product, wait)?;
    if m != n {
        let hash = hash(&y.gather()?);
        return Ok(Measured { product, iteration: None, recorded: None, hash });
    }
    let norms = || a.devices().iter().map(Norm::new).collect::<gemv::Result<Vec<_>>>();
    let mut of_each = norms()?;
    let mut step = |last: &mut ShardedVector<f32>| -> Result<(), Box<dyn Error>> {
        *last = a.try_gpu_dot(&*last)?;
        Ok(normalize(last, &mut of_each)?)
    };
    let mut last = there.clone();
    let seconds = best(options.times, options.steps, || step(&mut last), wait)?;
    let mut last = there.clone();
    (0..options.steps).try_for_each(|_| step(&mut last))?;
    let hashed = hash(&last.gather()?);

    let mut plan = a.plan((there, last, norms()?), |(x, y, norms)| {
        for _ in 0..options.steps / 2 {
            a.try_gpu_dot_into(&*x, &mut *y)?;
            normalize(y, norms)?;
            a.try_gpu_dot_into(&*y, &mut *x)?;
            normalize(x, norms)?;
        }
        Ok(())
    });
    let recorded = best(options.times, 4, || Ok(plan.run()?), wait)?;
    for (_, whole) in plan.state_mut().0.parts_mut() {
        whole.assign(x)?;
    }
    plan.run()?;
    for (_, whole) in plan.state().0.parts() {
        if hash(&whole.download()?) != hashed {
            return Err("the bits of the recorded iteration differ".into());
        }
    }
    let (iteration, recorded) = (Some(seconds), Some(recorded / options.steps as f64));
    Ok(Measured { product, iteration, recorded, hash: hashed })
}

/// Divides a vector that is whole on each device by its norm, which each device computes.
fn normalize(x: &mut ShardedVector<f32>, norms: &mut [Norm]) -> gemv::Result<()> {
    x.parts_mut().zip(norms).try_for_each(|((_, x), norm)| norm.normalize(x))
}

/// What a device needs to divide a vector by its norm: a place for the norm, and 1.
struct Norm(DeviceScalar<f32>, DeviceScalar<f32>);

impl Norm {
    fn new(device: &Device) -> gemv::Result<Norm> {
        Ok(Norm(device.scalar(0.0)?, device.scalar(1.0)?))
    }

    /// x / |x|. The norm stays on the device.
    fn normalize(&mut self, x: &mut DeviceVector<f32>) -> gemv::Result<()> {
        let Norm(norm, one) = self;
        x.nrm2_into(&mut *norm)?;
        x.scal(&*one / &*norm)
    }
}

/// Seconds of one of `count` calls that are started one after another, of the fastest of some times.
fn best(
    times: usize,
    count: usize,
    mut work: impl FnMut() -> Result<(), Box<dyn Error>>,
    wait: impl Fn() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    // A plan is started once, then recorded, then replayed.
    (0..3).try_for_each(|_| work())?;
    wait()?;
    let mut least = f64::INFINITY;
    for _ in 0..times.max(1) {
        let start = Instant::now();
        (0..count).try_for_each(|_| work())?;
        wait()?;
        least = least.min(start.elapsed().as_secs_f64() / count as f64);
    }
    Ok(least)
}

/// The entry of a place: between -1 and 1.
fn number(place: usize) -> f32 {
    let bits = (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    bits as f32 / (1 << 23) as f32 - 1.0
}
