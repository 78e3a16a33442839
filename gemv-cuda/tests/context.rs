//! The context that is current on the calling thread is the same before and after each call.
//!
//! CUDA's runtime takes the current GPU of a program from it: a library that leaves its own context would
//! have the program's next allocation on another GPU.

use std::ffi::{c_int, c_uint, c_void};

use gemv_core::ndarray::{Array1, Array2, Array3, s};
use gemv_core::{
    BACKENDS, Desc, Device, Dtype, Engine, GpuDot, Kernel, LaunchShape, Params, Piece, Receive,
    Result, ToDevice,
};
use libloading::Library;
use libtest_mimic::{Arguments, Failed, Trial};
// Links the backend.
use gemv_cuda as _;

fn main() {
    let required = std::env::var("GEMV_REQUIRE").is_ok_and(|v| v.contains("cuda"));
    let engine = Engine::new(Some("cuda".into()));
    let lines = engine.devices();
    let gpus = lines.iter().filter(|line| line.id.starts_with("cuda") && line.found.is_ok());
    let mut trials: Vec<Trial> = gpus
        .enumerate()
        .flat_map(|(gpu, line)| {
            ["none", "another", "own", "next"].map(|name| {
                let trial = move || test(gpu, name).map_err(Failed::from);
                Trial::test(format!("{}/{name}", line.id), trial)
            })
        })
        .collect();
    if trials.is_empty() {
        let absent = || Err("there is no GPU".into());
        trials.push(Trial::test("cuda/absent", absent).with_ignored_flag(!required));
    }
    // The context belongs to a thread, which each trial has to itself all the same.
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

type Context = *mut c_void;

/// The driver, beside the library that is tested.
struct Driver(Library);

impl Driver {
    fn open() -> Driver {
        let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        // SAFETY: the driver's initialisers have no preconditions.
        let driver = Driver(unsafe { Library::new(name) }.unwrap());
        // SAFETY: as cuda.h declares it.
        unsafe { driver.call::<unsafe extern "C" fn(c_uint) -> c_int>("cuInit")(0) };
        driver
    }

    /// # Safety
    /// `F` is the symbol's type.
    unsafe fn call<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's.
        *unsafe { self.0.get::<F>(name.as_bytes()) }.unwrap()
    }

    fn current(&self) -> Context {
        let mut context = std::ptr::null_mut();
        // SAFETY: as cuda.h declares it; the result is written to a local.
        let code = unsafe {
            self.call::<unsafe extern "C" fn(*mut Context) -> c_int>("cuCtxGetCurrent")(
                &mut context,
            )
        };
        assert_eq!(code, 0);
        context
    }

    fn set_current(&self, context: Context) {
        // SAFETY: as cuda.h declares it; the context is none, or lives as long as the process.
        let code = unsafe {
            self.call::<unsafe extern "C" fn(Context) -> c_int>("cuCtxSetCurrent")(context)
        };
        assert_eq!(code, 0);
    }

    /// A GPU's primary context, kept for good.
    fn primary(&self, gpu: c_int) -> Context {
        let mut context = std::ptr::null_mut();
        type Retain = unsafe extern "C" fn(*mut Context, c_int) -> c_int;
        // SAFETY: as cuda.h declares it; the device number of an ordinal is the ordinal.
        let code = unsafe { self.call::<Retain>("cuDevicePrimaryCtxRetain")(&mut context, gpu) };
        assert_eq!(code, 0);
        context
    }

    /// A context of a program's own on a GPU, kept for good. It is current afterwards.
    fn another(&self, gpu: c_int) -> Context {
        let mut context = std::ptr::null_mut();
        type Create = unsafe extern "C" fn(*mut Context, c_uint, c_int) -> c_int;
        // SAFETY: as cuda.h declares it.
        let code = unsafe { self.call::<Create>("cuCtxCreate_v2")(&mut context, 0, gpu) };
        assert_eq!(code, 0);
        context
    }

    fn gpus(&self) -> c_int {
        let mut count = 0;
        type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
        // SAFETY: as cuda.h declares it; the result is written to a local.
        assert_eq!(unsafe { self.call::<Count>("cuDeviceGetCount")(&mut count) }, 0);
        count
    }
}

/// Runs every kind of call of one GPU, and looks at the context after each.
fn test(gpu: usize, name: &str) -> std::result::Result<(), String> {
    let driver = Driver::open();
    let ordinal = gpu as c_int;
    let context = match name {
        "none" => std::ptr::null_mut(),
        "another" => driver.another(ordinal),
        "own" => driver.primary(ordinal),
        // Of the next GPU, or of the only one.
        _ => driver.primary((ordinal + 1) % driver.gpus()),
    };
    driver.set_current(context);
    let mut left = Vec::new();
    let mut look = |call: &str| {
        if driver.current() != context {
            left.push(call.to_owned());
            driver.set_current(context);
        }
    };
    calls(gpu, &mut look).map_err(|e| format!("a call failed: {e}"))?;
    look("drop of a device");
    match left.is_empty() {
        true => Ok(()),
        false => Err(format!("another context is current after: {}", left.join(", "))),
    }
}

fn calls(gpu: usize, look: &mut dyn FnMut(&str)) -> Result<()> {
    let entry = BACKENDS.iter().find(|entry| entry.name == "cuda").expect("it is linked");
    (entry.discover)()?;
    look("discover");
    // Not the engine's, which keeps its devices: this one is closed at the end.
    let device = Device::new((entry.open)(gpu)?);
    look("open");
    // Long enough for several page-locked pieces; rows that lie apart are packed.
    let a = Array2::from_shape_fn((1500, 2000), |(i, j)| ((i * 7 + j) % 13) as f32 - 6.0);
    let x = Array1::from_shape_fn(2000, |j| (j % 5) as f32 - 2.0);
    let resident = device.matrix(&a)?;
    look("upload");
    drop(a.slice(s![..;2, ..;3]).to_device(&device)?);
    look("upload of a view with gaps, and its drop");
    let v = device.vector(&x)?;
    let mut y = device.zeros::<f32, _>(1500)?;
    look("zeros");
    let expected = a.dot(&x);
    for round in 0..2 {
        resident.try_gpu_dot_into(&v, &mut y)?;
        look("product");
        assert_eq!(y.download()?, expected, "round {round}");
        look("download");
        assert_eq!(device.try_gpu_dot(&a, &x)?, expected);
        look("product of host arrays");
        assert_eq!(resident.try_gpu_dot(&x)?.download()?, expected);
        look("product with a vector of the host");
    }
    let many = Array2::from_shape_fn((2000, 5), |(i, j)| ((i + 3 * j) % 7) as f32 - 3.0);
    assert_eq!(resident.try_gpu_dot(&many)?.download()?, a.dot(&many));
    look("several right-hand sides");
    let batch = Array3::from_shape_fn((30, 17, 13), |(b, i, j)| ((b + i * j) % 9) as f32 - 4.0);
    let vectors = Array2::from_elem((30, 13), 1.0f32);
    let _ = batch.to_device(&device)?.try_gpu_dot(&vectors)?;
    look("batch");
    let mut z = device.zeros::<f32, _>(1500)?;
    z.assign(&y)?;
    z.axpy(2.0, &y)?;
    look("steps");
    let mut sum = device.scalar(0.0f32)?;
    z.dot_into(&y, &mut sum)?;
    let _ = sum.value()?;
    let _ = z.nrm2()?;
    look("dot and norm");
    let mut columns = device.zeros::<f32, _>((1500, 3))?;
    columns.column_mut(1)?.assign(&y)?;
    drop(columns);
    look("a column that is written");
    let to_big = device.zeros::<f32, _>((1 << 22, 1 << 20));
    assert!(to_big.is_err());
    look("a call that fails");
    plan(&device, look)?;
    kernel(&device, look)?;
    let piece = Piece { at: 0, from: v.window().memory, range: 0..1000 };
    let to = y.window_mut().expect("not shared").memory;
    let copies = device.backend().exchange(&mut [Receive { to, pieces: vec![piece] }])?;
    look("exchange");
    copies.finish()?;
    look("end of an exchange");
    // What the tuner asks.
    let desc = Desc::new(Dtype::F64, 64, 4096, (4096, 1), 0);
    for params in device.backend().candidates(&desc).iter().take(3) {
        device.backend().prepare(&desc, params)?;
    }
    look("candidates, prepare");
    if let Some(theirs) = device.backend().vendor(&desc) {
        device.backend().fits(&desc, &theirs)?;
    }
    look("cuBLAS");
    assert!(device.backend().fits(&desc, &Params::new("no-such-kernel")).is_err());
    let time = device.backend().timed(&mut || resident.try_gpu_dot_into(&v, &mut z))?;
    assert!(!time.is_zero());
    look("timed");
    device.synchronize()?;
    look("synchronize");
    std::thread::scope(|scope| scope.spawn(move || drop(resident)).join()).expect("no panic");
    drop((v, y, z));
    look("drop of arrays");
    drop(device);
    Ok(())
}

/// Recorded at the second run, replayed at the third.
fn plan(device: &Device, look: &mut dyn FnMut(&str)) -> Result<()> {
    let a = device.matrix(&Array2::<f32>::eye(64))?;
    let x = device.vector(&Array1::<f32>::ones(64))?;
    let y = device.zeros::<f32, _>(64)?;
    let mut plan = device.plan((x, y), move |(x, y)| {
        a.try_gpu_dot_into(&*x, &mut *y)?;
        x.axpy(1.0, &*y)
    });
    for call in ["first run of a plan", "record", "replay"] {
        plan.run()?;
        look(call);
    }
    assert_eq!(plan.into_state().0.download()?, Array1::from_elem(64, 8.0f32));
    look("end of a plan");
    Ok(())
}

fn kernel(device: &Device, look: &mut dyn FnMut(&str)) -> Result<()> {
    let text = "extern \"C\" __global__ void twice(float* y, unsigned long long n) {
        unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
        if (i < n) y[i] *= 2.0f;
    }";
    let twice = match Kernel::from_source(device, text, "twice") {
        Ok(kernel) => kernel,
        // Without NVRTC.
        Err(e) => {
            look("a kernel that is refused");
            println!("{e}");
            return Ok(());
        }
    };
    look("a kernel from source");
    let mut y = device.vector(&Array1::<f32>::ones(100))?;
    let call = twice.arguments().write(&mut y).of_len(100).scalar(100u64);
    // SAFETY: no index is 100 or more, and the array has 100 entries.
    unsafe { call.launch(LaunchShape::covering(100, 64))? };
    look("a launch");
    assert_eq!(y.download()?, Array1::from_elem(100, 2.0f32));
    Ok(())
}
