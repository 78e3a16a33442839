//! The laboratory on a device whose kernels are wrong, each in its own way.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::mesh::packed;
use super::problem::many;
use super::runner::DeviceRunner;
use super::search::{Failure, Runner, search};
use super::settings::{Mode, RunnerSettings};
use super::workload::Workload;
use gemv_core::{
    AnyGemmJob, AnyJob, AnySlice, AnySliceMut, Backend, BuiltinTable, Desc, Device, DeviceInfo,
    Dtype, Error, Input, Layout, Memory, Output, Params, Prepared, Result, reference,
};

/// A device of f32 whose kernels are the reference with one fault each.
#[derive(Debug, Default)]
struct Faulty {
    info: DeviceInfo,
    /// Distinct matrices that were multiplied, by where they start.
    starts: std::sync::Mutex<Vec<usize>>,
    /// Products of the host's arrays.
    arrays: AtomicUsize,
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
        vec![BuiltinTable {
            name: "faulty",
            text: "* * : good\n* * m=1 n=1 : used\n* * m=1 n=1 : classic-good",
        }]
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
    fn gemv(&self, job: AnyJob<'_>, prepared: &Prepared) -> Result<()> {
        let params = prepared.params();
        let AnyJob::F32(job) = job else { unreachable!() };
        if let (Input::Host(a), Input::Host(x), Output::Host(y)) = (&job.a, &job.x, &job.y) {
            assert_eq!((a.ncols(), a.nrows()), (x.len(), y.len()));
            assert_ne!(params.kernel().as_str(), "read", "reads are of resident operands");
            self.starts.lock().unwrap().push(a.as_ptr() as usize);
            self.arrays.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let (Input::Device(a), Input::Device(x)) = (job.a, job.x) else { unreachable!() };
        self.starts.lock().unwrap().push(a.first);
        if params.kernel().as_str() == "read" {
            self.reads.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let x = x.view(block(x.memory)).to_owned();
        let a = a.view(block(a.memory)).to_owned();
        let mut out = vec![0f32; a.nrows()];
        let view = ndarray::ArrayViewMut1::from(&mut out[..]);
        reference::gemv(1.0, a.view(), false, x.view(), 0.0, view);
        let y = match job.y {
            Output::Device(y) => y,
            Output::Host(mut y) => {
                y.assign(&ndarray::aview1(&out));
                return Ok(());
            }
        };
        let (first, len) = (y.first, y.dim[0]);
        let memory: &mut dyn Any = y.memory;
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
    /// Faults of the whole result; what is wrong for one column only has names of its own.
    fn gemm(&self, job: AnyGemmJob<'_>, prepared: &Prepared) -> Result<()> {
        let AnyGemmJob::F32(job) = job else { unreachable!() };
        let desc = job.desc();
        if let (Input::Host(a), Input::Host(x), Output::Host(y)) = (&job.a, &job.x, &job.y) {
            assert_eq!((a.dim().0, a.dim().2), (x.dim().0, x.dim().1));
            assert_eq!(y.dim(), (a.dim().0, a.dim().1, x.dim().2));
            self.starts.lock().unwrap().push(a.as_ptr() as usize);
            self.arrays.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let (Input::Device(a), Input::Device(x)) = (job.a, job.x) else { unreachable!() };
        self.starts.lock().unwrap().push(a.first);
        let x = x.view(block(x.memory)).to_owned();
        let a = a.view(block(a.memory)).to_owned();
        let mut out = ndarray::Array3::<f32>::zeros((desc.batch, desc.m, desc.rhs));
        for (b, mut y) in out.outer_iter_mut().enumerate() {
            for (c, y) in y.columns_mut().into_iter().enumerate() {
                // The last right-hand side is taken for the one before it.
                let swapped = prepared.params().kernel().as_str() == "swap" && c + 1 == desc.rhs;
                let x = x.index_axis(ndarray::Axis(0), b);
                let x = x.column(c - usize::from(swapped));
                reference::gemv(1.0, a.index_axis(ndarray::Axis(0), b), false, x, 0.0, y);
            }
        }
        let Output::Device(y) = job.y else { unreachable!() };
        let (first, len) = (y.first, out.len());
        let memory: &mut dyn Any = y.memory;
        let all = &mut memory.downcast_mut::<Block>().unwrap().0;
        all[first..first + len].copy_from_slice(out.as_slice().unwrap());
        match prepared.params().kernel().as_str() {
            "good" | "classic-good" | "swap" => {}
            "flip" => all[first + len / 3] = f32::from_bits(all[first + len / 3].to_bits() ^ 1),
            "spill" => all[first + len] = 0.0,
            "before" => all[first - 2] = 0.0,
            "leave" => all[first + len - 1] = f32::NAN,
            "classic-far" => all[first + len - 1] += 1e-2 * desc.n as f32,
            other => unreachable!("{other}"),
        }
        Ok(())
    }
    fn read_params(&self) -> Vec<Params> {
        vec![Params::new("read")]
    }
}

fn runner(settings: RunnerSettings) -> (Arc<Faulty>, DeviceRunner) {
    let backend = Arc::new(Faulty::default());
    let device = Device::new(backend.clone());
    (backend, DeviceRunner::new(&device, settings))
}

fn small() -> RunnerSettings {
    let bytes = 8 << 20;
    RunnerSettings { cold_bytes: bytes, max_bytes: bytes, batch: 1e-5, ..RunnerSettings::default() }
}

fn desc(m: usize, n: usize) -> Desc {
    packed(Dtype::F32, Layout::Row, m, n)
}

#[test]
fn one_flipped_bit_and_one_entry_outside_are_refused() {
    let (_, mut runner) = runner(small());
    for d in [desc(5, 9), desc(70, 300)] {
        let check = |runner: &mut DeviceRunner, name| runner.check(&d, &Params::new(name));
        assert_eq!(check(&mut runner, "good"), Ok(()));
        let row = |r: Result<(), Failure>| match r {
            Err(Failure::Wrong { row, .. }) => row,
            other => panic!("{other:?}"),
        };
        assert_eq!(row(check(&mut runner, "flip")), d.m / 3);
        assert_eq!(row(check(&mut runner, "early")), 0);
        assert_eq!(row(check(&mut runner, "leave")), d.m - 1);
        assert_eq!(check(&mut runner, "spill"), Err(Failure::Canary(d.m as i64)));
        assert_eq!(check(&mut runner, "before"), Err(Failure::Canary(-2)));
        assert_eq!(check(&mut runner, "classic-good"), Ok(()));
        assert_eq!(row(check(&mut runner, "classic-far")), d.m - 1);
        assert!(runner.revoked().is_empty());
    }
}

#[test]
fn every_right_hand_side_and_every_matrix_of_a_batch_is_checked() {
    let (_, mut runner) = runner(small());
    let problems = [(5, 9, 3, 1), (70, 300, 8, 1), (6, 40, 1, 9), (4, 7, 2, 3), (4000, 64, 16, 1)];
    for (m, n, rhs, batch) in problems {
        let d = many(desc(m, n), rhs, batch);
        let check = |runner: &mut DeviceRunner, name| runner.check(&d, &Params::new(name));
        let wrong = |r: Result<(), Failure>| match r {
            Err(Failure::Wrong { row, got, .. }) => (row, got),
            other => panic!("{d}: {other:?}"),
        };
        assert_eq!(check(&mut runner, "good"), Ok(()), "{d}");
        let (row, got) = wrong(check(&mut runner, "flip"));
        let entry = m * rhs * batch / 3;
        assert_eq!(row, entry / rhs % m, "{d}");
        let part = format!(" for right-hand side {}", entry % rhs);
        assert_eq!(got.contains(&part), rhs > 1, "{d}: {got}");
        let part = format!(" in product {} of the batch", entry / rhs / m);
        assert_eq!(got.contains(&part), batch > 1, "{d}: {got}");
        assert_eq!(wrong(check(&mut runner, "leave")).0, m - 1, "{d}");
        if rhs > 1 {
            let got = wrong(check(&mut runner, "swap")).1;
            assert!(got.contains(&format!("side {}", rhs - 1)), "{d}: {got}");
        }
        let len = (m * rhs * batch) as i64;
        assert_eq!(check(&mut runner, "spill"), Err(Failure::Canary(len)));
        assert_eq!(check(&mut runner, "before"), Err(Failure::Canary(-2)));
        assert_eq!(check(&mut runner, "classic-good"), Ok(()), "{d}");
        assert_eq!(wrong(check(&mut runner, "classic-far")).0, m - 1, "{d}");
    }
}

#[test]
fn the_reference_has_some_entries_of_each_right_hand_side() {
    for rhs in [2, 3, 8, 16, 64] {
        for (m, n) in [(5, 1 << 20), (100_000, 4096), (4096, 4096)] {
            let d = many(desc(m, n), rhs, 1);
            let rows = Workload::<f32>::rows(&d);
            let sample = Workload::<f32>::sample(&d, &rows);
            let columns: std::collections::BTreeSet<usize> =
                sample.iter().map(|&i| rows[i] % rhs).collect();
            assert_eq!(columns.len(), rhs, "{d}");
            assert!(sample.contains(&0) && sample.contains(&(rows.len() - 1)), "{d}");
        }
    }
}

#[test]
fn many_products_are_cold_too_and_take_arrays_where_they_are_asked_for() {
    let d = many(desc(64, 1000), 4, 2);
    for arrays in [false, true] {
        let mut info = DeviceInfo::default();
        info.host = true;
        let backend = Arc::new(Faulty { info, ..Faulty::default() });
        let settings = RunnerSettings { arrays, ..small() };
        let mut runner = DeviceRunner::new(&Device::new(backend.clone()), settings);
        for _ in 0..60 {
            assert!(runner.measure(&d, &Params::new("good")).unwrap() > 0.0);
        }
        let mut starts = backend.starts.lock().unwrap().clone();
        let measured = backend.arrays.load(Ordering::Relaxed);
        assert_eq!(measured, if arrays { starts.len() } else { 0 });
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 16); // half as many as of single matrices
    }
    let (_, mut runner) = runner(small());
    let large = many(desc(8, 8), 1, 1 << 20);
    let e = runner.measure(&large, &Params::new("good")).unwrap_err();
    assert!(matches!(e, Failure::Refused(Error::OutOfMemory { .. })), "{e}");
}

#[test]
fn a_wrong_row_that_nobody_looked_at_is_found_by_disagreement() {
    let unseen = |d: &Desc| {
        let rows: Vec<usize> = (0..d.m).collect();
        !Workload::<f32>::sample(d, &rows).contains(&(d.m / 3))
    };
    let d = (20_000..20_100).map(|m| desc(m, 64)).find(unseen).expect("not every row");
    let (_, mut runner) = runner(small());
    assert_eq!(runner.check(&d, &Params::new("flip")), Ok(()));
    assert_eq!(runner.check(&d, &Params::new("good")), Ok(()));
    let revoked = runner.revoked();
    assert_eq!(revoked.len(), 1);
    assert_eq!(revoked[0].0, Params::new("flip"));
    let again = runner.check(&d, &Params::new("flip"));
    assert!(matches!(again, Err(Failure::Wrong { row, .. }) if row == d.m / 3), "{again:?}");
    let result = search(&mut runner, &d, &lab_candidates(), &[], &Default::default());
    assert_eq!(result.best().unwrap().params, Params::new("good"));
    assert_eq!(result.failures.len(), 5, "{:?}", result.failures);
}

#[test]
fn what_the_tables_say_is_a_candidate_too() {
    let (_, mut runner) = runner(small());
    let all = runner.candidates(&desc(500, 300));
    assert_eq!(all[..6], lab_candidates());
    // Once each, and nothing that keeps another order.
    assert_eq!(all[6..], [Params::new("used")]);
    let mut classic = runner.classic();
    assert_eq!(classic.candidates(&desc(1, 1)).len(), 2);
}

fn lab_candidates() -> Vec<Params> {
    Faulty::default().candidates(&desc(1, 1))
}

#[test]
fn cold_products_take_another_matrix_each_and_warm_ones_the_same() {
    let d = desc(64, 1000);
    let distinct = |mode, warm_to, both_to| {
        let (backend, mut runner) = runner(RunnerSettings { mode, warm_to, both_to, ..small() });
        for _ in 0..60 {
            assert!(runner.measure(&d, &Params::new("good")).unwrap() > 0.0);
        }
        let mut starts = backend.starts.lock().unwrap().clone();
        let products = starts.len();
        let again = starts.iter().filter(|start| **start == 0).count();
        starts.sort();
        starts.dedup();
        (starts.len(), again, products)
    };
    // 8 MiB hold 32 matrices of 256,000 bytes.
    let (less, just) = (d.bytes() - 1, d.bytes());
    assert_eq!(distinct(Mode::Cold, less, less).0, 32);
    for (mode, warm_to) in [(Mode::Warm, 0), (Mode::Cold, just)] {
        let (warm, _, products) = distinct(mode, warm_to, just);
        assert!(warm == 1 && products >= 60, "{warm} of {products}");
    }
    // Batches of both.
    let (both, again, products) = distinct(Mode::Cold, less, just);
    assert!(both == 32 && products >= 120 && again >= 60, "{both}, {again} of {products}");
}

#[test]
fn arrays_are_measured_where_they_are_asked_for_and_are_cold_as_well() {
    let d = desc(64, 1000);
    for arrays in [false, true] {
        let mut info = DeviceInfo::default();
        info.host = true;
        let backend = Arc::new(Faulty { info, ..Faulty::default() });
        let settings = RunnerSettings { arrays, ..small() };
        let mut runner = DeviceRunner::new(&Device::new(backend.clone()), settings);
        for _ in 0..60 {
            assert!(runner.measure(&d, &Params::new("good")).unwrap() > 0.0);
        }
        let mut starts = backend.starts.lock().unwrap().clone();
        let measured = backend.arrays.load(Ordering::Relaxed);
        assert_eq!(measured, if arrays { starts.len() } else { 0 });
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 32);
        // What is wrong is found either way, and the read bandwidth is that of resident operands.
        assert_eq!(runner.check(&d, &Params::new("spill")), Err(Failure::Canary(64)));
        assert!(runner.profile().unwrap().read_bandwidth.points.len() == 12);
    }
    // Another's memory has no arrays of the host.
    let (backend, mut runner) = runner(RunnerSettings { arrays: true, ..small() });
    assert!(runner.measure(&d, &Params::new("good")).is_ok());
    assert_eq!(backend.arrays.load(Ordering::Relaxed), 0);
}

#[test]
fn what_is_measured_in_both_modes_has_their_geometric_mean() {
    let d = desc(64, 1000);
    let times = |mode, both_to| {
        let (_, mut runner) = runner(RunnerSettings { mode, both_to, batch: 1e-6, ..small() });
        let read = runner.profile().unwrap().read_bandwidth;
        let of = |warm| read.seconds(d.bytes(), warm).unwrap();
        (runner.read_seconds(&d).unwrap(), of(false), of(true))
    };
    let alike = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    let (both, cold, warm) = times(Mode::Cold, d.bytes());
    assert!(alike(both, (cold * warm).sqrt()), "{both} {cold} {warm}");
    let (one, cold, _) = times(Mode::Cold, d.bytes() - 1);
    assert!(alike(one, cold));
    let (one, _, warm) = times(Mode::Warm, d.bytes());
    assert!(alike(one, warm));
}

#[test]
fn what_does_not_fit_the_lab_is_refused() {
    let (_, mut runner) = runner(small());
    let e = runner.measure(&desc(4096, 4096), &Params::new("good")).unwrap_err();
    assert!(matches!(e, Failure::Refused(Error::OutOfMemory { .. })), "{e}");
}

#[test]
fn a_profile_knows_the_read_bandwidth_and_the_link() {
    let (backend, mut runner) = runner(RunnerSettings { batch: 1e-6, ..small() });
    assert_eq!(runner.read_seconds(&desc(64, 64)), None);
    let profile = runner.profile().unwrap();
    assert!(
        profile.read_bandwidth.points.len() == 12 && backend.reads.load(Ordering::Relaxed) > 100
    );
    assert!(profile.link.is_some() && profile.launch > 0.0 && profile.round_trip > 0.0);
    assert!(runner.read_seconds(&desc(64, 64)).is_some());
}

#[test]
fn of_a_long_result_both_ends_and_windows_between_are_looked_at() {
    for m in [1, 70, 65_000, 65_408, 65_409, 1_000_000, 4_194_304] {
        let rows = Workload::<f32>::rows(&desc(m, 1));
        assert!(rows.is_sorted_by(|a, b| a < b), "{m}: a row twice");
        assert_eq!((rows[0], rows[rows.len() - 1]), (0, m - 1));
        assert!(rows.len() == m || rows.len() > 65_000, "{m}: {}", rows.len());
        assert!(rows.windows(2).all(|w| w[1] - w[0] <= m / 14), "{m}: far from any row");
    }
    let (_, mut runner) = runner(small());
    let d = desc(1_000_000, 1);
    assert_eq!(runner.check(&d, &Params::new("good")), Ok(()));
    assert_eq!(runner.check(&d, &Params::new("spill")), Err(Failure::Canary(d.m as i64)));
    assert_eq!(runner.check(&d, &Params::new("before")), Err(Failure::Canary(-2)));
    let last = runner.check(&d, &Params::new("leave"));
    assert!(matches!(last, Err(Failure::Wrong { row, .. }) if row == d.m - 1), "{last:?}");
}
