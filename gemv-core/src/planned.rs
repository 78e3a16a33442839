//! What the function of a [`Plan`](crate::Plan) may not do: the same on every device, whether it records or not.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::{Error, Result};

/// In which run of a plan this thread is, and of which devices it is, by their numbers.
#[derive(Debug, Clone)]
struct Run {
    devices: Arc<[usize]>,
    /// Whether arrays may be given memory of their own.
    first: bool,
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// Runs the function of a plan of these devices; `first` if it may allocate.
pub(crate) fn within<R>(devices: &Arc<[usize]>, first: bool, function: impl FnOnce() -> R) -> R {
    struct Back(Option<Run>);
    impl Drop for Back {
        fn drop(&mut self) {
            INSIDE.set(self.0.is_some());
            RUN.replace(self.0.take());
        }
    }
    let _back = Back(RUN.replace(Some(Run { devices: devices.clone(), first })));
    INSIDE.set(true);
    function()
}

/// Whether this thread is in the function of a plan.
#[inline(always)]
pub(crate) fn inside() -> bool {
    INSIDE.get()
}

/// Work of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// A step or a product of resident operands.
    Resident,
    /// An operand or a result of the host, which is copied.
    Host,
    Download,
    Synchronize,
    Kernel,
    Allocate,
}

/// Refuses what cannot be recorded, if this thread is in the function of a plan.
///
/// # Errors
/// [`Error::Device`], with what to do in its place.
#[inline]
pub(crate) fn check(device: usize, work: Work, id: &str) -> Result<()> {
    if inside() { refuse(device, work, id) } else { Ok(()) }
}

#[cold]
fn refuse(device: usize, work: Work, id: &str) -> Result<()> {
    let Some(Run { devices, first }) = RUN.with_borrow(Option::clone) else { return Ok(()) };
    let reason = match work {
        _ if !devices.contains(&device) => {
            "its function works on another device than the plan's, which"
        }
        Work::Resident => return Ok(()),
        Work::Allocate if first => return Ok(()),
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
    let (device, call) = (id.into(), "Plan::run");
    Err(Error::Device { device, call, reason: format!("{reason} cannot be recorded") })
}
