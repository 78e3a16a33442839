//! Memory of the host that is asked for, and not taken for granted.

use gemv_core::{Element, host_is_full, packed, zeros_on_host};
use ndarray::{Array1, ArrayView1};

use crate::Result;

/// So many of the same.
pub(crate) fn filled<S: Element>(len: usize, value: S) -> Result<Array1<S>> {
    let mut all = zeros_on_host(len)?;
    all.fill(value);
    Ok(all.into())
}

/// A copy.
pub(crate) fn copied<S: Element>(of: ArrayView1<'_, S>) -> Result<Array1<S>> {
    Ok(packed(&of)?.into())
}

/// What an iterator has, of a length that it tells.
pub(crate) fn collected<T>(of: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    reserve(&mut all, of.len())?;
    all.extend(of);
    Ok(all)
}

/// Makes room for so many more.
pub(crate) fn reserve<T>(in_it: &mut Vec<T>, more: usize) -> Result<()> {
    let asked = (more as u64).saturating_mul(size_of::<T>() as u64);
    Ok(in_it.try_reserve(more).map_err(|_| host_is_full("the host", asked))?)
}
