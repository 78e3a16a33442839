//! A device that exists on paper only: its times follow from a formula and seeded noise, some of
//! its candidates fail, and some are fast and wrong.

use std::ops::ControlFlow;

use super::paper::Timed;
use super::*;
use gemv_core::{Align, Desc, Dtype, Error, Layout, Params, Table};

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
    ceiling: Option<f64>,
    revoke: bool,
}

impl Scripted {
    fn new(noise: f64) -> Scripted {
        let (seed, checked) = (7, Vec::new());
        Scripted { noise, seed, measured: 0, checked, ceiling: None, revoke: false }
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

    fn read_seconds(&mut self, desc: &Desc) -> Option<f64> {
        Some(desc.bytes() as f64 / self.ceiling?)
    }
}

/// Stops after so many problems.
struct Count(usize, usize);

impl Progress for Count {
    fn done(&mut self, _: &ProblemResult, done: usize, total: usize) -> ControlFlow<()> {
        assert!(done <= total);
        self.0 += 1;
        if self.0 == self.1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

const CLASS: ProblemClass =
    ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE, rhs: 1 };

fn desc(m: usize, n: usize) -> Desc {
    Desc::of(Dtype::F32, Layout::Row, (m, n), 6)
}

fn launch_id(params: &Params) -> u64 {
    Scripted::new(0.0).launch_id(&desc(1, 1), params).expect("all are legal")
}

/// A finalist that took this long in every batch.
fn trial(params: Params, seconds: f64) -> Trial {
    let (low, high, launch_id) = (seconds, seconds, launch_id(&params));
    Trial { params, launch_id, seconds, low, high, batches: 9, checked: true, finalist: true }
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
        let result = search(&mut device, &d, &space(), &[], &SearchSettings::default());
        let best = result.best().expect("there are right candidates");
        let cost = Scripted::truth(&d, &best.params) / truly_best(&d);
        assert!(cost < 1.03, "{d}: {} costs {cost}", best.params);
        assert!(best.checked && best.finalist && best.batches.is_multiple_of(5), "{best:?}");
        // Twice as fast as all others, and each was refused by name.
        let mut failed: Vec<_> = result.failures.iter().map(|f| f.0.to_string()).collect();
        failed.sort();
        assert_eq!(failed, ["canary", "late", "refused", "wrong"]);
        let named = |p: &Trial| p.params.kernel().as_str() == "row";
        assert!(result.trials.iter().all(named));
        assert_eq!(result.trials.len() + 4, result.candidates);
        // Far fewer than all candidates in all rounds.
        assert!(device.measured < 5 * space().len(), "{}", device.measured);
    }
}

#[test]
fn a_forced_candidate_reaches_the_end_and_a_foreign_one_is_measured() {
    let slow = Params::new("row").with("threads", 32).with("rows", 8).with("split", 16);
    let foreign = Params::new("row").with("threads", 512).with("rows", 1).with("split", 1);
    let d = desc(1 << 14, 1 << 10);
    let forced = [slow, foreign];
    let result = search(&mut Scripted::new(0.0), &d, &space(), &forced, &SearchSettings::default());
    for p in forced {
        assert_eq!(result.finalist(launch_id(&p)), Some(Scripted::truth(&d, &p)));
    }
    assert_eq!(result.candidates, space().len());
}

#[test]
fn the_ceiling_ends_the_search_only_where_it_is_reached_with_the_right_bits() {
    let d = desc(1 << 13, 1 << 12);
    let mut order = space();
    order.reverse(); // The fast and wrong ones come first.
    let mut device = Scripted::new(0.0);
    device.ceiling = Some(0.9 * d.bytes() as f64 / truly_best(&d));
    let result = search(&mut device, &d, &order, &[], &SearchSettings::default());
    assert!(result.at_ceiling);
    assert_eq!(result.best().unwrap().params.kernel().as_str(), "row");
    assert!(device.measured < order.len(), "{}", device.measured);
    // Nor does noise keep it from an end, whoever is fastest in a batch.
    for seed in 1..200 {
        let mut device = Scripted { seed, ..Scripted::new(0.5) };
        device.ceiling = Some(0.8 * d.bytes() as f64 / truly_best(&d));
        let result = search(&mut device, &d, &order, &[], &SearchSettings::default());
        assert!(result.best().is_some() && device.measured < 20 * order.len());
    }
    // Nor does one end anything that was measured while the device was busy: the best is twice as fast.
    let mut device = Scripted::new(0.0);
    device.ceiling = Some(0.5 * d.bytes() as f64 / truly_best(&d));
    let result = search(&mut device, &d, &order, &[], &SearchSettings::default());
    assert!(!result.at_ceiling && result.best().unwrap().seconds == truly_best(&d));
    // A ceiling that nobody reaches ends nothing.
    let mut device = Scripted::new(0.0);
    device.ceiling = Some(4e12);
    let result = search(&mut device, &d, &order, &[], &SearchSettings::default());
    assert!(!result.at_ceiling && device.measured >= order.len());
}

#[test]
fn a_problem_where_nothing_counts_has_no_best() {
    let bad = [Params::new("wrong"), Params::new("refused")];
    let result =
        search(&mut Scripted::new(0.0), &desc(9, 9), &bad, &[], &SearchSettings::default());
    assert!(result.best().is_none() && result.trials.is_empty());
    assert_eq!(result.failures.len(), 2);
}

/// What a whole sweep of these classes measures.
fn swept(runner: &mut dyn Runner, mesh: &Mesh, classes: &[ProblemClass]) -> Measurements {
    let (settings, mut known) = (SearchSettings::default(), Measurements::new());
    assert!(sweep(runner, mesh, classes, &settings, &mut known, &mut Count(0, usize::MAX)));
    known
}

const LEGAL: &dyn Fn(&Desc, &Params) -> bool = &|_, _| true;

/// The whole way: sweep, refine, fit, and the regret on shapes that were not measured.
#[test]
fn a_sweep_is_cheap_and_its_table_has_little_regret() {
    let mesh = Mesh::new(24, 16, 1 << 22, 1 << 32);
    let settings = SearchSettings::default();
    let mut device = Scripted::new(0.02);
    let mut known = swept(&mut device, &mesh, &[CLASS]);
    let mut progress = Count(0, usize::MAX);
    let points = mesh.problems(CLASS).len();
    assert_eq!(known.len(), points);
    assert!(refine(&mut device, &mesh, &[CLASS], 0.05, &settings, &mut known, &mut progress));
    let finer = known.len() - points;
    assert!(finer > 10 && finer < 2 * points, "{finer} beside {points}");
    let before = device.measured;
    assert!(refine(&mut device, &mesh, &[CLASS], 0.05, &settings, &mut known, &mut progress));
    assert_eq!(device.measured, before, "what is known is not measured again");

    let fit_settings = FitSettings::default();
    let part = fit(&mut device, CLASS, &known, LEGAL, &fit_settings);
    assert!(part.rows.len() < points / 2, "{} rows of {points} points", part.rows.len());
    assert!((0.0..settings.tie).contains(&part.cost), "{}", part.cost);
    let text = Table { rows: part.rows, ..Table::default() }.to_string();
    let table = Table::parse("fitted", &text).unwrap();
    for (d, result) in &known {
        let chosen = table.nearest(d)[0].params;
        let time =
            result.seconds(launch_id(&chosen)).expect("a choice was checked wherever it is used");
        assert!(time <= result.best().unwrap().seconds * (1.01 + part.worst), "{d}: {chosen}");
    }

    let shapes = mesh.between(CLASS, 600);
    let bad = Params::new("row").with("threads", 32).with("rows", 8).with("split", 16);
    let ways: [&dyn Fn(&Desc) -> Params; 2] = [&|_| bad, &|d| table.nearest(d)[0].params];
    let mut seen = Measurements::new();
    let held = holdout(&mut device, &shapes, &ways, &settings, &mut seen, &mut progress);
    let regret: Vec<_> = (0..2).map(|way| Regret::of(way, &held)).collect();
    assert!(regret[0].geomean > 0.2, "the bad choice: {}", regret[0]);
    assert!(regret[1].geomean < 0.005 && regret[1].worst < 0.15, "{}", regret[1]);
    assert_eq!((regret[1].shapes, regret[1].failed), (shapes.len(), 0));
    // Measurements shapes are not measured again.
    let before = device.measured;
    let again = holdout(&mut device, &shapes, &ways, &settings, &mut seen, &mut progress);
    assert_eq!((again, device.measured), (held, before));
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_stopped() {
    let mesh = Mesh::new(9, 16, 1 << 16, 1 << 30);
    let settings = SearchSettings::default();
    let run = |stops: &[usize]| {
        let (mut device, mut known) = (Scripted::new(0.0), Measurements::new());
        for &stop in stops {
            let mut progress = Count(0, stop);
            let class = [CLASS, ProblemClass { dtype: Dtype::F64, ..CLASS }];
            let whole = sweep(&mut device, &mesh, &class, &settings, &mut known, &mut progress);
            assert_eq!(whole, stop == usize::MAX);
            if !whole {
                assert_eq!(progress.0, stop);
            }
        }
        (known, device.measured)
    };
    assert_eq!(run(&[usize::MAX]), run(&[5, 40, usize::MAX]));
}

#[test]
fn the_luck_of_the_fastest_is_not_regret() {
    let mut device = Scripted::new(0.3);
    let shapes = Mesh::of(vec![16, 256, 4096, 65_536], 1 << 30).between(CLASS, 60);
    let truth = |d: &Desc, p: &Params| Scripted::truth(d, p);
    let best = |d: &Desc| {
        let all = space().into_iter().filter(|p| p.kernel().as_str() == "row");
        all.min_by(|a, b| truth(d, a).total_cmp(&truth(d, b))).unwrap()
    };
    let settings = SearchSettings { tie: 1.0, rounds: 5, ..SearchSettings::default() };
    let (mut seen, mut progress) = (Measurements::new(), Count(0, usize::MAX));
    let held = holdout(&mut device, &shapes, &[&best], &settings, &mut seen, &mut progress);
    let regret = Regret::of(0, &held);
    assert!(regret.shapes > 40 && regret.geomean < 0.015, "{regret} of the very best");
}

#[test]
fn a_limit_on_the_rows_is_kept_and_its_cost_told() {
    let mesh = Mesh::new(9, 16, 1 << 16, 1 << 30);
    let mut device = Scripted::new(0.0);
    let known = swept(&mut device, &mesh, &[CLASS]);
    let mut costs = Vec::new();
    for limit in [1000, 12, 2, 1] {
        let fit_settings = FitSettings { limit, row_cost: 0.0, ..FitSettings::default() };
        let part = fit(&mut device, CLASS, &known, LEGAL, &fit_settings);
        assert!(part.rows.len() <= limit && !part.rows.is_empty());
        costs.push(part.cost);
    }
    assert!(costs[0] < 0.01 && costs.is_sorted() && costs[3] > 0.02, "{costs:?}");
    let none = fit(&mut device, CLASS, &Measurements::new(), LEGAL, &FitSettings::default());
    assert!(none.rows.is_empty() && none.cost == 0.0);
}

/// The kernel of the next two tests, which is best where it is legal, and the rows that are made of that.
fn where_it_is_best(is_legal: fn(usize) -> bool) -> (Params, Table) {
    let mesh = Mesh::of(vec![4, 16, 64, 256, 1024], 1 << 30);
    let fast = Params::new("row").with("threads", 32).with("rows", 1).with("split", 1);
    let legal = |d: &Desc, p: &Params| is_legal(d.n) || *p != fast;
    let mut known = Measurements::new();
    let mut runner = Scripted::new(0.0);
    for d in mesh.problems(CLASS) {
        let all: Vec<Params> = space().into_iter().filter(|p| legal(&d, p)).collect();
        let mut result = search(&mut runner, &d, &all, &[], &SearchSettings::default());
        if is_legal(d.n) {
            let best = result.best().unwrap().clone();
            let (params, launch_id, seconds) = (fast, launch_id(&fast), 0.5 * best.seconds);
            result.trials.retain(|t| t.params != fast);
            result.trials.insert(0, Trial { params, launch_id, seconds, low: seconds, ..best });
        }
        known.insert(d, result);
    }
    (fast, fitted(&mut runner, &known, &legal))
}

/// A kernel for few columns is best as far as it is legal, which is not where points lie.
#[test]
fn a_row_ends_where_its_parameters_do_and_the_next_begins_there() {
    let (fast, table) = where_it_is_best(|n| n <= 24);
    for n in 1..=1024 {
        let nearest = table.nearest(&desc(100, n))[0];
        assert_eq!(nearest.params == fast, n <= 24, "{n} columns: {nearest}");
    }
}

/// A kernel for several segments is best from where it is legal on, and that is not where a point lies. Halfway to
/// the point before, it is not: the row must not lose its other edges for that.
#[test]
fn a_row_begins_where_its_parameters_do() {
    let (fast, table) = where_it_is_best(|n| n > 40);
    for m in [1, 4, 100, 1024] {
        for n in 1..=1024 {
            let rows = table.nearest(&desc(m, n));
            let nearest = rows.into_iter().find(|r| n > 40 || r.params != fast).unwrap();
            // Halfway from 16 to 64 is 32, and from there to 40 the row before serves.
            assert_eq!(nearest.params == fast, n > 40, "{m}x{n}: {nearest}");
        }
    }
}

/// What was measured with other candidates than there are now is nothing to choose from.
#[test]
fn no_rows_of_what_is_no_candidate() {
    let mut runner = Scripted::new(0.0);
    let d = desc(64, 64);
    let mut result = search(&mut runner, &d, &space()[..1], &[], &SearchSettings::default());
    result.trials[0].launch_id ^= 1;
    let rows = fitted(&mut runner, &Measurements::from([(d, result)]), LEGAL);
    assert!(rows.rows.is_empty());
}

/// A line between those of the mesh on which one point is known: what is best there is the slowest wherever else
/// something is known, and must not be taken for all rows of that line.
#[test]
fn one_point_does_not_speak_for_its_line() {
    let (usual, odd) = (space()[0], space()[1]);
    let mut runner = named(vec![usual, odd]);
    let mut known = Measurements::new();
    let lines = [16, 64].into_iter().flat_map(|n| [4, 16, 64, 256, 1024].map(|m| (m, n)));
    for (m, n) in lines.chain([(1024, 32)]) {
        let (first, second) = if n == 32 { (odd, usual) } else { (usual, odd) };
        known.extend([at(desc(m, n), [(first, 1e-6), (second, 3e-6)])]);
    }
    let table = fitted(&mut runner, &known, LEGAL);
    for (m, expected) in [(4, usual), (16, usual), (64, usual), (256, usual), (1024, odd)] {
        assert_eq!(table.nearest(&desc(m, 32))[0].params, expected, "{m}x32 of\n{table}");
    }
}

/// Kernels of 257 columns and more begin there, also where nothing is known between the mesh's points but at one: what
/// serves one segment says nothing of two, and what is legal nowhere around is not chosen for costing nothing.
#[test]
fn a_line_with_one_point_takes_after_its_own_side() {
    let [one, few, many, narrow] = ["one", "few", "many", "narrow"].map(Params::new);
    let legal = |d: &Desc, p: &Params| match p.kernel().as_str() {
        "narrow" => d.n <= 16,
        "few" | "many" => d.n > 256,
        _ => true,
    };
    let rows: Vec<usize> = (0..24).map(|k| 1 << k).collect();
    let mut known = Measurements::new();
    let lines = [16, 208, 384].into_iter().flat_map(|n| rows.iter().map(move |&m| (m, n)));
    for (m, n) in lines.chain([(1, 283)]) {
        // Which of the two it is hardly matters, and is not the same from row to row.
        let (d, second) = (desc(m, n), if m.ilog2() % 2 == 0 { few } else { many });
        let times = [one, few, many, narrow].into_iter().filter(|p| legal(&d, p)).map(|params| {
            let seconds = match (n, params) {
                (16, p) if p == narrow => 1e-6,
                (208, _) => 1e-6,
                (_, p) if p == second => 1.02e-6,
                (_, p) if p != one && n > 256 => 1e-6,
                _ => 1.25e-6,
            };
            (params, seconds)
        });
        known.extend([at(d, times)]);
    }
    let mut runner = named([one, few, many, narrow].into());
    let table = fitted(&mut runner, &known, &legal);
    for m in rows {
        for n in [240, 256, 257, 283, 320, 384] {
            let choice = chosen(&table, &legal, &desc(m, n));
            assert_eq!(choice == one, n <= 256, "{m}x{n} of\n{table}");
        }
    }
}

/// A kernel for few rows is the choice of a rectangle in which only few rows were measured. It ends within it. The
/// rest goes to the row behind, but nothing that lies beside the rectangle.
#[test]
fn what_a_row_leaves_over_takes_nothing_from_others() {
    let [few, short, long, tall] = ["few", "short", "long", "tall"].map(Params::new);
    let legal = |d: &Desc, p: &Params| *p != few || d.m <= 64;
    let mut known = Measurements::new();
    let (m_lines, n_lines) = ([64, 1024, 1 << 16], [16, 4096, 1 << 20]);
    for (m, n) in m_lines.into_iter().flat_map(|m| n_lines.map(|n| (m, n))) {
        if m * n > 1 << 28 {
            continue; // too large to be measured
        }
        let best = match (m, n) {
            (65_536, _) => tall,
            (_, 16) => short,
            (64, 1_048_576) => few,
            _ => long,
        };
        let d = desc(m, n);
        let all = [few, short, long, tall].into_iter().filter(|p| legal(&d, p));
        known.extend([at(d, all.map(|p| (p, if p == best { 1e-6 } else { 3e-6 })))]);
    }
    let mut runner = named([few, short, long, tall].into());
    let table = fitted(&mut runner, &known, &legal);
    for (m, n, choice) in
        [(64, 1 << 20, few), (64, 4096, long), (1024, 16, short), (1024, 4096, long)]
    {
        assert_eq!(chosen(&table, &legal, &desc(m, n)), choice, "{m}x{n} of\n{table}");
    }
}

/// A kernel that is best up to the last line, and ends soon behind it: of the others the better one goes on.
#[test]
fn there_is_a_row_for_what_lies_behind_the_last_line() {
    let [best, good, bad] = ["best", "good", "bad"].map(Params::new);
    let legal = |d: &Desc, p: &Params| *p != best || d.n <= 5000;
    let known = timed(&[4, 64, 1024], &[16, 256, 4096], &|_, _| {
        vec![(best, 1e-6), (good, 2e-6), (bad, 3e-6)]
    });
    let mut runner = named([best, good, bad].into());
    let table = fitted(&mut runner, &known, &legal);
    for (n, choice) in [(4096, best), (5000, best), (5001, good), (1 << 30, good)] {
        for m in [1, 64, 5000] {
            let first = table.nearest(&desc(m, n))[0];
            assert_eq!(first.params, choice, "{m}x{n} of\n{table}");
            assert!(first.holds(&desc(m, n)), "{m}x{n} of\n{table}");
        }
    }
}

/// The choice of the nearest row that is legal.
fn chosen(table: &Table, legal: &dyn Fn(&Desc, &Params) -> bool, desc: &Desc) -> Params {
    table.nearest(desc).into_iter().find(|row| legal(desc, &row.params)).unwrap().params
}

/// The table that is made of what is known. It has no row whose parameters are legal nowhere in its ranges.
fn fitted(
    runner: &mut dyn Runner,
    known: &Measurements,
    legal: &dyn Fn(&Desc, &Params) -> bool,
) -> Table {
    let rows = fit(runner, CLASS, known, legal, &FitSettings::default()).rows;
    let least = |log: f32| log.exp2().round() as usize;
    let idle = rows.iter().find(|r| !legal(&desc(least(r.m.0), least(r.n.0)), &r.params));
    assert!(idle.is_none(), "{idle:?}");
    Table { rows, ..Table::default() }
}

/// What is known where these choices take so long.
fn at(desc: Desc, times: impl IntoIterator<Item = (Params, f64)>) -> (Desc, ProblemResult) {
    let trials = times.into_iter().map(|(params, seconds)| trial(params, seconds));
    let mut trials: Vec<Trial> = trials.collect();
    trials.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    (desc, ProblemResult::new(desc, trials))
}

/// Points of so many rows and columns where these choices take so long.
fn timed(
    m: &[usize],
    n: &[usize],
    times: &dyn Fn(usize, usize) -> Vec<(Params, f64)>,
) -> Measurements {
    let points = m.iter().flat_map(|&m| n.iter().map(move |&n| (m, n)));
    points.map(|(m, n)| at(desc(m, n), times(m, n))).collect()
}

/// What is made of these points by a table that starts from those rows.
fn from(known: &Measurements, rows: &str, limit: usize) -> (Fit, Table) {
    let names = known.values().flat_map(|c| c.trials.iter().map(|t| t.params));
    let mut choices: Vec<Params> = names.collect();
    choices.sort();
    choices.dedup();
    let from = Table::parse("present", rows).unwrap().rows;
    let settings = FitSettings { limit, from, ..FitSettings::default() };
    let part = fit(&mut named(choices), CLASS, known, LEGAL, &settings);
    let table = Table { rows: part.rows.clone(), ..Table::default() };
    (part, table)
}

/// What lies between the end of one kernel and the begin of the next gets no row of the next: the nearest legal one
/// serves there.
#[test]
fn no_row_is_for_what_its_kernel_cannot_compute() {
    let [few, wide, any] = ["few", "wide", "any"].map(Params::new);
    let legal = |d: &Desc, p: &Params| match p.kernel().as_str() {
        "few" => d.n <= 18,
        "wide" => d.n >= 60,
        _ => true,
    };
    let known = timed(&[4, 64], &[4, 16, 64, 256], &|_, n| {
        let best = if n <= 16 { few } else { wide };
        vec![(best, 1.0), (any, 1.5)]
    });
    let rows = fitted(&mut named(vec![few, wide, any]), &known, &legal).rows;
    assert!(rows.iter().any(|r| r.params == few) && rows.iter().any(|r| r.params == wide));
}

const SIZES: [usize; 7] = [4, 16, 64, 256, 1024, 4096, 16_384];

/// An edge that lies between the points, as a person found it, and a row for what no point sees.
const BY_HAND: &str = "f32 row align=16.. n=40 : c\nf32 row align=16.. n=1..100 : a\n\
                       f32 row align=16.. n=101.. : b\n";

#[test]
fn what_the_present_rows_have_stays_unless_something_pays() {
    let [a, b, c] = ["a", "b", "c"].map(Params::new);
    let side = |n: usize, best: f64| match n <= 100 {
        true => vec![(a, best), (b, 2.0), (c, 3.0)],
        false => vec![(a, 2.0), (b, best), (c, 3.0)],
    };
    // As good as can be.
    let known = timed(&SIZES, &SIZES, &|_, n| side(n, 1.0));
    let (part, table) = from(&known, BY_HAND, 100);
    assert_eq!((table.to_string().as_str(), part.kept, part.worst), (BY_HAND, 3, 0.0));
    // From nothing the edge is at a power of two.
    assert!(!from(&known, "", 100).1.to_string().contains("100"));

    // 2 % at one point are chance, 50 % at a few are not; and what they are not best at stays.
    let known = timed(&SIZES, &SIZES, &|m, n| match (m, n) {
        (64, 16) => vec![(a, 1.02), (b, 1.0), (c, 3.0)],
        (1024.., 1024..) => vec![(a, 2.0), (b, 1.5), (c, 1.0)],
        _ => side(n, 1.0),
    });
    let (part, table) = from(&known, BY_HAND, 100);
    let new = "f32 row align=16.. m=513.. n=513.. : c\n";
    assert_eq!((table.to_string(), part.kept), (format!("{new}{BY_HAND}"), 3));
    assert!(part.worst < 0.021, "{}", part.worst);
}

#[test]
fn present_rows_that_are_worse_everywhere_leave_nothing() {
    let [a, b, c] = ["a", "b", "c"].map(Params::new);
    let times = |m: usize, n: usize| {
        let (one, other) = if m * n > 10_000 { (1.0, 1.5) } else { (1.5, 1.0) };
        vec![(a, one), (b, other), (c, 3.0)]
    };
    let known = timed(&SIZES, &SIZES, &times);
    let (nothing, _) = from(&known, "", 100);
    assert_eq!(from(&known, "f32 row : c", 100).0, nothing);
    // Nor do rows that nothing can be measured of, since they are not legal or do not count.
    assert_eq!(from(&known, "f32 row : unknown", 100).0, nothing);
    // Of half of it, they are what stays.
    let (part, table) = from(&known, "f32 row : a", 100);
    assert!(part.kept == 1 && part.cost <= nothing.cost, "{table}");
}

/// The nearest of rows with a gap between them serves there. A new row beside it is nearer, and must not take it.
#[test]
fn a_new_row_takes_nothing_from_the_gaps_of_the_present_ones() {
    let [a, b, c] = ["a", "b", "c"].map(Params::new);
    let gaps = "f32 row n=1..20 : a\nf32 row n=3000.. : b\n";
    let known = timed(&SIZES, &SIZES, &|m, n| match (m, n) {
        (256, 256) => vec![(a, 3.0), (b, 3.0), (c, 1.0)],
        (_, ..200) => vec![(a, 1.0), (b, 2.0), (c, 2.0)],
        _ => vec![(a, 2.0), (b, 1.0), (c, 2.0)],
    });
    let (part, table) = from(&known, gaps, 100);
    for (d, result) in &known {
        let row = table.nearest(d)[0];
        assert!(row.holds(d) && row.params == result.best().unwrap().params, "{d} of\n{table}");
    }
    assert_eq!((part.worst, part.rows.len() - part.kept), (0.0, 1), "{table}");
}

#[test]
fn present_rows_count_and_too_many_of_them_are_replaced() {
    let [a, b, c] = ["a", "b", "c"].map(Params::new);
    let times = |m: usize, n: usize| match (m, n) {
        (..20, _) => vec![(a, 1.0), (b, 1.2), (c, 3.0)],
        (1024.., 1024..) => vec![(a, 1.5), (b, 1.5), (c, 1.0)],
        _ => vec![(a, 1.2), (b, 1.0), (c, 3.0)],
    };
    let known = timed(&SIZES, &SIZES, &times);
    // A row for each line, where two would do.
    let edges = SIZES.map(|m| (m, 4 * m - 1, if m < 20 { "a" } else { "b" }));
    let each = edges.map(|(low, high, name)| format!("f32 row m={low}..{high} : {name}\n"));
    let part = |limit| from(&known, &each.concat(), limit).0;
    let whole = part(8);
    assert_eq!((whole.kept, whole.rows.len(), whole.worst), (7, 8, 0.0));
    // No room for the new row beside them: three from nothing cost less than they do.
    let few = part(7);
    assert_eq!((few.kept, few.worst), (0, 0.0), "{:?}", few.rows);
    // And no room for them.
    assert!(part(2).rows.len() <= 2 && part(2).kept == 0);
}

/// Where one that reached the ceiling ended the search, the present choice was not asked, and that is nothing against it.
#[test]
fn what_the_ceiling_left_out_may_stay() {
    let [a, b] = ["a", "b"].map(Params::new);
    let mut known = timed(&SIZES, &SIZES, &|_, _| vec![(a, 1.0), (b, 1.0)]);
    for (_, result) in known.iter_mut().filter(|(d, _)| d.m * d.n > 1 << 20) {
        result.at_ceiling = true;
        result.trials.retain(|t| t.params == a);
    }
    assert_eq!(from(&known, "f32 row : b", 100).1.to_string(), "f32 row : b\n");
}

/// These candidates for all, of which nothing is measured any more.
fn named(candidates: Vec<Params>) -> impl Runner {
    let seconds = |_: &Desc, _: &Params| unreachable!("what is known is not measured");
    Timed { candidates, seconds }
}

/// Four alike and one a little better, on a machine whose neighbours take half of its bandwidth now
/// and then, for some rounds.
fn shared(mut batch: u64) -> impl Runner {
    let seconds = move |_: &Desc, params: &Params| {
        let busy = [1.0, 1.7, 1.1, 1.4, 2.1][(batch as usize / 5) % 5];
        batch += 1;
        let own = if params.kernel().as_str() == "d" { 0.97 } else { 1.0 };
        // Within a round all are met alike, up to this.
        1e-5 * busy * own * (1.0 + 0.005 * ((batch * 7) % 3) as f64)
    };
    Timed { candidates: ["a", "b", "c", "d", "e"].map(Params::new).into(), seconds }
}

#[test]
fn what_befalls_a_whole_round_does_not_decide() {
    let desc = Desc::of(Dtype::F32, Layout::Row, (100, 100), 6);
    for offset in (0..25).step_by(5) {
        let mut shared = shared(offset);
        let all = shared.candidates(&desc);
        let settings = SearchSettings { hopeless: 3.0, rounds: 3, ..SearchSettings::default() };
        let result = search(&mut shared, &desc, &all, &[], &settings);
        assert_eq!(result.best().unwrap().params, Params::new("d"), "{offset}");
        let (best, other) = (&result.trials[0], &result.trials[1]);
        let ratio = other.seconds / best.seconds;
        assert!((1.02..1.05).contains(&ratio), "{offset}: {ratio}");
        assert!(best.high < 1.03 * best.low, "{offset}: {} to {}", best.low, best.high);
    }
}

/// The first of two is the better one everywhere, but other programs take most of the machine while its first batches run
/// at one point.
fn unlucky() -> impl Runner {
    let mut batches = 0;
    let seconds = move |desc: &Desc, params: &Params| {
        let first = params.kernel().as_str() == "a";
        if first && desc.m == 128 && desc.n == 128 {
            batches += 1;
            return if batches <= 2 { 5e-6 } else { 1e-6 };
        }
        if first { 1e-6 } else { 1.3e-6 }
    };
    Timed { candidates: ["a", "b", "c"].map(Params::new).into(), seconds }
}

#[test]
fn what_wins_all_around_is_not_given_up_for_unlucky_batches() {
    let mesh = Mesh::of(vec![16, 128, 1024], 1 << 30);
    let best = |neighbours| {
        let settings = SearchSettings { neighbours, ..SearchSettings::default() };
        let (mut known, mut progress) = (Measurements::new(), Count(0, usize::MAX));
        assert!(sweep(&mut unlucky(), &mesh, &[CLASS], &settings, &mut known, &mut progress));
        let at = known.values().find(|result| (result.desc.m, result.desc.n) == (128, 128));
        at.unwrap().best().unwrap().params.to_string()
    };
    assert_eq!((best(0), best(1)), ("b".into(), "a".into()));
}

/// A further line is known in part of the grid: its ends have one known corner, which is no disagreement.
#[test]
fn nothing_is_refined_where_one_choice_is_best_everywhere() {
    let mesh = Mesh::of(vec![16, 256, 4096], 1 << 30).with_lines(Layout::Row, &[64], 200..=300);
    // Far from the problem at which it is unlucky.
    let mut runner = unlucky();
    let mut known = swept(&mut runner, &mesh, &[CLASS]);
    let (settings, mut progress) = (SearchSettings::default(), Count(0, usize::MAX));
    assert!(known.keys().any(|desc| (desc.m, desc.n) == (64, 256)) && known.len() == 10);
    refine(&mut runner, &mesh, &[CLASS], 0.05, &settings, &mut known, &mut progress);
    assert_eq!(known.len(), 10);
}

/// Kernels that read A once for so many right-hand sides: a tile that is too wide computes columns that
/// are not there, one that is too narrow reads A again. Tall matrices fare better with a narrower one.
struct Sides;

impl Sides {
    fn truth(desc: &Desc, params: &Params) -> f64 {
        let tile = params.get_or("tile_rhs", 1) as usize;
        let passes = desc.rhs.div_ceil(tile) as f64;
        let waste = if desc.m > 1000 { 0.2 } else { 0.05 };
        1e-6 + passes * (1.0 + waste * tile as f64) * (desc.m * desc.n) as f64 / 1e12
    }
}

impl Runner for Sides {
    fn candidates(&mut self, desc: &Desc) -> Vec<Params> {
        assert_eq!(desc.batch, 1);
        let one = [Params::new("row"), Params::new("wrong")];
        let tiles = [2, 4, 8, 16].map(|tile| Params::new("tiled").with("tile_rhs", tile));
        if desc.rhs == 1 { one.into() } else { [&one[..], &tiles].concat() }
    }
    fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
        let wrong = if params.kernel().as_str() == "wrong" { 0.1 } else { 1.0 };
        Ok(wrong * Sides::truth(desc, params))
    }
    fn check(&mut self, _: &Desc, params: &Params) -> Result<(), Failure> {
        match params.kernel().as_str() {
            "wrong" => Err(Failure::Wrong { row: 0, got: "1".into(), want: "2".into() }),
            _ => Ok(()),
        }
    }
}

#[test]
fn each_class_of_right_hand_sides_has_rows_of_its_own() {
    let mesh = Mesh::of(vec![64, 512, 4096, 32_768], 1 << 30);
    let class = |rhs| ProblemClass { rhs, ..CLASS };
    let classes = [1, 2, 4, 8, 16, 64].map(class);
    let known = swept(&mut Sides, &mesh, &classes);
    let (settings, mut progress) = (SearchSettings::default(), Count(0, usize::MAX));
    for class in classes {
        let points = mesh.problems(class).len();
        assert_eq!(known.keys().filter(|d| d.rhs == class.rhs).count(), points);
        // 32768 x 32768 is 4 GiB.
        assert_eq!(points, 15, "{class:?}");
    }
    // The largest of A, X and Y counts.
    let small = Mesh::of(vec![16, 32_768], 1 << 21);
    assert_eq!([1, 16, 17].map(|rhs| small.problems(class(rhs)).len()), [3, 3, 1]);

    let legal = |desc: &Desc, params: &Params| {
        // A rule that relates a tile and the number of columns.
        desc.rhs > 1 || params.kernel().as_str() == "row"
    };
    let mut rows = Vec::new();
    for class in classes {
        let part = fit(&mut Sides, class, &known, &legal, &FitSettings::default());
        assert!(!part.rows.is_empty(), "{class:?}");
        for row in &part.rows {
            assert_eq!((row.rhs, row.batch), (class.counts(), class.counts().map(|_| (1, 1))));
        }
        rows.extend(part.rows);
    }
    let table = Table { rows, ..Table::default() };
    let text = table.to_string();
    assert_eq!(Table::parse("", &text).unwrap(), table, "{text}");
    for part in [" rhs=2 ", " rhs=3..4 ", " rhs=5..8 ", " rhs=9..16 ", " rhs=17.. "] {
        assert!(text.contains(&format!("{part}batch=1 ")), "{part}: {text}");
    }
    let choice = |m, n, rhs| {
        let desc = Desc { rhs, ..desc(m, n) };
        table.nearest(&desc)[0].params.get_or("tile_rhs", 1)
    };
    assert_eq!([1, 2, 3, 8, 16, 100].map(|rhs| choice(512, 512, rhs)), [1, 2, 4, 8, 16, 16]);
    let batch = Desc { rhs: 8, batch: 2, ..desc(512, 512) };
    assert!(!table.rows.iter().any(|row| row.rhs.is_some() && row.holds(&batch)), "{text}");

    // Shapes that are not on the mesh, with their right-hand sides.
    let shapes: Vec<Desc> = classes.iter().flat_map(|&class| mesh.between(class, 8)).collect();
    assert_eq!(shapes.len(), 48);
    let tuned = |desc: &Desc| table.nearest(desc)[0].params;
    let worst = |desc: &Desc| match desc.rhs {
        1 => Params::new("row"),
        _ => Params::new("tiled").with("tile_rhs", 2),
    };
    let mut held = Measurements::new();
    let ways: [&dyn Fn(&Desc) -> Params; 2] = [&tuned, &worst];
    let all = holdout(&mut Sides, &shapes, &ways, &settings, &mut held, &mut progress);
    let (tuned, worst) = (Regret::of(0, &all), Regret::of(1, &all));
    assert_eq!((tuned.shapes, tuned.failed), (48, 0));
    assert!(tuned.geomean < 0.01 && worst.geomean > 0.1, "{tuned}; {worst}");
}
