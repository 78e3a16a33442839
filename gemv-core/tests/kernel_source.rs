//! Own kernels without a compiler: what reaches a backend, and what never does.

use std::sync::{Arc, Mutex};

use gemv_core::half::f16;
use gemv_core::num_complex::Complex;
use gemv_core::reference::Reference;
use gemv_core::{
    AnySliceMut, Backend, Checked, CompiledKernel, Desc, Device, DeviceInfo, DeviceIntegers, Error,
    Job, Kernel, KernelArgument, KernelCall, KernelLaunch, KernelLimits, KernelScalar, KernelType,
    LaunchShape, Memory, Parameter, Params, Prepared, Result,
};
use ndarray::{Array1, Array2, Axis, array};

/// The reference, with a compiler that takes every text for the same kernel, and writes down what
/// is launched.
#[derive(Debug)]
struct Scribe {
    reference: Arc<dyn Backend>,
    parameters: Arc<[Parameter]>,
    launched: Arc<Mutex<Vec<String>>>,
}

/// Parameters, as this backend has them.
struct Parsed;

impl Backend for Scribe {
    gemv_testkit::leave_to!(|self| self.reference);

    fn device(&self) -> &DeviceInfo {
        self.reference.device()
    }
    fn accepts(&self, desc: &Desc) -> Result<()> {
        self.reference.accepts(desc)
    }
    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
        self.reference.download(from, first, to)
    }
    fn prepare(&self, _: &Desc, params: &Params) -> Result<Prepared> {
        Ok(Prepared::new(*params).with_parsed(Parsed))
    }
    fn product(&self, job: &mut Checked<Job<'_>>, prepared: &Prepared) -> Result<()> {
        prepared.state::<Parsed>().expect("what this backend has prepared");
        self.reference.product(job, prepared)
    }
    fn compile(&self, text: &str, _: &str) -> Result<CompiledKernel> {
        let limits = KernelLimits {
            threads: 256,
            block: [256, 16, 4],
            grid: [1 << 20, 8, 8],
            shared: 1024,
            required: (text == "required").then_some([64, 2, 1]),
            takes_shared: text.strip_prefix("shared ").map(|takes| takes == "yes"),
        };
        Ok(CompiledKernel { parameters: self.parameters.clone(), limits, state: Arc::new(()) })
    }
    fn launch(&self, launch: KernelLaunch<'_>) -> Result<()> {
        let LaunchShape { grid, block, shared } = launch.shape();
        let mut line = format!("{grid:?} {block:?} {shared}:");
        for argument in launch.arguments() {
            line += &match argument {
                KernelArgument::Read { memory, dtype, first, len } => {
                    assert!(first + len <= memory.len());
                    format!(" {dtype} {first}+{len}")
                }
                KernelArgument::Write { memory, dtype, len } => {
                    assert!(*len <= memory.len());
                    format!(" {dtype} to {len}")
                }
                KernelArgument::Scalar(value) => format!(" {:?}", value.bytes()),
            };
        }
        self.launched.lock().unwrap().push(line);
        Ok(())
    }
}

/// A device whose kernels have these parameters, and what is launched on it.
fn scribe(parameters: &[Parameter]) -> (Device, Arc<Mutex<Vec<String>>>) {
    let (reference, launched): (_, Arc<Mutex<Vec<String>>>) = (Reference::open(), Arc::default());
    let scribe = Scribe { reference, parameters: parameters.into(), launched: launched.clone() };
    (Device::new(Arc::new(scribe)), launched)
}

const READ: Parameter = Parameter::Array { of: KernelType::F32, writes: false };
const WRITE: Parameter = Parameter::Array { of: KernelType::F32, writes: true };
const ONE: LaunchShape = LaunchShape::new(1, 1);

fn launch(call: KernelCall<'_>, shape: LaunchShape) -> Result<()> {
    // SAFETY: no kernel runs, it is written down.
    unsafe { call.launch(shape) }
}

#[track_caller]
fn refused(result: Result<()>, want: &str) {
    match result {
        Err(Error::Kernel { kernel, device, reason }) => {
            assert_eq!((&*kernel, &*device, &*reason), ("f", "reference", want));
        }
        other => panic!("{other:?}"),
    }
}

/// Two backends with parameters of one name: each gets back what it has prepared.
#[test]
fn a_choice_of_another_backend_is_not_taken() {
    let (other, (device, _)) = (Device::new(Reference::open()), scribe(&[]));
    let (a, x) = (array![[1.0f32, 2.0]], array![3.0f32, 4.0]);
    for _ in 0..2 {
        for device in [&other, &device] {
            assert_eq!(device.try_gpu_dot(&a, &x).unwrap(), array![11.0]);
        }
    }
}

#[test]
fn arguments_arrive_as_they_were_given() {
    let (device, launched) = scribe(&[Parameter::Scalar(KernelType::U32), READ, WRITE]);
    let kernel = Kernel::from_source(&device, "", "f").unwrap();
    assert_eq!((kernel.name(), kernel.parameters().len()), ("f", 3));
    let a = device.matrix(&Array2::<f32>::zeros((5, 4))).unwrap();
    let (row, mut y) = (a.row(3), device.zeros::<f32, _>(7).unwrap());
    let call = kernel.arguments().scalar(0x0403_0201u32).read(&row).of_len(4);
    let shape = LaunchShape { grid: [9, 8, 7], block: [16, 2, 3], shared: 5 };
    launch(call.write(&mut y).of_len(7), shape).unwrap();
    // The transpose of a matrix by columns is one by rows.
    let columns = device.matrix(&Array2::<f32>::zeros((5, 4)).reversed_axes()).unwrap();
    let t = columns.t();
    launch(kernel.arguments().scalar(7u32).read(&t).of_len(20).write(&mut y), ONE).unwrap();
    let none = a.rows(5..);
    launch(kernel.arguments().scalar(7u32).read(&none).of_len(0).write(&mut y), ONE).unwrap();
    // Nothing to do.
    let call = kernel.arguments().scalar(7u32).read(&t).write(&mut y);
    launch(call, LaunchShape::covering(0, 64)).unwrap();
    let one = u32::to_ne_bytes(0x0403_0201);
    let seven = u32::to_ne_bytes(7);
    let want = [
        format!("[9, 8, 7] [16, 2, 3] 5: {one:?} f32 12+4 f32 to 7"),
        format!("[1, 1, 1] [1, 1, 1] 0: {seven:?} f32 0+20 f32 to 7"),
        format!("[1, 1, 1] [1, 1, 1] 0: {seven:?} f32 0+0 f32 to 7"),
    ];
    assert_eq!(*launched.lock().unwrap(), want);
}

#[test]
fn scalars_arrive_by_their_bytes() {
    fn one<T: KernelScalar>(value: T, of: KernelType, bytes: &[u8]) {
        let (device, launched) = scribe(&[Parameter::Scalar(of)]);
        let kernel = Kernel::from_source(&device, "", "f").unwrap();
        launch(kernel.arguments().scalar(value), ONE).unwrap();
        let want = format!("[1, 1, 1] [1, 1, 1] 0: {bytes:?}");
        assert_eq!(*launched.lock().unwrap(), [want], "{of}");
        assert_eq!(bytes.len(), of.bytes());
    }
    one(1.5f32, KernelType::F32, &1.5f32.to_ne_bytes());
    one(1.5f64, KernelType::F64, &1.5f64.to_ne_bytes());
    one(f16::ONE, KernelType::Bits16, &f16::ONE.to_ne_bytes());
    one(-2i32, KernelType::I32, &(-2i32).to_ne_bytes());
    one(3u32, KernelType::U32, &3u32.to_ne_bytes());
    one(-2i64, KernelType::I64, &(-2i64).to_ne_bytes());
    one(3u64, KernelType::U64, &3u64.to_ne_bytes());
    let pair = [1.0f32.to_ne_bytes(), 2.0f32.to_ne_bytes()];
    one(Complex::new(1.0f32, 2.0), KernelType::C32, pair.as_flattened());
    let pair = [1.0f64.to_ne_bytes(), 2.0f64.to_ne_bytes()];
    one(Complex::new(1.0f64, 2.0), KernelType::C64, pair.as_flattened());
}

#[test]
fn a_written_array_has_memory_of_its_own() {
    let (device, launched) = scribe(&[WRITE]);
    let kernel = Kernel::from_source(&device, "", "f").unwrap();
    let first = device.vector(&array![1.0f32, 2.0, 3.0]).unwrap();
    let mut view = first.step(1.., 1);
    launch(kernel.arguments().write(&mut view), ONE).unwrap();
    // Nobody shares it any more, and it begins where its memory does.
    let window = view.window_mut().unwrap();
    assert_eq!((window.first, window.memory.len()), (0, 2));
    assert_eq!(view.download().unwrap(), array![2.0, 3.0]);
    let mut columns = device.matrix(&array![[1.0f32, 2.0], [3.0, 4.0]].reversed_axes()).unwrap();
    launch(kernel.arguments().write(&mut columns), ONE).unwrap();
    assert_eq!(columns.strides(), (2, 1));
    assert_eq!(columns.download().unwrap(), array![[1.0, 3.0], [2.0, 4.0]]);
    assert_eq!(launched.lock().unwrap().len(), 2);
}

#[test]
fn integers_keep_their_bits_and_their_type() {
    let u32s = Parameter::Array { of: KernelType::U32, writes: false };
    let i64s = Parameter::Array { of: KernelType::I64, writes: true };
    let (device, launched) = scribe(&[u32s, i64s]);
    let kernel = Kernel::from_source(&device, "", "f").unwrap();
    let small = [0, 1, 0x7f80_0001, 0xffff_ffff, 0x8000_0000u32];
    let large = [i64::MIN, -1, 0x7ff0_0000_7f80_0001];
    let small_there = DeviceIntegers::upload(&device, &small).unwrap();
    let mut large_there = DeviceIntegers::upload(&device, &large).unwrap();
    let kept = large_there.clone();
    launch(kernel.arguments().read(&small_there).write(&mut large_there), ONE).unwrap();
    assert_eq!(small_there.download().unwrap(), small);
    assert_eq!(large_there.download().unwrap(), large);
    assert_eq!(kept.download().unwrap(), large);
    assert_eq!(*launched.lock().unwrap(), ["[1, 1, 1] [1, 1, 1] 0: f32 0+5 c32 to 3"]);
    let wrong =
        "argument 1 is an array of i64 that it reads, but it takes an array of u32 that it reads";
    refused(launch(kernel.arguments().read(&large_there), ONE), wrong);
}

#[test]
fn the_first_wrong_argument_is_the_error() {
    let (device, launched) = scribe(&[READ, WRITE, Parameter::Scalar(KernelType::U64)]);
    let kernel = Kernel::from_source(&device, "", "f").unwrap();
    let (x, mut y) = (device.zeros::<f32, _>(4).unwrap(), device.zeros::<f32, _>(4).unwrap());
    let wide = device.zeros::<f64, _>(4).unwrap();
    let halves = device.zeros::<f16, _>(4).unwrap();
    let digits = DeviceIntegers::<i32>::zeros(&device, 4).unwrap();
    let there = Device::new(Reference::open()).zeros::<f32, _>(4).unwrap();
    let (apart, back) = (x.step(.., 2), device.zeros::<f32, _>((2, 3)).unwrap().t());
    let call = kernel.arguments().read(&wide).of_len(9).scalar(1i32);
    let reads = "but it takes an array of f32 that it reads";
    refused(
        launch(call, LaunchShape::new(1, 1000)),
        &format!("argument 1 is an array of f64 that it reads, {reads}"),
    );
    let wrong = |call: KernelCall<'_>, want: &str| refused(launch(call, ONE), want);
    let given = || kernel.arguments();
    wrong(given().of_len(4), "a length is required before any argument is given");
    wrong(given(), "it takes 3 arguments, and was given 0");
    for (call, is) in [
        (given().scalar(1u64), "a scalar of u64"),
        (given().read(&halves), "an array of f16 or bf16 that it reads"),
        (given().read(&digits), "an array of i32 that it reads"),
        (given().write(&mut y), "an array of f32 that it may write"),
    ] {
        wrong(call, &format!("argument 1 is {is}, {reads}"));
    }
    for apart in [&apart.insert_axis(Axis(0)), &back] {
        wrong(given().read(apart), "argument 1 has gaps or another order than row by row");
    }
    wrong(
        given().read(&there),
        "argument 1 lives on reference, opened apart from the kernel's device",
    );
    let call = given().read(&x).of_len(5).write(&mut y).scalar(1u64);
    wrong(call, "argument 1 must have 5 entries, but it has 4");
    let read = "argument 2 is an array of f32 that it reads, but it takes an array of f32 that it may write";
    wrong(given().read(&x).read(&x), read);
    macro_rules! two {
        ($length:literal) => {
            given().read(&x).write(&mut y).of_len($length)
        };
    }
    wrong(two!(4), "it takes 3 arguments, and was given 2");
    wrong(two!(3).scalar(1u64), "argument 2 must have 3 entries, but it has 4");
    wrong(two!(4).scalar(1u32), "argument 3 is a scalar of u32, but it takes a scalar of u64");
    wrong(two!(4).scalar(1u64).scalar(1u64), "it takes 3 arguments, and was given more");
    let call = two!(4).scalar(1u64).of_len(4);
    wrong(call, "a length is required of argument 3, which is no array");
    assert!(launched.lock().unwrap().is_empty());
}

#[test]
fn shapes_are_held_against_every_limit() {
    let (device, launched) = scribe(&[]);
    let shape = |grid, block, shared| LaunchShape { grid, block, shared };
    let check = |text: &str, shape, want: Result<(), &str>| {
        let kernel = Kernel::from_source(&device, text, "f").unwrap();
        match want {
            Ok(()) => launch(kernel.arguments(), shape).unwrap(),
            Err(want) => refused(launch(kernel.arguments(), shape), want),
        }
    };
    let any = [1 << 20, 8, 8];
    check("", shape(any, [16, 4, 4], 1024), Ok(()));
    check("", shape(any, [256, 1, 1], 0), Ok(()));
    check("", shape(any, [16, 0, 4], 0), Err("a block of 16 x 0 x 4 threads has none"));
    let many = "a block of 16 x 17 x 1 threads, but at most 256 are possible";
    check("", shape(any, [16, 17, 1], 0), Err(many));
    check("", shape(any, [1, 17, 1], 0), Err("a block of 17 threads in y, but at most 16"));
    check("", shape(any, [1, 1, 5], 0), Err("a block of 5 threads in z, but at most 4"));
    let wide = "a grid of 1048577 blocks in x, but at most 1048576";
    check("", shape([(1 << 20) + 1, 1, 1], [1; 3], 0), Err(wide));
    check("", shape([1, 1, 9], [1; 3], 0), Err("a grid of 9 blocks in z, but at most 8"));
    let shared = "1025 bytes of dynamic shared memory, but at most 1024 are left";
    check("", shape(any, [1; 3], 1025), Err(shared));
    check("required", shape(any, [64, 2, 1], 0), Ok(()));
    let required = "a block of 128 x 1 x 1 threads, but the kernel says 64 x 2 x 1";
    check("required", shape(any, [128, 1, 1], 0), Err(required));
    check("shared yes", shape(any, [1; 3], 4), Ok(()));
    let none = "the kernel takes dynamic shared memory, and the launch gives none";
    check("shared yes", shape(any, [1; 3], 0), Err(none));
    check("shared no", shape(any, [1; 3], 0), Ok(()));
    let some = "4 bytes of dynamic shared memory that the kernel does not take";
    check("shared no", shape(any, [1; 3], 4), Err(some));
    assert_eq!(launched.lock().unwrap().len(), 5);
    // The number of all threads has to be one, too.
    let huge = LaunchShape::new(u64::MAX / 2, 3);
    let limits = KernelLimits::NONE;
    assert!(
        limits.check(&huge).is_err() && limits.check(&LaunchShape::new(u64::MAX / 3, 3)).is_ok()
    );
}

#[test]
fn names_and_types_are_looked_at_before_anything_is_launched() {
    let (device, _) = scribe(&[READ, Parameter::Other("struct odd *".into())]);
    let e = Kernel::from_source(&device, "", "f").unwrap_err();
    let want =
        "kernel f on reference: parameter 2 has the type `struct odd *`, which no argument has";
    assert_eq!(e.to_string(), want);
    for name in ["", "a b", "f(", "1st", "f\0", "gr\u{fc}n"] {
        let e = Kernel::from_source(&device, "", name).unwrap_err();
        assert!(e.to_string().ends_with(": its name is no name in C"), "{e}");
    }
    let (device, _) = scribe(&[]);
    assert!(Kernel::from_source(&device, "", "_f1").is_ok());
    let x = Array1::<f32>::zeros(1);
    assert!(device.vector(&x).is_ok());
}
