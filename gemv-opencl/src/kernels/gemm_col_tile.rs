//! `gemm-col-tile`: one column-major matrix and several right-hand sides, on GPUs; X is read from local
//! memory. The text is `gemm_col_tile.cl` in the frame of several right-hand sides.

use gemv_core::Values;
use gemv_gpu::rules::*;
use gemv_gpu::{
    Case, GEMM_FRAME_SOURCE, GEMM_PRELUDE, GEMM_REDUCE_SOURCE, GemmFrame, Kernel, List,
    REDUCE_SOURCE, Rule, source,
};

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
    args: &[
        threads(256, 512),
        threads_k(8, 4, 32),
        tile_rhs(8, Values::Range(1, 16)),
        vec(1),
        launched(
            "split_k",
            "Blocks that share a row's columns; 0 takes as many as fill the device.",
            Values::Range(0, 65_535),
            0,
        ),
        launched(
            "blocks_per_sm",
            "Blocks for each multiprocessor that rows are split for.",
            Values::Range(1, 64),
            4,
        ),
    ],
    rules: &[
        BY_COLUMNS,
        ONE_MATRIX,
        ONE_LOAD,
        THREADS_K_OF_BLOCK,
        // X of a segment has the place of the sums that are exchanged.
        Rule::Holds(
            |of| of.get("threads") * of.get("vec") >= SEGMENT,
            "a block has at least 256 rows, threads times vec",
        ),
        Rule::AtMost(
            "bytes of sums and of X of a thread",
            |of| frame(of).accs * of.acc_bytes(),
            |_| MAX_ACC_BYTES,
        ),
        Rule::Local(|of| frame(of).local * of.acc_bytes()),
    ],
    candidates: &[
        ON_GPUS,
        List::Only(|of| of.rhs() != 1),
        List::Shapes(
            &["threads", "threads_k", "tile_rhs", "vec", "blocks_per_sm"],
            &[
                &[256, 16, 8, 2, 4],
                &[256, 16, 4, 4, 4],
                &[256, 8, 8, 1, 4],
                &[256, 16, 16, 1, 4],
                &[256, 16, 8, 1, 4],
                &[256, 8, 4, 2, 4],
                &[256, 16, 4, 2, 4],
                &[512, 16, 16, 1, 2],
            ],
        ),
        List::Value("tile_rhs", |of| of.rhs().min(of.get("tile_rhs"))),
        List::Value("vec", |of| of.aligned().min(of.get("vec"))),
        List::Launches,
        List::First(8),
    ],
    plan: |of| frame(of).plan(of),
    ..Kernel::GEMM
};

fn frame(of: &Case<'_>) -> GemmFrame {
    let [threads_k, vec, cols] = of.all(["threads_k", "vec", "tile_rhs"]);
    let groups = of.get("threads") / threads_k;
    // Of a lane, and of a stack for its slots.
    let sums = 1 + u64::from((LANES / threads_k).ilog2());
    GemmFrame {
        entry: "gemm_col_tile",
        group_rows: vec,
        groups,
        local: (threads_k + 7) * groups * vec * cols,
        accs: sums * vec * cols + 8 * vec + cols,
    }
}

#[cfg(test)]
mod tests {
    use gemv_core::{Desc, Dtype, Layout, Params};
    use gemv_gpu::{Caps, Language};

    use super::*;

    #[test]
    fn what_is_not_legal_is_said() {
        let mut caps = Caps::new(Language::OpenCl);
        (caps.max_group, caps.local_bytes, caps.units, caps.fp64) = (1024, 48 << 10, 100, true);
        let desc = Desc { rhs: 8, ..Desc::of(Dtype::F32, Layout::Col, (5000, 100), 4) };
        for (desc, text, part) in [
            (desc, "gemm-col-tile threads=128", "at least 256 rows"),
            (desc, "gemm-col-tile threads_k=4 vec=4", "bytes of sums and of X"),
            (desc, "gemm-col-tile threads_k=32 tile_rhs=16 vec=2 threads=512", "local memory"),
            (Desc { batch: 2, ..desc }, "gemm-col-tile", "one matrix"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!(!KERNEL.candidates(&desc, &caps).is_empty());
        assert!(KERNEL.candidates(&Desc { rhs: 1, ..desc }, &caps).is_empty());
    }
}
