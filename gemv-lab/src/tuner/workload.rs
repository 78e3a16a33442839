//! Operands of one element type on a device: their products are timed and checked.

use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::Range;
use std::time::Instant;

use ndarray::{ArrayView1, ArrayView3, ArrayViewMut3, Axis, Ix3, ShapeBuilder};

use super::mesh::packed;
use super::problem::lens;
use super::search::{Failure, median};
use super::settings::{Mode, RunnerSettings};
use super::speed::{ReadBandwidth, ReadPoint};
use gemv_core::{
    Accumulator, Backend, Desc, Device, DeviceVector, Element, Error, Job, Layout, Memory, Number,
    Params, Prepared, Result, SlicesMut, Tensor, TensorMut, Window, host_is_full, reference,
};

/// A [`Workload`] of any element type.
pub(super) trait AnyWorkload: Debug + Send {
    fn measure(
        &mut self,
        backend: &dyn Backend,
        desc: &Desc,
        params: &Params,
        mode: Mode,
    ) -> Result<f64, Failure>;
    fn check(&mut self, device: &Device, desc: &Desc, params: &Params) -> Result<(), Failure>;
    fn revoked(&mut self) -> Vec<(Params, Failure)>;
    fn read_bandwidth(&mut self, backend: &dyn Backend) -> Result<ReadBandwidth>;
}

#[derive(Debug)]
pub(super) struct Workload<T: Element> {
    settings: RunnerSettings,
    /// A copy of the pool on the host: the reference reads it, and products of arrays.
    host: Vec<T>,
    pool: DeviceVector<T>,
    y: DeviceVector<T>,
    /// The same for products of arrays.
    y_array: Vec<T>,
    /// Where the next cold matrix starts.
    cursor: usize,
    /// The present problem.
    of: Option<Desc>,
    /// Seconds of a product of the present problem, to size the next batch.
    estimates: HashMap<(Params, Mode), f64>,
    /// What y holds before a product that is checked, with its margins.
    blank: Vec<T>,
    truth: Option<Truth<T>>,
    /// For kernels of another order: of each entry of the sample the value in double precision, and
    /// the error bound.
    bounds: Vec<((f64, f64), f64)>,
    passed: Vec<Params>,
    revoked: Vec<(Params, Failure)>,
}

/// The right result of the present problem.
#[derive(Debug)]
struct Truth<T> {
    /// Entries that the reference computed, by their index among those that are compared.
    rows: Vec<(usize, T)>,
    /// All entries that are compared, by a candidate that agrees in `rows`.
    all: Option<Vec<T>>,
}

/// Elements that the reference multiplies for a problem. Of a larger one some rows are
/// computed, and the others compared between candidates.
const REFERENCE_BUDGET: usize = 1 << 18;
/// Entries of y that are compared, of a longer one in windows: a download of all would take
/// longer than the measurement.
const LOOKED_AT: usize = 1 << 16;
const WINDOWS: usize = 16;
/// Entries before and after `y` that must not change.
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

impl<T: Element> Workload<T> {
    pub(super) fn new(device: &Device, settings: &RunnerSettings) -> Result<Workload<T>> {
        let bytes = settings.cold_bytes.max(settings.max_bytes).max(1 << 20);
        let len = (bytes / T::DTYPE.bytes() as u64) as usize;
        let mut host: Vec<T> = Vec::new();
        // Too little memory is an error, not the end of the process.
        host.try_reserve_exact(len).map_err(|_| host_is_full("the host", bytes))?;
        // A prime period: no two rows of a matrix are equal by accident.
        let period: Vec<T> = (0..len.min(1_048_573)).map(number).collect();
        while host.len() < len {
            host.extend_from_slice(&period[..period.len().min(len - host.len())]);
        }
        let pool = device.vector(ndarray::aview1(&host))?;
        Ok(Workload {
            settings: settings.clone(),
            host,
            pool,
            y: device.zeros(0)?,
            y_array: Vec::new(),
            cursor: 0,
            of: None,
            estimates: HashMap::new(),
            blank: Vec::new(),
            truth: None,
            bounds: Vec::new(),
            passed: Vec::new(),
            revoked: Vec::new(),
        })
    }

    /// Elements of the pool.
    pub(super) fn len(&self) -> usize {
        self.host.len()
    }

    fn prepare(&mut self, desc: &Desc) -> Result<()> {
        if self.of == Some(*desc) {
            return Ok(());
        }
        let needed = desc.bytes();
        let have = (self.host.len() * T::DTYPE.bytes()) as u64;
        let [a, x, len_y] = lens(desc);
        if a.max(x) > self.host.len() {
            let device = self.pool.device().info().id.clone();
            return Err(Error::OutOfMemory { device, asked: needed, free: Some(have) });
        }
        // With margins, so that the check finds a write outside of y before it can do
        // harm.
        let full = self.pool.device().zeros(len_y.saturating_add(2 * MARGIN))?;
        self.y = full.step(MARGIN..MARGIN + len_y, 1);
        self.y_array = vec![T::narrow(T::Acc::ZERO); if self.settings.arrays { len_y } else { 0 }];
        (self.of, self.truth) = (Some(*desc), None);
        self.estimates.clear();
        self.blank.clear();
        self.bounds.clear();
        self.passed.clear();
        self.revoked.clear();
        Ok(())
    }

    /// Where the operands of a product begin: A at the cursor, x half the pool away, both
    /// on a cache line.
    fn places(&mut self, desc: &Desc, mode: Mode) -> (usize, usize) {
        let line = 64 / T::DTYPE.bytes();
        let [len, len_x, _] = lens(desc);
        // Warm operands always lie in one place, and leave the cursor.
        let first = match mode {
            Mode::Warm => 0,
            Mode::Cold if self.cursor + len > self.host.len() => 0,
            Mode::Cold => self.cursor,
        };
        if mode == Mode::Cold {
            // Of many right-hand sides x may be the longer one: it moves as far.
            self.cursor = first + len.max(len_x).div_ceil(line).max(1) * line;
        }
        let far = (first + self.host.len() / 2) % self.host.len();
        (first, (far / line * line).min((self.host.len() - len_x) / line * line))
    }

    /// The matrices of a batch, one behind the other from this entry of the pool on.
    fn stack(&self, desc: &Desc, first: usize) -> ArrayView3<'_, T> {
        let [len, ..] = lens(desc);
        ArrayView3::from_shape(dim_a(desc).strides(strides_a(desc)), &self.host[first..first + len])
            .expect("checked when the problem was prepared")
    }

    /// The right-hand sides of a batch: rows of X one behind the other.
    fn sides(&self, desc: &Desc, first: usize) -> ArrayView3<'_, T> {
        let [_, len, _] = lens(desc);
        ArrayView3::from_shape(dim_x(desc), &self.host[first..first + len])
            .expect("checked when the problem was prepared")
    }

    /// The row of A and the column of X whose product is this entry of y. A and X both start at the
    /// pool's first entry.
    fn factors(&self, desc: &Desc, entry: usize) -> (ArrayView1<'_, T>, ArrayView1<'_, T>) {
        let (b, i, c) = place(desc, entry);
        let a = self.stack(desc, 0).index_axis_move(Axis(0), b);
        let x = self.sides(desc, 0).index_axis_move(Axis(0), b);
        (a.index_axis_move(Axis(0), i), x.index_axis_move(Axis(1), c))
    }

    /// The right value of an entry of y.
    fn entry(&self, desc: &Desc, entry: usize) -> T {
        let (a, x) = self.factors(desc, entry);
        T::narrow(reference::dot(a, x, false))
    }

    /// For kernels of another order: the value in double precision, and the error bound.
    fn bound(&self, desc: &Desc, entry: usize) -> ((f64, f64), f64) {
        let (mut sum, mut size) = ((0.0, 0.0), 0.0);
        let (row, column) = self.factors(desc, entry);
        for (a, x) in row.iter().zip(column) {
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

    /// The entries of a vector of `len` that are compared: all, or windows from the first
    /// to the last.
    fn windows(len: usize) -> impl Iterator<Item = Range<usize>> {
        let count = if len <= LOOKED_AT { 1 } else { WINDOWS };
        let each = len.min(LOOKED_AT / count);
        let step = (len - each) / (count - 1).max(1);
        let start = move |k: usize| if k + 1 == count { len - each } else { k * step };
        (0..count).map(move |k| start(k)..start(k) + each)
    }

    /// The entries of y that are compared: by matrix, row and right-hand side.
    pub(super) fn rows(desc: &Desc) -> Vec<usize> {
        let [.., len] = lens(desc);
        let inside = |k: &usize| (MARGIN..MARGIN + len).contains(k);
        let windows = Self::windows(len + 2 * MARGIN);
        windows.flatten().filter(inside).map(|k| k - MARGIN).collect()
    }

    /// Of the compared entries, those that the reference computes: the first, the last, and
    /// some between. Of several right-hand sides each has its turn.
    pub(super) fn sample(desc: &Desc, entries: &[usize]) -> Vec<usize> {
        let looked_at = entries.len();
        let least = if desc.rhs > 1 { 2 * desc.rhs } else { 2 };
        let count = (REFERENCE_BUDGET / desc.n.max(1)).max(least).min(looked_at.max(2));
        if count >= looked_at {
            return (0..looked_at).collect();
        }
        let step = looked_at as f64 / count as f64;
        let jitter = |k: usize| (k as f64 + 0.5 + 0.49 * noise(k)) * step;
        // The same row's entry for another right-hand side, unless that is not looked at.
        let turn = |k: usize, at: usize| {
            let wanted = entries[at] / desc.rhs * desc.rhs + k % desc.rhs;
            let there = (at + wanted).checked_sub(entries[at]);
            there.filter(|there| entries.get(*there) == Some(&wanted)).unwrap_or(at)
        };
        let mut rows: Vec<usize> =
            (0..count).map(|k| turn(k, (jitter(k) as usize).min(looked_at - 1))).collect();
        rows[0] = 0;
        rows[count - 1] = looked_at - 1;
        rows
    }

    fn wrong(desc: &Desc, entry: usize, got: T, want: impl Debug) -> Failure {
        let (b, row, c) = place(desc, entry);
        let mut got = format!("{got:?}");
        if desc.rhs > 1 {
            got += &format!(" for right-hand side {c}");
        }
        if desc.batch > 1 {
            got += &format!(" in product {b} of the batch");
        }
        Failure::Wrong { row, got, want: format!("{want:?}") }
    }

    /// `y` has the `rows`.
    fn compare(
        &mut self,
        desc: &Desc,
        params: &Params,
        rows: &[usize],
        y: Vec<T>,
    ) -> Result<(), Failure> {
        let sample = Self::sample(desc, rows).into_iter();
        if !params.keeps_order() {
            // They are the same for each candidate, and read more of A than a product may.
            if self.bounds.is_empty() {
                self.bounds = sample.clone().map(|i| self.bound(desc, rows[i])).collect();
            }
            for (i, &((re, im), bound)) in sample.zip(&self.bounds) {
                let got = y[i].widen().parts();
                let off = (got.0 - re).abs().max((got.1 - im).abs());
                if off.is_nan() || off > bound {
                    let want = format!("{re}+{im}i within {bound:e}");
                    return Err(Self::wrong(desc, rows[i], y[i], want));
                }
            }
            return Ok(());
        }
        let truth = self.truth.take().unwrap_or_else(|| Truth {
            rows: sample.map(|i| (i, self.entry(desc, rows[i]))).collect(),
            all: None,
        });
        let known = truth.rows.iter().find(|(i, want)| y[*i].bits() != want.bits());
        let mut verdict = match known {
            Some(&(i, want)) => Err(Self::wrong(desc, rows[i], y[i], want)),
            None => Ok(()),
        };
        let mut all = truth.all;
        if verdict.is_ok() {
            // Where two candidates differ that agree in the sample, the reference
            // decides.
            let differ = all
                .as_ref()
                .and_then(|all| all.iter().zip(&y).position(|(a, b)| a.bits() != b.bits()));
            match (differ, &all) {
                (Some(i), Some(old)) => {
                    let want = self.entry(desc, rows[i]);
                    if old[i].bits() != want.bits() {
                        let why = Self::wrong(desc, rows[i], old[i], want);
                        self.revoked.extend(self.passed.drain(..).map(|p| (p, why.clone())));
                        all = Some(y.clone());
                    }
                    if y[i].bits() != want.bits() {
                        verdict = Err(Self::wrong(desc, rows[i], y[i], want));
                        // Both were wrong: the right result is not known
                        // again.
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

impl<T: Element> AnyWorkload for Workload<T> {
    fn measure(
        &mut self,
        backend: &dyn Backend,
        desc: &Desc,
        params: &Params,
        mode: Mode,
    ) -> Result<f64, Failure> {
        self.prepare(desc)?;
        let estimate = match self.estimates.get(&(*params, mode)) {
            Some(&seconds) => Some(seconds),
            None => {
                // The first product compiles the kernel; its time does not
                // count.
                let first = self.batch(backend, desc, params, mode, 1, false)?;
                // As long as the fastest so far, unless it is much slower.
                let alike = self.estimates.iter().filter(|(key, _)| key.1 == mode);
                let known = alike.map(|(_, seconds)| *seconds).reduce(f64::min);
                known.map(|k| if first > 10.0 * self.settings.batch { k.max(first) } else { k })
            }
        };
        let count = |seconds: f64| (self.settings.batch / seconds.max(1e-9)) as usize;
        let products = estimate.map_or(1, count).clamp(1, self.settings.products);
        if mode == Mode::Warm {
            // The measurement before may have been cold.
            self.batch(backend, desc, params, mode, 1, false)?;
        }
        let mut seconds = self.batch(backend, desc, params, mode, products, true)?;
        if products == 1 && seconds < 0.2 * self.settings.batch {
            // The clock's own cost was most of it.
            let products = (0.5 * self.settings.batch / seconds) as usize;
            let products = products.clamp(1, self.settings.products);
            seconds = self.batch(backend, desc, params, mode, products, true)?;
        }
        self.estimates.insert((*params, mode), seconds);
        Ok(seconds)
    }

    fn check(&mut self, device: &Device, desc: &Desc, params: &Params) -> Result<(), Failure> {
        self.prepare(desc)?;
        // NaN where the result goes, canaries around it.
        let canary = T::narrow(T::Acc::from_parts(77.25, -77.25));
        let nan = T::narrow(T::Acc::from_parts(f64::NAN, f64::NAN));
        let [.., len] = lens(desc);
        let len_y = len + 2 * MARGIN;
        if self.blank.is_empty() {
            self.blank.resize(len_y, canary);
            self.blank[MARGIN..][..len].fill(nan);
        }
        let mut y = device.vector(ndarray::aview1(&self.blank))?;
        y = y.step(MARGIN..MARGIN + len, 1);
        let (pool, ready) = (self.pool.window().memory, &mut Ready::new(params));
        resident::<T>(device.backend(), desc, ready, pool, (0, 0), &mut y)?;
        let inside = |k: &usize| (MARGIN..MARGIN + len).contains(k);
        let mut got = Vec::with_capacity(len_y.min(LOOKED_AT));
        let mut part = Vec::new();
        for window in Self::windows(len_y) {
            part.resize(window.len(), canary);
            let to = T::any::<SlicesMut>(&mut part);
            device.backend().download(y.window().memory, window.start, to)?;
            for (k, v) in window.zip(&part) {
                if inside(&k) {
                    got.push(*v);
                } else if v.bits() != canary.bits() {
                    return Err(Failure::Canary(k as i64 - MARGIN as i64));
                }
            }
        }
        self.compare(desc, params, &Self::rows(desc), got)
    }

    fn revoked(&mut self) -> Vec<(Params, Failure)> {
        std::mem::take(&mut self.revoked)
    }

    fn read_bandwidth(&mut self, backend: &dyn Backend) -> Result<ReadBandwidth> {
        // The ceiling is that of resident operands.
        let arrays = std::mem::replace(&mut self.settings.arrays, false);
        let read = self.read_points(backend);
        self.settings.arrays = arrays;
        self.of = None;
        read
    }
}

impl<T: Element> Workload<T> {
    fn read_points(&mut self, backend: &dyn Backend) -> Result<ReadBandwidth> {
        let mut read = ReadBandwidth::default();
        let passes = backend.read_params();
        let mut bytes = 4096;
        while !passes.is_empty() && bytes <= self.host.len() * T::DTYPE.bytes() {
            let n = 1024.min(bytes / T::DTYPE.bytes());
            let desc = packed(T::DTYPE, Layout::Row, bytes / T::DTYPE.bytes() / n, n);
            let mut best = |mode: Mode| -> Result<f64> {
                self.prepare(&desc)?;
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
            // A read has the operands of a product; A is what it reads.
            read.points.push(ReadPoint { bytes: bytes as u64, cold, warm });
            bytes *= 2;
        }
        // A larger block is not read faster than a smaller one: that would be noise.
        for k in (1..read.points.len()).rev() {
            let next = read.points[k];
            let point = &mut read.points[k - 1];
            (point.cold, point.warm) = (point.cold.min(next.cold), point.warm.min(next.warm));
        }
        Ok(read)
    }

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
        let places: Vec<_> = (0..products).map(|_| self.places(desc, mode)).collect();
        let mut ready = Ready::new(params);
        if self.settings.arrays {
            let mut y = std::mem::take(&mut self.y_array);
            let one = |&(a, x): &(usize, usize)| (self.stack(desc, a), self.sides(desc, x));
            let operands: Vec<_> = places.iter().map(one).collect();
            let mut launches = || {
                operands.iter().try_for_each(|(a, x)| {
                    let y = ArrayViewMut3::from_shape(dim_y(desc), &mut y[..])
                        .expect("made for this problem");
                    product::<T>(backend, &mut ready, (*a).into(), (*x).into(), y.into())
                })
            };
            let seconds = clocked(backend, &mut launches, products, timed);
            self.y_array = y;
            return seconds;
        }
        let (pool, y) = (self.pool.window().memory, &mut self.y);
        let mut launches = || {
            let mut one = |&at| resident::<T>(backend, desc, &mut ready, pool, at, y);
            places.iter().try_for_each(&mut one)
        };
        clocked(backend, &mut launches, products, timed)
    }
}

/// Which matrix of the batch, which row and which right-hand side an entry of y is of.
fn place(desc: &Desc, entry: usize) -> (usize, usize, usize) {
    (entry / desc.rhs / desc.m, entry / desc.rhs % desc.m, entry % desc.rhs)
}

fn dim_a(desc: &Desc) -> Ix3 {
    Ix3(desc.batch, desc.m, desc.n)
}

fn dim_x(desc: &Desc) -> Ix3 {
    Ix3(desc.batch, desc.n, desc.rhs)
}

fn dim_y(desc: &Desc) -> Ix3 {
    Ix3(desc.batch, desc.m, desc.rhs)
}

fn strides_a(desc: &Desc) -> Ix3 {
    match desc.layout {
        Layout::Col => Ix3(desc.m * desc.n, 1, desc.m),
        _ => Ix3(desc.m * desc.n, desc.n, 1),
    }
}

/// The strides of an array whose last index runs fastest.
fn standard(dim: Ix3) -> Ix3 {
    Ix3(dim[1] * dim[2], dim[2], 1)
}

/// A product of resident operands: A and X in one block, from these entries on. `y` is of as many
/// entries as Y, one behind the other.
pub(super) fn resident<T: Element>(
    backend: &dyn Backend,
    desc: &Desc,
    ready: &mut Ready<'_>,
    memory: &dyn Memory,
    (a, x): (usize, usize),
    y: &mut DeviceVector<T>,
) -> Result<()> {
    let a = Window { memory, first: a, dim: dim_a(desc), strides: strides_a(desc) };
    let x = Window { memory, first: x, dim: dim_x(desc), strides: standard(dim_x(desc)) };
    let Window { memory, first, .. } = y.window_mut().expect("its only owner");
    let y = Window { memory, first, dim: dim_y(desc), strides: standard(dim_y(desc)) };
    let (a, x) = (Tensor::device(T::DTYPE, a), Tensor::device(T::DTYPE, x));
    product::<T>(backend, ready, a, x, TensorMut::device(T::DTYPE, y))
}

/// Parameters, prepared once for all products of one problem, as a device's own choices are: a timed loop
/// has none of it.
pub(super) struct Ready<'p> {
    params: &'p Params,
    prepared: Option<(Desc, Prepared)>,
}

impl<'p> Ready<'p> {
    pub(super) fn new(params: &'p Params) -> Ready<'p> {
        Ready { params, prepared: None }
    }

    fn of(&mut self, backend: &dyn Backend, desc: &Desc) -> Result<&Prepared> {
        match &mut self.prepared {
            Some((of, _)) if of == desc => {}
            prepared => *prepared = Some((*desc, backend.prepare(desc, self.params)?)),
        }
        Ok(&self.prepared.as_ref().expect("prepared above").1)
    }
}

/// A X to Y.
fn product<T: Element>(
    backend: &dyn Backend,
    ready: &mut Ready<'_>,
    a: Tensor<'_>,
    x: Tensor<'_>,
    y: TensorMut<'_>,
) -> Result<()> {
    let (alpha, beta) = (Number::new(T::Acc::ONE), Number::new(T::Acc::ZERO));
    let mut job = Job { alpha, a, conj: false, x, beta, y }.check()?;
    let prepared = ready.of(backend, &job.desc())?;
    backend.product(&mut job, prepared)
}

/// Seconds of one of so many products. Without `timed`, by the host's clock, the cost of a
/// first launch included.
fn clocked(
    backend: &dyn Backend,
    launches: &mut dyn FnMut() -> Result<()>,
    products: usize,
    timed: bool,
) -> Result<f64> {
    if timed {
        return Ok(backend.timed(launches)?.as_secs_f64() / products as f64);
    }
    let start = Instant::now();
    launches()?;
    backend.synchronize()?;
    Ok(start.elapsed().as_secs_f64() / products as f64)
}
