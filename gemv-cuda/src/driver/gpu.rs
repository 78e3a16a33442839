//! A GPU, opened: memory, launches, time.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, result};
use cudarc::nvrtc::Ptx;
use gemv_core::{Accumulator, Element, Error, Result};
use gemv_gpu::Launch as Planned;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use super::nvrtc::{Image, refused_ptx};
use super::probe::{LIBRARY, probe};
use crate::lock::lock;

/// A GPU's primary context (shared with other libraries, never reset) and one stream of ours.
#[derive(Debug)]
pub(crate) struct Gpu {
    id: String,
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    /// Bytes of shared memory that a block may have without and with asking.
    shared: (u32, u32),
    max_group: u32,
    /// `cuLaunchKernelEx`, where the driver can record what it queues.
    launch_ex: Option<LaunchEx>,
    /// Held by whoever queues work, and by [`Gpu::timed`] while it records, so that nothing of
    /// another thread gets into the record.
    queue: ReentrantMutex<()>,
    /// Whether launches are recorded in place of being run: memory cannot be had then, nor copied to or
    /// from the host.
    pub(super) recording: AtomicBool,
    /// What becomes of the launches while they are recorded.
    pub(super) tape: Mutex<Tape>,
}

/// A block of device memory.
#[derive(Debug)]
pub(crate) struct Block {
    memory: Arc<Allocation>,
    pub(super) at: sys::CUdeviceptr,
    bytes: usize,
}

/// Memory that a block has, and a record of work on it. Freed in the order of the stream, so that work
/// in flight may use it.
#[derive(Debug)]
struct Allocation {
    gpu: Arc<Gpu>,
    at: sys::CUdeviceptr,
}

/// A loaded entry point.
#[derive(Debug)]
pub(crate) struct Function {
    pub(super) inner: CudaFunction,
    name: String,
    /// Whether it was compiled for an architecture on which a launch can wait by itself.
    pdl_waits: bool,
}

/// A launch whose grid the driver takes.
#[derive(Debug)]
pub(crate) struct Launch {
    function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    /// Whether the driver may begin it before the launch ahead has ended.
    early: bool,
}

// cudarc has this function's types with the newer of the CUDA versions that it can be built for alone.
type LaunchEx = unsafe extern "C" fn(
    *const LaunchConfig,
    sys::CUfunction,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CUresult;

/// `CUlaunchConfig` of cuda.h, whose layout is the same in every version that has it.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: sys::CUstream,
    attributes: *const LaunchAttribute,
    count: u32,
}

/// `CUlaunchAttribute` of cuda.h: a name, and a value in a union of 64 bytes.
#[repr(C, align(8))]
struct LaunchAttribute {
    id: u32,
    pad: u32,
    value: [u32; 16],
}

impl LaunchAttribute {
    /// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, set to 1.
    const EARLY: LaunchAttribute = {
        let mut value = [0; 16];
        value[0] = 1;
        LaunchAttribute { id: 6, pad: 0, value }
    };
}

/// The first driver that can record launches that begin early (CUDA 12.3).
const RECORDS_EARLY: i32 = 12_030;

/// A matrix or vector in a block: element (i, j) lies at `first + i * strides.0 + j * strides.1`,
/// in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) block: &'a Block,
    pub(crate) first: usize,
    pub(crate) dim: (usize, usize),
    pub(crate) strides: (isize, isize),
}

impl Operand<'_> {
    /// Whether every element lies in the block.
    fn inside(&self, element: usize) -> bool {
        if self.dim.0 == 0 || self.dim.1 == 0 {
            return true;
        }
        // i128: no product of two 64-bit values overflows it.
        let (mut lo, mut hi) = (self.first as i128, self.first as i128);
        for (len, stride) in [(self.dim.0, self.strides.0), (self.dim.1, self.strides.1)] {
            let far = (len as i128 - 1) * stride as i128;
            lo += far.min(0);
            hi += far.max(0);
        }
        lo >= 0 && (hi + 1) * element as i128 <= self.block.bytes as i128
    }
}

/// A batch of matrices in a block: element (b, i, j) lies at `first` and the sum of the indices times
/// the strides, in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batched<'a> {
    pub(crate) block: &'a Block,
    pub(crate) first: usize,
    pub(crate) dim: [usize; 3],
    pub(crate) strides: [isize; 3],
}

impl<'a> Batched<'a> {
    /// Entry b as a matrix, from column `column` on, of `columns` columns.
    pub(crate) fn entry(&self, b: usize, column: usize, columns: usize) -> Operand<'a> {
        let [batch, row, col] = self.strides;
        let at = b as isize * batch + column as isize * col;
        Operand {
            block: self.block,
            first: self.first.wrapping_add_signed(at),
            dim: (self.dim[1], columns),
            strides: (row, col),
        }
    }

    /// Whether every element lies in the block.
    fn inside(&self, element: usize) -> bool {
        if self.dim[0] == 0 {
            return true;
        }
        let ends = [0, self.dim[0] - 1].map(|b| self.entry(b, 0, self.dim[2]));
        // An offset that wraps round is beyond any block.
        let far = (self.dim[0] as i128 - 1) * self.strides[0] as i128 + self.first as i128;
        far == ends[1].first as i128 && ends.iter().all(|end| end.inside(element))
    }
}

/// What a launch of a kernel of the signature `Gemm` is given; see `gemv_gpu`. X and Y have elements of
/// `T`.
pub(crate) struct GemmArguments<'a, T: Element> {
    /// Bytes of an element of A.
    pub(crate) element: usize,
    pub(crate) a: Batched<'a>,
    pub(crate) x: Batched<'a>,
    pub(crate) y: Batched<'a>,
    pub(crate) alpha: T::Acc,
    pub(crate) beta: T::Acc,
    pub(crate) conj: bool,
    pub(crate) workspace: &'a Block,
    pub(crate) counters: &'a Block,
}

impl<T: Element> GemmArguments<'_, T> {
    /// # Panics
    /// If an operand does not lie in its block, or its shape is another.
    pub(super) fn check(&self) {
        let GemmArguments { element, a, x, y, .. } = self;
        let size = size_of::<T>();
        for (name, operand, size) in [("A", a, *element), ("X", x, size), ("Y", y, size)] {
            assert!(operand.inside(size), "{name} does not lie in its block");
        }
        let ([batch, m, n], rhs) = (a.dim, x.dim[2]);
        let shapes = x.dim == [batch, n, rhs] && y.dim == [batch, m, rhs];
        assert!(shapes, "operands of shapes that do not fit");
    }
}

/// What a launch of an elementwise step is given; see `vector.k` of gemv_gpu for the signature.
pub(crate) struct VectorArguments<'a, T: Element> {
    pub(crate) x: Option<Batched<'a>>,
    pub(crate) z: Option<Batched<'a>>,
    pub(crate) y: Batched<'a>,
    /// Where the factor's number is, or its numerator.
    pub(crate) s: Option<Batched<'a>>,
    /// Where its denominator is.
    pub(crate) t: Option<Batched<'a>>,
    pub(crate) alpha: T::Acc,
    pub(crate) negate: bool,
}

impl<T: Element> VectorArguments<'_, T> {
    /// # Panics
    /// If an operand does not lie in its block, or its shape is another.
    fn check(&self) {
        let VectorArguments { x, z, y, s, t, .. } = self;
        let operands = [("x", x), ("z", z), ("the factor", s), ("the denominator", t)];
        let given = operands.into_iter().filter_map(|(name, of)| Some((name, of.as_ref()?)));
        for (name, operand) in given.chain([("y", y)]) {
            assert!(operand.inside(size_of::<T>()), "{name} does not lie in its block");
        }
        assert!([x, z].into_iter().flatten().all(|of| of.dim == y.dim), "other shapes than y's");
        assert!([s, t].into_iter().flatten().all(|of| of.dim == [1; 3]), "a factor is one number");
    }
}

/// What a launch of any kernel is given; see `gemv_gpu` for the signature. x and y have elements of `T`.
pub(crate) struct Arguments<'a, T: Element> {
    /// Bytes of an element of A.
    pub(crate) element: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) a: Operand<'a>,
    pub(crate) x: Operand<'a>,
    pub(crate) y: Operand<'a>,
    pub(crate) alpha: T::Acc,
    pub(crate) beta: T::Acc,
    pub(crate) conj: bool,
    pub(crate) workspace: &'a Block,
    pub(crate) counters: &'a Block,
}

impl<T: Element> Arguments<'_, T> {
    /// # Panics
    /// If an operand does not lie in its block, or its shape is another.
    pub(super) fn check(&self) {
        let Arguments { element, m, n, a, x, y, .. } = self;
        let size = size_of::<T>();
        for (name, operand, size) in [("A", a, *element), ("x", x, size), ("y", y, size)] {
            assert!(operand.inside(size), "{name} does not lie in its block");
        }
        assert!(
            a.dim == (*m, *n) && x.dim == (*n, 1) && y.dim == (*m, 1),
            "operands of other shapes than {m} x {n}"
        );
    }
}

/// An accumulator value as a kernel takes it: float, double, float2 or double2.
#[repr(C, align(16))]
pub(super) struct Scalar([u8; 16]);

impl Scalar {
    pub(super) fn new<T: Element>(value: T::Acc) -> Scalar {
        let (re, im) = value.parts();
        let mut out = [0; 16];
        if T::DTYPE.needs_f64() {
            out[..8].copy_from_slice(&re.to_ne_bytes());
            out[8..].copy_from_slice(&im.to_ne_bytes());
        } else {
            out[..4].copy_from_slice(&(re as f32).to_ne_bytes());
            out[4..8].copy_from_slice(&(im as f32).to_ne_bytes());
        }
        Scalar(out)
    }
}

/// What becomes of launches while they are recorded.
#[derive(Debug, Default)]
pub(super) struct Tape {
    pub(super) mode: Mode,
    /// Memory that was given up in the meantime.
    pub(super) freed: Vec<sys::CUdeviceptr>,
    /// Page-locked memory that was given up in the meantime: addresses.
    pub(super) freed_host: Vec<usize>,
}

#[derive(Debug, Default)]
pub(super) enum Mode {
    /// The stream has them, and nobody else: the record is short-lived.
    #[default]
    Stream,
    /// The stream has them, and they are kept with the memory that they work on.
    Keep(Vec<Taped>),
    /// They are compared with those of a record. Nothing is queued.
    Compare { with: Arc<[Taped]>, next: usize, same: bool },
}

/// One launch of a record, and what has to live as long.
#[derive(Debug)]
pub(super) struct Taped {
    function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: Vec<u8>,
    /// The addresses are among the arguments.
    _memory: Vec<Arc<Allocation>>,
}

impl Taped {
    fn is(&self, launch: &Launch, arguments: &[u8]) -> bool {
        self.function.handle() == launch.function.handle()
            && (self.grid, self.block, self.shared) == (launch.grid, launch.block, launch.shared)
            && self.arguments == arguments
    }
}

impl Gpu {
    /// Opens a GPU by its ordinal.
    pub(crate) fn open(ordinal: usize, id: &str) -> Result<Gpu> {
        let failed = |call| move |e: DriverError| device_error(id, call, e);
        let report = probe();
        let report = report.map_err(|reason| Error::DriverMissing { backend: "cuda", reason })?;
        let library = LIBRARY.get().expect("the driver was just found");
        // SAFETY: the type is the one that cuda.h declares for this symbol; the library stays loaded.
        let launch_ex = unsafe { library.get::<LaunchEx>(b"cuLaunchKernelEx") }.ok().map(|f| *f);
        let launch_ex = launch_ex.filter(|_| report.version >= RECORDS_EARLY);
        let context = CudaContext::new(ordinal).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: there is one stream, and blocks are freed in its order.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(failed("cuStreamCreate"))?;
        let attribute = |name| context.attribute(name).map_err(failed("cuDeviceGetAttribute"));
        use sys::CUdevice_attribute_enum::*;
        let plain = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)? as u32;
        let asked = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32;
        let max_group = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? as u32;
        let shared = (plain, asked.max(plain));
        let (queue, recording) = (ReentrantMutex::new(()), AtomicBool::new(false));
        let (id, tape) = (id.into(), Mutex::default());
        Ok(Gpu { id, context, stream, shared, max_group, launch_ex, queue, recording, tape })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Bytes of shared memory that a block may declare, and that a launch may ask for.
    pub(crate) fn shared(&self) -> (u32, u32) {
        self.shared
    }

    /// Most threads of a block.
    pub(crate) fn max_group(&self) -> u32 {
        self.max_group
    }

    /// Makes the context current on this thread, and keeps other threads from the stream while
    /// the guard lives. Whatever queues work needs it.
    pub(crate) fn enter(&self) -> Result<ReentrantMutexGuard<'_, ()>> {
        let guard = self.queue.lock();
        self.bind()?;
        Ok(guard)
    }

    /// Whether this thread is inside of [`enter`](Self::enter).
    pub(super) fn is_entered(&self) -> bool {
        self.queue.is_owned_by_current_thread()
    }

    pub(super) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|e| self.failed("cuCtxSetCurrent", e))
    }

    /// Waits for all work of this device's stream.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        let done = unsafe { result::stream::synchronize(self.stream.cu_stream()) };
        done.map_err(|e| self.failed("cuStreamSynchronize", e))
    }

    /// Whether launches are recorded in place of being run.
    pub(crate) fn recording(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
    }

    /// Refuses what cannot be recorded.
    pub(crate) fn refuse_while_recording(&self, call: &'static str) -> Result<()> {
        if self.recording() {
            let reason = "it cannot be recorded, as launches are".into();
            return Err(Error::Device { device: self.id.clone(), call, reason });
        }
        Ok(())
    }

    /// The bytes of so many elements of `size` bytes each.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], where they are more than can be addressed.
    pub(crate) fn size_of(&self, count: u64, size: usize) -> Result<usize> {
        let bytes = usize::try_from(count).ok().and_then(|c| c.checked_mul(size));
        bytes.ok_or_else(|| Error::OutOfMemory {
            device: self.id.clone(),
            asked: u64::MAX,
            free: None,
        })
    }

    /// A new block of at least this many bytes, uninitialised.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Block> {
        // A kernel may be handed a block of nothing: it gets an address all the same. And it may
        // read the vector of 16 bytes that an element lies in, or of 32 where x has a wider type than A.
        let size = bytes.max(1).checked_next_multiple_of(32).unwrap_or(usize::MAX);
        // It would belong to the record and end with it.
        self.refuse_while_recording("cuMemAlloc")?;
        // SAFETY: the block is used on this stream only and freed once, by `Block`.
        let at = unsafe {
            if self.context.has_async_alloc() {
                result::malloc_async(self.stream.cu_stream(), size)
            } else {
                result::malloc_sync(size)
            }
        };
        match at {
            Ok(at) => {
                let memory = Arc::new(Allocation { gpu: self.clone(), at });
                Ok(Block { memory, at, bytes: size })
            }
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Err(Error::OutOfMemory {
                device: self.id.clone(),
                asked: size as u64,
                free: result::mem_get_info().ok().map(|(free, _)| free as u64),
            }),
            Err(e) => Err(self.failed("cuMemAlloc", e)),
        }
    }

    /// Frees what was allocated, after the work that is queued.
    pub(super) fn free(&self, at: sys::CUdeviceptr) -> Result<()> {
        // SAFETY: allocated by the matching function; the one owner, an `Allocation`, frees it once.
        let freed = unsafe {
            if self.context.has_async_alloc() {
                result::free_async(at, self.stream.cu_stream())
            } else {
                // Waits for the work that may use it.
                result::free_sync(at)
            }
        };
        freed.map_err(|e| self.failed("cuMemFree", e))
    }

    /// Fills a block with zero bytes.
    pub(crate) fn clear(&self, block: &Block) -> Result<()> {
        // SAFETY: the block has this many bytes.
        unsafe { result::memset_d8_async(block.at, 0, block.bytes, self.stream.cu_stream()) }
            .map_err(|e| self.failed("cuMemsetD8Async", e))
    }

    /// Copies elements from a block to host memory, and waits for all work before it.
    ///
    /// # Panics
    /// If they do not lie in the block.
    pub(crate) fn read<T: Element>(&self, block: &Block, first: usize, to: &mut [T]) -> Result<()> {
        let size = size_of::<T>();
        let end = first.checked_add(to.len()).and_then(|e| e.checked_mul(size));
        assert!(end.is_some_and(|e| e <= block.bytes), "a copy from outside of a block");
        self.refuse_while_recording("cuMemcpyDtoHAsync")?;
        // SAFETY: the source lies in the block; the destination is `to`, which is borrowed until
        // the copy is over.
        let copied = unsafe {
            let at = block.at + (first * size) as u64;
            result::memcpy_dtoh_async(bytes_mut(to), at, self.stream.cu_stream())
        };
        // Also after a refusal: the copy may have been queued.
        let waited = self.synchronize();
        copied.map_err(|e| self.failed("cuMemcpyDtoHAsync", e))?;
        waited
    }

    /// Loads entry points by name from a compiled program. Takes no lock of the queue: a thread that
    /// holds it may be waiting for this very kernel.
    pub(crate) fn load<'n>(
        &self,
        image: &Image,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Vec<Function>> {
        self.bind()?;
        // A driver that loads lazily compiles PTX when a function is asked for.
        let failed = |call, e: DriverError| match refused_ptx(e.0) {
            Some(why) if image.is_ptx() => {
                let (device, reason) = (self.id.clone(), why.into());
                Error::Device { device, call: "cuModuleLoadData", reason }
            }
            _ => self.failed(call, e),
        };
        let module = self
            .context
            .load_module(Ptx::from_binary(image.bytes().to_vec()))
            .map_err(|e| failed("cuModuleLoadData", e))?;
        names
            .map(|name| {
                let inner =
                    module.load_function(name).map_err(|e| failed("cuModuleGetFunction", e))?;
                if self.shared.1 > self.shared.0 {
                    // Lets a launch ask for more shared memory than the default allows; kernels
                    // that declare theirs are unchanged.
                    use sys::CUfunction_attribute_enum::*;
                    let room = self.shared.1 as i32
                        - inner
                            .get_attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
                            .map_err(|e| self.failed("cuFuncGetAttribute", e))?;
                    inner
                        .set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, room)
                        .map_err(|e| self.failed("cuFuncSetAttribute", e))?;
                }
                use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PTX_VERSION;
                let ptx = inner.get_attribute(CU_FUNC_ATTRIBUTE_PTX_VERSION);
                let pdl_waits = ptx.is_ok_and(|version| version >= 90);
                Ok(Function { inner, name: name.into(), pdl_waits })
            })
            .collect()
    }

    /// A planned launch of this function.
    ///
    /// # Errors
    /// If its grid is more than the driver takes.
    pub(crate) fn launch_of(&self, function: Arc<Function>, planned: &Planned) -> Result<Launch> {
        let grid = planned.grid.map(|g| u32::try_from(g).unwrap_or(u32::MAX));
        // Beyond these the driver says no more than "invalid value".
        if grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
            return Err(Error::Device {
                device: self.id.clone(),
                call: "cuLaunchKernel",
                reason: format!("{} asks for a grid of {:?} blocks", function.name, planned.grid),
            });
        }
        let early = planned.pdl_wait && function.pdl_waits;
        Ok(Launch { function, grid, block: planned.block, shared: planned.shared, early })
    }

    /// Queues one launch.
    ///
    /// # Panics
    /// If an operand does not lie in its block, or the scratch blocks are smaller than the bytes of
    /// workspace and counters in `scratch`.
    pub(crate) fn launch<T: Element>(
        &self,
        launch: &Launch,
        arguments: &Arguments<'_, T>,
        scratch: (usize, usize),
    ) -> Result<()> {
        arguments.check();
        let Arguments { m, n, a, x, y, alpha, beta, conj, workspace, counters, .. } = arguments;
        assert!(
            scratch.0 <= workspace.bytes && scratch.1 <= counters.bytes,
            "scratch memory is too small"
        );
        let blocks = [a.block, x.block, y.block, *workspace, *counters];
        let (alpha, beta) = (Scalar::new::<T>(*alpha), Scalar::new::<T>(*beta));
        let (m, n, conj) = (*m as u64, *n as u64, u32::from(*conj));
        let [a0, x0, y0] = [a, x, y].map(|o| o.first as u64);
        let [rs, cs] = [a.strides.0 as i64, a.strides.1 as i64];
        let [incx, incy] = [x.strides.0 as i64, y.strides.0 as i64];
        let values = [
            at(&m),
            at(&n),
            at(&a.block.at),
            at(&a0),
            at(&rs),
            at(&cs),
            at(&x.block.at),
            at(&x0),
            at(&incx),
            at(&y.block.at),
            at(&y0),
            at(&incy),
            at(&alpha),
            at(&beta),
            at(&conj),
            at(&workspace.at),
            at(&counters.at),
        ];
        // SAFETY: these are the arguments of a kernel of the signature `Gemv`, which the caller's choice
        // has; operands and scratch memory were checked above.
        unsafe { self.queue_launch(launch, values, &blocks) }
    }

    /// Queues one launch of a kernel of the signature `Gemm`.
    ///
    /// # Panics
    /// As [`Gpu::launch`].
    pub(crate) fn launch_gemm<T: Element>(
        &self,
        launch: &Launch,
        arguments: &GemmArguments<'_, T>,
        scratch: (usize, usize),
    ) -> Result<()> {
        arguments.check();
        let GemmArguments { a, x, y, alpha, beta, conj, workspace, counters, .. } = arguments;
        assert!(
            scratch.0 <= workspace.bytes && scratch.1 <= counters.bytes,
            "scratch memory is too small"
        );
        let blocks = [a.block, x.block, y.block, *workspace, *counters];
        let (alpha, beta) = (Scalar::new::<T>(*alpha), Scalar::new::<T>(*beta));
        let [batch, m, n, rhs] = [a.dim[0], a.dim[1], a.dim[2], x.dim[2]].map(|d| d as u64);
        let conj = u32::from(*conj);
        let [a0, x0, y0] = [a, x, y].map(|o| o.first as u64);
        let [sa, sx, sy] = [a, x, y].map(|o| o.strides.map(|s| s as i64));
        let values = [
            at(&m),
            at(&n),
            at(&rhs),
            at(&batch),
            at(&a.block.at),
            at(&a0),
            at(&sa[1]),
            at(&sa[2]),
            at(&sa[0]),
            at(&x.block.at),
            at(&x0),
            at(&sx[1]),
            at(&sx[2]),
            at(&sx[0]),
            at(&y.block.at),
            at(&y0),
            at(&sy[1]),
            at(&sy[2]),
            at(&sy[0]),
            at(&alpha),
            at(&beta),
            at(&conj),
            at(&workspace.at),
            at(&counters.at),
        ];
        // SAFETY: these are the arguments of a kernel of the signature `Gemm`, which the caller's choice
        // has; operands and scratch memory were checked above.
        unsafe { self.queue_launch(launch, values, &blocks) }
    }

    /// Queues one elementwise step.
    ///
    /// # Panics
    /// If an operand does not lie in its block, or its shape is another.
    pub(crate) fn launch_vector<T: Element>(
        &self,
        launch: &Launch,
        arguments: &VectorArguments<'_, T>,
    ) -> Result<()> {
        arguments.check();
        let VectorArguments { x, z, y, s, t, alpha, negate } = arguments;
        let none = Batched { block: y.block, first: 0, dim: y.dim, strides: [0; 3] };
        let (x, z) = (x.unwrap_or(none), z.unwrap_or(none));
        let of = u32::from(s.is_some()) + u32::from(t.is_some());
        let (s, t) = (s.unwrap_or(none), t.unwrap_or(none));
        let blocks = [x.block, z.block, y.block, s.block, t.block];
        let [ni, nj, nk] = y.dim.map(|d| d as u64);
        let first = [x, z, *y, s, t].map(|o| o.first as u64);
        let [xs, zs, ys] = [x, z, *y].map(|o| o.strides.map(|s| s as i64));
        let (alpha, negate) = (Scalar::new::<T>(*alpha), u32::from(*negate));
        let values = [
            at(&ni),
            at(&nj),
            at(&nk),
            at(&x.block.at),
            at(&first[0]),
            at(&xs[0]),
            at(&xs[1]),
            at(&xs[2]),
            at(&z.block.at),
            at(&first[1]),
            at(&zs[0]),
            at(&zs[1]),
            at(&zs[2]),
            at(&y.block.at),
            at(&first[2]),
            at(&ys[0]),
            at(&ys[1]),
            at(&ys[2]),
            at(&s.block.at),
            at(&first[3]),
            at(&t.block.at),
            at(&first[4]),
            at(&alpha),
            at(&of),
            at(&negate),
        ];
        // SAFETY: these are the arguments of every entry point of `vector.k`, of which `launch` is one;
        // operands were checked above, and what is not given is not read.
        unsafe { self.queue_launch(launch, values, &blocks) }
    }

    /// Takes note of a launch while launches are recorded. Whether it is to be queued.
    ///
    /// # Safety
    /// The values are those of the launch's arguments, alive.
    unsafe fn taped(&self, launch: &Launch, values: &[Value], blocks: &[&Block]) -> bool {
        let mut tape = lock(&self.tape);
        if matches!(tape.mode, Mode::Stream) {
            return true;
        }
        let mut arguments = Vec::new();
        for value in values {
            // SAFETY: the caller's: the value is alive, and has as many initialised bytes.
            arguments.extend(unsafe {
                std::slice::from_raw_parts(value.at.cast::<u8>().cast_const(), value.bytes)
            });
        }
        match &mut tape.mode {
            Mode::Stream => true,
            Mode::Keep(all) => {
                all.push(Taped {
                    function: launch.function.clone(),
                    grid: launch.grid,
                    block: launch.block,
                    shared: launch.shared,
                    arguments,
                    _memory: blocks.iter().map(|block| block.memory().clone()).collect(),
                });
                true
            }
            Mode::Compare { with, next, same } => {
                *same &= with.get(*next).is_some_and(|taped| taped.is(launch, &arguments));
                *next += 1;
                false
            }
        }
    }

    /// Frees memory when the launches are no longer recorded.
    fn free_later(&self, at: sys::CUdeviceptr) {
        lock(&self.tape).freed.push(at);
    }

    /// The same for page-locked memory.
    pub(super) fn free_host_later(&self, at: *mut u8) {
        lock(&self.tape).freed_host.push(at as usize);
    }

    /// Refuses launches that no tape sees.
    pub(super) fn refuse_on_tape(&self, call: &'static str) -> Result<()> {
        match lock(&self.tape).mode {
            Mode::Stream => Ok(()),
            _ => self.refuse_while_recording(call),
        }
    }

    /// Queues a launch with pointers to its arguments' values, on these blocks. While launches are
    /// recorded, the tape has it.
    ///
    /// # Safety
    /// They are those of the kernel's signature (gemv_gpu); every operand lies in its block, and the
    /// scratch memory is what the kernel's plan asks for.
    unsafe fn queue_launch<const N: usize>(
        &self,
        launch: &Launch,
        values: [Value; N],
        blocks: &[&Block],
    ) -> Result<()> {
        // SAFETY: the caller's.
        if self.recording() && !unsafe { self.taped(launch, &values, blocks) } {
            return Ok(());
        }
        let mut values = values.map(|value| value.at);
        let function = launch.function.inner.cu_function();
        if let Some(queue) = self.launch_ex.filter(|_| launch.early) {
            // It may begin before the launch ahead has ended, for whose results it waits by itself
            // (CUDA C++ Programming Guide, "Programmatic Dependent Launch").
            let config = LaunchConfig {
                grid: launch.grid,
                block: launch.block,
                shared: launch.shared,
                stream: self.stream.cu_stream(),
                attributes: &LaunchAttribute::EARLY,
                count: 1,
            };
            // SAFETY: as below; and the kernel was compiled to wait.
            let code =
                unsafe { queue(&config, function, values.as_mut_ptr(), std::ptr::null_mut()) };
            return code.result().map_err(|e| self.failed("cuLaunchKernelEx", e));
        }
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        // SAFETY: the function lives as long as its module, which it owns. The caller gives the arguments
        // of its signature, and by its contract the kernel touches the elements of A, X and Y, and as
        // much scratch memory as its plan says. The driver copies the values before it returns.
        unsafe {
            result::launch_kernel(
                function,
                (gx, gy, gz),
                (bx, by, bz),
                launch.shared,
                self.stream.cu_stream(),
                &mut values,
            )
        }
        .map_err(|e| self.failed("cuLaunchKernel", e))
    }

    pub(super) fn failed(&self, call: &'static str, e: DriverError) -> Error {
        device_error(&self.id, call, e)
    }
}

/// A kernel's argument: where its value lies, and how many bytes it has, all of them initialised.
#[derive(Clone, Copy)]
struct Value {
    at: *mut c_void,
    bytes: usize,
}

/// A kernel's argument, as the driver takes it: a number without padding.
fn at<V>(value: &V) -> Value {
    Value { at: std::ptr::from_ref(value).cast_mut().cast(), bytes: size_of::<V>() }
}

fn device_error(id: &str, call: &'static str, e: DriverError) -> Error {
    // The number's name: to ask the driver for words could fail as well.
    Error::Device { device: id.into(), call, reason: format!("{:?}", e.0) }
}

impl Function {
    /// The driver's handle.
    fn handle(&self) -> usize {
        self.inner.cu_function() as usize
    }
}

impl Block {
    /// What keeps its memory.
    fn memory(&self) -> &Arc<Allocation> {
        &self.memory
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is a block of this GPU.
    pub(crate) fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.memory.gpu, gpu)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A thread may drop what it never used.
        let freed = self.gpu.enter().and_then(|_guard| match self.gpu.recording() {
            // Else the record would free it, each time.
            true => {
                self.gpu.free_later(self.at);
                Ok(())
            }
            false => self.gpu.free(self.at),
        });
        if let Err(e) = freed {
            log::warn!("{e}");
        }
    }
}

/// The bytes of elements, to be written.
pub(super) fn bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    let size = size_of_val(elements);
    // SAFETY: elements are floats or pairs of floats (the trait is sealed), without padding; any bits are a
    // value of one.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size) }
}
