//! The data of a product, as a backend gets it.

use std::ops::Deref;

use crate::element::Accumulator;
use crate::interop::check_apart;
use crate::tensor::{Tensor, TensorMut, check_types};
use crate::{Desc, Error, Result, ShapeMismatch};

/// A job whose operands fit: made by `check` of a [`Job`] or a [`VectorJob`](crate::VectorJob), and by nothing else. So no
/// backend can forget to look.
///
/// - The shapes and the types agree, and a step has the operands that it reads.
/// - Every operand lies inside of its memory.
/// - Each entry of the result has a place of its own.
///
/// What a block is only its backend knows: whether it is of this device, and of the job's element type.
///
/// ```
/// use gemv::{Error, unstable::{Job, Number}};
/// use ndarray::{Array2, array};
///
/// let (a, x) = (Array2::<f64>::ones((1000, 3)), array![1.0, 2.0, 3.0]);
/// let mut y = array![0.0]; // too short
/// let (alpha, beta) = (Number::new(1.0), Number::new(0.0));
/// let (x, y) = (x.view().into(), y.view_mut().into());
/// let job = Job { alpha, a: a.view().into(), conj: false, x, beta, y };
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

/// A factor of a product, a value of the type in which it is summed: f32, f64, or a pair of them.
///
/// It has the bits of the value, so that no floating-point mode of the caller changes it.
///
/// ```
/// use gemv::{num_complex::Complex, unstable::Number};
///
/// let (half, none) = (Number::new(0.5f32), Number::new(Complex::new(-0.0, 0.0f64)));
/// assert_eq!((half.get::<f32>(), half.bytes()[..4].len()), (0.5, 4));
/// assert!(Number::new(1.0f64).is_one() && none.is_zero() && !half.is_zero());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(16))]
pub struct Number {
    bytes: [u8; 16],
    /// Bytes of a part, and of both.
    part: u8,
    len: u8,
}

impl Number {
    /// A value.
    #[inline]
    pub fn new<A: Accumulator>(value: A) -> Number {
        Number { bytes: value.to_bytes(), part: A::PART as u8, len: size_of::<A>() as u8 }
    }

    /// The value.
    ///
    /// # Panics
    /// If it is of another type.
    #[inline]
    #[track_caller]
    pub fn get<A: Accumulator>(&self) -> A {
        assert!(
            (self.part as usize, self.len as usize) == (A::PART, size_of::<A>()),
            "a factor of another type"
        );
        A::from_bytes(self.bytes)
    }

    /// The value as it lies in memory, and zeros behind it.
    #[inline]
    pub fn bytes(&self) -> &[u8; 16] {
        &self.bytes
    }

    /// Whether it is 0 of either sign (in each component).
    pub fn is_zero(&self) -> bool {
        let (bits, [re, im]) = self.bits();
        bits & !(re | im) == 0
    }

    /// Whether it is 1 (and an imaginary part 0).
    pub fn is_one(&self) -> bool {
        let (bits, [_, im]) = self.bits();
        let one = if self.part == 4 { 1f32.to_bits().into() } else { 1f64.to_bits() };
        bits & !im == one.into()
    }

    /// Its bits, the imaginary part above the real one, and the sign of each.
    fn bits(&self) -> (u128, [u128; 2]) {
        let mut bytes = self.bytes;
        if cfg!(target_endian = "big") {
            bytes.chunks_exact_mut(self.part.into()).for_each(<[u8]>::reverse);
        }
        let part = 8 * u32::from(self.part);
        (u128::from_le_bytes(bytes), [1 << (part - 1), 1 << (2 * part - 1)])
    }
}

/// A product: `Y = alpha * A X + beta * Y` for each of a batch of matrices. One vector is an X of one column, one matrix a
/// batch of one.
///
/// Column c of entry b has the bits of the product of `a[b]` and `x[b][:, c]` alone. Any dimension may be 0. X and Y have one
/// element type: that of A, or a wider one ([`Times`](crate::Times)). A backend takes it once it is [`Checked`].
///
/// ```
/// use gemv::unstable::{Job, Number};
/// use ndarray::{Array2, array};
///
/// let (a, x) = (Array2::<f64>::eye(3), array![1.0, 2.0, 3.0]);
/// let mut y = array![0.0, 0.0, 0.0];
/// let job = Job {
///     alpha: Number::new(1.0),
///     a: a.t().into(),
///     conj: false,
///     x: x.view().into(),
///     beta: Number::new(0.0),
///     y: y.view_mut().into(),
/// };
/// assert_eq!(job.desc().to_string(), "f64 col 3x3"); // as A.t() lies in memory
/// ```
#[derive(Debug)]
pub struct Job<'a> {
    /// Factor of the products, of the type in which they are summed. 0: A and X are not read.
    pub alpha: Number,
    /// The matrices, batch × m × n. A batch stride of 0 shares one.
    pub a: Tensor<'a>,
    /// Whether the conjugate of A is used (the same for real types).
    pub conj: bool,
    /// The right-hand sides, batch × n × rhs. A batch stride of 0 shares them.
    pub x: Tensor<'a>,
    /// Factor of `Y`. 0: Y is not read.
    pub beta: Number,
    /// The results, batch × m × rhs.
    pub y: TensorMut<'a>,
}

impl Job<'_> {
    /// What is asked.
    pub fn desc(&self) -> Desc {
        let ([batch, m, n], [apart, rs, cs]) = (self.a.dim(), self.a.strides());
        if let Some(packed) = self.a.packed_matrix() {
            let rhs = self.x.dim()[2];
            return Desc { rhs, ..Desc::packed(packed.format, self.x.dtype(), packed.dim) };
        }
        let one = Desc::new(self.a.dtype(), m, n, (rs, cs), self.a.address());
        // Every entry of the batch begins on this boundary.
        let apart = apart.unsigned_abs().wrapping_mul(self.a.dtype().bytes());
        let apart = if batch > 1 { apart } else { 0 };
        let align = one.align.min((apart | 64).trailing_zeros() as u8);
        Desc { vectors: self.x.dtype(), align, rhs: self.x.dim()[2], batch, ..one }
    }

    /// The job, if its operands fit.
    ///
    /// ```
    /// use gemv::{Dtype, Error, unstable::{AnySlice, Job, Number, Tensor, Window, reference::Reference}};
    /// use ndarray::{Ix1, array};
    ///
    /// let backend = Reference::open();
    /// let block = backend.upload(AnySlice::F32(&[1.0, 2.0, 3.0]))?;
    /// let (a, mut y) = (array![[1.0f32, 1.0]], array![0.0f32]);
    /// let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
    /// let mut ask = |first: usize, stride: isize| {
    ///     let (dim, strides) = (Ix1(2), Ix1(stride as usize));
    ///     let x = Tensor::device(Dtype::F32, Window { memory: &*block, first, dim, strides });
    ///     let (a, y) = (a.view().into(), y.view_mut().into());
    ///     Job { alpha, a, conj: false, x, beta, y }.check().map(|_| ())
    /// };
    /// assert!(ask(0, 2).is_ok() && ask(2, -2).is_ok());
    /// assert!(matches!(ask(0, 3), Err(Error::Operand { operand: "X", .. })));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape); [`Error::Operand`](crate::Error::Operand) if the types have no product or a
    /// factor is not of the type in which they are summed, an operand does not lie in its memory, or two entries of Y lie
    /// at one place.
    pub fn check(self) -> Result<Checked<Self>> {
        self.proof()?;
        self.check_apart()?;
        Ok(Checked(self))
    }

    pub(crate) fn proof(&self) -> Result<()> {
        check_batch(self.a.dim(), self.x.dim(), Some(self.y.dim()))?;
        let vectors = self.x.dtype();
        check_types(self.a.dtype(), vectors, self.y.dtype())?;
        let of = |number: &Number| {
            let parts = if vectors.is_complex() { 2 } else { 1 };
            number.len as usize == vectors.acc_bytes() && number.len / number.part == parts
        };
        if let Some((operand, _)) =
            [("alpha", &self.alpha), ("beta", &self.beta)].into_iter().find(|(_, n)| !of(n))
        {
            let reason = format!("is not of the type in which {vectors} is summed");
            return Err(Error::Operand { operand, reason });
        }
        self.a.check("A")?;
        self.x.check("X")?;
        self.y.check("Y")
    }

    /// Whether Y lies apart from A and X, which only memory of other libraries can be asked.
    #[inline(always)]
    pub(crate) fn check_apart(&self) -> Result<()> {
        // Looked at first: to make windows would take a part of a small product's time.
        if !(self.y.is_foreign() || self.a.is_foreign() || self.x.is_foreign()) {
            return Ok(());
        }
        let Some(y) = self.y.window() else { return Ok(()) };
        let read = [("A", &self.a), ("X", &self.x)].into_iter();
        let read = read.filter_map(|(name, of)| Some((name, of.window()?, of.dtype())));
        check_apart(("Y", &y, self.y.dtype()), read)
    }
}

impl Checked<Job<'_>> {
    /// A batch as one product where that reads less: single vectors that share a matrix are columns of
    /// one X, and matrices that share X are the rows of one, if they lie like that.
    #[inline]
    pub(crate) fn without_batch(&mut self) {
        let job = &mut self.0;
        let ([batch, m, n], rhs) = (job.a.dim(), job.x.dim()[2]);
        // A packed matrix of which nothing is read is one without columns: no kernel for packed ones has these cases.
        if job.a.packed_matrix().is_some() && (n == 0 || job.alpha.is_zero()) {
            let vectors = job.x.dtype();
            job.a = Tensor::empty(vectors, [1, m, 0]);
            job.x = Tensor::empty(vectors, [1, 0, rhs]);
            return;
        }
        if batch <= 1 {
            return;
        }
        let rows_follow =
            |[apart, rs, _]: [isize; 3]| m == 1 || rs.checked_mul(m as isize) == Some(apart);
        let shared_x =
            job.x.strides()[0] == 0 && rows_follow(job.a.strides()) && rows_follow(job.y.strides());
        if rhs == 1 && job.a.strides()[0] == 0 {
            // Axis 0, the batch, becomes axis 2, the columns.
            job.a = job.a.only(0, 0);
            job.x.extent_mut().swap(0, 2);
            job.y.extent_mut().swap(0, 2);
        } else if shared_x {
            job.a.extent_mut().merge_rows();
            job.x = job.x.only(0, 0);
            job.y.extent_mut().merge_rows();
        }
    }

    /// The product of one entry of the batch and one column: a part of what fits.
    ///
    /// ```
    /// use gemv::unstable::{Job, Number};
    /// use ndarray::{Array3, array};
    ///
    /// let (a, x) = (Array3::<f32>::ones((4, 2, 3)), Array3::<f32>::ones((4, 3, 5)));
    /// let mut y = Array3::<f32>::zeros((4, 2, 5));
    /// let (alpha, beta) = (Number::new(1.0f32), Number::new(0.0f32));
    /// let (a, x, y) = (a.view().into(), x.view().into(), y.view_mut().into());
    /// let mut job = Job { alpha, a, conj: false, x, beta, y }.check()?;
    /// let last = job.column(3, 4);
    /// assert_eq!((last.a.dim(), last.x.dim(), last.y.dim()), ([1, 2, 3], [1, 3, 1], [1, 2, 1]));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such entry, or no such column.
    pub fn column(&mut self, entry: usize, column: usize) -> Checked<Job<'_>> {
        let Job { alpha, a, conj, x, beta, y } = &mut self.0;
        Checked(Job {
            alpha: *alpha,
            a: a.only(0, entry),
            conj: *conj,
            x: x.only(0, entry).only(2, column),
            beta: *beta,
            y: y.reborrow().only(0, entry).only(2, column),
        })
    }

    /// Y, to write to.
    #[inline]
    pub fn y(&mut self) -> TensorMut<'_> {
        self.0.y.reborrow()
    }

    /// Calls `product` with each column of each entry in turn: for a backend, or a kernel, of one vector.
    ///
    /// # Errors
    /// That of the first product that fails. Earlier ones have written their part of Y.
    pub fn columns<E>(
        &mut self,
        mut product: impl FnMut(&mut Checked<Job<'_>>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let [batch, _, rhs] = self.y.dim();
        (0..batch)
            .flat_map(|b| (0..rhs).map(move |c| (b, c)))
            .try_for_each(|(b, c)| product(&mut self.column(b, c)))
    }
}

/// Compares the shapes of a batch of products.
pub(crate) fn check_batch(a: [usize; 3], x: [usize; 3], y: Option<[usize; 3]>) -> Result<()> {
    if (a[0], a[2]) == (x[0], x[1]) && y.is_none_or(|y| y == [a[0], a[1], x[2]]) {
        return Ok(());
    }
    let of = |[b, i, j]: [usize; 3]| (b, i, j);
    Err(Error::Shape(ShapeMismatch::BatchMatrices { matrices: of(a), x: of(x), y: y.map(of) }))
}
