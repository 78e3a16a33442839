//! The largest eigenvalue of a symmetric matrix by power iteration, over the ranks of MPI.
//!
//! ```text
//! cargo build --release -p gemv-mpi --features cpu --example mpi_power_iteration
//! mpirun -n 4 target/release/examples/mpi_power_iteration [--split rows|columns|2x2] [--device cpu] \
//!     [--size 2000] [--iterations 20] [--file a.npy] [--without-mpi]
//! ```
//!
//! The matrix is one of the program's own, in f32, or that of a NumPy file, of which each rank reads its part. The
//! eigenvector has the same bits for any split over any number of ranks, and without MPI: the program prints their
//! hash. The device is the default one, or the slow reference where no backend is built in.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use gemv_core::ndarray::{Array1, Array2, Axis};
use gemv_core::{Device, Element, Engine};
use gemv_mpi::{Distributed, Grid, Split, mpi};
use gemv_shard::Streamed;

const USAGE: &str = "usage: mpi_power_iteration [--split rows|columns|PxQ] [--device NAME] [--size N] \
                     [--iterations K] [--file A.npy] [--without-mpi]";

struct Options {
    split: Split,
    device: String,
    size: usize,
    iterations: usize,
    file: Option<PathBuf>,
    /// In this process alone, where nothing of MPI is called.
    without_mpi: bool,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("mpi_power_iteration: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    if options.without_mpi {
        return alone(&options);
    }
    // Products have threads of their own, but MPI is called from this one.
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Funneled)
        .ok_or("MPI was initialized before")?;
    gemv_mpi::abort_on_panic();
    let grid = Grid::new(&universe.world(), options.split)?;
    let device = grid.device(&options.device)?;
    let size = (options.size, options.size);
    let a = match &options.file {
        Some(path) => Distributed::from_npy(&grid, &device, path)?,
        None => Distributed::from_fn(&grid, &device, size, element)?,
    };
    let found = iterate(a.dim(), options.iterations, |x, y| {
        a.gemv(1.0, x, 0.0, &mut *y)?; // collective: the ranks have agreed
        Ok(grid.agree(square(&device, y))?) // a step of this rank alone
    })?;
    if grid.rank() == 0 {
        let (p, q) = grid.dim();
        println!("ranks              {} ({p} × {q})", p * q);
        found.print(&device);
    }
    Ok(())
}

fn alone(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = gemv_core::device(&options.device)?;
    let a = match &options.file {
        Some(path) => {
            let file = Streamed::open(path)?;
            let (m, n) = file.dim();
            file.read_part(0..m, 0..n)?
        }
        None => Array2::from_shape_fn((options.size, options.size), |(i, j)| element(i, j)),
    };
    let found = iterate(a.dim(), options.iterations, |x, y| {
        device.gemv(1.0, &a, x, 0.0, &mut *y)?;
        Ok(square(&device, y)?)
    })?;
    println!("ranks              none");
    found.print(&device);
    Ok(())
}

/// Row i and column j of the matrix.
fn element(i: usize, j: usize) -> f32 {
    1.0 / (1 + i.abs_diff(j)) as f32
}

struct Found {
    eigenvalue: f32,
    vector: Array1<f32>,
    /// Of a product: the middle of all, and the least.
    seconds: (f64, f64),
}

/// `y · y`, by the device, so that its bits are the same everywhere too.
fn square(device: &Device, y: &Array1<f32>) -> gemv_core::Result<f32> {
    Ok(device.try_gpu_dot(&y.view().insert_axis(Axis(0)), y)?[0])
}

/// Power iteration. `step` writes `A x` to y and gives `y · y`.
fn iterate(
    (m, n): (usize, usize),
    iterations: usize,
    mut step: impl FnMut(&Array1<f32>, &mut Array1<f32>) -> Result<f32, Box<dyn Error>>,
) -> Result<Found, Box<dyn Error>> {
    if m != n {
        return Err(format!("a matrix of {m} × {n} has no eigenvalues").into());
    }
    let (mut x, mut y) = (Array1::ones(n), Array1::zeros(n));
    let (mut eigenvalue, mut times) = (0.0, Vec::new());
    for _ in 0..iterations {
        let start = Instant::now();
        let square = step(&x, &mut y)?;
        times.push(start.elapsed().as_secs_f64());
        eigenvalue = square.sqrt();
        x.zip_mut_with(&y, |x, y| *x = y / eigenvalue);
    }
    times.sort_by(f64::total_cmp);
    let at = |index: usize| times.get(index).copied().unwrap_or_default();
    let seconds = (at(times.len() / 2), at(0));
    Ok(Found { eigenvalue, vector: x, seconds })
}

impl Found {
    fn print(&self, device: &Device) {
        println!("device             {}", device.info().id);
        println!("largest eigenvalue {}", self.eigenvalue);
        let (middle, least) = (1e3 * self.seconds.0, 1e3 * self.seconds.1);
        println!("a product          {middle:.3} ms, at best {least:.3} ms");
        println!("hash of the bits   {:016x}", hash(&self.vector));
    }
}

/// FNV-1a of the bits of all entries, as the other examples print it.
fn hash(entries: &Array1<f32>) -> u64 {
    let bytes = entries.iter().flat_map(|entry| entry.bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        split: Split::Rows,
        device: Engine::global()
            .default_device()
            .map_or("reference".into(), |d| d.info().id.clone()),
        size: 2000,
        iterations: 20,
        file: None,
        without_mpi: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--without-mpi" {
            options.without_mpi = true;
            continue;
        }
        let value = args.next().ok_or(USAGE)?;
        let number = || value.parse().map_err(|e| format!("{name} {value}: {e}"));
        match name.as_str() {
            "--split" => options.split = split(&value).ok_or(USAGE)?,
            "--device" => options.device = value,
            "--size" => options.size = number()?,
            "--iterations" => options.iterations = number()?,
            "--file" => options.file = Some(value.into()),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(options)
}

fn split(text: &str) -> Option<Split> {
    Some(match text {
        "rows" => Split::Rows,
        "columns" => Split::Columns,
        grid => {
            let (p, q) = grid.split_once('x')?;
            Split::Grid { p: p.parse().ok()?, q: q.parse().ok()? }
        }
    })
}
