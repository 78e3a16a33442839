//! Devices by name, and what is told of them.

use std::collections::BTreeMap;

use gemv::unstable::KernelInfo;
use gemv::{Device, DeviceInfo, Engine, Error};

use crate::parse::did_you_mean;

/// The device of this name, or the default one.
///
/// # Errors
/// The library's sentence, with the name that may have been meant.
pub fn open_device(name: Option<&str>) -> anyhow::Result<Device> {
    let engine = Engine::global();
    let Some(name) = name else { return Ok(engine.default_device()?) };
    engine.device(name).map_err(|why| {
        if !matches!(why, Error::NoDevice { .. }) {
            return why.into();
        }
        let ids: Vec<String> = engine.devices().into_iter().map(|line| line.id).collect();
        let backends = ids.iter().filter_map(|id| id.split(':').next());
        let mean = did_you_mean(name, ids.iter().map(|id| &**id).chain(backends));
        anyhow::anyhow!("{why}{mean}")
    })
}

/// A device, as JSON.
pub fn device_json(info: &DeviceInfo) -> serde_json::Value {
    serde_json::json!({
        "id": info.id,
        "name": info.name,
        "arch": info.arch,
        "vendor": info.vendor,
        "driver": info.driver,
        "memory": info.memory,
        "units": info.units,
        "host": info.host,
    })
}

/// The kernels of each backend, by its name: of the first device that opens, or, where none is there,
/// what the backend can say without one.
pub fn by_backend(engine: &Engine) -> BTreeMap<String, Vec<KernelInfo>> {
    let mut all: BTreeMap<String, Vec<KernelInfo>> = BTreeMap::new();
    for line in engine.devices() {
        let name = line.id.split(':').next().unwrap_or_default().to_owned();
        if line.found.is_ok()
            && !all.contains_key(&name)
            && let Ok(device) = engine.device(&line.id)
        {
            all.insert(name, device.backend().kernels());
        }
    }
    #[cfg(feature = "cuda")]
    all.entry("cuda".into()).or_insert_with(|| gemv::cuda::infos().collect());
    all.retain(|_, kernels| !kernels.is_empty());
    all
}
