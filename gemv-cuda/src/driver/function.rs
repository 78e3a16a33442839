//! Entry points of compiled programs, and how the driver launches them.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaFunction;
use cudarc::driver::sys::{self, CUresult};
use gemv_gpu::Boxes;

use super::current::Held;

/// Keeps what a launch works on.
pub(super) type Keep = Arc<dyn Any + Send + Sync>;

/// A loaded entry point.
#[derive(Debug)]
pub(crate) struct Function {
    pub(super) inner: Held<CudaFunction>,
    pub(super) name: String,
    /// Whether it was compiled for an architecture on which a launch can wait by itself.
    pub(super) pdl_waits: bool,
}

/// A launch whose grid the driver takes.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(super) function: Arc<Function>,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    /// Whether the driver may begin it before the launch ahead has ended.
    pub(super) early: bool,
    /// The last argument of the entry points that take it.
    pub(super) parts: u32,
    /// Where A goes as a tensor map.
    pub(super) boxes: Option<Boxes>,
    /// Of the launch that writes y, what does so at several places at once.
    pub(crate) at_places: Option<AtPlaces>,
}

impl Launch {
    /// Whether A goes as a tensor map, whose rows ascend in memory.
    pub(crate) fn is_by_boxes(&self) -> bool {
        self.boxes.is_some()
    }
}

/// Finds the function that computes as another one and writes y at several [places](gemv_gpu::Places); `None`
/// where there is none.
#[derive(Clone)]
pub(crate) struct AtPlaces(Arc<dyn Fn() -> Option<Arc<Function>> + Send + Sync>);

impl AtPlaces {
    pub(crate) fn new(
        find: impl Fn() -> Option<Arc<Function>> + Send + Sync + 'static,
    ) -> AtPlaces {
        AtPlaces(Arc::new(find))
    }

    pub(super) fn find(&self) -> Option<Arc<Function>> {
        (self.0)()
    }
}

impl fmt::Debug for AtPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtPlaces")
    }
}

// cudarc has this function's types with the newer of the CUDA versions that it can be built for alone.
pub(super) type LaunchEx = unsafe extern "C" fn(
    *const LaunchConfig,
    sys::CUfunction,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CUresult;

/// `CUlaunchConfig` of cuda.h, whose layout is the same in every version that has it.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    pub(super) stream: sys::CUstream,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) count: u32,
}

/// `CUlaunchAttribute` of cuda.h: a name, and a value in a union of 64 bytes.
#[repr(C, align(8))]
pub(super) struct LaunchAttribute {
    id: u32,
    pad: u32,
    value: [u32; 16],
}

impl LaunchAttribute {
    /// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, set to 1.
    pub(super) const EARLY: LaunchAttribute = {
        let mut value = [0; 16];
        value[0] = 1;
        LaunchAttribute { id: 6, pad: 0, value }
    };
}

/// The first driver that can record launches that begin early (CUDA 12.3).
pub(super) const RECORDS_EARLY: i32 = 12_030;

impl Function {
    /// The driver's handle.
    pub(super) fn handle(&self) -> usize {
        self.inner.cu_function() as usize
    }
}
