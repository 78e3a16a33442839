//! Products of rows whose columns lie on several devices.

use std::ops::Range;

use gemv_core::order::SEGMENT;
use gemv_core::{
    Desc, Device, DeviceVector, Element, MatrixRef, Prepared, Times, VectorRef, call_each_time,
};
use ndarray::ShapeBuilder;

use crate::Result;
use crate::dealt::{Dealt, GROUP};
use crate::element::{ResidentVectors, SumElement, Vectors};
use crate::exchange::{Copies, Written, are_peers, exchange};
use crate::kept::Kept;
use crate::memory::filled;
use crate::partial::Partial;
use crate::product::{Choice, cyclic_sums, resident_segment_sums};
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
/// Each device sums up the segments of its columns, or of cyclic columns its lanes. Then it gets the sums of its own rows
/// from the others, and adds them up. On an error some entries of y are written, others not.
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
    let sums = match real && shared.iter().all(|band| are_peers(band.iter().map(Operands::device)))
    {
        true => match kept.take::<Vec<Vec<Sums<S>>>>() {
            Some(sums) => Some(sums),
            // Without a kernel for cyclic columns there are none.
            None => shared.iter().map(|band| Sums::of_band(band, n)).collect::<Result<_>>()?,
        },
        false => None,
    };
    match sums {
        Some(sums) => between_peers(alpha, shared, beta, sums, others, kept),
        None if shared.is_empty() => started(others).map(|_| ()),
        None => {
            call_each_time("sums of a product pass through the host");
            by_the_host(alpha, shared, beta, n, others)
        }
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
        let sums = move || {
            let Some(dealt) = part.dealt else {
                return Partial::new(part.a.device(), part.a.elements(), x, part.columns.start, n);
            };
            let Dealt { process, processes } = dealt;
            let x = dealt.entries(x.download()?.view(), part.a.elements().ncols())?;
            Partial::cyclic(part.a.device(), part.a.elements(), &x, process, processes, n)?
                .reduce(processes)
        };
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
    mut all: Vec<Vec<Sums<S>>>,
    others: Vec<Task<'_, ()>>,
    kept: &Kept,
) -> Result<()>
where
    T: Element + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let rows: Vec<Vec<_>> =
        shared.iter().map(|band| band.iter().map(|of| of.rows.clone()).collect()).collect();

    let mut tasks = others;
    for ((band, sums), rows) in shared.iter().zip(&mut all).zip(&rows) {
        for (mine, (of, sums)) in band.iter().zip(sums).enumerate() {
            let theirs = (0..rows.len()).filter(move |which| *which != mine);
            let sent = move || {
                let mut choice = None;
                let Sums { sent, cyclic, .. } = sums;
                let mut to = theirs.zip(sent);
                to.try_for_each(|(which, to)| match cyclic {
                    Some(cyclic) => cyclic.sums(of, which, &rows[which], to, 0),
                    None => segments(of, &mut choice, &rows[which], to, 0),
                })
            };
            tasks.push((of.device(), Box::new(sent)));
        }
    }
    started(tasks)?;

    let copies = shared.iter().zip(&mut all).map(|(band, sums)| deal(band, sums));
    let copies = copies.collect::<Result<Vec<_>>>()?;
    let mut tasks = Vec::<Task<'_, ()>>::new();
    for (band, sums) in shared.iter().zip(&mut all) {
        for (mine, (of, sums)) in band.iter().zip(sums).enumerate() {
            let first = of.part.columns.start / SEGMENT;
            let own = move || match &sums.cyclic {
                Some(cyclic) => {
                    let first = mine * of.rows.len() * cyclic.groups;
                    cyclic.sums(of, mine, &of.rows, &mut sums.own, first)
                }
                None => segments(of, &mut None, &of.rows, &mut sums.own, first),
            };
            tasks.push((of.device(), Box::new(own)));
        }
    }
    started(tasks)?;
    copies.into_iter().try_for_each(Copies::finish)?;

    let mut tasks = Vec::<Task<'_, ()>>::new();
    for (of, sums) in shared.into_iter().flatten().zip(all.iter_mut().flatten()) {
        let (device, rows) = (of.part.a.device(), of.rows.len());
        let y = S::real(V::any::<ResidentVectors>(of.y)).expect("real sums of y's type");
        let add_up = move || {
            let Sums { own, ones, cyclic, .. } = sums;
            let further = cyclic.as_mut().and_then(|cyclic| cyclic.further.as_mut());
            let Some(Further { sums, ones: groups }) = further else {
                let terms = own.as_matrix((rows, ones.len()).f());
                return Ok(device.gemv(alpha, &terms, &*ones, beta, y)?);
            };
            let terms = own.as_matrix((sums.len(), ones.len()).f());
            device.gemv(S::ONE, &terms, &*ones, S::ZERO, &mut *sums)?;
            let terms = sums.as_matrix((rows, groups.len()));
            Ok(device.gemv(alpha, &terms, &*groups, beta, y)?)
        };
        tasks.push((device, Box::new(add_up)));
    }
    started(tasks)?;
    kept.give(all);
    Ok(())
}

/// A device's memory for the sums of a product. Of each segment those of all rows follow one another; of cyclic columns,
/// of each process those of all rows, and of a row those of its groups.
#[derive(Debug)]
struct Sums<S: Element> {
    /// Of the rows that the device adds up, with places for those of all columns.
    own: DeviceVector<S>,
    /// Of its own columns, for each other device those of that device's rows.
    sent: Vec<DeviceVector<S>>,
    /// As many as there are segments; of cyclic columns, as there are processes.
    ones: DeviceVector<S>,
    cyclic: Option<Cyclic<S>>,
}

/// What cyclic columns need.
#[derive(Debug)]
struct Cyclic<S: Element> {
    /// Computes the sums of each device's rows.
    of_rows: Vec<Prepared>,
    /// Numbers of a row: one for each 65,536 columns of all devices.
    groups: usize,
    /// If these are several, a level more.
    further: Option<Further<S>>,
}

/// The sums of each row's groups, and as many ones.
#[derive(Debug)]
struct Further<S: Element> {
    sums: DeviceVector<S>,
    ones: DeviceVector<S>,
}

impl<S: SumElement> Sums<S> {
    /// For each device that has columns of these rows; `None` if these are cyclic, and a device has no kernel for them.
    fn of_band<T, V>(band: &[Operands<'_, T, V>], n: usize) -> Result<Option<Vec<Sums<S>>>>
    where
        T: Element + Times<S>,
        V: Element,
    {
        let tasks = band.iter().enumerate().map(|(mine, of)| -> Task<'_, Option<Sums<S>>> {
            let new = move || {
                let (device, part) = (of.device(), of.part);
                let ones = |count| -> Result<_> { Ok(device.vector(&filled(count, S::ONE)?)?) };
                let rows = of.rows.len();
                let cyclic = match part.dealt {
                    Some(dealt) => {
                        let of_rows = band.iter().map(|of| {
                            let a = part.a.elements().step_rows(of.rows.clone(), 1);
                            let desc = Desc { vectors: S::DTYPE, ..a.desc() };
                            device.backend().prepare_cyclic(&desc, dealt.processes)
                        });
                        let of_rows = of_rows.collect::<gemv_core::Result<Option<Vec<_>>>>()?;
                        let Some(of_rows) = of_rows else { return Ok(None) };
                        let groups = n.div_ceil(GROUP);
                        let further = match groups > 1 {
                            true => Some(Further {
                                sums: device.zeros(rows * groups)?,
                                ones: ones(groups)?,
                            }),
                            false => None,
                        };
                        Some(Cyclic { of_rows, groups, further })
                    }
                    None => None,
                };
                // Numbers of each row: of its own columns, and of all.
                let (columns, all, terms) = match (&cyclic, part.dealt) {
                    (Some(Cyclic { groups, .. }), Some(Dealt { processes, .. })) => {
                        (*groups, groups * processes, processes)
                    }
                    _ => {
                        let all = n.div_ceil(SEGMENT);
                        (part.columns.len().div_ceil(SEGMENT), all, all)
                    }
                };
                let others = band.iter().enumerate().filter(|(other, _)| *other != mine);
                let sent = others.map(|(_, other)| device.zeros(columns * other.rows.len()));
                let sent = sent.collect::<gemv_core::Result<_>>()?;
                // Lanes without columns stay zeros.
                let own = device.zeros(all * rows)?;
                Ok(Some(Sums { own, sent, ones: ones(terms)?, cyclic }))
            };
            (of.device(), Box::new(new))
        });
        Ok(started(tasks.collect())?.into_iter().collect())
    }
}

impl<S: SumElement> Cyclic<S> {
    /// The sums of a device's columns for the rows of one of the devices, from this entry of `to` on.
    fn sums<T, V>(
        &self,
        of: &Operands<'_, T, V>,
        which: usize,
        rows: &Range<usize>,
        to: &mut DeviceVector<S>,
        first: usize,
    ) -> Result<()>
    where
        T: Element + Times<V> + Times<S>,
        V: Element<Acc = S>,
    {
        if rows.is_empty() {
            return Ok(());
        }
        let a = of.part.a.elements().step_rows(rows.clone(), 1);
        let x = S::vector(V::any::<Vectors>(VectorRef::Device(of.x)))?;
        let VectorRef::Device(x) = x.get() else { unreachable!("a resident x of the sums' type") };
        cyclic_sums(of.device(), &self.of_rows[which], &a, x, to, (first, self.groups))
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
    let a = of.part.a.elements().step_rows(rows.clone(), 1);
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
            // Of a process all numbers follow one another, and of each segment those of all rows.
            let at = match band[from].part.dealt {
                Some(_) => from * sent.len(),
                None => band[from].part.columns.start / SEGMENT * band[to].rows.len(),
            };
            pieces[to].push((at, sent.clone()));
        }
    }
    let to = sums.iter_mut().map(|sums| &mut sums.own);
    exchange(to.zip(pieces).map(|(to, pieces)| Written { to, pieces }).collect())
}
