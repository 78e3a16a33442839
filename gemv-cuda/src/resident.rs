//! Memory of a GPU that the user holds.

use std::sync::Arc;

use gemv_core::{Dtype, Memory};

use crate::driver::{Block, Gpu};

/// Resident memory of this backend.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) block: Block,
    pub(crate) dtype: Dtype,
    pub(crate) len: usize,
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

/// A block of resident memory of any type.
///
/// # Panics
/// If it is another backend's.
pub(crate) fn block(memory: &dyn Memory) -> &Block {
    let memory: &dyn std::any::Any = memory;
    &memory.downcast_ref::<Resident>().expect("memory of the CUDA backend").block
}
