//! CLBlast, found and called by name.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use gemv_core::Dtype;
use libloading::Library;
use ocl::core;

use super::{Failure, Queue};

/// The environment variable with the path of a CLBlast that is `vendor-clblast`.
pub const CLBLAST_ENV: &str = "GEMV_CLBLAST";

/// A buffer, a queue or an event of OpenCL.
type Object = *mut c_void;

/// Layout, whether A is transposed, rows and columns of A, alpha; A, its first element, its leading dimension; x, its first
/// element, its step; beta; y likewise; the queue, and where an event is stored. Returns 0 or the error.
type Gemv<T> = unsafe extern "C" fn(
    c_int,
    c_int,
    usize,
    usize,
    T,
    Object,
    usize,
    usize,
    Object,
    usize,
    usize,
    T,
    Object,
    usize,
    usize,
    *mut Object,
    *mut Object,
) -> c_int;

/// Layout of all three, whether A and X are transposed, rows and columns of Y, terms, alpha; then as above.
type Gemm<T> = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    usize,
    usize,
    usize,
    T,
    Object,
    usize,
    usize,
    Object,
    usize,
    usize,
    T,
    Object,
    usize,
    usize,
    *mut Object,
    *mut Object,
) -> c_int;

/// CLBlastLayoutRowMajor and CLBlastLayoutColMajor.
const BY_ROWS: c_int = 101;
const BY_COLUMNS: c_int = 102;
/// CLBlastTransposeNo and CLBlastTransposeYes.
const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;

#[derive(Debug, Clone, Copy)]
struct Functions<T> {
    gemv: Gemv<T>,
    gemm: Gemm<T>,
}

/// The library, loaded.
#[derive(Debug)]
pub(crate) struct Clblast {
    f32: Functions<f32>,
    f64: Functions<f64>,
    /// Keeps it loaded.
    _library: Library,
}

/// Loads the library that [`CLBLAST_ENV`] names, once a process.
pub(crate) fn clblast() -> Result<&'static Clblast, &'static str> {
    static LOADED: OnceLock<Result<Clblast, String>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(String::as_str)
}

fn load() -> Result<Clblast, String> {
    let path = std::env::var_os(CLBLAST_ENV).filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| format!("{CLBLAST_ENV} names no library"))?;
    let shown = path.to_string_lossy();
    let failed = |what: &str, why: libloading::Error| {
        // The loader's own words, where it has some.
        let words = std::error::Error::source(&why).map(ToString::to_string);
        format!("{CLBLAST_ENV}={shown} {what}: {}", words.unwrap_or_else(|| why.to_string()))
    };
    // SAFETY: whoever sets the variable answers for the initialisers of the library.
    let library = unsafe { Library::new(&path) }.map_err(|why| failed("cannot be loaded", why))?;
    let missing = |why| failed("is no CLBlast", why);
    // SAFETY: whoever sets the variable answers for a library whose functions of these names are CLBlast's.
    unsafe {
        Ok(Clblast {
            f32: Functions {
                gemv: *library.get(b"CLBlastSgemv\0").map_err(missing)?,
                gemm: *library.get(b"CLBlastSgemm\0").map_err(missing)?,
            },
            f64: Functions {
                gemv: *library.get(b"CLBlastDgemv\0").map_err(missing)?,
                gemm: *library.get(b"CLBlastDgemm\0").map_err(missing)?,
            },
            _library: library,
        })
    }
}

/// Where a matrix lies, or a vector as a matrix of one column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) mem: &'a core::Mem,
    /// Its first element.
    pub(crate) first: usize,
    pub(crate) by_rows: bool,
    /// Elements from one row to the next, or from one column to the next.
    pub(crate) far: usize,
}

impl Clblast {
    /// Enqueues `Y = alpha A X + beta Y` for a matrix of m x n and k columns, of f32 or else of f64. The factors are
    /// exact in the type.
    ///
    /// The operands lie within their buffers.
    pub(crate) fn enqueue(
        &self,
        queue: &Queue,
        dtype: Dtype,
        dim: [usize; 3],
        (alpha, beta): (f64, f64),
        operands: [Place<'_>; 3],
    ) -> Result<(), Failure> {
        let status = match dtype {
            Dtype::F32 => call(self.f32, queue, dim, (alpha as f32, beta as f32), operands),
            _ => call(self.f64, queue, dim, (alpha, beta), operands),
        };
        if status == 0 {
            return Ok(());
        }
        queue.failed.set(true);
        // Its numbers are those of OpenCL, and some of its own.
        let (call, reason) = ("CLBlast", format!("status {status}, as listed in clblast_c.h"));
        Err(Failure { call, status: Some(status), reason })
    }
}

fn call<T>(
    functions: Functions<T>,
    queue: &Queue,
    [m, n, k]: [usize; 3],
    (alpha, beta): (T, T),
    [a, x, y]: [Place<'_>; 3],
) -> c_int {
    let mut on = queue.queue.as_ptr();
    let [a_mem, x_mem, y_mem] = [a, x, y].map(|of| of.mem.as_ptr());
    if k == 1 {
        let layout = if a.by_rows { BY_ROWS } else { BY_COLUMNS };
        // Of one column, the distance of its entries.
        let step = |of: Place<'_>| if of.by_rows { of.far } else { 1 };
        // SAFETY: the objects are alive, and the caller's operands lie within the buffers; OpenCL keeps these until what was
        // enqueued has ended. No event is asked for.
        return unsafe {
            (functions.gemv)(
                layout,
                PLAIN,
                m,
                n,
                alpha,
                a_mem,
                a.first,
                a.far,
                x_mem,
                x.first,
                step(x),
                beta,
                y_mem,
                y.first,
                step(y),
                &mut on,
                ptr::null_mut(),
            )
        };
    }
    let layout = if y.by_rows { BY_ROWS } else { BY_COLUMNS };
    let lies = |of: Place<'_>| if of.by_rows == y.by_rows { PLAIN } else { TRANSPOSED };
    // SAFETY: as above.
    unsafe {
        (functions.gemm)(
            layout,
            lies(a),
            lies(x),
            m,
            k,
            n,
            alpha,
            a_mem,
            a.first,
            a.far,
            x_mem,
            x.first,
            x.far,
            beta,
            y_mem,
            y.first,
            y.far,
            &mut on,
            ptr::null_mut(),
        )
    }
}
