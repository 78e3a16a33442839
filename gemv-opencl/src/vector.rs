//! Elementwise steps.

use gemv_core::ndarray::{Dimension, Ix3};
use gemv_core::{Accumulator, Checked, Element, Memory, Number, Result, Scalar, VectorJob, Window};
use gemv_gpu::{
    ELEMENTWISE, VECTOR, elementwise_launch, elementwise_params, vector_launch, vector_params,
};

use crate::cl::Args;
use crate::first_use::Of;
use crate::memory::lock;
use crate::run::{Operand, resident, unread};

/// Enqueues one step. It may still be in flight on return.
///
/// # Panics
/// If an operand is another device's, or of another type.
pub(crate) fn step<T: Element>(
    Of { found, programs, shared }: Of<'_>,
    job: Checked<VectorJob<'_, T>>,
) -> Result<()> {
    programs.usable()?;
    let job = job.into_inner();
    let (ni, nj, nk) = job.y.dim.into_pattern();
    if [ni, nj, nk].contains(&0) {
        return Ok(());
    }
    let (plain, shape) = (job.is_plain(), [ni, nj, nk]);
    let (kernel, params, launch) = match plain {
        true => (&VECTOR, vector_params(&found.caps), vector_launch(job.step, shape, &found.caps)),
        false => {
            let launch = elementwise_launch(job.step, shape, &found.caps);
            (&ELEMENTWISE, elementwise_params(&found.caps), launch)
        }
    };
    let entry = programs.entries(kernel, (&params, (T::DTYPE, T::DTYPE)), &[launch.entry])?;
    programs.keep(&entry);
    let state = &*lock(shared);

    let lies = |memory: &dyn Memory, first, strides: Ix3| {
        let strides = [0, 1, 2].map(|axis| strides[axis] as isize);
        resident(&state.queue, T::DTYPE, memory, first, strides)
    };
    let read = |window: Option<Window<&dyn Memory, Ix3>>| match window {
        Some(window) => lies(window.memory, window.first, window.strides),
        None => unread(state),
    };
    let y = lies(&*job.y.memory, job.y.first, job.y.strides);
    let kernel = &*entry[0].kernel();
    let args = shape.iter().fold(Args::of(kernel), |args, &count| args.unsigned(count));
    let args = if plain {
        let args = [&read(job.x), &read(job.z), &y].into_iter().fold(args, operand);
        let Given { places, number, of, negated } = Given::new(&job.alpha);
        let args = places
            .map(read)
            .iter()
            .fold(args, |args, place| args.mem(place.mem()).unsigned(place.first));
        args.factor(Number::new(number), T::DTYPE).word(of).flag(negated)
    } else {
        let x = match job.x {
            None if job.step.takes_y() => lies(&*job.y.memory, job.y.first, job.y.strides),
            x => read(x),
        };
        let args = [&x, &y].into_iter().fold(args, operand);
        let given = [Given::new(&job.alpha), Given::new(&job.beta)];
        let args = given.iter().fold(args, |args, given| {
            let args = given.places.map(read).iter().fold(args, operand);
            args.factor(Number::new(given.number), T::DTYPE)
        });
        let [alpha, beta] = given.map(|given| given.of | u32::from(given.negated) << 2);
        args.word(alpha | beta << 4)
    };
    args.done()
        .and_then(|()| state.queue.launch(kernel, &launch))
        .and_then(|()| state.queue.flush())
        .map_err(|e| found.failed(e, 0))
}

/// Adds an operand to the arguments.
fn operand<'k>(args: Args<'k>, operand: &Operand<'_>) -> Args<'k> {
    let args = args.mem(operand.mem()).unsigned(operand.first);
    operand.strides.iter().fold(args, |args, &stride| args.signed(stride))
}

/// A factor as the kernels have it: where its numbers are, and how many of them, or a number.
struct Given<'a, T: Element> {
    places: [Option<Window<&'a dyn Memory, Ix3>>; 2],
    number: T::Acc,
    of: u32,
    negated: bool,
}

impl<'a, T: Element> Given<'a, T> {
    fn new(factor: &Scalar<'a, T>) -> Self {
        let places = factor.windows();
        let (number, negated) = match *factor {
            Scalar::Number(number) => (number, false),
            Scalar::Device { negated, .. } | Scalar::Quotient { negated, .. } => {
                (T::Acc::ZERO, negated)
            }
        };
        Given { places, number, of: places.iter().flatten().count() as u32, negated }
    }
}
