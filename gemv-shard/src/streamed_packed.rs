//! Packed matrices that pass through a device in parts.

use gemv_core::{
    Device, DevicePacked, Element, Error as CoreError, MatrixRef, Packed, ShapeMismatch, ToDevice,
    VectorRef,
};
use ndarray::{ArrayViewMut1, ArrayViewMut2, Axis};

use crate::{Result, Streamed};

/// A packed matrix in the host's memory, such as that of a mapped GGUF file, with which a device computes in parts of
/// rows and never holds whole.
///
/// The next part goes to the device while the device computes with the last one. The CPU reads the blocks where they lie.
/// Results have the bits of the product of the whole.
///
/// ```
/// use gemv::{Format, GpuDot, Packed, device};
/// use gemv_shard::StreamedPacked;
/// use ndarray::{Array1, Array2};
/// # gemv::Engine::global().set_default("reference")?;
///
/// let a = Array2::from_shape_fn((300, 256), |(i, j)| ((i * 256 + j) as f32).sin());
/// let x = Array1::from_shape_fn(256, |j| (j as f32).cos());
/// let a = Packed::quantize(Format::Q8_0, &a)?; // or `Packed::new` of the bytes of a file
/// let (mut y, mut percent) = (Array1::<f32>::zeros(300), 0);
/// let told = |read, of| percent = 100 * read / of;
/// let here = device("reference")?; // or "cuda:0"
/// StreamedPacked::of(&a).window(1 << 16).gemv(&here, 1.0, &x, 0.0, &mut y, told)?;
/// assert_eq!((y, percent), (a.gpu_dot(&x), 100));
/// # Ok::<(), gemv_shard::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct StreamedPacked {
    a: Packed,
    window: usize,
}

/// Rows of a part, a multiple of so many: kernels read tiles of them.
const TILE: usize = 32;

impl StreamedPacked {
    /// A matrix whose bytes it shares.
    pub fn of(a: &Packed) -> StreamedPacked {
        StreamedPacked { a: a.clone(), window: Streamed::WINDOW }
    }

    /// Holds about so many bytes of the matrix at one time beside the bytes of the host that it is made of: two parts on the
    /// device, and a third while it is arranged for the device. The least is 32 rows for each of these.
    #[must_use]
    pub fn window(self, bytes: usize) -> Self {
        StreamedPacked { window: bytes, ..self }
    }

    /// Rows and columns.
    pub fn dim(&self) -> (usize, usize) {
        self.a.dim()
    }

    /// `y = alpha * A x + beta * y`, computed on this device.
    ///
    /// `x` has n entries, on the host or resident; `y` has m. `told` is called after each part with the bytes of the blocks
    /// that were read, and with those of the whole matrix. `alpha = 0` reads no block, `beta = 0` does not read `y`. The
    /// device holds x and y beside the window.
    ///
    /// # Errors
    /// [`Error::Product`](crate::Error::Product) of [`Shape`](gemv_core::Error::Shape), or of what the device reports: `y` is
    /// then as it was.
    pub fn gemv<'x, 'y, V: Element<Acc = f32>>(
        &self,
        device: &Device,
        alpha: f32,
        x: impl Into<VectorRef<'x, V>>,
        beta: f32,
        y: impl Into<ArrayViewMut1<'y, V>>,
        told: impl FnMut(u64, u64),
    ) -> Result<()> {
        let (x, y, matrix) = (x.into(), y.into(), self.dim());
        if (x.len(), y.len()) != (matrix.1, matrix.0) {
            let shapes = ShapeMismatch::MatrixVector { matrix, x: x.len(), y: Some(y.len()) };
            return Err(CoreError::Shape(shapes).into());
        }
        let column;
        let x = match x {
            VectorRef::Host(x) => MatrixRef::Host(x.insert_axis(Axis(1))),
            VectorRef::Device(x) => {
                column = x.insert_axis(Axis(1));
                MatrixRef::Device(&column)
            }
        };
        self.gemm(device, alpha, x, beta, y.insert_axis(Axis(1)), told)
    }

    /// `Y = alpha * A X + beta * Y`, computed on this device, which reads each part once for all columns of X.
    ///
    /// `x` is n × k, on the host or resident; `y` is m × k. Column c of Y has the bits of [`gemv`](Self::gemv) of column c.
    ///
    /// ```
    /// use gemv::{Format, GpuDot, Packed, device, half::bf16};
    /// use gemv_shard::StreamedPacked;
    /// use ndarray::Array2;
    /// # gemv::Engine::global().set_default("reference")?;
    ///
    /// let a = Array2::from_shape_fn((90, 64), |(i, j)| (i * j % 15) as f32 - 7.0);
    /// let a = Packed::quantize(Format::Q4_0, &a)?;
    /// let (x, mut y) = (Array2::from_elem((64, 3), bf16::ONE), Array2::from_elem((90, 3), bf16::ZERO));
    /// StreamedPacked::of(&a).gemm(&device("reference")?, 1.0, &x, 0.0, &mut y, |_, _| ())?;
    /// assert_eq!(y, a.gpu_dot(&x));
    /// # Ok::<(), gemv_shard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`gemv`](Self::gemv).
    pub fn gemm<'x, 'y, V: Element<Acc = f32>>(
        &self,
        device: &Device,
        alpha: f32,
        x: impl Into<MatrixRef<'x, V>>,
        beta: f32,
        y: impl Into<ArrayViewMut2<'y, V>>,
        mut told: impl FnMut(u64, u64),
    ) -> Result<()> {
        let (x, mut y, (m, n)) = (x.into(), y.into(), self.dim());
        if (x.dim(), y.nrows()) != ((n, y.ncols()), m) {
            let (x, y) = (x.dim(), Some(y.dim()));
            return Err(
                CoreError::Shape(ShapeMismatch::MatrixMatrix { matrix: (m, n), x, y }).into()
            );
        }
        if y.is_empty() || alpha == 0.0 {
            return Ok(device.product(&self.a, x).scaled(alpha, beta).to(y)?);
        }
        let x = device.matrix(x)?;
        let mut result = match beta == 0.0 {
            true => device.zeros(y.dim())?,
            false => device.matrix(&y)?,
        };
        let total = self.a.bytes().len();
        let row = total.div_ceil(m).max(1);
        let rows = (self.window / 3 / row / TILE).max(1) * TILE;
        let mut before: Option<DevicePacked> = None;
        for first in (0..m).step_by(rows) {
            let rows = first..m.min(first.saturating_add(rows));
            let part = self.a.rows(rows.clone());
            let end = rows.end * row;
            let place = result.rows_mut(rows)?;
            if device.backend().packed_in_place() {
                device.product(&part, &x).scaled(alpha, beta).to(place)?;
            } else {
                let part = part.to_device(device)?;
                // It was on its way while the device computed with the one before, whose memory is then free.
                if before.is_some() {
                    device.synchronize()?;
                }
                device.product(&part, &x).scaled(alpha, beta).to(place)?;
                before = Some(part);
            }
            told(end.min(total) as u64, total as u64);
        }
        y.assign(&result.download()?);
        Ok(())
    }
}
