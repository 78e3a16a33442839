//! Packed matrices: weights in blocks of a few bits, as operands of products.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use ndarray::{Array, Array1, Array2, ArrayRef1, ArrayRef2, Ix2};

use half::{bf16, f16};

use crate::device::Device;
use crate::dot::{ArrayLike, Multiply, Operand};
use crate::float_mode::in_default;
use crate::host::{host_array, host_zeros};
use crate::memory::SharedMemory;
use crate::operand::{MatrixMut, OperandMut, OperandRef, Upload, VectorMut};
use crate::planned::Work;
use crate::product::{Ask, Stack, StackOf};
use crate::resident::{DeviceArray, DeviceMatrix, DeviceVector};
use crate::tensor::{PackedMatrix, PackedPlace, Rank};
use crate::{Accumulator, Element, Engine, Error, Format, Result};

/// Bytes that an owner keeps, such as a `Vec<u8>` or a file that is mapped into memory.
type Shared = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A matrix of packed weights on the host: int8, int4 and FP8 blocks, as files of language models have them.
///
/// Each element is an f32 that its format's expression gives, rounded once: rule 13 of the [order](crate::order).
/// The product with x has the bits of `packed.dequantize()?.gpu_dot(&x)`, for one vector and for several, on every device.
/// x has elements of f32, f16 or bf16, of which the result is; the sums are kept in f32.
///
/// Cloning is cheap, and so are [`rows`](Self::rows): they share the bytes.
///
/// ```
/// # gemv::Engine::global().set_default("reference").unwrap();
/// use gemv::{Format, GpuDot, unstable::Packed};
/// use ndarray::{Array1, Array2};
///
/// let a = Array2::from_shape_fn((6, 256), |(i, j)| ((i * 256 + j) as f32).sin());
/// let x = Array1::from_shape_fn(256, |j| (j as f32).cos());
/// let packed = Packed::quantize(Format::Q8_0, a.view())?; // 34 bytes for 32 weights
/// let y = packed.gpu_dot(&x);
/// assert_eq!(y, packed.dequantize()?.gpu_dot(&x)); // the same bits
/// assert_eq!(packed.rows(2..4).gpu_dot(&x), y.slice(ndarray::s![2..4]));
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Clone)]
pub struct Packed {
    format: Format,
    dim: (usize, usize),
    bytes: Shared,
    /// Where its own begin.
    first: usize,
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}x{}", self.format, self.dim.0, self.dim.1)
    }
}

/// Bytes of `m` rows.
fn bytes_of(format: Format, (m, n): (usize, usize)) -> Result<usize> {
    let row = format.row_bytes(n).map_err(Error::Packed)?;
    row.checked_mul(m)
        .ok_or_else(|| wrong(format!("has {m} rows of {row} bytes, more than can be addressed")))
}

fn wrong(reason: String) -> Error {
    Error::Operand { operand: "the packed matrix", reason }
}

impl Packed {
    /// A matrix of `m` rows and `n` columns from its blocks: those of row 0, then those of row 1, and so on, as GGUF has
    /// them. Nothing is copied; `bytes` are kept.
    ///
    /// ```
    /// use gemv::{Format, unstable::Packed};
    ///
    /// let block = [&[0x00, 0x3c][..], &[2; 32]].concat(); // the scale 1 in f16, and 32 times 2
    /// let packed = Packed::new(Format::Q8_0, (1, 32), block)?;
    /// assert!(packed.dequantize()?.iter().all(|v| *v == 2.0));
    /// let e = Packed::new(Format::Q8_0, (2, 32), vec![0; 34]).unwrap_err();
    /// assert_eq!(e.to_string(), "the packed matrix has 34 bytes, but 2 x 32 of q8_0 are 68");
    /// # Ok::<(), gemv::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Packed`] if `n` is no multiple of the format's block; [`Error::Operand`] if there are not as many bytes as the
    /// matrix has.
    pub fn new(
        format: Format,
        dim: (usize, usize),
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Packed> {
        let (len, of) = (bytes.as_ref().len(), bytes_of(format, dim)?);
        if len != of {
            let (m, n) = dim;
            return Err(wrong(format!("has {len} bytes, but {m} x {n} of {format} are {of}")));
        }
        Ok(Packed { format, dim, bytes: Arc::new(bytes), first: 0 })
    }

    /// Rounds a matrix to a packed one, as the reference of the format does: see [`Format::quantize`].
    ///
    /// # Errors
    /// [`Error::Packed`] if the number of columns is no multiple of the format's block, or a weight cannot be packed, such as NaN;
    /// [`Error::Operand`] if the matrix is resident; [`Error::OutOfMemory`].
    pub fn quantize<'a>(format: Format, a: impl Into<crate::MatrixRef<'a, f32>>) -> Result<Packed> {
        let OperandRef::Host(a) = a.into() else {
            return Err(wrong("is made of a matrix on the host: `download` it".into()));
        };
        let mut bytes: Vec<u8> = host_zeros("the host", bytes_of(format, a.dim())?)?;
        let row = format.row_bytes(a.ncols()).map_err(Error::Packed)?;
        let mut line = host_zeros("the host", a.ncols())?;
        in_default(|| {
            a.rows().into_iter().zip(bytes.chunks_exact_mut(row.max(1))).try_for_each(
                |(from, to)| {
                    line.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                    format.quantize(&line, to).map_err(Error::Packed)
                },
            )
        })?;
        Packed::new(format, a.dim(), bytes)
    }

    /// The matrix of f32 that it stands for.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn dequantize(&self) -> Result<Array2<f32>> {
        let mut a: Array2<f32> = host_array("the host", Ix2(self.dim.0, self.dim.1))?;
        if let Some(all) = a.as_slice_mut() {
            in_default(|| self.format.dequantize(self.bytes(), all));
        }
        Ok(a)
    }

    /// Its format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows and columns.
    pub fn dim(&self) -> (usize, usize) {
        self.dim
    }

    /// Number of rows.
    pub fn nrows(&self) -> usize {
        self.dim.0
    }

    /// Number of columns.
    pub fn ncols(&self) -> usize {
        self.dim.1
    }

    /// The blocks of all rows.
    pub fn bytes(&self) -> &[u8] {
        let len = bytes_of(self.format, self.dim).expect("compared when it was made");
        &(*self.bytes).as_ref()[self.first..][..len]
    }

    /// Some of the rows, which share the bytes.
    ///
    /// # Panics
    /// If the range ends beyond the last row, or before it starts.
    #[must_use]
    #[track_caller]
    pub fn rows(&self, range: impl RangeBounds<usize>) -> Packed {
        let range = within(range, self.dim.0);
        let row = self.format.row_bytes(self.dim.1).expect("compared when it was made");
        let (first, bytes) = (self.first + range.start * row, self.bytes.clone());
        Packed { format: self.format, dim: (range.len(), self.dim.1), bytes, first }
    }

    fn at(&self) -> PackedMatrix<'_> {
        let place = PackedPlace::Host(self.bytes());
        PackedMatrix { format: self.format, dim: self.dim, place }
    }
}

/// A range of rows.
#[track_caller]
fn within(range: impl RangeBounds<usize>, rows: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(at) => Some(*at),
        Bound::Excluded(at) => at.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(at) => at.checked_add(1),
        Bound::Excluded(at) => Some(*at),
        Bound::Unbounded => Some(rows),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= rows => start..end,
        _ => panic!("a range of the rows is out of bounds: there are {rows}"),
    }
}

impl Upload for Packed {
    type Resident = DevicePacked;

    /// Uploads it, once, in the arrangement that the device's kernels read.
    fn upload(&self, device: &Device) -> Result<DevicePacked> {
        let memory = in_default(|| device.backend().upload_packed(self.at()))?.into();
        Ok(DevicePacked {
            device: device.clone(),
            format: self.format,
            dim: self.dim,
            memory,
            first: 0,
        })
    }
}

/// A matrix of packed weights that lives on a device: made by [`to_device`](crate::ToDevice::to_device) of a [`Packed`].
///
/// ```
/// use gemv::{Format, GpuDot, ToDevice, device, unstable::Packed};
/// use ndarray::{Array2, array};
///
/// let device = device("reference")?; // or "cuda:0"
/// let a = Array2::from_shape_fn((6, 128), |(i, j)| (i * j % 15) as f32 - 7.0);
/// let packed = Packed::quantize(Format::Q4_0, a.view())?;
/// let resident = packed.to_device(&device)?;
/// let x = device.matrix(&Array2::from_elem((128, 3), 0.5f32))?; // three right-hand sides at once
/// assert_eq!(resident.gpu_dot(&x).download()?, packed.dequantize()?.gpu_dot(&x));
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DevicePacked {
    device: Device,
    format: Format,
    dim: (usize, usize),
    memory: SharedMemory,
    /// Its first row in the memory.
    first: usize,
}

impl DevicePacked {
    /// The device it lives on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows and columns.
    pub fn dim(&self) -> (usize, usize) {
        self.dim
    }

    /// Number of rows.
    pub fn nrows(&self) -> usize {
        self.dim.0
    }

    /// Number of columns.
    pub fn ncols(&self) -> usize {
        self.dim.1
    }

    /// Some of the rows, which share the memory.
    ///
    /// # Panics
    /// If the range ends beyond the last row, or before it starts.
    #[must_use]
    #[track_caller]
    pub fn rows(&self, range: impl RangeBounds<usize>) -> DevicePacked {
        let range = within(range, self.dim.0);
        let (dim, first) = ((range.len(), self.dim.1), self.first + range.start);
        DevicePacked { dim, first, ..self.clone() }
    }

    /// Where its rows lie, as a backend gets them.
    pub fn window(&self) -> PackedMatrix<'_> {
        let place = PackedPlace::Device(&*self.memory, self.first);
        PackedMatrix { format: self.format, dim: self.dim, place }
    }
}

impl Upload for DevicePacked {
    type Resident = DevicePacked;

    /// Shares the memory of one that is there; to another device it is copied from the host, by [`Packed`].
    fn upload(&self, device: &Device) -> Result<DevicePacked> {
        device.owns([Some(&self.device)])?;
        Ok(self.clone())
    }
}

/// `Y = alpha * A X + beta * Y` on the device of a resident operand, or where the engine says.
fn update<V: Element, X: Rank>(
    alpha: V::Acc,
    a: PackedMatrix<'_>,
    device: Option<&Device>,
    x: OperandRef<'_, V, X>,
    beta: V::Acc,
    y: OperandMut<'_, V, X>,
) -> Result<()>
where
    Ix2: Stack<X>,
{
    Ix2::check(Ix2(a.dim.0, a.dim.1), x.raw_dim(), Some(y.raw_dim()))?;
    let own;
    let device = match (device, x.device(), y.device()) {
        (Some(device), ..) | (_, Some(device), _) => device,
        (.., Some(device)) => {
            own = device.clone();
            &own
        }
        _ => Engine::global().default_ref()?,
    };
    device.owns([x.device(), y.device()])?;
    // A device whose memory is not the host's has it uploaded for this one product.
    let uploaded;
    let a = match a.place {
        PackedPlace::Host(_) if !device.info().host => {
            device.plannable(Work::Host)?;
            uploaded = in_default(|| device.backend().upload_packed(a))?;
            PackedMatrix { place: PackedPlace::Device(&*uploaded, 0), ..a }
        }
        _ => a,
    };
    let ask = Ask { params: None, conj: false, alpha, beta, epilogue: None };
    device.run_packed(ask, a, x, y)
}

fn on_host<V: Element, X: Rank>(a: &Packed, x: OperandRef<'_, V, X>) -> Result<Array<V, X>>
where
    Ix2: Stack<X>,
{
    let dim = Ix2(a.dim.0, a.dim.1);
    Ix2::check(dim, x.raw_dim(), None)?;
    let mut y = host_array("the host", Ix2::result(dim, x.raw_dim()))?;
    update(V::Acc::ONE, a.at(), None, x, V::Acc::ZERO, (&mut y).into())?;
    Ok(y)
}

fn on_device<V: Element, X: Rank>(
    a: &DevicePacked,
    x: OperandRef<'_, V, X>,
) -> Result<DeviceArray<V, X>>
where
    Ix2: Stack<X>,
{
    let dim = Ix2(a.dim.0, a.dim.1);
    Ix2::check(dim, x.raw_dim(), None)?;
    let mut y = DeviceArray::zeros(&a.device, Ix2::result(dim, x.raw_dim()))?;
    update(V::Acc::ONE, a.window(), Some(&a.device), x, V::Acc::ZERO, (&mut y).into())?;
    Ok(y)
}

macro_rules! packed_operand {
    ($($packed:ty)*) => { $(
        impl ArrayLike for $packed {}

        impl Operand for $packed {
            type Elem = f32;
            type Form = Self;
            fn form(&self) -> &Self {
                self
            }
        }
    )* };
}
packed_operand!(Packed DevicePacked);

impl Packed {
    fn there(&self) -> Option<&Device> {
        None
    }
}

impl DevicePacked {
    fn there(&self) -> Option<&Device> {
        Some(&self.device)
    }

    fn at(&self) -> PackedMatrix<'_> {
        self.window()
    }
}

macro_rules! products {
    ($($v:ty: $packed:ty, $x:ty => $y:ty, $new:ident, $target:ident;)*) => { $(
        impl Multiply<$x> for $packed {
            type Elem = $v;
            type Output = $y;
            type Target<'y> = $target<'y, $v>;

            fn product(&self, x: &$x) -> Result<$y> {
                $new(self, x.into())
            }

            fn update(
                &self,
                alpha: <$v as Element>::Acc,
                x: &$x,
                beta: <$v as Element>::Acc,
                y: $target<'_, $v>,
            ) -> Result<()> {
                update(alpha, self.at(), self.there(), x.into(), beta, y)
            }
        }
    )* };
    ($($v:ty)*) => { $(
        products! {
            $v: Packed, ArrayRef1<$v> => Array1<$v>, on_host, VectorMut;
            $v: Packed, [$v] => Array1<$v>, on_host, VectorMut;
            $v: Packed, DeviceVector<$v> => Array1<$v>, on_host, VectorMut;
            $v: Packed, ArrayRef2<$v> => Array2<$v>, on_host, MatrixMut;
            $v: Packed, DeviceMatrix<$v> => Array2<$v>, on_host, MatrixMut;
            $v: DevicePacked, ArrayRef1<$v> => DeviceVector<$v>, on_device, VectorMut;
            $v: DevicePacked, [$v] => DeviceVector<$v>, on_device, VectorMut;
            $v: DevicePacked, DeviceVector<$v> => DeviceVector<$v>, on_device, VectorMut;
            $v: DevicePacked, ArrayRef2<$v> => DeviceMatrix<$v>, on_device, MatrixMut;
            $v: DevicePacked, DeviceMatrix<$v> => DeviceMatrix<$v>, on_device, MatrixMut;
        }
    )* };
}
products!(f32 f16 bf16);
