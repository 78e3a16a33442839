//! Settings: how products are measured, and how a table is fitted.

use gemv_core::table::Row;

/// What the caches hold when a product starts.
///
/// ```
/// use gemv_lab::tuner::{RunnerSettings, Mode};
/// assert_eq!(RunnerSettings::default().mode, Mode::Cold);
/// assert_eq!(Mode::Warm.name(), "warm");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mode {
    /// No operand: each product takes another matrix and another x, and enough is read
    /// before one comes again.
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

/// How a [`DeviceRunner`](super::DeviceRunner) measures.
///
/// ```
/// use gemv_lab::tuner::{RunnerSettings, Mode};
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
    /// In the mode `Cold`, problems that move at most this many bytes are measured with
    /// warm caches. A small matrix of the host is usually in its caches: it was just made,
    /// or used before.
    pub warm_to: u64,
    /// In the mode `Cold`, larger problems that move at most this many bytes are measured
    /// in both modes, and their time is the geometric mean. Whether such a matrix is in the
    /// caches depends on the caller, and one choice serves both.
    pub both_to: u64,
    /// The largest matrix, in bytes.
    pub max_bytes: u64,
    /// Seconds of a batch, about.
    pub batch: f64,
    /// Most products of a batch.
    pub products: usize,
    /// Whether operands are host arrays in place of resident ones, as most callers of a CPU
    /// have them. They begin where the allocator puts them, which can ask for other
    /// parameters. Bits are compared on resident operands all the same; that products of
    /// arrays have them is for the backend's own tests. Only a host device heeds this.
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

/// How rows of a table are fitted to measured points.
///
/// ```
/// use gemv_lab::tuner::FitSettings;
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
    /// What a row has to save: a sum over points, of the logarithms of the ratios to the
    /// best time.
    pub row_cost: f64,
    /// A ratio beyond this share above the best is a hole: its excess counts `hole_penalty`
    /// times more. A table with one hole is worse than one that is slightly slower
    /// everywhere.
    pub hole_from: f64,
    /// How many times the excess of a hole counts again.
    pub hole_penalty: f64,
    /// The weight of the points next to a point, or in its place where it was not measured.
    /// What is also good at its neighbours is better in between.
    pub neighbour_weight: f64,
    /// The present rows of the class, which cost nothing to keep. A new row stands before
    /// them only where it saves its cost. Empty to start from nothing.
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
