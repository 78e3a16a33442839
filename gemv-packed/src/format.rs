//! Packed formats by name.

use std::fmt::{self, Display};
use std::str::FromStr;

use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::int4::{Group, Scale};

/// A packed format: rows of blocks. Each element is RN32 of a written expression of its block's fields.
///
/// ```
/// use gemv_packed::{Format, Group, Scale};
///
/// let int4 = Format::Int4 { group: Group::G128, scale: Scale::Bf16 };
/// assert_eq!((int4.name(), int4.expression()), ("int4g128bf16", "s * (q - z)"));
/// assert_eq!((int4.block_len(), int4.block_bytes()), (128, 68));
/// assert!(Format::ALL.iter().all(|f| f.name().parse() == Ok(*f)));
/// let e = "q4_1".parse::<Format>().unwrap_err();
/// assert!(e.to_string().starts_with("q4_1: no packed format has this name; there are q8_0, q4_0,"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Format {
    /// 8 bits, an f16 scale for 32 columns: [`Q8_0`](struct@crate::Q8_0).
    Q8_0,
    /// 4 bits, an f16 scale for 32 columns: [`Q4_0`](struct@crate::Q4_0).
    Q4_0,
    /// 4 bits, scales and minima of 6 bits: [`Q4K`](struct@crate::Q4K).
    Q4K,
    /// 6 bits, scales of 8 bits: [`Q6K`](struct@crate::Q6K).
    Q6K,
    /// 4 bits, a scale and an integer zero for a group of columns, as GPTQ and AWQ have them:
    /// [`Int4`](struct@crate::Int4).
    Int4 {
        /// Columns that share a scale.
        group: Group,
        /// The scale's type.
        scale: Scale,
    },
    /// e4m3, an f32 scale for 128 columns: [`Fp8`](struct@crate::Fp8).
    Fp8,
    /// e2m1, a power of two for 32 columns: [`Mxfp4`](struct@crate::Mxfp4).
    Mxfp4,
    /// e2m1, an e4m3 scale for 16 columns: [`Nvfp4`](struct@crate::Nvfp4).
    Nvfp4,
}

/// Evaluates an expression with the [`Blocks`] type of a [`Format`] under the name that is given.
///
/// ```
/// use gemv_packed::{Blocks, Format, with_blocks};
/// let bits = with_blocks!(Format::Q6K, B => B::CODE_BITS);
/// assert_eq!(bits, 6);
/// ```
#[macro_export]
macro_rules! with_blocks {
    ($format:expr, $blocks:ident => $run:expr) => {
        match $format {
            $crate::Format::Q8_0 => $crate::with_blocks!(@ $crate::Q8_0, $blocks => $run),
            $crate::Format::Q4_0 => $crate::with_blocks!(@ $crate::Q4_0, $blocks => $run),
            $crate::Format::Q4K => $crate::with_blocks!(@ $crate::Q4K, $blocks => $run),
            $crate::Format::Q6K => $crate::with_blocks!(@ $crate::Q6K, $blocks => $run),
            $crate::Format::Fp8 => $crate::with_blocks!(@ $crate::Fp8, $blocks => $run),
            $crate::Format::Mxfp4 => $crate::with_blocks!(@ $crate::Mxfp4, $blocks => $run),
            $crate::Format::Nvfp4 => $crate::with_blocks!(@ $crate::Nvfp4, $blocks => $run),
            $crate::Format::Int4 { group, scale: $crate::Scale::F16 } => match group {
                $crate::Group::G32 => $crate::with_blocks!(@ $crate::Int4<32, false>, $blocks => $run),
                $crate::Group::G64 => $crate::with_blocks!(@ $crate::Int4<64, false>, $blocks => $run),
                $crate::Group::G128 => $crate::with_blocks!(@ $crate::Int4<128, false>, $blocks => $run),
                $crate::Group::G256 => $crate::with_blocks!(@ $crate::Int4<256, false>, $blocks => $run),
            },
            $crate::Format::Int4 { group, scale: $crate::Scale::Bf16 } => match group {
                $crate::Group::G32 => $crate::with_blocks!(@ $crate::Int4<32, true>, $blocks => $run),
                $crate::Group::G64 => $crate::with_blocks!(@ $crate::Int4<64, true>, $blocks => $run),
                $crate::Group::G128 => $crate::with_blocks!(@ $crate::Int4<128, true>, $blocks => $run),
                $crate::Group::G256 => $crate::with_blocks!(@ $crate::Int4<256, true>, $blocks => $run),
            },
        }
    };
    (@ $type:ty, $blocks:ident => $run:expr) => {{
        type $blocks = $type;
        $run
    }};
}

const fn int4(group: Group, scale: Scale) -> Format {
    Format::Int4 { group, scale }
}

impl Format {
    /// Every one.
    pub const ALL: &'static [Format] = &[
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4K,
        Format::Q6K,
        int4(Group::G32, Scale::F16),
        int4(Group::G64, Scale::F16),
        int4(Group::G128, Scale::F16),
        int4(Group::G256, Scale::F16),
        int4(Group::G32, Scale::Bf16),
        int4(Group::G64, Scale::Bf16),
        int4(Group::G128, Scale::Bf16),
        int4(Group::G256, Scale::Bf16),
        Format::Fp8,
        Format::Mxfp4,
        Format::Nvfp4,
    ];

    /// Its place in [`ALL`](Self::ALL).
    pub fn number(self) -> usize {
        Format::ALL.iter().position(|format| *format == self).expect("every format is there")
    }

    /// Its name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Q8_0 => "q8_0",
            Format::Q4_0 => "q4_0",
            Format::Q4K => "q4_k",
            Format::Q6K => "q6_k",
            Format::Int4 { group: Group::G32, scale: Scale::F16 } => "int4g32",
            Format::Int4 { group: Group::G64, scale: Scale::F16 } => "int4g64",
            Format::Int4 { group: Group::G128, scale: Scale::F16 } => "int4g128",
            Format::Int4 { group: Group::G256, scale: Scale::F16 } => "int4g256",
            Format::Int4 { group: Group::G32, scale: Scale::Bf16 } => "int4g32bf16",
            Format::Int4 { group: Group::G64, scale: Scale::Bf16 } => "int4g64bf16",
            Format::Int4 { group: Group::G128, scale: Scale::Bf16 } => "int4g128bf16",
            Format::Int4 { group: Group::G256, scale: Scale::Bf16 } => "int4g256bf16",
            Format::Fp8 => "fp8",
            Format::Mxfp4 => "mxfp4",
            Format::Nvfp4 => "nvfp4",
        }
    }

    /// The format with this [`name`](Self::name).
    pub fn parse(name: &str) -> Option<Format> {
        Format::ALL.iter().copied().find(|format| format.name() == name)
    }

    /// Elements of a block: a multiple of 16 that divides 256.
    pub const fn block_len(self) -> usize {
        with_blocks!(self, B => B::LEN)
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        with_blocks!(self, B => B::BYTES)
    }

    /// Bits of a code: 4, 6 or 8.
    pub const fn code_bits(self) -> u32 {
        with_blocks!(self, B => B::CODE_BITS)
    }

    /// The expression of an element in the fields of its block; each format's page explains the fields.
    pub const fn expression(self) -> &'static str {
        with_blocks!(self, B => B::EXPRESSION)
    }

    /// Bytes of a row of n elements.
    ///
    /// ```
    /// use gemv_packed::Format;
    /// assert_eq!(Format::Q4_0.row_bytes(4096), Ok(2304));
    /// let e = Format::Q4_0.row_bytes(100).unwrap_err();
    /// assert_eq!(e.to_string(), "q4_0: a row of 100 elements is no whole number of blocks of 32");
    /// ```
    ///
    /// # Errors
    ///
    /// n is no multiple of [`block_len`](Self::block_len).
    pub fn row_bytes(self, n: usize) -> Result<usize> {
        let len = self.block_len();
        let bytes = (n / len).checked_mul(self.block_bytes()).filter(|_| n.is_multiple_of(len));
        bytes.ok_or_else(|| {
            self.error(format!("a row of {n} elements is no whole number of blocks of {len}"))
        })
    }

    /// The elements of blocks, in order.
    ///
    /// # Panics
    ///
    /// `blocks` is no whole number of blocks, or `to` has not as many entries as they have elements.
    pub fn dequantize(self, blocks: &[u8], to: &mut [f32]) {
        with_blocks!(self, B => {
            check::<B>(self, blocks, to.len());
            for (block, to) in blocks.chunks_exact(B::BYTES).zip(to.chunks_exact_mut(B::LEN)) {
                B::decode(block, to);
            }
        });
    }

    /// Rounds weights to blocks, as the format's page says.
    ///
    /// ```
    /// use gemv_packed::Format;
    /// let mut block = [0; 18];
    /// let e = Format::Q4_0.quantize(&[f32::NAN; 32], &mut block).unwrap_err();
    /// assert_eq!(e.to_string(), "q4_0: the weight 0 is NaN");
    /// let e = Format::Q4_0.quantize(&[1e9; 32], &mut block).unwrap_err();
    /// assert_eq!(e.to_string(), "q4_0: the weights from 0 to 31 are too large for the scale of a block");
    /// ```
    ///
    /// # Errors
    ///
    /// A weight is NaN or infinite, or too large for the scale of its block. `blocks` may have been written in part.
    ///
    /// # Panics
    ///
    /// `blocks` is no whole number of blocks, or `from` has not as many entries as they have elements.
    pub fn quantize(self, from: &[f32], blocks: &mut [u8]) -> Result<()> {
        if let Some(at) = from.iter().position(|weight| !weight.is_finite()) {
            return Err(self.error(format!("the weight {at} is {}", from[at])));
        }
        with_blocks!(self, B => {
            check::<B>(self, blocks, from.len());
            let chunks = from.chunks_exact(B::LEN).zip(blocks.chunks_exact_mut(B::BYTES));
            for (i, (from, block)) in chunks.enumerate() {
                let mut values = [0.0; 256];
                let values = &mut values[..B::LEN];
                B::encode(from, block);
                B::decode(block, values);
                if values.iter().any(|value| !value.is_finite()) {
                    let (first, last) = (i * B::LEN, i * B::LEN + B::LEN - 1);
                    return Err(self.error(format!(
                        "the weights from {first} to {last} are too large for the scale of a block"
                    )));
                }
            }
        });
        Ok(())
    }

    fn error(self, reason: String) -> Error {
        Error { format: self.name().into(), reason }
    }
}

/// Panics where the lengths do not belong together.
fn check<B: Blocks>(format: Format, blocks: &[u8], elements: usize) {
    let bytes = blocks.len();
    assert!(
        bytes.is_multiple_of(B::BYTES) && bytes / B::BYTES * B::LEN == elements,
        "{format}: {bytes} bytes are not the blocks of {elements} elements"
    );
}

impl Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Format> {
        Format::parse(name).ok_or_else(|| {
            let names: Vec<_> = Format::ALL.iter().map(|format| format.name()).collect();
            let reason = format!("no packed format has this name; there are {}", names.join(", "));
            Error { format: name.into(), reason }
        })
    }
}
