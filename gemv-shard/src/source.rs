//! Where the elements of a matrix come from that is not held whole: a file, or the host's memory.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytemuck::Pod;
use ndarray::{ArrayView2, Axis, Slice};

use crate::npy::refused;
use crate::{Error, Result};

/// Bytes of a matrix, in the order of its elements. Any number of threads read them at once.
pub(crate) enum Source<'a> {
    /// Of a file, from where its data begins.
    File { path: PathBuf, file: File, start: u64, stamp: Stamp },
    /// Of an array.
    Memory(Copies<'a>),
}

/// What a file was when it was opened: its length, and when it was changed.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    links: Links,
}

/// The number of a file's names, and when that or anything else of it was changed: a program may set the other time
/// back, as `touch -r` and archivers do, but not this one.
#[cfg(unix)]
type Links = (u64, i64, i64);
#[cfg(not(unix))]
type Links = ();

impl Stamp {
    /// What the file is now.
    ///
    /// # Errors
    /// Those of the system.
    pub fn of(file: &File) -> io::Result<Stamp> {
        let of = file.metadata()?;
        #[cfg(unix)]
        let links = {
            use std::os::unix::fs::MetadataExt;
            (of.nlink(), of.ctime(), of.ctime_nsec())
        };
        #[cfg(not(unix))]
        let links = ();
        Ok(Stamp { len: of.len(), modified: of.modified().ok(), links })
    }

    /// Whether the file is still the same.
    ///
    /// # Errors
    /// Those of the system.
    pub fn holds(&self, file: &File) -> io::Result<bool> {
        let now = Stamp::of(file)?;
        // Another file may have taken its name, which leaves this one as it was.
        #[cfg(unix)]
        let alike = now.links == self.links || now.links.0 != self.links.0;
        #[cfg(not(unix))]
        let alike = true;
        Ok((now.len, now.modified) == (self.len, self.modified) && alike)
    }
}

/// Copies the bytes from a place on.
type Copies<'a> = Box<dyn Fn(usize, &mut [u8]) + Send + Sync + 'a>;

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File { path, .. } => write!(f, "File({})", path.display()),
            Source::Memory(_) => f.write_str("Memory"),
        }
    }
}

impl<'a> Source<'a> {
    /// The elements of a matrix, row by row.
    pub(crate) fn rows<T: Pod + Sync>(rows: ArrayView2<'a, T>) -> Source<'a> {
        if let Some(all) = rows.to_slice() {
            let all: &'a [u8] = bytemuck::cast_slice(all);
            return Source::Memory(Box::new(|first, to| {
                to.copy_from_slice(&all[first..][..to.len()])
            }));
        }
        Source::Memory(Box::new(move |first, to| {
            let mut to: &mut [T] = bytemuck::cast_slice_mut(to);
            let (mut at, columns) = (first / size_of::<T>(), rows.ncols());
            while !to.is_empty() {
                let (row, column) = (at / columns, at % columns);
                let count = to.len().min(columns - column);
                let (piece, rest) = to.split_at_mut(count);
                let from = rows.row(row);
                let from = from.slice_axis(Axis(0), Slice::from(column..column + count));
                match from.as_slice() {
                    Some(from) => piece.copy_from_slice(from),
                    None => piece.iter_mut().zip(&from).for_each(|(to, from)| *to = *from),
                }
                (at, to) = (at + count, rest);
            }
        }))
    }

    /// Copies the bytes from this place on.
    pub(crate) fn read(&self, first: usize, to: &mut [u8]) -> Result<()> {
        match self {
            Source::File { file, start, .. } => {
                let read = read_exact_at(file, start + first as u64, to);
                read.map_err(|e| match e.kind() {
                    io::ErrorKind::UnexpectedEof => {
                        self.refused("the file became shorter while it was read")
                    }
                    _ => self.refused(e.to_string()),
                })
            }
            Source::Memory(copy) => {
                copy(first, to);
                Ok(())
            }
        }
    }

    /// Fails if the file is not the one that was opened, so that parts of two may have been read.
    pub(crate) fn unchanged(&self) -> Result<()> {
        let Source::File { file, stamp, .. } = self else { return Ok(()) };
        match stamp.holds(file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.refused("the file was changed while it was read")),
            Err(e) => Err(self.refused(e.to_string())),
        }
    }

    /// An error, with the file's name.
    pub(crate) fn refused(&self, reason: impl Into<String>) -> Error {
        match self {
            Source::File { path, .. } => named(path, refused(reason)),
            Source::Memory(_) => refused(reason),
        }
    }
}

/// The error of a file, with its name.
pub(crate) fn named(path: &Path, e: Error) -> Error {
    match e {
        Error::File { reason } => refused(format!("{}: {reason}", path.display())),
        e => e,
    }
}

/// Reads at a place, which leaves that of other threads alone.
fn read_exact_at(file: &File, mut at: u64, mut to: &mut [u8]) -> io::Result<()> {
    while !to.is_empty() {
        match read_at(file, at, to) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => (at, to) = (at + count as u64, &mut to[count..]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(unix)]
use std::os::unix::fs::FileExt;
#[cfg(unix)]
fn read_at(file: &File, at: u64, to: &mut [u8]) -> io::Result<usize> {
    file.read_at(to, at)
}

#[cfg(windows)]
use std::os::windows::fs::FileExt;
#[cfg(windows)]
fn read_at(file: &File, at: u64, to: &mut [u8]) -> io::Result<usize> {
    file.seek_read(to, at)
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;

    /// Also where the time is set back; and one that only loses its name is the same.
    #[cfg(unix)]
    #[test]
    fn a_changed_file_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        std::fs::write(&path, "old").unwrap();
        let file = File::open(&path).unwrap();
        let (before, time) = (Stamp::of(&file).unwrap(), file.metadata().unwrap().modified());
        assert!(before.holds(&file).unwrap());
        // Clocks of files tick some hundred times a second.
        let changed = || {
            std::fs::write(&path, "new").unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(*time.as_ref().unwrap())
        };
        let ticks = (0..1_000_000).find(|_| {
            changed().unwrap();
            !before.holds(&file).unwrap()
        });
        assert!(ticks.is_some());
        let before = Stamp::of(&file).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(before.holds(&file).unwrap());
    }

    #[test]
    fn views_are_read_from_any_place() {
        let a = Array2::from_shape_fn((5, 7), |(i, j)| (10 * i + j) as u16);
        let cut = |rows: Slice, columns: Slice| {
            let mut view = a.view();
            view.slice_axis_inplace(Axis(0), rows);
            view.slice_axis_inplace(Axis(1), columns);
            view
        };
        let all = || Slice::from(..);
        let views = [
            a.view(),
            a.t(),
            cut(Slice::from(1..), Slice::from(2..6)),
            cut(Slice::new(0, None, -2), all()),
            cut(all(), Slice::new(0, None, 3)),
            cut(Slice::from(..1), all()),
            cut(all(), Slice::from(..0)),
        ];
        for view in views {
            let want: Vec<u16> = view.iter().copied().collect();
            let source = Source::rows(view);
            for (first, end) in (0..=want.len()).flat_map(|f| (f..=want.len()).map(move |e| (f, e)))
            {
                let mut got = vec![0u16; end - first];
                source.read(2 * first, bytemuck::cast_slice_mut(&mut got)).unwrap();
                assert_eq!(got, want[first..end]);
            }
        }
    }
}
