//! What the kernels of several right-hand sides and of batches share: arguments, limits and plans.

use gemv_core::Layout;

use crate::kernel::Case;
use crate::launch::{Launch, Plan};
use crate::rules::{self, LANES};

/// What stands before the source of every kernel of the signature
/// [`Gemm`](crate::Signature::Gemm), behind [`PRELUDE`](crate::PRELUDE).
///
/// It is apart from the prelude, so that no program of one column changes with it.
///
/// ```
/// assert!(gemv_gpu::GEMM_PRELUDE.contains("#define GEMM_ARGUMENTS"));
/// ```
pub const GEMM_PRELUDE: &str = include_str!("kernels/gemm.h");

/// A kernel in the frame of several right-hand sides ([`GEMM_FRAME_SOURCE`]): its entry point, and what follows from
/// parameters. `tile_rhs`, `threads`, `split_k` and `blocks_per_sm` are among its arguments.
///
/// ```
/// use gemv_core::{Desc, Dtype, Layout};
/// use gemv_gpu::{Caps, Case, GemmFrame, Language};
/// // A block of 128 threads with 4 rows each.
/// let frame = GemmFrame { entry: "gemm", group_rows: 4, groups: 128, local: 0, accs: 16 };
/// let desc = Desc { rhs: 8, ..Desc::of(Dtype::F32, Layout::Col, (5120, 100), 4) };
/// let params = "gemm-col threads=128 tile_rhs=4 split_k=1".parse().unwrap();
/// let (kernel, caps) = (gemv_gpu::kernel("gemm-col").unwrap(), Caps::new(Language::Cuda));
/// let of = Case::new(kernel, &desc, &params, &caps);
/// assert_eq!(frame.plan(&of).launches[0].grid[0], 20); // 10 sets of rows, 2 panels
/// assert_eq!(frame.held(&of), 64); // bytes
/// ```
#[derive(Debug, Clone, Copy)]
pub struct GemmFrame {
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

/// As many bytes of accumulators and of X as a candidate has: with addresses and loads beside them, no more fit.
pub(crate) const CHOSEN_BYTES: u64 = 200;

impl GemmFrame {
    /// Bytes of accumulators and of X that a thread may hold: more are spilled to memory.
    pub const MAX_BYTES: u64 = 512;

    /// Bytes of accumulators and of X that a thread holds.
    pub fn held(&self, of: &Case<'_>) -> u64 {
        self.accs * of.acc_bytes()
    }

    /// Sets of rows times panels of columns.
    pub(crate) fn sets(&self, of: &Case<'_>) -> u64 {
        let groups = of.m().div_ceil(self.group_rows).saturating_mul(of.desc.batch as u64);
        groups.div_ceil(self.groups).saturating_mul(of.rhs().div_ceil(of.get("tile_rhs")))
    }

    /// Its launches.
    ///
    /// # Panics
    /// If the kernel has not the arguments that it takes.
    pub fn plan(&self, of: &Case<'_>) -> Plan {
        let sets = self.sets(of);
        let split = rules::split(of, sets, 1);
        let blocks = sets.saturating_mul(split.parts);
        let mut launches = vec![Launch::new(self.entry, blocks, of.get("threads"))];
        launches.extend(split.gemm_reduce(of.outputs()));
        Plan { launches, workspace: split.workspace(of.outputs()), counters: 0 }
    }
}

/// Lanes that hold the columns of a row: a power of two.
pub(crate) fn kept(of: &Case<'_>) -> u64 {
    of.n().clamp(1, LANES).next_power_of_two()
}

/// Columns of a panel near `about`, so that the panels are as full as possible.
pub(crate) fn panel(of: &Case<'_>, about: u64) -> u64 {
    let rhs = of.rhs().clamp(1, u32::MAX.into());
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
