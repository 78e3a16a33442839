//! One product on the device: operands brought there, launches queued, y brought back.

use std::sync::{Arc, Mutex};

use gemv_core::order::SEGMENT;
use gemv_core::{
    Accumulator, Checked, Desc, Element, Input, Job, Output, Result, Times, packed, span,
};

use gemv_gpu::Signature;

use crate::driver::{Arguments, Block, Cublas, Gpu, Launch, Operand, Staging};
use crate::lock::lock;
use crate::resident::resident;

/// Memory that is used again from call to call.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) staging: Arc<Staging>,
    pub(crate) a: Reused,
    pub(crate) x: Reused,
    pub(crate) y: Reused,
    pub(crate) workspace: Reused,
    pub(crate) counters: Reused,
}

/// A block that grows on demand.
#[derive(Debug, Default)]
pub(crate) struct Reused(Option<Block>);

/// A host matrix of more bytes than this has a block of its own for one call: gigabytes are not kept
/// for a next call that may never come.
pub(crate) const KEPT: usize = 64 << 20;

impl Scratch {
    pub(crate) fn new(staging: &Arc<Staging>) -> Scratch {
        let (a, x, y, workspace, counters) = Default::default();
        Scratch { staging: staging.clone(), a, x, y, workspace, counters }
    }
}

impl Reused {
    /// The block, with at least this many bytes; true if it is new.
    pub(crate) fn of(&mut self, bytes: usize, gpu: &Arc<Gpu>) -> Result<(&Block, bool)> {
        let new = self.0.as_ref().is_none_or(|b| b.bytes() < bytes);
        if new {
            // The old one is freed first: both together may be too much. While the stream records,
            // memory can be neither freed nor allocated.
            gpu.refuse_while_recording("cuMemAlloc")?;
            self.0 = None;
            self.0 = Some(gpu.alloc(bytes.next_power_of_two().min(bytes.saturating_add(KEPT)))?);
        }
        Ok((self.0.as_ref().expect("just made"), new))
    }

    /// Sets it to zero, in the order of the stream: a record may use this very block.
    pub(crate) fn reset(&mut self, gpu: &Gpu) {
        if self.0.as_ref().is_some_and(|block| gpu.clear(block).is_err()) {
            // No launch succeeds any more, but the next call may say why.
            self.0 = None;
        }
    }
}

/// What was proved for a problem, and computes it.
#[derive(Debug)]
pub(crate) enum Choice {
    Kernels(Launches),
    /// Not a product: the sums of lanes of one of so many processes. All operands are resident.
    Cyclic(Launches, usize),
    /// The library of a GPU, for this problem.
    Cublas(Arc<Cublas>, Desc),
}

/// The launches of a problem with chosen parameters.
#[derive(Debug)]
pub(crate) struct Launches {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) desc: Desc,
    /// What the kernel's entry points take.
    pub(crate) signature: Signature,
    pub(crate) launches: Vec<Launch>,
    /// Bytes of scratch memory, and of counters that are 0 before and after.
    pub(crate) workspace: usize,
    pub(crate) counters: usize,
}

/// Computes one product. A host y is written at the very end. A resident one is written by the
/// launch, which is queued and not waited for.
///
/// # Panics
/// If the choice is for another problem or another GPU, or an operand is another GPU's or of another type.
pub(crate) fn run<T: Element + Times<V>, V: Element>(
    gpu: &Arc<Gpu>,
    scratch: &Mutex<Scratch>,
    job: Checked<Job<'_, T, V>>,
    choice: &Choice,
) -> Result<()> {
    if let Choice::Kernels(of) | Choice::Cyclic(of, _) = choice {
        assert!(Arc::ptr_eq(&of.gpu, gpu), "launches of another GPU");
        assert_eq!(of.desc, job.desc(), "launches for another problem");
        assert_eq!(of.signature, Signature::Gemv, "a kernel of other arguments");
    }
    if let Choice::Cublas(cublas, desc) = choice {
        assert!(cublas.is_of(gpu), "cuBLAS of another GPU");
        assert_eq!(*desc, job.desc(), "cuBLAS for another problem");
    }
    if let Choice::Cyclic(_, processes) = choice {
        let (Input::Device(x), Output::Device(y)) = (&job.x, &job.y) else {
            panic!("sums of a process are of resident operands");
        };
        // The entry of the last column: blocks are further apart than in the matrix. And the last number of y.
        let last = x.dim[0].saturating_sub(1);
        let groups = (last / (SEGMENT * SEGMENT / processes)) as isize;
        let last = (last + last / SEGMENT * SEGMENT * (processes - 1)) as isize;
        let inside = |first: usize, entries: isize, stride: isize, len: usize| {
            let at = stride.checked_mul(entries).and_then(|by| first.checked_add_signed(by));
            at.is_some_and(|at| at < len)
        };
        let there = inside(x.first, last, x.stride(0), x.memory.len());
        assert!(there && x.dim[0] > 0, "x has the entries of all columns of the process");
        let rows = y.dim[0].saturating_sub(1) as isize;
        let there = y.stride(0) > groups
            && inside(y.first + groups as usize, rows, y.stride(0), y.memory.len());
        assert!(there, "y has place for the sums of all rows");
        let plain = job.alpha == V::Acc::ONE && job.beta == V::Acc::ZERO;
        assert!(plain, "sums of a process are not scaled");
    }
    let _guard = gpu.enter()?;
    let mut scratch = lock(scratch);
    let done = queue(gpu, &mut scratch, job, choice);
    if done.is_err() && !gpu.recording() {
        // A launch that was not queued may have left counters behind that are not 0. (What is
        // recorded has not run.)
        scratch.counters.reset(gpu);
    }
    done
}

fn queue<T: Element + Times<V>, V: Element>(
    gpu: &Arc<Gpu>,
    scratch: &mut Scratch,
    job: Checked<Job<'_, T, V>>,
    choice: &Choice,
) -> Result<()> {
    let Scratch { staging, a: a_block, x: x_block, y: y_block, workspace, counters } = scratch;
    let needs = match choice {
        Choice::Kernels(of) | Choice::Cyclic(of, _) => (of.workspace, of.counters),
        Choice::Cublas(..) => (0, 0),
    };
    let (workspace, _) = workspace.of(needs.0, gpu)?;
    let (counters, new) = counters.of(needs.1, gpu)?;
    if new {
        gpu.clear(counters)?;
    }
    let Job { alpha, a, conj, x, beta, y } = job.into_inner();
    let (m, n) = (a.raw_dim()[0], a.raw_dim()[1]);
    // With alpha = 0 the kernel reads neither A nor x.
    let used = alpha != V::Acc::ZERO;

    let own;
    let a = match &a {
        Input::Device(a) => Operand {
            block: &resident(a.memory, gpu, T::DTYPE).block,
            first: a.first,
            dim: (m, n),
            strides: (a.stride(0), a.stride(1)),
        },
        Input::Host(a) => {
            let s = span(a)?;
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
            Operand { block, first: s.first, dim: (m, n), strides: (s.stride(0), s.stride(1)) }
        }
    };
    let x = match &x {
        Input::Device(x) => Operand {
            block: &resident(x.memory, gpu, V::DTYPE).block,
            first: x.first,
            dim: (n, 1),
            strides: (x.stride(0), 0),
        },
        Input::Host(x) => {
            let s = span(x)?;
            let (block, _) = x_block.of(size_of_val(&*s.data), gpu)?;
            if used {
                staging.send(&s.data, block)?;
            }
            Operand { block, first: s.first, dim: (n, 1), strides: (s.stride(0), 0) }
        }
    };
    let launch = |y: Operand<'_>| -> Result<()> {
        let element = size_of::<T>();
        let arguments =
            Arguments::<V> { element, m, n, a, x, y, alpha, beta, conj, workspace, counters };
        match choice {
            Choice::Cublas(cublas, _) => cublas.gemv(&arguments),
            Choice::Kernels(of) | Choice::Cyclic(of, _) => {
                of.launches.iter().try_for_each(|launch| gpu.launch(launch, &arguments, needs))
            }
        }
    };

    match y {
        Output::Device(y) => launch(Operand {
            block: &resident(y.memory, gpu, V::DTYPE).block,
            first: y.first,
            dim: (m, 1),
            strides: (y.stride(0), 0),
        }),
        Output::Host(mut y) => {
            let (block, _) = y_block.of(gpu.size_of(m as u64, size_of::<V>())?, gpu)?;
            if beta != V::Acc::ZERO {
                match y.as_slice() {
                    Some(old) => staging.send(old, block)?,
                    None => staging.send(&packed(&y.view())?, block)?,
                }
            }
            launch(Operand { block, first: 0, dim: (m, 1), strides: (1, 0) })?;
            staging.receive(block, m, |new: &[V]| {
                y.iter_mut().zip(new).for_each(|(y, new)| *y = *new);
            })
        }
    }
}
