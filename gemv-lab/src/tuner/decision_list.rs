//! Fitting few rows: a decision list, whose rows name only what matters.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::class::ProblemClass;
use super::fit::Fit;
use super::measurements::{Measurements, fastest};
use super::rows::{beside, clip, halfway};
use super::search::{ProblemResult, Runner, Trial};
use super::settings::FitSettings;
use gemv_core::order::SEGMENT;
use gemv_core::table::{ANY, Row};
use gemv_core::{Align, Desc, Params};

/// The loss of a hole, at most, and where no row has a choice.
const HOLE: f32 = 20.0;
/// What a candidate counts that was not measured, since another had reached the read bandwidth: a ratio.
const UNKNOWN: f64 = 1.1;
/// What a choice counts that is legal and was not measured, being no candidate.
const UNMEASURED: f64 = 1.5;
/// Up to this ratio, a choice is good.
const GOOD: f64 = 1.05;
/// Most choices among which the rows' are.
const POOL: usize = 80;
/// Sizes up to this ratio are one line of the grid: the edges of a class of alignment lie beside those of another.
const NEAR: f64 = 1.03;
/// Sizes at which kernels change: no line has some on both sides.
const EDGES: [usize; 4] = [64, SEGMENT, 16 * SEGMENT, SEGMENT * SEGMENT];
/// Rows up to whose number a row is tried behind all others, too.
const GENERAL: usize = 6;
/// Rounds in which each row is looked for anew.
const ROUNDS: usize = 3;

/// Few rows for a type, layout and number of right-hand sides, of all alignments. The rows end in `..`: what they
/// leave out is the backend's, whose candidates `candidates` says, best guess first.
///
/// The class's own alignment does not count. A row stands before those that it is an exception to, and one after
/// another is added where it saves most, until there are [`limit`](FitSettings::limit) or the next saves less than
/// [`row_cost`](FitSettings::row_cost). Then rows are replaced and moved as long as that saves. For each choice the
/// rectangle that saves most is found exactly, by the sums of Kadane's algorithm over every range of m. Such lists
/// are the decision lists of Rivest, *Learning Decision Lists* (1987).
///
/// A choice is any part of a candidate's arguments. Of those that choose the same at every measured point, the one
/// with the fewest arguments is taken.
///
/// ```
/// use gemv_lab::tuner::{FitSettings, Measurements, Mesh, ProblemClass, SearchSettings, decision_list, sweep};
/// # use gemv_lab::tuner::{Failure, Runner, paper::Silent};
/// # use gemv_core::{Align, Desc, Dtype, Layout, Params};
/// # struct Paper;
/// # impl Runner for Paper {
/// #     fn candidates(&mut self, desc: &Desc) -> Vec<Params> {
/// #         candidates(desc)
/// #     }
/// #     fn measure(&mut self, desc: &Desc, params: &Params) -> Result<f64, Failure> {
/// #         let rows = f64::from(params.get_or("rows", 1));
/// #         Ok(1e-6 * rows + 1e-9 * desc.m as f64 / rows)
/// #     }
/// #     fn check(&mut self, _: &Desc, _: &Params) -> Result<(), Failure> {
/// #         Ok(())
/// #     }
/// # }
/// /// Loads are as wide as lines allow; rows are a matter of measuring.
/// fn candidates(desc: &Desc) -> Vec<Params> {
///     let vec = 1 << (desc.align.min(4) - 2);
///     [1, 2, 4].map(|rows| Params::new("row").with("vec", vec).with("rows", rows)).into()
/// }
/// // `Paper` is a device whose time depends on m and rows, `Silent` a `Progress` that says nothing.
/// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::ANY, rhs: 1 };
/// let mesh = Mesh::of(vec![64, 1024, 16384], 1 << 30);
/// let mut known = Measurements::new();
/// let classes = ProblemClass::all(Dtype::F32, Layout::Row);
/// sweep(&mut Paper, &mesh, &classes, &SearchSettings::default(), &mut known, &mut Silent);
/// let fit = decision_list(&mut Paper, class, &known, &candidates, &|_, _| true, &FitSettings::default());
/// assert_eq!((fit.rows.len(), fit.worst), (2, 0.0)); // one row up to 1024, four beyond
/// assert!(fit.rows.iter().all(|row| row.partial && row.params.get("vec").is_none()));
/// ```
pub fn decision_list(
    runner: &mut dyn Runner,
    class: ProblemClass,
    known: &Measurements,
    candidates: &dyn Fn(&Desc) -> Vec<Params>,
    legal: &dyn Fn(&Desc, &Params) -> bool,
    settings: &FitSettings,
) -> Fit {
    let class = ProblemClass { align: Align::ANY, ..class };
    let here = |result: &&ProblemResult| class.holds(&result.desc) && result.best().is_some();
    let mut names: Vec<Params> = Vec::new();
    let mut points: Vec<Point> = known
        .values()
        .filter(here)
        .map(|result| Point::new(runner, result, candidates(&result.desc), &mut names))
        .collect();
    let whole = whole(&points);
    for (point, result) in points.iter_mut().zip(known.values().filter(here)) {
        point.extend(runner, result, &whole, &names);
    }
    if points.is_empty() {
        return Fit { rows: Vec::new(), kept: 0, cost: 0.0, worst: 0.0 };
    }
    let grid = Grid::new(&points);
    let choices = choices(&points, &names, &whole);
    let losses = grid.losses(&points, &choices, settings);
    let pool = pool(&losses, settings.row_cost as f32);
    let list = List { grid: &grid, losses: pool.iter().map(|&c| &losses[c][..]).collect() };
    let entries = list.entries(settings.limit.max(1), settings.row_cost as f32);
    let choices: Vec<&Choice> = pool.iter().map(|&c| &choices[c]).collect();
    let (mut sum, mut worst) = (0.0, 1f64);
    for point in &points {
        let at = grid.place(&point.desc);
        let holds = entries.iter().filter(|entry| entry.area.holds(at));
        let ratio = holds.filter_map(|entry| point.ratio(choices[entry.choice])).next();
        let ratio = ratio.unwrap_or(f64::from(HOLE).exp());
        (sum, worst) = (sum + ratio.ln(), worst.max(ratio));
    }
    let row = |entry: &Entry| {
        let mut row = grid.row(class, &entry.area, choices[entry.choice]);
        let params = row.params;
        // Of a part, candidates are legal.
        (row.partial || clip(&mut row, |desc| legal(desc, &params))).then_some(row)
    };
    let rows = entries.iter().filter_map(row).collect();
    let cost = (sum / points.len() as f64).exp_m1();
    Fit { rows, kept: 0, cost, worst: worst - 1.0 }
}

/// A measured problem: its candidates in order, by their number, each with its time over the least.
struct Point {
    desc: Desc,
    candidates: Vec<(usize, f64)>,
    /// What was measured and is no candidate: rows of an older table.
    others: Vec<(usize, f64)>,
}

/// A part of the arguments of a candidate, and by number which candidates have it; or parameters that are no candidate
/// everywhere, which a row names in full.
struct Choice {
    part: Params,
    whole: bool,
    has: Vec<bool>,
}

impl Point {
    /// `names` is the numbering, to which what is new is added.
    fn new(
        runner: &mut dyn Runner,
        result: &ProblemResult,
        candidates: Vec<Params>,
        names: &mut Vec<Params>,
    ) -> Point {
        let best = fastest(result);
        let ratio = |trial: &Trial| (trial.seconds / best).max(1.0);
        let mut number = |params: Params| {
            let number = names.iter().position(|name| *name == params).unwrap_or(names.len());
            if number == names.len() {
                names.push(params);
            }
            number
        };
        let (mut ids, mut timed) = (HashSet::new(), Vec::new());
        for params in candidates {
            let launch_id = runner.launch_id(&result.desc, &params);
            ids.extend(launch_id);
            let mut trials = result.trials.iter();
            let trial = launch_id.and_then(|id| trials.find(|trial| trial.launch_id == id));
            timed.push((number(params), trial.map_or(UNKNOWN, ratio)));
        }
        let others = result.trials.iter().filter(|trial| !ids.contains(&trial.launch_id));
        let others = others.map(|trial| (number(trial.params), ratio(trial))).collect();
        Point { desc: result.desc, candidates: timed, others }
    }

    /// Adds those of these numbers that a row could take here.
    fn extend(
        &mut self,
        runner: &mut dyn Runner,
        result: &ProblemResult,
        whole: &BTreeSet<usize>,
        names: &[Params],
    ) {
        let best = fastest(result);
        let known: HashSet<usize> =
            self.candidates.iter().chain(&self.others).map(|(number, _)| *number).collect();
        for &number in whole.iter().filter(|number| !known.contains(number)) {
            let Some(id) = runner.launch_id(&result.desc, &names[number]) else { continue };
            let trial = result.trials.iter().find(|trial| trial.launch_id == id);
            let ratio = trial.map_or(UNMEASURED, |trial| (trial.seconds / best).max(1.0));
            self.others.push((number, ratio));
        }
    }

    /// What a choice stands for here: the first candidate that it is a part of.
    fn first(&self, choice: &Choice) -> Option<(usize, f64)> {
        let others = self.others.iter().filter(|_| choice.whole);
        self.candidates.iter().chain(others).copied().find(|(number, _)| choice.has[*number])
    }

    fn ratio(&self, choice: &Choice) -> Option<f64> {
        self.first(choice).map(|first| first.1)
    }
}

/// What is good somewhere and no candidate there, by number.
fn whole(points: &[Point]) -> BTreeSet<usize> {
    let others = points.iter().flat_map(|point| &point.others);
    others.filter(|(_, ratio)| *ratio < GOOD).map(|(number, _)| *number).collect()
}

/// Every part of the arguments of a candidate that is good somewhere, those of fewest arguments first, without
/// those that choose what an earlier one does.
fn choices(points: &[Point], names: &[Params], whole: &BTreeSet<usize>) -> Vec<Choice> {
    let good = points.iter().flat_map(|point| &point.candidates).filter(|(_, ratio)| *ratio < GOOD);
    let good: HashSet<usize> = good.map(|(number, _)| *number).collect();
    let mut parts: HashSet<Params> = HashSet::new();
    for params in good.into_iter().map(|number| names[number]) {
        let args: Vec<_> = params.args().collect();
        for mask in 0..1u32 << args.len() {
            let named = (0..args.len()).filter(|k| mask >> k & 1 == 1).map(|k| &args[k]);
            let kernel = Params::new(params.kernel().as_str());
            parts.insert(named.fold(kernel, |part, (name, value)| part.with(name, *value)));
        }
    }
    let mut parts: Vec<Params> = parts.into_iter().collect();
    parts.sort_by_cached_key(|part| (part.args().count(), part.to_string()));
    let choice = |part: Params| {
        let args: Vec<_> = part.args().collect();
        let kernel = part.kernel();
        let has = |params: &Params| {
            let mut args = args.iter();
            kernel == params.kernel() && args.all(|(name, value)| params.get(name) == Some(*value))
        };
        Choice { part, whole: false, has: names.iter().map(has).collect() }
    };
    let mut choices: Vec<Choice> = parts.into_iter().map(choice).collect();
    choices.extend(whole.iter().map(|&number| Choice {
        part: names[number],
        whole: true,
        has: names.iter().map(|name| *name == names[number]).collect(),
    }));
    let mut seen: HashSet<Vec<Option<usize>>> = HashSet::new();
    let all =
        |choice: &Choice| points.iter().map(|p| p.first(choice).map(|first| first.0)).collect();
    choices.retain(|choice| seen.insert(all(choice)));
    choices
}

/// The choices with which, each point having the best, least is lost: one after another.
fn pool(losses: &[Vec<Option<f32>>], least: f32) -> Vec<usize> {
    let mut now = vec![HOLE; losses[0].len()];
    let mut pool = Vec::new();
    while pool.len() < POOL {
        let saved = |loss: &[Option<f32>]| -> f32 {
            now.iter()
                .zip(loss)
                .map(|(now, loss)| loss.map_or(0.0, |loss| (now - loss).max(0.0)))
                .sum()
        };
        // The first of equal ones has the fewest arguments.
        let all = losses.iter().enumerate().map(|(c, loss)| (c, saved(loss)));
        let best = all.reduce(|a, b| if b.1 > a.1 { b } else { a });
        let Some((choice, _)) = best.filter(|(_, saved)| *saved > least) else { break };
        let both = now.iter_mut().zip(&losses[choice]);
        both.for_each(|(now, loss)| *now = loss.map_or(*now, |loss| loss.min(*now)));
        pool.push(choice);
    }
    pool
}

/// The plane of sizes and alignments in lines: ranges of sizes, and the alignments that there are.
struct Grid {
    /// The first and the last size of each line.
    m: Lines,
    n: Lines,
    /// log2 of bytes, the widest first.
    aligns: Vec<u8>,
}

/// The first size of each line, and the last one.
struct Lines(Vec<usize>, Vec<usize>);

impl Lines {
    fn new(mut sizes: Vec<usize>) -> Lines {
        sizes.sort_unstable();
        sizes.dedup();
        let mut lines = Lines(Vec::new(), Vec::new());
        for size in sizes {
            let joins = |first: usize| {
                let apart = EDGES.iter().any(|&edge| first <= edge && size > edge);
                size > 16 && !apart && size as f64 <= NEAR * first as f64
            };
            match lines.0.last() {
                Some(&first) if joins(first) => *lines.1.last_mut().expect("as many") = size,
                _ => {
                    lines.0.push(size);
                    lines.1.push(size);
                }
            }
        }
        lines
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn place(&self, size: usize) -> usize {
        self.0.partition_point(|&first| first <= size).max(1) - 1
    }

    /// What the lines from one to another are for, as logarithms.
    fn range(&self, low: usize, high: usize) -> (f32, f32) {
        let between = |k: usize| [self.1[k], self.0[k + 1]];
        let from = match low {
            0 => ANY.0,
            low => (halfway(&between(low - 1), 0).exp2().round() + 1.0).log2(),
        };
        (from, if high + 1 == self.len() { ANY.1 } else { halfway(&between(high), 0) })
    }
}

/// Alignment, m and n, as lines.
type Place = [usize; 3];

/// Ranges of lines: of alignment, m and n.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Area([(usize, usize); 3]);

impl Area {
    fn holds(&self, at: Place) -> bool {
        self.0.iter().zip(at).all(|(range, line)| (range.0..=range.1).contains(&line))
    }
}

/// The alignment by which kernels differ: that of an element at least, of 16 bytes at most.
fn level(desc: &Desc) -> u8 {
    desc.align.clamp(desc.dtype.bytes().ilog2().min(4) as u8, Align::WHOLE.low)
}

impl Grid {
    fn new(points: &[Point]) -> Grid {
        let lines = |size: &dyn Fn(&Desc) -> usize| {
            Lines::new(points.iter().map(|point| size(&point.desc)).collect())
        };
        let mut aligns: Vec<u8> = points.iter().map(|point| level(&point.desc)).collect();
        aligns.sort_unstable_by(|a, b| b.cmp(a));
        aligns.dedup();
        Grid { m: lines(&|d| d.m), n: lines(&|d| d.n), aligns }
    }

    fn len(&self) -> usize {
        self.aligns.len() * self.m.len() * self.n.len()
    }

    fn place(&self, desc: &Desc) -> Place {
        let align = self.aligns.partition_point(|&align| align > level(desc));
        [align.min(self.aligns.len() - 1), self.m.place(desc.m), self.n.place(desc.n)]
    }

    fn index(&self, [align, k, l]: Place) -> usize {
        (align * self.m.len() + k) * self.n.len() + l
    }

    /// By choice and place, what is lost at its points, and a part of what is lost beside it. `None` where there is no
    /// point, or no candidate of the choice at one of them.
    fn losses(
        &self,
        points: &[Point],
        choices: &[Choice],
        settings: &FitSettings,
    ) -> Vec<Vec<Option<f32>>> {
        let mut places: HashMap<usize, (Place, Vec<&Point>)> = HashMap::new();
        for point in points {
            let at = self.place(&point.desc);
            places.entry(self.index(at)).or_insert((at, Vec::new())).1.push(point);
        }
        let near = |[align, k, l]: Place| {
            let index = |k: usize, l: usize| self.index([align, k, l]);
            let known = |k, l| Some(index(k, l)).filter(|index| places.contains_key(index));
            beside((&self.m.0, &self.n.0), (k, l), known).collect()
        };
        let beside: Vec<(usize, Vec<usize>)> =
            places.iter().map(|(&index, (at, _))| (index, near(*at))).collect();
        let hole = settings.hole_from.ln_1p();
        let loss = |ratio: f64| {
            let log = ratio.ln();
            ((log + settings.hole_penalty * (log - hole).max(0.0)) as f32).min(HOLE)
        };
        let of = |choice: &Choice| {
            let mut mean: Vec<Option<(f32, f32)>> = vec![None; self.len()];
            for (&index, (_, points)) in &places {
                let all = points.iter().map(|point| point.ratio(choice).map(loss));
                let sum: Option<f32> = all.sum();
                mean[index] = sum.map(|sum| (sum, points.len() as f32));
            }
            let mut out = vec![None; self.len()];
            for (index, beside) in &beside {
                let near = beside.iter().filter_map(|&k| mean[k]);
                let near: f32 = near.map(|(sum, count)| (sum / count).min(1.0)).sum();
                let own = mean[*index].map(|(sum, _)| sum);
                out[*index] = own.map(|own| own + settings.neighbour_weight as f32 * near);
            }
            out
        };
        choices.iter().map(of).collect()
    }

    fn row(&self, class: ProblemClass, area: &Area, choice: &Choice) -> Row {
        let [(widest, least), (m0, m1), (n0, n1)] = area.0;
        let high = if widest == 0 { Align::ANY.high } else { self.aligns[widest] };
        let low = if least + 1 == self.aligns.len() { Align::ANY.low } else { self.aligns[least] };
        let row = class.row(self.m.range(m0, m1), self.n.range(n0, n1), choice.part);
        Row { align: Align { low, high }, partial: !choice.whole, ..row }
    }
}

/// A row of the list.
#[derive(Clone, Copy, Debug)]
struct Entry {
    area: Area,
    choice: usize,
}

/// What a list of rows is made of.
struct List<'a> {
    grid: &'a Grid,
    losses: Vec<&'a [Option<f32>]>,
}

impl List<'_> {
    fn places(&self) -> impl Iterator<Item = (usize, Place)> + '_ {
        let (h, w) = (self.grid.m.len(), self.grid.n.len());
        let known = |index: usize| self.losses.iter().any(|loss| loss[index].is_some());
        (0..self.grid.len())
            .filter(move |&k| known(k))
            .map(move |k| (k, [k / (h * w), k / w % h, k % w]))
    }

    /// The loss at a place by the first of the entries that has a choice there, and which that is.
    fn served(&self, entries: &[Entry], (index, at): (usize, Place)) -> Option<(usize, f32)> {
        let holds = entries.iter().enumerate().filter(|(_, entry)| entry.area.holds(at));
        holds.filter_map(|(k, entry)| Some((k, self.losses[entry.choice][index]?))).next()
    }

    fn total(&self, entries: &[Entry], places: &[(usize, Place)]) -> f32 {
        places.iter().map(|&at| self.served(entries, at).map_or(HOLE, |served| served.1)).sum()
    }

    /// The entry that saves most at this place of the list, and what it saves.
    fn best(&self, entries: &[Entry], place: usize, places: &[(usize, Place)]) -> (f32, Entry) {
        // What is lost where an entry there would serve.
        let mut now: Vec<Option<f32>> = vec![None; self.grid.len()];
        for &(index, at) in places {
            if self.served(&entries[..place], (index, at)).is_none() {
                let served = self.served(&entries[place..], (index, at));
                now[index] = Some(served.map_or(HOLE, |served| served.1));
            }
        }
        let (h, w) = (self.grid.m.len(), self.grid.n.len());
        let saved = |choice: usize, (widest, least): (usize, usize)| {
            let mut saved = vec![0f32; h * w];
            for align in widest..=least {
                let here = align * h * w..(align + 1) * h * w;
                let pairs = now[here.clone()].iter().zip(&self.losses[choice][here]);
                for (saved, (now, loss)) in saved.iter_mut().zip(pairs) {
                    if let (Some(now), Some(loss)) = (now, loss) {
                        *saved += now - loss;
                    }
                }
            }
            saved
        };
        // No rectangle saves more than all places at which something is saved: those with the most first.
        let positive = |saved: &[f32]| saved.iter().map(|saved| saved.max(0.0)).sum::<f32>();
        let aligns = self.grid.aligns.len();
        let ranges = (0..aligns).flat_map(|a| (a..aligns).map(move |b| (a, b)));
        let all =
            (0..self.losses.len()).flat_map(|choice| ranges.clone().map(move |r| (choice, r)));
        let mut all: Vec<(f32, usize, (usize, usize))> =
            all.map(|(choice, range)| (positive(&saved(choice, range)), choice, range)).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut best = (0.0, Entry { area: Area([(0, 0); 3]), choice: 0 });
        let mut sums = vec![0f32; w];
        for (most, choice, range) in all {
            if most <= best.0 {
                break;
            }
            let saved = saved(choice, range);
            for k0 in 0..h {
                if positive(&saved[k0 * w..]) <= best.0 {
                    break;
                }
                sums.fill(0.0);
                for k1 in k0..h {
                    let (mut sum, mut first) = (0.0, 0);
                    for (l, (total, saved)) in sums.iter_mut().zip(&saved[k1 * w..]).enumerate() {
                        *total += saved;
                        if sum <= 0.0 {
                            (sum, first) = (0.0, l);
                        }
                        sum += *total;
                        if sum > best.0 {
                            let area = Area([range, (k0, k1), (first, l)]);
                            best = (sum, Entry { area, choice });
                        }
                    }
                }
            }
        }
        best
    }

    fn entries(&self, limit: usize, row_cost: f32) -> Vec<Entry> {
        let places: Vec<_> = self.places().collect();
        let mut entries: Vec<Entry> = Vec::new();
        while entries.len() < limit {
            let front = self.best(&entries, 0, &places);
            let back = match entries.len() {
                few @ 1..GENERAL => self.best(&entries, few, &places),
                _ => front,
            };
            let (saved, entry) = if back.0 > front.0 { back } else { front };
            if saved < row_cost {
                break;
            }
            let place = if back.0 > front.0 { entries.len() } else { 0 };
            entries.insert(place, entry);
        }
        // The least useful row for a better one, as long as that saves.
        let mut total = self.total(&entries, &places);
        for _ in 0..limit {
            let (_, entry) = self.best(&entries, 0, &places);
            let without = |k: usize| {
                let mut rest = entries.clone();
                rest.remove(k);
                rest.insert(0, entry);
                (self.total(&rest, &places), rest)
            };
            let all = (0..entries.len()).map(without);
            match all.min_by(|a, b| a.0.total_cmp(&b.0)) {
                Some((less, better)) if less + row_cost < total => {
                    (total, entries) = (less, better)
                }
                _ => break,
            }
        }
        for _ in 0..ROUNDS {
            let before = total;
            for k in 0..entries.len() {
                let mut rest = entries.clone();
                rest.remove(k);
                let (_, entry) = self.best(&rest, k, &places);
                rest.insert(k, entry);
                let less = self.total(&rest, &places);
                if less < total {
                    (total, entries) = (less, rest);
                }
            }
            if total + row_cost > before {
                break;
            }
        }
        // What the others have made useless.
        for k in (0..entries.len()).rev() {
            let mut rest = entries.clone();
            rest.remove(k);
            let more = self.total(&rest, &places);
            if entries.len() > 1 && more < total + row_cost {
                (total, entries) = (more, rest);
            }
        }
        self.shrink(&mut entries, &places);
        entries
    }

    /// Leaves each row what lies around the places that it serves. Where no place is, the nearest row serves, not one
    /// that reaches there because nothing is lost.
    fn shrink(&self, entries: &mut [Entry], places: &[(usize, Place)]) {
        let mut hulls: Vec<Option<Area>> = vec![None; entries.len()];
        for &(index, at) in places {
            let Some((k, _)) = self.served(entries, (index, at)) else { continue };
            let hull = hulls[k].get_or_insert(Area(at.map(|line| (line, line))));
            for (range, line) in hull.0.iter_mut().zip(at) {
                *range = (range.0.min(line), range.1.max(line));
            }
        }
        for (entry, hull) in entries.iter_mut().zip(hulls) {
            if let Some(Area([_, m, n])) = hull {
                entry.area = Area([entry.area.0[0], m, n]);
            }
        }
    }
}
