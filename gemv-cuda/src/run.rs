//! One product on the device: operands brought there, launches derived and queued, y brought back.

use std::sync::Arc;

use gemv_core::{
    Accumulator, Element, Error, Job, MatrixRef, Params, Result, Span, VectorMut, VectorRef, span,
};
use gemv_gpu::Plan;

use crate::backend::{CUBLAS, Cuda, lock, resident};
use crate::driver::{Arguments, Block, Cublas, Function, Gpu, Operand, Staging};

/// Memory that is used again from call to call.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) staging: Staging,
    a: Reused,
    x: Reused,
    y: Reused,
    work: Reused,
    counters: Reused,
}

/// A block that grows on demand.
#[derive(Debug, Default)]
struct Reused(Option<Block>);

/// A matrix of more than this is given a block of its own for one call: to keep gigabytes for a
/// next call that may never come would be dear.
const KEPT: usize = 64 << 20;

impl Scratch {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Scratch {
        let (a, x, y, work, counters) = Default::default();
        Scratch { staging: Staging::new(gpu), a, x, y, work, counters }
    }
}

impl Reused {
    /// The block, with at least this many bytes; true if it is new.
    fn of(&mut self, bytes: usize, gpu: &Arc<Gpu>) -> Result<(&Block, bool)> {
        let new = self.0.as_ref().is_none_or(|b| b.bytes() < bytes);
        if new {
            // The old one goes first: both together may be too much. While the stream records, neither can be
            // given back nor had.
            gpu.refuse_while_recording("cuMemAlloc")?;
            self.0 = None;
            self.0 = Some(gpu.alloc(bytes.next_power_of_two().min(bytes.saturating_add(KEPT)))?);
        }
        Ok((self.0.as_ref().expect("just made"), new))
    }
}

impl Cuda {
    /// Computes one product. A host y is written at the very end; a resident one by the launch,
    /// which is queued and not waited for.
    pub(crate) fn run<T: Element>(&self, job: Job<'_, T>, params: &Params) -> Result<()> {
        let desc = job.desc();
        if params.kernel().as_str() == CUBLAS {
            let cublas = self.cublas(&desc, params)?;
            let _turn = self.gpu.enter()?;
            return queue(&self.gpu, &mut lock(&self.scratch), job, &Work::Cublas(cublas));
        }
        let kernel = self.kernel(&desc, params)?;
        let plan = (kernel.plan)(&desc, params, self.caps());
        let entries = plan.launches.iter().map(|l| l.entry);
        let functions = self.functions(kernel, T::DTYPE, params, entries)?;

        let _turn = self.gpu.enter()?;
        let mut scratch = lock(&self.scratch);
        let done = queue(&self.gpu, &mut scratch, job, &Work::Kernels(&plan, &functions));
        if done.is_err() && !self.gpu.recording() {
            // A launch that did not come may have left counters behind that are not 0. (What is recorded has
            // not run.)
            scratch.counters.0 = None;
        }
        done
    }
}

/// What computes a product whose operands are in place.
enum Work<'a> {
    /// Our launches, each with its entry point.
    Kernels(&'a Plan, &'a [Arc<Function>]),
    Cublas(&'a Cublas),
}

fn queue<T: Element>(
    gpu: &Arc<Gpu>,
    scratch: &mut Scratch,
    job: Job<'_, T>,
    by: &Work<'_>,
) -> Result<()> {
    let Scratch { staging, a: a_block, x: x_block, y: y_block, work, counters } = scratch;
    let bytes = |count: u64, size: usize| {
        let bytes = usize::try_from(count).ok().and_then(|c| c.checked_mul(size));
        bytes.ok_or_else(|| Error::OutOfMemory {
            device: gpu.id().into(),
            asked: u64::MAX,
            free: None,
        })
    };
    let needs = match by {
        Work::Kernels(plan, _) => (plan.workspace, plan.counters),
        Work::Cublas(_) => (0, 0),
    };
    let (work, _) = work.of(bytes(needs.0, T::DTYPE.acc_bytes())?, gpu)?;
    let (counters, new) = counters.of(bytes(needs.1, size_of::<u32>())?, gpu)?;
    if new {
        gpu.clear(counters)?;
    }
    let Job { alpha, a, conj, x, beta, y } = job;
    let (m, n) = a.dim();
    // With alpha = 0 the kernel reads neither A nor x.
    let used = alpha != T::Acc::ZERO;

    let own;
    let a = match &a {
        MatrixRef::Device(a) => Operand {
            block: &resident(a.memory(), gpu, T::DTYPE).block,
            first: a.first(),
            dim: (m, n),
            strides: a.strides(),
        },
        MatrixRef::Host(a) => {
            let s: Span<'_, T, 2> = span(a);
            let size = size_of_val(&*s.data);
            let block = if size <= KEPT {
                a_block.of(size, gpu)?.0
            } else {
                own = gpu.alloc(size)?;
                &own
            };
            if used {
                staging.send(&s.data, block)?;
            }
            Operand { block, first: s.first, dim: (m, n), strides: s.strides.into() }
        }
    };
    let x = match &x {
        VectorRef::Device(x) => Operand {
            block: &resident(x.memory(), gpu, T::DTYPE).block,
            first: x.first(),
            dim: (n, 1),
            strides: (x.stride(), 0),
        },
        VectorRef::Host(x) => {
            let s: Span<'_, T, 1> = span(x);
            let (block, _) = x_block.of(size_of_val(&*s.data), gpu)?;
            if used {
                staging.send(&s.data, block)?;
            }
            Operand { block, first: s.first, dim: (n, 1), strides: (s.strides[0], 0) }
        }
    };
    let launch = |y: Operand<'_>| -> Result<()> {
        let arguments = Arguments::<T> { m, n, a, x, y, alpha, beta, conj, work, counters };
        match by {
            Work::Cublas(cublas) => cublas.gemv(&arguments),
            Work::Kernels(plan, functions) => functions
                .iter()
                .zip(&plan.launches)
                .try_for_each(|(function, launch)| gpu.launch(function, launch, &arguments, needs)),
        }
    };

    match y {
        VectorMut::Device(y) => launch(Operand {
            block: &resident(y.memory(), gpu, T::DTYPE).block,
            first: y.first(),
            dim: (m, 1),
            strides: (y.stride(), 0),
        }),
        VectorMut::Host(mut y) => {
            let (block, _) = y_block.of(bytes(m as u64, size_of::<T>())?, gpu)?;
            if beta != T::Acc::ZERO {
                match y.as_slice() {
                    Some(old) => staging.send(old, block)?,
                    None => staging.send(&y.iter().copied().collect::<Vec<T>>(), block)?,
                }
            }
            launch(Operand { block, first: 0, dim: (m, 1), strides: (1, 0) })?;
            staging.receive(block, m, |new: &[T]| {
                y.iter_mut().zip(new).for_each(|(y, new)| *y = *new);
            })
        }
    }
}
