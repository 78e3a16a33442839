//! Which devices there are, and which one computes.

use std::fmt;
use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::float_mode::in_default;
use crate::fork::Once;
use crate::reference::Reference;
use crate::table::{TABLES_ENV, file_name_of};
use crate::{BACKENDS, Backend, BackendEntry, Device, DeviceInfo, Error, Result};

/// The environment variable that forces a device: `cpu`, `opencl:0`, `cuda:1`, `reference`.
///
/// Read once, when it is first needed; an explicit [`Device`] in the code beats it.
///
/// ```
/// // `GEMV_BACKEND=opencl:1 ./program`
/// match std::env::var(gemv::unstable::BACKEND_ENV) {
///     Ok(name) => println!("asked for {name}"),
///     Err(_) => println!("the default"),
/// }
/// assert_eq!(gemv::unstable::BACKEND_ENV, "GEMV_BACKEND");
/// ```
pub const BACKEND_ENV: &str = "GEMV_BACKEND";

/// The backends of this project, each the feature of gemv that links it.
const FEATURES: [&str; 3] = ["cpu", "opencl", "cuda"];

/// The devices of this machine, opened when they are first used.
///
/// [`Engine::global`] is what `a.gpu_dot(&x)` uses. Without `GEMV_BACKEND`, products of host arrays
/// go to the first linked backend by rank that has a device: the CPU, where it is linked, since a
/// matrix that is used once is not worth the way to a device. Resident operands are computed where
/// they live. The [reference](crate::reference) computes only what is asked of it by name.
///
/// ```
/// use gemv::Engine;
/// use ndarray::array;
///
/// let engine = Engine::global();
/// let (a, x) = (array![[1.0, 2.0], [3.0, 4.0]], array![1.0, 1.0]);
/// let device = engine.device("cuda:0").or_else(|_| engine.device("reference"))?;
/// assert_eq!(device.try_gpu_dot(&a, &x)?, array![3.0, 7.0]);
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    backends: Vec<Found>,
    reference: Once<Device>,
    /// The features of gemv that this program was built without.
    absent: Vec<&'static str>,
    /// The device that was asked for in place of the first by rank.
    forced: Option<String>,
    /// Whether `GEMV_BACKEND` asked for it.
    by_environment: bool,
    default: Once<Result<Device>>,
}

/// The engine of this process.
static GLOBAL: Once<Engine> = Once::new();

/// A backend that the program has named, and the next one. No lock is needed to read them: a child that `fork` makes would wait
/// for a thread that it does not have.
struct Named {
    entry: BackendEntry,
    next: OnceLock<&'static Named>,
}

static NAMED: OnceLock<&'static Named> = OnceLock::new();

/// The backends that are linked, and those that the program has named.
fn linked() -> impl Iterator<Item = &'static BackendEntry> {
    let named = successors(NAMED.get(), |named| named.next.get());
    BACKENDS.iter().chain(named.map(|named| &named.entry))
}

/// What `GEMV_BACKEND` says; text that is no Unicode names no device, and is refused as such.
fn asked() -> Option<String> {
    std::env::var_os(BACKEND_ENV).map(|name| name.to_string_lossy().into_owned())
}

#[derive(Debug)]
struct Found {
    entry: BackendEntry,
    devices: Once<Result<Vec<Slot>>>,
}

#[derive(Debug)]
struct Slot {
    info: DeviceInfo,
    device: Once<Result<Device>>,
}

/// One line of [`Engine::devices`]: a device that was found, or a backend without any.
///
/// ```
/// use gemv::{Engine, Error, unstable::{BackendEntry, reference::Reference}};
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
    /// use gemv::Engine;
    /// assert!(std::ptr::eq(Engine::global(), Engine::global()));
    /// ```
    #[inline]
    pub fn global() -> &'static Engine {
        GLOBAL.get_or_init(|| Engine { by_environment: true, ..Engine::new(asked()) })
    }

    /// Names backends that are linked into this program, before its first use of a device: for static libraries. There
    /// [`BACKENDS`] is empty unless the linker is told to keep whole archives (`--whole-archive`), without a word. Backends
    /// that are in the list already stay. `gemv::link` names those of the features of gemv.
    ///
    /// ```
    /// use gemv::{DeviceInfo, Engine, unstable::{BackendEntry, reference::Reference}};
    ///
    /// // As `gemv::cpu::ENTRY`.
    /// const MINE: BackendEntry = BackendEntry {
    ///     name: "mine",
    ///     rank: 50,
    ///     discover: || Ok(vec![DeviceInfo::new("mine:0")]),
    ///     open: |_| Ok(Reference::open()),
    /// };
    /// Engine::link([MINE])?; // first of all
    /// assert!(gemv::devices().iter().any(|line| line.id == "mine:0"));
    /// Engine::link([MINE])?; // changes nothing
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::LinkedLate`] if a device was used before and a backend is not in the list.
    pub fn link(entries: impl IntoIterator<Item = BackendEntry>) -> Result<()> {
        for entry in entries {
            if linked().any(|known| known.name == entry.name) {
                continue;
            }
            if GLOBAL.get().is_some() {
                return Err(Error::LinkedLate { backend: entry.name });
            }
            let new: &'static Named = Box::leak(Box::new(Named { entry, next: OnceLock::new() }));
            let mut end = &NAMED;
            while end.set(new).is_err() {
                end = &end.get().expect("set before").next;
            }
        }
        Ok(())
    }

    /// An engine of its own: the linked backends, and a device's name to force in place of the
    /// environment's.
    ///
    /// ```
    /// use gemv::Engine;
    ///
    /// let engine = Engine::new(Some("reference".into()));
    /// assert_eq!(engine.default_device()?.info().id, "reference");
    /// // What is forced and not there is an error, never another device.
    /// let engine = Engine::new(Some("cuda:99".into()));
    /// assert!(engine.default_device().is_err());
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn new(forced: Option<String>) -> Engine {
        let there = |feature: &&str| linked().any(|entry| entry.name == *feature);
        let absent = FEATURES.into_iter().filter(|feature| !there(feature)).collect();
        Engine { absent, ..Engine::with_entries(linked().copied(), forced) }
    }

    /// An engine of these backends, linked or not.
    ///
    /// See [`BackendEntry`] for how an entry is made.
    ///
    /// ```
    /// use gemv::{Engine, Error};
    /// let engine = Engine::with_entries([], None);
    /// assert!(engine.devices().is_empty());
    /// assert!(matches!(engine.default_device(), Err(Error::NoBackend { .. })));
    /// assert_eq!(engine.device("reference")?.info().id, "reference"); // by name alone
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn with_entries(
        entries: impl IntoIterator<Item = BackendEntry>,
        forced: Option<String>,
    ) -> Engine {
        let mut backends: Vec<Found> = Vec::new();
        let order = |entry: &BackendEntry| (entry.rank, entry.name);
        for entry in entries {
            let at = backends.partition_point(|f| order(&f.entry) <= order(&entry));
            backends.insert(at, Found { entry, devices: Once::new() });
        }
        let forced = forced.filter(|f| !f.trim().is_empty());
        let (reference, default) = Default::default();
        let (absent, by_environment) = (Vec::new(), false);
        Engine { backends, reference, absent, forced, by_environment, default }
    }

    /// Every device of every linked backend, and for a backend without any, why. Backends that are
    /// not linked stand last.
    ///
    /// Found once and remembered; none is opened. Backends stand by rank.
    ///
    /// ```
    /// use gemv::Engine;
    /// let engine = Engine::new(None);
    /// assert_eq!(engine.devices(), gemv::devices());
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
                Ok(slots) => list.extend(slots.iter().map(|Slot { info, .. }| {
                    let (id, device) = (info.id.clone(), info.id.clone());
                    let found = match &info.refused {
                        None => Ok(info.clone()),
                        Some(why) => Err(Error::Refused { device, reason: why.clone() }),
                    };
                    Listing { id, found }
                })),
                Err(e) => list.push(Listing { id: found.entry.name.into(), found: Err(e) }),
            }
        }
        list.extend(self.absent.iter().map(|&feature| Listing {
            id: feature.into(),
            found: Err(Error::NotBuilt { feature }),
        }));
        list
    }

    /// The device that products of host arrays go to.
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
    /// assert_eq!(engine.default_device()?, engine.device("fast:0")?);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoBackend`] if no linked backend has a device; [`Error::Environment`] if
    /// `GEMV_BACKEND` names what is not there.
    pub fn default_device(&self) -> Result<Device> {
        self.default_ref().cloned()
    }

    /// [`default_device`](Self::default_device), without a copy of its handle.
    #[inline]
    pub(crate) fn default_ref(&self) -> Result<&Device> {
        self.default.get_or_init(|| self.find_default()).as_ref().map_err(Clone::clone)
    }

    /// Makes this device the [default](Self::default_device) of the engine, in place of what
    /// `GEMV_BACKEND` says: for a program that lets its user choose.
    ///
    /// ```
    /// use gemv::{Engine, GpuDot};
    /// use ndarray::array;
    ///
    /// Engine::global().set_default("reference")?; // before the first product
    /// assert_eq!(array![[2.0, 3.0]].gpu_dot(&array![1.0, 10.0]), array![32.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`device`](Self::device), and [`Error::DefaultInUse`] if another device is the default
    /// already.
    pub fn set_default(&self, name: &str) -> Result<()> {
        let device = self.device(name)?;
        let default = self.default.get_or_init(|| Ok(device.clone()));
        match default {
            Ok(default) if *default == device => Ok(()),
            Ok(default) => Err(Error::DefaultInUse { device: Some(default.info().id.clone()) }),
            // A product came before, found no device, and none after it looks again.
            Err(_) => Err(Error::DefaultInUse { device: None }),
        }
    }

    fn find_default(&self) -> Result<Device> {
        if let Some(name) = &self.forced {
            let name = name.trim();
            return self.device(name).map_err(|error| match self.by_environment {
                false => error,
                true => {
                    let (variable, value) = (BACKEND_ENV, name.into());
                    Error::Environment { variable, value, error: Box::new(error) }
                }
            });
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
        let found = match self.backends.is_empty() {
            true => "no backend is linked into this program".into(),
            false => self.found(),
        };
        Err(Error::NoBackend { found })
    }

    /// The device of this name, opened: `cpu`, `opencl:0`, `cuda` (the first), `reference`.
    ///
    /// Opened at the first call and kept: the same device by every way to it.
    ///
    /// ```
    /// use gemv::{Engine, Error};
    ///
    /// let engine = Engine::global();
    /// assert_eq!(engine.device("reference")?, engine.device("reference")?);
    /// assert!(matches!(engine.device("abacus:3"), Err(Error::NoDevice { .. })));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevice`] with what there is instead, [`Error::NotBuilt`] if its backend is not
    /// linked, [`Error::DriverMissing`] with what was looked for, or the driver's refusal.
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
            let absent = self.absent.iter().find(|feature| **feature == backend);
            return Err(match absent {
                Some(feature) => Error::NotBuilt { feature },
                None => self.no_device(name),
            });
        };
        let slots = found.slots()?;
        let Some(slot) = slots.get::<usize>(ordinal) else { return Err(self.no_device(name)) };
        let open = || {
            self.check_tables();
            (found.entry.open)(ordinal).map(Device::new)
        };
        // Threads that a driver makes keep the mode in which they are made.
        slot.device.get_or_init(|| in_default(open)).clone()
    }

    /// Warns once of tables in `GEMV_TABLES` that are of no device.
    fn check_tables(&self) {
        static CHECKED: AtomicBool = AtomicBool::new(false);
        if CHECKED.swap(true, Ordering::Relaxed) {
            return;
        }
        let Some(dir) = std::env::var_os(TABLES_ENV).filter(|dir| !dir.is_empty()) else {
            return;
        };
        let found = self.devices().into_iter().filter_map(|line| line.found.ok());
        let known: Vec<String> = found.map(|info| file_name_of(&info)).collect();
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".txt") && !known.contains(&name) {
                log::warn!("{TABLES_ENV}: {} is of no device here", entry.path().display());
            }
        }
    }

    fn no_device(&self, asked: &str) -> Error {
        Error::NoDevice { asked: asked.into(), found: self.found() }
    }

    /// What there is, and what is missing, on a line.
    fn found(&self) -> String {
        let lines: Vec<String> = self.devices().iter().map(Listing::to_string).collect();
        if lines.is_empty() { "none".into() } else { lines.join(", ") }
    }
}

impl fmt::Display for Listing {
    /// `cuda:0`, or `no cuda (why)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Ok(_) => write!(f, "{}", self.id),
            Err(Error::DriverMissing { reason, .. }) => write!(f, "no {} ({reason})", self.id),
            Err(Error::NotBuilt { feature }) => {
                write!(f, "no {} (built without the feature {feature:?} of gemv)", self.id)
            }
            Err(why) => write!(f, "no {} ({why})", self.id),
        }
    }
}

impl Found {
    fn slots(&self) -> Result<&[Slot]> {
        let devices = self.devices.get_or_init(|| {
            let devices = in_default(self.entry.discover)?;
            Ok(devices.into_iter().map(|info| Slot { info, device: Once::new() }).collect())
        });
        devices.as_deref().map_err(Clone::clone)
    }
}

/// Every device of every linked backend, and for a backend without any, why, in one sentence.
///
/// ```
/// for line in gemv::devices() {
///     println!("{line}"); // "cuda:0", or "no cuda (why)"
/// }
/// ```
pub fn devices() -> Vec<Listing> {
    Engine::global().devices()
}

/// The device of this name: `cpu`, `cuda:0`, `opencl` (the first), `reference`.
///
/// Opened at the first call and kept; see [`Engine::device`].
///
/// ```
/// use gemv::{GpuDot, ToDevice, device};
/// use ndarray::array;
///
/// let there = device("cuda:0").or_else(|_| device("reference"))?;
/// println!("{there}"); // what computes
/// let a = array![[0.0, 1.0], [1.0, 1.0]].to_device(&there)?; // uploaded once
/// let mut x = array![0.0, 1.0].to_device(&there)?;
/// for _ in 0..10 {
///     x = a.gpu_dot(&x); // stays there
/// }
/// assert_eq!(x.download()?, array![55.0, 89.0]);
/// # Ok::<(), gemv::Error>(())
/// ```
///
/// # Errors
/// As [`Engine::device`].
pub fn device(name: &str) -> Result<Device> {
    Engine::global().device(name)
}

/// Opens a backend that is not linked into the list, as an explicit device.
impl From<Arc<dyn Backend>> for Device {
    fn from(backend: Arc<dyn Backend>) -> Device {
        Device::new(backend)
    }
}
