//! The one file of this crate that calls foreign code: the loader, the driver and NVRTC.
//!
//! cudarc panics where a library or a symbol is missing, so both libraries are looked for here
//! first, with every symbol that is used. NVRTC is called through the handle that was found, so
//! that the library named by the user is the one that compiles. Everything that leaves this file
//! is safe: [`Gpu::launch`] checks that operands lie in their blocks, and a block is freed in the
//! order of the stream, after the work that uses it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaStream, DriverError, result};
use cudarc::nvrtc::Ptx;
use gemv_core::gpu::{Launch, Program};
use gemv_core::{Accumulator, Element, Error, Result};
use libloading::Library;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

/// The environment variable that names the NVRTC library, by its absolute path.
pub const NVRTC_ENV: &str = "GEMV_NVRTC";

// ---------------------------------------------------------------------------------------------
// Looking for the driver.

/// A GPU that the driver reports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) name: String,
    /// Compute capability, 90 for 9.0.
    pub(crate) capability: u32,
    pub(crate) memory: u64,
    pub(crate) units: u32,
}

/// What the driver reports: its version (13000 for 13.0) and the GPUs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Report {
    pub(crate) version: i32,
    pub(crate) gpus: Vec<Found>,
}

#[cfg(windows)]
const DRIVER_NAMES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const DRIVER_NAMES: &[&str] = &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];

/// What this file calls through cudarc, each of which would panic if it were missing.
const DRIVER_SYMBOLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocAsync",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
];

/// The driver's library, once its GPUs are known.
static LIBRARY: OnceLock<&'static Library> = OnceLock::new();

/// Looks for the driver and its GPUs, once a process; opens none.
///
/// Fails with a sentence that says what was looked for.
pub(crate) fn probe() -> Result<&'static Report, String> {
    static REPORT: OnceLock<Result<Report, String>> = OnceLock::new();
    REPORT.get_or_init(|| look(DRIVER_NAMES)).as_ref().map_err(Clone::clone)
}

fn look(names: &[&str]) -> Result<Report, String> {
    // SAFETY: loading the driver's library runs its initialisers, which is what any program that
    // uses the driver does.
    let library = names.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
    let Some(library) = library else {
        return Err(format!("the driver's library was not found (looked for {})", or(names)));
    };
    // Stays loaded: cudarc finds it by name later on, and the driver does not like to be unloaded.
    let library: &'static Library = Box::leak(Box::new(library));
    for name in DRIVER_SYMBOLS {
        // SAFETY: the symbol is only looked for, never called by this type.
        if unsafe { library.get::<*const c_void>(name.as_bytes()) }.is_err() {
            return Err(format!("the driver is too old: its library has no {name}"));
        }
    }
    /// Calls a function of the driver: (name: types)(arguments).
    macro_rules! call {
        ($name:ident: $($t:ty),*; $($arg:expr),*) => {{
            let name = stringify!($name);
            // SAFETY: the type is the one that cuda.h declares for this symbol.
            let f = unsafe {
                library.get::<unsafe extern "C" fn($($t),*) -> c_int>(name.as_bytes())
            };
            let f = f.map_err(|_| format!("the driver is too old: its library has no {name}"))?;
            // SAFETY: pointers among the arguments are to locals of the types declared, or to a
            // buffer whose length is passed along.
            match unsafe { f($($arg),*) } {
                0 => {}
                code => return Err(format!("{name} of the driver failed: {}", explain(code))),
            }
        }};
    }
    let (mut version, mut count) = (0, 0);
    call!(cuInit: u32; 0);
    call!(cuDriverGetVersion: *mut c_int; &mut version);
    call!(cuDeviceGetCount: *mut c_int; &mut count);
    let mut gpus = Vec::new();
    for ordinal in 0..count {
        let (mut device, mut memory, mut name) = (0, 0usize, [0u8; 256]);
        call!(cuDeviceGet: *mut c_int, c_int; &mut device, ordinal);
        call!(cuDeviceGetName: *mut u8, c_int, c_int; name.as_mut_ptr(), 255, device);
        call!(cuDeviceTotalMem_v2: *mut usize, c_int; &mut memory, device);
        let [major, minor, units] = {
            use sys::CUdevice_attribute_enum::*;
            let mut values = [0; 3];
            let names = [
                CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            ];
            for (value, name) in values.iter_mut().zip(names) {
                call!(cuDeviceGetAttribute: *mut c_int, c_int, c_int; value, name as c_int, device);
            }
            values
        };
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        gpus.push(Found {
            name: name.to_string_lossy().into_owned(),
            capability: (major * 10 + minor) as u32,
            memory: memory as u64,
            units: units as u32,
        });
    }
    if gpus.is_empty() {
        return Err("the driver is there but reports no GPU".into());
    }
    let _ = LIBRARY.set(library);
    Ok(Report { version, gpus })
}

/// The results of the driver's first calls, in words.
fn explain(code: c_int) -> String {
    let words = match code {
        34 => "the library found is the stub that the toolkit links against, not a driver",
        100 => "there is no NVIDIA GPU, or this process may not use it",
        101 => "the device is not valid",
        802 => "the system is not yet initialised",
        803 => "the library and the kernel's module are of different versions",
        804 => "the GPU does not support the compatibility libraries that were found",
        999 => "the kernel's module does not answer",
        _ => return format!("error {code}"),
    };
    format!("{words} (error {code})")
}

/// `a, b or c`.
fn or<T: AsRef<str>>(names: &[T]) -> String {
    match names {
        [] => String::new(),
        [one] => one.as_ref().into(),
        [rest @ .., last] => {
            let rest: Vec<&str> = rest.iter().map(AsRef::as_ref).collect();
            format!("{} or {}", rest.join(", "), last.as_ref())
        }
    }
}

// ---------------------------------------------------------------------------------------------
// NVRTC.

/// A compiled program: a CUBIN, or PTX with its final NUL.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    bytes: Vec<u8>,
}

impl Image {
    pub(crate) fn new(bytes: Vec<u8>) -> Image {
        Image { bytes }
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes)", self.bytes.len())
    }
}

type Handle = *mut c_void;

/// NVRTC, loaded: the compiler of CUDA C++ that NVIDIA ships as a library.
#[derive(Debug)]
pub struct Nvrtc {
    library: Library,
    path: String,
    version: (i32, i32),
    /// Compute capabilities that it can compile for, ascending.
    archs: Vec<u32>,
}

impl Nvrtc {
    /// Looks for NVRTC: the library that `GEMV_NVRTC` names and no other; else the names under
    /// which the loader knows it, of the driver's major version first; else below `CUDA_HOME`,
    /// `CUDA_PATH` and the toolkit's usual directory.
    ///
    /// # Errors
    /// [`Error::DriverMissing`], with what was looked for.
    pub fn find() -> Result<Nvrtc> {
        let missing = |reason| Error::DriverMissing { backend: "cuda", reason };
        if let Some(path) = std::env::var_os(NVRTC_ENV).filter(|p| !p.is_empty()) {
            let path = PathBuf::from(path);
            return Nvrtc::load(&path).map_err(|why| {
                missing(format!("NVRTC was not found where {NVRTC_ENV} says: {why}"))
            });
        }
        // A CUBIN of a compiler newer than the driver may not load.
        let major = probe().map_or(13, |r| r.version / 1000);
        let mut names = library_names(major);
        let roots = [std::env::var_os("CUDA_HOME"), std::env::var_os("CUDA_PATH")];
        let mut roots: Vec<PathBuf> =
            roots.into_iter().flatten().filter(|p| !p.is_empty()).map(PathBuf::from).collect();
        if cfg!(unix) {
            roots.push("/usr/local/cuda".into());
        }
        let folders: &[&str] = if cfg!(windows) { &["bin", "bin/x64"] } else { &["lib64", "lib"] };
        let plain = names.clone();
        for root in roots {
            for folder in folders {
                names.extend(
                    plain.iter().map(|n| root.join(folder).join(n).to_string_lossy().into_owned()),
                );
            }
        }
        for name in &names {
            match Nvrtc::load(Path::new(name)) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(why) => log::debug!("NVRTC: {why}"),
            }
        }
        Err(missing(format!(
            "NVRTC, which compiles the kernels, was not found (looked for {}, then in CUDA_HOME, \
             CUDA_PATH and the toolkit's directory; {NVRTC_ENV} can name it)",
            or(&plain)
        )))
    }

    /// Loads NVRTC from this file, or by this name.
    ///
    /// # Errors
    /// A sentence with the loader's reason.
    pub fn load(path: &Path) -> Result<Nvrtc, String> {
        // SAFETY: NVRTC's initialisers have no preconditions.
        let library = unsafe { Library::new(path) }.map_err(|e| loader(path, &e))?;
        let path = path.display().to_string();
        let mut nvrtc = Nvrtc { library, path, version: (0, 0), archs: Vec::new() };
        // SAFETY: the types are those that nvrtc.h declares; the pointers are to locals, and the
        // list has the length that the call before it reported.
        unsafe {
            let (mut major, mut minor, mut count) = (0, 0, 0);
            nvrtc.call2("nvrtcVersion", &mut major, &mut minor)?;
            nvrtc.version = (major, minor);
            nvrtc.call1("nvrtcGetNumSupportedArchs", &mut count)?;
            let mut archs = vec![0 as c_int; count.max(0) as usize];
            nvrtc.call1("nvrtcGetSupportedArchs", archs.as_mut_ptr())?;
            nvrtc.archs = archs.into_iter().map(|a| a as u32).collect();
            nvrtc.archs.sort_unstable();
        }
        Ok(nvrtc)
    }

    /// Its version, such as (13, 0).
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Where it was found.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The compute capabilities that it compiles for, such as 90, ascending.
    pub fn archs(&self) -> &[u32] {
        &self.archs
    }

    /// What to compile for a GPU of this compute capability: its own machine code (`sm_90`), or
    /// the newest PTX that it can run (`compute_90`), which the driver compiles on.
    pub fn target(&self, capability: u32) -> String {
        match self.archs.iter().rev().find(|a| **a <= capability) {
            Some(arch) if *arch < capability => format!("compute_{arch}"),
            _ => format!("sm_{capability}"),
        }
    }

    /// Compiles a program and returns the image with the compiler's log. The options come first,
    /// then the program's defines.
    ///
    /// # Errors
    /// The log.
    pub fn compile(
        &self,
        program: &Program,
        options: &[String],
    ) -> Result<(Image, String), String> {
        let c = |text: &str| CString::new(text).map_err(|_| "a NUL in the program".to_string());
        let (source, name) = (c(&program.source)?, c("gemv.cu")?);
        let defines = program.defines.iter().map(|(k, v)| format!("-D{k}={v}"));
        let options: Vec<CString> =
            options.iter().cloned().chain(defines).map(|o| c(&o)).collect::<Result<_, _>>()?;
        let ptx = options.iter().any(|o| o.to_bytes().starts_with(b"--gpu-architecture=compute_"));
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

        /// Destroys the program on every way out.
        struct Guard<'a>(&'a Nvrtc, Handle);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                // SAFETY: the handle came from nvrtcCreateProgram and is destroyed once.
                let _ = unsafe { self.0.call1("nvrtcDestroyProgram", &mut self.1) };
            }
        }

        type Create = unsafe extern "C" fn(
            *mut Handle,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the types are those that nvrtc.h declares; the texts outlive the program, and
        // there are no headers.
        unsafe {
            let create = self.symbol::<Create>("nvrtcCreateProgram")?;
            let none = std::ptr::null();
            let code = create(&mut handle, source.as_ptr(), name.as_ptr(), 0, none, none);
            self.check("nvrtcCreateProgram", code)?;
        }
        let guard = Guard(self, handle);
        // SAFETY: as above; the option texts live in `options` and there are as many as said.
        let outcome = unsafe {
            let compile = self.symbol::<Compile>("nvrtcCompileProgram")?;
            let code = compile(handle, pointers.len() as c_int, pointers.as_ptr());
            self.check("nvrtcCompileProgram", code)
        };
        let log = self.text(&guard.1, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
        let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(&log[..end]).trim().to_string();
        if let Err(why) = outcome {
            return Err(if log.is_empty() { why } else { log });
        }
        let bytes = if ptx {
            self.text(&guard.1, "nvrtcGetPTXSize", "nvrtcGetPTX")?
        } else {
            self.text(&guard.1, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")?
        };
        Ok((Image::new(bytes), log))
    }

    /// One of the outputs of a program.
    fn text(&self, program: &Handle, size: &str, get: &str) -> Result<Vec<u8>, String> {
        let mut len = 0usize;
        // SAFETY: every pair of these functions has these types; the buffer has the size that the
        // first reports.
        unsafe {
            self.call2(size, *program, &mut len as *mut usize)?;
            let mut bytes = vec![0u8; len];
            self.call2(get, *program, bytes.as_mut_ptr())?;
            Ok(bytes)
        }
    }

    /// # Safety
    /// `F` must be the symbol's type.
    unsafe fn symbol<F: Copy>(&self, name: &str) -> Result<F, String> {
        // SAFETY: by the caller.
        let symbol = unsafe { self.library.get::<F>(name.as_bytes()) };
        symbol.map(|s| *s).map_err(|_| format!("{} is too old: it has no {name}", self.path))
    }

    /// # Safety
    /// The symbol must take one argument of this type and return an nvrtcResult.
    unsafe fn call1<A>(&self, name: &str, a: A) -> Result<(), String> {
        // SAFETY: by the caller.
        let code = unsafe { self.symbol::<unsafe extern "C" fn(A) -> c_int>(name)?(a) };
        self.check(name, code)
    }

    /// # Safety
    /// The symbol must take two arguments of these types and return an nvrtcResult.
    unsafe fn call2<A, B>(&self, name: &str, a: A, b: B) -> Result<(), String> {
        // SAFETY: by the caller.
        let code = unsafe { self.symbol::<unsafe extern "C" fn(A, B) -> c_int>(name)?(a, b) };
        self.check(name, code)
    }

    fn check(&self, name: &str, code: c_int) -> Result<(), String> {
        if code == 0 { Ok(()) } else { Err(format!("{name} of {} failed: {code}", self.path)) }
    }
}

/// Why the loader refused, with the file's name, on one line.
fn loader(path: &Path, e: &dyn std::error::Error) -> String {
    let why = e.source().map_or_else(|| e.to_string(), |s| s.to_string());
    let why = why.replace('\n', " ");
    let path = path.display().to_string();
    if why.contains(&path) { why } else { format!("{path}: {why}") }
}

/// The loader's names of NVRTC, for a driver of this major version first.
fn library_names(major: i32) -> Vec<String> {
    let mut majors = vec![major];
    majors.extend((11..=13).rev().filter(|m| *m != major));
    let mut names: Vec<String> = majors
        .into_iter()
        .map(|m| match (cfg!(windows), m) {
            (true, 11) => "nvrtc64_112_0.dll".into(),
            (true, m) => format!("nvrtc64_{m}0_0.dll"),
            (false, 11) => "libnvrtc.so.11.2".into(),
            (false, m) => format!("libnvrtc.so.{m}"),
        })
        .collect();
    if cfg!(unix) {
        names.push("libnvrtc.so".into());
    }
    names
}

// ---------------------------------------------------------------------------------------------
// A GPU, opened.

/// A GPU's primary context (shared with other libraries, never reset) and one stream of ours.
#[derive(Debug)]
pub(crate) struct Gpu {
    id: String,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Bytes of shared memory that a block may have without and with asking.
    shared: (u32, u32),
    max_group: u32,
    /// Held by whoever queues work, and by [`Gpu::timed`] while it records, so that nothing of
    /// another thread gets into the record.
    turn: ReentrantMutex<()>,
    /// Whether the stream is recording: memory cannot be had then.
    recording: AtomicBool,
}

/// A block of device memory. Freed in the order of the stream, so that work under way may use it.
#[derive(Debug)]
pub(crate) struct Block {
    gpu: Arc<Gpu>,
    at: sys::CUdeviceptr,
    bytes: usize,
}

/// A loaded kernel.
#[derive(Debug)]
pub(crate) struct Function {
    inner: CudaFunction,
    name: String,
}

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

/// What a launch of any kernel is given; see `gemv_core::gpu` for the signature.
pub(crate) struct Arguments<'a, T: Element> {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) a: Operand<'a>,
    pub(crate) x: Operand<'a>,
    pub(crate) y: Operand<'a>,
    pub(crate) alpha: T::Acc,
    pub(crate) beta: T::Acc,
    pub(crate) conj: bool,
    pub(crate) work: &'a Block,
    pub(crate) counters: &'a Block,
}

/// An accumulator value as a kernel takes it: float, double, float2 or double2.
#[repr(C, align(16))]
struct Scalar([u8; 16]);

impl Scalar {
    fn new<T: Element>(value: T::Acc) -> Scalar {
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

impl Gpu {
    /// Opens a GPU by its ordinal.
    pub(crate) fn open(ordinal: usize, id: &str) -> Result<Gpu> {
        let failed = |call| move |e: DriverError| device_error(id, call, e);
        probe().map_err(|reason| Error::DriverMissing { backend: "cuda", reason })?;
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
        let (turn, recording) = (ReentrantMutex::new(()), AtomicBool::new(false));
        Ok(Gpu { id: id.into(), context, stream, shared, max_group, turn, recording })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Bytes of shared memory that a block may declare.
    pub(crate) fn shared(&self) -> u32 {
        self.shared.0
    }

    /// Most threads of a block.
    pub(crate) fn max_group(&self) -> u32 {
        self.max_group
    }

    /// Makes the context current on this thread, and keeps other threads from the stream while
    /// the guard lives. Whatever queues work needs it.
    pub(crate) fn enter(&self) -> Result<ReentrantMutexGuard<'_, ()>> {
        let turn = self.turn.lock();
        self.bind()?;
        Ok(turn)
    }

    fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|e| self.failed("cuCtxSetCurrent", e))
    }

    /// The device's time for what `work` queues on the stream, from a replayed record: launches
    /// then follow each other without the host. Where it cannot be recorded, the host's clock.
    pub(crate) fn timed(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let _turn = self.enter()?;
        self.synchronize()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.recording.store(true, Ordering::Relaxed);
        let begun = self.stream.begin_capture(mode);
        let queued = if begun.is_ok() { work() } else { Ok(()) };
        let graph = match begun {
            Ok(()) => self.stream.end_capture(sys::CUgraphInstantiate_flags(0)),
            Err(e) => Err(e),
        };
        self.recording.store(false, Ordering::Relaxed);
        let (Ok(()), Ok(Some(graph))) = (queued, graph) else {
            self.synchronize()?;
            let start = Instant::now();
            work()?;
            self.synchronize()?;
            return Ok(start.elapsed());
        };
        let event = || {
            let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
            self.context.new_event(flags).map_err(|e| self.failed("cuEventCreate", e))
        };
        let (start, end) = (event()?, event()?);
        graph.upload().map_err(|e| self.failed("cuGraphUpload", e))?;
        self.synchronize()?;
        start.record(&self.stream).map_err(|e| self.failed("cuEventRecord", e))?;
        graph.launch().map_err(|e| self.failed("cuGraphLaunch", e))?;
        end.record(&self.stream).map_err(|e| self.failed("cuEventRecord", e))?;
        self.synchronize()?;
        self.elapsed(&start, &end)
    }

    /// Time between two events that have come.
    fn elapsed(&self, start: &CudaEvent, end: &CudaEvent) -> Result<Duration> {
        // cudarc calls the name that this function has in the newest drivers alone.
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
        let library = LIBRARY.get().expect("the driver was found before this GPU was opened");
        let mut milliseconds = 0.0;
        // SAFETY: the type is the one that cuda.h declares; both events were recorded on this
        // context's stream.
        let code = unsafe {
            let elapsed = library.get::<Elapsed>(b"cuEventElapsedTime").expect("looked for");
            elapsed(&mut milliseconds, start.cu_event(), end.cu_event())
        };
        code.result().map_err(|e| self.failed("cuEventElapsedTime", e))?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) * 1e-3))
    }

    /// Waits for all work of this device's stream.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        let done = unsafe { result::stream::synchronize(self.stream.cu_stream()) };
        done.map_err(|e| self.failed("cuStreamSynchronize", e))
    }

    /// A new block of at least this many bytes, uninitialised.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Block> {
        // A kernel may be handed a block of nothing: it gets an address all the same. And it may
        // read the vector of 16 bytes that an element lies in.
        let size = bytes.max(1).checked_next_multiple_of(16).unwrap_or(usize::MAX);
        if self.recording.load(Ordering::Relaxed) {
            // It would belong to the record and end with it.
            return Err(Error::Device {
                device: self.id.clone(),
                call: "cuMemAlloc",
                reason: "memory was asked for while work is recorded".into(),
            });
        }
        // SAFETY: the block is used on this stream only and freed once, by `Block`.
        let at = unsafe {
            if self.context.has_async_alloc() {
                result::malloc_async(self.stream.cu_stream(), size)
            } else {
                result::malloc_sync(size)
            }
        };
        match at {
            Ok(at) => Ok(Block { gpu: self.clone(), at, bytes: size }),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Err(Error::OutOfMemory {
                device: self.id.clone(),
                asked: size as u64,
                free: result::mem_get_info().ok().map(|(free, _)| free as u64),
            }),
            Err(e) => Err(self.failed("cuMemAlloc", e)),
        }
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

    /// Loads kernels by name from a compiled program. Waits for nobody's turn: a thread whose turn
    /// it is may be waiting for this very kernel.
    pub(crate) fn load<'n>(
        &self,
        image: &Image,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Vec<Function>> {
        self.bind()?;
        let module = self
            .context
            .load_module(Ptx::from_binary(image.bytes.clone()))
            .map_err(|e| self.failed("cuModuleLoadData", e))?;
        names
            .map(|name| {
                let inner = module
                    .load_function(name)
                    .map_err(|e| self.failed("cuModuleGetFunction", e))?;
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
                Ok(Function { inner, name: name.into() })
            })
            .collect()
    }

    /// Queues one launch.
    ///
    /// # Panics
    /// If an operand does not lie in its block, or the scratch blocks are smaller than `work`
    /// accumulator values and `counters` counters.
    pub(crate) fn launch<T: Element>(
        &self,
        function: &Function,
        launch: &Launch,
        arguments: &Arguments<'_, T>,
        scratch: (u64, u64),
    ) -> Result<()> {
        let Arguments { m, n, a, x, y, alpha, beta, conj, work, counters } = arguments;
        for (name, operand) in [("A", a), ("x", x), ("y", y)] {
            assert!(operand.inside(size_of::<T>()), "{name} does not lie in its block");
        }
        assert!(
            a.dim == (*m, *n) && x.dim == (*n, 1) && y.dim == (*m, 1),
            "operands of other shapes than {m} x {n}"
        );
        let needed = (scratch.0 as u128 * T::DTYPE.acc_bytes() as u128, scratch.1 as u128 * 4);
        assert!(
            needed.0 <= work.bytes as u128 && needed.1 <= counters.bytes as u128,
            "scratch memory is too small"
        );
        let grid = launch.grid.map(|g| u32::try_from(g).unwrap_or(u32::MAX));
        // Beyond these the driver says no more than "invalid value".
        if grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
            return Err(Error::Device {
                device: self.id.clone(),
                call: "cuLaunchKernel",
                reason: format!("{} asks for a grid of {:?} blocks", function.name, launch.grid),
            });
        }
        let (alpha, beta) = (Scalar::new::<T>(*alpha), Scalar::new::<T>(*beta));
        let (m, n, conj) = (*m as u64, *n as u64, u32::from(*conj));
        let [a0, x0, y0] = [a, x, y].map(|o| o.first as u64);
        let [rs, cs] = [a.strides.0 as i64, a.strides.1 as i64];
        let [incx, incy] = [x.strides.0 as i64, y.strides.0 as i64];
        fn at<V>(value: &V) -> *mut c_void {
            std::ptr::from_ref(value).cast_mut().cast()
        }
        let mut values = [
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
            at(&work.at),
            at(&counters.at),
        ];
        let [bx, by, bz] = launch.block;
        // SAFETY: the function lives as long as its module, which it owns. Every kernel has this
        // signature (gemv_core::gpu), and by its contract it touches the elements of A, x and y,
        // and as much scratch memory as its plan says: checked above. The driver copies the
        // values before it returns.
        unsafe {
            result::launch_kernel(
                function.inner.cu_function(),
                (grid[0], grid[1], grid[2]),
                (bx, by, bz),
                launch.shared,
                self.stream.cu_stream(),
                &mut values,
            )
        }
        .map_err(|e| self.failed("cuLaunchKernel", e))
    }

    fn failed(&self, call: &'static str, e: DriverError) -> Error {
        device_error(&self.id, call, e)
    }
}

fn device_error(id: &str, call: &'static str, e: DriverError) -> Error {
    // The number's name: to ask the driver for words could fail in its turn.
    Error::Device { device: id.into(), call, reason: format!("{:?}", e.0) }
}

impl Block {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is a block of this GPU.
    pub(crate) fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A thread may drop what it never used.
        let freed = self.gpu.enter().and_then(|_turn| {
            // SAFETY: allocated by the matching function, and freed once.
            let freed = unsafe {
                if self.gpu.context.has_async_alloc() {
                    result::free_async(self.at, self.gpu.stream.cu_stream())
                } else {
                    // Waits for the work that may use it.
                    result::free_sync(self.at)
                }
            };
            freed.map_err(|e| self.gpu.failed("cuMemFree", e))
        });
        if let Err(e) = freed {
            log::warn!("{e}");
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Staging: page-locked memory on the way to and from the device.

/// Bytes of a slot: long enough to hide a copy's start, short enough to overlap.
const SLOT: usize = 2 << 20;
/// Slots that each copying thread alternates between.
const PAIR: usize = 2;

/// A page-locked buffer, and when the device is done with it.
#[derive(Debug)]
struct Slot {
    gpu: Arc<Gpu>,
    at: *mut u8,
    done: CudaEvent,
    busy: bool,
}

// SAFETY: the pointer is to memory that the slot owns; pages are locked for every thread.
unsafe impl Send for Slot {}

impl Slot {
    fn new(gpu: &Arc<Gpu>) -> Result<Slot> {
        let done = gpu.context.new_event(None).map_err(|e| gpu.failed("cuEventCreate", e))?;
        // SAFETY: no flags, so the memory is cached and may be read back. It is cleared, so it
        // never holds uninitialised bytes.
        let at = unsafe {
            let at = result::malloc_host(SLOT, 0).map_err(|e| gpu.failed("cuMemHostAlloc", e))?;
            std::ptr::write_bytes(at.cast::<u8>(), 0, SLOT);
            at.cast()
        };
        Ok(Slot { gpu: gpu.clone(), at, done, busy: false })
    }

    /// The buffer, once the device is done with it.
    fn buffer(&mut self) -> Result<&mut [u8]> {
        if self.busy {
            let waited = self.done.synchronize();
            waited.map_err(|e| self.gpu.failed("cuEventSynchronize", e))?;
            self.busy = false;
        }
        // SAFETY: the memory is ours, SLOT bytes long and initialised, and no copy is under way.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.at, SLOT) })
    }

    /// Queues a copy of up to SLOT bytes to the device. `from` may be reused on return.
    fn send(&mut self, from: &[u8], to: sys::CUdeviceptr) -> Result<()> {
        let gpu = self.gpu.clone();
        let buffer = &mut self.buffer()?[..from.len()];
        buffer.copy_from_slice(from);
        let stream = gpu.stream.cu_stream();
        // SAFETY: the destination was checked by `Staging::send`; the buffer is not touched again
        // before the event after the copy.
        unsafe { result::memcpy_htod_async(to, buffer, stream) }
            .map_err(|e| gpu.failed("cuMemcpyHtoDAsync", e))?;
        self.busy = true;
        self.done.record(&gpu.stream).map_err(|e| gpu.failed("cuEventRecord", e))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let gpu = self.gpu.clone();
        let freed = gpu.enter().and_then(|_turn| {
            self.buffer()?;
            // SAFETY: allocated by `new`, not in use any more, and freed once.
            unsafe { result::free_host(self.at.cast()) }
                .map_err(|e| self.gpu.failed("cuMemFreeHost", e))
        });
        if let Err(e) = freed {
            log::warn!("{e}");
        }
    }
}

/// Page-locked slots through which host memory is copied: the driver's own staging of pageable
/// memory reaches a fifth of the link's speed.
#[derive(Debug)]
pub(crate) struct Staging {
    gpu: Arc<Gpu>,
    slots: Vec<Slot>,
    /// The next slot for a copy that fits in one.
    next: usize,
}

impl Staging {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Staging {
        Staging { gpu: gpu.clone(), slots: Vec::new(), next: 0 }
    }

    fn ensure(&mut self, slots: usize) -> Result<()> {
        while self.slots.len() < slots {
            self.slots.push(Slot::new(&self.gpu)?);
        }
        Ok(())
    }

    /// Queues a copy of host memory to the start of a block. `from` may be reused on return.
    ///
    /// # Panics
    /// If the block is shorter.
    pub(crate) fn send<T: Element>(&mut self, from: &[T], to: &Block) -> Result<()> {
        let from = bytes(from);
        assert!(from.len() <= to.bytes, "a copy beyond the end of a block");
        if !from.len().is_multiple_of(16) {
            // The rest of the last vector is read and not used: read all the same.
            let (rest, end) = (16 - from.len() % 16, to.at + from.len() as u64);
            let stream = self.gpu.stream.cu_stream();
            // SAFETY: blocks are multiples of 16 bytes long.
            unsafe { result::memset_d8_async(end, 0, rest, stream) }
                .map_err(|e| self.gpu.failed("cuMemsetD8Async", e))?;
        }
        if from.len() <= SLOT {
            self.ensure(PAIR)?;
            self.next = (self.next + 1) % PAIR;
            return self.slots[self.next].send(from, to.at);
        }
        // One thread copies host memory at less than the link's speed.
        let pieces = from.len().div_ceil(SLOT);
        let threads = std::thread::available_parallelism().map_or(1, |p| p.get()).min(4);
        let threads = threads.min(pieces.div_ceil(PAIR));
        self.ensure(threads * PAIR)?;
        let gpu = &self.gpu;
        let worker = |t: usize, slots: &mut [Slot]| -> Result<()> {
            gpu.bind()?;
            for (turn, piece) in (t..pieces).step_by(threads).enumerate() {
                let at = piece * SLOT;
                let part = &from[at..from.len().min(at + SLOT)];
                slots[turn % PAIR].send(part, to.at + at as u64)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let mut parts = self.slots[..threads * PAIR].chunks_mut(PAIR).enumerate();
            let (_, own) = parts.next().expect("at least one thread");
            let others: Vec<_> =
                parts.map(|(t, slots)| scope.spawn(move || worker(t, slots))).collect();
            let own = worker(0, own);
            let mut outcomes = vec![own];
            outcomes.extend(others.into_iter().map(|o| o.join().expect("a copy does not panic")));
            outcomes.into_iter().collect()
        })
    }

    /// Copies the first elements of a block to the host, waits for all work, and hands them on.
    ///
    /// # Panics
    /// If the block is shorter.
    pub(crate) fn receive<T: Element>(
        &mut self,
        from: &Block,
        len: usize,
        then: impl FnOnce(&[T]),
    ) -> Result<()> {
        let size = len * size_of::<T>();
        if size > SLOT {
            let mut all = vec![T::default(); len];
            self.gpu.read(from, 0, &mut all)?;
            then(&all);
            return Ok(());
        }
        self.ensure(1)?;
        let gpu = self.gpu.clone();
        let buffer = &mut self.slots[0].buffer()?[..size];
        // SAFETY: page-locked memory starts on a page; any bits are a value of an element, which
        // is a float or a pair of floats (the trait is sealed).
        let elements = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast(), len) };
        gpu.read::<T>(from, 0, elements)?;
        then(elements);
        Ok(())
    }
}

/// The bytes of elements.
fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are floats or pairs of floats (the trait is sealed): no padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of elements, to be written.
fn bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    let size = size_of_val(elements);
    // SAFETY: as in `bytes`; and any bits are a value of an element.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size) }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(why, "the driver is too old: its library has no cuCtxGetCurrent");
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
