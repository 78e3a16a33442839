//! The CUDA backend of gemv: NVIDIA GPUs, through the driver.
//!
//! Nothing of CUDA is needed to build or to start a program that links this crate: `libcuda` is
//! looked for when devices are asked for, NVRTC when a kernel has to be compiled, and each is
//! either there or answered for by one sentence. Compiled kernels are kept on disk ([`Cache`]).
//!
//! A machine without NVRTC computes too: what the built-in tables name travels with the crate as PTX
//! ([`Bundle`]), for GPUs of compute capability 8.0 and newer. The driver compiles it, and keeps it in a
//! cache of its own. Other kernels need NVRTC once.
//!
//! The work is queued on a stream of its own in each GPU's primary context. The context that is current on the
//! calling thread is the same before and after each call, so a program's own current GPU stays what it is.
//!
//! CUDA does not work in a child that `fork` makes of a process that has used it, if only to list its GPUs. There each
//! call answers [`Error::Forked`](gemv_core::Error::Forked). A child whose parent has not used it does as usual.
//!
//! | environment | meaning |
//! |---|---|
//! | `GEMV_NVRTC` | absolute path of the NVRTC library, in place of the search |
//! | `GEMV_CACHE_DIR` | directory of compiled kernels, in place of the user's cache directory |
//! | `GEMV_CACHE=off` | neither read nor write compiled kernels |
//! | `GEMV_SELF_TEST=off` | use the f64 tensor cores untested |
#![deny(unsafe_code)]

mod backend;
mod bundle;
mod cache;
mod candidates;
mod cyclic;
#[allow(unsafe_code)] // the one module that calls the driver, its libraries and the loader
mod driver;
#[allow(unsafe_code)] // whoever brings a stream or memory answers for it
mod interop;
mod kernel_source;
mod kernels;
mod lock;
mod options;
mod pool;
mod programs;
mod recency;
mod resident;
mod run;
mod selftest;
mod shipped;
#[cfg(feature = "cudarc")]
#[allow(unsafe_code)] // slices are borrowed, and of the device's stream
pub mod slices;
mod tables;
#[cfg(test)]
mod testing;
mod vector;

use gemv_core::{BACKENDS, BackendEntry};

pub use backend::{cluster, infos};
pub use bundle::{Bundle, bundle_key};
pub use cache::Cache;
pub use candidates::candidates;
pub use driver::{Image, NVRTC_ENV, Nvrtc};
pub use gemv_gpu::{CACHE_DIR_ENV, CACHE_ENV};
pub use interop::{on_stream, stream_id};
pub use kernel_source::{parameters, program_of};
pub use kernels::kernels;
pub use options::{options, options_of};
pub use shipped::{Shipped, shipped};

/// This backend, for static libraries: see [`gemv_core::Engine::link`].
pub const ENTRY: BackendEntry = BackendEntry {
    name: "cuda",
    // After the CPU: a host matrix that is used once is not worth the way to a device.
    rank: 10,
    discover: backend::discover,
    open: backend::open,
};

#[linkme::distributed_slice(BACKENDS)]
static LINKED: BackendEntry = ENTRY;
