//! What becomes of launches while they are recorded.

use std::sync::Arc;

use cudarc::driver::sys;

use super::chain::Chain;
use super::function::{Function, Keep, Launch};

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
    /// The stream has them, and they are kept with the memory that they work on.
    Keep(Vec<Taped>),
    /// They are compared with those of a record. Nothing is queued.
    Compare { with: Arc<[Taped]>, next: usize, same: bool },
}

/// One launch of a record, and what has to live as long.
#[derive(Debug)]
pub(super) struct Taped {
    function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: Vec<u8>,
    /// The addresses are among the arguments.
    _memory: Vec<Keep>,
}

impl Taped {
    pub(super) fn new(launch: &Launch, arguments: Vec<u8>, memory: Vec<Keep>) -> Taped {
        Taped {
            function: launch.function.clone(),
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            arguments,
            _memory: memory,
        }
    }

    pub(super) fn is(&self, launch: &Launch, arguments: &[u8]) -> bool {
        self.function.handle() == launch.function.handle()
            && (self.grid, self.block, self.shared) == (launch.grid, launch.block, launch.shared)
            && self.arguments == arguments
    }
}
