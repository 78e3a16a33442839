//! Memory of a GPU that the user holds.

use std::sync::Arc;

use gemv_core::{Dtype, Exchange, Memory, Owner, Piece, Receive, Result};

use crate::driver::{self, Block, BlockCopy, Gpu};

/// Resident memory of this backend.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) block: Block,
    pub(crate) dtype: Dtype,
    pub(crate) len: usize,
    pub(crate) owner: Owner,
}

impl Memory for Resident {
    fn len(&self) -> usize {
        self.len
    }

    fn handle(&self) -> Option<usize> {
        Some(self.block.address())
    }

    /// All memory that the driver knows has addresses of its own.
    fn place(&self) -> Option<(usize, usize)> {
        Some((0, self.block.address()))
    }

    fn owner(&self) -> Owner {
        self.owner
    }
}

/// Resident memory as ours.
///
/// # Panics
/// If it is another backend's or device's, or has another type.
pub(crate) fn resident<'a>(memory: &'a dyn Memory, gpu: &Arc<Gpu>, dtype: Dtype) -> &'a Resident {
    let ours = ours(memory);
    assert!(ours.block.is_of(gpu), "memory of another GPU than {}", gpu.id());
    assert_eq!(ours.dtype, dtype, "memory of another element type");
    ours
}

/// A block of resident memory of any type, whose array has so many bytes or more.
///
/// # Panics
/// If it is another backend's, or the array is shorter.
pub(crate) fn block(memory: &dyn Memory, bytes: usize) -> &Block {
    let Resident { block, dtype, len, .. } = ours(memory);
    assert!(bytes <= len * dtype.bytes(), "more bytes than the array has");
    block
}

fn ours(memory: &dyn Memory) -> &Resident {
    let memory: &dyn std::any::Any = memory;
    memory.downcast_ref().expect("memory of the CUDA backend")
}

/// Starts copies between GPUs.
///
/// # Panics
/// If a block is another backend's, a piece is not inside of its blocks, or their element types differ.
pub(crate) fn exchange(blocks: &[Receive<'_>]) -> Result<Box<dyn Exchange>> {
    let mut copies = Vec::new();
    for Receive { to, pieces } in blocks {
        let to = ours(&**to);
        for piece in pieces {
            let from = ours(piece.from);
            assert_eq!(to.dtype, from.dtype, "a copy to another element type");
            let Piece { at, range, .. } = piece;
            let fits = at.checked_add(range.len()).is_some_and(|end| end <= to.len);
            let both = fits && range.start <= range.end && range.end <= from.len;
            assert!(both, "a copy from or to the outside of an array");
            if !range.is_empty() {
                let [at, first, bytes] =
                    [*at, range.start, range.len()].map(|of| of * to.dtype.bytes());
                copies.push(BlockCopy { to: &to.block, at, from: &from.block, first, bytes });
            }
        }
    }
    Ok(Box::new(driver::exchange(&copies)?))
}
