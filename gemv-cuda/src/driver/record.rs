//! Records of launches: the stream while it records, and graphs that are replayed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaEvent, CudaGraph};
use gemv_core::{Error, Record, Result};

use super::current::Held;
use super::gpu::Gpu;
use super::probe::LIBRARY;
use super::tape::{Mode, Tape, Taped};
use crate::lock::lock;

impl Gpu {
    /// The device's time for what `product` queues on the stream, from a replayed record: launches
    /// then follow each other without the host. Where it cannot be recorded, the host's clock.
    pub(crate) fn timed(&self, product: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let _guard = self.enter()?;
        self.synchronize()?;
        let recorded = Recording::of_stream(self).and_then(|recording| {
            product()?;
            recording.end().map(|(graph, _)| graph)
        });
        let Ok(Some(graph)) = recorded else {
            self.synchronize()?;
            let start = Instant::now();
            product()?;
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

    /// Records what `start` queues.
    pub(crate) fn record(
        self: &Arc<Self>,
        start: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Box<dyn Record>> {
        let _guard = self.enter()?;
        self.synchronize()?;
        let recording = Recording::begin(self, Mode::Keep(Vec::new()))?;
        start()?;
        let (graph, mode) = recording.end()?;
        let (Some(graph), Mode::Keep(launches)) = (graph, mode) else {
            return Err(self.nothing());
        };
        graph.upload().map_err(|e| self.failed("cuGraphUpload", e))?;
        Ok(Box::new(Replay {
            graph: Held::new(graph),
            launches: launches.into(),
            gpu: self.clone(),
        }))
    }

    fn nothing(&self) -> Error {
        let (device, reason) = (self.id().into(), "there is no work to record".into());
        Error::Device { device, call: "cuStreamEndCapture", reason }
    }
}

/// A graph, and what it works on.
struct Replay {
    // Dropped first: it uses the memory.
    graph: Held<CudaGraph>,
    launches: Arc<[Taped]>,
    gpu: Arc<Gpu>,
}

// SAFETY: the driver's handles are of a context that any thread may make current, which `enter` does;
// they are used under its guard alone.
unsafe impl Send for Replay {}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replay({} launches on {})", self.launches.len(), self.gpu.id())
    }
}

impl Record for Replay {
    fn holds(&self, start: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        let _guard = self.gpu.enter()?;
        let with = self.launches.clone();
        let comparing = Recording::compare(&self.gpu, Mode::Compare { with, next: 0, same: true });
        start()?;
        match comparing.end()? {
            (_, Mode::Compare { next, same, .. }) => Ok(same && next == self.launches.len()),
            _ => Ok(false),
        }
    }

    fn replay(&self) -> Result<()> {
        let _guard = self.gpu.enter()?;
        self.gpu.refuse_while_captured("cuGraphLaunch")?;
        self.graph.launch().map_err(|e| self.gpu.failed("cuGraphLaunch", e))
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        if self.gpu.here().is_err() {
            return;
        }
        // It may be under way, and the memory goes with it.
        let waited = self.gpu.enter().and_then(|_guard| self.gpu.synchronize());
        if let Err(e) = waited {
            log::warn!("{e}");
        }
    }
}

/// The time in which launches are recorded. Dropped early, because work failed or panicked, it throws
/// the record away, so that the stream is of use again.
pub(super) struct Recording<'a> {
    gpu: &'a Gpu,
    /// Whether the stream records.
    captures: bool,
    ended: bool,
}

impl<'a> Recording<'a> {
    /// Has the stream record for the moment.
    pub(super) fn of_stream(gpu: &'a Gpu) -> Result<Recording<'a>> {
        Self::begin(gpu, Mode::Stream)
    }

    fn begin(gpu: &'a Gpu, mode: Mode) -> Result<Recording<'a>> {
        let capture = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let begun = gpu.stream.begin_capture(capture);
        begun.map_err(|e| gpu.failed("cuStreamBeginCapture", e))?;
        Ok(Self::tape(gpu, mode, true))
    }

    fn compare(gpu: &'a Gpu, mode: Mode) -> Recording<'a> {
        Self::tape(gpu, mode, false)
    }

    fn tape(gpu: &'a Gpu, mode: Mode, captures: bool) -> Recording<'a> {
        lock(&gpu.tape).mode = mode;
        gpu.recording.store(true, Ordering::Relaxed);
        Recording { gpu, captures, ended: false }
    }

    /// Ends it: what the stream recorded, if it did.
    pub(super) fn end(mut self) -> Result<(Option<CudaGraph>, Mode)> {
        self.gpu.end_chain(None)?;
        self.stop()
    }

    fn stop(&mut self) -> Result<(Option<CudaGraph>, Mode)> {
        self.ended = true;
        let gpu = self.gpu;
        // A child of the process that began it does not end it.
        gpu.here()?;
        gpu.recording.store(false, Ordering::Relaxed);
        let Tape { mode, chain, freed, freed_host } = std::mem::take(&mut *lock(&gpu.tape));

        let graph = match self.captures {
            true => gpu.stream.end_capture(sys::CUgraphInstantiate_flags(0)),
            false => Ok(None),
        };
        // The steps of work that failed are not queued. Their memory may be freed now, not in the record.
        drop(chain);
        let freed = freed.into_iter().try_for_each(|(size, at)| gpu.give_up(size, at));
        let freed = freed.and_then(|()| super::staging::free_host(gpu, freed_host));
        let graph = graph.map_err(|e| gpu.failed("cuStreamEndCapture", e))?;
        freed.map(|()| (graph, mode))
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // Of a record that was spoilt the driver says so here: nothing is lost.
            let _ = self.stop();
        }
    }
}
