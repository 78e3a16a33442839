//! What is asked: the shape of a problem, without its data.

use std::fmt::{self, Display};
use std::str::FromStr;

use gemv_packed::Format;

use crate::Dtype;

/// How the elements of a matrix lie in memory.
///
/// ```
/// use gemv::{MatrixRef, unstable::Layout};
/// use ndarray::{Array2, s};
///
/// let a = Array2::<f32>::zeros((4, 6));
/// let layout = |a| MatrixRef::Host(a).desc().layout;
/// assert_eq!(layout(a.view()), Layout::Row);
/// assert_eq!(layout(a.t()), Layout::Col);
/// assert_eq!(layout(a.slice(s![..;2, 1..])), Layout::Row); // gaps between rows
/// assert_eq!(layout(a.slice(s![.., ..;-1])), Layout::Strided);
/// assert_eq!(Layout::parse(Layout::Col.name()), Some(Layout::Col));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layout {
    /// Neighbours in a row are neighbours in memory (column stride 1; any row stride).
    Row,
    /// Neighbours in a column are neighbours in memory (row stride 1; any column stride).
    Col,
    /// Neither: any two strides, of any sign, or zero.
    Strided,
}

impl Layout {
    /// All three.
    pub const ALL: [Layout; 3] = [Layout::Row, Layout::Col, Layout::Strided];

    /// `row`, `col` or `strided`.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Row => "row",
            Layout::Col => "col",
            Layout::Strided => "strided",
        }
    }

    /// The layout with this [`name`](Self::name).
    pub fn parse(name: &str) -> Option<Layout> {
        Layout::ALL.into_iter().find(|l| l.name() == name)
    }

    /// The layout of an `m` × `n` matrix with these strides (in elements). Strides of axes that
    /// have at most one entry do not count.
    ///
    /// ```
    /// use gemv::unstable::Layout;
    /// assert_eq!(Layout::of(3, 5, 5, 1), Layout::Row);
    /// assert_eq!(Layout::of(3, 5, 1, 3), Layout::Col);
    /// assert_eq!(Layout::of(3, 5, 0, 1), Layout::Row); // one row, three times
    /// assert_eq!(Layout::of(3, 5, 10, 2), Layout::Strided);
    /// assert_eq!(Layout::of(5, 1, 1, 1), Layout::Col); // a column is read along itself
    /// ```
    #[inline]
    pub fn of(m: usize, n: usize, row_stride: isize, col_stride: isize) -> Layout {
        match (row_stride == 1, col_stride == 1) {
            // One column, one element apart: the rows are the long contiguous direction.
            (true, true) if n <= 1 => Layout::Col,
            (_, true) => Layout::Row,
            (true, _) => Layout::Col,
            _ if n <= 1 && m <= 1 => Layout::Row,
            // A single row (or column) has no other to be apart from, but its own entries are.
            _ => Layout::Strided,
        }
    }
}

impl Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A range of alignments, of the memory in which every line of a matrix begins: what a table's row
/// is for, as `align=16..` or `align=..8` in bytes.
///
/// ```
/// use gemv::unstable::Align;
/// let halves = Align::parse("4..8").unwrap(); // bytes
/// assert_eq!((halves.low, halves.high, halves.to_string()), (2, 3, "4..8".into()));
/// assert!(halves.holds(3) && !halves.holds(4)); // as Desc::align: log2
/// assert_eq!(Align::parse("16.."), Some(Align::WHOLE));
/// assert_eq!(Align::parse("12.."), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Align {
    /// log2 of the least, in bytes.
    pub low: u8,
    /// log2 of the most; 6 for all from 64 bytes on.
    pub high: u8,
}

impl Align {
    /// All there are.
    pub const ANY: Align = Align { low: 0, high: 6 };
    /// Vectors of 16 bytes may be loaded from the beginning of every line.
    pub const WHOLE: Align = Align { low: 4, high: 6 };

    /// Whether a matrix is of this class.
    pub const fn holds(&self, align: u8) -> bool {
        self.low <= align && align <= self.high
    }

    /// Reads `16..`, `..8`, `4..8` or `4`: bytes, powers of two up to 64.
    pub fn parse(text: &str) -> Option<Align> {
        let one = |t: &str| {
            let bytes: u8 = t.parse().ok()?;
            (bytes.is_power_of_two() && bytes <= 64).then(|| bytes.trailing_zeros() as u8)
        };
        let end = |t: &str, open: u8| if t.is_empty() { Some(open) } else { one(t) };
        let (low, high) = match text.split_once("..") {
            Some(("", "")) => return None,
            Some((low, high)) => (end(low, 0)?, end(high, 6)?),
            None => (one(text)?, one(text)?),
        };
        (low <= high).then_some(Align { low, high })
    }
}

impl Display for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Align { low, high } = *self;
        match (low, high) {
            (low, high) if low == high => write!(f, "{}", 1 << low),
            (0, high) => write!(f, "..{}", 1 << high),
            (low, 6) => write!(f, "{}..", 1 << low),
            (low, high) => write!(f, "{}..{}", 1 << low, 1 << high),
        }
    }
}

/// What is asked: type, shape, layout class and alignment class. The matrix itself goes straight
/// to the backend; only its `Desc` goes sideways, to the table, the tuner or a cache.
///
/// ```
/// use gemv::{Dtype, unstable::Desc};
/// let desc = Desc::new(Dtype::F32, 1000, 500, (500, 1), 0);
/// assert_eq!(desc.to_string(), "f32 row 1000x500");
/// assert_eq!("f32 row 1000x500".parse(), Ok(desc));
/// assert_eq!(desc.align, 4); // rows are 2000 bytes apart: a multiple of 16
/// assert_eq!(desc.bytes(), 4 * (1000 * 500 + 1000 + 500));
///
/// let mixed: Desc = "bf16*f32 row 1000x500".parse().unwrap(); // a matrix of bf16, vectors of f32
/// assert_eq!((mixed.dtype, mixed.vectors), (Dtype::Bf16, Dtype::F32));
/// assert_eq!(mixed.bytes(), 2 * 1000 * 500 + 4 * (1000 + 500));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Desc {
    /// Element type of the matrix.
    pub dtype: Dtype,
    /// Element type of the vectors: the matrix', or a wider one of [`Dtype::MIXED`].
    pub vectors: Dtype,
    /// Rows; the length of `y`.
    pub m: usize,
    /// Columns; the length of `x`.
    pub n: usize,
    /// Layout class.
    pub layout: Layout,
    /// log2 of the bytes to which the matrix's first element and every row (column, where the
    /// layout is [`Layout::Col`]) are aligned, at most 6.
    pub align: u8,
    /// Right-hand sides: columns of `X` in `A X`; 1 for a vector.
    pub rhs: usize,
    /// Problems of this shape in one call; 1 for a single product.
    pub batch: usize,
    /// The format of a packed matrix, by rows, whose elements are of [`f32`]. Its `dtype` is that of the vectors.
    pub packing: Option<Format>,
}

impl Desc {
    /// One product of an m × n matrix whose lines begin at multiples of `2^align` bytes with one
    /// vector.
    ///
    /// ```
    /// use gemv::{Dtype, unstable::{Desc, Layout}};
    /// let desc = Desc::of(Dtype::F32, Layout::Row, (64, 128), 6);
    /// assert_eq!((desc.m, desc.n, desc.rhs, desc.batch), (64, 128, 1, 1));
    /// ```
    pub const fn of(dtype: Dtype, layout: Layout, (m, n): (usize, usize), align: u8) -> Desc {
        Desc { dtype, vectors: dtype, m, n, layout, align, rhs: 1, batch: 1, packing: None }
    }

    /// The same problem with a matrix and vectors of this type.
    ///
    /// ```
    /// use gemv::{Dtype, unstable::Desc};
    /// let mixed: Desc = "bf16*f32 row 64x64".parse().unwrap();
    /// assert_eq!(mixed.of_type(Dtype::F16).to_string(), "f16 row 64x64");
    /// ```
    #[must_use]
    pub const fn of_type(self, dtype: Dtype) -> Desc {
        Desc { dtype, vectors: dtype, packing: None, ..self }
    }

    /// One product of a packed m × n matrix with one vector of this type.
    ///
    /// ```
    /// use gemv::{Dtype, Format, unstable::Desc};
    /// let desc = Desc::packed(Format::Q8_0, Dtype::F32, (4096, 1024));
    /// assert_eq!(desc.to_string(), "q8_0*f32 row 4096x1024");
    /// assert_eq!("q8_0*f32 row 4096x1024".parse(), Ok(desc));
    /// assert_eq!(desc.bytes(), 4096 * 34 * 32 + 4 * (4096 + 1024)); // 34 bytes for 32 elements
    /// ```
    pub const fn packed(format: Format, vectors: Dtype, dim: (usize, usize)) -> Desc {
        Desc { packing: Some(format), ..Desc::of(vectors, Layout::Row, dim, 6) }
    }

    /// Whether the vectors have another type than the matrix.
    ///
    /// ```
    /// use gemv::unstable::Desc;
    /// assert!("f32*f64 col 8x8".parse::<Desc>().is_ok_and(|desc| desc.is_mixed()));
    /// ```
    pub fn is_mixed(&self) -> bool {
        self.dtype != self.vectors
    }

    /// Describes an `m` × `n` matrix whose first element lies at byte address (or offset)
    /// `address`, with strides in elements.
    ///
    /// ```
    /// use gemv::{Dtype, unstable::Desc};
    /// let align = |strides, address| Desc::new(Dtype::F32, 3, 64, strides, address).align;
    /// assert_eq!(align((64, 1), 0), 6); // every row starts on 64 bytes
    /// assert_eq!(align((64, 1), 4), 2); // one element further
    /// assert_eq!(align((65, 1), 0), 2); // every second row does not
    /// ```
    #[inline]
    pub fn new(dtype: Dtype, m: usize, n: usize, strides: (isize, isize), address: usize) -> Desc {
        let layout = Layout::of(m, n, strides.0, strides.1);
        // Every line (row or column) starts on this boundary: the common low zero bits. Lines that overlap count as those of
        // any matrix: what copies lines by boxes does not take them.
        let lead = match layout {
            Layout::Row if m > 1 => (strides.0.unsigned_abs(), n),
            Layout::Col if n > 1 => (strides.1.unsigned_abs(), m),
            _ => (0, 0),
        };
        let lead = if lead.0 < lead.1 { 1 } else { lead.0 };
        let low = address | lead.wrapping_mul(dtype.bytes()) | 64;
        Desc::of(dtype, layout, (m, n), low.trailing_zeros() as u8)
    }

    /// Bytes that the product has to move at least: every element of A, X and Y once, of each of the
    /// batch.
    ///
    /// What a memory-bound product is measured by: this, divided by its time, is the bandwidth it
    /// reaches.
    ///
    /// ```
    /// use gemv::{Dtype, unstable::Desc};
    /// let desc = Desc::new(Dtype::F64, 4096, 4096, (4096, 1), 0);
    /// let seconds = 0.01;
    /// assert_eq!((desc.bytes() as f64 / seconds / 1e9).round(), 13.0); // GB/s
    /// ```
    pub fn bytes(&self) -> u64 {
        let (m, n) = (self.m as u64, self.n as u64);
        // Saturating: a broadcast view, or one without columns, has shapes beyond any memory.
        let vectors = m.saturating_add(n).saturating_mul(self.rhs as u64);
        let vectors = vectors.saturating_mul(self.vectors.bytes() as u64);
        let line = match self.packing {
            Some(format) => {
                n.div_ceil(format.block_len() as u64).saturating_mul(format.block_bytes() as u64)
            }
            None => n.saturating_mul(self.dtype.bytes() as u64),
        };
        let matrix = m.saturating_mul(line);
        matrix.saturating_add(vectors).saturating_mul(self.batch as u64)
    }
}

impl Desc {
    /// The alignment of such a matrix without gaps in aligned memory: what a text does not name.
    fn usual_align(dtype: Dtype, layout: Layout, (m, n): (usize, usize)) -> u8 {
        let line = match layout {
            Layout::Row if m > 1 => n,
            Layout::Col if n > 1 => m,
            _ => 0,
        };
        (line.wrapping_mul(dtype.bytes()) | 64).trailing_zeros() as u8
    }
}

/// Such as `f32 row 64x128`, or `bf16*f32 row 64x128` where the vectors have another type. What is not
/// usual follows: `align=4` in bytes, `rhs=8`, `batch=16`.
impl Display for Desc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Desc { dtype, vectors, m, n, layout, align, rhs, batch, packing } = *self;
        match packing {
            Some(format) => write!(f, "{format}*{vectors}")?,
            None if self.is_mixed() => write!(f, "{dtype}*{vectors}")?,
            None => write!(f, "{dtype}")?,
        }
        write!(f, " {layout} {m}x{n}")?;
        if packing.is_none() && align != Desc::usual_align(dtype, layout, (m, n)) {
            write!(f, " align={}", 1u32 << align)?;
        }
        [("rhs", rhs), ("batch", batch)]
            .into_iter()
            .filter(|(_, count)| *count != 1)
            .try_for_each(|(name, count)| write!(f, " {name}={count}"))
    }
}

/// Parses what is displayed.
///
/// ```
/// use gemv::unstable::Desc;
/// let desc: Desc = "f64 col 64x3 align=8 rhs=2".parse()?;
/// assert_eq!((desc.m, desc.align, desc.rhs, desc.batch), (64, 3, 2, 1));
/// assert_eq!("f32 row 3".parse::<Desc>().unwrap_err(), "\"3\" is not like 64x128");
/// # Ok::<(), String>(())
/// ```
impl FromStr for Desc {
    type Err = String;

    fn from_str(text: &str) -> Result<Desc, String> {
        let mut words = text.split_whitespace();
        let mut word = |what: &str| words.next().ok_or(format!("{what} is missing in {text:?}"));
        let (types, layout, shape) = (word("a type")?, word("a layout")?, word("a shape")?);
        let one = |t: &str| Dtype::parse(t).ok_or(format!("{t:?} is no element type"));
        let (matrix, vectors) = types.split_once('*').unwrap_or((types, types));
        let (packing, vectors) = (matrix.parse::<Format>().ok(), one(vectors)?);
        let dtype = if packing.is_some() { vectors } else { one(matrix)? };
        if !dtype.multiplies(vectors) {
            return Err(format!("a matrix of {dtype} has no product with vectors of {vectors}"));
        }
        let layout = Layout::parse(layout).ok_or(format!("{layout:?} is no layout"))?;
        let count = |t: &str| t.parse::<usize>().map_err(|_| format!("{t:?} is no whole number"));
        let (m, n) = shape.split_once('x').ok_or(format!("{shape:?} is not like 64x128"))?;
        let dim = (count(m)?, count(n)?);
        if let Some(format) = packing
            && (layout != Layout::Row || !matches!(vectors, Dtype::F32 | Dtype::F16 | Dtype::Bf16))
        {
            return Err(format!(
                "a matrix of {format} lies by rows, and takes vectors of f32, f16 and bf16"
            ));
        }
        let align = if packing.is_some() { 6 } else { Desc::usual_align(dtype, layout, dim) };
        let mut desc = Desc { vectors, packing, ..Desc::of(dtype, layout, dim, align) };
        for word in words {
            match word.split_once('=') {
                Some(("align", bytes)) if packing.is_none() => {
                    let align = Align::parse(bytes).filter(|a| a.low == a.high);
                    desc.align = align.ok_or(format!("{bytes:?} is no alignment"))?.low;
                }
                Some(("rhs", rhs)) => desc.rhs = count(rhs)?,
                Some(("batch", batch)) => desc.batch = count(batch)?,
                _ => return Err(format!("{word:?} is none of align=, rhs= and batch=")),
            }
        }
        Ok(desc)
    }
}
