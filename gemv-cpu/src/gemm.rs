//! Products with several right-hand sides, and batches, shared by several threads.

use gemv_core::Accumulator;
use gemv_core::float_mode::in_default;
use gemv_core::ndarray::{ArrayView3, ArrayViewMut3, Axis};
use gemv_core::order::SEGMENT;

use crate::run::{LEAST, Work, sharing, without_a};
use crate::simd::{CpuElement, CpuTimes, Gemm, GemmPlan, Isa, Panel};

/// `Y = alpha A X + beta Y` for each entry of a batch, on several threads if each has at least `grain` KiB of the
/// matrices.
///
/// # Panics
/// If the shapes do not fit.
#[expect(clippy::too_many_arguments, reason = "a product has them")]
pub(crate) fn gemm<T: CpuTimes<V>, V: CpuElement>(
    isa: Isa,
    plan: GemmPlan,
    alpha: V::Acc,
    a: ArrayView3<'_, T>,
    conj: bool,
    x: ArrayView3<'_, V>,
    beta: V::Acc,
    mut y: ArrayViewMut3<'_, V>,
    grain: usize,
) {
    let ((batch, m, n), columns) = (a.dim(), x.dim().2);
    assert!(x.dim() == (batch, n, columns) && y.dim() == (batch, m, columns));
    if y.is_empty() {
        return;
    }
    if alpha == V::Acc::ZERO || n == 0 {
        return y.lanes_mut(Axis(1)).into_iter().for_each(|y| without_a(alpha, beta, y));
    }
    share(&Gemm::new(isa, plan, alpha, a, conj, x, beta, y), grain);
}

/// Columns of X that cost about as much as to read the matrix.
const FREE: usize = 8;

fn share(g: &Gemm<'_>, grain: usize) {
    let ((batch, m, n, columns), element) = (g.dim(), g.element());
    let bytes = m * n * element;
    let kib = (batch * bytes * columns.div_ceil(FREE)) >> 10;
    // The cheap test first: most calls are small.
    let tasks = match kib < 2 * grain {
        true => 1,
        false => gemv_threads::count().min(kib / grain.max(1)),
    };
    if tasks <= 1 && g.is_wide(1) {
        return (0..batch).for_each(|b| {
            if !g.by_segments(b, |mut all| all.run()) {
                g.panel((b, b + 1), |mut all| all.run());
            }
        });
    }
    if tasks <= 1 {
        return g.panel((0, batch), |mut all| all.run());
    }
    in_default(|| share_out(g, tasks, grain));
}

#[inline(never)]
fn share_out(g: &Gemm<'_>, tasks: usize, grain: usize) {
    let ((batch, m, n, _), element) = (g.dim(), g.element());
    let bytes = m * n * element;
    if g.is_cut() && m >= tasks * UNIT {
        let least = (LEAST / (batch * n * element)).next_multiple_of(UNIT).max(UNIT);
        return g.panel((0, batch), |all| sharing(Rows(all), tasks, least));
    }
    // Entries one after the other, each on all threads, if they are few or large.
    if batch >= 4 * tasks && bytes >> 10 < 8 * grain {
        let least = (LEAST / bytes).max(1);
        return g.panel((0, batch), |all| sharing(Entries(all), tasks, least));
    }
    let count = n.div_ceil(SEGMENT);
    // Rows if there are enough of them: then nothing is left to be done afterwards. Else segments.
    let few = m < tasks * if g.by_rows() { 16 } else { 256 };
    let segments = few && count >= tasks || g.is_wide(tasks);
    for b in 0..batch {
        let least = LEAST.div_ceil(m * SEGMENT * element);
        // By rows as well where there is no memory for the sums of segments.
        if !segments || !g.by_segments(b, |all| sharing(Segments(all), tasks, least)) {
            let least = (LEAST / (n * element)).next_multiple_of(UNIT).max(UNIT);
            g.panel((b, b + 1), |all| sharing(Rows(all), tasks, least));
        }
    }
}

/// Rows are cut at multiples of this number.
const UNIT: usize = 16;

/// Entries of a batch.
struct Entries<'a>(Panel<'a>);

impl Work for Entries<'_> {
    fn len(&self) -> usize {
        self.0.len().0
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let (first, second) = self.0.split_entries(at);
        (Entries(first), Entries(second))
    }

    fn run(&mut self) {
        self.0.run();
    }
}

/// Rows of one entry.
struct Rows<'a>(Panel<'a>);

impl Work for Rows<'_> {
    fn len(&self) -> usize {
        self.0.len().1
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let at = at.next_multiple_of(UNIT).min(self.len());
        let (first, second) = self.0.split_rows(at);
        (Rows(first), Rows(second))
    }

    fn run(&mut self) {
        self.0.run();
    }
}

/// Segments of one entry.
struct Segments<'a>(Panel<'a>);

impl Work for Segments<'_> {
    fn len(&self) -> usize {
        self.0.len().2
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let (first, second) = self.0.split_segments(at);
        (Segments(first), Segments(second))
    }

    fn run(&mut self) {
        self.0.run();
    }
}
