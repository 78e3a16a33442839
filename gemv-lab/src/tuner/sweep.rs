//! Measuring a whole mesh, coarse to fine, and refining it.

use std::ops::ControlFlow;

use super::class::ProblemClass;
use super::grid::CostGrid;
use super::measurements::Measurements;
use super::mesh::Mesh;
use super::search::{ProblemResult, Runner, SearchSettings, search};
use gemv_core::{Desc, Layout, Params};

/// Receives each result as it is measured.
///
/// ```
/// use gemv_lab::tuner::{ProblemResult, Progress};
/// use std::ops::ControlFlow;
///
/// /// Ends the run after a while; what was measured by then could be stored here.
/// struct Until(std::time::Instant);
///
/// impl Progress for Until {
///     fn done(&mut self, result: &ProblemResult, done: usize, total: usize) -> ControlFlow<()> {
///         println!("{done} of {total}: {}", result.desc);
///         let late = std::time::Instant::now() >= self.0;
///         if late { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
///     }
/// }
/// let mut progress = Until(std::time::Instant::now());
/// # let desc = gemv_core::Desc::new(gemv_core::Dtype::F32, 1, 1, (1, 1), 0);
/// # let result = ProblemResult::new(desc, vec![]);
/// assert!(progress.done(&result, 1, 10).is_break());
/// ```
pub trait Progress {
    /// A problem was measured, the `done`-th of `total`. [`ControlFlow::Break`] ends the run; the
    /// results so far stay.
    fn done(&mut self, result: &ProblemResult, done: usize, total: usize) -> ControlFlow<()>;
}

/// Measures all problems of a mesh but those in `known`, and adds them to it. Returns whether
/// it came to the end.
///
/// The mesh is visited coarse to fine, all classes at each step, so a run that is stopped early
/// has covered the whole plane.
///
/// ```
/// use gemv_lab::tuner::{ProblemClass, Measurements, Mesh, SearchSettings, fit, sweep};
/// # use gemv_lab::tuner::paper::{Paper, Silent};
/// # use gemv_core::{Align, Desc, Dtype, Layout, Params, Table};
///
/// // `Paper` is the device of the example of `Runner`, `Silent` a `Progress` that says nothing.
/// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE, rhs: 1 };
/// let mesh = Mesh::of(vec![64, 1024, 16384], 1 << 30);
/// let (settings, mut known) = (SearchSettings::default(), Measurements::new());
/// assert!(sweep(&mut Paper, &mesh, &[class], &settings, &mut known, &mut Silent));
/// assert_eq!(known.len(), mesh.problems(class).len());
///
/// let legal = |_: &Desc, _: &Params| true;
/// let part = fit(&mut Paper, class, &known, &legal, &Default::default());
/// let table = Table { rows: part.rows, ..Table::default() };
/// let few = Desc::new(Dtype::F32, 50, 1024, (1024, 1), 0);
/// assert_eq!(table.nearest(&few)[0].params.to_string(), "paper rows=1");
/// let many = Desc { m: 20_000, ..few };
/// assert_eq!(table.nearest(&many)[0].params.to_string(), "paper rows=4");
/// ```
pub fn sweep(
    runner: &mut dyn Runner,
    mesh: &Mesh,
    classes: &[ProblemClass],
    settings: &SearchSettings,
    known: &mut Measurements,
    progress: &mut dyn Progress,
) -> bool {
    let side = mesh.sizes().len();
    let stride = |(i, j): (usize, usize)| {
        let on = |k: usize, s: usize| k.is_multiple_of(s) || k + 1 == side;
        [4, 2].into_iter().find(|&s| on(i, s) && on(j, s)).unwrap_or(1)
    };
    let placed = classes.iter().flat_map(|&class| mesh.placed(class));
    let mut plan: Vec<_> = placed.map(|(at, desc)| (stride(at), at, desc)).collect();
    // One type after another within a stride: each needs its own pool of numbers.
    plan.sort_by_key(|&(stride, at, desc)| (std::cmp::Reverse(stride), desc.dtype, at, desc));
    let descs: Vec<Desc> = plan.into_iter().map(|p| p.2).collect();
    measure(runner, &descs, settings, known, progress)
}

/// Measures further problems between those of the mesh, where neighbours disagree. These are
/// the middles of tiles and edges of which every choice costs more than `disagreement` at a
/// corner, the worst first. Returns whether it came to the end.
///
/// ```
/// use gemv_lab::tuner::{ProblemClass, Measurements, Mesh, SearchSettings, refine, sweep};
/// # use gemv_lab::tuner::paper::{Paper, Silent};
/// # use gemv_core::{Align, Desc, Dtype, Layout, Params};
///
/// // `Paper` is the device of the example of `Runner`, `Silent` a `Progress` that says nothing.
/// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE, rhs: 1 };
/// let mesh = Mesh::of(vec![64, 1024, 16384], 1 << 30);
/// let (settings, mut known) = (SearchSettings::default(), Measurements::new());
/// sweep(&mut Paper, &mesh, &[class], &settings, &mut known, &mut Silent);
/// let before = known.len();
/// // "rows=1" for 1024 rows, "rows=4" for 16384: nothing serves both within 5 %.
/// refine(&mut Paper, &mesh, &[class], 0.05, &settings, &mut known, &mut Silent);
/// assert!(known.len() > before);
/// assert!(known.keys().any(|desc| desc.m == 4096)); // in the middle
/// ```
pub fn refine(
    runner: &mut dyn Runner,
    mesh: &Mesh,
    classes: &[ProblemClass],
    disagreement: f64,
    settings: &SearchSettings,
    known: &mut Measurements,
    progress: &mut dyn Progress,
) -> bool {
    let mut plan: Vec<(f64, Desc)> = Vec::new();
    for &class in classes {
        // Only points of the mesh: otherwise the refinement of an earlier run would be
        // refined again.
        let problems = mesh.problems(class).into_iter();
        let coarse = problems.filter_map(|d| Some((d, known.get(&d)?.clone()))).collect();
        let Some(grid) = CostGrid::new(runner, class, &coarse) else { continue };
        let (m, n) = (&grid.m, &grid.n);
        let middle = |sizes: &[usize], k: usize, half: bool| {
            let (size, next) = (sizes[k] as f64, *sizes.get(k + usize::from(half))? as f64);
            // Lines on both sides of an edge, or as near as 60 and 62, have nothing
            // between them.
            let apart = !half || next > 1.1 * size;
            apart.then_some((size * next).sqrt().round() as usize)
        };
        for k in 0..m.len() {
            for l in 0..n.len() {
                for (down, right) in [(true, true), (true, false), (false, true)] {
                    let (Some(rows), Some(columns)) = (middle(m, k, down), middle(n, l, right))
                    else {
                        continue;
                    };
                    let ends = |from: usize, half: bool| from..=from + usize::from(half);
                    let corners: Vec<_> =
                        ends(k, down).flat_map(|i| ends(l, right).map(move |j| (i, j))).collect();
                    let cost = grid.disagreement(&corners) - 1.0;
                    let line = |size| class.line(size).filter(|_| cost > disagreement);
                    let desc = match class.layout {
                        Layout::Col if right && !down => mesh.shape(class, rows, columns),
                        Layout::Col => line(rows).and_then(|m| mesh.shape(class, m, columns)),
                        _ if down && !right => mesh.shape(class, rows, columns),
                        _ => line(columns).and_then(|n| mesh.shape(class, rows, n)),
                    };
                    if let Some(desc) = desc.filter(|_| cost > disagreement) {
                        plan.push((cost, desc));
                    }
                }
            }
        }
    }
    plan.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut descs: Vec<Desc> = Vec::new();
    for (_, desc) in plan {
        if !descs.contains(&desc) {
            descs.push(desc);
        }
    }
    // One type after another, as above; the worst thousand first all the same.
    let worst = descs.len().min(1000);
    for part in descs.chunks_mut(worst.max(1)) {
        part.sort_by_key(|d| d.dtype);
    }
    measure(runner, &descs, settings, known, progress)
}

/// Measures every candidate of these problems but those in `known`.
fn measure(
    runner: &mut dyn Runner,
    descs: &[Desc],
    settings: &SearchSettings,
    known: &mut Measurements,
    progress: &mut dyn Progress,
) -> bool {
    let open = descs.iter().filter(|desc| !known.contains_key(desc));
    let all = open.flat_map(|d| runner.candidates(d).into_iter().map(|params| (*d, params)));
    let all: Vec<_> = all.collect();
    runner.prepare(&all);
    for (done, desc) in descs.iter().enumerate() {
        if known.contains_key(desc) {
            continue;
        }
        let all = runner.candidates(desc);
        let around = around(known, desc, settings.neighbours);
        let result = search(runner, desc, &all, &around, settings);
        let go_on = progress.done(&result, done + 1, descs.len());
        known.insert(*desc, result);
        if go_on.is_break() {
            return false;
        }
    }
    true
}

/// The best of the `count` nearest problems of this type, layout and number of right-hand sides, in powers of two of both sides.
fn around(known: &Measurements, desc: &Desc, count: usize) -> Vec<Params> {
    let log = |size: usize| (size.max(1) as f64).log2();
    let far = |d: &Desc| (log(d.m) - log(desc.m)).hypot(log(d.n) - log(desc.n));
    let alike = |d: &Desc| (d.dtype, d.layout, d.rhs) == (desc.dtype, desc.layout, desc.rhs);
    if count == 0 {
        return Vec::new();
    }
    let mut near: Vec<(f64, &ProblemResult)> =
        known.iter().filter(|(d, _)| alike(d)).map(|(d, result)| (far(d), result)).collect();
    near.sort_by(|a, b| a.0.total_cmp(&b.0));
    near.truncate(count);
    near.iter().filter_map(|(_, result)| Some(result.best()?.params)).collect()
}
