//! What a kernel launches.

use crate::caps::Caps;

/// What a kernel launches for a problem and parameters.
///
/// ```
/// use gemv_gpu::{Caps, Language, kernel};
/// use gemv_core::{Desc, Dtype, Params};
///
/// let caps = Caps::new(Language::Cuda);
/// let row = kernel("row").unwrap();
/// let desc = Desc::new(Dtype::F32, 8, 1 << 16, (1 << 16, 1), 0);
/// let plan = |split| {
///     let params = Params::new("row").with("threads", 64).with("split_k", split);
///     row.plan(&desc, &params, &caps)
/// };
/// // Whole rows: one launch, no workspace. Rows in 4 parts: 256 sums a row and their total; a
/// // second launch adds them up.
/// assert_eq!((plan(1).launches.len(), plan(1).workspace), (1, 0));
/// assert_eq!((plan(4).launches.len(), plan(4).workspace), (2, 8 * 257));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Plan {
    /// Launches, in order; each waits for the one before.
    pub launches: Vec<Launch>,
    /// Workspace, in values of the accumulator's type; not initialised.
    pub workspace: u64,
    /// Counters of 32 bits, which are 0 before the first launch and after the last.
    pub counters: u64,
}

impl From<Launch> for Plan {
    /// One launch, without workspace and counters.
    fn from(launch: Launch) -> Plan {
        Plan { launches: vec![launch], ..Plan::default() }
    }
}

impl Plan {
    /// Whether a device can launch it: threads of a block, blocks of a grid, dynamic shared memory.
    ///
    /// ```
    /// use gemv_gpu::{Caps, Language, Launch, Plan};
    /// let caps = Caps::new(Language::Cuda); // 64 threads a block
    /// let plan = |threads| Plan::from(Launch::new("row", 1, threads));
    /// assert_eq!(plan(64).runs_on(&caps), Ok(()));
    /// let why = plan(128).runs_on(&caps).unwrap_err();
    /// assert_eq!(why, "a block of 128 threads where the device has at most 64");
    /// ```
    ///
    /// # Errors
    /// The limit that is passed, as the end of a sentence.
    pub fn runs_on(&self, caps: &Caps) -> Result<(), String> {
        self.launches.iter().try_for_each(|launch| {
            let (threads, most) = (launch.block.iter().product::<u32>(), caps.max_group);
            if threads > most {
                return Err(format!(
                    "a block of {threads} threads where the device has at most {most}"
                ));
            }
            let [x, y, z] = launch.grid;
            if x > MAX_GRID || y.max(z) > 65_535 {
                return Err(format!(
                    "{x} x {y} x {z} blocks are more than {MAX_GRID} x 65535 x 65535"
                ));
            }
            if launch.shared > caps.dynamic_bytes {
                let (bytes, has) = (launch.shared, caps.dynamic_bytes);
                return Err(format!("{bytes} bytes of shared memory of {has}"));
            }
            Ok(())
        })
    }
}

/// One launch.
///
/// In OpenCL's words the global size is `grid * block`, in each dimension.
///
/// ```
/// use gemv_gpu::Launch;
/// let launch = Launch::new("row", 250, 128);
/// let threads = launch.grid[0] * u64::from(launch.block[0]);
/// assert_eq!((threads, launch.pdl_wait), (32_000, false));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Launch {
    /// Entry point.
    pub entry: &'static str,
    /// Blocks (work-groups) in each dimension; x below 2^31, y and z at most 65,535.
    pub grid: [u64; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory (CUDA only; OpenCL sources declare theirs).
    pub shared: u32,
    /// Whether the kernel itself waits for the launch before it, so that a device may begin it
    /// early (CUDA's programmatic dependent launch).
    pub pdl_wait: bool,
    /// Parts of a row: the last argument of the entry points that take it behind those of their
    /// signature (CUDA only).
    pub parts: u32,
    /// Where A goes as a tensor map behind the arguments of the signature, in the place of the parts: its boxes (CUDA only).
    pub boxes: Option<Boxes>,
}

impl Launch {
    /// Blocks in one dimension, without dynamic shared memory, which do not wait by themselves.
    pub const fn new(entry: &'static str, blocks: u64, threads: u64) -> Launch {
        let (grid, block) = ([blocks, 1, 1], [threads as u32, 1, 1]);
        Launch { entry, grid, block, shared: 0, pdl_wait: false, parts: 1, boxes: None }
    }

    /// The same of a kernel that waits by itself ([`pdl_wait`](Self::pdl_wait)).
    #[must_use]
    pub const fn waiting(self) -> Launch {
        Launch { pdl_wait: true, ..self }
    }
}

/// The boxes of a tensor map of numbers of 16 or 32 bits, of so many rows. Lines are at least as far apart as they are long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Boxes {
    /// Of 128 bytes of columns of a row-major matrix. Where its rows are so many whole boxes, these are a third dimension of the
    /// map, and a box has those of 256 columns.
    ByRows(u32),
    /// Of 256 columns of a column-major matrix, and at most 128 bytes of rows. The map begins at the column with the lowest address.
    ByColumns(u32),
}

/// Most blocks that a kernel launches in x.
///
/// ```
/// assert_eq!(gemv_gpu::MAX_GRID, 2_147_483_647); // 2^31 - 1, as CUDA has it
/// ```
pub const MAX_GRID: u64 = (1 << 31) - 1;
