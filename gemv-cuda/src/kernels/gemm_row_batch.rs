//! `gemm-row-batch`: many row-major matrices of up to 256 columns; a sub-warp has whole rows.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, value};

use super::rules::{
    LANES_KEPT, TILE_RHS, aligned, blocks, compiled, layout, limits, registers, rows, subwarp,
    threads, vec, widest, words,
};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-row-batch",
    about: "Many row-major matrices of up to 256 columns: a sub-warp computes whole rows with all \
            loads in flight at once.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_row_batch.cu")
    ],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan: |desc, params, _| plan(desc, params),
};

const ARGS: &[Arg] = &[
    threads(128, 256),
    subwarp(1),
    rows("Rows that a sub-warp computes at a time.", 8),
    TILE_RHS,
    vec(4),
    LANES_KEPT,
    compiled(
        "rounds",
        "Rounds of the lanes in which a row fits.",
        Values::Range(1, 4),
        1,
        "ROUNDS",
    ),
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (subwarp, vec, lanes, rounds) = (get("subwarp"), get("vec"), get("lanes"), get("rounds"));
    limits(&[("threads", get("threads"), caps.max_group), ("vec", vec, widest(desc.dtype))])?;
    if subwarp * vec > lanes {
        return Err(format!(
            "subwarp={subwarp} threads with vec={vec} are more than {lanes} lanes"
        ));
    }
    if desc.n == 0 {
        return Err("the kernel is for matrices with columns".into());
    }
    let most = if lanes < LANES as u32 { lanes } else { lanes * rounds };
    if desc.n > most as usize || (lanes < LANES as u32 && rounds > 1) {
        let n = desc.n;
        return Err(format!("lanes={lanes} in rounds={rounds} do not fit rows of {n} columns"));
    }
    let (slots, rows) = (lanes / (subwarp * vec), get("rows"));
    let load = (vec * desc.dtype.bytes() as u32).div_ceil(4);
    // A and X, sums, and addresses.
    let held = 2 * rows * rounds * slots * load + slots * vec * words(desc.dtype) + 6 * rows;
    registers(held, 128)?;
    blocks(&plan(desc, params))
}

fn plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let rows = (desc.m as u64).saturating_mul(desc.batch as u64);
    let sets = rows.div_ceil((get("threads") / get("subwarp")).max(1) * get("rows"));
    let blocks = sets.saturating_mul((desc.rhs as u64).div_ceil(get("tile_rhs")));
    let launch = Launch::new("gemm_row_batch", blocks, value(ARGS, params, "threads")).waiting();
    Plan { launches: vec![launch], workspace: 0, counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Row || desc.n == 0 || desc.n > SEGMENT || desc.batch == 1 {
        return Vec::new();
    }
    let lanes = desc.n.next_power_of_two().min(LANES) as u32;
    let rounds = desc.n.div_ceil(LANES) as u32;
    let rhs = desc.rhs.clamp(1, 1 << 20) as u32;
    let cols = rhs.div_ceil(rhs.div_ceil(8));
    let mut all = Vec::new();
    for vec in [aligned(desc), aligned(desc) / 2, 1] {
        for (threads, rows, fewer) in [
            (128, 2, 2),
            (128, 1, 2),
            (128, 4, 2),
            (128, 1, 4),
            (128, 2, 4),
            (256, 2, 2),
            (128, 8, 1),
            (128, 4, 1),
            (128, 2, 1),
        ] {
            let vec = vec.clamp(1, lanes);
            let subwarp = (lanes / vec / fewer).clamp(1, 32);
            let params = Params::new(KERNEL.name).with("threads", threads);
            let params = params.with("subwarp", subwarp).with("rows", rows).with("tile_rhs", cols);
            let params = params.with("vec", vec).with("lanes", lanes).with("rounds", rounds);
            if !all.contains(&params) && KERNEL.fits(desc, &params, caps).is_ok() {
                all.push(params);
            }
        }
    }
    all.truncate(16);
    all
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

    use super::*;
    use crate::testing::caps;

    #[test]
    fn candidates_are_legal_and_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for n in [1, 2, 4, 5, 16, 31, 32, 33, 64, 65, 200, 256, 257] {
                for (m, rhs, batch) in [(4, 1, 1000), (64, 3, 70_000), (1, 64, 2)] {
                    let one = Desc::of(dtype, Layout::Row, (m, n), 4);
                    let desc = Desc { rhs, batch, ..one };
                    let all = candidates(&desc, &caps());
                    assert_eq!(!all.is_empty(), n <= 256, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc { batch: 9, ..Desc::of(Dtype::F32, Layout::Row, (100, 100), 4) };
        for (desc, text, part) in [
            (desc, "gemm-row-batch lanes=32 subwarp=4", "do not fit rows of 100"),
            (desc, "gemm-row-batch", "do not fit rows of 100"),
            (desc, "gemm-row-batch rounds=2 vec=4 subwarp=32", "more than 64 lanes"),
            (Desc { n: 0, ..desc }, "gemm-row-batch", "with columns"),
            (desc, "gemm-row-batch rounds=2 rows=8 subwarp=2", "registers of data"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
