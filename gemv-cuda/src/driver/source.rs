//! Kernels that people bring: what the driver says of them, and their launches.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{result, sys};
use gemv_core::{Dtype, KernelArgument, KernelLaunch, KernelLimits, Memory, Result};

use super::function::Function;
use super::gpu::Gpu;
use crate::resident::resident;

impl Gpu {
    /// What a launch of this function may ask for.
    pub(crate) fn limits(&self, function: &Function) -> Result<KernelLimits> {
        let _caller = self.bind()?;
        use sys::CUdevice_attribute_enum::*;
        use sys::CUfunction_attribute_enum::*;
        let device = |name| {
            let value = self.context.attribute(name);
            value.map(i32::cast_unsigned).map_err(|e| self.failed("cuDeviceGetAttribute", e))
        };
        let own = |name| {
            let value = function.inner.get_attribute(name);
            value.map(i32::cast_unsigned).map_err(|e| self.failed("cuFuncGetAttribute", e))
        };
        Ok(KernelLimits {
            threads: own(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            block: [
                device(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
                device(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
                device(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
            ],
            grid: [
                device(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?.into(),
                device(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?.into(),
                device(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?.into(),
            ],
            shared: own(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
            ..KernelLimits::NONE
        })
    }

    /// Queues a launch. The caller holds the queue.
    ///
    /// # Panics
    /// If an array lies on another GPU, or beyond its block.
    pub(crate) fn launch_source(
        self: &Arc<Self>,
        function: &Function,
        launch: &KernelLaunch<'_>,
    ) -> Result<()> {
        // A record would not keep the memory that the kernel works on.
        self.refuse_on_tape("cuLaunchKernel")?;
        // An address or a value, as the driver copies them: as aligned as any parameter.
        #[repr(C, align(16))]
        struct Value([u8; 16]);
        let address = |memory: &dyn Memory, dtype: Dtype, first: usize, len: usize| {
            let of = resident(memory, self, dtype);
            let inside = first.checked_add(len).is_some_and(|end| end <= of.len);
            assert!(inside, "an array beyond its block");
            (of.block.at + (first * dtype.bytes()) as u64).to_ne_bytes()
        };
        let values = launch.arguments().iter().map(|argument| {
            let mut value = Value([0; 16]);
            match argument {
                KernelArgument::Scalar(scalar) => {
                    value.0[..scalar.bytes().len()].copy_from_slice(scalar.bytes());
                }
                KernelArgument::Read { memory, dtype, first, len } => {
                    value.0[..8].copy_from_slice(&address(*memory, *dtype, *first, *len));
                }
                KernelArgument::Write { memory, dtype, len } => {
                    value.0[..8].copy_from_slice(&address(&**memory, *dtype, 0, *len));
                }
            }
            value
        });
        let values: Vec<Value> = values.collect();
        let pointer =
            |value: &Value| -> *mut c_void { std::ptr::from_ref(value).cast_mut().cast() };
        let mut pointers: Vec<_> = values.iter().map(pointer).collect();
        let shape = launch.shape();
        // Within the limits, which are numbers of 32 bits.
        let [gx, gy, gz] = shape.grid.map(|blocks| blocks as u32);
        let [bx, by, bz] = shape.block;
        // SAFETY: the function lives as long as its module, which it owns. The values are of its
        // parameters' types, which its compiler named, and live until the driver has copied them. Whoever
        // made the launch answers for what the kernel touches; blocks are freed in the stream's order.
        unsafe {
            result::launch_kernel(
                function.inner.cu_function(),
                (gx, gy, gz),
                (bx, by, bz),
                shape.shared,
                self.stream.cu_stream(),
                &mut pointers,
            )
        }
        .map_err(|e| self.failed("cuLaunchKernel", e))
    }
}
