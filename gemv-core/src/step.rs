//! The data of one elementwise step, as a backend gets it.

use ndarray::{Dimension, Ix0, Ix3};

use crate::element::{Any, Family};
use crate::interop::check_apart;
use crate::job::Checked;
use crate::memory::{Memory, Window};
use crate::{Accumulator, Element, Error, Result, ShapeMismatch};

/// What a [`VectorJob`] does to each entry of `y`: one line of the [order](crate::order)'s rule 10.
///
/// ```
/// use gemv::unstable::Step;
///
/// assert_eq!(Step::Axpy.apply::<f32>(2.0, 3.0, 0.0, 1.0), 7.0); // 2 * 3 + 1
/// assert_eq!(Step::Quotient.apply::<f64>(0.0, 1.0, 4.0, 0.0), 0.25);
/// assert!(Step::Axpy.reads_y() && !Step::Quotient.reads_y());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// `y = alpha`.
    Fill,
    /// `y = x`, all bits of it.
    Assign,
    /// `y = alpha * y`.
    Scal,
    /// `y = fma(alpha, x, y)`.
    Axpy,
    /// `y = fma(alpha, y, x)`.
    Xpay,
    /// `y = x * z`.
    Product,
    /// `y = fma(x, z, y)`.
    AddProduct,
    /// `y = x / z`.
    Quotient,
    /// `y = sqrt(x)`.
    Sqrt,
    /// `y = sqrt(re(y))`, for real numbers in pairs.
    Norm,
}

impl Step {
    /// Every step.
    pub const ALL: [Step; 10] = [
        Step::Fill,
        Step::Assign,
        Step::Scal,
        Step::Axpy,
        Step::Xpay,
        Step::Product,
        Step::AddProduct,
        Step::Quotient,
        Step::Sqrt,
        Step::Norm,
    ];

    /// Whether the old `y` is read.
    pub fn reads_y(self) -> bool {
        matches!(self, Step::Scal | Step::Axpy | Step::Xpay | Step::AddProduct | Step::Norm)
    }

    /// How many of `x` and `z` the step reads: none, `x`, or both.
    ///
    /// ```
    /// # use gemv::unstable::Step;
    /// assert_eq!([Step::Scal, Step::Axpy, Step::Quotient].map(Step::operands), [0, 1, 2]);
    /// ```
    #[inline(always)]
    pub fn operands(self) -> usize {
        match self {
            Step::Fill | Step::Scal | Step::Norm => 0,
            Step::Assign | Step::Axpy | Step::Xpay | Step::Sqrt => 1,
            Step::Product | Step::AddProduct | Step::Quotient => 2,
        }
    }

    /// The new entry of `y`. What the step does not read may have any value.
    #[inline(always)]
    pub fn apply<T: Element>(self, alpha: T::Acc, x: T, z: T, y: T) -> T {
        match self {
            // Through an accumulator, a NaN could lose bits.
            Step::Assign => x,
            _ => T::narrow(self.widened(alpha, x.widen(), z.widen(), y.widen())),
        }
    }

    /// The same in the accumulator's type, before it is rounded.
    #[inline(always)]
    pub(crate) fn widened<A: Accumulator>(self, alpha: A, x: A, z: A, y: A) -> A {
        match self {
            Step::Fill => alpha,
            Step::Assign => x,
            Step::Scal => alpha.mul(y),
            Step::Axpy => y.fma(alpha, x),
            Step::Xpay => x.fma(alpha, y),
            Step::Product => x.mul(z),
            Step::AddProduct => y.fma(x, z),
            Step::Quotient => x.div(z),
            Step::Sqrt => x.sqrt(),
            Step::Norm => y.norm(),
        }
    }
}

/// The factor of a step: a number, or one that is computed from resident ones where it is used.
#[derive(Debug, Clone, Copy)]
pub enum Scalar<'a, T: Element> {
    /// A number of the host.
    Number(T::Acc),
    /// A resident number.
    Device {
        /// The number.
        of: Window<&'a dyn Memory, Ix0>,
        /// Whether its negative is used.
        negated: bool,
    },
    /// The quotient of two resident numbers, in the accumulator's type.
    Quotient {
        /// The numerator.
        of: Window<&'a dyn Memory, Ix0>,
        /// The denominator.
        by: Window<&'a dyn Memory, Ix0>,
        /// Whether its negative is used.
        negated: bool,
    },
}

impl<'a, T: Element> Scalar<'a, T> {
    /// Its value, where `read` is the number at an index of a block.
    #[inline]
    pub fn value(&self, read: impl Fn(&'a dyn Memory, usize) -> T) -> T::Acc {
        let number = |at: &Window<&'a dyn Memory, Ix0>| read(at.memory, at.first).widen();
        let (value, negated) = match self {
            Scalar::Number(number) => return *number,
            Scalar::Device { of, negated } => (number(of), *negated),
            Scalar::Quotient { of, by, negated } => (number(of).div(number(by)), *negated),
        };
        if negated { value.neg() } else { value }
    }

    /// The same factor with the other sign.
    pub(crate) fn negated(self) -> Self {
        match self {
            Scalar::Number(number) => Scalar::Number(number.neg()),
            Scalar::Device { of, negated } => Scalar::Device { of, negated: !negated },
            Scalar::Quotient { of, by, negated } => Scalar::Quotient { of, by, negated: !negated },
        }
    }
}

/// One elementwise step on resident arrays: every entry of `y` becomes [`Step::apply`] of the
/// factor and of the entries of `x`, `z` and `y` at its place.
///
/// `x`, `z` and `y` have one shape. What lies between the entries of `y` is not touched. What a step does
/// not read is `None`. A backend takes the job once it is [`Checked`].
#[derive(Debug)]
pub struct VectorJob<'a, T: Element, M = &'a mut dyn Memory> {
    /// What is done.
    pub step: Step,
    /// Its factor, of the steps that have one.
    pub alpha: Scalar<'a, T>,
    /// The first operand.
    pub x: Option<Window<&'a dyn Memory, Ix3>>,
    /// The second operand.
    pub z: Option<Window<&'a dyn Memory, Ix3>>,
    /// The result.
    pub y: Window<M, Ix3>,
}

impl<'a, T: Element> VectorJob<'a, T> {
    /// A job of arrays whose shapes were compared.
    ///
    /// # Panics
    /// If they have more than three axes.
    pub(crate) fn new<D: Dimension + Copy>(
        step: Step,
        alpha: Scalar<'a, T>,
        x: Option<Window<&'a dyn Memory, D>>,
        z: Option<Window<&'a dyn Memory, D>>,
        y: Window<&'a mut dyn Memory, D>,
    ) -> Checked<Self> {
        let (x, z, y) = (x.map(three_axes), z.map(three_axes), three_axes(y));
        let job = VectorJob { step, alpha, x, z, y };
        debug_assert_eq!(job.proof(), Ok(()));
        Checked::trust(job.merged())
    }

    /// The job, if its operands fit.
    ///
    /// ```
    /// use gemv::{Dtype, Error, unstable::{Scalar, Step, VectorJob, Window, reference::Reference}};
    /// use ndarray::Ix3;
    ///
    /// let backend = Reference::open();
    /// let (x, mut y) = (backend.alloc(Dtype::F64, 6)?, backend.alloc(Dtype::F64, 6)?);
    /// let x = Window { memory: &*x, first: 0, dim: Ix3(1, 2, 3), strides: Ix3(6, 3, 1) };
    /// let y = Window { memory: &mut *y, first: 0, dim: Ix3(1, 3, 2), strides: Ix3(6, 2, 1) };
    /// let alpha = Scalar::Number(1.0);
    /// let job = VectorJob::<f64> { step: Step::Axpy, alpha, x: Some(x), z: None, y };
    /// let why = job.check().unwrap_err().to_string();
    /// assert!(why.ends_with("y has 1 × 3 × 2 entries and an operand 1 × 2 × 3"), "{why}");
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::Operand`] if an operand or the factor does not lie in its memory, one that the
    /// step reads is missing, or two entries of y lie at one place.
    pub fn check(self) -> Result<Checked<Self>> {
        self.proof()?;
        self.check_apart()?;
        Ok(Checked::trust(self))
    }

    fn proof(&self) -> Result<()> {
        let VectorJob { step, alpha, x, z, y } = self;
        for (operand, of, least) in [("x", x, 1), ("z", z, 2)] {
            let read = step.operands() >= least;
            match of {
                None if read => {
                    let reason = format!("is missing: {step:?} reads it");
                    return Err(Error::Operand { operand, reason });
                }
                None => {}
                Some(_) if !read => {
                    let reason = format!("is not of a step that is {step:?}");
                    return Err(Error::Operand { operand, reason });
                }
                Some(of) if of.dim != y.dim => {
                    let [x, y] = [of.dim, y.dim].map(|dim| dim.into_pattern().into());
                    return Err(Error::Shape(ShapeMismatch::Step { axes: 3, x, y }));
                }
                Some(of) => of.check(operand, of.memory.len())?,
            }
        }
        let number = |of: &Window<&dyn Memory, Ix0>| of.check("the factor", of.memory.len());
        match alpha {
            Scalar::Number(_) => {}
            Scalar::Device { of, .. } => number(of)?,
            Scalar::Quotient { of, by, .. } => number(of).and_then(|()| number(by))?,
        }
        y.check_result("y", y.memory.len())
    }

    /// Whether y lies apart from what is read, which only memory of other libraries can be asked.
    pub(crate) fn check_apart(&self) -> Result<()> {
        let VectorJob { alpha, x, z, y, .. } = self;
        let (of, by) = match *alpha {
            Scalar::Number(_) => (None, None),
            Scalar::Device { of, .. } => (Some(of), None),
            Scalar::Quotient { of, by, .. } => (Some(of), Some(by)),
        };
        let read = [
            ("x", *x),
            ("z", *z),
            ("the factor", of.map(three_axes)),
            ("the factor", by.map(three_axes)),
        ];
        let read = read.into_iter().filter_map(|(name, of)| Some((name, of?, T::DTYPE)));
        let Window { first, dim, strides, .. } = *y;
        let y = Window { memory: &*y.memory, first, dim, strides };
        check_apart(("y", &y, T::DTYPE), read)
    }

    /// `y = x`.
    pub(crate) fn assign<D: Dimension + Copy>(
        x: Window<&'a dyn Memory, D>,
        y: Window<&'a mut dyn Memory, D>,
    ) -> Checked<Self> {
        Self::new(Step::Assign, Scalar::Number(T::Acc::ZERO), Some(x), None, y)
    }

    /// The same with as few axes as there can be, that of the nearest entries of `y` last: an array
    /// without gaps has one.
    fn merged(mut self) -> Self {
        let strides = |axis: usize| {
            let of = |window: &Window<&dyn Memory, Ix3>| window.stride(axis);
            let (x, z) = (self.x.as_ref().map_or(0, of), self.z.as_ref().map_or(0, of));
            [self.y.stride(axis), x, z]
        };
        let mut axes = [0, 1, 2].map(|axis| (self.y.dim[axis], strides(axis)));
        // Axes of one entry go first, where nothing is merged with them.
        axes.sort_by_key(|(len, strides)| (*len > 1, std::cmp::Reverse(strides[0].unsigned_abs())));
        for outer in [1, 1, 0] {
            let ((count, apart), (len, near)) = (axes[outer], axes[outer + 1]);
            let follow = |k: usize| apart[k] == near[k].wrapping_mul(len as isize);
            if count > 1 && (0..3).all(follow) {
                axes[outer + 1].0 = count * len;
                axes[..=outer].rotate_right(1);
                axes[0] = (1, [0; 3]);
            }
        }
        let dim = Ix3(axes[0].0, axes[1].0, axes[2].0);
        let of =
            |k: usize| Ix3(axes[0].1[k] as usize, axes[1].1[k] as usize, axes[2].1[k] as usize);
        (self.y.dim, self.y.strides) = (dim, of(0));
        for (k, operand) in [(1, &mut self.x), (2, &mut self.z)] {
            if let Some(window) = operand {
                (window.dim, window.strides) = (dim, of(k));
            }
        }
        self
    }

    /// The job without the memory of y, and that memory: for backends whose memory is the host's.
    #[inline]
    pub fn split(self) -> (VectorJob<'a, T, ()>, &'a mut dyn Memory) {
        let VectorJob { step, alpha, x, z, y: Window { memory, first, dim, strides } } = self;
        (VectorJob { step, alpha, x, z, y: Window { memory: (), first, dim, strides } }, memory)
    }
}

impl<'a, T: Element> Checked<VectorJob<'a, T>> {
    /// The job without its element type.
    pub fn erase(self) -> AnyVectorJob<'a> {
        T::any::<VectorJobs>(self)
    }
}

/// The array with further axes of one entry before its own.
fn three_axes<M, D: Dimension>(window: Window<M, D>) -> Window<M, Ix3> {
    let (axes, mut dim, mut strides) = (window.dim.ndim(), Ix3(1, 1, 1), Ix3(0, 0, 0));
    assert!(axes <= 3, "an array of {axes} axes");
    for axis in 0..axes {
        (dim[3 - axes + axis], strides[3 - axes + axis]) = (window.dim[axis], window.strides[axis]);
    }
    Window { memory: window.memory, first: window.first, dim, strides }
}

/// The [`Family`] of [`AnyVectorJob`].
#[derive(Debug)]
pub enum VectorJobs {}

impl Family for VectorJobs {
    type Of<'a, T: Element> = Checked<VectorJob<'a, T>>;
}

/// A [`Checked`] [`VectorJob`] of any element type.
pub type AnyVectorJob<'a> = Any<'a, VectorJobs>;
