//! `gemm-row` and `gemm-strided`: several right-hand sides or many matrices, sub-warps along the
//! rows. The text is `gemm_row.k` in the frame of `gemm_frame.k`.

use gemv_core::{Arg, Layout, Params, Values};

use crate::gemm::{self, CHOSEN_BYTES, GemmFrame, kept, panel};
use crate::kernel::{Case, Kernel, List, Rule};
use crate::rules::*;
use crate::split;

pub(super) const KERNELS: &[Kernel] = &[ROW, STRIDED];

const ROW: Kernel = Kernel {
    name: "gemm-row",
    about: "Several right-hand sides or many row-major matrices: a sub-warp computes a few rows \
            for a panel of columns, and blocks may split the columns of A.",
    source: crate::source![
        gemm::GEMM_PRELUDE,
        include_str!("gemm_row.k"),
        gemm::GEMM_FRAME_SOURCE,
        split::REDUCE_SOURCE,
        split::GEMM_REDUCE_SOURCE,
    ],
    args: &[
        threads(128, 512),
        SUBWARP_OF_COLUMNS,
        ROWS,
        TILE_RHS,
        VEC_OF_A,
        LANES_KEPT,
        SPLIT_K,
        BLOCKS_PER_SM,
    ],
    defines: &[("GENERAL", "0")],
    mixed: true,
    rules: &[BY_ROWS, Rule::All(RULES)],
    candidates: &[
        SHAPES,
        List::Value("lanes", kept),
        List::Value("vec", |of| of.aligned().min(of.get("lanes"))),
        List::Made(smaller),
        List::Made(filled),
        List::Launches,
        List::First(12),
    ],
    plan: |of| frame(of).plan(of),
    ..Kernel::GEMM
};

const STRIDED: Kernel = Kernel {
    name: "gemm-strided",
    about: "Several right-hand sides or many matrices of any strides: as gemm-row, by loads of \
            one element.",
    args: &[
        threads(128, 512),
        SUBWARP_OF_COLUMNS,
        ROWS,
        TILE_RHS,
        Arg { about: "Elements of one load of A.", values: Values::OneOf(&[1]), ..VEC_OF_A },
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
        List::First(6),
    ],
    ..ROW
};

const ROWS: Arg = rows("Rows that a sub-warp computes at a time.", 8);
const TILE_RHS: Arg = tile_rhs(4, Values::Range(1, 16));

const RULES: &[Rule] = &[
    ONE_LOAD,
    LANES_HOLD_COLUMNS,
    Rule::UpTo(&["subwarp", "vec"], |of| of.get("lanes")),
    Rule::AtMost("bytes of sums and of X of a thread", |of| frame(of).held(of), |_| MAX_ACC_BYTES),
    Rule::Local(|of| frame(of).local * of.acc_bytes()),
];

/// The last number is of blocks a multiprocessor; 0 leaves rows whole.
const SHAPES: List = List::Shapes(
    &["threads", "subwarp", "rows", "tile_rhs", "fill"],
    &[
        &[128, 32, 2, 8, 4],
        &[128, 32, 2, 8, 8],
        &[128, 32, 2, 8, 0],
        &[128, 16, 1, 4, 8],
        &[128, 16, 1, 4, 4],
        &[128, 16, 1, 4, 0],
        &[256, 32, 1, 8, 4],
        &[128, 8, 1, 8, 4],
        &[128, 32, 4, 4, 4],
        &[64, 16, 2, 16, 8],
    ],
);

fn frame(of: &Case<'_>) -> GemmFrame {
    let [threads, subwarp, rows, tile_rhs] = of.all(["threads", "subwarp", "rows", "tile_rhs"]);
    let (groups, held) = (threads / subwarp * rows, subwarp * of.get("vec"));
    let outputs = groups * tile_rhs;
    GemmFrame {
        entry: "gemm_row",
        group_rows: 1,
        groups,
        local: held * (outputs + 1) + 7 * outputs,
        accs: (of.get("lanes") / subwarp * rows + of.get("vec")) * tile_rhs,
    }
}

fn filled(of: &Case<'_>) -> Vec<Params> {
    with_splits(of, &[of.get("fill")], frame(of).sets(of))
}

/// A shape for the columns and rows of the problem, made smaller until it is legal.
fn smaller(of: &Case<'_>) -> Vec<Params> {
    let [lanes, vec, subwarp, cols] = of.all(["lanes", "vec", "subwarp", "tile_rhs"]);
    let first = [("subwarp", (lanes / vec).min(subwarp)), ("tile_rhs", panel(of, cols))];
    let mut params = of.with(first);
    loop {
        let of = of.at(&params);
        let [threads, subwarp, rows, cols] = of.all(["threads", "subwarp", "rows", "tile_rhs"]);
        let many = frame(&of).held(&of) > CHOSEN_BYTES;
        params = match () {
            _ if !many && of.fits() => return vec![params],
            _ if rows > 1 => of.with([("rows", rows / 2)]),
            _ if many && subwarp < 32 && subwarp * vec < lanes => {
                of.with([("subwarp", subwarp * 2)])
            }
            _ if many && cols > 1 => of.with([("tile_rhs", cols.div_ceil(2))]),
            _ if threads > 32 => of.with([("threads", threads / 2)]),
            _ if cols > 1 => of.with([("tile_rhs", cols.div_ceil(2))]),
            _ => return Vec::new(),
        };
    }
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype};

    use super::*;
    use crate::{Caps, Language};

    #[test]
    fn accumulators_and_loads_have_limits() {
        let mut caps = Caps::new(Language::Cuda);
        (caps.max_group, caps.local_bytes) = (1024, 48 << 10);
        let desc = Desc { rhs: 8, ..Desc::of(Dtype::F32, Layout::Row, (100, 1000), 4) };
        for (text, part) in [
            ("gemm-row tile_rhs=16 rows=8", "bytes of sums and of X"),
            ("gemm-row vec=8 subwarp=4", "vec=8 is more than 4"),
            ("gemm-row lanes=16", "lanes are fewer than columns"),
            ("gemm-row subwarp=32 vec=4", "subwarp=32 times vec=4 is more than 64"),
            ("gemm-row threads=512 subwarp=32 tile_rhs=16 rows=2", "local memory"),
        ] {
            let why = ROW.fits(&desc, &text.parse().unwrap(), &caps).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
