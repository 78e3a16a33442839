//! Page-locked memory on the way to and from the device.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{CudaEvent, result, sys};
use gemv_core::{Element, PieceSource, Result};

use super::gpu::{Block, Gpu, bytes_mut};

/// Bytes of a slot: long enough to hide a copy's start, short enough to overlap.
const SLOT: usize = 2 << 20;
/// Slots that each copying thread alternates between.
const PAIR: usize = 2;

/// Most threads that fill a block: the page cache gives one of them a tenth of the link's speed.
const FEEDERS: usize = 16;

/// A page-locked buffer, and when the device is done with it.
#[derive(Debug)]
struct Slot {
    gpu: Arc<Gpu>,
    at: *mut u8,
    len: usize,
    done: CudaEvent,
    busy: bool,
}

// SAFETY: the pointer is to memory that the slot owns; pages are locked for every thread.
unsafe impl Send for Slot {}

impl Slot {
    fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Slot> {
        let done = gpu.context.new_event(None).map_err(|e| gpu.failed("cuEventCreate", e))?;
        // SAFETY: no flags, so the memory is cached and may be read back. It is cleared, so it
        // never holds uninitialised bytes.
        let at = unsafe {
            let at = result::malloc_host(len, 0).map_err(|e| gpu.failed("cuMemHostAlloc", e))?;
            std::ptr::write_bytes(at.cast::<u8>(), 0, len);
            at.cast()
        };
        Ok(Slot { gpu: gpu.clone(), at, len, done, busy: false })
    }

    /// The buffer, once the device is done with it.
    fn buffer(&mut self) -> Result<&mut [u8]> {
        if self.busy {
            let waited = self.done.synchronize();
            waited.map_err(|e| self.gpu.failed("cuEventSynchronize", e))?;
            self.busy = false;
        }
        // SAFETY: the memory is ours, `len` bytes long and initialised, and no copy is in flight.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.at, self.len) })
    }

    /// Queues a copy of up to SLOT bytes to the device. `from` may be reused on return.
    fn send(&mut self, from: &[u8], to: sys::CUdeviceptr) -> Result<()> {
        self.buffer()?[..from.len()].copy_from_slice(from);
        self.queue(from.len(), to)
    }

    /// Queues a copy of the buffer's first bytes to the device.
    fn queue(&mut self, len: usize, to: sys::CUdeviceptr) -> Result<()> {
        let gpu = self.gpu.clone();
        let buffer = &self.buffer()?[..len];
        let stream = gpu.stream.cu_stream();
        // SAFETY: the destination was checked by `Staging::send` or `Feed::fill`; the buffer is not
        // touched again before the event after the copy.
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
        let freed = gpu.enter().and_then(|_guard| {
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

/// Page-locked slots through which host memory is copied: the driver's own staging of pageable
/// memory reaches a fifth of the link's speed.
#[derive(Debug)]
pub(crate) struct Staging {
    gpu: Arc<Gpu>,
    slots: Vec<Slot>,
    /// The next slot for a copy that fits in one.
    next: usize,
}

impl Staging {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Staging {
        Staging { gpu: gpu.clone(), slots: Vec::new(), next: 0 }
    }

    fn ensure(&mut self, slots: usize) -> Result<()> {
        while self.slots.len() < slots {
            self.slots.push(Slot::new(&self.gpu, SLOT)?);
        }
        Ok(())
    }

    /// How many threads copy so many pieces, each with its slots: one copies host memory at less than the
    /// link's speed.
    fn threads(&mut self, pieces: usize) -> Result<usize> {
        let threads = std::thread::available_parallelism().map_or(1, |p| p.get()).min(4);
        let threads = threads.min(pieces.div_ceil(PAIR));
        self.ensure(threads * PAIR)?;
        Ok(threads)
    }

    /// Queues a copy of host memory to the start of a block. `from` may be reused on return.
    ///
    /// # Panics
    /// If the block is shorter.
    pub(crate) fn send<T: Element>(&mut self, from: &[T], to: &Block) -> Result<()> {
        let from = bytes(from);
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
        if from.len() <= SLOT {
            self.ensure(PAIR)?;
            self.next = (self.next + 1) % PAIR;
            return self.slots[self.next].send(from, to.at);
        }
        let pieces = from.len().div_ceil(SLOT);
        let threads = self.threads(pieces)?;
        let gpu = &self.gpu;
        let worker = |t: usize, slots: &mut [Slot]| -> Result<()> {
            gpu.bind()?;
            for (k, piece) in (t..pieces).step_by(threads).enumerate() {
                let at = piece * SLOT;
                let part = &from[at..from.len().min(at + SLOT)];
                slots[k % PAIR].send(part, to.at + at as u64)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let mut parts = self.slots[..threads * PAIR].chunks_mut(PAIR).enumerate();
            let (_, own) = parts.next().expect("at least one thread");
            let others: Vec<_> =
                parts.map(|(t, slots)| scope.spawn(move || worker(t, slots))).collect();
            let own = worker(0, own);
            let mut outcomes = vec![own];
            outcomes.extend(others.into_iter().map(|o| o.join().expect("a copy does not panic")));
            outcomes.into_iter().collect()
        })
    }

    /// Copies elements from a block to host memory, and waits for all work before it.
    ///
    /// # Panics
    /// If they do not lie in the block.
    pub(crate) fn fetch<T: Element>(
        &mut self,
        from: &Block,
        first: usize,
        to: &mut [T],
    ) -> Result<()> {
        let size = size_of::<T>();
        if size_of_val(to) <= SLOT {
            return self.gpu.read(from, first, to);
        }
        let end = first.checked_add(to.len()).and_then(|e| e.checked_mul(size));
        assert!(end.is_some_and(|e| e <= from.bytes()), "a copy from outside of a block");
        self.gpu.refuse_while_recording("cuMemcpyDtoHAsync")?;
        let per = SLOT / size;
        let threads = self.threads(to.len().div_ceil(per))?;
        let mut parts: Vec<Vec<(u64, &mut [T])>> = (0..threads).map(|_| Vec::new()).collect();
        for (k, piece) in to.chunks_mut(per).enumerate() {
            let at = from.at + ((first + k * per) * size) as u64;
            parts[k % threads].push((at, piece));
        }
        let gpu = &self.gpu;
        let worker = |mut pieces: Vec<(u64, &mut [T])>, slots: &mut [Slot]| -> Result<()> {
            gpu.bind()?;
            for k in 0..=pieces.len() {
                if let Some((at, piece)) = pieces.get(k) {
                    slots[k % PAIR].fetch(*at, size_of_val(&**piece))?;
                }
                // The one before, while this one is on its way.
                if let Some((_, piece)) = k.checked_sub(1).map(|last| &mut pieces[last]) {
                    let to = bytes_mut(piece);
                    to.copy_from_slice(&slots[(k + PAIR - 1) % PAIR].buffer()?[..to.len()]);
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let slots = self.slots[..threads * PAIR].chunks_mut(PAIR);
            let mut shares = parts.into_iter().zip(slots);
            let (own, own_slots) = shares.next().expect("at least one thread");
            let others: Vec<_> =
                shares.map(|(part, slots)| scope.spawn(|| worker(part, slots))).collect();
            let mut outcomes = vec![worker(own, own_slots)];
            outcomes.extend(others.into_iter().map(|o| o.join().expect("a copy does not panic")));
            outcomes.into_iter().collect()
        })
    }

    /// Copies the first elements of a block to the host, waits for all work, and hands them on.
    ///
    /// # Panics
    /// If the block is shorter.
    pub(crate) fn receive<T: Element>(
        &mut self,
        from: &Block,
        len: usize,
        then: impl FnOnce(&[T]),
    ) -> Result<()> {
        let size = len * size_of::<T>();
        if size > SLOT {
            let mut all = vec![T::default(); len];
            self.fetch(from, 0, &mut all)?;
            then(&all);
            return Ok(());
        }
        self.gpu.refuse_while_recording("cuMemcpyDtoHAsync")?;
        self.ensure(1)?;
        let gpu = self.gpu.clone();
        let buffer = &mut self.slots[0].buffer()?[..size];
        // SAFETY: page-locked memory starts on a page; any bits are a value of an element, which
        // is a float or a pair of floats (the trait is sealed).
        let elements = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast(), len) };
        gpu.read::<T>(from, 0, elements)?;
        then(elements);
        Ok(())
    }
}

/// Page-locked pieces through which a block is filled, [`PAIR`] for each thread. They are kept to fill it again.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    slots: Vec<Slot>,
}

impl Feed {
    /// Has `source` write the pieces, by several threads, and queues their copies to the block. The stream keeps
    /// them behind the work that was queued before, and later work behind them.
    ///
    /// The GPU is free for other threads while `source` runs.
    ///
    /// # Panics
    /// If the block is shorter or on another GPU, or if `source` panics.
    pub(crate) fn fill(
        &mut self,
        gpu: &Arc<Gpu>,
        to: &Block,
        bytes: usize,
        source: PieceSource<'_>,
    ) -> Result<()> {
        assert!(to.is_of(gpu) && bytes <= to.bytes(), "a copy beyond the end of a block");
        // With the lock: other threads' records are waited for.
        let guard = gpu.enter()?;
        gpu.refuse_while_recording("cuMemcpyHtoDAsync")?;
        let threads = std::thread::available_parallelism().map_or(1, |p| p.get()).min(FEEDERS);
        // Of one size for this block; the slots have half of it, or a few pages. Elements are whole in each. A
        // thread that may use fewer processors than the first one keeps the size.
        let fitting = to.bytes().div_ceil(2 * threads * PAIR).next_multiple_of(4096).min(SLOT);
        let piece = self.slots.first().map_or(fitting, |slot| slot.len);
        let pieces = bytes.div_ceil(piece);
        let threads = threads.min(pieces.div_ceil(PAIR));
        if threads == 0 {
            return Ok(());
        }
        while self.slots.len() < threads * PAIR {
            self.slots.push(Slot::new(gpu, piece)?);
        }
        drop(guard);
        // Where the caller has the lock, it keeps other threads out for the workers, who would wait for it.
        let held = gpu.is_entered();
        let stopped = AtomicBool::new(false);
        let worker = |t: usize, slots: &mut [Slot]| -> Result<()> {
            // `source` may leave another context current: each call of the driver begins with ours.
            for (k, number) in (t..pieces).step_by(threads).enumerate() {
                let (slot, first) = (&mut slots[k % PAIR], number * piece);
                let len = piece.min(bytes - first);
                gpu.bind()?;
                let filled =
                    !stopped.load(Ordering::Relaxed) && source(first, &mut slot.buffer()?[..len]);
                if !filled {
                    stopped.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                let _guard = if held { None } else { Some(gpu.enter()?) };
                gpu.bind()?;
                slot.queue(len, to.at + first as u64)?;
            }
            Ok(())
        };
        // Of a panic, the others hear too.
        let worker = |t: usize, slots: &mut [Slot]| {
            let done = catch_unwind(AssertUnwindSafe(|| worker(t, slots)));
            if !matches!(done, Ok(Ok(()))) {
                stopped.store(true, Ordering::Relaxed);
            }
            done.unwrap_or_else(|panic| resume_unwind(panic))
        };
        let worker = &worker;
        std::thread::scope(|scope| {
            let mut parts = self.slots[..threads * PAIR].chunks_mut(PAIR).enumerate();
            let (_, own) = parts.next().expect("at least one thread");
            let others: Vec<_> =
                parts.map(|(t, slots)| scope.spawn(move || worker(t, slots))).collect();
            let mut outcome = worker(0, own);
            for other in others {
                let other = other.join().unwrap_or_else(|panic| resume_unwind(panic));
                outcome = outcome.and(other);
            }
            outcome
        })
    }
}

/// The bytes of elements.
fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are floats or pairs of floats (the trait is sealed): no padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
