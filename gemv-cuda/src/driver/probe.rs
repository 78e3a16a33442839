//! Looking for the driver: its library, its symbols, its GPUs.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys;
use gemv_core::Error;
use gemv_core::fork::Owner;
use libloading::Library;

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
    "cuCtxEnablePeerAccess",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetDefaultMemPool",
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
    "cuMemPoolSetAccess",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// The driver's library, once its GPUs are known.
pub(super) static LIBRARY: OnceLock<&'static Library> = OnceLock::new();

/// Looks for the driver and its GPUs, once a process; opens none.
///
/// # Errors
/// [`Error::DriverMissing`] with what was looked for; [`Error::Forked`] in a child of the process that found a driver.
pub(crate) fn probe() -> gemv_core::Result<&'static Report> {
    static REPORT: OnceLock<gemv_core::Result<Report>> = OnceLock::new();
    static DRIVER: Owner = Owner::new();
    if !DRIVER.claim() {
        return match REPORT.get() {
            // There is none.
            Some(Err(why)) => Err(why.clone()),
            _ => Err(Error::Forked { device: "cuda".into() }),
        };
    }
    let missing = |reason| Error::DriverMissing { backend: "cuda", reason };
    REPORT.get_or_init(|| look(DRIVER_NAMES).map_err(missing)).as_ref().map_err(Clone::clone)
}

pub(super) fn look(names: &[&str]) -> Result<Report, String> {
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
pub(super) fn or<T: AsRef<str>>(names: &[T]) -> String {
    match names {
        [] => String::new(),
        [one] => one.as_ref().into(),
        [rest @ .., last] => {
            let rest: Vec<&str> = rest.iter().map(AsRef::as_ref).collect();
            format!("{} or {}", rest.join(", "), last.as_ref())
        }
    }
}
