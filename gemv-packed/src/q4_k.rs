//! Q4_K of GGUF.

use crate::blocks::Blocks;
use crate::numbers::{array, array_mut, f16_bytes, f16_value, halves, pack_halves, spread};

/// GGUF's Q4_K: 256 elements in 144 bytes. The f16 `d` and `dmin`, 12 bytes with a scale `sc` and a minimum `m` of 6
/// bits for each 32 columns, then 128 bytes of codes: of each 64 columns 32 bytes, where byte i has the codes `q` of
/// the columns i, in its low half, and 32 + i.
///
/// An element is `fma(d * sc, q, -(dmin * m))`. All products are exact in f32, so that it is rounded once, also where
/// it is computed as a product and a difference.
///
/// Of the 12 bytes, byte j has the low 6 bits of `sc[j]`, byte 4 + j those of `m[j]`, for j below 4. Byte 8 + j has the
/// low 4 bits of `sc[4 + j]`, and of `m[4 + j]` in its high half. The upper two bits of these are the upper two of the
/// bytes j and 4 + j.
///
/// Fields of 256 columns, 20 bytes: `d`, `dmin`, 8 bytes of `sc`, 8 of `m`.
///
/// `encode` fits a scale and a minimum to each 32 weights, takes `d` and `dmin` as the largest of either / 63, rounds
/// to `sc` and `m`, and then each weight to the nearest code. This is ggml's reference (`quantize_row_q4_K_ref`),
/// compiled without contraction to fma. Equal weights stay equal, within the rounding of `d` and `sc`, or of `dmin` and
/// `m` where they are negative. A block becomes zeros where `d` and `dmin` do in f16: where its weights lie between
/// about -1.9e-6 and 2.8e-5. One with a weight beyond about 6.1e7, or below -4.1e6, is refused.
#[derive(Clone, Copy, Debug)]
pub struct Q4K;

/// The scales and the minima of the 12 bytes.
#[inline(always)]
fn scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut sc, mut m) = ([0; 8], [0; 8]);
    for j in 0..4 {
        let (low, min, rest) = (packed[j], packed[4 + j], packed[8 + j]);
        (sc[j], m[j]) = (low & 63, min & 63);
        (sc[4 + j], m[4 + j]) = (rest & 15 | low >> 6 << 4, rest >> 4 | min >> 6 << 4);
    }
    (sc, m)
}

impl Blocks for Q4K {
    const LEN: usize = 256;
    const BYTES: usize = 144;
    const CODE_BITS: u32 = 4;
    const FIELDS: usize = 20;
    const EXPRESSION: &'static str = "fma(d * sc, q, -(dmin * m))";

    #[inline(always)]
    fn decode(block: &[u8], to: &mut [f32]) {
        let (block, to) = (array::<_, 144>(block), array_mut::<_, 256>(to));
        let (d, dmin) = (f16_value([block[0], block[1]]), f16_value([block[2], block[3]]));
        let (sc, m) = scales(array(&block[4..16]));
        let (sc, m) = (sc.map(|sc| d * f32::from(sc)), m.map(|m| dmin * f32::from(m)));
        let scales = sc.as_chunks::<2>().0.iter().zip(m.as_chunks::<2>().0);
        let parts = block[16..].as_chunks::<32>().0.iter().zip(to.as_chunks_mut::<64>().0);
        for ((sc, m), (bytes, to)) in scales.zip(parts) {
            let codes = halves::<32, 64>(bytes);
            let (sc, m) = (spread::<_, 2, 32, 64>(*sc), spread::<_, 2, 32, 64>(*m));
            for (((to, q), sc), m) in to.iter_mut().zip(codes).zip(sc).zip(m) {
                *to = sc * f32::from(q) - m;
            }
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], to: &mut [u8]) {
        *array_mut(to) = halves::<32, 256>(&array::<_, 144>(block)[16..]);
    }

    fn fields(blocks: &[u8], to: &mut [u8]) {
        let to = array_mut::<_, 20>(to);
        to.fill(0);
        if let Some(block) = blocks.as_chunks::<144>().0.first() {
            let (sc, m) = scales(array(&block[4..16]));
            to[..4].copy_from_slice(&block[..4]);
            to[4..12].copy_from_slice(&sc);
            to[12..].copy_from_slice(&m);
        }
    }

    fn encode(from: &[f32], block: &mut [u8]) {
        let (from, block) = (array::<_, 256>(from), array_mut::<_, 144>(block));
        let mut codes = [0; 256];
        let mut fits = [(0.0, 0.0); 8];
        let parts = from.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0);
        for (fitted, (from, codes)) in fits.iter_mut().zip(parts) {
            *fitted = fit(from, codes);
        }
        let most = fits.iter().fold((0.0_f32, 0.0_f32), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        let inverse = |most: f32| if most > 0.0 { 63.0 / most } else { 0.0 };
        let (to_sc, to_m) = (inverse(most.0), inverse(most.1));
        for (j, (scale, min)) in fits.iter().enumerate() {
            let round = |v: f32| v.round_ties_even().min(63.0) as u8;
            let (sc, m) = (round(to_sc * scale), round(to_m * min));
            let packed = &mut block[4..16];
            if j < 4 {
                (packed[j], packed[4 + j]) = (sc, m);
            } else {
                packed[4 + j] = sc & 15 | m << 4;
                packed[j - 4] |= sc >> 4 << 6;
                packed[j] |= m >> 4 << 6;
            }
        }
        let (d, dmin) = (f16_bytes(most.0 / 63.0), f16_bytes(most.1 / 63.0));
        block[..2].copy_from_slice(&d);
        block[2..4].copy_from_slice(&dmin);
        let (sc, m) = scales(array(&block[4..16]));
        let parts = from.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0);
        for (j, (from, codes)) in parts.enumerate() {
            let (scale, min) = (f16_value(d) * f32::from(sc[j]), f16_value(dmin) * f32::from(m[j]));
            // Without a scale any code gives the same; the reference keeps those that were fitted.
            if scale != 0.0 {
                *codes = from.map(|v| code((v + min) / scale));
            }
        }
        let chunks = block[16..].as_chunks_mut::<32>().0.iter_mut();
        chunks.zip(codes.as_chunks::<64>().0).for_each(|(to, codes)| pack_halves(codes, to));
    }
}

/// The nearest code.
fn code(value: f32) -> u8 {
    value.round_ties_even().clamp(0.0, 15.0) as u8
}

/// The scale, and the minimum with its sign turned, of the line through 32 weights, and their codes: of the lines by
/// weighted least squares for 21 first guesses of the scale, the one with the least error. The line does not begin
/// above 0.
fn fit(from: &[f32; 32], codes: &mut [u8; 32]) -> (f32, f32) {
    let sum = |of: &dyn Fn(usize) -> f32| (0..32).fold(0.0, |sum, i| sum + of(i));
    let mean = (sum(&|i| from[i] * from[i]) / 32.0).sqrt();
    let weights = from.map(|v| mean + v.abs());
    let mut min = from.iter().fold(0.0_f32, |a, b| a.min(*b));
    let max = from.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    if max == min {
        *codes = [0; 32];
        return (0.0, -min);
    }
    // For so many steps from the minimum to the maximum.
    let guess = |steps: f32, min: f32| {
        let inverse = steps / (max - min);
        (inverse, from.map(|v| code(inverse * (v - min))))
    };
    let error = |codes: &[u8; 32], scale: f32, min: f32| {
        sum(&|i| {
            let difference = scale * f32::from(codes[i]) + min - from[i];
            weights[i] * (difference * difference)
        })
    };
    let (inverse, first) = guess(15.0, min);
    let mut scale = 1.0 / inverse;
    *codes = first;
    let mut least = error(codes, scale, min);
    let (w, wx) = (sum(&|i| weights[i]), sum(&|i| weights[i] * from[i]));
    for step in 0..=20_u8 {
        // From the best line's minimum on, as the reference does.
        let (_, trial) = guess(-1.0 + 0.1 * f32::from(step) + 15.0, min);
        let q = trial.map(f32::from);
        let wq = sum(&|i| weights[i] * q[i]);
        let wqq = sum(&|i| weights[i] * q[i] * q[i]);
        let wqx = sum(&|i| weights[i] * q[i] * from[i]);
        let determinant = w * wqq - wq * wq;
        if determinant > 0.0 {
            let mut line = ((w * wqx - wx * wq) / determinant, (wqq * wx - wq * wqx) / determinant);
            if line.1 > 0.0 {
                line = (wqx / wqq, 0.0);
            }
            let of_trial = error(&trial, line.0, line.1);
            if of_trial < least {
                (*codes, least) = (trial, of_trial);
                (scale, min) = line;
            }
        }
    }
    (scale, -min)
}
