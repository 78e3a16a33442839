//! The present rows: what the tables of a device say of a class, and where a fit may start.

use super::class::ProblemClass;
use super::grid::{CostGrid, pair};
use super::measurements::{Measurements, fastest};
use super::merge::merge;
use super::rows::{Ranges, clip, meet, ranges};
use super::search::Runner;
use super::settings::FitSettings;
use gemv_core::table::Row;
use gemv_core::{Align, Desc, Params, Table, Tables};

/// The present rows for a class: those of the first table that has any, as rows of the class's
/// own type and layout, in the order in which they hold. Those that end in `..` are left out: [`fit`](super::fit())
/// knows whole rows only, and [`decision_list`](super::decision_list()) begins with none.
///
/// ```
/// use gemv_lab::tuner::{ProblemClass, present_rows};
/// use gemv_core::{Align, Dtype, Engine, Layout};
/// let device = Engine::new(None).device("reference")?;
/// let class = ProblemClass { dtype: Dtype::F32, layout: Layout::Row, align: Align::ANY, rhs: 1 };
/// let (table, rows) = present_rows(device.tables(), class).expect("a row for all is one for f32");
/// assert_eq!(table.rows[0].to_string(), "* * : reference");
/// assert_eq!(rows[0].to_string(), "f32 row : reference");
/// # Ok::<(), gemv_core::Error>(())
/// ```
pub fn present_rows(tables: &Tables, class: ProblemClass) -> Option<(&Table, Vec<Row>)> {
    // For several right-hand sides, rows that name a number stand before all others.
    let passes = if class.rhs > 1 { &[true, false][..] } else { &[false] };
    let all = passes
        .iter()
        .flat_map(|&many| tables.iter().map(move |table| (table, of(&table.rows, class, many))));
    let (table, mut rows) = all.into_iter().find(|(_, rows)| !rows.is_empty())?;
    rows.retain(|row| !row.partial);
    Some((table, rows))
}

/// The rows of a table that serve a class, as its own. A row of one's own type and layout hides
/// those for all, wherever it lies. So only the nearest kind is taken, for each alignment.
/// Of those that name a number of right-hand sides or a batch if `many`, else of the others.
fn of(rows: &[Row], class: ProblemClass, many: bool) -> Vec<Row> {
    let rank = |row: &Row| {
        let named = row.rhs.is_some() || row.batch.is_some();
        let within = |counts: Option<(usize, usize)>, count: usize| {
            counts.is_none_or(|(low, high)| (low..=high).contains(&count))
        };
        if !within(row.rhs, class.rhs) || !within(row.batch, 1) || named != many {
            return None;
        }
        let own = |mine: bool, any: bool| if mine { Some(0) } else { any.then_some(1) };
        let dtype = own(row.dtype == Some(class.dtype), row.dtype.is_none())?;
        let layout = own(row.layout == Some(class.layout), row.layout.is_none())?;
        let (low, high) =
            (row.align.low.max(class.align.low), row.align.high.min(class.align.high));
        (low <= high).then_some((2 * dtype + layout, Align { low, high }))
    };
    let ranked: Vec<(u8, Row)> = rows
        .iter()
        .filter_map(|row| {
            let (rank, align) = rank(row)?;
            let (dtype, layout) = (Some(class.dtype), Some(class.layout));
            let (rhs, batch) = (class.counts(), class.batch());
            Some((rank, Row { dtype, layout, align, rhs, batch, ..*row }))
        })
        .collect();
    let first = |align: u8| {
        ranked.iter().filter(|(_, row)| row.align.holds(align)).map(|(rank, _)| *rank).min()
    };
    // A row for one class of alignment hides another only there.
    let mut kept: Vec<(u8, Row)> = Vec::new();
    for (rank, row) in &ranked {
        let mut low = None;
        for align in row.align.low..=row.align.high {
            let nearest = first(align) == Some(*rank);
            let from = *low.get_or_insert(align);
            if nearest && (align == row.align.high || first(align + 1) != Some(*rank)) {
                kept.push((*rank, Row { align: Align { low: from, high: align }, ..*row }));
            }
            if !nearest || first(align + 1) != Some(*rank) {
                low = None;
            }
        }
    }
    kept.sort_by_key(|(rank, _)| *rank);
    kept.into_iter().map(|(_, row)| row).collect()
}

/// The choice of present rows at a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub(super) params: Params,
    /// Whether a row holds there. If not, the nearest row served, and a new row may be
    /// nearer.
    pub(super) held: bool,
}

/// The present rows, evaluated at the points of a grid.
pub(super) struct Incumbent<'a> {
    pub(super) rows: &'a [Row],
    /// By point: their choice, where the point was measured and one of their rows is legal.
    pub(super) choices: Vec<Option<Choice>>,
    /// As in a [`CostGrid`].
    pub(super) ratio: Vec<Option<f64>>,
    /// By rectangle (pair of m, pair of n): their loss.
    pub(super) loss: Vec<f32>,
}

impl<'a> Incumbent<'a> {
    /// `None` if there are none.
    pub(super) fn new(
        runner: &mut dyn Runner,
        known: &Measurements,
        grid: &CostGrid,
        legal: &dyn Fn(&Desc, &Params) -> bool,
        settings: &'a FitSettings,
    ) -> Option<Incumbent<'a>> {
        let rows = &settings.from[..];
        if rows.is_empty() {
            return None;
        }
        let points = grid.m.len() * grid.n.len();
        let (mut choices, mut ratio) = (vec![None; points], vec![None; points]);
        for (at, result) in grid.points(known) {
            let chosen = choice(rows, &result.desc, legal);
            let launch_id =
                chosen.and_then(|chosen| runner.launch_id(&result.desc, &chosen.params));
            let time = launch_id
                .and_then(|launch_id| result.trials.iter().find(|t| t.launch_id == launch_id));
            choices[at] = chosen;
            ratio[at] = match time {
                Some(trial) => Some((trial.seconds / fastest(result)).max(1.0)),
                // Not measured, since another reached the read bandwidth: that
                // says nothing against it.
                None if result.at_ceiling && chosen.is_some() => None,
                None => Some(f64::INFINITY),
            };
        }
        let mut loss = vec![0.0; pair(0, grid.m.len()) * pair(0, grid.n.len())];
        grid.each_rect(&grid.sums(&ratio, settings), |rect, sum| loss[rect] = sum as f32);
        Some(Incumbent { rows, choices, ratio, loss })
    }
}

/// The first legal choice of these rows, nearest first.
pub(super) fn choice(
    rows: &[Row],
    desc: &Desc,
    legal: &dyn Fn(&Desc, &Params) -> bool,
) -> Option<Choice> {
    let table = Table { rows: rows.to_vec(), ..Table::default() };
    let row = *table.nearest(desc).into_iter().find(|row| legal(desc, &row.params))?;
    Some(Choice { params: row.params, held: row.holds(desc) })
}

/// The present rows that still serve one of these ranges, and behind them the `gaps` (rows for
/// where none of them holds), merged.
pub(super) fn keep_rows(
    rows: &[Row],
    kept: &[Ranges],
    mut gaps: Vec<Row>,
    legal: &dyn Fn(&Desc, &Params) -> bool,
) -> Vec<Row> {
    gaps.retain_mut(|row| {
        let params = row.params;
        clip(row, |desc| legal(desc, &params))
    });
    let serves = |row: &&Row| kept.iter().any(|kept| meet(kept, &ranges(row)));
    let mut all: Vec<Row> = rows.iter().filter(serves).copied().collect();
    // The present rows stand before them, so these may reach over what those hold.
    all.extend(merge(gaps, &[], legal));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemv_core::{Dtype, Layout};

    #[test]
    fn rows_of_its_own_hide_those_for_all_where_they_hold() {
        let text = "* row n=1..8 : every\n* * : all\nf32 row align=16.. : whole\nf64 * align=..8 m=4.. : odd\n";
        let rows = Table::parse("t", text).unwrap().rows;
        let of = |dtype, low, high| {
            let class =
                ProblemClass { dtype, layout: Layout::Row, align: Align { low, high }, rhs: 1 };
            Table { rows: super::of(&rows, class, false), ..Table::default() }.to_string()
        };
        assert_eq!(of(Dtype::F32, 4, 6), "f32 row align=16.. : whole\n");
        assert_eq!(of(Dtype::F32, 0, 3), "f32 row align=..8 n=1..8 : every\n");
        // Each where it is the nearest.
        let both = "f32 row align=16.. : whole\nf32 row align=..8 n=1..8 : every\n";
        assert_eq!(of(Dtype::F32, 0, 6), both);
        assert_eq!(of(Dtype::F64, 0, 2), "f64 row align=..4 m=4.. : odd\n");
        assert_eq!(of(Dtype::C32, 0, 6), "c32 row n=1..8 : every\n");
        let (dtype, layout) = (Dtype::F32, Layout::Row);
        let class = ProblemClass { dtype, layout, align: Align::WHOLE, rhs: 1 };
        assert!(present_rows(&Tables::default(), class).is_none());
    }

    #[test]
    fn rows_that_name_right_hand_sides_are_the_present_ones_for_them_alone() {
        let tables = |text: &str| Table::parse("t", text).unwrap().rows;
        let rows = tables(
            "f32 row : one\n* row rhs=2..4 : some\nf32 row rhs=5..8 batch=1 : more\n\
             f32 row rhs=2.. batch=2.. : each\n* * batch=2.. : batch\n",
        );
        let of = |rhs, many| {
            let (dtype, layout) = (Dtype::F32, Layout::Row);
            let class = ProblemClass { dtype, layout, align: Align::ANY, rhs };
            Table { rows: super::of(&rows, class, many), ..Table::default() }.to_string()
        };
        assert_eq!(of(1, false), "f32 row : one\n");
        assert_eq!(of(2, true), "f32 row rhs=2 batch=1 : some\n");
        assert_eq!(of(4, true), "f32 row rhs=3..4 batch=1 : some\n");
        assert_eq!(of(8, true), "f32 row rhs=5..8 batch=1 : more\n");
        assert_eq!(of(16, true), "");
        assert_eq!(of(16, false), "f32 row rhs=9..16 batch=1 : one\n");
    }

    #[test]
    fn a_choice_is_the_nearest_that_is_legal() {
        let rows = Table::parse("t", "f32 row n=1..8 : few\nf32 row n=64.. : many").unwrap().rows;
        let desc = |n| Desc::of(Dtype::F32, Layout::Row, (4, n), 6);
        let at = |n, legal: &dyn Fn(&Desc, &Params) -> bool| {
            choice(&rows, &desc(n), legal).map(|c| (c.params.to_string(), c.held))
        };
        assert_eq!(at(8, &|_, _| true), Some(("few".into(), true)));
        assert_eq!(at(16, &|_, _| true), Some(("few".into(), false)));
        assert_eq!(at(8, &|_, p| *p == Params::new("many")), Some(("many".into(), false)));
        assert_eq!(at(8, &|_, _| false), None);
    }
}
