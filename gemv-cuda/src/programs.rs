//! The holder of compiled programs: looked up by kernel, type and compiled arguments, compiled and
//! loaded at first use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use gemv_core::{Dtype, Error, Params, Result};
use gemv_gpu::{Kernel, Plan, Program};

use crate::cache::{Cache, Key};
use crate::driver::{Function, Gpu, Image, Nvrtc};
use crate::lock::lock;

/// The options of every compilation but the architecture. No fast mathematics: the order of
/// additions is exact, and nothing may be contracted or flushed.
pub(crate) const OPTIONS: [&str; 6] = [
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

/// The programs of one GPU.
#[derive(Debug)]
pub(crate) struct Programs {
    capability: u32,
    cache: Cache,
    /// Looked for when the first kernel is not in the cache.
    nvrtc: OnceLock<Result<Nvrtc>>,
    loaded: Mutex<HashMap<ProgramKey, Arc<Loaded>>>,
}

/// A kernel's name, element types, and the values of the compiled arguments: parameters that only
/// the launch depends on share a program.
type ProgramKey = (&'static str, Types, Vec<u32>);

/// The matrix' and the vectors' type.
type Types = (Dtype, Dtype);

/// The entry points of a program, compiled and loaded at their first launch.
///
/// Behind a lock of its own, so that one compilation does not hold up other kernels, and two threads
/// do not do the same one.
type Loaded = Mutex<HashMap<&'static str, Arc<Function>>>;

impl Programs {
    /// # Errors
    /// Where nothing was compiled before and there is no compiler.
    pub(crate) fn new(capability: u32) -> Result<Programs> {
        let (cache, nvrtc) = (Cache::from_env(), OnceLock::new());
        // Without the compiler, a device is of use only if kernels were compiled before.
        if !cache.holds_any() {
            nvrtc.get_or_init(Nvrtc::find).as_ref().map_err(Clone::clone)?;
        }
        Ok(Programs { capability, cache, nvrtc, loaded: Mutex::default() })
    }

    /// The entry points that a plan launches, in its order.
    pub(crate) fn functions(
        &self,
        gpu: &Gpu,
        kernel: &'static Kernel,
        types: Types,
        params: &Params,
        plan: &Plan,
    ) -> Result<Vec<Arc<Function>>> {
        let compiled = kernel.args.iter().filter(|a| a.define.is_some());
        let values = compiled.map(|a| params.get_or(a.name, a.default)).collect();
        let loaded = lock(&self.loaded).entry((kernel.name, types, values)).or_default().clone();
        let mut functions = lock(&loaded);
        let entries = || plan.launches.iter().map(|launch| launch.entry);
        if entries().any(|e| !functions.contains_key(e)) {
            let program = kernel.mixed_program(types, params);
            let image = self.image(gpu, &program, || format!("{} {params}", named(types)))?;
            for (name, f) in entries().zip(gpu.load(&image, entries())?) {
                functions.insert(name, Arc::new(f));
            }
        }
        Ok(entries().map(|e| functions[e].clone()).collect())
    }

    /// A program compiled, from the cache where it is there; `what` names it in messages.
    pub(crate) fn image(
        &self,
        gpu: &Gpu,
        program: &Program,
        what: impl Fn() -> String,
    ) -> Result<Image> {
        match self.nvrtc.get_or_init(Nvrtc::find) {
            Ok(nvrtc) => {
                let options = options(&nvrtc.target(self.capability));
                let key = Key::new(program, &options);
                if let Some(image) = self.cache.get(&key, Some(nvrtc.version())) {
                    return Ok(image);
                }
                let (image, log) = nvrtc
                    .compile(program, &options)
                    .map_err(|log| Error::Build { kernel: what(), device: gpu.id().into(), log })?;
                if !log.is_empty() {
                    log::debug!("{}: {log}", what());
                }
                self.cache.put(&key, nvrtc.version(), &image);
                Ok(image)
            }
            Err(why) => {
                let key = Key::new(program, &options(&format!("sm_{}", self.capability)));
                self.cache.get(&key, None).ok_or_else(|| why.clone())
            }
        }
    }
}

/// The types in messages.
fn named((matrix, vectors): Types) -> String {
    match matrix == vectors {
        true => matrix.to_string(),
        false => format!("{matrix}*{vectors}"),
    }
}
