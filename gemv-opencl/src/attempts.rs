//! What is made once, by the thread that asks first, while others that want the same wait for it. No lock is held meanwhile:
//! different things are made at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gemv_core::Result;

type Attempt<T> = Arc<OnceLock<Result<T>>>;

/// By name: what was made, and what is being made.
#[derive(Debug)]
pub(crate) struct Attempts<T>(Mutex<HashMap<String, Attempt<T>>>);

impl<T> Default for Attempts<T> {
    fn default() -> Self {
        Attempts(Mutex::default())
    }
}

impl<T: Clone> Attempts<T> {
    /// What has this name, made now if it is not there.
    ///
    /// # Errors
    /// Those of `make`, to all that have waited for it. Whoever asks later tries again.
    pub(crate) fn get(&self, name: &str, make: impl FnOnce() -> Result<T>) -> Result<T> {
        // A panic leaves an attempt that nobody has made.
        let all = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt = all().entry(name.to_owned()).or_default().clone();
        let made = attempt.get_or_init(make);
        if made.is_err() {
            let mut all = all();
            if all.get(name).is_some_and(|of| Arc::ptr_eq(of, &attempt)) {
                all.remove(name);
            }
        }
        made.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use gemv_core::Error;

    use super::*;

    #[test]
    fn different_things_are_made_at_once_and_the_same_one_once() {
        let (all, made, both) = (Attempts::default(), AtomicUsize::new(0), Barrier::new(2));
        let make = || {
            made.fetch_add(1, Ordering::Relaxed);
            // Were the second one not made at the same time, this would wait for ever.
            both.wait();
            Ok(7)
        };
        std::thread::scope(|scope| {
            for name in ["a", "b", "a", "b"] {
                let (all, make) = (&all, &make);
                scope.spawn(move || assert_eq!(all.get(name, make).unwrap(), 7));
            }
        });
        assert_eq!(made.into_inner(), 2);
    }

    #[test]
    fn a_failure_is_told_to_all_that_wait_and_tried_again() {
        let (all, tried, begun) = (Attempts::default(), AtomicUsize::new(0), Barrier::new(2));
        let failure = || Error::Build { kernel: "k".into(), device: "d".into(), log: "no".into() };
        let fail = || {
            tried.fetch_add(1, Ordering::Relaxed);
            begun.wait();
            // Until the other one has it, too, beside the map and this thread.
            while Arc::strong_count(&all.0.lock().unwrap()["a"]) < 3 {
                std::thread::yield_now();
            }
            Err(failure())
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| all.get("a", fail));
            begun.wait();
            let second = scope.spawn(|| all.get("a", || Ok(1)));
            assert_eq!(first.join().unwrap().unwrap_err(), failure());
            assert_eq!(second.join().unwrap().unwrap_err(), failure());
        });
        assert_eq!((tried.into_inner(), all.get("a", || Ok(2)).unwrap()), (1, 2));
    }
}
