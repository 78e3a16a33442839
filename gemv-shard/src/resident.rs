//! Products of a matrix on several devices with vectors that are resident there.

use std::ops::Range;

use gemv_core::{
    Device, Element, Error as CoreError, GpuDot, Plan, Times, call_each_time, in_plan, unplanned,
};
use ndarray::{ArrayView1, Axis};

use crate::Result;
use crate::element::SumElement;
use crate::partial::Partial;
use crate::sharded::{Part, Place, Sharded, told};
use crate::sharded_vector::{Held, ShardedVector};
use crate::shared_rows::{self, Operands};
use crate::threads::{Task, at_once, started};

/// Where the products of plans are computed: each device has its own entries.
struct Results<V: Element>(ShardedVector<V>);

impl<T: Element> Sharded<T> {
    /// A vector that is whole on each device, of any length: the x of products, and what a solver needs beside it.
    ///
    /// ```
    /// use gemv::{GpuDot, open_devices};
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::array;
    ///
    /// let devices = open_devices("reference, reference")?; // or "cuda:*"
    /// let shared = Sharded::new(&array![[1.0, 2.0], [3.0, 4.0]], &devices, Split::Rows)?;
    /// let x = shared.broadcast(&[1.0, 10.0])?;
    /// let y = shared.try_gpu_dot(&x)?; // on the devices, whole on each
    /// assert_eq!((y.is_whole(), y.gather()?), (true, array![21.0, 43.0]));
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Product`](crate::Error::Product) of what a device reports, such as too little memory.
    pub fn broadcast<'x, V: Element>(
        &self,
        x: impl Into<ArrayView1<'x, V>>,
    ) -> Result<ShardedVector<V>> {
        let x = x.into();
        self.upload(&x, vec![0..x.len(); self.devices.len()])
    }

    /// A vector with an entry for each row of the matrix. Each device has those that it computes: no entry is on two
    /// devices. By rows they are those of its own rows, by columns an equal share, or all are on the one device whose
    /// memory is the host's.
    ///
    /// ```
    /// use gemv::{GpuDot, open_devices};
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::array;
    ///
    /// let devices = open_devices("reference, reference")?;
    /// let shared = Sharded::new(&array![[1.0, 2.0], [3.0, 4.0]], &devices, Split::Rows)?;
    /// let (x, mut y) = (shared.broadcast(&[1.0, 10.0])?, shared.scatter(&[5.0, 6.0])?);
    /// shared.try_gemv(1.0, &x, -1.0, &mut y)?; // each device writes its own row
    /// assert!(y.parts().map(|(rows, _)| rows).eq([0..1, 1..2]));
    /// assert_eq!(y.gather()?, array![16.0, 37.0]);
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Product`](crate::Error::Product) of [`Shape`](gemv_core::Error::Shape) if it has not an entry for each
    /// row, or of what a device reports.
    pub fn scatter<'y, V: Element>(
        &self,
        y: impl Into<ArrayView1<'y, V>>,
    ) -> Result<ShardedVector<V>> {
        let y = y.into();
        self.fits(self.dim.1, Some(y.len()))?;
        self.upload(&y, self.places().into_iter().map(|place| place.computes).collect())
    }

    /// `y = alpha * A x + beta * y` with resident vectors of a type of their own, as wide as the matrix' or wider: a
    /// matrix of f16 or bf16 with vectors of f32, or one of f32 with vectors of f64. `alpha = 0` reads neither A nor
    /// x, and `beta = 0` does not read y.
    ///
    /// x has n entries and y has m, both on the matrix' devices, whole or in any parts. Each device has the same
    /// entries of y afterwards as before, in new memory; in a [plan](Self::plan), in the memory that y has.
    ///
    /// ```
    /// use gemv::{half::f16, open_devices};
    /// use gemv_shard::{Sharded, Split};
    /// use ndarray::array;
    ///
    /// let a = array![[1.0, 2.0], [3.0, 4.0]].mapv(f16::from_f32);
    /// let shared = Sharded::new(&a, &open_devices("reference, reference")?, Split::Rows)?;
    /// let (x, mut y) = (shared.broadcast(&[0.5f32, 0.25])?, shared.scatter(&[1.0, 1.0])?);
    /// shared.gemv_mixed_resident(2.0, &x, 1.0, &mut y)?;
    /// assert_eq!(y.gather()?, array![3.0, 6.0]);
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Product`](crate::Error::Product) of [`Shape`](gemv_core::Error::Shape) if x or y has another length, of
    /// [`WrongDevice`](gemv_core::Error::WrongDevice) if it is on other devices, or of what a device reports; a panic
    /// of a device's thread is an error of that device. `y` is then as it was.
    pub fn gemv_mixed_resident<V, S>(
        &self,
        alpha: S,
        x: &ShardedVector<V>,
        beta: S,
        y: &mut ShardedVector<V>,
    ) -> Result<()>
    where
        T: Times<V> + Times<S>,
        V: Element<Acc = S>,
        S: SumElement,
    {
        // What goes by way of the host, a device that records refuses itself.
        if in_plan() {
            if !alpha.is_zero() && !self.bands.is_empty() {
                return unplanned(|| self.in_place(alpha, x, beta, y));
            }
            call_each_time("a product that reads no matrix has a result in new memory");
        }
        *y = unplanned(|| self.as_held(self.computed(alpha, x, beta, Some(y))?, x, Some(y)))?;
        Ok(())
    }

    /// A plan of work on the matrix' devices, which computes with `state`: an iteration that is written once and run
    /// many times. Nothing runs yet.
    ///
    /// On GPUs of CUDA that reach each other's memory, by NVLink or PCIe, the work becomes one graph over all of them
    /// when it is run the second time, and from then on that is replayed: kernels write their entries of y into the
    /// memory of each device that has them, events in the graph order the devices, and the host does nothing else. On
    /// other devices the function is called each time. The bits are the same.
    ///
    /// The function is called each time, on GPUs of CUDA as well, if a product in it
    ///
    /// - passes sums through the host: by columns, by cyclic columns or in a grid of several columns, those that are
    ///   complex, or of y in f16 or bf16; and those of cyclic columns on other than 2, 4 or 8 devices, or of more than
    ///   16,777,216 columns;
    /// - takes entries of x from other devices, or with `beta` other than 0 of y: the device has not all that it needs;
    /// - has `alpha = 0`, or a matrix without rows or columns.
    ///
    /// What [`Plan`] says of the function holds here: it allocates nothing. So products are those that write a y that is
    /// there (`try_gpu_dot_into`, `try_gemv`), which stays in its memory. Take two vectors in turn, as below: a product
    /// whose y other devices still read waits for them. Several iterations in one plan take less time than several runs
    /// of one.
    ///
    /// ```
    /// use gemv::{GpuDot, open_devices};
    /// use gemv_shard::{Sharded, ShardedVector, Split};
    /// use ndarray::{Array1, Array2};
    ///
    /// let a = Array2::from_shape_fn((600, 600), |(i, j)| 1.0 / (1 + i + j) as f64);
    /// let devices = open_devices("reference, reference, reference")?; // or "cuda:*"
    /// let shared = Sharded::new(&a, &devices, Split::Rows)?;
    /// let x = shared.broadcast(&Array1::ones(600))?; // whole on each device
    /// let y = x.clone();
    /// let scalar = |of: f64| devices.iter().map(|d| d.scalar(of)).collect::<gemv::Result<Vec<_>>>();
    ///
    /// // y = A x / |A x|; each device computes the norm by itself, of all entries.
    /// let mut plan = shared.plan((x, y, scalar(0.0)?, scalar(1.0)?), |(x, y, norms, ones)| {
    ///     let mut step = |x: &ShardedVector<f64>, y: &mut ShardedVector<f64>| {
    ///         shared.try_gpu_dot_into(x, &mut *y)?;
    ///         for ((_, y), (norm, one)) in y.parts_mut().zip(norms.iter_mut().zip(&*ones)) {
    ///             y.nrm2_into(&mut *norm)?;
    ///             y.scal(one / &*norm)?;
    ///         }
    ///         gemv::Result::Ok(())
    ///     };
    ///     step(x, y)?;
    ///     step(y, x) // two iterations, so that x has the last one
    /// });
    /// (0..5).try_for_each(|_| plan.run())?;
    /// let x = plan.state().0.gather()?;
    /// assert!((x.dot(&x) - 1.0).abs() < 1e-14);
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    pub fn plan<P, F: FnMut(&mut P) -> gemv_core::Result<()>>(
        &self,
        state: P,
        start: F,
    ) -> Plan<P, F> {
        let (first, others) = self.devices.split_first().expect("there is a device or more");
        first.plan_with(others, state, start)
    }

    /// [`gemv_mixed_resident`](Self::gemv_mixed_resident) to the memory that y has: each device computes its entries in
    /// memory of the matrix' own, from which they are copied to each device that has them. On an error before that, y
    /// is as it was.
    fn in_place<V, S>(
        &self,
        alpha: S,
        x: &ShardedVector<V>,
        beta: S,
        y: &mut ShardedVector<V>,
    ) -> Result<()>
    where
        T: Times<V> + Times<S>,
        V: Element<Acc = S>,
        S: SumElement,
    {
        self.fits(x.len(), Some(y.len()))?;
        for operand in [x, &*y] {
            self.holds(operand)?;
            operand.fits()?;
        }
        let places = self.places();
        let (columns, computes): (Vec<_>, Vec<_>) =
            places.into_iter().map(|Place { columns, computes }| (columns, computes)).unzip();
        let Results(mut result) = match self.kept.take() {
            Some(kept) => kept,
            None => Results(self.zeros(&computes)?),
        };
        if !x.has(&columns) || !beta.is_zero() && !y.has(&computes) {
            call_each_time("a product takes entries from other devices to new memory");
        }
        if !beta.is_zero() {
            let before = y.held_as(&computes)?;
            let copies = result.parts.iter_mut().zip(&before.parts);
            let copies = copies.filter(|(to, _)| !to.range.is_empty());
            let copies = copies.map(|(to, from)| -> Task<'_, ()> {
                let device = from.vector.device();
                (device, Box::new(move || Ok(to.vector.assign(&from.vector)?)))
            });
            started(copies.collect())?;
        }
        self.multiply(alpha, &x.held_as(&columns)?, beta, &mut result)?;
        y.receive(&result)?;
        self.kept.give(Results(result));
        Ok(())
    }

    /// Zeros of the whole matrix' height, these entries on each device.
    fn zeros<V: Element>(&self, ranges: &[Range<usize>]) -> Result<ShardedVector<V>> {
        let zeros = self.devices.iter().zip(ranges).map(|(device, range)| {
            let range = range.clone();
            let zeros = move || Ok(Held { vector: device.zeros(range.len())?, range });
            (device, Box::new(zeros) as Box<dyn FnOnce() -> Result<_> + Send>)
        });
        Ok(ShardedVector { len: self.dim.0, parts: started(zeros.collect())? })
    }

    /// A vector with these entries on each device.
    pub(crate) fn upload<V: Element>(
        &self,
        x: &ArrayView1<'_, V>,
        ranges: Vec<Range<usize>>,
    ) -> Result<ShardedVector<V>> {
        let tasks = self.devices.iter().zip(ranges).map(|(device, range)| -> Task<'_, Held<V>> {
            let entries = x.slice_axis(Axis(0), range.clone().into());
            (device, Box::new(move || Ok(Held { range, vector: device.vector(entries)? })))
        });
        Ok(ShardedVector { len: x.len(), parts: at_once(tasks.collect())? })
    }

    /// Whether a vector is on the matrix' devices.
    fn holds<V: Element>(&self, vector: &ShardedVector<V>) -> Result<()> {
        let of: Vec<&Device> = vector.parts().map(|(_, part)| part.device()).collect();
        if of.iter().copied().eq(&self.devices) {
            return Ok(());
        }
        let ids = |devices: &mut dyn Iterator<Item = &Device>| {
            devices.map(|device| device.info().id.as_str()).collect::<Vec<_>>().join(", ")
        };
        let device = ids(&mut self.devices.iter());
        let operand = ids(&mut of.into_iter());
        Err(CoreError::WrongDevice { device, operand }.into())
    }

    /// `alpha * A x + beta * y` as a new vector, of which each device has the entries that it computes.
    pub(crate) fn computed<V, S>(
        &self,
        alpha: S,
        x: &ShardedVector<V>,
        beta: S,
        y: Option<&ShardedVector<V>>,
    ) -> Result<ShardedVector<V>>
    where
        T: Times<V> + Times<S>,
        V: Element<Acc = S>,
        S: SumElement,
    {
        self.fits(x.len(), y.map(ShardedVector::len))?;
        for operand in std::iter::once(x).chain(y) {
            self.holds(operand)?;
            operand.fits()?;
        }
        let places = self.places();
        // New memory: y stays as it is if a device fails.
        let computes: Vec<_> = places.iter().map(|place| place.computes.clone()).collect();
        let mut result = match y.filter(|_| !beta.is_zero()) {
            Some(y) => y.held_as(&computes)?,
            None => self.zeros(&computes)?,
        };
        if alpha.is_zero() || self.bands.is_empty() {
            let scaled = result.parts.iter_mut().zip(&self.devices);
            let scaled = scaled.filter(|(part, _)| !part.range.is_empty());
            let tasks = scaled.map(|(part, device)| -> Task<'_, ()> {
                let (nothing, y) = (Partial::of_nothing(part.range.len()), &mut part.vector);
                (device, Box::new(move || nothing.finish(device, alpha, beta, y)))
            });
            at_once(tasks.collect())?;
        } else {
            let columns: Vec<_> = places.iter().map(|place| place.columns.clone()).collect();
            self.multiply(alpha, &x.held_as(&columns)?, beta, &mut result)?;
        }
        Ok(result)
    }

    /// The result of a product with the entries that each device has of y. Without y, each has all if x is whole on
    /// each, and else those that it computes.
    fn as_held<V: Element>(
        &self,
        result: ShardedVector<V>,
        x: &ShardedVector<V>,
        y: Option<&ShardedVector<V>>,
    ) -> Result<ShardedVector<V>> {
        let ranges: Vec<_> = match y {
            Some(y) => y.parts().map(|(range, _)| range).collect(),
            None if x.is_whole() => vec![0..self.dim.0; self.devices.len()],
            None => self.places().into_iter().map(|place| place.computes).collect(),
        };
        result.held_as(&ranges)
    }

    /// All devices at once, and then the sums of the rows that several have. Each device has its columns' entries of
    /// x, and the entries of y that it computes. On an error some of these are written, others not.
    fn multiply<V, S>(
        &self,
        alpha: S,
        x: &ShardedVector<V>,
        beta: S,
        y: &mut ShardedVector<V>,
    ) -> Result<()>
    where
        T: Times<V> + Times<S>,
        V: Element<Acc = S>,
        S: SumElement,
    {
        let mut y: Vec<_> = y.parts.iter_mut().map(Some).collect();
        let (mut products, mut shared) = (Vec::<Task<'_, ()>>::new(), Vec::new());
        for band in &self.bands {
            let operands = band.parts.iter().map(|part| {
                let Held { range, vector } = y[part.device].take().expect("a device has one part");
                let x = &x.parts[part.device].vector;
                Operands {
                    part,
                    x,
                    rows: range.start - band.rows.start..range.end - band.rows.start,
                    y: vector,
                }
            });
            let operands: Vec<_> = operands.collect();
            if operands.len() > 1 {
                shared.push(operands);
                continue;
            }
            for Operands { part: Part { a, .. }, x, y, .. } in operands {
                let whole = move || a.multiply(alpha, x.into(), beta, y.into());
                products.push((a.device(), Box::new(whole)));
            }
        }
        shared_rows::multiply(alpha, shared, beta, self.dim.1, products, &self.kept)
    }
}

impl<T, S> GpuDot<ShardedVector<T>> for Sharded<T>
where
    T: Element<Acc = S> + Times<S>,
    S: SumElement,
{
    type Elem = T;
    type Output = ShardedVector<T>;
    type Target<'y> = &'y mut ShardedVector<T>;

    /// Whole on each device if x is, and else on each device the entries that it computes, as
    /// [`scatter`](Sharded::scatter) says.
    fn try_gpu_dot(&self, x: &ShardedVector<T>) -> gemv_core::Result<ShardedVector<T>> {
        if in_plan() {
            call_each_time("a product has a result in new memory");
        }
        let product = || self.as_held(self.computed(S::ONE, x, S::ZERO, None)?, x, None);
        unplanned(product).map_err(told)
    }

    /// Each device has the same entries of y afterwards as before, in new memory; in a [plan](Sharded::plan), in the
    /// memory that y has. On an error y is as it was.
    fn try_gemv<'y>(
        &self,
        alpha: S,
        x: &ShardedVector<T>,
        beta: S,
        y: impl Into<&'y mut ShardedVector<T>>,
    ) -> gemv_core::Result<()> {
        self.gemv_mixed_resident(alpha, x, beta, y.into()).map_err(told)
    }
}
