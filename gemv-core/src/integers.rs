//! Integers that live on a device, for kernels that people bring themselves.

use num_complex::Complex;

use crate::device::Device;
use crate::host::collected;
use crate::kernel_source::{KernelArray, sealed};
use crate::launch::KernelArgument;
use crate::resident::DeviceVector;
use crate::{Element, KernelType, Result};

/// An integer of a [`DeviceIntegers`]: `i32`, `u32`, `i64` or `u64`.
///
/// Sealed.
pub trait Integer: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// Its type in a kernel.
    const KERNEL_TYPE: KernelType;
    /// An element of its size: what its bits are kept in.
    type Carrier: Element;
    /// The element with these bits.
    #[doc(hidden)]
    fn carried(self) -> Self::Carrier;
    /// The integer with these bits.
    #[doc(hidden)]
    fn of_carrier(carrier: Self::Carrier) -> Self;
}

macro_rules! of_32_bits {
    ($($t:ty => $of:ident),*) => {$(
        impl Integer for $t {
            const KERNEL_TYPE: KernelType = KernelType::$of;
            type Carrier = f32;
            fn carried(self) -> f32 {
                f32::from_bits(self as u32)
            }
            fn of_carrier(carrier: f32) -> $t {
                carrier.to_bits() as $t
            }
        }
    )*};
}
of_32_bits!(i32 => I32, u32 => U32);

// Pairs of f32, since not every device has f64.
macro_rules! of_64_bits {
    ($($t:ty => $of:ident),*) => {$(
        impl Integer for $t {
            const KERNEL_TYPE: KernelType = KernelType::$of;
            type Carrier = Complex<f32>;
            fn carried(self) -> Complex<f32> {
                let [a, b, c, d, e, f, g, h] = self.to_ne_bytes();
                let (re, im) = ([a, b, c, d], [e, f, g, h]);
                Complex::new(f32::from_ne_bytes(re), f32::from_ne_bytes(im))
            }
            fn of_carrier(carrier: Complex<f32>) -> $t {
                let ([a, b, c, d], [e, f, g, h]) =
                    (carrier.re.to_ne_bytes(), carrier.im.to_ne_bytes());
                <$t>::from_ne_bytes([a, b, c, d, e, f, g, h])
            }
        }
    )*};
}
of_64_bits!(i64 => I64, u64 => U64);

/// Integers that live on a device: what a [`Kernel`](crate::Kernel) reads and writes beside resident
/// arrays. Cloning is cheap, and what is written to a clone is seen by no other.
///
/// There are no products of integers.
///
/// ```
/// use gemv::{device, kernel::DeviceIntegers};
///
/// let device = device("reference")?; // or "cuda:0"
/// let indices = DeviceIntegers::upload(&device, &[3i32, -1, i32::MIN])?;
/// assert_eq!((indices.len(), indices.is_empty()), (3, false));
/// assert_eq!(indices.download()?, [3, -1, i32::MIN]);
/// assert_eq!(DeviceIntegers::<u64>::zeros(&device, 2)?.download()?, [0, 0]);
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceIntegers<T: Integer>(DeviceVector<T::Carrier>);

impl<T: Integer> DeviceIntegers<T> {
    /// A copy of a slice on a device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), or the driver's refusal.
    pub fn upload(device: &Device, data: &[T]) -> Result<Self> {
        let carried = collected(data.iter().map(|v| v.carried()))?;
        Ok(DeviceIntegers(device.vector(&carried)?))
    }

    /// So many zeros.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn zeros(device: &Device, len: usize) -> Result<Self> {
        Ok(DeviceIntegers(device.zeros(len)?))
    }

    /// A copy on the host. Waits for what is under way on the device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) on the host, or the driver's refusal.
    pub fn download(&self) -> Result<Vec<T>> {
        collected(self.0.download()?.iter().map(|&carrier| T::of_carrier(carrier)))
    }

    /// Number of integers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The device they live on.
    pub fn device(&self) -> &Device {
        self.0.device()
    }
}

impl<T: Integer> sealed::Sealed for DeviceIntegers<T> {}
impl<T: Integer> KernelArray for DeviceIntegers<T> {
    fn kernel_type(&self) -> KernelType {
        T::KERNEL_TYPE
    }

    fn device(&self) -> &Device {
        DeviceIntegers::device(self)
    }

    fn reading(&self) -> Result<KernelArgument<'_>, String> {
        self.0.reading()
    }

    fn writing(&mut self) -> Result<KernelArgument<'_>> {
        self.0.writing()
    }
}
