//! Elementwise steps.

use gemv_core::ndarray::{Dimension, Ix0, Ix3};
use gemv_core::{Accumulator, Checked, Element, Memory, Number, Result, Scalar, VectorJob, Window};
use gemv_gpu::{VECTOR, vector_launch, vector_params};

use crate::cl::Args;
use crate::discover::Found;
use crate::memory::State;
use crate::run::{resident, unread};

/// Enqueues one step. It may still be in flight on return.
///
/// # Panics
/// If an operand is another device's, or of another type.
pub(crate) fn step<T: Element>(
    found: &Found,
    state: &mut State,
    job: Checked<VectorJob<'_, T>>,
) -> Result<()> {
    found.usable(&state.refused)?;
    let job = job.into_inner();
    let (ni, nj, nk) = job.y.dim.into_pattern();
    if [ni, nj, nk].contains(&0) {
        return Ok(());
    }
    let launch = vector_launch(job.step, [ni, nj, nk], &found.caps);
    let State { queue, programs, .. } = &mut *state;
    let of = (&vector_params(&found.caps), (T::DTYPE, T::DTYPE));
    let names = std::iter::once(launch.entry);
    let entry = programs.entries(queue, &found.info.id, &VECTOR, of, names)?[0];
    programs.keep(queue, &[entry]);

    let lies = |memory: &dyn Memory, first, strides: Ix3| {
        let strides = [0, 1, 2].map(|axis| strides[axis] as isize);
        resident(&state.queue, T::DTYPE, memory, first, strides)
    };
    let read = |window: &Option<Window<&dyn Memory, Ix3>>| match window {
        Some(window) => lies(window.memory, window.first, window.strides),
        None => unread(state),
    };
    let number = |of: Window<&dyn Memory, Ix0>| lies(of.memory, of.first, Ix3(0, 0, 0));
    let (x, z) = (read(&job.x), read(&job.z));
    let y = lies(&*job.y.memory, job.y.first, job.y.strides);
    let (s, t, value, of, negate) = match job.alpha {
        Scalar::Number(value) => (unread(state), unread(state), value, 0u32, false),
        Scalar::Device { of, negated } => (number(of), unread(state), T::Acc::ZERO, 1, negated),
        Scalar::Quotient { of, by, negated } => (number(of), number(by), T::Acc::ZERO, 2, negated),
    };

    let kernel = state.programs.get(entry);
    let mut args = Args::of(kernel).unsigned(ni).unsigned(nj).unsigned(nk);
    for operand in [&x, &z, &y] {
        args = args.mem(operand.mem()).unsigned(operand.first);
        args = operand.strides.iter().fold(args, |args, &stride| args.signed(stride));
    }
    for number in [&s, &t] {
        args = args.mem(number.mem()).unsigned(number.first);
    }
    args.factor(Number::new(value), T::DTYPE)
        .word(of)
        .flag(negate)
        .done()
        .and_then(|()| state.queue.launch(kernel, &launch))
        .and_then(|()| state.queue.flush())
        .map_err(|e| found.failed(e, 0))
}
