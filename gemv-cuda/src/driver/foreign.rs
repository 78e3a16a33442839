//! A GPU's work on a stream of another library, its memory and events, and the graphs that it captures.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{self, CUresult};
use gemv_core::{Error, Result};

use super::foreign_stream::{ForeignStream, Functions};
use super::function::{Function, Keep};
use super::gpu::{Block, Gpu, Kind};
use crate::lock::lock;

/// The graph that a program captures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capture {
    graph: sys::CUgraph,
    /// Another number for each capture.
    pub(crate) id: u64,
}

impl Gpu {
    /// Whether the stream is another library's.
    pub(crate) fn is_on_foreign_stream(&self) -> bool {
        self.foreign.is_some()
    }

    /// Whether the stream can be recorded as one of so many: the legacy default stream cannot, and another library's
    /// only by itself.
    pub(crate) fn records(&self, gpus: usize) -> bool {
        self.foreign.as_ref().is_none_or(|stream| !stream.legacy && gpus == 1)
    }

    /// Refuses the default stream of another thread: it is another stream.
    #[inline]
    pub(super) fn here_on_thread(&self) -> Result<()> {
        if self.frees_in_order() {
            return Ok(());
        }
        let reason =
            "the device is of the default stream of another thread: open one on each".into();
        Err(Error::Device { device: self.id().into(), call: "on_stream", reason })
    }

    /// Whether what this thread frees comes in the order of the stream.
    #[inline]
    pub(super) fn frees_in_order(&self) -> bool {
        self.foreign.as_ref().is_none_or(ForeignStream::is_here)
    }

    /// Looks whether another library captures its stream.
    #[inline]
    pub(super) fn look_for_capture(&self) {
        let Some(stream) = &self.foreign else { return };
        if stream.legacy || self.recording() {
            stream.captured.store(false, Ordering::Relaxed);
            return;
        }
        let mut status = 0;
        // SAFETY: the stream lives as long as the device, by the contract of `on_stream`; the result is written to a local.
        let code = unsafe { (stream.functions.is_capturing)(self.stream.cu_stream(), &mut status) };
        let captured = code != CUresult::CUDA_SUCCESS || status != 0;
        stream.captured.store(captured, Ordering::Relaxed);
    }

    /// Whether another library was capturing its stream when this thread entered.
    #[inline]
    pub(crate) fn captured(&self) -> bool {
        self.foreign.as_ref().is_some_and(|stream| stream.captured.load(Ordering::Relaxed))
    }

    /// Refuses what a capture does not allow.
    #[inline]
    pub(crate) fn refuse_while_captured(&self, call: &'static str) -> Result<()> {
        if !self.captured() {
            return Ok(());
        }
        let reason = "the stream is being captured, and nothing may be allocated, loaded, copied to the host or \
                      waited for: run it once before the capture, or call Device::reserve, for each graph";
        Err(Error::Device { device: self.id().into(), call, reason: reason.into() })
    }

    /// Refuses to compile and to load while another library captures.
    pub(crate) fn may_load(&self) -> Result<()> {
        self.look_for_capture();
        self.refuse_while_captured("cuModuleLoadData")
    }

    /// The graph that is captured.
    pub(crate) fn capture(&self) -> Result<Capture> {
        let stream = self.foreign.as_ref().expect("a stream of another library is captured");
        let (mut status, mut id, mut graph) = (0, 0, std::ptr::null_mut());
        let (mut before, mut count) = (std::ptr::null(), 0);
        // SAFETY: as above; the results are written to locals.
        let code = unsafe {
            (stream.functions.capture)(
                self.stream.cu_stream(),
                &mut status,
                &mut id,
                &mut graph,
                &mut before,
                &mut count,
            )
        };
        code.result().map_err(|e| self.failed("cuStreamGetCaptureInfo", e))?;
        if status != 1 {
            let reason = "the capture has failed".into();
            return Err(Error::Device {
                device: self.id().into(),
                call: "cuStreamGetCaptureInfo",
                reason,
            });
        }
        Ok(Capture { graph, id })
    }

    /// Has the graph that is captured keep memory and a function, which it uses each time that it is replayed.
    pub(super) fn keep_in_graph(&self, memory: Vec<Keep>, function: &Arc<Function>) -> Result<()> {
        let stream = self.foreign.as_ref().expect("a stream of another library is captured");
        let Capture { graph, .. } = self.capture()?;
        let mut all = memory;
        all.push(function.clone());
        let kept = Box::into_raw(Box::new(all));
        let mut object = std::ptr::null_mut();
        // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, the one flag that there is.
        // SAFETY: `retire` takes what `kept` is, which is given up here.
        let created =
            unsafe { (stream.functions.create_object)(&mut object, kept.cast(), retire, 1, 1) };
        if created != CUresult::CUDA_SUCCESS {
            // SAFETY: made above, and not taken.
            drop(unsafe { Box::from_raw(kept) });
            return created.result().map_err(|e| self.failed("cuUserObjectCreate", e));
        }
        // CU_GRAPH_USER_OBJECT_MOVE: the graph has the one reference.
        // SAFETY: the graph is being captured, so it is alive, and the object was just made.
        let retained = unsafe { (stream.functions.retain_object)(graph, object, 1, 1) };
        if retained != CUresult::CUDA_SUCCESS {
            // SAFETY: the one reference, which the graph has not got: `retire` is called.
            unsafe { (stream.functions.release_object)(object, 1) };
        }
        retained.result().map_err(|e| self.failed("cuGraphRetainUserObject", e))
    }

    /// Frees memory after the capture.
    pub(super) fn free_after_capture(&self, at: sys::CUdeviceptr, ordered: bool) {
        let stream = self.foreign.as_ref().expect("a stream of another library is captured");
        lock(&stream.later).push((at, ordered));
    }

    /// Frees what was to be freed while a stream was captured.
    pub(super) fn free_captured(&self) -> Result<()> {
        let Some(stream) = &self.foreign else { return Ok(()) };
        let later = std::mem::take(&mut *lock(&stream.later));
        later.into_iter().try_for_each(|(at, ordered)| self.free(at, ordered))
    }

    /// Whether the driver has told this thread that memory of this GPU is there. It may be gone since, which nobody can see.
    #[inline]
    fn knows(&self, handle: usize, bytes: usize) -> bool {
        RANGES.with(|ranges| {
            ranges.iter().any(|range| {
                let (gpu, start, size) = range.get();
                let within = handle.wrapping_sub(start);
                gpu == self.context.ordinal() && within <= size && bytes <= size - within
            })
        })
    }

    /// Where the driver says that an allocation of this GPU begins, and how many bytes it has.
    #[cold]
    fn range_of(&self, handle: usize) -> Result<(usize, usize)> {
        let refused = |reason: String| Error::Device {
            device: self.id().into(),
            call: "from_foreign",
            reason,
        };
        let (mut device, mut start, mut size) = (-1i32, 0 as sys::CUdeviceptr, 0usize);
        // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, _RANGE_START_ADDR, _RANGE_SIZE.
        let mut names: [c_uint; 3] = [9, 11, 12];
        let mut values: [*mut c_void; 3] =
            [(&raw mut device).cast(), (&raw mut start).cast(), (&raw mut size).cast()];
        let functions = match &self.foreign {
            Some(stream) => stream.functions,
            None => Functions::find()
                .map_err(|name| refused(format!("the driver is too old: it has no {name}")))?,
        };
        // SAFETY: three names, and a place for the value of each; any number may be asked for.
        let code = unsafe {
            (functions.attributes)(3, names.as_mut_ptr(), values.as_mut_ptr(), handle as _)
        };
        code.result().map_err(|e| self.failed("cuPointerGetAttributes", e))?;
        if size == 0 {
            return Err(refused(format!("the driver knows no memory at {handle:#x}")));
        }
        if device != self.context.ordinal() as i32 {
            return Err(refused(format!("the memory is of the GPU {device}")));
        }
        Ok((start as usize, size))
    }

    /// Memory of another library as a block, which begins on 64 bytes; and the bytes before the handle in it.
    ///
    /// # Errors
    /// Where the driver says that it is not memory of this GPU, or not of so many bytes.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        handle: usize,
        bytes: usize,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Result<(Block, usize)> {
        let refused = |reason: String| Error::Device {
            device: self.id().into(),
            call: "from_foreign",
            reason,
        };
        if bytes > 0 && !self.knows(handle, bytes) {
            let (start, size) = self.range_of(handle)?;
            let left = (start + size).saturating_sub(handle);
            if bytes > left {
                return Err(refused(format!(
                    "the memory has {left} bytes from there on, and not {bytes}"
                )));
            }
            let of = (self.context.ordinal(), start, size);
            RANGES.with(|ranges| ranges[start / SEGMENT % COUNT].set(of));
        }
        let shift = handle % 64;
        Ok((
            self.block((handle - shift) as sys::CUdeviceptr, shift + bytes, Kind::Foreign(keep)),
            shift,
        ))
    }

    /// Has later work of the stream wait for an event.
    ///
    /// # Safety
    /// The event is alive.
    pub(crate) unsafe fn wait_for_foreign(&self, event: usize) -> Result<()> {
        let _guard = self.enter()?;
        // A record would have it wait for the event as it is now.
        self.refuse_while_recording("cuStreamWaitEvent")?;
        self.wait_for(event as sys::CUevent, self.stream.cu_stream())
    }

    /// Has an event come behind what is queued.
    ///
    /// # Safety
    /// The event is alive.
    pub(crate) unsafe fn record_foreign(&self, event: usize) -> Result<()> {
        let _guard = self.enter()?;
        self.refuse_while_recording("cuEventRecord")?;
        self.mark(event as sys::CUevent, self.stream.cu_stream())
    }
}

/// How many allocations a thread remembers, and the bytes that two of them at one place of the list are apart: those of
/// libraries that have a pool are large.
const COUNT: usize = 8;
const SEGMENT: usize = 2 << 20;

thread_local! {
    /// Allocations that the driver has told of: a GPU, where it begins, its bytes.
    static RANGES: [Cell<(usize, usize, usize)>; COUNT] =
        const { [const { Cell::new((usize::MAX, 0, 0)) }; COUNT] };
}

/// What graphs that are gone have kept. The driver does not allow its calls where it tells of them.
static RETIRED: Mutex<Vec<Vec<Keep>>> = Mutex::new(Vec::new());
static ANY_RETIRED: AtomicBool = AtomicBool::new(false);

/// # Safety
/// The argument is what [`Gpu::keep_in_graph`] has given up.
unsafe extern "C" fn retire(kept: *mut c_void) {
    // SAFETY: the caller's; the driver calls it once.
    let kept = unsafe { Box::from_raw(kept.cast::<Vec<Keep>>()) };
    lock(&RETIRED).push(*kept);
    ANY_RETIRED.store(true, Ordering::Release);
}

/// Gives up what graphs that are gone have kept. A thread that holds a GPU does not: it could wait for another's.
#[inline]
pub(crate) fn drop_retired(gpu: &Gpu) {
    // Not in a child that was forked, where a thread that is not there may have the lock.
    if ANY_RETIRED.load(Ordering::Relaxed) && gpu.here().is_ok() && !gpu.is_entered() {
        ANY_RETIRED.store(false, Ordering::Relaxed);
        let retired = std::mem::take(&mut *lock(&RETIRED));
        drop(retired);
    }
}
