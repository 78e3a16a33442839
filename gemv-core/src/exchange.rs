//! Copies between devices of one backend, as [`Backend::exchange`](crate::Backend::exchange) gets them.

use crate::Memory;

/// A block that is written, and with what.
#[derive(Debug)]
pub struct Receive<'a> {
    /// The block.
    pub to: &'a mut dyn Memory,
    /// What is copied to it. No two write the same place.
    pub pieces: Vec<Piece<'a>>,
}

/// Elements that lie one after the other, of a block with the same element type.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Index of the first one in the block that is written.
    pub at: usize,
    /// The block that is read. It may be on the same device.
    pub from: &'a dyn Memory,
    /// Index of the first one there.
    pub first: usize,
    /// How many there are.
    pub len: usize,
}
