//! `vector`: elementwise steps, one entry point each, and one for several of them. The text is `vector.k`.

use gemv_core::{Arg, Params, Step, Values};

use crate::kernel::{Caps, Kernel, Launch, MAX_GRID, Plan, Signature};

/// The kernel of [`Backend::vector`](gemv_core::Backend::vector): of no product, so that no list of
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
    source: include_str!("vector.k"),
    args: &[Arg {
        name: "threads",
        about: "Threads of a block.",
        values: Values::Range(1, 1024),
        default: 256,
        define: Some("THREADS"),
    }],
    defines: &[],
    // Not looked at: it is legal for no product.
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates: |_, _| Vec::new(),
    legal: |_, _, _| Err("the kernel is for no product".into()),
    plan: |_, _, _| Plan::default(),
};

/// The parameters of [`VECTOR`] on such a device.
pub fn vector_params(caps: &Caps) -> Params {
    Params::new(VECTOR.name).with("threads", caps.max_group.clamp(1, 256))
}

/// The launch of a step whose y has this shape.
///
/// ```
/// use gemv_core::Step;
/// use gemv_gpu::{Caps, Language, vector_launch};
///
/// let launch = vector_launch(Step::Axpy, [1, 1, 1000], &Caps::new(Language::Cuda));
/// assert_eq!((launch.entry, launch.grid, launch.block), ("vector_axpy", [16, 1, 1], [64, 1, 1]));
/// ```
pub fn vector_launch(step: Step, [ni, nj, nk]: [usize; 3], caps: &Caps) -> Launch {
    let threads = VECTOR.arg(&vector_params(caps), "threads");
    // Enough to fill the device; each thread takes what is left of more.
    let most = if caps.cpu { 4 } else { 16 } * u64::from(caps.units.max(16));
    let blocks = (nk as u64).div_ceil(threads.into()).min(most.min(MAX_GRID));
    let rows = (ni as u64).saturating_mul(nj as u64).min(65_535);
    let grid = [blocks, rows, 1];
    Launch { grid, ..Launch::new(entry(step), blocks, threads).waiting() }
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

fn entry(step: Step) -> &'static str {
    match step {
        Step::Fill => "vector_fill",
        Step::Assign => "vector_assign",
        Step::Scal => "vector_scal",
        Step::Axpy => "vector_axpy",
        Step::Xpay => "vector_xpay",
        Step::Product => "vector_product",
        Step::AddProduct => "vector_add_product",
        Step::Quotient => "vector_quotient",
        Step::Sqrt => "vector_sqrt",
        Step::Norm => "vector_norm",
    }
}
