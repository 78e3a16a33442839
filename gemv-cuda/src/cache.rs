//! Compiled kernels on disk.
//!
//! One file a program. Its name is the hash of everything that changes the binary: the source,
//! the defines, the options and the architecture; then the compiler's version, so that a machine
//! without the compiler can take a binary of any version. A file is written aside and renamed
//! whole, and begins with the hash of what follows, so a reader sees a complete binary or none:
//! many processes may share a directory.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use gemv_gpu::Program;
use sha2::{Digest, Sha256};

use crate::driver::Image;

/// The environment variable that names the directory of compiled kernels.
pub const CACHE_DIR_ENV: &str = "GEMV_CACHE_DIR";
/// The environment variable that switches the cache off (`off`, `no` or `0`).
pub const CACHE_ENV: &str = "GEMV_CACHE";

const MAGIC: &[u8; 8] = b"gemvcu1\n";
const SUFFIX: &str = ".cubin";

/// A directory of compiled kernels; or none, which keeps nothing and finds nothing.
///
/// A program is kept under a hash of its source, its defines, the options and the compiler's version, so
/// that what is found is what would be compiled.
///
/// ```
/// use gemv_cuda::Cache;
/// let cache = Cache::at("kernels");
/// assert_eq!(cache.dir(), Some("kernels".as_ref()));
/// ```
#[derive(Debug, Clone)]
pub struct Cache {
    dir: Option<PathBuf>,
}

/// What a compiled program is kept under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    program: String,
}

impl Key {
    /// `options` includes the architecture.
    pub(crate) fn new(program: &Program, options: &[String]) -> Key {
        let mut hash = Sha256::new();
        // Lengths keep neighbouring texts apart.
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        add(&program.source);
        for (name, value) in &program.defines {
            add(name);
            add(value);
        }
        add("options");
        options.iter().for_each(|o| add(o));
        let digest = hash.finalize();
        Key { program: digest.iter().take(20).map(|b| format!("{b:02x}")).collect() }
    }

    fn file(&self, compiler: (i32, i32)) -> String {
        format!("{}-nvrtc{}.{}{SUFFIX}", self.program, compiler.0, compiler.1)
    }
}

impl Cache {
    /// The cache that the environment asks for: `GEMV_CACHE=off`, `GEMV_CACHE_DIR`, else
    /// `gemv` in the user's cache directory.
    ///
    /// ```
    /// use gemv_cuda::{CACHE_DIR_ENV, CACHE_ENV, Cache};
    /// assert_eq!((CACHE_ENV, CACHE_DIR_ENV), ("GEMV_CACHE", "GEMV_CACHE_DIR"));
    /// match Cache::from_env().dir() {
    ///     Some(dir) => assert!(dir.ends_with("cuda")),
    ///     None => println!("it is off"),
    /// }
    /// ```
    pub fn from_env() -> Cache {
        let switch = std::env::var(CACHE_ENV).unwrap_or_default().to_lowercase();
        if matches!(switch.trim(), "off" | "no" | "0" | "false") {
            return Cache { dir: None };
        }
        let named = std::env::var_os(CACHE_DIR_ENV).filter(|d| !d.is_empty()).map(PathBuf::from);
        let dir =
            named.or_else(|| Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("gemv")));
        Cache { dir: dir.map(|d| d.join("cuda")) }
    }

    /// A cache in this directory, which is made when something is first kept.
    pub fn at(dir: impl Into<PathBuf>) -> Cache {
        Cache { dir: Some(dir.into()) }
    }

    /// The directory; `None` if the cache is off.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Whether it holds any compiled kernel at all.
    pub(crate) fn holds_any(&self) -> bool {
        self.names().any(|n| n.ends_with(SUFFIX))
    }

    /// The binary compiled by this version, or by any version if none is given (the newest).
    pub(crate) fn get(&self, key: &Key, compiler: Option<(i32, i32)>) -> Option<Image> {
        let dir = self.dir.as_deref()?;
        if let Some(version) = compiler {
            return read(&dir.join(key.file(version)));
        }
        let version = |name: &str| -> Option<(i32, i32)> {
            let rest = name.strip_prefix(&key.program)?.strip_prefix("-nvrtc")?;
            let (major, minor) = rest.strip_suffix(SUFFIX)?.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let mut found: Vec<_> = self.names().filter_map(|n| version(&n)).collect();
        found.sort_unstable();
        found.into_iter().rev().find_map(|v| read(&dir.join(key.file(v))))
    }

    /// Keeps a binary. A cache that cannot be written is said once in the log and does no harm.
    pub(crate) fn put(&self, key: &Key, compiler: (i32, i32), image: &Image) {
        let Some(dir) = &self.dir else { return };
        if let Err(e) = write(dir, &key.file(compiler), image) {
            log::warn!("compiled kernel not kept in {}: {e}", dir.display());
        }
    }

    fn names(&self) -> impl Iterator<Item = String> + use<> {
        let entries = self.dir.as_ref().and_then(|d| std::fs::read_dir(d).ok());
        entries.into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok())
    }
}

fn read(path: &Path) -> Option<Image> {
    let bytes = std::fs::read(path).ok()?;
    let image = open(&bytes);
    if image.is_none() {
        log::warn!("{} is damaged and will be compiled again", path.display());
    }
    image.map(|b| Image::new(b.to_vec()))
}

/// What a file holds, if it is whole.
fn open(file: &[u8]) -> Option<&[u8]> {
    let (digest, image) = file.strip_prefix(MAGIC)?.split_at_checked(32)?;
    (!image.is_empty() && Sha256::digest(image).as_slice() == digest).then_some(image)
}

fn write(dir: &Path, name: &str, image: &Image) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mut aside = tempfile::NamedTempFile::new_in(dir)?;
    aside.write_all(MAGIC)?;
    aside.write_all(&Sha256::digest(image.bytes()))?;
    aside.write_all(image.bytes())?;
    aside.persist(dir.join(name))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(source: &str, defines: &[(&str, &str)]) -> Program {
        let defines = defines.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Program { source: source.into(), defines }
    }

    fn key(source: &str) -> Key {
        Key::new(&program(source, &[]), &[])
    }

    #[test]
    fn everything_that_changes_the_binary_changes_the_key() {
        let options = ["--gpu-architecture=sm_90".to_string()];
        let base = Key::new(&program("a", &[("T", "float")]), &options);
        assert_eq!(base, Key::new(&program("a", &[("T", "float")]), &options));
        for (other, options) in [
            (program("b", &[("T", "float")]), &options[..]),
            (program("a", &[("T", "double")]), &options[..]),
            (program("a", &[("Tf", "loat")]), &options[..]),
            (program("a", &[]), &options[..]),
            (program("a", &[("T", "float")]), &["--gpu-architecture=sm_80".to_string()][..]),
            (program("a", &[("T", "float")]), &[]),
        ] {
            assert_ne!(base, Key::new(&other, options));
        }
        assert_ne!(base.file((12, 9)), base.file((13, 0)));
    }

    #[test]
    fn keeps_and_finds_by_version_or_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("made/when/needed"));
        assert!(cache.get(&key("k"), Some((13, 0))).is_none() && !cache.holds_any());
        cache.put(&key("k"), (12, 9), &Image::new(vec![1, 2]));
        cache.put(&key("k"), (13, 0), &Image::new(vec![3]));
        assert_eq!(cache.get(&key("k"), Some((12, 9))).unwrap().bytes(), [1, 2]);
        assert_eq!(cache.get(&key("k"), None).unwrap().bytes(), [3]);
        assert!(cache.get(&key("k"), Some((12, 8))).is_none());
        assert!(cache.get(&key("other"), None).is_none() && cache.holds_any());
    }

    #[test]
    fn damaged_files_are_not_found_and_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let path = dir.path().join(key("k").file((13, 0)));
        let image = Image::new((0..200).collect());
        cache.put(&key("k"), (13, 0), &image);
        let whole = std::fs::read(&path).unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        let ends = [0, 1, 8, 39, 40, 41, whole.len() - 1].map(|n| whole[..n].to_vec());
        for bytes in ends.into_iter().chain([0, 9, 41, whole.len() - 1].map(flipped)) {
            std::fs::write(&path, bytes).unwrap();
            assert!(cache.get(&key("k"), Some((13, 0))).is_none());
            assert!(cache.get(&key("k"), None).is_none());
        }
        cache.put(&key("k"), (13, 0), &image);
        assert_eq!(cache.get(&key("k"), None).unwrap().bytes(), image.bytes());
    }

    #[test]
    fn an_older_binary_serves_where_the_newer_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        cache.put(&key("k"), (12, 9), &Image::new(vec![1, 2]));
        std::fs::write(dir.path().join(key("k").file((13, 0))), b"gemvcu1\n").unwrap();
        assert_eq!(cache.get(&key("k"), None).unwrap().bytes(), [1, 2]);
    }

    #[test]
    fn many_writers_and_readers_see_whole_files() {
        let dir = tempfile::tempdir().unwrap();
        let image = |n: u8| Image::new(vec![n; 100_000]);
        std::thread::scope(|scope| {
            for t in 0..4u8 {
                let cache = Cache::at(dir.path());
                scope.spawn(move || {
                    for _ in 0..20 {
                        cache.put(&key("k"), (13, 0), &image(t));
                        let found = cache.get(&key("k"), Some((13, 0))).expect("whole");
                        assert!(found.bytes().iter().all(|b| *b == found.bytes()[0]));
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
        cache.put(&key("k"), (13, 0), &Image::new(vec![1]));
        assert!(cache.get(&key("k"), None).is_none() && !cache.holds_any());
        let off = Cache { dir: None };
        off.put(&key("k"), (13, 0), &Image::new(vec![1]));
        assert!(off.get(&key("k"), None).is_none() && off.dir().is_none());
    }
}
