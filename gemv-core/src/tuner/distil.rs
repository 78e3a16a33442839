//! From many points to few rows.

use super::mesh::{Mesh, Point};
use super::sweep::{Area, Known};
use crate::table::{ANY, Row};
use crate::{Desc, Params};

/// What a point still asks for.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Nothing was measured there, or a row before this one holds: anything goes.
    Free,
    /// Not yet covered.
    Open,
}

/// Covers the known points of an area with few rectangles, each of one choice that is
/// [alike](super::Cell::alike) the best within `share` at every point which the rectangle is the
/// first to cover. Returns the rows,
/// at most `limit`, in the order in which they hold (the first that covers a shape wins), and the
/// geometric mean of what they cost on the points against the best, less 1.
///
/// Greedy: the rectangle that settles most points comes first. Later ones may run over settled
/// points, since the earlier row wins there; so a large background with exceptions needs one row,
/// not a frame of four. Points left over by `limit` fall to the nearest row.
pub fn distil(mesh: &Mesh, area: Area, known: &Known, share: f64, limit: usize) -> (Vec<Row>, f64) {
    let side = mesh.sizes().len();
    let cell = |at: Point| mesh.desc(area.dtype, area.layout, at).and_then(|d| known.get(&d));
    let points = mesh.points(area.dtype, area.layout);
    let mut state = vec![State::Free; side * side];
    let mut choices: Vec<Params> = Vec::new();
    for &at in &points {
        for trial in cell(at).into_iter().flat_map(|c| c.alike(share)) {
            state[at.i * side + at.j] = State::Open;
            if !choices.contains(&trial.params) {
                choices.push(trial.params);
            }
        }
    }
    // good[k][point]: choice k is as good as the best there.
    let mut good = vec![vec![false; side * side]; choices.len()];
    for &at in &points {
        for trial in cell(at).into_iter().flat_map(|c| c.alike(share)) {
            let k = choices.iter().position(|c| *c == trial.params).expect("listed above");
            good[k][at.i * side + at.j] = true;
        }
    }

    let mut rows = Vec::new();
    while rows.len() < limit {
        let best = (0..choices.len())
            .filter_map(|k| Some((largest(&state, &good[k], side)?, k)))
            // The earlier choice on a tie: nothing depends on the order of a hash.
            .max_by_key(|&((gain, _), k)| (gain, std::cmp::Reverse(k)));
        let Some(((_, (low, high)), k)) = best else { break };
        for i in low.i..=high.i {
            state[i * side + low.j..=i * side + high.j].fill(State::Free);
        }
        rows.push(Row {
            dtype: Some(area.dtype),
            layout: Some(area.layout),
            m: range(mesh, low.i, high.i),
            n: range(mesh, low.j, high.j),
            params: choices[k],
        });
    }

    let table = crate::Table { rows, ..crate::Table::default() };
    let mut cost = (0.0, 0);
    for cell in points.iter().filter_map(|&at| cell(at)) {
        let chosen = table.nearest(&cell.desc).first().map(|row| row.params);
        if let (Some(best), Some(time)) = (cell.best(), chosen.and_then(|p| cell.seconds(&p))) {
            cost = (cost.0 + (time / best.seconds).ln(), cost.1 + 1);
        }
    }
    (table.rows, (cost.0 / f64::from(cost.1.max(1))).exp_m1())
}

/// The sizes, as logarithms, for which points `low` to `high` of the mesh answer: to halfway to the
/// next one. So every shape falls into the row that holds at the point nearest to it, and never
/// into one that only runs over that point because an earlier row settled it.
fn range(mesh: &Mesh, low: usize, high: usize) -> (f32, f32) {
    let sizes = mesh.sizes();
    let halfway = |k: usize| ((sizes[k] as f64 * sizes[k + 1] as f64).sqrt().round() as f32).log2();
    let from = if low == 0 { ANY.0 } else { halfway(low - 1) };
    let to = if high + 1 == sizes.len() { ANY.1 } else { halfway(high) };
    (from, to)
}

/// Draws the upper edges of a row in to where its parameters are still legal: halfway to the next
/// point of the mesh may be beyond what a kernel for few columns can hold. What is cut off falls to
/// the nearest row, as everything that no row holds.
pub fn clip(row: &mut Row, legal: impl Fn(&Desc) -> bool) {
    let (Some(dtype), Some(layout)) = (row.dtype, row.layout) else { return };
    let whole = |log: f32| log.min(32.0).exp2().round() as usize;
    let (low_m, low_n) = (whole(row.m.0), whole(row.n.0));
    let fits = |m: usize, n: usize| legal(&Desc { dtype, m, n, layout, align: 6 });
    // Columns first, for the fewest rows; then rows, at both ends of the columns left.
    let n = last(low_n, whole(row.n.1), |n| fits(low_m, n));
    if n < whole(row.n.1) {
        row.n.1 = (n as f32).log2();
    }
    let m = last(low_m, whole(row.m.1), |m| fits(m, low_n) && fits(m, n));
    if m < whole(row.m.1) {
        row.m.1 = (m as f32).log2();
    }
}

/// The last number from `low` to `high` that is good, if those that are come first; `low` if none.
fn last(low: usize, high: usize, good: impl Fn(usize) -> bool) -> usize {
    if good(high) {
        return high;
    }
    let (mut low, mut high) = (low, high);
    while high > low + 1 {
        let half = low + (high - low) / 2;
        if good(half) { low = half } else { high = half }
    }
    low
}

/// The rectangle that settles most open points with a choice that is `good` at each of them, drawn
/// tight around them; `None` if there is none.
fn largest(state: &[State], good: &[bool], side: usize) -> Option<(usize, (Point, Point))> {
    let mut best: Option<(usize, (Point, Point))> = None;
    for low in 0..side {
        // Of the rows low..=high: open points a column, and whether the choice is bad at one.
        let (mut open, mut bad) = (vec![0; side], vec![false; side]);
        for high in low..side {
            for j in 0..side {
                let at = high * side + j;
                if state[at] == State::Open {
                    open[j] += 1;
                    bad[j] |= !good[at];
                }
            }
            let (mut gain, mut first) = (0, 0);
            for j in 0..side {
                if bad[j] {
                    gain = 0;
                    continue;
                }
                if open[j] == 0 {
                    continue;
                }
                if gain == 0 {
                    first = j;
                }
                gain += open[j];
                // Strictly more: the smallest rectangle of its gain.
                if best.is_none_or(|b| gain > b.0) {
                    let corners = (Point { i: low, j: first }, Point { i: high, j });
                    best = Some((gain, corners));
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Layout};

    #[test]
    fn a_row_ends_where_its_parameters_do() {
        let row = Row {
            dtype: Some(Dtype::F32),
            layout: Some(Layout::Row),
            m: (0.0, 10.0),
            n: (20f32.log2(), 39f32.log2()),
            params: Params::new("any"),
        };
        let clipped = |legal: fn(&Desc) -> bool| {
            let mut row = row;
            clip(&mut row, legal);
            (row.m.1.exp2().round() as usize, row.n.1.exp2().round() as usize)
        };
        assert_eq!(clipped(|_| true), (1024, 39));
        assert_eq!(clipped(|d| d.n <= 32), (1024, 32));
        assert_eq!(clipped(|d| d.n <= 32 && d.m <= 700), (700, 32));
        assert_eq!(clipped(|d| d.m <= 700), (700, 39));
    }
}
