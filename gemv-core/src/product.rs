//! Products on a device: shapes are compared and devices checked before a backend sees operands.

use std::cell::Cell;

use ndarray::{
    Array1, ArrayBase, ArrayRef, ArrayView, ArrayViewMut, Data, Dimension, Ix1, Ix2, Ix3,
};

use crate::device::Device;
use crate::element::AnySmall;
use crate::factor::{Factor, Operands};
use crate::float_mode::in_default;
use crate::function::Function;
use crate::host::host_zeros;
#[cfg(feature = "packed")]
use crate::host::packed;
use crate::job::{Checked, Job, Number, check_batch};
use crate::memory::{Memory, Window};
use crate::operand::{MatrixRef, OperandMut, OperandRef, VectorMut, VectorRef};
use crate::planned::{self, Work};
use crate::resident::DeviceArray;
use crate::step::{Epilogue, Step, broadcast};
use crate::tensor::{Axes, Rank, Tensor, TensorMut};
#[cfg(feature = "packed")]
use crate::tensor::{PackedMatrix, PackedPlace};
use crate::view_mut::DeviceViewMut;
use crate::{Accumulator, Desc, Element, Error, Params, Prepared, Result, ShapeMismatch, Times};

impl Device {
    /// `A x` on this device, as a host array; see [`GpuDot`](crate::GpuDot) for `a.gpu_dot(&x)`.
    ///
    /// A is m × n, `x` has n entries, the result m; each on the host or resident here.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
    /// let x = device.vector(&array![1.0, -1.0])?;
    /// assert_eq!(device.try_gpu_dot(&a, &x)?, array![-1.0, -1.0, -1.0]);
    /// assert_eq!(device.try_gpu_dot(&a.t(), &array![1.0, 0.0, 1.0])?, array![6.0, 8.0]);
    /// # Ok::<(), gemv::Error>(())
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
        Ix2::check(a.raw_dim(), x.raw_dim(), None)?;
        let mut y = Array1::from_vec(host_zeros("the host", a.dim().0)?);
        let (alpha, beta) = (T::Acc::ONE, T::Acc::ZERO);
        self.gemv(alpha, a, x, beta, VectorMut::Host(y.view_mut()))?;
        Ok(y)
    }

    /// `y = alpha * A x + beta * y` on this device, with BLAS's meaning: `alpha = 0` does not read
    /// A and x, `beta = 0` does not read y. Operands may be on the host or resident here.
    ///
    /// A is m × n, `x` has n entries, `y` m. The factors have the accumulator's type: f32 for f16
    /// and bf16. Conjugates, several right-hand sides, batches, two element types and given parameters are
    /// [`product`](Self::product)'s.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv::half::f16;
    /// use ndarray::{Array2, array};
    ///
    /// let a = Array2::from_elem((2, 2), f16::from_f32(0.5));
    /// let x = array![f16::ONE, f16::ONE];
    /// let mut y = array![f16::NAN, f16::NAN];
    /// device.gemv(3.0, &a, &x, 0.0, &mut y)?; // beta = 0: y is not read
    /// assert_eq!(y[0].to_f32(), 3.0);
    /// device.gemv(1.0, &a, &x, -1.0, &mut y)?;
    /// assert_eq!(y[0].to_f32(), -2.0);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::WrongDevice`] if a resident operand lives elsewhere;
    /// [`Error::Unsupported`], [`Error::OutOfMemory`], [`Error::Build`] or [`Error::Device`] from
    /// the device; [`Error::Forked`] in a child of the process that opened a device of OpenCL or CUDA.
    #[inline]
    pub fn gemv<'a, 'x, 'y, T: Element>(
        &self,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        let ask = Ask { params: None, conj: false, alpha, beta, epilogue: None };
        self.run(ask, a.into(), x.into(), y.into())
    }

    /// The product of A and X on this device, to be written by [`to`](Product::to): with options, of any rank, and of two
    /// element types.
    ///
    /// | A | X | Y | what it is |
    /// |---|---|---|---|
    /// | m × n | n | m | one vector |
    /// | m × n | n × k | m × k | several right-hand sides: column c of Y is the product with column c of X |
    /// | batch × m × n | batch × n | batch × m | a vector for each matrix |
    /// | batch × m × n | batch × n × k | batch × m × k | several for each matrix |
    ///
    /// Each operand has any strides, and is on the host or resident here. A batch stride of 0, such as of a broadcast view,
    /// shares A or X. Whatever k and the batch are, each column has the bits of its product alone.
    ///
    /// A packed matrix, or a stack of them, is an A for X of f32, f16 or bf16. A stack is computed matrix by matrix.
    ///
    /// X and Y have the elements of A, or those of a wider type: f32 for a matrix of f16 or bf16, f64 for one of f32. The sum
    /// is kept in that type.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv::half::f16;
    /// use gemv::num_complex::Complex;
    /// use ndarray::{Array3, array};
    ///
    /// // Several right-hand sides: Y = 2 A X - Y.
    /// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![[1.0, 0.0], [0.0, 1.0]]);
    /// let mut y = array![[1.0, 1.0], [1.0, 1.0]];
    /// device.product(&a, &x).scaled(2.0, -1.0).to(&mut y)?;
    /// assert_eq!(y, array![[1.0, 3.0], [5.0, 7.0]]);
    ///
    /// // A batch, whose matrices share X.
    /// let a = Array3::from_shape_fn((3, 2, 2), |(b, i, j)| (b * (i + j)) as f32);
    /// let x = array![[1.0f32, 2.0], [3.0, 4.0]];
    /// let mut y = Array3::zeros((3, 2, 2));
    /// device.product(&a, x.broadcast((3, 2, 2)).unwrap()).to(&mut y)?;
    /// assert_eq!(y[[2, 1, 0]], 2.0 * 1.0 + 4.0 * 3.0);
    ///
    /// // A matrix of f16 with vectors of f32.
    /// let a = array![[0.5f32, 1.0], [2.0, 4.0]].mapv(f16::from_f32);
    /// let (x, mut y) = (array![1.0f32, 0.1], array![0.0f32, 0.0]);
    /// device.product(&a, &x).to(&mut y)?;
    /// assert_eq!(y, array![0.6, 2.4]);
    ///
    /// // Aᴴ x, BLAS's `C`.
    /// let (one, i) = (Complex::new(1.0, 0.0), Complex::new(0.0, 1.0));
    /// let mut y = array![one];
    /// device.product(&array![[i], [one]].t(), &array![one, i]).conj().to(&mut y)?;
    /// assert_eq!(y, array![-i + i]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    #[inline]
    pub fn product<'d, 'a, 'x, A: LeftOperand<'a, V>, V: Element, X: Rank>(
        &'d self,
        a: A,
        x: impl Into<OperandRef<'x, V, X>>,
    ) -> Product<'d, 'a, 'x, A::Elem, V, A::Axes, X>
    where
        A::Axes: Stack<X>,
    {
        let (alpha, beta) = (V::Acc::ONE, V::Acc::ZERO);
        let ask = Ask { params: None, conj: false, alpha, beta, epilogue: None };
        Product { device: self, ask, a: a.left(), x: x.into(), bias: None, function: None }
    }

    /// The product of a [`Job`] on this device: [`product`](Self::product) for callers who learn the element types at run
    /// time. Resident operands are this device's.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv::unstable::{Job, Number};
    /// use ndarray::array;
    ///
    /// let (a, x, mut y) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, -1.0], array![0.0, 0.0]);
    /// let (alpha, beta) = (Number::new(1.0), Number::new(0.0));
    /// let (a, x) = (a.view().into(), x.view().into());
    /// device.compute(Job { alpha, a, conj: false, x, beta, y: y.view_mut().into() })?;
    /// assert_eq!(y, array![-1.0, -1.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Job::check`], and as [`gemv`](Self::gemv).
    ///
    /// # Panics
    /// If a resident operand is of another backend, which has other blocks of memory.
    pub fn compute(&self, job: Job<'_>) -> Result<()> {
        let mut job = job.check()?;
        if job.y.is_empty() || job.alpha.is_zero() && job.beta.is_one() {
            return Ok(());
        }
        job.without_batch();
        let on_host = job.a.is_on_host();
        if on_host || job.x.is_on_host() || job.y.window().is_none() {
            self.plannable(Work::Host)?;
        }
        let choice = self.choice(&job.desc())?;
        if on_host && job.a.packed_matrix().is_some() && !self.backend().packed_in_place() {
            let reason = "is a packed matrix of the host: upload it first".into();
            return Err(Error::Operand { operand: "A", reason });
        }
        self.backend().product(&mut job, choice.prepared())
    }

    /// Where all products come together.
    #[inline(always)]
    pub(crate) fn run<T: Element + Times<V>, V: Element, A: Stack<X>, X: Rank>(
        &self,
        ask: Ask<'_, V::Acc>,
        a: OperandRef<'_, T, A>,
        x: OperandRef<'_, V, X>,
        mut y: OperandMut<'_, V, X>,
    ) -> Result<()> {
        A::check(a.raw_dim(), x.raw_dim(), Some(y.raw_dim()))?;
        self.owns([a.device(), x.device(), y.device()])?;
        if y.raw_dim().slice().contains(&0) {
            return Ok(());
        }
        if ask.alpha.is_zero() {
            if ask.beta.is_one() {
                return Ok(());
            }
            if let OperandMut::Host(y) = y {
                without_a(ask.beta, y);
                return Ok(());
            }
        }
        let mut known = None;
        if A::SINGLE && ask.params.is_none() {
            let (dim, strides) = (a.raw_dim(), (a.stride(0), a.stride(1)));
            let desc = Desc::new(T::DTYPE, dim[0], dim[1], strides, a.address());
            known = self.recall(&Desc { vectors: V::DTYPE, ..desc });
            // Before a job is made, which takes longer than a small product.
            if let Some(small) = known.and_then(|prepared| prepared.small.as_ref())
                && ask.alpha.is_one()
                && ask.beta.is_zero()
                && !planned::inside()
                && A::small(small, ask.conj, &a, &x, &mut y)
            {
                return Ok(());
            }
        }
        self.launch(known, &ask, &a, &x, y)
    }

    /// Hands the job to the backend, with the choice that is known, the given parameters, or what the tables say.
    #[inline(never)]
    fn launch<T: Element, V: Element, A: Stack<X>, X: Rank>(
        &self,
        known: Option<&Prepared>,
        ask: &Ask<'_, V::Acc>,
        a: &OperandRef<'_, T, A>,
        x: &OperandRef<'_, V, X>,
        y: OperandMut<'_, V, X>,
    ) -> Result<()> {
        if [a.device(), x.device(), y.device()].contains(&None) {
            self.plannable(Work::Host)?;
        }
        let (a, x) = (a.tensor(A::A), x.tensor(A::X));
        match y {
            OperandMut::Host(y) => self.start(known, ask, a, x, TensorMut::host(y, A::X)),
            OperandMut::Device(y) => y.written(!ask.beta.is_zero(), |y| {
                self.start(known, ask, a, x, TensorMut::resident(V::DTYPE, y.place().1, A::X))
            }),
            OperandMut::View(y) => {
                self.start(known, ask, a, x, TensorMut::resident(V::DTYPE, y.window(), A::X))
            }
        }
    }

    /// A product of a packed matrix, or of each of a stack.
    #[cfg(feature = "packed")]
    pub(crate) fn run_packed<V: Element, A: Stack<X>, X: Rank>(
        &self,
        mut ask: Ask<'_, V::Acc>,
        a: PackedRef<'_, A>,
        x: OperandRef<'_, V, X>,
        y: OperandMut<'_, V, X>,
    ) -> Result<()> {
        A::check(a.dim, x.raw_dim(), Some(y.raw_dim()))?;
        self.owns([a.device, x.device(), y.device()])?;
        if y.raw_dim().slice().contains(&0) || ask.alpha.is_zero() && ask.beta.is_one() {
            return Ok(());
        }
        if [a.device, x.device(), y.device()].contains(&None) {
            self.plannable(Work::Host)?;
        }
        if ask.alpha.is_zero()
            && let OperandMut::Host(y) = y
        {
            without_a(ask.beta, y);
            return Ok(());
        }
        // Uploaded for this one product.
        let uploaded;
        let mut all = a.rows;
        if !(a.device.is_some() || self.backend().packed_in_place() || ask.alpha.is_zero()) {
            uploaded = in_default(|| self.backend().upload_packed(all))?;
            all.place = PackedPlace::Device(&*uploaded, 0);
        }
        let [batch, m, n] = A::A.map(|axis| axis.map_or(1, |axis| a.dim[axis]));
        // The bias is that of all products; and where nothing is read, no kernel for packed matrices is asked for.
        ask.epilogue = ask.epilogue.filter(|_| batch == 1);
        ask.params = ask.params.filter(|_| n > 0 && !ask.alpha.is_zero());
        let x = x.tensor(A::X);
        let each = |mut y: TensorMut<'_>| {
            (0..batch).try_for_each(|b| {
                let a = Tensor::of_packed(all.rows(b * m..(b + 1) * m), V::DTYPE);
                self.start(None, &ask, a, x.only(0, b), y.reborrow().only(0, b))
            })
        };
        match y {
            // An error of a later product leaves y as it was.
            OperandMut::Host(mut y) if batch > 1 => {
                let mut new = packed(&y.view())?;
                let new = ArrayViewMut::from_shape(y.raw_dim(), &mut new[..]);
                let mut new = new.expect("as many as y has");
                each(TensorMut::host(new.view_mut(), A::X))?;
                y.assign(&new);
                Ok(())
            }
            OperandMut::Host(y) => each(TensorMut::host(y, A::X)),
            OperandMut::Device(y) => y.written(!ask.beta.is_zero(), |y| {
                each(TensorMut::resident(V::DTYPE, y.place().1, A::X))
            }),
            OperandMut::View(y) => each(TensorMut::resident(V::DTYPE, y.window(), A::X)),
        }
    }

    #[inline(always)]
    fn start<N: Accumulator>(
        &self,
        known: Option<&Prepared>,
        ask: &Ask<'_, N>,
        a: Tensor<'_>,
        x: Tensor<'_>,
        y: TensorMut<'_>,
    ) -> Result<()> {
        let (alpha, beta) = (Number::new(ask.alpha), Number::new(ask.beta));
        // Made where it stays: to move it would take a part of a small product's time.
        let mut job = Checked::trust(Job { alpha, a, conj: ask.conj, x, beta, y });
        // Given parameters are for the problem as it is.
        if ask.params.is_none() {
            job.without_batch();
        }
        debug_assert_eq!(job.proof(), Ok(()));
        job.check_apart()?;
        let (backend, of) = (self.backend(), known.is_none().then(|| job.desc()));
        let desc = || of.expect("of a choice that is not known");
        let mut product = |prepared: &Prepared| {
            if let Some((epilogue, done)) = ask.epilogue
                && backend.product_with(&mut job, prepared, epilogue)?
            {
                done.set(true);
                return Ok(());
            }
            backend.product(&mut job, prepared)
        };
        match (known, ask.params) {
            (Some(prepared), _) => product(prepared),
            (None, Some(params)) => {
                let prepared = in_default(|| backend.prepare(&desc(), params))?;
                product(&prepared)
            }
            (None, None) => product(self.choice(&desc())?.prepared()),
        }
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

/// What is asked of a product, beside its operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'p, N> {
    pub(crate) params: Option<&'p Params>,
    pub(crate) conj: bool,
    pub(crate) alpha: N,
    pub(crate) beta: N,
    /// Steps that may be computed with it, and whether they were.
    pub(crate) epilogue: Option<(&'p Epilogue<'p>, &'p Cell<bool>)>,
}

/// The left operand of [`Device::product`] with vectors of `V`: an array or view of the host, or what is resident. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no left operand of `product` with vectors of `{V}`",
    note = "left operands are views and references of arrays of ndarray 0.17, `DeviceArray`s and packed matrices, with 2 axes or 3"
)]
pub trait LeftOperand<'a, V: Element> {
    /// Its elements; of packed matrices, those of the vectors.
    type Elem: Element + Times<V>;
    /// Its number of axes.
    type Axes: Rank;
    /// What it is.
    #[doc(hidden)]
    fn left(self) -> LeftRef<'a, Self::Elem, Self::Axes>;
}

macro_rules! left_operand {
    ($([$($generic:tt)*] $of:ty, $elem:ty;)*) => { $(
        impl<'a, V: Element, D: Rank, $($generic)*> LeftOperand<'a, V> for $of
        where
            $elem: Times<V>,
        {
            type Elem = $elem;
            type Axes = D;
            #[inline(always)]
            fn left(self) -> LeftRef<'a, $elem, D> {
                LeftRef::Array(self.into())
            }
        }
    )* };
}
left_operand! {
    [T: Element] OperandRef<'a, T, D>, T;
    [T: Element] &'a DeviceArray<T, D>, T;
    [T: Element] &'a ArrayRef<T, D>, T;
    [T: Element] ArrayView<'a, T, D>, T;
    [S: Data<Elem: Element>] &'a ArrayBase<S, D>, S::Elem;
}

/// What a [`LeftOperand`] is.
#[derive(Debug)]
pub enum LeftRef<'a, T: Element, A: Dimension> {
    Array(OperandRef<'a, T, A>),
    #[cfg(feature = "packed")]
    Packed(PackedRef<'a, A>),
}

/// A packed matrix, or a stack of them whose rows follow one another.
#[cfg(feature = "packed")]
#[derive(Debug, Clone, Copy)]
pub struct PackedRef<'a, A> {
    pub(crate) dim: A,
    pub(crate) rows: PackedMatrix<'a>,
    pub(crate) device: Option<&'a Device>,
}

impl<'a, T: Element, A: Rank> LeftRef<'a, T, A> {
    /// Its shape, and the device of a resident one.
    fn place(&self) -> (A, Option<&'a Device>) {
        match self {
            LeftRef::Array(a) => (a.raw_dim(), a.device()),
            #[cfg(feature = "packed")]
            LeftRef::Packed(a) => (a.dim, a.device),
        }
    }

    #[inline(always)]
    fn multiply<V: Element, X: Rank>(
        self,
        device: &Device,
        ask: Ask<'_, V::Acc>,
        x: OperandRef<'_, V, X>,
        y: OperandMut<'_, V, X>,
    ) -> Result<()>
    where
        T: Times<V>,
        A: Stack<X>,
    {
        match self {
            LeftRef::Array(a) => device.run(ask, a, x, y),
            #[cfg(feature = "packed")]
            LeftRef::Packed(a) => device.run_packed(ask, a, x, y),
        }
    }
}

/// A product of [`Device::product`], of which nothing is computed yet: `Y = alpha * A X + beta * Y`, with factors of 1 and
/// 0 unless [`scaled`](Self::scaled) says otherwise. Then a [bias](Self::bias) may be added, and a [function](Self::map) taken.
#[derive(Debug)]
#[must_use = "nothing is computed before `to` says where the result goes"]
pub struct Product<'d, 'a, 'x, T: Element, V: Element, A: Dimension, X: Dimension> {
    device: &'d Device,
    ask: Ask<'d, V::Acc>,
    a: LeftRef<'a, T, A>,
    x: OperandRef<'x, V, X>,
    bias: Option<OperandRef<'x, V, X>>,
    function: Option<Function>,
}

impl<'d, 'x, T, V, A, X> Product<'d, '_, 'x, T, V, A, X>
where
    T: Element + Times<V>,
    V: Element,
    A: Stack<X>,
    X: Rank,
{
    /// With the conjugate of A (the same for real types). With `A.t()` it is `Aᴴ X`.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # use num_complex::Complex64;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (one, i) = (Complex64::ONE, Complex64::I);
    /// let (a, mut y) = (array![[i]], array![one]);
    /// device.product(&a, &array![one]).conj().to(&mut y)?;
    /// assert_eq!(y, array![-i]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn conj(self) -> Self {
        self.conj_if(true)
    }

    /// With the conjugate of A if `conj` says so: for callers who have a flag.
    pub fn conj_if(mut self, conj: bool) -> Self {
        self.ask.conj = conj;
        self
    }

    /// With these factors, `Y = alpha * A X + beta * Y`, and BLAS's meaning: `alpha = 0` does not read A and X, `beta = 0`
    /// does not read Y. They have the accumulator's type of X: f32 for f16 and bf16.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (a, x, mut y) = (array![[1.0, 2.0]], array![3.0, 4.0], array![f64::NAN]);
    /// device.product(&a, &x).scaled(2.0, 0.0).to(&mut y)?;
    /// assert_eq!(y, array![22.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn scaled(mut self, alpha: V::Acc, beta: V::Acc) -> Self {
        (self.ask.alpha, self.ask.beta) = (alpha, beta);
        self
    }

    /// With these parameters in place of the table's: for the tuner, tests and benchmarks, and for the published `classic-*`
    /// kernels, which keep another order. Parameters of a kernel for one vector compute one column after the other.
    ///
    /// ```
    /// # use gemv::{Engine, Error, unstable::Params};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (a, x, mut y) = (array![[1.0, 2.0]], array![3.0, 4.0], array![0.0]);
    /// device.product(&a, &x).with(&Params::new("reference")).to(&mut y)?;
    /// assert_eq!(y, array![11.0]);
    /// let other = "row threads=128".parse().unwrap();
    /// let e = device.product(&a, &x).with(&other).to(&mut y).unwrap_err();
    /// assert!(matches!(e, Error::Params { .. }) && y == array![11.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn with(self, params: &'d Params) -> Self {
        self.with_if(Some(params))
    }

    /// With these parameters, or with the table's choice: for callers who may have some.
    pub fn with_if(mut self, params: Option<&'d Params>) -> Self {
        self.ask.params = params;
        self
    }

    /// With a bias that is added to Y: an array of Y's shape, or with one entry along an axis on which it is repeated. It has
    /// the bits of [`add`](DeviceArray::add) after the product. A second one replaces the first.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::{Axis, array};
    /// # let device = Engine::new(None).device("reference")?;
    /// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![[1.0, 0.0], [0.0, 1.0]]);
    /// let (b, mut y) = (array![10.0, 20.0], array![[0.0, 0.0], [0.0, 0.0]]);
    /// device.product(&a, &x).bias(b.view().insert_axis(Axis(1))).to(&mut y)?; // a number for each row
    /// assert_eq!(y, array![[11.0, 12.0], [23.0, 24.0]]);
    /// device.product(&a, &x).bias(b.view().insert_axis(Axis(0))).to(&mut y)?; // for each column
    /// assert_eq!(y, array![[11.0, 22.0], [13.0, 24.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn bias(mut self, bias: impl Into<OperandRef<'x, V, X>>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    /// With a function of each entry of Y, behind the bias: a layer. It has the bits of [`map`](DeviceArray::map) after the
    /// other steps. A second one replaces the first.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv::Function;
    ///
    /// let (a, b) = (array![[1.0, 2.0], [3.0, -4.0]], array![0.5, 0.5]);
    /// let mut y = device.zeros(2)?;
    /// device.product(&a, &array![1.0, 1.0]).bias(&b).map(Function::Relu).to(&mut y)?;
    /// assert_eq!(y.download()?, array![3.5, 0.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn map(mut self, function: Function) -> Self {
        self.function = Some(function);
        self
    }

    /// Computes it, and writes Y. Work on resident operands may still be under way on return: what uses them waits for it.
    ///
    /// # Errors
    /// As [`Device::gemv`], and [`Error::Params`] if given parameters are not legal for the problem. [`Error::Unsupported`] of a
    /// function and a complex type. If the device cannot compile or start a step behind the product, a resident Y is undefined.
    #[inline]
    pub fn to<'y>(self, y: impl Into<OperandMut<'y, V, X>>) -> Result<()> {
        if self.bias.is_some() || self.function.is_some() {
            return self.with_steps(y.into());
        }
        self.a.multiply(self.device, self.ask, self.x, y.into())
    }

    /// The product and the steps behind it.
    fn with_steps(self, mut y: OperandMut<'_, V, X>) -> Result<()> {
        let Product { device, ask, a, x, bias, function } = self;
        let ((shape, place), dim) = (a.place(), y.raw_dim());
        A::check(shape, x.raw_dim(), Some(dim))?;
        let bias_device = bias.as_ref().and_then(|bias| bias.device());
        device.owns([place, x.device(), y.device(), bias_device])?;
        let uploaded;
        let bias = match bias {
            None => None,
            Some(OperandRef::Device(bias)) => Some(bias),
            Some(OperandRef::Host(bias)) => {
                uploaded = DeviceArray::upload(device, bias)?;
                Some(&uploaded)
            }
        };
        let add = bias.map(|bias| Operands::of(Step::Add).alpha(Factor::from(bias)));
        let steps = [add, function.map(|of| Operands::of(Step::Map(of)))];
        // What is refused is so before Y is written.
        steps.iter().flatten().try_for_each(|step| step.check(device, dim).map(drop))?;
        let epilogue =
            Epilogue { bias: bias.map(|bias| of_job::<V, X>(bias, dim, A::X)), function };
        let done = Cell::new(false);
        let ask = Ask { epilogue: Some((&epilogue, &done)), ..ask };
        let compute = |mut y: DeviceViewMut<'_, V, X>| {
            a.multiply(device, ask, x, OperandMut::View(y.view_mut()))?;
            if done.get() {
                return Ok(());
            }
            steps
                .into_iter()
                .flatten()
                .try_for_each(|step| step.run(device, dim, |start| start(y.view_mut())))
        };
        match y {
            // Steps are of resident arrays.
            OperandMut::Host(ref mut y) => {
                let mut there = match ask.beta.is_zero() {
                    true => DeviceArray::zeros(device, dim)?,
                    false => DeviceArray::upload(device, y.view())?,
                };
                compute(DeviceViewMut::of(&mut there))?;
                y.assign(&there.download()?);
                Ok(())
            }
            OperandMut::Device(y) => {
                y.written(!ask.beta.is_zero(), |y| compute(DeviceViewMut::of(y)))
            }
            OperandMut::View(y) => compute(y),
        }
    }
}

/// Where a bias lies, repeated as Y of this shape needs it, with the axes of a job.
fn of_job<V: Element, X: Rank>(
    bias: &DeviceArray<V, X>,
    dim: X,
    axes: Axes,
) -> Window<&dyn Memory, Ix3> {
    let Window { memory, first, dim, strides } =
        broadcast(bias.window(), dim).expect("shapes that were compared");
    let of = |from: &X, none: usize| axes.map(|axis| axis.map_or(none, |axis| from[axis]));
    let [shape, apart] = [of(&dim, 1), of(&strides, 0)].map(|[b, i, c]| Ix3(b, i, c));
    Window { memory, first, dim: shape, strides: apart }
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

/// A number of axes of A that has products with an X and a Y of so many axes: a matrix with a vector or a matrix, a batch of
/// matrices with a batch of vectors or of matrices. Sealed.
#[diagnostic::on_unimplemented(
    message = "there is no product of an A and an X of these numbers of axes",
    note = "products: matrix (2 axes) times vector (1 axis) or matrix, batch (3 axes) times batch of vectors (2) or of matrices (3)"
)]
pub trait Stack<X: Rank>: Rank + StackOf<X> {}

impl<X: Rank, A: Rank + StackOf<X>> Stack<X> for A {}

/// What a [`Stack`] has for this crate.
pub trait StackOf<X>: Sized {
    /// Whether it is one matrix and one vector.
    const SINGLE: bool = false;
    /// Which axes of A and of X are those of a job.
    #[doc(hidden)]
    const A: [Option<usize>; 3];
    #[doc(hidden)]
    const X: [Option<usize>; 3];
    /// Compares the shapes.
    #[doc(hidden)]
    fn check(a: Self, x: X, y: Option<X>) -> Result<()>;
    /// The shape of Y.
    #[doc(hidden)]
    fn result(a: Self, x: X) -> X;
    /// Computes a small product of host arrays; false if the function does not, and y is untouched.
    #[doc(hidden)]
    fn small<T: Element + Times<V>, V: Element>(
        _of: &AnySmall,
        _conj: bool,
        _a: &OperandRef<'_, T, Self>,
        _x: &OperandRef<'_, V, X>,
        _y: &mut OperandMut<'_, V, X>,
    ) -> bool
    where
        Self: Dimension,
        X: Dimension,
    {
        false
    }
}

impl StackOf<Ix1> for Ix2 {
    const SINGLE: bool = true;
    const A: Axes = [None, Some(0), Some(1)];
    const X: Axes = [None, Some(0), None];

    #[inline]
    fn check(a: Ix2, x: Ix1, y: Option<Ix1>) -> Result<()> {
        let (matrix, x, y) = ((a[0], a[1]), x[0], y.map(|y| y[0]));
        if x == matrix.1 && y.is_none_or(|y| y == matrix.0) {
            return Ok(());
        }
        Err(Error::Shape(ShapeMismatch::MatrixVector { matrix, x, y }))
    }

    fn result(a: Ix2, _: Ix1) -> Ix1 {
        Ix1(a[0])
    }

    #[inline(always)]
    fn small<T: Element + Times<V>, V: Element>(
        of: &AnySmall,
        conj: bool,
        a: &OperandRef<'_, T, Ix2>,
        x: &OperandRef<'_, V, Ix1>,
        y: &mut OperandMut<'_, V, Ix1>,
    ) -> bool {
        let (OperandRef::Host(a), OperandRef::Host(x), OperandMut::Host(y)) = (a, x, y) else {
            return false;
        };
        let (Some(x), Some(y)) = (x.as_slice(), y.as_slice_mut()) else { return false };
        T::small(of, a, conj, x, y)
    }
}

impl StackOf<Ix2> for Ix2 {
    const A: Axes = [None, Some(0), Some(1)];
    const X: Axes = [None, Some(0), Some(1)];

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
}

/// One vector for each matrix.
impl StackOf<Ix2> for Ix3 {
    const A: Axes = [Some(0), Some(1), Some(2)];
    const X: Axes = [Some(0), Some(1), None];

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
}

impl StackOf<Ix3> for Ix3 {
    const A: Axes = [Some(0), Some(1), Some(2)];
    const X: Axes = [Some(0), Some(1), Some(2)];

    fn check(a: Ix3, x: Ix3, y: Option<Ix3>) -> Result<()> {
        let of = |d: Ix3| [d[0], d[1], d[2]];
        check_batch(of(a), of(x), y.map(of))
    }

    fn result(a: Ix3, x: Ix3) -> Ix3 {
        Ix3(a[0], a[1], x[2])
    }
}
