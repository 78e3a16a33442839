//! `gemm-col` and `gemm-strided-col`: several right-hand sides or many matrices, threads along the
//! columns. The text is `gemm_col.k` in the frame of `gemm_frame.k`.

use gemv_core::{Arg, Desc, Layout, Params, Values};

use crate::gemm::{self, CHOSEN_BYTES, GemmFrame, KEPT, TILE_RHS, keeps_enough, kept};
use crate::kernel::{Caps, Kernel, Plan, Signature, value};
use crate::rules::{BLOCKS_PER_SM, SPLIT_K, aligned_vec, for_layout, one_load};
use crate::split;

pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "gemm-col",
        about: "Several right-hand sides or many column-major matrices: threads_k threads share the \
                columns of neighbouring rows, for a panel of columns of X.",
        source: SOURCE,
        args: &[THREADS, THREADS_K, TILE_RHS, VEC, KEPT, SPLIT_K, BLOCKS_PER_SM],
        defines: &[("GENERAL", "0")],
        signature: Signature::Gemm,
        mixed: true,
        ordered: true,
        candidates: |desc, caps| match desc.layout {
            Layout::Col => candidates("gemm-col", desc, caps, aligned_vec(desc).min(4), 12),
            _ => Vec::new(),
        },
        legal: |desc, params, caps| legal(desc, params, caps, Some(Layout::Col)),
        plan,
    },
    Kernel {
        name: "gemm-strided-col",
        about: "Several right-hand sides or many matrices of any strides: as gemm-col, by loads of \
                one element.",
        source: SOURCE,
        args: &[THREADS, THREADS_K, TILE_RHS, ONE, KEPT, SPLIT_K, BLOCKS_PER_SM],
        defines: &[("GENERAL", "1")],
        signature: Signature::Gemm,
        mixed: true,
        ordered: true,
        candidates: |desc, caps| match desc.layout {
            Layout::Strided => candidates("gemm-strided-col", desc, caps, 1, 4),
            _ => Vec::new(),
        },
        legal: |desc, params, caps| legal(desc, params, caps, None),
        plan,
    },
];

const SOURCE: &str = crate::source![
    gemm::GEMM_PRELUDE,
    include_str!("gemm_col.k"),
    gemm::GEMM_FRAME_SOURCE,
    split::REDUCE_SOURCE,
    split::GEMM_REDUCE_SOURCE,
];

const THREADS: Arg = Arg {
    name: "threads",
    about: "Threads of a block.",
    values: Values::Powers(32, 512),
    default: 256,
    define: Some("THREADS"),
};
const THREADS_K: Arg = Arg {
    name: "threads_k",
    about: "Threads of a block that share the columns of the same rows.",
    values: Values::Powers(1, 64),
    default: 16,
    define: Some("THREADS_K"),
};
const VEC: Arg = Arg {
    name: "vec",
    about: "Neighbouring rows of a thread: elements of one load of A, at most 16 bytes.",
    values: Values::Powers(1, 8),
    default: 1,
    define: Some("VEC"),
};
const ONE: Arg = Arg { about: "Rows of a thread.", values: Values::OneOf(&[1]), ..VEC };
const ARGS: &[Arg] = KERNELS[0].args;

fn frame(params: &Params) -> GemmFrame {
    let get = |name| u64::from(value(ARGS, params, name));
    let (threads_k, vec, cols) = (get("threads_k"), get("vec"), get("tile_rhs"));
    let groups = (get("threads") / threads_k).max(1);
    GemmFrame {
        args: ARGS,
        entry: "gemm_col",
        group_rows: vec,
        groups,
        local: (threads_k + 7) * groups * vec * cols,
        accs: (get("lanes") / threads_k * vec + 1) * cols,
    }
}

fn legal(desc: &Desc, params: &Params, caps: &Caps, layout: Option<Layout>) -> Result<(), String> {
    for_layout(desc, layout)?;
    let get = |name| value(ARGS, params, name);
    let (threads, threads_k, lanes) = (get("threads"), get("threads_k"), get("lanes"));
    one_load(desc, get("vec"))?;
    keeps_enough(desc, lanes)?;
    if threads_k > lanes.min(threads) {
        let most = lanes.min(threads);
        return Err(format!("threads_k={threads_k} is more than {most}, the lanes or threads"));
    }
    frame(params).limits(desc, params, caps)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    frame(params).plan(desc, params, caps)
}

/// Block shapes for the columns and rows of the problem, each made smaller until it is legal.
fn candidates(
    kernel: &'static str,
    desc: &Desc,
    caps: &Caps,
    vec: u32,
    most: usize,
) -> Vec<Params> {
    if desc.rhs == 1 && desc.batch == 1 {
        return Vec::new();
    }
    let lanes = kept(desc);
    let layout = (kernel == "gemm-col").then_some(Layout::Col);
    // A vector of rows beyond the last one would be read by elements.
    let vec = vec.min(1 << desc.m.max(1).ilog2().min(3));
    let mut all = Vec::new();
    for (threads, threads_k, cols, vec, fills) in [
        (256, 16, 8, vec, &[4, 8, 0][..]),
        (128, 16, 4, vec, &[8, 0]),
        (128, 4, 4, vec, &[8, 0]),
        (256, 8, 8, 1, &[4, 0]),
        (128, 32, 16, 1, &[8]),
    ] {
        // Every load of a segment is in flight at once, of A and of X: few fit in registers.
        let least = (lanes * desc.vectors.acc_bytes() as u32 / 16).clamp(1, lanes);
        let threads_k = threads_k.min((lanes / 4).max(1)).max(least);
        let mut shape = (threads, threads_k, gemm::panel(desc, cols), vec);
        let params = loop {
            let (threads, threads_k, cols, vec) = shape;
            let params = Params::new(kernel).with("threads", threads).with("threads_k", threads_k);
            let params = params.with("tile_rhs", cols).with("vec", vec).with("lanes", lanes);
            let accs = frame(&params).accs * desc.vectors.acc_bytes() as u64;
            if accs <= CHOSEN_BYTES && legal(desc, &params, caps, layout).is_ok() {
                break Some(params);
            }
            shape = match shape {
                (t, k, c, v) if accs > CHOSEN_BYTES && k < lanes => (t, k * 2, c, v),
                (t, k, c, v) if v > 1 => (t, k, c, v / 2),
                (t, k, c, v) if c > 1 && accs > CHOSEN_BYTES => (t, k, c.div_ceil(2), v),
                (t, k, c, v) if t > 32 => (t / 2, k.min(t / 2), c, v),
                (t, k, c, v) if c > 1 => (t, k, c.div_ceil(2), v),
                _ => break None,
            };
        };
        let Some(params) = params else { continue };
        all.extend(frame(&params).with_splits(params, fills, desc, caps));
    }
    let plan = |p: &Params| plan(desc, p, caps);
    crate::rules::distinct(all, most, |p| legal(desc, p, caps, layout), plan)
}
