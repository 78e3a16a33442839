//! Products of packed matrices on every instruction set: the bits of the matrix of f32 that each stands for.

use gemv_core::half::{bf16, f16};
use gemv_core::ndarray::{Array2, ArrayView2, s};
use gemv_core::reference::ordered_sum;
use gemv_core::{
    Accumulator, Desc, Device, Element, Format, GpuDot, Job, Number, Packed, Params, Tensor,
    ToDevice, scale,
};
use gemv_testkit::Numbers;

/// Scales that are zero, subnormal or large, then those that are infinite or NaN, of each type that formats have.
const F16: [u16; 12] =
    [0, 0x8000, 1, 0x83ff, 0x0400, 0x3c00, 0xb555, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0xfc01];
const BF16: [u16; 12] =
    [0, 0x8000, 1, 0x807f, 0x0080, 0x3f80, 0xbeab, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0xff81];
/// 256 times the last finite ones overflows.
const F32: [u32; 12] = [
    0,
    1 << 31,
    1,
    0x807f_ffff,
    0x0080_0000,
    0x3f80_0000,
    0xbeaa_aaab,
    0x7b7f_ffff,
    0x7b80_0000,
    0xfd00_0000,
    0x7f80_0000,
    0x7fc0_0000,
];
const E4M3: [u8; 12] = [0, 0x80, 1, 0x87, 8, 0x38, 0xaa, 0x7e, 0xfe, 0x77, 0x7f, 0xff];
const POWERS: [u8; 12] = [0, 1, 2, 3, 64, 127, 128, 200, 253, 254, 255, 255];

/// How scales are chosen: as they are found, finite, or any.
#[derive(Clone, Copy)]
enum Scales {
    Found,
    Finite,
    Any,
}

/// Rows of blocks of any codes. A row in three has scales that were quantised, one has extreme finite ones, and one has
/// any; only there a code may stand for NaN.
fn weights(format: Format, (m, n): (usize, usize), rng: &mut Numbers) -> Packed {
    let values = Array2::from_shape_vec((m, n), rng.elements::<f32>(m * n)).unwrap() / 16.0;
    let quantised = Packed::quantize(format, &values).unwrap();
    let mut bytes = quantised.bytes().to_vec();
    let row = format.row_bytes(n).unwrap();
    for (i, row) in bytes.chunks_exact_mut(row.max(1)).enumerate() {
        let scales = [Scales::Found, Scales::Finite, Scales::Any][i % 3];
        for block in row.chunks_exact_mut(format.block_bytes()) {
            let old = block.to_vec();
            block.fill_with(|| rng.below(256) as u8);
            put_scales(format, block, &old, scales, rng);
        }
    }
    Packed::new(format, (m, n), bytes).unwrap()
}

fn put_scales(format: Format, block: &mut [u8], old: &[u8], scales: Scales, rng: &mut Numbers) {
    // Where the scales are, and where bytes of theirs begin and end.
    let (first, end) = match format {
        Format::Q6K => (208, 210),
        Format::Q4K | Format::Fp8 | Format::Nvfp4 => (0, 4),
        Format::Mxfp4 => (0, 1),
        _ => (0, 2),
    };
    if format == Format::Fp8 && !matches!(scales, Scales::Any) {
        block[4..].iter_mut().filter(|q| **q & 0x7f == 0x7f).for_each(|q| *q &= 0xfe);
    }
    let most = match scales {
        Scales::Found => return block[first..end].copy_from_slice(&old[first..end]),
        Scales::Finite => 8,
        Scales::Any => 12,
    };
    let mut place = &mut block[first..end];
    while !place.is_empty() {
        let i = rng.below(most);
        let bytes = match format {
            Format::Fp8 => F32[i].to_le_bytes().to_vec(),
            Format::Nvfp4 => vec![E4M3[i]],
            Format::Mxfp4 => vec![POWERS[i]],
            Format::Int4 { scale: gemv_core::gemv_packed::Scale::Bf16, .. } => {
                BF16[i].to_le_bytes().to_vec()
            }
            _ => F16[i].to_le_bytes().to_vec(),
        };
        let (now, rest) = place.split_at_mut(bytes.len());
        now.copy_from_slice(&bytes);
        place = rest;
    }
}

/// What the order says, element by element.
fn expected<V: Element<Acc = f32>>(
    (alpha, beta): (f32, f32),
    a: &Array2<f32>,
    x: ArrayView2<'_, V>,
    y: ArrayView2<'_, V>,
) -> Array2<V> {
    Array2::from_shape_fn(y.dim(), |(i, c)| {
        let sum = ordered_sum(a.ncols(), &|j, lane: f32| lane.fma(a[[i, j]], x[[j, c]].widen()));
        scale(alpha, sum, beta, (beta != 0.0).then_some(y[[i, c]]))
    })
}

/// One product, with X and y whose entries are `step` apart, on several threads if `shared`.
fn check<V: Element<Acc = f32>>(
    device: &Device,
    host: &Packed,
    columns: usize,
    (step, shared): (isize, bool),
    rng: &mut Numbers,
) {
    let ((m, n), backend) = (host.dim(), device.backend());
    let a = host.dequantize().unwrap();
    let there = host.to_device(device).unwrap();
    let gap = step.unsigned_abs();
    let all_x =
        Array2::from_shape_vec((n * gap, columns), rng.elements::<V>(n * gap * columns)).unwrap();
    let x = all_x.slice(s![..;step, ..]);
    let old = Array2::from_shape_vec((m, columns), rng.elements::<V>(m * columns)).unwrap();
    for (alpha, beta) in [(1.0, 0.0), (-0.5, 2.0)] {
        let want = expected((alpha, beta), &a, x, old.view());
        let canary = V::narrow(77.0);
        let mut memory = Array2::from_elem((m * gap, 2 * columns), canary);
        let mut y = memory.slice_mut(s![..;step, ..;2]);
        y.assign(&old);
        let grain = if shared { 1 } else { 1 << 20 };
        let params = Params::new("packed-blocks").with("grain_kib", grain);
        let desc = Desc { rhs: columns, ..Desc::packed(host.format(), V::DTYPE, (m, n)) };
        let prepared = backend.prepare(&desc, &params).unwrap();
        let a = Tensor::of_packed(there.window(), V::DTYPE);
        let (alpha, beta) = (Number::new(alpha), Number::new(beta));
        let job = Job { alpha, a, conj: false, x: x.into(), beta, y: y.view_mut().into() };
        backend.product(&mut job.check().unwrap(), &prepared).unwrap();
        for ((i, c), want) in want.indexed_iter() {
            let (got, want) = (y[[i, c]].widen(), want.widen());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{device} {} {m}x{n}, {columns} columns of {}, steps of {step}: entry ({i}, {c}) is {got:e}, not {want:e}",
                host.format(),
                V::DTYPE,
            );
        }
        y.fill(canary);
        assert!(memory.iter().all(|v| v.bits() == canary.bits()), "written between entries of y");
    }
}

/// All formats on one instruction set.
fn all(isa: &str) {
    let device = Device::new(gemv_cpu::open(Some(isa)).unwrap());
    let mut rng = Numbers::new(53);
    for &format in Format::ALL {
        let columns = |n: usize| n.next_multiple_of(format.block_len());
        for (m, n) in [(1, 32), (3, 96), (5, 224), (7, 256), (18, 288), (6, 1184), (37, 1024)] {
            let host = weights(format, (m, columns(n)), &mut rng);
            for k in [1, 2, 3, 4, 5, 8] {
                let how = ([1, 2, -1][rng.below(3)], rng.below(2) == 0);
                check::<f32>(&device, &host, k, how, &mut rng);
            }
            check::<f16>(&device, &host, 1 + m % 4, (1, true), &mut rng);
            check::<bf16>(&device, &host, 1 + m % 4, (2, false), &mut rng);
        }
    }
    // Three levels of sums, and rows that are longer than what is prefetched.
    for format in [Format::Q8_0, Format::Q4K, Format::Nvfp4] {
        let host = weights(format, (5, 70_144), &mut rng);
        for k in [1, 2, 4] {
            check::<f32>(&device, &host, k, (1, true), &mut rng);
        }
    }
}

#[test]
fn products_have_the_bits_of_the_matrix_that_is_packed() {
    for isa in gemv_cpu::isas() {
        all(isa);
    }
}

/// One code of one row is NaN: that row alone is NaN, where four rows are taken at a time.
#[test]
fn nan_stays_in_its_row() {
    for isa in gemv_cpu::isas() {
        let device = Device::new(gemv_cpu::open(Some(isa)).unwrap());
        let (format, row) = (Format::Fp8, 2 * 132);
        for at in [0, 63, 64, 127, 128, 255] {
            let mut bytes = vec![0x38; 8 * row];
            bytes.chunks_exact_mut(132).for_each(|b| b[..4].copy_from_slice(&1f32.to_le_bytes()));
            bytes[3 * row + at / 128 * 132 + 4 + at % 128] = 0xff;
            let there = Packed::new(format, (8, 256), bytes).unwrap().to_device(&device).unwrap();
            let x = Array2::from_elem((256, 2), 1f32);
            for k in [1, 2] {
                let mut y = Array2::from_elem((8, k), 0f32);
                let a = Tensor::of_packed(there.window(), f32::DTYPE);
                let (alpha, beta) = (Number::new(1f32), Number::new(0f32));
                let (x, place) = (x.slice(s![.., ..k]).into(), y.view_mut().into());
                device.compute(Job { alpha, a, conj: false, x, beta, y: place }).unwrap();
                for ((i, _), y) in y.indexed_iter() {
                    assert!(if i == 3 { y.is_nan() } else { *y == 256.0 }, "{isa}: row {i} is {y}");
                }
            }
        }
    }
}

/// A scale so large that 256 times it is infinite, of codes so small that the sums are not.
#[test]
fn large_scales_of_fp8_do_not_overflow() {
    for isa in gemv_cpu::isas() {
        let device = Device::new(gemv_cpu::open(Some(isa)).unwrap());
        let mut rng = Numbers::new(9);
        let mut bytes = vec![0; 6 * 3 * 132];
        for block in bytes.chunks_exact_mut(132) {
            block.fill_with(|| rng.below(256) as u8 & 0x9f);
            block[..4].copy_from_slice(&f32::powi(2.0, 120).to_le_bytes());
        }
        let host = Packed::new(Format::Fp8, (6, 384), bytes).unwrap();
        let x = Array2::from_shape_fn((384, 4), |(j, c)| 1.0 / (1 + j + c) as f32);
        let none = Array2::zeros((6, 4));
        let want = expected((1.0, 0.0), &host.dequantize().unwrap(), x.view(), none.view());
        assert!(want.iter().all(|v| v.is_finite()));
        for k in [1, 2, 4] {
            let x = x.slice(s![.., ..k]).to_owned();
            let got = host.to_device(&device).and_then(|a| a.try_gpu_dot(&x)?.download()).unwrap();
            assert_eq!(got, want.slice(s![.., ..k]), "{isa}");
        }
    }
}
