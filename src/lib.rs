#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use gemv_core::*;

/// The CPU backend. It is linked, and used, without being named; by name it opens one instruction set.
///
/// ```
/// use gemv::{Device, cpu};
/// use ndarray::array;
///
/// let plain = Device::new(cpu::open(Some("plain"))?);
/// let best = Device::new(cpu::open(None)?);
/// let (a, x) = (array![[0.1, 0.2, 0.3]], array![0.7, 0.5, 0.9]);
/// assert_eq!(plain.try_gpu_dot(&a, &x)?, best.try_gpu_dot(&a, &x)?); // the same bits
/// # Ok::<(), gemv::Error>(())
/// ```
#[cfg(feature = "cpu")]
pub use gemv_cpu as cpu;
/// The CUDA backend. It is linked, and its devices found, without being named; by name it shows where
/// compiled kernels are kept.
///
/// ```
/// use gemv::{cuda, devices};
///
/// assert_eq!(cuda::Cache::at("kernels").dir(), Some("kernels".as_ref()));
/// assert!(devices().iter().any(|line| line.id.starts_with("cuda"))); // or why there is none
/// ```
#[cfg(feature = "cuda")]
pub use gemv_cuda as cuda;
/// The OpenCL backend. It is linked, and its devices found, without being named.
///
/// ```
/// use gemv::{devices, opencl};
/// // Its devices, or one sentence that says why there are none.
/// assert!(devices().iter().any(|line| line.id.starts_with(opencl::NAME)));
/// ```
#[cfg(feature = "opencl")]
pub use gemv_opencl as opencl;
