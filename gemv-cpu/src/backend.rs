//! The device: its description, its memory, and the way from a job to a product.

use std::sync::Arc;

use gemv_core::float_mode::in_default;
use gemv_core::ndarray::{ArrayView1, ArrayView2, ArrayViewMut1, Axis};
use gemv_core::{
    Accumulator, AnySlice, AnySliceMut, AnySmall, AnyVectorJob, BACKENDS, Backend, BackendEntry,
    BuiltinTable, Checked, Desc, DeviceInfo, Dtype, Element, Error, HostGemm, Job, KernelInfo,
    Memory, Params, Prepared, Result, Rival, Small, VectorJob, for_any, for_types, host_is_full,
};
#[cfg(feature = "packed")]
use gemv_core::{Format, PackedMatrix};

use crate::kernels::{self, COL_FEW_ROWS, GRAIN, PACKED};
#[cfg(feature = "packed")]
use crate::packed;
use crate::read::{self, READ};
use crate::run;
use crate::simd::{
    Allocation, CpuElement, CpuTimes, ISA_ENV, Isa, PanelArgs, Product, Tiles, VectorArgs,
    elements, elements_mut,
};
use crate::vector::{self, AnyHostStep, HostStep, HostSteps};

/// This backend, for static libraries: see [`gemv_core::Engine::link`].
pub const ENTRY: BackendEntry = BackendEntry { name: "cpu", rank: 0, discover, open: open_ordinal };

#[linkme::distributed_slice(BACKENDS)]
static LINKED: BackendEntry = ENTRY;

fn from_env() -> Result<Isa> {
    let name = std::env::var_os(ISA_ENV).map(|a| a.to_string_lossy().into_owned());
    detect(name.as_deref())
}

/// Not `DriverMissing`, after which the next backend would answer: a named instruction set is used or refused.
fn detect(isa: Option<&str>) -> Result<Isa> {
    Isa::detect(isa).map_err(|found| Error::NoDevice {
        asked: format!("cpu with {ISA_ENV}={}", isa.unwrap_or_default().trim()),
        found,
    })
}

fn discover() -> Result<Vec<DeviceInfo>> {
    Ok(vec![describe(from_env()?)])
}

fn open_ordinal(_: usize) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Cpu::new(from_env()?)))
}

/// The instruction sets that this processor has, best first: `avx512`, `avx2`, `plain`.
///
/// ```
/// let isas = gemv::cpu::isas();
/// assert_eq!(isas.last(), Some(&"plain")); // always there
/// ```
pub fn isas() -> Vec<&'static str> {
    Isa::all().into_iter().map(Isa::name).collect()
}

/// The device with this instruction set, or with the best for `None`. The environment is not read.
///
/// ```
/// use gemv::{Device, ndarray::array};
///
/// for isa in gemv::cpu::isas() {
///     let device = Device::new(gemv::cpu::open(Some(isa))?);
///     assert_eq!(device.try_gpu_dot(&array![[1.0, 2.0]], &array![3.0, 4.0])?, array![11.0]);
/// }
/// # Ok::<(), gemv::Error>(())
/// ```
///
/// # Errors
/// [`Error::NoDevice`] if the processor does not have it, with those that it has.
pub fn open(isa: Option<&str>) -> Result<Arc<dyn Backend>> {
    let isa = detect(isa)?;
    Ok(Arc::new(Cpu::new(isa)))
}

/// As gemv-core's `for_any`, for the element types that have kernels in this program. The last expression is for the
/// others: `accepts` refuses them, so it is not reached by products.
macro_rules! for_compiled {
    ($any:ident, $value:expr, $typed:pat => $body:expr, else $other:pat => $refused:expr) => {
        match $value {
            $any::F32($typed) => $body,
            $any::F64($typed) => $body,
            #[cfg(feature = "half")]
            $any::F16($typed) => $body,
            #[cfg(feature = "half")]
            $any::Bf16($typed) => $body,
            #[cfg(feature = "complex")]
            $any::C32($typed) => $body,
            #[cfg(feature = "complex")]
            $any::C64($typed) => $body,
            #[cfg(not(all(feature = "half", feature = "complex")))]
            $other => $refused,
        }
    };
}

/// As gemv-core's `for_types`, likewise.
macro_rules! for_compiled_types {
    (
        $types:expr, $t:ident => $body:expr,
        mixed $m:ident, $v:ident => $mixed:expr, else => $refused:expr
    ) => {
        match $types {
            (Dtype::F32, Dtype::F32) => {
                type $t = f32;
                $body
            }
            (Dtype::F64, Dtype::F64) => {
                type $t = f64;
                $body
            }
            #[cfg(feature = "half")]
            (Dtype::F16, Dtype::F16) => {
                type $t = gemv_core::half::f16;
                $body
            }
            #[cfg(feature = "half")]
            (Dtype::Bf16, Dtype::Bf16) => {
                type $t = gemv_core::half::bf16;
                $body
            }
            #[cfg(feature = "complex")]
            (Dtype::C32, Dtype::C32) => {
                type $t = gemv_core::num_complex::Complex<f32>;
                $body
            }
            #[cfg(feature = "complex")]
            (Dtype::C64, Dtype::C64) => {
                type $t = gemv_core::num_complex::Complex<f64>;
                $body
            }
            (Dtype::F32, Dtype::F64) => {
                type $m = f32;
                type $v = f64;
                $mixed
            }
            #[cfg(feature = "half")]
            (Dtype::F16, Dtype::F32) => {
                type $m = gemv_core::half::f16;
                type $v = f32;
                $mixed
            }
            #[cfg(feature = "half")]
            (Dtype::Bf16, Dtype::F32) => {
                type $m = gemv_core::half::bf16;
                type $v = f32;
                $mixed
            }
            _ => $refused,
        }
    };
}

fn describe(isa: Isa) -> DeviceInfo {
    let mut info = DeviceInfo::new("cpu");
    info.name = processor().unwrap_or_else(|| std::env::consts::ARCH.into());
    info.arch = isa.name().into();
    info.vendor = "cpu".into();
    let without = match (cfg!(feature = "half"), cfg!(feature = "complex")) {
        (true, true) => "",
        (false, true) => " without feature half",
        (true, false) => " without feature complex",
        (false, false) => " without features half and complex",
    };
    info.driver = concat!("gemv-cpu ", env!("CARGO_PKG_VERSION")).to_owned() + without;
    info.units = std::thread::available_parallelism().map_or(1, usize::from);
    info.host = true;
    info.rayon = true;
    info
}

/// The processor's name, if the system tells.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The CPU as a device.
///
/// [`open`] makes one with a given instruction set.
///
/// ```
/// use gemv::{Dtype, unstable::Desc};
///
/// let cpu = gemv::cpu::open(Some("plain"))?;
/// assert_eq!((&*cpu.device().id, &*cpu.device().arch), ("cpu", "plain"));
/// let desc = Desc::new(Dtype::F32, 1000, 1000, (1000, 1), 0);
/// assert!(!cpu.candidates(&desc).is_empty());
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug)]
pub struct Cpu {
    info: DeviceInfo,
    isa: Isa,
}

impl Cpu {
    fn new(isa: Isa) -> Cpu {
        Cpu { info: describe(isa), isa }
    }

    /// The device as an engine opens it, for calls that a [`Backend`] does not have: with the best instruction set, or with
    /// the one that `GEMV_CPU_ISA` names.
    ///
    /// # Errors
    /// As [`open`].
    pub fn from_env() -> Result<Cpu> {
        from_env().map(Cpu::new)
    }

    /// Computes one step of vectors that lie in the host's memory, where they lie: rule 10 of the
    /// [order](gemv_core::order).
    ///
    /// ```
    /// use gemv::{ndarray::array, unstable::Step};
    /// use gemv::cpu::{Cpu, HostStep};
    ///
    /// let (cpu, x, mut y) = (Cpu::from_env()?, array![1.0, 2.0], array![10.0, 20.0]);
    /// let (step, x) = (Step::Axpy, Some(x.view()));
    /// cpu.step(HostStep { step, alpha: 2.0, x, z: None, y: y.view_mut() })?;
    /// assert_eq!(y, array![12.0, 24.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Operand`] if an operand is missing or has another length than y, [`Error::Unsupported`] if the type's
    /// feature is absent. y is then as it was.
    pub fn step<T: Element>(&self, step: HostStep<'_, T>) -> Result<()> {
        if let Some((operand, reason)) = step.wrong() {
            return Err(Error::Operand { operand, reason });
        }
        let run = |step| {
            for_compiled!(
                AnyHostStep, step,
                step => vector::run_on_host(self.isa, step),
                else step => return self.accepts(&Desc::new(step.dtype(), 1, 1, (1, 1), 0))
            );
            Ok(())
        };
        let step = T::any::<HostSteps>(step);
        if self.isa.in_default_mode() { run(step) } else { in_default(|| run(step)) }
    }

    fn refuse(&self, desc: &Desc, params: &Params, reason: String) -> Error {
        Error::Params {
            device: self.info.id.clone(),
            desc: *desc,
            params: params.to_string(),
            reason,
        }
    }

    /// The kernel for small products with these parameters, if the problem has one. For a matrix that may need another thread
    /// it has not. Outside of the pool one thread computes up to four times as much, by the general path.
    fn small(&self, desc: &Desc, params: &Params) -> Option<AnySmall> {
        let bytes = desc.m.checked_mul(desc.n)?.checked_mul(desc.dtype.bytes())?;
        if !kernels::is_small(params.kernel())
            || desc.is_mixed()
            || desc.rhs * desc.batch != 1
            || bytes >= (2 * GRAIN as usize) << 10
        {
            return None;
        }
        for_compiled_types!(
            (desc.dtype, desc.vectors),
            T => self.isa.small_product::<T>().map(T::any::<Small>),
            mixed _T, _V => None,
            else => None
        )
    }

    /// One vector by a kernel for one.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a product has them")]
    fn one<T: CpuElement>(
        &self,
        choice: &Choice,
        alpha: T::Acc,
        a: ArrayView2<'_, T>,
        conj: bool,
        x: ArrayView1<'_, T>,
        beta: T::Acc,
        mut y: ArrayViewMut1<'_, T>,
    ) {
        // As the function that `small` gives.
        let small = choice.small
            && a.len() * size_of::<T>() < (2 * GRAIN as usize) << 10
            && alpha == T::Acc::ONE
            && beta == T::Acc::ZERO;
        if small
            && let (Some(x), Some(y)) = (x.as_slice(), y.as_slice_mut())
            && let Some(product) = self.isa.small_product::<T>()
            && product(&a, conj, x, y)
        {
            return;
        }
        if alpha == T::Acc::ZERO || a.ncols() == 0 {
            return run::without_a(alpha, beta, y);
        }
        run::vector(
            &Product::new(self.isa, choice.one, alpha, a, conj, x, beta, y),
            choice.grain(),
        );
    }

    /// A product of one element type: by a kernel for one vector, or for many.
    fn compute<T: CpuTimes<T>>(&self, job: &mut Checked<Job<'_>>, choice: &Choice) {
        if choice.is_gemm {
            return self.blocks::<T, T>(job, choice);
        }
        let (alpha, beta, conj) = (job.alpha.get(), job.beta.get(), job.conj);
        if job.a.dim()[0] == 1 && job.x.dim()[2] == 1 {
            let (a, x) = (job.a.matrix_with::<T>(elements), job.x.vector_with::<T>(elements));
            let mut place = job.y();
            let y = place.vector_mut_with::<T>(elements_mut);
            return self.one(choice, alpha, a, conj, x, beta, y);
        }
        // One after the other: what this thread does while it waits in one leaves no mode for the next.
        let (a, x) = (job.a.view_with::<T>(elements), job.x.view_with::<T>(elements));
        let mut place = job.y();
        let mut y = place.view_mut_with::<T>(elements_mut);
        in_default(|| {
            for ((a, x), mut y) in a.outer_iter().zip(x.outer_iter()).zip(y.outer_iter_mut()) {
                for (x, y) in x.axis_iter(Axis(1)).zip(y.axis_iter_mut(Axis(1))) {
                    self.one(choice, alpha, a, conj, x, beta, y);
                }
            }
        });
    }

    /// Several columns, or a batch, or a vector of a wider type, by a kernel for many.
    fn blocks<T: CpuTimes<V>, V: CpuElement>(&self, job: &mut Checked<Job<'_>>, choice: &Choice) {
        let (alpha, beta, conj) = (job.alpha.get(), job.beta.get(), job.conj);
        let (a, x) = (job.a.view_with::<T>(elements), job.x.view_with::<V>(elements));
        let mut place = job.y();
        let y = place.view_mut_with::<V>(elements_mut);
        run::panels(self.isa, choice.many, alpha, a, conj, x, beta, y, choice.grain());
    }
}

/// Parameters, parsed.
struct Choice {
    /// Of a kernel for one vector.
    one: VectorArgs,
    /// Of a kernel for many, or for vectors of a wider type.
    many: PanelArgs,
    is_gemm: bool,
    /// Whether the kernel takes small products without a plan.
    small: bool,
    read: bool,
    rival: Option<&'static Rival>,
    /// KiB of the matrix that are worth a thread of their own: of the pool, and of others, which have to wake one of it.
    grain: usize,
    cold: usize,
}

impl Choice {
    fn new(params: &Params) -> Choice {
        let few_rows = params.kernel() == COL_FEW_ROWS;
        let get = |key, default| params.get_or(key, default) as usize;
        let grain = params.get_or("grain_kib", GRAIN) as usize;
        Choice {
            one: VectorArgs {
                rows: get("rows", 16),
                streams: get("streams", 1),
                tiles: match get("tile_m", 0) {
                    0 if few_rows => Tiles::FewRows(128),
                    rows if few_rows => Tiles::FewRows(rows),
                    0 => Tiles::Registers,
                    rows => Tiles::Memory(rows),
                },
                prefetch: get("prefetch", 0),
                prefetch_next: get("prefetch_next", 0) > 0,
            },
            many: kernels::panel_args(params),
            is_gemm: kernels::is_gemm(params.kernel()),
            small: kernels::is_small(params.kernel()),
            read: params.kernel() == READ.kernel(),
            rival: Rival::named(params.kernel()),
            grain,
            cold: params.get("grain_cold").map_or(grain.saturating_mul(4), |kib| kib as usize),
        }
    }

    #[inline]
    fn grain(&self) -> usize {
        if rayon::current_thread_index().is_some() { self.grain } else { self.cold }
    }
}

impl Backend for Cpu {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn accepts(&self, desc: &Desc) -> Result<()> {
        if desc.packing.is_some() {
            return match cfg!(feature = "packed") {
                true => Ok(()),
                false => Err(self.without("packed", desc.dtype)),
            };
        }
        let (feature, compiled) = match desc.dtype {
            Dtype::F32 | Dtype::F64 => return Ok(()),
            Dtype::F16 | Dtype::Bf16 => ("half", cfg!(feature = "half")),
            Dtype::C32 | Dtype::C64 => ("complex", cfg!(feature = "complex")),
        };
        if compiled {
            return Ok(());
        }
        Err(self.without(feature, desc.dtype))
    }

    fn kernels(&self) -> Vec<KernelInfo> {
        kernels::infos()
    }

    fn candidates(&self, desc: &Desc) -> Vec<Params> {
        if desc.packing.is_some() {
            return vec![Params::new(PACKED).with("grain_kib", GRAIN)];
        }
        kernels::candidates(desc)
    }

    fn fits(&self, desc: &Desc, params: &Params) -> Result<()> {
        kernels::fits(desc, params).map_err(|reason| self.refuse(desc, params, reason))
    }

    fn tables(&self) -> Vec<BuiltinTable> {
        macro_rules! table {
            ($name:literal) => {
                BuiltinTable {
                    name: $name,
                    text: include_str!(concat!("../tables/", $name, ".txt")),
                }
            };
        }
        // Rows for elements whose kernels are not compiled would only make programs larger.
        let own: &[BuiltinTable] = match self.isa.name() {
            "avx512" => &[
                table!("cpu-avx512"),
                #[cfg(feature = "half")]
                table!("cpu-avx512-half"),
                #[cfg(feature = "complex")]
                table!("cpu-avx512-complex"),
            ],
            "avx2" => &[table!("cpu-avx2")],
            _ => &[],
        };
        own.iter().copied().chain([table!("cpu")]).collect()
    }

    #[cfg(feature = "packed")]
    fn packed_formats(&self) -> &'static [Format] {
        Format::ALL
    }

    fn packed_in_place(&self) -> bool {
        true
    }

    #[cfg(feature = "packed")]
    fn upload_packed(&self, matrix: PackedMatrix<'_>) -> Result<Box<dyn Memory>> {
        packed::upload(matrix).map_err(|asked| self.full(asked))
    }

    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
        fn copy<T: Element>(data: &[T]) -> Result<Box<dyn Memory>, u64> {
            Ok(Box::new(Allocation::copy_of(data)?))
        }
        for_any!(AnySlice, data, data => copy(data)).map_err(|asked| self.full(asked))
    }

    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>> {
        fn zeros<T: Element>(len: usize) -> Result<Box<dyn Memory>, u64> {
            Ok(Box::new(Allocation::<T>::zeros(len)?))
        }
        for_types!((dtype, dtype), T, _V => zeros::<T>(len)).map_err(|asked| self.full(asked))
    }

    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
        for_any!(AnySliceMut, to, to => to.copy_from_slice(&elements(from)[first..][..to.len()]));
        Ok(())
    }

    fn read_params(&self) -> Vec<Params> {
        read::passes()
    }

    fn vendor(&self, desc: &Desc) -> Option<Params> {
        Rival::of(desc).map(|rival| Params::new(rival.name().as_str()))
    }

    fn prepare(&self, desc: &Desc, params: &Params) -> Result<Prepared> {
        self.accepts(desc)?;
        self.fits(desc, params)?;
        let prepared = Prepared::new(*params).with_parsed(Choice::new(params));
        Ok(match self.small(desc, params) {
            Some(small) => prepared.with_small(small),
            None => prepared,
        })
    }

    fn product(&self, job: &mut Checked<Job<'_>>, prepared: &Prepared) -> Result<()> {
        if !self.isa.in_default_mode() {
            return in_default(|| self.product(job, prepared));
        }
        let own;
        let choice = match prepared.state::<Choice>() {
            Some(choice) => choice,
            None => {
                own = Choice::new(prepared.params());
                &own
            }
        };
        if choice.read {
            return self.read(job, prepared.params());
        }
        if job.y.is_empty() {
            return Ok(());
        }
        #[cfg(feature = "packed")]
        if let Some(matrix) = job.a.packed_matrix() {
            let (isa, grain) = (self.isa, choice.grain());
            return match job.x.dtype() {
                Dtype::F32 => packed::product::<f32>(isa, matrix, job, grain),
                Dtype::F16 => packed::product::<gemv_core::half::f16>(isa, matrix, job, grain),
                _ => packed::product::<gemv_core::half::bf16>(isa, matrix, job, grain),
            };
        }
        let types = (job.a.dtype(), job.x.dtype());
        if let Some(theirs) = choice.rival {
            match types {
                (Dtype::F32, Dtype::F32) => rival(theirs.f32, job),
                (Dtype::F64, Dtype::F64) => rival(theirs.f64, job),
                _ => unreachable!("it fits f32 and f64 alone"),
            }
            return Ok(());
        }
        for_compiled_types!(
            types,
            T => self.compute::<T>(job, choice),
            mixed T, V => self.blocks::<T, V>(job, choice),
            else => return self.accepts(&job.desc())
        );
        Ok(())
    }

    fn vector(&self, job: AnyVectorJob<'_>) -> Result<()> {
        if !self.isa.in_default_mode() {
            return in_default(|| self.vector(job));
        }
        for_compiled!(
            AnyVectorJob, job,
            job => self.resident_step(job),
            else job => return self.accepts(&Desc::new(job.dtype(), 1, 1, (1, 1), 0))
        );
        Ok(())
    }
}

/// Products by another library.
#[cold]
fn rival<T: CpuElement<Acc = T> + Accumulator>(gemm: HostGemm<T>, job: &mut Checked<Job<'_>>) {
    let (alpha, beta): (T, T) = (job.alpha.get(), job.beta.get());
    let (a, x) = (job.a.view_with::<T>(elements), job.x.view_with::<T>(elements));
    let mut place = job.y();
    let mut y = place.view_mut_with::<T>(elements_mut);
    if y.is_empty() {
        return;
    }
    if alpha == <T as Accumulator>::ZERO || a.dim().2 == 0 {
        return y.lanes_mut(Axis(1)).into_iter().for_each(|y| run::without_a(alpha, beta, y));
    }
    gemm(alpha, a, x, beta, y);
}

impl Cpu {
    fn resident_step<T: CpuElement>(&self, job: Checked<VectorJob<'_, T>>) {
        let (job, memory) = job.into_inner().split();
        vector::run(self.isa, &job, elements, elements_mut(memory));
    }

    #[cold]
    fn read(&self, job: &Job<'_>, params: &Params) -> Result<()> {
        self.fits(&job.desc(), params)?;
        let a = job.a.view_with::<f32>(elements);
        let grain = params.get_or("grain_kib", GRAIN) as usize;
        // Row by row if there are gaps between the rows.
        match a.to_slice() {
            Some(all) => read::read(all, grain),
            None => a.rows().into_iter().for_each(|r| {
                r.to_slice().into_iter().for_each(|row| read::read(row, grain));
            }),
        }
        Ok(())
    }

    /// The refusal of what this program was built without.
    fn without(&self, feature: &str, dtype: Dtype) -> Error {
        let reason = format!("this program was built without the feature {feature:?} of gemv");
        Error::Unsupported { device: self.info.id.clone(), dtype, reason }
    }

    fn full(&self, asked: u64) -> Error {
        host_is_full(&self.info.id, asked)
    }
}
