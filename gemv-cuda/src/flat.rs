//! The kernel `flat`: few long rows, whose segments all teams of the device share evenly.

use std::ops::RangeInclusive;

use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Desc, Layout, Params};
use gemv_gpu::{Arg, Caps, Kernel, Launch, MAX_GRID, Plan};

use crate::choices::spanned;
use crate::few::{aligned, layout, powers};
use crate::kernels::{value, widest};
use crate::segment::{ROWS, TEAM, THREADS, VEC, fits, held, resident_blocks};

pub(crate) const KERNEL: Kernel = Kernel {
    name: "flat",
    about: "",
    source: concat!(
        include_str!("../kernels/vectors.cu"),
        include_str!("../kernels/segment.cu"),
        include_str!("../kernels/flat.cu")
    ),
    args: ARGS,
    defines: &[],
    ordered: true,
    candidates,
    legal,
    plan,
};

/// And blocks a unit.
const ARGS: &[Arg] = &[THREADS, TEAM, ROWS, VEC, gemv_gpu::launched("busy", 8)];
/// Registers for a piece's place, as the kernel counts them.
const OWN: u32 = 8;

/// Of one segment, nothing is left to be added; more than 256 x 256 would need one more level.
pub(crate) const COLUMNS: RangeInclusive<usize> = SEGMENT + 1..=SEGMENT * SEGMENT * SEGMENT;
/// Most blocks that a unit of any device has room for.
const MOST_BUSY: u32 = 32;

fn plan(desc: &Desc, params: &Params, caps: &Caps) -> Plan {
    let get = |name| u64::from(value(ARGS, params, name).max(1));
    let (m, segments) = (desc.m as u64, (desc.n as u64).div_ceil(SEGMENT as u64));
    // Without a row there is nothing to write; the kernel divides by their number.
    if m == 0 {
        return Plan::default();
    }
    let pieces = m.div_ceil(get("rows")).saturating_mul(segments);
    let teams = (get("threads") / get("team")).max(1);
    let blocks = pieces.div_ceil(teams).min(u64::from(caps.units) * get("busy")).max(1);
    let mut plan = Plan { workspace: m.saturating_mul(segments), ..Plan::default() };
    plan.launches.push(Launch::new("flat", blocks, value(ARGS, params, "threads")));
    let warps = (segments as u32).div_ceil(SEGMENT as u32).next_power_of_two().min(32);
    plan.launches.push(Launch { pdl_wait: true, ..Launch::new("flat_rows", m, 32 * warps) });
    plan
}

fn legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    layout(desc, Layout::Row)?;
    let get = |name| value(ARGS, params, name);
    let (threads, team, vec, busy) = (get("threads"), get("team"), get("vec"), get("busy"));
    powers(&[
        ("threads", threads, 32, caps.max_group.min(512)),
        ("team", team, 8, 32),
        ("rows", get("rows"), 1, 4),
        ("vec", vec, 1, widest(desc.dtype)),
    ])?;
    if team * vec > LANES as u32 {
        return Err(format!("team={team} with vec={vec} is more than {LANES} lanes"));
    }
    fits(held(desc.dtype, params, OWN), threads)?;
    if caps.max_group < 1024 {
        return Err(format!("sums are added by 1024 threads, not {}", caps.max_group));
    }
    if !(1..=MOST_BUSY).contains(&busy) {
        return Err(format!("busy={busy} is not 1 to {MOST_BUSY}"));
    }
    if !COLUMNS.contains(&desc.n) {
        let (low, high) = (COLUMNS.start(), COLUMNS.end());
        return Err(format!("flat is for {low} to {high} columns, not {}", desc.n));
    }
    if desc.m as u64 > MAX_GRID {
        return Err(format!("{} rows are more than {MAX_GRID} blocks", desc.m));
    }
    Ok(())
}

fn candidates(desc: &Desc, caps: &Caps) -> Vec<Params> {
    let longer = desc.m <= FEW_ROWS && desc.n > spanned(caps);
    if !longer && (desc.m > FEWER_ROWS || desc.n <= LONG) {
        return Vec::new();
    }
    let vec = aligned(desc);
    let team = (LANES as u32 / vec).min(32);
    let all = SHAPES.iter().map(|&(threads, rows)| {
        let params = Params::new("flat").with("threads", threads).with("team", team);
        let params = params.with("rows", rows).with("vec", vec);
        params.with("busy", resident_blocks(held(desc.dtype, &params, OWN), threads))
    });
    all.filter(|params| KERNEL.fits(desc, params, caps).is_ok()).collect()
}

/// Threads of a block, rows of a team.
const SHAPES: [(u32, u32); 4] = [(128, 1), (128, 2), (256, 2), (128, 4)];
/// Rows up to which it may be faster than blocks with chunks of rows (on an H200, up to some 60 MiB).
pub(crate) const FEW_ROWS: usize = 1024;
/// With 65,536 columns and fewer, blocks with all segments of a row need no second launch and were faster, by up to
/// 0.15, but for the fewest rows.
const FEWER_ROWS: usize = 16;
const LONG: usize = 16_384;

#[cfg(test)]
mod tests {
    use gemv_core::Dtype;

    use super::*;
    use crate::testing::caps;

    #[test]
    fn few_long_rows_have_candidates_and_all_are_legal() {
        for dtype in Dtype::ALL {
            for align in [1, 2, 3, 4, 6] {
                for (m, n, some) in [
                    (1, 16_384, false),
                    (16, 65_536, true),
                    (17, 65_536, false),
                    (17, 65_537, true),
                    (1024, 300_000, true),
                    (1025, 300_000, false),
                    (2, 1 << 24, true),
                    (2, (1 << 24) + 1, false),
                    (0, 100_000, true),
                ] {
                    let desc = Desc::of(dtype, Layout::Row, (m, n), align);
                    let all = candidates(&desc, &caps());
                    assert_eq!(!all.is_empty(), some, "{desc}");
                    for params in all {
                        KERNEL.fits(&desc, &params, &caps()).unwrap();
                    }
                    let col = Desc { layout: Layout::Col, ..desc };
                    assert!(candidates(&col, &caps()).is_empty());
                }
            }
        }
    }

    #[test]
    fn pieces_are_shared_by_as_many_blocks_as_there_is_work_for() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (3, 1000), 4);
        let plan = |text: &str, m, n| {
            let desc = Desc { m, n, ..desc };
            let params: Params = text.parse().unwrap();
            KERNEL.fits(&desc, &params, &caps()).unwrap();
            plan(&desc, &params, &caps())
        };
        // Three rows of four segments by teams of 16 in blocks of 128: twelve pieces for eight teams.
        let few = plan("flat", 3, 1000);
        assert_eq!((few.launches[0].grid[0], few.workspace), (2, 12));
        assert_eq!((few.launches[1].grid[0], few.launches[1].block[0]), (3, 32));
        assert_eq!(plan("flat rows=2", 3, 1000).launches[0].grid[0], 1);
        let many = plan("flat busy=4", 3, 10_000_000);
        assert_eq!(many.launches[0].grid[0], 4 * 132);
        // 153 sums of 256 segments a row.
        assert_eq!(many.launches[1].block[0], 1024);
        assert!(plan("flat", 0, 300).launches.is_empty());
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let row = Desc::of(Dtype::F64, Layout::Row, (3, 70_000), 4);
        let mut small = caps();
        small.max_group = 512;
        for (desc, text, caps, part) in [
            (row, "flat threads=100", caps(), "threads=100 is not a power of two from 32 to 512"),
            (row, "flat team=4", caps(), "team=4 is not"),
            (row, "flat rows=8", caps(), "rows=8 is not a power of two from 1 to 4"),
            (row, "flat vec=4", caps(), "vec=4 is not"),
            (row, "flat rows=4", caps(), "232 registers are more than 176"),
            (row, "flat threads=512 rows=4 team=32 vec=2", caps(), "more than 88"),
            (row, "flat busy=0", caps(), "busy=0 is not 1 to 32"),
            (row, "flat busy=33", caps(), "busy=33 is not"),
            (row, "flat", small, "sums are added by 1024 threads, not 512"),
            (Desc { n: 256, ..row }, "flat", caps(), "257 to 16777216 columns, not 256"),
            (Desc { n: (1 << 24) + 1, ..row }, "flat", caps(), "columns, not 16777217"),
            (Desc { m: 1 << 31, ..row }, "flat", caps(), "are more than 2147483647 blocks"),
            (Desc { layout: Layout::Col, ..row }, "flat", caps(), "layout row"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = KERNEL.fits(&desc, &params, &caps).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        let f16 = Desc { dtype: Dtype::F16, ..row };
        let why = KERNEL.fits(&f16, &"flat team=32 vec=4".parse().unwrap(), &caps()).unwrap_err();
        assert_eq!(why, "team=32 with vec=4 is more than 64 lanes");
    }
}
