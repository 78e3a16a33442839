//! Vector arithmetic on a device: steps of each entry, dot products and norms whose results stay there.

use std::ops::{Div, Neg};

use half::{bf16, f16};
use ndarray::{Axis, Dimension, Ix0, Ix3};
use num_complex::Complex;

use crate::device::Device;
use crate::function::{Comparison, Function};
use crate::memory::{Memory, Window};
use crate::operand::{MatrixMut, MatrixRef, OperandMut, OperandRef, VectorMut, VectorRef};
use crate::product::Ask;
use crate::resident::{DeviceArray, DeviceMatrix, DeviceScalar, DeviceVector, too_many_axes};
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
/// use gemv_core::device;
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
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a, T: Element> {
    scalar: Scalar<'a, T>,
    devices: [Option<&'a Device>; 2],
    /// The most axes of an array.
    axes: usize,
}

impl<T: Element> Factor<'_, T> {
    /// A number, in code for any element type; else `into()` makes one.
    ///
    /// ```
    /// use gemv_core::{DeviceVector, Element, Factor, Result};
    ///
    /// fn halve<T: Element>(x: &mut DeviceVector<T>, half: T) -> Result<()> {
    ///     x.scal(Factor::number(half.widen()))
    /// }
    /// ```
    pub fn number(number: T::Acc) -> Self {
        Factor { scalar: Scalar::Number(number), devices: [None; 2], axes: 0 }
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
fn mismatch<D: Dimension>(x: &[usize], y: &D) -> Error {
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

    fn beta(self, beta: Factor<'a, T>) -> Self {
        Operands { beta, ..self }
    }

    fn x(self, x: OperandRef<'a, T, D>) -> Self {
        Operands { x: Some(x), ..self }
    }

    fn z(self, z: OperandRef<'a, T, D>) -> Self {
        Operands { z: Some(z), ..self }
    }

    /// Whether the old y is read.
    fn keeps(&self) -> bool {
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

/// The methods of one step, for arrays with their documentation, for views with a reference to it.
macro_rules! steps {
    ($(
        $(#[$doc:meta])*
        $name:ident = $step:ident $([$what:ident: $kind:ty])? ($($operand:ident),*);
    )*) => {
        /// Elementwise steps; y is this array.
        ///
        /// Operands have its shape; an axis of one entry is repeated, as ndarray's `broadcast` does. What is on the host is
        /// uploaded for the one step. y is written where it lies, unless it shares its memory: then it is given memory of
        /// its own first. Each entry is rounded as rules 10 and 12 of the [order](crate::order) say, so the bits are the
        /// same everywhere. Functions, comparisons, maxima and minima are of real types.
        impl<T: Element, D: Dimension + Copy + 'static> DeviceArray<T, D> {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`Error::Shape`] if an operand has another shape; [`Error::WrongDevice`] if it lives
                /// elsewhere; [`Error::Unsupported`] of a complex type where the step is of real ones;
                /// [`Error::OutOfMemory`], [`Error::Build`] or [`Error::Device`] from the device.
                pub fn $name<'a>(
                    &mut self,
                    $($what: $kind,)?
                    $($operand: steps!(@ type $operand)),*
                ) -> Result<()> {
                    let operands = Operands::of(Step::$step $(($what))?)$(.$operand($operand.into()))*;
                    let (device, dim, keep) =
                        (self.device().clone(), self.raw_dim(), operands.keeps());
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
                pub fn $name<'a>(
                    &mut self,
                    $($what: $kind,)?
                    $($operand: steps!(@ type $operand)),*
                ) -> Result<()> {
                    let operands = Operands::of(Step::$step $(($what))?)$(.$operand($operand.into()))*;
                    let (device, dim) = (self.device(), self.raw_dim());
                    operands.run(device, dim, |step| step(self.view_mut()))
                }
            )*
        }
    };
    (@ type alpha) => { impl Into<Factor<'a, T>> };
    (@ type beta) => { impl Into<Factor<'a, T>> };
    (@ type $array:ident) => { impl Into<OperandRef<'a, T, D>> };
}

steps! {
    /// `y = alpha`, in every entry.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.zeros((2, 2))?;
    /// y.fill(0.5)?;
    /// y.row_mut(0)?.fill(&device.scalar(2.0)?)?;
    /// assert_eq!(y.download()?, array![[2.0, 2.0], [0.5, 0.5]]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    fill = Fill(alpha);

    /// `y = x`, all bits of it: BLAS's copy.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (a, mut y) = (device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?, device.zeros(2)?);
    /// y.assign(&a.column(1))?; // from one place of the device to another
    /// assert_eq!(y.download()?, array![2.0, 4.0]);
    /// y.assign(&[5.0, 6.0])?; // from the host
    /// assert_eq!(y.download()?, array![5.0, 6.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    assign = Assign(x);

    /// `y = alpha * y`.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// y.scal(3.0)?;
    /// assert_eq!(y.download()?, array![3.0, 6.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    scal = Scal(alpha);

    /// `y = alpha * x + y`, one fma an entry.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// y.axpy(2.0, &[10.0, 20.0])?;
    /// assert_eq!(y.download()?, array![21.0, 42.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    axpy = Axpy(alpha, x);

    /// `y = alpha * y + x`, one fma an entry: the next direction of conjugate gradients.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// y.xpay(2.0, &[10.0, 20.0])?;
    /// assert_eq!(y.download()?, array![12.0, 24.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    xpay = Xpay(alpha, x);

    /// `y = x * z`, entry by entry.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.zeros(2)?;
    /// y.assign_product(&[2.0, 3.0], &[4.0, 5.0])?;
    /// assert_eq!(y.download()?, array![8.0, 15.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    assign_product = Product(x, z);

    /// `y = x * z + y`, one fma an entry.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// y.add_product(&[2.0, 3.0], &[4.0, 5.0])?;
    /// assert_eq!(y.download()?, array![9.0, 17.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    add_product = AddProduct(x, z);

    /// `y = x / z`, entry by entry, correctly rounded (for pairs see [`Accumulator::div`]).
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (one, three) = (device.scalar(1.0f32)?, device.scalar(3.0)?);
    /// let mut third = device.scalar(0.0)?;
    /// third.assign_quotient(&one, &three)?;
    /// assert_eq!(third.value()?, 1.0 / 3.0);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    assign_quotient = Quotient(x, z);

    /// `y = sqrt(x)`, entry by entry, correctly rounded (for pairs see [`Accumulator::sqrt`]).
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.zeros(2)?;
    /// y.assign_sqrt(&[4.0f32, 2.0])?;
    /// assert_eq!(y.download()?, array![2.0, 2.0f32.sqrt()]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    assign_sqrt = Sqrt(x);

    /// `y = y + alpha`: also a bias, for each column a number of a vector, or for each row one of a matrix of one column.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::{Axis, array};
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// let b = device.vector(&array![10.0, 20.0])?;
    /// y.add(&b)?;
    /// assert_eq!(y.download()?, array![[11.0, 22.0], [13.0, 24.0]]);
    /// y.add(-&b.insert_axis(Axis(1)))?; // for each row
    /// assert_eq!(y.download()?, array![[1.0, 12.0], [-7.0, 4.0]]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    add = Add(alpha);

    /// `y = x + alpha`.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.zeros(2)?;
    /// y.assign_sum(&[1.0, 2.0], 0.5)?;
    /// assert_eq!(y.download()?, array![1.5, 2.5]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    assign_sum = Add(x, alpha);

    /// `y = maximum(y, alpha)`: the larger one, NaN if one is; +0 is larger than -0.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![-1.0, 2.0])?;
    /// y.maximum(0.0)?;
    /// assert_eq!(y.download()?, array![0.0, 2.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    maximum = Maximum(alpha);

    /// `y = maximum(x, alpha)`; see [`maximum`](Self::maximum).
    assign_maximum = Maximum(x, alpha);

    /// `y = minimum(y, alpha)`: the smaller one, NaN if one is; -0 is smaller than +0.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (mut y, x) = (device.vector(&array![-1.0, 2.0])?, device.vector(&array![0.0, 1.0])?);
    /// y.minimum(&x)?;
    /// assert_eq!(y.download()?, array![-1.0, 1.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    minimum = Minimum(alpha);

    /// `y = minimum(x, alpha)`; see [`minimum`](Self::minimum).
    assign_minimum = Minimum(x, alpha);

    /// `y = minimum(maximum(y, alpha), beta)`: NumPy's `clip`. Where `alpha > beta` it is `beta`.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![-3.0, 0.5, 3.0])?;
    /// y.clamp(-1.0, 1.0)?;
    /// assert_eq!(y.download()?, array![-1.0, 0.5, 1.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    clamp = Clamp(alpha, beta);

    /// `y = minimum(maximum(x, alpha), beta)`; see [`clamp`](Self::clamp).
    assign_clamp = Clamp(x, alpha, beta);

    /// `y` is 1 where it compares so with alpha, else 0.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv_core::Comparison;
    ///
    /// let mut y = device.vector(&array![-3.0, 0.5, 3.0])?;
    /// y.compare(Comparison::Greater, 0.0)?;
    /// assert_eq!(y.download()?, array![0.0, 1.0, 1.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    compare = Compare[with: Comparison](alpha);

    /// `y` is 1 where x compares so with alpha, else 0; see [`compare`](Self::compare).
    assign_comparison = Compare[with: Comparison](x, alpha);

    /// `y = f(y)`.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv_core::Function;
    ///
    /// let mut y = device.vector(&array![0.0, 1.0])?;
    /// y.map(Function::Exp)?;
    /// assert_eq!(y.download()?, array![1.0, std::f64::consts::E]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    map = Map[function: Function]();

    /// `y = f(x)`; see [`map`](Self::map).
    assign_map = Map[function: Function](x);
}

impl Device {
    /// A resident number.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// assert_eq!(device.scalar(0.5f32)?.value()?, 0.5);
    /// # Ok::<(), gemv_core::Error>(())
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
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (x, mut norm) = (device.vector(&array![3.0, 4.0])?, device.scalar(0.0)?);
    /// x.nrm2_into(&mut norm)?;
    /// assert_eq!(norm.value()?, 5.0);
    /// # Ok::<(), gemv_core::Error>(())
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
    /// # use gemv_core::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (x, mut y) = (device.vector(&array![1.0, 2.0])?, device.vector(&array![3.0, 5.0])?);
    /// let mut s = device.scalar(0.0)?;
    /// x.dot_into(&y, &mut s)?;
    /// y.axpy(-&s, &x)?; // no host in between
    /// assert_eq!((s.value()?, y.download()?), (x.gpu_dot(&[3.0, 5.0]), array![-10.0, -21.0]));
    /// # Ok::<(), gemv_core::Error>(())
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
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv_core::num_complex::Complex;
    ///
    /// let (x, mut s) = (device.vector(&[Complex::new(3.0, 4.0)])?, device.scalar(Complex::ZERO)?);
    /// x.dotc_into(&x, &mut s)?;
    /// assert_eq!(s.value()?, Complex::new(25.0, 0.0));
    /// # Ok::<(), gemv_core::Error>(())
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
        let ask = Ask { params: None, conj, alpha: one, beta: zero, epilogue: None };
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
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// assert_eq!(device.vector(&array![3.0, 4.0])?.nrm2()?, 5.0);
    /// # Ok::<(), gemv_core::Error>(())
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
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (mut x, one) = (device.vector(&array![3.0, 4.0])?, device.scalar(1.0)?);
    /// let mut norm = device.scalar(0.0)?;
    /// x.nrm2_into(&mut norm)?;
    /// x.scal(&one / &norm)?; // of length 1
    /// assert_eq!(x.download()?, array![3.0 * 0.2, 4.0 * 0.2]);
    /// # Ok::<(), gemv_core::Error>(())
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

impl<T: Element> DeviceMatrix<T> {
    /// The dot product of each column with the same column of `y`, without conjugates: for each column the bits of
    /// [`dot_into`](DeviceVector::dot_into), in one call for all. The host does not wait.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// let mut s = device.zeros(2)?;
    /// x.dot_columns_into(&array![[1.0, 1.0], [1.0, -1.0]], &mut s)?;
    /// assert_eq!(s.download()?, array![4.0, -2.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if `y` has another shape, or `to` another length than there are columns; and as
    /// [`try_gpu_dot`](crate::GpuDot::try_gpu_dot).
    pub fn dot_columns_into<'x, 'y>(
        &self,
        y: impl Into<MatrixRef<'x, T>>,
        to: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        self.column_products(false, y.into(), to.into())
    }

    /// As [`dot_columns_into`](Self::dot_columns_into), of the conjugates of this matrix' columns.
    ///
    /// # Errors
    /// As [`dot_columns_into`](Self::dot_columns_into).
    pub fn dotc_columns_into<'x, 'y>(
        &self,
        y: impl Into<MatrixRef<'x, T>>,
        to: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        self.column_products(true, y.into(), to.into())
    }

    fn column_products(&self, conj: bool, y: MatrixRef<'_, T>, to: VectorMut<'_, T>) -> Result<()> {
        if y.raw_dim() != self.raw_dim() {
            return Err(mismatch(y.raw_dim().slice(), &self.raw_dim()));
        }
        if to.len() != self.dim().1 {
            return Err(mismatch(&[self.dim().1], &to.raw_dim()));
        }
        let device = self.device();
        device.owns([to.device()])?;
        // A batch of matrices of one row: the same bits as each of them alone.
        let rows = self.t().insert_axis(Axis(1));
        let ask =
            Ask { params: None, conj, alpha: T::Acc::ONE, beta: T::Acc::ZERO, epilogue: None };
        let resident;
        let columns = match y {
            OperandRef::Host(y) => OperandRef::Host(y.reversed_axes()),
            OperandRef::Device(y) => {
                resident = y.t();
                OperandRef::Device(&resident)
            }
        };
        let write = |to: MatrixMut<'_, T>| device.run(ask, (&rows).into(), columns, to);
        match to {
            OperandMut::Host(to) => write(OperandMut::Host(to.insert_axis(Axis(1)))),
            OperandMut::Device(to) => to.written(false, |to| {
                write(OperandMut::View(DeviceViewMut::of(to).insert_axis(Axis(1))))
            }),
            OperandMut::View(to) => write(OperandMut::View(to.insert_axis(Axis(1)))),
        }
    }

    /// The Euclidean norm of each column: the bits of [`nrm2`](DeviceVector::nrm2) of it.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.matrix(&array![[3.0, 1.0], [4.0, 0.0]])?;
    /// let mut norms = device.zeros(2)?;
    /// x.nrm2_columns_into(&mut norms)?;
    /// assert_eq!(norms.download()?, array![5.0, 1.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`dot_columns_into`](Self::dot_columns_into).
    pub fn nrm2_columns_into<'y>(&self, to: impl Into<VectorMut<'y, T>>) -> Result<()> {
        match to.into() {
            OperandMut::Host(mut to) => {
                let mut norms = self.device().zeros(to.len())?;
                self.nrm2_columns_into(&mut norms)?;
                to.assign(&norms.download()?);
            }
            OperandMut::Device(to) => {
                self.dotc_columns_into(self, &mut *to)?;
                to.written(true, |to| root(DeviceViewMut::of(to)))?;
            }
            OperandMut::View(mut to) => {
                self.dotc_columns_into(self, to.view_mut())?;
                root(to)?;
            }
        }
        Ok(())
    }
}

/// The roots of the real parts of some numbers, in place.
fn root<T: Element, D: Dimension + Copy>(y: DeviceViewMut<'_, T, D>) -> Result<()> {
    if y.raw_dim().slice().contains(&0) {
        return Ok(());
    }
    let (device, none) = (y.device(), [Scalar::<T>::Number(T::Acc::ZERO); 2]);
    device.backend().vector(VectorJob::new(Step::Norm, none, None, None, y.window()).erase())
}
