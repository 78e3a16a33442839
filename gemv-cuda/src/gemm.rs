//! Several right-hand sides and batches on the device: operands brought there once, launches queued,
//! Y brought back.

use std::sync::{Arc, Mutex};

use gemv_core::ndarray::{Dimension, Ix3};
use gemv_core::{
    Accumulator, Checked, Element, GemmJob, Input, Memory, Output, Result, Times, Window, packed,
    span,
};
use gemv_gpu::{Signature, assert_layout};

use crate::driver::{Arguments, Batched, GemmArguments, Gpu};
use crate::lock::lock;
use crate::resident::resident;
use crate::run::{Choice, KEPT, Scratch};

/// Computes one job. A host Y is written at the very end. A resident one is written by the launches,
/// which are queued and not waited for.
///
/// # Panics
/// If the choice is for another problem or another GPU, or an operand is another GPU's or of another type.
pub(crate) fn gemm<T: Element + Times<V>, V: Element>(
    gpu: &Arc<Gpu>,
    scratch: &Mutex<Scratch>,
    job: Checked<GemmJob<'_, T, V>>,
    choice: &Choice,
) -> Result<()> {
    let (of_gpu, desc) = match choice {
        Choice::Kernels(of) => (Arc::ptr_eq(&of.gpu, gpu), of.desc),
        Choice::Cublas(cublas, desc) => (cublas.is_of(gpu), *desc),
        Choice::Cyclic(..) => panic!("sums of a process are of one vector"),
    };
    assert!(of_gpu, "a choice of another GPU");
    assert_eq!(desc, job.desc(), "a choice for another problem");
    if job.y.raw_dim().slice().contains(&0) {
        return Ok(());
    }
    let _guard = gpu.enter()?;
    let mut scratch = lock(scratch);
    let done = queue(gpu, &mut scratch, job, choice);
    if done.is_err() && !gpu.recording() {
        // As after a product of one column: counters may be left that are not 0.
        scratch.counters.reset(gpu);
    }
    done
}

fn queue<T: Element + Times<V>, V: Element>(
    gpu: &Arc<Gpu>,
    scratch: &mut Scratch,
    job: Checked<GemmJob<'_, T, V>>,
    choice: &Choice,
) -> Result<()> {
    let Scratch { staging, a: a_block, x: x_block, y: y_block, workspace, counters } = scratch;
    let needs = match choice {
        Choice::Kernels(of) => (of.workspace, of.counters),
        Choice::Cublas(..) => (0, 0),
        Choice::Cyclic(..) => unreachable!("sums of a process are of one vector"),
    };
    let (workspace, _) = workspace.of(needs.0, gpu)?;
    let (counters, new) = counters.of(needs.1, gpu)?;
    if new {
        gpu.clear(counters)?;
    }
    let GemmJob { alpha, a, conj, x, beta, y } = job.into_inner();
    let (batch, m, n) = a.raw_dim().into_pattern();
    let rhs = x.raw_dim()[2];
    let (a_dim, x_dim) = ([batch, m, n], [batch, n, rhs]);
    // With alpha = 0 the kernel reads neither A nor X.
    let used = alpha != V::Acc::ZERO;

    let own;
    let a = match &a {
        Input::Device(a) => at::<T>(a, gpu),
        Input::Host(a) => {
            let span = span(a)?;
            let strides = [0, 1, 2].map(|axis| span.stride(axis));
            let (data, first) = (span.data, span.first);
            let size = size_of_val(&*data);
            let block = if size <= KEPT {
                a_block.of(size, gpu)?.0
            } else {
                own = gpu.alloc(size)?;
                &own
            };
            if used {
                staging.send(&data, block)?;
            }
            Batched { block, first, dim: a_dim, strides }
        }
    };
    if let Choice::Kernels(of) = choice {
        assert_layout(of.desc.layout, a_dim, a.strides);
    }
    let x = match &x {
        Input::Device(x) => at::<V>(x, gpu),
        Input::Host(x) => {
            let span = span(x)?;
            let strides = [0, 1, 2].map(|axis| span.stride(axis));
            let (data, first) = (span.data, span.first);
            let (block, _) = x_block.of(size_of_val(&*data), gpu)?;
            if used {
                staging.send(&data, block)?;
            }
            Batched { block, first, dim: x_dim, strides }
        }
    };
    let launch = |y: Batched<'_>| -> Result<()> {
        let element = size_of::<T>();
        let one = |b: usize, c: usize| Arguments::<V> {
            element,
            m,
            n,
            a: a.entry(b, 0, n),
            x: x.entry(b, c, 1),
            y: y.entry(b, c, 1),
            alpha,
            beta,
            conj,
            workspace,
            counters,
        };
        let mut each = (0..batch).flat_map(|b| (0..rhs).map(move |c| (b, c)));
        let all = GemmArguments::<V> { element, a, x, y, alpha, beta, conj, workspace, counters };
        match choice {
            Choice::Cyclic(..) => unreachable!("refused above"),
            Choice::Cublas(cublas, _) => cublas.gemm(&all),
            Choice::Kernels(of) => match of.signature {
                Signature::Gemm => {
                    of.launches.iter().try_for_each(|launch| gpu.launch_gemm(launch, &all, needs))
                }
                Signature::Gemv => each.try_for_each(|(b, c)| {
                    let one = one(b, c);
                    of.launches.iter().try_for_each(|launch| gpu.launch(launch, &one, needs))
                }),
            },
        }
    };

    match y {
        Output::Device(y) => {
            let Window { memory, first, dim, strides } = y;
            launch(at::<V>(&Window { memory: &*memory, first, dim, strides }, gpu))
        }
        Output::Host(mut y) => {
            let (block, _) = y_block.of(gpu.size_of(y.len() as u64, size_of::<V>())?, gpu)?;
            if beta != V::Acc::ZERO {
                match y.as_slice() {
                    Some(old) => staging.send(old, block)?,
                    None => staging.send(&packed(&y.view())?, block)?,
                }
            }
            let strides = [(m * rhs) as isize, rhs as isize, 1];
            launch(Batched { block, first: 0, dim: [batch, m, rhs], strides })?;
            match y.as_slice_mut() {
                Some(y) => staging.fetch(block, 0, y),
                None => staging.receive(block, y.len(), |new: &[V]| {
                    y.iter_mut().zip(new).for_each(|(y, new)| *y = *new);
                }),
            }
        }
    }
}

/// A resident operand.
fn at<'a, T: Element>(window: &Window<&'a dyn Memory, Ix3>, gpu: &Arc<Gpu>) -> Batched<'a> {
    let (batch, rows, columns) = window.dim.into_pattern();
    Batched {
        block: &resident(window.memory, gpu, T::DTYPE).block,
        first: window.first,
        dim: [batch, rows, columns],
        strides: [0, 1, 2].map(|axis| window.stride(axis)),
    }
}
