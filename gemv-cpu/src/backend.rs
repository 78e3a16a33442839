//! The device: its description, its memory, and the way from a job to a product.

use std::any::Any;
use std::sync::Arc;

use gemv_core::float_mode::in_default;
use gemv_core::ndarray::{
    ArrayView, ArrayView1, ArrayView2, ArrayView3, ArrayViewMut, ArrayViewMut1, ArrayViewMut3,
    Axis, Dimension,
};
use gemv_core::{
    Accumulator, AnyGemmJob, AnyJob, AnySlice, AnySliceMut, AnyVectorJob, BACKENDS, Backend,
    BackendEntry, BuiltinTable, Checked, Desc, DeviceInfo, Dtype, Element, Error, GemmJob,
    HostGemm, Input, Job, KernelInfo, Memory, Output, Params, Prepared, Result, Rival, VectorJob,
    Window, for_any,
};

use crate::gemm::gemm;
use crate::kernels::{self, COL_FEW_ROWS, GRAIN};
use crate::read::{self, READ};
use crate::run;
use crate::simd::{Allocation, CpuElement, CpuTimes, ISA_ENV, Isa, Plan, Product};
use crate::vector;

#[linkme::distributed_slice(BACKENDS)]
static CPU: BackendEntry = BackendEntry { name: "cpu", rank: 0, discover, open: open_ordinal };

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
/// let isas = gemv_cpu::isas();
/// assert_eq!(isas.last(), Some(&"plain")); // always there
/// ```
pub fn isas() -> Vec<&'static str> {
    Isa::all().into_iter().map(Isa::name).collect()
}

/// The device with this instruction set, or with the best for `None`. The environment is not read.
///
/// ```
/// use gemv_core::{Device, ndarray::array};
///
/// for isa in gemv_cpu::isas() {
///     let device = Device::new(gemv_cpu::open(Some(isa))?);
///     assert_eq!(device.try_gpu_dot(&array![[1.0, 2.0]], &array![3.0, 4.0])?, array![11.0]);
/// }
/// # Ok::<(), gemv_core::Error>(())
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
    (
        $any:ident, $value:expr, $typed:pat => $body:expr,
        $(mixed $mixed:pat => $two:expr,)? else $other:pat => $refused:expr
    ) => {
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
            $(
                $any::F32F64($mixed) => $two,
                #[cfg(feature = "half")]
                $any::F16F32($mixed) => $two,
                #[cfg(feature = "half")]
                $any::Bf16F32($mixed) => $two,
            )?
            #[cfg(not(all(feature = "half", feature = "complex")))]
            $other => $refused,
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
/// use gemv_core::{Desc, Dtype};
///
/// let cpu = gemv_cpu::open(Some("plain"))?;
/// assert_eq!((&*cpu.device().id, &*cpu.device().arch), ("cpu", "plain"));
/// let desc = Desc::new(Dtype::F32, 1000, 1000, (1000, 1), 0);
/// assert!(!cpu.candidates(&desc).is_empty());
/// # Ok::<(), gemv_core::Error>(())
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

    fn refuse(&self, desc: &Desc, params: &Params, reason: String) -> Error {
        Error::Params {
            device: self.info.id.clone(),
            desc: *desc,
            params: params.to_string(),
            reason,
        }
    }

    /// Computes a product that needs nothing but a kernel. Returns false for all others, and y is untouched. By
    /// reference: a copy of the job, or of the views in it, takes longer than a small product.
    #[inline(always)]
    fn small<T: CpuElement>(&self, job: &mut Checked<Job<'_, T>>, params: &Params) -> bool {
        if !kernels::is_small(params.kernel()) {
            return false;
        }
        let Job { alpha, conj, beta, .. } = **job;
        let (Input::Host(a), Input::Host(x), Output::Host(mut y)) = job.operands() else {
            return false;
        };
        self.small_host(alpha, a, conj, x, beta, &mut y)
    }

    /// As [`small`](Self::small), for operands in the host's memory.
    #[inline(always)]
    fn small_host<T: CpuElement>(
        &self,
        alpha: T::Acc,
        a: &ArrayView2<'_, T>,
        conj: bool,
        x: &ArrayView1<'_, T>,
        beta: T::Acc,
        y: &mut ArrayViewMut1<'_, T>,
    ) -> bool {
        // A matrix that may need another thread. Outside of the pool one thread computes up to four times as
        // much, by the general path.
        if a.len() * size_of::<T>() >= (2 * GRAIN as usize) << 10 {
            return false;
        }
        if alpha != T::Acc::ONE || beta != T::Acc::ZERO {
            return false;
        }
        let (Some(x), Some(y)) = (x.as_slice(), y.as_slice_mut()) else { return false };
        let (Some(x), Some(y)) = (T::as_acc(x), T::as_acc_mut(y)) else { return false };
        self.isa.small(a, conj, x, y)
    }

    #[inline(never)]
    fn run<T: CpuElement>(&self, job: &mut Checked<Job<'_, T>>, params: &Params) {
        let Job { alpha, conj, beta, .. } = **job;
        let (a, x, mut y) = job.operands();
        let (a, x, mut y) = (view(a), view(x), view_mut(&mut y));
        // Resident operands, too: the tuner compares them with host arrays.
        let small = kernels::is_small(params.kernel());
        if small && self.small_host(alpha, &a, conj, &x, beta, &mut y) {
            return;
        }
        if alpha == T::Acc::ZERO || a.ncols() == 0 {
            return run::without_a(alpha, beta, y);
        }
        let few_rows = params.kernel() == COL_FEW_ROWS;
        let get = |key, default| params.get_or(key, default) as usize;
        let plan = Plan {
            rows: get("rows", 16),
            streams: get("streams", 1),
            tile_m: get("tile_m", if few_rows { 128 } else { 0 }),
            few_rows,
            prefetch: get("prefetch", 0),
            prefetch_next: get("prefetch_next", 0) > 0,
        };
        run::run(Product::new(self.isa, plan, alpha, a, conj, x, beta, y), grain(params));
    }
}

/// KiB of the matrix that are worth a thread of their own.
#[inline]
fn grain(params: &Params) -> usize {
    let grain = params.get_or("grain_kib", GRAIN) as usize;
    match rayon::current_thread_index() {
        Some(_) => grain,
        // A thread outside of the pool has to wake one of the pool.
        None => params.get("grain_cold").map_or(4 * grain, |kib| kib as usize),
    }
}

/// An operand in the host's memory, where this backend keeps all of them.
#[inline]
fn view<'a, T: CpuElement, D: Dimension + Copy>(input: &'a Input<'_, T, D>) -> ArrayView<'a, T, D> {
    match input {
        Input::Host(view) => view.view(),
        Input::Device(window) => window.view(elements(window.memory)),
    }
}

/// The place of a result.
///
/// # Panics
/// If it is in another backend's memory, or of another type.
#[inline]
fn view_mut<'a, T: CpuElement, D: Dimension + Copy>(
    output: &'a mut Output<'_, T, D>,
) -> ArrayViewMut<'a, T, D> {
    match output {
        Output::Host(view) => view.view_mut(),
        Output::Device(Window { memory, first, dim, strides }) => {
            Window { memory: (), first: *first, dim: *dim, strides: *strides }
                .view_mut(elements_mut(&mut **memory))
        }
    }
}

/// The elements of an allocation of this backend, to write to.
///
/// # Panics
/// As [`elements`].
fn elements_mut<T: CpuElement>(memory: &mut dyn Memory) -> &mut [T] {
    let memory: &mut dyn Any = memory;
    memory.downcast_mut::<Allocation<T>>().expect("memory of this backend")
}

/// The elements of an allocation of this backend.
///
/// # Panics
/// If it is another's, or of another type.
fn elements<T: Element>(memory: &dyn Memory) -> &[T] {
    let memory: &dyn Any = memory;
    memory.downcast_ref::<Allocation<T>>().expect("memory of this backend")
}

impl Backend for Cpu {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn accepts(&self, desc: &Desc) -> Result<()> {
        let (feature, compiled) = match desc.dtype {
            Dtype::F32 | Dtype::F64 => return Ok(()),
            Dtype::F16 | Dtype::Bf16 => ("half", cfg!(feature = "half")),
            Dtype::C32 | Dtype::C64 => ("complex", cfg!(feature = "complex")),
        };
        if compiled {
            return Ok(());
        }
        Err(Error::Unsupported {
            device: self.info.id.clone(),
            dtype: desc.dtype,
            reason: format!("this program was built without the feature {feature:?} of gemv"),
        })
    }

    fn kernels(&self) -> Vec<KernelInfo> {
        kernels::infos()
    }

    fn candidates(&self, desc: &Desc) -> Vec<Params> {
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
        use gemv_core::half::{bf16, f16};
        use gemv_core::num_complex::Complex;
        match dtype {
            Dtype::F32 => zeros::<f32>(len),
            Dtype::F64 => zeros::<f64>(len),
            Dtype::F16 => zeros::<f16>(len),
            Dtype::Bf16 => zeros::<bf16>(len),
            Dtype::C32 => zeros::<Complex<f32>>(len),
            Dtype::C64 => zeros::<Complex<f64>>(len),
        }
        .map_err(|asked| self.full(asked))
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

    fn gemv(&self, mut job: AnyJob<'_>, prepared: &Prepared) -> Result<()> {
        if !self.isa.in_default_mode() {
            return in_default(|| self.gemv(job, prepared));
        }
        let params = prepared.params();
        if params.kernel() == READ.kernel() {
            return self.read(job, params);
        }
        if let Some(theirs) = Rival::named(params.kernel()) {
            match job {
                AnyJob::F32(job) => rival_of_one(theirs.f32, job),
                AnyJob::F64(job) => rival_of_one(theirs.f64, job),
                _ => unreachable!("it fits f32 and f64 alone"),
            }
            return Ok(());
        }
        for_compiled!(
            AnyJob, &mut job,
            job => if !self.small(job, params) { self.run(job, params) },
            mixed job => self.mixed(job, params),
            else job => return self.accepts(&for_any!(AnyJob, job, job => job.desc()))
        );
        Ok(())
    }

    fn gemm(&self, job: AnyGemmJob<'_>, prepared: &Prepared) -> Result<()> {
        if !self.isa.in_default_mode() {
            return in_default(|| self.gemm(job, prepared));
        }
        let params = prepared.params();
        if let Some(theirs) = Rival::named(params.kernel()) {
            match job {
                AnyGemmJob::F32(job) => rival(theirs.f32, job),
                AnyGemmJob::F64(job) => rival(theirs.f64, job),
                _ => unreachable!("it fits f32 and f64 alone"),
            }
            return Ok(());
        }
        if kernels::is_gemm(params.kernel()) {
            return self.any_many(job, params);
        }
        // One product after the other: what this thread does while it waits in one leaves no mode for the next.
        in_default(|| self.any_many(job, params))
    }

    fn vector(&self, job: AnyVectorJob<'_>) -> Result<()> {
        if !self.isa.in_default_mode() {
            return in_default(|| self.vector(job));
        }
        for_compiled!(
            AnyVectorJob, job,
            job => self.step(job),
            else job => return self.accepts(&Desc::new(job.dtype(), 1, 1, (1, 1), 0))
        );
        Ok(())
    }
}

/// Products by another library.
#[cold]
fn rival<T: CpuElement<Acc = T> + Accumulator>(gemm: HostGemm<T>, job: Checked<GemmJob<'_, T>>) {
    let GemmJob { alpha, a, x, beta, mut y, .. } = job.into_inner();
    rival_of_views(gemm, (alpha, beta), view(&a), view(&x), view_mut(&mut y));
}

/// The same with one right-hand side.
#[cold]
fn rival_of_one<T: CpuElement<Acc = T> + Accumulator>(gemm: HostGemm<T>, job: Checked<Job<'_, T>>) {
    let Job { alpha, a, x, beta, mut y, .. } = job.into_inner();
    let a = view(&a).insert_axis(Axis(0));
    let x = view(&x).insert_axis(Axis(0)).insert_axis(Axis(2));
    let y = view_mut(&mut y).insert_axis(Axis(0)).insert_axis(Axis(2));
    rival_of_views(gemm, (alpha, beta), a, x, y);
}

fn rival_of_views<T: CpuElement<Acc = T> + Accumulator>(
    gemm: HostGemm<T>,
    (alpha, beta): (T, T),
    a: ArrayView3<'_, T>,
    x: ArrayView3<'_, T>,
    mut y: ArrayViewMut3<'_, T>,
) {
    if y.is_empty() {
        return;
    }
    if alpha == <T as Accumulator>::ZERO || a.dim().2 == 0 {
        return y.lanes_mut(Axis(1)).into_iter().for_each(|y| run::without_a(alpha, beta, y));
    }
    gemm(alpha, a, x, beta, y);
}

impl Cpu {
    fn any_many(&self, job: AnyGemmJob<'_>, params: &Params) -> Result<()> {
        for_compiled!(
            AnyGemmJob, job,
            job => self.many(job, params),
            mixed job => self.blocks(job, params),
            else job => return self.accepts(&for_any!(AnyGemmJob, job, job => job.desc()))
        );
        Ok(())
    }

    #[inline(never)]
    fn many<T: CpuTimes<T>>(&self, mut job: Checked<GemmJob<'_, T>>, params: &Params) {
        if !kernels::is_gemm(params.kernel()) {
            // A kernel for one vector: one product after the other.
            let Desc { batch, rhs, .. } = job.desc();
            for (entry, column) in (0..batch).flat_map(|b| (0..rhs).map(move |c| (b, c))) {
                self.run(&mut job.column(entry, column), params);
            }
            return;
        }
        self.blocks(job, params);
    }

    /// Several columns, or a batch, by a kernel for them.
    fn blocks<T: CpuTimes<V>, V: CpuElement>(
        &self,
        job: Checked<GemmJob<'_, T, V>>,
        params: &Params,
    ) {
        let GemmJob { alpha, a, conj, x, beta, mut y } = job.into_inner();
        let plan = kernels::gemm_plan(params);
        let grain = grain(params);
        gemm(self.isa, plan, alpha, view(&a), conj, view(&x), beta, view_mut(&mut y), grain);
    }

    fn step<T: CpuElement>(&self, job: Checked<VectorJob<'_, T>>) {
        let (job, memory) = job.into_inner().split();
        vector::run(self.isa, &job, elements, elements_mut(memory));
    }

    /// One vector of a wider type, as the one column of X.
    #[inline(never)]
    fn mixed<T: CpuTimes<V>, V: CpuElement>(
        &self,
        job: &mut Checked<Job<'_, T, V>>,
        params: &Params,
    ) {
        let Job { alpha, conj, beta, .. } = **job;
        let (a, x, mut y) = job.operands();
        let (a, x, y) = (view(a), view(x), view_mut(&mut y));
        let (a, x, y) = (a.insert_axis(Axis(0)), x.insert_axis(Axis(1)), y.insert_axis(Axis(1)));
        let (x, y) = (x.insert_axis(Axis(0)), y.insert_axis(Axis(0)));
        let plan = kernels::gemm_plan(params);
        gemm(self.isa, plan, alpha, a, conj, x, beta, y, grain(params));
    }

    #[cold]
    fn read(&self, job: AnyJob<'_>, params: &Params) -> Result<()> {
        self.fits(&for_any!(AnyJob, &job, job => job.desc()), params)?;
        let AnyJob::F32(job) = job else { unreachable!("it fits f32 alone") };
        let a = view(&job.a);
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

    fn full(&self, asked: u64) -> Error {
        Error::OutOfMemory { device: self.info.id.clone(), asked, free: None }
    }
}
