//! What is kept on disk of a device: its compiled programs, which of their entry points have been tested, and why it is refused.
//!
//! Every name is a hash of the device, its driver, its platform and the version of this crate; that of
//! a program also of its text and options. So nothing outlives what it was found out of.

use gemv_gpu::{Cache, digest};

/// The store of one device.
#[derive(Debug)]
pub(crate) struct Store {
    cache: Cache,
    device: String,
}

impl Store {
    /// `identity` is all that a driver says of the device, the platform and itself.
    pub(crate) fn new(cache: Cache, identity: &[String]) -> Store {
        let mut texts = vec![env!("CARGO_PKG_VERSION")];
        texts.extend(identity.iter().map(String::as_str));
        Store { cache, device: digest(&texts) }
    }

    /// The name of a program.
    pub(crate) fn name(&self, source: &str, options: &str) -> String {
        digest(&[&self.device, source, options])
    }

    pub(crate) fn binary(&self, program: &str) -> Option<Vec<u8>> {
        self.cache.get(&format!("{program}.bin"))
    }

    /// Whether anything that is kept is found again.
    pub(crate) fn keeps(&self) -> bool {
        self.cache.dir().is_some()
    }

    pub(crate) fn keep_binary(&self, program: &str, binary: &[u8]) {
        self.cache.put(&format!("{program}.bin"), binary);
    }

    /// Whether an entry point of a program has passed the test.
    pub(crate) fn is_tested(&self, program: &str, entry: &str) -> bool {
        self.cache.get(&format!("{program}.{entry}.tested")).is_some()
    }

    pub(crate) fn keep_tested(&self, program: &str, entry: &str) {
        self.cache.put(&format!("{program}.{entry}.tested"), b"tested");
    }

    /// Why the device is not to be used.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.text(&format!("{}.refused", self.device))
    }

    pub(crate) fn refuse(&self, why: &str) {
        self.cache.put(&format!("{}.refused", self.device), why.as_bytes());
    }

    fn text(&self, name: &str) -> Option<String> {
        String::from_utf8(self.cache.get(name)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_of_one_device_driver_and_program() {
        let dir = tempfile::tempdir().unwrap();
        let store = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|t| t.to_string()).collect();
            Store::new(Cache::at(dir.path()), &texts)
        };
        let one = store(&["a device", "driver 1"]);
        assert_eq!((one.refusal(), one.keeps()), (None, true));
        one.refuse("it is broken");
        assert_eq!(store(&["a device", "driver 1"]).refusal().unwrap(), "it is broken");
        let others = [store(&["a device", "driver 2"]), store(&["another", "driver 1"])];
        let name = one.name("text", "-DA=1");
        for other in &others {
            assert_eq!(other.refusal(), None);
            assert_ne!(other.name("text", "-DA=1"), name);
        }
        for (source, options) in [("text", "-DA=2"), ("other", "-DA=1"), ("text-DA=1", "")] {
            assert_ne!(one.name(source, options), name);
        }
        one.keep_binary(&name, b"code");
        one.keep_tested(&name, "f");
        assert_eq!(one.binary(&name).unwrap(), b"code");
        let tested = [(&*name, "f"), (&*name, "g"), ("none", "f")];
        let tested = tested.map(|(program, entry)| one.is_tested(program, entry));
        assert_eq!(tested, [true, false, false]);
    }
}
