//! A streamed product on the CPU holds as much memory as its window says. One test in a program of its own, so that no
//! other allocation is counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gemv::ndarray::{Array1, ArrayView2, aview0};
use gemv::{Engine, ToDevice};
use gemv_shard::Streamed;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that are held during a call, beside those that were before.
fn most(call: impl FnOnce()) -> usize {
    // What other threads have still to free would count as held before.
    let mut before = HELD.load(Ordering::Relaxed);
    let mut same = 0;
    while same < 3 {
        std::thread::sleep(Duration::from_millis(10));
        let now = HELD.load(Ordering::Relaxed);
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
    MOST.store(before, Ordering::Relaxed);
    call();
    MOST.load(Ordering::Relaxed) - before
}

/// Pools, plans and what else has nothing to do with the matrix.
const OTHER: usize = 96 << 10;

#[test]
fn a_product_holds_its_window_or_the_least() {
    // The counter counts. Now, as the threads of the pool below allocate and free when they like.
    let size = 8 << 20;
    let counted = most(|| drop(std::hint::black_box((vec![0u8; size], vec![0u8; size]))));
    assert!(counted.abs_diff(2 * size) <= OTHER, "{counted} bytes, not {}", 2 * size);

    let cpu = Engine::new(None).device("cpu").unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build().unwrap();
    let one = aview0(&1f32);
    for (by_rows, m, n) in [(true, 16, 1 << 21), (true, 9, 3000), (false, 1000, 1 << 14)] {
        // All elements are one in memory.
        let a: ArrayView2<'_, f32> = one.broadcast(if by_rows { (m, n) } else { (n, m) }).unwrap();
        let (x, mut y) = (Array1::<f32>::ones(n).to_device(&cpu).unwrap(), Array1::<f32>::zeros(m));
        // One row, or 256 bytes of each column.
        let rows = if by_rows { 1 } else { 64 };
        let least = 256 * rows * 4 + 3 * rows * n.div_ceil(256) * 4;
        for window in [0, 128 << 10, 256 << 10, 1 << 20, 8 << 20] {
            let of = Streamed::of(a).window(window);
            let of = if by_rows { of } else { of.transposed() };
            let mut run = || of.gemv::<f32, f32, _>(&cpu, 1.0, &x, 0.0, &mut y, |_, _| ()).unwrap();
            let held = most(|| pool.install(&mut run));
            let allowed = window.max(window / 2 + least) + OTHER;
            assert!(held <= allowed, "{m} x {n} in {window}: {held} bytes, not {allowed}");
        }
        assert_eq!(y, Array1::from_elem(m, n as f32));
    }
}
