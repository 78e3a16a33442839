//! A whole mesh, coarse to fine.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::mesh::{Mesh, Point};
use super::search::{Cell, Runner, Settings, search};
use crate::{Desc, Dtype, Layout, Params};

/// What one part of a table is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Area {
    /// Element type.
    pub dtype: Dtype,
    /// Layout.
    pub layout: Layout,
}

/// What has been measured, by problem.
pub type Known = BTreeMap<Desc, Cell>;

/// Who is told what was measured.
pub trait Watch {
    /// A problem is done, the `done`-th of `total`. [`ControlFlow::Break`] ends the run; what was
    /// measured stays known.
    fn done(&mut self, cell: &Cell, done: usize, total: usize) -> ControlFlow<()>;
}

/// Measures all problems of a mesh, leaving out what is known already, and adds them to `known`.
/// Returns whether it came to the end.
///
/// The mesh is visited coarse to fine, all areas at each step, so that a run that is ended early
/// has seen all of the plane. On the coarsest points every candidate is asked. In between, those
/// that were among the best of the points around, and the backend's own first guesses; if a guess
/// then beats all that the neighbours propose, they are no guide, and every candidate is asked
/// there as well. With `exhaustive` that holds for all points.
pub fn sweep(
    runner: &mut dyn Runner,
    mesh: &Mesh,
    areas: &[Area],
    exhaustive: bool,
    settings: &Settings,
    known: &mut Known,
    watch: &mut dyn Watch,
) -> bool {
    let side = mesh.sizes().len();
    let stride = |at: Point| {
        let on = |k: usize, s: usize| k.is_multiple_of(s) || k + 1 == side;
        [4, 2].into_iter().find(|&s| on(at.i, s) && on(at.j, s)).unwrap_or(1)
    };
    let mut plan: Vec<(usize, Area, Point)> = Vec::new();
    for &area in areas {
        let points = mesh.points(area.dtype, area.layout);
        plan.extend(points.into_iter().map(|at| (stride(at), area, at)));
    }
    plan.sort_by_key(|&(stride, area, at)| (std::cmp::Reverse(stride), area, at));
    let total = plan.len();
    for (done, (stride, area, at)) in plan.into_iter().enumerate() {
        let desc = mesh.desc(area.dtype, area.layout, at).expect("a point of the mesh");
        if known.contains_key(&desc) {
            continue;
        }
        let all = runner.candidates(&desc);
        let around = around(mesh, area, at, 2 * stride, known);
        let cell = if exhaustive || stride == 4 || around.is_empty() {
            search(runner, &desc, &all, &[], settings)
        } else {
            guided(runner, &desc, &all, &around, settings)
        };
        let go_on = watch.done(&cell, done + 1, total);
        known.insert(desc, cell);
        if go_on.is_break() {
            return false;
        }
    }
    true
}

/// The search among what the neighbours propose.
fn guided(
    runner: &mut dyn Runner,
    desc: &Desc,
    all: &[Params],
    around: &[&Cell],
    settings: &Settings,
) -> Cell {
    let mut short: Vec<Params> = Vec::new();
    let mut add = |params: &Params| {
        if all.contains(params) && !short.contains(params) {
            short.push(*params);
        }
    };
    // Winners before runners-up, near before far.
    around.iter().filter_map(|c| c.best()).for_each(|t| add(&t.params));
    around.iter().flat_map(|c| c.alike(5.0 * settings.alike)).for_each(|t| add(&t.params));
    let proposed = short.len();
    all.iter().take(2).for_each(|guess| {
        if !short.contains(guess) {
            short.push(*guess);
        }
    });
    // The nearest winners are measured to the end: if they are alike here, the table needs no
    // further row.
    let forced: Vec<Params> = short.iter().take(proposed.min(3)).copied().collect();
    let cell = search(runner, desc, &short, &forced, settings);
    let by_guess = |c: &Cell| {
        let best = c.best()?;
        let neighbours = short[..proposed].iter().filter_map(|p| c.seconds(p));
        let theirs = neighbours.fold(f64::INFINITY, f64::min);
        Some(theirs > best.seconds * (1.0 + settings.alike))
    };
    if short.len() == all.len() || (!by_guess(&cell).unwrap_or(true) || cell.at_roof) {
        return Cell { candidates: all.len(), ..cell };
    }
    search(runner, desc, all, &forced, settings)
}

/// Up to eight known points no more than `reach` steps away, near before far.
fn around<'k>(mesh: &Mesh, area: Area, at: Point, reach: usize, known: &'k Known) -> Vec<&'k Cell> {
    let mut found: Vec<(usize, &Cell)> = Vec::new();
    for i in at.i.saturating_sub(reach)..=at.i + reach {
        for j in at.j.saturating_sub(reach)..=at.j + reach {
            let desc = mesh.desc(area.dtype, area.layout, Point { i, j });
            if let Some(cell) = desc.and_then(|d| known.get(&d))
                && cell.best().is_some()
            {
                let (di, dj) = (i.abs_diff(at.i), j.abs_diff(at.j));
                found.push((di * di + dj * dj, cell));
            }
        }
    }
    found.sort_by_key(|f| f.0);
    found.into_iter().take(8).map(|f| f.1).collect()
}

/// The best candidate of the known point nearest to a problem.
pub fn nearest(mesh: &Mesh, desc: &Desc, known: &Known) -> Option<Params> {
    let log = |v: usize| (v.max(1) as f64).log2();
    let off = |d: &Desc| {
        let (dm, dn) = (log(d.m) - log(desc.m), log(d.n) - log(desc.n));
        dm * dm + dn * dn
    };
    let at = mesh.nearest(desc.m, desc.n);
    let on_mesh = mesh.desc(desc.dtype, desc.layout, at).and_then(|d| known.get(&d));
    on_mesh.and_then(Cell::best).map(|t| t.params).or_else(|| {
        let same = |d: &Desc| (d.dtype, d.layout) == (desc.dtype, desc.layout);
        known
            .iter()
            .filter(|(d, _)| same(d))
            .filter_map(|(d, c)| Some((off(d), c.best()?.params)))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map(|best| best.1)
    })
}
