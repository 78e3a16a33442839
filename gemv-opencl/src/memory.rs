//! What a device's lock guards, and the memory that is behind operands.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gemv_core::float_mode::{ForCalls, for_calls};
use gemv_core::fork::forks;
use gemv_core::{Dtype, Error, Memory, Owner, Result};
use ocl::core;

use crate::cl::{Failure, Queue};
use crate::discover::Found;
use crate::programs::Programs;

/// The queue of a device and all that is used with it, by one thread at a time.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) queue: Queue,
    /// They live as long as the device; they are used without its lock.
    pub(crate) programs: Arc<Programs>,
    pub(crate) buffers: Buffers,
}

impl State {
    pub(crate) fn new(queue: Queue, programs: Arc<Programs>) -> Result<State, Failure> {
        let dummy = queue.buffer(64)?;
        let buffers = Buffers { kept: [const { None }; SLOTS], counters: None, dummy };
        Ok(State { queue, programs, buffers })
    }
}

/// A thread's hold on a device: no other has it. The driver may compute on this thread, which is in the default
/// floating-point mode.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    state: MutexGuard<'a, State>,
    _mode: ForCalls,
}

impl Deref for Entered<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

pub(crate) fn lock(state: &Mutex<State>) -> Entered<'_> {
    // A panic leaves at worst a cache without an entry, which is in order.
    Entered { state: state.lock().unwrap_or_else(PoisonError::into_inner), _mode: for_calls() }
}

/// Buffers for what is not resident.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Kept from one product to the next, with their bytes.
    kept: [Option<(core::Mem, usize)>; SLOTS],
    /// Counters of blocks, with their bytes: 0 before and after every product. Kept whatever their size, which is four bytes for
    /// each set of rows.
    counters: Option<(core::Mem, usize)>,
    /// In place of an operand that is not read: not every driver accepts null.
    pub(crate) dummy: core::Mem,
}

/// What a kept buffer is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slot {
    A,
    X,
    Y,
    Workspace,
}
const SLOTS: usize = Slot::Workspace as usize + 1;
/// Larger buffers are released after the product.
const MAX_KEPT_BYTES: usize = 64 << 20;

impl Buffers {
    /// A buffer of at least this many bytes, with any contents.
    pub(crate) fn get(
        &mut self,
        queue: &Queue,
        found: &Found,
        slot: Slot,
        bytes: usize,
    ) -> Result<core::Mem> {
        let kept = &mut self.kept[slot as usize];
        if let Some((mem, size)) = kept
            && *size >= bytes
        {
            return Ok(mem.clone());
        }
        // The old one goes first, so that both need not fit.
        *kept = None;
        let size = bytes.next_multiple_of(4096).min(found.largest.max(bytes as u64) as usize);
        let mem = new_buffer(queue, found, size)?;
        *kept = Some((mem.clone(), size));
        Ok(mem)
    }

    /// So many counters, all 0. After a failure they are made anew: a product that did not run to its end may have left other
    /// values.
    pub(crate) fn counters(
        &mut self,
        queue: &Queue,
        found: &Found,
        count: u64,
    ) -> Result<core::Mem> {
        let bytes = (count as usize).saturating_mul(size_of::<u32>());
        if bytes == 0 {
            return Ok(self.dummy.clone());
        }
        match &self.counters {
            _ if queue.take_failed() => self.counters = None,
            Some((mem, size)) if *size >= bytes => return Ok(mem.clone()),
            _ => self.counters = None,
        }
        let size = bytes.next_multiple_of(4096).min(found.largest.max(bytes as u64) as usize);
        let mem = new_buffer(queue, found, size)?;
        queue.zero(&mem, size).map_err(|e| found.failed(e, size))?;
        self.counters = Some((mem.clone(), size));
        Ok(mem)
    }

    pub(crate) fn trim(&mut self) {
        for kept in &mut self.kept {
            kept.take_if(|k| k.1 > MAX_KEPT_BYTES);
        }
    }
}

/// A buffer that is not shared with anything.
pub(crate) fn new_buffer(queue: &Queue, found: &Found, bytes: usize) -> Result<core::Mem> {
    let out =
        |free| Error::OutOfMemory { device: found.info.id.clone(), asked: bytes as u64, free };
    if bytes as u64 > found.largest {
        return Err(out(Some(found.largest)));
    }
    queue.buffer(bytes).map_err(|e| match e.is_memory() {
        true => out(None),
        false => e.on(&found.info.id),
    })
}

/// The memory of a resident operand.
pub(crate) struct Block {
    /// `None` only while it is being dropped.
    mem: Option<core::Mem>,
    len: usize,
    dtype: Dtype,
    /// [`Queue::id`] of its device.
    device: usize,
    state: Arc<Mutex<State>>,
    /// [`forks`] when it was made.
    forks: u32,
    /// Of memory of another library.
    foreign: Option<OfAnother>,
}

/// What a block of another library's memory is.
struct OfAnother {
    /// The buffer that it is a part of, or itself, and the bytes before it there.
    place: (usize, usize),
    writable: bool,
    /// Dropped with the block.
    _keep: Box<dyn Any + Send + Sync>,
}

impl Block {
    /// As memory of another library.
    pub(crate) fn of_another(
        mut self,
        place: (usize, usize),
        writable: bool,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Block {
        self.foreign = Some(OfAnother { place, writable, _keep: keep });
        self
    }

    pub(crate) fn new(
        mem: core::Mem,
        len: usize,
        dtype: Dtype,
        device: usize,
        state: Arc<Mutex<State>>,
    ) -> Block {
        Block { mem: Some(mem), len, dtype, device, state, forks: forks(), foreign: None }
    }

    /// The block behind an operand of this device.
    ///
    /// # Panics
    /// If it is another backend's or device's, or holds another type.
    pub(crate) fn of<'a>(memory: &'a dyn Memory, dtype: Dtype, queue: &Queue) -> &'a Block {
        let any: &dyn Any = memory;
        let block = any.downcast_ref::<Block>().expect("memory of an OpenCL device");
        // A driver need not look for itself: PoCL reads a buffer of another context.
        assert_eq!(block.device, queue.id(), "memory of another OpenCL device");
        assert_eq!(block.dtype, dtype, "memory of another type");
        block
    }

    pub(crate) fn mem(&self) -> &core::Mem {
        self.mem.as_ref().expect("alive")
    }

    /// # Panics
    /// If so many elements from `first` on do not lie within the block.
    pub(crate) fn assert_holds(&self, first: usize, len: usize) {
        let end = first.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "an operand beyond its block");
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} x {})", self.len, self.dtype)
    }
}

impl Memory for Block {
    fn len(&self) -> usize {
        self.len
    }

    fn handle(&self) -> Option<usize> {
        Some(self.mem().as_ptr().addr())
    }

    fn place(&self) -> Option<(usize, usize)> {
        let own = || Some((self.handle()?, 0));
        self.foreign.as_ref().map_or_else(own, |foreign| Some(foreign.place))
    }

    fn owner(&self) -> Owner {
        let of = |foreign: &OfAnother| Owner::Foreign { writable: foreign.writable };
        self.foreign.as_ref().map_or(Owner::Backend, of)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.forks != forks() {
            // The driver would wait for threads of the process that this one was forked from.
            std::mem::forget((self.mem.take(), self.state.clone()));
            return;
        }
        // Released under the lock, as every call to the driver.
        let _guard = lock(&self.state);
        self.mem = None;
    }
}
