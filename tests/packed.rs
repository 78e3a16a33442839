//! Products of packed matrices: the bits of the matrix of f32 that each stands for, on every device, for one right-hand side
//! and for several.
#![deny(unsafe_code)]

#[macro_use]
mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Check, Size, hash, text, trial};
use gemv::half::{bf16, f16};
use gemv::ndarray::{Array1, Array2, Array3, ArrayView2, Axis, Ix2, Ix3, s};
use gemv::unstable::reference::ordered_sum;
use gemv::unstable::{
    Desc, Job, Number, PackedMatrix, PackedPlace, Params, Tensor, TensorMut, scale,
};
use gemv::{Accumulator, Device, Element, Error, Format, Function, GpuDot, Packed, ToDevice};
use gemv_testkit::Host;
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
    let host = weights(format, (m, n), 5);
    let a = host.dequantize().map_err(text)?;
    let there = host.to_device(device).map_err(text)?;
    let x = vectors::<$v>(n, 7, 9);
    let none = Array2::from_elem((m, 7), <$v>::default());
    let want = expected((1.0, 0.0), a.view(), x.view(), none.view());
    for k in [1, 2, 3, 4, 7] {
        let what = format!("{m} x {n} with {k} columns of {}", <$v as Element>::DTYPE);
        let (x, want) = (x.slice(s![.., ..k]), want.slice(s![.., ..k]).to_owned());
        let got = there.try_gpu_dot(&x.to_owned()).and_then(|y| y.download()).map_err(text)?;
        same(&got, &want, &what)?;
        // Columns that lie apart, of a resident X.
        let resident = device.matrix(&x.t().as_standard_layout().t()).map_err(text)?;
        let got = there.try_gpu_dot(&resident).and_then(|y| y.download()).map_err(text)?;
        same(&got, &want, &format!("{what}, by columns"))?;
        if k == 2 {
            let got = host.try_gpu_dot(&resident).map_err(text)?;
            same(&got, &want, &format!("{what}, of a matrix on the host"))?;
        }
    }
    let one = there.try_gpu_dot(&x.column(2).to_owned()).and_then(|y| y.download()).map_err(text)?;
    same(&one.insert_axis(Axis(1)), &want.slice(s![.., 2..3]).to_owned(), "one vector")?;
    // Some of the rows, with factors.
    let first = m / 3;
    let (part, x) = (there.rows(first..), x.slice(s![.., ..2]).to_owned());
    let mut y = Array2::from_shape_fn((m - first, 2), |(i, c)| <$v>::narrow((i + 3 * c) as f32));
    let want = expected((0.5, -2.0), a.slice(s![first.., ..]), x.view(), y.view());
    part.try_gemv(0.5, &x, -2.0, &mut y).map_err(text)?;
    same(&y, &want, "some rows")?;
    part.try_gemv(0.0, &x, 0.0, &mut y).map_err(text)?;
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
        let (mut host, mut there) = (old.clone(), device.matrix(&old).map_err(text)?);
        part.try_gemv(0.0, &x, beta, &mut host).map_err(text)?;
        same(&host, &want, "alpha = 0 with NaN in X")?;
        part.try_gemv(0.0, &x, beta, &mut there).map_err(text)?;
        same(&there.download().map_err(text)?, &want, "alpha = 0 with a resident y")?;
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
    let (m, n) = (24, columns(format, 512));
    let len = m * format.row_bytes(n).map_err(text)?;
    let bytes: Vec<u8> = (0..len).map(|i| hash(77, i as u64, 3) as u8).collect();
    let host = Packed::new(format, (m, n), bytes).map_err(text)?;
    let (a, there) = (host.dequantize().map_err(text)?, host.to_device(device).map_err(text)?);
    let x = vectors::<f32>(n, 3, 1);
    let none = Array2::zeros((m, 3));
    let want = expected((1.0, 0.0), a.view(), x.view(), none.view());
    let got = there.try_gpu_dot(&x).and_then(|y| y.download()).map_err(text)?;
    same(&got, &want, "blocks of any bytes")?;
    // Each element by itself.
    for j in (0..n).step_by(29) {
        let mut one = Array1::<f32>::zeros(n);
        one[j] = 1.0;
        let got = there.try_gpu_dot(&one).and_then(|y| y.download()).map_err(text)?;
        let x = one.insert_axis(Axis(1));
        let none = Array2::zeros((m, 1));
        let want = expected((1.0, 0.0), a.view(), x.view(), none.view());
        same(&got.insert_axis(Axis(1)), &want, &format!("column {j} alone"))?;
    }
    Ok(())
}

/// Blocks of Q4_K whose d and dmin are apart by more and more: their difference has at most 24 bits, or is rounded. A tile of 8 rows
/// has the same exponents, so that none of its rows hides what another one would give.
fn exponents_apart(device: &Device) -> Check {
    let format = Format::Q4K;
    let random = |i: usize, j: usize| hash(91, i as u64, j as u64);
    let mut bytes = Vec::new();
    let mut rows = 0;
    for base in [0, 1, 2, 9, 15, 22, 30] {
        for apart in -9..=6 {
            let (d, dmin) = (base, base - apart);
            if !(0..31).contains(&dmin) {
                continue;
            }
            for row in rows..rows + 8 {
                let half = |exponent: i32, which: usize| {
                    let h = random(row, which);
                    let mantissa = [0x3ff, 0, h >> 8 & 0x3ff][row % 3];
                    ((exponent as u64) << 10 | mantissa | (h & 1) << 15) as u16
                };
                let header = [half(d, 1000), half(dmin, 1001)];
                bytes.extend(header.iter().flat_map(|of| of.to_le_bytes()));
                let most = row % 2 == 0;
                bytes.extend((4..144).map(|j| if most { 255 } else { random(row, j) as u8 }));
            }
            rows += 8;
        }
    }
    let host = Packed::new(format, (rows, 256), bytes).map_err(text)?;
    let (a, there) = (host.dequantize().map_err(text)?, host.to_device(device).map_err(text)?);
    let product = |x: &Array2<f32>, what: &str| {
        let none = Array2::zeros((rows, x.ncols()));
        let want = expected((1.0, 0.0), a.view(), x.view(), none.view());
        let got = there.try_gpu_dot(x).and_then(|y| y.download()).map_err(text)?;
        same(&got, &want, what)
    };
    product(&Array2::eye(256), "each element by itself")?;
    // Sums and products that underflow and overflow.
    for k in [1, 2, 4] {
        for exponent in [-149.0, -126.0, 0.0, 79.0, 102.0, 103.0, 104.0, 107.0, 108.0, 127.0] {
            let x = vectors::<f32>(256, k, 92).mapv(|v| v * f32::exp2(exponent));
            product(&x, &format!("{k} columns of up to 2^{exponent}"))?;
        }
    }
    Ok(())
}

/// A scale of zero keeps the sign of what it multiplies, which shows where a lane has become -0.
fn signs_of_zeros(device: &Device) -> Check {
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
        let host = Packed::new(*format, (8, n), row.repeat(8)).map_err(text)?;
        let (a, there) = (host.dequantize().map_err(text)?, host.to_device(device).map_err(text)?);
        let x = Array2::from_elem((n, 1), 1.0e-45f32);
        let want = expected((1.0, 0.0), a.view(), x.view(), Array2::zeros((8, 1)).view());
        let got =
            there.try_gpu_dot(&x.column(0).to_owned()).and_then(|y| y.download()).map_err(text)?;
        same(&got.insert_axis(Axis(1)), &want, format.name())?;
    }
    Ok(())
}

/// NaN in one weight or scale stays in its row.
fn special_values(device: &Device) -> Check {
    let format = Format::Fp8;
    let mut bytes = vec![0x38u8; 8 * format.row_bytes(256).map_err(text)?];
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block[..4].copy_from_slice(&1f32.to_le_bytes());
    }
    bytes[3 * 2 * 132 + 4 + 9] = 0x7f;
    let there =
        Packed::new(format, (8, 256), bytes).and_then(|p| p.to_device(device)).map_err(text)?;
    let y =
        there.try_gpu_dot(&Array1::<f32>::ones(256)).and_then(|y| y.download()).map_err(text)?;
    if let Some((i, v)) = y.iter().enumerate().find(|(i, v)| v.is_nan() != (*i == 3)) {
        return Err(format!("row {i} is {v}"));
    }
    // A scale of NaN makes 32 of them, of codes of zero, too.
    let mut bytes = [&[127][..], &[0; 16]].concat().repeat(8 * 8);
    bytes[17 * (8 * 5 + 2)] = 255;
    let scaled = Packed::new(Format::Mxfp4, (8, 256), bytes)
        .and_then(|p| p.to_device(device))
        .map_err(text)?;
    let y =
        scaled.try_gpu_dot(&Array1::<f32>::zeros(256)).and_then(|y| y.download()).map_err(text)?;
    if let Some((i, v)) = y.iter().enumerate().find(|(i, v)| v.is_nan() != (*i == 5)) {
        return Err(format!("with a scale of NaN, row {i} is {v}"));
    }
    // As a job: with alpha = 0 nothing is read.
    let (x, mut y) = (Array1::<f32>::from_elem(256, f32::NAN), Array1::from_elem(8, 3.0f32));
    let (alpha, beta) = (Number::new(0.0f32), Number::new(-0.5f32));
    let a = Tensor::of_packed(there.window(), f32::DTYPE);
    let (x, place) = (x.view().into(), y.view_mut().into());
    device.compute(Job { alpha, a, conj: false, x, beta, y: place }).map_err(text)?;
    if y != Array1::from_elem(8, -1.5) {
        return Err(format!("alpha = 0 gives {y}"));
    }
    Ok(())
}

/// A bias and a function behind the product, with factors: of a matrix on the host and a resident one, to the host and to a
/// resident Y.
fn epilogue<V: Element<Acc = f32>>(device: &Device, format: Format) -> Check {
    let (m, n, k) = (23, columns(format, 1280), 3);
    let host = weights(format, (m, n), 21);
    let (a, there) = (host.dequantize().map_err(text)?, host.to_device(device).map_err(text)?);
    let (x, old) = (vectors::<V>(n, k, 5), vectors::<V>(m, k, 6));
    let bias = vectors::<V>(m, 1, 7);
    let function = Function::Silu;
    for (alpha, beta) in [(1.0, 0.0), (0.5, -2.0), (0.0, 0.5)] {
        // Step by step, which has the bits of rules 10 and 12.
        let want = match alpha {
            0.0 => old.mapv(|y| V::narrow(beta * y.widen())),
            _ => expected((alpha, beta), a.view(), x.view(), old.view()),
        };
        let mut steps = device.matrix(&want).map_err(text)?;
        steps.add(&device.matrix(&bias).map_err(text)?).map_err(text)?;
        steps.map(function).map_err(text)?;
        let want = steps.download().map_err(text)?;
        let what = format!("{} with factors {alpha} and {beta}", V::DTYPE);
        let (mut y, mut z) = (old.clone(), device.matrix(&old).map_err(text)?);
        let product = device.product(&there, &x).scaled(alpha, beta);
        product.bias(&bias).map(function).to(&mut y).map_err(text)?;
        same(&y, &want, &format!("{what}, to the host"))?;
        let product = device.product(&host, &x).scaled(alpha, beta);
        product.bias(&bias).map(function).to(&mut z).map_err(text)?;
        same(&z.download().map_err(text)?, &want, &format!("{what}, to the device"))?;
    }
    // Parameters that are given: also where nothing is read, NaN in X and the matrix among it.
    for (n, alpha) in [(n, 1.0), (n, 0.0), (0, 1.0)] {
        let host = if n > 0 { host.clone() } else { weights(format, (m, 0), 1) };
        let (a, there) = (host.dequantize().map_err(text)?, host.to_device(device).map_err(text)?);
        let desc = Desc { rhs: k, ..Desc::packed(format, V::DTYPE, (m, n.max(256))) };
        let params = device.backend().candidates(&desc)[0];
        let nan = Array2::from_elem((n, k), V::narrow(f32::NAN));
        let x = if alpha == 0.0 { &nan } else { &x.slice(s![..n, ..]).to_owned() };
        let want = match alpha {
            0.0 => old.mapv(|y| V::narrow(-2.0 * y.widen())),
            _ => expected((alpha, -2.0), a.view(), x.view(), old.view()),
        };
        let mut y = device.matrix(&old).map_err(text)?;
        let product = device.product(&there, x).scaled(alpha, -2.0);
        product.with(&params).to(&mut y).map_err(text)?;
        let what = format!("{n} columns, alpha = {alpha}, {params}");
        same(&y.download().map_err(text)?, &want, &what)?;
    }
    // One vector, without a bias.
    let (x, mut y) = (x.column(1), vec![V::default(); m]);
    device.product(&there, &x).map(Function::Relu).to(&mut y).map_err(text)?;
    let none = Array2::from_elem((m, 1), V::default());
    let want = expected((1.0, 0.0), a.view(), x.insert_axis(Axis(1)), none.view());
    let want = want.mapv(|v| if v.widen() > 0.0 { v } else { V::default() });
    let y = Array2::from_shape_vec((m, 1), y).expect("a column");
    same(&y, &want, &format!("{}, one vector", V::DTYPE))
}

/// The same calls on the matrix of f32 that it stands for have the same bits.
fn as_numbers(device: &Device, format: Format) -> Check {
    let (m, n) = (17, columns(format, 544));
    let host = weights(format, (m, n), 31);
    let there = host.to_device(device).map_err(text)?;
    let dense = device.matrix(&host.dequantize().map_err(text)?).map_err(text)?;
    let x = device.matrix(&vectors::<f32>(n, 4, 8)).map_err(text)?;
    let bias = device.matrix(&vectors::<f32>(1, 4, 9)).map_err(text)?;
    let (mut y, mut z) = (device.zeros((m, 4)).map_err(text)?, device.zeros((m, 4)).map_err(text)?);
    device.product(&there, &x).bias(&bias).map(Function::Tanh).to(&mut y).map_err(text)?;
    device.product(&dense, &x).bias(&bias).map(Function::Tanh).to(&mut z).map_err(text)?;
    same(&y.download().map_err(text)?, &z.download().map_err(text)?, "a layer")?;
    // A job of a matrix on the host: where the blocks lie, or one sentence.
    let (x, mut y) = (x.download().map_err(text)?, Array2::from_elem((m, 4), 7.0f32));
    let place = PackedPlace::Host(host.bytes());
    let a = Tensor::of_packed(PackedMatrix { format, dim: (m, n), place }, f32::DTYPE);
    let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
    let job = Job { alpha, a, conj: false, x: x.view().into(), beta, y: y.view_mut().into() };
    let computed = device.compute(job);
    if device.backend().packed_in_place() {
        computed.map_err(text)?;
        let dense = host.dequantize().map_err(text)?;
        return same(&y, &expected((1.0, 0.0), dense.view(), x.view(), y.view()), "a job");
    }
    let text = computed.err().map(|e| e.to_string()).unwrap_or_default();
    match text.contains("A is a packed matrix of the host") && y == Array2::from_elem((m, 4), 7.0) {
        true => Ok(()),
        false => Err(format!("a job of a matrix on the host: {text:?}")),
    }
}

/// A plan with a resident matrix, run as it is recorded and as it is replayed.
fn plan(device: &Device, format: Format) -> Check {
    // A vector goes through it again and again.
    let n = columns(format, 512);
    let host = weights(format, (n, n), 41);
    let (a, there) = (host.dequantize().map_err(text)?, host.to_device(device).map_err(text)?);
    let start = vectors::<f32>(n, 1, 3).column(0).to_owned();
    let bias = device.vector(&start).map_err(text)?;
    let state = (device.vector(&start).map_err(text)?, device.zeros(n).map_err(text)?);
    let mut plan = device.plan(state, |(x, y)| {
        there.try_gpu_dot_into(&*x, &mut *y)?;
        device.product(&there, &*y).scaled(2.0, -1.0).bias(&bias).map(Function::Tanh).to(x)
    });
    let mut want = start.clone().insert_axis(Axis(1));
    for run in 0..4 {
        plan.run().map_err(text)?;
        let y = expected((1.0, 0.0), a.view(), want.view(), want.view());
        let sums = expected((2.0, -1.0), a.view(), y.view(), want.view());
        let mut x = device.vector(&sums.column(0)).map_err(text)?;
        x.add(&bias).and_then(|()| x.map(Function::Tanh)).map_err(text)?;
        want = x.download().map_err(text)?.insert_axis(Axis(1));
        let got = plan.state().0.download().map_err(text)?.insert_axis(Axis(1));
        same(&got, &want, &format!("run {run}"))?;
    }
    // The same as a job.
    let mut by_job = device.plan(plan.into_state(), |(x, y)| {
        let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
        let a = Tensor::of_packed(there.window(), f32::DTYPE);
        let x = Tensor::device(f32::DTYPE, x.window());
        let y = TensorMut::device(f32::DTYPE, y.window_mut().expect("not shared"));
        device.compute(Job { alpha, a, conj: false, x, beta, y })
    });
    by_job.run().and_then(|()| by_job.run()).map_err(text)?;
    let got = by_job.state().1.download().map_err(text)?.insert_axis(Axis(1));
    same(&got, &expected((1.0, 0.0), a.view(), want.view(), want.view()), "as a job")?;
    // What is on the host cannot be recorded, on any device.
    let mut from_host =
        device.plan(by_job.into_state(), |(x, y)| host.try_gpu_dot_into(&*x, &mut *y));
    match from_host.run() {
        Err(e) if e.to_string().contains("on the host") => Ok(()),
        other => Err(format!("a matrix on the host in a plan: {other:?}")),
    }
}

/// Rows of which each block of a GPU has many tiles: copies of several at a time and of an odd number, a ring of copies that is used
/// again, and more rows than a block adds up at a time.
fn many_tiles(device: &Device, format: Format) -> Check {
    // The same few rows again and again, but not a multiple of a tile's.
    let (some, m, n) = (27, 20_003, columns(format, 1056));
    let few = weights(format, (some, n), 61);
    let bytes = few.bytes().len() / some * m;
    let all = few.bytes().iter().copied().cycle().take(bytes).collect::<Vec<u8>>();
    let there = Packed::new(format, (m, n), all).and_then(|a| a.to_device(device)).map_err(text)?;
    let a = few.dequantize().map_err(text)?;
    for k in [1, 2, 4] {
        let x = vectors::<f32>(n, k, 62);
        let rows = expected((1.0, 0.0), a.view(), x.view(), Array2::zeros((some, k)).view());
        let want = Array2::from_shape_fn((m, k), |(i, c)| rows[[i % some, c]]);
        let x = device.matrix(&x).map_err(text)?;
        let desc = Desc { rhs: k, ..Desc::packed(format, f32::DTYPE, (m, n)) };
        let mut all = device.backend().candidates(&desc);
        // In NVIDIA's OpenCL the text is CUDA's, and few parameters fit: all candidates.
        if all[0].get("ptx") != Some(1) {
            all.truncate(1);
        }
        if device.info().id.starts_with("cuda") {
            // Five segments: of a warp each or of two, of a block or of several.
            for (passes, warps, parts) in [(1, 5, 1), (2, 3, 1), (1, 3, 2), (2, 1, 4)] {
                for (tiles, stages) in [(1, 3), (2, 2), (4, 3)] {
                    let given = [("threads", 32 * warps), ("passes", passes), ("parts", parts)];
                    let given = given.into_iter().chain([("tiles", tiles), ("stages", stages)]);
                    let given = given.chain([("rows", 64)]);
                    all.push(given.fold(all[0], |params, (name, value)| params.with(name, value)));
                }
            }
        }
        for params in &all {
            let mut y = device.zeros((m, k)).map_err(text)?;
            device.product(&there, &x).with(params).to(&mut y).map_err(text)?;
            same(&y.download().map_err(text)?, &want, &format!("{k} columns, {params}"))?;
        }
    }
    Ok(())
}

/// A stack has the products of each of its matrices.
fn stack<V: Element<Acc = f32>>(device: &Device, format: Format) -> Check {
    let (b, m, n, k) = (4, 13, columns(format, 544), 3);
    let all = weights(format, (b * m, n), 51);
    let host = Packed::new(format, (b, m, n), all.bytes().to_vec()).map_err(text)?;
    let a = host.dequantize().map_err(text)?;
    if (a.dim(), host.dim(), host.nrows(), host.ncols()) != ((b, m, n), (b, m, n), m, n) {
        return Err(format!("{:?} of {host:?}", a.dim()));
    }
    let there = host.to_device(device).map_err(text)?;
    let x = Array3::from_shape_fn((b, n, k), |(b, j, c)| {
        vectors::<V>(1, 1, (b * 7 + j * 3 + c) as u64)[[0, 0]]
    });
    let old = Array3::from_shape_fn((b, m, k), |(b, i, c)| V::narrow((b + i) as f32 - c as f32));
    let want = |alpha: f32, beta: f32| {
        let mut want = old.clone();
        for (at, mut want) in want.outer_iter_mut().enumerate() {
            let (a, x) = (a.index_axis(Axis(0), at), x.index_axis(Axis(0), at));
            want.assign(&expected((alpha, beta), a, x, old.index_axis(Axis(0), at)));
        }
        want
    };
    let flat = |y: &Array3<V>| y.clone().into_shape_with_order((b * m, k)).expect("in order");
    let same3 = |got: &Array3<V>, want: &Array3<V>, what: &str| same(&flat(got), &flat(want), what);
    let plain = want(1.0, 0.0);
    // One vector for each matrix, and several.
    let (one, first) =
        (x.index_axis(Axis(2), 1).to_owned(), plain.index_axis(Axis(2), 1).to_owned());
    let mut y = Array2::from_elem((b, m), V::default());
    device.product(&there, &one).to(&mut y).map_err(text)?;
    same(&y, &first, "a vector each")?;
    let mut y = device.array(&old).map_err(text)?;
    device.product(&there, &x).scaled(0.5, -2.0).to(&mut y).map_err(text)?;
    same3(&y.download().map_err(text)?, &want(0.5, -2.0), "several each")?;
    // Of the host, to every second place of a larger array of the host.
    let mut large = Array3::from_elem((b, m, 2 * k), V::narrow(7.0));
    device.product(&host, &x).to(large.slice_mut(s![.., .., ..;2])).map_err(text)?;
    same3(&large.slice(s![.., .., ..;2]).to_owned(), &plain, "of the host")?;
    if large.slice(s![.., .., 1..;2]).iter().any(|v| v.widen() != 7.0) {
        return Err("other places were written".into());
    }
    // The same vectors for each matrix; a bias for each row of each, and a function.
    let shared = x.index_axis(Axis(0), 2);
    let (shared, bias) = (shared.broadcast((b, n, k)).expect("a new axis"), vectors::<V>(b, m, 2));
    let bias = bias.insert_axis(Axis(2));
    let mut y = device.zeros((b, m, k)).map_err(text)?;
    device.product(&there, shared).bias(&bias).map(Function::Relu).to(&mut y).map_err(text)?;
    let y = y.download().map_err(text)?;
    for at in 0..b {
        let (a, x) = (a.index_axis(Axis(0), at), x.index_axis(Axis(0), 2));
        let sums = expected((1.0, 0.0), a, x, old.index_axis(Axis(0), at));
        let want = Array2::from_shape_fn((m, k), |(i, c)| {
            let sum = V::narrow(sums[[i, c]].widen() + bias[[at, i, 0]].widen());
            if sum.widen() > 0.0 { sum } else { V::default() }
        });
        same(&y.index_axis(Axis(0), at).to_owned(), &want, "a layer of each")?;
    }
    // One of them.
    let (one, x) = (there.index_axis(Axis(0), 2), x.index_axis(Axis(0), 2));
    let mut y = Array2::from_elem((m, k), V::default());
    device.product(&one, x).to(&mut y).map_err(text)?;
    same(&y, &plain.index_axis(Axis(0), 2).to_owned(), "one of them")?;
    // The same as a stack of one.
    let mut y = Array3::from_elem((1, m, k), V::default());
    device.product(&one.insert_axis(Axis(0)), x.insert_axis(Axis(0))).to(&mut y).map_err(text)?;
    let y = y.index_axis_move(Axis(0), 0);
    same(&y, &plain.index_axis(Axis(0), 2).to_owned(), "a stack of one")?;
    let part = host.index_axis(Axis(0), 3).rows(2..5).dequantize().map_err(text)?;
    if part != a.slice(s![3, 2..5, ..]) {
        return Err("rows of one of them".into());
    }
    Ok(())
}

/// `gpu_dot` of stacks, with everything that it is a method of.
fn stack_by_gpu_dot(device: &Device) -> Check {
    let a = Array3::from_shape_fn((3, 5, 256), |(b, i, j)| ((b * 1280 + i * 256 + j) as f32).sin());
    let host: Packed<Ix3> = Packed::quantize(Format::Q8_0, &a).map_err(text)?;
    let there = host.to_device(device).map_err(text)?;
    let a = host.dequantize().and_then(|a| device.array(&a)).map_err(text)?;
    let x = Array3::from_shape_fn((3, 256, 2), |(b, j, c)| ((b + 2 * j + 3 * c) as f32).cos());
    let one = x.index_axis(Axis(2), 0).to_owned();
    let want = a.try_gpu_dot(&x).and_then(|y| y.download()).map_err(text)?;
    let first = a.try_gpu_dot(&one).and_then(|y| y.download()).map_err(text)?;
    let (rx, rone) = (device.array(&x).map_err(text)?, device.matrix(&one).map_err(text)?);
    let down =
        |y: gemv::Result<gemv::DeviceArray<f32, Ix3>>| y.and_then(|y| y.download()).map_err(text);
    let down2 =
        |y: gemv::Result<gemv::DeviceArray<f32, Ix2>>| y.and_then(|y| y.download()).map_err(text);
    let all = [
        down(there.try_gpu_dot(&x))?,
        down(there.try_gpu_dot(&rx))?,
        host.try_gpu_dot(&rx).map_err(text)?,
    ];
    let ones = [
        down2(there.try_gpu_dot(&one))?,
        down2(there.try_gpu_dot(&rone))?,
        host.try_gpu_dot(&rone).map_err(text)?,
    ];
    if all.iter().any(|y| y != want) || ones.iter().any(|y| y != first) {
        return Err("other numbers than of the stack of f32".into());
    }
    let (mut y, mut z) = (Array3::ones((3, 5, 2)), Array3::ones((3, 5, 2)));
    there
        .try_gemv(2.0, &x, 1.0, &mut y)
        .and_then(|()| a.try_gemv(2.0, &x, 1.0, &mut z))
        .map_err(text)?;
    if y != z {
        return Err("other numbers with factors".into());
    }
    let wrong = there.try_gpu_dot(&Array3::<f32>::zeros((2, 256, 2))).map(drop);
    match wrong {
        Err(Error::Shape(_)) => Ok(()),
        other => Err(format!("two sets of vectors for three matrices: {other:?}")),
    }
}

/// A backend without kernels for packed matrices, as all are that do not say otherwise: one sentence, and y as it was.
fn without_kernels() -> Check {
    let (m, n) = (4, 64);
    let a = weights(Format::Q8_0, (m, n), 1);
    for host in [true, false] {
        let mut backend = Host::new("fake:0");
        backend.info.host = host;
        let device = backend.device();
        let (x, mut y) = (Array1::<f32>::ones(n), Array1::<f32>::from_elem(m, 7.0));
        let job = |y| {
            let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
            let place = PackedPlace::Host(a.bytes());
            let a = PackedMatrix { format: a.format(), dim: a.dim(), place };
            let (a, x) = (Tensor::of_packed(a, f32::DTYPE), x.view().into());
            Job { alpha, a, conj: false, x, beta, y }
        };
        let refused = [
            a.to_device(&device).map(drop),
            device.product(&a, &x).to(&mut y),
            device.product(&a, &x).map(Function::Relu).to(&mut y),
            a.try_gpu_dot(&device.vector(&x).expect("an upload")).map(drop),
            device.compute(job(y.view_mut().into())),
        ];
        for refused in refused {
            let text = refused.err().map(|e| e.to_string());
            let want = "fake:0 cannot compute f32: it has no kernels for matrices of q8_0";
            if text.as_deref() != Some(want) || y != Array1::from_elem(m, 7.0) {
                return Err(format!("memory of the host {host}: {text:?}, y is {y}"));
            }
        }
        // Where nothing is read, no kernel is needed.
        device.product(&a, &x).scaled(0.0, 2.0).to(&mut y).map_err(text)?;
        if y != Array1::from_elem(m, 14.0) {
            return Err(format!("alpha = 0: {y}"));
        }
    }
    Ok(())
}

/// The product of a later matrix fails: y, on the host, is as it was.
fn late_failure() -> Check {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let late = || Error::Device { device: "fake:0".into(), call: "launch", reason: "late".into() };
    let mut backend = Host {
        packed_formats: Format::ALL,
        compute: Box::new(move |job, _| match CALLS.fetch_add(1, Ordering::SeqCst) {
            0 => {
                job.y().assign(gemv::unstable::bytes_of(&[1.0f32; 8]));
                Ok(())
            }
            _ => Err(late()),
        }),
        ..Host::new("fake:0")
    };
    backend.info.host = true;
    let device = backend.device();
    let a = Packed::new(Format::Q8_0, (3, 4, 32), vec![0; 3 * 4 * 34]).expect("as many bytes");
    let (x, mut y) = (Array3::<f32>::ones((3, 32, 2)), Array3::from_elem((3, 4, 2), 7.0f32));
    match device.product(&a, &x).to(&mut y) {
        Err(Error::Device { .. }) if y == Array3::from_elem((3, 4, 2), 7.0) => Ok(()),
        other => Err(format!("{other:?}, {} calls, y is {y}", CALLS.load(Ordering::SeqCst))),
    }
}

/// What GPUs run, also where the device is a CPU: with the six segments of a row in a block, in four that have two or one, and in
/// three whose sums a second launch adds up.
fn text_for_gpus(device: &Device, format: Format) -> Check {
    let (m, n, k) = (19, columns(format, 1312), 2);
    let host = weights(format, (m, n), 41);
    let (a, there) = (host.dequantize().map_err(text)?, host.to_device(device).map_err(text)?);
    let x = vectors::<f32>(n, k, 12);
    let old = Array2::from_elem((m, k), 3.0f32);
    let want = expected((1.0, -2.0), a.view(), x.view(), old.view());
    let bias = vectors::<f32>(1, k, 13);
    let fused = Array2::from_shape_fn((m, k), |(i, c)| {
        let v = want[[i, c]] + bias[[0, c]];
        if v > 0.0 { v } else { 0.0 }
    });
    for block in ["threads=192 parts=1", "threads=64 parts=4", "threads=64"] {
        let params = format!("packed-row format={} tile_rhs=2 rows=8 {block}", format.number());
        let params: Params = params.parse()?;
        let mut y = device.matrix(&old).map_err(text)?;
        device.product(&there, &x).scaled(1.0, -2.0).with(&params).to(&mut y).map_err(text)?;
        same(&y.download().map_err(text)?, &want, &params.to_string())?;
        // With a bias and a function, by whatever writes y.
        let mut y = device.matrix(&old).map_err(text)?;
        let product = device.product(&there, &x).scaled(1.0, -2.0).with(&params);
        product.bias(&bias).map(Function::Relu).to(&mut y).map_err(text)?;
        same(&y.download().map_err(text)?, &fused, &format!("{params}, fused"))?;
    }
    Ok(())
}

fn main() {
    let targets = common::targets();
    let mut trials = common::absences(&targets);
    trials.push(trial("without kernels".into(), without_kernels));
    trials.push(trial("a late failure".into(), late_failure));
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
            // A format of 8 bits, one of 4 and one of 6: the text is the same for the others.
            if [Format::Q8_0, Format::Q4K, Format::Q6K].contains(&format) {
                let of = device.clone();
                trials.push(trial(format!("{}/{format}/many tiles", target.id), move || {
                    many_tiles(&of, format)
                }));
            }
            if few && number > 0 {
                continue;
            }
            let of = device.clone();
            trials.push(trial(format!("{}/{format}/layers", target.id), move || {
                epilogue::<f32>(&of, format)?;
                epilogue::<bf16>(&of, format)?;
                as_numbers(&of, format)?;
                plan(&of, format)
            }));
            let of = device.clone();
            trials.push(trial(format!("{}/{format}/stacks", target.id), move || {
                stack::<f32>(&of, format)?;
                stack::<f16>(&of, format)?;
                stack_by_gpu_dot(&of)
            }));
            let of = device.clone();
            let name = format!("{}/{format}/f16 and bf16", target.id);
            trials.push(trial(name, move || {
                of_f16(&of, format, SHAPES[5])?;
                of_bf16(&of, format, SHAPES[4])
            }));
        }
        if target.id.starts_with("opencl") {
            let of = device.clone();
            trials.push(trial(format!("{}/text for GPUs", target.id), move || {
                // With codes of 8 and of 6 bits.
                text_for_gpus(&of, Format::Q8_0)?;
                text_for_gpus(&of, Format::Q6K)
            }));
        }
        let of = device.clone();
        trials.push(Trial::test(format!("{}/signs of zeros", target.id), move || {
            signs_of_zeros(&of).map_err(Into::into)
        }));
        let of = device.clone();
        trials.push(trial(format!("{}/q4_k/exponents apart", target.id), move || {
            exponents_apart(&of)
        }));
        let of = device.clone();
        trials.push(Trial::test(format!("{}/special values", target.id), move || {
            special_values(&of).map_err(Into::into)
        }));
    }
    common::main(trials);
}
