//! What a device has of a matrix.

use gemv_core::{Device, DeviceMatrix, Element, OperandMut, OperandRef, Rank, Stack, Times};
use ndarray::Ix2;

use crate::Result;

/// Elements, or blocks of a packed matrix for vectors of `T`: whole rows.
#[derive(Debug, Clone)]
pub(crate) enum Matrix<T: Element> {
    Elements(DeviceMatrix<T>),
    #[cfg(feature = "packed")]
    Packed(gemv_core::DevicePacked),
}

impl<T: Element> Matrix<T> {
    pub(crate) fn device(&self) -> &Device {
        match self {
            Matrix::Elements(a) => a.device(),
            #[cfg(feature = "packed")]
            Matrix::Packed(a) => a.device(),
        }
    }

    /// The elements of a matrix that has them.
    ///
    /// # Panics
    /// If it is packed: then no columns are cut, for which the elements are needed.
    pub(crate) fn elements(&self) -> &DeviceMatrix<T> {
        match self {
            Matrix::Elements(a) => a,
            #[cfg(feature = "packed")]
            Matrix::Packed(_) => panic!("packed matrices are cut by rows alone"),
        }
    }

    /// `y = alpha * A x + beta * y` on its device.
    pub(crate) fn multiply<V: Element, X: Rank>(
        &self,
        alpha: V::Acc,
        x: OperandRef<'_, V, X>,
        beta: V::Acc,
        y: OperandMut<'_, V, X>,
    ) -> Result<()>
    where
        T: Times<V>,
        Ix2: Stack<X>,
    {
        match self {
            Matrix::Elements(a) => Ok(a.device().product(a, x).scaled(alpha, beta).to(y)?),
            #[cfg(feature = "packed")]
            Matrix::Packed(a) => crate::packed::multiply(a, alpha, x, beta, y),
        }
    }
}
