//! The layer's matrices: bf16, or packed; made up, or of a file.

use std::error::Error;

use gemv::half::bf16;
use gemv::{Device, DeviceMatrix, DeviceVector, GpuDot, VectorMut};
use ndarray::Array2;

/// A matrix on the device.
pub enum Weight {
    Plain(DeviceMatrix<bf16>),
    /// A packed one, and the factor that belongs to it.
    #[cfg(feature = "packed")]
    Packed(gemv::DevicePacked, f32),
}

impl Weight {
    /// Rows and columns.
    pub fn dim(&self) -> (usize, usize) {
        match self {
            Weight::Plain(matrix) => matrix.dim(),
            #[cfg(feature = "packed")]
            Weight::Packed(matrix, _) => matrix.dim(),
        }
    }

    /// The name of its elements.
    pub fn name(&self) -> &'static str {
        match self {
            Weight::Plain(_) => "bf16",
            #[cfg(feature = "packed")]
            Weight::Packed(matrix, _) => matrix.format().name(),
        }
    }

    /// Its bytes, as files have them.
    pub fn bytes(&self) -> usize {
        match self {
            Weight::Plain(matrix) => matrix.len() * size_of::<bf16>(),
            #[cfg(feature = "packed")]
            Weight::Packed(matrix, _) => {
                let row = matrix.format().row_bytes(matrix.ncols());
                row.map_or(0, |row| row * matrix.nrows())
            }
        }
    }

    /// `y = A x + beta y`.
    pub fn gemv<'y>(
        &self,
        x: &DeviceVector<bf16>,
        beta: f32,
        y: impl Into<VectorMut<'y, bf16>>,
    ) -> gemv::Result<()> {
        match self {
            Weight::Plain(matrix) => matrix.try_gemv(1.0, x, beta, y),
            #[cfg(feature = "packed")]
            Weight::Packed(matrix, alpha) => matrix.try_gemv(*alpha, x, beta, y),
        }
    }

    /// `Y = A X`, of several tokens.
    pub fn many(&self, x: &DeviceMatrix<bf16>, y: &mut DeviceMatrix<bf16>) -> gemv::Result<()> {
        match self {
            Weight::Plain(matrix) => matrix.try_gemv(1.0, x, 0.0, y),
            #[cfg(feature = "packed")]
            Weight::Packed(matrix, alpha) => matrix.try_gemv(*alpha, x, 0.0, y),
        }
    }
}

/// What is multiplied in a layer, and the weights of its norms where there are any.
pub struct Weights {
    pub query: Weight,
    pub key: Weight,
    pub value: Weight,
    pub output: Weight,
    /// Gate and up: one above the other, or by themselves.
    pub gate_up: Vec<Weight>,
    pub down: Weight,
    /// Before attention and before the feed-forward part.
    pub norms: [Option<Vec<bf16>>; 2],
}

impl Weights {
    /// Weights that are made up, as the shapes of Llama 3 8B have them, each brought to the device by `upload`.
    pub fn made_up(
        device: &Device,
        (hidden, shared, inner): (usize, usize, usize),
        upload: impl Fn(&Device, Array2<bf16>) -> Result<Weight, Box<dyn Error>>,
    ) -> Result<Weights, Box<dyn Error>> {
        let weight = |seed, m, n| upload(device, made_up(seed, m, n));
        Ok(Weights {
            query: weight(1, hidden, hidden)?,
            key: weight(2, shared, hidden)?,
            value: weight(3, shared, hidden)?,
            output: weight(4, hidden, hidden)?,
            gate_up: vec![weight(5, 2 * inner, hidden)?],
            down: weight(6, hidden, inner)?,
            norms: [None, None],
        })
    }

    /// All matrices.
    pub fn all(&self) -> Vec<(&'static str, &Weight)> {
        let Weights { query, key, value, output, gate_up, down, .. } = self;
        let mut all = vec![("query", query), ("key", key), ("value", value), ("output", output)];
        match &gate_up[..] {
            [both] => all.push(("gate and up", both)),
            [gate, up] => all.extend([("gate", gate), ("up", up)]),
            _ => {}
        }
        all.push(("down", down));
        all
    }
}

/// Weights of a variance that keeps the size of what they are multiplied with.
fn made_up(seed: u64, m: usize, n: usize) -> Array2<bf16> {
    let scale = (12.0 / n as f32).sqrt();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    Array2::from_shape_simple_fn((m, n), || {
        // xorshift (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bf16::from_f32(((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * scale)
    })
}
