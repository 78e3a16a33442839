//! Packed weights: rows of blocks, each some codes of 4 to 8 bits with their scales.
//!
//! Each element is RN32 of a written expression of its block's fields, where RN32 rounds an exact value to [`f32`]
//! once, to nearest, ties to even ([ORDER.md], rule 13). So a packed matrix is an f32 matrix in less memory, and its
//! products have the bits of that matrix' products.
//!
//! | format | elements and bytes of a block | an element | exact in f32 |
//! |---|---|---|---|
//! | [`Q8_0`] | 32, 34 | `d * q` | yes |
//! | [`Q4_0`] | 32, 18 | `d * (q - 8)` | yes |
//! | [`Q4K`] | 256, 144 | `fma(d * sc, q, -(dmin * m))` | one rounding |
//! | [`Q6K`] | 256, 210 | `d * sc * (q - 32)` | yes |
//! | [`Int4`] | 32 to 256, 20 to 132 | `s * (q - z)` | f16 scales: yes; bf16: but for overflow |
//! | [`Fp8`] | 128, 132 | `s * e4m3(q)` | one rounding; scales of powers of two: yes, but at the ends of the range |
//! | [`Mxfp4`] | 32, 17 | `2^(e - 128) * k(q)` | yes, but for overflow |
//! | [`Nvfp4`] | 64, 36 | `e4m3(s) / 2 * k(q)` | yes |
//!
//! ```
//! use gemv_packed::Format;
//!
//! let format: Format = "q8_0".parse()?;
//! let row: Vec<f32> = (0..64).map(|j| (j as f32).sin()).collect();
//! let mut packed = vec![0; format.row_bytes(row.len())?];
//! format.quantize(&row, &mut packed)?;
//! let mut values = vec![0.0; row.len()];
//! format.dequantize(&packed, &mut values);
//! assert!(row.iter().zip(&values).all(|(a, b)| (a - b).abs() < 0.004));
//! # Ok::<(), gemv_packed::Error>(())
//! ```
//!
//! # Special values
//!
//! [`Format::dequantize`] follows IEEE 754 as the expression says: a scale that is NaN or infinite gives NaN or
//! infinities in its own block alone. [`Format::quantize`] refuses weights that are NaN or infinite, and weights whose
//! scale overflows. A block whose scale underflows to zero holds zeros; each format's page says below which weights.
//!
//! All functions compute in the floating-point mode of the thread, for which the default is expected.
//!
//! [ORDER.md]: https://docs.rs/gemv-core/latest/gemv_core/order
#![forbid(unsafe_code)]

mod blocks;
mod error;
mod format;
mod fp8;
mod int4;
mod mxfp4;
mod numbers;
mod nvfp4;
mod q4_0;
mod q4_k;
mod q6_k;
mod q8_0;

pub use blocks::Blocks;
pub use error::{Error, Result};
pub use format::Format;
pub use fp8::{Fp8, Fp8Scales, Fp8Tensors};
pub use int4::{Group, Int4, Int4Tensors, Scale};
pub use mxfp4::{Mxfp4, Mxfp4Tensors};
pub use nvfp4::{Nvfp4, Nvfp4Tensors};
pub use q4_0::Q4_0;
pub use q4_k::Q4K;
pub use q6_k::Q6K;
pub use q8_0::Q8_0;
