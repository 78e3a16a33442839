//! Memory for partial sums and packed operands, kept by each thread from call to call.

use std::cell::RefCell;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

thread_local! {
    /// The buffers that are free, as a stack: the same call finds the same buffers again. A thread that waits for the
    /// other half of its product may run another product meanwhile, which takes the next buffer.
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// A larger buffer, in bytes, is freed after use, and so is one beyond this number.
const CACHED: (usize, usize) = (64 << 20, 16);

/// Initialised bytes of any content, aligned to 64.
pub(super) struct Scratch(Vec<Line>);

impl Scratch {
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Takes a buffer of this thread's. Dropping it puts it back.
pub(super) fn take(bytes: usize) -> Scratch {
    let lines = bytes.div_ceil(size_of::<Line>());
    let mut buffer = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < lines {
        // Not resize: there is nothing to copy.
        buffer = vec![Line([0; 8]); lines];
    }
    Scratch(buffer)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        FREE.with_borrow_mut(|free| {
            if buffer.len() * size_of::<Line>() <= CACHED.0 && free.len() < CACHED.1 {
                free.push(buffer);
            }
        });
    }
}

/// Runs `f` with so many bytes.
pub(super) fn with<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    let mut scratch = take(bytes);
    f(scratch.as_mut_ptr())
}
