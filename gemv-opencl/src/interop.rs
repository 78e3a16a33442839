//! Queues and buffers of other libraries.

use std::sync::Arc;

use gemv_core::float_mode::in_default;
use gemv_core::{Device, Error, Foreign, Interop, Memory, Result};

use crate::backend::OpenCl;
use crate::cl::{ForeignQueue, Queue};
use crate::discover::{self, NAME};
use crate::memory::Block;

/// A device whose work is all put into a queue of another library (`cl_command_queue`), in that queue's order: uploads,
/// products, steps. It takes buffers of the queue's context as [arrays](gemv_core::DeviceArray::from_foreign), and its
/// arrays are buffers of that context. The queue and its context are kept alive.
///
/// Programs are built for each context; their binaries come from the cache on disk.
///
/// ```
/// // SAFETY: null is refused.
/// let e = unsafe { gemv::opencl::on_queue(0) }.unwrap_err();
/// println!("{e}");
/// ```
///
/// # Safety
/// The queue is alive. If other threads use it or its context, the driver has to allow that: PoCL 3 does not, see
/// [`known_bugs`](crate::known_bugs).
///
/// # Errors
/// [`Error::Device`] if the queue is null or executes out of order; [`Error::NoDevice`] if its device is none of those
/// that are listed, such as a part of one; those of [`OpenCl::open`].
pub unsafe fn on_queue(queue: usize) -> Result<Device> {
    let all = discover::found()?;
    // SAFETY: the caller's.
    let foreign = unsafe { ForeignQueue::of(queue) }.map_err(|e| e.on(NAME))?;
    let of = all.iter().find(|found| found.device.as_raw().addr() == foreign.device);
    let found = of.ok_or_else(|| Error::NoDevice {
        asked: "the queue's device".into(),
        found: all.iter().map(|f| f.info.id.as_str()).collect::<Vec<_>>().join(", "),
    })?;
    // SAFETY: the caller's; the device is the queue's.
    let open = |begins| Ok(unsafe { Queue::on(&foreign, found.device, begins) });
    let opencl = in_default(|| OpenCl::with(found.clone(), open))?;
    Ok(Device::new(Arc::new(opencl)))
}

impl Interop for OpenCl {
    unsafe fn adopt(&self, foreign: Foreign) -> Result<(Arc<dyn Memory>, usize)> {
        self.has(foreign.dtype)?;
        let Foreign { handle, bytes, dtype, writable, keep } = foreign;
        let state = self.enter()?;
        // SAFETY: the caller's.
        let buffer = unsafe { state.queue.adopt(handle, bytes, writable) };
        let buffer = buffer.map_err(|e| e.on(&self.found().info.id))?;
        let (id, of) = (state.queue.id(), self.state().clone());
        let len = bytes / dtype.bytes();
        let block = Block::new(buffer.mem, len, dtype, id, of);
        Ok((Arc::new(block.of_another(buffer.place, writable, keep)), 0))
    }

    unsafe fn wait_for(&self, event: usize) -> Result<()> {
        // SAFETY: the caller's.
        let done = unsafe { self.enter()?.queue.wait_for(event) };
        done.map_err(|e| e.on(&self.found().info.id))
    }

    unsafe fn record_event(&self, event: usize) -> Result<()> {
        // SAFETY: the caller's.
        let done = unsafe { self.enter()?.queue.record_event(event) };
        done.map_err(|e| e.on(&self.found().info.id))
    }
}
