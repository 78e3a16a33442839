//! Products of packed matrices.

use std::ffi::c_void;

use gemv::half::{bf16, f16};
use gemv::unstable::{
    Accumulator, Element, Job, Number, PackedMatrix, ShapeMismatch, Tensor, TensorMut,
};
use gemv::{Device, DeviceVector, Dtype, Error};

use crate::array::{Array, Axes, CONJUGATED, DEVICE, Placed, RESIDENT};
use crate::device::{Handle, device};
use crate::error::{Result, Status, guarded, wrong};
use crate::operand::{Read, check_result, foreign, read};
use crate::packed::{Packed, check_device};
use crate::product::factor;
use crate::resident::{Matrix, other_type};

/// A product as it was asked for.
struct Ask<'a> {
    device: &'a Device,
    alpha: *const c_void,
    a: PackedMatrix<'a>,
    x: Placed,
    beta: *const c_void,
    y: Placed,
}

impl Ask<'_> {
    /// # Safety
    /// The arrays and factors are what the types and flags say.
    unsafe fn run<V: Element>(&self) -> Result<()> {
        let Ask { device, a, x, y, .. } = self;
        // SAFETY: the caller's.
        let factors = unsafe { [factor(self.alpha, V::Acc::ONE), factor(self.beta, V::Acc::ZERO)] };
        let [alpha, beta] = factors.map(Number::new);
        // SAFETY: the caller's.
        let of_x = unsafe { read::<V>(device, x, "x") }?;
        let x = match &of_x {
            Read::Host(view) => Tensor::from(view.view()),
            Read::Device(array) => {
                check_device(device, array.device())?;
                Tensor::device(V::DTYPE, array.window())
            }
        };
        let product = |y: TensorMut<'_>| {
            let a = Tensor::of_packed(*a, V::DTYPE);
            Ok(device.compute(Job { alpha, a, conj: false, x, beta, y })?)
        };
        if y.is(RESIDENT) {
            y.distinct("y")?;
            // SAFETY: the caller's.
            let mut block = unsafe { Matrix::of(y.data(), "y") }?.block();
            let block = block.downcast_mut::<DeviceVector<V>>().ok_or_else(|| other_type("y"))?;
            check_device(device, block.device())?;
            // As in other products: what is read of the block stays as it is.
            let y = block.view_mut()?.window_at(y.first, y.dim, y.raw_strides())?;
            return product(TensorMut::device(V::DTYPE, y.window()));
        }
        if y.is(DEVICE) && y.reach > 0 {
            // SAFETY: the caller's.
            let mut y = unsafe { foreign::<V>(device, y, true) }?;
            let window = y.window_mut().ok_or_else(|| wrong("y may not be written"))?;
            return product(TensorMut::device(V::DTYPE, window));
        }
        // SAFETY: the caller's.
        product(unsafe { y.view_mut::<V>("y") }?.into())
    }
}

/// # Safety
/// As gemv.h says of its functions.
unsafe fn product(
    on: *const Handle,
    alpha: *const c_void,
    a: *const Packed,
    x: *const Array,
    beta: *const c_void,
    y: *const Array,
    columns: bool,
) -> Result<()> {
    // SAFETY: the caller's.
    let (device, of_a) = unsafe { (device(on)?, Packed::of(a)?) };
    let axes: Axes = [None, Some(0), columns.then_some(1)];
    // SAFETY: the caller's.
    let (x, y) = unsafe { (Placed::of(x, "x", axes)?, Placed::of(y, "y", axes)?) };
    check_result(&y, "y")?;
    if x.is(CONJUGATED) {
        return Err(wrong("x has the flag of a conjugated matrix"));
    }
    let matrix = of_a.dim();
    let two = |of: &Placed| (of.dim[1], of.dim[2]);
    if matrix.1 != x.dim[1] || two(&y) != (matrix.0, x.dim[2]) {
        let (of_x, of_y) = (two(&x), two(&y));
        return Err(Error::Shape(match columns {
            false => ShapeMismatch::MatrixVector { matrix, x: of_x.0, y: Some(of_y.0) },
            true => ShapeMismatch::MatrixMatrix { matrix, x: of_x, y: Some(of_y) },
        })
        .into());
    }
    let no_product = || {
        let (a, x, y) = (of_a.format(), x.dtype, y.dtype);
        wrong(format_args!("there is no product of A of {a}, x of {x} and y of {y}"))
    };
    if x.dtype != y.dtype {
        return Err(no_product());
    }
    let uploaded = of_a.for_product(device)?;
    let a = uploaded.as_ref().map_or(of_a.matrix(), |of| of.window());
    let ask = Ask { device, alpha, a, x, beta, y };
    // SAFETY: the caller's.
    unsafe {
        match x.dtype {
            Dtype::F32 => ask.run::<f32>(),
            Dtype::F16 => ask.run::<f16>(),
            Dtype::Bf16 => ask.run::<bf16>(),
            _ => Err(no_product()),
        }
    }
}

/// # Safety
/// As gemv.h says.
#[unsafe(no_mangle)]
unsafe extern "C" fn gemv_packed_mv(
    on: *const Handle,
    alpha: *const c_void,
    a: *const Packed,
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
unsafe extern "C" fn gemv_packed_mm(
    on: *const Handle,
    alpha: *const c_void,
    a: *const Packed,
    x: *const Array,
    beta: *const c_void,
    y: *const Array,
) -> Status {
    // SAFETY: the caller's.
    guarded(|| unsafe { product(on, alpha, a, x, beta, y, true) })
}
