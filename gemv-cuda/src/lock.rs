//! A lock that a panic elsewhere does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic elsewhere leaves no state half made: what a lock guards is rebuilt where it is missing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
