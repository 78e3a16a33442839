//! The elements of a matrix where they are stored, and the reading of a part.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use bytemuck::Pod;
use gemv_core::{DeviceVector, Dtype, Element, host_is_full};
use ndarray::{Ix2, Shape, ShapeBuilder};

use crate::Result;
use crate::npy::native;
use crate::source::Source;

/// Where the elements are, and in which order.
#[derive(Debug)]
pub(crate) struct Stored<'a> {
    pub source: Source<'a>,
    pub dtype: Dtype,
    /// Whether the most significant byte of a number comes first.
    pub big_endian: bool,
    /// Rows and columns.
    pub dim: (usize, usize),
    /// Whether the elements of a row follow one another; else those of a column.
    pub by_rows: bool,
}

/// A part of the matrix that is in memory at one time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Block {
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

/// Bytes that one thread reads in one piece. There are several for each thread: none waits long for another.
const CHUNK: usize = 256 << 10;

impl Block {
    pub fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }
}

impl Stored<'_> {
    /// The shape of a part as it is read.
    pub fn shape(&self, part: &Block) -> Shape<Ix2> {
        (part.rows.len(), part.columns.len()).set_f(!self.by_rows)
    }

    /// Reads one part by all threads.
    pub fn read<T: Pod + Element>(&self, part: &Block, to: &mut Vec<T>) -> Result<()> {
        resize(to, part.len())?;
        let (chunks, failed) =
            (bytemuck::cast_slice_mut::<T, u8>(to).chunks_mut(CHUNK), OnceLock::new());
        let threads = gemv_threads::count().min(chunks.len());
        let chunks = Mutex::new(chunks.enumerate());
        let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
        gemv_threads::share(threads, &|_| {
            while failed.get().is_none()
                && let Some((k, chunk)) = next()
            {
                if let Err(e) = self.read_bytes(part, k * CHUNK, chunk) {
                    // The first one is told.
                    let _ = failed.set(e);
                }
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Reads bytes of a part from this one on.
    pub fn read_bytes(&self, part: &Block, first: usize, to: &mut [u8]) -> Result<()> {
        // Rows of a matrix by rows, columns of one by columns; and which elements of each.
        let ((m, n), size) = (self.dim, self.dtype.bytes());
        let (lines, inner, line) = match self.by_rows {
            true => (&part.rows, &part.columns, n),
            false => (&part.columns, &part.rows, m),
        };
        // Whole lines follow one another.
        let width = if inner.len() == line { usize::MAX } else { inner.len() * size };
        let (mut at, mut rest) = (first, &mut *to);
        while !rest.is_empty() {
            let (skipped, within) = (at / width, at % width);
            let count = rest.len().min(width - within);
            let from = ((lines.start + skipped) * line + inner.start) * size + within;
            let piece;
            (piece, rest) = rest.split_at_mut(count);
            self.source.read(from, piece)?;
            at += count;
        }
        native(to, self.dtype, self.big_endian);
        Ok(())
    }

    /// Has the device fill the beginning of a vector with a part. Whether it does such.
    pub fn fill<T: Pod + Element>(&self, to: &mut DeviceVector<T>, part: &Block) -> Result<bool> {
        let bytes = part.len() * size_of::<T>();
        let failed = OnceLock::new();
        let source = |first: usize, piece: &mut [u8]| match self.read_bytes(part, first, piece) {
            Ok(()) => true,
            Err(e) => {
                // The first one is told.
                let _ = failed.set(e);
                false
            }
        };
        let device = to.device().clone();
        let memory = to.window_mut().expect("nobody shares it").memory;
        let fills = device.backend().fill(memory, bytes, &source)?;
        failed.into_inner().map_or(Ok(fills), Err)
    }

    /// Whether the elements are of this type.
    pub fn holds<T: Element>(&self) -> Result<()> {
        let (is, asked) = (self.dtype, T::DTYPE);
        if is == asked {
            return Ok(());
        }
        Err(self.source.refused(format!("the array holds {is}, where {asked} is asked")))
    }
}

/// Makes room for so many elements, of any value.
pub(crate) fn resize<T: Pod + Element>(to: &mut Vec<T>, count: usize) -> Result<()> {
    to.truncate(count);
    let missing = count - to.len();
    let asked = (missing * size_of::<T>()) as u64;
    to.try_reserve_exact(missing).map_err(|_| host_is_full("the host", asked))?;
    to.resize(count, T::zeroed());
    Ok(())
}
