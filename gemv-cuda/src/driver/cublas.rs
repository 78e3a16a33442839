//! cuBLAS, found and called by name: NVIDIA's own product, as the rival in benchmarks.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::from_ref;
use std::sync::{Arc, Mutex};

use gemv_core::{Dtype, Error, Result};
use libloading::Library;

use super::gpu::{Block, Gpu};
use super::launch::{Arguments, Operand};
use super::nvrtc::{in_toolkit, loader};
use super::probe::{or, probe};
use crate::lock::lock;

type Handle = *mut c_void;
/// A product with 64-bit sizes, of cuBLAS 12 and newer: handle, operation, rows, columns, alpha,
/// A, leading dimension, x, its step, beta, y, its step.
type Gemv = unsafe extern "C" fn(
    Handle,
    c_int,
    i64,
    i64,
    *const c_void,
    u64,
    i64,
    u64,
    i64,
    *const c_void,
    u64,
    i64,
) -> c_int;
/// The same for a batch of matrices at fixed distances: what there is for 16-bit types.
type GemvBatched = unsafe extern "C" fn(
    Handle,
    c_int,
    i64,
    i64,
    *const c_void,
    u64,
    i64,
    i64,
    u64,
    i64,
    i64,
    *const c_void,
    u64,
    i64,
    i64,
    i64,
) -> c_int;

/// A batch of matrix-matrix products at fixed distances: handle, operations of the left and the right
/// matrix, rows, columns, terms, alpha, then address, type, leading dimension and distance of each
/// matrix (beta stands before the last), products, type of the sums, algorithm.
type GemmBatched = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    i64,
    i64,
    i64,
    *const c_void,
    u64,
    c_int,
    i64,
    i64,
    u64,
    c_int,
    i64,
    i64,
    *const c_void,
    u64,
    c_int,
    i64,
    i64,
    i64,
    c_int,
    c_int,
) -> c_int;

/// CUBLAS_COMPUTE_32F and _64F: sums in f32 (not in TF32) and in f64.
const COMPUTE: [c_int; 2] = [68, 70];
/// CUBLAS_GEMM_DEFAULT.
const BEST: c_int = -1;

/// CUBLAS_OP_N, _T and _C.
const PLAIN: c_int = 0;
const TRANSPOSED: c_int = 1;
const ADJOINT: c_int = 2;

/// Scratch memory as NVIDIA advises for Hopper. Handed over at the start: while work is recorded
/// none can be had.
const WORKSPACE: usize = 32 << 20;

/// cuBLAS with a handle on one GPU's stream. Its calls queue work, as a launch does.
#[derive(Debug)]
pub(crate) struct Cublas {
    library: Arc<Library>,
    handle: Handle,
    gpu: Arc<Gpu>,
    /// There until it is dropped.
    workspace: Option<Block>,
}

// SAFETY: the handle is used by whoever holds the GPU's queue (`Gpu::enter`), one thread at a time;
// cuBLAS allows that.
unsafe impl Send for Cublas {}
// SAFETY: as above.
unsafe impl Sync for Cublas {}

impl Cublas {
    /// Loads cuBLAS and makes a handle.
    ///
    /// # Errors
    /// [`Error::DriverMissing`], with what was looked for; the library's refusal.
    pub(crate) fn open(gpu: &Arc<Gpu>) -> Result<Cublas> {
        // A child of the process that had it would wait for a lock that nobody gives up.
        gpu.here()?;
        Retired::destroy_all();
        let missing = |reason| Error::DriverMissing { backend: "cuda", reason };
        let major = probe().map_or(13, |r| r.version / 1000);
        let plain = library_names(major);
        let mut library = None;
        for name in in_toolkit(&plain) {
            let path = Path::new(&name);
            // SAFETY: cuBLAS's initialisers have no preconditions.
            match unsafe { Library::new(path) } {
                Ok(found) => {
                    library = Some(found);
                    break;
                }
                Err(e) => log::debug!("cuBLAS: {}", loader(path, &e)),
            }
        }
        let library = library
            .ok_or_else(|| missing(format!("cuBLAS was not found (looked for {})", or(&plain))))?;
        let _guard = gpu.enter()?;
        let workspace = gpu.alloc(WORKSPACE)?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the types are those that cublas_api.h declares; the context is current.
        unsafe {
            let create = symbol::<unsafe extern "C" fn(*mut Handle) -> c_int>;
            let create = create(&library, gpu, "cublasCreate_v2")?;
            check(gpu, "cublasCreate", create(&mut handle))?;
        }
        let library = Arc::new(library);
        let at = workspace.at;
        let workspace = Some(workspace);
        let cublas = Cublas { library, handle, gpu: gpu.clone(), workspace };
        // SAFETY: as above; the stream and the workspace outlive the handle, since `cublas` owns
        // the one and shares the GPU that owns the other.
        unsafe {
            type Stream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
            let set = symbol::<Stream>(&cublas.library, gpu, "cublasSetStream_v2")?;
            check(gpu, "cublasSetStream", set(handle, gpu.stream.cu_stream().cast()))?;
            type Space = unsafe extern "C" fn(Handle, u64, usize) -> c_int;
            let set = symbol::<Space>(&cublas.library, gpu, "cublasSetWorkspace_v2")?;
            check(gpu, "cublasSetWorkspace", set(handle, at, WORKSPACE))?;
        }
        Ok(cublas)
    }

    /// Whether its handle is on this GPU's stream.
    pub(crate) fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    /// Queues one product. The caller holds the queue.
    ///
    /// # Errors
    /// What is wrong with the operands for BLAS, as the end of a sentence in
    /// [`Error::Device`]; the library's refusal.
    ///
    /// # Panics
    /// If an operand does not lie in its block.
    pub(crate) fn gemv(&self, arguments: &Arguments<'_>) -> Result<()> {
        arguments.check();
        self.gpu.refuse_on_tape("cublasGemv")?;
        let Arguments { types: (_, dtype), a, x, y, alpha, beta, conj, .. } = arguments;
        let [_, m, n] = a.dim;
        let refuse = |reason: &str| {
            Err(Error::Device {
                device: self.gpu.id().into(),
                call: "cublasGemv",
                reason: reason.into(),
            })
        };
        let conj = *conj && dtype.is_complex();
        // The matrix as BLAS sees it, by columns: a matrix by rows is the transpose. The stride of
        // an axis of one element says nothing.
        let [_, rs, cs] = a.strides;
        let (rows, cols, operation, step) = if (m <= 1 || rs == 1) && !conj {
            (m, n, PLAIN, cs)
        } else if n <= 1 || cs == 1 {
            (n, m, if conj { ADJOINT } else { TRANSPOSED }, rs)
        } else if rs == 1 {
            return refuse("BLAS has no product with the conjugate of a matrix by columns");
        } else {
            return refuse("BLAS knows matrices by rows and by columns only");
        };
        let step = if cols <= 1 { rows.max(1) as i64 } else { step as i64 };
        if step < rows.max(1) as i64 {
            return refuse("the leading dimension is less than BLAS allows");
        }
        let inc = |v: &Operand<'_>| if v.dim[1] <= 1 { 1 } else { v.strides[1] as i64 };
        let (incx, incy) = (inc(x), inc(y));
        if incx == 0 || incy == 0 {
            return refuse("BLAS knows no vector with a step of 0");
        }
        let (ax, xx, yx) = (address(a, *dtype), vector(x, *dtype), vector(y, *dtype));
        let (alpha, beta) = (from_ref(alpha.bytes()).cast(), from_ref(beta.bytes()).cast());
        let (rows, cols) = (rows as i64, cols as i64);
        let name = match dtype {
            Dtype::F32 => "cublasSgemv_v2_64",
            Dtype::F64 => "cublasDgemv_v2_64",
            Dtype::C32 => "cublasCgemv_v2_64",
            Dtype::C64 => "cublasZgemv_v2_64",
            // 16-bit operands and result, with alpha, beta and sums in f32.
            Dtype::F16 => "cublasHSHgemvStridedBatched_64",
            Dtype::Bf16 => "cublasTSTgemvStridedBatched_64",
        };
        let handle = self.handle;
        // SAFETY: the types are those that cublas_api.h declares; alpha and beta are read before
        // the call returns (pointers are the host's by default); operands lie in blocks, which
        // are freed in the order of the stream.
        let code = unsafe {
            match dtype {
                Dtype::F16 | Dtype::Bf16 => {
                    let f = symbol::<GemvBatched>(&self.library, &self.gpu, name)?;
                    f(
                        handle, operation, rows, cols, alpha, ax, step, 0, xx, incx, 0, beta, yx,
                        incy, 0, 1,
                    )
                }
                _ => {
                    let f = symbol::<Gemv>(&self.library, &self.gpu, name)?;
                    f(handle, operation, rows, cols, alpha, ax, step, xx, incx, beta, yx, incy)
                }
            }
        };
        check(&self.gpu, "cublasGemv", code)
    }

    /// Queues the products of several right-hand sides or of a batch, as one call. The caller holds the
    /// queue.
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    ///
    /// # Panics
    /// As [`gemv`](Self::gemv).
    pub(crate) fn gemm(&self, arguments: &Arguments<'_>) -> Result<()> {
        arguments.check();
        self.gpu.refuse_on_tape("cublasGemmStridedBatchedEx")?;
        let Arguments { types: (_, dtype), a, x, y, alpha, beta, conj, .. } = arguments;
        let conj = *conj && dtype.is_complex();
        let refuse = |reason: &str| {
            Err(Error::Device {
                device: self.gpu.id().into(),
                call: "cublasGemmStridedBatchedEx",
                reason: reason.into(),
            })
        };
        // BLAS writes by columns. A Y by rows is the transpose: Yᵀ = Xᵀ Aᵀ.
        let [a, x, y] = [a, x, y].map(Matrices::of);
        let (left, right, y, conj) = match y {
            y if y.by_columns() => (a, x, y, [conj, false]),
            y if y.t().by_columns() => (x.t(), a.t(), y.t(), [false, conj]),
            _ => return refuse("BLAS knows matrices by rows and by columns only"),
        };
        let mut operations = [PLAIN; 2];
        let mut leads = [0; 2];
        for (k, of) in [&left, &right].into_iter().enumerate() {
            (operations[k], leads[k]) = match (of.by_columns(), of.t().by_columns(), conj[k]) {
                (true, _, false) => (PLAIN, of.lead()),
                (_, true, false) => (TRANSPOSED, of.t().lead()),
                (_, true, true) => (ADJOINT, of.t().lead()),
                (true, _, true) => {
                    return refuse("BLAS has no product with the conjugate of such a matrix");
                }
                _ => return refuse("BLAS knows matrices by rows and by columns only"),
            };
        }
        if [&left, &right, &y].into_iter().any(|of| of.apart < 0) {
            return refuse("the matrices of the batch lie backwards");
        }
        let (alpha, beta) = (from_ref(alpha.bytes()).cast(), from_ref(beta.bytes()).cast());
        let [left_at, right_at, y_at] = [&left, &right, &y].map(|of| of.address(*dtype));
        let compute = COMPUTE[usize::from(dtype.needs_f64())];
        // CUDA_R_32F and the like.
        let dtype = match dtype {
            Dtype::F32 => 0,
            Dtype::F64 => 1,
            Dtype::F16 => 2,
            Dtype::C32 => 4,
            Dtype::C64 => 5,
            Dtype::Bf16 => 14,
        };
        let (rows, columns, terms) = (y.dim.0 as i64, y.dim.1 as i64, left.dim.1 as i64);
        let name = "cublasGemmStridedBatchedEx_64";
        // SAFETY: as in `gemv`.
        let code = unsafe {
            let f = symbol::<GemmBatched>(&self.library, &self.gpu, name)?;
            f(
                self.handle,
                operations[0],
                operations[1],
                rows,
                columns,
                terms,
                alpha,
                left_at,
                dtype,
                leads[0],
                left.apart,
                right_at,
                dtype,
                leads[1],
                right.apart,
                beta,
                y_at,
                dtype,
                y.lead(),
                y.apart,
                y.count,
                compute,
                BEST,
            )
        };
        check(&self.gpu, "cublasGemmStridedBatchedEx", code)
    }
}

/// Matrices at fixed distances, as BLAS asks for them.
#[derive(Clone, Copy)]
struct Matrices<'a> {
    block: &'a Block,
    first: usize,
    /// How many, and elements from one to the next.
    count: i64,
    apart: i64,
    /// Rows and columns, and elements from one row, and column, to the next.
    dim: (usize, usize),
    strides: (isize, isize),
}

impl<'a> Matrices<'a> {
    fn of(operand: &Operand<'a>) -> Self {
        let Operand { block, first, dim: [count, rows, columns], strides: [apart, rs, cs] } =
            *operand;
        let apart = if count > 1 { apart as i64 } else { 0 };
        let (dim, strides) = ((rows, columns), (rs, cs));
        Matrices { block, first, count: count as i64, apart, dim, strides }
    }

    /// The transposes.
    fn t(self) -> Self {
        let ((rows, columns), (rs, cs)) = (self.dim, self.strides);
        Matrices { dim: (columns, rows), strides: (cs, rs), ..self }
    }

    /// Whether BLAS can take them by columns. The stride of an axis of one element says nothing.
    fn by_columns(&self) -> bool {
        (self.dim.0 <= 1 || self.strides.0 == 1) && self.lead() >= self.dim.0.max(1) as i64
    }

    /// The leading dimension.
    fn lead(&self) -> i64 {
        if self.dim.1 <= 1 { self.dim.0.max(1) as i64 } else { self.strides.1 as i64 }
    }

    fn address(&self, dtype: Dtype) -> u64 {
        self.block.at + (self.first * dtype.bytes()) as u64
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        let (library, gpu, workspace) =
            (self.library.clone(), self.gpu.clone(), self.workspace.take());
        Retired { library, handle: self.handle, gpu, workspace }.destroy();
    }
}

/// Records under way in this process, and handles that wait for their end.
static RECORDS: Mutex<(usize, Vec<Retired>)> = Mutex::new((0, Vec::new()));

/// A time in which a stream of this process records.
///
/// To destroy a handle cuBLAS waits for its whole context, which spoils the record of any stream of it, of other threads
/// and devices too.
#[derive(Debug)]
pub(super) struct UnderWay(());

impl UnderWay {
    pub(super) fn begin() -> UnderWay {
        lock(&RECORDS).0 += 1;
        UnderWay(())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&RECORDS).0 -= 1;
    }
}

/// A handle that nobody uses.
#[derive(Debug)]
struct Retired {
    library: Arc<Library>,
    handle: Handle,
    gpu: Arc<Gpu>,
    workspace: Option<Block>,
}

// SAFETY: as of `Cublas`.
unsafe impl Send for Retired {}

impl Retired {
    /// Destroys the handle, or keeps it while a stream records.
    fn destroy(self) {
        if self.gpu.here().is_err() {
            // To unload it calls the driver.
            std::mem::forget(self.library);
            return;
        }
        let gpu = self.gpu.clone();
        let done = gpu.enter().and_then(|_guard| {
            let mut records = lock(&RECORDS);
            if records.0 > 0 {
                records.1.push(self);
                return Ok(());
            }
            let Retired { library, handle, workspace, .. } = self;
            // SAFETY: made by cublasCreate, and destroyed once.
            let done = unsafe {
                type Destroy = unsafe extern "C" fn(Handle) -> c_int;
                symbol::<Destroy>(&library, &gpu, "cublasDestroy_v2")
                    .and_then(|destroy| check(&gpu, "cublasDestroy", destroy(handle)))
            };
            // It may be unloaded, which calls the driver, too.
            drop(library);
            drop(records);
            drop(workspace);
            done
        });
        if let Err(e) = done {
            log::warn!("{e}");
        }
    }

    /// Destroys those that were kept.
    fn destroy_all() {
        let mut records = lock(&RECORDS);
        let retired = match records.0 {
            0 => std::mem::take(&mut records.1),
            _ => return,
        };
        drop(records);
        retired.into_iter().for_each(Retired::destroy);
    }
}

/// Of the first element.
fn address(operand: &Operand<'_>, dtype: Dtype) -> u64 {
    operand.block.at + (operand.first * dtype.bytes()) as u64
}

/// Of a vector as BLAS counts: the element with the lowest address, also where the step is
/// negative.
fn vector(operand: &Operand<'_>, dtype: Dtype) -> u64 {
    let back = (operand.dim[1].max(1) - 1) as i64 * (operand.strides[1] as i64).min(0);
    address(operand, dtype).wrapping_add_signed(back * dtype.bytes() as i64)
}

/// # Safety
/// `F` must be the symbol's type.
unsafe fn symbol<F: Copy>(library: &Library, gpu: &Gpu, name: &'static str) -> Result<F> {
    // SAFETY: by the caller.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|s| *s).map_err(|_| Error::Device {
        device: gpu.id().into(),
        call: name,
        reason: "this cuBLAS is too old: it has no such function".into(),
    })
}

fn check(gpu: &Gpu, call: &'static str, code: c_int) -> Result<()> {
    let words = match code {
        0 => return Ok(()),
        1 => "not initialised",
        3 => "out of memory",
        7 => "a value is not valid",
        8 => "the GPU does not have what it needs",
        13 => "the launch failed",
        14 => "an internal error",
        15 => "not supported",
        _ => "refused",
    };
    let reason = format!("{words} (cuBLAS status {code})");
    Err(Error::Device { device: gpu.id().into(), call, reason })
}

/// The loader's names of cuBLAS, for a driver of this major version first.
fn library_names(major: i32) -> Vec<String> {
    let mut majors = vec![major];
    majors.extend((12..=13).rev().filter(|m| *m != major));
    let name = |m| match cfg!(windows) {
        true => format!("cublas64_{m}.dll"),
        false => format!("libcublas.so.{m}"),
    };
    majors.into_iter().map(name).collect()
}
