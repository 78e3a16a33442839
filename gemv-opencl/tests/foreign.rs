//! Another library's context, queue and buffers: `ocl` used by this program itself.

use std::cell::RefCell;

use gemv_core::{Desc, Device, Dtype, Params};
use gemv_testkit::foreign::{self, Owner};
use ocl::core::{self, MemFlags};

/// The library. It finds its device before anything of gemv is called.
struct Library {
    device: core::DeviceId,
    context: core::Context,
    queue: core::CommandQueue,
    buffers: RefCell<Vec<core::Mem>>,
}

impl Library {
    fn open() -> Option<Library> {
        let required = std::env::var("GEMV_REQUIRE").is_ok_and(|v| v.contains("opencl"));
        let platforms = core::get_platform_ids();
        let Some(platform) = platforms.ok().and_then(|all| all.first().copied()) else {
            assert!(!required, "there is no OpenCL platform");
            return None;
        };
        let device = core::get_device_ids(platform, None, None).unwrap()[0];
        let properties = core::ContextProperties::new().platform(platform);
        let context = core::create_context(Some(&properties), &[device], None, None).unwrap();
        let queue = core::create_command_queue(&context, device, None).unwrap();
        Some(Library { device, context, queue, buffers: RefCell::default() })
    }

    fn mem(&self, handle: usize) -> core::Mem {
        let buffers = self.buffers.borrow();
        buffers.iter().find(|mem| mem.as_ptr().addr() == handle).unwrap().clone()
    }

    fn buffer(&self, flags: MemFlags, bytes: usize) -> core::Mem {
        // SAFETY: no host pointer is given.
        unsafe { core::create_buffer::<_, u8>(&self.context, flags, bytes, None) }.unwrap()
    }

    fn on(&self, queue: &core::CommandQueue) -> Device {
        // SAFETY: the queue is alive.
        unsafe { gemv_opencl::on_queue(queue.as_ptr().addr()) }.unwrap()
    }
}

const NONE: Option<&core::Event> = None;

impl Owner for Library {
    fn device(&self) -> Device {
        self.on(&self.queue)
    }

    fn stranger(&self) -> Device {
        self.on(&core::create_command_queue(&self.context, self.device, None).unwrap())
    }

    fn alloc(&self, bytes: usize) -> usize {
        let mem = self.buffer(MemFlags::READ_WRITE, bytes);
        self.buffers.borrow_mut().push(mem.clone());
        mem.as_ptr().addr()
    }

    fn write(&self, handle: usize, at: usize, bytes: &'static [u8]) {
        let mem = self.mem(handle);
        // SAFETY: the slice lives for ever; the runtime looks at the buffer's end.
        let queued = unsafe {
            core::enqueue_write_buffer(
                &self.queue,
                &mem,
                false,
                at,
                bytes,
                NONE,
                None::<&mut core::Event>,
            )
        };
        queued.unwrap();
    }

    fn read(&self, handle: usize, at: usize, to: &mut [u8]) {
        let mem = self.mem(handle);
        // SAFETY: the call waits for the copy; the runtime looks at the buffer's end.
        let read = unsafe {
            core::enqueue_read_buffer(
                &self.queue,
                &mem,
                true,
                at,
                to,
                NONE,
                None::<&mut core::Event>,
            )
        };
        read.unwrap();
    }

    fn addresses(&self) -> bool {
        false
    }
}

/// One test, so that the library's calls come first in the process.
#[test]
fn memory_and_queues_of_another_library() {
    let Some(library) = Library::open() else { return };
    let none = |_: &Device, _: &Desc| Vec::<Params>::new();
    foreign::all(&library, &[Dtype::F32, Dtype::C64], &[(65, 33)], &none);
    contexts(&library);
    events(&library);
    queues(&library);
}

/// Buffers of a context that is not the queue's, that are too small, that are there to be read.
fn contexts(library: &Library) {
    use gemv_core::ndarray::Ix1;
    use gemv_core::{DeviceVector, Foreign};
    let device = library.device();
    let adopt = |mem: &core::Mem, bytes: usize, writable: bool| {
        let (handle, keep) = (mem.as_ptr().addr(), Box::new(mem.clone()));
        let foreign = Foreign { handle, bytes, dtype: Dtype::F32, writable, keep };
        // SAFETY: refused, or used by nobody.
        unsafe { DeviceVector::<f32>::from_foreign(&device, foreign, 0, Ix1(10), Ix1(1)) }
            .map_err(|e| e.to_string())
    };
    let other = Library::open().unwrap();
    let theirs = other.buffer(MemFlags::READ_WRITE, 40);
    assert!(adopt(&theirs, 40, false).unwrap_err().contains("of another context"));
    let small = library.buffer(MemFlags::READ_WRITE, 40);
    assert!(adopt(&small, 44, false).unwrap_err().contains("has 40 bytes, and not 44"));
    let read = library.buffer(MemFlags::READ_ONLY, 40);
    assert!(adopt(&read, 40, true).unwrap_err().contains("CL_MEM_READ_ONLY"));
    assert!(adopt(&read, 40, false).is_ok());
    // Of the host's memory, which need not begin where vectors do.
    let host: &'static mut [f32] = vec![1.0f32; 100].leak();
    let at = (0..16).find(|k| host[*k..].as_ptr().addr() % 64 == 4).unwrap();
    let flags = MemFlags::READ_WRITE | MemFlags::USE_HOST_PTR;
    // SAFETY: the memory lives for ever.
    let odd = unsafe { core::create_buffer(&library.context, flags, 40, Some(&host[at..at + 40])) };
    assert!(adopt(&odd.unwrap(), 40, false).unwrap_err().contains("does not begin on 64 bytes"));
    // Parts of one buffer are one memory.
    let align = 512;
    let whole = library.buffer(MemFlags::READ_WRITE, 2 * align);
    let part = core::BufferRegion::<u8>::new(align, align);
    let part = core::create_sub_buffer(&whole, MemFlags::READ_WRITE, &part).unwrap();
    let (y, x) = (adopt(&part, 40, true).unwrap(), adopt(&whole, 2 * align, false).unwrap());
    let mut y = y;
    y.assign(&x).unwrap(); // the first ten entries
    let foreign = Foreign {
        handle: whole.as_ptr().addr(),
        bytes: 2 * align,
        dtype: Dtype::F32,
        writable: false,
        keep: Box::new(()),
    };
    // SAFETY: the buffer is alive.
    let x =
        unsafe { DeviceVector::<f32>::from_foreign(&device, foreign, align / 4, Ix1(10), Ix1(1)) };
    let e = y.assign(&x.unwrap()).unwrap_err().to_string();
    assert_eq!(e, "y overlaps x, which is read");
}

/// Another queue writes what a product reads, once an event has come; and reads what it gives after another one.
fn events(library: &Library) {
    use gemv_core::ndarray::Array1;
    use gemv_core::ndarray::Array2;
    let own = library.device();
    let gate = core::create_user_event(&library.context).unwrap();
    // SAFETY: the handle is only looked at.
    let event = unsafe { *gate.as_ptr_ref() };
    // SAFETY: the event is alive and of the context.
    unsafe { own.wait_for(event.addr()) }.unwrap();
    let a = Array2::<f32>::eye(100);
    let mut done: *mut std::ffi::c_void = std::ptr::null_mut();
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            core::set_user_event_status(&gate, core::CommandExecutionStatus::Complete).unwrap();
        });
        let y = own.try_gpu_dot(&a, &Array1::ones(100)).unwrap();
        assert_eq!(y.sum(), 100.0);
        assert!(start.elapsed() > std::time::Duration::from_millis(40), "nothing waited");
    });
    // SAFETY: the place is a local.
    unsafe { own.record_event((&raw mut done).addr()) }.unwrap();
    // SAFETY: the event was just written there, with one reference.
    let done = unsafe { core::Event::from_raw_create_ptr(done) };
    core::wait_for_event(&done).unwrap();
    // SAFETY: null is refused.
    let e = unsafe { own.wait_for(0) }.unwrap_err().to_string();
    assert!(e.contains("the event is null"), "{e}");
}

/// Queues that are refused.
fn queues(library: &Library) {
    // SAFETY: null is refused.
    let e = unsafe { gemv_opencl::on_queue(0) }.unwrap_err().to_string();
    assert!(e.contains("the queue is null"), "{e}");
    let order = core::CommandQueueProperties::OUT_OF_ORDER_EXEC_MODE_ENABLE;
    let Ok(queue) = core::create_command_queue(&library.context, library.device, Some(order))
    else {
        return;
    };
    // SAFETY: the queue is alive.
    let e = unsafe { gemv_opencl::on_queue(queue.as_ptr().addr()) }.unwrap_err().to_string();
    assert!(e.contains("out of order"), "{e}");
}
