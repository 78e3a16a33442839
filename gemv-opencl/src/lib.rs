//! The OpenCL backend of gemv: `opencl:0`, `opencl:1`, ... for every device of every platform.
//!
//! Linking this crate is enough: it enters itself in [`gemv_core::BACKENDS`]. It needs an OpenCL
//! loader (`libOpenCL.so.1`) and a driver for OpenCL 1.2 or later at run time. Both are looked for
//! when devices are first listed. Without them, on Linux (x86-64 and aarch64), a program starts all
//! the same and computes on other devices; on other systems the loader is linked in the usual way.
//!
//! Host operands are read in place where the device is the CPU and they have no gaps; otherwise they
//! are uploaded. Products on one device run one after another. Drivers' bugs that are worked around
//! are listed by [`known_bugs`].
//!
//! Drivers have threads of their own, which a child that `fork` makes does not have. In the child of a process that has
//! looked for devices, each call answers [`Error::Forked`](gemv_core::Error::Forked); one whose parent has not looked
//! uses them as usual.
//!
//! Compiled programs are kept on disk ([`cache_dir`]), but not those of kernels that people bring: OpenCL
//! tells their arguments only of programs that it has compiled from source. Before a program's first
//! result is given out, small products are compared with the reference, once for each device and driver.
//! A device that computes other bits is refused, in later processes too.
//!
//! | environment | meaning |
//! |---|---|
//! | `GEMV_CACHE_DIR` | directory of compiled programs, in place of the user's cache directory |
//! | `GEMV_CACHE=off` | neither read nor write compiled programs |
//! | `GEMV_CLBLAST` | path of [CLBlast](https://github.com/CNugteren/CLBlast), such as `libclblast.so.1`: a rival for benchmarks by the name `vendor-clblast`, in f32 and f64; with beta = 0 a NaN in a resident y stays |
//! | `GEMV_SELF_TEST=off` | do not compare with the reference, and use devices that were refused |
#![deny(unsafe_code)]

mod attempts;
mod backend;
mod bugs;
#[allow(unsafe_code)] // the one module that calls OpenCL
mod cl;
mod clblast;
mod discover;
mod entry;
mod first_use;
#[cfg(test)]
mod golden;
#[allow(unsafe_code)] // whoever brings a queue or a buffer answers for it
mod interop;
mod kernel_source;
mod kernels;
mod memory;
#[cfg(feature = "packed")]
mod packed;
mod programs;
mod run;
mod selftest;
mod sources;
mod store;
mod tables;
mod vector;

use gemv_core::{BACKENDS, BackendEntry};

pub use backend::{OpenCl, candidates};
pub use bugs::{Bug, known_bugs};
pub use cl::CLBLAST_ENV;
pub use clblast::load_clblast;
pub use discover::{NAME, cache_dir};
pub use interop::on_queue;
pub use kernels::kernels;

/// This backend, for static libraries: see [`gemv_core::Engine::link`].
pub const ENTRY: BackendEntry =
    BackendEntry { name: NAME, rank: 20, discover: discover::discover, open: backend::open };

#[linkme::distributed_slice(BACKENDS)]
static LINKED: BackendEntry = ENTRY;
