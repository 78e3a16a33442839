//! The runner that measures a device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::Instant;

use super::mesh::packed;
use super::problem::lens;
use super::search::{Failure, Runner, median};
use super::settings::{Mode, RunnerSettings};
use super::speed::{DeviceSpeed, Link, ReadBandwidth};
use super::workload::{AnyWorkload, Ready, Workload, resident};
use gemv_core::float_mode::in_default;
use gemv_core::{Desc, Device, Dtype, Element, Error, Layout, Params, Result, for_types};

/// At most this many parameters of the present tables are candidates, too.
const USED: usize = 12;

/// Measures products on a device: of resident operands, or of [host
/// arrays](RunnerSettings::arrays).
///
/// One pool of numbers lies on the device for the element type in use. Matrices and vectors are
/// windows of it, so nothing is uploaded between problems.
///
/// ```
/// use gemv_lab::tuner::{Failure, DeviceRunner, RunnerSettings, Runner};
/// use gemv_core::{Desc, Dtype, Engine};
///
/// let device = Engine::new(None).device("reference")?;
/// let mut settings = RunnerSettings::default();
/// (settings.cold_bytes, settings.max_bytes) = (1 << 16, 1 << 16);
/// let mut runner = DeviceRunner::new(&device, settings);
///
/// let desc = Desc::new(Dtype::F32, 16, 64, (64, 1), 0);
/// let params = runner.candidates(&desc)[0];
/// runner.check(&desc, &params)?; // the right bits, and nothing else written
/// assert!(runner.measure(&desc, &params)? > 0.0); // seconds
/// # Ok::<(), Failure>(())
/// ```
#[derive(Debug)]
pub struct DeviceRunner {
    device: Device,
    settings: RunnerSettings,
    workload: Option<(Dtype, Box<dyn AnyWorkload>)>,
    read_bandwidth: Option<Arc<ReadBandwidth>>,
    reader: Option<Reader>,
}

/// What measures the read bandwidth between products.
#[derive(Debug)]
struct Reader {
    workload: Workload<f32>,
    /// The fastest kernel for this many bytes.
    best: Option<(u64, Params)>,
}

impl DeviceRunner {
    /// A runner for this device. Nothing is allocated before something is measured.
    pub fn new(device: &Device, mut settings: RunnerSettings) -> DeviceRunner {
        settings.arrays &= device.info().host;
        DeviceRunner {
            device: device.clone(),
            settings,
            workload: None,
            read_bandwidth: None,
            reader: None,
        }
    }

    /// Seconds that reading as many bytes as this problem moves takes at this moment: one batch of the
    /// fastest kernel that only reads, with the caches as for the problem. `None` if there is none.
    ///
    /// On a machine that is shared, bandwidth changes from minute to minute. A benchmark calls this
    /// between its products.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn read_again(&mut self, desc: &Desc) -> Result<Option<f64>> {
        let (device, modes) = (self.device.clone(), self.modes(desc));
        let passes = device.backend().read_params();
        if passes.is_empty() {
            return Ok(None);
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                let settings = RunnerSettings { arrays: false, ..self.settings.clone() };
                let workload = Workload::new(&device, &settings)?;
                none.insert(Reader { workload, best: None })
            }
        };
        let elements = (desc.bytes() / 4).max(1) as usize;
        let n = elements.min(1024);
        let read =
            packed(Dtype::F32, Layout::Row, (elements / n).min(reader.workload.len() / n), n);
        let mut measure = |params: &Params| -> Result<f64> {
            device.backend().fits(&read, params)?;
            let one = |&mode: &Mode| reader.workload.measure(device.backend(), &read, params, mode);
            let times: Result<Vec<f64>, Failure> = modes.iter().map(one).collect();
            Ok(geomean(times.map_err(|why| why.into_error(&device))?))
        };
        let best = match reader.best {
            Some((bytes, params)) if bytes == desc.bytes() => params,
            _ => {
                let mut fastest = (f64::INFINITY, passes[0]);
                for params in passes {
                    // The first batch of all compiles.
                    measure(&params)?;
                    let seconds = measure(&params)?;
                    if seconds < fastest.0 {
                        fastest = (seconds, params);
                    }
                }
                fastest.1
            }
        };
        let seconds = measure(&best)?;
        reader.best = Some((desc.bytes(), best));
        Ok(Some(seconds * desc.bytes() as f64 / (4 * read.m * read.n) as f64))
    }

    /// The modes in which a problem is measured: its time is their geometric mean.
    fn modes(&self, desc: &Desc) -> &'static [Mode] {
        let bytes = desc.bytes();
        match self.settings.mode {
            Mode::Cold if bytes <= self.settings.warm_to => &[Mode::Warm],
            Mode::Cold if bytes <= self.settings.both_to => &[Mode::Cold, Mode::Warm],
            Mode::Cold => &[Mode::Cold],
            Mode::Warm => &[Mode::Warm],
        }
    }

    fn workload(&mut self, dtype: Dtype) -> Result<&mut dyn AnyWorkload> {
        if self.workload.as_ref().is_none_or(|b| b.0 != dtype) {
            // One pool at a time: the old one is freed before the next is allocated.
            self.workload = None;
            let (device, settings) = (&self.device, &self.settings);
            let workload: Box<dyn AnyWorkload> = for_types!((dtype, dtype), T, _V => Box::new(Workload::<T>::new(device, settings)?));
            self.workload = Some((dtype, workload));
        }
        Ok(&mut *self.workload.as_mut().expect("made above").1)
    }

    /// Measures the device itself: read bandwidth by size, launch latency and the host link.
    /// From then on [`read_seconds`](Runner::read_seconds) is known.
    ///
    /// ```
    /// use gemv_lab::tuner::{DeviceRunner, RunnerSettings};
    /// use gemv_core::Engine;
    /// let device = Engine::new(None).device("reference")?;
    /// let mut settings = RunnerSettings::default();
    /// (settings.cold_bytes, settings.max_bytes) = (1 << 16, 1 << 16);
    /// let speed = DeviceRunner::new(&device, settings).device_speed()?;
    /// assert!(speed.launch > 0.0 && speed.round_trip > 0.0); // seconds
    /// assert_eq!(speed.link, None); // its memory is the host's
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn device_speed(&mut self) -> Result<DeviceSpeed> {
        let device = self.device.clone();
        let backend = device.backend();
        let read_bandwidth = self.workload(Dtype::F32)?.read_bandwidth(backend)?;
        let known = !read_bandwidth.points.is_empty();
        self.read_bandwidth = known.then(|| Arc::new(read_bandwidth.clone()));
        let link = if device.info().host { None } else { Some(link(&device)?) };
        // The smallest product: the cost of a launch in a queue, and with the round
        // trip.
        let desc = packed(Dtype::F32, Layout::Row, 1, 2);
        let params = device.choose(&desc)?;
        let mut tiny = || self.measure(&desc, &params).map_err(|why| why.into_error(&device));
        let launch = median(&(0..5).map(|_| tiny()).collect::<Result<Vec<_>>>()?);
        let round_trip = round_trip(&device)?;
        Ok(DeviceSpeed { launch, round_trip, link, read_bandwidth })
    }
}

impl Failure {
    fn into_error(self, device: &Device) -> Error {
        match self {
            Failure::Refused(e) => e,
            other => Error::Device {
                device: device.info().id.clone(),
                call: "a product",
                reason: other.to_string(),
            },
        }
    }
}

impl Runner for DeviceRunner {
    /// The backend's, and what the device's tables say for this shape and those near it. So
    /// a tuned table is never worse than the one that it replaces for want of a candidate.
    fn candidates(&mut self, desc: &Desc) -> Vec<Params> {
        let backend = self.device.backend();
        let mut all = backend.candidates(desc);
        let rows = self.device.tables().iter().flat_map(|table| table.nearest(desc));
        let mut used: Vec<Params> = Vec::new();
        for params in rows.filter_map(|row| row.choice(&all)) {
            let fresh = params.keeps_order() && !used.contains(&params);
            if fresh && backend.fits(desc, &params).is_ok() {
                used.push(params);
            }
            if used.len() == USED {
                break;
            }
        }
        used.retain(|params| !all.contains(params));
        all.append(&mut used);
        all
    }

    fn launch_id(&mut self, desc: &Desc, params: &Params) -> Option<u64> {
        let backend = self.device.backend();
        backend.fits(desc, params).is_ok().then(|| backend.launch_id(desc, params))
    }

    /// Runs each of them once, on the smallest problem that has it, on every core: this
    /// compiles the programs in parallel. A failure here is reported when it fails again
    /// under measurement.
    fn prepare(&mut self, all: &[(Desc, Params)]) {
        let mut smallest: BTreeMap<(Dtype, Params), Desc> = BTreeMap::new();
        for (desc, params) in all {
            let known = smallest.entry((desc.dtype, *params)).or_insert(*desc);
            if desc.bytes() < known.bytes() {
                *known = *desc;
            }
        }
        let jobs: Vec<(Desc, Params)> = smallest.into_iter().map(|(k, d)| (d, k.1)).collect();
        let next = AtomicUsize::new(0);
        let worker = || {
            while let Some((desc, params)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let types = (desc.dtype, desc.dtype);
                let done = for_types!(types, T, _V => once::<T>(&self.device, desc, params));
                if let Err(why) = done {
                    log::debug!("{params} on {desc}: {why}");
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |p| p.get());
        std::thread::scope(|scope| {
            let start = |_: &usize| Builder::new().spawn_scoped(scope, worker).is_ok();
            if (0..threads).take_while(start).count() == 0 {
                // None can be made.
                worker();
            }
        });
    }

    fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
        let device = self.device.clone();
        device.backend().fits(desc, params)?;
        let modes = self.modes(desc);
        let workload = self.workload(desc.dtype)?;
        let mut one = |&mode: &Mode| workload.measure(device.backend(), desc, params, mode);
        Ok(geomean(modes.iter().map(&mut one).collect::<Result<Vec<_>, _>>()?))
    }

    fn check(&mut self, desc: &Desc, params: &Params) -> Result<(), Failure> {
        let device = self.device.clone();
        let workload = self.workload(desc.dtype)?;
        in_default(|| workload.check(&device, desc, params))
    }

    fn revoked(&mut self) -> Vec<(Params, Failure)> {
        self.workload.as_mut().map_or_else(Vec::new, |b| b.1.revoked())
    }

    fn read_seconds(&mut self, desc: &Desc) -> Option<f64> {
        let read = self.read_bandwidth.as_ref()?;
        let one = |&mode: &Mode| read.seconds(desc.bytes(), mode == Mode::Warm);
        self.modes(desc).iter().map(one).collect::<Option<Vec<_>>>().map(geomean)
    }
}

fn geomean(times: Vec<f64>) -> f64 {
    match times[..] {
        [one] => one,
        _ => (times.iter().map(|t| t.ln()).sum::<f64>() / times.len() as f64).exp(),
    }
}

/// One product of zeros.
fn once<T: Element>(device: &Device, desc: &Desc, params: &Params) -> Result<()> {
    let [a, x, y] = lens(desc);
    let pool = device.zeros::<T, _>(a.max(x))?;
    let mut y = device.zeros::<T, _>(y)?;
    let (memory, ready) = (pool.window().memory, &mut Ready::new(params));
    resident(device.backend(), desc, ready, memory, (0, 0), &mut y)
}

/// Measures the link between host and device.
fn link(device: &Device) -> Result<Link> {
    let backend = device.backend();
    let best = |transfer: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        // The host's clock: a backend may record and replay kernels, but not copies.
        let mut once = || -> Result<f64> {
            backend.synchronize()?;
            let start = Instant::now();
            transfer()?;
            backend.synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        once()?;
        Ok(median(&(0..5).map(|_| once()).collect::<Result<Vec<_>>>()?))
    };
    let host = vec![0f32; 16 << 20];
    let one = device.vector(ndarray::aview1(&host[..16]))?;
    let all = device.vector(ndarray::aview1(&host))?;
    let bytes = (host.len() * 4) as f64;
    let up_latency = best(&mut || device.vector(ndarray::aview1(&host[..16])).map(drop))?;
    let up = best(&mut || device.vector(ndarray::aview1(&host)).map(drop))?;
    let down_latency = best(&mut || one.download().map(drop))?;
    let down = best(&mut || all.download().map(drop))?;
    Ok(Link {
        up_latency,
        up: bytes / (up - up_latency).max(1e-9),
        down_latency,
        down: bytes / (down - down_latency).max(1e-9),
    })
}

/// Seconds from asking for the smallest product of resident operands to having it on the host.
fn round_trip(device: &Device) -> Result<f64> {
    let a = device.vector(ndarray::aview1(&[1f32; 16]))?.as_matrix((1, 16));
    let x = device.vector(ndarray::aview1(&[1f32; 16]))?;
    let mut y = [0f32];
    let mut once = || -> Result<f64> {
        let start = Instant::now();
        device.gemv(1.0, &a, &x, 0.0, ndarray::ArrayViewMut1::from(&mut y[..]))?;
        Ok(start.elapsed().as_secs_f64())
    };
    once()?;
    Ok(median(&(0..51).map(|_| once()).collect::<Result<Vec<_>>>()?))
}
