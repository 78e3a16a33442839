//! A large number times one digit, without carries that travel.
//!
//! The four kernels are those that E. Bainville published ("GPU Benchmarks: Product by One Digit",
//! bealto.com, November 2009): direct, by local memory, several digits a work-item, two passes. Digits
//! are of base 2^30 in signed words, so that a carry goes one digit far. Here one text serves OpenCL and
//! CUDA, through `gemv::kernel::Kernel`; on the CPU it is a Rust function on rayon's pool. Every result
//! is compared with num-bigint's.
//!
//! ```text
//! cargo run --release -p gemv-examples --features opencl --bin bignum_digit -- --device opencl:0
//! ```
#![deny(unsafe_code)]

#[allow(unsafe_code)] // launches of own kernels
mod device;
mod number;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use device::{Kernels, Numbers, Way};
use gemv::Device;
use gemv_examples::clock::seconds;
use gemv_examples::curves::{self, Curve};
use gemv_examples::random::Random;
use num_bigint::BigInt;
use number::{BASE, Input};

/// A large number times one digit, by four kernels, beside a copy and num-bigint.
#[derive(Parser)]
struct Args {
    /// Where: cpu, opencl:0, cuda:0; by default the CPU, or what GEMV_BACKEND names.
    #[arg(long)]
    device: Option<String>,
    /// Most digits; the least are 512.
    #[arg(long, default_value_t = 8 << 20, value_parser = clap::value_parser!(u32).range(512..))]
    digits: u32,
    /// Threads of a block, several with commas.
    #[arg(long, value_delimiter = ',', default_values_t = [64u32, 128, 256, 512, 1024],
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Vec<u32>,
    /// Where the curves go.
    #[arg(long, default_value = "target/bignum_digit.svg")]
    svg: PathBuf,
}

fn main() -> ExitCode {
    gemv_examples::exit(env!("CARGO_BIN_NAME"), run(&Args::parse()))
}

/// A product that is still to be checked: its digits, what they should be worth, and its name.
type Check<'a> = dyn FnMut(&[i32], &BigInt, &str) -> Result<(), Box<dyn Error>> + 'a;

/// A way at one size: its name, the threads of a block where there are blocks, and seconds.
struct Time {
    name: String,
    block: Option<u32>,
    seconds: f64,
}

/// The name of the roof among the times.
const COPY: &str = "copy";

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    // The device of the backend `cpu` runs no kernels: the host computes by itself.
    let device = gemv_examples::device(args.device.as_deref())?;
    let id = device.info().id.clone();
    let device = Some(device).filter(|_| !id.starts_with("cpu"));
    let kernels = device.as_ref().map(Kernels::compile).transpose()?;
    let place = match &device {
        Some(device) => device.info().to_string(),
        None => format!("cpu: {} threads", rayon::current_num_threads()),
    };
    println!("{place}");
    println!(
        "Gigabytes a second, of digits read and written; the best number of threads of a block."
    );

    let mut random = Random(30);
    let mut checked = 0u64;
    let mut check = |y: &[i32], want: &BigInt, what: &str| -> Result<(), Box<dyn Error>> {
        checked += 1;
        if number::value(y) != *want || y.iter().any(|d| !(-BASE..=BASE).contains(d)) {
            return Err(format!("a wrong product: {what}").into());
        }
        Ok(())
    };
    let mut curves: Vec<Curve> = Vec::new();
    let mut last = Vec::new();
    for n in sizes(args.digits) {
        let times = match (&device, &kernels) {
            (Some(device), Some(kernels)) => {
                on_device(device, kernels, &args.threads, n, &mut random, &mut check)?
            }
            _ => on_host(n, &mut random, &mut check)?,
        };
        let rate = |time: &Time| 8.0 * n as f64 / time.seconds * 1e-9;
        let mut line = format!("{n:>9}");
        let mut names: Vec<&str> = Vec::new();
        for time in &times {
            if !names.contains(&&*time.name) {
                names.push(&time.name);
            }
        }
        for name in names {
            let of_it = times.iter().filter(|time| time.name == name);
            let Some(best) = of_it.max_by(|a, b| rate(a).total_cmp(&rate(b))) else { continue };
            let block = best.block.map_or(String::new(), |block| format!(" ({block})"));
            line += &format!("  {name} {:.2}{block}", rate(best));
            let point = (n as f64, rate(best));
            match curves.iter_mut().find(|curve| curve.0 == name) {
                Some(curve) => curve.1.push(point),
                None => curves.push((name.into(), vec![point])),
            }
        }
        println!("{line}");
        last = times;
    }
    if device.is_some() {
        scan(&last);
    }
    summary(&curves);
    println!("{checked} products compared with num-bigint, none differs");

    if let Some(folder) = args.svg.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let caption = format!("A large number times one digit, {id}");
    curves::write(&args.svg, &caption, ("digits of 30 bits", "GB/s"), &curves)?;
    println!("curves: {}", args.svg.display());
    Ok(())
}

/// Powers of 2 from 512 up to `most`.
fn sizes(most: u32) -> impl Iterator<Item = usize> {
    (9..32).map(|power| 1usize << power).take_while(move |&n| n <= most as usize)
}

/// The digits by which numbers are multiplied in the checks.
fn factors(random: &mut Random) -> [i32; 4] {
    [0, 1, BASE - 1, random.below(BASE as u32) as i32]
}

fn on_host(
    n: usize,
    random: &mut Random,
    check: &mut Check<'_>,
) -> Result<Vec<Time>, Box<dyn Error>> {
    let mut y = vec![0; n + 1];
    for input in Input::ALL {
        let x = input.digits(n, random);
        let value = number::value(&x);
        for k in factors(random) {
            y.fill(i32::MIN);
            number::multiply(&x, k, &mut y);
            check(&y, &(&value * k), &format!("{n} digits, {input:?}, times {k}"))?;
        }
    }
    let x = Input::Random.digits(n, random);
    let k = random.below(BASE as u32) as i32;
    let mut work = || {
        number::multiply(&x, k, &mut y);
        Ok(())
    };
    let mut times =
        vec![Time { name: "rayon".into(), block: None, seconds: seconds(None, &mut work)? }];
    let value = number::value(&x);
    check(&y, &(&value * k), "the last one measured")?;
    let mut copy = || {
        number::copy(&x, &mut y);
        Ok(())
    };
    times.push(Time { name: COPY.into(), block: None, seconds: seconds(None, &mut copy)? });
    times.push(num_bigint(&value, k)?);
    Ok(times)
}

/// The same product by num-bigint, on one thread of the host. It multiplies in place: a copy into memory
/// that is there already costs less than new memory for each result.
fn num_bigint(value: &BigInt, k: i32) -> gemv::Result<Time> {
    let mut product = value.clone();
    let mut multiply = || {
        product.clone_from(value);
        product *= k;
        std::hint::black_box(&product);
        Ok(())
    };
    Ok(Time { name: "num-bigint".into(), block: None, seconds: seconds(None, &mut multiply)? })
}

fn on_device(
    device: &Device,
    kernels: &Kernels,
    threads: &[u32],
    n: usize,
    random: &mut Random,
    check: &mut Check<'_>,
) -> Result<Vec<Time>, Box<dyn Error>> {
    let most = kernels.most_threads();
    let threads = || threads.iter().copied().filter(|&block| block <= most);
    if threads().next().is_none() {
        return Err(format!("no block of at most {most} threads was asked for").into());
    }
    let any = threads().next().unwrap_or(1);
    // Every way with every input and factor.
    for input in Input::ALL {
        let x = input.digits(n, random);
        let value = number::value(&x);
        let mut numbers = Numbers::new(device, &x)?;
        for k in factors(random) {
            let want = &value * k;
            for way in Way::ALL {
                // Another product first, so that what is not written shows.
                kernels.multiply(Way::Direct, any, &mut numbers, k ^ 1)?;
                kernels.multiply(way, any, &mut numbers, k)?;
                let what = format!("{n} digits, {input:?}, times {k}, {}", way.name());
                check(&numbers.y.download()?, &want, &what)?;
            }
        }
    }
    // Every way with every block, measured.
    let x = Input::Random.digits(n, random);
    let k = random.below(BASE as u32) as i32;
    let value = number::value(&x);
    let want = &value * k;
    let mut numbers = Numbers::new(device, &x)?;
    let mut times = Vec::new();
    for way in Way::ALL {
        for block in threads() {
            let mut work = || kernels.multiply(way, block, &mut numbers, k);
            let time = seconds(Some(device), &mut work)?;
            let what = format!("{n} digits, blocks of {block}, {}", way.name());
            check(&numbers.y.download()?, &want, &what)?;
            // What is measured next has to write it anew.
            kernels.multiply(Way::Direct, block, &mut numbers, k ^ 1)?;
            times.push(Time { name: way.name(), block: Some(block), seconds: time });
        }
    }
    for block in threads() {
        let mut work = || kernels.copy(block, &mut numbers);
        let time = seconds(Some(device), &mut work)?;
        times.push(Time { name: COPY.into(), block: Some(block), seconds: time });
    }
    times.push(num_bigint(&value, k)?);
    Ok(times)
}

/// The largest number by threads of a block.
fn scan(times: &[Time]) {
    println!("\nThe largest number, microseconds by threads of a block:");
    let mut threads: Vec<u32> = times.iter().filter_map(|time| time.block).collect();
    threads.sort_unstable();
    threads.dedup();
    let head: String = threads.iter().map(|block| format!("{block:>10}")).collect();
    println!("{:<22}{head}", "");
    let mut names: Vec<&str> = Vec::new();
    for time in times.iter().filter(|time| time.block.is_some()) {
        if !names.contains(&&*time.name) {
            names.push(&time.name);
        }
    }
    for name in names {
        let of = |block: &u32| {
            let found = times.iter().find(|t| t.name == name && t.block == Some(*block));
            found.map_or(String::new(), |t| format!("{:>10.1}", t.seconds * 1e6))
        };
        println!("{name:<22}{}", threads.iter().map(of).collect::<String>());
    }
}

/// The best way at the largest size, beside the roof and num-bigint.
fn summary(curves: &[Curve]) {
    let last = |name: &str| {
        let curve = curves.iter().find(|curve| curve.0 == name)?;
        curve.1.last().map(|point| point.1)
    };
    let others = [COPY, "num-bigint"];
    let own = curves.iter().filter(|curve| !others.contains(&&*curve.0));
    let own = own.filter_map(|curve| Some((&curve.0, curve.1.last()?.1)));
    let best = own.max_by(|a, b| a.1.total_cmp(&b.1));
    if let (Some((name, rate)), Some(copy), Some(host)) = (best, last(COPY), last("num-bigint")) {
        println!(
            "\n{name}: {rate:.2} GB/s, {:.2} of the copy's {copy:.2}, {:.1} times num-bigint",
            rate / copy,
            rate / host
        );
    }
}
