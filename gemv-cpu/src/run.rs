//! The work of a product, shared by several threads.

use std::sync::Mutex;

use gemv_core::float_mode::in_default;
use gemv_core::ndarray::ArrayViewMut1;
use gemv_core::order::SEGMENT;
use gemv_core::{Accumulator, scale};

use crate::simd::{CpuElement, Part, Product};

/// Computes the product, on several threads if each has at least `grain` KiB of the matrix.
pub(crate) fn run(product: Product<'_>, grain: usize) {
    product.run(|part| share(part, grain));
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

#[inline(always)]
fn share(mut part: Part<'_>, grain: usize) {
    let ((m, n), element) = (part.dim(), part.element());
    let kib = (m * n * element) >> 10;
    // The cheap test first: most calls are small.
    let tasks = match kib < 2 * grain {
        true => 1,
        false => gemv_threads::count().min(kib / grain.max(1)),
    };
    if tasks <= 1 {
        return part.run_inline();
    }
    in_default(|| share_out(part, tasks));
}

#[inline(never)]
fn share_out(part: Part<'_>, tasks: usize) {
    let ((m, n), element) = (part.dim(), part.element());
    let count = n.div_ceil(SEGMENT);
    // Rows if there are enough of them: then nothing is left to be done afterwards. Else segments. For columns
    // segments come first, since a column is one stream as long as it is not cut.
    let segments = match (part.by_rows(), part.direct()) {
        (true, _) => m < tasks * 8 && count >= tasks,
        (false, true) => count >= 2 * tasks || count == tasks,
        // Lines that are copied together first: a segment of all rows should fit the caches.
        (false, false) => m < tasks * (512 / element) && count >= tasks,
    };
    if segments {
        let least = LEAST.div_ceil(m * SEGMENT * element);
        // By rows as well where there is no memory for the sums of segments.
        if part.by_segments(|all| sharing(Segments(all), tasks, least)) {
            return;
        }
    }
    let (unit, stream) = match part.by_rows() {
        true => (4, 4),
        false => (part.width(), STREAM / element),
    };
    let rows = (LEAST / (n * element)).max(stream.min(m / (16 * tasks)));
    let least = rows.next_multiple_of(unit).max(unit);
    sharing(Rows { part, unit }, tasks, least);
}

/// Bytes of the matrix that are not cut further for the sake of balance: some microseconds of work.
pub(crate) const LEAST: usize = 64 << 10;

/// Bytes of a column that make a stream.
const STREAM: usize = 8 << 10;

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

/// Rows of the product, cut at multiples of `unit`.
struct Rows<'a> {
    part: Part<'a>,
    unit: usize,
}

impl Work for Rows<'_> {
    fn len(&self) -> usize {
        self.part.dim().0
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let Rows { part, unit } = self;
        let at = at.next_multiple_of(unit).min(part.dim().0);
        let (first, second) = part.split_rows(at);
        (Rows { part: first, unit }, Rows { part: second, unit })
    }

    fn run(&mut self) {
        self.part.run();
    }
}

/// Segments of the product.
struct Segments<'a>(Part<'a>);

impl Work for Segments<'_> {
    fn len(&self) -> usize {
        self.0.dim().1.div_ceil(SEGMENT)
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let (first, second) = self.0.split_segments(at);
        (Segments(first), Segments(second))
    }

    fn run(&mut self) {
        self.0.run();
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
