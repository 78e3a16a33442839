//! Ridge regression on 1,797 handwritten digits: one linear function of the pixels for each of the ten
//! digits, by conjugate gradients on the normal equations, all on one device.
//!
//! ```text
//! cargo run --release --bin ridge_regression -- [--device cuda:0] [--ridge 10] [--plot FILE.svg]
//! ```
//!
//! It learns from every other image and is tested on the rest. Both are views of one resident matrix.
#![deny(unsafe_code)] // but for what ndarray's s! makes

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use gemv::{DeviceMatrix, DeviceVector, GpuDot};
use gemv_examples::{Iteration, curves, digits, hash, output};
use ndarray::{Array1, Array2, Axis, s};

/// Learns to read handwritten digits.
#[derive(Parser)]
struct Args {
    /// Where: cpu, opencl:0, cuda:0, reference; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// What is added to the diagonal of the normal equations.
    #[arg(long, default_value_t = 10.0)]
    ridge: f64,
    /// Where the picture of the convergence goes; by default target/ridge_regression.svg.
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// Iterations from one look at the residuals to the next, and the residual that will do.
const EVERY: usize = 10;
const TOLERANCE: f64 = 1e-10;

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(Args::parse()))
}

/// What the plan computes with.
struct State {
    /// The images to learn from.
    x: DeviceMatrix<f64>,
    /// The product of them and a direction.
    xp: DeviceVector<f64>,
    solver: Iteration<f64>,
}

fn run(Args { device, ridge, plot }: Args) -> Result<(), Box<dyn Error>> {
    let device = gemv_examples::device(device.as_deref())?;
    // The pixels from 0 to 1, and a column of ones.
    let (images, names) = digits::named()?;
    let mut x = Array2::ones((images.nrows(), images.ncols() + 1));
    x.slice_mut(s![.., 1..]).assign(&(&images / digits::BLACK));
    let all = device.matrix(&x)?;
    let (learnt, tested) = (all.step_rows(.., 2), all.step_rows(1.., 2));

    let (n, unknowns) = learnt.dim();
    let mut weights = device.zeros((unknowns, 10))?;
    let solver = Iteration::new(&device, unknowns, EVERY)?;
    let state = State { x: learnt.clone(), xp: device.zeros(n)?, solver };
    let mut plan = device.plan(state, move |State { x, xp, solver }: &mut State| {
        let transposed = x.t();
        // (Xt X + ridge) p
        solver.run(|p, ap| {
            x.try_gpu_dot_into(p, &mut *xp)?;
            ap.assign(p)?;
            transposed.try_gemv(1.0, &*xp, ridge, &mut *ap)
        })
    });

    let (start, mut iterations, mut residuals) = (Instant::now(), 0, Vec::new());
    for digit in 0..10 {
        let targets = names.iter().step_by(2).map(|&name| if name == digit { 1.0 } else { -1.0 });
        let b = learnt.t().try_gpu_dot(&Array1::from_iter(targets))?;
        let solver = &mut plan.state_mut().solver;
        solver.begin(&b)?;
        let first = solver.first_square()?;
        let mut shares = vec![1.0];
        loop {
            plan.run()?;
            iterations += EVERY;
            let squares = plan.state().solver.squares()?;
            shares.extend(squares.iter().skip(1).map(|square| (square / first).sqrt()));
            match shares.last() {
                Some(&last) if last <= TOLERANCE => break,
                _ if iterations > 10_000 => return Err("no convergence".into()),
                _ => {}
            }
        }
        residuals.push(curves::numbered(&digit.to_string(), &shares));
        weights.column_mut(digit)?.assign(&plan.state().solver.x)?;
    }
    let time = start.elapsed().as_secs_f64();

    let scores = tested.try_gpu_dot(&weights)?.download()?;
    let said = scores.axis_iter(Axis(0)).map(|scores| {
        let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        best.map_or(0, |(digit, _)| digit)
    });
    let right = said.zip(names.iter().skip(1).step_by(2)).filter(|(said, name)| said == *name);
    let (right, of) = (right.count(), scores.nrows());

    let info = device.info();
    println!("{n} images to learn from, {of} to be read, on {} ({})", info.id, info.name);
    println!("iterations         {iterations} for ten digits, {:.3} s", time);
    println!("read               {right} of {of}, {:.1} %", 100.0 * right as f64 / of as f64);
    println!("hash of the bits   {:016x}", hash(&weights.download()?));
    let plot = match plot {
        Some(path) => path,
        None => output("ridge_regression.svg")?,
    };
    let title = "ridge regression by conjugate gradients, a function for each digit";
    curves::convergence(&plot, title, "|r| / |b|", &residuals)?;
    println!("convergence        {}", plot.display());
    Ok(())
}
