//! Conjugate gradients for many right-hand sides at once: each iteration is one product with the matrix and six calls for all
//! columns, whatever their number. Each column has the bits of a solver of its own, which the program compares.
//!
//! ```text
//! cargo run --release --bin block_conjugate_gradient -- [--device cuda:0] [--n 4096] [--columns 16] [--dtype f32]
//! ```
//!
//! It prints the time of an iteration beside that of its product.
#![deny(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use gemv::{Device, DeviceMatrix, DeviceVector, Element, GpuDot};
use gemv_examples::{Iteration, clock, count, element, hash, number};
use ndarray::{Array1, Array2};

/// Solves a dense system for many right-hand sides at once.
#[derive(Parser)]
struct Options {
    /// Where: cpu, opencl:0, cuda:0, reference; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Unknowns.
    #[arg(long, default_value_t = 1024, value_parser = count)]
    n: usize,
    /// Right-hand sides.
    #[arg(long, default_value_t = 16, value_parser = count)]
    columns: usize,
    /// f64 or f32.
    #[arg(long, default_value = "f64")]
    dtype: String,
    /// Iterations.
    #[arg(long, default_value_t = 20, value_parser = count)]
    iterations: usize,
    /// Whether the entries of a column of a block of vectors lie side by side, or those of a row.
    #[arg(long, default_value = "columns", value_parser = ["columns", "rows"])]
    layout: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match options.dtype.as_str() {
        "f64" => solve::<f64>(&options),
        "f32" => solve::<f32>(&options),
        other => Err(format!("--dtype {other}: there is f64 and f32").into()),
    };
    gemv_examples::exit(env!("CARGO_BIN_NAME"), done)
}

/// Blocks of vectors, and a number for each column.
struct Block<T: Element> {
    x: DeviceMatrix<T>,
    /// The residuals b - A x, as the recurrence has them.
    r: DeviceMatrix<T>,
    /// The directions of search, and their products with A.
    p: DeviceMatrix<T>,
    ap: DeviceMatrix<T>,
    pap: DeviceVector<T>,
    rr: DeviceVector<T>,
    next: DeviceVector<T>,
}

impl<T: Element> Block<T> {
    /// Begins at X = 0.
    fn new(device: &Device, b: &DeviceMatrix<T>, by_rows: bool) -> gemv::Result<Self> {
        let (n, k) = b.dim();
        let zeros = || -> gemv::Result<DeviceMatrix<T>> {
            if by_rows { device.zeros((n, k)) } else { Ok(device.zeros((k, n))?.t()) }
        };
        let (mut r, mut p, mut rr) = (zeros()?, zeros()?, device.zeros(k)?);
        r.assign(b)?;
        p.assign(b)?;
        r.dot_columns_into(&r, &mut rr)?;
        let (x, ap, pap, next) = (zeros()?, zeros()?, device.zeros(k)?, device.zeros(k)?);
        Ok(Block { x, r, p, ap, pap, rr, next })
    }

    /// One iteration, seven calls.
    fn step(&mut self, a: &DeviceMatrix<T>) -> gemv::Result<()> {
        let Block { x, r, p, ap, pap, rr, next } = self;
        a.try_gpu_dot_into(&*p, &mut *ap)?;
        p.dot_columns_into(&*ap, &mut *pap)?;
        x.axpy(&*rr / &*pap, &*p)?; // a factor for each column
        r.axpy(-(&*rr / &*pap), &*ap)?;
        r.dot_columns_into(&*r, &mut *next)?;
        p.xpay(&*next / &*rr, &*r)?;
        rr.assign(&*next)
    }
}

fn solve<T: Element>(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = gemv_examples::device(options.device.as_deref())?;
    let (n, k, iterations) = (options.n, options.columns, options.iterations);
    // A Kac-Murdock-Szegő matrix, and noise: dense, and well conditioned.
    let powers: Vec<f64> =
        std::iter::successors(Some(1.0), |power| Some(power * 0.9)).take(n).collect();
    let a = Array2::from_shape_fn((n, n), |(i, j)| {
        element(powers[i.abs_diff(j)] + if i == j { 0.5 } else { 0.0 })
    });
    let b = Array2::from_shape_fn((n, k), |(i, j)| {
        element::<T>((i * 7919 + j * 104_729) as f64 % 1009.0 / 1009.0 - 0.5)
    });
    let (a, b_there) = (device.matrix(&a)?, device.matrix(&b)?);

    let state = (a, Block::new(&device, &b_there, options.layout == "rows")?);
    let mut plan = device.plan(state, |(a, block)| block.step(a));
    for _ in 0..iterations {
        plan.run()?;
    }
    let x = plan.state().1.x.download()?;
    let squares = plan.state().1.rr.download()?;
    let worst = squares.iter().map(|&square| number(square).sqrt()).fold(0.0, f64::max);

    let mut differ = 0;
    for (j, column) in b.columns().into_iter().enumerate() {
        let mut one = Iteration::<T>::new(&device, n, iterations)?;
        one.begin(&device.vector(&column)?)?;
        one.run(|p, ap| plan.state().0.try_gpu_dot_into(p, ap))?;
        let alone: Array1<T> = one.x.download()?;
        let same = alone.iter().zip(x.column(j)).all(|(a, b)| a.bits() == b.bits());
        differ += usize::from(!same);
    }

    let (a, mut block) = plan.into_state();
    let product =
        clock::seconds(Some(&device), &mut || a.try_gpu_dot_into(&block.p, &mut block.ap))?;
    let mut plan = device.plan(block, |block| block.step(&a));
    // The first run compiles, the second one records.
    for _ in 0..3 {
        plan.run()?;
    }
    let all = clock::seconds(Some(&device), &mut || plan.run())?;

    let info = device.info();
    println!("{} of {n} unknowns, {k} right-hand sides, on {} ({})", T::DTYPE, info.id, info.name);
    println!("iterations         {iterations}, the largest residual {worst:.3e}");
    println!("hash of the bits   {:016x}", hash(&x));
    println!("columns that differ from a solver of their own: {differ}");
    println!(
        "time               {:.2} us an iteration, {:.2} of its product",
        1e6 * all,
        all / product
    );
    if differ > 0 {
        return Err("a column has other bits than by itself".into());
    }
    Ok(())
}
