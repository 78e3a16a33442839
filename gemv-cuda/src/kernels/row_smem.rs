//! `row-smem`: row-major matrices of up to 64 columns and many rows; a thread has a row, which comes
//! through shared memory.

use gemv_core::order::LANES;
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, Kernel, Launch, Plan, Signature, value};

use super::rules::{
    SMEM_ROWS, aligned, blocks, compiled, layout, limits, registers, rows, shared_memory, threads,
    vec, widest, words,
};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-smem",
    about: "A block copies its rows to shared memory, and a thread computes a whole row there: \
            row-major, up to 64 columns.",
    source: concat!(include_str!("vectors.cuh"), include_str!("row_smem.cu")),
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan: |desc, params, _| plan(desc, params),
};

const ARGS: &[Arg] = &[
    threads(128, 256),
    rows("Rows of a thread.", 8),
    vec(1),
    compiled(
        "max_n",
        "Most columns, a multiple of vec: a row has room for so many in shared memory.",
        Values::Range(1, 64),
        64,
        "MAX_N",
    ),
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (threads, rows, vec, max_n) = (get("threads"), get("rows"), get("vec"), get("max_n"));
    limits(&[("threads", threads, caps.max_group), ("vec", vec, widest(desc.dtype))])?;
    if !max_n.is_multiple_of(vec) {
        return Err(format!("max_n={max_n} is not a multiple of vec={vec} up to {LANES}"));
    }
    let least = if max_n > 16 { max_n - 7 } else { max_n / 2 + 1 };
    if !(least as usize..=max_n as usize).contains(&desc.n) {
        return Err(format!("{} columns do not fit max_n={max_n}", desc.n));
    }
    registers(max_n.min(8) * rows * words(desc.dtype), 64)?;
    let elements = threads * rows * ((max_n / vec) | 1) * vec + max_n.next_power_of_two();
    shared_memory(u64::from(elements * desc.dtype.bytes() as u32 + 32), caps)?;
    blocks(&plan(desc, params))
}

fn plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let blocks = (desc.m as u64).div_ceil((get("threads") * get("rows")).max(1));
    let launch = Launch::new("row_smem", blocks, value(ARGS, params, "threads")).waiting();
    Plan { launches: vec![launch], ..Plan::default() }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if !(1..=LANES).contains(&desc.n) || desc.m < SMEM_ROWS {
        return Vec::new();
    }
    let max_n = match desc.n as u32 {
        few @ ..=16 => few.next_power_of_two(),
        more => more.next_multiple_of(8),
    };
    let mut all = Vec::new();
    for vec in [aligned(desc).min(max_n), 1] {
        for (threads, rows) in [(128, 1), (128, 2), (128, 4), (64, 1), (64, 2), (32, 1)] {
            // Many bytes a thread leave too few threads, and so do small blocks where larger ones fit.
            let bytes = rows * max_n * desc.dtype.bytes() as u32;
            let too_few = threads == 32 && all.iter().any(|p: &Params| p.get("vec") == Some(vec));
            if (rows > 1 && bytes > 192) || too_few {
                continue;
            }
            let params = Params::new(KERNEL.name).with("threads", threads).with("rows", rows);
            let params = params.with("vec", vec).with("max_n", max_n);
            if !all.contains(&params) && KERNEL.fits(desc, &params, caps).is_ok() {
                all.push(params);
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
            for align in [1, 2, 3, 4, 6] {
                for few in (0..=64).chain([65, 100, 192, 255, 256]) {
                    let desc = Desc::of(dtype, Layout::Row, (SMEM_ROWS, few), align);
                    let all = candidates(&desc, &caps());
                    assert!(!all.is_empty() || !(1..=LANES).contains(&few), "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let row = Desc::of(Dtype::F32, Layout::Row, (9, 100), 4);
        for (desc, text, part) in [
            (row, "row-smem", "100 columns do not fit max_n=64"),
            (Desc { n: 40, ..row }, "row-smem max_n=48", "40 columns do not fit max_n=48"),
            (Desc { n: 40, ..row }, "row-smem vec=4 max_n=42", "not a multiple of vec=4 up to 64"),
            (row, "row-smem max_n=65", "max_n=65 is not from 1 to 64"),
            (
                Desc { n: 40, ..row },
                "row-smem rows=8 max_n=40 threads=64",
                "bytes of shared memory",
            ),
            (Desc { n: 7, ..row }.of_type(Dtype::F64), "row-smem max_n=8 rows=8", "more than 64"),
            // x has room for as many as there are lanes.
            (
                Desc { n: 47, ..row }.of_type(Dtype::C64),
                "row-smem threads=64 max_n=47",
                "bytes of shared memory",
            ),
            (Desc { layout: Layout::Col, ..row }, "row-smem", "layout row"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
