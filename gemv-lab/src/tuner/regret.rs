//! Regret: how much slower a table's choices are than the best candidate, on shapes that were
//! not tuned.

use std::ops::ControlFlow;

use super::measurements::Measurements;
use super::search::{ProblemResult, Runner, SearchSettings, Trial, search};
use super::sweep::Progress;
use crate::parse::count;
use gemv_core::{Desc, Params};

/// How much slower a way to choose is than the best of all candidates.
///
/// ```
/// use gemv_lab::tuner::Regret;
/// let regret = Regret { shapes: 96, geomean: 0.009, worst: 0.062, worst_at: None, failed: 0 };
/// assert_eq!(regret.to_string(), "geomean 0.90 %, worst 6.2 %, 96 shapes");
/// assert_eq!(Regret { shapes: 0, ..regret }.to_string(), "not checked");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Regret {
    /// Number of shapes on which its choice could be timed.
    pub shapes: usize,
    /// Geometric mean over the shapes: 0.02 is 2 % slower.
    pub geomean: f64,
    /// The worst shape.
    pub worst: f64,
    /// Which that is.
    pub worst_at: Option<Desc>,
    /// Shapes for which its choice failed or was not right.
    pub failed: usize,
}

/// A shape that was not tuned, with all its candidates measured, and the choices of each way.
/// Made by [`holdout`].
///
/// ```
/// use gemv_lab::tuner::{ProblemResult, Holdout, Regret};
/// use gemv_core::{Desc, Dtype};
///
/// let desc = Desc::new(Dtype::F32, 100, 100, (100, 1), 0);
/// let result = ProblemResult::new(desc, vec![]);
/// let nothing_counted = Holdout { result, choices: vec![None] };
/// assert_eq!(Regret::of(0, &[nothing_counted]).failed, 1);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Holdout {
    /// What was measured.
    pub result: ProblemResult,
    /// The [identity](Runner::launch_id) of each way's choice, in the order of the ways.
    pub choices: Vec<Option<u64>>,
}

impl Regret {
    /// The regret of the `way`-th way to choose, from 0, of those that [`holdout`] was given; see
    /// there for an example.
    ///
    /// # Panics
    /// If there are fewer ways.
    pub fn of(way: usize, holdouts: &[Holdout]) -> Regret {
        let mut regret = Regret { shapes: 0, geomean: 0.0, worst: 0.0, worst_at: None, failed: 0 };
        let mut sum = 0.0;
        for Holdout { result, choices } in holdouts {
            let time = choices[way].and_then(|launch_id| result.finalist(launch_id));
            let (Some(best), Some(time)) = (result.best(), time) else {
                regret.failed += 1;
                continue;
            };
            let ratio = time / best.seconds;
            regret.shapes += 1;
            sum += ratio.ln();
            if ratio - 1.0 > regret.worst || regret.worst_at.is_none() {
                (regret.worst, regret.worst_at) = (ratio - 1.0, Some(result.desc));
            }
        }
        regret.geomean = (sum / regret.shapes.max(1) as f64).exp_m1();
        regret
    }
}

impl std::fmt::Display for Regret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (geomean, worst) = (100.0 * self.geomean, 100.0 * self.worst);
        match self.shapes {
            0 => write!(f, "not checked")?,
            _ => write!(f, "geomean {geomean:.2} %, worst {worst:.1} %")?,
        }
        if let Some(desc) = self.worst_at {
            write!(f, " ({desc})")?;
        }
        if self.shapes > 0 {
            write!(f, ", {}", count(self.shapes, "shape"))?;
        }
        if self.failed > 0 {
            write!(f, ", {} failed", self.failed)?;
        }
        Ok(())
    }
}

/// Measures every candidate of each shape; then, in rounds of their own, the best of them
/// beside the choice of each way. Of many candidates with noisy times the fastest is also the
/// luckiest, so the times that made it the best do not count. Shapes in `known` are not
/// measured again if all choices were timed there. Ends early when told to, with what it has.
///
/// ```
/// use gemv_lab::tuner::{ProblemClass, Measurements, Mesh, Regret, SearchSettings, holdout};
/// # use gemv_lab::tuner::paper::{Paper, Silent};
/// # use gemv_core::{Align, Desc, Dtype, Layout, Params};
///
/// // `Paper` is the device of the example of `Runner`, `Silent` a `Progress` that says nothing.
/// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE, rhs: 1 };
/// let shapes = Mesh::of(vec![64, 1024, 16384], 1 << 30).between(class, 10);
/// let always = |_: &Desc| Params::new("paper").with("rows", 2);
/// let best = |desc: &Desc| {
///     let rows = if desc.m < 2000 { 1 } else if desc.m < 8000 { 2 } else { 4 };
///     Params::new("paper").with("rows", rows)
/// };
/// let (settings, mut known) = (SearchSettings::default(), Measurements::new());
/// let out =
///     holdout(&mut Paper, &shapes, &[&always, &best], &settings, &mut known, &mut Silent);
/// assert_eq!(out[0].choices.len(), 2);
/// assert!(Regret::of(0, &out).geomean > 0.05);
/// assert!(Regret::of(1, &out).worst < 1e-9);
/// ```
pub fn holdout(
    runner: &mut dyn Runner,
    shapes: &[Desc],
    ways: &[&dyn Fn(&Desc) -> Params],
    settings: &SearchSettings,
    known: &mut Measurements,
    progress: &mut dyn Progress,
) -> Vec<Holdout> {
    let mut out = Vec::new();
    let open = shapes.iter().filter(|desc| !known.contains_key(desc));
    let all = open.flat_map(|d| runner.candidates(d).into_iter().map(|params| (*d, params)));
    let all: Vec<_> = all.collect();
    runner.prepare(&all);
    for (done, desc) in shapes.iter().enumerate() {
        let asked: Vec<Params> = ways.iter().map(|way| way(desc)).collect();
        let choices: Vec<_> = asked.iter().map(|params| runner.launch_id(desc, params)).collect();
        let timed = |c: &&ProblemResult| choices.iter().flatten().all(|&w| c.finalist(w).is_some());
        if let Some(result) = known.get(desc).filter(timed) {
            out.push(Holdout { result: result.clone(), choices });
            continue;
        }
        let all = runner.candidates(desc);
        // Nothing ends this search early: the choices are compared with the best of all.
        let full = SearchSettings { ceiling: f64::INFINITY, ..settings.clone() };
        let mut result = search(runner, desc, &all, &asked, &full);
        if let Some(best) = result.best().map(|trial| trial.params) {
            let again = search(runner, desc, &[best], &asked, &full);
            if again.best().is_some() {
                let first = std::mem::replace(&mut result.trials, again.trials);
                for trial in first {
                    if !result.trials.iter().any(|t| t.launch_id == trial.launch_id) {
                        result.trials.push(Trial { finalist: false, ..trial });
                    }
                }
            }
        }
        let go_on = progress.done(&result, done + 1, shapes.len());
        known.insert(*desc, result.clone());
        out.push(Holdout { result, choices });
        if go_on == ControlFlow::Break(()) {
            break;
        }
    }
    out
}
