//! Vectors from one rank to all, and back.

use std::ops::Range;

use bytemuck::Pod;
use gemv_core::{Element, packed, zeros_on_host};
use ndarray::{Array1, ArrayView1, ArrayViewMut1};

use crate::agree::agree;
use crate::distributed::Distributed;
use crate::exchange::{all_gather, broadcast, gather, rank_and_size, scatter};
use crate::layout::Layout;
use crate::{Error, Result};

impl<T: Element> Distributed<'_, T> {
    /// Deals out `x`, which the rank `root` has: each rank gets the entries of its
    /// [`columns`](Self::columns), one after the other. Collective; the other ranks give `None`.
    ///
    /// The root sends along its row of the grid, and each rank there along its column.
    ///
    /// # Errors
    /// [`Error::Root`] if there is no such rank, or it has no x; [`Error::Local`] if x has not n entries;
    /// [`Error::Product`] without memory.
    pub fn scatter_x<V: Element + Pod>(
        &self,
        root: usize,
        x: Option<ArrayView1<'_, V>>,
    ) -> Result<Array1<V>> {
        let (grid, layout, size) = (self.grid, &self.layout, size_of::<V>());
        let (root_row, root_column) = layout.place(root);
        let counts: Vec<usize> = (0..grid.q).map(|column| size * self.width_of(column)).collect();
        let ready = || {
            let mine = zeros_on_host::<V>(layout.part(grid.rank).1)?;
            let x = self.at_root(root, x.as_ref())?.map(|x| match x.len() == layout.n {
                true => dealt(x, layout),
                false => Err(Error::Local { vector: "x", holds: x.len(), needs: layout.n }),
            });
            Ok((mine, x.transpose()?))
        };
        let call = grid.call("scatter_x").matrix(layout, T::DTYPE).vectors(V::DTYPE).root(root);
        let (mut mine, x) = agree(&grid.comm, call, ready())?;
        let to: &mut [u8] = bytemuck::cast_slice_mut(&mut mine);
        if layout.place(grid.rank).0 == root_row {
            let x = x.as_deref().map(bytemuck::cast_slice);
            scatter(&grid.row, root_column, x, &counts, to, grid.limit);
        }
        broadcast(&grid.column, root_row, to, grid.limit);
        Ok(Array1::from_vec(mine))
    }

    /// Puts together `y` on the rank `root`, which has a place of m entries, from what each rank has of it: the
    /// entries of [`entries`](Self::entries), one after the other. Collective; the other ranks give `None`.
    ///
    /// # Errors
    /// [`Error::Root`] if there is no such rank, or it has no place; [`Error::Local`] if a part or the place has
    /// another length; [`Error::Product`] without memory. `y` is then as it was.
    pub fn gather_y<V: Element + Pod>(
        &self,
        root: usize,
        part: ArrayView1<'_, V>,
        y: Option<ArrayViewMut1<'_, V>>,
    ) -> Result<()> {
        let (grid, layout) = (self.grid, &self.layout);
        let ready = || {
            let needs = layout.finishes(grid.rank).len();
            if part.len() != needs {
                return Err(Error::Local { vector: "y", holds: part.len(), needs });
            }
            let mine = packed(&part)?;
            let all = match self.at_root(root, y.as_ref())? {
                Some(y) if y.len() != layout.m => {
                    return Err(Error::Local { vector: "y", holds: y.len(), needs: layout.m });
                }
                Some(_) => Some(zeros_on_host::<V>(layout.m)?),
                None => None,
            };
            Ok((mine, all))
        };
        let call = grid.call("gather_y").matrix(layout, T::DTYPE).vectors(V::DTYPE).root(root);
        let (mine, mut all) = agree(&grid.comm, call, ready())?;
        let to = all.as_deref_mut().map(bytemuck::cast_slice_mut);
        let counts = self.counts(size_of::<V>());
        gather(&grid.comm, root, bytemuck::cast_slice(&mine), &counts, to, grid.limit);
        if let (Some(all), Some(y)) = (all, y) {
            place(&all, layout, y);
        }
        Ok(())
    }

    /// Puts together `y` on every rank. Every rank has agreed on it, and has memory for `all`.
    pub(crate) fn all_gather<V: Element + Pod>(
        &self,
        mine: &[V],
        all: &mut [V],
        y: ArrayViewMut1<'_, V>,
    ) {
        let (counts, grid) = (self.counts(size_of::<V>()), self.grid);
        let to = bytemuck::cast_slice_mut(all);
        all_gather(&grid.comm, bytemuck::cast_slice(mine), &counts, to, grid.limit);
        place(all, &self.layout, y);
    }

    /// What this rank has, if it is the root.
    fn at_root<'v, W>(&self, root: usize, vector: Option<&'v W>) -> Result<Option<&'v W>> {
        let (rank, ranks) = rank_and_size(&self.grid.comm);
        let refused = |reason: String| Err(Error::Root { root, reason });
        match vector {
            _ if root >= ranks => refused(format!("there are {ranks} ranks")),
            None if rank == root => refused("it gives no vector".into()),
            vector => Ok(vector.filter(|_| rank == root)),
        }
    }

    /// The columns of a column of the grid.
    fn width_of(&self, column: usize) -> usize {
        self.layout.part(column).1
    }

    /// Bytes of y that each rank has.
    fn counts(&self, size: usize) -> Vec<usize> {
        let ranks = 0..self.grid.p * self.grid.q;
        ranks.map(|rank| size * self.layout.finishes(rank).len()).collect()
    }
}

/// The entries of x, those of one column of the grid after those of another.
fn dealt<V: Element>(x: &ArrayView1<'_, V>, layout: &Layout) -> Result<Vec<V>> {
    select(x, (0..layout.q).flat_map(|column| layout.columns(column)), layout.n)
}

/// The entries of y where they belong, from those of one rank after those of another.
fn place<V: Element>(all: &[V], layout: &Layout, mut y: ArrayViewMut1<'_, V>) {
    let runs = (0..layout.p * layout.q).flat_map(|rank| layout.entries(rank));
    all.iter().zip(runs.flatten()).for_each(|(&from, i)| y[i] = from);
}

/// The entries of a vector at these places, one after the other.
pub(crate) fn select<V: Element>(
    from: &ArrayView1<'_, V>,
    runs: impl Iterator<Item = Range<usize>>,
    count: usize,
) -> Result<Vec<V>> {
    let mut all = zeros_on_host::<V>(count)?;
    all.iter_mut().zip(runs.flatten()).for_each(|(to, i)| *to = from[i]);
    Ok(all)
}
