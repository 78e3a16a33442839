//! A stream of another library, and the driver's functions for such streams.

use std::ffi::{c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread::{self, ThreadId};

use cudarc::driver::sys::{self, CUresult};
use gemv_core::{Error, Result};

use super::probe::{LIBRARY, probe};

/// What the driver calls when a graph, and all that were made of it, are gone.
type Destroy = unsafe extern "C" fn(*mut c_void);

/// Declares the functions of the driver that are looked for when a stream of another library is first used: older drivers lack
/// some. The types are those of cuda.h.
macro_rules! functions {
    ($($name:ident = $symbol:literal: $type:ty;)*) => {
        #[derive(Debug, Clone, Copy)]
        pub(super) struct Functions { $(pub(super) $name: $type,)* }

        impl Functions {
            /// # Errors
            /// The name of one that is not there.
            pub(super) fn find() -> std::result::Result<Functions, &'static str> {
                let library = LIBRARY.get().expect("the driver was found before a GPU is opened");
                Ok(Functions { $(
                    // SAFETY: the type is the one that cuda.h declares for this symbol; the library stays loaded.
                    $name: *unsafe { library.get::<$type>($symbol.as_bytes()) }.map_err(|_| $symbol)?,
                )* })
            }
        }
    };
}
functions! {
    context = "cuStreamGetCtx":
        unsafe extern "C" fn(sys::CUstream, *mut sys::CUcontext) -> CUresult;
    // It spoils a capture: findings/cuda_stream_id_spoils_a_capture.sh.
    id = "cuStreamGetId": unsafe extern "C" fn(sys::CUstream, *mut u64) -> CUresult;
    is_capturing = "cuStreamIsCapturing":
        unsafe extern "C" fn(sys::CUstream, *mut c_uint) -> CUresult;
    capture = "cuStreamGetCaptureInfo_v2": unsafe extern "C" fn(
        sys::CUstream, *mut c_uint, *mut u64, *mut sys::CUgraph,
        *mut *const c_void, *mut usize,
    ) -> CUresult;
    create_object = "cuUserObjectCreate": unsafe extern "C" fn(
        *mut *mut c_void, *mut c_void, Destroy, c_uint, c_uint,
    ) -> CUresult;
    retain_object = "cuGraphRetainUserObject":
        unsafe extern "C" fn(sys::CUgraph, *mut c_void, c_uint, c_uint) -> CUresult;
    release_object = "cuUserObjectRelease":
        unsafe extern "C" fn(*mut c_void, c_uint) -> CUresult;
    attributes = "cuPointerGetAttributes": unsafe extern "C" fn(
        c_uint, *mut c_uint, *mut *mut c_void, sys::CUdeviceptr,
    ) -> CUresult;
}

/// `CU_STREAM_LEGACY`, which null means as well.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: another stream on each thread.
const PER_THREAD: usize = 2;

/// A stream of another library.
#[derive(Debug)]
pub(super) struct ForeignStream {
    pub(super) functions: Functions,
    /// The legacy default stream: it is never captured.
    pub(super) legacy: bool,
    /// Of the default stream of a thread, whose it is.
    of_thread: Option<ThreadId>,
    /// Whether it was being captured when the GPU was entered.
    pub(super) captured: AtomicBool,
    /// Memory that was to be freed while it was: addresses, and whether by the stream's order.
    pub(super) later: Mutex<Vec<(sys::CUdeviceptr, bool)>>,
}

impl ForeignStream {
    /// Looks at a stream.
    ///
    /// # Safety
    /// It is a stream of this driver, alive.
    ///
    /// # Errors
    /// Where it is another context's, or the driver is too old.
    pub(super) unsafe fn of(
        stream: usize,
        context: sys::CUcontext,
        device: &str,
    ) -> Result<ForeignStream> {
        let refused = |call, reason| Error::Device { device: device.into(), call, reason };
        let functions = Functions::find().map_err(|name| {
            refused("on_stream", format!("the driver is too old: it has no {name}"))
        })?;
        let (legacy, handle) = (stream <= LEGACY, stream as sys::CUstream);
        let failed = |call, code: CUresult| refused(call, format!("{code:?}"));
        if !legacy && stream != PER_THREAD {
            let mut of = std::ptr::null_mut();
            // SAFETY: the caller's; the result is written to a local.
            let code = unsafe { (functions.context)(handle, &mut of) };
            if code != CUresult::CUDA_SUCCESS {
                return Err(failed("cuStreamGetCtx", code));
            }
            if of != context {
                let reason =
                    "the stream is of another GPU, or of a context that is not its primary one";
                return Err(refused("on_stream", reason.into()));
            }
        }
        Ok(ForeignStream {
            functions,
            legacy,
            of_thread: (stream == PER_THREAD).then(|| thread::current().id()),
            captured: AtomicBool::new(false),
            later: Mutex::default(),
        })
    }

    /// Whether this thread's work is put into the stream.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.of_thread.is_none_or(|thread| thread == thread::current().id())
    }
}

/// The driver's number of a stream; `None` while it is captured, when to ask for it would spoil the capture.
///
/// # Safety
/// It is a stream of this driver, alive, and no default one.
pub(crate) unsafe fn stream_id(ordinal: usize, stream: usize) -> Result<Option<u64>> {
    probe()?;
    let device = || format!("cuda:{ordinal}");
    let functions = Functions::find().map_err(|name| Error::Device {
        device: device(),
        call: "stream_id",
        reason: format!("the driver is too old: it has no {name}"),
    })?;
    let (handle, mut status, mut id) = (stream as sys::CUstream, 0, 0);
    // SAFETY: the caller's; the result is written to a local.
    let asked = unsafe { (functions.is_capturing)(handle, &mut status) };
    if asked != CUresult::CUDA_SUCCESS || status != 0 {
        return Ok(None);
    }
    // SAFETY: as above.
    match unsafe { (functions.id)(handle, &mut id) } {
        CUresult::CUDA_SUCCESS => Ok(Some(id)),
        code => {
            let (call, reason) = ("cuStreamGetId", format!("{code:?}"));
            Err(Error::Device { device: device(), call, reason })
        }
    }
}
