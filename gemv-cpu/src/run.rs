//! One product: lines chosen, x packed where it has to be, the work split over rayon's pool.

use gemv_core::ndarray::{ArrayView1, ArrayView2, ArrayViewMut1, Axis, ShapeBuilder, s};
use gemv_core::order::SEGMENT;
use gemv_core::{Accumulator, scale};

use crate::isa::{CpuElement, Isa, Lines, Plan, Target, Task, with_elements, with_scratch};

/// Elements up to which a product may go the short way. There is nothing to choose for it: no
/// parameter of the kernels makes a difference to so small a matrix.
const SMALL: usize = 8192;

/// The short way, for small products that need nothing but a kernel; false, and nothing done, for
/// all others.
#[inline]
pub(crate) fn small<T: CpuElement>(
    isa: Isa,
    alpha: T::Acc,
    a: &ArrayView2<'_, T>,
    conj: bool,
    x: &ArrayView1<'_, T>,
    beta: T::Acc,
    y: &mut ArrayViewMut1<'_, T>,
) -> bool {
    let (m, n) = a.dim();
    if m * n > SMALL || alpha != T::Acc::ONE || beta != T::Acc::ZERO {
        return false;
    }
    let (Some(x), Some(y)) = (x.as_slice(), y.as_slice_mut()) else { return false };
    let (Some(x), Some(y)) = (T::as_acc(x), T::as_acc_mut(y)) else { return false };
    isa.small(a, conj, x, y)
}

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
        if let Some(x) = (!lines.reversed()).then_some(x).and_then(|x| x.to_slice())
            && let Some(x) = T::as_acc(x)
        {
            self.split(x, lines);
        } else {
            isa.packed(x, lines, |x| self.split(x, lines));
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
        if m >= tasks * unit * 2 || n.div_ceil(SEGMENT) < tasks {
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
        self.packed(x, lines, |x| {
            let shared = Shared { isa: self, plan, conj, x, lines };
            shared.task(a.reborrow(), x, Target::Sums(out));
        });
    }

    /// Runs `f` with x widened, in the order in which the kernel for these lines wants it.
    fn packed<T: CpuElement>(self, x: ArrayView1<'_, T>, lines: Lines, f: impl FnOnce(&[T::Acc])) {
        with_scratch(x.len(), |packed: &mut [T::Acc]| {
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
                let plan = Plan { block: 0, ahead: 0, ..plan };
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
        let at = units * (tasks / 2) / tasks * unit;
        let (a0, a1) = a.split_at(Axis(0), at);
        let (y0, y1) = y.split_at(Axis(0), at);
        rayon::join(
            || self.rows(a0, y0, alpha, beta, tasks / 2, unit),
            || self.rows(a1, y1, alpha, beta, tasks - tasks / 2, unit),
        );
    }

    /// Some segments for every task.
    fn segments(&self, a: ArrayView2<'_, T>, x: &[T::Acc], partials: &mut [T::Acc], tasks: usize) {
        let count = a.ncols().div_ceil(SEGMENT);
        let tasks = tasks.min(count);
        if tasks <= 1 {
            return self.task(a, x, Target::Partials(partials));
        }
        let at = count * (tasks / 2) / tasks;
        let (p0, p1) = partials.split_at_mut(at * a.nrows());
        let (a0, a1) = a.split_at(Axis(1), at * SEGMENT);
        let (x0, x1) = if self.lines.reversed() {
            let (x1, x0) = x.split_at(x.len() - at * SEGMENT);
            (x0, x1)
        } else {
            x.split_at(at * SEGMENT)
        };
        rayon::join(
            || self.segments(a0, x0, p0, tasks / 2),
            || self.segments(a1, x1, p1, tasks - tasks / 2),
        );
    }
}
