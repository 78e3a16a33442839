//! Files that are read without being asked for: tables, compiled programs.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The bytes of a plain file of at most so many. A pipe or a device would have a product wait, or never end.
///
/// ```
/// let e = gemv::unstable::read_plain(std::env::temp_dir().as_ref(), 1000).unwrap_err();
/// assert_eq!(e.to_string(), "it is no plain file");
/// ```
///
/// # Errors
/// Those of the system; that it is something else, or larger.
pub fn read_plain(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let plain = |is_file: bool| match is_file {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file")),
    };
    // Before it is opened, which waits where it is a pipe; and again, since the name may stand for another file.
    plain(std::fs::metadata(path)?.is_file())?;
    let file = File::open(path)?;
    plain(file.metadata()?.is_file())?;
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// The same of a text.
pub(crate) fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let text = String::from_utf8(read_plain(path, most)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8"))
}
