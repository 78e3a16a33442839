//! Sums on a device, by the products that it has.

use std::ops::Range;

use gemv_core::order::SEGMENT;
use gemv_core::{
    Accumulator, Desc, Device, DeviceMatrix, DeviceVector, Element, Error as CoreError, Job,
    Layout, MatrixRef, Number, Prepared, Tensor, TensorMut, Times, VectorRef, Window,
    zeros_on_host,
};
use ndarray::{Array1, Array2, ArrayView2, ArrayView3, ArrayViewMut3, Axis, Ix1, Ix3};

use crate::Result;
use crate::element::SumElement;
use crate::memory::filled;
use crate::threads::on_cpu;

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
    Ok(zeros_on_host(count.saturating_mul(each))?)
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
    let mut sums = zeros::<S>(columns.div_ceil(SEGMENT), rows)?;
    segment_sums_to(device, &mut None, &a, &x, &mut sums)?;
    Ok(sums)
}

/// [`segment_sums`] to their places. What was chosen for one matrix is kept for the next of its shape.
pub(crate) fn segment_sums_to<T, S>(
    device: &Device,
    choice: &mut Option<Choice>,
    a: &MatrixRef<'_, T>,
    x: &VectorRef<'_, S>,
    sums: &mut [S],
) -> Result<()>
where
    T: Element + Times<S>,
    S: SumElement,
{
    let (rows, columns) = a.dim();
    if sums.is_empty() {
        return Ok(());
    }
    for (columns, width) in widths(columns) {
        let place = columns.start / SEGMENT * rows..columns.end.div_ceil(SEGMENT) * rows;
        let to = &mut sums[place];
        let to = ArrayViewMut3::from_shape((to.len() / rows, rows, 1), to);
        batch(device, choice, a, x, columns, width, to.expect("one of each row").into())?;
    }
    Ok(())
}

/// [`segment_sums_to`] a vector of the device: those of the matrix' first segment are written from this entry on.
pub(crate) fn resident_segment_sums<T, S>(
    device: &Device,
    choice: &mut Option<Choice>,
    a: &MatrixRef<'_, T>,
    x: &VectorRef<'_, S>,
    sums: &mut DeviceVector<S>,
    first: usize,
) -> Result<()>
where
    T: Element + Times<S>,
    S: SumElement,
{
    let (rows, columns) = a.dim();
    if rows == 0 {
        return Ok(());
    }
    for (columns, width) in widths(columns) {
        let dim = Ix3(columns.len().div_ceil(SEGMENT), rows, 1);
        let first = first + columns.start / SEGMENT * rows;
        let memory = sums.window_mut().expect("nobody shares them").memory;
        assert!(first + dim[0] * rows <= memory.len(), "sums beyond the end of their block");
        let to = Window { memory, first, dim, strides: Ix3(rows, 1, 0) };
        let to = TensorMut::device(S::DTYPE, to);
        batch(device, choice, a, x, columns, width, to)?;
    }
    Ok(())
}

/// The columns of whole segments, and those of a shorter one: which, and of what width.
fn widths(columns: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
    let cut = columns / SEGMENT * SEGMENT;
    let all = [(0..cut, SEGMENT), (cut..columns, columns - cut)];
    all.into_iter().filter(|(columns, _)| !columns.is_empty())
}

/// What was proved for a problem.
pub(crate) type Choice = (Desc, Prepared);

/// The sums of some columns, whose segments have one width.
fn batch<T, S>(
    device: &Device,
    choice: &mut Option<Choice>,
    a: &MatrixRef<'_, T>,
    x: &VectorRef<'_, S>,
    columns: Range<usize>,
    width: usize,
    y: TensorMut<'_>,
) -> Result<()>
where
    T: Element + Times<S>,
    S: SumElement,
{
    let [count, rows, _] = y.dim();
    let far = |stride: usize, entries: usize| stride.wrapping_mul(entries);
    // An axis of a view is cut in two without a copy.
    let cut = "an axis as the product of two";
    let (here_a, here_x, cut_a, cut_x);
    let a = match a {
        MatrixRef::Host(a) => {
            here_a = a.slice_axis(Axis(1), columns.clone().into());
            cut_a = here_a.to_shape((rows, count, width)).expect(cut);
            Tensor::from(cut_a.view().permuted_axes([1, 0, 2]))
        }
        MatrixRef::Device(a) => {
            let Window { memory, first, strides, .. } = a.window();
            let first = first.wrapping_add(far(strides[1], columns.start));
            let strides = Ix3(far(strides[1], width), strides[0], strides[1]);
            let window = Window { memory, first, dim: Ix3(count, rows, width), strides };
            Tensor::device(T::DTYPE, window)
        }
    };
    let x = match x {
        VectorRef::Host(x) => {
            here_x = x.slice_axis(Axis(0), columns.into());
            cut_x = here_x.to_shape((count, width, 1)).expect(cut);
            Tensor::from(cut_x.view())
        }
        VectorRef::Device(x) => {
            let Window { memory, first, strides, .. } = x.window();
            let first = first.wrapping_add(far(strides[0], columns.start));
            let strides = Ix3(far(strides[0], width), strides[0], 0);
            let window = Window { memory, first, dim: Ix3(count, width, 1), strides };
            Tensor::device(S::DTYPE, window)
        }
    };
    let (alpha, beta) = (Number::new(S::ONE), Number::new(S::ZERO));
    // Kernels of the CPU that widen the elements first.
    let widens = size_of::<T::Acc>() != size_of::<S>();
    run(device, choice, Job { alpha, a, conj: false, x, beta, y }, widens)
}

/// From so many rows on, a segment has work enough for all threads of a host.
const MANY_ROWS: usize = 512;

/// Hands a batch to the backend.
fn run(device: &Device, choice: &mut Option<Choice>, job: Job<'_>, widens: bool) -> Result<()> {
    let mut job = job.check()?;
    let (desc, backend, info) = (job.desc(), device.backend(), device.info());
    // In the host's memory, kernels for one vector read a large segment faster than those for a batch do. But the CPU
    // reads a batch by rows along its rows, unless it widens the elements first; and of the others, some would copy a
    // segment by rows, to be without its gaps.
    let one_by_one = info.host
        && desc.m >= MANY_ROWS
        && match on_cpu(device) {
            true => desc.layout != Layout::Row || widens,
            false => desc.layout == Layout::Col,
        };
    if !one_by_one {
        return Ok(backend.product(&mut job, chosen(device, choice, desc)?)?);
    }
    job.columns(|one| {
        let desc = one.desc();
        Ok(backend.product(one, chosen(device, choice, desc)?)?)
    })
}

/// What the tables choose for a problem: the last choice, if it was for the same.
fn chosen<'c>(device: &Device, choice: &'c mut Option<Choice>, desc: Desc) -> Result<&'c Prepared> {
    let known = choice.take().filter(|(of, _)| *of == desc);
    let known = match known {
        Some(known) => known,
        None => (desc, device.prepared(&desc)?),
    };
    Ok(&choice.insert(known).1)
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
    device.gemv(P::ONE, terms, &filled(count, P::ONE)?, P::ZERO, &mut sums)?;
    Ok(sums)
}

/// [`add_up`] of resident terms, which are of real numbers.
pub(crate) fn add_up_resident<P>(device: &Device, terms: &DeviceMatrix<P>) -> Result<Array1<P>>
where
    P: Element<Acc = P> + Accumulator,
{
    let (rows, count) = terms.dim();
    let mut sums = device.zeros(rows)?;
    device.gemv(P::ONE, terms, &filled(count, P::ONE)?, P::ZERO, &mut sums)?;
    Ok(sums.download()?)
}

/// The sums of a device's cyclic columns for all rows of its matrix, from this entry of `sums` on: of each row, `groups`
/// numbers. `x` begins with the entry of the first of its columns. `prepared` is of
/// [`prepare_cyclic`](gemv_core::Backend::prepare_cyclic).
pub(crate) fn cyclic_sums<T, S>(
    device: &Device,
    prepared: &Prepared,
    a: &DeviceMatrix<T>,
    x: &DeviceVector<S>,
    sums: &mut DeviceVector<S>,
    (first, groups): (usize, usize),
) -> Result<()>
where
    T: Element + Times<S>,
    S: SumElement,
{
    let (rows, columns) = a.dim();
    let (a, x) = (a.window(), x.window());
    let y = sums.window_mut().expect("nobody shares them");
    let (first, strides) = (y.first + first, Ix1(groups));
    let y = Window { memory: y.memory, first, dim: Ix1(rows), strides };
    let y = TensorMut::device(S::DTYPE, y);
    let x = Window { dim: Ix1(columns), ..x };
    let (a, x) = (Tensor::device(T::DTYPE, a), Tensor::device(S::DTYPE, x));
    let (alpha, beta) = (Number::new(S::ONE), Number::new(S::ZERO));
    let job = Job { alpha, a, conj: false, x, beta, y };
    Ok(device.backend().product(&mut job.check()?, prepared)?)
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
    device.product(terms, ones).scaled(P::ONE, P::ZERO).to(&mut sums)?;
    Ok(sums)
}
