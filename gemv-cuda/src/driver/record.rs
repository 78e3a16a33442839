//! The time in which launches are recorded: by the stream, for a clock, or as a list.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaEvent, CudaGraph};
use gemv_core::{Error, Result};

use super::cublas::UnderWay;
use super::gpu::Gpu;
use super::probe::LIBRARY;
use super::tape::{List, Mode, Tape};
use crate::lock::lock;

impl Gpu {
    /// The device's time for what `product` queues on the stream, from a replayed record: launches
    /// then follow each other without the host. Where it cannot be recorded, the host's clock.
    pub(crate) fn timed(&self, product: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let _guard = self.enter()?;
        self.refuse_while_recording("cuStreamSynchronize")?;
        self.synchronize()?;
        let recorded = Recording::of_stream(self).and_then(|recording| {
            product()?;
            recording.end()
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

    pub(super) fn nothing(&self) -> Error {
        let (device, reason) = (self.id().into(), "there is no work to record".into());
        Error::Device { device, call: "cuStreamEndCapture", reason }
    }
}

/// The time in which launches are recorded. Dropped early, because work failed or panicked, it throws
/// the record away, so that the stream is of use again.
pub(super) struct Recording<'a> {
    gpu: &'a Gpu,
    /// While the stream records.
    captures: Option<UnderWay>,
    ended: bool,
}

impl<'a> Recording<'a> {
    /// Has the stream record for the moment.
    pub(super) fn of_stream(gpu: &'a Gpu) -> Result<Recording<'a>> {
        let capture = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let under_way = UnderWay::begin();
        let begun = gpu.stream.begin_capture(capture);
        begun.map_err(|e| gpu.failed("cuStreamBeginCapture", e))?;
        Ok(Self::begin(gpu, Mode::Stream, Some(under_way)))
    }

    /// Has launches listed, as one of the GPUs of a list. Nothing is queued.
    pub(super) fn on_list(gpu: &'a Gpu, place: usize, list: &List) -> Recording<'a> {
        Self::begin(gpu, Mode::List { gpu: place, list: list.clone() }, None)
    }

    fn begin(gpu: &'a Gpu, mode: Mode, captures: Option<UnderWay>) -> Recording<'a> {
        lock(&gpu.tape).mode = mode;
        gpu.recording.store(true, Ordering::Relaxed);
        Recording { gpu, captures, ended: false }
    }

    /// Ends it: what the stream recorded, if it did.
    pub(super) fn end(mut self) -> Result<Option<CudaGraph>> {
        self.gpu.end_chain(None)?;
        self.stop()
    }

    fn stop(&mut self) -> Result<Option<CudaGraph>> {
        self.ended = true;
        let gpu = self.gpu;
        // A child of the process that began it does not end it.
        gpu.here()?;
        gpu.recording.store(false, Ordering::Relaxed);
        let Tape { chain, freed, freed_host, .. } = std::mem::take(&mut *lock(&gpu.tape));

        let graph = match self.captures.take() {
            Some(_under_way) => gpu.stream.end_capture(sys::CUgraphInstantiate_flags(0)),
            None => Ok(None),
        };
        // The steps of work that failed are not queued. Their memory may be freed now, not in the record.
        drop(chain);
        let freed = freed.into_iter().try_for_each(|(size, at)| gpu.give_up(size, at));
        let freed = freed.and_then(|()| super::staging::free_host(gpu, freed_host));
        let graph = graph.map_err(|e| gpu.failed("cuStreamEndCapture", e))?;
        freed.map(|()| graph)
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
