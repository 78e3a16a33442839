//! The pairs of operands that [`GpuDot`] has a product for.

use ndarray::{
    Array, Array1, Array2, Array3, ArrayD, ArrayRef, ArrayRef1, ArrayRef2, ArrayRefD, ArrayView1,
    ArrayView2, ArrayViewD, ArrayViewMut1, ArrayViewMut2, ArrayViewMut3, ArrayViewMutD, Axis,
    Dimension, Ix1, Ix2, Ix3, arr0, aview_mut1,
};

use half::{bf16, f16};

use crate::device::Device;
use crate::dot::{GpuDot, Multiply};
use crate::host::host_array;
use crate::mixed::Widened;
use crate::operand::{OperandMut, OperandRef, VectorMut};
use crate::product::{Ask, Stack};
use crate::resident::{DeviceArray, DeviceMatrix, DeviceVector};
use crate::tensor::Rank;
use crate::{Accumulator, Element, Engine, Error, Result, ShapeMismatch, Times};

type Acc<T> = <T as Element>::Acc;

/// `Y = alpha * A X + beta * Y` on the device of a resident operand, or where the engine says.
#[inline]
fn product<T: Element + Times<V>, V: Element, A: Stack<X>, X: Rank>(
    alpha: V::Acc,
    a: OperandRef<'_, T, A>,
    x: OperandRef<'_, V, X>,
    beta: V::Acc,
    y: OperandMut<'_, V, X>,
) -> Result<()> {
    let ask = Ask { params: None, conj: false, alpha, beta, epilogue: None };
    match (a.device(), x.device(), &y) {
        (None, None, OperandMut::Host(_)) => {
            // Before a device is looked for, which is known where it is a matter of nanoseconds.
            if !A::SINGLE {
                A::check(a.raw_dim(), x.raw_dim(), Some(y.raw_dim()))?;
            }
            Engine::global().default_ref()?.run(ask, a, x, y)
        }
        (Some(device), ..) | (_, Some(device), _) => on(device, ask, a, x, y),
        (.., y_mut) => {
            let device = y_mut.device().expect("one of the operands is resident").clone();
            on(&device, ask, a, x, y)
        }
    }
}

/// On the device of an operand.
#[inline(never)]
fn on<T: Element + Times<V>, V: Element, A: Stack<X>, X: Rank>(
    device: &Device,
    ask: Ask<'_, V::Acc>,
    a: OperandRef<'_, T, A>,
    x: OperandRef<'_, V, X>,
    y: OperandMut<'_, V, X>,
) -> Result<()> {
    device.run(ask, a, x, y)
}

/// `A X` in a new array.
fn on_host<T: Element + Times<V>, V: Element, A: Stack<X>, X: Rank>(
    a: &ArrayRef<T, A>,
    x: OperandRef<'_, V, X>,
) -> Result<Array<V, X>> {
    // Before memory is allocated for it.
    A::check(a.raw_dim(), x.raw_dim(), None)?;
    let mut y = host_array("the host", A::result(a.raw_dim(), x.raw_dim()))?;
    product(V::Acc::ONE, a.into(), x, V::Acc::ZERO, (&mut y).into())?;
    Ok(y)
}

/// `A X` in a new array on A's device.
fn on_device<T: Element + Times<V>, V: Element, A: Stack<X>, X: Rank>(
    a: &DeviceArray<T, A>,
    x: OperandRef<'_, V, X>,
) -> Result<DeviceArray<V, X>> {
    A::check(a.raw_dim(), x.raw_dim(), None)?;
    let mut y = DeviceArray::zeros(a.device(), A::result(a.raw_dim(), x.raw_dim()))?;
    product(V::Acc::ONE, a.into(), x, V::Acc::ZERO, (&mut y).into())?;
    Ok(y)
}

/// Names the matrix of `x A` as the caller wrote it, not its transpose.
fn of_row_vector(e: Error) -> Error {
    match e {
        Error::Shape(ShapeMismatch::MatrixVector { matrix: (n, m), x, y }) => {
            Error::Shape(ShapeMismatch::VectorMatrix { x, matrix: (m, n), y })
        }
        e => e,
    }
}

/// The products of a matrix and a vector, on either side. The vectors' type; the conversion from `self`, or
/// the wrapper, to the matrix.
macro_rules! matrix_and_vector {
    ($([$($generic:tt)*] $elem:ty, $matrix:ty, $of:ident, $vector:ty => $output:ty, $new:ident;)*) => { $(
        impl<$($generic)*> Multiply<$vector> for $matrix {
            type Elem = $elem;
            type Output = $output;
            type Target<'y> = VectorMut<'y, $elem>;

            fn product(&self, x: &$vector) -> Result<$output> {
                $new($of(self), x.into())
            }

            #[inline]
            fn update(
                &self,
                alpha: Acc<$elem>,
                x: &$vector,
                beta: Acc<$elem>,
                y: VectorMut<'_, $elem>,
            ) -> Result<()> {
                product(alpha, $of(self).into(), x.into(), beta, y)
            }
        }

        impl<$($generic)*> Multiply<$matrix> for $vector {
            type Elem = $elem;
            type Output = $output;
            type Target<'y> = VectorMut<'y, $elem>;

            fn product(&self, a: &$matrix) -> Result<$output> {
                $new(&$of(a).t(), self.into()).map_err(of_row_vector)
            }

            fn update(
                &self,
                alpha: Acc<$elem>,
                a: &$matrix,
                beta: Acc<$elem>,
                y: VectorMut<'_, $elem>,
            ) -> Result<()> {
                product(alpha, (&$of(a).t()).into(), self.into(), beta, y).map_err(of_row_vector)
            }
        }
    )* };
}

/// The products of a matrix or batch with a matrix or batch.
macro_rules! matrix_and_matrix {
    ($([$($generic:tt)*] $elem:ty, $left:ty, $of:ident, $right:ty => $output:ty, $new:ident, $axes:ty;)*) => { $(
        impl<$($generic)*> Multiply<$right> for $left {
            type Elem = $elem;
            type Output = $output;
            type Target<'y> = OperandMut<'y, $elem, $axes>;

            fn product(&self, x: &$right) -> Result<$output> {
                $new($of(self), x.into())
            }

            fn update(
                &self,
                alpha: Acc<$elem>,
                x: &$right,
                beta: Acc<$elem>,
                y: OperandMut<'_, $elem, $axes>,
            ) -> Result<()> {
                product(alpha, $of(self).into(), x.into(), beta, y)
            }
        }
    )* };
}

/// The pairs of forms for a matrix of `$t` and vectors of `$v`: the matrix by itself, or in a wrapper
/// from which `$of` takes it.
macro_rules! matrices {
    ([$($generic:tt)*] $t:ty, $v:ty, $($wrapper:ident)?, $of:ident) => {
        matrices!(@ [$($generic)*] $v, $of,
            [matrices!(= ArrayRef2<$t>, $($wrapper)?)],
            [matrices!(= DeviceMatrix<$t>, $($wrapper)?)],
            [matrices!(= ArrayRef<$t, Ix3>, $($wrapper)?)],
            [matrices!(= DeviceArray<$t, Ix3>, $($wrapper)?)]);
    };
    (= $form:ty,) => { $form };
    (= $form:ty, $wrapper:ident) => { $wrapper<'_, $form> };
    (@ [$($generic:tt)*] $v:ty, $of:ident, [$host:ty], [$there:ty], [$hosts:ty], [$theres:ty]) => {
        matrix_and_vector!(
            [$($generic)*] $v, $host, $of, ArrayRef1<$v> => Array1<$v>, on_host;
            [$($generic)*] $v, $host, $of, [$v] => Array1<$v>, on_host;
            [$($generic)*] $v, $host, $of, DeviceVector<$v> => Array1<$v>, on_host;
            [$($generic)*] $v, $there, $of, ArrayRef1<$v> => DeviceVector<$v>, on_device;
            [$($generic)*] $v, $there, $of, [$v] => DeviceVector<$v>, on_device;
            [$($generic)*] $v, $there, $of, DeviceVector<$v> => DeviceVector<$v>, on_device;
        );
        matrix_and_matrix!(
            [$($generic)*] $v, $host, $of, ArrayRef2<$v> => Array2<$v>, on_host, Ix2;
            [$($generic)*] $v, $host, $of, DeviceMatrix<$v> => Array2<$v>, on_host, Ix2;
            [$($generic)*] $v, $there, $of, ArrayRef2<$v> => DeviceMatrix<$v>, on_device, Ix2;
            [$($generic)*] $v, $there, $of, DeviceMatrix<$v> => DeviceMatrix<$v>, on_device, Ix2;
            [$($generic)*] $v, $hosts, $of, ArrayRef2<$v> => Array2<$v>, on_host, Ix2;
            [$($generic)*] $v, $hosts, $of, DeviceMatrix<$v> => Array2<$v>, on_host, Ix2;
            [$($generic)*] $v, $theres, $of, ArrayRef2<$v> => DeviceMatrix<$v>, on_device, Ix2;
            [$($generic)*] $v, $theres, $of, DeviceMatrix<$v> => DeviceMatrix<$v>, on_device, Ix2;
            [$($generic)*] $v, $hosts, $of, ArrayRef<$v, Ix3> => Array3<$v>, on_host, Ix3;
            [$($generic)*] $v, $hosts, $of, DeviceArray<$v, Ix3> => Array3<$v>, on_host, Ix3;
            [$($generic)*] $v, $theres, $of, ArrayRef<$v, Ix3> => DeviceArray<$v, Ix3>, on_device, Ix3;
            [$($generic)*] $v, $theres, $of, DeviceArray<$v, Ix3> => DeviceArray<$v, Ix3>, on_device, Ix3;
        );
    };
}
matrices!([T: Element] T, T, , itself);
matrices!([] f16, f32, , itself);
matrices!([] bf16, f32, , itself);
// Not the matrix by itself: of `a.gpu_dot(&array![1.0, 2.0])` with a matrix of f32, the compiler could not
// tell any more which type the numbers have, and would take f64.
matrices!([] f32, f64, Widened, narrow);

/// The matrix of a product that has it as it is.
#[inline(always)]
fn itself<M: ?Sized>(a: &M) -> &M {
    a
}

#[inline(always)]
fn narrow<'a, M: ?Sized>(a: &Widened<'a, M>) -> &'a M {
    a.0
}

macro_rules! vector_and_vector {
    ($($left:ty, $right:ty, $row:expr;)*) => { $(
        impl<T: Element> Multiply<$right> for $left {
            type Elem = T;
            type Output = T;
            type Target<'y> = &'y mut T;

            fn product(&self, rhs: &$right) -> Result<T> {
                let mut y = T::default();
                self.update(T::Acc::ONE, rhs, T::Acc::ZERO, &mut y)?;
                Ok(y)
            }

            fn update(&self, alpha: T::Acc, rhs: &$right, beta: T::Acc, y: &mut T) -> Result<()> {
                if self.len() != rhs.len() {
                    let (left, right) = (self.len(), rhs.len());
                    return Err(Error::Shape(ShapeMismatch::Dot { left, right }));
                }
                // A matrix of one row: the same bits as that row's entry of `A x`.
                let row = $row(self);
                let y = aview_mut1(std::slice::from_mut(y));
                product(alpha, (&row).into(), rhs.into(), beta, y.into())
            }
        }
    )* };
}
vector_and_vector!(
    ArrayRef1<T>, ArrayRef1<T>, host_row;
    ArrayRef1<T>, [T], host_row;
    ArrayRef1<T>, DeviceVector<T>, host_row;
    [T], ArrayRef1<T>, slice_row;
    [T], [T], slice_row;
    [T], DeviceVector<T>, slice_row;
    DeviceVector<T>, ArrayRef1<T>, DeviceVector::as_row;
    DeviceVector<T>, [T], DeviceVector::as_row;
    DeviceVector<T>, DeviceVector<T>, DeviceVector::as_row;
);

fn host_row<T>(x: &ArrayRef1<T>) -> ArrayView2<'_, T> {
    x.view().insert_axis(Axis(0))
}

fn slice_row<T>(x: &[T]) -> ArrayView2<'_, T> {
    ArrayView2::from_shape((1, x.len()), x).expect("one row of all entries")
}

/// The array with a number of axes that it was found to have.
macro_rules! axes {
    ($array:expr, $axes:ty) => {
        $array.into_dimensionality::<$axes>().expect("the number of axes was compared")
    };
}

/// Views of any number of axes.
fn array_view<T, D: Dimension>(a: &ArrayRef<T, D>) -> ArrayViewD<'_, T> {
    a.view().into_dyn()
}

fn slice_view<T>(x: &[T]) -> ArrayViewD<'_, T> {
    ArrayView1::from(x).into_dyn()
}

/// The product of arrays whose number of axes is known now.
fn product_of_dyn<T: Element>(a: ArrayViewD<'_, T>, x: ArrayViewD<'_, T>) -> Result<ArrayD<T>> {
    macro_rules! of {
        ($a:ty, $x:ty) => {
            axes!(a, $a).try_gpu_dot(&axes!(x, $x))?.into_dyn()
        };
    }
    Ok(match (a.ndim(), x.ndim()) {
        (1, 1) => arr0(axes!(a, Ix1).try_gpu_dot(&axes!(x, Ix1))?).into_dyn(),
        (1, 2) => of!(Ix1, Ix2),
        (2, 1) => of!(Ix2, Ix1),
        (2, 2) => of!(Ix2, Ix2),
        (3, 2) => of!(Ix3, Ix2),
        (3, 3) => of!(Ix3, Ix3),
        (left, right) => return Err(Error::Shape(ShapeMismatch::Axes { left, right, y: None })),
    })
}

/// As [`product_of_dyn`], with factors and a place.
fn update_of_dyn<T: Element>(
    alpha: T::Acc,
    a: ArrayViewD<'_, T>,
    x: ArrayViewD<'_, T>,
    beta: T::Acc,
    mut y: ArrayViewMutD<'_, T>,
) -> Result<()> {
    macro_rules! of {
        ($a:ty, $x:ty, $y:ty) => {
            axes!(a, $a).try_gemv(alpha, &axes!(x, $x), beta, axes!(y, $y))
        };
    }
    match (a.ndim(), x.ndim(), y.ndim()) {
        (1, 1, 0) => {
            let y = y.first_mut().expect("one number");
            axes!(a, Ix1).try_gemv(alpha, &axes!(x, Ix1), beta, y)
        }
        (1, 2, 1) => of!(Ix1, Ix2, Ix1),
        (2, 1, 1) => of!(Ix2, Ix1, Ix1),
        (2, 2, 2) => of!(Ix2, Ix2, Ix2),
        (3, 2, 2) => of!(Ix3, Ix2, Ix2),
        (3, 3, 3) => of!(Ix3, Ix3, Ix3),
        (left, right, y) => Err(Error::Shape(ShapeMismatch::Axes { left, right, y: Some(y) })),
    }
}

macro_rules! axes_at_run_time {
    ($($left:ty, $left_view:ident, $right:ty, $right_view:ident;)*) => { $(
        impl<T: Element> Multiply<$right> for $left {
            type Elem = T;
            type Output = ArrayD<T>;
            type Target<'y> = ArrayViewMutD<'y, T>;

            fn product(&self, x: &$right) -> Result<ArrayD<T>> {
                product_of_dyn($left_view(self), $right_view(x))
            }

            fn update(
                &self,
                alpha: T::Acc,
                x: &$right,
                beta: T::Acc,
                y: ArrayViewMutD<'_, T>,
            ) -> Result<()> {
                update_of_dyn(alpha, $left_view(self), $right_view(x), beta, y)
            }
        }
    )* };
}
axes_at_run_time!(
    ArrayRefD<T>, array_view, ArrayRefD<T>, array_view;
    ArrayRefD<T>, array_view, ArrayRef1<T>, array_view;
    ArrayRefD<T>, array_view, ArrayRef2<T>, array_view;
    ArrayRefD<T>, array_view, ArrayRef<T, Ix3>, array_view;
    ArrayRefD<T>, array_view, [T], slice_view;
    ArrayRef1<T>, array_view, ArrayRefD<T>, array_view;
    ArrayRef2<T>, array_view, ArrayRefD<T>, array_view;
    ArrayRef<T, Ix3>, array_view, ArrayRefD<T>, array_view;
    [T], slice_view, ArrayRefD<T>, array_view;
);

/// The number of a dot product, as an array without axes.
fn number<T>(of: T) -> Result<ArrayD<T>> {
    Ok(arr0(of).into_dyn())
}

fn on_host_already<T, D: Dimension>(y: Array<T, D>) -> Result<ArrayD<T>> {
    Ok(y.into_dyn())
}

fn downloaded<T: Element>(y: DeviceVector<T>) -> Result<ArrayD<T>> {
    Ok(y.download()?.into_dyn())
}

fn only_entry<T>(y: ArrayViewMutD<'_, T>) -> &mut T {
    y.into_iter().next().expect("an array without axes has one entry")
}

fn vector_place<T>(y: ArrayViewMutD<'_, T>) -> ArrayViewMut1<'_, T> {
    axes!(y, Ix1)
}

fn matrix_place<T>(y: ArrayViewMutD<'_, T>) -> ArrayViewMut2<'_, T> {
    axes!(y, Ix2)
}

fn batch_place<T>(y: ArrayViewMutD<'_, T>) -> ArrayViewMut3<'_, T> {
    axes!(y, Ix3)
}

/// For each resident X, the axes of A that make a product with it, and those of Y.
macro_rules! axes_at_run_time_and_resident {
    ($($right:ty, $right_axes:literal: $($axes:literal, $a:ty => $y_axes:literal, $new:ident, $place:ident;)*)*) => { $(
        impl<T: Element> Multiply<$right> for ArrayRefD<T> {
            type Elem = T;
            type Output = ArrayD<T>;
            type Target<'y> = ArrayViewMutD<'y, T>;

            fn product(&self, x: &$right) -> Result<ArrayD<T>> {
                match self.ndim() {
                    $($axes => $new(axes!(self.view(), $a).try_gpu_dot(x)?),)*
                    left => {
                        let axes = ShapeMismatch::Axes { left, right: $right_axes, y: None };
                        Err(Error::Shape(axes))
                    }
                }
            }

            fn update(
                &self,
                alpha: T::Acc,
                x: &$right,
                beta: T::Acc,
                y: ArrayViewMutD<'_, T>,
            ) -> Result<()> {
                match (self.ndim(), y.ndim()) {
                    $(($axes, $y_axes) => {
                        axes!(self.view(), $a).try_gemv(alpha, x, beta, $place(y))
                    })*
                    (left, y) => {
                        let axes = ShapeMismatch::Axes { left, right: $right_axes, y: Some(y) };
                        Err(Error::Shape(axes))
                    }
                }
            }
        }
    )* };
}
axes_at_run_time_and_resident!(
    DeviceVector<T>, 1:
        1, Ix1 => 0, number, only_entry;
        2, Ix2 => 1, on_host_already, vector_place;
    DeviceMatrix<T>, 2:
        1, Ix1 => 1, downloaded, vector_place;
        2, Ix2 => 2, on_host_already, matrix_place;
        3, Ix3 => 2, on_host_already, matrix_place;
    DeviceArray<T, Ix3>, 3:
        3, Ix3 => 3, on_host_already, batch_place;
);
