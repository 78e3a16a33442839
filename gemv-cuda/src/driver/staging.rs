//! Page-locked memory on the way to and from the device.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, result, sys};
use gemv_core::{Error, PieceSource, Result, host_is_full, zeros_on_host};

use super::current::{Caller, Held};
use super::gpu::{Block, Gpu, NO_MEMORY};
use crate::pool::{PAIR, Pool, Taken, deal, each};

/// Bytes of a slot: long enough to hide a copy's start, short enough to overlap.
const SLOT: usize = 2 << 20;
/// Most threads that copy host memory: one copies at less than the link's speed.
const COPIERS: usize = 4;
/// Most threads that fill a block: the page cache gives one of them a tenth of the link's speed.
const FEEDERS: usize = 16;

/// A page-locked buffer, and when the device is done with it.
#[derive(Debug)]
struct Slot {
    gpu: Arc<Gpu>,
    at: *mut u8,
    done: Held<CudaEvent>,
    busy: bool,
}

// SAFETY: the pointer is to memory that the slot owns; pages are locked for every thread.
unsafe impl Send for Slot {}

impl Slot {
    fn new(gpu: &Arc<Gpu>) -> Result<Slot> {
        let done = gpu.context.new_event(None).map_err(|e| gpu.failed("cuEventCreate", e))?;
        // SAFETY: no flags, so the memory is cached and may be read back. It is cleared, so it
        // never holds uninitialised bytes.
        let at = unsafe {
            let at = result::malloc_host(SLOT, 0).map_err(|e| match e {
                NO_MEMORY => full(SLOT),
                e => gpu.failed("cuMemHostAlloc", e),
            })?;
            std::ptr::write_bytes(at.cast::<u8>(), 0, SLOT);
            at.cast()
        };
        Ok(Slot { gpu: gpu.clone(), at, done: Held::new(done), busy: false })
    }

    /// The buffer, once the device is done with it.
    fn buffer(&mut self) -> Result<&mut [u8]> {
        if self.busy {
            let _caller = Caller::now();
            let waited = self.done.synchronize();
            waited.map_err(|e| self.gpu.failed("cuEventSynchronize", e))?;
            self.busy = false;
        }
        // SAFETY: the memory is ours, SLOT bytes long and initialised, and no copy is in flight.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.at, SLOT) })
    }

    /// Queues a copy of the buffer's first bytes to the device.
    fn queue(&mut self, len: usize, to: sys::CUdeviceptr) -> Result<()> {
        let gpu = self.gpu.clone();
        let buffer = &self.buffer()?[..len];
        let stream = gpu.stream.cu_stream();
        // SAFETY: the destination was checked by `Staging::pieces`; the buffer is not touched again before the
        // event after the copy.
        unsafe { result::memcpy_htod_async(to, buffer, stream) }
            .map_err(|e| gpu.failed("cuMemcpyHtoDAsync", e))?;
        self.in_flight()
    }

    /// Queues a copy of up to SLOT bytes from the device; [`Slot::buffer`] has them.
    fn fetch(&mut self, from: sys::CUdeviceptr, len: usize) -> Result<()> {
        let gpu = self.gpu.clone();
        let buffer = &mut self.buffer()?[..len];
        // SAFETY: the source was checked by `Staging::fetch`; the buffer is not touched again before the
        // event after the copy.
        unsafe { result::memcpy_dtoh_async(buffer, from, gpu.stream.cu_stream()) }
            .map_err(|e| gpu.failed("cuMemcpyDtoHAsync", e))?;
        self.in_flight()
    }

    /// The buffer is the device's until the copy that was just queued is over.
    fn in_flight(&mut self) -> Result<()> {
        let recorded = self.done.record(&self.gpu.stream);
        self.busy = recorded.is_ok();
        if recorded.is_err() {
            // No event will say so.
            self.gpu.synchronize()?;
        }
        recorded.map_err(|e| self.gpu.failed("cuEventRecord", e))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let gpu = self.gpu.clone();
        if gpu.here().is_err() {
            return;
        }
        let freed = gpu.enter_to_free().and_then(|_guard| {
            if gpu.recording() {
                gpu.free_host_later(self.at);
                return Ok(());
            }
            self.buffer()?;
            // SAFETY: allocated by `new`, not in use any more, and freed once.
            unsafe { result::free_host(self.at.cast()) }
                .map_err(|e| self.gpu.failed("cuMemFreeHost", e))
        });
        if let Err(e) = freed {
            log::warn!("{e}");
        }
    }
}

/// Frees the memory of slots that were dropped while launches were recorded.
pub(super) fn free_host(gpu: &Gpu, slots: Vec<usize>) -> Result<()> {
    if slots.is_empty() {
        return Ok(());
    }
    gpu.synchronize()?;
    slots.into_iter().try_for_each(|at| {
        // SAFETY: allocated by `Slot::new`, given up by its slot, and freed once; no copy is in flight.
        unsafe { result::free_host(at as *mut _) }.map_err(|e| gpu.failed("cuMemFreeHost", e))
    })
}

/// Page-locked slots through which host memory is copied: the driver's own staging of pageable memory reaches a
/// fifth of the link's speed. They are kept for the next copy, and freed with the device.
#[derive(Debug)]
pub(crate) struct Staging {
    gpu: Arc<Gpu>,
    slots: Pool<Slot>,
}

impl Staging {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Staging {
        Staging { gpu: gpu.clone(), slots: Pool::new((FEEDERS + COPIERS) * PAIR) }
    }

    /// Slots for so many pieces: a pair for each of at most so many threads.
    fn take(&self, pieces: usize, most: usize) -> Result<Taken<'_, Slot>> {
        let threads = std::thread::available_parallelism().map_or(1, |p| p.get()).min(most);
        let slots = pieces.min(threads.min(pieces.div_ceil(PAIR)) * PAIR);
        self.slots.take(slots, || Slot::new(&self.gpu))
    }

    /// Queues a copy of host memory to the start of a block. `from` may be reused on return.
    ///
    /// # Panics
    /// If the block is shorter.
    pub(crate) fn send(&self, from: &[u8], to: &Block) -> Result<()> {
        assert!(from.len() <= to.bytes(), "a copy beyond the end of a block");
        self.gpu.refuse_while_recording("cuMemcpyHtoDAsync")?;
        if !from.len().is_multiple_of(16) {
            // The rest of the last vector is read and not used: read all the same.
            let (rest, end) = (16 - from.len() % 16, to.at + from.len() as u64);
            let stream = self.gpu.stream.cu_stream();
            // SAFETY: blocks are multiples of 16 bytes long.
            unsafe { result::memset_d8_async(end, 0, rest, stream) }
                .map_err(|e| self.gpu.failed("cuMemsetD8Async", e))?;
        }
        let copy = |first: usize, piece: &mut [u8]| {
            piece.copy_from_slice(&from[first..][..piece.len()]);
            true
        };
        self.pieces(to, from.len(), SLOT, COPIERS, &copy)
    }

    /// Has `source` write the pieces, by several threads, and queues their copies to the block. The stream keeps
    /// them behind the work that was queued before, and later work behind them.
    ///
    /// The GPU is free for other threads while `source` runs, unless the caller has its lock.
    ///
    /// # Panics
    /// If the block is shorter or on another GPU, or if `source` panics.
    pub(crate) fn fill(&self, to: &Block, bytes: usize, source: PieceSource<'_>) -> Result<()> {
        // Of one size for this block: several for each thread, of whole pages. Elements are whole in each.
        let pieces = 2 * FEEDERS * PAIR;
        let piece = to.bytes().div_ceil(pieces).next_multiple_of(4096).min(SLOT);
        self.pieces(to, bytes, piece, FEEDERS, source)
    }

    /// The copies of [`send`](Self::send) and [`fill`](Self::fill): of `piece` bytes each, on at most so many threads.
    fn pieces(
        &self,
        to: &Block,
        bytes: usize,
        piece: usize,
        threads: usize,
        source: PieceSource<'_>,
    ) -> Result<()> {
        let gpu = &self.gpu;
        assert!(to.is_of(gpu) && bytes <= to.bytes(), "a copy beyond the end of a block");
        // With the lock: other threads' records are waited for.
        let guard = gpu.enter()?;
        gpu.refuse_while_recording("cuMemcpyHtoDAsync")?;
        let pieces = bytes.div_ceil(piece);
        if pieces == 0 {
            return Ok(());
        }
        let mut slots = self.take(pieces, threads)?;
        drop(guard);
        // Where the caller has the lock, it keeps other threads out for those that are started here, who would wait
        // for it.
        let held = gpu.is_entered();
        deal(&mut slots, pieces, &|slot, number| {
            let first = number * piece;
            let len = piece.min(bytes - first);
            if !source(first, &mut slot.buffer()?[..len]) {
                return Ok(false);
            }
            let _guard = if held { None } else { Some(gpu.enter()?) };
            // As entering does: the thread is new, or `source` has left another context current.
            let _caller = if held { Some(gpu.bind()?) } else { None };
            slot.queue(len, to.at + first as u64)?;
            Ok(true)
        })
    }

    /// Copies bytes from a block, from this one on, to host memory, and waits for all work before it.
    ///
    /// # Panics
    /// If they do not lie in the block.
    pub(crate) fn fetch(&self, from: &Block, first: usize, to: &mut [u8]) -> Result<()> {
        if to.len() <= SLOT {
            return self.gpu.read(from, first, to);
        }
        let end = first.checked_add(to.len());
        assert!(end.is_some_and(|e| e <= from.bytes()), "a copy from outside of a block");
        self.gpu.refuse_while_recording("cuMemcpyDtoHAsync")?;
        let pieces = to.len().div_ceil(SLOT);
        let mut slots = self.take(pieces, COPIERS)?;
        let threads = slots.len().div_ceil(PAIR);
        let mut parts: Vec<Vec<(u64, &mut [u8])>> = (0..threads).map(|_| Vec::new()).collect();
        for part in &mut parts {
            let each = pieces.div_ceil(threads);
            part.try_reserve_exact(each).map_err(|_| full(each * size_of::<(u64, &[u8])>()))?;
        }
        for (k, piece) in to.chunks_mut(SLOT).enumerate() {
            let at = from.at + (first + k * SLOT) as u64;
            parts[k % threads].push((at, piece));
        }
        let gpu = &self.gpu;
        let worker = |mut pieces: Vec<(u64, &mut [u8])>, slots: &mut [Slot]| -> Result<()> {
            let _caller = gpu.bind()?;
            for k in 0..=pieces.len() {
                if let Some((at, piece)) = pieces.get(k) {
                    slots[k % PAIR].fetch(*at, piece.len())?;
                }
                // The one before, while this one is on its way.
                if let Some((_, piece)) = k.checked_sub(1).map(|last| &mut pieces[last]) {
                    let from = &slots[(k + PAIR - 1) % PAIR].buffer()?[..piece.len()];
                    piece.copy_from_slice(from);
                }
            }
            Ok(())
        };
        let shares = parts.into_iter().zip(slots.chunks_mut(PAIR)).collect();
        each(shares, &|(part, slots)| worker(part, slots))
    }

    /// Copies the first bytes of a block to the host, waits for all work, and hands them on.
    ///
    /// # Panics
    /// If the block is shorter.
    pub(crate) fn receive(
        &self,
        from: &Block,
        bytes: usize,
        then: impl FnOnce(&[u8]),
    ) -> Result<()> {
        if bytes > SLOT {
            let mut all = zeros_on_host(bytes)?;
            self.fetch(from, 0, &mut all)?;
            then(&all);
            return Ok(());
        }
        self.gpu.refuse_while_recording("cuMemcpyDtoHAsync")?;
        let mut slots = self.take(1, 1)?;
        let buffer = &mut slots[0].buffer()?[..bytes];
        self.gpu.read(from, 0, buffer)?;
        then(buffer);
        Ok(())
    }
}

/// The error for so many bytes of the host's memory.
fn full(asked: usize) -> Error {
    host_is_full("the host", asked as u64)
}
