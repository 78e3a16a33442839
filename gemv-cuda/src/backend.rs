//! The seam: discovery, opening, and what `gemv_core::Backend` asks of a device.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use gemv_core::float_mode::{in_default, is_default};
use gemv_core::{
    AnySlice, AnySliceMut, AnyVectorJob, Backend, BuiltinTable, Checked, CompiledKernel, Desc,
    DeviceInfo, Dtype, Epilogue, Error, Exchange, Function, Interop, Job, KernelInfo, KernelLaunch,
    Layout, Memory, Owner, Params, PieceSource, Prepared, Receive, Record, Result, fingerprint,
    for_any,
};
#[cfg(feature = "packed")]
use gemv_core::{Format, PackedMatrix};
use gemv_gpu::{Caps, Kernel, Language};

use crate::candidates::candidates;
use crate::driver::{self, AtPlaces, Cublas, Found, Gpu, Report, Staging, drop_retired};
use crate::kernel_source::{self, Sources};
use crate::kernels::{kernel, kernels, row_block_cyclic, uses_tensor_cores};
use crate::lock::lock;
use crate::options::OPTIONS;
use crate::programs::Programs;
use crate::resident::{self, Resident, resident};
use crate::run::{Behind, Choice, Launches, Scratch, reserve, run};
use crate::selftest;
use crate::tables;
use crate::vector::{self, Steps};

/// An opened GPU.
#[derive(Debug)]
pub(crate) struct Cuda {
    info: DeviceInfo,
    caps: Caps,
    pub(crate) gpu: Arc<Gpu>,
    /// Looked for when somebody asks for the vendor's product.
    cublas: OnceLock<Result<Arc<Cublas>>>,
    shared: Arc<Shared>,
    sources: Sources,
    staging: Arc<Staging>,
    /// Taken from a call's first copy to its last: buffers are shared between calls.
    pub(crate) scratch: Mutex<Scratch>,
    /// Choices with an epilogue, or that there is none, once they are asked for.
    fused: Mutex<HashMap<Fused, Option<Arc<Choice>>>>,
}

/// What a choice with an epilogue is of.
type Fused = (Desc, Params, Option<Function>);

/// Most choices with an epilogue that are kept.
const KEPT: usize = 1024;

fn describe(ordinal: usize, report: &Report, gpu: &Found) -> DeviceInfo {
    let mut info = DeviceInfo::new(format!("cuda:{ordinal}"));
    info.name = gpu.name.clone();
    info.arch = format!("sm_{}", gpu.capability);
    info.vendor = "nvidia".into();
    let (major, minor) = (report.version / 1000, report.version % 1000 / 10);
    info.driver = format!("CUDA driver {major}.{minor}");
    info.memory = Some(gpu.memory);
    info.units = gpu.units as usize;
    (info.asynchronous, info.peers) = (true, true);
    info
}

/// The GPUs that the driver reports; opens none.
pub(crate) fn discover() -> Result<Vec<DeviceInfo>> {
    let report = driver::probe()?;
    Ok(report.gpus.iter().enumerate().map(|(i, gpu)| describe(i, report, gpu)).collect())
}

/// Opens a GPU.
pub(crate) fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
    open_on(ordinal, |id| Gpu::open(ordinal, id))
}

/// What the devices of one GPU share.
#[derive(Debug)]
struct Shared {
    programs: Programs,
    steps: Steps,
    /// Whether the tensor cores keep the order, tested when a kernel first asks for them.
    tensor_cores: OnceLock<std::result::Result<(), String>>,
}

/// That of a GPU, which lives as long as one of its devices.
fn shared(ordinal: usize, found: &Found, driver: i32) -> Result<Arc<Shared>> {
    static ALL: Mutex<Vec<(usize, Weak<Shared>)>> = Mutex::new(Vec::new());
    let mut all = lock(&ALL);
    all.retain(|(_, shared)| shared.strong_count() > 0);
    let known = all.iter().find(|(of, _)| *of == ordinal).and_then(|(_, shared)| shared.upgrade());
    if let Some(shared) = known {
        return Ok(shared);
    }
    let programs = Programs::new(found.capability, driver)?;
    let (steps, tensor_cores) = (Steps::default(), OnceLock::new());
    let new = Arc::new(Shared { programs, steps, tensor_cores });
    all.push((ordinal, Arc::downgrade(&new)));
    Ok(new)
}

/// A device of a GPU, which `gpu` opens by the device's name.
pub(crate) fn open_on(
    ordinal: usize,
    gpu: impl FnOnce(&str) -> Result<Gpu>,
) -> Result<Arc<dyn Backend>> {
    let report = driver::probe()?;
    let found = report.gpus.get(ordinal).ok_or_else(|| Error::NoDevice {
        asked: format!("cuda:{ordinal}"),
        found: format!("{} GPUs", report.gpus.len()),
    })?;
    let info = describe(ordinal, report, found);
    let shared = shared(ordinal, found, report.version)?;
    let gpu = Arc::new(gpu(&info.id)?);
    let mut caps = Caps::new(Language::Cuda);
    caps.units = found.units;
    caps.max_group = gpu.max_group();
    (caps.local_bytes, caps.dynamic_bytes) = gpu.shared();
    caps.fp64 = true;
    caps.fp64_mma = found.capability >= 80;
    caps.async_copies = found.capability >= 80;
    // Older compilers have no such architecture, and older drivers no tensor maps.
    caps.sm_90a = found.capability == 90 && report.version >= 12_000;
    caps.cluster = cluster(found.capability);
    let staging = Arc::new(Staging::new(&gpu));
    Ok(Arc::new(Cuda {
        caps,
        cublas: OnceLock::new(),
        shared,
        sources: Sources::default(),
        scratch: Mutex::new(Scratch::new(&staging)),
        fused: Mutex::default(),
        staging,
        gpu,
        info,
    }))
}

/// Most blocks of a cluster on a GPU of this compute capability (90 for 9.0), without asking for more than all of
/// them have (CUDA C++ Programming Guide, "Thread Block Clusters").
///
/// ```
/// assert_eq!((gemv::cuda::cluster(80), gemv::cuda::cluster(90)), (1, 8));
/// ```
pub const fn cluster(capability: u32) -> u32 {
    if capability >= 90 { 8 } else { 1 }
}

/// The name of NVIDIA's own product in [`Params`].
const CUBLAS: &str = "vendor-cublas";

impl Cuda {
    /// Why these parameters are not for this problem.
    fn refuse(&self, desc: &Desc, params: &Params, reason: String) -> Error {
        let (device, desc, params) = (self.info.id.clone(), *desc, params.to_string());
        Error::Params { device, desc, params, reason }
    }

    /// cuBLAS, for a problem that it knows.
    fn cublas(&self, desc: &Desc, params: &Params) -> Result<&Arc<Cublas>> {
        if params.args().next().is_some() {
            return Err(self.refuse(desc, params, "cuBLAS takes no arguments".into()));
        }
        if desc.packing.is_some() {
            return Err(self.refuse(desc, params, "cuBLAS knows no packed matrices".into()));
        }
        if desc.is_mixed() {
            let reason = "cuBLAS is for a matrix and vectors of one type";
            return Err(self.refuse(desc, params, reason.into()));
        }
        if desc.layout == Layout::Strided {
            let reason = "cuBLAS knows matrices by rows and by columns only";
            return Err(self.refuse(desc, params, reason.into()));
        }
        if desc.n == 0 {
            let reason = "BLAS has its own rule where there are no columns";
            return Err(self.refuse(desc, params, reason.into()));
        }
        // The GPU's lock before the library's, always: who records holds it and may come here.
        let _guard = self.gpu.enter()?;
        self.gpu.refuse_while_captured("cublasCreate")?;
        let open = || Cublas::open(&self.gpu).map(Arc::new);
        self.cublas.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// The kernel that these parameters name, if they are legal for it.
    fn kernel(&self, desc: &Desc, params: &Params) -> Result<&'static Kernel> {
        let refuse = |reason| self.refuse(desc, params, reason);
        let kernel =
            named(desc, params).ok_or_else(|| refuse("there is no kernel of this name".into()))?;
        kernel.fits(desc, params, &self.caps).map_err(refuse)?;
        if uses_tensor_cores(kernel) {
            self.tensor_cores().map_err(refuse)?;
        }
        Ok(kernel)
    }

    /// What is wrong with the f64 tensor cores.
    fn tensor_cores(&self) -> std::result::Result<(), String> {
        if let Some(known) = self.shared.tensor_cores.get() {
            return known.clone();
        }
        // The GPU's lock before the result's, as for cuBLAS.
        let _guard = self.gpu.enter().map_err(|e| e.to_string())?;
        if self.gpu.recording() || self.gpu.captured() {
            return Err("the tensor cores cannot be tested while work is recorded".into());
        }
        let test =
            || selftest::tensor_cores(&self.gpu, &self.shared.programs, &self.scratch, &self.caps);
        match in_default(test) {
            Ok(found) => self.shared.tensor_cores.get_or_init(|| found).clone(),
            // Not kept: the next one may find memory.
            Err(e) => {
                let why = format!("the tensor cores could not be tested: {e}");
                log::warn!("{}: {why}", self.gpu.id());
                Err(why)
            }
        }
    }

    /// What a product with these parameters launches, proved for this problem.
    fn launches(&self, desc: &Desc, params: &Params) -> Result<Launches> {
        let kernel = self.kernel(desc, params)?;
        let mut all = self.launches_of(kernel, desc, params)?;
        let plan = kernel.plan(desc, params, &self.caps);
        if let (Some(last), Some(launch)) = (all.launches.last_mut(), plan.launches.last()) {
            // A thread keeps choices until it ends, and should not keep NVRTC: it may be unloaded while the process exits.
            let (shared, gpu) = (Arc::downgrade(&self.shared), self.gpu.clone());
            let entry = launch.entry;
            let (types, params) = ((desc.dtype, desc.vectors), *params);
            last.at_places = Some(AtPlaces::new(move || {
                let shared = shared.upgrade()?;
                let find = || shared.programs.at_places(&gpu, kernel, types, &params, entry);
                in_default(find).unwrap_or_else(|e| {
                    log::debug!("{e}: copies follow the product");
                    None
                })
            }));
        }
        Ok(all)
    }

    /// A choice with an epilogue where y is written; `None` if its kernel has none, or no compiler made its program.
    fn fused(
        &self,
        desc: &Desc,
        params: &Params,
        function: Option<Function>,
    ) -> Option<Arc<Choice>> {
        let key = (*desc, *params, function);
        if let Some(known) = lock(&self.fused).get(&key) {
            return known.clone();
        }
        let kernel = named(desc, params)?;
        let made = match kernel.takes_epilogue() {
            false => None,
            true => match in_default(|| self.launches_with(kernel, desc, params, Some(function))) {
                Ok(launches) => Some(Arc::new(Choice::Kernels(launches))),
                // The next run may load it.
                Err(_) if self.gpu.recording() || self.gpu.captured() => return None,
                Err(e) => {
                    log::debug!("{}: a step behind the product of {desc}: {e}", self.gpu.id());
                    None
                }
            },
        };
        let mut all = lock(&self.fused);
        if all.len() == KEPT {
            all.clear();
        }
        all.insert(key, made.clone());
        made
    }

    /// The launches of a kernel whose parameters fit.
    fn launches_of(
        &self,
        kernel: &'static Kernel,
        desc: &Desc,
        params: &Params,
    ) -> Result<Launches> {
        self.launches_with(kernel, desc, params, None)
    }

    /// The same, with an epilogue that has this function.
    fn launches_with(
        &self,
        kernel: &'static Kernel,
        desc: &Desc,
        params: &Params,
        epilogue: Option<Option<Function>>,
    ) -> Result<Launches> {
        let plan = kernel.plan(desc, params, &self.caps);
        let types = (desc.dtype, desc.vectors);
        let programs = &self.shared.programs;
        let functions =
            programs.functions_with(&self.gpu, kernel, types, params, &plan, epilogue)?;
        let launches = functions.into_iter().zip(&plan.launches);
        let launches = launches.map(|(function, launch)| self.gpu.launch_of(function, launch));
        Ok(Launches {
            gpu: self.gpu.clone(),
            desc: *desc,
            signature: kernel.signature,
            workspace: self.gpu.size_of(plan.workspace, desc.vectors.acc_bytes())?,
            counters: self.gpu.size_of(plan.counters, size_of::<u32>())?,
            launches: launches.collect::<Result<_>>()?,
        })
    }
}

/// The kernel that parameters name, if it is for problems like this one.
fn named(desc: &Desc, params: &Params) -> Option<&'static Kernel> {
    match desc.packing {
        None => kernel(params.kernel().as_str()),
        #[cfg(feature = "packed")]
        Some(_) => Some(&gemv_gpu::PACKED),
        #[cfg(not(feature = "packed"))]
        Some(_) => None,
    }
}

/// The kernels that keep the order, as the backend describes them: for a program that has no device. A
/// fingerprint is of the texts, the arguments and the options.
///
/// ```
/// assert!(gemv::cuda::infos().any(|info| info.name == "row"));
/// ```
pub fn infos() -> impl Iterator<Item = KernelInfo> {
    kernels().filter(|k| k.ordered).map(|kernel| {
        let info = kernel.info();
        let parts: Vec<&str> = [&*info.fingerprint].into_iter().chain(OPTIONS).collect();
        KernelInfo { fingerprint: fingerprint(&parts, &[]), ..info }
    })
}

impl Backend for Cuda {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    /// Every NVIDIA GPU has double precision, and conversions stand in for narrow arithmetic.
    fn accepts(&self, desc: &Desc) -> Result<()> {
        if desc.packing.is_some() && !cfg!(feature = "packed") {
            let reason = "this program was built without the feature \"packed\" of gemv".into();
            return Err(Error::Unsupported {
                device: self.info.id.clone(),
                dtype: desc.dtype,
                reason,
            });
        }
        Ok(())
    }

    fn candidates(&self, desc: &Desc) -> Vec<Params> {
        #[cfg(feature = "packed")]
        if desc.packing.is_some() {
            return gemv_gpu::PACKED.candidates(desc, &self.caps);
        }
        let mut all = candidates(desc, &self.caps);
        let asks = |p: &Params| kernel(p.kernel().as_str()).is_some_and(uses_tensor_cores);
        if all.iter().any(asks) && self.tensor_cores().is_err() {
            all.retain(|p| !asks(p));
        }
        all
    }

    fn fits(&self, desc: &Desc, params: &Params) -> Result<()> {
        if params.kernel().as_str() == CUBLAS {
            return self.cublas(desc, params).map(|_| ());
        }
        self.kernel(desc, params).map(|_| ())
    }

    fn launch_id(&self, desc: &Desc, params: &Params) -> u64 {
        let kernel = named(desc, params);
        kernel.map_or(0, |k| k.launch_id(desc, params, &self.caps))
    }

    fn tables(&self) -> Vec<BuiltinTable> {
        tables::of(&self.info)
    }

    #[cfg(feature = "packed")]
    fn packed_formats(&self) -> &'static [Format] {
        Format::ALL
    }

    #[cfg(feature = "packed")]
    fn upload_packed(&self, matrix: PackedMatrix<'_>) -> Result<Box<dyn Memory>> {
        self.upload(AnySlice::F32(&gemv_gpu::packed_tiles(matrix)?))
    }

    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
        drop_retired(&self.gpu);
        let dtype = data.dtype();
        let _guard = self.gpu.enter()?;
        let block = self.gpu.alloc(data.bytes().len())?;
        self.staging.send(data.bytes(), &block)?;
        let len = data.bytes().len() / dtype.bytes();
        Ok(Box::new(Resident { block, dtype, len, owner: Owner::Backend }))
    }

    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>> {
        drop_retired(&self.gpu);
        let _guard = self.gpu.enter()?;
        let bytes = self.gpu.size_of(len as u64, dtype.bytes())?;
        let block = self.gpu.alloc(bytes)?;
        self.gpu.clear(&block)?;
        Ok(Box::new(Resident { block, dtype, len, owner: Owner::Backend }))
    }

    fn download(&self, from: &dyn Memory, first: usize, mut to: AnySliceMut<'_>) -> Result<()> {
        let (size, from) = (to.dtype().bytes(), resident(from, &self.gpu, to.dtype()));
        let _guard = self.gpu.enter()?;
        let to = to.bytes();
        // Its block is longer.
        let inside = first.checked_add(to.len() / size).is_some_and(|end| end <= from.len);
        assert!(inside, "a copy from outside of an array");
        self.staging.fetch(&from.block, first * size, to)
    }

    fn fill(&self, to: &mut dyn Memory, bytes: usize, source: PieceSource<'_>) -> Result<bool> {
        self.staging.fill(resident::block(to, bytes), bytes, source)?;
        Ok(true)
    }

    fn exchange(&self, blocks: &mut [Receive<'_>]) -> Result<Box<dyn Exchange>> {
        resident::exchange(blocks)
    }

    fn prepare(&self, desc: &Desc, params: &Params) -> Result<Prepared> {
        self.gpu.here()?;
        let choice = if params.kernel().as_str() == CUBLAS {
            Choice::Cublas(self.cublas(desc, params)?.clone(), *desc)
        } else {
            Choice::Kernels(in_default(|| self.launches(desc, params))?)
        };
        Ok(Prepared::new(*params).with_state(choice))
    }

    fn prepare_cyclic(&self, desc: &Desc, processes: usize) -> Result<Option<Prepared>> {
        self.gpu.here()?;
        let Some(params) = row_block_cyclic::params(desc, processes, &self.caps) else {
            return Ok(None);
        };
        let launches = in_default(|| self.launches_of(&row_block_cyclic::KERNEL, desc, &params))?;
        Ok(Some(Prepared::new(params).with_state(Choice::Cyclic(launches, processes))))
    }

    fn product(&self, job: &mut Checked<Job<'_>>, prepared: &Prepared) -> Result<()> {
        if !is_default() {
            return in_default(|| self.product(job, prepared));
        }
        drop_retired(&self.gpu);
        let choice = prepared.state::<Choice>().expect("a choice that this backend prepared");
        let ours = matches!(choice, Choice::Kernels(_));
        match ours && vector::joins(&self.gpu, &self.shared.steps, job)? {
            true => Ok(()),
            false => run(&self.gpu, &self.scratch, job, choice, None),
        }
    }

    fn product_with(
        &self,
        job: &mut Checked<Job<'_>>,
        prepared: &Prepared,
        epilogue: &Epilogue<'_>,
    ) -> Result<bool> {
        if !is_default() {
            return in_default(|| self.product_with(job, prepared, epilogue));
        }
        self.gpu.here()?;
        let choice = prepared.state::<Choice>().expect("a choice that this backend prepared");
        let (desc, params) = (job.desc(), prepared.params());
        let y = job.y();
        let Some(y) = y.window() else { return Ok(false) };
        let (Choice::Kernels(_), Some(behind)) = (choice, Behind::of(epilogue.bias, &y)) else {
            return Ok(false);
        };
        let Some(choice) = self.fused(&desc, params, epilogue.function) else { return Ok(false) };
        drop_retired(&self.gpu);
        run(&self.gpu, &self.scratch, job, &choice, Some(&behind))?;
        Ok(true)
    }

    fn vector(&self, job: AnyVectorJob<'_>) -> Result<()> {
        self.gpu.here()?;
        if !is_default() {
            return in_default(|| self.vector(job));
        }
        let programs = (&self.shared.programs, &self.shared.steps);
        for_any!(AnyVectorJob, job, job => vector::step(&self.gpu, &self.caps, programs, job))
    }

    fn classic(&self, desc: &Desc) -> Vec<Params> {
        gemv_gpu::published(desc, &self.caps)
    }

    fn vendor(&self, desc: &Desc) -> Option<Params> {
        let params = Params::new(CUBLAS);
        match self.cublas(desc, &params) {
            Ok(_) => Some(params),
            Err(why) => {
                log::debug!("{why}");
                None
            }
        }
    }

    fn compile(&self, text: &str, entry: &str) -> Result<CompiledKernel> {
        self.gpu.here()?;
        in_default(|| self.sources.compile(&self.gpu, &self.shared.programs, text, entry))
    }

    fn launch(&self, launch: KernelLaunch<'_>) -> Result<()> {
        kernel_source::launch(&self.gpu, &launch)
    }

    fn interop(&self) -> Option<&dyn Interop> {
        Some(self)
    }

    fn reserve(&self, prepared: &Prepared) -> Result<()> {
        let choice = prepared.state::<Choice>().expect("a choice that this backend prepared");
        reserve(&self.gpu, &self.scratch, choice)
    }

    fn synchronize(&self) -> Result<()> {
        let _guard = self.gpu.enter()?;
        self.gpu.refuse_while_recording("cuStreamSynchronize")?;
        self.gpu.synchronize()
    }

    fn timed(&self, product: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        self.gpu.timed(product)
    }

    fn record(
        &self,
        others: &[&dyn Backend],
        start: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Box<dyn Record>>> {
        let others = others.iter().map(|other| {
            let other: &dyn Any = *other;
            other.downcast_ref::<Cuda>().map(|other| other.gpu.clone())
        });
        let gpus = std::iter::once(Some(self.gpu.clone())).chain(others);
        match gpus.collect::<Option<Vec<_>>>() {
            Some(gpus) if gpus.iter().all(|gpu| gpu.records(gpus.len())) => {
                driver::record(&gpus, start)
            }
            _ => Ok(None),
        }
    }

    fn is_recording(&self) -> bool {
        self.gpu.recording() && self.gpu.is_entered()
    }

    fn read_params(&self) -> Vec<Params> {
        gemv_gpu::read_params(&self.caps)
    }

    fn kernels(&self) -> Vec<KernelInfo> {
        infos().collect()
    }
}
