//! What the kernels of several right-hand sides and of batches share: arguments, limits and plans.

use gemv_core::order::LANES;
use gemv_core::{Arg, Desc, Layout, Params, Values};

use crate::kernel::{Caps, Launch, Plan, value};
use crate::rules;
use crate::split::{Split, split_sets};

/// What stands before the source of every kernel of the signature
/// [`Gemm`](crate::Signature::Gemm), behind [`PRELUDE`](crate::PRELUDE).
///
/// It is apart from the prelude, so that no program of one column changes with it.
///
/// ```
/// assert!(gemv_gpu::GEMM_PRELUDE.contains("#define GEMM_ARGUMENTS"));
/// ```
pub const GEMM_PRELUDE: &str = include_str!("kernels/gemm.h");

pub(crate) const TILE_RHS: Arg = Arg {
    name: "tile_rhs",
    about: "Columns of X that are multiplied at a time: A is read once for them.",
    values: Values::Range(1, 16),
    default: 4,
    define: Some("TILE_RHS"),
};
pub(crate) const KEPT: Arg = Arg {
    name: "lanes",
    about: "Lanes of a segment that are kept: all 64, or as many as a row has columns.",
    values: Values::Powers(1, 64),
    default: 64,
    define: Some("LANES_KEPT"),
};

/// A kernel in the frame of several right-hand sides ([`GEMM_FRAME_SOURCE`]): its arguments and entry point,
/// and what follows from parameters.
///
/// ```
/// use gemv_core::{Desc, Dtype, Layout};
/// use gemv_gpu::{Caps, GemmFrame, Language};
/// let args = gemv_gpu::kernel("gemm-col").unwrap().args;
/// // A block of 128 threads with 4 rows each.
/// let frame = GemmFrame { args, entry: "gemm", group_rows: 4, groups: 128, local: 0, accs: 16 };
/// let desc = Desc { rhs: 8, ..Desc::of(Dtype::F32, Layout::Col, (5120, 100), 4) };
/// let params = "gemm-col threads=128 tile_rhs=4 split_k=1".parse().unwrap();
/// let mut caps = Caps::new(Language::Cuda);
/// caps.max_group = 1024;
/// assert_eq!(frame.plan(&desc, &params, &caps).launches[0].grid[0], 20); // 10 sets of rows, 2 panels
/// assert!(frame.limits(&desc, &params, &caps).is_ok());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct GemmFrame {
    /// The kernel's arguments; `tile_rhs`, `threads`, `split_k` and `blocks_per_sm` are among them.
    pub args: &'static [Arg],
    /// Its entry point.
    pub entry: &'static str,
    /// Neighbouring rows of one entry that stay together.
    pub group_rows: u64,
    /// Groups of a block.
    pub groups: u64,
    /// Values of the accumulator's type in a block's local memory.
    pub local: u64,
    /// Accumulators of a thread, and entries of X that it holds.
    pub accs: u64,
}

/// The frame: what stands behind the text of such a kernel. [`REDUCE_SOURCE`](crate::REDUCE_SOURCE) and
/// [`GEMM_REDUCE_SOURCE`](crate::GEMM_REDUCE_SOURCE) follow.
///
/// ```
/// assert!(gemv_gpu::GEMM_FRAME_SOURCE.contains("ENTRY(GEMM_ARGUMENTS)"));
/// ```
pub const GEMM_FRAME_SOURCE: &str = include_str!("kernels/gemm_frame.k");

/// Bytes of accumulators and of X that a thread may hold: more are spilled to memory.
const MAX_BYTES: u64 = 512;
/// As many of them as a candidate has: with addresses and loads beside them, no more fit.
pub(crate) const CHOSEN_BYTES: u64 = 200;

impl GemmFrame {
    /// Sets of rows times panels of columns.
    fn sets(&self, desc: &Desc, params: &Params) -> u64 {
        let groups = (desc.m as u64).div_ceil(self.group_rows).saturating_mul(desc.batch as u64);
        let panels = (desc.rhs as u64).div_ceil(value(self.args, params, TILE_RHS.name).into());
        groups.div_ceil(self.groups).saturating_mul(panels)
    }

    /// Its launches.
    ///
    /// # Panics
    /// If one of the arguments that [`args`](Self::args) names is missing.
    pub fn plan(&self, desc: &Desc, params: &Params, caps: &Caps) -> Plan {
        let get = |name| value(self.args, params, name);
        let sets = self.sets(desc, params);
        let split = match get("split_k") {
            0 => split_sets(sets, desc.n, caps, 1, get("blocks_per_sm")),
            split => split,
        };
        let split = Split::of(desc.n, split);
        let [m, rhs, batch] = [desc.m, desc.rhs, desc.batch].map(|count| count as u64);
        let outputs = m.saturating_mul(rhs).saturating_mul(batch);
        let blocks = sets.saturating_mul(split.parts);
        let mut launches = vec![Launch::new(self.entry, blocks, get("threads"))];
        launches.extend(split.gemm_reduce(outputs));
        Plan { launches, workspace: split.workspace(outputs), counters: 0 }
    }

    /// Whether a device can run it.
    ///
    /// # Errors
    /// What it lacks.
    ///
    /// # Panics
    /// As [`plan`](Self::plan).
    pub fn limits(&self, desc: &Desc, params: &Params, caps: &Caps) -> Result<(), String> {
        let bytes = desc.vectors.acc_bytes() as u64;
        let held = self.accs * bytes;
        if held > MAX_BYTES {
            return Err(format!(
                "a thread holds {held} bytes of sums and of X, more than {MAX_BYTES}"
            ));
        }
        rules::limits(&self.plan(desc, params, caps), caps, self.local * bytes)
    }

    /// One block shape with each way to split rows, as [`rules::with_splits`].
    pub(crate) fn with_splits<'f>(
        &self,
        params: Params,
        fills: &'f [u32],
        desc: &Desc,
        caps: &Caps,
    ) -> impl Iterator<Item = Params> + 'f {
        let whole = split_sets(self.sets(desc, &params), desc.n, caps, 1, 1) <= 8;
        fills.iter().filter(move |&&fill| fill > 0 || whole).map(move |&fill| match fill {
            0 => params.with("split_k", 1),
            fill => params.with("blocks_per_sm", fill),
        })
    }
}

/// Whether so many lanes hold the columns of a row.
pub(crate) fn keeps_enough(desc: &Desc, lanes: u32) -> Result<(), String> {
    if lanes < LANES as u32 && (lanes as usize) < desc.n {
        let (need, n) = (kept(desc), desc.n);
        return Err(format!("lanes={lanes} are fewer than the {need} of {n} columns"));
    }
    Ok(())
}

/// Lanes that hold the columns of a row: a power of two.
pub(crate) fn kept(desc: &Desc) -> u32 {
    desc.n.clamp(1, LANES).next_power_of_two() as u32
}

/// Columns of a panel near `about`, so that the panels are as full as possible.
pub(crate) fn panel(desc: &Desc, about: u32) -> u32 {
    let rhs = u32::try_from(desc.rhs.max(1)).unwrap_or(u32::MAX);
    // One panel of up to a half more is better than two.
    let panels = if rhs <= about + about / 2 { 1 } else { rhs.div_ceil(about) };
    rhs.div_ceil(panels).min(16)
}

/// Checks that matrices of these strides have the layout that a kernel was chosen for, which it does
/// not test.
///
/// ```
/// use gemv_core::Layout;
/// gemv_gpu::assert_layout(Layout::Col, [7, 3, 5], [0, 1, 4]);
/// ```
///
/// # Panics
/// If it is another one.
pub fn assert_layout(layout: Layout, dim: [usize; 3], strides: [isize; 3]) {
    let contiguous = |axis: usize| strides[axis] == 1 || dim[axis] <= 1;
    let ok = match layout {
        Layout::Row => contiguous(2),
        Layout::Col => contiguous(1),
        Layout::Strided => true,
    };
    let ok = ok || dim.contains(&0);
    assert!(ok, "matrices of strides {strides:?}, which are not of the layout {layout}");
}
