//! The bytes of a file, mapped or in memory.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a plain file.
    pub fn map(path: &Path) -> io::Result<Bytes> {
        let plain = |is_file: bool| match is_file {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file")),
        };
        // Before it is opened, which waits where it is a pipe; and again, since the name may stand for another file.
        plain(std::fs::metadata(path)?.is_file())?;
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        plain(metadata.is_file())?;
        if metadata.len() == 0 {
            return Ok(Bytes::Owned(Vec::new()));
        }
        // SAFETY: the map is read only, and of a plain file. That nobody changes the file meanwhile is asked of the caller by
        // the documentation of the crate: the library only copies these bytes and compares them, and bounds come from the
        // copy of the directory that was made once.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Bytes::Mapped(map))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// The bytes of a matrix: a part of a file, which stays open as long as these do, or blocks that were put together. Cloning
/// is cheap.
#[derive(Clone)]
pub struct MatrixBytes {
    of: Arc<Bytes>,
    range: Range<usize>,
}

impl MatrixBytes {
    /// A part of a file.
    pub(crate) fn part(of: &Arc<Bytes>, range: Range<usize>) -> MatrixBytes {
        MatrixBytes { of: of.clone(), range }
    }

    pub(crate) fn owned(bytes: Vec<u8>) -> MatrixBytes {
        let range = 0..bytes.len();
        MatrixBytes { of: Arc::new(Bytes::Owned(bytes)), range }
    }
}

impl AsRef<[u8]> for MatrixBytes {
    fn as_ref(&self) -> &[u8] {
        &self.of[self.range.clone()]
    }
}

impl Deref for MatrixBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl fmt::Debug for MatrixBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.range.len())
    }
}
