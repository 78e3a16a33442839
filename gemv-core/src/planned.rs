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
#[derive(Debug, Clone, Copy)]
struct State {
    run: Run,
    /// Why the work is not recorded, if it is not.
    unrecorded: Option<&'static str>,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State { run: Run::None, unrecorded: None }) };
}

/// Runs the function of a plan; `first` if it may allocate. Also says why its work is not recorded, if it is not.
pub(crate) fn within<R>(first: bool, function: impl FnOnce() -> R) -> (R, Option<&'static str>) {
    let run = if first { Run::First } else { Run::Later };
    during(State { run, unrecorded: None }, || (function(), STATE.get().unrecorded))
}

/// Does what a device that records has to refuse itself: products of several devices, which may go by way of the host.
#[doc(hidden)]
pub fn unplanned<R>(work: impl FnOnce() -> R) -> R {
    let state = STATE.get();
    let run = if state.run == Run::None { Run::None } else { Run::Unchecked };
    during(State { run, ..state }, work)
}

fn during<R>(state: State, function: impl FnOnce() -> R) -> R {
    struct Back(State);
    impl Drop for Back {
        fn drop(&mut self) {
            let State { run, unrecorded } = self.0;
            // What was said of a plan holds for the plan around it, of which it is a part.
            let inner = STATE.get().unrecorded.filter(|_| run != Run::None);
            STATE.set(State { run, unrecorded: unrecorded.or(inner) });
        }
    }
    let _back = Back(STATE.replace(state));
    function()
}

/// Whether this thread is in the function of a [`Plan`](crate::Plan): what is computed stays in the memory of its arrays.
#[doc(hidden)]
pub fn in_plan() -> bool {
    STATE.get().run != Run::None
}

/// Has the plan whose function this thread is in call it each time, on any device: the work has what a record does not
/// repeat. It counts while the plan runs for the first time.
#[doc(hidden)]
pub fn call_each_time(why: &'static str) {
    if in_plan() {
        STATE.set(State { unrecorded: Some(why), ..STATE.get() });
    }
}

/// Whether this thread is in the function of a plan, whose work is checked.
#[inline(always)]
pub(crate) fn inside() -> bool {
    matches!(STATE.get().run, Run::First | Run::Later)
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
        Work::Allocate if STATE.get().run == Run::First => return Ok(()),
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
