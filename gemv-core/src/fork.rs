//! Forks: what a child of a process may use of what its parent had.
//!
//! A child that `fork` makes has a copy of the memory, and one thread: a copy of the one that forked. A lock that another
//! thread held stays held, a pool of threads has none, and a GPU's driver does not work. So whatever waits for another
//! thread, or holds a driver, asks [`forks`] whether it is of this process.
//!
//! The count is kept on Unix. Elsewhere there is no fork.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::{Error, Result};

static FORKS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static FORKED: Cell<bool> = const { Cell::new(false) };
}

/// How many forks lie between the process that loaded this library and this process: 0, but in a child of `fork`.
///
/// It takes as long as one load from memory.
///
/// ```
/// assert_eq!(gemv::unstable::fork::forks(), 0);
/// ```
#[inline]
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Whether the calling thread is the copy of the one that forked. It may be a worker of a pool that has no other
/// thread, and that nothing may wait for.
///
/// ```
/// assert!(!gemv::unstable::fork::is_survivor());
/// ```
#[inline]
pub fn is_survivor() -> bool {
    FORKED.get()
}

/// Fails in a process that was forked after there were so many [`forks`]: for what a backend opened before.
///
/// ```
/// use gemv::unstable::fork::{check, forks};
///
/// let opened = forks();
/// assert!(check(opened, "cuda:0").is_ok());
/// let why = check(opened + 1, "cuda:0").unwrap_err().to_string();
/// assert!(why.starts_with("cuda:0 was in use before this process was forked"));
/// ```
///
/// # Errors
/// [`Error::Forked`] with the name of the device.
#[inline]
pub fn check(opened: u32, device: &str) -> Result<()> {
    if opened == forks() { Ok(()) } else { Err(forked(device)) }
}

#[cold]
fn forked(device: &str) -> Error {
    Error::Forked { device: device.into() }
}

/// The one process that may use a driver: the first that asks.
///
/// ```
/// use gemv::unstable::fork::Owner;
///
/// static DRIVER: Owner = Owner::new();
/// assert!(DRIVER.claim() && DRIVER.claim()); // a child of `fork` is told false
/// ```
#[derive(Debug, Default)]
pub struct Owner(AtomicU32);

impl Owner {
    /// Nobody has asked.
    pub const fn new() -> Owner {
        Owner(AtomicU32::new(0))
    }

    /// Whether it is this process, which it becomes if there is none.
    pub fn claim(&self) -> bool {
        let mine = forks() + 1;
        let before = self.0.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed);
        before.is_ok() || before == Err(mine)
    }
}

/// A value of each process: a child of `fork` begins with a new one, whatever the threads of its parent did with theirs.
///
/// ```
/// use gemv::unstable::fork::PerProcess;
/// use std::sync::Mutex;
///
/// static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new();
/// NAMES.get().lock().unwrap().push("one".into());
/// assert_eq!(NAMES.get().lock().unwrap().len(), 1);
/// ```
pub struct PerProcess<T>(AtomicPtr<Own<T>>);

struct Own<T> {
    forks: u32,
    value: T,
}

// SAFETY: it owns a `T` in a box and gives out references to it.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for PerProcess<T> {}

impl<T> PerProcess<T> {
    /// Nothing, until somebody asks.
    pub const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T: Default> PerProcess<T> {
    /// The value of this process. Nothing waits here: of two threads that make it at once, both get that of one.
    pub fn get(&self) -> &T {
        let forks = forks();
        let mut at = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a box that this function has published; it is freed by `drop` alone.
            if let Some(own) = unsafe { at.as_ref() }
                && own.forks == forks
            {
                return &own.value;
            }
            let new = Box::into_raw(Box::new(Own { forks, value: T::default() }));
            match self.0.compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire) {
                // The parent's stays where it is: the thread that forked may be using it.
                Ok(_) => at = new,
                Err(other) => {
                    // SAFETY: from `into_raw`, and nobody else has seen it.
                    drop(unsafe { Box::from_raw(new) });
                    at = other;
                }
            }
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let at = *self.0.get_mut();
        // SAFETY: null, or from `into_raw`, and freed here alone.
        if unsafe { at.as_ref() }.is_some_and(|own| own.forks == forks()) {
            // SAFETY: nobody borrows `self`, so nobody has a reference to it. A parent's stays: one of its threads may have been
            // writing to it.
            drop(unsafe { Box::from_raw(at) });
        }
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerProcess")
    }
}

/// A value that is made once, as [`OnceLock`](std::sync::OnceLock) has it. A child of `fork` has what was made before;
/// what another thread of its parent was about to make, it makes itself, and does not wait for that thread.
///
/// ```
/// use gemv::unstable::fork::Once;
///
/// static ANSWER: Once<u32> = Once::new();
/// assert_eq!(ANSWER.get(), None);
/// assert_eq!((ANSWER.get_or_init(|| 42), ANSWER.get_or_init(|| 43)), (&42, &42));
/// ```
pub struct Once<T> {
    made: AtomicBool,
    value: UnsafeCell<MaybeUninit<T>>,
    making: PerProcess<Mutex<()>>,
}

// SAFETY: threads share references to the value, and one may make it that another one drops.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// Nothing is made.
    pub const fn new() -> Once<T> {
        Once {
            made: AtomicBool::new(false),
            value: UnsafeCell::new(MaybeUninit::uninit()),
            making: PerProcess::new(),
        }
    }

    /// The value, if it is made.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: `made` was set after the value was written, and nothing writes it from then on.
        self.made.load(Ordering::Acquire).then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// The value, which the first caller makes. Others wait for it. If `make` panics, the next one makes it.
    #[inline]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.get() {
            Some(value) => value,
            None => self.init(make),
        }
    }

    #[cold]
    fn init(&self, make: impl FnOnce() -> T) -> &T {
        let _one = self.making.get().lock().unwrap_or_else(PoisonError::into_inner);
        if self.get().is_none() {
            let value = make();
            // SAFETY: one thread of a process is here, and a child has one that could have been. What a thread of the
            // parent has written in part is written anew. No reader is at it before `made` is set.
            unsafe { (*self.value.get()).write(value) };
            self.made.store(true, Ordering::Release);
        }
        self.get().expect("made")
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Once::new()
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        if *self.made.get_mut() {
            // SAFETY: it was written, and is not used after this.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// Counts the forks from when the library is loaded: whoever forks later may have used none of it, and a pool of rayon all
/// the same.
#[cfg(all(unix, not(target_os = "emscripten")))]
mod watch {
    use std::ffi::c_int;
    use std::sync::atomic::Ordering;

    use super::{FORKED, FORKS};

    type Handler = Option<unsafe extern "C" fn()>;

    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }

    unsafe extern "C" fn child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        FORKED.set(true);
    }

    extern "C" fn watch() {
        // SAFETY: the type is the one that POSIX declares. The handler writes an atomic and a thread-local without a
        // destructor, which a child may do. It fails for memory alone: then forks are not counted.
        unsafe { pthread_atfork(None, None, Some(child)) };
    }

    // SAFETY: the section is a list of functions that the loader calls once, before any other of this library.
    #[used]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
    static AT_LOAD: extern "C" fn() = watch;
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn one_of_many_threads_makes_it() {
        for _ in 0..200 {
            let (once, made, begin) = (Once::new(), AtomicUsize::new(0), Barrier::new(4));
            let own: PerProcess<Mutex<u32>> = PerProcess::new();
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..4)
                    .map(|k| {
                        let (once, made, begin, own) = (&once, &made, &begin, &own);
                        scope.spawn(move || {
                            begin.wait();
                            let value = once.get_or_init(|| {
                                made.fetch_add(1, Ordering::Relaxed);
                                vec![k]
                            });
                            (ptr::from_ref(value) as usize, ptr::from_ref(own.get()) as usize)
                        })
                    })
                    .collect();
                let mut all = all.into_iter().map(|thread| thread.join().unwrap());
                let first = all.next();
                assert!(all.all(|other| Some(other) == first));
            });
            assert_eq!(made.into_inner(), 1);
        }
    }

    #[test]
    fn what_panics_is_made_by_the_next() {
        let once = Once::new();
        let panic = || -> u32 { panic!("it cannot be made") };
        assert!(catch_unwind(AssertUnwindSafe(|| *once.get_or_init(panic))).is_err());
        assert_eq!((once.get(), once.get_or_init(|| 7)), (None, &7));
    }

    #[test]
    fn it_is_dropped_once() {
        let value = Arc::new(());
        let (once, _none) = (Once::new(), Once::<Arc<()>>::new());
        once.get_or_init(|| value.clone());
        assert_eq!(Arc::strong_count(&value), 2);
        drop(once);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
