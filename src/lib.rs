#![doc = include_str!("crate.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(inline)]
pub use gemv_core::{
    Accumulator, Comparison, Device, DeviceArray, DeviceInfo, DeviceMatrix, DeviceScalar,
    DeviceVector, DeviceViewMut, Dtype, Element, Engine, Error, Factor, Foreign, Format, Function,
    GpuDot, Listing, MatrixMut, MatrixRef, OperandMut, OperandRef, Plan, Result, ShapeMismatch,
    Times, ToDevice, Upload, VectorMut, VectorRef, Widen, Widened, device, devices, open_devices,
};
/// Matrices of packed weights: int8, int4 and FP8 blocks, as files of language models have them.
#[cfg(feature = "packed")]
pub use gemv_core::{DevicePacked, Group, Packed, Scale};
#[doc(no_inline)]
pub use gemv_core::{half, ndarray, num_complex};

/// The traits and types that most programs name: `use gemv::prelude::*;`.
///
/// None of these names is one of ndarray's or of std's.
///
/// ```
/// use gemv::prelude::*;
/// use ndarray::prelude::*;
///
/// let device = gemv::device("reference")?; // or "cuda:0"
/// let a: DeviceMatrix<f32> = array![[1.0, 2.0], [3.0, 4.0]].to_device(&device)?;
/// let y: DeviceVector<f32> = a.gpu_dot(&array![1.0, 1.0]);
/// assert_eq!(y.download()?, array![3.0, 7.0]);
/// # Ok::<(), gemv::Error>(())
/// ```
///
/// A function of any element type has [`Element`] as its bound, with `T::zero()` and `T::one()`. The factor of a step is a
/// [`Factor`], such as `Factor::ONE`, a resident number, or the quotient of two.
///
/// ```
/// use gemv::prelude::*;
///
/// /// The largest eigenvalue of A by `steps` of the power iteration, from a vector of ones.
/// fn largest<T: Element>(a: &DeviceMatrix<T>, steps: usize) -> gemv::Result<T> {
///     let device = a.device();
///     let (one, mut norm) = (device.scalar(T::one())?, device.scalar(T::zero())?);
///     let mut x = device.from_shape_fn(a.ncols(), |_| T::one())?;
///     for _ in 0..steps {
///         let y: DeviceVector<T> = a.try_gpu_dot(&x)?;
///         y.nrm2_into(&mut norm)?;
///         x.fill(Factor::ZERO)?;
///         x.axpy(&one / &norm, &y)?; // nothing is waited for
///     }
///     a.try_gpu_dot(&x)?.nrm2()
/// }
///
/// let a = ndarray::array![[2.0, 0.0], [0.0, 1.0]].to_device(&gemv::device("reference")?)?;
/// assert_eq!(largest(&a, 60)?, 2.0);
/// # Ok::<(), gemv::Error>(())
/// ```
pub mod prelude {
    pub use gemv_core::{
        Device, DeviceArray, DeviceMatrix, DeviceScalar, DeviceVector, Element, Factor, GpuDot,
        ToDevice, Widen,
    };
}

/// Kernels of your own, compiled from source and launched between products; see
/// [the guide](crate::guide#kernels-of-your-own).
///
/// ```
/// let device = gemv::device("reference")?;
/// let refused = gemv::kernel::Kernel::from_source(&device, "", "scale").unwrap_err();
/// assert!(refused.to_string().contains("opencl")); // which backends have a compiler
/// # Ok::<(), gemv::Error>(())
/// ```
pub mod kernel {
    pub use gemv_core::{
        DeviceIntegers, Integer, Kernel, KernelArray, KernelCall, KernelLimits, KernelScalar,
        KernelType, LaunchShape, Parameter,
    };
}

/// All of gemv-core: the backends' seam, tables and parameters, the order, the reference, jobs.
///
/// For backends, tuners and tests. Nothing here is covered by the version's promise.
///
/// ```
/// use gemv::unstable::Desc;
///
/// let desc: Desc = "f32 row 4096x8192".parse()?;
/// let params = gemv::device("reference")?.choose(&desc)?;
/// assert_eq!(params.to_string(), "reference");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod unstable {
    #[doc(no_inline)]
    pub use gemv_core::*;
}

#[doc = include_str!("guide.md")]
pub mod guide {}

#[doc = include_str!("ndarray.md")]
pub mod from_ndarray {}

/// Names the backends of this build's features to the engine, before the first use of a device: for a static library, whose
/// linker leaves out what it finds nobody to name. Elsewhere they are there already, and this changes nothing.
///
/// ```
/// gemv::link()?; // first of all
/// assert!(gemv::devices().iter().all(|line| !line.id.is_empty()));
/// # Ok::<(), gemv::Error>(())
/// ```
///
/// # Errors
/// [`Error::LinkedLate`] if a device was used before, and a backend is not in the list.
pub fn link() -> Result<()> {
    Engine::link([
        #[cfg(feature = "cpu")]
        cpu::ENTRY,
        #[cfg(feature = "opencl")]
        opencl::ENTRY,
        #[cfg(feature = "cuda")]
        cuda::ENTRY,
    ])
}

/// The README, whose programs are tests.
#[cfg(all(doctest, feature = "cpu"))]
#[doc = include_str!("../README.md")]
mod readme {}

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
