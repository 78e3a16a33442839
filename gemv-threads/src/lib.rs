//! The threads that share work on the host, wherever it is asked for.
//!
//! - On a worker of a pool of rayon: its pool. So a caller's `ThreadPool::install` is respected.
//! - On other threads: rayon's global pool, as the program or the environment has set it up.
//! - In a child that `fork` made: a pool of its own with as many threads, since those of its parent are not there. A
//!   worker that forked computes alone.
//! - Where no thread can be made, for a limit of the system or little memory: the calling thread. If some can, these.
//!
//! ```
//! use std::sync::atomic::{AtomicUsize, Ordering};
//!
//! // 1000 pieces, which any thread may take.
//! let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
//! gemv_threads::share(gemv_threads::count(), &|_| {
//!     while next.fetch_add(1, Ordering::Relaxed) < 1000 {
//!         done.fetch_add(1, Ordering::Relaxed);
//!     }
//! });
//! assert_eq!(done.into_inner(), 1000);
//! ```
#![deny(unsafe_code)]

mod pool;

use std::sync::atomic::{AtomicUsize, Ordering};

use gemv_core::float_mode::{self, in_default};
use gemv_core::fork;
use rayon::{Scope, ThreadPool};

use crate::pool::{Pool, pool};

/// Whose threads take part.
enum Place {
    /// Those of the pool of which this thread is a worker.
    Worker,
    /// Those of rayon's global pool.
    Global,
    /// Those of this process' own pool.
    Own(&'static ThreadPool),
    /// None but this one.
    Alone,
}

fn place() -> Place {
    if rayon::current_thread_index().is_some() {
        // Of its pool a worker that forked is the only thread.
        return if fork::is_survivor() { Place::Alone } else { Place::Worker };
    }
    match pool() {
        Some(Pool::Global) => Place::Global,
        Some(Pool::Own(pool)) => Place::Own(pool),
        None => Place::Alone,
    }
}

/// How many threads share the work that this thread starts; at least 1. The first call makes them.
///
/// ```
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
/// assert_eq!(pool.install(gemv_threads::count), 3);
/// ```
pub fn count() -> usize {
    match place() {
        Place::Worker | Place::Global => rayon::current_num_threads(),
        Place::Own(pool) => pool.current_num_threads(),
        Place::Alone => 1,
    }
}

/// Runs `work` on at most so many threads at once, this one among them, and returns when all have ended. It is told
/// whether it runs on this thread. Where no other thread is free, this one runs it alone: it does what is left to
/// be done, not a part of its own.
///
/// `work` is called in the default [floating-point mode](gemv_core::float_mode) on each of them.
///
/// ```
/// use std::sync::Mutex;
///
/// let left = Mutex::new((1..=100u64).collect::<Vec<_>>());
/// let sum = Mutex::new(0);
/// gemv_threads::share(4, &|_mine| {
///     loop {
///         let Some(one) = left.lock().unwrap().pop() else { break };
///         *sum.lock().unwrap() += one;
///     }
/// });
/// assert_eq!(sum.into_inner().unwrap(), 5050);
/// ```
///
/// # Panics
/// If `work` does, on any of them, once all have ended.
pub fn share(tasks: usize, work: &(dyn Fn(bool) + Sync)) {
    if tasks <= 1 {
        return in_default(|| work(true));
    }
    let work = &|mine: bool| in_default(|| work(mine));
    // While it waits, this thread may take up other tasks of the pool, which are in the caller's floating-point mode.
    float_mode::outside(|| shared(tasks, work));
}

fn shared(tasks: usize, work: &(dyn Fn(bool) + Sync)) {
    let ended = AtomicUsize::new(1);
    match place() {
        Place::Worker => {
            rayon::join(|| work(true), || beside(tasks - 1, &|| work(false)));
        }
        Place::Global => rayon::in_place_scope(|scope| outside(scope, tasks, &ended, work)),
        Place::Own(pool) => pool.in_place_scope(|scope| outside(scope, tasks, &ended, work)),
        Place::Alone => work(true),
    }
}

/// Runs `there` on another thread while `here` runs on this one; or after it, where no other is free. Each has the
/// floating-point mode of its thread.
///
/// ```
/// let (next, sum) = gemv_threads::at_once(|| (0..10).sum::<u32>(), || 1 + 1);
/// assert_eq!((next, sum), (45, 2));
/// ```
///
/// # Panics
/// If one of them does, once both have ended.
pub fn at_once<H, T: Send>(here: impl FnOnce() -> H, there: impl FnOnce() -> T + Send) -> (H, T) {
    let mut result = None;
    let here = match place() {
        Place::Worker | Place::Global => {
            rayon::in_place_scope(|scope| start(scope, here, there, &mut result))
        }
        Place::Own(pool) => pool.in_place_scope(|scope| start(scope, here, there, &mut result)),
        Place::Alone => return (here(), there()),
    };
    (here, result.expect("it has ended"))
}

fn start<'a, H, T: Send>(
    scope: &Scope<'a>,
    here: impl FnOnce() -> H,
    there: impl FnOnce() -> T + Send + 'a,
    to: &'a mut Option<T>,
) -> H {
    scope.spawn(move |_| *to = Some(there()));
    here()
}

/// Runs `run` on so many threads of this one's pool.
fn beside(tasks: usize, run: &(impl Fn() + Sync)) {
    match tasks {
        0 => {}
        1 => run(),
        _ => {
            rayon::join(|| beside(tasks / 2, run), || beside(tasks - tasks / 2, run));
        }
    }
}

/// A caller outside of the pool takes its part as well. It does not sleep while the others finish; it yields, since they
/// may need its core. It waits until every thread has looked, even if nothing was left.
fn outside<'a>(
    scope: &Scope<'a>,
    tasks: usize,
    ended: &'a AtomicUsize,
    work: &'a (dyn Fn(bool) + Sync),
) {
    for _ in 1..tasks {
        scope.spawn(|_| {
            work(false);
            ended.fetch_add(1, Ordering::Release);
        });
    }
    work(true);
    for _ in 0..YIELDS {
        if ended.load(Ordering::Acquire) == tasks {
            break;
        }
        std::thread::yield_now();
    }
}

/// How often the calling thread looks for the others: some tens of microseconds.
const YIELDS: usize = 100;
