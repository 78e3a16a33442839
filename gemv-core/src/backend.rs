//! The seam: all that a backend has to be.

use std::any::Any;
use std::fmt::{self, Debug, Display};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::element::{AnySlice, AnySliceMut, AnySmall};
use crate::interop::Interop;
use crate::job::{Checked, Job};
use crate::launch::{CompiledKernel, KernelLaunch};
use crate::memory::{Exchange, Memory, Receive};
use crate::step::{AnyVectorJob, Epilogue};
use crate::tensor::PackedMatrix;
use crate::{Desc, Dtype, Error, Format, KernelInfo, Params, Result};

/// What a device says of itself.
///
/// ```
/// use gemv::DeviceInfo;
///
/// let mut info = DeviceInfo::new("npu:0");
/// (info.name, info.units, info.memory) = ("A fine chip".into(), 16, Some(8 << 30));
/// assert_eq!((&*info.id, info.host, &*info.vendor), ("npu:0", false, ""));
/// assert_eq!(info.to_string(), "npu:0: A fine chip, 16 units, 8.0 GiB");
/// ```
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
    /// Whether it computes while the caller goes on: what is started on resident operands returns before it is done.
    pub asynchronous: bool,
    /// Whether devices of its backend copy from each other: see [`Backend::exchange`].
    pub peers: bool,
    /// Whether it computes on rayon's current pool. A call from a thread outside of that pool would take the global
    /// one, which may be waiting for this call.
    pub rayon: bool,
    /// Why it is not to be used, if an earlier process has found out that it breaks the
    /// [order](crate::order). It is listed as [`Error::Refused`](crate::Error::Refused).
    pub refused: Option<String>,
}

/// Such as `cuda:0: NVIDIA H200, sm_90, 132 units, 139.8 GiB, driver 570.86`, of what is known.
impl Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sep = ": ";
        f.write_str(&self.id)?;
        let units = (self.units > 0).then(|| format!("{} units", self.units));
        let memory = self.memory.map(|b| format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64));
        let text = |of: &String| Some(of.clone());
        for part in [text(&self.name), text(&self.arch), units, memory, text(&self.driver)] {
            if let Some(part) = part.filter(|part| !part.is_empty()) {
                write!(f, "{sep}{part}")?;
                sep = ", ";
            }
        }
        Ok(())
    }
}

impl DeviceInfo {
    /// A description with this id and nothing else known.
    pub fn new(id: impl Into<String>) -> DeviceInfo {
        DeviceInfo { id: id.into(), ..DeviceInfo::default() }
    }
}

/// What writes the pieces of [`Backend::fill`]: called with the place of a piece in bytes, and its memory, by
/// several threads at once.
pub type PieceSource<'a> = &'a (dyn Fn(usize, &mut [u8]) -> bool + Sync);

/// A device, opened. Users, tuner, tests and benches all launch through [`product`](Self::product), but for small products of
/// host arrays where a choice has [a function](Prepared::with_small) for them.
///
/// A backend computes with the bits of the [order](crate::order) whatever the `Params` and the caller's
/// [floating-point mode](crate::float_mode), except
/// for kernels whose name begins with `classic-` or `vendor-`, and for its [read-bandwidth passes](Backend::read_params).
///
/// A job that arrives is [`Checked`](crate::Checked): shapes agree, operands lie in their memory, and no two
/// entries of `y` at one place. [`Device`](crate::Device) stands before it and does what else is the same
/// for all: operands live here, `alpha = 0` of a host `y` never arrives, a resident `y` is not shared.
///
/// All of its methods are safe, and may be called without a [`Device`](crate::Device): no memory is read or written
/// but that of the operands. Memory of another backend, device or element type is a panic, as is a [`Prepared`]
/// of another device or problem. To write one, see `docs/adding-a-backend.md`.
///
/// ```
/// use gemv::unstable::{Job, Number, reference::Reference};
/// use ndarray::array;
///
/// let backend = Reference::open();
/// let (a, x) = (array![[1.0f32, 2.0], [3.0, 4.0]], array![1.0f32, 1.0]);
/// let mut y = array![0.0f32, 0.0];
/// let job = Job {
///     alpha: Number::new(1.0f32),
///     a: a.view().into(),
///     conj: false,
///     x: x.view().into(),
///     beta: Number::new(0.0f32),
///     y: y.view_mut().into(),
/// };
/// let mut job = job.check()?; // the operands fit
/// let desc = job.desc();
/// let params = backend.candidates(&desc)[0];
/// let prepared = backend.prepare(&desc, &params)?; // proved once
/// backend.product(&mut job, &prepared)?; // as often as needed
/// assert_eq!(y, array![3.0, 7.0]);
/// # Ok::<(), gemv::Error>(())
/// ```
pub trait Backend: Any + Send + Sync + Debug {
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
    /// ```
    /// # use gemv::{Dtype, unstable::{Desc, Params, reference::Reference}};
    /// # let backend = Reference::open();
    /// let desc = Desc::new(Dtype::F32, 2, 3, (3, 1), 0);
    /// assert!(backend.candidates(&desc).iter().all(|p| backend.fits(&desc, p).is_ok()));
    /// let e = backend.fits(&desc, &Params::new("row").with("rows", 3)).unwrap_err();
    /// assert!(e.to_string().starts_with("row rows=3 does not fit f32 row 2x3 on reference: "));
    /// ```
    ///
    /// # Errors
    /// [`Error::Params`](crate::Error::Params), with the rule that is broken.
    fn fits(&self, desc: &Desc, params: &Params) -> Result<()>;

    /// A number for what these parameters, which fit, start on the device for this problem: those
    /// of which it is equal do the same. The tuner measures one of them.
    ///
    /// ```
    /// # use gemv::{Dtype, unstable::{Desc, reference::Reference}};
    /// # let backend = Reference::open();
    /// let desc = Desc::new(Dtype::F32, 2, 3, (3, 1), 0);
    /// let work = |text: &str| backend.launch_id(&desc, &text.parse().unwrap());
    /// assert_eq!(work("reference"), work("reference"));
    /// assert_ne!(work("row rows=1"), work("row rows=2"));
    /// ```
    fn launch_id(&self, _desc: &Desc, params: &Params) -> u64 {
        let mut hash = DefaultHasher::new();
        params.hash(&mut hash);
        hash.finish()
    }

    /// Built-in tables (text) for this device, the most specific first: device, architecture,
    /// vendor, default. The last has a row for every type and layout.
    ///
    /// ```
    /// # use gemv::unstable::{Table, reference::Reference};
    /// # let backend = Reference::open();
    /// let last = *backend.tables().last().unwrap();
    /// let rows = Table::parse(last.name, last.text)?.rows;
    /// assert!(rows.iter().any(|row| row.dtype.is_none() && row.layout.is_none()));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    fn tables(&self) -> Vec<BuiltinTable>;

    /// A new block that holds a copy of `data`.
    ///
    /// ```
    /// # use gemv::unstable::{AnySlice, reference::Reference};
    /// # let backend = Reference::open();
    /// let block = backend.upload(AnySlice::F64(&[1.0, 2.0, 3.0]))?;
    /// assert_eq!(block.len(), 3);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), or the driver's refusal.
    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>>;

    /// A new block of `len` zeros.
    ///
    /// `len` is in elements.
    ///
    /// ```
    /// # use gemv::{Dtype, Error, unstable::reference::Reference};
    /// # let backend = Reference::open();
    /// assert_eq!(backend.alloc(Dtype::C32, 5)?.len(), 5);
    /// let e = backend.alloc(Dtype::C32, 1 << 60).unwrap_err();
    /// assert!(matches!(e, Error::OutOfMemory { asked: 0x8000_0000_0000_0000, .. }), "{e}");
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>>;

    /// The formats of packed matrices that it has kernels for. No product of another one arrives; by default none does.
    ///
    /// ```
    /// # use gemv::{Format, unstable::reference::Reference};
    /// # let backend = Reference::open();
    /// assert!(backend.packed_formats().iter().all(|of| Format::ALL.contains(of)));
    /// ```
    fn packed_formats(&self) -> &'static [Format] {
        &[]
    }

    /// Whether products take packed matrices in the host's memory, where they lie. By default each is uploaded first.
    fn packed_in_place(&self) -> bool {
        false
    }

    /// A new block that holds the rows of a packed matrix of the host, in the arrangement that the device's kernels read:
    /// for products whose [`Desc`] has its [`packing`](Desc::packing). By default it refuses, as the products are refused that
    /// have none of the [formats](Self::packed_formats).
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), or as [`upload`](Self::upload).
    ///
    /// # Panics
    /// If the matrix is not in the host's memory.
    fn upload_packed(&self, matrix: PackedMatrix<'_>) -> Result<Box<dyn Memory>> {
        Err(not_packed(self.device(), matrix.format, Dtype::F32))
    }

    /// What the device does with memory and events of other libraries; `None` by default: it takes none.
    fn interop(&self) -> Option<&dyn Interop> {
        None
    }

    /// Has what a product with this choice needs, also inside of a graph that a program captures on its own stream; see
    /// [`Device::reserve`](crate::Device::reserve). By default there is nothing to have.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    fn reserve(&self, prepared: &Prepared) -> Result<()> {
        let _ = prepared;
        Ok(())
    }

    /// The error for what this backend does not do, or sees that it must not.
    #[doc(hidden)]
    fn refused(&self, call: &'static str, reason: &str) -> Error {
        Error::Device { device: self.device().id.clone(), call, reason: reason.into() }
    }

    /// Copies the elements from `first` on to `to`.
    ///
    /// `first` is in elements; as many are copied as `to` has places.
    ///
    /// ```
    /// # use gemv::unstable::{AnySlice, AnySliceMut, reference::Reference};
    /// # let backend = Reference::open();
    /// let block = backend.upload(AnySlice::F64(&[1.0, 2.0, 3.0, 4.0]))?;
    /// let mut some = [0.0; 2];
    /// backend.download(&*block, 1, AnySliceMut::F64(&mut some))?;
    /// assert_eq!(some, [2.0, 3.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's refusal.
    ///
    /// # Panics
    /// If the block is not this device's, is shorter, or has another type.
    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()>;

    /// Fills a block from its beginning, by pieces that `source` writes: for data that is larger than the
    /// device, or that has still to be read. Returns whether it does so; by default it does not, asks for no
    /// piece, and the caller takes arrays of the host.
    ///
    /// `source` is called with the place of a piece, in bytes from the beginning, and with its memory, from
    /// which the device copies fastest. Pieces are of whole elements, come in any order and to several threads at
    /// once, and are `bytes` in all, which are not more than the block has. Copies may still be in flight on
    /// return: later calls on the same device wait for them, and they wait for earlier work on the block. After
    /// `source` has returned false, each thread asks it at most once more, and what the block holds is undefined.
    /// What the backend keeps to fill blocks again is bounded, and freed with the device. While `source` runs, other
    /// threads may use the device. `source` must not wait for a pool of threads of which the caller is one.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut block = device.zeros::<f32, _>(1 << 20)?;
    /// let memory = block.window_mut().expect("not shared").memory;
    /// let ones = |_: usize, piece: &mut [u8]| {
    ///     piece.chunks_exact_mut(4).for_each(|one| one.copy_from_slice(&1f32.to_ne_bytes()));
    ///     true
    /// };
    /// let filled = device.backend().fill(memory, 4 << 20, &ones)?;
    /// assert!(!filled); // but on cuda:0 it is
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`upload`](Self::upload), of what it needs for that, or the driver's refusal. What the block holds is
    /// then undefined.
    ///
    /// # Panics
    /// If the block is not this device's, or is shorter; or if `source` panics.
    fn fill(&self, to: &mut dyn Memory, bytes: usize, source: PieceSource<'_>) -> Result<bool> {
        let _ = (to, bytes, source);
        Ok(false)
    }

    /// Starts copies between blocks of this backend's devices, not through the host's memory. Whether a backend does so,
    /// its devices [say](DeviceInfo::peers); by default it does not.
    ///
    /// The copies wait for work that was started before, on the devices that are written and on those that are read.
    /// Later work on these devices runs beside them until [`Exchange::finish`]: before that, it may neither use the places
    /// that are written nor write those that are read; other places of the same blocks it may. No place is both written
    /// and read.
    ///
    /// ```
    /// # use gemv::{Engine, unstable::{Piece, Receive}};
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.vector(&[1.0, 2.0, 3.0, 4.0])?; // or on cuda:0
    /// let mut y = device.zeros::<f64, _>(2)?; // and on cuda:1
    /// let piece = Piece { at: 0, from: x.window().memory, range: 2..4 };
    /// let to = y.window_mut().expect("not shared").memory;
    /// let copies = device.backend().exchange(&mut [Receive { to, pieces: vec![piece] }]);
    /// assert_eq!(copies.is_ok(), device.info().peers);
    /// copies.map_or(Ok(()), |copies| copies.finish())?;
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device): the driver's refusal, or the backend does not do so. What the blocks hold
    /// that are written is then undefined.
    ///
    /// # Panics
    /// If a block is another backend's, a piece is not inside of its blocks, or their element types differ.
    fn exchange(&self, _blocks: &mut [Receive<'_>]) -> Result<Box<dyn Exchange>> {
        Err(self.refused("exchange", "devices of this backend do not copy from each other"))
    }

    /// Proves that these parameters are legal for this problem, and keeps what the proof found:
    /// kernel, plan, entry points. A [`Device`](crate::Device) remembers the result by `desc`, so
    /// that a second product of the same shape looks nothing up and proves nothing again.
    ///
    /// By default [`accepts`](Self::accepts) and [`fits`](Self::fits), without a state. A backend
    /// that wraps another one forwards this call.
    ///
    /// ```
    /// # use gemv::{Dtype, unstable::{Desc, Params, reference::Reference}};
    /// # let backend = Reference::open();
    /// let desc = Desc::new(Dtype::F32, 2, 3, (3, 1), 0);
    /// let prepared = backend.prepare(&desc, &Params::new("reference"))?;
    /// assert_eq!(prepared.params().to_string(), "reference");
    /// assert!(backend.prepare(&desc, &Params::new("row")).is_err());
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), [`Error::Params`](crate::Error::Params),
    /// or [`Error::Build`](crate::Error::Build) if the kernel does not compile.
    fn prepare(&self, desc: &Desc, params: &Params) -> Result<Prepared> {
        self.accepts(desc)?;
        self.fits(desc, params)?;
        Ok(Prepared::new(*params))
    }

    /// Compiles now what the first product by `prepared` would wait for, and tests it where that product would; by default
    /// there is nothing left to do. Several threads may compile at once.
    ///
    /// ```
    /// use gemv::unstable::{Desc, Dtype, Layout};
    ///
    /// let device = gemv::device("reference")?;
    /// let prepared = device.prepared(&Desc::of(Dtype::F32, Layout::Row, (2, 3), 0))?;
    /// device.backend().warm(&prepared)?;
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of that product.
    ///
    /// # Panics
    /// If `prepared` is another device's.
    fn warm(&self, _prepared: &Prepared) -> Result<()> {
        Ok(())
    }

    /// Prepares the sums of one process to which the columns are dealt in blocks of 256; by default `None`: the backend has
    /// no kernel for them, or not for this problem. The caller then takes the sums of segments.
    ///
    /// The matrix has the columns of one of `processes` processes, a power of two up to 64.
    /// [`product`](Self::product) takes the result for a job of one vector and resident operands with `alpha = 1` and `beta = 0`. Its x begins with
    /// the entry of the process' first column, and goes on as the whole vector does: the entries of its blocks are
    /// `256 * processes` apart. Its y, of the accumulator's type, gets what is left of the process' lanes of the second
    /// level: see `docs/ORDER.md`, "What follows". That is one number for each row and 65,536 columns of the whole: those of
    /// a row follow one another in memory from its entry of y on, and y's stride leaves room for them. A number for
    /// columns of which the process has none is not written.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    fn prepare_cyclic(&self, _desc: &Desc, _processes: usize) -> Result<Option<Prepared>> {
        Ok(None)
    }

    /// Computes a product; on return a host `Y` is written. Work on resident operands may still
    /// be in flight: later calls on the same device wait for it.
    ///
    /// `prepared` is of this backend's [`prepare`](Self::prepare), for the job's
    /// [`desc`](crate::Job::desc). Parameters of a kernel for one vector are legal for any
    /// number of columns and any batch: then one column is computed after the other, as by
    /// [`columns`](crate::Checked::columns).
    ///
    /// # Errors
    /// See [`Error`](crate::Error). `Y` is as it was, except where documented there. Where columns are computed one after
    /// the other and a later one fails, earlier ones are written.
    ///
    /// # Panics
    /// If memory is another device's or of another type. If `prepared` is another device's, or for another problem;
    /// a backend to which the parameters alone say all may compute the product by them instead.
    fn product(&self, job: &mut Checked<Job<'_>>, prepared: &Prepared) -> Result<()>;

    /// Computes a product and the steps behind it in one pass, if the choice has a program that takes them where it writes Y:
    /// with the bits of the product and of [`vector`](Self::vector) behind it. False if not, and nothing was done; the caller
    /// then does both. By default always.
    ///
    /// Y and the bias are resident, and of shapes that fit; a function is of a real type. Compilers that are missing, or
    /// fail, are no error here.
    ///
    /// # Errors
    /// As [`product`](Self::product).
    ///
    /// # Panics
    /// As [`product`](Self::product).
    fn product_with(
        &self,
        job: &mut Checked<Job<'_>>,
        prepared: &Prepared,
        epilogue: &Epilogue<'_>,
    ) -> Result<bool> {
        let _ = (job, prepared, epilogue);
        Ok(false)
    }

    /// Computes one elementwise step. Work may still be in flight: later calls on the same device wait
    /// for it.
    ///
    /// A backend whose memory is the host's may call [`reference::vector`](crate::reference::vector).
    ///
    /// # Errors
    /// As [`product`](Self::product).
    ///
    /// # Panics
    /// If memory is another device's or of another type.
    fn vector(&self, job: AnyVectorJob<'_>) -> Result<()>;

    /// The published kernels for this problem, as named baselines: their names begin with
    /// `classic-`, they keep orders of their own, and nothing but an explicit request runs them.
    ///
    /// ```
    /// # use gemv::{Dtype, unstable::{Desc, reference::Reference}};
    /// # let backend = Reference::open();
    /// let desc = Desc::new(Dtype::F32, 64, 64, (64, 1), 0);
    /// assert_eq!((backend.classic(&desc), backend.vendor(&desc)), (vec![], None)); // the default
    /// ```
    fn classic(&self, _desc: &Desc) -> Vec<Params> {
        Vec::new()
    }

    /// The vendor's own library for this problem, such as `vendor-cublas`, where it is there: for
    /// benchmarks. Its name begins with `vendor-`, it keeps an order of its own, and nothing but an
    /// explicit request runs it.
    fn vendor(&self, _desc: &Desc) -> Option<Params> {
        None
    }

    /// Compiles a kernel that a person brings, once for each text and entry point; see
    /// [`Kernel::from_source`](crate::Kernel::from_source). By default there is no compiler.
    ///
    /// ```
    /// # use gemv::unstable::reference::Reference;
    /// let e = Reference::open().compile("__kernel void f() {}", "f").unwrap_err();
    /// let why = "kernel f on reference: kernels from source need a device of opencl or cuda";
    /// assert_eq!(e.to_string(), why);
    /// ```
    ///
    /// # Errors
    /// [`Error::Build`](crate::Error::Build) with the compiler's log, or
    /// [`Error::Kernel`](crate::Error::Kernel).
    fn compile(&self, text: &str, entry: &str) -> Result<CompiledKernel> {
        let _ = text;
        Err(Error::Kernel {
            kernel: entry.into(),
            device: self.device().id.clone(),
            reason: "kernels from source need a device of opencl or cuda".into(),
        })
    }

    /// Enqueues what this backend has [compiled](Self::compile), in the order of all other work.
    ///
    /// # Errors
    /// The driver's refusal.
    ///
    /// # Panics
    /// If another device has compiled it, or an array is another device's; the default always, since it compiles
    /// nothing.
    fn launch(&self, launch: KernelLaunch<'_>) -> Result<()> {
        panic!("{} has not compiled {:?}", self.device().id, launch.compiled())
    }

    /// Waits until everything that was started on the device is done.
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// let y = a.try_gpu_dot(&device.vector(&array![1.0, 1.0])?)?; // may still be under way
    /// device.backend().synchronize()?; // now it is not
    /// assert_eq!(y.download()?, array![3.0, 7.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's refusal, also of work that was started before.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// The time that the device takes for what `product` starts on it, from an idle device, or from the
    /// end of the same work, to the end of the last launch. `product` multiplies resident operands (on the host,
    /// maybe arrays) with parameters that have run before: nothing is left to compile or to allocate, so that a backend may
    /// call it twice, or record it and replay the record.
    ///
    /// By default the host's clock around `product` and [`synchronize`](Self::synchronize).
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// let x = device.vector(&array![1.0, 1.0])?;
    /// let mut y = device.zeros(2)?;
    /// a.try_gemv(1.0, &x, 0.0, &mut y)?; // compiled, allocated
    /// let time = device.backend().timed(&mut || a.try_gemv(1.0, &x, 0.0, &mut y))?;
    /// assert!(time.as_secs_f64() < 10.0);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `product`, and the driver's refusal.
    fn timed(&self, product: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        self.synchronize()?;
        let start = Instant::now();
        product()?;
        self.synchronize()?;
        Ok(start.elapsed())
    }

    /// Records what `start` starts on the device and on others, with what they [exchange](Self::exchange), and runs none
    /// of it. By default `None`, and `start` is not called: the device has no records, or none with these others. All
    /// that it starts has run before: nothing is left to compile or to allocate.
    ///
    /// # Errors
    /// Those of `start`, and the driver's refusal, of what cannot be recorded.
    fn record(
        &self,
        others: &[&dyn Backend],
        start: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Box<dyn Record>>> {
        let _ = (others, start);
        Ok(None)
    }

    /// Whether this thread is in the work that [`record`](Self::record) records, or that is compared with a record. A
    /// backend that records has to say so.
    fn is_recording(&self) -> bool {
        false
    }

    /// Passes that only read: parameters for [`product`](Self::product) with a row-major f32 matrix
    /// without gaps, of which every element is read once, x is not read and y not written, but for
    /// one matrix in billions. The fastest bounds every product: no kernel that reads a matrix
    /// can beat it by much. Empty if the backend has none.
    fn read_params(&self) -> Vec<Params> {
        Vec::new()
    }

    /// The kernels that keep the [order](crate::order), for `gemv info --kernels`; empty if the
    /// backend does not say.
    ///
    /// ```
    /// let device = gemv::device("reference")?;
    /// assert_eq!(device.backend().kernels(), []);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    fn kernels(&self) -> Vec<KernelInfo> {
        Vec::new()
    }
}

/// The refusal of a packed matrix by a device without kernels for its format.
pub(crate) fn not_packed(info: &DeviceInfo, format: Format, dtype: Dtype) -> Error {
    let (device, reason) = (info.id.clone(), format!("it has no kernels for matrices of {format}"));
    Error::Unsupported { device, dtype, reason }
}

/// What [`Backend::record`] recorded; for [`Plan`](crate::Plan). The memory that it works on lives as
/// long as it does.
pub trait Record: Send + Debug {
    /// Whether `start` starts what is recorded, on the same memory. It is called, and nothing runs.
    ///
    /// # Errors
    /// Those of `start`, also of what cannot be recorded.
    fn holds(&self, start: &mut dyn FnMut() -> Result<()>) -> Result<bool>;

    /// Starts what is recorded.
    ///
    /// # Errors
    /// The driver's refusal.
    fn replay(&self) -> Result<()>;
}

/// A choice that a backend has proved: parameters, and what the backend needs to run them.
///
/// It is `Clone`, and may be dropped on any thread, after the backend as well: the state holds what
/// it needs.
///
/// ```
/// use gemv::unstable::{Params, Prepared};
///
/// #[derive(Debug, PartialEq)]
/// struct Launch {
///     blocks: u32,
/// }
/// let prepared = Prepared::new(Params::new("row")).with_state(Launch { blocks: 132 });
/// assert_eq!(prepared.state::<Launch>(), Some(&Launch { blocks: 132 }));
/// assert_eq!(prepared.state::<String>(), None);
/// ```
#[derive(Debug, Clone)]
pub struct Prepared {
    params: Params,
    /// Without one, the parameters alone say all.
    pub(crate) state: Option<Arc<dyn Any + Send + Sync>>,
    /// Whether the state is the parameters once more.
    pub(crate) parsed: bool,
    /// See [`is_chosen`](Self::is_chosen).
    pub(crate) chosen: bool,
    pub(crate) small: Option<AnySmall>,
}

impl Prepared {
    /// Parameters that need no state.
    pub fn new(params: Params) -> Prepared {
        Prepared { params, state: None, parsed: true, chosen: false, small: None }
    }

    /// With a function for products of host arrays without gaps whose factors are 1 and 0. Such a product needs no job: to make
    /// one takes longer than a small product. Whatever the function does not take goes to [`Backend::product`].
    ///
    /// A choice with [state](Self::with_state) of its own is not looked up so fast, and its function is not called. A backend that
    /// wraps another one, and has to see each product, makes its choices without the function.
    ///
    /// ```
    /// use gemv::unstable::{AnySmall, Params, Prepared};
    ///
    /// // Of one entry; what it refuses is computed by `Backend::product`.
    /// let one = |a: &ndarray::ArrayView2<'_, f32>, _: bool, x: &[f32], y: &mut [f32]| {
    ///     let takes = a.dim() == (1, 1);
    ///     if takes {
    ///         y[0] = a[[0, 0]].mul_add(x[0], 0.0);
    ///     }
    ///     takes
    /// };
    /// let prepared = Prepared::new(Params::new("one")).with_small(AnySmall::F32(one));
    /// assert_eq!(prepared.params().to_string(), "one");
    /// ```
    #[must_use]
    pub fn with_small(self, small: AnySmall) -> Prepared {
        Prepared { small: Some(small), ..self }
    }

    /// With what the backend needs to run them.
    #[must_use]
    pub fn with_state(self, state: impl Any + Send + Sync) -> Prepared {
        Prepared { state: Some(Arc::new(state)), parsed: false, ..self }
    }

    /// With the parameters in another form, which is the same for all problems and devices. A thread finds it faster than
    /// other [state](Self::with_state).
    #[must_use]
    pub fn with_parsed(self, params: impl Any + Send + Sync) -> Prepared {
        Prepared { state: Some(Arc::new(params)), parsed: true, ..self }
    }

    /// The parameters.
    #[inline]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Whether a table has chosen the parameters, and nobody has asked for them: while they are being compiled, a backend may
    /// compute by others, which give the same bits.
    ///
    /// ```
    /// use gemv::unstable::{Desc, Dtype, Layout, Params};
    ///
    /// let device = gemv::device("reference")?;
    /// let desc = Desc::of(Dtype::F32, Layout::Row, (2, 3), 0);
    /// assert!(device.prepared(&desc)?.is_chosen());
    /// assert!(!device.backend().prepare(&desc, &Params::new("reference"))?.is_chosen());
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn is_chosen(&self) -> bool {
        self.chosen
    }

    /// The state, if it is of this type.
    #[inline]
    pub fn state<T: Any>(&self) -> Option<&T> {
        self.state.as_deref()?.downcast_ref()
    }
}

/// A table that a backend ships, as text; see [`Table`](crate::Table).
///
/// ```
/// use gemv::unstable::{BuiltinTable, Table};
///
/// let cuda = BuiltinTable { name: "default.txt", text: "* * : row threads=128\nf32 col : col" };
/// let table = Table::parse(cuda.name, cuda.text)?;
/// assert_eq!((table.origin.as_str(), table.rows.len()), ("default.txt", 2));
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct BuiltinTable {
    /// The file's name, for messages.
    pub name: &'static str,
    /// The file's text.
    pub text: &'static str,
}

/// How a linked backend is found: one entry in [`BACKENDS`].
///
/// ```
/// use gemv::{DeviceInfo, Engine, Error, unstable::{BackendEntry, reference::Reference}};
///
/// let mine = BackendEntry {
///     name: "mine",
///     rank: 0,
///     discover: || Ok(vec![DeviceInfo::new("mine:0")]),
///     open: |_| Ok(Reference::open()),
/// };
/// fn look() -> gemv::Result<Vec<DeviceInfo>> {
///     Err(Error::DriverMissing { backend: "lost", reason: "looked for liblost.so".into() })
/// }
/// let lost = BackendEntry { name: "lost", rank: 1, discover: look, open: mine.open };
///
/// let engine = Engine::with_entries([lost, mine], None);
/// let ids: Vec<String> = engine.devices().into_iter().map(|line| line.id).collect();
/// assert_eq!(ids, ["mine:0", "lost"]); // by rank
/// assert!(engine.device("mine").is_ok());
/// ```
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
///
/// ```standalone_crate
/// use gemv::{DeviceInfo, unstable::{BackendEntry, reference::Reference}};
///
/// #[linkme::distributed_slice(gemv::unstable::BACKENDS)]
/// static MINE: BackendEntry = BackendEntry {
///     name: "mine",
///     rank: 50,
///     discover: || Ok(vec![DeviceInfo::new("mine:0")]),
///     open: |_| Ok(Reference::open()),
/// };
/// assert!(gemv::devices().iter().any(|line| line.id == "mine:0"));
/// ```
#[cfg(not(target_family = "wasm"))]
#[linkme::distributed_slice]
pub static BACKENDS: [BackendEntry];
/// No backend is linked into a WebAssembly program: it opens its [`Device`](crate::Device)s from
/// [`Backend`]s by name.
#[cfg(target_family = "wasm")]
pub static BACKENDS: &[BackendEntry] = &[];
