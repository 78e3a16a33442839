//! Memory that is asked for, and not taken for granted.

use gemv_core::{Element, host_is_full};

use crate::Result;

/// `count` times `each` of the same value.
pub(crate) fn filled<T: Element>(count: usize, each: usize, value: T) -> Result<Vec<T>> {
    let asked = (count as u64).saturating_mul(each as u64).saturating_mul(size_of::<T>() as u64);
    let refused = || host_is_full("the host", asked);
    let len = count.checked_mul(each).ok_or_else(refused)?;
    let mut all = Vec::new();
    all.try_reserve_exact(len).map_err(|_| refused())?;
    all.resize(len, value);
    Ok(all)
}

/// Memory for so many bytes.
pub(crate) fn reserved(count: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reserve(&mut bytes, count)?;
    Ok(bytes)
}

/// Makes room for so many more bytes.
pub(crate) fn reserve(bytes: &mut Vec<u8>, more: usize) -> Result<()> {
    Ok(bytes.try_reserve(more).map_err(|_| host_is_full("the host", more as u64))?)
}
