//! What the kernels ask of a device.

/// What the kernels ask of a device.
///
/// A backend fills it in from its driver. Legality, choice and launch depend on nothing else of a
/// device.
///
/// ```
/// use gemv_gpu::{Caps, Language};
///
/// let mut h200 = Caps::new(Language::Cuda);
/// (h200.units, h200.max_group, h200.local_bytes, h200.fp64) = (132, 1024, 48 << 10, true);
/// assert!(h200.atomics64 && !Caps::new(Language::OpenCl).atomics64);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Caps {
    /// Which spelling the source is compiled as.
    pub language: Language,
    /// Compute units: streaming multiprocessors, cores.
    pub units: u32,
    /// Most threads of a block (work-items of a work-group).
    pub max_group: u32,
    /// Bytes of shared (local) memory a block may have.
    pub local_bytes: u32,
    /// Bytes of dynamic shared memory that a launch may ask for, of a kernel that declares none (CUDA only).
    pub dynamic_bytes: u32,
    /// Whether the device is a CPU: one work-item a group, long vectors.
    pub cpu: bool,
    /// Whether it has double precision.
    pub fp64: bool,
    /// Whether it has tensor cores for double precision (CUDA only, from compute capability 8.0).
    pub fp64_mma: bool,
    /// Whether it copies from global to shared memory while a kernel computes, and has barriers for some of a
    /// block's threads (CUDA only, from compute capability 8.0).
    pub async_copies: bool,
    /// Whether programs run that are compiled for the architecture `sm_90a` alone ([`SM_90A`](crate::SM_90A)): copies of boxes of tensors,
    /// registers that move between warps.
    pub sm_90a: bool,
    /// Whether its OpenCL compiler takes the instructions of compute capability 9.0: NVIDIA's takes PTX (OpenCL only).
    pub ptx_90: bool,
    /// Whether it has 64-bit atomics (`cl_khr_int64_base_atomics`); CUDA always has.
    pub atomics64: bool,
    /// Whether a block sees what another block of the launch wrote before a fence. OpenCL 1.2 does not promise
    /// it; CUDA always has it.
    pub fences: bool,
    /// Most blocks of a cluster, whose blocks run at once and reach each other's shared memory; 1
    /// where there are none.
    pub cluster: u32,
}

impl Caps {
    /// What every device has: one unit, 64 threads a block, 16 KiB of shared memory, no clusters.
    pub fn new(language: Language) -> Caps {
        Caps {
            language,
            units: 1,
            max_group: 64,
            local_bytes: 16 << 10,
            dynamic_bytes: 0,
            cpu: false,
            fp64: false,
            fp64_mma: false,
            async_copies: false,
            sm_90a: false,
            ptx_90: false,
            atomics64: language == Language::Cuda,
            fences: language == Language::Cuda,
            cluster: 1,
        }
    }
}

/// The language a kernel is compiled as.
///
/// ```
/// use gemv_gpu::{Language, PRELUDE};
/// // One text: what the compiler defines says which of the two it is.
/// assert!(PRELUDE.contains("__OPENCL_VERSION__") && PRELUDE.contains("__fmaf_rn"));
/// assert_ne!(Language::OpenCl, Language::Cuda);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// OpenCL C 1.2.
    OpenCl,
    /// CUDA C++ by NVRTC, without any header but `cuda_fp16.h` and `cuda_bf16.h`.
    Cuda,
}
