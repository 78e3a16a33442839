//! A product with a matrix that the device never holds whole, beside what bounds it: the plain reading of the
//! file, and the link to the device.
//!
//! ```text
//! cargo run --release --bin streamed -- [--device cuda:0] [--size 4G] [--window 1G]
//! ```
//!
//! It makes a file of f32 in a folder for temporary files, and removes it at the end. The second reading finds
//! it in the page cache, if there is memory for it: then no disk is measured. `--from memory` takes an
//! array in place of the file.
#![deny(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::Parser;
use gemv::{Device, DeviceVector};
use gemv_examples::{bytes, hash};
use gemv_shard::Streamed;
use ndarray::{Array1, ArrayView2, ShapeBuilder};

/// Times a product with a matrix that the device never holds whole.
#[derive(Parser)]
struct Options {
    /// Where: cpu, opencl:0, cuda:0, reference; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Bytes of the matrix.
    #[arg(long, default_value = "1G", value_parser = bytes)]
    size: usize,
    /// Bytes that are held at one time.
    #[arg(long, default_value_t = Streamed::WINDOW, value_parser = bytes)]
    window: usize,
    /// Columns of the matrix.
    #[arg(long, default_value_t = 16384)]
    columns: usize,
    /// What lies side by side.
    #[arg(long, default_value = "rows", value_parser = ["rows", "columns"])]
    order: String,
    /// Where the matrix is.
    #[arg(long, default_value = "file", value_parser = ["file", "memory"])]
    from: String,
    /// The folder of the file; by default that of temporary files.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// The best of so many times counts.
    #[arg(long, default_value_t = 3)]
    times: usize,
}

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(&Options::parse()))
}

/// A file that goes with its handle.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.0) {
            eprintln!("streamed: {}: {e}", self.0.display());
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = gemv_examples::device(options.device.as_deref())?;
    let n = options.columns;
    let m = match n {
        0 => 0,
        n => options.size / size_of::<f32>() / n,
    };
    if m == 0 {
        return Err(format!("--size {} has no row of --columns {n}", options.size).into());
    }
    let size = m * n * size_of::<f32>();
    println!(
        "matrix             {m} × {n}, f32, {:.2} GB, by {}",
        1e-9 * size as f64,
        options.order
    );
    println!("window             {:.3} GB", 1e-9 * options.window as f64);
    println!("device             {device}");

    let (mut elements, mut file) = (Vec::new(), None);
    let by_columns = options.order == "columns";
    if options.from == "memory" {
        elements.extend(pattern().take(m * n));
    } else {
        let path = options.folder.join(format!("gemv-{}.npy", std::process::id()));
        let made = file.insert(Temporary(path));
        write(&made.0, (m, n), by_columns)?;
    }
    let a = match &file {
        Some(file) => Streamed::open(&file.0)?,
        None => {
            let shape = (m, n).set_f(by_columns);
            Streamed::of(ArrayView2::from_shape(shape, &elements)?)
        }
    };
    let a = a.window(options.window);
    let x = Array1::from_iter(pattern().take(n));

    let read = match &file {
        Some(file) => {
            // The better of a shorter and a longer piece.
            let read = [512 << 10, 2 << 20]
                .map(|piece| best(options.times, || plain_read(&file.0, piece)));
            let [short, long] = read;
            let read = short?.min(long?);
            println!("plain read         {}", rate(size, read));
            Some(read)
        }
        None => None,
    };
    let link = link(&device, size, options)?;
    if let Some(link) = link {
        println!("link alone         {}", rate(size, link));
    }
    let mut y = Array1::<f32>::zeros(m);
    let product = best(options.times, || {
        Ok(a.gemv::<f32, f32, _>(&device, 1.0, &x, 0.0, &mut y, |_, _| ())?)
    })?;
    println!("product            {}", rate(size, product));
    for (of, seconds) in [("plain read", read), ("link", link)] {
        if let Some(seconds) = seconds {
            println!("  of the {of:<11} {:.2}", seconds / product);
        }
    }
    if let Some(peak) = peak() {
        println!("most memory held   {peak}");
    }
    println!("hash of the bits   {:016x}", hash(&y));
    Ok(())
}

fn rate(size: usize, seconds: f64) -> String {
    format!("{:.2} GB/s, {seconds:.3} s", 1e-9 * size as f64 / seconds)
}

/// Seconds of the fastest of some calls.
fn best(
    times: usize,
    mut work: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let mut least = f64::INFINITY;
    for _ in 0..times.max(1) {
        let start = Instant::now();
        work()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// Numbers between -1 and 1 that repeat after a prime number of them, so that rows differ.
fn pattern() -> impl Iterator<Item = f32> + Clone {
    let number = |i: u32| (i.wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    (0..1_048_573).map(number).cycle()
}

/// Writes the matrix as NumPy does.
fn write(path: &Path, dim: (usize, usize), by_columns: bool) -> io::Result<()> {
    let fortran = if by_columns { "True" } else { "False" };
    let dict = format!("{{'descr': '<f4', 'fortran_order': {fortran}, 'shape': {dim:?}, }}");
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(b"\x93NUMPY\x01\x00\x76\x00")?;
    file.write_all(format!("{dict:<117}\n").as_bytes())?;
    let period: Vec<u8> = pattern().take(1_048_573).flat_map(f32::to_le_bytes).collect();
    let mut left = dim.0 * dim.1 * size_of::<f32>();
    while left > 0 {
        let some = left.min(period.len());
        file.write_all(&period[..some])?;
        left -= some;
    }
    file.flush()
}

/// Reads the file in pieces by all threads, and does nothing with it.
fn plain_read(path: &Path, size: usize) -> Result<(), Box<dyn Error>> {
    let pieces = (std::fs::metadata(path)?.len() as usize).div_ceil(size);
    let next = AtomicUsize::new(0);
    let read = || -> io::Result<()> {
        let (mut file, mut buffer) = (File::open(path)?, vec![0; size]);
        loop {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return Ok(());
            }
            file.seek(SeekFrom::Start((piece * size) as u64))?;
            match file.read_exact(&mut buffer) {
                Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => return Err(e),
                _ => {} // the last piece is shorter
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        all.into_iter().try_for_each(|one| one.join().expect("reading does not panic"))
    })?;
    Ok(())
}

/// Seconds of as many bytes on their way to the device, from memory that nobody writes; `None` of a device that
/// takes arrays of the host.
fn link(device: &Device, size: usize, options: &Options) -> Result<Option<f64>, Box<dyn Error>> {
    let part = (options.window / 3).clamp(4, size);
    let mut memory = device.zeros::<f32, _>(0)?;
    let fill = |memory: &mut DeviceVector<f32>, bytes: usize| {
        let memory = memory.window_mut().expect("nobody shares it").memory;
        device.backend().fill(memory, bytes, &|_, _| true)
    };
    if !fill(&mut memory, 0)? {
        return Ok(None);
    }
    memory = device.zeros(part / size_of::<f32>())?;
    let seconds = best(options.times, || {
        for first in (0..size).step_by(part) {
            let bytes = part.min(size - first) / size_of::<f32>() * size_of::<f32>();
            fill(&mut memory, bytes)?;
        }
        Ok(device.synchronize()?)
    })?;
    Ok(Some(seconds))
}

/// The most memory that the process has held, where the system tells.
fn peak() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(format!("{} MiB", kib >> 10))
}
