//! How products are measured, and how a table is fitted.

use gemv_core::table::Row;

/// What the caches hold when a product starts.
///
/// ```
/// use gemv_tune::{RunnerSettings, Mode};
/// assert_eq!(RunnerSettings::default().mode, Mode::Cold);
/// assert_eq!(Mode::Warm.name(), "warm");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mode {
    /// Nothing of it: each product takes another matrix and another x, and enough is read before
    /// one comes again.
    #[default]
    Cold,
    /// What fits: each product takes the same operands.
    Warm,
}

impl Mode {
    /// `cold` or `warm`.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Cold => "cold",
            Mode::Warm => "warm",
        }
    }
}

/// How a [`DeviceRunner`] measures.
///
/// ```
/// use gemv_tune::{RunnerSettings, Mode};
/// let mut settings = RunnerSettings::default();
/// (settings.mode, settings.max_bytes) = (Mode::Warm, 1 << 24);
/// assert!(settings.batch < 1e-3 && settings.products > 1);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RunnerSettings {
    /// What the caches hold.
    pub mode: Mode,
    /// Bytes that are read before an operand comes again: several times the last cache.
    pub cold_bytes: u64,
    /// In the mode `Cold`, problems that move no more bytes than this are measured with warm caches all the same. A
    /// host's small matrix is in its caches when it is multiplied: it was just made, or used before.
    pub warm_to: u64,
    /// In the mode `Cold`, problems that move more, but no more than this, are measured in both modes, and their time is the geometric mean: whether
    /// such a matrix is still in the caches is the caller's doing, and the choice has to serve both.
    pub both_to: u64,
    /// The largest matrix, in bytes.
    pub max_bytes: u64,
    /// Seconds that a batch takes, about.
    pub batch: f64,
    /// Products of a batch at most.
    pub products: usize,
    /// Whether operands are the host's arrays, as nearly all of a CPU's callers have them, in place of
    /// resident ones. They begin where the allocator puts them, which may be beside a cache line, on the pages
    /// that it has: both may ask for other parameters. Bits are compared on resident operands all the same: that a product of arrays
    /// has them is for the backend's own tests to say. Devices that are not the host take no notice of it.
    pub arrays: bool,
}

impl Default for RunnerSettings {
    fn default() -> RunnerSettings {
        RunnerSettings {
            mode: Mode::Cold,
            cold_bytes: 256 << 20,
            warm_to: 0,
            both_to: 0,
            max_bytes: 1 << 30,
            batch: 200e-6,
            products: 128,
            arrays: false,
        }
    }
}

/// How rows are made of points.
///
/// ```
/// use gemv_tune::FitSettings;
/// let mut short = FitSettings::default();
/// short.limit = 10;
/// assert!(short.row_cost > 0.0 && short.neighbour_weight < 1.0);
/// assert!(short.from.is_empty()); // from nothing
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FitSettings {
    /// Most rows.
    pub limit: usize,
    /// A row has to save this much, as a sum over points of the logarithms of what they cost.
    pub row_cost: f64,
    /// What a choice costs beyond this share of the best counts again, so many times as `hole_penalty` says: a table with a
    /// hole is worse than one that is a little slower everywhere.
    pub hole_from: f64,
    /// How many times.
    pub hole_penalty: f64,
    /// The share with which the points around a point count beside it, or in its place where it is not
    /// known: what serves there too serves better in between.
    pub neighbour_weight: f64,
    /// The present rows of the class, [which are to be had for nothing](super::present()): a new row stands before
    /// them only where it saves its price beside what they choose. Empty to begin with nothing.
    pub from: Vec<Row>,
}

impl Default for FitSettings {
    fn default() -> FitSettings {
        FitSettings {
            limit: 100,
            row_cost: 0.03,
            hole_from: 0.05,
            hole_penalty: 16.0,
            neighbour_weight: 0.5,
            from: Vec::new(),
        }
    }
}
