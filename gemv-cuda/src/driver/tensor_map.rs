//! What the copy engine is told of a matrix (CUDA Driver API, "Tensor Map Object Management").

use cudarc::driver::sys;
use gemv_core::{Error, Result};

use super::gpu::Gpu;

/// `CUtensorMap` of cuda.h.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct TensorMap([u64; 16]);

/// Columns of a box: 128 bytes, what the copy engine swizzles.
const COLUMNS: usize = 64;

/// Bytes of a number.
const ELEMENT: usize = 2;

impl Gpu {
    /// A row-major matrix of 16-bit numbers at `address`, whose rows are `step` bytes apart, for boxes of so many rows; see
    /// `Launch::box_rows` of gemv_gpu.
    ///
    /// # Errors
    /// The driver's, where rows descend or do not begin at multiples of 16 bytes.
    pub(super) fn tensor_map(
        &self,
        address: sys::CUdeviceptr,
        [m, n]: [usize; 2],
        step: i64,
        rows: u32,
    ) -> Result<TensorMap> {
        // Where there is one row, the step to the next may be any.
        let step = if m > 1 { step as u64 } else { (n * ELEMENT).next_multiple_of(16) as u64 };
        let blocks = n.is_multiple_of(COLUMNS);
        let dims = match blocks {
            true => [COLUMNS as u64, m as u64, (n / COLUMNS) as u64],
            false => [n as u64, m as u64, 1],
        };
        let steps = [step, (COLUMNS * ELEMENT) as u64];
        let sides = [COLUMNS as u32, rows, 4];
        let mut map = TensorMap::default();
        use sys::{
            CUtensorMapDataType_enum as Type, CUtensorMapFloatOOBfill_enum as Fill,
            CUtensorMapInterleave_enum as Interleave, CUtensorMapL2promotion_enum as Promotion,
            CUtensorMapSwizzle_enum as Swizzle,
        };
        // SAFETY: the map is one in size and alignment, and the arrays have as many numbers as there are dimensions, and one
        // step fewer. The driver reads them before it returns, and nothing of the matrix.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                // Bits, whatever number they are.
                Type::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                if blocks { 3 } else { 2 },
                address as *mut _,
                dims.as_ptr(),
                steps.as_ptr(),
                sides.as_ptr(),
                [1u32; 3].as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        let failed = |reason| Error::Device {
            device: self.id().into(),
            call: "cuTensorMapEncodeTiled",
            reason,
        };
        code.result().map_err(|e| failed(format!("{e:?}")))?;
        Ok(map)
    }
}
