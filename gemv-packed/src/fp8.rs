//! FP8 e4m3 with f32 scales.

use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::numbers::{array, array_mut, e4m3_code, e4m3_value, largest};

/// FP8: 128 elements in 132 bytes. The f32 `s`, then 128 bytes of codes `q`, e4m3fn numbers. An element is `s *
/// e4m3(q)`, rounded once; with scales of powers of two it is exact, but at the ends of the range.
///
/// The codes 0x7f and 0xff are NaN; e4m3fn has no infinities.
///
/// Fields of 256 columns, 8 bytes: 2 times `s`.
///
/// `encode` takes `s` as the largest magnitude / 448, and rounds each weight / `s` to nearest, ties to even, as
/// DeepSeek-V3's quantiser and torch's conversion do. Equal weights stay equal, within the rounding of the quotient. A
/// block of zeros has the scale 0, and so has one whose weights are all up to 448 * 2^-150 (3.1e-43) in magnitude.
#[derive(Clone, Copy, Debug)]
pub struct Fp8;

impl Blocks for Fp8 {
    const LEN: usize = 128;
    const BYTES: usize = 132;
    const CODE_BITS: u32 = 8;
    const FIELDS: usize = 8;
    const EXPRESSION: &'static str = "s * e4m3(q)";

    #[inline(always)]
    fn decode(block: &[u8], to: &mut [f32]) {
        let (block, to) = (array::<_, 132>(block), array_mut::<_, 128>(to));
        let s = f32::from_le_bytes(*array(&block[..4]));
        for (to, q) in to.iter_mut().zip(&block[4..]) {
            *to = s * e4m3_value(*q);
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], to: &mut [u8]) {
        to.copy_from_slice(&array::<_, 132>(block)[4..]);
    }

    fn encode(from: &[f32], block: &mut [u8]) {
        let (from, block) = (array::<_, 128>(from), array_mut::<_, 132>(block));
        let s = largest(from) / 448.0;
        block[..4].copy_from_slice(&s.to_le_bytes());
        for (q, value) in block[4..].iter_mut().zip(from) {
            *q = if s == 0.0 { 0 } else { e4m3_code(value / s) };
        }
    }
}

/// The scales of a matrix in FP8.
#[derive(Clone, Copy, Debug)]
pub enum Fp8Scales<'a> {
    /// One for 128 × 128 elements: ceil(rows / 128) × columns / 128 of them, row after row.
    Blocks(&'a [f32]),
    /// One for each row.
    Rows(&'a [f32]),
    /// One for all.
    Tensor(f32),
}

/// A matrix in FP8 as tensors of its own: codes and scales, as files of safetensors have them.
///
/// ```
/// use gemv_packed::{Format, Fp8Scales, Fp8Tensors};
///
/// let codes = [0x38; 256]; // ones
/// let scales = Fp8Scales::Rows(&[0.5, 3.0]);
/// let blocks = Fp8Tensors { rows: 2, columns: 128, codes: &codes, scales }.pack()?;
/// let mut values = [0.0; 256];
/// Format::Fp8.dequantize(&blocks, &mut values);
/// assert_eq!((values[0], values[128]), (0.5, 3.0));
/// # Ok::<(), gemv_packed::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fp8Tensors<'a> {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns, a multiple of 128.
    pub columns: usize,
    /// A byte for each element, row after row.
    pub codes: &'a [u8],
    /// Their scales.
    pub scales: Fp8Scales<'a>,
}

impl Fp8Tensors<'_> {
    /// The blocks, row after row.
    ///
    /// # Errors
    ///
    /// The lengths do not fit.
    pub fn pack(&self) -> Result<Vec<u8>> {
        let Fp8Tensors { rows, columns, codes, scales } = *self;
        let (there, needed) = match scales {
            Fp8Scales::Blocks(of) => (of.len(), rows.div_ceil(128) * (columns / 128)),
            Fp8Scales::Rows(of) => (of.len(), rows),
            Fp8Scales::Tensor(_) => (1, 1),
        };
        let error = |reason| Err(Error { format: "fp8".into(), reason });
        if !columns.is_multiple_of(128) {
            let reason = "elements is no whole number of blocks of 128";
            return error(format!("a row of {columns} {reason}"));
        }
        if rows.checked_mul(columns) != Some(codes.len()) || there != needed {
            let bytes = codes.len();
            return error(format!(
                "{rows} × {columns} elements in {bytes} bytes with {there} scales, where {needed} belong"
            ));
        }
        let of_row = columns / 128;
        let mut to = vec![0; codes.len() / 128 * 132];
        let blocks = to.as_chunks_mut::<132>().0.iter_mut().zip(codes.as_chunks::<128>().0);
        for (i, (block, codes)) in blocks.enumerate() {
            let (row, column) = (i / of_row, i % of_row);
            let scale = match scales {
                Fp8Scales::Blocks(of) => of[row / 128 * of_row + column],
                Fp8Scales::Rows(of) => of[row],
                Fp8Scales::Tensor(scale) => scale,
            };
            block[..4].copy_from_slice(&scale.to_le_bytes());
            block[4..].copy_from_slice(codes);
        }
        Ok(to)
    }
}
