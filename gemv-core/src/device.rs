//! A device, opened: its backend, its tables, and the choices that a thread remembers.

use std::any::TypeId;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::{Backend, DeviceInfo, Prepared, not_packed};
use crate::float_mode::in_default;
use crate::fork::PerProcess;
use crate::planned::{self, Work};
use crate::table::Tables;
use crate::{Desc, Dtype, Params, Result, for_any};

/// A device, opened, with the tables by which it chooses. Cloning is cheap.
///
/// ```
/// use ndarray::array;
///
/// let device = gemv::device("reference")?; // or "cuda:0"
/// let mut y = array![1.0f32, 1.0];
/// let a = array![[1.0f32, 2.0], [3.0, 4.0]];
/// device.gemv(2.0, &a, &array![1.0f32, 1.0], -1.0, &mut y)?;
/// assert_eq!(y, array![5.0, 13.0]);
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    tables: Tables,
    /// Distinguishes devices in the per-thread memory of choices.
    serial: u64,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.info().id)
    }
}

/// As its [`info`](Device::info).
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info().fmt(f)
    }
}

/// A choice in use.
pub(crate) enum Taken {
    /// Of its parameters alone: kept for ever, once for all problems with them.
    Kept(&'static Prepared),
    /// With state of its own, or of several products; it goes back to its slot at the end.
    Owned(Option<Box<Choice>>, usize),
}

impl Taken {
    #[inline]
    pub(crate) fn prepared(&self) -> &Prepared {
        match self {
            Taken::Kept(prepared) => prepared,
            Taken::Owned(choice, _) => {
                &choice.as_ref().expect("it is there until the end").prepared
            }
        }
    }
}

impl Drop for Taken {
    #[inline]
    fn drop(&mut self) {
        if let Taken::Owned(choice, slot) = self {
            let (choice, slot) = (choice.take(), *slot);
            // A thread that ends has no memory.
            let _ = CHOICES.try_with(|choices| choices.get(slot).map(|kept| kept.set(choice)));
        }
    }
}

/// What a choice is that depends on its parameters alone: they, the type of what they were parsed to, which is a backend's,
/// and the function for small products.
type Known = (Params, Option<TypeId>, Option<(Dtype, usize)>);

/// The one copy of such a choice, which lasts as long as the program: there are as many as
/// tables and candidates have parameters, and functions for small products.
#[cold]
fn kept(prepared: Prepared) -> &'static Prepared {
    static ALL: PerProcess<Mutex<BTreeMap<Known, &'static Prepared>>> = PerProcess::new();
    let mut all = ALL.get().lock().unwrap_or_else(PoisonError::into_inner);
    let small =
        prepared.small.map(|of| (of.dtype(), for_any!(AnySmall, of, small => small as usize)));
    let parsed = prepared.state.as_deref().map(|of| of.type_id());
    all.entry((*prepared.params(), parsed, small)).or_insert_with(|| Box::leak(Box::new(prepared)))
}

/// Equal handles are of one opened device; see [`Device::is`].
impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.is(other)
    }
}

impl Eq for Device {}

/// How many choices a thread remembers, so that a repeated small product searches no table.
const REMEMBERED: usize = 64;

/// A choice, by the device's serial number and the problem.
pub(crate) struct Choice {
    device: u64,
    desc: Desc,
    prepared: Prepared,
}

/// What a single product's choice of its parameters alone is remembered by: rows, columns, and the device's serial number with
/// alignment, layout and types.
type Key = (usize, usize, u64);

thread_local! {
    /// Choices of their parameters alone, of single products. Nothing of it is dropped, so a look-up is a few loads.
    static KEPT: [Cell<Option<(Key, &'static Prepared)>>; REMEMBERED] =
        const { [const { Cell::new(None) }; REMEMBERED] };
    /// A slot is taken while its choice is in use, and put back: no lock, no reference count.
    static CHOICES: [Cell<Option<Box<Choice>>>; REMEMBERED] =
        const { [const { Cell::new(None) }; REMEMBERED] };
}

impl Device {
    /// A handle for a backend, with its own tables and the user's. A line of the log, at the level info, says that the
    /// device is opened.
    ///
    /// ```
    /// use gemv::{Device, unstable::reference::Reference};
    /// let (one, two) = (Device::new(Reference::open()), Device::new(Reference::open()));
    /// assert!(one.is(&one.clone()) && !one.is(&two));
    /// ```
    pub fn new(backend: Arc<dyn Backend>) -> Device {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let tables = in_default(|| Tables::load(&*backend));
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        log::info!("{} is opened", backend.device());
        Device(Arc::new(Inner { backend, tables, serial }))
    }

    /// What the device says of itself.
    ///
    /// ```
    /// use gemv::Engine;
    /// let device = Engine::new(None).device("reference")?;
    /// assert_eq!((&*device.info().id, device.info().host), ("reference", true));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn info(&self) -> &DeviceInfo {
        self.0.backend.device()
    }

    /// The backend behind it.
    ///
    /// For what only the seam has: candidates, legality, timing.
    ///
    /// ```
    /// # use gemv::{Dtype, Engine, unstable::Desc};
    /// # let device = Engine::new(None).device("reference")?;
    /// let desc = Desc::new(Dtype::F32, 100, 100, (100, 1), 0);
    /// for params in device.backend().candidates(&desc) {
    ///     device.backend().fits(&desc, &params)?;
    /// }
    /// # Ok::<(), gemv::Error>(())
    /// ```
    #[inline]
    pub fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// The tables by which it chooses.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// let last = device.tables().iter().last().unwrap();
    /// assert_eq!(last.origin, "reference");
    /// assert_eq!(last.rows[0].to_string(), "* * : reference");
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn tables(&self) -> &Tables {
        &self.0.tables
    }

    /// What would be chosen for this problem.
    ///
    /// The nearest legal row of its [`tables`](Self::tables); a thread remembers its last choices.
    ///
    /// ```
    /// # use gemv::{Dtype, Engine, unstable::Desc};
    /// # let device = Engine::new(None).device("reference")?;
    /// let desc = Desc::new(Dtype::F32, 4096, 8192, (8192, 1), 0);
    /// let params = device.choose(&desc)?;
    /// assert_eq!(params.to_string(), "reference"); // elsewhere such as "row threads=128 rows=4"
    /// assert!(params.keeps_order());
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device cannot compute it at all.
    pub fn choose(&self, desc: &Desc) -> Result<Params> {
        Ok(*self.choice(desc)?.prepared().params())
    }

    /// What [`choose`](Self::choose) says, proved for the problem: what [`Backend::product`] takes.
    /// The thread remembers it, so that the next product of the shape looks nothing up.
    ///
    /// ```
    /// # use gemv::{Dtype, Engine, unstable::Desc};
    /// # let device = Engine::new(None).device("reference")?;
    /// let desc = Desc::new(Dtype::F32, 100, 100, (100, 1), 0);
    /// assert_eq!(*device.prepared(&desc)?.params(), device.choose(&desc)?);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Backend::prepare`].
    pub fn prepared(&self, desc: &Desc) -> Result<Prepared> {
        Ok(self.choice(desc)?.prepared().clone())
    }

    /// What this problem is remembered by, and where.
    #[inline(always)]
    fn key(&self, desc: &Desc) -> (Key, usize) {
        let Desc { dtype, vectors, m, n, layout, align, packing, .. } = *desc;
        let types = packing.map_or(0, |format| 1 + format.number() as u64) << 19
            | (vectors as u64) << 4
            | dtype as u64;
        let class = self.0.serial << 24 | u64::from(align) << 16 | (layout as u64) << 8 | types;
        let slot = m.wrapping_mul(31) ^ n ^ (m >> 9) ^ (n >> 9);
        // Devices that share a matrix have the same problem in turns.
        let slot = slot.wrapping_add(layout as usize * 5 + dtype as usize * 7);
        let slot = slot.wrapping_add(self.0.serial as usize * 11) % REMEMBERED;
        ((m, n, class), slot)
    }

    /// The choice that the thread remembers, if it is of its parameters alone. A reference comes back in a
    /// register: a struct that is returned in pieces and read whole waits for its stores.
    #[inline(always)]
    pub(crate) fn recall(&self, desc: &Desc) -> Option<&'static Prepared> {
        let ((m, n, class), slot) = self.key(desc);
        // Only single products are remembered.
        if desc.rhs != 1 || desc.batch != 1 {
            return None;
        }
        KEPT.with(|kept| match kept[slot].get() {
            Some(((km, kn, kclass), prepared)) if km == m && kn == n && kclass == class => {
                Some(prepared)
            }
            _ => None,
        })
    }

    /// The choice for this problem, which the thread then remembers.
    #[inline]
    pub(crate) fn choice(&self, desc: &Desc) -> Result<Taken> {
        if let Some(prepared) = self.recall(desc) {
            return Ok(Taken::Kept(prepared));
        }
        let (key, slot) = self.key(desc);
        let others = desc.rhs.wrapping_mul(desc.batch).wrapping_sub(1);
        let slot = slot.wrapping_add(others) % REMEMBERED;
        let known = CHOICES.try_with(|choices| choices[slot].take());
        if let Some(choice) = known.ok().flatten()
            && choice.device == self.0.serial
            && choice.desc == *desc
        {
            return Ok(Taken::Owned(Some(choice), slot));
        }
        self.remember(desc, key, slot)
    }

    #[cold]
    fn remember(&self, desc: &Desc, key: Key, slot: usize) -> Result<Taken> {
        // A mode of the caller's would be part of what is chosen and compiled, for other callers too.
        let prepared = in_default(|| self.search(desc))?;
        if !prepared.parsed || desc.rhs != 1 || desc.batch != 1 {
            let choice = Choice { device: self.0.serial, desc: *desc, prepared };
            return Ok(Taken::Owned(Some(Box::new(choice)), slot));
        }
        let prepared = kept(prepared);
        KEPT.with(|all| all[slot].set(Some((key, prepared))));
        Ok(Taken::Kept(prepared))
    }

    #[cold]
    fn search(&self, desc: &Desc) -> Result<Prepared> {
        self.backend().accepts(desc)?;
        let params = match desc.packing {
            None => self.0.tables.choose(&*self.0.backend, desc),
            Some(format) if !self.backend().packed_formats().contains(&format) => {
                return Err(not_packed(self.info(), format, desc.vectors));
            }
            // No table has a row for them.
            Some(_) => *self.backend().candidates(desc).first().unwrap_or(&Params::new("none")),
        };
        let mut prepared = self.backend().prepare(desc, &params)?;
        prepared.chosen = true;
        Ok(prepared)
    }

    /// Whether both handles are of one opened device.
    ///
    /// Operands have to be resident on the very device that computes, not on one like it.
    ///
    /// ```
    /// use gemv::{Device, Error, unstable::reference::Reference};
    /// use ndarray::array;
    ///
    /// let (here, there) = (Device::new(Reference::open()), Device::new(Reference::open()));
    /// let a = there.matrix(&array![[1.0, 2.0]])?;
    /// assert!(a.device().is(&there) && !a.device().is(&here));
    /// let e = here.try_gpu_dot(&a, &array![1.0, 1.0]).unwrap_err();
    /// assert!(matches!(e, Error::WrongDevice { .. }));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0.backend, &other.0.backend)
    }

    /// Refuses what the function of a plan may not do, if this thread is in one.
    #[inline]
    pub(crate) fn plannable(&self, work: Work) -> Result<()> {
        planned::check(work, &self.info().id)
    }

    /// Waits until everything that was started on the device is done.
    ///
    /// A download waits by itself: this is for clocks.
    ///
    /// ```
    /// # use gemv::{GpuDot, ToDevice, device};
    /// # use ndarray::array;
    /// # let device = device("reference")?;
    /// let a = array![[1.0, 2.0], [3.0, 4.0]].to_device(&device)?;
    /// let y = a.gpu_dot(&array![1.0, 1.0]); // may still be in flight
    /// device.synchronize()?; // done
    /// # assert_eq!(y.download()?, array![3.0, 7.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's refusal, also of work that was started before.
    pub fn synchronize(&self) -> Result<()> {
        self.plannable(Work::Synchronize)?;
        self.backend().synchronize()
    }
}
