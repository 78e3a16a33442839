//! NumPy's `.npy` files, formats 1.0 to 3.0: their data, read once into memory of its own type.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytemuck::Pod;
use gemv::{Accumulator, Dtype, Element};
use gemv_lab::files::Output;
#[cfg(unix)]
use gemv_lab::files::stdin;
use gemv_shard::npy::{self, Header, check_length};
use gemv_shard::{Stamp, Streamed};

use crate::npz;

/// An element type of a file.
pub(crate) trait Number: Element + Pod {
    /// The element as text that reads back to the same bits, unless it is NaN. A comma
    /// separates the parts of a complex number.
    fn text(self) -> String;
}

impl<T: Element + Pod> Number for T {
    fn text(self) -> String {
        let (re, im) = self.widen().parts();
        let part = |part: f64| match T::DTYPE.needs_f64() {
            true => format!("{part:?}"),
            // The shortest text of an f32 is shorter than that of the same number as f64.
            false => format!("{:?}", part as f32),
        };
        if T::DTYPE.is_complex() { format!("{},{}", part(re), part(im)) } else { part(re) }
    }
}

/// A file whose header has been read and whose data follows. Its errors name it.
pub(crate) struct Npy {
    path: PathBuf,
    data: Box<dyn Read>,
    header: Header,
    len: usize,
    /// The file itself, and what it was when it was opened; of a pipe nothing.
    file: Option<(File, Stamp)>,
    is_file: bool,
}

/// What a name stands for.
struct Source {
    data: Box<dyn Read>,
    /// How many there are, where it is known before they are read.
    bytes: Option<u64>,
    /// The file that it comes from; of a pipe none.
    file: Option<File>,
    /// Whether it is a file of its own: neither a pipe nor a member of an archive.
    is_file: bool,
}

impl Npy {
    /// Opens a file and reads its header: `-` is standard input, `a.npz:x` the member x of an
    /// archive. A file (not a pipe) must have the length that the header announces.
    pub(crate) fn open(path: &Path) -> Result<Npy> {
        Npy::open_unnamed(path).with_context(|| path.display().to_string())
    }

    fn open_unnamed(path: &Path) -> Result<Npy> {
        let Source { mut data, bytes: known, file, is_file } = source(path)?;
        let file = file.map(|file| Stamp::of(&file).map(|stamp| (file, stamp))).transpose()?;
        let (header, header_bytes) = Header::read(&mut data)?;
        let Some((len, bytes)) = header.size() else {
            bail!("its header announces a shape of {:?}, more than can be addressed", header.shape)
        };
        if let Some(all) = known {
            check_length(bytes as u64, all.saturating_sub(header_bytes as u64))?;
        }
        Ok(Npy { path: path.into(), data, header, len, file, is_file })
    }

    /// An array that lies in memory, under this name.
    pub(crate) fn of(path: &Path, header: Header, data: Box<dyn Read>) -> Result<Npy> {
        let size = header.size().context("a shape of more than can be addressed")?;
        Ok(Npy { path: path.into(), data, header, len: size.0, file: None, is_file: false })
    }

    /// The element type.
    pub(crate) fn dtype(&self) -> Dtype {
        self.header.dtype
    }

    /// Whether the first index runs fastest.
    pub(crate) fn fortran(&self) -> bool {
        self.header.fortran
    }

    /// The file's name, as it was given.
    pub(crate) fn name(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// Bytes of its elements.
    pub(crate) fn bytes(&self) -> u64 {
        (self.len * self.header.dtype.bytes()) as u64
    }

    /// The number of entries along each axis.
    pub(crate) fn dim(&self) -> &[usize] {
        &self.header.shape
    }

    /// Whether it is a file of its own: neither standard input, nor a pipe, nor a member of an archive.
    pub(crate) fn is_file(&self) -> bool {
        self.is_file
    }

    /// The matrix to be read in parts, if it is a file of its own (no pipe, no member of an archive) and has
    /// more data than a window of so many bytes.
    pub(crate) fn streamed(&self, window: u64) -> Result<Option<Streamed<'static>>> {
        if self.bytes() <= window || !self.is_file {
            return Ok(None);
        }
        let window = usize::try_from(window).unwrap_or(usize::MAX);
        Ok(Some(Streamed::open(&self.path)?.window(window)))
    }

    /// The elements, in the order of the file, in the byte order of this machine.
    ///
    /// # Panics
    /// If the type is not the file's.
    pub(crate) fn read<T: Number>(mut self) -> Result<Vec<T>> {
        self.read_unnamed().with_context(|| self.path.display().to_string())
    }

    fn read_unnamed<T: Number>(&mut self) -> Result<Vec<T>> {
        let data = npy::read(&self.header, &mut self.data, self.is_file)?;
        if let Some((file, before)) = &self.file
            && !before.holds(file)?
        {
            bail!("the file was changed while it was read");
        }
        Ok(data)
    }
}

/// The file that a name stands for, and the member of an archive. A file of exactly this name comes first.
pub(crate) fn parts(path: &Path) -> (&Path, Option<&str>) {
    let named = path.to_str().filter(|_| !path.exists()).and_then(|text| {
        let at = text.rfind(".npz:")? + ".npz".len();
        Some((Path::new(&text[..at]), Some(&text[at + 1..])))
    });
    named.unwrap_or((path, None))
}

fn source(path: &Path) -> Result<Source> {
    if path == Path::new("-") {
        #[cfg(unix)]
        if let Ok(mut file) = stdin()
            && file.metadata()?.is_file()
        {
            // What comes before may have been read by another program.
            let bytes = file.metadata()?.len().saturating_sub(file.stream_position()?);
            let data = Box::new(file.try_clone()?);
            return Ok(Source { data, bytes: Some(bytes), file: Some(file), is_file: false });
        }
        return Ok(Source { data: Box::new(io::stdin()), bytes: None, file: None, is_file: false });
    }
    let (name, member) = parts(path);
    let mut file = File::open(name)?;
    let meta = file.metadata()?;
    if meta.is_file() {
        let mut start = Vec::new();
        (&file).take(4).read_to_end(&mut start)?;
        file.rewind()?;
        if member.is_some() || start == b"PK\x03\x04" || start == b"PK\x05\x06" {
            let own = Some(file.try_clone()?);
            let member = npz::open(file, member)?;
            let (data, bytes) = (member.data, Some(member.len));
            return Ok(Source { data, bytes, file: own, is_file: false });
        }
    }
    let is_file = meta.is_file();
    let own = if is_file { Some(file.try_clone()?) } else { None };
    Ok(Source { data: Box::new(file), bytes: is_file.then_some(meta.len()), file: own, is_file })
}

/// Writes an array, whose last index runs fastest, as `numpy.save` does, in the byte order of this
/// machine.
pub(crate) fn write<T: Number>(mut file: Output, shape: &[usize], y: &[T]) -> io::Result<()> {
    npy::write(&mut file, shape, y)?;
    file.finish()
}
