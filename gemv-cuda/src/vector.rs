//! Elementwise steps on the device, and dot products among them.

use std::sync::{Arc, OnceLock};

use gemv_core::ndarray::{Dimension, Ix3};
use gemv_core::{
    Accumulator, Checked, Dtype, Element, Job, Memory, Result, Scalar, Step, VectorJob, Window,
    for_types,
};
use gemv_gpu::{
    Caps, ELEMENTWISE, Kernel, Launch, Plan, VECTOR, chain_launch, elementwise_launch,
    elementwise_params, elementwise_steps, vector_launch, vector_params,
};

use crate::driver::{ElementwiseArguments, Function, Gpu, Link, Operand, VectorArguments};
use crate::programs::Programs;
use crate::resident::resident;

/// Entry points of each element type once it is used: one program has them.
type Functions = [OnceLock<Vec<Arc<Function>>>; Dtype::ALL.len()];

/// The entry points of all steps.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Of the plain steps, and last that of several of them.
    plain: Functions,
    /// Of [`elementwise_steps`].
    elementwise: Functions,
}

impl Steps {
    fn plain(
        &self,
        gpu: &Gpu,
        caps: &Caps,
        programs: &Programs,
        dtype: Dtype,
    ) -> Result<&[Arc<Function>]> {
        let launches = || {
            let launches = Step::PLAIN.map(|step| vector_launch(step, [1, 1, 1], caps));
            launches.into_iter().chain([chain_launch(1, 0)]).collect()
        };
        of(&self.plain, (&VECTOR, vector_params(caps)), launches, (gpu, programs), dtype)
    }

    fn elementwise(
        &self,
        gpu: &Gpu,
        caps: &Caps,
        programs: &Programs,
        dtype: Dtype,
    ) -> Result<&[Arc<Function>]> {
        let launches = || {
            elementwise_steps(dtype).map(|step| elementwise_launch(step, [1; 3], caps)).collect()
        };
        let program = (&ELEMENTWISE, elementwise_params(caps));
        of(&self.elementwise, program, launches, (gpu, programs), dtype)
    }
}

fn of<'f>(
    functions: &'f Functions,
    (kernel, params): (&'static Kernel, gemv_core::Params),
    launches: impl FnOnce() -> Vec<Launch>,
    (gpu, programs): (&Gpu, &Programs),
    dtype: Dtype,
) -> Result<&'f [Arc<Function>]> {
    let known = &functions[dtype as usize];
    if let Some(all) = known.get() {
        return Ok(all);
    }
    let plan = Plan { launches: launches(), ..Plan::default() };
    let all = programs.functions(gpu, kernel, (dtype, dtype), &params, &plan)?;
    Ok(known.get_or_init(|| all))
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
    let plain = job.is_plain();
    let Window { memory, first, dim, strides } = job.y;
    let y = at::<T>(&Window { memory: &*memory, first, dim, strides }, gpu);
    let [x, z] = [job.x, job.z].map(|window| window.map(|window| at::<T>(&window, gpu)));
    let factors = [job.alpha, job.beta].map(|factor| {
        let places = factor.windows().map(|of| of.map(|of| at::<T>(&of, gpu)));
        match factor {
            Scalar::Number(number) => (places, number, false),
            Scalar::Device { negated, .. } | Scalar::Quotient { negated, .. } => {
                (places, T::Acc::ZERO, negated)
            }
        }
    });
    if !plain {
        let functions = steps.elementwise(gpu, caps, programs, T::DTYPE)?;
        let place = elementwise_steps(T::DTYPE).position(|step| step == job.step);
        let function = functions[place.expect("a step that is not plain")].clone();
        let x = x.or(job.step.takes_y().then_some(y));
        let _guard = gpu.enter()?;
        let planned = elementwise_launch(job.step, [ni, nj, nk], caps);
        let launch = gpu.launch_of(function, &planned)?;
        return gpu.launch_elementwise(&launch, &ElementwiseArguments::<T> { x, y, factors });
    }
    let link = Link::Step(job.step);
    let planned = vector_launch(job.step, [ni, nj, nk], caps);
    let functions = steps.plain(gpu, caps, programs, T::DTYPE)?;
    let [(places, alpha, negate), _] = factors;
    let [s, t] = places.map(|of| of.map(|of| Operand { dim: [1; 3], strides: [0; 3], ..of }));
    let arguments = VectorArguments::<T> { x, z, y, s, t, alpha, negate };
    let _guard = gpu.enter()?;
    if gpu.join(&functions[Step::PLAIN.len()], link, &arguments)? {
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
    let Some(functions) = steps.plain[dtype as usize].get() else { return Ok(false) };
    if !plain || job.a.dtype() != dtype || [batch, m, rhs] != [1, 1, 1] || n == 0 {
        return Ok(false);
    }
    let function = &functions[Step::PLAIN.len()];
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
