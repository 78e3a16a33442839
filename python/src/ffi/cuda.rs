//! Memory of a GPU that another library owns, on that library's stream.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use gemv::Device;
use gemv::unstable::fork::PerProcess;
use gemv::unstable::{Dtype, Foreign};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::place::{ASTYPE, Library, Operand, Place, instead, no_such_type};
use crate::errors;
use crate::layout::{Layout, check_axes};

/// The default stream of a thread, which is another one on each.
const PER_THREAD: usize = 2;

/// Which stream it is.
#[derive(Debug, Clone, Copy)]
enum Stream {
    /// The legacy default stream.
    Default,
    OfThread(ThreadId),
    /// By its handle, and the driver's number: a handle is given out again when its stream was destroyed. While a stream is
    /// captured, the driver does not tell its number, and the stream is not destroyed.
    Other(usize, Option<u64>),
}

impl Stream {
    /// Whether a device of this stream is for the one that is asked for.
    fn serves(self, asked: Stream) -> bool {
        match (self, asked) {
            (Stream::Default, Stream::Default) => true,
            (Stream::OfThread(one), Stream::OfThread(other)) => one == other,
            (Stream::Other(one, number), Stream::Other(other, asked)) => {
                one == other && (asked.is_none() || number == asked)
            }
            _ => false,
        }
    }
}

/// A GPU, and a stream of it.
type Key = (usize, Stream);

/// Devices on streams of other libraries that are found again: more than the streams that torch has on a GPU, which are
/// never destroyed.
const KEPT: usize = 256;

/// Those that were used last, in that order: a stream's scratch memory is made once. A child that is forked while a thread has the
/// lock has a list of its own.
static DEVICES: PerProcess<Mutex<VecDeque<(Key, Device)>>> = PerProcess::new();

thread_local! {
    /// The one that this thread used last.
    static LAST: RefCell<Option<(Key, Device)>> = const { RefCell::new(None) };
}

/// The device of a GPU whose work goes to this stream (`cudaStream_t`): 0 and 1 are the legacy default stream.
pub fn on_stream(py: Python<'_>, ordinal: usize, stream: usize) -> PyResult<Device> {
    let asked = match stream {
        0 | 1 => Stream::Default,
        PER_THREAD => Stream::OfThread(thread::current().id()),
        _ => {
            // SAFETY: the stream is the library's current one, which is alive while it is.
            let number = unsafe { gemv::cuda::stream_id(ordinal, stream) };
            Stream::Other(stream, number.map_err(errors::of)?)
        }
    };
    let serves = |(of, key): &Key| *of == ordinal && key.serves(asked);
    let last = LAST.with_borrow(|last| {
        last.as_ref().filter(|(key, _)| serves(key)).map(|(_, device)| device.clone())
    });
    if let Some(device) = last {
        return Ok(device);
    }
    let key = (ordinal, asked);
    let device = py.detach(|| {
        let mut all = DEVICES.get().lock().unwrap_or_else(PoisonError::into_inner);
        // The last one of a handle is the one that is alive.
        let known = all.iter().rposition(|(key, _)| serves(key)).and_then(|at| all.remove(at));
        let (key, device) = match known {
            Some(known) => known,
            None if matches!(asked, Stream::Other(_, None)) => {
                return Err(gemv::Error::Device {
                    device: format!("cuda:{ordinal}"),
                    call: "on_stream",
                    reason: "the stream is being captured, and no product has run there: run it once before the capture"
                        .into(),
                });
            }
            // SAFETY: as above; the device is used for no array that is not of that stream.
            None => (key, unsafe {
                gemv::cuda::on_stream(ordinal, if stream == 1 { 0 } else { stream })?
            }),
        };
        all.push_back((key, device.clone()));
        if all.len() > KEPT {
            // To free its memory takes its stream, which may be gone: nobody tells.
            std::mem::forget(all.pop_front());
        }
        Ok((key, device))
    });
    let (key, device) = device.map_err(errors::of)?;
    LAST.set(Some((key, device.clone())));
    Ok(device)
}

/// The entries of an array at an address of a GPU's memory, as a block of this device.
pub fn adopt(
    name: &str,
    device: &Device,
    at: usize,
    dtype: Dtype,
    layout: &Layout,
    writable: bool,
) -> PyResult<Place> {
    let size = dtype.bytes() as isize;
    let reach =
        layout.reach().and_then(|(low, high)| Some((low, high.checked_sub(low)?.checked_add(1)?)));
    let (low, len) = match reach {
        Some(reach) => reach,
        None if layout.is_empty() => (0, 0),
        None => {
            return Err(errors::value(format!(
                "{name} does not lie in memory as its shape and strides say"
            )));
        }
    };
    let handle = at.wrapping_add_signed(low.wrapping_mul(size));
    let bytes = len.checked_mul(size).and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| errors::value(format!("{name} is larger than memory")))?;
    // Whoever calls holds the object for the call; its library frees memory in the order of its stream.
    let foreign = Foreign { handle, bytes, dtype, writable, keep: Box::new(()) };
    let interop = device.backend().interop().ok_or_else(|| {
        errors::value(format!("{} takes no memory of other libraries", device.info().id))
    })?;
    // SAFETY: memory of an array that is held, on the device's stream; the driver is asked whether it is there.
    let (memory, shift) = unsafe { interop.adopt(foreign) }.map_err(errors::of)?;
    Ok(Place::Device { memory, first: shift.wrapping_add_signed(-low) })
}

/// An array with `__cuda_array_interface__`, such as CuPy's and Numba's. Its `stream` is the one that is used; without one,
/// the legacy default stream.
pub fn operand<'py>(a: &Bound<'py, PyAny>, name: &str) -> PyResult<Operand<'py>> {
    let py = a.py();
    let interface = a
        .getattr(intern!(py, "__cuda_array_interface__"))?
        .cast_into::<PyDict>()
        .map_err(PyErr::from)?;
    let item = |key: &str| {
        let missing =
            || errors::value(format!("{name} has a __cuda_array_interface__ without {key}"));
        interface.get_item(key)?.ok_or_else(missing)
    };
    let text: String = item("typestr")?.extract()?;
    let code = text.trim_start_matches(['<', '=', '|']);
    // Two bytes of any kind may be anything.
    let known = Dtype::ALL.into_iter().filter(|of| *of != Dtype::Bf16);
    let dtype = known.into_iter().find(|of| of.numpy_code() == code);
    let dtype = dtype.ok_or_else(|| no_such_type(name, &text, ASTYPE))?;
    if interface.get_item("mask")?.is_some_and(|mask| !mask.is_none()) {
        return Err(errors::kind(format!("{name} has a mask, which a product does not see")));
    }
    let (at, read_only): (usize, bool) = item("data")?.extract()?;
    let dim: Vec<usize> = item("shape")?.extract()?;
    check_axes(name, dim.len())?;
    let size = dtype.bytes() as isize;
    let layout = match interface.get_item("strides")?.filter(|strides| !strides.is_none()) {
        None => Layout::packed(&dim),
        Some(strides) => {
            let strides: Vec<isize> = strides.extract()?;
            if strides.iter().any(|stride| stride % size != 0) || strides.len() != dim.len() {
                return Err(errors::value(format!(
                    "{name} has strides that are not of whole entries: pass {}",
                    instead(name, ".copy()")
                )));
            }
            Layout::new(dim.iter().copied().zip(strides.iter().map(|stride| stride / size)))
        }
    };
    let stream = match interface.get_item("stream")? {
        Some(stream) if !stream.is_none() => stream.extract()?,
        _ => 0,
    };
    // CuPy's; others do not say which, and the driver refuses memory of another GPU.
    let ordinal = a
        .getattr("device")
        .and_then(|of| of.getattr("id"))
        .and_then(|id| id.extract())
        .unwrap_or(0);
    let device = on_stream(py, ordinal, stream)?;
    let place = adopt(name, &device, at, dtype, &layout, !read_only)?;
    Ok(Operand {
        layout,
        dtype,
        place,
        device: Some(device),
        library: Library::Interface(a.clone()),
    })
}
