//! The data of one elementwise step, as a backend gets it.

use ndarray::{Dimension, Ix3};

use crate::element::{Any, Family};
use crate::function::{Comparison, Function};
use crate::interop::check_apart;
use crate::job::Checked;
use crate::memory::{Memory, Window};
use crate::{Accumulator, Element, Error, Result, ShapeMismatch};

/// What a [`VectorJob`] does to each entry of `y`: one line of the [order](crate::order)'s rules 10 and 12.
///
/// Steps beyond [`PLAIN`](Self::PLAIN) take `y` in the place of an `x` that is not given.
///
/// ```
/// use gemv::{Comparison, Function, unstable::Step};
///
/// assert_eq!(Step::Axpy.apply::<f32>([2.0, 0.0], 3.0, 0.0, 1.0), 7.0); // 2 * 3 + 1
/// assert_eq!(Step::Quotient.apply::<f64>([0.0, 0.0], 1.0, 4.0, 0.0), 0.25);
/// assert_eq!(Step::Clamp.apply::<f64>([-1.0, 1.0], 7.0, 0.0, 0.0), 1.0);
/// assert_eq!(Step::Compare(Comparison::Less).apply::<f32>([2.0, 0.0], 1.0, 0.0, 0.0), 1.0);
/// assert_eq!(Step::Map(Function::Tanh).apply::<f32>([0.0, 0.0], 40.0, 0.0, 0.0), 1.0);
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
    /// `y = x + alpha`.
    Add,
    /// `y = maximum(x, alpha)`, of real types. So are those that follow.
    Maximum,
    /// `y = minimum(x, alpha)`.
    Minimum,
    /// `y = minimum(maximum(x, alpha), beta)`.
    Clamp,
    /// 1 where `x` compares so with `alpha`, else 0.
    Compare(Comparison),
    /// `y = f(x)`.
    Map(Function),
}

/// Evaluates an expression with a step as a constant of this name, so that what it does with the step is compiled for each.
///
/// ```
/// use gemv::unstable::{Step, for_step};
///
/// const fn code(step: Step) -> usize {
///     step.operands()
/// }
/// let step = Step::Product; // learnt at run time
/// assert_eq!(for_step!(step, S => const { code(S) }), 2);
/// ```
#[macro_export]
macro_rules! for_step {
    ($step:expr, $of:ident => $body:expr) => {
        $crate::for_step! {
            @ $step, $of => $body;
            Fill, Assign, Scal, Axpy, Xpay, Product, AddProduct, Quotient, Sqrt, Norm,
            Add, Maximum, Minimum, Clamp,
            Compare(Comparison::Less), Compare(Comparison::LessEqual), Compare(Comparison::Greater),
            Compare(Comparison::GreaterEqual), Compare(Comparison::Equal),
            Compare(Comparison::NotEqual),
            Map(Function::Abs), Map(Function::Recip), Map(Function::Relu), Map(Function::Exp),
            Map(Function::Ln), Map(Function::Tanh), Map(Function::Sigmoid), Map(Function::Silu),
            Map(Function::Gelu), Map(Function::GeluTanh)
        }
    };
    (@ $step:expr, $of:ident => $body:expr;
        $($variant:ident $(($kind:ident::$what:ident))?),*) => {
        match $step {
            $($crate::Step::$variant $(($crate::$kind::$what))? => {
                const $of: $crate::Step = $crate::Step::$variant $(($crate::$kind::$what))?;
                $body
            })*
        }
    };
}

impl Step {
    /// The steps whose factor is one number, and which have no other form: BLAS's, products, quotients and roots.
    pub const PLAIN: [Step; 10] = [
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

    /// Every step, the plain ones first.
    pub fn all() -> impl Iterator<Item = Step> {
        let more = [Step::Add, Step::Maximum, Step::Minimum, Step::Clamp];
        let compared = Comparison::ALL.into_iter().map(Step::Compare);
        let mapped = Function::ALL.into_iter().map(Step::Map);
        Step::PLAIN.into_iter().chain(more).chain(compared).chain(mapped)
    }

    /// Whether the old `y` is read, also where there is an `x`.
    pub const fn reads_y(self) -> bool {
        matches!(self, Step::Scal | Step::Axpy | Step::Xpay | Step::AddProduct | Step::Norm)
    }

    /// How many of `x` and `z` the step reads: none, `x`, or both.
    ///
    /// ```
    /// # use gemv::unstable::Step;
    /// assert_eq!([Step::Scal, Step::Axpy, Step::Quotient].map(Step::operands), [0, 1, 2]);
    /// ```
    #[inline(always)]
    pub const fn operands(self) -> usize {
        match self {
            Step::Fill | Step::Scal | Step::Norm => 0,
            Step::Assign | Step::Axpy | Step::Xpay | Step::Sqrt => 1,
            Step::Product | Step::AddProduct | Step::Quotient => 2,
            Step::Add | Step::Maximum | Step::Minimum | Step::Clamp => 1,
            Step::Compare(_) | Step::Map(_) => 1,
        }
    }

    /// How many of `alpha` and `beta` it reads.
    #[inline(always)]
    pub const fn factors(self) -> usize {
        match self {
            Step::Fill | Step::Scal | Step::Axpy | Step::Xpay => 1,
            Step::Add | Step::Maximum | Step::Minimum | Step::Compare(_) => 1,
            Step::Clamp => 2,
            _ => 0,
        }
    }

    /// Whether it takes `y` for an `x` that is not given.
    #[inline(always)]
    pub const fn takes_y(self) -> bool {
        self.is_real() || matches!(self, Step::Add)
    }

    /// Whether it is of real types alone.
    #[inline(always)]
    pub const fn is_real(self) -> bool {
        matches!(
            self,
            Step::Maximum | Step::Minimum | Step::Clamp | Step::Compare(_) | Step::Map(_)
        )
    }

    /// The new entry of `y`, with the factors alpha and beta. What the step does not read may have any value.
    ///
    /// # Panics
    /// If it [is of real types](Self::is_real), and these are pairs.
    #[inline(always)]
    pub fn apply<T: Element>(self, factors: [T::Acc; 2], x: T, z: T, y: T) -> T {
        match self {
            // Through an accumulator, a NaN could lose bits.
            Step::Assign => x,
            _ => T::narrow(self.widened(factors, x.widen(), z.widen(), y.widen())),
        }
    }

    /// The same in the accumulator's type, before it is rounded.
    #[inline(always)]
    pub(crate) fn widened<A: Accumulator>(self, [alpha, beta]: [A; 2], x: A, z: A, y: A) -> A {
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
            Step::Add => x.add(alpha),
            Step::Maximum => x.maximum(alpha),
            Step::Minimum => x.minimum(alpha),
            Step::Clamp => x.maximum(alpha).minimum(beta),
            Step::Compare(with) => x.compare(with, alpha),
            Step::Map(function) => x.function(function),
        }
    }
}

/// The factor of a step: a number, or one that is computed from resident ones where it is used.
#[derive(Debug, Clone, Copy)]
pub enum Scalar<'a, T: Element> {
    /// A number of the host.
    Number(T::Acc),
    /// Resident numbers, one for each entry of y; of one number for all, each stride is 0.
    Device {
        /// The numbers.
        of: Window<&'a dyn Memory, Ix3>,
        /// Whether its negative is used.
        negated: bool,
    },
    /// The quotients of resident numbers, in the accumulator's type.
    Quotient {
        /// The numerators.
        of: Window<&'a dyn Memory, Ix3>,
        /// The denominators.
        by: Window<&'a dyn Memory, Ix3>,
        /// Whether its negative is used.
        negated: bool,
    },
}

impl<'a, T: Element> Scalar<'a, T> {
    /// Its value, where `read` is the number at an index of a block; of a factor that [is one number](Self::is_uniform).
    #[inline]
    pub fn value(&self, read: impl Fn(&'a dyn Memory, usize) -> T) -> T::Acc {
        self.value_at([0; 3], read)
    }

    /// Its value for the entry of y with these indices.
    #[inline]
    pub fn value_at(&self, at: [usize; 3], read: impl Fn(&'a dyn Memory, usize) -> T) -> T::Acc {
        let number = |of: &Window<&'a dyn Memory, Ix3>| read(of.memory, of.place(at)).widen();
        let (value, negated) = match self {
            Scalar::Number(number) => return *number,
            Scalar::Device { of, negated } => (number(of), *negated),
            Scalar::Quotient { of, by, negated } => (number(of).div(number(by)), *negated),
        };
        if negated { value.neg() } else { value }
    }

    /// Its resident numbers: numerators and denominators, as far as there are any.
    #[inline]
    pub fn windows(&self) -> [Option<Window<&'a dyn Memory, Ix3>>; 2] {
        match *self {
            Scalar::Number(_) => [None, None],
            Scalar::Device { of, .. } => [Some(of), None],
            Scalar::Quotient { of, by, .. } => [Some(of), Some(by)],
        }
    }

    /// Whether it is one number for all entries of y.
    #[inline]
    pub fn is_uniform(&self) -> bool {
        let one =
            |of: &Window<_, Ix3>| (0..3).all(|axis| of.dim[axis] <= 1 || of.strides[axis] == 0);
        self.windows().iter().flatten().all(one)
    }

    /// The same factor, of which each window is another one.
    pub(crate) fn with(
        self,
        mut window: impl FnMut(Window<&'a dyn Memory, Ix3>) -> Result<Window<&'a dyn Memory, Ix3>>,
    ) -> Result<Self> {
        Ok(match self {
            Scalar::Number(number) => Scalar::Number(number),
            Scalar::Device { of, negated } => Scalar::Device { of: window(of)?, negated },
            Scalar::Quotient { of, by, negated } => {
                Scalar::Quotient { of: window(of)?, by: window(by)?, negated }
            }
        })
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
/// factors and of the entries of `x`, `z` and `y` at its place.
///
/// `x`, `z`, `y` and resident factors have one shape. What lies between the entries of `y` is not touched. What a step does
/// not read is `None`; the `x` of a step that [takes y](Step::takes_y) may be. A backend takes the job once it is [`Checked`].
#[derive(Debug)]
pub struct VectorJob<'a, T: Element, M = &'a mut dyn Memory> {
    /// What is done.
    pub step: Step,
    /// Its factor, of the steps that have one.
    pub alpha: Scalar<'a, T>,
    /// Its second factor, of the steps that have two.
    pub beta: Scalar<'a, T>,
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
        [alpha, beta]: [Scalar<'a, T>; 2],
        x: Option<Window<&'a dyn Memory, D>>,
        z: Option<Window<&'a dyn Memory, D>>,
        y: Window<&'a mut dyn Memory, D>,
    ) -> Checked<Self> {
        let (x, z, y) = (x.map(three_axes), z.map(three_axes), three_axes(y));
        let job = VectorJob { step, alpha, beta, x, z, y };
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
    /// let (alpha, beta) = (Scalar::Number(1.0), Scalar::Number(0.0));
    /// let job = VectorJob::<f64> { step: Step::Axpy, alpha, beta, x: Some(x), z: None, y };
    /// let why = job.check().unwrap_err().to_string();
    /// assert!(why.ends_with("y has 1 × 3 × 2 entries and an operand 1 × 2 × 3"), "{why}");
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::Operand`] if an operand or the factor does not lie in its memory, one that the
    /// step reads is missing, two entries of y lie at one place, or the step is of real types and these are pairs.
    pub fn check(self) -> Result<Checked<Self>> {
        self.proof()?;
        self.check_apart()?;
        Ok(Checked::trust(self))
    }

    fn proof(&self) -> Result<()> {
        let VectorJob { step, alpha, beta, x, z, y } = self;
        if step.is_real() && T::DTYPE.is_complex() {
            let reason = format!("is of {}, and {step:?} of real numbers", T::DTYPE);
            return Err(Error::Operand { operand: "y", reason });
        }
        let shapes = |of: Ix3| {
            let [x, y] = [of, y.dim].map(|dim| dim.into_pattern().into());
            Err(Error::Shape(ShapeMismatch::Step { axes: 3, x, y }))
        };
        for (operand, of, least) in [("x", x, 1), ("z", z, 2)] {
            let read = step.operands() >= least;
            match of {
                None if read && step.takes_y() => {}
                None if read => {
                    let reason = format!("is missing: {step:?} reads it");
                    return Err(Error::Operand { operand, reason });
                }
                None => {}
                Some(_) if !read => {
                    let reason = format!("is not of a step that is {step:?}");
                    return Err(Error::Operand { operand, reason });
                }
                Some(of) if of.dim != y.dim => return shapes(of.dim),
                Some(of) => of.check(operand, of.memory.len())?,
            }
        }
        for of in [alpha, beta].iter().flat_map(|factor| factor.windows()).flatten() {
            if of.dim != y.dim {
                return shapes(of.dim);
            }
            of.check("the factor", of.memory.len())?;
        }
        y.check_result("y", y.memory.len())
    }

    /// Whether y lies apart from what is read, which only memory of other libraries can be asked.
    pub(crate) fn check_apart(&self) -> Result<()> {
        let VectorJob { alpha, beta, x, z, y, .. } = self;
        let factors = [alpha, beta].into_iter().flat_map(|factor| factor.windows());
        let read = [("x", *x), ("z", *z)].into_iter().chain(factors.map(|of| ("the factor", of)));
        let read = read.filter_map(|(name, of)| Some((name, of?, T::DTYPE)));
        let Window { first, dim, strides, .. } = *y;
        let y = Window { memory: &*y.memory, first, dim, strides };
        check_apart(("y", &y, T::DTYPE), read)
    }

    /// `y = x`.
    pub(crate) fn assign<D: Dimension + Copy>(
        x: Window<&'a dyn Memory, D>,
        y: Window<&'a mut dyn Memory, D>,
    ) -> Checked<Self> {
        Self::new(Step::Assign, [Scalar::Number(T::Acc::ZERO); 2], Some(x), None, y)
    }

    /// The same with as few axes as there can be, that of the nearest entries of `y` last: an array
    /// without gaps has one.
    fn merged(mut self) -> Self {
        let [[a, b], [c, d]] = [&self.alpha, &self.beta].map(|factor| factor.windows());
        let read = [self.x, self.z, a, b, c, d];
        let strides = |axis: usize| {
            let [x, z, a, b, c, d] = read.map(|of| of.map_or(0, |window| window.stride(axis)));
            [self.y.stride(axis), x, z, a, b, c, d]
        };
        let mut axes = [0, 1, 2].map(|axis| (self.y.dim[axis], strides(axis)));
        // Axes of one entry go first, where nothing is merged with them.
        axes.sort_by_key(|(len, strides)| (*len > 1, std::cmp::Reverse(strides[0].unsigned_abs())));
        for outer in [1, 1, 0] {
            let ((count, apart), (len, near)) = (axes[outer], axes[outer + 1]);
            let follow = |k: usize| apart[k] == near[k].wrapping_mul(len as isize);
            if count > 1 && (0..7).all(follow) {
                axes[outer + 1].0 = count * len;
                axes[..=outer].rotate_right(1);
                axes[0] = (1, [0; 7]);
            }
        }
        let dim = Ix3(axes[0].0, axes[1].0, axes[2].0);
        let of =
            |k: usize| Ix3(axes[0].1[k] as usize, axes[1].1[k] as usize, axes[2].1[k] as usize);
        (self.y.dim, self.y.strides) = (dim, of(0));
        let set = |window: &mut Window<&'a dyn Memory, Ix3>, k| {
            (window.dim, window.strides) = (dim, of(k));
        };
        for (k, operand) in [(1, &mut self.x), (2, &mut self.z)] {
            operand.iter_mut().for_each(|window| set(window, k));
        }
        for (k, factor) in [(3, &mut self.alpha), (5, &mut self.beta)] {
            match factor {
                Scalar::Number(_) => {}
                Scalar::Device { of, .. } => set(of, k),
                Scalar::Quotient { of, by, .. } => {
                    set(of, k);
                    set(by, k + 1);
                }
            }
        }
        self
    }

    /// The job without the memory of y, and that memory: for backends whose memory is the host's.
    #[inline]
    pub fn split(self) -> (VectorJob<'a, T, ()>, &'a mut dyn Memory) {
        let VectorJob { step, alpha, beta, x, z, y } = self;
        let Window { memory, first, dim, strides } = y;
        let y = Window { memory: (), first, dim, strides };
        (VectorJob { step, alpha, beta, x, z, y }, memory)
    }
}

impl<T: Element, M> VectorJob<'_, T, M> {
    /// Whether it is one of [`Step::PLAIN`] with one number as its factor.
    #[inline]
    pub fn is_plain(&self) -> bool {
        Step::PLAIN.contains(&self.step) && self.alpha.is_uniform()
    }
}

impl<'a, T: Element> Checked<VectorJob<'a, T>> {
    /// The job without its element type.
    pub fn erase(self) -> AnyVectorJob<'a> {
        T::any::<VectorJobs>(self)
    }
}

/// The array with further axes of one entry before its own.
pub(crate) fn three_axes<M, D: Dimension>(window: Window<M, D>) -> Window<M, Ix3> {
    let (axes, mut dim, mut strides) = (window.dim.ndim(), Ix3(1, 1, 1), Ix3(0, 0, 0));
    assert!(axes <= 3, "an array of {axes} axes");
    for axis in 0..axes {
        (dim[3 - axes + axis], strides[3 - axes + axis]) = (window.dim[axis], window.strides[axis]);
    }
    Window { memory: window.memory, first: window.first, dim, strides }
}

/// The array repeated along its axes of one entry, as ndarray's `broadcast`; `None` if another axis differs.
pub(crate) fn broadcast<M, D: Dimension>(of: Window<M, D>, dim: D) -> Option<Window<M, D>> {
    let mut of = of;
    for axis in 0..dim.ndim() {
        if of.dim[axis] != dim[axis] {
            if of.dim[axis] != 1 {
                return None;
            }
            (of.dim[axis], of.strides[axis]) = (dim[axis], 0);
        }
    }
    Some(of)
}

/// The steps behind a product, on its Y: a bias is added, and a function of each entry is taken.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a> {
    /// What is added, resident and of Y's type, with the shape that Y has as that of a [`Job`](crate::Job): batches, rows, columns.
    pub bias: Option<Window<&'a dyn Memory, Ix3>>,
    /// The function, of a real type.
    pub function: Option<Function>,
}

/// The [`Family`] of [`AnyVectorJob`].
#[derive(Debug)]
pub enum VectorJobs {}

impl Family for VectorJobs {
    type Of<'a, T: Element> = Checked<VectorJob<'a, T>>;
}

/// A [`Checked`] [`VectorJob`] of any element type.
pub type AnyVectorJob<'a> = Any<'a, VectorJobs>;
