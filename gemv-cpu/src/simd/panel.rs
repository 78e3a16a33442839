//! Products with several right-hand sides, and batches, without types: does what their [plan](super::plan) says.

use core::marker::PhantomData;

use gemv_core::Accumulator;
use gemv_core::ndarray::{ArrayView3, ArrayViewMut3};
use gemv_core::order::{LANES, SEGMENT};

use super::element::{CpuElement, CpuTimes, Reader};
use super::entry::{Call, EntryPoints, Finish, FinishBlock, RhsKernel, Widen};
use super::gather::gather;
use super::isa::Isa;
use super::narrow::{NARROW, NarrowCall};
use super::ops::Scalar;
use super::plan::{
    Along, Kernels, L2, Lines, PanelArgs, PanelKernel, PanelOperands, PanelPlan, Reads, Scratch,
    Stack, UNIT, Writes,
};
use super::product::offset;
use super::scratch::{self, Buffer};
use super::sums::{Place, Row, levels};
use super::window::{COLUMNS, RhsCall, Window};

impl Stack {
    /// The address of an element of `size` bytes.
    #[inline(always)]
    fn at(&self, index: [usize; 3], size: usize) -> *const u8 {
        let [b, i, j] = index.map(|i| i as isize);
        let [bs, rs, cs] = self.strides;
        offset(self.p, b * bs + i * rs + j * cs, size)
    }
}

/// `Y = alpha A X + beta Y` for each entry of a batch, with its operands in the host's memory, and how it is computed.
pub(crate) struct Gemm<'a> {
    isa: Isa,
    pub(crate) plan: PanelPlan,
    /// The kernels that read the matrix, or the copies of its lines.
    k: &'static EntryPoints,
    /// The kernels of the vectors' type, for X and Y.
    v: &'static EntryPoints,
    /// Copies elements of the matrix as accumulators.
    widen: Widen,
    /// The kernel for several columns of X, if there is one.
    several: Option<RhsKernel>,
    conj: bool,
    alpha: Scalar,
    beta: Scalar,
    operands: PhantomData<&'a mut u8>,
}

/// Rows of a cut matrix that are read side by side.
const ROWS: usize = 16;

/// Bytes of a cut matrix that may lie in the caches: larger ones are prefetched.
const CACHED: usize = 2 << 20;

// SAFETY: it reads elements that nothing writes while it lives; only its parts write, each a place of its own.
unsafe impl Sync for Gemm<'_> {}

impl<'a> Gemm<'a> {
    /// # Panics
    /// If the shapes do not fit.
    #[expect(clippy::too_many_arguments, reason = "a product has them")]
    pub(crate) fn new<T: CpuTimes<V>, V: CpuElement>(
        isa: Isa,
        args: PanelArgs,
        alpha: V::Acc,
        a: ArrayView3<'a, T>,
        conj: bool,
        x: ArrayView3<'a, V>,
        beta: V::Acc,
        mut y: ArrayViewMut3<'a, V>,
    ) -> Gemm<'a> {
        let ((batch, m, n), columns) = (a.dim(), x.dim().2);
        assert!(x.dim() == (batch, n, columns) && y.dim() == (batch, m, columns));
        let stack =
            |p: *const u8, strides: &[isize]| Stack { p, strides: [0, 1, 2].map(|i| strides[i]) };
        let p = y.as_mut_ptr().cast_const().cast();
        let of = PanelOperands {
            batch,
            m,
            n,
            columns,
            a: stack(a.as_ptr().cast(), a.strides()),
            x: stack(x.as_ptr().cast(), x.strides()),
            y: stack(p, y.strides()),
            unscaled: alpha == V::Acc::ONE && beta == V::Acc::ZERO,
        };
        let v = V::kernels(isa, 1).expect("every type has kernels of stride one");
        let Reader { k, widen, narrow } = T::reader(isa);
        let real = (k.real)();
        let (several, rhs) = match (k.rhs, real.rhs) {
            (Some(rhs), _) => (Some(Reads::InPlace), Some(rhs)),
            // Not for pairs.
            (None, Some(rhs)) if k.vector.acc == real.vector.acc => {
                (Some(Reads::Widened), Some(rhs))
            }
            _ => (None, None),
        };
        let kernels = Kernels {
            vector: k.vector,
            element: size_of::<T>(),
            reads: !narrow,
            same: v.vector.same(),
            several,
            narrow: k.narrow.is_some() && args.narrow && n <= NARROW && !narrow,
        };
        let plan = PanelPlan::new(of, args, kernels);
        let several = rhs.map(|rhs| if plan.lines.are_rows() { rhs.rows } else { rhs.columns });
        let (alpha, beta, operands) = (Scalar::new(alpha), Scalar::new(beta), PhantomData);
        Gemm { isa, plan, k, v, widen, several, conj, alpha, beta, operands }
    }

    /// Bytes of an element of the matrix.
    fn element(&self) -> usize {
        self.plan.kernels.element
    }

    /// Bytes of an entry of X or Y.
    fn entry(&self) -> usize {
        self.v.vector.element
    }

    /// Elements between two lines.
    fn line(&self) -> isize {
        self.plan.of.a.strides[if self.plan.lines.are_rows() { 1 } else { 2 }]
    }

    /// The columns of segment s.
    fn width(&self, s: usize) -> usize {
        (self.plan.of.n - s * SEGMENT).min(SEGMENT)
    }

    /// Entries `from .. end` as one part. An X that they share is packed in `buffer` first, unless the part is one of
    /// segments: those of its parts pack what they read.
    pub(crate) fn panel(
        &self,
        (from, end): (usize, usize),
        segments: bool,
        buffer: &mut Option<Buffer>,
    ) -> Panel<'_> {
        let of = &self.plan.of;
        let x = if self.plan.x == Reads::InPlace {
            X::InPlace
        } else if end - from > 1 && of.x.strides[0] != 0 {
            X::ByEntry
        } else if segments {
            X::ByGroup
        } else {
            let bytes = of.packed_len().saturating_mul(self.k.vector.acc);
            *buffer = scratch::take(bytes, of.x_repeats());
            match buffer {
                None => X::Single,
                Some(buffer) => {
                    let to = buffer.as_mut_ptr();
                    // SAFETY: the buffer is good for a packed X.
                    unsafe { self.pack(from, (0, of.segments()), to) };
                    X::Packed(to)
                }
            }
        };
        let (rows, segments) = ((0, of.m), (0, of.segments()));
        Panel { g: self, entries: (from, end), rows, segments, x, partials: None }
    }

    /// Calls `f` with entry b as one part, which can be split by segments, and reduces their sums. Returns false, before
    /// anything is computed, if there is no memory for them.
    ///
    /// # Panics
    /// If there is one segment: then kernels may write Y itself.
    pub(crate) fn by_segments(&self, b: usize, f: impl FnOnce(Panel<'_>)) -> bool {
        let PanelOperands { m, columns, .. } = self.plan.of;
        let (k, ld, count) = (self.k, m.next_multiple_of(UNIT), self.plan.of.segments());
        assert!(count > 1);
        let line = columns * ld;
        let scratch = Scratch::of_segments(count, line * k.vector.acc);
        let Some(mut buffer) = scratch::take(scratch.bytes(), self.plan.of.a_repeats()) else {
            return false;
        };
        let Scratch { sums, lines, spare, .. } = scratch.at(buffer.as_mut_ptr());
        let all = self.panel((b, b + 1), true, &mut None);
        f(Panel { partials: Some(lines), ..all });
        // SAFETY: the parts have computed all sums; the areas are good for them, their levels and the result.
        unsafe {
            levels(k, lines, line, line, count, spare, sums);
            self.finish(sums, ld, b, (0, m));
        }
        true
    }

    /// Copies segments of X of entry b to their places in a packed one: segment after segment, and in each column after
    /// column.
    ///
    /// # Safety
    /// `to` is good for a packed X.
    unsafe fn pack(&self, b: usize, (from, end): (usize, usize), to: *mut u8) {
        let PanelOperands { columns, x: of, .. } = self.plan.of;
        for s in from..end {
            let (j, w) = (s * SEGMENT, self.width(s));
            for c in 0..columns {
                let x = of.at([b, j, c], self.entry());
                let at = (j * columns + c * w.next_multiple_of(UNIT)) * self.k.vector.acc;
                // SAFETY: X has these entries, and a packed one places for them.
                unsafe { (self.v.widen)(x, of.strides[1], w, to.wrapping_add(at)) };
            }
        }
    }

    /// The block as a kernel reads it: in its place, or with its lines copied together.
    ///
    /// # Safety
    /// The block is the product's, and `to` is good for a copy of it, with lines rounded up to a multiple of [`UNIT`].
    unsafe fn read(&self, a: Window<u8>, to: *mut u8) -> Window<u8> {
        let (Lines::Rows(step) | Lines::Columns(step)) = self.plan.lines;
        let (count, len) = if self.plan.lines.are_rows() { (a.m, a.n) } else { (a.n, a.m) };
        // SAFETY: the caller's: so many lines of so many elements are good, and so are places for them.
        unsafe {
            match self.plan.a {
                Reads::InPlace => a,
                Reads::Copied => {
                    gather(self.isa, a.p, (count, a.line), (len, step), self.element(), to);
                    Window { p: to, line: len as isize, ..a }
                }
                Reads::Widened => {
                    let ld = len.next_multiple_of(UNIT);
                    for l in 0..count {
                        let line = offset(a.p, l as isize * a.line, self.element());
                        let to = to.wrapping_add(l * ld * self.k.vector.acc);
                        (self.widen)(line, step, len, to);
                    }
                    Window { p: to, line: ld as isize, ..a }
                }
            }
        }
    }

    /// The kernel for one column of X, for `n` columns of the matrix.
    fn one(&self, n: usize) -> unsafe fn(&Call) {
        if self.plan.lines.are_rows() { (self.k.rows)(n, false) } else { self.k.col_registers }
    }

    /// Entries `from .. end`, whose X and Y are in place: a call of the kernel each.
    ///
    /// # Safety
    /// They are the product's, have one block of one segment, and the places are those of the plan.
    unsafe fn entries(&self, (from, end): (usize, usize), places: &Scratch<*mut u8>) {
        let PanelOperands { m, n, columns, a, x, y, .. } = self.plan.of;
        let (element, entry, line) = (self.element(), self.entry(), self.line());
        let (one, [_, x_row, x_ld], [_, out_row, out_column]) = (self.one(n), x.strides, y.strides);
        // The next entry meanwhile, if it is more than a few lines.
        let ahead = |by: isize, len: usize, size: usize| match (1 << 10..L2).contains(&(len * size))
        {
            true => by * size as isize,
            false => 0,
        };
        let several = self.plan.kernel == PanelKernel::Several;
        let short = several && !self.plan.lines.are_rows() && n <= LANES;
        let prefetch = match short && self.plan.a == Reads::InPlace {
            true => ahead(a.strides[0], m * n, element),
            false => 0,
        };
        let x_prefetch =
            if short && x_row == 1 { ahead(x.strides[0], n * columns, entry) } else { 0 };
        for b in from..end {
            let a = Window { p: a.at([b, 0, 0], element), line, m, n };
            let (x, out) = (x.at([b, 0, 0], entry), y.at([b, 0, 0], entry).cast_mut());
            // SAFETY: the caller's: the entry is one block, for a copy of which there is a place; X and Y have its columns,
            // whose entries are accumulators, and the stack is that of the plan.
            unsafe {
                let (a, stack) = (self.read(a, places.copy), places.stack);
                self.multiply(
                    one,
                    RhsCall {
                        a,
                        x,
                        x_row,
                        x_ld,
                        columns,
                        out,
                        out_row,
                        out_column,
                        prefetch,
                        x_prefetch,
                        stack,
                        stack_ld: 0,
                    },
                );
            }
        }
    }

    /// The sums of a block of one segment for all columns of X, by the plan's kernel or by `one`. The first columns are
    /// those with prefetches: those behind find the block in the caches.
    ///
    /// # Safety
    /// The block is good, X and the place of the sums for all columns, and the stack is that of the plan.
    #[inline(always)]
    unsafe fn multiply(&self, one: unsafe fn(&Call), all: RhsCall) {
        let (acc, a) = (self.k.vector.acc, all.a);
        let place = |c: usize| {
            let c = c as isize;
            (offset(all.x, c * all.x_ld, acc), offset(all.out, c * all.out_column, acc).cast_mut())
        };
        let prefetch = |c: usize| if c == 0 { all.prefetch } else { 0 };
        let Some(kernel) = self.several.filter(|_| self.plan.kernel == PanelKernel::Several) else {
            let args = &self.plan.args;
            for c in 0..all.columns {
                let (x, out) = place(c);
                let mut call = Call::new(a, self.conj, x, out);
                call.prefetch = prefetch(c);
                // The next rows, at whatever distance they are. The kernel for rows of at most 64 columns has no such
                // prefetches.
                call.prefetch_next = call.prefetch != 0 && args.prefetch_next && a.n > LANES;
                // SAFETY: the block is good, x for its columns, and out for the sums of its rows.
                unsafe { one(&call) };
            }
            return;
        };
        let most = self.plan.args.columns.clamp(1, COLUMNS);
        // Levels that are a multiple of 4 KiB apart would share the sets of the cache.
        let stack_ld = a.m.next_multiple_of(UNIT) + UNIT;
        for c in (0..all.columns).step_by(most) {
            let ((x, out), prefetch) = (place(c), prefetch(c));
            let columns = most.min(all.columns - c);
            // SAFETY: the block is good, X and the sums have these columns, and the stack is good for as many.
            unsafe { kernel(&RhsCall { x, out, columns, prefetch, stack_ld, ..all }) };
        }
    }

    /// Rows `i .. end` of entries `from .. to`, which are cut from one matrix: its rows are read from one end to the
    /// other. Entry after entry, they would be read in pieces of one segment.
    ///
    /// # Safety
    /// They are the product's, and nothing else uses these rows of Y.
    unsafe fn whole_rows(&self, (from, to): (usize, usize), (mut i, end): (usize, usize)) {
        let (of, entry) = (&self.plan.of, self.entry());
        let n = (to - from) * SEGMENT;
        let kernel = self.one(n);
        while i < end {
            let m = ROWS.min(end - i);
            let (a, x) = (of.a.at([from, i, 0], self.element()), of.x.at([from, 0, 0], entry));
            let out = of.y.at([from, i, 0], entry).cast_mut();
            let mut call = Call::new(Window { p: a, line: self.line(), m, n }, self.conj, x, out);
            call.ld = of.y.strides[0].unsigned_abs();
            if of.m * of.batch * SEGMENT * self.element() > CACHED {
                // The next rows, at whatever distance they are: any but 0 turns prefetches on.
                (call.prefetch, call.prefetch_next) = (1, true);
            }
            // SAFETY: the entries' rows follow each other, and so do their columns of X; sums of a row are one entry of Y
            // apart, which is an accumulator.
            unsafe { kernel(&call) };
            i += m;
        }
    }

    /// Rows `i .. end` of entry b, for the kernel that has whole rows.
    fn narrow_call(&self, b: usize, (i, end): (usize, usize)) -> NarrowCall {
        let last = |[_, rows, columns]: [isize; 3]| [rows, columns];
        let PanelOperands { n, columns, a, x, y, .. } = self.plan.of;
        NarrowCall {
            a: a.at([b, i, 0], self.element()),
            x: x.at([b, 0, 0], self.entry()),
            y: y.at([b, i, 0], self.entry()).cast_mut(),
            a_strides: last(a.strides),
            x_strides: last(x.strides),
            y_strides: last(y.strides),
            m: end - i,
            n,
            columns,
            alpha: self.alpha,
            beta: self.beta,
        }
    }

    /// Rule 6 for rows `i .. i + h` of entry b, whose sums are there. Columns of sums are `ld` apart.
    ///
    /// # Safety
    /// The sums are good for them, and nothing else uses these rows of Y.
    unsafe fn finish(&self, sums: *const u8, ld: usize, b: usize, (i, h): (usize, usize)) {
        let Gemm { v, alpha, beta, .. } = *self;
        let PanelOperands { columns, y, .. } = self.plan.of;
        let [_, rs, cs] = y.strides;
        let (ld, lines, len, line, stride) = match self.plan.writes {
            Writes::RowSums => (columns, h, columns, rs, cs),
            _ => (ld, columns, h, cs, rs),
        };
        let y = y.at([b, i, 0], self.entry()).cast_mut();
        // SAFETY: the caller's: the sums are good for these lines, which Y has.
        unsafe {
            (v.finish_block)(&FinishBlock { sums, ld, lines, len, y, line, stride, alpha, beta });
        }
    }
}

/// Where columns of X are read.
#[derive(Clone, Copy)]
enum X {
    InPlace,
    /// In a packed copy.
    Packed(*const u8),
    /// In a copy of a few segments, which each part makes before it computes them.
    ByGroup,
    /// In a copy that each part makes for one entry after the other.
    ByEntry,
    /// In their place, one column of one segment at a time: there is no memory for a copy.
    Single,
}

/// Some entries, rows or segments of a product.
pub(crate) struct Panel<'a> {
    g: &'a Gemm<'a>,
    entries: (usize, usize),
    rows: (usize, usize),
    segments: (usize, usize),
    x: X,
    /// Where sums of segments go, if they are not summed.
    partials: Option<*mut u8>,
}

// SAFETY: a part reads elements that nothing writes while it lives, and writes a target of its own.
unsafe impl Send for Panel<'_> {}

impl<'a> Panel<'a> {
    /// How many entries, rows or segments it has.
    pub(crate) fn len(&self, along: Along) -> usize {
        let (from, end) = match along {
            Along::Entries => self.entries,
            Along::Rows => self.rows,
            Along::Segments => self.segments,
        };
        end - from
    }

    fn range(&mut self, along: Along) -> &mut (usize, usize) {
        match along {
            Along::Entries => &mut self.entries,
            Along::Rows => &mut self.rows,
            Along::Segments => &mut self.segments,
        }
    }

    /// Entries, rows or segments `..at`, and the others.
    ///
    /// # Panics
    /// If there are not so many, or the part is none of [`Gemm::by_segments`] and is split by segments, or by others
    /// though it is one.
    pub(crate) fn split(self, along: Along, at: usize) -> (Self, Self) {
        assert!(along == Along::Entries || self.partials.is_some() == (along == Along::Segments));
        let (mut first, mut second) = (Panel { ..self }, self);
        let cut = first.range(along).0 + at;
        assert!(cut <= first.range(along).1);
        first.range(along).1 = cut;
        second.range(along).0 = cut;
        (first, second)
    }

    /// Computes it on the calling thread.
    pub(crate) fn run(&mut self) {
        let Panel { g, entries, rows, segments, x, .. } = *self;
        let (of, acc) = (&g.plan.of, g.k.vector.acc);
        match (g.plan.kernel, g.k.narrow) {
            (PanelKernel::Narrow, Some(kernel)) => {
                for b in entries.0..entries.1 {
                    // SAFETY: the rows are the product's and this part's alone. With alpha = 0 there is no part.
                    unsafe { kernel(&g.narrow_call(b, rows)) };
                }
                return;
            }
            // SAFETY: the entries and rows are the product's and this part's alone.
            (PanelKernel::WholeRows, _) => return unsafe { g.whole_rows(entries, rows) },
            _ if matches!(x, X::Single) => return self.row_by_row(),
            _ => {}
        }
        let group = if matches!(x, X::ByGroup) { g.plan.group() } else { usize::MAX };
        let packed = match x {
            X::ByEntry => of.packed_len(),
            X::ByGroup => of.columns * group * SEGMENT,
            X::InPlace | X::Packed(_) | X::Single => 0,
        };
        let h = g.plan.rows.min(rows.1 - rows.0).next_multiple_of(UNIT);
        let scratch = g.plan.scratch((h, packed), self.partials.is_none());
        let repeats = of.a_repeats() || packed > 0 && of.x_repeats();
        let Some(mut buffer) = scratch::take(scratch.bytes(), repeats) else {
            return self.row_by_row();
        };
        let places = scratch.at(buffer.as_mut_ptr());
        let in_place = g.plan.writes == Writes::Y && matches!(x, X::InPlace);
        if in_place && rows == (0, of.m) && of.m <= g.plan.rows {
            // SAFETY: the entries are the product's, and the areas are good for all rows.
            return unsafe { g.entries(entries, &places) };
        }
        for b in entries.0..entries.1 {
            let mut from = segments.0;
            while from < segments.1 {
                let some =
                    Panel { segments: (from, segments.1.min(from.saturating_add(group))), ..*self };
                let x = match x {
                    X::InPlace | X::Single => None,
                    X::Packed(p) => Some(p),
                    X::ByEntry | X::ByGroup => {
                        let all = places.x.wrapping_sub(from * SEGMENT * of.columns * acc);
                        // SAFETY: the area is good for these segments.
                        unsafe { g.pack(b, some.segments, all) };
                        Some(all.cast_const())
                    }
                };
                for i in (rows.0..rows.1).step_by(g.plan.rows) {
                    // SAFETY: the rows and segments are the view's and this part's; X is packed, if it has to be; the
                    // areas are good for so many rows.
                    unsafe { some.block(b, (i, g.plan.rows.min(rows.1 - i)), x, &places) };
                }
                from = some.segments.1;
            }
        }
    }

    /// On the stack alone, where there is no memory for copies and sums.
    #[cold]
    #[inline(never)]
    fn row_by_row(&self) {
        let Panel { g, entries, rows, segments, partials, .. } = *self;
        let Gemm { k, v, alpha, beta, .. } = *g;
        let of = &g.plan.of;
        let acc = k.vector.acc;
        // A kernel reads the matrix' own elements, or none does.
        let widens = g.element() != k.vector.element;
        let mut stack = Place::NEW;
        let of_rows = |b: usize| (rows.0..rows.1).map(move |i| (b, i));
        for (b, i) in (entries.0..entries.1).flat_map(of_rows) {
            let copy_a = |j: usize, w: usize, to: *mut u8| {
                let (p, step) = (of.a.at([b, i, j], g.element()), of.a.strides[2]);
                // SAFETY: the row is the product's, and the place good for a segment.
                unsafe {
                    match widens {
                        true => (g.widen)(p, step, w, to),
                        false => gather(g.isa, p, (1, 0), (w, step), g.element(), to),
                    }
                }
            };
            for c in 0..of.columns {
                let copy_x = |j: usize, w: usize, to: *mut u8| {
                    // SAFETY: the column is the product's, and the place good for a segment.
                    unsafe { (v.widen)(of.x.at([b, j, c], g.entry()), of.x.strides[1], w, to) }
                };
                let row = Row { k, conj: g.conj, n: of.n, a: &copy_a, x: &copy_x };
                let Some(p) = partials else {
                    let y = of.y.at([b, i, c], g.entry()).cast_mut();
                    // SAFETY: the copies are those of the row and the column, and the entry of Y is this part's.
                    unsafe {
                        let sums = row.sum(&mut stack);
                        (v.finish)(&Finish { sums, m: 1, y, stride: 1, alpha, beta });
                    }
                    continue;
                };
                let (ld, columns) = (of.m.next_multiple_of(UNIT), of.columns);
                let at = match g.plan.writes {
                    Writes::RowSums => i * columns + c,
                    _ => c * ld + i,
                };
                for s in segments.0..segments.1 {
                    let out = p.wrapping_add((s * columns * ld + at) * acc);
                    // SAFETY: the copies are those of the row and the column; the sums of all segments have a place.
                    unsafe { row.segment(&mut stack, s, out) };
                }
            }
        }
    }

    /// Rows `i .. i + h` of entry b.
    ///
    /// # Safety
    /// They are the product's, `x` is packed unless X is in place, and the places are those of the
    /// plan.
    unsafe fn block(
        &self,
        b: usize,
        (i, h): (usize, usize),
        x: Option<*const u8>,
        places: &Scratch<*mut u8>,
    ) {
        let g = self.g;
        let (acc, columns, writes) = (g.k.vector.acc, g.plan.of.columns, g.plan.writes);
        let Scratch { sums, lines, spare, .. } = *places;
        let count = g.plan.of.segments();
        // Sums of a segment from one row to the next.
        let row = if writes == Writes::RowSums { columns } else { 1 };
        // Sums of a segment, and accumulators between two columns and two segments of them.
        let (out, ld) = match self.partials {
            Some(p) => (p.wrapping_add(i * row * acc), g.plan.of.m.next_multiple_of(UNIT)),
            None => (if count > 1 { lines } else { sums }, h.next_multiple_of(UNIT)),
        };
        let (group, some) = g.plan.runs(h);
        for from in (self.segments.0..self.segments.1).step_by(group) {
            for r in (0..h).step_by(some) {
                let prefetch = match g.plan.args.prefetch_next && g.plan.several_by_rows() {
                    true => self.distance_of_next((r, some), (i, h), (from, group)),
                    false => g.plan.args.prefetch as isize,
                };
                for s in from..(from + group).min(self.segments.1) {
                    let out = out.wrapping_add((s * columns * ld + r * row) * acc);
                    // SAFETY: the rows and segments are the part's, as the caller says; out is good for these sums.
                    unsafe {
                        let rows = (i + r, some.min(h - r));
                        self.segment(b, rows, (s, prefetch), x, (out, ld), places);
                    }
                }
            }
        }
        if self.partials.is_some() || writes == Writes::Y {
            return;
        }
        // SAFETY: the caller's, whose places have the levels as well; the sums of all segments are there.
        unsafe {
            if count > 1 {
                let line = columns * ld;
                levels(g.k, lines, line, line, count, spare, sums);
            }
            g.finish(sums, ld, b, (i, h));
        }
    }

    /// Bytes from rows `r .. r + some` of the block of rows `i .. i + h` to the rows that are read next, where `from` is the
    /// first segment of a group.
    fn distance_of_next(
        &self,
        (r, some): (usize, usize),
        (i, h): (usize, usize),
        (from, group): (usize, usize),
    ) -> isize {
        let (rows, segments) = if r + some < h {
            (some as isize, 0)
        } else if from + group < self.segments.1 {
            // The next group, from the first rows of the block on.
            (-(r as isize), group as isize)
        } else if self.partials.is_some() && i + h == self.rows.1 {
            // The next group, from the first rows of all on.
            (self.rows.0 as isize - (i + r) as isize, group as isize)
        } else {
            // The next block.
            ((h - r) as isize, self.segments.0 as isize - from as isize)
        };
        (rows * self.g.line() + segments * SEGMENT as isize) * self.g.element() as isize
    }

    /// The sums of segment s for these rows and all columns of X, with prefetches at a distance.
    ///
    /// # Safety
    /// As [`block`](Self::block); `out` is good for the sums, with rows rounded up to a multiple of [`UNIT`].
    unsafe fn segment(
        &self,
        b: usize,
        (i, h): (usize, usize),
        (s, prefetch): (usize, isize),
        x: Option<*const u8>,
        (out, ld): (*mut u8, usize),
        places: &Scratch<*mut u8>,
    ) {
        let g = self.g;
        let PanelOperands { columns, a, x: of_x, y, .. } = g.plan.of;
        let (by_rows, writes, acc) = (g.plan.lines.are_rows(), g.plan.writes, g.k.vector.acc);
        let (j, w, entry) = (s * SEGMENT, g.width(s), g.entry());
        let (x, x_row, x_ld) = match x {
            None => (of_x.at([b, j, 0], entry), of_x.strides[1], of_x.strides[2]),
            Some(x) => {
                let ld = w.next_multiple_of(UNIT) as isize;
                (x.wrapping_add(j * columns * acc), 1, ld)
            }
        };
        let a = Window { p: a.at([b, i, j], g.element()), line: g.line(), m: h, n: w };
        // SAFETY: the block is the part's, as the caller says; the copy has a place for each element.
        let a = unsafe { g.read(a, places.copy) };
        let (out, out_row, out_column) = match writes {
            Writes::Y => (y.at([b, i, 0], entry).cast_mut(), y.strides[1], y.strides[2]),
            Writes::RowSums => (out, columns as isize, 1),
            Writes::Sums => (out, 1, ld as isize),
        };
        let several = g.plan.kernel == PanelKernel::Several;
        let ahead = g.plan.a == Reads::InPlace && (by_rows || several && w > LANES);
        // Any but 0 turns those of the next rows on.
        let next = usize::from(!several && w > LANES && g.plan.args.prefetch_next);
        let prefetch = if ahead { prefetch | next as isize } else { 0 };
        let (x_prefetch, stack, stack_ld) = (0, places.stack, 0);
        // SAFETY: the block is good, and so are its columns of X, packed or not; the sums have a place, as the caller says,
        // or are entries of Y; the stack is that of the plan.
        unsafe {
            g.multiply(
                g.one(w),
                RhsCall {
                    a,
                    x,
                    x_row,
                    x_ld,
                    columns,
                    out,
                    out_row,
                    out_column,
                    prefetch,
                    x_prefetch,
                    stack,
                    stack_ld,
                },
            );
        }
    }
}
