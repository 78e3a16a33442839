//! Buffers that copies take and give back, and the threads that fill them.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

use gemv_core::Result;

use crate::lock::lock;

/// Buffers that each thread alternates between: one is filled while the other is copied.
pub(crate) const PAIR: usize = 2;

/// Buffers that are kept for the next copy, up to a number.
#[derive(Debug)]
pub(crate) struct Pool<B> {
    /// Those that nobody has; the first one was used the longest ago.
    free: Mutex<VecDeque<B>>,
    kept: usize,
}

impl<B> Pool<B> {
    pub(crate) fn new(kept: usize) -> Pool<B> {
        Pool { free: Mutex::default(), kept }
    }

    /// So many buffers. There are at least [`PAIR`], so that a copy does not wait for the one before.
    pub(crate) fn take(&self, count: usize, new: impl Fn() -> Result<B>) -> Result<Taken<'_, B>> {
        loop {
            let mut free = lock(&self.free);
            if free.len() >= count.max(PAIR) {
                let buffers = free.drain(..count).collect();
                return Ok(Taken { of: self, buffers });
            }
            drop(free);
            let buffer = new()?;
            lock(&self.free).push_front(buffer);
        }
    }
}

/// Buffers of one copy, which go back to the pool.
#[derive(Debug)]
pub(crate) struct Taken<'p, B> {
    of: &'p Pool<B>,
    buffers: Vec<B>,
}

impl<B> Deref for Taken<'_, B> {
    type Target = [B];

    fn deref(&self) -> &[B] {
        &self.buffers
    }
}

impl<B> DerefMut for Taken<'_, B> {
    fn deref_mut(&mut self) -> &mut [B] {
        &mut self.buffers
    }
}

impl<B> Drop for Taken<'_, B> {
    fn drop(&mut self) {
        let mut free = lock(&self.of.free);
        free.extend(self.buffers.drain(..));
        let more = free.len().saturating_sub(self.of.kept);
        let surplus: Vec<B> = free.drain(..more).collect();
        // To free them may wait for a thread that waits for the pool.
        drop(free);
        drop(surplus);
    }
}

/// Does the work of each piece with a buffer: one thread, the caller's among them, for each [`PAIR`] of buffers.
///
/// It ends early when a piece returns false, fails or panics: then each thread begins no other piece. Of several
/// errors one is returned; a panic is passed on.
pub(crate) fn deal<B: Send>(
    buffers: &mut [B],
    pieces: usize,
    work: &(dyn Fn(&mut B, usize) -> Result<bool> + Sync),
) -> Result<()> {
    let threads = buffers.len().div_ceil(PAIR);
    let stopped = AtomicBool::new(false);
    let share = |t: usize, own: &mut [B]| -> Result<()> {
        let stop = || stopped.store(true, Ordering::Relaxed);
        for (k, piece) in (t..pieces).step_by(threads).enumerate() {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            let at = k % own.len();
            let done = catch_unwind(AssertUnwindSafe(|| work(&mut own[at], piece)));
            match done {
                Ok(Ok(true)) => continue,
                Ok(Ok(false)) => stop(),
                Ok(Err(e)) => {
                    stop();
                    return Err(e);
                }
                Err(panic) => {
                    stop();
                    resume_unwind(panic);
                }
            }
        }
        Ok(())
    };
    let shares = buffers.chunks_mut(PAIR).enumerate().collect();
    each(shares, &|(t, own): (usize, &mut [B])| share(t, own))
}

/// Does the work of each share on a thread of its own, the caller's among them. The caller does what is left where fewer
/// threads can be made.
///
/// All have ended when it returns. Of several errors one is returned; a panic is passed on.
pub(crate) fn each<S: Send>(shares: Vec<S>, work: &(dyn Fn(S) -> Result<()> + Sync)) -> Result<()> {
    let others = shares.len().saturating_sub(1);
    let left = Mutex::new(shares.into_iter());
    let some = || {
        let mut outcome = Ok(());
        loop {
            let Some(share) = lock(&left).next() else { return outcome };
            outcome = outcome.and(work(share));
        }
    };
    std::thread::scope(|scope| {
        let start = |_| Builder::new().spawn_scoped(scope, some).ok();
        let others: Vec<_> = (0..others).map_while(start).collect();
        let mut outcome = some();
        for other in others {
            let other = other.join().unwrap_or_else(|panic| resume_unwind(panic));
            outcome = outcome.and(other);
        }
        outcome
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use gemv_core::Error;

    use super::*;

    /// A pool of numbered buffers, and what makes them.
    fn numbered(kept: usize) -> (Pool<usize>, impl Fn() -> Result<usize>) {
        let made = AtomicUsize::new(0);
        (Pool::new(kept), move || Ok(made.fetch_add(1, Ordering::Relaxed)))
    }

    fn failed() -> Error {
        Error::Device { device: "cuda:0".into(), call: "it", reason: "it fails".into() }
    }

    #[test]
    fn single_copies_alternate() {
        let (pool, new) = numbered(8);
        let used: Vec<usize> = (0..6).map(|_| pool.take(1, &new).unwrap()[0]).collect();
        assert!(used.windows(2).all(|two| two[0] != two[1]), "{used:?}");
        assert!(used.iter().all(|buffer| *buffer < PAIR), "more than a pair was made: {used:?}");
    }

    #[test]
    fn buffers_are_used_again_and_few_are_kept() {
        let (pool, new) = numbered(4);
        let first = pool.take(4, &new).unwrap().to_vec();
        let again = pool.take(4, &new).unwrap().to_vec();
        assert_eq!(first, again);
        {
            let (four, six) = (pool.take(4, &new).unwrap(), pool.take(6, &new).unwrap());
            assert!(six.iter().all(|buffer| !four.contains(buffer)), "{four:?} {six:?}");
        }
        assert_eq!(lock(&pool.free).len(), 4);
    }

    #[test]
    fn buffers_come_back_after_an_error_and_a_panic() {
        let (pool, new) = numbered(8);
        let calls = AtomicUsize::new(0);
        let late = || match calls.fetch_add(1, Ordering::Relaxed) {
            3 => Err(failed()),
            _ => new(),
        };
        assert_eq!(pool.take(5, late).unwrap_err(), failed());
        assert_eq!(lock(&pool.free).len(), 3);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let _taken = pool.take(5, &new).unwrap();
            panic!("within a copy");
        }));
        assert!(ended.is_err());
        assert_eq!(lock(&pool.free).len(), 5);
    }

    #[test]
    fn every_piece_once() {
        for (buffers, pieces) in [(1, 1), (2, 7), (4, 3), (6, 100), (5, 11), (2, 0), (0, 0)] {
            let done: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            let mut own: Vec<usize> = vec![0; buffers];
            let work = |buffer: &mut usize, piece: usize| {
                *buffer += 1;
                done[piece].fetch_add(1, Ordering::Relaxed);
                Ok(true)
            };
            deal(&mut own, pieces, &work).unwrap();
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1), "{buffers}");
            assert_eq!(own.iter().sum::<usize>(), pieces);
            // Neighbours of one thread take turns.
            let apart = own.chunks(PAIR).all(|two| two[0] - two[two.len() - 1] <= 1);
            assert!(apart, "{own:?}");
        }
    }

    #[test]
    fn one_that_ends_ends_all() {
        let pieces = 1_000_000;
        let run = |end: &(dyn Fn() -> Result<bool> + Sync)| {
            let calls = AtomicUsize::new(0);
            let work = |_: &mut u8, piece: usize| {
                calls.fetch_add(1, Ordering::Relaxed);
                if piece == 5 { end() } else { Ok(true) }
            };
            let done = catch_unwind(AssertUnwindSafe(|| deal(&mut [0; 6], pieces, &work)));
            assert!(calls.into_inner() < pieces, "no thread has stopped");
            done
        };
        assert_eq!(run(&|| Ok(false)).unwrap(), Ok(()));
        assert_eq!(run(&|| Err(failed())).unwrap(), Err(failed()));
        let panic = run(&|| panic!("a source")).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"a source"));
    }
    #[cfg(target_os = "linux")]
    #[test]
    fn without_threads_the_caller_does_all() {
        use gemv_testkit::processes::{in_a_process, limit_addresses};
        let name = "pool::tests::without_threads_the_caller_does_all";
        // More than the limit leaves.
        if !in_a_process(name, &[("RUST_MIN_STACK", "1073741824")]) {
            return;
        }
        limit_addresses(Some(1 << 29));
        assert!(Builder::new().spawn(|| ()).is_err(), "the limit limits nothing");
        let mut own = [0; 6];
        let count = |buffer: &mut usize, _| {
            *buffer += 1;
            Ok(true)
        };
        deal(&mut own, 100, &count).unwrap();
        assert_eq!(own.iter().sum::<usize>(), 100);
        let refuse = |share| if share == 2 { Err(failed()) } else { Ok(()) };
        assert_eq!(each(vec![1, 2, 3], &refuse), Err(failed()));
    }
}
