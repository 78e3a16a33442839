//! Files that subcommands write.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};

/// Makes the directory that a file is to be in.
pub(crate) fn make_parent(path: &Path) -> Result<()> {
    match path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
        }
        None => Ok(()),
    }
}

/// Writes a file aside and renames it: a reader sees the old text or the new one.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    make_parent(path)?;
    let aside = path.with_extension("new");
    std::fs::write(&aside, text).with_context(|| format!("cannot write {}", aside.display()))?;
    std::fs::rename(&aside, path).with_context(|| format!("cannot write {}", path.display()))
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
