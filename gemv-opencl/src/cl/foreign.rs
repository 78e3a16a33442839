//! Contexts, queues, buffers and events of other libraries.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use ocl::core;
use ocl::ffi;

use super::{Failure, Queue};

/// What is said of an object by one of OpenCL's functions `clGet..Info`.
type Query = unsafe extern "system" fn(*mut c_void, u32, usize, *mut c_void, *mut usize) -> i32;

/// The names of what is asked (cl.h).
const QUEUE_CONTEXT: u32 = 0x1090;
const QUEUE_DEVICE: u32 = 0x1091;
const QUEUE_PROPERTIES: u32 = 0x1093;
const OUT_OF_ORDER: u64 = 1 << 0;
const PROFILING: u64 = 1 << 1;
const MEM_TYPE: u32 = 0x1100;
const MEM_FLAGS: u32 = 0x1101;
const MEM_SIZE: u32 = 0x1102;
const MEM_HOST_PTR: u32 = 0x1103;
const MEM_CONTEXT: u32 = 0x1106;
const MEM_PARENT: u32 = 0x1107;
const MEM_OFFSET: u32 = 0x1108;
const BUFFER: u32 = 0x10F0;
const READ_ONLY: u64 = 1 << 2;
const USE_HOST_PTR: u64 = 1 << 3;

/// A queue of another library, and what it says of itself.
pub(crate) struct ForeignQueue {
    queue: usize,
    context: usize,
    properties: u64,
    /// `cl_device_id`.
    pub(crate) device: usize,
}

/// A buffer of another library.
#[derive(Debug)]
pub(crate) struct ForeignBuffer {
    pub(crate) mem: core::Mem,
    /// The buffer that it is a part of, or itself, and the bytes before it there.
    pub(crate) place: (usize, usize),
}

/// One answer.
///
/// # Safety
/// `of` is an object of the kind that the function asks, alive; the answer is a number, or a handle, of `A`'s size.
unsafe fn ask<A: Default>(
    call: &'static str,
    query: Query,
    of: usize,
    what: u32,
) -> Result<A, Failure> {
    let mut answer = A::default();
    let to = ptr::from_mut(&mut answer).cast();
    // SAFETY: the caller's; `to` has so many bytes and outlives the call.
    match unsafe { query(of as _, what, size_of::<A>(), to, ptr::null_mut()) } {
        0 => Ok(answer),
        status => Err(Failure { call, status: Some(status), reason: format!("error {status}") }),
    }
}

fn refused(call: &'static str, reason: impl Into<String>) -> Failure {
    Failure { call, status: None, reason: reason.into() }
}

impl ForeignQueue {
    /// # Safety
    /// The queue is alive.
    ///
    /// # Errors
    /// Where it is not one of these in whose order products can be queued.
    pub(crate) unsafe fn of(queue: usize) -> Result<ForeignQueue, Failure> {
        const CALL: &str = "on_queue";
        if queue == 0 {
            return Err(refused(CALL, "the queue is null"));
        }
        let query: Query = ffi::clGetCommandQueueInfo;
        // SAFETY: the caller's; a queue's context and device are handles, its properties a bit field of 64 bits.
        let (context, device, properties) = unsafe {
            (
                ask(CALL, query, queue, QUEUE_CONTEXT)?,
                ask(CALL, query, queue, QUEUE_DEVICE)?,
                ask::<u64>(CALL, query, queue, QUEUE_PROPERTIES)?,
            )
        };
        if properties & OUT_OF_ORDER != 0 {
            return Err(refused(
                CALL,
                "the queue executes out of order, and work here needs its order",
            ));
        }
        Ok(ForeignQueue { queue, context, properties, device })
    }
}

impl Queue {
    /// The queue of another library. Both it and its context are kept.
    ///
    /// # Safety
    /// The queue is alive, and of this device.
    pub(crate) unsafe fn on(of: &ForeignQueue, device: core::DeviceId, begins: bool) -> Queue {
        // SAFETY: the caller's; each is retained here, and released on drop.
        let (context, queue) = unsafe {
            (
                core::Context::from_raw_copied_ptr(of.context as _),
                core::CommandQueue::from_raw_copied_ptr(of.queue as _),
            )
        };
        let clock = of.properties & PROFILING != 0;
        Queue { context, queue, device, begins, clock, failed: Cell::new(false) }
    }

    /// A buffer of another library, kept.
    ///
    /// # Safety
    /// The handle is of memory that is alive.
    ///
    /// # Errors
    /// Where it is no buffer of this context of so many bytes, or one that must not be used so.
    pub(crate) unsafe fn adopt(
        &self,
        mem: usize,
        bytes: usize,
        writable: bool,
    ) -> Result<ForeignBuffer, Failure> {
        const CALL: &str = "from_foreign";
        let refuse = |reason: String| Err(refused(CALL, reason));
        if mem == 0 {
            return refuse("the handle is null".into());
        }
        let query: Query = ffi::clGetMemObjectInfo;
        // SAFETY: the caller's; each answer has the type that cl.h says.
        let (kind, context, size, flags) = unsafe {
            (
                ask::<u32>(CALL, query, mem, MEM_TYPE)?,
                ask::<usize>(CALL, query, mem, MEM_CONTEXT)?,
                ask::<usize>(CALL, query, mem, MEM_SIZE)?,
                ask::<u64>(CALL, query, mem, MEM_FLAGS)?,
            )
        };
        if kind != BUFFER {
            return refuse("the handle is of an image, and not of a buffer".into());
        }
        if context != self.context.as_ptr().addr() {
            return refuse("the buffer is of another context than the device's".into());
        }
        if bytes > size {
            return refuse(format!("the buffer has {size} bytes, and not {bytes}"));
        }
        if writable && flags & READ_ONLY != 0 {
            return refuse("the buffer is there for kernels to read (CL_MEM_READ_ONLY)".into());
        }
        // SAFETY: as above.
        let (parent, offset, host) = unsafe {
            (
                ask::<usize>(CALL, query, mem, MEM_PARENT)?,
                ask::<usize>(CALL, query, mem, MEM_OFFSET)?,
                ask::<usize>(CALL, query, mem, MEM_HOST_PTR)?,
            )
        };
        if flags & USE_HOST_PTR != 0 && !host.is_multiple_of(64) {
            return refuse(
                "the buffer is memory of the host that does not begin on 64 bytes".into(),
            );
        }
        // SAFETY: the caller's; it is retained here, and released on drop.
        let handle = unsafe { core::Mem::from_raw_copied_ptr(mem as _) };
        let place = if parent == 0 { (mem, 0) } else { (parent, offset) };
        Ok(ForeignBuffer { mem: handle, place })
    }

    /// Has later work wait for an event.
    ///
    /// # Safety
    /// The event is alive, and of this context.
    pub(crate) unsafe fn wait_for(&self, event: usize) -> Result<(), Failure> {
        const CALL: &str = "clEnqueueBarrierWithWaitList";
        if event == 0 {
            return Err(refused(CALL, "the event is null"));
        }
        let event = event as *mut c_void;
        // SAFETY: the caller's; the list has one event, and no event is asked for.
        let status = unsafe {
            ffi::clEnqueueBarrierWithWaitList(self.queue.as_ptr(), 1, &event, ptr::null_mut())
        };
        self.status(CALL, status)
    }

    /// Writes an event that comes behind all that is enqueued.
    ///
    /// # Safety
    /// It is the address of a place for an event.
    pub(crate) unsafe fn record_event(&self, to: usize) -> Result<(), Failure> {
        const CALL: &str = "clEnqueueMarkerWithWaitList";
        if to == 0 {
            return Err(refused(CALL, "the address of the event is null"));
        }
        // SAFETY: the caller's; there is no list of events to wait for.
        let status = unsafe {
            ffi::clEnqueueMarkerWithWaitList(self.queue.as_ptr(), 0, ptr::null(), to as *mut _)
        };
        self.status(CALL, status)?;
        self.flush()
    }

    fn status(&self, call: &'static str, status: i32) -> Result<(), Failure> {
        if status == 0 {
            return Ok(());
        }
        self.failed.set(true);
        Err(Failure { call, status: Some(status), reason: format!("error {status}") })
    }
}
