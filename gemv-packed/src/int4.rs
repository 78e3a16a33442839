//! int4 with groups, as GPTQ and AWQ have it.

use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::numbers::{array, bf16_value, f16_bytes, f16_value, halves, pack_halves};

/// int4 with groups: `GROUP` elements, 32 to 256, in 4 + `GROUP` / 2 bytes. The scale `s`, an f16, or a bf16 where
/// `BF16`; the zero `z`, a byte; a byte of 0; then 16 bytes for each 32 columns: byte i has the codes `q` of the
/// columns i, in its low half, and 16 + i. An element is `s * (q - z)`, exact in f32, but for overflow of bf16 scales.
///
/// Fields of 256 columns: `s` of each group, then `z` of each group, then zeros up to a multiple of 4.
///
/// `encode` widens the range of a group's weights to include 0, takes `s` as its length / 15, rounded to the scale's
/// type, then `z` as -min / `s`, and each weight / `s` + `z`, rounded to integers, ties to even, from 0 to 15. This is
/// the affine quantisation of torch; GPTQ and AWQ choose better codes by the data of a model. Equal weights stay equal,
/// within the rounding of `s`. With an f16 scale, groups with a range up to 15 * 2^-25 (4.5e-7) become zeros, and those
/// with one of 15 * 65,520 (982,800) or more are refused, with a bf16 scale those at the end of f32's.
#[derive(Clone, Copy, Debug)]
pub struct Int4<const GROUP: usize, const BF16: bool>;

#[inline(always)]
fn scale<const BF16: bool>(block: &[u8]) -> f32 {
    let bytes = [block[0], block[1]];
    if BF16 { bf16_value(bytes) } else { f16_value(bytes) }
}

impl<const GROUP: usize, const BF16: bool> Blocks for Int4<GROUP, BF16> {
    const LEN: usize = {
        assert!(matches!(GROUP, 32 | 64 | 128 | 256));
        GROUP
    };
    const BYTES: usize = 4 + GROUP / 2;
    const CODE_BITS: u32 = 4;
    const FIELDS: usize = (3 * 256 / GROUP).next_multiple_of(4);
    const EXPRESSION: &'static str = "s * (q - z)";

    #[inline(always)]
    fn decode(block: &[u8], to: &mut [f32]) {
        let (block, to) = (&block[..Self::BYTES], &mut to[..Self::LEN]);
        let (s, z) = (scale::<BF16>(block), i32::from(block[2]));
        let codes = halves::<16, GROUP>(&block[4..]);
        for (to, q) in to.iter_mut().zip(codes) {
            *to = s * (i32::from(q) - z) as f32;
        }
    }

    #[inline(always)]
    fn codes(block: &[u8], to: &mut [u8]) {
        to.copy_from_slice(&halves::<16, GROUP>(&block[4..Self::BYTES]));
    }

    fn fields(blocks: &[u8], to: &mut [u8]) {
        let to = &mut to[..Self::FIELDS];
        to.fill(0);
        let (scales, zeros) = to.split_at_mut(2 * 256 / GROUP);
        let to = scales.as_chunks_mut::<2>().0.iter_mut().zip(zeros);
        for ((s, z), block) in to.zip(blocks.chunks_exact(Self::BYTES)) {
            *s = [block[0], block[1]];
            *z = block[2];
        }
    }

    fn encode(from: &[f32], block: &mut [u8]) {
        let (from, block) = (&from[..Self::LEN], &mut block[..Self::BYTES]);
        let (min, max) = from.iter().fold((0.0_f32, 0.0_f32), |(a, b), v| (a.min(*v), b.max(*v)));
        // Divided first: the difference may overflow.
        let s = max / 15.0 - min / 15.0;
        let bytes = if BF16 { half::bf16::from_f32(s).to_le_bytes() } else { f16_bytes(s) };
        block[..2].copy_from_slice(&bytes);
        let s = scale::<BF16>(block);
        let code = |v: f32| if s > 0.0 { v.round_ties_even().clamp(0.0, 15.0) } else { 0.0 };
        let zero = code(-min / s);
        (block[2], block[3]) = (zero as u8, 0);
        let parts = from.as_chunks::<32>().0.iter().zip(block[4..].as_chunks_mut::<16>().0);
        for (from, bytes) in parts {
            pack_halves(&from.map(|v| code((v / s).round_ties_even() + zero) as u8), bytes);
        }
    }
}

/// Columns that share a scale.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Group {
    /// 32 columns.
    G32,
    /// 64 columns.
    G64,
    /// 128 columns.
    G128,
    /// 256 columns.
    G256,
}

impl Group {
    /// The group of this number of columns.
    ///
    /// ```
    /// use gemv_packed::Group;
    /// assert_eq!((Group::of(128), Group::of(96)), (Some(Group::G128), None));
    /// ```
    pub fn of(columns: usize) -> Option<Group> {
        Some(match columns {
            32 => Group::G32,
            64 => Group::G64,
            128 => Group::G128,
            256 => Group::G256,
            _ => return None,
        })
    }

    /// The number of columns.
    pub const fn columns(self) -> usize {
        match self {
            Group::G32 => 32,
            Group::G64 => 64,
            Group::G128 => 128,
            Group::G256 => 256,
        }
    }
}

/// The type of a scale of [`Format::Int4`](crate::Format::Int4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scale {
    /// `half::f16`.
    F16,
    /// `half::bf16`.
    Bf16,
}

/// A matrix in int4 as tensors of its own: the three that GPTQ and AWQ write, little-endian.
///
/// ```
/// use gemv_packed::{Format, Group, Int4Tensors, Scale};
///
/// // 8 rows of 32 columns; every code is 9, every zero 8 (as GPTQ's first version writes it: 7), every scale 0.5.
/// let (qweight, qzeros, scales) = ([0x99; 128], [0x77; 4], [0x00, 0x38].repeat(8));
/// let tensors = Int4Tensors {
///     rows: 8,
///     columns: 32,
///     group: Group::G32,
///     scale: Scale::F16,
///     qweight: &qweight,
///     qzeros: &qzeros,
///     scales: &scales,
/// };
/// let mut values = [0.0; 256];
/// let format = Format::Int4 { group: tensors.group, scale: tensors.scale };
/// format.dequantize(&tensors.gptq(1)?, &mut values);
/// assert_eq!(values, [0.5; 256]);
/// # Ok::<(), gemv_packed::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Int4Tensors<'a> {
    /// Rows of the matrix, a multiple of 8.
    pub rows: usize,
    /// Columns, a multiple of the group.
    pub columns: usize,
    /// Columns that share a scale, in order.
    pub group: Group,
    /// The type of the scales.
    pub scale: Scale,
    /// The codes: rows × columns / 8 words of 4 bytes.
    pub qweight: &'a [u8],
    /// The zeros: columns / group × rows / 8 words of 4 bytes.
    pub qzeros: &'a [u8],
    /// The scales: columns / group × rows numbers of 2 bytes.
    pub scales: &'a [u8],
}

/// Where AWQ has the 8 numbers of a word, by the lowest bits first.
const AWQ: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Int4Tensors<'_> {
    /// The blocks of GPTQ's tensors, row after row. A word of `qweight` has 8 columns of a row, the first in the lowest
    /// bits: columns / 8 × rows words. In the format's version 1 a zero is one less than it means, in version 2 it is
    /// not; the 15 of version 1 is 16, where some programs take it for 0.
    ///
    /// Columns must be in order of their groups: `g_idx` is column / group.
    ///
    /// # Errors
    ///
    /// The lengths do not fit, or the version is not known.
    pub fn gptq(&self, version: u32) -> Result<Vec<u8>> {
        let less = match version {
            1 => 1,
            2 => 0,
            _ => return Err(error(format!("version {version} of GPTQ is not known"))),
        };
        let rows = self.rows;
        self.pack(
            |row, column| nibble(self.qweight, column / 8 * rows + row, column % 8),
            |row, group| nibble(self.qzeros, group * (rows / 8) + row / 8, row % 8) + less,
        )
    }

    /// The blocks of AWQ's tensors, row after row. A word has 8 rows of a column, in the order 0, 2, 4, 6, 1, 3, 5, 7
    /// from the lowest bits on: columns × rows / 8 words of `qweight`.
    ///
    /// # Errors
    ///
    /// The lengths do not fit.
    pub fn awq(&self) -> Result<Vec<u8>> {
        let words = self.rows / 8;
        self.pack(
            |row, column| nibble(self.qweight, column * words + row / 8, AWQ[row % 8]),
            |row, group| nibble(self.qzeros, group * words + row / 8, AWQ[row % 8]),
        )
    }

    fn pack(
        &self,
        code: impl Fn(usize, usize) -> u8,
        zero: impl Fn(usize, usize) -> u8,
    ) -> Result<Vec<u8>> {
        let (rows, columns, group) = (self.rows, self.columns, self.group.columns());
        let groups = columns / group;
        let whole = rows % 8 == 0 && columns % group == 0 && rows.checked_mul(columns).is_some();
        let there = [self.qweight.len(), self.qzeros.len(), self.scales.len()];
        if !whole || there != [rows * columns / 2, groups * rows / 2, groups * rows * 2] {
            return Err(error(format!(
                "{rows} × {columns} elements in {} bytes of codes, {} of zeros and {} of scales",
                there[0], there[1], there[2]
            )));
        }
        let mut to = Vec::with_capacity(rows * groups * (4 + group / 2));
        for row in 0..rows {
            for i in 0..groups {
                let at = 2 * (i * rows + row);
                to.extend([self.scales[at], self.scales[at + 1], zero(row, i), 0]);
                for first in (i * group..(i + 1) * group).step_by(32) {
                    let low = first..first + 16;
                    to.extend(low.map(|column| code(row, column) | code(row, column + 16) << 4));
                }
            }
        }
        Ok(to)
    }
}

fn error(reason: String) -> Error {
    Error { format: "int4".into(), reason }
}

/// The 4 bits of this number in a word, from the lowest on.
fn nibble(words: &[u8], word: usize, at: usize) -> u8 {
    let word = u32::from_le_bytes(*array(&words[4 * word..][..4]));
    (word >> (4 * at)) as u8 & 15
}
