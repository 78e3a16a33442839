//! Operands that live on a device: upload once, multiply many times.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use ndarray::{
    Array1, Array2, ArrayBase, ArrayRef, ArrayRef1, ArrayRef2, ArrayView, ArrayView1, ArrayView2,
    Axis, Data, Dimension, ShapeBuilder,
};

use crate::{Desc, Device, Element, Layout, MatrixRef, Memory, Result, VectorRef};

/// A matrix that lives on a device. Cloning is cheap: clones and views share the memory, which is
/// never written.
///
/// ```
/// use gemv_core::{GpuDot, device};
/// use ndarray::array;
///
/// let device = device("reference")?; // or "cuda:0"
/// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
/// let y = a.gpu_dot(&array![1.0, -1.0]); // resident as well
/// assert_eq!(y.download()?, array![-1.0, -1.0, -1.0]);
/// assert_eq!(a.rows(1..).t().dim(), (2, 2));
/// # Ok::<(), gemv_core::Error>(())
/// ```
///
/// Its entries lie in a block of the device's [`Memory`]: entry (i, j) at `first + i * strides.0 +
/// j * strides.1`, in elements. Views ([`t`](Self::t), [`rows`](Self::rows),
/// [`step_rows`](Self::step_rows), [`step_columns`](Self::step_columns)) change those numbers and
/// copy nothing.
///
/// ```
/// use gemv_core::{Engine, GpuDot};
/// use ndarray::{Array2, array};
///
/// let device = Engine::new(None).device("reference")?;
/// let a = device.matrix(&Array2::<f32>::eye(3))?;
/// assert_eq!((a.dim(), a.strides(), a.first()), ((3, 3), (3, 1), 0));
/// assert_eq!((a.desc().to_string(), a.memory().len()), ("f32 row 3x3".into(), 9));
/// assert!(a.device().is(&device));
///
/// let last = a.rows(2..);
/// assert_eq!((last.dim(), last.first(), last.memory().len()), ((1, 3), 6, 9));
/// assert_eq!(last.gpu_dot(&array![1.0, 2.0, 3.0]).download()?, array![3.0]);
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceMatrix<T: Element> {
    device: Device,
    memory: Arc<dyn Memory>,
    first: usize,
    dim: (usize, usize),
    strides: (isize, isize),
    element: PhantomData<T>,
}

/// A vector that lives on a device. Cloning is cheap; a product written to a vector whose memory
/// is shared goes to memory of its own first (as with [`ndarray::ArcArray`]), so no other clone
/// ever sees it.
///
/// Entry i lies at `first + i * stride` of its block, in elements.
///
/// ```
/// use gemv_core::{GpuDot, device};
/// use ndarray::array;
///
/// let device = device("reference")?; // or "cuda:0"
/// let swap = device.matrix(&array![[0.0, 1.0], [1.0, 0.0]])?;
/// let x = device.vector(&array![1.0, 2.0])?;
/// assert_eq!((x.len(), x.is_empty(), x.stride(), x.first()), (2, false, 1, 0));
///
/// let mut y = x.clone(); // of the same memory,
/// swap.gemv(1.0, &x, 0.0, &mut y); // until it is written
/// assert_eq!(y.download()?, array![2.0, 1.0]);
/// assert_eq!(x.download()?, array![1.0, 2.0]);
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceVector<T: Element> {
    device: Device,
    memory: Arc<dyn Memory>,
    first: usize,
    len: usize,
    stride: isize,
    element: PhantomData<T>,
}

/// The elements of an array in one slice, and how to find them there.
///
/// Entry (i, j) of a matrix is `data[first + i * strides[0] + j * strides[1]]`; see [`span`].
///
/// ```
/// use gemv_core::{Span, span};
/// use ndarray::{array, s};
///
/// let x = array![1.0f32, 2.0, 3.0];
/// let Span { data, first, strides } = span::<f32, _, 1>(&x.slice(s![..;-1]));
/// let entry = |i: isize| data[(first as isize + i * strides[0]) as usize];
/// assert_eq!([0, 1, 2].map(entry), [3.0, 2.0, 1.0]);
/// ```
#[derive(Debug)]
pub struct Span<'a, T: Element, const D: usize> {
    /// The elements: borrowed where the array's memory has no gaps, else packed.
    pub data: Cow<'a, [T]>,
    /// Index of element 0 in `data`.
    pub first: usize,
    /// Strides in `data`, in elements.
    pub strides: [isize; D],
}

/// Finds the memory behind a view without copying, where the view covers it without gaps: any
/// order of axes, reversed or not. Repeated elements (stride 0) are taken once. A view with gaps
/// is packed, since what lies in the gaps is not the view's to read.
///
/// `N` is the number of axes, 1 or 2, and that of the view.
///
/// ```
/// use gemv_core::{Span, span};
/// use ndarray::{array, s};
/// use std::borrow::Cow;
///
/// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let columns = a.slice(s![.., ..;-1]).reversed_axes(); // the last column as the first row
/// let whole: Span<'_, f32, 2> = span(&columns);
/// assert!(matches!(whole.data, Cow::Borrowed(_)));
/// assert_eq!((&*whole.data, whole.first, whole.strides), (a.as_slice().unwrap(), 2, [-1, 3]));
///
/// let window: Span<'_, f32, 2> = span(&a.slice(s![.., ..2])); // leaves a gap: packed
/// assert_eq!((&*window.data, window.strides), (&[1.0, 2.0, 4.0, 5.0][..], [2, 1]));
/// ```
///
/// # Panics
/// If `N` is not the view's number of axes.
pub fn span<'a, T: Element, D: Dimension, const N: usize>(
    view: &ArrayView<'a, T, D>,
) -> Span<'a, T, N> {
    let mut once = view.clone();
    let repeated = |axis: usize| view.strides()[axis] == 0 && view.len_of(Axis(axis)) > 1;
    for axis in (0..N).filter(|&axis| repeated(axis)) {
        once.slice_axis_inplace(Axis(axis), ndarray::Slice::from(..1));
    }
    let gaps = once.clone();
    let mut strides = [0; N];
    // Reversed axes are turned round, so that the memory reads forward and `first` is explicit.
    let mut first = 0;
    for (axis, &s) in view.strides().iter().enumerate() {
        strides[axis] = s;
        if s < 0 && once.len_of(Axis(axis)) > 1 {
            first += s.unsigned_abs() * (once.len_of(Axis(axis)) - 1);
            once.invert_axis(Axis(axis));
        }
    }
    if once.is_empty() {
        return Span { data: Cow::Borrowed(&[]), first: 0, strides };
    }
    match once.to_slice_memory_order() {
        Some(data) => Span { data: Cow::Borrowed(data), first, strides },
        None => {
            // Packed in the order that the memory suggests: the axis of the smaller stride is
            // contiguous, so a window of a column-major matrix stays column-major.
            let (outer, inner) = (strides[0], strides[N - 1]);
            let col = outer.unsigned_abs() < inner.unsigned_abs() || (outer == 1 && inner != 1);
            let col = N == 2 && col;
            let packed = if col { gaps.reversed_axes() } else { gaps };
            let data: Vec<T> = packed.iter().copied().collect();
            let inner = packed.shape().last().copied().unwrap_or(1) as isize;
            let mut strides = [1; N];
            if N == 2 {
                strides = [0; N];
                let (outer, unit) = if col { (1, 0) } else { (0, 1) };
                strides[outer] = inner;
                strides[unit] = 1;
            }
            (0..N).filter(|&axis| repeated(axis)).for_each(|axis| strides[axis] = 0);
            Span { data: Cow::Owned(data), first: 0, strides }
        }
    }
}

/// The lowest and one past the highest index that a strided block touches.
fn extent(dims: &[(usize, isize)]) -> (isize, isize) {
    let (mut lo, mut hi) = (0, 1);
    for &(len, stride) in dims {
        let far = stride * (len.max(1) as isize - 1);
        lo += far.min(0);
        hi += far.max(0);
    }
    (lo, hi)
}

/// Arrays and views that can be made resident: `a.to_device(&device)?`.
///
/// ```
/// use gemv_core::{GpuDot, ToDevice, device};
/// use ndarray::{array, s};
///
/// let device = device("reference")?; // or "cuda:0"
/// let a = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let resident = a.slice(s![.., ..2]).to_device(&device)?; // any view
/// let x = array![1.0, -1.0].to_device(&device)?;
/// assert_eq!(resident.gpu_dot(&x).download()?, array![-1.0, -1.0]);
/// # Ok::<(), gemv_core::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made resident on a device",
    note = "arrays and views of 1 or 2 axes can, of f32, f64, f16, bf16, Complex<f32> or Complex<f64>"
)]
pub trait ToDevice {
    /// [`DeviceMatrix`] for two axes, [`DeviceVector`] for one.
    type Resident;

    /// A copy on this device; what is resident there already is shared.
    ///
    /// # Errors
    /// As [`Device::matrix`].
    fn to_device(&self, device: &Device) -> Result<Self::Resident>;
}

impl<T: Element> ToDevice for ArrayRef2<T> {
    type Resident = DeviceMatrix<T>;
    fn to_device(&self, device: &Device) -> Result<DeviceMatrix<T>> {
        device.matrix(self)
    }
}

impl<T: Element> ToDevice for ArrayRef1<T> {
    type Resident = DeviceVector<T>;
    fn to_device(&self, device: &Device) -> Result<DeviceVector<T>> {
        device.vector(self)
    }
}

impl<S: Data, D: Dimension> ToDevice for ArrayBase<S, D>
where
    ArrayRef<S::Elem, D>: ToDevice,
{
    type Resident = <ArrayRef<S::Elem, D> as ToDevice>::Resident;
    fn to_device(&self, device: &Device) -> Result<Self::Resident> {
        (**self).to_device(device)
    }
}

impl<T: Element> ToDevice for DeviceMatrix<T> {
    type Resident = Self;
    fn to_device(&self, device: &Device) -> Result<Self> {
        device.matrix(self)
    }
}

impl<T: Element> ToDevice for DeviceVector<T> {
    type Resident = Self;
    fn to_device(&self, device: &Device) -> Result<Self> {
        device.vector(self)
    }
}

impl Device {
    /// Uploads a matrix, of any strides, without copying it first where it has no gaps.
    ///
    /// A matrix that is resident here already is not copied; one of another device comes by way of
    /// the host.
    ///
    /// ```
    /// # gemv_core::Engine::global().set_default("reference").unwrap();
    /// # use gemv_core::{Engine, GpuDot};
    /// # let device = Engine::new(None).device("reference")?;
    /// use ndarray::{array, s};
    ///
    /// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    /// let resident = device.matrix(&a.slice(s![.., ..;-2]))?; // any view
    /// assert_eq!(resident.dim(), (2, 2));
    /// for x in [array![1.0, 0.0], array![0.0, 1.0]] {
    ///     assert_eq!(resident.gpu_dot(&x).download()?, a.slice(s![.., ..;-2]).gpu_dot(&x));
    /// }
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), or the driver's refusal.
    pub fn matrix<'a, T: Element>(
        &self,
        a: impl Into<MatrixRef<'a, T>>,
    ) -> Result<DeviceMatrix<T>> {
        match a.into() {
            MatrixRef::Host(a) => DeviceMatrix::upload(self, a),
            MatrixRef::Device(a) if a.device().is(self) => Ok(a.clone()),
            MatrixRef::Device(a) => DeviceMatrix::upload(self, a.download()?.view()),
        }
    }

    /// Uploads a vector, of any stride.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = array![[1.0, 2.0], [3.0, 4.0]];
    /// let x = device.vector(&a.column(1))?;
    /// assert_eq!(x.download()?, array![2.0, 4.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn vector<'x, T: Element>(
        &self,
        x: impl Into<VectorRef<'x, T>>,
    ) -> Result<DeviceVector<T>> {
        match x.into() {
            VectorRef::Host(x) => DeviceVector::upload(self, x),
            VectorRef::Device(x) if x.device().is(self) => Ok(x.clone()),
            VectorRef::Device(x) => DeviceVector::upload(self, x.download()?.view()),
        }
    }

    /// A resident vector of `len` zeros.
    ///
    /// ```
    /// # use gemv_core::{Engine, Error};
    /// # let device = Engine::new(None).device("reference")?;
    /// let y = device.zeros::<f64>(1000)?;
    /// assert_eq!(y.download()?.sum(), 0.0);
    /// assert!(matches!(device.zeros::<f64>(1 << 60), Err(Error::OutOfMemory { .. })));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn zeros<T: Element>(&self, len: usize) -> Result<DeviceVector<T>> {
        DeviceVector::zeros(self, len)
    }
}

impl<T: Element> DeviceMatrix<T> {
    pub(crate) fn upload(device: &Device, a: ArrayView2<'_, T>) -> Result<Self> {
        let s: Span<'_, T, 2> = span(&a);
        let memory = device.backend().upload(T::any_slice(&s.data))?;
        Ok(DeviceMatrix {
            device: device.clone(),
            memory: memory.into(),
            first: s.first,
            dim: a.dim(),
            strides: (s.strides[0], s.strides[1]),
            element: PhantomData,
        })
    }

    /// Rows and columns.
    #[inline]
    pub fn dim(&self) -> (usize, usize) {
        self.dim
    }

    /// Row and column stride, in elements.
    #[inline]
    pub fn strides(&self) -> (isize, isize) {
        self.strides
    }

    /// Index in [`memory`](Self::memory) of element (0, 0).
    #[inline]
    pub fn first(&self) -> usize {
        self.first
    }

    /// The device it lives on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The block it lives in.
    #[inline]
    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// What is asked of a product with it.
    #[inline]
    pub fn desc(&self) -> Desc {
        // Blocks start on 64 bytes or more, so the offset gives the alignment.
        let at = self.first.wrapping_mul(T::DTYPE.bytes());
        Desc::new(T::DTYPE, self.dim.0, self.dim.1, self.strides, at)
    }

    /// The transpose, n × m, of the same memory.
    ///
    /// ```
    /// # use gemv_core::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// let x = a.t().gpu_dot(&array![1.0, -1.0]); // Aᵀ of the one copy on the device
    /// assert_eq!(x.download()?, array![-3.0, -3.0, -3.0]);
    /// assert_eq!((a.t().dim(), a.t().strides()), ((3, 2), (1, 3)));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    #[must_use]
    pub fn t(&self) -> Self {
        let mut t = self.clone();
        t.dim = (self.dim.1, self.dim.0);
        t.strides = (self.strides.1, self.strides.0);
        t
    }

    /// Some of the rows, of the same memory.
    ///
    /// A row's product depends on that row and x alone, so the product of the slice is the slice of
    /// the product, bit for bit.
    ///
    /// ```
    /// # gemv_core::Engine::global().set_default("reference").unwrap();
    /// # use gemv_core::{Engine, GpuDot};
    /// # use ndarray::{Array2, s};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = Array2::from_shape_fn((6, 300), |(i, j)| ((7 * i + j) as f32).cos());
    /// let (x, resident) = (a.row(0).to_owned(), device.matrix(&a)?);
    /// let y = a.gpu_dot(&x);
    /// assert_eq!(resident.rows(2..5).gpu_dot(&x).download()?, y.slice(s![2..5]));
    /// # Ok::<(), gemv_core::Error>(())
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
    /// # use gemv_core::Engine;
    /// # use ndarray::{array, s};
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = array![[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]];
    /// let resident = device.matrix(&a)?;
    /// assert_eq!(resident.step_rows(.., 2).download()?, array![[1.0, 10.0], [3.0, 30.0]]);
    /// // From the end of the range, as in ndarray.
    /// assert_eq!(resident.step_rows(1.., -2).download()?, a.slice(s![1..;-2, ..]));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last row, or before it starts, or `step` is 0.
    #[must_use]
    #[track_caller]
    pub fn step_rows(&self, range: impl RangeBounds<usize>, step: isize) -> Self {
        let (at, len) = slice(range, self.dim.0, step);
        let mut part = self.clone();
        part.dim.0 = len;
        if len > 0 && self.dim.1 > 0 {
            part.first = self.first.wrapping_add_signed(at as isize * self.strides.0);
        }
        part.strides.0 = stepped(self.strides.0, step, len);
        part
    }

    /// Every `step`-th of some of the columns; see [`step_rows`](Self::step_rows).
    ///
    /// ```
    /// # use gemv_core::{Engine, GpuDot};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// // Interleaved: a left and a right channel in each row.
    /// let both = device.matrix(&array![[1.0, -1.0, 2.0, -2.0], [3.0, -3.0, 4.0, -4.0]])?;
    /// let right = both.step_columns(1.., 2);
    /// assert_eq!(right.gpu_dot(&array![1.0, 1.0]).download()?, array![-3.0, -7.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// As [`step_rows`](Self::step_rows).
    #[must_use]
    #[track_caller]
    pub fn step_columns(&self, range: impl RangeBounds<usize>, step: isize) -> Self {
        self.t().step_rows(range, step).t()
    }

    /// A copy on the host, m × n, row-major.
    ///
    /// Waits for what is under way on the device. From a view with steps, what lies between its
    /// entries is copied as well, and left out.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(a.t().download()?, array![[1.0, 3.0], [2.0, 4.0]]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn download(&self) -> Result<Array2<T>> {
        let (m, n) = self.dim;
        if m == 0 || n == 0 {
            return Ok(Array2::default((m, n)));
        }
        let (lo, hi) = extent(&[(m, self.strides.0), (n, self.strides.1)]);
        let mut all = vec![T::default(); (hi - lo) as usize];
        let at = self.first.wrapping_add_signed(lo);
        self.device.backend().download(self.memory(), at, T::any_slice_mut(&mut all))?;
        let (rs, cs) = self.strides;
        Ok(Array2::from_shape_fn((m, n), |(i, j)| {
            all[(i as isize * rs + j as isize * cs - lo) as usize]
        }))
    }

    /// The matrix as a view of its memory, for backends whose memory is the host's.
    ///
    /// `memory` is the whole block, [`memory`](Self::memory), as the backend holds it.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let a = device.matrix(&array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// let block = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // what the backend holds
    /// assert_eq!(a.view_in(&block), array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    /// assert_eq!(a.step_columns(.., -2).view_in(&block), array![[3.0, 1.0], [6.0, 4.0]]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// If `memory` is shorter than the block.
    #[inline]
    pub fn view_in<'a>(&self, memory: &'a [T]) -> ArrayView2<'a, T> {
        let ((m, n), (rs, cs)) = (self.dim, self.strides);
        if m == 0 || n == 0 {
            return ArrayView2::from_shape((m, n), &[]).expect("an empty view fits any slice");
        }
        let (lo, hi) = extent(&[(m, rs), (n, cs)]);
        let at = self.first.wrapping_add_signed(lo);
        let shape = (m, n).strides((rs.unsigned_abs(), cs.unsigned_abs()));
        let mut view = ArrayView2::from_shape(shape, &memory[at..at + (hi - lo) as usize])
            .expect("the extent of the strides");
        for (axis, stride) in [rs, cs].into_iter().enumerate() {
            if stride < 0 {
                view.invert_axis(Axis(axis));
            }
        }
        view
    }
}

/// First index and length of a stepped range of `len` entries.
#[track_caller]
fn slice(range: impl RangeBounds<usize>, len: usize, step: isize) -> (usize, usize) {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let start = match range.start_bound() {
        Included(&s) => s,
        Excluded(&s) => s.saturating_add(1),
        Unbounded => 0,
    };
    let end = match range.end_bound() {
        Included(&e) => e.saturating_add(1),
        Excluded(&e) => e,
        Unbounded => len,
    };
    assert!(start <= end && end <= len, "range {start}..{end} is out of bounds for {len} entries");
    assert!(step != 0, "a step of 0");
    let count = (end - start).div_ceil(step.unsigned_abs());
    // A negative step starts at the last entry of the range, as ndarray's slices do.
    (if step > 0 || count == 0 { start } else { end - 1 }, count)
}

/// The stride of every `step`-th entry; of at most one entry there is none, and a step may be of
/// any size.
fn stepped(stride: isize, step: isize, len: usize) -> isize {
    if len > 1 { stride * step } else { stride }
}

impl<T: Element> DeviceVector<T> {
    pub(crate) fn upload(device: &Device, x: ArrayView1<'_, T>) -> Result<Self> {
        let s: Span<'_, T, 1> = span(&x);
        let memory = device.backend().upload(T::any_slice(&s.data))?;
        Ok(DeviceVector {
            device: device.clone(),
            memory: memory.into(),
            first: s.first,
            len: x.len(),
            stride: s.strides[0],
            element: PhantomData,
        })
    }

    pub(crate) fn zeros(device: &Device, len: usize) -> Result<Self> {
        Ok(DeviceVector {
            device: device.clone(),
            memory: device.backend().alloc(T::DTYPE, len)?.into(),
            first: 0,
            len,
            stride: 1,
            element: PhantomData,
        })
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stride in elements.
    #[inline]
    pub fn stride(&self) -> isize {
        self.stride
    }

    /// Index in [`memory`](Self::memory) of entry 0.
    #[inline]
    pub fn first(&self) -> usize {
        self.first
    }

    /// The device it lives on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The block it lives in.
    #[inline]
    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// The block it lives in, to write to; `None` while a clone or view shares it.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let mut y = device.vector(&array![1.0, 2.0])?;
    /// let shared = y.clone();
    /// assert!(y.memory_mut().is_none());
    /// drop(shared);
    /// assert_eq!(y.memory_mut().map(|block| block.len()), Some(2));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    #[inline]
    pub fn memory_mut(&mut self) -> Option<&mut dyn Memory> {
        Arc::get_mut(&mut self.memory)
    }

    /// Every `step`-th of some of the entries, backwards if `step` is negative; of the same memory.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.vector(&array![0.0, 1.0, 2.0, 3.0, 4.0])?;
    /// assert_eq!(x.step(1.., 2).download()?, array![1.0, 3.0]);
    /// let back = x.step(..4, -1);
    /// assert_eq!((back.download()?, back.stride()), (array![3.0, 2.0, 1.0, 0.0], -1));
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the range ends beyond the last entry, or before it starts, or `step` is 0.
    #[must_use]
    #[track_caller]
    pub fn step(&self, range: impl RangeBounds<usize>, step: isize) -> Self {
        let (at, len) = slice(range, self.len, step);
        let mut part = self.clone();
        part.len = len;
        if len > 0 {
            part.first = self.first.wrapping_add_signed(at as isize * self.stride);
        }
        part.stride = stepped(self.stride, step, len);
        part
    }

    /// The first m · n entries as an m × n matrix of the same memory, row by row
    /// ([`Layout::Row`]) or column by column ([`Layout::Col`]).
    ///
    /// ```
    /// # use gemv_core::{Engine, Layout};
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.vector(&array![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    /// let rows = x.as_matrix((2, 3), Layout::Row);
    /// assert_eq!(rows.download()?, array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    /// let columns = x.as_matrix((2, 3), Layout::Col); // as Fortran and BLAS have it
    /// assert_eq!(columns.download()?, array![[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there are fewer entries, the stride is not 1, or the layout is strided.
    #[must_use]
    #[track_caller]
    pub fn as_matrix(&self, dim: (usize, usize), layout: Layout) -> DeviceMatrix<T> {
        let (m, n) = dim;
        let needed = m.saturating_mul(n);
        assert!(needed <= self.len, "a {m} x {n} matrix of {} entries", self.len);
        assert!(self.stride == 1 || needed <= 1, "a matrix of entries that lie apart");
        let strides = match layout {
            Layout::Row => (n as isize, 1),
            Layout::Col => (1, m as isize),
            Layout::Strided => panic!("a strided layout does not say where the entries lie"),
        };
        DeviceMatrix {
            device: self.device.clone(),
            memory: self.memory.clone(),
            first: self.first,
            dim,
            strides,
            element: PhantomData,
        }
    }

    /// A matrix of one row: a dot product's left operand.
    pub(crate) fn as_row(&self) -> DeviceMatrix<T> {
        DeviceMatrix {
            device: self.device.clone(),
            memory: self.memory.clone(),
            first: self.first,
            dim: (1, self.len),
            strides: (self.len as isize, self.stride),
            element: PhantomData,
        }
    }

    /// A copy on the host.
    ///
    /// Waits for what is under way on the device.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.vector(&array![1.0f32, 2.0])?;
    /// assert_eq!(x.download()?, array![1.0, 2.0]);
    /// assert_eq!(device.zeros::<f32>(2)?.download()?, array![0.0, 0.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn download(&self) -> Result<Array1<T>> {
        if self.len == 0 {
            return Ok(Array1::default(0));
        }
        let (lo, hi) = extent(&[(self.len, self.stride)]);
        let mut all = vec![T::default(); (hi - lo) as usize];
        let at = self.first.wrapping_add_signed(lo);
        self.device.backend().download(self.memory(), at, T::any_slice_mut(&mut all))?;
        if self.stride == 1 {
            return Ok(Array1::from_vec(all));
        }
        Ok(Array1::from_shape_fn(self.len, |i| all[(i as isize * self.stride - lo) as usize]))
    }

    /// The vector as a view of its memory, for backends whose memory is the host's.
    ///
    /// `memory` is the whole block, [`memory`](Self::memory), as the backend holds it.
    ///
    /// ```
    /// # use gemv_core::Engine;
    /// # use ndarray::array;
    /// # let device = Engine::new(None).device("reference")?;
    /// let x = device.vector(&array![1.0, 2.0, 3.0])?;
    /// let block = [1.0, 2.0, 3.0]; // what the backend holds
    /// assert_eq!(x.step(.., -2).view_in(&block), array![3.0, 1.0]);
    /// # Ok::<(), gemv_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// If `memory` is shorter than the block.
    #[inline]
    pub fn view_in<'a>(&self, memory: &'a [T]) -> ArrayView1<'a, T> {
        if self.len == 0 {
            return ArrayView1::from(&[]);
        }
        let (lo, hi) = extent(&[(self.len, self.stride)]);
        let at = self.first.wrapping_add_signed(lo);
        let shape = self.len.strides(self.stride.unsigned_abs());
        let mut view = ArrayView1::from_shape(shape, &memory[at..at + (hi - lo) as usize])
            .expect("the extent of the stride");
        if self.stride < 0 {
            view.invert_axis(Axis(0));
        }
        view
    }

    /// Makes this vector the only owner of its memory, contiguous, so that a product may be
    /// written to it; its entries are kept on request. Returns the vector as it was, if it had to
    /// be replaced.
    pub(crate) fn make_unique(&mut self, keep: bool) -> Result<Option<Self>> {
        if self.stride == 1 && Arc::get_mut(&mut self.memory).is_some() {
            return Ok(None);
        }
        let own = if keep {
            Self::upload(&self.device, self.download()?.view())?
        } else {
            Self::zeros(&self.device, self.len)?
        };
        Ok(Some(std::mem::replace(self, own)))
    }
}
