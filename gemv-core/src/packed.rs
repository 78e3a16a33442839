//! Packed matrices: weights in blocks of a few bits, as operands of products.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use ndarray::{Array, ArrayRef, ArrayRef1, ArrayRef2, Axis, IntoDimension, Ix1, Ix2, Ix3};

use half::{bf16, f16};

use crate::device::Device;
use crate::dot::{ArrayLike, Multiply, Operand};
use crate::float_mode::in_default;
use crate::host::{host_array, host_zeros};
use crate::memory::{SharedMemory, part};
use crate::operand::{OperandMut, OperandRef, Upload};
use crate::product::{Ask, LeftOperand, LeftRef, PackedRef, Stack};
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
/// With three axes it is a stack of matrices, such as the experts of a mixture: products are those of a
/// [batch](crate::GpuDot), and [`index_axis`](Packed::index_axis) gives one of them.
///
/// Cloning is cheap, and so are [`rows`](Packed::rows): they share the bytes.
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
///
/// // Three experts of 2 × 256, each with a vector of its own.
/// let experts = Packed::new(Format::Q8_0, (3, 2, 256), packed.bytes().to_vec())?;
/// let tokens = Array2::from_shape_fn((3, 256), |(b, j)| ((b + j) as f32).cos());
/// let y = experts.gpu_dot(&tokens);
/// let second = experts.index_axis(ndarray::Axis(0), 1);
/// assert_eq!(y.row(1), second.gpu_dot(&tokens.row(1)));
/// # Ok::<(), gemv::Error>(())
/// ```
#[derive(Clone)]
pub struct Packed<D = Ix2> {
    format: Format,
    dim: D,
    bytes: Shared,
    /// Where its own begin.
    first: usize,
}

impl<D: Rank> fmt::Debug for Packed<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.format, text(self.dim.slice(), "x"))
    }
}

/// Such as `2 x 32`.
fn text(dim: &[usize], times: &str) -> String {
    dim.iter().map(usize::to_string).collect::<Vec<_>>().join(times)
}

/// Bytes of all rows.
fn bytes_of<D: Rank>(format: Format, dim: &D) -> Result<usize> {
    let (n, rows) = dim.slice().split_last().expect("an axis or more");
    let row = format.row_bytes(*n).map_err(Error::Packed)?;
    // Without columns, rows take no bytes, but are counted.
    let count = rows.iter().try_fold(1, |all: usize, len| all.checked_mul(*len));
    count.and_then(|rows| rows.checked_mul(row)).ok_or_else(|| {
        let shape = text(rows, " x ");
        wrong(format!("has {shape} rows of {row} bytes, more than can be addressed"))
    })
}

fn wrong(reason: String) -> Error {
    Error::Operand { operand: "the packed matrix", reason }
}

impl<D: Stack<Ix2>> Packed<D> {
    /// A matrix of m × n, or a stack of b × m × n, from its blocks: those of row 0, then those of row 1, and so on, as GGUF
    /// has them. Nothing is copied; `bytes` are kept.
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
        dim: impl IntoDimension<Dim = D>,
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Packed<D>> {
        let dim = dim.into_dimension();
        let (len, of) = (bytes.as_ref().len(), bytes_of(format, &dim)?);
        if len != of {
            let shape = text(dim.slice(), " x ");
            return Err(wrong(format!("has {len} bytes, but {shape} of {format} are {of}")));
        }
        Ok(Packed { format, dim, bytes: Arc::new(bytes), first: 0 })
    }

    /// Rounds a matrix to a packed one, as the reference of the format does: see [`Format::quantize`].
    ///
    /// # Errors
    /// [`Error::Packed`] if the number of columns is no multiple of the format's block, or a weight cannot be packed, such as NaN;
    /// [`Error::Operand`] if the matrix is resident; [`Error::OutOfMemory`].
    pub fn quantize<'a>(format: Format, a: impl Into<OperandRef<'a, f32, D>>) -> Result<Packed<D>> {
        let OperandRef::Host(a) = a.into() else {
            return Err(wrong("is made of a matrix on the host: `download` it".into()));
        };
        let dim = a.raw_dim();
        let mut bytes: Vec<u8> = host_zeros("the host", bytes_of(format, &dim)?)?;
        let n = dim[dim.ndim() - 1];
        let row = format.row_bytes(n).map_err(Error::Packed)?;
        let mut line = host_zeros("the host", n)?;
        in_default(|| {
            a.rows().into_iter().zip(bytes.chunks_exact_mut(row.max(1))).try_for_each(
                |(from, to)| {
                    line.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                    format.quantize(&line, to).map_err(Error::Packed)
                },
            )
        })?;
        Packed::new(format, dim, bytes)
    }

    /// The matrix of f32 that it stands for.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn dequantize(&self) -> Result<Array<f32, D>> {
        let mut a: Array<f32, D> = host_array("the host", self.dim)?;
        if let Some(all) = a.as_slice_mut() {
            in_default(|| self.format.dequantize(self.bytes(), all));
        }
        Ok(a)
    }

    /// The blocks of all rows.
    pub fn bytes(&self) -> &[u8] {
        let len = bytes_of(self.format, &self.dim).expect("compared when it was made");
        &(*self.bytes).as_ref()[self.first..][..len]
    }

    fn operand(&self) -> PackedRef<'_, D> {
        let place = PackedPlace::Host(self.bytes());
        PackedRef { dim: self.dim, rows: rows(self.format, &self.dim, place), device: None }
    }

    /// A part that begins at this row of all.
    fn part<E: Stack<Ix2>>(&self, first: usize, dim: E) -> Packed<E> {
        let row = self.format.row_bytes(self.ncols()).expect("compared when it was made");
        let (bytes, first) = (self.bytes.clone(), self.first + first * row);
        Packed { format: self.format, dim, bytes, first }
    }
}

/// All rows, those of a stack one matrix behind the other.
fn rows<'a, D: Rank>(format: Format, dim: &D, place: PackedPlace<'a>) -> PackedMatrix<'a> {
    let (n, rows) = dim.slice().split_last().expect("an axis or more");
    PackedMatrix { format, dim: (rows.iter().product(), *n), place }
}

/// What packed matrices on the host and on a device have in common.
macro_rules! shapes {
    ($($packed:ident, $memory:literal;)*) => { $(
        impl<D: Stack<Ix2>> $packed<D> {
            /// Its format.
            pub fn format(&self) -> Format {
                self.format
            }

            /// Rows and columns; of a stack, the number of matrices first.
            pub fn dim(&self) -> D::Pattern {
                self.dim.into_pattern()
            }

            /// Number of rows, of each matrix.
            pub fn nrows(&self) -> usize {
                self.dim[self.dim.ndim() - 2]
            }

            /// Number of columns.
            pub fn ncols(&self) -> usize {
                self.dim[self.dim.ndim() - 1]
            }
        }

        impl $packed {
            #[doc = concat!("Some of the rows, which share the ", $memory, ".")]
            ///
            /// # Panics
            /// If the range ends beyond the last row, or before it starts.
            #[must_use]
            #[track_caller]
            pub fn rows(&self, range: impl RangeBounds<usize>) -> $packed {
                let (first, count) = part(range, self.nrows(), 1, &|| "rows".into());
                self.part(first, Ix2(count, self.ncols()))
            }

            /// A stack of this matrix alone: the new axis is the first one.
            ///
            /// # Panics
            /// If it is another axis.
            #[must_use]
            #[track_caller]
            pub fn insert_axis(&self, axis: Axis) -> $packed<Ix3> {
                assert_eq!(axis, Axis(0), "matrices are stacked along the first axis");
                self.part(0, Ix3(1, self.nrows(), self.ncols()))
            }
        }

        impl $packed<Ix3> {
            #[doc = concat!("One of the matrices, which shares the ", $memory, ": the axis is the first one.")]
            ///
            /// # Panics
            /// If it is another axis, or there is no such matrix.
            #[must_use]
            #[track_caller]
            pub fn index_axis(&self, axis: Axis, index: usize) -> $packed {
                let (count, m, n) = self.dim();
                let at = axis.index();
                assert!(at == 0 && index < count, "matrix {index} along axis {at}: {count} along axis 0");
                self.part(index * m, Ix2(m, n))
            }
        }
    )* };
}
shapes! {
    Packed, "bytes";
    DevicePacked, "memory";
}

impl<D: Stack<Ix2>> Upload for Packed<D> {
    type Resident = DevicePacked<D>;

    /// Uploads it, once, in the arrangement that the device's kernels read.
    fn upload(&self, device: &Device) -> Result<DevicePacked<D>> {
        let memory = in_default(|| device.backend().upload_packed(self.operand().rows))?.into();
        let (device, format) = (device.clone(), self.format);
        Ok(DevicePacked { device, format, dim: self.dim, memory, first: 0 })
    }
}

/// A matrix of packed weights that lives on a device, or a stack of them: made by
/// [`to_device`](crate::ToDevice::to_device) of a [`Packed`].
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
pub struct DevicePacked<D = Ix2> {
    device: Device,
    format: Format,
    dim: D,
    memory: SharedMemory,
    /// Its first row in the memory.
    first: usize,
}

impl<D: Stack<Ix2>> DevicePacked<D> {
    /// The device it lives on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Where its rows lie, as a backend gets them: those of a stack one matrix behind the other.
    pub fn window(&self) -> PackedMatrix<'_> {
        rows(self.format, &self.dim, PackedPlace::Device(&*self.memory, self.first))
    }

    fn operand(&self) -> PackedRef<'_, D> {
        PackedRef { dim: self.dim, rows: self.window(), device: Some(&self.device) }
    }

    fn part<E: Stack<Ix2>>(&self, first: usize, dim: E) -> DevicePacked<E> {
        let (device, memory) = (self.device.clone(), self.memory.clone());
        DevicePacked { device, format: self.format, dim, memory, first: self.first + first }
    }
}

impl<D: Stack<Ix2>> Upload for DevicePacked<D> {
    type Resident = DevicePacked<D>;

    /// Shares the memory of one that is there; to another device it is copied from the host, by [`Packed`].
    fn upload(&self, device: &Device) -> Result<DevicePacked<D>> {
        device.owns([Some(&self.device)])?;
        Ok(self.clone())
    }
}

/// `Y = alpha * A X + beta * Y` on the device of a resident operand, or where the engine says.
fn update<V: Element, A: Stack<X>, X: Rank>(
    alpha: V::Acc,
    a: PackedRef<'_, A>,
    x: OperandRef<'_, V, X>,
    beta: V::Acc,
    y: OperandMut<'_, V, X>,
) -> Result<()> {
    let ask = Ask { params: None, conj: false, alpha, beta, epilogue: None };
    if let Some(device) = a.device.or(x.device()) {
        return device.run_packed(ask, a, x, y);
    }
    let there = y.device().cloned();
    there.map_or_else(|| Engine::global().default_device(), Ok)?.run_packed(ask, a, x, y)
}

fn on_host<V: Element, A: Stack<X>, X: Rank>(
    a: PackedRef<'_, A>,
    x: OperandRef<'_, V, X>,
) -> Result<Array<V, X>> {
    A::check(a.dim, x.raw_dim(), None)?;
    let mut y = host_array("the host", A::result(a.dim, x.raw_dim()))?;
    update(V::Acc::ONE, a, x, V::Acc::ZERO, (&mut y).into())?;
    Ok(y)
}

fn on_device<V: Element, A: Stack<X>, X: Rank>(
    a: PackedRef<'_, A>,
    x: OperandRef<'_, V, X>,
) -> Result<DeviceArray<V, X>> {
    A::check(a.dim, x.raw_dim(), None)?;
    let device = a.device.expect("a resident matrix");
    let mut y = DeviceArray::zeros(device, A::result(a.dim, x.raw_dim()))?;
    update(V::Acc::ONE, a, x, V::Acc::ZERO, (&mut y).into())?;
    Ok(y)
}

macro_rules! packed_operand {
    ($($packed:ident)*) => { $(
        impl<D> ArrayLike for $packed<D> {}

        impl<D> Operand for $packed<D> {
            type Elem = f32;
            type Form = Self;
            fn form(&self) -> &Self {
                self
            }
        }

        impl<'a, V: Element<Acc = f32>, D: Stack<Ix2>> LeftOperand<'a, V> for &'a $packed<D> {
            type Elem = V;
            type Axes = D;
            fn left(self) -> LeftRef<'a, V, D> {
                LeftRef::Packed(self.operand())
            }
        }
    )* };
}
packed_operand!(Packed DevicePacked);

macro_rules! products {
    ($($v:ty: $packed:ty, $axes:ty, $array:ident, $new:ident: $($x:ty),*;)*) => { $( $(
        impl Multiply<$x> for $packed {
            type Elem = $v;
            type Output = $array<$v, $axes>;
            type Target<'y> = OperandMut<'y, $v, $axes>;

            fn product(&self, x: &$x) -> Result<$array<$v, $axes>> {
                $new(self.operand(), x.into())
            }

            fn update(
                &self,
                alpha: <$v as Element>::Acc,
                x: &$x,
                beta: <$v as Element>::Acc,
                y: OperandMut<'_, $v, $axes>,
            ) -> Result<()> {
                update(alpha, self.operand(), x.into(), beta, y)
            }
        }
    )* )* };
    ($($v:ty)*) => { $(
        products! {
            $v: Packed, Ix1, Array, on_host: ArrayRef1<$v>, [$v], DeviceVector<$v>;
            $v: Packed, Ix2, Array, on_host: ArrayRef2<$v>, DeviceMatrix<$v>;
            $v: Packed<Ix3>, Ix2, Array, on_host: ArrayRef2<$v>, DeviceMatrix<$v>;
            $v: Packed<Ix3>, Ix3, Array, on_host: ArrayRef<$v, Ix3>, DeviceArray<$v, Ix3>;
            $v: DevicePacked, Ix1, DeviceArray, on_device: ArrayRef1<$v>, [$v], DeviceVector<$v>;
            $v: DevicePacked, Ix2, DeviceArray, on_device: ArrayRef2<$v>, DeviceMatrix<$v>;
            $v: DevicePacked<Ix3>, Ix2, DeviceArray, on_device: ArrayRef2<$v>, DeviceMatrix<$v>;
            $v: DevicePacked<Ix3>, Ix3, DeviceArray, on_device: ArrayRef<$v, Ix3>, DeviceArray<$v, Ix3>;
        }
    )* };
}
products!(f32 f16 bf16);
