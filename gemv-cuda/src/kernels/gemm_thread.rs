//! `gemm-thread`: several right-hand sides and one matrix of 17 to 64 columns, a thread a row.

use gemv_core::order::LANES;
use gemv_core::{Desc, Layout, Params, Values};
use gemv_gpu::{Arg, Caps, GEMM_PRELUDE, Kernel, Launch, Plan, Signature, value};

use super::rules::{blocks, compiled, limits, threads, words};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "gemm-thread",
    about: "Several right-hand sides and one matrix of at most 64 columns, of real numbers: a thread has \
            whole rows, which tiles of shared memory bring, and a panel of columns of X.",
    source: gemv_gpu::source![
        GEMM_PRELUDE,
        include_str!("vectors.cuh"),
        include_str!("gemm_thread.cu")
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
    threads(128, 256),
    compiled("rows", "Rows of a thread.", Values::Powers(1, 4), 1, "ROWS"),
    compiled(
        "tile_rhs",
        "Columns of X that a thread multiplies its rows with at a time.",
        Values::Powers(1, 8),
        4,
        "TILE_RHS",
    ),
    compiled("max_n", "Most columns of A.", Values::OneOf(&[24, 32, 40, 48, 56, 64]), 64, "MAX_N"),
];

/// Panels of X that a block keeps, as in the text.
const PANELS: u64 = 4;
/// Bytes of shared memory of a multiprocessor that the blocks of a launch may have, and their threads.
const SHARED: u64 = 224 << 10;
const RESIDENT: u64 = 1024;

/// Rows of a tile.
fn tile(params: &Params) -> u64 {
    u64::from(value(ARGS, params, "threads") * value(ARGS, params, "rows"))
}

/// Bytes of shared memory of a block: X and two tiles.
fn shared(desc: &Desc, params: &Params) -> u64 {
    let (bytes, n) = (desc.dtype.bytes() as u64, desc.n as u64);
    // From row to row, an odd number of words.
    let row = match desc.layout {
        Layout::Row if bytes < 8 => ((n * bytes).div_ceil(4) | 1) * 4,
        Layout::Row => (n | 1) * bytes,
        _ => n * bytes,
    };
    let x = LANES as u64 * PANELS * u64::from(value(ARGS, params, "tile_rhs"));
    x * desc.dtype.acc_bytes() as u64 + 2 * (tile(params) * row).next_multiple_of(16)
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    if desc.layout == Layout::Strided {
        return Err("the kernel is for the layouts row and col".into());
    }
    if desc.dtype.is_complex() {
        return Err("the kernel is for real numbers".into());
    }
    if desc.batch != 1 {
        return Err("the kernel is for one matrix".into());
    }
    let get = |name| value(ARGS, params, name);
    // Each of the first eight lanes has a column.
    if !(8..=get("max_n") as usize).contains(&desc.n) {
        return Err(format!("{} columns are not 8 to max_n={}", desc.n, get("max_n")));
    }
    limits(&[("threads", get("threads"), caps.max_group)])?;
    // A sum, those that wait, a row of X.
    let held = (7 * get("rows") + 1) * get("tile_rhs") * words(desc.dtype) + 32;
    let most = (65_536 / get("threads")).min(255);
    if held > most {
        return Err(format!("{held} registers of {most}"));
    }
    let bytes = shared(desc, params);
    if bytes > u64::from(caps.dynamic_bytes) {
        return Err(format!("{bytes} bytes of shared memory of {}", caps.dynamic_bytes));
    }
    blocks(&plan(desc, params, caps))
}

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name));
    let groups = (desc.rhs as u64).div_ceil(PANELS * get("tile_rhs"));
    let bytes = shared(desc, params);
    let resident = (SHARED / bytes).min(RESIDENT / get("threads")).max(1);
    let most = (u64::from(caps.units) * resident / groups.max(1)).max(1);
    let each = (desc.m as u64).div_ceil(tile(params)).min(most);
    let mut launch = Launch::new("gemm_thread", each.saturating_mul(groups), get("threads") as u32);
    launch.shared = u32::try_from(bytes).unwrap_or(u32::MAX);
    Plan { launches: vec![launch.waiting()], workspace: 0, counters: 0 }
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    if desc.rhs == 1 || !(17..=LANES).contains(&desc.n) {
        return Vec::new();
    }
    let cols = desc.rhs.min(8).next_power_of_two() as u32;
    let mut all = Vec::new();
    for (threads, rows, tile_rhs) in
        [(128, 1, cols), (128, 2, cols), (64, 2, cols), (128, 2, cols / 2), (256, 1, cols)]
    {
        let params = Params::new(KERNEL.name).with("threads", threads).with("rows", rows);
        let params = params.with("tile_rhs", tile_rhs);
        let params = params.with("max_n", (desc.n as u32).next_multiple_of(8));
        if KERNEL.fits(desc, &params, caps).is_ok() {
            all.push(params);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

    use super::*;
    use crate::testing::caps;

    fn desc(dtype: Dtype, layout: Layout, m: usize, n: usize, rhs: usize) -> Desc {
        Desc { rhs, ..Desc::of(dtype, layout, (m, n), 4) }
    }

    #[test]
    fn candidates_are_there_where_the_kernel_is_for() {
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                for (n, rhs) in [(1, 2), (16, 2), (17, 1), (17, 2), (50, 3), (64, 100), (65, 2)] {
                    let desc = desc(dtype, layout, 100_000, n, rhs);
                    let there = !dtype.is_complex() && layout != Layout::Strided;
                    let meant = there && rhs > 1 && (17..=64).contains(&n);
                    assert_eq!(!candidates(&desc, &caps()).is_empty(), meant, "{desc}");
                }
            }
        }
    }

    #[test]
    fn blocks_have_many_tiles() {
        let params: Params = "gemm-thread threads=128 tile_rhs=8".parse().unwrap();
        let blocks = |m, rhs| {
            let desc = desc(Dtype::F32, Layout::Row, m, 50, rhs);
            KERNEL.fits(&desc, &params, &caps()).unwrap();
            plan(&desc, &params, &caps()).launches[0].grid[0]
        };
        assert_eq!((blocks(1, 2), blocks(129, 8)), (1, 2));
        // Three blocks of a multiprocessor have room; 33 columns are two groups.
        assert_eq!((blocks(1 << 22, 8), blocks(1 << 22, 33)), (3 * 132, 2 * (3 * 132 / 2)));
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let good = desc(Dtype::F32, Layout::Col, 1000, 50, 8);
        for (desc, text, part) in [
            (Desc { n: 65, ..good }, "gemm-thread", "65 columns are not 8 to max_n=64"),
            (good, "gemm-thread max_n=48", "50 columns"),
            (Desc { n: 7, ..good }, "gemm-thread", "7 columns"),
            (Desc { batch: 2, ..good }, "gemm-thread", "one matrix"),
            (desc(Dtype::C32, Layout::Col, 1000, 50, 8), "gemm-thread", "real numbers"),
            (Desc { layout: Layout::Strided, ..good }, "gemm-thread", "row and col"),
            (good, "gemm-thread rows=4 tile_rhs=8", "registers"),
            (good, "gemm-thread threads=256 rows=4 tile_rhs=1", "bytes of shared memory"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
