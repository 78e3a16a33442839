//! The OpenCL backend of gemv: `opencl:0`, `opencl:1`, ... for every device of every platform.
//!
//! Linking this crate is enough: it enters itself in [`gemv_core::BACKENDS`]. OpenCL is looked for
//! when devices are first asked for; a program that has this crate starts, and computes elsewhere,
//! on a machine without any of it (Linux on x86-64 and aarch64; on other systems the loader is
//! linked in the usual way). Needed at run time: an OpenCL loader (`libOpenCL.so.1`) and a driver
//! for 1.2 or later.
//!
//! Operands on the host are used in place where the device is the CPU and they have no gaps, and
//! uploaded otherwise. One product runs on a device at a time; others wait for it.
#![deny(unsafe_code)]

mod backend;
mod bugs;
#[allow(unsafe_code)] // the one module that calls OpenCL
mod cl;
mod discover;
#[cfg(test)]
mod golden;
mod kernels;
mod memory;
mod programs;
mod run;

use gemv_core::{BACKENDS, BackendEntry};

pub use backend::OpenCl;
pub use bugs::{Bug, known_bugs};
pub use discover::NAME;

#[linkme::distributed_slice(BACKENDS)]
static ENTRY: BackendEntry =
    BackendEntry { name: NAME, rank: 20, discover: discover::discover, open: backend::open };
