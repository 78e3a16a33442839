//! NVFP4, as GGUF lays it out.

use crate::error::Result;

use crate::blocks::Blocks;
use crate::numbers::{
    E4M3, array, array_mut, e2m1_code, e2m1_twice, halves, largest, pack_halves, pack_pairs,
    pairs_and_scales, spread,
};

/// NVFP4: 64 elements in 36 bytes, as in GGUF. The scale `s` of each 16 columns, an e4m3 number, 4 bytes; then 8 bytes
/// for each 16 columns: byte i has the codes `q` of the columns i, in its low half, and 8 + i. An element is `e4m3(s) /
/// 2 * k(q)`, where `k(q)` is twice the e2m1 number `q`: 0, 1, 2, 3, 4, 6, 8, 12 and the negatives of these. It is
/// exact in f32.
///
/// A tensor has a scale of its own in f32, which is a factor of the product: its `alpha`.
///
/// The scales 0x7f and 0xff are NaN, and others from 0x80 on are negative, as numbers of e4m3fn are. ggml writes
/// neither, and reads 0x7f as 0 and others without their sign. The code 8 is +0, as ggml reads it, and not -0: products
/// have the same bits.
///
/// Fields of 256 columns, 16 bytes: 16 times `s`.
///
/// `encode` takes the largest magnitude of 16 columns / 6 as `s`, rounded to e4m3, and for each weight the first of the
/// nearest codes. This is ggml's reference, which rounds `s` to nearest, ties upwards, subnormals to 7 * 2^-9 at most;
/// but ggml brings all scales from 248 on to 448. Equal weights stay equal, within the rounding of `s`. Where all 16
/// are below 6 / 1,024 (0.0058) in magnitude they become zeros. Where one is 2,784 or more they are refused: divide by
/// a scale of the tensor before.
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4;

/// A scale as ggml rounds it, which is not negative; NaN where it is nearer to 480 than to 448.
fn scale_code(value: f32) -> u8 {
    if value < 0.015625 {
        return ((value * 512.0 + 0.5) as u8).min(7);
    }
    (((value.min(464.0).to_bits() + 0x80000) >> 20) - (120 << 3)) as u8
}

impl Blocks for Nvfp4 {
    const LEN: usize = 64;
    const BYTES: usize = 36;
    const CODE_BITS: u32 = 4;
    const FIELDS: usize = 16;
    const EXPRESSION: &'static str = "e4m3(s) / 2 * k(q)";

    #[inline(always)]
    fn decode(block: &[u8], to: &mut [f32]) {
        let (block, to) = (array::<_, 36>(block), array_mut::<_, 64>(to));
        let codes = halves::<8, 64>(&block[4..]).map(e2m1_twice);
        let scales = [0, 1, 2, 3].map(|i| E4M3[usize::from(block[i])] * 0.5);
        for ((to, k), scale) in to.iter_mut().zip(codes).zip(spread::<_, 4, 16, 64>(scales)) {
            *to = scale * f32::from(k);
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], to: &mut [u8]) {
        *array_mut(to) = halves::<8, 64>(&array::<_, 36>(block)[4..]);
    }

    fn encode(from: &[f32], block: &mut [u8]) {
        let (from, block) = (array::<_, 64>(from), array_mut::<_, 36>(block));
        let (scales, codes) = block.split_at_mut(4);
        let codes = codes.as_chunks_mut::<8>().0;
        for ((from, s), codes) in from.as_chunks::<16>().0.iter().zip(scales).zip(codes) {
            *s = scale_code(largest(from) / 6.0);
            let scale = E4M3[usize::from(*s)] * 0.5;
            pack_halves(&from.map(|value| e2m1_code(value, scale)), codes);
        }
    }
}

/// A matrix in NVFP4 as tensors of its own: the bytes of codes and scales in files of safetensors.
///
/// ```
/// use gemv_packed::{Format, Nvfp4Tensors};
///
/// let (codes, scales) = ([0x21; 32], [0x38; 4]); // 0.5 in the even columns, 1 in the odd ones; scales of 1
/// let blocks = Nvfp4Tensors { rows: 1, columns: 64, codes: &codes, scales: &scales }.pack()?;
/// let mut row = [0.0; 64];
/// Format::Nvfp4.dequantize(&blocks, &mut row);
/// assert_eq!(row[..3], [0.5, 1.0, 0.5]);
/// # Ok::<(), gemv_packed::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Nvfp4Tensors<'a> {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns, a multiple of 64.
    pub columns: usize,
    /// Half a byte for each element, row after row, the even column in the low half.
    pub codes: &'a [u8],
    /// The scale of each 16 columns, an e4m3 number, row after row.
    pub scales: &'a [u8],
}

impl Nvfp4Tensors<'_> {
    /// The blocks, row after row. The scale of the tensor is not in them.
    ///
    /// # Errors
    ///
    /// The lengths do not fit.
    pub fn pack(&self) -> Result<Vec<u8>> {
        let Nvfp4Tensors { rows, columns, codes, scales } = *self;
        let len = pairs_and_scales("nvfp4", (rows, columns), (codes, scales), [64, 16])?;
        let mut to = vec![0; len / 64 * 36];
        let from = codes.as_chunks::<32>().0.iter().zip(scales.as_chunks::<4>().0);
        for (block, (codes, scales)) in to.as_chunks_mut::<36>().0.iter_mut().zip(from) {
            block[..4].copy_from_slice(scales);
            let parts = block[4..].as_chunks_mut::<8>().0.iter_mut();
            parts.zip(codes.as_chunks::<8>().0).for_each(|(to, from)| pack_pairs(from, to));
        }
        Ok(to)
    }
}
