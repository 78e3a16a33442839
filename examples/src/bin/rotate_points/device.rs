//! The kernels of `kernels.k`, on a device of OpenCL or CUDA.

use gemv::kernel::{Kernel, LaunchShape};
use gemv::{Device, DeviceMatrix, Result};

/// The points on a device: U, r, and v, which begins as s.
pub(crate) struct Points {
    pub(crate) u: DeviceMatrix<f32>,
    pub(crate) r: DeviceMatrix<f32>,
    pub(crate) v: DeviceMatrix<f32>,
}

/// The compiled kernels.
pub(crate) struct Kernels {
    by_point: Kernel,
    by_component: Kernel,
    copy: Kernel,
}

impl Kernels {
    pub(crate) fn compile(device: &Device) -> Result<Kernels> {
        let of = |entry| Kernel::from_source(device, include_str!("kernels.k"), entry);
        let (by_point, by_component) = (of("by_point")?, of("by_component")?);
        Ok(Kernels { by_point, by_component, copy: of("copy")? })
    }

    /// Most threads of a block with which every kernel runs.
    pub(crate) fn most_threads(&self) -> u32 {
        let all = [&self.by_point, &self.by_component, &self.copy];
        all.iter().map(|kernel| kernel.limits().threads).min().unwrap_or(1)
    }

    /// Enqueues v = U r + v, a thread a point.
    pub(crate) fn by_point(&self, threads: u32, points: &mut Points) -> Result<()> {
        let count = points.r.dim().0;
        let shape = LaunchShape::covering(count as u64, threads);
        Self::launch(&self.by_point, shape, points)
    }

    /// Enqueues v = U r + v, a thread a component.
    ///
    /// # Panics
    /// If the threads of a block are no multiple of 3.
    pub(crate) fn by_component(&self, threads: u32, points: &mut Points) -> Result<()> {
        assert!(threads.is_multiple_of(3), "whole points in a block");
        let count = points.r.dim().0;
        let shape = LaunchShape::covering(3 * count as u64, threads);
        Self::launch(&self.by_component, shape.with_shared(4 * (threads + 9)), points)
    }

    fn launch(kernel: &Kernel, shape: LaunchShape, points: &mut Points) -> Result<()> {
        let Points { u, r, v } = points;
        let count = r.dim().0;
        let call = kernel.arguments().read(u).of_len(9).read(r).of_len(3 * count);
        let call = call.write(v).of_len(3 * count).scalar(count as u64);
        // SAFETY: each kernel leaves out what is beyond 3 `count` components, which r and v have; U has
        // 9 entries, and `by_component` the shared memory that it asks for.
        unsafe { call.launch(shape) }
    }

    /// Enqueues a copy of r to v, as far as vectors of four words reach. Returns its words.
    pub(crate) fn copy(&self, threads: u32, points: &mut Points) -> Result<usize> {
        let Points { r, v, .. } = points;
        let words = r.len();
        let vectors = words as u64 / 4;
        let call = self.copy.arguments().read(r).of_len(words).write(v).of_len(words);
        // SAFETY: both have 4 `vectors` words or more.
        unsafe { call.scalar(vectors).launch(LaunchShape::covering(vectors, threads))? };
        Ok(4 * vectors as usize)
    }
}
