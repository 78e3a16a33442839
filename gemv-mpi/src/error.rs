//! What can go wrong, each in one sentence.

use std::fmt::{self, Display};

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, on every rank of the grid: if one rank fails, all ranks return an error. `y` is as it was
/// before the call.
///
/// The rank that failed returns what happened there. The others return [`Error::Rank`] with the same sentence.
/// Each variant's text is one sentence, fit to be shown to a person; its fields are for programs. `{:?}` is the
/// same sentence.
///
/// ```
/// use gemv_mpi::{Error, Grid, Split};
///
/// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
/// // On one rank, as without mpirun.
/// let e = Grid::new(&universe.world(), Split::Grid { p: 2, q: 3 }).unwrap_err();
/// assert_eq!(e.to_string(), "a grid of 2 × 3 needs 6 ranks, but the communicator has 1");
/// assert!(matches!(e, Error::Grid { ranks: 1, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What a device or its product reports, such as too little memory.
    #[error(transparent)]
    Product(#[from] gemv_core::Error),
    /// What partial sums or a file report.
    #[error(transparent)]
    Shard(#[from] gemv_shard::Error),
    /// The communicator has another number of ranks than the grid.
    #[error("a grid of {p} × {q} needs {} ranks, but the communicator has {ranks}", show_needs(.p, .q))]
    Grid {
        /// Rows of the grid.
        p: usize,
        /// Columns of the grid.
        q: usize,
        /// The ranks that there are.
        ranks: usize,
    },
    /// An array is not the rank's own part of the matrix.
    #[error(
        "this rank holds {} × {} of the {} × {} matrix, where the split gives it {} × {}",
        .holds.0, .holds.1, .matrix.0, .matrix.1, .needs.0, .needs.1
    )]
    Part {
        /// Rows and columns of the array.
        holds: (usize, usize),
        /// Rows and columns of the matrix.
        matrix: (usize, usize),
        /// Rows and columns of the rank's own part.
        needs: (usize, usize),
    },
    /// A vector has another number of entries than the rank's own part of it.
    #[error("this rank's part of {vector} must have {needs} entries, but it has {holds}")]
    Local {
        /// Which, `x` or `y`.
        vector: &'static str,
        /// Its entries.
        holds: usize,
        /// Those that it should have.
        needs: usize,
    },
    /// The rank that a vector comes from or goes to is not there, or has no vector.
    #[error("rank {root} is to be the root: {reason}")]
    Root {
        /// The rank.
        root: usize,
        /// What is wrong.
        reason: String,
    },
    /// Two ranks call different functions, or one function with different arguments.
    #[error("the ranks do not agree on {what}: {first} on rank 0, {other} on rank {rank}")]
    Disagree {
        /// What differs, such as `the rows of the matrix`.
        what: &'static str,
        /// What rank 0 has.
        first: String,
        /// The first rank that has something else.
        rank: usize,
        /// What that is.
        other: String,
    },
    /// Another rank failed.
    #[error("rank {rank} failed: {reason}")]
    Rank {
        /// The first rank that did.
        rank: usize,
        /// Its error.
        reason: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

fn show_needs(p: &usize, q: &usize) -> String {
    p.checked_mul(*q).map_or("more than countable".into(), |ranks| ranks.to_string())
}
