//! One product: lines chosen, x packed where it has to be, the work split over rayon's pool.

use std::sync::atomic::{AtomicBool, Ordering};

use gemv_core::ndarray::{ArrayView1, ArrayView2, ArrayViewMut1, Axis, ShapeBuilder, s};
use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{Accumulator, scale};

use crate::isa::{CpuElement, Isa, Lines, Plan, Target, Task, with_elements, with_scratch};

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
        let shared = Shared { isa, plan, conj, x, lines };
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
        // Rows first: nothing is left to do afterwards. Too few of them for every thread to have
        // whole vectors: segments.
        let unit = match lines {
            Lines::Rows { .. } => 4,
            Lines::Columns { .. } => isa.width(T::DTYPE.acc_bytes()),
        };
        let enough = match lines {
            Lines::Rows { .. } => tasks * unit * 2,
            // Short pieces of columns are no streams.
            Lines::Columns { .. } => tasks * (512 / size_of::<T>()),
        };
        if m >= enough || n.div_ceil(SEGMENT) < tasks {
            let tasks = tasks.min(m.div_ceil(unit));
            return shared.rows(a, y, alpha, beta, tasks, unit);
        }
        let count = n.div_ceil(SEGMENT);
        with_scratch(count * m, |partials: &mut [T::Acc]| {
            shared.segments(a, x, partials, tasks);
            isa.reduce(partials, count, Target::Y { y, alpha, beta });
        });
    }
}

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
            let shared = Shared { isa: self, plan, conj, x, lines };
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
struct Shared<'a, T: CpuElement> {
    isa: Isa,
    plan: Plan,
    conj: bool,
    x: &'a [T::Acc],
    lines: Lines,
}

impl<T: CpuElement> Shared<'_, T> {
    #[inline]
    fn task<'b>(&self, a: ArrayView2<'b, T>, x: &'b [T::Acc], target: Target<'_, T>) {
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
    fn tiles(&self, a: ArrayView2<'_, T>, x: &[T::Acc], mut target: Target<'_, T>) {
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
                let plan = Plan { block: 0, ahead: 0, lanes: false, ..plan };
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

    /// Some rows for every task.
    fn rows(
        &self,
        a: ArrayView2<'_, T>,
        y: ArrayViewMut1<'_, T>,
        alpha: T::Acc,
        beta: T::Acc,
        tasks: usize,
        unit: usize,
    ) {
        // No task without a unit of its own.
        let units = a.nrows() / unit;
        let tasks = tasks.min(units);
        if tasks <= 1 {
            return self.task(a, self.x, Target::Y { y, alpha, beta });
        }
        let here = share(tasks);
        let at = units * here / tasks * unit;
        let (a0, a1) = a.split_at(Axis(0), at);
        let (y0, y1) = y.split_at(Axis(0), at);
        both(
            || self.rows(a0, y0, alpha, beta, here, unit),
            || self.rows(a1, y1, alpha, beta, tasks - here, unit),
        );
    }

    /// Some segments for every task.
    fn segments(&self, a: ArrayView2<'_, T>, x: &[T::Acc], partials: &mut [T::Acc], tasks: usize) {
        let count = a.ncols().div_ceil(SEGMENT);
        let tasks = tasks.min(count);
        if tasks <= 1 {
            return self.task(a, x, Target::Partials(partials));
        }
        let here = share(tasks);
        let at = count * here / tasks;
        let (p0, p1) = partials.split_at_mut(at * a.nrows());
        let (a0, a1) = a.split_at(Axis(1), at * SEGMENT);
        let (x0, x1) = if self.lines.reversed() {
            let (x1, x0) = x.split_at(x.len() - at * SEGMENT);
            (x0, x1)
        } else {
            x.split_at(at * SEGMENT)
        };
        both(|| self.segments(a0, x0, p0, here), || self.segments(a1, x1, p1, tasks - here));
    }
}

/// How many of the tasks the first of [`both`] takes: half of them, or, outside of rayon's pool, where
/// only the second can be shared again, one.
fn share(tasks: usize) -> usize {
    if rayon::current_thread_index().is_some() { tasks / 2 } else { 1 }
}

/// Both, side by side, on rayon's current pool. A thread outside of it takes the first itself, and is
/// not sent to sleep for the little while that the other one may take longer.
fn both(first: impl FnOnce() + Send, second: impl FnOnce() + Send) {
    if rayon::current_thread_index().is_some() {
        rayon::join(first, second);
        return;
    }
    let done = AtomicBool::new(false);
    rayon::in_place_scope(|scope| {
        scope.spawn(|_| {
            second();
            done.store(true, Ordering::Release);
        });
        first();
        for _ in 0..SPINS {
            if done.load(Ordering::Acquire) {
                break;
            }
            std::hint::spin_loop();
        }
    });
}

/// Looks at what the other thread does, some tens of microseconds.
const SPINS: usize = 1000;
