//! Records of work on one GPU or on several: one graph, with events between the GPUs inside.
//!
//! The work is listed first, and nothing is queued. Then the list is put into an order (`schedule.rs`): an exchange of what
//! launches have just written becomes a part of these launches, which write it over the link where it belongs.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys;
use cudarc::driver::{CudaEvent, CudaGraph, result};
use gemv_core::{Record, Result};
use gemv_gpu::Places;

use super::cublas::UnderWay;
use super::current::Held;
use super::function::{Function, Keep};
use super::gpu::{Entered, Gpu};
use super::record::Recording;
use super::schedule::{Block, Copy, Does, Launched, Started, Step, schedule};
use super::tape::{Copied, List, Taped, Work};
use crate::lock::lock;

/// This thread's hold on several GPUs.
struct All<'a>(Vec<Entered<'a>>);

impl<'a> All<'a> {
    /// In the order of the GPUs' places in memory, so that two threads do not wait for each other.
    fn enter(gpus: &'a [Arc<Gpu>]) -> Result<All<'a>> {
        let mut order: Vec<&Arc<Gpu>> = gpus.iter().collect();
        order.sort_unstable_by_key(|gpu| Arc::as_ptr(gpu));
        let mut all = All(Vec::new());
        for gpu in order {
            all.0.push(gpu.enter()?);
        }
        Ok(all)
    }
}

impl Drop for All<'_> {
    fn drop(&mut self) {
        // The last one first: each restores the context that it found.
        while self.0.pop().is_some() {}
    }
}

/// Records what `start` queues on these GPUs; `None` where one does not reach another one's memory.
pub(crate) fn record(
    gpus: &[Arc<Gpu>],
    start: &mut dyn FnMut() -> Result<()>,
) -> Result<Option<Box<dyn Record>>> {
    for gpu in gpus {
        for other in gpus.iter().filter(|other| !Arc::ptr_eq(other, gpu)) {
            if !gpu.reaches(other)? {
                let (here, there) = (gpu.id(), other.id());
                log::debug!(
                    "{here} does not reach the memory of {there}: work over both is not recorded, and copies go between them"
                );
                return Ok(None);
            }
        }
    }
    let all = All::enter(gpus)?;
    gpus.iter().try_for_each(|gpu| gpu.synchronize())?;
    let work = listed(gpus, start)?;
    let (steps, functions) = steps(gpus.len(), &work);
    let graph = capture(gpus, &work, &steps, &functions)?;
    graph.upload().map_err(|e| gpus[0].failed("cuGraphUpload", e))?;
    drop(all);
    let (graph, gpus) = (Held::new(graph), gpus.into());
    Ok(Some(Box::new(Replay { graph, work, _functions: functions, gpus })))
}

/// What `start` queues, in place of queuing it.
fn listed(gpus: &[Arc<Gpu>], start: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Work>> {
    // A plan in the work of another one.
    gpus.iter().try_for_each(|gpu| gpu.refuse_while_recording("Plan::run"))?;
    let list = List::default();
    let listing = gpus.iter().enumerate().map(|(place, gpu)| Recording::on_list(gpu, place, &list));
    let listing: Vec<_> = listing.collect();
    start()?;
    for recording in listing {
        recording.end()?;
    }
    Ok(std::mem::take(&mut *lock(&list)))
}

/// Functions that write at several places, by the places of their launches in the list.
type Functions = HashMap<usize, Arc<Function>>;

/// The work in its order.
fn steps(gpus: usize, work: &[Work]) -> (Vec<Step>, Functions) {
    let mut blocks = HashMap::<*const (), Block>::new();
    let mut block = |memory: &Keep| {
        let next = blocks.len();
        *blocks.entry(Arc::as_ptr(memory).cast()).or_insert(next)
    };
    let started = work.iter().map(|work| match work {
        Work::Launch(gpu, taped) => {
            let writes = taped.output.as_ref().map(|(_, at, bytes)| *at..at + *bytes as u64);
            let touches = taped.memory.iter().map(&mut block).collect();
            Started::Launch(Launched { gpu: *gpu, touches, writes })
        }
        Work::Copies(all) => Started::Copies(
            all.iter()
                .map(|Copied { from, to, bytes }| Copy {
                    gpu: from.gpu,
                    from: (block(&from.memory), from.address..from.address + *bytes as u64),
                    to: (block(&to.memory), to.address),
                })
                .collect(),
        ),
    });
    let started: Vec<_> = started.collect();
    let mut functions = Functions::new();
    let can = |at: usize| {
        let Work::Launch(_, Taped { output: Some((at_places, ..)), .. }) = &work[at] else {
            return false;
        };
        at_places.find().map(|function| functions.insert(at, function)).is_some()
    };
    let most = Places { count: 0, bytes: [0; 15] }.bytes.len();
    let steps = schedule(gpus, &started, most, can);
    (steps, functions)
}

/// The graph of the steps. It is launched on the first GPU.
fn capture(
    gpus: &[Arc<Gpu>],
    work: &[Work],
    steps: &[Step],
    functions: &Functions,
) -> Result<CudaGraph> {
    if steps.is_empty() {
        return Err(gpus[0].nothing());
    }
    let first = &gpus[0];
    let mut capture = Capture::begin(first)?;
    let events = &mut capture.events;
    let begin = marked(first, events)?;
    gpus[1..].iter().try_for_each(|gpu| waits(gpu, begin))?;
    // For each step that others wait for, and of each GPU whether its last step was a launch.
    let mut awaited = HashMap::new();
    let mut launched = vec![false; gpus.len()];
    for (place, step) in steps.iter().enumerate() {
        let gpu = &gpus[step.gpu];
        let _guard = gpu.enter()?;
        step.waits.iter().try_for_each(|before| waits(gpu, awaited[before]))?;
        let behind_a_launch = std::mem::replace(&mut launched[step.gpu], false);
        match (&step.does, &work[place_of(&step.does)]) {
            (Does::Launch(at, distances), Work::Launch(_, taped)) => {
                // What waits for another GPU as well is no launch that begins early.
                let early = taped.early && behind_a_launch && step.waits.is_empty();
                let function = functions.get(at).filter(|_| !distances.is_empty());
                launch(gpu, taped, early, function, distances)?;
                launched[step.gpu] = true;
            }
            (Does::Copy(_, which), Work::Copies(all)) => copy(gpu, &all[*which])?,
            _ => unreachable!("a step is of its own work"),
        }
        if step.awaited {
            awaited.insert(place, marked(gpu, events)?);
        }
    }
    for gpu in &gpus[1..] {
        let end = marked(gpu, events)?;
        waits(first, end)?;
    }
    capture.end()
}

fn place_of(does: &Does) -> usize {
    match does {
        Does::Launch(at, _) | Does::Copy(at, _) => *at,
    }
}

/// An event that comes when what a GPU has up to here is done.
fn marked(gpu: &Gpu, events: &mut Vec<Held<CudaEvent>>) -> Result<sys::CUevent> {
    let _guard = gpu.enter()?;
    let event = gpu.context.new_event(None).map_err(|e| gpu.failed("cuEventCreate", e))?;
    let handle = event.cu_event();
    events.push(Held::new(event));
    gpu.mark(handle, gpu.stream.cu_stream())?;
    Ok(handle)
}

/// What a GPU gets from here on waits for an event.
fn waits(gpu: &Gpu, event: sys::CUevent) -> Result<()> {
    let _guard = gpu.enter()?;
    gpu.wait_for(event, gpu.stream.cu_stream())
}

fn launch(
    gpu: &Gpu,
    taped: &Taped,
    early: bool,
    at_places: Option<&Arc<Function>>,
    distances: &[i64],
) -> Result<()> {
    let places = Places::new(distances).expect("as many as a launch writes");
    let mut arguments = taped.arguments.clone();
    let mut sizes = taped.sizes.clone();
    if at_places.is_some() {
        let words = [places.count].into_iter().chain(places.bytes.map(|far| far as u64));
        arguments.extend(words.flat_map(u64::to_ne_bytes));
        sizes.push(size_of::<Places>());
    }
    let base = arguments.as_mut_ptr();
    let mut at = 0;
    let mut values: Vec<*mut c_void> = Vec::with_capacity(sizes.len());
    for size in sizes {
        // SAFETY: the arguments lie one behind the other, and are as long as all sizes together.
        values.push(unsafe { base.add(at) }.cast());
        at += size;
    }
    let function = at_places.unwrap_or(&taped.function);
    let shape = (taped.grid, taped.block, taped.shared);
    // SAFETY: these are the bytes of the arguments of a launch that was to be queued; a function that writes at several
    // places takes one more, and each place is of a copy that was to be queued, in its block. The record keeps all of
    // this memory. The driver copies the values, of any alignment.
    unsafe { gpu.queue_function(function, shape, early, &mut values) }
}

/// Queues a copy that this GPU does, which reads its own memory.
fn copy(gpu: &Gpu, Copied { from, to, bytes }: &Copied) -> Result<()> {
    // SAFETY: both lie in their blocks, which the record keeps, and the GPU reaches both.
    let queued = unsafe {
        result::memcpy_dtod_async(to.address, from.address, *bytes, gpu.stream.cu_stream())
    };
    queued.map_err(|e| gpu.failed("cuMemcpyDtoDAsync", e))
}

/// The time in which a GPU's stream records, and with it those that wait for its events. Dropped early, because work
/// failed, it throws the record away.
struct Capture<'a> {
    gpu: &'a Gpu,
    _under_way: UnderWay,
    /// Of this record alone.
    events: Vec<Held<CudaEvent>>,
    ended: bool,
}

impl<'a> Capture<'a> {
    fn begin(gpu: &'a Gpu) -> Result<Capture<'a>> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let _under_way = UnderWay::begin();
        let begun = gpu.stream.begin_capture(mode);
        begun.map_err(|e| gpu.failed("cuStreamBeginCapture", e))?;
        Ok(Capture { gpu, _under_way, events: Vec::new(), ended: false })
    }

    fn end(mut self) -> Result<CudaGraph> {
        self.ended = true;
        let _guard = self.gpu.enter()?;
        let graph = self.gpu.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        let graph = graph.map_err(|e| self.gpu.failed("cuStreamEndCapture", e))?;
        graph.ok_or_else(|| self.gpu.nothing())
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended && self.gpu.here().is_ok() {
            // The driver says that the record was spoilt: nothing is lost.
            let _ = self.gpu.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        }
    }
}

/// A graph over several GPUs, and what it works on.
struct Replay {
    // Dropped first: it uses the memory.
    graph: Held<CudaGraph>,
    work: Vec<Work>,
    _functions: Functions,
    gpus: Arc<[Arc<Gpu>]>,
}

// SAFETY: the driver's handles are of contexts that any thread may make current, which `enter` does;
// they are used under its guards alone.
unsafe impl Send for Replay {}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<&str> = self.gpus.iter().map(|gpu| gpu.id()).collect();
        write!(f, "Replay({} parts of work on {})", self.work.len(), ids.join(", "))
    }
}

impl Record for Replay {
    fn holds(&self, start: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        let _all = All::enter(&self.gpus)?;
        let work = listed(&self.gpus, start)?;
        Ok(work.len() == self.work.len() && work.iter().zip(&self.work).all(|(a, b)| a.is(b)))
    }

    fn replay(&self) -> Result<()> {
        let _all = All::enter(&self.gpus)?;
        self.gpus.iter().try_for_each(|gpu| gpu.refuse_while_recording("cuGraphLaunch"))?;
        let (first, others) = self.gpus.split_first().expect("one GPU or more");
        // What the others have queued comes before, and what they queue later comes after.
        for gpu in others {
            let before = gpu.mark_before()?;
            waits(first, before)?;
        }
        let launched = {
            let _guard = first.enter()?;
            self.graph.launch().map_err(|e| first.failed("cuGraphLaunch", e))
        };
        launched?;
        if others.is_empty() {
            return Ok(());
        }
        let done = first.mark_before()?;
        others.iter().try_for_each(|gpu| waits(gpu, done))
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        for gpu in self.gpus.iter().filter(|gpu| gpu.here().is_ok()) {
            // It may be under way, and the memory goes with it.
            let waited = gpu.enter().and_then(|_guard| gpu.synchronize());
            if let Err(e) = waited {
                log::warn!("{e}");
            }
        }
    }
}
