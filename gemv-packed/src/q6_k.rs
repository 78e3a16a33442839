//! Q6_K of GGUF.

use crate::blocks::Blocks;
use crate::numbers::{array, array_mut, f16_bytes, f16_value, spread};

/// GGUF's Q6_K: 256 elements in 210 bytes. 128 bytes with the low 4 bits of each code `q`, 64 with the upper 2, 16
/// bytes `sc` of two's complement, one for each 16 columns, and the f16 `d`. An element is `d * sc * (q - 32)`, exact
/// in f32.
///
/// Each 128 columns have 64 bytes of low bits and 32 of upper bits. Of the columns i, 32 + i, 64 + i and 96 + i, the
/// upper bits are those of byte i, the lowest two first; the low bits are in the low halves of the bytes i and 32 + i,
/// then in their high halves.
///
/// Fields of 256 columns, 20 bytes: `d`, two bytes of zero, 16 bytes of `sc`.
///
/// `encode` fits a scale to each 16 weights, takes `d` as the largest of these / -128, rounds to `sc`, and then each
/// weight to the nearest code. This is ggml's reference (`quantize_row_q6_K_ref`), compiled without contraction to fma.
/// Equal weights stay equal, within the rounding of `d` and `sc`. A block whose weights are all below about 2^-13
/// (1.2e-4) in magnitude becomes zeros, because `d` does in f16; one with a weight beyond about 2.6e8 is refused.
#[derive(Clone, Copy, Debug)]
pub struct Q6K;

/// Where the parts of a block begin.
const UPPER: usize = 128;
const SCALES: usize = 192;
const D: usize = 208;

/// Calls `put` with 128 columns' entries of `to`, and the codes of 32 columns of them, four times.
#[inline(always)]
fn each<T>(block: &[u8; 210], to: &mut [T; 256], value: impl Fn(usize, u8) -> T) {
    let low = block[..UPPER].as_chunks::<64>().0;
    let upper = block[UPPER..SCALES].as_chunks::<32>().0;
    for (h, to) in to.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        for (part, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (low, upper) = (&low[h][part % 2 * 32..][..32], &upper[h]);
            // Of 16 columns, which have one scale.
            for (s, to) in to.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let (low, upper) = (&low[s * 16..][..16], &upper[s * 16..][..16]);
                let scale = h * 8 + part * 2 + s;
                for ((to, low), upper) in to.iter_mut().zip(low).zip(upper) {
                    let (low, upper) = (low >> (part / 2 * 4) & 15, upper >> (part * 2) & 3);
                    *to = value(scale, low | upper << 4);
                }
            }
        }
    }
}

impl Blocks for Q6K {
    const LEN: usize = 256;
    const BYTES: usize = 210;
    const CODE_BITS: u32 = 6;
    const FIELDS: usize = 20;
    const EXPRESSION: &'static str = "d * sc * (q - 32)";

    #[inline(always)]
    fn decode(block: &[u8], to: &mut [f32]) {
        // A copy, two loops, and stored at once: else the compiler makes no vectors.
        let block = &{ *array::<_, 210>(block) };
        let d = f16_value([block[D], block[D + 1]]);
        let sc = array::<_, 16>(&block[SCALES..D]).map(|sc| d * f32::from(sc as i8));
        let (mut codes, mut values) = ([0; 256], [0.0; 256]);
        each(block, &mut codes, |_, q| q);
        let all = values.iter_mut().zip(codes).zip(spread::<_, 16, 16, 256>(sc));
        for ((to, q), sc) in all {
            *to = sc * (i32::from(q) - 32) as f32;
        }
        *array_mut(to) = values;
    }

    #[inline(always)]
    fn codes(block: &[u8], to: &mut [u8]) {
        each(array(block), array_mut(to), |_, q| q);
    }

    fn fields(blocks: &[u8], to: &mut [u8]) {
        let to = array_mut::<_, 20>(to);
        to.fill(0);
        if let Some(block) = blocks.as_chunks::<210>().0.first() {
            to[..2].copy_from_slice(&block[D..]);
            to[4..].copy_from_slice(&block[SCALES..D]);
        }
    }

    fn encode(from: &[f32], block: &mut [u8]) {
        let (from, block) = (array::<_, 256>(from), array_mut::<_, 210>(block));
        block.fill(0);
        let (from, mut codes) = (from.as_chunks::<16>().0, [[0_u8; 16]; 16]);
        let mut fits = [0.0_f32; 16];
        for ((fitted, codes), from) in fits.iter_mut().zip(&mut codes).zip(from) {
            *fitted = fit(from, codes);
        }
        let first =
            |most: f32, fitted: &f32| if fitted.abs() > most.abs() { *fitted } else { most };
        let most = fits.iter().fold(0.0, first);
        if most.abs() < TINY {
            return;
        }
        let inverse = -128.0 / most;
        let d = f16_bytes(1.0 / inverse);
        block[D..].copy_from_slice(&d);
        for (j, (codes, from)) in codes.iter_mut().zip(from).enumerate() {
            let sc = (inverse * fits[j]).round_ties_even().min(127.0) as i8;
            block[SCALES + j] = sc as u8;
            let scale = f16_value(d) * f32::from(sc);
            // Without a scale any code gives the same; the reference keeps those that were fitted.
            if scale != 0.0 {
                *codes = from.map(|v| (code(v / scale) + 32) as u8);
            }
        }
        for (i, q) in codes.as_flattened().iter().enumerate() {
            let (h, part, at) = (i / 128, i / 32 % 4, i % 32);
            block[h * 64 + part % 2 * 32 + at] |= (q & 15) << (part / 2 * 4);
            block[UPPER + h * 32 + at] |= q >> 4 << (part * 2);
        }
    }
}

/// Weights below it in magnitude are zeros.
const TINY: f32 = 1e-15;

/// The nearest code, less 32.
fn code(value: f32) -> i32 {
    value.round_ties_even().clamp(-32.0, 31.0) as i32
}

/// The scale of 16 weights, and their codes: of the scales by least squares, weighted by the squares, for 19 first
/// guesses the one with the least error.
fn fit(from: &[f32; 16], codes: &mut [u8; 16]) -> f32 {
    let first = |most: f32, v: &f32| if v.abs() > most.abs() { *v } else { most };
    let most = from.iter().fold(0.0, first);
    if most.abs() < TINY {
        *codes = [0; 16];
        return 0.0;
    }
    // The sums of w x q and w q q, where w is x x.
    let sums = |trial: &[i32; 16]| {
        let terms = from.iter().zip(trial).map(|(x, q)| (x * x, *x, *q as f32));
        terms.fold((0.0, 0.0), |(xq, qq), (w, x, q)| (xq + w * x * q, qq + w * q * q))
    };
    let guess = |inverse: f32| from.map(|v| code(inverse * v));
    let mut chosen = guess(-32.0 / most);
    let (xq, qq) = sums(&chosen);
    let mut scale = if qq == 0.0 { 0.0 } else { xq / qq };
    let mut best = scale * xq;
    for step in (-9..=9_i8).filter(|step| *step != 0) {
        let trial = guess(-(32.0 + 0.1 * f32::from(step)) / most);
        let (xq, qq) = sums(&trial);
        if qq > 0.0 && xq * xq > best * qq {
            (chosen, scale) = (trial, xq / qq);
            best = scale * xq;
        }
    }
    *codes = chosen.map(|q| (q + 32) as u8);
    scale
}
