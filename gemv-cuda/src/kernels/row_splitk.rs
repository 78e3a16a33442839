//! `row-splitk`: row-major; sub-warps take rows, and sub-warps or blocks split long ones.

use gemv_core::order::LANES;
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, Kernel, Launch, Plan, Signature, Split, split_to_fill, value};

use super::rules::{
    MANY_BLOCKS, SMEM_BYTES, SMEM_ROWS, TWO_LEVELS, blocks, blocks_per_sm, compiled, layout,
    limits, row_columns, rows, shared_memory, subwarp, threads, vec, warps_k, widest,
};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "row-splitk",
    about: "Sub-warps compute rows; sub-warps of a block, or several blocks, split a row along K, \
            and the last block to arrive adds the parts: row-major.",
    source: concat!(include_str!("vectors.cuh"), include_str!("row_splitk.cu")),
    args: ARGS,
    defines: &[],
    signature: Signature::Gemv,
    mixed: true,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    threads(128, 1024),
    subwarp(1),
    warps_k(1),
    rows("Rows that a sub-warp, or those that share a row, compute at a time.", 8),
    vec(1),
    compiled(
        "unroll",
        "Rounds of 64 columns whose loads are in flight at once: 1 for a row of one round, 4 for a \
         segment, 5 for a segment of a row that starts anywhere.",
        Values::OneOf(&[1, 4, 5]),
        4,
        "UNROLL",
    ),
    compiled(
        "max_n",
        "Most columns, with those by which a row is rotated, where unroll=1; else 64.",
        Values::Powers(16, 64),
        64,
        "MAX_N",
    ),
    Arg {
        name: "split_k",
        about: "Blocks that share a row; 0 takes as many as give each multiprocessor \
                blocks_per_sm blocks.",
        values: Values::Range(0, 1 << 20),
        default: 0,
        define: None,
    },
    blocks_per_sm(8, MANY_BLOCKS),
];

/// Rows of a block.
fn block_rows(params: &Params) -> u64 {
    let get = |name| value(ARGS, params, name);
    u64::from(get("threads") / get("subwarp") / get("warps_k") * get("rows"))
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| value(ARGS, params, name);
    let (m, block_rows) = (desc.m as u64, block_rows(params));
    let blocks = m.div_ceil(block_rows);
    let split = match get("split_k") {
        0 => split_to_fill(desc, caps, block_rows, get("warps_k").into(), get("blocks_per_sm")),
        split => split,
    };
    let split = Split::of(desc.n, split);
    let launch = Launch::new("row_splitk", blocks * split.parts, get("threads")).waiting();
    let counters = if split.count > 0 { blocks } else { 0 };
    Plan { launches: vec![launch], workspace: split.workspace(m), counters }
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (threads, subwarp, warps) = (get("threads"), get("subwarp"), get("warps_k"));
    let (rows, vec, unroll, max_n) = (get("rows"), get("vec"), get("unroll"), get("max_n"));
    limits(&[("threads", threads, caps.max_group), ("vec", vec, widest(desc.dtype))])?;
    if threads > 256 && (vec > 4 || rows > 1) {
        return Err(format!("threads={threads} have no registers for rows={rows} vec={vec}"));
    }
    if subwarp * vec > max_n {
        return Err(format!("subwarp={subwarp} with vec={vec} is more than max_n={max_n} lanes"));
    }
    if vec > subwarp {
        return Err(format!(
            "vec={vec} is more than subwarp={subwarp}, which divides a vector's lanes"
        ));
    }
    if warps > threads / subwarp {
        return Err(format!("warps_k={warps} of {} sub-warps", threads / subwarp));
    }
    // Loads of 16 bytes in flight at once, and sums: all in registers.
    let slots = max_n / (subwarp * vec);
    let most = match unroll {
        1 => 8,
        // Elements of two bytes are twice as many sums.
        5 if vec > 4 => 1,
        5 => 2,
        _ => 4,
    };
    if slots * rows > most {
        return Err(format!("{slots} vectors of rows={rows} are more than {most} a round"));
    }
    if unroll == 1 {
        if warps > 1 || get("split_k") > 1 {
            return Err("unroll=1 is for one segment: warps_k=1 split_k=1".into());
        }
        // Counted with the lanes by which a row may be rotated.
        if desc.n as u64 + u64::from(vec) - 1 > u64::from(max_n) {
            return Err(format!("{} columns and vec={vec} do not fit max_n={max_n}", desc.n));
        }
    } else {
        if max_n != LANES as u32 {
            return Err(format!("max_n={max_n} is for unroll=1"));
        }
        shared_memory(
            block_rows(params) * LANES as u64 * desc.vectors.acc_bytes() as u64 + 16,
            caps,
        )?;
    }
    blocks(&plan(desc, params, caps))
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Row {
        return Vec::new();
    }
    let n = desc.n as u64;
    let widest = widest(desc.dtype);
    let shape = |threads: u32, subwarp: u32, warps: u32, rows: u32, vec: u32| {
        Params::new(KERNEL.name)
            .with("threads", threads)
            .with("subwarp", subwarp)
            .with("warps_k", warps)
            .with("rows", rows)
            .with("vec", vec)
    };
    let mut all: Vec<Params> = Vec::new();
    // Short rows: one load a thread and row, several rows in flight. Of many and very short ones,
    // `row-smem` was faster.
    let few = desc.m < 4 * SMEM_ROWS || n == 0 || desc.n * desc.dtype.bytes() > SMEM_BYTES;
    let vecs = [widest, widest / 2, 1];
    for vec in vecs.into_iter().filter(|v| *v > 0 && few) {
        let lanes = (n + u64::from(vec) - 1).next_power_of_two().max(16);
        if lanes > LANES as u64 {
            continue;
        }
        let max_n = lanes as u32;
        for (threads, slots, rows) in [(128, 1, 2), (128, 2, 2), (128, 1, 4)] {
            let subwarp = (max_n / vec / slots).min(32);
            let params = shape(threads, subwarp, 1, rows, vec).with("unroll", 1);
            all.push(params.with("max_n", max_n).with("split_k", 1));
        }
    }
    // Longer ones: sub-warps along the rows until the device is busy, then blocks. On a device with
    // clusters others are faster wherever they are legal, but for a few rows that begin anywhere.
    let longer = desc.n > if caps.cluster > 1 { TWO_LEVELS } else { row_columns(caps) };
    let segments = n.div_ceil(256).max(1);
    // The widest loads of all lanes; and for rows that start anywhere single elements too, so that
    // neighbours read neighbouring elements.
    let wide = ((LANES as u32 / widest).min(32), widest, if desc.align < 4 { 5 } else { 4 });
    let bases = [wide, (32, 1, 4)];
    for (threads, warps, threads_per_sm) in
        [(128, 1, 1024), (128, 8, 1024), (256, 16, 1024), (512, 32, 2048), (256, 1, 1024)]
            .into_iter()
            .filter(|_| longer)
    {
        for (subwarp, vec, unroll) in bases {
            let warps = warps.min(threads / subwarp).min(segments.next_power_of_two() as u32);
            let params = shape(threads, subwarp, warps, 1, vec).with("unroll", unroll);
            let params = params.with("max_n", LANES as u32);
            all.push(params.with("blocks_per_sm", (threads_per_sm / threads).max(1)));
            if desc.align >= 4 || n <= LANES as u64 {
                break;
            }
        }
    }
    let mut out: Vec<(u64, Params)> = Vec::new();
    for params in all.into_iter().filter(|params| KERNEL.fits(desc, params, caps).is_ok()) {
        let launch = KERNEL.launch_id(desc, &params, caps);
        if !out.iter().any(|o| o.0 == launch) {
            out.push((launch, params));
        }
    }
    out.into_iter().map(|o| o.1).collect()
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

    use super::*;
    use crate::testing::caps;

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (10, 30), 4);
        for (text, part) in [
            ("row-splitk threads=48", "power of two"),
            ("row-splitk subwarp=32 vec=4", "more than max_n=64"),
            ("row-splitk subwarp=2 vec=4", "more than subwarp=2"),
            ("row-splitk subwarp=32 vec=2 warps_k=8", "of 4 sub-warps"),
            ("row-splitk subwarp=4 vec=4 rows=2", "4 vectors"),
            ("row-splitk subwarp=8 vec=4 unroll=1 max_n=32 split_k=2", "one segment"),
            ("row-splitk subwarp=8 vec=4 unroll=1 max_n=32", "do not fit"),
            ("row-splitk subwarp=32 vec=1 unroll=2", "unroll=2 is not 1, 4 or 5"),
            ("row-splitk subwarp=16 vec=2 max_n=32", "for unroll=1"),
            ("row-splitk subwarp=32 vec=2 blocks_per_sm=0", "blocks_per_sm=0 is not from 1"),
            ("row-splitk depth=2", "no argument depth"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        let col = Desc { layout: Layout::Col, ..desc };
        let params = candidates(&desc, &caps())[0];
        assert!(KERNEL.fits(&col, &params, &caps()).unwrap_err().contains("layout row"));
    }
}
