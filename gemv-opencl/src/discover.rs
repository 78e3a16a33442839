//! Which OpenCL devices there are.

use std::path::PathBuf;
use std::sync::OnceLock;

use gemv_core::float_mode::in_default;
use gemv_core::fork::Owner;
use gemv_core::{DeviceInfo, Error, Result};
use gemv_gpu::{Cache, Caps, Language};
use ocl::core::{
    self, DeviceFpConfig, DeviceId, DeviceInfo as Ask, DeviceInfoResult as Answer, DeviceType,
    PlatformId, PlatformInfo,
};

use crate::bugs::{self, known_bugs};
use crate::cl;
use crate::store::Store;

/// The name of this backend.
///
/// ```
/// use gemv::Engine;
/// // Its devices, or one sentence that says why there are none.
/// let lines = Engine::global().devices();
/// assert!(lines.iter().any(|line| line.id.starts_with(gemv::opencl::NAME)));
/// # Ok::<(), gemv::Error>(())
/// ```
pub const NAME: &str = "opencl";

/// Where compiled programs are kept, and what was found out of devices; `None` with `GEMV_CACHE=off`.
///
/// ```
/// match gemv::opencl::cache_dir() {
///     Some(dir) => assert!(dir.ends_with("opencl")),
///     None => println!("nothing is kept"),
/// }
/// ```
pub fn cache_dir() -> Option<PathBuf> {
    cache().dir().map(PathBuf::from)
}

/// The cache that the environment asks for.
pub(crate) fn cache() -> Cache {
    Cache::from_env(NAME)
}

/// A device, with what its kernels need to know of it.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) platform: PlatformId,
    pub(crate) device: DeviceId,
    pub(crate) info: DeviceInfo,
    pub(crate) caps: Caps,
    /// Bytes of the largest buffer.
    pub(crate) largest: u64,
    /// Whether the device reads the host's memory, so that nothing has to be copied to it.
    pub(crate) shares_memory: bool,
    /// Whether it says that it keeps the subnormals of single precision.
    pub(crate) says_subnormals: bool,
    /// All that is said of the device, its platform and its driver: what is kept on disk holds for one
    /// of them.
    pub(crate) identity: Vec<String>,
}

impl Found {
    /// Whether the device may compute.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason, if there is one.
    pub(crate) fn usable(&self, refused: &Option<String>) -> Result<()> {
        match refused {
            None => Ok(()),
            Some(reason) => {
                let (device, reason) = (self.info.id.clone(), reason.clone());
                Err(Error::Refused { device, reason })
            }
        }
    }

    /// The error for a failed call. Drivers may allocate as late as at the first use of a buffer,
    /// so that any call may fail for memory: `asked` bytes.
    pub(crate) fn failed(&self, failure: cl::Failure, asked: usize) -> Error {
        if failure.is_memory() {
            let device = self.info.id.clone();
            return Error::OutOfMemory { device, asked: asked as u64, free: None };
        }
        failure.on(&self.info.id)
    }
}

/// The devices, looked for once a process: see `pocl-threads` of the known bugs.
///
/// # Errors
/// [`Error::Forked`] in a child of the process that looked: drivers begin their threads when they are asked for devices.
pub(crate) fn found() -> Result<&'static [Found]> {
    static FOUND: OnceLock<Result<Vec<Found>>> = OnceLock::new();
    static DRIVERS: Owner = Owner::new();
    if !DRIVERS.claim() {
        return match FOUND.get() {
            // There were none.
            Some(Err(why)) => Err(why.clone()),
            _ => Err(Error::Forked { device: NAME.into() }),
        };
    }
    FOUND.get_or_init(|| in_default(search)).as_deref().map_err(Clone::clone)
}

pub(crate) fn discover() -> Result<Vec<DeviceInfo>> {
    Ok(found()?.iter().map(|f| f.info.clone()).collect())
}

fn missing(reason: String) -> Error {
    Error::DriverMissing { backend: NAME, reason }
}

fn search() -> Result<Vec<Found>> {
    cl::load().map_err(missing)?;
    const WHERE: &str = "looked for drivers by the .icd files in /etc/OpenCL/vendors or in \
                         OCL_ICD_VENDORS";
    match cl::platforms() {
        Ok(1..) => {}
        // CL_PLATFORM_NOT_FOUND_KHR
        Ok(0) | Err(-1001) => {
            return Err(missing(format!(
                "there is an OpenCL loader, but no platform behind it ({WHERE})"
            )));
        }
        Err(e) => return Err(missing(format!("clGetPlatformIDs answers {e} ({WHERE})"))),
    }
    let platforms = core::get_platform_ids()
        .map_err(|e| missing(format!("clGetPlatformIDs fails: {}", reason(e))))?;
    let mut all = Vec::new();
    let mut why = Vec::new();
    for platform in platforms {
        let version = text(core::get_platform_info(platform, PlatformInfo::Version).ok());
        let name = text(core::get_platform_info(platform, PlatformInfo::Name).ok());
        match core::get_device_ids(platform, Some(DeviceType::ALL), None) {
            Ok(devices) => {
                for device in devices {
                    match describe(platform, device, (&name, &version)) {
                        Ok(found) => all.push(found),
                        Err(reason) => why.push(reason),
                    }
                }
            }
            Err(e) => why.push(format!("the platform {name} has no device: {}", reason(e))),
        }
    }
    for line in &why {
        log::info!("opencl: {line}");
    }
    // GPUs come before CPUs, since `opencl` alone means `opencl:0`. Otherwise the platforms' order.
    all.sort_by_key(|f: &Found| f.caps.cpu);
    for (ordinal, found) in all.iter_mut().enumerate() {
        found.info.id = format!("{NAME}:{ordinal}");
    }
    if all.is_empty() {
        return Err(missing(format!("no device can be used: {}", why.join("; "))));
    }
    Ok(all)
}

fn reason(e: core::Error) -> String {
    cl::Failure::new("", e).reason
}

fn text(answer: Option<impl ToString>) -> String {
    answer.map(|a| a.to_string().trim_matches(['\0', ' ']).to_string()).unwrap_or_default()
}

fn describe(
    platform: PlatformId,
    device: DeviceId,
    (platform_name, platform_version): (&str, &str),
) -> Result<Found, String> {
    let ask = |what| core::get_device_info(device, what).ok();
    let name = text(ask(Ask::Name));
    // Some embedded devices have no compiler.
    if matches!(ask(Ask::CompilerAvailable), Some(Answer::CompilerAvailable(false))) {
        return Err(format!("{name} has no compiler"));
    }
    if matches!(ask(Ask::Available), Some(Answer::Available(false))) {
        return Err(format!("{name} says that it is not available"));
    }
    let kind = match ask(Ask::Type) {
        Some(Answer::Type(kind)) => kind,
        _ => return Err(format!("{name} does not say what it is")),
    };
    let says = match ask(Ask::SingleFpConfig) {
        Some(Answer::SingleFpConfig(says)) => says,
        _ => DeviceFpConfig::empty(),
    };
    let says_subnormals = says_subnormals(&name, says, gemv_gpu::self_test_wanted())?;
    let mut caps = Caps::new(Language::OpenCl);
    if let Some(Answer::MaxComputeUnits(units)) = ask(Ask::MaxComputeUnits) {
        caps.units = units.max(1);
    }
    if let Some(Answer::MaxWorkGroupSize(most)) = ask(Ask::MaxWorkGroupSize) {
        caps.max_group = most.min(1 << 16) as u32;
    }
    if let Some(Answer::LocalMemSize(bytes)) = ask(Ask::LocalMemSize) {
        caps.local_bytes = bytes.min(1 << 30) as u32;
    }
    let extensions = text(ask(Ask::Extensions));
    let has = |name: &str| extensions.split_whitespace().any(|e| e == name);
    let driver = format!("{platform_name} {}", text(ask(Ask::DriverVersion)));
    caps.cpu = kind.contains(DeviceType::CPU) && !bugs::NOT_A_CPU.is_in(&driver);
    for bug in known_bugs().filter(|b| !b.driver.is_empty() && b.is_in(&driver)) {
        log::info!("opencl: {name}: {} {} ({})", bug.about, bug.workaround, bug.name);
    }
    caps.fp64 = has("cl_khr_fp64");
    caps.atomics64 = has("cl_khr_int64_base_atomics");
    let vendor = vendor(&text(ask(Ask::Vendor)), platform_name);
    // Only NVIDIA's own compiler takes the instruction that `col_tile.cl` has for it. NVIDIA defines what it means from compute
    // capability 7.0 on. On x86 an atomic operation orders memory, and the compiler moves nothing across it.
    let capability = (platform_name == "NVIDIA CUDA").then(|| cl::capability(device)).flatten();
    caps.ptx_90 = capability.is_some_and(|of| of >= 9) && has_ptx_8(&text(ask(Ask::DriverVersion)));
    caps.fences =
        capability.is_some_and(|of| of >= 7) || (caps.cpu && cfg!(target_arch = "x86_64"));
    let unified = matches!(ask(Ask::HostUnifiedMemory), Some(Answer::HostUnifiedMemory(true)));
    let largest = match ask(Ask::MaxMemAllocSize) {
        Some(Answer::MaxMemAllocSize(bytes)) => bytes,
        _ => u64::MAX,
    };

    let mut info = DeviceInfo::new(NAME);
    info.vendor = vendor;
    info.arch = arch(platform_name, &info.vendor);
    info.driver = driver;
    info.memory = match ask(Ask::GlobalMemSize) {
        Some(Answer::GlobalMemSize(bytes)) => Some(bytes),
        _ => None,
    };
    info.units = caps.units as usize;
    info.host = caps.cpu && unified;
    info.asynchronous = true;
    info.name = name;
    let asked =
        [Ask::Vendor, Ask::Version, Ask::DriverVersion, Ask::OpenclCVersion, Ask::Extensions];
    let asked = asked.into_iter().map(|what| text(ask(what)));
    let known = [platform_name, platform_version, &info.name].map(str::to_owned);
    let identity: Vec<String> = known.into_iter().chain(asked).collect();
    if gemv_gpu::self_test_wanted() {
        info.refused = Store::new(cache(), &identity).refusal();
    }
    let shares_memory = info.host;
    Ok(Found { platform, device, caps, largest, shares_memory, says_subnormals, identity, info })
}

/// Whether a device says that it keeps the subnormals of single precision, which the order of additions needs. One that
/// does not say so may keep them all the same: the self-test decides, and without it the device is left out. (Every
/// device of the full profile rounds `fma` correctly.)
fn says_subnormals(name: &str, says: DeviceFpConfig, self_test: bool) -> Result<bool, String> {
    if says.contains(DeviceFpConfig::DENORM | DeviceFpConfig::ROUND_TO_NEAREST) {
        return Ok(true);
    }
    let what = format!("{name} does not say that it keeps the subnormals of single precision");
    if self_test {
        log::info!("opencl: {what}: the self-test will tell");
        return Ok(false);
    }
    Err(format!("{what}, and the self-test is off"))
}

/// Whether NVIDIA's driver of this version knows PTX 8.0, as from CUDA 12.0 on: the first with all instructions of compute capability 9.0.
fn has_ptx_8(driver: &str) -> bool {
    driver.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|of| of >= 525)
}

/// One lower-case word.
fn vendor(vendor: &str, platform: &str) -> String {
    let all = format!("{vendor} {platform}").to_lowercase();
    let known = ["nvidia", "intel", "amd", "advanced micro", "arm", "apple", "qualcomm", "pocl"];
    match known.into_iter().find(|k| all.contains(k)) {
        Some("advanced micro") => "amd".into(),
        Some(known) => known.into(),
        None => all.split_whitespace().next().unwrap_or("unknown").into(),
    }
}

fn arch(platform: &str, vendor: &str) -> String {
    match platform {
        "Portable Computing Language" => "pocl".into(),
        "Oclgrind" => "oclgrind".into(),
        _ => vendor.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_before_cuda_12_lack_instructions() {
        for (driver, has) in
            [("580.159.04", true), ("525.60.13", true), ("520.61.05", false), ("", false)]
        {
            assert_eq!(has_ptx_8(driver), has, "{driver}");
        }
    }

    /// What a device says is a hint: rusticl does not say that it keeps subnormals, and some of its drivers do.
    #[test]
    fn a_device_that_does_not_speak_of_subnormals_is_tested() {
        let all = DeviceFpConfig::DENORM | DeviceFpConfig::ROUND_TO_NEAREST | DeviceFpConfig::FMA;
        for self_test in [true, false] {
            assert_eq!(says_subnormals("a", all, self_test), Ok(true));
        }
        for says in
            [DeviceFpConfig::ROUND_TO_NEAREST, DeviceFpConfig::DENORM, DeviceFpConfig::empty()]
        {
            assert_eq!(says_subnormals("a", says, true), Ok(false));
            let why = says_subnormals("a", says, false).unwrap_err();
            assert!(
                why.starts_with("a does not say") && why.ends_with("the self-test is off"),
                "{why}"
            );
        }
    }
}
