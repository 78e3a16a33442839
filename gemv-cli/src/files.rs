//! Files that subcommands write.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tempfile::{Builder, NamedTempFile};

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
pub(crate) enum Output {
    Aside { file: NamedTempFile, to: PathBuf },
    Direct(Box<dyn Write>),
}

impl Output {
    /// Looks at the place, and begins to write. A link stays, and what it names is replaced. An old file keeps its
    /// permissions.
    pub(crate) fn open(path: &Path) -> Result<Output> {
        Output::begin(path).with_context(|| cannot(path))
    }

    fn begin(path: &Path) -> Result<Output> {
        if path == Path::new("-") {
            return Ok(Output::Direct(Box::new(io::stdout().lock())));
        }
        // The links of `/dev/stdout` and its kind name no files.
        if ["/dev", "/proc"].iter().any(|system| path.starts_with(system)) {
            return Ok(Output::Direct(Box::new(OpenOptions::new().write(true).open(path)?)));
        }
        let to = behind_links(path)?;
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
                return Ok(Output::Direct(Box::new(file)));
            }
        }
        let directory = to.parent().filter(|dir| !dir.as_os_str().is_empty());
        let file = aside().tempfile_in(directory.unwrap_or(Path::new(".")))?;
        if let Some(old) = old {
            file.as_file().set_permissions(old.permissions())?;
        }
        Ok(Output::Aside { file, to })
    }

    /// Puts the new file in the place of the old one.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Output::Direct(mut file) => file.flush(),
            Output::Aside { file, to } => {
                // A full disk may be told only now.
                file.as_file().sync_all()?;
                file.persist(to).map(drop).map_err(|e| e.error)
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Aside { file, .. } => file.write(bytes),
            Output::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Aside { file, .. } => file.flush(),
            Output::Direct(file) => file.flush(),
        }
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Files beside those that they will replace. A new one has the permissions of any new file.
fn aside() -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(".gemv-").suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

/// What a name stands for, also where a link names a file that is not there yet.
fn behind_links(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_path_buf();
    // As many as Linux follows.
    for _ in 0..40 {
        match std::fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(path),
        }
    }
    bail!("there are too many links")
}

/// Whether two files are one: under one name, or by links.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |path: &Path| std::fs::metadata(path).ok().map(|of| (of.dev(), of.ino()));
        id(one).is_some_and(|one| id(other) == Some(one))
    }
    #[cfg(not(unix))]
    {
        let name = |path: &Path| std::fs::canonicalize(path).ok();
        name(one).is_some_and(|one| name(other) == Some(one))
    }
}

/// Opens a file to append lines to it; the text of its first line, if there is one. A last line
/// without an end, of a run that was killed, is cut off.
pub(crate) fn append(path: &Path) -> Result<(File, Option<String>)> {
    make_parent(path)?;
    let open = OpenOptions::new().create(true).append(true).read(true).open(path);
    let mut file = open.with_context(|| format!("cannot write {}", path.display()))?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = whole_lines(path, &text);
    if whole.len() < text.len() {
        file.set_len(whole.len() as u64)?;
        file.seek(SeekFrom::End(0))?;
    }
    let first = whole.lines().next().map(str::to_owned);
    Ok((file, first))
}

/// The lines of a text that have an end. Where the last has none, a warning says so.
pub(crate) fn whole_lines<'a>(path: &Path, text: &'a str) -> &'a str {
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    if end < text.len() {
        log::warn!("{}: the last line is cut, and left out", path.display());
    }
    &text[..end]
}
