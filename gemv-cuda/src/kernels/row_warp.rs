//! `row-warp`: row-major matrices of up to 256 columns; a sub-warp has a row.
//!
//! Its text is `row_splitk.cu` behind `row_warp.cu`.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, Kernel, Launch, Plan, Signature, value};

use super::rules::{
    blocks, compiled, layout, limits, registers, rows, subwarp, threads, vec, widest, words,
};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-warp",
    about: "A sub-warp, at most a warp, computes whole rows with all loads in flight at once: \
            row-major, up to 256 columns.",
    source: concat!(
        include_str!("row_warp.cu"),
        include_str!("vectors.cuh"),
        include_str!("row_splitk.cu")
    ),
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: true,
    ordered: true,
    candidates,
    legal,
    plan: |desc, params, _| plan(desc, params),
};

const ARGS: &[Arg] = &[
    threads(128, 256),
    subwarp(1),
    rows("Rows that a sub-warp computes at a time.", 8),
    vec(4),
    compiled(
        "unroll",
        "Rounds of 64 columns, all in flight at once, in which a row fits however it is aligned.",
        Values::Range(1, 5),
        5,
        "UNROLL",
    ),
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (subwarp, vec, rows, unroll) = (get("subwarp"), get("vec"), get("rows"), get("unroll"));
    limits(&[("threads", get("threads"), caps.max_group), ("vec", vec, widest(desc.dtype))])?;
    let lanes = LANES as u32;
    if subwarp * vec > lanes || vec > subwarp {
        return Err(format!("subwarp={subwarp} with vec={vec} does not divide {lanes} lanes"));
    }
    // Counted with the lanes by which a row may be rotated. The alignment says nothing here: a window
    // of a host matrix with gaps is packed on its way to the device.
    if desc.n > SEGMENT || desc.n as u32 + vec - 1 > unroll * lanes {
        return Err(format!("{} columns and vec={vec} do not fit unroll={unroll}", desc.n));
    }
    let (slots, bytes) = (lanes / (subwarp * vec), vec * desc.dtype.bytes() as u32);
    registers(rows * slots * (unroll * bytes.div_ceil(4) + vec * words(desc.vectors)), 128)?;
    blocks(&plan(desc, params))
}

fn plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let rows = (get("threads") / get("subwarp").max(1) * get("rows")).max(1);
    let blocks = (desc.m as u64).div_ceil(rows);
    let launch = Launch::new("row_warp", blocks, value(ARGS, params, "threads")).waiting();
    Plan { launches: vec![launch], ..Plan::default() }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    // Fewer than 64 columns are `row-splitk`'s and `row-smem`'s.
    if desc.n < LANES || desc.n > SEGMENT {
        return Vec::new();
    }
    let widest = widest(desc.dtype);
    let mut all = Vec::new();
    for vec in [widest, (widest / 2).max(1)] {
        let unroll = (desc.n as u32 + vec - 1).div_ceil(64);
        for slots in [1, 2] {
            for rows in [2, 1, 4] {
                let params = Params::new(KERNEL.name).with("threads", 128);
                let params = params.with("subwarp", (64 / vec / slots).min(32)).with("rows", rows);
                all.push(params.with("vec", vec).with("unroll", unroll));
            }
        }
    }
    all.retain(|p| KERNEL.fits(desc, p, caps).is_ok());
    all.dedup();
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
            for align in [1, 2, 3, 4, 6] {
                for few in (0..=64).chain([65, 100, 192, 255, 256]) {
                    let desc = Desc::of(dtype, Layout::Row, (1000, few), align);
                    let all = candidates(&desc, &caps());
                    assert!(!all.is_empty() || !(64..=256).contains(&few), "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    /// The device may not have the alignment of the host's view: a window of an aligned matrix is
    /// packed, and its rows then begin anywhere.
    #[test]
    fn rows_fit_however_they_are_rotated() {
        for dtype in Dtype::ALL {
            for n in 1..=256 {
                let of = |align| Desc::of(dtype, Layout::Row, (50, n), align);
                for params in candidates(&of(6), &caps()) {
                    let lanes = params.get("unroll").unwrap() as usize * LANES;
                    assert!(n + params.get("vec").unwrap() as usize - 1 <= lanes, "{n}: {params}");
                    KERNEL.fits(&of(1), &params, &caps()).unwrap();
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let row = Desc::of(Dtype::F32, Layout::Row, (9, 100), 4);
        for (desc, text, part) in [
            (row, "row-warp subwarp=3", "power of two"),
            (row, "row-warp subwarp=32", "does not divide"),
            (row, "row-warp unroll=1", "do not fit"),
            (row, "row-warp unroll=6", "from 1 to 5"),
            (row, "row-warp subwarp=4 rows=4 unroll=5", "more than 128"),
            (row, "row-warp vec=8", "vec=8 is more than 4"),
            (Desc { n: 257, ..row }, "row-warp", "do not fit"),
            (Desc { layout: Layout::Col, ..row }, "row-warp", "layout row"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
