//! Elementwise steps on the device.

use std::sync::Arc;

use gemv_core::ndarray::{Dimension, Ix0, Ix3};
use gemv_core::{Accumulator, Element, Memory, Result, Scalar, VectorJob, Window};
use gemv_gpu::{Caps, Plan, VECTOR, vector_launch, vector_params};

use crate::driver::{Batched, Gpu, VectorArguments};
use crate::programs::Programs;
use crate::resident::resident;

/// Queues one step, which is not waited for.
///
/// # Panics
/// If an operand does not lie in its block.
pub(crate) fn step<T: Element>(
    gpu: &Arc<Gpu>,
    caps: &Caps,
    programs: &Programs,
    job: VectorJob<'_, T>,
) -> Result<()> {
    let (ni, nj, nk) = job.y.dim.into_pattern();
    let planned = vector_launch(job.step, [ni, nj, nk], caps);
    let plan = Plan { launches: vec![planned], ..Plan::default() };
    let params = vector_params(caps);
    let functions = programs.functions(gpu, &VECTOR, T::DTYPE, &params, &plan)?;
    let function = functions.into_iter().next().expect("one launch");
    let launch = gpu.launch_of(function, &planned)?;

    let Window { memory, first, dim, strides } = job.y;
    let y = at::<T>(&Window { memory: &*memory, first, dim, strides }, gpu);
    let [x, z] = [job.x, job.z].map(|window| window.map(|window| at::<T>(&window, gpu)));
    let (s, t, value, negate) = match job.alpha {
        Scalar::Number(value) => (None, None, value, false),
        Scalar::Device { of, negated } => (Some(number::<T>(of, gpu)), None, T::Acc::ZERO, negated),
        Scalar::Quotient { of, by, negated } => {
            (Some(number::<T>(of, gpu)), Some(number::<T>(by, gpu)), T::Acc::ZERO, negated)
        }
    };
    let arguments = VectorArguments::<T> { x, z, y, s, t, alpha: value, negate };
    let _guard = gpu.enter()?;
    gpu.launch_vector(&launch, &arguments)
}

fn at<'a, T: Element>(window: &Window<&'a dyn Memory, Ix3>, gpu: &Arc<Gpu>) -> Batched<'a> {
    Batched {
        block: &resident(window.memory, gpu, T::DTYPE).block,
        first: window.first,
        dim: window.dim.into_pattern().into(),
        strides: [0, 1, 2].map(|axis| window.stride(axis)),
    }
}

fn number<'a, T: Element>(window: Window<&'a dyn Memory, Ix0>, gpu: &Arc<Gpu>) -> Batched<'a> {
    let Window { memory, first, .. } = window;
    at::<T>(&Window { memory, first, dim: Ix3(1, 1, 1), strides: Ix3(0, 0, 0) }, gpu)
}
