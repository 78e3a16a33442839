//! `gemv_array`: where an array lies, as numbers.

use std::ffi::c_void;
use std::ptr::NonNull;

use gemv::ndarray::{ArrayView3, ArrayViewMut3, Axis, Ix3, ShapeBuilder};
use gemv::unstable::{Dtype, Element};

use crate::error::{Result, wrong};

/// `gemv_array`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Array {
    pub(crate) data: *mut c_void,
    pub(crate) offset: i64,
    pub(crate) dim: [i64; 3],
    pub(crate) stride: [i64; 3],
    pub(crate) ndim: u32,
    pub(crate) dtype: u32,
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
}

/// Where `data` is in a `gemv_matrix`.
pub(crate) const RESIDENT: u32 = 1;
/// Where `data` is memory of the device that another library owns.
pub(crate) const DEVICE: u32 = 2;
/// Of the matrix of a product.
pub(crate) const CONJUGATED: u32 = 4;
/// It is not written.
pub(crate) const READ_ONLY: u32 = 8;

/// The type of this number in C: its place among all.
pub(crate) fn dtype(number: u32) -> Result<Dtype> {
    let found = Dtype::ALL.get(number as usize);
    found.copied().ok_or_else(|| wrong(format_args!("there is no gemv_dtype {number}")))
}

/// An array that was looked at: three axes, and numbers that fit the address space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) dtype: Dtype,
    pub(crate) flags: u32,
    pub(crate) first: usize,
    pub(crate) dim: Ix3,
    pub(crate) strides: [isize; 3],
    /// Elements from `data` to the end of the last entry.
    pub(crate) reach: usize,
    data: *mut c_void,
}

/// Which axis of an array each of the three axes is; `None` is a new one of one entry.
pub(crate) type Axes = [Option<usize>; 3];

/// The axes of an array with so many of its own: the last ones.
pub(crate) fn last(ndim: u32) -> Axes {
    match ndim {
        1 => [None, None, Some(0)],
        2 => [None, Some(0), Some(1)],
        _ => [Some(0), Some(1), Some(2)],
    }
}

impl Placed {
    /// # Safety
    /// The pointer is null, or of a `gemv_array`.
    pub(crate) unsafe fn of(array: *const Array, name: &str, axes: Axes) -> Result<Placed> {
        // SAFETY: the caller's.
        let array = unsafe { array.as_ref() };
        let array = array.ok_or_else(|| wrong(format_args!("{name} is a null pointer")))?;
        let needed = axes.iter().flatten().count();
        if array.ndim as usize != needed {
            return Err(wrong(format_args!("{name} has {} axes, not {needed}", array.ndim)));
        }
        if array.flags & !(RESIDENT | DEVICE | CONJUGATED | READ_ONLY) != 0 || array.reserved != 0 {
            let unknown = array.flags;
            return Err(wrong(format_args!(
                "{name} has unknown flags: {unknown:#x}, or not 0 in `reserved`"
            )));
        }
        if array.flags & RESIDENT != 0 && array.flags & DEVICE != 0 {
            return Err(wrong(format_args!("{name} is a gemv_matrix or device memory, not both")));
        }
        let dtype = dtype(array.dtype)?;
        let too_large = || wrong(format_args!("{name} is larger than an address space"));
        let first = usize::try_from(array.offset)
            .map_err(|_| wrong(format_args!("{name} has a negative offset")))?;
        let (mut dim, mut strides, mut entries) = ([1; 3], [0; 3], 1usize);
        for (to, axis) in axes.into_iter().enumerate() {
            let Some(axis) = axis else { continue };
            dim[to] = usize::try_from(array.dim[axis])
                .map_err(|_| wrong(format_args!("{name} has a negative number of entries")))?;
            strides[to] = array.stride[axis] as isize;
            // Of other axes too where one has no entries: the product of the rest is a number of ndarray's.
            entries = entries.checked_mul(dim[to].max(1)).ok_or_else(too_large)?;
        }
        let is_empty = dim.contains(&0);
        let (mut low, mut high) = (first, first);
        for (len, stride) in dim.into_iter().zip(strides) {
            let far = (len.max(1) - 1).checked_mul(stride.unsigned_abs()).ok_or_else(too_large)?;
            if is_empty {
                continue;
            }
            if stride < 0 {
                let begins = || wrong(format_args!("{name} begins before its memory"));
                low = low.checked_sub(far).ok_or_else(begins)?;
            } else {
                high = high.checked_add(far).ok_or_else(too_large)?;
            }
        }
        let bytes = high.checked_add(1).and_then(|reach| reach.checked_mul(dtype.bytes()));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize)
            || entries > isize::MAX as usize / dtype.bytes()
        {
            return Err(too_large());
        }
        if array.data.is_null() && !is_empty {
            return Err(wrong(format_args!("{name} has a null pointer and {entries} entries")));
        }
        let reach = if is_empty { 0 } else { high + 1 };
        let (data, flags, dim) = (array.data, array.flags, Ix3(dim[0], dim[1], dim[2]));
        Ok(Placed { dtype, flags, first, dim, strides, reach, data })
    }

    pub(crate) fn data(&self) -> *mut c_void {
        self.data
    }

    pub(crate) fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Strides as ndarray keeps them.
    pub(crate) fn raw_strides(&self) -> Ix3 {
        let [b, i, j] = self.strides.map(|stride| stride as usize);
        Ix3(b, i, j)
    }

    /// That each entry has a place of its own.
    pub(crate) fn distinct(&self, name: &str) -> Result<()> {
        if self.reach == 0 {
            return Ok(());
        }
        let mut axes: Vec<(usize, usize)> = (0..3)
            .filter(|&axis| self.dim[axis] > 1)
            .map(|axis| (self.strides[axis].unsigned_abs(), self.dim[axis] - 1))
            .collect();
        axes.sort_unstable();
        let mut reach = 0;
        for (stride, steps) in axes {
            if stride <= reach {
                return Err(wrong(format_args!(
                    "{name} has several entries at one place, or axes that cross"
                )));
            }
            reach += stride * steps;
        }
        Ok(())
    }

    /// The address of the lowest entry, and strides without signs.
    fn lowest<T>(&self, name: &str) -> Result<(*mut T, Ix3)> {
        let mut apart = Ix3(0, 0, 0);
        if self.reach == 0 {
            // By a step of 0, ndarray would see entries at one place.
            let ones = [0, 1, 2].map(|axis| self.dim[axis].min(1));
            return Ok((NonNull::dangling().as_ptr(), Ix3(ones[0], ones[1], ones[2])));
        }
        let mut first = self.first;
        for axis in 0..3 {
            apart[axis] = if self.dim[axis] == 1 { 1 } else { self.strides[axis].unsigned_abs() };
            if self.strides[axis] < 0 {
                first -= self.strides[axis].unsigned_abs() * (self.dim[axis] - 1);
            }
        }
        let at = self.data.cast::<T>();
        if !at.is_aligned() {
            return Err(wrong(format_args!(
                "{name} is at an address between elements of {}",
                self.dtype
            )));
        }
        Ok((at.wrapping_add(first), apart))
    }

    fn backwards(&self) -> impl Iterator<Item = Axis> {
        let strides = self.strides;
        let empty = self.reach == 0;
        (0..3).filter(move |&axis| strides[axis] < 0 && !empty).map(Axis)
    }

    /// # Safety
    /// It is an array of the host's memory, of elements `T`, as the caller of the library promises.
    pub(crate) unsafe fn view<'a, T: Element>(&self, name: &str) -> Result<ArrayView3<'a, T>> {
        let (at, apart) = self.lowest::<T>(name)?;
        // SAFETY: the caller's; the numbers fit the address space.
        let mut view = unsafe { ArrayView3::from_shape_ptr(self.dim.strides(apart), at) };
        self.backwards().for_each(|axis| view.invert_axis(axis));
        Ok(view)
    }

    /// # Safety
    /// As [`view`](Self::view), and nothing else reaches its entries.
    pub(crate) unsafe fn view_mut<'a, T: Element>(
        &self,
        name: &str,
    ) -> Result<ArrayViewMut3<'a, T>> {
        self.distinct(name)?;
        let (at, apart) = self.lowest::<T>(name)?;
        // SAFETY: the caller's; the numbers fit the address space, and each entry has a place of its own.
        let mut view = unsafe { ArrayViewMut3::from_shape_ptr(self.dim.strides(apart), at) };
        self.backwards().for_each(|axis| view.invert_axis(axis));
        Ok(view)
    }
}
