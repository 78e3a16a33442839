//! What can go wrong.

use std::fmt::{self, Debug, Display};

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with a matrix of a packed format, in one sentence.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// The format, or the name that was taken for one.
    pub format: String,
    /// What is wrong.
    pub reason: String,
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.format, self.reason)
    }
}

impl Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
