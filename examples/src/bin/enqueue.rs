//! What the host pays for one product of resident operands: the time until the call returns, while the
//! device computes. The vendor's library is measured in turn, where there is one.
//!
//! ```text
//! cargo run --release -p gemv-examples --features cuda --bin enqueue -- cuda:0
//! ```

#![deny(unsafe_code)]

use std::time::Instant;

use gemv::{Device, DeviceMatrix, DeviceVector, ToDevice};
use ndarray::{Array1, Array2};

/// So few that no driver's queue is full.
const PRODUCTS: usize = 500;
const ROUNDS: usize = 30;

/// Microseconds of one call of `product`, the mean of many. The device is waited for before and after.
fn microseconds(
    device: &Device,
    product: &mut dyn FnMut() -> gemv::Result<()>,
) -> gemv::Result<f64> {
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..PRODUCTS {
        product()?;
    }
    let time = start.elapsed().as_secs_f64();
    device.synchronize()?;
    Ok(time * 1e6 / PRODUCTS as f64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or("cuda:0".into());
    let device = gemv::device(&name)?;
    let a: DeviceMatrix<f32> = Array2::ones((256, 256)).to_device(&device)?;
    let x: DeviceVector<f32> = Array1::ones(256).to_device(&device)?;
    let mut y = device.zeros(256)?;
    let vendor = device.backend().vendor(&a.desc());
    let (mut own, mut other) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        let mut product = || device.gemv(1.0, &a, &x, 0.0, &mut y);
        own = own.min(microseconds(&device, &mut product)?);
        if let Some(params) = &vendor {
            let mut product = || device.product(&a, &x).with(params).to(&mut y);
            other = other.min(microseconds(&device, &mut product)?);
        }
    }
    println!("{}: {own:.2} us to enqueue a product of f32 256 x 256", device.info());
    if let Some(params) = vendor {
        println!("{params}: {other:.2} us");
    }
    Ok(())
}
