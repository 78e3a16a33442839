//! Q4_0 of GGUF.

use crate::blocks::Blocks;
use crate::numbers::{array, array_mut, f16_bytes, f16_value, halves, pack_halves};

/// GGUF's Q4_0: 32 elements in 18 bytes. The f16 `d`, then 16 bytes: byte i has the codes `q` of the columns i, in its
/// low half, and 16 + i. An element is `d * (q - 8)`, exact in f32.
///
/// Fields of 256 columns, 16 bytes: 8 times `d`.
///
/// `encode` takes `d` as the weight of the largest magnitude / -8, the first of several, and adds 8.5 to each weight
/// times `1 / d`, of which the integer part is kept, 15 at most; then `d` is rounded to f16. This is ggml's reference.
/// Equal weights stay equal, within the rounding of `d`. A block whose weights are all up to 2^-22 (2.4e-7) in
/// magnitude becomes zeros, because `d` does in f16; one with a weight of 8 * 65,520 (524,160) or more is refused.
#[derive(Clone, Copy, Debug)]
pub struct Q4_0;

impl Blocks for Q4_0 {
    const LEN: usize = 32;
    const BYTES: usize = 18;
    const CODE_BITS: u32 = 4;
    const FIELDS: usize = 16;
    const EXPRESSION: &'static str = "d * (q - 8)";

    #[inline(always)]
    fn decode(block: &[u8], to: &mut [f32]) {
        let (block, to) = (array::<_, 18>(block), array_mut::<_, 32>(to));
        let d = f16_value([block[0], block[1]]);
        for (to, q) in to.iter_mut().zip(halves::<16, 32>(&block[2..])) {
            *to = d * (i32::from(q) - 8) as f32;
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], to: &mut [u8]) {
        *array_mut(to) = halves::<16, 32>(&array::<_, 18>(block)[2..]);
    }

    fn encode(from: &[f32], block: &mut [u8]) {
        let (from, block) = (array::<_, 32>(from), array_mut::<_, 18>(block));
        let first = |most: f32, value: &f32| if value.abs() > most.abs() { *value } else { most };
        let d = from.iter().fold(0.0, first) / -8.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        block[..2].copy_from_slice(&f16_bytes(d));
        pack_halves(&from.map(|value| ((value * inverse + 8.5) as u8).min(15)), &mut block[2..]);
    }
}
