//! `gemm-col` and `gemm-strided-col`: several right-hand sides or many matrices, threads along the
//! columns. The text is `gemm_col.k` in the frame of `gemm_frame.k`.

use gemv_core::{Arg, Layout, Params, Values};

use super::col::ONE_ROW;
use crate::gemm::{self, CHOSEN_BYTES, GemmFrame, kept, panel};
use crate::kernel::{Case, Kernel, List, Rule};
use crate::rules::*;
use crate::split;

pub(super) const KERNELS: &[Kernel] = &[COL, STRIDED];

const COL: Kernel = Kernel {
    name: "gemm-col",
    about: "Several right-hand sides or many column-major matrices: threads_k threads share the \
            columns of neighbouring rows, for a panel of columns of X.",
    source: crate::source![
        gemm::GEMM_PRELUDE,
        include_str!("gemm_col.k"),
        gemm::GEMM_FRAME_SOURCE,
        split::REDUCE_SOURCE,
        split::GEMM_REDUCE_SOURCE,
    ],
    args: &[
        threads(256, 512),
        threads_k(16, 1, 64),
        TILE_RHS,
        VEC_OF_ROWS,
        LANES_KEPT,
        SPLIT_K,
        BLOCKS_PER_SM,
    ],
    defines: &[("GENERAL", "0")],
    mixed: true,
    rules: &[BY_COLUMNS, Rule::All(RULES)],
    candidates: &[
        SHAPES,
        List::Value("lanes", kept),
        // A vector of rows beyond the last one would be read by elements.
        List::Value("vec", |of| {
            of.aligned().min(of.get("vec")).min(1 << of.m().max(1).ilog2().min(3))
        }),
        List::Made(smaller),
        List::Made(filled),
        List::Launches,
        List::First(12),
    ],
    plan: |of| frame(of).plan(of),
    ..Kernel::GEMM
};

const STRIDED: Kernel = Kernel {
    name: "gemm-strided-col",
    about: "Several right-hand sides or many matrices of any strides: as gemm-col, by loads of \
            one element.",
    args: &[
        threads(256, 512),
        threads_k(16, 1, 64),
        TILE_RHS,
        ONE_ROW,
        LANES_KEPT,
        SPLIT_K,
        BLOCKS_PER_SM,
    ],
    defines: &[("GENERAL", "1")],
    rules: RULES,
    candidates: &[
        List::Only(|of| of.desc.layout == Layout::Strided),
        SHAPES,
        List::Value("lanes", kept),
        List::Value("vec", |_| 1),
        List::Made(smaller),
        List::Made(filled),
        List::Launches,
        List::First(4),
    ],
    ..COL
};

const TILE_RHS: Arg = tile_rhs(4, Values::Range(1, 16));

const RULES: &[Rule] = &[
    ONE_LOAD,
    LANES_HOLD_COLUMNS,
    Rule::UpTo(&["threads_k"], |of| of.get("lanes").min(of.get("threads"))),
    Rule::AtMost("bytes of sums and of X of a thread", |of| frame(of).held(of), |_| MAX_ACC_BYTES),
    Rule::Local(|of| frame(of).local * of.acc_bytes()),
];

/// The last number is of blocks a multiprocessor; 0 leaves rows whole.
const SHAPES: List = List::Shapes(
    &["threads", "threads_k", "tile_rhs", "vec", "fill"],
    &[
        &[256, 16, 8, 4, 4],
        &[256, 16, 8, 4, 8],
        &[256, 16, 8, 4, 0],
        &[128, 16, 4, 4, 8],
        &[128, 16, 4, 4, 0],
        &[128, 4, 4, 4, 8],
        &[128, 4, 4, 4, 0],
        &[256, 8, 8, 1, 4],
        &[256, 8, 8, 1, 0],
        &[128, 32, 16, 1, 8],
    ],
);

fn frame(of: &Case<'_>) -> GemmFrame {
    let [threads_k, vec, cols] = of.all(["threads_k", "vec", "tile_rhs"]);
    let groups = (of.get("threads") / threads_k).max(1);
    GemmFrame {
        entry: "gemm_col",
        group_rows: vec,
        groups,
        local: (threads_k + 7) * groups * vec * cols,
        accs: (of.get("lanes") / threads_k * vec + 1) * cols,
    }
}

fn filled(of: &Case<'_>) -> Vec<Params> {
    with_splits(of, &[of.get("fill")], frame(of).sets(of))
}

/// A shape for the columns and rows of the problem, made smaller until it is legal.
fn smaller(of: &Case<'_>) -> Vec<Params> {
    let [lanes, threads_k, cols] = of.all(["lanes", "threads_k", "tile_rhs"]);
    // Every load of a segment is in flight at once, of A and of X: few fit in registers.
    let least = (lanes * of.acc_bytes() / 16).clamp(1, lanes);
    let threads_k = threads_k.min((lanes / 4).max(1)).max(least);
    let mut params = of.with([("threads_k", threads_k), ("tile_rhs", panel(of, cols))]);
    loop {
        let of = of.at(&params);
        let [threads, threads_k, cols, vec] = of.all(["threads", "threads_k", "tile_rhs", "vec"]);
        let many = frame(&of).held(&of) > CHOSEN_BYTES;
        params = match () {
            _ if !many && of.fits() => return vec![params],
            _ if many && threads_k < lanes => of.with([("threads_k", threads_k * 2)]),
            _ if vec > 1 => of.with([("vec", vec / 2)]),
            _ if many && cols > 1 => of.with([("tile_rhs", cols.div_ceil(2))]),
            _ if threads > 32 => {
                let half = threads / 2;
                of.with([("threads", half), ("threads_k", threads_k.min(half))])
            }
            _ if cols > 1 => of.with([("tile_rhs", cols.div_ceil(2))]),
            _ => return Vec::new(),
        };
    }
}
