//! Memory of resident operands: the host's, aligned to 64 bytes, on huge pages where it is large.

use std::alloc::{Layout, alloc, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use gemv_core::{Element, Memory};

/// From here on a block is aligned to huge pages, and they are asked for.
const HUGE: usize = 2 << 20;

/// A block of elements.
pub(crate) struct Allocation<T> {
    p: NonNull<T>,
    len: usize,
    layout: Layout,
}

// SAFETY: a block owns its elements, as a Vec does.
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
    /// A block of `len` zeros, or the bytes that there are not.
    pub(crate) fn zeros(len: usize) -> Result<Allocation<T>, u64> {
        let block = Allocation::with(len)?;
        // SAFETY: the block is new and good for len elements, of which zero bits are the value 0.
        unsafe { block.p.write_bytes(0, len) };
        Ok(block)
    }

    /// A block that holds a copy.
    pub(crate) fn copy_of(data: &[T]) -> Result<Allocation<T>, u64> {
        let block = Allocation::with(data.len())?;
        // SAFETY: the block is new and good for data.len() elements.
        unsafe { block.p.copy_from_nonoverlapping(NonNull::from(data).cast(), data.len()) };
        Ok(block)
    }

    /// Not yet initialised.
    fn with(len: usize) -> Result<Allocation<T>, u64> {
        let bytes = len.max(1).saturating_mul(size_of::<T>());
        let align = if bytes >= HUGE { HUGE } else { 64 };
        let layout = Layout::from_size_align(bytes, align).map_err(|_| bytes as u64)?;
        // SAFETY: the layout's size is not 0.
        let p = NonNull::new(unsafe { alloc(layout) }).ok_or(bytes as u64)?;
        let block = Allocation { p: p.cast(), len, layout };
        // Before the first touch, which is what makes pages.
        advise(&block);
        Ok(block)
    }
}

#[cfg(target_os = "linux")]
fn advise<T>(block: &Allocation<T>) {
    if block.layout.size() >= HUGE {
        // SAFETY: the range is the block's own, and the advice changes no content. A refusal
        // costs speed only.
        unsafe {
            libc::madvise(block.p.as_ptr().cast(), block.layout.size(), libc::MADV_HUGEPAGE);
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
        // SAFETY: the block is good for len elements, all initialised.
        unsafe { std::slice::from_raw_parts(self.p.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Allocation<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and it is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.p.as_ptr(), self.len) }
    }
}
