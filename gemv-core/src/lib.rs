//! The core of gemv: matrix-vector products for [ndarray] with one answer on every device.
//!
//! A library that calls [`a.gpu_dot(&x)`](GpuDot) depends on `gemv` without features, which is this
//! crate; the application chooses backends by the features of `gemv`. With none linked,
//! products of host arrays fail and say so. The [reference](mod@reference) answers where it is
//! asked for by name: slowly, and with the same bits.
//!
//! ```
//! # gemv::Engine::global().set_default("reference").unwrap();
//! use gemv::{GpuDot, ToDevice, device};
//! use ndarray::{Array2, array};
//!
//! let a = Array2::from_shape_fn((3, 2), |(i, j)| (2 * i + j) as f32); // m x n = 3 x 2
//! let x = array![1.0, -1.0];
//! let y = a.gpu_dot(&x); // wherever it is best
//! assert_eq!(y, array![-1.0, -1.0, -1.0]);
//!
//! let there = device("reference")?; // or "cuda:0"
//! let resident = a.to_device(&there)?; // uploaded once, used many times
//! assert_eq!(resident.gpu_dot(&x).download()?, y); // the result lives where A lives
//! assert_eq!(resident.t().gpu_dot(&y).download()?, a.t().gpu_dot(&y));
//! # Ok::<(), gemv::Error>(())
//! ```
//!
//! Four words have one meaning each: [`Desc`] is what is asked, [`Params`] what is chosen,
//! a launch what follows from both, [`Job`] the data.
#![deny(unsafe_code)]

mod arithmetic;
mod backend;
mod device;
mod dot;
mod element;
mod engine;
mod factor;
mod files;
#[allow(unsafe_code)] // assembly: the register of the mode
pub mod float_mode;
#[allow(unsafe_code)] // its caller answers for memory of others
mod foreign;
#[allow(unsafe_code)] // the call that has forks counted, and values that outlast one
pub mod fork;
mod function;
mod host;
mod integers;
#[allow(unsafe_code)] // as above
mod interop;
mod job;
#[allow(unsafe_code)] // the one function that asks its caller for a proof
mod kernel_source;
mod launch;
mod memory;
mod mixed;
mod open;
mod operand;
pub mod order;
#[cfg(feature = "packed")]
mod packed;
mod pairs;
mod plan;
mod planned;
mod product;
pub mod reference;
mod resident;
mod rival;
mod step;
pub mod table;
#[allow(unsafe_code)] // views of memory whose element type is a value
mod tensor;
mod vector;
mod view_mut;
mod views;

pub use backend::{
    BACKENDS, Backend, BackendEntry, BuiltinTable, DeviceInfo, PieceSource, Prepared, Record,
};
pub use device::Device;
pub use dot::GpuDot;
pub use element::{
    Accumulator, Any, AnySlice, AnySliceMut, AnySmall, Element, Family, Slices, SlicesMut, Small,
    SmallProduct, Times, scale,
};
pub use engine::{BACKEND_ENV, Engine, Listing, device, devices};
pub use factor::Factor;
pub use files::read_plain;
pub use function::{Comparison, Function};
pub use gemv_desc::{
    Align, Arg, Desc, Dtype, Error, Format, Group, KernelInfo, KernelLimits, KernelType,
    LaunchShape, Layout, MAX_ARGS, Name, Parameter, Params, READ, Result, Scale, ShapeMismatch,
    Values, fingerprint, source_digest,
};
pub use host::{Span, host_is_full, packed, span, zeros_on_host};
pub use integers::{DeviceIntegers, Integer};
pub use interop::{Foreign, Interop};
pub use job::{Checked, Job, Number};
pub use kernel_source::{Kernel, KernelArray, KernelCall, KernelScalar};
pub use launch::{CompiledKernel, KernelArgument, KernelLaunch, ScalarValue};
pub use memory::{Exchange, Memory, Owner, Piece, Receive, Window};
pub use mixed::{Widen, Widened};
pub use open::open_devices;
pub use operand::{
    MatrixMut, MatrixRef, OperandMut, OperandRef, ToDevice, Upload, VectorMut, VectorRef,
};
#[cfg(feature = "packed")]
pub use packed::{DevicePacked, Packed};
pub use plan::Plan;
#[doc(hidden)] // for products over several devices
pub use planned::{call_each_time, in_plan, unplanned};
pub use product::{LeftOperand, Product, Stack};
pub use resident::{DeviceArray, DeviceMatrix, DeviceScalar, DeviceVector};
pub use rival::{Fits, HostGemm, RIVALS, Rival};
pub use step::{AnyVectorJob, Epilogue, Scalar, Step, VectorJob, VectorJobs};
pub use table::{Table, Tables};
pub use tensor::{
    Bytes, Extent, PackedMatrix, PackedPlace, Rank, Tensor, TensorMut, bytes_of, bytes_of_mut,
};
pub use view_mut::DeviceViewMut;

#[doc(no_inline)]
pub use gemv_desc::gemv_packed;
#[doc(no_inline)]
pub use half;
#[doc(no_inline)]
pub use ndarray;
#[doc(no_inline)]
pub use num_complex;
