//! A whole mesh, coarse to fine.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::distil::Plane;
use super::mesh::{Mesh, Point};
use super::search::{Cell, Runner, Settings, search};
use crate::{Align, Desc, Dtype, Layout};

/// What one part of a table is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Area {
    /// Element type.
    pub dtype: Dtype,
    /// Layout.
    pub layout: Layout,
    /// Class of alignment.
    pub align: Align,
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
/// has seen all of the plane.
pub fn sweep(
    runner: &mut dyn Runner,
    mesh: &Mesh,
    areas: &[Area],
    settings: &Settings,
    known: &mut Known,
    watch: &mut dyn Watch,
) -> bool {
    let side = mesh.sizes().len();
    let stride = |at: Point| {
        let on = |k: usize, s: usize| k.is_multiple_of(s) || k + 1 == side;
        [4, 2].into_iter().find(|&s| on(at.i, s) && on(at.j, s)).unwrap_or(1)
    };
    let mut plan: Vec<(usize, Point, Desc)> = Vec::new();
    for &area in areas {
        let points = mesh.points(area).into_iter();
        plan.extend(points.filter_map(|at| Some((stride(at), at, mesh.desc(area, at)?))));
    }
    // One type after another within a stride: a block of numbers is made for each.
    plan.sort_by_key(|&(stride, at, desc)| (std::cmp::Reverse(stride), desc.dtype, at, desc));
    let descs: Vec<Desc> = plan.into_iter().map(|p| p.2).collect();
    measure(runner, &descs, settings, known, watch)
}

/// Measures further problems between those of the mesh, where no choice serves all around: in the
/// middle of each tile and edge whose ends have no choice in common that costs at most `quarrel`
/// at any of them, the worst first. Returns whether it came to the end.
pub fn refine(
    runner: &mut dyn Runner,
    mesh: &Mesh,
    areas: &[Area],
    quarrel: f64,
    settings: &Settings,
    known: &mut Known,
    watch: &mut dyn Watch,
) -> bool {
    let mut plan: Vec<(f64, Desc)> = Vec::new();
    for &area in areas {
        // Of the mesh alone: what an earlier run has refined would be refined again.
        let points = mesh.points(area).into_iter().filter_map(|at| mesh.desc(area, at));
        let coarse = points.filter_map(|d| Some((d, known.get(&d)?.clone()))).collect();
        let Some(plane) = Plane::new(runner, area, &coarse) else { continue };
        let (m, n) = (&plane.m, &plane.n);
        let middle = |sizes: &[usize], k: usize, half: bool| {
            let next = sizes.get(k + usize::from(half))?;
            Some((sizes[k] as f64 * *next as f64).sqrt().round() as usize)
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
                    let cost = plane.quarrel(&corners) - 1.0;
                    let line = |size| area.line(size).filter(|_| cost > quarrel);
                    let desc = match area.layout {
                        Layout::Col if right && !down => mesh.shape(area, rows, columns),
                        Layout::Col => line(rows).and_then(|m| mesh.shape(area, m, columns)),
                        _ if down && !right => mesh.shape(area, rows, columns),
                        _ => line(columns).and_then(|n| mesh.shape(area, rows, n)),
                    };
                    if let Some(desc) = desc.filter(|_| cost > quarrel) {
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
    // One type after another: see above. The worst of each come first all the same.
    let worst = descs.len().min(1000);
    for part in descs.chunks_mut(worst.max(1)) {
        part.sort_by_key(|d| d.dtype);
    }
    measure(runner, &descs, settings, known, watch)
}

/// Measures every candidate of these problems, leaving out what is known already.
fn measure(
    runner: &mut dyn Runner,
    descs: &[Desc],
    settings: &Settings,
    known: &mut Known,
    watch: &mut dyn Watch,
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
        let cell = search(runner, desc, &all, &[], settings);
        let go_on = watch.done(&cell, done + 1, descs.len());
        known.insert(*desc, cell);
        if go_on.is_break() {
            return false;
        }
    }
    true
}
