//! Vector arithmetic on a device: steps of each entry, dot products and norms whose results stay there.

use ndarray::{Axis, Dimension, Ix0};

use crate::device::Device;
use crate::factor::{Factor, Operands, mismatch};
use crate::function::{Comparison, Function};
use crate::operand::{MatrixMut, MatrixRef, OperandMut, OperandRef, VectorMut, VectorRef};
use crate::product::Ask;
use crate::resident::{DeviceArray, DeviceMatrix, DeviceScalar, DeviceVector};
use crate::step::{Scalar, Step, VectorJob};
use crate::view_mut::DeviceViewMut;
use crate::{Accumulator, Element, Error, Result, ShapeMismatch};

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
                #[allow(clippy::extra_unused_lifetimes)] // of a step without operands
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
                #[allow(clippy::extra_unused_lifetimes)] // of a step without operands
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

    /// `y = y + alpha`: also a bias, for each column a number of a vector, or for each row one of a matrix of one column.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::{Axis, array};
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// let b = device.vector(&array![10.0, 20.0])?;
    /// y.add(&b)?;
    /// assert_eq!(y.download()?, array![[11.0, 22.0], [13.0, 24.0]]);
    /// y.add(-&b.insert_axis(Axis(1)))?; // for each row
    /// assert_eq!(y.download()?, array![[1.0, 12.0], [-7.0, 4.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    add = Add(alpha);

    /// `y = x + alpha`.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.zeros(2)?;
    /// y.assign_sum(&[1.0, 2.0], 0.5)?;
    /// assert_eq!(y.download()?, array![1.5, 2.5]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    assign_sum = Add(x, alpha);

    /// `y = maximum(y, alpha)`: the larger one, NaN if one is; +0 is larger than -0.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![-1.0, 2.0])?;
    /// y.maximum(0.0)?;
    /// assert_eq!(y.download()?, array![0.0, 2.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    maximum = Maximum(alpha);

    /// `y = maximum(x, alpha)`; see [`maximum`](Self::maximum).
    assign_maximum = Maximum(x, alpha);

    /// `y = minimum(y, alpha)`: the smaller one, NaN if one is; -0 is smaller than +0.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (mut y, x) = (device.vector(&array![-1.0, 2.0])?, device.vector(&array![0.0, 1.0])?);
    /// y.minimum(&x)?;
    /// assert_eq!(y.download()?, array![-1.0, 1.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    minimum = Minimum(alpha);

    /// `y = minimum(x, alpha)`; see [`minimum`](Self::minimum).
    assign_minimum = Minimum(x, alpha);

    /// `y = minimum(maximum(y, alpha), beta)`: NumPy's `clip`. Where `alpha > beta` it is `beta`.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![-3.0, 0.5, 3.0])?;
    /// y.clamp(-1.0, 1.0)?;
    /// assert_eq!(y.download()?, array![-1.0, 0.5, 1.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    clamp = Clamp(alpha, beta);

    /// `y = minimum(maximum(x, alpha), beta)`; see [`clamp`](Self::clamp).
    assign_clamp = Clamp(x, alpha, beta);

    /// `y` is 1 where it compares so with alpha, else 0.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv::Comparison;
    ///
    /// let mut y = device.vector(&array![-3.0, 0.5, 3.0])?;
    /// y.compare(Comparison::Greater, 0.0)?;
    /// assert_eq!(y.download()?, array![0.0, 1.0, 1.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    compare = Compare[with: Comparison](alpha);

    /// `y` is 1 where x compares so with alpha, else 0; see [`compare`](Self::compare).
    assign_comparison = Compare[with: Comparison](x, alpha);

    /// `y = f(y)`.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv::Function;
    ///
    /// let mut y = device.vector(&array![0.0, f64::NEG_INFINITY])?;
    /// y.map(Function::Exp)?;
    /// assert_eq!(y.download()?, array![1.0, 0.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    map = Map[function: Function]();

    /// `y = f(x)`; see [`map`](Self::map).
    assign_map = Map[function: Function](x);
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

impl<T: Element> DeviceMatrix<T> {
    /// The dot product of each column with the same column of `y`, without conjugates: for each column the bits of
    /// [`dot_into`](DeviceVector::dot_into), in one call for all. The host does not wait.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// let mut s = device.zeros(2)?;
    /// x.dot_columns_into(&array![[1.0, 1.0], [1.0, -1.0]], &mut s)?;
    /// assert_eq!(s.download()?, array![4.0, -2.0]);
    /// # Ok::<(), gemv::Error>(())
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
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.matrix(&array![[3.0, 1.0], [4.0, 0.0]])?;
    /// let mut norms = device.zeros(2)?;
    /// x.nrm2_columns_into(&mut norms)?;
    /// assert_eq!(norms.download()?, array![5.0, 1.0]);
    /// # Ok::<(), gemv::Error>(())
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
