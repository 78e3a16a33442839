//! `libgemv_blas.so`: routines of the BLAS by the [order](gemv_core::order) of gemv, for programs in C, Fortran and whatever
//! calls these. docs/c.md has the list, and where the rules of the BLAS win over those of the order.
//!
//! It computes on the CPU, and needs no other device. It has symbols of its own alone: programs link another BLAS
//! for the other routines.
//!
//! Nothing unwinds into the caller: a panic in an `extern "C"` function ends the program with its message.

#![deny(unsafe_code)]

// Pointers of the caller, and functions for it.
#[allow(unsafe_code)]
mod level1;
#[allow(unsafe_code)]
mod level2;
#[allow(unsafe_code)]
mod names;
#[allow(unsafe_code)]
mod operand;
#[allow(unsafe_code)]
mod xerbla;

use gemv_core::fork::Once;
use gemv_core::{Accumulator, Device, Element, Result, Times};
use gemv_cpu::Cpu;
use std::sync::Arc;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("steps and leading dimensions of 64 bits need addresses of 64 bits");

/// Element types of the BLAS.
pub(crate) trait Scalar: Element<Acc = Self> + Accumulator + Times<Self> {}
impl<T: Element<Acc = T> + Accumulator + Times<T>> Scalar for T {}

/// The device of all calls, by both its names.
pub(crate) struct Host {
    pub(crate) device: Device,
    pub(crate) cpu: Arc<Cpu>,
}

/// Opened at the first call, and kept. In code, not from the list of linked backends: a static library would find that empty.
#[inline(always)]
pub(crate) fn host() -> &'static Host {
    static HOST: Once<Host> = Once::new();
    HOST.get_or_init(|| {
        let cpu = Arc::new(answer(Cpu::from_env()));
        Host { device: Device::new(cpu.clone()), cpu }
    })
}

/// What the library has computed.
///
/// An error is one of the program's setting (`GEMV_CPU_ISA` that names what the processor does not have) or of the library.
/// The BLAS has no way to report it, and to go on would be a wrong result.
#[inline(always)]
pub(crate) fn answer<R>(result: Result<R>) -> R {
    #[cold]
    fn stop(why: &gemv_core::Error) -> ! {
        eprintln!("libgemv_blas: {why}");
        std::process::abort()
    }
    match result {
        Ok(answer) => answer,
        Err(why) => stop(&why),
    }
}
