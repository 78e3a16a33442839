//! A product without types: which kernel computes which part, and what remains for the sums of segments.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use gemv_core::Accumulator;
use gemv_core::ndarray::{ArrayView1, ArrayView2, ArrayViewMut1};
use gemv_core::order::{LANES, SEGMENT};

use super::element::CpuElement;
use super::entry::{Call, EntryPoints, Finish, Kernel};
use super::isa::Isa;
use super::ops::Scalar;
use super::scratch::{self, Scratch};
use super::sums::{Place, Row, Tree, levels, spare_lines};
use super::window::{Window, head, lead};

/// The arguments of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rows that are interleaved segment by segment (row kernel).
    pub(crate) rows: usize,
    /// Blocks of rows, as far apart as possible, that are interleaved (row kernel): streams for the memory where rows
    /// are short.
    pub(crate) streams: usize,
    /// Rows of a tile (column kernels), 0 for the kernel that keeps its sums in registers.
    pub(crate) tile_m: usize,
    /// Whether columns are short: read in the order of memory, with the sums of a quarter of the lanes kept.
    pub(crate) few_rows: bool,
    /// Prefetch distance in bytes, 0 for none.
    pub(crate) prefetch: usize,
    /// Whether the next rows (row kernel) or the next segment (few rows) are prefetched instead. Not for rows of up to
    /// 64 columns, nor for a last segment of fewer. Rows that four at a time would pass over twice are then taken two
    /// at a time, where that is written (f64 on AVX-512).
    pub(crate) prefetch_next: bool,
}

/// How the elements of a matrix are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// Row by row; the elements of a row are this far apart.
    Rows(isize),
    /// Column by column.
    Columns(isize),
}

impl Lines {
    /// By the smaller of the two strides, of axes that have more than one entry.
    #[inline(always)]
    pub(super) fn of(a: &Strided) -> Lines {
        let Strided { m, n, rs, cs, .. } = *a;
        if cs == 1 && n > 1 {
            return Lines::Rows(1);
        }
        if rs == 1 && m > 1 {
            return Lines::Columns(1);
        }
        if m <= 1 {
            return Lines::Rows(if n <= 1 { 1 } else { cs });
        }
        if n <= 1 {
            return Lines::Columns(rs);
        }
        // Columns that are all the same are walked down, not across.
        if cs != 0 && (rs == 0 || cs.unsigned_abs() <= rs.unsigned_abs()) {
            Lines::Rows(cs)
        } else {
            Lines::Columns(rs)
        }
    }

    /// Whether x runs backwards as well.
    fn reversed(self) -> bool {
        self == Lines::Rows(-1)
    }
}

/// A view of a matrix. Strides are in elements.
#[derive(Clone, Copy)]
pub(super) struct Strided {
    pub(super) p: *const u8,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) rs: isize,
    pub(super) cs: isize,
}

/// Where a result goes.
#[derive(Clone, Copy)]
enum Target {
    /// Rule 6. `unscaled` if alpha is 1 and beta 0.
    Y { y: *mut u8, stride: isize, alpha: Scalar, beta: Scalar, unscaled: bool },
    /// One accumulator a row: the sums before scaling.
    Sums(*mut u8),
    /// The sums of the segments: that of segment s and row i at `s * ld + i`.
    Partials { p: *mut u8, ld: usize },
}

/// `y = alpha A x + beta y`, with its operands in the host's memory.
pub(crate) struct Product<'a> {
    kernels: &'static EntryPoints,
    stride_two: Option<&'static EntryPoints>,
    plan: Plan,
    conj: bool,
    a: Strided,
    x: *const u8,
    x_stride: isize,
    y: Target,
    operands: PhantomData<&'a mut u8>,
}

impl<'a> Product<'a> {
    /// # Panics
    /// If the shapes do not fit.
    #[expect(clippy::too_many_arguments, reason = "a product has them")]
    #[inline(always)]
    pub(crate) fn new<T: CpuElement>(
        isa: Isa,
        plan: Plan,
        alpha: T::Acc,
        a: ArrayView2<'a, T>,
        conj: bool,
        x: ArrayView1<'a, T>,
        beta: T::Acc,
        mut y: ArrayViewMut1<'a, T>,
    ) -> Product<'a> {
        let (m, n) = a.dim();
        assert!(x.len() == n && y.len() == m);
        // Anybody can make a choice of any parameters. The others are bounded by the matrix.
        assert!((1..=128).contains(&plan.rows) && (plan.tile_m > 0 || !plan.few_rows));
        let (rs, cs) = (a.strides()[0], a.strides()[1]);
        let (p, stride) = (y.as_mut_ptr().cast(), y.strides()[0]);
        let unscaled = alpha == T::Acc::ONE && beta == T::Acc::ZERO;
        let (alpha, beta) = (Scalar::new(alpha), Scalar::new(beta));
        Product {
            kernels: T::kernels(isa, 1).expect("every type has kernels of stride one"),
            stride_two: T::kernels(isa, 2),
            plan,
            conj,
            a: Strided { p: a.as_ptr().cast(), m, n, rs, cs },
            x: x.as_ptr().cast(),
            x_stride: x.strides()[0],
            y: Target::Y { y: p, stride, alpha, beta, unscaled },
            operands: PhantomData,
        }
    }

    /// Chooses lines, packs x where it has to be, and calls `f` with the whole as one part.
    ///
    /// Inlined, as all up to the kernels: small products spend their time in copies of these structs otherwise.
    #[inline(always)]
    pub(crate) fn run(mut self, f: impl FnOnce(Part<'_>)) {
        let Strided { m, n, rs, .. } = self.a;
        if m == 0 || n == 0 {
            return;
        }
        if m > 1 && rs == 0 {
            return self.broadcast();
        }
        let mut lines = Lines::of(&self.a);
        if let Lines::Columns(step) = lines
            && step < 0
        {
            // Columns upside down are columns, with y upside down.
            let end = m as isize - 1;
            self.a.p = offset(self.a.p, end * step, self.kernels.vector.element);
            self.a.rs = -step;
            if let Target::Y { y, stride, .. } = &mut self.y {
                *y = offset(*y, end * *stride, self.kernels.vector.element).cast_mut();
                *stride = -*stride;
            }
            lines = Lines::Columns(-step);
        }
        self.with_x(lines, f);
    }

    /// Calls `f` with x as accumulators, in the order in which the kernel for these lines reads it.
    #[inline(always)]
    fn with_x(&self, lines: Lines, f: impl FnOnce(Part<'_>)) {
        let Product { kernels: k, a, x, x_stride, y, .. } = *self;
        // Rows that are read by aligned vectors have x aligned as well; a large enough matrix pays for the copy.
        let lead = match lines {
            Lines::Rows(1) if a.m >= 32 && a.n >= LANES => {
                Some(lead(&Window { p: a.p, line: a.rs, m: a.m, n: a.n }, k.vector, false))
            }
            _ => None,
        };
        let part = |x| {
            let shared = self.shared(lines);
            Part { shared, a, x, unpacked: None, target: y, operands: PhantomData }
        };
        let aligned = |lead: usize| (x.addr() + lead * k.acc).is_multiple_of(64);
        let neighbours = x_stride == 1 || a.n == 1;
        if !lines.reversed() && k.same && neighbours && lead.is_none_or(aligned) {
            return f(part(x));
        }
        let line = 64 >> k.acc.trailing_zeros();
        let first = lead.unwrap_or(0).wrapping_neg() & (line - 1);
        let buffer = match a.n {
            ..LONGEST => scratch::take((first + a.n) * k.acc, x_stride == 0),
            _ => None,
        };
        let Some(mut buffer) = buffer else {
            // Copies of tiles, each with its entries of x.
            let mut part = part(x);
            part.unpacked = Some(x_stride);
            part.shared.direct = false;
            return f(part);
        };
        let packed = buffer.as_mut_ptr().wrapping_add(first * k.acc);
        let (from, stride) = match lines.reversed() {
            true => (offset(x, (a.n as isize - 1) * x_stride, k.vector.element), -x_stride),
            false => (x, if neighbours { 1 } else { x_stride }),
        };
        // SAFETY: the scratch is good for `first` and n accumulators, x for n entries; the kernels are those of their
        // types.
        unsafe { (k.widen)(from, stride, a.n, packed) };
        f(part(packed));
    }

    #[inline(always)]
    fn shared(&self, lines: Lines) -> Shared {
        let Product { kernels, stride_two, plan, conj, .. } = *self;
        let own = match lines {
            Lines::Rows(1 | -1) | Lines::Columns(1) => Some(kernels),
            Lines::Rows(2) | Lines::Columns(2) => stride_two,
            _ => None,
        };
        let (kernels, direct) = (own.unwrap_or(kernels), own.is_some());
        Shared { kernels, direct, plan, conj, lines }
    }

    /// All rows are the same: one sum.
    #[cold]
    #[inline(never)]
    fn broadcast(mut self) {
        let rows = self.a.m;
        let Target::Y { y, stride, alpha, beta, .. } = self.y else {
            unreachable!("a product has a y")
        };
        let mut sum = Scalar::new(0.0f32);
        self.a.m = 1;
        self.y = Target::Sums((&raw mut sum).cast());
        self.with_x(Lines::of(&self.a), |mut part| part.run());
        let k = self.kernels;
        for i in 0..rows {
            let y = offset(y, i as isize * stride, k.vector.element).cast_mut();
            let sums = (&raw const sum).cast();
            // SAFETY: the sum is an accumulator of these kernels, y has so many rows.
            unsafe { (k.finish)(&Finish { sums, m: 1, y, stride, alpha, beta }) }
        }
    }
}

/// Columns from which on no scratch is proportional to them. Only repeated elements make so many.
const LONGEST: usize = 1 << 40;

/// The address `by` elements of `size` bytes further.
#[inline(always)]
pub(super) fn offset(p: *const u8, by: isize, size: usize) -> *const u8 {
    p.wrapping_offset(by * size as isize)
}

/// What all parts of a product share.
#[derive(Clone, Copy)]
struct Shared {
    /// Those of the lines, if `direct`; else those of lines whose elements are neighbours.
    kernels: &'static EntryPoints,
    /// Whether a kernel reads the lines without a copy.
    direct: bool,
    plan: Plan,
    conj: bool,
    lines: Lines,
}

/// Some rows or some segments of a product.
pub(crate) struct Part<'a> {
    shared: Shared,
    a: Strided,
    /// n accumulators, in the opposite order for [`Lines::reversed`].
    x: *const u8,
    /// The stride of x, if it is not packed for want of memory: then it has elements, in their own order.
    unpacked: Option<isize>,
    target: Target,
    operands: PhantomData<&'a mut u8>,
}

// SAFETY: a part reads elements that nothing writes while it lives, and writes a target of its own.
unsafe impl Send for Part<'_> {}

impl<'a> Part<'a> {
    /// Rows and columns.
    pub(crate) fn dim(&self) -> (usize, usize) {
        (self.a.m, self.a.n)
    }

    /// Bytes of an element.
    pub(crate) fn element(&self) -> usize {
        self.shared.kernels.vector.element
    }

    /// Lanes of a vector.
    pub(crate) fn width(&self) -> usize {
        self.shared.kernels.width
    }

    /// Whether the matrix is walked row by row.
    pub(crate) fn by_rows(&self) -> bool {
        matches!(self.shared.lines, Lines::Rows(_))
    }

    /// Whether a kernel reads the matrix without a copy.
    pub(crate) fn direct(&self) -> bool {
        self.shared.direct
    }

    /// Rows `..at`, and the others.
    ///
    /// # Panics
    /// If there are not so many, or the part is one of segments.
    pub(crate) fn split_rows(self, at: usize) -> (Part<'a>, Part<'a>) {
        let Part { shared, a, x, unpacked, target, operands } = self;
        assert!(at <= a.m);
        let k = shared.kernels;
        let upper = Strided { m: at, ..a };
        let p = offset(a.p, at as isize * a.rs, k.vector.element);
        let lower = Strided { p, m: a.m - at, ..a };
        let second = match target {
            Target::Y { y, stride, alpha, beta, unscaled } => {
                let y = offset(y, at as isize * stride, k.vector.element).cast_mut();
                Target::Y { y, stride, alpha, beta, unscaled }
            }
            Target::Sums(p) => Target::Sums(p.wrapping_add(at * k.acc)),
            Target::Partials { .. } => panic!("partial sums are not split by rows"),
        };
        let part = |a, target| Part { shared, a, x, unpacked, target, operands };
        (part(upper, target), part(lower, second))
    }

    /// Segments `..at`, and the others.
    ///
    /// # Panics
    /// If the part is none of [`by_segments`](Self::by_segments).
    pub(crate) fn split_segments(self, at: usize) -> (Part<'a>, Part<'a>) {
        let Part { shared, a, x, unpacked, target, operands } = self;
        let Target::Partials { p, ld } = target else {
            panic!("only partial sums are split by segments")
        };
        let k = shared.kernels;
        let columns = (at * SEGMENT).min(a.n);
        let left = Strided { n: columns, ..a };
        let q = offset(a.p, columns as isize * a.cs, k.vector.element);
        let right = Strided { p: q, n: a.n - columns, ..a };
        let (x0, x1) = match unpacked {
            Some(stride) => (x, offset(x, columns as isize * stride, k.vector.element)),
            None if shared.lines.reversed() => (x.wrapping_add((a.n - columns) * k.acc), x),
            None => (x, x.wrapping_add(columns * k.acc)),
        };
        let second = Target::Partials { p: p.wrapping_add(at * ld * k.acc), ld };
        let part = |a, x, target| Part { shared, a, x, unpacked, target, operands };
        (part(left, x0, target), part(right, x1, second))
    }

    /// Calls `f` with the same product as segments, and reduces their sums. Returns false, before anything is computed,
    /// if there is no memory for them.
    pub(crate) fn by_segments(&self, f: impl FnOnce(Part<'_>)) -> bool {
        let Part { shared, a, x, unpacked, target, .. } = *self;
        let (k, count) = (shared.kernels, a.n.div_ceil(SEGMENT));
        // Their sums, the result, and the levels above.
        let lines = count + 1 + spare_lines(count);
        let bytes = lines.saturating_mul(a.m * k.acc);
        let Some(mut scratch) = self.scratch(bytes) else { return false };
        let p = scratch.as_mut_ptr();
        let partials = Target::Partials { p, ld: a.m };
        f(Part { shared, a, x, unpacked, target: partials, operands: PhantomData });
        // SAFETY: the scratch is good for the sums of all segments of m rows and the lines above, and the target for m
        // rows.
        unsafe { reduce(k, p, a.m, count, target) }
        true
    }

    /// Scratch that depends on the number of columns.
    fn scratch(&self, bytes: usize) -> Option<Scratch> {
        match self.a.n {
            ..LONGEST => scratch::take(bytes, self.a.cs == 0),
            _ => None,
        }
    }

    /// Computes it on the calling thread.
    #[inline(never)]
    pub(crate) fn run(&mut self) {
        self.run_inline();
    }

    /// As [`run`](Self::run), for small products.
    #[inline(always)]
    pub(crate) fn run_inline(&mut self) {
        let Part { shared, a, .. } = &*self;
        if a.m == 0 || a.n == 0 {
            return;
        }
        if !shared.direct {
            return self.tiles();
        }
        let row = self.by_rows();
        let len = scratch_len(a.m, a.n, &shared.plan, row, shared.kernels.width);
        let bytes = len * shared.kernels.acc;
        // SAFETY: the matrix is a view: its elements, found by its own strides, may be read; the lines are its; x has
        // an entry for every column and the target a place for every row. The scratch has `scratch_len`.
        let run = |scratch| unsafe { if row { self.rows(scratch) } else { self.columns(scratch) } };
        let mut stack = MaybeUninit::<Stack>::uninit();
        if bytes <= STACK {
            return run(stack.as_mut_ptr().cast());
        }
        match self.scratch(bytes) {
            Some(mut buffer) => run(buffer.as_mut_ptr()),
            // A tile is a part of one segment.
            None if a.n > SEGMENT => self.tiles(),
            None => self.row_by_row(),
        }
    }
}

/// Bytes of scratch on the stack.
const STACK: usize = 2 << 10;

#[repr(align(64))]
struct Stack(#[expect(dead_code, reason = "used through its address")] [u8; STACK]);

/// Accumulators of scratch for a block of `m` × `n`.
#[inline(always)]
fn scratch_len(m: usize, n: usize, plan: &Plan, row: bool, width: usize) -> usize {
    let segments = n.div_ceil(SEGMENT);
    // Sums of segments, and of the segments of those.
    let levels = if segments > 1 { segments + segments.div_ceil(255) + 4 } else { 0 };
    if row {
        let rows = plan.rows.next_multiple_of(4);
        return LANES.max(rows) + rows * levels;
    }
    tile_rows(m, n, plan, width) * (1 + levels + stack_lines(plan))
}

/// Lines of partial sums of a segment.
fn stack_lines(plan: &Plan) -> usize {
    match plan.tile_m {
        0 => 0,
        _ if plan.few_rows => LANES / 4,
        _ => 6,
    }
}

/// Rows of a tile of the column kernels, rounded up to whole vectors, of which one may begin before the first row.
#[inline(always)]
fn tile_rows(m: usize, n: usize, plan: &Plan, width: usize) -> usize {
    let step = if plan.tile_m == 0 { (strip(n) + 1) * width } else { plan.tile_m + 2 * width };
    // The width is a power of two.
    let up = |rows: usize| (rows + width - 1) & !(width - 1);
    up(step.min(up(m) + width))
}

/// Vectors of rows for one call of the column kernel in registers. Many for a single segment: each call takes time. Few
/// for several segments: the sums of all of them are kept.
fn strip(n: usize) -> usize {
    if n <= SEGMENT { 16 } else { 4 }
}

/// Bytes of rows of one segment, or 64 rows, that are read before those of another stream.
const STREAM_BYTES: usize = 1 << 10;

impl Part<'_> {
    #[inline(always)]
    fn call(&self, line: isize) -> Call {
        let Part { shared, a, x, .. } = self;
        let window = Window { p: a.p, line, m: a.m, n: a.n };
        let mut call = Call::new(window, shared.conj, *x, core::ptr::null_mut());
        call.prefetch = shared.plan.prefetch as isize;
        (call.back, call.prefetch_next) = (shared.lines.reversed(), shared.plan.prefetch_next);
        call
    }

    /// Lines are rows, which run backwards as x does if they are reversed.
    ///
    /// # Safety
    /// a is good, x for n, scratch for its length and the target for m rows.
    #[inline(always)]
    unsafe fn rows(&self, scratch: *mut u8) {
        let (a, plan) = (&self.a, &self.shared.plan);
        let out = in_place(self.shared.kernels, self.target, a.m);
        let scratch_ld = plan.rows.next_multiple_of(4);
        let streams = if a.m >= plan.streams * scratch_ld { plan.streams } else { 1 };
        let one = a.n <= SEGMENT;
        let step = match one {
            true if streams == 1 && matches!(out, Target::Sums(_)) => a.m,
            true if streams == 1 => LANES,
            // More short rows at a time: each time begins with a call.
            true => (STREAM_BYTES / (a.n * self.element()))
                .next_multiple_of(4)
                .clamp(plan.rows.min(LANES), LANES),
            _ => plan.rows,
        };
        let mut call = self.call(a.rs);
        if call.back {
            call.x = call.x.wrapping_add((a.n - 1) * self.shared.kernels.acc);
        }
        call.ld = match out {
            Target::Partials { ld, .. } => ld,
            _ if one => 0,
            _ => scratch_ld,
        };
        let kernel = (self.shared.kernels.rows)(a.n, call.back);
        // SAFETY: the caller's; all rows are below m.
        unsafe {
            let mut some_rows =
                |i, count| self.some_rows(kernel, i, count, &mut call, scratch, &out);
            let each = a.m / streams;
            let mut at = 0;
            while at < each {
                for s in 0..streams {
                    some_rows(s * each + at, (each - at).min(step));
                }
                at += step;
            }
            // The rows beyond the last stream.
            let mut i = streams * each;
            while i < a.m {
                some_rows(i, (a.m - i).min(step));
                i += step;
            }
        }
    }

    /// `count` rows from `i` on, no more than the scratch is good for.
    #[inline(always)]
    unsafe fn some_rows(
        &self,
        kernel: Kernel,
        i: usize,
        count: usize,
        call: &mut Call,
        scratch: *mut u8,
        target: &Target,
    ) {
        let (a, k) = (&self.a, self.shared.kernels);
        let scratch_ld = self.shared.plan.rows.next_multiple_of(4);
        let one = a.n <= SEGMENT;
        let partials = scratch.wrapping_add(LANES.max(scratch_ld) * k.acc);
        let sums = place(k, target, i, scratch);
        let out = match *target {
            Target::Partials { p, .. } => p.wrapping_add(i * k.acc),
            _ if one => sums,
            _ => partials,
        };
        call.a.p = offset(a.p, i as isize * a.rs, k.vector.element);
        (call.a.m, call.out) = (count, out);
        // SAFETY: the caller's.
        unsafe {
            kernel(call);
            if !matches!(target, Target::Partials { .. }) {
                if !one {
                    let lines = a.n.div_ceil(SEGMENT);
                    let spare = partials.wrapping_add(lines * scratch_ld * k.acc);
                    levels(k, partials, count, scratch_ld, lines, spare, sums);
                }
                finish(k, sums, count, i, target);
            }
        }
    }

    /// Lines are columns.
    ///
    /// # Safety
    /// As [`rows`](Self::rows).
    #[inline(always)]
    unsafe fn columns(&self, scratch: *mut u8) {
        let (k, plan) = (self.shared.kernels, &self.shared.plan);
        let (m, n, line) = (self.a.m, self.a.n, self.a.cs);
        let target = in_place(k, self.target, m);
        let (element, acc) = (k.vector.element, k.acc);
        let lines = n.div_ceil(SEGMENT);
        let tiled = plan.tile_m > 0;
        let scratch_ld = tile_rows(m, n, plan, k.width);
        let stack = scratch.wrapping_add(scratch_ld * acc);
        let partials = stack.wrapping_add(stack_lines(plan) * scratch_ld * acc);
        let mut call = self.call(line);
        (call.stack, call.stack_ld) = (stack, scratch_ld);
        // Columns of one offset are cut where vectors are aligned.
        let first = if plan.few_rows { 0 } else { head(&call.a, k.vector) };
        let sums_alone = lines == 1 && !tiled && matches!(target, Target::Sums(_));
        let distance = (plan.prefetch >> element.trailing_zeros()) as isize;
        let next_segment = SEGMENT as isize * line;
        let mut i = 0;
        while i < m {
            let head = if i == 0 { first.min(m) } else { 0 };
            let rows = match (sums_alone, tiled) {
                (true, _) => m,
                (_, true) => (head + plan.tile_m).min(m - i),
                _ => (head + strip(n) * k.width).min(m - i),
            };
            let p = offset(self.a.p, i as isize * k.step, element);
            let sums = place(k, &target, i, scratch);
            let (out, ld) = match target {
                Target::Partials { p, ld } => (p.wrapping_add(i * acc), ld),
                _ if lines == 1 => (sums, 0),
                _ => (partials, scratch_ld),
            };
            call.a = Window { p, m: rows, n: n.min(SEGMENT), line };
            (call.x, call.out, call.head) = (self.x, out, head);
            for s in 0..lines {
                if s + 1 == lines {
                    call.a.n = n - s * SEGMENT;
                }
                // SAFETY: the caller's.
                unsafe {
                    if plan.few_rows && call.a.n == SEGMENT {
                        call.prefetch = if plan.prefetch_next { next_segment } else { distance };
                        (k.col_few_rows)(&call);
                    } else if tiled && !plan.few_rows {
                        call.prefetch = distance;
                        (k.col_memory)(&call);
                    } else {
                        // What is read next: the next segment of these rows, or further rows.
                        call.prefetch = match plan.prefetch {
                            0 => 0,
                            _ if s + 1 < lines => next_segment,
                            _ => distance,
                        };
                        (k.col_registers)(&call);
                    }
                }
                call.a.p = offset(call.a.p, next_segment, element);
                call.x = call.x.wrapping_add(SEGMENT * acc);
                call.out = call.out.wrapping_add(ld * acc);
            }
            if !matches!(target, Target::Partials { .. }) {
                // SAFETY: the caller's; the sums of all segments of these rows are there.
                unsafe {
                    if lines > 1 {
                        let spare = partials.wrapping_add(lines * scratch_ld * acc);
                        levels(k, partials, rows, scratch_ld, lines, spare, sums);
                    }
                    finish(k, sums, rows, i, &target);
                }
            }
            i += rows;
        }
    }

    /// Elements of which no two are neighbours, or for whose sums there is no memory: some rows of a segment at a time
    /// are copied together, in the order of memory, while they are in the first-level cache.
    #[inline(never)]
    fn tiles(&self) {
        let Part { shared, a, target, .. } = *self;
        let (k, by_rows, count) = (self.neighbours(), self.by_rows(), a.n.div_ceil(SEGMENT));
        let (element, acc) = (k.vector.element, k.acc);
        // The sums of a segment lie together: all rows of it, then.
        let rows = match (target, by_rows) {
            (Target::Partials { .. }, _) => a.m,
            (_, true) => 16,
            (_, false) => 32,
        };
        let rows = rows.min(a.m);
        let packed = self.is_packed();
        let area = |bytes: usize| bytes.next_multiple_of(64);
        let sums = match target {
            Target::Partials { .. } => 0,
            _ => (1 + Tree::lines(count)) * rows * acc,
        };
        let tile = area(rows * a.n.min(SEGMENT) * element);
        let own_x = if packed { 0 } else { area(SEGMENT * acc) };
        let Some(mut scratch) = scratch::take(tile + own_x + sums, false) else {
            return self.row_by_row();
        };
        let tile_at = scratch.as_mut_ptr();
        let x_at = tile_at.wrapping_add(tile);
        let sums_at = x_at.wrapping_add(own_x);
        let one = |i: usize, c: usize, target: Target| {
            let (h, w) = ((a.m - i).min(rows), (a.n - c * SEGMENT).min(SEGMENT));
            let p = offset(a.p, i as isize * a.rs, element);
            let p = offset(p, (c * SEGMENT) as isize * a.cs, element);
            // SAFETY: the rows and columns are the view's, and the tile is good for as many.
            unsafe {
                match by_rows {
                    true => gather(p, (h, a.rs), (w, a.cs), element, tile_at),
                    false => gather(p, (w, a.cs), (h, a.rs), element, tile_at),
                }
            }
            let (rs, cs) = if by_rows { (w as isize, 1) } else { (1, h as isize) };
            let rows = by_rows && w > 1 || h <= 1;
            let lines = if rows { Lines::Rows(1) } else { Lines::Columns(1) };
            // A tile is small: the sums of its columns stay in registers.
            let plan = Plan {
                tile_m: 0,
                few_rows: false,
                prefetch: 0,
                prefetch_next: false,
                ..shared.plan
            };
            let shared = Shared { kernels: k, direct: true, plan, lines, ..shared };
            let a = Strided { p: tile_at, m: h, n: w, rs, cs };
            let x = match packed {
                true => self.x.wrapping_add(c * SEGMENT * acc),
                false => {
                    // SAFETY: the place is good for the entries of a segment.
                    unsafe { self.copy_x(c * SEGMENT, w, x_at) };
                    x_at.cast_const()
                }
            };
            Part { shared, a, x, unpacked: None, target, operands: PhantomData }.run();
        };
        if let Target::Partials { p, ld } = target {
            let partials = |c: usize| Target::Partials { p: p.wrapping_add(c * ld * acc), ld };
            return (0..count).for_each(|c| one(0, c, partials(c)));
        }
        let rows_from = |i: usize| match target {
            Target::Y { y, stride, alpha, beta, unscaled } => {
                let y = offset(y, i as isize * stride, element).cast_mut();
                Target::Y { y, stride, alpha, beta, unscaled }
            }
            Target::Sums(p) => Target::Sums(p.wrapping_add(i * acc)),
            Target::Partials { .. } => unreachable!("returned above"),
        };
        if count == 1 {
            return (0..a.m).step_by(rows).for_each(|i| one(i, 0, rows_from(i)));
        }
        for i in (0..a.m).step_by(rows) {
            let h = rows.min(a.m - i);
            let mut tree = Tree::new(k, count, h, sums_at.wrapping_add(rows * acc));
            for c in 0..count {
                one(i, c, Target::Partials { p: tree.next(k), ld: h });
                // SAFETY: the sums of this segment are there, and the scratch is good for the tree.
                unsafe { tree.push(k) };
            }
            let target = in_place(k, rows_from(i), h);
            let sums = place(k, &target, 0, sums_at);
            // SAFETY: the sums of all segments are there; these rows are the target's.
            unsafe {
                tree.finish(k, sums);
                finish(k, sums, h, 0, &target);
            }
        }
    }

    /// On the stack alone, where there is no memory for a tile.
    #[cold]
    #[inline(never)]
    fn row_by_row(&self) {
        let Part { shared, a, target, .. } = *self;
        let k = self.neighbours();
        let (element, acc) = (k.vector.element, k.acc);
        let mut stack = Place::NEW;
        for i in 0..a.m {
            let line = offset(a.p, i as isize * a.rs, element);
            let row = Row {
                k,
                conj: shared.conj,
                n: a.n,
                a: &|j, w, to| {
                    let p = offset(line, j as isize * a.cs, element);
                    // SAFETY: the row is the view's, and the place good for a segment.
                    unsafe { gather(p, (1, 0), (w, a.cs), element, to) }
                },
                // SAFETY: as above.
                x: &|j, w, to| unsafe { self.copy_x(j, w, to) },
            };
            // SAFETY: the row's segments are the part's, the kernels those of neighbours, and the target has a place
            // for the row.
            unsafe {
                let Target::Partials { p, ld } = target else {
                    let sum = row.sum(&mut stack);
                    match target {
                        Target::Sums(p) => {
                            p.wrapping_add(i * acc).copy_from_nonoverlapping(sum, acc)
                        }
                        _ => finish(k, sum, 1, i, &target),
                    }
                    continue;
                };
                for s in 0..a.n.div_ceil(SEGMENT) {
                    row.segment(&mut stack, s, p.wrapping_add((s * ld + i) * acc));
                }
            }
        }
    }

    /// The kernels of lines whose elements are neighbours.
    fn neighbours(&self) -> &'static EntryPoints {
        match self.shared.kernels {
            k if k.step == 1 => k,
            // Real elements alone have kernels of other steps.
            k => (k.real)(),
        }
    }

    /// Whether x has accumulators in the order of the columns.
    fn is_packed(&self) -> bool {
        self.unpacked.is_none() && !self.shared.lines.reversed()
    }

    /// Copies `w` entries of x from column j on as accumulators.
    ///
    /// # Safety
    /// They are there, and `to` is good for them.
    unsafe fn copy_x(&self, j: usize, w: usize, to: *mut u8) {
        let (k, at) = (self.shared.kernels, j as isize);
        // SAFETY: the caller's.
        unsafe {
            match (self.unpacked, self.shared.lines.reversed()) {
                (Some(stride), _) => {
                    (k.widen)(offset(self.x, at * stride, k.vector.element), stride, w, to);
                }
                (None, back) => {
                    let (first, step) =
                        if back { (self.a.n as isize - 1 - at, -1) } else { (at, 1) };
                    gather(offset(self.x, first, k.acc), (1, 0), (w, step), k.acc, to);
                }
            }
        }
    }
}

/// Copies lines together: `lines` and `entries` are a number and a stride.
///
/// # Safety
/// `from` is good for these elements, `to` for as many.
pub(super) unsafe fn gather(
    from: *const u8,
    lines: (usize, isize),
    entries: (usize, isize),
    element: usize,
    to: *mut u8,
) {
    /// # Safety
    /// As above, for elements as large as `E`.
    unsafe fn copy<E: Copy>(
        from: *const u8,
        lines: (usize, isize),
        entries: (usize, isize),
        to: *mut u8,
    ) {
        let (from, mut to) = (from.cast::<E>(), to.cast::<E>());
        for l in 0..lines.0 {
            let line = from.wrapping_offset(l as isize * lines.1);
            for e in 0..entries.0 {
                // SAFETY: the caller's.
                unsafe { *to = *line.wrapping_offset(e as isize * entries.1) };
                to = to.wrapping_add(1);
            }
        }
    }
    // SAFETY: the caller's. The types are as large as the elements and need no more alignment.
    unsafe {
        match element {
            2 => copy::<u16>(from, lines, entries, to),
            4 => copy::<u32>(from, lines, entries, to),
            8 => copy::<[u32; 2]>(from, lines, entries, to),
            16 => copy::<[u64; 2]>(from, lines, entries, to),
            _ => unreachable!("no element has another size"),
        }
    }
}

/// The target of `m` rows; y itself takes the sums if they are the result.
#[inline(always)]
fn in_place(k: &EntryPoints, target: Target, m: usize) -> Target {
    match target {
        Target::Y { y, stride, unscaled: true, .. } if (stride == 1 || m == 1) && k.same => {
            Target::Sums(y)
        }
        target => target,
    }
}

/// Where the sums of rows `at ..` are computed: in their place, if nothing remains to be done there, or at `scratch`.
#[inline(always)]
fn place(k: &EntryPoints, target: &Target, at: usize, scratch: *mut u8) -> *mut u8 {
    match *target {
        Target::Sums(p) => p.wrapping_add(at * k.acc),
        _ => scratch,
    }
}

/// Rule 6 for `m` rows from `at` on, whose sums are there.
///
/// # Safety
/// `sums` is good for m, the target for rows at .. at + m.
#[inline(always)]
unsafe fn finish(k: &EntryPoints, sums: *const u8, m: usize, at: usize, target: &Target) {
    let Target::Y { y, stride, alpha, beta, .. } = *target else { return };
    let y = offset(y, at as isize * stride, k.vector.element).cast_mut();
    // SAFETY: the caller's.
    unsafe { (k.finish)(&Finish { sums, m, y, stride, alpha, beta }) }
}

/// Rules 4 and 6 for the sums of `count` segments of `m` rows, segment after segment.
///
/// # Safety
/// `partials` is good for as many, for [`spare_lines`] after them and one more; the target for m rows.
unsafe fn reduce(k: &EntryPoints, partials: *mut u8, m: usize, count: usize, target: Target) {
    let target = in_place(k, target, m);
    let scratch = partials.wrapping_add(count * m * k.acc);
    let sums = place(k, &target, 0, scratch);
    // SAFETY: the caller's.
    unsafe {
        levels(k, partials, m, m, count, scratch.wrapping_add(m * k.acc), sums);
        finish(k, sums, m, 0, &target);
    }
}
