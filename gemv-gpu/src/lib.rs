//! Kernels that OpenCL and CUDA share: one description and one text each.
//!
//! A [`Kernel`] describes its arguments, says which parameters are legal for a problem and what they
//! launch, and has its source. Each is a pair of files in `src/kernels`: `row.rs` and `row.k`. The
//! source is one text, which a prelude spells as OpenCL C or as CUDA C++. It takes types and
//! parameters as defines, and begins with its contract. Where a text needs words of a backend's own,
//! such as loads under a condition, that backend puts them before it ([`COL_THREAD`]). A kernel that only
//! one of the two can run is in that backend's crate, described with the same types.
//!
//! Every entry point for one column has one signature, so that a backend sets arguments in one place:
//!
//! ```c
//! KERNEL(threads) name(
//!     U64 m, U64 n,
//!     GLOBAL const ELEM *a, U64 a0, I64 rs, I64 cs,   // A[i,j] = a[a0 + i*rs + j*cs]
//!     GLOBAL const ELEM *x, U64 x0, I64 incx,         // x[j] = x[x0 + j*incx]
//!     GLOBAL ELEM *y, U64 y0, I64 incy,               // y[i] = y[y0 + i*incy]
//!     ACC alpha, ACC beta,                            // beta = 0: y is not read
//!     U32 conj,                                       // 1: the conjugate of A
//!     GLOBAL ACC *workspace, GLOBAL U32 *counters)    // see Plan
//! ```
//!
//! Those for several right-hand sides and for batches have another one ([`Signature::Gemm`]), which
//! [`GEMM_PRELUDE`] defines:
//!
//! ```c
//! KERNEL(threads) name(
//!     U64 m, U64 n, U64 rhs, U64 batch,
//!     GLOBAL const ELEM *a, U64 a0, I64 rs, I64 cs, I64 ab,    // A[b,i,j] = a[a0 + b*ab + i*rs + j*cs]
//!     GLOBAL const ELEM *x, U64 x0, I64 xrs, I64 xcs, I64 xb,  // X[b,j,c] = x[x0 + b*xb + j*xrs + c*xcs]
//!     GLOBAL ELEM *y, U64 y0, I64 yrs, I64 ycs, I64 yb,        // Y[b,i,c] = y[y0 + b*yb + i*yrs + c*ycs]
//!     ACC alpha, ACC beta, U32 conj, GLOBAL ACC *workspace, GLOBAL U32 *counters)
//! ```
//!
//! Those of elementwise steps ([`VECTOR`], [`ELEMENTWISE`]) are in `vector.k` and `elementwise.k`, each of which has a signature of
//! its own.
//!
//! Where A has another type than x and y ([`Kernel::mixed`]), `a` is a pointer to `A_ELEM`.
//!
//! `alpha` and `beta` are `float`, `double`, `float2` or `double2`. Offsets and strides are in
//! elements. `a`, `x` and `y` are multiples of one element. The kernel finds any further alignment
//! from the pointers and assumes none.
//!
//! Both backends keep compiled programs on disk, in a [`Cache`].
#![deny(unsafe_code)] // but for what linkme makes

mod cache;
mod caps;
mod epilogue;
mod gemm;
mod kernel;
mod kernels;
mod launch;
mod program;
pub mod rules;
mod source;
mod split;
mod text;

pub use cache::{CACHE_DIR_ENV, CACHE_ENV, Cache, SELF_TEST_ENV, digest, is_off, self_test_wanted};
pub use caps::{Caps, Language};
pub use gemm::{GEMM_FRAME_SOURCE, GEMM_PRELUDE, GemmFrame, assert_layout};
pub use gemv_core::Arg;
pub use kernel::{Case, Kernel, List, Rule, Signature};
pub use kernels::{
    BASELINES, COL_THREAD, ELEMENTWISE, ROW_SMEM, VECTOR, baselines, chain_launch,
    elementwise_launch, elementwise_params, elementwise_steps, kernel, kernels, published,
    read_params, row_smem_max_n, vector_launch, vector_params,
};
#[cfg(feature = "packed")]
pub use kernels::{PACKED, packed_place, packed_tiles};
pub use launch::{Boxes, Launch, MAX_GRID, Plan};
pub use program::{PRELUDE, Places, Program, SM_90A};
pub use source::with_words;
pub use split::{GEMM_REDUCE_SOURCE, REDUCE_SOURCE, Split};
pub use text::{joined, joined_len};
