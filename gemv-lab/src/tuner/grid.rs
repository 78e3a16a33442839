//! The cost of each choice over the plane of shapes of one class.

use super::class::ProblemClass;
use super::measurements::{Measurements, fastest};
use super::rows::beside;
use super::search::{ProblemResult, Runner};
use super::settings::FitSettings;
use gemv_core::{Desc, Params};

/// The measured problems of a class on a grid of rows and columns, and what each choice costs
/// at each.
pub(super) struct CostGrid {
    pub(super) class: ProblemClass,
    /// The numbers of rows and of columns that have a measured point: the lines of the
    /// grid.
    pub(super) m: Vec<usize>,
    pub(super) n: Vec<usize>,
    pub(super) choices: Vec<Params>,
    /// By choice, then by point (line of m, line of n): its time divided by the best there.
    /// Infinity where the choice was not measured, `None` where the point was not.
    pub(super) ratio: Vec<Vec<Option<f64>>>,
}

/// A rectangle: first and last line of m, first and last line of n.
pub(super) type Rect = (usize, usize, usize, usize);

/// The loss of a choice that is not legal, or not right, at a point: more than any slowness.
const IMPOSSIBLE: f64 = 100.0;

/// The index of a pair (first, last) with first <= last, among all such pairs.
pub(super) fn pair(first: usize, last: usize) -> usize {
    last * (last + 1) / 2 + first
}

impl CostGrid {
    /// `None` if no problem of the class was measured, or none with a present candidate.
    pub(super) fn new(
        runner: &mut dyn Runner,
        class: ProblemClass,
        known: &Measurements,
    ) -> Option<CostGrid> {
        let here = |result: &&ProblemResult| class.holds(&result.desc) && result.best().is_some();
        let results: Vec<&ProblemResult> = known.values().filter(here).collect();
        let line = |size: &dyn Fn(&Desc) -> usize| {
            let mut all: Vec<usize> = results.iter().map(|c| size(&c.desc)).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let (m, n) = (line(&|d| d.m), line(&|d| d.n));
        let (choices, ratio) = (Vec::new(), Vec::new());
        let mut grid = CostGrid { class, m, n, choices, ratio };
        for result in &results {
            for params in runner.candidates(&result.desc) {
                if !grid.choices.contains(&params) {
                    grid.choices.push(params);
                }
            }
        }
        // By choice, and whether its bits were right at any point.
        let points = grid.m.len() * grid.n.len();
        let mut all: Vec<_> =
            grid.choices.iter().map(|params| (*params, vec![None; points], false)).collect();
        for (at, result) in grid.points(known) {
            let best = fastest(result);
            for (params, ratio, right) in &mut all {
                let launch_id = runner.launch_id(&result.desc, params);
                let trial = launch_id
                    .and_then(|launch_id| result.trials.iter().find(|t| t.launch_id == launch_id));
                // A choice that was too slow to be checked here can still serve
                // near the points where it was checked.
                *right |= trial.is_some_and(|t| t.checked);
                let time = trial.map_or(f64::INFINITY, |t| (t.seconds / best).max(1.0));
                ratio[at] = Some(time);
            }
        }
        all.retain(|(_, _, right)| *right);
        (grid.choices, grid.ratio) =
            all.into_iter().map(|(params, ratio, _)| (params, ratio)).unzip();
        (!grid.choices.is_empty()).then_some(grid)
    }

    /// The measured problems, each with its index in the grid.
    pub(super) fn points<'a>(
        &'a self,
        known: &'a Measurements,
    ) -> impl Iterator<Item = (usize, &'a ProblemResult)> + 'a {
        let here =
            |result: &&ProblemResult| self.class.holds(&result.desc) && result.best().is_some();
        known.values().filter(here).filter_map(|result| {
            let (k, l) =
                (self.m.binary_search(&result.desc.m), self.n.binary_search(&result.desc.n));
            Some((k.ok()? * self.n.len() + l.ok()?, result))
        })
    }

    /// How far these points (indices of lines) disagree: the least over all choices of its
    /// greatest ratio at them. 1 where fewer than two of them were measured; at most 1000,
    /// where no choice was measured at two.
    pub(super) fn disagreement(&self, points: &[(usize, usize)]) -> f64 {
        let at = points.iter().map(|&(k, l)| k * self.n.len() + l);
        // A line that was added for a part of the plane has points only there. One
        // measured corner disagrees with none.
        if at.clone().filter(|at| self.ratio.iter().any(|ratio| ratio[*at].is_some())).count() < 2 {
            return 1.0;
        }
        let worst = |ratio: &Vec<Option<f64>>| {
            let known = at.clone().filter_map(|at| ratio[at]);
            (known.clone().count() > 1).then(|| known.fold(1.0, f64::max))
        };
        self.ratio.iter().filter_map(worst).fold(f64::INFINITY, f64::min).min(1e3)
    }

    /// Prefix sums of the losses of a choice over the grid, neighbours included.
    pub(super) fn sums(&self, ratio: &[Option<f64>], settings: &FitSettings) -> Vec<f64> {
        let (height, side) = (self.m.len(), self.n.len());
        let loss = |k: usize, l: usize| {
            let log = ratio.get(k * side + l).copied().flatten()?.ln();
            let over = (log - settings.hole_from.ln_1p()).max(0.0);
            Some((log + settings.hole_penalty * over).min(IMPOSSIBLE))
        };
        let mut sums = vec![0.0; (height + 1) * (side + 1)];
        for k in 0..height {
            for l in 0..side {
                let own = {
                    // Beyond an edge a choice may be illegal, which says
                    // nothing against it at a measured point. At a point
                    // that was not measured the neighbours alone count:
                    // otherwise a choice that is legal at none of them would
                    // cost nothing.
                    let own = loss(k, l);
                    let near = beside((&self.m, &self.n), (k, l), loss);
                    let near = near.filter(|&v| own.is_none() || v < IMPOSSIBLE);
                    own.unwrap_or(0.0)
                        + settings.neighbour_weight * near.map(|v| v.min(1.0)).sum::<f64>()
                };
                let at = |k: usize, l: usize| k * (side + 1) + l;
                sums[at(k + 1, l + 1)] =
                    own + sums[at(k, l + 1)] + sums[at(k + 1, l)] - sums[at(k, l)];
            }
        }
        sums
    }

    /// Calls `show` with the index of every rectangle (pair of m, pair of n) and its loss
    /// by these sums.
    pub(super) fn each_rect(&self, sums: &[f64], mut show: impl FnMut(usize, f64)) {
        let (height, side) = (self.m.len(), self.n.len());
        let wide = pair(0, side);
        let at = |k: usize, l: usize| sums[k * (side + 1) + l];
        for i1 in 0..height {
            for i0 in 0..=i1 {
                for j1 in 0..side {
                    for j0 in 0..=j1 {
                        let loss =
                            at(i1 + 1, j1 + 1) - at(i0, j1 + 1) - at(i1 + 1, j0) + at(i0, j0);
                        show(pair(i0, i1) * wide + pair(j0, j1), loss);
                    }
                }
            }
        }
    }
}
