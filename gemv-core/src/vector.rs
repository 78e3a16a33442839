//! Vector arithmetic on a device: steps of each entry, dot products and norms whose results stay there.

use std::ops::{Div, Neg};

use half::{bf16, f16};
use ndarray::{Axis, Dimension, Ix0};
use num_complex::Complex;

use crate::device::Device;
use crate::memory::{Memory, Window};
use crate::operand::{OperandMut, OperandRef, VectorMut, VectorRef};
use crate::product::Ask;
use crate::resident::{DeviceArray, DeviceScalar, DeviceVector, too_many_axes};
use crate::step::{Scalar, Step, VectorJob};
use crate::view_mut::DeviceViewMut;
use crate::{Accumulator, Element, Error, Result, ShapeMismatch};

/// The factor of a step: a number, a resident number, or the quotient of two; and the negative of
/// these. The host waits for none of them.
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
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a, T: Element> {
    scalar: Scalar<'a, T>,
    devices: [Option<&'a Device>; 2],
}

impl<T: Element> Factor<'_, T> {
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
        Factor { scalar: Scalar::Number(number), devices: [None; 2] }
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

impl<'a, T: Element> From<&'a DeviceScalar<T>> for Factor<'a, T> {
    fn from(of: &'a DeviceScalar<T>) -> Self {
        let scalar = Scalar::Device { of: of.window(), negated: false };
        Factor { scalar, devices: [Some(of.device()), None] }
    }
}

impl<T: Element> Neg for Factor<'_, T> {
    type Output = Self;
    fn neg(self) -> Self {
        Factor { scalar: self.scalar.negated(), ..self }
    }
}

impl<'a, T: Element> Neg for &'a DeviceScalar<T> {
    type Output = Factor<'a, T>;
    fn neg(self) -> Factor<'a, T> {
        -Factor::from(self)
    }
}

/// The quotient as a [`Factor`]; it is computed where it is used, in the accumulator's type.
impl<'a, T: Element> Div for &'a DeviceScalar<T> {
    type Output = Factor<'a, T>;
    fn div(self, by: Self) -> Factor<'a, T> {
        let scalar = Scalar::Quotient { of: self.window(), by: by.window(), negated: false };
        Factor { scalar, devices: [Some(self.device()), Some(by.device())] }
    }
}

/// An operand of a step, on the device of y.
enum Here<'a, T: Element, D> {
    Resident(&'a DeviceArray<T, D>),
    Uploaded(DeviceArray<T, D>),
}

impl<'a, T: Element, D: Dimension + Copy> Here<'a, T, D> {
    fn new(x: OperandRef<'a, T, D>, device: &Device, y: D) -> Result<Self> {
        let dim = x.raw_dim();
        if dim != y {
            let of = |dim: D| {
                let mut three = [1; 3];
                three.iter_mut().zip(dim.slice()).for_each(|(to, from)| *to = *from);
                three
            };
            let shapes = ShapeMismatch::Step { axes: y.ndim(), x: of(dim), y: of(y) };
            return Err(Error::Shape(shapes));
        }
        Ok(match x {
            OperandRef::Host(x) => Here::Uploaded(DeviceArray::upload(device, x.reborrow())?),
            OperandRef::Device(x) => {
                device.owns([Some(x.device())])?;
                Here::Resident(x)
            }
        })
    }

    fn window(&self) -> Window<&dyn Memory, D> {
        match self {
            Here::Resident(array) => array.window(),
            Here::Uploaded(array) => array.window(),
        }
    }
}

/// What one step is given beside y.
struct Operands<'a, T: Element, D: Dimension> {
    step: Step,
    alpha: Factor<'a, T>,
    x: Option<OperandRef<'a, T, D>>,
    z: Option<OperandRef<'a, T, D>>,
}

impl<'a, T: Element, D: Dimension + Copy> Operands<'a, T, D> {
    fn of(step: Step) -> Self {
        let alpha = Factor::number(T::Acc::ZERO);
        Operands { step, alpha, x: None, z: None }
    }

    fn alpha(self, alpha: Factor<'a, T>) -> Self {
        Operands { alpha, ..self }
    }

    fn x(self, x: OperandRef<'a, T, D>) -> Self {
        Operands { x: Some(x), ..self }
    }

    fn z(self, z: OperandRef<'a, T, D>) -> Self {
        Operands { z: Some(z), ..self }
    }

    /// Runs the step on `y`, which it has checked before `write` gives it a place.
    fn run(
        self,
        device: &Device,
        dim: D,
        write: impl FnOnce(&mut dyn FnMut(DeviceViewMut<'_, T, D>) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let Operands { step, alpha, x, z } = self;
        if dim.ndim() > 3 {
            return Err(too_many_axes(dim.ndim()));
        }
        device.owns(alpha.devices)?;
        let here =
            |x: Option<OperandRef<'a, T, D>>| x.map(|x| Here::new(x, device, dim)).transpose();
        let (x, z) = (here(x)?, here(z)?);
        let [x, z] = [&x, &z].map(|of| of.as_ref().map(Here::window));
        if dim.slice().contains(&0) {
            return Ok(());
        }
        write(&mut |y| {
            let job = VectorJob::new(step, alpha.scalar, x, z, y.reborrow().window());
            job.check_apart()?;
            device.backend().vector(job.erase())
        })
    }
}

/// The methods of one step, for arrays with their documentation, for views with a reference to it.
macro_rules! steps {
    ($(
        $(#[$doc:meta])*
        $name:ident = $step:ident($($operand:ident),*);
    )*) => {
        /// Elementwise steps; y is this array.
        ///
        /// Operands have its shape. What is on the host is uploaded for the one step. y is written where it
        /// lies, unless it shares its memory: then it is given memory of its own first. Each entry is
        /// rounded as rule 10 of the [order](crate::order) says, so the bits are the same everywhere.
        impl<T: Element, D: Dimension + Copy + 'static> DeviceArray<T, D> {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`Error::Shape`] if an operand has another shape; [`Error::WrongDevice`] if it lives
                /// elsewhere; [`Error::OutOfMemory`], [`Error::Build`] or [`Error::Device`] from the device.
                pub fn $name<'a>(&mut self, $($operand: steps!(@ type $operand)),*) -> Result<()> {
                    let operands = Operands::of(Step::$step)$(.$operand($operand.into()))*;
                    let (device, dim, keep) =
                        (self.device().clone(), self.raw_dim(), Step::$step.reads_y());
                    operands.run(&device, dim, |step| {
                        self.written(keep, |y| step(DeviceViewMut::of(y)))
                    })
                }
            )*
        }

        /// Elementwise steps; y is what this view is of.
        impl<T: Element, D: Dimension + Copy + 'static> DeviceViewMut<'_, T, D> {
            $(
                #[doc = concat!("See [`DeviceArray::", stringify!($name), "`].")]
                ///
                /// # Errors
                #[doc = concat!("As [`DeviceArray::", stringify!($name), "`].")]
                pub fn $name<'a>(&mut self, $($operand: steps!(@ type $operand)),*) -> Result<()> {
                    let operands = Operands::of(Step::$step)$(.$operand($operand.into()))*;
                    let (device, dim) = (self.device(), self.raw_dim());
                    operands.run(device, dim, |step| step(self.view_mut()))
                }
            )*
        }
    };
    (@ type alpha) => { impl Into<Factor<'a, T>> };
    (@ type $array:ident) => { impl Into<OperandRef<'a, T, D>> };
}

steps! {
    /// `y = alpha`, in every entry.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.zeros((2, 2))?;
    /// y.fill(0.5)?;
    /// y.row_mut(0)?.fill(&device.scalar(2.0)?)?;
    /// assert_eq!(y.download()?, array![[2.0, 2.0], [0.5, 0.5]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    fill = Fill(alpha);

    /// `y = x`, all bits of it: BLAS's copy.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (a, mut y) = (device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?, device.zeros(2)?);
    /// y.assign(&a.column(1))?; // from one place of the device to another
    /// assert_eq!(y.download()?, array![2.0, 4.0]);
    /// y.assign(&[5.0, 6.0])?; // from the host
    /// assert_eq!(y.download()?, array![5.0, 6.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    assign = Assign(x);

    /// `y = alpha * y`.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// y.scal(3.0)?;
    /// assert_eq!(y.download()?, array![3.0, 6.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    scal = Scal(alpha);

    /// `y = alpha * x + y`, one fma an entry.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// y.axpy(2.0, &[10.0, 20.0])?;
    /// assert_eq!(y.download()?, array![21.0, 42.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    axpy = Axpy(alpha, x);

    /// `y = alpha * y + x`, one fma an entry: the next direction of conjugate gradients.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// y.xpay(2.0, &[10.0, 20.0])?;
    /// assert_eq!(y.download()?, array![12.0, 24.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    xpay = Xpay(alpha, x);

    /// `y = x * z`, entry by entry.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.zeros(2)?;
    /// y.assign_product(&[2.0, 3.0], &[4.0, 5.0])?;
    /// assert_eq!(y.download()?, array![8.0, 15.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    assign_product = Product(x, z);

    /// `y = x * z + y`, one fma an entry.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// y.add_product(&[2.0, 3.0], &[4.0, 5.0])?;
    /// assert_eq!(y.download()?, array![9.0, 17.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    add_product = AddProduct(x, z);

    /// `y = x / z`, entry by entry, correctly rounded (for pairs see [`Accumulator::div`]).
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (one, three) = (device.scalar(1.0f32)?, device.scalar(3.0)?);
    /// let mut third = device.scalar(0.0)?;
    /// third.assign_quotient(&one, &three)?;
    /// assert_eq!(third.value()?, 1.0 / 3.0);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    assign_quotient = Quotient(x, z);

    /// `y = sqrt(x)`, entry by entry, correctly rounded (for pairs see [`Accumulator::sqrt`]).
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.zeros(2)?;
    /// y.assign_sqrt(&[4.0f32, 2.0])?;
    /// assert_eq!(y.download()?, array![2.0, 2.0f32.sqrt()]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    assign_sqrt = Sqrt(x);
}

impl Device {
    /// A resident number.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// assert_eq!(device.scalar(0.5f32)?.value()?, 0.5);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn scalar<T: Element>(&self, number: T) -> Result<DeviceScalar<T>> {
        DeviceArray::upload(self, ndarray::aview0(&number))
    }
}

impl<T: Element> DeviceScalar<T> {
    /// The number, for which the host waits.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (x, mut norm) = (device.vector(&array![3.0, 4.0])?, device.scalar(0.0)?);
    /// x.nrm2_into(&mut norm)?;
    /// assert_eq!(norm.value()?, 5.0);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`download`](Self::download).
    pub fn value(&self) -> Result<T> {
        Ok(self.download()?.into_scalar())
    }
}

impl<T: Element> DeviceVector<T> {
    /// The dot product `x · y`, without conjugates, written to a resident number or to an entry of a
    /// resident array ([`index_axis`](DeviceViewMut::index_axis) of its view): the bits of
    /// [`gpu_dot`](crate::GpuDot::gpu_dot), and the host does not wait.
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (x, mut y) = (device.vector(&array![1.0, 2.0])?, device.vector(&array![3.0, 5.0])?);
    /// let mut s = device.scalar(0.0)?;
    /// x.dot_into(&y, &mut s)?;
    /// y.axpy(-&s, &x)?; // no host in between
    /// assert_eq!((s.value()?, y.download()?), (x.gpu_dot(&[3.0, 5.0]), array![-10.0, -21.0]));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_gpu_dot`](crate::GpuDot::try_gpu_dot).
    pub fn dot_into<'x, 'y>(
        &self,
        y: impl Into<VectorRef<'x, T>>,
        to: impl Into<OperandMut<'y, T, Ix0>>,
    ) -> Result<()> {
        self.product(false, y.into(), to.into())
    }

    /// As [`dot_into`](Self::dot_into), of the conjugate of this vector: `xᴴ y`.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv::num_complex::Complex;
    ///
    /// let (x, mut s) = (device.vector(&[Complex::new(3.0, 4.0)])?, device.scalar(Complex::ZERO)?);
    /// x.dotc_into(&x, &mut s)?;
    /// assert_eq!(s.value()?, Complex::new(25.0, 0.0));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`dot_into`](Self::dot_into).
    pub fn dotc_into<'x, 'y>(
        &self,
        y: impl Into<VectorRef<'x, T>>,
        to: impl Into<OperandMut<'y, T, Ix0>>,
    ) -> Result<()> {
        self.product(true, y.into(), to.into())
    }

    fn product(&self, conj: bool, y: VectorRef<'_, T>, to: OperandMut<'_, T, Ix0>) -> Result<()> {
        if self.len() != y.len() {
            let (left, right) = (self.len(), y.len());
            return Err(Error::Shape(ShapeMismatch::Dot { left, right }));
        }
        let (device, row) = (self.device(), self.as_row());
        let (one, zero) = (T::Acc::ONE, T::Acc::ZERO);
        device.owns([to.device()])?;
        // A matrix of one row: the same bits as that row's entry of `A x`.
        let ask = Ask { params: None, conj, alpha: one, beta: zero };
        let write = |to: VectorMut<'_, T>| device.run(ask, (&row).into(), y, to);
        match to {
            OperandMut::Host(to) => write(to.insert_axis(Axis(0)).into()),
            OperandMut::Device(to) => {
                to.written(false, |to| write(DeviceViewMut::of(to).into_vector().into()))
            }
            OperandMut::View(to) => write(to.into_vector().into()),
        }
    }

    /// The Euclidean norm, the root of the sum of the squares `|x_i|²`; rule 11 of the
    /// [order](crate::order). The sum is not scaled: it overflows where `|x|²` does.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// assert_eq!(device.vector(&array![3.0, 4.0])?.nrm2()?, 5.0);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_gpu_dot`](crate::GpuDot::try_gpu_dot).
    pub fn nrm2(&self) -> Result<T> {
        let mut norm = self.device().scalar(T::default())?;
        self.nrm2_into(&mut norm)?;
        norm.value()
    }

    /// [`nrm2`](Self::nrm2), written to a resident number.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (mut x, one) = (device.vector(&array![3.0, 4.0])?, device.scalar(1.0)?);
    /// let mut norm = device.scalar(0.0)?;
    /// x.nrm2_into(&mut norm)?;
    /// x.scal(&one / &norm)?; // of length 1
    /// assert_eq!(x.download()?, array![3.0 * 0.2, 4.0 * 0.2]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_gpu_dot`](crate::GpuDot::try_gpu_dot).
    pub fn nrm2_into<'y>(&self, to: impl Into<OperandMut<'y, T, Ix0>>) -> Result<()> {
        match to.into() {
            OperandMut::Host(mut to) => to.fill(self.nrm2()?),
            OperandMut::Device(to) => {
                self.dotc_into(self, &mut *to)?;
                to.written(true, |to| root(DeviceViewMut::of(to)))?;
            }
            OperandMut::View(mut to) => {
                self.dotc_into(self, &mut to)?;
                root(to)?;
            }
        }
        Ok(())
    }
}

/// The root of the real part of one number, in place.
fn root<T: Element>(y: DeviceViewMut<'_, T, Ix0>) -> Result<()> {
    let (device, none) = (y.device(), Scalar::<T>::Number(T::Acc::ZERO));
    device.backend().vector(VectorJob::new(Step::Norm, none, None, None, y.window()).erase())
}
