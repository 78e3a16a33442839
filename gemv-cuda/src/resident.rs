//! Memory of a GPU that the user holds.

use std::sync::{Arc, Mutex, PoisonError};

use gemv_core::{Dtype, Memory, PieceSource, Result};

use crate::driver::{Block, Feed, Gpu};

/// Resident memory of this backend.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) block: Block,
    pub(crate) dtype: Dtype,
    pub(crate) len: usize,
    /// What fills it, if something has. Behind a lock, since memory is shared between threads.
    feed: Mutex<Feed>,
}

impl Resident {
    pub(crate) fn new(block: Block, dtype: Dtype, len: usize) -> Resident {
        Resident { block, dtype, len, feed: Mutex::default() }
    }
}

impl Memory for Resident {
    fn len(&self) -> usize {
        self.len
    }
}

/// Resident memory as ours.
///
/// # Panics
/// If it is another backend's or device's, or has another type.
pub(crate) fn resident<'a>(memory: &'a dyn Memory, gpu: &Arc<Gpu>, dtype: Dtype) -> &'a Resident {
    let memory: &dyn std::any::Any = memory;
    let ours = memory.downcast_ref::<Resident>().expect("memory of the CUDA backend");
    assert!(ours.block.is_of(gpu), "memory of another GPU than {}", gpu.id());
    assert_eq!(ours.dtype, dtype, "memory of another element type");
    ours
}

/// Fills resident memory from its beginning, by pieces.
///
/// # Panics
/// If it is another backend's or device's, or is shorter.
pub(crate) fn fill(
    gpu: &Arc<Gpu>,
    memory: &mut dyn Memory,
    bytes: usize,
    source: PieceSource<'_>,
) -> Result<()> {
    let memory: &mut dyn std::any::Any = memory;
    let ours = memory.downcast_mut::<Resident>().expect("memory of the CUDA backend");
    let feed = ours.feed.get_mut().unwrap_or_else(PoisonError::into_inner);
    feed.fill(gpu, &ours.block, bytes, source)
}
