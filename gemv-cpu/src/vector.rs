//! Elementwise steps: lines shared by several threads.

use gemv_core::ndarray::Ix3;
use gemv_core::{Memory, Step, VectorJob, Window};

use crate::run::{Work, sharing};
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
    let tasks = gemv_threads::count().min(y.len() / task);
    sharing(Entries { isa, step, alpha, x, z, y }, tasks, task);
}

/// Entries at whose multiples a line is cut, so that vectors begin where those of the whole line do.
const UNIT: usize = 64;

/// Neighbours in y, and what they are computed from.
struct Entries<'a, T: CpuElement> {
    isa: Isa,
    step: Step,
    alpha: T::Acc,
    x: Option<Line<'a, T>>,
    z: Option<Line<'a, T>>,
    y: &'a mut [T],
}

impl<T: CpuElement> Work for Entries<'_, T> {
    fn len(&self) -> usize {
        self.y.len()
    }

    fn cut(self, at: usize) -> (Self, Self) {
        let Entries { x, z, .. } = self;
        let at = at.next_multiple_of(UNIT).min(self.y.len());
        let (y, rest) = self.y.split_at_mut(at);
        let [after_x, after_z] = [x, z].map(|line| line.map(|line| line.from(at)));
        (Entries { y, ..self }, Entries { x: after_x, z: after_z, y: rest, ..self })
    }

    fn run(&mut self) {
        let Entries { isa, step, alpha, x, z, .. } = *self;
        Lines { step, alpha, x, z }.strided(isa, self.y, 0, 1, self.y.len());
    }
}
