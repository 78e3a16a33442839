//! MXFP4 of the Open Compute Project's microscaling formats, as GGUF lays it out.

use crate::error::Result;

use crate::blocks::Blocks;
use crate::numbers::{
    array, array_mut, e2m1_code, e2m1_twice, halves, largest, pack_halves, pack_pairs,
    pairs_and_scales,
};

/// MXFP4: 32 elements in 17 bytes, as in GGUF. The byte `e`, then 16 bytes: byte i has the codes `q` of the columns i,
/// in its low half, and 16 + i. An element is `2^(e - 128) * k(q)`, where `k(q)` is twice the e2m1 number `q`: 0, 1, 2,
/// 3, 4, 6, 8, 12 and the negatives of these. It is exact in f32, but for overflow, which gives infinities.
///
/// `e` = 255 is NaN, as the
/// [specification](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf) has it. ggml
/// reads it as a power of two, and writes none. The code 8 is +0, as ggml reads it, and not -0: products have the same
/// bits.
///
/// Fields of 256 columns, 8 bytes: 8 times `e`.
///
/// `encode` takes the largest magnitude's exponent less 2, and for each weight the first of the nearest codes. This is
/// ggml's reference. Equal weights stay equal. Weights below 2^-129 in magnitude become zeros.
#[derive(Clone, Copy, Debug)]
pub struct Mxfp4;

/// 2^(e - 128); NaN for 255.
#[inline(always)]
fn scale(e: u8) -> f32 {
    let e = u32::from(e);
    // The least two are subnormal.
    let bits = if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 };
    f32::from_bits(if e == 255 { 0x7fc0_0000 } else { bits })
}

impl Blocks for Mxfp4 {
    const LEN: usize = 32;
    const BYTES: usize = 17;
    const CODE_BITS: u32 = 4;
    const FIELDS: usize = 8;
    const EXPRESSION: &'static str = "2^(e - 128) * k(q)";

    #[inline(always)]
    fn decode(block: &[u8], to: &mut [f32]) {
        let (block, to) = (array::<_, 17>(block), array_mut::<_, 32>(to));
        let scale = scale(block[0]);
        let codes = halves::<16, 32>(&block[1..]).map(e2m1_twice);
        for (to, k) in to.iter_mut().zip(codes) {
            *to = scale * f32::from(k);
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], to: &mut [u8]) {
        *array_mut(to) = halves::<16, 32>(&array::<_, 17>(block)[1..]);
    }

    fn encode(from: &[f32], block: &mut [u8]) {
        let (from, block) = (array::<_, 32>(from), array_mut::<_, 17>(block));
        let most = largest(from);
        // The logarithm is rounded to f32, as in the reference: a number just below a power of two has that power's.
        let exponent = (f64::from(most).log2() as f32).floor() - 2.0 + 127.0;
        block[0] = if most > 0.0 { exponent as u8 } else { 0 };
        let scale = scale(block[0]);
        pack_halves(&from.map(|value| e2m1_code(value, scale)), &mut block[1..]);
    }
}

/// A matrix in MXFP4 as tensors of its own: the bytes of `blocks` and `scales` in files of safetensors.
///
/// ```
/// use gemv_packed::{Format, Mxfp4Tensors};
///
/// let (codes, scales) = ([0x21; 16], [127]); // 0.5 in the even columns, 1 in the odd ones
/// let blocks = Mxfp4Tensors { rows: 1, columns: 32, codes: &codes, scales: &scales }.pack()?;
/// let mut row = [0.0; 32];
/// Format::Mxfp4.dequantize(&blocks, &mut row);
/// assert_eq!(row[..3], [0.5, 1.0, 0.5]);
/// # Ok::<(), gemv_packed::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Mxfp4Tensors<'a> {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns, a multiple of 32.
    pub columns: usize,
    /// Half a byte for each element, row after row, the even column in the low half.
    pub codes: &'a [u8],
    /// The scale `e` of each 32 columns, row after row.
    pub scales: &'a [u8],
}

impl Mxfp4Tensors<'_> {
    /// The blocks, row after row.
    ///
    /// # Errors
    ///
    /// The lengths do not fit.
    pub fn pack(&self) -> Result<Vec<u8>> {
        let Mxfp4Tensors { rows, columns, codes, scales } = *self;
        let len = pairs_and_scales("mxfp4", (rows, columns), (codes, scales), [32, 32])?;
        let mut to = vec![0; len / 32 * 17];
        let from = codes.as_chunks::<16>().0.iter().zip(scales);
        for (block, (codes, scale)) in to.as_chunks_mut::<17>().0.iter_mut().zip(from) {
            block[0] = *scale;
            pack_pairs(codes, &mut block[1..]);
        }
        Ok(to)
    }
}
