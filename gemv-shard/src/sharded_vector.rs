//! A vector on the devices of a matrix.

use std::ops::Range;

use gemv_core::{DeviceVector, Element, Error as CoreError, ShapeMismatch, call_each_time};
use ndarray::{Array1, Axis};

use crate::exchange::{Written, are_peers, exchange};
use crate::threads::{Task, at_once, started};
use crate::{Result, product};

/// A vector that is resident on the devices of a [`Sharded`](crate::Sharded) matrix. Each device has all of its
/// entries, or some of them.
///
/// [`Sharded::broadcast`](crate::Sharded::broadcast) puts the whole vector on each device, and
/// [`Sharded::scatter`](crate::Sharded::scatter) on each device those that it computes. A product with such a
/// vector has such a vector as its result, so a solver keeps its vectors on the devices. Between products,
/// [`parts_mut`](Self::parts_mut) gives what each device has. If each has the whole vector and does the same
/// steps on it, all copies stay equal to the last bit, dot products and norms included.
///
/// Entries that a device lacks for a product are taken from the other devices. GPUs of CUDA copy from each other, by NVLink
/// or whatever connects them, and the host waits for none of it. Between other devices entries pass through
/// the host's memory.
///
/// A clone shares the memory, until one of the two is written.
///
/// ```
/// use gemv::{GpuDot, open_devices};
/// use gemv_shard::{Sharded, Split};
/// use ndarray::{Array1, Array2};
///
/// let a = Array2::from_shape_fn((600, 600), |(i, j)| 1.0 / (1 + i + j) as f64);
/// let devices = open_devices("reference, reference")?; // or "cuda:*"
/// let shared = Sharded::new(&a, &devices, Split::Rows)?;
///
/// let mut x = shared.broadcast(&Array1::ones(600))?;
/// for _ in 0..3 {
///     x = shared.try_gpu_dot(&x)?; // whole on each device, as x was
///     for (_, x) in x.parts_mut() {
///         let (mut norm, one) = (x.device().scalar(0.0)?, x.device().scalar(1.0)?);
///         x.nrm2_into(&mut norm)?;
///         x.scal(&one / &norm)?;
///     }
/// }
/// let y = x.gather()?; // on the host
/// assert!((y.dot(&y) - 1.0).abs() < 1e-14);
/// # Ok::<(), gemv_shard::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ShardedVector<T: Element> {
    pub(crate) len: usize,
    /// One for each device. Ranges that are not empty are in rising order; several devices may have the same one.
    pub(crate) parts: Vec<Held<T>>,
}

/// What a device has of a vector.
#[derive(Debug, Clone)]
pub(crate) struct Held<T: Element> {
    pub range: Range<usize>,
    /// As many entries, unless the user has put another vector in its place.
    pub vector: DeviceVector<T>,
}

impl<T: Element> ShardedVector<T> {
    /// Number of entries of the whole vector.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether each device has all entries.
    pub fn is_whole(&self) -> bool {
        self.parts.iter().all(|part| part.range.len() == self.len)
    }

    /// For each device of the matrix, in their order: which entries it has, and these.
    ///
    /// ```
    /// use gemv::open_devices;
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::{Array1, Array2, array};
    ///
    /// let devices = open_devices("reference, reference")?;
    /// let shared = Sharded::new(&Array2::<f32>::eye(4), &devices, Split::Rows)?;
    /// let y = shared.scatter(&Array1::range(0.0, 4.0, 1.0))?;
    /// let (rows, second) = y.parts().nth(1).unwrap();
    /// assert_eq!((rows, second.download()?), (2..4, array![2.0, 3.0]));
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    pub fn parts(&self) -> impl Iterator<Item = (Range<usize>, &DeviceVector<T>)> {
        self.parts.iter().map(|part| (part.range.clone(), &part.vector))
    }

    /// As [`parts`](Self::parts), to be changed.
    ///
    /// Where several devices have an entry, give each the same value: a product may use any of them. Do not put a
    /// vector of another length in the place of one: what uses it then returns
    /// [`Error::Shape`](gemv_core::Error::Shape).
    ///
    /// ```
    /// use gemv::open_devices;
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::{Array1, Array2, array};
    ///
    /// let devices = open_devices("reference, reference")?;
    /// let shared = Sharded::new(&Array2::<f32>::eye(2), &devices, Split::Rows)?;
    /// let mut x = shared.scatter(&[3.0, 4.0])?;
    /// for (_, part) in x.parts_mut() {
    ///     part.scal(2.0)?;
    /// }
    /// assert_eq!(x.gather()?, array![6.0, 8.0]);
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    pub fn parts_mut(&mut self) -> impl Iterator<Item = (Range<usize>, &mut DeviceVector<T>)> {
        self.parts.iter_mut().map(|part| (part.range.clone(), &mut part.vector))
    }

    /// The whole vector on the host. Waits for what is in flight on the devices that it comes from.
    ///
    /// # Errors
    /// [`Error::Product`](crate::Error::Product) of [`OutOfMemory`](gemv_core::Error::OutOfMemory) on the host, of
    /// [`Shape`](gemv_core::Error::Shape) if a part was given another length, or of what a device reports.
    pub fn gather(&self) -> Result<Array1<T>> {
        self.fits()?;
        let mut all = Array1::from_vec(product::zeros::<T>(self.len, 1)?);
        let tasks = self.cover().into_iter().map(|Held { vector, .. }| -> Task<'_, Array1<T>> {
            (vector.device(), Box::new(|| Ok(vector.download()?)))
        });
        let mut rest = all.view_mut();
        for entries in at_once(tasks.collect())? {
            let to;
            (to, rest) = rest.split_at(Axis(0), entries.len());
            entries.assign_to(to);
        }
        Ok(all)
    }

    /// Parts that have each entry once, in order.
    fn cover(&self) -> Vec<&Held<T>> {
        let (mut cover, mut end) = (Vec::new(), 0);
        for held in &self.parts {
            // Those before may have the same entries.
            if held.range.start == end && !held.range.is_empty() {
                end = held.range.end;
                cover.push(held);
            }
        }
        cover
    }

    /// The same vector, whole on each device.
    ///
    /// ```
    /// use gemv::open_devices;
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::{Array1, Array2};
    ///
    /// let devices = open_devices("reference, reference")?;
    /// let shared = Sharded::new(&Array2::<f32>::eye(5), &devices, Split::Rows)?;
    /// let y = shared.scatter(&Array1::range(0.0, 5.0, 1.0))?;
    /// assert!(!y.is_whole());
    /// let whole = y.all_gather()?;
    /// assert!(whole.is_whole() && whole.parts().all(|(_, part)| part.len() == 5));
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    pub fn all_gather(&self) -> Result<ShardedVector<T>> {
        self.held_as(&vec![0..self.len; self.parts.len()])
    }

    /// Whether each device has these entries, and maybe others.
    pub(crate) fn has(&self, ranges: &[Range<usize>]) -> bool {
        self.parts.iter().zip(ranges).all(|(Held { range: has, .. }, range)| {
            range.is_empty() || has.start <= range.start && range.end <= has.end
        })
    }

    /// The same vector with these entries on each device, and no others. What a device has is not copied.
    pub(crate) fn held_as(&self, ranges: &[Range<usize>]) -> Result<ShardedVector<T>> {
        self.fits()?;
        let there = self.parts.iter().zip(ranges).map(|(Held { range: has, vector }, range)| {
            let start = range.start.checked_sub(has.start).unwrap_or(usize::MAX);
            match (range.is_empty(), start < has.len() && range.end <= has.end) {
                (true, _) => Some(vector.step(0..0, 1)),
                (false, true) => Some(vector.step(start..start + range.len(), 1)),
                (false, false) => None,
            }
        });
        let there: Vec<_> = there.collect();
        let of = self.parts.iter().zip(ranges).zip(&there);
        let lacking =
            of.filter_map(|((held, range), there)| there.is_none().then_some((held, range)));
        let lacking: Vec<_> = lacking.collect();
        let devices = lacking.iter().map(|(held, _)| *held).chain(self.cover());
        let new = match are_peers(devices.map(|held| held.vector.device())) {
            true => self.copied(&lacking)?,
            false => self.uploaded(&lacking)?,
        };
        let mut new = new.into_iter();
        let parts = there.into_iter().zip(ranges).map(|(there, range)| {
            let vector = there.or_else(|| new.next()).expect("there, or new");
            Held { range: range.clone(), vector }
        });
        Ok(ShardedVector { len: self.len, parts: parts.collect() })
    }

    /// What devices lack, copied from those that have it.
    fn copied(&self, lacking: &[(&Held<T>, &Range<usize>)]) -> Result<Vec<DeviceVector<T>>> {
        let cover = self.cover();
        let zeros = lacking.iter().map(|(held, range)| -> Task<'_, DeviceVector<T>> {
            let device = held.vector.device();
            (device, Box::new(|| Ok(device.zeros(range.len())?)))
        });
        let mut new = started(zeros.collect())?;
        let writes = new.iter_mut().zip(lacking).map(|(to, (own, range))| {
            let mut pieces = Vec::new();
            let mut copy = |from: &Held<T>, (start, end): (usize, usize)| {
                let (start, end) = (start.max(range.start), end.min(range.end));
                if start < end {
                    let entries = start - from.range.start..end - from.range.start;
                    pieces.push((start - range.start, from.vector.step(entries, 1)));
                }
            };
            copy(own, (own.range.start, own.range.end));
            for from in &cover {
                // What the device has itself comes from there.
                let (start, end) = (from.range.start, from.range.end);
                copy(from, (start, end.min(own.range.start)));
                copy(from, (start.max(own.range.end), end));
            }
            Written { to, pieces }
        });
        exchange(writes.collect())?.finish()?;
        Ok(new)
    }

    /// Takes the entries of another vector, of which each device has some and no two the same, to the memory that this
    /// one has.
    pub(crate) fn receive(&mut self, from: &ShardedVector<T>) -> Result<()> {
        let cover = from.cover();
        let mut dense = true;
        for Held { vector, .. } in &mut self.parts {
            // A clone does not see what is written.
            vector.view_mut()?;
            dense &= vector.stride() == 1 || vector.len() < 2;
        }
        let devices = self.parts.iter().chain(cover.iter().copied());
        if !dense || !are_peers(devices.map(|held| held.vector.device())) {
            return self.receive_by_the_host(from);
        }
        let writes = self.parts.iter_mut().map(|Held { range, vector: to }| {
            let pieces = cover.iter().filter_map(|from| {
                let (start, end) =
                    (range.start.max(from.range.start), range.end.min(from.range.end));
                if start >= end {
                    return None;
                }
                let entries = start - from.range.start..end - from.range.start;
                Some((start - range.start, from.vector.step(entries, 1)))
            });
            Written { pieces: pieces.collect(), to }
        });
        exchange(writes.collect())?.finish()
    }

    fn receive_by_the_host(&mut self, from: &ShardedVector<T>) -> Result<()> {
        call_each_time("a result passes through the host");
        let all = from.gather()?;
        let devices: Vec<_> = self.parts.iter().map(|held| held.vector.device().clone()).collect();
        let writes = self.parts.iter_mut().zip(&devices);
        let writes = writes.map(|(Held { range, vector: to }, device)| -> Task<'_, ()> {
            let entries = all.slice_axis(Axis(0), range.clone().into());
            (device, Box::new(move || Ok(to.assign(entries)?)))
        });
        at_once(writes.collect()).map(|_| ())
    }

    /// What devices lack, by way of the host.
    fn uploaded(&self, lacking: &[(&Held<T>, &Range<usize>)]) -> Result<Vec<DeviceVector<T>>> {
        if lacking.is_empty() {
            return Ok(Vec::new());
        }
        let all = self.gather()?;
        let uploads = lacking.iter().map(|(held, range)| -> Task<'_, DeviceVector<T>> {
            let (device, range) = (held.vector.device(), (*range).clone());
            let entries = all.slice_axis(Axis(0), range.into());
            (device, Box::new(move || Ok(device.vector(entries)?)))
        });
        at_once(uploads.collect())
    }

    /// Whether each part has the length that it was made with.
    pub(crate) fn fits(&self) -> Result<()> {
        match self.parts.iter().find(|part| part.vector.len() != part.range.len()) {
            None => Ok(()),
            Some(Held { range, vector }) => {
                let [x, y] = [vector.len(), range.len()].map(|len| [len, 1, 1]);
                Err(CoreError::Shape(ShapeMismatch::Step { axes: 1, x, y }).into())
            }
        }
    }
}
