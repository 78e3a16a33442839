//! The one module of this crate that calls foreign code: the loader, the driver, NVRTC and cuBLAS.
//!
//! cudarc panics where a library or a symbol is missing, so the libraries are looked for here
//! first, with every symbol that is used. NVRTC is called through the handle that was found, so
//! that the library named by the user is the one that compiles. Everything that leaves this module
//! is safe: [`Gpu::launch`] checks that operands lie in their blocks, and a block is freed in the
//! order of the stream, after the work that uses it.

mod chain;
mod cublas;
mod current;
mod foreign;
mod foreign_stream;
mod function;
mod gpu;
mod launch;
mod nvrtc;
mod peer;
mod probe;
mod record;
mod schedule;
mod several;
mod source;
mod spare;
mod staging;
mod tape;
mod tensor_map;

pub(crate) use chain::Link;
pub(crate) use cublas::Cublas;
pub(crate) use foreign::drop_retired;
pub(crate) use foreign_stream::stream_id;
pub(crate) use function::{AtPlaces, Function, Launch};
pub(crate) use gpu::{Block, Gpu};
pub(crate) use launch::{Arguments, ElementwiseArguments, Fused, Operand, VectorArguments};
pub use nvrtc::{Image, NVRTC_ENV, Nvrtc};
pub(crate) use peer::{BlockCopy, exchange};
pub(crate) use probe::{Found, Report, probe};
pub(crate) use several::record;
pub(crate) use staging::Staging;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::nvrtc::library_names;
    use super::probe::{look, or};
    use super::*;

    #[test]
    fn a_missing_driver_is_one_sentence() {
        let why = look(&["libno-such-driver.so.1", "libnone.so"]).unwrap_err();
        assert_eq!(
            why,
            "the driver's library was not found (looked for libno-such-driver.so.1 or libnone.so)"
        );
    }

    #[test]
    fn a_library_that_is_no_driver_is_one_sentence() {
        if cfg!(target_os = "linux") {
            let why = look(&["libc.so.6"]).unwrap_err();
            assert_eq!(why, "the driver is too old: its library has no cuCtxEnablePeerAccess");
        }
    }

    #[test]
    fn a_missing_or_wrong_compiler_is_one_sentence() {
        let why = Nvrtc::load(Path::new("/no/such/libnvrtc.so.13")).unwrap_err();
        assert!(why.contains("/no/such/libnvrtc.so.13") && !why.contains('\n'), "{why}");
        if cfg!(target_os = "linux") {
            let why = Nvrtc::load(Path::new("libc.so.6")).unwrap_err();
            assert_eq!(why, "libc.so.6 is too old: it has no nvrtcVersion");
        }
    }

    #[test]
    fn ptx_that_the_driver_refuses_is_one_sentence_that_says_what_to_do() {
        use cudarc::driver::sys::CUresult::*;
        for (code, part) in [
            (CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "install a newer driver, or NVRTC"),
            (CUDA_ERROR_INVALID_PTX, "install another driver, or NVRTC"),
            (CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "install it, or NVRTC"),
            (CUDA_ERROR_JIT_COMPILATION_DISABLED, "or install NVRTC"),
        ] {
            let why = nvrtc::refused_ptx(code).unwrap();
            assert!(why.contains(part) && !why.contains('.'), "{why}");
        }
        assert_eq!(nvrtc::refused_ptx(CUDA_ERROR_OUT_OF_MEMORY), None);
        assert!(Image::new(b".version 8.0\n\0".into()).is_ptx());
        assert!(!Image::new(b"\x7fELF\x02".into()).is_ptx());
    }

    #[test]
    fn names_of_the_drivers_version_come_first() {
        if cfg!(target_os = "linux") {
            let twelve = ["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.11.2", "libnvrtc.so"];
            assert_eq!(library_names(12), twelve);
            assert_eq!(library_names(14)[..2], ["libnvrtc.so.14", "libnvrtc.so.13"]);
        }
        assert_eq!(or(&["a"]), "a");
        assert_eq!(or(&["a", "b", "c"]), "a, b or c");
    }
}
