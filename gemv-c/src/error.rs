//! Status codes, and a sentence for each thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gemv::Error;

/// `gemv_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Ok = 0,
    Argument = 1,
    Shape = 2,
    NoDevice = 3,
    Unsupported = 4,
    OutOfMemory = 5,
    Device = 6,
    Forked = 7,
    Internal = 8,
}

/// What failed, for programs and for people.
pub(crate) struct Failure {
    status: Status,
    text: String,
}

/// An argument that is wrong.
pub(crate) fn wrong(text: impl Display) -> Failure {
    Failure { status: Status::Argument, text: text.to_string() }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::Shape(_) => Status::Shape,
            Error::NoDevice { .. }
            | Error::NoBackend { .. }
            | Error::NotBuilt { .. }
            | Error::Environment { .. }
            | Error::DriverMissing { .. } => Status::NoDevice,
            Error::OutOfMemory { .. } => Status::OutOfMemory,
            Error::Unsupported { .. } => Status::Unsupported,
            Error::Operand { .. } | Error::Packed(_) | Error::WrongDevice { .. } => {
                Status::Argument
            }
            Error::Forked { .. } => Status::Forked,
            _ => Status::Device,
        };
        Failure { status, text: error.to_string() }
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a function of the interface.
pub(crate) fn guarded(run: impl FnOnce() -> Result<()>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure { status: Status::Internal, text: said(&*panic) },
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A thread that ends keeps no sentence.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = text;
        }
    });
    failure.status
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("a fault of gemv: {}", text.unwrap_or_default())
}

/// The sentence of the last error of this thread: it stays until the next error of the thread, or its end.
#[unsafe(no_mangle)]
extern "C" fn gemv_last_error() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.as_ptr()))
        .unwrap_or(c"".as_ptr())
}

/// The meaning of a status in a few words.
#[unsafe(no_mangle)]
extern "C" fn gemv_status_name(status: i32) -> *const c_char {
    let name = match status {
        0 => c"success",
        1 => c"a wrong argument",
        2 => c"shapes that do not fit",
        3 => c"no such device",
        4 => c"not supported by the device",
        5 => c"out of memory",
        6 => c"a failure of the device",
        7 => c"a device that was in use before the fork",
        8 => c"a fault of gemv",
        _ => c"no status",
    };
    name.as_ptr()
}
