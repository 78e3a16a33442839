//! The context that is current on a thread. Other libraries read it: the current GPU of CUDA's runtime follows it.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use cudarc::driver::{result, sys};
use gemv_core::float_mode::{ForCalls, for_calls};
use gemv_core::fork::forks;

/// What this thread had before the driver is called, and has again when this is dropped: its current context, or none,
/// and its floating-point mode. The driver computes on the host, and a process may have asked for exceptions that trap.
#[must_use]
#[derive(Debug)]
pub(super) struct Caller {
    context: sys::CUcontext,
    /// Whether it stays current all along.
    stays: bool,
    _mode: ForCalls,
}

impl Caller {
    /// What is current.
    pub(super) fn now() -> Caller {
        let _mode = for_calls();
        Caller { context: current(), stays: false, _mode }
    }

    /// What is current, before this context is. Whether it is already.
    pub(super) fn before(context: sys::CUcontext) -> (Caller, bool) {
        let mut now = Caller::now();
        now.stays = now.context == context;
        let stays = now.stays;
        (now, stays)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.stays || current() == self.context {
            return;
        }
        // SAFETY: no context, or one that was current on this thread. A context that was destroyed since is refused.
        if let Err(e) = unsafe { result::ctx::set_current(self.context) } {
            log::debug!("cuCtxSetCurrent: {:?}", e.0);
        }
    }
}

/// While it lives, the driver's memory and modules may be asked for on this thread, although another library captures a stream,
/// which is not this device's (CUDA Driver API, `cuThreadExchangeStreamCaptureMode`).
#[must_use]
#[derive(Debug)]
pub(super) struct BesideCaptures(sys::CUstreamCaptureMode);

impl BesideCaptures {
    pub(super) fn begin() -> BesideCaptures {
        let relaxed = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        BesideCaptures(exchange(relaxed))
    }
}

impl Drop for BesideCaptures {
    fn drop(&mut self) {
        exchange(self.0);
    }
}

/// Sets the mode of this thread; the one that it had.
fn exchange(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: the mode is a local, of the values that there are.
    let done = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    if let Err(e) = done.result() {
        log::debug!("cuThreadExchangeStreamCaptureMode: {:?}", e.0);
    }
    mode
}

/// The context of this thread; null where there is none, or where the driver does not say.
fn current() -> sys::CUcontext {
    result::ctx::get_current().ok().flatten().unwrap_or(std::ptr::null_mut())
}

/// An object of cudarc, which makes its own context current when it is dropped: the thread's is restored. In a child of
/// the process that made it, where no call of the driver works, it is not dropped.
#[derive(Debug)]
pub(super) struct Held<T> {
    object: ManuallyDrop<T>,
    /// [`forks`] when it was made.
    forks: u32,
}

impl<T> Held<T> {
    pub(super) fn new(object: T) -> Held<T> {
        Held { object: ManuallyDrop::new(object), forks: forks() }
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if self.forks != forks() {
            return;
        }
        let (_caller, _relaxed) = (Caller::now(), BesideCaptures::begin());
        // SAFETY: it is dropped here alone, once.
        unsafe { ManuallyDrop::drop(&mut self.object) }
    }
}
