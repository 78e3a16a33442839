//! The largest eigenvalues of a dense symmetric matrix, and their eigenvectors, by LOBPCG (Knyazev, Toward
//! the optimal preconditioned eigensolver, 2001): kernel principal components (Schölkopf, Smola and
//! Müller, 1998) of 1,797 handwritten digits.
//!
//! ```text
//! cargo run --release -p gemv-examples --features solvers --bin lobpcg -- [--device cuda:0] [--degree 2]
//! ```
//!
//! Entry i, j of the matrix is the product of images i and j to the power of the degree, centred. With degree
//! 1 its eigenvalues are those of the covariance of the 64 pixels, which the program finds by another way
//! and compares.
//!
//! The matrix and the blocks of vectors live on the device. The host solves the small eigenproblems in f64
//! (nalgebra) and decides which vectors are searched from. The eigenvectors have the same bits on every
//! device: the program prints their hash.
#![deny(unsafe_code)]

mod small;
mod solver;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use gemv::{Accumulator, Device, DeviceMatrix, Element, GpuDot};
use gemv_examples::{curves, digits, element, hash, number, output};
use indicatif::{ProgressBar, ProgressStyle};
use ndarray::{Array1, Array2, Axis, s};
use small::Small;
use solver::{Clocks, Lobpcg};

/// Finds the strongest kernel principal components of handwritten digits.
#[derive(Parser)]
struct Args {
    /// Where: cpu, opencl:0, cuda:0, reference; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Images: rows and columns of the matrix.
    #[arg(long, default_value_t = 1797)]
    n: usize,
    /// Eigenpairs to find.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    count: u16,
    /// The kernel: products of images to this power.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    degree: u8,
    /// f64 or f32.
    #[arg(long, default_value = "f64")]
    dtype: String,
    /// Ends when the 2-norm of each residual is no more than this share of the largest eigenvalue; by
    /// default 1e-10, or 1e-5 in f32.
    #[arg(long)]
    tolerance: Option<f64>,
    /// Where the picture of the convergence goes; by default target/lobpcg.svg.
    #[arg(long)]
    plot: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.dtype.as_str() {
        "f64" => run::<f64>(&args, args.tolerance.unwrap_or(1e-10), f64::EPSILON),
        "f32" => run::<f32>(&args, args.tolerance.unwrap_or(1e-5), f32::EPSILON.into()),
        other => Err(format!("--dtype {other}: there is f64 and f32").into()),
    };
    gemv_examples::exit(env!("CARGO_BIN_NAME"), done)
}

/// Products of the images to the power of the degree, less their means along rows and columns.
fn kernel<T: Element>(
    device: &Device,
    images: &Array2<f64>,
    degree: u8,
) -> gemv::Result<DeviceMatrix<T>> {
    let n = images.nrows();
    let images = device.matrix(&images.mapv(element::<T>))?;
    let products = images.try_gpu_dot(&images.t())?;
    let mut kernel = products.clone();
    for _ in 1..degree {
        let mut power = device.zeros((n, n))?;
        power.assign_product(&kernel, &products)?;
        kernel = power;
    }
    drop(products);
    // The mean of each row, less half of the mean of all, is taken from the row and from the column.
    let share = Array1::from_elem(n, element::<T>(1.0 / n as f64));
    let mut means = kernel.try_gpu_dot(&share)?;
    let half = number(means.try_gpu_dot(&share)?) / 2.0;
    means
        .axpy(gemv::Factor::number(T::Acc::ONE.neg()), &Array1::from_elem(n, element::<T>(half)))?;
    let mut left = device.zeros((n, 2))?;
    left.column_mut(0)?.fill(gemv::Factor::number(T::Acc::ONE))?;
    left.column_mut(1)?.assign(&means)?;
    let right = left.step_columns(.., -1);
    device.product(&left, &right.t()).scaled(T::Acc::ONE.neg(), T::Acc::ONE).to(&mut kernel)?;
    Ok(kernel)
}

/// What is known of the eigenvalues of the kernel of degree 1: those of the pixels' covariance, times the number of
/// images less 1.
fn known(images: &Array2<f64>) -> Result<Vec<f64>, Box<dyn Error>> {
    let centred = images - &images.mean_axis(Axis(0)).ok_or("no images")?;
    let gram = centred.t().dot(&centred);
    let gram = Small::from_fn(gram.nrows(), gram.ncols(), |i, j| gram[[i, j]]);
    Ok(small::eigenvalues(gram).ok_or("the covariance is not finite")?)
}

fn run<T: Element>(args: &Args, tolerance: f64, epsilon: f64) -> Result<(), Box<dyn Error>> {
    let count = usize::from(args.count);
    // Some vectors more than wanted: the last ones converge as fast as the gap behind the block is wide.
    let block = count + count.div_ceil(4).max(2);
    let images = digits::read()? / digits::BLACK;
    if args.n > images.nrows() || args.n < 3 * block {
        let most = images.nrows();
        return Err(format!("--n {}: it is from {} to {most}", args.n, 3 * block).into());
    }
    if tolerance.is_nan() || tolerance <= 0.0 {
        return Err("--tolerance must be above 0".into());
    }
    let images = images.slice(s![..args.n, ..]).to_owned();
    let device = gemv_examples::device(args.device.as_deref())?;
    let a = kernel::<T>(&device, &images, args.degree)?;

    let bar = ProgressBar::new((-100.0 * tolerance.log10()).max(1.0) as u64);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {elapsed} {msg}")?);
    // The first run compiles. The clock is that of the second one.
    let mut last = None;
    for _ in 0..2 {
        let mut solver = Lobpcg::new(a.clone(), block, epsilon)?;
        solver.clocks = Clocks::default();
        device.synchronize()?;
        // The residuals of each eigenpair, iteration by iteration.
        let (start, mut residuals) = (Instant::now(), vec![Vec::new(); count]);
        solver.run(count, tolerance, |all| {
            residuals.iter_mut().zip(all).for_each(|(of, residual)| of.push(*residual));
            let worst = all[..count].iter().copied().fold(0.0, f64::max);
            bar.set_position((-100.0 * worst.log10()).max(0.0) as u64);
            bar.set_message(format!("{} iterations, residual {worst:.1e}", residuals[0].len()));
        })?;
        last = Some((start.elapsed().as_secs_f64(), solver, residuals));
    }
    let (time, mut solver, residuals) = last.ok_or("nothing was run")?;
    let clocks = solver.clocks;
    bar.finish_and_clear();

    let (norms, apart) = solver.check()?;
    let (values, iterations) = (&solver.values[..count], residuals[0].len());
    let (info, n) = (device.info(), args.n);
    println!("{} of {n} x {n} on {} ({})", T::DTYPE, info.id, info.name);
    println!("eigenvalue        variance          residual / largest eigenvalue");
    // In squares of the pixels' units, as the pixels are given.
    let unit = digits::BLACK.powi(2 * i32::from(args.degree)) / (n - 1) as f64;
    for (value, norm) in values.iter().zip(&norms) {
        println!("{value:<18.10e}{:<18.10e}{:.3e}", value * unit, norm / values[0]);
    }
    println!("orthonormal to     {apart:.3e}");
    if args.degree == 1 {
        let known = known(&images)?;
        let difference = values.iter().zip(&known).map(|(mine, known)| (mine - known).abs());
        let difference = difference.fold(0.0, f64::max) / known[0];
        println!("eigenvalues        {difference:.3e} from those of the covariance");
    }
    println!("iterations         {iterations}, with {block} vectors");
    let share = |part: std::time::Duration| 100.0 * part.as_secs_f64() / time;
    println!(
        "time               {time:.3} s: {:.0} % products with the matrix, {:.0} % with blocks, {:.0} % \
         small problems on the host",
        share(clocks.matrix),
        100.0 - share(clocks.matrix) - share(clocks.host),
        share(clocks.host)
    );
    let vectors = solver.vectors().columns(..count).download()?;
    println!("hash of the bits   {:016x}", hash(&vectors));
    let plot = match &args.plot {
        Some(path) => path.clone(),
        None => output("lobpcg.svg")?,
    };
    let title = format!("LOBPCG, {} of {n} x {n}", T::DTYPE);
    let named = residuals.iter().enumerate();
    let named: Vec<curves::Curve> =
        named.map(|(k, of)| curves::numbered(&format!("{}", k + 1), of)).collect();
    curves::convergence(&plot, &title, "residual", &named)?;
    println!("convergence        {}", plot.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entry by entry, as it is written down.
    #[test]
    fn a_kernel_is_centred() {
        let images = digits::read().unwrap().slice(s![..40, ..]).to_owned() / digits::BLACK;
        let device = gemv::device("reference").unwrap();
        let found = kernel::<f64>(&device, &images, 3).unwrap().download().unwrap();
        let powers = images.dot(&images.t()).mapv(|product| product.powi(3));
        let means = powers.mean_axis(Axis(0)).unwrap();
        let mean = means.mean().unwrap();
        for ((i, j), &entry) in found.indexed_iter() {
            let wanted = powers[[i, j]] - means[i] - means[j] + mean;
            assert!((entry - wanted).abs() <= 1e-12 * powers[[i, i]].max(powers[[j, j]]));
            assert_eq!(entry, found[[j, i]]);
        }
    }

    #[test]
    fn eigenvalues_are_those_of_a_direct_method() {
        let images = digits::read().unwrap().slice(s![..120, ..]).to_owned() / digits::BLACK;
        let device = gemv_examples::device(None).unwrap();
        for degree in [1, 3] {
            let a = kernel::<f64>(&device, &images, degree).unwrap();
            let host = a.download().unwrap();
            let mut solver = Lobpcg::new(a, 7, f64::EPSILON).unwrap();
            solver.run(5, 1e-9, |_| {}).unwrap();
            let direct = Small::from_fn(120, 120, |i, j| host[[i, j]]);
            let direct = small::eigenvalues(direct).unwrap();
            for (mine, wanted) in solver.values.iter().zip(&direct[..5]) {
                assert!((mine - wanted).abs() <= 1e-12 * direct[0], "{mine} is not {wanted}");
            }
        }
    }
}
