//! Matrices of packed weights, in the host's memory or in a device's.

use std::ops::Range;

use gemv::unstable::{PackedMatrix, PackedPlace};
use gemv::{Device, DevicePacked, Format, ToDevice};
use pyo3::prelude::*;

/// A matrix of packed weights: int8, int4 and FP8 blocks, as files of language models have them.
///
/// ``A @ x`` has the bits of ``gemv.matmul(A.dequantize(), x, alpha=A.scale)`` in float32, and is of the type of ``x``: float32,
/// float16 or bfloat16. It is an array of the library of ``x``, resident if ``x`` is. A packed matrix never changes.
///
/// Parameters
/// ----------
/// format : str
///     One of ``Packed.formats``, such as ``"q8_0"``.
/// blocks : bytes, or array of uint8
///     The blocks of row 0, then those of row 1, and so on, as GGUF has them. ``bytes`` are kept and shared. An array, which
///     others may write, is copied.
/// shape : (int, int), optional
///     Rows and columns. An array of two axes, one row of blocks in each row, has its own.
/// scale : float, optional
///     A float32 that multiplies every product, as ``alpha`` does: the scale of a tensor of NVFP4.
///
/// Raises
/// ------
/// ValueError
///     If there is no such format, the columns are no whole number of blocks, or there are other bytes than the shape needs.
/// TypeError
///     If ``blocks`` are no bytes.
///
/// Examples
/// --------
/// >>> import numpy as np, gemv
/// >>> block = np.array([0x00, 0x3c] + [2] * 32, np.uint8)  # the scale 1 in float16, and 32 times 2
/// >>> A = gemv.Packed("q8_0", block, (1, 32))
/// >>> A
/// gemv.Packed(format='q8_0', shape=(1, 32))
/// >>> A @ np.ones(32, np.float32)
/// array([64.], dtype=float32)
/// >>> rows = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
/// >>> packed = gemv.Packed.quantize("q4_0", rows)
/// >>> (packed.shape, packed.nbytes, packed[1:3].shape)
/// ((4, 64), 144, (2, 64))
#[pyclass(frozen, module = "gemv")]
#[derive(Debug, Clone)]
pub struct Packed {
    pub blocks: Blocks,
    pub scale: f32,
}

/// Where the blocks lie.
#[derive(Debug, Clone)]
pub enum Blocks {
    Host(gemv::Packed),
    Device(DevicePacked),
}

impl Packed {
    pub fn format(&self) -> Format {
        match &self.blocks {
            Blocks::Host(of) => of.format(),
            Blocks::Device(of) => of.format(),
        }
    }

    pub fn dim(&self) -> (usize, usize) {
        match &self.blocks {
            Blocks::Host(of) => of.dim(),
            Blocks::Device(of) => of.dim(),
        }
    }

    /// The device it lives on; `None` if it is in the host's memory.
    pub fn device(&self) -> Option<&Device> {
        match &self.blocks {
            Blocks::Host(_) => None,
            Blocks::Device(of) => Some(of.device()),
        }
    }

    /// As a product takes it.
    pub fn matrix(&self) -> PackedMatrix<'_> {
        match &self.blocks {
            Blocks::Host(of) => {
                let place = PackedPlace::Host(of.bytes());
                PackedMatrix { format: of.format(), dim: of.dim(), place }
            }
            Blocks::Device(of) => of.window(),
        }
    }

    /// Some of the rows, which share the blocks.
    pub fn rows(&self, range: Range<usize>) -> Packed {
        let blocks = match &self.blocks {
            Blocks::Host(of) => Blocks::Host(of.rows(range)),
            Blocks::Device(of) => Blocks::Device(of.rows(range)),
        };
        Packed { blocks, scale: self.scale }
    }

    /// A copy in a device's memory, of one in the host's; itself if it is on a device.
    pub fn on(&self, device: &Device) -> gemv::Result<Packed> {
        Ok(match &self.blocks {
            Blocks::Host(of) => {
                Packed { blocks: Blocks::Device(of.to_device(device)?), scale: self.scale }
            }
            Blocks::Device(_) => self.clone(),
        })
    }
}
