//! Products and a power iteration with a matrix on several devices, beside the first of them alone.
//!
//! ```text
//! cargo run --release -p gemv-examples --features cuda --bin sharded -- --devices 'cuda:*' --size 16G
//! ```
//!
//! All vectors are resident. A product leaves y in parts, each device with its own rows; the power iteration,
//! x = A x / |A x|, makes x whole on each device again. The hash is of the last x, or of the product where the matrix is
//! not square: the same for any devices and any split, or the program fails.
#![deny(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use gemv::{Device, DeviceMatrix, DeviceScalar, DeviceVector, GpuDot, open_devices};
use gemv_examples::{arguments, bytes, hash};
use gemv_shard::{Sharded, ShardedVector, Split};
use ndarray::{Array1, Array2, ArrayView2};
use rayon::prelude::*;

const USAGE: &str = "usage: sharded [--devices LIST] [--size BYTES] [--columns N] [--times N]";
/// Steps of the power iteration.
const STEPS: usize = 20;

struct Options {
    devices: String,
    size: usize,
    columns: Option<usize>,
    times: usize,
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("sharded: {e}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options =
        Options { devices: "cpu, cpu".into(), size: 256 << 20, columns: None, times: 3 };
    for (name, value) in arguments(USAGE)? {
        match name.as_str() {
            "--devices" => options.devices = value,
            "--size" => options.size = bytes(&value)?,
            "--columns" => options.columns = Some(value.parse()?),
            "--times" => options.times = value.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let devices = open_devices(&options.devices)?;
    let elements = options.size / size_of::<f32>();
    let n = options.columns.unwrap_or_else(|| elements.isqrt());
    let m = elements.checked_div(n).unwrap_or(0);
    if m == 0 {
        return Err(format!("--size {} has no row of {n} columns", options.size).into());
    }
    let size = m * n * size_of::<f32>();
    println!("matrix           {m} × {n}, f32, {:.2} GB", 1e-9 * size as f64);
    for device in &devices {
        println!("device           {device}");
    }
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
        "{:<16} {:>11} {:>9} {:>7}  {:>12} {:>7}  hash",
        "", "product", "GB/s", "ratio", "iteration", "ratio"
    );
    let mut first = None;
    let alone = alone(&devices[0], a.view(), &x, options.times)?;
    match &alone {
        Some(alone) => alone.print("alone", size, &mut first)?,
        None => println!("alone            does not fit"),
    }
    let mut splits = vec![("by rows", Split::Rows), ("by columns", Split::Columns)];
    if devices.len().is_power_of_two() {
        splits.push(("cyclic columns", Split::CyclicColumns));
    }
    for (name, split) in splits {
        let a = Sharded::new(&a, &devices, split)?;
        sharded(&a, &x, options.times)?.print(name, size, &mut first)?;
    }
    Ok(())
}

/// Seconds of a product, and of a step of the power iteration where the matrix is square; and the hash of the last result.
struct Measured {
    product: f64,
    iteration: Option<f64>,
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
        let Measured { product, iteration, hash } = *self;
        let base = first.get_or_insert(Measured { product, iteration, hash });
        let us = 1e6 * product;
        let rate = 1e-9 * size as f64 / product;
        print!("{name:<16} {us:>8.1} µs {rate:>9.1} {:>7.2}", base.product / product);
        match iteration.zip(base.iteration) {
            Some((seconds, base)) => print!("  {:>9.1} µs {:>7.2}", 1e6 * seconds, base / seconds),
            None => print!("  {:>20}", ""),
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
    times: usize,
) -> Result<Option<Measured>, Box<dyn Error>> {
    let square = a.is_square();
    let a: DeviceMatrix<f32> = match device.matrix(a) {
        Err(gemv::Error::OutOfMemory { .. }) => return Ok(None),
        a => a?,
    };
    let there = device.vector(x)?;
    let mut y = device.zeros::<f32, _>(a.dim().0)?;
    let product = best(
        times,
        20,
        || Ok(a.try_gemv(1.0, &there, 0.0, &mut y)?),
        || Ok(device.synchronize()?),
    )?;
    if !square {
        return Ok(Some(Measured { product, iteration: None, hash: hash(&y.download()?) }));
    }
    let mut norm = Norm::new(device)?;
    let mut step = |last: &mut DeviceVector<f32>| {
        *last = a.try_gpu_dot(&*last)?;
        norm.normalize(last)
    };
    let mut last = there.clone();
    let seconds = best(times, STEPS, || step(&mut last), || Ok(device.synchronize()?))?;
    let mut last = there;
    (0..STEPS).try_for_each(|_| step(&mut last))?;
    Ok(Some(Measured { product, iteration: Some(seconds), hash: hash(&last.download()?) }))
}

/// With a part of the matrix on each device.
fn sharded(a: &Sharded<f32>, x: &Array1<f32>, times: usize) -> Result<Measured, Box<dyn Error>> {
    let (m, n) = a.dim();
    let wait = || Ok(a.devices().iter().try_for_each(Device::synchronize)?);
    let there = a.broadcast(x)?;
    let mut y = a.scatter(&Array1::<f32>::zeros(m))?;
    let product = best(times, 20, || Ok(a.try_gemv(1.0, &there, 0.0, &mut y)?), wait)?;
    let norms = a.devices().iter().map(Norm::new);
    let mut norms = norms.collect::<Result<Vec<_>, _>>()?;
    let mut step = |last: &mut ShardedVector<f32>| -> Result<(), Box<dyn Error>> {
        *last = a.try_gpu_dot(&*last)?;
        last.parts_mut().zip(&mut norms).try_for_each(|((_, x), norm)| norm.normalize(x))
    };
    if m != n {
        return Ok(Measured { product, iteration: None, hash: hash(&y.gather()?) });
    }
    let mut last = there.clone();
    let seconds = best(times, STEPS, || step(&mut last), wait)?;
    let mut last = there;
    (0..STEPS).try_for_each(|_| step(&mut last))?;
    Ok(Measured { product, iteration: Some(seconds), hash: hash(&last.gather()?) })
}

/// What a device needs to divide a vector by its norm: a place for the norm, and 1.
struct Norm(DeviceScalar<f32>, DeviceScalar<f32>);

impl Norm {
    fn new(device: &Device) -> Result<Norm, Box<dyn Error>> {
        Ok(Norm(device.scalar(0.0)?, device.scalar(1.0)?))
    }

    /// x / |x|. The norm stays on the device.
    fn normalize(&mut self, x: &mut DeviceVector<f32>) -> Result<(), Box<dyn Error>> {
        let Norm(norm, one) = self;
        x.nrm2_into(&mut *norm)?;
        Ok(x.scal(&*one / &*norm)?)
    }
}

/// Seconds of one of `count` calls that are started one after another, of the fastest of some times.
fn best(
    times: usize,
    count: usize,
    mut work: impl FnMut() -> Result<(), Box<dyn Error>>,
    wait: impl Fn() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    work()?;
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
