//! `vector`: elementwise steps, one entry point each, and one for several of them. The text is `vector.k`. And
//! `elementwise`: functions, and steps whose factors are arrays, with a signature of their own.

use gemv_core::{Arg, Comparison, Dtype, Function, Params, Step, Values};

use crate::caps::Caps;
use crate::kernel::{Kernel, Rule};
use crate::launch::{Launch, MAX_GRID};

/// Words of both.
pub(crate) const STEPS: &str = include_str!("steps.h");

/// The programs of functions.
pub(crate) const FUNCTIONS: &str = include_str!("functions.h");

const THREADS: Arg = Arg {
    name: "threads",
    about: "Threads of a block.",
    values: Values::Range(1, 1024),
    default: 256,
    define: Some("THREADS"),
};

/// The kernel of [plain](gemv_core::Step::PLAIN) steps of [`Backend::vector`](gemv_core::Backend::vector): of no product, so that no list of
/// kernels to choose from has it.
///
/// ```
/// use gemv_core::Dtype;
/// use gemv_gpu::{Caps, Language, VECTOR, vector_params};
///
/// let program = VECTOR.program(Dtype::F32, &vector_params(&Caps::new(Language::Cuda)));
/// assert!(program.source.contains("vector_axpy"));
/// ```
pub static VECTOR: Kernel = Kernel {
    name: "vector",
    about: "Computes each entry of y from those of x, z and y at its place.",
    source: crate::source![STEPS, include_str!("vector.k")],
    args: &[THREADS],
    rules: &[Rule::For(|_, _| false, "the kernel is for no product")],
    ..Kernel::GEMV
};

/// The kernel of all other steps, and of those whose factor is an array. Complex types have the entry points of
/// [`elementwise_steps`] alone.
///
/// ```
/// use gemv_core::{Dtype, Params};
/// use gemv_gpu::ELEMENTWISE;
///
/// let program = ELEMENTWISE.program(Dtype::F32, &Params::new("elementwise"));
/// assert!(program.source.contains("elementwise_gelu"));
/// ```
pub static ELEMENTWISE: Kernel = Kernel {
    name: "elementwise",
    about: "Computes each entry of y from that of x and from factors of its own, or a function of it.",
    source: crate::source![STEPS, FUNCTIONS, include_str!("elementwise.k")],
    ..VECTOR
};

/// The steps that [`ELEMENTWISE`] has for an element type, in the order of their entry points.
pub fn elementwise_steps(dtype: Dtype) -> impl Iterator<Item = Step> {
    let steps = Step::all().filter(|step| step.factors() > 0 || step.takes_y());
    steps.filter(move |step| !(step.is_real() && dtype.is_complex()))
}

/// The parameters of [`VECTOR`] on such a device.
pub fn vector_params(caps: &Caps) -> Params {
    Params::new(VECTOR.name).with("threads", caps.max_group.clamp(1, 256))
}

/// The parameters of [`ELEMENTWISE`] on such a device.
pub fn elementwise_params(caps: &Caps) -> Params {
    Params::new(ELEMENTWISE.name).with("threads", caps.max_group.clamp(1, 256))
}

/// The launch of a plain step whose y has this shape.
///
/// ```
/// use gemv_core::Step;
/// use gemv_gpu::{Caps, Language, vector_launch};
///
/// let launch = vector_launch(Step::Axpy, [1, 1, 1000], &Caps::new(Language::Cuda));
/// assert_eq!((launch.entry, launch.grid, launch.block), ("vector_axpy", [16, 1, 1], [64, 1, 1]));
/// ```
///
/// # Panics
/// Of a step that is not plain.
pub fn vector_launch(step: Step, shape: [usize; 3], caps: &Caps) -> Launch {
    let entry = entries(step).0.unwrap_or_else(|| panic!("{step:?} is not plain"));
    launch(entry, shape, caps)
}

/// The same of [`ELEMENTWISE`].
///
/// ```
/// use gemv_core::{Function, Step};
/// use gemv_gpu::{Caps, Language, elementwise_launch};
///
/// let caps = Caps::new(Language::Cuda);
/// let launch = elementwise_launch(Step::Map(Function::Exp), [1, 1, 1000], &caps);
/// assert_eq!((launch.entry, launch.grid), ("elementwise_exp", [16, 1, 1]));
/// ```
///
/// # Panics
/// Of a step that has neither factors nor another form.
pub fn elementwise_launch(step: Step, shape: [usize; 3], caps: &Caps) -> Launch {
    let entry = entries(step).1.unwrap_or_else(|| panic!("{step:?} is plain"));
    launch(entry, shape, caps)
}

fn launch(entry: &'static str, [ni, nj, nk]: [usize; 3], caps: &Caps) -> Launch {
    let threads = VECTOR.arg(&vector_params(caps), "threads");
    // Enough to fill the device; each thread takes what is left of more.
    let most = if caps.cpu { 4 } else { 16 } * u64::from(caps.units.max(16));
    let blocks = (nk as u64).div_ceil(threads.into()).min(most.min(MAX_GRID));
    let rows = (ni as u64).saturating_mul(nj as u64).min(65_535);
    let grid = [blocks, rows, 1];
    Launch { grid, ..Launch::new(entry, blocks, threads.into()).waiting() }
}

/// The launch of several steps and dot products on operands that have so many bytes of shared memory. All
/// blocks but the first prefetch for the launch behind. For CUDA alone: the other languages have no entry
/// point of this name.
///
/// ```
/// let launch = gemv_gpu::chain_launch(133, 4096);
/// assert_eq!((launch.entry, launch.grid, launch.shared), ("vector_chain", [133, 1, 1], 4096));
/// ```
pub fn chain_launch(blocks: u32, shared: u32) -> Launch {
    Launch { shared, ..Launch::new("vector_chain", blocks.into(), 512).waiting() }
}

/// The entry points of a step in [`VECTOR`] and in [`ELEMENTWISE`].
fn entries(step: Step) -> (Option<&'static str>, Option<&'static str>) {
    let plain = |name| (Some(name), None);
    let both = |name, other| (Some(name), Some(other));
    let other = |name| (None, Some(name));
    match step {
        Step::Fill => both("vector_fill", "elementwise_fill"),
        Step::Assign => plain("vector_assign"),
        Step::Scal => both("vector_scal", "elementwise_scal"),
        Step::Axpy => both("vector_axpy", "elementwise_axpy"),
        Step::Xpay => both("vector_xpay", "elementwise_xpay"),
        Step::Product => plain("vector_product"),
        Step::AddProduct => plain("vector_add_product"),
        Step::Quotient => plain("vector_quotient"),
        Step::Sqrt => plain("vector_sqrt"),
        Step::Norm => plain("vector_norm"),
        Step::Add => other("elementwise_add"),
        Step::Maximum => other("elementwise_maximum"),
        Step::Minimum => other("elementwise_minimum"),
        Step::Clamp => other("elementwise_clamp"),
        Step::Compare(with) => other(match with {
            Comparison::Less => "elementwise_less",
            Comparison::LessEqual => "elementwise_less_equal",
            Comparison::Greater => "elementwise_greater",
            Comparison::GreaterEqual => "elementwise_greater_equal",
            Comparison::Equal => "elementwise_equal",
            Comparison::NotEqual => "elementwise_not_equal",
        }),
        Step::Map(function) => other(match function {
            Function::Abs => "elementwise_abs",
            Function::Recip => "elementwise_recip",
            Function::Relu => "elementwise_relu",
            Function::Exp => "elementwise_exp",
            Function::Ln => "elementwise_ln",
            Function::Tanh => "elementwise_tanh",
            Function::Sigmoid => "elementwise_sigmoid",
            Function::Silu => "elementwise_silu",
            Function::Gelu => "elementwise_gelu",
            Function::GeluTanh => "elementwise_gelu_tanh",
        }),
    }
}

/// The function in `functions.h`.
pub(crate) fn function_name(of: Function) -> &'static str {
    match of {
        Function::Abs => "fn_abs",
        Function::Recip => "fn_recip",
        Function::Relu => "fn_relu",
        Function::Exp => "fn_exp",
        Function::Ln => "fn_ln",
        Function::Tanh => "fn_tanh",
        Function::Sigmoid => "fn_sigmoid",
        Function::Silu => "fn_silu",
        Function::Gelu => "fn_gelu",
        Function::GeluTanh => "fn_gelu_tanh",
    }
}
