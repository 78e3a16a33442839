//! Products of rows whose columns lie on several devices.

use std::ops::Range;

use gemv_core::order::SEGMENT;
use gemv_core::{Device, DeviceVector, Element, MatrixRef, Times, VectorRef};
use ndarray::{Array1, ShapeBuilder};

use crate::Result;
use crate::element::{ResidentVectors, SumElement, Vectors};
use crate::exchange::{Written, are_peers, exchange};
use crate::partial::Partial;
use crate::product::resident_segment_sums;
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

    fn segments(&self) -> Range<usize> {
        self.part.columns.start / SEGMENT..self.part.columns.end.div_ceil(SEGMENT)
    }
}

/// `alpha * A x + beta * y` for several sets of rows, each shared by two devices or more, and what else is to be done
/// at the same time.
///
/// Each device sums up the segments of its columns. Then it gets those of its own rows from the others, and adds them
/// up. On an error some entries of y are written, others not.
pub(crate) fn multiply<T, V, S>(
    alpha: S,
    mut shared: Vec<Vec<Operands<'_, T, V>>>,
    beta: S,
    n: usize,
    others: Vec<Task<'_, ()>>,
) -> Result<()>
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let mut tasks: Vec<Task<'_, Option<Sums<S>>>> = Vec::new();
    for (device, other) in others {
        tasks.push((device, Box::new(move || other().map(|()| None))));
    }
    // Real sums are added up by a product with ones, in y's own type.
    let real = V::DTYPE == S::DTYPE && !S::DTYPE.is_complex();
    let stay = real && shared.iter().all(|band| are_peers(band.iter().map(Operands::device)));
    for band in &shared {
        let rows: Vec<_> = band.iter().map(|of| of.rows.clone()).collect();
        for (mine, of) in band.iter().enumerate() {
            let (part, x, rows) = (of.part, of.x, rows.clone());
            let sums = move || match stay {
                true => resident(part, x, n, &rows, mine).map(Some),
                false => Partial::new(part.a.device(), &part.a, x, part.columns.start, n)
                    .map(|sums| Some(Sums::Host(sums))),
            };
            tasks.push((of.device(), Box::new(sums)));
        }
    }
    // Sums on the host are waited for.
    let sums = if stay { started(tasks)? } else { at_once(tasks)? };
    let mut sums = sums.into_iter().flatten();
    let mut terms = Vec::new();
    for band in &shared {
        let mut resident = Vec::new();
        let mut host = Vec::new();
        for sums in sums.by_ref().take(band.len()) {
            match sums {
                Sums::Host(sums) => host.push(sums),
                Sums::Resident(sums) => resident.push(sums),
            }
        }
        terms.push((resident, host));
    }
    for (band, (resident, _)) in shared.iter().zip(&mut terms) {
        deal(band, resident)?;
    }

    let mut tasks = Vec::<Task<'_, ()>>::new();
    for (band, (resident, host)) in shared.iter_mut().zip(terms) {
        let ones = Array1::from_elem(n.div_ceil(SEGMENT), S::ONE);
        if host.is_empty() {
            for (of, Resident { own, .. }) in band.iter_mut().zip(resident) {
                let (device, ones) = (of.part.a.device(), ones.clone());
                let shape = (of.rows.len(), ones.len()).f();
                let y = S::real(V::any::<ResidentVectors>(&mut *of.y)).expect("as above");
                let add = move || Ok(device.gemv(alpha, &own.as_matrix(shape), &ones, beta, y)?);
                tasks.push((device, Box::new(add)));
            }
            continue;
        }
        let sums = Partial::merge(host)?;
        for of in band {
            let device = of.part.a.device();
            let (sums, y) = (sums.slice_rows(of.rows.clone())?, &mut *of.y);
            tasks.push((device, Box::new(move || sums.finish(device, alpha, beta, y))));
        }
    }
    let done = if stay { started(tasks) } else { at_once(tasks) };
    done.map(|_| ())
}

/// The sums of a device's columns.
enum Sums<S: Element> {
    Host(Partial<S>),
    Resident(Resident<S>),
}

/// Sums that stay on the devices. Of each segment those of all rows follow one another.
struct Resident<S: Element> {
    /// Of the rows that the device adds up, with places for those of all columns.
    own: DeviceVector<S>,
    /// Of the rows of the others, in their order.
    sent: Vec<DeviceVector<S>>,
}

/// The sums of a device's columns. Those of other devices' rows come first: they are copied while it computes its own.
fn resident<T, V, S>(
    part: &Part<T>,
    x: &DeviceVector<V>,
    n: usize,
    rows: &[Range<usize>],
    mine: usize,
) -> Result<Sums<S>>
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let (device, segments) = (part.a.device(), part.columns.len().div_ceil(SEGMENT));
    let x = S::vector(V::any::<Vectors>(VectorRef::Device(x)))?;
    let mut choice = None;
    let mut sums = |rows: &Range<usize>, to: &mut DeviceVector<S>, segment: usize| {
        let a = part.a.step_rows(rows.clone(), 1);
        let first = segment * rows.len();
        resident_segment_sums(device, &mut choice, &MatrixRef::Device(&a), &x.get(), to, first)
    };
    let mut sent = Vec::new();
    for (which, rows) in rows.iter().enumerate() {
        if which != mine {
            let mut to = device.zeros(segments * rows.len())?;
            sums(rows, &mut to, 0)?;
            sent.push(to);
        }
    }
    let mut own = device.zeros(n.div_ceil(SEGMENT) * rows[mine].len())?;
    sums(&rows[mine], &mut own, part.columns.start / SEGMENT)?;
    Ok(Sums::Resident(Resident { own, sent }))
}

/// Gives each device the sums of its rows that the others have.
fn deal<T: Element, V: Element, S: SumElement>(
    band: &[Operands<'_, T, V>],
    terms: &mut [Resident<S>],
) -> Result<()> {
    let mut pieces: Vec<Vec<(usize, DeviceVector<S>)>> = terms.iter().map(|_| vec![]).collect();
    for (from, Resident { sent, .. }) in terms.iter_mut().enumerate() {
        let others = (0..band.len()).filter(|to| *to != from);
        for (to, sent) in others.zip(std::mem::take(sent)) {
            let at = band[from].segments().start * band[to].rows.len();
            pieces[to].push((at, sent));
        }
    }
    let to = terms.iter_mut().map(|terms| &mut terms.own);
    exchange(to.zip(pieces).map(|(to, pieces)| Written { to, pieces }).collect())
}
