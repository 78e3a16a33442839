//! What the copy engine is told of a matrix (CUDA Driver API, "Tensor Map Object Management").

use cudarc::driver::sys;
use gemv_core::{Error, Result};
use gemv_gpu::Boxes;

use super::gpu::Gpu;

/// `CUtensorMap` of cuda.h.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct TensorMap([u64; 16]);

/// Bytes of a box's line, the most that the copy engine swizzles; and columns of a segment.
const LINE: u64 = 128;
const SEGMENT: u32 = 256;

impl Gpu {
    /// A matrix of numbers of `element` bytes, 2 or 4, at `address`, whose rows and columns are `steps` bytes apart. Rows ascend in memory.
    ///
    /// # Errors
    /// The driver's, where rows descend or lines do not begin at multiples of 16 bytes.
    pub(super) fn tensor_map(
        &self,
        address: sys::CUdeviceptr,
        [m, n]: [usize; 2],
        [rows, columns]: [i64; 2],
        element: u32,
        boxes: Boxes,
    ) -> Result<TensorMap> {
        let [m, n] = [m as u64, n as u64];
        // Where there is one line, the step to the next may be any.
        let step = |lines: u64, line: u64, step: u64| match lines {
            0 | 1 => (line * u64::from(element)).next_multiple_of(16),
            _ => step,
        };
        let of_line = LINE / u64::from(element);
        let (rank, dims, steps, sides, bytes, from) = match boxes {
            Boxes::ByColumns(of_box) => {
                let back = if n > 1 { (n - 1) as i64 * columns.min(0) } else { 0 };
                let (steps, sides) =
                    ([step(n, m, columns.unsigned_abs()), 0], [of_box, SEGMENT, 1]);
                (2, [m, n, 1], steps, sides, of_box * element, address.wrapping_add_signed(back))
            }
            Boxes::ByRows(of_box) => {
                let whole = n.is_multiple_of(of_line);
                let (rank, dims) =
                    if whole { (3, [of_line, m, n / of_line]) } else { (2, [n, m, 1]) };
                let sides = [of_line as u32, of_box, SEGMENT / of_line as u32];
                (rank, dims, [step(m, n, rows as u64), LINE], sides, LINE as u32, address)
            }
        };
        use sys::{
            CUtensorMapDataType_enum as Type, CUtensorMapFloatOOBfill_enum as Fill,
            CUtensorMapInterleave_enum as Interleave, CUtensorMapL2promotion_enum as Promotion,
            CUtensorMapSwizzle_enum as Swizzle,
        };
        // As wide as a line of the box.
        let swizzle = match bytes {
            128 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            64 => Swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            32 => Swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            _ => Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        };
        let mut map = TensorMap::default();
        // SAFETY: the map is one in size and alignment, and the arrays have at least as many numbers as there are dimensions. The
        // driver reads them before it returns, and nothing of the matrix.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                // Bits, whatever number they are.
                if element == 2 {
                    Type::CU_TENSOR_MAP_DATA_TYPE_UINT16
                } else {
                    Type::CU_TENSOR_MAP_DATA_TYPE_UINT32
                },
                rank,
                from as *mut _,
                dims.as_ptr(),
                steps.as_ptr(),
                sides.as_ptr(),
                [1u32; 3].as_ptr(),
                Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
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
