//! The published kernels, searched as published.

use std::collections::{HashMap, HashSet};

use gemv::unstable::{Desc, Params};
use gemv_tune::{
    Failure, Measurements, Mesh, Point, ProblemClass, ProblemResult, Progress, Runner,
    SearchSettings, Trial, search,
};

/// Kernels that are compiled between two checks of `stopped`.
const BUILT: usize = 64;

/// A candidate that is this many times slower than the best of a sample is not measured further there, and does
/// not count for its tile. It would have to be 1.3 times as fast as the tile's best on the other eight samples.
const HOPELESS: f64 = 8.0;

/// The search as published: every combination on 3 x 3 samples of each tile, but for those [far
/// behind](HOPELESS), and the best over them together. Returns the mesh of the tiles' centres, and the results of the tiles.
///
/// The kernels of a type are compiled before its first problem, which takes minutes; `stopped`
/// is checked meanwhile.
pub(super) fn published(
    runner: &mut dyn Runner,
    mesh: &Mesh,
    classes: &[ProblemClass],
    known: &mut Measurements,
    watch: &mut dyn Progress,
    stopped: &dyn Fn() -> bool,
) -> (Mesh, Measurements) {
    let (sizes, max_bytes) = (mesh.sizes(), mesh.max_bytes());
    let (from, to) = (sizes[0], sizes[sizes.len() - 1]);
    let fine = Mesh::new(3 * sizes.len(), from, to, max_bytes);
    let mut settings = SearchSettings::default();
    // Each is measured to the end that is not far behind.
    (settings.hopeless, settings.finalists, settings.rounds) = (HOPELESS, usize::MAX, 1);
    let mut plan = Vec::new();
    for a in classes {
        let points = fine.points(*a).into_iter();
        plan.extend(points.filter_map(|at| fine.desc(*a, at)));
    }
    let total = plan.len();
    let smallest = |of: &Desc| {
        let alike = plan.iter().filter(|d| (d.dtype, d.layout) == (of.dtype, of.layout));
        alike.min_by_key(|d| d.bytes()).copied().unwrap_or(*of)
    };
    let smallest: Vec<Desc> = plan.iter().map(smallest).collect();
    let mut built = HashSet::new();
    'all: for (done, (desc, least_work)) in plan.into_iter().zip(smallest).enumerate() {
        if known.contains_key(&desc) {
            continue;
        }
        let all = runner.candidates(&desc);
        let fresh = all.iter().filter(|p| built.insert((desc.dtype, **p)));
        // On the smallest problem: on a large one a slow kernel would run for a second.
        let mut small =
            |p: &Params| if runner.launch_id(&least_work, p).is_some() { least_work } else { desc };
        let fresh: Vec<Params> = fresh.copied().collect();
        let fresh: Vec<(Desc, Params)> = fresh.iter().map(|p| (small(p), *p)).collect();
        if fresh.len() > BUILT {
            eprintln!("building {} kernels for {}", fresh.len(), desc.dtype);
        }
        for part in fresh.chunks(BUILT) {
            runner.prepare(part);
            if stopped() {
                break 'all;
            }
        }
        let least = least(known, &desc);
        // What was fast on smaller problems first, so that the slow are known early.
        let mut all = all;
        let first = |p: &Params| least.get(p).copied().unwrap_or(0.0);
        all.sort_by(|a, b| first(a).total_cmp(&first(b)));
        let runner = &mut Bounded { runner, least, best: f64::INFINITY, measured: HashSet::new() };
        let result = search(runner, &desc, &all, &[], &settings);
        let go_on = watch.done(&result, done + 1, total);
        known.insert(desc, result);
        if go_on.is_break() {
            break;
        }
    }
    let centres: Vec<usize> = fine.sizes().iter().skip(1).step_by(3).copied().collect();
    let (tiles, mut together) = (Mesh::of(centres, max_bytes), Measurements::new());
    for a in classes {
        for at in tiles.points(*a) {
            let samples = (0..9).filter_map(|k| {
                let at = Point { i: 3 * at.i + k / 3, j: 3 * at.j + k % 3 };
                known.get(&fine.desc(*a, at)?)
            });
            let samples: Vec<ProblemResult> = samples.cloned().collect();
            let centre = tiles.desc(*a, at).expect("a point of the mesh");
            if let Some(tile) = reduced(runner, &centre, &samples) {
                together.insert(centre, tile);
            }
        }
    }
    (tiles, together)
}

/// The longest time of each candidate on a problem with no more rows and no more columns: it takes about as long
/// on this one, or longer.
fn least(known: &Measurements, desc: &Desc) -> HashMap<Params, f64> {
    let mut least = HashMap::new();
    let smaller = known.values().filter(|result| {
        let d = &result.desc;
        (d.dtype, d.layout) == (desc.dtype, desc.layout) && d.m <= desc.m && d.n <= desc.n
    });
    for trial in smaller.flat_map(|result| &result.trials) {
        let time = least.entry(trial.params).or_insert(0.0);
        *time = trial.low.max(*time);
    }
    least
}

/// A runner that does not run what is known to be [`HOPELESS`]. One thread with a long row takes a
/// second where the best kernel takes 50 us: a thousand such candidates would be most of the search.
struct Bounded<'a> {
    runner: &'a mut dyn Runner,
    least: HashMap<Params, f64>,
    best: f64,
    measured: HashSet<Params>,
}

impl Runner for Bounded<'_> {
    fn candidates(&mut self, desc: &Desc) -> Vec<Params> {
        self.runner.candidates(desc)
    }
    fn launch_id(&mut self, desc: &Desc, params: &Params) -> Option<u64> {
        self.runner.launch_id(desc, params)
    }
    fn prepare(&mut self, all: &[(Desc, Params)]) {
        self.runner.prepare(all);
    }
    fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
        let least = self.least.get(params).copied().unwrap_or(0.0);
        // With room for noise, and for launches that suit the larger problem better.
        if least > 1.5 * HOPELESS * self.best && !self.measured.contains(params) {
            return Err(Failure::Slow(least));
        }
        let seconds = self.runner.measure(desc, params)?;
        if seconds < self.best {
            // A wrong one may be fast, and must not rule out others.
            self.runner.check(desc, params)?;
            self.best = seconds;
        }
        self.measured.insert(*params);
        Ok(seconds)
    }
    fn check(&mut self, desc: &Desc, params: &Params) -> Result<(), Failure> {
        self.runner.check(desc, params)
    }
    fn revoked(&mut self) -> Vec<(Params, Failure)> {
        self.runner.revoked()
    }
    fn read_seconds(&mut self, desc: &Desc) -> Option<f64> {
        self.runner.read_seconds(desc)
    }
}

/// One problem for all samples of a tile. Its times are their geometric means, of the
/// candidates that count on each.
fn reduced(
    runner: &mut dyn Runner,
    centre: &Desc,
    samples: &[ProblemResult],
) -> Option<ProblemResult> {
    let first = samples.first()?;
    let mut result = ProblemResult { desc: *centre, trials: vec![], ..first.clone() };
    for params in runner.candidates(centre) {
        // What a candidate launches, and which others launch the same, depends on the problem.
        let Some(launch_id) = runner.launch_id(centre, &params) else { continue };
        if result.trials.iter().any(|t| t.launch_id == launch_id) {
            continue;
        }
        let trial = |s: &ProblemResult| {
            let launch_id = runner.launch_id(&s.desc, &params)?;
            s.trials.iter().find(|t| t.checked && t.launch_id == launch_id).cloned()
        };
        let trials: Option<Vec<Trial>> = samples.iter().map(trial).collect();
        if let Some(trials) = trials {
            let logs = trials.iter().map(|t| t.seconds.ln()).sum::<f64>();
            let seconds = (logs / trials.len() as f64).exp();
            let one = trials.into_iter().next().expect("there is a sample");
            let (low, high) = (seconds, seconds);
            result.trials.push(Trial {
                params,
                launch_id,
                seconds,
                low,
                high,
                finalist: true,
                ..one
            });
        }
    }
    result.trials.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Some(result)
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use gemv::Dtype;
    use gemv::unstable::{Align, Layout};

    /// The second is best where there are more than 30 rows, else the first; the third is slow, and does
    /// not run for many columns; the fourth is out of the question; the fifth is fast and wrong.
    struct Paper(usize, Vec<Params>);

    impl Runner for Paper {
        fn prepare(&mut self, all: &[(Desc, Params)]) {
            self.1.extend(all.iter().map(|a| a.1));
        }
        fn candidates(&mut self, _: &Desc) -> Vec<Params> {
            ["a", "b", "c", "d", "e"].map(|of| Params::new(&format!("classic-{of}"))).to_vec()
        }
        fn launch_id(&mut self, desc: &Desc, params: &Params) -> Option<u64> {
            // As on a device: the size of a launch depends on the problem.
            let name = params.kernel().to_string();
            Some(desc.m as u64 * 1000 + u64::from(name.as_bytes()[name.len() - 1]))
        }
        fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
            self.0 += 1;
            match params.kernel().as_str() {
                "classic-c" if desc.n > 40 => Err(Failure::Canary(0)),
                "classic-c" => Ok(0.9 * HOPELESS * 1e-6),
                "classic-e" => Ok(1e-9),
                "classic-d" if desc.m > 10 && desc.n > 10 => {
                    panic!("it was slow on a smaller problem")
                }
                "classic-d" => Ok(2.0 * HOPELESS * 1e-6),
                name => Ok(if (name == "classic-b") == (desc.m > 30) { 1e-6 } else { 2e-6 }),
            }
        }
        fn check(&mut self, _: &Desc, params: &Params) -> Result<(), Failure> {
            if params.kernel().as_str() == "classic-e" { Err(Failure::Canary(1)) } else { Ok(()) }
        }
    }

    struct Until(usize);

    impl Progress for Until {
        fn done(&mut self, result: &ProblemResult, _: usize, _: usize) -> ControlFlow<()> {
            let out: Vec<_> = result.trials.iter().filter(|t| !t.finalist).collect();
            let slow = |why: &&(Params, Failure)| matches!(why.1, Failure::Slow(_));
            let slow = result.failures.iter().filter(slow);
            let out: Vec<Params> = out.iter().map(|t| t.params).chain(slow.map(|f| f.0)).collect();
            assert_eq!(out, [Params::new("classic-d")], "a slow one is not dropped");
            assert_eq!(result.trials.len() + result.failures.len(), 5);
            self.0 -= 1;
            if self.0 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }

    #[test]
    fn it_goes_on_where_it_was_stopped_and_a_tile_is_chosen_together() {
        let mesh = Mesh::new(3, 10, 160, 1 << 20);
        let class =
            ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::ANY, rhs: 1 };
        let run = |stops: &[usize]| {
            let (mut runner, mut known) = (Paper(0, vec![]), Measurements::new());
            let mut tiles = None;
            for &stop in stops {
                let watch = &mut Until(stop);
                let go_on = || false;
                tiles = Some(published(&mut runner, &mesh, &[class], &mut known, watch, &go_on));
            }
            assert_eq!(runner.1.len(), 5 * stops.len(), "each is built once a run");
            (tiles.unwrap(), known, runner.0)
        };
        let ((tiles, known), samples, measured) = run(&[usize::MAX]);
        let again = run(&[7, 30, usize::MAX]);
        assert!(samples == again.1 && measured == again.2, "{measured}, then {}", again.2);
        assert_eq!((samples.len(), known.len()), (81, 9));
        assert_eq!(tiles.sizes().len(), 3);
        // Stopped while kernels are built: nothing was measured.
        let (mut runner, mut none) = (Paper(0, vec![]), Measurements::new());
        let watch = &mut Until(usize::MAX);
        published(&mut runner, &mesh, &[class], &mut none, watch, &|| true);
        assert!(none.is_empty() && runner.0 == 0);
        for at in tiles.points(class) {
            let tile = &known[&tiles.desc(class, at).unwrap()];
            let best = tile.best().unwrap().params.to_string();
            // The middle tile's samples lie on both sides of 30: two of three above.
            assert_eq!(best, if at.i == 0 { "classic-a" } else { "classic-b" }, "{at:?}");
            assert!(tile.desc.n < 100 || tile.trials.len() == 2, "what fails is no choice");
        }
    }
}
