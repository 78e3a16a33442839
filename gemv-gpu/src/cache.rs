//! What backends keep on disk: compiled programs, and what was found out of a device.
//!
//! The name of a file says all that its contents depend on, as a hash ([`digest`]). A file is written
//! aside and renamed whole, and begins with the hash of what follows, so a reader sees a complete one
//! or none: many processes may share a directory.
//!
//! What is read here is run. So a directory that somebody else could write to is not used.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use etcetera::BaseStrategy;
use gemv_core::read_plain;
use sha2::{Digest, Sha256};

/// The environment variable that names the directory of compiled kernels.
pub const CACHE_DIR_ENV: &str = "GEMV_CACHE_DIR";
/// The environment variable that switches the cache off (`off`, `no` or `0`).
pub const CACHE_ENV: &str = "GEMV_CACHE";

const MAGIC: &[u8; 8] = b"gemvbin\n";
/// Bytes that a directory holds at most.
const MOST: u64 = 512 << 20;
/// Bytes of one file, at most.
const MOST_OF_FILE: u64 = 128 << 20;
/// What the name of a file begins with that is being written.
const ASIDE: &str = ".gemv-";
/// A file that is older and still being written was left by a process that was killed.
const LEFT: Duration = Duration::from_secs(24 * 60 * 60);

/// A directory of files that are kept from one process to the next; or none, which keeps nothing and
/// finds nothing.
///
/// It holds at most 512 MiB: what was written first goes first. It is made for its user alone. On Unix it is not used, and
/// a warning says so once, unless it belongs to this user or to root, and nobody else may write to it. The same goes
/// for the directory above, where others may write if it is sticky, as `/tmp`.
///
/// ```
/// use gemv_gpu::{Cache, digest};
///
/// let dir = std::env::temp_dir().join(format!("gemv-doc-{}", std::process::id()));
/// let cache = Cache::at(&dir);
/// let name = digest(&["source", "options"]) + ".bin";
/// assert_eq!(cache.get(&name), None);
/// cache.put(&name, b"compiled");
/// assert_eq!(cache.get(&name).unwrap(), b"compiled");
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cache {
    dir: Option<PathBuf>,
    most: u64,
}

/// Whether an environment variable switches something off: `off`, `no`, `0` or `false`. A warning is logged for a value that is
/// neither one of these, nor `on`, `yes`, `1` or `true`, nor empty.
///
/// ```
/// assert!(!gemv_gpu::is_off("A_VARIABLE_THAT_IS_NOT_SET"));
/// ```
pub fn is_off(variable: &str) -> bool {
    let value = std::env::var(variable).unwrap_or_default();
    let Some(on) = is_on(&value) else {
        log::warn!("{variable}={value} is neither on nor off, and changes nothing");
        return false;
    };
    !on
}

/// What the value of a switch says, if it says something. An empty one is on.
fn is_on(value: &str) -> Option<bool> {
    match value.trim().to_lowercase().as_str() {
        "off" | "no" | "0" | "false" => Some(false),
        "on" | "yes" | "1" | "true" | "" => Some(true),
        _ => None,
    }
}

/// The environment variable that switches the self-tests of devices off (`off`, `no` or `0`).
pub const SELF_TEST_ENV: &str = "GEMV_SELF_TEST";

/// Whether devices are tested, and not used where they fail.
///
/// ```
/// assert_eq!(gemv_gpu::self_test_wanted(), !gemv_gpu::is_off(gemv_gpu::SELF_TEST_ENV));
/// ```
pub fn self_test_wanted() -> bool {
    !is_off(SELF_TEST_ENV)
}

/// A hash of texts, as 40 hexadecimal digits. Texts keep apart: `["ab", "c"]` is not `["a", "bc"]`.
///
/// ```
/// use gemv_gpu::digest;
/// assert_eq!(digest(&["a", "b"]).len(), 40);
/// assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
/// ```
pub fn digest(texts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().iter().take(20).map(|b| format!("{b:02x}")).collect()
}

impl Cache {
    /// The cache of a backend that the environment asks for: none with `GEMV_CACHE=off`, else the
    /// backend's folder in `GEMV_CACHE_DIR`, else in `gemv` in the user's cache directory.
    ///
    /// ```
    /// use gemv_gpu::{CACHE_DIR_ENV, CACHE_ENV, Cache};
    /// assert_eq!((CACHE_ENV, CACHE_DIR_ENV), ("GEMV_CACHE", "GEMV_CACHE_DIR"));
    /// match Cache::from_env("opencl").dir() {
    ///     Some(dir) => assert!(dir.ends_with("opencl")),
    ///     None => println!("it is off"),
    /// }
    /// ```
    pub fn from_env(backend: &str) -> Cache {
        if is_off(CACHE_ENV) {
            return Cache::off();
        }
        let named = std::env::var_os(CACHE_DIR_ENV).filter(|d| !d.is_empty()).map(PathBuf::from);
        let dir =
            named.or_else(|| Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("gemv")));
        Cache { dir: dir.map(|d| d.join(backend)), most: MOST }
    }

    /// A cache in this directory, which is made when something is first kept.
    ///
    /// ```
    /// assert_eq!(gemv_gpu::Cache::at("kernels").dir(), Some("kernels".as_ref()));
    /// ```
    pub fn at(dir: impl Into<PathBuf>) -> Cache {
        Cache { dir: Some(dir.into()), most: MOST }
    }

    /// A cache that keeps nothing.
    ///
    /// ```
    /// use gemv_gpu::Cache;
    /// Cache::off().put("name", b"lost");
    /// assert_eq!((Cache::off().get("name"), Cache::off().dir()), (None, None));
    /// ```
    pub fn off() -> Cache {
        Cache { dir: None, most: MOST }
    }

    /// The directory; `None` if the cache is off.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// The names of what it holds, in any order.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        let entries = self.trusted().and_then(|d| std::fs::read_dir(d).ok());
        entries.into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok())
    }

    /// What is kept under a name. A file that is damaged, or another program's, is not found; the
    /// next [`put`](Self::put) replaces it.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.trusted()?.join(name);
        let bytes = match read_plain(&path, MOST_OF_FILE) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                log::warn!("{} is left out: {e}", path.display());
                return None;
            }
        };
        let contents = open(&bytes);
        if contents.is_none() {
            log::warn!("{} is damaged and will be written again", path.display());
        }
        contents.map(<[u8]>::to_vec)
    }

    /// Keeps these bytes under a name. A directory that cannot be written is said once in the log and
    /// does no harm.
    pub fn put(&self, name: &str, contents: &[u8]) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        let Some(dir) = self.trusted() else { return };
        if let Err(e) = write(dir, name, contents)
            && !TOLD.swap(true, Ordering::Relaxed)
        {
            log::warn!("compiled kernels are not kept in {}: {e}", dir.display());
        }
        self.trim(dir, name);
        clear_left(dir);
    }

    /// The directory, unless somebody else could have written what is in it.
    fn trusted(&self) -> Option<&Path> {
        static TOLD: AtomicBool = AtomicBool::new(false);
        let dir = self.dir.as_deref()?;
        match refused(dir) {
            None => Some(dir),
            Some(why) => {
                if !TOLD.swap(true, Ordering::Relaxed) {
                    log::warn!("the cache is not used: {why}");
                }
                None
            }
        }
    }

    /// Removes what was written first where there is too much, but not what was written now. Down to
    /// three quarters, so that not every call removes one. What is not of this cache stays, and so does
    /// what is being written aside.
    fn trim(&self, dir: &Path, now: &str) {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| {
            let of = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
            Some((of.modified().unwrap_or(SystemTime::UNIX_EPOCH), of.len(), entry.file_name()))
        });
        let all: Vec<_> = files.collect();
        if all.iter().map(|file| file.1).sum::<u64>() <= self.most {
            return;
        }
        let own = all.into_iter().filter(|file| is_own(dir, &file.2));
        let mut files: Vec<_> = own.collect();
        let mut bytes: u64 = files.iter().map(|file| file.1).sum();
        if bytes <= self.most {
            return;
        }
        files.sort_unstable();
        for (_, len, name) in files {
            if bytes <= self.most / 4 * 3 {
                return;
            }
            // Another process may have removed it.
            if name != now && std::fs::remove_file(dir.join(name)).is_ok() {
                bytes -= len;
            }
        }
    }
}

/// Why a cache's directory is not used: who else could write to it, or to the one above.
#[cfg(unix)]
fn refused(dir: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty());
    [Some(dir), above].into_iter().flatten().find_map(|place| {
        // What is not there is made for this user alone.
        let of = std::fs::metadata(place).ok()?;
        let sticky = of.mode() & 0o1000 != 0 && place != dir;
        let place = place.display();
        match (of.uid(), of.mode() & 0o022) {
            (owner, _) if owner != own && owner != 0 => {
                Some(format!("{place} belongs to the user {owner}, who could put programs there"))
            }
            (_, others) if others != 0 && !sticky => {
                Some(format!("others may write to {place}: chmod go-w {place}"))
            }
            _ => None,
        }
    })
}

#[cfg(not(unix))]
fn refused(_: &Path) -> Option<String> {
    None
}

/// Removes what processes that were killed left behind.
fn clear_left(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_name().as_encoded_bytes().starts_with(ASIDE.as_bytes()))
    {
        let of = entry.metadata().ok().filter(std::fs::Metadata::is_file);
        let age = of.and_then(|of| of.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age > LEFT) {
            // Another process may have removed it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a file was kept by a cache, and is not being written aside.
fn is_own(dir: &Path, name: &OsStr) -> bool {
    let mut begin = [0; MAGIC.len()];
    let mut read = || File::open(dir.join(name))?.read_exact(&mut begin);
    !name.as_encoded_bytes().starts_with(b".") && read().is_ok() && begin == *MAGIC
}

/// What a file holds, if it is whole.
fn open(file: &[u8]) -> Option<&[u8]> {
    let (digest, contents) = file.strip_prefix(MAGIC)?.split_at_checked(32)?;
    (!contents.is_empty() && Sha256::digest(contents).as_slice() == digest).then_some(contents)
}

fn write(dir: &Path, name: &str, contents: &[u8]) -> io::Result<()> {
    let mut make = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut make, 0o700);
    make.recursive(true).create(dir)?;
    let mut aside = tempfile::Builder::new().prefix(ASIDE).tempfile_in(dir)?;
    aside.write_all(MAGIC)?;
    aside.write_all(&Sha256::digest(contents))?;
    aside.write_all(contents)?;
    aside.persist(dir.join(name))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_says_on_or_off_or_nothing() {
        for (value, on) in
            [("", true), (" On", true), ("1", true), ("off", false), ("NO ", false), ("0", false)]
        {
            assert_eq!(is_on(value), Some(on), "{value:?}");
        }
        for value in ["of", "2", "rubbish"] {
            assert_eq!(is_on(value), None, "{value:?}");
        }
    }

    #[test]
    fn damaged_and_foreign_files_are_not_found_and_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("made/when/needed"));
        assert!(cache.get("k").is_none() && cache.names().next().is_none());
        let contents: Vec<u8> = (0..200).collect();
        cache.put("k", &contents);
        let path = cache.dir().unwrap().join("k");
        let whole = std::fs::read(&path).unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        let ends = [0, 1, 8, 39, 40, 41, whole.len() - 1].map(|n| whole[..n].to_vec());
        let foreign = [b"\x7fELF and more of another program, longer than a head".to_vec()];
        let flips = [0, 9, 41, whole.len() - 1].map(flipped);
        for bytes in ends.into_iter().chain(flips).chain(foreign) {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(cache.get("k"), None);
        }
        cache.put("k", &contents);
        assert_eq!(cache.get("k").unwrap(), contents);
    }

    #[test]
    fn many_writers_and_readers_see_whole_files() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for t in 0..4u8 {
                let cache = Cache::at(dir.path());
                scope.spawn(move || {
                    for _ in 0..20 {
                        cache.put("k", &[t; 100_000]);
                        let found = cache.get("k").expect("whole");
                        assert!(found.len() == 100_000 && found.iter().all(|b| *b == found[0]));
                    }
                });
            }
        });
        // Nothing is left aside.
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_process_left_is_removed_one_day() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let old = SystemTime::now() - 2 * LEFT;
        for (name, time) in [(".gemv-old", old), (".gemv-new", SystemTime::now()), ("own", old)] {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_modified(time).unwrap();
        }
        cache.put("k", &[1]);
        let left: std::collections::BTreeSet<String> = cache.names().collect();
        assert_eq!(left.into_iter().collect::<Vec<_>>(), [".gemv-new", "k", "own"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_that_others_may_write_to_is_not_used() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = tempfile::tempdir().unwrap();
        let (above, own) = (dir.path().join("above"), dir.path().join("above/own"));
        let cache = Cache::at(&own);
        cache.put("k", b"kept");
        // Made for the user alone.
        assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        for (of_above, of_own, used) in [
            (0o700, 0o755, true),
            (0o1777, 0o700, true),
            (0o777, 0o700, false),
            (0o770, 0o700, false),
            (0o700, 0o720, false),
            (0o700, 0o702, false),
            (0o700, 0o1777, false),
        ] {
            for (place, mode) in [(&above, of_above), (&own, of_own)] {
                std::fs::set_permissions(place, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            assert_eq!(cache.get("k").is_some(), used, "{of_above:o} {of_own:o}");
            assert_eq!(cache.names().count(), usize::from(used));
            cache.put("another", b"kept");
            assert_eq!(own.join("another").exists(), used, "{of_above:o} {of_own:o}");
            let _ = std::fs::remove_file(own.join("another"));
            let why = refused(&own);
            assert!(why.is_none_or(|why| why.contains("chmod go-w")));
        }
        // Root's directories are for all, another user's for nobody else.
        std::fs::set_permissions(&above, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&own, Some(12345), None).unwrap();
            assert!(refused(&own).unwrap().contains("belongs to the user 12345"));
            assert_eq!(cache.get("k"), None);
        }
    }

    /// A pipe in the place of a file would have each product wait.
    #[cfg(unix)]
    #[test]
    fn only_plain_files_of_some_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status();
        assert!(pipe.unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("device")).unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        let large = File::create(dir.path().join("large")).unwrap();
        large.set_len(MOST_OF_FILE + 1).unwrap();
        for name in ["pipe", "device", "folder", "large"] {
            assert_eq!(cache.get(name), None, "{name}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_does_no_harm() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = Cache::at(file.path().join("below/a/file"));
        cache.put("k", &[1]);
        assert!(cache.get("k").is_none() && cache.names().next().is_none());
    }

    #[test]
    fn a_full_directory_loses_what_was_written_first() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { most: 10_000, ..Cache::at(dir.path()) };
        // Neither counts, and neither is removed: another program's, and one that is being written.
        let held = || {
            let others = ["precious.dat", ".tmp123"];
            let names = cache.names().filter(|name| !others.contains(&&**name));
            names.collect::<std::collections::BTreeSet<_>>()
        };
        std::fs::write(dir.path().join("precious.dat"), vec![1; 50_000]).unwrap();
        std::fs::write(dir.path().join(".tmp123"), [&MAGIC[..], &[1; 50_000]].concat()).unwrap();
        for name in ["a", "b", "c", "d"] {
            cache.put(name, &[7; 2000]);
            // So that no two were written at one time by a coarse clock.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(held().len(), 4);
        cache.put("e", &[7; 2000]);
        let left = held();
        assert!(!left.contains("a") && left.contains("d") && left.contains("e"), "{left:?}");
        // What is larger than the whole is kept until the next one.
        cache.put("f", &[7; 20_000]);
        assert_eq!(held().into_iter().collect::<Vec<_>>(), ["f"]);
        assert!(dir.path().join("precious.dat").exists() && dir.path().join(".tmp123").exists());
    }
}
