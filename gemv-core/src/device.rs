//! A device handle: where every product enters a backend, and the only place that checks it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ndarray::{Array1, ArrayViewMut1};

use crate::error::ShapeMismatch;
use crate::table::Tables;
use crate::{
    Accumulator, Backend, Desc, DeviceInfo, Element, Error, Job, MatrixRef, Params, Prepared,
    Result, VectorMut, VectorRef,
};

/// A device, opened, with the tables by which it chooses. Cloning is cheap.
///
/// ```
/// use ndarray::array;
///
/// let device = gemv_core::device("reference")?; // or "cuda:0"
/// let mut y = array![1.0f32, 1.0];
/// let a = array![[1.0f32, 2.0], [3.0, 4.0]];
/// device.gemv(2.0, &a, &array![1.0f32, 1.0], -1.0, &mut y)?;
/// assert_eq!(y, array![5.0, 13.0]);
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    tables: Tables,
    /// Distinguishes devices in the per-thread memory of choices.
    serial: u64,
    /// Whether the log has said that this device computes.
    logged: AtomicBool,
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

/// Equal handles are of one opened device; see [`Device::is`].
/// A choice in use.
enum Taken {
    /// Without state: kept for ever, once for all problems with these parameters.
    Kept(&'static Prepared),
    /// With state, which goes back to its slot at the end, or to none where the slot is [`REMEMBERED`].
    Owned(Option<Box<Choice>>, usize),
}

impl Taken {
    #[inline]
    fn prepared(&self) -> &Prepared {
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

/// The one copy of a choice without state, which lasts as long as the program: there are as many as
/// tables and candidates have parameters.
#[cold]
fn kept(prepared: Prepared) -> &'static Prepared {
    static ALL: Mutex<BTreeMap<Params, &'static Prepared>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(*prepared.params()).or_insert_with(|| Box::leak(Box::new(prepared)))
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.is(other)
    }
}

impl Eq for Device {}

/// How many choices a thread remembers, so that a repeated small product searches no table.
const REMEMBERED: usize = 64;

/// A choice, by device and problem.
struct Choice {
    m: usize,
    n: usize,
    /// The device's serial number, alignment, layout and type.
    class: u64,
    prepared: Prepared,
}

/// What a choice without state is remembered by: rows, columns, and the class of [`Choice`].
type Key = (usize, usize, u64);

thread_local! {
    /// Choices without state. Nothing of it is dropped, so a look-up is a few loads.
    static KEPT: [Cell<Option<(Key, &'static Prepared)>>; REMEMBERED] =
        const { [const { Cell::new(None) }; REMEMBERED] };
    /// A slot is taken while its choice is in use, and put back: no lock, no reference count.
    static CHOICES: [Cell<Option<Box<Choice>>>; REMEMBERED] =
        const { [const { Cell::new(None) }; REMEMBERED] };
}

impl Device {
    /// A handle for a backend, with its own tables and the user's.
    ///
    /// ```
    /// use gemv_core::{Device, reference::Reference};
    /// let (one, two) = (Device::new(Reference::open()), Device::new(Reference::open()));
    /// assert!(one.is(&one.clone()) && !one.is(&two));
    /// ```
    pub fn new(backend: Arc<dyn Backend>) -> Device {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let tables = Tables::load(&*backend);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let logged = AtomicBool::new(false);
        Device(Arc::new(Inner { backend, tables, serial, logged }))
    }

    /// What the device says of itself.
    ///
    /// ```
    /// use gemv_core::Engine;
    /// let device = Engine::new(None).device("reference")?;
    /// assert_eq!((&*device.info().id, device.info().host), ("reference", true));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn info(&self) -> &DeviceInfo {
        self.0.backend.device()
    }

    /// The backend behind it.
    ///
    /// For what only the seam has: candidates, legality, timing.
    ///
    /// ```
    /// # use gemv_core::{Desc, Dtype, Engine};
    /// # let device = Engine::new(None).device("reference")?;
    /// let desc = Desc::new(Dtype::F32, 100, 100, (100, 1), 0);
    /// for params in device.backend().candidates(&desc) {
    ///     device.backend().fits(&desc, &params)?;
    /// }
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    #[inline]
    pub fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// The tables by which it chooses.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// let last = device.tables().iter().last().unwrap();
    /// assert_eq!(last.origin, "reference");
    /// assert_eq!(last.rows[0].to_string(), "* * : reference");
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn tables(&self) -> &Tables {
        &self.0.tables
    }

    /// What would be chosen for this problem.
    ///
    /// The nearest legal row of its [`tables`](Self::tables); a thread remembers its last choices.
    ///
    /// ```
    /// # use gemv_core::{Desc, Dtype, Engine};
    /// # let device = Engine::new(None).device("reference")?;
    /// let desc = Desc::new(Dtype::F32, 4096, 8192, (8192, 1), 0);
    /// let params = device.choose(&desc)?;
    /// assert_eq!(params.to_string(), "reference"); // elsewhere such as "row threads=128 rows=4"
    /// assert!(params.keeps_order());
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot compute it at all.
    pub fn choose(&self, desc: &Desc) -> Result<Params> {
        Ok(*self.choice(desc)?.prepared().params())
    }

    /// What this problem is remembered by, and where.
    #[inline(always)]
    fn key(&self, desc: &Desc) -> (Key, usize) {
        let Desc { dtype, m, n, layout, align, .. } = *desc;
        let class =
            self.0.serial << 24 | u64::from(align) << 16 | (layout as u64) << 8 | dtype as u64;
        let slot = m.wrapping_mul(31) ^ n ^ (m >> 9) ^ (n >> 9);
        let slot = slot.wrapping_add(layout as usize * 5 + dtype as usize * 7) % REMEMBERED;
        ((m, n, class), slot)
    }

    /// The choice that the thread remembers, if it has no state. A reference comes back in a
    /// register: a struct that is returned in pieces and read whole waits for its stores.
    #[inline(always)]
    fn recall(&self, desc: &Desc) -> Option<&'static Prepared> {
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
    fn choice(&self, desc: &Desc) -> Result<Taken> {
        if let Some(prepared) = self.recall(desc) {
            return Ok(Taken::Kept(prepared));
        }
        let (key, slot) = self.key(desc);
        let (m, n, class) = key;
        if desc.rhs != 1 || desc.batch != 1 {
            let choice = Box::new(Choice { m, n, class, prepared: self.search(desc)? });
            return Ok(Taken::Owned(Some(choice), REMEMBERED));
        }
        let known = CHOICES.try_with(|choices| choices[slot].take());
        if let Some(choice) = known.ok().flatten()
            && (choice.m, choice.n, choice.class) == key
        {
            return Ok(Taken::Owned(Some(choice), slot));
        }
        self.remember(desc, key, slot)
    }

    #[cold]
    fn remember(&self, desc: &Desc, (m, n, class): Key, slot: usize) -> Result<Taken> {
        let prepared = self.search(desc)?;
        if prepared.has_state() {
            return Ok(Taken::Owned(Some(Box::new(Choice { m, n, class, prepared })), slot));
        }
        let prepared = kept(prepared);
        KEPT.with(|all| all[slot].set(Some(((m, n, class), prepared))));
        Ok(Taken::Kept(prepared))
    }

    #[cold]
    fn search(&self, desc: &Desc) -> Result<Prepared> {
        self.backend().accepts(desc)?;
        if !self.0.logged.swap(true, Ordering::Relaxed) {
            log::debug!("{self} computes");
        }
        self.backend().prepare(desc, &self.0.tables.choose(&*self.0.backend, desc))
    }

    /// Whether both handles are of one opened device.
    ///
    /// Operands have to be resident on the very device that computes, not on one like it.
    ///
    /// ```
    /// use gemv_core::{Device, Error, reference::Reference};
    /// use ndarray::array;
    ///
    /// let (here, there) = (Device::new(Reference::open()), Device::new(Reference::open()));
    /// let a = there.matrix(&array![[1.0, 2.0]])?;
    /// assert!(a.device().is(&there) && !a.device().is(&here));
    /// let e = here.try_gpu_dot(&a, &array![1.0, 1.0]).unwrap_err();
    /// assert!(matches!(e, Error::WrongDevice { .. }));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    pub fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0.backend, &other.0.backend)
    }

    /// Waits until everything that was started on the device is done.
    ///
    /// A download waits by itself: this is for clocks.
    ///
    /// ```
    /// # use gemv_core::{GpuDot, ToDevice, device};
    /// # use ndarray::array;
    /// # let device = device("reference")?;
    /// let a = array![[1.0, 2.0], [3.0, 4.0]].to_device(&device)?;
    /// let y = a.gpu_dot(&array![1.0, 1.0]); // may still be in flight
    /// device.synchronize()?; // done
    /// # assert_eq!(y.download()?, array![3.0, 7.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's refusal, also of work that was started before.
    pub fn synchronize(&self) -> Result<()> {
        self.backend().synchronize()
    }

    /// `A x` on this device, as a host array; see [`GpuDot`](crate::GpuDot) for `a.gpu_dot(&x)`.
    ///
    /// A is m × n, `x` has n entries, the result m; each on the host or resident here.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
    /// let x = device.vector(&array![1.0, -1.0])?;
    /// assert_eq!(device.try_gpu_dot(&a, &x)?, array![-1.0, -1.0, -1.0]);
    /// assert_eq!(device.try_gpu_dot(&a.t(), &array![1.0, 0.0, 1.0])?, array![6.0, 8.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn try_gpu_dot<'a, 'x, T: Element>(
        &self,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
    ) -> Result<Array1<T>> {
        let (a, x) = (a.into(), x.into());
        // Before a vector is allocated for it.
        check(a.dim(), x.len(), None)?;
        let mut y = Array1::from_vec(host_zeros("the host", a.dim().0)?);
        let (alpha, beta) = (T::Acc::ONE, T::Acc::ZERO);
        self.gemv(alpha, a, x, beta, VectorMut::Host(y.view_mut()))?;
        Ok(y)
    }

    /// `y = alpha * A x + beta * y` on this device, with BLAS's meaning: `alpha = 0` does not read
    /// A and x, `beta = 0` does not read y. Operands may be on the host or resident here.
    ///
    /// A is m × n, `x` has n entries, `y` m. The factors have the accumulator's type: f32 for f16
    /// and bf16.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv_core::half::f16;
    /// use ndarray::{Array2, array};
    ///
    /// let a = Array2::from_elem((2, 2), f16::from_f32(0.5));
    /// let x = array![f16::ONE, f16::ONE];
    /// let mut y = array![f16::NAN, f16::NAN];
    /// device.gemv(3.0, &a, &x, 0.0, &mut y)?; // beta = 0: y is not read
    /// assert_eq!(y[0].to_f32(), 3.0);
    /// device.gemv(1.0, &a, &x, -1.0, &mut y)?;
    /// assert_eq!(y[0].to_f32(), -2.0);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::WrongDevice`] if a resident operand lives elsewhere;
    /// [`Error::Unsupported`], [`Error::OutOfMemory`], [`Error::Build`] or [`Error::Device`] from
    /// the device.
    #[inline]
    pub fn gemv<'a, 'x, 'y, T: Element>(
        &self,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        self.run(None, false, alpha, a.into(), x.into(), beta, y.into())
    }

    /// [`gemv`](Self::gemv) with the conjugate of A (the same for real types). With
    /// `A.t()` it is BLAS's `C`.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use gemv_core::num_complex::Complex;
    /// use ndarray::array;
    ///
    /// let i = Complex::new(0.0f32, 1.0);
    /// let (one, zero) = (Complex::new(1.0, 0.0), Complex::new(0.0, 0.0));
    /// let (a, x) = (array![[one, i], [zero, one]], array![one, i]);
    /// let mut y = array![zero, zero];
    /// device.gemv_conj(one, &a.t(), &x, zero, &mut y)?; // Aᴴ x
    /// assert_eq!(y, array![one, zero]); // second: -i + i
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemv_conj<'a, 'x, 'y, T: Element>(
        &self,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        self.run(None, true, alpha, a.into(), x.into(), beta, y.into())
    }

    /// [`gemv`](Self::gemv) with these parameters in place of the table's: for the tuner, tests
    /// and benchmarks, and for the published `classic-*` kernels, which keep another order.
    ///
    /// ```
    /// # use gemv_core::{Engine, Error, Params};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let (a, x, mut y) = (array![[1.0, 2.0]], array![3.0, 4.0], array![0.0]);
    /// device.gemv_as(&Params::new("reference"), 1.0, &a, &x, 0.0, &mut y)?;
    /// assert_eq!(y, array![11.0]);
    /// let other = "row threads=128".parse().unwrap();
    /// let e = device.gemv_as(&other, 1.0, &a, &x, 0.0, &mut y).unwrap_err();
    /// assert!(matches!(e, Error::Params { .. }) && y == array![11.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv), and [`Error::Params`] if they are not legal for the problem.
    pub fn gemv_as<'a, 'x, 'y, T: Element>(
        &self,
        params: &Params,
        alpha: T::Acc,
        a: impl Into<MatrixRef<'a, T>>,
        x: impl Into<VectorRef<'x, T>>,
        beta: T::Acc,
        y: impl Into<VectorMut<'y, T>>,
    ) -> Result<()> {
        self.run(Some(params), false, alpha, a.into(), x.into(), beta, y.into())
    }

    /// Where all products come together. Each operand is moved once, into the job.
    #[inline]
    #[allow(clippy::too_many_arguments)] // the parts of a job, not yet one
    fn run<T: Element>(
        &self,
        params: Option<&Params>,
        conj: bool,
        alpha: T::Acc,
        a: MatrixRef<'_, T>,
        x: VectorRef<'_, T>,
        beta: T::Acc,
        y: VectorMut<'_, T>,
    ) -> Result<()> {
        check(a.dim(), x.len(), Some(y.len()))?;
        if a.dim().0 == 0 {
            return Ok(());
        }
        if let MatrixRef::Device(a) = &a {
            self.owns(a.device())?;
        }
        if let VectorRef::Device(x) = &x {
            self.owns(x.device())?;
        }
        if let VectorMut::Device(y) = &y {
            self.owns(y.device())?;
        }
        if alpha == T::Acc::ZERO {
            if beta == T::Acc::ONE {
                return Ok(());
            }
            if let VectorMut::Host(y) = y {
                without_a(beta, y);
                return Ok(());
            }
        }
        let desc = a.desc();
        if params.is_none()
            && let Some(prepared) = self.recall(&desc)
        {
            return self.launch(prepared, conj, alpha, a, x, beta, y);
        }
        self.launch_new(params, &desc, conj, alpha, a, x, beta, y)
    }

    /// As [`run`](Self::run), for given parameters, for choices with state, and for new problems.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)] // the parts of a job, not yet one
    fn launch_new<T: Element>(
        &self,
        params: Option<&Params>,
        desc: &Desc,
        conj: bool,
        alpha: T::Acc,
        a: MatrixRef<'_, T>,
        x: VectorRef<'_, T>,
        beta: T::Acc,
        y: VectorMut<'_, T>,
    ) -> Result<()> {
        let (given, chosen);
        let prepared = match params {
            Some(params) => {
                given = self.backend().prepare(desc, params)?;
                &given
            }
            None => {
                chosen = self.choice(desc)?;
                chosen.prepared()
            }
        };
        self.launch(prepared, conj, alpha, a, x, beta, y)
    }

    /// Hands the job to the backend.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // the parts of a job, not yet one
    fn launch<T: Element>(
        &self,
        prepared: &Prepared,
        conj: bool,
        alpha: T::Acc,
        a: MatrixRef<'_, T>,
        x: VectorRef<'_, T>,
        beta: T::Acc,
        y: VectorMut<'_, T>,
    ) -> Result<()> {
        match y {
            VectorMut::Host(y) => {
                let (a, x, y) = (a.reborrow(), x.reborrow(), VectorMut::Host(y.reborrow()));
                self.backend().gemv(T::any_job(Job { alpha, a, conj, x, beta, y }), prepared)
            }
            VectorMut::Device(y) => {
                let before = y.make_unique(beta != T::Acc::ZERO)?;
                let (a, x, y_ref) = (a.reborrow(), x.reborrow(), VectorMut::Device(&mut *y));
                let job = T::any_job(Job { alpha, a, conj, x, beta, y: y_ref });
                let done = self.backend().gemv(job, prepared);
                // The vector that was there stays if the backend fails.
                if let (Err(_), Some(before)) = (&done, before) {
                    *y = before;
                }
                done
            }
        }
    }

    #[inline]
    fn owns(&self, operand: &Device) -> Result<()> {
        if operand.is(self) {
            return Ok(());
        }
        Err(Error::WrongDevice {
            device: self.info().id.clone(),
            operand: operand.info().id.clone(),
        })
    }
}

/// `alpha = 0`: nothing to compute that would be worth a launch.
#[cold]
fn without_a<T: Element>(beta: T::Acc, mut y: ArrayViewMut1<'_, T>) {
    if beta == T::Acc::ZERO {
        y.fill(T::default());
    } else {
        y.mapv_inplace(|v| T::narrow(beta.mul(v.widen())));
    }
}

/// The one place where shapes are compared.
#[inline]
pub(crate) fn check(matrix: (usize, usize), x: usize, y: Option<usize>) -> Result<()> {
    if x == matrix.1 && y.is_none_or(|y| y == matrix.0) {
        return Ok(());
    }
    Err(Error::Shape(ShapeMismatch::MatrixVector { matrix, x, y }))
}

/// Zeros in the host's memory. A length may be beyond any memory: that of the result of a broadcast
/// matrix, or of one without columns.
pub(crate) fn host_zeros<T: Element>(device: &str, len: usize) -> Result<Vec<T>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
        device: device.into(),
        asked: (len as u64).saturating_mul(T::DTYPE.bytes() as u64),
        free: None,
    })?;
    zeros.resize(len, T::default());
    Ok(zeros)
}
