//! The product.

use std::borrow::Cow;
use std::ops::Range;

use bytemuck::Pod;
use gemv_core::order::{LANES, SEGMENT};
use gemv_core::{
    Element, Error as CoreError, ShapeMismatch, Times, host_is_full, packed, zeros_on_host,
};
use gemv_shard::{Partial, SumElement};
use ndarray::{ArrayView1, ArrayViewMut1};

use crate::agree::{Call, TOLD, agree, agree_and_tell};
use crate::distributed::Distributed;
use crate::exchange::{all_to_all, ranges};
use crate::layout::Split;
use crate::vectors::select;
use crate::{Error, Result};

/// Bytes of a run of segments in the header of a message ([`Partial::to_bytes`]).
const RUN: usize = 16;

/// A rank's sums, before they are sent.
struct Summed<S> {
    /// Of the rows that it finishes.
    own: Partial<S>,
    /// Of those that the other ranks of its row finish: bytes for one after those for another.
    message: Vec<u8>,
    /// How many bytes for each; for itself none.
    send: Vec<usize>,
    /// Bytes of a message's header, and of each row of it.
    told: [usize; TOLD],
    /// Memory for what the others send.
    to: Vec<u8>,
}

impl<T: Element> Distributed<'_, T> {
    /// `y = alpha * A x + beta * y`, with x and y whole on every rank. Collective.
    ///
    /// `x` has n entries, the same on every rank, and `y` has m. After it every rank has the same y: the bits of
    /// the product of the whole matrix on one device. The elements may be of a wider type than the matrix', as in a
    /// product. `alpha = 0` reads neither the matrix nor x; `beta = 0` does not read y. Else an entry of y is read on
    /// the rank that finishes it, which [`entries`](Self::entries) tells.
    ///
    /// ```
    /// use gemv::GpuDot;
    /// use gemv_mpi::{Distributed, Grid, Split};
    /// use ndarray::{Array1, Array2};
    /// # gemv::Engine::global().set_default("reference")?;
    ///
    /// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
    /// let grid = Grid::new(&universe.world(), Split::Columns)?;
    /// let element = |i: usize, j: usize| ((3 * i + j) as f64).sin();
    /// let a = Distributed::from_fn(&grid, &grid.device("reference")?, (4, 1000), element)?;
    /// let (x, mut y) = (Array1::from_elem(1000, 0.1), Array1::zeros(4));
    /// a.gemv(2.0, &x, 0.0, &mut y)?;
    ///
    /// let whole = Array2::from_shape_fn((4, 1000), |(i, j)| element(i, j));
    /// assert_eq!(y, whole.gpu_dot(&x) * 2.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Product`] of [`Shape`](gemv_core::Error::Shape) if x or y has another length, or of what the
    /// device reports; [`Error::Disagree`] if alpha, beta or the types differ from rank to rank;
    /// [`Error::Rank`] if another rank failed. `y` is then as it was.
    pub fn gemv<'x, 'y, V, S>(
        &self,
        alpha: S,
        x: impl Into<ArrayView1<'x, V>>,
        beta: S,
        y: impl Into<ArrayViewMut1<'y, V>>,
    ) -> Result<()>
    where
        T: Times<V> + Times<S>,
        V: Element<Acc = S> + Pod,
        S: SumElement,
    {
        let (x, y, layout, rank) = (x.into(), y.into(), &self.layout, self.grid.rank);
        let ready = || {
            if (x.len(), y.len()) != (layout.n, layout.m) {
                let (matrix, y) = (self.dim(), Some(y.len()));
                let shapes = ShapeMismatch::MatrixVector { matrix, x: x.len(), y };
                return Err(CoreError::Shape(shapes).into());
            }
            let count = layout.finishes(rank).len();
            let mine = match beta.is_zero() {
                true => zeros_on_host::<V>(count)?,
                false => select(&y.view(), layout.entries(rank), count)?,
            };
            let columns = layout.part(rank).1;
            let x = match x.as_slice() {
                // Of a single run.
                Some(x) if columns == layout.n => Cow::Borrowed(x),
                _ => Cow::Owned(select(&x, self.columns(), columns)?),
            };
            Ok((x, mine, zeros_on_host::<V>(layout.m)?))
        };
        let (local, mut all) = match ready() {
            Ok((x, mine, all)) => (Ok((x, mine)), all),
            Err(e) => (Err(e), Vec::new()),
        };
        let call = self.grid.call("gemv");
        let mine = self.finished(call, alpha, beta, local)?;
        self.all_gather(&mine, &mut all, y);
        Ok(())
    }

    /// `y = alpha * A x + beta * y`, where each rank has its own entries of x and of y. Collective.
    ///
    /// `x` has the entries of [`columns`](Self::columns), one after the other, as
    /// [`scatter_x`](Self::scatter_x) gives them; `y` those of [`entries`](Self::entries), which
    /// [`gather_y`](Self::gather_y) puts together. All else is as in [`gemv`](Self::gemv).
    ///
    /// ```
    /// use gemv_mpi::{Distributed, Grid, Split};
    /// use ndarray::{Array1, array};
    ///
    /// let universe = mpi::initialize().ok_or("MPI was initialized before")?;
    /// let grid = Grid::new(&universe.world(), Split::Grid { p: 1, q: 1 })?;
    /// let device = grid.device("reference")?;
    /// let a = Distributed::from_fn(&grid, &device, (2, 3), |i, j| (3 * i + j) as f32)?;
    /// let root = array![1.0, 1.0, 1.0]; // on rank 0
    /// let x = a.scatter_x(0, (grid.rank() == 0).then(|| root.view()))?;
    /// let mut part = Array1::zeros(a.entries().map(|run| run.len()).sum::<usize>());
    /// a.gemv_local(1.0, &x, 0.0, &mut part)?;
    /// let mut y = array![0.0, 0.0];
    /// a.gather_y(0, part.view(), (grid.rank() == 0).then(|| y.view_mut()))?;
    /// assert_eq!(y, array![3.0, 12.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv), but [`Error::Local`] if a rank's part of x or y has another length.
    pub fn gemv_local<'x, 'y, V, S>(
        &self,
        alpha: S,
        x: impl Into<ArrayView1<'x, V>>,
        beta: S,
        y: impl Into<ArrayViewMut1<'y, V>>,
    ) -> Result<()>
    where
        T: Times<V> + Times<S>,
        V: Element<Acc = S> + Pod,
        S: SumElement,
    {
        let (x, mut y, layout, rank) = (x.into(), y.into(), &self.layout, self.grid.rank);
        let ready = || {
            let lengths =
                [("x", x.len(), layout.part(rank).1), ("y", y.len(), layout.finishes(rank).len())];
            for (vector, holds, needs) in lengths {
                if holds != needs {
                    return Err(Error::Local { vector, holds, needs });
                }
            }
            let mine = match beta.is_zero() {
                true => zeros_on_host::<V>(y.len())?,
                false => packed(&y.view())?,
            };
            let x = match x.as_slice() {
                Some(x) => Cow::Borrowed(x),
                None => Cow::Owned(packed(&x)?),
            };
            Ok((x, mine))
        };
        let mine = self.finished(self.grid.call("gemv_local"), alpha, beta, ready())?;
        y.iter_mut().zip(mine).for_each(|(to, from)| *to = from);
        Ok(())
    }

    /// The entries of y that this rank finishes, from its own entries of x and y, on all ranks or on none.
    fn finished<V, S>(
        &self,
        call: Call,
        alpha: S,
        beta: S,
        ready: Result<(Cow<'_, [V]>, Vec<V>)>,
    ) -> Result<Vec<V>>
    where
        T: Times<V> + Times<S>,
        V: Element<Acc = S> + Pod,
        S: SumElement,
    {
        let (grid, layout, device) = (self.grid, &self.layout, &self.device);
        let call = call.matrix(layout, T::DTYPE).vectors(V::DTYPE).factors(alpha, beta);
        // Whole rows: a product. And without A x there are no sums to send.
        if grid.q == 1 || alpha.is_zero() {
            let done = ready.and_then(|(x, mut mine)| {
                let y = ArrayViewMut1::from(&mut mine[..]);
                if grid.q == 1 {
                    device.product(self.part(), &x[..]).scaled(alpha, beta).to(y)?;
                } else {
                    let nothing = ndarray::Array2::<T>::default((y.len(), 0));
                    let sums = Partial::new(device, &nothing, &[] as &[V], 0, 0)?;
                    sums.finish(device, alpha, beta, y)?;
                }
                Ok(mine)
            });
            return agree(&grid.comm, call, done);
        }

        let summed = ready.and_then(|(x, mine)| Ok((self.summed::<V, S>(&x)?, mine)));
        let told = summed.as_ref().map_or([0; TOLD], |(summed, _)| summed.told);
        let ((summed, mut mine), told) = agree_and_tell(&grid.comm, call.step(1), told, summed)?;
        let Summed { own, message, send, mut to, .. } = summed;

        let (rows, size) = (own.rows(), grid.p * grid.q);
        let from = |other: usize| match other == grid.rank {
            true => 0,
            false => told[other][0] + told[other][1] * rows,
        };
        let receive: Vec<usize> = self.ranks_of_row().map(from).collect();
        // What is reserved is enough.
        to.resize(receive.iter().sum(), 0);
        let sends = |rank: usize| told[rank][0] * grid.q + told[rank][1] * layout.part(rank).0;
        let most = (0..size).map(sends).max().unwrap_or(0);
        all_to_all(&grid.row, &message, &send, &mut to, &receive, most, grid.limit);

        let done = || {
            let parts = ranges(&receive).filter(|range| !range.is_empty());
            let parts = parts.map(|range| Partial::from_bytes(&to[range]));
            let parts = std::iter::once(Ok(own)).chain(parts);
            let sums = Partial::merge(parts.collect::<Result<Vec<_>, _>>()?)?;
            sums.finish(device, alpha, beta, ArrayViewMut1::from(&mut mine[..]))?;
            Ok(mine)
        };
        agree(&grid.comm, call.step(2), done())
    }

    /// The ranks of this row of the grid, which have columns of the same rows.
    fn ranks_of_row(&self) -> Range<usize> {
        let first = self.layout.place(self.grid.rank).0 * self.grid.q;
        first..first + self.grid.q
    }

    /// What this rank's columns contribute to its rows, cut by the ranks that finish them.
    fn summed<V, S>(&self, x: &[V]) -> Result<Summed<S>>
    where
        T: Times<S>,
        V: Element<Acc = S>,
        S: SumElement,
    {
        let (grid, layout) = (self.grid, &self.layout);
        let sums = self.sums(x)?;
        let (mut message, mut send) = (Vec::new(), Vec::with_capacity(grid.q));
        for other in self.ranks_of_row() {
            let before = message.len();
            if other != grid.rank {
                let bytes = sums.slice_rows(layout.finishes(other))?.to_bytes()?;
                reserve(&mut message, bytes.len())?;
                message.extend(bytes);
            }
            send.push(message.len() - before);
        }
        let own = sums.slice_rows(layout.finishes(grid.rank))?;
        let header = sums.slice_rows(0..0)?.to_bytes()?.len();
        let row = size_of::<S>() * sums.len().checked_div(sums.rows()).unwrap_or(0);
        // All ranks together have no more sums of a row than one for each segment, and no more runs.
        let segments = layout.n.div_ceil(SEGMENT) + grid.q;
        let most = own.rows().saturating_mul(size_of::<S>()).saturating_add(RUN);
        let most = most.saturating_mul(segments).saturating_add(grid.q.saturating_mul(header));
        let mut to = Vec::new();
        reserve(&mut to, most)?;
        Ok(Summed { own, message, send, told: [header, row], to })
    }

    /// What this rank's columns contribute to its rows.
    fn sums<V, S>(&self, x: &[V]) -> Result<Partial<S>>
    where
        T: Times<S>,
        V: Element<Acc = S>,
        S: SumElement,
    {
        let (grid, layout) = (self.grid, &self.layout);
        let column = layout.place(grid.rank).1;
        if layout.split == Split::Columns {
            let first = layout.columns(column).next().map_or(0, |run| run.start);
            return Ok(Partial::new(&self.device, self.part(), x, first, layout.n)?);
        }
        let sums = Partial::cyclic(&self.device, self.part(), x, column, grid.q, layout.n)?;
        // Whole lanes of the second level: one number for each row and 65,536 columns.
        match grid.q.is_power_of_two() && grid.q <= LANES && layout.n > SEGMENT {
            true => Ok(sums.reduce(grid.q)?),
            false => Ok(sums),
        }
    }
}

/// Makes room for so many more bytes.
fn reserve(bytes: &mut Vec<u8>, more: usize) -> Result<()> {
    Ok(bytes.try_reserve(more).map_err(|_| host_is_full("the host", more as u64))?)
}
