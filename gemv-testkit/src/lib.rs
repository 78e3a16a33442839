//! A backend for tests: the reference on memory of its own, where a test says what its device is, what
//! it refuses, and what it does wrong. And what tests have of a process: allocations that fail, floating-point modes
//! that a caller may have set, forks and limits.
#![deny(unsafe_code)]

#[allow(unsafe_code)] // an allocator
mod failing;
#[allow(unsafe_code)] // assembly: the register of the mode
mod float_mode;
#[allow(unsafe_code)] // memory that a test owns
pub mod foreign;
mod golden;
mod packing;
#[cfg(target_os = "linux")]
#[allow(unsafe_code)] // fork, and limits of the process
pub mod processes;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use gemv_core::float_mode::in_default;
use gemv_core::ndarray::{
    ArrayView1, ArrayView2, ArrayView3, ArrayViewMut1, ArrayViewMut3, Axis, s,
};
use gemv_core::{
    Accumulator, AnySlice, AnySliceMut, AnyVectorJob, Backend, BuiltinTable, Checked, Desc, Device,
    DeviceInfo, Dtype, Element, Error, Exchange, Format, Job, Memory, Number, Params, Piece,
    PieceSource, Prepared, Receive, Record, Result, Times, for_any, for_types, half, num_complex,
    reference,
};

pub use failing::{FailingAllocator, Failure, LEAST, each_failure, largest_allocation};
pub use float_mode::{MODES, Mode, with_mode};
pub use golden::{generated, npy, npy_of};
pub use packing::{packing_fails, required_device};

/// The methods that a backend of a test's own leaves to another one, which `$to` is.
#[macro_export]
macro_rules! leave_to {
    (|$self:ident| $to:expr) => {
        $crate::leave_to! { @ $self, $to;
            candidates(desc: &gemv_core::Desc) -> Vec<gemv_core::Params>;
            fits(desc: &gemv_core::Desc, params: &gemv_core::Params) -> gemv_core::Result<()>;
            tables() -> Vec<gemv_core::BuiltinTable>;
            upload(data: gemv_core::AnySlice<'_>) -> gemv_core::Result<Box<dyn gemv_core::Memory>>;
            alloc(of: gemv_core::Dtype, len: usize) -> gemv_core::Result<Box<dyn gemv_core::Memory>>;
            vector(job: gemv_core::AnyVectorJob<'_>) -> gemv_core::Result<()>;
        }
    };
    (@ $self:ident, $to:expr; $($name:ident($($arg:ident: $t:ty),*) -> $out:ty;)*) => { $(
        fn $name(&$self $(, $arg: $t)*) -> $out {
            $to.$name($($arg),*)
        }
    )* };
}

/// What computes a job in place of the backend.
pub type Compute = Box<dyn Fn(&mut Checked<Job<'_>>, &Prepared) -> Result<()> + Send + Sync>;

/// What fills a block in place of the backend.
pub type Fill = Box<dyn Fn(&mut dyn Memory, usize, PieceSource<'_>) -> Result<bool> + Send + Sync>;

/// What computes an elementwise step in place of the backend.
pub type ComputeStep = Box<dyn Fn(AnyVectorJob<'_>) -> Result<()> + Send + Sync>;

/// What a device says before it moves data, by what it is asked: `upload`, `alloc`, `download`, `exchange`, or `finish` of
/// an exchange; and before it sums `cyclic` columns.
pub type Transfer = Arc<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// The backend. Each field is what its device says or does; [`Host::new`] has those of the reference.
///
/// ```
/// use gemv_core::{Error, ndarray::array};
/// use gemv_testkit::{Host, compute};
///
/// // A device that fails after it has written to y.
/// let late = Error::Device { device: "fake:0".into(), call: "launch", reason: "late".into() };
/// let host = Host {
///     compute: Box::new(move |job, _| {
///         compute(job);
///         Err(late.clone())
///     }),
///     ..Host::new("fake:0")
/// };
/// assert!(host.device().try_gpu_dot(&array![[2.0]], &array![3.0]).is_err());
/// assert_eq!(Host::new("fake:0").device().try_gpu_dot(&array![[2.0]], &array![3.0])?, array![6.0]);
/// # Ok::<(), Error>(())
/// ```
pub struct Host {
    /// What the device says of itself.
    pub info: DeviceInfo,
    /// Why it cannot compute a problem at all.
    pub accepts: fn(&Desc) -> Result<(), String>,
    /// The candidates of a problem.
    pub candidates: fn(&Desc) -> Vec<Params>,
    /// Why parameters are not legal for a problem.
    pub fits: fn(&Desc, &Params) -> Result<(), String>,
    /// The text of its one built-in table, named `fake`.
    pub table: &'static str,
    /// The published kernels.
    pub classic: Vec<Params>,
    /// The passes that only read.
    pub read: Vec<Params>,
    /// What records work; by default nothing does, as on the host.
    pub record: Option<fn() -> Box<dyn Record>>,
    /// Whether this thread records; by default it does not.
    pub is_recording: fn() -> bool,
    /// What computes a product: by default as the reference, column after column.
    pub compute: Compute,
    /// What computes an elementwise step.
    pub compute_step: ComputeStep,
    /// What it says before it allocates memory, or copies from the host, to it or from other devices; by default it
    /// does so.
    pub transfer: Transfer,
    /// What fills a block by pieces; by default nothing does, as on the host.
    pub fill: Fill,
    /// The formats of packed matrices that `compute` takes, of the host's memory; by default none.
    pub packed_formats: &'static [Format],
    /// Whether it sums what one process has of block-cyclic columns; by default it does not.
    pub cyclic: bool,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.info.id)
    }
}

const REFERENCE: Params = Params::new("reference");

impl Host {
    /// A device of this id that does what the reference does.
    pub fn new(id: &str) -> Host {
        Host {
            info: DeviceInfo::new(id),
            accepts: |_| Ok(()),
            candidates: |_| vec![REFERENCE],
            fits: |_, params| match *params == REFERENCE {
                true => Ok(()),
                false => Err("there is no kernel of this name".into()),
            },
            table: "* * : reference",
            classic: Vec::new(),
            read: Vec::new(),
            record: None,
            is_recording: || false,
            compute: Box::new(|job, _| {
                compute(job);
                Ok(())
            }),
            compute_step: Box::new(|job| {
                compute_step(job);
                Ok(())
            }),
            transfer: Arc::new(|_| Ok(())),
            fill: Box::new(|_, _, _| Ok(false)),
            packed_formats: &[],
            cyclic: false,
        }
    }

    /// A handle for it.
    pub fn device(self) -> Device {
        Device::new(Arc::new(self))
    }
}

#[derive(Debug)]
struct Block<T>(Vec<T>);

impl<T: Element> Memory for Block<T> {
    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The elements of a block.
///
/// # Panics
/// If it is another backend's, or of another type.
pub fn elements<T: Element>(memory: &dyn Memory) -> &[T] {
    let memory: &dyn Any = memory;
    &memory.downcast_ref::<Block<T>>().expect("memory of the test's backend").0
}

/// The elements of a block, to write to.
///
/// # Panics
/// As [`elements`].
pub fn elements_mut<T: Element>(memory: &mut dyn Memory) -> &mut [T] {
    let memory: &mut dyn Any = memory;
    &mut memory.downcast_mut::<Block<T>>().expect("memory of the test's backend").0
}

/// The bytes of a block's elements, as they lie in memory.
///
/// # Panics
/// If it is another backend's.
fn bytes(memory: &dyn Memory) -> &[u8] {
    let memory: &dyn Any = memory;
    macro_rules! any_of {
        ($($t:ty),*) => {
            None$(.or(memory.downcast_ref::<Block<$t>>().map(|of| bytemuck::cast_slice(&of.0))))*
        };
    }
    use num_complex::Complex;
    let bytes: Option<&[u8]> = any_of!(f32, f64, half::f16, half::bf16, Complex<f32>, Complex<f64>);
    bytes.expect("memory of the test's backend")
}

/// Writes bytes to a block, from this place on: those of its elements, as they lie in memory.
///
/// # Panics
/// If it is another backend's, or shorter, or the bytes are not those of whole elements.
pub fn write_bytes(memory: &mut dyn Memory, first: usize, bytes: &[u8]) {
    fn write<T: bytemuck::Pod>(of: Option<&mut Block<T>>, first: usize, bytes: &[u8]) -> bool {
        let there = of.map(|block| bytemuck::cast_slice_mut(&mut block.0));
        there.map(|there: &mut [u8]| there[first..][..bytes.len()].copy_from_slice(bytes)).is_some()
    }
    let whole = |size: usize| first.is_multiple_of(size) && bytes.len().is_multiple_of(size);
    let memory: &mut dyn Any = memory;
    macro_rules! any_of {
        ($($t:ty),*) => {
            $((memory.is::<Block<$t>>() && whole(size_of::<$t>())
                && write::<$t>(memory.downcast_mut(), first, bytes)))||*
        };
    }
    use num_complex::Complex;
    let written = any_of!(f32, f64, half::f16, half::bf16, Complex<f32>, Complex<f64>);
    assert!(written, "whole elements of memory of the test's backend");
}

/// [`reference::gemv`], compiled in this crate for all tests: theirs would each compile it again, for every type.
///
/// # Panics
/// If the shapes do not fit.
pub fn gemv<T: Element + Times<V>, V: Element>(
    alpha: V::Acc,
    a: ArrayView2<'_, T>,
    conj: bool,
    x: ArrayView1<'_, V>,
    beta: V::Acc,
    y: ArrayViewMut1<'_, V>,
) {
    let (alpha, beta) = (Number::new(alpha), Number::new(beta));
    let job = Job { alpha, a: a.into(), conj, x: x.into(), beta, y: y.into() };
    compute(&mut job.check().expect("operands that fit"));
}

/// The same for several columns and matrices.
///
/// # Panics
/// If the shapes do not fit.
pub fn gemm<T: Element + Times<V>, V: Element>(
    alpha: V::Acc,
    a: ArrayView3<'_, T>,
    conj: bool,
    x: ArrayView3<'_, V>,
    beta: V::Acc,
    y: ArrayViewMut3<'_, V>,
) {
    let (alpha, beta) = (Number::new(alpha), Number::new(beta));
    let job = Job { alpha, a: a.into(), conj, x: x.into(), beta, y: y.into() };
    compute(&mut job.check().expect("operands that fit"));
}

/// Computes a job as the reference does, column after column.
pub fn compute(job: &mut Checked<Job<'_>>) {
    for_types!((job.a.dtype(), job.x.dtype()), T, V => {
        let (alpha, beta, conj) = (job.alpha.get(), job.beta.get(), job.conj);
        let (a, x) = (job.a.view_with::<T>(elements), job.x.view_with::<V>(elements));
        let mut y = job.y();
        let mut y = y.view_mut_with::<V>(elements_mut);
        for ((a, x), mut y) in a.outer_iter().zip(x.outer_iter()).zip(y.outer_iter_mut()) {
            for (x, y) in x.axis_iter(Axis(1)).zip(y.axis_iter_mut(Axis(1))) {
                reference::gemv(alpha, a, conj, x, beta, y);
            }
        }
    });
}

/// Computes an elementwise step as the reference does.
pub fn compute_step(job: AnyVectorJob<'_>) {
    for_any!(AnyVectorJob, job, job => {
        let (job, memory) = job.into_inner().split();
        reference::vector(&job, elements, elements_mut(memory));
    });
}

/// What [`Backend::prepare_cyclic`] prepared.
struct Cyclic {
    processes: usize,
}

/// The sums of one of so many processes, as [`Backend::prepare_cyclic`] says.
fn cyclic_sums<T: Element + Times<V>, V: Element>(job: &mut Checked<Job<'_>>, processes: usize) {
    assert!(job.alpha.is_one() && job.beta.is_zero(), "sums of a process are not scaled");
    let a = job.a.matrix_with::<T>(elements);
    let x = job.x.window().expect("operands of the device");
    let (stride, conj) = (x.stride(1), job.conj);
    let (x, first) = (elements::<V>(x.memory), x.first);
    let entry = |j: usize| x[first.wrapping_add_signed(j as isize * stride)];
    let ((rows, columns), own) = (a.dim(), 64 / processes);
    let mut y = job.y();
    let y = y.window_mut().expect("operands of the device");
    let (first, stride) = (y.first, y.stride(1) as usize);
    let y = elements_mut::<V>(y.memory);
    for group in 0..columns.div_ceil(65_536 / processes) {
        let mut sums = vec![V::default(); rows];
        let mut lanes = vec![vec![V::Acc::ZERO; rows]; own];
        for s in 0..256 / processes {
            let segment = group * 256 / processes + s;
            let len = columns.saturating_sub(256 * segment).min(256);
            if len == 0 {
                break;
            }
            let a = a.slice(s![.., 256 * segment..256 * segment + len]);
            let x: Vec<V> = (0..len).map(|j| entry(256 * segment * processes + j)).collect();
            let to = ArrayViewMut1::from(&mut sums);
            gemv(V::Acc::ONE, a, conj, (&x[..]).into(), V::Acc::ZERO, to);
            for (lane, sum) in lanes[s % own].iter_mut().zip(&sums) {
                *lane = lane.add(sum.widen());
            }
        }
        let mut h = own / 2;
        while h > 0 {
            let (low, high) = lanes.split_at_mut(h);
            for (low, high) in low.iter_mut().flatten().zip(high.iter().flatten()) {
                *low = low.add(*high);
            }
            h /= 2;
        }
        for (row, lane) in lanes[0].iter().enumerate() {
            y[first + row * stride + group] = V::narrow(*lane);
        }
    }
}

/// Copies of [`Backend::exchange`], which were over when it returned.
struct Copied {
    transfer: Transfer,
}

impl fmt::Debug for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Copied")
    }
}

impl Exchange for Copied {
    fn finish(self: Box<Self>) -> Result<()> {
        (self.transfer)("finish")
    }
}

impl Backend for Host {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn accepts(&self, desc: &Desc) -> Result<()> {
        let (device, dtype) = (self.info.id.clone(), desc.dtype);
        (self.accepts)(desc).map_err(|reason| Error::Unsupported { device, dtype, reason })
    }

    fn candidates(&self, desc: &Desc) -> Vec<Params> {
        (self.candidates)(desc)
    }

    fn fits(&self, desc: &Desc, params: &Params) -> Result<()> {
        (self.fits)(desc, params).map_err(|reason| Error::Params {
            device: self.info.id.clone(),
            desc: *desc,
            params: params.to_string(),
            reason,
        })
    }

    fn tables(&self) -> Vec<BuiltinTable> {
        vec![BuiltinTable { name: "fake", text: self.table }]
    }

    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
        (self.transfer)("upload")?;
        Ok(for_any!(AnySlice, data, data => Box::new(Block(data.to_vec()))))
    }

    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>> {
        use num_complex::Complex;
        (self.transfer)("alloc")?;
        fn zeros<T: Element>(len: usize) -> Result<Box<dyn Memory>> {
            Ok(Box::new(Block(vec![T::default(); len])))
        }
        match dtype {
            Dtype::F32 => zeros::<f32>(len),
            Dtype::F64 => zeros::<f64>(len),
            Dtype::F16 => zeros::<half::f16>(len),
            Dtype::Bf16 => zeros::<half::bf16>(len),
            Dtype::C32 => zeros::<Complex<f32>>(len),
            Dtype::C64 => zeros::<Complex<f64>>(len),
        }
    }

    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
        (self.transfer)("download")?;
        for_any!(AnySliceMut, to, to => to.copy_from_slice(&elements(from)[first..][..to.len()]));
        Ok(())
    }

    fn packed_formats(&self) -> &'static [Format] {
        self.packed_formats
    }

    fn packed_in_place(&self) -> bool {
        true
    }

    fn fill(&self, to: &mut dyn Memory, bytes: usize, source: PieceSource<'_>) -> Result<bool> {
        (self.fill)(to, bytes, source)
    }

    /// Where its devices say that they do so.
    fn exchange(&self, blocks: &mut [Receive<'_>]) -> Result<Box<dyn Exchange>> {
        assert!(self.info.peers, "a copy to {} from another device", self.info.id);
        (self.transfer)("exchange")?;
        for Receive { to, pieces } in blocks {
            for Piece { at, from, range } in pieces {
                let all = bytes(*from);
                let size = all.len() / from.len().max(1);
                write_bytes(&mut **to, *at * size, &all[range.start * size..range.end * size]);
            }
        }
        Ok(Box::new(Copied { transfer: self.transfer.clone() }))
    }

    fn prepare_cyclic(&self, desc: &Desc, processes: usize) -> Result<Option<Prepared>> {
        assert!(desc.n > 0 && processes > 1, "{desc} of {processes} processes");
        Ok(self.cyclic.then(|| Prepared::new(REFERENCE).with_state(Cyclic { processes })))
    }

    fn product(&self, job: &mut Checked<Job<'_>>, prepared: &Prepared) -> Result<()> {
        match prepared.state() {
            Some(Cyclic { processes }) => {
                (self.transfer)("cyclic")?;
                for_types!((job.a.dtype(), job.x.dtype()), T, V => {
                    in_default(|| cyclic_sums::<T, V>(job, *processes));
                });
                Ok(())
            }
            None => (self.compute)(job, prepared),
        }
    }

    fn vector(&self, job: AnyVectorJob<'_>) -> Result<()> {
        (self.compute_step)(job)
    }

    fn record(
        &self,
        _: &[&dyn Backend],
        _: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Box<dyn Record>>> {
        Ok(self.record.map(|record| record()))
    }

    fn is_recording(&self) -> bool {
        (self.is_recording)()
    }

    fn classic(&self, _: &Desc) -> Vec<Params> {
        self.classic.clone()
    }

    fn read_params(&self) -> Vec<Params> {
        self.read.clone()
    }
}

/// A well-mixed 64-bit hash of three integers (splitmix64's finaliser).
///
/// ```
/// assert_ne!(gemv_testkit::hash(1, 2, 3), gemv_testkit::hash(1, 3, 2));
/// ```
pub fn hash(seed: u64, i: u64, j: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(i.wrapping_mul(0xd1b5_4a32_d192_ed03))
        .wrapping_add(j.wrapping_mul(0x8cb9_2ba7_2f3d_8dd7));
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
        z = (z ^ (z >> shift)).wrapping_mul(factor);
    }
    z ^ (z >> 31)
}

/// A number with a full mantissa, of either sign and a magnitude from 2^-`range` to 2^`range`, and
/// now and then a 0, -0, 1 or -1: values for which another order of additions gives other bits. `h` is a [`hash`].
///
/// ```
/// let some = (0..99).map(|i| gemv_testkit::value(gemv_testkit::hash(7, i, 0), 3));
/// assert!(some.into_iter().all(|v| v == 0.0 || (0.125..=8.0).contains(&v.abs())));
/// ```
pub fn value(h: u64, range: u64) -> f64 {
    let sign = if h & 1 == 0 { 1.0 } else { -1.0 };
    match (h >> 1) & 31 {
        0 => sign * 0.0,
        1 => sign,
        _ => {
            let mantissa = f64::from_bits(1023 << 52 | h >> 12);
            // A power of two by its bits: `powi` takes longer than all the rest.
            let power = f64::from_bits((1023 + (h >> 6) % (2 * range) - range) << 52);
            sign * mantissa * power
        }
    }
}

/// A repeatable stream of numbers (Marsaglia's xorshift), of which some are signed zeros, tiny or large.
///
/// ```
/// use gemv_testkit::Numbers;
/// let (mut some, mut same) = (Numbers::new(7), Numbers::new(7));
/// let of = |numbers: &mut Numbers| (0..9).map(|_| numbers.element()).collect::<Vec<f64>>();
/// assert_eq!(of(&mut some), of(&mut same));
/// ```
#[derive(Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 0 to `n` - 1.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 20) as usize % n
    }

    fn number(&mut self) -> f64 {
        let b = self.bits();
        let v = (b >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        match b % 64 {
            0 => -0.0,
            1 => 0.0,
            2 => v * 1e-38,
            3 => v * 1e-22,
            4 => v * 1e4,
            _ => v,
        }
    }

    /// An element; both parts of a complex one are numbers of their own.
    pub fn element<T: Element>(&mut self) -> T {
        T::narrow(T::Acc::from_parts(self.number(), self.number()))
    }

    /// So many elements.
    pub fn elements<T: Element>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| self.element()).collect()
    }
}
