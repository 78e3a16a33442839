//! A warm product allocates nothing, on any thread. One test in a program of its own, so that no other allocation is
//! counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use gemv_core::ndarray::{Array1, Array2, ShapeBuilder, s};
use gemv_core::{Device, GpuDot};

struct Counting;

/// Allocations of all threads.
static COUNT: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    /// Those of this thread.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        OWN.set(OWN.get() + 1);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn all() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Allocations of ten calls, by this count.
fn ten(count: fn() -> usize, mut call: impl FnMut()) -> usize {
    let before = count();
    (0..10).for_each(|_| call());
    count() - before
}

#[test]
fn warm_products_allocate_nothing_on_one_thread_and_on_two() {
    let cpu = Device::new(gemv_cpu::open(None).unwrap());
    // Small products; few rows and many; products split by rows, and by segments with a reduction.
    let shapes = [(4, 4), (64, 64), (300, 700), (17, 5000), (3000, 40), (2000, 900), (17, 100_000)];
    for (m, n) in shapes {
        let a = Array2::from_shape_fn((m, n), |(i, j)| (i * 7 + j) as f32);
        let f = Array2::from_shape_fn((m, n).f(), |(i, j)| (i * 7 + j) as f32);
        let x = Array1::from_elem(n, 0.5f32);
        let mut y = Array1::zeros(m);
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            // One thread is warm after two calls. Of several it is not known which takes which part: each is after some.
            let (tens, count): (_, fn() -> usize) =
                if threads == 1 { (1, || OWN.get()) } else { (50, all) };
            for a in [a.view(), f.view(), a.slice(s![.., ..;-1]), a.slice(s![..;-1, ..])] {
                let check = |call: &mut (dyn FnMut() + Send)| {
                    let least = pool.install(|| {
                        call();
                        call();
                        (0..tens).map(|_| ten(count, &mut *call)).find(|count| *count == 0)
                    });
                    assert_eq!(least, Some(0), "{m}x{n} {:?} on {threads} threads", a.strides());
                };
                check(&mut || a.gpu_dot_into(&x, &mut y));
                check(&mut || cpu.gemv(1.0, a, &x, 0.5, &mut y).unwrap());
            }
        }
    }
    // The counters count.
    for count in [all, || OWN.get()] {
        assert!(ten(count, || drop(std::hint::black_box(vec![1u8; 100]))) >= 10);
    }
}
