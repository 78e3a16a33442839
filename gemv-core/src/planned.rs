//! What the function of a [`Plan`](crate::Plan) may not do: the same on every device, whether it records or not.

use std::cell::Cell;

use crate::{Error, Result};

/// In which run of a plan this thread is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Run {
    None,
    /// Arrays may be given memory of their own.
    First,
    Later,
}

thread_local! {
    static RUN: Cell<Run> = const { Cell::new(Run::None) };
}

/// Runs the function of a plan; `first` if it may allocate.
pub(crate) fn within<R>(first: bool, function: impl FnOnce() -> R) -> R {
    during(if first { Run::First } else { Run::Later }, function)
}

/// Does what a device that records has to refuse itself: products of several devices, which may go by way of the host.
#[doc(hidden)]
pub fn unplanned<R>(work: impl FnOnce() -> R) -> R {
    during(Run::None, work)
}

fn during<R>(run: Run, function: impl FnOnce() -> R) -> R {
    struct Back(Run);
    impl Drop for Back {
        fn drop(&mut self) {
            RUN.set(self.0);
        }
    }
    let _back = Back(RUN.replace(run));
    function()
}

/// Whether this thread is in the function of a plan.
#[inline(always)]
pub(crate) fn inside() -> bool {
    RUN.get() != Run::None
}

/// What cannot be recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// An operand or a result of the host, which is copied.
    Host,
    Download,
    Synchronize,
    Kernel,
    Allocate,
}

/// Refuses it, if this thread is in the function of a plan.
///
/// # Errors
/// [`Error::Device`], with what to do in its place.
#[inline]
pub(crate) fn check(work: Work, device: &str) -> Result<()> {
    if inside() { refuse(work, device) } else { Ok(()) }
}

#[cold]
fn refuse(work: Work, device: &str) -> Result<()> {
    let reason = match work {
        Work::Allocate if RUN.get() == Run::First => return Ok(()),
        Work::Host => {
            "its function has an operand or a result on the host (upload it before, by `to_device`), which"
        }
        Work::Download => "its function downloads (read the plan's state between two runs), which",
        Work::Synchronize => "its function waits for the device, which",
        Work::Kernel => "its function launches a kernel of your own, which",
        Work::Allocate => {
            "its function makes an array in each run (make it before, and write to it, by `try_gpu_dot_into` and its \
             like; and write no array while a clone or a view of it is alive), which"
        }
    };
    let (device, call) = (device.into(), "Plan::run");
    Err(Error::Device { device, call, reason: format!("{reason} cannot be recorded") })
}
