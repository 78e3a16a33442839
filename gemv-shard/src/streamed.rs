//! Matrices in files that are larger than memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use bytemuck::Pod;
use gemv_core::order::SEGMENT;
use gemv_core::{Device, Dtype, Element, Error as CoreError, ShapeMismatch, Times, VectorRef};
use ndarray::{Array1, Array2, ArrayView2, ArrayViewMut1, Axis, ShapeBuilder, Slice};

use crate::element::SumElement;
use crate::npy::{Header, check_length, refused};
use crate::partial::Partial;
use crate::{Error, Result};

/// A matrix in a `.npy` file, which is read in parts and never held whole.
///
/// A thread reads the next part while the device computes with the last one. Of a file by rows (C order)
/// they are rows; of one by columns (Fortran order) they are columns, whose sums are [`Partial`]. So the
/// result has the bits of the product of the whole.
///
/// ```
/// use gemv_core::device;
/// use gemv_shard::Streamed;
/// use ndarray::{Array1, array};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("a.npy");
///
/// // [[1, 2, 3], [4, 5, 6]] in float32, as numpy.save writes it.
/// let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
/// let mut file = [b"\x93NUMPY\x01\x00\x76\x00", format!("{dict:<117}\n").as_bytes()].concat();
/// (1..=6).for_each(|v| file.extend((v as f32).to_le_bytes()));
/// std::fs::write(&path, file).unwrap();
///
/// let mut a = Streamed::open(&path)?.window(1 << 28); // bytes
/// assert_eq!(a.dim(), (2, 3));
/// let mut y = Array1::<f32>::zeros(2);
/// let mut percent = 0;
/// let told = |read, of| percent = 100 * read / of;
/// a.gemv::<f32, f32, _>(&device("reference")?, 1.0, &[1.0, 0.0, 0.0], 0.0, &mut y, told)?;
/// assert_eq!((y, percent), (array![1.0, 4.0], 100));
/// # Ok::<(), gemv_shard::Error>(())
/// ```
#[derive(Debug)]
pub struct Streamed {
    path: PathBuf,
    file: File,
    header: Header,
    /// Where the data begins.
    start: u64,
    /// Of the file, as it lies there.
    stored: (usize, usize),
    transposed: bool,
    window: usize,
}

/// A part of the matrix that is in memory at one time.
#[derive(Debug, Clone, PartialEq)]
struct Block {
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Streamed {
    /// The window where none is asked for, in bytes: 256 MiB.
    pub const WINDOW: usize = 1 << 28;

    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be read, is no file (but a pipe), or no array of two axes of a type that
    /// is multiplied; or if it has not the length that its header announces.
    pub fn open(path: impl AsRef<Path>) -> Result<Streamed> {
        let path = path.as_ref();
        Streamed::open_unnamed(path).map_err(|e| named(path, e))
    }

    fn open_unnamed(path: &Path) -> Result<Streamed> {
        let told = |e: io::Error| refused(e.to_string());
        let mut file = File::open(path).map_err(told)?;
        let meta = file.metadata().map_err(told)?;
        if !meta.is_file() {
            return Err(refused("only a file can be read in parts"));
        }
        let (header, start) = Header::read(&mut file)?;
        let start = start as u64;
        let Some((_, bytes)) = header.size() else {
            let shape = &header.shape;
            return Err(refused(format!(
                "its header announces a shape of {shape:?}, more than can be addressed"
            )));
        };
        check_length(bytes as u64, meta.len().saturating_sub(start))?;
        let stored = match header.shape[..] {
            [rows, columns] => (rows, columns),
            _ => {
                let count = header.shape.len();
                let axes = if count == 1 { "axis" } else { "axes" };
                return Err(refused(format!("the array has {count} {axes}, but a matrix has 2")));
            }
        };
        let (path, window) = (path.to_path_buf(), Streamed::WINDOW);
        Ok(Streamed { path, file, header, start, stored, transposed: false, window })
    }

    /// Holds at most about so many bytes of the matrix and of its sums at one time. The least that is held is
    /// two rows of a file by rows, and 256 bytes of each of 256 columns, twice, of one by columns.
    #[must_use]
    pub fn window(self, bytes: usize) -> Streamed {
        Streamed { window: bytes, ..self }
    }

    /// The transpose, of the same file.
    #[must_use]
    pub fn transposed(self) -> Streamed {
        Streamed { transposed: !self.transposed, ..self }
    }

    /// Rows and columns.
    pub fn dim(&self) -> (usize, usize) {
        let (rows, columns) = self.stored;
        if self.transposed { (columns, rows) } else { (rows, columns) }
    }

    /// The element type of the file.
    pub fn dtype(&self) -> Dtype {
        self.header.dtype
    }

    /// Whether the elements of a row follow one another in the file.
    fn by_rows(&self) -> bool {
        self.header.fortran == self.transposed
    }

    /// `y = alpha * A x + beta * y`, computed on this device.
    ///
    /// `x` has n entries, on the host or resident; `y` has m. `T` is the type of the file, and may be narrower
    /// than that of x, as in a product. `told` is called with the bytes that were read and with those of the
    /// whole matrix, after each part. `alpha = 0` does not read the file, `beta = 0` does not read `y`.
    ///
    /// # Errors
    /// [`Error::File`] if the file has another type, cannot be read or has become shorter; [`Error::Product`]
    /// of [`Error::Shape`](gemv_core::Error::Shape) or what the device reports. `y` is then as it was.
    pub fn gemv<'x, 'y, T, V, S>(
        &mut self,
        device: &Device,
        alpha: S,
        x: impl Into<VectorRef<'x, V>>,
        beta: S,
        y: impl Into<ArrayViewMut1<'y, V>>,
        mut told: impl FnMut(u64, u64),
    ) -> Result<()>
    where
        T: Element + Pod + Times<V> + Times<S>,
        V: Element<Acc = S>,
        S: SumElement,
    {
        let (x, mut y, (m, n)) = (x.into(), y.into(), self.dim());
        if (x.len(), y.len()) != (n, m) {
            let shapes =
                ShapeMismatch::MatrixVector { matrix: (m, n), x: x.len(), y: Some(y.len()) };
            return Err(CoreError::Shape(shapes).into());
        }
        self.holds::<T>()?;
        let mut result = match beta == S::ZERO {
            true => Array1::from_elem(m, V::default()),
            false => y.to_owned(),
        };
        if alpha == S::ZERO {
            Partial::of_nothing(m).finish(device, alpha, beta, &mut result)?;
            y.assign(&result);
            return Ok(());
        }
        let x = device.vector(x)?;
        let blocks = self.blocks(size_of::<T>(), size_of::<S>());
        let mut parts = Vec::new();
        let (by_rows, total) = (self.by_rows(), (m * n * size_of::<T>()) as u64);
        let mut read = 0;
        self.each::<T>(&blocks, |block, elements| {
            let Block { rows, columns } = block;
            let to = Slice::from(rows.clone());
            let to = result.slice_axis_mut(Axis(0), to);
            let shape = (rows.len(), columns.len()).set_f(!by_rows);
            let a = ArrayView2::from_shape(shape, elements).expect("as many as were read");
            if by_rows {
                device.gemv_mixed(alpha, a, &x, beta, to)?;
            } else {
                let mine = x.step(columns.clone(), 1);
                parts.push(Partial::new(device, a, &mine, columns.start, n)?);
                if columns.end == n {
                    Partial::merge(parts.drain(..))?.finish(device, alpha, beta, to)?;
                }
            }
            read += size_of_val(elements) as u64;
            told(read, total);
            Ok(())
        })?;
        y.assign(&result);
        Ok(())
    }

    /// Reads these columns of these rows, and nothing else: what one process of several holds.
    ///
    /// The array is by rows if the elements of a row follow one another in the file, else by columns.
    ///
    /// ```
    /// use gemv_shard::Streamed;
    /// use ndarray::array;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("a.npy");
    /// # let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    /// # let mut file = [b"\x93NUMPY\x01\x00\x76\x00", format!("{dict:<117}\n").as_bytes()].concat();
    /// # (1..=6).for_each(|v| file.extend((v as f32).to_le_bytes()));
    /// # std::fs::write(&path, file).unwrap();
    ///
    /// let mut a = Streamed::open(&path)?; // [[1, 2, 3], [4, 5, 6]] in float32
    /// assert_eq!(a.read_part::<f32>(0..2, 1..3)?, array![[2.0, 3.0], [5.0, 6.0]]);
    /// assert!(a.read_part::<f32>(0..2, 1..4).is_err());
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::File`] if the file has another type or no such rows or columns, cannot be read or has become
    /// shorter; [`Error::Product`] without memory.
    pub fn read_part<T: Element + Pod>(
        &mut self,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<Array2<T>> {
        self.holds::<T>()?;
        let (m, n) = self.dim();
        let within = |part: &Range<usize>, len| part.start <= part.end && part.end <= len;
        if !within(&rows, m) || !within(&columns, n) {
            let e = refused(format!(
                "a matrix of {m} × {n} has no part of rows {rows:?} and columns {columns:?}"
            ));
            return Err(named(&self.path, e));
        }
        let shape = (rows.len(), columns.len()).set_f(!self.by_rows());
        let mut elements = Vec::new();
        self.read(&Block { rows, columns }, &mut elements).map_err(|e| named(&self.path, e))?;
        Ok(Array2::from_shape_vec(shape, elements).expect("as many as were read"))
    }

    /// Whether the file's elements are of this type.
    fn holds<T: Element>(&self) -> Result<()> {
        let (is, asked) = (self.dtype(), T::DTYPE);
        if is == asked {
            return Ok(());
        }
        let e = refused(format!("the array holds {is}, where {asked} is asked"));
        Err(named(&self.path, e))
    }

    /// The parts, in the order in which they are read. Each third of the window is for one of two parts, or for
    /// sums.
    fn blocks(&self, element: usize, sum: usize) -> Vec<Block> {
        let ((m, n), third) = (self.dim(), self.window / 3);
        let (rows, columns) = if self.by_rows() {
            ((third / (n * element).max(1)).max(1), n)
        } else {
            // Of few rows many columns, and of more rows than fit a slab of them at a time. Sums are there
            // twice when they are merged.
            let segments = n.div_ceil(SEGMENT);
            let slab = (third / (SEGMENT * element)).min(third / (2 * segments * sum).max(1));
            let slab = slab.max(SEGMENT / element).min(m).max(1);
            (slab, (third / (slab * element * SEGMENT)).max(1) * SEGMENT)
        };
        let pieces = |len: usize, piece: usize| {
            (0..len)
                .step_by(piece.max(1))
                .map(move |first| first..len.min(first.saturating_add(piece)))
        };
        let mut blocks = Vec::new();
        for rows in pieces(m, rows) {
            // A matrix without columns has rows nevertheless.
            let whole = (n == 0).then_some(0..0);
            let columns = whole.into_iter().chain(pieces(n, columns));
            blocks.extend(columns.map(|columns| Block { rows: rows.clone(), columns }));
        }
        blocks
    }

    /// Reads the parts one by one, each while the one before it is used.
    fn each<T: Pod + Element>(
        &mut self,
        blocks: &[Block],
        mut use_it: impl FnMut(&Block, &[T]) -> Result<()>,
    ) -> Result<()> {
        let path = self.path.clone();
        thread::scope(|scope| {
            let (give_back, empty): (SyncSender<Vec<T>>, Receiver<_>) = sync_channel(2);
            let (give, filled) = sync_channel(2);
            // Both ends that are here go when this closure ends, and the thread with them.
            scope.spawn(move || {
                for block in blocks {
                    let Ok(mut elements) = empty.recv() else { return };
                    let read = self.read(block, &mut elements);
                    if give.send(read.map(|()| elements)).is_err() {
                        return;
                    }
                }
            });
            for _ in 0..2 {
                let _ = give_back.send(Vec::new());
            }
            for block in blocks {
                let read = filled.recv().unwrap_or_else(|_| Err(refused("the reader has ended")));
                let elements = read.map_err(|e| named(&path, e))?;
                use_it(block, &elements)?;
                // There is no reader any more after the last part.
                let _ = give_back.send(elements);
            }
            Ok(())
        })
    }

    /// Reads one part.
    fn read<T: Pod + Element>(&mut self, block: &Block, to: &mut Vec<T>) -> Result<()> {
        // Rows of a file by rows, columns of one by columns; and which elements of each.
        let ((m, n), Block { rows, columns }) = (self.dim(), block.clone());
        let (lines, part, line) =
            if self.by_rows() { (rows, columns, n) } else { (columns, rows, m) };
        let count = lines.len() * part.len();
        to.truncate(count);
        let missing = count - to.len();
        to.try_reserve_exact(missing).map_err(|_| CoreError::OutOfMemory {
            device: "the host".into(),
            asked: (missing * size_of::<T>()) as u64,
            free: None,
        })?;
        to.resize(count, T::zeroed());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(to);
        // Whole lines follow one another.
        let chunk = if part.len() == line { bytes.len() } else { part.len() * size_of::<T>() };
        for (at, piece) in lines.zip(bytes.chunks_mut(chunk.max(1))) {
            let first = (at * line + part.start) as u64 * size_of::<T>() as u64;
            let told = |e: io::Error| match e.kind() {
                io::ErrorKind::UnexpectedEof => {
                    refused("the file became shorter while it was read")
                }
                _ => refused(e.to_string()),
            };
            self.file.seek(SeekFrom::Start(self.start + first)).map_err(told)?;
            self.file.read_exact(piece).map_err(told)?;
        }
        if self.header.big_endian != cfg!(target_endian = "big") {
            let parts = if T::DTYPE.is_complex() { 2 } else { 1 };
            bytes.chunks_exact_mut(size_of::<T>() / parts).for_each(<[u8]>::reverse);
        }
        Ok(())
    }
}

/// The error of a file, with its name.
fn named(path: &Path, e: Error) -> Error {
    match e {
        Error::File { reason } => refused(format!("{}: {reason}", path.display())),
        e => e,
    }
}
