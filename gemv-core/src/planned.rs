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
    /// Whatever it is, nothing is refused.
    Unchecked,
}

/// A thread in the function of a plan, or outside of one.
struct State {
    /// A cell of its own: each small product reads it.
    run: Cell<Run>,
    /// Why the work is not recorded, if it is not.
    unrecorded: Cell<Option<&'static str>>,
}

thread_local! {
    static STATE: State =
        const { State { run: Cell::new(Run::None), unrecorded: Cell::new(None) } };
}

/// Runs the function of a plan; `first` if it may allocate. Also says why its work is not recorded, if it is not.
pub(crate) fn within<R>(first: bool, function: impl FnOnce() -> R) -> (R, Option<&'static str>) {
    let run = if first { Run::First } else { Run::Later };
    during(run, None, || (function(), STATE.with(|state| state.unrecorded.get())))
}

/// Does what a device that records has to refuse itself: products of several devices, which may go by way of the host.
#[doc(hidden)]
pub fn unplanned<R>(work: impl FnOnce() -> R) -> R {
    let run = if in_plan() { Run::Unchecked } else { Run::None };
    during(run, STATE.with(|state| state.unrecorded.get()), work)
}

fn during<R>(run: Run, why: Option<&'static str>, function: impl FnOnce() -> R) -> R {
    struct Back(Run, Option<&'static str>);
    impl Drop for Back {
        fn drop(&mut self) {
            STATE.with(|state| {
                state.run.set(self.0);
                // What was said of a plan holds for the plan around it, of which it is a part.
                let inner = state.unrecorded.get().filter(|_| self.0 != Run::None);
                state.unrecorded.set(self.1.or(inner));
            });
        }
    }
    let _back = STATE.with(|state| Back(state.run.replace(run), state.unrecorded.replace(why)));
    function()
}

/// Whether this thread is in the function of a [`Plan`](crate::Plan): what is computed stays in the memory of its arrays.
#[doc(hidden)]
pub fn in_plan() -> bool {
    run() != Run::None
}

/// Has the plan whose function this thread is in call it each time, on any device: the work has what a record does not
/// repeat. It counts while the plan runs for the first time.
#[doc(hidden)]
pub fn call_each_time(why: &'static str) {
    if in_plan() {
        STATE.with(|state| state.unrecorded.set(Some(why)));
    }
}

#[inline(always)]
fn run() -> Run {
    STATE.with(|state| state.run.get())
}

/// Whether this thread is in the function of a plan, whose work is checked.
#[inline(always)]
pub(crate) fn inside() -> bool {
    matches!(run(), Run::First | Run::Later)
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
        Work::Allocate if run() == Run::First => return Ok(()),
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
