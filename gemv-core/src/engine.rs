//! Which devices there are, and which one computes.

use std::sync::{Arc, OnceLock};

use crate::profile::Profile;
use crate::reference::Reference;
use crate::router::Router;
use crate::{BACKENDS, Backend, BackendEntry, Desc, Device, DeviceInfo, Error, Result};

/// The environment variable that forces a device: `cpu`, `opencl:0`, `cuda:1`, `reference`.
///
/// Read once, when it is first needed; an explicit [`Device`] in the code beats it.
///
/// ```
/// // `GEMV_BACKEND=opencl:1 ./program`
/// match std::env::var(gemv_core::BACKEND_ENV) {
///     Ok(name) => println!("asked for {name}"),
///     Err(_) => println!("the default"),
/// }
/// assert_eq!(gemv_core::BACKEND_ENV, "GEMV_BACKEND");
/// ```
pub const BACKEND_ENV: &str = "GEMV_BACKEND";

/// The devices of this machine, opened when they are first used.
///
/// [`Engine::global`] is what `a.gpu_dot(&x)` uses. Without `GEMV_BACKEND`, products of host arrays
/// go to the first linked backend by rank (the CPU, where it is linked: a matrix that is used once
/// is not worth the way to a device); resident operands are computed where they live.
///
/// ```
/// use gemv_core::Engine;
/// use ndarray::array;
///
/// let engine = Engine::global()?;
/// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, 1.0]);
/// let device = engine.device("cuda:0").or_else(|_| engine.default_device().cloned())?;
/// assert_eq!(device.try_gpu_dot(&a, &x)?, array![3.0, 7.0]);
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    backends: Vec<Found>,
    reference: OnceLock<Device>,
    /// What `GEMV_BACKEND` said when the engine was made.
    forced: Option<String>,
    default: OnceLock<Result<Device>>,
    router: OnceLock<Option<Router>>,
}

/// What `GEMV_BACKEND` says; text that is no Unicode names no device, and is refused as such.
fn asked() -> Option<String> {
    std::env::var_os(BACKEND_ENV).map(|name| name.to_string_lossy().into_owned())
}

#[derive(Debug)]
struct Found {
    entry: BackendEntry,
    devices: OnceLock<Result<Vec<Slot>>>,
}

#[derive(Debug)]
struct Slot {
    info: DeviceInfo,
    device: OnceLock<Result<Device>>,
}

/// One line of [`Engine::devices`]: a device that was found, or a backend without any.
///
/// ```
/// use gemv_core::{BackendEntry, Engine, Error, reference::Reference};
///
/// let cuda = BackendEntry {
///     name: "cuda",
///     rank: 10,
///     discover: || {
///         Err(Error::DriverMissing { backend: "cuda", reason: "looked for libcuda.so.1".into() })
///     },
///     open: |_| Ok(Reference::open()),
/// };
/// let lines = Engine::with_entries([cuda], None).devices();
/// assert_eq!(lines[0].id, "cuda");
/// let why = lines[0].found.as_ref().unwrap_err().to_string();
/// assert_eq!(why, "cuda is not available: looked for libcuda.so.1");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The device's id, or the backend's name.
    pub id: String,
    /// The device, or one sentence that says why there is none.
    pub found: Result<DeviceInfo>,
}

impl Engine {
    /// The engine of this process: the linked backends, and `GEMV_BACKEND` as it was at the first
    /// call. Finds nothing and opens nothing before it is needed.
    ///
    /// ```
    /// use gemv_core::Engine;
    /// let (one, two) = (Engine::global()?, Engine::global()?);
    /// assert!(std::ptr::eq(one, two));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// None at present: what can fail fails when a device is asked for.
    #[inline]
    pub fn global() -> Result<&'static Engine> {
        static GLOBAL: OnceLock<Engine> = OnceLock::new();
        Ok(GLOBAL.get_or_init(|| Engine::new(asked())))
    }

    /// An engine of its own: the linked backends, and a device's name to force in place of the
    /// environment's.
    ///
    /// ```
    /// use gemv_core::Engine;
    ///
    /// let engine = Engine::new(Some("reference".into()));
    /// assert_eq!(engine.default_device()?.info().id, "reference");
    /// // What is forced and not there is an error, never another device.
    /// let engine = Engine::new(Some("cuda:99".into()));
    /// assert!(engine.default_device().is_err());
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn new(forced: Option<String>) -> Engine {
        Engine::with_entries(BACKENDS.iter().copied(), forced)
    }

    /// An engine of these backends, linked or not.
    ///
    /// Without any, the reference answers; see [`BackendEntry`] for how an entry is made.
    ///
    /// ```
    /// use gemv_core::Engine;
    /// let engine = Engine::with_entries([], None);
    /// assert!(engine.devices().is_empty());
    /// assert_eq!(engine.default_device()?.info().id, "reference");
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn with_entries(
        entries: impl IntoIterator<Item = BackendEntry>,
        forced: Option<String>,
    ) -> Engine {
        let mut backends: Vec<Found> =
            entries.into_iter().map(|entry| Found { entry, devices: OnceLock::new() }).collect();
        backends.sort_by_key(|f| (f.entry.rank, f.entry.name));
        let forced = forced.filter(|f| !f.trim().is_empty());
        let (reference, default, router) = Default::default();
        Engine { backends, reference, forced, default, router }
    }

    /// Every device of every linked backend, and for a backend without any, why.
    ///
    /// Found once and remembered; none is opened. Backends stand by rank.
    ///
    /// ```
    /// use gemv_core::Engine;
    /// let engine = Engine::new(None);
    /// assert_eq!(engine.devices(), gemv_core::devices());
    /// for line in engine.devices() {
    ///     match line.found {
    ///         Ok(info) => println!("{}: {}, {} units", line.id, info.name, info.units),
    ///         Err(why) => println!("{why}"),
    ///     }
    /// }
    /// ```
    pub fn devices(&self) -> Vec<Listing> {
        let mut list = Vec::new();
        for found in &self.backends {
            match found.slots() {
                Ok(slots) => list.extend(slots.iter().map(|slot| {
                    let id = slot.info.id.clone();
                    Listing { id, found: Ok(slot.info.clone()) }
                })),
                Err(e) => list.push(Listing { id: found.entry.name.into(), found: Err(e) }),
            }
        }
        list
    }

    /// The device that products of host arrays go to.
    ///
    /// ```
    /// use gemv_core::{BackendEntry, DeviceInfo, Engine, reference::Reference};
    ///
    /// let fast = BackendEntry {
    ///     name: "fast",
    ///     rank: 1,
    ///     discover: || Ok(vec![DeviceInfo::new("fast:0"), DeviceInfo::new("fast:1")]),
    ///     open: |_| Ok(Reference::open()),
    /// };
    /// let engine = Engine::with_entries([fast], None);
    /// assert!(engine.default_device()?.is(&engine.device("fast:0")?));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevice`] or [`Error::DriverMissing`] if `GEMV_BACKEND` names what is not there.
    #[inline]
    pub fn default_device(&self) -> Result<&Device> {
        self.default.get_or_init(|| self.find_default()).as_ref().map_err(Clone::clone)
    }

    /// The device for this product of host arrays: the [default](Self::default_device), or
    /// another one where the user has installed [profiles](crate::profile) of both by which it is
    /// faster there, the way there and back included.
    ///
    /// ```
    /// use gemv_core::{Desc, Dtype, Engine};
    ///
    /// let engine = Engine::new(Some("reference".into())); // forced: nothing to weigh
    /// let large = Desc::new(Dtype::F32, 1 << 15, 1 << 15, (1 << 15, 1), 0);
    /// assert!(engine.device_for(&large)?.is(engine.default_device()?));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`default_device`](Self::default_device).
    #[inline]
    pub fn device_for(&self, desc: &Desc) -> Result<&Device> {
        let default = self.default_device()?;
        match self.router.get() {
            Some(None) => Ok(default),
            _ => Ok(self.router().map_or(default, |router| router.route(desc))),
        }
    }

    /// The router of products of host arrays, where there is something to choose.
    ///
    /// ```
    /// use gemv_core::Engine;
    /// assert!(Engine::new(Some("reference".into())).router().is_none());
    /// ```
    pub fn router(&self) -> Option<&Router> {
        self.router.get_or_init(|| self.find_router()).as_ref()
    }

    /// Finds no other device and opens none, unless there are profiles.
    fn find_router(&self) -> Option<Router> {
        if self.forced.is_some() || !Profile::any() {
            return None;
        }
        let default = self.default_device().ok()?;
        let mut devices = vec![(default.clone(), Profile::load(default.info())?)];
        let found = self.devices().into_iter().filter_map(|l| l.found.ok());
        for info in found.filter(|info| info.id != default.info().id) {
            let Some(profile) = Profile::load(&info) else { continue };
            match self.device(&info.id) {
                Ok(device) => devices.push((device, profile)),
                Err(why) => log::warn!("left out of the choice of devices: {why}"),
            }
        }
        Router::new(devices)
    }

    fn find_default(&self) -> Result<Device> {
        if let Some(name) = &self.forced {
            return self.device(name.trim());
        }
        for found in &self.backends {
            match found.slots() {
                Ok([]) | Err(Error::DriverMissing { .. }) => {}
                Ok(_) => return self.device(found.entry.name),
                // It is there, and was asked for something that it cannot do: no reason to compute
                // elsewhere without a word.
                Err(why) => return Err(why),
            }
        }
        self.device("reference")
    }

    /// The device of this name, opened: `cpu`, `opencl:0`, `cuda` (the first), `reference`.
    ///
    /// Opened at the first call and kept: the same device by every way to it.
    ///
    /// ```
    /// use gemv_core::{Engine, Error};
    ///
    /// let engine = Engine::global()?;
    /// let device = engine.device("reference")?;
    /// assert!(device.is(&engine.device("reference")?));
    /// assert!(matches!(engine.device("abacus:3"), Err(Error::NoDevice { .. })));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevice`] with what there is instead, [`Error::DriverMissing`] with what was
    /// looked for, or the driver's refusal to open it.
    pub fn device(&self, name: &str) -> Result<Device> {
        if name == "reference" {
            return Ok(self.reference.get_or_init(|| Device::new(Reference::open())).clone());
        }
        let (backend, ordinal) = match name.split_once(':') {
            Some((backend, ordinal)) => (backend, ordinal.parse().ok()),
            None => (name, Some(0)),
        };
        let found = self.backends.iter().find(|f| f.entry.name == backend);
        let (Some(found), Some(ordinal)) = (found, ordinal) else {
            return Err(self.no_device(name));
        };
        let slots = found.slots()?;
        let Some(slot) = slots.get::<usize>(ordinal) else { return Err(self.no_device(name)) };
        let open = || (found.entry.open)(ordinal).map(Device::new);
        slot.device.get_or_init(open).clone()
    }

    fn no_device(&self, asked: &str) -> Error {
        let mut found: Vec<String> = self
            .devices()
            .into_iter()
            .map(|l| match l.found {
                Ok(_) => l.id,
                Err(Error::DriverMissing { reason, .. }) => format!("no {} ({reason})", l.id),
                Err(e) => format!("no {} ({e})", l.id),
            })
            .collect();
        if self.backends.is_empty() {
            found.push("reference (this program was built with no backend)".into());
        }
        Error::NoDevice { asked: asked.into(), found: found.join(", ") }
    }
}

impl Found {
    fn slots(&self) -> Result<&[Slot]> {
        let devices = self.devices.get_or_init(|| {
            let devices = (self.entry.discover)()?;
            Ok(devices.into_iter().map(|info| Slot { info, device: OnceLock::new() }).collect())
        });
        devices.as_deref().map_err(Clone::clone)
    }
}

/// Every device of every linked backend, and for a backend without any, why, in one sentence.
///
/// ```
/// for line in gemv_core::devices() {
///     match line.found {
///         Ok(info) => println!("{}: {}", line.id, info.name),
///         Err(why) => println!("no {}: {why}", line.id),
///     }
/// }
/// ```
pub fn devices() -> Vec<Listing> {
    Engine::global().map(Engine::devices).unwrap_or_default()
}

/// Opens a backend that is not linked into the list, as an explicit device.
impl From<Arc<dyn Backend>> for Device {
    fn from(backend: Arc<dyn Backend>) -> Device {
        Device::new(backend)
    }
}
