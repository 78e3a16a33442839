//! Ranges of rows: where they end, where they overlap, and how far their parameters are legal.

use gemv_core::Desc;
use gemv_core::order::SEGMENT;
use gemv_core::table::{ANY, Row};

/// The ranges of m and n of a row, as logarithms.
pub(super) type Ranges = [(f32, f32); 2];

/// The range of a row from one line to another.
pub(super) fn ranges(row: &Row) -> Ranges {
    [row.m, row.n]
}

pub(super) fn meet(a: &Ranges, b: &Ranges) -> bool {
    a.iter().zip(b).all(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
}

/// The logarithm at which the interval between a line and the next is divided.
pub(super) fn halfway(sizes: &[usize], k: usize) -> f32 {
    let (here, next) = (sizes[k], sizes[k + 1]);
    // A power of two where there is one between: kernels change their shape there.
    let power = 1 << (next - 1).checked_ilog2().unwrap_or(0);
    let edge = match power {
        power if (here..=SEGMENT * SEGMENT).contains(&power) => power as f64,
        _ => (here as f64 * next as f64).sqrt().floor(),
    };
    (edge as f32).log2()
}

/// What the lines from one to another are for.
pub(super) fn range(sizes: &[usize], low: usize, high: usize) -> (f32, f32) {
    let from = if low == 0 { ANY.0 } else { (halfway(sizes, low - 1).exp2().round() + 1.0).log2() };
    let to = if high + 1 == sizes.len() { ANY.1 } else { halfway(sizes, high) };
    (from, to)
}

/// What is known at the nearest lines in each direction, if they are near: a choice for one segment says little of two,
/// whose sums take a second launch or a cluster. Where nothing as large is known, as where memory ends the mesh, the nearest
/// smaller one says what there is to say, however far.
pub(super) fn beside<T>(
    (m, n): (&[usize], &[usize]),
    (k, l): (usize, usize),
    known: impl Fn(usize, usize) -> Option<T>,
) -> impl Iterator<Item = T> {
    let near = |a: usize, b: usize| a.max(b) as f64 <= 2.5 * a.min(b) as f64;
    let near_m = |i: &usize| near(m[k], m[*i]);
    let same = |j: usize| (n[l] > SEGMENT) == (n[j] > SEGMENT);
    let near_n = |j: &usize| near(n[l], n[*j]) && same(*j);
    let beyond = (k..m.len()).all(|k| (l..n.len()).all(|l| known(k, l).is_none()));
    [
        (0..k).rev().take_while(|i| beyond || near_m(i)).find_map(|k| known(k, l)),
        (k + 1..m.len()).take_while(near_m).find_map(|k| known(k, l)),
        (0..l).rev().take_while(|j| near_n(j) || beyond && same(*j)).find_map(|l| known(k, l)),
        (l + 1..n.len()).take_while(near_n).find_map(|l| known(k, l)),
    ]
    .into_iter()
    .flatten()
}

/// Clips the ranges of a row to where its parameters are legal. Halfway to the next point can
/// lie beyond the capacity of a kernel for few columns; halfway to the one before can have too
/// few columns for a kernel of several segments. Says whether they are legal anywhere in the ranges.
pub(super) fn clip(row: &mut Row, legal: impl Fn(&Desc) -> bool) -> bool {
    let (Some(dtype), Some(layout)) = (row.dtype, row.layout) else { return true };
    let whole = |log: f32| log.min(32.0).exp2().round() as usize;
    let (low_m, mut low_n) = (whole(row.m.0), whole(row.n.0));
    // The least alignment of the class: what is legal there is legal in all of it.
    let align = row.align.low;
    // Both ends of the class of right-hand sides, of an open one a number far within it.
    let (few, many) = row.rhs.unwrap_or((1, 1));
    let counts = [few, many.min(few.saturating_mul(4))];
    let fits = |m: usize, n: usize| {
        let desc = Desc::of(dtype, layout, (m, n), align);
        counts.iter().all(|&rhs| legal(&Desc { rhs, ..desc }))
    };
    // Columns first, at the fewest rows; then rows, at both ends of the remaining columns.
    if !fits(low_m, low_n) {
        // Search upwards for a legal number of columns, then bisect back to the first.
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
    fits(low_m, low_n)
}

/// The last number from `low` to `high` that is good, if the good ones come first; `low` if
/// there is none.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_largest_the_nearest_smaller_one_counts_however_far() {
        let (m, n) = ([100, 1000, 10_000], [64, 128]);
        // The largest matrix is 1000 x 64.
        let known = |k: usize, l: usize| (l == 0 && k < 2).then_some((k, l));
        let at = |k, l| beside((&m, &n), (k, l), known).collect::<Vec<_>>();
        assert_eq!(at(2, 0), [(1, 0)]);
        // Lines that are near in the other direction count as they do elsewhere.
        assert_eq!(at(1, 1), [(1, 0)]);
        // What is known of another matrix as large counts in place of the far one.
        let wider = |k: usize, l: usize| (l == 1 || k == 0).then_some((k, l));
        assert_eq!(beside((&m, &n), (2, 0), wider).collect::<Vec<_>>(), [(2, 1)]);
    }
}
