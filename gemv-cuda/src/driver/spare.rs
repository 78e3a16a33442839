//! Memory that was given up, for what is asked for next: the driver takes as long for a block as for a launch, and much
//! longer after the stream has been waited for, when it has returned what was free to the system.

use std::collections::VecDeque;

use cudarc::driver::sys::CUdeviceptr;

/// Most bytes of a block that is kept.
const LARGEST: usize = 16 << 20;
/// Most bytes of all that are kept.
const MOST: usize = 64 << 20;
/// Most blocks that are kept, since they are searched one after the other.
const COUNT: usize = 64;

/// The blocks that nobody has: sizes and addresses. The first was given up the longest ago.
#[derive(Debug, Default)]
pub(super) struct Spare {
    blocks: VecDeque<(usize, CUdeviceptr)>,
    bytes: usize,
}

impl Spare {
    /// A block of this very size: the one that was given up last.
    pub(super) fn take(&mut self, size: usize) -> Option<CUdeviceptr> {
        let place = self.blocks.iter().rposition(|(of, _)| *of == size)?;
        self.bytes -= size;
        self.blocks.remove(place).map(|(_, at)| at)
    }

    /// Keeps a block. Returns those that are to be freed for it, or the block itself if it is too large.
    pub(super) fn give(&mut self, size: usize, at: CUdeviceptr) -> Vec<CUdeviceptr> {
        if size > LARGEST {
            return vec![at];
        }
        self.blocks.push_back((size, at));
        self.bytes += size;
        let mut freed = Vec::new();
        while self.bytes > MOST || self.blocks.len() > COUNT {
            let Some((size, at)) = self.blocks.pop_front() else { break };
            self.bytes -= size;
            freed.push(at);
        }
        freed
    }

    /// All of them.
    pub(super) fn take_all(&mut self) -> Vec<CUdeviceptr> {
        std::mem::take(self).blocks.into_iter().map(|(_, at)| at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_its_size_is_taken() {
        let mut spare = Spare::default();
        for (size, at) in [(32, 1), (64, 2), (32, 3)] {
            assert_eq!(spare.give(size, at), []);
        }
        assert_eq!(
            [32, 32, 32, 64].map(|size| spare.take(size)),
            [Some(3), Some(1), None, Some(2)]
        );
        assert_eq!((spare.bytes, spare.take_all()), (0, vec![]));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut spare = Spare::default();
        assert_eq!(spare.give(LARGEST + 1, 7), [7]);
        let whole = MOST / LARGEST;
        for at in 0..whole as u64 {
            assert_eq!(spare.give(LARGEST, at), []);
        }
        // The oldest go first, as many as it takes.
        assert_eq!(spare.give(LARGEST, 100), [0]);
        assert_eq!(spare.give(32, 101), [1]);
        assert_eq!(spare.take_all().len(), whole);
        for at in 0..COUNT as u64 {
            assert_eq!(spare.give(32, at), []);
        }
        assert_eq!(spare.give(32, 1000), [0]);
        assert_eq!((spare.take(32), spare.blocks.len()), (Some(1000), COUNT - 1));
    }
}
