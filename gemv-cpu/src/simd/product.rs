//! A product with one vector, without types: does what its [plan](super::plan) says.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use gemv_core::Accumulator;
use gemv_core::ndarray::{ArrayView1, ArrayView2, ArrayViewMut1};
use gemv_core::order::SEGMENT;

use super::element::CpuElement;
use super::entry::{Call, EntryPoints, Finish, Kernel};
use super::gather::gather;
use super::isa::Isa;
use super::ops::Scalar;
use super::plan::{
    Along, Cut, Lines, Reads, Rows, Scratch, TILE_SEGMENTS, Tiles, VectorArgs, VectorOperands,
    VectorPlan, Writes,
};
use super::scratch::{self, Buffer};
use super::sums::{Place, Row, Tree, levels};
use super::window::{Vector, Window, head};

/// `y = alpha A x + beta y`, with its operands in the host's memory, and how it is computed.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    isa: Isa,
    plan: VectorPlan,
    /// The kernels that read the lines in place.
    k: &'static EntryPoints,
    /// Those of lines whose elements are neighbours.
    neighbours: &'static EntryPoints,
    conj: bool,
    /// Lines as the plan names them.
    a: Window<u8>,
    x: *const u8,
    x_stride: isize,
    y: *mut u8,
    y_stride: isize,
    /// Rows of y: those of the matrix, unless all of these are the same.
    rows: usize,
    alpha: Scalar,
    beta: Scalar,
    operands: PhantomData<&'a mut u8>,
}

impl<'a> Product<'a> {
    /// Inlined, as all up to the kernels: small products spend their time in copies of these structs otherwise.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[expect(clippy::too_many_arguments, reason = "a product has them")]
    #[inline(always)]
    pub(crate) fn new<T: CpuElement>(
        isa: Isa,
        args: VectorArgs,
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
        assert!((1..=128).contains(&args.rows));
        let neighbours = T::kernels(isa, 1).expect("every type has kernels of stride one");
        let by_twos = T::kernels(isa, 2);
        let operands = VectorOperands {
            a: a.as_ptr().cast(),
            dim: (m, n),
            strides: (a.strides()[0], a.strides()[1]),
            x: x.as_ptr().cast(),
            x_stride: x.strides()[0],
            y_stride: y.strides()[0],
            unscaled: alpha == T::Acc::ONE && beta == T::Acc::ZERO,
        };
        let v = neighbours.vector;
        let plan = VectorPlan::new(&operands, args, v, by_twos.is_some());
        let VectorOperands { a: mut p, strides: (rs, cs), x, x_stride, mut y_stride, .. } =
            operands;
        let mut first = y.as_mut_ptr().cast::<u8>();
        if plan.rows == Rows::UpsideDown {
            let end = m as isize - 1;
            p = offset(p, end * rs, v.element);
            first = offset(first, end * y_stride, v.element).cast_mut();
            y_stride = -y_stride;
        }
        let line = if plan.lines.are_rows() { rs } else { cs };
        let k = match plan.lines {
            Lines::Rows(2) | Lines::Columns(2) => by_twos.unwrap_or(neighbours),
            _ => neighbours,
        };
        Product {
            isa,
            plan,
            k,
            neighbours,
            conj,
            a: Window { p, line, m: if plan.rows == Rows::Same { 1 } else { m }, n },
            x,
            x_stride: if n == 1 { 1 } else { x_stride },
            y: first,
            y_stride,
            rows: m,
            alpha: Scalar::new(alpha),
            beta: Scalar::new(beta),
            operands: PhantomData,
        }
    }

    /// KiB of the matrix.
    #[inline(always)]
    pub(crate) fn kib(&self) -> usize {
        (self.a.m * self.a.n * self.k.vector.element) >> 10
    }

    /// The cut for so many threads; by rows if `rows`, whatever they are.
    pub(crate) fn cut(&self, tasks: usize, rows: bool) -> Cut {
        let (v, dim) = (self.k.vector, (self.a.m, self.a.n));
        if rows { self.plan.cut_rows(v, dim, tasks) } else { self.plan.cut(v, dim, tasks) }
    }

    /// Whether one sum is the result for all rows.
    #[inline(always)]
    pub(crate) fn is_one_sum(&self) -> bool {
        self.plan.rows == Rows::Same
    }

    /// x as the kernels for these lines read it: in its place or in a copy, which `buffer` takes.
    #[inline(always)]
    pub(crate) fn x(&self, buffer: &mut Option<Buffer>) -> Entries {
        let Product { plan, k, x, x_stride, a: Window { n, .. }, .. } = *self;
        if plan.x == Reads::InPlace {
            return (x, plan.x);
        }
        let Vector { element, acc, .. } = k.vector;
        if n < LONGEST {
            *buffer = scratch::take((plan.x_first + n) * acc, x_stride == 0);
        }
        let Some(buffer) = buffer else { return (x, Reads::Copied) };
        let copy = buffer.as_mut_ptr().wrapping_add(plan.x_first * acc);
        let (from, stride) = match plan.lines.reversed() {
            true => (offset(x, (n as isize - 1) * x_stride, element), -x_stride),
            false => (x, x_stride),
        };
        // SAFETY: x is a view of n entries of this stride; the buffer has places for `x_first` and n accumulators; the
        // kernels are those of the entries' type, on an instruction set that there is.
        unsafe { (k.widen)(from, stride, n, copy) };
        (copy, plan.x)
    }

    /// All of it, to y.
    #[inline(always)]
    pub(crate) fn whole(&self, x: Entries) -> Part<'_> {
        Part { of: self, a: self.a, x, out: Out::Rows(self.y) }
    }

    /// Where all rows are the same.
    #[cold]
    #[inline(never)]
    pub(crate) fn one_sum(&self, x: Entries) {
        let Product { k, y_stride, alpha, beta, .. } = *self;
        let mut sum = Scalar::new(0.0f32);
        let out = Out::Rows((&raw mut sum).cast());
        Part { of: self, a: self.a, x, out }.run();
        for i in 0..self.rows {
            let y = offset(self.y, i as isize * y_stride, k.vector.element).cast_mut();
            let sums = (&raw const sum).cast();
            // SAFETY: `sum` holds an accumulator of these kernels, written above; y is a view of so many rows.
            unsafe { (k.finish)(&Finish { sums, m: 1, y, stride: y_stride, alpha, beta }) }
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

/// Entries of x. For [`Reads::Copied`] they are in their place, for want of memory for a copy of all of them. Else they are
/// accumulators, in the opposite order for lines that are reversed.
pub(crate) type Entries = (*const u8, Reads);

/// Where the sums of rows go.
#[derive(Clone, Copy)]
enum Out {
    /// To y, as the plan says.
    Rows(*mut u8),
    /// That of segment s and row i to `s * ld + i`, for the levels above.
    Segments { p: *mut u8, ld: usize },
}

/// Some rows or some segments of a product.
pub(crate) struct Part<'a> {
    of: &'a Product<'a>,
    a: Window<u8>,
    x: Entries,
    out: Out,
}

// SAFETY: a part reads elements that nothing writes while it lives, and writes places of its own.
unsafe impl Send for Part<'_> {}

impl<'a> Part<'a> {
    /// How many rows or segments it has.
    pub(crate) fn len(&self, along: Along) -> usize {
        match along {
            Along::Segments => self.a.n.div_ceil(SEGMENT),
            _ => self.a.m,
        }
    }

    /// Rows or segments `..at`, and the others.
    ///
    /// # Panics
    /// If there are not so many rows, or the part is none of such segments.
    pub(crate) fn split(self, along: Along, at: usize) -> (Part<'a>, Part<'a>) {
        let Part { of, a, x, out } = self;
        let Vector { element, acc, .. } = of.k.vector;
        let ((m, n), (rows, columns)) = match along {
            Along::Segments => ((0, (at * SEGMENT).min(a.n)), (a.m, (at * SEGMENT).min(a.n))),
            _ => ((at, 0), (at, a.n)),
        };
        assert!(m <= a.m);
        let second = match (out, along) {
            (Out::Segments { p, ld }, Along::Segments) => {
                Out::Segments { p: p.wrapping_add(at * ld * acc), ld }
            }
            (Out::Rows(p), Along::Rows) => Out::Rows(of.row(p, at)),
            _ => panic!("sums of segments are split by segments, and others by rows"),
        };
        let left = a.n - n;
        let (x0, x1) = match x {
            (x, Reads::Copied) => (x, offset(x, n as isize * of.x_stride, element)),
            (x, _) if of.plan.lines.reversed() && n > 0 => (x.wrapping_add(left * acc), x),
            (x, _) => (x, x.wrapping_add(n * acc)),
        };
        let p = self.at(m, n);
        let first = Part { of, a: Window { m: rows, n: columns, ..a }, x: (x0, x.1), out };
        let a = Window { p, m: a.m - m, n: left, ..a };
        (first, Part { of, a, x: (x1, x.1), out: second })
    }

    /// Calls `f` with the same product as segments, and reduces their sums. Returns false, before anything is computed,
    /// if there is no memory for them.
    pub(crate) fn by_segments(&self, f: impl FnOnce(Part<'_>)) -> bool {
        let Part { of, a, x, .. } = *self;
        let (k, count) = (of.k, a.n.div_ceil(SEGMENT));
        let scratch = Scratch::of_segments(count, a.m * k.vector.acc);
        let Some(mut buffer) = self.take(scratch.bytes()) else { return false };
        let places = scratch.at(buffer.as_mut_ptr());
        f(Part { of, a, x, out: Out::Segments { p: places.lines, ld: a.m } });
        // SAFETY: the areas are good for the sums of all segments of m rows, which the parts have written, for their
        // levels and the result; the rows are this part's.
        unsafe { self.finish((0, a.m), count, a.m, &places) };
        true
    }

    /// Elements between two rows, and two columns.
    #[inline(always)]
    fn strides(&self) -> (isize, isize) {
        match self.of.plan.lines {
            Lines::Rows(step) => (self.a.line, step),
            Lines::Columns(step) => (step, self.a.line),
        }
    }

    /// The address of an element.
    #[inline(always)]
    fn at(&self, i: usize, j: usize) -> *const u8 {
        let (rs, cs) = self.strides();
        let by = i as isize * rs + j as isize * cs;
        offset(self.a.p, by, self.of.k.vector.element)
    }

    /// Scratch that depends on the number of columns.
    fn take(&self, bytes: usize) -> Option<Buffer> {
        match self.a.n {
            ..LONGEST => scratch::take(bytes, self.strides().1 == 0),
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
        let Part { of, a, x, .. } = &*self;
        if of.plan.a == Reads::Copied || x.1 == Reads::Copied {
            return self.tiles();
        }
        let scratch = of.plan.scratch(of.k.vector, (a.m, a.n));
        let bytes = scratch.bytes();
        let run = |p| {
            let places = scratch.at(p);
            // SAFETY: the matrix is a view, whose lines are found by its own strides, and the kernels are theirs; x has
            // an accumulator for every column, and there is a place for the sum of every row. The areas are those
            // that the plan asks for.
            unsafe {
                match of.plan.lines {
                    Lines::Rows(_) => self.rows(&places),
                    Lines::Columns(_) => self.columns(&places),
                }
            }
        };
        let mut stack = MaybeUninit::<Stack>::uninit();
        if bytes <= STACK {
            return run(stack.as_mut_ptr().cast());
        }
        match self.take(bytes) {
            Some(mut buffer) => run(buffer.as_mut_ptr()),
            // Not without end: this may be a tile.
            None if a.n > TILE_SEGMENTS * SEGMENT => self.tiles(),
            None => self.row_by_row(),
        }
    }
}

/// Bytes of scratch on the stack.
const STACK: usize = 2 << 10;

#[repr(align(64))]
struct Stack(#[expect(dead_code, reason = "used through its address")] [u8; STACK]);

impl Product<'_> {
    /// The place of row i in `p`: in y, or in accumulators if these are the results.
    #[inline(always)]
    fn row(&self, p: *mut u8, i: usize) -> *mut u8 {
        let Vector { element, acc, .. } = self.k.vector;
        match self.plan.writes {
            Writes::Y => p.wrapping_add(i * acc),
            _ => offset(p, i as isize * self.y_stride, element).cast_mut(),
        }
    }
}

impl Part<'_> {
    #[inline(always)]
    fn call(&self) -> Call {
        let Part { of: Product { plan, conj, .. }, a, x, .. } = self;
        let mut call = Call::new(*a, *conj, x.0, core::ptr::null_mut());
        call.prefetch = plan.args.prefetch as isize;
        (call.back, call.prefetch_next) = (plan.lines.reversed(), plan.args.prefetch_next);
        call
    }

    /// Whether nothing is to be done with the sums of a segment.
    #[inline(always)]
    fn sums_alone(&self) -> bool {
        self.of.plan.writes == Writes::Y && matches!(self.out, Out::Rows(_))
    }

    /// Where the sums of rows from i on are computed: in their place, if nothing remains to be done there.
    #[inline(always)]
    fn sums(&self, i: usize, places: &Scratch<*mut u8>) -> *mut u8 {
        match self.out {
            Out::Rows(p) if self.of.plan.writes == Writes::Y => self.of.row(p, i),
            _ => places.sums,
        }
    }

    /// Where those of their first segment go, and the accumulators to those of the next one, if a block of rows has `ld`.
    #[inline(always)]
    fn lines(&self, i: usize, ld: usize, places: &Scratch<*mut u8>) -> (*mut u8, usize) {
        match self.out {
            Out::Segments { p, ld } => (p.wrapping_add(i * self.of.k.vector.acc), ld),
            _ if self.a.n <= SEGMENT => (self.sums(i, places), 0),
            _ => (places.lines, ld),
        }
    }

    /// Rules 4 and 6 for rows `i .. i + m`, of which `count` segments have their sums in the places, `ld` apart.
    ///
    /// # Safety
    /// They have, or in y for one segment if the plan says so; there are areas for their levels and the result, and the
    /// rows are this part's.
    #[inline(always)]
    unsafe fn finish(
        &self,
        (i, m): (usize, usize),
        count: usize,
        ld: usize,
        places: &Scratch<*mut u8>,
    ) {
        let Out::Rows(y) = self.out else { return };
        let Product { k, y_stride: stride, alpha, beta, .. } = self.of;
        let sums = self.sums(i, places);
        // SAFETY: the caller's: the areas are good for m rows of all segments and of the levels, and y has these rows.
        unsafe {
            if count > 1 {
                levels(k, places.lines, m, ld, count, places.spare, sums);
            }
            if self.of.plan.writes != Writes::Y {
                let (y, stride, alpha, beta) = (self.of.row(y, i), *stride, *alpha, *beta);
                (k.finish)(&Finish { sums, m, y, stride, alpha, beta });
            }
        }
    }

    /// Lines are rows, which run backwards as x does if they are reversed.
    ///
    /// # Safety
    /// a is good, x for n accumulators, the places are those of the plan for m rows, and y has as many.
    #[inline(always)]
    unsafe fn rows(&self, places: &Scratch<*mut u8>) {
        let (Product { k, plan, .. }, Window { m, n, .. }) = (self.of, self.a);
        let (streams, step) = plan.row_blocks(k.vector, (m, n), self.sums_alone());
        let mut call = self.call();
        if call.back {
            call.x = call.x.wrapping_add((n - 1) * k.vector.acc);
        }
        let kernel = (k.rows)(n, call.back);
        let mut some_rows = |i, count| {
            // SAFETY: the caller's, whose rows these are: no more than the places are good for.
            unsafe { self.some_rows(kernel, (i, count), &mut call, places) }
        };
        // Loops without `step_by`, which divides: that takes as long as a few rows.
        let each = if streams == 1 { m } else { m / streams };
        let mut at = 0;
        while at < each {
            for s in 0..streams {
                some_rows(s * each + at, (each - at).min(step));
            }
            at += step;
        }
        // The rows beyond the last stream.
        let mut i = streams * each;
        while i < m {
            some_rows(i, (m - i).min(step));
            i += step;
        }
    }

    /// Rows `i .. i + count`.
    ///
    /// # Safety
    /// As [`rows`](Self::rows), and the places are good for so many.
    #[inline(always)]
    unsafe fn some_rows(
        &self,
        kernel: Kernel,
        (i, count): (usize, usize),
        call: &mut Call,
        places: &Scratch<*mut u8>,
    ) {
        let ld = self.of.plan.args.row_ld();
        call.a.p = self.at(i, 0);
        call.a.m = count;
        (call.out, call.ld) = self.lines(i, ld, places);
        // SAFETY: the caller's: the rows are good, x for n, and there are places for the sums of their segments.
        unsafe {
            kernel(call);
            self.finish((i, count), self.a.n.div_ceil(SEGMENT), ld, places);
        }
    }

    /// Lines are columns.
    ///
    /// # Safety
    /// As [`rows`](Self::rows).
    #[inline(always)]
    unsafe fn columns(&self, places: &Scratch<*mut u8>) {
        let (Product { k, plan, .. }, Window { m, n, line, .. }) = (self.of, self.a);
        let args = &plan.args;
        let v = k.vector;
        let ld = args.column_ld((m, n), v.width);
        let mut call = self.call();
        (call.stack, call.stack_ld) = (places.stack, ld);
        // Columns of one offset are cut where vectors are aligned.
        let first = match args.tiles {
            Tiles::FewRows(_) => 0,
            _ => head(&call.a, v).min(m),
        };
        let distance = (args.prefetch >> v.element.trailing_zeros()) as isize;
        let next_segment = SEGMENT as isize * line;
        let count = n.div_ceil(SEGMENT);
        let mut i = 0;
        while i < m {
            call.head = if i == 0 { first } else { 0 };
            let rows = plan.column_block(v, (m, n), call.head, self.sums_alone()).min(m - i);
            call.a = Window { p: self.at(i, 0), m: rows, n: n.min(SEGMENT), line };
            let (out, next_out) = self.lines(i, ld, places);
            (call.x, call.out) = (self.x.0, out);
            for s in 0..count {
                if s + 1 == count {
                    call.a.n = n - s * SEGMENT;
                }
                let kernel = match args.tiles {
                    Tiles::FewRows(_) if call.a.n == SEGMENT => {
                        call.prefetch = if args.prefetch_next { next_segment } else { distance };
                        k.col_few_rows
                    }
                    Tiles::Memory(_) => {
                        call.prefetch = distance;
                        k.col_memory
                    }
                    _ => {
                        // What is read next: the next segment of these rows, or further rows.
                        call.prefetch = match args.prefetch {
                            0 => 0,
                            _ if s + 1 < count => next_segment,
                            _ => distance,
                        };
                        k.col_registers
                    }
                };
                // SAFETY: the caller's: these rows and columns are good, x for as many; there are places for the sums
                // of all segments of the rows, and for the lines of the stack.
                unsafe { kernel(&call) };
                call.a.p = offset(call.a.p, next_segment, v.element);
                call.x = call.x.wrapping_add(SEGMENT * v.acc);
                call.out = call.out.wrapping_add(next_out * v.acc);
            }
            // SAFETY: the caller's; the sums of all segments of these rows are there.
            unsafe { self.finish((i, rows), count, ld, places) };
            i += rows;
        }
    }

    /// Elements of which no two are neighbours, or for whose sums there is no memory: some rows of some segments at a time
    /// are copied together, in the order of memory, while they are in the first-level cache.
    #[inline(never)]
    fn tiles(&self) {
        let Part { of, a: Window { m, n, .. }, out, .. } = *self;
        let (k, v, count) = (of.neighbours, of.k.vector, n.div_ceil(SEGMENT));
        let by_segments = matches!(out, Out::Segments { .. });
        let own_x = !self.x_in_order();
        let ((rows, segments), scratch) = of.plan.copied(v, (m, n), by_segments, own_x);
        let Some(mut buffer) = scratch::take(scratch.bytes(), false) else {
            return self.row_by_row();
        };
        let places = scratch.at(buffer.as_mut_ptr());
        let by_rows = of.plan.lines.are_rows();
        let lines = if by_rows { Lines::Rows(1) } else { Lines::Columns(1) };
        // A tile is small: the sums of its columns stay in registers.
        let VectorArgs { rows: interleaved, streams, .. } = of.plan.args;
        let args = VectorArgs { rows: interleaved.min(rows), streams, ..VectorArgs::CACHED };
        let plan = VectorPlan { args, lines, a: Reads::InPlace, x: Reads::InPlace, ..of.plan };
        let tile = Product { plan, k, ..*of };
        let (rs, cs) = self.strides();
        let one = |i: usize, c: usize, out: Out| {
            let (h, w) = ((m - i).min(rows), (n - c * SEGMENT).min(segments * SEGMENT));
            let from = self.at(i, c * SEGMENT);
            // SAFETY: the rows and columns are the view's; the areas are good for as many elements, and for the
            // entries of a segment.
            unsafe {
                match by_rows {
                    true => gather(of.isa, from, (h, rs), (w, cs), v.element, places.copy),
                    false => gather(of.isa, from, (w, cs), (h, rs), v.element, places.copy),
                }
                if own_x {
                    self.copy_x(c * SEGMENT, w, places.x);
                }
            }
            let line = if by_rows { w } else { h };
            let x = match own_x {
                true => places.x.cast_const(),
                false => self.x.0.wrapping_add(c * SEGMENT * v.acc),
            };
            let a = Window { p: places.copy.cast_const(), line: line as isize, m: h, n: w };
            Part { of: &tile, a, x: (x, Reads::InPlace), out }.run();
        };
        let y = match out {
            Out::Rows(y) => y,
            Out::Segments { p, ld } => {
                return (0..count).for_each(|c| {
                    one(0, c, Out::Segments { p: p.wrapping_add(c * ld * v.acc), ld });
                });
            }
        };
        for i in (0..m).step_by(rows) {
            if count <= segments {
                one(i, 0, Out::Rows(of.row(y, i)));
                continue;
            }
            let h = rows.min(m - i);
            let mut tree = Tree::new(k, count, h, places.lines);
            for c in (0..count).step_by(segments) {
                one(i, c, Out::Segments { p: tree.next(k), ld: h });
                // SAFETY: the sums of these segments are there, and the area is good for the tree.
                (c..count.min(c + segments)).for_each(|_| unsafe { tree.push(k) });
            }
            // SAFETY: the sums of all segments are there; these rows are the part's.
            unsafe {
                tree.finish(k, self.sums(i, &places));
                self.finish((i, h), 1, h, &places);
            }
        }
    }

    /// On the stack alone, where there is no memory for a tile.
    #[cold]
    #[inline(never)]
    fn row_by_row(&self) {
        let Part { of, a: Window { m, n, .. }, out, .. } = *self;
        let Product { neighbours: k, conj, plan, y_stride: stride, alpha, beta, .. } = *of;
        let Vector { element, acc, .. } = k.vector;
        let columns = self.strides().1;
        let mut stack = Place::NEW;
        for i in 0..m {
            // SAFETY: the row is the view's, and the place good for a segment.
            let a = &|j, w, to| unsafe {
                gather(of.isa, self.at(i, j), (1, 0), (w, columns), element, to);
            };
            // SAFETY: x has these entries, and the place is good for a segment.
            let x = &|j, w, to| unsafe { self.copy_x(j, w, to) };
            let row = Row { k, conj, n, a, x };
            // SAFETY: the row's segments are the part's, the kernels those of neighbours, and there is a place for
            // the sum of the row, or of each of its segments.
            unsafe {
                match out {
                    Out::Segments { p, ld } => (0..n.div_ceil(SEGMENT)).for_each(|s| {
                        row.segment(&mut stack, s, p.wrapping_add((s * ld + i) * acc));
                    }),
                    Out::Rows(y) => {
                        let (sums, y) = (row.sum(&mut stack), of.row(y, i));
                        match plan.writes {
                            Writes::Y => y.copy_from_nonoverlapping(sums, acc),
                            _ => (k.finish)(&Finish { sums, m: 1, y, stride, alpha, beta }),
                        }
                    }
                }
            }
        }
    }

    /// Whether x has accumulators in the order of the columns.
    fn x_in_order(&self) -> bool {
        self.x.1 != Reads::Copied && !self.of.plan.lines.reversed()
    }

    /// Copies `w` entries of x from column j on as accumulators.
    ///
    /// # Safety
    /// They are there, and `to` is good for them.
    unsafe fn copy_x(&self, j: usize, w: usize, to: *mut u8) {
        let (k, at, stride) = (self.of.k, j as isize, self.of.x_stride);
        let Vector { element, acc, .. } = k.vector;
        // SAFETY: the caller's: x is good for these entries, at the places that its stride and its order say.
        unsafe {
            match self.x {
                (x, Reads::Copied) => (k.widen)(offset(x, at * stride, element), stride, w, to),
                (x, _) => {
                    let back = self.of.plan.lines.reversed();
                    let (first, step) =
                        if back { (self.a.n as isize - 1 - at, -1) } else { (at, 1) };
                    gather(self.of.isa, offset(x, first, acc), (1, 0), (w, step), acc, to);
                }
            }
        }
    }
}
