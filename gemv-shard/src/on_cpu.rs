//! A product in parts on the CPU: each thread reads a part and computes with it while it is in the caches.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use gemv_core::order::SEGMENT;
use gemv_core::{Device, DeviceVector, Element, MatrixRef, Times, VectorRef};
use ndarray::{ArrayView2, ArrayViewMut1};

use crate::Result;
use crate::element::{SumElement, Vectors};
use crate::partial::{Cut, Partial};
use crate::product::{Choice, segment_sums_to, zeros};
use crate::stored::{Block, Stored, resize};
use crate::threads::{Told, each_alone};

/// Bytes of a part, at most: long enough to hide the start of a reading, short enough for a thread's caches.
const PART: usize = 1 << 20;
/// Bytes of a segment of as many rows as are read at a time where columns are longer: of fewer rows, the pieces of
/// columns that are read are too short.
const LARGE: usize = 8 << 20;
/// Rows of a part where one row is longer, at most: they share the entries of x.
const LONG_ROWS: usize = 8;
/// In about how many tellings a small matrix is told of; and after about how many bytes one comes, at most.
const TELLINGS: u64 = 64;
const TELLING: u64 = 16 << 20;
/// Where parts begin in memory: a copy and a product of what begins within a cache line take longer.
const ALIGNED: usize = 64;

/// `y = alpha * A x + beta * y`, in whose place y is beforehand. `window` bounds the bytes of the parts and the sums
/// that are held.
#[expect(clippy::too_many_arguments, reason = "a product has them")]
pub(crate) fn gemv<T, V, S>(
    stored: &Stored<'_>,
    window: usize,
    device: &Device,
    alpha: S,
    x: VectorRef<'_, V>,
    beta: S,
    y: &mut [V],
    told: &mut dyn FnMut(u64),
) -> Result<()>
where
    T: Element + Pod + Times<V> + Times<S>,
    V: Element<Acc = S>,
    S: SumElement,
{
    let n = stored.dim.1;
    let (threads, rows, columns) = cut(stored, window, gemv_threads::count(), size_of::<S>());
    let every = (y.len() as u64 * n as u64 * size_of::<T>() as u64 / TELLINGS).min(TELLING);
    let count = y.len().div_ceil(rows) * n.div_ceil(columns.max(1)).max(1);
    let x = match columns >= n {
        true => X::Whole(device.vector(x)?),
        false => X::Sums(device.vector(S::vector(V::any::<Vectors>(x))?.get())?),
    };
    let parts = Mutex::new(Parts { n, rows, columns, rest: y, row: 0, column: 0, band: None });
    let failed = Mutex::new(None);
    let work = |told: Told<'_>| {
        let ended = Ended(&parts);
        let (mut memory, mut choice) = (Vec::<T>::new(), None);
        while let Some((part, band)) = next(&parts) {
            let done = aligned(&mut memory, part.len()).and_then(|elements| {
                stored.read_bytes(&part, 0, bytemuck::cast_slice_mut(elements))?;
                let a = ArrayView2::from_shape(stored.shape(&part), elements);
                let a = a.expect("as many as were read");
                band.add(device, &mut choice, alpha, (&part, a), &x, beta)
            });
            if let Err(e) = done {
                // The first one is told.
                locked(&failed).get_or_insert(e);
                break;
            }
            if !told((part.len() * size_of::<T>()) as u64) {
                break;
            }
        }
        drop(ended);
    };
    each_alone(threads.min(count), every, &work, told);
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// What the parts are multiplied with.
enum X<V: Element, S: Element> {
    /// All columns at once.
    Whole(DeviceVector<V>),
    /// Some segments, whose sums are kept.
    Sums(DeviceVector<S>),
}

/// How many threads work; rows whose entries of y are computed together; and columns of a part: all, or whole segments.
///
/// Half of the window is for the parts of all threads, half for the sums. Where it is too small for the least rows of
/// each thread, fewer threads work.
fn cut(stored: &Stored<'_>, window: usize, threads: usize, sum: usize) -> (usize, usize, usize) {
    let ((m, n), element) = (stored.dim, stored.dtype.bytes());
    let each = window / 2 / threads;
    if stored.by_rows {
        let rows = PART.min(each) / n.saturating_mul(element).max(1);
        if rows > 0 {
            return (threads, rows, n);
        }
    }
    let (segment, sums) = (SEGMENT * element, (n.div_ceil(SEGMENT) * sum).max(1));
    let least = if stored.by_rows { 1 } else { SEGMENT / element };
    let least = least.min(m).max(1);
    // Bands of rows whose sums are held. Each thread can be at one of its own, while the last part of the one before is
    // computed; and to finish one takes about as much again.
    let bands = |threads: usize| threads + 2;
    let with_sums = (window / 2 / (least * sums)).saturating_sub(bands(0));
    let threads = threads.min(window / 2 / (least * segment)).min(with_sums).max(1);
    let each = window / 2 / threads;
    let part = PART.min(each);
    let rows = match stored.by_rows {
        true => LONG_ROWS.min(part / segment),
        false => LARGE.min(each) / segment,
    };
    let rows = rows.min(window / 2 / bands(threads) / sums).min(m).max(least);
    (threads, rows, (part / (segment * rows)).max(1) * SEGMENT)
}

/// What is left to be read. Parts come in the order of the file, as far as one is there.
struct Parts<'y, V, S> {
    n: usize,
    /// Of a band, and of a part.
    rows: usize,
    columns: usize,
    /// The entries of y from the next band on.
    rest: &'y mut [V],
    /// Where the next part begins.
    row: usize,
    column: usize,
    band: Option<Arc<Band<'y, V, S>>>,
}

/// Some rows, whose parts come to several threads.
struct Band<'y, V, S> {
    rows: Range<usize>,
    n: usize,
    sums: Mutex<Sums<'y, V, S>>,
}

struct Sums<'y, V, S> {
    /// Those of all segments; of each, of all rows.
    all: Vec<S>,
    /// Segments whose sums are not there.
    missing: usize,
    y: &'y mut [V],
}

type Next<'y, V, S> = (Block, Arc<Band<'y, V, S>>);

impl<'y, V, S> Iterator for Parts<'y, V, S> {
    type Item = Next<'y, V, S>;

    fn next(&mut self) -> Option<Next<'y, V, S>> {
        let Parts { n, rows, columns, .. } = *self;
        if self.band.is_none() {
            let rest = std::mem::take(&mut self.rest);
            if rest.is_empty() {
                return None;
            }
            let (y, rest) = rest.split_at_mut(rows.min(rest.len()));
            self.rest = rest;
            let rows = self.row..self.row + y.len();
            self.row = rows.end;
            let sums = Mutex::new(Sums { all: Vec::new(), missing: n.div_ceil(SEGMENT), y });
            self.band = Some(Arc::new(Band { rows, n, sums }));
        }
        let band = self.band.clone()?;
        let end = self.column.saturating_add(columns).min(n);
        let part = Block { rows: band.rows.clone(), columns: self.column..end };
        self.column = end;
        if end == n {
            (self.column, self.band) = (0, None);
        }
        Some((part, band))
    }
}

impl<V: Element<Acc = S>, S: SumElement> Band<'_, V, S> {
    /// Computes with a part, and finishes the rows if it was the last one.
    fn add<T>(
        &self,
        device: &Device,
        choice: &mut Option<Choice>,
        alpha: S,
        (part, a): (&Block, ArrayView2<'_, T>),
        x: &X<V, S>,
        beta: S,
    ) -> Result<()>
    where
        T: Element + Times<V> + Times<S>,
    {
        let (rows, segments) = (self.rows.len(), self.n.div_ceil(SEGMENT));
        let x = match x {
            X::Whole(x) => {
                let y = &mut *locked(&self.sums).y;
                return Ok(device.product(a, x).scaled(alpha, beta).to(ArrayViewMut1::from(y))?);
            }
            X::Sums(x) => x.step(part.columns.clone(), 1),
        };
        let count = part.columns.len().div_ceil(SEGMENT);
        let mut mine = zeros::<S>(count, rows)?;
        let (a, x) = (MatrixRef::Host(a), VectorRef::Device(&x));
        segment_sums_to(device, choice, &a, &x, &mut mine)?;
        let mut sums = locked(&self.sums);
        if sums.all.is_empty() {
            sums.all = zeros(segments, rows)?;
        }
        sums.all[part.columns.start / SEGMENT * rows..][..mine.len()].copy_from_slice(&mine);
        sums.missing -= count;
        if sums.missing > 0 {
            return Ok(());
        }
        let all = Partial {
            rows,
            columns: self.n,
            cut: Cut::Segments,
            held: std::iter::once(0..segments).collect(),
            sums: std::mem::take(&mut sums.all),
        };
        all.finish(device, alpha, beta, ArrayViewMut1::from(&mut *sums.y))
    }
}

/// Ends the work of all threads with that of one: it has failed, or there is no more.
struct Ended<'p, 'y, V, S>(&'p Mutex<Parts<'y, V, S>>);

impl<V, S> Drop for Ended<'_, '_, V, S> {
    fn drop(&mut self) {
        let mut parts = locked(self.0);
        (parts.rest, parts.band) = (&mut [], None);
    }
}

fn next<'y, V, S>(parts: &Mutex<Parts<'y, V, S>>) -> Option<Next<'y, V, S>> {
    locked(parts).next()
}

/// What a thread that panicked has left is not used: its panic is passed on.
fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many elements from a boundary on, if there is one.
fn aligned<T: Element + Pod>(memory: &mut Vec<T>, count: usize) -> Result<&mut [T]> {
    let more = ALIGNED / size_of::<T>();
    if memory.len() < count + more {
        resize(memory, count + more)?;
    }
    let skipped = Some(memory.as_ptr().align_offset(ALIGNED)).filter(|skipped| *skipped <= more);
    Ok(&mut memory[skipped.unwrap_or(0)..][..count])
}
