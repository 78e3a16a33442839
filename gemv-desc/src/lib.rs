//! What gemv describes, as data, without arrays and devices: what is asked ([`Desc`], [`Dtype`]), what
//! is chosen ([`Params`]), what kernels there are ([`KernelInfo`]), what a person's kernel takes ([`Parameter`],
//! [`KernelLimits`]), and what goes wrong ([`Error`]).
//!
//! `gemv-core` exports all of it again; this crate is its lowest floor.
//!
//! ```
//! use gemv_desc::{Desc, Dtype, Params};
//!
//! let desc = Desc::new(Dtype::F32, 4096, 1024, (1024, 1), 0);
//! assert_eq!(desc.to_string(), "f32 row 4096x1024");
//! let params: Params = "row threads=128 rows=2".parse().unwrap();
//! assert_eq!(params.get("rows"), Some(2));
//! ```
#![forbid(unsafe_code)]

mod desc;
mod dtype;
mod error;
mod kernel;
mod launch;
mod params;

pub use desc::{Align, Desc, Layout};
pub use dtype::Dtype;
pub use error::{Error, Result, ShapeMismatch};
#[doc(no_inline)]
pub use gemv_packed;
pub use gemv_packed::{Format, Group, Scale};
pub use kernel::{Arg, KernelInfo, Values, fingerprint, source_digest};
pub use launch::{KernelLimits, KernelType, LaunchShape, Parameter};
pub use params::{MAX_ARGS, Name, Params, READ};
