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
//! KERNEL name(U64 m, U64 n,
//!             GLOBAL const ELEM *a, U64 a0, I64 rs, I64 cs,   // A[i,j] = a[a0 + i*rs + j*cs]
//!             GLOBAL const ELEM *x, U64 x0, I64 incx,         // x[j] = x[x0 + j*incx]
//!             GLOBAL ELEM *y, U64 y0, I64 incy,               // y[i] = y[y0 + i*incy]
//!             ACC alpha, ACC beta,                            // beta = 0: y is not read
//!             U32 conj,                                       // 1: the conjugate of A
//!             GLOBAL ACC *work, GLOBAL U32 *counters)         // see Plan
//! ```
//!
//! `alpha` and `beta` are `float`, `double`, `float2` or `double2`. Offsets and strides are in
//! elements.

use crate::{Desc, Dtype, Params};

/// What the kernels ask of a device.
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
    /// Whether the device is a CPU: one work-item a group, long vectors.
    pub cpu: bool,
    /// Whether it has double precision.
    pub fp64: bool,
}

impl Caps {
    /// What every device has: one unit, 64 threads a block, 16 KiB of shared memory.
    pub fn new(language: Language) -> Caps {
        Caps { language, units: 1, max_group: 64, local_bytes: 16 << 10, cpu: false, fp64: false }
    }
}

/// The language a kernel is compiled as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// OpenCL C 1.2.
    OpenCl,
    /// CUDA C++ by NVRTC, without any header but `cuda_fp16.h` and `cuda_bf16.h`.
    Cuda,
}

/// One kernel: a family of programs that differ in their parameters.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Kernel {
    /// Its name in [`Params`].
    pub name: &'static str,
    /// Its source, without the prelude.
    pub source: &'static str,
    /// The legal parameters worth trying for a problem, best guess first; empty where the kernel
    /// is not for it.
    pub candidates: fn(&Desc, &Caps) -> Vec<Params>,
    /// Whether parameters are legal, or the rule that they break.
    pub fits: fn(&Desc, &Params, &Caps) -> Result<(), String>,
    /// What to launch; the parameters fit.
    pub plan: fn(&Desc, &Params, &Caps) -> Plan,
}

/// What follows from a problem and parameters: derived, never stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Launches, in order; each waits for the one before.
    pub launches: Vec<Launch>,
    /// Accumulator values of scratch memory; not initialised.
    pub work: u64,
    /// 32-bit counters that are 0 before the first launch and that the kernel leaves at 0.
    pub counters: u64,
}

/// One launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Entry point.
    pub entry: &'static str,
    /// Blocks (work-groups) in each dimension; y and z at most 65,535.
    pub grid: [u64; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory (CUDA only; OpenCL sources declare theirs).
    pub shared: u32,
}

/// A program to compile: what goes into a cache's key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// Prelude and source.
    pub source: String,
    /// Names and values of the preprocessor's defines, in order.
    pub defines: Vec<(String, String)>,
}

/// The shared kernels.
pub fn kernels() -> &'static [Kernel] {
    &[]
}

impl Kernel {
    /// The program for an element type and parameters.
    pub fn program(&self, dtype: Dtype, params: &Params, language: Language) -> Program {
        let _ = (dtype, params, language);
        Program { source: self.source.into(), defines: Vec::new() }
    }
}
