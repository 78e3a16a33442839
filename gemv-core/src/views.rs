//! Views of resident arrays, of the same memory, by the names of ndarray.

use std::ops::RangeBounds;

use ndarray::{Array, Axis, Dimension, IntoDimension, Ix2, RemoveAxis, ShapeBuilder, SliceArg};

use crate::host::{entries, host_array};
use crate::memory::Window;
use crate::resident::{DeviceArray, DeviceMatrix, DeviceVector};
use crate::{Device, Element, Error, Result};

/// The number of entries along each axis, and whether a shape is in Fortran's order.
///
/// A shape does not tell its order, but an array of it does. Entries of no size need no memory.
fn parts<Sh: ShapeBuilder>(shape: Sh) -> (Sh::Dim, bool) {
    let shape = shape.into_shape_with_order();
    let dim = shape.raw_dim().clone();
    let filled = dim.slice().iter().try_fold(1usize, |all, &len| all.checked_mul(len.max(1)));
    // Of fewer than two axes of several entries, both orders are one; and what no memory holds has none.
    let mut several = (0..dim.ndim()).filter(|&axis| dim[axis] > 1);
    let (Some(first), Some(last), true) =
        (several.next(), several.next_back(), filled.is_some_and(|len| len <= isize::MAX as usize))
    else {
        return (dim, false);
    };
    let strides = Array::<(), _>::uninit(shape);
    let fortran = strides.strides()[first] < strides.strides()[last];
    (dim, fortran)
}

impl<T: Element, D: Dimension + Copy> DeviceArray<T, D> {
    /// Number of axes.
    pub fn ndim(&self) -> usize {
        self.dim.ndim()
    }

    /// Number of entries along each axis, as ndarray's `shape`.
    ///
    /// ```
    /// # use gemv::device;
    /// use ndarray::Axis;
    ///
    /// let a = device("reference")?.zeros::<f32, _>((2, 3, 4))?;
    /// assert_eq!((a.shape(), a.len_of(Axis(1)), a.ndim(), a.len()), (&[2, 3, 4][..], 3, 3, 24));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn shape(&self) -> &[usize] {
        self.dim.slice()
    }

    /// Number of entries along one axis.
    ///
    /// # Panics
    /// If there is no such axis.
    #[track_caller]
    pub fn len_of(&self, axis: Axis) -> usize {
        self.dim[self.checked(axis)]
    }

    /// The number of an axis that there is.
    #[track_caller]
    fn checked(&self, axis: Axis) -> usize {
        checked(axis, self.dim.ndim())
    }

    /// The array with its axes in reverse order: of a matrix its transpose.
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// let x = a.t().gpu_dot(&array![1.0, -1.0]); // Aᵀ of the one copy on the device
    /// assert_eq!(x.download()?, array![-3.0, -3.0, -3.0]);
    /// assert_eq!((a.t().dim(), a.t().strides()), ((3, 2), (1, 3)));
    /// assert_eq!(device.zeros::<f64, _>((2, 3, 4))?.t().dim(), (4, 3, 2));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    #[must_use]
    pub fn t(&self) -> Self {
        let mut t = self.clone();
        t.dim.slice_mut().reverse();
        t.strides.slice_mut().reverse();
        t
    }

    /// Swaps two axes of this array; nothing is moved in memory. A batch of transposed matrices:
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{Array2, Array3};
    ///
    /// let host = Array3::from_shape_fn((2, 3, 4), |(b, i, j)| (b + 2 * i + j) as f32);
    /// let mut batch = device.array(&host)?;
    /// batch.swap_axes(1, 2); // 2 matrices of 4 x 3
    /// assert_eq!(batch.gpu_dot(&Array2::ones((2, 3))).shape(), [2, 4]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such axis.
    #[track_caller]
    pub fn swap_axes(&mut self, one: usize, other: usize) {
        let (one, other) = (self.checked(Axis(one)), self.checked(Axis(other)));
        self.dim.slice_mut().swap(one, other);
        self.strides.slice_mut().swap(one, other);
    }

    /// The array with its axes in another order: axis k of the result is axis `axes[k]` of this array.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.zeros::<f32, _>((2, 3, 4))?;
    /// assert_eq!(a.permuted_axes([2, 0, 1]).dim(), (4, 2, 3));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If an axis is there twice, or is none.
    #[must_use]
    #[track_caller]
    pub fn permuted_axes(&self, axes: impl IntoDimension<Dim = D>) -> Self {
        let (axes, mut permuted) = (axes.into_dimension(), self.clone());
        for to in 0..self.dim.ndim() {
            let from = self.checked(Axis(axes[to]));
            assert!(!axes.slice()[..to].contains(&from), "axis {from} is there twice");
            (permuted.dim[to], permuted.strides[to]) = (self.dim[from], self.strides[from]);
        }
        permuted
    }

    /// The array as one of this shape, without a copy: axes of one entry are repeated, and further axes come first, as in
    /// ndarray and NumPy. `None` if the shape does not fit.
    ///
    /// It is there to be read. One vector for all matrices of a batch:
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{Array3, array};
    ///
    /// let stack = device.array(&Array3::from_shape_fn((2, 2, 2), |(b, i, j)| (b + i * j) as f32))?;
    /// let x = device.vector(&[1.0, 10.0])?.broadcast((2, 2)).expect("2 entries");
    /// assert_eq!(stack.gpu_dot(&x).download()?, array![[0.0, 10.0], [11.0, 21.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn broadcast<E: IntoDimension<Dim: Copy>>(
        &self,
        shape: E,
    ) -> Option<DeviceArray<T, E::Dim>> {
        let dim = shape.into_dimension();
        let further = dim.ndim().checked_sub(self.dim.ndim())?;
        let mut strides = E::Dim::zeros(dim.ndim());
        for axis in 0..self.dim.ndim() {
            match (self.dim[axis], dim[further + axis]) {
                (len, to) if len == to => strides[further + axis] = self.strides[axis],
                (1, _) => {}
                _ => return None,
            }
        }
        Some(self.at(Window { memory: (), first: self.first, dim, strides }))
    }

    /// The same entries along other axes, of the same memory: row by row, or in Fortran's order where the shape says so with
    /// ndarray's [`f()`](ShapeBuilder::f). Nothing is copied.
    ///
    /// ```
    /// # use gemv::{Engine, ToDevice};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::array;
    ///
    /// let a = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]].to_device(&device)?;
    /// assert_eq!(a.reshape((3, 2))?.download()?, array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    /// assert_eq!(a.reshape((3, 1, 2))?.shape(), [3, 1, 2]);
    /// let e = a.t().reshape(6).unwrap_err().to_string();
    /// assert!(e.contains("assign"), "{e}"); // to an array of its own
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Operand`] if there are more or fewer entries, or they do not lie one after another in this order.
    pub fn reshape<Sh: ShapeBuilder<Dim: Copy>>(
        &self,
        shape: Sh,
    ) -> Result<DeviceArray<T, Sh::Dim>> {
        let (dim, fortran) = parts(shape);
        let (from, to) = (self.dim.slice(), dim.slice());
        let reason = match self.placed().reshape(dim, fortran) {
            Some(window) => return Ok(self.at(window)),
            None if entries(&dim) != self.len() => {
                format!("has not as many entries as one of {to:?}")
            }
            None => format!(
                "is no view of shape {to:?}, whose entries would lie in another order or have gaps: `assign` it to an \
                 array of its own first"
            ),
        };
        Err(Error::Operand { operand: "an array", reason: format!("of shape {from:?} {reason}") })
    }

    /// The part that ndarray's [`s![..]`](ndarray::s) means, of the same memory.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{Array3, s};
    ///
    /// let host = Array3::from_shape_fn((4, 5, 6), |(b, i, j)| (100 * b + 10 * i + j) as f32);
    /// let there = device.array(&host)?;
    /// let part = there.slice(s![1.., -1, ..;-2]); // axes: matrices, columns
    /// assert_eq!(part.download()?, host.slice(s![1.., -1, ..;-2]));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If an index or a range ends beyond the last entry of its axis, or a step is 0.
    #[must_use]
    #[track_caller]
    pub fn slice<I: SliceArg<D, OutDim: Copy>>(&self, info: I) -> DeviceArray<T, I::OutDim> {
        self.at(self.placed().slice(info.as_ref()))
    }

    /// One entry along an axis, with all of the others, as ndarray's `index_axis`; of the same memory:
    /// one matrix of a batch, one row or column of a matrix.
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{Array3, Axis, array};
    ///
    /// let stack = device.array(&Array3::from_shape_fn((2, 2, 2), |(b, i, j)| (b + i * j) as f32))?;
    /// let second = stack.index_axis(Axis(0), 1);
    /// assert_eq!(second.gpu_dot(&[1.0, 10.0]).download()?, array![11.0, 21.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such axis or no such entry.
    #[must_use]
    #[track_caller]
    pub fn index_axis(&self, axis: Axis, index: usize) -> DeviceArray<T, D::Smaller>
    where
        D: RemoveAxis<Smaller: Copy>,
    {
        self.at(self.placed().index_axis(self.checked(axis), index))
    }

    /// With an axis of one entry before this one, as ndarray's `insert_axis`; of the same memory: a vector as a matrix of one
    /// row or column, a matrix as a batch. [`index_axis`](Self::index_axis) takes it away again.
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::{Axis, array};
    /// # let device = Engine::new(None).device("reference")?;
    /// let (x, y) = (device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?, array![[1.0, 1.0], [1.0, -1.0]]);
    /// let batch = x.insert_axis(Axis(1)); // 2 matrices of 1 × 2
    /// assert_eq!(batch.dim(), (2, 1, 2));
    /// assert_eq!(batch.gpu_dot(&y).download()?, array![[3.0], [-1.0]]); // row by row
    /// assert_eq!(batch.index_axis(Axis(1), 0).dim(), (2, 2));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such axis, nor one before it.
    #[must_use]
    #[track_caller]
    pub fn insert_axis(&self, axis: Axis) -> DeviceArray<T, D::Larger>
    where
        D::Larger: Copy,
    {
        let axes = self.dim.ndim();
        assert!(axis.index() <= axes, "axis {} of {axes} and a new one", axis.index());
        self.at(self.placed().insert_axis(axis))
    }

    /// The m · n entries as an m × n matrix of the same memory: row by row, or column by column
    /// where the shape says so with ndarray's [`f()`](ShapeBuilder::f). Of a vector, the first m · n entries.
    ///
    /// ```
    /// # use gemv::{Engine, ToDevice};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{ShapeBuilder, array};
    ///
    /// let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].to_device(&device)?;
    /// let rows = x.as_matrix((2, 3));
    /// assert_eq!(rows.download()?, array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    /// let columns = x.as_matrix((2, 3).f()); // as Fortran and BLAS have it
    /// assert_eq!(columns.download()?, array![[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]);
    ///
    /// let batch = device.zeros::<f64, _>((2, 3, 4))?;
    /// assert_eq!(batch.as_matrix((6, 4)).dim(), (6, 4)); // all rows of all matrices
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`reshape`](Self::reshape) refuses. A vector may have more entries.
    #[must_use]
    #[track_caller]
    pub fn as_matrix(&self, shape: impl ShapeBuilder<Dim = Ix2>) -> DeviceMatrix<T> {
        let shape = shape.into_shape_with_order();
        let needed = entries(shape.raw_dim());
        let all = match self.dim.ndim() == 1 && needed < self.len() {
            true => self.step_axis(0, ..needed, 1),
            false => self.clone(),
        };
        match all.reshape(shape) {
            Ok(matrix) => matrix,
            Err(e) => panic!("as_matrix: {e}"),
        }
    }

    /// Every `step`-th of a range of an axis.
    #[track_caller]
    fn step_axis(&self, axis: usize, range: impl RangeBounds<usize>, step: isize) -> Self {
        self.at(self.placed().step_axis(axis, range, step))
    }
}

/// The number of an axis that there is.
#[track_caller]
pub(crate) fn checked(axis: Axis, axes: usize) -> usize {
    assert!(axis.index() < axes, "there is no axis {}: the array has {axes}", axis.index());
    axis.index()
}

impl<T: Element> DeviceMatrix<T> {
    /// Number of rows.
    ///
    /// ```
    /// let a = gemv::device("reference")?.zeros::<f32, _>((2, 3))?;
    /// assert_eq!((a.nrows(), a.ncols()), (2, 3));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    pub fn nrows(&self) -> usize {
        self.dim[0]
    }

    /// Number of columns.
    pub fn ncols(&self) -> usize {
        self.dim[1]
    }

    /// Some of the rows, of the same memory.
    ///
    /// A row's product depends on that row and x alone, so the product of the slice is the slice of
    /// the product, bit for bit.
    ///
    /// ```
    /// # gemv::Engine::global().set_default("reference").unwrap();
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::{Array2, s};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = Array2::from_shape_fn((6, 300), |(i, j)| ((7 * i + j) as f32).cos());
    /// let (x, resident) = (a.row(0).to_owned(), device.matrix(&a)?);
    /// let y = a.gpu_dot(&x);
    /// assert_eq!(resident.rows(2..5).gpu_dot(&x).download()?, y.slice(s![2..5]));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last row, or before it starts.
    #[must_use]
    #[track_caller]
    pub fn rows(&self, range: impl RangeBounds<usize>) -> Self {
        self.step_rows(range, 1)
    }

    /// Every `step`-th of some of the rows, backwards if `step` is negative, as
    /// `slice(s![range;step, ..])` of ndarray.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::{array, s};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = array![[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]];
    /// let resident = device.matrix(&a)?;
    /// assert_eq!(resident.step_rows(.., 2).download()?, array![[1.0, 10.0], [3.0, 30.0]]);
    /// // From the end of the range, as in ndarray.
    /// assert_eq!(resident.step_rows(1.., -2).download()?, a.slice(s![1..;-2, ..]));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last row, or before it starts, or `step` is 0.
    #[must_use]
    #[track_caller]
    pub fn step_rows(&self, range: impl RangeBounds<usize>, step: isize) -> Self {
        self.step_axis(0, range, step)
    }

    /// Every `step`-th of some of the columns; see [`step_rows`](Self::step_rows).
    ///
    /// ```
    /// # use gemv::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// // Interleaved: a left and a right channel in each row.
    /// let both = device.matrix(&array![[1.0, -1.0, 2.0, -2.0], [3.0, -3.0, 4.0, -4.0]])?;
    /// let right = both.step_columns(1.., 2);
    /// assert_eq!(right.gpu_dot(&array![1.0, 1.0]).download()?, array![-3.0, -7.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`step_rows`](Self::step_rows).
    #[must_use]
    #[track_caller]
    pub fn step_columns(&self, range: impl RangeBounds<usize>, step: isize) -> Self {
        self.step_axis(1, range, step)
    }

    /// Some of the columns, of the same memory.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// assert_eq!(a.columns(1..).download()?, array![[2.0, 3.0], [5.0, 6.0]]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last column, or before it starts.
    #[must_use]
    #[track_caller]
    pub fn columns(&self, range: impl RangeBounds<usize>) -> Self {
        self.step_columns(range, 1)
    }

    /// One row, of the same memory.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(a.row(1).download()?, array![3.0, 4.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    #[track_caller]
    pub fn row(&self, index: usize) -> DeviceVector<T> {
        self.index_axis(Axis(0), index)
    }

    /// One column, of the same memory.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(a.column(1).download()?, array![2.0, 4.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such column.
    #[must_use]
    #[track_caller]
    pub fn column(&self, index: usize) -> DeviceVector<T> {
        self.index_axis(Axis(1), index)
    }
}

impl<T: Element> DeviceVector<T> {
    /// Every `step`-th of some of the entries, backwards if `step` is negative; of the same memory.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.vector(&array![0.0, 1.0, 2.0, 3.0, 4.0])?;
    /// assert_eq!(x.step(1.., 2).download()?, array![1.0, 3.0]);
    /// let back = x.step(..4, -1);
    /// assert_eq!((back.download()?, back.stride()), (array![3.0, 2.0, 1.0, 0.0], -1));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last entry, or before it starts, or `step` is 0.
    #[must_use]
    #[track_caller]
    pub fn step(&self, range: impl RangeBounds<usize>, step: isize) -> Self {
        self.step_axis(0, range, step)
    }
}

impl Device {
    /// A resident array of zeros: of a length, or of a tuple with the number of entries along each axis; row by row, or in
    /// Fortran's order where the shape says so with ndarray's [`f()`](ShapeBuilder::f).
    ///
    /// ```
    /// # use gemv::{Engine, Error};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::ShapeBuilder;
    ///
    /// let x = device.zeros::<f64, _>(1000)?; // a vector
    /// let mut y = device.zeros((3, 1000))?; // a matrix
    /// let (a, b) = (device.zeros::<f64, _>((3, 7))?, device.zeros::<f64, _>((7, 1000).f())?);
    /// assert_eq!((a.strides(), b.strides()), ((7, 1), (1, 7)));
    /// device.product(&a, &b).to(&mut y)?;
    /// assert_eq!(y.download()?.dot(&x.download()?).sum(), 0.0);
    /// assert!(matches!(device.zeros::<f64, _>(1 << 60), Err(Error::OutOfMemory { .. })));
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn zeros<T: Element, Sh>(&self, shape: Sh) -> Result<DeviceArray<T, Sh::Dim>>
    where
        Sh: ShapeBuilder<Dim: Copy>,
    {
        let (dim, fortran) = parts(shape);
        DeviceArray::zeros_in_order(self, dim, fortran)
    }

    /// A resident array whose entries a function of their indices gives, as ndarray's `Array::from_shape_fn`. They are
    /// computed on the host, and uploaded.
    ///
    /// ```
    /// # use gemv::Engine;
    /// # let device = Engine::new(None).device("reference")?;
    /// let hilbert = device.from_shape_fn((3, 3), |(i, j)| 1.0 / (i + j + 1) as f64)?;
    /// assert_eq!(hilbert.row(1).download()?, ndarray::array![1.0 / 2.0, 1.0 / 3.0, 1.0 / 4.0]);
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn from_shape_fn<T: Element, Sh>(
        &self,
        shape: Sh,
        mut entry: impl FnMut(<Sh::Dim as Dimension>::Pattern) -> T,
    ) -> Result<DeviceArray<T, Sh::Dim>>
    where
        Sh: ShapeBuilder<Dim: Copy>,
    {
        let (mut dim, fortran) = parts(shape);
        if fortran {
            dim.slice_mut().reverse();
        }
        let array = host_array("the host", dim)?;
        let mut array = if fortran { array.reversed_axes() } else { array };
        array.indexed_iter_mut().for_each(|(at, to)| *to = entry(at));
        DeviceArray::upload(self, array.view())
    }
}
