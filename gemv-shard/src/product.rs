//! Sums on a device, by the products that it has.

use std::ops::Range;

use gemv_core::order::SEGMENT;
use gemv_core::{
    Accumulator, Device, Element, Error as CoreError, GemmJob, Input, Layout, MatrixRef, Output,
    Times, VectorRef, Window,
};
use ndarray::{Array1, Array2, ArrayView2, ArrayView3, ArrayViewMut2, Axis, Ix3};

use crate::Result;
use crate::element::SumElement;

/// Whether the resident operands are this device's.
pub(crate) fn owns<const N: usize>(device: &Device, of: [Option<&Device>; N]) -> Result<()> {
    match of.into_iter().flatten().find(|operand| !operand.is(device)) {
        None => Ok(()),
        Some(operand) => Err(CoreError::WrongDevice {
            device: device.info().id.clone(),
            operand: operand.info().id.clone(),
        }
        .into()),
    }
}

/// Zeros in the host's memory, `count` times `each`.
pub(crate) fn zeros<S: Element>(count: usize, each: usize) -> Result<Vec<S>> {
    let refused = || CoreError::OutOfMemory {
        device: "the host".into(),
        asked: (count as u64).saturating_mul(each as u64).saturating_mul(S::DTYPE.bytes() as u64),
        free: None,
    };
    let len = count.checked_mul(each).ok_or_else(refused)?;
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(len).map_err(|_| refused())?;
    zeros.resize(len, S::default());
    Ok(zeros)
}

/// The sums of all segments, one after the other; of each, those of all rows.
///
/// A segment's sum is the dot product of 256 columns: rule 4 of the order has nothing to add to it, and
/// factors of 1 and 0 nothing to scale. So the segments are the entries of a batch (rule 8).
pub(crate) fn segment_sums<T, S>(
    device: &Device,
    a: MatrixRef<'_, T>,
    x: VectorRef<'_, S>,
) -> Result<Vec<S>>
where
    T: Element + Times<S>,
    S: SumElement,
{
    let (rows, columns) = a.dim();
    let (whole, rest) = (columns / SEGMENT, columns % SEGMENT);
    let mut sums = zeros::<S>(columns.div_ceil(SEGMENT), rows)?;
    if sums.is_empty() {
        return Ok(sums);
    }
    let (first, last) = sums.split_at_mut(whole * rows);
    let cut = whole * SEGMENT;
    for (columns, width, to) in [(0..cut, SEGMENT, first), (cut..columns, rest, last)] {
        if columns.is_empty() {
            continue;
        }
        let to = ArrayViewMut2::from_shape((to.len() / rows, rows), to).expect("one of each row");
        batch(device, &a, &x, columns, width, to)?;
    }
    Ok(sums)
}

/// The sums of some columns, whose segments have one width.
fn batch<T, S>(
    device: &Device,
    a: &MatrixRef<'_, T>,
    x: &VectorRef<'_, S>,
    columns: Range<usize>,
    width: usize,
    to: ArrayViewMut2<'_, S>,
) -> Result<()>
where
    T: Element + Times<S>,
    S: SumElement,
{
    let (count, rows) = to.dim();
    let far = |stride: usize, entries: usize| stride.wrapping_mul(entries);
    // An axis of a view is cut in two without a copy.
    let cut = "an axis as the product of two";
    let (here_a, here_x, cut_a, cut_x);
    let a = match a {
        MatrixRef::Host(a) => {
            here_a = a.slice_axis(Axis(1), columns.clone().into());
            cut_a = here_a.to_shape((rows, count, width)).expect(cut);
            Input::Host(cut_a.view().permuted_axes([1, 0, 2]))
        }
        MatrixRef::Device(a) => {
            let Window { memory, first, strides, .. } = a.window();
            let first = first.wrapping_add(far(strides[1], columns.start));
            let strides = Ix3(far(strides[1], width), strides[0], strides[1]);
            Input::Device(Window { memory, first, dim: Ix3(count, rows, width), strides })
        }
    };
    let x = match x {
        VectorRef::Host(x) => {
            here_x = x.slice_axis(Axis(0), columns.into());
            cut_x = here_x.to_shape((count, width, 1)).expect(cut);
            Input::Host(cut_x.view())
        }
        VectorRef::Device(x) => {
            let Window { memory, first, strides, .. } = x.window();
            let first = first.wrapping_add(far(strides[0], columns.start));
            let strides = Ix3(far(strides[0], width), strides[0], 0);
            Input::Device(Window { memory, first, dim: Ix3(count, width, 1), strides })
        }
    };
    let y = Output::Host(to.insert_axis(Axis(2)));
    run(device, GemmJob { alpha: S::ONE, a, conj: false, x, beta: S::ZERO, y })
}

/// From so many rows on, a segment has work enough for all threads of a host.
const MANY_ROWS: usize = 512;

/// Hands a batch to the backend, whose operands are checked.
fn run<T, S>(device: &Device, mut job: GemmJob<'_, T, S>) -> Result<()>
where
    T: Element + Times<S>,
    S: SumElement,
{
    let (desc, backend, info) = (job.desc(), device.backend(), device.info());
    // In the host's memory, kernels for one vector read a large segment faster than those for a batch. But
    // a part of the columns by rows has gaps, and all backends but the CPU's would copy it without them.
    let without_copy = desc.layout == Layout::Col || info.id.starts_with("cpu");
    let one_by_one = info.host && desc.m >= MANY_ROWS && without_copy;
    if !one_by_one && desc.batch > 1 {
        let prepared = backend.prepare(&desc, &device.choose(&desc)?)?;
        return Ok(backend.gemm(job.erase(), &prepared)?);
    }
    for segment in 0..desc.batch {
        let one = job.column(segment, 0);
        let desc = one.desc();
        let prepared = backend.prepare(&desc, &device.choose(&desc)?)?;
        backend.gemv(one.erase(), &prepared)?;
    }
    Ok(())
}

/// Adds up the terms of every row by rule 4: column t of the matrix `terms` has all terms t, and there are
/// two or more.
///
/// The product with ones is that rule, since `fma(v, 1, acc)` is `acc + v`. (With a single term it is not: `+0`
/// would be added to it, which changes -0.)
pub(crate) fn add_up<P>(device: &Device, terms: ArrayView2<'_, P>) -> Result<Array1<P>>
where
    P: Element<Acc = P> + Accumulator,
{
    let (rows, count) = terms.dim();
    let mut sums = Array1::from_vec(zeros(rows, 1)?);
    device.gemv(P::ONE, terms, &Array1::from_elem(count, P::ONE), P::ZERO, &mut sums)?;
    Ok(sums)
}

/// [`add_up`] for each of a batch of matrices, of at most 64 terms; one may be all there is.
pub(crate) fn add_lanes<P>(device: &Device, terms: ArrayView3<'_, P>) -> Result<Array2<P>>
where
    P: Element<Acc = P> + Accumulator,
{
    let (batch, rows, count) = terms.dim();
    let sums = zeros(batch, rows)?;
    let mut sums = Array2::from_shape_vec((batch, rows), sums).expect("as many as there are");
    let ones = Array1::from_elem(count, P::ONE);
    let ones = ones.broadcast((batch, count)).expect("along a new axis");
    device.gemv_batched(P::ONE, terms, ones, P::ZERO, &mut sums)?;
    Ok(sums)
}
