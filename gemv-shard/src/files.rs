//! Arrays from `.npy` files to a device, and back.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use bytemuck::Pod;
use gemv_core::{Device, DeviceArray, Element, OperandRef, packed};
use ndarray::{Dimension, ShapeBuilder};

use crate::npy::{self, Header, check_length, refused};
use crate::source::{Source, Stamp, named};
use crate::stored::{Block, Stored};
use crate::{Error, Result};

/// Bytes that are read before they go to a device that takes no pieces.
const PIECE: usize = 4 << 20;

/// Opens a file and reads its header. The elements are one column.
pub(crate) fn opened(path: &Path) -> Result<(Header, Stored<'static>)> {
    let told = |e: io::Error| refused(e.to_string());
    let mut file = File::open(path).map_err(told)?;
    let meta = file.metadata().map_err(told)?;
    let stamp = Stamp::of(&file).map_err(told)?;
    if !meta.is_file() {
        return Err(refused("it is no file but a pipe or a folder"));
    }
    let (header, start) = Header::read(&mut file)?;
    let start = start as u64;
    let Some((len, bytes)) = header.size() else {
        let shape = &header.shape;
        return Err(refused(format!(
            "its header announces a shape of {shape:?}, more than can be addressed"
        )));
    };
    check_length(bytes as u64, meta.len().saturating_sub(start))?;
    let source = Source::File { path: path.to_path_buf(), file, start, stamp };
    let (dtype, big_endian) = (header.dtype, header.big_endian);
    Ok((header, Stored { source, dtype, big_endian, dim: (len, 1), by_rows: true }))
}

/// Reads a `.npy` file straight into an array of a device, of as many axes and of the file's type: the host never holds
/// more than some MiB of it. An array in Fortran's order stays in that order.
///
/// By CUDA several threads read into page-locked memory, from which the device copies meanwhile. A matrix that is larger
/// than the device is a [`Streamed`](crate::Streamed).
///
/// ```
/// use gemv::{DeviceMatrix, GpuDot, device};
/// use gemv_shard::{load_npy, save_npy};
/// use ndarray::array;
/// # let folder = tempfile::tempdir().unwrap();
/// # let (path, result) = (folder.path().join("a.npy"), folder.path().join("y.npy"));
///
/// save_npy(&path, &array![[1.0f32, 2.0], [3.0, 4.0]])?; // as numpy.save writes it
/// let a: DeviceMatrix<f32> = load_npy(&device("reference")?, &path)?; // or on "cuda:0"
/// let y = a.gpu_dot(&[1.0, -1.0]);
/// save_npy(&result, &y)?; // of a resident array too
/// # let y = load_npy::<f32, ndarray::Ix1>(&device("reference")?, &result)?;
/// # assert_eq!(y.download()?, array![-1.0, -1.0]);
/// # Ok::<(), gemv_shard::Error>(())
/// ```
///
/// # Errors
/// [`Error::File`] if the file cannot be read, is no array of this type and number of axes, has not the length that its
/// header announces, or was changed while it was read; [`Error::Product`] of what the device reports, such as too little
/// memory.
pub fn load_npy<T: Element + Pod, D: Dimension + Copy>(
    device: &Device,
    path: impl AsRef<Path>,
) -> Result<DeviceArray<T, D>> {
    load(device, path.as_ref()).map_err(|e| named(path.as_ref(), e))
}

fn load<T: Element + Pod, D: Dimension + Copy>(
    device: &Device,
    path: &Path,
) -> Result<DeviceArray<T, D>> {
    let (header, stored) = opened(path)?;
    stored.holds::<T>()?;
    let axes = D::NDIM.expect("a resident array has a fixed number of axes");
    if header.shape.len() != axes {
        return Err(refused(npy::other_axes(&header, axes)));
    }
    let mut dim = D::zeros(axes);
    dim.slice_mut().copy_from_slice(&header.shape);
    let len = stored.dim.0;
    let mut all = device.zeros::<T, _>(len)?;
    if !stored.fill(&mut all, &Block { rows: 0..len, columns: 0..1 })? {
        let (most, mut piece) = (PIECE / size_of::<T>(), Vec::new());
        for first in (0..len).step_by(most) {
            let rows = first..len.min(first + most);
            stored.read(&Block { rows: rows.clone(), columns: 0..1 }, &mut piece)?;
            all.step_mut(rows, 1)?.assign(&piece)?;
        }
    }
    stored.source.unchanged()?;
    Ok(all.reshape(dim.set_f(header.fortran))?)
}

/// Writes an array of the host or of a device to a `.npy` file, as `numpy.save` does: the last index runs fastest, in the
/// byte order of this machine. A file of this name is replaced. A resident array is downloaded first.
///
/// NumPy has no bfloat16: it is written as `V2`, two bytes, as `numpy.save` writes an array of `ml_dtypes.bfloat16`.
///
/// # Errors
/// [`Error::File`] if the file cannot be written, which may then hold a part; [`Error::Product`] of what the device reports.
pub fn save_npy<'a, T: Element + Pod, D: Dimension + Copy + 'a>(
    path: impl AsRef<Path>,
    array: impl Into<OperandRef<'a, T, D>>,
) -> Result<()> {
    let (array, path) = (array.into(), path.as_ref());
    let elements = match array {
        OperandRef::Host(array) => packed(&array)?,
        OperandRef::Device(array) => array.download()?.into_raw_vec_and_offset().0,
    };
    let shape = array.raw_dim();
    let write = || -> io::Result<()> {
        let mut file = File::create(path)?;
        npy::write(&mut file, shape.slice(), &elements)?;
        file.flush()
    };
    write().map_err(|e| named(path, Error::File { reason: e.to_string() }))
}
