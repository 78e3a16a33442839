//! Problems of several right-hand sides, and of batches.

use gemv_core::Desc;

/// This problem with so many right-hand sides, in a batch of so many matrices that lie one behind the
/// other: an entry of the batch may begin at a lesser alignment than the first.
///
/// ```
/// use gemv_core::Desc;
/// use gemv_lab::tuner::many;
/// let desc: Desc = "f32 row 3x16".parse()?;
/// assert_eq!(many(desc, 8, 1).to_string(), "f32 row 3x16 rhs=8");
/// let column: Desc = "f32 col 5x1".parse()?; // the first column begins at 64 bytes,
/// assert_eq!(many(column, 1, 2).align, 2); // the second matrix 20 bytes further
/// # Ok::<(), String>(())
/// ```
pub fn many(desc: Desc, rhs: usize, batch: usize) -> Desc {
    let apart = desc.m.wrapping_mul(desc.n).wrapping_mul(desc.dtype.bytes());
    let apart = if batch > 1 { apart } else { 0 };
    let align = desc.align.min((apart | 64).trailing_zeros() as u8);
    Desc { align, rhs, batch, ..desc }
}

/// Entries of A, of X and of Y, of the whole batch; saturating.
pub(super) fn lens(desc: &Desc) -> [usize; 3] {
    let Desc { m, n, rhs, batch, .. } = *desc;
    [(m, n), (n, rhs), (m, rhs)].map(|(a, b)| a.saturating_mul(b).saturating_mul(batch))
}

/// Bytes of the largest of A, X and Y, each of the whole batch; saturating.
pub(crate) fn largest(desc: &Desc) -> u64 {
    let most = lens(desc).into_iter().max().unwrap_or(0);
    (most as u64).saturating_mul(desc.dtype.bytes() as u64)
}
