//! `gemm-narrow`: several right-hand sides of one matrix of few columns, a thread a row. The text is
//! `gemm_narrow.k`.

use gemv_core::{Arg, Desc, Layout, Params, Values};

use crate::gemm;
use crate::kernel::{Caps, Kernel, Launch, Plan, Signature, value};
use crate::rules::{self, aligned_vec, one_load};

pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "gemm-narrow",
    about: "Several right-hand sides of a matrix of at most 16 columns and any strides: a thread \
            computes whole rows for a panel of columns of X, which stays in registers.",
    source: crate::source![gemm::GEMM_PRELUDE, include_str!("gemm_narrow.k")],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
}];

const ARGS: &[Arg] = &[
    Arg {
        name: "threads",
        about: "Threads of a block.",
        values: Values::OneOf(&[32, 64, 96, 128, 192, 256, 384, 512]),
        default: 64,
        define: Some("THREADS"),
    },
    Arg {
        name: "rows",
        about: "Rows that a thread computes.",
        values: Values::Powers(1, 8),
        default: 1,
        define: Some("ROWS"),
    },
    Arg {
        name: "cols",
        about: "Most columns of A.",
        values: Values::Range(1, MOST as u32),
        default: 4,
        define: Some("COLS"),
    },
    Arg {
        name: "tile_rhs",
        about: "Columns of X that a thread multiplies its rows with; the others have threads of their own.",
        values: Values::Range(1, 8),
        default: 4,
        define: Some("TILE_RHS"),
    },
    Arg {
        name: "vec",
        about: "Elements of one load of A, at most 16 bytes; rows that no vector begins are read by elements.",
        values: Values::Powers(1, 8),
        default: 1,
        define: Some("VEC"),
    },
];

/// Columns of the widest matrix.
const MOST: usize = 16;
/// Threads that a compute unit has room for.
const RESIDENT: u32 = 2048;
/// Bytes of A, X and Y that a thread may hold: more are spilled to memory.
const MAX_BYTES: u64 = 640;
/// As many as a candidate has.
const CHOSEN_BYTES: u64 = 340;

/// Threads that share a row.
fn panels(desc: &Desc, params: &Params) -> u64 {
    (desc.rhs as u64).div_ceil(value(ARGS, params, "tile_rhs").into())
}

/// Bytes of A, X and Y that a thread holds.
fn held(desc: &Desc, params: &Params) -> u64 {
    let get = |name| u64::from(value(ARGS, params, name));
    let (rows, cols, rhs) = (get("rows"), get("cols"), get("tile_rhs"));
    (rows * cols + rhs * cols + rows * rhs) * desc.vectors.acc_bytes() as u64
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(ARGS, params, name);
    let (threads, cols, vec) = (get("threads"), get("cols"), get("vec"));
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    if desc.n == 0 || desc.n > cols as usize {
        let n = desc.n;
        return Err(format!("the kernel is for 1 to cols={cols} columns, not for {n}"));
    }
    one_load(desc, vec)?;
    if vec > 1 && desc.layout != Layout::Row {
        return Err(format!("vec={vec} is for the layout row"));
    }
    if vec > cols {
        return Err(format!("vec={vec} is more than cols={cols}"));
    }
    let panels = panels(desc, params);
    if panels > threads.into() {
        return Err(format!("{panels} panels of X are more than threads={threads}"));
    }
    let held = held(desc, params);
    if held > MAX_BYTES {
        return Err(format!("a thread holds {held} bytes of A, X and Y, more than {MAX_BYTES}"));
    }
    rules::limits(&plan(desc, params, caps), caps, 0)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let threads = value(ARGS, params, "threads");
    let slots = (u64::from(threads) / panels(desc, params).max(1)).max(1);
    let rows = slots * u64::from(value(ARGS, params, "rows"));
    // A block that has further rows loads X once.
    let most = u64::from(caps.units.max(1)) * u64::from((RESIDENT / threads).max(1));
    let launch = Launch::new("gemm_narrow", (desc.m as u64).div_ceil(rows).min(most), threads);
    Plan { launches: vec![launch], workspace: 0, counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.rhs < 2 || desc.batch != 1 || desc.n == 0 || desc.n > MOST {
        return Vec::new();
    }
    let cols = desc.n as u32;
    let vec = match desc.layout {
        Layout::Row => aligned_vec(desc).min(1 << cols.ilog2()),
        _ => 1,
    };
    let whole = gemm::panel(desc, 6).min(8);
    let mut all = Vec::new();
    for (threads, rows, tile_rhs) in [
        // Words of 16 bytes of Y, or of 8 for elements of 2 bytes.
        (128, 2, whole.min(4)),
        (128, 1, whole.min(4)),
        (256, 4, whole.min(4)),
        (128, 2, whole),
        // A thread for each entry of Y: whole warps write whole rows.
        (32 * desc.rhs.min(16) as u32, 2, 1),
        (128, 2, 2),
    ] {
        let threads = [512, 384, 256, 192, 128, 96, 64, 32].into_iter().find(|t| *t <= threads);
        let mut tile_rhs = tile_rhs;
        let of = |tile_rhs| {
            let params = Params::new("gemm-narrow").with("threads", threads.unwrap_or(32));
            params.with("rows", rows).with("cols", cols).with("tile_rhs", tile_rhs).with("vec", vec)
        };
        while tile_rhs > 1 && held(desc, &of(tile_rhs)) > CHOSEN_BYTES {
            tile_rhs = tile_rhs.div_ceil(2);
        }
        all.push(of(tile_rhs));
    }
    let (legal, plan) = (|p: &Params| legal(desc, p, caps), |p: &Params| plan(desc, p, caps));
    rules::distinct(all, 6, legal, plan)
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

    use super::*;

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
                        let all = candidates(&desc, &caps());
                        assert_eq!(all.is_empty(), n > 16 || rhs > 4096, "{desc}");
                        for params in all {
                            KERNELS[0].fits(&desc, &params, &caps()).unwrap();
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
            (Desc { n: 5, ..desc }, "gemm-narrow", "not for 5"),
            (Desc { n: 0, ..desc }, "gemm-narrow", "not for 0"),
            (desc, "gemm-narrow vec=2", "for the layout row"),
            (row, "gemm-narrow vec=4", "more than 2, the elements"),
            (row, "gemm-narrow vec=2 cols=1", "not for 3"),
            (Desc { n: 1, ..row }, "gemm-narrow vec=2 cols=1", "more than cols=1"),
            (Desc { rhs: 65, ..desc }, "gemm-narrow threads=64 tile_rhs=1", "65 panels"),
            (desc, "gemm-narrow cols=16 tile_rhs=8", "bytes of A, X and Y"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNELS[0].fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
