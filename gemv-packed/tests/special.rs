//! What a format's page says of its fields, of equal, tiny and large weights, and of special values.
#![forbid(unsafe_code)]

use gemv_packed::{Blocks, Format, Fp8Scales, Fp8Tensors, Group, Int4Tensors, Scale, with_blocks};
use half::{bf16, f16};

/// Bytes that look random.
fn bytes(len: usize, mut seed: u32) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
        (seed >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn round(format: Format, weights: &[f32]) -> Vec<f32> {
    let mut blocks = vec![0; format.row_bytes(weights.len()).unwrap()];
    format.quantize(weights, &mut blocks).unwrap();
    let mut values = vec![f32::NAN; weights.len()];
    format.dequantize(&blocks, &mut values);
    values
}

/// The expression of an element by its fields, as the pages of the formats give them, and its code: in f64, where all
/// products are exact, rounded once.
fn expression(format: Format, fields: &[u8], code: u8, column: usize) -> f32 {
    let f16_at = |at: usize| f16::from_le_bytes([fields[at], fields[at + 1]]).to_f64();
    let twice = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];
    let k = |q: u8| if q < 8 { twice[q as usize] } else { 0.0 - twice[q as usize - 8] };
    let e4m3 = |code: u8| {
        let (e, m) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let value = if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
        let value = if code & 127 == 127 { f64::NAN } else { value };
        if code < 128 { value } else { -value }
    };
    let q = f64::from(code);
    let value = match format {
        Format::Q8_0 => f16_at(column / 32 * 2) * f64::from(code as i8),
        Format::Q4_0 => f16_at(column / 32 * 2) * (q - 8.0),
        Format::Q4K => {
            let (sc, m) = (fields[4 + column / 32], fields[12 + column / 32]);
            f16_at(0) * f64::from(sc) * q - f16_at(2) * f64::from(m)
        }
        Format::Q6K => f16_at(0) * f64::from(fields[4 + column / 16] as i8) * (q - 32.0),
        Format::Int4 { group, scale } => {
            let group = group.columns();
            let (i, groups) = (column / group, 256 / group);
            let s = match scale {
                Scale::F16 => f16_at(2 * i),
                Scale::Bf16 => bf16::from_le_bytes([fields[2 * i], fields[2 * i + 1]]).to_f64(),
            };
            s * (q - f64::from(fields[2 * groups + i]))
        }
        Format::Fp8 => {
            let s: [u8; 4] = fields[column / 128 * 4..][..4].try_into().unwrap();
            f64::from(f32::from_le_bytes(s)) * e4m3(code)
        }
        Format::Mxfp4 => match fields[column / 32] {
            255 => f64::NAN,
            e => 2f64.powi(i32::from(e) - 128) * k(code),
        },
        Format::Nvfp4 => e4m3(fields[column / 16]) / 2.0 * k(code),
    };
    value as f32
}

#[test]
fn fields_and_codes_give_the_values() {
    for &format in Format::ALL {
        with_blocks!(format, B => {
            const { assert!(256 % B::LEN == 0 && B::LEN % 16 == 0 && B::FIELDS % 4 == 0) };
            let whole = 256 / B::LEN;
            for (seed, count) in [(1, whole), (2, whole), (3, whole), (4, whole.div_ceil(2)), (5, 1)] {
                let mut blocks = bytes(count * B::BYTES, seed);
                if let Format::Int4 { .. } = format {
                    blocks.chunks_mut(B::BYTES).for_each(|block| block[3] = 0);
                }
                let (mut fields, mut codes) = (vec![9; B::FIELDS], vec![9; 256]);
                B::fields(&blocks, &mut fields);
                let mut values = vec![0.0; count * B::LEN];
                format.dequantize(&blocks, &mut values);
                for (block, codes) in blocks.chunks(B::BYTES).zip(codes.chunks_mut(B::LEN)) {
                    B::codes(block, codes);
                }
                for (column, value) in values.iter().enumerate() {
                    let code = codes[column];
                    assert!(u32::from(code) >> B::CODE_BITS == 0, "{format}: {code}");
                    let want = expression(format, &fields, code, column);
                    let same = value.to_bits() == want.to_bits() || value.is_nan() && want.is_nan();
                    assert!(same, "{format}: column {column}: {value:e}, not {want:e}");
                }
                // Fields of blocks that are not there.
                let mut zeros = blocks.clone();
                zeros.resize(whole * B::BYTES, 0);
                let mut with_zeros = vec![9; B::FIELDS];
                B::fields(&zeros, &mut with_zeros);
                assert_eq!(fields, with_zeros, "{format}");
            }
        });
    }
}

#[test]
fn equal_weights_stay_equal() {
    for &format in Format::ALL {
        for weight in [0.0, 1.0, -1.0, 0.37, -0.37, 0.02, -0.02, 1000.0, -1000.0] {
            let values = round(format, &[weight; 256]);
            // Powers of two; and of 0.02 the scale of NVFP4 is subnormal.
            let within = match format {
                Format::Mxfp4 => 0.34,
                Format::Nvfp4 => 0.18,
                _ => 0.07,
            };
            let near = |value: &f32| (value - weight).abs() <= within * weight.abs();
            assert!(values.iter().all(near), "{format}: {weight} becomes {}", values[0]);
            assert!(values.iter().all(|value| *value == values[0]), "{format}: {weight}");
        }
    }
}

/// Positive weights, that are all equal: the largest one that becomes zero, and the least one that is refused.
#[test]
fn tiny_and_large_weights_are_as_said() {
    let int4 = |scale| Format::Int4 { group: Group::G128, scale };
    for (format, zero, refused) in [
        (Format::Q8_0, 127.0 / 33554432.0, 127.0 * 65520.0),
        (Format::Q4_0, 8.0 / 33554432.0, 8.0 * 65520.0),
        (Format::Q4K, 945.0 / 33554432.0, 945.0 * 65520.0),
        (Format::Q6K, 4096.0 / 33554432.0, 4096.0 * 65520.0),
        (int4(Scale::F16), 15.0 / 33554432.0, 15.0 * 65520.0),
        (int4(Scale::Bf16), f32::from_bits(7 << 15), f32::INFINITY),
        (Format::Fp8, f32::from_bits(224), f32::INFINITY),
        (Format::Mxfp4, f32::from_bits(1 << 20), f32::INFINITY),
        (Format::Nvfp4, 6.0_f32 / 1024.0, 2784.0),
    ] {
        // Where the scale is fitted, it is a little off.
        let fitted = matches!(format, Format::Q4K | Format::Q6K);
        let (less, more) = if fitted { (0.95, 1.05) } else { (0.9999, 1.0001) };
        let is_zero = |weight: f32| round(format, &[weight; 256]).iter().all(|value| *value == 0.0);
        assert!(is_zero(zero * less), "{format}: {zero:e}");
        if format != int4(Scale::Bf16) && zero > f32::MIN_POSITIVE {
            assert!(!is_zero(zero * more), "{format}: {zero:e}");
        }
        let mut blocks = vec![0; format.row_bytes(256).unwrap()];
        let mut fits = |weight: f32| format.quantize(&[weight; 256], &mut blocks).is_ok();
        assert!(fits((refused * less).min(3.3e38)), "{format}: {refused:e}");
        assert!(!fits(refused * more), "{format}: {refused:e}");
    }
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    for &format in Format::ALL {
        let mut blocks = vec![7; format.row_bytes(512).unwrap()];
        let before = blocks.clone();
        for (weight, name) in
            [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")]
        {
            let mut weights = [0.5; 512];
            weights[300] = weight;
            let e = format.quantize(&weights, &mut blocks).unwrap_err();
            assert_eq!(e.to_string(), format!("{format}: the weight 300 is {name}"));
            assert_eq!(blocks, before);
        }
    }
}

/// A scale that is NaN or infinite is one of its block alone.
#[test]
fn special_scales_stay_in_their_block() {
    for &format in Format::ALL {
        let (len, size) = (format.block_len(), format.block_bytes());
        let weights: Vec<_> = (0..3 * len).map(|j| 1.0 + (j as f32).sin() / 2.0).collect();
        let mut blocks = vec![0; 3 * size];
        format.quantize(&weights, &mut blocks).unwrap();
        let scale = &mut blocks[size..2 * size];
        match format {
            Format::Q6K => scale[208..].copy_from_slice(&f16::NAN.to_le_bytes()),
            Format::Fp8 => scale[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
            Format::Mxfp4 => scale[0] = 255,
            Format::Nvfp4 => scale[..4].fill(0x7f),
            Format::Int4 { scale: Scale::Bf16, .. } => {
                scale[..2].copy_from_slice(&bf16::NAN.to_le_bytes())
            }
            _ => scale[..2].copy_from_slice(&f16::NAN.to_le_bytes()),
        };
        let mut values = vec![0.0; 3 * len];
        format.dequantize(&blocks, &mut values);
        for (j, value) in values.iter().enumerate() {
            assert_eq!(value.is_nan(), (len..2 * len).contains(&j), "{format}: {j}: {value}");
        }
    }
    let mut block = vec![0; 34];
    block[..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
    (block[2], block[3]) = (1, 0xff);
    let mut values = [0.0; 32];
    Format::Q8_0.dequantize(&block, &mut values);
    assert_eq!(values[..2], [f32::INFINITY, f32::NEG_INFINITY]);
    assert!(values[2].is_nan(), "infinity times 0");
}

#[test]
fn tensors_of_gptq_and_awq_are_packed() {
    let (rows, columns) = (16, 256);
    for (group, name) in
        [(32, "int4g32"), (64, "int4g64bf16"), (128, "int4g128"), (256, "int4g256bf16")]
    {
        let format: Format = name.parse().unwrap();
        let Format::Int4 { group: of, scale } = format else { panic!("{name}") };
        let groups = columns / group;
        let codes = bytes(rows * columns, 1);
        let [zeros, powers] = [2, 3].map(|seed| bytes(rows * groups, seed));
        let code = |row: usize, column: usize| codes[row * columns + column] & 15;
        let zero = |row: usize, group: usize| zeros[row * groups + group] & 15;
        // Powers of two, which both types hold.
        let power = |row: usize, group: usize| i32::from(powers[row * groups + group] & 7) - 4;
        let mut scales = Vec::new();
        for i in 0..groups * rows {
            let s = 2f32.powi(power(i % rows, i / rows));
            let bf16 = name.ends_with("bf16");
            scales.extend(if bf16 {
                bf16::from_f32(s).to_le_bytes()
            } else {
                f16::from_f32(s).to_le_bytes()
            });
        }
        let word =
            |nibbles: [u8; 8]| nibbles.iter().rev().fold(0, |word, n| word << 4 | u32::from(*n));
        let flat =
            |words: Vec<u32>| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let gptq_weights = (0..columns / 8 * rows)
            .map(|i| word(std::array::from_fn(|k| code(i % rows, i / rows * 8 + k))));
        let gptq_zeros = |less: u8| {
            let words = (0..groups * rows / 8).map(|i| {
                word(std::array::from_fn(|k| {
                    zero(i % (rows / 8) * 8 + k, i / (rows / 8)).wrapping_sub(less) & 15
                }))
            });
            flat(words.collect())
        };
        const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
        let awq_weights = (0..columns * rows / 8)
            .map(|i| word(ORDER.map(|k| code(i % (rows / 8) * 8 + k, i / (rows / 8)))));
        let awq_zeros = (0..groups * rows / 8)
            .map(|i| word(ORDER.map(|k| zero(i % (rows / 8) * 8 + k, i / (rows / 8)))));
        let (gptq_weights, awq_weights) =
            (flat(gptq_weights.collect()), flat(awq_weights.collect()));
        let (v1, v2, awq_zeros) = (gptq_zeros(1), gptq_zeros(0), flat(awq_zeros.collect()));
        let tensors = |qweight, qzeros| Int4Tensors {
            rows,
            columns,
            group: of,
            scale,
            qweight,
            qzeros,
            scales: &scales,
        };
        let packed = [
            tensors(&gptq_weights, &v2).gptq(2).unwrap(),
            tensors(&awq_weights, &awq_zeros).awq().unwrap(),
            tensors(&gptq_weights, &v1).gptq(1).unwrap(),
        ];
        for (version, blocks) in packed.iter().enumerate() {
            let mut values = vec![0.0; rows * columns];
            format.dequantize(blocks, &mut values);
            for (i, value) in values.iter().enumerate() {
                let (row, column) = (i / columns, i % columns);
                let z = match (version, zero(row, column / group)) {
                    (2, 0) => 16, // version 1 has no zero of 0
                    (_, z) => i32::from(z),
                };
                let s = 2f32.powi(power(row, column / group));
                assert_eq!(
                    *value,
                    s * (i32::from(code(row, column)) - z) as f32,
                    "{name} {version} {i}"
                );
            }
        }
        let e = tensors(&gptq_weights[4..], &v2).gptq(2).unwrap_err().to_string();
        assert!(e.starts_with(&"int4: 16 × 256 elements in 2044 bytes of codes"), "{e}");
        let e = tensors(&gptq_weights, &v2).gptq(3).unwrap_err().to_string();
        assert_eq!(e, "int4: version 3 of GPTQ is not known");
    }
}

#[test]
fn blocks_of_128_rows_share_a_scale() {
    let (rows, columns) = (130, 256);
    let codes = vec![0x38; rows * columns]; // ones
    let scales = Fp8Scales::Blocks(&[1.0, 2.0, 3.0, 4.0]);
    let blocks = Fp8Tensors { rows, columns, codes: &codes, scales }.pack().unwrap();
    let mut values = vec![0.0; rows * columns];
    Format::Fp8.dequantize(&blocks, &mut values);
    let at = |row: usize, column: usize| values[row * columns + column];
    assert_eq!(
        [at(0, 0), at(127, 127), at(127, 128), at(128, 0), at(129, 255)],
        [1., 1., 2., 3., 4.]
    );
    for scales in [Fp8Scales::Blocks(&[1.0; 3]), Fp8Scales::Rows(&[1.0; 129])] {
        let e = Fp8Tensors { rows, columns, codes: &codes, scales }.pack().unwrap_err();
        let e = e.to_string();
        assert!(e.starts_with("fp8: 130 × 256 elements in 33280 bytes with"), "{e}");
        assert!(
            e.ends_with("3 scales, where 4 belong") || e.ends_with("129 scales, where 130 belong"),
            "{e}"
        );
    }
}
