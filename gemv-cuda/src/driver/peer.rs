//! Copies between GPUs, ordered by events: the host waits for none of them.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use cudarc::driver::{result, sys};
use gemv_core::Result;

use super::gpu::{Block, Gpu, Peers};
use super::probe::LIBRARY;
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
struct Events {
    before: sys::CUevent,
    copied: sys::CUevent,
}

/// Queues the copies, each on the stream of the GPU that it writes.
///
/// A copy waits for what was queued before on both GPUs, and not for the other copies: all of them run at once. What is
/// queued later waits for the copies, on the GPUs that are read as well, so their memory may be written and freed.
///
/// # Panics
/// If a copy is not inside of its blocks.
pub(crate) fn exchange(copies: &[BlockCopy<'_>]) -> Result<()> {
    for copy in copies {
        let inside = |block: &Block, first: usize| {
            first.checked_add(copy.bytes).is_some_and(|end| end <= block.bytes())
        };
        let inside = inside(copy.to, copy.at) && inside(copy.from, copy.first);
        assert!(inside, "a copy from or to the outside of a block");
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
        for copy in copies {
            let gpu = copy.to.gpu();
            // What failed first is told.
            let _ = gpu.enter().and_then(|_guard| gpu.synchronize());
        }
    }
    queued
}

fn queue(copies: &[BlockCopy<'_>]) -> Result<()> {
    let mut gpus: Vec<&Arc<Gpu>> = Vec::new();
    for gpu in copies.iter().flat_map(|copy| [copy.to.gpu(), copy.from.gpu()]) {
        if !gpus.iter().any(|known| Arc::ptr_eq(known, gpu)) {
            gpus.push(gpu);
        }
    }
    let several = gpus.len() > 1;
    for gpu in &gpus {
        if several {
            gpu.mark(gpu.events()?.before)?;
        }
    }
    for gpu in &gpus {
        let mine = copies.iter().filter(|copy| Arc::ptr_eq(copy.to.gpu(), gpu));
        let mut waited: Vec<&Arc<Gpu>> = Vec::new();
        for copy in mine {
            let from = copy.from.gpu();
            if !Arc::ptr_eq(from, gpu) && !waited.iter().any(|known| Arc::ptr_eq(known, from)) {
                gpu.wait_for(from.events()?.before)?;
                gpu.map(from);
                waited.push(from);
            }
            gpu.copy(copy)?;
        }
        if waited.is_empty() {
            continue;
        }
        let Events { copied, .. } = gpu.events()?;
        gpu.mark(copied)?;
        waited.into_iter().try_for_each(|from| from.wait_for(copied))?;
    }
    Ok(())
}

impl Gpu {
    /// Its events, made when they are first needed. They live as long as the GPU.
    fn events(&self) -> Result<Events> {
        let mut peers = lock(&self.peers);
        if peers.is_none() {
            let event =
                || self.context.new_event(None).map_err(|e| self.failed("cuEventCreate", e));
            *peers = Some(Peers { before: event()?, copied: event()?, mapped: Vec::new() });
        }
        let Peers { before, copied, .. } = peers.as_ref().expect("just made");
        Ok(Events { before: before.cu_event(), copied: copied.cu_event() })
    }

    /// What is queued up to here is what this event of this GPU waits for.
    fn mark(&self, event: sys::CUevent) -> Result<()> {
        let _guard = self.enter()?;
        // SAFETY: stream and event are of this GPU, and live as long as it does.
        unsafe { result::event::record(event, self.stream.cu_stream()) }
            .map_err(|e| self.failed("cuEventRecord", e))
    }

    /// What is queued from here on waits for an event, which may be another GPU's.
    fn wait_for(&self, event: sys::CUevent) -> Result<()> {
        let _guard = self.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the stream lives, and so does the GPU whose event it is, as a block of its memory does. Another
        // thread may have recorded the event again: then more is waited for.
        unsafe { result::stream::wait_event(self.stream.cu_stream(), event, flags) }
            .map_err(|e| self.failed("cuStreamWaitEvent", e))
    }

    /// Lets this GPU read another one's memory directly, where the machine can. Else the driver copies through
    /// the host's memory.
    fn map(&self, from: &Gpu) {
        let (here, there) = (self.context.ordinal(), from.context.ordinal());
        let known = |peers: &Peers| peers.mapped.contains(&there);
        if here == there || lock(&self.peers).as_ref().is_some_and(known) {
            return;
        }
        if let Err(e) = self.allow(from) {
            log::warn!("{e}: what {} reads of {} may go through the host", self.id(), from.id());
        }
        if let Some(peers) = &mut *lock(&self.peers) {
            peers.mapped.push(there);
        }
    }

    fn allow(&self, from: &Gpu) -> Result<()> {
        let mut can = 0;
        // SAFETY: both are devices of this driver; the result is written to a local.
        let asked = unsafe {
            sys::cuDeviceCanAccessPeer(&mut can, self.context.cu_device(), from.context.cu_device())
        };
        asked.result().map_err(|e| self.failed("cuDeviceCanAccessPeer", e))?;
        if can == 0 {
            log::debug!("{} cannot read {} directly", self.id(), from.id());
            return Ok(());
        }
        if !from.context.has_async_alloc() {
            let _guard = self.enter()?;
            // SAFETY: both contexts live as long as the GPUs.
            let enabled = unsafe { sys::cuCtxEnablePeerAccess(from.context.cu_ctx(), 0) };
            let known = enabled == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
            return if known { Ok(()) } else { enabled.result() }
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
        allowed.map_err(|e| from.failed("cuMemPoolSetAccess", e))
    }

    /// Queues one copy to this GPU.
    fn copy(&self, copy: &BlockCopy<'_>) -> Result<()> {
        let _guard = self.enter()?;
        let (to, from) = (copy.to.at + copy.at as u64, copy.from.at + copy.first as u64);
        let (stream, source) = (self.stream.cu_stream(), &copy.from.gpu().context);
        // SAFETY: both lie in their blocks. Work on either that was queued before is waited for, and later work
        // waits for the copy, so the blocks are neither written nor freed before.
        let queued = unsafe {
            if *source == self.context {
                result::memcpy_dtod_async(to, from, copy.bytes, stream)
            } else {
                let (here, there) = (self.context.cu_ctx(), source.cu_ctx());
                result::memcpy_peer_async(here, to, there, from, copy.bytes, stream)
            }
        };
        queued.map_err(|e| self.failed("cuMemcpyPeerAsync", e))
    }
}
