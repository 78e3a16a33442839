//! The data of one product, or of many of one shape, as a backend gets it.

use std::ops::Deref;

use ndarray::{ArrayView, ArrayViewMut, Axis, Dimension, Ix1, Ix2, Ix3, RemoveAxis};

use crate::element::{AnyPair, PairFamily, Times};
use crate::memory::{Memory, Window};
use crate::{Desc, Element, Error, Result, ShapeMismatch};

/// A job whose operands fit: made by `check` of a [`Job`], a [`GemmJob`] or a
/// [`VectorJob`](crate::VectorJob), and by nothing else. So no backend can forget to look.
///
/// - The shapes agree, and a step has the operands that it reads.
/// - Every [`Window`] lies inside of its block.
/// - Each entry of the result has a place of its own.
///
/// What a block is only its backend knows: whether it is of this device, and of the job's element type.
///
/// ```
/// use gemv_core::{Error, Job};
/// use ndarray::{Array2, array};
///
/// let (a, x) = (Array2::<f64>::ones((1000, 3)), array![1.0, 2.0, 3.0]);
/// let mut y = array![0.0]; // too short
/// let (x, y) = (x.view().into(), y.view_mut().into());
/// let job = Job { alpha: 1.0, a: a.view().into(), conj: false, x, beta: 0.0, y };
/// assert!(matches!(job.check(), Err(Error::Shape(_))));
/// ```
#[derive(Debug)]
pub struct Checked<J>(J);

impl<J> Checked<J> {
    /// A job that fits by the way it was made.
    #[inline(always)]
    pub(crate) fn trust(job: J) -> Checked<J> {
        Checked(job)
    }

    /// The job itself, whose parts may then be anything.
    #[inline(always)]
    pub fn into_inner(self) -> J {
        self.0
    }
}

impl<J> Deref for Checked<J> {
    type Target = J;

    #[inline(always)]
    fn deref(&self) -> &J {
        &self.0
    }
}

/// An operand that is read.
///
/// ```
/// use gemv_core::{Input, Layout};
/// use ndarray::{array, s};
///
/// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let desc = Input::from(a.slice(s![.., ..;2])).desc();
/// assert_eq!((desc.layout, desc.m, desc.n), (Layout::Strided, 2, 2));
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Input<'a, T, D: Dimension> {
    /// In the host's memory, with any strides.
    Host(ArrayView<'a, T, D>),
    /// In the device's.
    Device(Window<&'a dyn Memory, D>),
}

/// Where a result goes.
#[derive(Debug)]
pub enum Output<'a, T, D: Dimension> {
    /// To the host's memory; any strides but 0.
    Host(ArrayViewMut<'a, T, D>),
    /// To the device's. No other array shares the block, but the entries may lie apart, and what lies
    /// between them is to stay: one column of a matrix is written where it lies.
    Device(Window<&'a mut dyn Memory, D>),
}

impl<'a, T, D: Dimension> From<ArrayView<'a, T, D>> for Input<'a, T, D> {
    #[inline]
    fn from(view: ArrayView<'a, T, D>) -> Self {
        Input::Host(view)
    }
}

impl<'a, T, D: Dimension> From<ArrayViewMut<'a, T, D>> for Output<'a, T, D> {
    #[inline]
    fn from(view: ArrayViewMut<'a, T, D>) -> Self {
        Output::Host(view)
    }
}

impl<'a, T, D: Dimension + Copy> Input<'a, T, D> {
    /// The same operand, for a shorter time (views are invariant in their lifetime).
    #[inline]
    pub fn reborrow<'b>(self) -> Input<'b, T, D>
    where
        'a: 'b,
    {
        match self {
            Input::Host(view) => Input::Host(view.reborrow()),
            Input::Device(Window { memory, first, dim, strides }) => {
                Input::Device(Window { memory, first, dim, strides })
            }
        }
    }

    /// Number of entries along each axis.
    #[inline]
    pub fn raw_dim(&self) -> D {
        match self {
            Input::Host(view) => view.raw_dim(),
            Input::Device(window) => window.dim,
        }
    }

    /// The stride of an axis, in elements.
    #[inline]
    pub fn stride(&self, axis: usize) -> isize {
        match self {
            Input::Host(view) => view.strides()[axis],
            Input::Device(window) => window.stride(axis),
        }
    }

    /// Whether it lies in its memory: an array of the host always does.
    fn check(&self, operand: &'static str) -> Result<()> {
        match self {
            Input::Host(_) => Ok(()),
            Input::Device(window) => window.check(operand, window.memory.len()),
        }
    }

    /// The part at this index of an axis.
    ///
    /// # Panics
    /// If there is no such index.
    pub fn index_axis(self, axis: usize, index: usize) -> Input<'a, T, D::Smaller>
    where
        D: RemoveAxis,
    {
        match self {
            Input::Host(view) => Input::Host(view.index_axis_move(Axis(axis), index)),
            Input::Device(window) => Input::Device(window.index_axis(axis, index)),
        }
    }
}

impl<T> Input<'_, T, Ix3> {
    /// The rows of all entries as those of one: they follow each other.
    fn merge_rows(self) -> Self {
        match self {
            Input::Host(mut view) => {
                assert!(view.merge_axes(Axis(0), Axis(1)), "rows that follow each other");
                Input::Host(view)
            }
            Input::Device(window) => Input::Device(window.merge_rows()),
        }
    }
}

impl<T> Output<'_, T, Ix3> {
    /// As of an [`Input`].
    fn merge_rows(self) -> Self {
        match self {
            Output::Host(mut view) => {
                assert!(view.merge_axes(Axis(0), Axis(1)), "rows that follow each other");
                Output::Host(view)
            }
            Output::Device(window) => Output::Device(window.merge_rows()),
        }
    }
}

impl<'a, T> Input<'a, T, Ix2> {
    /// The transpose.
    pub(crate) fn reversed_axes(self) -> Self {
        match self {
            Input::Host(view) => Input::Host(view.reversed_axes()),
            Input::Device(window) => Input::Device(window.reversed_axes()),
        }
    }

    /// The same matrix with a further axis, of one entry.
    ///
    /// # Panics
    /// If `axis` is over 2.
    pub fn insert_axis(self, axis: usize) -> Input<'a, T, Ix3> {
        match self {
            Input::Host(view) => Input::Host(view.insert_axis(Axis(axis))),
            Input::Device(window) => Input::Device(window.insert_axis(axis)),
        }
    }
}

impl<T: Element, D: Dimension + Copy> Input<'_, T, D> {
    /// Where the first entry lies: its address, or its place in a block, which starts on 64 bytes or more. So both
    /// give the alignment.
    #[inline]
    fn address(&self) -> usize {
        match self {
            Input::Host(view) => view.as_ptr() as usize,
            Input::Device(window) => window.first.wrapping_mul(T::DTYPE.bytes()),
        }
    }
}

impl<T: Element> Input<'_, T, Ix2> {
    /// What is asked of a product with this matrix and one vector.
    #[inline]
    pub fn desc(&self) -> Desc {
        let (m, n) = self.raw_dim().into_pattern();
        Desc::new(T::DTYPE, m, n, (self.stride(0), self.stride(1)), self.address())
    }
}

impl<'a, T, D: Dimension + Copy> Output<'a, T, D> {
    /// Number of entries along each axis.
    #[inline]
    pub fn raw_dim(&self) -> D {
        match self {
            Output::Host(view) => view.raw_dim(),
            Output::Device(window) => window.dim,
        }
    }

    /// The stride of an axis, in elements.
    #[inline]
    pub fn stride(&self, axis: usize) -> isize {
        match self {
            Output::Host(view) => view.strides()[axis],
            Output::Device(window) => window.stride(axis),
        }
    }

    /// The same place, for a shorter time.
    #[inline]
    pub fn reborrow<'b>(self) -> Output<'b, T, D>
    where
        'a: 'b,
    {
        match self {
            Output::Host(view) => Output::Host(view.reborrow()),
            Output::Device(Window { memory, first, dim, strides }) => {
                Output::Device(Window { memory, first, dim, strides })
            }
        }
    }

    /// The same place, borrowed.
    #[inline]
    pub fn view_mut(&mut self) -> Output<'_, T, D> {
        match self {
            Output::Host(view) => Output::Host(view.view_mut()),
            Output::Device(Window { memory, first, dim, strides }) => Output::Device(Window {
                memory: &mut **memory,
                first: *first,
                dim: *dim,
                strides: *strides,
            }),
        }
    }

    /// Whether it lies in its memory, each entry at a place of its own: those of a host array always do.
    fn check(&self, operand: &'static str) -> Result<()> {
        match self {
            Output::Host(_) => Ok(()),
            Output::Device(window) => window.check_result(operand, window.memory.len()),
        }
    }

    /// The part at this index of an axis.
    ///
    /// # Panics
    /// If there is no such index.
    pub fn index_axis(self, axis: usize, index: usize) -> Output<'a, T, D::Smaller>
    where
        D: RemoveAxis,
    {
        match self {
            Output::Host(view) => Output::Host(view.index_axis_move(Axis(axis), index)),
            Output::Device(window) => Output::Device(window.index_axis(axis, index)),
        }
    }
}

impl<'a, T> Output<'a, T, Ix2> {
    /// The transpose.
    pub(crate) fn reversed_axes(self) -> Self {
        match self {
            Output::Host(view) => Output::Host(view.reversed_axes()),
            Output::Device(window) => Output::Device(window.reversed_axes()),
        }
    }

    /// The same place with a further axis, of one entry.
    ///
    /// # Panics
    /// If `axis` is over 2.
    pub fn insert_axis(self, axis: usize) -> Output<'a, T, Ix3> {
        match self {
            Output::Host(view) => Output::Host(view.insert_axis(Axis(axis))),
            Output::Device(window) => Output::Device(window.insert_axis(axis)),
        }
    }
}

/// One product, `y = alpha * A x + beta * y`.
///
/// The matrix has elements of `T`, the vectors of `V`: the same type, or a wider one
/// ([`Times`]). A backend takes it once it is [`Checked`].
///
/// ```
/// use gemv_core::Job;
/// use ndarray::{Array2, array};
///
/// let (a, x) = (Array2::<f64>::eye(3), array![1.0, 2.0, 3.0]);
/// let mut y = array![0.0, 0.0, 0.0];
/// let job = Job {
///     alpha: 1.0,
///     a: a.t().into(),
///     conj: false,
///     x: x.view().into(),
///     beta: 0.0,
///     y: y.view_mut().into(),
/// };
/// assert_eq!(job.desc().to_string(), "f64 col 3x3"); // as A.t() lies in memory
/// ```
#[derive(Debug)]
pub struct Job<'a, T: Element, V: Element = T> {
    /// Factor of the product. 0: A and x are not read.
    pub alpha: V::Acc,
    /// The matrix, m × n.
    pub a: Input<'a, T, Ix2>,
    /// Whether the conjugate of A is used (the same for real types).
    pub conj: bool,
    /// The vector, n entries.
    pub x: Input<'a, V, Ix1>,
    /// Factor of `y`. 0: y is not read.
    pub beta: V::Acc,
    /// The result, m entries.
    pub y: Output<'a, V, Ix1>,
}

impl<'a, T: Element + Times<V>, V: Element> Job<'a, T, V> {
    /// What is asked.
    #[inline]
    pub fn desc(&self) -> Desc {
        Desc { vectors: V::DTYPE, ..self.a.desc() }
    }

    /// The job, if its operands fit.
    ///
    /// ```
    /// use gemv_core::{AnySlice, Error, Input, Job, Window, reference::Reference};
    /// use ndarray::{Ix1, array};
    ///
    /// let backend = Reference::open();
    /// let block = backend.upload(AnySlice::F32(&[1.0, 2.0, 3.0]))?;
    /// let (a, mut y) = (array![[1.0f32, 1.0]], array![0.0f32]);
    /// let mut ask = |first: usize, stride: isize| {
    ///     let (dim, strides) = (Ix1(2), Ix1(stride as usize));
    ///     let x = Input::Device(Window { memory: &*block, first, dim, strides });
    ///     let (a, y) = (a.view().into(), y.view_mut().into());
    ///     Job::<f32> { alpha: 1.0, a, conj: false, x, beta: 0.0, y }.check().map(|_| ())
    /// };
    /// assert!(ask(0, 2).is_ok() && ask(2, -2).is_ok());
    /// assert!(matches!(ask(0, 3), Err(Error::Operand { operand: "x", .. })));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape); [`Error::Operand`](crate::Error::Operand) if an operand does
    /// not lie in its memory, or two entries of y lie at one place.
    pub fn check(self) -> Result<Checked<Self>> {
        self.proof()?;
        Ok(Checked(self))
    }

    fn proof(&self) -> Result<()> {
        check(self.a.raw_dim(), self.x.raw_dim(), Some(self.y.raw_dim()))?;
        self.a.check("A")?;
        self.x.check("x")?;
        self.y.check("y")
    }

    /// A job of resident arrays and of views, whose shapes were compared.
    #[inline(always)]
    pub(crate) fn checked_before(self) -> Checked<Self> {
        debug_assert_eq!(self.proof(), Ok(()));
        Checked(self)
    }
}

impl<'a, T: Element + Times<V>, V: Element> Checked<Job<'a, T, V>> {
    /// The job without its element type.
    #[inline(always)]
    pub fn erase(self) -> AnyJob<'a> {
        <T as Times<V>>::erase::<Jobs>(self)
    }

    /// A, x and the place of y, where they are: to move the job takes longer than a small product.
    #[inline(always)]
    #[allow(clippy::type_complexity)] // the three operands
    pub fn operands(&mut self) -> (&Input<'a, T, Ix2>, &Input<'a, V, Ix1>, Output<'_, V, Ix1>) {
        let Job { a, x, y, .. } = &mut self.0;
        (a, x, y.view_mut())
    }
}

/// Many products of one shape: `Y = alpha * A X + beta * Y` for each of a batch of matrices, and for
/// each column of X.
///
/// Column c of entry b has the bits of the [`Job`] of `a[b]`, `x[b][:, c]` and `y[b][:, c]`. Any dimension may
/// be 0.
#[derive(Debug)]
pub struct GemmJob<'a, T: Element, V: Element = T> {
    /// Factor of the products. 0: A and X are not read.
    pub alpha: V::Acc,
    /// The matrices, batch × m × n. A batch stride of 0 shares one.
    pub a: Input<'a, T, Ix3>,
    /// Whether the conjugate of A is used (the same for real types).
    pub conj: bool,
    /// The right-hand sides, batch × n × rhs. A batch stride of 0 shares them.
    pub x: Input<'a, V, Ix3>,
    /// Factor of `Y`. 0: Y is not read.
    pub beta: V::Acc,
    /// The results, batch × m × rhs.
    pub y: Output<'a, V, Ix3>,
}

impl<'a, T: Element + Times<V>, V: Element> GemmJob<'a, T, V> {
    /// What is asked.
    pub fn desc(&self) -> Desc {
        let (batch, m, n) = self.a.raw_dim().into_pattern();
        let strides = (self.a.stride(1), self.a.stride(2));
        let one = Desc::new(T::DTYPE, m, n, strides, self.a.address());
        // Every entry of the batch begins on this boundary.
        let apart = self.a.stride(0).unsigned_abs().wrapping_mul(T::DTYPE.bytes());
        let apart = if batch > 1 { apart } else { 0 };
        let align = one.align.min((apart | 64).trailing_zeros() as u8);
        Desc { vectors: V::DTYPE, align, rhs: self.x.raw_dim()[2], batch, ..one }
    }

    /// A batch as one product where that reads less: single vectors that share a matrix are columns of
    /// one X, and matrices that share X are the rows of one, if they lie like that.
    #[must_use]
    pub(crate) fn without_batch(self) -> Self {
        let ([batch, m, _], rhs) = (self.a.raw_dim().into_pattern().into(), self.x.raw_dim()[2]);
        let rows_follow = |of: [isize; 2]| m == 1 || of[1].checked_mul(m as isize) == Some(of[0]);
        let shared_a = rhs == 1 && self.a.stride(0) == 0;
        let shared_x = self.x.stride(0) == 0
            && rows_follow([self.a.stride(0), self.a.stride(1)])
            && rows_follow([self.y.stride(0), self.y.stride(1)]);
        if batch <= 1 || !(shared_a || shared_x) {
            return self;
        }
        let GemmJob { alpha, a, conj, x, beta, y } = self;
        if !shared_a {
            let x = x.index_axis(0, 0).insert_axis(0);
            return GemmJob { alpha, a: a.merge_rows(), conj, x, beta, y: y.merge_rows() };
        }
        // Axis 0, the batch, becomes axis 2, the columns.
        let a = a.index_axis(0, 0).insert_axis(0);
        let x = x.index_axis(2, 0).reversed_axes().insert_axis(0);
        let y = y.index_axis(2, 0).reversed_axes().insert_axis(0);
        GemmJob { alpha, a, conj, x, beta, y }
    }

    /// The job, if its operands fit.
    ///
    /// # Errors
    /// As [`Job::check`].
    pub fn check(self) -> Result<Checked<Self>> {
        self.proof()?;
        Ok(Checked(self))
    }

    fn proof(&self) -> Result<()> {
        check_batch(self.a.raw_dim(), self.x.raw_dim(), Some(self.y.raw_dim()))?;
        self.a.check("A")?;
        self.x.check("X")?;
        self.y.check("Y")
    }

    /// A job of resident arrays and of views, whose shapes were compared.
    pub(crate) fn checked_before(self) -> Checked<Self> {
        debug_assert_eq!(self.proof(), Ok(()));
        Checked(self)
    }

    /// The product of one entry of the batch and one column.
    ///
    /// # Panics
    /// If there is no such entry, or no such column.
    pub fn column(&mut self, entry: usize, column: usize) -> Job<'_, T, V> {
        Job {
            alpha: self.alpha,
            a: self.a.reborrow().index_axis(0, entry),
            conj: self.conj,
            x: self.x.reborrow().index_axis(0, entry).index_axis(1, column),
            beta: self.beta,
            y: self.y.view_mut().index_axis(0, entry).index_axis(1, column),
        }
    }
}

impl<'a, T: Element + Times<V>, V: Element> Checked<GemmJob<'a, T, V>> {
    /// The job without its element type.
    pub fn erase(self) -> AnyGemmJob<'a> {
        <T as Times<V>>::erase::<GemmJobs>(self)
    }

    /// As [`GemmJob::column`]: a part of what fits.
    ///
    /// # Panics
    /// If there is no such entry, or no such column.
    pub fn column(&mut self, entry: usize, column: usize) -> Checked<Job<'_, T, V>> {
        Checked(self.0.column(entry, column))
    }
}

/// Compares the shapes of a single product.
#[inline]
pub(crate) fn check(matrix: Ix2, x: Ix1, y: Option<Ix1>) -> Result<()> {
    let (matrix, x, y) = ((matrix[0], matrix[1]), x[0], y.map(|y| y[0]));
    if x == matrix.1 && y.is_none_or(|y| y == matrix.0) {
        return Ok(());
    }
    Err(Error::Shape(ShapeMismatch::MatrixVector { matrix, x, y }))
}

/// Compares the shapes of a batch of products.
pub(crate) fn check_batch(a: Ix3, x: Ix3, y: Option<Ix3>) -> Result<()> {
    if (a[0], a[2]) == (x[0], x[1]) && y.is_none_or(|y| y == Ix3(a[0], a[1], x[2])) {
        return Ok(());
    }
    let of = |d: Ix3| (d[0], d[1], d[2]);
    Err(Error::Shape(ShapeMismatch::BatchMatrices { matrices: of(a), x: of(x), y: y.map(of) }))
}

/// The [`PairFamily`] of [`AnyJob`].
#[derive(Debug)]
pub enum Jobs {}

impl PairFamily for Jobs {
    type Of<'a, T: Element, V: Element> = Checked<Job<'a, T, V>>;
}

/// A [`Checked`] [`Job`] of any pair of element types.
///
/// ```
/// use gemv_core::{AnyJob, Dtype, Job, for_any};
/// use ndarray::array;
///
/// let (a, x, mut y) = (array![[2.0f64, 3.0]], array![1.0, 1.0], array![0.0]);
/// let (a, x, y) = (a.view().into(), x.view().into(), y.view_mut().into());
/// let job = AnyJob::F64(Job { alpha: 1.0, a, conj: false, x, beta: 0.0, y }.check()?);
/// assert_eq!(job.dtypes(), (Dtype::F64, Dtype::F64));
/// assert_eq!(for_any!(AnyJob, job, job => job.desc().n), 2);
/// # Ok::<(), gemv_core::Error>(())
/// ```
pub type AnyJob<'a> = AnyPair<'a, Jobs>;

/// The [`PairFamily`] of [`AnyGemmJob`].
#[derive(Debug)]
pub enum GemmJobs {}

impl PairFamily for GemmJobs {
    type Of<'a, T: Element, V: Element> = Checked<GemmJob<'a, T, V>>;
}

/// A [`Checked`] [`GemmJob`] of any pair of element types.
pub type AnyGemmJob<'a> = AnyPair<'a, GemmJobs>;
