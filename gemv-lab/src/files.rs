//! Files that subcommands read and write.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::MultiGzDecoder;
use gemv::unstable::read_plain;
use tempfile::{Builder, NamedTempFile};

/// Bytes of a text that is read whole, at most: more than any that this program writes.
const MOST: u64 = 1 << 30;

/// The text of a file that was named. It may be a pipe.
pub(crate) fn read(path: &Path) -> Result<String> {
    let file = File::open(path)?;
    fits(&file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= MOST, TOO_LONG);
    text(bytes)
}

/// The text of a file that nobody named, so that it must be a plain one; none where there is none.
pub(crate) fn read_found(path: &Path) -> Result<Option<String>> {
    plain(path)?.map(text).transpose()
}

/// The bytes of a plain file; none where there is none.
fn plain(path: &Path) -> Result<Option<Vec<u8>>> {
    let bytes = std::fs::metadata(path).and_then(|of| {
        fits(&of)?;
        read_plain(path, MOST)
    });
    match bytes {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The text of a plain file that gzip has packed, which may not be longer than one that is not; none where there is none.
pub(crate) fn read_packed(path: &Path) -> Result<Option<String>> {
    let Some(packed) = plain(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    MultiGzDecoder::new(&packed[..])
        .take(MOST + 1)
        .read_to_end(&mut bytes)
        .context("it cannot be unpacked")?;
    ensure!(bytes.len() as u64 <= MOST, TOO_LONG);
    text(bytes).map(Some)
}

const TOO_LONG: &str = "it is longer than any file of this program";

/// Whether a file is not too long to be read, as far as its length is known.
fn fits(of: &Metadata) -> io::Result<()> {
    match of.len() <= MOST {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::FileTooLarge, TOO_LONG)),
    }
}

fn text(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).ok().context("it is no text in UTF-8")
}

/// Makes the directory that a file is to be in.
pub(crate) fn make_parent(path: &Path) -> Result<()> {
    match path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
        }
        None => Ok(()),
    }
}

/// Writes a file, and makes its directory. A reader sees the old text or the new one: see [`Output`].
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    make_parent(path)?;
    let mut file = Output::open(path)?;
    file.write_all(text.as_bytes()).and_then(|()| file.finish()).with_context(|| cannot(path))
}

/// A file that is being written. A plain file is written aside, under a name of its own, and takes the place of the
/// old one when it is whole: until then, and if anything fails, the old one stays. Standard output (`-`), pipes and
/// devices are written as they are.
pub struct Output(To);

enum To {
    /// The file aside is made when something is written: one that is killed while it computes leaves none.
    Aside {
        to: PathBuf,
        file: Option<NamedTempFile>,
    },
    Direct(Box<dyn Write>),
}

impl Output {
    /// Looks at the place, and whether it takes a file. A link stays, and what it names is replaced. An old file keeps
    /// its permissions.
    ///
    /// # Errors
    /// The system's refusal, as one sentence with the path.
    pub fn open(path: &Path) -> Result<Output> {
        Output::begin(path).map(Output).with_context(|| cannot(path))
    }

    fn begin(path: &Path) -> Result<To> {
        let stdout = || Ok(To::Direct(Box::new(io::stdout().lock())));
        if path == Path::new("-") {
            return stdout();
        }
        let to = match behind_links(path)? {
            Behind::Stdout => return stdout(),
            Behind::Open(path) => {
                // What a plain file has is not this program's to write over.
                let file = OpenOptions::new().append(true).open(path)?;
                return Ok(To::Direct(Box::new(file)));
            }
            Behind::Name(to) => to,
        };
        let old = match std::fs::metadata(&to) {
            Ok(old) => Some(old),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e.into()),
        };
        ensure!(!old.as_ref().is_some_and(Metadata::is_dir), "it is a directory");
        ensure!(to.file_name().is_some(), "it is no name of a file");
        if old.is_some() {
            // One that may not be written may not be replaced.
            let file = OpenOptions::new().write(true).open(&to)?;
            if !file.metadata()?.is_file() {
                return Ok(To::Direct(Box::new(file)));
            }
        }
        aside(&to)?;
        Ok(To::Aside { to, file: None })
    }

    /// Where bytes go.
    fn to(&mut self) -> io::Result<&mut dyn Write> {
        match &mut self.0 {
            To::Aside { to, file } => {
                if file.is_none() {
                    clear_left(directory(to));
                    *file = Some(aside(to)?);
                }
                Ok(file.as_mut().expect("made above"))
            }
            To::Direct(file) => Ok(file),
        }
    }

    /// Puts the new file in the place of the old one.
    ///
    /// # Errors
    /// The system's refusal. The old file is as it was.
    pub fn finish(mut self) -> io::Result<()> {
        self.to()?.flush()?;
        if let To::Aside { to, file: Some(file) } = self.0 {
            // A full disk may be told only now.
            file.as_file().sync_all()?;
            file.persist(to).map_err(|e| e.error)?;
        }
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to()?.flush()
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// The directory of a file.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What the name of a file that is written aside begins and ends with.
const ASIDE: (&str, &str) = (".gemv-", ".part");
/// One that is older was left by a process that was killed.
const LEFT: Duration = Duration::from_secs(24 * 60 * 60);

/// A file beside the one that it will replace. It has that one's permissions, or those of any new file.
fn aside(to: &Path) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(ASIDE.0).suffix(ASIDE.1);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let old = std::fs::metadata(to);
    let file = builder.tempfile_in(directory(to)).map_err(|e| {
        // Without the name aside, which nobody knows.
        let why = e.to_string();
        let why = why.split(" at path ").next().unwrap_or_default();
        let new = if old.is_ok() {
            "a new file is written beside it, which the directory refuses: "
        } else {
            ""
        };
        io::Error::new(e.kind(), format!("{new}{why}"))
    })?;
    if let Ok(old) = old {
        file.as_file().set_permissions(old.permissions())?;
    }
    Ok(file)
}

/// Removes what processes that were killed left behind.
fn clear_left(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_aside =
        |name: &[u8]| name.starts_with(ASIDE.0.as_bytes()) && name.ends_with(ASIDE.1.as_bytes());
    for entry in entries.filter(|e| is_aside(e.file_name().as_encoded_bytes())) {
        let of = entry.metadata().ok().filter(Metadata::is_file);
        let age = of.and_then(|of| of.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age > LEFT) {
            // Another process may have removed it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// What a name stands for.
enum Behind {
    Stdout,
    /// What a process has open, as `/dev/fd/3`: the link leads to no name.
    Open(PathBuf),
    /// A file, which may not be there yet.
    Name(PathBuf),
}

fn behind_links(path: &Path) -> Result<Behind> {
    let mut path = path.to_path_buf();
    // As many as Linux follows.
    for _ in 0..40 {
        if let Ok(dir) = std::fs::canonicalize(directory(&path)) {
            let own = ["/proc/self/fd", "/dev/fd"].map(std::fs::canonicalize);
            let own = own.iter().flatten().any(|own| *own == dir);
            if own && path.file_name().is_some_and(|name| name == "1") {
                return Ok(Behind::Stdout);
            }
            if own || dir.starts_with("/proc") && dir.ends_with("fd") {
                return Ok(Behind::Open(path));
            }
        }
        match std::fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(Behind::Name(path)),
        }
    }
    bail!("there are too many links")
}

/// Whether two plain files are one: under one name, or by links. `-` is the file that standard input is.
pub fn is_same(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let meta = |path: &Path| match path == Path::new("-") {
            true => stdin().and_then(|file| file.metadata()),
            false => std::fs::metadata(path),
        };
        let id =
            |path: &Path| meta(path).ok().filter(Metadata::is_file).map(|of| (of.dev(), of.ino()));
        id(one).is_some_and(|one| id(other) == Some(one))
    }
    #[cfg(not(unix))]
    {
        let name = |path: &Path| std::fs::canonicalize(path).ok();
        name(one).is_some_and(|one| name(other) == Some(one))
    }
}

/// Standard input as a file, without the buffer of the standard library.
///
/// # Errors
/// If it is closed.
#[cfg(unix)]
pub fn stdin() -> io::Result<File> {
    use std::os::fd::AsFd;
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

/// Opens a file to append lines to it; whether it has its header already. A last line without an end, of a run that was
/// killed, is cut off. Nothing is cut off a file with another header. Pipes and devices are written as they are.
pub(crate) fn append(path: &Path, header: &str) -> Result<(File, bool)> {
    ensure!(path != Path::new("-"), "{}: lines are appended to a file by name", cannot(path));
    make_parent(path)?;
    if std::fs::metadata(path).is_ok_and(|of| !of.is_file()) {
        let file = OpenOptions::new().write(true).open(path);
        return Ok((file.with_context(|| cannot(path))?, false));
    }
    let open = OpenOptions::new().create(true).append(true).read(true).open(path);
    let file = open.with_context(|| cannot(path))?;
    let mut bytes = Vec::new();
    let read = fits(&file.metadata()?).and_then(|()| (&file).read_to_end(&mut bytes));
    read.with_context(|| format!("cannot read {}", path.display()))?;
    let line_end = bytes.iter().position(|&byte| byte == b'\n');
    let is_ours = match line_end {
        Some(end) => bytes[..end] == *header.as_bytes(),
        None => header.as_bytes().starts_with(&bytes),
    };
    ensure!(is_ours, "{} has other columns: name another file", path.display());
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    if whole < bytes.len() {
        told_cut(path);
        file.set_len(whole as u64)?;
    }
    Ok((file, line_end.is_some()))
}

/// The lines of a text that have an end. Where the last has none, a warning says so.
pub(crate) fn whole_lines<'a>(path: &Path, text: &'a str) -> &'a str {
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    if end < text.len() {
        told_cut(path);
    }
    &text[..end]
}

fn told_cut(path: &Path) {
    log::warn!("{}: the last line is cut, and left out", path.display());
}
