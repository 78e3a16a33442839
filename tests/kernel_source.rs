//! Kernels from source on every device: what they compute, wrong shapes and wrong texts. Wrong arguments never reach a
//! device: they are with the tests of gemv-core.

mod common;

use std::process::ExitCode;

use common::{Check, absences, targets};
use gemv::half::{bf16, f16};
use gemv::kernel::{DeviceIntegers, Kernel, KernelScalar, KernelType, LaunchShape, Parameter};
use gemv::num_complex::Complex;
use gemv::unstable::{
    AnySliceMut, Backend, Checked, CompiledKernel, Desc, DeviceInfo, Job, KernelLaunch, Memory,
    Prepared,
};
use gemv::{Device, DeviceVector, Element, Error, GpuDot, ToDevice};
use libtest_mimic::{Arguments, Trial};
use ndarray::{Array1, Array2, array, s};

/// Entry points of every kind of parameter.
const TEXT: &str = r#"
#include "gemv.h"
ENTRY axpy(const float a, GLOBAL const float *x, GLOBAL float *y, const U32 n) {
  const U32 i = GROUP_ID * GROUP_SIZE + LID;
  if (i < n) y[i] = FMA_(a, x[i], y[i]);
}
ENTRY integers(const I32 a, const U32 b, const I64 c, const U64 d, GLOBAL const I32 *i,
               GLOBAL const U32 *u, GLOBAL const I64 *l, GLOBAL U64 *out) {
  out[0] = (U64)(a + i[0]);
  out[1] = (U64)(b + u[0]);
  out[2] = (U64)(c + l[0]);
  out[3] = d;
}
KERNEL(32) fixed(GLOBAL float *y) { y[GROUP_ID * 32 + LID] = 1; }
ENTRY backwards(GLOBAL const float *x, GLOBAL float *y SHARED_PARAMETER(float, buffer)) {
  SHARED(float, buffer);
  buffer[LID] = x[LID];
  BARRIER();
  y[LID] = buffer[GROUP_SIZE - 1 - LID];
}
ENTRY odd(const unsigned char c, GLOBAL float *y) { y[0] = c; }
"#;

fn text<T>(result: gemv::Result<T>) -> Result<T, String> {
    result.map_err(|e| e.to_string())
}

fn equal<T: PartialEq + std::fmt::Debug>(got: T, want: T) -> Check {
    if got == want { Ok(()) } else { Err(format!("{got:?} in place of {want:?}")) }
}

/// Whether a call fails with a sentence that ends so.
fn fails<T>(result: gemv::Result<T>, end: &str) -> Check {
    match result {
        Ok(_) => Err(format!("passed, but: {end}")),
        Err(e) if e.to_string().ends_with(end) => Ok(()),
        Err(e) => Err(format!("{e}\n  in place of: ... {end}")),
    }
}

/// Beside products, in the device's order.
fn computes(device: &Device) -> Check {
    let axpy = text(Kernel::from_source(device, TEXT, "axpy"))?;
    let n = 1000;
    let x = Array1::from_shape_fn(n, |i| i as f32);
    let a = text(Array2::<f32>::eye(n).to_device(device))?;
    let resident = text(x.to_device(device))?;
    for threads in [1, 32, 100] {
        let mut y = text(a.try_gpu_dot(&resident))?;
        for _ in 0..3 {
            let call = axpy.arguments().scalar(2.0f32).read(&resident).of_len(n);
            let call = call.write(&mut y).of_len(n).scalar(n as u32);
            // SAFETY: no index is n or more.
            text(unsafe { call.launch(LaunchShape::covering(n as u64, threads)) })?;
            y = text(a.try_gpu_dot(&y))?;
        }
        equal(text(y.download())?, x.mapv(|v| 7.0 * v))?;
    }
    Ok(())
}

/// A view that begins within its memory is read from there.
fn views(device: &Device) -> Check {
    let axpy = text(Kernel::from_source(device, TEXT, "axpy"))?;
    let a = Array2::from_shape_fn((300, 64), |(i, j)| (64 * i + j) as f32);
    let resident = text(a.to_device(device))?;
    for row in [0, 1, 2, 8, 299] {
        let mut y = text(device.zeros::<f32, _>(64))?;
        let x = resident.row(row);
        let call = axpy.arguments().scalar(1.0f32).read(&x).write(&mut y).scalar(64u32);
        // SAFETY: 64 threads, and as many entries.
        text(unsafe { call.launch(LaunchShape::new(1, 64)) })?;
        equal(text(y.download())?, a.row(row).to_owned())?;
    }
    // At an odd place, which no device can address as a buffer of its own.
    let whole = text(device.vector(&Array1::from_shape_fn(65, |i| i as f32)))?;
    let mut y = text(device.zeros::<f32, _>(64))?;
    let x = whole.step(1.., 1);
    let call = axpy.arguments().scalar(1.0f32).read(&x).write(&mut y).scalar(64u32);
    // SAFETY: as above.
    text(unsafe { call.launch(LaunchShape::new(1, 64)) })?;
    equal(text(y.download())?, Array1::from_shape_fn(64, |i| (i + 1) as f32))
}

/// A clone keeps what it had, and a view that is written becomes an array of its own.
fn shared_memory_is_copied(device: &Device) -> Check {
    let fixed = text(Kernel::from_source(device, TEXT, "fixed"))?;
    let old = Array1::from_shape_fn(40, |i| -(i as f32));
    let first = text(old.to_device(device))?;
    let mut written = first.step(4.., 1);
    let call = fixed.arguments().write(&mut written).of_len(36);
    // SAFETY: it writes 32 of 36 entries.
    text(unsafe { call.launch(LaunchShape::new(1, 32)) })?;
    let mut want = old.slice(s![4..]).to_owned();
    want.slice_mut(s![..32]).fill(1.0);
    equal(text(written.download())?, want)?;
    equal(text(first.download())?, old)?;

    let ones = text(DeviceIntegers::upload(device, &[1i32, 2]))?;
    let (mut out, kept) = (text(DeviceIntegers::<u64>::zeros(device, 4))?, ones.clone());
    let before = out.clone();
    text(integers(device, &ones, &mut out))?;
    equal(text(before.download())?, vec![0; 4])?;
    equal(text(kept.download())?, vec![1, 2])
}

fn integers(
    device: &Device,
    i: &DeviceIntegers<i32>,
    out: &mut DeviceIntegers<u64>,
) -> gemv::Result<()> {
    let kernel = Kernel::from_source(device, TEXT, "integers")?;
    let u = DeviceIntegers::upload(device, &[u32::MAX - 1])?;
    let l = DeviceIntegers::upload(device, &[i64::MIN])?;
    let call = kernel.arguments().scalar(-3i32).scalar(1u32).scalar(-1i64).scalar(u64::MAX);
    let call = call.read(i).read(&u).read(&l).write(out).of_len(4);
    // SAFETY: one thread writes four entries and reads the first of each array.
    unsafe { call.launch(LaunchShape::new(1, 1)) }
}

/// Integers of every size and sign, also those whose bits are a signalling NaN's.
fn integer_arguments(device: &Device) -> Check {
    let kernel = text(Kernel::from_source(device, TEXT, "integers"))?;
    use KernelType::*;
    let array = |of, writes| Parameter::Array { of, writes };
    let mut want: Vec<_> = [I32, U32, I64, U64].map(Parameter::Scalar).into();
    want.extend([array(I32, false), array(U32, false), array(I64, false), array(U64, true)]);
    equal(kernel.parameters(), &want[..])?;
    let mut out = text(DeviceIntegers::zeros(device, 4))?;
    let nan = 0x7f80_0001; // as f32: a signalling NaN
    text(integers(device, &text(DeviceIntegers::upload(device, &[nan]))?, &mut out))?;
    let got = text(out.download())?;
    equal(got, vec![nan as u64 - 3, u64::from(u32::MAX), i64::MAX as u64, u64::MAX])?;
    let bits = [0xffa0_0001u32, 0x7f80_0001, 0x8000_0000, 0];
    equal(text(text(DeviceIntegers::upload(device, &bits))?.download())?, bits.to_vec())
}

/// A scalar and an array of each element type come as they are.
fn element_types(device: &Device) -> Check {
    fn one<T: Element + KernelScalar>(device: &Device, number: u32, values: [T; 2]) -> Check {
        let text_of = format!(
            "#define DTYPE {number}\n#include \"gemv.h\"\n\
             ENTRY swap(const ELEM a, GLOBAL const ELEM *x, GLOBAL ELEM *y) {{ y[0] = x[1]; y[1] = a; }}"
        );
        let swap = match Kernel::from_source(device, &text_of, "swap") {
            // OpenCL devices may be without f64.
            Err(_) if T::DTYPE.needs_f64() && device.vector(&values).is_err() => return Ok(()),
            swap => text(swap)?,
        };
        let x = text(device.vector(&values))?;
        let mut y: DeviceVector<T> = text(device.zeros(2))?;
        let call = swap.arguments().scalar(values[0]).read(&x).write(&mut y).of_len(2);
        // SAFETY: both arrays have two entries.
        text(unsafe { call.launch(LaunchShape::new(1, 1)) })?;
        equal(text(y.download())?, array![values[1], values[0]])
    }
    one(device, 0, [1.5f32, -0.25])?;
    one(device, 1, [1.5f64, 0.1])?;
    one(device, 2, [f16::from_f32(1.5), f16::from_f32(-7.0)])?;
    one(device, 3, [bf16::from_f32(1.5), bf16::from_f32(-7.0)])?;
    one(device, 4, [Complex::new(1.0f32, 2.0), Complex::new(3.0, 4.0)])?;
    one(device, 5, [Complex::new(1.0f64, 2.0), Complex::new(3.0, 4.0)])
}

fn dynamic_shared_memory(device: &Device) -> Check {
    let backwards = text(Kernel::from_source(device, TEXT, "backwards"))?;
    let x = text(Array1::from_shape_fn(48, |i| i as f32).to_device(device))?;
    let mut y = text(device.zeros::<f32, _>(48))?;
    let call = backwards.arguments().read(&x).of_len(48).write(&mut y).of_len(48);
    // SAFETY: a block of 48 threads, and shared memory for as many entries.
    text(unsafe { call.launch(LaunchShape::new(1, 48).with_shared(4 * 48)) })?;
    equal(text(y.download())?, Array1::from_shape_fn(48, |i| (47 - i) as f32))?;
    let most = backwards.limits().shared;
    let more = LaunchShape::new(1, 48).with_shared(most + 1);
    let call = backwards.arguments().read(&x).write(&mut y);
    let end = format!("but at most {most} are left");
    // SAFETY: nothing is launched.
    fails(unsafe { call.launch(more) }, &end)?;
    if backwards.limits().takes_shared == Some(true) {
        let call = backwards.arguments().read(&x).write(&mut y);
        // SAFETY: nothing is launched.
        let none = unsafe { call.launch(LaunchShape::new(1, 48)) };
        fails(none, "the kernel takes dynamic shared memory, and the launch gives none")?;
    }
    Ok(())
}

fn wrong_shapes(device: &Device) -> Check {
    let fixed = text(Kernel::from_source(device, TEXT, "fixed"))?;
    let axpy = text(Kernel::from_source(device, TEXT, "axpy"))?;
    let mut y = text(device.vector(&[5.0f32; 64]))?;
    let most = axpy.limits().threads;
    let mut wrong = |shape: LaunchShape, end: &str| {
        // SAFETY: nothing is launched.
        fails(unsafe { fixed.arguments().write(&mut y).launch(shape) }, end)
    };
    wrong(LaunchShape::new(1, 0), "a block of 0 x 1 x 1 threads has none")?;
    if let Some([32, 1, 1]) = fixed.limits().required {
        wrong(
            LaunchShape::new(1, 16),
            "a block of 16 x 1 x 1 threads, but the kernel says 32 x 1 x 1",
        )?;
    } else {
        let most = fixed.limits().threads;
        equal(most, 32)?; // CUDA takes the number as a bound
        wrong(
            LaunchShape::new(1, 33),
            "a block of 33 x 1 x 1 threads, but at most 32 are possible",
        )?;
    }
    let huge = LaunchShape { grid: [1, u64::MAX, 1], block: [32, 1, 1], shared: 0 };
    if fixed.limits().check(&huge).is_err() {
        let end = format!("but at most {}", fixed.limits().grid[1]);
        wrong(huge, &end)?;
    }
    let wide = LaunchShape { grid: [u64::MAX, 1, 1], block: [32, 1, 1], shared: 0 };
    let bound = fixed.limits().grid[0].min(u64::MAX / 32);
    wrong(wide, &format!("a grid of {} blocks in x, but at most {bound}", u64::MAX))?;
    // Nothing to do is no error.
    // SAFETY: nothing is launched.
    text(unsafe { fixed.arguments().write(&mut y).launch(LaunchShape::new(0, 32)) })?;
    equal(text(y.download())?, Array1::from_elem(64, 5.0))?;

    let x = text(device.vector(&[1.0f32; 64]))?;
    let shape = LaunchShape { grid: [1; 3], block: [most, 2, 1], shared: 0 };
    let call = axpy.arguments().scalar(0.0f32).read(&x).write(&mut y).scalar(64u32);
    let end = format!("a block of {most} x 2 x 1 threads, but at most {most} are possible");
    // SAFETY: nothing is launched.
    fails(unsafe { call.launch(shape) }, &end)
}

fn wrong_texts(device: &Device) -> Check {
    match Kernel::from_source(
        device,
        "#include \"gemv.h\"\nENTRY f(GLOBAL float *y) {\n y[0] = quark;\n}\n",
        "f",
    ) {
        Err(Error::Build { kernel, log, .. }) => {
            equal(&*kernel, "f")?;
            // The log counts the lines of the text as it was given.
            if !(log.contains("quark") && (log.contains(":3:") || log.contains("(3)"))) {
                return Err(log);
            }
        }
        other => return Err(format!("{other:?}")),
    }
    match Kernel::from_source(device, TEXT, "f") {
        Err(Error::Build { log, .. }) if log.contains("f") => {}
        other => return Err(format!("{other:?}")),
    }
    match Kernel::from_source(device, "__nonsense\0", "f") {
        Err(Error::Build { .. }) => {}
        other => return Err(format!("{other:?}")),
    }
    match Kernel::from_source(device, TEXT, "odd") {
        Err(Error::Kernel { reason, .. }) => {
            let (front, end) = ("parameter 1 has the type `", "`, which no argument has");
            if reason.starts_with(front) && reason.ends_with(end) { Ok(()) } else { Err(reason) }
        }
        other => Err(format!("{other:?}")),
    }
}

/// A backend that mixes up two openings of one device.
#[derive(Debug)]
struct Mixed {
    memory: Device,
    compiles: Device,
    launches: Device,
}

impl Backend for Mixed {
    gemv_testkit::leave_to!(|self| self.memory.backend());

    fn device(&self) -> &DeviceInfo {
        self.memory.info()
    }
    fn accepts(&self, desc: &Desc) -> gemv::Result<()> {
        self.memory.backend().accepts(desc)
    }
    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> gemv::Result<()> {
        self.memory.backend().download(from, first, to)
    }
    fn product(&self, job: &mut Checked<Job<'_>>, prepared: &Prepared) -> gemv::Result<()> {
        self.memory.backend().product(job, prepared)
    }
    fn compile(&self, text: &str, entry: &str) -> gemv::Result<CompiledKernel> {
        self.compiles.backend().compile(text, entry)
    }
    fn launch(&self, launch: KernelLaunch<'_>) -> gemv::Result<()> {
        self.launches.backend().launch(launch)
    }
}

/// A kernel, or an array, of another opening of the device is refused where it is launched, and nothing is written.
fn launches_of_others(device: &Device) -> Check {
    let other = text(gemv::Engine::new(None).device(&device.info().id))?;
    let of = |memory: &Device, compiles: &Device, launches: &Device| {
        let [memory, compiles, launches] = [memory, compiles, launches].map(Device::clone);
        Device::new(std::sync::Arc::new(Mixed { memory, compiles, launches }))
    };
    for (what, mixed, taken) in [
        ("all of one", of(device, device, device), true),
        ("an array of another", of(&other, device, device), false),
        ("a kernel of another", of(device, &other, device), false),
    ] {
        let fixed = text(Kernel::from_source(&mixed, TEXT, "fixed"))?;
        let mut y = text(mixed.vector(&[5.0f32; 32]))?;
        let call = fixed.arguments().write(&mut y).of_len(32);
        let launch = std::panic::AssertUnwindSafe(|| {
            // SAFETY: 32 threads, and as many entries.
            unsafe { call.launch(LaunchShape::new(1, 32)) }
        });
        let ended = std::panic::catch_unwind(launch);
        if matches!(ended, Ok(Ok(()))) != taken {
            return Err(format!("{what}: {:?}", ended.map_err(|_| "a panic")));
        }
        let want = if taken { 1.0 } else { 5.0 };
        equal(text(y.download())?, Array1::from_elem(32, want))?;
    }
    Ok(())
}

/// Devices without kernels say so in one sentence.
fn refuses(device: &Device) -> Check {
    let id = &device.info().id;
    let end = format!("kernel axpy on {id}: kernels from source need a device of opencl or cuda");
    fails(Kernel::from_source(device, TEXT, "axpy"), &end)
}

/// A check of one device.
type OnDevice = fn(&Device) -> Check;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let targets = targets();
    let mut trials = absences(&targets);
    for target in targets {
        let Ok(device) = target.device else { continue };
        let checks: &[(&str, OnDevice)] =
            if target.id.contains("opencl") || target.id.contains("cuda") {
                &[
                    ("computes", computes),
                    ("views", views),
                    ("shared_memory_is_copied", shared_memory_is_copied),
                    ("integer_arguments", integer_arguments),
                    ("element_types", element_types),
                    ("dynamic_shared_memory", dynamic_shared_memory),
                    ("wrong_shapes", wrong_shapes),
                    ("wrong_texts", wrong_texts),
                    ("launches_of_others", launches_of_others),
                ]
            } else {
                &[("refuses", refuses)]
            };
        for &(name, check) in checks {
            let device = device.clone();
            let name = format!("{}/{name}", target.id);
            trials.push(Trial::test(name, move || Ok(check(&device)?)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
