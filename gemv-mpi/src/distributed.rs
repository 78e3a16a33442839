//! A matrix over the ranks of a grid.

use std::ops::Range;
use std::path::Path;

use bytemuck::Pod;
use gemv_core::order::SEGMENT;
use gemv_core::{Device, DeviceMatrix, Element, MatrixRef, zeros_on_host};
use gemv_shard::Streamed;
use ndarray::{Array2, ArrayViewMut2, Axis, Slice};

use crate::agree::agree;
use crate::grid::Grid;
use crate::layout::Layout;
use crate::{Error, Result};

/// This rank's own part of a matrix of m × n.
///
/// It lies on the rank's own device: on a CPU in the host's memory, else resident. The part of another rank is
/// never here. Products are those of [`gemv`](Self::gemv) and [`gemv_local`](Self::gemv_local), with the bits of
/// the product of the whole matrix on one device.
///
/// ```
/// use gemv_mpi::{Distributed, Grid, Split};
/// use ndarray::{Array1, array};
///
/// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
/// let grid = Grid::new(&universe.world(), Split::Columns)?;
/// let device = grid.device("reference")?;
/// let a = Distributed::from_fn(&grid, &device, (2, 700), |i, j| (i + j) as f32)?;
/// assert_eq!(a.dim(), (2, 700));
///
/// // x and y whole on every rank.
/// let mut y = array![f32::NAN, 1.0];
/// assert!(a.gemv(1.0, &Array1::zeros(699), 0.0, &mut y).is_err());
/// a.gemv(1.0, &Array1::from_elem(700, 1.0), 0.0, &mut y)?;
/// assert_eq!(y, array![244_650.0, 245_350.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Distributed<'g, T: Element> {
    pub(crate) grid: &'g Grid,
    pub(crate) device: Device,
    pub(crate) layout: Layout,
    part: Part<T>,
}

#[derive(Debug)]
enum Part<T: Element> {
    Host(Array2<T>),
    Device(DeviceMatrix<T>),
}

impl<T: Element> Part<T> {
    fn new(device: &Device, a: Array2<T>) -> Result<Part<T>> {
        // The CPU and the reference read an array where it is: an upload would be a copy.
        Ok(match device.info().id.as_str() {
            "cpu" | "reference" => Part::Host(a),
            _ => Part::Device(device.matrix(&a)?),
        })
    }
}

impl<'g, T: Element> Distributed<'g, T> {
    /// The matrix of `dim` rows and columns whose parts the ranks have already. Collective.
    ///
    /// `part` has the rows and columns of [`Grid::part_dim`], one block after the other, in any layout:
    /// element (i, j) of it is that of the i-th of this rank's [rows](Grid::rows) and the j-th of its
    /// [columns](Grid::columns).
    ///
    /// ```
    /// use gemv_mpi::{Distributed, Grid, Split};
    /// use ndarray::Array2;
    ///
    /// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
    /// let grid = Grid::new(&universe.world(), Split::Grid { p: 1, q: 1 })?;
    /// let device = grid.device("reference")?;
    /// let part = Array2::<f64>::eye(3); // on one rank, the whole
    /// assert_eq!(grid.part_dim((3, 3)), part.dim());
    /// let a = Distributed::from_part(&grid, &device, (3, 3), part)?;
    /// let mut y = [0.0; 3];
    /// a.gemv(1.0, &[1.0, 2.0, 3.0], 0.0, &mut y)?;
    /// assert_eq!(y, [1.0, 2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Part`] if it has other rows or columns, [`Error::Product`] if the device has not the memory,
    /// [`Error::Disagree`] if the ranks give different `dim` or types.
    pub fn from_part(
        grid: &'g Grid,
        device: &Device,
        dim: (usize, usize),
        part: Array2<T>,
    ) -> Result<Distributed<'g, T>> {
        let needs = grid.part_dim(dim);
        let part = match part.dim() == needs {
            true => Ok(part),
            false => Err(Error::Part { holds: part.dim(), matrix: dim, needs }),
        };
        Distributed::agreed(grid, device, dim, part)
    }

    /// The matrix whose element in row i and column j is `element(i, j)`, from 0. Collective; each rank calls the
    /// function for its own part alone.
    ///
    /// # Errors
    /// [`Error::Product`] without memory, [`Error::Disagree`] if the ranks give different `dim` or types.
    pub fn from_fn(
        grid: &'g Grid,
        device: &Device,
        dim: (usize, usize),
        mut element: impl FnMut(usize, usize) -> T,
    ) -> Result<Distributed<'g, T>> {
        let layout = grid.layout(dim);
        let part = local(&layout, grid.rank).and_then(|mut part| {
            each_block(&layout, grid.rank, usize::MAX, |rows, columns, at| {
                let mut to = block(&mut part, at, (rows.len(), columns.len()));
                for (i, mut to) in rows.zip(to.outer_iter_mut()) {
                    to.iter_mut().zip(columns.clone()).for_each(|(to, j)| *to = element(i, j));
                }
                Ok(())
            })?;
            Ok(part)
        });
        Distributed::agreed(grid, device, dim, part)
    }

    fn agreed(
        grid: &'g Grid,
        device: &Device,
        dim: (usize, usize),
        part: Result<Array2<T>>,
    ) -> Result<Distributed<'g, T>> {
        let layout = grid.layout(dim);
        let part = part.and_then(|part| Part::new(device, part));
        let call = grid.call("Distributed::new").matrix(&layout, T::DTYPE);
        let part = agree(&grid.comm, call, part)?;
        Ok(Distributed { grid, device: device.clone(), layout, part })
    }

    /// Rows and columns of the whole matrix.
    pub fn dim(&self) -> (usize, usize) {
        (self.layout.m, self.layout.n)
    }

    /// The rank's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The columns of this rank, and so the entries of x that it multiplies: in ascending runs.
    ///
    /// By rows, these are all.
    pub fn columns(&self) -> impl Iterator<Item = Range<usize>> + use<T> {
        self.grid.columns(self.dim())
    }

    /// The entries of y that this rank finishes: in ascending runs. Each entry has one rank.
    ///
    /// By rows, these are the rank's rows. Ranks that have different columns of the same rows share the rows.
    pub fn entries(&self) -> impl Iterator<Item = Range<usize>> + use<T> {
        self.layout.entries(self.grid.rank)
    }

    /// The rank's own part, where it lies.
    pub(crate) fn part(&self) -> MatrixRef<'_, T> {
        match &self.part {
            Part::Host(a) => a.into(),
            Part::Device(a) => a.into(),
        }
    }
}

impl<'g, T: Element + Pod> Distributed<'g, T> {
    /// The matrix in a NumPy file, of which each rank reads its own part and nothing else. Collective.
    ///
    /// The file holds elements of `T`, in any byte order, by rows or by columns. The ranks of different nodes may
    /// name different copies of it.
    ///
    /// ```
    /// use gemv_mpi::{Distributed, Grid, Split};
    /// # let path = std::env::temp_dir().join(format!("gemv-mpi-{}.npy", std::process::id()));
    /// # let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    /// # let mut file = [b"\x93NUMPY\x01\x00\x76\x00", format!("{dict:<117}\n").as_bytes()].concat();
    /// # (1..=6).for_each(|v| file.extend((v as f32).to_le_bytes()));
    /// # std::fs::write(&path, file)?;
    ///
    /// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
    /// let grid = Grid::new(&universe.world(), Split::Rows)?;
    /// let a = Distributed::<f32>::from_npy(&grid, &grid.device("reference")?, &path)?;
    /// let mut y = [0.0; 2];
    /// a.gemv(1.0, &[1.0, 0.0, 0.0], 0.0, &mut y)?;
    /// assert_eq!(y, [1.0, 4.0]);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shard`] if the file cannot be read, is no matrix of `T`, or is shorter than its header announces;
    /// [`Error::Product`] without memory; [`Error::Disagree`] if the ranks' files are of different matrices.
    pub fn from_npy(
        grid: &'g Grid,
        device: &Device,
        path: impl AsRef<Path>,
    ) -> Result<Distributed<'g, T>> {
        let opened = Streamed::open(path).map_err(Error::from);
        // Where there is no file, no shape is compared: that rank has failed.
        let dim = opened.as_ref().map_or((0, 0), Streamed::dim);
        let layout = grid.layout(dim);
        let part = opened.and_then(|file| {
            // A rank without elements compares their type too.
            file.read_part::<T>(0..0, 0..0)?;
            let ((row, column), (m, n)) = (layout.place(grid.rank), layout.part(grid.rank));
            let mut runs = (layout.rows(row), layout.columns(column));
            let first = (runs.0.next().unwrap_or(0..0), runs.1.next().unwrap_or(0..0));
            if (first.0.len(), first.1.len()) == (m, n) {
                return Ok(file.read_part(first.0, first.1)?);
            }
            let mut part = local(&layout, grid.rank)?;
            // No more rows at a time than a block has: a part of the file is read once from the disk.
            each_block(&layout, grid.rank, SEGMENT, |rows, columns, at| {
                let read = file.read_part(rows, columns)?;
                block(&mut part, at, read.dim()).assign(&read);
                Ok(())
            })?;
            Ok(part)
        });
        Distributed::agreed(grid, device, dim, part)
    }
}

/// The place of a rank's own part, by rows.
fn local<T: Element>(layout: &Layout, rank: usize) -> Result<Array2<T>> {
    let (m, n) = layout.part(rank);
    let elements = zeros_on_host(m.saturating_mul(n))?;
    Ok(Array2::from_shape_vec((m, n), elements).expect("as many as there are"))
}

/// A block of a rank's own part, which begins there and has so many rows and columns.
fn block<T>(part: &mut Array2<T>, at: (usize, usize), dim: (usize, usize)) -> ArrayViewMut2<'_, T> {
    let mut block = part.view_mut();
    block.slice_axis_inplace(Axis(0), Slice::from(at.0..at.0 + dim.0));
    block.slice_axis_inplace(Axis(1), Slice::from(at.1..at.1 + dim.1));
    block
}

/// Calls a function for each block of a rank's own part, with its rows and columns, and where they are in the
/// part. A block has at most so many rows.
fn each_block(
    layout: &Layout,
    rank: usize,
    most: usize,
    mut each: impl FnMut(Range<usize>, Range<usize>, (usize, usize)) -> Result<()>,
) -> Result<()> {
    let (row, column) = layout.place(rank);
    let mut i = 0;
    for run in layout.rows(row) {
        for start in run.clone().step_by(most) {
            let rows = start..run.end.min(start.saturating_add(most));
            let mut j = 0;
            for columns in layout.columns(column) {
                let width = columns.len();
                each(rows.clone(), columns, (i, j))?;
                j += width;
            }
            i += rows.len();
        }
    }
    Ok(())
}
