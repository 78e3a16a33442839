//! Several devices by one text.

use crate::{Device, Engine, Result};

impl Engine {
    /// The devices of this text, opened, in its order: names as [`device`](Self::device) takes them, and `cuda:*`
    /// for all devices of a backend, with commas between them.
    ///
    /// A device that is named twice comes twice. Devices that are [refused](crate::Error::Refused) are not among
    /// all of a backend.
    ///
    /// ```
    /// use gemv::{DeviceInfo, Engine, unstable::{BackendEntry, reference::Reference}};
    ///
    /// let fast = BackendEntry {
    ///     name: "fast",
    ///     rank: 1,
    ///     discover: || Ok(vec![DeviceInfo::new("fast:0"), DeviceInfo::new("fast:1")]),
    ///     open: |_| Ok(Reference::open()),
    /// };
    /// let engine = Engine::with_entries([fast], None);
    /// let of = |names: [&str; 3]| names.map(|name| engine.device(name).unwrap()).to_vec();
    /// assert_eq!(engine.open_devices("reference, fast:*")?, of(["reference", "fast:0", "fast:1"]));
    /// assert_eq!(engine.open_devices("fast:1,fast,fast:1")?, of(["fast:1", "fast:0", "fast:1"]));
    ///
    /// let none = engine.open_devices("abacus:*").unwrap_err().to_string();
    /// assert_eq!(none, "no such device: \"abacus\"; there is fast:0, fast:1");
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`device`](Self::device), of the first that is not there: a backend without a device is an error too.
    pub fn open_devices(&self, names: &str) -> Result<Vec<Device>> {
        let mut devices = Vec::new();
        for name in names.split(',').map(str::trim) {
            let Some(backend) = name.strip_suffix(":*") else {
                devices.push(self.device(name)?);
                continue;
            };
            let of_it = |id: &str| id.split_once(':').map_or(id, |(backend, _)| backend) == backend;
            let found = self.devices().into_iter().filter(|line| line.found.is_ok());
            let before = devices.len();
            for line in found.filter(|line| of_it(&line.id)) {
                devices.push(self.device(&line.id)?);
            }
            if devices.len() == before {
                // It says what is missing; or it is the reference, which is in no list.
                devices.push(self.device(backend)?);
            }
        }
        Ok(devices)
    }
}

/// The devices of this text, opened: `cuda:*`, or `cuda:*, cpu`.
///
/// See [`Engine::open_devices`].
///
/// ```
/// use gemv::{device, open_devices};
///
/// let devices = open_devices("cuda:*").or_else(|_| open_devices("reference"))?;
/// assert!(!devices.is_empty());
/// assert!(open_devices("").is_err());
/// # Ok::<(), gemv::Error>(())
/// ```
///
/// # Errors
/// As [`Engine::open_devices`].
pub fn open_devices(names: &str) -> Result<Vec<Device>> {
    Engine::global().open_devices(names)
}
