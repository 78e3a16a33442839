//! The bytes of a file, mapped or in memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

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
