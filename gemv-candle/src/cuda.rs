//! Products on CUDA, in the order of candle's stream.

use std::cell::RefCell;
use std::sync::Arc;

use candle_core::cuda::CudaDType;
use candle_core::cuda::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use candle_core::{CudaStorage, Error, Result};
use gemv::Element;
use gemv::cuda::slices::Stream;

use crate::rows::{Part, Rows};

/// How many streams a thread keeps. Each has scratch memory.
const MOST: usize = 8;

thread_local! {
    /// The streams that this thread has used, and gemv's devices on them. The default stream of a thread is another on each,
    /// and any has its own scratch memory here, so that threads do not wait for each other.
    static STREAMS: RefCell<Vec<(Arc<CudaStream>, Stream)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn on_device<T>(x: &CudaStorage, w: &CudaStorage, rows: &Rows) -> Result<CudaStorage>
where
    T: Element + CudaDType + DeviceRepr + ValidAsZeroBits,
{
    let device = &x.device;
    let (len, stream) = (rows.shape.elem_count(), device.cuda_stream());
    if len == 0 || rows.is_of_nothing() {
        return Ok(T::wrap_cuda_slice(device.alloc_zeros(len)?, device.clone()));
    }
    let (x, w) = (x.as_cuda_slice::<T>()?, w.as_cuda_slice::<T>()?);
    // SAFETY: the products write every entry, and are queued before all that reads one. After an error nobody does.
    let mut y = unsafe { device.alloc::<T>(len)? };
    products(&stream, rows.parts(x, w), &mut y).map_err(Error::wrap)?;
    Ok(T::wrap_cuda_slice(y, device.clone()))
}

/// Queues them.
fn products<'a, T: Element + DeviceRepr>(
    stream: &Arc<CudaStream>,
    parts: impl Iterator<Item = Part<&'a CudaSlice<T>>>,
    y: &mut CudaSlice<T>,
) -> gemv::Result<()> {
    let gemv = of_thread(stream)?;
    for Part { a: (a, of_a), b: (b, of_b), y: to } in parts {
        let a = gemv.view(of_a, a.first, a.dim, a.strides)?;
        if let [1, n] = b.dim {
            let x = gemv.view(of_b, b.first, n, b.strides[1])?;
            gemv.product(&a, &x).to(&mut gemv.view_mut(
                y,
                to.first,
                to.dim[0],
                to.strides[0],
            )?)?;
        } else {
            let x = b.transposed();
            let x = gemv.view(of_b, x.first, x.dim, x.strides)?;
            gemv.product(&a, &x).to(&mut gemv.view_mut(y, to.first, to.dim, to.strides)?)?;
        }
    }
    Ok(())
}

/// This thread's device on a stream.
fn of_thread(stream: &Arc<CudaStream>) -> gemv::Result<Stream> {
    // Where the thread is ending, its list is gone.
    let known = STREAMS.try_with(|streams| {
        let streams = streams.borrow();
        streams.iter().find(|(of, _)| **of == **stream).map(|(_, known)| known.clone())
    });
    if let Ok(Some(known)) = known {
        return Ok(known);
    }
    let opened = Stream::new(stream)?;
    let first = STREAMS.try_with(|streams| {
        let mut streams = streams.borrow_mut();
        let first = (streams.len() == MOST).then(|| streams.remove(0));
        streams.push((stream.clone(), opened.clone()));
        first
    });
    // Closed where the list is not borrowed.
    drop(first);
    Ok(opened)
}
