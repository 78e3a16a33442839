//! `gemm-col-tile`: one column-major matrix and several right-hand sides, on GPUs; X is read from local
//! memory. The text is `gemm_col_tile.cl` in the frame of several right-hand sides.

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Arg, Desc, Layout, Params, Values};
use gemv_gpu::{
    Caps, GEMM_FRAME_SOURCE, GEMM_PRELUDE, GEMM_REDUCE_SOURCE, GemmFrame, Kernel, Plan,
    REDUCE_SOURCE, Signature, source, value,
};

use super::vectors::{VEC, aligned, compiled, distinct, of_layout, threads};

pub(super) const KERNELS: &[Kernel] = &[KERNEL];

const KERNEL: Kernel = Kernel {
    name: "gemm-col-tile",
    about: "Several right-hand sides and one column-major matrix on GPUs: threads_k threads share the \
            columns of neighbouring rows and read X from local memory.",
    source: source![
        GEMM_PRELUDE,
        include_str!("gemm_col_tile.cl"),
        GEMM_FRAME_SOURCE,
        REDUCE_SOURCE,
        GEMM_REDUCE_SOURCE,
    ],
    args: ARGS,
    defines: &[],
    signature: Signature::Gemm,
    mixed: false,
    ordered: true,
    candidates,
    legal,
    plan,
};

const ARGS: &[Arg] = &[
    threads(256, 512),
    compiled(
        "threads_k",
        "Threads of a block that share the columns of the same rows.",
        Values::Powers(4, 32),
        8,
        "THREADS_K",
    ),
    compiled(
        "tile_rhs",
        "Columns of X that are multiplied at a time: A is read once for them.",
        Values::Range(1, 16),
        8,
        "TILE_RHS",
    ),
    VEC,
    Arg {
        name: "split_k",
        about: "Blocks that share a row's columns; 0 takes as many as fill the device.",
        values: Values::Range(0, 65_535),
        default: 0,
        define: None,
    },
    Arg {
        name: "blocks_per_sm",
        about: "Blocks for each multiprocessor that rows are split for.",
        values: Values::Range(1, 64),
        default: 4,
        define: None,
    },
];

fn frame(params: &Params) -> GemmFrame {
    let get = |name| u64::from(value(ARGS, params, name));
    let (threads_k, vec, cols) = (get("threads_k"), get("vec"), get("tile_rhs"));
    let groups = (get("threads") / threads_k).max(1);
    // Of a lane, and of a stack for its slots.
    let sums = 1 + u64::from((LANES as u64 / threads_k).ilog2());
    GemmFrame {
        args: ARGS,
        entry: "gemm_col_tile",
        group_rows: vec,
        groups,
        local: (threads_k + 7) * groups * vec * cols,
        accs: sums * vec * cols + 8 * vec + cols,
    }
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    let get = |name| value(ARGS, params, name);
    let (threads, threads_k, vec) = (get("threads"), get("threads_k"), get("vec"));
    of_layout(desc, Layout::Col, vec)?;
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    if threads_k > threads {
        return Err(format!("threads_k={threads_k} of {threads} threads"));
    }
    // X of a segment has the place of the sums that are exchanged.
    if (threads * vec) < SEGMENT as u32 {
        return Err(format!("{threads} threads with vec={vec} have fewer than {SEGMENT} rows"));
    }
    frame(params).limits(desc, params, caps)
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    frame(params).plan(desc, params, caps)
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.layout != Layout::Col || desc.batch != 1 || desc.rhs == 1 {
        return Vec::new();
    }
    let cols = desc.rhs.min(16) as u32;
    let widest = aligned(desc);
    let mut all = Vec::new();
    for (threads, threads_k, cols, vec, blocks) in [
        (256, 16, cols.min(8), 2, 4),
        (256, 16, cols.min(4), 4, 4),
        (256, 8, cols.min(8), 1, 4),
        (256, 16, cols, 1, 4),
        (256, 16, cols.min(8), 1, 4),
        (256, 8, cols.min(4), 2, 4),
        (256, 16, cols.min(4), 2, 4),
        (512, 16, cols, 1, 2),
    ] {
        let params = Params::new(KERNEL.name).with("threads", threads);
        let params = params.with("threads_k", threads_k).with("tile_rhs", cols);
        all.push(params.with("vec", vec.min(widest)).with("blocks_per_sm", blocks));
    }
    distinct(&KERNEL, desc, caps, 8, all)
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;
    use gemv_gpu::Language;

    use super::*;

    #[test]
    fn what_is_not_legal_is_said() {
        let mut caps = Caps::new(Language::OpenCl);
        (caps.max_group, caps.local_bytes, caps.units, caps.fp64) = (1024, 48 << 10, 100, true);
        let desc = Desc { rhs: 8, ..Desc::of(Dtype::F32, Layout::Col, (5000, 100), 4) };
        for (desc, text, part) in [
            (desc, "gemm-col-tile threads=128", "fewer than 256 rows"),
            (desc, "gemm-col-tile threads_k=4 vec=4", "bytes of sums and of X"),
            (desc, "gemm-col-tile threads_k=32 tile_rhs=16 vec=2 threads=512", "local memory"),
            (Desc { batch: 2, ..desc }, "gemm-col-tile", "one matrix"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(!candidates(&desc, &caps).is_empty());
        assert!(candidates(&Desc { rhs: 1, ..desc }, &caps).is_empty());
    }
}
