//! The seam: all that a backend has to be.

use std::any::Any;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{AnyJob, AnySlice, AnySliceMut, Desc, Dtype, Params, Result};

/// What a device says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Backend and ordinal, such as `cpu`, `opencl:0`, `cuda:1`: what `GEMV_BACKEND` takes.
    pub id: String,
    /// The device's own name.
    pub name: String,
    /// Architecture, such as `avx512`, `sm_90`, `pocl`: tables are looked up by it.
    pub arch: String,
    /// Vendor, such as `nvidia`.
    pub vendor: String,
    /// Driver or runtime, with its version.
    pub driver: String,
    /// Memory in bytes, where known.
    pub memory: Option<u64>,
    /// Compute units: cores, streaming multiprocessors.
    pub units: usize,
    /// Whether its memory is the host's.
    pub host: bool,
}

impl DeviceInfo {
    /// A description with this id and nothing else known.
    pub fn new(id: impl Into<String>) -> DeviceInfo {
        DeviceInfo { id: id.into(), ..DeviceInfo::default() }
    }
}

/// A block of device memory that holds elements of one type. Made by
/// [`Backend::upload`] and [`Backend::alloc`]; freed on drop.
pub trait Memory: Any + Send + Sync + Debug {
    /// Number of elements.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A device, opened. Users, tuner, tests and benches all launch through [`gemv`](Self::gemv).
///
/// A backend computes with the bits of the [order](crate::order) whatever the `Params`, except
/// for kernels whose name begins with `classic-` or `vendor-`, and for its [roof](Backend::roof).
pub trait Backend: Send + Sync + Debug + 'static {
    /// What the device says of itself.
    fn device(&self) -> &DeviceInfo;

    /// Whether the device can compute this, whatever the parameters.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), with what is missing.
    fn accepts(&self, desc: &Desc) -> Result<()>;

    /// The parameters that are legal for this problem, best guess first; not empty where
    /// [`accepts`](Self::accepts) is `Ok`.
    fn candidates(&self, desc: &Desc) -> Vec<Params>;

    /// Whether these parameters are legal for this problem. A superset of
    /// [`candidates`](Self::candidates), which may leave out what cannot be good.
    ///
    /// # Errors
    /// [`Error::Params`](crate::Error::Params), with the rule that is broken.
    fn fits(&self, desc: &Desc, params: &Params) -> Result<()>;

    /// A number for what these parameters, which fit, start on the device for this problem: those of
    /// which it is equal do the same. The tuner measures one of them.
    fn work(&self, desc: &Desc, params: &Params) -> u64 {
        let _ = desc;
        let mut hash = DefaultHasher::new();
        params.hash(&mut hash);
        hash.finish()
    }

    /// Built-in tables (text) for this device, the most specific first: device, architecture,
    /// vendor, default. The last has a row for every type and layout.
    fn tables(&self) -> Vec<BuiltinTable>;

    /// A new block that holds a copy of `data`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), or the driver's refusal.
    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>>;

    /// A new block of `len` zeros.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>>;

    /// Copies the elements from `first` on to `to`.
    ///
    /// # Errors
    /// The driver's refusal.
    ///
    /// # Panics
    /// If the block is not this backend's, is shorter, or has another type.
    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()>;

    /// Computes one product with these parameters; on return a host `y` is written. Work on
    /// resident operands may still be under way: later calls on the same device wait for it.
    ///
    /// # Errors
    /// See [`Error`](crate::Error). `y` is as it was, except where documented there.
    fn gemv(&self, job: AnyJob<'_>, params: &Params) -> Result<()>;

    /// The published kernels for this problem, as named baselines: their names begin with
    /// `classic-`, they keep orders of their own, and nothing but an explicit request runs them.
    fn classic(&self, desc: &Desc) -> Vec<Params> {
        let _ = desc;
        Vec::new()
    }

    /// The vendor's own library for this problem, such as `vendor-cublas`, where it is there: for
    /// benchmarks. Its name begins with `vendor-`, it keeps an order of its own, and nothing but an
    /// explicit request runs it.
    fn vendor(&self, desc: &Desc) -> Option<Params> {
        let _ = desc;
        None
    }

    /// Waits until everything that was started on the device is done.
    ///
    /// # Errors
    /// The driver's refusal, also of work that was started before.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// The time that the device takes for what `work` starts on it, from an idle device to the
    /// end of the last launch. `work` multiplies resident operands with
    /// parameters that have run before: nothing is left to compile or
    /// to allocate, so that a backend may record it and replay the record.
    ///
    /// By default the host's clock around `work` and [`synchronize`](Self::synchronize).
    ///
    /// # Errors
    /// Those of `work`, and the driver's refusal.
    fn timed(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        self.synchronize()?;
        let start = Instant::now();
        work()?;
        self.synchronize()?;
        Ok(start.elapsed())
    }

    /// Passes that only read: parameters for [`gemv`](Self::gemv) with a row-major f32 matrix
    /// without gaps, of which every element is read once, x is not read and y not written, but for
    /// one matrix in billions. The fastest is the roof of a product: no kernel that reads a matrix
    /// can beat it by much. Empty if the backend has none.
    fn roof(&self) -> Vec<Params> {
        Vec::new()
    }

    /// A short hash of all that tuned parameters depend on besides the device: kernel sources and
    /// flags. Stands in the header of a table; empty if the backend does not say.
    fn fingerprint(&self) -> String {
        String::new()
    }
}

/// A table that a backend ships, as text; see [`Table`](crate::Table).
#[derive(Debug, Clone, Copy)]
pub struct BuiltinTable {
    /// The file's name, for messages.
    pub name: &'static str,
    /// The file's text.
    pub text: &'static str,
}

/// How a linked backend is found: one entry in [`BACKENDS`].
#[derive(Debug, Clone, Copy)]
pub struct BackendEntry {
    /// The backend's name, the part of a device's id before the colon.
    pub name: &'static str,
    /// Entries are tried in this order, lowest first, when nobody says which device to use.
    pub rank: u32,
    /// The devices there are, found within milliseconds and without opening any.
    ///
    /// Fails with [`Error::DriverMissing`](crate::Error::DriverMissing), which says what was
    /// looked for.
    pub discover: fn() -> Result<Vec<DeviceInfo>>,
    /// Opens the device of this ordinal in what `discover` returned.
    pub open: fn(usize) -> Result<Arc<dyn Backend>>,
}

/// The backends that are linked into this program. A backend crate adds itself with
/// `#[linkme::distributed_slice(gemv_core::BACKENDS)]`.
#[linkme::distributed_slice]
pub static BACKENDS: [BackendEntry];
