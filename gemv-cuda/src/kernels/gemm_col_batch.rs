//! `gemm-col-batch`: many column-major matrices of up to 2,048 columns; a thread has whole rows.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, value};

use super::rules::{
    LANES_KEPT, TILE_RHS, aligned, blocks, compiled, layout, limits, registers, threads, vec,
    widest, words,
};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-col-batch",
    about: "Many column-major matrices of up to 2,048 columns: a thread computes whole rows by itself.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_col_batch.cu")
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

/// Segments of the longest rows.
const MOST_SEGMENTS: usize = 8;

const ARGS: &[Arg] = &[
    threads(128, 256),
    TILE_RHS,
    vec(1),
    LANES_KEPT,
    compiled(
        "rounds",
        "Rounds of the lanes in which a segment fits.",
        Values::Range(1, 4),
        1,
        "ROUNDS",
    ),
    compiled(
        "unroll",
        "Lanes whose columns are loaded at a time, where as many are kept.",
        Values::Powers(8, 16),
        8,
        "UNROLL",
    ),
    compiled(
        "segments",
        "Segments in which a row fits.",
        Values::Powers(1, MOST_SEGMENTS as u32),
        1,
        "SEGMENTS",
    ),
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Col)?;
    let get = |name| value(ARGS, params, name);
    let (vec, lanes, rounds) = (get("vec"), get("lanes"), get("rounds"));
    let (segments, tile_rhs) = (get("segments"), get("tile_rhs"));
    limits(&[("threads", get("threads"), caps.max_group), ("vec", vec, widest(desc.dtype))])?;
    if desc.n == 0 {
        return Err("the kernel is for matrices with columns".into());
    }
    if lanes < LANES as u32 && (rounds > 1 || segments > 1) {
        return Err(format!("lanes={lanes} are for one round of one segment"));
    }
    let n = desc.n;
    if n.min(SEGMENT) > (lanes * rounds) as usize || n > segments as usize * SEGMENT {
        return Err(format!(
            "lanes={lanes} in rounds={rounds} of segments={segments} do not fit rows of {n} columns"
        ));
    }
    if segments > 1 && n <= SEGMENT {
        return Err(format!("{n} columns are one segment"));
    }
    let (words, at_once) = (words(desc.dtype), lanes.min(get("unroll")));
    let load = (vec * desc.dtype.bytes() as u32).div_ceil(4);
    // Sums that wait: of the halving, and of the segments.
    let waiting = (lanes / at_once).ilog2() + segments.ilog2() + 1;
    let sums = (at_once + waiting) * tile_rhs * vec * words;
    // A and X of one round.
    registers(sums + at_once * (load + words), 160)?;
    blocks(&plan(desc, params))
}

fn plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let groups = (desc.m as u64).div_ceil(get("vec")).saturating_mul(desc.batch as u64);
    let panels = (desc.rhs as u64).div_ceil(get("tile_rhs"));
    let blocks = groups.div_ceil(get("threads")).saturating_mul(panels);
    let launch = Launch::new("gemm_col_batch", blocks, value(ARGS, params, "threads")).waiting();
    Plan { launches: vec![launch], workspace: 0, counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let most = MOST_SEGMENTS * SEGMENT;
    if desc.layout != Layout::Col || desc.n == 0 || desc.n > most || desc.batch == 1 {
        return Vec::new();
    }
    let lanes = desc.n.next_power_of_two().min(LANES) as u32;
    let rounds = desc.n.min(SEGMENT).div_ceil(LANES) as u32;
    let segments = desc.n.div_ceil(SEGMENT).next_power_of_two() as u32;
    let rhs = desc.rhs.clamp(1, 1 << 20) as u32;
    let mut all = Vec::new();
    for vec in [aligned(desc), aligned(desc) / 2, 1] {
        for unroll in [8, 16] {
            for cols in [8, 4, 1].map(|most| rhs.div_ceil(rhs.div_ceil(most))) {
                let params = Params::new(KERNEL.name).with("threads", 128).with("tile_rhs", cols);
                let params = params.with("vec", vec.max(1)).with("lanes", lanes);
                let params = params.with("rounds", rounds).with("unroll", unroll);
                let params = params.with("segments", segments);
                let same = unroll > 8 && lanes <= 8;
                let legal = KERNEL.fits(desc, &params, caps).is_ok();
                if !same && !all.contains(&params) && legal {
                    all.push(params);
                }
            }
        }
    }
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
            for n in [1, 2, 4, 5, 16, 31, 32, 33, 64, 65, 200, 256, 257, 1000, 2048, 2049] {
                for (m, rhs, batch) in [(4, 1, 1000), (64, 3, 70_000), (1, 64, 2)] {
                    let one = Desc::of(dtype, Layout::Col, (m, n), 4);
                    let desc = Desc { rhs, batch, ..one };
                    let all = candidates(&desc, &caps());
                    assert_eq!(!all.is_empty(), n <= 2048, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc { batch: 9, ..Desc::of(Dtype::F32, Layout::Col, (100, 100), 4) };
        for (desc, text, part) in [
            (desc, "gemm-col-batch lanes=32", "do not fit rows of 100"),
            (desc, "gemm-col-batch", "do not fit rows of 100"),
            (desc, "gemm-col-batch lanes=32 rounds=4", "for one round"),
            (desc, "gemm-col-batch rounds=2 segments=2", "one segment"),
            (Desc { n: 300, ..desc }, "gemm-col-batch rounds=4", "do not fit rows of 300"),
            (Desc { n: 0, ..desc }, "gemm-col-batch", "with columns"),
            (Desc { layout: Layout::Row, ..desc }, "gemm-col-batch", "layout col"),
            (desc, "gemm-col-batch rounds=4 vec=4 unroll=16 tile_rhs=4", "registers of data"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
