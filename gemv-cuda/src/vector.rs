//! Elementwise steps on the device.

use std::sync::{Arc, OnceLock};

use gemv_core::ndarray::{Dimension, Ix0, Ix3};
use gemv_core::{Accumulator, Dtype, Element, Memory, Result, Scalar, Step, VectorJob, Window};
use gemv_gpu::{Caps, Plan, VECTOR, vector_launch, vector_params};

use crate::driver::{Batched, Function, Gpu, VectorArguments};
use crate::programs::Programs;
use crate::resident::resident;

/// The entry points of all steps, of each element type once it is used: one program has them.
#[derive(Debug, Default)]
pub(crate) struct Steps([OnceLock<Vec<Arc<Function>>>; Dtype::ALL.len()]);

impl Steps {
    fn function(
        &self,
        gpu: &Gpu,
        caps: &Caps,
        programs: &Programs,
        dtype: Dtype,
        step: Step,
    ) -> Result<&Arc<Function>> {
        let known = &self.0[dtype as usize];
        let all = match known.get() {
            Some(all) => all,
            None => {
                let launches = Step::ALL.map(|step| vector_launch(step, [1, 1, 1], caps)).into();
                let plan = Plan { launches, ..Plan::default() };
                let (types, params) = ((dtype, dtype), vector_params(caps));
                let all = programs.functions(gpu, &VECTOR, types, &params, &plan)?;
                known.get_or_init(|| all)
            }
        };
        let place = Step::ALL.iter().position(|of| *of == step);
        Ok(&all[place.expect("one of all steps")])
    }
}

/// Queues one step, which is not waited for.
///
/// # Panics
/// If an operand does not lie in its block.
pub(crate) fn step<T: Element>(
    gpu: &Arc<Gpu>,
    caps: &Caps,
    (programs, steps): (&Programs, &Steps),
    job: VectorJob<'_, T>,
) -> Result<()> {
    let (ni, nj, nk) = job.y.dim.into_pattern();
    let planned = vector_launch(job.step, [ni, nj, nk], caps);
    let function = steps.function(gpu, caps, programs, T::DTYPE, job.step)?;
    let launch = gpu.launch_of(function.clone(), &planned)?;

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
