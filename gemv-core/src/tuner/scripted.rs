//! A device that exists on paper only: its times follow from a formula and seeded noise, some of
//! its candidates fail, and some are fast and wrong.

use std::ops::ControlFlow;

use super::*;
use crate::{Desc, Dtype, Error, Layout, Params, Table};

/// Threads, rows and splits of a made-up kernel, and some that do not count.
fn space() -> Vec<Params> {
    let mut all = Vec::new();
    for threads in [32, 64, 128, 256] {
        for rows in [1, 2, 4, 8] {
            for split in [1, 4, 16] {
                let p = Params::new("row").with("threads", threads);
                all.push(p.with("rows", rows).with("split", split));
            }
        }
    }
    all.push(Params::new("wrong"));
    all.push(Params::new("refused"));
    all.push(Params::new("canary"));
    all.push(Params::new("late"));
    all
}

struct Scripted {
    noise: f64,
    seed: u64,
    measured: usize,
    checked: Vec<Params>,
    /// Reading is this fast, in bytes a second.
    roof: Option<f64>,
    revoke: bool,
}

impl Scripted {
    fn new(noise: f64) -> Scripted {
        let (seed, checked) = (7, Vec::new());
        Scripted { noise, seed, measured: 0, checked, roof: None, revoke: false }
    }

    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 40) as f64 / (1u64 << 24) as f64
    }

    /// Seconds without noise. Too few blocks leave the device idle, a split costs a launch, a
    /// group wider than a row is idle, and each row a thread needs registers.
    fn truth(desc: &Desc, params: &Params) -> f64 {
        let read = desc.bytes() as f64 / 1e12;
        if params.kernel().as_str() != "row" {
            return 0.5 * read;
        }
        let arg = |k| f64::from(params.get(k).unwrap());
        let (threads, rows, split) = (arg("threads"), arg("rows"), arg("split"));
        let blocks = (desc.m as f64 / rows).ceil() * split;
        let idle = (1.0 / (blocks * threads / 65536.0)).max(1.0);
        let spare = (threads * split / desc.n as f64).max(1.0);
        let registers = 1.0 + 0.03 * rows;
        let launches = 1e-6 + if split > 1.0 { 1e-6 } else { 0.0 };
        let stage = 2e-9 * threads.log2();
        launches + read * idle.sqrt() * spare.sqrt() * registers / (1.0 + 0.2 * rows.log2()) + stage
    }
}

impl Runner for Scripted {
    fn candidates(&mut self, _: &Desc) -> Vec<Params> {
        space()
    }

    fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
        self.measured += 1;
        if params.kernel().as_str() == "refused" {
            let device = "scripted".to_string();
            return Err(Error::Device { device, call: "launch", reason: "no".into() }.into());
        }
        let outlier = if self.random() < 0.02 { 3.0 } else { 1.0 };
        let jitter = 1.0 + self.noise * self.random();
        Ok(Self::truth(desc, params) * if self.noise > 0.0 { outlier * jitter } else { 1.0 })
    }

    fn check(&mut self, _: &Desc, params: &Params) -> Result<(), Failure> {
        self.checked.push(*params);
        match params.kernel().as_str() {
            "wrong" => Err(Failure::Wrong { row: 3, got: "1".into(), want: "2".into() }),
            "canary" => Err(Failure::Canary(-1)),
            "late" => {
                self.revoke = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn revoked(&mut self) -> Vec<(Params, Failure)> {
        let wrong = Failure::Wrong { row: 9, got: "1".into(), want: "2".into() };
        match std::mem::take(&mut self.revoke) {
            true => vec![(Params::new("late"), wrong)],
            false => Vec::new(),
        }
    }

    fn floor(&mut self, desc: &Desc) -> Option<f64> {
        Some(desc.bytes() as f64 / self.roof?)
    }
}

/// Stops after so many problems.
struct Count(usize, usize);

impl Watch for Count {
    fn done(&mut self, _: &Cell, done: usize, total: usize) -> ControlFlow<()> {
        assert!(done <= total);
        self.0 += 1;
        if self.0 == self.1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

const AREA: Area = Area { dtype: Dtype::F32, layout: Layout::Row };

fn desc(m: usize, n: usize) -> Desc {
    Desc { dtype: Dtype::F32, layout: Layout::Row, m, n, align: 6 }
}

fn truly_best(desc: &Desc) -> f64 {
    let rows = space().into_iter().filter(|p| p.kernel().as_str() == "row");
    rows.map(|p| Scripted::truth(desc, &p)).fold(f64::INFINITY, f64::min)
}

#[test]
fn finds_the_best_in_noise_and_never_a_wrong_one() {
    for (m, n) in [(16, 16), (4096, 64), (100, 100_000), (1 << 20, 20), (3000, 3000)] {
        let mut device = Scripted::new(0.04);
        let d = desc(m, n);
        let cell = search(&mut device, &d, &space(), &[], &Settings::default());
        let best = cell.best().expect("there are right candidates");
        let cost = Scripted::truth(&d, &best.params) / truly_best(&d);
        assert!(cost < 1.03, "{d}: {} costs {cost}", best.params);
        assert!(best.checked && best.batches.is_multiple_of(5), "{best:?}");
        // Twice as fast as all others, and each was refused by name.
        let mut failed: Vec<_> = cell.failures.iter().map(|f| f.0.to_string()).collect();
        failed.sort();
        assert_eq!(failed, ["canary", "late", "refused", "wrong"]);
        let named = |p: &Trial| p.params.kernel().as_str() == "row";
        assert!(cell.trials.iter().all(named));
        assert_eq!(cell.trials.len() + 4, cell.candidates);
        // Halving: far fewer than all candidates in all rounds.
        assert!(device.measured < 6 * space().len(), "{}", device.measured);
    }
}

#[test]
fn a_forced_candidate_reaches_the_end_and_a_foreign_one_is_measured() {
    let slow = Params::new("row").with("threads", 32).with("rows", 8).with("split", 16);
    let foreign = Params::new("row").with("threads", 512).with("rows", 1).with("split", 1);
    let d = desc(1 << 14, 1 << 10);
    let forced = [slow, foreign];
    let cell = search(&mut Scripted::new(0.0), &d, &space(), &forced, &Settings::default());
    for p in forced {
        assert_eq!(cell.seconds(&p), Some(Scripted::truth(&d, &p)));
    }
    assert_eq!(cell.candidates, space().len());
}

#[test]
fn the_roof_ends_the_search_only_where_it_is_reached_with_the_right_bits() {
    let d = desc(1 << 13, 1 << 12);
    let mut order = space();
    order.reverse(); // The fast and wrong ones come first.
    let mut device = Scripted::new(0.0);
    device.roof = Some(0.9 * d.bytes() as f64 / truly_best(&d));
    let cell = search(&mut device, &d, &order, &[], &Settings::default());
    assert!(cell.at_roof);
    assert_eq!(cell.best().unwrap().params.kernel().as_str(), "row");
    assert!(device.measured < order.len(), "{}", device.measured);
    // A roof that nobody reaches ends nothing.
    let mut device = Scripted::new(0.0);
    device.roof = Some(4e12);
    let cell = search(&mut device, &d, &order, &[], &Settings::default());
    assert!(!cell.at_roof && device.measured >= order.len());
}

#[test]
fn a_problem_where_nothing_counts_has_no_best() {
    let bad = [Params::new("wrong"), Params::new("refused")];
    let cell = search(&mut Scripted::new(0.0), &desc(9, 9), &bad, &[], &Settings::default());
    assert!(cell.best().is_none() && cell.trials.is_empty());
    assert_eq!(cell.failures.len(), 2);
}

/// The whole way: sweep, distil, and the regret on shapes between the mesh points.
#[test]
fn a_sweep_is_cheap_and_its_table_has_little_regret() {
    let mesh = Mesh::new(24, 16, 1 << 22, 1 << 32);
    let settings = Settings::default();
    let mut device = Scripted::new(0.02);
    let mut known = Known::new();
    let whole =
        sweep(&mut device, &mesh, &[AREA], false, &settings, &mut known, &mut Count(0, usize::MAX));
    assert!(whole);
    let points = mesh.points(AREA.dtype, AREA.layout).len();
    assert_eq!(known.len(), points);
    let each = device.measured as f64 / points as f64;
    let mut full = Scripted::new(0.02);
    search(&mut full, &desc(1000, 1000), &space(), &[], &settings);
    assert!(
        each < 0.75 * full.measured as f64,
        "{each} batches a point, {} in full",
        full.measured
    );

    let (rows, cost) = distil(&mesh, AREA, &known, settings.alike, 200);
    assert!(rows.len() < points / 3, "{} rows of {points} points", rows.len());
    assert!((0.0..settings.alike).contains(&cost), "{cost}");
    let text = Table { rows, ..Table::default() }.to_string();
    let table = Table::parse("distilled", &text).unwrap();
    for (d, cell) in &known {
        let chosen = table.nearest(d)[0].params;
        let time = cell.seconds(&chosen).expect("a choice is a finalist wherever it is used");
        let best = cell.best().unwrap();
        let noise = (best.seconds / best.low - 1.0).max(settings.alike);
        assert!(time <= best.seconds * (1.0001 + noise), "{d}: {chosen}");
    }

    let shapes = mesh.between(AREA.dtype, AREA.layout, 40);
    let bad = Params::new("row").with("threads", 32).with("rows", 8).with("split", 16);
    let ways: [&dyn Fn(&Desc) -> Params; 3] = [&|_| bad, &|d| table.nearest(d)[0].params, &|d| {
        nearest(&mesh, d, &known).expect("a full mesh")
    }];
    let mut seen = Known::new();
    let mut watch = Count(0, usize::MAX);
    let held = holdout(&mut device, &shapes, &ways, &settings, &mut seen, &mut watch);
    let regret: Vec<_> = (0..3).map(|way| Regret::of(way, &held)).collect();
    assert!(regret[0].geomean > 0.2, "the bad choice: {}", regret[0]);
    for regret in &regret[1..] {
        assert!(regret.geomean < 0.02 && regret.worst < 0.10, "{regret}");
        assert_eq!((regret.shapes, regret.failed), (shapes.len(), 0));
    }
    // Known shapes are not measured again.
    let before = device.measured;
    let again = holdout(&mut device, &shapes, &ways, &settings, &mut seen, &mut watch);
    assert_eq!((again, device.measured), (held, before));
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_stopped() {
    let mesh = Mesh::new(9, 16, 1 << 16, 1 << 30);
    let settings = Settings::default();
    let run = |stops: &[usize]| {
        let (mut device, mut known) = (Scripted::new(0.0), Known::new());
        for &stop in stops {
            let mut watch = Count(0, stop);
            let area = [AREA, Area { dtype: Dtype::F64, ..AREA }];
            let whole = sweep(&mut device, &mesh, &area, false, &settings, &mut known, &mut watch);
            assert_eq!(whole, stop == usize::MAX);
            if !whole {
                assert_eq!(watch.0, stop);
            }
        }
        (known, device.measured)
    };
    assert_eq!(run(&[usize::MAX]), run(&[5, 40, usize::MAX]));
}

#[test]
fn a_limit_on_the_rows_is_kept_and_its_cost_told() {
    let mesh = Mesh::new(9, 16, 1 << 16, 1 << 30);
    let (mut device, mut known) = (Scripted::new(0.0), Known::new());
    let settings = Settings::default();
    sweep(&mut device, &mesh, &[AREA], true, &settings, &mut known, &mut Count(0, usize::MAX));
    let (all, _) = distil(&mesh, AREA, &known, 0.0, 1000);
    let (few, _) = distil(&mesh, AREA, &known, 0.0, 2);
    assert_eq!(few, all[..2]);
    let (none, cost) = distil(&mesh, AREA, &Known::new(), 0.02, 10);
    assert!(none.is_empty() && cost == 0.0);
}
