//! The rest of the product: rules 4 to 6 of the order.

use gemv_core::float_mode::in_default;
use gemv_core::{
    Accumulator, Device, DeviceMatrix, Element, Error as CoreError, ShapeMismatch, SlicesMut,
    VectorMut, Window, scale,
};
use ndarray::{Array1, ArrayView2, ArrayView3, ArrayViewMut1, ShapeBuilder};

use crate::element::SumElement;
use crate::memory::{collected, copied};
use crate::partial::{Cut, Partial};
use crate::{Error, Result, product};

impl<S: SumElement> Partial<S> {
    /// `y = alpha * A x + beta * y`, from all the sums of A x.
    ///
    /// The sums of segments are added up on this device, any one. `y` has an entry for each row, and lies on
    /// the host or on any device. Its elements are of a type that is summed in `S`: sums in f32 are rounded
    /// once, to f32, f16 or bf16. `alpha = 0` uses no sum, `beta = 0` does not read `y`.
    ///
    /// ```
    /// use gemv::{device, half::f16};
    /// use gemv_shard::Partial;
    /// use ndarray::array;
    ///
    /// let (a, x) = (array![[2048.0, 1.0]].mapv(f16::from_f32), [f16::ONE; 2]);
    /// let sums = Partial::new(&device("reference")?, &a, &x, 0, 2)?;
    /// let (mut single, mut half) = ([0.0f32], [f16::ONE]);
    /// sums.finish(&device("reference")?, 1.0, 0.0, &mut single)?;
    /// sums.finish(&device("reference")?, 1.0, 1.0, &mut half)?;
    /// assert_eq!((single, half), ([2049.0], [f16::from_f32(2050.0)]));
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Missing`] if a column is, or [`Error::Product`] of
    /// [`Error::Shape`](gemv_core::Error::Shape) if `y` has not an entry for each row, or of what a device
    /// reports. `y` is then as it was, but for what [`Error::Device`](gemv_core::Error::Device) says of a
    /// resident one.
    pub fn finish<'y, V: Element<Acc = S>>(
        &self,
        device: &Device,
        alpha: S,
        beta: S,
        y: impl Into<VectorMut<'y, V>>,
    ) -> Result<()> {
        let mut y = y.into();
        if let Some(missing) = self.missing() {
            return Err(Error::Missing { part: self.name(missing) });
        }
        if y.len() != self.rows {
            let (matrix, x) = ((self.rows, self.columns), self.columns);
            let shapes = ShapeMismatch::MatrixVector { matrix, x, y: Some(y.len()) };
            return Err(CoreError::Shape(shapes).into());
        }
        if self.rows == 0 || (alpha.is_zero() && beta.is_one()) {
            return Ok(());
        }
        let sums = if alpha.is_zero() { Vec::new() } else { self.add_up(device)? };
        let entry = |i: usize, y: Option<V>| match (alpha.is_zero(), y) {
            (true, None) => V::default(),
            (true, Some(y)) => V::narrow(Accumulator::mul(beta, y.widen())),
            (false, y) => scale(alpha, sums[i], beta, y),
        };
        let reads = !beta.is_zero();
        match &mut y {
            VectorMut::Host(y) => {
                let entries = y.iter_mut().enumerate();
                in_default(|| entries.for_each(|(i, y)| *y = entry(i, reads.then_some(*y))));
            }
            there => {
                let before = if reads { Some(download(there)?) } else { None };
                let at = |i: usize| entry(i, before.as_ref().map(|before| before[i]));
                let after = Array1::from_vec(in_default(|| collected((0..self.rows).map(at)))?);
                match there {
                    VectorMut::Device(y) => y.assign(&after)?,
                    VectorMut::View(y) => y.assign(&after)?,
                    VectorMut::Host(y) => y.assign(&after),
                }
            }
        }
        Ok(())
    }

    /// The dot product of every row: rules 4 and 5.
    fn add_up(&self, device: &Device) -> Result<Vec<S>> {
        let (rows, units) = (self.rows, self.units());
        match (self.cut, units) {
            (_, 0) => product::zeros(rows, 1),
            (Cut::Segments, 1) => collected(self.sums.iter().copied()),
            _ => {
                // An addition of pairs is one of their parts. A product with (1, +0) is not.
                let parts = S::split(&self.sums)?;
                let rows = parts.len() / self.width() / units;
                let shape = "as many as there are";
                let sums = match self.cut {
                    Cut::Segments => {
                        let terms = ArrayView2::from_shape((rows, units).f(), &parts).expect(shape);
                        product::add_up(device, terms)?
                    }
                    Cut::Lanes(_) => {
                        let groups = self.width();
                        let strides = (groups, rows, units).strides((rows, 1, groups * rows));
                        let lanes = ArrayView3::from_shape(strides, &parts).expect(shape);
                        let sums = product::add_lanes(device, lanes)?;
                        match groups {
                            1 => sums.into_shape_with_order(rows).expect(shape),
                            _ => product::add_up(device, sums.t())?,
                        }
                    }
                };
                S::join(sums.into_raw_vec_and_offset().0)
            }
        }
    }
}

/// [`Partial::finish`] of all segments' sums, which are resident: column s of `terms` has those of segment s. y is
/// on the host.
pub(crate) fn finish_resident<S: SumElement, V: Element<Acc = S>>(
    device: &Device,
    terms: &DeviceMatrix<S>,
    columns: usize,
    alpha: S,
    beta: S,
    mut y: ArrayViewMut1<'_, V>,
) -> Result<()> {
    let (rows, units) = terms.dim();
    if units < 2 || S::DTYPE.is_complex() {
        let sums = terms.t().download()?.into_raw_vec_and_offset().0;
        let held = Some(0..units).filter(|run| !run.is_empty()).into_iter().collect();
        return Partial { rows, columns, cut: Cut::Segments, held, sums }
            .finish(device, alpha, beta, y);
    }
    let sums = product::add_up_resident(device, terms)?;
    let entries = y.iter_mut().zip(&sums);
    let reads = !beta.is_zero();
    in_default(|| {
        entries.for_each(|(y, &sum)| *y = scale(alpha, sum, beta, reads.then_some(*y)));
    });
    Ok(())
}

/// The entries of a resident y.
fn download<V: Element>(y: &mut VectorMut<'_, V>) -> Result<Array1<V>> {
    Ok(match y {
        VectorMut::Host(y) => copied(y.view())?,
        VectorMut::Device(y) => y.download()?,
        VectorMut::View(y) => {
            let device = y.device().clone();
            let Window { memory, first, dim, strides } = y.view_mut().window();
            let (at, len) = (Window { memory: (), first, dim, strides }).range();
            let mut block = product::zeros::<V>(len, 1)?;
            device.backend().download(&*memory, at, V::any::<SlicesMut>(&mut block))?;
            let window = Window { memory: (), first: first - at, dim, strides };
            copied(window.view(&block))?
        }
    })
}
