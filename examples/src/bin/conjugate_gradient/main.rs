//! Conjugate gradients on one device: the best linear prediction of a first-order autoregressive
//! process from n noisy observations, whose covariance matrix is dense.
//!
//! ```text
//! cargo run --release --bin conjugate_gradient -- [--device cuda:0] [--n 4096] [--dtype f32]
//! ```
//!
//! The matrix, the vectors and every number of the iteration live on the device. The host looks at the
//! residuals once in some iterations and else does nothing but start a recorded plan. The solution has
//! the same bits on every device: the program prints their hash.
#![deny(unsafe_code)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use gemv::{Accumulator, Element, GpuDot};
use gemv_examples::{Iteration, count, curves, element, hash, output};
use indicatif::{ProgressBar, ProgressStyle};
use ndarray::{Array1, Array2};

/// Solves a dense system.
#[derive(Parser)]
struct Options {
    /// Where: cpu, opencl:0, cuda:0, reference; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Unknowns.
    #[arg(long, default_value_t = 2048, value_parser = count)]
    n: usize,
    /// f64 or f32.
    #[arg(long, default_value = "f64")]
    dtype: String,
    /// Ends at this residual; by default 1e-12, or 1e-5 in f32.
    #[arg(long)]
    tolerance: Option<f64>,
    /// Iterations from one look at the residuals to the next.
    #[arg(long, default_value_t = 10, value_parser = count)]
    every: usize,
    /// Where the picture of the convergence goes; by default target/conjugate_gradient.svg.
    #[arg(long)]
    plot: Option<PathBuf>,
}

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(&Options::parse()))
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    match options.dtype.as_str() {
        "f64" => solve::<f64>(options, options.tolerance.unwrap_or(1e-12)),
        "f32" => solve::<f32>(options, options.tolerance.unwrap_or(1e-5)),
        other => Err(format!("--dtype {other}: there is f64 and f32").into()),
    }
}

/// The covariance of n observations: correlations 0.97 to the power of their distance (a
/// Kac-Murdock-Szegő matrix), and noise of a tenth of the variance.
fn covariance<T: Element>(n: usize) -> Array2<T> {
    let powers: Vec<f64> =
        std::iter::successors(Some(1.0), |power| Some(power * 0.97)).take(n).collect();
    Array2::from_shape_fn((n, n), |(i, j)| {
        element(powers[i.abs_diff(j)] + if i == j { 0.1 } else { 0.0 })
    })
}

/// The observations: a slow wave in steps, and what a repeatable noise adds.
fn observations<T: Element>(n: usize) -> Array1<T> {
    Array1::from_shape_fn(n, |i| {
        let noise = (i * 7919 % 1009) as f64 / 1009.0 - 0.5;
        let wave = (i * 16 / n) as f64 % 4.0 - 1.5;
        element(wave + noise)
    })
}

fn solve<T: Element>(options: &Options, tolerance: f64) -> Result<(), Box<dyn Error>> {
    let device = gemv_examples::device(options.device.as_deref())?;
    let (n, every) = (options.n, options.every);
    let (a, b) = (covariance::<T>(n), observations::<T>(n));
    let mut solver = Iteration::new(&device, n, every)?;
    let b_there = device.vector(&b)?;
    solver.begin(&b_there)?;
    let norm = solver.first_square()?.sqrt();
    let mut residuals = vec![1.0];

    let bar = ProgressBar::new((-100.0 * tolerance.log10()).max(1.0) as u64);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {elapsed} {msg}")?);
    let mut plan = device.plan((device.matrix(&a)?, solver), |(a, solver)| {
        solver.run(|p, ap| a.try_gpu_dot_into(p, ap))
    });
    // The first run compiles, the second one records. The third, from x = 0 again, compares the work with
    // the record, because the state was changed. The clock starts behind it.
    for _ in 0..2 {
        plan.run()?;
    }
    plan.state_mut().1.begin(&b_there)?;
    let (mut start, mut timed) = (None, 0);
    while residuals.last().is_some_and(|&residual| residual > tolerance) {
        if residuals.len() > 10 * n + every {
            return Err(format!("no convergence in {} iterations", residuals.len() - 1).into());
        }
        plan.run()?;
        let squares = plan.state().1.squares()?;
        residuals.extend(squares.iter().skip(1).map(|square| square.sqrt() / norm));
        let last = residuals.last().copied().unwrap_or(f64::NAN);
        if !last.is_finite() {
            return Err("the residual is no number: the matrix is not positive definite".into());
        }
        bar.set_position((-100.0 * last.log10()).max(0.0) as u64);
        bar.set_message(format!("{} iterations, residual {last:.1e}", residuals.len() - 1));
        match start {
            None => start = Some(Instant::now()),
            Some(_) => timed += every,
        }
    }
    let time = start.map(|start| start.elapsed().as_secs_f64());
    bar.finish_and_clear();

    let (a, solver) = plan.into_state();
    let x = solver.x.download()?;
    // The residual itself, beside that of the recurrence.
    let mut r = device.vector(&b)?;
    a.try_gemv(T::Acc::ONE.neg(), &solver.x, T::Acc::ONE, &mut r)?;
    let truth = r.nrm2()?.widen().parts().0 / norm;

    let (iterations, info) = (residuals.len() - 1, device.info());
    println!("{} of {n} unknowns on {} ({})", T::DTYPE, info.id, info.name);
    println!("iterations         {iterations}, the host looked {} times", iterations / every);
    println!(
        "residual           {:.3e} by the recurrence, {truth:.3e} computed",
        residuals[iterations]
    );
    if let (Some(time), 1..) = (time, timed) {
        let each = 1e6 * time / timed as f64;
        println!("time               {each:.2} us an iteration, the last {timed} of them");
    }
    println!("hash of the bits   {:016x}", hash(&x));
    let plot = match &options.plot {
        Some(path) => path.clone(),
        None => output("conjugate_gradient.svg")?,
    };
    let title = format!("conjugate gradients, {} of {n} unknowns", T::DTYPE);
    curves::convergence(&plot, &title, "|r| / |b|", &[curves::numbered("", &residuals)])?;
    println!("convergence        {}", plot.display());
    Ok(())
}
