//! Elementwise steps on the device, and dot products among them.

use std::sync::{Arc, OnceLock};

use gemv_core::ndarray::{Dimension, Ix0, Ix3};
use gemv_core::{
    Accumulator, Checked, Dtype, Element, Job, Memory, Result, Scalar, Step, VectorJob, Window,
    for_types,
};
use gemv_gpu::{Caps, Plan, VECTOR, chain_launch, vector_launch, vector_params};

use crate::driver::{Function, Gpu, Link, Operand, VectorArguments};
use crate::programs::Programs;
use crate::resident::resident;

/// The entry points of all steps, and last that of several of them, of each element type once it is used:
/// one program has them.
#[derive(Debug, Default)]
pub(crate) struct Steps([OnceLock<Vec<Arc<Function>>>; Dtype::ALL.len()]);

impl Steps {
    fn functions(
        &self,
        gpu: &Gpu,
        caps: &Caps,
        programs: &Programs,
        dtype: Dtype,
    ) -> Result<&[Arc<Function>]> {
        let known = &self.0[dtype as usize];
        if let Some(all) = known.get() {
            return Ok(all);
        }
        let launches = Step::ALL.map(|step| vector_launch(step, [1, 1, 1], caps));
        let launches = launches.into_iter().chain([chain_launch(1, 0)]).collect();
        let plan = Plan { launches, ..Plan::default() };
        let (types, params) = ((dtype, dtype), vector_params(caps));
        let all = programs.functions(gpu, &VECTOR, types, &params, &plan)?;
        Ok(known.get_or_init(|| all))
    }
}

/// Queues one step, which is not waited for.
///
/// # Panics
/// If an operand is another GPU's, or of another type.
pub(crate) fn step<T: Element>(
    gpu: &Arc<Gpu>,
    caps: &Caps,
    (programs, steps): (&Programs, &Steps),
    job: Checked<VectorJob<'_, T>>,
) -> Result<()> {
    let job = job.into_inner();
    let (ni, nj, nk) = job.y.dim.into_pattern();
    if [ni, nj, nk].contains(&0) {
        return Ok(());
    }
    let link = Link::Step(job.step);
    let planned = vector_launch(job.step, [ni, nj, nk], caps);
    let functions = steps.functions(gpu, caps, programs, T::DTYPE)?;

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
    if gpu.join(&functions[Step::ALL.len()], link, &arguments)? {
        return Ok(());
    }
    let launch = gpu.launch_of(functions[link.code() as usize].clone(), &planned)?;
    gpu.launch_vector(&launch, &arguments)
}

/// Whether a product is a dot product that joins the steps before it; see [`Gpu::join`]. If it is not,
/// nothing was done.
pub(crate) fn joins(gpu: &Arc<Gpu>, steps: &Steps, job: &Checked<Job<'_>>) -> Result<bool> {
    if !gpu.recording() {
        return Ok(false);
    }
    // Another thread may be the one that records: this one waits for it.
    let _guard = gpu.enter()?;
    let (dtype, [batch, m, n], rhs) = (job.x.dtype(), job.a.dim(), job.x.dim()[2]);
    let (Some(a), Some(x), Some(y)) = (job.a.window(), job.x.window(), job.y.window()) else {
        return Ok(false);
    };
    let plain = job.alpha.is_one() && job.beta.is_zero();
    // A step of this type has run, or else there is no program, and none to be had now.
    let Some(functions) = steps.0[dtype as usize].get() else { return Ok(false) };
    if !plain || job.a.dtype() != dtype || [batch, m, rhs] != [1, 1, 1] || n == 0 {
        return Ok(false);
    }
    let function = &functions[Step::ALL.len()];
    for_types!((dtype, dtype), T, _V => {
        let line = |memory, first, len, stride: isize| {
            let (dim, strides) = (Ix3(1, 1, len), Ix3(0, 0, stride as usize));
            at::<T>(&Window { memory, first, dim, strides }, gpu)
        };
        let arguments = VectorArguments::<T> {
            x: Some(line(a.memory, a.first, n, a.stride(2))),
            z: Some(line(x.memory, x.first, n, x.stride(1))),
            y: line(y.memory, y.first, 1, 0),
            s: None,
            t: None,
            alpha: Accumulator::ZERO,
            negate: false,
        };
        gpu.join(function, Link::Dot { conj: job.conj }, &arguments)
    })
}

fn at<'a, T: Element>(window: &Window<&'a dyn Memory, Ix3>, gpu: &Arc<Gpu>) -> Operand<'a> {
    Operand {
        block: &resident(window.memory, gpu, T::DTYPE).block,
        first: window.first,
        dim: window.dim.into_pattern().into(),
        strides: [0, 1, 2].map(|axis| window.stride(axis)),
    }
}

fn number<'a, T: Element>(window: Window<&'a dyn Memory, Ix0>, gpu: &Arc<Gpu>) -> Operand<'a> {
    let Window { memory, first, .. } = window;
    at::<T>(&Window { memory, first, dim: Ix3(1, 1, 1), strides: Ix3(0, 0, 0) }, gpu)
}
