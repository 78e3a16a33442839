//! Q8_0 of GGUF.

use crate::blocks::Blocks;
use crate::numbers::{array, array_mut, f16_bytes, f16_value, largest};

/// GGUF's Q8_0: 32 elements in 34 bytes. The f16 `d`, then 32 bytes `q` of two's complement. An element is `d * q`,
/// exact in f32.
///
/// Fields of 256 columns, 16 bytes: 8 times `d`.
///
/// `encode` takes `d` as the largest magnitude / 127, and rounds each weight times `1 / d` to the nearest integer, ties
/// away from 0; then `d` is rounded to f16. This is ggml's reference. Equal weights stay equal, within the rounding of
/// `d`. A block whose weights are all up to 127 * 2^-25 (3.8e-6) in magnitude becomes zeros, because `d` does in f16;
/// one with a weight of 127 * 65,520 (8.3e6) or more is refused.
#[derive(Clone, Copy, Debug)]
pub struct Q8_0;

impl Blocks for Q8_0 {
    const LEN: usize = 32;
    const BYTES: usize = 34;
    const CODE_BITS: u32 = 8;
    const FIELDS: usize = 16;
    const EXPRESSION: &'static str = "d * q";

    #[inline(always)]
    fn decode(block: &[u8], to: &mut [f32]) {
        let (block, to) = (array::<_, 34>(block), array_mut::<_, 32>(to));
        let d = f16_value([block[0], block[1]]);
        // Stored at once: where an element might be stored to a code, the compiler makes no vectors.
        let mut values = [0.0; 32];
        for (to, q) in values.iter_mut().zip(&block[2..]) {
            *to = d * f32::from(*q as i8);
        }
        *to = values;
    }

    #[inline(always)]
    fn codes(block: &[u8], to: &mut [u8]) {
        to.copy_from_slice(&array::<_, 34>(block)[2..]);
    }

    fn encode(from: &[f32], block: &mut [u8]) {
        let (from, block) = (array::<_, 32>(from), array_mut::<_, 34>(block));
        let d = largest(from) / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        block[..2].copy_from_slice(&f16_bytes(d));
        for (q, value) in block[2..].iter_mut().zip(from) {
            *q = (value * inverse).round() as i8 as u8;
        }
    }
}
