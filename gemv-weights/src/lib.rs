//! Files of weights, memory-mapped: GGUF and safetensors.
//!
//! A [`WeightFile`] lists its tensors and gives their bytes without a copy. [`WeightFile::matrix`] gives a matrix: numbers, or blocks
//! of a [`Format`](gemv_packed::Format), which it puts together where a file has codes and scales as tensors of their own.
//!
//! ```
//! use gemv_weights::{Elements, WeightFile};
//!
//! // A file of safetensors in memory: a header with its length, then the numbers.
//! let mut bytes = br#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#.to_vec();
//! bytes.splice(0..0, (bytes.len() as u64).to_le_bytes());
//! bytes.extend([1.0_f32, 2.0].into_iter().flat_map(f32::to_le_bytes));
//! let file = WeightFile::from_bytes("small", bytes)?;
//!
//! let a = file.matrix("a")?;
//! assert_eq!((a.rows, a.columns, a.elements.name()), (1, 2, "f32"));
//! assert_eq!(a.bytes[..4], 1.0_f32.to_le_bytes());
//! let e = file.matrix("b").unwrap_err();
//! assert_eq!(e.to_string(), "small: there is no tensor \"b\" among its 1");
//! # Ok::<(), gemv_weights::Error>(())
//! ```
//!
//! # A file that changes
//!
//! A mapped file must stay as it is while it is open. Where another program writes into it, the bytes of tensors change under
//! their reader; where it is cut, reading what is gone ends the process with a signal (SIGBUS). Replace a file by renaming a new
//! one over it, which leaves the mapped one as it was; or read it whole and use [`WeightFile::from_bytes`].
#![deny(unsafe_code)]

mod companions;
mod entry;
mod error;
mod file;
mod gguf;
mod map;
mod safetensors;

pub use companions::Matrix;
pub use entry::{Elements, Value};
pub use error::{Error, Result};
pub use file::{Tensor, WeightFile};
pub use map::MatrixBytes;
