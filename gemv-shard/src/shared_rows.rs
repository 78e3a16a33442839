//! Products of rows whose columns lie on several devices.

use std::ops::Range;

use gemv_core::order::SEGMENT;
use gemv_core::{Device, DeviceVector, Element, MatrixRef, Times, VectorRef};
use ndarray::{Array1, ShapeBuilder};

use crate::Result;
use crate::element::{ResidentVectors, SumElement, Vectors};
use crate::exchange::{Copies, Written, are_peers, exchange};
use crate::kept::Kept;
use crate::partial::Partial;
use crate::product::{Choice, resident_segment_sums};
use crate::sharded::Part;
use crate::threads::{Task, at_once, started};

/// What a device has of a product of shared rows.
pub(crate) struct Operands<'a, T: Element, V: Element> {
    pub part: &'a Part<T>,
    /// The entries of its columns.
    pub x: &'a DeviceVector<V>,
    /// Which of the shared rows it adds up the sums of.
    pub rows: Range<usize>,
    /// Their entries of y.
    pub y: &'a mut DeviceVector<V>,
}

impl<T: Element, V: Element> Operands<'_, T, V> {
    fn device(&self) -> &Device {
        self.part.a.device()
    }
}

/// `alpha * A x + beta * y` for several sets of rows, each shared by two devices or more, and what else is to be done
/// at the same time.
///
/// Each device sums up the segments of its columns. Then it gets those of its own rows from the others, and adds them
/// up. On an error some entries of y are written, others not.
pub(crate) fn multiply<T, V, S>(
    alpha: S,
    shared: Vec<Vec<Operands<'_, T, V>>>,
    beta: S,
    n: usize,
    others: Vec<Task<'_, ()>>,
    kept: &Kept,
) -> Result<()>
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    // Real sums are added up by a product with ones, in y's own type.
    let real = V::DTYPE == S::DTYPE && !S::DTYPE.is_complex();
    if real && shared.iter().all(|band| are_peers(band.iter().map(Operands::device))) {
        between_peers(alpha, shared, beta, n, others, kept)
    } else {
        by_the_host(alpha, shared, beta, n, others)
    }
}

/// [`multiply`] with sums that pass through the host's memory.
fn by_the_host<T, V, S>(
    alpha: S,
    shared: Vec<Vec<Operands<'_, T, V>>>,
    beta: S,
    n: usize,
    others: Vec<Task<'_, ()>>,
) -> Result<()>
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let others = others.into_iter().map(|(device, other)| -> Task<'_, Option<Partial<S>>> {
        (device, Box::new(move || other().map(|()| None)))
    });
    let sums = shared.iter().flatten().map(|of| -> Task<'_, Option<Partial<S>>> {
        let (part, x) = (of.part, of.x);
        let sums = move || Partial::new(part.a.device(), &part.a, x, part.columns.start, n);
        (of.device(), Box::new(move || sums().map(Some)))
    });
    let mut sums = at_once(others.chain(sums).collect())?.into_iter().flatten();
    let mut tasks = Vec::<Task<'_, ()>>::new();
    for band in shared {
        let sums = Partial::merge(sums.by_ref().take(band.len()))?;
        for of in band {
            let (device, sums) = (of.part.a.device(), sums.slice_rows(of.rows)?);
            tasks.push((device, Box::new(move || sums.finish(device, alpha, beta, of.y))));
        }
    }
    at_once(tasks).map(|_| ())
}

/// [`multiply`] by devices that copy from each other. The sums of other devices' rows come first: they are copied while
/// each device computes those of its own rows.
fn between_peers<T, V, S>(
    alpha: S,
    shared: Vec<Vec<Operands<'_, T, V>>>,
    beta: S,
    n: usize,
    others: Vec<Task<'_, ()>>,
    kept: &Kept,
) -> Result<()>
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let mut all = match kept.take::<Vec<Vec<Sums<S>>>>() {
        Some(all) => all,
        None => shared.iter().map(|band| Sums::of_band(band, n)).collect::<Result<_>>()?,
    };
    let rows: Vec<Vec<_>> =
        shared.iter().map(|band| band.iter().map(|of| of.rows.clone()).collect()).collect();

    let mut tasks = others;
    for ((band, sums), rows) in shared.iter().zip(&mut all).zip(&rows) {
        for (mine, (of, sums)) in band.iter().zip(sums).enumerate() {
            let theirs = (0..rows.len()).filter(move |which| *which != mine);
            let sent = move || {
                let mut choice = None;
                let mut to = theirs.zip(&mut sums.sent);
                to.try_for_each(|(which, to)| segments(of, &mut choice, &rows[which], to, 0))
            };
            tasks.push((of.device(), Box::new(sent)));
        }
    }
    started(tasks)?;

    let copies = shared.iter().zip(&mut all).map(|(band, sums)| deal(band, sums));
    let copies = copies.collect::<Result<Vec<_>>>()?;
    let mut tasks = Vec::<Task<'_, ()>>::new();
    for (of, sums) in shared.iter().flatten().zip(all.iter_mut().flatten()) {
        let first = of.part.columns.start / SEGMENT;
        let own = move || segments(of, &mut None, &of.rows, &mut sums.own, first);
        tasks.push((of.device(), Box::new(own)));
    }
    started(tasks)?;
    copies.into_iter().try_for_each(Copies::finish)?;

    let mut tasks = Vec::<Task<'_, ()>>::new();
    for (of, sums) in shared.into_iter().flatten().zip(all.iter().flatten()) {
        let device = of.part.a.device();
        let terms = sums.own.as_matrix((of.rows.len(), sums.ones.len()).f());
        let y = S::real(V::any::<ResidentVectors>(of.y)).expect("real sums of y's type");
        tasks
            .push((device, Box::new(move || Ok(device.gemv(alpha, &terms, &sums.ones, beta, y)?))));
    }
    started(tasks)?;
    kept.give(all);
    Ok(())
}

/// A device's memory for the sums of a product. Of each segment those of all rows follow one another.
#[derive(Debug)]
struct Sums<S: Element> {
    /// Of the rows that the device adds up, with places for those of all columns.
    own: DeviceVector<S>,
    /// Of its own columns, for each other device those of that device's rows.
    sent: Vec<DeviceVector<S>>,
    /// As many as there are segments.
    ones: DeviceVector<S>,
}

impl<S: SumElement> Sums<S> {
    /// For each device that has columns of these rows.
    fn of_band<T: Element, V: Element>(
        band: &[Operands<'_, T, V>],
        n: usize,
    ) -> Result<Vec<Sums<S>>> {
        let segments = n.div_ceil(SEGMENT);
        let tasks = band.iter().enumerate().map(|(mine, of)| -> Task<'_, Sums<S>> {
            let new = move || {
                let (device, columns) = (of.device(), of.part.columns.len().div_ceil(SEGMENT));
                let others = band.iter().enumerate().filter(|(other, _)| *other != mine);
                let sent = others.map(|(_, other)| device.zeros(columns * other.rows.len()));
                let sent = sent.collect::<gemv_core::Result<_>>()?;
                let own = device.zeros(segments * of.rows.len())?;
                Ok(Sums { own, sent, ones: device.vector(&Array1::from_elem(segments, S::ONE))? })
            };
            (of.device(), Box::new(new))
        });
        started(tasks.collect())
    }
}

/// The sums of a device's columns for some of the rows, from its segment's number `first` of `to` on.
fn segments<T, V, S>(
    of: &Operands<'_, T, V>,
    choice: &mut Option<Choice>,
    rows: &Range<usize>,
    to: &mut DeviceVector<S>,
    first: usize,
) -> Result<()>
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let a = of.part.a.step_rows(rows.clone(), 1);
    let (a, x) = (MatrixRef::Device(&a), S::vector(V::any::<Vectors>(VectorRef::Device(of.x)))?);
    resident_segment_sums(of.device(), choice, &a, &x.get(), to, first * rows.len())
}

/// Starts the copies that give each device the sums of its rows that the others have.
fn deal<T: Element, V: Element, S: SumElement>(
    band: &[Operands<'_, T, V>],
    sums: &mut [Sums<S>],
) -> Result<Copies> {
    let mut pieces: Vec<Vec<(usize, DeviceVector<S>)>> = sums.iter().map(|_| vec![]).collect();
    for (from, Sums { sent, .. }) in sums.iter().enumerate() {
        let others = (0..band.len()).filter(|to| *to != from);
        for (to, sent) in others.zip(sent) {
            let at = band[from].part.columns.start / SEGMENT * band[to].rows.len();
            pieces[to].push((at, sent.clone()));
        }
    }
    let to = sums.iter_mut().map(|sums| &mut sums.own);
    exchange(to.zip(pieces).map(|(to, pieces)| Written { to, pieces }).collect())
}
