//! Ranks as a grid.

use std::fmt::{self, Display};
use std::ops::Range;

use gemv_core::{Device, devices};
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::*;

use crate::agree::{Call, agree};
use crate::exchange::{LIMIT, rank_and_size};
use crate::layout::{Layout, Split};
use crate::{Error, Result};

/// The ranks of a communicator, and how matrices are cut over them.
///
/// It has communicators of its own, so its messages meet no others. It has to be dropped before MPI is finalized,
/// that is before the `Universe` of the `mpi` crate.
///
/// Every function that says "collective" is called by all ranks, in the same order and with the same arguments
/// but for a rank's own data. It returns an error on all ranks or on none.
///
/// ```
/// use gemv_mpi::{Distributed, Grid, Split};
/// use ndarray::Array1;
///
/// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
/// let grid = Grid::new(&universe.world(), Split::Rows)?;
/// let device = grid.device("reference")?; // or "cuda": the GPUs of a node, one for each of its ranks
/// let a = Distributed::from_fn(&grid, &device, (300, 500), |i, j| 1.0 / (1 + i + j) as f64)?;
/// let mut y = Array1::zeros(300);
/// a.gemv(1.0, &Array1::ones(500), 0.0, &mut y)?; // the same bits for any number of ranks
/// # assert!(y[0] > y[1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Grid {
    /// All ranks.
    pub(crate) comm: SimpleCommunicator,
    /// The ranks of this row of the grid, numbered by the columns.
    pub(crate) row: SimpleCommunicator,
    /// The ranks of this column of the grid, numbered by the rows.
    pub(crate) column: SimpleCommunicator,
    pub(crate) split: Split,
    pub(crate) p: usize,
    pub(crate) q: usize,
    pub(crate) rank: usize,
    /// Among the ranks of this node.
    on_node: usize,
    pub(crate) limit: usize,
}

impl fmt::Debug for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grid({:?}, {} × {}, rank {})", self.split, self.p, self.q, self.rank)
    }
}

impl Grid {
    /// The ranks of this communicator, for matrices that are cut so. Collective.
    ///
    /// # Errors
    /// [`Error::Grid`] if the communicator has not as many ranks as the grid, [`Error::Disagree`] if the ranks
    /// ask for different splits.
    pub fn new(comm: &impl Communicator, split: Split) -> Result<Grid> {
        let comm = comm.duplicate();
        let (rank, ranks) = rank_and_size(&comm);
        let made = match split {
            Split::Grid { p, q } => split.grid(ranks).ok_or(Error::Grid { p, q, ranks }),
            Split::Rows => Ok((ranks, 1)),
            Split::Columns => Ok((1, ranks)),
        };
        let (p, q) = agree(&comm, Call::of("Grid::new").split(split, LIMIT), made)?;
        let (row, column) = (rank / q, rank % q);
        let part = |color: usize, key: usize| {
            let part = comm.split_by_color_with_key(Color::with_value(color as i32), key as i32);
            part.expect("MPI gives a communicator to each rank that has a colour")
        };
        let (row, column) = (part(row, column), part(column, row));
        let on_node = rank_and_size(&comm.split_shared(rank as i32)).0;
        Ok(Grid { comm, row, column, split, p, q, rank, on_node, limit: LIMIT })
    }

    /// Sends no message of more bytes than this, but pieces one after the other; 2^30 if it is not called.
    /// All ranks ask for the same. Of 0 bytes, one is sent.
    #[must_use]
    pub fn message_bytes(self, bytes: usize) -> Grid {
        Grid { limit: bytes.clamp(1, LIMIT), ..self }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Rows and columns of the grid: p × q ranks. By rows it is of one column, by columns of one row.
    pub fn dim(&self) -> (usize, usize) {
        (self.p, self.q)
    }

    /// How matrices are cut.
    pub fn split(&self) -> Split {
        self.split
    }

    /// This rank's rows of a matrix of `dim` rows and columns: in ascending runs, from 0.
    ///
    /// ```
    /// use gemv_mpi::{Grid, Split};
    ///
    /// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
    /// let grid = Grid::new(&universe.world(), Split::Rows)?;
    /// // On one rank, all rows and all columns.
    /// assert!(grid.rows((300, 600)).eq([0..300]));
    /// assert!(grid.columns((300, 600)).eq([0..600]));
    /// assert_eq!(grid.part_dim((300, 600)), (300, 600));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rows(&self, dim: (usize, usize)) -> impl Iterator<Item = Range<usize>> + use<> {
        let layout = self.layout(dim);
        layout.rows(layout.place(self.rank).0)
    }

    /// This rank's columns of a matrix of `dim` rows and columns: in ascending runs, from 0.
    pub fn columns(&self, dim: (usize, usize)) -> impl Iterator<Item = Range<usize>> + use<> {
        let layout = self.layout(dim);
        layout.columns(layout.place(self.rank).1)
    }

    /// How many rows and columns of a matrix of `dim` rows and columns this rank has. Of a grid it is ScaLAPACK's
    /// `numroc` of both.
    pub fn part_dim(&self, dim: (usize, usize)) -> (usize, usize) {
        self.layout(dim).part(self.rank)
    }

    /// A device for this rank. Collective.
    ///
    /// The name of a backend, such as `cuda`, gives each rank of a node another device of it, and starts again
    /// with the first where there are more ranks than devices. The name of a device, such as `cuda:1` or `cpu`,
    /// gives that one. Ranks may ask for different names.
    ///
    /// # Errors
    /// [`Error::Product`] if there is none, and [`Error::Rank`] if another rank has none.
    pub fn device(&self, name: &str) -> Result<Device> {
        let prefix = format!("{name}:");
        let of_it = devices();
        let count = of_it.iter().filter(|l| l.found.is_ok() && l.id.starts_with(&prefix)).count();
        let name = match self.on_node.checked_rem(count) {
            Some(which) => format!("{prefix}{which}"),
            None => name.to_owned(),
        };
        let found = gemv_core::device(&name).map_err(Error::from);
        agree(&self.comm, self.call("Grid::device"), found)
    }

    /// Makes an error of one rank one of all ranks, for steps of the program's own. Collective.
    ///
    /// For steps of this rank alone. An error of a collective function is on all ranks already; where it is
    /// given to this one, ranks that left earlier would not take part.
    ///
    /// ```
    /// use gemv_mpi::{Grid, Split};
    ///
    /// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
    /// let grid = Grid::new(&universe.world(), Split::Rows)?;
    /// let number = grid.agree("17".parse::<usize>())?;
    /// assert_eq!(number, 17);
    /// let e = grid.agree("x".parse::<usize>()).unwrap_err();
    /// assert_eq!(e.to_string(), "rank 0 failed: invalid digit found in string");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Rank`] on every rank, if one gives an error.
    pub fn agree<R, E: Display>(&self, mine: Result<R, E>) -> Result<R> {
        // An `Error::Rank` of this rank: what the others are told is its reason alone.
        let mine = mine.map_err(|e| Error::Rank { rank: self.rank, reason: e.to_string() });
        agree(&self.comm, self.call("Grid::agree"), mine)
    }

    pub(crate) fn call(&self, function: &str) -> Call {
        Call::of(function).split(self.split, self.limit)
    }

    pub(crate) fn layout(&self, (m, n): (usize, usize)) -> Layout {
        Layout { split: self.split, p: self.p, q: self.q, m, n }
    }
}

/// Ends the program on all ranks when this one panics, after the panic's message.
///
/// A rank that panics unwinds and waits in `MPI_Finalize` for the others, which wait for it. Call this once, after
/// MPI is initialized.
///
/// ```
/// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
/// gemv_mpi::abort_on_panic();
/// # drop(universe);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn abort_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        SimpleCommunicator::world().abort(101)
    }));
}
