//! The symbols: each routine in every spelling.

use std::ffi::{c_char, c_int};

use gemv_core::num_complex::Complex;

use crate::level1::{axpy, dot, iamax, nrm2, scal, scal_parts};
use crate::level2::{Op, by_rows, gemv, ger};
use crate::xerbla::Caller;

type C32 = Complex<f32>;
type C64 = Complex<f64>;

/// One function under several names. `Int` is its integer.
macro_rules! exported {
    ([$($name:expr),*] $int:ty, $function:tt) => { $(exported!(@ $name, $int, $function);)* };
    (@ $name:expr, $int:ty, { fn $args:tt $(-> $ret:ty)? $body:block }) => {
        const _: () = {
            type Int = $int;
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn exported $args $(-> $ret)? $body
        };
    };
}

/// A routine: by Fortran (`sgemv_`) and by C (`cblas_sgemv`). Each with integers of 32 bits, and of 64 as the reference (`_64`),
/// OpenBLAS and Julia (`64_`) spell them; both also as the wheels of NumPy and SciPy do (`scipy_`).
macro_rules! routine {
    ($fortran:literal $f:tt, $c:literal $cblas:tt) => {
        exported!([concat!($fortran, "_"), concat!("scipy_", $fortran, "_")] i32, $f);
        exported!([concat!($fortran, "_64_"), concat!("scipy_", $fortran, "_64_")] i64, $f);
        exported!([concat!("cblas_", $c), concat!("scipy_cblas_", $c)] i32, $cblas);
        exported!([
            concat!("cblas_", $c, "_64"), concat!("cblas_", $c, "64_"), concat!("scipy_cblas_", $c, "64_")
        ] i64, $cblas);
    };
}

/// How the routine was called.
macro_rules! by {
    (fortran $name:literal) => {
        Caller { name: $name, c: false, wide: size_of::<Int>() == 8 }
    };
    (c $name:literal) => {
        Caller { name: $name, c: true, wide: size_of::<Int>() == 8 }
    };
}

/// A factor's type, and its value: by value for real numbers, by address for complex ones, as the C interface has them.
macro_rules! factor {
    (real $t:ty) => { $t };
    (complex $t:ty) => { *const $t };
    (real = $value:ident) => { $value };
    (complex = $value:ident) => { *$value };
}

macro_rules! gemv_names {
    ($kind:ident $t:ty, $name:literal) => {
        routine!(
            $name { fn (
                trans: *const c_char, m: *const Int, n: *const Int, alpha: *const $t,
                a: *const $t, lda: *const Int, x: *const $t, incx: *const Int,
                beta: *const $t, y: *mut $t, incy: *const Int
            ) {
                // SAFETY: the caller's.
                unsafe {
                    let (op, by) = (Op::of_letter(*trans as u8), by!(fortran $name));
                    let [m, n, lda, incx, incy] = [*m, *n, *lda, *incx, *incy].map(i64::from);
                    gemv(by, Some(false), op, [m, n], *alpha, (a, lda), (x, incx), *beta, (y, incy));
                }
            } },
            $name { fn (
                layout: c_int, trans: c_int, m: Int, n: Int, alpha: factor!($kind $t),
                a: *const $t, lda: Int, x: *const $t, incx: Int,
                beta: factor!($kind $t), y: *mut $t, incy: Int
            ) {
                let (rows, op, by) = (by_rows(layout), Op::of_number(trans), by!(c $name));
                let [m, n, lda, incx, incy] = [m, n, lda, incx, incy].map(i64::from);
                // SAFETY: the caller's.
                unsafe {
                    let (alpha, beta) = (factor!($kind = alpha), factor!($kind = beta));
                    gemv(by, rows, op, [m, n], alpha, (a, lda), (x, incx), beta, (y, incy));
                }
            } }
        );
    };
}
gemv_names!(real f32, "sgemv");
gemv_names!(real f64, "dgemv");
gemv_names!(complex C32, "cgemv");
gemv_names!(complex C64, "zgemv");

macro_rules! ger_names {
    ($kind:ident $t:ty, $name:literal, $conj:literal) => {
        routine!(
            $name { fn (
                m: *const Int, n: *const Int, alpha: *const $t, x: *const $t, incx: *const Int,
                y: *const $t, incy: *const Int, a: *mut $t, lda: *const Int
            ) {
                // SAFETY: the caller's.
                unsafe {
                    let [m, n, lda, incx, incy] = [*m, *n, *lda, *incx, *incy].map(i64::from);
                    let by = by!(fortran $name);
                    ger(by, Some(false), $conj, [m, n], *alpha, (x, incx), (y, incy), (a, lda));
                }
            } },
            $name { fn (
                layout: c_int, m: Int, n: Int, alpha: factor!($kind $t), x: *const $t, incx: Int,
                y: *const $t, incy: Int, a: *mut $t, lda: Int
            ) {
                let [m, n, lda, incx, incy] = [m, n, lda, incx, incy].map(i64::from);
                let (by, rows) = (by!(c $name), by_rows(layout));
                // SAFETY: the caller's.
                unsafe {
                    let alpha = factor!($kind = alpha);
                    ger(by, rows, $conj, [m, n], alpha, (x, incx), (y, incy), (a, lda));
                }
            } }
        );
    };
}
ger_names!(real f32, "sger", false);
ger_names!(real f64, "dger", false);
ger_names!(complex C32, "cgeru", false);
ger_names!(complex C64, "zgeru", false);
ger_names!(complex C32, "cgerc", true);
ger_names!(complex C64, "zgerc", true);

macro_rules! dot_names {
    (@ $t:ty, $name:literal, $conj:literal, $c_name:literal $c:tt) => {
        // A complex result is returned by value, as gfortran does it: in the registers of a pair.
        routine!(
            $name { fn (
                n: *const Int, x: *const $t, incx: *const Int, y: *const $t, incy: *const Int
            ) -> $t {
                // SAFETY: the caller's.
                unsafe {
                    let [n, incx, incy] = [*n, *incx, *incy].map(i64::from);
                    dot(by!(fortran $name), $conj, n, (x, incx), (y, incy))
                }
            } },
            $c_name $c
        );
    };
    (real $t:ty, $name:literal) => {
        dot_names!(@ $t, $name, false, $name { fn (
            n: Int, x: *const $t, incx: Int, y: *const $t, incy: Int
        ) -> $t {
            let [n, incx, incy] = [n, incx, incy].map(i64::from);
            // SAFETY: the caller's.
            unsafe { dot(by!(c $name), false, n, (x, incx), (y, incy)) }
        } });
    };
    (complex $t:ty, $name:literal, $conj:literal, $sub:literal) => {
        dot_names!(@ $t, $name, $conj, $sub { fn (
            n: Int, x: *const $t, incx: Int, y: *const $t, incy: Int, to: *mut $t
        ) {
            let [n, incx, incy] = [n, incx, incy].map(i64::from);
            // SAFETY: the caller's.
            unsafe { *to = dot(by!(c $sub), $conj, n, (x, incx), (y, incy)) }
        } });
    };
}
dot_names!(real f32, "sdot");
dot_names!(real f64, "ddot");
dot_names!(complex C32, "cdotu", false, "cdotu_sub");
dot_names!(complex C64, "zdotu", false, "zdotu_sub");
dot_names!(complex C32, "cdotc", true, "cdotc_sub");
dot_names!(complex C64, "zdotc", true, "zdotc_sub");

macro_rules! nrm2_names {
    ($t:ty => $part:ty, $name:literal) => {
        routine!(
            $name { fn (n: *const Int, x: *const $t, incx: *const Int) -> $part {
                // SAFETY: the caller's.
                unsafe { nrm2(by!(fortran $name), (*n).into(), (x, (*incx).into())) }
            } },
            $name { fn (n: Int, x: *const $t, incx: Int) -> $part {
                // SAFETY: the caller's.
                unsafe { nrm2(by!(c $name), n.into(), (x, incx.into())) }
            } }
        );
    };
}
nrm2_names!(f32 => f32, "snrm2");
nrm2_names!(f64 => f64, "dnrm2");
nrm2_names!(C32 => f32, "scnrm2");
nrm2_names!(C64 => f64, "dznrm2");

macro_rules! axpy_names {
    ($kind:ident $t:ty, $name:literal) => {
        routine!(
            $name { fn (
                n: *const Int, alpha: *const $t, x: *const $t, incx: *const Int, y: *mut $t,
                incy: *const Int
            ) {
                // SAFETY: the caller's.
                unsafe {
                    let [n, incx, incy] = [*n, *incx, *incy].map(i64::from);
                    axpy(by!(fortran $name), n, *alpha, (x, incx), (y, incy));
                }
            } },
            $name { fn (
                n: Int, alpha: factor!($kind $t), x: *const $t, incx: Int, y: *mut $t, incy: Int
            ) {
                let [n, incx, incy] = [n, incx, incy].map(i64::from);
                // SAFETY: the caller's.
                unsafe { axpy(by!(c $name), n, factor!($kind = alpha), (x, incx), (y, incy)) }
            } }
        );
    };
}
axpy_names!(real f32, "saxpy");
axpy_names!(real f64, "daxpy");
axpy_names!(complex C32, "caxpy");
axpy_names!(complex C64, "zaxpy");

macro_rules! scal_names {
    ($kind:ident $alpha:ty, $t:ty, $name:literal, $scal:ident) => {
        routine!(
            $name { fn (n: *const Int, alpha: *const $alpha, x: *mut $t, incx: *const Int) {
                // SAFETY: the caller's.
                unsafe { $scal(by!(fortran $name), (*n).into(), *alpha, (x, (*incx).into())) }
            } },
            $name { fn (n: Int, alpha: factor!($kind $alpha), x: *mut $t, incx: Int) {
                // SAFETY: the caller's.
                unsafe { $scal(by!(c $name), n.into(), factor!($kind = alpha), (x, incx.into())) }
            } }
        );
    };
}
scal_names!(real f32, f32, "sscal", scal);
scal_names!(real f64, f64, "dscal", scal);
scal_names!(complex C32, C32, "cscal", scal);
scal_names!(complex C64, C64, "zscal", scal);
scal_names!(real f32, C32, "csscal", scal_parts);
scal_names!(real f64, C64, "zdscal", scal_parts);

macro_rules! iamax_names {
    ($t:ty, $name:literal) => {
        routine!(
            $name { fn (n: *const Int, x: *const $t, incx: *const Int) -> Int {
                // SAFETY: the caller's.
                unsafe { iamax(by!(fortran $name), (*n).into(), (x, (*incx).into())) as Int }
            } },
            // From 0 on, and 0 for none.
            $name { fn (n: Int, x: *const $t, incx: Int) -> usize {
                // SAFETY: the caller's.
                unsafe { iamax(by!(c $name), n.into(), (x, incx.into())).saturating_sub(1) }
            } }
        );
    };
}
iamax_names!(f32, "isamax");
iamax_names!(f64, "idamax");
iamax_names!(C32, "icamax");
iamax_names!(C64, "izamax");
