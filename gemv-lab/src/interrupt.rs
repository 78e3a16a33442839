//! Ctrl-C in a command that measures: it ends between two problems, with what it has.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a shell says of a program that Ctrl-C has ended: 128, and the number of the signal.
pub const EXIT: u8 = 130;

static STOPPED: AtomicBool = AtomicBool::new(false);

/// From now on the first Ctrl-C is only noted. The second ends the process at once.
///
/// # Errors
/// If the system has no handler for it.
pub fn watch() -> Result<(), ctrlc::Error> {
    static WATCHED: OnceLock<()> = OnceLock::new();
    if WATCHED.set(()).is_err() {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        if STOPPED.swap(true, Ordering::Relaxed) {
            std::process::exit(EXIT.into());
        }
        eprintln!("\nstopping after this problem; once more stops at once");
    })
}

/// Whether there was one.
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// The error of a run that Ctrl-C has stopped.
#[derive(Debug, thiserror::Error)]
#[error("Ctrl-C")]
pub struct Interrupted;

impl Interrupted {
    /// With what became of the run.
    pub fn with(what: String) -> anyhow::Error {
        anyhow::Error::new(Interrupted).context(what)
    }
}
