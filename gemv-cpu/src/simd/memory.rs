//! Memory of resident operands: host memory, aligned to 64 bytes, on huge pages where it is large.

use std::alloc::{Layout, alloc, dealloc};
use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use gemv_core::{Element, Memory};

/// From so many bytes on an allocation is aligned to huge pages, and the system is advised to use them.
const HUGE: usize = 2 << 20;

/// An allocation of elements.
pub(crate) struct Allocation<T> {
    p: NonNull<T>,
    len: usize,
    layout: Layout,
}

// SAFETY: a allocation owns its elements, as a Vec does.
unsafe impl<T: Send> Send for Allocation<T> {}
// SAFETY: as above; what is shared can only be read.
unsafe impl<T: Sync> Sync for Allocation<T> {}

impl<T> std::fmt::Debug for Allocation<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Allocation({} elements)", self.len)
    }
}

impl<T: Element> Memory for Allocation<T> {
    fn len(&self) -> usize {
        self.len
    }
}

impl<T: Element> Allocation<T> {
    /// `len` zeros, or the number of bytes that were refused.
    pub(crate) fn zeros(len: usize) -> Result<Allocation<T>, u64> {
        let allocation = Allocation::with(len)?;
        // SAFETY: the allocation is new and good for len elements, of which zero bits are the value 0.
        unsafe { allocation.p.write_bytes(0, len) };
        Ok(allocation)
    }

    /// A copy of the elements.
    pub(crate) fn copy_of(data: &[T]) -> Result<Allocation<T>, u64> {
        let allocation = Allocation::with(data.len())?;
        // SAFETY: the allocation is new and good for data.len() elements.
        unsafe { allocation.p.copy_from_nonoverlapping(NonNull::from(data).cast(), data.len()) };
        Ok(allocation)
    }

    /// Uninitialised elements.
    fn with(len: usize) -> Result<Allocation<T>, u64> {
        let bytes = len.max(1).saturating_mul(size_of::<T>());
        let align = if bytes >= HUGE { HUGE } else { 64 };
        let layout = Layout::from_size_align(bytes, align).map_err(|_| bytes as u64)?;
        // SAFETY: the layout's size is not 0.
        let p = NonNull::new(unsafe { alloc(layout) }).ok_or(bytes as u64)?;
        let allocation = Allocation { p: p.cast(), len, layout };
        // Before the first touch, which makes the pages.
        advise(&allocation);
        Ok(allocation)
    }
}

/// The elements of an allocation of this backend, to write to.
///
/// # Panics
/// As [`elements`].
pub(crate) fn elements_mut<T: Element>(memory: &mut dyn Memory) -> &mut [T] {
    let memory: &mut dyn Any = memory;
    memory.downcast_mut::<Allocation<T>>().expect("memory of this backend")
}

/// The elements of an allocation of this backend.
///
/// # Panics
/// If it is another's, or of another type.
pub(crate) fn elements<T: Element>(memory: &dyn Memory) -> &[T] {
    let memory: &dyn Any = memory;
    memory.downcast_ref::<Allocation<T>>().expect("memory of this backend")
}

#[cfg(target_os = "linux")]
fn advise<T>(allocation: &Allocation<T>) {
    if allocation.layout.size() >= HUGE {
        // SAFETY: the range is the allocation's own, and the advice changes no content. A refusal
        // costs speed only.
        unsafe {
            libc::madvise(
                allocation.p.as_ptr().cast(),
                allocation.layout.size(),
                libc::MADV_HUGEPAGE,
            );
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn advise<T>(_: &Allocation<T>) {}

impl<T> Drop for Allocation<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and elements need no drop.
        unsafe { dealloc(self.p.as_ptr().cast(), self.layout) }
    }
}

impl<T> Deref for Allocation<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the allocation is good for len elements, all initialised.
        unsafe { std::slice::from_raw_parts(self.p.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Allocation<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and it is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.p.as_ptr(), self.len) }
    }
}
