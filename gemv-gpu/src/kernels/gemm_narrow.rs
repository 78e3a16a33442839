//! `gemm-narrow`: several right-hand sides of one matrix of few columns, a thread a row. The text is
//! `gemm_narrow.k`.

use gemv_core::{Layout, Values};

use crate::gemm::{self, panel};
use crate::kernel::{Case, Kernel, List, Rule};
use crate::launch::Launch;
use crate::rules::*;

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

const KERNEL: Kernel = Kernel {
    name: "gemm-narrow",
    about: "Several right-hand sides of a matrix of at most 16 columns and any strides: a thread \
            computes whole rows for a panel of columns of X, which stays in registers.",
    source: crate::source![gemm::GEMM_PRELUDE, include_str!("gemm_narrow.k")],
    args: &[
        compiled("threads", "Threads of a block.", Values::OneOf(THREADS), 64, "THREADS"),
        rows("Rows that a thread computes.", 8),
        compiled("cols", "Most columns of A.", Values::Range(1, MOST as u32), 4, "COLS"),
        compiled(
            "tile_rhs",
            "Columns of X that a thread multiplies its rows with; the others have threads of their own.",
            Values::Range(1, 8),
            4,
            "TILE_RHS",
        ),
        compiled(
            "vec",
            "Elements of one load of A, at most 16 bytes; rows that no vector begins are read by elements.",
            Values::Powers(1, 8),
            1,
            "VEC",
        ),
    ],
    rules: &[
        ONE_MATRIX,
        Rule::Columns(1..=MOST),
        Rule::AtMost("columns", |of| of.n(), |of| of.get("cols")),
        ONE_LOAD,
        Rule::Holds(
            |of| of.get("vec") == 1 || of.desc.layout == Layout::Row,
            "vec=2 or more is for the layout row",
        ),
        Rule::UpTo(&["vec"], |of| of.get("cols")),
        Rule::AtMost("panels of X", panels, |of| of.get("threads")),
        Rule::AtMost(
            "bytes of A, X and Y of a thread",
            |of| held(of, of.get("tile_rhs")),
            |_| MAX_BYTES,
        ),
    ],
    candidates: &[
        List::Only(|of| of.rhs() > 1),
        List::Shapes(
            &["threads", "rows", "tile_rhs"],
            &[
                // Words of 16 bytes of Y, or of 8 for elements of 2 bytes.
                &[128, 2, 4],
                &[128, 1, 4],
                &[256, 4, 4],
                &[128, 2, 8],
                // A thread for each entry of Y: whole warps write whole rows.
                &[0, 2, 1],
                &[128, 2, 2],
            ],
        ),
        List::Value("threads", |of| match of.get("threads") {
            0 => THREADS
                .iter()
                .rev()
                .map(|t| u64::from(*t))
                .find(|t| *t <= 32 * of.rhs().min(16))
                .unwrap_or(32),
            threads => threads,
        }),
        List::Value("cols", |of| of.n()),
        List::Value("vec", |of| match of.desc.layout {
            Layout::Row => of.aligned().min(1 << of.n().ilog2()),
            _ => 1,
        }),
        List::Value("tile_rhs", |of| {
            let whole = panel(of, 6).min(of.get("tile_rhs"));
            let mut halved = std::iter::successors(Some(whole), |cols| Some(cols.div_ceil(2)));
            halved.find(|cols| *cols == 1 || held(of, *cols) <= CHOSEN_BYTES).unwrap_or(1)
        }),
        List::Launches,
        List::First(6),
    ],
    plan: |of| {
        let threads = of.get("threads");
        let rows = (threads / panels(of).max(1)).max(1) * of.get("rows");
        // A block that has further rows loads X once.
        let most = u64::from(of.caps.units.max(1)) * (RESIDENT / threads).max(1);
        Launch::new("gemm_narrow", of.m().div_ceil(rows).min(most), threads).into()
    },
    ..Kernel::GEMM
};

const THREADS: &[u32] = &[32, 64, 96, 128, 192, 256, 384, 512];
/// Columns of the widest matrix.
const MOST: u64 = 16;
/// Threads that a compute unit has room for.
const RESIDENT: u64 = 2048;

/// Threads that share a row.
fn panels(of: &Case<'_>) -> u64 {
    of.rhs().div_ceil(of.get("tile_rhs"))
}

/// Bytes of A, X and Y that a thread may hold: more are spilled to memory.
const MAX_BYTES: u64 = 640;
/// As many as a candidate has.
const CHOSEN_BYTES: u64 = 340;

/// Bytes of A, X and Y that a thread holds, with so many columns of X.
fn held(of: &Case<'_>, rhs: u64) -> u64 {
    let [rows, cols] = of.all(["rows", "cols"]);
    (rows * cols + rhs * cols + rows * rhs) * of.acc_bytes()
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Params};

    use super::*;
    use crate::Caps;

    fn caps() -> Caps {
        let mut caps = Caps::new(crate::Language::Cuda);
        (caps.max_group, caps.local_bytes, caps.fp64) = (1024, 48 << 10, true);
        caps
    }

    #[test]
    fn narrow_matrices_have_candidates_that_fit() {
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                for n in [1, 2, 3, 7, 8, 16, 17] {
                    for rhs in [2, 3, 8, 9, 64, 5000] {
                        let one = Desc::of(dtype, layout, (1 << 20, n), 4);
                        let desc = Desc { rhs, ..one };
                        let all = KERNEL.candidates(&desc, &caps());
                        assert_eq!(all.is_empty(), n > 16 || rhs > 4096, "{desc}");
                        for params in all {
                            KERNEL.fits(&desc, &params, &caps()).unwrap();
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc { rhs: 3, ..Desc::of(Dtype::F64, Layout::Col, (1000, 3), 4) };
        let row = Desc { layout: Layout::Row, ..desc };
        for (desc, text, part) in [
            (Desc { batch: 2, ..desc }, "gemm-narrow", "for one matrix"),
            (Desc { n: 5, ..desc }, "gemm-narrow", "5 columns are more than 4"),
            (Desc { n: 0, ..desc }, "gemm-narrow", "not 0"),
            (desc, "gemm-narrow vec=2", "for the layout row"),
            (row, "gemm-narrow vec=4", "vec=4 is more than 2"),
            (row, "gemm-narrow vec=2 cols=1", "3 columns are more than 1"),
            (Desc { n: 1, ..row }, "gemm-narrow vec=2 cols=1", "vec=2 is more than 1"),
            (Desc { rhs: 65, ..desc }, "gemm-narrow threads=64 tile_rhs=1", "65 panels"),
            (desc, "gemm-narrow cols=16 tile_rhs=8", "bytes of A, X and Y"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
