//! The seam: discovery, opening, and what `gemv_core::Backend` asks of a device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use gemv_core::{
    AnyJob, AnySlice, AnySliceMut, Backend, BuiltinTable, Desc, DeviceInfo, Dtype, Error, Layout,
    Memory, Params, Prepared, Result, for_any,
};
use gemv_gpu::{Caps, Kernel, Language, Program};

use crate::cache::{Cache, Key};
use crate::candidates::candidates;
use crate::driver::{self, Block, Cublas, Found, Function, Gpu, Nvrtc, Report};
use crate::kernels::{kernel, kernels};
use crate::run::Scratch;

/// An opened GPU.
#[derive(Debug)]
pub(crate) struct Cuda {
    info: DeviceInfo,
    capability: u32,
    caps: Caps,
    pub(crate) gpu: Arc<Gpu>,
    cache: Cache,
    /// Looked for when the first kernel is not in the cache.
    nvrtc: OnceLock<Result<Nvrtc>>,
    /// Looked for when somebody asks for the vendor's product.
    cublas: OnceLock<Result<Cublas>>,
    programs: Mutex<Programs>,
    /// Taken from a call's first copy to its last: buffers are shared between calls.
    pub(crate) scratch: Mutex<Scratch>,
}

/// The programs in use: by what a call knows, and by what they are compiled from, since parameters
/// that only the launch depends on share a program.
#[derive(Debug, Default)]
struct Programs {
    by_params: HashMap<(Dtype, Params), Arc<Loaded>>,
    by_program: HashMap<Program, Arc<Loaded>>,
}

/// The entry points of a program, compiled and loaded at their first launch.
#[derive(Debug, Default)]
struct Loaded {
    /// Behind a lock of its own, so that one compilation does not hold up other kernels, and two
    /// threads do not do the same one.
    functions: Mutex<HashMap<&'static str, Arc<Function>>>,
}

/// Resident memory of this backend.
#[derive(Debug)]
pub(crate) struct Resident {
    pub(crate) block: Block,
    pub(crate) dtype: Dtype,
    len: usize,
}

impl Memory for Resident {
    fn len(&self) -> usize {
        self.len
    }
}

fn describe(ordinal: usize, report: &Report, gpu: &Found) -> DeviceInfo {
    let mut info = DeviceInfo::new(format!("cuda:{ordinal}"));
    info.name = gpu.name.clone();
    info.arch = format!("sm_{}", gpu.capability);
    info.vendor = "nvidia".into();
    let (major, minor) = (report.version / 1000, report.version % 1000 / 10);
    info.driver = format!("CUDA driver {major}.{minor}");
    info.memory = Some(gpu.memory);
    info.units = gpu.units as usize;
    info
}

fn missing(reason: String) -> Error {
    Error::DriverMissing { backend: "cuda", reason }
}

/// The GPUs that the driver reports; opens none.
pub(crate) fn discover() -> Result<Vec<DeviceInfo>> {
    let report = driver::probe().map_err(missing)?;
    Ok(report.gpus.iter().enumerate().map(|(i, gpu)| describe(i, report, gpu)).collect())
}

/// Opens a GPU.
pub(crate) fn open(ordinal: usize) -> Result<Arc<dyn Backend>> {
    let report = driver::probe().map_err(missing)?;
    let found = report.gpus.get(ordinal).ok_or_else(|| Error::NoDevice {
        asked: format!("cuda:{ordinal}"),
        found: format!("{} GPUs", report.gpus.len()),
    })?;
    let cache = Cache::from_env();
    let nvrtc = OnceLock::new();
    // Without the compiler, a device is of use only if kernels were compiled before.
    if !cache.holds_any() {
        nvrtc.get_or_init(Nvrtc::find).as_ref().map_err(Clone::clone)?;
    }
    let info = describe(ordinal, report, found);
    let gpu = Arc::new(Gpu::open(ordinal, &info.id)?);
    let mut caps = Caps::new(Language::Cuda);
    caps.units = found.units;
    caps.max_group = gpu.max_group();
    caps.local_bytes = gpu.shared();
    caps.fp64 = true;
    caps.cluster = cluster(found.capability);
    Ok(Arc::new(Cuda {
        capability: found.capability,
        caps,
        cache,
        nvrtc,
        cublas: OnceLock::new(),
        programs: Mutex::default(),
        scratch: Mutex::new(Scratch::new(&gpu)),
        gpu,
        info,
    }))
}

/// Most blocks of a cluster on a GPU of this compute capability (90 for 9.0), without asking for more than all of
/// them have (CUDA C++ Programming Guide, "Thread Block Clusters").
///
/// ```
/// assert_eq!((gemv_cuda::cluster(80), gemv_cuda::cluster(90)), (1, 8));
/// ```
pub const fn cluster(capability: u32) -> u32 {
    if capability >= 90 { 8 } else { 1 }
}

/// The options of every compilation but the architecture. No fast mathematics: the order of
/// additions is exact, and nothing may be contracted or flushed.
const OPTIONS: [&str; 6] = [
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--device-as-default-execution-space",
];

/// The options with which kernels are compiled for a target such as `sm_90`
/// ([`Nvrtc::target`]).
///
/// ```
/// let options = gemv_cuda::options("sm_90");
/// assert_eq!(options[0], "--gpu-architecture=sm_90");
/// assert!(options.contains(&"--fmad=false".to_string()));
/// ```
pub fn options(target: &str) -> Vec<String> {
    let arch = format!("--gpu-architecture={target}");
    std::iter::once(arch).chain(OPTIONS.map(String::from)).collect()
}

/// The name of NVIDIA's own product in [`Params`].
pub(crate) const CUBLAS: &str = "vendor-cublas";

impl Cuda {
    /// Why these parameters are not for this problem.
    fn refuse(&self, desc: &Desc, params: &Params, reason: String) -> Error {
        let (device, desc, params) = (self.info.id.clone(), *desc, params.to_string());
        Error::Params { device, desc, params, reason }
    }

    /// cuBLAS, for a problem that it knows.
    pub(crate) fn cublas(&self, desc: &Desc, params: &Params) -> Result<&Cublas> {
        if params.args().next().is_some() {
            return Err(self.refuse(desc, params, "cuBLAS takes no arguments".into()));
        }
        if desc.layout == Layout::Strided {
            let reason = "cuBLAS knows matrices by rows and by columns only";
            return Err(self.refuse(desc, params, reason.into()));
        }
        if desc.n == 0 {
            let reason = "BLAS leaves y as it was where there are no columns";
            return Err(self.refuse(desc, params, reason.into()));
        }
        // The turn before the library, always: who records has the turn and may come here.
        let _turn = self.gpu.enter()?;
        self.cublas.get_or_init(|| Cublas::open(&self.gpu)).as_ref().map_err(Clone::clone)
    }

    /// The kernel that these parameters name, if they are legal for it.
    pub(crate) fn kernel(&self, desc: &Desc, params: &Params) -> Result<&'static Kernel> {
        let refuse = |reason| self.refuse(desc, params, reason);
        let kernel = kernel(params.kernel().as_str())
            .ok_or_else(|| refuse("there is no kernel of this name".into()))?;
        kernel.fits(desc, params, &self.caps).map_err(refuse)?;
        Ok(kernel)
    }

    pub(crate) fn caps(&self) -> &Caps {
        &self.caps
    }

    /// The entry points of a kernel, compiled and loaded.
    pub(crate) fn functions(
        &self,
        kernel: &'static Kernel,
        dtype: Dtype,
        params: &Params,
        entries: impl Iterator<Item = &'static str> + Clone,
    ) -> Result<Vec<Arc<Function>>> {
        let loaded = {
            let mut programs = lock(&self.programs);
            match programs.by_params.get(&(dtype, *params)) {
                Some(loaded) => loaded.clone(),
                None => {
                    let program = kernel.program(dtype, params);
                    let loaded = programs.by_program.entry(program).or_default().clone();
                    programs.by_params.insert((dtype, *params), loaded.clone());
                    loaded
                }
            }
        };
        let mut functions = lock(&loaded.functions);
        if entries.clone().any(|e| !functions.contains_key(e)) {
            let image = self.image(kernel, dtype, params)?;
            let names: Vec<&str> = entries.clone().collect();
            for (name, f) in entries.clone().zip(self.gpu.load(&image, names.into_iter())?) {
                functions.insert(name, Arc::new(f));
            }
        }
        Ok(entries.map(|e| functions[e].clone()).collect())
    }

    fn image(&self, kernel: &Kernel, dtype: Dtype, params: &Params) -> Result<driver::Image> {
        let program = kernel.program(dtype, params);
        match self.nvrtc.get_or_init(Nvrtc::find) {
            Ok(nvrtc) => {
                let options = options(&nvrtc.target(self.capability));
                let key = Key::new(&program, &options);
                if let Some(image) = self.cache.get(&key, Some(nvrtc.version())) {
                    return Ok(image);
                }
                let (image, log) =
                    nvrtc.compile(&program, &options).map_err(|log| Error::Build {
                        kernel: format!("{dtype} {params}"),
                        device: self.info.id.clone(),
                        log,
                    })?;
                if !log.is_empty() {
                    log::debug!("{dtype} {params}: {log}");
                }
                self.cache.put(&key, nvrtc.version(), &image);
                Ok(image)
            }
            Err(why) => {
                let key = Key::new(&program, &options(&self.info.arch));
                self.cache.get(&key, None).ok_or_else(|| why.clone())
            }
        }
    }
}

/// A hash of what the programs are made from, for the header of tables.
fn fingerprint() -> String {
    let mut source = String::new();
    for kernel in kernels().filter(|k| k.ordered) {
        source += kernel.name;
        source += kernel.source;
        source += &format!("{:?}{:?}", kernel.args, kernel.defines);
    }
    let program = Program { source: gemv_gpu::PRELUDE.to_string() + &source, defines: Vec::new() };
    Key::new(&program, &OPTIONS.map(String::from)).short()
}

/// A panic elsewhere leaves no state half made: what a lock guards is rebuilt where it is missing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backend for Cuda {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    /// Every NVIDIA GPU has double precision, and conversions stand in for narrow arithmetic.
    fn accepts(&self, _: &Desc) -> Result<()> {
        Ok(())
    }

    fn candidates(&self, desc: &Desc) -> Vec<Params> {
        candidates(desc, &self.caps)
    }

    fn fits(&self, desc: &Desc, params: &Params) -> Result<()> {
        if params.kernel().as_str() == CUBLAS {
            return self.cublas(desc, params).map(|_| ());
        }
        self.kernel(desc, params).map(|_| ())
    }

    fn launch_id(&self, desc: &Desc, params: &Params) -> u64 {
        let kernel = kernel(params.kernel().as_str());
        kernel.map_or(0, |k| k.launch_id(desc, params, &self.caps))
    }

    fn tables(&self) -> Vec<BuiltinTable> {
        tables(&self.info)
    }

    fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
        let dtype = data.dtype();
        for_any!(AnySlice, data, data => {
            let _turn = self.gpu.enter()?;
            let block = self.gpu.alloc(size_of_val(data))?;
            lock(&self.scratch).staging.send(data, &block)?;
            Ok(Box::new(Resident { block, dtype, len: data.len() }))
        })
    }

    fn alloc(&self, dtype: Dtype, len: usize) -> Result<Box<dyn Memory>> {
        let _turn = self.gpu.enter()?;
        let bytes = len.checked_mul(dtype.bytes()).ok_or_else(|| Error::OutOfMemory {
            device: self.info.id.clone(),
            asked: u64::MAX,
            free: self.info.memory,
        })?;
        let block = self.gpu.alloc(bytes)?;
        self.gpu.clear(&block)?;
        Ok(Box::new(Resident { block, dtype, len }))
    }

    fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
        let from = resident(from, &self.gpu, to.dtype());
        let _turn = self.gpu.enter()?;
        for_any!(AnySliceMut, to, to => lock(&self.scratch).staging.fetch(&from.block, first, to))
    }

    fn gemv(&self, job: AnyJob<'_>, prepared: &Prepared) -> Result<()> {
        let params = prepared.params();
        for_any!(AnyJob, job, job => self.run(job, params))
    }

    fn classic(&self, desc: &Desc) -> Vec<Params> {
        let all = gemv_gpu::baselines();
        all.flat_map(|k| (k.candidates)(desc, &self.caps)).collect()
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

    fn synchronize(&self) -> Result<()> {
        let _turn = self.gpu.enter()?;
        self.gpu.synchronize()
    }

    fn timed(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        self.gpu.timed(work)
    }

    fn read_params(&self) -> Vec<Params> {
        gemv_gpu::read_params(&self.caps)
    }

    fn fingerprint(&self) -> String {
        fingerprint()
    }
}

/// Resident memory as ours.
///
/// # Panics
/// If it is another backend's or device's, or has another type.
pub(crate) fn resident<'a>(memory: &'a dyn Memory, gpu: &Arc<Gpu>, dtype: Dtype) -> &'a Resident {
    let memory: &dyn std::any::Any = memory;
    let ours = memory.downcast_ref::<Resident>().expect("memory of the CUDA backend");
    assert!(ours.block.is_of(gpu), "memory of another GPU than {}", gpu.id());
    assert_eq!(ours.dtype, dtype, "memory of another element type");
    ours
}

/// The tables for a device, the most specific first.
fn tables(info: &DeviceInfo) -> Vec<BuiltinTable> {
    macro_rules! table {
        ($name:literal) => {
            BuiltinTable {
                name: concat!("cuda/", $name),
                text: include_str!(concat!("../tables/", $name)),
            }
        };
    }
    let mut tables = Vec::new();
    // An H100 is the same chip beside slower memory: blocks are counted by its own units.
    if info.arch == "sm_90" {
        tables.push(table!("h200.txt"));
    }
    tables.push(table!("nvidia.txt"));
    tables.push(table!("default.txt"));
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemv_core::Table;

    #[test]
    fn every_table_is_well_formed_and_every_row_is_legal_somewhere_in_its_range() {
        let mut info = DeviceInfo::new("cuda:0");
        (info.name, info.arch) = ("NVIDIA H200".into(), "sm_90".into());
        let caps = crate::testing::caps();
        let all = tables(&info);
        assert_eq!(all.len(), 3);
        for table in &all {
            for row in Table::parse(table.name, table.text).unwrap().rows {
                let kernel = kernel(row.params.kernel().as_str()).expect(table.name);
                for dtype in row.dtype.map_or(Dtype::ALL.to_vec(), |d| vec![d]) {
                    for layout in row.layout.map_or(Layout::ALL.to_vec(), |l| vec![l]) {
                        let at = |(lo, hi): (f32, f32)| ((lo + hi.min(31.0)) / 2.0).exp2() as usize;
                        for align in [row.align.low, row.align.high] {
                            let desc = Desc::of(dtype, layout, (at(row.m), at(row.n)), align);
                            let fits = kernel.fits(&desc, &row.params, &caps);
                            fits.unwrap_or_else(|e| panic!("{}: {row}: {desc}: {e}", table.name));
                        }
                    }
                }
            }
        }
        let last = Table::parse("default", all[2].text).unwrap();
        for dtype in Dtype::ALL {
            for layout in Layout::ALL {
                let desc = Desc::of(dtype, layout, (1, 1), 0);
                assert!(!last.nearest(&desc).is_empty());
            }
        }
    }
}
