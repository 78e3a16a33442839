//! Kernels that OpenCL and CUDA share: one description and one text each.
//!
//! A [`Kernel`] says for which problems and parameters it is legal, what to launch, and gives its
//! source. The source is one text that a prelude spells as OpenCL C or as CUDA C, takes its types
//! and parameters as defines, and begins with its contract. What only one of the two can do is a
//! kernel of its own in that backend's crate, described with the same types.
//!
//! Every entry point has one signature, so that a backend sets arguments in one place:
//!
//! ```c
//! KERNEL(threads) name(
//!     U64 m, U64 n,
//!     GLOBAL const ELEM *a, U64 a0, I64 rs, I64 cs,   // A[i,j] = a[a0 + i*rs + j*cs]
//!     GLOBAL const ELEM *x, U64 x0, I64 incx,         // x[j] = x[x0 + j*incx]
//!     GLOBAL ELEM *y, U64 y0, I64 incy,               // y[i] = y[y0 + i*incy]
//!     ACC alpha, ACC beta,                            // beta = 0: y is not read
//!     U32 conj,                                       // 1: the conjugate of A
//!     GLOBAL ACC *work, GLOBAL U32 *counters)         // see Plan; null where not asked for
//! ```
//!
//! `alpha` and `beta` are `float`, `double`, `float2` or `double2`. Offsets and strides are in
//! elements. `a`, `x` and `y` are multiples of one element; any further alignment is found out by
//! the kernel from the pointers, never assumed.
#![deny(unsafe_code)] // but for what linkme makes

mod kernel;
mod kernels;
mod rules;
mod split;
mod text;

pub use gemv_core::Arg;
pub use kernel::{Caps, Kernel, Language, Launch, MAX_GRID, PRELUDE, Plan, Program, value};
pub use kernels::{BASELINES, baselines, kernel, kernels, read_params};
pub use rules::limits;
pub use split::{REDUCE_SOURCE, Split, split_to_fill};
pub use text::{joined, joined_len};
