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
pub(crate) struct Buffer(Vec<Line>);

impl Buffer {
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Most bytes on behalf of an operand whose elements are repeated: it may be of any length without memory of its own.
const REPEATED: usize = 256 << 20;

/// Takes a buffer of this thread's, if there is memory for it. Dropping it puts it back. `repeated` says that it is as
/// long as an operand of stride 0: then a long one is refused, since the system may promise memory that it does not
/// have.
#[inline]
pub(super) fn take(bytes: usize, repeated: bool) -> Option<Buffer> {
    if repeated && bytes > REPEATED {
        return None;
    }
    let lines = bytes.div_ceil(size_of::<Line>());
    let buffer = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < lines {
        // Not resize: there is nothing to copy.
        drop(buffer);
        return allocate(lines);
    }
    Some(Buffer(buffer))
}

#[cold]
fn allocate(lines: usize) -> Option<Buffer> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(lines).ok()?;
    buffer.resize(lines, Line([0; 8]));
    Some(Buffer(buffer))
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        FREE.with_borrow_mut(|free| {
            let keep = buffer.len() * size_of::<Line>() <= CACHED.0 && free.len() < CACHED.1;
            if keep && free.try_reserve(1).is_ok() {
                free.push(buffer);
            }
        });
    }
}
