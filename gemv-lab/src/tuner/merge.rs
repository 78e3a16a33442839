//! Merging rows of one choice: a broad row behind those that are exceptions to it.

use super::rows::{Ranges, clip, meet, ranges};
use gemv_core::table::Row;
use gemv_core::{Desc, Params};

/// A row and the ranges that it has to serve. Its own ranges can be wider: rows before it serve
/// the rest.
struct Broad {
    row: Row,
    own: Vec<Ranges>,
}

/// Merges rows of one choice into one that holds them all, where that row can stand behind the
/// rows between them. The first row that holds a problem serves it, so every problem that had a
/// row keeps its choice. A merged row has to be legal at the ends of its ranges.
///
/// The cuts of [`fit`](super::fit()) go from edge to edge, so that one exception cuts what
/// surrounds it into four. This joins the four again. No merged row reaches into `kept`, which
/// rows behind all of these serve.
pub(super) fn merge(
    rows: Vec<Row>,
    kept: &[Ranges],
    legal: &dyn Fn(&Desc, &Params) -> bool,
) -> Vec<Row> {
    let mut all: Vec<Broad> =
        rows.into_iter().map(|row| Broad { own: vec![ranges(&row)], row }).collect();
    while let Some((a, b, row, at)) = mergeable(&all, kept, legal) {
        let (b, mut both) = (all.remove(b), all.remove(a));
        both.row = row;
        both.own.extend(b.own);
        all.insert(at, both);
    }
    all.into_iter().map(|broad| broad.row).collect()
}

/// Two rows that can be merged: their indices, the merged row, and its place once they are
/// gone.
fn mergeable(
    all: &[Broad],
    kept: &[Ranges],
    legal: &dyn Fn(&Desc, &Params) -> bool,
) -> Option<(usize, usize, Row, usize)> {
    let pairs = (0..all.len()).flat_map(|a| (a + 1..all.len()).map(move |b| (a, b)));
    pairs.filter(|&(a, b)| all[a].row.params == all[b].row.params).find_map(|(a, b)| {
        let hull = |a: (f32, f32), b: (f32, f32)| (a.0.min(b.0), a.1.max(b.1));
        let (one, other) = (&all[a].row, &all[b].row);
        let row = Row { m: hull(one.m, other.m), n: hull(one.n, other.n), ..*one };
        if kept.iter().any(|kept| meet(kept, &ranges(&row))) {
            return None;
        }
        let own = || all[a].own.iter().chain(&all[b].own);
        let others = || (0..all.len()).filter(|&k| k != a && k != b).enumerate();
        // It has to stand before every row that would take its own ranges, and behind
        // every row whose ranges it would take.
        let taken = |k: usize| own().any(|mine| meet(&ranges(&all[k].row), mine));
        let takes = |k: usize| all[k].own.iter().any(|own| meet(&ranges(&row), own));
        let last = others().find(|&(_, k)| taken(k)).map_or(all.len() - 2, |(at, _)| at);
        let first = others().filter(|&(_, k)| takes(k)).last().map_or(0, |(at, _)| at + 1);
        if first > last {
            return None;
        }
        let mut clipped = row;
        clip(&mut clipped, |desc| legal(desc, &row.params));
        (clipped == row).then_some((a, b, row, last))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gemv_core::{Dtype, Layout, Table};

    fn rows(text: &str) -> Vec<Row> {
        Table::parse("t", text).unwrap().rows
    }

    fn text(rows: Vec<Row>) -> String {
        Table { rows, ..Table::default() }.to_string()
    }

    fn desc(m: usize, n: usize) -> Desc {
        Desc::of(Dtype::F32, Layout::Row, (m, n), 4)
    }

    #[test]
    fn what_lies_around_an_exception_is_one_row() {
        let cut = "f32 row m=1..8 n=1..64 : a\nf32 row m=9..16 n=1..8 : a\nf32 row m=9..16 n=9..16 : b\n\
                   f32 row m=9..16 n=17..64 : a\nf32 row m=17.. n=1..64 : a\n";
        let merged = merge(rows(cut), &[], &|_, _| true);
        assert_eq!(text(merged), "f32 row m=9..16 n=9..16 : b\nf32 row n=1..64 : a\n");
        // What counts is that `a` is legal at its ends: the exception's place is not its own.
        let legal = |d: &Desc, p: &Params| p.kernel().as_str() != "a" || !(9..17).contains(&d.m);
        let far = "f32 row m=1..8 : a\nf32 row m=9..16 : b\nf32 row m=17..20 : a\n";
        assert_eq!(
            text(merge(rows(far), &[], &legal)),
            "f32 row m=9..16 : b\nf32 row m=1..20 : a\n"
        );
        let legal = |d: &Desc, p: &Params| p.kernel().as_str() != "a" || d.m < 17;
        assert_eq!(text(merge(rows(far), &[], &legal)), far);
    }

    #[test]
    fn nothing_reaches_into_what_rows_behind_serve() {
        let around = "f32 row m=1..8 : a\nf32 row m=17.. : a\n";
        let between = rows("f32 row m=9..16 : b").iter().map(ranges).collect::<Vec<_>>();
        assert_eq!(text(merge(rows(around), &between, &|_, _| true)), around);
        assert_eq!(text(merge(rows(around), &[], &|_, _| true)), "f32 row : a\n");
    }

    /// Cuts a rectangle (first and last m, n) in two, again and again.
    fn cut(at: [usize; 4], depth: u32, seed: &mut u64, out: &mut String) {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let random = (*seed >> 33) as usize;
        let [m0, m1, n0, n1] = at;
        if depth > 0 && !random.is_multiple_of(8) && (m1 > m0 || n1 > n0) {
            let by_m = m1 > m0 && (n1 == n0 || random % 16 > 8);
            let (low, high) = if by_m { (m0, m1) } else { (n0, n1) };
            let middle = low + random / 16 % (high - low);
            let (one, two) = if by_m {
                ([m0, middle, n0, n1], [middle + 1, m1, n0, n1])
            } else {
                ([m0, m1, n0, middle], [m0, m1, middle + 1, n1])
            };
            cut(one, depth - 1, seed, out);
            cut(two, depth - 1, seed, out);
        } else {
            let name = ["a", "b", "c"][random / 1024 % 3];
            *out += &format!("f32 row m={m0}..{m1} n={n0}..{n1} : {name}\n");
        }
    }

    #[test]
    fn every_problem_keeps_its_choice() {
        let (mut seed, mut before, mut after) = (1, 0, 0);
        for _ in 0..60 {
            let mut text = String::new();
            cut([1, 20, 1, 20], 7, &mut seed, &mut text);
            let cut = rows(&text);
            let merged = merge(cut.clone(), &[], &|_, _| true);
            for (m, n) in (1..=20).flat_map(|m| (1..=20).map(move |n| (m, n))) {
                let choice =
                    |rows: &[Row]| rows.iter().find(|r| r.holds(&desc(m, n))).unwrap().params;
                assert_eq!(choice(&merged), choice(&cut), "{m}x{n} of\n{text}");
            }
            (before, after) = (before + cut.len(), after + merged.len());
        }
        assert!(after * 4 < before * 3, "{before} rows became {after}");
    }
}
