//! Compiled kernels on disk.
//!
//! One file a program. Its name is the hash of everything that changes the binary: the source,
//! the defines, the options and the architecture; then the compiler's version, so that a machine
//! without the compiler can take a binary of any version.

use std::path::{Path, PathBuf};

use gemv_gpu::{Program, digest};

use crate::driver::Image;

const SUFFIX: &str = ".cubin";

/// A directory of compiled kernels; or none, which keeps nothing and finds nothing.
///
/// A program is kept under a hash of its source, its defines, the options and the compiler's version, so
/// that what is found is what would be compiled. The directory is bounded, as every [`gemv_gpu::Cache`].
///
/// ```
/// use gemv::cuda::Cache;
/// let cache = Cache::at("kernels");
/// assert_eq!(cache.dir(), Some("kernels".as_ref()));
/// ```
#[derive(Debug, Clone)]
pub struct Cache {
    files: gemv_gpu::Cache,
}

/// What a compiled program is kept under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    program: String,
}

impl Key {
    /// `options` includes the architecture.
    pub(crate) fn new(program: &Program, options: &[String]) -> Key {
        let mut texts = vec![&*program.source];
        for (name, value) in &program.defines {
            texts.extend([&**name, &**value]);
        }
        texts.push("options");
        texts.extend(options.iter().map(String::as_str));
        Key { program: digest(&texts) }
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
    /// use gemv::cuda::{CACHE_DIR_ENV, CACHE_ENV, Cache};
    /// assert_eq!((CACHE_ENV, CACHE_DIR_ENV), ("GEMV_CACHE", "GEMV_CACHE_DIR"));
    /// match Cache::from_env().dir() {
    ///     Some(dir) => assert!(dir.ends_with("cuda")),
    ///     None => println!("it is off"),
    /// }
    /// ```
    pub fn from_env() -> Cache {
        Cache { files: gemv_gpu::Cache::from_env("cuda") }
    }

    /// A cache in this directory, which is made when something is first kept.
    pub fn at(dir: impl Into<PathBuf>) -> Cache {
        Cache { files: gemv_gpu::Cache::at(dir) }
    }

    /// The directory; `None` if the cache is off.
    pub fn dir(&self) -> Option<&Path> {
        self.files.dir()
    }

    /// Whether it holds any compiled kernel at all.
    pub(crate) fn holds_any(&self) -> bool {
        self.files.names().any(|n| n.ends_with(SUFFIX))
    }

    /// The binary compiled by this version, or by any version if none is given (the newest).
    pub(crate) fn get(&self, key: &Key, compiler: Option<(i32, i32)>) -> Option<Image> {
        let read = |version| self.files.get(&key.file(version)).map(Image::new);
        if let Some(version) = compiler {
            return read(version);
        }
        let version = |name: &str| -> Option<(i32, i32)> {
            let rest = name.strip_prefix(&key.program)?.strip_prefix("-nvrtc")?;
            let (major, minor) = rest.strip_suffix(SUFFIX)?.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let mut found: Vec<_> = self.files.names().filter_map(|n| version(&n)).collect();
        found.sort_unstable();
        found.into_iter().rev().find_map(read)
    }

    /// Keeps a binary. A cache that cannot be written is said once in the log and does no harm.
    pub(crate) fn put(&self, key: &Key, compiler: (i32, i32), image: &Image) {
        self.files.put(&key.file(compiler), image.bytes());
    }
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
    fn an_older_binary_serves_where_the_newer_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        cache.put(&key("k"), (12, 9), &Image::new(vec![1, 2]));
        std::fs::write(dir.path().join(key("k").file((13, 0))), b"gemvbin\n").unwrap();
        assert_eq!(cache.get(&key("k"), None).unwrap().bytes(), [1, 2]);
    }

    #[test]
    fn a_cache_that_is_off_keeps_nothing() {
        let off = Cache { files: gemv_gpu::Cache::off() };
        off.put(&key("k"), (13, 0), &Image::new(vec![1]));
        assert!(off.get(&key("k"), None).is_none() && off.dir().is_none());
    }
}
