//! Room for partial sums and packed operands, kept by each thread from call to call.

use std::cell::RefCell;

use gemv_core::{Accumulator, Element};

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

thread_local! {
    /// What is not in use. Rooms are taken and brought back as from a stack, so that the same
    /// call finds the same rooms again. A thread that waits for the other half of its product may
    /// be given another product meanwhile: that one takes the next.
    static ROOMS: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Rooms larger than this in bytes are given back after use, and so are those beyond this number.
const KEEP: (usize, usize) = (64 << 20, 16);

/// Runs `f` with `len` accumulators of any content, aligned to 64 bytes.
#[inline]
pub(crate) fn with<A: Accumulator, R>(len: usize, f: impl FnOnce(&mut [A]) -> R) -> R {
    // SAFETY: accumulators are f32, f64 or pairs of them (the trait is sealed).
    unsafe { room(len, f) }
}

/// Runs `f` with `len` elements of any content, aligned to 64 bytes.
#[inline]
pub(crate) fn with_elements<T: Element, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    // SAFETY: elements are floating-point numbers or pairs of them (the trait is sealed).
    unsafe { room(len, f) }
}

/// # Safety
/// Any bits are a value of `A`, whose alignment is at most 64.
unsafe fn room<A, R>(len: usize, f: impl FnOnce(&mut [A]) -> R) -> R {
    let lines = (len * size_of::<A>()).div_ceil(size_of::<Line>());
    let mut room = ROOMS.with_borrow_mut(|rooms| rooms.pop()).unwrap_or_default();
    if room.len() < lines {
        // Not resize: there is nothing to copy.
        room = vec![Line([0; 8]); lines];
    }
    // SAFETY: the lines are initialised and good for len values, of which the caller says that
    // any bits are one.
    let part = unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<A>(), len) };
    let result = f(part);
    ROOMS.with_borrow_mut(|rooms| {
        if room.len() * size_of::<Line>() <= KEEP.0 && rooms.len() < KEEP.1 {
            rooms.push(room);
        }
    });
    result
}
