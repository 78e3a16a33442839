//! One product: lines chosen, x packed where it has to be, the work split over rayon's pool.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gemv_core::ndarray::{ArrayView1, ArrayView2, ArrayViewMut1, Axis, ShapeBuilder, s};
use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Accumulator, scale};

use crate::simd::{CpuElement, Isa, Lines, Plan, Target, Task, with_elements, with_scratch};

/// One product, with its operands in the host's memory.
pub(crate) struct Product<'a, T: CpuElement> {
    pub(crate) isa: Isa,
    pub(crate) plan: Plan,
    /// KiB of the matrix that are worth a thread.
    pub(crate) grain: usize,
    pub(crate) alpha: T::Acc,
    pub(crate) a: ArrayView2<'a, T>,
    pub(crate) conj: bool,
    pub(crate) x: ArrayView1<'a, T>,
    pub(crate) beta: T::Acc,
    pub(crate) y: ArrayViewMut1<'a, T>,
}

impl<T: CpuElement> Product<'_, T> {
    #[inline]
    pub(crate) fn run(mut self) {
        let (m, n) = self.a.dim();
        if self.alpha == T::Acc::ZERO || n == 0 {
            return self.without_a();
        }
        if m > 1 && self.a.strides()[0] == 0 {
            return self.broadcast();
        }
        let (rs, cs) = (self.a.strides()[0], self.a.strides()[1]);
        let mut lines = Lines::of(m, n, rs, cs);
        if let Lines::Columns { step } = lines
            && step < 0
        {
            // Columns upside down are columns, with y upside down.
            self.a.invert_axis(Axis(0));
            self.y.invert_axis(Axis(0));
            lines = Lines::Columns { step: -step };
        }
        let Product { x, .. } = self;
        let isa = self.isa;
        // Rows that are read by aligned vectors find x aligned as well, if it is worth a copy.
        let turn = match lines {
            Lines::Rows { step: 1 } if m >= 32 && n >= LANES => Some(isa.turn(&self.a)),
            _ => None,
        };
        let fits = |x: &[T::Acc]| turn.is_none_or(|t| x[t..].as_ptr().addr().is_multiple_of(64));
        if let Some(x) = (!lines.reversed()).then_some(x).and_then(|x| x.to_slice())
            && let Some(x) = T::as_acc(x)
            && fits(x)
        {
            self.split(x, lines);
        } else {
            isa.packed(x, lines, turn.unwrap_or(0), |x| self.split(x, lines));
        }
    }

    /// Rule 6 for sums that are +0 or not wanted.
    #[cold]
    fn without_a(self) {
        let Product { alpha, beta, .. } = self;
        for y in self.y {
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

    /// All rows are the same: one sum.
    #[cold]
    fn broadcast(self) {
        let mut sum = [T::Acc::ZERO];
        let a = self.a.slice_move(s![..1, ..]);
        self.isa.sums(a, self.conj, self.x, self.plan, &mut sum);
        for y in self.y {
            let old = (self.beta != T::Acc::ZERO).then_some(*y);
            *y = scale(self.alpha, sum[0], self.beta, old);
        }
    }

    #[inline]
    fn split(self, x: &[T::Acc], lines: Lines) {
        let Product { isa, plan, alpha, a, conj, beta, y, grain, .. } = self;
        let (m, n) = a.dim();
        let target = Target::Y { y, alpha, beta };
        let shared = Shared { isa, plan, conj, lines };
        // The cheap test first: most calls are small.
        let kib = (m * n * size_of::<T>()) >> 10;
        if kib < 2 * grain {
            return shared.task(a, x, target);
        }
        let tasks = rayon::current_num_threads().min(kib / grain.max(1));
        if tasks <= 1 {
            return shared.task(a, x, target);
        }
        let Target::Y { y, .. } = target else { unreachable!("made above") };
        let count = n.div_ceil(SEGMENT);
        let vector = isa.width(T::DTYPE.acc_bytes());
        // Rows by rows: nothing is left to do afterwards. Segments where there are too few of them, and
        // for columns, which are streams as long as they are not cut.
        let segments = match lines {
            Lines::Rows { .. } => m < tasks * 8 && count >= tasks,
            Lines::Columns { .. } if isa.direct::<T>(lines) => count >= 2 * tasks || count == tasks,
            // Lines that are brought together first: a segment of all rows is to fit the caches.
            Lines::Columns { .. } => m < tasks * (512 / size_of::<T>()) && count >= tasks,
        };
        let (unit, stream) = match lines {
            Lines::Rows { .. } => (4, 4),
            Lines::Columns { .. } => (vector, STREAM / size_of::<T>()),
        };
        if !segments {
            let rows = (LEAST / (n * size_of::<T>())).max(stream.min(m / (16 * tasks)));
            let least = rows.next_multiple_of(unit).max(unit);
            return sharing(Rows { a, y, unit }, tasks, least, &|Rows { a, y, .. }| {
                shared.task(a, x, Target::Y { y, alpha, beta });
            });
        }
        with_scratch(count * m, |partials: &mut [T::Acc]| {
            let least = LEAST.div_ceil(m * SEGMENT * size_of::<T>());
            let all = Segments { a, x, partials: &mut *partials, lines };
            sharing(all, tasks, least, &|Segments { a, x, partials, .. }| {
                shared.task(a, x, Target::Partials(partials));
            });
            isa.reduce(partials, count, Target::Y { y, alpha, beta });
        });
    }
}

/// Bytes of the matrix that are not shared further for the sake of balance: one to four microseconds' work.
const LEAST: usize = 64 << 10;

/// Bytes of a column that make a stream.
const STREAM: usize = 8 << 10;

impl Isa {
    /// The sums of the rows, on this thread.
    fn sums<T: CpuElement>(
        self,
        a: ArrayView2<'_, T>,
        conj: bool,
        x: ArrayView1<'_, T>,
        plan: Plan,
        out: &mut [T::Acc],
    ) {
        let ((m, n), strides) = (a.dim(), [a.strides()[0], a.strides()[1]]);
        let lines = Lines::of(m, n, strides[0], strides[1]);
        self.packed(x, lines, 0, |x| {
            let shared = Shared { isa: self, plan, conj, lines };
            shared.task(a.reborrow(), x, Target::Sums(out));
        });
    }

    /// Runs `f` with x widened, in the order in which the kernel for these lines wants it, and entry
    /// `turn` at the beginning of a cache line.
    fn packed<T: CpuElement>(
        self,
        x: ArrayView1<'_, T>,
        lines: Lines,
        turn: usize,
        f: impl FnOnce(&[T::Acc]),
    ) {
        let line = 64 / size_of::<T::Acc>();
        let first = (line - turn % line) % line;
        with_scratch(first + x.len(), |packed: &mut [T::Acc]| {
            let packed = &mut packed[first..];
            match x.to_slice() {
                Some(x) if !lines.reversed() => self.widen(x, packed),
                _ if lines.reversed() => {
                    packed.iter_mut().rev().zip(x).for_each(|(to, v)| *to = v.widen());
                }
                _ => packed.iter_mut().zip(x).for_each(|(to, v)| *to = v.widen()),
            }
            f(packed);
        });
    }
}

/// What all tasks of a product share.
#[derive(Clone, Copy)]
struct Shared {
    isa: Isa,
    plan: Plan,
    conj: bool,
    lines: Lines,
}

impl Shared {
    #[inline]
    fn task<'b, T: CpuElement>(
        &self,
        a: ArrayView2<'b, T>,
        x: &'b [T::Acc],
        target: Target<'_, T>,
    ) {
        let Shared { isa, plan, conj, lines, .. } = *self;
        if isa.direct::<T>(lines) {
            isa.run(Task { a, conj, x, lines, plan, target });
        } else {
            self.tiles(a, x, target);
        }
    }

    /// Elements of which no two are neighbours: some rows of a segment at a time are brought
    /// together, in the order in which they lie in memory, while they are in the nearest cache.
    #[inline(never)]
    fn tiles<T: CpuElement>(&self, a: ArrayView2<'_, T>, x: &[T::Acc], mut target: Target<'_, T>) {
        let Shared { isa, plan, conj, lines, .. } = *self;
        let (m, n) = a.dim();
        let count = n.div_ceil(SEGMENT);
        let by_rows = matches!(lines, Lines::Rows { .. });
        // The sums of a segment lie together: all rows of it, then.
        let rows = match (&target, by_rows) {
            (Target::Partials(_), _) => m,
            (_, true) => 16,
            (_, false) => 32,
        };
        let tile_of = |i: usize, j: usize, tile: &mut [T], f: &mut dyn FnMut(ArrayView2<'_, T>)| {
            let part = a.slice(s![i..m.min(i + rows), j..n.min(j + SEGMENT)]);
            let (h, w) = part.dim();
            let (outer, inner) = if by_rows { (0, w) } else { (1, h) };
            for (line, to) in part.axis_iter(Axis(outer)).zip(tile.chunks_exact_mut(inner)) {
                for (to, v) in to.iter_mut().zip(line) {
                    *to = *v;
                }
            }
            let shape = (h, w).set_f(!by_rows);
            f(ArrayView2::from_shape(shape, &tile[..h * w]).expect("as long as its shape"));
        };
        with_elements(rows.min(m) * n.min(SEGMENT), |tile: &mut [T]| {
            let run = |a: ArrayView2<'_, T>, j: usize, target: Target<'_, T>| {
                let (h, w) = a.dim();
                let lines = if by_rows && w > 1 || h <= 1 {
                    Lines::Rows { step: 1 }
                } else {
                    Lines::Columns { step: 1 }
                };
                // A tile is small: the sums of its columns stay in registers.
                let plan = Plan { block: 0, ahead: 0, next: false, lanes: false, ..plan };
                isa.run(Task { a: a.reborrow(), conj, x: &x[j..j + w], lines, plan, target });
            };
            if let Target::Partials(out) = target {
                for (c, out) in out.chunks_exact_mut(m).enumerate() {
                    let mut out = Some(out);
                    tile_of(0, c * SEGMENT, tile, &mut |a| {
                        run(a, c * SEGMENT, Target::Partials(out.take().expect("called once")));
                    });
                }
                return;
            }
            with_scratch(if count > 1 { rows * count } else { 0 }, |partials: &mut [T::Acc]| {
                for i in (0..m).step_by(rows) {
                    let h = rows.min(m - i);
                    if count == 1 {
                        tile_of(i, 0, tile, &mut |a| run(a, 0, target.rows_at(i, h)));
                        continue;
                    }
                    let partials = &mut partials[..h * count];
                    for (c, out) in partials.chunks_exact_mut(h).enumerate() {
                        let mut out = Some(out);
                        tile_of(i, c * SEGMENT, tile, &mut |a| {
                            let out = out.take().expect("called once");
                            run(a, c * SEGMENT, Target::Partials(out));
                        });
                    }
                    isa.reduce(partials, count, target.rows_at(i, h));
                }
            });
        });
    }
}

/// Work that can be cut in two.
trait Work: Send + Sized {
    /// Parts of it.
    fn parts(&self) -> usize;
    /// The first `at` parts, or a few more where the work is cut at multiples of several, and the others.
    /// Both have some if `at` is such a multiple or more of them from either end.
    fn cut(self, at: usize) -> (Self, Self);
}

/// Rows of the product; a part is one of them, cut at multiples of `unit`.
struct Rows<'a, T: CpuElement> {
    a: ArrayView2<'a, T>,
    y: ArrayViewMut1<'a, T>,
    unit: usize,
}

impl<T: CpuElement> Work for Rows<'_, T> {
    fn parts(&self) -> usize {
        self.a.nrows()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let Rows { a, y, unit } = self;
        let at = at.next_multiple_of(unit).min(a.nrows());
        let (a0, a1) = a.split_at(Axis(0), at);
        let (y0, y1) = y.split_at(Axis(0), at);
        (Rows { a: a0, y: y0, unit }, Rows { a: a1, y: y1, unit })
    }
}

/// Segments of the product; a part is one of them.
struct Segments<'a, T: CpuElement> {
    a: ArrayView2<'a, T>,
    x: &'a [T::Acc],
    partials: &'a mut [T::Acc],
    lines: Lines,
}

impl<T: CpuElement> Work for Segments<'_, T> {
    fn parts(&self) -> usize {
        self.a.ncols().div_ceil(SEGMENT)
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let Segments { a, x, partials, lines } = self;
        let columns = (at * SEGMENT).min(a.ncols());
        let (p0, p1) = partials.split_at_mut(at * a.nrows());
        let (a0, a1) = a.split_at(Axis(1), columns);
        let (x0, x1) = if lines.reversed() {
            let (x1, x0) = x.split_at(x.len() - columns);
            (x0, x1)
        } else {
            x.split_at(columns)
        };
        let part = |a, x, partials| Segments { a, x, partials, lines };
        (part(a0, x0, p0), part(a1, x1, p1))
    }
}

/// What nobody has taken yet. Whoever has time takes a share of it, large at first and smaller towards
/// the end (guided self-scheduling, Polychronopoulos and Kuck, 1987): a thread that comes late,
/// because it sleeps or has other work, or was put on the same core, delays no more than what it took.
/// (A caller outside of the pool waits until all whom it asked have looked, even if nothing was left.)
struct Rest<W> {
    work: Mutex<Option<W>>,
    tasks: usize,
    /// Parts that are not cut further.
    least: usize,
}

impl<W: Work> Rest<W> {
    /// A share from the front, or from the back: the calling thread has the front and the others the
    /// back, so that the next product of the same matrix finds most of what it needs in the caches where
    /// it was.
    fn take(&self, front: bool) -> Option<W> {
        let mut rest = self.work.lock().expect("nothing panics while it is held");
        let work = rest.take()?;
        let parts = work.parts();
        let share = (parts * 3).div_ceil(self.tasks * 4).max(self.least);
        if share + self.least > parts {
            return Some(work);
        }
        let at = if front { share } else { parts - share };
        let (first, second) = work.cut(at);
        // Neither is empty: a share and what is left are `least` or more, which is a multiple of any unit.
        let (mine, left) = if front { (first, second) } else { (second, first) };
        debug_assert!(mine.parts() > 0 && left.parts() > 0);
        *rest = Some(left);
        Some(mine)
    }
}

/// Does all of the work on so many threads of rayon's current pool, this one among them.
fn sharing<W: Work>(work: W, tasks: usize, least: usize, run: &(impl Fn(W) + Sync)) {
    let rest = Rest { work: Mutex::new(Some(work)), tasks, least };
    let take_all = |front: bool| {
        while let Some(part) = rest.take(front) {
            run(part);
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
