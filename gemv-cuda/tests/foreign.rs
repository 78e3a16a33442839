//! Another library's stream, memory, events and graphs: the driver, called by this program itself.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Instant;

use gemv_core::ndarray::{Array1, Array2, Ix1, Ix2};
use gemv_core::{
    Desc, Device, DeviceMatrix, DeviceVector, Dtype, Engine, Foreign, GpuDot, Params, bytes_of,
    bytes_of_mut,
};
use gemv_testkit::foreign::{self, Owner};
use libloading::Library;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let required = std::env::var("GEMV_REQUIRE").is_ok_and(|v| v.contains("cuda"));
    let lines = Engine::new(Some("cuda".into())).devices();
    let found = lines.iter().any(|line| line.id.starts_with("cuda") && line.found.is_ok());
    let trials: [(&str, fn()); _] = [
        #[cfg(feature = "cudarc")]
        ("slices of cudarc", slices),
        ("memory", memory),
        ("the legacy stream", legacy),
        ("the default stream of a thread", of_thread),
        ("streams that are refused", refused),
        ("memory that is refused", strange_memory),
        ("events", events),
        ("captures", captures),
        ("a capture that needs more", capture_needs_more),
        ("times", times),
    ];
    let trials = trials.map(|(name, body)| {
        let body = move || {
            body();
            Ok::<(), Failed>(())
        };
        Trial::test(format!("cuda/{name}"), body).with_ignored_flag(!found && !required)
    });
    // One after the other: times are taken, and captures forbid others.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.into()).exit();
}

type Handle = *mut c_void;

/// Declares functions of the driver, as cuda.h does.
macro_rules! driver {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Driver { $($name: unsafe extern "C" fn($($argument),*) -> c_int,)* }
        impl Driver {
            fn open() -> Driver {
                let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
                // SAFETY: the driver's initialisers have no preconditions; it stays loaded.
                let library = Box::leak(Box::new(unsafe { Library::new(name) }.unwrap()));
                // SAFETY: the types are those of cuda.h.
                Driver { $($name: unsafe { *library.get($symbol.as_bytes()).unwrap() },)* }
            }
        }
    };
}
driver! {
    init = "cuInit" (c_uint);
    count = "cuDeviceGetCount" (*mut c_int);
    retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    set_current = "cuCtxSetCurrent" (Handle);
    current = "cuCtxGetCurrent" (*mut Handle);
    alloc = "cuMemAlloc_v2" (*mut u64, usize);
    free = "cuMemFree_v2" (u64);
    clear = "cuMemsetD8Async" (u64, u8, usize, Handle);
    upload = "cuMemcpyHtoDAsync_v2" (u64, *const u8, usize, Handle);
    download = "cuMemcpyDtoHAsync_v2" (*mut u8, u64, usize, Handle);
    stream = "cuStreamCreate" (*mut Handle, c_uint);
    wait = "cuStreamSynchronize" (Handle);
    event = "cuEventCreate" (*mut Handle, c_uint);
    record = "cuEventRecord" (Handle, Handle);
    wait_event = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    synchronize_event = "cuEventSynchronize" (Handle);
    begin = "cuStreamBeginCapture_v2" (Handle, c_uint);
    end = "cuStreamEndCapture" (Handle, *mut Handle);
    nodes = "cuGraphGetNodes" (Handle, *mut Handle, *mut usize);
    instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    launch = "cuGraphLaunch" (Handle, Handle);
    destroy_graph = "cuGraphDestroy" (Handle);
    destroy_exec = "cuGraphExecDestroy" (Handle);
}

/// A library on GPU 0, with one stream.
struct Other {
    driver: Driver,
    stream: usize,
}

impl Other {
    fn open() -> Other {
        let driver = Driver::open();
        let mut context = std::ptr::null_mut();
        // SAFETY: as cuda.h has it; results are written to locals.
        unsafe {
            assert_eq!((driver.init)(0), 0);
            assert_eq!((driver.retain)(&mut context, 0), 0);
            assert_eq!((driver.set_current)(context), 0);
        }
        let mut other = Other { driver, stream: 0 };
        other.stream = other.stream();
        other
    }

    /// A new stream that does not wait for the legacy one.
    fn stream(&self) -> usize {
        let mut stream = std::ptr::null_mut();
        // SAFETY: as above.
        assert_eq!(unsafe { (self.driver.stream)(&mut stream, 1) }, 0);
        stream.addr()
    }

    fn event(&self) -> usize {
        let mut event = std::ptr::null_mut();
        // SAFETY: as above.
        assert_eq!(unsafe { (self.driver.event)(&mut event, 0) }, 0);
        event.addr()
    }

    fn on(&self, stream: usize) -> Device {
        // SAFETY: streams are never destroyed here.
        unsafe { gemv_cuda::on_stream(0, stream) }.unwrap()
    }

    fn array(&self, len: usize) -> usize {
        self.alloc(4 * len)
    }

    fn wait(&self, stream: usize) {
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { (self.driver.wait)(stream as Handle) }, 0);
    }

    fn numbers(&self, handle: usize, len: usize) -> Array1<f32> {
        let mut all = Array1::zeros(len);
        self.read(handle, 0, bytes_of_mut(all.as_slice_mut().unwrap()));
        all
    }
}

impl Owner for Other {
    fn device(&self) -> Device {
        self.on(self.stream)
    }

    fn stranger(&self) -> Device {
        self.on(self.stream())
    }

    fn alloc(&self, bytes: usize) -> usize {
        let mut at = 0;
        // Whole vectors, which kernels read.
        let bytes = bytes.next_multiple_of(32);
        // SAFETY: as above; it is never freed, and has as many bytes.
        unsafe {
            assert_eq!((self.driver.alloc)(&mut at, bytes), 0);
            assert_eq!((self.driver.clear)(at, 0, bytes, self.stream as Handle), 0);
        }
        at as usize
    }

    fn write(&self, handle: usize, at: usize, bytes: &'static [u8]) {
        let (to, stream) = ((handle + at) as u64, self.stream as Handle);
        // SAFETY: the slice lives for ever; the memory has as many bytes.
        assert_eq!(unsafe { (self.driver.upload)(to, bytes.as_ptr(), bytes.len(), stream) }, 0);
    }

    fn read(&self, handle: usize, at: usize, to: &mut [u8]) {
        let (from, stream) = ((handle + at) as u64, self.stream as Handle);
        // SAFETY: the slice lives until the stream is waited for.
        assert_eq!(unsafe { (self.driver.download)(to.as_mut_ptr(), from, to.len(), stream) }, 0);
        self.wait(self.stream);
    }

    fn addresses(&self) -> bool {
        true
    }
}

fn foreign(handle: usize, len: usize, writable: bool) -> Foreign {
    Foreign { handle, bytes: 4 * len, dtype: Dtype::F32, writable, keep: Box::new(()) }
}

fn vector(device: &Device, handle: usize, len: usize) -> DeviceVector<f32> {
    // SAFETY: memory of this program is never freed, and used in the order of streams and events.
    unsafe { DeviceVector::from_foreign(device, foreign(handle, len, true), 0, Ix1(len), Ix1(1)) }
        .unwrap()
}

fn matrix(device: &Device, handle: usize, (m, n): (usize, usize)) -> DeviceMatrix<f32> {
    let foreign = foreign(handle, m * n, false);
    // SAFETY: as above.
    unsafe { DeviceMatrix::from_foreign(device, foreign, 0, Ix2(m, n), Ix2(n, 1)) }.unwrap()
}

/// The parameters of each kernel that come first among the candidates, of all kernels for one column.
fn each_kernel(device: &Device, desc: &Desc) -> Vec<Params> {
    let mut some: Vec<Params> = Vec::new();
    for params in device.backend().candidates(desc) {
        if !some.iter().any(|known| known.kernel() == params.kernel()) {
            some.push(params);
        }
    }
    some
}

fn memory() {
    let other = Other::open();
    let tiny = std::env::var_os("GEMV_TEST_TINY").is_some();
    let shapes: &[(usize, usize)] = match tiny {
        true => &[(5, 300)],
        false => &[(1, 1), (3, 700), (65, 33), (257, 256), (1000, 7), (20, 5000), (2000, 130)],
    };
    foreign::all(&other, &Dtype::ALL, shapes, &each_kernel);
}

fn small(n: usize) -> (Array2<f32>, Array1<f32>) {
    let a = Array2::from_shape_fn((n, n), |(i, j)| ((i * 7 + j * 3) % 13) as f32 - 6.0);
    let x = Array1::from_shape_fn(n, |j| (j % 5) as f32 - 2.0);
    (a, x)
}

/// Two streams of cudarc, its events among them.
#[cfg(feature = "cudarc")]
fn slices() {
    use cudarc::driver::CudaContext;
    use gemv_core::ndarray::s;
    use gemv_cuda::slices::Stream;
    let context = CudaContext::new(0).unwrap();
    let (stream, another) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let gemv = Stream::new(&stream).unwrap();
    let (a, x) = small(300);
    let want = a.dot(&x);
    let slice = stream.clone_htod(a.as_slice().unwrap()).unwrap();
    let mut v = stream.clone_htod(x.as_slice().unwrap()).unwrap();
    let mut y = stream.clone_htod(&[7.0f32; 310]).unwrap();
    for round in 0..3 {
        let (of_a, of_x) = (gemv.view(&slice, 0, (300, 300), (300, 1)), gemv.view(&v, 0, 300, 1));
        let mut part = y.slice_mut(5..305);
        let mut to = gemv.view_mut(&mut part, 0, 300, 1).unwrap();
        gemv.product(&of_a.unwrap(), &of_x.unwrap()).to(&mut to).unwrap();
        drop(to);
        let got = stream.clone_dtoh(&y).unwrap();
        assert_eq!(got[5..305], *want.as_slice().unwrap(), "round {round}");
        assert!([&got[..5], &got[305..]].concat().iter().all(|canary| *canary == 7.0));
    }
    // A part, transposed, with factors; weights of the device's own; what comes from the stream's own work.
    let resident = gemv.device().matrix(&a).unwrap();
    let part = slice.slice(4 * 300..);
    let (of_a, of_x) =
        (gemv.view(&part, 1, (299, 296), (1, 300)), gemv.view(&v, 299, 296, -1isize as usize));
    let mut to = gemv.view_mut(&mut y, 0, 299, 1).unwrap();
    gemv.product(&of_a.unwrap(), &of_x.unwrap()).scaled(2.0, 0.0).to(&mut to).unwrap();
    drop(to);
    let of = a.slice(s![4.., 1..]);
    let back = x.slice(s![4..;-1]);
    let want = 2.0 * of.t().dot(&back);
    assert_eq!(stream.clone_dtoh(&y).unwrap()[..299], *want.as_slice().unwrap());
    stream.memcpy_htod(&[1.0f32; 300], &mut v).unwrap();
    let mut sums = gemv.device().zeros::<f32, _>(300).unwrap();
    gemv.product(&resident, &gemv.view(&v, 0, 300, 1).unwrap()).to_array(&mut sums).unwrap();
    assert_eq!(sums.download().unwrap(), a.sum_axis(gemv_core::ndarray::Axis(1)));
    // In a graph of cudarc's, which keeps no slices. An event of a capture is not waited for outside.
    // SAFETY: the slices are of one stream.
    unsafe { context.disable_event_tracking() };
    let v = stream.clone_htod(&[1.0f32; 300]).unwrap();
    let mut y = stream.clone_htod(&[7.0f32; 310]).unwrap();
    let mut to = gemv.view_mut(&mut y, 0, 300, 1).unwrap();
    let of_x = gemv.view(&v, 0, 300, 1).unwrap();
    let mode = cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    stream.begin_capture(mode).unwrap();
    let e = gemv.product(&resident, &of_x).to(&mut to).unwrap_err().to_string();
    assert!(e.contains("see Product::to_graph"), "{e}");
    // SAFETY: the slices live until the end of this function, behind the graph.
    unsafe { gemv.product(&resident, &of_x).to_graph(&mut to) }.unwrap();
    drop((to, of_x));
    let flags = cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).unwrap().unwrap();
    stream.memset_zeros(&mut y).unwrap();
    graph.launch().unwrap();
    let sums = a.sum_axis(gemv_core::ndarray::Axis(1));
    assert_eq!(stream.clone_dtoh(&y).unwrap()[..300], *sums.as_slice().unwrap());
    drop(graph);
    // Refused.
    let elsewhere = another.clone_htod(&[1.0f32; 300]).unwrap();
    let e = gemv.view(&elsewhere, 0, 300, 1).unwrap_err().to_string();
    assert!(e.contains("the slice is another stream's"), "{e}");
    let e = gemv.view(&v, 1, 300, 1).unwrap_err().to_string();
    assert!(e.contains("does not lie in its memory, which has 300 elements"), "{e}");
    let mut to = gemv.view_mut(&mut y, 0, 300, 0).unwrap();
    let e = gemv.product(&resident, &gemv.view(&v, 0, 300, 1).unwrap()).to(&mut to).unwrap_err();
    assert!(e.to_string().contains("several entries at one place"), "{e}");
}

/// The stream that null is; and the one whose name is 1.
fn legacy() {
    let other = Other::open();
    let (a, x) = small(300);
    for stream in [0, 1] {
        let device = other.on(stream);
        let (resident, v) = (device.matrix(&a).unwrap(), device.vector(&x).unwrap());
        assert_eq!(resident.gpu_dot(&v).download().unwrap(), a.dot(&x));
        // It cannot be recorded: a plan calls its function each time.
        let y = device.zeros::<f32, _>(300).unwrap();
        let mut plan = device.plan((v, y), move |(v, y)| resident.try_gpu_dot_into(&*v, &mut *y));
        for _ in 0..4 {
            plan.run().unwrap();
        }
        assert_eq!(plan.into_state().1.download().unwrap(), a.dot(&x));
    }
}

/// It is another stream on each thread: others are refused, and may drop what they have.
fn of_thread() {
    let other = Other::open();
    let (a, x) = small(200);
    let device = other.on(2);
    let resident = device.matrix(&a).unwrap();
    assert_eq!(resident.try_gpu_dot(&x).unwrap().download().unwrap(), a.dot(&x));
    let large = device.zeros::<f32, _>(32 << 20).unwrap();
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            let e = resident.try_gpu_dot(&x).unwrap_err().to_string();
            assert!(e.contains("default stream of another thread"), "{e}");
            drop(large);
            // A device of its own.
            let mine = other.on(2);
            assert_eq!(mine.try_gpu_dot(&a, &x).unwrap(), a.dot(&x));
        });
        elsewhere.join().unwrap();
    });
    assert_eq!(resident.try_gpu_dot(&x).unwrap().download().unwrap(), a.dot(&x));
}

fn refused() {
    let other = Other::open();
    let mut count = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { (other.driver.count)(&mut count) }, 0);
    // SAFETY: refused.
    let e = unsafe { gemv_cuda::on_stream(99, other.stream) }.unwrap_err().to_string();
    assert!(e.contains("cuda:99"), "{e}");
    if count > 1 {
        // SAFETY: refused.
        let e = unsafe { gemv_cuda::on_stream(1, other.stream) }.unwrap_err().to_string();
        assert!(e.contains("the stream is of another GPU"), "{e}");
    }
    // The context that is current stays so.
    let mut before = std::ptr::null_mut();
    let mut after = std::ptr::null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { (other.driver.current)(&mut before) }, 0);
    let device = other.device();
    let y = vector(&device, other.array(100), 100);
    drop((y, device));
    // SAFETY: as above.
    assert_eq!(unsafe { (other.driver.current)(&mut after) }, 0);
    assert_eq!(before, after);
}

fn strange_memory() {
    let other = Other::open();
    let device = other.device();
    let adopt = |foreign: Foreign| {
        // SAFETY: refused, or used by nobody.
        let of = unsafe { DeviceVector::<f32>::from_foreign(&device, foreign, 0, Ix1(8), Ix1(1)) };
        of.map(drop).map_err(|e| e.to_string())
    };
    let at = other.array(100);
    let e = adopt(foreign(at + 2, 50, false)).unwrap_err();
    assert!(e.contains("is not a multiple of the 4 bytes of an entry"), "{e}");
    let e = adopt(foreign(at, 1 << 40, false)).unwrap_err();
    assert!(e.contains("bytes from there on, and not"), "{e}");
    for nowhere in [0, 64] {
        let e = adopt(foreign(nowhere, 100, false)).unwrap_err();
        assert!(e.contains("the driver knows no memory at") || e.contains("INVALID_VALUE"), "{e}");
    }
    assert!(adopt(foreign(at + 4, 99, false)).is_ok());
    let mut gone = 0;
    // SAFETY: as above; freed once.
    unsafe {
        assert_eq!((other.driver.alloc)(&mut gone, 400), 0);
        assert_eq!((other.driver.free)(gone), 0);
    }
    // What our arrays are in is memory of the GPU as well.
    let own = device.vector(&[1.0f32; 100]).unwrap();
    let (block, offset) = own.device_ptr().unwrap();
    let foreign = Foreign { keep: Box::new(own.clone()), ..foreign(block + offset, 100, false) };
    // SAFETY: the array keeps it.
    let again = unsafe { DeviceVector::<f32>::from_foreign(&device, foreign, 0, Ix1(100), Ix1(1)) };
    assert_eq!(again.unwrap().download().unwrap(), own.download().unwrap());
}

/// Between a stream of the other library's and one of ours.
fn events() {
    let other = Other::open();
    let (a, x) = small(1000);
    // A device with a stream of its own.
    let device = Engine::new(None).device("cuda").unwrap();
    let (v, y) = (other.array(1000), other.array(1000));
    let resident = device.matrix(&a).unwrap();
    let (there, back) = (other.event(), other.event());
    let large: &'static [u8] = vec![0u8; 256 << 20].leak();
    let busy = other.alloc(256 << 20);
    let mut got = Array1::<f32>::zeros(1000);
    for round in 0..3 {
        let values: &'static mut [f32] = (&x * (round + 1) as f32).to_vec().leak();
        // The copy that matters comes behind one that takes long.
        other.write(busy, 0, large);
        other.write(v, 0, bytes_of(values));
        let (of_v, mut of_y) = (vector(&device, v, 1000), vector(&device, y, 1000));
        let driver = &other.driver;
        // SAFETY: events and streams are alive, and so is what is copied until the wait.
        unsafe {
            assert_eq!((driver.record)(there as Handle, other.stream as Handle), 0);
            device.wait_for(there).unwrap();
            resident.try_gpu_dot_into(&of_v, &mut of_y).unwrap();
            device.record_event(back).unwrap();
            assert_eq!((driver.wait_event)(other.stream as Handle, back as Handle, 0), 0);
        }
        other.read(y, 0, bytes_of_mut(got.as_slice_mut().unwrap()));
        assert_eq!(got, a.dot(&x) * (round + 1) as f32, "round {round}");
    }
    // SAFETY: the event is alive.
    assert_eq!(unsafe { (other.driver.synchronize_event)(back as Handle) }, 0);
}

/// A graph of the other library.
struct Graph<'o> {
    other: &'o Other,
    exec: Handle,
    nodes: usize,
}

impl<'o> Graph<'o> {
    /// Captures what `work` queues on the library's stream.
    fn capture(other: &'o Other, work: impl FnOnce()) -> Graph<'o> {
        let (mut graph, mut exec, mut nodes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        let stream = other.stream as Handle;
        // SAFETY: as cuda.h has it. Mode 0 is CU_STREAM_CAPTURE_MODE_GLOBAL: the one that forbids most.
        unsafe {
            assert_eq!((other.driver.begin)(stream, 0), 0);
            work();
            assert_eq!((other.driver.end)(stream, &mut graph), 0, "the capture was spoilt");
            assert_eq!((other.driver.nodes)(graph, std::ptr::null_mut(), &mut nodes), 0);
            assert_eq!((other.driver.instantiate)(&mut exec, graph, 0), 0);
            assert_eq!((other.driver.destroy_graph)(graph), 0);
        }
        Graph { other, exec, nodes }
    }

    fn launch(&self, stream: usize) {
        // SAFETY: graph and stream are alive.
        assert_eq!(unsafe { (self.other.driver.launch)(self.exec, stream as Handle) }, 0);
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { (self.other.driver.destroy_exec)(self.exec) };
    }
}

/// Products and steps in a graph, replayed on other streams beside eager products that use scratch memory as well. The arrays
/// and the device are gone when it is last replayed.
fn captures() {
    let other = Other::open();
    // Rows and columns that are split among blocks, and those that are not.
    let shapes = [(64, 100_000), (100_000, 64), (300, 300), (4, 70_000), (4000, 4000)];
    for (m, n) in shapes {
        let device = other.device();
        let host = Array2::from_shape_fn((m, n), |(i, j)| ((i * 7 + j * 3) % 13) as f32 - 6.0);
        let x: &'static mut [f32] = (0..n).map(|j| (j % 5) as f32 - 2.0).collect::<Vec<_>>().leak();
        let want = host.dot(&Array1::from(x.to_vec()));
        let (at, of_x, of_y) = (other.array(m * n), other.array(n), other.array(m));
        let data: &'static [f32] = host.into_raw_vec_and_offset().0.leak();
        other.write(at, 0, bytes_of(data));
        other.write(of_x, 0, bytes_of(x));
        let desc = Desc::new(Dtype::F32, m, n, (n as isize, 1), 0);
        let mut all = vec![*device.prepared(&desc).unwrap().params()];
        all.extend(each_kernel(&device, &desc));
        for params in all {
            let a = matrix(&device, at, (m, n));
            let (v, mut y) = (vector(&device, of_x, n), vector(&device, of_y, m));
            let mut product = || device.product(&a, &v).with(&params).to(&mut y);
            product().unwrap();
            let graph = Graph::capture(&other, || product().unwrap());
            assert!((1..=2).contains(&graph.nodes), "{params}: {} nodes", graph.nodes);
            drop((a, v, y));
            let zeros: &'static [u8] = vec![0u8; 4 * m].leak();
            other.write(of_y, 0, zeros);
            other.wait(other.stream);
            let (elsewhere, own) = (other.stream(), other.array(m));
            // Beside eager work of the device with the same scratch memory.
            let (a, v, mut eager) =
                (matrix(&device, at, (m, n)), vector(&device, of_x, n), vector(&device, own, m));
            for _ in 0..20 {
                graph.launch(elsewhere);
                device.product(&a, &v).with(&params).to(&mut eager).unwrap();
            }
            other.wait(elsewhere);
            assert_eq!(other.numbers(of_y, m), want, "{params} of {m} x {n} in a graph");
            assert_eq!(other.numbers(own, m), want, "{params} of {m} x {n} beside a graph");
        }
    }
    // The graph keeps what it uses.
    let device = other.device();
    let (a, x) = small(500);
    let y = other.array(500);
    let graph = {
        let (resident, v) = (device.matrix(&a).unwrap(), device.vector(&x).unwrap());
        let mut to = vector(&device, y, 500);
        resident.try_gpu_dot_into(&v, &mut to).unwrap();
        to.axpy(1.0, &v).unwrap();
        let graph = Graph::capture(&other, || {
            resident.try_gpu_dot_into(&v, &mut to).unwrap();
            to.axpy(1.0, &v).unwrap();
        });
        assert_eq!(graph.nodes, 2);
        graph
    };
    drop(device);
    // Takes memory that has been given up.
    let again = other.device();
    let _others: Vec<_> = (0..20).map(|_| again.zeros::<f32, _>((500, 500)).unwrap()).collect();
    graph.launch(other.stream);
    assert_eq!(other.numbers(y, 500), a.dot(&x) + &x);
    drop(graph);
    // What it has kept is given up by the next one that asks for memory.
    again.synchronize().unwrap();
    drop(again.zeros::<f32, _>(10).unwrap());
}

/// What a capture does not allow is refused in one sentence, and the capture goes on.
fn capture_needs_more() {
    let other = Other::open();
    let device = other.device();
    let (a, x) = small(64);
    let (resident, v) = (device.matrix(&a).unwrap(), device.vector(&x).unwrap());
    let mut y = device.zeros::<f32, _>(64).unwrap();
    resident.try_gpu_dot_into(&v, &mut y).unwrap();
    // Given up while the stream is captured, when the next memory is asked for.
    let earlier = other.on(other.stream());
    let before = earlier.zeros::<f32, _>(32 << 20).unwrap();
    let far = device.zeros::<f32, _>((64, 100_000)).unwrap();
    let long = device.zeros::<f32, _>(100_000).unwrap();
    let fresh = other.device();
    let mut given_up = Some(device.zeros::<f32, _>(32 << 20).unwrap());
    let graph = Graph::capture(&other, || {
        let refused = |what: &str, outcome: gemv_core::Result<()>| {
            let e = outcome.expect_err(what).to_string();
            assert!(e.contains("run it once before the capture"), "{what}: {e}");
        };
        refused("a result", resident.try_gpu_dot(&v).map(drop));
        refused("an upload", device.vector(&x).map(drop));
        refused("a download", y.download().map(drop));
        refused("a wait", device.synchronize());
        refused("an operand of the host", resident.try_gpu_dot_into(&x, &mut y));
        refused("scratch memory", far.try_gpu_dot_into(&long, &mut y));
        refused("another device", fresh.vector(&x).map(drop));
        // Freed behind the capture; and at once, as nobody captures its stream.
        drop(given_up.take());
        drop((before, earlier));
        // So is memory had there.
        let elsewhere = other.on(other.stream());
        drop(elsewhere.zeros::<f32, _>(32 << 20).unwrap());
        resident.try_gpu_dot_into(&v, &mut y).unwrap();
    });
    assert_eq!(graph.nodes, 1);
    graph.launch(other.stream);
    assert_eq!(y.download().unwrap(), a.dot(&x));
    // Reserved, it can be captured without having run.
    let desc = far.desc();
    device.reserve(&desc).unwrap();
    let graph = Graph::capture(&other, || far.try_gpu_dot_into(&long, &mut y).unwrap());
    graph.launch(other.stream);
    assert_eq!(y.download().unwrap(), Array1::<f32>::zeros(64));
    // A plan is not replayed into a graph.
    let state = device.zeros::<f32, _>(64).unwrap();
    let mut plan = device.plan(state, move |y| resident.try_gpu_dot_into(&v, &mut *y));
    for _ in 0..3 {
        plan.run().unwrap();
    }
    let graph = Graph::capture(&other, || {
        let e = plan.run().unwrap_err().to_string();
        assert!(e.contains("being captured"), "{e}");
    });
    assert_eq!(graph.nodes, 0);
}

/// Host times: adopting, and enqueueing on either stream. Printed, and bounded loosely: the machine may be busy.
fn times() {
    let other = Other::open();
    let device = other.device();
    let own = Engine::new(None).device("cuda").unwrap();
    let (a, x) = small(256);
    let handle = other.array(256);
    let least = |mut work: Box<dyn FnMut() + '_>| {
        (0..200)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..100 {
                    work();
                }
                start.elapsed().as_nanos() / 100
            })
            .min()
            .unwrap()
    };
    // Without the end of the arrays.
    let adopt = (0..200)
        .map(|_| {
            let mut all = Vec::with_capacity(100);
            let start = Instant::now();
            all.extend((0..100).map(|_| vector(&device, handle, 256)));
            start.elapsed().as_nanos() / 100
        })
        .min()
        .unwrap();
    let enqueue = |device: &Device| {
        let (resident, v) = (device.matrix(&a).unwrap(), device.vector(&x).unwrap());
        let mut y = device.zeros::<f32, _>(256).unwrap();
        let time = least(Box::new(|| resident.try_gpu_dot_into(&v, &mut y).unwrap()));
        device.synchronize().unwrap();
        time
    };
    let (theirs, ours) = (enqueue(&device), enqueue(&own));
    let desc = Desc::new(Dtype::F32, 256, 256, (256, 1), 0);
    let cublas = own.backend().vendor(&desc).map(|params| {
        let (resident, v) = (own.matrix(&a).unwrap(), own.vector(&x).unwrap());
        let mut y = own.zeros::<f32, _>(256).unwrap();
        let product = || own.product(&resident, &v).with(&params).to(&mut y).unwrap();
        let time = least(Box::new(product));
        own.synchronize().unwrap();
        time
    });
    println!("adopting a vector: {adopt} ns");
    println!(
        "enqueueing: {theirs} ns on another library's stream, {ours} ns on our own, {cublas:?} ns cuBLAS"
    );
    assert!(adopt < 2000 && theirs < 3 * ours + 2000);
}
