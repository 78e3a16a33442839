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

/// Runs `f` with `bytes` initialised bytes of any content, aligned to 64.
pub(super) fn with<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    let mut buffer = take(bytes.div_ceil(size_of::<Line>()));
    let result = f(buffer.as_mut_ptr().cast());
    put_back(buffer);
    result
}

fn take(lines: usize) -> Vec<Line> {
    let mut buffer = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < lines {
        // Not resize: there is nothing to copy.
        buffer = vec![Line([0; 8]); lines];
    }
    buffer
}

fn put_back(buffer: Vec<Line>) {
    FREE.with_borrow_mut(|free| {
        if buffer.len() * size_of::<Line>() <= CACHED.0 && free.len() < CACHED.1 {
            free.push(buffer);
        }
    });
}
