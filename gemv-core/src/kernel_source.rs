//! Kernels that people bring themselves, as text: compiled for a device, checked, launched.

use half::{bf16, f16};
use ndarray::Dimension;
use num_complex::Complex;

use crate::device::Device;
use crate::launch::{CompiledKernel, KernelArgument, KernelLaunch, ScalarValue};
use crate::planned::Work;
use crate::resident::DeviceArray;
use crate::{Element, Error, KernelLimits, KernelType, LaunchShape, Parameter, Result};

/// A kernel of your own, compiled for a device from OpenCL C or CUDA C++.
///
/// Its arguments are resident arrays ([`DeviceArray`], [`DeviceIntegers`](crate::DeviceIntegers)) and scalars. They are
/// checked against what the compiler says of the kernel: how many there are, the type of each, and
/// whether the kernel may write an array. So is the launch's shape, against the device's limits.
///
/// A launch takes its place in the device's order: it sees what products before it have written, and
/// products after it see what it has written.
///
/// **One text for both.** The line `#include "gemv.h"` stands for the words in which the kernels of
/// this library are written, such as:
///
/// | | |
/// |---|---|
/// | `KERNEL(threads) name(..)`, `ENTRY name(..)` | an entry point for blocks of so many threads, or of any number |
/// | `GLOBAL`, `LOCAL`, `RESTRICT`, `STATIC` | pointers to global memory, shared memory, functions |
/// | `STATIC INLINED` | functions with a barrier or a pointer to shared memory: PoCL compiles them wrong where they are not inlined |
/// | `LID`, `GROUP_ID`, `GROUPS`, `GROUP_SIZE`, `BARRIER()` | the thread and its block, in x |
/// | `I32`, `U32`, `I64`, `U64`, `U16` | integers; `U16` has the bits of an f16 or bf16 |
/// | `FMA_(a, b, c)`, `ADD_`, `MUL_` | arithmetic that is rounded once a step |
/// | `SHARED_PARAMETER(T, name)`, `SHARED(T, name)` | after the last parameter, and first in the body: dynamic shared memory |
///
/// Element and accumulator types are `ELEM` and `ACC`, of f32; with `#define DTYPE 1` before the line they
/// are of f64, with 2 to 5 of f16, bf16, c32, c64. All of the words are in `prelude.h` and `gemv.h` of
/// `gemv-gpu/src/kernels`. Without the line a text is OpenCL C or CUDA C++ as it stands.
///
/// **An array** is a pointer to its first entry. Its entries follow one another, the last axis first,
/// as in ndarray's standard layout; pass `a.t()` for a matrix by columns. What is no view begins on
/// 16 bytes, a view on an entry.
///
/// A text is compiled once for a device and kept as long as the device; a second
/// [`from_source`](Self::from_source) finds it.
///
/// ```
/// use gemv::{ToDevice, device, kernel::{Kernel, LaunchShape}};
/// use ndarray::Array1;
///
/// const TEXT: &str = r#"
/// #include "gemv.h"
/// KERNEL(64) saxpy(const float a, GLOBAL const float *x, GLOBAL float *y, const U64 n) {
///   const U64 i = GROUP_ID * 64 + LID;
///   if (i < n) y[i] = FMA_(a, x[i], y[i]);
/// }
/// "#;
/// let device = device("reference")?; // or "opencl:0", "cuda:0"
/// let x = Array1::from_elem(1000, 2.0f32).to_device(&device)?;
/// let mut y = Array1::from_elem(1000, 1.0f32).to_device(&device)?;
/// match Kernel::from_source(&device, TEXT, "saxpy") {
///     Ok(saxpy) => {
///         let n = x.len();
///         let call = saxpy.arguments().scalar(3.0f32).read(&x).of_len(n).write(&mut y).of_len(n);
///         // SAFETY: no index is n or more, and both arrays have n entries.
///         unsafe { call.scalar(n as u64).launch(LaunchShape::covering(n as u64, 64))? };
///         assert_eq!(y.download()?, Array1::from_elem(1000, 7.0));
///     }
///     Err(e) => assert_eq!(
///         e.to_string(),
///         "kernel saxpy on reference: kernels from source need a device of opencl or cuda"
///     ),
/// }
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Kernel {
    device: Device,
    entry: String,
    compiled: CompiledKernel,
}

impl Kernel {
    /// Compiles a text, and finds the entry point of this name in it.
    ///
    /// CUDA C++ is compiled by NVRTC as C++17, OpenCL C as version 1.2. Nothing relaxes the
    /// arithmetic. CUDA never contracts a product and a sum to one operation, OpenCL does not where the
    /// text includes `gemv.h`. An entry point of CUDA is declared `extern "C"`, as `KERNEL` does.
    ///
    /// # Errors
    /// [`Error::Build`] with the compiler's log; [`Error::Kernel`] where the device runs no kernels, and
    /// for a parameter of another type than those of [`KernelType`].
    pub fn from_source(device: &Device, text: &str, entry: &str) -> Result<Kernel> {
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        if !entry.starts_with(first) || !entry.chars().all(|c| first(c) || c.is_ascii_digit()) {
            let (kernel, device) = (format!("{entry:?}"), device.info().id.clone());
            return Err(Error::Kernel {
                kernel,
                device,
                reason: "its name is no name in C".into(),
            });
        }
        let compiled = device.backend().compile(text, entry)?;
        let kernel = Kernel { device: device.clone(), entry: entry.into(), compiled };
        for (index, parameter) in kernel.parameters().iter().enumerate() {
            if let Parameter::Other(name) = parameter {
                let number = index + 1;
                return Err(kernel.refused(format!(
                    "parameter {number} has the type `{name}`, which no argument has"
                )));
            }
        }
        Ok(kernel)
    }

    /// The entry point's name.
    pub fn name(&self) -> &str {
        &self.entry
    }

    /// The device that it was compiled for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What it takes, in order, as its compiler says.
    pub fn parameters(&self) -> &[Parameter] {
        &self.compiled.parameters
    }

    /// What a launch may ask for.
    pub fn limits(&self) -> &KernelLimits {
        &self.compiled.limits
    }

    /// The arguments of a launch, given one after another in the order of the parameters.
    pub fn arguments(&self) -> KernelCall<'_> {
        KernelCall { kernel: self, arguments: Vec::new(), failed: None }
    }

    fn refused(&self, reason: String) -> Error {
        let (kernel, device) = (self.entry.clone(), self.device.info().id.clone());
        Error::Kernel { kernel, device, reason }
    }
}

/// The arguments of a launch, as far as they are given; see [`Kernel::arguments`].
///
/// A wrong argument shows when it is launched, as an error that counts arguments from 1.
#[derive(Debug)]
#[must_use = "nothing runs before launch"]
pub struct KernelCall<'a> {
    kernel: &'a Kernel,
    arguments: Vec<KernelArgument<'a>>,
    failed: Option<Error>,
}

impl<'a> KernelCall<'a> {
    /// An array that the kernel reads: a parameter that points to `const`.
    pub fn read(mut self, array: &'a (impl KernelArray + ?Sized)) -> Self {
        let want = Parameter::Array { of: array.kernel_type(), writes: false };
        if self.expects(&want) && self.is_here(array.device()) {
            match array.reading() {
                Ok(argument) => self.arguments.push(argument),
                Err(reason) => self.fail(reason),
            }
        }
        self
    }

    /// An array that the kernel writes, and may read. If its memory is shared, it gets memory of its own
    /// first, with the same entries, as for a product.
    pub fn write(mut self, array: &'a mut (impl KernelArray + ?Sized)) -> Self {
        let want = Parameter::Array { of: array.kernel_type(), writes: true };
        if self.expects(&want) && self.is_here(array.device()) {
            match array.writing() {
                Ok(argument) => self.arguments.push(argument),
                Err(error) => self.failed = Some(error),
            }
        }
        self
    }

    /// A value.
    pub fn scalar(mut self, value: impl KernelScalar) -> Self {
        let value = value.value();
        if self.expects(&Parameter::Scalar(value.kernel_type())) {
            self.arguments.push(KernelArgument::Scalar(value));
        }
        self
    }

    /// Requires that the array given last has so many entries.
    pub fn of_len(mut self, len: usize) -> Self {
        if self.failed.is_some() {
            return self;
        }
        let found = match self.arguments.last() {
            Some(KernelArgument::Read { len, .. } | KernelArgument::Write { len, .. }) => *len,
            _ => {
                let reason = match self.arguments.len() {
                    0 => "a length is required before any argument is given".into(),
                    number => {
                        format!("a length is required of argument {number}, which is no array")
                    }
                };
                self.failed = Some(self.kernel.refused(reason));
                return self;
            }
        };
        if found != len {
            let number = self.arguments.len();
            let reason = format!("argument {number} must have {len} entries, but it has {found}");
            self.failed = Some(self.kernel.refused(reason));
        }
        self
    }

    /// Checks the shape and the number of arguments, and enqueues the kernel; it may run after this
    /// returns. With a grid of 0 blocks nothing runs.
    ///
    /// # Safety
    /// With these arguments and this shape, the kernel touches no memory but the entries of its arrays
    /// and the shared memory of its block, it writes no array that it was given to read, and it comes to
    /// an end. Nothing confines a kernel: one that goes beyond is undefined behaviour, as in C.
    ///
    /// # Errors
    /// [`Error::Kernel`] for a wrong argument, a wrong number of them, or a shape beyond the limits;
    /// the driver's refusal. The arrays are then as they were, unless the device itself failed.
    pub unsafe fn launch(self, shape: LaunchShape) -> Result<()> {
        let KernelCall { kernel, arguments, failed } = self;
        if let Some(error) = failed {
            return Err(error);
        }
        let (given, takes) = (arguments.len(), kernel.parameters().len());
        if given != takes {
            return Err(
                kernel.refused(format!("it takes {takes} arguments, and was given {given}"))
            );
        }
        kernel.limits().check(&shape).map_err(|reason| kernel.refused(reason))?;
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let launch = KernelLaunch::new(&kernel.compiled, arguments, shape);
        kernel.device.plannable(Work::Kernel)?;
        kernel.device.backend().launch(launch)
    }

    /// Whether the next argument may be this. The first that may not is the error.
    fn expects(&mut self, given: &Parameter) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let number = self.arguments.len() + 1;
        let parameters = self.kernel.parameters();
        let reason = match parameters.get(number - 1) {
            Some(parameter) if parameter == given => return true,
            Some(parameter) => format!("argument {number} is {given}, but it takes {parameter}"),
            None => format!("it takes {} arguments, and was given more", parameters.len()),
        };
        self.failed = Some(self.kernel.refused(reason));
        false
    }

    fn is_here(&mut self, device: &Device) -> bool {
        let here = self.kernel.device.is(device);
        if !here {
            let id = &device.info().id;
            self.fail(format!("lives on {id}, opened apart from the kernel's device"));
        }
        here
    }

    /// The next argument is wrong.
    fn fail(&mut self, reason: String) {
        let reason = format!("argument {} {reason}", self.arguments.len() + 1);
        self.failed = Some(self.kernel.refused(reason));
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A value that a kernel takes as a scalar: of an element type, `i32`, `u32`, `i64` or `u64`.
///
/// Sealed. A size is passed `as u64`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no scalar of a kernel",
    note = "the element types are, and i32, u32, i64 and u64; pass a usize `as u64`"
)]
pub trait KernelScalar: sealed::Sealed {
    /// The value as its bytes.
    fn value(self) -> ScalarValue;
}

macro_rules! scalar {
    ($($t:ty => $of:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl KernelScalar for $t {
            fn value(self) -> ScalarValue {
                ScalarValue::new(KernelType::$of, &self.to_ne_bytes())
            }
        }
    )*};
}
scalar!(f32 => F32, f64 => F64, f16 => Bits16, bf16 => Bits16, i32 => I32, u32 => U32, i64 => I64, u64 => U64);

macro_rules! pair {
    ($($t:ty => $of:ident),*) => {$(
        impl sealed::Sealed for Complex<$t> {}
        impl KernelScalar for Complex<$t> {
            fn value(self) -> ScalarValue {
                let parts = [self.re.to_ne_bytes(), self.im.to_ne_bytes()];
                ScalarValue::new(KernelType::$of, parts.as_flattened())
            }
        }
    )*};
}
pair!(f32 => C32, f64 => C64);

/// An array that a kernel takes: a [`DeviceArray`] or [`DeviceIntegers`](crate::DeviceIntegers).
///
/// Sealed.
pub trait KernelArray: sealed::Sealed {
    /// The type of an entry.
    #[doc(hidden)]
    fn kernel_type(&self) -> KernelType;
    /// Where it lives.
    #[doc(hidden)]
    fn device(&self) -> &Device;
    /// The argument, or why it is none.
    #[doc(hidden)]
    fn reading(&self) -> Result<KernelArgument<'_>, String>;
    /// The argument, in memory of its own.
    #[doc(hidden)]
    fn writing(&mut self) -> Result<KernelArgument<'_>>;
}

impl<T: Element, D: Dimension + Copy> sealed::Sealed for DeviceArray<T, D> {}
impl<T: Element, D: Dimension + Copy> KernelArray for DeviceArray<T, D> {
    fn kernel_type(&self) -> KernelType {
        KernelType::of(T::DTYPE)
    }

    fn device(&self) -> &Device {
        DeviceArray::device(self)
    }

    fn reading(&self) -> Result<KernelArgument<'_>, String> {
        if !self.window().is_ordered(false) {
            return Err("has gaps or another order than row by row".into());
        }
        let (window, len) = (self.window(), self.len());
        // Of no entries, the first may lie beyond the block.
        let first = if len == 0 { 0 } else { window.first };
        Ok(KernelArgument::Read { memory: window.memory, dtype: T::DTYPE, first, len })
    }

    fn writing(&mut self) -> Result<KernelArgument<'_>> {
        self.make_own()?;
        let len = self.len();
        let window = self.window_mut().expect("it is the only owner");
        Ok(KernelArgument::Write { memory: window.memory, dtype: T::DTYPE, len })
    }
}
