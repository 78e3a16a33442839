//! A GPU, opened: its memory and its programs.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};
use cudarc::nvrtc::Ptx;
use gemv_core::float_mode::for_calls;
use gemv_core::fork::{check, forks};
use gemv_core::{Error, Result};
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use super::current::{BesideCaptures, Caller, Held};
use super::foreign_stream::ForeignStream;
use super::function::{Function, Keep, LaunchEx, RECORDS_EARLY};
use super::nvrtc::{Image, refused_ptx};
use super::probe::{LIBRARY, probe};
use super::spare::Spare;
use super::tape::{Mode, Tape};
use crate::lock::lock;

/// A GPU's primary context (shared with other libraries, never reset) and one stream, of ours or of another library.
#[derive(Debug)]
pub(crate) struct Gpu {
    id: String,
    /// [`forks`] when it was opened.
    forks: u32,
    pub(super) context: Held<Arc<CudaContext>>,
    pub(super) stream: Held<Arc<CudaStream>>,
    /// Bytes of shared memory that a block may have without and with asking.
    pub(super) shared: (u32, u32),
    max_group: u32,
    /// Multiprocessors.
    pub(super) units: u32,
    /// Bytes of the L2 cache.
    pub(super) cache: u64,
    /// `cuLaunchKernelEx`, where the driver can record what it queues.
    pub(super) launch_ex: Option<LaunchEx>,
    /// Held by whoever queues work, and by [`Gpu::timed`] while it records, so that nothing of
    /// another thread gets into the record.
    queue: ReentrantMutex<()>,
    /// Whether launches are recorded in place of being run: memory cannot be had then, nor copied to or
    /// from the host.
    pub(super) recording: AtomicBool,
    /// What becomes of the launches while they are recorded.
    pub(super) tape: Mutex<Tape>,
    /// For copies to and from other GPUs.
    pub(super) peers: Mutex<Option<Peers>>,
    /// Memory that nobody has.
    spare: Mutex<Spare>,
    /// Where the stream is another library's.
    pub(super) foreign: Option<ForeignStream>,
}

/// What a GPU has for copies to and from others.
#[derive(Debug)]
pub(super) struct Peers {
    /// Copies to this GPU, beside the work of its stream.
    pub(super) copies: Held<Arc<CudaStream>>,
    /// What the GPU's stream had before the copies.
    pub(super) before: Held<CudaEvent>,
    /// The copies to this GPU.
    pub(super) copied: Held<CudaEvent>,
    /// Ordinals of GPUs, and whether this one reads their memory directly.
    pub(super) direct: Vec<(usize, bool)>,
}

/// A thread's hold on a GPU's stream: no other thread has it, and the GPU's context is current.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    // Dropped first: the caller's context is current again.
    _caller: Caller,
    _queue: ReentrantMutexGuard<'a, ()>,
}
/// What the driver says where there is no memory.
pub(super) const NO_MEMORY: DriverError = DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY);

/// A block of device memory.
#[derive(Debug)]
pub(crate) struct Block {
    memory: Arc<Allocation>,
    pub(super) at: sys::CUdeviceptr,
    pub(super) bytes: usize,
}

/// Memory that a block has, and a record of work on it. Given up in the order of the stream, so that work
/// in flight may use it.
#[derive(Debug)]
pub(super) struct Allocation {
    gpu: Arc<Gpu>,
    at: sys::CUdeviceptr,
    size: usize,
    kind: Kind,
}

/// Where memory comes from.
pub(super) enum Kind {
    /// It is the device's, in the order of its stream.
    Ordered,
    /// It is the device's, and any stream may use it at once.
    Anywhere,
    /// Another library owns it, and this keeps it.
    Foreign(#[allow(dead_code)] Box<dyn Any + Send + Sync>),
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Ordered => "Ordered",
            Kind::Anywhere => "Anywhere",
            Kind::Foreign(_) => "Foreign",
        })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.here().is_err() {
            // What is the driver's stays with the process that opened it.
            return;
        }
        let freed = self.bind().and_then(|_caller| {
            self.look_for_capture();
            self.free_spare()
        });
        if let Err(e) = freed {
            log::warn!("{e}");
        }
    }
}

impl Gpu {
    /// Opens a GPU by its ordinal.
    pub(crate) fn open(ordinal: usize, id: &str) -> Result<Gpu> {
        Gpu::on(ordinal, id, |context| {
            let stream = context.new_stream();
            Ok((stream.map_err(|e| device_error(id, "cuStreamCreate", e))?, None))
        })
    }

    /// Opens a GPU to compute on a stream of another library.
    ///
    /// # Safety
    /// The stream is alive as long as this and its blocks are.
    pub(crate) unsafe fn on_stream(ordinal: usize, id: &str, stream: usize) -> Result<Gpu> {
        Gpu::on(ordinal, id, |context| {
            // SAFETY: the caller's; the stream is found to be of this context.
            unsafe {
                let foreign = ForeignStream::of(stream, context.cu_ctx(), id)?;
                Ok((context.wrap_borrowed_stream(stream as sys::CUstream), Some(foreign)))
            }
        })
    }

    /// The same on a stream of cudarc's, which it keeps.
    #[cfg(feature = "cudarc")]
    pub(crate) fn on_shared_stream(
        ordinal: usize,
        id: &str,
        stream: Arc<CudaStream>,
    ) -> Result<Gpu> {
        let theirs = stream.context().cu_ctx();
        Gpu::on(ordinal, id, |context| {
            let handle = stream.cu_stream().addr();
            // SAFETY: the stream is kept, so it is alive.
            let foreign = unsafe { ForeignStream::of(handle, context.cu_ctx(), id)? };
            if theirs != context.cu_ctx() {
                let reason = "the stream is of a context that is not the GPU's primary one".into();
                return Err(Error::Device { device: id.into(), call: "on_stream", reason });
            }
            Ok((stream, Some(foreign)))
        })
    }

    fn on(
        ordinal: usize,
        id: &str,
        stream: impl FnOnce(&Arc<CudaContext>) -> Result<(Arc<CudaStream>, Option<ForeignStream>)>,
    ) -> Result<Gpu> {
        let failed = |call| move |e: DriverError| device_error(id, call, e);
        let report = probe()?;
        let library = LIBRARY.get().expect("the driver was just found");
        // SAFETY: the type is the one that cuda.h declares for this symbol; the library stays loaded.
        let launch_ex = unsafe { library.get::<LaunchEx>(b"cuLaunchKernelEx") }.ok().map(|f| *f);
        let launch_ex = launch_ex.filter(|_| report.version >= RECORDS_EARLY);
        let _caller = Caller::now();
        let context = CudaContext::new(ordinal).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: there is one stream, and blocks are freed in its order.
        unsafe { context.disable_event_tracking() };
        let (stream, foreign) = stream(&context)?;
        let attribute = |name| context.attribute(name).map_err(failed("cuDeviceGetAttribute"));
        use sys::CUdevice_attribute_enum::*;
        let plain = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)? as u32;
        let asked = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32;
        let max_group = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? as u32;
        let units = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let cache = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.max(0) as u64;
        let shared = (plain, asked.max(plain));
        let (queue, recording) = (ReentrantMutex::new(()), AtomicBool::new(false));
        let (id, tape, peers) = (id.into(), Mutex::default(), Mutex::default());
        Ok(Gpu {
            id,
            forks: forks(),
            context: Held::new(context),
            stream: Held::new(stream),
            shared,
            max_group,
            units,
            cache,
            launch_ex,
            queue,
            recording,
            tape,
            peers,
            spare: Mutex::default(),
            foreign,
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Bytes of shared memory that a block may declare, and that a launch may ask for.
    pub(crate) fn shared(&self) -> (u32, u32) {
        self.shared
    }

    /// Most threads of a block.
    pub(crate) fn max_group(&self) -> u32 {
        self.max_group
    }

    /// Whether this process opened it: in a child that was forked later, no call of the driver works.
    ///
    /// # Errors
    /// [`Error::Forked`], if it did not.
    #[inline]
    pub(crate) fn here(&self) -> Result<()> {
        check(self.forks, &self.id)
    }

    /// Makes the context current on this thread, and keeps other threads from the stream, while
    /// the guard lives. Whatever queues work needs it.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        let entered = self.enter_to_free()?;
        self.here_on_thread()?;
        Ok(entered)
    }

    /// The same on a thread that queues nothing.
    pub(super) fn enter_to_free(&self) -> Result<Entered<'_>> {
        // First: a thread that is not in this process may have the lock.
        self.here()?;
        let queue = self.queue.lock();
        let entered = Entered { _caller: self.bind()?, _queue: queue };
        self.look_for_capture();
        Ok(entered)
    }

    /// Whether this thread is inside of [`enter`](Self::enter).
    pub(crate) fn is_entered(&self) -> bool {
        self.queue.is_owned_by_current_thread()
    }

    /// Makes the context current on this thread until the guard is dropped.
    pub(super) fn bind(&self) -> Result<Caller> {
        self.here()?;
        let (caller, is_current) = Caller::before(self.context.cu_ctx());
        if !is_current {
            self.context.bind_to_thread().map_err(|e| self.failed("cuCtxSetCurrent", e))?;
        }
        Ok(caller)
    }

    /// Waits for all work of this device's stream.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.here()?;
        self.refuse_while_captured("cuStreamSynchronize")?;
        let _mode = for_calls();
        // SAFETY: the stream lives as long as `self`.
        let done = unsafe { result::stream::synchronize(self.stream.cu_stream()) };
        done.map_err(|e| self.failed("cuStreamSynchronize", e))
    }

    /// Whether launches are recorded in place of being run.
    pub(crate) fn recording(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
    }

    /// Refuses what cannot be recorded, or captured.
    pub(crate) fn refuse_while_recording(&self, call: &'static str) -> Result<()> {
        if self.recording() {
            let reason = "it cannot be recorded, as launches are".into();
            return Err(Error::Device { device: self.id.clone(), call, reason });
        }
        self.refuse_while_captured(call)
    }

    /// The bytes of so many elements of `size` bytes each.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], where they are more than can be addressed.
    pub(crate) fn size_of(&self, count: u64, size: usize) -> Result<usize> {
        let bytes = usize::try_from(count).ok().and_then(|c| c.checked_mul(size));
        bytes.ok_or_else(|| Error::OutOfMemory {
            device: self.id.clone(),
            asked: u64::MAX,
            free: None,
        })
    }

    /// A new block of at least this many bytes, uninitialised.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Block> {
        // A kernel may be handed a block of nothing: it gets an address all the same. And it may
        // read the vector of 16 bytes that an element lies in, or of 32 where x has a wider type than A.
        let size = bytes.max(1).checked_next_multiple_of(32).unwrap_or(usize::MAX);
        // It would belong to the record and end with it.
        self.refuse_while_recording("cuMemAlloc")?;
        self.free_captured()?;
        if let Some(at) = lock(&self.spare).take(size) {
            return Ok(self.block(at, size, Kind::Ordered));
        }
        let _relaxed = BesideCaptures::begin();
        let new = || {
            // SAFETY: the block is used on this stream only and freed once, by `free`.
            unsafe {
                match self.context.has_async_alloc() {
                    true => result::malloc_async(self.stream.cu_stream(), size),
                    false => result::malloc_sync(size),
                }
            }
        };
        let mut at = new();
        if at == Err(NO_MEMORY) {
            self.free_spare()?;
            at = new();
        }
        let at = at.map_err(|e| self.no_memory(size, e))?;
        Ok(self.block(at, size, Kind::Ordered))
    }

    /// A new block that any stream may use at once, uninitialised.
    pub(crate) fn alloc_anywhere(self: &Arc<Self>, size: usize) -> Result<Block> {
        self.refuse_while_recording("cuMemAlloc")?;
        let _relaxed = BesideCaptures::begin();
        // SAFETY: it is freed once, by `free`.
        let at = unsafe { result::malloc_sync(size) };
        let at = at.map_err(|e| self.no_memory(size, e))?;
        Ok(self.block(at, size, Kind::Anywhere))
    }

    fn no_memory(&self, size: usize, e: DriverError) -> Error {
        match e {
            NO_MEMORY => Error::OutOfMemory {
                device: self.id.clone(),
                asked: size as u64,
                free: result::mem_get_info().ok().map(|(free, _)| free as u64),
            },
            e => self.failed("cuMemAlloc", e),
        }
    }

    pub(super) fn block(self: &Arc<Self>, at: sys::CUdeviceptr, size: usize, kind: Kind) -> Block {
        let memory = Arc::new(Allocation { gpu: self.clone(), at, size, kind });
        Block { memory, at, bytes: size }
    }

    /// Gives up memory after the work that is queued: all work of the stream that is queued later may have it.
    pub(super) fn give_up(&self, size: usize, at: sys::CUdeviceptr) -> Result<()> {
        let freed = lock(&self.spare).give(size, at);
        freed.into_iter().try_for_each(|at| self.free(at, true))
    }

    /// Frees what nobody has.
    fn free_spare(&self) -> Result<()> {
        self.free_captured()?;
        let spare = lock(&self.spare).take_all();
        spare.into_iter().try_for_each(|at| self.free(at, true))
    }

    /// Frees memory, in the order of the stream where it was allocated so.
    pub(super) fn free(&self, at: sys::CUdeviceptr, ordered: bool) -> Result<()> {
        if self.captured() {
            // It would be a part of the graph.
            self.free_after_capture(at, ordered);
            return Ok(());
        }
        let _relaxed = BesideCaptures::begin();
        // SAFETY: allocated by the matching function; its one owner, an `Allocation` and then `Spare`, has given it up.
        let freed = unsafe {
            if ordered && self.context.has_async_alloc() && self.frees_in_order() {
                result::free_async(at, self.stream.cu_stream())
            } else {
                // Waits for the work that may use it.
                result::free_sync(at)
            }
        };
        freed.map_err(|e| self.failed("cuMemFree", e))
    }

    /// Fills a block with zero bytes.
    pub(crate) fn clear(&self, block: &Block) -> Result<()> {
        // A record would do so each time that it is replayed, and steps that wait for others would come after it.
        self.refuse_while_recording("cuMemsetD8Async")?;
        self.clear_in_graph(block)
    }

    /// The same while another library captures: the graph does so each time that it is replayed.
    pub(crate) fn clear_in_graph(&self, block: &Block) -> Result<()> {
        // SAFETY: the block has this many bytes.
        unsafe { result::memset_d8_async(block.at, 0, block.bytes, self.stream.cu_stream()) }
            .map_err(|e| self.failed("cuMemsetD8Async", e))
    }

    /// Copies bytes from a block, from this one on, to host memory, and waits for all work before it.
    ///
    /// # Panics
    /// If they do not lie in the block.
    pub(crate) fn read(&self, block: &Block, first: usize, to: &mut [u8]) -> Result<()> {
        let end = first.checked_add(to.len());
        assert!(end.is_some_and(|e| e <= block.bytes), "a copy from outside of a block");
        self.refuse_while_recording("cuMemcpyDtoHAsync")?;
        // SAFETY: the source lies in the block; the destination is `to`, which is borrowed until
        // the copy is over.
        let copied = unsafe {
            let at = block.at + first as u64;
            result::memcpy_dtoh_async(to, at, self.stream.cu_stream())
        };
        // Also after a refusal: the copy may have been queued.
        let waited = self.synchronize();
        copied.map_err(|e| self.failed("cuMemcpyDtoHAsync", e))?;
        waited
    }

    /// Loads entry points by name from a compiled program. Takes no lock of the queue: a thread that
    /// holds it may be waiting for this very kernel.
    pub(crate) fn load<'n>(
        &self,
        image: &Image,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Vec<Function>> {
        let _caller = self.bind()?;
        self.may_load()?;
        let _relaxed = BesideCaptures::begin();
        // A driver that loads lazily compiles PTX when a function is asked for.
        let failed = |call, e: DriverError| match refused_ptx(e.0) {
            Some(why) if image.is_ptx() => {
                let (device, reason) = (self.id.clone(), why.into());
                Error::Device { device, call: "cuModuleLoadData", reason }
            }
            _ => self.failed(call, e),
        };
        let module = self
            .context
            .load_module(Ptx::from_binary(image.bytes().to_vec()))
            .map_err(|e| failed("cuModuleLoadData", e))?;
        names
            .map(|name| {
                let inner =
                    module.load_function(name).map_err(|e| failed("cuModuleGetFunction", e))?;
                if self.shared.1 > self.shared.0 {
                    // Lets a launch ask for more shared memory than the default allows; kernels
                    // that declare theirs are unchanged.
                    use sys::CUfunction_attribute_enum::*;
                    let room = self.shared.1 as i32
                        - inner
                            .get_attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
                            .map_err(|e| self.failed("cuFuncGetAttribute", e))?;
                    inner
                        .set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, room)
                        .map_err(|e| self.failed("cuFuncSetAttribute", e))?;
                }
                use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PTX_VERSION;
                let ptx = inner.get_attribute(CU_FUNC_ATTRIBUTE_PTX_VERSION);
                let pdl_waits = ptx.is_ok_and(|version| version >= 90);
                Ok(Function { inner: Held::new(inner), name: name.into(), pdl_waits })
            })
            .collect()
    }

    /// Frees memory when the launches are no longer recorded.
    fn free_later(&self, size: usize, at: sys::CUdeviceptr) {
        lock(&self.tape).freed.push((size, at));
    }

    /// The same for page-locked memory.
    pub(super) fn free_host_later(&self, at: *mut u8) {
        lock(&self.tape).freed_host.push(at as usize);
    }

    /// Refuses launches that no tape sees.
    pub(super) fn refuse_on_tape(&self, call: &'static str) -> Result<()> {
        match lock(&self.tape).mode {
            Mode::Stream => Ok(()),
            _ => self.refuse_while_recording(call),
        }
    }

    pub(super) fn refused(&self, call: &'static str, reason: &str) -> Error {
        Error::Device { device: self.id.clone(), call, reason: reason.into() }
    }

    pub(super) fn failed(&self, call: &'static str, e: DriverError) -> Error {
        device_error(&self.id, call, e)
    }
}

fn device_error(id: &str, call: &'static str, e: DriverError) -> Error {
    // The number's name: to ask the driver for words could fail as well.
    Error::Device { device: id.into(), call, reason: format!("{:?}", e.0) }
}

impl Block {
    /// What keeps its memory.
    pub(super) fn keep(&self) -> Keep {
        self.memory.clone()
    }

    /// Whether it is memory of ours, which other GPUs may reach once they are allowed to.
    pub(super) fn is_of_the_pool(&self) -> bool {
        matches!(self.memory.kind, Kind::Ordered)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address.
    pub(crate) fn address(&self) -> usize {
        self.at as usize
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.memory.gpu
    }

    /// Whether it is a block of this GPU.
    pub(crate) fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.memory.gpu, gpu)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if matches!(self.kind, Kind::Foreign(_)) || self.gpu.here().is_err() {
            return;
        }
        // A thread may drop what it never used.
        let freed = self.gpu.enter_to_free().and_then(|_guard| match self.kind {
            Kind::Anywhere => self.gpu.free(self.at, false),
            // Else the record would free it, each time.
            _ if self.gpu.recording() => {
                self.gpu.free_later(self.size, self.at);
                Ok(())
            }
            _ => self.gpu.give_up(self.size, self.at),
        });
        if let Err(e) = freed {
            log::warn!("{e}");
        }
    }
}
