//! What a step is given: factors, and operands on their way to the device of y.

use std::ops::{Div, Neg};

use half::{bf16, f16};
use ndarray::{Dimension, Ix3};
use num_complex::Complex;

use crate::device::Device;
use crate::memory::{Memory, Window};
use crate::operand::OperandRef;
use crate::resident::{DeviceArray, too_many_axes};
use crate::step::{Scalar, Step, VectorJob, broadcast, three_axes};
use crate::view_mut::DeviceViewMut;
use crate::{Accumulator, Element, Error, Result, ShapeMismatch};

/// The factor of a step: a number, a resident number, a resident array, or the quotient of two; and the negative of
/// these. The host waits for none of them.
///
/// An array is repeated as NumPy and ndarray do: its last axis is that of y, and an axis of one entry, or one that it has not,
/// stands for all. So to a matrix a vector gives one factor a column.
///
/// ```
/// use gemv::device;
/// use ndarray::array;
///
/// let device = device("reference")?;
/// let (x, mut y) = (device.vector(&array![1.0, 2.0])?, device.vector(&array![10.0, 10.0])?);
/// let (two, four) = (device.scalar(2.0)?, device.scalar(4.0)?);
/// y.axpy(3.0, &x)?;
/// y.axpy(&two, &x)?;
/// y.axpy(-(&two / &four), &x)?; // -0.5
/// assert_eq!(y.download()?, array![14.5, 19.0]);
///
/// let (p, r) = (device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?, device.vector(&array![6.0, 1.0])?);
/// let mut y = device.zeros((2, 2))?;
/// y.axpy(&r / &x, &p)?; // 6 / 1 for the first column, 1 / 2 for the second
/// assert_eq!(y.download()?, array![[6.0, 1.0], [18.0, 2.0]]);
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a, T: Element> {
    scalar: Scalar<'a, T>,
    devices: [Option<&'a Device>; 2],
    /// The most axes of an array.
    axes: usize,
}

impl<T: Element> Factor<'_, T> {
    /// 0.
    pub const ZERO: Self = Factor::of(T::Acc::ZERO);
    /// 1.
    pub const ONE: Self = Factor::of(T::Acc::ONE);

    const fn of(number: T::Acc) -> Self {
        Factor { scalar: Scalar::Number(number), devices: [None; 2], axes: 0 }
    }

    /// A number, in code for any element type; else `into()` makes one.
    ///
    /// ```
    /// use gemv::{DeviceVector, Element, Factor, Result};
    ///
    /// fn halve<T: Element>(x: &mut DeviceVector<T>, half: T) -> Result<()> {
    ///     x.scal(Factor::number(half.widen()))
    /// }
    /// ```
    pub fn number(number: T::Acc) -> Self {
        Factor::of(number)
    }
}

macro_rules! number {
    ($($acc:ty => $($t:ty),*;)*) => { $($(
        impl From<$acc> for Factor<'_, $t> {
            fn from(number: $acc) -> Self {
                Factor::number(number)
            }
        }
    )*)* };
}
number!(
    f32 => f32, f16, bf16;
    f64 => f64;
    Complex<f32> => Complex<f32>;
    Complex<f64> => Complex<f64>;
);

/// Where a factor lies; nowhere if it has too many axes, which is an error later on.
fn numbers<T: Element, D: Dimension + Copy>(of: &DeviceArray<T, D>) -> Window<&dyn Memory, Ix3> {
    let window = of.window();
    if D::NDIM.is_some_and(|axes| axes <= 3) {
        return three_axes(window);
    }
    Window { memory: window.memory, first: 0, dim: Ix3(0, 0, 0), strides: Ix3(0, 0, 0) }
}

impl<'a, T: Element, D: Dimension + Copy> From<&'a DeviceArray<T, D>> for Factor<'a, T> {
    fn from(of: &'a DeviceArray<T, D>) -> Self {
        let scalar = Scalar::Device { of: numbers(of), negated: false };
        Factor { scalar, devices: [Some(of.device()), None], axes: of.raw_dim().ndim() }
    }
}

impl<T: Element> Neg for Factor<'_, T> {
    type Output = Self;
    fn neg(self) -> Self {
        Factor { scalar: self.scalar.negated(), ..self }
    }
}

impl<'a, T: Element, D: Dimension + Copy> Neg for &'a DeviceArray<T, D> {
    type Output = Factor<'a, T>;
    fn neg(self) -> Factor<'a, T> {
        -Factor::from(self)
    }
}

/// The quotient as a [`Factor`]; it is computed where it is used, in the accumulator's type.
impl<'a, T: Element, D: Dimension + Copy, E: Dimension + Copy> Div<&'a DeviceArray<T, E>>
    for &'a DeviceArray<T, D>
{
    type Output = Factor<'a, T>;
    fn div(self, by: &'a DeviceArray<T, E>) -> Factor<'a, T> {
        let scalar = Scalar::Quotient { of: numbers(self), by: numbers(by), negated: false };
        let axes = self.raw_dim().ndim().max(by.raw_dim().ndim());
        Factor { scalar, devices: [Some(self.device()), Some(by.device())], axes }
    }
}

/// The error for an operand of other numbers of entries than y.
pub(crate) fn mismatch<D: Dimension>(x: &[usize], y: &D) -> Error {
    let three = |of: &[usize]| {
        let mut three = [1; 3];
        three.iter_mut().zip(of).for_each(|(to, from)| *to = *from);
        three
    };
    Error::Shape(ShapeMismatch::Step { axes: y.ndim(), x: three(x), y: three(y.slice()) })
}

/// An operand of a step, on the device of y.
enum Here<'a, T: Element, D> {
    Resident(&'a DeviceArray<T, D>),
    Uploaded(DeviceArray<T, D>),
}

impl<'a, T: Element, D: Dimension + Copy> Here<'a, T, D> {
    fn new(x: OperandRef<'a, T, D>, device: &Device, y: D) -> Result<Self> {
        let dim = x.raw_dim();
        if broadcast(Window { memory: (), first: 0, dim, strides: dim }, y).is_none() {
            return Err(mismatch(dim.slice(), &y));
        }
        Ok(match x {
            OperandRef::Host(x) => Here::Uploaded(DeviceArray::upload(device, x.reborrow())?),
            OperandRef::Device(x) => {
                device.owns([Some(x.device())])?;
                Here::Resident(x)
            }
        })
    }

    /// Where it lies, repeated as y needs it.
    fn window(&self, y: D) -> Window<&dyn Memory, D> {
        let array = match self {
            Here::Resident(array) => array,
            Here::Uploaded(array) => array,
        };
        broadcast(array.window(), y).expect("shapes that were compared")
    }
}

/// What one step is given beside y.
pub(crate) struct Operands<'a, T: Element, D: Dimension> {
    step: Step,
    alpha: Factor<'a, T>,
    beta: Factor<'a, T>,
    x: Option<OperandRef<'a, T, D>>,
    z: Option<OperandRef<'a, T, D>>,
}

impl<'a, T: Element, D: Dimension + Copy> Operands<'a, T, D> {
    pub(crate) fn of(step: Step) -> Self {
        let none = Factor::number(T::Acc::ZERO);
        Operands { step, alpha: none, beta: none, x: None, z: None }
    }

    pub(crate) fn alpha(self, alpha: Factor<'a, T>) -> Self {
        Operands { alpha, ..self }
    }

    pub(crate) fn beta(self, beta: Factor<'a, T>) -> Self {
        Operands { beta, ..self }
    }

    pub(crate) fn x(self, x: OperandRef<'a, T, D>) -> Self {
        Operands { x: Some(x), ..self }
    }

    pub(crate) fn z(self, z: OperandRef<'a, T, D>) -> Self {
        Operands { z: Some(z), ..self }
    }

    /// Whether the old y is read.
    pub(crate) fn keeps(&self) -> bool {
        self.step.reads_y() || (self.step.takes_y() && self.x.is_none())
    }

    /// The factors as y of this shape needs them, if the device has the step for it.
    pub(crate) fn check(&self, device: &Device, dim: D) -> Result<[Scalar<'a, T>; 2]> {
        let Operands { step, alpha, beta, .. } = self;
        let axes = dim.ndim().max(alpha.axes).max(beta.axes);
        if axes > 3 {
            return Err(too_many_axes(axes));
        }
        if step.is_real() && T::DTYPE.is_complex() {
            let (device, reason) =
                (device.info().id.clone(), format!("{step:?} is of real numbers"));
            return Err(Error::Unsupported { device, dtype: T::DTYPE, reason });
        }
        device.owns(alpha.devices)?;
        device.owns(beta.devices)?;
        let y = three_axes(Window { memory: (), first: 0, dim, strides: dim }).dim;
        let repeated = |factor: &Factor<'a, T>| {
            factor.scalar.with(|of| {
                let first = 3 - dim.ndim();
                broadcast(of, y).ok_or_else(|| mismatch(&of.dim.slice()[first..], &dim))
            })
        };
        Ok([repeated(alpha)?, repeated(beta)?])
    }

    /// Runs the step on `y`, which it has checked before `write` gives it a place.
    pub(crate) fn run(
        self,
        device: &Device,
        dim: D,
        write: impl FnOnce(&mut dyn FnMut(DeviceViewMut<'_, T, D>) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let factors = self.check(device, dim)?;
        let Operands { step, x, z, .. } = self;
        let here =
            |x: Option<OperandRef<'a, T, D>>| x.map(|x| Here::new(x, device, dim)).transpose();
        let (x, z) = (here(x)?, here(z)?);
        let [x, z] = [&x, &z].map(|of| of.as_ref().map(|of| of.window(dim)));
        if dim.slice().contains(&0) {
            return Ok(());
        }
        write(&mut |y| {
            let job = VectorJob::new(step, factors, x, z, y.reborrow().window());
            job.check_apart()?;
            device.backend().vector(job.erase())
        })
    }
}
