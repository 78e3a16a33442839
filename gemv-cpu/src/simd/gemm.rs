//! Products with several right-hand sides, and batches, without types: which kernel computes which block, and what
//! remains for the sums of segments.

use core::marker::PhantomData;

use gemv_core::Accumulator;
use gemv_core::ndarray::{ArrayView3, ArrayViewMut3};
use gemv_core::order::{LANES, SEGMENT};

use super::element::{CpuElement, CpuTimes, Reader};
use super::entry::{Call, EntryPoints, Finish, FinishBlock, RhsKernel, Widen};
use super::gemm_col::STACK;
use super::gemm_row::COLUMNS;
use super::isa::Isa;
use super::narrow::{NARROW, NarrowCall};
use super::ops::Scalar;
use super::product::{Lines, Strided, gather, offset};
use super::scratch;
use super::sums::{Place, Row, levels, spare_lines};
use super::window::{RhsCall, Window};

/// The arguments of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GemmPlan {
    /// Rows of a block, whose segments are computed one after the other.
    pub(crate) rows: usize,
    /// Columns of X for which a block is read from the caches.
    pub(crate) columns: usize,
    /// Prefetch distance in bytes, 0 for none.
    pub(crate) prefetch: usize,
    /// By rows: whether the rows that are read next are prefetched, in place of what lies at the distance.
    pub(crate) prefetch_next: bool,
    /// Whether matrices of few columns are for the kernel that has whole rows.
    pub(crate) narrow: bool,
}

/// A batch of matrices. Strides are in elements: entries, rows, columns.
#[derive(Clone, Copy)]
struct Stack {
    p: *const u8,
    strides: [isize; 3],
}

impl Stack {
    /// The address of an element of `size` bytes.
    #[inline(always)]
    fn at(&self, index: [usize; 3], size: usize) -> *const u8 {
        let [b, i, j] = index.map(|i| i as isize);
        let [bs, rs, cs] = self.strides;
        offset(self.p, b * bs + i * rs + j * cs, size)
    }

    fn transposed(self) -> Stack {
        let Stack { p, strides: [bs, rs, cs] } = self;
        Stack { p, strides: [bs, cs, rs] }
    }
}

/// `Y = alpha A X + beta Y` for each entry of a batch, with its operands in the host's memory.
pub(crate) struct Gemm<'a> {
    /// The kernels that read the matrix, or the copies of its lines.
    k: &'static EntryPoints,
    /// The kernels of the vectors' type, for X and Y.
    v: &'static EntryPoints,
    /// Bytes of an element of the matrix.
    element: usize,
    /// Copies elements of the matrix as accumulators.
    widen: Widen,
    /// The kernel for several columns of X; else each column has a call of the kernel for one.
    rhs: Option<RhsKernel>,
    plan: GemmPlan,
    conj: bool,
    batch: usize,
    m: usize,
    n: usize,
    columns: usize,
    a: Stack,
    x: Stack,
    y: Stack,
    alpha: Scalar,
    beta: Scalar,
    /// Whether lines are rows.
    by_rows: bool,
    /// Elements between two lines, and between two elements of a line.
    line: isize,
    step: isize,
    /// Whether lines are copied together before a kernel reads them.
    copies: bool,
    /// Whether the copies are accumulators, rounded up to whole vectors.
    widens: bool,
    /// Whether kernels read X in place, whose entries are then `x_row` accumulators apart.
    x_direct: bool,
    x_row: isize,
    /// Whether the sums of a row are neighbours; else those of a column are.
    row_sums: bool,
    /// Whether the sums are the results and kernels write them to Y.
    in_place: bool,
    /// The kernel for whole rows, which does all that is to be done for them.
    narrow: Option<unsafe fn(&NarrowCall)>,
    /// Rows of a block.
    rows: usize,
    operands: PhantomData<&'a mut u8>,
}

/// Blocks begin and vectors end at multiples of so many rows, and packed columns of X at multiples of so many entries.
const UNIT: usize = 16;

/// Bytes of a block that the first-level cache should hold, and that the second-level cache should hold.
const L1: usize = 16 << 10;
const L2: usize = 128 << 10;

/// Bytes of X that some rows are multiplied with before the next rows are.
const X_BYTES: usize = 128 << 10;

/// Bytes of a row of accumulators up to which the columns of X are computed one by one.
const SHORT_ROW: usize = 512;

/// Rows of a cut matrix that are read side by side.
const ROWS: usize = 16;

/// Bytes of a cut matrix that may lie in the caches: larger ones are prefetched.
const CACHED: usize = 2 << 20;

/// Rows that the row kernel takes through several segments, a multiple of its tiles: for a few columns of X, and for
/// more, whose segments come from the second-level cache more slowly.
const SOME: [usize; 2] = [6, 12];

/// Of matrices by rows that are cut by segments though there are rows enough: most rows, and least bytes of X. Such an X is larger
/// than the second-level cache, and would be read again for each block of rows.
const WIDE_ROWS: usize = 512;
const WIDE_X: usize = 1 << 20;

/// Most bytes of sums, and most columns of X times tasks: one task adds the sums of all segments at the end.
const WIDE_SUMS: usize = 64 << 20;
const WIDE_COLUMNS: usize = 64;

// SAFETY: it reads elements that nothing writes while it lives; only its parts write, each a place of its own.
unsafe impl Sync for Gemm<'_> {}

impl<'a> Gemm<'a> {
    /// # Panics
    /// If the shapes do not fit.
    #[expect(clippy::too_many_arguments, reason = "a product has them")]
    pub(crate) fn new<T: CpuTimes<V>, V: CpuElement>(
        isa: Isa,
        plan: GemmPlan,
        alpha: V::Acc,
        a: ArrayView3<'a, T>,
        conj: bool,
        x: ArrayView3<'a, V>,
        beta: V::Acc,
        mut y: ArrayViewMut3<'a, V>,
    ) -> Gemm<'a> {
        let ((batch, mut m, n), mut columns) = (a.dim(), x.dim().2);
        assert!(x.dim() == (batch, n, columns) && y.dim() == (batch, m, columns));
        let strides = |s: &[isize]| [s[0], s[1], s[2]];
        let p = y.as_mut_ptr().cast_const().cast();
        let mut y = Stack { p, strides: strides(y.strides()) };
        let mut a = Stack { p: a.as_ptr().cast(), strides: strides(a.strides()) };
        let mut x = Stack { p: x.as_ptr().cast(), strides: strides(x.strides()) };
        let v = V::kernels(isa, 1).expect("every type has kernels of stride one");
        let Reader { k, widen, narrow } = T::reader(isa);
        let whole_rows = k.narrow.filter(|_| plan.narrow && n <= NARROW && !narrow);
        let small = m.max(n) <= SEGMENT && k.rhs.is_some() && !narrow && whole_rows.is_none();
        let wide = n <= k.width || n <= LANES && columns >= k.width / 2;
        if small && a.strides[1] != 1 && x.strides[2] == 1 && columns > 1 && wide {
            // Small matrices by rows: vectors of neighbouring columns of X, whose sums need no halving within a
            // vector. Real products commute. Not where a row has several terms of a lane: there it is several times slower.
            (a, x, y) = (x.transposed(), a.transposed(), y.transposed());
            (m, columns) = (columns, m);
        }
        let [_, rs, cs] = a.strides;
        let (by_rows, step) = match Lines::of(&Strided { p: a.p, m, n, rs, cs }) {
            Lines::Rows(step) => (true, step),
            Lines::Columns(step) => (false, step),
        };
        // Rows that are so short take less time to transpose than sums take to be halved within vectors.
        let (by_rows, step) = match small && by_rows && columns > 1 && n <= (4 * columns).min(LANES)
        {
            true => (false, rs),
            false => (by_rows, step),
        };
        let real = (k.real)();
        // Where rows are so short, the kernel for one column of X takes less time, called once for each column. Elements
        // of 16 bits it converts each time.
        let few = if k.rhs.is_some() { COLUMNS } else { COLUMNS / 2 };
        let short = by_rows && n * k.acc <= SHORT_ROW && columns <= few;
        let (rhs, converts) = match (k.rhs, real.rhs) {
            _ if columns == 1 || short => (None, false),
            (Some(rhs), _) => (Some(rhs), false),
            // Not for pairs.
            (None, Some(rhs)) if k.acc == real.acc => (Some(rhs), true),
            _ => (None, false),
        };
        let converts = converts || narrow;
        let rhs = rhs.map(|rhs| if by_rows { rhs.rows } else { rhs.columns });
        let unscaled = alpha == V::Acc::ONE && beta == V::Acc::ZERO;
        let near = x.strides[1] == 1 || n == 1;
        // Columns that are read once or twice are not worth a copy, nor are those of one segment by few rows. The
        // column kernel takes single entries.
        let x_direct = v.same
            && (whole_rows.is_some()
                || rhs.is_some() && !by_rows
                || near && (columns == 1 || n <= SEGMENT && m <= 256));
        // The row kernel writes single sums.
        let near = y.strides[1] == 1 || m == 1 || rhs.is_some() && by_rows;
        let mut gemm = Gemm {
            k,
            v,
            element: size_of::<T>(),
            widen,
            rhs,
            plan,
            conj,
            batch,
            m,
            n,
            columns,
            a,
            x,
            y,
            alpha: Scalar::new(alpha),
            beta: Scalar::new(beta),
            by_rows,
            line: if by_rows { rs } else { cs },
            step,
            copies: converts || step != 1,
            widens: converts || rhs.is_some(),
            x_direct,
            x_row: if x_direct { x.strides[1] } else { 1 },
            row_sums: rhs.is_some()
                && by_rows
                && y.strides[2].unsigned_abs() < y.strides[1].unsigned_abs(),
            in_place: unscaled && v.same && n <= SEGMENT && near,
            narrow: whole_rows,
            rows: 0,
            operands: PhantomData,
        };
        gemm.rows = gemm.block_rows();
        gemm
    }

    fn block_rows(&self) -> usize {
        let element = self.element;
        // Rows of one segment that fit so many bytes.
        let fit = |bytes: usize, element: usize| bytes / (self.n.min(SEGMENT) * element);
        let mut rows = self.plan.rows;
        if self.n <= SEGMENT {
            // Each block begins with a call.
            rows = rows.max(fit(L1, element));
            if self.rhs.is_some() && !self.by_rows {
                rows = rows.max(SEGMENT);
            }
        }
        if self.columns > COLUMNS {
            // X is larger than the block, and is read for each.
            rows = rows.max(64);
        }
        if self.copies {
            rows = rows.min(fit(L2, self.k.acc.max(element)));
        } else if self.rhs.is_none() && self.columns > 1 {
            // A block is read again for every column.
            rows = rows.min(fit(L2, element));
        }
        rows.min(self.m).next_multiple_of(UNIT)
    }

    /// Entries of the batch, rows, columns of the matrix and of X.
    pub(crate) fn dim(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.m, self.n, self.columns)
    }

    /// Bytes of an element of the matrix.
    pub(crate) fn element(&self) -> usize {
        self.element
    }

    /// Bytes of an entry of X or Y.
    fn entry(&self) -> usize {
        self.v.vector.element
    }

    /// Whether the matrices are walked row by row.
    pub(crate) fn by_rows(&self) -> bool {
        self.by_rows
    }

    /// Whether the entries are one matrix by rows, cut at every 256 columns, and the results are the sums of segments.
    pub(crate) fn is_cut(&self) -> bool {
        let next = |of: Stack| of.strides[0] == SEGMENT as isize;
        let rows = self.by_rows && !self.copies && self.n == SEGMENT && self.columns == 1;
        let here = self.x_direct && self.in_place && self.y.strides[0] >= 0;
        self.batch > 1 && rows && here && next(self.a) && next(self.x)
    }

    /// Whether so many tasks take segments rather than rows, even where there are rows enough, and even one task.
    pub(crate) fn is_wide(&self, tasks: usize) -> bool {
        let (x, count) = (self.packed_len() * self.k.acc, self.segments());
        let sums = count * self.columns * self.m * self.k.acc;
        let shares_x = self.batch > 1 && self.x.strides[0] == 0;
        self.by_rows
            && self.rhs.is_some()
            && self.m <= WIDE_ROWS
            && x > WIDE_X
            && sums <= WIDE_SUMS
            && tasks * self.columns <= WIDE_COLUMNS
            && count >= (4 * tasks).max(2)
            && !shares_x
    }

    fn segments(&self) -> usize {
        self.n.div_ceil(SEGMENT)
    }

    /// The columns of segment s.
    fn width(&self, s: usize) -> usize {
        (self.n - s * SEGMENT).min(SEGMENT)
    }

    /// How many segments of X the second-level cache should hold.
    fn group(&self) -> usize {
        (X_BYTES / (self.columns * SEGMENT * self.k.acc)).max(1)
    }

    /// Accumulators of a packed X.
    fn packed_len(&self) -> usize {
        self.columns.saturating_mul(self.n + UNIT)
    }

    /// Calls `f` with entries `b .. end` as one part. An X that they share is packed first, unless `later`: then each
    /// part packs what it reads, for parts that are segments.
    fn part(&self, (b, end): (usize, usize), later: bool, f: impl FnOnce(Panel<'_>)) {
        let part = |x| Panel {
            g: self,
            entries: (b, end),
            rows: (0, self.m),
            segments: (0, self.segments()),
            x,
            partials: None,
        };
        if self.x_direct {
            return f(part(X::Direct));
        }
        if end - b > 1 && self.x.strides[0] != 0 {
            return f(part(X::Own));
        }
        if later {
            return f(part(X::Later));
        }
        let bytes = self.packed_len().saturating_mul(self.k.acc);
        let Some(mut scratch) = scratch::take(bytes, self.x_repeats()) else {
            return f(part(X::Single));
        };
        let to = scratch.as_mut_ptr();
        // SAFETY: the scratch is good for a packed X.
        unsafe { self.pack(b, (0, self.segments()), to) };
        f(part(X::Packed(to)));
    }

    /// Whether X has numbers that stand for several: its packed copy may be any number of times as large.
    fn x_repeats(&self) -> bool {
        self.x.strides[1] == 0 || self.x.strides[2] == 0 && self.columns > 1
    }

    /// Calls `f` with entries `b .. end` as one part, which can be split by entries and by rows.
    pub(crate) fn panel(&self, entries: (usize, usize), f: impl FnOnce(Panel<'_>)) {
        self.part(entries, false, f);
    }

    /// Calls `f` with entry b as one part, which can be split by segments, and reduces their sums. Returns false, before
    /// anything is computed, if there is no memory for them.
    ///
    /// # Panics
    /// If there is one segment: then kernels may write Y itself.
    pub(crate) fn by_segments(&self, b: usize, f: impl FnOnce(Panel<'_>)) -> bool {
        let (k, ld, count) = (self.k, self.m.next_multiple_of(UNIT), self.segments());
        assert!(count > 1);
        let line = self.columns * ld;
        // Their sums, the result, and the levels above.
        let lines = count + 1 + spare_lines(count);
        let bytes = lines.saturating_mul(line).saturating_mul(k.acc);
        let Some(mut scratch) = scratch::take(bytes, self.is_repeated()) else { return false };
        let p = scratch.as_mut_ptr();
        self.part((b, b + 1), true, |part| f(Panel { partials: Some(p), ..part }));
        let sums = p.wrapping_add(count * line * k.acc);
        let spare = sums.wrapping_add(line * k.acc);
        // SAFETY: the parts have computed all sums; the scratch is good for the lines of the levels.
        unsafe {
            levels(k, p, line, line, count, spare, sums);
            self.finish(sums, ld, b, (0, self.m));
        }
        true
    }

    /// Whether the columns of the matrix are one that is repeated, of which there may be any number.
    fn is_repeated(&self) -> bool {
        self.a.strides[2] == 0
    }

    /// Copies segments of X of entry b to their places in a packed one: segment after segment, and in each column after
    /// column.
    ///
    /// # Safety
    /// `to` is good for a packed X.
    unsafe fn pack(&self, b: usize, (from, end): (usize, usize), to: *mut u8) {
        for s in from..end {
            let (j, w) = (s * SEGMENT, self.width(s));
            for c in 0..self.columns {
                let x = self.x.at([b, j, c], self.entry());
                let at = j * self.columns + c * w.next_multiple_of(UNIT);
                // SAFETY: the caller's; X has these entries.
                unsafe {
                    (self.v.widen)(x, self.x.strides[1], w, to.wrapping_add(at * self.k.acc))
                };
            }
        }
    }

    /// The same block with its lines copied together.
    ///
    /// # Safety
    /// The block is the product's, and `to` is good for it, with lines rounded up to a multiple of [`UNIT`].
    unsafe fn copied(&self, a: Window<u8>, to: *mut u8) -> Window<u8> {
        let (k, element) = (self.k, self.element);
        let (count, len) = if self.by_rows { (a.m, a.n) } else { (a.n, a.m) };
        // SAFETY: the caller's.
        unsafe {
            if !self.widens {
                gather(a.p, (count, self.line), (len, self.step), element, to);
                return Window { p: to, line: len as isize, ..a };
            }
            let ld = len.next_multiple_of(UNIT);
            for l in 0..count {
                let line = offset(a.p, l as isize * self.line, element);
                (self.widen)(line, self.step, len, to.wrapping_add(l * ld * k.acc));
            }
            Window { p: to, line: ld as isize, ..a }
        }
    }

    /// Entries `from .. end`, whose operands are all in place: a call of the kernel each.
    ///
    /// # Safety
    /// They are the product's, have one block of one segment, and the places are those of [`areas`](Self::areas).
    unsafe fn entries(&self, (from, end): (usize, usize), places: &[*mut u8; 6]) {
        let Gemm { k, columns, line, m, n, element, .. } = *self;
        let entry = self.entry();
        let one = if self.by_rows { (k.rows)(n, false) } else { k.col_registers };
        let most = self.plan.columns.clamp(1, COLUMNS);
        let stack_ld = m.next_multiple_of(UNIT) + UNIT;
        let [_, x_row, x_ld] = self.x.strides;
        let [_, out_row, out_column] = self.y.strides;
        // The next entry meanwhile, if it is more than a few lines.
        let ahead = |by: isize, len: usize, size: usize| match (1 << 10..L2).contains(&(len * size))
        {
            true => by * size as isize,
            false => 0,
        };
        let short = !self.by_rows && n <= LANES;
        let prefetch =
            if short && !self.copies { ahead(self.a.strides[0], m * n, element) } else { 0 };
        let x_prefetch =
            if short && x_row == 1 { ahead(self.x.strides[0], n * columns, entry) } else { 0 };
        for b in from..end {
            let mut a = Window { p: self.a.at([b, 0, 0], element), line, m, n };
            if self.copies {
                // SAFETY: the caller's.
                a = unsafe { self.copied(a, places[4]) };
            }
            let x = self.x.at([b, 0, 0], entry);
            let y = self.y.at([b, 0, 0], entry);
            let place = |c: usize| {
                let c = c as isize;
                (offset(x, c * x_ld, entry), offset(y, c * out_column, entry).cast_mut())
            };
            let Some(kernel) = self.rhs else {
                for (x, out) in (0..columns).map(place) {
                    // SAFETY: the caller's.
                    unsafe { one(&Call::new(a, self.conj, x, out)) };
                }
                continue;
            };
            for c in (0..columns).step_by(most) {
                let (x, out) = place(c);
                let columns = most.min(columns - c);
                let call = RhsCall {
                    a,
                    x,
                    x_row,
                    x_ld,
                    columns,
                    out,
                    out_row,
                    out_column,
                    prefetch: if c == 0 { prefetch } else { 0 },
                    x_prefetch,
                    stack: places[3],
                    stack_ld,
                };
                // SAFETY: the caller's.
                unsafe { kernel(&call) };
            }
        }
    }

    /// Rows `i .. end` of entries `from .. to`, which [are cut](Self::is_cut) from one matrix: its rows are read from
    /// one end to the other. Entry after entry, they would be read in pieces of one segment.
    ///
    /// # Safety
    /// They are the product's, and nothing else uses these rows of Y.
    unsafe fn whole_rows(&self, (from, to): (usize, usize), (mut i, end): (usize, usize)) {
        let n = (to - from) * SEGMENT;
        let kernel = (self.k.rows)(n, false);
        while i < end {
            let m = ROWS.min(end - i);
            let (a, x) =
                (self.a.at([from, i, 0], self.element), self.x.at([from, 0, 0], self.entry()));
            let out = self.y.at([from, i, 0], self.entry()).cast_mut();
            let mut call = Call::new(Window { p: a, line: self.line, m, n }, self.conj, x, out);
            call.ld = self.y.strides[0].unsigned_abs();
            if self.m * self.batch * SEGMENT * self.element > CACHED {
                // The next rows, at whatever distance they are: any but 0 turns prefetches on.
                (call.prefetch, call.prefetch_next) = (1, true);
            }
            // SAFETY: the caller's; sums of a row are one entry of Y apart, which is an accumulator.
            unsafe { kernel(&call) };
            i += m;
        }
    }

    /// Rows `i .. end` of entry b, for the kernel that has whole rows.
    fn narrow_call(&self, b: usize, (i, end): (usize, usize)) -> NarrowCall {
        let last = |[_, rows, columns]: [isize; 3]| [rows, columns];
        NarrowCall {
            a: self.a.at([b, i, 0], self.element),
            x: self.x.at([b, 0, 0], self.entry()),
            y: self.y.at([b, i, 0], self.entry()).cast_mut(),
            a_strides: last(self.a.strides),
            x_strides: last(self.x.strides),
            y_strides: last(self.y.strides),
            m: end - i,
            n: self.n,
            columns: self.columns,
            alpha: self.alpha,
            beta: self.beta,
        }
    }

    /// Rule 6 for rows `i .. i + h` of entry b, whose sums are there. Columns of sums are `ld` apart.
    ///
    /// # Safety
    /// The sums are good for them, and nothing else uses these rows of Y.
    unsafe fn finish(&self, sums: *const u8, ld: usize, b: usize, (i, h): (usize, usize)) {
        let Gemm { v, columns, y, alpha, beta, .. } = *self;
        let [_, rs, cs] = y.strides;
        let (ld, lines, len, line, stride) = match self.row_sums {
            true => (columns, h, columns, rs, cs),
            false => (ld, columns, h, cs, rs),
        };
        let y = y.at([b, i, 0], self.entry()).cast_mut();
        // SAFETY: the caller's.
        unsafe {
            (v.finish_block)(&FinishBlock { sums, ld, lines, len, y, line, stride, alpha, beta });
        }
    }

    /// Accumulators of scratch for a block of `h` rows: its sums; those of all segments; the levels above; partial sums
    /// of a kernel; a copy of a segment's lines; X.
    fn areas(&self, h: usize, x: usize) -> [usize; 6] {
        let (line, segments) = (self.columns * h, self.segments());
        let several = usize::from(segments > 1);
        let stack = if self.rhs.is_some() && !self.by_rows {
            STACK * COLUMNS.min(self.columns) * (h + UNIT)
        } else {
            0
        };
        let copy = if self.copies { h * self.n.min(SEGMENT).next_multiple_of(UNIT) } else { 0 };
        [line, several * segments * line, several * spare_lines(segments) * line, stack, copy, x]
    }
}

/// Where columns of X are read.
#[derive(Clone, Copy)]
enum X {
    /// In their place.
    Direct,
    /// In a packed copy.
    Packed(*const u8),
    /// In a copy of a few segments, which each part makes before it computes them.
    Later,
    /// In a copy that each part makes for one entry after the other.
    Own,
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
    /// How many entries, rows and segments it has.
    pub(crate) fn len(&self) -> (usize, usize, usize) {
        let len = |(from, end): (usize, usize)| end - from;
        (len(self.entries), len(self.rows), len(self.segments))
    }

    fn split(
        self,
        of: for<'p> fn(&'p mut Panel<'a>) -> &'p mut (usize, usize),
        at: usize,
    ) -> (Self, Self) {
        let mut first = Panel { ..self };
        let mut second = self;
        let cut = of(&mut first).0 + at;
        assert!(cut <= of(&mut first).1);
        of(&mut first).1 = cut;
        of(&mut second).0 = cut;
        (first, second)
    }

    /// Entries `..at`, and the others.
    ///
    /// # Panics
    /// If there are not so many.
    pub(crate) fn split_entries(self, at: usize) -> (Self, Self) {
        self.split(|p| &mut p.entries, at)
    }

    /// Rows `..at`, and the others.
    ///
    /// # Panics
    /// If there are not so many, or the part is one of segments.
    pub(crate) fn split_rows(self, at: usize) -> (Self, Self) {
        assert!(self.partials.is_none());
        self.split(|p| &mut p.rows, at)
    }

    /// Segments `..at`, and the others.
    ///
    /// # Panics
    /// If there are not so many, or the part is none of [`Gemm::by_segments`].
    pub(crate) fn split_segments(self, at: usize) -> (Self, Self) {
        assert!(self.partials.is_some());
        self.split(|p| &mut p.segments, at)
    }

    /// Computes it on the calling thread.
    pub(crate) fn run(&mut self) {
        let Panel { g, entries, rows, segments, x, .. } = *self;
        if let Some(kernel) = g.narrow {
            for b in entries.0..entries.1 {
                // SAFETY: the rows are the product's and this part's alone. With alpha = 0 there is no part.
                unsafe { kernel(&g.narrow_call(b, rows)) };
            }
            return;
        }
        if self.partials.is_none() && g.is_cut() {
            // SAFETY: the entries and rows are the product's and this part's alone.
            return unsafe { g.whole_rows(entries, rows) };
        }
        if matches!(x, X::Single) {
            return self.row_by_row();
        }
        let h = g.rows.min(rows.1 - rows.0).next_multiple_of(UNIT);
        let packed = match x {
            X::Own => g.packed_len(),
            X::Later => g.columns * g.group() * SEGMENT,
            X::Direct | X::Packed(_) | X::Single => 0,
        };
        let mut areas = g.areas(h, packed).map(|len| {
            // Not rounded up where that would be no number any more.
            len.checked_next_multiple_of(UNIT).unwrap_or(len).saturating_mul(g.k.acc)
        });
        if self.partials.is_some() {
            // Sums go to `partials`.
            areas[..3].fill(0);
        }
        let bytes = areas.iter().fold(0, |all: usize, &area| all.saturating_add(area));
        let repeated = g.is_repeated() || packed > 0 && g.x_repeats();
        let Some(mut scratch) = scratch::take(bytes, repeated) else {
            return self.row_by_row();
        };
        let mut end = scratch.as_mut_ptr();
        let places = areas.map(|len| {
            let place = end;
            end = end.wrapping_add(len);
            place
        });
        if g.in_place && g.x_direct && rows == (0, g.m) && g.m <= g.rows {
            // SAFETY: the entries are the product's, and the scratch is good for all rows.
            return unsafe { g.entries(entries, &places) };
        }
        let group = if matches!(x, X::Later) { g.group() } else { usize::MAX };
        for b in entries.0..entries.1 {
            let mut from = segments.0;
            while from < segments.1 {
                let some =
                    Panel { segments: (from, segments.1.min(from.saturating_add(group))), ..*self };
                // SAFETY: the scratch is good for what is packed.
                let x = unsafe {
                    match x {
                        X::Direct | X::Single => core::ptr::null(),
                        X::Packed(p) => p,
                        X::Own | X::Later => {
                            let all = places[5].wrapping_sub(from * SEGMENT * g.columns * g.k.acc);
                            g.pack(b, some.segments, all);
                            all.cast_const()
                        }
                    }
                };
                let mut i = rows.0;
                while i < rows.1 {
                    let count = g.rows.min(rows.1 - i);
                    // SAFETY: the rows and segments are the view's and this part's; X is packed, if it has to be; the
                    // scratch is good for so many rows.
                    unsafe { some.block(b, (i, count), x, &places) };
                    i += count;
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
        // A kernel reads the matrix' own elements, or none does.
        let widens = g.element != k.vector.element;
        let mut stack = Place::NEW;
        let of_rows = |b: usize| (rows.0..rows.1).map(move |i| (b, i));
        for (b, i) in (entries.0..entries.1).flat_map(of_rows) {
            let copy_a = |j: usize, w: usize, to: *mut u8| {
                let (p, step) = (g.a.at([b, i, j], g.element), g.a.strides[2]);
                // SAFETY: the row is the product's, and the place good for a segment.
                unsafe {
                    match widens {
                        true => (g.widen)(p, step, w, to),
                        false => gather(p, (1, 0), (w, step), g.element, to),
                    }
                }
            };
            for c in 0..g.columns {
                let copy_x = |j: usize, w: usize, to: *mut u8| {
                    // SAFETY: as above, for the column.
                    unsafe { (v.widen)(g.x.at([b, j, c], g.entry()), g.x.strides[1], w, to) }
                };
                let row = Row { k, conj: g.conj, n: g.n, a: &copy_a, x: &copy_x };
                let Some(p) = partials else {
                    let y = g.y.at([b, i, c], g.entry()).cast_mut();
                    // SAFETY: the copies are those of the row and the column, and the entry of Y is this part's.
                    unsafe {
                        let sums = row.sum(&mut stack);
                        (v.finish)(&Finish { sums, m: 1, y, stride: 1, alpha, beta });
                    }
                    continue;
                };
                let (ld, columns) = (g.m.next_multiple_of(UNIT), g.columns);
                let at = if g.row_sums { i * columns + c } else { c * ld + i };
                for s in segments.0..segments.1 {
                    let out = p.wrapping_add((s * columns * ld + at) * k.acc);
                    // SAFETY: as above; the sums of all segments have a place.
                    unsafe { row.segment(&mut stack, s, out) };
                }
            }
        }
    }

    /// Rows `i .. i + h` of entry b.
    ///
    /// # Safety
    /// They are the product's, `x` is packed or null for X in place, and the places are those of
    /// [`areas`](Gemm::areas).
    unsafe fn block(&self, b: usize, (i, h): (usize, usize), x: *const u8, places: &[*mut u8; 6]) {
        let g = self.g;
        let (acc, columns) = (g.k.acc, g.columns);
        let [sums, lines, spare, ..] = *places;
        let count = g.segments();
        // Sums of a segment, and accumulators between two columns and two segments of them.
        let (out, ld) = match self.partials {
            Some(p) => {
                let i = if g.row_sums { i * columns } else { i };
                (p.wrapping_add(i * acc), g.m.next_multiple_of(UNIT))
            }
            None => (if count > 1 { lines } else { sums }, h.next_multiple_of(UNIT)),
        };
        // By rows, some rows through as many segments as leave X in the second-level cache: so a row is read in long
        // runs.
        let (group, some) = match g.by_rows && g.rhs.is_some() {
            true => (g.group(), SOME[usize::from(columns > 4)]),
            false => (1, h),
        };
        for from in (self.segments.0..self.segments.1).step_by(group) {
            for r in (0..h).step_by(some) {
                let prefetch = match g.plan.prefetch_next && g.by_rows && g.rhs.is_some() {
                    true => self.distance_of_next((r, some), (i, h), (from, group)),
                    false => g.plan.prefetch as isize,
                };
                for s in from..(from + group).min(self.segments.1) {
                    let row = if g.row_sums { r * columns } else { r };
                    let out = out.wrapping_add((s * columns * ld + row) * acc);
                    // SAFETY: the caller's; out is good for these sums.
                    unsafe {
                        let rows = (i + r, some.min(h - r));
                        self.segment(b, rows, (s, prefetch), x, (out, ld), places);
                    }
                }
            }
        }
        if self.partials.is_some() || g.in_place {
            return;
        }
        // SAFETY: the caller's; the sums of all segments are there.
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
        (rows * self.g.line + segments * SEGMENT as isize) * self.g.element as isize
    }

    /// The sums of segment s for these rows and all columns of X, with prefetches at a distance.
    ///
    /// # Safety
    /// As [`block`](Self::block); `out` is good for the sums, with rows rounded up to a multiple of [`UNIT`].
    unsafe fn segment(
        &self,
        b: usize,
        (i, h): (usize, usize),
        (s, mut prefetch): (usize, isize),
        x: *const u8,
        (out, ld): (*mut u8, usize),
        places: &[*mut u8; 6],
    ) {
        let g = self.g;
        let Gemm { k, columns, .. } = *g;
        let (j, w, entry) = (s * SEGMENT, g.width(s), g.entry());
        let (x, x_ld) = match x.is_null() {
            true => (g.x.at([b, j, 0], entry), g.x.strides[2]),
            false => (x.wrapping_add(j * columns * k.acc), w.next_multiple_of(UNIT) as isize),
        };
        let mut a = Window { p: g.a.at([b, i, j], g.element), line: g.line, m: h, n: w };
        if g.copies {
            // SAFETY: the caller's; the copy has a place for each element.
            a = unsafe { g.copied(a, places[4]) };
            prefetch = 0;
        }
        let Some(kernel) = g.rhs else {
            let kernel = if g.by_rows { (k.rows)(w, false) } else { k.col_registers };
            for c in 0..columns {
                let out = match g.in_place {
                    true => g.y.at([b, i, c], entry).cast_mut(),
                    false => out.wrapping_add(c * ld * k.acc),
                };
                let mut call = Call::new(a, g.conj, offset(x, c as isize * x_ld, k.acc), out);
                if c == 0 && g.by_rows {
                    // The next rows, at whatever distance they are: any but 0 turns prefetches on. The kernel for rows
                    // of at most 64 columns has no such prefetches.
                    call.prefetch_next = g.plan.prefetch_next && !g.copies && w > LANES;
                    call.prefetch = if call.prefetch_next { 1 } else { prefetch };
                }
                // SAFETY: the caller's.
                unsafe { kernel(&call) };
            }
            return;
        };
        let (out, out_row, out_column) = match (g.in_place, g.row_sums) {
            (true, _) => (g.y.at([b, i, 0], entry).cast_mut(), g.y.strides[1], g.y.strides[2]),
            (false, true) => (out, columns as isize, 1),
            (false, false) => (out, 1, ld as isize),
        };
        let most = g.plan.columns.clamp(1, COLUMNS);
        for c in (0..columns).step_by(most) {
            let call = RhsCall {
                a,
                x: offset(x, c as isize * x_ld, k.acc),
                x_row: g.x_row,
                x_ld,
                columns: most.min(columns - c),
                out: offset(out, c as isize * out_column, k.acc).cast_mut(),
                out_row,
                out_column,
                // Those behind find the block in the caches.
                prefetch: if c == 0 && (g.by_rows || w > LANES) { prefetch } else { 0 },
                x_prefetch: 0,
                stack: places[3],
                // Levels that are a multiple of 4 KiB apart would share the sets of the cache.
                stack_ld: h.next_multiple_of(UNIT) + UNIT,
            };
            // SAFETY: the caller's; the stack is good for so many columns.
            unsafe { kernel(&call) };
        }
    }
}
