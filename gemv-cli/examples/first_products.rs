//! Counts products of random shapes and types by several threads of one process: what a service meets whose first users bring
//! matrices that nobody has multiplied yet. With empty caches most of the time goes into compiling kernels.
//!
//! ```text
//! caches=$(mktemp -d); GEMV_CACHE_DIR=$caches/gemv CUDA_CACHE_PATH=$caches/nv POCL_CACHE_DIR=$caches/pocl \
//!   cargo run --release -p gemv-cli --example first_products -- --device opencl:0 --threads 8 --seconds 40
//! ```
//!
//! `CUDA_CACHE_PATH` is NVIDIA's own cache, `POCL_CACHE_DIR` PoCL's. Each shape is drawn anew: rows and columns from 1 to 3000,
//! each power of two as likely as another, at most 2^20 elements; by rows, by columns, or every second column; of one of the
//! six types. Operands lie on the host. A line each five seconds has the products so far, the slowest since the line before,
//! and the time that half of those took at most. With `--check` each is compared with the reference, which takes longer than the
//! products.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use gemv::unstable::reference::Reference;
use gemv::{Device, Element};
use half::{bf16, f16};
use ndarray::{Array1, ArrayView2, ShapeBuilder, s};
use num_complex::Complex;

/// Counts products of random shapes and types.
#[derive(Parser)]
struct Args {
    /// The device, such as opencl:0
    #[arg(long)]
    device: String,
    #[arg(long, default_value_t = 8)]
    threads: u64,
    #[arg(long, default_value_t = 40)]
    seconds: u64,
    /// Compares each product with the reference
    #[arg(long)]
    check: bool,
}

/// Elements of a matrix, at most.
const MOST: usize = 1 << 20;

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 20
    }

    /// From 1 to 3000.
    fn count(&mut self) -> usize {
        let log = (self.next() % 4096) as f64 / 4096.0;
        3000f64.powf(log).round() as usize
    }

    fn value(&mut self) -> f64 {
        (self.next() % 2048) as f64 / 1024.0 - 1.0
    }
}

/// Where matrices and vectors are taken from.
struct Pool<T>(Vec<T>);

impl<T: Element> Pool<T> {
    fn new(random: &mut Random, value: impl Fn(f64, f64) -> T) -> Pool<T> {
        Pool((0..MOST).map(|_| value(random.value(), random.value())).collect())
    }

    /// One product, and the seconds that it took.
    fn product(
        &self,
        random: &mut Random,
        device: &Device,
        reference: Option<&Device>,
    ) -> gemv::Result<Duration> {
        let (m, n) = loop {
            let (m, n) = (random.count(), random.count());
            if 2 * m * n <= MOST {
                break (m, n);
            }
        };
        let wide =
            ArrayView2::from_shape((m, 2 * n), &self.0[..2 * m * n]).expect("so many elements");
        let tall = ArrayView2::from_shape((m, n).f(), &self.0[..m * n]).expect("so many elements");
        let a = match random.next() % 3 {
            0 => ArrayView2::from_shape((m, n), &self.0[..m * n]).expect("so many elements"),
            1 => tall,
            _ => wide.slice_move(s![.., ..;2]),
        };
        let x = Array1::from(self.0[MOST - n..].to_vec());
        let begin = Instant::now();
        let y = device.try_gpu_dot(&a, &x)?;
        let took = begin.elapsed();
        if let Some(reference) = reference {
            let expected = reference.try_gpu_dot(&a, &x)?;
            let same = y.iter().zip(&expected).all(|(y, e)| y.bits() == e.bits());
            assert!(same, "{} {m} x {n}: other bits than the reference", T::DTYPE);
        }
        Ok(took)
    }
}

fn main() -> gemv::Result<()> {
    env_logger::init();
    let Args { device: name, threads, seconds, check } = Args::parse();
    let begin = Instant::now();
    let device = gemv::device(&name)?;
    println!("{} open after {:.2} s", device.info().name, begin.elapsed().as_secs_f64());
    let reference = check.then(|| Device::new(Reference::open()));
    let random = &mut Random(0x9e37_79b9_7f4a_7c15);
    let singles = Pool::new(random, |re, _| re as f32);
    let doubles = Pool::new(random, |re, _| re);
    let halves = Pool::new(random, |re, _| f16::from_f64(re));
    let brains = Pool::new(random, |re, _| bf16::from_f64(re));
    let pairs = Pool::new(random, |re, im| Complex::new(re as f32, im as f32));
    let double_pairs = Pool::new(random, Complex::new);

    let (done, times) = (AtomicUsize::new(0), Mutex::new(Vec::<Duration>::new()));
    let begin = Instant::now();
    let over = || begin.elapsed() >= Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        let worker = |thread: u64| -> gemv::Result<()> {
            let random = &mut Random(thread + 1);
            // The first numbers of a small seed are alike.
            (0..64).for_each(|_| _ = random.next());
            let reference = reference.as_ref();
            while !over() {
                let took = match random.next() % 6 {
                    0 => singles.product(random, &device, reference),
                    1 => doubles.product(random, &device, reference),
                    2 => halves.product(random, &device, reference),
                    3 => brains.product(random, &device, reference),
                    4 => pairs.product(random, &device, reference),
                    _ => double_pairs.product(random, &device, reference),
                }?;
                if !over() {
                    done.fetch_add(1, Ordering::Relaxed);
                    times.lock().expect("no panic").push(took);
                }
            }
            Ok(())
        };
        let all: Vec<_> = (0..threads).map(|t| scope.spawn(move || worker(t))).collect();
        while !all.iter().all(|thread| thread.is_finished()) {
            let next = (begin.elapsed().as_secs() / 5 + 1) * 5;
            while begin.elapsed().as_secs() < next && !all.iter().all(|t| t.is_finished()) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut times = std::mem::take(&mut *times.lock().expect("no panic"));
            times.sort_unstable();
            let millis = |at: Option<&Duration>| at.map_or(0.0, |t| t.as_secs_f64() * 1e3);
            println!(
                "{:5.1} s: {} products, half of the new ones within {:.2} ms, the slowest in {:.0} ms",
                begin.elapsed().as_secs_f64(),
                done.load(Ordering::Relaxed),
                millis(times.get(times.len() / 2)),
                millis(times.last()),
            );
        }
        all.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}
