//! The error handlers of the BLAS: those of the program, if it has them.

use std::ffi::{CString, c_char, c_int};
use std::ptr::NonNull;

/// A routine as it was called.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    /// In lower case, such as `sgemv`.
    pub(crate) name: &'static str,
    /// Whether by the C interface.
    pub(crate) c: bool,
    /// Whether its integers have 64 bits.
    pub(crate) wide: bool,
}

/// `void xerbla_(char *name, int *argument, size_t length)`.
type Fortran = unsafe extern "C" fn(*const c_char, *const i64, usize);

/// `void cblas_xerbla(int argument, const char *name, const char *form, ...)`.
type C = unsafe extern "C" fn(c_int, *const c_char, *const c_char, ...);

// Weak references, each in a word that the dynamic linker fills: with what the program has, which a linker then exports
// from it, or with 0. A name that this library defined would shadow another library's handler.
#[cfg(target_os = "linux")]
core::arch::global_asm!(
    ".pushsection .data.rel.ro.gemv_blas, \"aw\"",
    ".p2align 3",
    ".weak xerbla_",
    ".weak xerbla_64_",
    ".weak cblas_xerbla",
    ".weak RowMajorStrg",
    ".globl gemv_blas_handlers",
    ".hidden gemv_blas_handlers",
    "gemv_blas_handlers:",
    ".quad xerbla_",
    ".quad xerbla_64_",
    ".quad cblas_xerbla",
    ".quad RowMajorStrg",
    ".popsection",
);

#[repr(C)]
struct Handlers {
    fortran: Option<Fortran>,
    fortran_64: Option<Fortran>,
    c: Option<C>,
    /// A number of the reference's C interface: whether its handler swaps the numbers of arguments that calls by rows
    /// pass on in another order.
    swaps: Option<NonNull<c_int>>,
}

// SAFETY: addresses that nothing changes.
unsafe impl Sync for Handlers {}

#[cfg(target_os = "linux")]
fn handlers() -> &'static Handlers {
    unsafe extern "C" {
        static gemv_blas_handlers: Handlers;
    }
    // SAFETY: the three words above, of which each is 0 or a function of that interface; nothing writes them after the
    // library is loaded.
    unsafe { &gemv_blas_handlers }
}

#[cfg(not(target_os = "linux"))]
fn handlers() -> &'static Handlers {
    &Handlers { fortran: None, fortran_64: None, c: None, swaps: None }
}

/// Reports the first wrong argument by its number, from 1 on.
///
/// `argument` is its number in the Fortran interface; the C interface has the layout before it, where there is a matrix.
#[cold]
pub(crate) fn wrong(caller: Caller, argument: usize) {
    let handlers = handlers();
    if caller.c {
        let name = format!("cblas_{}", caller.name);
        let Ok(name) = CString::new(name) else { return };
        match handlers.c {
            Some(handler) => {
                if let Some(swaps) = handlers.swaps {
                    // The number is that of the argument in the call.
                    // SAFETY: the reference's variable, which its own routines write as they are called.
                    unsafe { swaps.write(0) };
                }
                // SAFETY: the program's handler, with the arguments that the BLAS defines.
                unsafe { handler(argument as c_int, name.as_ptr(), c"".as_ptr()) }
            }
            None => eprintln!(
                "Parameter {argument} to routine {} was incorrect",
                name.to_string_lossy()
            ),
        }
        return;
    }
    // Six characters, as the reference pads them.
    let name = format!("{:<6}", caller.name.to_uppercase());
    let wide = if caller.wide { handlers.fortran_64 } else { None };
    match wide.or(handlers.fortran) {
        // SAFETY: as above. A handler with integers of 32 bits finds the number in the lower half.
        Some(handler) => unsafe { handler(name.as_ptr().cast(), &number(argument), name.len()) },
        None => {
            eprintln!(" ** On entry to {name} parameter number {argument:2} had an illegal value")
        }
    }
}

/// The number as 64 bits whose first 32 are it as well.
fn number(argument: usize) -> i64 {
    let argument = argument as i64;
    if cfg!(target_endian = "big") { argument << 32 | argument } else { argument }
}
