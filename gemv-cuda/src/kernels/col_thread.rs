//! `col-thread`: column-major matrices of up to 64 columns; a thread has whole rows.

use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, Kernel, Launch, Plan, Signature, value};

use super::rules::{aligned, blocks, compiled, layout, limits, rows, threads, vec, widest, words};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "col-thread",
    about: "A thread computes whole rows by itself: column-major, up to 64 columns.",
    source: concat!(include_str!("vectors.cuh"), include_str!("col_thread.cu")),
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
    rows("Vectors of rows that a thread has.", 8),
    vec(1),
    compiled(
        "max_n",
        "Most columns; a thread has as many lanes.",
        Values::Powers(1, 64),
        64,
        "MAX_N",
    ),
];

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Col)?;
    let get = |name| value(ARGS, params, name);
    let (rows, vec, max_n) = (get("rows"), get("vec"), get("max_n"));
    limits(&[("threads", get("threads"), caps.max_group), ("vec", vec, widest(desc.dtype))])?;
    if desc.n > max_n as usize {
        return Err(format!("{} columns do not fit max_n={max_n}", desc.n));
    }
    let held = max_n.min(8) * rows * vec * words(desc.dtype);
    if held > 64 {
        return Err(format!("{held} registers of sums are more than 64"));
    }
    blocks(&plan(desc, params))
}

fn plan(desc: &Desc, params: &Params) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let block_rows = (get("threads") * get("rows") * get("vec")).max(1);
    let blocks = (desc.m as u64).div_ceil(block_rows);
    let launch = Launch::new("col_thread", blocks, value(ARGS, params, "threads")).waiting();
    Plan { launches: vec![launch], ..Plan::default() }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let max_n = desc.n.next_power_of_two();
    if max_n > 64 {
        return Vec::new();
    }
    let mut all = Vec::new();
    for vec in [aligned(desc), 1] {
        for rows in if vec > 1 { &[1, 2][..] } else { &[1, 2, 4] } {
            let rows = *rows;
            let params = Params::new(KERNEL.name).with("threads", 128).with("rows", rows);
            let params = params.with("vec", vec).with("max_n", max_n as u32);
            // More than 32 bytes of a column a thread leaves too few threads.
            let bytes = rows * vec * desc.dtype.bytes() as u32;
            if bytes <= 32 && !all.contains(&params) && KERNEL.fits(desc, &params, caps).is_ok() {
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
                    let desc = Desc::of(dtype, Layout::Col, (1000, few), align);
                    let all = candidates(&desc, &caps());
                    assert!(!all.is_empty() || !(0..=64).contains(&few), "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let col = Desc::of(Dtype::F32, Layout::Col, (9, 100), 4);
        for (desc, text, part) in [
            (col, "col-thread", "do not fit max_n=64"),
            (Desc { n: 60, ..col }, "col-thread rows=4 vec=4", "more than 64"),
            (col, "col-thread max_n=128", "max_n=128 is not a power of two from 1 to 64"),
            (Desc { layout: Layout::Row, ..col }, "col-thread", "layout col"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
