//! What can be wrong with a file.

use std::fmt::{self, Display};

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with a file of weights, in one sentence that names the file and the tensor.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    file: String,
    reason: String,
}

impl Error {
    pub(crate) fn new(file: &str, reason: impl Display) -> Error {
        // Names come from the file, of any length, and sentences have one line.
        let plain = |text: String| match text.contains(char::is_control) {
            true => cut(text.escape_debug().to_string()),
            false => cut(text),
        };
        Error { file: plain(file.into()), reason: plain(reason.to_string()) }
    }

    /// The file's name, as it was given.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// What is wrong with it.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Characters that are shown of the beginning and of the end of a long text.
const SHOWN: usize = 300;

/// A long text without its middle.
fn cut(text: String) -> String {
    let len = text.chars().count();
    if len <= 2 * SHOWN {
        return text;
    }
    let first: String = text.chars().take(SHOWN).collect();
    let last: String = text.chars().skip(len - SHOWN).collect();
    format!("{first} .. {last}")
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.reason)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
