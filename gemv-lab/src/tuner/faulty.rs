//! The laboratory on a device whose kernels are wrong, each in its own way.

use std::sync::{Arc, Mutex};

use super::mesh::packed;
use super::problem::many;
use super::runner::DeviceRunner;
use super::search::{Failure, Runner, search};
use super::settings::{Mode, RunnerSettings};
use super::workload::Workload;
use gemv_core::{Checked, Desc, Device, Dtype, Error, Job, Layout, Params, Tensor};
use gemv_testkit::{Host, compute, elements_mut};
use ndarray::Dimension;

/// What the device was asked for.
#[derive(Debug, Default)]
struct Seen {
    /// Where each matrix that was multiplied or read starts.
    starts: Vec<usize>,
    /// Products of the host's arrays.
    arrays: usize,
    reads: usize,
}

impl Seen {
    /// Notes a product, and says whether it is to be computed: nobody looks at the result of another.
    fn note(seen: &Mutex<Seen>, a: &Tensor<'_>, params: &Params) -> bool {
        let mut seen = seen.lock().unwrap();
        let read = params.kernel().as_str() == "read";
        let (start, array) = match (a.window(), a.view::<f32>()) {
            (Some(window), _) => (window.first, false),
            (None, view) => (view.unwrap().as_ptr() as usize, true),
        };
        assert!(!(array && read), "reads are of resident operands");
        seen.starts.push(start);
        seen.arrays += usize::from(array);
        seen.reads += usize::from(read);
        !array && !read
    }

    fn distinct(&self) -> usize {
        self.starts.iter().collect::<std::collections::BTreeSet<_>>().len()
    }
}

/// The fault of a kernel, put into a right and packed result of so many right-hand sides.
fn spoil(job: &mut Checked<Job<'_>>, params: &Params) {
    let Desc { n, rhs, .. } = job.desc();
    let mut y = job.y();
    let Some(y) = y.window_mut() else { return };
    let (first, len) = (y.first, y.dim.size());
    let all = elements_mut::<f32>(y.memory);
    let flip = |v: &mut f32| *v = f32::from_bits(v.to_bits() ^ 1);
    match params.kernel().as_str() {
        "good" | "classic-good" => {}
        // One bit, in rows that the reference does not compute for a large problem.
        "flip" => flip(&mut all[first + len / 3]),
        "early" => flip(&mut all[first]),
        "spill" => all[first + len] = 0.0,
        "before" => all[first - 2] = 0.0,
        "leave" => all[first + len - 1] = f32::NAN,
        "classic-far" => all[first + len - 1] += 1e-2 * n as f32,
        // The last right-hand side is taken for the one before it.
        "swap" => {
            let rows = all[first..first + len].chunks_mut(rhs);
            rows.filter(|_| rhs > 1).for_each(|row| row[rhs - 1] = row[rhs - 2]);
        }
        other => unreachable!("{other}"),
    }
}

/// A device of f32 whose kernels are the reference with one fault each.
fn faulty(host: bool) -> (Arc<Mutex<Seen>>, Device) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let noted = seen.clone();
    let mut device = Host::new("faulty");
    device.info.host = host;
    device.candidates = |_| lab_candidates();
    device.fits = |_, _| Ok(());
    device.table = "* * : good\n* * m=1 n=1 : used\n* * m=1 n=1 : classic-good";
    device.classic = ["classic-good", "classic-far"].map(Params::new).to_vec();
    device.read = vec![Params::new("read")];
    device.compute = Box::new(move |job, prepared| {
        if Seen::note(&noted, &job.a, prepared.params()) {
            compute(job);
            spoil(job, prepared.params());
        }
        Ok(())
    });
    (seen, device.device())
}

fn runner(settings: RunnerSettings) -> (Arc<Mutex<Seen>>, DeviceRunner) {
    let (seen, device) = faulty(false);
    (seen, DeviceRunner::new(&device, settings))
}

fn small() -> RunnerSettings {
    let bytes = 8 << 20;
    RunnerSettings { cold_bytes: bytes, max_bytes: bytes, batch: 1e-5, ..RunnerSettings::default() }
}

fn desc(m: usize, n: usize) -> Desc {
    packed(Dtype::F32, Layout::Row, m, n)
}

/// One flipped bit, one entry outside, and the order of another kernel: of each right-hand side and each matrix of a batch.
#[test]
fn every_result_is_checked() {
    let (_, mut runner) = runner(small());
    let problems = [(5, 9, 1, 1), (70, 300, 1, 1), (5, 9, 3, 1), (70, 300, 8, 1), (6, 40, 1, 9)];
    let problems = problems.into_iter().chain([(4, 7, 2, 3), (4000, 64, 16, 1)]);
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
        assert_eq!(wrong(check(&mut runner, "early")).0, 0, "{d}");
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
        assert!(runner.revoked().is_empty(), "{d}");
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
}

fn lab_candidates() -> Vec<Params> {
    ["flip", "early", "good", "spill", "before", "leave"].map(Params::new).to_vec()
}

#[test]
fn cold_products_take_another_matrix_each_and_warm_ones_the_same() {
    let d = desc(64, 1000);
    let distinct = |mode, warm_to, both_to| {
        let (seen, mut runner) = runner(RunnerSettings { mode, warm_to, both_to, ..small() });
        for _ in 0..60 {
            assert!(runner.measure(&d, &Params::new("good")).unwrap() > 0.0);
        }
        let seen = seen.lock().unwrap();
        let again = seen.starts.iter().filter(|start| **start == 0).count();
        (seen.distinct(), again, seen.starts.len())
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
    let one = desc(64, 1000);
    for (arrays, (d, matrices)) in [false, true]
        .into_iter()
        .flat_map(|arrays| [(one, 32), (many(one, 4, 2), 16)].map(|of| (arrays, of)))
    {
        let (seen, device) = faulty(true);
        let mut runner = DeviceRunner::new(&device, RunnerSettings { arrays, ..small() });
        for _ in 0..60 {
            assert!(runner.measure(&d, &Params::new("good")).unwrap() > 0.0);
        }
        let counted = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(counted.arrays, if arrays { counted.starts.len() } else { 0 });
        assert_eq!(counted.distinct(), matrices, "{d}");
        // What is wrong is found either way, and the read bandwidth is that of resident operands.
        assert!(matches!(runner.check(&d, &Params::new("spill")), Err(Failure::Canary(_))));
        assert!(runner.device_speed().unwrap().read_bandwidth.points.len() == 12);
    }
    // Another's memory has no arrays of the host.
    let (seen, mut runner) = runner(RunnerSettings { arrays: true, ..small() });
    assert!(runner.measure(&one, &Params::new("good")).is_ok());
    assert_eq!(seen.lock().unwrap().arrays, 0);
}

#[test]
fn what_is_measured_in_both_modes_has_their_geometric_mean() {
    let d = desc(64, 1000);
    let times = |mode, both_to| {
        let (_, mut runner) = runner(RunnerSettings { mode, both_to, batch: 1e-6, ..small() });
        let read = runner.device_speed().unwrap().read_bandwidth;
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
    for large in [desc(4096, 4096), many(desc(8, 8), 1, 1 << 20)] {
        let e = runner.measure(&large, &Params::new("good")).unwrap_err();
        assert!(matches!(e, Failure::Refused(Error::OutOfMemory { .. })), "{e}");
    }
}

#[test]
fn a_device_has_the_read_bandwidth_and_the_link() {
    let (seen, mut runner) = runner(RunnerSettings { batch: 1e-6, ..small() });
    assert_eq!(runner.read_seconds(&desc(64, 64)), None);
    let speed = runner.device_speed().unwrap();
    assert!(speed.read_bandwidth.points.len() == 12 && seen.lock().unwrap().reads > 100);
    assert!(speed.link.is_some() && speed.launch > 0.0 && speed.round_trip > 0.0);
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
