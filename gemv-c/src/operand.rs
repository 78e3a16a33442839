//! Operands: in the host's memory, in a `gemv_matrix`, or in memory of the device that another library owns.

use gemv::ndarray::{ArrayView3, Ix3};
use gemv::unstable::{Element, Foreign};
use gemv::{Device, DeviceArray, OperandRef};

use crate::array::{CONJUGATED, DEVICE, Placed, READ_ONLY, RESIDENT};
use crate::error::{Result, wrong};
use crate::resident::Matrix;

/// An operand that is read.
pub(crate) enum Read<'a, T: Element> {
    Host(ArrayView3<'a, T>),
    Device(DeviceArray<T, Ix3>),
}

impl<T: Element> Read<'_, T> {
    pub(crate) fn operand(&self) -> OperandRef<'_, T, Ix3> {
        match self {
            Read::Host(view) => view.view().into(),
            Read::Device(array) => array.into(),
        }
    }
}

/// # Safety
/// The array is where its flags say, of elements `T`, and stays until the work on it is done.
pub(crate) unsafe fn read<'a, T: Element>(
    device: &Device,
    of: &Placed,
    name: &str,
) -> Result<Read<'a, T>> {
    Ok(if of.is(RESIDENT) {
        // SAFETY: the caller's.
        Read::Device(unsafe { Matrix::of(of.data(), name) }?.window(of, name)?)
    } else if of.is(DEVICE) && of.reach > 0 {
        // SAFETY: the caller's.
        Read::Device(unsafe { foreign(device, of, false) }?)
    } else {
        // SAFETY: the caller's.
        Read::Host(unsafe { of.view(name) }?)
    })
}

/// # Safety
/// As of [`DeviceArray::from_foreign`]; the caller keeps the memory.
pub(crate) unsafe fn foreign<T: Element>(
    device: &Device,
    of: &Placed,
    writable: bool,
) -> Result<DeviceArray<T, Ix3>> {
    let (handle, bytes) = (of.data().addr(), of.reach * of.dtype.bytes());
    let foreign = Foreign { handle, bytes, dtype: of.dtype, writable, keep: Box::new(()) };
    let strides = of.raw_strides();
    // SAFETY: the caller's.
    Ok(unsafe { DeviceArray::from_foreign(device, foreign, of.first, of.dim, strides) }?)
}

/// A result is no conjugate, and may be written.
pub(crate) fn check_result(y: &Placed, name: &str) -> Result<()> {
    if y.is(READ_ONLY | CONJUGATED) {
        return Err(wrong(format_args!("{name} has the flag of an array that is read")));
    }
    Ok(())
}

/// The same of an array that has to be in the host's memory.
pub(crate) fn check_host_result(y: &Placed, name: &str) -> Result<()> {
    check_result(y, name)?;
    if y.is(RESIDENT | DEVICE) {
        return Err(wrong(format_args!("{name} is not in the host's memory")));
    }
    Ok(())
}
