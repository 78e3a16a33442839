#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub use gemv_core::*;

#[cfg(feature = "cpu")]
pub use gemv_cpu as cpu;
#[cfg(feature = "cuda")]
pub use gemv_cuda as cuda;
#[cfg(feature = "opencl")]
pub use gemv_opencl as opencl;
