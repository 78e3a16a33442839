//! Every unsafe call of this crate: host memory that the driver reads, and launches.

mod clblast;
mod foreign;

use std::cell::Cell;
use std::ffi::CString;
use std::ptr;

use gemv_core::{Dtype, Error, Number};
use gemv_gpu::Launch;
use ocl::core::{self, ArgVal, CommandQueueProperties, Event, MemFlags, ProfilingInfo};
use ocl::ffi;

pub use clblast::CLBLAST_ENV;
pub(crate) use clblast::{Clblast, Place, clblast};
pub(crate) use foreign::ForeignQueue;

/// How every program is compiled. Nothing relaxes the arithmetic: the prelude turns contraction off,
/// and no `-cl-` option allows more.
pub(crate) const OPTIONS: &str = "-cl-std=CL1.2";

/// For the texts of this crate: no warnings, such as of a loop that is not unrolled. PoCL would print how many there are.
pub(crate) const QUIET: &str = " -w";

/// Looks for the system's OpenCL library, once a process.
///
/// # Errors
/// What was looked for.
#[cfg(opencl_at_run_time)]
pub(crate) fn load() -> Result<(), String> {
    unsafe extern "C" {
        fn gemv_opencl_load() -> i32;
    }
    // SAFETY: it takes nothing, and any thread may call it, as build.rs says.
    if unsafe { gemv_opencl_load() } == 1 {
        return Ok(());
    }
    Err("looked for an OpenCL loader (libOpenCL.so.1, libOpenCL.so) and found none".into())
}

/// The library was linked when the program was built.
#[cfg(not(opencl_at_run_time))]
pub(crate) fn load() -> Result<(), String> {
    Ok(())
}

/// The number of platforms, or the error. Call it before any function of `ocl`: those wait for ten
/// seconds and then panic where there is no platform.
pub(crate) fn platforms() -> Result<u32, i32> {
    let mut count = 0;
    // SAFETY: no entries are asked for, so the null pointer is allowed; `count` outlives the call.
    match unsafe { ffi::clGetPlatformIDs(0, ptr::null_mut(), &mut count) } {
        0 => Ok(count),
        error => Err(error),
    }
}

/// The major part of an NVIDIA device's compute capability (`cl_nv_device_attribute_query`).
pub(crate) fn capability(device: core::DeviceId) -> Option<u32> {
    const COMPUTE_CAPABILITY_MAJOR_NV: u32 = 0x4000;
    let (mut major, size) = (0_u32, size_of::<u32>());
    let to = ptr::from_mut(&mut major).cast();
    // SAFETY: the device is valid, as `ocl` found it; `to` has so many bytes and outlives the call.
    let status = unsafe {
        ffi::clGetDeviceInfo(
            device.as_raw(),
            COMPUTE_CAPABILITY_MAJOR_NV,
            size,
            to,
            ptr::null_mut(),
        )
    };
    (status == 0).then_some(major)
}

/// Compiles for one device, on any thread; see `pocl-threads` of the known bugs.
#[derive(Debug)]
pub(crate) struct Compiler {
    context: core::Context,
    pub(crate) device: core::DeviceId,
}

impl Compiler {
    /// Compiles; the error is the compiler's log.
    pub(crate) fn build(
        &self,
        source: &str,
        options: &str,
    ) -> Result<core::Program, Result<String, Failure>> {
        let text = CString::new(source).map_err(|e| Ok(e.to_string()))?;
        let options = CString::new(options).map_err(|e| Ok(e.to_string()))?;
        let program = core::create_program_with_source(&self.context, &[text])
            .map_err(|e| Err(Failure::new("clCreateProgramWithSource", e)))?;
        match core::build_program(&program, Some(&[self.device]), &options, None, None) {
            Ok(()) => Ok(program),
            Err(core::Error::ProgramBuild(e)) => Err(Ok(e.to_string())),
            Err(e) => Err(Err(Failure::new("clBuildProgram", e))),
        }
    }

    /// A program from a binary that [`binary`](Self::binary) gave.
    pub(crate) fn load(&self, binary: &[u8], options: &str) -> Result<core::Program, Failure> {
        let options = CString::new(options).map_err(|e| {
            let (call, reason) = ("clBuildProgram", e.to_string());
            Failure { call, status: None, reason }
        })?;
        let program = core::create_program_with_binary(&self.context, &[self.device], &[binary])
            .map_err(|e| Failure::new("clCreateProgramWithBinary", e))?;
        core::build_program(&program, Some(&[self.device]), &options, None, None)
            .map_err(|e| Failure::new("clBuildProgram", e))?;
        Ok(program)
    }

    /// The binary of a built program; none where the driver has none.
    pub(crate) fn binary(&self, program: &core::Program) -> Option<Vec<u8>> {
        match core::get_program_info(program, core::ProgramInfo::Binaries) {
            Ok(core::ProgramInfoResult::Binaries(mut all)) if all.len() == 1 => {
                all.pop().filter(|binary| !binary.is_empty())
            }
            Ok(_) => None,
            Err(e) => {
                log::info!("opencl: clGetProgramInfo: {e}");
                None
            }
        }
    }
}

/// One device's context and in-order queue, for one thread at a time: every method is called with
/// the device's lock held. See `pocl-threads` of the known bugs.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) context: core::Context,
    pub(crate) queue: core::CommandQueue,
    pub(crate) device: core::DeviceId,
    /// Whether the driver begins what is enqueued without being asked.
    begins: bool,
    /// Whether it tells when a [mark](Self::mark) was reached.
    pub(crate) clock: bool,
    /// Whether a command, or a wait for commands, has failed since [`Self::take_failed`].
    failed: Cell<bool>,
}

/// A failed call: its name and what the runtime said.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) status: Option<i32>,
    pub(crate) reason: String,
}

impl Failure {
    pub(crate) fn new(call: &'static str, error: core::Error) -> Failure {
        match error.api_status() {
            Some(status) => {
                let status_number = status as i32;
                Failure {
                    call,
                    status: Some(status_number),
                    reason: format!("{status:?} ({status_number})"),
                }
            }
            None => Failure { call, status: None, reason: error.to_string() },
        }
    }

    /// Whether an allocation failed.
    pub(crate) fn is_memory(&self) -> bool {
        // CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_INVALID_BUFFER_SIZE.
        // CL_OUT_OF_RESOURCES only from clCreateBuffer: launches fail with it for other reasons.
        match self.status {
            Some(-4 | -6 | -61) => true,
            Some(-5) => self.call == "clCreateBuffer",
            _ => false,
        }
    }

    pub(crate) fn on(self, device: &str) -> Error {
        Error::Device { device: device.into(), call: self.call, reason: self.reason }
    }
}

/// A buffer that borrows host memory for as long as one product takes.
#[derive(Debug)]
pub(crate) struct Borrowed<'a> {
    pub(crate) mem: core::Mem,
    _host: std::marker::PhantomData<&'a [u8]>,
}

type NoEvent<'a> = Option<&'a mut Event>;
type NoWait<'a> = Option<&'a Event>;

impl Queue {
    pub(crate) fn open(
        platform: core::PlatformId,
        device: core::DeviceId,
        begins: bool,
        clock: bool,
    ) -> Result<Queue, Failure> {
        let properties = core::ContextProperties::new().platform(platform);
        let context = core::create_context(Some(&properties), &[device], None, None)
            .map_err(|e| Failure::new("clCreateContext", e))?;
        // In order, as nothing else is asked for.
        let profiling = clock.then_some(CommandQueueProperties::PROFILING_ENABLE);
        let queue = core::create_command_queue(&context, device, profiling)
            .map_err(|e| Failure::new("clCreateCommandQueue", e))?;
        Ok(Queue { context, queue, device, begins, clock, failed: Cell::new(false) })
    }

    pub(crate) fn compiler(&self) -> Compiler {
        Compiler { context: self.context.clone(), device: self.device }
    }

    /// Another number for each device that is open, and each time that it was opened, but for those on one queue of another
    /// library. Of a device that closes, its blocks keep it.
    pub(crate) fn id(&self) -> usize {
        self.queue.as_ptr().addr()
    }

    /// A buffer of this many bytes (at least one), not initialised.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<core::Mem, Failure> {
        let none = None::<&[u8]>;
        // SAFETY: no host pointer is given, so the runtime owns the memory.
        unsafe {
            core::create_buffer(&self.context, MemFlags::READ_WRITE, bytes.max(1), none)
                .map_err(|e| Failure::new("clCreateBuffer", e))
        }
    }

    /// A buffer that is the slice itself, read in place.
    pub(crate) fn borrow<'a>(&self, data: &'a [u8]) -> Result<Borrowed<'a>, Failure> {
        let flags = MemFlags::READ_ONLY | MemFlags::USE_HOST_PTR;
        // SAFETY: the slice is borrowed for 'a, which the result carries: it is neither moved nor
        // written before the result is dropped, and `run::Finish` waits for the queue before that,
        // so no launch reads it later. Kernels only read A and x (`GLOBAL const`), CLBlast's too.
        let mem = unsafe { core::create_buffer(&self.context, flags, data.len(), Some(data)) }
            .map_err(|e| Failure::new("clCreateBuffer", e))?;
        Ok(Borrowed { mem, _host: std::marker::PhantomData })
    }

    /// A command, or a wait, that failed. A failure of an earlier command may be reported by it.
    fn failure(&self, call: &'static str, error: core::Error) -> Failure {
        self.failed.set(true);
        Failure::new(call, error)
    }

    /// Whether a command may have failed since the last call of this.
    pub(crate) fn take_failed(&self) -> bool {
        self.failed.take()
    }

    /// Copies a slice to the start of a buffer, and waits for it.
    pub(crate) fn write(&self, to: &core::Mem, data: &[u8]) -> Result<(), Failure> {
        self.write_at(to, 0, data)
    }

    /// The same from byte `first` of the buffer on.
    fn write_at(&self, to: &core::Mem, first: usize, data: &[u8]) -> Result<(), Failure> {
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: a blocking write: the slice is not read after the call. The runtime refuses a
        // write beyond the buffer's end.
        unsafe {
            core::enqueue_write_buffer(
                &self.queue,
                to,
                true,
                first,
                data,
                None::<NoWait<'_>>.flatten(),
                None::<NoEvent<'_>>.flatten(),
            )
            .map_err(|e| self.failure("clEnqueueWriteBuffer", e))
        }
    }

    /// Copies from a buffer, from byte `first` on, and waits for it.
    pub(crate) fn read(
        &self,
        from: &core::Mem,
        first: usize,
        to: &mut [u8],
    ) -> Result<(), Failure> {
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: a blocking read: the slice is not written after the call. The runtime refuses a
        // read beyond the buffer's end.
        unsafe {
            core::enqueue_read_buffer(
                &self.queue,
                from,
                true,
                first,
                to,
                None::<NoWait<'_>>.flatten(),
                None::<NoEvent<'_>>.flatten(),
            )
            .map_err(|e| self.failure("clEnqueueReadBuffer", e))
        }
    }

    /// Sets the first bytes of a buffer to zero, and waits for it.
    pub(crate) fn zero(&self, to: &core::Mem, bytes: usize) -> Result<(), Failure> {
        // A pattern of one byte would leave no remainder, but see `nvidia-fill` of the known bugs.
        let pattern = ocl::prm::Uint4::new(0, 0, 0, 0);
        let (patterns, rest) = (bytes / size_of_val(&pattern), bytes % size_of_val(&pattern));
        if patterns > 0 {
            core::enqueue_fill_buffer(
                &self.queue,
                to,
                pattern,
                0,
                patterns,
                None::<NoWait<'_>>.flatten(),
                None::<NoEvent<'_>>.flatten(),
                None,
            )
            .map_err(|e| self.failure("clEnqueueFillBuffer", e))?;
        }
        self.write_at(to, bytes - rest, &[0; 15][..rest])?;
        self.finish()
    }

    /// A part of a buffer, from byte `first` on: the buffer's own memory where the device can address a
    /// part there, else a copy, made in the queue's order.
    pub(crate) fn part(
        &self,
        of: &core::Mem,
        first: usize,
        bytes: usize,
    ) -> Result<core::Mem, Failure> {
        let align = match core::get_device_info(self.device, core::DeviceInfo::MemBaseAddrAlign) {
            Ok(core::DeviceInfoResult::MemBaseAddrAlign(bits)) => (bits as usize / 8).max(1),
            _ => usize::MAX,
        };
        if first.is_multiple_of(align) {
            let region = core::BufferRegion::<u8>::new(first, bytes);
            return core::create_sub_buffer(of, MemFlags::READ_ONLY, &region)
                .map_err(|e| Failure::new("clCreateSubBuffer", e));
        }
        let copy = self.buffer(bytes)?;
        core::enqueue_copy_buffer::<u8, _, _, _>(
            &self.queue,
            of,
            &copy,
            first,
            0,
            bytes,
            None::<NoWait<'_>>.flatten(),
            None::<NoEvent<'_>>.flatten(),
        )
        .map_err(|e| self.failure("clEnqueueCopyBuffer", e))?;
        Ok(copy)
    }

    /// Enqueues a kernel whose arguments are set.
    pub(crate) fn launch(&self, kernel: &core::Kernel, launch: &Launch) -> Result<(), Failure> {
        let local = launch.block.map(|b| b as usize);
        let mut global = local;
        for (g, blocks) in global.iter_mut().zip(launch.grid) {
            *g *= blocks as usize;
        }
        // SAFETY: the kernel's arguments were set by `Args` for this launch. For a kernel that a person
        // brings, whoever made the `KernelLaunch` answers for what it touches. Else: OpenCL keeps a buffer
        // until the commands that use it have ended; host memory that one borrows is kept by
        // `run::Finish`. The operands lie in their buffers, which the job was checked for
        // (`gemv_core::Checked`) and which are of this context (`memory::Block::of`); the kernel's contract is to stay within the operands
        // and the workspace that its plan asks for.
        unsafe {
            core::enqueue_kernel(
                &self.queue,
                kernel,
                3,
                None,
                &global,
                Some(local),
                None::<NoWait<'_>>.flatten(),
                None::<NoEvent<'_>>.flatten(),
            )
            .map_err(|e| self.failure("clEnqueueNDRangeKernel", e))
        }
    }

    /// A mark behind all that is enqueued.
    pub(crate) fn mark(&self) -> Result<Event, Failure> {
        let mut mark = Event::null();
        core::enqueue_marker_with_wait_list(&self.queue, NoWait::None, Some(&mut mark), None)
            .map_err(|e| self.failure("clEnqueueMarkerWithWaitList", e))?;
        Ok(mark)
    }

    /// Nanoseconds of the device's clock when it reached a mark, which it has.
    pub(crate) fn reached(&self, mark: &Event) -> Result<u64, Failure> {
        core::get_event_profiling_info(mark, ProfilingInfo::End)
            .and_then(|end| end.time())
            .map_err(|e| Failure::new("clGetEventProfilingInfo", e))
    }

    /// Starts what is enqueued, where the driver waits to be asked.
    pub(crate) fn flush(&self) -> Result<(), Failure> {
        if self.begins {
            return Ok(());
        }
        core::flush(&self.queue).map_err(|e| self.failure("clFlush", e))
    }

    /// Waits until everything enqueued is done.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        core::finish(&self.queue).map_err(|e| self.failure("clFinish", e))
    }
}

/// Sets a kernel's arguments one after another.
#[derive(Debug)]
pub(crate) struct Args<'k> {
    kernel: &'k core::Kernel,
    index: u32,
    failed: Option<Failure>,
}

impl<'k> Args<'k> {
    pub(crate) fn of(kernel: &'k core::Kernel) -> Args<'k> {
        Args { kernel, index: 0, failed: None }
    }

    fn set(mut self, value: ArgVal<'_>) -> Self {
        if let Err(e) = core::set_kernel_arg(self.kernel, self.index, value) {
            self.failed.get_or_insert(Failure::new("clSetKernelArg", e));
        }
        self.index += 1;
        self
    }

    pub(crate) fn unsigned(self, value: usize) -> Self {
        self.set(ArgVal::scalar(&(value as u64)))
    }

    pub(crate) fn signed(self, value: isize) -> Self {
        self.set(ArgVal::scalar(&(value as i64)))
    }

    pub(crate) fn flag(self, value: bool) -> Self {
        self.word(u32::from(value))
    }

    pub(crate) fn word(self, value: u32) -> Self {
        self.set(ArgVal::scalar(&value))
    }

    pub(crate) fn mem(self, mem: &core::Mem) -> Self {
        self.set(ArgVal::mem(mem))
    }

    /// A float, a double, or a pair of either.
    pub(crate) fn factor(self, value: Number, vectors: Dtype) -> Self {
        self.bytes(&value.bytes()[..vectors.acc_bytes()])
    }

    /// The bytes of a scalar of 2, 4, 8 or 16 bytes.
    pub(crate) fn bytes(self, value: &[u8]) -> Self {
        // SAFETY: the slice has so many bytes, and lives until they are copied by `set`.
        let value = unsafe { ArgVal::from_raw(value.len(), value.as_ptr().cast(), false) };
        self.set(value)
    }

    /// Local memory of so many bytes.
    pub(crate) fn local(self, bytes: usize) -> Self {
        self.set(ArgVal::local::<u8>(&bytes))
    }

    pub(crate) fn done(self) -> Result<(), Failure> {
        self.failed.map_or(Ok(()), Err)
    }
}
