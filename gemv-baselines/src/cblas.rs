//! A library with the C interface of the BLAS (OpenBLAS, MKL, BLIS) as a rival of the CPU's products, found at run time.
//! Its integers have 32 bits (LP64): of a library with 64-bit integers under the same names (ILP64), nothing tells.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::OnceLock;

use gemv_core::ndarray::{
    ArrayView2, ArrayView3, ArrayViewMut2, ArrayViewMut3, Axis, CowArray, Ix2,
};
use gemv_core::{Desc, RIVALS, Rival};
use libloading::Library;

/// The environment variable with the path of a BLAS that is `vendor-cblas`.
pub const CBLAS_ENV: &str = "GEMV_CBLAS";

#[linkme::distributed_slice(RIVALS)]
static CBLAS: Rival = Rival::new("vendor-cblas", fits, product, product);

/// Order, whether A is transposed, rows and columns of A before that, alpha, A, its leading dimension, x, its step, beta,
/// y, its step.
type Gemv<T> = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    T,
    *const T,
    c_int,
    *const T,
    c_int,
    T,
    *mut T,
    c_int,
);
/// Order, whether A and X are transposed, rows and columns of Y, terms, alpha, then address and leading dimension of each
/// matrix (beta stands before the last).
type Gemm<T> = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    T,
    *const T,
    c_int,
    *const T,
    c_int,
    T,
    *mut T,
    c_int,
);

/// CblasRowMajor and CblasColMajor.
const BY_ROWS: c_int = 101;
const BY_COLUMNS: c_int = 102;
/// CblasNoTrans and CblasTrans.
const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;

#[derive(Debug, Clone, Copy)]
struct Functions<T> {
    gemv: Gemv<T>,
    gemm: Gemm<T>,
}

#[derive(Debug)]
struct Cblas {
    f32: Functions<f32>,
    f64: Functions<f64>,
    /// Keeps it loaded.
    _library: Library,
}

/// Loads the library that [`CBLAS_ENV`] names, once a process.
///
/// ```
/// match gemv_baselines::load_cblas() {
///     Ok(()) => println!("`gemv bench` compares with it"),
///     Err(why) => assert!(why.contains("GEMV_CBLAS"), "{why}"),
/// }
/// ```
///
/// # Errors
/// A sentence that says why there is none.
pub fn load_cblas() -> Result<(), &'static str> {
    cblas().map(|_| ())
}

fn cblas() -> Result<&'static Cblas, &'static str> {
    static LOADED: OnceLock<Result<Cblas, String>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(String::as_str)
}

fn load() -> Result<Cblas, String> {
    let path = std::env::var_os(CBLAS_ENV).filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| format!("{CBLAS_ENV} names no library"))?;
    let shown = path.to_string_lossy();
    let failed = |what: &str, why: libloading::Error| {
        // The loader's own words, where it has some.
        let words = std::error::Error::source(&why).map(ToString::to_string);
        format!("{CBLAS_ENV}={shown} {what}: {}", words.unwrap_or_else(|| why.to_string()))
    };
    // SAFETY: whoever sets the variable answers for the initialisers of the library.
    let library = unsafe { Library::new(&path) }.map_err(|why| failed("cannot be loaded", why))?;
    let missing = |why| failed("is no BLAS", why);
    // SAFETY: whoever sets the variable answers for a library whose functions of these names are those of the C interface of
    // the BLAS with 32-bit integers.
    unsafe {
        Ok(Cblas {
            f32: Functions {
                gemv: *library.get(b"cblas_sgemv\0").map_err(missing)?,
                gemm: *library.get(b"cblas_sgemm\0").map_err(missing)?,
            },
            f64: Functions {
                gemv: *library.get(b"cblas_dgemv\0").map_err(missing)?,
                gemm: *library.get(b"cblas_dgemm\0").map_err(missing)?,
            },
            _library: library,
        })
    }
}

fn fits(desc: &Desc) -> Result<(), String> {
    cblas().map_err(|why| format!("is not there: {why}"))?;
    if desc.batch > 1 {
        return Err("is for one product".into());
    }
    match [desc.m, desc.n, desc.rhs].into_iter().find(|size| c_int::try_from(*size).is_err()) {
        Some(size) => Err(format!("has 32-bit sizes, and {size} is more")),
        None => Ok(()),
    }
}

/// A type that the library has products of.
trait Blas: gemv_core::ndarray::LinalgScalar {
    fn functions(cblas: &Cblas) -> Functions<Self>;
}
impl Blas for f32 {
    fn functions(cblas: &Cblas) -> Functions<f32> {
        cblas.f32
    }
}
impl Blas for f64 {
    fn functions(cblas: &Cblas) -> Functions<f64> {
        cblas.f64
    }
}

fn product<T: Blas>(
    alpha: T,
    a: ArrayView3<'_, T>,
    x: ArrayView3<'_, T>,
    beta: T,
    mut y: ArrayViewMut3<'_, T>,
) {
    let functions = T::functions(cblas().expect("it fits only where it was loaded"));
    let (a, x) = (a.index_axis(Axis(0), 0), x.index_axis(Axis(0), 0));
    let y = y.index_axis_mut(Axis(0), 0);
    let (a, x) = (with_leading(&a), with_leading(&x));
    let (a, x) = (a.view(), x.view());
    if leading(&y.view()).is_some() {
        return call(functions, alpha, a, x, beta, y);
    }
    let mut packed = y.as_standard_layout().into_owned();
    call(functions, alpha, a, x, beta, packed.view_mut());
    { y }.assign(&packed);
}

/// The interface has one stride a matrix: where the other one is not 1, the matrix is copied.
fn with_leading<'a, T: Clone>(of: &'a ArrayView2<'_, T>) -> CowArray<'a, T, Ix2> {
    if leading(of).is_some() { of.view().into() } else { of.as_standard_layout() }
}

/// Whether a matrix lies by rows, and the distance of its rows, or else of its columns; none if neither axis has stride 1 or
/// a distance is too small or too large for the interface.
fn leading<T>(of: &ArrayView2<'_, T>) -> Option<(bool, c_int)> {
    let ((rows, cols), strides) = (of.dim(), of.strides());
    // The stride of an axis of one entry means nothing.
    let along = |count: usize, stride: isize| count == 1 || stride == 1;
    let apart = |count: usize, stride: isize, least: usize| match count {
        1 => c_int::try_from(least).ok(),
        _ => c_int::try_from(stride).ok().filter(|far| *far as usize >= least && *far > 0),
    };
    let by_rows = || apart(rows, strides[0], cols).filter(|_| along(cols, strides[1]));
    let by_columns = || apart(cols, strides[1], rows).filter(|_| along(rows, strides[0]));
    by_rows().map(|far| (true, far)).or_else(|| by_columns().map(|far| (false, far)))
}

/// Each of the matrices has a leading dimension.
fn call<T: Blas>(
    functions: Functions<T>,
    alpha: T,
    a: ArrayView2<'_, T>,
    x: ArrayView2<'_, T>,
    beta: T,
    mut y: ArrayViewMut2<'_, T>,
) {
    let far = |of: &ArrayView2<'_, T>| leading(of).expect("copied where it had none");
    let size = |size: usize| c_int::try_from(size).expect("checked in `fits`");
    let ((m, n), k) = (a.dim(), x.dim().1);
    let ((a_rows, a_far), (x_rows, x_far), (y_rows, y_far)) = (far(&a), far(&x), far(&y.view()));
    if k == 1 {
        // Of one column, the distance of its entries.
        let step = |entries: usize, of: (bool, c_int)| match of {
            (true, far) if entries > 1 => far,
            _ => 1,
        };
        let (order, x_step) = (if a_rows { BY_ROWS } else { BY_COLUMNS }, step(n, (x_rows, x_far)));
        let (a, x) = (a.as_ptr(), x.as_ptr());
        let (m, n, y_step) = (size(m), size(n), step(m, (y_rows, y_far)));
        // SAFETY: the views borrow m x n, n and m entries at these distances, y alone for writing; the sizes are theirs.
        return unsafe {
            (functions.gemv)(
                order,
                PLAIN,
                m,
                n,
                alpha,
                a,
                a_far,
                x,
                x_step,
                beta,
                y.as_mut_ptr(),
                y_step,
            );
        };
    }
    let order = if y_rows { BY_ROWS } else { BY_COLUMNS };
    let transposed = |rows: bool| if rows == y_rows { PLAIN } else { TRANSPOSED };
    let (a_lies, x_lies) = (transposed(a_rows), transposed(x_rows));
    let (m, n, k, a, x) = (size(m), size(n), size(k), a.as_ptr(), x.as_ptr());
    let y = y.as_mut_ptr();
    // SAFETY: as above, for n x k and m x k entries.
    unsafe {
        (functions.gemm)(order, a_lies, x_lies, m, k, n, alpha, a, a_far, x, x_far, beta, y, y_far);
    }
}
