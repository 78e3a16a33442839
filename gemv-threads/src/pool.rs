//! The pool of threads for callers that are in none.

use std::error::Error;
use std::io::{ErrorKind, Result};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use gemv_core::fork::{PerProcess, forks};
use rayon::{ThreadPool, ThreadPoolBuilder};

pub(crate) enum Pool {
    /// Rayon's global one.
    Global,
    /// One of our own: after a fork, and where the global one could not be made.
    Own(ThreadPool),
}

/// What a process has found.
#[derive(Default)]
struct Here {
    pool: OnceLock<Pool>,
    /// When no thread could be made.
    failed: Mutex<Option<Instant>>,
}

/// Of the parent's nothing is used: neither its threads are there, nor those who would release its locks.
static HERE: PerProcess<Here> = PerProcess::new();

/// How many threads the pool has, which a child's is to have as well; 0 if there was none.
static WIDTH: AtomicUsize = AtomicUsize::new(0);

/// How long it is not tried again where no thread could be made. A try takes as long as a small product.
const AGAIN: Duration = Duration::from_secs(1);

/// This process' pool; `None` where no thread can be made.
pub(crate) fn pool() -> Option<&'static Pool> {
    let here = HERE.get();
    if let Some(pool) = here.pool.get() {
        return Some(pool);
    }
    let mut failed = here.failed.lock().unwrap_or_else(PoisonError::into_inner);
    if here.pool.get().is_none() {
        if failed.is_some_and(|at| at.elapsed() < AGAIN) {
            return None;
        }
        match make() {
            Ok((pool, width)) => {
                WIDTH.store(width, Ordering::Relaxed);
                let _ = here.pool.set(pool);
            }
            Err(why) => {
                // Where a system has none, there is nothing to warn of.
                if failed.is_none() && why.kind() != ErrorKind::Unsupported {
                    log::warn!("no thread can be made, so callers compute alone: {why}");
                }
                *failed = Some(Instant::now());
            }
        }
    }
    here.pool.get()
}

/// A pool, and how many threads it has.
fn make() -> Result<(Pool, usize)> {
    // First a thread by itself: where rayon fails to make a global pool, nobody can make one later.
    let one = std::thread::Builder::new().spawn(|| ())?;
    one.join().expect("it does nothing");
    if forks() == 0 && global() {
        return Ok((Pool::Global, rayon::current_num_threads()));
    }
    // 0 is as many as rayon takes by itself.
    let asked = WIDTH.load(Ordering::Relaxed);
    let build = |width| ThreadPoolBuilder::new().num_threads(width).build();
    let mut made = build(asked);
    let mut width = if asked > 0 { asked } else { available_parallelism()?.get() };
    while made.is_err() && width > 1 {
        width /= 2;
        made = build(width);
        if made.is_ok() {
            log::warn!("{width} threads could be made, and no more");
        }
    }
    let pool = made.map_err(std::io::Error::other)?;
    let width = pool.current_num_threads();
    Ok((Pool::Own(pool), width))
}

/// Whether rayon's global pool is there. Where nobody has made it before, it is made here, as rayon itself would make it.
fn global() -> bool {
    match ThreadPoolBuilder::new().build_global() {
        Ok(()) => true,
        // A system without threads, or no more of them.
        Err(e) if e.source().is_some() => false,
        // It was made before, or could not be made, of which rayon tells by a panic alone.
        Err(_) => catch_unwind(rayon::current_num_threads).is_ok(),
    }
}
