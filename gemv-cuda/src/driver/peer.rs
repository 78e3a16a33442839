//! Copies between GPUs, ordered by events: the host waits for none of them.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use cudarc::driver::{result, sys};
use gemv_core::{Exchange, Result};

use super::current::{Caller, Held};
use super::function::Keep;
use super::gpu::{Block, Gpu, Peers};
use super::probe::LIBRARY;
use super::tape::{Copied, End, List, Mode, Work};
use crate::lock::lock;

/// Bytes that one block gets of another one, which may be another GPU's.
#[derive(Debug)]
pub(crate) struct BlockCopy<'a> {
    pub(crate) to: &'a Block,
    pub(crate) at: usize,
    pub(crate) from: &'a Block,
    pub(crate) first: usize,
    pub(crate) bytes: usize,
}

/// `cuMemPoolSetAccess`.
type SetAccess = unsafe extern "C" fn(sys::CUmemoryPool, *const PoolAccess, usize) -> sys::CUresult;

/// `CUmemAccessDesc`: cudarc spells it in another way for some versions of CUDA, all of one layout.
#[repr(C)]
struct PoolAccess {
    kind: c_uint,
    id: c_int,
    rights: c_uint,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_AND_WRITE: c_uint = 3;

/// The driver's handles of a GPU's [`Peers`].
#[derive(Clone, Copy)]
struct Handles {
    copies: sys::CUstream,
    before: sys::CUevent,
    copied: sys::CUevent,
}

/// Copies that were queued, for which later work on the GPUs does not wait yet.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// A GPU that is written, and those that it reads, itself among them or not.
    of: Vec<(Arc<Gpu>, Vec<Arc<Gpu>>)>,
    /// The memory of the blocks.
    _memory: Vec<Keep>,
}

/// Queues the copies, each on a stream for copies of the GPU that it writes.
///
/// A copy waits for what was queued before on both GPUs, and not for the other copies: all of them run at once, and
/// beside what is queued next. What is queued after [`InFlight::finish`] waits for the copies, on the GPUs that are read
/// as well, so their memory may be written and freed.
///
/// # Panics
/// If a copy is not inside of its blocks.
pub(crate) fn exchange(copies: &[BlockCopy<'_>]) -> Result<InFlight> {
    for copy in copies {
        let inside = |block: &Block, first: usize| {
            first.checked_add(copy.bytes).is_some_and(|end| end <= block.bytes())
        };
        let inside = inside(copy.to, copy.at) && inside(copy.from, copy.first);
        assert!(inside, "a copy from or to the outside of a block");
    }
    if list_copies(copies)? {
        return Ok(InFlight { of: Vec::new(), _memory: Vec::new() });
    }
    for copy in copies {
        for gpu in [copy.to.gpu(), copy.from.gpu()] {
            // Another thread's record ends before this enters.
            let _guard = gpu.enter()?;
            gpu.refuse_while_recording("cuMemcpyPeerAsync")?;
        }
    }
    let queued = queue(copies);
    if queued.is_err() {
        // Nothing orders what was queued.
        wait(copies.iter().map(|copy| copy.to.gpu()));
    }
    queued
}

/// Where the work of the GPUs is listed, puts the copies on the list; whether it is.
///
/// # Errors
/// If the work of one is recorded with that of others, or the memory is another library's.
fn list_copies(copies: &[BlockCopy<'_>]) -> Result<bool> {
    let mut list: Option<List> = None;
    let mut all = Vec::new();
    for copy in copies {
        let end = |block: &Block, first: usize| -> Result<Option<(End, List)>> {
            let gpu = block.gpu();
            if !(gpu.recording() && gpu.is_entered()) {
                return Ok(None);
            }
            // Steps that wait for others come before.
            gpu.end_chain(None)?;
            let tape = lock(&gpu.tape);
            let Mode::List { gpu: place, list } = &tape.mode else { return Ok(None) };
            if !block.is_of_the_pool() {
                let reason = "memory of another library cannot be recorded over several GPUs";
                return Err(gpu.refused("exchange", reason));
            }
            let address = block.at + first as u64;
            Ok(Some((End { gpu: *place, address, memory: block.keep() }, list.clone())))
        };
        let (from, to) = (end(copy.from, copy.first)?, end(copy.to, copy.at)?);
        let (Some((from, of_from)), Some((to, of_to))) = (from, to) else { continue };
        let known = list.get_or_insert_with(|| of_from.clone());
        if Arc::ptr_eq(known, &of_from) && Arc::ptr_eq(known, &of_to) {
            all.push(Copied { from, to, bytes: copy.bytes });
        }
    }
    let Some(list) = list else { return Ok(false) };
    if all.len() < copies.len() {
        let reason = "it copies from or to a device that is not recorded with the others";
        return Err(copies[0].to.gpu().refused("exchange", reason));
    }
    lock(&list).push(Work::Copies(all));
    Ok(true)
}

fn queue(copies: &[BlockCopy<'_>]) -> Result<InFlight> {
    let mut gpus: Vec<&Arc<Gpu>> = Vec::new();
    for gpu in copies.iter().flat_map(|copy| [copy.to.gpu(), copy.from.gpu()]) {
        if !gpus.iter().any(|known| Arc::ptr_eq(known, gpu)) {
            gpus.push(gpu);
        }
    }
    for gpu in &gpus {
        let _guard = gpu.enter()?;
        gpu.mark(gpu.handles()?.before, gpu.stream.cu_stream())?;
    }
    let mut of = Vec::new();
    for gpu in &gpus {
        let mine = copies.iter().filter(|copy| Arc::ptr_eq(copy.to.gpu(), gpu));
        let mut read: Vec<Arc<Gpu>> = Vec::new();
        let _guard = gpu.enter()?;
        let handles = gpu.handles()?;
        for copy in mine {
            if read.is_empty() {
                gpu.wait_for(handles.before, handles.copies)?;
            }
            let from = copy.from.gpu();
            if !read.iter().any(|known| Arc::ptr_eq(known, from)) {
                if !Arc::ptr_eq(from, gpu) {
                    gpu.wait_for(from.handles()?.before, handles.copies)?;
                }
                read.push(from.clone());
            }
            gpu.copy(copy, handles.copies)?;
        }
        if !read.is_empty() {
            gpu.mark(handles.copied, handles.copies)?;
            of.push((Arc::clone(gpu), read));
        }
    }
    let blocks = copies.iter().flat_map(|copy| [copy.to, copy.from]);
    Ok(InFlight { of, _memory: blocks.map(Block::keep).collect() })
}

/// Waits for all work of these GPUs, and for the copies to them.
fn wait<'a>(gpus: impl Iterator<Item = &'a Arc<Gpu>>) {
    for gpu in gpus {
        // What failed first is told.
        let _ = gpu.enter().and_then(|_guard| {
            gpu.synchronize()?;
            let copies = gpu.handles()?.copies;
            // SAFETY: the stream lives as long as the GPU.
            let done = unsafe { result::stream::synchronize(copies) };
            done.map_err(|e| gpu.failed("cuStreamSynchronize", e))
        });
    }
}

impl InFlight {
    /// Has later work of the GPUs wait for the copies.
    fn order(&mut self) -> Result<()> {
        let of = std::mem::take(&mut self.of);
        let ordered = of.iter().try_for_each(|(to, read)| {
            let copied = to.handles()?.copied;
            let others = read.iter().filter(|from| !Arc::ptr_eq(from, to));
            std::iter::once(to).chain(others).try_for_each(|gpu| {
                let _guard = gpu.enter()?;
                gpu.refuse_while_recording("cuStreamWaitEvent")?;
                gpu.wait_for(copied, gpu.stream.cu_stream())
            })
        });
        if ordered.is_err() {
            wait(of.iter().map(|(to, _)| to));
        }
        ordered
    }
}

impl Exchange for InFlight {
    fn finish(mut self: Box<Self>) -> Result<()> {
        self.order()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Err(e) = self.order() {
            log::warn!("{e}");
        }
    }
}

impl Gpu {
    /// What it has for copies to it, made when it is first needed. It lives as long as the GPU.
    fn handles(&self) -> Result<Handles> {
        self.here()?;
        let mut peers = lock(&self.peers);
        if peers.is_none() {
            // Another GPU's may be current.
            let _caller = Caller::now();
            let event =
                || self.context.new_event(None).map_err(|e| self.failed("cuEventCreate", e));
            let copies = self.context.new_stream();
            *peers = Some(Peers {
                copies: Held::new(copies.map_err(|e| self.failed("cuStreamCreate", e))?),
                before: Held::new(event()?),
                copied: Held::new(event()?),
                direct: Vec::new(),
            });
        }
        let Peers { copies, before, copied, .. } = peers.as_ref().expect("just made");
        let (before, copied) = (before.cu_event(), copied.cu_event());
        Ok(Handles { copies: copies.cu_stream(), before, copied })
    }

    /// What a stream of this GPU has up to here is what this event of the GPU waits for.
    pub(super) fn mark(&self, event: sys::CUevent, stream: sys::CUstream) -> Result<()> {
        // SAFETY: stream and event are of this GPU, and live as long as it does.
        unsafe { result::event::record(event, stream) }.map_err(|e| self.failed("cuEventRecord", e))
    }

    /// What a stream of this GPU gets from here on waits for an event, which may be another GPU's.
    pub(super) fn wait_for(&self, event: sys::CUevent, stream: sys::CUstream) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the stream lives, and so does the GPU whose event it is, as a block of its memory does. Another
        // thread may have recorded the event again: then more is waited for.
        unsafe { result::stream::wait_event(stream, event, flags) }
            .map_err(|e| self.failed("cuStreamWaitEvent", e))
    }

    /// Whether this GPU reads and writes another one's memory directly.
    pub(super) fn reaches(&self, other: &Gpu) -> Result<bool> {
        self.handles()?;
        Ok(self.reads(other))
    }

    /// The event for what this GPU has up to here.
    pub(super) fn mark_before(&self) -> Result<sys::CUevent> {
        let _guard = self.enter()?;
        let before = self.handles()?.before;
        self.mark(before, self.stream.cu_stream())?;
        Ok(before)
    }

    /// Whether this GPU reads another one's memory directly. The first call allows it, where the machine can. Else the
    /// driver may copy through the host's memory.
    fn reads(&self, from: &Gpu) -> bool {
        let (here, there) = (self.context.ordinal(), from.context.ordinal());
        let known = |peers: &Peers| peers.direct.iter().find(|(of, _)| *of == there).copied();
        if let Some((_, direct)) = lock(&self.peers).as_ref().and_then(known) {
            return direct;
        }
        let direct = here == there
            || self.allow(from).unwrap_or_else(|e| {
                let (here, there) = (self.id(), from.id());
                log::warn!("{e}: what {here} reads of {there} may go through the host");
                false
            });
        if let Some(peers) = &mut *lock(&self.peers) {
            peers.direct.push((there, direct));
        }
        direct
    }

    fn allow(&self, from: &Gpu) -> Result<bool> {
        let mut can = 0;
        // SAFETY: both are devices of this driver; the result is written to a local.
        let asked = unsafe {
            sys::cuDeviceCanAccessPeer(&mut can, self.context.cu_device(), from.context.cu_device())
        };
        asked.result().map_err(|e| self.failed("cuDeviceCanAccessPeer", e))?;
        if can == 0 {
            log::debug!("{} cannot read {} directly", self.id(), from.id());
            return Ok(false);
        }
        if !from.context.has_async_alloc() {
            let _guard = self.enter()?;
            // SAFETY: both contexts live as long as the GPUs.
            let enabled = unsafe { sys::cuCtxEnablePeerAccess(from.context.cu_ctx(), 0) };
            let known = enabled == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
            return if known { Ok(()) } else { enabled.result() }
                .map(|()| true)
                .map_err(|e| self.failed("cuCtxEnablePeerAccess", e));
        }
        // What a stream allocates is of the device's pool, which has rights of its own.
        let library = LIBRARY.get().expect("the driver was found");
        // SAFETY: the type is the one that cuda.h declares for this symbol; the library stays loaded.
        let allow = unsafe { library.get::<SetAccess>(b"cuMemPoolSetAccess") };
        let allow = allow.expect("looked for with the driver");
        let access = PoolAccess {
            kind: DEVICE,
            id: self.context.ordinal() as c_int,
            rights: READ_AND_WRITE,
        };
        // SAFETY: the pool is the one from which that device's memory comes; the description is a local.
        let allowed = unsafe {
            result::device::get_default_mem_pool(from.context.cu_device())
                .and_then(|pool| allow(pool, &access, 1).result())
        };
        allowed.map(|()| true).map_err(|e| from.failed("cuMemPoolSetAccess", e))
    }

    /// Queues one copy to this GPU.
    fn copy(&self, copy: &BlockCopy<'_>, stream: sys::CUstream) -> Result<()> {
        let (to, from) = (copy.to.at + copy.at as u64, copy.from.at + copy.first as u64);
        let source = copy.from.gpu();
        let direct = self.reads(source);
        // SAFETY: both lie in their blocks. Work on either that was queued before is waited for. `InFlight` keeps the
        // blocks until later work waits for the copy, so they are not freed before.
        let queued = unsafe {
            if direct {
                // The host and the GPUs take less time for it than for the call below.
                result::memcpy_dtod_async(to, from, copy.bytes, stream)
            } else {
                let (here, there) = (self.context.cu_ctx(), source.context.cu_ctx());
                result::memcpy_peer_async(here, to, there, from, copy.bytes, stream)
            }
        };
        let call = if direct { "cuMemcpyDtoDAsync" } else { "cuMemcpyPeerAsync" };
        queued.map_err(|e| self.failed(call, e))
    }
}
