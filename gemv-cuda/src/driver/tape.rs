//! What becomes of launches while they are recorded.

use std::sync::{Arc, Mutex};

use cudarc::driver::sys;

use super::chain::Chain;
use super::function::{AtPlaces, Function, Keep, Launch};

/// The launches of a record, and what waits for its end.
#[derive(Debug, Default)]
pub(super) struct Tape {
    pub(super) mode: Mode,
    /// Steps that are to share a launch of this function, which comes before what is queued next.
    pub(super) chain: Option<(Arc<Function>, Chain)>,
    /// Memory that was given up in the meantime: sizes and addresses.
    pub(super) freed: Vec<(usize, sys::CUdeviceptr)>,
    /// Page-locked memory that was given up in the meantime: addresses.
    pub(super) freed_host: Vec<usize>,
}

#[derive(Debug, Default)]
pub(super) enum Mode {
    /// The stream has them, and nobody else: the record is short-lived.
    #[default]
    Stream,
    /// They are listed, maybe with those of other GPUs, of which this is one. Nothing is queued.
    List { gpu: usize, list: List },
}

/// The work of one GPU or of several.
pub(super) type List = Arc<Mutex<Vec<Work>>>;

/// A part of it.
#[derive(Debug)]
pub(super) enum Work {
    /// A launch on a GPU.
    Launch(usize, Taped),
    /// Copies, of which no two write the same place.
    Copies(Vec<Copied>),
}

/// A copy from a GPU's memory to that of another one, or to its own.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) from: End,
    pub(super) to: End,
    pub(super) bytes: usize,
}

/// Where a copy begins, and what keeps the memory.
#[derive(Debug)]
pub(super) struct End {
    pub(super) gpu: usize,
    pub(super) address: sys::CUdeviceptr,
    pub(super) memory: Keep,
}

impl Work {
    /// Whether it is the same on the same memory.
    pub(super) fn is(&self, other: &Work) -> bool {
        match (self, other) {
            (Work::Launch(gpu, one), Work::Launch(of, other)) => gpu == of && one.same(other),
            (Work::Copies(these), Work::Copies(those)) => {
                let key = |of: &Copied| {
                    let [from, to] = [&of.from, &of.to].map(|end| (end.gpu, end.address));
                    (from, to, of.bytes)
                };
                these.iter().map(key).eq(those.iter().map(key))
            }
            _ => false,
        }
    }
}

/// One launch of a record, and what has to live as long.
#[derive(Debug)]
pub(super) struct Taped {
    pub(super) function: Arc<Function>,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    /// Whether the driver may begin it before the launch ahead has ended.
    pub(super) early: bool,
    pub(super) arguments: Vec<u8>,
    /// Bytes of each of them.
    pub(super) sizes: Vec<usize>,
    /// The addresses are among the arguments.
    pub(super) memory: Vec<Keep>,
    /// All that it writes of y, where that has no gaps and a function does so at several places: an address and bytes.
    pub(super) output: Option<(AtPlaces, sys::CUdeviceptr, usize)>,
}

impl Taped {
    pub(super) fn new(
        launch: &Launch,
        (arguments, sizes): (Vec<u8>, Vec<usize>),
        memory: Vec<Keep>,
        written: Option<(sys::CUdeviceptr, usize)>,
    ) -> Taped {
        let at_places = launch.at_places.clone();
        Taped {
            function: launch.function.clone(),
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            early: launch.early,
            arguments,
            sizes,
            memory,
            output: at_places.zip(written).map(|(at_places, (at, bytes))| (at_places, at, bytes)),
        }
    }

    fn same(&self, other: &Taped) -> bool {
        self.function.handle() == other.function.handle()
            && (self.grid, self.block, self.shared) == (other.grid, other.block, other.shared)
            && self.arguments == other.arguments
    }
}
