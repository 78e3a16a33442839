//! Times of products of packed matrices: for each format, shape and number of right-hand sides the time of a product, the
//! rate at which the packed bytes are read, and its share of the rate at which the device reads memory.
//!
//! ```text
//! cargo run --release -p gemv-examples --features cuda,packed --bin packed_products -- cuda:0
//! ```
#![deny(unsafe_code)]

use clap::Parser;
use gemv::unstable::{Desc, Job, Number, Params, Tensor, TensorMut};
use gemv::{
    Device, DeviceMatrix, DevicePacked, Dtype, Format, MatrixRef, Packed, Result, ToDevice,
};
use gemv_examples::clock::seconds;
use ndarray::Array2;

#[derive(Parser)]
#[command(about = "Times of products of packed matrices")]
struct Options {
    /// The device.
    #[arg(default_value = "cpu")]
    device: String,
    /// Formats.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "q8_0,q4_0,q4_k,q6_k,int4g128,fp8,mxfp4,nvfp4"
    )]
    format: Vec<Format>,
    /// Shapes, rows x columns.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = shape,
        default_value = "4096x4096,14336x4096,4096x14336,28672x4096"
    )]
    shape: Vec<(usize, usize)>,
    /// Numbers of right-hand sides.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    rhs: Vec<usize>,
    /// Bytes of copies of a matrix that are read in turn, in MB: more than the caches hold.
    #[arg(long, default_value_t = 400)]
    apart: usize,
    /// Measure every candidate, and print its parameters.
    #[arg(long)]
    all: bool,
    /// Measure these parameters of the kernel in place of the candidates; may be given several times.
    #[arg(long, conflicts_with = "all")]
    params: Vec<Params>,
}

fn shape(text: &str) -> Result<(usize, usize), String> {
    let sizes = text.split_once('x').and_then(|(m, n)| m.parse().ok().zip(n.parse().ok()));
    sizes.filter(|(m, n)| *m > 0 && *n > 0).ok_or_else(|| "a shape is like 4096x4096".into())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let device = gemv::device(&options.device)?;
    println!("{device}");
    let roof = roof(&device)?;
    println!("reads {:.2} TB/s", roof / 1e12);
    println!(
        "{:14} {:>14} {:>4} {:>10} {:>8} {:>6}",
        "format", "shape", "rhs", "us", "TB/s", "share"
    );
    for &format in &options.format {
        for &(m, n) in &options.shape {
            let text = format!("{m}x{n}");
            let (bytes, host) = weights(format, (m, n))?;
            let copies = (options.apart * 1_000_000).div_ceil(bytes).clamp(1, 64);
            let copies: Result<Vec<_>> = (0..copies).map(|_| host.to_device(&device)).collect();
            let copies = copies?;
            for &rhs in &options.rhs {
                let x = device.matrix(&Array2::from_shape_fn((n, rhs), |(j, c)| {
                    ((j + c) % 7) as f32 - 3.0
                }))?;
                let mut y = device.zeros::<f32, _>((m, rhs))?;
                let desc = Desc { rhs, ..Desc::packed(format, Dtype::F32, (m, n)) };
                let mut candidates = device.backend().candidates(&desc);
                if !options.params.is_empty() {
                    // The kernel of GPUs has the format among its parameters.
                    let format = candidates.first().and_then(|of| of.get("format"));
                    let whole =
                        |of: &Params| format.map_or(*of, |format| of.with("format", format));
                    candidates = options.params.iter().map(whole).collect();
                } else if !options.all {
                    candidates.truncate(1);
                }
                let print = options.all || !options.params.is_empty();
                for params in candidates {
                    let time = time(&device, &params, &copies, &x, &mut y)?;
                    let rate = bytes as f64 / time;
                    let params = if print { params.to_string() } else { String::new() };
                    println!(
                        "{:14} {text:>14} {rhs:>4} {:>10.2} {:>8.3} {:>6.2} {params}",
                        format.name(),
                        time * 1e6,
                        rate / 1e12,
                        rate / roof
                    );
                }
            }
        }
    }
    Ok(())
}

/// Seconds of a product with these parameters, with copies of a matrix in turn.
fn time(
    device: &Device,
    params: &Params,
    copies: &[DevicePacked],
    x: &DeviceMatrix<f32>,
    y: &mut DeviceMatrix<f32>,
) -> Result<f64> {
    let backend = device.backend();
    let (first, rhs) = (copies[0].window(), x.dim().1);
    let desc = Desc { rhs, ..Desc::packed(first.format, Dtype::F32, first.dim) };
    let prepared = backend.prepare(&desc, params)?;
    let mut work = || {
        copies.iter().try_for_each(|a| {
            let a = Tensor::of_packed(a.window(), Dtype::F32);
            let x = Tensor::device(Dtype::F32, x.window());
            let y = TensorMut::device(Dtype::F32, y.window_mut().expect("it is not shared"));
            let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
            backend.product(&mut Job { alpha, a, conj: false, x, beta, y }.check()?, &prepared)
        })
    };
    Ok(seconds(Some(device), &mut work)? / copies.len() as f64)
}

/// A matrix of this format.
fn weights(format: Format, dim: (usize, usize)) -> Result<(usize, Packed)> {
    let rows =
        Array2::from_shape_fn((32, dim.1), |(i, j)| ((i * 31 + j * 17) % 255) as f32 - 127.0);
    let some = Packed::quantize(format, &rows)?;
    let bytes = some.bytes().len() / 32 * dim.0;
    // The same rows again and again: to quantise takes long.
    let all = some.bytes().iter().copied().cycle().take(bytes).collect::<Vec<u8>>();
    Ok((bytes, Packed::new(format, dim, all)?))
}

/// Bytes a second that the device reads from memory.
fn roof(device: &Device) -> Result<f64> {
    let (m, n) = (1 << 14, 1 << 14);
    let a = device.matrix(MatrixRef::from(&Array2::<f32>::zeros((m, n))))?;
    let (x, mut y) = (device.vector(&vec![0.0f32; n])?, device.zeros::<f32, _>(m)?);
    let mut best = f64::INFINITY;
    for params in device.backend().read_params() {
        let mut work = || device.product(&a, &x).with(&params).to(&mut y);
        best = best.min(seconds(Some(device), &mut work)?);
    }
    Ok((m * n * 4) as f64 / best)
}
