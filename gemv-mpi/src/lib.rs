//! Matrix-vector products over the ranks of MPI, with the bits of one process.
//!
//! Each rank holds its own part of the matrix on its own device. What ranks send is x, y and, where columns are
//! cut, the sums of segments of 256 columns ([`gemv_shard::Partial`]). The
//! [order of additions](gemv_core::order) is that of one process, so any split over any number of ranks and any
//! mixture of devices gives the same bits.
//!
//! | [`Split`] | a rank holds | a rank sends in a product |
//! |---|---|---|
//! | [`Rows`](Split::Rows) | rows that follow one another | its entries of y |
//! | [`Columns`](Split::Columns) | columns that follow one another, in blocks of 256 | one number for each row and 256 of its columns, and its entries of y |
//! | [`Grid`](Split::Grid) | blocks of 256 × 256, as ScaLAPACK deals them | for q = 1, 2, 4, .. 64: one number for each of its rows and 65,536 columns of the whole, and its entries of y |
//!
//! ```
//! use gemv_mpi::{Distributed, Grid, Split};
//! use ndarray::Array1;
//!
//! // mpirun -n 4 program
//! let universe = mpi::initialize().ok_or("MPI was initialized before")?;
//! let grid = Grid::new(&universe.world(), Split::Rows)?;
//! let device = grid.device("reference")?; // "cpu", or "cuda": one GPU of the node for each rank
//! let a = Distributed::from_fn(&grid, &device, (600, 600), |i, j| 1.0 / (1 + i.abs_diff(j)) as f64)?;
//! let (x, mut y) = (Array1::ones(600), Array1::zeros(600)); // whole on every rank
//! a.gemv(1.0, &x, 0.0, &mut y)?;
//! if grid.rank() == 0 {
//!     println!("{}", y.sum());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An error of one rank is an error of all: ranks agree before they communicate, so none waits for one that has
//! failed. A rank that is killed ends the program on all ranks, which is what MPI does by default; let a panic do
//! the same by [`abort_on_panic`].
//!
//! Programs that run without mpirun, several at one time, race for the session folder of Open MPI, and one of them may
//! fail to start: give each a `TMPDIR` of its own.
//!
//! Backends are those of the program: it depends on `gemv` with features, or asks this crate for `cpu`, `cuda` or
//! `opencl`. Without any there is the slow `reference`.
//!
//! It is built on the `mpi` crate, and needs an MPI library (Open MPI or MPICH), its compiler `mpicc`, and libclang.
#![forbid(unsafe_code)]

mod agree;
mod distributed;
mod error;
mod exchange;
mod grid;
mod layout;
mod product;
mod vectors;

// Nothing names what it links.
#[cfg(any(feature = "cpu", feature = "cuda", feature = "opencl"))]
use gemv as _;

pub use distributed::Distributed;
pub use error::{Error, Result};
pub use grid::{Grid, abort_on_panic};
pub use layout::Split;

/// The bindings of MPI whose communicators a [`Grid`] is made of.
#[doc(no_inline)]
pub use mpi;
