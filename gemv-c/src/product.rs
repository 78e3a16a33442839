//! Products.

use std::ffi::c_void;

use gemv::ndarray::Ix3;
use gemv::unstable::{Accumulator, Element, LeftOperand, ShapeMismatch, for_types};
use gemv::{Device, DeviceVector, Error, OperandMut};

use crate::array::{Array, Axes, CONJUGATED, DEVICE, Placed, RESIDENT};
use crate::device::{Handle, device};
use crate::error::{Result, Status, guarded, wrong};
use crate::operand::{check_result, foreign, read};
use crate::resident::{Matrix, other_type};

/// A product as it was asked for, but for its matrix.
pub(crate) struct Ask<'a> {
    pub(crate) device: &'a Device,
    pub(crate) alpha: *const c_void,
    pub(crate) x: Placed,
    pub(crate) beta: *const c_void,
    pub(crate) y: Placed,
}

/// A factor, or this number for a null pointer.
///
/// # Safety
/// The pointer is null, or of such a number.
unsafe fn factor<N: Copy>(at: *const c_void, missing: N) -> N {
    // SAFETY: the caller's; it may be at any address.
    if at.is_null() { missing } else { unsafe { at.cast::<N>().read_unaligned() } }
}

impl Ask<'_> {
    /// # Safety
    /// The arrays and factors are what the types and flags say.
    pub(crate) unsafe fn run<'a, V: Element>(
        &self,
        a: impl LeftOperand<'a, V, Axes = Ix3>,
        conj: bool,
    ) -> Result<()> {
        let Ask { device, x, y, .. } = self;
        // SAFETY: the caller's.
        let (alpha, beta) =
            unsafe { (factor(self.alpha, V::Acc::ONE), factor(self.beta, V::Acc::ZERO)) };
        // SAFETY: the caller's.
        let of_x = unsafe { read::<V>(device, x, "x") }?;
        let product = |y: OperandMut<'_, V, Ix3>| {
            device.product(a, of_x.operand()).conj_if(conj).scaled(alpha, beta).to(y)
        };
        if y.is(RESIDENT) {
            y.distinct("y")?;
            // SAFETY: the caller's.
            let mut block = unsafe { Matrix::of(y.data(), "y") }?.block();
            let block = block.downcast_mut::<DeviceVector<V>>().ok_or_else(|| other_type("y"))?;
            // What A, x or another thread's product reads of the block stays as it is: y gets a block of its own then.
            let y = block.view_mut()?.window_at(y.first, y.dim, y.raw_strides())?;
            return Ok(product(y.into())?);
        }
        if y.is(DEVICE) && y.reach > 0 {
            // SAFETY: the caller's.
            let mut y = unsafe { foreign::<V>(device, y, true) }?;
            return Ok(product((&mut y).into())?);
        }
        // SAFETY: the caller's.
        Ok(product(unsafe { y.view_mut::<V>("y") }?.into())?)
    }
}

/// # Safety
/// As gemv.h says of its functions.
unsafe fn product(
    on: *const Handle,
    alpha: *const c_void,
    a: *const Array,
    x: *const Array,
    beta: *const c_void,
    y: *const Array,
    columns: bool,
) -> Result<()> {
    // SAFETY: the caller's.
    let (device, ndim) = unsafe { (device(on)?, a.as_ref().map_or(2, |a| a.ndim)) };
    let (of_a, of_x): (Axes, Axes) = match (ndim, columns) {
        (2, false) => ([None, Some(0), Some(1)], [None, Some(0), None]),
        (2, true) => ([None, Some(0), Some(1)], [None, Some(0), Some(1)]),
        (3, false) => ([Some(0), Some(1), Some(2)], [Some(0), Some(1), None]),
        (3, true) => ([Some(0), Some(1), Some(2)], [Some(0), Some(1), Some(2)]),
        _ => return Err(wrong(format_args!("A has {ndim} axes: a matrix has two, a batch three"))),
    };
    // SAFETY: the caller's.
    let (a, x, y) = unsafe {
        (Placed::of(a, "A", of_a)?, Placed::of(x, "x", of_x)?, Placed::of(y, "y", of_x)?)
    };
    check_vectors(&x, &y)?;
    if !a.dtype.multiplies(x.dtype) || x.dtype != y.dtype {
        let (a, x, y) = (a.dtype, x.dtype, y.dtype);
        return Err(wrong(format_args!("there is no product of A of {a}, x of {x} and y of {y}")));
    }
    if ndim == 2 {
        check_shapes((a.dim[1], a.dim[2]), &x, &y, columns)?;
    }
    let ask = Ask { device, alpha, x, beta, y };
    for_types!((a.dtype, x.dtype), T, V => {
        // SAFETY: the caller's.
        unsafe { ask.run::<V>(read::<T>(device, &a, "A")?.operand(), a.is(CONJUGATED)) }
    })
}

/// Neither is conjugated, and y may be written.
pub(crate) fn check_vectors(x: &Placed, y: &Placed) -> Result<()> {
    check_result(y, "y")?;
    if x.is(CONJUGATED) {
        return Err(wrong("x has the flag of a conjugated matrix"));
    }
    Ok(())
}

/// Of one matrix, in the words of its product with one vector or with several.
pub(crate) fn check_shapes(
    matrix: (usize, usize),
    x: &Placed,
    y: &Placed,
    columns: bool,
) -> Result<()> {
    let [x, y] = [x, y].map(|of| (of.dim[1], of.dim[2]));
    if matrix.1 == x.0 && y == (matrix.0, x.1) {
        return Ok(());
    }
    Err(Error::Shape(match columns {
        false => ShapeMismatch::MatrixVector { matrix, x: x.0, y: Some(y.0) },
        true => ShapeMismatch::MatrixMatrix { matrix, x, y: Some(y) },
    })
    .into())
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_mv(
    on: *const Handle,
    alpha: *const c_void,
    a: *const Array,
    x: *const Array,
    beta: *const c_void,
    y: *const Array,
) -> Status {
    // SAFETY: the caller's.
    guarded(|| unsafe { product(on, alpha, a, x, beta, y, false) })
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_mm(
    on: *const Handle,
    alpha: *const c_void,
    a: *const Array,
    x: *const Array,
    beta: *const c_void,
    y: *const Array,
) -> Status {
    // SAFETY: the caller's.
    guarded(|| unsafe { product(on, alpha, a, x, beta, y, true) })
}
