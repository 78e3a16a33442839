//! Tuned tables: which parameters for which problem, as text that a person can read.
//!
//! One row a line: a type, a layout, where in the plane of shapes it holds, and what to use there.
//!
//! ```text
//! # device: NVIDIA H200
//! f32 row m=2^12 n=2^12 : row threads=128 rows=4
//! f32 row align=16.. m=2^0..2^8 n=2^16..2^24 : row threads=256 rows=1 split=4
//! f32 row rhs=5..8 m=2^12 n=2^12 : gemm-row threads=128
//! f64 row n=257.. : row-block subwarp=16 ..
//! *   *   : row threads=64
//! ```
//!
//! A line that names several types (`f16,bf16 row`) is a row for each. `m` and `n` are a number, `2^k` (k may be a
//! fraction) or a range `lo..hi` or `lo..`; a row without them holds everywhere, and `*` stands for every type or layout. `align` is the bytes at whose multiples the
//! matrix's lines begin, a number, `lo..hi`, `lo..` or `..hi`: for other matrices the row does not hold.
//! `rhs` is the number of right-hand sides and `batch` that of matrices in one call, a number, `lo..hi` or
//! `lo..`: for others the row does not hold.
//!
//! The row nearest to the problem wins (distance in powers of two, 0 inside a range; the earlier row on
//! a tie). A row for one type beats one for every type, and one for a layout beats one for every
//! layout, however far. A row that ends in `..` names only what matters: it stands for the first of the
//! backend's [candidates](Backend::candidates) that has these arguments, and the next row serves where there is
//! none. It serves problems up to a power of two beyond its ranges. Other rows name all that is not a default.
//! The type is the matrix': its rows also serve vectors of a wider type, where their kernels take them. For several
//! right-hand sides or a batch, a row that names them beats one that does not, of which the kernel may compute one
//! product after the other.

use std::cell::OnceCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::BuiltinTable;
use crate::files::read_text;
use crate::{Align, Backend, Desc, DeviceInfo, Dtype, Error, Layout, Params, Result};

/// The environment variable that names a directory of tables, looked at before the user's own.
///
/// It holds files named by [`file_name`].
///
/// ```
/// assert_eq!(gemv::unstable::table::TABLES_ENV, "GEMV_TABLES");
/// // GEMV_TABLES=my/tables ./program
/// ```
pub const TABLES_ENV: &str = "GEMV_TABLES";

/// One table: rows, and where they came from.
///
/// ```
/// use gemv::{Dtype, unstable::{Desc, Table}};
///
/// let text = "# device: A card
/// f32 row m=2^12 n=2^12 : row threads=128 rows=4
/// f32 row n=2^16..      : row threads=256 split=4
/// *   *                 : row threads=64
/// ";
/// let table = Table::parse("card.txt", text)?;
/// assert_eq!(table.header("device"), Some("A card"));
/// let best = |m, n| table.nearest(&Desc::new(Dtype::F32, m, n, (n as isize, 1), 0))[0].params;
/// assert_eq!(best(3000, 5000).to_string(), "row threads=128 rows=4");
/// assert_eq!(best(100, 1 << 20).to_string(), "row threads=256 split=4");
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// The file, or the built-in table's name.
    pub origin: String,
    /// What its comments say of the form `# key: value`, in order: the device, the regret.
    pub header: Vec<(String, String)>,
    /// The rows, in order.
    pub rows: Vec<Row>,
}

/// One row of a table.
///
/// ```
/// use gemv::{Dtype, unstable::{Layout, Table}};
/// let row = Table::parse("t", "f32 col m=64 n=2^10..2^14 : col threads=256")?.rows[0];
/// assert_eq!((row.dtype, row.layout), (Some(Dtype::F32), Some(Layout::Col)));
/// assert_eq!((row.m, row.n), ((6.0, 6.0), (10.0, 14.0)));
/// assert_eq!(row.to_string(), "f32 col m=64 n=2^10..2^14 : col threads=256");
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The type it is for; `None` for all.
    pub dtype: Option<Dtype>,
    /// The layout it is for; `None` for all.
    pub layout: Option<Layout>,
    /// The alignments it is for.
    pub align: Align,
    /// The least and the most right-hand sides it is for; `None` where it does not say.
    pub rhs: Option<(usize, usize)>,
    /// The fewest and the most matrices of a batch it is for; `None` where it does not say.
    pub batch: Option<(usize, usize)>,
    /// log2 of the rows it is for: lowest, highest.
    pub m: (f32, f32),
    /// log2 of the columns it is for: lowest, highest.
    pub n: (f32, f32),
    /// What to use.
    pub params: Params,
    /// Whether it ends in `..`: `params` are a part of what to use, which [`choice`](Self::choice) completes.
    pub partial: bool,
}

/// The squared distance up to which a row that ends in `..` serves: further away, its kernel's first candidate may be for
/// quite another shape, and the next table has a row.
const PARTIAL: f32 = 1.0;

/// Every number of rows or columns, in powers of two.
pub const ANY: (f32, f32) = (0.0, 64.0);

impl Row {
    /// A row for each of the types that a line names.
    fn parse(text: &str) -> Result<Vec<Row>, String> {
        let (key, params) = text.split_once(':').ok_or("a row needs a colon")?;
        let mut words = key.split_whitespace();
        let word =
            |w: Option<&str>| w.ok_or("a row begins with a type and a layout").map(str::to_owned);
        let (dtype, layout) = (word(words.next())?, word(words.next())?);
        let one = |name: &str| match name {
            "*" => Ok(None),
            d => Dtype::parse(d).map(Some).ok_or(format!("{d:?} is no element type")),
        };
        let dtypes = dtype.split(',').map(one).collect::<Result<Vec<_>, String>>()?;
        let many = dtypes.len() > 1;
        if many && dtypes.iter().enumerate().any(|(i, d)| d.is_none() || dtypes[..i].contains(d)) {
            return Err(format!("{dtype:?} names a type twice, or * beside others"));
        }
        let layout = match &*layout {
            "*" => None,
            l => Some(Layout::parse(l).ok_or(format!("{l:?} is no layout"))?),
        };
        let (params, partial) = match params.trim_end().strip_suffix(" ..") {
            Some(part) => (part, true),
            None => (params, false),
        };
        let (align, params) = (Align::ANY, params.parse()?);
        let (rhs, batch) = (None, None);
        let (dtype, m, n) = (None, ANY, ANY);
        let mut row = Row { dtype, layout, align, rhs, batch, m, n, params, partial };
        let mut seen: Vec<&str> = Vec::new();
        for word in words {
            let key = word.split('=').next().unwrap_or_default();
            if seen.contains(&key) {
                return Err(format!("{key} is there twice"));
            }
            seen.push(key);
            match word.split_once('=') {
                Some(("m", range)) => row.m = range_of(range)?,
                Some(("n", range)) => row.n = range_of(range)?,
                Some(("align", range)) => {
                    let bad = || format!("{range:?} is no range of powers of two up to 64");
                    row.align = Align::parse(range).ok_or_else(bad)?;
                }
                Some(("rhs", range)) => row.rhs = Some(counts_of(range)?),
                Some(("batch", range)) => row.batch = Some(counts_of(range)?),
                _ => return Err(format!("{word:?} is none of m=, n=, rhs=, batch= and align=")),
            }
        }
        Ok(dtypes.into_iter().map(|dtype| Row { dtype, ..row }).collect())
    }

    /// Problems for which the row holds: of each of its types and layouts, of its least and greatest
    /// alignment, and of the ends and the middle of its ranges.
    ///
    /// ```
    /// use gemv::unstable::Table;
    /// let row = Table::parse("t", "f32 col rhs=5..8 m=64 n=2^10..2^14 : col")?.rows[0];
    /// let texts: Vec<String> = row.examples().map(|desc| desc.to_string()).collect();
    /// assert_eq!(texts[0], "f32 col 64x1024 align=1 rhs=5");
    /// assert!(row.examples().all(|desc| row.holds(&desc)));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn examples(&self) -> impl Iterator<Item = Desc> {
        let row = *self;
        let sizes = |(low, high): (f32, f32)| {
            // What is open ends somewhere.
            let high = high.min(low.max(20.0) + 2.0);
            [low, (low + high) / 2.0, high].map(|log| log.exp2().round() as usize)
        };
        let dtypes = Dtype::ALL.into_iter().filter(move |d| row.dtype.is_none_or(|of| of == *d));
        let layouts =
            move || Layout::ALL.into_iter().filter(move |l| row.layout.is_none_or(|of| of == *l));
        let classes = dtypes.flat_map(move |dtype| layouts().map(move |layout| (dtype, layout)));
        let dims = move || sizes(row.m).into_iter().flat_map(move |m| sizes(row.n).map(|n| (m, n)));
        classes.flat_map(move |(dtype, layout)| {
            dims().flat_map(move |dim| {
                [row.align.low, row.align.high].map(|align| Desc {
                    rhs: row.rhs.map_or(1, |counts| counts.0),
                    batch: row.batch.map_or(1, |counts| counts.0),
                    ..Desc::of(dtype, layout, dim, align)
                })
            })
        })
    }

    /// The parameters that the row stands for, of a problem with these candidates; `None` where none of them has the
    /// arguments of a row that ends in `..`.
    ///
    /// ```
    /// use gemv::unstable::Table;
    /// let table = Table::parse("t", "f32 row : row rows=2 ..\nf32 row : row rows=8")?;
    /// let candidates = ["row threads=64 rows=1", "row threads=64 rows=2", "row threads=32 rows=2"];
    /// let candidates = candidates.map(|text| text.parse().unwrap());
    /// let choice = |row: usize| table.rows[row].choice(&candidates).unwrap().to_string();
    /// assert_eq!((&*choice(0), &*choice(1)), ("row threads=64 rows=2", "row rows=8"));
    /// assert_eq!(table.rows[0].choice(&candidates[..1]), None);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn choice(&self, candidates: &[Params]) -> Option<Params> {
        let has = |of: &&Params| {
            let mut args = self.params.args();
            of.kernel() == self.params.kernel()
                && args.all(|(name, value)| of.get(&name) == Some(value))
        };
        if self.partial { candidates.iter().find(has).copied() } else { Some(self.params) }
    }

    /// Whether the problem is within the row's ranges.
    pub fn holds(&self, desc: &Desc) -> bool {
        let distance = self.distance(desc, (log2(desc.m), log2(desc.n)));
        distance.is_some_and(|(_, distance)| distance == 0.0)
    }

    /// How well the row fits: rank of its key (lower is better), then squared distance.
    fn distance(&self, desc: &Desc, at: (f32, f32)) -> Option<(u8, f32)> {
        let rank = |mine: bool, any: bool| match (mine, any) {
            (true, _) => Some(0),
            (_, true) => Some(1),
            _ => None,
        };
        let dtype = rank(self.dtype == Some(desc.dtype), self.dtype.is_none())?;
        let layout = rank(self.layout == Some(desc.layout), self.layout.is_none())?;
        let outside = |counts: Option<(usize, usize)>, count: usize| {
            counts.is_some_and(|(low, high)| count < low || count > high)
        };
        if !self.align.holds(desc.align)
            || outside(self.rhs, desc.rhs)
            || outside(self.batch, desc.batch)
        {
            return None;
        }
        let many = rank(self.rhs.is_some() || self.batch.is_some(), true)?;
        let off = |at: f32, (lo, hi): (f32, f32)| (lo - at).max(at - hi).max(0.0);
        let (dm, dn) = (off(at.0, self.m), off(at.1, self.n));
        Some((4 * many + 2 * dtype + layout, dm * dm + dn * dn))
    }
}

fn range_of(text: &str) -> Result<(f32, f32), String> {
    let one = |t: &str| -> Result<f32, String> {
        let bad = || format!("{t:?} is neither a number nor 2^k");
        let log = match t.strip_prefix("2^") {
            Some(k) => k.parse::<f32>().map_err(|_| bad())?,
            None => log2(t.parse::<usize>().map_err(|_| bad())?),
        };
        if (0.0..=64.0).contains(&log) { Ok(log) } else { Err(bad()) }
    };
    let (lo, hi) = match text.split_once("..") {
        Some((lo, "")) => (one(lo)?, ANY.1),
        Some((lo, hi)) => (one(lo)?, one(hi)?),
        None => (one(text)?, one(text)?),
    };
    if lo > hi {
        return Err(format!("{text:?} ends before it begins"));
    }
    Ok((lo, hi))
}

/// Reads `5..8`, `17..` or `4`: counts from 1 on.
fn counts_of(text: &str) -> Result<(usize, usize), String> {
    let one = |t: &str| match t.parse::<usize>() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("{t:?} is no count from 1 on")),
    };
    let (low, high) = match text.split_once("..") {
        Some((low, "")) => (one(low)?, usize::MAX),
        Some((low, high)) => (one(low)?, one(high)?),
        None => (one(text)?, one(text)?),
    };
    if low > high {
        return Err(format!("{text:?} ends before it begins"));
    }
    Ok((low, high))
}

fn log2(v: usize) -> f32 {
    (v.max(1) as f32).log2()
}

/// A power of two or a whole number where it is one, else a power: with three digits, or with as many as give it back.
fn show(log: f32) -> String {
    let whole = log.exp2().round();
    let short = format!("{log:.3}");
    match () {
        () if log.fract() == 0.0 && log < 10.0 => format!("{whole}"),
        () if log.fract() == 0.0 => format!("2^{log:.0}"),
        // Beyond 2^24 not every whole number is a float.
        () if log < 24.0 && log2(whole as usize) == log => format!("{whole}"),
        () if short.parse() == Ok(log) => format!("2^{short}"),
        () => format!("2^{log}"),
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.dtype.map_or("*", Dtype::name))?;
        write!(f, "{}", self.layout.map_or("*", Layout::name))?;
        if self.align != Align::ANY {
            write!(f, " align={}", self.align)?;
        }
        for (name, counts) in [("rhs", self.rhs), ("batch", self.batch)] {
            match counts {
                Some((low, usize::MAX)) => write!(f, " {name}={low}..")?,
                Some((low, high)) if low == high => write!(f, " {name}={low}")?,
                Some((low, high)) => write!(f, " {name}={low}..{high}")?,
                None => {}
            }
        }
        for (name, range) in [("m", self.m), ("n", self.n)] {
            if range != ANY {
                write!(f, " {name}={}", show(range.0))?;
                if range.1 == ANY.1 {
                    write!(f, "..")?;
                } else if range.0 != range.1 {
                    write!(f, "..{}", show(range.1))?;
                }
            }
        }
        write!(f, " : {}{}", self.params, if self.partial { " .." } else { "" })
    }
}

/// The text form, which [`Table::parse`] reads: the header, then a row a line.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in &self.header {
            writeln!(f, "# {key}: {value}")?;
        }
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))
    }
}

impl Table {
    /// Reads a table's text. Blank lines and lines that begin with `#` are left out.
    ///
    /// ```
    /// use gemv::unstable::Table;
    /// let table = Table::parse("t.txt", "f16,bf16 row n=64 : row")?;
    /// assert_eq!(table.to_string(), "f16 row n=64 : row\nbf16 row n=64 : row\n");
    /// let e = Table::parse("t.txt", "* * : row\nf32 diagonal : row").unwrap_err();
    /// assert_eq!(e.to_string(), "t.txt, line 2: \"diagonal\" is no layout");
    /// let e = Table::parse("t.txt", "f16,f16 row : row").unwrap_err();
    /// assert_eq!(e.to_string(), "t.txt, line 1: \"f16,f16\" names a type twice, or * beside others");
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Table`] with the first line that is not well formed.
    pub fn parse(origin: &str, text: &str) -> Result<Table> {
        let mut table = Table { origin: origin.into(), ..Table::default() };
        // Some editors begin a file with a byte order mark.
        for (i, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            if let Some((key, value)) = line.strip_prefix("# ").and_then(|c| c.split_once(": ")) {
                table.header.push((key.trim().into(), value.trim().into()));
            }
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            table.rows.extend(Row::parse(line).map_err(|reason| Error::Table {
                origin: origin.into(),
                line: i + 1,
                reason,
            })?);
        }
        Ok(table)
    }

    /// What the header says under this key.
    pub fn header(&self, key: &str) -> Option<&str> {
        self.header.iter().find(|h| h.0 == key).map(|h| &*h.1)
    }

    /// The rows for this problem, nearest first.
    ///
    /// By rank of the key first (a type and layout of one's own before `*`), then by distance in
    /// powers of two. A row that ends in `..` is not among them where it is further than one power of two.
    ///
    /// ```
    /// use gemv::{Dtype, unstable::{Desc, Table}};
    /// let text = "f32 row m=1 n=1 : row rows=1\n* * : row rows=2\nf64 row : row rows=4";
    /// let table = Table::parse("t", text)?;
    /// let rows = table.nearest(&Desc::new(Dtype::F32, 4096, 4096, (4096, 1), 0));
    /// let rows: Vec<_> = rows.iter().map(|row| row.params.get("rows")).collect();
    /// assert_eq!(rows, [Some(1), Some(2)]); // its own, however far; then of all
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn nearest(&self, desc: &Desc) -> Vec<&Row> {
        let at = (log2(desc.m), log2(desc.n));
        let mut rows = Vec::new();
        for (distance, row) in self.rows.iter().filter_map(|r| Some((r.distance(desc, at)?, r))) {
            if row.partial && distance.1 > PARTIAL {
                continue;
            }
            // The earlier row wins a tie.
            rows.insert(rows.partition_point(|(other, _)| *other <= distance), (distance, row));
        }
        rows.into_iter().map(|r| r.1).collect()
    }
}

/// The tables that a device looks at, in this order: the user's, then the backend's own from the
/// device's to the default.
///
/// ```
/// use gemv::Engine;
/// let device = Engine::new(None).device("reference")?;
/// let origins: Vec<&str> = device.tables().iter().map(|table| &*table.origin).collect();
/// assert_eq!(origins.last(), Some(&"reference")); // the built-in ones come last
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Tables {
    tables: Vec<Table>,
}

impl Tables {
    /// Reads the tables for this device: `GEMV_TABLES`, the user's own directory, the built-in
    /// ones. A table of the user's that is not well formed is left out with a warning in the log,
    /// and a process is warned once where `GEMV_TABLES` names no directory.
    ///
    /// ```
    /// use gemv::unstable::{Tables, reference::Reference};
    /// let tables = Tables::load(&*Reference::open());
    /// assert!(tables.iter().any(|table| table.origin == "reference"));
    /// ```
    pub fn load(backend: &dyn Backend) -> Tables {
        let mut tables = Vec::new();
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Ordering::Relaxed) {
            let named = std::env::var_os(TABLES_ENV).filter(|d| !d.is_empty()).map(PathBuf::from);
            if let Some(dir) = named.filter(|dir| !dir.is_dir()) {
                log::warn!("{TABLES_ENV} names {}, which is no directory", dir.display());
            }
        }
        for dir in user_dirs() {
            let path = dir.join(file_name(backend));
            match read(&path) {
                Some(Ok(table)) => {
                    tell_unknown(&table, backend);
                    tables.push(table);
                }
                Some(Err(why)) => log::warn!("table left out: {why}"),
                None => {}
            }
        }
        for BuiltinTable { name, text } in backend.tables() {
            match Table::parse(name, text) {
                Ok(table) => tables.push(table),
                Err(why) => log::warn!("built-in table left out: {why}"),
            }
        }
        Tables { tables }
    }

    /// The tables, most specific first.
    pub fn iter(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter()
    }

    /// The parameters for this problem, and the table and row they come from. A row for this problem that
    /// is no longer legal, or that names a kernel that does not keep the order, is passed over with a
    /// warning, one for other sizes without; where no row is legal, the backend's first candidate is taken.
    ///
    /// ```
    /// use gemv::{Dtype, Engine, unstable::Desc};
    /// let device = Engine::new(None).device("reference")?;
    /// let desc = Desc::new(Dtype::F32, 64, 64, (64, 1), 0);
    /// let (params, from) = device.tables().explain(device.backend(), &desc);
    /// assert_eq!(params, device.choose(&desc)?);
    /// let (table, row) = from.expect("a row, unless none is legal");
    /// assert_eq!(format!("{}: {row}", table.origin), "reference: * * : reference");
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn explain(&self, backend: &dyn Backend, desc: &Desc) -> (Params, Option<(&Table, &Row)>) {
        // For many products, a built-in row that names their number stands before a user's row for one.
        let many = |row: &&Row| row.rhs.is_some() || row.batch.is_some();
        let passes = if desc.rhs > 1 || desc.batch > 1 { &[true, false][..] } else { &[false] };
        let tables = passes.iter().flat_map(|&pass| self.tables.iter().map(move |t| (pass, t)));
        let candidates = OnceCell::new();
        let candidates = || &candidates.get_or_init(|| backend.candidates(desc))[..];
        for (pass, table) in tables {
            for row in table.nearest(desc).into_iter().filter(|row| many(row) == pass) {
                if !row.params.keeps_order() {
                    let why = "it is chosen on request alone, since it keeps no order";
                    log::warn!("{}: the row {row} is passed over: {why}", table.origin);
                    continue;
                }
                if row.partial {
                    // Candidates fit.
                    if let Some(params) = row.choice(candidates()) {
                        return (params, Some((table, row)));
                    }
                    continue;
                }
                match backend.fits(desc, &row.params) {
                    Ok(()) => return (row.params, Some((table, row))),
                    // A row for every type or layout does not claim to fit each of them, nor one for
                    // other sizes these, nor one for a type a matrix with vectors of another.
                    Err(_) if row.dtype.is_none() || row.layout.is_none() || !row.holds(desc) => {}
                    Err(_) if desc.is_mixed() => {}
                    Err(why) => log::warn!("{}: the row {row} is passed over: {why}", table.origin),
                }
            }
        }
        let first = candidates().first().copied();
        (first.unwrap_or(Params::new("none")), None)
    }

    pub(crate) fn choose(&self, backend: &dyn Backend, desc: &Desc) -> Params {
        self.explain(backend, desc).0
    }
}

/// The file of a device's table in a directory of tables: backend and device name, such as
/// `cuda-nvidia-h200.txt`.
///
/// ```
/// use gemv::unstable::{reference::Reference, table::file_name};
/// let name = file_name(&*Reference::open());
/// assert!(name.starts_with("reference-") && name.ends_with(".txt"));
/// ```
pub fn file_name(backend: &dyn Backend) -> String {
    file_name_of(backend.device())
}

/// The file of a device's table, by what is known of the device before it is opened.
///
/// ```
/// use gemv::{DeviceInfo, unstable::table::file_name_of};
/// let mut info = DeviceInfo::new("cuda:3");
/// info.name = "NVIDIA H200".into();
/// assert_eq!(file_name_of(&info), "cuda-nvidia-h200.txt"); // of any ordinal
/// ```
pub fn file_name_of(info: &DeviceInfo) -> String {
    let kind = info.id.split(':').next().unwrap_or_default();
    let plain: String = format!("{kind}-{}", info.name)
        .to_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| !w.is_empty())
        .collect::<Vec<_>>()
        .join("-");
    format!("{plain}.txt")
}

/// Where a user's tables are looked for: `GEMV_TABLES`, then `gemv/tables` in the user's
/// configuration directory.
///
/// ```
/// use gemv::unstable::table::{TABLES_ENV, user_dirs};
/// if std::env::var_os(TABLES_ENV).is_none() {
///     assert!(user_dirs().iter().all(|dir| dir.ends_with("gemv/tables")));
/// }
/// ```
pub fn user_dirs() -> Vec<PathBuf> {
    let env = std::env::var_os(TABLES_ENV).filter(|d| !d.is_empty()).map(PathBuf::from);
    let config = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|d| !d.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|h| h.join(".config")))
        .map(|c| c.join("gemv").join("tables"));
    env.into_iter().chain(config).collect()
}

/// Warns of rows that end in `..` and serve no problem at all: their kernel or an argument is unknown, so that no candidate
/// has it. Other rows are refused by the backend, where they would serve.
fn tell_unknown(table: &Table, backend: &dyn Backend) {
    let mut rows = table.rows.iter().filter(|row| row.partial).peekable();
    if rows.peek().is_none() {
        return;
    }
    let kernels = backend.kernels();
    for row in rows {
        let name = row.params.kernel();
        let why = match kernels.iter().find(|kernel| kernel.name == name.as_str()) {
            _ if kernels.is_empty() => continue,
            None => format!("there is no kernel {name}"),
            Some(kernel) => {
                let takes = |name: &str, value| {
                    kernel.args.iter().any(|arg| arg.name == name && arg.values.holds(value))
                };
                match row.params.args().find(|(name, value)| !takes(name, *value)) {
                    None => continue,
                    Some((arg, value)) => format!("{name} takes no {arg}={value}"),
                }
            }
        };
        log::warn!("{}: the row {row} serves nothing: {why}", table.origin);
    }
}

/// Bytes of a table's file, at most.
const MOST_OF_TABLE: u64 = 16 << 20;

fn read(path: &Path) -> Option<Result<Table>> {
    let origin = path.display().to_string();
    match read_text(path, MOST_OF_TABLE) {
        Ok(text) => Some(Table::parse(&origin, &text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => Some(Err(Error::Table { origin, line: 0, reason: e.to_string() })),
    }
}
