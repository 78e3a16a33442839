//! The core of gemv: matrix-vector products for [ndarray] with one answer on every device.
//!
//! A library that wants [`a.gpu_dot(&x)`](GpuDot) depends on this crate alone; the application
//! chooses backends by the features of `gemv`. With none linked, the
//! [reference](mod@reference) answers: slowly, and with the same bits.
//!
//! Four words have one meaning each: [`Desc`] is what is asked, [`Params`] what is chosen,
//! a launch what follows from both, [`Job`] the data.
#![forbid(unsafe_code)]

mod backend;
mod desc;
mod device;
mod dot;
mod element;
mod engine;
mod error;
pub mod gpu;
mod job;
pub mod order;
mod params;
pub mod profile;
pub mod reference;
mod resident;
pub mod router;
pub mod table;
pub mod tuner;

pub use backend::{BACKENDS, Backend, BackendEntry, BuiltinTable, DeviceInfo, Memory};
pub use desc::{Align, Desc, Layout};
pub use device::Device;
pub use dot::GpuDot;
pub use element::{Accumulator, Dtype, Element, scale};
pub use engine::{BACKEND_ENV, Engine, Listing, devices};
pub use error::{Error, Result, ShapeMismatch};
pub use job::{AnyJob, AnySlice, AnySliceMut, Job, MatrixRef, VectorMut, VectorRef};
pub use params::{MAX_ARGS, Name, Params};
pub use resident::{DeviceMatrix, DeviceVector, Span, span};
pub use table::{Table, Tables};

pub use half;
pub use ndarray;
pub use num_complex;
