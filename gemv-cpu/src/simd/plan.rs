//! How a product is computed, decided before anything is read or written: a plan is a value, to be printed and compared.
//! [`product`](super::product) does what the plan for one vector says, [`panel`](super::panel) what that for several does,
//! and `run.rs` cuts them over threads.

use gemv_core::order::{LANES, SEGMENT};

use super::window::{COLUMNS, STACK, Vector, Window, lead};

/// Which elements are a line for a kernel, and how far apart those of a line are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    Rows(isize),
    Columns(isize),
}

impl Lines {
    /// By the smaller of the two strides, of axes that have more than one entry.
    #[inline(always)]
    pub(super) fn of((m, n): (usize, usize), (rs, cs): (isize, isize)) -> Lines {
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

    pub(super) fn are_rows(self) -> bool {
        matches!(self, Lines::Rows(_))
    }

    /// Whether x runs backwards as well.
    pub(super) fn reversed(self) -> bool {
        self == Lines::Rows(-1)
    }
}

/// How an operand reaches the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Where it lies.
    InPlace,
    /// Its elements are copied together.
    Copied,
    /// They are copied as accumulators.
    Widened,
}

/// What kernels write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// Y itself: the sums are the results.
    Y,
    /// Sums, those of a column together, for rule 6.
    Sums,
    /// The same, with those of a row together.
    RowSums,
}

/// What threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    Entries,
    Rows,
    /// Sums of segments, which are added at the end.
    Segments,
}

/// How a product is cut over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) along: Along,
    /// Entries of a batch at a time.
    pub(crate) entries: usize,
    pub(crate) tasks: usize,
    /// Cuts are at multiples of it.
    pub(crate) unit: usize,
    /// What is not cut further, for the sake of balance.
    pub(crate) least: usize,
}

/// Bytes of the matrix that are not cut further: some microseconds of work.
pub(crate) const LEAST: usize = 64 << 10;

/// Scratch: the bytes of each area, or its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scratch<T> {
    /// The sums of rows, before rule 6.
    pub(super) sums: T,
    /// Partial sums of a kernel.
    pub(super) stack: T,
    /// Sums of segments, line after line.
    pub(super) lines: T,
    /// The levels above them.
    pub(super) spare: T,
    /// A copy of a block of the matrix.
    pub(super) copy: T,
    /// Entries of X.
    pub(super) x: T,
}

impl Scratch<usize> {
    /// The sums of `count` segments of a line of so many bytes, their levels, and the result.
    pub(super) fn of_segments(count: usize, line: usize) -> Scratch<usize> {
        let lines = |lines: usize| lines.saturating_mul(line);
        let (lines, spare) = (lines(count), lines(spare_lines(count)));
        Scratch { sums: line.next_multiple_of(64), lines, spare, ..Scratch::default() }
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> usize {
        let Scratch { sums, stack, lines, spare, copy, x } = *self;
        [stack, lines, spare, copy, x].into_iter().fold(sums, usize::saturating_add)
    }

    /// The places of the areas, one behind the other.
    #[inline(always)]
    pub(super) fn at(&self, p: *mut u8) -> Scratch<*mut u8> {
        let stack = p.wrapping_add(self.sums);
        let lines = stack.wrapping_add(self.stack);
        let spare = lines.wrapping_add(self.lines);
        let copy = spare.wrapping_add(self.spare);
        Scratch { sums: p, stack, lines, spare, copy, x: copy.wrapping_add(self.copy) }
    }
}

/// Lines of scratch for the levels above so many segments.
pub(super) fn spare_lines(segments: usize) -> usize {
    segments.div_ceil(255) + 4
}

/// The lines of each level, where those of 256 are summed as soon as they are there.
pub(super) fn tree(count: usize) -> impl Iterator<Item = usize> {
    let all = std::iter::successors(Some(count), |&count| Some(count.div_ceil(SEGMENT)));
    all.take_while(|&count| count > 1).map(|count| count.min(SEGMENT))
}

/// Of the column kernels for one vector: where partial sums are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiles {
    Registers,
    /// In memory, for tiles of so many rows.
    Memory(usize),
    /// The same for a quarter of the lanes: short columns, in the order of memory.
    FewRows(usize),
}

/// The arguments of a kernel for one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorArgs {
    /// Rows that are interleaved segment by segment (row kernel).
    pub(crate) rows: usize,
    /// Blocks of rows, as far apart as possible, that are interleaved (row kernel): streams for the memory where rows
    /// are short.
    pub(crate) streams: usize,
    /// Of the column kernels.
    pub(crate) tiles: Tiles,
    /// Prefetch distance in bytes, 0 for none.
    pub(crate) prefetch: usize,
    /// Whether the next rows (row kernel) or the next segment (few rows) are prefetched instead. Not for rows of up to
    /// 64 columns, nor for a last segment of fewer. Rows that four at a time would pass over twice are then taken two
    /// at a time, where that is written (f64 on AVX-512).
    pub(crate) prefetch_next: bool,
}

impl VectorArgs {
    /// For matrices in the caches.
    pub(crate) const CACHED: VectorArgs = VectorArgs {
        rows: 16,
        streams: 1,
        tiles: Tiles::Registers,
        prefetch: 0,
        prefetch_next: false,
    };

    /// Rows of the scratch of the row kernel.
    #[inline(always)]
    pub(super) fn row_ld(&self) -> usize {
        self.rows.next_multiple_of(4)
    }

    /// Rows of a tile of the column kernels, rounded up to whole vectors, of which one may begin before the first row.
    #[inline(always)]
    pub(super) fn column_ld(&self, (m, n): (usize, usize), width: usize) -> usize {
        let step = match self.tiles {
            Tiles::Registers => (strip(n) + 1) * width,
            Tiles::Memory(rows) | Tiles::FewRows(rows) => rows + 2 * width,
        };
        // The width is a power of two.
        let up = |rows: usize| (rows + width - 1) & !(width - 1);
        up(step.min(up(m) + width))
    }
}

/// Vectors of rows for one call of the column kernel in registers. Many for a single segment: each call takes time. Few
/// for several segments: the sums of all of them are kept.
fn strip(n: usize) -> usize {
    if n <= SEGMENT { 16 } else { 4 }
}

/// Bytes of rows of one segment, or 64 rows, that are read before those of another stream.
const STREAM_BYTES: usize = 1 << 10;

/// Bytes of a column that make a stream.
const STREAM: usize = 8 << 10;

/// What a plan for one vector depends on. Strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VectorOperands {
    pub(super) a: *const u8,
    pub(super) dim: (usize, usize),
    pub(super) strides: (isize, isize),
    pub(super) x: *const u8,
    pub(super) x_stride: isize,
    pub(super) y_stride: isize,
    /// Whether alpha is 1 and beta 0.
    pub(super) unscaled: bool,
}

/// The rows of Y.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    InOrder,
    /// Columns upside down are columns, with y upside down.
    UpsideDown,
    /// All rows are the same: one sum.
    Same,
}

/// How `y = alpha A x + beta y` is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorPlan {
    pub(super) args: VectorArgs,
    pub(super) rows: Rows,
    pub(super) lines: Lines,
    pub(super) a: Reads,
    pub(super) x: Reads,
    /// Places before a copy of x: rows that are read by aligned vectors have x aligned as well.
    pub(super) x_first: usize,
    pub(super) writes: Writes,
}

impl VectorPlan {
    /// `by_twos` if there are kernels for lines of stride two.
    #[inline(always)]
    pub(super) fn new(
        of: &VectorOperands,
        args: VectorArgs,
        v: Vector,
        by_twos: bool,
    ) -> VectorPlan {
        let VectorOperands { a, dim: (m, n), strides: (rs, cs), x, x_stride, .. } = *of;
        let (rows, lines) = match Lines::of((m, n), (rs, cs)) {
            _ if m > 1 && rs == 0 => (Rows::Same, Lines::of((1, n), (rs, cs))),
            Lines::Columns(step) if step < 0 => (Rows::UpsideDown, Lines::Columns(-step)),
            lines => (Rows::InOrder, lines),
        };
        let own = match lines {
            Lines::Rows(1 | -1) | Lines::Columns(1) => true,
            Lines::Rows(2) | Lines::Columns(2) => by_twos,
            _ => false,
        };
        // A large enough matrix pays for an aligned copy of x.
        let lead = match lines {
            Lines::Rows(1) if rows == Rows::InOrder && m >= 32 && n >= LANES => {
                Some(lead(&Window { p: a, line: rs, m, n }, v, false))
            }
            _ => None,
        };
        let aligned = |lead: usize| (x.addr() + lead * v.acc).is_multiple_of(64);
        let in_place = !lines.reversed() && v.same() && (x_stride == 1 || n == 1);
        let unchanged = match rows {
            Rows::InOrder => of.unscaled && v.same() && (of.y_stride == 1 || m == 1),
            Rows::UpsideDown => of.unscaled && v.same() && of.y_stride == -1,
            Rows::Same => true,
        };
        let in_place = in_place && lead.is_none_or(aligned);
        let x_first = match lead {
            Some(lead) if !in_place => lead.wrapping_neg() & ((64 >> v.acc.trailing_zeros()) - 1),
            _ => 0,
        };
        VectorPlan {
            args,
            rows,
            lines,
            a: if own { Reads::InPlace } else { Reads::Copied },
            x: if in_place { Reads::InPlace } else { Reads::Widened },
            x_first,
            writes: if unchanged { Writes::Y } else { Writes::Sums },
        }
    }

    /// Rows if there are enough of them: then nothing is left to be done afterwards. Else segments. For columns
    /// segments come first, since a column is one stream as long as it is not cut.
    pub(crate) fn cut(&self, v: Vector, (m, n): (usize, usize), tasks: usize) -> Cut {
        let count = n.div_ceil(SEGMENT);
        let segments = match (self.lines, self.a) {
            (Lines::Rows(_), _) => m < tasks * 8 && count >= tasks,
            (_, Reads::InPlace) => count >= 2 * tasks || count == tasks,
            // Lines that are copied together first: a segment of all rows should fit the caches.
            _ => m < tasks * (512 / v.element) && count >= tasks,
        };
        if !segments {
            return self.cut_rows(v, (m, n), tasks);
        }
        let least = LEAST.div_ceil(m * SEGMENT * v.element);
        Cut { along: Along::Segments, entries: 1, tasks, unit: 1, least }
    }

    /// By rows, whatever they are: also where there is no memory for the sums of segments.
    pub(crate) fn cut_rows(&self, v: Vector, (m, n): (usize, usize), tasks: usize) -> Cut {
        let (unit, stream) = match self.lines {
            Lines::Rows(_) => (4, 4),
            Lines::Columns(_) => (v.width, STREAM / v.element),
        };
        let rows = (LEAST / (n * v.element)).max(stream.min(m / (16 * tasks)));
        let least = rows.next_multiple_of(unit).max(unit);
        Cut { along: Along::Rows, entries: 1, tasks, unit, least }
    }

    /// The scratch for a block whose lines are read in place.
    #[inline(always)]
    pub(super) fn scratch(&self, v: Vector, (m, n): (usize, usize)) -> Scratch<usize> {
        let args = &self.args;
        let (sums, ld, stack) = match self.lines {
            Lines::Rows(_) => (LANES.max(args.row_ld()), args.row_ld(), 0),
            Lines::Columns(_) => {
                let ld = args.column_ld((m, n), v.width);
                let lines = match args.tiles {
                    Tiles::Registers => 0,
                    Tiles::FewRows(_) => LANES / 4,
                    Tiles::Memory(_) => 6,
                };
                (ld, ld, lines * ld)
            }
        };
        let count = n.div_ceil(SEGMENT);
        let (lines, spare) = if count > 1 { (count * ld, spare_lines(count) * ld) } else { (0, 0) };
        let [sums, stack, lines, spare] = [sums, stack, lines, spare].map(|len| len * v.acc);
        Scratch { sums, stack, lines, spare, copy: 0, x: 0 }
    }

    /// How many streams of rows there are, and rows at a time, of lines that are rows; `sums_alone` if nothing is
    /// to be done with the sums of a segment.
    #[inline(always)]
    pub(super) fn row_blocks(
        &self,
        v: Vector,
        (m, n): (usize, usize),
        sums_alone: bool,
    ) -> (usize, usize) {
        let args = &self.args;
        let streams = if m >= args.streams * args.row_ld() { args.streams } else { 1 };
        let rows = match n <= SEGMENT {
            true if streams == 1 && sums_alone => m,
            true if streams == 1 => LANES,
            // More short rows at a time: each time begins with a call.
            true => (STREAM_BYTES / (n * v.element))
                .next_multiple_of(4)
                .clamp(args.rows.min(LANES), LANES),
            _ => args.rows,
        };
        (streams, rows)
    }

    /// Rows at a time, of lines that are columns, of which `head` come before the first aligned vector.
    #[inline(always)]
    pub(super) fn column_block(
        &self,
        v: Vector,
        (m, n): (usize, usize),
        head: usize,
        sums_alone: bool,
    ) -> usize {
        match self.args.tiles {
            Tiles::Registers if n <= SEGMENT && sums_alone => m,
            Tiles::Registers => head + strip(n) * v.width,
            Tiles::Memory(rows) | Tiles::FewRows(rows) => head + rows,
        }
    }

    /// Rows and segments of a tile that is copied together, and its scratch. `all` rows of one segment if the sums of a
    /// segment lie together; then the others are not needed. `own_x` if x is copied for each tile as well.
    ///
    /// Segments of rows are as many as are [`RUN`] bytes, but a power of two: the sums of 256 are added up at a time.
    pub(super) fn copied(
        &self,
        v: Vector,
        (m, n): (usize, usize),
        all: bool,
        own_x: bool,
    ) -> ((usize, usize), Scratch<usize>) {
        let (rows, segments) = match self.lines {
            _ if all => (m, 1),
            Lines::Columns(_) => (m.min(32), 1),
            Lines::Rows(_) => {
                let segments = (RUN / (SEGMENT * v.element)).clamp(1, TILE_SEGMENTS);
                let rows = TILE / (n.min(segments * SEGMENT) * v.element);
                (m.min(rows.clamp(4, 16) & !3), segments)
            }
        };
        let area = |bytes: usize| bytes.next_multiple_of(64);
        let (line, columns) = (if all { 0 } else { rows * v.acc }, n.min(segments * SEGMENT));
        let scratch = Scratch {
            sums: area(line),
            lines: line * tree(n.div_ceil(SEGMENT)).sum::<usize>(),
            copy: area(rows * columns * v.element),
            x: if own_x { columns * v.acc } else { 0 },
            ..Scratch::default()
        };
        ((rows, segments), Scratch { lines: area(scratch.lines), ..scratch })
    }
}

/// Most segments of a tile that is copied together, a power of two.
pub(super) const TILE_SEGMENTS: usize = 16;

/// Bytes of such a tile, and of one of its rows.
const TILE: usize = 64 << 10;
const RUN: usize = 16 << 10;

/// The arguments of a kernel for several right-hand sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PanelArgs {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    pub(super) p: *const u8,
    pub(super) strides: [isize; 3],
}

impl Stack {
    fn transposed(self) -> Stack {
        let Stack { p, strides: [bs, rs, cs] } = self;
        Stack { p, strides: [bs, cs, rs] }
    }
}

/// What a plan for several right-hand sides depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PanelOperands {
    pub(crate) batch: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    /// Of X.
    pub(super) columns: usize,
    pub(super) a: Stack,
    pub(super) x: Stack,
    pub(super) y: Stack,
    /// Whether alpha is 1 and beta 0.
    pub(super) unscaled: bool,
}

/// The kernels that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernels {
    /// Of the kernels that read the matrix, or the copies of its lines.
    pub(super) vector: Vector,
    /// Bytes of an element of the matrix.
    pub(super) element: usize,
    /// Whether a kernel reads such elements.
    pub(super) reads: bool,
    /// Whether entries of X and Y are their own accumulators.
    pub(super) same: bool,
    /// How the lines reach a kernel for several columns of X, if there is one.
    pub(super) several: Option<Reads>,
    /// Whether there is a kernel for whole rows.
    pub(super) narrow: bool,
}

/// Which kernel computes a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PanelKernel {
    /// That for whole rows of few columns, which does all that is to be done for them.
    Narrow,
    /// That for one column of X, over rows from one end to the other. The entries are these rows, cut at every 256
    /// columns, and the results are the sums of segments.
    WholeRows,
    /// That for one column of X, called for each.
    One,
    /// That for several.
    Several,
}

/// How `Y = alpha A X + beta Y` is computed for each entry of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PanelPlan {
    pub(crate) of: PanelOperands,
    pub(super) args: PanelArgs,
    pub(super) kernels: Kernels,
    pub(super) kernel: PanelKernel,
    pub(super) lines: Lines,
    pub(super) a: Reads,
    pub(super) x: Reads,
    pub(super) writes: Writes,
    /// Rows of a block.
    pub(super) rows: usize,
}

/// Blocks begin and vectors end at multiples of so many rows, and packed columns of X at multiples of so many entries.
pub(super) const UNIT: usize = 16;

/// Bytes of a block that the first-level cache should hold, and that the second-level cache should hold.
const L1: usize = 16 << 10;
pub(super) const L2: usize = 128 << 10;

/// Bytes of X that some rows are multiplied with before the next rows are.
const X_BYTES: usize = 128 << 10;

/// Bytes of a row of accumulators up to which the columns of X are computed one by one.
const SHORT_ROW: usize = 512;

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

/// Columns of X that cost about as much as to read the matrix.
const FREE: usize = 8;

impl PanelOperands {
    /// Small matrices by rows are transposed, with X and Y: vectors of neighbouring columns of X, whose sums need no
    /// halving within a vector. Real products commute. Not where a row has several terms of a lane: there it is several
    /// times slower.
    #[inline(always)]
    fn arrange(&mut self, kernels: &Kernels) {
        let PanelOperands { m, n, columns, a, x, y, .. } = *self;
        let width = kernels.vector.width;
        let wide = n <= width || n <= LANES && columns >= width / 2;
        let by_rows = a.strides[1] != 1 && x.strides[2] == 1 && columns > 1;
        if self.is_small(kernels) && by_rows && wide {
            (self.m, self.columns) = (columns, m);
            (self.a, self.x, self.y) = (x.transposed(), a.transposed(), y.transposed());
        }
    }

    /// Whether a call of the kernel for several columns computes an entry.
    fn is_small(&self, kernels: &Kernels) -> bool {
        let own = kernels.several == Some(Reads::InPlace) && kernels.reads;
        self.m.max(self.n) <= SEGMENT && own && !kernels.narrow
    }

    pub(super) fn segments(&self) -> usize {
        self.n.div_ceil(SEGMENT)
    }

    /// Accumulators of a packed X.
    pub(super) fn packed_len(&self) -> usize {
        self.columns.saturating_mul(self.n + UNIT)
    }

    /// Whether X has numbers that stand for several: its packed copy may be any number of times as large.
    pub(super) fn x_repeats(&self) -> bool {
        self.x.strides[1] == 0 || self.x.strides[2] == 0 && self.columns > 1
    }

    /// Whether the columns of the matrix are one that is repeated, of which there may be any number.
    pub(super) fn a_repeats(&self) -> bool {
        self.a.strides[2] == 0
    }
}

impl PanelPlan {
    #[inline(always)]
    pub(super) fn new(mut of: PanelOperands, args: PanelArgs, kernels: Kernels) -> PanelPlan {
        of.arrange(&kernels);
        let PanelOperands { batch, m, n, columns, a, x, y, unscaled } = of;
        let [_, rs, cs] = a.strides;
        let acc = kernels.vector.acc;
        // Rows that are so short take less time to transpose than sums take to be halved within vectors.
        let lines = match Lines::of((m, n), (rs, cs)) {
            Lines::Rows(_)
                if of.is_small(&kernels) && columns > 1 && n <= (4 * columns).min(LANES) =>
            {
                Lines::Columns(rs)
            }
            lines => lines,
        };
        let (by_rows, Lines::Rows(step) | Lines::Columns(step)) = (lines.are_rows(), lines);
        // Where rows are so short, the kernel for one column of X takes less time, called once for each column. Elements
        // of 16 bits it converts each time.
        let few = if kernels.several == Some(Reads::InPlace) { COLUMNS } else { COLUMNS / 2 };
        let short = by_rows && n * acc <= SHORT_ROW && columns <= few;
        let several = kernels.several.filter(|_| columns > 1 && !short);
        let a_reads = match several {
            _ if !kernels.reads => Reads::Widened,
            Some(reads) if step == 1 => reads,
            Some(_) => Reads::Widened,
            None if step == 1 => Reads::InPlace,
            None => Reads::Copied,
        };
        // Columns that are read once or twice are not worth a copy, nor are those of one segment by few rows. The
        // column kernel takes single entries.
        let near = x.strides[1] == 1 || n == 1;
        let x_in_place = kernels.same
            && (kernels.narrow
                || several.is_some() && !by_rows
                || near && (columns == 1 || n <= SEGMENT && m <= 256));
        // The row kernel writes single sums.
        let near = y.strides[1] == 1 || m == 1 || several.is_some() && by_rows;
        let writes = match several {
            _ if unscaled && kernels.same && n <= SEGMENT && near => Writes::Y,
            Some(_) if by_rows && y.strides[2].unsigned_abs() < y.strides[1].unsigned_abs() => {
                Writes::RowSums
            }
            _ => Writes::Sums,
        };
        let next = |of: Stack| of.strides[0] == SEGMENT as isize;
        let cut = batch > 1 && n == SEGMENT && columns == 1 && next(a) && next(x);
        let ready = by_rows && a_reads == Reads::InPlace && x_in_place && writes == Writes::Y;
        let kernel = match several {
            _ if kernels.narrow => PanelKernel::Narrow,
            _ if cut && ready && y.strides[0] >= 0 => PanelKernel::WholeRows,
            Some(_) => PanelKernel::Several,
            None => PanelKernel::One,
        };
        let x = if x_in_place { Reads::InPlace } else { Reads::Widened };
        let rows = PanelPlan::block_rows(&of, &args, &kernels, (kernel, lines, a_reads));
        PanelPlan { of, args, kernels, kernel, lines, a: a_reads, x, writes, rows }
    }

    /// How many segments of X the second-level cache should hold.
    pub(super) fn group(&self) -> usize {
        (X_BYTES / (self.of.columns * SEGMENT * self.kernels.vector.acc)).max(1)
    }

    /// Whether the kernel for several columns takes the rows as lines.
    #[inline(always)]
    pub(super) fn several_by_rows(&self) -> bool {
        self.kernel == PanelKernel::Several && self.lines.are_rows()
    }

    fn block_rows(
        of: &PanelOperands,
        args: &PanelArgs,
        &Kernels { vector, element, .. }: &Kernels,
        (kernel, lines, a): (PanelKernel, Lines, Reads),
    ) -> usize {
        // Rows of one segment that fit so many bytes.
        let fit = |bytes: usize, element: usize| bytes / (of.n.min(SEGMENT) * element);
        let mut rows = args.rows;
        if of.n <= SEGMENT {
            // Each block begins with a call.
            rows = rows.max(fit(L1, element));
            if kernel == PanelKernel::Several && !lines.are_rows() {
                rows = rows.max(SEGMENT);
            }
        }
        if of.columns > COLUMNS {
            // X is larger than the block, and is read for each.
            rows = rows.max(64);
        }
        if a != Reads::InPlace {
            rows = rows.min(fit(L2, vector.acc.max(element)));
        } else if kernel != PanelKernel::Several && of.columns > 1 {
            // A block is read again for every column.
            rows = rows.min(fit(L2, element));
        }
        rows.min(of.m).next_multiple_of(UNIT)
    }

    /// How many segments some rows are taken through, and these rows, of a block of `h`. By rows, as many segments as
    /// leave X in the second-level cache: so a row is read in long runs.
    pub(super) fn runs(&self, h: usize) -> (usize, usize) {
        match self.several_by_rows() {
            true => (self.group(), SOME[usize::from(self.of.columns > 4)]),
            false => (1, h),
        }
    }

    /// The scratch for blocks of `h` rows with `x` accumulators of a packed X; without sums if those of segments have
    /// a place.
    #[inline(always)]
    pub(super) fn scratch(&self, (h, x): (usize, usize), sums: bool) -> Scratch<usize> {
        let of = &self.of;
        let (line, segments) = (if sums { of.columns * h } else { 0 }, of.segments());
        let several = if segments > 1 { line } else { 0 };
        let stack = match self.kernel {
            PanelKernel::Several if !self.lines.are_rows() => {
                STACK * COLUMNS.min(of.columns) * (h + UNIT)
            }
            _ => 0,
        };
        let copy = match self.a {
            Reads::InPlace => 0,
            _ => h * of.n.min(SEGMENT).next_multiple_of(UNIT),
        };
        let area = |len: usize| {
            // Not rounded up where that would be no number any more.
            len.checked_next_multiple_of(UNIT)
                .unwrap_or(len)
                .saturating_mul(self.kernels.vector.acc)
        };
        Scratch {
            sums: area(line),
            stack: area(stack),
            lines: area(segments.saturating_mul(several)),
            spare: area(spare_lines(segments).saturating_mul(several)),
            copy: area(copy),
            x: area(x),
        }
    }

    /// Whether so many tasks take segments rather than rows, even where there are rows enough, and even one task.
    fn is_wide(&self, tasks: usize) -> bool {
        let (of, acc) = (&self.of, self.kernels.vector.acc);
        let (x, count) = (of.packed_len().saturating_mul(acc), of.segments());
        let sums = [of.columns, of.m, acc].into_iter().fold(count, usize::saturating_mul);
        let shares_x = of.batch > 1 && of.x.strides[0] == 0;
        self.several_by_rows()
            && of.m <= WIDE_ROWS
            && x > WIDE_X
            && sums <= WIDE_SUMS
            && tasks * of.columns <= WIDE_COLUMNS
            && count >= (4 * tasks).max(2)
            && !shares_x
    }

    /// Whether one thread computes all of it as it is.
    #[inline(always)]
    pub(crate) fn is_whole(&self, tasks: usize) -> bool {
        tasks <= 1 && !(self.several_by_rows() && self.is_wide(1))
    }

    /// The cut for `tasks` threads, of which each should have `grain` KiB of the matrices; for one, that of a matrix that is
    /// not [whole](Self::is_whole).
    pub(crate) fn cut(&self, tasks: usize, grain: usize) -> Cut {
        let (PanelOperands { batch, m, n, .. }, element) = (self.of, self.kernels.element);
        let (bytes, wide) = (m * n * element, self.is_wide(tasks));
        let all = Cut { along: Along::Entries, entries: batch, tasks, unit: 1, least: 1 };
        if tasks > 1 && self.kernel == PanelKernel::WholeRows && m >= tasks * UNIT {
            return self.cut_rows(tasks, batch);
        }
        // Entries one after the other, each on all threads, if they are few or large.
        if tasks > 1 && batch >= 4 * tasks && bytes >> 10 < 8 * grain {
            return Cut { least: (LEAST / bytes).max(1), ..all };
        }
        // Rows if there are enough of them: then nothing is left to be done afterwards. Else segments.
        let few = m < tasks * if self.lines.are_rows() { 16 } else { 256 };
        if few && self.of.segments() >= tasks || wide {
            let least = LEAST.div_ceil(m * SEGMENT * element);
            return Cut { along: Along::Segments, entries: 1, least, ..all };
        }
        self.cut_rows(tasks, 1)
    }

    /// By rows of `entries` entries at a time: also where there is no memory for the sums of segments.
    pub(crate) fn cut_rows(&self, tasks: usize, entries: usize) -> Cut {
        let rows = LEAST / (entries * self.of.n * self.kernels.element);
        let least = rows.next_multiple_of(UNIT).max(UNIT);
        Cut { along: Along::Rows, entries, tasks, unit: UNIT, least }
    }

    /// KiB of the matrices, as often as they cost to be read.
    pub(crate) fn kib(&self) -> usize {
        let PanelOperands { batch, m, n, columns, .. } = self.of;
        let all = [m, n, self.kernels.element, columns.div_ceil(FREE)];
        all.into_iter().fold(batch, usize::saturating_mul) >> 10
    }
}
