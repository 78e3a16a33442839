//! Matrix-vector products that are cut over devices, processes and machines, with the bits of the whole.
//!
//! The [order of additions](gemv_core::order) sums each segment of 256 columns by itself. So a product may be
//! cut between any two segments. What a part contributes is a [`Partial`]: its sums as a value, 1/256 of the
//! data of its matrix. It is computed on any device, travels as bytes, by MPI or a queue or a file, is merged
//! in any order of arrival, and finished on any device.
//!
//! | the matrix is cut | each process sends, for each row |
//! |---|---|
//! | by rows | its entries of y, and no partial sums |
//! | by columns, at multiples of 256 | one number for each 256 of its columns |
//! | by columns, block-cyclically in blocks of 256 over 2, 4, 8, .. 64 processes | one number for each 65,536 columns of the whole: [`Partial::reduce`] |
//!
//! ```
//! use gemv::{GpuDot, device};
//! use gemv_shard::Partial;
//! use ndarray::{Array1, Array2, s};
//! # gemv::Engine::global().set_default("reference")?;
//!
//! let a = Array2::from_shape_fn((4, 2000), |(i, j)| ((i + 3 * j) as f64).sin());
//! let x = Array1::from_shape_fn(2000, |j| 1.0 / (1.0 + j as f64));
//! let here = device("reference")?; // or "cpu", or "cuda:0"
//!
//! // On each of two processes: its columns, as bytes.
//! let send = |columns: std::ops::Range<usize>| -> gemv_shard::Result<Vec<u8>> {
//!     let (a, mine) = (a.slice(s![.., columns.clone()]), x.slice(s![columns.clone()]));
//!     Ok(Partial::new(&here, a, mine, columns.start, 2000)?.to_bytes()?)
//! };
//! let messages = [send(1024..2000)?, send(0..1024)?];
//!
//! // On any one: the product.
//! let received = messages.iter().map(|bytes| Partial::from_bytes(bytes));
//! let sums = Partial::merge(received.collect::<Result<Vec<_>, _>>()?)?;
//! let mut y = Array1::<f64>::ones(4);
//! sums.finish(&here, 2.0, -1.0, &mut y)?;
//!
//! let mut want = Array1::<f64>::ones(4);
//! a.gemv(2.0, &x, -1.0, &mut want);
//! assert_eq!(y, want); // to the last bit
//! # Ok::<(), gemv_shard::Error>(())
//! ```
//!
//! [`load_npy`] reads a NumPy file straight into an array of a device, and [`save_npy`] writes one.
//!
//! [`Streamed`] does the same with the parts of one file that is larger than memory, or of one array that is
//! larger than the device's, and [`Sharded`] with the parts of a matrix that are resident on several devices
//! of one process. A [`ShardedVector`] stays on these devices from one product to the next. With the feature `packed` there are
//! both for packed matrices, by rows: `Sharded::packed` and `StreamedPacked`.
#![forbid(unsafe_code)]

mod bytes;
mod dealt;
mod element;
mod error;
mod exchange;
mod files;
mod finish;
mod kept;
mod memory;
mod merge;
pub mod npy;
mod on_cpu;
#[cfg(feature = "packed")]
mod packed;
mod part;
mod partial;
mod product;
mod reduce;
mod resident;
mod sharded;
mod sharded_vector;
mod shared_rows;
mod source;
mod split;
mod stored;
mod streamed;
#[cfg(feature = "packed")]
mod streamed_packed;
mod threads;

pub use bytes::dtype_of_bytes;
pub use element::SumElement;
pub use error::{Error, Result};
pub use files::{load_npy, save_npy};
pub use partial::Partial;
pub use sharded::Sharded;
pub use sharded_vector::ShardedVector;
pub use split::Split;
pub use streamed::Streamed;
#[cfg(feature = "packed")]
pub use streamed_packed::StreamedPacked;

#[doc(hidden)]
pub use element::{ResidentVectors, Vector, Vectors};
#[doc(hidden)] // for the command, which reads files whole too
pub use source::Stamp;
