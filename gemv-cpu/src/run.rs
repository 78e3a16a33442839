//! How a product is shared between the threads of rayon's pool.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gemv_core::order::SEGMENT;

use crate::simd::{Part, Product};

/// Computes the product, on more threads where the matrix has more than `grain` KiB for each.
pub(crate) fn run(product: Product<'_>, grain: usize) {
    product.run(|part| share(part, grain));
}

fn share(part: Part<'_>, grain: usize) {
    let ((m, n), element) = (part.dim(), part.element());
    // The cheap test first: most calls are small.
    let kib = (m * n * element) >> 10;
    if kib < 2 * grain {
        return part.run();
    }
    let tasks = rayon::current_num_threads().min(kib / grain.max(1));
    if tasks <= 1 {
        return part.run();
    }
    let count = n.div_ceil(SEGMENT);
    // Rows where there are enough: nothing remains to be done afterwards. Else segments. For columns segments first:
    // a column is one stream as long as it is not cut.
    let segments = match (part.by_rows(), part.direct()) {
        (true, _) => m < tasks * 8 && count >= tasks,
        (false, true) => count >= 2 * tasks || count == tasks,
        // Lines that are copied together first: a segment of all rows is to fit the caches.
        (false, false) => m < tasks * (512 / element) && count >= tasks,
    };
    if segments {
        let least = LEAST.div_ceil(m * SEGMENT * element);
        return part.by_segments(|all| sharing(Segments(all), tasks, least));
    }
    let (unit, stream) = match part.by_rows() {
        true => (4, 4),
        false => (part.width(), STREAM / element),
    };
    let rows = (LEAST / (n * element)).max(stream.min(m / (16 * tasks)));
    let least = rows.next_multiple_of(unit).max(unit);
    sharing(Rows { part, unit }, tasks, least);
}

/// Bytes of the matrix below which a share is not cut for the sake of balance: some microseconds of work.
const LEAST: usize = 64 << 10;

/// Bytes of a column that make a stream.
const STREAM: usize = 8 << 10;

/// Work that can be cut in two.
trait Work: Send + Sized {
    /// Units of it.
    fn len(&self) -> usize;
    /// The first `at` units, or a few more where the work is cut at multiples of several, and the others. Both have
    /// some if `at` is such a multiple or more of them from either end.
    fn cut(self, at: usize) -> (Self, Self);
    /// Computes it.
    fn run(self);
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

    fn run(self) {
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

    fn run(self) {
        self.0.run();
    }
}

/// What nobody has taken yet. Whoever has time takes a share of it, large at first and smaller towards
/// the end (guided self-scheduling, Polychronopoulos and Kuck, 1987): a thread that comes late,
/// because it sleeps or has other work, or was put on the same core, delays no more than what it took.
/// (A caller outside of the pool waits until all whom it asked have looked, even if nothing was left.)
struct Remaining<W> {
    work: Mutex<Option<W>>,
    tasks: usize,
    /// Parts that are not cut further.
    least: usize,
}

impl<W: Work> Remaining<W> {
    /// A share from the front, or from the back: the calling thread has the front and the others the
    /// back, so that the next product of the same matrix finds most of what it needs in the caches where
    /// it was.
    fn take(&self, front: bool) -> Option<W> {
        let mut rest = self.work.lock().expect("nothing panics while it is held");
        let work = rest.take()?;
        let parts = work.len();
        let share = (parts * 3).div_ceil(self.tasks * 4).max(self.least);
        if share + self.least > parts {
            return Some(work);
        }
        let at = if front { share } else { parts - share };
        let (first, second) = work.cut(at);
        // Neither is empty: a share and what is left are `least` or more, which is a multiple of any unit.
        let (mine, left) = if front { (first, second) } else { (second, first) };
        debug_assert!(mine.len() > 0 && left.len() > 0);
        *rest = Some(left);
        Some(mine)
    }
}

/// Does all of the work on so many threads of rayon's current pool, this one among them.
fn sharing<W: Work>(work: W, tasks: usize, least: usize) {
    let rest = Remaining { work: Mutex::new(Some(work)), tasks, least };
    let take_all = |front: bool| {
        while let Some(part) = rest.take(front) {
            part.run();
        }
    };
    if rayon::current_thread_index().is_some() {
        rayon::join(|| take_all(true), || beside(tasks - 1, &|| take_all(false)));
        return;
    }
    // Outside of the pool: this thread takes its part all the same, and is not sent to sleep for the
    // little while that the others may take longer. It lets them have its core, should they be on it.
    let done = AtomicUsize::new(1);
    rayon::in_place_scope(|scope| {
        for _ in 1..tasks {
            scope.spawn(|_| {
                take_all(false);
                done.fetch_add(1, Ordering::Release);
            });
        }
        take_all(true);
        for _ in 0..YIELDS {
            if done.load(Ordering::Acquire) == tasks {
                break;
            }
            std::thread::yield_now();
        }
    });
}

/// The same on so many threads.
fn beside(tasks: usize, run: &(impl Fn() + Sync)) {
    match tasks {
        0 => {}
        1 => run(),
        _ => {
            rayon::join(|| beside(tasks / 2, run), || beside(tasks - tasks / 2, run));
        }
    }
}

/// Looks at what the other threads do, some tens of microseconds.
const YIELDS: usize = 100;
