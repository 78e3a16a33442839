//! From many points to few rows.

use super::merge::{Ranges, merge, ranges};
use super::present::{Old, still};
use super::search::{Cell, Runner, Trial, median};
use super::sweep::{Area, Known};
use gemv_core::order::SEGMENT;
use gemv_core::table::{ANY, Row};
use gemv_core::{Desc, Params};

/// The part of a table that is for one area.
///
/// Made by [`distil`]; its rows are a [`Table`](crate::Table)'s.
///
/// ```
/// use gemv_core::Table;
/// use gemv_tune::Distilled;
/// let rows = Table::parse("t", "f32 row m=1..64 : row rows=1\nf32 row : row rows=4")?.rows;
/// let part = Distilled { rows, kept: 0, cost: 0.004, worst: 0.05 }; // 0.4 %, 5 %
/// let table = Table { rows: part.rows, ..Table::default() };
/// assert_eq!(table.to_string(), "f32 row m=1..64 : row rows=1\nf32 row : row rows=4\n");
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Distilled {
    /// The rows, in the order in which they hold.
    pub rows: Vec<Row>,
    /// How many of them, the last ones, say what the present rows said.
    pub kept: usize,
    /// The geometric mean over the points of what they cost against the best there, less 1.
    pub cost: f64,
    /// What they cost at the worst point, less 1.
    pub worst: f64,
}

/// How rows are made of points.
///
/// ```
/// use gemv_tune::Distilling;
/// let mut short = Distilling::default();
/// short.limit = 10;
/// assert!(short.worth > 0.0 && short.around < 1.0);
/// assert!(short.from.is_empty()); // from nothing
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Distilling {
    /// Most rows.
    pub limit: usize,
    /// A row has to save this much, as a sum over points of the logarithms of what they cost.
    pub worth: f64,
    /// What a choice costs beyond this share of the best counts again, so many times as `dread` says: a table with a
    /// hole is worse than one that is a little slower everywhere.
    pub hole: f64,
    /// How many times.
    pub dread: f64,
    /// The share with which the points around a point count beside it, or in its place where it is not
    /// known: what serves there too serves better in between.
    pub around: f64,
    /// The present rows of the area, [which are to be had for nothing](super::present()): a new row stands before
    /// them only where it saves its price beside what they choose. Empty to begin with nothing.
    pub from: Vec<Row>,
}

impl Default for Distilling {
    fn default() -> Distilling {
        Distilling {
            limit: 100,
            worth: 0.03,
            hole: 0.05,
            dread: 16.0,
            around: 0.5,
            from: Vec::new(),
        }
    }
}

/// How far the times of these problems are to be trusted: what a median of as many batches as there
/// were may be off, as a share of it, at most problems.
///
/// A difference that is not much larger says nothing: on a GPU of one's own it is some thousandths, on
/// a machine that is shared with others some hundredths.
///
/// ```
/// use gemv_tune::{Cell, Known, Trial, noise};
/// use gemv_core::{Desc, Dtype, Params};
///
/// let desc = Desc::new(Dtype::F32, 64, 64, (64, 1), 0);
/// let (seconds, low, high) = (1.0e-6, 0.9e-6, 1.17e-6); // from nine batches
/// let (params, launch_id) = (Params::new("row"), 0);
/// let trial = Trial { params, launch_id, seconds, low, high, batches: 9, checked: true, finalist: true };
/// let failures = Vec::new();
/// let cell = Cell { desc, trials: vec![trial], failures, candidates: 1, at_roof: false, floor: None };
/// assert!((noise(&Known::from([(desc, cell)])) - 0.05).abs() < 1e-9);
/// assert_eq!(noise(&Known::new()), 0.0);
/// ```
pub fn noise(known: &Known) -> f64 {
    let of = |t: &Trial| 0.5 * (t.high / t.low - 1.0) / (t.batches.max(1) as f64).sqrt();
    let all: Vec<f64> = known.values().filter_map(|cell| cell.best().map(of)).collect();
    if all.is_empty() { 0.0 } else { median(&all) }
}

/// Cuts the plane of an area into rectangles of one choice each, so that what they cost at the
/// known points together, and a price for each rectangle, is as little as possible.
///
/// Every choice is timed at every point, so that one which is good at all points of a rectangle is
/// found though it may be the best at none. Rectangles are cut in two, again and again, at the
/// place where it pays most; of all ways to do this the best is found, since there are no more
/// rectangles than pairs of sizes, squared. Rectangles of one choice become one row where the rows in
/// between can stand before it. The price grows until the rows are few enough.
///
/// With rows [to start from](Distilling::from), a rectangle may also stay as they have it, which costs what they choose at
/// its points and no price. The new rows stand before those of them that still serve somewhere. Where none of them
/// holds and the nearest served, a row behind them says so, since a new one may be nearer. Where they leave too little room
/// for new ones, rows made from nothing are taken if those cost less.
///
/// This is a hierarchical partition by dynamic programming, as in Muthukrishnan, Poosala and Suel,
/// *On Rectangular Partitionings in Two Dimensions* (1999).
///
/// ```
/// use gemv_tune::{Area, Distilling, Known, Mesh, Settings, distil, sweep};
/// # use gemv_tune::{Cell, Failure, Runner, Watch};
/// # use gemv_core::{Align, Desc, Dtype, Layout, Params};
/// # use std::ops::ControlFlow;
/// # struct Silent;
/// # impl Watch for Silent {
/// #     fn done(&mut self, _: &Cell, _: usize, _: usize) -> ControlFlow<()> {
/// #         ControlFlow::Continue(())
/// #     }
/// # }
/// # /// As in the example of `Runner`.
/// # struct Paper;
/// # impl Runner for Paper {
/// #     fn candidates(&mut self, _: &Desc) -> Vec<Params> {
/// #         [1, 2, 4].map(|rows| Params::new("row").with("rows", rows)).into()
/// #     }
/// #     fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
/// #         let rows = f64::from(params.get_or("rows", 1));
/// #         Ok(1e-6 * rows + 1e-9 * desc.m as f64 / rows)
/// #     }
/// #     fn check(&mut self, _: &Desc, _: &Params) -> Result<(), Failure> {
/// #         Ok(())
/// #     }
/// # }
///
/// // `Paper` is the device of the example of `Runner`, `Silent` a `Watch` that says nothing.
/// let area = Area { dtype: Dtype::F32, layout: Layout::Row, align: Align::WHOLE };
/// let mesh = Mesh::of(vec![64, 1024, 16384], 1 << 30);
/// let mut known = Known::new();
/// sweep(&mut Paper, &mesh, &[area], &Settings::default(), &mut known, &mut Silent);
/// let rows = |limit| {
///     let mut settings = Distilling::default();
///     settings.limit = limit;
///     distil(&mut Paper, area, &known, &|_, _| true, &settings)
/// };
/// assert_eq!(rows(100).worst, 0.0); // a row for each choice that is best somewhere
/// assert!(rows(1).rows.len() == 1 && rows(1).worst > 0.1); // one for all
/// ```
pub fn distil(
    runner: &mut dyn Runner,
    area: Area,
    known: &Known,
    legal: &dyn Fn(&Desc, &Params) -> bool,
    settings: &Distilling,
) -> Distilled {
    let Some(plane) = Plane::new(runner, area, known) else {
        return Distilled { rows: Vec::new(), kept: 0, cost: 0.0, worst: 0.0 };
    };
    let old = Old::new(runner, area, known, &plane, legal, settings);
    let best = plane.best(settings);
    let fewest = |old: Option<&Old>| -> Option<Found> {
        let limit = settings.limit.max(1);
        let rows_at = |price: f64| plane.rows_at(area, &best, old, price, legal, settings);
        // The least price that leaves few enough rows, to an eighth.
        let (mut low, mut price) = (settings.worth, 2.0 * settings.worth.max(1e-3));
        let mut found = rows_at(low);
        if found.rows.len() <= limit {
            return Some(found);
        }
        // No price makes the present rows fewer than they are.
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
        // At an equal price, starting from something never costs more.
        Some(found) if !found.squeezed => found,
        from => {
            let anew = fewest(None).expect("few enough at some price");
            from.filter(|from| from.paid <= anew.paid).unwrap_or(anew)
        }
    };
    let (cost, worst) = plane.cost(&found.leaves, old.as_ref());
    Distilled { rows: found.rows, kept: found.kept, cost, worst }
}

/// Rows at some price.
struct Found {
    leaves: Vec<Leaf>,
    rows: Vec<Row>,
    kept: usize,
    /// What the rectangles cost, each new one at its true price.
    paid: f64,
    /// Whether the price had to grow.
    squeezed: bool,
}

/// The least time of those with the right bits.
pub(super) fn fastest(cell: &Cell) -> f64 {
    let checked = cell.trials.iter().filter(|t| t.checked);
    checked.map(|t| t.seconds).fold(f64::INFINITY, f64::min)
}

/// What is known of an area: the plane of its shapes, on the lines that have a known point.
pub(super) struct Plane {
    /// Rows and columns of the lines.
    pub(super) m: Vec<usize>,
    pub(super) n: Vec<usize>,
    choices: Vec<Params>,
    /// By choice, line of m and line of n: the time by that of the best there; infinity where the
    /// choice was not measured, none where the point is not known.
    ratio: Vec<Vec<Option<f64>>>,
}

/// Indices of lines, first and last, of m and n.
type Rect = (usize, usize, usize, usize);

/// A rectangle and its choice; none where it stays as present rows have it.
type Leaf = (Rect, Option<usize>);

/// What counts for a choice that is not legal, or not right, at a point: more than any slowness.
const IMPOSSIBLE: f64 = 100.0;

/// Where a pair of first and last stands among all of them: no more than half of a square.
pub(super) fn pair(first: usize, last: usize) -> usize {
    last * (last + 1) / 2 + first
}

impl Plane {
    /// `None` if nothing is known, or nothing of it is a candidate.
    pub(super) fn new(runner: &mut dyn Runner, area: Area, known: &Known) -> Option<Plane> {
        let here = |cell: &&Cell| area.holds(&cell.desc) && cell.best().is_some();
        let cells: Vec<&Cell> = known.values().filter(here).collect();
        let line = |size: &dyn Fn(&Desc) -> usize| {
            let mut all: Vec<usize> = cells.iter().map(|c| size(&c.desc)).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let (m, n) = (line(&|d| d.m), line(&|d| d.n));
        let mut choices: Vec<Params> = Vec::new();
        for cell in &cells {
            for params in runner.candidates(&cell.desc) {
                if !choices.contains(&params) {
                    choices.push(params);
                }
            }
        }
        let mut ratio = vec![vec![None; m.len() * n.len()]; choices.len()];
        // Whether its bits were found right anywhere here.
        let mut right = vec![false; choices.len()];
        for cell in &cells {
            let (k, l) = (m.binary_search(&cell.desc.m).ok()?, n.binary_search(&cell.desc.n).ok()?);
            let best = fastest(cell);
            for (c, params) in choices.iter().enumerate() {
                let launch_id = runner.launch_id(&cell.desc, params);
                let trial = launch_id
                    .and_then(|launch_id| cell.trials.iter().find(|t| t.launch_id == launch_id));
                // What was too slow to be checked there may still serve beside where it was.
                right[c] |= trial.is_some_and(|t| t.checked);
                let time = trial.map_or(f64::INFINITY, |t| (t.seconds / best).max(1.0));
                ratio[c][k * n.len() + l] = Some(time);
            }
        }
        let mut keep = right.iter();
        choices.retain(|_| *keep.next().expect("one each"));
        let mut keep = right.iter();
        ratio.retain(|_| *keep.next().expect("one each"));
        (!choices.is_empty()).then_some(Plane { m, n, choices, ratio })
    }

    /// The known points of it, each with where it stands among all.
    pub(super) fn cells<'a>(
        &'a self,
        area: Area,
        known: &'a Known,
    ) -> impl Iterator<Item = (usize, &'a Cell)> + 'a {
        let here = move |cell: &&Cell| area.holds(&cell.desc) && cell.best().is_some();
        known.values().filter(here).filter_map(|cell| {
            let (k, l) = (self.m.binary_search(&cell.desc.m), self.n.binary_search(&cell.desc.n));
            Some((k.ok()? * self.n.len() + l.ok()?, cell))
        })
    }

    /// The least that one choice costs at the worst of these points (indices of lines), by the best
    /// there; 1 where fewer than two of them are known, and very much where nothing was measured at two.
    pub(super) fn quarrel(&self, points: &[(usize, usize)]) -> f64 {
        let at = points.iter().map(|&(k, l)| k * self.n.len() + l);
        // A further line is known in part of the plane alone: a corner by itself quarrels with nobody.
        if at.clone().filter(|at| self.ratio.iter().any(|ratio| ratio[*at].is_some())).count() < 2 {
            return 1.0;
        }
        let worst = |ratio: &Vec<Option<f64>>| {
            let known = at.clone().filter_map(|at| ratio[at]);
            (known.clone().count() > 1).then(|| known.fold(1.0, f64::max))
        };
        self.ratio.iter().filter_map(worst).fold(f64::INFINITY, f64::min).min(1e3)
    }

    /// Sums of a choice's losses over all points with smaller indices.
    pub(super) fn sums(&self, ratio: &[Option<f64>], settings: &Distilling) -> Vec<f64> {
        let (height, side) = (self.m.len(), self.n.len());
        let loss = |k: usize, l: usize| {
            let log = ratio.get(k * side + l).copied().flatten()?.ln();
            let over = (log - settings.hole.ln_1p()).max(0.0);
            Some((log + settings.dread * over).min(IMPOSSIBLE))
        };
        let near = |a: usize, b: usize| a.max(b) as f64 <= 2.5 * a.min(b) as f64;
        // What serves one segment says little of two, whose sums take a second launch or a cluster.
        let kin = |a: usize, b: usize| (a > SEGMENT) == (b > SEGMENT);
        let mut sums = vec![0.0; (height + 1) * (side + 1)];
        for k in 0..height {
            for l in 0..side {
                let own = {
                    // The first known point each way, if it is not far.
                    let m = |i: &usize| near(self.m[k], self.m[*i]);
                    let n = |j: &usize| near(self.n[l], self.n[*j]) && kin(self.n[l], self.n[*j]);
                    let beside = [
                        (0..k).rev().take_while(m).find_map(|k| loss(k, l)),
                        (k + 1..height).take_while(m).find_map(|k| loss(k, l)),
                        (0..l).rev().take_while(n).find_map(|l| loss(k, l)),
                        (l + 1..side).take_while(n).find_map(|l| loss(k, l)),
                    ];
                    // What is not legal beyond an edge does not speak against it at a known point. Where nothing
                    // is known, what lies beside it alone speaks: else a choice that is legal nowhere
                    // around would cost nothing.
                    let own = loss(k, l);
                    let near = beside.into_iter().flatten();
                    let near = near.filter(|&v| own.is_none() || v < IMPOSSIBLE);
                    own.unwrap_or(0.0) + settings.around * near.map(|v| v.min(1.0)).sum::<f64>()
                };
                let at = |k: usize, l: usize| k * (side + 1) + l;
                sums[at(k + 1, l + 1)] =
                    own + sums[at(k, l + 1)] + sums[at(k + 1, l)] - sums[at(k, l)];
            }
        }
        sums
    }

    /// Shows every rectangle (pairs of m, of n) and what it costs by these sums.
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

    /// By rectangle (pairs of m, of n): what the best choice for all of its points costs, and which
    /// that is.
    fn best(&self, settings: &Distilling) -> Vec<(f32, u32)> {
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
        area: Area,
        best: &[(f32, u32)],
        old: Option<&Old>,
        price: f64,
        legal: &dyn Fn(&Desc, &Params) -> bool,
        settings: &Distilling,
    ) -> Found {
        let (leaves, mut paid) = self.cut(best, old, price);
        let (new, kept) = self.rows(area, &leaves, legal);
        paid += settings.worth * new.len() as f64;
        let mut rows = merge(new, &kept, legal);
        let new = rows.len();
        if let Some(old) = old.filter(|_| !kept.is_empty()) {
            rows.extend(still(old.rows, &kept, self.gaps(area, &leaves, old), legal));
        }
        Found { kept: rows.len() - new, leaves, rows, paid, squeezed: false }
    }

    /// Rows for the points that stay as present rows have them though none of those holds there.
    fn gaps(&self, area: Area, leaves: &[Leaf], old: &Old) -> Vec<Row> {
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
            // Other rows stand before these, so what lies between two of one choice need not be one.
            let gaps: Vec<_> = (0..side).filter_map(gap).collect();
            for run in gaps.chunk_by(|a, b| a.1 == b.1) {
                let (first, last) = (run[0], run[run.len() - 1]);
                rows.push(Row {
                    dtype: Some(area.dtype),
                    layout: Some(area.layout),
                    align: area.align,
                    m: range(&self.m, k, k),
                    n: range(&self.n, first.0, last.0),
                    params: first.1,
                });
            }
        }
        rows
    }

    /// The cheapest rectangles at this price for each, and what they cost without it.
    fn cut(&self, best: &[(f32, u32)], old: Option<&Old>, price: f64) -> (Vec<Leaf>, f64) {
        let (height, side) = (self.m.len(), self.n.len());
        let wide = pair(0, side);
        let index = |(i0, i1, j0, j1): Rect| pair(i0, i1) * wide + pair(j0, j1);
        // One choice for all of it, which has a price, or as it is, which has none.
        let whole = |rect: usize| {
            let (loss, c) = best[rect];
            let as_it_is = old.map(|old| old.loss[rect]);
            match as_it_is.filter(|&as_it_is| as_it_is <= loss + price as f32) {
                Some(as_it_is) => (as_it_is, as_it_is, None),
                None => (loss + price as f32, loss, Some(c as usize)),
            }
        };
        // By rectangle: the cost, and behind which line it is cut (m first), if it is.
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
        // Rectangles without a point are for nothing that was measured: they stay as they are, or the nearest row serves.
        for leaf in &mut leaves {
            leaf.1 = leaf.1.filter(|&c| ratios(&self.ratio[c], side, leaf.0).next().is_some());
        }
        leaves.retain(|leaf| old.is_some() || leaf.1.is_some());
        // Fewest columns first: where rows meet, one that is made for few has them.
        leaves.sort_by_key(|&((i0, _, j0, _), _)| (j0, i0));
        (leaves, cost)
    }

    fn cost(&self, leaves: &[Leaf], old: Option<&Old>) -> (f64, f64) {
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

    /// The rectangles as rows: each reaches to halfway to the next line, or to a power of two, and no further than its
    /// parameters are legal; what is cut off there is the next one's. Of those that stay as they are, the ranges.
    fn rows(
        &self,
        area: Area,
        leaves: &[Leaf],
        legal: &dyn Fn(&Desc, &Params) -> bool,
    ) -> (Vec<Row>, Vec<Ranges>) {
        // For what stays, which is as legal as it was.
        let stays = Params::new("stays");
        let legal = |desc: &Desc, params: &Params| *params == stays || legal(desc, params);
        let mut rows: Vec<Row> = Vec::new();
        for &((i0, i1, j0, j1), c) in leaves {
            let mut row = Row {
                dtype: Some(area.dtype),
                layout: Some(area.layout),
                align: area.align,
                m: range(&self.m, i0, i1),
                n: range(&self.n, j0, j1),
                params: c.map_or(stays, |c| self.choices[c]),
            };
            let params = row.params;
            clip(&mut row, |desc| legal(desc, &params));
            rows.push(row);
        }
        // What was cut off a row goes to those behind it.
        let beyond = |log: f32| (log.exp2().round() + 1.0).log2();
        for a in 0..rows.len() {
            let ((i0, i1, j0, j1), _) = leaves[a];
            let (m, n) = (rows[a].m.1, rows[a].n.1);
            let cut_m = i1 + 1 < self.m.len() && m < halfway(&self.m, i1);
            let cut_n = j1 + 1 < self.n.len() && n < halfway(&self.n, j1);
            for (row, &((k0, k1, l0, l1), _)) in rows.iter_mut().zip(leaves) {
                if cut_m && k0 == i1 + 1 && l0 <= j1 && j0 <= l1 {
                    row.m.0 = row.m.0.min(beyond(m));
                }
                if cut_n && l0 == j1 + 1 && k0 <= i1 && i0 <= k1 {
                    row.n.0 = row.n.0.min(beyond(n));
                }
            }
        }
        // They, too, hold no further than they are legal.
        for row in &mut rows {
            let params = row.params;
            clip(row, |desc| legal(desc, &params));
        }
        // Beyond the last line there is nothing behind them: the best of what is legal there, as far as is known.
        for k in 0..leaves.len() {
            let (rect, row) = (leaves[k].0, rows[k]);
            if rect.3 + 1 < self.n.len() || row.n.1 == ANY.1 || row.params == stays {
                continue;
            }
            let far = Desc::of(
                area.dtype,
                area.layout,
                (row.m.0.exp2().round() as usize, u32::MAX as usize),
                area.align.low,
            );
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
        let (kept, new): (Vec<Row>, Vec<Row>) = rows.iter().partition(|row| row.params == stays);
        (new, kept.iter().map(ranges).collect())
    }
}

/// What a choice costs at the known points of a rectangle, of a plane with so many columns.
fn ratios(
    ratio: &[Option<f64>],
    side: usize,
    (i0, i1, j0, j1): Rect,
) -> impl Iterator<Item = f64> + '_ {
    (i0..=i1).flat_map(move |i| (j0..=j1).filter_map(move |j| ratio[i * side + j]))
}

/// Where what is between a line and the next is divided, as a logarithm.
fn halfway(sizes: &[usize], k: usize) -> f32 {
    let (here, next) = (sizes[k], sizes[k + 1]);
    // Kernels change their shape at powers of two: of a few columns, and of segments.
    let power = 1 << (next - 1).checked_ilog2().unwrap_or(0);
    let edge = match power {
        power if (here..=SEGMENT * SEGMENT).contains(&power) => power as f64,
        _ => (here as f64 * next as f64).sqrt().floor(),
    };
    (edge as f32).log2()
}

/// What the lines from one to another are for.
fn range(sizes: &[usize], low: usize, high: usize) -> (f32, f32) {
    let from = if low == 0 { ANY.0 } else { (halfway(sizes, low - 1).exp2().round() + 1.0).log2() };
    let to = if high + 1 == sizes.len() { ANY.1 } else { halfway(sizes, high) };
    (from, to)
}

/// Draws the edges of a row in to where its parameters are still legal: halfway to the next
/// point of the mesh may be beyond what a kernel for few columns can hold, and halfway to the one before may
/// be fewer columns than a kernel for several segments has work for.
pub(super) fn clip(row: &mut Row, legal: impl Fn(&Desc) -> bool) {
    let (Some(dtype), Some(layout)) = (row.dtype, row.layout) else { return };
    let whole = |log: f32| log.min(32.0).exp2().round() as usize;
    let (low_m, mut low_n) = (whole(row.m.0), whole(row.n.0));
    // The least of the class: what is legal there is legal in all of it.
    let align = row.align.low;
    let fits = |m: usize, n: usize| legal(&Desc::of(dtype, layout, (m, n), align));
    // Columns first, for the fewest rows; then rows, at both ends of the columns left.
    if !fits(low_m, low_n) {
        // Something legal further on, if there is, and from there back to the first.
        let further = |n: &usize| Some((2 * n.max(&1)).min(whole(row.n.1)));
        let some = std::iter::successors(Some(low_n), further).take(40).find(|&n| fits(low_m, n));
        if let Some(some) = some {
            low_n = last(low_n, some, |n| !fits(low_m, n)) + 1;
            row.n.0 = (low_n as f32).log2();
        }
    }
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
