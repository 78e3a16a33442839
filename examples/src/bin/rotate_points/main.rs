//! Rotate and shift: v_i = U r_i + s_i for millions of points, an exercise of the course SDS 406.
//!
//! By the library it is one call, the points as a matrix times the transpose of U, with beta = 1. By
//! hand it is a kernel with a thread for each point, or with one for each component and shared memory:
//! one text for OpenCL and CUDA, through `gemv::kernel::Kernel`. On the CPU the hand is a loop on rayon's pool.
//!
//! ```text
//! cargo run --release -p gemv-examples --features cuda --bin rotate_points -- --device cuda:0
//! ```
#![deny(unsafe_code)]

#[allow(unsafe_code)] // launches of own kernels
mod device;
mod host;
mod picture;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use device::{Kernels, Points};
use gemv::{Device, ToDevice};
use gemv_examples::clock::seconds;
use ndarray::Array2;

/// Rotates and shifts a cloud of points, by the library and by hand.
#[derive(Parser)]
struct Args {
    /// Where: cpu, opencl:0, cuda:0; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Points; by default 128 Mi, or as many as leave most of the device's memory free; 16 Mi where the
    /// device's memory is the host's.
    #[arg(long, value_parser = clap::value_parser!(u64).range(4..=1 << 32))]
    points: Option<u64>,
    /// Where the picture of the cloud goes, before and after.
    #[arg(long, default_value = "target/rotate_points.png")]
    picture: PathBuf,
}

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(&Args::parse()))
}

/// Nine products and as many additions.
const FLOPS: f64 = 18.0;
/// r and s read, v written: three words each.
const BYTES: f64 = 36.0;
/// Threads of a block.
const BLOCKS: [u32; 6] = [32, 64, 128, 256, 512, 1024];
/// The same where a block has whole points.
const WHOLE: [u32; 4] = [96, 192, 384, 768];
/// Points of the picture.
const SHOWN: usize = 1 << 20;

/// What is the same for every way: the points, and the roof.
struct Problem {
    u: Array2<f32>,
    r: Array2<f32>,
    s: Array2<f32>,
    /// Bytes a second that a copy reads and writes.
    roof: f64,
}

/// What came out: seconds of every way by its name.
type Times = Vec<(&'static str, f64)>;

/// The library's ways: points row by row, and by columns.
const LIBRARY: [(&str, bool); 2] = [("library", false), ("lib. columns", true)];

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let device = gemv_examples::device(args.device.as_deref())?;
    let points = match args.points {
        Some(points) => usize::try_from(points)?,
        None if device.info().host => 16 << 20,
        // A tenth of it: 24 bytes a point.
        None => {
            let memory = device.info().memory.unwrap_or(4 << 30);
            (memory as usize / 256).clamp(4, 128 << 20)
        }
    };
    println!("{device}\n{points} points");
    let (u, r, s) = (host::rotation(1.0), host::cloud(points), host::shifts(points));
    let mut problem = Problem { u, r, s, roof: 0.0 };

    // The device of the backend `cpu` runs no kernels: its hand is a loop on the host.
    let on_host = device.info().id.starts_with("cpu");
    let times = if on_host { by_host(&mut problem)? } else { by_kernels(&device, &mut problem)? };
    let (library, first) = by_library(&device, &problem)?;
    let best = times.iter().min_by(|a, b| a.1.total_cmp(&b.1)).ok_or("no way by hand")?;
    println!();
    for (way, seconds) in library {
        println!(
            "{way}: {:.2} of the copy's bandwidth, {:.2} times as fast as {} by hand",
            BYTES * points as f64 / seconds / problem.roof,
            best.1 / seconds,
            best.0
        );
    }

    if let Some(folder) = args.picture.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let words = 3 * points.min(SHOWN);
    let before = problem.r.as_slice().ok_or("points row by row")?;
    let after = first.as_slice().ok_or("points row by row")?;
    picture::write(&args.picture, &[&before[..words], &after[..words]])?;
    println!("the cloud before and after: {}", args.picture.display());
    Ok(())
}

/// The table's head, once the roof is known.
fn head(problem: &Problem) {
    println!("copy: {:.1} GB/s read and written\n", problem.roof * 1e-9);
    println!(
        "{:<14}{:>8}{:>12}{:>10}{:>9}{:>7}{:>16}",
        "", "threads", "ms", "Gflop/s", "GB/s", "share", "difference"
    );
}

/// A line of the table. `difference` is the largest from the exact result.
fn line(
    problem: &Problem,
    (way, threads): (&str, Option<usize>),
    seconds: f64,
    difference: f64,
) -> Result<(), Box<dyn Error>> {
    let points = problem.r.nrows() as f64;
    let rate = points * BYTES / seconds;
    println!(
        "{way:<14}{:>8}{:>12.3}{:>10.2}{:>9.1}{:>7.2}{difference:>16.2e}",
        threads.map_or(String::new(), |threads| threads.to_string()),
        seconds * 1e3,
        points * FLOPS / seconds * 1e-9,
        rate * 1e-9,
        rate / problem.roof,
    );
    // Some roundings of numbers below 8.
    if difference > 16.0 * f64::from(f32::EPSILON) {
        return Err(format!("{way}: a difference of {difference:e} is no rounding").into());
    }
    Ok(())
}

/// The library's seconds and its result, with the points row by row, and with each component together:
/// the same bits.
fn by_library(device: &Device, problem: &Problem) -> Result<(Times, Array2<f32>), Box<dyn Error>> {
    let Problem { u, r, s, .. } = problem;
    let (mut times, mut results) = (Times::new(), Vec::new());
    for (way, by_columns) in LIBRARY {
        // By columns in memory, m x 3 all the same.
        let stored = |points: &Array2<f32>| match by_columns {
            true => points.t().as_standard_layout().reversed_axes().to_device(device),
            false => points.to_device(device),
        };
        let (u, r, mut v) = (u.to_device(device)?, stored(r)?, stored(s)?);
        device.product(&r, &u.t()).scaled(1.0, 1.0).to(&mut v)?;
        let first = v.download()?;
        let words = first.as_slice().ok_or("points row by row")?;
        let difference = host::largest_difference(problem.u.view(), &problem.r, s, words);
        let mut work = || device.product(&r, &u.t()).scaled(1.0, 1.0).to(&mut v);
        let time = seconds(Some(device), &mut work)?;
        line(problem, (way, None), time, difference)?;
        times.push((way, time));
        results.push(first);
    }
    if results.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err("the library's results differ with the layout".into());
    }
    Ok((times, results.pop().ok_or("no layout")?))
}

/// By hand on rayon's pools of 1, 2, 4, .. threads.
fn by_host(problem: &mut Problem) -> Result<Times, Box<dyn Error>> {
    let most = rayon::current_num_threads();
    let mut v = problem.s.as_slice().ok_or("points row by row")?.to_vec();
    let words = problem.r.as_slice().ok_or("points row by row")?;
    let time = seconds(None, &mut || {
        host::copy(words, &mut v);
        Ok(())
    })?;
    problem.roof = 8.0 * words.len() as f64 / time;
    head(problem);
    let Problem { u, r, s, .. } = &*problem;
    let words = r.as_slice().ok_or("points row by row")?;
    let mut times = Times::new();
    let counts = (0..).map(|power| 1usize << power).take_while(|&count| count < most);
    for threads in counts.chain([most]) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        v.copy_from_slice(s.as_slice().ok_or("points row by row")?);
        pool.install(|| host::rotate(u.view(), words, &mut v));
        let difference = host::largest_difference(u.view(), r, s, &v);
        let mut work = || {
            pool.install(|| host::rotate(u.view(), words, &mut v));
            Ok(())
        };
        let time = seconds(None, &mut work)?;
        line(problem, ("rayon", Some(threads)), time, difference)?;
        times.push(("rayon", time));
    }
    Ok(times)
}

/// A kernel by hand, with so many threads a block.
type ByHand = fn(&Kernels, u32, &mut Points) -> gemv::Result<()>;

/// By hand with blocks of several sizes.
fn by_kernels(device: &Device, problem: &mut Problem) -> Result<Times, Box<dyn Error>> {
    let kernels = Kernels::compile(device)?;
    let most = kernels.most_threads();
    let (u, r) = (problem.u.to_device(device)?, problem.r.to_device(device)?);
    let mut points = Points { u, r, v: problem.s.to_device(device)? };
    for threads in BLOCKS.into_iter().filter(|&threads| threads <= most) {
        let mut words = 0;
        let mut work = || {
            words = kernels.copy(threads, &mut points)?;
            Ok(())
        };
        let time = seconds(Some(device), &mut work)?;
        problem.roof = problem.roof.max(8.0 * words as f64 / time);
    }
    head(problem);
    let mut times = Times::new();
    let ways: [(&'static str, ByHand, &[u32]); 2] =
        [("by point", Kernels::by_point, &BLOCKS), ("by component", Kernels::by_component, &WHOLE)];
    for (name, by_hand, blocks) in ways {
        for &threads in blocks.iter().filter(|&&threads| threads <= most) {
            points.v = problem.s.to_device(device)?;
            by_hand(&kernels, threads, &mut points)?;
            let first = points.v.download()?;
            let words = first.as_slice().ok_or("points row by row")?;
            let Problem { u, r, s, .. } = &*problem;
            let difference = host::largest_difference(u.view(), r, s, words);
            let mut work = || by_hand(&kernels, threads, &mut points);
            let time = seconds(Some(device), &mut work)?;
            line(problem, (name, Some(threads as usize)), time, difference)?;
            times.push((name, time));
        }
    }
    Ok(times)
}
