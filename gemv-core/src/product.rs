//! Products on a device: shapes are compared and devices checked before a backend sees operands.

use ndarray::{Array1, ArrayViewMut, Dimension, Ix2, Ix3};

use crate::device::Device;
use crate::float_mode::in_default;
use crate::host::host_zeros;
use crate::job::{GemmJob, Input, Job, Output, check, check_batch};
use crate::operand::{MatrixMut, MatrixRef, OperandMut, OperandRef, VectorMut, VectorRef};
use crate::{Accumulator, Desc, Element, Error, Params, Prepared, Result, ShapeMismatch, Times};

impl Device {
    /// `A x` on this device, as a host array; see [`GpuDot`](crate::GpuDot) for `a.gpu_dot(&x)`.
    ///
    /// A is m × n, `x` has n entries, the result m; each on the host or resident here.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
    /// let x = device.vector(&array![1.0, -1.0])?;
    /// assert_eq!(device.try_gpu_dot(&a, &x)?, array![-1.0, -1.0, -1.0]);
    /// assert_eq!(device.try_gpu_dot(&a.t(), &array![1.0, 0.0, 1.0])?, array![6.0, 8.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn try_gpu_dot<'a, 'x, T: Element>(
        &self,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
    ) -> Result<Array1<T>> {
        let (a, x) = (a.into(), x.into());
        // Before a vector is allocated for it.
        check(a.raw_dim(), x.raw_dim(), None)?;
        let mut y = Array1::from_vec(host_zeros("the host", a.dim().0)?);
        let (alpha, beta) = (T::Acc::ONE, T::Acc::ZERO);
        self.gemv(alpha, a, x, beta, VectorMut::Host(y.view_mut()))?;
        Ok(y)
    }

    /// `y = alpha * A x + beta * y` on this device, with BLAS's meaning: `alpha = 0` does not read
    /// A and x, `beta = 0` does not read y. Operands may be on the host or resident here.
    ///
    /// A is m × n, `x` has n entries, `y` m. The factors have the accumulator's type: f32 for f16
    /// and bf16.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv_core::half::f16;
    /// use ndarray::{Array2, array};
    ///
    /// let a = Array2::from_elem((2, 2), f16::from_f32(0.5));
    /// let x = array![f16::ONE, f16::ONE];
    /// let mut y = array![f16::NAN, f16::NAN];
    /// device.gemv(3.0, &a, &x, 0.0, &mut y)?; // beta = 0: y is not read
    /// assert_eq!(y[0].to_f32(), 3.0);
    /// device.gemv(1.0, &a, &x, -1.0, &mut y)?;
    /// assert_eq!(y[0].to_f32(), -2.0);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::WrongDevice`] if a resident operand lives elsewhere;
    /// [`Error::Unsupported`], [`Error::OutOfMemory`], [`Error::Build`] or [`Error::Device`] from
    /// the device.
    #[inline]
    pub fn gemv<'a, 'x, 'y, T: Element>(
        &self,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        self.run(None, false, alpha, a.into(), x.into(), beta, y.into())
    }

    /// [`gemv`](Self::gemv) with the conjugate of A (the same for real types). With
    /// `A.t()` it is BLAS's `C`.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv_core::num_complex::Complex;
    /// use ndarray::array;
    ///
    /// let i = Complex::new(0.0f32, 1.0);
    /// let (one, zero) = (Complex::new(1.0, 0.0), Complex::new(0.0, 0.0));
    /// let (a, x) = (array![[one, i], [zero, one]], array![one, i]);
    /// let mut y = array![zero, zero];
    /// device.gemv_conj(one, &a.t(), &x, zero, &mut y)?; // Aᴴ x
    /// assert_eq!(y, array![one, zero]); // second: -i + i
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemv_conj<'a, 'x, 'y, T: Element>(
        &self,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        self.run(None, true, alpha, a.into(), x.into(), beta, y.into())
    }

    /// [`gemv`](Self::gemv) with these parameters in place of the table's: for the tuner, tests
    /// and benchmarks, and for the published `classic-*` kernels, which keep another order.
    ///
    /// ```
    /// # use gemv_core::{Engine, Error, Params};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (a, x, mut y) = (array![[1.0, 2.0]], array![3.0, 4.0], array![0.0]);
    /// device.gemv_as(&Params::new("reference"), 1.0, &a, &x, 0.0, &mut y)?;
    /// assert_eq!(y, array![11.0]);
    /// let other = "row threads=128".parse().unwrap();
    /// let e = device.gemv_as(&other, 1.0, &a, &x, 0.0, &mut y).unwrap_err();
    /// assert!(matches!(e, Error::Params { .. }) && y == array![11.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv), and [`Error::Params`] if they are not legal for the problem.
    pub fn gemv_as<'a, 'x, 'y, T: Element>(
        &self,
        params: &Params,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        self.run(Some(params), false, alpha, a.into(), x.into(), beta, y.into())
    }

    /// [`gemv_conj`](Self::gemv_conj) with these parameters in place of the table's.
    ///
    /// # Errors
    /// As [`gemv_as`](Self::gemv_as).
    pub fn gemv_conj_as<'a, 'x, 'y, T: Element>(
        &self,
        params: &Params,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        self.run(Some(params), true, alpha, a.into(), x.into(), beta, y.into())
    }

    /// `Y = alpha * A X + beta * Y` on this device: [`gemv`](Self::gemv) for every column of X.
    ///
    /// A is m × n, X n × k, Y m × k, each of any strides. Column c of Y has the bits of the product of
    /// A and column c of X, whatever k is.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![[1.0, 0.0], [0.0, 1.0]]);
    /// let mut y = array![[1.0, 1.0], [1.0, 1.0]];
    /// device.gemm(2.0, &a, &x, -1.0, &mut y)?;
    /// assert_eq!(y, array![[1.0, 3.0], [5.0, 7.0]]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemm<'a, 'x, 'y, T: Element>(
        &self,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<MatrixRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<MatrixMut<'y, T>>,
    ) -> Result<()> {
        self.run_many(None, false, alpha, &a.into(), &x.into(), beta, y.into())
    }

    /// [`gemm`](Self::gemm) with the conjugate of A (the same for real types). With `A.t()` it is
    /// `Aᴴ X`.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv_core::num_complex::Complex;
    /// use ndarray::array;
    ///
    /// let (one, zero, i) = (Complex::new(1.0, 0.0), Complex::new(0.0, 0.0), Complex::new(0.0, 1.0));
    /// let (a, x) = (array![[one, i]], array![[one, i]]);
    /// let mut y = array![[zero, zero], [zero, zero]];
    /// device.gemm_conj(one, &a.t(), &x, zero, &mut y)?; // Aᴴ X
    /// assert_eq!(y, array![[one, i], [-i, one]]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemm_conj<'a, 'x, 'y, T: Element>(
        &self,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<MatrixRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<MatrixMut<'y, T>>,
    ) -> Result<()> {
        self.run_many(None, true, alpha, &a.into(), &x.into(), beta, y.into())
    }

    /// [`gemm`](Self::gemm) for each of a batch: A is batch × m × n, X batch × n × k, Y
    /// batch × m × k. A batch stride of 0, such as of a broadcast view, shares A or X.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::{Array3, array};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = Array3::from_shape_fn((3, 2, 2), |(b, i, j)| (b * (i + j)) as f32);
    /// let x = array![[1.0f32, 2.0], [3.0, 4.0]];
    /// let mut y = Array3::zeros((3, 2, 2));
    /// device.gemm_batched(1.0, &a, x.broadcast((3, 2, 2)).unwrap(), 0.0, &mut y)?;
    /// assert_eq!(y[[2, 1, 0]], 2.0 * 1.0 + 4.0 * 3.0);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemm_batched<'a, 'x, 'y, T: Element>(
        &self,
        alpha: T::Acc,
        a: impl Into<OperandRef<'a, T, Ix3>>,
        x: impl Into<OperandRef<'x, T, Ix3>>,
        beta: T::Acc,
        y: impl Into<OperandMut<'y, T, Ix3>>,
    ) -> Result<()> {
        self.run_many(None, false, alpha, &a.into(), &x.into(), beta, y.into())
    }

    /// [`gemv`](Self::gemv) for each of a batch: A is batch × m × n, X batch × n, Y batch × m, a vector
    /// for each matrix.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::{Array3, array};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = Array3::from_shape_fn((2, 2, 2), |(b, i, j)| (b + i * j) as f32);
    /// let (x, mut y) = (array![[1.0f32, 2.0], [3.0, 4.0]], array![[0.0f32, 0.0], [0.0, 0.0]]);
    /// device.gemv_batched(1.0, &a, &x, 0.0, &mut y)?;
    /// assert_eq!(y, array![[0.0, 2.0], [7.0, 11.0]]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemv_batched<'a, 'x, 'y, T: Element>(
        &self,
        alpha: T::Acc,
        a: impl Into<OperandRef<'a, T, Ix3>>,
        x: impl Into<MatrixRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<MatrixMut<'y, T>>,
    ) -> Result<()> {
        self.run_many(None, false, alpha, &a.into(), &x.into(), beta, y.into())
    }

    /// [`gemm_batched`](Self::gemm_batched) with these parameters in place of the table's, as
    /// [`gemv_as`](Self::gemv_as). Parameters of a kernel for one vector compute one column after the
    /// other.
    ///
    /// # Errors
    /// As [`gemv_as`](Self::gemv_as).
    pub fn gemm_as<'a, 'x, 'y, T: Element>(
        &self,
        params: &Params,
        alpha: T::Acc,
        a: impl Into<OperandRef<'a, T, Ix3>>,
        x: impl Into<OperandRef<'x, T, Ix3>>,
        beta: T::Acc,
        y: impl Into<OperandMut<'y, T, Ix3>>,
    ) -> Result<()> {
        self.run_many(Some(params), false, alpha, &a.into(), &x.into(), beta, y.into())
    }

    /// [`gemm_as`](Self::gemm_as) with the conjugate of A.
    ///
    /// # Errors
    /// As [`gemv_as`](Self::gemv_as).
    pub fn gemm_conj_as<'a, 'x, 'y, T: Element>(
        &self,
        params: &Params,
        alpha: T::Acc,
        a: impl Into<OperandRef<'a, T, Ix3>>,
        x: impl Into<OperandRef<'x, T, Ix3>>,
        beta: T::Acc,
        y: impl Into<OperandMut<'y, T, Ix3>>,
    ) -> Result<()> {
        self.run_many(Some(params), true, alpha, &a.into(), &x.into(), beta, y.into())
    }

    /// Where all single products come together. Each operand is moved once, into the job.
    #[inline]
    #[allow(clippy::too_many_arguments)] // the parts of a job, not yet one
    pub(crate) fn run<T: Element + Times<V>, V: Element>(
        &self,
        params: Option<&Params>,
        conj: bool,
        alpha: V::Acc,
        a: MatrixRef<'_, T>,
        x: VectorRef<'_, V>,
        beta: V::Acc,
        y: VectorMut<'_, V>,
    ) -> Result<()> {
        check(a.raw_dim(), x.raw_dim(), Some(y.raw_dim()))?;
        self.owns([a.device(), x.device(), y.device()])?;
        if a.dim().0 == 0 {
            return Ok(());
        }
        if alpha.is_zero() {
            if beta.is_one() {
                return Ok(());
            }
            if let VectorMut::Host(y) = y {
                without_a(beta, y);
                return Ok(());
            }
        }
        let desc = Desc { vectors: V::DTYPE, ..a.desc() };
        if params.is_none()
            && let Some(prepared) = self.recall(&desc)
        {
            return self.launch(prepared, conj, alpha, a, x, beta, y);
        }
        self.launch_new(params, &desc, conj, alpha, a, x, beta, y)
    }

    /// As [`run`](Self::run), for given parameters, for choices with state, and for new problems.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)] // the parts of a job, not yet one
    fn launch_new<T: Element + Times<V>, V: Element>(
        &self,
        params: Option<&Params>,
        desc: &Desc,
        conj: bool,
        alpha: V::Acc,
        a: MatrixRef<'_, T>,
        x: VectorRef<'_, V>,
        beta: V::Acc,
        y: VectorMut<'_, V>,
    ) -> Result<()> {
        self.with_choice(params, desc, |prepared| self.launch(prepared, conj, alpha, a, x, beta, y))
    }

    /// Runs `launch` with the given parameters, or with the choice of the tables.
    #[inline]
    fn with_choice(
        &self,
        params: Option<&Params>,
        desc: &Desc,
        launch: impl FnOnce(&Prepared) -> Result<()>,
    ) -> Result<()> {
        match params {
            Some(params) => launch(&self.backend().prepare(desc, params)?),
            None => launch(self.choice(desc)?.prepared()),
        }
    }

    /// Hands the job to the backend.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // the parts of a job, not yet one
    fn launch<T: Element + Times<V>, V: Element>(
        &self,
        prepared: &Prepared,
        conj: bool,
        alpha: V::Acc,
        a: MatrixRef<'_, T>,
        x: VectorRef<'_, V>,
        beta: V::Acc,
        y: VectorMut<'_, V>,
    ) -> Result<()> {
        let (a, x) = (a.input(), x.input());
        match y {
            VectorMut::Host(y) => {
                let y = Output::Host(y.reborrow());
                self.backend()
                    .gemv(Job { alpha, a, conj, x, beta, y }.checked_before().erase(), prepared)
            }
            VectorMut::Device(y) => y.written(!beta.is_zero(), |y| {
                let (a, x) = (a.reborrow(), x.reborrow());
                let y = Output::Device(y.place().1);
                self.backend()
                    .gemv(Job { alpha, a, conj, x, beta, y }.checked_before().erase(), prepared)
            }),
            VectorMut::View(y) => {
                let y = Output::Device(y.reborrow().window());
                self.backend()
                    .gemv(Job { alpha, a, conj, x, beta, y }.checked_before().erase(), prepared)
            }
        }
    }

    /// Where all products of many columns or of a batch come together.
    #[allow(clippy::too_many_arguments)] // the parts of a job, not yet one
    pub(crate) fn run_many<T: Element + Times<V>, V: Element, A: Stack<X>, X: Dimension + Copy>(
        &self,
        params: Option<&Params>,
        conj: bool,
        alpha: V::Acc,
        a: &OperandRef<'_, T, A>,
        x: &OperandRef<'_, V, X>,
        beta: V::Acc,
        y: OperandMut<'_, V, X>,
    ) -> Result<()> {
        A::check(a.raw_dim(), x.raw_dim(), Some(y.raw_dim()))?;
        self.owns([a.device(), x.device(), y.device()])?;
        if y.raw_dim().slice().contains(&0) || (alpha.is_zero() && beta.is_one()) {
            return Ok(());
        }
        let (a, x) = (A::input(a.input()), A::rhs(x.input()));
        match y {
            OperandMut::Host(y) if alpha.is_zero() => {
                without_a(beta, y);
                Ok(())
            }
            OperandMut::Host(y) => {
                self.launch_many(params, conj, alpha, a, x, beta, A::output(Output::Host(y)))
            }
            OperandMut::Device(y) => y.written(!beta.is_zero(), |y| {
                let y = A::output(Output::Device(y.place().1));
                self.launch_many(params, conj, alpha, a, x, beta, y)
            }),
            OperandMut::View(y) => {
                let y = A::output(Output::Device(y.window()));
                self.launch_many(params, conj, alpha, a, x, beta, y)
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // the parts of a job, not yet one
    fn launch_many<T: Element + Times<V>, V: Element>(
        &self,
        params: Option<&Params>,
        conj: bool,
        alpha: V::Acc,
        a: Input<'_, T, Ix3>,
        x: Input<'_, V, Ix3>,
        beta: V::Acc,
        y: Output<'_, V, Ix3>,
    ) -> Result<()> {
        let (a, x, y) = (a.reborrow(), x.reborrow(), y.reborrow());
        let job = GemmJob { alpha, a, conj, x, beta, y };
        // Given parameters are for the problem as it is.
        let job = if params.is_none() { job.without_batch() } else { job };
        let mut job = job.checked_before();
        let desc = job.desc();
        self.with_choice(params, &desc, |prepared| match (desc.batch, desc.rhs) {
            (1, 1) => self.backend().gemv(job.column(0, 0).erase(), prepared),
            _ => self.backend().gemm(job.erase(), prepared),
        })
    }

    /// Whether the resident operands are this device's.
    #[inline]
    pub(crate) fn owns<const N: usize>(&self, operands: [Option<&Device>; N]) -> Result<()> {
        match operands.into_iter().flatten().find(|operand| !operand.is(self)) {
            None => Ok(()),
            Some(operand) => {
                let (device, mut operand) = (self.info().id.clone(), operand.info().id.clone());
                if operand == device {
                    operand.push_str(" as it was opened another time");
                }
                Err(Error::WrongDevice { device, operand })
            }
        }
    }
}

/// `alpha = 0`: nothing to compute that would be worth a launch.
#[cold]
fn without_a<T: Element, D: Dimension>(beta: T::Acc, mut y: ArrayViewMut<'_, T, D>) {
    if beta.is_zero() {
        y.fill(T::default());
    } else {
        in_default(|| y.mapv_inplace(|v| T::narrow(beta.mul(v.widen()))));
    }
}

/// A shape of A, for X and Y of shape `X`: a matrix, or a batch of matrices.
pub(crate) trait Stack<X: Dimension + Copy>: Dimension + Copy {
    /// Compares the shapes.
    fn check(a: Self, x: X, y: Option<X>) -> Result<()>;
    /// The shape of Y.
    fn result(a: Self, x: X) -> X;
    /// A as a batch.
    fn input<'a, T>(a: Input<'a, T, Self>) -> Input<'a, T, Ix3>;
    /// X as a batch.
    fn rhs<'a, T>(x: Input<'a, T, X>) -> Input<'a, T, Ix3>;
    /// Y as a batch.
    fn output<'a, T>(y: Output<'a, T, X>) -> Output<'a, T, Ix3>;
}

impl Stack<Ix2> for Ix2 {
    fn check(a: Ix2, x: Ix2, y: Option<Ix2>) -> Result<()> {
        if a[1] == x[0] && y.is_none_or(|y| y == Self::result(a, x)) {
            return Ok(());
        }
        let of = |d: Ix2| (d[0], d[1]);
        Err(Error::Shape(ShapeMismatch::MatrixMatrix { matrix: of(a), x: of(x), y: y.map(of) }))
    }

    fn result(a: Ix2, x: Ix2) -> Ix2 {
        Ix2(a[0], x[1])
    }

    fn input<'a, T>(a: Input<'a, T, Ix2>) -> Input<'a, T, Ix3> {
        a.insert_axis(0)
    }

    fn rhs<'a, T>(x: Input<'a, T, Ix2>) -> Input<'a, T, Ix3> {
        x.insert_axis(0)
    }

    fn output<'a, T>(y: Output<'a, T, Ix2>) -> Output<'a, T, Ix3> {
        y.insert_axis(0)
    }
}

/// One vector for each matrix.
impl Stack<Ix2> for Ix3 {
    fn check(a: Ix3, x: Ix2, y: Option<Ix2>) -> Result<()> {
        if x == Ix2(a[0], a[2]) && y.is_none_or(|y| y == Self::result(a, x)) {
            return Ok(());
        }
        let (matrices, of) = ((a[0], a[1], a[2]), |d: Ix2| (d[0], d[1]));
        Err(Error::Shape(ShapeMismatch::BatchVectors { matrices, x: of(x), y: y.map(of) }))
    }

    fn result(a: Ix3, _: Ix2) -> Ix2 {
        Ix2(a[0], a[1])
    }

    fn input<'a, T>(a: Input<'a, T, Ix3>) -> Input<'a, T, Ix3> {
        a
    }

    fn rhs<'a, T>(x: Input<'a, T, Ix2>) -> Input<'a, T, Ix3> {
        x.insert_axis(2)
    }

    fn output<'a, T>(y: Output<'a, T, Ix2>) -> Output<'a, T, Ix3> {
        y.insert_axis(2)
    }
}

impl Stack<Ix3> for Ix3 {
    fn check(a: Ix3, x: Ix3, y: Option<Ix3>) -> Result<()> {
        check_batch(a, x, y)
    }

    fn result(a: Ix3, x: Ix3) -> Ix3 {
        Ix3(a[0], a[1], x[2])
    }

    fn input<'a, T>(a: Input<'a, T, Ix3>) -> Input<'a, T, Ix3> {
        a
    }

    fn rhs<'a, T>(x: Input<'a, T, Ix3>) -> Input<'a, T, Ix3> {
        x
    }

    fn output<'a, T>(y: Output<'a, T, Ix3>) -> Output<'a, T, Ix3> {
        y
    }
}
