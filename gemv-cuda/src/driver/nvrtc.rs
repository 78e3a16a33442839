//! NVRTC, found and called by name.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use cudarc::driver::sys::CUresult;
use gemv_core::{Error, Result};
use gemv_gpu::Program;
use libloading::Library;

use super::probe::{or, probe};

/// The environment variable that names the NVRTC library, by its absolute path.
pub const NVRTC_ENV: &str = "GEMV_NVRTC";

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

    /// Whether the driver has to compile it: a CUBIN is an ELF file.
    pub(super) fn is_ptx(&self) -> bool {
        !self.bytes.starts_with(b"\x7fELF")
    }
}

/// What to do where the driver does not compile PTX.
pub(super) fn refused_ptx(code: CUresult) -> Option<&'static str> {
    use CUresult::*;
    match code {
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION => Some(
            "the driver is too old for this PTX: install a newer driver, or NVRTC of the driver's version",
        ),
        CUDA_ERROR_INVALID_PTX => {
            Some("the driver does not take this PTX: install another driver, or NVRTC")
        }
        CUDA_ERROR_JIT_COMPILER_NOT_FOUND => Some(
            "the driver's compiler of PTX (libnvidia-ptxjitcompiler) is missing: install it, or NVRTC",
        ),
        CUDA_ERROR_JIT_COMPILATION_DISABLED => Some(
            "the driver may not compile PTX (see CUDA_DISABLE_PTX_JIT): let it, or install NVRTC",
        ),
        _ => None,
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes)", self.bytes.len())
    }
}

type Handle = *mut c_void;

/// NVRTC, loaded: the compiler of CUDA C++ that NVIDIA ships as a library.
///
/// ```
/// use gemv::Dtype;
/// use gemv_gpu::kernel;
/// use gemv::cuda::{Nvrtc, options};
///
/// match Nvrtc::find() {
///     Ok(nvrtc) => {
///         let row = kernel("row").unwrap().program(Dtype::F32, &"row threads=128".parse().unwrap());
///         let (image, _log) = nvrtc.compile(&row, &options(&nvrtc.target(90))).unwrap();
///         assert!(!image.bytes().is_empty());
///     }
///     Err(why) => assert!(why.to_string().starts_with("cuda is not available: ")),
/// }
/// ```
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
        let plain = library_names(major);
        for name in in_toolkit(&plain) {
            match Nvrtc::load(Path::new(&name)) {
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
    /// ```
    /// use gemv::cuda::Nvrtc;
    /// assert!(Nvrtc::load("/nowhere/libnvrtc.so".as_ref()).is_err());
    /// ```
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
    ///
    /// ```
    /// # use gemv::cuda::Nvrtc;
    /// if let Ok(nvrtc) = Nvrtc::find() {
    ///     let newest = *nvrtc.archs().last().unwrap();
    ///     assert_eq!(nvrtc.target(newest), format!("sm_{newest}"));
    ///     assert_eq!(nvrtc.target(newest + 100), format!("compute_{newest}"));
    /// }
    /// ```
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

/// Where a library of the toolkit may be: the loader's names, then the same names below `CUDA_HOME`,
/// `CUDA_PATH` and the toolkit's usual directory.
pub(super) fn in_toolkit(plain: &[String]) -> Vec<String> {
    let roots = [std::env::var_os("CUDA_HOME"), std::env::var_os("CUDA_PATH")];
    let mut roots: Vec<PathBuf> =
        roots.into_iter().flatten().filter(|p| !p.is_empty()).map(PathBuf::from).collect();
    if cfg!(unix) {
        roots.push("/usr/local/cuda".into());
    }
    let folders: &[&str] = if cfg!(windows) { &["bin", "bin/x64"] } else { &["lib64", "lib"] };
    let mut names = plain.to_vec();
    for root in roots {
        for folder in folders {
            names.extend(
                plain.iter().map(|n| root.join(folder).join(n).to_string_lossy().into_owned()),
            );
        }
    }
    names
}

/// Why the loader refused, with the file's name, on one line.
pub(super) fn loader(path: &Path, e: &dyn std::error::Error) -> String {
    let why = e.source().map_or_else(|| e.to_string(), |s| s.to_string());
    let why = why.replace('\n', " ");
    let path = path.display().to_string();
    if why.contains(&path) { why } else { format!("{path}: {why}") }
}

/// The loader's names of NVRTC, for a driver of this major version first.
pub(super) fn library_names(major: i32) -> Vec<String> {
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
