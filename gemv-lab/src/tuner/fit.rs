//! Fitting a table: few rows from many measured points.

use super::class::ProblemClass;
use super::grid::{CostGrid, Rect, pair};
use super::incumbent::{Incumbent, keep_rows};
use super::measurements::Measurements;
use super::merge::merge;
use super::rows::{Ranges, clip, halfway, range, ranges};
use super::search::Runner;
use super::settings::FitSettings;
use gemv_core::table::{ANY, Row};
use gemv_core::{Desc, Params};

/// The part of a table that is for one class. Made by [`fit`].
///
/// ```
/// use gemv_core::Table;
/// use gemv_lab::tuner::Fit;
/// let rows = Table::parse("t", "f32 row m=1..64 : row rows=1\nf32 row : row rows=4")?.rows;
/// let part = Fit { rows, kept: 0, cost: 0.004, worst: 0.05 }; // 0.4 %, 5 %
/// let table = Table { rows: part.rows, ..Table::default() };
/// assert_eq!(table.to_string(), "f32 row m=1..64 : row rows=1\nf32 row : row rows=4\n");
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The rows, in the order in which they hold.
    pub rows: Vec<Row>,
    /// How many of them, the last ones, repeat the present rows.
    pub kept: usize,
    /// The geometric mean over the points of the ratio to the best time, less 1.
    pub cost: f64,
    /// The ratio at the worst point, less 1.
    pub worst: f64,
}

/// Cuts the plane of a class into rectangles of one choice each, such that the cost at the
/// measured points plus a price for each rectangle is minimal.
///
/// Every choice is timed at every point, so a choice is found that is good at all points of a
/// rectangle, though best at none. Rectangles are cut in two, recursively; dynamic programming
/// over all rectangles finds the optimum. Rectangles of one choice become one row where the
/// rows between can stand before it. The price grows until the rows are few enough.
///
/// With [present rows](FitSettings::from) a rectangle may also stay as they have it, at the
/// cost of their choices and at no price. New rows stand before the present rows that still
/// serve. Where the nearest present row serves without holding, a row behind them says so,
/// since a new one may be nearer. If they leave too little room for new rows, rows made from
/// nothing are taken where those cost less.
///
/// This is hierarchical partitioning by dynamic programming, as in Muthukrishnan, Poosala and
/// Suel, *On Rectangular Partitionings in Two Dimensions* (1999).
///
/// ```
/// use gemv_lab::tuner::{ProblemClass, FitSettings, Measurements, Mesh, SearchSettings, fit, sweep};
/// # use gemv_lab::tuner::paper::{Paper, Silent};
/// # use gemv_core::{Align, Desc, Dtype, Layout, Params};
///
/// // `Paper` is the device of the example of `Runner`, `Silent` a `Progress` that says nothing.
/// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE, rhs: 1 };
/// let mesh = Mesh::of(vec![64, 1024, 16384], 1 << 30);
/// let mut known = Measurements::new();
/// sweep(&mut Paper, &mesh, &[class], &SearchSettings::default(), &mut known, &mut Silent);
/// let rows = |limit| {
///     let mut settings = FitSettings::default();
///     settings.limit = limit;
///     fit(&mut Paper, class, &known, &|_, _| true, &settings)
/// };
/// assert_eq!(rows(100).worst, 0.0); // a row for each choice that is best somewhere
/// assert!(rows(1).rows.len() == 1 && rows(1).worst > 0.1); // one for all
/// ```
pub fn fit(
    runner: &mut dyn Runner,
    class: ProblemClass,
    known: &Measurements,
    legal: &dyn Fn(&Desc, &Params) -> bool,
    settings: &FitSettings,
) -> Fit {
    let Some(grid) = CostGrid::new(runner, class, known) else {
        return Fit { rows: Vec::new(), kept: 0, cost: 0.0, worst: 0.0 };
    };
    let old = Incumbent::new(runner, known, &grid, legal, settings);
    let best = grid.best(settings);
    let fewest = |old: Option<&Incumbent>| -> Option<Found> {
        let limit = settings.limit.max(1);
        let rows_at = |price: f64| grid.rows_at(&best, old, price, legal, settings);
        // The least price that leaves few enough rows, to an eighth.
        let (mut low, mut price) = (settings.row_cost, 2.0 * settings.row_cost.max(1e-3));
        let mut found = rows_at(low);
        if found.rows.len() <= limit {
            return Some(found);
        }
        // No price reduces the present rows.
        if old.is_some() && rows_at(1e6).rows.len() > limit {
            return None;
        }
        loop {
            found = rows_at(price);
            if found.rows.len() <= limit {
                break;
            }
            (low, price) = (price, 2.0 * price);
        }
        while price > 1.125 * low {
            let middle = 0.5 * (low + price);
            let cheaper = rows_at(middle);
            if cheaper.rows.len() <= limit {
                (price, found) = (middle, cheaper);
            } else {
                low = middle;
            }
        }
        Some(Found { squeezed: true, ..found })
    };
    let found = match old.as_ref().and_then(|old| fewest(Some(old))) {
        // At an equal price, present rows never cost more.
        Some(found) if !found.squeezed => found,
        from => {
            let anew = fewest(None).expect("few enough at some price");
            from.filter(|from| from.paid <= anew.paid).unwrap_or(anew)
        }
    };
    let (cost, worst) = grid.cost(&found.leaves, old.as_ref());
    Fit { rows: found.rows, kept: found.kept, cost, worst }
}

/// The rows at one price.
struct Found {
    leaves: Vec<Leaf>,
    rows: Vec<Row>,
    kept: usize,
    /// The cost of the rectangles, each new one at `row_cost`.
    paid: f64,
    /// Whether the price had to grow.
    squeezed: bool,
}

/// A rectangle and its choice; `None` where it stays as the present rows have it.
type Leaf = (Rect, Option<usize>);

impl CostGrid {
    /// By rectangle (pair of m, pair of n): the loss of the best single choice, and its
    /// index.
    fn best(&self, settings: &FitSettings) -> Vec<(f32, u32)> {
        let mut best = vec![(f32::INFINITY, 0); pair(0, self.m.len()) * pair(0, self.n.len())];
        for (c, ratio) in self.ratio.iter().enumerate() {
            self.each_rect(&self.sums(ratio, settings), |rect, loss| {
                if (loss as f32) < best[rect].0 {
                    best[rect] = (loss as f32, c as u32);
                }
            });
        }
        best
    }

    /// The rows at this price for each.
    fn rows_at(
        &self,
        best: &[(f32, u32)],
        old: Option<&Incumbent>,
        price: f64,
        legal: &dyn Fn(&Desc, &Params) -> bool,
        settings: &FitSettings,
    ) -> Found {
        let (leaves, mut paid) = self.cut(best, old, price);
        let (new, kept) = self.rows(&leaves, legal);
        paid += settings.row_cost * new.len() as f64;
        let mut rows = merge(new, &kept, legal);
        let new = rows.len();
        if let Some(old) = old.filter(|_| !kept.is_empty()) {
            rows.extend(keep_rows(old.rows, &kept, self.gaps(&leaves, old), legal));
        }
        Found { kept: rows.len() - new, leaves, rows, paid, squeezed: false }
    }

    /// Rows for the points that keep the choice of a present row that does not hold there.
    fn gaps(&self, leaves: &[Leaf], old: &Incumbent) -> Vec<Row> {
        let side = self.n.len();
        let mut stays = vec![false; old.choices.len()];
        for &((i0, i1, j0, j1), _) in leaves.iter().filter(|leaf| leaf.1.is_none()) {
            (i0..=i1).for_each(|i| stays[i * side + j0..=i * side + j1].fill(true));
        }
        let mut rows = Vec::new();
        for k in 0..self.m.len() {
            let gap = |l: usize| {
                let at = k * side + l;
                old.choices[at].filter(|c| stays[at] && !c.held).map(|c| (l, c.params))
            };
            // Other rows stand before these, so points between two of one choice may
            // have another.
            let gaps: Vec<_> = (0..side).filter_map(gap).collect();
            for run in gaps.chunk_by(|a, b| a.1 == b.1) {
                let (first, last) = (run[0], run[run.len() - 1]);
                let n = range(&self.n, first.0, last.0);
                rows.push(self.class.row(range(&self.m, k, k), n, first.1));
            }
        }
        rows
    }

    /// The cheapest partition at this price for each rectangle, and its loss without the
    /// price.
    fn cut(&self, best: &[(f32, u32)], old: Option<&Incumbent>, price: f64) -> (Vec<Leaf>, f64) {
        let (height, side) = (self.m.len(), self.n.len());
        let wide = pair(0, side);
        let index = |(i0, i1, j0, j1): Rect| pair(i0, i1) * wide + pair(j0, j1);
        // One choice for all of it, at the price; or as it is, without one.
        let whole = |rect: usize| {
            let (loss, c) = best[rect];
            let as_it_is = old.map(|old| old.loss[rect]);
            match as_it_is.filter(|&as_it_is| as_it_is <= loss + price as f32) {
                Some(as_it_is) => (as_it_is, as_it_is, None),
                None => (loss + price as f32, loss, Some(c as usize)),
            }
        };
        // By rectangle: its cost, and the line behind which it is cut (lines of m
        // first), if it is.
        let mut plan = vec![(0f32, u32::MAX); best.len()];
        for tall in 0..height {
            for broad in 0..side {
                for i0 in 0..height - tall {
                    for j0 in 0..side - broad {
                        let (i1, j1) = (i0 + tall, j0 + broad);
                        let rect = index((i0, i1, j0, j1));
                        let mut least = (whole(rect).0, u32::MAX);
                        for cut in i0..i1 {
                            let low = plan[index((i0, cut, j0, j1))].0;
                            let both = low + plan[index((cut + 1, i1, j0, j1))].0;
                            if both < least.0 {
                                least = (both, cut as u32);
                            }
                        }
                        for cut in j0..j1 {
                            let low = plan[index((i0, i1, j0, cut))].0;
                            let both = low + plan[index((i0, i1, cut + 1, j1))].0;
                            if both < least.0 {
                                least = (both, (height + cut) as u32);
                            }
                        }
                        plan[rect] = least;
                    }
                }
            }
        }
        let (mut leaves, mut cost) = (Vec::new(), 0.0);
        let mut open = vec![(0, height - 1, 0, side - 1)];
        while let Some(rect) = open.pop() {
            let (i0, i1, j0, j1) = rect;
            match plan[index(rect)].1 {
                u32::MAX => {
                    let (_, loss, choice) = whole(index(rect));
                    cost += f64::from(loss);
                    leaves.push((rect, choice));
                }
                cut if (cut as usize) < height => {
                    let cut = cut as usize;
                    open.extend([(i0, cut, j0, j1), (cut + 1, i1, j0, j1)]);
                }
                cut => {
                    let cut = cut as usize - height;
                    open.extend([(i0, i1, j0, cut), (i0, i1, cut + 1, j1)]);
                }
            }
        }
        // Rectangles without a measured point stay as they are, or the nearest row
        // serves.
        for leaf in &mut leaves {
            leaf.1 = leaf.1.filter(|&c| ratios(&self.ratio[c], side, leaf.0).next().is_some());
        }
        leaves.retain(|leaf| old.is_some() || leaf.1.is_some());
        // Fewest columns first: where rows meet, the one that is made for few columns
        // serves.
        leaves.sort_by_key(|&((i0, _, j0, _), _)| (j0, i0));
        (leaves, cost)
    }

    fn cost(&self, leaves: &[Leaf], old: Option<&Incumbent>) -> (f64, f64) {
        let ratio = |c: Option<usize>| match c {
            Some(c) => &self.ratio[c][..],
            None => old.map_or(&[][..], |old| &old.ratio),
        };
        let all = leaves.iter().flat_map(|&(rect, c)| ratios(ratio(c), self.n.len(), rect));
        let (mut sum, mut count, mut worst) = (0.0, 0, 1f64);
        for ratio in all {
            (sum, count, worst) = (sum + ratio.ln(), count + 1, worst.max(ratio));
        }
        ((sum / f64::from(count.max(1))).exp_m1(), worst - 1.0)
    }

    /// The rectangles as rows, and the ranges of those that stay. Each row reaches halfway
    /// to the next line, or to a power of two, and no further than its parameters are
    /// legal. The next row gets what was clipped.
    fn rows(
        &self,
        leaves: &[Leaf],
        legal: &dyn Fn(&Desc, &Params) -> bool,
    ) -> (Vec<Row>, Vec<Ranges>) {
        // A marker for what stays, which is as legal as it was.
        let stays = Params::new("stays");
        let legal = |desc: &Desc, params: &Params| *params == stays || legal(desc, params);
        let mut rows: Vec<Row> = Vec::new();
        for &((i0, i1, j0, j1), c) in leaves {
            let params = c.map_or(stays, |c| self.choices[c]);
            let mut row = self.class.row(range(&self.m, i0, i1), range(&self.n, j0, j1), params);
            clip(&mut row, |desc| legal(desc, &params));
            rows.push(row);
        }
        // What was clipped goes to the rows behind it, as rows of their own: a rectangle with few measured points
        // may reach far beyond what is legal, and what lies beside it is other rows'.
        let beyond = |log: f32| (log.exp2().round() + 1.0).log2();
        let both = |a: (f32, f32), b: (f32, f32)| (a.0.max(b.0), a.1.min(b.1));
        for a in 0..leaves.len() {
            let ((i0, i1, j0, j1), _) = leaves[a];
            let (m, n) = (rows[a].m.1, rows[a].n.1);
            let cut_m = i1 + 1 < self.m.len() && m < halfway(&self.m, i1);
            let cut_n = j1 + 1 < self.n.len() && n < halfway(&self.n, j1);
            for (k, &((k0, k1, l0, l1), _)) in leaves.iter().enumerate() {
                if cut_m && k0 == i1 + 1 && l0 <= j1 && j0 <= l1 {
                    let n = both(range(&self.n, j0, j1), range(&self.n, l0, l1));
                    let m = (beyond(m), halfway(&self.m, i1));
                    rows.push(Row { m, n, ..rows[k] });
                }
                if cut_n && l0 == j1 + 1 && k0 <= i1 && i0 <= k1 {
                    let m = both(range(&self.m, i0, i1), range(&self.m, k0, k1));
                    let n = (beyond(n), halfway(&self.n, j1));
                    rows.push(Row { m, n, ..rows[k] });
                }
            }
        }
        // These are clipped in turn, and left out where nothing is left: the nearest row serves there.
        let mut left = Vec::with_capacity(rows.len());
        for row in &mut rows {
            let params = row.params;
            left.push(clip(row, |desc| legal(desc, &params)));
        }
        // Beyond the last line no row follows a clipped one. Add the best choice that is
        // legal there, by the points of the rectangle.
        for k in 0..leaves.len() {
            let (rect, row) = (leaves[k].0, rows[k]);
            if rect.3 + 1 < self.n.len() || row.n.1 == ANY.1 || row.params == stays {
                continue;
            }
            let ProblemClass { dtype, layout, align, rhs } = self.class;
            let dim = (row.m.0.exp2().round() as usize, u32::MAX as usize);
            let far = Desc { rhs, ..Desc::of(dtype, layout, dim, align.low) };
            let mean = |c: usize| {
                let all = ratios(&self.ratio[c], self.n.len(), rect);
                let (sum, count) = all.fold((0.0, 0), |(sum, count), r| (sum + r.ln(), count + 1));
                if count == 0 { f64::INFINITY } else { sum / f64::from(count) }
            };
            let fit = (0..self.choices.len()).filter(|&c| legal(&far, &self.choices[c]));
            let best = fit.min_by(|&a, &b| mean(a).total_cmp(&mean(b)));
            if let Some(c) = best.filter(|&c| mean(c).is_finite()) {
                rows.push(Row { n: (beyond(row.n.1), ANY.1), params: self.choices[c], ..row });
            }
        }
        // Those of the last lines came after, and are legal.
        let left = left.into_iter().chain(std::iter::repeat(true));
        let rows = rows.into_iter().zip(left).filter_map(|(row, left)| left.then_some(row));
        let (kept, new): (Vec<Row>, Vec<Row>) = rows.partition(|row| row.params == stays);
        (new, kept.iter().map(ranges).collect())
    }
}

/// The ratios of a choice at the measured points of a rectangle, in a grid of `side` columns.
fn ratios(
    ratio: &[Option<f64>],
    side: usize,
    (i0, i1, j0, j1): Rect,
) -> impl Iterator<Item = f64> + '_ {
    (i0..=i1).flat_map(move |i| (j0..=j1).filter_map(move |j| ratio[i * side + j]))
}
