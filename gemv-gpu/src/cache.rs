//! What backends keep on disk: compiled programs, and what was found out of a device.
//!
//! The name of a file says all that its contents depend on, as a hash ([`digest`]). A file is written
//! aside and renamed whole, and begins with the hash of what follows, so a reader sees a complete one
//! or none: many processes may share a directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use etcetera::BaseStrategy;
use sha2::{Digest, Sha256};

/// The environment variable that names the directory of compiled kernels.
pub const CACHE_DIR_ENV: &str = "GEMV_CACHE_DIR";
/// The environment variable that switches the cache off (`off`, `no` or `0`).
pub const CACHE_ENV: &str = "GEMV_CACHE";

const MAGIC: &[u8; 8] = b"gemvbin\n";
/// Bytes that a directory holds at most.
const MOST: u64 = 512 << 20;

/// A directory of files that are kept from one process to the next; or none, which keeps nothing and
/// finds nothing.
///
/// It holds at most 512 MiB: what was written first goes first.
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
        let entries = self.dir.as_ref().and_then(|d| std::fs::read_dir(d).ok());
        entries.into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok())
    }

    /// What is kept under a name. A file that is damaged, or another program's, is not found; the
    /// next [`put`](Self::put) replaces it.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.dir.as_deref()?.join(name);
        let bytes = std::fs::read(&path).ok()?;
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
        let Some(dir) = &self.dir else { return };
        if let Err(e) = write(dir, name, contents)
            && !TOLD.swap(true, Ordering::Relaxed)
        {
            log::warn!("compiled kernels are not kept in {}: {e}", dir.display());
        }
        self.trim(dir, name);
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
    std::fs::create_dir_all(dir)?;
    let mut aside = tempfile::NamedTempFile::new_in(dir)?;
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
