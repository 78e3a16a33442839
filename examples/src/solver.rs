//! Conjugate gradients whose numbers all stay on the device.

use gemv::{Device, DeviceScalar, DeviceVector, Element};
use ndarray::Axis;

/// The iteration of conjugate gradients (Hestenes and Stiefel, 1952) for `A x = b`, where A is
/// symmetric and positive definite.
///
/// ```
/// use gemv::{GpuDot, ToDevice};
/// use gemv_examples::Iteration;
/// use ndarray::array;
///
/// let device = gemv::device("reference")?;
/// let a = array![[4.0, 1.0], [1.0, 3.0]].to_device(&device)?;
/// let mut solver = Iteration::<f64>::new(&device, 2, 2)?;
/// solver.begin(&[1.0f64, 2.0].to_device(&device)?)?;
/// solver.run(|p, ap| a.try_gpu_dot_into(p, ap))?;
/// assert!(solver.squares()?[2] < 1e-30);
/// assert!((solver.x.download()?[0] - 1.0 / 11.0).abs() < 1e-15);
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug)]
pub struct Iteration<T: Element> {
    /// The solution.
    pub x: DeviceVector<T>,
    /// The residual b - A x, as the recurrence has it.
    r: DeviceVector<T>,
    /// The direction of search, and its product with A.
    p: DeviceVector<T>,
    ap: DeviceVector<T>,
    pap: DeviceScalar<T>,
    /// r · r before a run and after each of its iterations.
    rr: DeviceVector<T>,
    /// r · r on its way from the last place of `rr` to the first.
    before: DeviceScalar<T>,
}

impl<T: Element> Iteration<T> {
    /// Room for `n` unknowns, and for runs of so many iterations.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device, n: usize, iterations: usize) -> gemv::Result<Self> {
        let zeros = |n: usize| device.zeros(n);
        let number = || device.scalar(T::default());
        Ok(Iteration {
            x: zeros(n)?,
            r: zeros(n)?,
            p: zeros(n)?,
            ap: zeros(n)?,
            pap: number()?,
            rr: zeros(iterations + 1)?,
            before: number()?,
        })
    }

    /// Begins at x = 0.
    ///
    /// # Errors
    /// The device's.
    pub fn begin(&mut self, b: &DeviceVector<T>) -> gemv::Result<()> {
        let Iteration { x, r, p, rr, .. } = self;
        x.fill(gemv::Factor::number(T::default().widen()))?;
        r.assign(b)?;
        p.assign(b)?;
        let last = rr.len() - 1;
        r.dot_into(&*r, rr.view_mut()?.index_axis(Axis(0), last))
    }

    /// Runs the iterations, in which `apply` writes the product of A and its first argument to its second
    /// one. The host waits for nothing.
    ///
    /// # Errors
    /// The device's, and those of `apply`.
    pub fn run(
        &mut self,
        mut apply: impl FnMut(&DeviceVector<T>, &mut DeviceVector<T>) -> gemv::Result<()>,
    ) -> gemv::Result<()> {
        let Iteration { x, r, p, ap, pap, rr, before } = self;
        let last = rr.len() - 1;
        before.assign(&rr.index_axis(Axis(0), last))?;
        rr.view_mut()?.index_axis(Axis(0), 0).assign(&*before)?;
        for k in 0..last {
            let square = |rr: &DeviceVector<T>, k| rr.index_axis(Axis(0), k);
            apply(&*p, &mut *ap)?;
            p.dot_into(&*ap, &mut *pap)?;
            x.axpy(&square(rr, k) / &*pap, &*p)?;
            r.axpy(-(&square(rr, k) / &*pap), &*ap)?;
            r.dot_into(&*r, rr.view_mut()?.index_axis(Axis(0), k + 1))?;
            p.xpay(&square(rr, k + 1) / &square(rr, k), &*r)?;
        }
        Ok(())
    }

    /// |r|² before the last run, and after each of its iterations. The host waits for them.
    ///
    /// # Errors
    /// The device's.
    pub fn squares(&self) -> gemv::Result<Vec<f64>> {
        let squares = self.rr.download()?;
        Ok(squares.iter().map(|square| gemv::Accumulator::parts(square.widen()).0).collect())
    }

    /// |b|², after [`begin`](Self::begin). The host waits for it.
    ///
    /// # Errors
    /// The device's.
    pub fn first_square(&self) -> gemv::Result<f64> {
        Ok(self.squares()?.last().copied().unwrap_or_default())
    }
}
