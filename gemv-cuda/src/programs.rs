//! The holder of compiled programs: looked up by kernel, type and compiled arguments, compiled and
//! loaded at first use.
//!
//! A program comes from the cache on disk, else from NVRTC, else from the PTX that travels with the crate,
//! which the driver compiles on. NVRTC stands before the PTX: its machine code is what the tables were
//! measured with. The bits are the same.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use gemv_core::{Dtype, Error, Function, Params, Result};
use gemv_gpu::{Kernel, Plan, Program};

use crate::bundle::{Bundle, TARGETS, target_of};
use crate::cache::{Cache, Key};
use crate::driver::{Function as Entry, Gpu, Image, Nvrtc};
use crate::lock::lock;
use crate::options::options_of;

/// The programs of one GPU.
#[derive(Debug)]
pub(crate) struct Programs {
    capability: u32,
    /// The driver's version, 12020 for CUDA 12.2.
    driver: i32,
    cache: Cache,
    /// Looked for when the first kernel is not in the cache.
    nvrtc: OnceLock<Result<Nvrtc>>,
    loaded: Mutex<HashMap<ProgramKey, Arc<Loaded>>>,
}

/// A kernel's name, element types, the values of the compiled arguments, and what else its text has: parameters that only
/// the launch depends on share a program.
type ProgramKey = (&'static str, Types, Vec<u32>, More);

/// What a program has beside the text of its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum More {
    Nothing,
    /// Results that are written at several places.
    Places,
    /// An epilogue, with its function.
    Epilogue(Option<Function>),
}

/// The matrix' and the vectors' type.
type Types = (Dtype, Dtype);

/// The entry points of a program, compiled and loaded at their first launch.
///
/// Behind a lock of its own, so that one compilation does not hold up other kernels, and two threads
/// do not do the same one.
type Loaded = Mutex<HashMap<&'static str, Arc<Entry>>>;

fn key(kernel: &'static Kernel, types: Types, params: &Params, more: More) -> ProgramKey {
    let compiled = kernel.args.iter().filter(|a| a.define.is_some());
    let values = compiled.map(|a| params.get_or(a.name, a.default)).collect();
    (kernel.name, types, values, more)
}

impl Programs {
    /// # Errors
    /// Where nothing was compiled before, nothing that travels with the crate runs here, and there is no
    /// compiler.
    pub(crate) fn new(capability: u32, driver: i32) -> Result<Programs> {
        let (cache, nvrtc) = (Cache::from_env(), OnceLock::new());
        let programs = Programs { capability, driver, cache, nvrtc, loaded: Mutex::default() };
        if !programs.cache.holds_any()
            && let Err(why) = programs.bundle()
            && let Err(missing) = programs.nvrtc()
        {
            return Err(neither(&why, missing));
        }
        Ok(programs)
    }

    fn nvrtc(&self) -> std::result::Result<&Nvrtc, &Error> {
        self.nvrtc.get_or_init(Nvrtc::find).as_ref()
    }

    /// The compiler of a program. One without `sm_90a` would compile a kernel for it to nothing that computes.
    fn compiler_of(&self, program: &Program) -> std::result::Result<&Nvrtc, Error> {
        let nvrtc = self.nvrtc().map_err(Clone::clone)?;
        match lacks_sm_90a(program, nvrtc.version()) {
            false => Ok(nvrtc),
            true => {
                let (major, minor) = nvrtc.version();
                let reason =
                    format!("NVRTC {major}.{minor} ({}) has no sm_90a, as 12.0 has", nvrtc.path());
                Err(Error::DriverMissing { backend: "cuda", reason })
            }
        }
    }

    /// The programs that travel with the crate, where this GPU and its driver take them; or why not, as the
    /// beginning of a sentence.
    fn bundle(&self) -> std::result::Result<&'static Bundle<'static>, String> {
        let version = |number: u32| format!("{}.{}", number / 10, number % 10);
        if target_of(self.capability).is_none() {
            return Err(format!(
                "the PTX that travels with gemv is for GPUs of compute capability {} and newer, and this one has {}",
                version(TARGETS[0]),
                version(self.capability)
            ));
        }
        let bundle = Bundle::shipped()?;
        let (major, minor) = bundle.compiler();
        if self.driver < 1000 * major + 10 * minor {
            return Err(format!(
                "the PTX that travels with gemv needs a driver for CUDA {major}.{minor} or newer, and this one is for {}.{}",
                self.driver / 1000,
                self.driver % 1000 / 10
            ));
        }
        Ok(bundle)
    }

    /// The entry points that a plan launches, in its order.
    pub(crate) fn functions(
        &self,
        gpu: &Gpu,
        kernel: &'static Kernel,
        types: Types,
        params: &Params,
        plan: &Plan,
    ) -> Result<Vec<Arc<Entry>>> {
        self.functions_with(gpu, kernel, types, params, plan, None)
    }

    /// The same of the program with an epilogue that has this function.
    pub(crate) fn functions_with(
        &self,
        gpu: &Gpu,
        kernel: &'static Kernel,
        types: Types,
        params: &Params,
        plan: &Plan,
        epilogue: Option<Option<Function>>,
    ) -> Result<Vec<Arc<Entry>>> {
        let key = key(kernel, types, params, epilogue.map_or(More::Nothing, More::Epilogue));
        let program = || match epilogue {
            None => kernel.mixed_program(types, params),
            Some(function) => kernel.epilogue_program(types, params, function),
        };
        let entries: Vec<_> = plan.launches.iter().map(|launch| launch.entry).collect();
        self.entries(gpu, key, program, &entries, || format!("{} {params}", named(types)))
    }

    /// The same entry point in the program that writes y at several places; `None` if the kernel has none.
    pub(crate) fn at_places(
        &self,
        gpu: &Gpu,
        kernel: &'static Kernel,
        types: Types,
        params: &Params,
        entry: &'static str,
    ) -> Result<Option<Arc<Entry>>> {
        let Some(program) = kernel.places_program(types, params) else { return Ok(None) };
        let what = || format!("{} {params}, which writes y at several places", named(types));
        let key = key(kernel, types, params, More::Places);
        Ok(self.entries(gpu, key, || program, &[entry], what)?.pop())
    }

    /// Entry points of a program, compiled if one is not there.
    fn entries(
        &self,
        gpu: &Gpu,
        key: ProgramKey,
        program: impl FnOnce() -> Program,
        entries: &[&'static str],
        what: impl Fn() -> String,
    ) -> Result<Vec<Arc<Entry>>> {
        let loaded = lock(&self.loaded).entry(key).or_default().clone();
        let mut functions = lock(&loaded);
        if entries.iter().any(|e| !functions.contains_key(e)) {
            gpu.may_load()?;
            let image = self.image(gpu.id(), &program(), what)?;
            for (name, f) in entries.iter().zip(gpu.load(&image, entries.iter().copied())?) {
                functions.insert(*name, Arc::new(f));
            }
        }
        Ok(entries.iter().map(|e| functions[e].clone()).collect())
    }

    /// A program compiled, from the cache where it is there; `device` and `what` name it in messages.
    pub(crate) fn image(
        &self,
        device: &str,
        program: &Program,
        what: impl Fn() -> String,
    ) -> Result<Image> {
        match self.compiler_of(program) {
            Ok(nvrtc) => {
                let options = options_of(program, &nvrtc.target(self.capability));
                let key = Key::new(program, &options);
                if let Some(image) = self.cache.get(&key, Some(nvrtc.version())) {
                    return Ok(image);
                }
                let (image, log) = nvrtc
                    .compile(program, &options)
                    .map_err(|log| Error::Build { kernel: what(), device: device.into(), log })?;
                if !log.is_empty() {
                    log::debug!("{}: {log}", what());
                }
                self.cache.put(&key, nvrtc.version(), &image);
                Ok(image)
            }
            Err(missing) => {
                let options = options_of(program, &format!("sm_{}", self.capability));
                let key = Key::new(program, &options);
                if let Some(image) = self.cache.get(&key, None) {
                    return Ok(image);
                }
                let found = self.bundle().and_then(|bundle| {
                    let none = || format!("no PTX of {} travels with gemv", what());
                    bundle.find(program, self.capability).unwrap_or_else(|| Err(none()))
                });
                let image = found.map_err(|why| neither(&why, &missing))?;
                log::debug!("{}: the driver compiles the PTX that travels with gemv", what());
                Ok(image)
            }
        }
    }
}

/// Whether a program is for an architecture that NVRTC of this version does not know.
fn lacks_sm_90a(program: &Program, nvrtc: (i32, i32)) -> bool {
    program.is_for_sm_90a() && nvrtc < (12, 0)
}

/// Why there is neither PTX nor a compiler, in one sentence.
fn neither(why: &str, missing: &Error) -> Error {
    match missing {
        Error::DriverMissing { backend, reason } => {
            Error::DriverMissing { backend, reason: format!("{why}, and {reason}") }
        }
        other => other.clone(),
    }
}

/// The types in messages.
fn named((matrix, vectors): Types) -> String {
    match matrix == vectors {
        true => matrix.to_string(),
        false => format!("{matrix}*{vectors}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::kernel;

    #[test]
    fn an_old_compiler_gets_no_program_for_sm_90a() {
        let of = |name| kernel(name).unwrap().program(Dtype::F16, &Params::new(name));
        assert!(lacks_sm_90a(&of("gemm-row-lanes"), (11, 8)));
        assert!(!lacks_sm_90a(&of("gemm-row-lanes"), (12, 0)));
        assert!(!lacks_sm_90a(&of("row"), (11, 2)));
    }

    /// Those of a machine without NVRTC and without a cache.
    fn programs(capability: u32, driver: i32) -> Programs {
        let dir = tempfile::tempdir().unwrap();
        let missing = Nvrtc::load(&dir.path().join("libnvrtc.so")).unwrap_err();
        let missing = Error::DriverMissing { backend: "cuda", reason: missing };
        let cache = Cache::at(dir.path());
        let nvrtc = OnceLock::from(Err(missing));
        Programs { capability, driver, cache, nvrtc, loaded: Mutex::default() }
    }

    fn row(threads: u32) -> (Program, String) {
        let params = format!("row threads={threads} subwarp=16 rows=1 vec=1 split_k=1");
        let program = kernel("row").unwrap().program(Dtype::F32, &params.parse().unwrap());
        (program, params)
    }

    #[test]
    fn without_a_compiler_it_is_the_ptx_that_travels_with_the_crate() {
        let (program, params) = row(128);
        for (capability, target) in [(80, "sm_80"), (89, "sm_80"), (90, "sm_90"), (120, "sm_90")] {
            let image = programs(capability, 12_000).image("cuda:0", &program, || params.clone());
            let ptx = String::from_utf8(image.unwrap().bytes().into()).unwrap();
            assert!(ptx.contains(&format!("\n.target {target}\n")), "{capability}");
            assert!(ptx.contains(".entry row("), "{capability}");
        }
    }

    #[test]
    fn what_does_not_travel_with_the_crate_needs_the_compiler_in_one_sentence() {
        for ((capability, driver), threads, why) in [
            (
                (80, 13_000),
                1,
                "no PTX of row threads=1 subwarp=16 rows=1 vec=1 split_k=1 travels with gemv, and ",
            ),
            (
                (75, 13_000),
                128,
                "gemv is for GPUs of compute capability 8.0 and newer, and this one has 7.5, and ",
            ),
            ((80, 11_040), 128, "a driver for CUDA 12.0 or newer, and this one is for 11.4, and "),
        ] {
            let (program, params) = row(threads);
            let outcome = programs(capability, driver).image("cuda:0", &program, || params.clone());
            let text = outcome.unwrap_err().to_string();
            assert!(text.starts_with("cuda is not available: ") && text.contains(why), "{text}");
            assert!(text.contains("libnvrtc.so") && !text.contains('\n'), "{text}");
        }
    }
}
