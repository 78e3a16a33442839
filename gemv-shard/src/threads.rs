//! Devices that compute at the same time.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

use gemv_core::{Device, Error as CoreError};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{Error, Result};

/// What is done on a device.
pub(crate) type Task<'a, R> = (&'a Device, Box<dyn FnOnce() -> Result<R> + Send + 'a>);

/// Whether the device computes on the pool of rayon that calls it, as the CPU does.
pub(crate) fn on_cpu(device: &Device) -> bool {
    device.info().rayon
}

/// Does the tasks of the CPU one after another on this thread, and each other one on a thread of its own, or on this one
/// where none can be made; without any of the CPU, the last one on this thread. The results are in the order of the tasks.
///
/// The CPU computes on rayon's current pool. A thread of its own would take the global one, and wait for ever
/// if this thread is a worker of it. And its parts would share the same cores.
///
/// All have ended when it returns. Of several errors it returns the first; a panic is one.
pub(crate) fn at_once<R: Send>(tasks: Vec<Task<'_, R>>) -> Result<Vec<R>> {
    let none = !tasks.iter().any(|(device, _)| on_cpu(device));
    let last = tasks.len().saturating_sub(1);
    together(tasks, |place, device| match on_cpu(device) || none && place == last {
        true => By::Caller,
        false => By::Thread,
    })
}

/// As [`at_once`], for tasks that work on resident operands: a device that computes while the caller goes on needs no
/// thread. Its tasks come first on this one.
pub(crate) fn started<R: Send>(tasks: Vec<Task<'_, R>>) -> Result<Vec<R>> {
    together(tasks, |_, device| match device.info().asynchronous {
        true => By::CallerFirst,
        false if on_cpu(device) => By::Caller,
        false => By::Thread,
    })
}

/// Who does a task.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    /// This thread, when threads are started and before its others.
    CallerFirst,
    /// This thread.
    Caller,
    /// A thread of its own.
    Thread,
}

/// Does each task by whom it is for: told its place and its device.
///
/// While this thread records the devices, it does all tasks: another one would wait for the end of the record.
///
/// # Errors
/// If this thread records some of the devices and others not: what these do would be missing in a replay.
fn together<'a, R: Send>(
    tasks: Vec<Task<'a, R>>,
    by: impl Fn(usize, &Device) -> By,
) -> Result<Vec<R>> {
    let records = |(device, _): &Task<'a, R>| device.backend().is_recording();
    let recording = tasks.iter().any(records);
    if let Some((device, _)) = tasks.iter().find(|task| recording && !records(task)) {
        let reason = "the plan records other devices, and not this one: see Sharded::plan".into();
        return Err(failed(device, "Plan::run", reason));
    }
    let by = |place, device: &Device| if recording { By::Caller } else { by(place, device) };
    let (devices, tasks): (Vec<_>, Vec<_>) =
        tasks.into_iter().map(|(device, task)| (device, Mutex::new(Some(task)))).unzip();
    let take = |place: usize| {
        let task = tasks[place].lock().unwrap_or_else(PoisonError::into_inner).take();
        task.expect("each is done once")
    };
    let take = &take;
    let results: Vec<Result<R>> = scope(|scope| {
        let begun = devices.iter().enumerate().map(|(place, device)| match by(place, device) {
            By::Thread => match Builder::new().spawn_scoped(scope, move || take(place)()) {
                Ok(thread) => (By::Thread, Some(thread)),
                // None can be made.
                Err(_) => (By::Caller, None),
            },
            by => (by, None),
        });
        let mut begun: Vec<_> = begun.map(Some).collect();
        let mut results: Vec<Option<Result<R>>> = begun.iter().map(|_| None).collect();
        // All of this thread's are done before the first other one is waited for.
        for turn in [By::CallerFirst, By::Caller, By::Thread] {
            for (place, device) in devices.iter().enumerate() {
                let Some((_, thread)) = begun[place].take_if(|(by, _)| *by == turn) else {
                    continue;
                };
                let done = match thread {
                    Some(thread) => thread.join(),
                    None => catch_unwind(AssertUnwindSafe(take(place))),
                };
                results[place] = Some(done.map_err(|panic| panicked(device, &*panic)).flatten());
            }
        }
        results.into_iter().map(|result| result.expect("one of each turn")).collect()
    });
    results.into_iter().collect()
}

/// Tells the calling thread that so many bytes are done; false if it does not want to hear of more.
pub(crate) type Told<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Does the same work on several threads, and tells of it on this one. A thread tells when it has `every` bytes,
/// and of the rest at its end: at each telling the calling thread wakes up, and takes a core from the others.
///
/// The CPU computes on rayon's current pool. Each thread is a pool by itself here, so that none waits for another's
/// part. A single thread is this one, with its own pool.
pub(crate) fn each_alone(
    threads: usize,
    every: u64,
    work: &(dyn Fn(Told<'_>) + Sync),
    told: &mut dyn FnMut(u64),
) {
    if threads < 2 {
        work(&mut |bytes| {
            told(bytes);
            true
        });
        return;
    }
    // As many as can be made.
    let pool = |_| ThreadPoolBuilder::new().num_threads(1).build().ok();
    let pools: Vec<_> = (0..threads).map_while(pool).collect();
    if pools.is_empty() {
        return each_alone(1, every, work, told);
    }
    // What is told is hardly behind what is done.
    let (sender, heard) = sync_channel(2 * threads);
    let mut heard = Some(heard);
    // A panic drops it: no thread is heard any more.
    let mut wait = || heard.take().into_iter().flatten().for_each(&mut *told);
    start(&pools, sender, every, work, &mut wait);
}

/// Starts the work in each pool, and then waits on this thread. A panic of either is passed on when all have ended.
fn start(
    pools: &[ThreadPool],
    sender: SyncSender<u64>,
    every: u64,
    work: &(dyn Fn(Told<'_>) + Sync),
    wait: &mut dyn FnMut(),
) {
    let Some((first, others)) = pools.split_first() else {
        drop(sender);
        return wait();
    };
    first.in_place_scope(|scope| {
        let mine = sender.clone();
        scope.spawn(move |_| {
            let mut untold = 0;
            work(&mut |bytes| {
                untold += bytes;
                untold < every || mine.send(std::mem::take(&mut untold)).is_ok()
            });
            if untold > 0 {
                // If nobody hears it, a panic is on its way.
                let _ = mine.send(untold);
            }
        });
        start(others, sender, every, work, wait);
    });
}

fn panicked(device: &Device, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    // One sentence, whatever the message.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    failed(device, "its part of the matrix", format!("panic: {text}"))
}

fn failed(device: &Device, call: &'static str, reason: String) -> Error {
    CoreError::Device { device: device.info().id.clone(), call, reason }.into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn threads_tell_of_several_parts_together() {
        for (every, most) in [(0, 1000), (1, 1000), (100, 12), (u64::MAX, 2)] {
            let left = AtomicUsize::new(1000);
            let take =
                || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            let work = |told: Told<'_>| while take().is_ok() && told(1) {};
            let (mut tellings, mut bytes) = (0, 0);
            let mut told = |some| (tellings, bytes) = (tellings + 1, bytes + some);
            each_alone(2, every, &work, &mut told);
            assert_eq!(bytes, 1000);
            assert!((1..=most).contains(&tellings), "{tellings} tellings, {every} bytes each");
        }
    }
}
