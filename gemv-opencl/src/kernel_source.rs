//! Kernels that people bring: compiled for a device, and launched.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use gemv_core::{CompiledKernel, KernelArgument, KernelLaunch, Result};
use gemv_gpu::Launch;

use crate::cl::Args;
use crate::discover::Found;
use crate::first_use::Of;
use crate::memory::{Block, State, lock};
use crate::sources::Entry;

/// The state of a [`CompiledKernel`] of this backend.
#[derive(Debug)]
struct Compiled {
    device: Weak<Mutex<State>>,
    entry: Entry,
}

/// Compiles a text for a device, or finds what was compiled before.
pub(crate) fn compile(
    Of { found, programs, .. }: Of<'_>,
    device: &Arc<Mutex<State>>,
    text: &str,
    entry: &str,
) -> Result<CompiledKernel> {
    let entry = programs.sources.entry(found, programs.compiler(), text, entry)?;
    let (parameters, limits) = (entry.parameters.clone(), entry.limits);
    let state = Compiled { device: Arc::downgrade(device), entry };
    Ok(CompiledKernel { parameters, limits, state: Arc::new(state) })
}

/// Sets the arguments and enqueues.
///
/// # Panics
/// If another device has compiled it, or an array is another device's or does not lie within its block.
pub(crate) fn launch(
    found: &Found,
    device: &Arc<Mutex<State>>,
    launch: KernelLaunch<'_>,
) -> Result<()> {
    let compiled = launch.compiled();
    let entry = compiled.state.downcast_ref::<Compiled>().expect("compiled by this backend");
    assert!(entry.device.as_ptr() == Arc::as_ptr(device), "compiled for another device");
    let state = lock(device);
    let queue = &state.queue;
    let object = state.programs.sources.get(&entry.entry);
    let object = &*object.lock().unwrap_or_else(PoisonError::into_inner);
    let failed = |e| found.failed(e, 0);
    // A kernel object does not keep its buffers (clSetKernelArg, OpenCL 1.2): they outlive the launch here.
    let mut parts = Vec::new();
    let mut args = Args::of(object);
    for argument in launch.arguments() {
        args = match argument {
            KernelArgument::Scalar(value) => args.bytes(value.bytes()),
            KernelArgument::Write { memory, dtype, len } => {
                let block = Block::of(&**memory, *dtype, queue);
                block.assert_holds(0, *len);
                args.mem(block.mem())
            }
            KernelArgument::Read { memory, dtype, first, len } => {
                let block = Block::of(*memory, *dtype, queue);
                block.assert_holds(*first, *len);
                if *first == 0 {
                    args.mem(block.mem())
                } else {
                    let (at, bytes) = (first * dtype.bytes(), len * dtype.bytes());
                    // So that too much is refused with a number.
                    let part = match queue.part(block.mem(), at, bytes) {
                        Err(e) if e.is_memory() => return Err(found.failed(e, bytes)),
                        part => part.map_err(failed)?,
                    };
                    let args = args.mem(&part);
                    parts.push(part);
                    args
                }
            }
        };
    }
    let shape = launch.shape();
    if entry.entry.local {
        args = args.local(shape.shared as usize);
    }
    args.done().map_err(failed)?;
    let launch = Launch { grid: shape.grid, block: shape.block, ..Launch::new("", 1, 1) };
    queue.launch(object, &launch).map_err(failed)?;
    queue.flush().map_err(failed)
}
