//! One problem: the best of its candidates, by successive halving.

use std::hash::{DefaultHasher, Hash, Hasher};

use gemv_core::{Desc, Error, Params};

/// What the search sees of a device.
///
/// ```
/// use gemv_lab::tuner::{Failure, Runner, SearchSettings, search};
/// use gemv_core::{Desc, Dtype, Params};
///
/// /// On paper: the more rows a thread has, the longer it takes to begin, and the fewer there are.
/// struct Paper;
///
/// impl Runner for Paper {
///     fn candidates(&mut self, _: &Desc) -> Vec<Params> {
///         [1, 2, 4].map(|rows| Params::new("paper").with("rows", rows)).into()
///     }
///     fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
///         let rows = f64::from(params.get_or("rows", 1));
///         Ok(1e-6 * rows + 1e-9 * desc.m as f64 / rows)
///     }
///     fn check(&mut self, _: &Desc, _: &Params) -> Result<(), Failure> {
///         Ok(()) // paper is patient
///     }
/// }
/// let desc = Desc::new(Dtype::F32, 4000, 64, (64, 1), 0);
/// let all = Paper.candidates(&desc);
/// let result = search(&mut Paper, &desc, &all, &[], &SearchSettings::default());
/// assert_eq!(result.best().unwrap().params.to_string(), "paper rows=2");
/// ```
pub trait Runner {
    /// The candidates for a problem, best guess first.
    fn candidates(&mut self, desc: &Desc) -> Vec<Params>;

    /// An identity of what the device does: parameters of equal identity are one candidate.
    /// `None` if they are not legal for the problem.
    fn launch_id(&mut self, desc: &Desc, params: &Params) -> Option<u64> {
        let _ = desc;
        let mut hash = DefaultHasher::new();
        params.hash(&mut hash);
        Some(hash.finish())
    }

    /// Receives the candidates of problems before they are measured, so that programs can
    /// be compiled together.
    fn prepare(&mut self, all: &[(Desc, Params)]) {
        let _ = all;
    }

    /// One batch of products: the seconds of one.
    ///
    /// # Errors
    /// [`Failure::Refused`] if it does not build or run.
    fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure>;

    /// Whether the result has the right bits and nothing else is written.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&mut self, desc: &Desc, params: &Params) -> Result<(), Failure>;

    /// Candidates of this problem that passed [`check`](Self::check) and were found wrong
    /// since, by comparison with a right one. Each is returned once.
    fn revoked(&mut self) -> Vec<(Params, Failure)> {
        Vec::new()
    }

    /// Seconds that the device needs to read the operands, where known: no candidate is
    /// much faster.
    fn read_seconds(&mut self, desc: &Desc) -> Option<f64> {
        let _ = desc;
        None
    }
}

/// Why a candidate does not count.
///
/// ```
/// use gemv_lab::tuner::Failure;
/// let wrong = Failure::Wrong { row: 3, got: "1.5".into(), want: "1.25".into() };
/// assert_eq!(wrong.to_string(), "wrong result: y[3] = 1.5, must be 1.25");
/// let outside = Failure::Canary(-1).to_string();
/// assert_eq!(outside, "it wrote outside of y, -1 entries from its start");
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// It did not build, or the device refused it.
    #[error("{0}")]
    Refused(#[from] Error),
    /// A wrong result.
    #[error("wrong result: y[{row}] = {got}, must be {want}")]
    Wrong {
        /// The first row that is wrong.
        row: usize,
        /// What it gave.
        got: String,
        /// What the order (or the error bound) asks for.
        want: String,
    },
    /// It was not measured: it took these seconds on a smaller problem, and others take far less on this
    /// one.
    #[error("not measured, since it took {:.1} us on a smaller problem", .0 * 1e6)]
    Slow(f64),
    /// It wrote outside of `y`.
    #[error("it wrote outside of y, {0} entries from its start")]
    Canary(i64),
}

/// How many measurements a candidate gets before it is dropped.
///
/// ```
/// use gemv_lab::tuner::SearchSettings;
/// let mut quick = SearchSettings::default();
/// (quick.finalists, quick.rounds) = (3, 3);
/// assert!(quick.hopeless > 1.0 && quick.ceiling < 1.0);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SearchSettings {
    /// A candidate that is this many times slower than the best is dropped after its first
    /// batches. Its bits are not compared.
    pub hopeless: f64,
    /// This many of the others are measured to the end.
    pub finalists: usize,
    /// Interleaved rounds among the finalists; only these count, each relative to how slow
    /// it was for all. While the best cannot be told from another, as many follow again, at
    /// most twice: its median lies further than `tie` above its fastest batch, and
    /// another's fastest batch lies below that median.
    pub rounds: usize,
    /// Candidates whose times differ by at most this share are tied.
    pub tie: f64,
    /// A candidate that reaches this share of the read bandwidth ends the search.
    pub ceiling: f64,
    /// Only for problems that move at least this many bytes: the time of smaller reads is
    /// mostly launch.
    pub ceiling_from: u64,
    /// The best candidates of this many of the nearest measured problems reach the last
    /// rounds in any case. On a shared processor a disturbed batch can cost more than
    /// `hopeless`, and the choice that wins at all neighbours be missing here.
    pub neighbours: usize,
}

impl Default for SearchSettings {
    fn default() -> SearchSettings {
        SearchSettings {
            hopeless: 1.4,
            finalists: 6,
            rounds: 5,
            tie: 0.02,
            ceiling: 0.97,
            ceiling_from: 16 << 20,
            neighbours: 0,
        }
    }
}

/// A candidate that was measured.
///
/// ```
/// use gemv_core::Params;
/// use gemv_lab::tuner::Trial;
/// let times = (2.0e-6, 1.9e-6, 2.4e-6); // seconds: median, fastest, slowest
/// let trial = Trial {
///     params: Params::new("row"),
///     launch_id: 1,
///     seconds: times.0,
///     low: times.1,
///     high: times.2,
///     batches: 5,
///     checked: true,
///     finalist: true,
/// };
/// assert!(trial.low <= trial.seconds && trial.seconds <= trial.high);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// The candidate.
    pub params: Params,
    /// Its [identity](Runner::launch_id).
    pub launch_id: u64,
    /// Seconds of one product: the median of its batches, or the fastest of two.
    pub seconds: f64,
    /// The fastest batch.
    pub low: f64,
    /// The slowest batch.
    pub high: f64,
    /// Number of batches.
    pub batches: usize,
    /// Whether its bits are right. The others were dropped before the check, and are never
    /// chosen here.
    pub checked: bool,
    /// Whether it was measured in the last, interleaved rounds.
    pub finalist: bool,
}

/// What was measured of one problem.
///
/// ```
/// use gemv_lab::tuner::{Failure, Runner, SearchSettings, search};
/// # use gemv_core::{Desc, Dtype, Params};
/// # struct Paper;
/// # impl Runner for Paper {
/// #     fn candidates(&mut self, _: &Desc) -> Vec<Params> {
/// #         [1, 2, 4].map(|rows| Params::new("paper").with("rows", rows)).into()
/// #     }
/// #     fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
/// #         let rows = f64::from(params.get_or("rows", 1));
/// #         Ok(1e-6 * rows + 1e-9 * desc.m as f64 / rows)
/// #     }
///     // On paper, as in `Runner`; and "paper rows=1" has a fault.
///     fn check(&mut self, _: &Desc, params: &Params) -> Result<(), Failure> {
///         if params.get("rows") == Some(1) { Err(Failure::Canary(64)) } else { Ok(()) }
///     }
/// # }
/// let desc = Desc::new(Dtype::F32, 64, 64, (64, 1), 0);
/// let all = Paper.candidates(&desc);
/// let result = search(&mut Paper, &desc, &all, &[], &SearchSettings::default());
/// assert_eq!(result.failures, [(all[0], Failure::Canary(64))]); // the fastest, and wrong
/// let best = result.best().unwrap();
/// assert_eq!((best.params, result.candidates), (all[1], 3));
/// assert_eq!(result.seconds(best.launch_id), Some(best.seconds));
/// assert_eq!(result.finalist(best.launch_id), Some(best.seconds));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ProblemResult {
    /// The problem.
    pub desc: Desc,
    /// Finalists by time, then the others by time.
    pub trials: Vec<Trial>,
    /// Candidates that do not count, and why.
    pub failures: Vec<(Params, Failure)>,
    /// Number of candidates.
    pub candidates: usize,
    /// Whether a candidate reached the read bandwidth, so that the others were not
    /// measured.
    pub at_ceiling: bool,
    /// Seconds that reading the operands takes, where known.
    pub read_seconds: Option<f64>,
}

impl ProblemResult {
    /// A problem with these candidates and no others.
    pub fn new(desc: Desc, trials: Vec<Trial>) -> ProblemResult {
        let (candidates, failures) = (trials.len(), Vec::new());
        let (at_ceiling, read_seconds) = (false, None);
        ProblemResult { desc, trials, failures, candidates, at_ceiling, read_seconds }
    }

    /// The best candidate.
    pub fn best(&self) -> Option<&Trial> {
        self.trials.first().filter(|t| t.finalist)
    }

    /// Seconds of the candidate of this [identity](Runner::launch_id), if its bits are
    /// right.
    pub fn seconds(&self, launch_id: u64) -> Option<f64> {
        self.trials.iter().find(|t| t.checked && t.launch_id == launch_id).map(|t| t.seconds)
    }

    /// The same, if it was measured to the end.
    pub fn finalist(&self, launch_id: u64) -> Option<f64> {
        self.trials.iter().find(|t| t.finalist && t.launch_id == launch_id).map(|t| t.seconds)
    }
}

/// The state of a candidate during the search.
struct Contender {
    params: Params,
    launch_id: u64,
    times: Vec<f64>,
    checked: bool,
    forced: bool,
}

impl Contender {
    fn median(&self) -> f64 {
        median(&self.times)
    }

    fn low(&self) -> f64 {
        self.times.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Its time so far: of fewer than three batches the fastest, since one may have been
    /// disturbed.
    fn time(&self) -> f64 {
        if self.times.len() < 3 { self.low() } else { self.median() }
    }

    fn check(&mut self, runner: &mut dyn Runner, desc: &Desc) -> Result<(), Failure> {
        if !self.checked {
            runner.check(desc, &self.params)?;
            self.checked = true;
        }
        Ok(())
    }

    fn trial(&self, finalist: bool) -> Trial {
        Trial {
            params: self.params,
            launch_id: self.launch_id,
            seconds: self.time(),
            low: self.low(),
            high: self.times.iter().copied().fold(0.0, f64::max),
            batches: self.times.len(),
            checked: self.checked,
            finalist,
        }
    }
}

/// The median; infinity of nothing.
pub(crate) fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::INFINITY,
        k if k % 2 == 1 => sorted[k / 2],
        k => 0.5 * (sorted[k / 2 - 1] + sorted[k / 2]),
    }
}

/// A right result in less than this share of the read time shows that the read bandwidth was
/// measured too low, on a busy machine. It ends no search.
const TOO_LOW: f64 = 0.75;

/// No disturbance makes the fastest of a candidate's batches so many times slower.
const NEVER_NOISE: f64 = 4.0;

/// Finds the best of `candidates` for a problem. Those in `forced` reach the last round
/// whatever their times, are measured also if no candidate has their identity, and are not
/// skipped at the read bandwidth.
///
/// Each candidate gets two batches, or one where `hopeless` is far beyond noise; hopeless ones are dropped.
/// The others' bits are checked, and all are measured twice more in turn, so that clock drift affects all
/// alike. The best are then measured afresh, so that no one wins by one lucky batch.
///
/// This is successive halving (Jamieson and Talwalkar, *Non-stochastic Best Arm Identification
/// and Hyperparameter Optimization*, 2016).
///
/// ```
/// use gemv_lab::tuner::{SearchSettings, search};
/// # use gemv_lab::tuner::{Runner, paper::Paper};
/// # use gemv_core::{Desc, Dtype, Params};
/// // `Paper` is the device of the example of `Runner`. How good is a choice of ours?
/// let desc = Desc::new(Dtype::F32, 64, 64, (64, 1), 0);
/// let (all, ours) = (Paper.candidates(&desc), Params::new("paper").with("rows", 16));
/// let result = search(&mut Paper, &desc, &all, &[ours], &SearchSettings::default());
/// assert_eq!(result.best().unwrap().params, all[0]);
/// let time = result.finalist(Paper.launch_id(&desc, &ours).unwrap()).unwrap();
/// assert!(time > 10.0 * result.best().unwrap().seconds);
/// ```
pub fn search(
    runner: &mut dyn Runner,
    desc: &Desc,
    candidates: &[Params],
    forced: &[Params],
    settings: &SearchSettings,
) -> ProblemResult {
    let read_seconds = runner.read_seconds(desc);
    let mut result = ProblemResult::new(*desc, Vec::new());
    (result.candidates, result.read_seconds) = (candidates.len(), read_seconds);
    let must: Vec<u64> =
        forced.iter().filter_map(|params| runner.launch_id(desc, params)).collect();
    let mut all: Vec<(u64, Params)> = Vec::new();
    for params in candidates.iter().chain(forced) {
        match runner.launch_id(desc, params) {
            Some(launch_id) if !all.iter().any(|a| a.0 == launch_id) => {
                all.push((launch_id, *params))
            }
            _ => {}
        }
    }

    // One batch each, and the read bandwidth may end it.
    let large = desc.bytes() >= settings.ceiling_from;
    let reached = |t: f64| large && read_seconds.is_some_and(|f| t * settings.ceiling <= f);
    let mut low = false;
    let mut alive: Vec<Contender> = Vec::new();
    for (launch_id, params) in all {
        let forced = must.contains(&launch_id);
        if result.at_ceiling && !forced {
            continue;
        }
        match runner.measure(desc, &params) {
            Ok(time) => {
                let (times, checked) = (vec![time], false);
                alive.push(Contender { params, launch_id, times, checked, forced });
            }
            Err(why) => result.failures.push((params, why)),
        }
        // A candidate that reaches it is measured again, and checked together with
        // another: otherwise a result that is wrong in an unchecked row could end the
        // search.
        while !result.at_ceiling && !low && alive.len() >= 2 {
            alive.sort_by(|a, b| a.low().total_cmp(&b.low()));
            if !reached(alive[0].median()) {
                break;
            }
            if alive[0].times.len() == 1 {
                match runner.measure(desc, &alive[0].params) {
                    Ok(again) => alive[0].times.push(again),
                    Err(why) => result.failures.push((alive.remove(0).params, why)),
                }
            } else {
                agree(runner, &mut alive, &mut result);
                // The first may now be one with a single batch.
                let best = alive.first().filter(|best| best.times.len() > 1).map(|b| b.median());
                low = best
                    .zip(read_seconds)
                    .is_some_and(|(best, read_seconds)| best < TOO_LOW * read_seconds);
                result.at_ceiling = !low && best.is_some_and(reached);
            }
        }
    }

    // A second batch before any is dropped, but for those far behind two that agree: a wrong
    // candidate may be fast.
    agree(runner, &mut alive, &mut result);
    let limit = alive.first().map_or(0.0, |best| 1.5 * settings.hopeless * best.low());
    let far = |one: &mut Contender| !one.forced && !one.checked && one.low() > limit;
    result.trials.extend(alive.extract_if(.., far).map(|one| one.trial(false)));
    if settings.hopeless < NEVER_NOISE {
        rounds(runner, &mut alive, &mut result, 1);
    }
    leave(runner, &mut alive, &mut result, usize::MAX, settings.hopeless);
    if alive.len() > settings.finalists {
        rounds(runner, &mut alive, &mut result, 2);
        leave(runner, &mut alive, &mut result, settings.finalists, f64::INFINITY);
    }

    for one in &mut alive {
        one.times.clear();
    }
    let mut level = Vec::new();
    for _ in 0..3 {
        rounds(runner, &mut alive, &mut result, settings.rounds);
        level = levelled(&alive);
        if clear(&level, settings.tie) {
            break;
        }
    }
    for (one, times) in alive.iter_mut().zip(level) {
        one.times = times;
    }
    let mut finalists: Vec<Trial> = alive.iter().map(|one| one.trial(true)).collect();
    finalists.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    result.trials.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    finalists.append(&mut result.trials);
    result.trials = finalists;
    result
}

/// Times by candidate and round, without what slowed a whole round, such as another program or
/// a lower clock. A round is as slow as the median over candidates of the ratio to their own
/// medians. With two candidates alone this cannot be told.
fn levelled(alive: &[Contender]) -> Vec<Vec<f64>> {
    let mut level: Vec<Vec<f64>> = alive.iter().map(|one| one.times.clone()).collect();
    if level.len() < 3 {
        return level;
    }
    let own: Vec<f64> = alive.iter().map(Contender::median).collect();
    let rounds = level.iter().map(Vec::len).min().unwrap_or(0);
    for round in 0..rounds {
        let slow: Vec<f64> = level.iter().zip(&own).map(|(t, own)| t[round] / own).collect();
        let slow = median(&slow);
        level.iter_mut().for_each(|t| t[round] /= slow);
    }
    level
}

/// Whether the best finalist can be told from the others.
fn clear(times: &[Vec<f64>], alike: f64) -> bool {
    let low = |k: usize| times[k].iter().copied().fold(f64::INFINITY, f64::min);
    let medians: Vec<f64> = times.iter().map(|t| median(t)).collect();
    let all = 0..times.len();
    let Some(best) = all.clone().min_by(|&a, &b| medians[a].total_cmp(&medians[b])) else {
        return true;
    };
    let median = medians[best];
    median <= low(best) * (1.0 + alike) || all.filter(|&k| k != best).all(|k| low(k) > median)
}

/// Checks until the two fastest are right; wrong ones are dropped.
fn agree(runner: &mut dyn Runner, alive: &mut Vec<Contender>, result: &mut ProblemResult) {
    loop {
        alive.sort_by(|a, b| a.low().total_cmp(&b.low()));
        let Some(next) = alive.iter().take(2).position(|one| !one.checked) else { return };
        if let Err(why) = alive[next].check(runner, &result.desc) {
            result.failures.push((alive.remove(next).params, why));
        }
        drop_wrong(runner, alive, result);
    }
}

/// Drops all but the `room` fastest, those more than `hopeless` times slower than the best, and
/// wrong ones.
fn leave(
    runner: &mut dyn Runner,
    alive: &mut Vec<Contender>,
    result: &mut ProblemResult,
    room: usize,
    hopeless: f64,
) {
    alive.sort_by(|a, b| a.time().total_cmp(&b.time()));
    loop {
        let mut best = f64::INFINITY;
        let (mut stay, mut index) = (Vec::new(), 0);
        while index < alive.len() {
            let time = alive[index].time();
            let hopeful = time <= best * hopeless && stay.len() < room;
            // At least two: their agreement is part of the check.
            if hopeful || alive[index].forced || stay.len() < 2 {
                if let Err(why) = alive[index].check(runner, &result.desc) {
                    result.failures.push((alive.remove(index).params, why));
                    continue;
                }
                best = best.min(time);
                stay.push(index);
            }
            index += 1;
        }
        // A wrong one may have driven out others: once more without it.
        if drop_wrong(runner, alive, result) {
            continue;
        }
        let mut index = 0;
        alive.retain(|one| {
            let stays = stay.contains(&index);
            if !stays {
                result.trials.push(one.trial(false));
            }
            index += 1;
            stays
        });
        return;
    }
}

/// Drops candidates that passed and were found wrong since.
fn drop_wrong(
    runner: &mut dyn Runner,
    alive: &mut Vec<Contender>,
    result: &mut ProblemResult,
) -> bool {
    let wrong = runner.revoked();
    alive.retain(|one| !wrong.iter().any(|w| w.0 == one.params));
    result.trials.retain(|one| !wrong.iter().any(|w| w.0 == one.params));
    let some = !wrong.is_empty();
    result.failures.extend(wrong);
    some
}

/// Measures all in turn, `count` times; those that fail are dropped.
fn rounds(
    runner: &mut dyn Runner,
    alive: &mut Vec<Contender>,
    result: &mut ProblemResult,
    count: usize,
) {
    for _ in 0..count {
        alive.retain_mut(|one| match runner.measure(&result.desc, &one.params) {
            Ok(time) => {
                one.times.push(time);
                true
            }
            Err(why) => {
                result.failures.push((one.params, why));
                false
            }
        });
    }
}
