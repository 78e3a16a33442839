//! The kernels of this backend: those shared with OpenCL, and those that only CUDA can spell.

use gemv_core::order::LANES;
use gemv_core::{Desc, Dtype, Layout, Params};
use gemv_gpu::{self as gpu, Arg, Caps, Kernel, Launch, MAX_GRID, Plan, Split, busy_split};

use crate::choices::line_candidates;
use crate::{few, flat, span, tile};

/// Every kernel that this backend can launch.
///
/// ```
/// let names: Vec<&str> = gemv_cuda::kernels().map(|kernel| kernel.name).collect();
/// assert!(names.contains(&"row") && names.contains(&"col")); // shared with OpenCL
/// ```
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    own().chain(gpu::kernels())
}

/// Those that only CUDA can spell.
pub(crate) fn own() -> impl Iterator<Item = &'static Kernel> {
    OWN.iter().chain(&few::KERNELS).chain(&span::KERNELS).chain([&tile::KERNEL, &flat::KERNEL])
}

/// The kernel of this name, the published ones among them.
pub(crate) fn kernel(name: &str) -> Option<&'static Kernel> {
    kernels().chain(gpu::baselines()).find(|k| k.name == name)
}

pub(crate) const OWN: &[Kernel] = &[Kernel {
    name: "line",
    about: "",
    source: concat!(include_str!("../kernels/vectors.cu"), include_str!("../kernels/line.cu")),
    args: LINE,
    defines: &[],
    ordered: true,
    candidates: line_candidates,
    legal: line_legal,
    plan: |desc, params, caps| Line::of(desc.dtype, params).plan(desc, caps),
}];

/// Threads of a block, threads of a team, teams along a row, rows of a team, elements of a load,
/// rounds of a segment (1, 4, or 5 where rows are rotated), lanes in use, parts of a row (0: as many
/// as give every unit the next argument's number of blocks), blocks a unit.
const LINE: &[Arg] = &[
    gemv_gpu::compiled("threads", 128, "THREADS"),
    gemv_gpu::compiled("team", 16, "TEAM"),
    gemv_gpu::compiled("along", 1, "ALONG"),
    gemv_gpu::compiled("rows", 1, "ROWS"),
    gemv_gpu::compiled("vec", 1, "VEC"),
    gemv_gpu::compiled("rounds", 4, "ROUNDS"),
    gemv_gpu::compiled("width", 64, "SPAN"),
    gemv_gpu::launched("split", 0),
    gemv_gpu::launched("busy", 8),
];

/// The arguments of [`LINE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) dtype: Dtype,
    pub(crate) threads: u32,
    pub(crate) team: u32,
    pub(crate) along: u32,
    pub(crate) rows: u32,
    pub(crate) vec: u32,
    pub(crate) rounds: u32,
    pub(crate) width: u32,
    pub(crate) split: u32,
    pub(crate) busy: u32,
}

impl Line {
    fn of(dtype: Dtype, params: &Params) -> Line {
        let get = |name| value(LINE, params, name);
        Line {
            dtype,
            threads: get("threads"),
            team: get("team"),
            along: get("along"),
            rows: get("rows"),
            vec: get("vec"),
            rounds: get("rounds"),
            width: get("width"),
            split: get("split"),
            busy: get("busy"),
        }
    }

    /// A row of more than one round, without a split: teams of all 64 lanes' vectors.
    pub(crate) fn long(desc: &Desc, threads: u32, along: u32, rows: u32) -> Line {
        let dtype = desc.dtype;
        let rounds = if desc.align < 4 { 5 } else { 4 };
        let vec = widest(dtype);
        let team = (LANES as u32 / vec).min(32);
        let width = LANES as u32;
        Line { dtype, threads, team, along, rows, vec, rounds, width, split: 1, busy: 0 }
    }

    pub(crate) fn params(&self) -> Params {
        let params = Params::new("line")
            .with("threads", self.threads)
            .with("team", self.team)
            .with("along", self.along)
            .with("rows", self.rows)
            .with("vec", self.vec)
            .with("rounds", self.rounds)
            .with("width", self.width);
        match self.split {
            0 => params.with("busy", self.busy),
            split => params.with("split", split),
        }
    }

    /// Rows of a block.
    pub(crate) fn block_rows(&self) -> u64 {
        u64::from(self.threads / self.team / self.along * self.rows)
    }

    fn plan(&self, desc: &Desc, caps: &Caps) -> Plan {
        let m = desc.m as u64;
        let blocks = m.div_ceil(self.block_rows());
        let split = match self.split {
            0 => busy_split(desc, caps, self.block_rows(), self.along.into(), self.busy),
            split => split,
        };
        let split = Split::of(desc.n, split);
        let launch = Launch::new("line", blocks * split.parts, self.threads);
        let counters = if split.count > 0 { blocks } else { 0 };
        Plan { launches: vec![launch], workspace: split.workspace(m), counters }
    }

    /// Whether the arguments are legal for these columns, or the rule that they break.
    pub(crate) fn check(&self, desc: &Desc, caps: &Caps) -> Result<(), String> {
        let Line { threads, team, along, rows, vec, rounds, width, split, busy, .. } = *self;
        for (name, v, lo, hi) in [
            ("threads", threads, 32, 1024),
            ("team", team, 1, 32),
            ("along", along, 1, 64),
            ("rows", rows, 1, 8),
            ("vec", vec, 1, widest(self.dtype)),
            ("width", width, 16, LANES as u32),
        ] {
            if !v.is_power_of_two() || v < lo || v > hi {
                return Err(format!("{name}={v} is not a power of two from {lo} to {hi}"));
            }
        }
        if threads > caps.max_group {
            return Err(format!("threads={threads} of at most {}", caps.max_group));
        }
        if threads > 256 && (vec > 4 || rows > 1) {
            return Err(format!("threads={threads} have no registers for rows={rows} vec={vec}"));
        }
        if team * vec > width {
            return Err(format!("team={team} with vec={vec} is more than width={width} lanes"));
        }
        if vec > team {
            return Err(format!(
                "vec={vec} is more than team={team}, which divides a vector's lanes"
            ));
        }
        if along > threads / team {
            return Err(format!("along={along} of {} teams", threads / team));
        }
        // Loads of 16 bytes under way at once, and sums: all in registers.
        let slots = width / (team * vec);
        let most = match rounds {
            1 => 8,
            // Elements of two bytes are twice as many sums.
            5 if vec > 4 => 1,
            5 => 2,
            _ => 4,
        };
        if slots * rows > most {
            return Err(format!("{slots} vectors of rows={rows} are more than {most} a round"));
        }
        match rounds {
            1 if along > 1 || split > 1 => {
                return Err("rounds=1 is for one segment: along=1 split=1".into());
            }
            // Counted with the lanes by which a row may be rotated.
            1 if desc.n as u64 + u64::from(vec) - 1 > u64::from(width) => {
                return Err(format!("{} columns and vec={vec} do not fit width={width}", desc.n));
            }
            1 | 4 | 5 => {}
            _ => return Err(format!("rounds={rounds} is none of 1, 4 and 5")),
        }
        if rounds > 1 && width != LANES as u32 {
            return Err(format!("width={width} is for rounds=1"));
        }
        if split == 0 && busy == 0 {
            return Err("split=0 busy=0 leaves no block to do the work".into());
        }
        let shared = self.block_rows() * LANES as u64 * self.dtype.acc_bytes() as u64 + 16;
        if rounds > 1 && shared > u64::from(caps.local_bytes) {
            return Err(format!("{shared} bytes of shared memory of {}", caps.local_bytes));
        }
        let blocks = self.plan(desc, caps).launches[0].grid[0];
        if blocks > MAX_GRID {
            return Err(format!("{blocks} blocks are more than {MAX_GRID}"));
        }
        Ok(())
    }
}

/// Most elements of a load of 16 bytes.
pub(crate) fn widest(dtype: Dtype) -> u32 {
    16 / dtype.bytes() as u32
}

fn line_legal(desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
    if desc.layout != Layout::Row {
        return Err("the kernel is for the layout row".into());
    }
    Line::of(desc.dtype, params).check(desc, caps)
}

/// The value of one of these arguments.
pub(crate) fn value(args: &[Arg], params: &Params, name: &str) -> u32 {
    let arg = args.iter().find(|a| a.name == name).expect("an argument of the kernel");
    params.get_or(name, arg.default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::SPANNED;
    use crate::few::KERNELS;
    use crate::span::WIDE_COLUMNS;
    use crate::testing::caps;

    #[test]
    fn candidates_fit_and_rows_of_any_length_have_some() {
        for dtype in Dtype::ALL {
            for n in (0..300).chain([1000, 65_536, 65_537, 1 << 22, 1 << 31]) {
                for m in [0, 1, 7, 1000, 1 << 22] {
                    for align in [1, 4] {
                        let desc = Desc::of(dtype, Layout::Row, (m, n), align);
                        let all = line_candidates(&desc, &caps());
                        let others = SPANNED.contains(&n) || WIDE_COLUMNS.contains(&n);
                        let staged = KERNELS.iter().find(|k| k.name == "staged").unwrap();
                        let others = others || !(staged.candidates)(&desc, &caps()).is_empty();
                        assert!(!all.is_empty() || others, "{desc}");
                        for params in all {
                            OWN[0].fits(&desc, &params, &caps()).unwrap();
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn few_long_rows_are_split_where_there_are_no_clusters() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (1, 65_536), 4);
        let mut alone = caps();
        alone.cluster = 1;
        let blocks = |caps: &Caps| -> Vec<u64> {
            let fits = |p: &Params| kernel(p.kernel().as_str()).map(|k| (k.plan)(&desc, p, caps));
            let plans = crate::candidates(&desc, caps).iter().filter_map(fits).collect::<Vec<_>>();
            plans.iter().map(|plan| plan.launches[0].grid[0]).collect()
        };
        for caps in [caps(), alone] {
            assert!(blocks(&caps).into_iter().max() >= Some(8), "{caps:?}");
        }
    }

    #[test]
    fn names_are_unique() {
        let names: Vec<_> = kernels().map(|k| k.name).collect();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "{names:?}");
    }

    #[test]
    fn what_is_not_legal_is_said() {
        let desc = Desc::of(Dtype::F32, Layout::Row, (10, 30), 4);
        for (text, part) in [
            ("line threads=48", "power of two"),
            ("line team=32 vec=4", "more than width=64"),
            ("line team=2 vec=4", "more than team=2"),
            ("line team=32 vec=2 along=8", "of 4 teams"),
            ("line team=4 vec=4 rows=2", "4 vectors"),
            ("line team=8 vec=4 rounds=1 width=32 split=2", "one segment"),
            ("line team=8 vec=4 rounds=1 width=32", "do not fit"),
            ("line team=32 vec=1 rounds=2", "none of 1, 4 and 5"),
            ("line team=16 vec=2 width=32", "for rounds=1"),
            ("line team=32 vec=2 busy=0", "split=0 busy=0"),
            ("line depth=2", "no argument depth"),
        ] {
            let params: Params = text.parse().unwrap();
            let why = OWN[0].fits(&desc, &params, &caps()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        let col = Desc { layout: Layout::Col, ..desc };
        let params = line_candidates(&desc, &caps())[0];
        assert!(OWN[0].fits(&col, &params, &caps()).unwrap_err().contains("layout row"));
    }
}
