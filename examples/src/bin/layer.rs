//! What a bias and a function cost behind a product, and what a function of each entry costs beside a copy.
//!
//! ```text
//! cargo run --release --features half --bin layer -- [--device cuda:0] [--rows 4096] [--columns 4096] [--entries 16M]
//! ```
//!
//! The layer is `y = gelu(A x + b)`, A of bf16, all else of f32: in one call, and as three. The results have the same bits.
#![deny(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use gemv::half::bf16;
use gemv::{Device, DeviceVector, Element, Function};
use gemv_examples::{bytes, clock, count, element, hash};
use ndarray::{Array1, Array2};

/// Times a layer, and functions of each entry.
#[derive(Parser)]
struct Args {
    /// Where: cpu, opencl:0, cuda:0, reference; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Rows of the matrix.
    #[arg(long, default_value_t = 4096, value_parser = count)]
    rows: usize,
    /// Columns of the matrix.
    #[arg(long, default_value_t = 4096, value_parser = count)]
    columns: usize,
    /// Entries of a vector, such as 16M.
    #[arg(long, default_value = "16M", value_parser = bytes)]
    entries: usize,
}

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(&Args::parse()))
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let device = gemv_examples::device(args.device.as_deref())?;
    println!("{}", device.info());
    layer(&device, args.rows, args.columns)?;
    functions::<f32>(&device, args.entries)?;
    functions::<f64>(&device, args.entries / 2)
}

fn layer(device: &Device, m: usize, n: usize) -> Result<(), Box<dyn Error>> {
    let wave = |i: usize| (i * 7919 % 1009) as f32 / 1009.0 - 0.5;
    let a =
        device.matrix(&Array2::from_shape_fn((m, n), |(i, j)| bf16::from_f32(wave(i * n + j))))?;
    let x = device.vector(&Array1::from_shape_fn(n, wave))?;
    let b = device.vector(&Array1::from_shape_fn(m, |i| wave(i + 3)))?;
    let (mut y, mut apart) = (device.zeros::<f32, _>(m)?, device.zeros::<f32, _>(m)?);

    // In turn, so that a machine that is busy for a while is so for all.
    let [mut product, mut one, mut three] = [f64::INFINITY; 3];
    for _ in 0..5 {
        let alone = &mut || device.product(&a, &x).to(&mut apart);
        product = product.min(clock::seconds(Some(device), alone)?);
        let with = &mut || device.product(&a, &x).bias(&b).map(Function::Gelu).to(&mut y);
        one = one.min(clock::seconds(Some(device), with)?);
        let steps = &mut || {
            device.product(&a, &x).to(&mut apart)?;
            apart.add(&b)?;
            apart.map(Function::Gelu)
        };
        three = three.min(clock::seconds(Some(device), steps)?);
    }
    let (got, want) = (y.download()?, apart.download()?);
    println!("layer of bf16 {m} x {n}, vectors of f32");
    println!("product            {:9.2} us", 1e6 * product);
    println!("with bias and gelu {:9.2} us, {:.3} of the product", 1e6 * one, one / product);
    println!("as three calls     {:9.2} us, {:.3} of the product", 1e6 * three, three / product);
    println!("hash of the bits   {:016x}", hash(&got));
    if got.iter().zip(&want).any(|(a, b)| a.to_bits() != b.to_bits()) {
        return Err("one call has other bits than three".into());
    }
    Ok(())
}

fn functions<T: Element>(device: &Device, entries: usize) -> Result<(), Box<dyn Error>> {
    let x = Array1::from_shape_fn(entries, |i| element::<T>((i % 4001) as f64 / 200.0 - 10.0));
    let x = device.vector(&x)?;
    let mut y: DeviceVector<T> = device.zeros(entries)?;
    let mut copy = clock::seconds(Some(device), &mut || y.assign(&x))?;
    println!("{entries} entries of {}", T::DTYPE);
    let mut times = Vec::new();
    for function in Function::ALL {
        let time = clock::seconds(Some(device), &mut || y.assign_map(function, &x))?;
        times.push((function, time));
        copy = copy.min(clock::seconds(Some(device), &mut || y.assign(&x))?);
    }
    println!("copy               {:9.2} us", 1e6 * copy);
    for (function, time) in times {
        println!(
            "{:<18} {:9.2} us, {:.2} of the copy's bandwidth",
            format!("{function:?}"),
            1e6 * time,
            copy / time
        );
    }
    Ok(())
}
