//! A product as one thread or several compute it.

use std::sync::Mutex;

use gemv_core::float_mode::in_default;
use gemv_core::ndarray::{ArrayView3, ArrayViewMut1, ArrayViewMut3, Axis};
use gemv_core::{Accumulator, scale};

use crate::simd::{Along, CpuElement, CpuTimes, Cut, Gemm, Isa, Panel, PanelArgs, Part, Product};

/// How many threads have at least `grain` KiB each.
#[inline(always)]
fn tasks(kib: usize, grain: usize) -> usize {
    // The cheap test first: most calls are small.
    match kib < 2 * grain {
        true => 1,
        false => gemv_threads::count().min(kib / grain.max(1)),
    }
}

/// `y = alpha A x + beta y`, on several threads if each has at least `grain` KiB of the matrix. There is a row and a column.
pub(crate) fn vector(product: &Product<'_>, grain: usize) {
    let mut buffer = None;
    let x = product.x(&mut buffer);
    if product.is_one_sum() {
        return product.one_sum(x);
    }
    let mut whole = product.whole(x);
    let tasks = tasks(product.kib(), grain);
    if tasks <= 1 {
        return whole.run_inline();
    }
    in_default(|| {
        let cut = product.cut(tasks, false);
        // By rows as well where there is no memory for the sums of segments.
        if cut.along == Along::Rows || !whole.by_segments(|all| shared(all, cut)) {
            shared(whole, product.cut(tasks, true));
        }
    });
}

/// `Y = alpha A X + beta Y` for each entry of a batch, on several threads if each has at least `grain` KiB of the
/// matrices.
///
/// # Panics
/// If the shapes do not fit.
#[expect(clippy::too_many_arguments, reason = "a product has them")]
pub(crate) fn panels<T: CpuTimes<V>, V: CpuElement>(
    isa: Isa,
    args: PanelArgs,
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
    share(&Gemm::new(isa, args, alpha, a, conj, x, beta, y), grain);
}

fn share(g: &Gemm<'_>, grain: usize) {
    let (plan, tasks) = (&g.plan, tasks(g.plan.kib(), grain));
    let batch = plan.of.batch;
    if plan.is_whole(tasks) {
        return g.panel((0, batch), false, &mut None).run();
    }
    let cut = plan.cut(tasks, grain);
    let each = |from: usize| {
        let entries = (from, batch.min(from + cut.entries));
        // By rows as well where there is no memory for the sums of segments.
        let rows = match cut.along {
            Along::Segments if g.by_segments(from, |all| shared(all, cut)) => return,
            Along::Segments => plan.cut_rows(tasks, 1),
            _ => cut,
        };
        shared(g.panel(entries, false, &mut None), rows);
    };
    let all = || (0..batch).step_by(cut.entries).for_each(each);
    if tasks <= 1 { all() } else { in_default(all) }
}

/// Rule 6 for sums that are +0 or not used.
#[cold]
pub(crate) fn without_a<T: CpuElement>(alpha: T::Acc, beta: T::Acc, y: ArrayViewMut1<'_, T>) {
    for y in y {
        *y = match alpha == T::Acc::ZERO {
            true if beta == T::Acc::ZERO => T::default(),
            true if beta == T::Acc::ONE => *y,
            true => T::narrow(beta.mul(y.widen())),
            false => {
                let old = (beta != T::Acc::ZERO).then_some(*y);
                scale(alpha, T::Acc::ZERO, beta, old)
            }
        };
    }
}

/// Work that can be cut in two.
pub(crate) trait Work: Send + Sized {
    /// How many units it has.
    fn len(&self) -> usize;
    /// The first `at` units, and the others. Cuts are at multiples of some number of units, so the first part may
    /// have a few more. Neither is empty if at least one multiple lies on either side.
    fn cut(self, at: usize) -> (Self, Self);
    /// Computes it.
    fn run(&mut self);
}

/// A part that is cut as the plan says.
struct Cuts<P> {
    part: P,
    cut: Cut,
}

macro_rules! work {
    ($($part:ident)*) => { $(
        impl Work for Cuts<$part<'_>> {
            fn len(&self) -> usize {
                self.part.len(self.cut.along)
            }

            fn cut(self, at: usize) -> (Self, Self) {
                let (len, Cuts { part, cut }) = (self.len(), self);
                let at = at.next_multiple_of(cut.unit).min(len);
                let (first, second) = part.split(cut.along, at);
                (Cuts { part: first, cut }, Cuts { part: second, cut })
            }

            fn run(&mut self) {
                self.part.run();
            }
        }
    )* };
}
work!(Part Panel);

/// Computes all of the part.
fn shared<P>(part: P, cut: Cut)
where
    Cuts<P>: Work,
{
    let mut all = Cuts { part, cut };
    match cut.tasks {
        ..=1 => all.run(),
        _ => sharing(all, cut.tasks, cut.least),
    }
}

/// Work that no thread has taken yet. A thread that is free takes a share: large ones at first and smaller ones
/// towards the end (guided self-scheduling, Polychronopoulos and Kuck, 1987). So a thread that starts late, or shares
/// its core, delays no more than its own share.
struct Remaining<W> {
    work: Mutex<Option<W>>,
    tasks: usize,
    /// Units that are not cut further.
    least: usize,
}

impl<W: Work> Remaining<W> {
    /// A share from the front or from the back. The calling thread takes the front and the others the back. So the
    /// next product of the same matrix finds most of it in the same caches.
    fn take(&self, front: bool) -> Option<W> {
        let mut work = self.work.lock().expect("nothing panics while it is held");
        let all = work.take()?;
        let len = all.len();
        let share = (len * 3).div_ceil(self.tasks * 4).max(self.least);
        if share + self.least > len {
            return Some(all);
        }
        let at = if front { share } else { len - share };
        let (first, second) = all.cut(at);
        // Neither is empty: a share and the remainder are `least` or more, which is a multiple of any unit.
        let (mine, left) = if front { (first, second) } else { (second, first) };
        debug_assert!(mine.len() > 0 && left.len() > 0);
        *work = Some(left);
        Some(mine)
    }
}

/// Does all of the work on `tasks` threads, this one among them.
pub(crate) fn sharing<W: Work>(work: W, tasks: usize, least: usize) {
    let remaining = Remaining { work: Mutex::new(Some(work)), tasks, least };
    gemv_threads::share(tasks, &|mine| {
        while let Some(mut part) = remaining.take(mine) {
            part.run();
        }
    });
}
