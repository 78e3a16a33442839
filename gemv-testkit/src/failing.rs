//! An allocator of which a test lets one allocation fail after the other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The allocator. A test's program has it as its own; it is the system's until a [`Failure`] is under way.
///
/// ```
/// use gemv_testkit::{FailingAllocator, each_failure};
///
/// #[global_allocator]
/// static ALLOCATOR: FailingAllocator = FailingAllocator;
///
/// let failed = each_failure(|failure| {
///     let (mut one, mut two) = (Vec::<u8>::new(), Vec::<u8>::new());
///     let reserved = failure.during(|| one.try_reserve(5000).and(two.try_reserve(5000)));
///     assert_eq!(reserved.is_err(), failure.happened());
/// });
/// assert_eq!(failed, 4); // each alone, and with all after it
/// ```
#[derive(Debug)]
pub struct FailingAllocator;

/// Smaller allocations never fail: their sizes do not depend on operands, beyond a few numbers for each axis, part or
/// task. The largest among them are those of rayon's queues, 2.3 KiB.
pub const LEAST: usize = 4 << 10;

/// How many allocations are still granted, and whether those after the one that fails fail as well.
static GRANTED: AtomicUsize = AtomicUsize::new(usize::MAX);
static LASTING: AtomicBool = AtomicBool::new(false);
static UNDER_WAY: AtomicBool = AtomicBool::new(false);
static HAPPENED: AtomicBool = AtomicBool::new(false);
/// The most bytes that were asked for at once.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The most bytes that one allocation asks for while `f` runs, on any thread; and what `f` returns. One test of a program
/// at a time calls it.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: gemv_testkit::FailingAllocator = gemv_testkit::FailingAllocator;
///
/// let (bytes, largest) = gemv_testkit::largest_allocation(|| vec![1u8; 1 << 20]);
/// assert_eq!((bytes.len(), largest), (1 << 20, 1 << 20));
/// ```
pub fn largest_allocation<R>(f: impl FnOnce() -> R) -> (R, usize) {
    LARGEST.store(0, Ordering::SeqCst);
    let result = f();
    (result, LARGEST.load(Ordering::SeqCst))
}

fn fails(size: usize) -> bool {
    if size < LEAST || !UNDER_WAY.load(Ordering::Relaxed) {
        return false;
    }
    let left =
        GRANTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    let fails =
        left.is_err() && (LASTING.load(Ordering::Relaxed) || !HAPPENED.load(Ordering::Relaxed));
    if fails {
        HAPPENED.store(true, Ordering::Relaxed);
    }
    fails
}

// SAFETY: forwards to the system's allocator, or returns null, which says that there is no memory.
unsafe impl GlobalAlloc for FailingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(p, layout) }
    }
}

/// One allocation that fails, and perhaps all after it.
#[derive(Debug)]
pub struct Failure {
    granted: usize,
    lasting: bool,
}

/// Ends the failure, after a panic as well.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        UNDER_WAY.store(false, Ordering::SeqCst);
    }
}

impl Failure {
    /// Runs `f`, during which the allocation fails, whatever thread asks for it.
    pub fn during<R>(&self, f: impl FnOnce() -> R) -> R {
        GRANTED.store(self.granted, Ordering::SeqCst);
        LASTING.store(self.lasting, Ordering::SeqCst);
        HAPPENED.store(false, Ordering::SeqCst);
        UNDER_WAY.store(true, Ordering::SeqCst);
        let _end = End;
        f()
    }

    /// Whether there were so many allocations that one failed.
    pub fn happened(&self) -> bool {
        HAPPENED.load(Ordering::SeqCst)
    }
}

/// Calls `attempt` for each allocation in turn, until none is left to fail; returns how many failed. Each fails alone,
/// and together with all after it. One test of a program at a time calls it.
pub fn each_failure(mut attempt: impl FnMut(&Failure)) -> usize {
    let mut failed = 0;
    for lasting in [false, true] {
        for granted in 0.. {
            HAPPENED.store(false, Ordering::SeqCst);
            attempt(&Failure { granted, lasting });
            if !HAPPENED.load(Ordering::SeqCst) {
                break;
            }
            failed += 1;
        }
    }
    failed
}
