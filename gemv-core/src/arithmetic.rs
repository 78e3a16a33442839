//! Sums of resident arrays, and `+=`, `-=`, `*=` by the names of ndarray.

use std::ops::{AddAssign, MulAssign, SubAssign};

use ndarray::{ArrayBase, Axis, Data, Dimension, Ix2, Ix3, RemoveAxis, arr0};

use crate::factor::Factor;
use crate::memory::Window;
use crate::operand::OperandRef;
use crate::product::Ask;
use crate::resident::{DeviceArray, too_many_axes};
use crate::view_mut::DeviceViewMut;
use crate::views::checked;
use crate::{Accumulator, Element, Result};

impl<T: Element, D: Dimension + Copy> DeviceArray<T, D> {
    /// The sums along an axis, as ndarray's `sum_axis`: of a matrix, [`Axis(1)`](Axis) gives a sum for each row, and `Axis(0)`
    /// one for each column. Nothing is copied, whatever the layout.
    ///
    /// Each is the product with a vector of ones, so its terms are added in the [order](crate::order), in the accumulator's
    /// type, and it is rounded once. In a [`Plan`](crate::Plan), multiply with ones that were made before.
    ///
    /// ```
    /// # use gemv::{Engine, ToDevice};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{Axis, array};
    ///
    /// let a = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]].to_device(&device)?;
    /// assert_eq!(a.sum_axis(Axis(1))?.download()?, array![6.0, 15.0]);
    /// assert_eq!(a.sum_axis(Axis(0))?.download()?, array![5.0, 7.0, 9.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) of an array of more than three axes; else as
    /// [`try_gpu_dot`](crate::GpuDot::try_gpu_dot).
    ///
    /// # Panics
    /// If there is no such axis.
    #[track_caller]
    pub fn sum_axis(&self, axis: Axis) -> Result<DeviceArray<T, D::Smaller>>
    where
        D: RemoveAxis<Smaller: Copy>,
    {
        let axis = checked(axis, self.dim.ndim());
        if self.dim.ndim() > 3 {
            return Err(too_many_axes(self.dim.ndim()));
        }
        // As a batch of matrices, that axis last.
        let (mut dim, mut strides) = (Ix3(1, 1, self.dim[axis]), Ix3(0, 0, self.strides[axis]));
        for (to, of) in (0..self.dim.ndim()).rev().filter(|&of| of != axis).enumerate() {
            (dim[1 - to], strides[1 - to]) = (self.dim[of], self.strides[of]);
        }
        let matrices = self.at(Window { memory: (), first: self.first, dim, strides });
        let ones = self.ones(Ix2(dim[0], dim[2]))?;
        let mut y = DeviceArray::<T, _>::zeros(&self.device, Ix2(dim[0], dim[1]))?;
        let (alpha, beta) = (T::Acc::ONE, T::Acc::ZERO);
        let ask = Ask { params: None, conj: false, alpha, beta, epilogue: None };
        self.device.run(ask, (&matrices).into(), (&ones).into(), (&mut y).into())?;
        let dim = self.dim.remove_axis(Axis(axis));
        Ok(y.at(y.placed().reshape(dim, false).expect("as many entries, row by row")))
    }

    /// The sum of all entries, for which the host waits: as [`sum_axis`](Self::sum_axis) of one row of them all. An array whose
    /// entries do not lie one after another, the last axis first, is copied for that.
    ///
    /// ```
    /// # use gemv::{Engine, ToDevice};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = ndarray::array![[1.0, 2.0], [3.0, 4.0]].to_device(&device)?;
    /// assert_eq!((a.sum()?, a.column(1).sum()?), (10.0, 6.0));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`sum_axis`](Self::sum_axis).
    pub fn sum(&self) -> Result<T>
    where
        D: 'static,
    {
        let len = self.len();
        let all = match self.reshape(len) {
            Ok(all) => all,
            Err(_) => {
                let mut own = DeviceArray::zeros(&self.device, self.dim)?;
                own.assign(self)?;
                own.reshape(len)?
            }
        };
        let mut sum = arr0(T::default());
        all.dot_into(&self.ones(Ix2(1, len))?.row(0), &mut sum)?;
        Ok(sum.into_scalar())
    }

    /// Ones, of which there is one in memory.
    fn ones(&self, dim: Ix2) -> Result<DeviceArray<T, Ix2>> {
        let one = self.device.scalar(T::one())?;
        Ok(one.at(Window { memory: (), first: 0, dim, strides: Ix2(0, 0) }))
    }
}

/// The end of an operator, which has no other way to tell an error.
#[track_caller]
fn done(operator: &str, result: Result<()>) {
    if let Err(e) = result {
        panic!("{operator}: {e}");
    }
}

macro_rules! operators {
    ($($y:ty),*) => { $(
        operators!(@ $y, [T: Element, D: Dimension + Copy + 'static], &DeviceArray<T, D>);
        operators!(@ $y, [T: Element, S: Data<Elem = T>, D: Dimension + Copy + 'static], &ArrayBase<S, D>);

        /// [`scal`](DeviceArray::scal) by a number.
        ///
        /// # Panics
        /// As its errors.
        impl<T: Element, D: Dimension + Copy + 'static> MulAssign<T> for $y {
            #[track_caller]
            fn mul_assign(&mut self, number: T) {
                done("*=", self.scal(Factor::number(number.widen())));
            }
        }
    )* };
    (@ $y:ty, [$($generic:tt)*], $x:ty) => {
        /// [`axpy`](DeviceArray::axpy) with a factor of 1, which rounds once, as an addition does.
        ///
        /// # Panics
        /// As its errors: if the shapes differ, which must be the same, or the device fails.
        impl<$($generic)*> AddAssign<$x> for $y {
            #[track_caller]
            fn add_assign(&mut self, x: $x) {
                done("+=", self.axpy(Factor::ONE, OperandRef::from(x)));
            }
        }

        /// [`axpy`](DeviceArray::axpy) with a factor of -1, which rounds once, as a subtraction does.
        ///
        /// # Panics
        /// As those of `+=`.
        impl<$($generic)*> SubAssign<$x> for $y {
            #[track_caller]
            fn sub_assign(&mut self, x: $x) {
                done("-=", self.axpy(-Factor::ONE, OperandRef::from(x)));
            }
        }
    };
}
operators!(DeviceArray<T, D>, DeviceViewMut<'_, T, D>);
