//! `read`: reads the matrix once and multiplies nothing. The text is `read.k`.

use gemv_core::{Arg, Dtype, Layout, Params, Values};

use crate::caps::Caps;
use crate::kernel::{Kernel, Rule};
use crate::launch::Launch;

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "read",
    about: "Reads the matrix once and multiplies nothing: the bandwidth that a product can reach.",
    source: include_str!("read.k"),
    args: ARGS,
    ordered: false,
    rules: &[
        Rule::For(
            |desc, _| (desc.dtype, desc.layout) == (Dtype::F32, Layout::Row),
            "bandwidth is read from a row-major f32 matrix",
        ),
        Rule::For(
            |desc, _| desc.align >= 4 && (desc.m * desc.n).is_multiple_of(4),
            "bandwidth is read in whole vectors of 16 bytes",
        ),
    ],
    // Candidates are Backend::read_params alone.
    plan: |of| {
        let threads = of.get("threads");
        let most = (of.m() * of.n()).div_ceil(4 * threads).max(1);
        let blocks = of.get("blocks_per_sm") * u64::from(of.caps.units.max(1));
        Launch::new("read_bandwidth", blocks.min(most), threads).into()
    },
    ..Kernel::GEMV
}];

const ARGS: &[Arg] = &[
    Arg {
        name: "threads",
        about: "Threads of a block.",
        values: Values::Range(1, 4096),
        default: 256,
        define: Some("THREADS"),
    },
    Arg {
        name: "unroll",
        about: "Loads of 16 bytes that a thread has in flight.",
        values: Values::Range(1, 16),
        default: 4,
        define: Some("UNROLL"),
    },
    Arg {
        name: "contiguous",
        about: "1: each block reads one contiguous piece of A. 0: blocks read A in a grid-stride \
                loop.",
        values: Values::OneOf(&[0, 1]),
        default: 1,
        define: Some("CONTIGUOUS"),
    },
    Arg {
        name: "blocks_per_sm",
        about: "Blocks for each multiprocessor.",
        values: Values::Range(1, 1024),
        default: 8,
        define: None,
    },
];

/// The parameters of `read` that are worth trying on such a device; the fastest is its read
/// bandwidth.
///
/// ```
/// use gemv_gpu::{Caps, Language, read_params};
/// let all = read_params(&Caps::new(Language::OpenCl)); // at most 64 threads a block
/// assert!(all.iter().all(|p| !p.keeps_order() && p.get_or("threads", 1) <= 64));
/// ```
pub fn read_params(caps: &Caps) -> Vec<Params> {
    let params = |threads, blocks_per_sm| {
        Params::new("read").with("threads", threads).with("blocks_per_sm", blocks_per_sm)
    };
    let all = match caps.cpu {
        true => vec![params(1, 1), params(1, 4), params(16, 4), params(64, 8)],
        // The fastest differs from a megabyte to a gigabyte.
        false => {
            let mut all = Vec::new();
            for unroll in [4, 8] {
                for threads in [128, 256, 512] {
                    for blocks_per_sm in [1, 2, 4, 8] {
                        let params = params(threads, blocks_per_sm);
                        all.push(params.with("unroll", unroll).with("contiguous", 0));
                    }
                }
            }
            all
        }
    };
    all.into_iter().filter(|p| p.get_or("threads", 1) <= caps.max_group).collect()
}
