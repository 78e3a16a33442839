//! The published kernels, searched as published.

use gemv::Desc;
use gemv::tuner::{Area, Cell, Known, Lab, Mesh, Point, Runner, Settings, Trial, Watch, search};

use super::progress::Progress;

/// The search as published: every combination on 3 x 3 samples of each tile, and for the tile what
/// is best on them together. Returns the mesh of the tiles' centres, to which `known` is reduced.
pub(super) fn published(
    lab: &mut Lab,
    mesh: &Mesh,
    areas: &[Area],
    known: &mut Known,
    watch: &mut Progress,
) -> Mesh {
    let (sizes, max_bytes) = (mesh.sizes(), mesh.max_bytes());
    let (from, to) = (sizes[0], sizes[sizes.len() - 1]);
    let fine = Mesh::new(3 * sizes.len(), from, to, max_bytes);
    let mut settings = Settings::default();
    // Nobody leaves.
    (settings.hopeless, settings.finalists, settings.rounds) = (f64::INFINITY, usize::MAX, 1);
    let mut plan = Vec::new();
    for a in areas {
        let points = fine.points(*a).into_iter();
        plan.extend(points.filter_map(|at| fine.desc(*a, at)));
    }
    let total = plan.len();
    for (done, desc) in plan.into_iter().enumerate() {
        if known.contains_key(&desc) {
            continue;
        }
        let all = lab.candidates(&desc);
        let cell = search(lab, &desc, &all, &[], &settings);
        let go_on = watch.done(&cell, done + 1, total);
        known.insert(desc, cell);
        if go_on.is_break() {
            break;
        }
    }
    let centres: Vec<usize> = fine.sizes().iter().skip(1).step_by(3).copied().collect();
    let tiles = Mesh::of(centres, max_bytes);
    for a in areas {
        for at in tiles.points(*a) {
            let samples = (0..9).filter_map(|k| {
                let at = Point { i: 3 * at.i + k / 3, j: 3 * at.j + k % 3 };
                known.get(&fine.desc(*a, at)?)
            });
            let samples: Vec<Cell> = samples.cloned().collect();
            let centre = tiles.desc(*a, at).expect("a point of the mesh");
            if let Some(tile) = together(&centre, &samples) {
                known.insert(centre, tile);
            }
        }
    }
    tiles
}

/// One problem for all samples of a tile: its times are their geometric means, of the candidates
/// that count on each of them.
fn together(centre: &Desc, samples: &[Cell]) -> Option<Cell> {
    let first = samples.first()?;
    let mut cell = Cell { desc: *centre, trials: vec![], ..first.clone() };
    for t in &first.trials {
        let times: Option<Vec<f64>> = samples.iter().map(|s| s.seconds(t.work)).collect();
        if let Some(times) = times {
            let mean = times.iter().map(|t| t.ln()).sum::<f64>() / times.len() as f64;
            let seconds = mean.exp();
            cell.trials.push(Trial { seconds, low: seconds, high: seconds, ..t.clone() });
        }
    }
    cell.trials.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Some(cell)
}
