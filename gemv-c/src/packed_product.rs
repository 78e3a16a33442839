//! Products of packed matrices.

use std::ffi::c_void;

use gemv::Dtype;
use gemv::half::{bf16, f16};
use gemv::ndarray::Axis;
use gemv::unstable::Element;

use crate::array::{Array, Axes, Placed};
use crate::device::{Handle, device};
use crate::error::{Result, Status, guarded, wrong};
use crate::packed::{Blocks, Packed};
use crate::product::{Ask, check_shapes, check_vectors};

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
    check_vectors(&x, &y)?;
    check_shapes(of_a.dim(), &x, &y, columns)?;
    let no_product = || {
        let (a, x, y) = (of_a.format(), x.dtype, y.dtype);
        wrong(format_args!("there is no product of A of {a}, x of {x} and y of {y}"))
    };
    if x.dtype != y.dtype {
        return Err(no_product());
    }
    let (dtype, ask) = (x.dtype, Ask { device, alpha, x, beta, y });
    // SAFETY: the caller's.
    unsafe {
        match dtype {
            Dtype::F32 => run::<f32>(&ask, of_a),
            Dtype::F16 => run::<f16>(&ask, of_a),
            Dtype::Bf16 => run::<bf16>(&ask, of_a),
            _ => Err(no_product()),
        }
    }
}

/// # Safety
/// As [`Ask::run`].
unsafe fn run<V: Element<Acc = f32>>(ask: &Ask<'_>, a: &Packed) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        match &a.blocks {
            Blocks::Host(of) => ask.run::<V>(&of.insert_axis(Axis(0)), false),
            Blocks::Device(of) => ask.run::<V>(&of.insert_axis(Axis(0)), false),
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
