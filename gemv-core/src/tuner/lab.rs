//! The runner that measures a device.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use ndarray::{ArrayView1, ArrayView2, ShapeBuilder};

use super::mesh::packed;
use super::search::{Failure, Runner, median};
use crate::profile::{Link, Profile, Roof, RoofPoint};
use crate::{
    Accumulator, Backend, Desc, Device, DeviceMatrix, DeviceVector, Dtype, Element, Error, Job,
    Layout, MatrixRef, Params, Result, VectorMut, VectorRef, reference,
};

/// What the caches hold when a product starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mode {
    /// Nothing of it: each product takes another matrix and another x, and enough is read before
    /// one comes again.
    #[default]
    Cold,
    /// What fits: each product takes the same operands.
    Warm,
}

impl Mode {
    /// `cold` or `warm`.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Cold => "cold",
            Mode::Warm => "warm",
        }
    }
}

/// How a [`Lab`] measures.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LabSettings {
    /// What the caches hold.
    pub mode: Mode,
    /// Bytes that are read before an operand comes again: several times the last cache.
    pub cold_bytes: u64,
    /// The largest matrix, in bytes.
    pub max_bytes: u64,
    /// Seconds that a batch takes, about.
    pub batch: f64,
    /// Products of a batch at most.
    pub products: usize,
}

impl Default for LabSettings {
    fn default() -> LabSettings {
        LabSettings {
            mode: Mode::Cold,
            cold_bytes: 256 << 20,
            max_bytes: 1 << 30,
            batch: 200e-6,
            products: 128,
        }
    }
}

/// Measures products of resident operands on a device.
///
/// One block of numbers lies on the device for each element type in use; matrices and vectors are
/// windows of it, so that nothing is uploaded between problems.
#[derive(Debug)]
pub struct Lab {
    device: Device,
    settings: LabSettings,
    bench: Option<(Dtype, Box<dyn AnyBench>)>,
    roof: Option<Arc<Roof>>,
    classic: bool,
}

impl Lab {
    /// A lab for this device. Nothing is allocated before something is measured.
    pub fn new(device: &Device, settings: LabSettings) -> Lab {
        Lab { device: device.clone(), settings, bench: None, roof: None, classic: false }
    }

    /// The same lab, whose candidates are the backend's [published
    /// kernels](crate::Backend::classic) in place of its own.
    #[must_use]
    pub fn classic(mut self) -> Lab {
        self.classic = true;
        self
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the caches hold from now on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.settings.mode = mode;
    }

    fn bench(&mut self, dtype: Dtype) -> Result<&mut dyn AnyBench> {
        if self.bench.as_ref().is_none_or(|b| b.0 != dtype) {
            // One block at a time: the old one is freed before the next is asked for.
            self.bench = None;
            let (device, settings) = (&self.device, &self.settings);
            let bench: Box<dyn AnyBench> = match dtype {
                Dtype::F32 => Box::new(Bench::<f32>::new(device, settings)?),
                Dtype::F64 => Box::new(Bench::<f64>::new(device, settings)?),
                Dtype::F16 => Box::new(Bench::<half::f16>::new(device, settings)?),
                Dtype::Bf16 => Box::new(Bench::<half::bf16>::new(device, settings)?),
                Dtype::C32 => Box::new(Bench::<num_complex::Complex<f32>>::new(device, settings)?),
                Dtype::C64 => Box::new(Bench::<num_complex::Complex<f64>>::new(device, settings)?),
            };
            self.bench = Some((dtype, bench));
        }
        Ok(&mut *self.bench.as_mut().expect("made above").1)
    }

    /// Measures the device itself: read bandwidth by size, launch latency and the host link.
    /// From then on [`floor`](Runner::floor) knows the roof.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn profile(&mut self) -> Result<Profile> {
        let device = self.device.clone();
        let backend = device.backend();
        let info = device.info();
        let roof = self.bench(Dtype::F32)?.roof(backend)?;
        self.roof = (!roof.points.is_empty()).then(|| Arc::new(roof.clone()));
        let link = if info.host { None } else { Some(link(&device)?) };
        // The smallest product: what a launch costs in a queue, and with the way there and back.
        let desc = packed(Dtype::F32, Layout::Row, 1, 2);
        let params = device.choose(&desc)?;
        let mut tiny = || self.measure(&desc, &params).map_err(|why| why.into_error(&device));
        let launch = median(&(0..5).map(|_| tiny()).collect::<Result<Vec<_>>>()?);
        let round_trip = round_trip(&device)?;
        let (name, driver) = (info.name.clone(), info.driver.clone());
        let fingerprint = backend.fingerprint();
        Ok(Profile { name, driver, fingerprint, launch, round_trip, link, roof, products: vec![] })
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

impl Runner for Lab {
    fn candidates(&mut self, desc: &Desc) -> Vec<Params> {
        let backend = self.device.backend();
        if self.classic { backend.classic(desc) } else { backend.candidates(desc) }
    }

    fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
        let device = self.device.clone();
        device.backend().fits(desc, params)?;
        let mode = self.settings.mode;
        self.bench(desc.dtype)?.measure(device.backend(), desc, params, mode)
    }

    fn check(&mut self, desc: &Desc, params: &Params) -> Result<(), Failure> {
        let device = self.device.clone();
        self.bench(desc.dtype)?.check(&device, desc, params)
    }

    fn revoked(&mut self) -> Vec<(Params, Failure)> {
        self.bench.as_mut().map_or_else(Vec::new, |b| b.1.revoked())
    }

    fn floor(&mut self, desc: &Desc) -> Option<f64> {
        self.roof.as_ref()?.seconds(desc.bytes(), self.settings.mode == Mode::Warm)
    }
}

/// A [`Bench`] of any element type.
trait AnyBench: Debug + Send {
    fn measure(
        &mut self,
        backend: &dyn Backend,
        desc: &Desc,
        params: &Params,
        mode: Mode,
    ) -> Result<f64, Failure>;
    fn check(&mut self, device: &Device, desc: &Desc, params: &Params) -> Result<(), Failure>;
    fn revoked(&mut self) -> Vec<(Params, Failure)>;
    fn roof(&mut self, backend: &dyn Backend) -> Result<Roof>;
}

#[derive(Debug)]
struct Bench<T: Element> {
    settings: LabSettings,
    /// What lies on the device, on the host: the reference reads it.
    host: Vec<T>,
    pool: DeviceVector<T>,
    y: DeviceVector<T>,
    /// Where the next matrix starts.
    cursor: usize,
    of: Option<Desc>,
    /// Seconds of a product, to size its next batch; of the problem `of`.
    estimates: HashMap<Params, f64>,
    truth: Option<Truth<T>>,
    passed: Vec<Params>,
    revoked: Vec<(Params, Failure)>,
}

/// What a result must be.
#[derive(Debug)]
struct Truth<T> {
    /// Rows that the reference computed.
    rows: Vec<(usize, T)>,
    /// All rows, as a candidate computed them that agrees in `rows`.
    all: Option<Vec<T>>,
}

/// Elements that the reference multiplies for a problem; what is larger is checked in some rows,
/// and in the others by agreement.
const REFERENCE_BUDGET: usize = 1 << 18;
/// Entries before and after `y` that must stay as they are.
const MARGIN: usize = 64;

/// A number in -1 .. 1 for an index, the same on every machine.
fn noise(index: usize) -> f64 {
    let mut z = (index as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn number<T: Element>(index: usize) -> T {
    T::narrow(T::Acc::from_parts(noise(2 * index), noise(2 * index + 1)))
}

impl<T: Element> Bench<T> {
    fn new(device: &Device, settings: &LabSettings) -> Result<Bench<T>> {
        let bytes = settings.cold_bytes.max(settings.max_bytes).max(1 << 20);
        let len = (bytes / T::DTYPE.bytes() as u64) as usize;
        // A prime period: no two rows of a matrix are alike by accident.
        let period: Vec<T> = (0..len.min(1_048_573)).map(number).collect();
        let mut host = Vec::with_capacity(len);
        while host.len() < len {
            host.extend_from_slice(&period[..period.len().min(len - host.len())]);
        }
        let pool = device.vector(&ndarray::aview1(&host))?;
        Ok(Bench {
            settings: settings.clone(),
            host,
            pool,
            y: device.zeros(0)?,
            cursor: 0,
            of: None,
            estimates: HashMap::new(),
            truth: None,
            passed: Vec::new(),
            revoked: Vec::new(),
        })
    }

    fn prepare(&mut self, desc: &Desc) -> Result<()> {
        if self.of == Some(*desc) {
            return Ok(());
        }
        let needed = desc.bytes();
        let have = (self.host.len() * T::DTYPE.bytes()) as u64;
        if (desc.m * desc.n).max(desc.n) > self.host.len() {
            let device = self.pool.device().info().id.clone();
            return Err(Error::OutOfMemory { device, asked: needed, free: Some(have) });
        }
        // With room on both sides: what writes outside of y is found by the check, not by a crash.
        let full = self.pool.device().zeros(desc.m + 2 * MARGIN)?;
        self.y = full.step(MARGIN..MARGIN + desc.m, 1);
        (self.of, self.truth) = (Some(*desc), None);
        self.estimates.clear();
        self.passed.clear();
        self.revoked.clear();
        Ok(())
    }

    /// Operands for one product: A at the cursor, x half the pool away. Both start on a cache
    /// line.
    fn operands(&mut self, desc: &Desc, mode: Mode) -> (DeviceMatrix<T>, DeviceVector<T>) {
        let line = 64 / T::DTYPE.bytes();
        let len = desc.m * desc.n;
        if self.cursor + len > self.host.len() || mode == Mode::Warm {
            self.cursor = 0;
        }
        let far = (self.cursor + self.host.len() / 2) % self.host.len();
        let far = (far / line * line).min((self.host.len() - desc.n) / line * line);
        let a = self.pool.step(self.cursor..self.cursor + len, 1);
        let x = self.pool.step(far..far + desc.n, 1);
        self.cursor += len.div_ceil(line).max(1) * line;
        (a.as_matrix((desc.m, desc.n), desc.layout), x)
    }

    fn view(&self, desc: &Desc) -> ArrayView2<'_, T> {
        let (m, n) = (desc.m, desc.n);
        let strides = if desc.layout == Layout::Col { (1, m) } else { (n, 1) };
        ArrayView2::from_shape((m, n).strides(strides), &self.host[..m * n])
            .expect("checked when the problem was prepared")
    }

    /// What row `i` must be. A and x both start at the pool's first entry.
    fn row(&self, desc: &Desc, i: usize) -> T {
        let x = ArrayView1::from(&self.host[..desc.n]);
        T::narrow(reference::dot(self.view(desc).row(i), x, false))
    }

    /// For kernels of another order: the exact value, about, and how far off it may be.
    fn bound(&self, desc: &Desc, i: usize) -> ((f64, f64), f64) {
        let (mut sum, mut size) = ((0.0, 0.0), 0.0);
        for (a, x) in self.view(desc).row(i).iter().zip(&self.host) {
            let (p, q) = (a.widen().parts(), x.widen().parts());
            sum.0 += p.0 * q.0 - p.1 * q.1;
            sum.1 += p.0 * q.1 + p.1 * q.0;
            size += (p.0.abs() + p.1.abs()) * (q.0.abs() + q.1.abs());
        }
        let acc = T::DTYPE.acc_bytes() / if T::DTYPE.is_complex() { 2 } else { 1 };
        let element = T::DTYPE.bytes() / if T::DTYPE.is_complex() { 2 } else { 1 };
        // The last term is the rounding to a narrower y.
        let narrow = if element == 2 { 1.0 / 256.0 } else { 0.0 };
        let unit = if acc == 4 { f64::from(f32::EPSILON) } else { f64::EPSILON };
        (sum, (desc.n as f64 + 16.0) * unit * size + narrow * sum.0.abs().max(sum.1.abs()))
    }

    /// Rows that the reference computes: the first, the last, and some in between.
    fn sample(desc: &Desc) -> Vec<usize> {
        let count = (REFERENCE_BUDGET / desc.n.max(1)).clamp(2, desc.m.max(2));
        if count >= desc.m {
            return (0..desc.m).collect();
        }
        let step = desc.m as f64 / count as f64;
        let jitter = |k: usize| (k as f64 + 0.5 + 0.49 * noise(k)) * step;
        let mut rows: Vec<usize> =
            (0..count).map(|k| (jitter(k) as usize).min(desc.m - 1)).collect();
        rows[0] = 0;
        rows[count - 1] = desc.m - 1;
        rows
    }

    fn wrong(row: usize, got: T, want: impl Debug) -> Failure {
        Failure::Wrong { row, got: format!("{got:?}"), want: format!("{want:?}") }
    }

    fn compare(&mut self, desc: &Desc, params: &Params, y: Vec<T>) -> Result<(), Failure> {
        if !params.keeps_order() {
            for i in Self::sample(desc) {
                let ((re, im), bound) = self.bound(desc, i);
                let got = y[i].widen().parts();
                let off = (got.0 - re).abs().max((got.1 - im).abs());
                if off.is_nan() || off > bound {
                    return Err(Self::wrong(i, y[i], format!("{re}+{im}i within {bound:e}")));
                }
            }
            return Ok(());
        }
        let truth = self.truth.take().unwrap_or_else(|| Truth {
            rows: Self::sample(desc).into_iter().map(|i| (i, self.row(desc, i))).collect(),
            all: None,
        });
        let known = truth.rows.iter().find(|(i, want)| y[*i].bits() != want.bits());
        let mut verdict = match known {
            Some(&(i, want)) => Err(Self::wrong(i, y[i], want)),
            None => Ok(()),
        };
        let mut all = truth.all;
        if verdict.is_ok() {
            // Where two that agree in the sample differ, the reference says who is right.
            let differ = all
                .as_ref()
                .and_then(|all| all.iter().zip(&y).position(|(a, b)| a.bits() != b.bits()));
            match (differ, &all) {
                (Some(i), Some(old)) => {
                    let want = self.row(desc, i);
                    if old[i].bits() != want.bits() {
                        let why = Self::wrong(i, old[i], want);
                        self.revoked.extend(self.passed.drain(..).map(|p| (p, why.clone())));
                        all = Some(y.clone());
                    }
                    if y[i].bits() != want.bits() {
                        verdict = Err(Self::wrong(i, y[i], want));
                        // Both were wrong: what is right is not known again.
                        all = all.filter(|a| a[i].bits() == want.bits());
                    }
                }
                _ => all = Some(all.unwrap_or(y)),
            }
        }
        self.truth = Some(Truth { rows: truth.rows, all });
        if verdict.is_ok() {
            self.passed.push(*params);
        }
        verdict
    }
}

impl<T: Element> AnyBench for Bench<T> {
    fn measure(
        &mut self,
        backend: &dyn Backend,
        desc: &Desc,
        params: &Params,
        mode: Mode,
    ) -> Result<f64, Failure> {
        self.prepare(desc)?;
        let products = match self.estimates.get(params) {
            Some(seconds) => (self.settings.batch / seconds.max(1e-9)) as usize,
            // The first product of all builds the kernel; nothing of it is timed.
            None => {
                self.batch(backend, desc, params, mode, 1, false)?;
                1
            }
        };
        let products = products.clamp(1, self.settings.products);
        let mut seconds = self.batch(backend, desc, params, mode, products, true)?;
        if products == 1 && seconds < 0.2 * self.settings.batch {
            // The clock's own cost was most of it.
            let products = (0.5 * self.settings.batch / seconds) as usize;
            let products = products.clamp(1, self.settings.products);
            seconds = self.batch(backend, desc, params, mode, products, true)?;
        }
        self.estimates.insert(*params, seconds);
        Ok(seconds)
    }

    fn check(&mut self, device: &Device, desc: &Desc, params: &Params) -> Result<(), Failure> {
        self.prepare(desc)?;
        let len = desc.m * desc.n;
        let a = self.pool.step(0..len, 1).as_matrix((desc.m, desc.n), desc.layout);
        let x = self.pool.step(0..desc.n, 1);
        // NaN where the result goes, and a value of no product around it.
        let canary = T::narrow(T::Acc::from_parts(77.25, -77.25));
        let nan = T::narrow(T::Acc::from_parts(f64::NAN, f64::NAN));
        let mut full = vec![canary; desc.m + 2 * MARGIN];
        full[MARGIN..][..desc.m].fill(nan);
        let mut y = device.vector(&ndarray::aview1(&full))?;
        y = y.step(MARGIN..MARGIN + desc.m, 1);
        device.gemv_as(params, T::Acc::ONE, &a, &x, T::Acc::ZERO, &mut y)?;
        device.backend().download(y.memory(), 0, T::any_slice_mut(&mut full))?;
        let outside = |k: &usize| !(MARGIN..MARGIN + desc.m).contains(k);
        let hit = (0..full.len()).filter(outside).find(|&k| full[k].bits() != canary.bits());
        if let Some(k) = hit {
            return Err(Failure::Canary(k as i64 - MARGIN as i64));
        }
        self.compare(desc, params, full[MARGIN..][..desc.m].to_vec())
    }

    fn revoked(&mut self) -> Vec<(Params, Failure)> {
        std::mem::take(&mut self.revoked)
    }

    fn roof(&mut self, backend: &dyn Backend) -> Result<Roof> {
        let mut roof = Roof { points: Vec::new() };
        let passes = backend.roof();
        let mut bytes = 4096;
        while !passes.is_empty() && bytes <= self.host.len() * T::DTYPE.bytes() {
            let n = 1024.min(bytes / T::DTYPE.bytes());
            let desc = packed(T::DTYPE, Layout::Row, bytes / T::DTYPE.bytes() / n, n);
            let mut best = |mode: Mode| -> Result<f64> {
                self.prepare(&desc)?;
                // Estimates are of a mode.
                self.estimates.clear();
                let mut fastest = f64::INFINITY;
                for pass in &passes {
                    backend.fits(&desc, pass)?;
                    let times: Result<Vec<f64>, Failure> =
                        (0..5).map(|_| self.measure(backend, &desc, pass, mode)).collect();
                    match times {
                        Ok(times) => fastest = fastest.min(median(&times)),
                        Err(Failure::Refused(why)) => return Err(why),
                        Err(_) => unreachable!("a measurement does not look at results"),
                    }
                }
                Ok(fastest)
            };
            let (cold, warm) = (best(Mode::Cold)?, best(Mode::Warm)?);
            // The operands of a pass are those of a product: A is what is read.
            roof.points.push(RoofPoint { bytes: bytes as u64, cold, warm });
            bytes *= 2;
        }
        // A larger block is not read faster than a smaller one: what says so is noise.
        for k in (1..roof.points.len()).rev() {
            let next = roof.points[k];
            let point = &mut roof.points[k - 1];
            (point.cold, point.warm) = (point.cold.min(next.cold), point.warm.min(next.warm));
        }
        Ok(roof)
    }
}

impl<T: Element> Bench<T> {
    /// Seconds of one product in a batch.
    fn batch(
        &mut self,
        backend: &dyn Backend,
        desc: &Desc,
        params: &Params,
        mode: Mode,
        products: usize,
        timed: bool,
    ) -> Result<f64> {
        let operands: Vec<_> = (0..products).map(|_| self.operands(desc, mode)).collect();
        let y = &mut self.y;
        let mut work = || {
            operands.iter().try_for_each(|(a, x)| {
                let job = Job {
                    alpha: T::Acc::ONE,
                    a: MatrixRef::Device(a),
                    conj: false,
                    x: VectorRef::Device(x),
                    beta: T::Acc::ZERO,
                    y: VectorMut::Device(y),
                };
                backend.gemv(T::any_job(job), params)
            })
        };
        if !timed {
            work()?;
            backend.synchronize()?;
            return Ok(f64::INFINITY);
        }
        Ok(backend.timed(&mut work)?.as_secs_f64() / products as f64)
    }
}

/// What the way between host and device costs.
fn link(device: &Device) -> Result<Link> {
    let backend = device.backend();
    let best = |work: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        // The host's clock: copies are not what a backend may record and replay.
        let mut once = || -> Result<f64> {
            backend.synchronize()?;
            let start = Instant::now();
            work()?;
            backend.synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        once()?;
        Ok(median(&(0..5).map(|_| once()).collect::<Result<Vec<_>>>()?))
    };
    let host = vec![0f32; 16 << 20];
    let one = device.vector(&ndarray::aview1(&host[..16]))?;
    let all = device.vector(&ndarray::aview1(&host))?;
    let bytes = (host.len() * 4) as f64;
    let up_latency = best(&mut || device.vector(&ndarray::aview1(&host[..16])).map(drop))?;
    let up = best(&mut || device.vector(&ndarray::aview1(&host)).map(drop))?;
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
    let a = device.vector(&ndarray::aview1(&[1f32; 16]))?.as_matrix((1, 16), Layout::Row);
    let x = device.vector(&ndarray::aview1(&[1f32; 16]))?;
    let mut y = [0f32];
    let mut once = || -> Result<f64> {
        let start = Instant::now();
        device.gemv(1.0, &a, &x, 0.0, ndarray::ArrayViewMut1::from(&mut y[..]))?;
        Ok(start.elapsed().as_secs_f64())
    };
    once()?;
    Ok(median(&(0..51).map(|_| once()).collect::<Result<Vec<_>>>()?))
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::search::search;
    use super::*;
    use crate::{AnyJob, AnySlice, AnySliceMut, Backend, BuiltinTable, DeviceInfo, Memory, Result};

    /// A device of f32 whose kernels are the reference with one fault each.
    #[derive(Debug, Default)]
    struct Faulty {
        info: DeviceInfo,
        /// Distinct matrices that were multiplied, by where they start.
        starts: std::sync::Mutex<Vec<usize>>,
        reads: AtomicUsize,
    }

    #[derive(Debug)]
    struct Block(Vec<f32>);

    impl Memory for Block {
        fn len(&self) -> usize {
            self.0.len()
        }
    }

    fn block(memory: &dyn Memory) -> &[f32] {
        let memory: &dyn Any = memory;
        &memory.downcast_ref::<Block>().unwrap().0
    }

    impl Backend for Faulty {
        fn device(&self) -> &DeviceInfo {
            &self.info
        }
        fn accepts(&self, _: &Desc) -> Result<()> {
            Ok(())
        }
        fn candidates(&self, _: &Desc) -> Vec<Params> {
            ["flip", "early", "good", "spill", "before", "leave"].map(Params::new).to_vec()
        }
        fn fits(&self, _: &Desc, _: &Params) -> Result<()> {
            Ok(())
        }
        fn classic(&self, _: &Desc) -> Vec<Params> {
            vec![Params::new("classic-good"), Params::new("classic-far")]
        }
        fn tables(&self) -> Vec<BuiltinTable> {
            vec![BuiltinTable { name: "faulty", text: "* * : good" }]
        }
        fn upload(&self, data: AnySlice<'_>) -> Result<Box<dyn Memory>> {
            let AnySlice::F32(data) = data else { unreachable!() };
            Ok(Box::new(Block(data.to_vec())))
        }
        fn alloc(&self, _: Dtype, len: usize) -> Result<Box<dyn Memory>> {
            Ok(Box::new(Block(vec![0.0; len])))
        }
        fn download(&self, from: &dyn Memory, first: usize, to: AnySliceMut<'_>) -> Result<()> {
            let AnySliceMut::F32(to) = to else { unreachable!() };
            to.copy_from_slice(&block(from)[first..][..to.len()]);
            Ok(())
        }
        fn gemv(&self, job: AnyJob<'_>, params: &Params) -> Result<()> {
            let AnyJob::F32(job) = job else { unreachable!() };
            let MatrixRef::Device(a) = job.a else { unreachable!() };
            let VectorRef::Device(x) = job.x else { unreachable!() };
            self.starts.lock().unwrap().push(a.first());
            if params.kernel().as_str() == "roof" {
                self.reads.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            let x = x.view_in(block(x.memory())).to_owned();
            let a = a.view_in(block(a.memory())).to_owned();
            let mut out = vec![0f32; a.nrows()];
            let view = ndarray::ArrayViewMut1::from(&mut out[..]);
            reference::gemv(1.0, a.view(), false, x.view(), 0.0, view);
            let y = match job.y {
                VectorMut::Device(y) => y,
                VectorMut::Host(mut y) => {
                    y.assign(&ndarray::aview1(&out));
                    return Ok(());
                }
            };
            let (first, len) = (y.first(), y.len());
            let memory: &mut dyn Any = y.memory_mut().unwrap();
            let all = &mut memory.downcast_mut::<Block>().unwrap().0;
            let flip = |v: &mut f32| *v = f32::from_bits(v.to_bits() ^ 1);
            all[first..first + len].copy_from_slice(&out);
            match params.kernel().as_str() {
                "good" | "classic-good" => {}
                // One bit, in rows that the reference does not compute for a large problem.
                "flip" => flip(&mut all[first + len / 3]),
                "early" => flip(&mut all[first]),
                "spill" => all[first + len] = 0.0,
                "before" => all[first - 2] = 0.0,
                "leave" => all[first + len - 1] = f32::NAN,
                "classic-far" => all[first + len - 1] += 1e-2 * a.ncols() as f32,
                other => unreachable!("{other}"),
            }
            Ok(())
        }
        fn roof(&self) -> Vec<Params> {
            vec![Params::new("roof")]
        }
    }

    fn lab(settings: LabSettings) -> (Arc<Faulty>, Lab) {
        let backend = Arc::new(Faulty::default());
        let device = Device::new(backend.clone());
        (backend, Lab::new(&device, settings))
    }

    fn small() -> LabSettings {
        let bytes = 8 << 20;
        LabSettings { cold_bytes: bytes, max_bytes: bytes, batch: 1e-5, ..LabSettings::default() }
    }

    fn desc(m: usize, n: usize) -> Desc {
        packed(Dtype::F32, Layout::Row, m, n)
    }

    #[test]
    fn one_flipped_bit_and_one_entry_outside_are_refused() {
        let (_, mut lab) = lab(small());
        for d in [desc(5, 9), desc(70, 300)] {
            let check = |lab: &mut Lab, name| lab.check(&d, &Params::new(name));
            assert_eq!(check(&mut lab, "good"), Ok(()));
            let row = |r: Result<(), Failure>| match r {
                Err(Failure::Wrong { row, .. }) => row,
                other => panic!("{other:?}"),
            };
            assert_eq!(row(check(&mut lab, "flip")), d.m / 3);
            assert_eq!(row(check(&mut lab, "early")), 0);
            assert_eq!(row(check(&mut lab, "leave")), d.m - 1);
            assert_eq!(check(&mut lab, "spill"), Err(Failure::Canary(d.m as i64)));
            assert_eq!(check(&mut lab, "before"), Err(Failure::Canary(-2)));
            assert_eq!(check(&mut lab, "classic-good"), Ok(()));
            assert_eq!(row(check(&mut lab, "classic-far")), d.m - 1);
            assert!(lab.revoked().is_empty());
        }
    }

    #[test]
    fn a_wrong_row_that_nobody_looked_at_is_found_by_disagreement() {
        let unseen = |d: &Desc| !Bench::<f32>::sample(d).contains(&(d.m / 3));
        let d = (100_000..100_100).map(|m| desc(m, 16)).find(unseen).expect("not every row");
        let (_, mut lab) = lab(small());
        assert_eq!(lab.check(&d, &Params::new("flip")), Ok(()));
        assert_eq!(lab.check(&d, &Params::new("good")), Ok(()));
        let revoked = lab.revoked();
        assert_eq!(revoked.len(), 1);
        assert_eq!(revoked[0].0, Params::new("flip"));
        let again = lab.check(&d, &Params::new("flip"));
        assert!(matches!(again, Err(Failure::Wrong { row, .. }) if row == d.m / 3), "{again:?}");
        let cell = search(&mut lab, &d, &lab_candidates(), &[], &Default::default());
        assert_eq!(cell.best().unwrap().params, Params::new("good"));
        assert_eq!(cell.failures.len(), 5, "{:?}", cell.failures);
    }

    fn lab_candidates() -> Vec<Params> {
        Faulty::default().candidates(&desc(1, 1))
    }

    #[test]
    fn cold_products_take_another_matrix_each_and_warm_ones_the_same() {
        let d = desc(64, 1000);
        let distinct = |mode| {
            let (backend, mut lab) = lab(LabSettings { mode, ..small() });
            for _ in 0..60 {
                assert!(lab.measure(&d, &Params::new("good")).unwrap() > 0.0);
            }
            let mut starts = backend.starts.lock().unwrap().clone();
            let products = starts.len();
            starts.sort();
            starts.dedup();
            (starts.len(), products)
        };
        // 8 MiB hold 32 matrices of 256,000 bytes.
        assert_eq!(distinct(Mode::Cold).0, 32);
        let (warm, products) = distinct(Mode::Warm);
        assert!(warm == 1 && products >= 60, "{warm} of {products}");
    }

    #[test]
    fn what_does_not_fit_the_lab_is_refused() {
        let (_, mut lab) = lab(small());
        let e = lab.measure(&desc(4096, 4096), &Params::new("good")).unwrap_err();
        assert!(matches!(e, Failure::Refused(Error::OutOfMemory { .. })), "{e}");
    }

    #[test]
    fn a_profile_knows_the_roof_and_the_link() {
        let (backend, mut lab) = lab(LabSettings { batch: 1e-6, ..small() });
        assert_eq!(lab.floor(&desc(64, 64)), None);
        let profile = lab.profile().unwrap();
        assert!(profile.roof.points.len() == 12 && backend.reads.load(Ordering::Relaxed) > 100);
        assert!(profile.link.is_some() && profile.launch > 0.0 && profile.round_trip > 0.0);
        assert!(lab.floor(&desc(64, 64)).is_some());
    }
}
