//! Devices that compute at the same time.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, scope};

use gemv_core::{Device, Error as CoreError};

use crate::{Error, Result};

/// What is done on a device.
pub(crate) type Task<'a, R> = (&'a Device, Box<dyn FnOnce() -> Result<R> + Send + 'a>);

/// Does each task on a thread of its own, and the last on this one. The results are in the order of the tasks.
///
/// All have ended when it returns. Of several errors it returns the first; a panic is one.
pub(crate) fn at_once<R: Send>(mut tasks: Vec<Task<'_, R>>) -> Result<Vec<R>> {
    let Some((device, last)) = tasks.pop() else { return Ok(Vec::new()) };
    let results: Vec<Result<R>> = scope(|scope| {
        let started: Vec<_> = tasks
            .into_iter()
            .map(|(device, task)| (device, Builder::new().spawn_scoped(scope, task)))
            .collect();
        let last = catch_unwind(AssertUnwindSafe(last)).map_err(|panic| panicked(device, &*panic));
        let joined = started.into_iter().map(|(device, thread)| match thread {
            Ok(thread) => thread.join().map_err(|panic| panicked(device, &*panic)).flatten(),
            Err(why) => Err(failed(device, "starting a thread for it", why.to_string())),
        });
        joined.collect::<Vec<_>>().into_iter().chain([last.flatten()]).collect()
    });
    results.into_iter().collect()
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
