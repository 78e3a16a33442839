//! `gemm-row` and `gemm-strided`: several right-hand sides or many matrices, sub-warps along the
//! rows. The text is `gemm_row.k` in the frame of `gemm_frame.k`.

use gemv_core::{Arg, Desc, Layout, Params, Values};

use crate::gemm::{self, CHOSEN_BYTES, GemmFrame, KEPT, TILE_RHS, keeps_enough, kept};
use crate::kernel::{Caps, Kernel, Plan, Signature, value};
use crate::rules::{BLOCKS_PER_SM, SPLIT_K, aligned_vec, for_layout, one_load};
use crate::split;

pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "gemm-row",
        about: "Several right-hand sides or many row-major matrices: a sub-warp computes a few rows \
                for a panel of columns, and blocks may split the columns of A.",
        source: SOURCE,
        args: &[THREADS, SUBWARP, ROWS, TILE_RHS, VEC, KEPT, SPLIT_K, BLOCKS_PER_SM],
        defines: &[("GENERAL", "0")],
        signature: Signature::Gemm,
        mixed: true,
        ordered: true,
        candidates: |desc, caps| match desc.layout {
            Layout::Row => candidates("gemm-row", desc, caps, aligned_vec(desc), 12),
            _ => Vec::new(),
        },
        legal: |desc, params, caps| legal(desc, params, caps, Some(Layout::Row)),
        plan,
    },
    Kernel {
        name: "gemm-strided",
        about: "Several right-hand sides or many matrices of any strides: as gemm-row, by loads of \
                one element.",
        source: SOURCE,
        args: &[THREADS, SUBWARP, ROWS, TILE_RHS, ONE, KEPT, SPLIT_K, BLOCKS_PER_SM],
        defines: &[("GENERAL", "1")],
        signature: Signature::Gemm,
        mixed: true,
        ordered: true,
        candidates: |desc, caps| match desc.layout {
            Layout::Strided => candidates("gemm-strided", desc, caps, 1, 6),
            _ => Vec::new(),
        },
        legal: |desc, params, caps| legal(desc, params, caps, None),
        plan,
    },
];

const SOURCE: &str = crate::source![
    gemm::GEMM_PRELUDE,
    include_str!("gemm_row.k"),
    gemm::GEMM_FRAME_SOURCE,
    split::REDUCE_SOURCE,
    split::GEMM_REDUCE_SOURCE,
];

const THREADS: Arg = Arg {
    name: "threads",
    about: "Threads of a block.",
    values: Values::Powers(32, 512),
    default: 128,
    define: Some("THREADS"),
};
const SUBWARP: Arg = Arg {
    name: "subwarp",
    about: "Threads of a sub-warp, which share the columns of a row.",
    values: Values::Powers(1, 32),
    default: 16,
    define: Some("SUBWARP"),
};
const ROWS: Arg = Arg {
    name: "rows",
    about: "Rows that a sub-warp computes at a time.",
    values: Values::Powers(1, 8),
    default: 1,
    define: Some("ROWS"),
};
const VEC: Arg = Arg {
    name: "vec",
    about: "Elements of one load of A, at most 16 bytes.",
    values: Values::Powers(1, 8),
    default: 1,
    define: Some("VEC"),
};
const ONE: Arg = Arg { about: "Elements of one load of A.", values: Values::OneOf(&[1]), ..VEC };
const ARGS: &[Arg] = KERNELS[0].args;

fn frame(params: &Params) -> GemmFrame {
    let get = |name| u64::from(value(ARGS, params, name));
    let (threads, held) = (get("threads"), get("subwarp") * get("vec"));
    let groups = threads / get("subwarp") * get("rows");
    let outputs = groups * get("tile_rhs");
    GemmFrame {
        args: ARGS,
        entry: "gemm_row",
        group_rows: 1,
        groups,
        local: held * (outputs + 1) + 7 * outputs,
        accs: (get("lanes") / get("subwarp") * get("rows") + get("vec")) * get("tile_rhs"),
    }
}

fn legal(desc: &Desc, params: &Params, caps: &Caps, layout: Option<Layout>) -> Result<(), String> {
    for_layout(desc, layout)?;
    let get = |name| value(ARGS, params, name);
    let (subwarp, vec, lanes) = (get("subwarp"), get("vec"), get("lanes"));
    one_load(desc, vec)?;
    keeps_enough(desc, lanes)?;
    if subwarp * vec > lanes {
        return Err(format!(
            "subwarp={subwarp} threads with vec={vec} are more than {lanes} lanes"
        ));
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
    let vec = vec.min(lanes);
    let layout = (kernel == "gemm-row").then_some(Layout::Row);
    let mut all = Vec::new();
    for (threads, subwarp, rows, cols, fills) in [
        (128, 32, 2, 8, &[4, 8, 0][..]),
        (128, 16, 1, 4, &[8, 4, 0]),
        (256, 32, 1, 8, &[4]),
        (128, 8, 1, 8, &[4]),
        (128, 32, 4, 4, &[4]),
        (64, 16, 2, 16, &[8]),
    ] {
        let mut shape = (threads, (lanes / vec).min(subwarp), rows, gemm::panel(desc, cols));
        let params = loop {
            let (threads, subwarp, rows, cols) = shape;
            let params = Params::new(kernel).with("threads", threads).with("subwarp", subwarp);
            let params = params.with("rows", rows).with("tile_rhs", cols).with("vec", vec);
            let params = params.with("lanes", lanes);
            let accs = frame(&params).accs * desc.vectors.acc_bytes() as u64;
            if accs <= CHOSEN_BYTES && legal(desc, &params, caps, layout).is_ok() {
                break Some(params);
            }
            shape = match shape {
                (t, s, r, c) if r > 1 => (t, s, r / 2, c),
                (t, s, r, c) if accs > CHOSEN_BYTES && s < 32 && s * vec < lanes => {
                    (t, s * 2, r, c)
                }
                (t, s, r, c) if c > 1 && accs > CHOSEN_BYTES => (t, s, r, c.div_ceil(2)),
                (t, s, r, c) if t > 32 => (t / 2, s, r, c),
                (t, s, r, c) if c > 1 => (t, s, r, c.div_ceil(2)),
                _ => break None,
            };
        };
        let Some(params) = params else { continue };
        all.extend(frame(&params).with_splits(params, fills, desc, caps));
    }
    let plan = |p: &Params| plan(desc, p, caps);
    crate::rules::distinct(all, most, |p| legal(desc, p, caps, layout), plan)
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

    use super::*;

    #[test]
    fn accumulators_and_loads_have_limits() {
        let mut caps = Caps::new(crate::Language::Cuda);
        (caps.max_group, caps.local_bytes) = (1024, 48 << 10);
        let desc = Desc { rhs: 8, ..Desc::of(Dtype::F32, Layout::Row, (100, 1000), 4) };
        for (text, part) in [
            ("gemm-row tile_rhs=16 rows=8", "bytes of sums and of X"),
            ("gemm-row vec=8 subwarp=4", "more than 4, the elements"),
            ("gemm-row lanes=16", "lanes=16 are fewer than the 64 of 1000 columns"),
            ("gemm-row subwarp=32 vec=4", "more than 64 lanes"),
            ("gemm-row threads=512 subwarp=32 tile_rhs=16 rows=2", "local memory"),
        ] {
            let why = KERNELS[0].fits(&desc, &text.parse().unwrap(), &caps).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
