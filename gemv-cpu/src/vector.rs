//! Elementwise steps: lines shared by the threads of rayon's pool.

use gemv_core::float_mode::{in_default, outside};
use gemv_core::ndarray::Ix3;
use gemv_core::{Memory, Step, VectorJob, Window};
use rayon::prelude::*;

use crate::simd::{CpuElement, Isa, Line, Lines};

/// Bytes of y that are worth a task of their own.
const TASK: usize = 128 << 10;

/// Computes one step; `read` are the elements of a block, `block` those of y's.
pub(crate) fn run<'a, T: CpuElement>(
    isa: Isa,
    job: &VectorJob<'a, T, ()>,
    read: impl Fn(&'a dyn Memory) -> &'a [T],
    block: &mut [T],
) {
    let (step, y) = (job.step, &job.y);
    let alpha = job.alpha.value(|memory, at| read(memory)[at]);
    let [n0, n1, len] = [0, 1, 2].map(|axis| y.dim[axis]);
    for (i, j) in (0..n0).flat_map(|i| (0..n1).map(move |j| (i, j))) {
        let line = |window: &Window<&'a dyn Memory, Ix3>| {
            let first = window.place([i, j, 0]);
            Line { all: read(window.memory), first, stride: window.stride(2) }
        };
        let (x, z) = (job.x.as_ref().map(line), job.z.as_ref().map(line));
        let first = y.place([i, j, 0]);
        if y.stride(2) != 1 || len * size_of::<T>() < 2 * TASK {
            Lines { step, alpha, x, z }.strided(isa, block, first, y.stride(2), len);
            continue;
        }
        share(isa, (step, alpha), x, z, &mut block[first..][..len]);
    }
}

/// Cuts a line of neighbours in y into tasks.
fn share<T: CpuElement>(
    isa: Isa,
    (step, alpha): (Step, T::Acc),
    x: Option<Line<'_, T>>,
    z: Option<Line<'_, T>>,
    y: &mut [T],
) {
    let task = TASK / size_of::<T>();
    let run = |(k, y): (usize, &mut [T])| {
        let [x, z] = [x, z].map(|line| line.map(|line| line.from(k * task)));
        in_default(|| Lines { step, alpha, x, z }.strided(isa, y, 0, 1, y.len()));
    };
    outside(|| y.par_chunks_mut(task).enumerate().for_each(run));
}
