//! What can go wrong, each in one sentence.

use std::fmt::{self, Display};

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. `y` is as it was before the call.
///
/// Each variant's text is one sentence, fit to be shown to a person; its fields are for programs. `{:?}` is
/// the same sentence.
///
/// ```
/// use gemv::device;
/// use gemv_shard::{Error, Partial};
/// use ndarray::{Array1, Array2};
///
/// let (a, x) = (Array2::<f32>::ones((2, 256)), Array1::<f32>::ones(256));
/// let first = Partial::new(&device("reference")?, &a, &x, 0, 512)?;
/// let mut y = [7.0f32; 2];
/// let e = first.finish(&device("reference")?, 1.0, 0.0, &mut y).unwrap_err();
/// assert_eq!(e.to_string(), "partial sums are missing: columns 256 to 511");
/// assert_eq!((e, y), (Error::Missing { part: "columns 256 to 511".into() }, [7.0; 2]));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What a device or its product reports, such as shapes that do not fit.
    #[error(transparent)]
    Product(#[from] gemv_core::Error),
    /// A part begins or ends within a segment.
    #[error(
        "a part of {columns} columns from column {first} on, of {total}: it must begin at a multiple \
         of 256, and end at one or with the last column"
    )]
    Cut {
        /// The part's first column.
        first: usize,
        /// Its number of columns.
        columns: usize,
        /// Columns of the whole matrix.
        total: usize,
    },
    /// A process of a block-cyclic distribution has another number of columns than that gives it.
    #[error(
        "process {process} of {processes} holds {columns} columns, where blocks of 256 of {total} \
         columns give it {}", show_holds(.holds)
    )]
    Cyclic {
        /// The process, from 0.
        process: usize,
        /// How many there are.
        processes: usize,
        /// Columns of its matrix.
        columns: usize,
        /// Columns that it should have; `None` if there is no such process.
        holds: Option<usize>,
        /// Columns of the whole matrix.
        total: usize,
    },
    /// Partial sums of two different products.
    #[error("partial sums do not belong together: {left} and {right}")]
    Differ {
        /// What one of them is, such as `3 rows`.
        left: String,
        /// What another is.
        right: String,
    },
    /// A part came twice.
    #[error("partial sums came twice: {part}")]
    Overlap {
        /// Such as `columns 256 to 511`.
        part: String,
    },
    /// A part is not there.
    #[error("partial sums are missing: {part}")]
    Missing {
        /// Such as `columns 256 to 511`, the first of what is missing.
        part: String,
    },
    /// Rows are asked for that are not there.
    #[error("partial sums of {rows} rows have no rows {}", show_rows(.first, .end))]
    Rows {
        /// The first that is asked for.
        first: usize,
        /// One more than the last.
        end: usize,
        /// How many there are.
        rows: usize,
    },
    /// There is nothing to merge.
    #[error("there are no partial sums to merge")]
    Nothing,
    /// Partial sums are not those that can be added before they are sent.
    #[error("partial sums cannot be reduced for {processes} processes: {reason}")]
    Reduce {
        /// The processes.
        processes: usize,
        /// What is in the way.
        reason: String,
    },
    /// There is no device to hold a matrix.
    #[error("a matrix is shared by one device or more, but there is none")]
    NoDevices,
    /// There are more or fewer devices than places in the grid.
    #[error(
        "a grid of {rows} × {columns} has {} places, but there are {devices} devices",
        show_places(.rows, .columns)
    )]
    Grid {
        /// Rows of the grid.
        rows: usize,
        /// Columns of the grid.
        columns: usize,
        /// The devices that there are.
        devices: usize,
    },
    /// Columns cannot be dealt cyclically to so many devices.
    #[error("columns are dealt cyclically to 1, 2, 4, 8, 16, 32 or 64 devices, not to {devices}")]
    CyclicDevices {
        /// The devices that there are.
        devices: usize,
    },
    /// Weights that are not one for each device, or no weights.
    #[error("weights do not fit: {reason}")]
    Weights {
        /// What is wrong with them.
        reason: String,
    },
    /// A file that is not what it should be, or cannot be read.
    #[error("{reason}")]
    File {
        /// What is wrong, with the file's name where it was given.
        reason: String,
    },
    /// Bytes that are not what was written.
    #[error("these bytes are no partial sums: {reason}")]
    Bytes {
        /// What is wrong with them.
        reason: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

fn show_holds(holds: &Option<usize>) -> String {
    holds.map_or("no place".into(), |columns| columns.to_string())
}

fn show_rows(first: &usize, end: &usize) -> String {
    match end.checked_sub(1).filter(|last| last >= first) {
        Some(last) => format!("{first} to {last}"),
        None => format!("from {first} up to before {end}"),
    }
}

fn show_places(rows: &usize, columns: &usize) -> String {
    // More than a number holds are too many as well.
    rows.saturating_mul(*columns).to_string()
}
