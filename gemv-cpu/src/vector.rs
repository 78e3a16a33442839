//! Elementwise steps: lines shared by several threads.

use gemv_core::ndarray::{ArrayView1, ArrayViewMut1, Ix3};
use gemv_core::{Any, Element, Family, Memory, Step, VectorJob, Window};

use crate::run::{Work, sharing};
use crate::simd::{CpuElement, Isa, Line, Lines, on_host};

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

/// One elementwise step of vectors that lie in the host's memory, for [`Cpu::step`](crate::Cpu::step).
#[derive(Debug)]
pub struct HostStep<'a, T: Element> {
    /// What is computed; see [`Step`].
    pub step: Step,
    /// The factor; steps without one ignore it.
    pub alpha: T::Acc,
    /// The first operand, of a step that reads one or two.
    pub x: Option<ArrayView1<'a, T>>,
    /// The second operand, of a step that reads two.
    pub z: Option<ArrayView1<'a, T>>,
    /// What is written.
    pub y: ArrayViewMut1<'a, T>,
}

/// A [`HostStep`] of each element type.
pub(crate) enum HostSteps {}

impl Family for HostSteps {
    type Of<'a, T: Element> = HostStep<'a, T>;
}

pub(crate) type AnyHostStep<'a> = Any<'a, HostSteps>;

impl<T: Element> HostStep<'_, T> {
    /// Why it is no step: an operand is missing or has another length.
    pub(crate) fn wrong(&self) -> Option<(&'static str, String)> {
        let Self { step, x, z, y, .. } = self;
        for (name, of, least) in [("x", x, 1), ("z", z, 2)] {
            match of {
                None if step.operands() >= least => {
                    return Some((name, format!("is missing: {step:?} reads it")));
                }
                Some(of) if of.len() != y.len() => {
                    return Some((name, format!("has {} entries, and y {}", of.len(), y.len())));
                }
                _ => {}
            }
        }
        None
    }
}

/// Computes one step on the host.
pub(crate) fn run_on_host<'a, T: CpuElement>(isa: Isa, of: HostStep<'a, T>) {
    let HostStep { step, alpha, x, z, mut y } = of;
    if y.len() * size_of::<T>() >= 2 * TASK
        && let Some(y) = y.as_slice_mut()
    {
        let slice = |of: &Option<ArrayView1<'a, T>>| of.as_ref().map(|of| of.to_slice());
        let line = |all| Line { all, first: 0, stride: 1 };
        let (x, z) = (slice(&x), slice(&z));
        if x != Some(None) && z != Some(None) {
            return share(isa, (step, alpha), x.flatten().map(line), z.flatten().map(line), y);
        }
    }
    on_host(isa, (step, alpha), x, z, y);
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
