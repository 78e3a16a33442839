//! Products of packed matrices: the bits of the matrix of f32 that each stands for, on every device, for one right-hand side
//! and for several.
#![deny(unsafe_code)]

#[macro_use]
mod common;

use common::{Check, Size, hash, trial};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2, ArrayView2, Axis, s};
use gemv::unstable::reference::ordered_sum;
use gemv::unstable::{Job, Number, Tensor, scale};
use gemv::{Accumulator, Device, Element, Format, GpuDot, Packed, ToDevice};
use libtest_mimic::Trial;

/// Rows and columns, in multiples of a format's block where that is more than 32.
const SHAPES: [(usize, usize); 9] = [
    (5, 0),
    (1, 32),
    (9, 96),
    (17, 256),
    (64, 544),
    (23, 1280),
    (70, 4096),
    (5, 17_408),
    (3, 70_000),
];

fn columns(format: Format, n: usize) -> usize {
    n.next_multiple_of(format.block_len())
}

/// Bytes of blocks with any codes, and scales that are mostly finite.
fn weights(format: Format, (m, n): (usize, usize), seed: u64) -> Packed {
    let a = Array2::from_shape_fn((m, n), |(i, j)| {
        let h = hash(seed, i as u64, j as u64);
        let v = (h % 4001) as f32 / 2000.0 - 1.0;
        // Rows of other sizes, some of which underflow in narrow scales.
        v * f32::powi(2.0, (h >> 20) as i32 % 3 + (i as i32 % 7) * 3 - 14)
    });
    Packed::quantize(format, &a).expect("finite weights")
}

fn vectors<V: Element<Acc = f32>>(n: usize, k: usize, seed: u64) -> Array2<V> {
    Array2::from_shape_fn((n, k), |(j, c)| {
        let h = hash(seed + 1, j as u64, c as u64);
        V::narrow((h % 2003) as f32 / 1000.0 - 1.0)
    })
}

/// What the order says, element by element.
fn expected<V: Element<Acc = f32>>(
    (alpha, beta): (f32, f32),
    a: ArrayView2<'_, f32>,
    x: ArrayView2<'_, V>,
    y: ArrayView2<'_, V>,
) -> Array2<V> {
    Array2::from_shape_fn(y.dim(), |(i, c)| {
        let sum = ordered_sum(a.ncols(), &|j, lane: f32| lane.fma(a[[i, j]], x[[j, c]].widen()));
        scale(alpha, sum, beta, (beta != 0.0).then_some(y[[i, c]]))
    })
}

fn same<V: Element<Acc = f32>>(got: &Array2<V>, want: &Array2<V>, what: &str) -> Check {
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let (got, want) = (got.widen(), want.widen());
        if got.to_bits() != want.to_bits() && !(got.is_nan() && want.is_nan()) {
            return Err(format!("{what}: entry {at} is {got:e} instead of {want:e}"));
        }
    }
    Ok(())
}

macro_rules! products {
    ($($name:ident, $v:ty;)*) => { $(
/// One shape: resident and on the host, one and several columns, rows from any on, factors, strides.
fn $name(device: &Device, format: Format, shape: (usize, usize)) -> Check {
    let (m, n) = (shape.0, columns(format, shape.1));
    let of = |e: gemv::Error| e.to_string();
    let host = weights(format, (m, n), 5);
    let a = host.dequantize().map_err(of)?;
    let there = host.to_device(device).map_err(of)?;
    let x = vectors::<$v>(n, 7, 9);
    let none = Array2::from_elem((m, 7), <$v>::default());
    let want = expected((1.0, 0.0), a.view(), x.view(), none.view());
    for k in [1, 2, 3, 4, 7] {
        let what = format!("{m} x {n} with {k} columns of {}", <$v as Element>::DTYPE);
        let (x, want) = (x.slice(s![.., ..k]), want.slice(s![.., ..k]).to_owned());
        let got = there.try_gpu_dot(&x.to_owned()).and_then(|y| y.download()).map_err(of)?;
        same(&got, &want, &what)?;
        // Columns that lie apart, of a resident X.
        let resident = device.matrix(&x.t().as_standard_layout().t()).map_err(of)?;
        let got = there.try_gpu_dot(&resident).and_then(|y| y.download()).map_err(of)?;
        same(&got, &want, &format!("{what}, by columns"))?;
        if k == 2 {
            let got = host.try_gpu_dot(&resident).map_err(of)?;
            same(&got, &want, &format!("{what}, of a matrix on the host"))?;
        }
    }
    let one = there.try_gpu_dot(&x.column(2).to_owned()).and_then(|y| y.download()).map_err(of)?;
    same(&one.insert_axis(Axis(1)), &want.slice(s![.., 2..3]).to_owned(), "one vector")?;
    // Some of the rows, with factors.
    let first = m / 3;
    let (part, x) = (there.rows(first..), x.slice(s![.., ..2]).to_owned());
    let mut y = Array2::from_shape_fn((m - first, 2), |(i, c)| <$v>::narrow((i + 3 * c) as f32));
    let want = expected((0.5, -2.0), a.slice(s![first.., ..]), x.view(), y.view());
    part.try_gemv(0.5, &x, -2.0, &mut y).map_err(of)?;
    same(&y, &want, "some rows")?;
    part.try_gemv(0.0, &x, 0.0, &mut y).map_err(of)?;
    same(&y, &Array2::from_elem(y.dim(), <$v>::default()), "alpha = 0")?;
    // A and X are not read, on the host and resident.
    let x = x.mapv(|_| <$v>::narrow(f32::NAN));
    let old = Array2::from_shape_fn(y.dim(), |(i, c)| <$v>::narrow(i as f32 - 3.0 * c as f32));
    for beta in [0.0, 1.0, -0.5] {
        let want = old.mapv(|y| match beta {
            0.0 => <$v>::default(),
            1.0 => y,
            _ => <$v>::narrow(beta * y.widen()),
        });
        let (mut host, mut there) = (old.clone(), device.matrix(&old).map_err(of)?);
        part.try_gemv(0.0, &x, beta, &mut host).map_err(of)?;
        same(&host, &want, "alpha = 0 with NaN in X")?;
        part.try_gemv(0.0, &x, beta, &mut there).map_err(of)?;
        same(&there.download().map_err(of)?, &want, "alpha = 0 with a resident y")?;
    }
    Ok(())
}
    )* };
}
products! {
    of_f32, f32;
    of_f16, f16;
    of_bf16, bf16;
}

/// Blocks of random bytes: scales that are NaN, infinite, negative, subnormal.
fn any_bytes(device: &Device, format: Format) -> Check {
    let of = |e: gemv::Error| e.to_string();
    let (m, n) = (24, columns(format, 512));
    let len = m * format.row_bytes(n).map_err(|e| e.to_string())?;
    let bytes: Vec<u8> = (0..len).map(|i| hash(77, i as u64, 3) as u8).collect();
    let host = Packed::new(format, (m, n), bytes).map_err(of)?;
    let (a, there) = (host.dequantize().map_err(of)?, host.to_device(device).map_err(of)?);
    let x = vectors::<f32>(n, 3, 1);
    let none = Array2::zeros((m, 3));
    let want = expected((1.0, 0.0), a.view(), x.view(), none.view());
    let got = there.try_gpu_dot(&x).and_then(|y| y.download()).map_err(of)?;
    same(&got, &want, "blocks of any bytes")?;
    // Each element by itself.
    for j in (0..n).step_by(29) {
        let mut one = Array1::<f32>::zeros(n);
        one[j] = 1.0;
        let got = there.try_gpu_dot(&one).and_then(|y| y.download()).map_err(of)?;
        let x = one.insert_axis(Axis(1));
        let none = Array2::zeros((m, 1));
        let want = expected((1.0, 0.0), a.view(), x.view(), none.view());
        same(&got.insert_axis(Axis(1)), &want, &format!("column {j} alone"))?;
    }
    Ok(())
}

/// A scale of zero keeps the sign of what it multiplies, which shows where a lane has become -0.
fn signs_of_zeros(device: &Device) -> Check {
    let of = |e: gemv::Error| e.to_string();
    for format in Format::ALL.iter().filter(|format| format.name().starts_with("int4")) {
        let len = format.block_len();
        // In each block: the scale, the zero 8, then codes below it.
        let block = |scale: u16| {
            let narrow = if format.name().ends_with("bf16") { scale } else { scale >> 3 };
            let bytes = vec![0x33u8; len / 2];
            [&narrow.to_le_bytes()[..], &[8, 0], &bytes].concat()
        };
        let n = 256.max(2 * len);
        let blocks = n / len;
        // The least positive number first, so that products underflow, then zeros.
        let row: Vec<u8> = (0..blocks).flat_map(|b| block(if b == 0 { 8 } else { 0 })).collect();
        let host = Packed::new(*format, (8, n), row.repeat(8)).map_err(of)?;
        let (a, there) = (host.dequantize().map_err(of)?, host.to_device(device).map_err(of)?);
        let x = Array2::from_elem((n, 1), 1.0e-45f32);
        let want = expected((1.0, 0.0), a.view(), x.view(), Array2::zeros((8, 1)).view());
        let got =
            there.try_gpu_dot(&x.column(0).to_owned()).and_then(|y| y.download()).map_err(of)?;
        same(&got.insert_axis(Axis(1)), &want, format.name())?;
    }
    Ok(())
}

/// NaN in one weight stays in its row.
fn special_values(device: &Device) -> Check {
    let of = |e: gemv::Error| e.to_string();
    let format = Format::Fp8;
    let mut bytes = vec![0x38u8; 8 * format.row_bytes(256).map_err(|e| e.to_string())?];
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block[..4].copy_from_slice(&1f32.to_le_bytes());
    }
    bytes[3 * 2 * 132 + 4 + 9] = 0x7f;
    let there =
        Packed::new(format, (8, 256), bytes).and_then(|p| p.to_device(device)).map_err(of)?;
    let y = there.try_gpu_dot(&Array1::<f32>::ones(256)).and_then(|y| y.download()).map_err(of)?;
    if let Some((i, v)) = y.iter().enumerate().find(|(i, v)| v.is_nan() != (*i == 3)) {
        return Err(format!("row {i} is {v}"));
    }
    // As a job: with alpha = 0 nothing is read.
    let (x, mut y) = (Array1::<f32>::from_elem(256, f32::NAN), Array1::from_elem(8, 3.0f32));
    let (alpha, beta) = (Number::new(0.0f32), Number::new(-0.5f32));
    let a = Tensor::of_packed(there.window(), f32::DTYPE);
    let (x, place) = (x.view().into(), y.view_mut().into());
    device.compute(Job { alpha, a, conj: false, x, beta, y: place }).map_err(of)?;
    if y != Array1::from_elem(8, -1.5) {
        return Err(format!("alpha = 0 gives {y}"));
    }
    Ok(())
}

fn main() {
    let targets = common::targets();
    let mut trials = common::absences(&targets);
    for target in &targets {
        let Ok(device) = &target.device else { continue };
        // Each program of a compiler takes a second.
        let few = target.compiles() && common::size() != Size::Full;
        for (number, &format) in Format::ALL.iter().enumerate() {
            let shapes = if common::size() == Size::Tiny { &SHAPES[..4] } else { &SHAPES };
            for &shape in shapes {
                if few && !target.id.starts_with("cuda") && shape.1 > 5000 && number > 1 {
                    continue;
                }
                let device = device.clone();
                let name = format!("{}/{format}/{}x{}", target.id, shape.0, shape.1);
                trials.push(trial(name, move || of_f32(&device, format, shape)));
            }
            let of = device.clone();
            trials.push(trial(format!("{}/{format}/any bytes", target.id), move || {
                any_bytes(&of, format)
            }));
            if few && number > 0 {
                continue;
            }
            let of = device.clone();
            let name = format!("{}/{format}/f16 and bf16", target.id);
            trials.push(trial(name, move || {
                of_f16(&of, format, SHAPES[5])?;
                of_bf16(&of, format, SHAPES[4])
            }));
        }
        let of = device.clone();
        trials.push(Trial::test(format!("{}/signs of zeros", target.id), move || {
            signs_of_zeros(&of).map_err(Into::into)
        }));
        let of = device.clone();
        trials.push(Trial::test(format!("{}/special values", target.id), move || {
            special_values(&of).map_err(Into::into)
        }));
    }
    common::main(trials);
}
