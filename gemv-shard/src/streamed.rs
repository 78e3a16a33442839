//! Matrices that are larger than the memory that holds them at one time.

use std::ops::Range;
use std::path::Path;

use bytemuck::Pod;
use gemv_core::order::SEGMENT;
use gemv_core::{
    Device, DeviceVector, Dtype, Element, Error as CoreError, MatrixRef, ShapeMismatch, Times,
    VectorRef,
};
use ndarray::{Array2, ArrayView2, ArrayViewMut1, Axis, ShapeBuilder, Slice};

use crate::element::{SumElement, Vectors};
use crate::files::opened;
use crate::finish::finish_resident;
use crate::memory::{copied, filled, reserve};
use crate::npy::{other_axes, refused};
use crate::partial::Partial;
use crate::product::resident_segment_sums;
use crate::source::{Source, named};
use crate::stored::{Block, Stored};
use crate::threads::on_cpu;
use crate::{Result, on_cpu};

/// A matrix in a `.npy` file, or in the host's memory, that a device computes with in parts and never holds
/// whole.
///
/// Several threads read a part at once. The next part is read, and goes to the device, while the device computes
/// with the last one. On the CPU each thread reads parts of its own, and computes with each while it is in the caches.
/// Of a matrix by rows (C order) the parts are rows; of one by columns (Fortran order), and of very long rows, they
/// are columns, whose sums are [`Partial`]. So the result has the bits of the product of the whole.
///
/// A file is read and not mapped: a file that becomes shorter, or a disk that fails, is an error then, where
/// a map would end the program. Reading is faster too. A file whose length or time of change is another after the
/// product than when it was opened is an error as well: parts of two matrices may have been read.
///
/// ```
/// use gemv::device;
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
/// let a = Streamed::open(&path)?.window(1 << 28); // bytes
/// assert_eq!(a.dim(), (2, 3));
/// let mut y = Array1::<f32>::zeros(2);
/// let mut percent = 0;
/// let told = |read, of| percent = 100 * read / of;
/// a.gemv::<f32, f32, _>(&device("reference")?, 1.0, &[1.0, 0.0, 0.0], 0.0, &mut y, told)?;
/// assert_eq!((y, percent), (array![1.0, 4.0], 100));
/// # Ok::<(), gemv_shard::Error>(())
/// ```
#[derive(Debug)]
pub struct Streamed<'a> {
    stored: Stored<'a>,
    window: usize,
}

/// Bytes of a part on a device whose memory is the host's, at most: for each thread, and in all if threads are
/// few. Two parts stay in its caches, so that what was read is not read from memory again.
const CACHED: (usize, usize) = (1 << 20, 4 << 20);
/// What the parts are multiplied with, and where their products go.
enum Sink<V: Element, S: Element> {
    /// Parts of rows: x, and y on the device.
    Rows(DeviceVector<V>, DeviceVector<V>),
    /// Parts of columns: x, and the sums of all segments of the rows at hand.
    Columns(DeviceVector<S>, DeviceVector<S>),
}

impl Streamed<'static> {
    /// The window where none is asked for, in bytes: 256 MiB.
    pub const WINDOW: usize = 1 << 28;

    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if it cannot be read, is no file (but a pipe), or no array of two axes of a type that
    /// is multiplied; or if it has not the length that its header announces.
    pub fn open(path: impl AsRef<Path>) -> Result<Streamed<'static>> {
        let path = path.as_ref();
        Streamed::open_unnamed(path).map_err(|e| named(path, e))
    }

    fn open_unnamed(path: &Path) -> Result<Streamed<'static>> {
        let (header, stored) = opened(path)?;
        let [rows, columns] = header.shape[..] else {
            return Err(refused(other_axes(&header, 2)));
        };
        let stored = Stored { dim: (rows, columns), by_rows: !header.fortran, ..stored };
        Ok(Streamed { stored, window: Streamed::WINDOW })
    }
}

impl<'a> Streamed<'a> {
    /// A matrix in the host's memory, of any strides, for a device that it does not fit.
    ///
    /// Parts are copied to the device, or to the caches of the CPU. A product of the array itself is
    /// faster where it fits, and on the CPU always.
    ///
    /// ```
    /// use gemv::device;
    /// use gemv_shard::Streamed;
    /// use ndarray::array;
    ///
    /// let a = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
    /// let mut y = [0.0; 2];
    /// let here = device("reference")?; // or "cuda:0"
    /// Streamed::of(&a).gemv::<f64, f64, _>(&here, 1.0, &[1.0, 0.0, 0.0], 0.0, &mut y, |_, _| ())?;
    /// assert_eq!(y, [1.0, 4.0]);
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    pub fn of<T: Element + Pod>(a: impl Into<ArrayView2<'a, T>>) -> Streamed<'a> {
        let a: ArrayView2<'a, T> = a.into();
        let (dim, strides) = (a.dim(), a.strides());
        let by_rows = strides[0].unsigned_abs() >= strides[1].unsigned_abs();
        let source = Source::rows(if by_rows { a } else { a.reversed_axes() });
        let (dtype, big_endian) = (T::DTYPE, cfg!(target_endian = "big"));
        let stored = Stored { source, dtype, big_endian, dim, by_rows };
        Streamed { stored, window: Streamed::WINDOW }
    }

    /// Holds at most about so many bytes of the matrix and of its sums at one time, on the host and on the
    /// device. The least that is held is two rows of a matrix by rows, and 256 bytes of each of 256 columns,
    /// twice, of one by columns, with the sums of these rows: one for each 256 elements of a row.
    ///
    /// On the CPU each thread holds some MiB at most, and fewer threads work if the window is too small for all. The
    /// least is 256 columns of one row, or 256 bytes of each of 256 columns, and three times the sums of these rows.
    #[must_use]
    pub fn window(self, bytes: usize) -> Self {
        Streamed { window: bytes, ..self }
    }

    /// The transpose, of the same elements.
    #[must_use]
    pub fn transposed(self) -> Self {
        let ((rows, columns), by_rows) = (self.stored.dim, !self.stored.by_rows);
        let stored = Stored { dim: (columns, rows), by_rows, ..self.stored };
        Streamed { stored, ..self }
    }

    /// Rows and columns.
    pub fn dim(&self) -> (usize, usize) {
        self.stored.dim
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.stored.dtype
    }

    /// `y = alpha * A x + beta * y`, computed on this device.
    ///
    /// `x` has n entries, on the host or resident; `y` has m. `T` is the type of the matrix, and may be narrower
    /// than that of x, as in a product. `told` is called with the bytes that were read and with those of the
    /// whole matrix: after each part, or a few of them, until all were read. `alpha = 0` does not read the matrix, `beta = 0` does not read `y`.
    ///
    /// The device holds x and y beside the window. The matrix is read by as many threads as rayon's current pool has;
    /// for a CUDA device by up to 16.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if the matrix has another type, or the file cannot be read or was changed since it was opened;
    /// [`Error::Product`](crate::Error::Product) of [`Error::Shape`](gemv_core::Error::Shape) or what the device reports. `y` is then
    /// as it was.
    pub fn gemv<'x, 'y, T, V, S>(
        &self,
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
        self.stored.holds::<T>()?;
        let mut result = match beta.is_zero() {
            true => filled(m, V::default())?,
            false => copied(y.view())?,
        };
        if alpha.is_zero() {
            Partial::of_nothing(m).finish(device, alpha, beta, &mut result)?;
            y.assign(&result);
            return Ok(());
        }
        let (mut read, total) = (0, (m * n * size_of::<T>()) as u64);
        let mut told = |bytes: u64| {
            read += bytes;
            if total > 0 {
                told(read, total);
            }
        };
        if on_cpu(device) {
            let result = result.as_slice_mut().expect("new, of one axis");
            on_cpu::gemv::<T, V, S>(
                &self.stored,
                self.window,
                device,
                alpha,
                x,
                beta,
                result,
                &mut told,
            )?;
            self.stored.source.unchanged()?;
            y.iter_mut().zip(result).for_each(|(to, from)| *to = *from);
            return Ok(());
        }
        let blocks = self.blocks(size_of::<T>(), size_of::<S>(), device.info().host)?;
        let mut sink = if self.stored.by_rows {
            Sink::Rows(device.vector(x)?, device.vector(&result)?)
        } else {
            let x = S::vector(V::any::<Vectors>(x))?;
            let most = blocks.iter().map(|block| block.rows.len()).max().unwrap_or(0);
            Sink::Columns(device.vector(x.get())?, device.zeros(n.div_ceil(SEGMENT) * most)?)
        };
        let mut choice = None;
        self.each::<T>(device, &blocks, |block, a| {
            let Block { rows, columns } = block;
            match &mut sink {
                Sink::Rows(x, y) => {
                    device.product(a, &*x).scaled(alpha, beta).to(y.step_mut(rows.clone(), 1)?)?;
                }
                Sink::Columns(x, sums) => {
                    let mine = x.step(columns.clone(), 1);
                    let mine = VectorRef::Device(&mine);
                    let first = columns.start / SEGMENT * rows.len();
                    resident_segment_sums(device, &mut choice, &a, &mine, sums, first)?;
                    if columns.end == n {
                        let terms = sums.as_matrix((rows.len(), n.div_ceil(SEGMENT)).f());
                        let to = result.slice_axis_mut(Axis(0), Slice::from(rows.clone()));
                        finish_resident(device, &terms, n, alpha, beta, to)?;
                    }
                }
            }
            told((block.len() * size_of::<T>()) as u64);
            Ok(())
        })?;
        if let Sink::Rows(_, there) = &sink {
            result = there.download()?;
        }
        self.stored.source.unchanged()?;
        y.assign(&result);
        Ok(())
    }

    /// Reads these columns of these rows, and nothing else: what one process of several holds.
    ///
    /// The array is by rows if the elements of a row follow one another where they are stored, else by columns.
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
    /// let a = Streamed::open(&path)?; // [[1, 2, 3], [4, 5, 6]] in float32
    /// assert_eq!(a.read_part::<f32>(0..2, 1..3)?, array![[2.0, 3.0], [5.0, 6.0]]);
    /// assert!(a.read_part::<f32>(0..2, 1..4).is_err());
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if the matrix has another type or no such rows or columns, or the file cannot be read or
    /// was changed since it was opened; [`Error::Product`](crate::Error::Product) without memory.
    pub fn read_part<T: Element + Pod>(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<Array2<T>> {
        self.stored.holds::<T>()?;
        let (m, n) = self.dim();
        let within = |part: &Range<usize>, len| part.start <= part.end && part.end <= len;
        if !within(&rows, m) || !within(&columns, n) {
            return Err(self.stored.source.refused(format!(
                "a matrix of {m} × {n} has no part of rows {rows:?} and columns {columns:?}"
            )));
        }
        let (part, mut elements) = (Block { rows, columns }, Vec::new());
        self.stored.read(&part, &mut elements)?;
        self.stored.source.unchanged()?;
        let shape = self.stored.shape(&part);
        Ok(Array2::from_shape_vec(shape, elements).expect("as many as were read"))
    }

    /// The parts, in the order in which they are read. Each third of the window is for one of two parts, or for
    /// sums. (Where a device takes its parts from pieces, it has one part, and the pieces less than another.)
    fn blocks(&self, element: usize, sum: usize, host: bool) -> Result<Vec<Block>> {
        let ((m, n), third) = (self.dim(), self.window / 3);
        let (rows, columns) = if self.stored.by_rows {
            let cached = (CACHED.0 * gemv_threads::count()).max(CACHED.1);
            let part = if host { third.min(cached) } else { third };
            ((part / (n * element).max(1)).max(1), n)
        } else {
            // Of few rows many columns, and of more rows than fit a slab of them at a time.
            let segments = n.div_ceil(SEGMENT);
            let slab = (third / (SEGMENT * element)).min(third / (segments * sum).max(1));
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
            for columns in columns {
                reserve(&mut blocks, 1)?;
                blocks.push(Block { rows: rows.clone(), columns });
            }
        }
        Ok(blocks)
    }

    /// Reads the parts one by one, each while the one before it is used.
    fn each<T: Pod + Element>(
        &self,
        device: &Device,
        blocks: &[Block],
        mut use_it: impl FnMut(&Block, MatrixRef<'_, T>) -> Result<()>,
    ) -> Result<()> {
        let stored = &self.stored;
        // A device that fills memory by pieces does so with none as well.
        let mut part = device.zeros::<T, _>(0)?;
        if stored.fill(&mut part, &Block { rows: 0..0, columns: 0..0 })? {
            part = device.zeros(blocks.iter().map(Block::len).max().unwrap_or(0))?;
            for block in blocks {
                // It is on its way when this returns. The product waits for it on the device, and the next
                // part there for the product: only the pieces are waited for here.
                stored.fill(&mut part, block)?;
                use_it(block, MatrixRef::Device(&part.as_matrix(stored.shape(block))))?;
            }
            return Ok(());
        }
        let (mut now, mut next) = (Vec::new(), Vec::new());
        if let Some(first) = blocks.first() {
            stored.read(first, &mut now)?;
        }
        for (k, block) in blocks.iter().enumerate() {
            let a =
                ArrayView2::from_shape(stored.shape(block), &now).expect("as many as were read");
            let mut used = || use_it(block, MatrixRef::Host(a));
            let (used, read) = match blocks.get(k + 1) {
                Some(block) => gemv_threads::at_once(used, || stored.read(block, &mut next)),
                None => (used(), Ok(())),
            };
            used.and(read)?;
            std::mem::swap(&mut now, &mut next);
        }
        Ok(())
    }
}
